/* One branch of a projector: what it keeps between refreshes and how it chooses it.
 *
 * A low-rank branch fills `modes` (factors), a sparse branch fills `bitmap`; projecting and mapping
 * back is the same for all of them and is done by the backend's compress and expand slots
 * (projector.c). A new kind is one row in kinds.def and one file. */
#ifndef TG_PROJECT_BRANCH_H
#define TG_PROJECT_BRANCH_H

#include "backend/backend.h"
#include "base/setting.h"
#include "linalg/tucker.h"
#include "tgrad/project.h"

typedef struct tg_branch tg_branch;

/* Scratch of steps and refreshes, shared by all projectors of an optimizer: reserved while they are
 * made, allocated once after, so that its size is the largest that any of them needs. */
typedef struct tg_workspace {
    tg_backend *be;
    size_t bytes, host_bytes;
    size_t step_bytes; /* the first of them, which steps use; refreshes use all */
    void *memory;      /* where the backend computes */
    void *host;
} tg_workspace;

void tg_workspace_reserve(tg_workspace *workspace, size_t bytes, size_t step_bytes,
                          size_t host_bytes);
TG_NODISCARD tg_status tg_workspace_allocate(tg_workspace *workspace);
/* Only the part on the host: the memory is set by the caller, and back to NULL before release. */
TG_NODISCARD tg_status tg_workspace_allocate_host(tg_workspace *workspace);
void tg_workspace_release(tg_workspace *workspace);

typedef struct tg_branch_kind {
    bool is_sparse;
    /* Sets what follows from config, dtype and shape: modes' sizes, count; no memory is touched. */
    tg_status (*plan)(tg_context *ctx, tg_branch *branch);
    /* Bytes of scratch that refresh needs, where the backend computes and on the host. */
    void (*scratch)(const tg_branch *branch, size_t *bytes, size_t *host_bytes);
    /* What refresh takes for itself on the way; NULL: nothing. */
    tg_scratch_need (*scratch_need)(const tg_branch *branch);
    /* Chooses factors or index set from x (shape, in some storage), entries of `mask` (or NULL)
     * counted as 0. */
    tg_status (*refresh)(tg_branch *branch, const void *x, tg_storage store, const tg_bitmap *mask,
                         void *scratch, void *host_scratch);
} tg_branch_kind;

struct tg_branch {
    const tg_branch_kind *kind;
    const char *name; /* as in opt.proj_type */
    tg_branch_config config;
    const char *key; /* prefix of its config keys: "opt." or "opt.second_" */
    tg_backend *be;
    tg_dtype dtype;
    tg_shape shape; /* of the gradient */
    tg_rng rng;     /* its step is the number of the refresh */
    int64_t count;  /* compressed values */
    bool is_ready;  /* was refreshed */

    /* low-rank: the map onto the core; its dims are the gradient's, or (rows, columns) */
    tg_multimode modes;
    void *factor[TG_MAX_NDIM];  /* owned; NULL where modes has none */
    int64_t asked[TG_MAX_NDIM]; /* the ranks of `modes` as they were set, before any limit */

    /* sparse */
    tg_bitmap bitmap; /* owned */
};

#define TG_BRANCH_KIND(id, word, title, table) extern const tg_branch_kind table;
#include "project/kinds.def"

/* What the low-rank kinds share (tucker.c). */
void tg_low_rank_scratch(const tg_branch *branch, size_t *bytes, size_t *host_bytes);
tg_scratch_need tg_low_rank_scratch_need(const tg_branch *branch);
TG_NODISCARD tg_status tg_low_rank_refresh(tg_branch *branch, const void *x, tg_storage store,
                                           const tg_bitmap *mask, void *scratch,
                                           void *host_scratch);

/* The words of opt.proj_type. */
extern const tg_choice tg_branch_choices[];

/* Checks the configuration and plans; `key` is the config prefix for errors ("opt." or
 * "opt.second_"). No memory is allocated. */
TG_NODISCARD tg_status tg_branch_plan(tg_context *ctx, tg_backend *be,
                                      const tg_branch_config *config, const char *key,
                                      tg_dtype dtype, const tg_shape *shape, tg_branch *out);

/* Allocates factors (category factors) or bitmap (indices) of a planned branch. */
TG_NODISCARD tg_status tg_branch_allocate(tg_branch *branch);
void tg_branch_release(tg_branch *branch);

size_t tg_branch_factor_bytes(const tg_branch *branch);
size_t tg_branch_index_bytes(const tg_branch *branch);

/* What comes back from this branch is multiplied by this. */
double tg_branch_back_scale(const tg_branch *branch);

/* Directions that each mode has at most. */
void tg_rank_limits(const tg_shape *shape, int64_t *out);

/* The rank that a fraction of 1.0 becomes: all of a mode, however large it is. */
enum { TG_EVERY_RANK = 1 << 20 };

/* Ranks by the rule of one fraction, one integer or a list; errors name `key`. `asked`: the same
 * before they are limited by what the shape has, without the rounding up of the rule. */
TG_NODISCARD tg_status tg_rank_resolve(tg_context *ctx, const char *key, const tg_rank *rank,
                                       const tg_shape *shape, int64_t *out, int64_t *asked);

/* The first mode whose rank is less than what was set, or -1. All of a mode is as set. */
int tg_branch_clamped_mode(const tg_branch *branch);

#endif
