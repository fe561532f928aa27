/* Runs scripts on every backend of the build: on `ref`, on the backend, and on the backend again.
 * The first two must record the same within tolerance, the last two the same bits. A new operation
 * is a row; a new backend needs nothing here. */
#ifndef TEST_SUPPORT_RUNNER_H
#define TEST_SUPPORT_RUNNER_H

#include "support/side.h"

enum { /* sets of dtypes a script is run for */
       T_FLOATS = 1 << TG_F32 | 1 << TG_F64 | 1 << TG_BF16 | 1 << TG_F16 | 1 << TG_C64 |
                  1 << TG_C128 | 1 << TG_CBF16 | 1 << TG_CF16,
       T_WIDE = 1 << TG_F32 | 1 << TG_F64 | 1 << TG_C64 | 1 << TG_C128,
       T_REALS = 1 << TG_F32 | 1 << TG_F64,
       T_DOUBLE = 1 << TG_F64 | 1 << TG_C128,
       T_ONCE = 1 << TG_F64 /* scripts that do not look at the dtype */
};

typedef struct t_row {
    const char *name;
    void (*script)(t_side *s); /* s->dtype: one of `dtypes` */
    unsigned dtypes;
} t_row;

/* A row of the program: ROW(sums, "sums of powers", T_WIDE) { .. } is a script of `s` for each of
 * the dtypes. */
#define ROW(script, name, dtypes)                                                                  \
    static void script(t_side *s);                                                                 \
    __attribute__((constructor)) static void list_##script(void) {                                 \
        t_list_row(&(t_row){name, script, dtypes});                                                \
    }                                                                                              \
    static void script(t_side *s)

void t_list_row(const t_row *row);

/* Runs the rows of the program in their order. Exit status: 0 if all passed. Backends that are not
 * available here are named and skipped; with TEST_BACKEND in the environment, all but that one.
 * With TEST_ONCE nothing is compared; with TEST_PICKS (picks.h) tests are skipped. */
int t_run_rows(const char *family);

#define T_COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* Lengths for one-dimensional operations: nothing, one, odd, primes, more than a block of work. */
extern const int64_t t_lengths[];
extern const int t_length_count;

#endif
