/* Neighbours within a radius, by cell lists: O(points + queries + neighbours), no matrix.
 *
 * The box around the points is divided into cells no narrower than the radius, at most as many as
 * there are points; points are sorted by cell. The neighbours of a query are in the few cells that
 * its ball touches. Only counts are stored and lists are recomputed when needed, so the memory
 * follows from the numbers of points and queries. */
#ifndef TG_BACKEND_NEIGHBOURS_H
#define TG_BACKEND_NEIGHBOURS_H

#include "base/context.h"
#include "tgrad/tensor.h"

typedef struct tg_neighbours {
    int dim; /* 1 .. 3 */
    int64_t points, queries;
    int64_t count; /* neighbours of all queries */
    double radius;
    double low[3], per_length[3]; /* corner of the first cell; cells per unit of length */
    int64_t cells[3];
    double (*at)[3];    /* (points), cell by cell; coordinates beyond dim are 0 */
    double (*query)[3]; /* (queries), likewise */
    int64_t *first;     /* (queries + 1): the first neighbour of each, counted through all */
    int32_t *begin;     /* (cells + 1), at most points + 1 */
    int32_t *number;    /* (points): numbers in the caller's array */
    int32_t *order;     /* (queries) by cell, so that consecutive queries read the same points */
} tg_neighbours;

enum { TG_NEIGHBOURS_MAX = INT32_MAX - 1 }; /* points or queries */

/* Bytes of the arrays, and their layout in a block of that size anywhere. */
size_t tg_neighbours_bytes(int64_t points, int64_t queries);
void tg_neighbours_place(int dim, int64_t points, int64_t queries, void *memory,
                         tg_neighbours *out);

/* The following is for arrays on the host; backends have slots for it (backend.h).
 *
 * Sorts the points and counts the neighbours of each query; both host tensors are (.., dim) in f32
 * or f64. Coordinates that are not finite are an error. The ball is closed, distances are computed
 * in double. */
TG_NODISCARD tg_status tg_neighbours_build(tg_context *ctx, int threads, tg_neighbours *s,
                                           double radius, const tg_tensor *points,
                                           const tg_tensor *queries);

/* The corners of the box, and its cells, the same on every backend. */
void tg_neighbours_cut(tg_neighbours *s, const double low[3], const double high[3]);

/* The error for coordinate i of all, which is not finite. */
tg_status tg_neighbours_not_finite(tg_context *ctx, const char *what, int dim, int64_t i);

/* Neighbours first .. first + count - 1 of all, by query: the query, the number of the point and
 * the squared distance of each. */
void tg_neighbours_list(const tg_neighbours *s, int64_t first, int64_t count, int32_t *query,
                        int32_t *point, double *distance2);

/* The numbers of the neighbours of all queries, (count). */
void tg_neighbours_numbers(const tg_neighbours *s, int threads, int64_t *index);

#endif
