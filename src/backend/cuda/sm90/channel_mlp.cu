/* Backward pass of a block's channel MLP (channel_mlp_kernel.cuh): which calls are supported, their
 * workspace, and the call. */
#include "backend/cuda/nn/gemm_columns.cuh"
#include "backend/cuda/sm90/channel_mlp_kernel.cuh"
#include "backend/cuda/tile/stage.cuh"

template <class R, class F> static R with_channels(const tg_mlp *op, F f) {
    return op->in == 64 ? f(std::integral_constant<int, 64>())
                        : f(std::integral_constant<int, 128>());
}

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
    const int64_t most = cuda_state_of(be)->processors;
    return (int)(steps < most ? steps : most);
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
    const fold_jobs jobs = {{{t.dw1, h * c, h, c, c, false, static_cast<float *>(op->dw1)},
                             {t.dw2, c * h, c, h, h, false, static_cast<float *>(op->dw2)},
                             {t.db1, h, 1, h, h, true, static_cast<float *>(op->db1)},
                             {t.db2, c, 1, c, c, true, static_cast<float *>(op->db2)}},
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
    TG_CALL(with_channels<tg_status>(op, [&](auto channels) {
        constexpr int C = decltype(channels)::value;
        const bool acts = op->act == TG_ACT_GELU;
        const auto kernel = op->x_quantized ? acts ? channel_mlp_backward<C, true, true>
                                                   : channel_mlp_backward<C, false, true>
                            : acts ? channel_mlp_backward<C, true, false>
                                            : channel_mlp_backward<C, false, false>;
        return launch_tiles(be, kernel, channel_mlp_layout<C>::BYTES, TILE_THREADS, blocks,
                            "a channel MLP backwards", t);
    }));
    return fold(be, op, t, blocks);
}
