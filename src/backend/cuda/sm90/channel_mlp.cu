/* Backward pass of a block's channel MLP in one pass over the activations, TF32: C -> H = C / 2 ->
 * C, with u = act(x), p = w1 u + b1 and h = gelu(p),
 *
 *     dp = (w2^T dy) gelu'(p),  dx = (w1^T dp) [act'(x)],
 *     dw2 = dy h^T,  db2 = dy 1,  dw1 = dp u^T,  db1 = dp 1, summed over pixels.
 *
 * A warpgroup computes 32 channels of the hidden layer and 64 of dx (channel_tile.cuh), and sums
 * both weight gradients for its 64 channels. dy is copied to shared memory during the previous
 * tile; the threads that evaluate u, h and dp store them there. The products of the sums run while
 * dx is stored and slopes of the next tile are evaluated.
 *
 * One thread block reads and writes each pixel, and writes dx last: dx may alias x (unless that is
 * quantized) or dy. */
#include "backend/cuda/nn/gemm_columns.cuh"
#include "backend/cuda/sm90/channel_tile.cuh"
#include "backend/cuda/tile/stage.cuh"

struct channel_mlp_task {
    int batch, pixels;         /* pixels: a multiple of 64, or 128 with 64 channels */
    bool through;              /* dx is the gradient at x, not at u */
    const float *w1, *b1, *w2; /* (H, C), (H), (C, H) */
    const void *x;             /* (batch, C, pixels), as values or quantized to 8 bits .. */
    const float *scales;       /* .. with these scales */
    const float *dy;           /* like x, values */
    float *dx;                 /* like x */
    float *dw1, *dw2;          /* (blocks, H, C), (blocks, C, H) */
    double *db1, *db2;         /* (blocks, H), (blocks, C) */
};

template <int C> struct channel_mlp_layout {
    static constexpr int H = C / 2, MATRIX = C * H * 4;
    static constexpr int W1 = 0, W2 = W1 + MATRIX, BACK = W2 + MATRIX; /* w1 and w2, w1 for dx */
    static constexpr int BUFFERS_AT = BACK + MATRIX; /* of u, dy, the next dy, h and dp */
    static constexpr int BUFFER_BYTES = 3 * TILE_BYTES<C> + 2 * TILE_BYTES<H>;
    static constexpr int B1 = BUFFERS_AT + TILES_PER_BLOCK<C> * BUFFER_BYTES, BYTES = B1 + H * 4;
};

template <int C>
static __device__ inline void load_weights(const channel_mlp_task &t, char *shared) {
    using L = channel_mlp_layout<C>;
    constexpr int H = L::H;
    const auto put = [&](int at, float v) { *reinterpret_cast<float *>(shared + at) = v; };
    for (int i = threadIdx.x; i < C * H; i += TILE_THREADS) {
        const int h = i / C, c = i % C; /* B's rows are channels, columns hidden channels */
        put(L::W1 + wg_at<H>(h, c), to_tf32(t.w1[h * C + channel_of(c)]));
        put(L::W2 + wg_at<H>(h, c), to_tf32(t.w2[channel_of(c) * H + h]));
        put(L::BACK + wg_at<C>(c, h), to_tf32(t.w1[channel_of(h) * C + c]));
    }
    for (int i = threadIdx.x; i < H; i += TILE_THREADS) {
        put(L::B1 + i * 4, t.b1[i]);
    }
}

template <int C, bool ACT, bool BYTES>
static __global__ void __launch_bounds__(TILE_THREADS, 1)
    channel_mlp_backward(const __grid_constant__ channel_mlp_task t) {
    using L = channel_mlp_layout<C>;
    constexpr int H = L::H;
    extern __shared__ __align__(1024) char shared[];
    const int mine = same_in_warp(own_channels<C>()), hidden = mine / 2; /* first of 64, of 32 */
    const int all = t.batch * (t.pixels / (TILES_PER_BLOCK<C> * WG_PIXELS));
    const int steps = (all - 1 - (int)blockIdx.x) / (int)gridDim.x + 1;
    char *u = shared + L::BUFFERS_AT + same_in_warp(own_tile<C>()) * L::BUFFER_BYTES,
         *h = u + 3 * TILE_BYTES<C>;
    char *dp = h + TILE_BYTES<H>, *now = u + TILE_BYTES<C>, *later = now + TILE_BYTES<C>; /* dy */
    float dw1[H / 2], dw2[H / 2], x[32], db1[8];
    own_bytes bytes;
    long_sum db2 = {};
    wg_clear(dw1);
    wg_clear(dw2);
    wg_clear(db1);
    load_weights<C>(t, shared);
    pdl_wait_and_launch_dependents();
    const tile_walk step((int)gridDim.x * TILES_PER_BLOCK<C>, t.pixels);
    tile_walk place((int)blockIdx.x * TILES_PER_BLOCK<C> + own_tile<C>(), t.pixels);
    tile_walk next = place, far = place; /* the next two tiles */
    fetch_tile<C>(t.dy + place.at(C, t.pixels), t.pixels, now);
    copies_commit();
    begin_own<C, BYTES>(t.x, t.scales, place.at(C, t.pixels), t.pixels, x, bytes);
    if (steps > 1) {
        next.move(step, t.pixels);
        far = next;
    }
    wg_fence(dw1);
    wg_fence(dw2);
    wg_publish();
    __syncthreads(); /* weights are ready */
    const uint64_t of_hidden = (uint64_t)(hidden * 128 >> 4), of_dx = (uint64_t)(mine * 128 >> 4);
    for (int n = 0; n < steps; n++) {
        if (n + 2 < steps) { /* past the end: prefetch the last tile again (unused) */
            far.move(step, t.pixels);
        }
        float slope[32], p[16], d[16];
        if constexpr (BYTES) {
            bytes.values(x);
        }
#pragma unroll
        for (int i = 0; i < 32; i++) { /* x becomes u */
            slope[i] = ACT ? gelu_slope(x[i], &x[i]) : 1.0f;
            x[i] = to_tf32(x[i]);
        }
        keep_order(n);
        wg_wait<0>(); /* wait for the sums of the previous tile */
        wg_fence(dw1);
        wg_fence(dw2);
        wg_sync(); /* only this warpgroup reads its part of u */
        put_columns<C, 64>(x, mine, u);
        copies_wait_all_but<0>();
        tile_sync<C>(); /* u and dy are ready, all other buffers free */
        fetch_tile<C>(t.dy + next.at(C, t.pixels), t.pixels, later);
        copies_commit();
        prefetch_own<C, BYTES>(t.x, far.at(C, t.pixels), t.pixels);
        prefetch_tile<C>(t.dy + far.at(C, t.pixels), t.pixels);
        multiply_tile<H, C, 4>(d, wg_matrix(shared + L::W2) + of_hidden, false, now);
        multiply_tile<H, C, 4>(p, wg_matrix(shared + L::W1) + of_hidden, false, u);
        db2.add(sum_half_row<C>(now));
        each_channel<32>(fresh_thread(), [&](int i, int c) {
            const float bias = reinterpret_cast<const float *>(shared + L::B1)[hidden + c];
#pragma unroll
            for (int e = i; e < i + 4; e += 2) { /* p becomes h, d becomes dp; dy was truncated */
                d[e] *= TF32_CUT * gelu_slope(p[e] + bias, &p[e]);
                db1[i / 4 * 2 + i % 2] += d[e];
                p[e] = to_tf32(p[e]);
                d[e] = to_tf32(d[e]);
            }
        });
        put_columns<H, 32>(p, hidden, h);
        put_columns<H, 32>(d, hidden, dp);
        wg_publish();   /* all factors of the sums */
        tile_sync<C>(); /* h and dp are ready */
        begin_own<C, BYTES>(t.x, t.scales, next.at(C, t.pixels), t.pixels, x, bytes);
        keep_order(n);
        float dx[32];
        multiply_tile<C, H, 4>(dx, wg_matrix(shared + L::BACK) + of_dx, false, dp);
        wg_fence(dw1);
        wg_fence(dw2);
        wg_begin();
        add_over_pixels<C, H>(dw1, u, mine, dp);
        add_over_pixels<C, H>(dw2, now, mine, h);
        wg_end();
        store_own<C>(t.dx + place.at(C, t.pixels), t.pixels,
                     [&](int i) { return dx[i] * (t.through ? slope[i] : 1.0f); });
        place = next;
        next = far;
        char *used = now;
        now = later;
        later = used;
    }
    wg_wait<0>();
    wg_fence(dw1);
    wg_fence(dw2);
    copies_wait_all_but<0>();
    double *room = reinterpret_cast<double *>(shared + L::BUFFERS_AT);
    gather_sums<C>(dw1, reinterpret_cast<float *>(room));
    gather_sums<C>(dw2, reinterpret_cast<float *>(room));
    if (has_sums<C>()) {
        const int64_t part = (int64_t)blockIdx.x * H * C;
        each_sum<H>(dw1, [&](int c, int i, float v) { t.dw1[part + i * C + mine + c] = v; });
        each_sum<H>(
            dw2, [&](int c, int i, float v) { t.dw2[part + (mine + c) * H + i] = TF32_CUT * v; });
    }
    fold_columns<32, H>(db1, hidden, t.db1 + (int64_t)blockIdx.x * H, room);
    fold_half_rows<C>(db2.value(), t.db2 + (int64_t)blockIdx.x * C, room);
}

/* ---- which calls ---- */

/* Whether this device supports these sizes. */
static bool fits(const tg_backend *be, const tg_mlp *op) {
    return op->dtype == TG_F32 && be->math == TG_MATH_TF32 && (op->in == 64 || op->in == 128) &&
           op->out == op->in && 2 * op->hidden == op->in && op->pixels > 0 &&
           op->pixels % (op->in == 64 ? 2 * WG_PIXELS : WG_PIXELS) == 0 &&
           op->batch * op->pixels <= INT32_MAX && op->x_store == TG_STORE_FULL &&
           op->y_store == TG_STORE_FULL && cuda_state_of(be)->is_hopper;
}

bool mlp_channel_supports(const tg_backend *be, const tg_mlp *op) {
    bool takes = fits(be, op) && op->act != TG_ACT_TANH && op->dropout == 0.0 && op->dx &&
                 op->alpha == 1.0 && op->beta == 0.0;
    for (const void *array : {op->x, op->dy, (const void *)op->dx}) {
        takes = takes && (uintptr_t)array % 16 == 0;
    }
    return takes;
}

static int blocks_of(const tg_backend *be, const tg_mlp *op) {
    const int64_t steps = op->batch * op->pixels * op->in / (128 * WG_PIXELS);
    return (int)tg_min(steps, cuda_state_of(be)->processors);
}

bool mlp_channel_accepts_quantized_input(const tg_backend *be, const tg_mlp *op) {
    return fits(be, op) && op->act != TG_ACT_TANH && op->dropout == 0.0;
}

/* An upper bound for all calls: dropout and activations may differ between calls. */
size_t mlp_channel_workspace(const tg_backend *be, const tg_mlp *op) {
    const size_t c = (size_t)op->in, h = (size_t)op->hidden;
    return fits(be, op)
               ? (size_t)blocks_of(be, op) * (2 * c * h * sizeof(float) + (c + h) * sizeof(double))
               : 0;
}

static tg_status fold(tg_backend *be, const tg_mlp *op, const channel_mlp_task &t, int blocks) {
    const int c = (int)op->in, h = (int)op->hidden;
    const fold_jobs jobs = {{fold_matrix(t.dw1, h, c, op->dw1), fold_matrix(t.dw2, c, h, op->dw2),
                             fold_sums(t.db1, h, op->db1), fold_sums(t.db2, c, op->db2)},
                            4,
                            blocks,
                            {1.0, 1.0, 1.0, 1.0}};
    return fold_partials(be, jobs);
}

tg_status mlp_channel_backward(tg_backend *be, const tg_mlp *op) {
    const int blocks = blocks_of(be, op);
    channel_mlp_task t = {};
    t.batch = (int)op->batch;
    t.pixels = (int)op->pixels;
    t.through = op->through;
    t.w1 = static_cast<const float *>(op->w1);
    t.b1 = static_cast<const float *>(op->b1);
    t.w2 = static_cast<const float *>(op->w2);
    t.x = op->x;
    t.scales = op->x_quantized ? scales_of(op->x, op->batch * op->in * op->pixels) : NULL;
    t.dy = static_cast<const float *>(op->dy);
    t.dx = static_cast<float *>(op->dx);
    t.db1 = static_cast<double *>(op->workspace);
    t.db2 = t.db1 + blocks * op->hidden;
    t.dw1 = reinterpret_cast<float *>(t.db2 + blocks * op->in);
    t.dw2 = t.dw1 + blocks * op->hidden * op->in;
    TG_CALL((with_size<64, 128>(op->in, [&](auto channels) {
        constexpr int C = decltype(channels)::value;
        const bool acts = op->act == TG_ACT_GELU;
        const auto kernel = op->x_quantized ? acts ? channel_mlp_backward<C, true, true>
                                                   : channel_mlp_backward<C, false, true>
                            : acts ? channel_mlp_backward<C, true, false>
                                            : channel_mlp_backward<C, false, false>;
        return launch_tiles(be, kernel, channel_mlp_layout<C>::BYTES, TILE_THREADS, blocks,
                            "a channel MLP backwards", t);
    })));
    return fold(be, op, t, blocks);
}
