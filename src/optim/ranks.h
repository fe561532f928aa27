/* State spread over ranks: the moments of a projected or large parameter are on one rank only, its
 * owner. The ranks reduce their sums to it; the owner runs the rule and sends the result, the
 * direction in compressed space or the dense weight; every rank completes the update. Small dense
 * parameters stay on all ranks. Rules and numbers equal those of an optimizer that holds
 * everything. */
#ifndef TG_OPTIM_RANKS_H
#define TG_OPTIM_RANKS_H

#include "optim/optim.h"

/* Dense parameters up to this size are sent together, and their moments stay on every rank. */
#define TG_SMALL_PARAM ((size_t)1 << 20)

/* owner[i]: the rank that has the moments of parameter i, or TG_ON_ALL; of a dense block among the
 * ranks with the same one. Depends only on sizes, and no rank has more than rank 0, if all blocks
 * of a tensor are equal. */
TG_NODISCARD tg_status tg_shard_assign(tg_context *ctx, const tg_optim_setup *setup, int *owner);
/* Whether this rank has the moments. */
bool tg_rank_has(const tg_optim_setup *setup, const tg_optim_param *param, int owner);

static inline bool tg_slot_is_sharded(const tg_slot *slot) {
    return slot->owner != TG_ON_ALL;
}

/* Whether its sum is not on every rank: only on its owner, or in blocks. */
static inline bool tg_slot_has_facts(const tg_slot *slot) {
    return tg_slot_is_sharded(slot) || tg_slot_is_dense_block(slot);
}

/* What every rank must know of a sum that not every rank has. */
typedef struct tg_sum_facts {
    double nonfinite; /* NaN and Inf in it */
    double squares;   /* sum of squares of the finite entries, if clipping needs it */
} tg_sum_facts;

/* On the owner; of blocks, on one rank for each. */
TG_NODISCARD tg_status tg_sum_measure(tg_optim *optim, int param, bool clips, tg_sum_facts *out);
/* On every rank. */
TG_NODISCARD tg_status tg_sum_learn(tg_optim *optim, int param, const tg_sum_facts *facts);

/* The update, after tg_sum_learn. NaN and Inf set *is_made to false on all ranks alike, and no
 * other call follows. The owner runs the rule and sends *update, direction or weight, to the
 * others. */
TG_NODISCARD tg_status tg_sum_begin_update(tg_optim *optim, int param, const tg_tensor *weight,
                                           bool *is_made, tg_tensor *update);
/* Completes it with the data from the owner. */
TG_NODISCARD tg_status tg_sum_end_update(tg_optim *optim, int param, const tg_tensor *weight);

/* ---- one rank refreshes a projection for all ---- */

/* Whether the current sum is dense because its projection is due for a refresh. */
bool tg_sum_is_to_refresh(const tg_optim *optim, int param);

/* Sent to the others besides the arrays of tg_sum_list_refreshed. Plain numbers. */
typedef struct tg_refresh_news {
    int64_t nonfinite; /* in the sum; nothing was refreshed unless it is 0 */
    int64_t refreshes, failures;
    int64_t is_ready[2];
    double error;
} tg_refresh_news;

/* On the process that has the total: refreshes the projection with it and projects it, which makes
 * it a compressed sum. */
TG_NODISCARD tg_status tg_sum_refresh(tg_optim *optim, int param, tg_refresh_news *news);

/* On the others, before the arrays arrive: makes their sum a compressed one. On every rank, if
 * there are NaN and Inf: makes it one with as many. */
TG_NODISCARD tg_status tg_sum_begin_refreshed(tg_optim *optim, int param,
                                              const tg_refresh_news *news);
/* Factors, words of the index set and the compressed sum, on the backend. */
enum { TG_REFRESHED_PARTS = 2 * TG_MAX_NDIM + 3 };
int tg_sum_list_refreshed(const tg_optim *optim, int param, tg_tensor parts[TG_REFRESHED_PARTS]);
/* .. and afterwards. */
TG_NODISCARD tg_status tg_sum_end_refreshed(tg_optim *optim, int param);

/* A rank without samples: as if it accumulated a gradient of zeros. */
TG_NODISCARD tg_status tg_sum_add_nothing(tg_optim *optim, int param);

#endif
