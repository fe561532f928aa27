/* Linear skips in one pass over the activations: y = beta y + alpha W act(x) + bias, and backward
 * the gradients of weight, bias and input together. C channels in and out, or fewer. */
#include "backend/cuda/nn/skip_tensor.cuh"

template <int C> constexpr size_t mix_shared(bool backward) {
    return sizeof(float) * (size_t)(C * C + (backward ? 2 : 1) * C * TILE_LD);
}

/* ---- forward ---- */

/* y = p + bias; `bias` of the thread's rows. */
template <int C>
static __device__ inline void write_y(const mix_task &t, const split<C, TILE> &p,
                                      const float (&bias)[split<C, TILE>::MT][2],
                                      tile_place place) {
    using S = split<C, TILE>;
#pragma unroll
    for (int i = 0; i < 2 * S::MT; i++) {
        const int m = i / 2, h = i % 2;
        each_run<C>(m, h, t.out, t.tiles, place, [&](int r, int64_t at, int64_t left) {
            pixel_run<S::RUN> run;
            for (int e = 0; e < S::RUN; e++) {
                run.v[e] = p.at(m, h, r, e) + bias[m][h];
            }
            store_pixels(t.y, at, left, run);
        });
    }
}

template <int C, int KNOWN>
static __global__ void __launch_bounds__(TENSOR_THREADS, 2) skip_forward(mix_task t) {
    settle<KNOWN>(t.x);
    settle<KNOWN>(t.y);
    using S = split<C, TILE>;
    float *w = dynamic_shared(), *u = w + C * C, bias[S::MT][2];
    tile_share<C> x;
    load_weights<C, C>(w, t.alpha, t.weight, t.out, t.in, t.in);
    for (int m = 0; m < S::MT; m++) {
        for (int h = 0; h < 2; h++) {
            bias[m][h] = t.bias && S::row(m, h) < t.out ? t.bias[S::row(m, h)] : 0.0f;
        }
    }
    x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
    for (int tile = blockIdx.x; tile < t.tiles.count; tile += gridDim.x) {
        const tile_place place = place_of(t.tiles, tile);
        S p;
        start_from(p, t.beta, t.y, t.tiles, place);
        __syncthreads(); /* the tile before is done with u */
        x.put(t.x.store, t.act, u);
        __syncthreads();
        if (tile + (int)gridDim.x < t.tiles.count) {
            x.fetch(t.x, t.tiles, place_of(t.tiles, tile + gridDim.x));
        }
        add_product<C, C>(p, w, u);
        write_y<C>(t, p, bias, place);
    }
}

/* ---- backward ---- */

template <int C, int KNOWN>
static __global__ void __launch_bounds__(TENSOR_THREADS, C > 64 ? 1 : 2) skip_backward(mix_task t) {
    settle<KNOWN>(t.x);
    settle<KNOWN>(t.dy);
    settle<KNOWN>(t.dx);
    float *w = dynamic_shared(), *u = w + C * C, *d = u + C * TILE_LD;
    tile_share<C> x, dy;
    row_sums<C> sums;
    split<C, C> dweight;
    load_weights<C, C>(w, 1.0f, t.weight, t.out, t.in, t.in);
    dweight.clear();
    sums.clear();
    if (t.dweight) {
        x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
    }
    dy.fetch(t.dy, t.tiles, place_of(t.tiles, blockIdx.x));
    for (int tile = blockIdx.x; tile < t.tiles.count; tile += gridDim.x) {
        __syncthreads(); /* the tile before is done with u and d */
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
        const tile_place place = place_of(t.tiles, tile);
        split<C, TILE> p;
        if (t.dx.data) {
            start_from(p, t.beta / t.alpha, t.dx, t.tiles, place);
        }
        if (t.dweight) {
            add_correlation<C, C>(dweight, d, u);
        }
        if (t.dx.data) {
            add_adjoint_product<C, C>(p, w, d);
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

/* ---- host ---- */

mix_task mix_task_of(const tg_skip *op) {
    mix_task t = {};
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

/* f(C, KNOWN) */
template <class F> static tg_status with_class(const tg_skip *op, bool whole, F f) {
    return with_known(op->store, whole, [&](auto how) {
        return op->in <= 64 && op->out <= 64 ? f(std::integral_constant<int, 64>(), how)
                                             : f(std::integral_constant<int, 128>(), how);
    });
}

bool mix_tensor_takes(const tg_backend *be, const tg_skip *op) {
    return op->dtype == TG_F32 && be->math == TG_MATH_TF32 && op->kind == TG_SKIP_MAP_LINEAR &&
           op->alpha != 0.0 && op->in <= 128 && op->out <= 128 &&
           tiles_countable(op->batch, op->pixels) &&
           tensor_fits(be, op->in <= 64 && op->out <= 64 ? mix_shared<64>(true)
                                                         : mix_shared<128>(true));
}

tg_status mix_tensor_forward(tg_backend *be, const tg_skip *op) {
    if (mix_halves_takes(be, op, false)) {
        return mix_halves_forward(be, op);
    }
    const mix_task t = mix_task_of(op);
    return with_class(op, is_whole(t.x) && is_whole(t.y), [&](auto size, auto how) {
        constexpr int C = decltype(size)::value;
        const auto kernel = skip_forward<C, decltype(how)::value>;
        int blocks = 0;
        tg_status status = tensor_blocks(be, (const void *)kernel, mix_shared<C>(false), &blocks);
        if (status == TG_OK) {
            blocks = blocks < t.tiles.count ? blocks : t.tiles.count;
            kernel<<<blocks, TENSOR_THREADS, mix_shared<C>(false), cuda_stream(be)>>>(t);
            status = CUDA_LAUNCHED(be, "adding a skip");
        }
        return status;
    });
}

static int64_t most_blocks(const tg_backend *be, const tg_skip *op) {
    const int64_t most = (int64_t)cuda_state_of(be)->processors * TENSOR_BLOCKS;
    const int64_t tiles = pixel_tiles_of(op->batch, op->pixels).count;
    return tiles < most ? tiles : most;
}

size_t mix_tensor_workspace(const tg_backend *be, const tg_skip *op) {
    if (!mix_tensor_takes(be, op)) {
        return 0;
    }
    const size_t c = op->in <= 64 && op->out <= 64 ? 64 : 128;
    return (size_t)most_blocks(be, op) * (c * c * sizeof(float) + c * sizeof(double));
}

void mix_lay_out(const tg_skip *op, int blocks, int channels, mix_task *t) {
    t->dbias = op->dbias ? static_cast<double *>(op->workspace) : NULL;
    t->dweight =
        op->dweight ? static_cast<float *>(op->workspace) + 2 * (int64_t)blocks * channels : NULL;
}

tg_status mix_fold(tg_backend *be, const tg_skip *op, const mix_task &t, int blocks, int channels) {
    const fold_jobs jobs = {
        {{t.dweight, channels * channels, t.out, t.in, channels, false,
          static_cast<float *>(op->dweight)},
         {t.dbias, channels, 1, t.out, channels, true, static_cast<float *>(op->dbias)}},
        2,
        blocks,
        {op->alpha, 1.0}};
    return fold_partials(be, jobs);
}

tg_status mix_tensor_backward(tg_backend *be, const tg_skip *op) {
    if (mix_halves_takes(be, op, true)) {
        return mix_halves_backward(be, op);
    }
    mix_task t = mix_task_of(op);
    const bool whole = is_whole(t.x) && is_whole(t.dy) && is_whole(t.dx);
    return with_class(op, whole, [&](auto size, auto how) {
        constexpr int C = decltype(size)::value;
        const auto kernel = skip_backward<C, decltype(how)::value>;
        int blocks = 0;
        tg_status status = TG_OK;
        TG_TRY(tensor_blocks(be, (const void *)kernel, mix_shared<C>(true), &blocks));
        blocks = blocks < t.tiles.count ? blocks : t.tiles.count;
        mix_lay_out(op, blocks, C, &t);
        kernel<<<blocks, TENSOR_THREADS, mix_shared<C>(true), cuda_stream(be)>>>(t);
        TG_TRY(CUDA_LAUNCHED(be, "a skip backwards"));
        TG_TRY(mix_fold(be, op, t, blocks, C));
    fail:
        return status;
    });
}
