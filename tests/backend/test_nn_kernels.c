/* Kernels of the neural operators of each instruction set this CPU has, for every remainder of a
 * vector: activations and their slopes against the C library in double, sums and linear operations,
 * in place and elsewhere; the same bits with AVX2 and AVX-512. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/nn.h"
#include "support/files.h"
#include "support/network.h"

enum { TABLES = 3, LONGEST = 67, RESULTS = 9, ACTS = 5 };

static const cpu_nn_kernels *const tables[TABLES] = {&cpu_nn_plain, &cpu_nn_avx2, &cpu_nn_avx512};

static bool has(const cpu_nn_kernels *kernels) {
#if defined(__x86_64__) || defined(__i386__)
    return kernels->gelu && (kernels != &cpu_nn_avx2 || __builtin_cpu_supports("avx2")) &&
           (kernels != &cpu_nn_avx512 || __builtin_cpu_supports("avx512vl"));
#else
    return kernels == &cpu_nn_plain;
#endif
}

static double act_of(tg_act act, double x) {
    switch (act) {
    case TG_ACT_GELU:
        return 0.5 * x * erfc(-x / sqrt(2.0));
    case TG_ACT_TANH:
        return tanh(x);
    case TG_ACT_RELU:
        return x > 0.0 ? x : 0.0;
    case TG_ACT_SILU:
        return x / (1.0 + exp(-x));
    default:
        return x;
    }
}

static double slope_of(tg_act act, double x) {
    const double step = 1e-6;
    return act == TG_ACT_RELU ? (x > 0.0) : (act_of(act, x + step) - act_of(act, x - step)) / 2e-6;
}

static void expect(float found, double expected) {
    assert_true(fabs((double)found - expected) <= 2e-6 * (1.0 + fabs(expected)));
}

/* All kernels on the same n numbers, as rows of `out` (RESULTS, n); sums: {sum, dot}. */
static void run(const cpu_nn_kernels *k, tg_act act, int64_t n, const float *x, const float *dy,
                float *out, double sums[2]) {
    memcpy(out + 4 * n, x, (size_t)n * sizeof *x);
    memcpy(out + 5 * n, dy, (size_t)n * sizeof *x);
    memcpy(out + 6 * n, dy, (size_t)n * sizeof *x);
    memcpy(out + 7 * n, dy, (size_t)n * sizeof *x);
    k->gelu(n, 0.25f, x, out);
    k->gelu_slope(n, 0.25f, x, out + n, out + 2 * n);
    k->act(act, n, x, out + 3 * n);
    k->act(act, n, out + 4 * n, out + 4 * n);
    k->act_back(act, n, x, out + 5 * n, out + 5 * n);
    k->affine(n, 0.5f, -2.0f, x, 0.125f, out + 6 * n);
    k->multiply(n, x, out + 7 * n);
    k->affine(n, 0.0f, -2.0f, x, 0.125f, out + 8 * n);
    sums[0] = k->sum(n, x);
    sums[1] = k->dot(n, x, dy);
}

static void check(tg_act act, int64_t n, const float *x, const float *dy, const float *out,
                  const double sums[2]) {
    double sum = 0.0, dot = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double v = (double)x[i], w = (double)dy[i];
        sum += v;
        dot += v * w;
        expect(out[i], act_of(TG_ACT_GELU, v + 0.25));
        expect(out[n + i], act_of(TG_ACT_GELU, v + 0.25));
        expect(out[2 * n + i], slope_of(TG_ACT_GELU, v + 0.25));
        expect(out[3 * n + i], act_of(act, v));
        assert_memory_equal(out + 3 * n + i, out + 4 * n + i, sizeof *out);
        expect(out[5 * n + i], w * slope_of(act, v));
        expect(out[6 * n + i], 0.5 * w - 2.0 * v + 0.125);
        expect(out[7 * n + i], v * w);
        expect(out[8 * n + i], 0.125 - 2.0 * v);
    }
    assert_true(fabs(sums[0] - sum) <= 1e-12 * (double)n);
    assert_true(fabs(sums[1] - dot) <= 1e-12 * (double)n);
}

TEST(test_kernels) {
    const tg_act acts[ACTS] = {TG_ACT_NONE, TG_ACT_GELU, TG_ACT_TANH, TG_ACT_RELU, TG_ACT_SILU};
    uint64_t seed = 9;
    for (int64_t n = 1; n <= LONGEST; n++) {
        float x[LONGEST], dy[LONGEST];
        for (int64_t i = 0; i < n; i++) {
            x[i] = (float)((int)(test_random(&seed) >> 54) - 512) / 64.0f + 1.0f / 128.0f;
            dy[i] = (float)((int)(test_random(&seed) >> 54) - 512) / 256.0f;
        }
        for (int a = 0; a < ACTS; a++) {
            float out[TABLES][RESULTS * LONGEST];
            double sums[TABLES][2] = {{0.0}};
            memset(out, 0xFF, sizeof out); /* NaN: some results must not be read before */
            for (int t = 0; t < TABLES; t++) {
                if (has(tables[t])) {
                    run(tables[t], acts[a], n, x, dy, out[t], sums[t]);
                    check(acts[a], n, x, dy, out[t], sums[t]);
                }
            }
            if (has(&cpu_nn_avx512)) {
                assert_memory_equal(out[1], out[2], sizeof out[1]);
                assert_memory_equal(sums[1], sums[2], sizeof sums[1]);
            }
        }
    }
}

TEST(test_choice) {
    tg_context *ctx = net_context("cpu", 1);
    tg_backend *be = NULL;
    net_ok(ctx, tg_backend_get(ctx, &be));
    const cpu_nn_kernels *best = &cpu_nn_plain;
    for (int t = 0; t < TABLES; t++) {
        best = has(tables[t]) ? tables[t] : best;
    }
    assert_ptr_equal(cpu_nn_of(be), best);
    tg_context_destroy(&ctx);
}
