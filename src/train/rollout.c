/* Rollouts in training. With the network f, the frames that a step predicts p, and the loss l:
 *
 *   x_0 = x,  p_j = f(x_j),  x_{j+1} = the last channels of (x_j, p_j),  j = 0 .. k - 1
 *
 *   last   L = l(p_{k-1}, y_{k-1}), where x_{k-1} is a constant (pushforward)
 *   all    L = 1/k sum_j l(p_j, y_j), with gradients through all steps
 *
 * With `all`, forward keeps only the inputs x_j. Backward goes from the last step to the first: it
 * recomputes the activations of each, adds the contribution of dL/dx_{j+1} to the gradient at p_j,
 * and writes dL/dx_j over x_j. So k steps need the memory of one step plus k - 1 inputs.
 *
 * x is normalized by one normalizer, p by another: a channel that moves to the next input is
 * decoded and encoded on the way, v -> scale v + shift. The dropout masks are those of the training
 * step, the same in all k. */
#include "train/step.h"

#include "backend/tensor.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "nn/network.h"
#include "optim/optim.h"

/* The source of a channel of the next input. */
typedef struct move {
    bool is_predicted; /* from p, otherwise from x */
    int64_t channel;   /* its number there */
    double scale;
    tg_scalar shift;
} move;

struct tg_rollout {
    tg_context *ctx;
    tg_backend *be;
    tg_fno *fno;
    tg_loss_config loss;
    bool is_all;
    int64_t most, steps;     /* by the config, and of the next rollout */
    int64_t in, out;         /* channels */
    move *moves;             /* (in) */
    int64_t capacity;        /* samples the buffers hold */
    size_t x_bytes, y_bytes; /* of a sample: an input, a prediction */
    char *inputs;            /* (most - 1 or, for `last`, 1; capacity) inputs */
    tg_tensor x, target;     /* of the batch: views */
    double scale, *losses;   /* likewise */
    tg_tensor aim;           /* of one step: (capacity, out, grid..) */
};

/* ---- life ---- */

void tg_rollout_destroy(tg_rollout **rollout) {
    if (!rollout || !*rollout) {
        return;
    }
    tg_rollout *r = *rollout;
    if (r->be) {
        r->be->ops->release(r->be, r->inputs);
        r->be->ops->release(r->be, r->aim.data);
    }
    tg_mem_free(r->ctx, r->moves);
    TG_FREE(r->ctx, *rollout);
}

static void set_moves(tg_rollout *r, const tg_step_config *config) {
    const tg_normalizer *x = config->x_normalizer, *y = config->y_normalizer;
    for (int64_t c = 0; c < r->in; c++) {
        const int64_t at = c + r->out; /* in (x, p) */
        move *m = &r->moves[c];
        m->is_predicted = at >= r->in;
        m->channel = m->is_predicted ? at - r->in : at;
        tg_normalizer_between(m->is_predicted ? y : x, m->channel, x, c, &m->scale, &m->shift);
    }
}

static tg_status check(tg_context *ctx, const tg_step_config *config) {
    const tg_fno_config *fno = tg_fno_get_config(config->fno);
    const bool is_all = config->rollout_gradients == TG_ROLLOUT_ALL;
    if (fno->architecture != TG_ARCHITECTURE_FNO || fno->micro_batch > 0) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "step: rollouts are of an fno on a grid, with micro_batch 0");
    }
    if (is_all && (!fno->input_gradient || (config->optim && !config->optim->accumulates))) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "step: gradients through all steps of a rollout need a network with "
                       "input_gradient and an optimizer that accumulates");
    }
    const tg_normalizer *const given[] = {config->x_normalizer, config->y_normalizer};
    const int64_t channels[] = {fno->in_channels, fno->out_channels};
    for (int i = 0; i < 2; i++) {
        if (given[i] && tg_normalizer_channels(given[i]) != channels[i]) {
            return tg_fail(ctx, TG_E_SHAPE,
                           "step: the normalizer of %s has %lld channels, the network %lld",
                           i == 0 ? "x" : "y", (long long)tg_normalizer_channels(given[i]),
                           (long long)channels[i]);
        }
    }
    return TG_OK;
}

tg_status tg_rollout_create(tg_context *ctx, const tg_step_config *config, tg_rollout **out) {
    tg_status status = TG_OK;
    tg_rollout *r = NULL;
    *out = NULL;
    TG_TRY(check(ctx, config));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, r, 1));
    r->ctx = ctx;
    r->fno = config->fno;
    r->loss = config->loss;
    r->is_all = config->rollout_gradients == TG_ROLLOUT_ALL;
    r->most = r->steps = config->rollout_steps;
    r->in = tg_fno_get_config(r->fno)->in_channels;
    r->out = tg_fno_get_config(r->fno)->out_channels;
    TG_TRY(tg_backend_get(ctx, &r->be));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, r->moves, r->in));
    set_moves(r, config);
    *out = r;
    return TG_OK;
fail:
    tg_rollout_destroy(&r);
    return status;
}

tg_status tg_rollout_set_steps(tg_rollout *r, int64_t steps) {
    if (steps < 1 || steps > r->most) {
        return tg_fail(r->ctx, TG_E_ARGUMENT, "step: a rollout of %lld steps, expected 1 .. %lld",
                       (long long)steps, (long long)r->most);
    }
    r->steps = steps;
    return TG_OK;
}

int64_t tg_rollout_losses(const tg_rollout *r) {
    return r->is_all ? r->steps : 1;
}

/* ---- buffers ---- */

static int64_t inputs_kept(int64_t steps, bool is_all) {
    return is_all ? steps - 1 : 1;
}

/* The buffer of x_j, j >= 1. */
static char *buffer_of(const tg_rollout *r, int64_t j) {
    return r->inputs + (r->is_all ? (size_t)(j - 1) * (size_t)r->capacity * r->x_bytes : 0);
}

static tg_tensor input_of(const tg_rollout *r, int64_t j) {
    tg_tensor x = r->x;
    x.data = j == 0 ? r->x.data : buffer_of(r, j);
    return x;
}

/* Buffers for the batches that the network is prepared for. */
static tg_status make_buffers(tg_rollout *r) {
    const int64_t size = r->fno->run.program.whole;
    if (r->capacity == size) {
        return TG_OK;
    }
    const size_t count = (size_t)size;
    r->be->ops->release(r->be, r->inputs);
    r->be->ops->release(r->be, r->aim.data);
    r->aim.data = NULL;
    r->capacity = 0;
    TG_CALL(TG_BACKEND_ALLOC(r->be, TG_MEM_ACTIVATIONS, r->inputs,
                             (size_t)inputs_kept(r->most, r->is_all) * count * r->x_bytes));
    TG_CALL(TG_BACKEND_ALLOC(r->be, TG_MEM_DATA, r->aim.data, count * r->y_bytes));
    r->capacity = size;
    return TG_OK;
}

static tg_status begin(tg_rollout *r, const tg_tensor *x, const tg_tensor *target) {
    tg_wanted wanted = {.what = "x", .dtype = x->dtype, .shape = x->shape};
    TG_CALL(tg_tensor_check(r->be, x, &wanted));
    wanted.what = "target";
    wanted.shape.dim[1] = r->most * r->out;
    TG_CALL(tg_tensor_check(r->be, target, &wanted));
    r->x = *x;
    r->target = *target;
    r->aim.dtype = target->dtype;
    r->aim.place = target->place;
    r->aim.shape = target->shape;
    r->aim.shape.dim[1] = r->out;
    r->x_bytes = tg_tensor_bytes(x) / (size_t)x->shape.dim[0];
    r->y_bytes = tg_tensor_bytes(&r->aim) / (size_t)x->shape.dim[0];
    return make_buffers(r);
}

/* ---- between two steps ---- */

/* Row `channel` of sample b of an array with `channels` channels. */
static void *row_of(const tg_rollout *r, const void *data, int64_t channels, int64_t b,
                    int64_t channel) {
    const size_t row = r->x_bytes / (size_t)r->in;
    return (char *)(uintptr_t)data + (size_t)(b * channels + channel) * row;
}

static int64_t points_of(const tg_rollout *r) {
    return (int64_t)(r->x_bytes / (size_t)r->in / tg_dtype_size(r->x.dtype));
}

/* next = the last channels of (x, p). `next` may be x: channels move to the front. */
static tg_status advance(const tg_rollout *r, const void *x, void *next) {
    const tg_backend_ops *ops = r->be->ops;
    const int64_t points = points_of(r);
    const void *p = nn_output(r->fno);
    for (int64_t b = 0; b < r->x.shape.dim[0]; b++) {
        for (int64_t c = 0; c < r->in; c++) {
            const move *m = &r->moves[c];
            const void *from = m->is_predicted ? row_of(r, p, r->out, b, m->channel)
                                               : row_of(r, x, r->in, b, m->channel);
            void *to = row_of(r, next, r->in, b, c);
            if (m->scale == 1.0 && m->shift.re == 0.0 && m->shift.im == 0.0) {
                TG_CALL(ops->copy(r->be, to, from, r->x_bytes / (size_t)r->in));
            } else {
                TG_CALL(ops->fill(r->be, r->x.dtype, points, m->shift, to));
                TG_CALL(ops->axpy(r->be, r->x.dtype, points, (tg_scalar){m->scale, 0.0}, from, to));
            }
        }
    }
    return TG_OK;
}

/* The adjoint of advance: adds from `dnext` to the gradient at p (is_predicted) or at x. */
static tg_status retreat(const tg_rollout *r, const void *dnext, bool is_predicted, void *to) {
    const int64_t points = points_of(r);
    for (int64_t i = 0; i < r->x.shape.dim[0] * r->in; i++) {
        const int64_t b = i / r->in, c = i % r->in;
        const move *m = &r->moves[c];
        if (m->is_predicted == is_predicted) {
            TG_CALL(r->be->ops->axpy(r->be, r->x.dtype, points, (tg_scalar){m->scale, 0.0},
                                     row_of(r, dnext, r->in, b, c),
                                     row_of(r, to, is_predicted ? r->out : r->in, b, m->channel)));
        }
    }
    return TG_OK;
}

/* ---- the passes ---- */

/* Selects the target of step j from (batch, most, out, grid..). */
static tg_status aim_at(const tg_rollout *r, int64_t j) {
    for (int64_t b = 0; b < r->x.shape.dim[0]; b++) {
        const char *from = (const char *)r->target.data + (size_t)(b * r->most + j) * r->y_bytes;
        TG_CALL(r->be->ops->copy(r->be, (char *)r->aim.data + (size_t)b * r->y_bytes, from,
                                 r->y_bytes));
    }
    return TG_OK;
}

/* Forward and loss of step j. */
static tg_status run_step(const tg_rollout *r, int64_t j) {
    const int64_t losses = tg_rollout_losses(r);
    const tg_tensor x = input_of(r, j);
    TG_CALL(aim_at(r, j));
    return nn_forward_loss(r->fno, &x, &r->aim, &r->loss, r->scale / (double)losses,
                           r->losses + j % losses);
}

tg_status tg_rollout_forward(tg_rollout *r, const tg_tensor *x, const tg_tensor *target,
                             double scale, double *losses) {
    TG_CALL(begin(r, x, target));
    r->scale = scale;
    r->losses = losses;
    for (int64_t j = 0; j < r->steps; j++) {
        const bool is_last = j == r->steps - 1;
        const tg_tensor now = input_of(r, j);
        TG_CALL(r->is_all || is_last ? run_step(r, j) : nn_forward(r->fno, &now));
        TG_CALL(is_last ? TG_OK : advance(r, now.data, buffer_of(r, j + 1)));
    }
    return TG_OK;
}

tg_status tg_rollout_backward(tg_rollout *r, const tg_grad_sink *sink) {
    const uint64_t number = tg_fno_step(r->fno); /* of the training step: for the same dropout */
    const int64_t last = r->steps - 1, first = r->is_all ? 0 : last;
    for (int64_t j = last; j >= first; j--) {
        const void *dnext = j < last ? buffer_of(r, j + 1) : NULL;
        void *dx = j > first ? buffer_of(r, j) : NULL;
        if (dnext) {
            tg_fno_set_step(r->fno, number);
            TG_CALL(run_step(r, j));
            TG_CALL(retreat(r, dnext, true, nn_output_gradient(r->fno)));
        }
        TG_CALL(nn_backward(r->fno, sink, dx));
        TG_CALL(dnext && dx ? retreat(r, dnext, false, dx) : TG_OK);
    }
    return TG_OK;
}

/* ---- of a run ---- */

tg_status tg_run_check_rollout(tg_context *ctx, const tg_run_config *config) {
    const int64_t steps = config->loop.rollout_steps;
    if (tg_run_unrolls(config) && config->loss.physics != TG_PHYSICS_NONE) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.physics: its residual takes x as given, which gradients through all "
                       "steps of a rollout do not; take opt.rollout_gradients last");
    }
    if (steps > 1 && config->loop.track_stable_rank) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.track_stable_rank: it measures single steps; opt.rollout_steps is %lld",
                       (long long)steps);
    }
    const bool fits =
        config->fno.architecture == TG_ARCHITECTURE_FNO && config->fno.micro_batch == 0;
    return steps == 1 || fits ? TG_OK
                              : tg_fail(ctx, TG_E_CONFIG,
                                        "opt.rollout_steps: %lld steps need fno.architecture fno "
                                        "and fno.micro_batch 0",
                                        (long long)steps);
}

bool tg_run_unrolls(const tg_run_config *config) {
    return config->loop.rollout_steps > 1 && config->loop.rollout_gradients == TG_ROLLOUT_ALL;
}

int64_t tg_run_rollout_steps(const tg_run_config *config, int64_t epoch) {
    const int64_t every = config->loop.rollout_epochs, most = config->loop.rollout_steps;
    return every == 0 || epoch / every >= most - 1 ? most : 1 + epoch / every;
}

void tg_rollout_add_bytes(const tg_run_config *config, tg_place place,
                          const tg_dataset_facts *facts, int64_t size, tg_amounts *out) {
    const int64_t steps = config->loop.rollout_steps;
    if (steps > 1) {
        const size_t inputs = (size_t)inputs_kept(steps, tg_run_unrolls(config));
        out->at[place][TG_MEM_ACTIVATIONS] += inputs * (size_t)size * facts->x_bytes;
        out->at[place][TG_MEM_DATA] += (size_t)size * (facts->y_bytes / (size_t)steps);
    }
}
