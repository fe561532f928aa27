/* Streams of random numbers on the host. */
#include "base/rng.h"

#include "base/rng_math.h"

void tg_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    tg_philox_rounds(counter, key, out);
}

void tg_rng_bits(const tg_rng *rng, uint64_t index, uint32_t out[4]) {
    tg_stream_bits(rng, index, out);
}

double tg_rng_uniform(const tg_rng *rng, uint64_t index) {
    uint32_t bits[4];
    tg_rng_bits(rng, index, bits);
    return tg_unit_interval(bits[0], bits[1]);
}

double tg_rng_normal(const tg_rng *rng, uint64_t index) {
    uint32_t bits[4];
    tg_rng_bits(rng, index, bits);
    return tg_bits_to_normal(bits);
}

double tg_rng_exponential(const tg_rng *rng, uint64_t index) {
    uint32_t bits[4];
    tg_rng_bits(rng, index, bits);
    return tg_bits_to_exponential(bits);
}

uint64_t tg_rng_permute(const tg_rng *rng, uint64_t n, uint64_t index) {
    return tg_feistel_walk(rng, n, index);
}
