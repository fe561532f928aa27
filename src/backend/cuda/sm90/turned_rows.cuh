/* Rows of numbers whose columns are to be summed over: what comes from memory lies the wrong way
 * round for the second factor of a product of warpgroups, and is turned from one place in shared
 * memory to another. */
#ifndef TG_BACKEND_CUDA_SM90_TURNED_ROWS_CUH
#define TG_BACKEND_CUDA_SM90_TURNED_ROWS_CUH

#include "backend/cuda/tile/instructions.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum {
    TURNED_STEPS = 11,          /* of 4 columns */
    TURNED_N = 8 * TURNED_STEPS /* columns of the factor: both parts of a number together */
};

/* Of a factor with 8 * steps rows. */
static constexpr __host__ __device__ int turned_bytes(int steps) {
    return (steps + 3) / 4 * (TURNED_N * 128);
}

/* (rows, columns) of complex numbers in f16 as second factor, by all warps of a block; at most 8 *
 * STEPS rows and 4 * TURNED_STEPS columns, a multiple of 4. A warp takes 8 rows, 4 columns at a
 * time: all lanes touch different banks on both sides. */
template <int STEPS>
static __device__ inline void turn_rows(const uint32_t *in, int rows, int columns, char *to) {
    constexpr int HALF = (TURNED_STEPS + 1) / 2;
    const int lane = (int)threadIdx.x % 32;
    for (int piece = (int)threadIdx.x / 32; piece < 2 * STEPS; piece += (int)blockDim.x / 32) {
        const int i = piece / 2 * 8 + lane / 4, first = piece % 2 * HALF, j = 4 * first + lane % 4;
        const uint32_t *from = in + i * columns + j;
        char *re = to + wg_at<TURNED_N>(2 * j, i), *im = to + wg_at<TURNED_N>(2 * j + 1, i);
        uint32_t x[HALF]; /* all of them before the first is written */
#pragma unroll
        for (int b = 0; b < HALF; b++) {
            if (i < rows && 4 * (first + b) < columns) {
                x[b] = from[4 * b];
            }
        }
#pragma unroll
        for (int b = 0; b < HALF; b++) {
            if (i < rows && 4 * (first + b) < columns) {
                *reinterpret_cast<uint32_t *>(re + 1024 * b) = half_pair_for(x[b], 0);
                *reinterpret_cast<uint32_t *>(im + 1024 * b) = half_pair_for(x[b], 1);
            }
        }
    }
}

/* (rows, part, columns), all 8 * STEPS rows: a warp takes 4 rows, and both parts of 4 columns at a
 * time. */
template <int STEPS>
static __device__ inline void turn_pairs(const float *in, int columns, char *to) {
    const int lane = (int)threadIdx.x % 32, j = lane % 4, part = lane / 4 % 2;
#pragma unroll 1
    for (int row = (int)threadIdx.x / 32 * 4; row < 8 * STEPS; row += (int)blockDim.x / 8) {
        const float *from = in + (2 * (row + lane / 8) + part) * columns + j;
        char *at = to + wg_at<TURNED_N>(2 * j + part, row + lane / 8);
        float x[TURNED_STEPS]; /* all of them before the first is written */
#pragma unroll
        for (int b = 0; b < TURNED_STEPS; b++) {
            x[b] = 4 * b < columns ? from[4 * b] : 0.0f;
        }
#pragma unroll
        for (int b = 0; b < TURNED_STEPS; b++) {
            *reinterpret_cast<float *>(at + 1024 * b) = to_tf32(x[b]);
        }
    }
}

/* A warp has arrived when all its lanes have. */
static __device__ inline void warp_arrives(uint64_t *barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(barrier);
    }
}

#endif
