/* Index sets as bitmaps: ranks, and reading, adding to or clearing the kept entries.
 *
 * Parts begin at blocks of 512 entries, whose rank says where their values begin, so that no part
 * waits for another. Inside, set bits are found word by word. */
#include "backend/cpu/cpu.h"

#include <string.h>

#include "backend/check.h"
#include "tensor/half.h"

enum {
    BLOCK = 512,       /* entries of one rank */
    THREAD_BLOCKS = 64 /* fewer are not worth a thread */
};

static int parts_for(const tg_backend *be, const tg_bitmap *bitmap) {
    return cpu_parts(be, tg_bitmap_ranks(bitmap->n), THREAD_BLOCKS);
}

/* Words [begin, end) of a part. */
static tg_range words_of(const tg_bitmap *bitmap, int parts, int part) {
    const tg_range r = tg_partition(bitmap->n, BLOCK, parts, part);
    return (tg_range){r.begin / 64, tg_bitmap_words(r.end)};
}

tg_status cpu_bitmap_rank(tg_backend *be, tg_bitmap *bitmap) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    cpu_partial *partials = cpu_state_of(be)->partials;
    const int parts = parts_for(be, bitmap);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = words_of(bitmap, parts, p);
        partials[p].count = k->popcount(r.end - r.begin, bitmap->words + r.begin);
    }
    int64_t before = 0;
    for (int p = 0; p < parts; p++) {
        const int64_t here = partials[p].count;
        partials[p].count = before;
        before += here;
    }
    bitmap->count = before;
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = words_of(bitmap, parts, p);
        int64_t count = partials[p].count;
        for (int64_t w = r.begin; w < r.end; w += BLOCK / 64) {
            const int64_t words = r.end - w < BLOCK / 64 ? r.end - w : BLOCK / 64;
            bitmap->ranks[w / (BLOCK / 64)] = (uint32_t)count;
            count += k->popcount(words, bitmap->words + w);
        }
    }
    return TG_OK;
}

/* Bytes of an element are all that gather and clear need to know. */
typedef uint16_t bytes2;
typedef uint32_t bytes4;
typedef uint64_t bytes8;
typedef struct bytes16 {
    uint64_t half[2];
} bytes16;

#define ELEMENT bytes2
#define NAME(x) x##_2
#include "backend/cpu/bitmap.inc"

#define ELEMENT bytes4
#define NAME(x) x##_4
#include "backend/cpu/bitmap.inc"

#define ELEMENT bytes8
#define NAME(x) x##_8
#include "backend/cpu/bitmap.inc"

#define ELEMENT bytes16
#define NAME(x) x##_16
#include "backend/cpu/bitmap.inc"

typedef void (*gather_fn)(const uint64_t *words, tg_range r, const void *x, void *values);
typedef void (*clear_fn)(const uint64_t *words, tg_range r, void *x);

static gather_fn gather_for(tg_dtype dtype) {
    const size_t size = tg_dtype_size(dtype);
    return size == 2 ? gather_2 : size == 4 ? gather_4 : size == 8 ? gather_8 : gather_16;
}

static clear_fn clear_for(tg_dtype dtype) {
    const size_t size = tg_dtype_size(dtype);
    return size == 2 ? clear_2 : size == 4 ? clear_4 : size == 8 ? clear_8 : clear_16;
}

/* Where the values of a part begin. */
static size_t values_at(const tg_bitmap *bitmap, tg_dtype dtype, tg_range words) {
    return words.begin < words.end
               ? (size_t)bitmap->ranks[words.begin / (BLOCK / 64)] * tg_dtype_size(dtype)
               : 0;
}

tg_status cpu_bitmap_gather(tg_backend *be, tg_dtype dtype, const tg_bitmap *bitmap, const void *x,
                            void *values) {
    TG_CALL(tg_check_float(be->ctx, "bitmap_gather", dtype));
    const gather_fn gather = gather_for(dtype);
    const int parts = parts_for(be, bitmap);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = words_of(bitmap, parts, p);
        gather(bitmap->words, r, x, (char *)values + values_at(bitmap, dtype, r));
    }
    return TG_OK;
}

tg_status cpu_bitmap_clear(tg_backend *be, tg_dtype dtype, const tg_bitmap *bitmap, const void *x,
                           void *out) {
    TG_CALL(tg_check_float(be->ctx, "bitmap_clear", dtype));
    const size_t size = tg_dtype_size(dtype);
    const clear_fn clear = clear_for(dtype);
    const int parts = parts_for(be, bitmap);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range all = words_of(bitmap, parts, p);
        for (int64_t w = all.begin; w < all.end; w += BLOCK / 64) { /* while it is in cache */
            const tg_range r = {w, all.end - w < BLOCK / 64 ? all.end : w + BLOCK / 64};
            const int64_t end = r.end * 64 < bitmap->n ? r.end * 64 : bitmap->n;
            if (out != x) {
                memcpy((char *)out + (size_t)w * 64 * size, (const char *)x + (size_t)w * 64 * size,
                       (size_t)(end - w * 64) * size);
            }
            clear(bitmap->words, r, out);
        }
    }
    return TG_OK;
}

/* ---- scatter ---- */

#define REAL    float
#define NAME(x) x##_f32
#include "backend/cpu/scatter.inc"

#define REAL    double
#define NAME(x) x##_f64
#include "backend/cpu/scatter.inc"

static void scatter_half(const uint64_t *words, tg_range r, tg_dtype dtype, tg_scalar alpha,
                         const char *values, void *x) {
    const double im = tg_dtype_is_complex(dtype) ? alpha.im : 0.0;
    for (int64_t w = r.begin; w < r.end; w++) {
        for (uint64_t bits = words[w]; bits; bits &= bits - 1) {
            const int64_t i = w * 64 + __builtin_ctzll(bits);
            const tg_scalar v = tg_load(dtype, values, 0);
            tg_scalar sum = tg_load(dtype, x, i);
            sum.re += alpha.re * v.re - im * v.im;
            sum.im += alpha.re * v.im + im * v.re;
            tg_store(dtype, x, i, sum);
            values += tg_dtype_size(dtype);
        }
    }
}

tg_status cpu_bitmap_scatter(tg_backend *be, tg_dtype dtype, const tg_bitmap *bitmap,
                             tg_scalar alpha, const void *values, void *x) {
    TG_CALL(tg_check_float(be->ctx, "bitmap_scatter", dtype));
    const tg_dtype real = tg_dtype_real(dtype);
    const bool pairs = tg_dtype_is_complex(dtype);
    const int parts = parts_for(be, bitmap);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = words_of(bitmap, parts, p);
        const char *from = (const char *)values + values_at(bitmap, dtype, r);
        if (real == TG_F32) {
            scatter_f32(bitmap->words, r, pairs, alpha, (const void *)from, x);
        } else if (real == TG_F64) {
            scatter_f64(bitmap->words, r, pairs, alpha, (const void *)from, x);
        } else {
            scatter_half(bitmap->words, r, dtype, alpha, from, x);
        }
    }
    return TG_OK;
}
