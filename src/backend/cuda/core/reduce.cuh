/* Sums over a block in a fixed order, and the counter of entries that are not finite. */
#ifndef TG_BACKEND_CUDA_CORE_REDUCE_CUH
#define TG_BACKEND_CUDA_CORE_REDUCE_CUH

#include "backend/cuda/core/element.cuh"

__device__ inline double join(double a, double b) {
    return a + b;
}
__device__ inline pair<double> join(pair<double> a, pair<double> b) {
    return a + b;
}
__device__ inline uint64_t join(uint64_t a, uint64_t b) {
    return a + b;
}
__device__ inline tg_norms join(tg_norms a, tg_norms b) {
    return {a.sum_squares + b.sum_squares, fmax(a.max_abs, b.max_abs), a.nonfinite + b.nonfinite};
}

/* join() of all values of a block of THREADS (a power of 2), for every thread. */
template <int THREADS, class V> __device__ inline V block_join(V mine) {
    __shared__ V all[THREADS];
    all[threadIdx.x] = mine;
    __syncthreads();
    for (unsigned rest = THREADS / 2; rest > 0; rest /= 2) {
        if (threadIdx.x < rest) {
            all[threadIdx.x] = join(all[threadIdx.x], all[threadIdx.x + rest]);
        }
        __syncthreads();
    }
    const V out = all[0];
    __syncthreads(); /* the next call writes there */
    return out;
}

/* *count += bad, up to 2^31: sums in any order end at the same number. */
__device__ inline void count_up(uint32_t *count, uint64_t bad) {
    const uint64_t most = 1ull << 31;
    uint32_t seen = *count, before;
    do {
        before = seen;
        const uint64_t sum = before + bad;
        seen = atomicCAS(count, before, (uint32_t)(sum < most ? sum : most));
    } while (seen != before);
}

#endif
