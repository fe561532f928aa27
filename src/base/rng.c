/* Streams of random numbers on the host. */
#include "base/rng.h"

#include "base/rng_math.h"

double tg_rng_uniform(const tg_rng *rng, uint64_t index) {
    uint32_t bits[4];
    tg_stream_bits(rng, index, bits);
    return tg_unit_interval(bits[0], bits[1]);
}

double tg_rng_normal(const tg_rng *rng, uint64_t index) {
    uint32_t bits[4];
    tg_stream_bits(rng, index, bits);
    return tg_bits_to_normal(bits);
}

double tg_rng_exponential(const tg_rng *rng, uint64_t index) {
    uint32_t bits[4];
    tg_stream_bits(rng, index, bits);
    return tg_bits_to_exponential(bits);
}

uint64_t tg_rng_permute(const tg_rng *rng, uint64_t n, uint64_t index) {
    return tg_feistel_walk(rng, n, index);
}
