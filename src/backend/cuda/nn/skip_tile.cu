/* Linear skip connections in one pass over the activations, on tensor cores (tile/):
 *   y = beta y + alpha W act(x) + bias,
 * and backward the gradients of weight, bias and input together. C channels in and out, or fewer.
 *
 * 16-bit activations are multiplied in their own format. Their tiles are half as large, so two
 * buffers alternate and one barrier per tile is enough; forward keeps the weights in registers. */
#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/stage.cuh"

struct skip_task {
    pixel_tiles tiles;
    int in, out;
    tg_act act;
    bool through;
    const float *weight; /* (out, in) */
    const float *bias;   /* (out); NULL: none */
    float alpha, beta;
    activation x, y, dy, dx;
    float *dweight; /* partial sums (blocks, C, C); NULL: not wanted */
    double *dbias;  /* likewise (blocks, C) */
};

/* Tiles of an activation in shared memory. */
template <class F> constexpr int BUFFERS = F::HALF ? 2 : 1;

/* ---- forward ---- */

enum { FORWARD_WARPS = 8 };

template <class F, int C> using result_tile = warp_tile<F, C, TILE, FORWARD_WARPS>;

template <class F, int C> struct forward_weights { using type = shared_weights<F, C, C>; };
template <int STORE, int C> struct forward_weights<half_format<STORE>, C> {
    using type = held_weights<result_tile<half_format<STORE>, C>, C>;
};

template <class F, int C> constexpr size_t forward_shared() {
    return forward_weights<F, C>::type::template bytes<FORWARD_WARPS> +
           BUFFERS<F> * tile_bytes<F>(C);
}

template <class F, int C, int KNOWN>
static __global__ void __launch_bounds__(TENSOR_THREADS, 2) skip_forward(skip_task t) {
    using P = result_tile<F, C>;
    using number = typename F::number;
    pdl_wait_and_launch_dependents();
    assume<KNOWN>(t.x);
    assume<KNOWN>(t.y);
    shared_room room = dynamic_shared();
    typename forward_weights<F, C>::type w;
    w.template load<FORWARD_WARPS>(room, {t.alpha, t.weight, t.out, t.in, t.in});
    number *u = room.take<number>(C * F::LD), *other = BUFFERS<F> == 2 ? u + C * F::LD : u;
    tile_share<F, C, TENSOR_THREADS> x;
    float bias[P::MT][2];
    for (int i = 0; i < 2 * P::MT; i++) {
        const int row = P::row(i / 2, i % 2);
        bias[i / 2][i % 2] = t.bias && row < t.out ? t.bias[row] : 0.0f;
    }
    x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
    for (int tile = blockIdx.x; tile < t.tiles.count; tile += gridDim.x) {
        const tile_place place = place_of(t.tiles, tile);
        prefetched<P> y;
        P p;
        y.fetch(p, t.y, t.tiles, place, t.beta != 0.0f);
        if (BUFFERS<F> == 1) {
            __syncthreads(); /* the previous tile's u is no longer read */
        }
        x.put(t.x.store, t.act, u);
        __syncthreads();
        if (tile + (int)gridDim.x < t.tiles.count) {
            x.fetch(t.x, t.tiles, place_of(t.tiles, tile + gridDim.x));
        }
        y.start(p, t.y.store, [&](int, int, float v) { return t.beta * v; });
        add_product(p, w, u);
        write_tile(p, NULL, t.y, t.tiles, place,
                   [&](int m, int h, float v, float) { return v + bias[m][h]; });
        number *used = u;
        u = other;
        other = used;
    }
}

/* ---- backward ---- */

template <class F, int C> constexpr int back_warps = F::HALF ? C / 8 : 8;

template <class F, int C> constexpr size_t backward_shared() {
    return shared_weights<F, C, C>::template bytes<back_warps<F, C>> +
           2 * BUFFERS<F> * tile_bytes<F>(C);
}

template <class F, int C, int KNOWN>
static __global__ void __launch_bounds__(32 * back_warps<F, C>, C > 64 ? 1 : 2)
    skip_backward(skip_task t) {
    constexpr int WARPS = back_warps<F, C>, THREADS = 32 * WARPS, SIZE = C * F::LD;
    using P = warp_tile<F, C, TILE, WARPS>;
    using number = typename F::number;
    assume<KNOWN>(t.x);
    assume<KNOWN>(t.dy);
    assume<KNOWN>(t.dx);
    shared_room room = dynamic_shared();
    shared_weights<F, C, C> w;
    w.template load<WARPS>(room, {1.0f, t.weight, t.out, t.in, t.in});
    number *tiles = room.take<number>(2 * BUFFERS<F> * SIZE);
    tile_share<F, C, THREADS> x, dy;
    row_sums<F, C, THREADS> sums;
    warp_tile<F, C, C, WARPS> dweight;
    const float ratio = t.beta / t.alpha;
    dweight.clear();
    sums.clear();
    if (t.dweight) {
        x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
    }
    dy.fetch(t.dy, t.tiles, place_of(t.tiles, blockIdx.x));
    for (int tile = blockIdx.x, turn = 0; tile < t.tiles.count; tile += gridDim.x, turn ^= 1) {
        const tile_place place = place_of(t.tiles, tile);
        number *u = BUFFERS<F> == 2 ? tiles + turn * 2 * SIZE : tiles, *d = u + SIZE;
        prefetched<P> old;
        P p;
        if (F::HALF) { /* has enough registers */
            old.fetch(p, t.dx, t.tiles, place, t.dx.data && ratio != 0.0f);
        }
        if (BUFFERS<F> == 1) {
            __syncthreads(); /* the previous tile's u and d are no longer read */
        }
        dy.put(t.dy.store, TG_ACT_NONE, d);
        sums.add(dy, t.dy.store);
        if (t.dweight) {
            x.put(t.x.store, t.act, u);
        }
        __syncthreads();
        if (tile + (int)gridDim.x < t.tiles.count) {
            const tile_place next = place_of(t.tiles, tile + gridDim.x);
            dy.fetch(t.dy, t.tiles, next);
            if (t.dweight) {
                x.fetch(t.x, t.tiles, next);
            }
        }
        if (!F::HALF) {
            old.fetch(p, t.dx, t.tiles, place, t.dx.data && ratio != 0.0f);
        }
        if (t.dweight) {
            add_correlation(dweight, d, u);
        }
        if (t.dx.data) {
            old.start(p, t.dx.store, [&](int, int, float v) { return ratio * v; });
            add_adjoint_product(p, w, d);
            write_input_gradient(p, t.through ? t.act : TG_ACT_NONE, t.alpha, t.x, t.dx, t.tiles,
                                 place);
        }
    }
    if (t.dweight) {
        store_partial(dweight, t.dweight + (int64_t)blockIdx.x * C * C, C);
    }
    if (t.dbias) {
        sums.store(t.dbias + (int64_t)blockIdx.x * C);
    }
}

/* ---- which kernel ---- */

static skip_task task_of(const tg_skip *op) {
    skip_task t = {};
    t.tiles = pixel_tiles_of(op->batch, op->pixels);
    t.in = (int)op->in;
    t.out = (int)op->out;
    t.act = op->act;
    t.through = op->through;
    t.weight = static_cast<const float *>(op->weight);
    t.bias = static_cast<const float *>(op->bias);
    t.alpha = (float)op->alpha;
    t.beta = (float)op->beta;
    t.x = activation_of(op->x, op->store, op->in, op->pixels);
    t.y = activation_of(op->y, op->store, op->out, op->pixels);
    t.dy = activation_of(op->dy, op->store, op->out, op->pixels);
    t.dx = activation_of(op->dx, op->store, op->in, op->pixels);
    return t;
}

static int channels_of(const tg_skip *op) {
    return op->in <= 64 && op->out <= 64 ? 64 : 128;
}

/* Whether 16-bit activations are multiplied in their own format; else they are widened. */
static bool is_half_call(const tg_backend *be, const tg_skip *op, const skip_task &t) {
    const size_t shared = channels_of(op) == 64 ? backward_shared<bf16, 64>() //
                                                : backward_shared<bf16, 128>();
    const bool aligned = op->backward ? has_octets(t.dy, op->pixels) && has_octets(t.dx, op->pixels)
                                      : has_octets(t.y, op->pixels);
    return be->math == TG_MATH_TF32 && op->store != TG_STORE_FULL && aligned &&
           has_octets(t.x, op->pixels) && tensor_fits(be, shared);
}

/* f(format, C, KNOWN) of a call. */
template <class G>
static tg_status with_kernel(const tg_backend *be, const tg_skip *op, const skip_task &t, G f) {
    const auto with_channels = [&](auto format, auto how) {
        return with_size<64, 128>(channels_of(op), [&](auto size) { return f(format, size, how); });
    };
    if (is_half_call(be, op, t)) {
        return with_half_format(op->store, [&](auto format) {
            return with_channels(format, known<decltype(format)::STORE>());
        });
    }
    const bool whole = is_whole(t.x) && (op->backward ? is_whole(t.dy) && is_whole(t.dx) //
                                                      : is_whole(t.y));
    if (be->math != TG_MATH_TF32) { /* supports f32 storage only */
        return whole ? with_channels(split_f32(), known<TG_STORE_FULL>())
                     : with_channels(split_f32(), known<LOOSE>());
    }
    return with_known(op->store, whole, [&](auto how) { return with_channels(tf32(), how); });
}

bool skip_tile_supports(const tg_backend *be, const tg_skip *op) {
    return op->dtype == TG_F32 && (be->math == TG_MATH_TF32 || op->store == TG_STORE_FULL) &&
           op->kind == TG_SKIP_MAP_LINEAR && op->alpha != 0.0 && op->in <= 128 && op->out <= 128 &&
           tiles_countable(op->batch, op->pixels) &&
           tensor_fits(be, channels_of(op) == 64 ? backward_shared<tf32, 64>()
                                                 : backward_shared<tf32, 128>());
}

tg_status skip_tile_forward(tg_backend *be, const tg_skip *op) {
    const skip_task t = task_of(op);
    return with_kernel(be, op, t, [&](auto format, auto size, auto how) {
        using F = decltype(format);
        constexpr int C = decltype(size)::value;
        return launch_tiles(be, skip_forward<F, C, decltype(how)::value>, forward_shared<F, C>(),
                            TENSOR_THREADS, t.tiles.count, "adding a skip", t);
    });
}

size_t skip_tile_workspace(const tg_backend *be, const tg_skip *op) {
    if (!skip_tile_supports(be, op)) {
        return 0;
    }
    const int64_t most = (int64_t)cuda_state_of(be)->processors * TENSOR_BLOCKS;
    const int64_t tiles = pixel_tiles_of(op->batch, op->pixels).count;
    const size_t c = (size_t)channels_of(op);
    return (size_t)tg_min(tiles, most) * (c * c * sizeof(float) + c * sizeof(double));
}

tg_status skip_tile_backward(tg_backend *be, const tg_skip *op) {
    skip_task t = task_of(op);
    return with_kernel(be, op, t, [&](auto format, auto size, auto how) {
        using F = decltype(format);
        constexpr int C = decltype(size)::value, THREADS = 32 * back_warps<F, C>;
        const auto kernel = skip_backward<F, C, decltype(how)::value>;
        const size_t shared = backward_shared<F, C>();
        int blocks = 0;
        TG_CALL(tensor_blocks(be, (const void *)kernel, shared, THREADS, &blocks));
        blocks = blocks < t.tiles.count ? blocks : t.tiles.count;
        t.dbias = op->dbias ? static_cast<double *>(op->workspace) : NULL;
        t.dweight =
            op->dweight ? static_cast<float *>(op->workspace) + 2 * (int64_t)blocks * C : NULL;
        TG_CALL(launch_alone(be, "a skip backwards", kernel, blocks, THREADS, shared, t));
        return fold_partials(
            be, {{{t.dweight, C * C, t.out, t.in, C, false, static_cast<float *>(op->dweight)},
                  {t.dbias, C, 1, t.out, C, true, static_cast<float *>(op->dbias)}},
                 2,
                 blocks,
                 {op->alpha, 1.0}});
    });
}
