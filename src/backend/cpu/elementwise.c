/* Elementwise operations, reductions, quantization and random numbers: contiguous parts, one per
 * thread, in cache-sized blocks for dtypes that must be widened first. 16-bit formats are computed
 * in f32. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "backend/check.h"
#include "backend/quantize.h"

enum {
    BLOCK = 1024,           /* reals widened at a time, on the stack */
    THREAD_BYTES = 1 << 15, /* less memory than this is not worth a thread */
    LINE = 64               /* parts begin at cache lines (in elements, enough for any dtype) */
};

static int parts_for(const tg_backend *be, tg_dtype dtype, int64_t n) {
    return cpu_parts(be, n, THREAD_BYTES / (int64_t)tg_dtype_size(dtype));
}

static const char *at_const(tg_dtype dtype, const void *x, int64_t i) {
    return (const char *)x + (size_t)i * tg_dtype_size(dtype);
}

static char *at(tg_dtype dtype, void *x, int64_t i) {
    return (char *)x + (size_t)i * tg_dtype_size(dtype);
}

static int reals_of(tg_dtype dtype) {
    return tg_dtype_is_complex(dtype) ? 2 : 1;
}

static bool is_half(tg_dtype dtype) {
    const tg_dtype real = tg_dtype_real(dtype);
    return real == TG_BF16 || real == TG_F16;
}

/* ---- copy and fill ---- */

tg_status cpu_copy(tg_backend *be, void *dst, const void *src, size_t bytes) {
    if (bytes == 0) {
        return TG_OK;
    }
    const int parts = cpu_parts(be, (int64_t)bytes, 4 * THREAD_BYTES);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition((int64_t)bytes, 4096, parts, p);
        memcpy((char *)dst + r.begin, (const char *)src + r.begin, (size_t)(r.end - r.begin));
    }
    return TG_OK;
}

/* Doubles the filled part until the range is full. */
static void fill_range(size_t size, const char *element, size_t bytes, char *x) {
    size_t done = size < bytes ? size : bytes;
    memcpy(x, element, done);
    while (done < bytes) {
        const size_t most = done < THREAD_BYTES ? done : THREAD_BYTES;
        const size_t next = bytes - done < most ? bytes - done : most;
        memcpy(x + done, x, next);
        done += next;
    }
}

tg_status cpu_fill(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar value, void *x) {
    tg_status status = tg_check_float(be->ctx, "fill", dtype);
    if (status != TG_OK || n <= 0) {
        return status;
    }
    char element[16];
    tg_store(dtype, element, 0, value);
    const int parts = parts_for(be, dtype, n);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(n, LINE, parts, p);
        fill_range(tg_dtype_size(dtype), element, (size_t)(r.end - r.begin) * tg_dtype_size(dtype),
                   at(dtype, x, r.begin));
    }
    return TG_OK;
}

/* ---- convert ---- */

/* n reals of one real dtype to another. */
static void convert_reals(const cpu_kernels *k, int64_t n, tg_dtype from, const void *src,
                          tg_dtype to, void *dst) {
    if (from == TG_F32) {
        k->store_f32(to, n, src, dst);
    } else if (to == TG_F32) {
        k->load_f32(from, n, src, dst);
    } else if (to == TG_F64) {
        k->load_f64(from, n, src, dst);
    } else {
        float block[BLOCK];
        for (int64_t i = 0; i < n; i += BLOCK) {
            const int64_t count = n - i < BLOCK ? n - i : BLOCK;
            k->load_f32(from, count, at_const(from, src, i), block);
            k->store_f32(to, count, block, at(to, dst, i));
        }
    }
}

/* Real to complex, or complex to real, through doubles; n elements. */
static void convert_mixed(int64_t n, tg_dtype from, const void *src, tg_dtype to, void *dst) {
    for (int64_t i = 0; i < n; i++) {
        tg_store(to, dst, i, tg_load(from, src, i));
    }
}

tg_status cpu_convert(tg_backend *be, int64_t n, tg_dtype src_dtype, const void *src,
                      tg_dtype dst_dtype, void *dst) {
    TG_CALL(tg_check_float(be->ctx, "convert", src_dtype));
    TG_CALL(tg_check_float(be->ctx, "convert", dst_dtype));
    if (src_dtype == dst_dtype) {
        return cpu_copy(be, dst, src, (size_t)n * tg_dtype_size(src_dtype));
    }
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const int parts = parts_for(be, src_dtype, n);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(n, LINE, parts, p);
        const void *from = at_const(src_dtype, src, r.begin);
        void *to = at(dst_dtype, dst, r.begin);
        if (reals_of(src_dtype) == reals_of(dst_dtype)) {
            convert_reals(k, reals_of(src_dtype) * (r.end - r.begin), tg_dtype_real(src_dtype),
                          from, tg_dtype_real(dst_dtype), to);
        } else {
            convert_mixed(r.end - r.begin, src_dtype, from, dst_dtype, to);
        }
    }
    return TG_OK;
}

/* ---- axpy and scale ---- */

/* The kernels of f32 or f64, and of pairs of them. */
static const cpu_reals *reals_for(const cpu_kernels *k, tg_dtype dtype) {
    return tg_dtype_real(dtype) == TG_F32 ? &k->f32 : &k->f64;
}

/* y += alpha x, or y = alpha y if x is NULL, for a 16-bit format: block by block through f32. */
static void update_half(const cpu_kernels *k, tg_dtype dtype, int64_t n, tg_scalar alpha,
                        const void *x, void *y) {
    float bx[BLOCK], by[BLOCK];
    const tg_dtype real = tg_dtype_real(dtype);
    const int64_t reals = reals_of(dtype), step = BLOCK / reals;
    for (int64_t i = 0; i < n; i += step) {
        const int64_t count = n - i < step ? n - i : step;
        k->load_f32(real, reals * count, at(dtype, y, i), by);
        if (x) {
            k->load_f32(real, reals * count, at_const(dtype, x, i), bx);
        }
        k->f32.update(reals == 2, count, alpha, x ? bx : NULL, by);
        k->store_f32(real, reals * count, by, at(dtype, y, i));
    }
}

static void update(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar alpha, const void *x,
                   void *y) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const bool pairs = tg_dtype_is_complex(dtype);
    const int parts = parts_for(be, dtype, n);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(n, LINE, parts, p);
        const int64_t count = r.end - r.begin;
        const void *xp = x ? at_const(dtype, x, r.begin) : NULL;
        void *yp = at(dtype, y, r.begin);
        if (is_half(dtype)) {
            update_half(k, dtype, count, alpha, xp, yp);
        } else {
            reals_for(k, dtype)->update(pairs, count, alpha, xp, yp);
        }
    }
}

tg_status cpu_axpy(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar alpha, const void *x,
                   void *y) {
    TG_CALL(tg_check_float(be->ctx, "axpy", dtype));
    if (n > 0) {
        update(be, dtype, n, alpha, x, y);
    }
    return TG_OK;
}

/* ---- reductions ---- */

/* Adds the norms of x, or only the sum of its squares, to `sum`. */
static void reduce(const cpu_kernels *k, tg_dtype dtype, bool squares, int64_t n, const void *x,
                   cpu_partial *sum) {
    const bool pairs = tg_dtype_is_complex(dtype);
    const cpu_reals *reals = is_half(dtype) ? &k->f32 : reals_for(k, dtype);
    if (!is_half(dtype)) {
        (squares ? reals->squares : reals->norms)(pairs, n, x, sum);
        return;
    }
    const int64_t step = BLOCK / reals_of(dtype);
    for (int64_t i = 0; i < n; i += step) {
        float block[BLOCK];
        const int64_t count = n - i < step ? n - i : step;
        k->load_f32(tg_dtype_real(dtype), reals_of(dtype) * count, at_const(dtype, x, i), block);
        (squares ? reals->squares : reals->norms)(pairs, count, block, sum);
    }
}

tg_status cpu_norms(tg_backend *be, tg_dtype dtype, int64_t n, const void *x, tg_norms *out) {
    *out = (tg_norms){0};
    TG_CALL(tg_check_float(be->ctx, "norms", dtype));
    if (n <= 0) {
        return TG_OK;
    }
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    cpu_partial *partials = cpu_state_of(be)->partials;
    const int parts = parts_for(be, dtype, n);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(n, LINE, parts, p);
        partials[p] = (cpu_partial){0};
        reduce(k, dtype, false, r.end - r.begin, at_const(dtype, x, r.begin), &partials[p]);
    }
    for (int p = 0; p < parts; p++) { /* in their order */
        out->sum_squares += partials[p].re;
        out->max_abs = fmax(out->max_abs, partials[p].max);
        out->nonfinite += partials[p].count;
    }
    return TG_OK;
}

/* Long runs: every part takes its slices run by run. */
static void slice_norms_long(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim,
                             int64_t right, const void *x, double *out) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const int parts = parts_for(be, dtype, left * dim * right);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(dim, 1, parts, p);
        for (int64_t l = 0; l < left; l++) {
            for (int64_t i = r.begin; i < r.end; i++) {
                cpu_partial sum = {0};
                reduce(k, dtype, true, right, at_const(dtype, x, (l * dim + i) * right), &sum);
                out[i] = (l > 0 ? out[i] : 0.0) + sum.re;
            }
        }
    }
}

/* Short runs: every part sums its left blocks into a separate (dim). A selection's keys are the
 * bits of the squares. */
static void slice_norms_short(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim,
                              int64_t right, const void *x, double *out) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const int parts = cpu_parts(be, left, 1 + THREAD_BYTES / (dim * right));
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(left, 1, parts, p);
        double *sums = cpu_scratch_of(be, p);
        memset(sums, 0, (size_t)dim * sizeof *sums);
        for (int64_t i = r.begin * dim * right; i < r.end * dim * right; i += BLOCK) {
            uint64_t keys[BLOCK];
            const int64_t rest = r.end * dim * right - i, count = rest < BLOCK ? rest : BLOCK;
            k->modulus_keys(dtype, count, at_const(dtype, x, i), keys);
            int64_t slice = i / right % dim, filled = i % right;
            for (int64_t j = 0; j < count; j++) {
                double square;
                memcpy(&square, &keys[j], sizeof square);
                sums[slice] += square;
                filled = filled + 1 == right ? 0 : filled + 1;
                slice = filled ? slice : (slice + 1 == dim ? 0 : slice + 1);
            }
        }
    }
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int p = 0; p < parts; p++) {
        const double *sums = cpu_scratch_of(be, p);
        for (int64_t i = 0; i < dim; i++) {
            out[i] += sums[i];
        }
    }
}

tg_status cpu_slice_norms(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim, int64_t right,
                          const void *x, double *out) {
    tg_status status = tg_check_float(be->ctx, "slice_norms", dtype);
    if (status != TG_OK || dim <= 0) {
        return status;
    }
    if (left <= 0 || right <= 0) {
        memset(out, 0, (size_t)dim * sizeof *out);
    } else if (right < 16 && (size_t)dim * sizeof *out <= CPU_SCRATCH) {
        slice_norms_short(be, dtype, left, dim, right, x, out);
    } else {
        slice_norms_long(be, dtype, left, dim, right, x, out);
    }
    return TG_OK;
}

/* 8-bit quantization (quantize.h): blocks in contiguous parts, one per thread. */

enum { GRAIN = 64 }; /* fewer blocks do not repay a thread */

/* Values of a block: fewer in the last one. */
static size_t values_in(int64_t n, int64_t block) {
    const int64_t left = n - block * TG_QUANTIZED_BLOCK;
    return (size_t)(left < TG_QUANTIZED_BLOCK ? left : TG_QUANTIZED_BLOCK);
}

static void quantize(tg_backend *be, int64_t n, const float *x, uint8_t *byte) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const int64_t blocks = tg_quantized_blocks(n);
    float *scale = (float *)(void *)(byte + tg_quantized_scales(n));
#pragma omp parallel for num_threads(cpu_team(be, cpu_parts(be, blocks, GRAIN))) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = b * TG_QUANTIZED_BLOCK;
        const size_t count = values_in(n, b);
        float last[TG_QUANTIZED_BLOCK] = {0};
        const bool is_whole = count == TG_QUANTIZED_BLOCK;
        if (!is_whole) {
            memcpy(last, x + at, count * sizeof *x);
        }
        scale[b] = k->quantize_block(is_whole ? x + at : last, byte + at);
    }
}

static void dequantize(tg_backend *be, int64_t n, const uint8_t *byte, float *x) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const int64_t blocks = tg_quantized_blocks(n);
    const float *scale = (const float *)(const void *)(byte + tg_quantized_scales(n));
#pragma omp parallel for num_threads(cpu_team(be, cpu_parts(be, blocks, GRAIN))) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = b * TG_QUANTIZED_BLOCK;
        const size_t count = values_in(n, b);
        if (count == TG_QUANTIZED_BLOCK) {
            k->dequantize_block(scale[b], byte + at, x + at);
            continue;
        }
        float last[TG_QUANTIZED_BLOCK];
        k->dequantize_block(scale[b], byte + at, last);
        memcpy(x + at, last, count * sizeof *x);
    }
}

tg_status cpu_quantize(tg_backend *be, const tg_quantization *op) {
    if (op->restores) {
        dequantize(be, op->n, op->from, op->to);
    } else {
        quantize(be, op->n, op->from, op->to);
    }
    return TG_OK;
}

/* Random numbers: element i depends only on its index, so parts are independent. */

/* x[i] = offset + factor * number of index first + i, as n reals of a real dtype. */
static void fill_part(const cpu_kernels *k, tg_dtype real, cpu_law law, const tg_rng *rng,
                      uint64_t first, double offset, double factor, int64_t n, char *x) {
    double numbers[BLOCK];
    float rounded[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t count = n - i < BLOCK ? n - i : BLOCK;
        void *to = x + (size_t)i * tg_dtype_size(real);
        k->random_numbers(law, rng, first + (uint64_t)i, count, numbers);
        for (int64_t j = 0; j < count; j++) {
            numbers[j] = offset + factor * numbers[j];
        }
        if (real == TG_F64) {
            k->load_f64(TG_F64, count, numbers, to);
        } else {
            k->load_f32(TG_F64, count, numbers, rounded);
            k->store_f32(real, count, rounded, to);
        }
    }
}

/* A pair takes two numbers. */
tg_status cpu_random(tg_backend *be, const tg_random *op) {
    tg_status status = tg_check_float(be->ctx, "random", op->dtype);
    if (status != TG_OK || op->n <= 0) {
        return status;
    }
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const bool is_normal = op->law == TG_RANDOM_NORMAL;
    const tg_dtype real = tg_dtype_real(op->dtype);
    const int64_t pair = tg_dtype_is_complex(op->dtype) ? 2 : 1, reals = pair * op->n;
    const int parts = cpu_parts(be, reals, 4 * BLOCK);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(reals, BLOCK, parts, p);
        fill_part(k, real, is_normal ? CPU_NORMAL : CPU_UNIFORM, &op->rng,
                  (uint64_t)pair * op->first + (uint64_t)r.begin, op->a,
                  is_normal ? op->b : op->b - op->a, r.end - r.begin,
                  (char *)op->x + (size_t)r.begin * tg_dtype_size(real));
    }
    return TG_OK;
}
