/* The sums of small dense parameters, side by side: ranks send them in one message. */
#ifndef TG_OPTIM_BUCKET_H
#define TG_OPTIM_BUCKET_H

#include "optim/optim.h"

/* Whether a dense parameter is small, and its numbers part of the bucket. Larger sums stay apart
 * and are sent in place. */
bool tg_bucket_takes(const tg_optim_setup *setup, const tg_optim_param *param);

/* The bucket of an optimizer that accumulates, with its slots. */
TG_NODISCARD tg_status tg_bucket_create(tg_optim *optim, const tg_optim_setup *setup);

#endif
