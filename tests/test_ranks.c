/* Automatic ranks: a known multilinear rank is found, budgets hold, the choice is no worse than
 * equal ranks of the same bytes, moments go with their coordinates. That a resumed optimizer has
 * the same bits is in test_optim.c and test_train.sh. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optim/auto_rank/rank_candidates.h"
#include "optim/auto_rank/state_pool.h"
#include "support/cmocka.h"
#include "support/files.h"
#include "support/raw.h"
#include "tgrad/tgrad.h"

static const char *const backends[] = {"ref", "cpu"};

/* ---- the choice alone, from made-up spectra ---- */

enum { TENSORS = 3, WIDTH = 40 };

typedef struct made {
    tg_spectrum spectrum[TENSORS];
    const tg_spectrum *list[TENSORS];
    double values[TENSORS][WIDTH];
    void *scratch;
} made;

static double uniform(uint64_t *state) {
    return (double)(test_random(state) >> 11) * 0x1p-53;
}

/* Spectra that fall at their own rate in every mode; a sparse set leaves less energy. */
static void make_spectra(made *m, uint64_t *state) {
    int64_t points = 0;
    for (int t = 0; t < TENSORS; t++) {
        tg_spectrum *s = &m->spectrum[t];
        *s = (tg_spectrum){.ndim = 1 + (int)(test_random(state) % 4), .values = m->values[t]};
        s->energy = 0.1 + 100.0 * uniform(state);
        int64_t numel = 1;
        for (int d = 0; d < s->ndim; d++) {
            s->dim[d] = s->max_rank[d] = 1 + (int64_t)(test_random(state) % 10);
            numel *= s->dim[d];
        }
        tg_rank_limits(&(tg_shape){s->ndim, {s->dim[0], s->dim[1], s->dim[2], s->dim[3]}}, 0,
                       s->max_rank);
        s->kept = test_random(state) % 2 == 0 ? 0 : 1 + numel / 16;
        const double left = s->energy * (s->kept == 0 ? 1.0 : 0.8);
        for (int d = 0; d < s->ndim; d++) {
            double *v = tg_spectrum_mode(s, d), sum = 0.0;
            const double rate = 0.2 + 0.79 * uniform(state);
            for (int64_t i = 0; i < s->dim[d]; i++) {
                v[i] = i < s->max_rank[d] ? pow(rate, (double)i) : 0.0;
                sum += v[i];
            }
            for (int64_t i = 0; i < s->dim[d]; i++) {
                v[i] *= left / sum;
            }
        }
        points += tg_rank_candidates(s);
        m->list[t] = s;
    }
    m->scratch = malloc(tg_ranks_scratch(TENSORS, points));
    assert_non_null(m->scratch);
}

static const tg_optim_config configs[] = {{.complex_adam = TG_ADAM_MODULUS},
                                          {.state_precision = TG_STATES_HALF},
                                          {.state_precision = TG_STATES_8BIT}};
static const tg_state_kind kind = {.config = &configs[0], .dtype = TG_C64};

static size_t padded(int64_t n, size_t size) {
    return ((size_t)n * size + 15) / 16 * 16;
}

/* Bytes of moments and factors by hand: each array is padded to 16, and bytes have scales. */
static size_t bytes_of(const tg_state_kind *k, const tg_spectrum *s, const int64_t *rank,
                       int64_t count) {
    int64_t entries = 1;
    size_t bytes = 0;
    for (int d = 0; d < s->ndim; d++) {
        bytes += padded(s->dim[d] * rank[d], 8);
        entries *= s->dim[d];
    }
    if (k->config->state_precision == TG_STATES_HALF) {
        return bytes + padded(count, 4) + padded(count, 2);
    }
    if (k->config->state_precision == TG_STATES_8BIT && entries >= 4096) {
        return bytes + padded(2 * count, 1) + padded((2 * count + 255) / 256, 4) +
               padded(count, 1) + padded((count + 255) / 256, 4);
    }
    return bytes + padded(count, 8) + padded(count, 4);
}

static int64_t core_of(const tg_spectrum *s, const tg_rank_allocation *c) {
    int64_t core = 1;
    for (int d = 0; d < s->ndim; d++) {
        core *= c->rank[d];
    }
    return core;
}

/* The bound by its definition. */
static double bound_of(const tg_spectrum *s, const int64_t *rank) {
    double lost = 0.0, whole = 0.0;
    for (int d = 0; d < s->ndim; d++) {
        double all = 0.0;
        for (int64_t i = 0; i < s->dim[d]; i++) {
            const double value = tg_spectrum_mode(s, d)[i];
            lost += i >= rank[d] ? value : 0.0;
            all += value;
        }
        whole = fmax(whole, all);
    }
    return fmin(lost, whole) / s->energy;
}

/* No mode has more directions than the others together have entries. */
static bool is_possible(const tg_spectrum *s, const int64_t *rank) {
    bool possible = true;
    for (int d = 0; d < s->ndim; d++) {
        int64_t others = 1;
        for (int k = 0; k < s->ndim; k++) {
            others *= k == d ? 1 : rank[k];
        }
        possible = possible && rank[d] >= 1 && rank[d] <= others;
    }
    return possible;
}

static void test_choice_fits_and_is_consistent(void **state) {
    (void)state;
    uint64_t seed = 4;
    for (int round = 0; round < 300; round++) {
        made m;
        make_spectra(&m, &seed);
        const tg_state_kind k = {.config = &configs[round % 3], .dtype = TG_C64};
        size_t least = 0, whole = 0;
        for (int t = 0; t < TENSORS; t++) {
            least += tg_ranks_equal(&k, m.list[t], 0).bytes;
            whole += tg_ranks_equal(&k, m.list[t], SIZE_MAX).bytes;
        }
        for (size_t n = 0; n < 8; n++) {
            const size_t capacity = least + (whole - least) * n / 7;
            const double tolerance = n % 3 == 0 ? 0.0 : 0.3;
            tg_rank_allocation c[TENSORS], again[TENSORS];
            assert_true(tg_ranks_allocate(&k, m.list, TENSORS, tolerance, capacity, m.scratch, c));
            assert_true(
                tg_ranks_allocate(&k, m.list, TENSORS, tolerance, capacity, m.scratch, again));
            assert_memory_equal(c, again, sizeof c);
            size_t total = 0;
            for (int t = 0; t < TENSORS; t++) {
                const tg_spectrum *s = m.list[t];
                assert_int_equal(c[t].count, core_of(s, &c[t]) + s->kept);
                const double bound = bound_of(s, c[t].rank);
                assert_true(fabs(bound - c[t].error) <= 1e-12);
                assert_int_equal(c[t].bytes, bytes_of(&k, s, c[t].rank, c[t].count));
                total += c[t].bytes;
                for (int d = 0; d < s->ndim; d++) {
                    assert_in_range(c[t].rank[d], 1, s->max_rank[d]);
                }
                if (n == 7) { /* everything fits: the tolerance holds, and nothing is given away */
                    assert_true(c[t].error <= tolerance * tolerance + 1e-15);
                    for (int d = 0; d < s->ndim && tolerance > 0.0; d++) {
                        int64_t fewer[TG_MAX_NDIM];
                        memcpy(fewer, c[t].rank, sizeof fewer);
                        fewer[d]--;
                        assert_true(!is_possible(s, fewer) ||
                                    bound_of(s, fewer) > tolerance * tolerance);
                    }
                }
            }
            assert_true(total <= capacity);
        }
        tg_rank_allocation c[TENSORS];
        assert_false(tg_ranks_allocate(&k, m.list, TENSORS, 0.0, least - 16, m.scratch, c));
        free(m.scratch);
    }
}

/* The same part of every mode of every tensor: not better either, to the bit, since the choice
 * looks at it itself. */
static void beats_one_part(const made *m, int n, int round) {
    double equal = 0.0, chosen = 0.0;
    size_t capacity = 0;
    tg_rank_allocation c[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        const tg_spectrum *s = m->list[t];
        const tg_candidate p = tg_candidate_equal(&kind, s, (double)(n * 100) / 1024);
        const int64_t rank[4] = {p.rank[0], p.rank[1], p.rank[2], p.rank[3]};
        assert_true(fabs(p.error - bound_of(s, rank)) <= 1e-12);
        equal += p.error;
        capacity += p.bytes;
    }
    assert_true(tg_ranks_allocate(&kind, m->list, TENSORS, 0.0, capacity, m->scratch, c));
    for (int t = 0; t < TENSORS; t++) {
        chosen += c[t].error;
    }
    if (!(chosen <= equal)) {
        fail_msg("round %d, %d/10: %g, one part %g", round, n, chosen, equal);
    }
}

/* In the sum over the tensors the choice beats ranks that are the same share of all modes of all
 * tensors, in as many bytes. */
static void test_choice_beats_equal_shares(void **state) {
    (void)state;
    uint64_t seed = 9;
    for (int round = 0; round < 200; round++) {
        made m;
        make_spectra(&m, &seed);
        for (int n = 1; n <= 10; n++) {
            double equal = 0.0, chosen = 0.0;
            size_t capacity = 0;
            for (int t = 0; t < TENSORS; t++) {
                const tg_spectrum *s = m.list[t];
                const size_t full = tg_ranks_equal(&kind, s, SIZE_MAX).bytes;
                const tg_rank_allocation e = tg_ranks_equal(&kind, s, full * (size_t)n / 10);
                equal += bound_of(s, e.rank);
                capacity += e.bytes;
            }
            tg_rank_allocation c[TENSORS];
            assert_true(tg_ranks_allocate(&kind, m.list, TENSORS, 0.0, capacity, m.scratch, c));
            for (int t = 0; t < TENSORS; t++) {
                chosen += c[t].error;
            }
            if (!(chosen <= equal + 1e-12)) {
                fail_msg("round %d, %d/10: %g, equal ranks %g", round, n, chosen, equal);
            }
            beats_one_part(&m, n, round);
        }
        free(m.scratch);
    }
}

/* ---- optimizers ---- */

static const tg_shape shapes[2] = {{4, {9, 8, 12, 5}}, {4, {9, 8, 12, 5}}};

enum { NUMEL = 9 * 8 * 12 * 5, KEPT = 87 /* 2 % of them, rounded up */ };

typedef struct rig {
    tg_context *ctx;
    tg_optim *optim;
    tg_optim_config group;
    tg_optim_param params[2];
    tg_optim_setup setup;
    float weight[2][2 * NUMEL], grad[2][2 * NUMEL];
} rig;

static void begin(rig *r, const char *backend, const char *const *settings) {
    memset(r, 0, sizeof *r);
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 2};
    assert_int_equal(tg_context_create(&config, &r->ctx), TG_OK);
    assert_int_equal(tg_backend_select(r->ctx, backend), TG_OK);
    r->group = tg_optim_config_default();
    assert_int_equal(tg_optim_config_set(r->ctx, &r->group, "update_proj_gap", "4"), TG_OK);
    for (int i = 0; settings[i]; i += 2) {
        assert_int_equal(tg_optim_config_set(r->ctx, &r->group, settings[i], settings[i + 1]),
                         TG_OK);
    }
    r->params[0] = (tg_optim_param){"first", TG_C64, shapes[0], 0};
    r->params[1] = (tg_optim_param){"second", TG_C64, shapes[1], 0};
    r->setup = (tg_optim_setup){.size = sizeof(tg_optim_setup),
                                .groups = &r->group,
                                .group_count = 1,
                                .params = r->params,
                                .param_count = 2,
                                .seed = 5};
    const tg_status status = tg_optim_create(r->ctx, &r->setup, &r->optim);
    if (status != TG_OK) {
        fail_msg("%s", tg_context_error(r->ctx));
    }
}

static void end(rig *r) {
    tg_optim_destroy(&r->optim);
    tg_context_destroy(&r->ctx);
}

static void step(rig *r) {
    for (int i = 1; i >= 0; i--) { /* last layer first, as a backward pass */
        assert_int_equal(raw_optim_step(r->optim, i, r->grad[i], r->weight[i]), TG_OK);
    }
}

static double normal(uint32_t stream, uint64_t i) {
    const tg_rng rng = {.seed = 11, .purpose = TG_RNG_TEST, .step = stream};
    return tg_rng_normal(&rng, i);
}

/* out (left, n, right) = u (n, r) times in (left, r, right), complex in, random u of this stream.
 */
static void widen_mode(const double *in, int64_t left, int64_t r, int64_t right, uint32_t stream,
                       int64_t n, double *out) {
    memset(out, 0, (size_t)(left * n * right) * 2 * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k < r; k++) {
            const double u = normal(stream, (uint64_t)(i * 64 + k));
            for (int64_t l = 0; l < left; l++) {
                for (int64_t x = 0; x < 2 * right; x++) {
                    out[(l * n + i) * 2 * right + x] += u * in[(l * r + k) * 2 * right + x];
                }
            }
        }
    }
}

/* A random core of these ranks that decays by `rate` per index in each mode, times random factors:
 * multilinear rank `rank`. `spikes` single entries on top. */
static void make_gradient(float *g, uint32_t stream, const int64_t *rank, const double *rate,
                          int spikes) {
    static double from[2 * NUMEL], to[2 * NUMEL];
    int64_t size[4], count = 1;
    for (int d = 0; d < 4; d++) {
        size[d] = rank[d];
        count *= rank[d];
    }
    for (int64_t i = 0; i < count; i++) {
        double scale = 1.0;
        for (int64_t d = 3, rest = i; d >= 0; rest /= rank[d], d--) {
            scale *= pow(rate[d], (double)(rest % rank[d]));
        }
        from[2 * i] = scale * normal(stream, 2 * (uint64_t)i);
        from[2 * i + 1] = scale * normal(stream, 2 * (uint64_t)i + 1);
    }
    for (int d = 0; d < 4; d++) {
        int64_t left = 1, right = 1;
        for (int k = 0; k < 4; k++) {
            left *= k < d ? size[k] : 1;
            right *= k > d ? size[k] : 1;
        }
        widen_mode(from, left, size[d], right, 1000 + stream * 4 + (uint32_t)d, shapes[0].dim[d],
                   to);
        size[d] = shapes[0].dim[d];
        memcpy(from, to, sizeof from);
    }
    for (int64_t i = 0; i < 2 * NUMEL; i++) {
        g[i] = (float)from[i];
    }
    for (int s = 0; s < spikes; s++) {
        g[2 * ((37 + 211 * s) % NUMEL)] += 100.0f;
    }
}

static void test_known_rank_is_found(void **state) {
    (void)state;
    static const int64_t ranks[2][4] = {{3, 2, 4, 2}, {2, 5, 3, 3}};
    static const double flat[4] = {0.8, 0.8, 0.8, 0.8};
    static const char *const settings[] = {"name",           "lowrank", "rank", "auto",
                                           "rank_tolerance", "1e-3",    NULL};
    for (int be = 0; be < 2; be++) {
        rig r;
        begin(&r, backends[be], settings);
        make_gradient(r.grad[0], 1, ranks[0], flat, 0);
        make_gradient(r.grad[1], 2, ranks[1], flat, 0);
        step(&r); /* full ranks, and the spectra */
        assert_int_equal(tg_optim_get_projection(r.optim, 0).values, NUMEL);
        step(&r);
        for (int i = 0; i < 2; i++) {
            const tg_optim_projection p = tg_optim_get_projection(r.optim, i);
            assert_int_equal(p.ranks.ndim, 4);
            for (int d = 0; d < 4; d++) {
                assert_int_equal(p.ranks.dim[d], ranks[i][d]);
            }
            assert_true(p.error <= 1e-3 && p.bound <= 1e-3);
            assert_int_equal(p.refreshed, 1);
        }
        /* Another tensor: the next refresh finds its ranks, larger and smaller ones. */
        make_gradient(r.grad[0], 3, ranks[1], flat, 0);
        make_gradient(r.grad[1], 4, ranks[0], flat, 0);
        for (int i = 0; i < 4; i++) {
            step(&r);
        }
        for (int i = 0; i < 2; i++) {
            const tg_optim_projection p = tg_optim_get_projection(r.optim, i);
            for (int d = 0; d < 4; d++) {
                assert_int_equal(p.ranks.dim[d], ranks[1 - i][d]);
            }
            assert_true(p.error <= 1e-3);
            assert_int_equal(p.refreshed, 5);
        }
        end(&r);
    }
}

/* The sparse set keeps the share that was asked for, with spikes on top of a low-rank part and
 * without: ranks alone are allocated. */
static void test_sparse_share_is_kept(void **state) {
    (void)state;
    static const int64_t rank[4] = {3, 2, 4, 2};
    static const double flat[4] = {0.8, 0.8, 0.8, 0.8};
    static const char *const settings[] = {"name", "tensorgrad",     "sparse_ratio", "0.02", "rank",
                                           "auto", "rank_tolerance", "0.02",         NULL};
    rig r;
    begin(&r, "cpu", settings);
    for (int spikes = 0; spikes < 2; spikes++) {
        make_gradient(r.grad[0], 1, rank, flat, spikes ? 22 : 0);
        make_gradient(r.grad[1], 2, rank, flat, spikes ? 22 : 0);
        for (int i = 0; i < 6; i++) {
            step(&r);
        }
        for (int i = 0; i < 2; i++) {
            const tg_optim_projection p = tg_optim_get_projection(r.optim, i);
            assert_true(p.error <= 0.02);
            assert_int_equal(p.kept, KEPT);
        }
    }
    end(&r);
}

/* How moments are kept, and what those of a dense parameter take: bytes, and a scale for 256. */
static const struct {
    const char *name;
    double dense;
} forms[] = {{"full", NUMEL * 12.0},
             {"half", NUMEL * 6.0},
             {"8bit", NUMEL * 3.0 + 4.0 * ((2 * NUMEL + 255) / 256 + (NUMEL + 255) / 256)}};

static size_t state_held(const rig *r) {
    const tg_mem_usage usage = tg_context_memory(r->ctx, TG_HOST);
    return usage.current[TG_MEM_OPTIMIZER] + usage.current[TG_MEM_FACTORS] +
           usage.current[TG_MEM_INDICES];
}

/* Orders in which the set does not come first; budgets follow. */
static const char *const orders[2][16] = {{"name", "tensorgrad", "proj_type", "low_rank",
                                           "second_proj_type", "unstructured_sparse",
                                           "second_sparse_ratio", "0.02", "rank", "auto"},
                                          {"name", "tensorgrad", "optimizer_type", "tensorgrad_sum",
                                           "sparse_ratio", "0.02", "rank", "auto"}};

/* The same where the set does not come first: what it leaves of the residual is known from the
 * refresh before, so that less is lost than at the start, and not more than was predicted. */
static void test_sparse_share_behind_is_kept(void **state) {
    (void)state;
    static const int64_t rank[4] = {3, 2, 4, 2};
    static const double flat[4] = {0.8, 0.8, 0.8, 0.8};
    for (int order = 0; order < 2; order++) {
        rig r;
        const char *settings[20] = {"memory_budget", "0.12"};
        memcpy(settings + 2, orders[order], sizeof orders[order]);
        begin(&r, "cpu", settings);
        make_gradient(r.grad[0], 1, rank, flat, 22);
        make_gradient(r.grad[1], 2, rank, flat, 22);
        double lost[3] = {0.0};
        for (int n = 0; n < 3; n++) { /* equal ranks, the first choice, the second one */
            for (int s = 0; s < (n == 2 ? 4 : 1); s++) {
                step(&r);
            }
            for (int i = 0; i < 2; i++) {
                const tg_optim_projection p = tg_optim_get_projection(r.optim, i);
                lost[n] += p.error * p.error;
                assert_int_equal(p.kept, KEPT);
                assert_true(p.error <= p.bound && p.error >= 0.5 * (n > 0 ? p.bound : 0.0));
            }
        }
        assert_true(lost[1] <= lost[0] && lost[2] < lost[0]);
        end(&r);
    }
}

static void test_budget_is_never_exceeded(void **state) {
    (void)state;
    static const int64_t full[4] = {9, 8, 12, 5};
    static const char *const budgets[] = {"0.1", "0.2", "0.5", "1", "20KB", "30 KiB"};
    static const double bytes[] = {0.1, 0.2, 0.5, 1.0, 20e3, 30 * 1024.0};
    for (size_t b = 0; b < 3 * sizeof budgets / sizeof budgets[0]; b++) {
        const char *const settings[] = {"name",
                                        "tensorgrad",
                                        "sparse_ratio",
                                        "0.02",
                                        "rank",
                                        "auto",
                                        "memory_budget",
                                        budgets[b / 3],
                                        "state_precision",
                                        forms[b % 3].name,
                                        NULL};
        rig r;
        begin(&r, "cpu", settings);
        const double dense = 2.0 * forms[b % 3].dense;
        const double budget = bytes[b / 3] <= 1.0 ? bytes[b / 3] * dense : bytes[b / 3];
        const size_t held = state_held(&r);
        const size_t total = tg_context_memory(r.ctx, TG_HOST).current_total;
        assert_true((double)held <= budget);
        int64_t changes = 0;
        for (uint32_t n = 0; n < 6; n++) {
            const double rate[4] = {0.3 + 0.1 * n, 0.9 - 0.1 * n, 0.5, 0.4 + 0.1 * n};
            make_gradient(r.grad[0], n, full, rate, (int)n);
            make_gradient(r.grad[1], 50 + n, full, (double[4]){rate[3], rate[2], rate[1], rate[0]},
                          0);
            for (int i = 0; i < 4; i++) {
                step(&r);
                size_t used = 0;
                for (int k = 0; k < 2; k++) {
                    const tg_optim_projection p = tg_optim_get_projection(r.optim, k);
                    used += p.bytes;
                    assert_true(p.error >= 0.0 && p.error <= 1.0);
                }
                assert_true(used <= held);
                assert_int_equal(tg_context_memory(r.ctx, TG_HOST).current_total, total);
                assert_int_equal(state_held(&r), held);
            }
            changes = r.optim->moves;
        }
        assert_true(changes > 2);
        end(&r);
    }
    rig r;
    const char *const tiny[] = {"name", "lowrank", "rank", "auto", "memory_budget", "200", NULL};
    r.ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &r.ctx), TG_OK);
    r.group = tg_optim_config_default();
    for (int i = 0; tiny[i]; i += 2) {
        assert_int_equal(tg_optim_config_set(r.ctx, &r.group, tiny[i], tiny[i + 1]), TG_OK);
    }
    r.params[0] = (tg_optim_param){"first", TG_C64, shapes[0], 0};
    r.setup = (tg_optim_setup){.size = sizeof(tg_optim_setup),
                               .groups = &r.group,
                               .group_count = 1,
                               .params = r.params,
                               .param_count = 1};
    assert_int_equal(tg_optim_create(r.ctx, &r.setup, &r.optim), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(r.ctx), "opt.memory_budget: 200 bytes are too few"));
    tg_context_destroy(&r.ctx);
}

/* The bytes of fixed equal ranks as a budget, each array padded to 16 as in a pool: the error of
 * the automatic ones is no larger. */
static void test_error_is_not_worse_than_equal_ranks(void **state) {
    (void)state;
    static const int64_t full[4] = {9, 8, 12, 5};
    static const char *const shares[] = {"0.01", "0.05", "0.15", "0.3", "0.45", "0.6", "0.8"};
    for (uint32_t n = 0; n < 6; n++) {
        const double rate[2][4] = {{0.3 + 0.1 * n, 0.9 - 0.1 * n, 0.5, 0.8},
                                   {0.7, 0.2 + 0.1 * n, 0.9, 0.6 - 0.05 * n}};
        for (int k = 0; k < 7; k++) {
            const char *const fixed[] = {"name", "lowrank", "rank", shares[k], NULL};
            rig f, a;
            char budget[32];
            double error[2] = {0.0, 0.0};
            begin(&f, "cpu", fixed);
            const size_t bytes = state_held(&f) + (size_t)(2 * (2 + 4) * TG_REGION_ALIGNMENT);
            snprintf(budget, sizeof budget, "%zu", bytes);
            const char *const automatic[] = {"name",          "lowrank", "rank", "auto",
                                             "memory_budget", budget,    NULL};
            begin(&a, "cpu", automatic);
            assert_true(state_held(&a) <= bytes);
            for (int i = 0; i < 2; i++) {
                make_gradient(f.grad[i], n * 2 + (uint32_t)i, full, rate[i], 0);
                memcpy(a.grad[i], f.grad[i], sizeof a.grad[i]);
            }
            step(&f);
            step(&a);
            step(&a);
            for (int i = 0; i < 2; i++) {
                error[0] += pow(tg_optim_get_projection(f.optim, i).error, 2.0);
                error[1] += pow(tg_optim_get_projection(a.optim, i).error, 2.0);
            }
            if (!(error[1] <= error[0] * 1.0001 + 1e-9)) {
                fail_msg("case %u, share %s: %g, equal ranks %g", n, shares[k], error[1], error[0]);
            }
            end(&f);
            end(&a);
        }
    }
}

/* ---- moments ---- */

typedef struct box {
    int64_t kept, rank[4];
} box;

static box box_of(const tg_slot *slot) {
    const tg_projector *p = slot->projector;
    box b = {.kept = p->sparse ? p->sparse->count : 0};
    memcpy(b.rank, p->low_rank->modes.rank, sizeof b.rank);
    return b;
}

static int64_t clamp(int64_t i, int64_t n) {
    return i < n ? i : n - 1;
}

/* Moments as reals, and how far off each may be after a move: bytes are rounded again in the block
 * that they come to lie in, twice if some ranks fall and others grow. */
typedef struct reals {
    float m[4 * NUMEL], v[2 * NUMEL]; /* of v the roots */
    float m_off, v_off;
} reals;

static void read_moments(const tg_slot *slot, reals *out) {
    const tg_moments *s = &slot->moments;
    memset(out, 0, sizeof *out);
    for (int second = 0; second < 2; second++) {
        const void *from = s->at[second].memory;
        const int64_t n = s->at[second].reals;
        float *to = second ? out->v : out->m;
        if (s->form == TG_STATE_8BIT) {
            const float *scale = s->at[second].scale;
            float most = 0.0f; /* of any block that it may have been in */
            for (int64_t i = 0; i < tg_state_scales(tg_moments_codec(s), n); i++) {
                most = fmaxf(most, scale[i]);
            }
            tg_moments_codec(s)->decode(second == 1, n, from, scale, to);
            *(second ? &out->v_off : &out->m_off) = most * (second ? 0.0036f : 0.0071f);
        }
        for (int64_t i = 0; i < n; i++) {
            if (s->form != TG_STATE_8BIT) {
                to[i] = (float)tg_load(s->form == TG_STATE_BF16 ? TG_BF16 : TG_F32, from, i).re;
            }
            to[i] = second ? sqrtf(to[i]) : to[i];
        }
    }
}

static void expect_near(float found, float expected, float off) {
    if (!(fabsf(found - expected) <= off)) {
        fail_msg("%g, expected %g to %g", (double)found, (double)expected, (double)off);
    }
}

static int64_t core_at(const tg_slot *slot, const box *b) {
    return slot->projector->sparse == &slot->projector->branch[0] ? b->kept : 0;
}

static int64_t set_at(const tg_slot *slot, const box *b) {
    return core_at(slot, b) ? 0 : b->rank[0] * b->rank[1] * b->rank[2] * b->rank[3];
}

/* Every coordinate after a choice has what it had, or what new ones get. */
static void check_moments(const tg_slot *slot, const box *old, const reals *before) {
    static reals now;
    const box size = box_of(slot);
    read_moments(slot, &now);
    const float m_off = 2.0f * fmaxf(now.m_off, before->m_off);
    const float v_off = 2.0f * fmaxf(now.v_off, before->v_off);
    for (int64_t i = 0; i < size.kept; i++) {
        const int64_t at = set_at(slot, &size) + i, from = set_at(slot, old) + i;
        for (int part = 0; part < 2; part++) {
            expect_near(now.m[2 * at + part], before->m[2 * from + part], m_off);
        }
        expect_near(now.v[at], before->v[from], v_off);
    }
    for (int64_t i = 0; i < slot->count - size.kept; i++) {
        const int64_t at = core_at(slot, &size) + i;
        int64_t from = 0, rest = i, stride = 1;
        bool is_new = false;
        for (int d = 3; d >= 0; rest /= size.rank[d], d--) {
            const int64_t index = rest % size.rank[d];
            is_new = is_new || index >= old->rank[d];
            from += clamp(index, old->rank[d]) * stride;
            stride *= old->rank[d];
        }
        from += core_at(slot, old);
        for (int part = 0; part < 2; part++) {
            expect_near(now.m[2 * at + part], is_new ? 0.0f : before->m[2 * from + part],
                        is_new ? 0.0f : m_off);
        }
        expect_near(now.v[at], before->v[from], v_off);
    }
}

/* A state whose ranks are good but whose counts are not: the ranks in use stay. */
static void refuse_damaged(rig *r, tg_optim *copy) {
    const int64_t before[2] = {copy->slots[0].count, copy->slots[1].count};
    const void *factor = copy->slots[1].projector->low_rank->factor[0];
    tg_archive *archive = NULL;
    assert_int_equal(tg_archive_create(r->ctx, &archive), TG_OK);
    assert_int_equal(tg_optim_save(r->optim, archive), TG_OK);
    ((int64_t *)tg_archive_find(archive, "optim.second.counters")->data)[0] = -1;
    assert_int_equal(tg_optim_load(copy, archive), TG_E_FORMAT);
    assert_int_equal(copy->slots[0].count, before[0]);
    assert_int_equal(copy->slots[1].count, before[1]);
    assert_ptr_equal(copy->slots[1].projector->low_rank->factor[0], factor);
    tg_archive_destroy(&archive);
}

/* The state may be saved between a choice and its refreshes: loaded, the next step is the same. */
static void resume_between(rig *r) {
    static float weight[2][2 * NUMEL];
    const char *path = test_path("between.safetensors");
    tg_optim *copy = NULL;
    assert_int_equal(tg_optim_save_file(r->optim, path), TG_OK);
    assert_int_equal(tg_optim_create(r->ctx, &r->setup, &copy), TG_OK);
    refuse_damaged(r, copy);
    assert_int_equal(tg_optim_load_file(copy, path), TG_OK);
    memcpy(weight, r->weight, sizeof weight);
    for (int i = 1; i >= 0; i--) {
        assert_int_equal(raw_optim_step(copy, i, r->grad[i], weight[i]), TG_OK);
    }
    step(r);
    assert_memory_equal(weight, r->weight, sizeof weight);
    tg_optim_destroy(&copy);
}

static void keep_coordinates(const char *precision, const char *const *order) {
    static const int64_t full[4] = {9, 8, 12, 5};
    const char *settings[20] = {"memory_budget", "0.3", "state_precision", precision};
    memcpy(settings + 4, order, sizeof orders[0]);
    rig r;
    int grown = 0, shrunk = 0;
    begin(&r, "cpu", settings);
    for (uint32_t n = 0; n < 8; n++) {
        static reals before[2];
        const double slow[4] = {0.9, 0.3, 0.9, 0.5}, fast[4] = {0.2, 0.9, 0.3, 0.6};
        make_gradient(r.grad[0], n, full, n % 2 ? slow : fast, 5 * (int)(n % 3));
        make_gradient(r.grad[1], 40 + n, full, n % 2 ? fast : slow, 5 * (int)(n % 2));
        while (!r.optim->slots[0].ranked->is_observed) {
            step(&r);
        }
        box old[2];
        for (int i = 0; i < 2; i++) {
            old[i] = box_of(&r.optim->slots[i]);
            read_moments(&r.optim->slots[i], &before[i]);
        }
        assert_int_equal(tg_auto_rank_allocate(r.optim, &r.optim->slots[1]), TG_OK);
        for (int i = 0; i < 2; i++) {
            const box now = box_of(&r.optim->slots[i]);
            check_moments(&r.optim->slots[i], &old[i], &before[i]);
            for (int d = 0; d < 4; d++) {
                grown += now.rank[d] > old[i].rank[d];
                shrunk += now.rank[d] < old[i].rank[d];
            }
        }
        resume_between(&r);
        step(&r);
    }
    assert_true(grown > 4 && shrunk > 4);
    end(&r);
}

static void test_moments_keep_their_coordinates(void **state) {
    (void)state;
    static const char *const first[16] = {"name", "tensorgrad", "sparse_ratio",
                                          "0.02", "rank",       "auto"};
    for (int i = 0; i < 3; i++) {
        keep_coordinates(forms[i].name, first);
        keep_coordinates(forms[i].name, orders[0]);
    }
}

/* ---- settings ---- */

static tg_status create(rig *r, const char *const *settings) {
    r->group = tg_optim_config_default();
    for (int i = 0; settings[i]; i += 2) {
        assert_int_equal(tg_optim_config_set(r->ctx, &r->group, settings[i], settings[i + 1]),
                         TG_OK);
    }
    tg_optim_destroy(&r->optim);
    return tg_optim_create(r->ctx, &r->setup, &r->optim);
}

static void test_settings(void **state) {
    (void)state;
    static const char *const good[] = {"name",           "lowrank", "rank", "auto",
                                       "rank_tolerance", "0.5",     NULL};
    static const struct {
        const char *settings[12];
        const char *says;
    } bad[] = {
        {{"name", "lowrank", "rank", "auto"}, "opt.rank: auto needs opt.rank_tolerance"},
        {{"name", "lowrank", "memory_budget", "1MB"}, "opt.memory_budget: it is for rank: auto"},
        {{"name", "lowrank", "rank_tolerance", "0.1"}, "opt.rank_tolerance: it is for rank: auto"},
        {{"name", "galore", "rank", "auto", "memory_budget", "1MB"},
         "needs a branch of proj_type low_rank"},
        {{"name", "unstructured", "rank", "auto", "memory_budget", "1MB"},
         "needs a branch of proj_type low_rank"},
        {{"name", "tensorgrad", "rank", "auto", "memory_budget", "1MB", "sparse_type", "randk"},
         "opt.sparse_type: rank: auto weighs the largest entries against ranks"},
        {{"name", "tensorgrad", "rank", "auto", "memory_budget", "1MB", "proj_type", "low_rank",
          "second_proj_type", "structured_sparse"},
         "opt.second_proj_type: rank: auto weighs single entries against ranks"},
    };
    rig r;
    char text[64];
    begin(&r, "cpu", good);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(create(&r, bad[i].settings), TG_E_CONFIG);
        assert_non_null(strstr(tg_context_error(r.ctx), bad[i].says));
    }
    assert_int_equal(create(&r, good), TG_OK);
    for (int i = 0; i < tg_optim_config_count(); i++) {
        if (strcmp(tg_optim_config_key(i), "rank") == 0) {
            assert_string_equal(tg_optim_config_get(&r.group, i, text, sizeof text), "auto");
        }
    }
    assert_int_equal(tg_optim_config_set(r.ctx, &r.group, "memory_budget", "1.5 MiB"), TG_OK);
    assert_true(r.group.memory_budget == 1.5 * 1048576.0);
    assert_int_equal(tg_optim_config_set(r.ctx, &r.group, "memory_budget", "much"), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(r.ctx), "a number of bytes"));
    assert_int_equal(tg_optim_config_set(r.ctx, &r.group, "rank", "automatic"), TG_E_CONFIG);
    r.params[1].dtype = TG_C128;
    assert_int_equal(create(&r, good), TG_E_UNSUPPORTED);
    end(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice_fits_and_is_consistent),
        cmocka_unit_test(test_choice_beats_equal_shares),
        cmocka_unit_test(test_known_rank_is_found),
        cmocka_unit_test(test_sparse_share_is_kept),
        cmocka_unit_test(test_sparse_share_behind_is_kept),
        cmocka_unit_test(test_budget_is_never_exceeded),
        cmocka_unit_test(test_error_is_not_worse_than_equal_ranks),
        cmocka_unit_test(test_moments_keep_their_coordinates),
        cmocka_unit_test(test_settings),
    };
    return cmocka_run_group_tests(tests, NULL, test_files_end);
}
