/* One branch of a projector: its state between refreshes and how it is chosen.
 *
 * A low-rank branch fills `modes` (factors), a sparse branch fills `bitmap`; projecting and mapping
 * back is the same for all of them and is done by the backend's compress and expand slots
 * (projector.c). A new kind is one row in kinds.def and one tg_branch_kind. */
#ifndef TG_PROJECT_BRANCH_H
#define TG_PROJECT_BRANCH_H

#include "backend/backend.h"
#include "base/setting.h"
#include "linalg/tucker.h"
#include "tgrad/project.h"

typedef struct tg_branch tg_branch;

/* Tucker 25 % of the entries, top-k where sparse, one warm sweep, lambda 1, scale 1. */
tg_branch_config tg_branch_config_default(void);

/* Scratch of steps and refreshes, shared by all projectors of an optimizer: reserved for each of
 * them, then allocated once, as large as the largest. */
typedef struct tg_workspace {
    tg_backend *be;
    size_t bytes, host_bytes;
    size_t step_bytes; /* the leading part, for steps; refreshes use all */
    void *memory;      /* where the backend computes */
    void *host;
} tg_workspace;

void tg_workspace_reserve(tg_workspace *workspace, size_t bytes, size_t step_bytes,
                          size_t host_bytes);
TG_NODISCARD tg_status tg_workspace_allocate(tg_workspace *workspace);
/* The host part only: the caller sets the memory, and resets it to NULL before release. */
TG_NODISCARD tg_status tg_workspace_allocate_host(tg_workspace *workspace);
void tg_workspace_release(tg_workspace *workspace);

typedef struct tg_refresh {
    const void *x; /* (shape) */
    tg_storage store;
    const tg_bitmap *mask; /* entries that count as 0; NULL: none */
    void *scratch, *host_scratch;
} tg_refresh;

typedef struct tg_branch_kind {
    bool is_sparse;
    const char *keys; /* of section opt, read by such branches alone */
    /* Sets sizes of modes and count from config, dtype and shape; touches no memory. */
    tg_status (*plan)(tg_context *ctx, tg_branch *branch);
    /* What refresh needs: workspace, host_workspace, borrowed and host_borrowed; NULL: nothing. */
    tg_projector_bytes (*scratch)(const tg_branch *branch);
    /* Chooses factors or index set. */
    tg_status (*refresh)(tg_branch *branch, const tg_refresh *call);
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
    bool is_ready;  /* refreshed at least once */

    /* low-rank: the map onto the core; its dims are the gradient's, or (rows, columns) */
    tg_multimode modes;
    void *factor[TG_MAX_NDIM];  /* owned; NULL where modes has none */
    int64_t asked[TG_MAX_NDIM]; /* the ranks of `modes` as set, before any limit */

    /* sparse */
    tg_bitmap bitmap; /* owned */
};

#define TG_BRANCH_KIND(id, word, title, table) extern const tg_branch_kind table;
#include "project/kinds.def"

/* The words of opt.proj_type. */
extern const tg_choice tg_branch_choices[];

/* The kind of a branch, NULL for a type that does not exist; and whether its size is a rank. */
const tg_branch_kind *tg_branch_kind_of(tg_branch_type type);
static inline bool tg_branch_has_rank(const tg_branch_config *branch) {
    const tg_branch_kind *kind = tg_branch_kind_of(branch->type);
    return kind && !kind->is_sparse;
}

/* Checks the configuration and plans sizes; `key` is the config prefix for errors ("opt." or
 * "opt.second_"). Allocates nothing. */
TG_NODISCARD tg_status tg_branch_plan(tg_context *ctx, tg_backend *be,
                                      const tg_branch_config *config, const char *key,
                                      tg_dtype dtype, const tg_shape *shape, tg_branch *out);

static inline size_t tg_bitmap_word_bytes(const tg_bitmap *bitmap) {
    return (size_t)tg_bitmap_words(bitmap->n) * sizeof(uint64_t);
}
/* Replaces the words of an index set, from the host, and what follows from them. */
TG_NODISCARD tg_status tg_bitmap_set_words(tg_backend *be, tg_bitmap *bitmap,
                                           const uint64_t *words);

/* Factor of this branch's part of the expanded update. */
double tg_branch_back_scale(const tg_branch *branch);

/* The largest rank of each mode. */
void tg_rank_limits(const tg_shape *shape, int64_t *out);

/* The rank that a fraction of 1.0 stands for: all of a mode, whatever its size. */
enum { TG_EVERY_RANK = 1 << 20 };

/* Ranks from one fraction, one integer or a list; errors name `key`. `asked`: the ranks before the
 * shape limits them, and without rounding up. */
TG_NODISCARD tg_status tg_rank_resolve(tg_context *ctx, const char *key, const tg_rank *rank,
                                       const tg_shape *shape, int64_t *out, int64_t *asked);

/* The first mode whose rank is below the one set, or -1. All of a mode counts as set. */
int tg_branch_clamped_mode(const tg_branch *branch);

#endif
