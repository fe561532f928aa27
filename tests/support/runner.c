/* Every script on every backend. */
#include "support/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/picks.h"

const int64_t t_lengths[] = {0, 1, 3, 5, 7, 33, 65, 4099, 40009};
const int t_length_count = T_COUNT(t_lengths);

/* A backend under test, with a thread count; both share nothing with the oracle. */
typedef struct variant {
    tg_context *ctx, *ref_ctx;
    tg_backend *be, *ref;
} variant;

typedef struct test_case {
    char name[96];
    const t_row *row;
    const variant *where;
    tg_dtype dtype;
    t_side first, second;
    tg_mem_usage before[TG_PLACES];
} test_case;

/* The records of a row on ref, which is slow: made once for all backends, whose cases follow each
 * other. */
static struct oracle {
    t_side side;
    const t_row *row; /* NULL: none yet */
    tg_dtype dtype;
} oracle;

enum { MAX_VARIANTS = 16, MAX_ROWS = 64 };
static t_row rows[MAX_ROWS];
static int row_count;

void t_list_row(const t_row *row) {
    if (row_count == MAX_ROWS) {
        abort();
    }
    rows[row_count++] = *row;
}

static const int thread_counts[] = {1, 3};

static int begin_case(void **state) {
    test_case *c = *state;
    for (int place = 0; place < TG_PLACES; place++) {
        c->before[place] = tg_context_memory(c->where->ctx, (tg_place)place);
    }
    t_side_begin(&c->first, c->where->be, c->dtype);
    t_side_begin(&c->second, c->where->be, c->dtype);
    c->first.test = c->second.test = c->name;
    return 0;
}

static void run_script(const t_row *row, t_side *s) {
    row->script(s);
    t_release(s);
}

/* Sets the oracle of a case, unless it is that of the case before. */
static void find_oracle(const test_case *c) {
    if (oracle.row == c->row && oracle.dtype == c->dtype) {
        return;
    }
    t_side_end(&oracle.side);
    oracle = (struct oracle){.dtype = c->dtype};
    t_side_begin(&oracle.side, c->where->ref, c->dtype);
    oracle.side.test = c->name;
    run_script(c->row, &oracle.side);
    oracle.row = c->row;
}

static void run_case(void **state) {
    test_case *c = *state;
    if (!t_runs_test(c->name)) {
        skip();
    }
    (void)t_runs_part(c->name, 0);
    run_script(c->row, &c->first);
    if (t_runs_once()) {
        return;
    }
    if (c->where->be->ops != c->where->ref->ops) {
        find_oracle(c);
        t_compare_sides(&c->first, &oracle.side, false);
    }
    run_script(c->row, &c->second);
    t_compare_sides(&c->second, &c->first, true);
    if (c->where->be->ops == c->where->ref->ops) {
        t_side_end(&oracle.side);
        oracle = (struct oracle){c->first, c->row, c->dtype};
        c->first = (t_side){0};
    }
}

/* Nothing the backend allocated may be left, whether the test passed or not. */
static int end_case(void **state) {
    test_case *c = *state;
    tg_mem_test_fail_at(0);
    t_side_end(&c->first);
    t_side_end(&c->second);
    for (int place = 0; place < TG_PLACES; place++) {
        const tg_mem_usage now = tg_context_memory(c->where->ctx, (tg_place)place);
        if (now.blocks != c->before[place].blocks) {
            print_error("%s: %zu blocks were in use before, %zu are left\n", c->name,
                        c->before[place].blocks, now.blocks);
            return -1;
        }
    }
    return 0;
}

static bool open_variant(const char *name, int threads, variant *v) {
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = threads, .math = TG_MATH_FP32};
    const bool ok = tg_context_create(&config, &v->ctx) == TG_OK &&
                    tg_context_create(&config, &v->ref_ctx) == TG_OK &&
                    tg_backend_open(v->ctx, name, &v->be) == TG_OK &&
                    tg_backend_open(v->ref_ctx, "ref", &v->ref) == TG_OK;
    if (!ok) {
        print_error("backend %s does not open: %s\n", name, v->ctx ? tg_context_error(v->ctx) : "");
    }
    return ok;
}

static void close_variant(variant *v) {
    tg_backend_close(&v->be);
    tg_backend_close(&v->ref);
    tg_context_destroy(&v->ctx);
    tg_context_destroy(&v->ref_ctx);
}

/* Opens all backends (or the one that the environment names), ref and devices with one thread only;
 * returns how many, or -1. */
static int open_variants(variant *variants) {
    const char *only = getenv("TEST_BACKEND");
    int count = 0;
    for (int i = 0; i < tg_backend_count(); i++) {
        tg_backend_info info;
        if (tg_backend_describe(NULL, i, &info) != TG_OK) {
            return -1;
        }
        if (!info.available) {
            print_message("skipped: backend %s is not available here: %s\n", info.name,
                          info.reason);
            continue;
        }
        if (only && strcmp(only, info.name) != 0) {
            continue;
        }
        int runs = i == 0 ? 1 : T_COUNT(thread_counts);
        for (int t = 0; t < runs && count < MAX_VARIANTS; t++) {
            if (!open_variant(info.name, thread_counts[t], &variants[count])) {
                return -1;
            }
            runs = variants[count++].be->ops->place == TG_DEVICE ? 1 : runs;
        }
    }
    return count;
}

/* One case per row, dtype and variant, in this order; cases (count of them) and the tests that
 * point at them. */
static int list_cases(const variant *variants, int variant_count, test_case *cases,
                      struct CMUnitTest *tests) {
    int count = 0;
    for (int r = 0; r < row_count; r++) {
        for (int d = 0; d < TG_DTYPES; d++) {
            for (int v = 0; v < variant_count && rows[r].dtypes >> d & 1; v++) {
                test_case *c = &cases[count];
                c->row = &rows[r];
                c->where = &variants[v];
                c->dtype = (tg_dtype)d;
                snprintf(c->name, sizeof c->name, "%s-%d %s %s", variants[v].be->ops->name,
                         variants[v].ctx->threads, rows[r].name, tg_dtype_name((tg_dtype)d));
                tests[count++] = (struct CMUnitTest){.name = c->name,
                                                     .test_func = run_case,
                                                     .setup_func = begin_case,
                                                     .teardown_func = end_case,
                                                     .initial_state = c};
            }
        }
    }
    return count;
}

int t_run_rows(const char *family) {
    variant variants[MAX_VARIANTS] = {0};
    const size_t most = (size_t)MAX_VARIANTS * (size_t)row_count * TG_DTYPES;
    test_case *cases = calloc(most, sizeof *cases);
    struct CMUnitTest *tests = calloc(most, sizeof *tests);
    int status = EXIT_FAILURE;
    const int variant_count = open_variants(variants);
    if (cases && tests && variant_count > 0) {
        const int listed = list_cases(variants, variant_count, cases, tests);
        if (_cmocka_run_group_tests(family, tests, (size_t)listed, NULL, NULL) == 0) {
            status = EXIT_SUCCESS;
        }
    }
    t_side_end(&oracle.side);
    for (int v = 0; v < MAX_VARIANTS; v++) {
        close_variant(&variants[v]);
    }
    free(cases);
    free(tests);
    return status;
}
