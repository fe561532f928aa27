/* Channel MLPs on tensor cores, backward. For every tile the hidden layer is recomputed,
 *   p = w1 act(x) + b1,  dp = (w2^T dy) gelu'(p),
 * which gives the gradients of the weights, summed in registers over all tiles of a block,
 *   dw2 += alpha dy gelu(p)^T,  dw1 += alpha dp act(x)^T,  db2 += alpha dy,  db1 += alpha dp,
 * and the gradient of the input, dx = (beta dx + alpha w1^T dp) [act'(x)].
 *
 * With one hidden chunk, one kernel does both. With several, blocks of a first kernel sum the
 * gradients of one chunk's weights, and a second kernel loops over all chunks of a tile for dx. The
 * first kernel ends before dx, which may be x, is written. */
#include "backend/cuda/nn/mlp_tile.cuh"

/* p becomes gelu'(p + b1); h, if there is an array for it, gelu(p + b1). */
template <bool KEEPS, class P>
static __device__ inline void hidden_slopes(P &p, const float *b1, typename P::F::number *h) {
    float bias[P::MT][2];
    for (int i = 0; i < 2 * P::MT; i++) {
        bias[i / 2][i % 2] = b1[P::row(i / 2, i % 2)];
    }
    const auto slope_of = [&](int m, int k, float &v) {
        float value;
        v = gelu_slope(v + bias[m][k], &value);
        return value;
    };
    if constexpr (KEEPS) {
        put_tile(p, h, slope_of);
    } else {
        for (int i = 0; i < P::MT * P::NT * 4; i++) {
            const int m = i / (P::NT * 4), n = i / 4 % P::NT;
            slope_of(m, i % 4 / 2, p.acc[m][n][i % 4]);
        }
    }
}

/* dh = slope dp to shared memory, its sums to `sums` of the thread's rows. */
template <class P>
static __device__ inline void put_hidden_gradient(const P &slope, const P &dp,
                                                  typename P::F::number *dh,
                                                  double (&sums)[P::MT][2]) {
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
        const int m = i / 2, h = i % 2;
        float sum = 0.0f;
#pragma unroll
        for (int q = 0; q < P::PIECES; q++) {
            float v[P::PIECE];
#pragma unroll
            for (int e = 0; e < P::PIECE; e++) {
                v[e] = slope.piece(m, h, q, e) * dp.piece(m, h, q, e);
            }
            if constexpr (P::F::HALF) {
                sum += v[0] + v[1];
            } else {
                for (int e = 0; e < P::PIECE; e++) {
                    sum += v[e];
                }
            }
            put_piece<typename P::F>(dh + P::row(m, h) * P::F::LD + P::piece_column(q), v);
        }
        sums[m][h] += (double)sum;
    }
}

/* DW: blocks are (part, chunk), chunks next to each other. */
template <class S, bool DX, bool DW, int X, int Y>
static __global__ void __launch_bounds__(32 * S::BACK_WARPS, S::IN + S::OUT > 192 ? 1 : 2)
    mlp_backward(mlp_task t) {
    pdl_wait_and_launch_dependents();
    using F = typename S::F;
    using number = typename F::number;
    constexpr int IN = S::IN, CHUNK = S::CHUNK, OUT = S::OUT, WARPS = S::BACK_WARPS;
    using H = warp_tile<F, CHUNK, TILE, WARPS>;
    using D = warp_tile<F, DX ? IN : OUT, TILE, WARPS>;
    constexpr bool KEEPS = keeps_slopes<S, DX, DW>;
    assume_all<X, Y>(t);
    const int chunk = DW ? blockIdx.x % t.chunks : 0, held = DW ? 1 : t.chunks;
    const int part = DW ? blockIdx.x / t.chunks : blockIdx.x;
    const int parts = DW ? gridDim.x / t.chunks : gridDim.x;
    const tg_act through = t.through ? t.act : TG_ACT_NONE;
    const float ratio = t.beta / t.alpha;
    const auto scaled = [&](int, int, float v) { return ratio * v; };
    shared_room room = dynamic_shared();
    backward_weights<S> weights, later;
    weights.template load<WARPS>(room, t, chunk, 1.0f);
    for (int c = 1; c < held; c++) {
        later.template load<WARPS>(room, t, c, 1.0f);
    }
    number *u = room.take<number>(IN * F::LD), *d = room.take<number>(OUT * F::LD);
    number *dh = room.take<number>(CHUNK * F::LD), *h = room.take<number>(CHUNK * F::LD);
    number *slopes = KEEPS && through != TG_ACT_NONE ? room.take<number>(IN * F::LD) : NULL;
    tile_share<F, IN, 32 * WARPS> x;
    tile_share<F, OUT, 32 * WARPS> dy;
    warp_tile<F, OUT, DW ? CHUNK : (int)TILE, WARPS> dw2; /* not used without DW */
    warp_tile<F, CHUNK, DW ? IN : (int)TILE, WARPS> dw1;
    row_sums<F, OUT, 32 * WARPS> db2;
    double db1[H::MT][2] = {};
    if (DW) {
        dw1.clear();
        dw2.clear();
        db2.clear();
    }
    x.fetch(t.x, t.tiles, place_of(t.tiles, part));
    dy.fetch(t.dy, t.tiles, place_of(t.tiles, part));
    for (int tile = part; tile < t.tiles.count; tile += parts) {
        const tile_place place = place_of(t.tiles, tile);
        prefetched<D> old;
        D dx;
        if (DX && F::HALF) { /* has the registers for it */
            old.fetch(dx, t.dx, t.tiles, place, ratio != 0.0f);
        }
        __syncthreads(); /* shared memory of the previous tile is no longer read */
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
            old.fetch(dx, t.dx, t.tiles, place, ratio != 0.0f);
            if (ratio != 1.0f) { /* else it is loaded later */
                old.start(dx, t.dx.store, scaled);
            }
        }
        for (int c = 0; c < held; c++) {
            const backward_weights<S> w = weights.after(c);
            H slope, dp;
            slope.clear();
            dp.clear();
            add_product(slope, w.w1, u);
            hidden_slopes<DW>(slope, w.b1, h);
            add_adjoint_product(dp, w.w2, d);
            if (c > 0) {
                __syncthreads(); /* the previous dh is no longer read */
            }
            put_hidden_gradient(slope, dp, dh, db1);
            __syncthreads();
            if constexpr (DX && !DW) {
                add_adjoint_product(dx, w.w1, dh);
            }
        }
        if (DX && DW && !F::HALF) {
            old.fetch(dx, t.dx, t.tiles, place, ratio != 0.0f);
        }
        if constexpr (DW) {
            add_correlation(dw2, d, h);
            add_correlation(dw1, dh, u);
        }
        if constexpr (DX && DW) {
            old.start(dx, t.dx.store, scaled);
            add_adjoint_product(dx, weights.w1, dh);
        }
        if constexpr (KEEPS) {
            write_tile(dx, slopes, t.dx, t.tiles, place,
                       [&](int, int, float v, float slope) { return t.alpha * v * slope; });
        } else if constexpr (DX) {
            write_input_gradient(dx, through, t.alpha, t.x, t.dx, t.tiles, place);
        }
    }
    if constexpr (DW) {
        const int hidden = t.chunks * CHUNK, first = chunk * CHUNK;
        store_partial(dw1, t.dw1 + ((int64_t)part * hidden + first) * IN, IN);
        store_partial(dw2, t.dw2 + (int64_t)part * OUT * hidden + first, hidden);
        store_row_sums<H>(db1, reinterpret_cast<double *>(u),
                          t.db1 + (int64_t)part * hidden + first);
        if (chunk == 0) {
            db2.store(t.db2 + (int64_t)part * OUT);
        }
    }
}

/* ---- partial sums ---- */

/* Channels of the partial sums, rounded up. Sums of biases are f64. */
struct mlp_sizes {
    int in, hidden, out;
};

/* Bytes of one part. */
static size_t part_bytes(const mlp_sizes &size) {
    const size_t in = (size_t)size.in, hidden = (size_t)size.hidden, out = (size_t)size.out;
    return (hidden + out) * sizeof(double) + hidden * (in + out) * sizeof(float);
}

/* Lays all parts into the workspace. */
static void lay_out(void *workspace, int64_t parts, const mlp_sizes &size, mlp_task *t) {
    t->db1 = static_cast<double *>(workspace);
    t->db2 = t->db1 + parts * size.hidden;
    t->dw1 = reinterpret_cast<float *>(t->db2 + parts * size.out);
    t->dw2 = t->dw1 + parts * size.hidden * size.in;
}

/* Adds them to the gradients. */
static tg_status fold(tg_backend *be, const tg_mlp *op, const mlp_task &t, int parts,
                      const mlp_sizes &size) {
    const int in = size.in, hidden = size.hidden, out = size.out;
    const double scale = op->alpha;
    const fold_jobs jobs = {
        {{t.dw1, hidden * in, t.hidden, t.in, in, false, static_cast<float *>(op->dw1)},
         {t.dw2, out * hidden, t.out, t.hidden, hidden, false, static_cast<float *>(op->dw2)},
         {t.db1, hidden, 1, t.hidden, hidden, true, static_cast<float *>(op->db1)},
         {t.db2, out, 1, t.out, out, true, static_cast<float *>(op->db2)}},
        4,
        parts,
        {scale, scale, scale, scale}};
    return fold_partials(be, jobs);
}

/* ---- host ---- */

/* Number of parts that sum the gradients of weights, for at most `blocks` blocks. */
static int parts_of(int64_t tiles, int blocks, int chunks) {
    const int parts = blocks / chunks < 1 ? 1 : blocks / chunks;
    return tiles < parts ? (int)tiles : parts;
}

template <class S> static mlp_sizes sizes_of(int chunks) {
    return {S::IN, chunks * S::CHUNK, S::OUT};
}

/* Whether one kernel computes all gradients. */
template <class S> static bool is_fused(const tg_mlp *op) {
    return S::IN == S::OUT && mlp_chunks(op, S::CHUNK) == 1 && op->dx;
}

bool mlp_tile_backward_supports(const tg_backend *be, const tg_mlp *op) {
    return mlp_tile_supports(be, op) && with_mlp_shape(be, op, [&](auto shape) {
               using S = decltype(shape);
               const int chunks = mlp_chunks(op, S::CHUNK);
               if (is_fused<S>(op)) {
                   return tensor_fits(be, mlp_backward_shared<S, true, true>(chunks));
               }
               return tensor_fits(be, mlp_backward_shared<S, false, true>(chunks)) &&
                      (!op->dx || tensor_fits(be, mlp_backward_shared<S, true, false>(chunks)));
           });
}

/* Sufficient with or without dx, and for 16-bit formats, whose parts are not larger. */
size_t mlp_tile_workspace(const tg_backend *be, const tg_mlp *op) {
    if (!mlp_tile_supports(be, op)) {
        return 0;
    }
    const int64_t tiles = pixel_tiles_of(op->batch, op->pixels).count;
    const int blocks = cuda_state_of(be)->processors * TENSOR_BLOCKS;
    size_t most = 0;
    for (int dx = 0; dx < 2; dx++) {
        const size_t bytes = with_shape_of<tf32>(op, dx == 1, [&](auto shape) {
            using S = decltype(shape);
            const int chunks = mlp_chunks(op, S::CHUNK);
            return (size_t)parts_of(tiles, blocks, chunks) * part_bytes(sizes_of<S>(chunks));
        });
        most = tg_max_size(most, bytes);
    }
    return most;
}

template <class S, bool DX>
static tg_status sum_weights(tg_backend *be, const tg_mlp *op, mlp_task t) {
    constexpr int THREADS = 32 * S::BACK_WARPS;
    const size_t shared = mlp_backward_shared<S, DX, true>(t.chunks);
    const mlp_sizes size = sizes_of<S>(t.chunks);
    return with_known<S>(t, [&](auto of_x, auto of_y) {
        const auto kernel = mlp_backward<S, DX, true, decltype(of_x)::value, decltype(of_y)::value>;
        int blocks = 0;
        TG_CALL(tensor_blocks(be, (const void *)kernel, shared, THREADS, &blocks));
        const int parts = parts_of(t.tiles.count, blocks, t.chunks);
        lay_out(op->workspace, parts, size, &t);
        TG_CALL(launch_alone(be, "an MLP backwards", kernel, parts * t.chunks, THREADS, shared, t));
        return fold(be, op, t, parts, size);
    });
}

template <class S> static tg_status write_dx(tg_backend *be, const mlp_task &t) {
    return with_known<S>(t, [&](auto of_x, auto of_y) {
        return launch_tiles(
            be, mlp_backward<S, true, false, decltype(of_x)::value, decltype(of_y)::value>,
            mlp_backward_shared<S, true, false>(t.chunks), TENSOR_THREADS, t.tiles.count,
            "an MLP backwards", t);
    });
}

tg_status mlp_tile_backward(tg_backend *be, const tg_mlp *op) {
    return with_mlp_shape(be, op, [&](auto shape) {
        using S = decltype(shape);
        const mlp_task t = mlp_task_of(op, S::CHUNK);
        if constexpr (S::IN == S::OUT) {
            if (is_fused<S>(op)) {
                return sum_weights<S, true>(be, op, t);
            }
        }
        TG_CALL((sum_weights<S, false>(be, op, t)));
        if constexpr (S::IN > 16 && S::CHUNK > 32 && !S::F::HALF) { /* else already covered */
            TG_CALL(op->dx ? write_dx<S>(be, t) : TG_OK);
        }
        return TG_OK;
    });
}
