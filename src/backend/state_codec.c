/* The state formats: unchanged, in 16 bits and in 8, and their table. */
#include "backend/state_codec.h"

#include <math.h>

#include "backend/state8.h"
#include "base/rng_math.h"
#include "tensor/half.h"

const tg_state_codec tg_codec_full = {.tag = ""};

const tg_state_codec *const tg_state_codecs[TG_STATE_FORMS] = {
#define TG_STATE_FORMAT(id, word, codec) [TG_STATE_##id] = &(codec),
#include "backend/state_formats.def"
#undef TG_STATE_FORMAT
};

const tg_choice tg_state_choices[] = {
#define TG_STATE_FORMAT(id, word, codec) {word, TG_STATE_##id},
#include "backend/state_formats.def"
#undef TG_STATE_FORMAT
    {NULL, 0}};

size_t tg_state_bytes(const tg_state_codec *codec, tg_dtype real, int64_t n) {
    const size_t bits = codec->bits > 0 ? (size_t)codec->bits : 8 * tg_dtype_size(real);
    return ((size_t)n * bits + 7) / 8;
}

int64_t tg_state_scales(const tg_state_codec *codec, int64_t n) {
    return codec->block > 0 ? (n + codec->block - 1) / codec->block : 0;
}

/* State in 16 bits: bf16, the upper half of an f32, and f16, with eight times finer spacing but no
 * numbers between 0 and 2^-24 and none above 65504. */

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

/* State in 8 bits per real (state8.h) with one scale per block: the largest modulus of the first
 * moment, the largest root of the second. */

static void decode(bool second, int64_t n, const void *stored, const float *scale, float *out) {
    const uint8_t *bytes = stored;
    for (int64_t i = 0; i < n; i++) {
        const float s = scale[i / TG_STATE_BLOCK];
        out[i] = second ? tg_state_v_decode(bytes[i], s) : tg_state_m_decode(bytes[i], s);
    }
}

/* Encodes one block; returns its scale. */
static float encode_block(bool second, const tg_rng *rng, uint64_t first, int64_t n,
                          const float *values, uint8_t *bytes) {
    float most = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        most = fmaxf(most, second ? sqrtf(values[i]) : fabsf(values[i]));
    }
    const float inverse = most > 0.0f ? 1.0f / most : 0.0f;
    for (int64_t i = 0; i < n; i++) {
        const float u = rng ? tg_state_unit(tg_rounding_bits(rng, first + (uint64_t)i)) : 0.5f;
        bytes[i] = second ? tg_state_v_encode(sqrtf(values[i]), inverse, u)
                          : tg_state_m_encode(values[i], inverse, u);
    }
    return most;
}

static void encode(bool second, const tg_rng *rng, uint64_t first, int64_t n, const float *values,
                   void *stored, float *scale) {
    for (int64_t i = 0; i < n; i += TG_STATE_BLOCK) {
        const int64_t count = n - i < TG_STATE_BLOCK ? n - i : TG_STATE_BLOCK;
        *scale++ = encode_block(second, rng, first + (uint64_t)i, count, values + i,
                                (uint8_t *)stored + i);
    }
}

const tg_state_codec tg_codec_8bit = {.tag = " 8bit",
                                      .stored = TG_U8,
                                      .bits = 8,
                                      .block = TG_STATE_BLOCK,
                                      .least = 4096,
                                      .decode = decode,
                                      .encode = encode};
