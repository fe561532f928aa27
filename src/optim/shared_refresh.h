/* Sums of several processes: one of them refreshes a projection for all. */
#ifndef TG_OPTIM_SHARED_REFRESH_H
#define TG_OPTIM_SHARED_REFRESH_H

#include "optim/optim.h"

/* Whether the sum under way is dense since its projection is to be refreshed. Not with automatic
 * ranks, whose spectra every process needs: there each refreshes for itself. */
bool tg_sum_is_to_refresh(const tg_optim *optim, int param);

/* What the others learn of a refresh, beside the arrays of tg_sum_list_refreshed. Plain numbers. */
typedef struct tg_refresh_news {
    int64_t nonfinite; /* in the sum; if it is not 0, nothing was refreshed */
    int64_t refreshes, failures;
    int64_t is_ready[2];
    double error;
} tg_refresh_news;

/* On the process that has the sum of all: refreshes the projection with it and projects it, so that
 * it goes on as a compressed one. */
TG_NODISCARD tg_status tg_sum_refresh(tg_optim *optim, int param, tg_refresh_news *news);

/* On the others, before the arrays come: their sum becomes a compressed one; if there were NaN and
 * Inf, one with as many. */
TG_NODISCARD tg_status tg_sum_begin_refreshed(tg_optim *optim, int param,
                                              const tg_refresh_news *news);
/* Factors, words of the index set and the compressed sum, where the backend computes. */
enum { TG_REFRESHED_PARTS = 2 * TG_MAX_NDIM + 3 };
int tg_sum_list_refreshed(const tg_optim *optim, int param, tg_tensor parts[TG_REFRESHED_PARTS]);
/* .. and after. */
TG_NODISCARD tg_status tg_sum_end_refreshed(tg_optim *optim, int param);

/* A part of a sum that has no samples: as if a gradient of zeros were accumulated. */
TG_NODISCARD tg_status tg_sum_add_nothing(tg_optim *optim, int param);

#endif
