/* MLPs that are narrow at one end (narrow_mlp.cuh): which calls are supported, their workspace, and
 * the calls. */
#include "backend/cuda/nn/gemm_columns.cuh"
#include "backend/cuda/sm90/narrow_mlp.cuh"
#include "backend/cuda/tile/stage.cuh"

/* ---- pieces of M ---- */

/* M (hidden, C): element (h, c) is w[h * by_hidden + c * by_channel]. */
struct wide_matrix {
    const float *w;
    int hidden, by_hidden, by_channel;
};

/* The pieces for products into the hidden layer, whose columns are hidden channels, and for those
 * out of it; NULL: not wanted. */
template <int C>
static __global__ void __launch_bounds__(256)
    make_pieces(wide_matrix m, float *to_hidden, float *to_wide) {
    pdl_wait_and_launch_dependents();
    for (int i = blockIdx.x * 256 + threadIdx.x; i < m.hidden * C; i += gridDim.x * 256) {
        const int first = i / (CHUNK * C) * CHUNK, e = i % (CHUNK * C);
        const auto put = [&](float *pieces, int byte, int h, int c) {
            const float v = m.w[(int64_t)(first + h) * m.by_hidden + (int64_t)c * m.by_channel];
            pieces[first * C + byte / (int)sizeof(float)] = to_tf32(v);
        };
        if (to_hidden) {
            put(to_hidden, wg_at<CHUNK>(e / C, e % C), e / C, channel_of(e % C));
        }
        if (to_wide) {
            put(to_wide, wg_at<C>(e / CHUNK, e % CHUNK), channel_of(e % CHUNK), e / CHUNK);
        }
    }
}

/* ---- the workspace ---- */

static bool is_lifting(const tg_mlp *op) {
    return op->out != 1;
}

static int64_t channels_of(const tg_mlp *op) {
    return is_lifting(op) ? op->out : op->in;
}

static int64_t groups_of(const tg_mlp *op) {
    return op->hidden / (2 * CHUNK);
}

static int parts_of(const tg_backend *be, const tg_mlp *op) {
    const int64_t parts = cuda_state_of(be)->processors / groups_of(op);
    const int64_t tiles = op->batch * op->pixels / WG_PIXELS;
    return (int)tg_min(tg_max(parts, 1), tiles);
}

/* Whether this device supports these sizes. */
static bool fits(const tg_backend *be, const tg_mlp *op) {
    const int64_t c = channels_of(op), narrow = is_lifting(op) ? op->in : op->out;
    return op->dtype == TG_F32 && be->math == TG_MATH_TF32 && (c == 64 || c == 128) &&
           narrow <= MAX_INPUT_CHANNELS && op->hidden > 0 && op->hidden <= NARROW_HIDDEN &&
           op->hidden % (2 * CHUNK) == 0 && op->pixels % WG_PIXELS == 0 &&
           op->batch * op->pixels <= INT32_MAX && op->x_store == TG_STORE_FULL &&
           op->y_store == TG_STORE_FULL && cuda_state_of(be)->is_hopper;
}

bool mlp_narrow_supports(const tg_backend *be, const tg_mlp *op) {
    const void *const arrays[] = {op->x, op->backward ? op->dy : op->y,
                                  op->backward ? op->dx : NULL};
    bool takes = fits(be, op) && op->act == TG_ACT_NONE && op->dropout == 0.0;
    for (const void *array : arrays) {
        takes = takes && (uintptr_t)array % 16 == 0;
    }
    if (is_lifting(op)) {
        takes = takes && (op->backward ? !op->dx : op->beta == 0.0 && !op->add && !op->activated);
    }
    return takes;
}

/* Assigns the workspace and returns its bytes. Forward and a lifting backward need only one kind of
 * pieces. */
static size_t plan_workspace(const tg_backend *be, const tg_mlp *op, narrow_task *t) {
    const int64_t c = channels_of(op), parts = op->backward ? parts_of(be, op) : 0;
    float *const room = static_cast<float *>(op->workspace); /* NULL: only its size is wanted */
    int64_t used = 0;
    const auto take = [&](int64_t numbers) {
        float *const at = room ? room + used : NULL;
        used += numbers;
        return at;
    };
    t->to_hidden = op->backward || !is_lifting(op) ? take(op->hidden * c) : NULL;
    t->to_wide = op->backward != is_lifting(op) ? take(op->hidden * c) : NULL;
    t->dm = take(parts * op->hidden * c);
    t->db1 = take(parts * op->hidden);
    t->dnarrow = take(parts * op->hidden * (is_lifting(op) ? op->in : 1));
    t->db2 = take(parts * (is_lifting(op) ? groups_of(op) * c : 1));
    return (size_t)used * sizeof(float);
}

/* An upper bound for all calls: dropout and activations may differ between calls. */
size_t mlp_narrow_workspace(const tg_backend *be, const tg_mlp *op) {
    narrow_task t = {};
    return fits(be, op) ? plan_workspace(be, op, &t) : 0;
}

/* ---- calls ---- */

/* The task, with its pieces written. */
static tg_status begin(tg_backend *be, const tg_mlp *op, narrow_task *t) {
    *t = {};
    t->batch = (int)op->batch;
    t->hidden = (int)op->hidden;
    t->input_channels = (int)op->in;
    t->pixels = op->pixels;
    t->w1 = static_cast<const float *>(op->w1);
    t->b1 = static_cast<const float *>(op->b1);
    t->w2 = static_cast<const float *>(op->w2);
    t->b2 = static_cast<const float *>(op->b2);
    t->gate = static_cast<const float *>(op->gate);
    t->alpha = (float)op->alpha;
    t->beta = (float)op->beta;
    t->x = static_cast<const float *>(op->x);
    t->add = static_cast<const float *>(op->add);
    t->dy = static_cast<const float *>(op->dy);
    t->y = static_cast<float *>(op->y);
    t->activated = static_cast<float *>(op->activated);
    t->dx = static_cast<float *>(op->dx);
    plan_workspace(be, op, t);
    const wide_matrix m = is_lifting(op) ? wide_matrix{t->w2, t->hidden, 1, t->hidden}
                                         : wide_matrix{t->w1, t->hidden, (int)op->in, 1};
    return with_size<64, 128>(channels_of(op), [&](auto c) {
        constexpr int C = decltype(c)::value;
        return launch_pdl(be, "weights of a narrow MLP", make_pieces<C>,
                          cuda_blocks(be, op->hidden * C, 256), 256, 0, m,
                          const_cast<float *>(t->to_hidden), const_cast<float *>(t->to_wide));
    });
}

tg_status mlp_narrow_forward(tg_backend *be, const tg_mlp *op) {
    narrow_task t;
    TG_CALL(begin(be, op, &t));
    return narrow_stream(be, channels_of(op), is_lifting(op) ? NARROW_LIFT : NARROW_FORWARD, t);
}

/* Adds the blocks' partial sums to the gradients. */
static tg_status fold(tg_backend *be, const tg_mlp *op, const narrow_task &t, int parts) {
    const bool lifts = is_lifting(op);
    const int hidden = t.hidden, in = (int)op->in, out = (int)op->out;
    const double scale = op->alpha;
    TG_CALL(fold_partials(be, {{fold_matrix(lifts ? t.dnarrow : t.dm, hidden, in, op->dw1),
                                fold_matrix(lifts ? t.dm : t.dnarrow, out, hidden, op->dw2),
                                fold_matrix(t.db1, 1, hidden, op->db1)},
                               3,
                               parts,
                               {scale, scale, scale}}));
    return fold_partials(be, {{fold_matrix(t.db2, 1, out, op->db2)},
                              1,
                              lifts ? parts * (int)groups_of(op) : parts,
                              {scale}});
}

/* Weights first: dx may alias x. */
tg_status mlp_narrow_backward(tg_backend *be, const tg_mlp *op) {
    const int parts = parts_of(be, op);
    narrow_task t;
    TG_CALL(begin(be, op, &t));
    TG_CALL(narrow_weights(be, channels_of(op), is_lifting(op), parts, t));
    TG_CALL(fold(be, op, t, parts));
    return op->dx ? narrow_stream(be, channels_of(op), NARROW_DX, t) : TG_OK;
}
