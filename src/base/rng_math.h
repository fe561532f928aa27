/* The arithmetic of the random numbers, shared verbatim by the C and CUDA backends.
 *
 * Only +, -, *, / and sqrt on doubles in a fixed order (all correctly rounded) and exact bit
 * operations: hence the same bits everywhere. The file that includes this is compiled without
 * contraction to fused multiply-add. */
#ifndef TG_BASE_RNG_MATH_H
#define TG_BASE_RNG_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/rng.h"

#ifdef __CUDACC__
#define TG_RNG_FN static __host__ __device__ inline
#else
#define TG_RNG_FN static inline
#endif

#define TG_PHILOX_M0 0xD2511F53u
#define TG_PHILOX_M1 0xCD9E8D57u
#define TG_PHILOX_W0 0x9E3779B9u
#define TG_PHILOX_W1 0xBB67AE85u

/* Both halves of a product; a GPU's compiler needs more instructions for a 64-bit one. */
TG_RNG_FN void tg_philox_product(uint32_t a, uint32_t b, uint32_t *high, uint32_t *low) {
#ifdef __CUDA_ARCH__
    *high = __umulhi(a, b);
#else
    *high = (uint32_t)((uint64_t)a * b >> 32);
#endif
    *low = a * b;
}

TG_RNG_FN void tg_philox_rounds(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint32_t high0, low0, high1, low1;
        tg_philox_product(TG_PHILOX_M0, c0, &high0, &low0);
        tg_philox_product(TG_PHILOX_M1, c2, &high1, &low1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += TG_PHILOX_W0;
        k1 += TG_PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The 128 bits of index i of a stream: key = seed, counter = (index, step, purpose). */
TG_RNG_FN void tg_stream_bits(const tg_rng *rng, uint64_t index, uint32_t out[4]) {
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), rng->step, rng->purpose};
    const uint32_t key[2] = {(uint32_t)rng->seed, (uint32_t)(rng->seed >> 32)};
    tg_philox_rounds(counter, key, out);
}

/* tg_rng_permute: a Feistel network with 8 rounds on 2w bits, (l, r) -> (r, l xor F_round(r)). Any
 * F makes it a bijection; Philox makes F random. 2^(2w) < 4n, so the walk takes under four steps on
 * average. */
TG_RNG_FN uint64_t tg_feistel_walk(const tg_rng *rng, uint64_t n, uint64_t index) {
    unsigned width = 1;
    while (width < 32 && (1ull << (2 * width)) < n) {
        width++;
    }
    const uint64_t mask = (1ull << width) - 1;
    const uint32_t key[2] = {(uint32_t)rng->seed, (uint32_t)(rng->seed >> 32)};
    uint64_t value = index;
    do {
        uint64_t left = value >> width;
        uint64_t right = value & mask;
        for (uint32_t round = 0; round < 8; round++) {
            /* The top bit keeps these counters apart from those of tg_stream_bits. */
            const uint32_t counter[4] = {(uint32_t)right, 0x80000000u | round, rng->step,
                                         rng->purpose};
            uint32_t bits[4];
            tg_philox_rounds(counter, key, bits);
            uint64_t next = left ^ (bits[0] & mask);
            left = right;
            right = next;
        }
        value = (left << width) | right;
    } while (value >= n);
    return value;
}

/* Stochastic rounding of real number `number` of an array (2i and 2i + 1 are the parts of complex
 * element i): eight numbers share the 128 bits of one draw, 16 bits each, the low half of a word
 * first. Rounding f32 to bf16 drops 16 bits, so its probabilities are exact; those of f16 and of 8
 * bits, which may drop more, are right to 2^-16. */
#define TG_ROUNDED_BY_DRAW 8u

TG_RNG_FN void tg_rounding_draw(const tg_rng *rng, uint64_t number, uint32_t draw[4]) {
    tg_stream_bits(rng, number / TG_ROUNDED_BY_DRAW, draw);
}

TG_RNG_FN uint32_t tg_rounding_part(const uint32_t draw[4], uint64_t number) {
    const uint32_t low = number & 2 ? draw[1] : draw[0];
    const uint32_t high = number & 2 ? draw[3] : draw[2];
    const uint32_t word = number & 4 ? high : low;
    return number & 1 ? word >> 16 : word & 0xFFFFu;
}

TG_RNG_FN uint32_t tg_rounding_bits(const tg_rng *rng, uint64_t number) {
    uint32_t draw[4];
    tg_rounding_draw(rng, number, draw);
    return tg_rounding_part(draw, number);
}

/* To bf16: add 16 random bits to the 16 that bf16 drops, then truncate, so that x goes to either
 * neighbour with probability proportional to the distance from the other. Inf has zeros there and
 * stays; NaN becomes quiet. */
TG_RNG_FN uint16_t tg_round_to_bf16(float x, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((isnan(x) ? bits | 0x400000u : bits + random) >> 16);
}

/* To f16 likewise: it drops 13 bits, and more below 2^-14, where its spacing stays 2^-24. If these
 * are more than 16, the random bits are added to the upper 16. */
TG_RNG_FN uint16_t tg_round_to_f16(float x, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude >= 0x47800000u) { /* 65536 and more */
        return (uint16_t)(sign | (magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u));
    }
    if (magnitude >= 0x38800000u) {
        return (uint16_t)(sign | ((magnitude - 0x38000000u + (random & 0x1FFFu)) >> 13));
    }
    const uint32_t exponent = magnitude >> 23; /* 113 is that of 2^-14 */
    if (exponent < 95) {                       /* below 2^-32: 0, except with probability <= 2^-8 */
        return (uint16_t)sign;
    }
    const uint32_t cut = 126u - exponent, fraction = (magnitude & 0x7FFFFFu) | 0x800000u;
    const uint32_t added = cut > 16 ? random << (cut - 16u) : random & ((1u << cut) - 1u);
    return (uint16_t)(sign | ((fraction + added) >> cut));
}

/* 53 random bits to [0, 1). */
TG_RNG_FN double tg_unit_interval(uint32_t high, uint32_t low) {
    uint64_t bits = ((uint64_t)high << 21) ^ (low >> 11);
    return (double)(bits & ((1ull << 53) - 1)) * 0x1p-53;
}

/* log(x) for normal x > 0: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m-1)/(m+1))
 * by its series, which converges to below 1e-16 in the terms kept. */
TG_RNG_FN double tg_exact_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m = m * 0.5;
        exponent += 1;
    }
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double sum = 0.0;
    for (int k = 23; k >= 1; k -= 2) {
        sum = sum * z + 1.0 / (double)k;
    }
    return (double)exponent * 0.69314718055994530942 + 2.0 * s * sum;
}

/* cos and sin of 2 pi u, u in [0, 1): fold to an eighth of the circle, then Taylor series. */
TG_RNG_FN void tg_exact_circle(double u, double *cosine, double *sine) {
    double eighths = u * 8.0;
    int octant = (int)eighths;
    double rest = eighths - (double)octant; /* exact */
    if (octant & 1) {
        rest = 1.0 - rest;
    }
    double angle = rest * 0.78539816339744830962;
    double z = angle * angle;
    double c = 0.0, s = 0.0;
    for (int k = 9; k >= 1; k--) {
        c = (1.0 + c) * (-z / (double)((2 * k - 1) * (2 * k)));
        s = (1.0 + s) * (-z / (double)((2 * k) * (2 * k + 1)));
    }
    c = 1.0 + c;
    s = angle * (1.0 + s);
    int swap = ((octant + 1) >> 1) & 1;
    double x = swap ? s : c;
    double y = swap ? c : s;
    *cosine = (octant >= 2 && octant <= 5) ? -x : x;
    *sine = octant >= 4 ? -y : y;
}

/* Standard normal from 128 bits (Box-Muller, the cosine branch). */
TG_RNG_FN double tg_bits_to_normal(const uint32_t bits[4]) {
    double u = 1.0 - tg_unit_interval(bits[0], bits[1]); /* (0, 1] */
    double cosine, sine;
    tg_exact_circle(tg_unit_interval(bits[2], bits[3]), &cosine, &sine);
    return sqrt(-2.0 * tg_exact_log(u)) * cosine;
}

TG_RNG_FN double tg_bits_to_exponential(const uint32_t bits[4]) {
    return -tg_exact_log(1.0 - tg_unit_interval(bits[0], bits[1]));
}

#endif
