/* Columns of matrices: their squares, scaling, and transposing. One thread adds the rows of a
 * column in order: the same bits for any number of threads. */
#include <string.h>

#include "backend/check.h"
#include "backend/cpu/cpu.h"
#include "backend/rule_kernel.h"
#include "base/minmax.h"

enum { BLOCK = 256 /* columns worked on together */, THREAD_GRAIN = 1 << 12 };

typedef struct column_task {
    tg_dtype dtype;
    int64_t rows, columns;
    const void *x;
    double factor;
    const double *above, *below;
    void *scaled;    /* x, or NULL: read only */
    double *squares; /* NULL: none */
} column_task;

static void work_on_block(const column_task *task, int64_t first, int64_t n) {
    const int64_t width = tg_dtype_is_complex(task->dtype) ? 2 : 1;
    double value[2 * BLOCK], by[2 * BLOCK], sum[2 * BLOCK] = {0};
    for (int64_t j = 0; task->scaled && j < width * n; j++) {
        by[j] = tg_column_factor(task->factor, task->above, task->below, first + j / width);
    }
    for (int64_t i = 0; i < task->rows; i++) {
        const int64_t at = width * (i * task->columns + first);
        tg_load_reals(task->dtype, task->x, at, width * n, value);
        if (task->scaled) {
            for (int64_t j = 0; j < width * n; j++) {
                value[j] *= by[j];
            }
            tg_store_reals(task->dtype, task->scaled, at, width * n, value);
        } else {
            for (int64_t j = 0; j < width * n; j++) {
                sum[j] += value[j] * value[j];
            }
        }
    }
    for (int64_t j = 0; task->squares && j < n; j++) {
        task->squares[first + j] = width == 2 ? sum[2 * j] + sum[2 * j + 1] : sum[j];
    }
}

static void work_on_columns(const tg_backend *be, const column_task *task) {
    const int parts = cpu_parts(be, task->rows * task->columns, THREAD_GRAIN);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range mine = tg_partition(task->columns, BLOCK, parts, p);
        for (int64_t j = mine.begin; j < mine.end; j += BLOCK) {
            work_on_block(task, j, tg_min(mine.end - j, BLOCK));
        }
    }
}

tg_status cpu_column_squares(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                             const void *x, double *squares) {
    TG_CALL(tg_check_float(be->ctx, "column_squares", dtype));
    work_on_columns(
        be, &(column_task){
                .dtype = dtype, .rows = rows, .columns = columns, .x = x, .squares = squares});
    return TG_OK;
}

tg_status cpu_scale_columns(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                            double factor, const double *above, const double *below, void *x) {
    TG_CALL(tg_check_float(be->ctx, "scale_columns", dtype));
    work_on_columns(be, &(column_task){.dtype = dtype,
                                       .rows = rows,
                                       .columns = columns,
                                       .x = x,
                                       .factor = factor,
                                       .above = above,
                                       .below = below,
                                       .scaled = x});
    return TG_OK;
}

/* Rows [range) of x, numbers of `size` bytes; some rows at a time share a cache line of out. */
static inline void transpose_rows(size_t size, tg_range range, int64_t columns, const char *x,
                                  int64_t ld_x, char *out, int64_t ld_out) {
    enum { LINE = 8 };
    for (int64_t i = range.begin; i < range.end; i += LINE) {
        const int64_t end = tg_min(i + LINE, range.end);
        for (int64_t j = 0; j < columns; j++) {
            for (int64_t k = i; k < end; k++) {
                memcpy(out + (size_t)(j * ld_out + k) * size, x + (size_t)(k * ld_x + j) * size,
                       size);
            }
        }
    }
}

tg_status cpu_transpose(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                        const void *x, int64_t ld_x, void *out, int64_t ld_out) {
    const tg_status status = tg_check_float(be->ctx, "transpose", dtype);
    const size_t size = tg_dtype_size(dtype);
    const int parts = status == TG_OK ? cpu_parts(be, rows * columns, THREAD_GRAIN) : 0;
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range mine = tg_partition(rows, TG_ALIGNMENT, parts, p);
        if (size == sizeof(double)) { /* or two floats: known to the compiler */
            transpose_rows(sizeof(double), mine, columns, x, ld_x, out, ld_out);
        } else {
            transpose_rows(size, mine, columns, x, ld_x, out, ld_out);
        }
    }
    return status;
}
