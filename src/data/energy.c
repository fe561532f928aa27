/* E(k) = sum of |F_q|^2 over the wave vectors q with |q| nearest to k and over the channels, F the
 * Fourier coefficients: the sum over k is the mean of |y|^2, except for the corners of the square
 * of wave vectors, beyond half of the shortest side. */
#include "data/dataset.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"

int64_t tg_energy_wavenumbers(int n_dim, const int64_t *grid) {
    if (!grid || n_dim < 1 || n_dim > TG_DATA_MAX_DIMS) {
        return 0;
    }
    int64_t least = grid[0];
    for (int d = 1; d < n_dim; d++) {
        least = tg_min(least, grid[d]);
    }
    return least < 1 ? 0 : least / 2 + 1;
}

void tg_energy_close(tg_energy *energy) {
    if (energy->be) {
        energy->be->ops->fft_destroy(energy->be, &energy->plan);
        tg_mem_free(energy->be->ctx, energy->coefficients);
    }
    tg_tensor_destroy(&energy->values);
    tg_backend_close(&energy->be);
}

tg_status tg_energy_open(tg_context *ctx, tg_dtype dtype, int n_dim, const int64_t *grid,
                         tg_energy *out) {
    const bool is_complex = tg_dtype_is_complex(dtype);
    const tg_shape shape = tg_shape_of(n_dim, grid);
    *out = (tg_energy){.dtype = dtype, .kept = 1, .count = tg_energy_wavenumbers(n_dim, grid)};
    out->desc = (tg_fft_desc){.dtype = TG_F64, .complex = is_complex, .ndim = n_dim, .howmany = 1};
    for (int d = 0; d < n_dim; d++) {
        const bool is_half = !is_complex && d == n_dim - 1;
        out->desc.grid[d] = grid[d];
        out->desc.kept[d] = is_half ? grid[d] / 2 + 1 : grid[d];
        out->desc.first[d] = is_half ? 0 : -(grid[d] / 2);
        out->kept *= out->desc.kept[d];
    }
    TG_CALL(tg_backend_open(ctx, "cpu", &out->be));
    TG_CALL(out->be->ops->fft_create(out->be, &out->desc, &out->plan));
    TG_CALL(tg_tensor_create(ctx, TG_MEM_WORKSPACE, is_complex ? TG_C128 : TG_F64, &shape,
                             &out->values));
    return TG_ALLOC(ctx, TG_MEM_WORKSPACE, out->coefficients, 2 * out->kept);
}

/* |q| of coefficient i and its multiplicity: real data stores half of the coefficients. */
static double wave_number(const tg_fft_desc *desc, int64_t i, double *times) {
    double square = 0.0;
    *times = 1.0;
    for (int d = desc->ndim - 1; d >= 0; d--) {
        const int64_t q = desc->first[d] + i % desc->kept[d];
        if (d == desc->ndim - 1 && !desc->complex) {
            *times = q > 0 && 2 * q != desc->grid[d] ? 2.0 : 1.0;
        }
        square += (double)(q * q);
        i /= desc->kept[d];
    }
    return sqrt(square);
}

tg_status tg_energy_add(tg_energy *energy, const void *field, int64_t channels, double weight,
                        double *sums) {
    tg_backend *be = energy->be;
    const int64_t points = tg_tensor_numel(&energy->values);
    const size_t bytes = (size_t)points * tg_dtype_size(energy->dtype);
    for (int64_t c = 0; c < channels; c++) {
        const tg_tensor channel = {.dtype = energy->dtype,
                                   .shape = energy->values.shape,
                                   .data = (char *)(uintptr_t)field + (size_t)c * bytes};
        TG_CALL(tg_tensor_convert(be->ctx, &channel, &energy->values));
        TG_CALL(be->ops->fft(be, energy->plan, TG_FFT_FORWARD, 1, TG_FFT_PLAIN,
                             1.0 / (double)points, energy->values.data, energy->coefficients));
        for (int64_t i = 0; i < energy->kept; i++) {
            double times;
            const int64_t k = llround(wave_number(&energy->desc, i, &times));
            const double *v = energy->coefficients + 2 * i;
            if (k < energy->count) {
                sums[k] += weight * times * (v[0] * v[0] + v[1] * v[1]);
            }
        }
    }
    return TG_OK;
}

/* Whether the spectrum of a tensor can be computed. */
static tg_status check_fields(tg_context *ctx, const tg_tensor *fields, int64_t count) {
    const tg_shape *shape = &fields->shape;
    char text[128];
    if (fields->place != TG_HOST || !fields->data) {
        return tg_fail(ctx, TG_E_ARGUMENT, "fields: they are %s",
                       fields->data ? "on a device, a spectrum is made on the host" : "NULL");
    }
    if (shape->ndim < 3 || shape->ndim > 2 + TG_DATA_MAX_DIMS || tg_shape_numel(shape) < 1) {
        return tg_fail(ctx, TG_E_SHAPE,
                       "fields: %s, expected (samples, channels, grid..) with 1 to %d dimensions",
                       tg_shape_text(shape, text, sizeof text), TG_DATA_MAX_DIMS);
    }
    const int64_t most = tg_energy_wavenumbers(shape->ndim - 2, shape->dim + 2);
    if (count < 1 || count > most) {
        return tg_fail(ctx, TG_E_ARGUMENT, "count: %lld wave numbers, %s has 1 to %lld",
                       (long long)count, tg_shape_text(shape, text, sizeof text), (long long)most);
    }
    return TG_OK;
}

tg_status tg_energy_spectrum(tg_context *ctx, const tg_tensor *fields, int64_t count,
                             double *energy) {
    TG_NEED(ctx, ctx, fields, energy);
    tg_energy of = {0};
    tg_status status = TG_OK;
    TG_CALL(check_fields(ctx, fields, count));
    const int64_t *dim = fields->shape.dim;
    const size_t bytes = tg_tensor_bytes(fields) / (size_t)dim[0];
    memset(energy, 0, (size_t)count * sizeof *energy);
    TG_TRY(tg_energy_open(ctx, fields->dtype, fields->shape.ndim - 2, dim + 2, &of));
    of.count = count;
    for (int64_t s = 0; s < dim[0]; s++) {
        TG_TRY(tg_energy_add(&of, (const char *)fields->data + (size_t)s * bytes, dim[1],
                             1.0 / (double)dim[0], energy));
    }
fail:
    tg_energy_close(&of);
    return status;
}
