/* Perceptrons on halves: as mlp_tensor.cu and mlp_tensor_backward.cu, but the halves are
 * multiplied as they are (tile/half_stage.cuh). C channels in and out, C / 2 hidden ones, or fewer.
 */
#include "backend/cuda/nn/mlp_half.cuh"

/* Halves of a term of w1 (C / 2, C) and of w2 (C, C / 2). */
template <int C> constexpr int w1_term = C / 2 * half_ld(C);
template <int C> constexpr int w2_term = C *half_ld(C / 2);

template <int HIDDEN, int THREADS>
static __device__ inline void put_bias(const mlp_task &t, float *b1) {
    for (int j = threadIdx.x; j < HIDDEN; j += THREADS) {
        b1[j] = j < t.hidden ? t.b1[j] : 0.0f;
    }
}

/* ---- forward ---- */

enum { FORWARD_WARPS = 8, FORWARD_THREADS = 32 * FORWARD_WARPS };

/* Where things lie in shared memory, in halves. The rest of w2 is in registers. */
template <int STORE, int C> struct forward_room {
    static constexpr int w1 = 0, rest = w1 + terms_of<STORE> * w1_term<C>;
    static constexpr int b1 = rest + 2 * FORWARD_WARPS * held_weights<STORE, C / 2>::SHARED;
    static constexpr int u = b1 + C / 2 * 2, h = u + C * HALF_LD, end = h + C / 2 * HALF_LD;
};

/* h = gelu(p + b1), to shared memory. */
template <int STORE, class P>
static __device__ inline void put_hidden(const P &p, const float *b1, uint16_t *h) {
#pragma unroll
    for (int i = 0; i < 2 * P::NT; i++) {
        const int n = i / 2, k = i % 2, row = P::row(0, k);
        const float *v = p.acc[0][n] + 2 * k;
        reinterpret_cast<uint32_t *>(h)[row * HALF_TILE_WORDS + P::word(n)] =
            to_word<STORE>(gelu(v[0] + b1[row]), gelu(v[1] + b1[row]));
    }
}

template <int STORE, int C>
static __global__ void __launch_bounds__(FORWARD_THREADS, 2) mlp_halves_forward_kernel(mlp_task t) {
    using room = forward_room<STORE, C>;
    using P = frame<C / 2, TILE, FORWARD_WARPS, C / 32>;
    using Y = frame<C, TILE, FORWARD_WARPS, C / 16>;
    uint16_t *shared = dynamic_halves(), *u = shared + room::u, *h = shared + room::h;
    float *b1 = reinterpret_cast<float *>(shared + room::b1);
    half_share<C, FORWARD_THREADS> x;
    held_weights<STORE, C / 2> w2;
    const row_terms terms = row_terms_of<Y>(t);
    put_weights<STORE, C / 2, C, FORWARD_THREADS>(shared + room::w1, 1.0f, t.w1, t.hidden, t.in,
                                                  t.in);
    w2.template load<Y>(t.alpha, t.w2, t.out, t.hidden, t.hidden,
                        reinterpret_cast<uint32_t *>(shared + room::rest));
    put_bias<C / 2, FORWARD_THREADS>(t, b1);
    x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
    for (int tile = blockIdx.x; tile < t.tiles.count; tile += gridDim.x) {
        const tile_place place = place_of(t.tiles, tile);
        eight_of<Y> start;
        Y y;
        fetch_start(t, start, place);
        x.template put<STORE>(t.act, u); /* the barrier below was behind the last use of u */
        __syncthreads();
        if (tile + (int)gridDim.x < t.tiles.count) {
            x.fetch(t.x, t.tiles, place_of(t.tiles, tile + gridDim.x));
        }
        P p;
        p.clear();
        add_half_product<STORE, C>(p, shared + room::w1, w1_term<C>, u);
        put_hidden<STORE>(p, b1, h);
        start_y<STORE>(t, terms, start, y, place);
        __syncthreads();
        w2.multiply(y, h);
        write_result<STORE>(t, y, place);
    }
}

/* ---- backward ---- */

template <int C> constexpr int back_warps = C / 8;
template <int C> constexpr int back_threads = 32 * back_warps<C>;

template <int STORE, int C> struct backward_room {
    static constexpr int w1 = 0, w2 = w1 + terms_of<STORE> * w1_term<C>;
    static constexpr int b1 = w2 + terms_of<STORE> * w2_term<C>;
    static constexpr int u = b1 + C / 2 * 2, d = u + C * HALF_LD, slopes = d + C * HALF_LD;
    static constexpr int h = slopes + C * HALF_LD, dh = h + C / 2 * HALF_LD;
    static constexpr int end = dh + C / 2 * HALF_LD;
};

/* p becomes gelu'(p + b1); h = gelu(p + b1). */
template <int STORE, class P>
static __device__ inline void hidden_slopes(P &p, const float *b1, uint16_t *h) {
#pragma unroll
    for (int i = 0; i < 2 * P::NT; i++) {
        const int n = i / 2, k = i % 2, row = P::row(0, k);
        float *v = p.acc[0][n] + 2 * k, value[2];
        v[0] = gelu_slope(v[0] + b1[row], &value[0]);
        v[1] = gelu_slope(v[1] + b1[row], &value[1]);
        reinterpret_cast<uint32_t *>(h)[row * HALF_TILE_WORDS + P::word(n)] =
            to_word<STORE>(value[0], value[1]);
    }
}

/* dh = slope dp, and its sums over the thread's pixels. */
template <int STORE, class P>
static __device__ inline void put_hidden_gradient(const P &slope, const P &dp, uint16_t *dh,
                                                  double (&sums)[2]) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < P::NT; n++) {
            const float a = slope.acc[0][n][2 * k] * dp.acc[0][n][2 * k];
            const float b = slope.acc[0][n][2 * k + 1] * dp.acc[0][n][2 * k + 1];
            sum += a + b;
            reinterpret_cast<uint32_t *>(dh)[P::row(0, k) * HALF_TILE_WORDS + P::word(n)] =
                to_word<STORE>(a, b);
        }
        sums[k] += (double)sum;
    }
}

/* dx = alpha p times the slopes in shared memory; slopes NULL: ones. */
template <int STORE, class P>
static __device__ inline void write_dx(const mlp_task &t, const P &p, const uint16_t *slopes,
                                       tile_place place) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
        each_eight<P>(0, k, t.in, t.tiles, place, [&](int r, int64_t at) {
            half_run run;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float2 slope = {1.0f, 1.0f};
                if (slopes) {
                    const int word = P::row(0, k) * HALF_TILE_WORDS + P::word(4 * r + j);
                    slope = of_word<STORE>(reinterpret_cast<const uint32_t *>(slopes)[word]);
                }
                run.word[j] = to_word<STORE>(t.alpha * p.at(0, k, r, 2 * j) * slope.x,
                                             t.alpha * p.at(0, k, r, 2 * j + 1) * slope.y);
            }
            store_eight(t.dx, at, run);
        });
    }
}

template <int STORE, int C>
static __global__ void __launch_bounds__(back_threads<C>, C > 64 ? 1 : 2)
    mlp_halves_backward_kernel(mlp_task t) {
    constexpr int WARPS = back_warps<C>, THREADS = back_threads<C>, HIDDEN = C / 2;
    using room = backward_room<STORE, C>;
    using H = frame<HIDDEN, TILE, WARPS, HIDDEN / 16>;
    using X = frame<C, TILE, WARPS, C / 16>;
    uint16_t *shared = dynamic_halves(), *u = shared + room::u, *d = shared + room::d;
    uint16_t *h = shared + room::h, *dh = shared + room::dh;
    uint16_t *slopes = t.through && t.act != TG_ACT_NONE ? shared + room::slopes : NULL;
    const uint16_t *w1 = shared + room::w1, *w2 = shared + room::w2;
    float *b1 = reinterpret_cast<float *>(shared + room::b1);
    half_share<C, THREADS> x, dy;
    frame<HIDDEN, C, WARPS, HIDDEN / 16> dw1;
    frame<C, HIDDEN, WARPS, C / 16> dw2;
    half_sums<C, THREADS> db2;
    double db1[2] = {0.0, 0.0};
    const float ratio = t.beta / t.alpha, scale[1][2] = {{ratio, ratio}};
    put_weights<STORE, HIDDEN, C, THREADS>(shared + room::w1, 1.0f, t.w1, t.hidden, t.in, t.in);
    put_weights<STORE, C, HIDDEN, THREADS>(shared + room::w2, 1.0f, t.w2, t.out, t.hidden,
                                           t.hidden);
    put_bias<HIDDEN, THREADS>(t, b1);
    dw1.clear();
    dw2.clear();
    db2.clear();
    x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
    dy.fetch(t.dy, t.tiles, place_of(t.tiles, blockIdx.x));
    for (int tile = blockIdx.x; tile < t.tiles.count; tile += gridDim.x) {
        const tile_place place = place_of(t.tiles, tile);
        eight_of<X> old;
        if (t.dx.data && ratio != 0.0f) {
            fetch_eight(old, t.dx, t.tiles, place);
        }
        __syncthreads(); /* the tile before is done with shared memory */
        x.template put<STORE>(t.act, u, slopes);
        dy.template put<STORE>(TG_ACT_NONE, d);
        db2.template add<STORE>(dy);
        __syncthreads();
        if (tile + (int)gridDim.x < t.tiles.count) {
            x.fetch(t.x, t.tiles, place_of(t.tiles, tile + gridDim.x));
            dy.fetch(t.dy, t.tiles, place_of(t.tiles, tile + gridDim.x));
        }
        H slope, dp;
        slope.clear();
        dp.clear();
        add_half_product<STORE, C>(slope, w1, w1_term<C>, u);
        hidden_slopes<STORE>(slope, b1, h);
        add_half_adjoint<STORE, C, HIDDEN>(dp, w2, w2_term<C>, d);
        put_hidden_gradient<STORE>(slope, dp, dh, db1);
        __syncthreads();
        add_half_correlation<STORE>(dw2, d, h);
        add_half_correlation<STORE>(dw1, dh, u);
        if (t.dx.data) {
            X dx;
            if (ratio != 0.0f) {
                start_from_eight<STORE>(dx, scale, old);
            } else {
                dx.clear();
            }
            add_half_adjoint<STORE, HIDDEN, C>(dx, w1, w1_term<C>, dh);
            write_dx<STORE>(t, dx, slopes, place);
        }
    }
    store_half_partial(dw1, t.dw1 + (int64_t)blockIdx.x * HIDDEN * C, C);
    store_half_partial(dw2, t.dw2 + (int64_t)blockIdx.x * C * HIDDEN, HIDDEN);
    store_row_sums<HIDDEN, H>(db1, reinterpret_cast<double *>(u),
                              t.db1 + (int64_t)blockIdx.x * HIDDEN);
    db2.store(t.db2 + (int64_t)blockIdx.x * C);
}

/* ---- host ---- */

static int64_t channels_of(const tg_mlp *op) {
    return op->in > op->out ? op->in : op->out;
}

template <class ROOM> constexpr size_t bytes_of = sizeof(uint16_t) * (size_t)ROOM::end;

/* Of a call that tensor cores take, other than those with few channels at one end. */
bool mlp_halves_takes(const tg_backend *be, const tg_mlp *op, bool backward) {
    const int64_t channels = channels_of(op);
    if (op->x_store == TG_STORE_FULL || op->y_store != op->x_store || op->in <= 16 ||
        op->out <= 16 || op->hidden > (channels <= 64 ? 32 : 64)) {
        return false;
    }
    const mlp_task t = mlp_task_of(op, (int)op->hidden);
    const bool aligned = backward ? has_octets(t.dy, op->pixels) && has_octets(t.dx, op->pixels)
                                  : has_octets(t.y, op->pixels) && has_octets(t.add, op->pixels) &&
                                        has_octets(t.activated, op->pixels);
    const size_t shared = channels <= 64 ? (backward ? bytes_of<backward_room<TG_STORE_BF16, 64>>
                                                     : bytes_of<forward_room<TG_STORE_BF16, 64>>)
                                         : (backward ? bytes_of<backward_room<TG_STORE_BF16, 128>>
                                                     : bytes_of<forward_room<TG_STORE_BF16, 128>>);
    return aligned && has_octets(t.x, op->pixels) && tensor_fits(be, shared);
}

tg_status mlp_halves_forward(tg_backend *be, const tg_mlp *op) {
    return with_halves(op->x_store, channels_of(op), [&](auto store, auto size) {
        constexpr int STORE = decltype(store)::value, C = decltype(size)::value;
        const mlp_task t = mlp_task_of(op, C / 2);
        const auto kernel = mlp_halves_forward_kernel<STORE, C>;
        const size_t shared = bytes_of<forward_room<STORE, C>>;
        int blocks = 0;
        tg_status status = tensor_blocks(be, (const void *)kernel, shared, &blocks);
        if (status == TG_OK) {
            blocks = blocks < t.tiles.count ? blocks : t.tiles.count;
            kernel<<<blocks, FORWARD_THREADS, shared, cuda_stream(be)>>>(t);
            status = CUDA_LAUNCHED(be, "a perceptron");
        }
        return status;
    });
}

tg_status mlp_halves_backward(tg_backend *be, const tg_mlp *op) {
    return with_halves(op->x_store, channels_of(op), [&](auto store, auto size) {
        constexpr int STORE = decltype(store)::value, C = decltype(size)::value;
        mlp_task t = mlp_task_of(op, C / 2);
        const auto kernel = mlp_halves_backward_kernel<STORE, C>;
        const size_t shared = bytes_of<backward_room<STORE, C>>;
        int blocks = 0;
        tg_status status = TG_OK;
        TG_TRY(tensor_blocks(be, (const void *)kernel, shared, &blocks, back_threads<C>));
        blocks = blocks < t.tiles.count ? blocks : t.tiles.count;
        mlp_lay_out(op, blocks, {C, C / 2, C}, &t);
        kernel<<<blocks, back_threads<C>, shared, cuda_stream(be)>>>(t);
        TG_TRY(CUDA_LAUNCHED(be, "a perceptron backwards"));
        TG_TRY(mlp_fold(be, op, t, blocks, {C, C / 2, C}));
    fail:
        return status;
    });
}
