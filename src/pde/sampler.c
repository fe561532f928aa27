/* At the points j / N the exponentials of frequencies k and k + N coincide: every coefficient is
 * added to that of its frequency modulo N, and an inverse transform of N points gives the values. A
 * real field stores only the half k2 >= 0; with k2 > 0 counted twice, the real part of the sum is
 * the field. */
#include "pde/sampler.h"

#include <string.h>

struct tg_sampler {
    tg_backend *be;
    int ndim;
    int64_t resolution, points; /* N, N^ndim */
    tg_fft_plan *plan;          /* complex, of one field */
    double *folded;             /* (points) complex */
    double *values;             /* (points) complex */
};

void tg_sampler_destroy(tg_sampler **sampler) {
    if (!sampler || !*sampler) {
        return;
    }
    tg_sampler *s = *sampler;
    s->be->ops->fft_destroy(s->be, &s->plan);
    tg_mem_free(s->be->ctx, s->folded);
    tg_mem_free(s->be->ctx, s->values);
    TG_FREE(s->be->ctx, *sampler);
}

tg_status tg_sampler_create(tg_backend *be, int ndim, int64_t resolution, tg_sampler **out) {
    tg_status status = TG_OK;
    tg_sampler *s = NULL;
    tg_fft_desc desc = {.dtype = TG_F64, .complex = true, .ndim = ndim, .howmany = 1};
    *out = NULL;
    TG_TRY(TG_NEW(be->ctx, TG_MEM_WORKSPACE, s, 1));
    s->be = be;
    s->ndim = ndim;
    s->resolution = resolution;
    s->points = ndim == 1 ? resolution : resolution * resolution;
    for (int d = 0; d < ndim; d++) {
        desc.grid[d] = desc.kept[d] = resolution;
    }
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, s->folded, 2 * s->points));
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, s->values, 2 * s->points));
    TG_TRY(be->ops->fft_create(be, &desc, &s->plan));
    *out = s;
    return TG_OK;
fail:
    tg_sampler_destroy(&s);
    return status;
}

/* k modulo n in 0 .. n-1 */
static int64_t modulo(int64_t k, int64_t n) {
    const int64_t rest = k % n;
    return rest < 0 ? rest + n : rest;
}

/* Adds the coefficients of frequencies first .. first + count - 1 to a row of N. */
static void fold_row(int64_t n, int64_t first, int64_t count, double weight, const double *from,
                     double *row) {
    int64_t at = modulo(first, n);
    for (int64_t k = 0; k < count; k++) {
        row[2 * at] += weight * from[2 * k];
        row[2 * at + 1] += weight * from[2 * k + 1];
        at = at + 1 < n ? at + 1 : 0;
    }
}

static tg_status transform(tg_sampler *s) {
    return s->be->ops->fft(s->be, s->plan, TG_FFT_INVERSE, 1, TG_FFT_PLAIN, 1.0, s->folded,
                           s->values);
}

tg_status tg_sampler_real(tg_sampler *s, int64_t modes, const double *spectrum, float *out) {
    const int64_t n = s->resolution, columns = modes + 1;
    const int64_t first = s->ndim == 1 ? 0 : -modes, last = s->ndim == 1 ? 0 : modes;
    memset(s->folded, 0, 2 * (size_t)s->points * sizeof *s->folded);
    for (int64_t k1 = first; k1 <= last; k1++) {
        const double *from = spectrum + 2 * (k1 - first) * columns;
        double *row = s->folded + 2 * modulo(k1, n) * (s->ndim == 1 ? 0 : n);
        fold_row(n, 0, 1, 1.0, from, row);
        fold_row(n, 1, modes, 2.0, from + 2, row);
    }
    const tg_status status = transform(s);
    for (int64_t i = 0; i < s->points; i++) {
        out[i] = (float)s->values[2 * i];
    }
    return status;
}

tg_status tg_sampler_complex(tg_sampler *s, int64_t first, int64_t count, const double *spectrum,
                             float *out) {
    memset(s->folded, 0, 2 * (size_t)s->points * sizeof *s->folded);
    fold_row(s->resolution, first, count, 1.0, spectrum, s->folded);
    const tg_status status = transform(s);
    for (int64_t i = 0; i < 2 * s->points; i++) {
        out[i] = (float)s->values[i];
    }
    return status;
}

void tg_samplers_close(tg_samplers *samplers) {
    for (int i = 0; i < samplers->count; i++) {
        tg_sampler_destroy(&samplers->item[i]);
    }
    samplers->count = 0;
}

tg_status tg_samplers_open(tg_backend *be, int ndim, int count, const int64_t *resolution,
                           tg_samplers *out) {
    *out = (tg_samplers){0};
    for (int i = 0; i < count; i++) {
        TG_CALL(tg_sampler_create(be, ndim, resolution[i], &out->item[i]));
        out->count = i + 1;
    }
    return TG_OK;
}
