/* State in 16 bits: bf16, the upper half of an f32, and f16, with eight times finer spacing but no
 * numbers between 0 and 2^-24 and none above 65504. */
#include "backend/state_codec.h"
#include "base/rng_math.h"
#include "tensor/half.h"

static void decode_bf16(bool second, int64_t n, const void *stored, const float *scale,
                        float *out) {
    (void)second;
    (void)scale;
    for (int64_t i = 0; i < n; i++) {
        out[i] = tg_bf16_to_f32(((const uint16_t *)stored)[i]);
    }
}

static void encode_bf16(bool second, const tg_rng *rng, uint64_t first, int64_t n,
                        const float *values, void *stored, float *scale) {
    (void)second;
    (void)scale;
    for (int64_t i = 0; i < n; i++) {
        ((uint16_t *)stored)[i] =
            rng ? tg_round_to_bf16(values[i], tg_rounding_bits(rng, first + (uint64_t)i))
                : tg_f32_to_bf16(values[i]);
    }
}

static void decode_f16(bool second, int64_t n, const void *stored, const float *scale, float *out) {
    (void)second;
    (void)scale;
    for (int64_t i = 0; i < n; i++) {
        out[i] = tg_f16_to_f32(((const uint16_t *)stored)[i]);
    }
}

static void encode_f16(bool second, const tg_rng *rng, uint64_t first, int64_t n,
                       const float *values, void *stored, float *scale) {
    (void)second;
    (void)scale;
    for (int64_t i = 0; i < n; i++) {
        ((uint16_t *)stored)[i] =
            rng ? tg_round_to_f16(values[i], tg_rounding_bits(rng, first + (uint64_t)i))
                : tg_f32_to_f16(values[i]);
    }
}

const tg_state_codec tg_codec_bf16 = {
    .tag = " bf16", .stored = TG_BF16, .bits = 16, .decode = decode_bf16, .encode = encode_bf16};

const tg_state_codec tg_codec_f16 = {
    .tag = " f16", .stored = TG_F16, .bits = 16, .decode = decode_f16, .encode = encode_f16};
