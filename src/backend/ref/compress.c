/* Compressed gradients: gather, multilinear projection and expansion, one mode and one element at a
 * time.
 *
 * The workspace holds two arrays of complex doubles as large as the largest intermediate tensor; a
 * mode product reads one and writes the other. */
#include "backend/check.h"
#include "backend/ref/ref.h"
#include "base/minmax.h"

/* Elements of the largest tensor between (dim..) and (rank..), for any order of modes. */
static int64_t largest(const tg_multimode *modes) {
    int64_t numel = 1;
    for (int d = 0; d < modes->ndim; d++) {
        numel *= tg_max(modes->dim[d], modes->rank[d]);
    }
    return numel;
}

size_t ref_compress_workspace(const tg_multimode *modes) {
    return 2 * (size_t)largest(modes) * sizeof(tg_scalar);
}

/* Element i of the gradient, dense or as its sum over the batch. */
static tg_scalar source_load(const tg_multimode *modes, const tg_grad_source *source, int64_t i) {
    const tg_dtype stored = tg_stored(modes->dtype, source->store);
    if (source->dense) {
        return tg_load(stored, source->dense, i);
    }
    const int64_t frequencies = tg_product(modes->ndim - 2, modes->dim + 2);
    const int64_t k = i % frequencies;
    const int64_t o = i / frequencies % modes->dim[1];
    const int64_t c = i / frequencies / modes->dim[1];
    tg_scalar sum = {0};
    for (int64_t b = 0; b < source->batch; b++) {
        const tg_scalar x = tg_load(stored, source->x, (b * modes->dim[0] + c) * frequencies + k);
        const tg_scalar dy = tg_load(stored, source->dy, (b * modes->dim[1] + o) * frequencies + k);
        sum = ref_add(sum, ref_mul(ref_conj(x), dy));
    }
    return sum;
}

/* Contracts every mode of `tensor` (size[d] entries each, updated) with U^H (forward) or U; returns
 * the buffer of the result. */
static tg_scalar *all_modes(const tg_multimode *modes, bool forward, tg_scalar *tensor,
                            tg_scalar *other) {
    int64_t size[TG_MAX_NDIM];
    for (int d = 0; d < modes->ndim; d++) {
        size[d] = forward ? modes->dim[d] : modes->rank[d];
    }
    for (int d = 0; d < modes->ndim; d++) {
        if (!modes->factor[d]) {
            continue;
        }
        const int64_t left = tg_product(d, size),
                      right = tg_product(modes->ndim - d - 1, size + d + 1);
        const int64_t from = size[d], to = forward ? modes->rank[d] : modes->dim[d];
        for (int64_t l = 0; l < left; l++) {
            for (int64_t j = 0; j < to; j++) {
                for (int64_t r = 0; r < right; r++) {
                    tg_scalar sum = {0};
                    for (int64_t i = 0; i < from; i++) {
                        const int64_t at =
                            forward ? i * modes->rank[d] + j : j * modes->rank[d] + i;
                        tg_scalar u = tg_load(modes->dtype, modes->factor[d], at);
                        u = forward ? ref_conj(u) : u;
                        sum = ref_add(sum, ref_mul(u, tensor[(l * from + i) * right + r]));
                    }
                    other[(l * to + j) * right + r] = sum;
                }
            }
        }
        size[d] = to;
        tg_scalar *swap = tensor;
        tensor = other;
        other = swap;
    }
    return tensor;
}

/* array[i] = beta array[i] + scale value; beta = 0 does not read. A 16-bit array is rounded by the
 * stream, NULL: to nearest. */
static void blend(tg_dtype dtype, void *array, int64_t i, double beta, double scale,
                  tg_scalar value, const tg_rng *rounding) {
    tg_scalar sum = {scale * value.re, scale * value.im};
    if (beta != 0.0) {
        const tg_scalar old = tg_load(dtype, array, i);
        sum = ref_add(sum, (tg_scalar){beta * old.re, beta * old.im});
    }
    tg_store_rounded(dtype, array, i, sum, rounding);
}

tg_status ref_compress(tg_backend *be, const tg_compress *op) {
    const tg_multimode *modes = &op->modes;
    TG_CALL(tg_check_source(be->ctx, "compress", modes->dtype, &op->source));
    TG_CALL(tg_compress_count(be, op));
    tg_path_report_modes(be, "project", (tg_path){"reference", "loops"}, modes);
    const int64_t numel = tg_product(modes->ndim, modes->dim);
    tg_scalar *tensor = op->workspace;
    int64_t position = 0;
    for (int64_t i = 0; i < numel; i++) {
        tg_scalar g = source_load(modes, &op->source, i);
        if (op->bitmap && tg_bitmap_has(op->bitmap, i)) {
            if (op->values) {
                blend(modes->dtype, op->values, position++, op->beta, op->scale, g, NULL);
            }
            g = op->masked ? (tg_scalar){0} : g;
        }
        if (op->core) {
            tensor[i] = g;
        }
    }
    if (op->core) {
        const tg_scalar *core = all_modes(modes, true, tensor, tensor + largest(modes));
        const int64_t count = tg_product(modes->ndim, modes->rank);
        for (int64_t i = 0; i < count; i++) {
            blend(modes->dtype, op->core, i, op->beta, op->scale, core[i], NULL);
        }
    }
    return TG_OK;
}

/* Expands the core to the full tensor, in one of the two buffers of the workspace. */
static tg_scalar *expand_core(const tg_multimode *modes, const void *core, void *workspace) {
    tg_scalar *tensor = workspace;
    const int64_t count = tg_product(modes->ndim, modes->rank);
    for (int64_t i = 0; i < count; i++) {
        tensor[i] = tg_load(modes->dtype, core, i);
    }
    return all_modes(modes, false, tensor, tensor + largest(modes));
}

tg_status ref_expand(tg_backend *be, const tg_expand *call) {
    tg_expand resolved;
    tg_rng rounding;
    const tg_expand *op = &resolved;
    if (!tg_expand_resolve(call, &resolved, &rounding)) {
        return TG_OK;
    }
    const tg_multimode *modes = &op->modes;
    const tg_dtype stored = tg_stored(modes->dtype, op->out_store);
    tg_path_report_modes(be, "expand", (tg_path){"reference", "loops"}, modes);
    const tg_scalar *full = op->core ? expand_core(modes, op->core, op->workspace) : NULL;
    const int64_t numel = tg_product(modes->ndim, modes->dim);
    int64_t position = 0;
    for (int64_t i = 0; i < numel; i++) {
        tg_scalar sum = full ? full[i] : (tg_scalar){0};
        if (op->values && tg_bitmap_has(op->bitmap, i)) {
            const tg_scalar v = tg_load(modes->dtype, op->values, position++);
            sum = ref_add(sum, (tg_scalar){op->lambda * v.re, op->lambda * v.im});
        }
        blend(stored, op->out, i, op->beta, op->alpha, sum, op->rounding);
    }
    return TG_OK;
}

tg_status ref_sample(tg_backend *be, const tg_sample *op) {
    (void)be;
    const tg_scalar *full = expand_core(&op->modes, op->core, op->workspace);
    const int64_t numel = tg_product(op->modes.ndim, op->modes.dim);
    int64_t position = 0;
    for (int64_t i = 0; i < numel; i++) {
        if (tg_bitmap_has(op->bitmap, i)) {
            blend(op->modes.dtype, op->values, position++, 1.0, op->alpha, full[i], NULL);
        }
    }
    return TG_OK;
}

tg_status ref_grad_dense(tg_backend *be, const tg_multimode *modes, const tg_grad_source *source,
                         double scale, void *out) {
    TG_CALL(tg_check_source(be->ctx, "grad_dense", modes->dtype, source));
    const int64_t numel = tg_product(modes->ndim, modes->dim);
    for (int64_t i = 0; i < numel; i++) {
        blend(modes->dtype, out, i, 0.0, scale, source_load(modes, source, i), NULL);
    }
    return TG_OK;
}
