/* Counter-based random numbers: Philox 4x32-10.
 *
 * A number depends only on (seed, purpose, step, index), never on what was drawn before, on the
 * thread count or on the backend; so a run can be resumed, and a GPU draws the same bits. */
#ifndef TG_BASE_RNG_H
#define TG_BASE_RNG_H

#include <stdint.h>

/* The uses of random numbers, each with its own streams. Values are stored in checkpoints: add new
 * ones at the end. */
typedef enum tg_rng_purpose {
    TG_RNG_TEST = 0,
    TG_RNG_INIT = 1,    /* initial weights */
    TG_RNG_SHUFFLE = 2, /* order of samples */
    TG_RNG_SELECT = 3,  /* rand-k and probability index sets */
    TG_RNG_RANGE = 4,   /* randomized range finder */
    TG_RNG_DROPOUT = 5,
    TG_RNG_ROUNDING = 6, /* stochastic rounding */
    TG_RNG_FIELD = 7,    /* Gaussian random fields of the generators */
    TG_RNG_BENCH = 8,
    TG_RNG_NOISE = 9 /* on the inputs of training */
} tg_rng_purpose;

typedef struct tg_rng {
    uint64_t seed;
    uint32_t purpose; /* tg_rng_purpose */
    uint32_t step;    /* e.g. training step, parameter or sample number */
} tg_rng;

/* Element `index`: uniform in [0, 1) with 53 bits; standard normal. Bit-equal on every backend:
 * they use only correctly rounded operations in a fixed order. */
double tg_rng_uniform(const tg_rng *rng, uint64_t index);
double tg_rng_normal(const tg_rng *rng, uint64_t index);

/* Exponential with mean 1 (for weighted sampling without replacement). */
double tg_rng_exponential(const tg_rng *rng, uint64_t index);

/* Image of `index` (< n) under a random permutation of 0..n-1 that needs no memory: a Feistel
 * network over the next even power of two, iterated until the result is below n. The first k images
 * are k of n without replacement. */
uint64_t tg_rng_permute(const tg_rng *rng, uint64_t n, uint64_t index);

#endif
