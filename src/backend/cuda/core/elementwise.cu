/* Fill, convert, add and scale arrays: one pass each, in float, or in double for wide dtypes. */
#include "backend/cuda/core/pack.cuh"

enum { THREADS = 256 };

/* ---- fill ---- */

template <class E>
static __global__ void fill_kernel(int64_t packs, int64_t n, wide_of<E> value, E *x) {
    in_packs<per_pack<E>>(packs, n, [&](int64_t first, auto s) {
        using S = decltype(s);
        pack<E, S::count> out;
#pragma unroll
        for (int i = 0; i < S::count; i++) {
            out.at[i] = element<E>::round(value);
        }
        store<S::count, S::vector>(x + first, out);
    });
}

template <class R> static void set_value(R *value, tg_scalar from) {
    *value = (R)from.re;
}
template <class R> static void set_value(pair<R> *value, tg_scalar from) {
    *value = {(R)from.re, (R)from.im};
}

tg_status cuda_fill(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar value, void *x) {
    const tg_status status = tg_check_float(be->ctx, "fill", dtype);
    if (status != TG_OK || n <= 0) {
        return status;
    }
    return with_element(dtype, [&](auto tag) {
        using E = typename decltype(tag)::type;
        E *out = static_cast<E *>(x);
        const int64_t packs = packs_of(n, out);
        wide_of<E> wide;
        set_value(&wide, value);
        return launch_alone(be, "fill", fill_kernel<E>, stream_blocks(be, packs, n, THREADS),
                            THREADS, 0, packs, n, wide, out);
    });
}

/* ---- axpy and scale ---- */

template <class E>
static __global__ void axpy_kernel(int64_t packs, int64_t n, pair<real_of<part_of<E>>> alpha,
                                   const E *x, E *y) {
    in_packs<per_pack<E>>(packs, n, [&](int64_t first, auto s) {
        using S = decltype(s);
        const auto a = load<S::count, S::vector>(x + first);
        auto b = load<S::count, S::vector>(y + first);
#pragma unroll
        for (int i = 0; i < S::count; i++) {
            b.at[i] = element<E>::round(widen(b.at[i]) + times(alpha, widen(a.at[i])));
        }
        store<S::count, S::vector>(y + first, b);
    });
}

template <class E>
static __global__ void scale_kernel(int64_t packs, int64_t n, pair<real_of<part_of<E>>> alpha,
                                    E *x) {
    in_packs<per_pack<E>>(packs, n, [&](int64_t first, auto s) {
        using S = decltype(s);
        auto a = load<S::count, S::vector>(x + first);
#pragma unroll
        for (int i = 0; i < S::count; i++) {
            a.at[i] = element<E>::round(times(alpha, widen(a.at[i])));
        }
        store<S::count, S::vector>(x + first, a);
    });
}

tg_status cuda_axpy(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar alpha, const void *x,
                    void *y) {
    const tg_status status = tg_check_float(be->ctx, "axpy", dtype);
    if (status != TG_OK || n <= 0) {
        return status;
    }
    return with_element(dtype, [&](auto tag) {
        using E = typename decltype(tag)::type;
        const E *in = static_cast<const E *>(x);
        E *out = static_cast<E *>(y);
        const int64_t packs = packs_of(n, in, out);
        const unsigned blocks = stream_blocks(be, packs, n, THREADS);
        const auto factor = factor_of<real_of<part_of<E>>>(alpha);
        return in ? launch_alone(be, "axpy", axpy_kernel<E>, blocks, THREADS, 0, packs, n, factor,
                                 in, out)
                  : launch_alone(be, "axpy", scale_kernel<E>, blocks, THREADS, 0, packs, n, factor,
                                 out);
    });
}

/* ---- convert ---- */

/* A double is rounded to float first and then to 16 bits, as on every backend. */
template <class D, class R> __device__ inline D convert_real(R x) {
    return narrow<D>((real_of<D>)x);
}

/* Real numbers. `src_step` or `dst_step` is 2 where only one side is complex. Then packs are not
 * used, and missing imaginary parts become 0. */
template <class S, class D, int N>
static __global__ void convert_kernel(int64_t packs, int64_t n, int src_step, int dst_step,
                                      const S *src, D *dst) {
    in_packs<N>(packs, n, [&](int64_t first, auto width) {
        using W = decltype(width);
        if constexpr (W::vector) {
            const auto in = load<N, true>(src + first);
            pack<D, N> out;
#pragma unroll
            for (int i = 0; i < N; i++) {
                out.at[i] = convert_real<D>(widen(in.at[i]));
            }
            store<N, true>(dst + first, out);
        } else {
            dst[first * dst_step] = convert_real<D>(widen(src[first * src_step]));
            if (dst_step > src_step) {
                dst[first * dst_step + 1] = convert_real<D>(0.0f);
            }
        }
    });
}

tg_status cuda_convert(tg_backend *be, int64_t n, tg_dtype src_dtype, const void *src,
                       tg_dtype dst_dtype, void *dst) {
    TG_CALL(tg_check_float(be->ctx, "convert", src_dtype));
    TG_CALL(tg_check_float(be->ctx, "convert", dst_dtype));
    if (n <= 0) {
        return TG_OK;
    }
    const bool from_pairs = tg_dtype_is_complex(src_dtype);
    const bool to_pairs = tg_dtype_is_complex(dst_dtype), alike = from_pairs == to_pairs;
    const int64_t count = alike && to_pairs ? 2 * n : n;
    const int src_step = !alike && from_pairs ? 2 : 1, dst_step = !alike && to_pairs ? 2 : 1;
    return with_real(src_dtype, [&](auto src_tag) {
        using S = typename decltype(src_tag)::type;
        return with_real(dst_dtype, [&](auto dst_tag) {
            using D = typename decltype(dst_tag)::type;
            constexpr int N = 16 / (sizeof(S) > sizeof(D) ? sizeof(S) : sizeof(D));
            const S *in = static_cast<const S *>(src);
            D *out = static_cast<D *>(dst);
            const bool aligned = alike && is_aligned<N>(in) && is_aligned<N>(out);
            const int64_t packs = aligned ? count / N : 0;
            return launch_alone(be, "convert", convert_kernel<S, D, N>,
                                stream_blocks(be, packs, count, THREADS), THREADS, 0, packs, count,
                                src_step, dst_step, in, out);
        });
    });
}
