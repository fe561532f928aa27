/* Ranks set above the largest that a weight's shape allows. */
#ifndef TG_OPTIM_CLAMPED_RANK_H
#define TG_OPTIM_CLAMPED_RANK_H

#include "tgrad/optim.h"

TG_NODISCARD tg_status tg_find_clamped_rank(tg_context *ctx, const tg_optim_setup *setup,
                                            tg_clamped_rank *out);

#endif
