/* Factorized spectral weights: a network gives what the dense one with the same weight gives, and
 * each factor the gradient that follows from the dense one's by the definition; ranks from shares
 * of the parameters; other storage and checkpointing; what is refused. */
#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/network.h"

#define T_COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

typedef double _Complex number;

enum { CHANNELS = 3, MOST = 6, LAYERS = 2 };

static const char *const base = "\"n_modes\": [4, 5], \"hidden_channels\": 3, \"n_layers\": 2";

/* Modes of the weight: 4, and 5 / 2 + 1. */
static const int64_t weight_dim[] = {CHANNELS, CHANNELS, 4, 3};

static const struct {
    const char *keys, *form;
} cases[] = {
    {"\"factorization\": \"tucker\", \"rank\": [2, 3, 2, 2]", "tucker"},
    {"\"factorization\": \"Tucker\", \"rank\": 0.5, \"fixed_rank_modes\": [1]", "tucker"},
    {"\"factorization\": \"CP\", \"rank\": 4, \"implementation\": \"reconstructed\"", "cp"},
    {"\"factorization\": \"TT\", \"rank\": [1, 2, 3, 2, 1]", "tt"},
    {"\"separable\": true", "separable"},
};

static tg_fno_config config_of(tg_context *ctx, const char *keys, const char *more) {
    char json[640];
    snprintf(json, sizeof json, "{%s%s%s%s%s}", base, *keys ? ", " : "", keys, *more ? ", " : "",
             more);
    return net_config(ctx, json);
}

/* ---- the weight by its definition ---- */

/* The parameters of one layer's weight. */
typedef struct factors {
    const char *form;
    int count;
    tg_shape shape[MOST];
    const number *at[MOST];
    int param[MOST]; /* numbers in the network */
} factors;

static factors factors_of(const tg_fno *fno, const char *form, int layer) {
    factors f = {.form = form};
    char prefix[64];
    snprintf(prefix, sizeof prefix, "fno_blocks.convs.%d.weight.", layer);
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        if (strncmp(param.name, prefix, strlen(prefix)) == 0) {
            assert_true(f.count < MOST);
            f.shape[f.count] = param.shape;
            f.at[f.count] = param.weight.data;
            f.param[f.count++] = i;
        }
    }
    return f;
}

/* W[i, o, k, l]. */
static number entry(const factors *f, const int64_t *index) {
    number sum = 0.0;
    if (strcmp(f->form, "separable") == 0) {
        const int64_t *dim = f->shape[0].dim;
        return index[0] == index[1] ? f->at[0][(index[0] * dim[1] + index[2]) * dim[2] + index[3]]
                                    : 0.0;
    }
    if (strcmp(f->form, "cp") == 0) {
        const int64_t rank = f->shape[0].dim[0];
        for (int64_t r = 0; r < rank; r++) {
            number term = f->at[0][r];
            for (int k = 0; k < 4; k++) {
                term *= f->at[1 + k][index[k] * rank + r];
            }
            sum += term;
        }
        return sum;
    }
    if (strcmp(f->form, "tucker") == 0) {
        const int64_t *rank = f->shape[0].dim;
        for (int64_t at = 0; at < tg_shape_numel(&f->shape[0]); at++) {
            number term = f->at[0][at];
            int64_t rest = at;
            for (int k = 3; k >= 0; k--) {
                term *= f->at[1 + k][index[k] * rank[k] + rest % rank[k]];
                rest /= rank[k];
            }
            sum += term;
        }
        return sum;
    }
    number row[8] = {1.0}, next[8];
    for (int k = 0; k < 4; k++) { /* a row times the matrices of the train */
        const int64_t *dim = f->shape[k].dim;
        for (int64_t c = 0; c < dim[2]; c++) {
            next[c] = 0.0;
            for (int64_t r = 0; r < dim[0]; r++) {
                next[c] += row[r] * f->at[k][(r * dim[1] + index[k]) * dim[2] + c];
            }
        }
        memcpy(row, next, sizeof row);
    }
    return row[0];
}

/* Calls for every entry of W. */
static void each_entry(void (*f)(void *user, const int64_t *index, int64_t at), void *user) {
    int64_t at = 0, index[4];
    for (index[0] = 0; index[0] < weight_dim[0]; index[0]++) {
        for (index[1] = 0; index[1] < weight_dim[1]; index[1]++) {
            for (index[2] = 0; index[2] < weight_dim[2]; index[2]++) {
                for (index[3] = 0; index[3] < weight_dim[3]; index[3]++) {
                    f(user, index, at++);
                }
            }
        }
    }
}

typedef struct copying {
    const factors *from;
    number *to;
} copying;

static void copy_entry(void *user, const int64_t *index, int64_t at) {
    const copying *c = user;
    c->to[at] = entry(c->from, index);
}

typedef struct summing {
    const factors *with; /* one factor being 1 at one place and 0 elsewhere */
    const number *dense; /* gradient of W */
    number sum;
} summing;

static void sum_entry(void *user, const int64_t *index, int64_t at) {
    summing *s = user;
    s->sum += s->dense[at] * conj(entry(s->with, index));
}

/* ---- networks beside each other ---- */

typedef struct pair {
    tg_context *ctx;
    tg_fno *fno, *dense;
    net_gradients gradients, dense_gradients;
    tg_tensor y, dense_y;
} pair;

static void step_of(tg_context *ctx, tg_fno *fno, const int64_t *grid, net_gradients *gradients,
                    tg_tensor *y) {
    const tg_fno_config *config = tg_fno_get_config(fno);
    const tg_loss_config loss = tg_loss_config_default();
    double value = 0.0;
    tg_tensor x = net_random(ctx, config, 2, 1, grid, 1);
    tg_tensor target = net_random(ctx, config, 2, 1, grid, 2);
    *y = net_random(ctx, config, 2, 1, grid, 3);
    net_ok(ctx, tg_fno_prepare(fno, 2, grid, true));
    *gradients = net_gradients_make(ctx, fno);
    const tg_grad_sink sink = net_sink(gradients);
    net_ok(ctx, tg_fno_loss_backward(fno, &x, &target, &loss, &sink, &value));
    assert_int_equal(gradients->received, tg_fno_param_count(fno));
    net_ok(ctx, tg_fno_prepare(fno, 2, grid, false));
    net_ok(ctx, tg_fno_forward(fno, &x, y));
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&target);
}

/* All other parameters of the dense network are those of the factorized one. */
static void copy_others(tg_fno *dense, const tg_fno *fno) {
    for (int i = 0; i < tg_fno_param_count(dense); i++) {
        const tg_fno_param to = tg_fno_get_param(dense, i);
        for (int j = 0; j < tg_fno_param_count(fno); j++) {
            const tg_fno_param from = tg_fno_get_param(fno, j);
            if (strcmp(from.name, to.name) == 0 && tg_shape_equal(&from.shape, &to.shape)) {
                memcpy(to.weight.data, from.weight.data, tg_tensor_bytes(&from.weight));
            }
        }
    }
}

static pair pair_make(const char *backend, int c, const int64_t *grid) {
    pair p = {.ctx = net_context(backend, 2)};
    const tg_fno_config config = config_of(p.ctx, cases[c].keys, "\"dtype\": \"f64\"");
    const tg_fno_config dense = config_of(p.ctx, "", "\"dtype\": \"f64\"");
    net_ok(p.ctx, tg_fno_create(p.ctx, &config, 5, &p.fno));
    net_ok(p.ctx, tg_fno_create(p.ctx, &dense, 6, &p.dense));
    copy_others(p.dense, p.fno);
    for (int l = 0; l < LAYERS; l++) {
        const factors f = factors_of(p.fno, cases[c].form, l);
        const factors whole = factors_of(p.dense, "dense", l);
        assert_int_equal(whole.count, 1);
        copying copy = {&f, (number *)(uintptr_t)whole.at[0]};
        each_entry(copy_entry, &copy);
    }
    step_of(p.ctx, p.fno, grid, &p.gradients, &p.y);
    step_of(p.ctx, p.dense, grid, &p.dense_gradients, &p.dense_y);
    return p;
}

static void pair_free(pair *p) {
    net_gradients_free(&p->gradients);
    net_gradients_free(&p->dense_gradients);
    tg_tensor_destroy(&p->y);
    tg_tensor_destroy(&p->dense_y);
    tg_fno_destroy(&p->fno);
    tg_fno_destroy(&p->dense);
    tg_context_destroy(&p->ctx);
}

/* The gradient of factor number k by the definition: W is linear in it. */
static void expect_gradient(const pair *p, const factors *f, int k, const number *dense) {
    const int64_t n = tg_shape_numel(&f->shape[k]);
    const number *got = p->gradients.gradient[f->param[k]].data;
    number *unit = calloc((size_t)n, sizeof *unit);
    double error = 0.0, size = 0.0;
    assert_non_null(unit);
    for (int64_t i = 0; i < n; i++) {
        factors with = *f;
        unit[i] = 1.0;
        with.at[k] = unit;
        summing s = {&with, dense, 0.0};
        each_entry(sum_entry, &s);
        unit[i] = 0.0;
        error += creal((got[i] - s.sum) * conj(got[i] - s.sum));
        size += creal(s.sum * conj(s.sum));
    }
    free(unit);
    if (!(sqrt(error) <= 1e-12 * sqrt(size)) || !(size > 0.0)) {
        fail_msg("%s, factor %d: off by %g of %g", f->form, k, sqrt(error), sqrt(size));
    }
}

static void as_dense(void **state) {
    (void)state;
    static const char *const backends[] = {"ref", "cpu"};
    static const int64_t grids[][2] = {{8, 10}, {3, 4}}; /* the second has fewer frequencies */
    for (int i = 0; i < 4 * T_COUNT(cases); i++) {
        const int c = i / 4;
        pair p = pair_make(backends[i % 2], c, grids[i / 2 % 2]);
        assert_true(net_error(&p.y, &p.dense_y) <= 1e-13);
        for (int l = 0; l < LAYERS; l++) {
            const factors f = factors_of(p.fno, cases[c].form, l);
            const factors whole = factors_of(p.dense, "dense", l);
            for (int k = 0; k < f.count; k++) {
                expect_gradient(&p, &f, k, p.dense_gradients.gradient[whole.param[0]].data);
            }
        }
        pair_free(&p);
    }
}

/* ---- other ways to the same numbers ---- */

static net_gradients gradients_with(const char *backend, int threads, int c, const char *more) {
    tg_context *ctx = net_context(backend, threads);
    const tg_fno_config config = config_of(ctx, cases[c].keys, more);
    const int64_t grid[] = {8, 10};
    tg_fno *fno = NULL;
    tg_tensor y = {0};
    net_gradients gradients;
    net_ok(ctx, tg_fno_create(ctx, &config, 5, &fno));
    step_of(ctx, fno, grid, &gradients, &y);
    tg_tensor_destroy(&y);
    tg_fno_destroy(&fno);
    return gradients;
}

static void gradients_end(net_gradients *gradients) {
    tg_context *ctx = gradients->ctx;
    net_gradients_free(gradients);
    tg_context_destroy(&ctx);
}

static void expect_near(const net_gradients *a, const net_gradients *b, double tolerance,
                        const char *what) {
    assert_int_equal(a->count, b->count);
    for (int i = 0; i < a->count; i++) {
        const double error = net_error(&a->gradient[i], &b->gradient[i]);
        if (!(error <= tolerance)) {
            fail_msg("%s: gradient %d off by %g", what, i, error);
        }
    }
}

static void other_ways(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        double tolerance;
    } ways[] = {
        {"", 0.0},
        {"\"activation_checkpoint\": \"block\"", 1e-5},
        {"\"activation_checkpoint\": \"minimal\"", 1e-5},
        {"\"micro_batch\": 1", 1e-5},
        {"\"saved_precision\": \"8bit\"", 0.2},
        {"\"fno_block_precision\": \"mixed\", \"fno_block_weights_precision\": \"bf16\"", 0.2},
        {"\"fno_block_precision\": \"half\", \"activation_precision\": \"bf16\"", 0.3}};
    for (int c = 0; c < T_COUNT(cases); c++) {
        net_gradients full = gradients_with("cpu", 2, c, "");
        net_gradients ref = gradients_with("ref", 1, c, "");
        expect_near(&full, &ref, 2e-5, cases[c].keys);
        for (int way = 0; way < T_COUNT(ways); way++) {
            net_gradients other = gradients_with("cpu", 2, c, ways[way].keys);
            expect_near(&other, &full, ways[way].tolerance, ways[way].keys);
            gradients_end(&other);
        }
        gradients_end(&full);
        gradients_end(&ref);
    }
}

/* ---- ranks ---- */

static void shares(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        int param; /* of the first weight */
        tg_shape shape;
    } wanted[] = {
        {"\"factorization\": \"tucker\", \"rank\": 0.3", 0, {4, {6, 6, 6, 4}}},
        {"\"factorization\": \"tucker\", \"rank\": 1.0", 0, {4, {8, 8, 8, 5}}},
        {"\"factorization\": \"tucker\", \"rank\": 3", 4, {2, {5, 3}}},
        {"\"factorization\": \"tucker\", \"rank\": 1e-6", 0, {4, {1, 1, 1, 1}}},
        {"\"factorization\": \"tucker\", \"rank\": 6",
         4,
         {2, {5, 5}}}, /* not more than there are */
        {"\"factorization\": \"tucker\", \"rank\": 0.3, \"fixed_rank_modes\": [0]", 1, {2, {8, 8}}},
        {"\"factorization\": \"cp\", \"rank\": 0.3", 0, {1, {26}}},
        {"\"factorization\": \"tt\", \"rank\": 0.3", 2, {3, {7, 8, 6}}},
        {"\"factorization\": \"tt\", \"rank\": 5", 0, {3, {1, 8, 5}}},
        {"\"factorization\": \"tt\", \"rank\": 20", 0, {3, {1, 8, 20}}}, /* as it is */
        {"\"separable\": true", 0, {3, {8, 8, 5}}},
    };
    tg_context *ctx = net_context("ref", 1);
    for (int i = 0; i < T_COUNT(wanted); i++) {
        char json[300];
        snprintf(json, sizeof json,
                 "{\"n_modes\": [8, 8], \"hidden_channels\": 8, \"n_layers\": 1, %s}",
                 wanted[i].keys);
        const tg_fno_config config = net_config(ctx, json);
        tg_fno *fno = NULL;
        net_ok(ctx, tg_fno_outline(ctx, &config, &fno));
        const factors f = factors_of(fno, "", 0);
        if (!tg_shape_equal(&f.shape[wanted[i].param], &wanted[i].shape)) {
            char text[96];
            fail_msg("%s: %s", wanted[i].keys,
                     tg_shape_text(&f.shape[wanted[i].param], text, sizeof text));
        }
        tg_fno_destroy(&fno);
    }
    tg_context_destroy(&ctx);
}

static void refused(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"\"factorization\": \"tucker\", \"rank\": [2, 2]", "a list of 2"},
        {"\"factorization\": \"tucker\", \"rank\": [2, 2, 5, 2]", "from 1 to 4"},
        {"\"factorization\": \"tucker\", \"rank\": [2, 2.5, 2, 2]", "2.5 for mode 1"},
        {"\"factorization\": \"tt\", \"rank\": [2, 2, 2, 2, 1]", "from 1 to 1"},
        {"\"factorization\": \"tucker\", \"fixed_rank_modes\": [4]", "modes 0 to 3"},
        {"\"factorization\": \"tucker\", \"separable\": true", "small as it is"},
    };
    tg_context *ctx = net_context("ref", 1);
    for (int i = 0; i < T_COUNT(bad); i++) {
        const tg_fno_config config = config_of(ctx, bad[i][0], "");
        tg_fno *fno = NULL;
        assert_int_equal(tg_fno_create(ctx, &config, 0, &fno), TG_E_CONFIG);
        assert_null(fno);
        if (!strstr(tg_context_error(ctx), bad[i][1])) {
            fail_msg("%s: %s", bad[i][0], tg_context_error(ctx));
        }
    }
    tg_context_destroy(&ctx);
}

/* Numbers of a weight deviate as those of a dense one do, by 1 / channels in the square, whatever
 * it is made of; of TT by the ranks less. */
static void deviation(void **state) {
    (void)state;
    tg_context *ctx = net_context("cpu", 2);
    static const char *const keys[][2] = {
        {"\"factorization\": \"tucker\", \"rank\": 0.4", "tucker"},
        {"\"factorization\": \"cp\", \"rank\": 0.6", "cp"},
        {"\"factorization\": \"tt\", \"rank\": 0.4", "tt"}};
    for (int i = 0; i < T_COUNT(keys); i++) {
        double sum = 0.0, expected = 0.0;
        enum { SEEDS = 1000 };
        for (int seed = 0; seed < SEEDS; seed++) {
            const tg_fno_config config = config_of(ctx, keys[i][0], "\"dtype\": \"f64\"");
            tg_fno *fno = NULL;
            number w[CHANNELS * CHANNELS * 4 * 3];
            net_ok(ctx, tg_fno_create(ctx, &config, (uint64_t)seed, &fno));
            const factors f = factors_of(fno, keys[i][1], 0);
            copying copy = {&f, w};
            each_entry(copy_entry, &copy);
            for (int k = 0; k < T_COUNT(w); k++) {
                sum += creal(w[k] * conj(w[k])) / T_COUNT(w);
            }
            expected = 1.0 / CHANNELS;
            for (int k = 0; k < f.count && strcmp(f.form, "tt") == 0; k++) {
                expected /= (double)f.shape[k].dim[0];
            }
            tg_fno_destroy(&fno);
        }
        const double found = sum / SEEDS;
        if (!(fabs(found - expected) <= 0.15 * expected)) { /* tails are heavy */
            fail_msg("%s: the mean square is %g, not %g", keys[i][0], found, expected);
        }
    }
    tg_context_destroy(&ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_dense), cmocka_unit_test(other_ways), cmocka_unit_test(shares),
        cmocka_unit_test(refused),  cmocka_unit_test(deviation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
