/* Channel MLPs on tensor cores (tile/): kernel shapes, their selection, and code shared by forward
 * and backward.
 *
 * Channels are rounded up to IN and OUT. The hidden layer is computed in chunks of CHUNK channels:
 * a tile's hidden activations exist only in shared memory. 16-bit activations are multiplied in
 * their own format where the hidden layer is one chunk, else they are widened to tf32. */
#ifndef TG_BACKEND_CUDA_NN_MLP_TILE_CUH
#define TG_BACKEND_CUDA_NN_MLP_TILE_CUH

#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/stage.cuh"

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
};

mlp_task mlp_task_of(const tg_mlp *op, int chunk);

template <class F_, int IN_, int CHUNK_, int OUT_> struct mlp_shape {
    using F = F_;
    static constexpr int IN = IN_, CHUNK = CHUNK_, OUT = OUT_;
    static constexpr int BACK_WARPS = F::HALF ? OUT / 8 : 8;
    using W1 = shared_weights<F, CHUNK, IN>;
    using W2 = shared_weights<F, OUT, CHUNK>;
};

static inline int mlp_chunks(const tg_mlp *op, int chunk) {
    return (int)((op->hidden + chunk - 1) / chunk);
}

/* ---- weights of a chunk in shared memory: w1 (CHUNK, IN), scale w2 (OUT, CHUNK), b1 (CHUNK) ----
 */

template <class S, class W2> struct mlp_weights {
    static constexpr size_t BYTES = S::W1::template bytes<8> + W2::template bytes<8> +
                                    S::CHUNK * sizeof(float); /* of a chunk, W2 of 8 warps */
    typename S::W1 w1;
    W2 w2;
    float *b1;

    template <int WARPS>
    __device__ void load(shared_room &room, const mlp_task &t, int chunk, float scale) {
        const int first = chunk * S::CHUNK, left = t.hidden - first;
        w1.template load<WARPS>(room, {1.0f, t.w1 + (int64_t)first * t.in, left, t.in, t.in});
        w2.template load<WARPS>(room, {scale, t.w2 + first, t.out, left, t.hidden});
        b1 = room.take<float>(S::CHUNK);
        for (int j = threadIdx.x; j < S::CHUNK; j += 32 * WARPS) {
            b1[j] = j < left ? t.b1[first + j] : 0.0f;
        }
    }
    /* The same of the chunk loaded that many chunks after this one. */
    __device__ mlp_weights after(int chunks) const {
        mlp_weights w = *this;
        if constexpr (!S::F::HALF) { /* else there is only one */
            const int step = chunks * (int)(BYTES / sizeof(float));
            w.w1.w += step, w.w2.w += step, w.b1 += step;
        }
        return w;
    }
};

/* ---- shared memory of the kernels ---- */

/* Forward keeps w2 in registers in 16-bit formats. */
template <class S> using mlp_result = warp_tile<typename S::F, S::OUT, TILE>;
template <class S, bool HELD> struct forward_w2 { using type = typename S::W2; };
template <class S> struct forward_w2<S, true> {
    using type = held_weights<mlp_result<S>, S::CHUNK>;
};
template <class S> using forward_weights = mlp_weights<S, typename forward_w2<S, S::F::HALF>::type>;

/* With few inputs, two hidden tiles fit, so that warps may be a chunk apart. Otherwise, in tf32,
 * the hidden tile overwrites the input if there is only one chunk. */
template <class S> constexpr bool has_two_tiles = S::IN == 16;
template <class S> constexpr bool may_overlay = !S::F::HALF && !has_two_tiles<S>;

template <class S> size_t mlp_forward_shared(int chunks) {
    const int most = S::IN > S::CHUNK ? S::IN : S::CHUNK;
    const int rows = has_two_tiles<S>                ? S::IN + 2 * S::CHUNK
                     : may_overlay<S> && chunks == 1 ? most
                                                     : S::IN + S::CHUNK;
    return (size_t)chunks * forward_weights<S>::BYTES + tile_bytes<typename S::F>(rows);
}

/* Whether to keep the slopes of act(x) in shared memory when act(x) is computed; worthwhile if they
 * fit. */
template <class S, bool DX, bool DW> constexpr bool keeps_slopes = DX &&DW && (S::CHUNK < S::IN);

template <class S> using backward_weights = mlp_weights<S, typename S::W2>;

/* Number of chunks whose weights a block holds: its own, or all. */
template <class S, bool DX, bool DW> size_t mlp_backward_shared(int chunks) {
    const int rows = S::IN * (keeps_slopes<S, DX, DW> ? 2 : 1) + S::OUT + S::CHUNK * (DW ? 2 : 1);
    return (size_t)(DW ? 1 : chunks) * backward_weights<S>::BYTES + tile_bytes<typename S::F>(rows);
}

/* ---- which kernel ---- */

/* Whether a shape exists for the call; the device may still have too little shared memory. */
bool mlp_tile_supports(const tg_backend *be, const tg_mlp *op);

/* Whether such a call multiplies 16-bit activations in their own format. */
bool mlp_is_half_call(const tg_backend *be, const tg_mlp *op);

/* Calls f(mlp_shape) with the smallest shape for these channels. `dx`: backward computes the
 * gradient of the input, which shapes with few inputs do not support. */
template <class F, class G> auto with_shape_of(const tg_mlp *op, bool dx, G f) {
    const int64_t in = op->in, out = op->out;
    if (in > 64 || out > 64) {
        return out <= 16         ? f(mlp_shape<F, 128, 64, 16>())
               : in <= 16 && !dx ? f(mlp_shape<F, 16, 64, 128>())
                                 : f(mlp_shape<F, 128, 64, 128>());
    }
    return out <= 16          ? f(mlp_shape<F, 64, 64, 16>())
           : in <= 16 && !dx  ? f(mlp_shape<F, 16, 64, 64>())
           : op->hidden <= 32 ? f(mlp_shape<F, 64, 32, 64>())
                              : f(mlp_shape<F, 64, 64, 64>());
}

template <class G> auto with_mlp_shape(const tg_backend *be, const tg_mlp *op, G f) {
    if (!mlp_is_half_call(be, op)) {
        const bool dx = op->backward && op->dx;
        return be->math == TG_MATH_TF32 ? with_shape_of<tf32>(op, dx, f)
                                        : with_shape_of<split_f32>(op, dx, f);
    }
    const bool small = op->in <= 64 && op->out <= 64;
    if (op->x_store == TG_STORE_BF16) {
        return small ? f(mlp_shape<bf16, 64, 32, 64>()) : f(mlp_shape<bf16, 128, 64, 128>());
    }
    return small ? f(mlp_shape<f16, 64, 32, 64>()) : f(mlp_shape<f16, 128, 64, 128>());
}

/* X: storage of x and dx, Y: of the others, if known at compile time. */
template <int X, int Y> __device__ inline void assume_all(mlp_task &t) {
    assume<X>(t.x);
    assume<X>(t.dx);
    assume<Y>(t.y);
    assume<Y>(t.add);
    assume<Y>(t.activated);
    assume<Y>(t.dy);
}

/* f(X, Y) of a call of shape S. Storage formats differ where an MLP is the lifting or the
 * projection: from few f32 channels to 16-bit ones, or the reverse. */
template <class S, class G> tg_status with_known(const mlp_task &t, G f) {
    if constexpr (S::F::HALF) {
        return f(known<S::F::STORE>(), known<S::F::STORE>());
    } else {
        const bool whole = is_whole(t.x) && is_whole(t.dx) && is_whole(t.y) && is_whole(t.add) &&
                           is_whole(t.activated) && is_whole(t.dy);
        const tg_storage x = t.x.store, y = t.y.store;
        if constexpr (S::F::SPLIT) { /* supports f32 storage only */
            return whole ? f(known<TG_STORE_FULL>(), known<TG_STORE_FULL>())
                         : f(known<LOOSE>(), known<LOOSE>());
        } else {
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
    }
}

/* ---- other terms of y ---- */

/* Per row of a result: the factor of y's initial value (add, or y itself), and alpha b2. */
template <class P> struct row_terms {
    float scale[P::MT][2], bias[P::MT][2];

    __device__ void load(const mlp_task &t) {
        for (int i = 0; i < 2 * P::MT; i++) {
            const int row = P::row(i / 2, i % 2);
            const float gate = t.gate && row < t.out ? t.gate[row] : 1.0f;
            scale[i / 2][i % 2] = t.add.data ? gate : t.beta;
            bias[i / 2][i % 2] = row < t.out ? t.alpha * t.b2[row] : 0.0f;
        }
    }
};

template <class P>
__device__ inline void fetch_start(const mlp_task &t, prefetched<P> &start, P &y,
                                   tile_place place) {
    const activation from = t.add.data ? t.add : t.y;
    start.fetch(y, from, t.tiles, place, t.add.data || t.beta != 0.0f);
}

/* y = gate add + beta y + alpha b2, where the first two terms are `start`. Each term is rounded
 * separately, so that all kernels give the same bits. */
template <class P>
__device__ inline void start_y(const mlp_task &t, const row_terms<P> &terms,
                               const prefetched<P> &start, P &y, tile_place place) {
    start.start(y, t.y.store, [&](int m, int h, float v) {
        return __fadd_rn(__fmul_rn(terms.scale[m][h], v), terms.bias[m][h]);
    });
    if (t.add.data && t.beta != 0.0f) {
        prefetched<P> old;
        P more;
        old.fetch(more, t.y, t.tiles, place, true);
        old.start(more, t.y.store, [&](int, int, float v) { return t.beta * v; });
        for (int i = 0; i < P::MT * P::NT * 4; i++) {
            y.acc[i / (P::NT * 4)][i / 4 % P::NT][i % 4] +=
                more.acc[i / (P::NT * 4)][i / 4 % P::NT][i % 4];
        }
    }
}

/* y and activated = gelu(y) to memory. */
template <class P>
__device__ inline void write_result(const mlp_task &t, const P &y, tile_place place) {
    write_tile(y, NULL, t.y, t.tiles, place, [](int, int, float v, float) { return v; });
    if (t.activated.data) {
        write_tile(y, NULL, t.activated, t.tiles, place,
                   [](int, int, float v, float) { return gelu(v); });
    }
}

#endif
