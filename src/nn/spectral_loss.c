/* The Sobolev norm of order s of an error e on the unit periodic grid of P points, by its Fourier
 * coefficients E_k = sum_x e(x) exp(-2 pi i k.x):
 *
 *   |e|_s^2 = 1/P sum_k w_k |E_k|^2,   w_k = (1 + |2 pi k|^2)^s
 *
 * which is sum |e|^2 for s = 0. Its gradient is F^-1(w E) / (P |e|_s). Of a real transform half of
 * the spectrum is stored: entries with a partner count twice. Images (a channel of a sample) are
 * worked on one after the other, on the host. */
#include "nn/spectral_loss.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "nn/reals.h"

#define PI 3.14159265358979323846

/* Every frequency of the grid, the last dimension of real data from 0 on. */
static tg_fft_desc describe(const tg_loss_op *op) {
    tg_fft_desc desc = {
        .dtype = op->dtype, .complex = op->components == 2, .ndim = op->ndim, .howmany = 1};
    for (int d = 0; d < op->ndim; d++) {
        const bool is_half = !desc.complex && d == op->ndim - 1;
        const int64_t n = op->grid[d];
        desc.grid[d] = n;
        desc.kept[d] = is_half ? n / 2 + 1 : n;
        desc.first[d] = is_half ? 0 : -(n / 2);
    }
    return desc;
}

void nn_spectral_free(tg_backend *be, nn_spectral *work) {
    if (be) {
        be->ops->fft_destroy(be, &work->fft);
        tg_mem_free(be->ctx, work->error);
        tg_mem_free(be->ctx, work->spectrum);
        tg_mem_free(be->ctx, work->weights);
    }
    *work = (nn_spectral){0};
}

tg_status nn_spectral_prepare(tg_backend *be, const tg_loss_op *op, nn_spectral *work) {
    const tg_fft_desc desc = describe(op);
    if (work->fft && work->desc.dtype == desc.dtype && work->desc.complex == desc.complex &&
        work->desc.ndim == desc.ndim && memcmp(work->desc.grid, desc.grid, sizeof desc.grid) == 0) {
        return TG_OK;
    }
    tg_status status = TG_OK;
    const size_t real = tg_dtype_size(desc.dtype);
    nn_spectral_free(be, work);
    work->desc = desc;
    work->components = op->components;
    work->points = tg_product(desc.ndim, desc.grid);
    work->kept = tg_product(desc.ndim, desc.kept);
    const size_t numbers = (size_t)(work->points * op->components);
    TG_TRY(be->ops->fft_create(be, &desc, &work->fft));
    work->error = tg_mem_alloc(be->ctx, TG_MEM_WORKSPACE, numbers, real);
    work->spectrum = tg_mem_alloc(be->ctx, TG_MEM_WORKSPACE, (size_t)work->kept, 2 * real);
    work->weights = tg_mem_alloc(be->ctx, TG_MEM_WORKSPACE, (size_t)work->kept, sizeof(double));
    TG_TRY(work->error && work->spectrum && work->weights ? TG_OK : TG_E_MEMORY);
fail:
    if (status != TG_OK) {
        nn_spectral_free(be, work);
    }
    return status;
}

static void set_weights(nn_spectral *work, double order) {
    const tg_fft_desc *desc = &work->desc;
    for (int64_t i = 0; i < work->kept; i++) {
        double square = 1.0;
        for (int64_t d = desc->ndim - 1, left = i; d >= 0; left /= desc->kept[d], d--) {
            const double k = 2.0 * PI * (double)(desc->first[d] + left % desc->kept[d]);
            square += k * k;
        }
        work->weights[i] = pow(square, order);
    }
}

/* 2 for a coefficient of half a spectrum that stands for another one, too. */
static double count_of(const nn_spectral *work, int64_t i) {
    const int last = work->desc.ndim - 1;
    const int64_t k = i % work->desc.kept[last];
    return work->desc.complex || k == 0 || 2 * k == work->desc.grid[last] ? 1.0 : 2.0;
}

/* |.|_s of what stands in the spectrum, which the weights may be multiplied into. */
static double norm_of(nn_spectral *work, bool multiply) {
    const tg_dtype dtype = work->desc.dtype;
    double sum = 0.0;
    for (int64_t i = 0; i < work->kept; i++) {
        const double re = nn_get_real(dtype, work->spectrum, 2 * i);
        const double im = nn_get_real(dtype, work->spectrum, 2 * i + 1);
        sum += count_of(work, i) * work->weights[i] * (re * re + im * im);
        if (multiply) {
            nn_set_real(dtype, work->spectrum, 2 * i, work->weights[i] * re);
            nn_set_real(dtype, work->spectrum, 2 * i + 1, work->weights[i] * im);
        }
    }
    return sqrt(sum / (double)work->points);
}

/* dpred = beta dpred + factor * what the inverse transform left; the factors 0 and NaN stand for
 * themselves. */
static void add_gradient(const nn_spectral *work, double factor, double beta, int64_t first,
                         void *dpred) {
    const tg_dtype dtype = work->desc.dtype;
    for (int64_t i = 0; i < work->points * work->components; i++) {
        const double old = beta == 0.0 ? 0.0 : beta * nn_get_real(dtype, dpred, first + i);
        const double slope = factor == 0.0 ? 0.0 : factor * nn_get_real(dtype, work->error, i);
        nn_set_real(dtype, dpred, first + i, old + slope);
    }
}

/* Image n of the call. */
static tg_status add_image(tg_backend *be, nn_spectral *work, const tg_loss_op *op, int64_t n) {
    const tg_backend_ops *ops = be->ops;
    const int64_t size = work->points * work->components, first = n * size;
    double unit = sqrt((double)work->points);
    if (op->relative) {
        const char *target = (const char *)op->target + (size_t)first * tg_dtype_size(op->dtype);
        TG_CALL(ops->fft_forward(be, work->fft, 1, TG_FFT_PLAIN, 1.0, target, work->spectrum));
        unit = norm_of(work, false);
        unit = unit == 0.0 ? 1.0 : unit;
    }
    for (int64_t i = 0; i < size; i++) {
        nn_set_real(op->dtype, work->error, i,
                    nn_get_real(op->dtype, op->pred, first + i) -
                        nn_get_real(op->dtype, op->target, first + i));
    }
    TG_CALL(ops->fft_forward(be, work->fft, 1, TG_FFT_PLAIN, 1.0, work->error, work->spectrum));
    const double norm = norm_of(work, op->dpred != NULL), weight = tg_loss_weight(op, n);
    const double loss = weight * norm / unit;
    *op->value += loss;
    if (op->dpred) {
        const double factor = op->grad_scale * weight / (unit * norm * (double)work->points);
        TG_CALL(ops->fft_inverse(be, work->fft, 1, TG_FFT_PLAIN, 1.0, work->spectrum, work->error));
        add_gradient(work,
                     !isfinite(loss) ? (double)NAN
                     : norm == 0.0   ? 0.0
                                     : factor,
                     op->beta, first, op->dpred);
    }
    return TG_OK;
}

tg_status nn_spectral_add(tg_backend *be, nn_spectral *work, const tg_loss_op *op) {
    tg_status status = nn_spectral_prepare(be, op, work);
    if (status == TG_OK) {
        set_weights(work, op->p);
    }
    for (int64_t n = 0; n < op->images && status == TG_OK; n++) {
        status = add_image(be, work, op, n);
    }
    return status;
}
