/* Perceptrons on tensor cores, backward. For every tile the hidden layer is made again,
 *   p = w1 act(x) + b1,  dp = (w2^T dy) gelu'(p),
 * and gives the gradients of the weights, summed in registers over all tiles of a block,
 *   dw2 += alpha dy gelu(p)^T,  dw1 += alpha dp act(x)^T,  db2 += alpha dy,  db1 += alpha dp,
 * and that of the input, dx = (beta dx + alpha w1^T dp) [act'(x)].
 *
 * A hidden layer of one chunk does both in one kernel. With several, a first kernel has blocks for
 * each chunk that sum the gradients of its weights, and a second one goes through all chunks of a
 * tile for dx: the first leaves before dx is written, which may be x. */
#include "backend/cuda/nn/mlp_tensor.cuh"

/* Whether the slopes of act(x) are kept in shared memory from when it is made, which pays where
 * there is room for them. */
template <class S, bool DX, bool DW> constexpr bool keeps_slopes = DX &&DW &&S::CHUNK < S::IN;

/* Chunks whose weights a block holds: its own, or all. */
template <class S, bool DX, bool DW> static size_t backward_shared(int chunks) {
    const int rows = S::IN * (keeps_slopes<S, DX, DW> ? 2 : 1) + S::OUT + S::CHUNK * (DW ? 2 : 1);
    return sizeof(float) * (size_t)((DW ? 1 : chunks) * S::per_chunk + rows * TILE_LD);
}

/* p becomes gelu'(p + b1); h, if there is room for it, gelu(p + b1). */
template <int CHUNK, bool KEEPS>
static __device__ inline void hidden_slopes(split<CHUNK, TILE> &p, const float *b1, float *h) {
    using P = split<CHUNK, TILE>;
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
        const int m = i / 2, row = P::row(m, i % 2);
        const float bias = b1[row];
#pragma unroll
        for (int r = 0; r < P::RUNS; r++) {
            float value[P::RUN];
#pragma unroll
            for (int e = 0; e < P::RUN; e++) {
                float &at = p.at(m, i % 2, r, e);
                at = gelu_slope(at + bias, &value[e]);
                value[e] = to_tf32(value[e]);
            }
            if (KEEPS) {
                put_run(h + row * TILE_LD + P::pixel(r), value);
            }
        }
    }
}

/* dh = slope dp to shared memory, its sums to `sums` of the thread's rows. */
template <int CHUNK>
static __device__ inline void put_hidden_gradient(const split<CHUNK, TILE> &slope,
                                                  const split<CHUNK, TILE> &dp, float *dh,
                                                  double (&sums)[split<CHUNK, TILE>::MT][2]) {
    using P = split<CHUNK, TILE>;
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
        const int m = i / 2, h = i % 2;
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < P::RUNS; r++) {
            float v[P::RUN];
#pragma unroll
            for (int e = 0; e < P::RUN; e++) {
                const float product = slope.at(m, h, r, e) * dp.at(m, h, r, e);
                sum += product;
                v[e] = to_tf32(product);
            }
            put_run(dh + P::row(m, h) * TILE_LD + P::pixel(r), v);
        }
        sums[m][h] += (double)sum;
    }
}

/* to (CHUNK) = sums of the rows of a product, from those of the threads; room: shared memory. */
template <int CHUNK>
static __device__ inline void store_hidden_sums(const double (&sums)[split<CHUNK, TILE>::MT][2],
                                                double *room, double *to) {
    using P = split<CHUNK, TILE>;
    const int warp = threadIdx.x / 32;
    __syncthreads(); /* nobody needs what lay there */
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
        double sum = sums[i / 2][i % 2];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (threadIdx.x % 4 == 0) {
            room[warp % P::across * CHUNK + P::row(i / 2, i % 2)] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < CHUNK) {
        double sum = 0.0;
        for (int w = 0; w < P::across; w++) {
            sum += room[w * CHUNK + threadIdx.x];
        }
        to[threadIdx.x] = sum;
    }
}

/* dx = alpha p times the slopes in shared memory; slopes NULL: ones. */
template <int M>
static __device__ inline void write_input(const mlp_task &t, const split<M, TILE> &p,
                                          const float *slopes, tile_place place) {
    using S = split<M, TILE>;
#pragma unroll
    for (int i = 0; i < 2 * S::MT; i++) {
        const int m = i / 2, h = i % 2;
        each_run<M>(m, h, t.dx.channels, t.tiles, place, [&](int r, int64_t at, int64_t left) {
            pixel_run<S::RUN> run;
            for (int e = 0; e < S::RUN; e++) {
                const int from = S::row(m, h) * TILE_LD + S::pixel(r) + e;
                run.v[e] = t.alpha * p.at(m, h, r, e) * (slopes ? slopes[from] : 1.0f);
            }
            store_pixels(t.dx, at, left, run);
        });
    }
}

/* DW: blocks are (part, chunk), chunks next to each other. */
template <class S, bool DX, bool DW, int X, int Y>
static __global__ void __launch_bounds__(TENSOR_THREADS, S::IN + S::OUT > 192 ? 1 : 2)
    mlp_backward(mlp_task t) {
    constexpr int IN = S::IN, CHUNK = S::CHUNK, OUT = S::OUT;
    settle_all<X, Y>(t);
    const int chunk = DW ? blockIdx.x % t.chunks : 0, held = DW ? 1 : t.chunks;
    const int part = DW ? blockIdx.x / t.chunks : blockIdx.x;
    const int parts = DW ? gridDim.x / t.chunks : gridDim.x;
    const tg_act through = t.through ? t.act : TG_ACT_NONE;
    float *weights = dynamic_shared(), *u = weights + held * S::per_chunk;
    float *d = u + IN * TILE_LD, *dh = d + OUT * TILE_LD, *h = dh + CHUNK * TILE_LD;
    constexpr bool KEEPS = keeps_slopes<S, DX, DW>;
    float *slopes = KEEPS && through != TG_ACT_NONE ? h + CHUNK * TILE_LD : NULL;
    tile_share<IN> x;
    tile_share<OUT> dy;
    split<OUT, DW ? CHUNK : TILE> dw2; /* not used without DW */
    split<CHUNK, DW ? IN : TILE> dw1;
    row_sums<OUT> db2;
    double db1[split<CHUNK, TILE>::MT][2] = {};
    for (int c = 0; c < held; c++) {
        load_chunk<S>(t, chunk + c, 1.0f, weights + c * S::per_chunk);
    }
    if (DW) {
        dw1.clear();
        dw2.clear();
        db2.clear();
    }
    x.fetch(t.x, t.tiles, place_of(t.tiles, part));
    dy.fetch(t.dy, t.tiles, place_of(t.tiles, part));
    for (int tile = part; tile < t.tiles.count; tile += parts) {
        const tile_place place = place_of(t.tiles, tile);
        split<DX ? IN : 16, TILE> dx;
        __syncthreads(); /* the tile before is done with shared memory */
        x.put(t.x.store, t.act, u, slopes);
        dy.put(t.dy.store, TG_ACT_NONE, d);
        if (DW) {
            db2.add(dy, t.dy.store);
        }
        __syncthreads();
        if (tile + parts < t.tiles.count) {
            x.fetch(t.x, t.tiles, place_of(t.tiles, tile + parts));
            dy.fetch(t.dy, t.tiles, place_of(t.tiles, tile + parts));
        }
        if (DX && !DW) {
            start_from(dx, t.beta / t.alpha, t.dx, t.tiles, place);
        }
        for (int c = 0; c < held; c++) {
            const float *w1 = weights + c * S::per_chunk, *w2 = w1 + S::W1;
            split<CHUNK, TILE> slope, dp;
            slope.clear();
            dp.clear();
            add_product<CHUNK, IN>(slope, w1, u);
            hidden_slopes<CHUNK, DW>(slope, w2 + S::W2, h);
            add_adjoint_product<CHUNK, OUT>(dp, w2, d);
            if (c > 0) {
                __syncthreads(); /* all are done with the dh before */
            }
            put_hidden_gradient<CHUNK>(slope, dp, dh, db1);
            __syncthreads();
            if constexpr (DX && !DW) {
                add_adjoint_product<IN, CHUNK>(dx, w1, dh);
            }
        }
        if constexpr (DX && DW) {
            start_from(dx, t.beta / t.alpha, t.dx, t.tiles, place);
        }
        if constexpr (DW) {
            add_correlation<OUT, CHUNK>(dw2, d, h);
            add_correlation<CHUNK, IN>(dw1, dh, u);
        }
        if constexpr (DX && DW) {
            add_adjoint_product<IN, CHUNK>(dx, weights, dh);
        }
        if constexpr (KEEPS) {
            write_input<IN>(t, dx, slopes, place);
        } else if constexpr (DX) {
            write_input_gradient(dx, through, t.alpha, t.x, t.dx, t.tiles, place);
        }
    }
    if constexpr (DW) {
        const int hidden = t.chunks * CHUNK, first = chunk * CHUNK;
        store_partial(dw1, t.dw1 + ((int64_t)part * hidden + first) * IN, IN);
        store_partial(dw2, t.dw2 + (int64_t)part * OUT * hidden + first, hidden);
        store_hidden_sums<CHUNK>(db1, reinterpret_cast<double *>(u),
                                 t.db1 + (int64_t)part * hidden + first);
        if (chunk == 0) {
            db2.store(t.db2 + (int64_t)part * OUT);
        }
    }
}

/* ---- host ---- */

/* Parts that sum the gradients of weights, `blocks` being how many blocks there may be. */
static int parts_of(int64_t tiles, int blocks, int chunks) {
    const int parts = blocks / chunks < 1 ? 1 : blocks / chunks;
    return tiles < parts ? (int)tiles : parts;
}

template <class S> static size_t part_bytes(int chunks) {
    const size_t hidden = (size_t)(chunks * S::CHUNK);
    return (hidden + S::OUT) * sizeof(double) + hidden * (S::IN + S::OUT) * sizeof(float);
}

/* Whether one kernel makes all gradients. */
template <class S> static bool is_fused(const tg_mlp *op) {
    return S::IN == S::OUT && mlp_chunks(op, S::CHUNK) == 1 && op->dx;
}

bool mlp_tensor_backward_takes(const tg_backend *be, const tg_mlp *op) {
    return mlp_tensor_takes(be, op) && with_mlp_shape(op, op->dx != NULL, [&](auto shape) {
               using S = decltype(shape);
               const int chunks = mlp_chunks(op, S::CHUNK);
               if (is_fused<S>(op)) {
                   return tensor_fits(be, backward_shared<S, true, true>(chunks));
               }
               return tensor_fits(be, backward_shared<S, false, true>(chunks)) &&
                      (!op->dx || tensor_fits(be, backward_shared<S, true, false>(chunks)));
           });
}

/* Enough whether or not dx is wanted. */
size_t mlp_tensor_workspace(const tg_backend *be, const tg_mlp *op) {
    if (!mlp_tensor_takes(be, op)) {
        return 0;
    }
    const int64_t tiles = pixel_tiles_of(op->batch, op->pixels).count;
    const int blocks = cuda_state_of(be)->processors * TENSOR_BLOCKS;
    size_t most = mlp_lift_halves_workspace(be, op);
    for (int dx = 0; dx < 2; dx++) {
        const size_t bytes = with_mlp_shape(op, dx == 1, [&](auto shape) {
            using S = decltype(shape);
            const int chunks = mlp_chunks(op, S::CHUNK);
            return (size_t)parts_of(tiles, blocks, chunks) * part_bytes<S>(chunks);
        });
        most = bytes > most ? bytes : most;
    }
    return most;
}

void mlp_lay_out(const tg_mlp *op, int64_t parts, const mlp_sizes &size, mlp_task *t) {
    t->db1 = static_cast<double *>(op->workspace);
    t->db2 = t->db1 + parts * size.hidden;
    t->dw1 = reinterpret_cast<float *>(t->db2 + parts * size.out);
    t->dw2 = t->dw1 + parts * size.hidden * size.in;
}

tg_status mlp_fold(tg_backend *be, const tg_mlp *op, const mlp_task &t, int parts,
                   const mlp_sizes &size) {
    const int in = size.in, hidden = size.hidden, out = size.out;
    fold_jobs jobs = {};
    jobs.job[0] = {t.dw1, hidden * in, t.hidden, t.in, in, false, static_cast<float *>(op->dw1)};
    jobs.job[1] = {
        t.dw2, out * hidden, t.out, t.hidden, hidden, false, static_cast<float *>(op->dw2)};
    jobs.job[2] = {t.db1, hidden, 1, t.hidden, hidden, true, static_cast<float *>(op->db1)};
    jobs.job[3] = {t.db2, out, 1, t.out, out, true, static_cast<float *>(op->db2)};
    jobs.jobs = 4;
    jobs.parts = parts;
    for (int i = 0; i < 4; i++) {
        jobs.scale[i] = op->alpha;
    }
    return fold_partials(be, jobs);
}

template <class S, bool DX>
static tg_status sum_weights(tg_backend *be, const tg_mlp *op, mlp_task t) {
    const size_t shared = backward_shared<S, DX, true>(t.chunks);
    return with_known<S>(t, [&](auto of_x, auto of_y) {
        const auto kernel = mlp_backward<S, DX, true, decltype(of_x)::value, decltype(of_y)::value>;
        int blocks = 0;
        tg_status status = tensor_blocks(be, (const void *)kernel, shared, &blocks);
        if (status == TG_OK) {
            const int parts = parts_of(t.tiles.count, blocks, t.chunks);
            const mlp_sizes size = {S::IN, t.chunks * S::CHUNK, S::OUT};
            mlp_lay_out(op, parts, size, &t);
            kernel<<<parts * t.chunks, TENSOR_THREADS, shared, cuda_stream(be)>>>(t);
            status = CUDA_LAUNCHED(be, "a perceptron backwards");
            status = status == TG_OK ? mlp_fold(be, op, t, parts, size) : status;
        }
        return status;
    });
}

template <class S> static tg_status write_dx(tg_backend *be, const mlp_task &t) {
    const size_t shared = backward_shared<S, true, false>(t.chunks);
    return with_known<S>(t, [&](auto of_x, auto of_y) {
        const auto kernel =
            mlp_backward<S, true, false, decltype(of_x)::value, decltype(of_y)::value>;
        int blocks = 0;
        tg_status status = tensor_blocks(be, (const void *)kernel, shared, &blocks);
        if (status == TG_OK) {
            blocks = blocks < t.tiles.count ? blocks : t.tiles.count;
            kernel<<<blocks, TENSOR_THREADS, shared, cuda_stream(be)>>>(t);
            status = CUDA_LAUNCHED(be, "a perceptron backwards");
        }
        return status;
    });
}

tg_status mlp_tensor_backward(tg_backend *be, const tg_mlp *op) {
    if (mlp_halves_takes(be, op, true)) {
        return mlp_halves_backward(be, op);
    }
    if (mlp_lift_halves_takes(be, op, true)) {
        return mlp_lift_halves_backward(be, op);
    }
    return with_mlp_shape(op, op->dx != NULL, [&](auto shape) {
        using S = decltype(shape);
        const mlp_task t = mlp_task_of(op, S::CHUNK);
        if constexpr (S::IN == S::OUT) {
            if (is_fused<S>(op)) {
                return sum_weights<S, true>(be, op, t);
            }
        }
        tg_status status = sum_weights<S, false>(be, op, t);
        if constexpr (S::IN > 16 && S::CHUNK > 32) { /* else it is there, or not wanted */
            status = status == TG_OK && op->dx ? write_dx<S>(be, t) : status;
        }
        return status;
    });
}
