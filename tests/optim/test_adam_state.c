/* Adam with moments kept in less, on every backend: bytes and their scales against the formulas in
 * double, 16-bit formats and the bits of their rounding; and the table that the bytes index. */
#include <math.h>
#include <string.h>

#include "backend/state8.h"
#include "base/rng_math.h"
#include "support/runner.h"

enum { SINGLE = 1 << TG_F32 | 1 << TG_C64, BLOCK = TG_STATE_BLOCK };

static const double beta1 = 0.9, beta2 = 0.99, eps = 1e-3, scale = 0.5, alpha = -0.25;
static const tg_rng rounding = {.seed = 77, .purpose = TG_RNG_ROUNDING, .step = 5};

/* ---- the table ---- */

ROW(table, "table of bytes", T_ONCE) {
    for (int bits = TG_STATE_M_BITS; bits <= TG_STATE_V_BITS; bits++) {
        const uint32_t entries = 1u << bits;
        t_note(s, "%d bits", bits);
        t_true(s, tg_state_value(bits, 0) == 0.0f);
        t_true(s, tg_state_value(bits, entries - 1) == 1.0f);
        for (uint32_t i = 0; i < entries; i++) {
            const float x = tg_state_value(bits, i);
            t_true(s, i == 0 || x > tg_state_value(bits, i - 1));
            t_true(s, tg_state_index(bits, x, 0.5f) == i);
        }
        t_below(s, fabs((double)tg_state_value(bits, 1) * pow(10.0, bits - 1) - 1.0), 1e-6);
        for (double x = 1e-9; x <= 1.0; x *= 1.003) { /* the nearest entry */
            const uint32_t i = tg_state_index(bits, (float)x, 0.5f);
            const double d = fabs((double)tg_state_value(bits, i) - x) * (1.0 - 1e-5);
            t_true(s, i == 0 || d <= fabs((double)tg_state_value(bits, i - 1) - x));
            t_true(s, i + 1 == entries || d <= fabs((double)tg_state_value(bits, i + 1) - x));
        }
        t_true(s, tg_state_index(bits, NAN, 0.5f) < entries);
    }
    t_true(s, tg_state_m_encode(-0.0f, 1.0f, 0.5f) == 0 &&
                  tg_state_m_encode(-1.0f, 1.0f, 0.5f) == 0xFF);
    t_true(s,
           tg_state_v_encode(1e-12f, 1.0f, 0.5f) == 1 && tg_state_v_encode(0.0f, 1.0f, 0.5f) == 0);
    t_true(s, tg_state_m_decode(0xFF, 3.0f) == -3.0f && tg_state_v_decode(0xFF, 3.0f) == 9.0f);
}

/* ---- a step on bytes ---- */

/* One array of moments: its bytes and scales, and the decoded values. */
typedef struct bytes {
    int64_t n; /* reals */
    uint8_t *byte;
    float *scale;
    double *value;
} bytes;

static int64_t blocks(int64_t n) {
    return (n + BLOCK - 1) / BLOCK;
}

static void decode(bytes *b, bool second) {
    for (int64_t j = 0; j < b->n; j++) {
        const float scale_of = b->scale[j / BLOCK];
        b->value[j] = (double)(second ? tg_state_v_decode(b->byte[j], scale_of)
                                      : tg_state_m_decode(b->byte[j], scale_of));
    }
}

/* Blocks of very different sizes, one of them all zero. */
static bytes draw(t_side *s, int64_t n, bool second) {
    bytes b = {n, t_host_alloc(s, TG_U8, n), t_host_alloc(s, TG_F32, blocks(n)),
               t_host_alloc(s, TG_F64, n)};
    const double *random = t_host_random(s, TG_F64, n);
    for (int64_t j = 0; j < n; j++) {
        b.byte[j] = (uint8_t)(128.0 * (random[j] + 1.0));
    }
    for (int64_t i = 0; i < blocks(n); i++) {
        b.scale[i] = i % 3 == 1 ? 0.0f : (float)pow(10.0, (double)(i % 5) - 3.0);
    }
    decode(&b, second);
    return b;
}

static double root(double *v, double square) {
    *v = beta2 * *v + (1.0 - beta2) * square;
    return sqrt(*v) + eps;
}

/* The step in double: m and v move, u is the direction (reals of the elements). */
static void step_model(int64_t n, bool complex, bool split, const double *g, double *m, double *v,
                       double *u) {
    const int64_t width = complex ? 2 : 1;
    for (int64_t j = 0; j < width * n; j++) {
        m[j] = beta1 * m[j] + (1.0 - beta1) * scale * g[j];
    }
    for (int64_t i = 0; i < n; i++) {
        double below = 0.0;
        if (!complex || !split) {
            double square = 0.0;
            for (int64_t c = 0; c < width; c++) {
                square += scale * g[width * i + c] * scale * g[width * i + c];
            }
            below = root(&v[i], square);
        }
        for (int64_t c = 0; c < width; c++) {
            const int64_t j = width * i + c;
            u[j] = m[j] / (complex && split ? root(&v[j], scale * g[j] * scale * g[j]) : below);
        }
    }
}

/* The result is as close to the model as the table allows; for v, its square root. */
static void expect_bytes(t_side *s, bool second, const bytes *got, const double *model) {
    const int bits = second ? TG_STATE_V_BITS : TG_STATE_M_BITS;
    for (int64_t i = 0; i < blocks(got->n); i++) {
        double most = 0.0;
        const int64_t end = (i + 1) * BLOCK < got->n ? (i + 1) * BLOCK : got->n;
        for (int64_t j = i * BLOCK; j < end; j++) {
            most = fmax(most, second ? sqrt(model[j]) : fabs(model[j]));
        }
        t_below(s, fabs((double)got->scale[i] - most), 1e-5 * most);
        for (int64_t j = i * BLOCK; j < end; j++) {
            const double x = second ? sqrt(model[j]) : model[j];
            const double y = second ? sqrt(got->value[j]) : got->value[j];
            const double size = most > 0.0 ? fabs(x) / most : 0.0;
            const double decade = size > 0.0 ? pow(10.0, ceil(log10(size) - 1e-6)) : 0.0;
            const double lowest = pow(10.0, 1.0 - bits);
            const double spacing =
                0.9 * fmax(decade, lowest) /
                fmax(1.0, ldexp(1.0, bits - 1) * pow(0.5, -log10(fmax(decade, lowest))));
            t_below(s, fabs(x - y), most * (0.52 * spacing + (second ? lowest : 0.0) + 1e-6));
            t_true(s, !(second && x > 0.0 && most > 0.0) || y > 0.0);
        }
    }
}

static void run_bytes(t_side *s, int64_t n, int choice) {
    const bool complex = tg_dtype_is_complex(s->dtype), split = choice & 1;
    const bool guarded = choice & 2, in_place = choice & 4;
    const int64_t width = complex ? 2 : 1, v_reals = complex && split ? 2 * n : n;
    s->aligned = choice % 3 == 0;
    t_note(s, "n %lld, choice %d", (long long)n, choice);
    bytes m = draw(s, width * n, false), v = draw(s, v_reals, true);
    uint8_t *m_byte = t_inout(s, TG_U8, m.n, m.byte), *v_byte = t_inout(s, TG_U8, v.n, v.byte);
    float *m_scale = t_inout(s, TG_F32, blocks(m.n), m.scale);
    float *v_scale = t_inout(s, TG_F32, blocks(v.n), v.scale);
    const float *g = t_host_random(s, s->dtype, n), *w = t_host_random(s, s->dtype, n);
    const uint32_t shut = 1;
    void *direction = in_place ? t_inout(s, s->dtype, n, g) : t_output(s, s->dtype, n);
    void *weight = t_inout(s, s->dtype, n, w);
    const tg_adam op = {.dtype = s->dtype,
                        .n = n,
                        .split = split,
                        .grad = in_place ? direction : t_input(s, s->dtype, n, g),
                        .scale = scale,
                        .m = m_byte,
                        .v = v_byte,
                        .form = TG_STATE_8BIT,
                        .m_scale = m_scale,
                        .v_scale = v_scale,
                        .beta1 = beta1,
                        .beta2 = beta2,
                        .eps = eps,
                        .direction = direction,
                        .weight = weight,
                        .alpha = alpha,
                        .beta = 0.5,
                        .guard = guarded ? t_inout(s, TG_U32, 1, &shut) : NULL};
    t_ok(s, s->ops->update(s->be, 1, &op));
    if (guarded) { /* nothing moves */
        t_true(s, memcmp(t_download(s, m_byte), m.byte, (size_t)m.n) == 0);
        t_true(s, memcmp(t_download(s, v_byte), v.byte, (size_t)v.n) == 0);
        t_true(s, t_first_difference(s->dtype, n, t_download(s, weight), w) == -1);
        t_release(s);
        return;
    }
    double *u = t_host_alloc(s, TG_F64, width * n), *wide = t_host_alloc(s, TG_F64, width * n);
    for (int64_t j = 0; j < width * n; j++) {
        wide[j] = (double)g[j];
    }
    step_model(n, complex, split, wide, m.value, v.value, u);
    float *moved = t_host_alloc(s, TG_F32, width * n), *used = t_host_alloc(s, TG_F32, width * n);
    for (int64_t j = 0; j < width * n; j++) {
        used[j] = (float)u[j];
        moved[j] = (float)(alpha * u[j] + 0.5 * (double)w[j]);
    }
    t_below(s, t_relative_error(TG_F32, width * n, t_download(s, direction), used), 1e-5);
    t_below(s, t_relative_error(TG_F32, width * n, t_download(s, weight), moved), 1e-5);
    bytes m_got = {m.n, t_download(s, m_byte), t_download(s, m_scale),
                   t_host_alloc(s, TG_F64, m.n)};
    bytes v_got = {v.n, t_download(s, v_byte), t_download(s, v_scale),
                   t_host_alloc(s, TG_F64, v.n)};
    decode(&m_got, false);
    decode(&v_got, true);
    expect_bytes(s, false, &m_got, m.value);
    expect_bytes(s, true, &v_got, v.value);
    t_keep_close(s, direction, 10.0);
    t_keep_close(s, m_scale, 10.0);
    t_keep_close(s, v_scale, 10.0);
    t_release(s);
}

ROW(steps_on_bytes, "steps on bytes", SINGLE) {
    static const int64_t lengths[] = {0, 1, 7, 127, 128, 255, 256, 257, 1031, 20011};
    for (int i = 0; i < T_COUNT(lengths); i++) {
        for (int choice = 0; choice < 8; choice++) {
            run_bytes(s, lengths[i], choice);
        }
    }
}

/* ---- 16-bit formats ---- */

/* With beta1 = beta2 = 0, m = g and v = |g|^2 before they are rounded: stochastically if there is a
 * stream, unless that is for the weight alone. */
ROW(half_formats_to_the_bit, "16-bit formats to the bit", SINGLE) {
    const int64_t n = 1031;
    const bool complex = tg_dtype_is_complex(s->dtype);
    for (int choice = 0; choice < 32; choice++) {
        const bool split = choice & 1 && complex, has_stream = choice & 2, to_nearest = choice & 8;
        const bool random = has_stream && !to_nearest;
        const tg_dtype half = choice & 16 ? TG_F16 : TG_BF16;
        s->aligned = choice & 4;
        t_note(s, "choice %d", choice);
        const int64_t reals = complex ? 2 * n : n, v_reals = split ? 2 * n : n;
        const float *g = t_host_random(s, s->dtype, n);
        uint16_t *zero = t_host_alloc(s, half, reals);
        memset(zero, 0, (size_t)reals * sizeof *zero);
        uint16_t *m = t_inout(s, half, reals, zero), *v = t_inout(s, half, v_reals, zero);
        const tg_adam op = {.dtype = s->dtype,
                            .n = n,
                            .split = split,
                            .grad = t_input(s, s->dtype, n, g),
                            .scale = 1.0,
                            .m = m,
                            .v = v,
                            .form = half == TG_F16 ? TG_STATE_F16 : TG_STATE_BF16,
                            .state_nearest = to_nearest,
                            .eps = eps,
                            .direction = t_output(s, s->dtype, n),
                            .rounding = has_stream ? &rounding : NULL};
        t_ok(s, s->ops->update(s->be, 1, &op));
        const uint16_t *m_got = t_download(s, m), *v_got = t_download(s, v);
        for (int64_t j = 0; j < reals; j++) {
            uint16_t nearest;
            tg_store(half, &nearest, 0, (tg_scalar){(double)g[j], 0.0});
            const uint32_t bits = tg_rounding_bits(&rounding, (UINT64_C(1) << 62) + (uint64_t)j);
            const uint16_t rounded =
                half == TG_F16 ? tg_round_to_f16(g[j], bits) : tg_round_to_bf16(g[j], bits);
            t_true(s, m_got[j] == (random ? rounded : nearest));
        }
        for (int64_t j = 0; j < v_reals; j++) {
            const double square = complex && !split
                                      ? (double)g[2 * j] * (double)g[2 * j] +
                                            (double)g[2 * j + 1] * (double)g[2 * j + 1]
                                      : (double)g[j] * (double)g[j];
            const double step = half == TG_F16 ? 0x1p-10 * square + 0x1p-24 : 0x1p-7 * square;
            t_below(s, fabs(tg_load(half, v_got, j).re - square), step);
        }
        t_keep_same(s, m);
        t_keep_close(s, v, 2.0);
        t_keep_close(s, op.direction, 10.0);
        t_release(s);
    }
}

/* Decay alone: a moment in bf16 that loses a thousandth a step never moves by rounding to nearest;
 * stochastically, on average it does. */
static void decay(t_side *s, bool to_nearest) {
    enum { N = 4096, STEPS = 100 };
    uint16_t *one = t_host_alloc(s, TG_BF16, N);
    float *zero = t_host_alloc(s, TG_F32, N);
    for (int i = 0; i < N; i++) {
        tg_store(TG_BF16, one, i, (tg_scalar){1.0, 0.0});
        zero[i] = 0.0f;
    }
    void *m = t_inout(s, TG_BF16, N, one), *v = t_inout(s, TG_BF16, N, one);
    for (int step = 0; step < STEPS; step++) {
        const tg_rng rng = {77, TG_RNG_ROUNDING, (uint32_t)step};
        const tg_adam op = {.dtype = TG_F32,
                            .n = N,
                            .grad = t_input(s, TG_F32, N, zero),
                            .scale = 1.0,
                            .m = m,
                            .v = v,
                            .form = TG_STATE_BF16,
                            .state_nearest = to_nearest,
                            .beta1 = 0.999,
                            .beta2 = 0.999,
                            .eps = eps,
                            .rounding = &rng};
        t_ok(s, s->ops->update(s->be, 1, &op));
    }
    const void *got[] = {t_download(s, m), t_download(s, v)};
    for (int i = 0; i < 2; i++) {
        double mean = 0.0;
        for (int64_t j = 0; j < N; j++) {
            mean += tg_load(TG_BF16, got[i], j).re / N;
        }
        const double expected = to_nearest ? 1.0 : pow(0.999, STEPS);
        t_below(s, fabs(mean - expected),
                to_nearest ? 0.0 : 5.0 * 0x1p-8 * sqrt((double)STEPS / N));
    }
    t_release(s);
}

ROW(half_formats_decay, "16-bit formats decay", T_ONCE) {
    decay(s, false);
    decay(s, true);
}

ROW(refusals, "refusals", T_ONCE) {
    void *x = t_output(s, TG_F64, 3);
    tg_adam op = {.dtype = TG_F64, .n = 3, .grad = x, .m = x, .v = x, .form = TG_STATE_BF16};
    t_refused(s, TG_E_DTYPE, s->ops->update(s->be, 1, &op));
    op.dtype = TG_F32;
    op.form = TG_STATE_8BIT;
    t_refused(s, TG_E_ARGUMENT, s->ops->update(s->be, 1, &op));
}

int main(void) {
    return t_run_rows("state");
}
