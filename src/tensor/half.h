/* 16-bit conversions on the host: f16 and bf16 to f32 (exact) and back (nearest, ties to even;
 * overflow to Inf, NaN stays NaN). Bit arithmetic needs no compiler extension. */
#ifndef TG_TENSOR_HALF_H
#define TG_TENSOR_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t tg_f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float tg_bits_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float tg_bf16_to_f32(uint16_t h) {
    return tg_bits_f32((uint32_t)h << 16);
}

static inline uint16_t tg_f32_to_bf16(float x) {
    uint32_t bits = tg_f32_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
        return (uint16_t)((bits >> 16) | 0x40u); /* quiet NaN */
    }
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

static inline float tg_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1Fu;
    uint32_t mantissa = h & 0x3FFu;
    if (exponent == 31) {
        return tg_bits_f32(sign | 0x7F800000u | (mantissa << 13));
    }
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24, exact in f32 */
        float value = (float)mantissa * 0x1p-24f;
        return tg_bits_f32(sign | tg_f32_bits(value));
    }
    return tg_bits_f32(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

static inline uint16_t tg_f32_to_f16(float x) {
    uint32_t bits = tg_f32_bits(x);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) {
        return (uint16_t)(sign | 0x7E00u);
    }
    if (magnitude >= 0x477FF000u) { /* 65520 and more round to Inf */
        return (uint16_t)(sign | 0x7C00u);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 1/2 aligns and rounds to the 2^-24 grid */
        float shifted = tg_bits_f32(magnitude) + 0.5f;
        return (uint16_t)(sign | (tg_f32_bits(shifted) - 0x3F000000u));
    }
    uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

#endif
