/* Adam with moments of one byte per real (backend/state8.h), in one pass. A warp decodes a block of
 * TG_STATE_BLOCK second moments and their first moments (one block of them, or two if a complex
 * element has one second moment), updates them, and computes the new scales by a warp maximum,
 * which does not depend on order.
 *
 * Bytes are decoded from tables in shared memory, since neighbouring lanes read arbitrary entries,
 * and encoded by arithmetic. This file is compiled without contraction to fused multiply-add, as
 * state8.h requires. */
#include "backend/cuda/optim/adam.cuh"
#include "backend/state8.h"

enum {
    THREADS = 256,
    SMALL_THREADS = 768, /* of the single block that also counts: leaves enough registers */
    GRID = 12,           /* blocks per multiprocessor, 3 of which fit at a time: each has a table */
    BLOCK = TG_STATE_BLOCK,
    WARP = 32,
    REALS = 4,                     /* per pack: one lane, one step */
    STEPS = BLOCK / (WARP * REALS) /* of a block of first moments */
};

template <class G, class W> using byte_arrays = adam_arrays<float, uint8_t, G, W>;

/* One scale for each block of m and v. */
struct byte_scales {
    float *m, *v;
};

/* Decoded values of the bytes at scale 1: m, and the root of v. */
struct byte_values {
    float m[256], root[256];
};

__device__ inline void fill_values(byte_values &values) {
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        values.m[i] = tg_state_m_decode((uint8_t)i, 1.0f);
        values.root[i] = tg_state_value(TG_STATE_V_BITS, i);
    }
    __syncthreads();
}

/* A lane's part of the n elements from `begin` on: N in each step. Unless they are moved as vectors
 * there may be fewer, or none. */
template <int N, bool VECTOR> struct lane_part {
    int64_t begin, n;

    __device__ int64_t element(int step) const {
        return begin + (step * WARP + (int)threadIdx.x % WARP) * N;
    }
    __device__ int count(int step) const {
        const int64_t left = n - element(step);
        return VECTOR || left > N ? N : left > 0 ? (int)left : 0;
    }
};

/* The largest modulus; ignores NaN. */
template <int N> __device__ inline float largest(float most, const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        most = fmaxf(most, fabsf(x[i]));
    }
    return most;
}

/* Writes the scale of a block from the largest moduli of the lanes and returns its inverse.
 * Non-negative floats order like their bits. */
__device__ inline float set_scale(float most, float *scale) {
    most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    if (threadIdx.x % WARP == 0) {
        *scale = most;
    }
    return most > 0.0f ? 1.0f / most : 0.0f;
}

/* Random bits for rounding the reals from number `first` of m (power 62) or v (63) on: C of them
 * that share one draw, as in round_reals, or 1/2 each. */
template <int C>
__device__ inline void read_units(const adam_rates<float> &r, int power, int64_t first,
                                  float (&u)[C]) {
    uint32_t random[C] = {};
    if (r.rounds_state) {
        read_random(r.rng, (1ull << power) + (uint64_t)first, random);
    }
#pragma unroll
    for (int c = 0; c < C; c++) {
        u[c] = r.rounds_state ? tg_state_unit(random[c]) : 0.5f;
    }
}

/* A lane's loads in one step. */
template <int N, class G, class W> struct lane_step {
    pack<G, REALS> grad;
    pack<uint8_t, REALS> m;
    pack<uint8_t, N> v;
    pack<W, REALS> weight;
};

template <int P, bool VECTOR, class G, class W, int N>
__device__ inline lane_step<N, G, W> read_step(const adam_rates<float> &r,
                                               const byte_arrays<G, W> &a,
                                               const lane_part<N, VECTOR> &part, int step) {
    const int64_t element = part.element(step), at = element * P;
    const int count = part.count(step);
    return {load<REALS, VECTOR>(a.grad + at, count * P), load<REALS, VECTOR>(a.m + at, count * P),
            load<N, VECTOR>(a.v + element, count),
            read_weight<REALS, VECTOR>(r, a.weight, at, count * P)};
}

/* One block of m with its weights and directions; leaves the roots of v in `root`. Vector loads of
 * all steps are issued before any is used; scalar ones would take too many registers. */
template <int P, bool VECTOR, class G, class W, int N>
__device__ inline void move_first(const adam_rates<float> &r, const byte_arrays<G, W> &a,
                                  const byte_values &values, const lane_part<N, VECTOR> &part,
                                  float *m_scale, float v_scale, float (&root)[STEPS][N]) {
    const float scale = *m_scale;
    lane_step<N, G, W> in[STEPS];
    float m[STEPS][REALS], most = 0.0f;
#pragma unroll
    for (int k = 0; VECTOR && k < STEPS; k++) {
        in[k] = read_step<P>(r, a, part, k);
    }
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        if (!VECTOR) {
            in[k] = read_step<P>(r, a, part, k);
        }
        float v[N], u[REALS];
#pragma unroll
        for (int c = 0; c < REALS; c++) {
            m[k][c] = scale * values.m[in[k].m.at[c]];
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float before = v_scale * values.root[in[k].v.at[i]];
            v[i] = before * before;
        }
        update_moments<P>(r, in[k].grad, m[k], v, u);
#pragma unroll
        for (int i = 0; i < N; i++) {
            root[k][i] = sqrtf(v[i]);
        }
        most = largest(most, m[k]);
        apply_direction<VECTOR>(r, a, part.element(k) * P, part.count(k) * P, in[k].weight, u);
    }
    const float inverse = set_scale(most, m_scale);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        const int64_t at = part.element(k) * P;
        float by[REALS];
        read_units(r, 62, at, by);
#pragma unroll
        for (int c = 0; c < REALS; c++) {
            in[k].m.at[c] = tg_state_m_encode(m[k][c], inverse, by[c]);
        }
        store<REALS, VECTOR>(a.m + at, in[k].m, part.count(k) * P);
    }
}

/* The elements of one block of v, from `first` on, with P blocks of m, the last of which may not
 * exist. */
template <int P, bool VECTOR, class G, class W>
__device__ inline void move_block(const adam_rates<float> &r, const byte_arrays<G, W> &a,
                                  const byte_scales &scales, const byte_values &values,
                                  int64_t first, int64_t n) {
    constexpr int N = REALS / P;
    float *v_scale = scales.v + first / BLOCK;
    const float scale = *v_scale;
    float root[P][STEPS][N] = {}, most = 0.0f;
#pragma unroll
    for (int p = 0; p < P; p++) {
        const lane_part<N, VECTOR> part = {first + p * (BLOCK / P), n};
        if (p == 0 || VECTOR || part.begin < n) {
            float *m_scale = scales.m + part.begin / (BLOCK / P);
            move_first<P>(r, a, values, part, m_scale, scale, root[p]);
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                most = largest(most, root[p][k]);
            }
        }
    }
    const float inverse = set_scale(most, v_scale);
#pragma unroll
    for (int p = 0; p < P; p++) {
        const lane_part<N, VECTOR> part = {first + p * (BLOCK / P), n};
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            pack<uint8_t, N> byte;
            float by[N];
            read_units(r, 63, part.element(k), by);
#pragma unroll
            for (int i = 0; i < N; i++) {
                byte.at[i] = tg_state_v_encode(root[p][k][i], inverse, by[i]);
            }
            store<N, VECTOR>(a.v + part.element(k), byte, part.count(k));
        }
    }
}

/* A pack of the step is a whole block of v. */
template <int P, class G, class W>
static __global__ void __launch_bounds__(SMALL_THREADS)
    adam_bytes_kernel(adam_step s, byte_arrays<G, W> arrays, byte_scales scales) {
    if (skips_update(s, arrays.grad)) {
        return;
    }
    __shared__ byte_values values;
    fill_values(values);
    const auto rates = read_rates<float>(s);
    const int64_t warps = (int64_t)gridDim.x * (blockDim.x / WARP);
    int64_t block = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    for (; block * BLOCK < s.n; block += warps) {
        if (block < s.packs) {
            move_block<P, true>(rates, arrays, scales, values, block * BLOCK, s.n);
        } else {
            move_block<P, false>(rates, arrays, scales, values, block * BLOCK, s.n);
        }
    }
}

template <int P, class G, class W>
static tg_status run(tg_backend *be, const tg_adam *op, adam_step s) {
    const byte_arrays<G, W> a = {static_cast<const G *>(op->grad), static_cast<uint8_t *>(op->m),
                                 static_cast<uint8_t *>(op->v), static_cast<float *>(op->direction),
                                 static_cast<W *>(op->weight)};
    const int threads = s.counted > 0 ? SMALL_THREADS : THREADS;
    s.n = P == 1 ? op->n * s.reals : op->n;
    s.packs = adam_packs<P>(a, s.n, BLOCK);
    const int64_t lanes = (s.n + BLOCK - 1) / BLOCK * WARP;
    const unsigned most = GRID * (unsigned)cuda_state_of(be)->processors;
    const unsigned blocks = s.counted > 0 ? 1 : min(most, cuda_blocks(be, lanes, threads));
    return launch_alone(be, "adam on bytes", adam_bytes_kernel<P, G, W>, blocks, threads, 0, s, a,
                        byte_scales{op->m_scale, op->v_scale});
}

tg_status cuda_adam_bytes(tg_backend *be, const tg_adam *op, const adam_step &s) {
    const bool by_modulus = s.reals == 2 && !op->split;
    return with_storage(op->grad_store, [&](auto grad_tag) {
        return with_storage(op->weight_store, [&](auto weight_tag) {
            using G = typename decltype(grad_tag)::type;
            using W = typename decltype(weight_tag)::type;
            return by_modulus ? run<2, G, W>(be, op, s) : run<1, G, W>(be, op, s);
        });
    });
}
