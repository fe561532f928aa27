/* Shared by all backends: argument checks, so that a wrong call gives the same error everywhere
 * (`slot` names the operation in the error), and reports of paths. */
#ifndef TG_BACKEND_CHECK_H
#define TG_BACKEND_CHECK_H

#include "backend/backend.h"

/* One of the eight float dtypes. */
TG_NODISCARD tg_status tg_check_float(tg_context *ctx, const char *slot, tg_dtype dtype);

/* f32 or f64: the dtypes of activations. */
TG_NODISCARD tg_status tg_check_real(tg_context *ctx, const char *slot, tg_dtype dtype);

/* Storage of arrays of a dtype: full, or f32 and c64 in 16 bits. */
TG_NODISCARD tg_status tg_check_store(tg_context *ctx, const char *slot, tg_dtype dtype,
                                      tg_storage store);

/* dtype and storage of the neural-operator slots, and of a gradient's source. */
TG_NODISCARD tg_status tg_check_skip(tg_context *ctx, const tg_skip *op);
TG_NODISCARD tg_status tg_check_mlp(tg_context *ctx, const tg_mlp *op);
TG_NODISCARD tg_status tg_check_norm(tg_context *ctx, const tg_norm *op);
/* Writes the means of a group of a norm that is measured, reads those of one that is applied. */
void tg_norm_means(const tg_norm *op, int64_t group, double *sum, double *sum_n);
TG_NODISCARD tg_status tg_check_spectral(tg_context *ctx, const tg_spectral *op);
TG_NODISCARD tg_status tg_check_source(tg_context *ctx, const char *slot, tg_dtype dtype,
                                       const tg_grad_source *source);

/* A real float dtype, the 16-bit ones included. */
TG_NODISCARD tg_status tg_check_real_float(tg_context *ctx, const char *slot, tg_dtype dtype);

/* f64 or c128: the dtypes of decompositions. */
TG_NODISCARD tg_status tg_check_double(tg_context *ctx, const char *slot, tg_dtype dtype);

/* Sizes not negative, leading dimensions large enough, no stride 0 for several matrices C. */
TG_NODISCARD tg_status tg_check_gemm(tg_context *ctx, const tg_gemm *gemm);

/* Every field of the description is in range. */
TG_NODISCARD tg_status tg_check_fft(tg_context *ctx, const tg_fft_desc *desc);

/* 0 <= k <= bitmap->n. */
TG_NODISCARD tg_status tg_check_select(tg_context *ctx, const tg_select *op);

/* A float dtype; 16-bit ones only as storage of f32 or c64. */
TG_NODISCARD tg_status tg_check_adam(tg_context *ctx, const tg_adam *op);

/* Adds the NaN and Inf in a gradient's entries or factors to a count, or to a call's guard. */
TG_NODISCARD tg_status tg_source_count(tg_backend *be, const tg_multimode *modes,
                                       const tg_grad_source *source, uint32_t *count);
TG_NODISCARD tg_status tg_compress_count(tg_backend *be, const tg_compress *op);

/* For host backends: the call with its rates read; `rounding` is storage for its stream. *goes is
 * false if the guard stops it. */
TG_NODISCARD tg_status tg_adam_resolve(tg_backend *be, const tg_adam *op, tg_adam *out,
                                       tg_rng *rounding, bool *goes);
/* Elements [first, first + n), at most TG_STATE_BLOCK of them, of a resolved call: decodes the
 * moments, applies the kernel, and encodes them again. */
void tg_rule_block(const tg_adam *op, int64_t first, int64_t n);
bool tg_expand_resolve(const tg_expand *op, tg_expand *out, tg_rng *rounding);

/* ---- reports of paths ----
 *
 * Which implementation a backend uses for a call, where a slot has several: messages of level debug
 * to the context's log. Without a listener they cost a comparison. */

/* Begins every report; op, sizes, path and kernels follow, separated by tabs. */
#define TG_PATH_MARK "path\t"

/* A path, and its kernels in the order in which they run. */
typedef struct tg_path {
    const char *name, *kernels;
} tg_path;

/* `sizes`: those that the choice depends on. */
TG_PRINTF(4, 5)
void tg_path_report(const tg_backend *be, const char *op, tg_path path, const char *sizes, ...);

/* Of a call on the modes of a tensor: "64x64x64x33 to 16x16x16x8". */
void tg_path_report_modes(const tg_backend *be, const char *op, tg_path path,
                          const tg_multimode *modes);

/* Of an MLP or a skip: its channels. */
void tg_path_report_mlp(const tg_backend *be, const tg_mlp *op, bool backward, tg_path path);
void tg_path_report_skip(const tg_backend *be, const tg_skip *op, bool backward, tg_path path);

#endif
