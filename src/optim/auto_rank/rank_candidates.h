/* The candidates of one tensor, for allocating among those of all. */
#ifndef TG_OPTIM_AUTO_RANK_RANK_CANDIDATES_H
#define TG_OPTIM_AUTO_RANK_RANK_CANDIDATES_H

#include "optim/auto_rank/rank_allocation.h"

typedef struct tg_candidate {
    double error; /* relative bound */
    size_t bytes;
    int64_t lower; /* the next vertex of the hull with fewer bytes; -1: none */
    int32_t rank[TG_MAX_NDIM];
} tg_candidate;

/* The candidates of one tensor, by ascending bytes and falling error. */
typedef struct tg_candidate_list {
    const tg_state_kind *kind;
    tg_candidate *candidates;
    int64_t size;
    int64_t most; /* the last candidate: nothing beyond is wanted, it meets the tolerance */
    int64_t at;   /* chosen */
} tg_candidate_list;

/* Fills an empty list whose memory has room for tg_rank_candidates: the candidates that no other
 * one with as few bytes beats, up to the one that meets the tolerance (0: all), with their lower
 * hull. */
void tg_candidates_list(const tg_spectrum *s, double tolerance, tg_candidate_list *l);

/* Ranks that are one part of every mode. */
tg_candidate tg_candidate_equal(const tg_state_kind *kind, const tg_spectrum *s, double part);

#endif
