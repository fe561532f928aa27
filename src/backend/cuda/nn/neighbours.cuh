/* Cell lists (backend/gno.h) as kernels see them. Distances and cells are bit-identical to
 * the host's, without fused multiply-add, so that the same neighbours come in the same order. */
#ifndef TG_BACKEND_CUDA_NN_NEIGHBOURS_CUH
#define TG_BACKEND_CUDA_NN_NEIGHBOURS_CUH

#include "backend/cuda/core/cuda.cuh"

/* Bits of the numbers below `count`. */
static inline int bits_below(int64_t count) {
    int bits = 1;
    while (((int64_t)1 << bits) < count) {
        bits++;
    }
    return bits;
}

struct cell_lists {
    int64_t points, queries;
    int dim;
    double radius, low[3], per_length[3];
    int64_t cells[3];
    const double (*at)[3];    /* (points), by cell */
    const double (*query)[3]; /* (queries) */
    const int64_t *first;     /* (queries + 1) */
    const int32_t *begin;     /* (cells + 1) */
    const int32_t *number;    /* (points) */
    const int32_t *order;     /* (queries) */
};

static inline cell_lists cell_lists_of(const tg_neighbours *s) {
    cell_lists lists = {};
    lists.points = s->points;
    lists.queries = s->queries;
    lists.dim = s->dim;
    lists.radius = s->radius;
    for (int d = 0; d < 3; d++) {
        lists.low[d] = s->low[d];
        lists.per_length[d] = s->per_length[d];
        lists.cells[d] = s->cells[d];
    }
    lists.at = s->at;
    lists.query = s->query;
    lists.first = s->first;
    lists.begin = s->begin;
    lists.number = s->number;
    lists.order = s->order;
    return lists;
}

/* The cell along an axis. Places outside the box get the nearest cell, NaN the first. */
__device__ inline int64_t cell_along(const cell_lists &s, int d, double p) {
    const double cell = floor(__dmul_rn(__dsub_rn(p, s.low[d]), s.per_length[d]));
    return !(cell >= 0.0) ? 0 : cell >= (double)s.cells[d] ? s.cells[d] - 1 : (int64_t)cell;
}

/* The range of cells that the ball around a query touches, inclusive; from > to: none. */
struct cell_reach {
    double q[3];
    int64_t from[3], to[3];
};

__device__ inline cell_reach reach_of(const cell_lists &s, int64_t i) {
    cell_reach r;
    for (int d = 0; d < 3; d++) {
        r.q[d] = s.query[i][d];
        const double width = s.per_length[d] > 0.0 ? (double)s.cells[d] / s.per_length[d] : 0.0;
        /* a little more than the ball, so that rounding loses none on its surface */
        const double wide = s.radius + 1e-12 * (s.radius + fabs(r.q[d]) + fabs(s.low[d]) + width);
        const bool misses = r.q[d] + wide < s.low[d] || r.q[d] - wide > s.low[d] + width;
        r.from[d] = cell_along(s, d, r.q[d] - wide);
        r.to[d] = misses ? -1 : cell_along(s, d, r.q[d] + wide);
    }
    return r;
}

__device__ inline double distance2_to(const cell_lists &s, const cell_reach &r, int64_t place) {
    const double *p = s.at[place];
    const double x = __dsub_rn(p[0], r.q[0]), y = __dsub_rn(p[1], r.q[1]),
                 z = __dsub_rn(p[2], r.q[2]);
    return __dadd_rn(__dadd_rn(__dmul_rn(x, x), __dmul_rn(y, y)), __dmul_rn(z, z));
}

/* Calls f(k, place, squared distance) for neighbour number k of query i, on the lane that found it.
 * The whole warp calls, with the same i. Returns the number of neighbours. */
template <class F> __device__ inline int64_t each_neighbour(const cell_lists &s, int64_t i, F f) {
    const cell_reach r = reach_of(s, i);
    const double limit = __dmul_rn(s.radius, s.radius);
    const int lane = threadIdx.x % 32;
    int64_t found = 0;
    for (int64_t c0 = r.from[0]; c0 <= r.to[0]; c0++) {
        for (int64_t c1 = r.from[1]; c1 <= r.to[1] && r.from[2] <= r.to[2]; c1++) {
            const int64_t row =
                (c0 * s.cells[1] + c1) * s.cells[2]; /* cells of a row are consecutive */
            const int64_t end = s.begin[row + r.to[2] + 1];
            for (int64_t first = s.begin[row + r.from[2]]; first < end; first += 32) {
                const int64_t place = first + lane;
                const double distance2 = place < end ? distance2_to(s, r, place) : 0.0;
                const bool is_near = place < end && distance2 <= limit;
                const unsigned all = __ballot_sync(~0u, is_near);
                if (is_near) {
                    f(found + __popc(all & ((1u << lane) - 1u)), place, distance2);
                }
                found += __popc(all);
            }
        }
    }
    return found;
}

#endif
