/* Shared by the neural-operator slots: runs of four numbers, dropout, and sums.
 *
 * A storage type T also determines the arithmetic: real_of<T> is the type of weights and sums. */
#ifndef TG_BACKEND_CUDA_NN_NN_CUH
#define TG_BACKEND_CUDA_NN_NN_CUH

#include "backend/cuda/core/element.cuh"
#include "backend/cuda/tile/activate.cuh"
#include "base/rng_math.h"

/* For the workspace slot: bytes, and whether a kernel supports the sizes. */
size_t cuda_skip_workspace(tg_backend *be, const tg_skip *op);
size_t cuda_mlp_workspace(tg_backend *be, const tg_mlp *op);
size_t cuda_gno_workspace(const tg_gno *op);
size_t cuda_neighbours_bytes(int64_t points, int64_t queries);
bool cuda_mlp_accepts_quantized_input(tg_backend *be, const tg_mlp *op);
bool cuda_two_modes_supports(tg_backend *be, const tg_two_modes *op);
bool cuda_mapped_supports(tg_backend *be, const tg_mapped *op);
bool cuda_block_workspace(tg_backend *be, const tg_block *op, size_t *bytes);
bool cuda_block_back_workspace(tg_backend *be, const tg_block_back *op, size_t *bytes);

/* Linear skips and MLPs as one kernel on tensor cores (skip_tile.cu, mlp_tile_forward.cu), for
 * supported shapes: whether a call is supported, the calls, and the workspace of backward. */
bool skip_tile_supports(const tg_backend *be, const tg_skip *op);
tg_status skip_tile_forward(tg_backend *be, const tg_skip *op);
tg_status skip_tile_backward(tg_backend *be, const tg_skip *op);
size_t skip_tile_workspace(const tg_backend *be, const tg_skip *op);
bool mlp_tile_forward_supports(const tg_backend *be, const tg_mlp *op);
bool mlp_tile_backward_supports(const tg_backend *be, const tg_mlp *op);
tg_status mlp_tile_forward(tg_backend *be, const tg_mlp *op);
tg_status mlp_tile_backward(tg_backend *be, const tg_mlp *op);
size_t mlp_tile_workspace(const tg_backend *be, const tg_mlp *op);

/* MLPs with one output (mlp_single.cu): whether a call is supported, and its workspace, 0 if these
 * sizes never are. */
bool mlp_single_supports(const tg_mlp *op);
size_t mlp_single_workspace(const tg_mlp *op);
tg_status mlp_single_forward(tg_backend *be, const tg_mlp *op);
tg_status mlp_single_backward(tg_backend *be, const tg_mlp *op);

/* MLPs with one output or few inputs on GPUs of compute capability 9.0 (sm90/narrow_mlp.cu), for
 * f32 in TF32. */
bool mlp_narrow_supports(const tg_backend *be, const tg_mlp *op);
size_t mlp_narrow_workspace(const tg_backend *be, const tg_mlp *op);
tg_status mlp_narrow_forward(tg_backend *be, const tg_mlp *op);
tg_status mlp_narrow_backward(tg_backend *be, const tg_mlp *op);

/* Backward of a block's channel MLP, likewise (sm90/channel_mlp.cu). */
bool mlp_channel_supports(const tg_backend *be, const tg_mlp *op);
bool mlp_channel_accepts_quantized_input(const tg_backend *be, const tg_mlp *op);
size_t mlp_channel_workspace(const tg_backend *be, const tg_mlp *op);
tg_status mlp_channel_backward(tg_backend *be, const tg_mlp *op);

/* f(type_tag<T>()) with the storage type of an array of dtype f32 or f64 (c64, c128). */
template <class F> inline tg_status with_stored(tg_dtype dtype, tg_storage store, F f) {
    return tg_dtype_real(dtype) == TG_F64 ? f(type_tag<double>()) : with_storage(store, f);
}

/* The same for an array whose arithmetic is R. */
template <class R, class F> inline tg_status with_storage_of(tg_storage store, F f) {
    if constexpr (sizeof(R) == sizeof(double)) {
        return f(type_tag<double>());
    } else {
        return with_storage(store, f);
    }
}

/* ---- dropout ---- */

struct dropout_of {
    double rate; /* 0: none */
    tg_rng rng;
    uint64_t first; /* index of the layer's element 0 */
};

/* The dropout factor of element `at` of the layer. */
template <class R> __device__ inline R survival(const dropout_of &d, int64_t at) {
    if (d.rate == 0.0) {
        return R(1);
    }
    uint32_t bits[4];
    tg_stream_bits(&d.rng, d.first + (uint64_t)at, bits);
    return tg_unit_interval(bits[0], bits[1]) >= d.rate ? R(1.0 / (1.0 - d.rate)) : R(0);
}

/* ---- runs: four numbers in a row, one access where they are aligned and complete ---- */

template <class R> struct run { R v[4]; };

template <class T> struct alignas(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) quad { T v[4]; };

/* The first four of `left` numbers; 0 past the end. */
template <class T> __device__ inline run<real_of<T>> load_run(const T *x, int64_t left) {
    run<real_of<T>> r = {};
    if (left >= 4 && (uintptr_t)x % alignof(quad<T>) == 0) {
        const quad<T> q = *reinterpret_cast<const quad<T> *>(x);
        for (int j = 0; j < 4; j++) {
            r.v[j] = widen(q.v[j]);
        }
    } else {
        for (int j = 0; j < 4; j++) {
            r.v[j] = j < left ? widen(x[j]) : real_of<T>(0);
        }
    }
    return r;
}

template <class T> __device__ inline void store_run(T *x, int64_t left, run<real_of<T>> r) {
    if (left >= 4 && (uintptr_t)x % alignof(quad<T>) == 0) {
        quad<T> q;
        for (int j = 0; j < 4; j++) {
            q.v[j] = narrow<T>(r.v[j]);
        }
        *reinterpret_cast<quad<T> *>(x) = q;
    } else {
        for (int j = 0; j < 4 && j < left; j++) {
            x[j] = narrow<T>(r.v[j]);
        }
    }
}

/* ---- sums ---- */

/* The sum over the warp in a fixed order, returned to every lane; every lane calls. */
__device__ inline double warp_sum(double x) {
    for (int lane = 16; lane > 0; lane /= 2) {
        x += __shfl_xor_sync(~0u, x, lane);
    }
    return x;
}

/* The sum over the block in a fixed order, returned to thread 0; every thread calls. */
__device__ inline double block_sum(double x) {
    __shared__ double of_warp[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    if (lane == 0) {
        of_warp[warp] = x;
    }
    __syncthreads();
    x = 0.0;
    for (int w = 0; threadIdx.x == 0 && w < warps; w++) {
        x += of_warp[w];
    }
    __syncthreads(); /* the next sum may begin */
    return x;
}

/* ---- losses: loss.cu, loss_squares.cu ---- */

enum { LOSS_THREADS = 256, LOSS_MAX_PARTS = 256 };

/* Number of blocks that sum an image of `points` points; each writes a double2. */
static inline int loss_parts(int64_t points) {
    return (int)tg_min((points + LOSS_THREADS - 1) / LOSS_THREADS, LOSS_MAX_PARTS);
}

#endif
