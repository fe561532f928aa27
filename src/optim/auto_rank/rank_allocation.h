/* Ranks from spectra: which directions of which tensors are worth their memory.
 *
 * Leaving out direction i of mode k of a tensor G costs at most its eigenvalue, the i-th of the
 * Gram matrix of the k-th unfolding: |G - P(G)|^2 <= sum over modes of the eigenvalues left out
 * (exact for one mode, at most the number of modes too large for several). A sparse set in front of
 * the core takes its entries out of G first; the eigenvalues are then those of what it leaves. A
 * set behind or beside the core takes of what the core leaves: the sum is multiplied by the part
 * that it left at the last refresh, as far as ranks are still those; this is an estimate, no bound.
 *
 * For every tensor the candidates (bytes of its state, error) are listed: from full ranks down,
 * each time without the direction that costs least per byte saved, and beside them ranks that are
 * the same share of every mode. Among all tensors the budget is met along the lower hulls of those
 * candidates, always by the step of least error per byte; what is left over goes where it helps
 * most, and pairs exchange as long as that helps. If one part of every mode of all tensors leaves
 * less in as many bytes, that is taken. Errors are relative to each tensor's own |G|^2: Adam makes
 * all scales alike. */
#ifndef TG_OPTIM_AUTO_RANK_RANK_ALLOCATION_H
#define TG_OPTIM_AUTO_RANK_RANK_ALLOCATION_H

#include "base/memory.h"
#include "optim/auto_rank/auto_rank.h"
#include "optim/rules/rules.h"
#include "project/spectrum.h"

/* What one tensor keeps. */
typedef struct tg_rank_allocation {
    int64_t rank[TG_MAX_NDIM];
    int64_t count; /* values: core and sparse set */
    size_t bytes;  /* of moments and factors */
    double error;  /* bound (or estimate) of |G - P(G)|^2 / |G|^2 */
} tg_rank_allocation;

/* Where the arrays of a tensor's state lie, in bytes behind its first one. */
typedef struct tg_region {
    size_t moment[TG_RULE_STATES], scale[TG_RULE_STATES];
    size_t factor[TG_MAX_NDIM]; /* (dim, rank) */
    size_t bytes;               /* of all, a multiple of TG_REGION_ALIGNMENT */
} tg_region;

enum { TG_REGION_ALIGNMENT = 16 };

tg_region tg_region_of(const tg_state_kind *kind, int ndim, const int64_t *dim, const int64_t *rank,
                       int64_t count);

/* Candidates that tg_ranks_allocate lists for one tensor at most, and bytes of its scratch for
 * tensors with so many candidates together. */
int64_t tg_rank_candidates(const tg_spectrum *spectrum);
size_t tg_ranks_scratch(int tensors, int64_t candidates);

/* Chooses for `tensors` spectra: each at most `tolerance` (of |G - P(G)| / |G|; 0: as exact as can
 * be) where that fits, all together at most `capacity` bytes. A tensor without energy keeps what
 * out[] holds. False if even the smallest allocation does not fit; out[] is then as before. */
bool tg_ranks_allocate(const tg_state_kind *kind, const tg_spectrum *const *spectra, int tensors,
                       double tolerance, size_t capacity, void *scratch, tg_rank_allocation *out);

/* Ranks that are one share of every mode in at most `capacity` bytes (or, if there is no such
 * share, 1 each): what is used before there is a spectrum. */
tg_rank_allocation tg_ranks_equal(const tg_state_kind *kind, const tg_spectrum *sizes,
                                  size_t capacity);

#endif
