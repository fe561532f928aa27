/* Operands of the graph-kernel slots, and the sizes that follow from the settings.
 *
 *   y[b, :, i] = s_i sum over j in A(i) of w_ij kappa(e(y_j), e(x_i) [, f_bj]) [* f_bj]
 *
 * s_i = 1 / |A(i)| for a mean without weights, else 1. Values are (batch, channels, points), as all
 * activations. Gradients of the kernel are added to, df is overwritten. */
#ifndef TG_BACKEND_GNO_H
#define TG_BACKEND_GNO_H

#include "backend/nn.h"
#include "base/setting.h"
#include "tgrad/gno.h"

/* ---- neighbours (neighbours.c) ----
 *
 * Within a radius, by cell lists, O(points + queries + neighbours): the box around the points is
 * divided into cells no narrower than the radius, at most one per point, and points are sorted by
 * cell. The neighbours of a query are in the few cells that its ball touches. Only counts are
 * stored, so the memory follows from the numbers of points and queries; lists are recomputed. */

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

/* Bytes of the arrays; and their layout in a block of that size, which returns them, too. */
size_t tg_neighbours_bytes(int64_t points, int64_t queries);
size_t tg_neighbours_place(int dim, int64_t points, int64_t queries, void *memory,
                           tg_neighbours *out);

/* On the host; backends have slots for it (backend.h). Sorts the points and counts the neighbours
 * of each query; both tensors are (.., dim) in f32 or f64. Coordinates that are not finite are an
 * error. The ball is closed, distances are computed in double. */
TG_NODISCARD tg_status tg_neighbours_build(tg_context *ctx, int threads, tg_neighbours *s,
                                           double radius, const tg_tensor *points,
                                           const tg_tensor *queries);

/* The corners of the box, and its cells, the same on every backend. */
void tg_neighbours_cut(tg_neighbours *s, const double low[3], const double high[3]);

/* The error for coordinate i of all, which is not finite. */
tg_status tg_neighbours_not_finite(tg_context *ctx, const char *what, int dim, int64_t i);

/* Neighbours first .. first + count - 1 of all: query, number of the point and squared distance. */
void tg_neighbours_list(const tg_neighbours *s, int64_t first, int64_t count, int32_t *query,
                        int32_t *point, double *distance2);

/* The numbers of the neighbours of all queries, (count). */
void tg_neighbours_numbers(const tg_neighbours *s, int threads, int64_t *index);

/* ---- kernels ---- */

enum { TG_GNO_MAX_LAYERS = TG_GNO_MAX_HIDDEN + 1 };

/* The caller's config, of any version's size, as this library's. */
TG_NODISCARD tg_status tg_gno_config_read(tg_context *ctx, const tg_gno_config *config,
                                          tg_gno_config *out);
/* Names of the forms, for settings of other sections. */
extern const tg_choice tg_gno_transforms[];
extern const tg_choice tg_gno_weightings[];
extern const tg_choice tg_gno_embeddings[];

/* The widths of a kernel. */
typedef struct tg_gno_sizes {
    int layers;
    int64_t width[TG_GNO_MAX_LAYERS + 1]; /* of its input, hidden layers and output */
    int64_t embedded;                     /* numbers per place: e(y), then e(x), then f */
    bool reads_values;                    /* f is part of the input .. */
    bool times_values;                    /* .. and multiplies the output */
} tg_gno_sizes;

tg_gno_sizes tg_gno_sizes_of(const tg_gno_config *config, bool has_values);
int64_t tg_gno_weight_count(const tg_gno_sizes *sizes);

typedef struct tg_gno {
    tg_dtype dtype;
    bool backward;
    const tg_gno_config *config;
    int64_t batch, points, queries;
    const tg_neighbours *neighbours;
    const void *weight[TG_GNO_MAX_LAYERS]; /* (width[l + 1], width[l]) */
    const void *bias[TG_GNO_MAX_LAYERS];   /* (width[l + 1]) */
    tg_storage f_store;                    /* of f and df */
    tg_act act;                            /* act(f) replaces f */
    bool has_values;                       /* whether there is an f */
    const void *f;                         /* (batch, in_channels, points) */
    void *y;                               /* (batch, out_channels, queries) */
    const void *dy;
    void *df; /* may be NULL */
    void *dweight[TG_GNO_MAX_LAYERS], *dbias[TG_GNO_MAX_LAYERS];
    void *workspace;
} tg_gno;

/* e(p) of the coordinates p (dim), `embedded` numbers. */
void tg_gno_embed(const tg_gno_config *config, const double *p, double *out);
/* s_i. */
double tg_gno_scale(const tg_gno *op, int64_t query);

#endif
