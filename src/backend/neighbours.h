/* Neighbours within a radius, by cell lists: O(points + queries + neighbours), no matrix.
 *
 * The box around the points is cut into cells no narrower than the radius, and no more of them than
 * there are points; points are sorted by cell. What lies near a query is in the few cells that its
 * ball reaches. Only counts are kept, lists are made again wherever they are needed: the memory
 * follows from the numbers of points and queries alone. */
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
    double (*query)[3]; /* (queries) likewise */
    int64_t *first;     /* (queries + 1): the first neighbour of each, counted through all */
    int32_t *begin;     /* (cells + 1), points + 1 at most */
    int32_t *number;    /* (points): of the caller's */
    int32_t *order;     /* (queries) by cell, so that queries in a row share what they read */
} tg_neighbours;

enum { TG_NEIGHBOURS_MOST = INT32_MAX - 1 }; /* points or queries */

/* Bytes of the arrays, and those arrays laid out in memory of as many, wherever that is. */
size_t tg_neighbours_bytes(int64_t points, int64_t queries);
void tg_neighbours_place(int dim, int64_t points, int64_t queries, void *memory,
                         tg_neighbours *out);

/* What follows is for arrays on the host; slots of the backends (backend.h) do it elsewhere.
 *
 * Sorts the points and counts the neighbours of each query; both tensors of the host are (.., dim)
 * in f32 or f64. A coordinate that is not finite is an error. The ball is closed, distances are
 * taken in double. */
TG_NODISCARD tg_status tg_neighbours_build(tg_context *ctx, int threads, tg_neighbours *s,
                                           double radius, const tg_tensor *points,
                                           const tg_tensor *queries);

/* The corners of the box, and the same cells of it on every backend. */
void tg_neighbours_cut(tg_neighbours *s, const double low[3], const double high[3]);

/* The sentence about coordinate i of all, which is not finite. */
tg_status tg_neighbours_not_finite(tg_context *ctx, const char *what, int dim, int64_t i);

/* Neighbours first .. first + count - 1 of all, query by query: the query, the number of the point
 * and the squared distance of each. */
void tg_neighbours_list(const tg_neighbours *s, int64_t first, int64_t count, int32_t *query,
                        int32_t *point, double *distance2);

/* The numbers of the points near all queries, (count). */
void tg_neighbours_numbers(const tg_neighbours *s, int threads, int64_t *index);

#endif
