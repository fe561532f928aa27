/* Values in one byte each (quantize.h): the same bytes on every backend, no value further away than
 * half a step of its block, and nothing lost that a block can hold. */
#include <float.h>
#include <math.h>

#include "backend/quantize.h"
#include "support/runner.h"

/* Aligned, as the contract of the slots has it; x is not. */
static void *bytes_of(t_side *s, int64_t n) {
    s->aligned = true;
    void *bytes = t_output(s, TG_U8, (int64_t)tg_quantized_bytes(n));
    s->aligned = false;
    return bytes;
}

static void quantize_both_ways(t_side *s, int64_t n, const float *x, void *bytes, float *y) {
    const void *from = t_input(s, TG_F32, n, x);
    t_ok(s, s->ops->quantize(s->be, &(tg_quantization){n, false, from, bytes}));
    t_ok(s, s->ops->quantize(s->be, &(tg_quantization){n, true, bytes, y}));
}

/* There and back; what came out, on the host. */
static const float *round_trip(t_side *s, int64_t n, const float *x) {
    void *bytes = bytes_of(s, n), *y = t_output(s, TG_F32, n);
    quantize_both_ways(s, n, x, bytes, y);
    t_keep_same(s, bytes);
    t_keep_same(s, y);
    return t_download(s, y);
}

static double most_of(const float *x, int64_t n, int64_t block) {
    double most = 0.0;
    const int64_t first = block * TG_QUANTIZED_BLOCK, end = first + TG_QUANTIZED_BLOCK;
    for (int64_t i = first; i < end && i < n; i++) {
        most = fmax(most, fabs((double)x[i]));
    }
    return most;
}

ROW(bounds, "bounds", T_ONCE) {
    static const int64_t lengths[] = {0, 1, 3, 127, 128, 129, 515, 12345, 200003};
    for (int l = 0; l < T_COUNT(lengths); l++) {
        const int64_t n = lengths[l];
        t_note(s, "%lld values", (long long)n);
        float *x = t_host_random(s, TG_F32, n);
        for (int64_t i = 0; i < n; i++) { /* blocks of all sizes, from 1e-29 to 1e+30 */
            x[i] *= powf(10.0f, (float)(i / TG_QUANTIZED_BLOCK % 60 - 29));
        }
        const float *y = round_trip(s, n, x);
        for (int64_t i = 0; i < n; i++) {
            const double most = most_of(x, n, i / TG_QUANTIZED_BLOCK);
            t_below(s, fabs((double)y[i] - (double)x[i]),
                    most * (1.0 / 254.0 + 4.0 * (double)FLT_EPSILON));
        }
        t_release(s);
    }
}

/* Blocks that are all alike come back within a rounding of f32, whole multiples of their scale
 * likewise, zeros as zeros. */
ROW(what_is_kept, "what_is_kept", T_ONCE) {
    enum { N = 4 * TG_QUANTIZED_BLOCK };
    float *x = t_host_alloc(s, TG_F32, N);
    for (int i = 0; i < TG_QUANTIZED_BLOCK; i++) {
        x[i] = 0.0f;
        x[i + TG_QUANTIZED_BLOCK] = -0.7f;
        x[i + 2 * TG_QUANTIZED_BLOCK] = (float)(i - 64) * 127.0f / 64.0f;
        x[i + 3 * TG_QUANTIZED_BLOCK] = i == 9 ? FLT_MAX / 2.0f : -FLT_MAX / 4.0f;
    }
    x[2 * TG_QUANTIZED_BLOCK] = 127.0f; /* so that a step is 1 */
    const float *y = round_trip(s, N, x);
    for (int i = 0; i < TG_QUANTIZED_BLOCK; i++) {
        t_true(s, y[i] == 0.0f);
        t_below(s, fabs((double)y[i + TG_QUANTIZED_BLOCK] + (double)0.7f), 1e-7);
        const double step = (double)x[i + 2 * TG_QUANTIZED_BLOCK];
        t_true(s, (double)y[i + 2 * TG_QUANTIZED_BLOCK] == nearbyint(step)); /* ties to even */
        t_true(s, isfinite(y[i + 3 * TG_QUANTIZED_BLOCK]));
    }
}

/* What is not finite is never hidden: its block becomes NaN, and no other one does. */
ROW(not_finite, "not_finite", T_ONCE) {
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    enum { N = 3 * TG_QUANTIZED_BLOCK - 5 };
    for (int k = 0; k < T_COUNT(bad); k++) {
        for (int at = 0; at < N; at += 41) {
            t_note(s, "%g at %d", (double)bad[k], at);
            float *x = t_host_random(s, TG_F32, N);
            x[at] = bad[k];
            void *bytes = bytes_of(s, N), *y = t_output(s, TG_F32, N);
            quantize_both_ways(s, N, x, bytes, y);
            const float *out = t_download(s, y);
            for (int i = 0; i < N; i++) {
                const bool is_beside = i / TG_QUANTIZED_BLOCK == at / TG_QUANTIZED_BLOCK;
                t_true(s, is_beside ? isnan(out[i]) : isfinite(out[i]));
            }
            t_release(s);
        }
    }
}

/* Blocks below the least value are zeros; above it small ones are as good as others. */
ROW(tiny, "tiny", T_ONCE) {
    enum { N = 3 * TG_QUANTIZED_BLOCK };
    float *x = t_host_alloc(s, TG_F32, N);
    for (int i = 0; i < N; i++) {
        const float scale[] = {FLT_TRUE_MIN * 90.0f, TG_QUANTIZED_LEAST / 2.0f, TG_QUANTIZED_LEAST};
        x[i] = scale[i / TG_QUANTIZED_BLOCK] * (i % 2 ? -1.0f : 1.0f);
    }
    const float *y = round_trip(s, N, x);
    for (int i = 0; i < N; i++) {
        const double expected = i < 2 * TG_QUANTIZED_BLOCK ? 0.0 : (double)x[i];
        t_below(s, fabs((double)y[i] - expected), 4.0 * (double)FLT_EPSILON * fabs(expected));
    }
}

int main(void) {
    return t_run_rows("quantize");
}
