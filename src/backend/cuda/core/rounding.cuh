/* Stochastic rounding to the 16-bit formats, by random bits (base/rng_math.h). */
#ifndef TG_BACKEND_CUDA_CORE_ROUNDING_CUH
#define TG_BACKEND_CUDA_CORE_ROUNDING_CUH

#include "backend/cuda/core/element.cuh"
#include "base/rng_math.h"

template <class W>
constexpr bool is_16bit = std::is_same_v<W, __nv_bfloat16> || std::is_same_v<W, __half>;

template <class W> __device__ inline W round_by(float x, uint32_t random) {
    static_assert(is_16bit<W>, "others have room for it");
    if constexpr (std::is_same_v<W, __half>) {
        return __ushort_as_half(tg_round_to_f16(x, random));
    } else {
        return __ushort_as_bfloat16(tg_round_to_bf16(x, random));
    }
}

/* The random bits of C numbers from `first` on, a multiple of C: they share one draw. */
template <int C>
__device__ inline void read_random(const tg_rng &rng, uint64_t first, uint32_t (&random)[C]) {
    static_assert(TG_ROUNDED_BY_DRAW % C == 0, "numbers of one draw");
    uint32_t draw[4];
    tg_rounding_draw(&rng, first, draw);
#pragma unroll
    for (int c = 0; c < C; c++) { /* the low bits of numbers are known when this is compiled */
        random[c] = tg_rounding_part(draw, first / C * C + c);
    }
}

#endif
