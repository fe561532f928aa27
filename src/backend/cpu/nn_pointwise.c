/* Neural operators, pointwise operations and copies: contiguous parts, one per thread. */
#include <string.h>

#include "backend/check.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/nn.h"
#include "base/minmax.h"

enum {
    GRAIN = 32768, /* numbers that repay a thread */
    LINE = 64      /* parts begin at cache lines */
};

/* f32, or stored in 16 bits; the others are ref's. */
static bool is_tuned(tg_dtype dtype) {
    return dtype == TG_F32 || dtype == TG_BF16 || dtype == TG_F16;
}

static tg_storage storage_of(tg_dtype dtype) {
    return dtype == TG_BF16 ? TG_STORE_BF16 : dtype == TG_F16 ? TG_STORE_F16 : TG_STORE_FULL;
}

enum { CHUNK = 1024 }; /* 16-bit numbers converted at once */

static void act_range(tg_backend *be, const tg_activation *op, tg_range range) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const tg_storage store = storage_of(op->dtype);
    float room[2][CHUNK];
    for (int64_t i = range.begin, some; i < range.end; i += some) {
        some = range.end - i;
        some = store == TG_STORE_FULL || some < CHUNK ? some : CHUNK;
        const float *in = cpu_read(k, store, op->x, i, some, room[0]);
        float *out = cpu_result(store, op->y, i, room[0]);
        if (op->dy) {
            const float *dy = cpu_read(k, store, op->dy, i, some, room[1]);
            cpu_nn_of(be)->act_back(op->act, some, in, dy, out);
        } else {
            cpu_nn_of(be)->act(op->act, some, in, out);
        }
        cpu_write(k, store, some, out, op->y, i);
    }
}

tg_status cpu_activate(tg_backend *be, const tg_activation *op) {
    if (!is_tuned(op->dtype)) {
        return be->ref->activate(be, op);
    }
    const int parts = cpu_parts(be, op->n, GRAIN);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        act_range(be, op, tg_partition(op->n, LINE, parts, p));
    }
    return TG_OK;
}

/* Numbers of 4 or 2 bytes are copied unchanged. */
static void join_range(size_t size, tg_range r, const void *re, const void *im, void *pairs) {
    for (int64_t i = r.begin; size == 4 && i < r.end; i++) {
        ((uint32_t *)pairs)[2 * i] = ((const uint32_t *)re)[i];
        ((uint32_t *)pairs)[2 * i + 1] = ((const uint32_t *)im)[i];
    }
    for (int64_t i = r.begin; size == 2 && i < r.end; i++) {
        ((uint16_t *)pairs)[2 * i] = ((const uint16_t *)re)[i];
        ((uint16_t *)pairs)[2 * i + 1] = ((const uint16_t *)im)[i];
    }
}

static void split_range(size_t size, tg_range r, const void *pairs, void *re, void *im) {
    for (int64_t i = r.begin; size == 4 && i < r.end; i++) {
        ((uint32_t *)re)[i] = ((const uint32_t *)pairs)[2 * i];
        ((uint32_t *)im)[i] = ((const uint32_t *)pairs)[2 * i + 1];
    }
    for (int64_t i = r.begin; size == 2 && i < r.end; i++) {
        ((uint16_t *)re)[i] = ((const uint16_t *)pairs)[2 * i];
        ((uint16_t *)im)[i] = ((const uint16_t *)pairs)[2 * i + 1];
    }
}

tg_status cpu_planes(tg_backend *be, const tg_planes *op) {
    if (!is_tuned(op->dtype)) {
        return be->ref->planes(be, op);
    }
    const size_t size = tg_dtype_size(op->dtype);
    const int parts = cpu_parts(be, op->n, GRAIN);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range range = tg_partition(op->n, LINE, parts, p);
        if (op->from[1]) {
            join_range(size, range, op->from[0], op->from[1], op->to[0]);
        } else {
            split_range(size, range, op->from[0], op->to[0], op->to[1]);
        }
    }
    return TG_OK;
}

/* ---- boxes ---- */

/* The row of src for row number `row` of array h of dst, or -1. */
static int64_t source_row(const tg_box *op, int64_t row) {
    int64_t from = 0, stride = 1;
    for (int d = op->ndim - 2; d >= 0; d--) {
        const int64_t at = row % op->dst_dim[d] - op->dst_at[d];
        row /= op->dst_dim[d];
        if (at < 0 || at >= op->size[d]) {
            return -1;
        }
        from += (op->src_at[d] + at) * stride;
        stride *= op->src_dim[d];
    }
    return from;
}

tg_status cpu_box_copy(tg_backend *be, const tg_box *op) {
    TG_CALL(tg_check_float(be->ctx, "box_copy", op->dtype));
    const int last = op->ndim - 1;
    const size_t size = tg_dtype_size(op->dtype);
    const int64_t dst_rows = tg_product(last, op->dst_dim),
                  src_rows = tg_product(last, op->src_dim);
    const size_t dst_row = (size_t)op->dst_dim[last] * size;
    const size_t src_row = (size_t)op->src_dim[last] * size;
    const size_t front = (size_t)op->dst_at[last] * size, kept = (size_t)op->size[last] * size;
    const int64_t rows = op->howmany * dst_rows;
#pragma omp parallel for num_threads(cpu_team(be, cpu_parts(be, rows * op->dst_dim[last], GRAIN))) \
    schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        char *to = (char *)op->dst + (size_t)i * dst_row;
        const int64_t from = source_row(op, i % dst_rows);
        if (from < 0) {
            memset(to, 0, op->clear ? dst_row : 0);
            continue;
        }
        const char *row = (const char *)op->src +
                          (size_t)(i / dst_rows * src_rows + from) * src_row +
                          (size_t)op->src_at[last] * size;
        memcpy(to + front, row, kept);
        if (op->clear) {
            memset(to, 0, front);
            memset(to + front + kept, 0, dst_row - front - kept);
        }
    }
    return TG_OK;
}

/* ---- coordinates ---- */

/* Channel of coordinate j: (outer, grid_j, inner). */
static void coordinate(const tg_embed *op, int j, float *y) {
    const int64_t outer = tg_product(j, op->grid), n = op->grid[j];
    const int64_t inner = tg_product(op->ndim - 1 - j, op->grid + j + 1);
    const int64_t first = j == 0 ? op->first : 0, whole = j == 0 ? op->whole : n;
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < n; i++) {
            const float value = (float)(op->unit * (double)(first + i) / (double)whole);
            for (int64_t k = 0; k < inner; k++) {
                *y++ = value;
            }
        }
    }
}

tg_status cpu_grid_embed(tg_backend *be, const tg_embed *op) {
    if (op->dtype != TG_F32) {
        return be->ref->grid_embed(be, op);
    }
    const int64_t points = tg_product(op->ndim, op->grid), channels = op->channels + op->ndim;
#pragma omp parallel for num_threads(cpu_team(be, cpu_parts(be, op->batch, 1))) schedule(static)
    for (int64_t b = 0; b < op->batch; b++) {
        float *y = (float *)op->y + b * channels * points;
        if (op->x) {
            memcpy(y, (const float *)op->x + b * op->channels * points,
                   (size_t)(op->channels * points) * sizeof *y);
        }
        for (int j = 0; j < op->ndim; j++) {
            coordinate(op, j, y + (op->channels + j) * points);
        }
    }
    return TG_OK;
}
