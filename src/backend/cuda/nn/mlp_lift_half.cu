/* MLPs from few full channels to many 16-bit ones, as liftings are. The first product, over few
 * channels, is one step of TF32; the second is in the 16-bit format, the hidden layer rounded as if
 * it were stored. Backward makes no dx.
 *
 * A kernel of its own and not mlp_tile_forward.cu, for which 4 channels are 16 and whose weights
 * would not fit: forward a block holds all weights, backward those of half of the hidden channels.
 */
#include "backend/cuda/nn/mlp_tile.cuh"

enum {
    FEW = 8,      /* channels in as a step of TF32 has them */
    IN = 4,       /* channels in at most */
    OUT = 128,    /* channels out at most */
    HIDDEN = 256, /* at most */
    WARPS = 16,
    THREADS = 32 * WARPS, /* one for each number of the input of a tile */
    FEW_LD = TILE + 8     /* of the input in shared memory: no bank conflicts */
};
static_assert(THREADS == FEW * TILE, "a thread for each number");

/* ---- the input ---- */

/* A thread's number of a tile; 0 where there is none. */
static __device__ inline float fetch_input(const mlp_task &t, int tile) {
    const tile_place place = place_of(t.tiles, tile);
    const int c = threadIdx.x / TILE;
    const int64_t pixel = place.pixel + threadIdx.x % TILE;
    return c < t.in && pixel < t.tiles.pixels
               ? static_cast<const float *>(
                     t.x.data)[(place.sample * t.in + c) * t.tiles.pixels + pixel]
               : 0.0f;
}

static __device__ inline void put_input(const mlp_task &t, float v, float *x) {
    const int c = threadIdx.x / TILE;
    x[c * FEW_LD + column_of_pixel(threadIdx.x % TILE)] = c < t.in ? activate(t.act, v) : 0.0f;
}

/* 16 rows of w1 from `row` on (the lane's own: row and row + 8), and their b1. */
struct first_layer {
    float4 w;
    float bias[2];

    __device__ void load(const mlp_task &t, int row) {
        const int k = threadIdx.x % 4;
        w = {at(t, row, k), at(t, row + 8, k), at(t, row, k + 4), at(t, row + 8, k + 4)};
        bias[0] = row < t.hidden ? t.b1[row] : 0.0f;
        bias[1] = row + 8 < t.hidden ? t.b1[row + 8] : 0.0f;
    }
    /* c = w1 x + b1 at the columns of fragment n of a tile, `column` its first one. */
    __device__ void multiply(float (&c)[4], const float *x, int column) const {
        const int lane = threadIdx.x % 32;
        const float *from = x + lane % 4 * FEW_LD + column + lane / 4;
        for (int i = 0; i < 4; i++) {
            c[i] = bias[i / 2];
        }
        mma_tf32(c, w, to_tf32(from[0]), to_tf32(from[4 * FEW_LD]));
    }

  private:
    static __device__ float at(const mlp_task &t, int row, int k) {
        return row < t.hidden && k < t.in ? to_tf32(t.w1[(int64_t)row * t.in + k]) : 0.0f;
    }
};

/* ---- forward ---- */

template <class F> using result_tile = warp_tile<F, OUT, TILE, WARPS>;
template <class F> using second_layer = held_weights<result_tile<F>, HIDDEN>;

/* Two tiles of the input and of the hidden layer take turns. */
template <class F> constexpr size_t forward_shared() {
    return sizeof(float) * (size_t)(2 * FEW * FEW_LD) + 2 * tile_bytes<F>(HIDDEN) +
           second_layer<F>::template bytes<WARPS>;
}

/* One barrier per tile: behind it, what a warp writes of the next tile is in the other half of the
 * room, so that some warps make hidden layers while others multiply them. */
template <class F> static __global__ void __launch_bounds__(THREADS, 1) lift_forward(mlp_task t) {
    using Y = result_tile<F>;
    kernel_begins();
    assume_all<TG_STORE_FULL, F::STORE>(t);
    shared_room room = dynamic_shared();
    float *x = room.take<float>(2 * FEW * FEW_LD);
    uint16_t *h = room.take<uint16_t>(2 * HIDDEN * F::LD);
    first_layer w1;
    second_layer<F> w2;
    row_terms<Y> terms;
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, step = gridDim.x;
    terms.load(t);
    w1.load(t, row);
    w2.template load<WARPS>(room, {t.alpha, t.w2, t.out, t.hidden, t.hidden});
    put_input(t, fetch_input(t, blockIdx.x), x);
    float next = (int)blockIdx.x + step < t.tiles.count ? fetch_input(t, blockIdx.x + step) : 0.0f;
    __syncthreads();
    for (int tile = blockIdx.x, turn = 0; tile < t.tiles.count; tile += step, turn ^= 1) {
        const tile_place place = place_of(t.tiles, tile);
        const float *input = x + turn * FEW * FEW_LD;
        uint16_t *hidden = h + turn * HIDDEN * F::LD;
        prefetched<Y> start;
        Y y;
        fetch_start(t, start, y, place);
#pragma unroll 4
        for (int n = 0; n < TILE / 8; n++) {
            float c[4];
            w1.multiply(c, input, 8 * n);
            uint16_t *to = hidden + row * F::LD + 8 * n + threadIdx.x % 4 * 2;
            put_piece<F>(to, {gelu(c[0]), gelu(c[1])});
            put_piece<F>(to + 8 * F::LD, {gelu(c[2]), gelu(c[3])});
        }
        put_input(t, next, x + (turn ^ 1) * FEW * FEW_LD);
        __syncthreads();
        if (tile + 2 * step < t.tiles.count) {
            next = fetch_input(t, tile + 2 * step);
        }
        start_y(t, terms, start, y, place);
        add_product(y, w2, hidden);
        write_result(t, y, place);
    }
}

/* ---- backward ---- */

enum { PART = HIDDEN / 2 }; /* hidden channels of a block */

template <class F> using part_weights = shared_weights<F, OUT, PART>;
template <class F> using part_tile = warp_tile<F, PART, TILE, WARPS>;

/* The weights, two tiles of dy and of the input which take turns, and the hidden layer. */
template <class F> constexpr size_t backward_shared() {
    return part_weights<F>::template bytes<WARPS> + tile_bytes<F>(2 * OUT + PART) +
           sizeof(float) * (size_t)(2 * FEW * FEW_LD);
}

/* p = gelu'(w1 x + b1), h = gelu of the same. */
template <class P>
static __device__ inline void make_hidden(const first_layer &w1, const float *x, P &p,
                                          uint16_t *h) {
#pragma unroll
    for (int n = 0; n < P::NT; n++) {
        float value[4];
        w1.multiply(p.acc[0][n], x, P::first_column() + 8 * n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p.acc[0][n][i] = gelu_slope(p.acc[0][n][i], &value[i]);
        }
        for (int k = 0; k < 2; k++) {
            put_piece<typename P::F>(h + P::row(0, k) * P::F::LD + P::column(n),
                                     {value[2 * k], value[2 * k + 1]});
        }
    }
}

/* The thread's part of the sums over pixels of dp, and of dp x^T. */
struct input_sums {
    double db1[1][2];
    float dw1[2][IN];

    __device__ void clear() {
        for (int i = 0; i < 2 * IN; i++) {
            db1[0][i % 2] = 0.0;
            dw1[i % 2][i / 2] = 0.0f;
        }
    }
    template <class P> __device__ void add(const P &dp, const float *x, int channels) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < P::NT; n++) {
                sum += dp.acc[0][n][2 * k] + dp.acc[0][n][2 * k + 1];
            }
            db1[0][k] += (double)sum;
        }
#pragma unroll
        for (int c = 0; c < IN; c++) {
            if (c >= channels) {
                break;
            }
            float sum[2] = {0.0f, 0.0f};
#pragma unroll
            for (int n = 0; n < P::NT; n++) {
                const float2 v = *reinterpret_cast<const float2 *>(x + c * FEW_LD + P::column(n));
                sum[0] += dp.acc[0][n][0] * v.x + dp.acc[0][n][1] * v.y;
                sum[1] += dp.acc[0][n][2] * v.x + dp.acc[0][n][3] * v.y;
            }
            dw1[0][c] += sum[0];
            dw1[1][c] += sum[1];
        }
    }
};

/* Blocks are (part, half of the hidden channels), the halves next to each other. */
template <class F> static __global__ void __launch_bounds__(THREADS, 1) lift_backward(mlp_task t) {
    using P = part_tile<F>;
    assume<F::STORE>(t.dy);
    const int half = blockIdx.x % 2, part = blockIdx.x / 2, parts = gridDim.x / 2;
    const int first = half * PART;
    shared_room room = dynamic_shared();
    part_weights<F> w2;
    w2.template load<WARPS>(room, {1.0f, t.w2 + first, t.out, t.hidden - first, t.hidden});
    uint16_t *d = room.take<uint16_t>(2 * OUT * F::LD), *h = room.take<uint16_t>(PART * F::LD);
    float *x = room.take<float>(2 * FEW * FEW_LD);
    tile_share<F, OUT, THREADS> dy;
    row_sums<F, OUT, THREADS> db2;
    warp_tile<F, OUT, PART, WARPS> dw2;
    first_layer w1;
    input_sums sums;
    w1.load(t, first + P::row(0, 0));
    dw2.clear();
    db2.clear();
    sums.clear();
    dy.fetch(t.dy, t.tiles, place_of(t.tiles, part));
    float next = fetch_input(t, part);
    for (int tile = part, turn = 0; tile < t.tiles.count; tile += parts, turn ^= 1) {
        uint16_t *of_dy = d + turn * OUT * F::LD;
        float *input = x + turn * FEW * FEW_LD;
        P slope, dp;
        dy.put(t.dy.store, TG_ACT_NONE, of_dy);
        db2.add(dy, t.dy.store);
        put_input(t, next, input);
        __syncthreads();
        if (tile + parts < t.tiles.count) {
            dy.fetch(t.dy, t.tiles, place_of(t.tiles, tile + parts));
            next = fetch_input(t, tile + parts);
        }
        make_hidden(w1, input, slope, h);
        dp.clear();
        add_adjoint_product(dp, w2, of_dy);
        for (int n = 0; n < P::NT; n++) {
            for (int i = 0; i < 4; i++) {
                dp.acc[0][n][i] *= slope.acc[0][n][i];
            }
        }
        sums.add(dp, input, t.in);
        __syncthreads();
        add_correlation(dw2, of_dy, h);
    }
    double *reduced = reinterpret_cast<double *>(d);
    const int64_t channel = (int64_t)part * HIDDEN + first;
    store_partial(dw2, t.dw2 + (int64_t)part * OUT * HIDDEN + first, HIDDEN);
    store_row_sums<P>(sums.db1, reduced, t.db1 + channel);
#pragma unroll
    for (int c = 0; c < IN; c++) {
        const double of_channel[1][2] = {{(double)sums.dw1[0][c], (double)sums.dw1[1][c]}};
        store_row_sums<P>(of_channel, reduced, t.wide_dw1 + channel * IN + c, IN);
    }
    if (half == 0) {
        db2.store(t.db2 + (int64_t)part * OUT);
    }
}

/* ---- host ---- */

static const mlp_sizes sizes = {IN, HIDDEN, OUT, true, false};

static bool has_shape(const tg_backend *be, const tg_mlp *op) {
    return op->dtype == TG_F32 && be->math == TG_MATH_TF32 && op->x_store == TG_STORE_FULL &&
           op->y_store != TG_STORE_FULL && op->in >= 1 && op->in <= IN && op->out > OUT / 2 &&
           op->out <= OUT && op->hidden > PART && op->hidden <= HIDDEN && op->pixels % 8 == 0 &&
           tiles_countable(op->batch, op->pixels) && tensor_fits(be, forward_shared<bf16>()) &&
           tensor_fits(be, backward_shared<bf16>());
}

bool mlp_lift_half_takes(const tg_backend *be, const tg_mlp *op, bool backward) {
    const uintptr_t forward = (uintptr_t)op->y | (uintptr_t)op->add | (uintptr_t)op->activated;
    return has_shape(be, op) && op->dropout == 0.0 && op->alpha != 0.0 &&
           (backward ? !op->dx && (uintptr_t)op->dy % 16 == 0 : forward % 16 == 0);
}

static int most_parts(const tg_backend *be, const tg_mlp *op) {
    const int parts = cuda_state_of(be)->processors / 2;
    const int tiles = pixel_tiles_of(op->batch, op->pixels).count;
    return parts < 1 ? 1 : parts < tiles ? parts : tiles;
}

size_t mlp_lift_half_workspace(const tg_backend *be, const tg_mlp *op) {
    return has_shape(be, op) ? (size_t)most_parts(be, op) * mlp_part_bytes(sizes) : 0;
}

tg_status mlp_lift_half_forward(tg_backend *be, const tg_mlp *op) {
    const mlp_task t = mlp_task_of(op, HIDDEN);
    return with_half_format(op->y_store, [&](auto format) {
        using F = decltype(format);
        return launch_tiles(be, lift_forward<F>, forward_shared<F>(), THREADS, t.tiles.count,
                            "an MLP", t);
    });
}

tg_status mlp_lift_half_backward(tg_backend *be, const tg_mlp *op) {
    return with_half_format(op->y_store, [&](auto format) {
        using F = decltype(format);
        const int parts = most_parts(be, op);
        const size_t shared = backward_shared<F>();
        mlp_task t = mlp_task_of(op, HIDDEN);
        int blocks = 0;
        tg_status status = TG_OK;
        mlp_lay_out(op->workspace, parts, sizes, &t);
        TG_TRY(tensor_blocks(be, (const void *)lift_backward<F>, shared, &blocks, THREADS));
        lift_backward<F><<<2 * parts, THREADS, shared, cuda_stream(be)>>>(t);
        TG_TRY(CUDA_LAUNCHED(be, "an MLP backwards"));
        TG_TRY(mlp_fold(be, op, t, parts, sizes));
    fail:
        return status;
    });
}
