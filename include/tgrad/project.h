/* Projectors: a gradient tensor G to a few values and back.
 *
 * A projector has one or two branches. A low-rank branch (Tucker, or GaLore's matrix form) keeps
 * orthonormal factors and projects onto a core; a sparse branch keeps an index set and gathers its
 * entries. Of two branches the second compresses the residual of the first (TensorGRaD), or
 * both compress G ("sum"). Between refreshes projection is linear: project(a + b) = project(a) +
 * project(b). Any number of dimensions from 1, dtypes f32, f64, c64, c128. All tensors live where
 * the context's backend computes (host memory for ref and cpu): `gradient` and `out` have dtype and
 * shape of the projector, `small` has its dtype and the shape (count). */
#ifndef TGRAD_PROJECT_H
#define TGRAD_PROJECT_H

#include "tgrad/gradient.h"
#include "tgrad/linalg.h"

TG_C_BEGIN

typedef enum tg_branch_type {
    TG_BRANCH_LOW_RANK,     /* Tucker: core + one factor per mode */
    TG_BRANCH_MATRIX,       /* GaLore: G reshaped to a matrix, leading singular vectors */
    TG_BRANCH_UNSTRUCTURED, /* any k entries */
    TG_BRANCH_STRUCTURED,   /* the sub-tensor of some slices per mode (GRASS on tensors) */
    TG_BRANCH_TYPES
} tg_branch_type;

/* A title: "low rank", "sparse", "slices", "matrix GaLore"; NULL: no such type. */
TG_API const char *tg_branch_type_title(tg_branch_type type);

typedef enum tg_sparse_type {
    TG_SPARSE_TOPK,
    TG_SPARSE_RANDK,
    TG_SPARSE_PROBABILITY
} tg_sparse_type;

typedef enum tg_matrix_side {
    TG_SIDE_LEFT,
    TG_SIDE_RIGHT,
    TG_SIDE_STD,         /* right if rows >= columns, else left */
    TG_SIDE_REVERSE_STD, /* the other one */
    TG_SIDE_FULL         /* both, integer rank */
} tg_matrix_side;

/* A rank setting: one fraction of the entries in (0, 1), one integer >= 1 for every mode, or a list
 * with one fraction or integer per mode. */
typedef struct tg_rank {
    int count; /* 1, or the number of modes */
    double value[TG_MAX_NDIM];
} tg_rank;

typedef struct tg_branch_config {
    tg_branch_type type;
    tg_rank rank;        /* low-rank branches */
    double sparse_ratio; /* sparse branches: share of entries kept, (0, 1] */
    tg_sparse_type sparse_type;
    bool scale_by_mask_ratio; /* sparse back is multiplied by sqrt(entries / kept) */
    double scale;             /* of the update that is expanded */
    tg_svd_type svd_type;
    tg_tucker_init tucker_init;
    int n_iter_max_tucker;    /* HOOI sweeps at a refresh, >= 0 */
    bool tucker_warm_restart; /* refresh starts from the previous factors */
    size_t chunk_bytes;       /* low rank: a refresh computes products with more scratch in chunks,
                                which need less and take longer; 0: 1 GiB */
    int first_dim_rollup;     /* matrix: this many leading dims become the rows */
    tg_matrix_side side;      /* matrix */
} tg_branch_config;

typedef enum tg_scheme {
    TG_SCHEME_SINGLE,    /* the first branch alone */
    TG_SCHEME_COMPOSITE, /* the second branch works on the residual of the first */
    TG_SCHEME_SUM        /* both work on G */
} tg_scheme;

/* Two branches are one sparse and one low-rank, in either order. */
typedef struct tg_projector_config {
    size_t size; /* of the struct, see status.h */
    tg_scheme scheme;
    tg_branch_config first, second;
    double lambda_sparse; /* weight of the sparse branch in back; <= 0: #sparse / #core values */
} tg_projector_config;

/* Branches: Tucker 25 % of the entries, top-k where sparse, one warm sweep, lambda 1, scale 1. */
TG_API void tg_projector_config_init(tg_projector_config *config, size_t size);
static inline tg_projector_config tg_projector_config_default(void) {
    tg_projector_config config;
    tg_projector_config_init(&config, sizeof config);
    return config;
}

typedef struct tg_projector tg_projector;

/* `seed` feeds rand-k, probability and randomized starts. Factors and index sets do not exist
 * before the first refresh. */
TG_API TG_NODISCARD tg_status tg_projector_create(tg_context *ctx,
                                                  const tg_projector_config *config, tg_dtype dtype,
                                                  const tg_shape *shape, uint64_t seed,
                                                  tg_projector **out);
TG_API void tg_projector_destroy(tg_projector **projector);

/* Number of compressed values. Compressed arrays hold the first branch's, then the second's. */
TG_API int64_t tg_projector_count(const tg_projector *projector);

/* Multilinear ranks of a low-rank branch: ndim of them, 1 per mode of a matrix branch ((rows,
 * columns)); ndim 0 for a sparse branch. */
TG_API tg_shape tg_projector_ranks(const tg_projector *projector, int branch);

typedef struct tg_projector_bytes {
    size_t factors;        /* bases */
    size_t indices;        /* bitmaps and their ranks */
    size_t workspace;      /* scratch of a step and of a refresh, where the backend computes */
    size_t step_workspace; /* the first bytes of it, which a step needs; the rest is a refresh's */
    size_t host_workspace; /* scratch of both on the host */
    size_t borrowed;       /* by decompositions and selections, during a refresh */
    size_t host_borrowed;  /* likewise on the host, if that is another place */
} tg_projector_bytes;

/* Refreshes factors and index sets from a dense gradient. A decomposition that fails (not
 * finite, not converged) keeps the old factors, is counted and logged, and is no error. */
TG_API TG_NODISCARD tg_status tg_projector_refresh(tg_projector *projector,
                                                   const tg_tensor *gradient);

/* small = beta small + scale project(G), G dense or, unless a branch is a matrix, factored; beta 0
 * never reads small. */
TG_API TG_NODISCARD tg_status tg_projector_project(tg_projector *projector,
                                                   const tg_gradient *gradient, double scale,
                                                   double beta, const tg_tensor *small);

/* out = beta out + alpha back(small), in one pass over out; beta 0 never reads out. */
TG_API TG_NODISCARD tg_status tg_projector_back(tg_projector *projector, const tg_tensor *small,
                                                double alpha, double beta, const tg_tensor *out);

/* out = gradient - back(project(gradient)), the error of the compression (with both branches at
 * full weight, whatever lambda and scales are). small receives the compressed values. */
TG_API TG_NODISCARD tg_status tg_projector_residual(tg_projector *projector,
                                                    const tg_tensor *gradient,
                                                    const tg_tensor *small, const tg_tensor *out);

/* Number of values and bytes by shape; takes_factored: with scratch for factored gradients. */
TG_API TG_NODISCARD tg_status tg_projector_plan(tg_context *ctx, const tg_projector_config *config,
                                                tg_dtype dtype, const tg_shape *shape,
                                                bool takes_factored, int64_t *count,
                                                tg_projector_bytes *bytes);

TG_C_END
#endif
