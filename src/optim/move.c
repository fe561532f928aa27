/* States that move within their pool when ranks change. */
#include <string.h>

#include "optim/pool.h"

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* What new coordinates get. */
typedef enum filling { ZERO, NEAREST, REPEATED } filling;

/* A box of elements, row-major, from the sizes `from` at element `source` of `data` to the sizes
 * `to` at element `target` of the same memory. Smaller boxes move towards the front, from the first
 * element on; larger ones towards the back, from the last element on: nothing is written before it
 * was read. */
static void reshape(char *data, size_t size, int ndim, const int64_t *from, int64_t source,
                    const int64_t *to, int64_t target, filling fills) {
    int64_t count = 1, index[TG_MAX_NDIM];
    bool grows = target > source;
    for (int d = 0; d < ndim; d++) {
        count *= to[d];
        grows = grows || to[d] > from[d];
    }
    for (int64_t n = 0; n < count; n++) {
        const int64_t i = grows ? count - 1 - n : n;
        int64_t rest = i, at = 0, stride = 1;
        bool is_new = false;
        for (int d = ndim - 1; d >= 0; d--) {
            index[d] = rest % to[d];
            rest /= to[d];
            is_new = is_new || index[d] >= from[d];
            index[d] = fills == REPEATED ? index[d] % from[d] : smaller(index[d], from[d] - 1);
            at += index[d] * stride;
            stride *= from[d];
        }
        char *out = data + (size_t)(target + i) * size;
        if (is_new && fills == ZERO) {
            memset(out, 0, size);
        } else {
            memmove(out, data + (size_t)(source + at) * size, size);
        }
    }
}

/* Both parts of a parameter's values. Growing starts with the part behind. */
static void reshape_parts(char *data, size_t size, const tg_layout *from, const tg_layout *to,
                          bool is_second_moment) {
    const bool grows = tg_layout_count(to) > tg_layout_count(from);
    for (int n = 0; n < 2; n++) {
        const bool behind = (n == 0) == grows;
        if (behind == from->is_sparse_first) { /* the core */
            reshape(data, size, from->ndim, from->rank, behind ? from->kept : 0, to->rank,
                    behind ? to->kept : 0, is_second_moment ? NEAREST : ZERO);
        } else if (from->kept > 0) {
            reshape(data, size, 1, &from->kept, behind ? tg_layout_core(from) : 0, &to->kept,
                    behind ? tg_layout_core(to) : 0, is_second_moment ? REPEATED : ZERO);
        }
    }
}

static bool is_same(const tg_layout *a, const tg_layout *b) {
    bool same = a->offset == b->offset && a->kept == b->kept;
    for (int d = 0; d < a->ndim; d++) {
        same = same && a->rank[d] == b->rank[d];
    }
    return same;
}

/* The arrays of a region, in its order. */
enum { FIRST_MOMENT, SECOND_MOMENT, FACTORS };

/* One array of a parameter's state, by way of the host. */
static tg_status move_array(tg_optim *optim, const tg_pool *pool, int array, const tg_layout *from,
                            const tg_layout *to) {
    const tg_backend_ops *ops = optim->be->ops;
    const tg_region source = tg_layout_region(pool, from), target = tg_layout_region(pool, to);
    const size_t size = array == SECOND_MOMENT
                            ? tg_moment_bytes(pool->kind.config, pool->kind.dtype, 1)
                            : tg_dtype_size(pool->kind.dtype);
    const int mode = array - FACTORS;
    size_t reads = source.m, writes = target.m;
    int64_t old_count = tg_layout_count(from), new_count = tg_layout_count(to);
    tg_status status = TG_OK;
    if (array == SECOND_MOMENT) {
        reads = source.v;
        writes = target.v;
    } else if (array >= FACTORS) {
        reads = source.factor[mode];
        writes = target.factor[mode];
        old_count = from->dim[mode] * from->rank[mode];
        new_count = to->dim[mode] * to->rank[mode];
    }
    TG_TRY(ops->download(optim->be, pool->moving, (char *)pool->memory + from->offset + reads,
                         (size_t)old_count * size));
    if (array >= FACTORS) { /* columns that stay; new ones are 0 until the refresh */
        const int64_t old_size[2] = {from->dim[mode], from->rank[mode]};
        const int64_t new_size[2] = {to->dim[mode], to->rank[mode]};
        reshape(pool->moving, size, 2, old_size, 0, new_size, 0, ZERO);
    } else {
        reshape_parts(pool->moving, size, from, to, array == SECOND_MOMENT);
    }
    TG_TRY(ops->upload(optim->be, (char *)pool->memory + to->offset + writes, pool->moving,
                       (size_t)new_count * size));
fail:
    return status;
}

/* All of them, those in front first if they move to the front. */
tg_status tg_state_move(tg_optim *optim, const tg_pool *pool, const tg_layout *from,
                        const tg_layout *to) {
    const int arrays = FACTORS + from->ndim;
    const bool grows = to->offset > from->offset || tg_layout_count(to) > tg_layout_count(from);
    tg_status status = TG_OK;
    for (int i = 0; i < arrays && status == TG_OK && !is_same(from, to); i++) {
        status = move_array(optim, pool, grows ? arrays - 1 - i : i, from, to);
    }
    return status;
}
