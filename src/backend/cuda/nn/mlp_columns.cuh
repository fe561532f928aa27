/* MLPs on tiles of columns: what goes into the hidden layer, and the gradient that comes out
 * of it; and MLPs with one output (mlp_single.cu). */
#ifndef TG_BACKEND_CUDA_NN_MLP_COLUMNS_CUH
#define TG_BACKEND_CUDA_NN_MLP_COLUMNS_CUH

#include "backend/cuda/nn/gemm_columns.cuh"

/* Whether a call goes the way for one output; what it needs of the workspace, 0 if it never does
 * for these sizes. */
bool mlp_single_takes(const tg_mlp *op);
size_t mlp_single_workspace(const tg_mlp *op, bool backward);
tg_status mlp_single_forward(tg_backend *be, const tg_mlp *op);
tg_status mlp_single_backward(tg_backend *be, const tg_mlp *op);

/* Of these, calls whose input is stored as 16-bit numbers and goes by tensor cores as it is
 * (mlp_single_half.cu). */
bool mlp_single_half_takes(const tg_backend *be, const tg_mlp *op, bool backward);
size_t mlp_single_half_workspace(const tg_backend *be, const tg_mlp *op, bool backward);
tg_status mlp_single_half_forward(tg_backend *be, const tg_mlp *op);
tg_status mlp_single_half_backward(tg_backend *be, const tg_mlp *op);

/* u = act(x): x itself where that is the same matrix. */
template <class X>
static tg_status input_of(tg_backend *be, const tg_mlp *op, const column_tile &t, real_of<X> *room,
                          const void **u, int64_t *ld) {
    const X *x = static_cast<const X *>(op->x);
    *ld = t.pixels;
    *u = x + t.sample * op->in * t.pixels + t.pixel;
    if (op->act == TG_ACT_NONE && op->x_store == TG_STORE_FULL && !t.crosses) {
        return TG_OK;
    }
    *ld = t.count;
    *u = room;
    gather_columns<<<column_grid(op->in, t.count), COLUMN_THREADS, 0, cuda_stream(be)>>>(
        t, op->in, op->act, x, room);
    return CUDA_LAUNCHED(be, "reading a tile");
}

/* dx from the gradient at the hidden layer; `room` is for (in, count). */
template <class X>
static tg_status input_gradient(tg_backend *be, const tg_mlp *op, const column_tile &t,
                                const real_of<X> *dh, real_of<X> *room) {
    using R = real_of<X>;
    const tg_act act = op->through ? op->act : TG_ACT_NONE;
    X *dx = static_cast<X *>(op->dx);
    if (act == TG_ACT_NONE && op->x_store == TG_STORE_FULL && !t.crosses) {
        return multiply(be, op->dtype, op->in, t.count, op->hidden, 1.0, TG_OP_T, op->w1, op->in,
                        TG_OP_N, dh, t.count, op->beta, dx + t.sample * op->in * t.pixels + t.pixel,
                        t.pixels);
    }
    tg_status status = multiply(be, op->dtype, op->in, t.count, op->hidden, 1.0, TG_OP_T, op->w1,
                                op->in, TG_OP_N, dh, t.count, 0.0, room, t.count);
    if (status == TG_OK) {
        scatter_gradient<<<column_grid(op->in, t.count), COLUMN_THREADS, 0, cuda_stream(be)>>>(
            t, op->in, act, R(1), R(op->beta), room, static_cast<const X *>(op->x), dx);
        status = CUDA_LAUNCHED(be, "an MLP backwards");
    }
    return status;
}

#endif
