/* The points of one tensor, for choosing among those of all. */
#ifndef TG_OPTIM_AUTO_RANK_RANK_CANDIDATES_H
#define TG_OPTIM_AUTO_RANK_RANK_CANDIDATES_H

#include "optim/auto_rank/rank_allocation.h"

typedef struct tg_point {
    double error; /* relative bound */
    size_t bytes;
    int64_t lower; /* the next vertex of the hull with fewer bytes; -1: none */
    int32_t rank[TG_MAX_NDIM];
} tg_point;

/* The points of one tensor, by ascending bytes and falling error. */
typedef struct tg_point_list {
    const tg_state_kind *kind;
    tg_point *points;
    int64_t size;
    int64_t most; /* the last point: nothing beyond is wanted, it meets the tolerance */
    int64_t at;   /* chosen */
} tg_point_list;

/* Fills an empty list whose memory has room for tg_rank_points: the points that no other one with
 * as few bytes beats, up to the one that meets the tolerance (0: all), with their lower hull. */
void tg_points_list(const tg_spectrum *s, double tolerance, tg_point_list *l);

/* Ranks that are one part of every mode. */
tg_point tg_point_equal(const tg_state_kind *kind, const tg_spectrum *s, double part);

#endif
