/* Transposes rows whose columns are to be summed over: the right factor of a warpgroup product
 * needs the other order than memory has. Copies from one place in shared memory to another. */
#ifndef TG_BACKEND_CUDA_SM90_TRANSPOSE_ROWS_CUH
#define TG_BACKEND_CUDA_SM90_TRANSPOSE_ROWS_CUH

#include "backend/cuda/tile/instructions.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum {
    TRANSPOSED_STEPS = 11,              /* of 4 columns */
    TRANSPOSED_N = 8 * TRANSPOSED_STEPS /* columns of the factor: interleaved parts */
};

/* Of a factor with 8 * steps rows. */
static constexpr __host__ __device__ int transposed_bytes(int steps) {
    return (steps + 3) / 4 * (TRANSPOSED_N * 128);
}

/* (rows, columns) of complex f16 as right factor, by all warps of a block; at most 8 * STEPS rows
 * and 4 * TRANSPOSED_STEPS columns, a multiple of 4. A warp takes 8 rows, 4 columns at a time: all
 * lanes access different banks on both sides. */
template <int STEPS>
static __device__ inline void transpose_rows(const uint32_t *in, int rows, int columns, char *to) {
    constexpr int HALF = (TRANSPOSED_STEPS + 1) / 2;
    const int lane = (int)threadIdx.x % 32;
    for (int piece = (int)threadIdx.x / 32; piece < 2 * STEPS; piece += (int)blockDim.x / 32) {
        const int i = piece / 2 * 8 + lane / 4, first = piece % 2 * HALF, j = 4 * first + lane % 4;
        const uint32_t *from = in + i * columns + j;
        char *re = to + wg_at<TRANSPOSED_N>(2 * j, i), *im = to + wg_at<TRANSPOSED_N>(2 * j + 1, i);
        uint32_t x[HALF]; /* read all before writing the first */
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
static __device__ inline void transpose_pairs(const float *in, int columns, char *to) {
    const int lane = (int)threadIdx.x % 32, j = lane % 4, part = lane / 4 % 2;
#pragma unroll 1
    for (int row = (int)threadIdx.x / 32 * 4; row < 8 * STEPS; row += (int)blockDim.x / 8) {
        const float *from = in + (2 * (row + lane / 8) + part) * columns + j;
        char *at = to + wg_at<TRANSPOSED_N>(2 * j + part, row + lane / 8);
        float x[TRANSPOSED_STEPS]; /* read all before writing the first */
#pragma unroll
        for (int b = 0; b < TRANSPOSED_STEPS; b++) {
            x[b] = 4 * b < columns ? from[4 * b] : 0.0f;
        }
#pragma unroll
        for (int b = 0; b < TRANSPOSED_STEPS; b++) {
            *reinterpret_cast<float *>(at + 1024 * b) = to_tf32(x[b]);
        }
    }
}

/* A warp arrives after all its lanes have written. */
static __device__ inline void warp_arrives(uint64_t *barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(barrier);
    }
}

#endif
