/* State that is spread over ranks: the moments of a projected or large parameter live on one of
 * them, its owner. The ranks add up their sums there; the owner runs the rule and sends what came
 * of it, the direction in compressed space or the dense weight; every rank makes the rest of the
 * update itself. Small dense parameters stay on all. Rules and numbers are those of an optimizer
 * that holds everything. */
#ifndef TG_OPTIM_SHARD_H
#define TG_OPTIM_SHARD_H

#include "optim/optim.h"

/* Dense parameters up to this size travel together, and their moments stay on every rank. */
#define TG_SMALL_PARAM ((size_t)1 << 20)

/* owner[i]: the rank that has the moments of parameter i, or TG_ON_ALL. Follows from sizes alone,
 * and no rank has more than rank 0. */
TG_NODISCARD tg_status tg_shard_assign(tg_context *ctx, const tg_optim_setup *setup, int *owner);

static inline bool tg_slot_is_sharded(const tg_slot *slot) {
    return slot->owner != TG_ON_ALL;
}

/* What every rank has to know of a sum that only its owner has. */
typedef struct tg_sum_facts {
    double nonfinite; /* NaN and Inf in it */
    double squares;   /* sum of the squares of the others, where clipping asks for it */
} tg_sum_facts;

/* On the owner. */
TG_NODISCARD tg_status tg_sum_measure(tg_optim *optim, int param, bool clips, tg_sum_facts *out);
/* On every rank. */
TG_NODISCARD tg_status tg_sum_learn(tg_optim *optim, int param, const tg_sum_facts *facts);

/* The update, after tg_sum_learn. *is_made is false where NaN and Inf forbid it, on all ranks
 * alike, and then nothing else is called. On the owner it ran the rule; *update, direction or
 * weight, is the owner's then and to be sent to the others. */
TG_NODISCARD tg_status tg_sum_begin_update(tg_optim *optim, int param, const tg_tensor *weight,
                                           bool *is_made, tg_tensor *update);
/* The rest of it, with what the owner sent. */
TG_NODISCARD tg_status tg_sum_end_update(tg_optim *optim, int param, const tg_tensor *weight);

#endif
