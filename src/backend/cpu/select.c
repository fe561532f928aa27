/* Index sets. Selects k entries: the largest by radix selection on 63-bit keys, or k at random.
 *
 * Keys are the bits of |x|^2 in f64 or, if weighted, of the waiting time (descending). One digit at
 * a time from the top, every part counts the keys that match the digits found so far, and the
 * counts give the next digit of the k-th largest key. The second pass also collects the few
 * remaining keys if they fit into scratch, so that later digits do not read x again. A last pass
 * compares all keys with the threshold and writes the bitmap; entries equal to it are taken in
 * index order, for which every part knows the number in earlier parts. Nothing is sorted or
 * allocated, and the result does not depend on the number of parts. */
#include "backend/cpu/cpu.h"

#include <string.h>

#include "backend/check.h"

enum {
    DIGITS = 4,
    BINS = 1 << 16,
    CHUNK = 512, /* keys at a time, and the unit of parts: one entry of the rank directory */
    CANDIDATES =
        (int)(CPU_SCRATCH / sizeof(uint64_t)) - BINS / 2 /* keys that fit after the histogram */
};

/* Digit d of a key: 16, 16, 16 and 15 bits from the top. */
static const int digit_shift[DIGITS] = {47, 31, 15, 0};
static const uint64_t digit_mask[DIGITS] = {0xFFFF, 0xFFFF, 0xFFFF, 0x7FFF};

typedef struct select_task {
    tg_backend *be;
    const cpu_kernels *kernels;
    tg_dtype dtype;
    const tg_rng *rng; /* for the waiting times if weighted; NULL: by modulus */
    const char *x;
    tg_bitmap *bitmap;
    int parts;
    uint64_t prefix; /* digits found, in place */
    bool collected;  /* the parts' scratch has the keys that match the prefix */
} select_task;

/* Scratch of a part: a histogram, then the candidates. Their number is in the part's partial. */
static uint32_t *histogram_of(const select_task *t, int part) {
    return cpu_scratch_of(t->be, part);
}

static uint64_t *candidates_of(const select_task *t, int part) {
    return (uint64_t *)cpu_scratch_of(t->be, part) + BINS / 2;
}

static void load_keys(const select_task *t, int64_t first, int64_t count, uint64_t *keys) {
    t->kernels->modulus_keys(t->dtype, count, t->x + (size_t)first * tg_dtype_size(t->dtype), keys);
    if (t->rng) {
        double times[CHUNK];
        t->kernels->random_numbers(CPU_EXPONENTIAL, t->rng, (uint64_t)first, count, times);
        t->kernels->waiting_keys(count, times, keys);
    }
}

static void count_digit(int d, int64_t n, const uint64_t *keys, uint32_t *histogram) {
    for (int64_t i = 0; i < n; i++) {
        histogram[keys[i] >> digit_shift[d] & digit_mask[d]]++;
    }
}

/* Moves the keys that match the prefix above digit d to the front; returns their number. */
static int64_t filter(const select_task *t, int d, int64_t n, uint64_t *keys) {
    const int above = digit_shift[d - 1];
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t key = keys[i];
        keys[count] = key;
        count += key >> above == t->prefix >> above;
    }
    return count;
}

/* Counts digit d of a part's matching keys; keeps these if `collect`. */
static void count_part(const select_task *t, int d, bool collect, int part) {
    uint32_t *histogram = histogram_of(t, part);
    uint64_t *candidates = candidates_of(t, part);
    int64_t *kept = &cpu_state_of(t->be)->partials[part].count;
    memset(histogram, 0, BINS * sizeof *histogram);
    if (t->collected) {
        *kept = filter(t, d, *kept, candidates);
        count_digit(d, *kept, candidates, histogram);
        return;
    }
    *kept = 0;
    const tg_range r = tg_partition(t->bitmap->n, CHUNK, t->parts, part);
    for (int64_t i = r.begin; i < r.end; i += CHUNK) {
        uint64_t keys[CHUNK];
        int64_t count = r.end - i < CHUNK ? r.end - i : CHUNK;
        load_keys(t, i, count, keys);
        count = d > 0 ? filter(t, d, count, keys) : count;
        count_digit(d, count, keys, histogram);
        if (collect) {
            memcpy(candidates + *kept, keys, (size_t)count * sizeof *keys);
            *kept += count;
        }
    }
}

/* Total of one bin over all parts. */
static int64_t bin_total(const select_task *t, uint64_t bin) {
    int64_t total = 0;
    for (int p = 0; p < t->parts; p++) {
        total += histogram_of(t, p)[bin];
    }
    return total;
}

/* The bin of the rank-th largest (1-based) of the counted keys. *rank becomes the rank in that bin,
 * *total its number of keys. */
static uint64_t find_bin(const select_task *t, int64_t *rank, int64_t *total) {
    uint64_t bin = BINS - 1;
    for (*total = bin_total(t, bin); *total < *rank; *total = bin_total(t, bin)) {
        *rank -= *total;
        bin--;
    }
    return bin;
}

/* Whether every part has space for its share of a bin. */
static bool fits(const select_task *t, uint64_t bin) {
    for (int p = 0; p < t->parts; p++) {
        if (histogram_of(t, p)[bin] > CANDIDATES - CHUNK) {
            return false;
        }
    }
    return true;
}

/* Selects entries with key > threshold, and the first `ties` of those equal to it. */
typedef struct threshold {
    uint64_t key;
    int64_t ties;
} threshold;

/* 0 < k < n. With ties, leaves the number of a part's keys equal to the threshold in the partials'
 * count. */
static threshold find_threshold(select_task *t, int64_t k) {
    const int parts = t->parts;
    int64_t rank = k, total = 0;
    bool collect = false;
    for (int d = 0; d < DIGITS; d++) {
#pragma omp parallel for num_threads(cpu_team(t->be, parts)) schedule(static)
        for (int p = 0; p < parts; p++) {
            count_part(t, d, collect, p);
        }
        t->collected = t->collected || collect;
        const uint64_t bin = find_bin(t, &rank, &total);
        t->prefix |= bin << digit_shift[d];
        if (rank == total && t->prefix > 0) { /* the whole bin: no more digits are needed */
            return (threshold){t->prefix - 1, 0};
        }
        collect = !t->collected && fits(t, bin);
    }
    const uint64_t bin = t->prefix & digit_mask[DIGITS - 1];
    for (int p = 0; p < parts; p++) {
        cpu_state_of(t->be)->partials[p].count = histogram_of(t, p)[bin];
    }
    return (threshold){t->prefix, rank};
}

/* The lowest `count` set bits of x. */
static uint64_t lowest_bits(uint64_t x, int64_t count) {
    uint64_t kept = 0;
    for (; x && count > 0; count--) {
        kept |= x & -x;
        x &= x - 1;
    }
    return kept;
}

/* Words of a part. */
static void mark_part(const select_task *t, threshold limit, int64_t ties, int part) {
    const tg_range r = tg_partition(t->bitmap->n, CHUNK, t->parts, part);
    for (int64_t i = r.begin; i < r.end; i += CHUNK) {
        uint64_t keys[CHUNK];
        const int64_t count = r.end - i < CHUNK ? r.end - i : CHUNK;
        load_keys(t, i, count, keys);
        for (int64_t j = 0; j < count; j += 64) {
            uint64_t equal = 0;
            uint64_t word = t->kernels->compare_keys(count - j < 64 ? count - j : 64, keys + j,
                                                     limit.key, &equal);
            if (equal && ties > 0) {
                const uint64_t taken = lowest_bits(equal, ties);
                ties -= __builtin_popcountll(taken);
                word |= taken;
            }
            t->bitmap->words[(i + j) / 64] = word;
        }
    }
}

static void mark(select_task *t, threshold limit) {
    const int parts = t->parts;
    cpu_partial *partials = cpu_state_of(t->be)->partials;
    int64_t left = limit.ties;
    for (int p = 0; p < parts; p++) { /* count becomes the number this part may take */
        const int64_t here = partials[p].count < left ? partials[p].count : left;
        partials[p].count = here;
        left -= here;
    }
#pragma omp parallel for num_threads(cpu_team(t->be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        mark_part(t, limit, partials[p].count, p);
    }
}

/* All bits 0, or all 1 up to n. */
static void set_all(tg_bitmap *bitmap, bool value) {
    const int64_t words = tg_bitmap_words(bitmap->n);
    memset(bitmap->words, value ? 0xFF : 0, (size_t)words * sizeof *bitmap->words);
    if (value && bitmap->n % 64) {
        bitmap->words[words - 1] = ((uint64_t)1 << bitmap->n % 64) - 1;
    }
}

/* Selects the k largest keys. */
static void select_largest(tg_backend *be, const tg_select *op) {
    tg_bitmap *bitmap = op->bitmap;
    if (op->k == 0 || op->k == bitmap->n) {
        set_all(bitmap, op->k > 0);
        return;
    }
    select_task task = {.be = be,
                        .kernels = cpu_state_of(be)->kernels,
                        .dtype = op->dtype,
                        .rng = op->kind == TG_SELECT_WEIGHTED ? &op->rng : NULL,
                        .x = op->x,
                        .bitmap = bitmap,
                        .parts = cpu_parts(be, bitmap->n, 8 * CHUNK)};
    mark(&task, find_threshold(&task, op->k));
}

/* Bits are set in any order, with the same result. */
static void select_random(tg_backend *be, const tg_select *op) {
    set_all(op->bitmap, false);
#pragma omp parallel for num_threads(cpu_team(be, cpu_parts(be, op->k, CHUNK))) schedule(static)
    for (int64_t i = 0; i < op->k; i++) {
        const uint64_t at = tg_rng_permute(&op->rng, (uint64_t)op->bitmap->n, (uint64_t)i);
        __atomic_fetch_or(&op->bitmap->words[at / 64], (uint64_t)1 << at % 64, __ATOMIC_RELAXED);
    }
}

/* Index sets as bitmaps: ranks, and clearing the kept entries.
 *
 * Parts begin at blocks of 512 entries, whose rank is the offset of their values, so that parts are
 * independent. Within a block, set bits are found word by word. */

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

/* Fills ranks and count from words. */
static void rank(tg_backend *be, tg_bitmap *bitmap) {
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

tg_status cpu_select(tg_backend *be, const tg_select *op) {
    TG_CALL(tg_check_select(be->ctx, op));
    if (op->kind == TG_SELECT_RANDOM) {
        select_random(be, op);
    } else if (op->kind != TG_SELECT_GIVEN) {
        TG_CALL(tg_check_float(be->ctx, "select", op->dtype));
        select_largest(be, op);
    }
    rank(be, op->bitmap);
    return TG_OK;
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
