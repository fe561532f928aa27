/* Updates by rules other than Adam's, in double. A block of threads takes TG_STATE_BLOCK reals at a
 * time, two per thread (a complex value, or two real ones), in any storage format of gradient,
 * moment and weight. Compiled without contraction to fused multiply-add: the result is
 * bit-identical to the host's. */
#include "backend/cuda/optim/adam.cuh"
#include "backend/rule_kernel.h"
#include "backend/state8.h"

enum { THREADS = TG_STATE_BLOCK / 2, BLOCKS = 16 /* at most, for each multiprocessor */ };

/* A thread's elements: `count` (0 to 2) reals from number `at` on. */
struct two_reals {
    int64_t at;
    int count;
};

template <class S> __device__ inline void load_as(const void *x, two_reals r, double (&out)[2]) {
    const auto in = load<2, false>(static_cast<const S *>(x) + r.at, r.count);
    out[0] = (double)widen(in.at[0]);
    out[1] = (double)widen(in.at[1]);
}

template <class T>
__device__ inline void load_stored(const void *x, tg_storage store, two_reals r, double (&out)[2]) {
    if (store == TG_STORE_BF16) {
        load_as<__nv_bfloat16>(x, r, out);
    } else if (store == TG_STORE_F16) {
        load_as<__half>(x, r, out);
    } else {
        load_as<T>(x, r, out);
    }
}

template <class W>
__device__ inline void store_rounded(const tg_rng &rng, bool stochastic, uint64_t number, void *x,
                                     two_reals r, const double (&in)[2]) {
    const float narrowed[2] = {(float)in[0], (float)in[1]};
    store<2, false>(static_cast<W *>(x) + r.at, round_reals<W>(rng, stochastic, number, narrowed),
                    r.count);
}

/* To 16 bits, stochastically with the numbers of the stream from `number` on, or to nearest. */
template <class T>
__device__ inline void store_stored(const tg_rng &rng, bool stochastic, uint64_t number, void *x,
                                    tg_storage to, two_reals r, const double (&in)[2]) {
    if (to == TG_STORE_BF16) {
        store_rounded<__nv_bfloat16>(rng, stochastic, number, x, r, in);
    } else if (to == TG_STORE_F16) {
        store_rounded<__half>(rng, stochastic, number, x, r, in);
    } else {
        const pack<T, 2> out = {{(T)in[0], (T)in[1]}};
        store<2, false>(static_cast<T *>(x) + r.at, out, r.count);
    }
}

__device__ inline tg_storage storage_of(tg_state_form form) {
    return form == TG_STATE_BF16  ? TG_STORE_BF16
           : form == TG_STATE_F16 ? TG_STORE_F16
                                  : TG_STORE_FULL;
}

template <class T>
__device__ inline void load_moment(const tg_adam &op, two_reals r, double (&m)[2]) {
    if (op.form == TG_STATE_8BIT) {
        const auto bytes = load<2, false>(static_cast<const uint8_t *>(op.m) + r.at, r.count);
        const float scale = r.count > 0 ? op.m_scale[r.at / TG_STATE_BLOCK] : 0.0f;
        m[0] = (double)tg_state_m_decode(bytes.at[0], scale);
        m[1] = (double)tg_state_m_decode(bytes.at[1], scale);
    } else {
        load_stored<T>(op.m, storage_of(op.form), r, m);
    }
}

/* Bytes of a block of moments and its scale, by all threads of the block. */
__device__ inline void store_bytes(const adam_rates<double> &rates, const tg_adam &op, two_reals r,
                                   const double (&m)[2]) {
    __shared__ unsigned most; /* non-negative floats order like their bits */
    const float x[2] = {(float)m[0], (float)m[1]};
    if (threadIdx.x == 0) {
        most = 0;
    }
    __syncthreads(); /* and all have read the scale */
    atomicMax(&most, __float_as_uint(fmaxf(fmaxf(0.0f, fabsf(x[0])), fabsf(x[1]))));
    __syncthreads();
    const float scale = __uint_as_float(most), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    const uint64_t number = (1ull << 62) + (uint64_t)r.at;
    uint32_t random[2] = {};
    if (rates.rounds_state) {
        read_random(rates.rng, number, random);
    }
    pack<uint8_t, 2> bytes;
    for (int c = 0; c < 2; c++) {
        const float by = rates.rounds_state ? tg_state_unit(random[c]) : 0.5f;
        bytes.at[c] = tg_state_m_encode(x[c], inverse, by);
    }
    store<2, false>(static_cast<uint8_t *>(op.m) + r.at, bytes, r.count);
    if (threadIdx.x == 0) {
        op.m_scale[r.at / TG_STATE_BLOCK] = scale;
    }
    __syncthreads();
}

template <class T>
__device__ inline void store_moment(const adam_rates<double> &rates, const tg_adam &op, two_reals r,
                                    const double (&m)[2]) {
    if (op.form == TG_STATE_8BIT) {
        store_bytes(rates, op, r, m);
    } else {
        store_stored<T>(rates.rng, rates.rounds_state, (1ull << 62) + (uint64_t)r.at, op.m,
                        storage_of(op.form), r, m);
    }
}

template <class T>
__device__ inline void use_direction(const adam_rates<double> &rates, const tg_adam &op,
                                     two_reals r, double (&u)[2]) {
    if (op.direction) {
        store_stored<T>(rates.rng, false, 0, op.direction, TG_STORE_FULL, r, u);
    }
    if (!op.weight) {
        return;
    }
    double old[2] = {};
    if (rates.beta != 0.0) {
        load_stored<T>(op.weight, op.weight_store, r, old);
    }
    for (int c = 0; c < 2; c++) {
        u[c] = rates.alpha * u[c] + rates.beta * old[c];
    }
    store_stored<T>(rates.rng, rates.rounds, (uint64_t)r.at, op.weight, op.weight_store, r, u);
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    rule_kernel(adam_step s, tg_adam op, tg_rule_kernel kernel) {
    if (s.guard && *s.guard > 0) {
        return;
    }
    const auto rates = read_rates<double>(s);
    const int parts = s.reals == 2 && !op.split ? 2 : 1;
    const int64_t step = (int64_t)gridDim.x * TG_STATE_BLOCK;
    for (int64_t first = (int64_t)blockIdx.x * TG_STATE_BLOCK; first < s.n; first += step) {
        const int64_t at = first + 2 * (int)threadIdx.x, left = s.n - at;
        const two_reals r = {at, left > 2 ? 2 : left > 0 ? (int)left : 0};
        double g[2], m[2] = {}, v[2] = {}, u[2];
        load_stored<T>(op.grad, op.grad_store, r, g);
        g[0] *= rates.scale;
        g[1] *= rates.scale;
        if (tg_rule_has_m(kernel)) {
            load_moment<T>(op, r, m);
        }
        for (int p = 0; p < 2; p += parts) {
            tg_rule_move(kernel, &op, parts, g + p, m + p, v + p, u + p);
        }
        if (tg_rule_has_m(kernel)) {
            store_moment<T>(rates, op, r, m);
        }
        use_direction<T>(rates, op, r, u);
    }
}

tg_status cuda_rule_step(tg_backend *be, const tg_adam *op) {
    TG_CALL(tg_check_adam(be->ctx, op));
    if (op->n <= 0) {
        return TG_OK;
    }
    if (op->guard && op->counts) {
        TG_CALL(be->ops->count_nonfinite(be, tg_stored(op->dtype, op->grad_store), op->n, op->grad,
                                         op->guard));
    }
    adam_step s = cuda_adam_step(op);
    s.n = op->n * s.reals;
    const unsigned most = BLOCKS * (unsigned)cuda_state_of(be)->processors;
    const unsigned blocks =
        (unsigned)min((s.n + TG_STATE_BLOCK - 1) / TG_STATE_BLOCK, (int64_t)most);
    return with_wide(op->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return launch_alone(be, "rule", rule_kernel<T>, blocks, THREADS, 0, s, *op, op->kernel);
    });
}
