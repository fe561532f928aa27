/* Index sets: ranks of a bitmap, and reading, adding to or clearing the kept entries. */
#include "backend/cuda/compress/bitmap.cuh"
#include "backend/cuda/core/element.cuh"
#include "backend/cuda/core/pack.cuh"

enum { THREADS = 256 };

/* ---- ranks ---- */

/* Every block takes `chunk` groups, a multiple of THREADS, and sums their counts. */
static __global__ void chunk_kernel(int64_t groups, int64_t chunk, const uint32_t *counts,
                                    const uint32_t *skip, uint64_t *partials) {
    if (skip && *skip) {
        return;
    }
    const int64_t begin = blockIdx.x * chunk;
    const int64_t end = begin + chunk < groups ? begin + chunk : groups;
    uint64_t sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        sum += counts[i];
    }
    sum = block_join<THREADS>(sum);
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = sum;
    }
}

/* Sum of the values of the preceding threads, and of the whole block. */
static __device__ uint32_t sum_before(uint32_t mine, uint32_t *all) {
    __shared__ uint32_t warp_sums[THREADS / WARP];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t sum = mine;
    for (unsigned step = 1; step < WARP; step *= 2) {
        const uint32_t below = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? below : 0;
    }
    if (lane == WARP - 1) {
        warp_sums[warp] = sum;
    }
    __syncthreads();
    uint32_t before = 0, total = 0;
    for (unsigned w = 0; w < THREADS / WARP; w++) {
        before += w < warp ? warp_sums[w] : 0;
        total += warp_sums[w];
    }
    __syncthreads(); /* the next call writes there */
    *all = total;
    return before + sum - mine;
}

/* Adds the sums of the preceding chunks, then scans its own. */
static __global__ void scan_kernel(int64_t groups, int64_t chunk, uint32_t *counts,
                                   const uint32_t *skip, const uint64_t *partials,
                                   uint64_t *total) {
    if (skip && *skip) {
        return;
    }
    uint64_t carry = 0;
    for (unsigned i = threadIdx.x; i < blockIdx.x; i += THREADS) {
        carry += partials[i];
    }
    carry = block_join<THREADS>(carry);
    const int64_t begin = blockIdx.x * chunk;
    const int64_t end = begin + chunk < groups ? begin + chunk : groups;
    for (int64_t tile = begin; tile < end; tile += THREADS) {
        const int64_t i = tile + threadIdx.x;
        uint32_t all = 0;
        const uint32_t before = sum_before(i < end ? counts[i] : 0, &all);
        const uint64_t sum = carry + before;
        if (i < end) {
            counts[i] = sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;
        }
        carry += all;
    }
    if (total && threadIdx.x == 0 && blockIdx.x == gridDim.x - 1) {
        *total = carry;
    }
}

tg_status cuda_scan(tg_backend *be, int64_t groups, uint32_t *counts, const uint32_t *skip,
                    uint64_t *partials, uint64_t *total) {
    const int64_t least = (groups + MAX_SCAN_BLOCKS - 1) / MAX_SCAN_BLOCKS;
    const int64_t chunk = (least + THREADS - 1) / THREADS * THREADS;
    const unsigned blocks = (unsigned)((groups + chunk - 1) / chunk);
    TG_CALL(launch_alone(be, "ranks of a bitmap", chunk_kernel, blocks, THREADS, 0, groups, chunk,
                         counts, skip, partials));
    return launch_alone(be, "ranks of a bitmap", scan_kernel, blocks, THREADS, 0, groups, chunk,
                        counts, skip, partials, total);
}

/* ranks[group] = bits of the group. */
static __global__ void popcount_kernel(int64_t words_count, int64_t groups, const uint64_t *words,
                                       uint32_t *ranks) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t g = (int64_t)blockIdx.x * THREADS + threadIdx.x; g < groups; g += step) {
        uint32_t count = 0;
#pragma unroll
        for (int i = 0; i < GROUP_WORDS; i++) {
            const int64_t at = g * GROUP_WORDS + i;
            count += at < words_count ? __popcll(words[at]) : 0;
        }
        ranks[g] = count;
    }
}

tg_status cuda_rank(tg_backend *be, const tg_bitmap *bitmap, uint64_t *partials, uint64_t *total) {
    const int64_t groups = tg_bitmap_ranks(bitmap->n);
    TG_CALL(launch_alone(be, "ranks of a bitmap", popcount_kernel, cuda_blocks(be, groups, THREADS),
                         THREADS, 0, tg_bitmap_words(bitmap->n), groups, bitmap->words,
                         bitmap->ranks));
    return cuda_scan(be, groups, bitmap->ranks, NULL, partials, total);
}

tg_status cuda_bitmap_rank(tg_backend *be, tg_bitmap *bitmap) {
    uint64_t *total = static_cast<uint64_t *>(cuda_state_of(be)->scratch);
    bitmap->count = 0;
    if (bitmap->n == 0) {
        return TG_OK;
    }
    TG_CALL(cuda_rank(be, bitmap, total + 1, total));
    return cuda_read(be, &bitmap->count, total, sizeof bitmap->count);
}

/* ---- the kept entries ---- */

/* In place: only the kept entries are written. */
template <class E>
static __global__ void clear_kernel(int64_t n, const uint64_t *words, const E *x, E *out) {
    const bool in_place = x == out;
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        if (words[i / 64] >> (i % 64) & 1) {
            out[i] = element<E>::round(wide_of<E>());
        } else if (!in_place) {
            out[i] = x[i];
        }
    }
}

tg_status cuda_bitmap_clear(tg_backend *be, tg_dtype dtype, const tg_bitmap *bitmap, const void *x,
                            void *out) {
    const tg_status status = tg_check_float(be->ctx, "bitmap_clear", dtype);
    if (status != TG_OK || bitmap->n == 0) {
        return status;
    }
    return with_element(dtype, [&](auto tag) {
        using E = typename decltype(tag)::type;
        return launch_alone(be, "bitmap_clear", clear_kernel<E>,
                            cuda_blocks(be, bitmap->n, THREADS), THREADS, 0, bitmap->n,
                            bitmap->words, static_cast<const E *>(x), static_cast<E *>(out));
    });
}
