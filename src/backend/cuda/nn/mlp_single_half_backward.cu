/* MLPs from 16-bit numbers to one output, backward: one kernel has blocks for each chunk of hidden
 * channels that sum the gradients of its weights; a second one takes all chunks of two tiles for
 * dx, weights streaming through shared memory. */
#include "backend/cuda/nn/mlp_single_half.cuh"

/* dy at a pixel of a tile; 0 where there is none. */
static __device__ inline float fetch_dy(const mlp_task &t, int tile, int pixel_of_tile) {
    const tile_place place = place_of(t.tiles, tile);
    const int64_t pixel = place.pixel + pixel_of_tile;
    return pixel < t.tiles.pixels ? load_one(t.dy, place.sample * t.tiles.pixels + pixel) : 0.0f;
}

/* ---- the weights ---- */

enum { WARPS = 16, THREADS = 32 * WARPS };

template <class F> using hidden_tile = warp_tile<F, CHUNK, TILE, WARPS>;

/* p becomes its gradient w2 dy gelu'(p + b1), written to a tile; at the same time the sums for b1
 * and w2, if wanted. f: dy of the tile. */
template <class P>
static __device__ inline void put_gradient(const P &p, const hidden_rows<P> &rows, const float *f,
                                           uint16_t *tile, double (*db1)[2], double (*dw2)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float of_bias = 0.0f, of_weight = 0.0f;
#pragma unroll
        for (int n = 0; n < P::NT; n++) {
            const float2 dy = *reinterpret_cast<const float2 *>(f + P::column(n));
            float value[2];
            const float a = gelu_slope(p.acc[0][n][2 * h] + rows.bias[h], &value[0]);
            const float b = gelu_slope(p.acc[0][n][2 * h + 1] + rows.bias[h], &value[1]);
            const float back[2] = {rows.weight[h] * dy.x * a, rows.weight[h] * dy.y * b};
            of_bias += back[0] + back[1];
            of_weight += dy.x * value[0] + dy.y * value[1];
            put_piece<typename P::F>(tile + P::row(0, h) * P::F::LD + P::column(n), back);
        }
        if (db1) {
            (*db1)[h] += (double)of_bias;
            (*dw2)[h] += (double)of_weight;
        }
    }
}

template <class F> using held_chunk = held_weights<hidden_tile<F>, CHUNK>;

/* Two tiles of the input and of dy, which take turns, one of the gradient at the hidden layer, and
 * the weights. */
template <class F> constexpr size_t weights_shared() {
    return tile_bytes<F>(3 * CHUNK) + 2 * TILE * sizeof(float) +
           held_chunk<F>::template bytes<WARPS>;
}

/* Blocks are (part, chunk), chunks next to each other. */
template <class F> static __global__ void __launch_bounds__(THREADS, 1) single_weights(mlp_task t) {
    using P = hidden_tile<F>;
    assume<F::STORE>(t.x);
    const int chunk = blockIdx.x % t.chunks, part = blockIdx.x / t.chunks;
    const int parts = gridDim.x / t.chunks, first = chunk * CHUNK;
    shared_room room = dynamic_shared();
    uint16_t *u = room.take<uint16_t>(2 * CHUNK * F::LD);
    uint16_t *dh = room.take<uint16_t>(CHUNK * F::LD);
    float *f = room.take<float>(2 * TILE);
    tile_share<F, CHUNK, THREADS> x;
    held_chunk<F> w;
    hidden_rows<P> rows;
    warp_tile<F, CHUNK, CHUNK, WARPS> dw1;
    double db1[1][2] = {}, dw2[1][2] = {}, db2 = 0.0;
    w.template load<WARPS>(room,
                           {1.0f, t.w1 + (int64_t)first * t.in, t.hidden - first, t.in, t.in});
    rows.load(t, first);
    dw1.clear();
    x.fetch(t.x, t.tiles, place_of(t.tiles, part));
    float dy = threadIdx.x < TILE ? fetch_dy(t, part, threadIdx.x) : 0.0f; /* on its way like x */
    for (int tile = part, turn = 0; tile < t.tiles.count; tile += parts, turn ^= 1) {
        uint16_t *input = u + turn * CHUNK * F::LD;
        float *of_dy = f + turn * TILE;
        P p;
        x.put(t.x.store, t.act, input);
        if (threadIdx.x < TILE) {
            of_dy[column_of_pixel(threadIdx.x)] = dy;
            db2 += (double)dy;
        }
        __syncthreads();
        if (tile + parts < t.tiles.count) {
            x.fetch(t.x, t.tiles, place_of(t.tiles, tile + parts));
            dy = threadIdx.x < TILE ? fetch_dy(t, tile + parts, threadIdx.x) : 0.0f;
        }
        p.clear();
        add_product(p, w, input);
        put_gradient(p, rows, of_dy, dh, db1, dw2);
        __syncthreads();
        add_correlation(dw1, dh, input);
    }
    const int hidden = t.chunks * CHUNK;
    double *reduced = reinterpret_cast<double *>(u);
    store_partial(dw1, t.dw1 + ((int64_t)part * hidden + first) * CHUNK, CHUNK);
    store_row_sums<P>(db1, reduced, t.db1 + (int64_t)part * hidden + first);
    store_row_sums<P>(dw2, reduced, t.wide_dw2 + (int64_t)part * hidden + first);
    db2 = block_sum(db2);
    if (chunk == 0 && threadIdx.x == 0) {
        t.db2[part] = db2;
    }
}

/* ---- dx ---- */

template <class F> using streamed_chunk = shared_weights<F, CHUNK, CHUNK>;

template <class F> constexpr size_t dx_shared() {
    return 2 * streamed_chunk<F>::template bytes<WARPS> + tile_bytes<F>(4 * CHUNK) +
           sizeof(float) * (size_t)(2 * TILE + 2 * MOST_CHUNKS * CHUNK);
}

/* The weights of all chunks as they will lie in shared memory. */
template <class F>
static __global__ void __launch_bounds__(TENSOR_THREADS)
    prepare_chunks(mlp_task t, uint16_t *prepared) {
    const int first = blockIdx.x * CHUNK;
    const streamed_chunk<F> w = {prepared + (int64_t)blockIdx.x * streamed_chunk<F>::SIZE};
    w.template fill<TENSOR_THREADS>(
        {1.0f, t.w1 + (int64_t)first * t.in, t.hidden - first, t.in, t.in});
}

template <class F>
static __device__ inline void start_copy(uint16_t *to, const uint16_t *prepared, int chunk) {
    const uint16_t *from = prepared + (int64_t)chunk * streamed_chunk<F>::SIZE;
    for (int e = threadIdx.x * 8; e < streamed_chunk<F>::SIZE; e += THREADS * 8) {
        copy_async<16, false>(to + e, from + e); /* lies in the L2 */
    }
    copies_commit();
}

/* dx = beta dx + alpha p, times act'(x) if that is wanted. */
template <class P>
static __device__ inline void write_dx(const mlp_task &t, const P &p, tile_place place) {
    const tg_act act = t.through ? t.act : TG_ACT_NONE;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        each_run<P>(0, h, t.in, t.tiles, place, [&](int r, int64_t at, int64_t left) {
            raw_run of_x = {}, of_dx = {};
            float v[8], old[8], u[8];
            if (act != TG_ACT_NONE) {
                of_x = load_pixels<8>(t.x, at, left);
            }
            if (t.beta != 0.0f) {
                of_dx = load_pixels<8>(t.dx, at, left);
            }
            numbers_of(t.x.store, of_x, u);
            numbers_of(t.dx.store, of_dx, old);
#pragma unroll
            for (int e = 0; e < 8; e += 2) {
                v[e] = t.beta * old[e] + t.alpha * p.at(0, h, r, e);
                v[e + 1] = t.beta * old[e + 1] + t.alpha * p.at(0, h, r, e + 1);
                if (act != TG_ACT_NONE) {
                    v[e] *= act_slope(act, u[e]);
                    v[e + 1] *= act_slope(act, u[e + 1]);
                }
            }
            store_pixels(t.dx, at, left, v);
        });
    }
}

/* Tiles 2 i and 2 i + 1 at once: weights are read half as often. While a chunk is multiplied, the
 * next one is on its way into the other half of its room. */
template <class F>
static __global__ void __launch_bounds__(THREADS, 1)
    single_dx(mlp_task t, const uint16_t *prepared) {
    using P = hidden_tile<F>;
    constexpr int SIZE = CHUNK * F::LD, WEIGHTS = streamed_chunk<F>::SIZE;
    kernel_begins();
    assume<F::STORE>(t.x);
    assume<F::STORE>(t.dx);
    shared_room room = dynamic_shared();
    uint16_t *weights = room.take<uint16_t>(2 * WEIGHTS), *u = room.take<uint16_t>(2 * SIZE);
    uint16_t *dh = room.take<uint16_t>(2 * SIZE);
    float *f = room.take<float>(2 * TILE), *b1 = room.take<float>(MOST_CHUNKS * CHUNK);
    float *w2 = room.take<float>(MOST_CHUNKS * CHUNK);
    const int pairs = (t.tiles.count + 1) / 2, step = gridDim.x;
    tile_share<F, CHUNK, THREADS> x[2];
    int turn = 0; /* half of the room where the next chunk to be multiplied is */
    for (int j = threadIdx.x; j < t.chunks * CHUNK; j += THREADS) {
        b1[j] = j < t.hidden ? t.b1[j] : 0.0f;
        w2[j] = j < t.hidden ? t.w2[j] : 0.0f;
    }
    start_copy<F>(weights, prepared, 0);
    float dy = 0.0f;
    /* Beyond the last tile: that one again, which is then not written. */
    const auto fetch = [&](int pair) {
        for (int s = 0; s < 2; s++) {
            x[s].fetch(t.x, t.tiles, place_of(t.tiles, min(2 * pair + s, t.tiles.count - 1)));
        }
        if (threadIdx.x < 2 * TILE) {
            const int tile = min(2 * pair + (int)threadIdx.x / TILE, t.tiles.count - 1);
            dy = fetch_dy(t, tile, threadIdx.x % TILE);
        }
    };
    fetch(blockIdx.x);
    for (int pair = blockIdx.x; pair < pairs; pair += step) {
        P dx[2];
        /* the barrier behind the last gradients was behind the last use of u and f */
        for (int s = 0; s < 2; s++) {
            dx[s].clear();
            x[s].put(t.x.store, t.act, u + s * SIZE);
        }
        if (threadIdx.x < 2 * TILE) {
            f[threadIdx.x / TILE * TILE + column_of_pixel(threadIdx.x % TILE)] = dy;
        }
        if (pair + step < pairs) {
            fetch(pair + step);
        }
        for (int chunk = 0; chunk < t.chunks; chunk++, turn ^= 1) {
            const streamed_chunk<F> w = {weights + turn * WEIGHTS};
            copies_wait_but<0>();
            __syncthreads(); /* the chunk is there, and all are done with the one before */
            if (chunk + 1 < t.chunks || pair + step < pairs) {
                start_copy<F>(weights + (turn ^ 1) * WEIGHTS, prepared,
                              chunk + 1 < t.chunks ? chunk + 1 : 0);
            }
            const int row = chunk * CHUNK + P::row(0, 0);
            const hidden_rows<P> rows = {{b1[row], b1[row + 8]}, {w2[row], w2[row + 8]}};
#pragma unroll
            for (int s = 0; s < 2; s++) {
                P p;
                p.clear();
                add_product(p, w, u + s * SIZE);
                put_gradient(p, rows, f + s * TILE, dh + s * SIZE, NULL, NULL);
            }
            __syncthreads();
#pragma unroll
            for (int s = 0; s < 2; s++) {
                add_adjoint_product(dx[s], w, dh + s * SIZE);
            }
        }
        for (int s = 0; s < 2; s++) {
            if (2 * pair + s < t.tiles.count) {
                write_dx(t, dx[s], place_of(t.tiles, 2 * pair + s));
            }
        }
    }
}

/* ---- host ---- */

bool mlp_single_half_fits(const tg_backend *be, const tg_mlp *op) {
    return op->out == 1 && op->x_store != TG_STORE_FULL && op->dtype == TG_F32 &&
           be->math == TG_MATH_TF32 && op->in >= 1 && op->in <= CHUNK && op->hidden >= 1 &&
           op->hidden <= MOST_CHUNKS * CHUNK && op->pixels % 8 == 0 &&
           tiles_countable(op->batch, op->pixels) && tensor_fits(be, dx_shared<bf16>());
}

static int most_parts(const tg_backend *be, const tg_mlp *op) {
    const int parts = cuda_state_of(be)->processors / mlp_chunks(op, CHUNK);
    const int tiles = pixel_tiles_of(op->batch, op->pixels).count;
    return parts < 1 ? 1 : parts < tiles ? parts : tiles;
}

static size_t prepared_bytes(const tg_mlp *op) {
    return (size_t)mlp_chunks(op, CHUNK) * streamed_chunk<bf16>::bytes<WARPS>;
}

static mlp_sizes sizes_of(const tg_mlp *op) {
    return {CHUNK, mlp_chunks(op, CHUNK) * CHUNK, 1, false, true};
}

/* The prepared weights, and the parts' sums. */
size_t mlp_single_half_backward_workspace(const tg_backend *be, const tg_mlp *op) {
    return prepared_bytes(op) + (size_t)most_parts(be, op) * mlp_part_bytes(sizes_of(op));
}

tg_status mlp_single_half_backward(tg_backend *be, const tg_mlp *op) {
    return with_half_format(op->x_store, [&](auto format) {
        using F = decltype(format);
        const cudaStream_t stream = cuda_stream(be);
        const size_t shared = weights_shared<F>();
        const int parts = most_parts(be, op);
        uint16_t *prepared = static_cast<uint16_t *>(op->workspace);
        mlp_task t = mlp_task_of(op, CHUNK);
        int blocks = 0;
        tg_status status = TG_OK;
        mlp_lay_out(static_cast<char *>(op->workspace) + prepared_bytes(op), parts, sizes_of(op),
                    &t);
        TG_TRY(tensor_blocks(be, (const void *)single_weights<F>, shared, &blocks, THREADS));
        single_weights<F><<<parts * t.chunks, THREADS, shared, stream>>>(t);
        TG_TRY(CUDA_LAUNCHED(be, "an MLP backwards"));
        TG_TRY(mlp_fold(be, op, t, parts, sizes_of(op)));
        if (op->dx) {
            prepare_chunks<F><<<t.chunks, TENSOR_THREADS, 0, stream>>>(t, prepared);
            TG_TRY(CUDA_LAUNCHED(be, "an MLP backwards"));
            TG_TRY(launch_tiles(be, single_dx<F>, dx_shared<F>(), THREADS, (t.tiles.count + 1) / 2,
                                "an MLP backwards", t, (const uint16_t *)prepared));
        }
    fail:
        return status;
    });
}
