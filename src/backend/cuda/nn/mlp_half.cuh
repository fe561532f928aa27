/* Perceptrons with results stored as halves: how y is made of more than the perceptron. */
#ifndef TG_BACKEND_CUDA_NN_MLP_HALF_CUH
#define TG_BACKEND_CUDA_NN_MLP_HALF_CUH

#include "backend/cuda/nn/mlp_tensor.cuh"
#include "backend/cuda/tile/half_stage.cuh"

/* to = y, or gelu(y). */
template <int STORE, bool ACTIVATED, class P>
__device__ inline void write_y(const mlp_task &t, const P &y, const activation &to,
                               tile_place place) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        each_eight<P>(0, k, t.out, t.tiles, place, [&](int r, int64_t at) {
            half_run run;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float a = y.at(0, k, r, 2 * j), b = y.at(0, k, r, 2 * j + 1);
                run.word[j] = ACTIVATED ? to_word<STORE>(gelu(a), gelu(b)) : to_word<STORE>(a, b);
            }
            store_eight(to, at, run);
        });
    }
}

/* What a row of y is made of besides the perceptron. */
struct row_terms {
    float scale[1][2], bias[2]; /* of what y starts from: add, or y itself; alpha b2 */
};

template <class P> __device__ inline row_terms row_terms_of(const mlp_task &t) {
    row_terms terms;
    for (int k = 0; k < 2; k++) {
        const int row = P::row(0, k);
        const float gate = t.gate && row < t.out ? t.gate[row] : 1.0f;
        terms.scale[0][k] = t.add.data ? gate : t.beta;
        terms.bias[k] = row < t.out ? t.alpha * t.b2[row] : 0.0f;
    }
    return terms;
}

template <class P> __device__ inline void add_bias(P &y, const float (&bias)[2]) {
    for (int n = 0; n < P::NT; n++) {
        for (int i = 0; i < 4; i++) {
            y.acc[0][n][i] += bias[i / 2];
        }
    }
}

/* What y starts from is asked for. */
template <class P>
__device__ inline void fetch_start(const mlp_task &t, eight_of<P> &start, tile_place place) {
    const activation from = t.add.data ? t.add : t.y;
    if (t.add.data || t.beta != 0.0f) {
        fetch_eight(start, from, t.tiles, place);
    }
}

/* y = gate add + beta y + alpha b2, the first of these being `start`. */
template <int STORE, class P>
__device__ inline void start_y(const mlp_task &t, const row_terms &terms, const eight_of<P> &start,
                               P &y, tile_place place) {
    if (t.add.data || t.beta != 0.0f) {
        start_from_eight<STORE>(y, terms.scale, start);
    } else {
        y.clear();
    }
    add_bias(y, terms.bias);
    if (t.add.data && t.beta != 0.0f) {
        const float beta[1][2] = {{t.beta, t.beta}};
        eight_of<P> old;
        P more;
        fetch_eight(old, t.y, t.tiles, place);
        start_from_eight<STORE>(more, beta, old);
        for (int n = 0; n < P::NT; n++) {
            for (int i = 0; i < 4; i++) {
                y.acc[0][n][i] += more.acc[0][n][i];
            }
        }
    }
}

template <int STORE, class P>
__device__ inline void write_result(const mlp_task &t, const P &y, tile_place place) {
    write_y<STORE, false>(t, y, t.y, place);
    if (t.activated.data) {
        write_y<STORE, true>(t, y, t.activated, place);
    }
}

#endif
