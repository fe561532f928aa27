/* Networks as programs: every model that can be built is differentiated, checkpointed and placed by
 * the same passes; whatever cannot run is refused with a sentence. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/models/models.h"
#include "support/fake_device.h"
#include "support/network.h"
#include "support/runner.h"

/* ---- placement: seen from the ops alone ---- */

static bool overlap(const nn_program *p, int a, int b) {
    const char *x = p->values[a].data, *y = p->values[b].data;
    return x < y + nn_value_bytes(p, b) && y < x + nn_value_bytes(p, a);
}

static bool is_read_from(const nn_program *p, int value, int time) {
    for (int t = time; t < p->op_count; t++) {
        for (int k = 0; k < NN_INPUTS; k++) {
            if (p->ops[t].in[k] == value) {
                return true;
            }
        }
    }
    return false;
}

/* No op writes over a value that was made before and is read later. */
static void expect_no_harm(const nn_program *p) {
    bool *is_made = calloc((size_t)p->value_count, sizeof *is_made);
    assert_non_null(is_made);
    for (int t = 0; t < p->op_count; t++) {
        const nn_op *op = &p->ops[t];
        const int written[] = {op->out[0], op->out[1], op->out[2], op->scratch[0], op->scratch[1]};
        for (int k = 0; k < T_COUNT(written); k++) {
            for (int v = 0; v < p->value_count && written[k] >= 0; v++) {
                if (is_made[v] && v != op->out[0] && v != op->out[1] && v != op->out[2] &&
                    overlap(p, written[k], v) && is_read_from(p, v, t + 1)) {
                    fail_msg("op %d (%s) writes over value %d, which is read later", t,
                             nn_kind_of(op->kind)->name, v);
                }
            }
        }
        for (int k = 0; k < NN_OUTPUTS; k++) {
            if (op->out[k] >= 0) {
                is_made[op->out[k]] = true;
            }
        }
    }
    free(is_made);
}

TEST(placement_harms_nothing) {
    static const char *const configs[] = {
        "\"n_modes\": [6, 6], \"hidden_channels\": 5, \"n_layers\": 4",
        "\"n_modes\": [6, 6], \"hidden_channels\": 5, \"domain_padding\": 0.25, \"n_layers\": 3",
        "\"n_modes\": [6, 6], \"hidden_channels\": 5, \"norm\": \"group_norm\", \"n_layers\": 3",
        ("\"n_modes\": [20, 6], \"hidden_channels\": 4, \"complex_data\": true,"
         "\"norm\": \"instance_norm\", \"stabilizer\": \"tanh\""),
        "\"n_modes\": [6, 6], \"hidden_channels\": 5, \"use_channel_mlp\": false",
        "\"n_modes\": [6, 6], \"hidden_channels\": 5, \"channel_mlp_skip\": \"linear\"",
        "\"n_modes\": [6, 6], \"hidden_channels\": 6, \"saved_precision\": \"8bit\"",
        "\"n_modes\": [6, 6], \"hidden_channels\": 6, \"factorization\": \"tucker\", \"rank\": 0.3",
        "\"n_modes\": [6, 6], \"hidden_channels\": 6, \"micro_batch\": 1",
        "\"n_modes\": [6, 6], \"hidden_channels\": 6, \"micro_batch\": 1, \"precision\": \"mixed\"",
        "\"n_modes\": [6, 6], \"hidden_channels\": 5, \"norm\": \"group_norm\", \"precision\": "
        "\"mixed\"",
    };
    static const char *const kinds[] = {"off", "block", "minimal"};
    const int64_t grid[] = {9, 12};
    static const char *const backends[] = {"cpu", "fake"}; /* without and with blocks in one call */
    for (int i = 0; i < 12 * T_COUNT(configs); i++) {
        tg_context *ctx = net_context(backends[i / 6 % 2], 1);
        char json[512];
        snprintf(json, sizeof json, "{%s, \"activation_checkpoint\": \"%s\"}", configs[i / 12],
                 kinds[i % 3]);
        tg_fno *fno = net_fno(ctx, 1, json);
        net_ok(ctx, tg_fno_prepare(fno, 2, grid, i / 3 % 2 == 0));
        expect_no_harm(&fno->run.program);
        tg_fno_destroy(&fno);
        tg_context_destroy(&ctx);
    }
}

/* Where the backend has blocks in one call, no inverse transform is left, and in backward each sum
 * of three gradients is one op, with or without checkpointing. */
static void expect_blocks(const char *checkpointing, bool keeps) {
    const int64_t grid[] = {9, 12};
    char json[256];
    snprintf(json, sizeof json,
             "{\"n_modes\": [6, 6], \"hidden_channels\": 6, \"n_layers\": 3,"
             "\"activation_checkpoint\": \"%s\"}",
             checkpointing);
    tg_context *ctx = net_context("fake", 1);
    tg_fno *fno = net_fno(ctx, 1, json);
    for (int training = 0; training < 2; training++) {
        net_ok(ctx, tg_fno_prepare(fno, 2, grid, training));
        const nn_program *p = &fno->run.program;
        int blocks = 0;
        for (int i = 0; i < p->forward_end; i++) {
            assert_int_not_equal(p->ops[i].kind, NN_INVERSE);
            if (p->ops[i].kind == NN_BLOCK) {
                assert_non_null(p->ops[i].mlp);
                /* kept for backward alone */
                assert_int_equal(p->ops[i].out[0] >= 0, training && keeps);
                blocks++;
            }
        }
        assert_int_equal(blocks, 3);
        int backs = 0;
        for (int i = p->backward_begin; i < p->op_count; i++) {
            const nn_op *op = &p->ops[i];
            assert_false(op->kind == NN_SKIP_BACK || op->kind == NN_ACCUMULATE);
            if (op->kind == NN_BLOCK_BACK) {
                backs++;
            }
        }
        assert_int_equal(backs, training ? 3 : 0);
    }
    tg_fno_destroy(&fno);
    tg_context_destroy(&ctx);
}

/* What a sink was given: gradients as they are and as factors, and the calls with several. */
typedef struct given {
    int dense, factored, calls;
} given;

static tg_status take_one(void *user, const tg_gradient *gradient) {
    given *g = user;
    g->dense += gradient->dense != NULL;
    g->factored += gradient->dense == NULL;
    return TG_OK;
}

static tg_status take_all(void *user, int count, const tg_gradient *gradients) {
    given *g = user;
    g->calls++;
    for (int i = 0; i < count; i++) {
        TG_CALL(take_one(user, &gradients[i]));
    }
    return TG_OK;
}

/* A device updates all small parameters in one call, when backward is through; the host each as
 * soon as its gradient is there. */
TEST(small_gradients_leave_together) {
    static const char *const backends[] = {"fake", "cpu"};
    const int64_t grid[] = {9, 12};
    for (int i = 0; i < 2; i++) {
        tg_context *ctx = net_context(backends[i], 1);
        tg_fno *fno = net_fno(ctx, 1, "{\"n_modes\": [6, 6], \"hidden_channels\": 6}");
        const tg_fno_config *config = tg_fno_get_config(fno);
        tg_tensor x = net_random(ctx, config, 2, config->in_channels, grid, 1);
        tg_tensor y = net_random(ctx, config, 2, config->out_channels, grid, 2);
        const tg_loss_config loss_config = tg_loss_config_default();
        given g = {0};
        const tg_grad_sink sink = {.receive = take_one, .user = &g, .receive_all = take_all};
        double loss;
        net_ok(ctx, tg_fno_prepare(fno, 2, grid, true));
        net_ok(ctx, tg_fno_loss_backward(fno, &x, &y, &loss_config, &sink, &loss));
        assert_int_equal(g.dense + g.factored, tg_fno_param_count(fno));
        assert_int_equal(g.factored, config->n_layers);
        assert_int_equal(g.calls == 1, i == 0);
        tg_tensor_destroy(&x);
        tg_tensor_destroy(&y);
        tg_fno_destroy(&fno);
        tg_context_destroy(&ctx);
    }
}

/* Of a factorized weight, what a product has made is there for its adjoint and for the gradients of
 * the factors, or none of it where memory is to be saved. */
static void expect_kept(const char *key, bool keeps) {
    const int64_t grid[] = {9, 12};
    char json[256];
    snprintf(json, sizeof json,
             "{\"n_modes\": [6, 6], \"hidden_channels\": 6, \"n_layers\": 2,"
             "\"factorization\": \"tucker\", \"rank\": 0.3%s}",
             key);
    tg_context *ctx = net_context("cpu", 1);
    tg_fno *fno = net_fno(ctx, 1, json);
    net_ok(ctx, tg_fno_prepare(fno, 2, grid, true));
    const nn_program *p = &fno->run.program;
    int found = 0;
    for (int i = p->backward_begin; i < p->op_count; i++) {
        const nn_op *op = &p->ops[i];
        if (op->kind == NN_FACTORIZED && op->is_adjoint) {
            assert_int_equal(op->in[NN_INNER] >= 0, keeps);
            found++;
        } else if (op->kind == NN_FACTORS_BACK) {
            assert_int_equal(op->in[NN_MAPPED] >= 0, keeps);
            assert_int_equal(op->in[NN_MAPPED_DY] >= 0, keeps);
            found++;
        }
    }
    assert_int_equal(found, 4);
    tg_fno_destroy(&fno);
    tg_context_destroy(&ctx);
}

TEST(factorized_products_are_kept) {
    expect_kept("", true);
    expect_kept(", \"activation_checkpoint\": \"block\"", false);
    expect_kept(", \"micro_batch\": 1", false);
    expect_kept(", \"saved_precision\": \"bf16\"", false);
}

TEST(blocks_in_one_call) {
    expect_blocks("off", true);
    expect_blocks("block", false);
    expect_blocks("minimal", false);
}

/* ---- work ---- */

/* The phases' arithmetic of a small network, counted by hand. */
TEST(work_of_phases) {
    enum { B = 2, P = 35, WIDTH = 4, MLP = 2, LIFT = 8, KEPT = 4 * 3, MOST = 32 };
    static tg_fno_phase phases[MOST];
    tg_context *ctx = net_context("cpu", 1);
    const tg_fno_config config =
        net_config(ctx, "{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 1}");
    const double lifting = 2.0 * B * P * LIFT * (3 + WIDTH), skip = 2.0 * B * P * WIDTH * WIDTH;
    const double transform = 2.5 * B * WIDTH * P * log2(P);
    const struct {
        const char *name;
        double flops;
    } expected[] = {
        {"embedding", 0.0},
        {"lifting", lifting},
        {"block 1: transform", transform},
        {"block 1: product with the weight", 8.0 * B * WIDTH * WIDTH * KEPT},
        {"block 1: inverse transform", transform + skip},
        {"block 1: mixing", 2.0 * B * P * MLP * (WIDTH + WIDTH)},
        {"back through block 1: mixing", 2.0 * B * P * MLP * (3 * WIDTH + 2 * WIDTH)},
        {"back through block 1: transforms", transform + 8.0 * B * WIDTH * WIDTH * KEPT},
        {"back through block 1: skips", transform + 2.0 * skip},
        {"back through the lifting", 2.0 * B * P * LIFT * (2 * 3 + 2 * WIDTH)},
        {"spectral weights", 0.0},
    };
    int count = 0, found = 0;
    net_ok(ctx, tg_fno_phases(ctx, &config, B, (int64_t[]){5, 7}, phases, MOST, &count));
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < T_COUNT(expected); k++) {
            if (strcmp(phases[i].name, expected[k].name) == 0) {
                found++;
                assert_true(fabs(phases[i].flops - expected[k].flops) <= 1e-9 * phases[i].flops);
            }
        }
    }
    assert_int_equal(found, T_COUNT(expected));
    assert_true(phases[1].traffic == 4.0 * B * P * (3 + WIDTH));
    tg_context_destroy(&ctx);
}

/* ---- what cannot run ---- */

/* A sum is added to in place, so no other op may read it. */
static void build_shared_sum(const nn_model *model, nn_program *p) {
    nn_phase_begin(p, "lifting", "lifting");
    const int x = nn_add_mlp(p, &model->lifting, NN_ACTIVATION, nn_add_input(p));
    const int y = nn_add_skip(p, &model->blocks[0].fno_skip, x, x);
    p->output = nn_add_mlp(p, &model->projection, NN_DATA, y);
}

/* A parameter that two ops read would change between them. */
static void build_shared_parameter(const nn_model *model, nn_program *p) {
    nn_phase_begin(p, "lifting", "lifting");
    int x = nn_add_mlp(p, &model->lifting, NN_ACTIVATION, nn_add_input(p));
    x = nn_add_channel_mlp(p, &model->blocks[0].mlp, 0, x);
    x = nn_add_channel_mlp(p, &model->blocks[0].mlp, 1, x);
    p->output = nn_add_mlp(p, &model->projection, NN_DATA, x);
}

static void expect_refused(tg_context *ctx, const nn_model *model, tg_backend *be,
                           const char *sentence) {
    const size_t blocks = tg_context_memory(ctx, TG_HOST).blocks;
    nn_program program;
    assert_int_equal(
        nn_program_create(model, be, 2, (int64_t[]){9}, true, &(tg_shared_workspace){0}, &program),
        TG_E_UNSUPPORTED);
    if (!strstr(tg_context_error(ctx), sentence)) {
        fail_msg("no '%s' in '%s'", sentence, tg_context_error(ctx));
    }
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, blocks);
}

TEST(refusals) {
    tg_context *ctx = net_context("cpu", 1);
    const tg_fno_config config = net_config(
        ctx, "{\"n_modes\": [4], \"hidden_channels\": 3, \"n_layers\": 1, \"norm\": \"group_norm\","
             "\"positional_embedding\": null}");
    tg_backend *be = NULL;
    nn_model model;
    net_ok(ctx, tg_backend_get(ctx, &be));
    net_ok(ctx, nn_model_create(ctx, &config, NULL, &model));

    tg_backend_ops ops = *be->ops;
    tg_backend without = *be;
    ops.norm = NULL;
    without.ops = &ops;
    expect_refused(ctx, &model, &without,
                   "a layer of kind norm, which the backend cpu cannot compute");

    const nn_architecture sum = {.build = build_shared_sum};
    model.architecture = &sum;
    expect_refused(ctx, &model, be, "an op of kind skip adds to a value that is read again later");

    const nn_architecture parameter = {.build = build_shared_parameter};
    model.architecture = &parameter;
    expect_refused(ctx, &model, be,
                   "the gradient of fno_blocks.channel_mlp.0.fcs.0.weight would leave before");
    nn_model_destroy(&model);
    tg_context_destroy(&ctx);
}

/* ---- the FNO without channel MLPs, written out ---- */

enum { N = 9, C = 3, HIDDEN = 6, MODES = 3 }; /* n_modes 4: 3 kept ones */

static const void *weight_of(const tg_fno *fno, const char *name) {
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        if (strcmp(param.name, name) == 0) {
            return param.weight.data;
        }
    }
    fail_msg("%s is missing", name);
    return NULL;
}

static double gelu(double x) {
    return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
}

/* y (out, N) = w (out, in) x (in, N) + b */
static void affine(const double *w, const double *b, int in, int out, const double *x, double *y) {
    for (int o = 0; o < out; o++) {
        for (int n = 0; n < N; n++) {
            y[o * N + n] = b ? b[o] : 0.0;
            for (int i = 0; i < in; i++) {
                y[o * N + n] += w[o * in + i] * x[i * N + n];
            }
        }
    }
}

static void channel_mlp(const tg_fno *fno, const char *module, int in, int out, const double *x,
                        double *y) {
    const void *w[4];
    double hidden[HIDDEN * N];
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.fcs.%d.%s", module, i / 2, i % 2 ? "bias" : "weight");
        w[i] = weight_of(fno, name);
    }
    affine(w[0], w[1], in, HIDDEN, x, hidden);
    for (int i = 0; i < HIDDEN * N; i++) {
        hidden[i] = gelu(hidden[i]);
    }
    affine(w[2], w[3], HIDDEN, out, hidden, y);
}

/* z += the spectral convolution of x, by sums over all points; w is (C, C, MODES) pairs. */
static void convolve(const double *w, const double *x, double *z) {
    const double turn = 6.283185307179586477 / N;
    for (int o = 0; o < C; o++) {
        for (int k = 0; k < MODES; k++) {
            double re = 0.0, im = 0.0;
            for (int i = 0; i < C; i++) {
                const double *weight = w + 2 * ((i * C + o) * MODES + k);
                for (int n = 0; n < N; n++) {
                    const double c = cos(turn * k * n), s = sin(turn * k * n);
                    re += x[i * N + n] / N * (weight[0] * c + weight[1] * s);
                    im += x[i * N + n] / N * (weight[1] * c - weight[0] * s);
                }
            }
            for (int n = 0; n < N; n++) {
                const double part = re * cos(turn * k * n) - im * sin(turn * k * n);
                z[o * N + n] += k == 0 ? re : 2.0 * part;
            }
        }
    }
}

TEST(without_mlp_is_the_formula) {
    const char *const backends[] = {"ref", "cpu"};
    for (int i = 0; i < 2; i++) {
        tg_context *ctx = net_context(backends[i], 1);
        tg_fno_config config = net_config(
            ctx, "{\"n_modes\": [4], \"hidden_channels\": 3, \"n_layers\": 2, \"dtype\": \"f64\","
                 "\"positional_embedding\": null, \"use_channel_mlp\": false}");
        tg_fno *fno = NULL;
        double h[C * N], z[C * N], expected[N];
        net_ok(ctx, tg_fno_create(ctx, &config, 4, &fno));
        assert_int_equal(tg_fno_param_count(fno), 2 * 4 + 2 * 3);
        net_ok(ctx, tg_fno_prepare(fno, 1, (int64_t[]){N}, false));
        tg_tensor x = net_random(ctx, &config, 1, 1, (int64_t[]){N}, 1);
        tg_tensor y = net_random(ctx, &config, 1, 1, (int64_t[]){N}, 2);
        net_ok(ctx, tg_fno_forward(fno, &x, &y));
        channel_mlp(fno, "lifting", 1, C, x.data, h);
        for (int l = 0; l < 2; l++) {
            char name[3][64];
            snprintf(name[0], sizeof name[0], "fno_blocks.fno_skips.%d.conv.weight", l);
            snprintf(name[1], sizeof name[1], "fno_blocks.convs.%d.bias", l);
            snprintf(name[2], sizeof name[2], "fno_blocks.convs.%d.weight.tensor", l);
            affine(weight_of(fno, name[0]), weight_of(fno, name[1]), C, C, h, z);
            convolve(weight_of(fno, name[2]), h, z);
            for (int k = 0; k < C * N; k++) {
                h[k] = l == 0 ? gelu(z[k]) : z[k];
            }
        }
        channel_mlp(fno, "projection", C, 1, h, expected);
        for (int n = 0; n < N; n++) {
            assert_true(fabs(((const double *)y.data)[n] - expected[n]) <= 1e-12);
        }
        tg_tensor_destroy(&x);
        tg_tensor_destroy(&y);
        tg_fno_destroy(&fno);
        tg_context_destroy(&ctx);
    }
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
