/* Index sets as bitmaps: ranks, and clearing the kept entries.
 *
 * Parts begin at blocks of 512 entries, whose rank is the offset of their values, so that parts are
 * independent. Within a block, set bits are found word by word. */
#include "backend/cpu/cpu.h"

#include <string.h>

#include "backend/check.h"

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

void cpu_bitmap_rank(tg_backend *be, tg_bitmap *bitmap) {
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
}

/* Zeros for the kept entries of words [begin, end), elements of `size` bytes. */
static void clear(const uint64_t *words, tg_range r, size_t size, char *x) {
    for (int64_t w = r.begin; w < r.end; w++) {
        for (uint64_t bits = words[w]; bits; bits &= bits - 1) {
            memset(x + (size_t)(w * 64 + __builtin_ctzll(bits)) * size, 0, size);
        }
    }
}

tg_status cpu_bitmap_clear(tg_backend *be, tg_dtype dtype, const tg_bitmap *bitmap, const void *x,
                           void *out) {
    TG_CALL(tg_check_float(be->ctx, "bitmap_clear", dtype));
    const size_t size = tg_dtype_size(dtype);
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
            clear(bitmap->words, r, size, out);
        }
    }
    return TG_OK;
}
