/* Quantize to 8 bits and back (quantize.h), each in one pass over memory. A warp handles blocks of
 * 128 values, four per thread, so that loads and stores are full cache lines. It processes several
 * blocks at once to keep enough loads in flight. */
#include "backend/cuda/core/pack.cuh"
#include "backend/quantize.h"

enum { THREADS = 256, WARPS = THREADS / 32, BLOCKS_PER_WARP = 4 /* processed at once */ };

static_assert(TG_QUANTIZED_BLOCK == 4 * 32, "a warp takes a block, four values by each thread");

static __device__ inline uint32_t modulus_bits(float x) {
    return __float_as_uint(x) & 0x7FFFFFFFu;
}

static __device__ inline uint32_t warp_max(uint32_t value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
        value = other > value ? other : value;
    }
    return value;
}

/* Number of values of one thread in a block: 4, or fewer at the end of the array. */
static __device__ inline int values_at(int64_t n, int64_t at) {
    return n - at >= 4 ? 4 : n > at ? (int)(n - at) : 0;
}

template <bool VECTOR>
static __global__ void __launch_bounds__(THREADS)
    quantize(int64_t n, int64_t blocks, const float *__restrict__ x, uint8_t *__restrict__ bytes,
             float *__restrict__ scales) {
    const int lane = threadIdx.x % 32;
    const int64_t step = (int64_t)gridDim.x * WARPS * BLOCKS_PER_WARP;
    for (int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * BLOCKS_PER_WARP;
         first < blocks; first += step) {
        pack<float, 4> value[BLOCKS_PER_WARP];
#pragma unroll
        for (int k = 0; k < BLOCKS_PER_WARP; k++) {
            const int64_t at = (first + k) * TG_QUANTIZED_BLOCK + 4 * lane;
            const int count = values_at(n, at);
            value[k] = VECTOR && count == 4 ? load<4, true>(x + at) : load<4, false>(x + at, count);
        }
#pragma unroll
        for (int k = 0; k < BLOCKS_PER_WARP; k++) {
            uint32_t most = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                most = max(most, modulus_bits(value[k].at[i]));
            }
            const tg_quantizer q = tg_quantizer_of(warp_max(most));
            if (first + k < blocks) { /* 0 past the last value */
                pack<uint8_t, 4> out;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    out.at[i] = tg_quantize(value[k].at[i], q.inverse);
                }
                store<4, true>(bytes + (first + k) * TG_QUANTIZED_BLOCK + 4 * lane, out);
                if (lane == 0) {
                    scales[first + k] = q.scale;
                }
            }
        }
    }
}

template <bool VECTOR>
static __global__ void __launch_bounds__(THREADS)
    dequantize(int64_t n, int64_t blocks, const uint8_t *__restrict__ bytes,
               const float *__restrict__ scales, float *__restrict__ x) {
    const int lane = threadIdx.x % 32;
    const int64_t step = (int64_t)gridDim.x * WARPS * BLOCKS_PER_WARP;
    for (int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * BLOCKS_PER_WARP;
         first < blocks; first += step) {
        pack<uint8_t, 4> in[BLOCKS_PER_WARP];
        float scale[BLOCKS_PER_WARP];
#pragma unroll
        for (int k = 0; k < BLOCKS_PER_WARP; k++) {
            const int64_t block = first + k < blocks ? first + k : blocks - 1;
            in[k] = load<4, true>(bytes + block * TG_QUANTIZED_BLOCK + 4 * lane);
            scale[k] = scales[block];
        }
#pragma unroll
        for (int k = 0; k < BLOCKS_PER_WARP; k++) {
            const int64_t at = (first + k) * TG_QUANTIZED_BLOCK + 4 * lane;
            const int count = values_at(n, at);
            pack<float, 4> out;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                out.at[i] = tg_dequantize(in[k].at[i], scale[k]);
            }
            if (VECTOR && count == 4) {
                store<4, true>(x + at, out);
            } else {
                store<4, false>(x + at, out, count);
            }
        }
    }
}

static unsigned grid_of(const tg_backend *be, int64_t blocks) {
    return cuda_blocks(be, (blocks + BLOCKS_PER_WARP - 1) / BLOCKS_PER_WARP * 32, THREADS);
}

static tg_status launch_quantize(tg_backend *be, int64_t n, const float *x, uint8_t *bytes) {
    const int64_t blocks = tg_quantized_blocks(n);
    float *scales = reinterpret_cast<float *>(bytes + tg_quantized_scales(n));
    const auto kernel = is_aligned<4>(x) ? quantize<true> : quantize<false>;
    return launch_alone(be, "quantizing an array", kernel, grid_of(be, blocks), THREADS, 0, n,
                        blocks, x, bytes, scales);
}

static tg_status launch_dequantize(tg_backend *be, int64_t n, const uint8_t *bytes, float *x) {
    const int64_t blocks = tg_quantized_blocks(n);
    const float *scales = reinterpret_cast<const float *>(bytes + tg_quantized_scales(n));
    const auto kernel = is_aligned<4>(x) ? dequantize<true> : dequantize<false>;
    return launch_alone(be, "dequantizing an array", kernel, grid_of(be, blocks), THREADS, 0, n,
                        blocks, bytes, scales, x);
}

tg_status cuda_quantize(tg_backend *be, const tg_quantization *op) {
    return op->n <= 0     ? TG_OK
           : op->restores ? launch_dequantize(be, op->n, static_cast<const uint8_t *>(op->from),
                                              static_cast<float *>(op->to))
                          : launch_quantize(be, op->n, static_cast<const float *>(op->from),
                                            static_cast<uint8_t *>(op->to));
}
