/* Linear skips on halves, in one pass over the activations: as skip_tensor.cu, but the halves are
 * multiplied as they are (tile/half_stage.cuh). */
#include "backend/cuda/nn/skip_tensor.cuh"
#include "backend/cuda/tile/half_stage.cuh"

/* ---- forward ---- */

enum { FORWARD_WARPS = 8, FORWARD_THREADS = 32 * FORWARD_WARPS };

/* 16 rows of the result per warp, whose weights stay in registers. */
template <int C> using mix_result = frame<C, TILE, FORWARD_WARPS, C / 16>;

/* Two tiles, and what is held of the weights. */
template <int STORE, int C> constexpr size_t forward_shared() {
    return 2 * C * HALF_LD * sizeof(uint16_t) +
           FORWARD_WARPS * held_weights<STORE, C>::SHARED * sizeof(uint32_t);
}

template <int STORE, class P>
static __device__ inline void write_y(const mix_task &t, const P &p, const float (&bias)[2],
                                      tile_place place) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        each_eight<P>(0, h, t.out, t.tiles, place, [&](int r, int64_t at) {
            half_run run;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                run.word[j] = to_word<STORE>(p.at(0, h, r, 2 * j) + bias[h],
                                             p.at(0, h, r, 2 * j + 1) + bias[h]);
            }
            store_eight(t.y, at, run);
        });
    }
}

/* Two tiles in shared memory take turns: one barrier per tile. */
template <int STORE, int C>
static __global__ void __launch_bounds__(FORWARD_THREADS, 2) mix_halves_forward_kernel(mix_task t) {
    using P = mix_result<C>;
    uint16_t *u = dynamic_halves();
    half_share<C, FORWARD_THREADS> x;
    held_weights<STORE, C> w;
    float bias[2];
    const float scale[1][2] = {{t.beta, t.beta}};
    w.template load<P>(t.alpha, t.weight, t.out, t.in, t.in,
                       reinterpret_cast<uint32_t *>(u + 2 * C * HALF_LD));
    for (int h = 0; h < 2; h++) {
        bias[h] = t.bias && P::row(0, h) < t.out ? t.bias[P::row(0, h)] : 0.0f;
    }
    x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
    for (int tile = blockIdx.x; tile < t.tiles.count; tile += gridDim.x) {
        const tile_place place = place_of(t.tiles, tile);
        P p;
        eight_of<P> y;
        if (t.beta != 0.0f) {
            fetch_eight(y, t.y, t.tiles, place);
        }
        x.template put<STORE>(t.act, u);
        __syncthreads();
        if (tile + (int)gridDim.x < t.tiles.count) {
            x.fetch(t.x, t.tiles, place_of(t.tiles, tile + gridDim.x));
        }
        if (t.beta != 0.0f) {
            start_from_eight<STORE>(p, scale, y);
        } else {
            p.clear();
        }
        w.multiply(p, u);
        write_y<STORE>(t, p, bias, place);
        u = u == dynamic_halves() ? u + C * HALF_LD : dynamic_halves();
    }
}

/* ---- backward ---- */

template <int C> constexpr int back_warps = C / 8;
template <int C> constexpr int back_threads = 32 * back_warps<C>;

/* Halves: the weights, and two tiles of each of u and d, which take turns. */
template <int STORE, int C> constexpr int back_weights = terms_of<STORE> *C *half_ld(C);

template <int STORE, int C> constexpr size_t backward_shared() {
    return sizeof(uint16_t) * (size_t)(back_weights<STORE, C> + 4 * C * HALF_LD);
}

/* dx = alpha p act'(x); act NONE: no slope. */
template <int STORE, class P>
static __device__ inline void write_dx(const mix_task &t, const P &p, tile_place place) {
    const tg_act act = t.through ? t.act : TG_ACT_NONE;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        each_eight<P>(0, h, t.in, t.tiles, place, [&](int r, int64_t at) {
            half_run x = {}, run;
            if (act != TG_ACT_NONE) {
                x = load_eight(t.x, at);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float2 v = {t.alpha * p.at(0, h, r, 2 * j), t.alpha * p.at(0, h, r, 2 * j + 1)};
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

template <int STORE, int C>
static __global__ void __launch_bounds__(back_threads<C>, C > 64 ? 1 : 2)
    mix_halves_backward_kernel(mix_task t) {
    constexpr int WARPS = back_warps<C>, THREADS = back_threads<C>;
    using P = frame<C, TILE, WARPS, C / 16>;
    using D = frame<C, C, WARPS, 4>;
    uint16_t *w = dynamic_halves(), *u = w + back_weights<STORE, C>, *d = u + C * HALF_LD;
    half_share<C, THREADS> x, dy;
    half_sums<C, THREADS> sums;
    D dweight;
    const float ratio = t.beta / t.alpha, scale[1][2] = {{ratio, ratio}};
    put_weights<STORE, C, C, THREADS>(w, 1.0f, t.weight, t.out, t.in, t.in);
    dweight.clear();
    sums.clear();
    if (t.dweight) {
        x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
    }
    dy.fetch(t.dy, t.tiles, place_of(t.tiles, blockIdx.x));
    for (int tile = blockIdx.x, turn = 0; tile < t.tiles.count; tile += gridDim.x, turn ^= 1) {
        const tile_place place = place_of(t.tiles, tile);
        uint16_t *of_x = u + turn * 2 * C * HALF_LD, *of_dy = d + turn * 2 * C * HALF_LD;
        eight_of<P> old;
        if (t.dx.data && ratio != 0.0f) {
            fetch_eight(old, t.dx, t.tiles, place);
        }
        dy.template put<STORE>(TG_ACT_NONE, of_dy);
        sums.template add<STORE>(dy);
        if (t.dweight) {
            x.template put<STORE>(t.act, of_x);
        }
        __syncthreads();
        if (tile + (int)gridDim.x < t.tiles.count) {
            const tile_place next = place_of(t.tiles, tile + gridDim.x);
            dy.fetch(t.dy, t.tiles, next);
            if (t.dweight) {
                x.fetch(t.x, t.tiles, next);
            }
        }
        if (t.dweight) {
            add_half_correlation<STORE>(dweight, of_dy, of_x);
        }
        if (t.dx.data) {
            P p;
            if (ratio != 0.0f) {
                start_from_eight<STORE>(p, scale, old);
            } else {
                p.clear();
            }
            add_half_adjoint<STORE, C, C>(p, w, C * half_ld(C), of_dy);
            write_dx<STORE>(t, p, place);
        }
    }
    if (t.dweight) {
        store_half_partial(dweight, t.dweight + (int64_t)blockIdx.x * C * C, C);
    }
    if (t.dbias) {
        sums.store(t.dbias + (int64_t)blockIdx.x * C);
    }
}

/* ---- host ---- */

static int64_t channels_of(const tg_skip *op) {
    return op->in > op->out ? op->in : op->out;
}

/* Of a call that tensor cores take. */
bool mix_halves_takes(const tg_backend *be, const tg_skip *op, bool backward) {
    if (op->store == TG_STORE_FULL) {
        return false;
    }
    const mix_task t = mix_task_of(op);
    const size_t shared = channels_of(op) <= 64 ? backward_shared<TG_STORE_BF16, 64>()
                                                : backward_shared<TG_STORE_BF16, 128>();
    const bool aligned = backward ? has_octets(t.dy, op->pixels) && has_octets(t.dx, op->pixels)
                                  : has_octets(t.y, op->pixels);
    return aligned && has_octets(t.x, op->pixels) && tensor_fits(be, shared);
}

tg_status mix_halves_forward(tg_backend *be, const tg_skip *op) {
    const mix_task t = mix_task_of(op);
    return with_halves(op->store, channels_of(op), [&](auto store, auto size) {
        constexpr int C = decltype(size)::value;
        const auto kernel = mix_halves_forward_kernel<decltype(store)::value, C>;
        const size_t shared = forward_shared<decltype(store)::value, C>();
        int blocks = 0;
        tg_status status = tensor_blocks(be, (const void *)kernel, shared, &blocks);
        if (status == TG_OK) {
            blocks = blocks < t.tiles.count ? blocks : t.tiles.count;
            kernel<<<blocks, FORWARD_THREADS, shared, cuda_stream(be)>>>(t);
            status = CUDA_LAUNCHED(be, "adding a skip");
        }
        return status;
    });
}

tg_status mix_halves_backward(tg_backend *be, const tg_skip *op) {
    mix_task t = mix_task_of(op);
    return with_halves(op->store, channels_of(op), [&](auto store, auto size) {
        constexpr int STORE = decltype(store)::value, C = decltype(size)::value;
        const auto kernel = mix_halves_backward_kernel<STORE, C>;
        const size_t shared = backward_shared<STORE, C>();
        int blocks = 0;
        tg_status status = TG_OK;
        TG_TRY(tensor_blocks(be, (const void *)kernel, shared, &blocks, back_threads<C>));
        blocks = blocks < t.tiles.count ? blocks : t.tiles.count;
        mix_lay_out(op, blocks, C, &t);
        kernel<<<blocks, back_threads<C>, shared, cuda_stream(be)>>>(t);
        TG_TRY(CUDA_LAUNCHED(be, "a skip backwards"));
        TG_TRY(mix_fold(be, op, t, blocks, C));
    fail:
        return status;
    });
}
