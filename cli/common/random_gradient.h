/* Gradients to measure with: random, the same on every machine, and shaped like real ones.
 *
 *     G[i1, .., in] = sum over r = 1 .. 8 of 1/r a1r[i1] .. anr[in]  +  0.1 noise[i1, .., in]
 *
 * with standard normal a and noise (complex: of unit variance): a decaying spectrum, heavy tails
 * and a floor of noise. Number i of a stream is splitmix64 of (seed, i), two of them make normals
 * by Box and Muller, so nothing depends on an order. */
#ifndef CLI_COMMON_RANDOM_GRADIENT_H
#define CLI_COMMON_RANDOM_GRADIENT_H

#include "tgrad/tgrad.h"

/* The description in reports. */
#define CLI_RANDOM_GRADIENT_NAME                                                                   \
    "8 separable terms of weight 1/r + 0.1 noise, normal by splitmix64 and Box-Muller"

/* Fills a host tensor of f32 or c64 with at least one dimension. Equal seeds give equal a, and
 * equal noise if `draw` is equal too. */
void cli_random_gradient(const tg_tensor *out, uint64_t seed, uint64_t draw);

#endif
