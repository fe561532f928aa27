/* Kernels of compressed gradients for any CPU: rows of B times single elements of A, with inner
 * loops that compilers vectorize. */
#include "backend/cpu/compress.h"
#include "tensor/half.h"

/* c (n floats) = beta c */
static void scale_row(int64_t n, float beta, float *c) {
    for (int64_t j = 0; j < n; j++) {
        c[j] = beta == 0.0f ? 0.0f : beta * c[j];
    }
}

static void product_f32(const cpu_product *p) {
    for (int64_t i = 0; i < p->m; i++) {
        float *c = p->c + i * p->ldc;
        scale_row(p->n, p->beta, c);
        for (int64_t q = 0; q < p->k; q++) {
            const float a = p->alpha * p->a[i * p->row_a + q * p->col_a];
            const float *b = p->b + q * p->ldb;
            for (int64_t j = 0; j < p->n; j++) {
                c[j] += a * b[j];
            }
        }
    }
}

static void product_c64(const cpu_product *p) {
    const float sign_b = p->conj_b ? -1.0f : 1.0f;
    for (int64_t i = 0; i < p->m; i++) {
        float *c = p->c + 2 * i * p->ldc;
        scale_row(2 * p->n, p->beta, c);
        for (int64_t q = 0; q < p->k; q++) {
            const float *a = p->a + 2 * (i * p->row_a + q * p->col_a);
            const float re = p->alpha * a[0], im = p->alpha * (p->conj_a ? -a[1] : a[1]);
            const float *b = p->b + 2 * q * p->ldb;
            for (int64_t j = 0; j < p->n; j++) {
                const float b_re = b[2 * j], b_im = sign_b * b[2 * j + 1];
                c[2 * j] += re * b_re - im * b_im;
                c[2 * j + 1] += re * b_im + im * b_re;
            }
        }
    }
}

/* Real number i of a factor. */
static float load_stored(tg_storage store, const void *x, int64_t i) {
    switch (store) {
    case TG_STORE_BF16:
        return tg_bf16_to_f32(((const uint16_t *)x)[i]);
    case TG_STORE_F16:
        return tg_f16_to_f32(((const uint16_t *)x)[i]);
    case TG_STORE_FULL:
        break;
    }
    return ((const float *)x)[i];
}

static void stretch_f32(const cpu_stretch *s) {
    for (int64_t at = 0; at < s->rows * s->n; at++) {
        const int64_t i = at / s->n, j = at % s->n;
        float sum = 0.0f;
        for (int64_t b = 0; b < s->batch; b++) {
            sum += load_stored(s->store, s->x, b * s->step_x + i * s->row_x + j) *
                   load_stored(s->store, s->dy, b * s->step_dy + j);
        }
        s->out[i * s->row_out + j] = s->scale * sum;
    }
}

static void stretch_c64(const cpu_stretch *s) {
    for (int64_t at = 0; at < s->rows * s->n; at++) {
        const int64_t i = at / s->n, j = at % s->n;
        float re = 0.0f, im = 0.0f;
        for (int64_t b = 0; b < s->batch; b++) {
            const int64_t at_x = 2 * (b * s->step_x + i * s->row_x + j);
            const int64_t at_dy = 2 * (b * s->step_dy + j);
            const float xr = load_stored(s->store, s->x, at_x);
            const float xi = load_stored(s->store, s->x, at_x + 1);
            const float yr = load_stored(s->store, s->dy, at_dy);
            const float yi = load_stored(s->store, s->dy, at_dy + 1);
            re += xr * yr + xi * yi;
            im += xr * yi - xi * yr;
        }
        float *out = s->out + 2 * (i * s->row_out + j);
        out[0] = s->scale * re;
        out[1] = s->scale * im;
    }
}

static void dot_f32(int64_t n, const float *a, const float *b, float alpha, float *value) {
    float sum = 0.0f;
    for (int64_t j = 0; j < n; j++) {
        sum += a[j] * b[j];
    }
    *value += alpha * sum;
}

static void dot_c64(int64_t n, const float *a, const float *b, float alpha, float *value) {
    float re = 0.0f, im = 0.0f;
    for (int64_t j = 0; j < 2 * n; j += 2) {
        re += a[j] * b[j] - a[j + 1] * b[j + 1];
        im += a[j] * b[j + 1] + a[j + 1] * b[j];
    }
    value[0] += alpha * re;
    value[1] += alpha * im;
}

static void kept_f32(const cpu_kept_list *list) {
    for (int64_t e = 0; e < list->count; e++) {
        cpu_kept *entry = &list->entries[e];
        const int64_t at = entry->row * list->channels + entry->channel;
        entry->g[0] = 0.0f;
        dot_f32(list->batch, list->x + at * list->batch, list->dy + entry->row * list->batch, 1.0f,
                entry->g);
        const float *u = list->u + entry->channel * list->rank;
        for (int64_t j = 0; list->out && j < list->rank; j++) {
            list->out[entry->row * list->rank + j] -= entry->g[0] * u[j];
        }
    }
}

static void kept_c64(const cpu_kept_list *list) {
    const int64_t batch = 2 * list->batch, rank = 2 * list->rank;
    for (int64_t e = 0; e < list->count; e++) {
        cpu_kept *entry = &list->entries[e];
        const int64_t at = entry->row * list->channels + entry->channel;
        entry->g[0] = entry->g[1] = 0.0f;
        dot_c64(list->batch, list->x + at * batch, list->dy + entry->row * batch, 1.0f, entry->g);
        const float re = entry->g[0], im = entry->g[1], *u = list->u + entry->channel * rank;
        float *out = list->out ? list->out + entry->row * rank : NULL;
        for (int64_t j = 0; out && j < rank; j += 2) {
            out[j] -= re * u[j] + im * u[j + 1];
            out[j + 1] -= im * u[j] - re * u[j + 1];
        }
    }
}

const cpu_compress_kernels cpu_compress_plain = {
    .product_f32 = product_f32,
    .product_c64 = product_c64,
    .product_few_c64 = product_c64,
    .stretch_f32 = stretch_f32,
    .stretch_c64 = stretch_c64,
    .dot_f32 = dot_f32,
    .dot_c64 = dot_c64,
    .kept_f32 = kept_f32,
    .kept_c64 = kept_c64,
};
