/* Perceptrons on tensor cores: shapes and what both directions share.
 *
 * Channels are rounded up to IN and OUT, the hidden layer is taken in chunks of CHUNK channels: a
 * tile's hidden activations only ever exist in shared memory. */
#ifndef TG_BACKEND_CUDA_NN_MLP_TENSOR_CUH
#define TG_BACKEND_CUDA_NN_MLP_TENSOR_CUH

#include "backend/cuda/tile/mlp_stage.cuh"

struct mlp_task {
    pixel_tiles tiles;
    int in, hidden, out, chunks;
    tg_act act;
    bool through;
    const float *w1, *b1, *w2, *b2, *gate; /* gate NULL: ones */
    float alpha, beta;
    activation x, y, add, activated, dy, dx;
    double *db1, *db2; /* partial sums (parts, chunks CHUNK), (parts, OUT) */
    float *dw1, *dw2;  /* likewise (parts, chunks CHUNK, IN), (parts, OUT, chunks CHUNK) */
    double *wide_dw1, *wide_dw2; /* the same where there are few inputs, or one output */
};

template <int IN_, int CHUNK_, int OUT_> struct mlp_shape {
    static constexpr int IN = IN_, CHUNK = CHUNK_, OUT = OUT_;
    /* numbers that the weights of a chunk take in shared memory */
    static constexpr int W1 = CHUNK * weight_ld(IN), W2 = OUT * weight_ld(CHUNK);
    static constexpr int per_chunk = W1 + W2 + CHUNK; /* and b1 */
};

/* Calls f(mlp_shape) with the smallest shape there is for these channels; `dx`: backward needs the
 * gradient of the input, for which no shape with few inputs is made. */
template <class F> auto with_mlp_shape(const tg_mlp *op, bool dx, F f) {
    const int64_t in = op->in, out = op->out;
    if (in > 64 || out > 64) {
        return out <= 16         ? f(mlp_shape<128, 64, 16>())
               : in <= 16 && !dx ? f(mlp_shape<16, 64, 128>())
                                 : f(mlp_shape<128, 64, 128>());
    }
    return out <= 16          ? f(mlp_shape<64, 64, 16>())
           : in <= 16 && !dx  ? f(mlp_shape<16, 64, 64>())
           : op->hidden <= 32 ? f(mlp_shape<64, 32, 64>())
                              : f(mlp_shape<64, 64, 64>());
}

static inline int mlp_chunks(const tg_mlp *op, int chunk) {
    return (int)((op->hidden + chunk - 1) / chunk);
}

/* Weights and bias of chunk `c` to shared memory: w1 (CHUNK, IN), scale w2 (OUT, CHUNK), b1
 * (CHUNK). */
template <class S>
__device__ inline void load_chunk(const mlp_task &t, int c, float scale, float *to) {
    const int first = c * S::CHUNK, left = t.hidden - first;
    const int some = left < S::CHUNK ? left : S::CHUNK;
    load_weights<S::CHUNK, S::IN>(to, 1.0f, t.w1 + (int64_t)first * t.in, some, t.in, t.in);
    load_weights<S::OUT, S::CHUNK>(to + S::W1, scale, t.w2 + first, t.out, some, t.hidden);
    for (int j = threadIdx.x; j < S::CHUNK; j += TENSOR_THREADS) {
        to[S::W1 + S::W2 + j] = j < some ? t.b1[first + j] : 0.0f;
    }
}

mlp_task mlp_task_of(const tg_mlp *op, int chunk);

/* X: what is known of x and dx, Y: of the others. */
template <int X, int Y> __device__ inline void settle_all(mlp_task &t) {
    settle<X>(t.x);
    settle<X>(t.dx);
    settle<Y>(t.y);
    settle<Y>(t.add);
    settle<Y>(t.activated);
    settle<Y>(t.dy);
}

/* f(X, Y) of a call of shape S. Storages differ where a perceptron leads into the network or out of
 * it: from few full numbers to halves, or the other way round. */
template <class S, class F> tg_status with_known(const mlp_task &t, F f) {
    const bool whole = is_whole(t.x) && is_whole(t.dx) && is_whole(t.y) && is_whole(t.add) &&
                       is_whole(t.activated) && is_whole(t.dy);
    const tg_storage x = t.x.store, y = t.y.store;
    if (x == y) {
        return with_known(x, whole, [&](auto both) { return f(both, both); });
    }
    if constexpr (S::IN == 16) {
        if (x == TG_STORE_FULL) {
            return with_known(y, whole, [&](auto of_y) {
                using Y = decltype(of_y);
                return f(known<(Y::value == LOOSE ? LOOSE : (int)TG_STORE_FULL)>(), of_y);
            });
        }
    }
    return f(known<LOOSE>(), known<LOOSE>());
}

/* Channels as the partial sums have them: rounded up. */
struct mlp_sizes {
    int in, hidden, out;
};

/* The partial sums of `parts` blocks: laid into the workspace, and added to the gradients. */
void mlp_lay_out(const tg_mlp *op, int64_t parts, const mlp_sizes &size, mlp_task *t);
tg_status mlp_fold(tg_backend *be, const tg_mlp *op, const mlp_task &t, int parts,
                   const mlp_sizes &size);

/* Calls on halves that are multiplied as they are (mlp_half.cu); others on halves are widened.
 */
bool mlp_halves_takes(const tg_backend *be, const tg_mlp *op, bool backward);
tg_status mlp_halves_forward(tg_backend *be, const tg_mlp *op);
tg_status mlp_halves_backward(tg_backend *be, const tg_mlp *op);

/* Calls from few full channels to halves (mlp_lift_half.cu). */
bool mlp_lift_halves_takes(const tg_backend *be, const tg_mlp *op, bool backward);
tg_status mlp_lift_halves_forward(tg_backend *be, const tg_mlp *op);
tg_status mlp_lift_halves_backward(tg_backend *be, const tg_mlp *op);
size_t mlp_lift_halves_workspace(const tg_backend *be, const tg_mlp *op);

/* Whether there is a shape for the call at all; the device may have too little shared memory. */
bool mlp_tensor_takes(const tg_backend *be, const tg_mlp *op);

#endif
