/* One sample over several ranks, here threads: forward, losses, dL/dx and the gradients of all
 * parameters are those of one rank, on uneven slabs and blocks of modes. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "nn/network.h"
#include "support/network.h"
#include "support/rank_threads.h"
#include "tensor/element.h"

enum { MOST_PARTS = 4, MOST_PARAMS = 64 };

typedef struct split_case {
    const char *config; /* JSON */
    int64_t batch, grid[3];
} split_case;

static const split_case cases[] = {
    {"{\"n_modes\": [6], \"hidden_channels\": 3, \"n_layers\": 2}", 2, {9}},
    {"{\"n_modes\": [8], \"hidden_channels\": 3, \"n_layers\": 1}", 1, {8}},
    {"{\"n_modes\": [5], \"hidden_channels\": 3, \"n_layers\": 2, \"complex_data\": true}", 2, {8}},
    {"{\"n_modes\": [5, 4], \"hidden_channels\": 4, \"n_layers\": 3, \"in_channels\": 2,"
     "\"out_channels\": 3, \"channel_mlp_skip\": \"linear\"}",
     2,
     {7, 5}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 3, \"n_layers\": 2}", 1, {8, 8}},
    {"{\"n_modes\": [16, 12], \"hidden_channels\": 2, \"n_layers\": 2}", 2, {5, 3}},
    {"{\"n_modes\": [4, 5], \"hidden_channels\": 2, \"n_layers\": 2, \"complex_data\": true,"
     "\"stabilizer\": \"tanh\", \"domain_padding\": 0.25}",
     2,
     {4, 5}},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 2, \"stabilizer\": \"tanh\","
     "\"domain_padding\": 0.3, \"domain_padding_mode\": \"symmetric\","
     "\"activation_checkpoint\": \"minimal\"}",
     2,
     {5, 4}},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 3, \"n_layers\": 3, \"preactivation\": true,"
     "\"use_channel_mlp\": false, \"positional_embedding\": null, \"non_linearity\": \"silu\","
     "\"domain_padding\": [0.4, 0]}",
     2,
     {5, 4}},
    {"{\"n_modes\": [5, 3, 4], \"hidden_channels\": 2, \"n_layers\": 2}", 1, {7, 4, 5}},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 2, \"norm\": \"group_norm\","
     "\"complex_data\": true, \"domain_padding\": 0.3}",
     2,
     {5, 4}},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 150, \"n_layers\": 2, \"norm\": \"instance_norm\","
     "\"preactivation\": true, \"activation_checkpoint\": \"block\"}",
     2,
     {5, 4}},
    {"{\"n_modes\": [4, 2, 3], \"hidden_channels\": 2, \"n_layers\": 2, \"complex_data\": true,"
     "\"activation_checkpoint\": \"block\"}",
     1,
     {4, 2, 4}},
};

/* Used in turn. */
static const char *const losses[] = {"h1", "l2", "0.5*abs_h1 + l1.5", "abs_l2 + 3*h1"};

/* A step of one rank and its results; x, target, y and dx are its slabs. */
typedef struct member {
    const split_case *c;
    const char *loss_text;
    tg_dtype dtype;
    nn_split split;
    tg_comm_group *group;
    tg_context *ctx;
    tg_fno *fno;
    tg_tensor x, target, y, dx, gradient[MOST_PARAMS];
    double loss;
    tg_status status;
} member;

static tg_status keep(void *user, const tg_gradient *gradient) {
    member *m = user;
    tg_tensor *mine = &m->gradient[gradient->param];
    const tg_status status =
        tg_tensor_create(m->ctx, TG_MEM_OTHER, gradient->dtype, &gradient->shape, mine);
    return status == TG_OK ? tg_gradient_read(m->ctx, gradient, mine) : status;
}

static tg_status step(member *m) {
    tg_loss_config loss;
    const tg_grad_sink sink = {.receive = keep, .user = m};
    if (m->group) {
        nn_split *split = &m->fno->model.split;
        TG_CALL(tg_comm_create_threads(m->ctx, m->group, split->part, NULL, &m->split.comm));
        split->comm = m->split.comm;
    }
    TG_CALL(tg_loss_config_parse(m->ctx, "loss", m->loss_text, &loss));
    TG_CALL(tg_fno_prepare(m->fno, m->c->batch, m->c->grid, true));
    TG_CALL(nn_forward_loss(m->fno, &m->x, &m->target, &loss, 1.0, &m->loss));
    memcpy(m->y.data, nn_output(m->fno), tg_tensor_bytes(&m->y));
    return nn_backward(m->fno, &sink, m->dx.data);
}

static void *run(void *user) {
    member *m = user;
    m->status = step(m);
    if (m->status != TG_OK && m->split.comm) {
        tg_comm_abort(m->split.comm);
    }
    return NULL;
}

/* The rows of a tensor (batch, channels, grid..) that this part has. */
static void cut(const member *m, tg_tensor *whole) {
    const int64_t rows = whole->shape.dim[2];
    const nn_rows slab = nn_rows_of(&m->split, m->split.part, rows);
    const int64_t images = whole->shape.dim[0] * whole->shape.dim[1];
    const size_t row = tg_tensor_bytes(whole) / (size_t)(images * rows);
    tg_tensor mine = {0};
    tg_shape shape = whole->shape;
    shape.dim[2] = slab.count;
    net_ok(m->ctx, tg_tensor_create(m->ctx, TG_MEM_OTHER, whole->dtype, &shape, &mine));
    for (int64_t i = 0; i < images; i++) {
        memcpy((char *)mine.data + (size_t)(i * slab.count) * row,
               (const char *)whole->data + (size_t)(i * rows + slab.first) * row,
               (size_t)slab.count * row);
    }
    tg_tensor_destroy(whole);
    *whole = mine;
}

static void make(member *m) {
    m->ctx = net_context("cpu", 1);
    tg_fno_config config = net_config(m->ctx, m->c->config);
    config.dtype = m->dtype;
    config.input_gradient = true;
    net_ok(m->ctx, nn_create(m->ctx, &config, &m->split, 7, &m->fno));
    m->x = net_random(m->ctx, &config, m->c->batch, config.in_channels, m->c->grid, 1);
    m->dx = net_random(m->ctx, &config, m->c->batch, config.in_channels, m->c->grid, 1);
    m->target = net_random(m->ctx, &config, m->c->batch, config.out_channels, m->c->grid, 2);
    m->y = net_random(m->ctx, &config, m->c->batch, config.out_channels, m->c->grid, 2);
    tg_tensor *const fields[] = {&m->x, &m->dx, &m->target, &m->y};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        cut(m, fields[i]);
    }
}

static void release(member *m) {
    tg_tensor *const tensors[] = {&m->x, &m->target, &m->y, &m->dx};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        tg_tensor_destroy(tensors[i]);
    }
    for (int i = 0; i < MOST_PARAMS; i++) {
        tg_tensor_destroy(&m->gradient[i]);
    }
    tg_fno_destroy(&m->fno);
    tg_comm_destroy(&m->split.comm);
    tg_context_destroy(&m->ctx);
}

/* ---- comparison ---- */

/* The whole gradient of a parameter: the blocks of all parts, or the sum over them. */
static tg_tensor join(const member *parts, int param) {
    const nn_param *first = &parts[0].fno->model.params[param];
    tg_tensor whole = {0};
    tg_shape shape = first->shape;
    shape.dim[2] = first->whole > 0 ? first->whole : shape.dim[2];
    const tg_dtype dtype = parts[0].gradient[param].dtype;
    net_ok(parts[0].ctx, tg_tensor_create(parts[0].ctx, TG_MEM_OTHER, dtype, &shape, &whole));
    for (int64_t i = 0; i < tg_tensor_numel(&whole); i++) {
        tg_store(dtype, whole.data, i, (tg_scalar){0});
    }
    for (int d = 0; d < parts[0].split.parts; d++) {
        const nn_param *p = &parts[d].fno->model.params[param];
        const tg_tensor *mine = &parts[d].gradient[param];
        const int64_t row = p->whole > 0 ? tg_tensor_numel(mine) / p->shape.dim[0] /
                                               p->shape.dim[1] / p->block.count
                                         : 0;
        for (int64_t i = 0; i < tg_tensor_numel(mine); i++) {
            const int64_t rows = p->block.count * row;
            const int64_t at =
                p->whole > 0 ? i / rows * p->whole * row + p->block.first * row + i % rows : i;
            const tg_scalar v = tg_load(dtype, mine->data, i);
            const tg_scalar sum = tg_load(dtype, whole.data, at);
            tg_store(dtype, whole.data, at, (tg_scalar){sum.re + v.re, sum.im + v.im});
        }
    }
    return whole;
}

/* Of a slab from the rows of the whole, relative to all of it. */
static double slab_error(const member *part, const tg_tensor *slab, const tg_tensor *whole) {
    tg_tensor wanted = {0};
    const double scale = net_distance(whole, NULL);
    net_ok(part->ctx,
           tg_tensor_create(part->ctx, TG_MEM_OTHER, whole->dtype, &whole->shape, &wanted));
    memcpy(wanted.data, whole->data, tg_tensor_bytes(whole));
    cut(part, &wanted);
    const double error = net_distance(slab, &wanted) / scale;
    tg_tensor_destroy(&wanted);
    return error;
}

static void compare(const member *one, member *parts, double tolerance) {
    assert_int_equal(one->status, TG_OK);
    for (int d = 0; d < parts->split.parts; d++) {
        net_ok(parts[d].ctx, parts[d].status);
        assert_true(fabs(parts[d].loss - one->loss) <= tolerance * fabs(one->loss));
        assert_true(slab_error(&parts[d], &parts[d].y, &one->y) <= tolerance);
        assert_true(slab_error(&parts[d], &parts[d].dx, &one->dx) <= tolerance);
    }
    const int count = tg_fno_param_count(one->fno);
    double largest = 0.0; /* of a bias before a norm only rounding is left */
    for (int i = 0; i < count; i++) {
        largest = fmax(largest, net_distance(&one->gradient[i], NULL));
    }
    for (int i = 0; i < count; i++) {
        tg_tensor whole = join(parts, i);
        const double error = net_distance(&whole, &one->gradient[i]);
        const double scale = fmax(net_distance(&one->gradient[i], NULL), 0.05 * largest);
        tg_tensor_destroy(&whole);
        if (!(error <= tolerance * scale)) {
            fail_msg("gradient of %s: error %g", one->fno->model.params[i].name, error / scale);
        }
    }
}

static void check(const split_case *c, const char *loss, tg_dtype dtype, int parts,
                  double tolerance) {
    member one = {.c = c, .loss_text = loss, .dtype = dtype}, members[MOST_PARTS] = {{0}};
    pthread_t threads[MOST_PARTS];
    tg_comm_group *group = NULL;
    make(&one);
    run(&one);
    net_ok(one.ctx, tg_comm_group_create(one.ctx, parts, &group));
    for (int d = 0; d < parts; d++) {
        members[d] = (member){
            .c = c, .loss_text = loss, .dtype = dtype, .split = {parts, d, NULL}, .group = group};
        make(&members[d]);
    }
    for (int d = 0; d < parts; d++) {
        assert_int_equal(pthread_create(&threads[d], NULL, run, &members[d]), 0);
    }
    for (int d = 0; d < parts; d++) {
        pthread_join(threads[d], NULL);
    }
    compare(&one, members, tolerance);
    for (int d = 0; d < parts; d++) {
        release(&members[d]);
    }
    tg_comm_group_destroy(&group);
    release(&one);
}

TEST(equal_to_one_rank) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int parts = 2; parts <= MOST_PARTS; parts++) {
            const char *loss = losses[(i + (size_t)parts) % (sizeof losses / sizeof losses[0])];
            print_message("%d ranks: %s, %s\n", parts, cases[i].config, loss);
            check(&cases[i], loss, TG_F64, parts, 1e-12);
            /* the gradients of biases are sums of numbers that are N^2 larger in H1 */
            check(&cases[i], loss, TG_F32, parts, strstr(loss, "h1") ? 2e-5 : 5e-6);
        }
    }
}
