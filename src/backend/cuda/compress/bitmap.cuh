/* Index sets on the device. A warp takes groups of 512 bits, the granularity of the ranks. */
#ifndef TG_BACKEND_CUDA_COMPRESS_BITMAP_CUH
#define TG_BACKEND_CUDA_COMPRESS_BITMAP_CUH

#include "backend/cuda/core/cuda.cuh"

enum { GROUP = 512, GROUP_WORDS = GROUP / 64, WARP = 32, MAX_SCAN_BLOCKS = 1024 };

/* Calls f(group) for every group, with all lanes of a warp. */
template <class F> __device__ inline void for_each_group(int64_t n, F f) {
    const int64_t groups = (n + GROUP - 1) / GROUP;
    const int64_t warps = (int64_t)gridDim.x * (blockDim.x / WARP);
    const int64_t warp = (int64_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    for (int64_t group = warp; group < groups; group += warps) {
        f(group);
    }
}

static inline unsigned group_blocks(const tg_backend *be, int64_t n, int threads) {
    return cuda_blocks(be, tg_bitmap_ranks(n) * WARP, threads);
}

__device__ inline uint32_t lanes_before() {
    return (1u << (threadIdx.x % WARP)) - 1u;
}

/* Replaces counts (groups) by their exclusive prefix sums (at most 2^32 - 1) and writes the total
 * to *total (NULL: not wanted). partials: MAX_SCAN_BLOCKS numbers of scratch. Does nothing if *skip
 * is not 0 (skip NULL: never). */
tg_status cuda_scan(tg_backend *be, int64_t groups, uint32_t *counts, const uint32_t *skip,
                    uint64_t *partials, uint64_t *total);

/* Computes the ranks of a bitmap with n > 0 bits; partials and total as above. */
tg_status cuda_rank(tg_backend *be, const tg_bitmap *bitmap, uint64_t *partials, uint64_t *total);

tg_status cuda_bitmap_rank(tg_backend *be, tg_bitmap *bitmap);

#endif
