/* Guarded arrays and records. */
#include "support/side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/picks.h"

enum {
    GUARD = 128, /* bytes before and after an array: two cache lines, four AVX2 vectors */
    GUARD_BYTE = 0xA5,
    POISON_BYTE = 0xFF /* NaN in f32, f64, bf16 and f16 */
};

struct t_block {
    t_block *next;
    char *base; /* of the backend: guard, array, guard */
    char *data;
    size_t before, after; /* bytes of the guards */
    tg_dtype dtype;
    int64_t n;
    void *sealed; /* on the host: what an input must still hold; NULL for outputs */
};

struct t_host {
    t_host *next;
    max_align_t bytes[];
};

struct t_record {
    t_record *next;
    char note[sizeof(((t_side *)NULL)->note)];
    bool exact;
    double growth;
    tg_dtype dtype;
    int64_t n;
    char data[];
};

static size_t bytes_of(tg_dtype dtype, int64_t n) {
    return (size_t)n * tg_dtype_size(dtype);
}

/* memcpy that takes NULL for nothing. */
static void copy_bytes(void *dst, const void *src, size_t bytes) {
    if (bytes > 0) {
        memcpy(dst, src, bytes);
    }
}

/* ---- life ---- */

bool t_runs_once(void) {
    return getenv("TEST_ONCE") != NULL;
}

bool t_leaves_out(t_side *s) {
    return s->test && !t_runs_part(s->test, ++s->asked);
}

void t_side_begin(t_side *s, tg_backend *be, tg_dtype dtype) {
    *s = (t_side){.be = be, .ops = be->ops, .dtype = dtype};
    s->last_record = &s->records;
}

static void free_arrays(t_side *s) {
    while (s->blocks) {
        t_block *block = s->blocks;
        s->blocks = block->next;
        s->ops->release(s->be, block->base);
        free(block->sealed);
        free(block);
    }
    while (s->hosts) {
        t_host *host = s->hosts;
        s->hosts = host->next;
        free(host);
    }
}

void t_side_end(t_side *s) {
    if (!s->be) {
        return;
    }
    free_arrays(s);
    while (s->records) {
        t_record *record = s->records;
        s->records = record->next;
        free(record);
    }
    *s = (t_side){0};
}

void t_note(t_side *s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(s->note, sizeof s->note, format, args);
    va_end(args);
}

/* ---- failures ---- */

void t_fail_at(const t_side *s, const char *file, int line, const char *format, ...) {
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    print_error("%s %s [%s]: %s\n", s->ops->name, tg_dtype_name(s->dtype), s->note, message);
    _fail(file, line);
}

void t_status_at(const t_side *s, const char *file, int line, tg_status expected, tg_status found) {
    if (found != expected) {
        t_fail_at(s, file, line, "expected '%s', found '%s': %s", tg_status_name(expected),
                  tg_status_name(found), found == TG_OK ? "" : tg_context_error(s->be->ctx));
    }
}

void t_below_at(const t_side *s, const char *file, int line, const char *what, double error,
                double tolerance) {
    if (!(error <= tolerance)) {
        t_fail_at(s, file, line, "%s is %.3g, above %.3g", what, error, tolerance);
    }
}

/* ---- host memory ---- */

void *t_host_alloc(t_side *s, tg_dtype dtype, int64_t n) {
    t_host *host = malloc(sizeof *host + bytes_of(dtype, n));
    if (!host) {
        t_fail(s, "no memory for the test itself");
        return NULL;
    }
    host->next = s->hosts;
    s->hosts = host;
    memset(host->bytes, POISON_BYTE, bytes_of(dtype, n));
    return host->bytes;
}

void *t_host_random(t_side *s, tg_dtype dtype, int64_t n) {
    const tg_rng rng = {.seed = 20240229, .purpose = TG_RNG_TEST, .step = s->draws++};
    void *x = t_host_alloc(s, dtype, n);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t at = 2 * (uint64_t)i;
        const tg_scalar v = {2.0 * tg_rng_uniform(&rng, at) - 1.0,
                             2.0 * tg_rng_uniform(&rng, at + 1) - 1.0};
        tg_store(dtype, x, i, v);
    }
    return x;
}

/* ---- arrays of the backend ---- */

/* Offset in bytes of an array from the allocator's alignment. */
static size_t shift_of(const t_side *s, tg_dtype dtype) {
    return s->aligned ? 0 : tg_dtype_size(dtype);
}

static t_block *new_block(t_side *s, tg_dtype dtype, int64_t n, size_t shift, const void *host,
                          bool is_sealed) {
    const size_t bytes = bytes_of(dtype, n);
    t_block *block = calloc(1, sizeof *block);
    if (!block) {
        t_fail(s, "no memory for the test itself");
        return NULL;
    }
    block->next = s->blocks;
    s->blocks = block;
    block->dtype = dtype;
    block->n = n;
    block->before = GUARD + shift;
    block->after = GUARD;
    const size_t whole = block->before + bytes + block->after;
    block->base = s->ops->alloc(s->be, TG_MEM_DATA, whole);
    if (!block->base) {
        t_fail(s, "alloc: %s", tg_context_error(s->be->ctx));
    }
    block->data = block->base + block->before;
    char *image = (char *)t_host_alloc(s, TG_U8, (int64_t)whole);
    memset(image, GUARD_BYTE, block->before);
    memset(image + block->before + bytes, GUARD_BYTE, block->after);
    if (host) {
        copy_bytes(image + block->before, host, bytes);
    }
    t_ok(s, s->ops->upload(s->be, block->base, image, whole));
    if (is_sealed) {
        block->sealed = malloc(bytes + 1);
        t_true(s, block->sealed != NULL);
        copy_bytes(block->sealed, host, bytes);
    }
    return block;
}

void *t_input(t_side *s, tg_dtype dtype, int64_t n, const void *host) {
    return new_block(s, dtype, n, shift_of(s, dtype), host, true)->data;
}

void *t_inout(t_side *s, tg_dtype dtype, int64_t n, const void *host) {
    return new_block(s, dtype, n, shift_of(s, dtype), host, false)->data;
}

void *t_output(t_side *s, tg_dtype dtype, int64_t n) {
    return new_block(s, dtype, n, shift_of(s, dtype), NULL, false)->data;
}

void *t_workspace(t_side *s, size_t bytes) {
    return new_block(s, TG_U8, (int64_t)bytes, 0, NULL, false)->data;
}

void *t_random(t_side *s, tg_dtype dtype, int64_t n) {
    return t_input(s, dtype, n, t_host_random(s, dtype, n));
}

static const t_block *find_block(t_side *s, const void *array) {
    const t_block *block = s->blocks;
    while (block && block->data != array) {
        block = block->next;
    }
    if (!block) {
        t_fail(s, "the script uses an array that is not one of its own");
    }
    return block;
}

void *t_download(t_side *s, const void *array) {
    const t_block *block = find_block(s, array);
    void *host = t_host_alloc(s, block->dtype, block->n);
    t_ok(s, s->ops->download(s->be, host, block->data, bytes_of(block->dtype, block->n)));
    return host;
}

static void check_guard(t_side *s, const char *image, size_t bytes, const char *where) {
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)image[i] != GUARD_BYTE) {
            t_fail(s, "byte %zu of the guard %s an array was overwritten", i, where);
        }
    }
}

void t_release(t_side *s) {
    t_ok(s, s->ops->synchronize(s->be));
    for (const t_block *block = s->blocks; block; block = block->next) {
        const size_t bytes = bytes_of(block->dtype, block->n);
        const size_t whole = block->before + bytes + block->after;
        char *image = t_host_alloc(s, TG_U8, (int64_t)whole);
        t_ok(s, s->ops->download(s->be, image, block->base, whole));
        check_guard(s, image, block->before, "before");
        check_guard(s, image + block->before + bytes, block->after, "after");
        if (block->sealed && memcmp(image + block->before, block->sealed, bytes) != 0) {
            t_fail(s, "an input of %lld %s was changed", (long long)block->n,
                   tg_dtype_name(block->dtype));
        }
    }
    free_arrays(s);
}

/* ---- records ---- */

static void add_record(t_side *s, tg_dtype dtype, int64_t n, const void *host, bool exact,
                       double growth) {
    t_record *record = calloc(1, sizeof *record + bytes_of(dtype, n));
    if (!record) {
        t_fail(s, "no memory for the test itself");
        return;
    }
    *s->last_record = record;
    s->last_record = &record->next;
    memcpy(record->note, s->note, sizeof record->note);
    record->exact = exact;
    record->growth = growth;
    record->dtype = dtype;
    record->n = n;
    copy_bytes(record->data, host, bytes_of(dtype, n));
}

void t_record_close(t_side *s, tg_dtype dtype, int64_t n, const void *host, double growth) {
    add_record(s, dtype, n, host, false, growth);
}

void t_record_same(t_side *s, tg_dtype dtype, int64_t n, const void *host) {
    add_record(s, dtype, n, host, true, 0.0);
}

void t_keep_close(t_side *s, const void *array, double growth) {
    const t_block *block = find_block(s, array);
    t_record_close(s, block->dtype, block->n, t_download(s, array), growth);
}

void t_keep_same(t_side *s, const void *array) {
    const t_block *block = find_block(s, array);
    t_record_same(s, block->dtype, block->n, t_download(s, array));
}

static void compare_records(const t_side *s, const t_record *g, const t_record *e, bool exact) {
    if (exact || e->exact) {
        const int64_t at = t_first_difference(e->dtype, e->n, g->data, e->data);
        if (at >= 0) {
            const tg_scalar x = tg_load(e->dtype, g->data, at), y = tg_load(e->dtype, e->data, at);
            t_fail(s, "at [%s] element %lld of %lld is (%.17g, %.17g), not (%.17g, %.17g)", e->note,
                   (long long)at, (long long)e->n, x.re, x.im, y.re, y.im);
        }
        return;
    }
    const double error = t_relative_error(e->dtype, e->n, g->data, e->data);
    const double tolerance = e->growth * t_tolerance(e->dtype);
    if (!(error <= tolerance)) {
        t_fail(s, "at [%s] the relative error of %lld %s is %.3g, above %.3g", e->note,
               (long long)e->n, tg_dtype_name(e->dtype), error, tolerance);
    }
}

void t_compare_sides(const t_side *got, const t_side *expected, bool exact) {
    const t_record *g = got->records, *e = expected->records;
    for (; g && e; g = g->next, e = e->next) {
        if (g->dtype != e->dtype || g->n != e->n) {
            t_fail(got, "at [%s] the scripts recorded different things", e->note);
        }
        compare_records(got, g, e, exact);
    }
    if (g || e) {
        t_fail(got, "one script recorded more than the other");
    }
}

/* ---- index sets ---- */

tg_bitmap t_bitmap_output(t_side *s, int64_t n) {
    return (tg_bitmap){.n = n,
                       .count = -1,
                       .words = t_output(s, TG_U64, tg_bitmap_words(n)),
                       .ranks = t_output(s, TG_U32, tg_bitmap_ranks(n))};
}

tg_bitmap t_bitmap_input(t_side *s, int64_t n, const uint64_t *words) {
    uint32_t *ranks = t_host_alloc(s, TG_U32, tg_bitmap_ranks(n));
    tg_bitmap bitmap = {.n = n, .words = t_input(s, TG_U64, tg_bitmap_words(n), words)};
    for (int64_t i = 0; i < n; i++) {
        if (i % 512 == 0) {
            ranks[i / 512] = (uint32_t)bitmap.count;
        }
        bitmap.count += t_bit(words, i);
    }
    bitmap.ranks = t_input(s, TG_U32, tg_bitmap_ranks(n), ranks);
    return bitmap;
}

uint64_t *t_bitmap_check(t_side *s, const tg_bitmap *bitmap) {
    uint64_t *words = t_download(s, bitmap->words);
    const uint32_t *ranks = t_download(s, bitmap->ranks);
    int64_t count = 0;
    for (int64_t i = 0; i < 64 * tg_bitmap_words(bitmap->n); i++) {
        if (i >= bitmap->n) {
            t_true(s, !t_bit(words, i));
            continue;
        }
        if (i % 512 == 0) {
            t_true(s, ranks[i / 512] == count);
        }
        count += t_bit(words, i);
    }
    t_true(s, bitmap->count == count);
    return words;
}
