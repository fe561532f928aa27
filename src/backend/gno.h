/* Operands of the graph-kernel slots, and the sizes that follow from the settings.
 *
 *   y[b, :, i] = s_i sum over j in A(i) of w_ij kappa(e(y_j), e(x_i) [, f_bj]) [* f_bj]
 *
 * s_i = 1 / |A(i)| for a mean without weights, else 1. Values are (batch, channels, points), as all
 * activations. Gradients of the kernel are added to, df is overwritten. */
#ifndef TG_BACKEND_GNO_H
#define TG_BACKEND_GNO_H

#include "backend/neighbours.h"
#include "backend/nn.h"
#include "base/setting.h"
#include "tgrad/gno.h"

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
/* w of a neighbour at this squared distance: 1 without a weighting function. */
double tg_gno_weight(const tg_gno_config *config, double distance2);
/* s_i. */
double tg_gno_scale(const tg_gno *op, int64_t query);

#endif
