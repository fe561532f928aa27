/* Sums of several processes: one of them refreshes a projection for all. */
#ifndef TG_OPTIM_SHARED_REFRESH_H
#define TG_OPTIM_SHARED_REFRESH_H

#include "optim/optim.h"

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

/* On the others, before the arrays arrive: makes their sum a compressed one, with the same number
 * of NaN and Inf. */
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
