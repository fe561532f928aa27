/* Updates around a refresh, against Adam written out in double: when refreshes come, moments that
 * are kept or reset with the bias correction, and the counters that are saved with the state. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "optim/optim.h"
#include "support/network.h"
#include "support/raw.h"

enum { N = 24, K = 6, GAP = 3, STEPS = 8 };

static void fill(double *x, int64_t n, uint32_t stream) {
    const tg_rng rng = {.seed = 4, .purpose = TG_RNG_TEST, .step = stream};
    for (int64_t i = 0; i < n; i++) {
        x[i] = tg_rng_normal(&rng, (uint64_t)i);
    }
}

static tg_optim *make(tg_context *ctx, const char *const *settings, tg_dtype dtype,
                      const tg_shape *shape) {
    static const char *const common[] = {"learning_rate", "0.05", "weight_decay",    "0.1",
                                         "min_entries",   "1",    "update_proj_gap", "3"};
    tg_optim_config group = tg_optim_config_default();
    tg_optim *optim = NULL;
    for (int i = 0; settings[i]; i += 2) {
        net_ok(ctx, tg_optim_config_set(ctx, &group, settings[i], settings[i + 1]));
    }
    for (int i = 0; i < 8; i += 2) {
        net_ok(ctx, tg_optim_config_set(ctx, &group, common[i], common[i + 1]));
    }
    const tg_optim_param param = {"w", dtype, *shape, 0};
    const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                  .groups = &group,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1,
                                  .seed = 3};
    net_ok(ctx, tg_optim_create(ctx, &setup, &optim));
    return optim;
}

/* ---- written out ---- */

typedef struct by_hand {
    double w[N], m[K], v[K];
    int kept[K];
    int updates; /* that are in the moments */
} by_hand;

/* The K entries of largest modulus, in the order of their indices. */
static void choose(by_hand *h, const double *g) {
    int count = 0;
    for (int i = 0; i < N; i++) {
        int larger = 0;
        for (int j = 0; j < N; j++) {
            larger += fabs(g[j]) > fabs(g[i]);
        }
        if (larger < K) {
            h->kept[count++] = i;
        }
    }
    assert_int_equal(count, K);
}

static void step_by_hand(by_hand *h, int step, bool resets, double scale, const double *g) {
    const double b1 = 0.9, b2 = 0.999, eps = 1e-6, rate = 0.05, decay = 0.1;
    if (step % GAP == 0) {
        choose(h, g);
        if (resets && step > 0) {
            memset(h->m, 0, sizeof h->m);
            memset(h->v, 0, sizeof h->v);
            h->updates = 0;
        }
    }
    h->updates++;
    const double correction = sqrt(1.0 - pow(b2, h->updates)) / (1.0 - pow(b1, h->updates));
    for (int k = 0; k < K; k++) {
        const double value = g[h->kept[k]];
        h->m[k] = b1 * h->m[k] + (1.0 - b1) * value;
        h->v[k] = b2 * h->v[k] + (1.0 - b2) * value * value;
        h->w[h->kept[k]] -= scale * rate * correction * h->m[k] / (sqrt(h->v[k]) + eps);
    }
    for (int i = 0; i < N; i++) {
        h->w[i] -= rate * decay * h->w[i];
    }
}

static void check_moments(const char *backend, bool resets, bool matches) {
    const char *const settings[] = {"name",
                                    "unstructured",
                                    "sparse_ratio",
                                    "0.25",
                                    "moments_on_refresh",
                                    resets ? "reset" : "keep",
                                    "match_rms",
                                    matches ? "true" : "false",
                                    NULL};
    const tg_shape shape = {1, {N}};
    tg_context *ctx = net_context(backend, 1);
    tg_optim *optim = make(ctx, settings, TG_F64, &shape);
    by_hand h = {.updates = 0};
    double w[N], g[N];
    fill(w, N, 0);
    memcpy(h.w, w, sizeof w);
    for (int step = 0; step < STEPS; step++) {
        fill(g, N, 1 + (uint32_t)step);
        net_ok(ctx, raw_optim_step(optim, 0, g, w));
        step_by_hand(&h, step, resets, matches ? 2.0 : 1.0, g); /* sqrt(N / K) */
        for (int i = 0; i < N; i++) {
            if (!(fabs(w[i] - h.w[i]) <= 1e-12)) {
                fail_msg("%s, %s, match_rms %d: step %d, weight %d is %.15g, expected %.15g",
                         backend, resets ? "reset" : "keep", matches, step, i, w[i], h.w[i]);
            }
        }
    }
    assert_int_equal(tg_optim_get_stats(optim).refreshes, 3); /* at steps 0, 3 and 6 */
    tg_optim_destroy(&optim);
    tg_context_destroy(&ctx);
}

TEST(test_moments_at_a_refresh) {
    static const char *const backends[] = {"ref", "cpu"};
    for (int b = 0; b < 2; b++) {
        check_moments(backends[b], false, false);
        check_moments(backends[b], true, false);
        check_moments(backends[b], false, true);
    }
}

/* ---- match_rms ---- */

enum { REALS = 120 };

/* The first update of a weight of zeros, and the share of compressed values. */
static double first_update(const char *const *settings, tg_dtype dtype, double *w) {
    const tg_shape shape = {3, {5, 4, 3}};
    tg_context *ctx = net_context("cpu", 1);
    tg_optim *optim = make(ctx, settings, dtype, &shape);
    double g[REALS];
    fill(g, REALS, 1);
    memset(w, 0, REALS * sizeof *w);
    net_ok(ctx, raw_optim_step(optim, 0, g, w));
    const tg_optim_projection found = tg_optim_get_projection(optim, 0);
    tg_optim_destroy(&optim);
    tg_context_destroy(&ctx);
    return found.is_projected ? (double)found.values / (double)found.entries : 1.0;
}

/* All branches are scaled alike; complex values whose parts share a second moment by sqrt(2), too.
 */
TEST(test_updates_match_those_of_adamw) {
    static const struct {
        const char *name, *complex_adam, *rule;
        tg_dtype dtype;
        double square; /* of the factor, beside that of the compression */
    } cases[] = {
        {"tensorgrad", "modulus", "adam", TG_F64, 1.0},
        {"tensorgrad", "modulus", "adam", TG_C128, 2.0},
        {"tensorgrad", "split", "adam", TG_C128, 1.0},
        {"unstructured", "modulus", "lion", TG_C128, 2.0},
        {"adam", "modulus", "adam", TG_F64, 1.0},
        {"adam", "modulus", "adam", TG_C128, 2.0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const char *settings[] = {"name", cases[c].name, "complex_adam", cases[c].complex_adam,
                                  "rule", cases[c].rule, NULL,           NULL,
                                  NULL};
        double plain[REALS], matched[REALS];
        const double share = first_update(settings, cases[c].dtype, plain);
        settings[6] = "match_rms";
        settings[7] = "true";
        assert_true(first_update(settings, cases[c].dtype, matched) == share);
        assert_true((share < 0.9) == (strcmp(cases[c].name, "adam") != 0));
        const int reals = tg_dtype_is_complex(cases[c].dtype) ? REALS : REALS / 2;
        double norm = 0.0;
        for (int i = 0; i < reals; i++) {
            const double expected = plain[i] * sqrt(cases[c].square / share);
            norm += expected * expected;
            assert_true(fabs(matched[i] - expected) <= 1e-12);
        }
        assert_true(norm > 0.0);
    }
}

/* ---- counters ---- */

/* Entries whose squares overflow make a decomposition fail; the count of it and all other counters
 * are there again after loading. */
TEST(test_counters_are_saved) {
    enum { NUMEL = 60 };
    static const char *const settings[] = {"name", "lowrank", "moments_on_refresh", "reset", NULL};
    const tg_shape shape = {3, {5, 4, 3}};
    tg_context *ctx = net_context("cpu", 1);
    tg_optim *optim = make(ctx, settings, TG_F64, &shape),
             *other = make(ctx, settings, TG_F64, &shape);
    tg_archive *archive = NULL;
    double w[NUMEL], g[NUMEL];
    fill(w, NUMEL, 0);
    for (uint32_t step = 0; step < 5; step++) {
        fill(g, NUMEL, 1 + step);
        net_ok(ctx, raw_optim_step(optim, 0, g, w));
    }
    for (int i = 0; i < NUMEL; i++) {
        g[i] *= 1e200;
    }
    net_ok(ctx, tg_projector_refresh_stored(optim->slots[0].projector, g, TG_STORE_FULL));
    fill(g, NUMEL, 20);
    g[7] = (double)NAN;
    net_ok(ctx, raw_optim_step(optim, 0, g, w));
    net_ok(ctx, tg_archive_create(ctx, &archive));
    net_ok(ctx, tg_optim_save(optim, archive));
    net_ok(ctx, tg_optim_load(other, archive));
    const tg_optim_stats saved = tg_optim_get_stats(optim), loaded = tg_optim_get_stats(other);
    assert_int_equal(saved.failures, 1);
    assert_int_equal(loaded.failures, 1);
    assert_int_equal(saved.refreshes, 3);
    assert_int_equal(loaded.refreshes, 3);
    assert_int_equal(saved.steps, 5);
    assert_int_equal(loaded.steps, 5);
    assert_int_equal(saved.skipped, 1);
    assert_int_equal(loaded.skipped, 1);
    const tg_slot *slot = &other->slots[0];
    assert_int_equal(slot->step, 5);
    assert_int_equal(slot->moment_step, 2);
    assert_int_equal(slot->last_refresh, 3);
    tg_archive_destroy(&archive);
    tg_optim_destroy(&optim);
    tg_optim_destroy(&other);
    tg_context_destroy(&ctx);
}
