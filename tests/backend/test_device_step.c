/* Training steps on a device that is none end as they do on the cpu backend, bit for bit: losses,
 * weights, the state and the books of every optimizer, with losses and gradients that are not
 * finite on the way; and ordinary steps do not keep the device waiting. So do those that go the way
 * of several ranks, over an NCCL that is none. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/network.h"
#include "support/fake_device.h"
#include "support/network.h"
#include "train/step.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

enum { BATCHES = 4, BAD = 3 }; /* the last one holds a NaN */

static const int64_t grid[2] = {9, 8};

static const char *const networks[] = {
    "{\"n_modes\": [6, 5], \"hidden_channels\": 6, \"n_layers\": 2}",
    "{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 2, \"complex_data\": true,"
    " \"channel_mlp_dropout\": 0.25}",
};

static const char *const methods[] = {"adam",       "lowrank",      "galore",
                                      "structured", "unstructured", "tensorgrad"};

typedef struct rig {
    tg_context *ctx;
    tg_comm *comm; /* NULL: no others */
    tg_fno *fno;
    tg_optim *optim;
    tg_optim_config groups[2];
    tg_step *step;
    tg_tensor x[BATCHES], y[BATCHES];
    tg_tensor now_x, now_y; /* the batch of a step, always in the same place */
} rig;

/* That of the device works in the network's memory, that of the host in its own. */
static void make_optimizer(rig *r, const char *method, bool accumulates, bool borrows) {
    const int count = tg_fno_param_count(r->fno);
    tg_optim_param *params = calloc((size_t)count, sizeof *params);
    assert_non_null(params);
    r->groups[0] = tg_optim_config_default();
    const char *const settings[] = {"name",        method, "learning_rate",   "0.01",
                                    "min_entries", "100",  "update_proj_gap", "3"};
    for (int i = 0; i < COUNT(settings); i += 2) {
        net_ok(r->ctx, tg_optim_config_set(r->ctx, r->groups, settings[i], settings[i + 1]));
    }
    r->groups[1] = r->groups[0];
    r->groups[1].is_projected = false;
    for (int i = 0; i < count; i++) {
        const tg_fno_param p = tg_fno_get_param(r->fno, i);
        params[i] = (tg_optim_param){p.name, p.dtype, p.shape, p.spectral ? 0 : 1};
    }
    const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                  .groups = r->groups,
                                  .group_count = 2,
                                  .params = params,
                                  .param_count = count,
                                  .seed = 9,
                                  .takes_factored = true,
                                  .accumulates = accumulates,
                                  .shares_workspace = borrows};
    net_ok(r->ctx, tg_optim_create(r->ctx, &setup, &r->optim));
    if (borrows) {
        net_ok(r->ctx, tg_step_share_workspace(r->fno, r->optim));
    }
    for (int i = 0; i < count; i++) {
        const tg_fno_param param = tg_fno_get_param(r->fno, i);
        net_ok(r->ctx, tg_optim_bind(r->optim, i, &param.weight));
    }
    free(params);
}

/* Batch number b where the backend computes; the last batch with a NaN. */
static void make_batch(rig *r, int b) {
    const tg_fno_config *config = tg_fno_get_config(r->fno);
    tg_tensor *const to[2] = {&r->x[b], &r->y[b]};
    for (int side = 0; side < 2; side++) {
        tg_tensor host = net_random(r->ctx, config, 2, 1, grid, (uint64_t)(10 * b + side));
        if (b == BAD && side == 0) {
            ((float *)host.data)[5] = NAN;
        }
        net_ok(r->ctx, tg_backend_tensor(r->ctx, TG_MEM_DATA, host.dtype, &host.shape, to[side]));
        net_ok(r->ctx, tg_backend_copy(r->ctx, &host, to[side]));
        tg_tensor_destroy(&host);
    }
}

static rig begin_over(const char *backend, const char *network, const char *method,
                      const tg_step_config *wanted, bool over_nccl) {
    rig r = {.ctx = net_context(backend, 2)};
    const tg_fno_config config = net_config(r.ctx, network);
    tg_step_config step = *wanted;
    if (over_nccl) {
        net_ok(r.ctx, tg_comm_create_self(r.ctx, &r.comm));
        net_ok(r.ctx, tg_comm_open_device(r.comm, TG_COMM_NCCL));
    }
    step.comm = r.comm;
    net_ok(r.ctx, tg_fno_create(r.ctx, &config, 3, &r.fno));
    make_optimizer(&r, method, step.accumulates || over_nccl, strcmp(backend, "fake") == 0);
    net_ok(r.ctx, tg_fno_prepare(r.fno, 2, grid, true));
    for (int b = 0; b < BATCHES; b++) {
        make_batch(&r, b);
    }
    net_ok(r.ctx, tg_backend_tensor(r.ctx, TG_MEM_DATA, r.x[0].dtype, &r.x[0].shape, &r.now_x));
    net_ok(r.ctx, tg_backend_tensor(r.ctx, TG_MEM_DATA, r.y[0].dtype, &r.y[0].shape, &r.now_y));
    step.fno = r.fno;
    step.optim = r.optim;
    net_ok(r.ctx, tg_loss_config_parse(r.ctx, "loss", "l2", &step.loss));
    net_ok(r.ctx, tg_step_create(r.ctx, &step, &r.step));
    return r;
}

static rig begin(const char *backend, const char *network, const char *method,
                 const tg_step_config *wanted) {
    return begin_over(backend, network, method, wanted, false);
}

static void end(rig *r) {
    tg_step_destroy(&r->step);
    tg_comm_destroy(&r->comm);
    tg_optim_destroy(&r->optim);
    tg_fno_destroy(&r->fno);
    for (int b = 0; b < BATCHES; b++) {
        tg_tensor_destroy(&r->x[b]);
        tg_tensor_destroy(&r->y[b]);
    }
    tg_tensor_destroy(&r->now_x);
    tg_tensor_destroy(&r->now_y);
    assert_int_equal(tg_context_memory(r->ctx, TG_DEVICE).current[TG_MEM_WEIGHTS], 0);
    tg_context_destroy(&r->ctx);
}

/* The first half of a step on batch b, or (a capital letter) on its first sample alone. */
static void forward(rig *r, char b) {
    const bool is_odd = b >= 'A';
    const int batch = is_odd ? b - 'A' : b - '0';
    tg_tensor x = r->now_x, y = r->now_y, from_x = r->x[batch], from_y = r->y[batch];
    x.shape.dim[0] = y.shape.dim[0] = is_odd ? 1 : 2;
    from_x.shape = x.shape;
    from_y.shape = y.shape;
    net_ok(r->ctx, tg_backend_copy(r->ctx, &from_x, &x));
    net_ok(r->ctx, tg_backend_copy(r->ctx, &from_y, &y));
    net_ok(r->ctx, tg_step_forward(r->step, &x, &y));
}

/* Steps over the batches named; losses in their order, NaN where a loss is not finite. */
static void train(rig *r, const char *batches, double *losses) {
    int settled = 0;
    for (const char *b = batches; *b; b++) {
        tg_step_result result;
        forward(r, *b);
        net_ok(r->ctx, tg_step_synchronize(r->step, &result));
        if (result.samples > 0) {
            losses[settled++] = result.loss;
        }
        net_ok(r->ctx, tg_optim_set_learning_rate(r->optim, 0, 0.01 / (1 + settled)));
        net_ok(r->ctx, tg_step_backward(r->step));
        if (!tg_step_is_late(r->step)) {
            net_ok(r->ctx, tg_step_synchronize(r->step, &result));
            losses[settled++] = result.loss;
        }
    }
    tg_step_result result;
    net_ok(r->ctx, tg_step_synchronize(r->step, &result));
    if (result.samples > 0) {
        losses[settled++] = result.loss;
    }
    net_ok(r->ctx, tg_optim_synchronize(r->optim));
    assert_int_equal(settled, strlen(batches));
}

static void apply_sums(rig *r) {
    for (int i = 0; i < tg_fno_param_count(r->fno); i++) {
        const tg_fno_param param = tg_fno_get_param(r->fno, i);
        net_ok(r->ctx, tg_optim_apply(r->optim, i, &param.weight));
    }
}

/* Weights, moments, factors, index sets and books are the same. */
static void assert_same_end(rig *a, rig *b) {
    rig *const sides[2] = {a, b};
    tg_archive *archives[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        net_ok(sides[i]->ctx, tg_archive_create(sides[i]->ctx, &archives[i]));
        net_ok(sides[i]->ctx, tg_fno_save(sides[i]->fno, archives[i], ""));
        net_ok(sides[i]->ctx, tg_optim_save(sides[i]->optim, archives[i]));
    }
    assert_int_equal(tg_archive_count(archives[0]), tg_archive_count(archives[1]));
    for (int64_t i = 0; i < tg_archive_count(archives[0]); i++) {
        const char *name = tg_archive_name(archives[0], i);
        const tg_tensor *x = tg_archive_tensor(archives[0], i);
        const tg_tensor *y = tg_archive_find(archives[1], name);
        assert_non_null(y);
        assert_true(tg_shape_equal(&x->shape, &y->shape));
        if (memcmp(x->data, y->data, tg_tensor_bytes(x)) != 0) {
            fail_msg("%s differs", name);
        }
    }
    const tg_optim_stats s = tg_optim_get_stats(a->optim), t = tg_optim_get_stats(b->optim);
    assert_int_equal(s.steps, t.steps);
    assert_int_equal(s.skipped, t.skipped);
    assert_int_equal(s.refreshes, t.refreshes);
    assert_int_equal(tg_fno_step(a->fno), tg_fno_step(b->fno));
    tg_archive_destroy(&archives[0]);
    tg_archive_destroy(&archives[1]);
}

static void assert_same_losses(const double *a, const double *b, int count) {
    for (int i = 0; i < count; i++) {
        assert_true(isfinite(a[i]) == isfinite(b[i]));
        assert_true(!isfinite(a[i]) || a[i] == b[i]);
    }
}

/* ---- whole steps ---- */

TEST(steps_end_the_same) {
    static const char batches[] = "0123103310B2301121021";
    /* refreshes meet good and bad batches; one is shorter */
    for (int n = 0; n < COUNT(networks); n++) {
        for (int m = 0; m < COUNT(methods); m++) {
            const bool is_last = m == COUNT(methods) - 1;
            for (int clips = 0; clips < (is_last ? 2 : 1); clips++) {
                if (n > 0 && !is_last) {
                    continue;
                }
                const tg_step_config config = {.size = sizeof(tg_step_config),
                                               .max_grad_norm = clips ? 0.5 : 0.0};
                double losses[2][sizeof batches];
                rig a = begin("cpu", networks[n], methods[m], &config);
                rig b = begin("fake", networks[n], methods[m], &config);
                train(&a, batches, losses[0]);
                train(&b, batches, losses[1]);
                assert_same_losses(losses[0], losses[1], (int)strlen(batches));
                assert_true(isnan(losses[0][3]) && isfinite(losses[0][4]));
                assert_same_end(&a, &b);
                end(&a);
                end(&b);
            }
        }
    }
}

TEST(sums_end_the_same) {
    for (int m = 0; m < COUNT(methods); m++) {
        const tg_step_config config = {.size = sizeof(tg_step_config), .accumulates = true};
        double losses[2][3];
        rig a = begin("cpu", networks[0], methods[m], &config);
        rig b = begin("fake", networks[0], methods[m], &config);
        for (int update = 0; update < 5; update++) {
            train(&a, update == 2 ? "131" : "012", losses[0]);
            train(&b, update == 2 ? "131" : "012", losses[1]);
            assert_same_losses(losses[0], losses[1], 3);
            apply_sums(&a);
            apply_sums(&b);
        }
        net_ok(b.ctx, tg_optim_synchronize(b.optim));
        assert_same_end(&a, &b);
        end(&a);
        end(&b);
    }
}

/* Sums over ranks, of which there is one: used as soon as they are made, or after the pass. */
TEST(sums_over_ranks_end_the_same) {
    static const char batches[] = "0123103310B2301121021";
    for (int m = 0; m < COUNT(methods); m++) {
        for (int overlaps = 0; overlaps < 2; overlaps++) {
            const tg_step_config config = {.size = sizeof(tg_step_config),
                                           .overlaps = overlaps == 1};
            double losses[2][sizeof batches];
            rig a = begin("cpu", networks[0], methods[m], &config);
            rig b = begin_over("fake", networks[0], methods[m], &config, true);
            train(&a, batches, losses[0]);
            train(&b, batches, losses[1]);
            assert_same_losses(losses[0], losses[1], (int)strlen(batches));
            assert_same_end(&a, &b);
            end(&a);
            end(&b);
        }
    }
}

/* A replayed graph counts the same bytes sent as the captured step. */
TEST(replayed_steps_are_counted) {
    for (int failing = 0; failing <= 2; failing += 2) { /* none, the backward pass */
        rig r = begin_over("fake", networks[0], "adam",
                           &(tg_step_config){.size = sizeof(tg_step_config)}, true);
        double losses[4];
        tg_comm_stats at[4];
        train(&r, "0", losses);
        fake_device_fail_graph(failing);
        for (int i = 0; i < COUNT(at); i++) {
            at[i] = tg_comm_get_info(r.comm).stats;
            train(&r, "12", losses);
        }
        fake_device_fail_graph(0);
        for (int i = 1; i + 1 < COUNT(at); i++) {
            assert_true(at[i].reduced > at[i - 1].reduced && at[i].calls > at[i - 1].calls);
            assert_int_equal(at[i + 1].reduced - at[i].reduced, at[1].reduced - at[0].reduced);
            assert_int_equal(at[i + 1].calls - at[i].calls, at[1].calls - at[0].calls);
        }
        end(&r);
    }
}

/* ---- the device is kept busy ---- */

/* Steps that neither record nor refresh: one wait each for the outcome, with work queued after it.
 */
TEST(ordinary_steps_do_not_starve_the_device) {
    for (int way = 0; way < 4; way++) {
        const bool graphs = way % 2 == 1;
        const tg_step_config config = {.size = sizeof(tg_step_config),
                                       .graphs = graphs ? TG_GRAPHS_AUTO : TG_GRAPHS_OFF};
        rig r = begin_over("fake", networks[0], "adam", &config, way >= 2);
        double losses[8];
        tg_step_result result;
        const fake_counts first = fake_device_counts();
        train(&r, "0123", losses);
        forward(&r, '0');
        net_ok(r.ctx, tg_step_synchronize(r.step, &result));
        net_ok(r.ctx, tg_step_backward(r.step));
        const fake_counts before = fake_device_counts();
        assert_int_equal(before.recorded - first.recorded, graphs ? 2 : 0);
        for (int i = 0; i < 5; i++) {
            assert_true(tg_step_is_late(r.step));
            forward(&r, '1');
            net_ok(r.ctx, tg_step_synchronize(r.step, &result));
            assert_true(result.samples == 2 && isfinite(result.loss));
            net_ok(r.ctx, tg_step_backward(r.step));
        }
        const fake_counts after = fake_device_counts();
        assert_true(after.waits - before.waits <= 2 * 5); /* for the step and for its guards */
        assert_int_equal(after.starved, before.starved);
        assert_int_equal(after.recorded, before.recorded);
        assert_int_equal(after.launched - before.launched, graphs ? 10 : 0);
        end(&r);
    }
}

/* New buffers need a new capture; an evaluation between two steps makes new ones. */
TEST(captured_graphs_follow_the_buffers) {
    static const char batches[] = "01021";
    double losses[2][sizeof batches];
    rig a = begin("cpu", networks[0], "adam", &(tg_step_config){.size = sizeof(tg_step_config)});
    rig b = begin("fake", networks[0], "adam", &(tg_step_config){.size = sizeof(tg_step_config)});
    const fake_counts before = fake_device_counts();
    for (int epoch = 0; epoch < 3; epoch++) {
        train(&a, batches, losses[0]);
        train(&b, batches, losses[1]);
        assert_same_losses(losses[0], losses[1], (int)strlen(batches));
        net_ok(b.ctx, tg_fno_prepare(b.fno, 1, grid, false));
        void *hole = NULL; /* so that the new buffers do not stand where the old ones were */
        tg_backend *be = NULL;
        net_ok(b.ctx, tg_backend_get(b.ctx, &be));
        hole = be->ops->alloc(be, TG_MEM_OTHER, 1 << 20);
        net_ok(b.ctx, tg_fno_prepare(b.fno, 2, grid, true));
        be->ops->release(be, hole);
    }
    assert_int_equal(fake_device_counts().recorded - before.recorded, 3 * 2);
    assert_same_end(&a, &b);
    end(&a);
    end(&b);
}

/* A backend that cannot record still trains, and says so once. */
TEST(steps_that_cannot_be_recorded_are_run) {
    static const char batches[] = "0120121";
    for (int failing = 1; failing <= 2; failing++) { /* forward, backward */
        double losses[2][sizeof batches];
        rig a = begin("cpu", networks[0], "tensorgrad",
                      &(tg_step_config){.size = sizeof(tg_step_config)});
        rig b = begin("fake", networks[0], "tensorgrad",
                      &(tg_step_config){.size = sizeof(tg_step_config)});
        fake_device_fail_graph(failing);
        train(&a, batches, losses[0]);
        train(&b, batches, losses[1]);
        fake_device_fail_graph(0);
        assert_same_losses(losses[0], losses[1], (int)strlen(batches));
        assert_same_end(&a, &b);
        end(&a);
        end(&b);
    }
}

/* ---- optimizers alone ---- */

/* One weight, several gradients; number `bad` holds an Inf. */
static void take_steps(tg_context *ctx, tg_optim *optim, const tg_shape *shape, int bad,
                       tg_tensor *weight, tg_tensor *gradient) {
    const int64_t n = tg_shape_numel(shape);
    float *values = malloc((size_t)n * sizeof *values);
    tg_tensor host;
    net_ok(ctx, tg_tensor_wrap(ctx, TG_F32, shape, values, &host));
    for (int step = 0; step < 8; step++) {
        for (int64_t i = 0; i < n; i++) {
            values[i] = (float)sin((double)(i * 7 + step * 13));
        }
        values[n / 2] = step == bad ? INFINITY : values[n / 2];
        net_ok(ctx, tg_backend_copy(ctx, &host, gradient));
        net_ok(ctx, tg_optim_step(optim, 0, gradient, weight));
    }
    free(values);
}

TEST(gradients_that_are_not_finite_are_skipped) {
    const tg_shape shape = {3, {7, 6, 5}};
    for (int m = 0; m < COUNT(methods); m++) {
        for (int bad = 2; bad < 5; bad++) { /* on steps that refresh and on others */
            static const char *const backends[2] = {"cpu", "fake"};
            tg_tensor weights[2] = {{0}, {0}};
            tg_context *ctx[2];
            for (int side = 0; side < 2; side++) {
                ctx[side] = net_context(backends[side], 2);
                tg_optim_config config = tg_optim_config_default();
                net_ok(ctx[side], tg_optim_config_set(ctx[side], &config, "name", methods[m]));
                config.min_entries = 0;
                config.update_proj_gap = 3;
                const tg_optim_param param = {"w", TG_F32, shape, 0};
                const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                              .groups = &config,
                                              .group_count = 1,
                                              .params = &param,
                                              .param_count = 1};
                tg_optim *optim = NULL;
                tg_tensor weight, gradient;
                net_ok(ctx[side], tg_optim_create(ctx[side], &setup, &optim));
                net_ok(ctx[side],
                       tg_backend_tensor(ctx[side], TG_MEM_WEIGHTS, TG_F32, &shape, &weight));
                net_ok(ctx[side],
                       tg_backend_tensor(ctx[side], TG_MEM_WEIGHTS, TG_F32, &shape, &gradient));
                net_ok(ctx[side],
                       tg_tensor_create(ctx[side], TG_MEM_DATA, TG_F32, &shape, &weights[side]));
                memset(weights[side].data, 0, tg_tensor_bytes(&weights[side]));
                net_ok(ctx[side], tg_backend_copy(ctx[side], &weights[side], &weight));
                take_steps(ctx[side], optim, &shape, bad, &weight, &gradient);
                net_ok(ctx[side], tg_optim_synchronize(optim));
                assert_int_equal(tg_optim_get_stats(optim).skipped, 1);
                assert_int_equal(tg_optim_get_stats(optim).steps, 7);
                net_ok(ctx[side], tg_backend_copy(ctx[side], &weight, &weights[side]));
                tg_optim_destroy(&optim);
                tg_tensor_destroy(&weight);
                tg_tensor_destroy(&gradient);
            }
            assert_memory_equal(weights[0].data, weights[1].data, tg_tensor_bytes(&weights[0]));
            for (int side = 0; side < 2; side++) {
                tg_tensor_destroy(&weights[side]);
                tg_context_destroy(&ctx[side]);
            }
        }
    }
}

/* What a part of a sum held is remembered, also when others are settled in between. */
TEST(sums_that_are_not_finite_are_skipped) {
    const tg_shape shape = {1, {5}};
    for (int settles = 0; settles < 2; settles++) {
        tg_context *ctx = net_context("fake", 1);
        tg_optim_config config = tg_optim_config_default();
        const tg_optim_param param = {"w", TG_F32, shape, 0};
        const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                      .groups = &config,
                                      .group_count = 1,
                                      .params = &param,
                                      .param_count = 1,
                                      .accumulates = true};
        tg_optim *optim = NULL;
        tg_tensor weight, gradient, host;
        float values[5] = {1, 2, 3, 4, 5};
        net_ok(ctx, tg_optim_create(ctx, &setup, &optim));
        net_ok(ctx, tg_backend_tensor(ctx, TG_MEM_WEIGHTS, TG_F32, &shape, &weight));
        net_ok(ctx, tg_backend_tensor(ctx, TG_MEM_WEIGHTS, TG_F32, &shape, &gradient));
        net_ok(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, values, &host));
        net_ok(ctx, tg_backend_copy(ctx, &host, &weight));
        const tg_gradient part = {.param = 0,
                                  .dtype = TG_F32,
                                  .shape = shape,
                                  .dense = gradient.data,
                                  .place = gradient.place};
        for (int update = 0; update < 3; update++) {
            for (int i = 0; i < 3; i++) {
                values[2] = update == 1 && i == 1 ? INFINITY : 3.0f;
                net_ok(ctx, tg_backend_copy(ctx, &host, &gradient));
                net_ok(ctx, tg_optim_accumulate(optim, &part));
                net_ok(ctx, settles ? tg_optim_synchronize(optim) : TG_OK);
            }
            net_ok(ctx, tg_optim_apply(optim, 0, &weight));
        }
        net_ok(ctx, tg_optim_synchronize(optim));
        assert_int_equal(tg_optim_get_stats(optim).steps, 2);
        assert_int_equal(tg_optim_get_stats(optim).skipped, 1);
        net_ok(ctx, tg_backend_copy(ctx, &weight, &host));
        assert_true(isfinite(values[2]) && values[2] < 3.0f);
        tg_optim_destroy(&optim);
        tg_tensor_destroy(&weight);
        tg_tensor_destroy(&gradient);
        tg_context_destroy(&ctx);
    }
}

TEST(a_policy_of_errors_is_obeyed_at_once) {
    const tg_shape shape = {1, {5}};
    tg_context *ctx = net_context("fake", 1);
    tg_optim_config config = tg_optim_config_default();
    config.nonfinite = TG_NONFINITE_ERROR;
    const tg_optim_param param = {"w", TG_F32, shape, 0};
    const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                  .groups = &config,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1};
    tg_optim *optim = NULL;
    tg_tensor weight, gradient;
    float values[5] = {1, 2, NAN, 4, INFINITY};
    tg_tensor host;
    net_ok(ctx, tg_optim_create(ctx, &setup, &optim));
    net_ok(ctx, tg_backend_tensor(ctx, TG_MEM_WEIGHTS, TG_F32, &shape, &weight));
    net_ok(ctx, tg_backend_tensor(ctx, TG_MEM_WEIGHTS, TG_F32, &shape, &gradient));
    net_ok(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, values, &host));
    net_ok(ctx, tg_backend_copy(ctx, &host, &gradient));
    assert_int_equal(tg_optim_step(optim, 0, &gradient, &weight), TG_E_NUMERIC);
    assert_non_null(strstr(tg_context_error(ctx), "2 entries"));
    tg_optim_destroy(&optim);
    tg_tensor_destroy(&weight);
    tg_tensor_destroy(&gradient);
    tg_context_destroy(&ctx);
}

int main(void) {
    fake_device_add("fake");
    (void)setenv("TGRAD_NCCL", FAKE_NCCL, 1);
    return t_run_tests(NULL, NULL);
}
