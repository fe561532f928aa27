/* Perceptrons on tensor cores, forward: one kernel that reads x and add and writes y and activated,
 *   y = beta y + alpha (w2 gelu(w1 act(x) + b1) + b2) + gate add,  activated = gelu(y). */
#include "backend/cuda/nn/mlp_tensor.cuh"

/* Where there are few inputs there is room for two hidden tiles, so that warps may be a chunk
 * apart. Else the hidden tile takes the place of the input where that is used up by one chunk. */
template <class S> constexpr bool has_two_tiles = S::IN == 16;

template <class S> static size_t forward_shared(int chunks) {
    const int most = S::IN > S::CHUNK ? S::IN : S::CHUNK;
    const int rows = has_two_tiles<S> ? S::IN + 2 * S::CHUNK
                     : chunks == 1    ? most
                                      : S::IN + S::CHUNK;
    return sizeof(float) * (size_t)(chunks * S::per_chunk + rows * TILE_LD);
}

/* h = gelu(p + b1), to shared memory. */
template <int CHUNK>
static __device__ inline void put_hidden(const split<CHUNK, TILE> &p, const float *b1, float *h) {
    using P = split<CHUNK, TILE>;
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
        const int m = i / 2, row = P::row(m, i % 2);
        const float bias = b1[row];
#pragma unroll
        for (int r = 0; r < P::RUNS; r++) {
            float v[P::RUN];
#pragma unroll
            for (int e = 0; e < P::RUN; e++) {
                v[e] = to_tf32(gelu(p.at(m, i % 2, r, e) + bias));
            }
            put_run(h + row * TILE_LD + P::pixel(r), v);
        }
    }
}

/* What y starts from, apart from factors: add, or y where there is no add. */
template <int OUT>
static __device__ inline void start_output(const mlp_task &t, split<OUT, TILE> &p,
                                           tile_place place) {
    if (t.add.data) {
        start_from(p, 1.0f, t.add, t.tiles, place);
    } else {
        start_from(p, t.beta != 0.0f ? 1.0f : 0.0f, t.y, t.tiles, place);
    }
}

/* .. and then the factors: gate add + beta y + alpha b2. */
template <int OUT>
static __device__ inline void scale_output(const mlp_task &t, split<OUT, TILE> &p,
                                           tile_place place) {
    using P = split<OUT, TILE>;
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
        const int m = i / 2, h = i % 2, row = P::row(m, h);
        const float bias = row < t.out ? t.alpha * t.b2[row] : 0.0f;
        float factor = t.beta;
        if (t.add.data) {
            factor = t.gate && row < t.out ? t.gate[row] : 1.0f;
        }
#pragma unroll
        for (int n = 0; n < P::NT; n++) {
            p.acc[m][n][2 * h] = factor * p.acc[m][n][2 * h] + bias;
            p.acc[m][n][2 * h + 1] = factor * p.acc[m][n][2 * h + 1] + bias;
        }
    }
    if (t.add.data && t.beta != 0.0f) {
        split<OUT, TILE> old;
        start_from(old, t.beta, t.y, t.tiles, place);
        p.add(old);
    }
}

/* y = p, activated = gelu(p). */
template <int OUT>
static __device__ inline void write_y(const mlp_task &t, const split<OUT, TILE> &p,
                                      tile_place place) {
    using P = split<OUT, TILE>;
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
        const int m = i / 2, h = i % 2;
        each_run<OUT>(m, h, t.out, t.tiles, place, [&](int r, int64_t at, int64_t left) {
            pixel_run<P::RUN> y;
            for (int e = 0; e < P::RUN; e++) {
                y.v[e] = p.at(m, h, r, e);
            }
            store_pixels(t.y, at, left, y);
        });
    }
#pragma unroll
    for (int i = 0; i < 2 * P::MT && t.activated.data; i++) {
        const int m = i / 2, h = i % 2;
        each_run<OUT>(m, h, t.out, t.tiles, place, [&](int r, int64_t at, int64_t left) {
            pixel_run<P::RUN> y;
            for (int e = 0; e < P::RUN; e++) {
                y.v[e] = gelu(p.at(m, h, r, e));
            }
            store_pixels(t.activated, at, left, y);
        });
    }
}

template <class S, int X, int Y>
static __global__ void __launch_bounds__(TENSOR_THREADS, 2) mlp_forward(mlp_task t) {
    settle_all<X, Y>(t);
    float *weights = dynamic_shared(), *u = weights + t.chunks * S::per_chunk;
    float *h = t.chunks == 1 && !has_two_tiles<S> ? u : u + S::IN * TILE_LD;
    tile_share<S::IN> x;
    for (int c = 0; c < t.chunks; c++) {
        load_chunk<S>(t, c, t.alpha, weights + c * S::per_chunk);
    }
    x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
    for (int tile = blockIdx.x; tile < t.tiles.count; tile += gridDim.x) {
        const tile_place place = place_of(t.tiles, tile);
        split<S::OUT, TILE> y;
        __syncthreads(); /* the tile before is done with h, which may be u */
        x.put(t.x.store, t.act, u);
        __syncthreads();
        if (tile + (int)gridDim.x < t.tiles.count) {
            x.fetch(t.x, t.tiles, place_of(t.tiles, tile + gridDim.x));
        }
        for (int c = 0; c < t.chunks; c++) {
            const float *w1 = weights + c * S::per_chunk, *w2 = w1 + S::W1;
            split<S::CHUNK, TILE> p;
            p.clear();
            add_product<S::CHUNK, S::IN>(p, w1, u);
            if (c == 0) {
                start_output(t, y, place); /* arrives during the next lines */
            }
            float *to = has_two_tiles<S> ? h + c % 2 * S::CHUNK * TILE_LD : h;
            if (!has_two_tiles<S>) {
                __syncthreads(); /* all are done with u, or with the h before */
            }
            put_hidden<S::CHUNK>(p, w2 + S::W2, to);
            __syncthreads();
            if (c == 0) {
                scale_output(t, y, place);
            }
            add_product<S::OUT, S::CHUNK>(y, w2, to);
        }
        write_y<S::OUT>(t, y, place);
    }
}

/* ---- host ---- */

mlp_task mlp_task_of(const tg_mlp *op, int chunk) {
    mlp_task t = {};
    t.tiles = pixel_tiles_of(op->batch, op->pixels);
    t.in = (int)op->in;
    t.hidden = (int)op->hidden;
    t.out = (int)op->out;
    t.chunks = mlp_chunks(op, chunk);
    t.act = op->act;
    t.through = op->through;
    t.w1 = static_cast<const float *>(op->w1);
    t.b1 = static_cast<const float *>(op->b1);
    t.w2 = static_cast<const float *>(op->w2);
    t.b2 = static_cast<const float *>(op->b2);
    t.gate = static_cast<const float *>(op->gate);
    t.alpha = (float)op->alpha;
    t.beta = (float)op->beta;
    t.x = activation_of(op->x, op->x_store, op->in, op->pixels);
    t.dx = activation_of(op->dx, op->x_store, op->in, op->pixels);
    t.y = activation_of(op->y, op->y_store, op->out, op->pixels);
    t.add = activation_of(op->add, op->y_store, op->out, op->pixels);
    t.activated = activation_of(op->activated, op->y_store, op->out, op->pixels);
    t.dy = activation_of(op->dy, op->y_store, op->out, op->pixels);
    return t;
}

bool mlp_tensor_forward_takes(const tg_backend *be, const tg_mlp *op) {
    return mlp_tensor_takes(be, op) && with_mlp_shape(op, false, [&](auto shape) {
               using S = decltype(shape);
               return tensor_fits(be, forward_shared<S>(mlp_chunks(op, S::CHUNK)));
           });
}

bool mlp_tensor_takes(const tg_backend *be, const tg_mlp *op) {
    return op->dtype == TG_F32 && be->math == TG_MATH_TF32 && op->dropout == 0.0 &&
           op->alpha != 0.0 && op->in <= 128 && op->out <= 128 && op->hidden >= 1 &&
           op->hidden <= 1024 && tiles_countable(op->batch, op->pixels);
}

tg_status mlp_tensor_forward(tg_backend *be, const tg_mlp *op) {
    if (mlp_halves_takes(be, op, false)) {
        return mlp_halves_forward(be, op);
    }
    if (mlp_lift_halves_takes(be, op, false)) {
        return mlp_lift_halves_forward(be, op);
    }
    return with_mlp_shape(op, false, [&](auto shape) {
        using S = decltype(shape);
        const mlp_task t = mlp_task_of(op, S::CHUNK);
        const size_t shared = forward_shared<S>(t.chunks);
        return with_known<S>(t, [&](auto of_x, auto of_y) {
            const auto kernel = mlp_forward<S, decltype(of_x)::value, decltype(of_y)::value>;
            int blocks = 0;
            tg_status status = tensor_blocks(be, (const void *)kernel, shared, &blocks);
            if (status == TG_OK) {
                blocks = blocks < t.tiles.count ? blocks : t.tiles.count;
                kernel<<<blocks, TENSOR_THREADS, shared, cuda_stream(be)>>>(t);
                status = CUDA_LAUNCHED(be, "a perceptron");
            }
            return status;
        });
    });
}
