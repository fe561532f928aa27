/* Philox streams: key = seed, counter = (index, step, purpose). */
#include "base/rng.h"

#include "base/rng_math.h"

void tg_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    tg_philox_rounds(counter, key, out);
}

void tg_rng_bits(const tg_rng *rng, uint64_t index, uint32_t out[4]) {
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), rng->step, rng->purpose};
    const uint32_t key[2] = {(uint32_t)rng->seed, (uint32_t)(rng->seed >> 32)};
    tg_philox_rounds(counter, key, out);
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

/* Feistel network with 8 rounds on 2h bits: (l, r) -> (r, l xor F_round(r)). Any F makes it a
 * bijection; Philox makes F random. 2^(2h) < 4n, so the walk takes under four steps on average. */
uint64_t tg_rng_permute(const tg_rng *rng, uint64_t n, uint64_t index) {
    unsigned half = 1;
    while (half < 32 && (1ull << (2 * half)) < n) {
        half++;
    }
    const uint64_t mask = (1ull << half) - 1;
    const uint32_t key[2] = {(uint32_t)rng->seed, (uint32_t)(rng->seed >> 32)};
    uint64_t value = index;
    do {
        uint64_t left = value >> half;
        uint64_t right = value & mask;
        for (uint32_t round = 0; round < 8; round++) {
            /* The top bit keeps these counters apart from those of tg_rng_bits. */
            const uint32_t counter[4] = {(uint32_t)right, 0x80000000u | round, rng->step,
                                         rng->purpose};
            uint32_t bits[4];
            tg_philox_rounds(counter, key, bits);
            uint64_t next = left ^ (bits[0] & mask);
            left = right;
            right = next;
        }
        value = (left << half) | right;
    } while (value >= n);
    return value;
}
