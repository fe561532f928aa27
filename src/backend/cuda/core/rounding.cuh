/* Stochastic rounding to the 16-bit formats, by a word of random bits (base/rng_math.h). */
#ifndef TG_BACKEND_CUDA_CORE_ROUNDING_CUH
#define TG_BACKEND_CUDA_CORE_ROUNDING_CUH

#include "backend/cuda/core/element.cuh"
#include "base/rng_math.h"

template <class W>
constexpr bool is_16bit = std::is_same_v<W, __nv_bfloat16> || std::is_same_v<W, __half>;

template <class W> __device__ inline W round_by(float x, uint32_t word) {
    static_assert(is_16bit<W>, "others have room for it");
    if constexpr (std::is_same_v<W, __half>) {
        return __ushort_as_half(tg_round_to_f16(x, word));
    } else {
        return __ushort_as_bfloat16(tg_round_to_bf16(x, word));
    }
}

#endif
