/* Cell lists: see neighbours.h. */
#include "backend/gno.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "base/system.h"

/* ---- memory ---- */

size_t tg_neighbours_place(int dim, int64_t points, int64_t queries, void *memory,
                           tg_neighbours *out) {
    tg_scratch rest = {memory, 0};
    *out = (tg_neighbours){.dim = dim, .points = points, .queries = queries};
    out->at = tg_scratch_take(&rest, (size_t)points * sizeof *out->at);
    out->query = tg_scratch_take(&rest, (size_t)queries * sizeof *out->query);
    out->first = tg_scratch_take(&rest, (size_t)(queries + 1) * sizeof(int64_t));
    out->begin = tg_scratch_take(&rest, (size_t)(points + 2) * sizeof(int32_t));
    out->number = tg_scratch_take(&rest, (size_t)points * sizeof(int32_t));
    out->order = tg_scratch_take(&rest, (size_t)queries * sizeof(int32_t));
    return rest.used;
}

size_t tg_neighbours_bytes(int64_t points, int64_t queries) {
    tg_neighbours unused;
    return tg_neighbours_place(0, points, queries, NULL, &unused);
}

/* ---- the points, sorted by cell ---- */

static double coordinate(const tg_tensor *x, int64_t i) {
    return x->dtype == TG_F64 ? ((const double *)x->data)[i] : (double)((const float *)x->data)[i];
}

tg_status tg_neighbours_not_finite(tg_context *ctx, const char *what, int dim, int64_t i) {
    return tg_fail(ctx, TG_E_NUMERIC, "%s: coordinate %d of number %lld is not finite", what,
                   (int)(i % dim), (long long)(i / dim));
}

static tg_status check_finite(tg_context *ctx, const char *what, int dim, int64_t count,
                              const tg_tensor *x) {
    for (int64_t i = 0; i < count * dim; i++) {
        if (!isfinite(coordinate(x, i))) {
            return tg_neighbours_not_finite(ctx, what, dim, i);
        }
    }
    return TG_OK;
}

/* The largest numbers of cells no narrower than the radius, at most one per point. */
void tg_neighbours_cut(tg_neighbours *s, const double low[3], const double high[3]) {
    enum { MAX_CELLS = 1 << 20 }; /* along an axis */
    double count = 1.0;
    for (int d = 0; d < 3; d++) {
        s->cells[d] = 1;
        s->low[d] = s->per_length[d] = 0.0;
    }
    for (int d = 0; d < s->dim && s->points > 0; d++) {
        s->low[d] = low[d];
        const double fit = floor((high[d] - s->low[d]) / s->radius); /* NaN: no extent, radius 0 */
        s->cells[d] = fit >= MAX_CELLS ? MAX_CELLS : fit >= 1.0 ? (int64_t)fit : 1;
        count *= (double)s->cells[d];
    }
    while (count > (double)s->points && count > 1.0) {
        const double share = pow((double)s->points / count, 1.0 / s->dim);
        count = 1.0;
        for (int d = 0; d < s->dim; d++) {
            const double fewer = floor(share * (double)s->cells[d]);
            s->cells[d] = tg_max((int64_t)fewer, 1);
            count *= (double)s->cells[d];
        }
    }
    for (int d = 0; d < s->dim && s->points > 0; d++) {
        const double width = high[d] - s->low[d];
        s->per_length[d] = width > 0.0 ? (double)s->cells[d] / width : 0.0;
    }
}

static void cut_box(tg_neighbours *s, const tg_tensor *points) {
    double low[3] = {0.0}, high[3] = {0.0};
    for (int d = 0; d < s->dim && s->points > 0; d++) {
        low[d] = high[d] = coordinate(points, d);
        for (int64_t i = 1; i < s->points; i++) {
            const double p = coordinate(points, i * s->dim + d);
            low[d] = fmin(low[d], p);
            high[d] = fmax(high[d], p);
        }
    }
    tg_neighbours_cut(s, low, high);
}

/* The cell along an axis; places outside the box get its border cell. Monotone in p. */
static int64_t cell_along(const tg_neighbours *s, int d, double p) {
    const double cell = floor((p - s->low[d]) * s->per_length[d]);
    return cell < 0.0 ? 0 : cell >= (double)s->cells[d] ? s->cells[d] - 1 : (int64_t)cell;
}

static int64_t cell_of(const tg_neighbours *s, const tg_tensor *points, int64_t i) {
    int64_t cell = 0;
    for (int d = 0; d < 3; d++) {
        const double p = d < s->dim ? coordinate(points, i * s->dim + d) : 0.0;
        cell = cell * s->cells[d] + cell_along(s, d, p);
    }
    return cell;
}

/* A stable counting sort of places by cell; leaves the ends of the cells in `begin`. */
static void sort_places(tg_neighbours *s, const tg_tensor *places, int64_t count, int32_t *sorted) {
    const int64_t cells = s->cells[0] * s->cells[1] * s->cells[2];
    memset(s->begin, 0, (size_t)(cells + 1) * sizeof *s->begin);
    for (int64_t i = 0; i < count; i++) {
        s->begin[cell_of(s, places, i) + 1]++;
    }
    for (int64_t c = 0; c < cells; c++) {
        s->begin[c + 1] += s->begin[c];
    }
    for (int64_t i = 0; i < count; i++) {
        sorted[s->begin[cell_of(s, places, i)]++] = (int32_t)i;
    }
}

static void sort_points(tg_neighbours *s, const tg_tensor *points) {
    const int64_t cells = s->cells[0] * s->cells[1] * s->cells[2];
    sort_places(s, points, s->points, s->number);
    memmove(s->begin + 1, s->begin, (size_t)cells * sizeof *s->begin); /* ends become begins */
    s->begin[0] = 0;
    for (int64_t place = 0; place < s->points; place++) {
        for (int d = 0; d < 3; d++) {
            s->at[place][d] =
                d < s->dim ? coordinate(points, (int64_t)s->number[place] * s->dim + d) : 0.0;
        }
    }
}

/* ---- one query ---- */

typedef struct reach {
    double q[3];
    int64_t from[3], to[3]; /* cells, inclusive; from > to: none */
} reach;

static reach reach_of(const tg_neighbours *s, int64_t i) {
    reach r = {.from = {0}};
    for (int d = 0; d < 3; d++) {
        r.q[d] = s->query[i][d];
        const double width = s->per_length[d] > 0.0 ? (double)s->cells[d] / s->per_length[d] : 0.0;
        /* a little more than the ball, so that rounding loses none on its surface */
        const double wide =
            s->radius + 1e-12 * (s->radius + fabs(r.q[d]) + fabs(s->low[d]) + width);
        const bool misses = r.q[d] + wide < s->low[d] || r.q[d] - wide > s->low[d] + width;
        r.from[d] = cell_along(s, d, r.q[d] - wide);
        r.to[d] = misses ? -1 : cell_along(s, d, r.q[d] + wide);
    }
    return r;
}

/* Squared distance to the point at a place. */
static inline double distance2_to(const tg_neighbours *s, const reach *r, int64_t place) {
    const double *p = s->at[place];
    const double x = p[0] - r->q[0], y = p[1] - r->q[1], z = p[2] - r->q[2];
    return x * x + y * y + z * z;
}

/* Points in range along the last axis, whose cells are contiguous. */
static tg_range run_of(const tg_neighbours *s, const reach *r, int64_t c0, int64_t c1) {
    const int64_t row = (c0 * s->cells[1] + c1) * s->cells[2];
    return r->from[2] <= r->to[2]
               ? (tg_range){s->begin[row + r->from[2]], s->begin[row + r->to[2] + 1]}
               : (tg_range){0, 0};
}

static int64_t count_of(const tg_neighbours *s, int64_t i) {
    const reach r = reach_of(s, i);
    const double limit = s->radius * s->radius;
    int64_t count = 0;
    for (int64_t c0 = r.from[0]; c0 <= r.to[0]; c0++) {
        for (int64_t c1 = r.from[1]; c1 <= r.to[1]; c1++) {
            const tg_range run = run_of(s, &r, c0, c1);
            for (int64_t p = run.begin; p < run.end; p++) {
                count += distance2_to(s, &r, p) <= limit;
            }
        }
    }
    return count;
}

/* ---- all queries ---- */

tg_status tg_neighbours_build(tg_context *ctx, int threads, tg_neighbours *s, double radius,
                              const tg_tensor *points, const tg_tensor *queries) {
    TG_CALL(check_finite(ctx, "points", s->dim, s->points, points));
    TG_CALL(check_finite(ctx, "queries", s->dim, s->queries, queries));
    s->radius = radius;
    cut_box(s, points);
    sort_places(s, queries, s->queries, s->order);
    sort_points(s, points);
    s->first[0] = 0;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++) {
        const tg_range own = tg_partition(s->queries, 1, threads, part);
        for (int64_t k = own.begin; k < own.end; k++) {
            const int64_t i = s->order[k];
            for (int d = 0; d < 3; d++) {
                s->query[i][d] = d < s->dim ? coordinate(queries, i * s->dim + d) : 0.0;
            }
            s->first[i + 1] = count_of(s, i);
        }
    }
    for (int64_t i = 0; i < s->queries; i++) {
        s->first[i + 1] += s->first[i];
    }
    s->count = s->first[s->queries];
    return TG_OK;
}

/* The query of neighbour number `edge`: the last one that begins at or before it. */
static int64_t query_of(const tg_neighbours *s, int64_t edge) {
    int64_t low = 0, high = s->queries;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        *(s->first[middle] <= edge ? &low : &high) = middle;
    }
    return low;
}

/* Lists at most `room` neighbours of a query after the first `skip`; returns their number. */
static int64_t neighbours_of(const tg_neighbours *s, int64_t i, int64_t skip, int64_t room,
                             int32_t *query, int32_t *point, double *distance2) {
    const reach r = reach_of(s, i);
    const double limit = s->radius * s->radius;
    int64_t found = -skip;
    for (int64_t c0 = r.from[0]; c0 <= r.to[0]; c0++) {
        for (int64_t c1 = r.from[1]; c1 <= r.to[1]; c1++) {
            const tg_range run = run_of(s, &r, c0, c1);
            for (int64_t p = run.begin; p < run.end; p++) {
                const double near = distance2_to(s, &r, p);
                if (!(near <= limit)) {
                    continue;
                }
                if (found == room) {
                    return room;
                }
                if (found >= 0) {
                    query[found] = (int32_t)i;
                    point[found] = s->number[p];
                    distance2[found] = near;
                }
                found++;
            }
        }
    }
    return found;
}

void tg_neighbours_list(const tg_neighbours *s, int64_t first, int64_t count, int32_t *query,
                        int32_t *point, double *distance2) {
    int64_t done = 0;
    for (int64_t i = count > 0 ? query_of(s, first) : 0; done < count; i++) {
        const int64_t skip = tg_max(first - s->first[i], 0);
        done +=
            neighbours_of(s, i, skip, count - done, query + done, point + done, distance2 + done);
    }
}

/* In pieces that fit on the stack. */
void tg_neighbours_numbers(const tg_neighbours *s, int threads, int64_t *index) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++) {
        enum { PIECE = 512 };
        int32_t query[PIECE], point[PIECE];
        double distance2[PIECE];
        const tg_range own = tg_partition(s->queries, 1, threads, part);
        for (int64_t k = own.begin; k < own.end; k++) {
            const int64_t i = s->order[k], all = s->first[i + 1] - s->first[i];
            for (int64_t done = 0, count; done < all; done += count) {
                count = neighbours_of(s, i, done, PIECE, query, point, distance2);
                for (int64_t e = 0; e < count; e++) {
                    index[s->first[i] + done + e] = point[e];
                }
            }
        }
    }
}
