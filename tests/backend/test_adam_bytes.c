/* How Adam's moments become bytes, on every backend: to either neighbour with the odds of the
 * distances, by bits that all backends share; averages that move by less than half a step of the
 * table then still arrive, and to the nearest they stand still. */
#include <math.h>
#include <string.h>

#include "backend/state8.h"
#include "base/rng_math.h"
#include "support/runner.h"

enum { SINGLE = 1 << TG_F32 | 1 << TG_C64, BLOCK = TG_STATE_BLOCK };

static const tg_rng rounding = {.seed = 77, .purpose = TG_RNG_ROUNDING, .step = 5};

static float unit(bool second, int64_t j) {
    const uint64_t number = (second ? UINT64_C(1) << 63 : UINT64_C(1) << 62) + (uint64_t)j;
    return tg_state_unit(tg_rounding_bits(&rounding, number));
}

/* ---- the table ---- */

/* The mean over many numbers of the stream is x itself. */
ROW(without_bias, "without bias", T_ONCE) {
    enum { DRAWS = 4096 };
    for (int bits = TG_STATE_M_BITS; bits <= TG_STATE_V_BITS; bits++) {
        int64_t drawn = 0;
        for (double exact = 1e-8; exact < 1.0; exact *= 1.11) {
            const float x = (float)exact;
            t_note(s, "%d bits, %g", bits, exact);
            const uint32_t low = tg_state_index(bits, x, 0.0f);
            const uint32_t high = low + 1 < 1u << bits ? low + 1 : low;
            const double below = (double)tg_state_value(bits, low);
            const double gap = (double)tg_state_value(bits, high) - below;
            double sum = 0.0;
            for (int i = 0; i < DRAWS; i++) {
                const uint32_t index = tg_state_index(bits, x, unit(false, drawn++));
                t_true(s, index == low || index == high);
                sum += (double)tg_state_value(bits, index);
            }
            const double odds = gap > 0.0 ? fmin(1.0, fmax(0.0, (exact - below) / gap)) : 0.0;
            const double sigma = gap * sqrt(odds * (1.0 - odds) / DRAWS);
            t_below(s, fabs(sum / DRAWS - exact), 4.0 * sigma + 2e-6 * exact);
        }
        for (uint32_t i = 0; i < 1u << bits; i++) { /* entries stay, but for errors of f32 */
            const float x = tg_state_value(bits, i);
            t_true(s, tg_state_index(bits, x, 1e-4f) == i && tg_state_index(bits, x, 0.9999f) == i);
        }
        t_true(s, tg_state_index(bits, 1.0f, 0x1.fffffep-1f) == (1u << bits) - 1);
        t_true(s, tg_state_index(bits, 0.0f, 0x1.fffffep-1f) == 0);
        t_true(s, tg_state_index(bits, NAN, 0.9f) < 1u << bits);
    }
    t_true(s,
           tg_state_v_encode(1e-12f, 1.0f, 0.0f) == 1 && tg_state_v_encode(0.0f, 1.0f, 0.9f) == 0);
    t_true(s, tg_state_unit(0) == 0x1p-17f && tg_state_unit(0xFFFF) == 1.0f - 0x1p-17f);
}

/* ---- the bytes of a step ---- */

static int64_t blocks(int64_t n) {
    return (n + BLOCK - 1) / BLOCK;
}

/* Bytes of x (of v: of its roots) and their scales are those of the formulas. */
static void expect_bytes(t_side *s, bool second, bool random, int64_t n, const float *x,
                         const uint8_t *bytes, const float *scales) {
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t end = n - first < BLOCK ? n : first + BLOCK;
        float most = 0.0f;
        for (int64_t j = first; j < end; j++) {
            most = fmaxf(most, fabsf(x[j]));
        }
        t_true(s, scales[first / BLOCK] == most);
        const float inverse = most > 0.0f ? 1.0f / most : 0.0f;
        for (int64_t j = first; j < end; j++) {
            const float u = random ? unit(second, j) : 0.5f;
            t_true(s, bytes[j] == (second ? tg_state_v_encode(x[j], inverse, u)
                                          : tg_state_m_encode(x[j], inverse, u)));
        }
    }
}

/* With beta1 = beta2 = 0, m = g and v = |g|^2 before they are rounded. Numbers of all decades, and
 * a block of zeros. */
static void run_to_the_bit(t_side *s, int64_t n, int choice) {
    const bool complex = tg_dtype_is_complex(s->dtype), split = choice & 1 && complex;
    const bool random = choice & 2, exact = split || !complex;
    s->aligned = choice & 4;
    t_note(s, "n %lld, choice %d", (long long)n, choice);
    const int64_t reals = complex ? 2 * n : n, v_reals = split ? 2 * n : n;
    float *g = t_host_random(s, s->dtype, n), *roots = t_host_alloc(s, TG_F32, reals);
    for (int64_t j = 0; j < reals; j++) {
        g[j] = j / BLOCK % 5 == 3 ? 0.0f : g[j] * (float)pow(10.0, (double)(-j % 9));
        roots[j] = sqrtf(g[j] * g[j]);
    }
    uint8_t *zero = t_host_alloc(s, TG_U8, reals);
    memset(zero, 0, (size_t)reals);
    float *scale = t_host_alloc(s, TG_F32, blocks(reals));
    memset(scale, 0, (size_t)blocks(reals) * sizeof *scale);
    uint8_t *m = t_inout(s, TG_U8, reals, zero), *v = t_inout(s, TG_U8, v_reals, zero);
    float *m_scale = t_inout(s, TG_F32, blocks(reals), scale);
    float *v_scale = t_inout(s, TG_F32, blocks(v_reals), scale);
    const tg_adam op = {.dtype = s->dtype,
                        .n = n,
                        .split = split,
                        .grad = t_input(s, s->dtype, n, g),
                        .scale = 1.0,
                        .m = m,
                        .v = v,
                        .form = TG_STATE_8BIT,
                        .m_scale = m_scale,
                        .v_scale = v_scale,
                        .eps = 1e-3,
                        .direction = t_output(s, s->dtype, n),
                        .rounding = random ? &rounding : NULL};
    t_ok(s, s->ops->update(s->be, 1, &op));
    expect_bytes(s, false, random, reals, g, t_download(s, m), t_download(s, m_scale));
    t_keep_same(s, m);
    t_keep_same(s, m_scale);
    if (exact) { /* a sum of squares may differ in its last bit */
        expect_bytes(s, true, random, v_reals, roots, t_download(s, v), t_download(s, v_scale));
        t_keep_same(s, v);
    }
    t_keep_close(s, v_scale, 2.0);
    t_release(s);
}

ROW(bytes_to_the_bit, "bytes to the bit", SINGLE) {
    static const int64_t lengths[] = {1, 7, 255, 256, 257, 1031, 5003};
    for (int i = 0; i < T_COUNT(lengths); i++) {
        for (int choice = 0; choice < 8; choice++) {
            if (!t_leaves_out(s)) {
                run_to_the_bit(s, lengths[i], choice);
            }
        }
    }
}

/* ---- averages ---- */

enum { N = 4 * BLOCK, STEPS = 1200 };

/* Root of v and m after STEPS of a constant gradient, relative to the exact ones. */
typedef struct averages {
    double m, m_sigma; /* the mean, and how far it may lie off by chance */
    double rising, falling;
} averages;

/* The first of each block is where it will stay, so that scales stay; all others start from m = 0
 * and a root that is half or twice that of their gradient. */
static averages run_averages(t_side *s, bool random) {
    const double beta1 = 0.99, beta2 = 0.999, left1 = pow(beta1, STEPS), left2 = pow(beta2, STEPS);
    float *g = t_host_alloc(s, TG_F32, N), *scale = t_host_alloc(s, TG_F32, N / BLOCK);
    uint8_t *m_first = t_host_alloc(s, TG_U8, N), *v_first = t_host_alloc(s, TG_U8, N);
    for (int j = 0; j < N; j++) {
        const bool stays = j % BLOCK == 0;
        g[j] = stays ? 1.0f : 0.2f + 0.25f * (float)(j % BLOCK) / BLOCK;
        m_first[j] = stays ? 0x7F : 0;
        v_first[j] = tg_state_v_encode(stays ? 1.0f : g[j] * (j % 2 ? 0.5f : 2.0f), 1.0f, 0.5f);
        scale[j / BLOCK] = 1.0f;
    }
    void *m = t_inout(s, TG_U8, N, m_first), *v = t_inout(s, TG_U8, N, v_first);
    float *m_scale = t_inout(s, TG_F32, N / BLOCK, scale);
    float *v_scale = t_inout(s, TG_F32, N / BLOCK, scale);
    const void *grad = t_input(s, TG_F32, N, g);
    for (int step = 0; step < STEPS; step++) {
        const tg_rng rng = {77, TG_RNG_ROUNDING, (uint32_t)step};
        const tg_adam op = {.dtype = TG_F32,
                            .n = N,
                            .grad = grad,
                            .scale = 1.0,
                            .m = m,
                            .v = v,
                            .form = TG_STATE_8BIT,
                            .m_scale = m_scale,
                            .v_scale = v_scale,
                            .beta1 = beta1,
                            .beta2 = beta2,
                            .eps = 1e-3,
                            .rounding = random ? &rng : NULL};
        t_ok(s, s->ops->update(s->be, 1, &op));
    }
    const uint8_t *m_got = t_download(s, m), *v_got = t_download(s, v);
    const float *m_scales = t_download(s, m_scale), *v_scales = t_download(s, v_scale);
    averages out = {0};
    double squares = 0.0;
    const double count = N - N / BLOCK, half = count / 2.0;
    for (int j = 0; j < N; j++) {
        if (j % BLOCK == 0) {
            continue;
        }
        const double gj = (double)g[j];
        const double start = (double)tg_state_v_decode(v_first[j], 1.0f);
        const double m_part =
            (double)tg_state_m_decode(m_got[j], m_scales[j / BLOCK]) / (gj * (1.0 - left1));
        const double root = sqrt((double)tg_state_v_decode(v_got[j], v_scales[j / BLOCK]));
        const double v_part = root / sqrt(left2 * start + (1.0 - left2) * gj * gj);
        out.m += m_part / count;
        squares += m_part * m_part / count;
        *(j % 2 ? &out.rising : &out.falling) += v_part / half;
    }
    out.m_sigma = sqrt(fmax(0.0, squares - out.m * out.m) / count);
    t_release(s);
    return out;
}

ROW(averages_arrive, "averages arrive", T_ONCE) {
    const averages random = run_averages(s, true), nearest = run_averages(s, false);
    t_note(s, "m %g +- %g, roots %g and %g; to nearest %g, %g and %g", random.m, random.m_sigma,
           random.rising, random.falling, nearest.m, nearest.rising, nearest.falling);
    t_below(s, fabs(random.m - 1.0), 4.0 * random.m_sigma);
    t_below(s, random.m_sigma, 0.01);
    t_below(s, fabs(random.rising - 1.0), 0.02);
    t_below(s, fabs(random.falling - 1.0), 0.02);
    t_below(s, nearest.m, 0.8);
    t_below(s, nearest.rising, 0.8);
    t_below(s, 1.2, nearest.falling);
}

int main(void) {
    return t_run_rows("bytes");
}
