/* Shared by Adam's kernels in all state formats: the parameters of a step, the guard, the update of
 * a few elements, and the use of their direction. */
#ifndef TG_BACKEND_CUDA_OPTIM_ADAM_CUH
#define TG_BACKEND_CUDA_OPTIM_ADAM_CUH

#include <type_traits>

#include "backend/cuda/core/element.cuh"
#include "backend/cuda/core/pack.cuh"

/* Parameters of a call, without its arrays; c = 1 - beta. */
struct adam_step {
    int64_t n, packs; /* elements, and how many packs of them are moved as vectors */
    double scale, beta1, c1, beta2, c2, eps, alpha, beta;
    const tg_rates *rates;
    tg_rng rng;                /* of the rounding to 16 and 8 bits */
    bool rounds, rounds_state; /* stochastically: the weight, the moments */
    uint32_t *guard;
    int64_t counted; /* gradient entries to count into the guard, by a single block */
    int reals;       /* of an entry */
};

/* Arrays of T, of which m and v are stored as M, the gradient as G and the weight as W. */
template <class T, class M, class G, class W> struct adam_arrays {
    const G *grad;
    M *m, *v;
    T *direction; /* may be grad, NULL: none */
    W *weight;    /* NULL: none */
};

/* The parameters of a step in the precision of the arithmetic. */
template <class R> struct adam_rates {
    R scale, beta1, c1, beta2, c2, eps, alpha, beta;
    tg_rng rng;
    bool rounds, rounds_state;
};

template <class R> __device__ inline adam_rates<R> read_rates(const adam_step &s) {
    adam_rates<R> r = {(R)s.scale, (R)s.beta1, (R)s.c1, (R)s.beta2, (R)s.c2,       (R)s.eps,
                       (R)s.alpha, (R)s.beta,  s.rng,   s.rounds,   s.rounds_state};
    if (s.rates) {
        r.scale = (R)s.rates->scale;
        r.alpha = (R)s.rates->alpha;
        r.beta = (R)s.rates->beta;
        r.rng.step = s.rates->step;
    }
    return r;
}

/* A block counts the entries with a NaN or Inf; all its threads get the total. */
template <class G> __device__ inline uint32_t count_entries(const adam_step &s, const G *grad) {
    __shared__ uint32_t total;
    if (threadIdx.x == 0) {
        total = 0;
    }
    __syncthreads();
    uint32_t bad = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < s.counted; i += blockDim.x) {
        const G *entry = grad + i * s.reals;
        bad += is_bad(entry[0]) || is_bad(entry[s.reals - 1]);
    }
    if (bad > 0) {
        atomicAdd(&total, bad);
    }
    __syncthreads();
    return total;
}

/* Counts non-finite entries if asked to, by a single block; returns whether the guard skips the
 * step. */
template <class G> __device__ inline bool skips_update(const adam_step &s, const G *grad) {
    if (s.counted > 0) {
        const uint32_t bad = count_entries(s, grad);
        if (threadIdx.x == 0 && bad > 0) {
            add_saturating(s.guard, bad);
        }
        __syncthreads();
    }
    return s.guard && *s.guard > 0;
}

/* Rounds reals for storage, to nearest or stochastically (to 16 bits only), with the random stream
 * from number `first` on. There are 1, 2 or 4 of them and `first` is a multiple of that: they share
 * one draw of random bits. */
template <class W, int C, class R>
__device__ inline pack<W, C> round_reals(const tg_rng &rng, bool stochastic, uint64_t first,
                                         const R (&x)[C]) {
    pack<W, C> out;
    if constexpr (is_16bit<W>) {
        if (stochastic) {
            uint32_t random[C];
            read_random(rng, first, random);
#pragma unroll
            for (int c = 0; c < C; c++) {
                out.at[c] = round_stochastic<W>(x[c], random[c]);
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

/* Updates the moments of N elements by their gradient and computes their direction u; an element is
 * P reals that share a second moment. */
template <int P, class R, class G, int C, int N>
__device__ inline void update_moments(const adam_rates<R> &r, const pack<G, C> &grad, R (&m)[C],
                                      R (&v)[N], R (&u)[C]) {
    static_assert(C == N * P, "reals of the elements");
#pragma unroll
    for (int i = 0; i < N; i++) {
        R g[P], square = R(0);
#pragma unroll
        for (int p = 0; p < P; p++) {
            g[p] = r.scale * widen(grad.at[i * P + p]);
            square += g[p] * g[p];
        }
        v[i] = r.beta2 * v[i] + r.c2 * square;
        const R inverse = R(1) / (sqrt(v[i]) + r.eps);
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = i * P + p;
            m[c] = r.beta1 * m[c] + r.c1 * g[p];
            u[c] = m[c] * inverse;
        }
    }
}

/* `count` of C reals of the weight from real `at` on, if they are needed. */
template <int C, bool VECTOR, class R, class W>
__device__ inline pack<W, C> read_weight(const adam_rates<R> &r, const W *weight, int64_t at,
                                         int count) {
    return weight && r.beta != R(0) ? load<C, VECTOR>(weight + at, count) : pack<W, C>();
}

/* Writes the direction u and updates the weight, whose old value is w. */
template <bool VECTOR, int C, class R, class T, class M, class G, class W>
__device__ inline void apply_direction(const adam_rates<R> &r, const adam_arrays<T, M, G, W> &a,
                                       int64_t at, int count, const pack<W, C> &w, R (&u)[C]) {
    if (a.direction) {
        pack<T, C> out;
#pragma unroll
        for (int c = 0; c < C; c++) {
            out.at[c] = narrow<T>(u[c]);
        }
        store<C, VECTOR>(a.direction + at, out, count);
    }
    if (a.weight) {
#pragma unroll
        for (int c = 0; c < C; c++) {
            u[c] = r.alpha * u[c] + (r.beta != R(0) ? r.beta * widen(w.at[c]) : R(0));
        }
        store<C, VECTOR>(a.weight + at, round_reals<W>(r.rng, r.rounds, at, u), count);
    }
}

/* Rounds a moment for storage. 16-bit formats of T are rounded like a weight, by numbers of the
 * stream from 2^62 (of m) or 2^63 (of v) on. */
template <class T, class M, int C, class R>
__device__ inline pack<M, C> round_moment(const adam_rates<R> &r, int power, int64_t first,
                                          const R (&x)[C]) {
    const bool stochastic = !std::is_same_v<T, M> && r.rounds_state;
    return round_reals<M>(r.rng, stochastic, (1ull << power) + (uint64_t)first, x);
}

template <class R, class T, int N>
__device__ inline void widen_to(R (&out)[N], const pack<T, N> &in) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        out[i] = widen(in.at[i]);
    }
}

/* Updates the elements of a span; an element is P reals that share a second moment. */
template <int P, class S, class R, class T, class M, class G, class W>
__device__ inline void update_span(const adam_rates<R> &r, const adam_arrays<T, M, G, W> &a,
                                   int64_t element) {
    constexpr int N = S::count, C = N * P;
    const int64_t at = element * P;
    const auto grad = load<C, S::vector>(a.grad + at);
    R m[C], v[N], u[C];
    widen_to(m, load<C, S::vector>(a.m + at));
    widen_to(v, load<N, S::vector>(a.v + element));
    const auto weight = read_weight<C, S::vector>(r, a.weight, at, C);
    update_moments<P>(r, grad, m, v, u);
    store<C, S::vector>(a.m + at, round_moment<T, M>(r, 62, at, m));
    store<N, S::vector>(a.v + element, round_moment<T, M>(r, 63, element, v));
    apply_direction<S::vector>(r, a, at, C, weight, u);
}

/* Elements of a pack: 16 bytes of the arithmetic's type. */
template <class T, int P> constexpr int per_step = 16 / (int)sizeof(real_of<T>) / P;

/* How many packs of n elements, or blocks of a multiple of them, can be moved as vectors. */
template <int P, class T, class M, class G, class W>
inline int64_t adam_packs(const adam_arrays<T, M, G, W> &a, int64_t n, int block = per_step<T, P>) {
    constexpr int N = per_step<T, P>, C = N * P;
    const bool aligned = is_aligned<C>(a.grad) && is_aligned<C>(a.m) && is_aligned<N>(a.v) &&
                         is_aligned<C>(a.direction) && is_aligned<C>(a.weight);
    return aligned ? n / block : 0;
}

/* The parameters of a call, except those that depend on its sizes. */
inline adam_step cuda_adam_step(const tg_adam *op) {
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
    s.rounds = op->rounding != NULL;
    s.rounds_state = tg_adam_state_rounding(op) != NULL;
    s.guard = op->guard;
    s.reals = tg_dtype_is_complex(op->dtype) ? 2 : 1;
    return s;
}

/* A single update, and the slot, which batches small ones (adam_batched.cu). */
tg_status cuda_adam_one(tg_backend *be, const tg_adam *op);
tg_status cuda_adam(tg_backend *be, int count, const tg_adam *ops);

/* Other rules. rules.cu */
tg_status cuda_rule_step(tg_backend *be, const tg_adam *op);

/* Moments of one byte per real. adam_8bit.cu */
tg_status cuda_adam_bytes(tg_backend *be, const tg_adam *op, const adam_step &s);

#endif
