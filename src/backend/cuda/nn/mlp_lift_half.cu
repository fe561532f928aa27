/* Perceptrons from few full channels to many that are stored as halves, as liftings are. The first
 * product, over few channels, is one step of TF32; the second is one of halves
 * (tile/half_products.cuh), the hidden layer rounded as if it were stored. Backward makes no dx.
 *
 * Forward a block holds all weights. Backward it has half of the hidden channels. */
#include "backend/cuda/nn/mlp_half.cuh"

enum {
    FEW = 8,   /* channels in as a step of TF32 has them */
    IN = 4,    /* channels in at most */
    OUT = 128, /* channels out at most */
    HIDDEN = 256 /* at most */,
    LIFT_WARPS = 16,
    LIFT_THREADS = 32 * LIFT_WARPS, /* one for each number of the input of a tile */
    FEW_LD = TILE + 8               /* of the input in shared memory: no bank conflicts */
};
static_assert(LIFT_THREADS == FEW * TILE, "a thread for each number");

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

/* Two tiles of the input and of the hidden layer take turns. */
template <int STORE> constexpr size_t forward_shared() {
    return sizeof(float) * (size_t)(2 * FEW * FEW_LD) +
           sizeof(uint16_t) * (size_t)(2 * HIDDEN * HALF_LD) +
           sizeof(uint32_t) * (size_t)(LIFT_WARPS * held_weights<STORE, HIDDEN>::SHARED);
}

/* One barrier per tile: behind it, what a warp writes of the next tile is in the other half of the
 * room, so that some warps make hidden layers while others multiply them. */
template <int STORE>
static __global__ void __launch_bounds__(LIFT_THREADS, 1) lift_forward(mlp_task t) {
    using Y = frame<OUT, TILE, LIFT_WARPS, OUT / 16>;
    float *x = dynamic_shared();
    uint16_t *h = reinterpret_cast<uint16_t *>(x + 2 * FEW * FEW_LD);
    first_layer w1;
    held_weights<STORE, HIDDEN> w2;
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, step = gridDim.x;
    const row_terms terms = row_terms_of<Y>(t);
    w1.load(t, row);
    w2.template load<Y>(t.alpha, t.w2, t.out, t.hidden, t.hidden,
                        reinterpret_cast<uint32_t *>(h + 2 * HIDDEN * HALF_LD));
    put_input(t, fetch_input(t, blockIdx.x), x);
    float next = (int)blockIdx.x + step < t.tiles.count ? fetch_input(t, blockIdx.x + step) : 0.0f;
    __syncthreads();
    for (int tile = blockIdx.x, turn = 0; tile < t.tiles.count; tile += step, turn ^= 1) {
        const tile_place place = place_of(t.tiles, tile);
        const float *input = x + turn * FEW * FEW_LD;
        uint16_t *hidden = h + turn * HIDDEN * HALF_LD;
        eight_of<Y> start;
        Y y;
        fetch_start(t, start, place);
#pragma unroll 4
        for (int n = 0; n < TILE / 8; n++) {
            float c[4];
            w1.multiply(c, input, 8 * n);
            uint32_t *to = reinterpret_cast<uint32_t *>(hidden) + 4 * n + threadIdx.x % 4;
            to[row * HALF_TILE_WORDS] = to_word<STORE>(gelu(c[0]), gelu(c[1]));
            to[(row + 8) * HALF_TILE_WORDS] = to_word<STORE>(gelu(c[2]), gelu(c[3]));
        }
        put_input(t, next, x + (turn ^ 1) * FEW * FEW_LD);
        __syncthreads();
        if (tile + 2 * step < t.tiles.count) {
            next = fetch_input(t, tile + 2 * step);
        }
        start_y<STORE>(t, terms, start, y, place);
        w2.multiply(y, hidden);
        write_result<STORE>(t, y, place);
    }
}

/* ---- backward ---- */

enum { PART = HIDDEN / 2 }; /* hidden channels of a block */

template <int STORE> constexpr int back_weights = terms_of<STORE> *OUT *half_ld(PART);

/* The weights, two tiles of dy and of the input which take turns, and the hidden layer. */
template <int STORE> constexpr size_t backward_shared() {
    return sizeof(uint16_t) * (size_t)(back_weights<STORE> + 2 * OUT * HALF_LD + PART * HALF_LD) +
           sizeof(float) * (size_t)(2 * FEW * FEW_LD);
}

using lift_frame = frame<PART, TILE, LIFT_WARPS, PART / 16>;

/* p = gelu'(w1 x + b1), h = gelu of the same. */
template <int STORE>
static __device__ inline void make_hidden(const first_layer &w1, const float *x, lift_frame &p,
                                          uint16_t *h) {
    using P = lift_frame;
#pragma unroll
    for (int n = 0; n < P::NT; n++) {
        float value[4];
        w1.multiply(p.acc[0][n], x, P::first_column() + 8 * n);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p.acc[0][n][i] = gelu_slope(p.acc[0][n][i], &value[i]);
        }
        for (int k = 0; k < 2; k++) {
            reinterpret_cast<uint32_t *>(h)[P::row(0, k) * HALF_TILE_WORDS + P::word(n)] =
                to_word<STORE>(value[2 * k], value[2 * k + 1]);
        }
    }
}

/* The thread's part of the sums over pixels of dp, and of dp x^T. */
struct input_sums {
    double db1[2];
    float dw1[2][IN];

    __device__ void clear() {
        for (int i = 0; i < 2 * IN; i++) {
            db1[i % 2] = 0.0;
            dw1[i % 2][i / 2] = 0.0f;
        }
    }
    __device__ void add(const lift_frame &dp, const float *x, int channels) {
        using P = lift_frame;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < P::NT; n++) {
                sum += dp.acc[0][n][2 * k] + dp.acc[0][n][2 * k + 1];
            }
            db1[k] += (double)sum;
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
template <int STORE>
static __global__ void __launch_bounds__(LIFT_THREADS, 1) lift_backward(mlp_task t) {
    using P = lift_frame;
    const int half = blockIdx.x % 2, part = blockIdx.x / 2, parts = gridDim.x / 2;
    const int first = half * PART;
    uint16_t *w2 = dynamic_halves(), *d = w2 + back_weights<STORE>, *h = d + 2 * OUT * HALF_LD;
    float *x = reinterpret_cast<float *>(h + PART * HALF_LD);
    half_share<OUT, LIFT_THREADS> dy;
    half_sums<OUT, LIFT_THREADS> db2;
    frame<OUT, PART, LIFT_WARPS, 4> dw2;
    first_layer w1;
    input_sums sums;
    w1.load(t, first + P::row(0, 0));
    put_weights<STORE, OUT, PART, LIFT_THREADS>(w2, 1.0f, t.w2 + first, t.out, t.hidden - first,
                                                t.hidden);
    dw2.clear();
    db2.clear();
    sums.clear();
    dy.fetch(t.dy, t.tiles, place_of(t.tiles, part));
    float next = fetch_input(t, part);
    for (int tile = part, turn = 0; tile < t.tiles.count; tile += parts, turn ^= 1) {
        uint16_t *of_dy = d + turn * OUT * HALF_LD;
        float *input = x + turn * FEW * FEW_LD;
        P slope, dp;
        dy.template put<STORE>(TG_ACT_NONE, of_dy);
        db2.template add<STORE>(dy);
        put_input(t, next, input);
        __syncthreads();
        if (tile + parts < t.tiles.count) {
            dy.fetch(t.dy, t.tiles, place_of(t.tiles, tile + parts));
            next = fetch_input(t, tile + parts);
        }
        make_hidden<STORE>(w1, input, slope, h);
        dp.clear();
        add_half_adjoint<STORE, OUT, PART>(dp, w2, OUT * half_ld(PART), of_dy);
        for (int n = 0; n < P::NT; n++) {
            for (int i = 0; i < 4; i++) {
                dp.acc[0][n][i] *= slope.acc[0][n][i];
            }
        }
        sums.add(dp, input, t.in);
        __syncthreads();
        add_half_correlation<STORE>(dw2, of_dy, h);
    }
    double *room = reinterpret_cast<double *>(d);
    const int64_t channel = (int64_t)part * HIDDEN + first;
    store_half_partial(dw2, t.dw2 + (int64_t)part * OUT * HIDDEN + first, HIDDEN);
    store_row_sums<PART, P>(sums.db1, room, t.db1 + channel);
#pragma unroll
    for (int c = 0; c < IN; c++) {
        const double of_channel[2] = {(double)sums.dw1[0][c], (double)sums.dw1[1][c]};
        store_row_sums<PART, P>(of_channel, room, t.wide_dw1 + channel * IN + c, IN);
    }
    if (half == 0) {
        db2.store(t.db2 + (int64_t)part * OUT);
    }
}

/* ---- host ---- */

static bool has_shape(const tg_backend *be, const tg_mlp *op) {
    return op->dtype == TG_F32 && be->math == TG_MATH_TF32 && op->x_store == TG_STORE_FULL &&
           op->y_store != TG_STORE_FULL && op->in >= 1 && op->in <= IN && op->out > OUT / 2 &&
           op->out <= OUT && op->hidden > PART && op->hidden <= HIDDEN && op->pixels % 8 == 0 &&
           tiles_countable(op->batch, op->pixels) &&
           tensor_fits(be, forward_shared<TG_STORE_BF16>()) &&
           tensor_fits(be, backward_shared<TG_STORE_BF16>());
}

bool mlp_lift_halves_takes(const tg_backend *be, const tg_mlp *op, bool backward) {
    const uintptr_t forward = (uintptr_t)op->y | (uintptr_t)op->add | (uintptr_t)op->activated;
    return has_shape(be, op) && op->dropout == 0.0 && op->alpha != 0.0 &&
           (backward ? !op->dx && (uintptr_t)op->dy % 16 == 0 : forward % 16 == 0);
}

static int most_parts(const tg_backend *be, const tg_mlp *op) {
    const int parts = cuda_state_of(be)->processors / 2;
    const int tiles = pixel_tiles_of(op->batch, op->pixels).count;
    return parts < 1 ? 1 : parts < tiles ? parts : tiles;
}

size_t mlp_lift_halves_workspace(const tg_backend *be, const tg_mlp *op) {
    return has_shape(be, op)
               ? (size_t)most_parts(be, op) *
                     ((HIDDEN + OUT + HIDDEN * IN) * sizeof(double) + OUT * HIDDEN * sizeof(float))
               : 0;
}

tg_status mlp_lift_halves_forward(tg_backend *be, const tg_mlp *op) {
    const mlp_task t = mlp_task_of(op, HIDDEN);
    const bool brain = op->y_store == TG_STORE_BF16;
    const auto kernel = brain ? lift_forward<TG_STORE_BF16> : lift_forward<TG_STORE_F16>;
    const size_t shared = brain ? forward_shared<TG_STORE_BF16>() : forward_shared<TG_STORE_F16>();
    int blocks = 0;
    tg_status status = tensor_blocks(be, (const void *)kernel, shared, &blocks, LIFT_THREADS);
    if (status == TG_OK) {
        blocks = blocks < t.tiles.count ? blocks : t.tiles.count;
        kernel<<<blocks, LIFT_THREADS, shared, cuda_stream(be)>>>(t);
        status = CUDA_LAUNCHED(be, "a perceptron");
    }
    return status;
}

tg_status mlp_lift_halves_backward(tg_backend *be, const tg_mlp *op) {
    const bool brain = op->y_store == TG_STORE_BF16;
    const auto kernel = brain ? lift_backward<TG_STORE_BF16> : lift_backward<TG_STORE_F16>;
    const size_t shared =
        brain ? backward_shared<TG_STORE_BF16>() : backward_shared<TG_STORE_F16>();
    const int64_t parts = most_parts(be, op);
    mlp_task t = mlp_task_of(op, HIDDEN);
    fold_jobs jobs = {};
    int blocks = 0;
    tg_status status = TG_OK;
    t.db1 = static_cast<double *>(op->workspace);
    t.db2 = t.db1 + parts * HIDDEN;
    t.wide_dw1 = t.db2 + parts * OUT;
    t.dw2 = reinterpret_cast<float *>(t.wide_dw1 + parts * HIDDEN * IN);
    TG_TRY(tensor_blocks(be, (const void *)kernel, shared, &blocks, LIFT_THREADS));
    kernel<<<(unsigned)(2 * parts), LIFT_THREADS, shared, cuda_stream(be)>>>(t);
    TG_TRY(CUDA_LAUNCHED(be, "a perceptron backwards"));
    jobs.job[0] = {
        t.wide_dw1, HIDDEN * IN, t.hidden, t.in, IN, true, static_cast<float *>(op->dw1)};
    jobs.job[1] = {
        t.dw2, OUT * HIDDEN, t.out, t.hidden, HIDDEN, false, static_cast<float *>(op->dw2)};
    jobs.job[2] = {t.db1, HIDDEN, 1, t.hidden, HIDDEN, true, static_cast<float *>(op->db1)};
    jobs.job[3] = {t.db2, OUT, 1, t.out, OUT, true, static_cast<float *>(op->db2)};
    jobs.jobs = 4;
    jobs.parts = (int)parts;
    for (int i = 0; i < 4; i++) {
        jobs.scale[i] = op->alpha;
    }
    TG_TRY(fold_partials(be, jobs));
fail:
    return status;
}
