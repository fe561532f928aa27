/* Argument checks and reports of paths, shared by the backends. */
#include "backend/check.h"

#include <stdarg.h>
#include <stdio.h>

#include "backend/state_codec.h"
#include "base/minmax.h"

tg_dtype tg_stored(tg_dtype dtype, tg_storage store) {
    const bool is_complex = tg_dtype_is_complex(dtype);
    switch (store) {
    case TG_STORE_BF16:
        return is_complex ? TG_CBF16 : TG_BF16;
    case TG_STORE_F16:
        return is_complex ? TG_CF16 : TG_F16;
    case TG_STORE_FULL:
        break;
    }
    return dtype;
}

tg_storage tg_storage_of(tg_dtype dtype) {
    const tg_dtype real = tg_dtype_real(dtype);
    return real == TG_BF16 ? TG_STORE_BF16 : real == TG_F16 ? TG_STORE_F16 : TG_STORE_FULL;
}

static tg_status check_dtype(tg_context *ctx, const char *slot, bool holds, const char *needed,
                             tg_dtype dtype) {
    return holds ? TG_OK
                 : tg_fail(ctx, TG_E_DTYPE, "%s: %s is needed, not %s", slot, needed,
                           tg_dtype_name(dtype));
}

tg_status tg_check_float(tg_context *ctx, const char *slot, tg_dtype d) {
    return check_dtype(ctx, slot, tg_dtype_is_float(d), "a float dtype", d);
}

tg_status tg_check_real(tg_context *ctx, const char *slot, tg_dtype d) {
    return check_dtype(ctx, slot, d == TG_F32 || d == TG_F64, "f32 or f64", d);
}

tg_status tg_check_real_float(tg_context *ctx, const char *slot, tg_dtype d) {
    return check_dtype(ctx, slot, tg_dtype_is_float(d) && !tg_dtype_is_complex(d),
                       "a real float dtype", d);
}

tg_status tg_check_double(tg_context *ctx, const char *slot, tg_dtype d) {
    return check_dtype(ctx, slot, d == TG_F64 || d == TG_C128, "f64 or c128", d);
}

tg_status tg_check_store(tg_context *ctx, const char *slot, tg_dtype dtype, tg_storage store) {
    if (store == TG_STORE_FULL) {
        return TG_OK;
    }
    if (store != TG_STORE_BF16 && store != TG_STORE_F16) {
        return tg_fail(ctx, TG_E_ARGUMENT, "%s: storage %d is not known", slot, (int)store);
    }
    return dtype == TG_F32 || dtype == TG_C64
               ? TG_OK
               : tg_fail(ctx, TG_E_DTYPE, "%s: 16-bit formats are read as f32 or c64, not as %s",
                         slot, tg_dtype_name(dtype));
}

static tg_status check_layer(tg_context *ctx, const char *slot, tg_dtype dtype, tg_storage store) {
    TG_CALL(tg_check_real(ctx, slot, dtype));
    return tg_check_store(ctx, slot, dtype, store);
}

tg_status tg_check_skip(tg_context *ctx, const tg_skip *op) {
    return check_layer(ctx, "skip", op->dtype, op->store);
}

tg_status tg_check_norm(tg_context *ctx, const tg_norm *op) {
    return check_layer(ctx, "norm", op->dtype, op->store);
}

void tg_norm_means(const tg_norm *op, int64_t group, double *sum, double *sum_n) {
    if (op->part == TG_NORM_MEASURE) {
        op->means[2 * group] = *sum;
        op->means[2 * group + 1] = *sum_n;
    } else if (op->part == TG_NORM_APPLY) {
        *sum = op->means[2 * group];
        *sum_n = op->means[2 * group + 1];
    }
}

tg_status tg_check_mlp(tg_context *ctx, const tg_mlp *op) {
    TG_CALL(check_layer(ctx, "mlp", op->dtype, op->x_store));
    return tg_check_store(ctx, "mlp", op->dtype, op->y_store);
}

tg_status tg_check_spectral(tg_context *ctx, const tg_spectral *op) {
    static const char *const slot = "spectral_contract";
    const bool is_complex = op->dtype == TG_C64 || op->dtype == TG_C128;
    TG_CALL(check_dtype(ctx, slot, is_complex, "c64 or c128", op->dtype));
    TG_CALL(tg_check_store(ctx, slot, op->dtype, op->store));
    return tg_check_store(ctx, slot, op->dtype, op->weight_store);
}

tg_status tg_check_source(tg_context *ctx, const char *slot, tg_dtype dtype,
                          const tg_grad_source *source) {
    TG_CALL(tg_check_float(ctx, slot, dtype));
    return tg_check_store(ctx, slot, dtype, source->store);
}

static bool is_transposed(tg_op op) {
    return op == TG_OP_T || op == TG_OP_H;
}

tg_status tg_check_gemm(tg_context *ctx, const tg_gemm *gemm) {
    TG_CALL(tg_check_float(ctx, "gemm", gemm->dtype));
    if (gemm->m < 0 || gemm->n < 0 || gemm->k < 0 || gemm->batch < 0) {
        return tg_fail(ctx, TG_E_SHAPE, "gemm: m %lld, n %lld, k %lld, batch %lld: one is negative",
                       (long long)gemm->m, (long long)gemm->n, (long long)gemm->k,
                       (long long)gemm->batch);
    }
    const struct {
        const char *name;
        int64_t ld, columns;
    } rows[3] = {{"lda", gemm->lda, is_transposed(gemm->op_a) ? gemm->m : gemm->k},
                 {"ldb", gemm->ldb, is_transposed(gemm->op_b) ? gemm->k : gemm->n},
                 {"ldc", gemm->ldc, gemm->n}};
    for (int i = 0; i < 3; i++) {
        if (rows[i].ld < rows[i].columns) {
            return tg_fail(ctx, TG_E_SHAPE, "gemm: %s is %lld, but a row has %lld elements",
                           rows[i].name, (long long)rows[i].ld, (long long)rows[i].columns);
        }
    }
    return TG_OK;
}

tg_status tg_check_fft(tg_context *ctx, const tg_fft_desc *desc) {
    TG_CALL(tg_check_real(ctx, "fft", desc->dtype));
    if (desc->ndim < 1 || desc->ndim > 3) {
        return tg_fail(ctx, TG_E_SHAPE, "fft: %d dimensions; 1, 2 or 3 are possible", desc->ndim);
    }
    const tg_storage stores[2] = {desc->grid_store, desc->kept_store};
    for (int i = 0; i < 2; i++) {
        TG_CALL(tg_check_store(ctx, "fft", desc->dtype, stores[i]));
    }
    tg_shape whole = {.ndim = desc->ndim + 1, .dim = {desc->howmany}};
    for (int d = 0; d < desc->ndim; d++) {
        const int64_t grid = desc->grid[d], kept = desc->kept[d], first = desc->first[d];
        const bool halved = !desc->complex && d == desc->ndim - 1;
        const int64_t most = halved ? grid / 2 + 1 : grid;
        if (grid < 1 || kept < 1 || kept > most) {
            return tg_fail(ctx, TG_E_SHAPE,
                           "fft: dimension %d keeps %lld of %lld points; 1 .. %lld are possible", d,
                           (long long)kept, (long long)grid, (long long)most);
        }
        if (halved ? first != 0 : first <= -grid || first >= grid) {
            return tg_fail(ctx, TG_E_ARGUMENT,
                           "fft: dimension %d of %lld points starts at frequency %lld%s", d,
                           (long long)grid, (long long)first,
                           halved ? "; the last one of real data starts at 0" : "");
        }
        whole.dim[d + 1] = grid;
    }
    if (tg_shape_numel(&whole) < 0) {
        return tg_fail(ctx, TG_E_SHAPE,
                       "fft: %lld transforms of this grid are negative or too many",
                       (long long)desc->howmany);
    }
    return TG_OK;
}

tg_status tg_check_select(tg_context *ctx, const tg_select *op) {
    return op->k >= 0 && op->k <= op->bitmap->n
               ? TG_OK
               : tg_fail(ctx, TG_E_ARGUMENT, "select: %lld of %lld entries cannot be kept",
                         (long long)op->k, (long long)op->bitmap->n);
}

tg_status tg_check_adam(tg_context *ctx, const tg_adam *op) {
    const bool is_half = op->grad_store != TG_STORE_FULL || op->weight_store != TG_STORE_FULL;
    TG_CALL(tg_check_float(ctx, "adam", op->dtype));
    if (is_half && op->dtype != TG_F32 && op->dtype != TG_C64) {
        return tg_fail(ctx, TG_E_DTYPE, "adam: 16-bit formats are read as f32 or c64, not as %s",
                       tg_dtype_name(op->dtype));
    }
    if (op->form != TG_STATE_FULL && op->dtype != TG_F32 && op->dtype != TG_C64) {
        return tg_fail(ctx, TG_E_DTYPE, "adam: only moments of f32 and c64 have compact formats");
    }
    if ((int)op->form >= TG_STATE_FORMS) {
        return tg_fail(ctx, TG_E_ARGUMENT, "adam: there is no state format number %d",
                       (int)op->form);
    }
    if (tg_state_codecs[op->form]->block > 0 && (!op->m_scale || (op->v && !op->v_scale))) {
        return tg_fail(ctx, TG_E_ARGUMENT, "adam: moments of %d bits need scales",
                       tg_state_codecs[op->form]->bits);
    }
    return TG_OK;
}

tg_status tg_source_count(tg_backend *be, const tg_multimode *modes, const tg_grad_source *source,
                          uint32_t *count) {
    const tg_dtype stored = tg_stored(modes->dtype, source->store);
    const int64_t numel = tg_product(modes->ndim, modes->dim);
    if (source->dense) {
        return be->ops->count_nonfinite(be, stored, numel, source->dense, count);
    }
    const int64_t n0 = numel / modes->dim[1] * source->batch;
    const int64_t n1 = numel / modes->dim[0] * source->batch;
    TG_CALL(be->ops->count_nonfinite(be, stored, n0, source->x, count));
    return be->ops->count_nonfinite(be, stored, n1, source->dy, count);
}

tg_status tg_compress_count(tg_backend *be, const tg_compress *op) {
    return op->guard ? tg_source_count(be, &op->modes, &op->source, op->guard) : TG_OK;
}

/* The stream of the rounding at the step of the rates. */
static const tg_rng *rounding_at(const tg_rng *rounding, const tg_rates *rates, tg_rng *out) {
    if (!rounding) {
        return NULL;
    }
    *out = *rounding;
    out->step = rates ? rates->step : rounding->step;
    return out;
}

tg_status tg_adam_resolve(tg_backend *be, const tg_adam *op, tg_adam *out, tg_rng *rounding,
                          bool *goes) {
    tg_status status = tg_check_adam(be->ctx, op);
    *out = *op;
    out->rounding = rounding_at(op->rounding, op->rates, rounding);
    if (op->rates) {
        out->alpha = op->rates->alpha;
        out->beta = op->rates->beta;
        out->scale = op->rates->scale;
    }
    if (status == TG_OK && op->guard && op->counts) {
        const tg_dtype dtype = tg_stored(op->dtype, op->grad_store);
        status = be->ops->count_nonfinite(be, dtype, op->n, op->grad, op->guard);
    }
    *goes = status == TG_OK && !(op->guard && *op->guard > 0);
    return status;
}

bool tg_expand_resolve(const tg_expand *op, tg_expand *out, tg_rng *rounding) {
    *out = *op;
    out->rounding = rounding_at(op->rounding, op->rates, rounding);
    if (op->rates) {
        out->alpha = op->rates->alpha;
        out->beta = op->rates->beta;
    }
    return !(op->guard && *op->guard > 0);
}

/* ---- paths ---- */

static bool is_logged(const tg_backend *be) {
    return be->ctx && be->ctx->config.log && be->ctx->config.log_level <= TG_LOG_DEBUG;
}

void tg_path_report(const tg_backend *be, const char *op, tg_path path, const char *sizes, ...) {
    char text[160];
    va_list args;
    if (!is_logged(be)) {
        return;
    }
    va_start(args, sizes);
    vsnprintf(text, sizeof text, sizes, args);
    va_end(args);
    tg_log(be->ctx, TG_LOG_DEBUG, TG_PATH_MARK "%s\t%s\t%s\t%s", op, text, path.name, path.kernels);
}

void tg_path_report_modes(const tg_backend *be, const char *op, tg_path path,
                          const tg_multimode *modes) {
    char dims[64], ranks[64];
    if (is_logged(be)) {
        const tg_shape from = tg_shape_of(modes->ndim, modes->dim);
        const tg_shape to = tg_shape_of(modes->ndim, modes->rank);
        tg_path_report(be, op, path, "%s to %s", tg_shape_text(&from, dims, sizeof dims),
                       tg_shape_text(&to, ranks, sizeof ranks));
    }
}

void tg_path_report_mlp(const tg_backend *be, const tg_mlp *op, bool backward, tg_path path) {
    tg_path_report(be, backward ? "mlp backward" : "mlp", path, "%lld to %lld to %lld",
                   (long long)op->in, (long long)op->hidden, (long long)op->out);
}

void tg_path_report_skip(const tg_backend *be, const tg_skip *op, bool backward, tg_path path) {
    tg_path_report(be, backward ? "skip backward" : "skip", path, "%lld to %lld", (long long)op->in,
                   (long long)op->out);
}
