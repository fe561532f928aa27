/* Memory: what a plan predicts is what the ledger counts, a step allocates nothing, and buffers
 * that are alive together never share bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "nn/network.h"
#include "nn/program.h"
#include "optim/optim.h"
#include "optim/ranks.h"
#include "support/network.h"
#include "support/raw.h"
#include "support/runner.h"

/* ---- placement ---- */

enum { BUFFERS = 200 };

/* Random buffers with random lives: no two that meet overlap, all fit, and the arena is not larger
 * than all of them, nor smaller than what is alive at one time. */
TEST(placement) {
    tg_context *ctx = net_context("ref", 1);
    const tg_rng rng = {.seed = 4, .purpose = TG_RNG_TEST};
    static void *pointers[BUFFERS];
    nn_arena arena = {.ctx = ctx};
    size_t sum = 0, most = 0, alive[40] = {0};
    for (int i = 0; i < BUFFERS; i++) {
        const uint64_t at = 3 * (uint64_t)i;
        const int born = (int)(40.0 * tg_rng_uniform(&rng, at));
        const int dies = born + (int)((40.0 - born) * tg_rng_uniform(&rng, at + 1));
        const size_t bytes = (size_t)(1e4 * tg_rng_uniform(&rng, at + 2));
        net_ok(ctx, nn_arena_add(&arena, &pointers[i], bytes, born, dies));
        const size_t rounded = (bytes + 63) / 64 * 64;
        sum += rounded;
        for (int t = born; t <= dies; t++) {
            alive[t] += rounded;
            most = alive[t] > most ? alive[t] : most;
        }
    }
    nn_arena_solve(&arena);
    assert_in_range(arena.bytes, most, sum);
    assert_true(arena.bytes < 2 * most); /* it does reuse */
    for (int i = 0; i < BUFFERS; i++) {
        const nn_buffer *a = &arena.buffers[i];
        assert_true(a->offset + a->bytes <= arena.bytes && a->offset % TG_ALIGNMENT == 0);
        for (int j = 0; j < i; j++) {
            const nn_buffer *b = &arena.buffers[j];
            const bool meet = a->born <= b->dies && b->born <= a->dies;
            assert_true(!meet || a->offset + a->bytes <= b->offset ||
                        b->offset + b->bytes <= a->offset);
        }
    }
    char *memory = malloc(arena.bytes);
    nn_arena_bind(&arena, memory);
    for (int i = 0; i < BUFFERS; i++) {
        assert_ptr_equal(*arena.buffers[i].pointer, memory + arena.buffers[i].offset);
    }
    assert_int_equal(nn_arena_add(&arena, &pointers[0], SIZE_MAX / 2, 0, 0), TG_E_SHAPE);
    nn_arena_free(&arena);
    free(memory);
    tg_context_destroy(&ctx);
}

/* ---- predicted and counted ---- */

static const struct {
    const char *config;
    int64_t batch, grid[3];
} cases[] = {
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 8}", 3, {16, 20}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 8, \"n_layers\": 1}", 1, {7, 5}},
    {"{\"n_modes\": [8], \"hidden_channels\": 5, \"complex_data\": true, \"n_layers\": 3}",
     2,
     {33}},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"norm\": \"group_norm\","
     "\"domain_padding\": 0.25, \"stabilizer\": \"tanh\"}",
     2,
     {12, 12}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 8, \"activation_checkpoint\": \"block\"}",
     3,
     {16, 20}},
    {"{\"n_modes\": [4, 4, 6], \"hidden_channels\": 4, \"n_layers\": 2}", 1, {6, 5, 7}},
    {"{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"complex_data\": true,"
     "\"norm\": \"instance_norm\", \"domain_padding\": 0.25, \"positional_embedding\": null}",
     2,
     {9, 8}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 7, \"fno_block_precision\": \"half\"}",
     3,
     {16, 21}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 7, \"activation_precision\": \"bf16\","
     "\"activation_checkpoint\": \"block\", \"domain_padding\": 0.25}",
     3,
     {15, 20}},
    {"{\"n_modes\": [30], \"hidden_channels\": 5, \"complex_data\": true, \"norm\": \"group_norm\","
     "\"fno_block_precision\": \"mixed\", \"fno_block_weights_precision\": \"bf16\"}",
     2,
     {21}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 7, \"fno_block_precision\": \"half\","
     "\"activation_checkpoint\": \"minimal\", \"domain_padding\": 0.25, \"n_layers\": 3}",
     3,
     {15, 20}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 7, \"activation_checkpoint\": \"minimal\","
     "\"channel_mlp_skip\": \"linear\", \"stabilizer\": \"tanh\", \"n_layers\": 2}",
     3,
     {16, 20}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 7, \"use_channel_mlp\": false}", 3, {16, 20}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 7, \"preactivation\": true,"
     "\"norm\": \"group_norm\", \"domain_padding\": [0, 0.25]}",
     3,
     {16, 20}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 7, \"precision\": \"mixed\"}", 3, {16, 21}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 7, \"micro_batch\": 2}", 3, {16, 21}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 7, \"precision\": \"mixed\", \"micro_batch\": 1,"
     "\"activation_checkpoint\": \"minimal\"}",
     3,
     {16, 21}},
    {"{\"n_modes\": [8, 8], \"hidden_channels\": 7, \"saved_precision\": \"8bit\","
     "\"activation_checkpoint\": \"block\", \"norm\": \"group_norm\"}",
     3,
     {15, 20}},
    {"{\"n_modes\": [8], \"hidden_channels\": 5, \"saved_precision\": \"bf16\","
     "\"activation_checkpoint\": \"minimal\", \"complex_data\": true}",
     2,
     {33}},
    {"{\"n_modes\": [4], \"hidden_channels\": 4, \"activation_checkpoint\": \"minimal\","
     "\"norm\": \"group_norm\", \"complex_data\": true, \"use_channel_mlp\": false}",
     2,
     {21}},
#define UNO "{\"architecture\": \"uno\", \"n_layers\": 3, \"channel_mlp_skip\": \"linear\","
    {UNO "\"uno_n_modes\": [[8], [6], [8]], \"uno_scalings\": [[0.5], [1], [2]],"
         "\"uno_out_channels\": [6, 5, 4], \"hidden_channels\": 4}",
     3,
     {26}},
    {UNO "\"uno_n_modes\": [[8, 6], [4, 4], [6, 30]], \"uno_scalings\": [[0.5, 0.7], [2, 1.5], [1, "
         "0.9523809523809523]],"
         "\"uno_out_channels\": [8, 8, 6], \"hidden_channels\": 7, \"domain_padding\": 0.25,"
         "\"norm\": \"group_norm\", \"saved_precision\": \"8bit\", \"activation_checkpoint\": "
         "\"block\"}",
     3,
     {15, 20}},
    {UNO
     "\"uno_n_modes\": [[4, 4], [4, 4], [4, 4]], \"uno_scalings\": [[2, 0.5], [0.5, 1], [1, 2]],"
     "\"uno_out_channels\": [6, 5, 6], \"hidden_channels\": 4, \"micro_batch\": 2,"
     "\"activation_checkpoint\": \"minimal\", \"horizontal_skip\": \"identity\"}",
     3,
     {12, 20}},
    {UNO
     "\"uno_n_modes\": [[4, 4, 4], [4, 2, 4], [4, 4, 4]], \"hidden_channels\": 3,"
     "\"uno_scalings\": [[0.5, 0.5, 0.5], [1, 1, 1], [2, 2, 2]], \"uno_out_channels\": [4, 3, 3],"
     "\"fno_block_precision\": \"mixed\"}",
     2,
     {8, 6, 7}},
};

static tg_status ignore(void *user, const tg_gradient *gradient) {
    (void)user;
    (void)gradient;
    return TG_OK;
}

/* Bytes by category that were taken between two moments. */
static void expect_bytes(const tg_mem_usage *before, const tg_mem_usage *now,
                         const tg_fno_memory *plan) {
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        if (c == TG_MEM_OTHER) {
            continue; /* handles and names */
        }
        const size_t held = now->current[c] - before->current[c];
        if (held != plan->bytes[c]) {
            fail_msg("%s: %zu bytes held, %zu predicted", tg_mem_category_name((tg_mem_category)c),
                     held, plan->bytes[c]);
        }
    }
}

static void run_step(tg_context *ctx, tg_fno *fno, int64_t batch, const int64_t *grid,
                     bool training) {
    const tg_fno_config *config = tg_fno_get_config(fno);
    tg_tensor x = net_random(ctx, config, batch, config->in_channels, grid, 1);
    tg_tensor y = net_random(ctx, config, batch, config->out_channels, grid, 2);
    const tg_loss_config loss_config = tg_loss_config_default();
    const tg_grad_sink sink = {.receive = ignore};
    double loss;
    tg_mem_test_fail_at(0);
    if (training) {
        net_ok(ctx, tg_fno_loss_backward(fno, &x, &y, &loss_config, &sink, &loss));
    } else {
        net_ok(ctx, tg_fno_forward(fno, &x, &y));
    }
    assert_int_equal(tg_mem_test_count(), 0); /* a step allocates nothing */
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
}

static void check_case(const char *backend, int index, bool training, tg_fno_memory *plan) {
    tg_context *ctx = net_context(backend, 2);
    const tg_fno_config config = net_config(ctx, cases[index].config);
    const int64_t batch = cases[index].batch, *grid = cases[index].grid;
    const tg_mem_usage before = tg_context_memory(ctx, TG_HOST);
    net_ok(ctx, tg_fno_plan(ctx, &config, batch, grid, training, NULL, plan));
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, before.blocks);
    tg_fno *fno = NULL;
    net_ok(ctx, tg_fno_create(ctx, &config, 1, &fno));
    net_ok(ctx, tg_fno_prepare(fno, batch, grid, training));
    tg_mem_usage now = tg_context_memory(ctx, TG_HOST);
    expect_bytes(&before, &now, plan);
    run_step(ctx, fno, batch, grid, training);
    net_ok(ctx, tg_fno_prepare(fno, batch, grid, !training)); /* and back again */
    net_ok(ctx, tg_fno_prepare(fno, batch, grid, training));
    now = tg_context_memory(ctx, TG_HOST);
    expect_bytes(&before, &now, plan);
    int64_t reals = 0;
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        reals += tg_shape_numel(&param.shape) * (tg_dtype_is_complex(param.dtype) ? 2 : 1);
    }
    assert_int_equal(reals, plan->parameters);
    tg_fno_destroy(&fno);
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, before.blocks);
    tg_context_destroy(&ctx);
}

TEST(plan_is_ledger) {
    const char *const backends[] = {"ref", "cpu"};
    for (int b = 0; b < 2; b++) {
        for (int i = 0; i < T_COUNT(cases); i++) {
            tg_fno_memory training, inference;
            check_case(backends[b], i, true, &training);
            check_case(backends[b], i, false, &inference);
            assert_true(inference.bytes[TG_MEM_ACTIVATIONS] < training.bytes[TG_MEM_ACTIVATIONS]);
            assert_int_equal(inference.bytes[TG_MEM_GRADIENTS], 0);
        }
    }
}

/* The phases of a step: in order, each with a name of its own, except that a UNO goes back through
 * a horizontal skip where its block does and where the block that it leads to does; what is alive
 * in one fits into the arenas, which are not larger than they must be; forward piles up what
 * backward uses up. */
TEST(phases_fit_the_arenas) {
    enum { MOST = 128 };
    static tg_fno_phase phases[MOST];
    tg_context *ctx = net_context("cpu", 2);
    for (int i = 0; i < T_COUNT(cases); i++) {
        const tg_fno_config config = net_config(ctx, cases[i].config);
        const int64_t batch = cases[i].batch, *grid = cases[i].grid;
        tg_fno_memory plan;
        size_t most = 0, most_workspace = 0;
        int count = 0, sent = 0, turn = 0;
        net_ok(ctx, tg_fno_plan(ctx, &config, batch, grid, true, NULL, &plan));
        net_ok(ctx, tg_fno_phases(ctx, &config, batch, grid, phases, MOST, &count));
        assert_true(config.architecture == TG_ARCHITECTURE_UNO || /* more, for the grids */
                    count == 7 + (config.use_channel_mlp ? 7 : 5) * config.n_layers +
                                 (config.micro_batch > 0)); /* gradients leave at the end */
        for (int p = 0; p < count; p++) {
            for (int q = 0; q < p && config.architecture != TG_ARCHITECTURE_UNO; q++) {
                assert_string_not_equal(phases[p].name, phases[q].name);
            }
            most = phases[p].activations > most ? phases[p].activations : most;
            most_workspace =
                phases[p].workspace > most_workspace ? phases[p].workspace : most_workspace;
            sent += phases[p].sends_factors;
            turn += !phases[p].is_backward;
            assert_true(p == 0 || phases[p].is_backward >= phases[p - 1].is_backward);
            assert_true(phases[p].activations > 0);
        }
        assert_int_equal(sent, 1);
        assert_in_range(plan.bytes[TG_MEM_ACTIVATIONS], most, 2 * most);
        assert_in_range(plan.bytes[TG_MEM_WORKSPACE] - plan.transforms, most_workspace,
                        2 * most_workspace);
        assert_true(phases[turn - 1].activations > phases[0].activations);
        assert_true(config.micro_batch > 0 || /* factors of the whole batch wait for the end */
                    phases[count - 1].activations < phases[turn].activations);
    }
    tg_context_destroy(&ctx);
}

/* ---- shared workspace ---- */

/* Receives gradients like the one it is made of, and spoils what is shared when that is allowed. */
typedef struct receiver {
    net_gradients gradients;
    tg_shared_workspace shared;
    int factored;
} receiver;

static tg_status keep_and_spoil(void *user, const tg_gradient *gradient) {
    receiver *b = user;
    const tg_grad_sink keep = net_sink(&b->gradients);
    assert_true(gradient->x || b->factored == 0); /* factored ones come last */
    if (gradient->x) {
        b->factored++;
        const size_t bytes[2] = {b->shared.dense_bytes, b->shared.work_bytes};
        void *const memory[2] = {b->shared.dense, b->shared.work};
        for (int i = 0; i < 2; i++) {
            if (bytes[i] > 0) {
                memset(memory[i], 0xFF, bytes[i]);
            }
        }
    }
    return keep.receive(keep.user, gradient);
}

static void backward_of(tg_context *ctx, tg_fno *fno, int index, receiver *out) {
    const tg_fno_config *config = tg_fno_get_config(fno);
    const int64_t batch = cases[index].batch, *grid = cases[index].grid;
    tg_tensor x = net_random(ctx, config, batch, config->in_channels, grid, 1);
    tg_tensor y = net_random(ctx, config, batch, config->out_channels, grid, 2);
    const tg_loss_config loss_config = tg_loss_config_default();
    const tg_grad_sink sink = {.receive = keep_and_spoil, .user = out};
    double loss;
    *out = (receiver){.gradients = net_gradients_make(ctx, fno), .shared = fno->run.program.shared};
    net_ok(ctx, tg_fno_loss_backward(fno, &x, &y, &loss_config, &sink, &loss));
    assert_int_equal(out->factored, config->n_layers);
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
}

/* Whatever is done to it, no gradient changes; the ledger counts what the plan says, which is less
 * than a network and the workspace beside it. */
TEST(shared_workspace_is_free_memory) {
    const tg_shared_workspace sizes_shared[] = {{1000, 5000, NULL, NULL},
                                                {20000, 300, NULL, NULL},
                                                {500000, 400000, NULL, NULL},
                                                {0, 7, NULL, NULL}};
    tg_context *ctx = net_context("cpu", 2);
    for (int i = 0; i < T_COUNT(cases); i++) {
        const tg_fno_config config = net_config(ctx, cases[i].config);
        const int64_t batch = cases[i].batch, *grid = cases[i].grid;
        tg_fno_memory alone, sharing;
        tg_fno *fno = NULL;
        receiver expected, found;
        const tg_mem_usage before = tg_context_memory(ctx, TG_HOST);
        net_ok(ctx, tg_fno_plan(ctx, &config, batch, grid, true, NULL, &alone));
        net_ok(ctx, tg_fno_create(ctx, &config, 1, &fno));
        net_ok(ctx, tg_fno_prepare(fno, batch, grid, true));
        backward_of(ctx, fno, i, &expected);
        for (int l = 0; l < T_COUNT(sizes_shared); l++) {
            const tg_shared_workspace *shared = nn_share(fno, &sizes_shared[l]);
            net_ok(ctx, tg_fno_plan(ctx, &config, batch, grid, true, &sizes_shared[l], &sharing));
            net_ok(ctx, tg_fno_prepare(fno, batch, grid, false));
            assert_null(shared->work);
            net_ok(ctx, tg_fno_prepare(fno, batch, grid, true));
            const tg_mem_usage now = tg_context_memory(ctx, TG_HOST);
            for (int c = 0; c < TG_MEM_OTHER; c++) {
                assert_int_equal(now.current[c] - before.current[c], sharing.bytes[c]);
            }
            const size_t bytes = sizes_shared[l].dense_bytes + sizes_shared[l].work_bytes;
            assert_true(sharing.total >= alone.total);
            assert_true(sharing.total < alone.total + bytes + 256);
            if (bytes < alone.bytes[TG_MEM_ACTIVATIONS] / 4) {
                assert_true(sharing.total < alone.total + bytes);
            }
            backward_of(ctx, fno, i, &found);
            assert_int_equal(found.shared.dense_bytes, sizes_shared[l].dense_bytes);
            assert_true((found.shared.dense != NULL) == (sizes_shared[l].dense_bytes > 0));
            for (int p = 0; p < expected.gradients.count; p++) {
                const tg_tensor *a = &expected.gradients.gradient[p];
                const tg_tensor *b = &found.gradients.gradient[p];
                assert_memory_equal(a->data, b->data, tg_tensor_bytes(a));
            }
            net_gradients_free(&found.gradients);
        }
        net_gradients_free(&expected.gradients);
        tg_fno_destroy(&fno);
    }
    tg_context_destroy(&ctx);
}

/* Of two parts that do not fit where the activations were, the second begins there: what is taken
 * beside is less than it. */
TEST(shared_parts_grow_the_network_least) {
    const int64_t grid[] = {64, 64};
    tg_context *ctx = net_context("cpu", 1);
    const tg_fno_config config = net_config(ctx, "{\"n_modes\": [4, 4], \"hidden_channels\": 8}");
    tg_fno_memory alone, sharing;
    net_ok(ctx, tg_fno_plan(ctx, &config, 2, grid, true, NULL, &alone));
    const size_t activations = alone.bytes[TG_MEM_ACTIVATIONS], part = activations / 3 * 2;
    const tg_shared_workspace shared = {.dense_bytes = part, .work_bytes = part};
    net_ok(ctx, tg_fno_plan(ctx, &config, 2, grid, true, &shared, &sharing));
    assert_in_range(sharing.total - alone.total, activations / 3, activations / 5 * 2);
    tg_context_destroy(&ctx);
}

/* ---- blocks in one call that read bytes ---- */

static bool workspace_with_blocks(tg_backend *be, const tg_query *query, size_t *bytes) {
    return query->block || query->block_back || be->ref->workspace(be, query, bytes);
}

static tg_status run_block(tg_backend *be, const tg_block *op) {
    (void)op;
    return tg_fail(be->ctx, TG_E_UNSUPPORTED, "only planned");
}

static tg_status run_block_back(tg_backend *be, const tg_block_back *op) {
    (void)op;
    return tg_fail(be->ctx, TG_E_UNSUPPORTED, "only planned");
}

/* A block whose input checkpointing makes again is made over it: two activations are in f32 at a
 * time, and beside them are bytes. */
TEST(blocks_are_made_again_over_their_input) {
    const char *const configs[] = {
        "{\"n_modes\": [4, 4], \"hidden_channels\": 8, \"n_layers\": 2,"
        "\"saved_precision\": \"8bit\", \"activation_checkpoint\": \"block\"}",
        "{\"n_modes\": [4, 4], \"hidden_channels\": 8, \"n_layers\": 3,"
        "\"saved_precision\": \"8bit\", \"activation_checkpoint\": \"minimal\"}"};
    enum { BATCH = 2, POINTS = 64 * 64 };
    const int64_t grid[] = {64, 64};
    const size_t one = sizeof(float) * BATCH * 8 * POINTS;
    tg_context *ctx = net_context("cpu", 1);
    tg_backend *be = NULL;
    net_ok(ctx, tg_backend_get(ctx, &be));
    tg_backend_ops ops = *be->ops;
    tg_backend other = *be;
    ops.workspace = workspace_with_blocks;
    ops.block_forward = run_block;
    ops.block_backward = run_block_back;
    other.ops = &ops;
    for (int i = 0; i < T_COUNT(configs); i++) {
        const tg_fno_config config = net_config(ctx, configs[i]);
        nn_model model = {0};
        nn_program program = {0};
        net_ok(ctx, nn_model_create(ctx, &config, NULL, &model));
        net_ok(ctx, nn_program_create(&model, &other, BATCH, grid, true, &(tg_shared_workspace){0},
                                      &program));
        assert_in_range(program.activations.bytes, 2 * one, 2 * one + one / 4 * 3);
        nn_program_free(&program);
        nn_model_destroy(&model);
    }
    tg_context_destroy(&ctx);
}

/* An optimizer that shares a workspace says what is missing. */
TEST(optimizers_need_their_workspace) {
    tg_context *ctx = net_context("cpu", 1);
    tg_optim_config config = tg_optim_config_default();
    tg_optim *optim = NULL;
    float gradient[8 * 8 * 8 * 2] = {1.0f}, weight[8 * 8 * 8 * 2] = {0.0f};
    net_ok(ctx, tg_optim_config_set(ctx, &config, "name", "tensorgrad"));
    net_ok(ctx, tg_optim_config_set(ctx, &config, "min_entries", "1"));
    const tg_optim_param param = {"w", TG_C64, tg_shape_of(3, (int64_t[]){8, 8, 8}), 0};
    tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                            .groups = &config,
                            .group_count = 1,
                            .params = &param,
                            .param_count = 1,
                            .takes_factored = true,
                            .shares_workspace = true};
    tg_optim_memory planned;
    net_ok(ctx, tg_optim_plan_memory(ctx, &setup, &planned));
    net_ok(ctx, tg_optim_create(ctx, &setup, &optim));
    tg_shared_workspace shared = planned.shared;
    assert_true(shared.dense_bytes == sizeof gradient && shared.work_bytes > 0 && !shared.work);
    assert_int_equal(raw_optim_step(optim, 0, gradient, weight), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "none yet: tg_step_share_workspace"));
    shared.work = malloc(shared.work_bytes);
    shared.dense = malloc(shared.dense_bytes);
    assert_true(shared.work && shared.dense);
    shared.work_bytes--;
    net_ok(ctx, tg_optim_share_workspace(optim, &shared));
    assert_int_equal(raw_optim_step(optim, 0, gradient, weight), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "the network is not prepared with them"));
    shared.work_bytes++; /* what is shared may change at any time */
    net_ok(ctx, raw_optim_step(optim, 0, gradient, weight));
    tg_optim_destroy(&optim);
    setup.shares_workspace = false;
    net_ok(ctx, tg_optim_create(ctx, &setup, &optim));
    assert_int_equal(tg_optim_share_workspace(optim, &shared), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "its own workspace"));
    tg_optim_destroy(&optim);
    free(shared.work);
    free(shared.dense);
    tg_context_destroy(&ctx);
}

/* It works where the caller says before each call, and nowhere else. */
TEST(a_workspace_may_move_between_calls) {
    enum { N = 8 * 8 * 8 * 2 };
    tg_context *ctx = net_context("cpu", 1);
    tg_optim_config config = tg_optim_config_default();
    tg_optim *optim = NULL;
    float gradient[N], weight[N] = {0.0f};
    for (int i = 0; i < N; i++) {
        gradient[i] = (float)(i % 7) - 2.5f;
    }
    net_ok(ctx, tg_optim_config_set(ctx, &config, "name", "lowrank"));
    net_ok(ctx, tg_optim_config_set(ctx, &config, "min_entries", "1"));
    const tg_optim_param param = {"w", TG_C64, tg_shape_of(3, (int64_t[]){8, 8, 8}), 0};
    const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                  .groups = &config,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1,
                                  .accumulates = true,
                                  .shares_workspace = true};
    const tg_gradient given = {.dtype = TG_C64, .shape = param.shape, .dense = gradient};
    tg_tensor moved;
    net_ok(ctx, tg_tensor_wrap(ctx, TG_C64, &param.shape, weight, &moved));
    tg_optim_memory planned;
    net_ok(ctx, tg_optim_plan_memory(ctx, &setup, &planned));
    net_ok(ctx, tg_optim_create(ctx, &setup, &optim));
    const size_t bytes = planned.shared.work_bytes;
    unsigned char *memory[2] = {malloc(bytes), malloc(bytes)};
    assert_true(memory[0] && memory[1] && bytes > 0);
    for (int call = 0; call < 6; call++) { /* of the three updates the first one refreshes */
        const tg_shared_workspace here = {.work = memory[call % 2], .work_bytes = bytes};
        memset(memory[1 - call % 2], 0x5A, bytes);
        net_ok(ctx, tg_optim_share_workspace(optim, &here));
        net_ok(ctx, call % 2 == 0 ? tg_optim_accumulate(optim, &given)
                                  : tg_optim_apply(optim, 0, &moved));
        for (size_t i = 0; i < bytes; i++) {
            assert_int_equal(memory[1 - call % 2][i], 0x5A);
        }
    }
    tg_optim_destroy(&optim);
    tg_refresh_news news; /* and so does the rank that refreshes for all */
    tg_shared_workspace here = {.work = memory[0], .work_bytes = bytes};
    net_ok(ctx, tg_optim_create(ctx, &setup, &optim));
    net_ok(ctx, tg_optim_share_workspace(optim, &here));
    net_ok(ctx, tg_optim_accumulate(optim, &given));
    memset(memory[0], 0x5A, bytes);
    here.work = memory[1];
    net_ok(ctx, tg_sum_refresh(optim, 0, &news));
    for (size_t i = 0; i < bytes; i++) {
        assert_int_equal(memory[0][i], 0x5A);
    }
    tg_optim_destroy(&optim);
    free(memory[0]);
    free(memory[1]);
    tg_context_destroy(&ctx);
}

/* One call, and the optimizer follows the network through its preparations. */
TEST(a_workspace_is_shared) {
    const int64_t grid[] = {16, 16}, finer[] = {24, 24};
    tg_context *ctx = net_context("cpu", 1), *other = net_context("cpu", 1);
    const tg_fno_config config =
        net_config(ctx, "{\"n_modes\": [8, 8], \"hidden_channels\": 8, \"n_layers\": 2}");
    const tg_loss_config loss_config = tg_loss_config_default();
    tg_optim_config group = tg_optim_config_default();
    tg_optim_param params[64];
    tg_fno *fno = NULL, *apart = NULL;
    tg_optim *optim = NULL;
    double loss = 0.0;
    net_ok(ctx, tg_optim_config_set(ctx, &group, "name", "tensorgrad"));
    net_ok(ctx, tg_fno_create(ctx, &config, 1, &fno));
    net_ok(other, tg_fno_create(other, &config, 1, &apart));
    const int count = tg_fno_param_count(fno);
    for (int i = 0; i < count; i++) {
        const tg_fno_param p = tg_fno_get_param(fno, i);
        params[i] = (tg_optim_param){.name = p.name, .dtype = p.dtype, .shape = p.shape};
    }
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = &group,
                                  .group_count = 1,
                                  .params = params,
                                  .param_count = count,
                                  .takes_factored = true,
                                  .shares_workspace = true};
    net_ok(ctx, tg_optim_create(ctx, &setup, &optim));
    for (int i = 0; i < count; i++) {
        const tg_fno_param p = tg_fno_get_param(fno, i);
        net_ok(ctx, tg_optim_bind(optim, i, &p.weight));
    }
    assert_int_equal(tg_step_share_workspace(apart, optim), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(other), "two contexts"));
    net_ok(ctx, tg_step_share_workspace(fno, optim));
    const tg_grad_sink sink = tg_optim_sink(optim);
    for (int i = 0; i < 3; i++) { /* the memory moves with every grid */
        const int64_t *points = i == 1 ? finer : grid;
        tg_tensor x = net_random(ctx, &config, 2, 1, points, 1);
        tg_tensor y = net_random(ctx, &config, 2, 1, points, 2);
        net_ok(ctx, tg_fno_prepare(fno, 2, points, true));
        net_ok(ctx, tg_fno_loss_backward(fno, &x, &y, &loss_config, &sink, &loss));
        tg_tensor_destroy(&x);
        tg_tensor_destroy(&y);
    }
    tg_optim_destroy(&optim);
    tg_fno_destroy(&fno);
    tg_fno_destroy(&apart);
    tg_context_destroy(&other);
    tg_context_destroy(&ctx);
}

/* Refreshes in whole products where the activations leave room for them, otherwise in chunks. */
TEST(chunks_where_they_save) {
    tg_context *ctx = net_context("cpu", 2);
    tg_fno_config config =
        net_config(ctx, "{\"n_modes\": [128, 128], \"hidden_channels\": 128,"
                        "\"activation_precision\": \"bf16\", \"fno_block_precision\": \"mixed\"}");
    const int64_t grid[] = {1024, 1024};
    const tg_optim_param param = {"w", TG_C64, tg_shape_of(4, (int64_t[]){128, 128, 128, 65}), 0};
    tg_optim_config group = tg_optim_config_default();
    net_ok(ctx, tg_optim_config_set(ctx, &group, "name", "tensorgrad"));
    const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                  .groups = &group,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1,
                                  .takes_factored = true,
                                  .shares_workspace = true};
    for (int c = TG_CHECKPOINT_OFF; c <= TG_CHECKPOINT_MINIMAL; c++) {
        tg_optim_memory chosen, whole;
        config.activation_checkpoint = (tg_checkpoint)c;
        net_ok(ctx, tg_step_choose_refresh_chunks(ctx, &config, 2, grid, &setup, &group));
        net_ok(ctx, tg_optim_plan_memory(ctx, &setup, &chosen));
        const bool chunks = group.projector.first.chunk_bytes > 0;
        assert_int_equal(chunks, c == TG_CHECKPOINT_MINIMAL);
        assert_int_equal(chunks, group.projector.second.chunk_bytes > 0);
        group.projector.first.chunk_bytes = group.projector.second.chunk_bytes = 0;
        net_ok(ctx, tg_optim_plan_memory(ctx, &setup, &whole));
        assert_true(chunks ? chosen.shared.work_bytes < whole.shared.work_bytes
                           : chosen.shared.work_bytes == whole.shared.work_bytes);
    }
    tg_context_destroy(&ctx);
}

/* The paper's Navier-Stokes network: training keeps two activations per block and the first input,
 * inference two in all; with dense Adam's moments and one gradient it stays below 1.2 GB. */
TEST(navier_stokes_fits) {
    tg_context *ctx = net_context("cpu", 2);
    const tg_fno_config config = net_config(
        ctx, "{\"n_modes\": [64, 64], \"hidden_channels\": 64, \"projection_channel_ratio\": 4}");
    const int64_t grid[] = {128, 128};
    tg_fno_memory training, inference;
    net_ok(ctx, tg_fno_plan(ctx, &config, 8, grid, true, NULL, &training));
    net_ok(ctx, tg_fno_plan(ctx, &config, 8, grid, false, NULL, &inference));
    const size_t activation = (size_t)4 * 8 * 64 * 128 * 128;
    assert_true(training.bytes[TG_MEM_ACTIVATIONS] < 12 * activation);
    assert_true(inference.bytes[TG_MEM_ACTIVATIONS] < 3 * activation);
    const size_t weights = training.bytes[TG_MEM_WEIGHTS], gradient = weights / 4;
    assert_true(training.total + weights + weights / 2 + gradient < 1200000000);
    tg_context_destroy(&ctx);
}
