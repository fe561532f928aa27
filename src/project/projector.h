/* Inside of a projector: one or two branches over a shared workspace. */
#ifndef TG_PROJECT_PROJECTOR_H
#define TG_PROJECT_PROJECTOR_H

#include "project/branch.h"

/* Rows of a tensor in one of its dimensions; count 0: all of it. */
typedef struct tg_rows {
    int dim;
    int64_t first, count;
} tg_rows;

/* A projector's view of those rows of its tensor that gradients and weights are (rows.c). */
typedef struct tg_row_view {
    tg_rows rows;       /* count 0: they are whole, and nothing below is set */
    tg_shape shape;     /* of gradient and weight */
    tg_multimode modes; /* of the rows */
    int factor_mode;    /* the mode of the rows; -1: it has no factor */
    void *factor;       /* (.., rank) owned: the rows of its factor */
    tg_bitmap kept;     /* owned: entries of the index set; n 0: there is none */
    tg_bitmap own;      /* owned: compressed values that only the rows determine; n 0: all */
    size_t offset;      /* of these values in the workspace */
    size_t step_bytes, host_bytes; /* of the workspace */
} tg_row_view;

struct tg_projector {
    tg_context *ctx;
    tg_backend *be;
    tg_projector_config config;
    tg_dtype dtype;
    tg_shape shape;
    int64_t numel;
    int branches;        /* 1 or 2 */
    tg_branch branch[2]; /* in the order of the config */
    tg_branch *sparse;   /* one of them, or NULL */
    tg_branch *low_rank; /* one of them, or NULL */
    tg_multimode modes;  /* of the low-rank branch, or the plain shape */
    tg_row_view view;
    bool takes_factored;
    tg_workspace *workspace;
    tg_workspace own; /* used when none is shared */
    int64_t refreshes, failures;
};

tg_projector_bytes tg_projector_get_bytes(const tg_projector *projector);

/* Refreshes, failures, and whether each branch is ready, for a copy of a projection. */
enum { TG_PROJECTOR_COUNTERS = 4 };
void tg_projector_get_counters(const tg_projector *p, int64_t out[TG_PROJECTOR_COUNTERS]);
void tg_projector_set_counters(tg_projector *p, const int64_t counters[TG_PROJECTOR_COUNTERS]);

/* The sparse branch comes first, and the other one compresses the residual. */
static inline bool tg_projector_masks(const tg_projector *p) {
    return p->config.scheme == TG_SCHEME_COMPOSITE && p->sparse == &p->branch[0];
}

/* The low-rank branch comes first; a sparse one compresses the residual. */
static inline bool tg_projector_samples(const tg_projector *p) {
    return p->config.scheme == TG_SCHEME_COMPOSITE && p->low_rank == &p->branch[0];
}

/* A tensor, and the rows of it that gradients and weights are. */
typedef struct tg_projected {
    tg_dtype dtype;
    tg_shape shape;
    tg_rows rows;
    bool factored; /* gradients may come factored */
} tg_projected;

/* A projector without memory, to query its sizes and bytes; nothing needs freeing. */
TG_NODISCARD tg_status tg_projector_outline(tg_context *ctx, const tg_projector_config *config,
                                            const tg_projected *of, tg_projector *out);
/* The same to be kept; then its memory. It works in a workspace that its owner has reserved for it
 * and allocates before the first use. */
TG_NODISCARD tg_status tg_projector_make(tg_context *ctx, const tg_projector_config *config,
                                         const tg_projected *of, tg_projector **out);
TG_NODISCARD tg_status tg_projector_allocate(tg_projector *p, uint64_t seed,
                                             tg_workspace *workspace);

/* How an optimizer expands an update into a weight. */
typedef struct tg_back {
    double alpha, beta;
    tg_storage store;       /* of the weight */
    const tg_rng *rounding; /* of a bf16 weight; NULL: to nearest */
    const tg_rates *rates;  /* if not NULL, replaces alpha (made by tg_projector_rate) and beta */
    const uint32_t *guard;  /* nothing is written if it is not 0; NULL: none */
} tg_back;

TG_NODISCARD tg_status tg_projector_back_by(tg_projector *p, const void *small, const tg_back *back,
                                            void *out);

/* Projects into `small`, runs Adam on it and expands into `out` in one backend call, if the backend
 * has one for this projector (tg_projector_steps_at_once). `small` is undefined afterwards. */
bool tg_projector_steps_at_once(const tg_projector *p);
TG_NODISCARD tg_status tg_projector_step(tg_projector *p, const tg_gradient *gradient,
                                         uint32_t *guard, const tg_adam *adam, const tg_back *back,
                                         void *small, void *out);

/* The value of alpha in the rates. */
double tg_projector_rate(const tg_projector *p, double alpha);

/* As tg_projector_refresh, from a gradient, of the whole tensor, in this storage. */
TG_NODISCARD tg_status tg_projector_refresh_stored(tg_projector *p, const void *grad,
                                                   tg_storage store);

/* After something else wrote the factors or words of the index set: sets what follows from them. */
TG_NODISCARD tg_status tg_projector_complete(tg_projector *p);

/* tg_projector_project into an array of its values; adds NaN and Inf of the gradient or its factors
 * to the guard, if there is one. With rows, of their gradient: other values are beta times what
 * they were; or, dense, of the whole tensor's. */
TG_NODISCARD tg_status tg_projector_project_into(tg_projector *p, const tg_gradient *gradient,
                                                 double scale, double beta, uint32_t *guard,
                                                 void *small);

/* Whether tg_projector_project accepts factored gradients (the matrix form does not). */
bool tg_projector_takes_factored(const tg_projector *p);

/* ---- rows ---- */

/* Sizes, and bytes of the workspace, of a planned projector. */
void tg_rows_plan(tg_projector *p);

/* Takes the rows of factors and index set. */
TG_NODISCARD tg_status tg_rows_take(tg_projector *p);

/* The own values, in the workspace (NULL: all are), and the number of the first branch's. */
void *tg_rows_own(const tg_projector *p);
int64_t tg_rows_first_count(const tg_projector *p);
/* small = beta small + own; own = of small. */
TG_NODISCARD tg_status tg_rows_scatter(tg_projector *p, double beta, void *small);
TG_NODISCARD tg_status tg_rows_gather(tg_projector *p, const void *small);

#endif
