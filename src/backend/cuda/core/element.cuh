/* Elements of the float dtypes in kernels, dispatch from a run-time dtype to a type, reductions
 * over a block, and stochastic rounding.
 *
 * Memory holds float, double, bfloat16 or half, alone or as pairs; arithmetic is in float, or in
 * double for the wide dtypes. `real_of<T>` is the arithmetic type for storage type T. */
#ifndef TG_BACKEND_CUDA_CORE_ELEMENT_CUH
#define TG_BACKEND_CUDA_CORE_ELEMENT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "backend/cuda/core/cuda.cuh"
#include "base/rng_math.h"

template <class T> struct arithmetic { using type = float; };
template <> struct arithmetic<double> { using type = double; };
template <class T> using real_of = typename arithmetic<T>::type;

/* A complex number, in registers and in memory. Aligned like its parts, because slices of a tensor
 * may start at any element. */
template <class T> struct pair { T re, im; };

__device__ inline float widen(float x) {
    return x;
}
__device__ inline double widen(double x) {
    return x;
}
__device__ inline float widen(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
__device__ inline float widen(__half x) {
    return __half2float(x);
}
template <class T> __device__ inline pair<real_of<T>> widen(pair<T> x) {
    return {widen(x.re), widen(x.im)};
}

/* Rounds to nearest even. */
template <class T> __device__ inline T narrow(real_of<T> x) {
    return static_cast<T>(x);
}
template <> __device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ inline __half narrow<__half>(float x) {
    return __float2half_rn(x);
}
template <class T> __device__ inline pair<T> narrow_pair(pair<real_of<T>> x) {
    return {narrow<T>(x.re), narrow<T>(x.im)};
}

/* ---- complex arithmetic ---- */

template <class R> __host__ __device__ inline pair<R> operator+(pair<R> a, pair<R> b) {
    return {a.re + b.re, a.im + b.im};
}
template <class R> __host__ __device__ inline pair<R> operator-(pair<R> a, pair<R> b) {
    return {a.re - b.re, a.im - b.im};
}
template <class R> __host__ __device__ inline pair<R> operator*(R a, pair<R> b) {
    return {a * b.re, a * b.im};
}
template <class R> __host__ __device__ inline pair<R> operator*(pair<R> a, pair<R> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class R> __host__ __device__ inline pair<R> conj(pair<R> a) {
    return {a.re, -a.im};
}
template <class R> __host__ __device__ inline R abs2(pair<R> a) {
    return a.re * a.re + a.im * a.im;
}
/* sum += a b */
template <class R> __device__ inline void add_product(R &sum, R a, R b) {
    sum = fma(a, b, sum);
}
template <class R> __device__ inline void add_product(pair<R> &sum, pair<R> a, pair<R> b) {
    sum.re = fma(a.re, b.re, fma(-a.im, b.im, sum.re));
    sum.im = fma(a.re, b.im, fma(a.im, b.re, sum.im));
}

/* ---- dtypes at run time ---- */

template <class T> struct type_tag { using type = T; };

/* Calls f(type_tag<T>()) with the real storage type of a float dtype (for a complex dtype, that of
 * its parts). f returns tg_status. The caller rejects other dtypes. */
template <class F> inline tg_status with_real(tg_dtype dtype, F f) {
    switch (tg_dtype_real(dtype)) {
    case TG_F64:
        return f(type_tag<double>());
    case TG_BF16:
        return f(type_tag<__nv_bfloat16>());
    case TG_F16:
        return f(type_tag<__half>());
    default:
        return f(type_tag<float>());
    }
}

/* The same for f32 and f64 only (c64, c128). */
template <class F> inline tg_status with_wide(tg_dtype dtype, F f) {
    return tg_dtype_real(dtype) == TG_F64 ? f(type_tag<double>()) : f(type_tag<float>());
}

/* The same for an f32 (c64) array, by its storage format. */
template <class F> inline tg_status with_storage(tg_storage store, F f) {
    switch (store) {
    case TG_STORE_BF16:
        return f(type_tag<__nv_bfloat16>());
    case TG_STORE_F16:
        return f(type_tag<__half>());
    default:
        return f(type_tag<float>());
    }
}

/* ---- reductions over a block, in a fixed order ---- */

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

/* Returns join() of the values of all THREADS threads (a power of 2) to every thread. */
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
    __syncthreads(); /* before the next call writes to it */
    return out;
}

/* *count += bad, saturating at 2^31, so that the result does not depend on the order. */
__device__ inline void add_saturating(uint32_t *count, uint64_t bad) {
    const uint64_t most = 1ull << 31;
    uint32_t seen = *count, before;
    do {
        before = seen;
        const uint64_t sum = before + bad;
        seen = atomicCAS(count, before, (uint32_t)(sum < most ? sum : most));
    } while (seen != before);
}

/* ---- stochastic rounding to the 16-bit formats ---- */

template <class W>
constexpr bool is_16bit = std::is_same_v<W, __nv_bfloat16> || std::is_same_v<W, __half>;

template <class W> __device__ inline W round_stochastic(float x, uint32_t random) {
    static_assert(is_16bit<W>, "others have room for it");
    if constexpr (std::is_same_v<W, __half>) {
        return __ushort_as_half(tg_round_to_f16(x, random));
    } else {
        return __ushort_as_bfloat16(tg_round_to_bf16(x, random));
    }
}

/* Random bits for C numbers starting at `first`, a multiple of C. They share one draw. */
template <int C>
__device__ inline void read_random(const tg_rng &rng, uint64_t first, uint32_t (&random)[C]) {
    static_assert(TG_ROUNDED_BY_DRAW % C == 0, "numbers of one draw");
    uint32_t draw[4];
    tg_rounding_draw(&rng, first, draw);
#pragma unroll
    for (int c = 0; c < C; c++) { /* the low bits of the index are compile-time constants */
        random[c] = tg_rounding_part(draw, first / C * C + c);
    }
}

#endif
