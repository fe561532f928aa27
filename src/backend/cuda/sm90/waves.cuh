/* Waves: the cosines and sines with which the spectrum of a row is multiplied, from frequency 1 on,
 * (width / 64, STEPS / 2, 4 warps, 32 lanes). They are stored in f16, which has as many bits as
 * TF32, two steps of a thread next to each other. */
#ifndef TG_BACKEND_CUDA_SM90_WAVES_CUH
#define TG_BACKEND_CUDA_SM90_WAVES_CUH

#include <cuda_fp16.h>
#include <stdint.h>

/* A thread's part of one of two steps, as the left factor of a product. */
static __device__ inline float4 wave_factor(uint4 pair, int step) {
    const auto of_halves = [](uint32_t word) {
        return __half22float2(*reinterpret_cast<const __half2 *>(&word));
    };
    const float2 a = of_halves(step % 2 ? pair.z : pair.x),
                 b = of_halves(step % 2 ? pair.w : pair.y);
    return {a.x, a.y, b.x, b.y};
}

#endif
