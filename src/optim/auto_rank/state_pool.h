/* The pool of a group with automatic ranks: where the state of each of its parameters lies, and how
 * it moves when ranks change. */
#ifndef TG_OPTIM_AUTO_RANK_STATE_POOL_H
#define TG_OPTIM_AUTO_RANK_STATE_POOL_H

#include "optim/auto_rank/rank_allocation.h"
#include "optim/optim.h"

enum { TG_RANK_FLAGS = 4 }; /* behind the ranks: entries of the sparse set, and three truths */

/* What a parameter with automatic ranks has beside the others. */
struct tg_ranked {
    tg_spectrum spectrum;
    bool is_observed;                            /* since the last allocation */
    size_t offset;                               /* of its region in the pool */
    int64_t before[TG_MAX_NDIM + TG_RANK_FLAGS]; /* a load: what it replaced */
};

/* Where the values of a parameter lie, and how: the sparse set and the core, in the order of the
 * branches. */
typedef struct tg_layout {
    size_t offset; /* of its region in the pool */
    bool is_sparse_first;
    int64_t kept;
    int ndim;
    int64_t dim[TG_MAX_NDIM], rank[TG_MAX_NDIM];
} tg_layout;

tg_layout tg_layout_of(const tg_slot *slot);
int64_t tg_layout_core(const tg_layout *layout);  /* values of the core */
int64_t tg_layout_count(const tg_layout *layout); /* and of the sparse set */
tg_region tg_layout_region(const tg_rank_pool *pool, const tg_layout *layout);

/* Whether this parameter has its state in the pool of this group. */
static inline bool tg_pool_has(const tg_slot *slot, int group) {
    return slot->ranked && slot->group == group;
}

/* Points moments, factors and sum of every such parameter of a group to their places behind the one
 * before; false if they do not fit the pool. */
bool tg_pool_lay_out(tg_optim *optim, int group);

/* Moves moments and factors of one parameter within the pool, by way of the host
 * (state_repacking.c). Either no size grows and the offset neither, or none falls: overlapping is
 * then fine. Coordinates that are new start with a first moment of 0 and the second moment of the
 * nearest old one; the sparse set keeps its size. */
TG_NODISCARD tg_status tg_state_repack(tg_optim *optim, const tg_rank_pool *pool,
                                       const tg_layout *from, const tg_layout *to);

/* Bytes of the host that moving an array of so many values takes. */
size_t tg_repack_bytes(const tg_state_kind *kind, int64_t count);

#endif
