/* One backend under test: arrays between guard zones, and the results that a script records.
 *
 * A script is a function that calls slots of s->ops and records their results. It runs on any
 * backend, and draws the same random inputs each time; the runner (runner.h) compares the records
 * of two runs. Every array is one element off the allocator's alignment, as slices of a tensor are,
 * unless a script asks for alignment. Guard zones around it are checked when it is released;
 * outputs start as NaN; inputs must end as they began. Failures go through cmocka and carry the
 * script's last note. */
#ifndef TEST_SUPPORT_SIDE_H
#define TEST_SUPPORT_SIDE_H

#include "backend/backend.h"
#include "support/cmocka.h"
#include "support/compare.h"

typedef struct t_block t_block;   /* an array of the backend */
typedef struct t_host t_host;     /* host memory of a script */
typedef struct t_record t_record; /* a result kept for comparison */

typedef struct t_side {
    tg_backend *be;
    const tg_backend_ops *ops;
    tg_dtype dtype;   /* of the row that is run */
    char note[160];   /* where the script is, for messages */
    uint32_t draws;   /* random arrays made so far */
    const char *test; /* with parts to pick (picks.h); NULL without */
    int asked;        /* combinations that t_leaves_out was asked about */
    bool aligned;     /* arrays begin where the allocator aligns, for paths that need it */
    t_block *blocks;
    t_host *hosts;
    t_record *records; /* in the order of recording */
    t_record **last_record;
} t_side;

/* Whether scripts are run once, on the backend under test alone: TEST_ONCE in the environment, for
 * tools that watch what code does and make it slow. Statistics and differences are left out then.
 */
bool t_runs_once(void);
/* Whether to leave out this one of many combinations of sizes and options: picks.h. */
bool t_leaves_out(t_side *s);

void t_side_begin(t_side *s, tg_backend *be, tg_dtype dtype);
void t_side_end(t_side *s); /* releases everything without checks; also after a failure */

void t_note(t_side *s, const char *format, ...) TG_PRINTF(2, 3);

/* ---- failures: all end the test ---- */

#define t_fail(s, ...) t_fail_at((s), __FILE__, __LINE__, __VA_ARGS__)
void t_fail_at(const t_side *s, const char *file, int line, const char *format, ...)
    TG_PRINTF(4, 5);

/* The call succeeds. */
#define t_ok(s, call) t_status_at((s), __FILE__, __LINE__, TG_OK, (call))
/* The call fails with that status and says why. */
#define t_refused(s, status, call) t_status_at((s), __FILE__, __LINE__, (status), (call))
void t_status_at(const t_side *s, const char *file, int line, tg_status expected, tg_status found);

#define t_true(s, condition)                                                                       \
    ((condition) ? (void)0 : t_fail_at((s), __FILE__, __LINE__, "not so: %s", #condition))
/* error <= tolerance; NaN fails. */
#define t_below(s, error, tolerance)                                                               \
    t_below_at((s), __FILE__, __LINE__, #error, (error), (tolerance))
void t_below_at(const t_side *s, const char *file, int line, const char *what, double error,
                double tolerance);

/* ---- arrays of the backend ---- */

void *t_input(t_side *s, tg_dtype dtype, int64_t n, const void *host); /* must stay as it is */
void *t_inout(t_side *s, tg_dtype dtype, int64_t n, const void *host);
void *t_output(t_side *s, tg_dtype dtype, int64_t n); /* all bits set: NaN in every float dtype */
void *t_workspace(t_side *s, size_t bytes); /* likewise, aligned as the allocator aligns */
void *t_random(t_side *s, tg_dtype dtype, int64_t n); /* input, uniform in [-1, 1) */

/* A copy of a whole array of this side on the host, until t_release. */
void *t_download(t_side *s, const void *array);

/* ---- host memory, until t_release ---- */

void *t_host_alloc(t_side *s, tg_dtype dtype, int64_t n); /* all bits set */
void *t_host_random(t_side *s, tg_dtype dtype, int64_t n);

/* Checks guard zones and inputs, and frees all arrays and host memory of the script so far. */
void t_release(t_side *s);

/* ---- records ---- */

/* The twin may differ by `growth` times the dtype's tolerance. */
void t_record_close(t_side *s, tg_dtype dtype, int64_t n, const void *host, double growth);
/* The twin is the same, bit for bit. */
void t_record_same(t_side *s, tg_dtype dtype, int64_t n, const void *host);
/* The same of an array of the backend. */
void t_keep_close(t_side *s, const void *array, double growth);
void t_keep_same(t_side *s, const void *array);

/* Fails unless both scripts recorded the same: within tolerance, or with `exact` to the bit. */
void t_compare_sides(const t_side *got, const t_side *expected, bool exact);

/* ---- index sets ---- */

/* A bitmap of the backend, all of it poisoned but n. */
tg_bitmap t_bitmap_output(t_side *s, int64_t n);
/* A bitmap of the backend with these bits and their ranks, must stay as it is. words (n+63)/64. */
tg_bitmap t_bitmap_input(t_side *s, int64_t n, const uint64_t *words);
/* Checks that the tail is 0 and that ranks and count fit the words; returns the words. */
uint64_t *t_bitmap_check(t_side *s, const tg_bitmap *bitmap);

static inline bool t_bit(const uint64_t *words, int64_t i) {
    return words[i / 64] >> (i % 64) & 1;
}

#endif
