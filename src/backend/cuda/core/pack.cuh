/* Passes over arrays in packs, each loaded and stored as one vector of up to 16 bytes. The
 * remainder and unaligned arrays are processed element by element. An element is a real number T or
 * a pair<T>. */
#ifndef TG_BACKEND_CUDA_CORE_PACK_CUH
#define TG_BACKEND_CUDA_CORE_PACK_CUH

#include "backend/cuda/core/element.cuh"

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) pack { T at[N]; };

/* One step of a pass: `count` elements, as vectors or one by one. */
template <int COUNT, bool VECTOR> struct span {
    static constexpr int count = COUNT;
    static constexpr bool vector = VECTOR;
};

/* Reads `count` elements of a pack where an array may end within it (vectors are always complete);
 * the rest is 0. */
template <int N, bool VECTOR, class T>
__device__ inline pack<T, N> load(const T *x, int count = N) {
    pack<T, N> out;
    if constexpr (VECTOR) {
        out = *reinterpret_cast<const pack<T, N> *>(x);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            out.at[i] = i < count ? x[i] : T();
        }
    }
    return out;
}

template <int N, bool VECTOR, class T>
__device__ inline void store(T *x, const pack<T, N> &in, int count = N) {
    if constexpr (VECTOR) {
        *reinterpret_cast<pack<T, N> *>(x) = in;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i < count) {
                x[i] = in.at[i];
            }
        }
    }
}

/* Calls f(first, span) for `packs` packs of N elements, then for each remaining one of the n
 * elements. Starts at `first`, with stride `step`. */
template <int N, class F>
__device__ inline void in_packs_from(int64_t first, int64_t step, int64_t packs, int64_t n, F f) {
    const int64_t items = packs + (n - packs * N);
    for (int64_t i = first; i < items; i += step) {
        if (i < packs) {
            f(i * N, span<N, true>());
        } else {
            f(packs * (N - 1) + i, span<1, false>());
        }
    }
}

/* The same for one thread of the whole grid. */
template <int N, class F> __device__ inline void in_packs(int64_t packs, int64_t n, F f) {
    in_packs_from<N>((int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                     (int64_t)gridDim.x * blockDim.x, packs, n, f);
}

/* Whether x is aligned for packs of N. NULL, an unused array, counts as aligned. */
template <int N, class T> inline bool is_aligned(const T *x) {
    return reinterpret_cast<uintptr_t>(x) % alignof(pack<T, N>) == 0;
}

/* Number of blocks for a pass. */
static inline unsigned stream_blocks(const tg_backend *be, int64_t packs, int64_t n, int threads) {
    return cuda_blocks(be, packs > 0 ? packs : n, threads);
}

/* ---- elements ---- */

/* Types of the parts and of the arithmetic, and conversion to and from memory. */
template <class E> struct element {
    using part = E;
    using wide = real_of<E>;
    static __device__ E round(wide x) {
        return narrow<E>(x);
    }
};
template <class T> struct element<pair<T>> {
    using part = T;
    using wide = pair<real_of<T>>;
    static __device__ pair<T> round(wide x) {
        return narrow_pair<T>(x);
    }
};
template <class E> using part_of = typename element<E>::part;
template <class E> using wide_of = typename element<E>::wide;

/* Elements per pack, and packs of n elements: 0 unless all arrays (NULL: none) are aligned. */
template <class E> constexpr int per_pack = sizeof(E) < 16 ? 16 / (int)sizeof(E) : 1;
template <class E> inline int64_t packs_of(int64_t n, const E *x, const E *y = NULL) {
    return is_aligned<per_pack<E>>(x) && is_aligned<per_pack<E>>(y) ? n / per_pack<E> : 0;
}

/* Any element as a pair of doubles. */
template <class T> __device__ inline pair<double> to_double(T x) {
    return {(double)widen(x), 0.0};
}
template <class T> __device__ inline pair<double> to_double(pair<T> x) {
    return {(double)widen(x.re), (double)widen(x.im)};
}

/* A factor times an element; a real element uses the factor's real part. */
template <class R> __device__ inline R times(pair<R> a, R x) {
    return a.re * x;
}
template <class R> __device__ inline pair<R> times(pair<R> a, pair<R> x) {
    return a * x;
}

template <class R> inline pair<R> factor_of(tg_scalar a) {
    return {(R)a.re, (R)a.im};
}

/* Whether it contains NaN or Inf. */
template <class T> __device__ inline bool is_bad(T x) {
    return !isfinite(widen(x));
}
template <class T> __device__ inline bool is_bad(pair<T> x) {
    return is_bad(x.re) || is_bad(x.im);
}

/* Calls f(type_tag<E>()) with the element type of a float dtype. */
template <class F> inline tg_status with_element(tg_dtype dtype, F f) {
    return with_real(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return tg_dtype_is_complex(dtype) ? f(type_tag<pair<T>>()) : f(type_tag<T>());
    });
}

#endif
