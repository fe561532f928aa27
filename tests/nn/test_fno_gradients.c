/* Gradients of whole networks against central differences in f64; the convolution against its
 * adjoint and on finer grids; the cpu backend against ref on odd sizes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/models/models.h"
#include "nn/network.h"
#include "support/network.h"
#include "support/runner.h"

typedef struct net_case {
    const char *config; /* JSON */
    int64_t batch;
    int64_t grid[3];
    const char *loss;
} net_case;

/* ---- central differences ---- */

static const net_case cases[] = {
    {"{\"n_modes\": [6], \"hidden_channels\": 3, \"n_layers\": 2}", 2, {9}, "l2"},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 3, \"in_channels\": 2,"
     "\"out_channels\": 3, \"channel_mlp_skip\": \"linear\"}",
     2,
     {6, 5},
     "h1"},
    {"{\"n_modes\": [4, 3], \"hidden_channels\": 3, \"n_layers\": 2, \"fno_skip\": \"identity\","
     "\"channel_mlp_skip\": \"identity\", \"positional_embedding\": null}",
     1,
     {5, 6},
     "l2 + 0.1*h1"},
    {"{\"n_modes\": [2, 3, 4], \"hidden_channels\": 2, \"n_layers\": 2}", 1, {3, 4, 5}, "l2"},
    {"{\"architecture\": \"uno\", \"hidden_channels\": 3, \"n_layers\": 3, \"channel_mlp_skip\": "
     "\"linear\","
     "\"uno_n_modes\": [[3, 4], [5, 4], [4, 5]], \"uno_scalings\": [[0.6, 1.5], [2, 1], "
     "[0.8333333333333334, 0.6666666666666666]],"
     "\"uno_out_channels\": [4, 3, 2], \"horizontal_skip\": \"soft-gating\"}",
     2,
     {5, 6},
     "h1"},
    {"{\"architecture\": \"uno\", \"hidden_channels\": 3, \"n_layers\": 3, \"channel_mlp_skip\": "
     "\"linear\","
     "\"uno_n_modes\": [[6], [4], [8]], \"uno_scalings\": [[2], [0.25], [2]], "
     "\"uno_out_channels\": [4, 3, 2],"
     "\"horizontal_skips_map\": [[1, 0], [2, 0]], \"horizontal_skip\": \"identity\"}",
     2,
     {9},
     "l2"},
    {"{\"architecture\": \"uno\", \"hidden_channels\": 2, \"n_layers\": 2, \"uno_out_channels\": "
     "[3, 2],"
     "\"uno_n_modes\": [[2, 3, 4], [3, 2, 2]], \"uno_scalings\": [[0.5, 1.5, 2], [2, "
     "0.6666666666666666, 0.5]],"
     "\"channel_mlp_skip\": \"linear\"}",
     1,
     {4, 4, 3},
     "l2"},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 2, \"norm\": \"group_norm\"}",
     2,
     {5, 4},
     "l2"},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 2, \"norm\": \"instance_norm\","
     "\"fno_skip\": \"soft-gating\"}",
     2,
     {5, 4},
     "l2"},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 2, \"stabilizer\": \"tanh\","
     "\"domain_padding\": 0.3, \"domain_padding_mode\": \"symmetric\"}",
     2,
     {5, 4},
     "abs_l2"},
    {"{\"n_modes\": [16, 12], \"hidden_channels\": 2, \"n_layers\": 2}", 2, {5, 3}, "l2"},
    {"{\"n_modes\": [4], \"hidden_channels\": 2, \"n_layers\": 1}", 1, {1}, "l2"},
    {"{\"n_modes\": [4], \"hidden_channels\": 4, \"n_layers\": 2, \"channel_mlp_dropout\": 0.3}",
     2,
     {9},
     "l1.5"},
    {"{\"n_modes\": [5], \"hidden_channels\": 3, \"n_layers\": 2, \"complex_data\": true}",
     2,
     {8},
     "h1"},
    {"{\"n_modes\": [8], \"hidden_channels\": 3, \"n_layers\": 2, \"complex_data\": true,"
     "\"complex_modes\": \"nonnegative\", \"fno_skip\": \"identity\","
     "\"channel_mlp_skip\": \"linear\"}",
     1,
     {5},
     "l2"},
    {"{\"n_modes\": [4, 5], \"hidden_channels\": 2, \"n_layers\": 2, \"complex_data\": true,"
     "\"norm\": \"group_norm\", \"stabilizer\": \"tanh\", \"domain_padding\": 0.25,"
     "\"channel_mlp_dropout\": 0.25}",
     2,
     {4, 5},
     "l2"},
    {"{\"n_modes\": [2, 2, 3], \"hidden_channels\": 2, \"n_layers\": 2, \"complex_data\": true}",
     1,
     {3, 2, 4},
     "l2"},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 3, \"use_channel_mlp\": false}",
     2,
     {6, 5},
     "h1"},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 3, \"n_layers\": 3, \"use_channel_mlp\": false,"
     "\"fno_skip\": \"soft-gating\", \"norm\": \"group_norm\", \"stabilizer\": \"tanh\","
     "\"domain_padding\": 0.3}",
     2,
     {5, 4},
     "l2"},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 3, \"n_layers\": 3, \"preactivation\": true,"
     "\"non_linearity\": \"silu\", \"norm\": \"group_norm\", \"domain_padding\": [0.4, 0]}",
     2,
     {5, 4},
     "l2"},
    {"{\"n_modes\": [4], \"hidden_channels\": 3, \"n_layers\": 3, \"preactivation\": true,"
     "\"non_linearity\": \"tanh\", \"use_channel_mlp\": false, \"norm\": \"instance_norm\"}",
     2,
     {9},
     "h1"},
    {"{\"n_modes\": [4], \"hidden_channels\": 3, \"n_layers\": 2, \"non_linearity\": \"relu\"}",
     2,
     {9},
     "l2 + 0.5*hs0.5"},
    {"{\"n_modes\": [5], \"hidden_channels\": 3, \"n_layers\": 2, \"preactivation\": true,"
     "\"complex_data\": true}",
     2,
     {8},
     "l2"},
    {"{\"n_modes\": [5], \"hidden_channels\": 3, \"n_layers\": 2, \"use_channel_mlp\": false,"
     "\"complex_data\": true, \"fno_skip\": \"identity\"}",
     2,
     {8},
     "h1"},
};

typedef struct problem {
    tg_context *ctx;
    tg_fno *fno;
    tg_tensor x, target, y;
    tg_loss_config loss;
} problem;

static problem make_problem(tg_context *ctx, const net_case *c, tg_dtype dtype) {
    problem p = {.ctx = ctx};
    tg_fno_config config = net_config(ctx, c->config);
    config.dtype = dtype;
    config.input_gradient = dtype == TG_F64;
    net_ok(ctx, tg_fno_create(ctx, &config, 3, &p.fno));
    net_ok(ctx, tg_fno_prepare(p.fno, c->batch, c->grid, true));
    net_ok(ctx, tg_loss_config_parse(ctx, "loss", c->loss, &p.loss));
    p.x = net_random(ctx, &config, c->batch, config.in_channels, c->grid, 1);
    p.target = net_random(ctx, &config, c->batch, config.out_channels, c->grid, 2);
    p.y = net_random(ctx, &config, c->batch, config.out_channels, c->grid, 3);
    return p;
}

static void free_problem(problem *p) {
    tg_fno_destroy(&p->fno);
    tg_tensor_destroy(&p->x);
    tg_tensor_destroy(&p->target);
    tg_tensor_destroy(&p->y);
}

static double loss_of(problem *p) {
    double loss = (double)NAN;
    tg_fno_set_step(p->fno, 5); /* the same dropout each time */
    net_ok(p->ctx, tg_fno_forward(p->fno, &p->x, &p->y));
    net_ok(p->ctx, tg_loss_eval(p->ctx, &p->loss, &p->y, &p->target, &loss, NULL));
    return loss;
}

/* Derivative of the loss by real number i of a parameter. */
static double difference(problem *p, double *weight) {
    const double kept = *weight, step = 1e-5;
    *weight = kept + step;
    const double up = loss_of(p);
    *weight = kept - step;
    const double down = loss_of(p);
    *weight = kept;
    return (up - down) / (2.0 * step);
}

/* Up to seven numbers of every parameter, spread over it. */
static void check_param(problem *p, int number, const tg_tensor *gradient, double scale) {
    const tg_fno_param param = tg_fno_get_param(p->fno, number);
    const int64_t reals = tg_shape_numel(&param.shape) * (tg_dtype_is_complex(param.dtype) ? 2 : 1);
    const int64_t stride = reals > 7 ? reals / 7 : 1;
    for (int64_t i = number % stride; i < reals; i += stride) {
        const double numeric = difference(p, (double *)param.weight.data + i);
        const double exact = ((const double *)gradient->data)[i];
        if (!(fabs(numeric - exact) <= 2e-8 * scale)) {
            fail_msg("%s [%lld]: gradient %.12g, difference %.12g", param.name, (long long)i, exact,
                     numeric);
        }
    }
}

static double largest(const net_gradients *gradients) {
    double most = 0.0;
    for (int g = 0; g < gradients->count; g++) {
        tg_tensor_stats stats;
        net_ok(gradients->ctx,
               tg_tensor_get_stats(gradients->ctx, &gradients->gradient[g], &stats));
        assert_int_equal(stats.nan_count + stats.inf_count, 0);
        most = fmax(most, fmax(fabs(stats.min), fabs(stats.max)));
    }
    return most;
}

static void check_gradients(problem *p) {
    net_gradients gradients = net_gradients_make(p->ctx, p->fno);
    const tg_grad_sink sink = net_sink(&gradients);
    double loss = (double)NAN;
    const double expected = loss_of(p);
    tg_fno_set_step(p->fno, 5);
    net_ok(p->ctx, tg_fno_loss_backward(p->fno, &p->x, &p->target, &p->loss, &sink, &loss));
    assert_true(fabs(loss - expected) <= 1e-13 * expected);
    assert_int_equal(tg_fno_step(p->fno), 6);
    assert_int_equal(gradients.received, gradients.count);
    const double scale = 1.0 + largest(&gradients);
    for (int n = 0; n < gradients.count; n++) {
        check_param(p, n, &gradients.gradient[n], scale);
    }
    net_gradients_free(&gradients);
}

static tg_status drop(void *user, const tg_gradient *gradient) {
    (void)user;
    (void)gradient;
    return TG_OK;
}

/* dL/dx, which a network computes on request. */
static void check_input_gradient(problem *p) {
    const tg_grad_sink sink = {.receive = drop};
    const int64_t reals = (int64_t)(tg_tensor_bytes(&p->x) / sizeof(double));
    double loss = (double)NAN, *dx = calloc((size_t)reals, sizeof *dx), most = 1.0;
    assert_non_null(dx);
    tg_fno_set_step(p->fno, 5);
    net_ok(p->ctx, nn_forward_loss(p->fno, &p->x, &p->target, &p->loss, 1.0, &loss));
    net_ok(p->ctx, nn_backward(p->fno, &sink, dx));
    for (int64_t i = 0; i < reals; i++) {
        most = fmax(most, fabs(dx[i]));
    }
    for (int64_t i = 0; i < reals; i += 1 + reals / 15) {
        const double numeric = difference(p, (double *)p->x.data + i);
        if (!(fabs(numeric - dx[i]) <= 2e-8 * most)) {
            fail_msg("dx[%lld]: %.12g, difference %.12g", (long long)i, dx[i], numeric);
        }
    }
    free(dx);
}

TEST(central_differences) {
    for (int i = 0; i < T_COUNT(cases); i++) {
        print_message("%s\n", cases[i].config);
        tg_context *ctx = net_context("ref", 1);
        problem p = make_problem(ctx, &cases[i], TG_F64);
        check_gradients(&p);
        check_input_gradient(&p);
        free_problem(&p);
        tg_context_destroy(&ctx);
    }
}

/* A network of another shape, of the parameters of an FNO with two blocks: both convolutions read
 * the lifting's result, a skip leads past both, and a GELU has two readers. */
static void build_web(const nn_model *model, nn_program *p) {
    const nn_block *b = model->blocks;
    nn_phase_begin(p, "lifting", "lifting");
    const int x = nn_add_mlp(p, &model->lifting, NN_ACTIVATION, nn_add_embed(p, nn_add_input(p)));
    nn_scope(p, 1, "block 1");
    const int h = nn_add_activation(p, nn_boundary(p, nn_fno_convolve(p, &b[0], x, x)));
    const int mixed = nn_add_channel_mlp(p, &b[0].mlp, 0, h);
    nn_scope(p, 2, "block 2");
    int z = nn_add_contract(p, &b[1].conv, nn_add_transform(p, b[1].conv.modes, x));
    z = nn_add_inverse_on(p, p->values[x].grid, z);
    z = nn_add_skip(p, &b[1].fno_skip, h, nn_add_bias(p, b[1].conv.bias, z));
    z = nn_add_channel_mlp(p, &b[1].mlp, 1, nn_add_activation(p, nn_boundary(p, z)));
    z = nn_add_skip(p, &b[0].mlp_skip, mixed, z);
    z = nn_add_skip(p, &b[1].mlp_skip, x, z);
    nn_scope(p, 3, NULL);
    nn_phase_begin(p, "projection", "projection");
    p->output = nn_add_join(p, nn_add_mlp(p, &model->projection, NN_DATA, z));
}

/* The passes know no architecture: whatever a builder lists is differentiated, and checkpointing
 * changes memory and not numbers. */
TEST(any_shape) {
    static const nn_architecture web = {.build = build_web};
    static const char *const kinds[] = {"off", "block", "minimal"};
    static const char *const settings[] = {
        "", ", \"stabilizer\": \"tanh\", \"channel_mlp_skip\": \"linear\"",
        ", \"complex_data\": true, \"fno_skip\": \"identity\""};
    for (int i = 0; i < 9; i++) {
        char config[256];
        snprintf(config, sizeof config,
                 "{\"n_modes\": [6], \"hidden_channels\": 3, \"n_layers\": 2,"
                 "\"activation_checkpoint\": \"%s\"%s}",
                 kinds[i % 3], settings[i / 3]);
        const net_case c = {config, 2, {9}, "l2"};
        tg_context *ctx = net_context("ref", 1);
        problem p = make_problem(ctx, &c, TG_F64);
        p.fno->model.architecture = &web;
        net_ok(ctx, tg_fno_prepare(p.fno, c.batch, c.grid, false));
        net_ok(ctx, tg_fno_prepare(p.fno, c.batch, c.grid, true));
        check_gradients(&p);
        free_problem(&p);
        tg_context_destroy(&ctx);
    }
}

/* ---- cpu against ref in f32, odd sizes ---- */

static const net_case odd_cases[] = {
    {"{\"n_modes\": [16], \"hidden_channels\": 3, \"n_layers\": 2}", 1, {1}, "l2"},
    {"{\"n_modes\": [16], \"hidden_channels\": 1, \"n_layers\": 2}", 3, {5}, "h1"},
    {"{\"n_modes\": [7], \"hidden_channels\": 5, \"n_layers\": 1}", 2, {7}, "h1"},
    {"{\"n_modes\": [12], \"hidden_channels\": 3, \"n_layers\": 2}", 2, {421}, "l2"},
    {"{\"n_modes\": [5, 6], \"hidden_channels\": 7, \"n_layers\": 3, \"norm\": \"group_norm\"}",
     1,
     {21, 17},
     "l2"},
    {"{\"n_modes\": [40, 40], \"hidden_channels\": 3, \"n_layers\": 2, \"domain_padding\": 0.2}",
     2,
     {13, 16},
     "l2"},
    {"{\"n_modes\": [9, 4], \"hidden_channels\": 3, \"n_layers\": 2, \"complex_data\": true,"
     "\"stabilizer\": \"tanh\", \"norm\": \"instance_norm\"}",
     2,
     {7, 9},
     "h1"},
    {"{\"n_modes\": [4, 3, 5], \"hidden_channels\": 3, \"n_layers\": 2,"
     "\"channel_mlp_dropout\": 0.5}",
     1,
     {5, 3, 7},
     "l2"},
};

/* Output and gradients of a case on a backend; each tensor owned by ctx. */
static net_gradients run_case(tg_context *ctx, const net_case *c, tg_tensor *y) {
    problem p = make_problem(ctx, c, TG_F32);
    net_gradients gradients = net_gradients_make(ctx, p.fno);
    const tg_grad_sink sink = net_sink(&gradients);
    double loss = (double)NAN;
    net_ok(ctx, tg_fno_forward(p.fno, &p.x, &p.y));
    net_ok(ctx, tg_fno_loss_backward(p.fno, &p.x, &p.target, &p.loss, &sink, &loss));
    *y = p.y;
    p.y = (tg_tensor){0};
    free_problem(&p);
    return gradients;
}

TEST(cpu_like_ref) {
    for (int i = 0; i < T_COUNT(odd_cases); i++) {
        for (int threads = 1; threads <= 3; threads += 2) {
            print_message("%s, %d threads\n", odd_cases[i].config, threads);
            tg_context *ref = net_context("ref", 1), *cpu = net_context("cpu", threads);
            tg_tensor y[2];
            net_gradients a = run_case(ref, &odd_cases[i], &y[0]);
            net_gradients b = run_case(cpu, &odd_cases[i], &y[1]);
            assert_true(net_error(&y[1], &y[0]) <= 5e-6);
            double most = 0.0; /* some gradients are 0: a bias before a norm */
            for (int n = 0; n < a.count; n++) {
                most = fmax(most, net_distance(&a.gradient[n], NULL));
            }
            for (int n = 0; n < a.count; n++) {
                const double apart = net_distance(&b.gradient[n], &a.gradient[n]);
                const double norm = net_distance(&a.gradient[n], NULL);
                if (!(apart <= 5e-5 * norm + 1e-6 * most)) {
                    fail_msg("gradient %d: %.3g off, of %.3g", n, apart, norm);
                }
            }
            tg_tensor_destroy(&y[0]);
            tg_tensor_destroy(&y[1]);
            net_gradients_free(&a);
            net_gradients_free(&b);
            tg_context_destroy(&ref);
            tg_context_destroy(&cpu);
        }
    }
}

/* Sharing bytes changes no bit: no buffer is written while another one needs its bytes. Every case
 * above, whatever is kept of the forward pass. */
TEST(sharing_changes_nothing) {
    static const char *const kinds[] = {"off", "block", "minimal"};
    for (int i = 0; i < 3 * (T_COUNT(cases) + T_COUNT(odd_cases)); i++) {
        const int n = i / 3;
        net_case c = n < T_COUNT(cases) ? cases[n] : odd_cases[n - T_COUNT(cases)];
        char config[512];
        snprintf(config, sizeof config, "{\"activation_checkpoint\": \"%s\", %s", kinds[i % 3],
                 c.config + 1);
        c.config = config;
        tg_context *ctx = net_context("cpu", 1);
        net_gradients gradients[2];
        tg_tensor y[2];
        for (int apart = 0; apart < 2; apart++) {
            nn_arena_test_apart(apart == 1);
            gradients[apart] = run_case(ctx, &c, &y[apart]);
        }
        nn_arena_test_apart(false);
        assert_memory_equal(y[0].data, y[1].data, tg_tensor_bytes(&y[0]));
        for (int g = 0; g < gradients[0].count; g++) {
            assert_memory_equal(gradients[0].gradient[g].data, gradients[1].gradient[g].data,
                                tg_tensor_bytes(&gradients[0].gradient[g]));
        }
        for (int k = 0; k < 2; k++) {
            tg_tensor_destroy(&y[k]);
            net_gradients_free(&gradients[k]);
        }
        tg_context_destroy(&ctx);
    }
}

/* ---- the convolution alone ---- */

/* Runs the op of that kind of the first block, or of its backward, on x and y instead of its own
 * arrays (NULL: those). */
static void run_op(tg_fno *fno, nn_kind kind, bool is_adjoint, const void *x, void *y) {
    nn_program *p = &fno->run.program;
    int i = 0;
    while (p->ops[i].kind != kind || p->ops[i].is_adjoint != is_adjoint || p->ops[i].block != 1) {
        i++;
        assert_true(i < p->op_count);
    }
    const nn_op *op = &p->ops[i];
    if (x) {
        p->values[op->in[NN_X]].data = (void *)(uintptr_t)x;
    }
    if (y) {
        p->values[op->out[0]].data = y;
    }
    net_ok(fno->ctx, nn_kind_of(kind)->run(fno, op));
}

/* y = convolution(x) of the first block, f64, (B, C, P) without bias. */
static void convolve(tg_fno *fno, const void *x, void *y) {
    fno->run.batch = fno->run.program.batch;
    run_op(fno, NN_TRANSFORM, false, x, NULL);
    run_op(fno, NN_CONTRACT, false, NULL, NULL);
    run_op(fno, NN_INVERSE, false, NULL, y);
}

static void convolve_adjoint(tg_fno *fno, const void *g, void *gx) {
    run_op(fno, NN_TRANSFORM, true, g, NULL);
    run_op(fno, NN_CONTRACT, true, NULL, NULL);
    run_op(fno, NN_INVERSE, true, NULL, gx);
}

static double dot(int64_t n, const double *a, const double *b) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* <A x, g> = <x, A^T g> on even, odd, prime and tiny grids, with modes beyond the grid too. */
TEST(convolution_adjoint) {
    static const struct {
        const char *config;
        int64_t grid[3];
    } list[] = {{"{\"n_modes\": [8], \"hidden_channels\": 3}", {16}},
                {"{\"n_modes\": [8], \"hidden_channels\": 3}", {7}},
                {"{\"n_modes\": [8], \"hidden_channels\": 3}", {1}},
                {"{\"n_modes\": [6, 7], \"hidden_channels\": 2}", {8, 12}},
                {"{\"n_modes\": [6, 7], \"hidden_channels\": 2}", {5, 4}},
                {"{\"n_modes\": [3, 4, 6], \"hidden_channels\": 2}", {5, 4, 6}},
                {"{\"n_modes\": [8], \"hidden_channels\": 3, \"complex_data\": true}", {11}},
                {"{\"n_modes\": [8, 5], \"hidden_channels\": 2, \"complex_data\": true}", {6, 7}}};
    const char *const backends[] = {"ref", "cpu"};
    for (int i = 0; i < 2 * T_COUNT(list); i++) {
        tg_context *ctx = net_context(backends[i % 2], 2);
        tg_fno_config config = net_config(ctx, list[i / 2].config);
        tg_fno *fno = NULL;
        config.dtype = TG_F64;
        net_ok(ctx, tg_fno_create(ctx, &config, 1, &fno));
        net_ok(ctx, tg_fno_prepare(fno, 2, list[i / 2].grid, true));
        const int64_t n =
            2 * fno->model.planes * config.hidden_channels * fno->run.program.domain.pixels;
        double *arrays = calloc((size_t)(4 * n), sizeof *arrays);
        assert_non_null(arrays);
        double *x = arrays, *g = arrays + n, *y = arrays + 2 * n, *gx = arrays + 3 * n;
        const tg_rng rng = {.seed = 9, .purpose = TG_RNG_TEST};
        for (int64_t k = 0; k < 2 * n; k++) {
            arrays[k] = tg_rng_normal(&rng, (uint64_t)k);
        }
        convolve(fno, x, y);
        convolve_adjoint(fno, g, gx);
        const double left = dot(n, y, g), right = dot(n, x, gx);
        if (!(fabs(left - right) <= 1e-12 * (fabs(left) + sqrt((double)n)))) {
            fail_msg("%s on %s: %.15g and %.15g", list[i / 2].config, backends[i % 2], left, right);
        }
        free(arrays);
        tg_fno_destroy(&fno);
        tg_context_destroy(&ctx);
    }
}

/* A field of low frequencies at x, y in [0, 1). */
static double smooth_field(int64_t c, double x, double y) {
    const double turn = 6.283185307179586477;
    return sin(turn * (2.0 * x + y) + (double)c) + 0.5 * cos(turn * (x - 3.0 * y)) + 0.25;
}

/* A band-limited field and its convolution are the same functions on every grid that carries
 * them: values at shared points agree to rounding. */
TEST(same_function_on_finer_grids) {
    enum { COARSE = 8, FACTORS = 3, C = 2 };
    static const int64_t factors[FACTORS] = {2, 3, 5};
    tg_context *ctx = net_context("ref", 1);
    tg_fno_config config = net_config(ctx, "{\"n_modes\": [8, 8], \"hidden_channels\": 2}");
    tg_fno *fno = NULL;
    double coarse[C * COARSE * COARSE];
    config.dtype = TG_F64;
    net_ok(ctx, tg_fno_create(ctx, &config, 1, &fno));
    for (int f = -1; f < FACTORS; f++) {
        const int64_t factor = f < 0 ? 1 : factors[f], n = COARSE * factor;
        net_ok(ctx, tg_fno_prepare(fno, 1, (int64_t[]){n, n}, true));
        double *x = calloc((size_t)(2 * C * n * n), sizeof *x), *y = x + C * n * n;
        for (int64_t i = 0; i < C * n * n; i++) {
            x[i] = smooth_field(i / (n * n), (double)(i / n % n) / (double)n,
                                (double)(i % n) / (double)n);
        }
        convolve(fno, x, y);
        for (int64_t i = 0; i < C * COARSE * COARSE; i++) {
            const int64_t c = i / (COARSE * COARSE), r = i / COARSE % COARSE, k = i % COARSE;
            const double value = y[(c * n + r * factor) * n + k * factor];
            if (f < 0) {
                coarse[i] = value;
            }
            assert_true(fabs(value - coarse[i]) <= 1e-12);
        }
        free(x);
    }
    tg_fno_destroy(&fno);
    tg_context_destroy(&ctx);
}
