/* Elements of the float dtypes in kernels, and how a dtype known at run time becomes a type.
 *
 * Memory holds float, double, bfloat16 or half, alone or as pairs; arithmetic is in float, or in
 * double for the wide dtypes. `real_of<T>` is the arithmetic's type for storage type T. */
#ifndef TG_BACKEND_CUDA_CORE_ELEMENT_CUH
#define TG_BACKEND_CUDA_CORE_ELEMENT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "backend/cuda/core/cuda.cuh"

template <class T> struct arithmetic { using type = float; };
template <> struct arithmetic<double> { using type = double; };
template <class T> using real_of = typename arithmetic<T>::type;

/* A complex number, and a pair in memory (aligned as its parts: slices of a tensor may start at any
 * element). */
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

/* ---- dtypes at run time ---- */

template <class T> struct type_tag { using type = T; };

/* Calls f(type_tag<T>()) with the real storage type of a float dtype (that of the parts of a
 * complex one). f returns tg_status. Other dtypes are the caller's to refuse. */
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

/* The same for an array of f32 (c64) by how it is stored. */
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

#endif
