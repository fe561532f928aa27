/* Inside of a projector: one or two branches over a shared workspace. */
#ifndef TG_PROJECT_PROJECTOR_H
#define TG_PROJECT_PROJECTOR_H

#include "project/branch.h"

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
    bool takes_factored;
    tg_workspace *workspace;
    tg_workspace own; /* used when none is shared */
    int64_t refreshes, failures;
};

tg_projector_bytes tg_projector_get_bytes(const tg_projector *projector);

/* The sparse branch comes first, and the other one compresses the residual. */
static inline bool tg_projector_masks(const tg_projector *p) {
    return p->config.scheme == TG_SCHEME_COMPOSITE && p->sparse == &p->branch[0];
}

/* As tg_projector_create, with scratch from the caller's workspace, which the caller allocates
 * after creating all its projectors. factored: gradients may come factored. */
TG_NODISCARD tg_status tg_projector_create_in(tg_context *ctx, const tg_projector_config *config,
                                              tg_dtype dtype, const tg_shape *shape, uint64_t seed,
                                              bool factored, tg_workspace *workspace,
                                              tg_projector **out);

/* A projector without memory, to query its sizes and bytes; nothing needs freeing. */
TG_NODISCARD tg_status tg_projector_outline(tg_context *ctx, const tg_projector_config *config,
                                            tg_dtype dtype, const tg_shape *shape, bool factored,
                                            tg_projector *out);

/* How an optimizer expands an update into a weight. */
typedef struct tg_back {
    double alpha, beta;
    tg_storage store;       /* of the weight */
    const tg_rng *rounding; /* of a bf16 weight; NULL: to nearest */
    const tg_rates *rates;  /* if not NULL, replaces alpha (made by tg_projector_rate) and beta */
    const uint32_t *guard;  /* nothing is written if it is not 0; NULL: none */
    bool is_direction;      /* of Adam: see tg_expand */
} tg_back;

TG_NODISCARD tg_status tg_projector_back_by(tg_projector *p, const void *small, const tg_back *back,
                                            void *out);

/* The value of alpha in the rates. */
double tg_projector_rate(const tg_projector *p, double alpha);

/* As tg_projector_refresh, from a gradient in this storage. */
TG_NODISCARD tg_status tg_projector_refresh_stored(tg_projector *p, const void *grad,
                                                   tg_storage store);

/* tg_projector_project into an array of its values; adds NaN and Inf of the gradient or its factors
 * to the guard, if there is one. */
TG_NODISCARD tg_status tg_projector_project_into(tg_projector *p, const tg_gradient *gradient,
                                                 double scale, double beta, uint32_t *guard,
                                                 void *small);

/* Whether tg_projector_project accepts factored gradients (the matrix form does not). */
bool tg_projector_takes_factored(const tg_projector *p);

/* The source form of a handed-over gradient. */
tg_grad_source tg_gradient_source(const tg_gradient *gradient);

#endif
