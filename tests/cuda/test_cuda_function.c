/* Functions on the GPU: passes that are replayed as graphs have the bits of passes that are not,
 * whatever the numbers in the arrays; on the backend's own stream and on both default streams, one
 * of which cannot be captured itself. Calls on a fake device are in test_function_graphs.c. */
#include <math.h>

#include "support/network.h"
#include "support/runner.h"

enum { BATCH = 2, MOST_PARAMS = 64, SETS = 2, CALLS = 5 };

static const int64_t grid[] = {16, 18};

/* In TF32: kernels of the GPU's own; wide layers, whose products are cuBLAS's; and a UNO. */
static const char *const networks[] = {
    "{\"n_modes\": [8, 8], \"hidden_channels\": 64, \"n_layers\": 2}",
    "{\"n_modes\": [8, 8], \"hidden_channels\": 136, \"n_layers\": 1}",
    "{\"architecture\": \"uno\", \"hidden_channels\": 12, \"n_layers\": 3,"
    "\"uno_out_channels\": [12, 16, 12], \"uno_n_modes\": [[8, 8], [6, 6], [8, 8]],"
    "\"uno_scalings\": [[1, 1], [0.5, 0.5], [2, 2]], \"channel_mlp_skip\": \"linear\"}"};

/* The arrays of a call. */
typedef struct arrays {
    tg_function_call call;
    const void *weights[MOST_PARAMS];
    void *gradients[MOST_PARAMS];
    tg_tensor x, y, dy, dx, activations, workspace, gradient[MOST_PARAMS];
} arrays;

typedef struct user {
    tg_context *ctx;
    tg_fno_config config;
    tg_fno *fno; /* its weights */
    int params, warnings;
    arrays set[SETS];
} user;

/* A warning says that a pass could not be captured. */
static void count_warnings(void *of, tg_log_level level, const char *message) {
    user *u = of;
    if (level == TG_LOG_WARN) {
        print_message("%s\n", message);
        u->warnings++;
    }
}

static tg_function *make(user *u) {
    tg_function *made = NULL;
    net_ok(u->ctx, tg_function_create(u->ctx, &u->config, BATCH, grid, true, NULL, &made));
    return made;
}

static tg_tensor room(user *u, tg_dtype dtype, const tg_shape *shape) {
    tg_tensor made;
    net_ok(u->ctx, tg_backend_tensor(u->ctx, TG_MEM_DATA, dtype, shape, &made));
    return made;
}

static void make_set(user *u, const tg_function *function, arrays *set) {
    const tg_shape shape = {4, {BATCH, 1, grid[0], grid[1]}};
    size_t activations = 0, workspace = 0;
    net_ok(u->ctx, tg_function_sizes(function, &activations, &workspace));
    tg_tensor *const fields[] = {&set->x, &set->y, &set->dy, &set->dx};
    for (int i = 0; i < T_COUNT(fields); i++) {
        *fields[i] = room(u, TG_F32, &shape);
    }
    set->activations = room(u, TG_U8, &(tg_shape){1, {(int64_t)activations}});
    set->workspace = room(u, TG_U8, &(tg_shape){1, {(int64_t)workspace}});
    for (int i = 0; i < u->params; i++) {
        const tg_fno_param param = tg_fno_get_param(u->fno, i);
        set->gradient[i] = room(u, param.dtype, &param.shape);
        set->weights[i] = param.weight.data;
        set->gradients[i] = set->gradient[i].data;
    }
    set->call = (tg_function_call){.weights = set->weights,
                                   .gradients = set->gradients,
                                   .activations = set->activations.data,
                                   .workspace = set->workspace.data};
}

static void free_set(user *u, arrays *set) {
    tg_tensor *const fields[] = {&set->x,  &set->y,           &set->dy,
                                 &set->dx, &set->activations, &set->workspace};
    for (int i = 0; i < T_COUNT(fields); i++) {
        tg_tensor_destroy(fields[i]);
    }
    for (int i = 0; i < u->params; i++) {
        tg_tensor_destroy(&set->gradient[i]);
    }
}

static void put(user *u, tg_tensor *to, uint64_t seed) {
    tg_tensor host = net_random(u->ctx, &u->config, BATCH, 1, grid, seed);
    net_ok(u->ctx, tg_backend_copy(u->ctx, &host, to));
    tg_tensor_destroy(&host);
}

/* A step with new numbers in the arrays, whose results are NaN before. */
static void step(user *u, tg_function *function, arrays *set, uint64_t seed) {
    tg_backend *be = NULL;
    net_ok(u->ctx, tg_backend_get(u->ctx, &be));
    put(u, &set->x, seed);
    put(u, &set->dy, seed + 1000);
    const tg_scalar nan = {NAN, NAN};
    net_ok(u->ctx, be->ops->fill(be, TG_F32, tg_tensor_numel(&set->y), nan, set->y.data));
    net_ok(u->ctx, be->ops->fill(be, TG_F32, tg_tensor_numel(&set->dx), nan, set->dx.data));
    for (int i = 0; i < u->params; i++) {
        const tg_tensor *g = &set->gradient[i];
        net_ok(u->ctx, be->ops->fill(be, g->dtype, tg_tensor_numel(g), nan, g->data));
    }
    net_ok(u->ctx, tg_function_forward(function, &set->call, &set->x, &set->y));
    net_ok(u->ctx, tg_function_backward(function, &set->call, &set->dy, &set->dx));
}

static tg_tensor on_host(user *u, const tg_tensor *x) {
    tg_tensor host;
    net_ok(u->ctx, tg_tensor_create(u->ctx, TG_MEM_OTHER, x->dtype, &x->shape, &host));
    net_ok(u->ctx, tg_backend_copy(u->ctx, x, &host));
    assert_false(isnan(net_distance(&host, NULL)));
    return host;
}

static void assert_same(user *u, const tg_tensor *got, const tg_tensor *expected) {
    tg_tensor a = on_host(u, got), b = on_host(u, expected);
    assert_memory_equal(a.data, b.data, tg_tensor_bytes(&a));
    tg_tensor_destroy(&a);
    tg_tensor_destroy(&b);
}

static void assert_same_results(user *u, const arrays *got, const arrays *expected) {
    assert_same(u, &got->y, &expected->y);
    assert_same(u, &got->dx, &expected->dx);
    for (int i = 0; i < u->params; i++) {
        assert_same(u, &got->gradient[i], &expected->gradient[i]);
    }
}

static void compare(const char *network, void *stream) {
    user u = {0};
    tg_context_config config = tg_context_config_default();
    config.stream = stream;
    config.log = count_warnings;
    config.log_user = &u;
    config.log_level = TG_LOG_WARN;
    assert_int_equal(tg_context_create(&config, &u.ctx), TG_OK);
    net_ok(u.ctx, tg_backend_select(u.ctx, "cuda"));
    u.config = net_config(u.ctx, network);
    u.config.input_gradient = true;
    net_ok(u.ctx, tg_fno_create(u.ctx, &u.config, 3, &u.fno));
    u.params = tg_fno_param_count(u.fno);
    assert_in_range(u.params, 1, MOST_PARAMS);
    tg_function *kept = make(&u);
    for (int k = 0; k < SETS; k++) {
        make_set(&u, kept, &u.set[k]);
    }
    for (uint64_t i = 0; i < CALLS; i++) { /* part by part, captured, replayed */
        tg_function *fresh = make(&u);
        step(&u, kept, &u.set[0], i);
        step(&u, fresh, &u.set[1], i);
        assert_same_results(&u, &u.set[0], &u.set[1]);
        tg_function_destroy(&fresh);
    }
    for (int k = 0; k < SETS; k++) {
        free_set(&u, &u.set[k]);
    }
    tg_function_destroy(&kept);
    tg_fno_destroy(&u.fno);
    tg_context_destroy(&u.ctx);
    assert_int_equal(u.warnings, 0);
}

/* cudaStreamLegacy and cudaStreamPerThread have fixed handles. */
TEST(graphs_have_the_same_bits) {
    if (!net_is_there("cuda")) {
        skip();
    }
    for (int n = 0; n < T_COUNT(networks); n++) {
        for (uintptr_t handle = 0; handle <= 2; handle++) {
            compare(networks[n], (void *)handle);
        }
    }
}
