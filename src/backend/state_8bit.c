/* State in 8 bits per real (state8.h) with one scale per block: the largest modulus of the first
 * moment, the largest root of the second. */
#include <math.h>

#include "backend/state8.h"
#include "backend/state_codec.h"
#include "base/rng_math.h"

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
