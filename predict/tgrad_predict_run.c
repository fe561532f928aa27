/* The arithmetic of predictions. Every matrix product goes through multiply(), including the
 * transforms: K of a grid's N frequencies are kept, and a product with a K x N table computes just
 * those, for any N. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tgrad_predict_inside.h"

#ifdef _OPENMP
#include <omp.h>
#define PARALLEL_FOR _Pragma("omp parallel for schedule(static) num_threads(s->threads)")
#else
#define PARALLEL_FOR
#endif

/* Loops selected at load time for the machine, if compiler and loader support it; elsewhere
 * -march=native makes them fast. */
#if defined(__GNUC__) && __GNUC__ >= 12 && defined(__x86_64__) && defined(__gnu_linux__) &&        \
    !defined(__SANITIZE_ADDRESS__)
#define FAST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FAST
#endif

#ifdef __GNUC__ /* inlined into each clone */
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE static inline
#endif

enum { ROWS = 4, COLUMNS = 16 };

/* ---- arithmetic ---- */

/* c (m, n) = [c +] [bias of each row +] a (m, k) b (k, n). Row pitches lda, ldb, ldc. */
typedef struct {
    size_t m, n, k;
    const float *a, *b;
    size_t lda, ldb, ldc;
    const float *bias;
    int adds;
} product;

/* sum += a b for a block of the result; nearly all time is spent in full blocks. */
#ifdef __GNUC__
typedef float lanes __attribute__((vector_size(32))); /* in registers of any width */

ALWAYS_INLINE void add_full(const product *p, const float *a, const float *b,
                            float sum[ROWS][COLUMNS]) {
    lanes s[ROWS][2], x[2];
    memcpy(s, sum, sizeof s);
    for (size_t l = 0; l < p->k; l++) {
        memcpy(x, b + l * p->ldb, sizeof x);
        for (int r = 0; r < ROWS; r++) {
            const float factor = a[(size_t)r * p->lda + l];
            s[r][0] += factor * x[0];
            s[r][1] += factor * x[1];
        }
    }
    memcpy(sum, s, sizeof s);
}
#else
ALWAYS_INLINE void add_full(const product *p, const float *a, const float *b,
                            float sum[ROWS][COLUMNS]) {
    for (size_t l = 0; l < p->k; l++) {
        for (int r = 0; r < ROWS; r++) {
            for (int q = 0; q < COLUMNS; q++) {
                sum[r][q] += a[(size_t)r * p->lda + l] * b[l * p->ldb + (size_t)q];
            }
        }
    }
}
#endif

ALWAYS_INLINE void add_some(const product *p, const float *a, const float *b, size_t height,
                            size_t width, float sum[ROWS][COLUMNS]) {
    for (size_t r = 0; r < height; r++) {
        for (size_t l = 0; l < p->k; l++) {
            for (size_t q = 0; q < width; q++) {
                sum[r][q] += a[r * p->lda + l] * b[l * p->ldb + q];
            }
        }
    }
}

FAST static void multiply(product p, float *c) {
    for (size_t j = 0; j < p.n; j += COLUMNS) {
        const size_t width = tgp_min(COLUMNS, p.n - j);
        for (size_t i = 0; i < p.m; i += ROWS) {
            const size_t height = tgp_min(ROWS, p.m - i);
            const float *a = p.a + i * p.lda, *b = p.b + j;
            float sum[ROWS][COLUMNS] = {{0}};
            for (size_t r = 0; r < height; r++) {
                for (size_t q = 0; q < width; q++) {
                    sum[r][q] = (p.adds ? c[(i + r) * p.ldc + j + q] : 0.0f) +
                                (p.bias ? p.bias[i + r] : 0.0f);
                }
            }
            if (height == ROWS && width == COLUMNS) {
                add_full(&p, a, b, sum);
            } else {
                add_some(&p, a, b, height, width, sum);
            }
            for (size_t r = 0; r < height; r++) {
                memcpy(c + (i + r) * p.ldc + j, sum[r], width * sizeof(float));
            }
        }
    }
}

/* y += x w, complex, with separate real and imaginary parts. */
FAST static void add_complex_products(size_t n, const float *xr, const float *xi, const float *wr,
                                      const float *wi, float *restrict yr, float *restrict yi) {
    for (size_t i = 0; i < n; i++) {
        const float a = xr[i] * wr[i] - xi[i] * wi[i], b = xr[i] * wi[i] + xi[i] * wr[i];
        yr[i] += a;
        yi[i] += b;
    }
}

/* x Phi(x) by erfc(u) = t P(t) exp(-u^2), 1.5e-7 exact; exp(-v) = 2^n exp(r), |r| <= log(2) / 2. */
FAST static void gelu(size_t n, float *x) {
    for (size_t i = 0; i < n; i++) {
        const float size = fabsf(x[i]);
        const float t = 1.0f / (1.0f + 0.23164190f * size);
        const float square = 0.5f * size * size, v = square < 80.0f ? square : 80.0f;
        const float shifted = v * -1.44269504f + 12582912.0f; /* 1.5 * 2^23: rounds to an integer */
        const float power = shifted - 12582912.0f;
        const float r = (-v - power * 0.693359375f) + power * 2.12194440e-4f;
        float e = 1.9875691500e-4f;
        e = e * r + 1.3981999507e-3f;
        e = e * r + 8.3334519073e-3f;
        e = e * r + 4.1665795894e-2f;
        e = e * r + 1.6666665459e-1f;
        e = e * r + 5.0000001201e-1f;
        e = e * r * r + r + 1.0f;
        const int32_t bits = ((int32_t)power + 127) * (1 << 23);
        float scale;
        memcpy(&scale, &bits, sizeof scale);
        float tail = 1.061405429f;
        tail = tail * t - 1.453152027f;
        tail = tail * t + 1.421413741f;
        tail = tail * t - 0.284496736f;
        tail = tail * t + 0.254829592f;
        x[i] = 0.5f * (x[i] + size * (1.0f - tail * t * e * scale));
    }
}

/* ---- the network on a tile: `width` points of every channel ---- */

/* y (rows of `stride`) = MLP of x (rows of `x_stride`). */
static void apply_mlp(const mlp *m, size_t width, const float *x, size_t x_stride, float *hidden,
                      float *y, size_t stride) {
    multiply((product){.m = m->hidden,
                       .n = width,
                       .k = m->in,
                       .a = m->w1,
                       .lda = m->in,
                       .b = x,
                       .ldb = x_stride,
                       .ldc = TGP_TILE,
                       .bias = m->b1},
             hidden);
    for (size_t h = 0; h < m->hidden; h++) {
        gelu(width, hidden + h * TGP_TILE);
    }
    multiply((product){.m = m->out,
                       .n = width,
                       .k = m->hidden,
                       .a = m->w2,
                       .lda = m->hidden,
                       .b = hidden,
                       .ldb = TGP_TILE,
                       .ldc = stride,
                       .bias = m->b2},
             y);
}

static void add_skip(skip_kind kind, const float *weight, size_t channels, size_t width,
                     const float *x, size_t x_stride, float *y, size_t stride) {
    if (kind == SKIP_LINEAR) {
        multiply((product){.m = channels,
                           .n = width,
                           .k = channels,
                           .a = weight,
                           .lda = channels,
                           .b = x,
                           .ldb = x_stride,
                           .ldc = stride,
                           .adds = 1},
                 y);
        return;
    }
    for (size_t c = 0; c < channels; c++) {
        const float factor = kind == SKIP_IDENTITY ? 1.0f : weight[c];
        for (size_t q = 0; q < width; q++) {
            y[c * stride + q] += factor * x[c * x_stride + q];
        }
    }
}

static float *scratch_of(const tgp_session *s) {
#ifdef _OPENMP
    return s->scratch + (size_t)omp_get_thread_num() * s->scratch_size;
#else
    return s->scratch;
#endif
}

/* Data and coordinates of the points first .. first + width - 1, as rows of a tile. */
static void embed(const tgp_session *s, const float *x, size_t first, size_t width, float *tile) {
    const tgp_model *m = s->model;
    for (size_t c = 0; c < m->in; c++) {
        for (size_t q = 0; q < width; q++) {
            tile[c * TGP_TILE + q] = x[c * s->points + first + q] * m->x_scale[c] + m->x_shift[c];
        }
    }
    size_t below = s->points;
    for (int d = 0; m->embeds && d < m->dims; d++) {
        const size_t size = s->axes[d].grid;
        below /= size;
        for (size_t q = 0; q < width; q++) {
            tile[(m->in + (size_t)d) * TGP_TILE + q] =
                (float)((first + q) / below % size) / (float)size;
        }
    }
}

static void lift(tgp_session *s, const float *x, float *y) {
    PARALLEL_FOR
    for (size_t first = 0; first < s->points; first += TGP_TILE) {
        const size_t width = tgp_min(TGP_TILE, s->points - first);
        float *tile = scratch_of(s), *hidden = tile + s->model->lifting.in * TGP_TILE;
        embed(s, x, first, width, tile);
        apply_mlp(&s->model->lifting, width, tile, TGP_TILE, hidden, y + first, s->points);
    }
}

static void project(tgp_session *s, const float *x, float *y) {
    const tgp_model *m = s->model;
    PARALLEL_FOR
    for (size_t first = 0; first < s->points; first += TGP_TILE) {
        const size_t width = tgp_min(TGP_TILE, s->points - first);
        apply_mlp(&m->projection, width, x + first, s->points, scratch_of(s), y + first, s->points);
        for (size_t c = 0; c < m->out; c++) {
            for (size_t q = 0; q < width; q++) {
                float *value = y + c * s->points + first + q;
                *value = *value * m->y_scale[c] + m->y_shift[c];
            }
        }
    }
}

/* The part of a block after the convolution z, up to its second norm; replaces its input x. */
static void mix(tgp_session *s, const block *b, int is_last, float *x, float *z) {
    const tgp_model *m = s->model;
    PARALLEL_FOR
    for (size_t first = 0; first < s->padded; first += TGP_TILE) {
        const size_t width = tgp_min(TGP_TILE, s->padded - first), stride = s->padded;
        float *tile = scratch_of(s), *hidden = tile + m->channels * TGP_TILE;
        add_skip(m->fno_skip, b->fno_skip, m->channels, width, x + first, stride, z + first,
                 stride);
        for (size_t c = 0; c < m->channels; c++) {
            float *row = z + c * stride + first;
            if (!is_last) {
                gelu(width, row);
            }
            if (b->mlp.hidden == 0) {
                memcpy(x + c * stride + first, row, width * sizeof(float));
            }
        }
        if (b->mlp.hidden == 0) {
            continue;
        }
        apply_mlp(&b->mlp, width, z + first, stride, hidden, tile, TGP_TILE);
        add_skip(m->mlp_skip, b->mlp_skip, m->channels, width, x + first, stride, tile, TGP_TILE);
        for (size_t c = 0; c < m->channels; c++) {
            if (m->norm == NORM_NONE && !is_last) {
                gelu(width, tile + c * TGP_TILE);
            }
            memcpy(x + c * stride + first, tile + c * TGP_TILE, width * sizeof(float));
        }
    }
}

/* x = (x - mean) / deviation, per channel or over all channels; affine: a factor and an offset. */
static void normalize(tgp_session *s, const float *affine, float *x) {
    const tgp_model *m = s->model;
    const size_t groups = m->norm == NORM_GROUP ? 1 : m->channels;
    const size_t channels = m->channels / groups, count = channels * s->padded;
    PARALLEL_FOR
    for (size_t g = 0; g < groups; g++) {
        float *values = x + g * count;
        double mean = 0, variance = 0;
        for (size_t i = 0; i < count; i++) {
            mean += (double)values[i];
        }
        mean /= (double)count;
        for (size_t i = 0; i < count; i++) {
            const double off = (double)values[i] - mean;
            variance += off * off;
        }
        const double scale = 1 / sqrt(variance / (double)count + 1e-5);
        for (size_t c = 0; c < channels; c++) {
            const size_t channel = g * channels + c;
            const double factor = affine ? scale * (double)affine[channel] : scale;
            const double summand = affine ? (double)affine[m->channels + channel] : 0;
            for (size_t i = 0; i < s->padded; i++) {
                float *value = values + c * s->padded + i;
                *value = (float)(((double)*value - mean) * factor + summand);
            }
        }
    }
}

/* ---- spectral convolution ---- */

/* Last dimension: (channels * rows, N) real -> (channels, 2, rows, kept). */
static void transform_last(tgp_session *s, const axis *a, size_t rows, const float *x, float *out) {
    PARALLEL_FOR
    for (size_t c = 0; c < s->model->channels; c++) {
        product p = {.m = rows,
                     .n = a->kept,
                     .k = a->padded,
                     .a = x + c * rows * a->padded,
                     .lda = a->padded,
                     .b = a->cosines,
                     .ldb = a->kept,
                     .ldc = a->kept};
        float *re = out + 2 * c * rows * a->kept;
        multiply(p, re);
        p.b = a->sines;
        multiply(p, re + rows * a->kept);
    }
}

static void inverse_last(tgp_session *s, const axis *a, size_t rows, const float *x, float *out) {
    PARALLEL_FOR
    for (size_t c = 0; c < s->model->channels; c++) {
        const float *re = x + 2 * c * rows * a->kept;
        product p = {.m = rows,
                     .n = a->padded,
                     .k = a->kept,
                     .a = re,
                     .lda = a->kept,
                     .b = a->back_cosines,
                     .ldb = a->padded,
                     .ldc = a->padded};
        multiply(p, out + c * rows * a->padded);
        p.a = re + rows * a->kept;
        p.b = a->back_sines;
        p.adds = 1;
        multiply(p, out + c * rows * a->padded);
    }
}

/* Another dimension: (channels, 2, outer, from, inner) -> (channels, 2, outer, to, inner), a
 * product with the complex table (cosines, sines) (to, from). */
static void transform_outer(tgp_session *s, const float *cosines, const float *sines, size_t outer,
                            size_t from, size_t to, size_t inner, const float *x, float *out) {
    PARALLEL_FOR
    for (size_t item = 0; item < s->model->channels * outer; item++) {
        const size_t c = item / outer, o = item % outer;
        const float *re = x + (2 * c * outer + o) * from * inner, *im = re + outer * from * inner;
        float *to_re = out + (2 * c * outer + o) * to * inner, *to_im = to_re + outer * to * inner;
        product p = {.m = to,
                     .n = inner,
                     .k = from,
                     .a = cosines,
                     .lda = from,
                     .b = re,
                     .ldb = inner,
                     .ldc = inner};
        multiply(p, to_re);
        p.b = im;
        multiply(p, to_im);
        p.a = sines;
        p.b = re;
        p.adds = 1;
        multiply(p, to_im);
        p.a = sines + from * to; /* the same, negative */
        p.b = im;
        multiply(p, to_re);
    }
}

/* y (channels, 2, kept) = x times the weight's modes of the kept frequencies. */
static void contract(tgp_session *s, const block *b, const float *x, float *y) {
    const tgp_model *m = s->model;
    const axis *last = &s->axes[m->dims - 1];
    int is_whole = 1;
    for (int d = 0; d < m->dims; d++) {
        is_whole = is_whole && s->axes[d].kept == m->modes[d];
    }
    const size_t run = is_whole ? s->kept : last->kept, rows = s->kept / run;
    PARALLEL_FOR
    for (size_t o = 0; o < m->channels; o++) {
        float *re = y + 2 * o * s->kept, *im = re + s->kept;
        memset(re, 0, 2 * s->kept * sizeof(float));
        for (size_t i = 0; i < m->channels; i++) {
            const float *xr = x + 2 * i * s->kept, *xi = xr + s->kept;
            const float *w = b->weight + 2 * (o * m->channels + i) * m->mode_count;
            for (size_t row = 0; row < rows; row++) {
                size_t mode = 0, rest = row, stride = m->modes[m->dims - 1];
                for (int d = m->dims - 2; d >= 0 && !is_whole; d--) {
                    mode += (rest % s->axes[d].kept + s->axes[d].window) * stride;
                    rest /= s->axes[d].kept;
                    stride *= m->modes[d];
                }
                const size_t at = row * run;
                add_complex_products(run, xr + at, xi + at, w + mode, w + mode + m->mode_count,
                                     re + at, im + at);
            }
        }
    }
}

/* z = the convolution of x, plus its bias. */
static void convolve(tgp_session *s, const block *b, const float *x, float *z) {
    const tgp_model *m = s->model;
    const int last = m->dims - 1;
    float *from = s->spectrum, *to = s->result;
    size_t outer = s->padded / s->axes[last].padded, inner = s->axes[last].kept;
    transform_last(s, &s->axes[last], outer, x, from);
    for (int d = last - 1; d >= 0; d--) {
        const axis *a = &s->axes[d];
        outer /= a->padded;
        transform_outer(s, a->cosines, a->sines, outer, a->padded, a->kept, inner, from, to);
        inner *= a->kept;
        float *swap = from;
        from = to;
        to = swap;
    }
    contract(s, b, from, to);
    for (int d = 0; d < last; d++) {
        const axis *a = &s->axes[d];
        inner /= a->kept;
        transform_outer(s, a->back_cosines, a->back_sines, outer, a->kept, a->padded, inner, to,
                        from);
        outer *= a->padded;
        float *swap = from;
        from = to;
        to = swap;
    }
    inverse_last(s, &s->axes[last], outer, to, z);
    for (size_t c = 0; c < m->channels; c++) {
        for (size_t i = 0; i < s->padded; i++) {
            z[c * s->padded + i] += b->bias[c];
        }
    }
}

/* ---- the whole network ---- */

/* Copies rows of the last dimension between a padded and an unpadded field. */
static void copy_inside(const tgp_session *s, float *padded, float *inside, int to_padded) {
    const tgp_model *m = s->model;
    const size_t width = s->axes[m->dims - 1].grid, rows = s->points / width;
    if (to_padded) {
        memset(padded, 0, m->channels * s->padded * sizeof(float));
    }
    for (size_t c = 0; c < m->channels; c++) {
        for (size_t row = 0; row < rows; row++) {
            size_t at = s->axes[m->dims - 1].before, rest = row;
            size_t stride = s->axes[m->dims - 1].padded;
            for (int d = m->dims - 2; d >= 0; d--) {
                at += (rest % s->axes[d].grid + s->axes[d].before) * stride;
                rest /= s->axes[d].grid;
                stride *= s->axes[d].padded;
            }
            float *a = padded + c * s->padded + at, *b = inside + c * s->points + row * width;
            memcpy(to_padded ? a : b, to_padded ? b : a, width * sizeof(float));
        }
    }
}

void tgp_predict(tgp_session *s, const float *x, float *y) {
    const tgp_model *m = s->model;
    const int pads = s->padded != s->points;
    const size_t count = m->channels * s->padded;
    float *field = s->field, *other = s->other;
    lift(s, x, pads ? other : field);
    if (pads) {
        copy_inside(s, field, other, 1);
    }
    for (int l = 0; l < m->layers; l++) {
        const block *b = &m->blocks[l];
        const int is_last = l + 1 == m->layers;
        if (m->is_tanh) { /* the spectrum is computed before `other` is overwritten */
            for (size_t i = 0; i < count; i++) {
                other[i] = tanhf(field[i]);
            }
        }
        convolve(s, b, m->is_tanh ? other : field, other);
        if (m->norm != NORM_NONE) {
            normalize(s, b->norm[0], other);
        }
        mix(s, b, is_last, field, other);
        if (m->norm != NORM_NONE && b->mlp.hidden > 0) {
            normalize(s, b->norm[1], field);
            if (!is_last) {
                gelu(count, field);
            }
        }
    }
    if (pads) {
        copy_inside(s, field, other, 0);
    }
    project(s, pads ? other : field, y);
}
