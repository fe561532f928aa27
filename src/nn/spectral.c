/* Between the grid and the kept modes: pairs are joined and split, the stabilizer applied, and
 * spectra of a grid with too few frequencies moved into the weight's window. On the host image by
 * image, which stays in the caches; where work is queued all images of the batch at once. */
#include "nn/layers.h"

static int64_t image_size(const tg_fno *fno) {
    return fno->model.config.hidden_channels * fno->run.geometry.padded_pixels;
}

/* Image b of plane q. */
static void *image_at(const tg_fno *fno, const void *x, int q, int64_t b) {
    return nn_element(nn_activation_dtype(&fno->model), x,
                      (q * fno->run.batch + b) * image_size(fno));
}

static void *spectrum_at(const tg_fno *fno, const void *spectrum, int64_t b) {
    return nn_element(nn_spectrum_dtype(&fno->model), spectrum,
                      b * fno->model.config.hidden_channels * fno->model.mode_count);
}

/* Images from number b on that one call takes. */
static int64_t images_from(const tg_fno *fno, int64_t b) {
    const int64_t left = fno->run.batch - b;
    return left < fno->run.images ? left : fno->run.images;
}

/* Between the modes of this grid and the weight's. */
static tg_status window(const tg_fno *fno, bool inwards, int64_t images, const void *src,
                        void *dst) {
    const nn_geometry *g = &fno->run.geometry;
    tg_box box = {.dtype = nn_spectrum_dtype(&fno->model),
                  .ndim = fno->model.config.n_dim,
                  .howmany = images * fno->model.config.hidden_channels,
                  .clear = inwards,
                  .src = src,
                  .dst = dst};
    for (int d = 0; d < box.ndim; d++) {
        const int64_t modes = fno->model.modes[d];
        box.size[d] = g->kept[d];
        box.src_dim[d] = inwards ? g->kept[d] : modes;
        box.src_at[d] = inwards ? 0 : g->window[d];
        box.dst_dim[d] = inwards ? modes : g->kept[d];
        box.dst_at[d] = inwards ? g->window[d] : 0;
    }
    return fno->be->ops->box_copy(fno->be, &box);
}

tg_status nn_transform(tg_fno *fno, tg_fft_weight weight, double scale, bool stabilize,
                       const void *x, void *spectrum) {
    tg_status status = TG_OK;
    const tg_backend_ops *ops = fno->be->ops;
    const tg_dtype dtype = nn_activation_dtype(&fno->model);
    const nn_run *run = &fno->run;
    const int64_t channels = fno->model.config.hidden_channels;
    const bool pairs = fno->model.planes == 2;
    for (int64_t b = 0, images; b < run->batch; b += images) {
        images = images_from(fno, b);
        const int64_t size = images * image_size(fno);
        const void *image = image_at(fno, x, 0, b);
        if (pairs) {
            TG_TRY(
                ops->planes_join(fno->be, dtype, size, image, image_at(fno, x, 1, b), run->image));
            image = run->image;
        }
        if (stabilize) {
            TG_TRY(ops->act_forward(fno->be, dtype, TG_ACT_TANH, pairs ? 2 * size : size, image,
                                    run->image));
            image = run->image;
        }
        void *whole = spectrum_at(fno, spectrum, b);
        void *kept = run->geometry.windowed ? run->kept : whole;
        TG_TRY(ops->fft_forward(fno->be, run->fft, images * channels, weight, scale, image, kept));
        if (run->geometry.windowed) {
            TG_TRY(window(fno, true, images, kept, whole));
        }
    }
fail:
    return status;
}

tg_status nn_inverse(tg_fno *fno, tg_fft_weight weight, double scale, const void *spectrum,
                     void *y) {
    tg_status status = TG_OK;
    const tg_backend_ops *ops = fno->be->ops;
    const tg_dtype dtype = nn_activation_dtype(&fno->model);
    const nn_run *run = &fno->run;
    const int64_t channels = fno->model.config.hidden_channels;
    const bool pairs = fno->model.planes == 2;
    for (int64_t b = 0, images; b < run->batch; b += images) {
        images = images_from(fno, b);
        const void *kept = spectrum_at(fno, spectrum, b);
        if (run->geometry.windowed) {
            TG_TRY(window(fno, false, images, kept, run->kept));
            kept = run->kept;
        }
        void *image = pairs ? run->image : image_at(fno, y, 0, b);
        TG_TRY(ops->fft_inverse(fno->be, run->fft, images * channels, weight, scale, kept, image));
        if (pairs) {
            TG_TRY(ops->planes_split(fno->be, dtype, images * image_size(fno), image,
                                     image_at(fno, y, 0, b), image_at(fno, y, 1, b)));
        }
    }
fail:
    return status;
}

tg_status nn_multiply(tg_fno *fno, int param, bool adjoint, const void *src, void *dst) {
    const int64_t channels = fno->model.config.hidden_channels;
    const tg_spectral op = {.dtype = tg_dtype_complex(nn_dtype(fno)),
                            .adjoint = adjoint,
                            .batch = fno->run.batch,
                            .in = channels,
                            .out = channels,
                            .modes = fno->model.mode_count,
                            .weight = nn_weight(fno, param),
                            .src = src,
                            .dst = dst,
                            .weight_store = fno->model.stores.weight,
                            .store = fno->model.stores.spectrum};
    return fno->be->ops->spectral_contract(fno->be, &op);
}

tg_status nn_unstabilize(tg_fno *fno, tg_act act, const void *x, void *dx) {
    tg_status status = TG_OK;
    const tg_backend_ops *ops = fno->be->ops;
    const tg_dtype dtype = nn_activation_dtype(&fno->model);
    for (int q = 0; q < fno->model.planes; q++) {
        for (int64_t b = 0, images; b < fno->run.batch; b += images) {
            images = images_from(fno, b);
            const int64_t size = images * image_size(fno);
            void *gradient = image_at(fno, dx, q, b);
            TG_TRY(ops->act_forward(fno->be, dtype, act, size, image_at(fno, x, q, b),
                                    fno->run.image));
            TG_TRY(ops->act_backward(fno->be, dtype, TG_ACT_TANH, size, fno->run.image, gradient,
                                     gradient));
        }
    }
fail:
    return status;
}

/* Between the grid of the data and the padded one. */
static tg_status pad_or_crop(tg_fno *fno, bool pad, const void *src, void *dst) {
    const nn_geometry *g = &fno->run.geometry;
    tg_box box = {.dtype = nn_activation_dtype(&fno->model),
                  .ndim = fno->model.config.n_dim,
                  .howmany = fno->model.planes * fno->run.batch * fno->model.config.hidden_channels,
                  .clear = pad,
                  .src = src,
                  .dst = dst};
    for (int d = 0; d < box.ndim; d++) {
        box.size[d] = g->grid[d];
        box.src_dim[d] = pad ? g->grid[d] : g->padded[d];
        box.src_at[d] = pad ? 0 : g->pad_before[d];
        box.dst_dim[d] = pad ? g->padded[d] : g->grid[d];
        box.dst_at[d] = pad ? g->pad_before[d] : 0;
    }
    return fno->be->ops->box_copy(fno->be, &box);
}

tg_status nn_pad(tg_fno *fno, const void *x, void *padded) {
    return pad_or_crop(fno, true, x, padded);
}

tg_status nn_crop(tg_fno *fno, const void *padded, void *x) {
    return pad_or_crop(fno, false, padded, x);
}
