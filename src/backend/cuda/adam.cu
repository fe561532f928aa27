/* Adam's moments and direction in one pass: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) |g|^2,
 * u = m / (sqrt(v) + eps), and weight = beta weight + alpha u.
 *
 * The pass is bound by memory, so it moves 16 bytes at a time where everything is aligned. A
 * complex array by parts is an array of twice as many reals. Rates are read on the device, and so
 * is the guard, which is counted up before it is read: by one block along with the rest in arrays
 * that are small, by a kernel of its own before the pass otherwise. */
#include <type_traits>

#include "backend/cuda/pack.cuh"
#include "backend/cuda/reduce.cuh"
#include "base/rng_math.h"

enum { THREADS = 256, SMALL_THREADS = 1024, SMALL = 8192 };

/* What a call does, beside its arrays; c = 1 - beta. */
struct adam_step {
    int64_t n, packs; /* elements, and how many packs of them are taken first */
    double scale, beta1, c1, beta2, c2, eps, alpha, beta;
    const tg_rates *rates;
    tg_rng rng; /* of the rounding of bf16 weights */
    bool is_rounded;
    uint32_t *guard;
    int64_t counted; /* entries of the gradient to be counted into the guard, by a single block */
    int reals;       /* of an entry */
};

/* m and v are T, the gradient is stored as G and the weight as W. */
template <class T, class G, class W> struct adam_arrays {
    const G *grad;
    T *m, *v;
    T *direction; /* may be grad, NULL: none */
    W *weight;    /* NULL: none */
};

/* The numbers of a step in the precision of the arithmetic. */
template <class R> struct adam_rates {
    R scale, beta1, c1, beta2, c2, eps, alpha, beta;
    tg_rng rng;
    bool is_rounded;
};

template <class R> __device__ inline adam_rates<R> read_rates(const adam_step &s) {
    adam_rates<R> r = {(R)s.scale, (R)s.beta1, (R)s.c1,   (R)s.beta2, (R)s.c2,
                       (R)s.eps,   (R)s.alpha, (R)s.beta, s.rng,      s.is_rounded};
    if (s.rates) {
        r.scale = (R)s.rates->scale;
        r.alpha = (R)s.rates->alpha;
        r.beta = (R)s.rates->beta;
        r.rng.step = s.rates->step;
    }
    return r;
}

/* One block: the entries with a NaN or Inf are added to the guard. */
template <class G> __device__ inline void count_entries(const adam_step &s, const G *grad) {
    __shared__ uint32_t total;
    if (threadIdx.x == 0) {
        total = 0;
    }
    __syncthreads();
    uint32_t bad = 0;
    for (int64_t i = threadIdx.x; i < s.counted; i += blockDim.x) {
        const G *entry = grad + i * s.reals;
        bad += is_bad(entry[0]) || is_bad(entry[s.reals - 1]);
    }
    if (bad > 0) {
        atomicAdd(&total, bad);
    }
    __syncthreads();
    if (threadIdx.x == 0 && total > 0) {
        count_up(s.guard, total);
    }
    __syncthreads();
}

/* Numbers of a weight from number `first` on, rounded. There are 1, 2 or 4 of them and `first` is a
 * multiple of that: they share the random bits of one index. */
template <class W, int C, class R>
__device__ inline pack<W, C> round_weight(const adam_rates<R> &r, int64_t first, const R (&x)[C]) {
    static_assert(4 % C == 0, "numbers of one index");
    pack<W, C> out;
    if constexpr (std::is_same_v<W, __nv_bfloat16>) {
        if (r.is_rounded) {
            uint32_t words[4];
            tg_stream_bits(&r.rng, (uint64_t)first / 4, words);
#pragma unroll
            for (int c = 0; c < C; c++) {
                const uint32_t word = tg_rounding_word(words, (uint64_t)first + c);
                out.at[c] = __ushort_as_bfloat16(tg_round_to_bf16(x[c], word));
            }
            return out;
        }
    }
#pragma unroll
    for (int c = 0; c < C; c++) {
        out.at[c] = narrow<W>(x[c]);
    }
    return out;
}

/* The elements of a span; an element is P reals that share a second moment. */
template <int P, class S, class R, class T, class G, class W>
__device__ inline void move(const adam_rates<R> &r, const adam_arrays<T, G, W> &a,
                            int64_t element) {
    constexpr int N = S::count, C = N * P;
    const int64_t at = element * P;
    const bool reads_weight = a.weight && r.beta != R(0);
    const auto grad = load<C, S::vector>(a.grad + at);
    auto m = load<C, S::vector>(a.m + at);
    auto v = load<N, S::vector>(a.v + element);
    pack<W, C> w;
    if (reads_weight) {
        w = load<C, S::vector>(a.weight + at);
    }
    R u[C];
#pragma unroll
    for (int i = 0; i < N; i++) {
        R g[P], square = R(0);
#pragma unroll
        for (int p = 0; p < P; p++) {
            g[p] = r.scale * widen(grad.at[i * P + p]);
            square += g[p] * g[p];
        }
        const R second = r.beta2 * widen(v.at[i]) + r.c2 * square;
        const R inverse = R(1) / (sqrt(second) + r.eps);
        v.at[i] = narrow<T>(second);
#pragma unroll
        for (int p = 0; p < P; p++) {
            const R first = r.beta1 * widen(m.at[i * P + p]) + r.c1 * g[p];
            m.at[i * P + p] = narrow<T>(first);
            u[i * P + p] = first * inverse;
        }
    }
    store<C, S::vector>(a.m + at, m);
    store<N, S::vector>(a.v + element, v);
    if (a.direction) {
        pack<T, C> out;
#pragma unroll
        for (int c = 0; c < C; c++) {
            out.at[c] = narrow<T>(u[c]);
        }
        store<C, S::vector>(a.direction + at, out);
    }
    if (a.weight) {
#pragma unroll
        for (int c = 0; c < C; c++) {
            u[c] = r.alpha * u[c] + (reads_weight ? r.beta * widen(w.at[c]) : R(0));
        }
        store<C, S::vector>(a.weight + at, round_weight<W>(r, at, u));
    }
}

/* Elements of a pack: as many as 16 bytes have of the arithmetic's type. */
template <class T, int P> constexpr int per_step = 16 / (int)sizeof(real_of<T>) / P;

template <int P, class T, class G, class W>
static __global__ void __launch_bounds__(SMALL_THREADS)
    adam_kernel(adam_step s, adam_arrays<T, G, W> arrays) {
    if (s.counted > 0) {
        count_entries(s, arrays.grad);
    }
    if (s.guard && *s.guard > 0) {
        return;
    }
    const auto rates = read_rates<real_of<T>>(s);
    in_packs<per_step<T, P>>(s.packs, s.n, [&](int64_t first, auto part) {
        move<P, decltype(part)>(rates, arrays, first);
    });
}

template <int P, class T, class G, class W>
static tg_status run(tg_backend *be, const tg_adam *op, adam_step s) {
    constexpr int N = per_step<T, P>, C = N * P;
    const adam_arrays<T, G, W> a = {static_cast<const G *>(op->grad), static_cast<T *>(op->m),
                                    static_cast<T *>(op->v), static_cast<T *>(op->direction),
                                    static_cast<W *>(op->weight)};
    const bool aligned = is_aligned<C>(a.grad) && is_aligned<C>(a.m) && is_aligned<N>(a.v) &&
                         is_aligned<C>(a.direction) && is_aligned<C>(a.weight);
    const int threads = s.counted > 0 ? SMALL_THREADS : THREADS;
    s.n = P == 1 ? op->n * s.reals : op->n;
    s.packs = aligned ? s.n / N : 0;
    const unsigned blocks = s.counted > 0 ? 1 : stream_blocks(be, s.packs, s.n, threads);
    adam_kernel<P><<<blocks, threads, 0, cuda_stream(be)>>>(s, a);
    return CUDA_LAUNCHED(be, "adam");
}

template <class T, class G, class W>
static tg_status run_form(tg_backend *be, const tg_adam *op, const adam_step &s) {
    const bool by_modulus = s.reals == 2 && !op->split;
    return by_modulus ? run<2, T, G, W>(be, op, s) : run<1, T, G, W>(be, op, s);
}

/* The types: halves stand for f32 in the gradient and in the weight, each on its own. */
static tg_status run_types(tg_backend *be, const tg_adam *op, const adam_step &s) {
    return with_real(op->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if constexpr (std::is_same_v<T, float>) {
            return with_storage(op->grad_store, [&](auto grad_tag) {
                return with_storage(op->weight_store, [&](auto weight_tag) {
                    using G = typename decltype(grad_tag)::type;
                    using W = typename decltype(weight_tag)::type;
                    return run_form<float, G, W>(be, op, s);
                });
            });
        } else {
            return run_form<T, T, T>(be, op, s);
        }
    });
}

static tg_status cuda_adam(tg_backend *be, const tg_adam *op) {
    tg_status status = tg_check_adam(be->ctx, op);
    if (status == TG_OK && op->form != TG_STATE_FULL) {
        status = tg_fail(be->ctx, TG_E_UNSUPPORTED, "adam: moments are kept in full on the GPU");
    }
    if (status != TG_OK || op->n <= 0) {
        return status;
    }
    adam_step s = adam_step();
    s.scale = op->scale;
    s.beta1 = op->beta1;
    s.c1 = 1.0 - op->beta1;
    s.beta2 = op->beta2;
    s.c2 = 1.0 - op->beta2;
    s.eps = op->eps;
    s.alpha = op->alpha;
    s.beta = op->beta;
    s.rates = op->rates;
    s.rng = op->rounding ? *op->rounding : tg_rng();
    s.is_rounded = op->rounding != NULL;
    s.guard = op->guard;
    s.reals = tg_dtype_is_complex(op->dtype) ? 2 : 1;
    if (op->guard && op->counts) {
        if (op->n <= SMALL) {
            s.counted = op->n;
        } else {
            const tg_dtype stored = tg_stored(op->dtype, op->grad_store);
            status = be->ops->count_nonfinite(be, stored, op->n, op->grad, op->guard);
        }
    }
    return status == TG_OK ? run_types(be, op, s) : status;
}

void cuda_fill_adam(tg_backend_ops *ops) {
    ops->adam = cuda_adam;
}
