/* Index sets: select k of n entries, and read, add to or clear the selected ones.
 *
 * Selections sort all n entries by a key, ties by index; the order is total, so every correct
 * backend selects the same set. Keys are doubles >= 0 as bit patterns, which sort alike. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/ref/ref.h"

typedef struct entry {
    uint64_t key;
    int64_t index;
} entry;

_Static_assert(sizeof(entry) == REF_SELECT_BYTES, "used by ref_scratch_need");

static int by_key_then_index(const void *x, const void *y) {
    const entry *a = x, *b = y;
    if (a->key != b->key) {
        return a->key < b->key ? -1 : 1;
    }
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Bits of v >= 0: NaN above Inf, whatever its sign and payload, and -0 as 0. */
static uint64_t order_bits(double v) {
    if (isnan(v)) {
        return UINT64_MAX;
    }
    v += 0.0;
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static void set_bit(tg_bitmap *bitmap, int64_t i) {
    bitmap->words[i / 64] |= (uint64_t)1 << (i % 64);
}

static void rank(tg_bitmap *bitmap) {
    bitmap->count = 0;
    for (int64_t i = 0; i < bitmap->n; i++) {
        if (i % 512 == 0) {
            bitmap->ranks[i / 512] = (uint32_t)bitmap->count;
        }
        bitmap->count += tg_bitmap_has(bitmap, i);
    }
}

/* exponential(index) / |v|: Inf (last) for weight 0, 0 (first) for Inf and NaN. */
static double waiting_time(const tg_rng *rng, int64_t index, tg_scalar v) {
    const double weight = sqrt(ref_abs2(v));
    if (weight == 0.0) {
        return HUGE_VAL;
    }
    return isfinite(weight) ? tg_rng_exponential(rng, (uint64_t)index) / weight : 0.0;
}

/* Sets the bits of the k entries of largest modulus or shortest waiting time. */
static tg_status select_by_value(tg_backend *be, const tg_select *op) {
    tg_bitmap *bitmap = op->bitmap;
    tg_status status = TG_OK;
    entry *entries = NULL; /* (n) */
    TG_TRY(tg_check_float(be->ctx, "select", op->dtype));
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, entries, bitmap->n));
    for (int64_t i = 0; i < bitmap->n; i++) {
        const tg_scalar v = tg_load(op->dtype, op->x, i);
        /* Complemented: the largest modulus comes first. */
        entries[i] = (entry){op->kind == TG_SELECT_TOPK ? ~order_bits(ref_abs2(v))
                                                        : order_bits(waiting_time(&op->rng, i, v)),
                             i};
    }
    qsort(entries, (size_t)bitmap->n, sizeof *entries, by_key_then_index);
    memset(bitmap->words, 0, (size_t)tg_bitmap_words(bitmap->n) * sizeof *bitmap->words);
    for (int64_t i = 0; i < op->k; i++) {
        set_bit(bitmap, entries[i].index);
    }
fail:
    TG_FREE(be->ctx, entries);
    return status;
}

tg_status ref_select(tg_backend *be, const tg_select *op) {
    TG_CALL(tg_check_select(be->ctx, op));
    if (op->kind == TG_SELECT_RANDOM) {
        memset(op->bitmap->words, 0, (size_t)tg_bitmap_words(op->bitmap->n) * sizeof(uint64_t));
        for (int64_t i = 0; i < op->k; i++) {
            set_bit(op->bitmap,
                    (int64_t)tg_rng_permute(&op->rng, (uint64_t)op->bitmap->n, (uint64_t)i));
        }
    } else if (op->kind != TG_SELECT_GIVEN) {
        TG_CALL(select_by_value(be, op));
    }
    rank(op->bitmap);
    return TG_OK;
}

tg_status ref_bitmap_clear(tg_backend *be, tg_dtype dtype, const tg_bitmap *bitmap, const void *x,
                           void *out) {
    TG_CALL(tg_check_float(be->ctx, "bitmap_clear", dtype));
    for (int64_t i = 0; i < bitmap->n; i++) {
        tg_store(dtype, out, i, tg_bitmap_has(bitmap, i) ? (tg_scalar){0} : tg_load(dtype, x, i));
    }
    return TG_OK;
}
