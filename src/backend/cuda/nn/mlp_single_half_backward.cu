/* Perceptrons from halves to one output, backward: one kernel has blocks for each chunk of hidden
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

enum { BACK_WARPS = 16, BACK_THREADS = 32 * BACK_WARPS };

using back_frame = frame<CHUNK, TILE, BACK_WARPS, 8>;

/* p becomes its gradient w2 dy gelu'(p + b1), written to a tile; at the same time the sums for b1
 * and w2, if wanted. bias, weight: of the thread's rows; f: dy of the tile. */
template <int STORE>
static __device__ inline void put_gradient(const back_frame &p, const float (&bias)[2],
                                           const float (&weight)[2], const float *f, uint16_t *tile,
                                           double (*db1)[2], double (*dw2)[2]) {
    using P = back_frame;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float of_bias = 0.0f, of_weight = 0.0f;
#pragma unroll
        for (int n = 0; n < P::NT; n++) {
            const float2 dy = *reinterpret_cast<const float2 *>(f + P::column(n));
            float value[2];
            const float a = gelu_slope(p.acc[0][n][2 * h] + bias[h], &value[0]);
            const float b = gelu_slope(p.acc[0][n][2 * h + 1] + bias[h], &value[1]);
            const float2 back = {weight[h] * dy.x * a, weight[h] * dy.y * b};
            of_bias += back.x + back.y;
            of_weight += dy.x * value[0] + dy.y * value[1];
            reinterpret_cast<uint32_t *>(tile)[P::row(0, h) * HALF_TILE_WORDS + P::word(n)] =
                to_word<STORE>(back.x, back.y);
        }
        if (db1) {
            (*db1)[h] += (double)of_bias;
            (*dw2)[h] += (double)of_weight;
        }
    }
}

/* Two tiles of the input and of dy, which take turns, one of the gradient at the hidden layer, and
 * the weights. */
template <int STORE> constexpr size_t weights_shared() {
    return 3 * CHUNK * HALF_LD * sizeof(uint16_t) + 2 * TILE * sizeof(float) +
           BACK_WARPS * held_weights<STORE, CHUNK>::SHARED * sizeof(uint32_t);
}

/* Blocks are (part, chunk), chunks next to each other. */
template <int STORE>
static __global__ void __launch_bounds__(BACK_THREADS, 1) single_weights(mlp_task t) {
    using P = back_frame;
    const int chunk = blockIdx.x % t.chunks, part = blockIdx.x / t.chunks;
    const int parts = gridDim.x / t.chunks, first = chunk * CHUNK, left = t.hidden - first;
    uint16_t *u = dynamic_halves(), *dh = u + 2 * CHUNK * HALF_LD;
    float *f = reinterpret_cast<float *>(dh + CHUNK * HALF_LD);
    half_share<CHUNK, BACK_THREADS> x;
    held_weights<STORE, CHUNK> w;
    frame<CHUNK, CHUNK, BACK_WARPS, 4> dw1;
    double db1[2] = {0.0, 0.0}, dw2[2] = {0.0, 0.0}, db2 = 0.0;
    float bias[2], weight[2];
    w.template load<P>(1.0f, t.w1 + (int64_t)first * t.in, left, t.in, t.in,
                       reinterpret_cast<uint32_t *>(f + 2 * TILE));
    for (int h = 0; h < 2; h++) {
        const int row = P::row(0, h);
        bias[h] = row < left ? t.b1[first + row] : 0.0f;
        weight[h] = row < left ? t.w2[first + row] : 0.0f;
    }
    dw1.clear();
    x.fetch(t.x, t.tiles, place_of(t.tiles, part));
    float dy = threadIdx.x < TILE ? fetch_dy(t, part, threadIdx.x) : 0.0f; /* on its way like x */
    for (int tile = part, turn = 0; tile < t.tiles.count; tile += parts, turn ^= 1) {
        uint16_t *input = u + turn * CHUNK * HALF_LD;
        float *of_dy = f + turn * TILE;
        P p;
        x.template put<STORE>(t.act, input);
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
        w.multiply(p, input);
        put_gradient<STORE>(p, bias, weight, of_dy, dh, &db1, &dw2);
        __syncthreads();
        add_half_correlation<STORE>(dw1, dh, input);
    }
    const int hidden = t.chunks * CHUNK;
    double *room = reinterpret_cast<double *>(u);
    store_half_partial(dw1, t.dw1 + ((int64_t)part * hidden + first) * CHUNK, CHUNK);
    store_row_sums<CHUNK, P>(db1, room, t.db1 + (int64_t)part * hidden + first);
    store_row_sums<CHUNK, P>(dw2, room, t.wide_dw2 + (int64_t)part * hidden + first);
    db2 = block_sum(db2);
    if (chunk == 0 && threadIdx.x == 0) {
        t.db2[part] = db2;
    }
}

/* ---- dx ---- */

/* Halves of the weights of a chunk as they lie in shared memory. */
template <int STORE> constexpr int chunk_weights = terms_of<STORE> *CHUNK *half_ld(CHUNK);

template <int STORE> constexpr size_t dx_shared() {
    return sizeof(uint16_t) * (size_t)(2 * chunk_weights<STORE> + 4 * CHUNK * HALF_LD) +
           sizeof(float) * (size_t)(2 * TILE + 2 * MOST_CHUNKS * CHUNK);
}

/* The weights of all chunks as they will lie in shared memory. */
template <int STORE>
static __global__ void __launch_bounds__(TENSOR_THREADS)
    prepare_chunks(mlp_task t, uint16_t *prepared) {
    const int first = blockIdx.x * CHUNK;
    put_weights<STORE, CHUNK, CHUNK, TENSOR_THREADS>(
        prepared + (int64_t)blockIdx.x * chunk_weights<STORE>, 1.0f, t.w1 + (int64_t)first * t.in,
        t.hidden - first, t.in, t.in);
}

template <int STORE>
static __device__ inline void start_copy(uint16_t *to, const uint16_t *prepared, int chunk) {
    const uint16_t *from = prepared + (int64_t)chunk * chunk_weights<STORE>;
    for (int e = threadIdx.x * 8; e < chunk_weights<STORE>; e += BACK_THREADS * 8) {
        copy_async(to + e, from + e);
    }
    end_async_group();
}

/* dx = beta dx + alpha p, times act'(x) if that is wanted. */
template <int STORE>
static __device__ inline void write_dx(const mlp_task &t, const back_frame &p, tile_place place) {
    const tg_act act = t.through ? t.act : TG_ACT_NONE;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        each_eight<back_frame>(0, h, t.in, t.tiles, place, [&](int r, int64_t at) {
            half_run x = {}, old = {}, run;
            if (act != TG_ACT_NONE) {
                x = load_eight(t.x, at);
            }
            if (t.beta != 0.0f) {
                old = load_eight(t.dx, at);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 before = of_word<STORE>(old.word[j]);
                float2 v = {t.beta * before.x + t.alpha * p.at(0, h, r, 2 * j),
                            t.beta * before.y + t.alpha * p.at(0, h, r, 2 * j + 1)};
                if (act != TG_ACT_NONE) {
                    const float2 from = of_word<STORE>(x.word[j]);
                    v.x *= act_slope(act, from.x);
                    v.y *= act_slope(act, from.y);
                }
                run.word[j] = to_word<STORE>(v.x, v.y);
            }
            store_eight(t.dx, at, run);
        });
    }
}

/* Tiles 2 i and 2 i + 1 at once: weights are read half as often. While a chunk is multiplied, the
 * next one is on its way into the other half of its room. */
template <int STORE>
static __global__ void __launch_bounds__(BACK_THREADS, 1)
    single_dx(mlp_task t, const uint16_t *prepared) {
    using P = back_frame;
    constexpr int SIZE = CHUNK * HALF_LD;
    uint16_t *weights = dynamic_halves(), *u = weights + 2 * chunk_weights<STORE>;
    uint16_t *dh = u + 2 * SIZE;
    float *f = reinterpret_cast<float *>(dh + 2 * SIZE), *b1 = f + 2 * TILE;
    float *w2 = b1 + MOST_CHUNKS * CHUNK;
    const int pairs = (t.tiles.count + 1) / 2, step = gridDim.x;
    half_share<CHUNK, BACK_THREADS> x[2];
    int turn = 0; /* half of the room where the next chunk to be multiplied is */
    for (int j = threadIdx.x; j < t.chunks * CHUNK; j += BACK_THREADS) {
        b1[j] = j < t.hidden ? t.b1[j] : 0.0f;
        w2[j] = j < t.hidden ? t.w2[j] : 0.0f;
    }
    start_copy<STORE>(weights, prepared, 0);
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
            x[s].template put<STORE>(t.act, u + s * SIZE);
        }
        if (threadIdx.x < 2 * TILE) {
            f[threadIdx.x / TILE * TILE + column_of_pixel(threadIdx.x % TILE)] = dy;
        }
        if (pair + step < pairs) {
            fetch(pair + step);
        }
        for (int chunk = 0; chunk < t.chunks; chunk++, turn ^= 1) {
            const uint16_t *w = weights + turn * chunk_weights<STORE>;
            wait_async_groups();
            __syncthreads(); /* the chunk is there, and all are done with the one before */
            if (chunk + 1 < t.chunks || pair + step < pairs) {
                start_copy<STORE>(weights + (turn ^ 1) * chunk_weights<STORE>, prepared,
                                  chunk + 1 < t.chunks ? chunk + 1 : 0);
            }
            const int row = chunk * CHUNK + P::row(0, 0);
            const float bias[2] = {b1[row], b1[row + 8]}, weight[2] = {w2[row], w2[row + 8]};
#pragma unroll
            for (int s = 0; s < 2; s++) {
                P p;
                p.clear();
                add_half_product<STORE, CHUNK>(p, w, CHUNK * half_ld(CHUNK), u + s * SIZE);
                put_gradient<STORE>(p, bias, weight, f + s * TILE, dh + s * SIZE, NULL, NULL);
            }
            __syncthreads();
#pragma unroll
            for (int s = 0; s < 2; s++) {
                add_half_adjoint<STORE, CHUNK, CHUNK>(dx[s], w, CHUNK * half_ld(CHUNK),
                                                      dh + s * SIZE);
            }
        }
        for (int s = 0; s < 2; s++) {
            if (2 * pair + s < t.tiles.count) {
                write_dx<STORE>(t, dx[s], place_of(t.tiles, 2 * pair + s));
            }
        }
    }
}

/* ---- host ---- */

bool mlp_single_halves_fits(const tg_backend *be, const tg_mlp *op) {
    return op->out == 1 && op->x_store != TG_STORE_FULL && op->dtype == TG_F32 &&
           be->math == TG_MATH_TF32 && op->in >= 1 && op->in <= CHUNK && op->hidden >= 1 &&
           op->hidden <= MOST_CHUNKS * CHUNK && op->pixels % 8 == 0 &&
           tiles_countable(op->batch, op->pixels) && tensor_fits(be, dx_shared<TG_STORE_BF16>());
}

static int most_parts(const tg_backend *be, const tg_mlp *op) {
    const int parts = cuda_state_of(be)->processors / chunks_of(op);
    const int tiles = pixel_tiles_of(op->batch, op->pixels).count;
    return parts < 1 ? 1 : parts < tiles ? parts : tiles;
}

static size_t prepared_bytes(const tg_mlp *op) {
    return (size_t)chunks_of(op) * chunk_weights<TG_STORE_BF16> * sizeof(uint16_t);
}

/* The prepared weights, and the parts' sums. */
size_t mlp_single_halves_back_workspace(const tg_backend *be, const tg_mlp *op) {
    const size_t hidden = (size_t)chunks_of(op) * CHUNK;
    return prepared_bytes(op) + (size_t)most_parts(be, op) * ((2 * hidden + 1) * sizeof(double) +
                                                              hidden * CHUNK * sizeof(float));
}

/* Adds what the parts have summed up. */
static tg_status fold_single(tg_backend *be, const tg_mlp *op, const mlp_task &t, int parts) {
    const int hidden = t.chunks * CHUNK;
    fold_jobs jobs = {};
    jobs.job[0] = {
        t.dw1, hidden * CHUNK, t.hidden, t.in, CHUNK, false, static_cast<float *>(op->dw1)};
    jobs.job[1] = {t.wide_dw2, hidden, 1, t.hidden, hidden, true, static_cast<float *>(op->dw2)};
    jobs.job[2] = {t.db1, hidden, 1, t.hidden, hidden, true, static_cast<float *>(op->db1)};
    jobs.job[3] = {t.db2, 1, 1, 1, 1, true, static_cast<float *>(op->db2)};
    jobs.jobs = 4;
    jobs.parts = parts;
    for (int i = 0; i < 4; i++) {
        jobs.scale[i] = op->alpha;
    }
    return fold_partials(be, jobs);
}

template <int STORE>
static tg_status write_dx_of(tg_backend *be, const mlp_task &t, uint16_t *prepared) {
    const cudaStream_t stream = cuda_stream(be);
    const auto kernel = single_dx<STORE>;
    const size_t shared = dx_shared<STORE>();
    int blocks = 0;
    tg_status status = TG_OK;
    TG_TRY(tensor_blocks(be, (const void *)kernel, shared, &blocks, BACK_THREADS));
    blocks = blocks < (t.tiles.count + 1) / 2 ? blocks : (t.tiles.count + 1) / 2;
    prepare_chunks<STORE><<<t.chunks, TENSOR_THREADS, 0, stream>>>(t, prepared);
    TG_TRY(CUDA_LAUNCHED(be, "a perceptron backwards"));
    kernel<<<blocks, BACK_THREADS, shared, stream>>>(t, prepared);
    TG_TRY(CUDA_LAUNCHED(be, "a perceptron backwards"));
fail:
    return status;
}

tg_status mlp_single_halves_backward(tg_backend *be, const tg_mlp *op) {
    return with_half(op->x_store, [&](auto store) {
        constexpr int STORE = decltype(store)::value;
        const auto kernel = single_weights<STORE>;
        const size_t shared = weights_shared<STORE>();
        const int parts = most_parts(be, op);
        mlp_task t = mlp_task_of(op, CHUNK);
        const int64_t hidden = t.chunks * CHUNK;
        uint16_t *prepared = static_cast<uint16_t *>(op->workspace);
        int blocks = 0;
        tg_status status = TG_OK;
        t.db1 = reinterpret_cast<double *>(static_cast<char *>(op->workspace) + prepared_bytes(op));
        t.wide_dw2 = t.db1 + parts * hidden;
        t.db2 = t.wide_dw2 + parts * hidden;
        t.dw1 = reinterpret_cast<float *>(t.db2 + parts);
        TG_TRY(tensor_blocks(be, (const void *)kernel, shared, &blocks, BACK_THREADS));
        kernel<<<parts * t.chunks, BACK_THREADS, shared, cuda_stream(be)>>>(t);
        TG_TRY(CUDA_LAUNCHED(be, "a perceptron backwards"));
        TG_TRY(fold_single(be, op, t, parts));
        if (op->dx) {
            TG_TRY(write_dx_of<STORE>(be, t, prepared));
        }
    fail:
        return status;
    });
}
