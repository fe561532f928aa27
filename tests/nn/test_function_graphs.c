/* Functions on a device that is none: calls with arrays that were there before are replayed from
 * graphs, with the same bits, and calls that differ in anything are not confused. */
#include <stdlib.h>
#include <string.h>

#include "nn/network.h"
#include "support/fake_device.h"
#include "support/network.h"
#include "support/no_memory.h"
#include "support/runner.h"

enum { BATCH = 3, MOST_PARAMS = 64, SETS = 5 };

static const int64_t grid[] = {8, 9};
static const char network[] = "{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 2}";

/* The arrays of a call. */
typedef struct arrays {
    tg_function_call call;
    const void *weights[MOST_PARAMS];
    void *gradients[MOST_PARAMS];
    tg_gradient factors[MOST_PARAMS];
    tg_tensor x, y, dy, dx, activations, workspace, gradient[MOST_PARAMS];
} arrays;

/* A function, and the sets of arrays that it is called with; the last has a sample less. */
typedef struct side {
    bool captures; /* false: runs part by part, as within a graph of the caller's */
    tg_context *ctx;
    tg_fno_config config;
    tg_fno *fno; /* its weights */
    tg_function *function;
    int params, sets;
    size_t blocks; /* of memory before it was made */
    arrays set[SETS];
} side;

static tg_tensor room(tg_context *ctx, tg_dtype dtype, const tg_shape *shape) {
    tg_tensor made;
    net_ok(ctx, tg_backend_tensor(ctx, TG_MEM_DATA, dtype, shape, &made));
    return made;
}

static tg_tensor bytes_of(tg_context *ctx, size_t bytes) {
    return room(ctx, TG_U8, &(tg_shape){1, {(int64_t)bytes}});
}

static void make_set(side *s, arrays *set, int64_t batch) {
    const tg_shape shape = {4, {batch, 1, grid[0], grid[1]}};
    size_t activations = 0, workspace = 0;
    net_ok(s->ctx, tg_function_sizes(s->function, &activations, &workspace));
    tg_tensor *const fields[] = {&set->x, &set->y, &set->dy, &set->dx};
    for (int i = 0; i < T_COUNT(fields); i++) {
        *fields[i] = room(s->ctx, TG_F32, &shape);
    }
    set->activations = bytes_of(s->ctx, activations);
    set->workspace = bytes_of(s->ctx, workspace);
    for (int i = 0; i < s->params; i++) {
        const tg_fno_param param = tg_fno_get_param(s->fno, i);
        set->gradient[i] = room(s->ctx, param.dtype, &param.shape);
        set->weights[i] = param.weight.data;
        set->gradients[i] = set->gradient[i].data;
    }
    set->call = (tg_function_call){.weights = set->weights,
                                   .gradients = set->gradients,
                                   .activations = set->activations.data,
                                   .workspace = set->workspace.data};
}

static side *begin(const char *backend, const char *json, const tg_shared_workspace *shared) {
    side *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->ctx = net_context(backend, 2);
    s->captures = true;
    s->config = net_config(s->ctx, json);
    s->config.input_gradient = true;
    s->sets = SETS;
    net_ok(s->ctx, tg_fno_create(s->ctx, &s->config, 3, &s->fno));
    s->blocks = tg_context_memory(s->ctx, TG_HOST).blocks;
    net_ok(s->ctx, tg_function_create(s->ctx, &s->config, BATCH, grid, true, shared, &s->function));
    s->params = tg_fno_param_count(s->fno);
    assert_in_range(s->params, 1, MOST_PARAMS);
    for (int k = 0; k < s->sets; k++) {
        make_set(s, &s->set[k], k == SETS - 1 ? BATCH - 1 : BATCH);
    }
    return s;
}

static void end(side *s) {
    for (int k = 0; k < s->sets; k++) {
        arrays *set = &s->set[k];
        tg_tensor *const fields[] = {&set->x,  &set->y,           &set->dy,
                                     &set->dx, &set->activations, &set->workspace};
        for (int i = 0; i < T_COUNT(fields); i++) {
            tg_tensor_destroy(fields[i]);
        }
        for (int i = 0; i < s->params; i++) {
            tg_tensor_destroy(&set->gradient[i]);
        }
    }
    tg_function_destroy(&s->function);
    assert_int_equal(tg_context_memory(s->ctx, TG_HOST).blocks, s->blocks); /* with its graphs */
    tg_fno_destroy(&s->fno);
    assert_int_equal(tg_context_memory(s->ctx, TG_DEVICE).current[TG_MEM_DATA], 0);
    tg_context_destroy(&s->ctx);
    free(s);
}

static void put(side *s, tg_tensor *to, uint64_t seed) {
    tg_tensor host = net_random(s->ctx, &s->config, to->shape.dim[0], 1, grid, seed);
    net_ok(s->ctx, tg_backend_copy(s->ctx, &host, to));
    tg_tensor_destroy(&host);
}

static void forward(side *s, int k, uint64_t seed) {
    put(s, &s->set[k].x, seed);
    put(s, &s->set[k].dy, seed + 1000);
    fake_device_set_capturing(!s->captures);
    net_ok(s->ctx, tg_function_forward(s->function, &s->set[k].call, &s->set[k].x, &s->set[k].y));
}

static void backward(side *s, int k) {
    fake_device_set_capturing(!s->captures);
    net_ok(s->ctx,
           tg_function_backward(s->function, &s->set[k].call, &s->set[k].dy, &s->set[k].dx));
}

static void assert_same(const side *a, const tg_tensor *of_a, const side *b,
                        const tg_tensor *of_b) {
    tg_tensor host[2];
    net_ok(a->ctx, tg_tensor_create(a->ctx, TG_MEM_OTHER, of_a->dtype, &of_a->shape, &host[0]));
    net_ok(b->ctx, tg_tensor_create(b->ctx, TG_MEM_OTHER, of_b->dtype, &of_b->shape, &host[1]));
    net_ok(a->ctx, tg_backend_copy(a->ctx, of_a, &host[0]));
    net_ok(b->ctx, tg_backend_copy(b->ctx, of_b, &host[1]));
    assert_memory_equal(host[0].data, host[1].data, tg_tensor_bytes(&host[0]));
    tg_tensor_destroy(&host[0]);
    tg_tensor_destroy(&host[1]);
}

static void assert_same_results(const side *a, const side *b, int k) {
    assert_same(a, &a->set[k].y, b, &b->set[k].y);
    assert_same(a, &a->set[k].dx, b, &b->set[k].dx);
    for (int i = 0; i < a->params; i++) {
        if (a->set[k].gradients[i]) {
            assert_same(a, &a->set[k].gradient[i], b, &b->set[k].gradient[i]);
        }
    }
}

/* A step of both, with new numbers in the arrays of set k. */
static void step(side *a, side *b, int k, uint64_t seed) {
    forward(a, k, seed);
    backward(a, k);
    forward(b, k, seed);
    backward(b, k);
    assert_same_results(a, b, k);
}

static void expect_graphs(fake_counts since, long recorded, long launched) {
    const fake_counts now = fake_device_counts();
    assert_int_equal(now.recorded - since.recorded, recorded);
    assert_int_equal(now.launched - since.launched, launched);
}

/* ---- the same bits ---- */

static const char *const networks[] = {
    network,
    "{\"n_modes\": [4, 6], \"hidden_channels\": 5, \"n_layers\": 2, \"norm\": \"group_norm\","
    "\"domain_padding\": 0.25, \"saved_precision\": \"8bit\","
    "\"activation_checkpoint\": \"block\"}",
    "{\"architecture\": \"uno\", \"hidden_channels\": 6, \"n_layers\": 3,"
    "\"uno_out_channels\": [6, 8, 6], \"uno_n_modes\": [[4, 6], [4, 4], [4, 6]],"
    "\"uno_scalings\": [[1, 1], [0.5, 0.5], [2, 2]], \"channel_mlp_skip\": \"linear\"}"};

TEST(replays_have_the_same_bits) {
    for (int n = 0; n < T_COUNT(networks); n++) {
        side *a = begin(n == 0 ? "cpu" : "fake", networks[n], NULL);
        side *b = begin("fake", networks[n], NULL);
        a->captures = false;
        const fake_counts before = fake_device_counts();
        for (uint64_t i = 0; i < 4; i++) {
            step(a, b, 0, i);
        }
        expect_graphs(before, 2, 2 * 3);
        end(a);
        end(b);
    }
}

/* Two batch sizes, and two forwards before their backwards. */
TEST(arrays_take_turns) {
    side *a = begin("cpu", network, NULL), *b = begin("fake", network, NULL);
    const fake_counts before = fake_device_counts();
    for (uint64_t i = 0; i < 4; i++) {
        for (int k = 0; k < SETS; k += SETS - 1) {
            forward(a, k, 10 * i + (uint64_t)k);
            forward(b, k, 10 * i + (uint64_t)k);
        }
        for (int k = 0; k < SETS; k += SETS - 1) {
            backward(a, k);
            backward(b, k);
            assert_same_results(a, b, k);
        }
    }
    expect_graphs(before, 2 * 2, 2 * 2 * 3);
    end(a);
    end(b);
}

/* A second backward repeats the forward, into another y. */
TEST(retained_activations) {
    side *a = begin("cpu", network, NULL), *b = begin("fake", network, NULL);
    side *const both[] = {a, b};
    for (uint64_t i = 0; i < 4; i++) {
        for (int k = 0; k < 2; k++) {
            side *s = both[k];
            forward(s, 0, i);
            backward(s, 0);
            net_ok(s->ctx,
                   tg_function_forward(s->function, &s->set[0].call, &s->set[0].x, &s->set[1].y));
            backward(s, 0);
        }
        assert_same_results(a, b, 0);
        assert_same(a, &a->set[0].y, b, &b->set[1].y);
    }
    end(a);
    end(b);
}

/* More sets of arrays than graphs are kept: the oldest goes, and a cycle of them is never captured.
 */
TEST(the_oldest_goes) {
    side *a = begin("cpu", network, NULL), *b = begin("fake", network, NULL);
    const fake_counts before = fake_device_counts();
    uint64_t seed = 0;
    for (int i = 0; i < 3 * SETS; i++) {
        step(a, b, i % SETS, seed++);
    }
    expect_graphs(before, 0, 0);
    for (int i = 0; i < 3; i++) { /* the first time it is known already */
        step(a, b, SETS - 1, seed++);
    }
    expect_graphs(before, 2, 2 * 3);
    for (int i = 0; i < SETS; i++) { /* the others, until its graphs are gone */
        step(a, b, i, seed++);
    }
    expect_graphs(before, 2, 2 * 3);
    end(a);
    end(b);
}

/* ---- keys ---- */

/* Replaces pointer number i of set 0 by one of set 1: weights, gradients, and the others. */
static void replace(side *s, int i) {
    arrays *set = &s->set[0], *other = &s->set[1];
    if (i < s->params) { /* a weight with other numbers */
        net_ok(s->ctx, tg_backend_copy(s->ctx, &set->gradient[i], &other->gradient[i]));
        set->weights[i] = other->gradient[i].data;
        return;
    }
    if (i < 2 * s->params) {
        set->gradients[i - s->params] = other->gradient[i - s->params].data;
        return;
    }
    switch (i - 2 * s->params) {
    case 0:
        set->x = other->x;
        break;
    case 1:
        set->y = other->y;
        break;
    case 2:
        set->dy = other->dy;
        break;
    case 3:
        set->dx = other->dx;
        break;
    case 4:
        set->call.activations = other->call.activations;
        break;
    case 5:
        set->call.workspace = other->call.workspace;
        break;
    default:
        fail();
    }
}

TEST(one_pointer_makes_a_key) {
    side *a = begin("cpu", network, NULL), *b = begin("fake", network, NULL);
    for (uint64_t i = 0; i < 3; i++) {
        step(a, b, 0, i);
    }
    for (int i = 0; i < 2 * a->params + 6; i++) {
        const fake_counts before = fake_device_counts();
        const arrays of_a = a->set[0], of_b = b->set[0];
        const bool both_differ = i < a->params || i >= 2 * a->params + 4;
        replace(a, i);
        replace(b, i);
        forward(a, 0, (uint64_t)(10 * i));
        forward(b, 0, (uint64_t)(10 * i));
        backward(a, 0);
        backward(b, 0);
        assert_same(a, &a->set[0].y, b, &b->set[0].y);
        assert_same(a, &a->set[0].dx, b, &b->set[0].dx);
        for (int p = 0; p < a->params; p++) {
            const int k = i == a->params + p;
            assert_same(a, &a->set[k].gradient[p], b, &b->set[k].gradient[p]);
        }
        expect_graphs(before, 0, both_differ ? 0 : 1);
        a->set[0] = of_a;
        b->set[0] = of_b;
        step(a, b, 0, (uint64_t)(10 * i + 7)); /* as it was: the graphs are still there */
        expect_graphs(before, 0, both_differ ? 2 : 3);
    }
    end(a);
    end(b);
}

/* ---- gradients in one block ---- */

/* They are computed there, with the padding that they are cleared with. */
TEST(gradients_in_one_block) {
    side *a = begin("cpu", network, NULL), *b = begin("fake", network, NULL);
    arrays *set = &b->set[0];
    size_t bytes = 0, sum = 0;
    for (int i = 0; i < b->params; i++) {
        const size_t own = tg_tensor_bytes(&set->gradient[i]);
        const bool is_small = !tg_function_sends_factors(b->function, i);
        bytes += is_small ? (own + 63) / 64 * 64 : 0;
        sum += is_small ? own : 0;
    }
    tg_tensor block = bytes_of(b->ctx, bytes), host;
    net_ok(b->ctx, tg_tensor_create(b->ctx, TG_MEM_OTHER, TG_U8, &block.shape, &host));
    assert_true(sum < bytes);                    /* there is padding */
    for (int padded = 0; padded < 2; padded++) { /* the last one elsewhere: no block */
        size_t at = 0, zeros = 0, expected = 0;
        memset(host.data, 0xFF, bytes);
        net_ok(b->ctx, tg_backend_copy(b->ctx, &host, &block));
        for (int i = 0; i < b->params; i++) {
            const size_t own = tg_tensor_bytes(&set->gradient[i]);
            if (!tg_function_sends_factors(b->function, i) && (padded || i < b->params - 1)) {
                set->gradients[i] = (char *)block.data + at;
                at += (own + 63) / 64 * 64;
                expected += padded && i < b->params - 1 ? (own + 63) / 64 * 64 - own : 0;
            }
        }
        for (uint64_t round = 0; round < 3; round++) {
            forward(a, 0, round);
            backward(a, 0);
            forward(b, 0, round);
            backward(b, 0);
            for (int i = 0; i < b->params; i++) {
                tg_tensor found = set->gradient[i];
                found.data = set->gradients[i];
                assert_same(a, &a->set[0].gradient[i], b, &found);
            }
        }
        net_ok(b->ctx, tg_backend_copy(b->ctx, &block, &host));
        at = 0;
        for (int i = 0; i < b->params - 1; i++) {
            const size_t own = tg_tensor_bytes(&set->gradient[i]);
            if (!tg_function_sends_factors(b->function, i)) {
                for (size_t k = at + own; k < at + (own + 63) / 64 * 64; k++) {
                    zeros += ((const unsigned char *)host.data)[k] == 0;
                }
                at += (own + 63) / 64 * 64;
            }
        }
        assert_int_equal(zeros, expected);
    }
    tg_tensor_destroy(&block);
    tg_tensor_destroy(&host);
    end(a);
    end(b);
}

/* ---- factors ---- */

TEST(factors_are_reported_on_replay) {
    const tg_shared_workspace wanted = {.dense_bytes = 3000, .work_bytes = 70000};
    side *a = begin("cpu", network, NULL), *b = begin("fake", network, &wanted);
    const fake_counts before = fake_device_counts();
    for (int i = 0; i < b->params; i++) {
        for (int k = 0; k < 2; k++) {
            if (tg_function_sends_factors(b->function, i)) {
                b->set[k].gradients[i] = NULL;
            }
        }
    }
    for (int round = 0; round < 8; round++) {
        const int k = round % 2;
        arrays *set = &b->set[k];
        memset(set->factors, 0, sizeof set->factors);
        set->call.factors = set->factors;
        forward(a, k, (uint64_t)round);
        backward(a, k);
        forward(b, k, (uint64_t)round);
        backward(b, k);
        const tg_shared_workspace shared = tg_function_shared(b->function);
        const char *first = set->activations.data, *second = set->workspace.data;
        const char *work = shared.work;
        assert_true((work >= first && work < first + tg_tensor_bytes(&set->activations)) ||
                    (work >= second && work < second + tg_tensor_bytes(&set->workspace)));
        for (int i = 0; i < b->params; i++) {
            const tg_gradient *factors = &set->factors[i];
            assert_true(tg_function_sends_factors(b->function, i) == (factors->x != NULL));
            if (factors->x) {
                const tg_tensor *expected = &a->set[k].gradient[i];
                tg_tensor dense;
                net_ok(b->ctx, tg_tensor_create(b->ctx, TG_MEM_OTHER, expected->dtype,
                                                &expected->shape, &dense));
                net_ok(b->ctx, tg_gradient_read(b->ctx, factors, &dense));
                assert_same(a, expected, b, &dense);
                tg_tensor_destroy(&dense);
            }
        }
    }
    expect_graphs(before, 2 * 2, 2 * 2 * 3);
    b->set[0].call.factors = NULL; /* not wanted: another call */
    forward(b, 0, 0);
    backward(b, 0);
    expect_graphs(before, 2 * 2, 2 * 2 * 3 + 1);
    end(a);
    end(b);
}

/* ---- what is not captured ---- */

TEST(a_capture_may_fail) {
    for (int failing = 1; failing <= 2; failing++) { /* forward, backward */
        side *a = begin("cpu", network, NULL), *b = begin("fake", network, NULL);
        const fake_counts before = fake_device_counts();
        fake_device_fail_graph(failing);
        for (uint64_t i = 0; i < 5; i++) {
            step(a, b, (int)i % 2, i);
        }
        fake_device_fail_graph(0);
        expect_graphs(before, failing - 1, failing - 1);
        end(a);
        end(b);
    }
}

/* The caller's own graph takes the parts. */
TEST(a_caller_that_captures) {
    side *a = begin("cpu", network, NULL), *b = begin("fake", network, NULL);
    const fake_counts before = fake_device_counts();
    for (uint64_t i = 0; i < 6; i++) {
        b->captures = i % 2 == 1;
        step(a, b, 0, i);
    }
    expect_graphs(before, 2, 2 * 2);
    end(a);
    end(b);
}

TEST(dropout_and_arrays_of_the_host) {
    side *a = begin("cpu", network, NULL), *b = begin("fake", network, NULL);
    side *c = begin("fake",
                    "{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 2,"
                    "\"channel_mlp_dropout\": 0.3}",
                    NULL);
    const fake_counts before = fake_device_counts();
    tg_tensor x = net_random(b->ctx, &b->config, BATCH, 1, grid, 1);
    tg_tensor y = net_random(b->ctx, &b->config, BATCH, 1, grid, 2);
    forward(a, 0, 1);
    for (int i = 0; i < 3; i++) {
        net_ok(b->ctx, tg_function_forward(b->function, &b->set[0].call, &x, &y));
        assert_same(a, &a->set[0].y, b, &y);
        c->set[0].call.seed = (uint64_t)i;
        forward(c, 0, 1);
        backward(c, 0);
    }
    expect_graphs(before, 0, 0);
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    end(a);
    end(b);
    end(c);
}

/* A call that was refused is refused again, and harms nothing. */
TEST(refused_calls) {
    side *a = begin("cpu", network, NULL), *b = begin("fake", network, NULL);
    for (uint64_t i = 0; i < 4; i++) {
        arrays *set = &b->set[0];
        tg_tensor odd = set->y;
        odd.shape.dim[2]++;
        assert_int_equal(tg_function_forward(b->function, &set->call, &set->x, &odd), TG_E_SHAPE);
        assert_int_equal(tg_function_backward(b->function, &set->call, &odd, NULL), TG_E_SHAPE);
        step(a, b, 0, i);
    }
    end(a);
    end(b);
}

static tg_status build(tg_context *ctx, const tg_fno_config *config) {
    tg_function *function = NULL;
    const tg_status status = tg_function_create(ctx, config, BATCH, grid, true, NULL, &function);
    tg_function_destroy(&function);
    return status;
}

TEST(every_allocation_may_fail) {
    tg_context *ctx = net_context("fake", 2);
    const tg_fno_config config = net_config(ctx, network);
    net_ok(ctx, build(ctx, &config));
    test_walk walk = {.ctx = ctx};
    while (test_walk_next(&walk)) {
        test_walk_called(&walk, build(ctx, &config));
    }
    assert_true(walk.n > 10);
    tg_context_destroy(&ctx);
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
