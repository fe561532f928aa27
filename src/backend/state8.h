/* Adam's moments in 8 bits per real, shared verbatim by the C and CUDA backends.
 *
 * A block of TG_STATE_BLOCK reals has one scale s; a byte represents s times an entry of a table
 * that is fine near 1 and covers many decades. Index i > 0 of a table of `bits` bits is in decade
 * bits - 1 - p, p = floor(log2 i), which has 2^p entries, equally spaced:
 *
 *   value(i) = 10^-(bits - 1 - p) (0.1 + 0.9 (i - 2^p + 1) / 2^p),   value(0) = 0
 *
 * so that values ascend with i, end with 1, and the lower half of the indices covers the small
 * decades. First moment: sign in the top bit, 7 bits of index, value down to 1e-6. Second moment: 8
 * bits of index, value down to 1e-7, of the ROOT of v (the step's divisor); a root above 0 never
 * becomes 0. Scales are the largest modulus (of m) or root (of v) of the block.
 *
 * Stochastic rounding if u is uniform in [0, 1), to nearest if u = 1/2. Moving averages need the
 * former: their steps are shorter than half the distance between entries, and rounding to nearest
 * would freeze them.
 *
 * Only +, -, *, /, comparisons and truncation to integers in a fixed order: the same bytes
 * everywhere (files that include this are compiled without contraction). */
#ifndef TG_BACKEND_STATE8_H
#define TG_BACKEND_STATE8_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TG_STATE_FN static __host__ __device__ inline
#else
#define TG_STATE_FN static inline
#endif

enum { TG_STATE_M_BITS = 7, TG_STATE_V_BITS = 8 };

/* 10^-e, e = 0 .. 7. */
TG_STATE_FN float tg_state_decade(int e) {
    return (e & 4 ? 1e-4f : 1.0f) * ((e & 2 ? 1e-2f : 1.0f) * (e & 1 ? 1e-1f : 1.0f));
}

/* Entry of the table. */
TG_STATE_FN float tg_state_value(int bits, uint32_t index) {
    if (index == 0) {
        return 0.0f;
    }
    int p = 0;
    while (index >> (p + 1)) {
        p++;
    }
    const float step = 0.9f / (float)(1u << p);
    return tg_state_decade(bits - 1 - p) * (0.1f + step * (float)(index - (1u << p) + 1u));
}

/* Index of the entry below or above x in [0, 1], by u; any index for NaN. Bisects the decades three
 * times (on the border of two decades either gives the same index). */
TG_STATE_FN uint32_t tg_state_index(int bits, float x, float u) {
    float up = 1.0f, entries = (float)(1u << (bits - 1)); /* of the decade of x: exact powers */
    for (int i = 0; i < 3; i++) {
        const int e = 4 >> i;
        const int below = x * up <= tg_state_decade(e);
        up *= below ? (e == 4 ? 1e4f : e == 2 ? 1e2f : 1e1f) : 1.0f;
        entries *= below ? 1.0f / (float)(1 << e) : 1.0f;
    }
    const float steps =
        (x * up - 0.1f) * (entries * (1.0f / 0.9f));                /* 0: end of the decade below */
    const float last = x * (bits == TG_STATE_M_BITS ? 1e6f : 1e7f); /* one entry; 0 below it */
    const float moved = (entries > 1.0f ? steps : last) + u, most = entries > 1.0f ? entries : 1.0f;
    const float within = moved > 0.0f ? moved : 0.0f;
    return (uint32_t)((int32_t)most + (int32_t)(within < most ? within : most) - 1);
}

/* 16 random bits to (0, 1), with mean 1/2: the middles of 2^16 intervals. */
TG_STATE_FN float tg_state_unit(uint32_t random) {
    return (float)(int32_t)random * 0x1p-16f + 0x1p-17f;
}

/* First moment: byte of x / scale, and x. */
TG_STATE_FN uint8_t tg_state_m_encode(float x, float inverse_scale, float u) {
    const float size = fabsf(x) * inverse_scale;
    return (uint8_t)(tg_state_index(TG_STATE_M_BITS, size, u) | (x < 0.0f ? 0x80u : 0u));
}

TG_STATE_FN float tg_state_m_decode(uint8_t byte, float scale) {
    const float size = scale * tg_state_value(TG_STATE_M_BITS, byte & 0x7Fu);
    return byte & 0x80u ? -size : size;
}

/* Second moment, of its root. */
TG_STATE_FN uint8_t tg_state_v_encode(float root, float inverse_scale, float u) {
    const uint32_t index = tg_state_index(TG_STATE_V_BITS, root * inverse_scale, u);
    const uint32_t least = root > 0.0f;
    return (uint8_t)(index > least ? index : least);
}

TG_STATE_FN float tg_state_v_decode(uint8_t byte, float scale) {
    const float root = scale * tg_state_value(TG_STATE_V_BITS, byte);
    return root * root;
}

#endif
