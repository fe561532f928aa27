/* Runs a program: forward, loss and backward are ranges of its ops. */
#include "backend/tensor.h"
#include "nn/ops.h"

/* ---- the caller's tensors ---- */

typedef enum nn_end { NN_AT_INPUT, NN_AT_OUTPUT } nn_end;

/* On the host or the backend; dtype of the data and shape (batch, channels, grid..), of a split
 * network with the rows of its slab, for a GINO (batch, channels, points or queries). */
static tg_status check_tensor(const tg_fno *fno, const char *what, const tg_tensor *tensor,
                              int64_t batch, nn_end end) {
    const tg_fno_config *config = &fno->model.config;
    const int64_t channels = end == NN_AT_INPUT ? config->in_channels : config->out_channels;
    tg_wanted wanted = {.what = what,
                        .dtype =
                            config->complex_data ? tg_dtype_complex(config->dtype) : config->dtype,
                        .shape = {.ndim = 2 + config->n_dim, .dim = {batch, channels}},
                        .or_host = true};
    const nn_domain *g = &fno->run.program.domain;
    for (int d = 0; d < config->n_dim; d++) {
        wanted.shape.dim[2 + d] = g->grid.size[d];
    }
    const nn_split *split = &fno->model.split;
    wanted.shape.dim[2] = nn_rows_of(split, split->part, g->grid.size[0]).count;
    if (config->architecture == TG_ARCHITECTURE_GINO) {
        wanted.shape.ndim = 3;
        wanted.shape.dim[2] = end == NN_AT_INPUT ? g->points : g->queries;
    }
    return tg_tensor_check(fno->be, tensor, &wanted);
}

tg_status nn_bring(const tg_fno *fno, const tg_tensor *from, void *to) {
    const tg_backend_ops *ops = fno->be->ops;
    const size_t sample = tg_tensor_bytes(from) / (size_t)from->shape.dim[0];
    const size_t bytes = (size_t)fno->run.batch * sample;
    const char *first = (const char *)from->data + (size_t)fno->run.first * sample;
    return from->place == TG_HOST ? ops->upload(fno->be, to, first, bytes)
                                  : ops->copy(fno->be, to, first, bytes);
}

static tg_status check_sink(const tg_fno *fno, const tg_grad_sink *sink) {
    return sink->receive ? TG_OK
                         : tg_fail(fno->ctx, TG_E_ARGUMENT,
                                   "backward: the sink of the gradients has no receive");
}

static tg_status check_saved(const tg_fno *fno) {
    return fno->run.saved ? TG_OK
                          : tg_fail(fno->ctx, TG_E_ARGUMENT,
                                    "backward needs a forward before it, of a network that "
                                    "tg_fno_prepare made ready for training");
}

/* ---- ranges of ops ---- */

static tg_status run_ops(tg_fno *fno, int first, int end) {
    for (int i = first; i < end; i++) {
        const nn_op *op = &fno->run.program.ops[i];
        const nn_kind_row *kind = nn_kind_of(op->kind);
        if (op->params > 0 && kind->makes_gradients && !fno->run.program.keeps_gradients) {
            TG_CALL(nn_gradient_begin(fno, op->param, op->params, !kind->sets_gradients));
        }
        TG_CALL(kind->run(fno, op));
    }
    return TG_OK;
}

/* Takes the samples from `first` on in flight, as many as there is memory for. */
static void take_part(nn_run *run, int64_t first) {
    const int64_t left = run->whole - first;
    run->first = first;
    run->batch = left < run->program.batch ? left : run->program.batch;
}

/* Before the first backward op of a step. */
static tg_status clear_gradients(tg_fno *fno) {
    return fno->run.program.keeps_gradients
               ? nn_gradient_begin(fno, 0, fno->model.param_count, true)
               : TG_OK;
}

/* Begins the step with the first samples of x. */
static tg_status begin(tg_fno *fno, const tg_tensor *x) {
    nn_run *run = &fno->run;
    if (!run->ready) {
        return tg_fail(fno->ctx, TG_E_ARGUMENT,
                       "the network is not prepared: tg_fno_prepare first");
    }
    const int64_t batch = x->shape.ndim > 0 ? x->shape.dim[0] : 0;
    if (batch < 1 || batch > run->program.whole) {
        return tg_fail(fno->ctx, TG_E_SHAPE,
                       "x: %lld samples; the network is prepared for 1 .. %lld", (long long)batch,
                       (long long)run->program.whole);
    }
    TG_CALL(check_tensor(fno, "x", x, batch, NN_AT_INPUT));
    run->whole = batch;
    TG_CALL(nn_places_check(fno));
    run->saved = run->has_dout = false;
    take_part(run, 0);
    return nn_in_parts(&run->program) ? clear_gradients(fno) : TG_OK;
}

static tg_status check_in_one(const tg_fno *fno, const char *what) {
    return fno->run.whole <= fno->run.program.batch
               ? TG_OK
               : tg_fail(fno->ctx, TG_E_ARGUMENT,
                         "%s: the network is prepared for micro-batches of %lld samples "
                         "(fno.micro_batch), which need the loss: tg_fno_loss_backward or "
                         "tg_step, or micro_batch 0",
                         what, (long long)fno->run.program.batch);
}

tg_status nn_forward(tg_fno *fno, const tg_tensor *x) {
    TG_CALL(begin(fno, x));
    TG_CALL(check_in_one(fno, "forward"));
    fno->run.call = (nn_call){.x = x};
    TG_CALL(run_ops(fno, 0, fno->run.program.forward_end));
    fno->run.saved = fno->run.program.training;
    return TG_OK;
}

void *nn_output(const tg_fno *fno) {
    return nn_data(fno, fno->run.program.output);
}

void *nn_output_gradient(const tg_fno *fno) {
    return nn_data(fno, fno->run.program.dout);
}

tg_status nn_backward(tg_fno *fno, const tg_grad_sink *sink, void *dx) {
    nn_run *run = &fno->run;
    const nn_program *program = &run->program;
    run->saved = run->has_dout = false; /* backward overwrites the saved activations */
    run->call = (nn_call){.sink = sink, .dx = dx};
    take_part(run, (run->whole - 1) / program->batch * program->batch); /* the last one */
    TG_CALL(nn_in_parts(program) ? TG_OK : clear_gradients(fno));
    TG_CALL(run_ops(fno, program->backward_begin, program->backward_end));
    run->first = 0;
    run->batch = run->whole;
    TG_CALL(run_ops(fno, program->backward_end, program->op_count));
    fno->step++;
    return TG_OK;
}

tg_status nn_forward_loss(tg_fno *fno, const tg_tensor *x, const tg_tensor *target,
                          const tg_loss_config *config, double grad_scale, double *loss) {
    tg_status status = TG_OK;
    nn_run *run = &fno->run;
    const nn_program *program = &run->program;
    tg_loss_config full;
    TG_TRY(nn_loss_config_read(fno->ctx, config, &full));
    TG_TRY(nn_loss_fits(fno->be, &full, &fno->model.config));
    TG_TRY(begin(fno, x));
    run->saved = program->training;
    TG_TRY(check_saved(fno));
    TG_TRY(check_tensor(fno, "target", target, run->whole, NN_AT_OUTPUT));
    run->call = (nn_call){
        .x = x, .target = target, .loss_config = &full, .grad_scale = grad_scale, .loss = loss};
    for (int64_t first = 0; first < run->whole; first += program->batch) {
        take_part(run, first);
        TG_TRY(run_ops(fno, 0, program->backward_begin));
        const bool is_last = first + program->batch >= run->whole;
        TG_TRY(is_last ? TG_OK : run_ops(fno, program->backward_begin, program->backward_end));
    }
    run->has_dout = true;
fail:
    run->saved = run->has_dout;
    run->call = (nn_call){0};
    return status;
}

/* ---- replayed graphs ---- */

void nn_forward_replayed(tg_fno *fno, int64_t batch) {
    fno->run.whole = batch;
    fno->run.saved = fno->run.has_dout = true;
    take_part(&fno->run, 0);
}

void nn_backward_replayed(tg_fno *fno) {
    fno->run.saved = fno->run.has_dout = false;
    fno->step++;
}

void nn_backward_undone(tg_fno *fno, uint64_t step) {
    fno->run.saved = fno->run.has_dout = true;
    fno->step = step;
}

/* ---- the public calls ---- */

tg_status tg_fno_forward(tg_fno *fno, const tg_tensor *x, tg_tensor *y) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, x, y);
    TG_CALL(nn_forward(fno, x));
    const tg_backend_ops *ops = fno->be->ops;
    const void *out = nn_output(fno);
    TG_CALL(check_tensor(fno, "y", y, fno->run.whole, NN_AT_OUTPUT));
    const size_t bytes = tg_tensor_bytes(y);
    return y->place == TG_HOST ? ops->download(fno->be, y->data, out, bytes)
                               : ops->copy(fno->be, y->data, out, bytes);
}

tg_status nn_backward_from(tg_fno *fno, const tg_tensor *dy, const tg_grad_sink *sink,
                           const tg_tensor *dx) {
    TG_CALL(check_saved(fno));
    TG_CALL(check_sink(fno, sink));
    if (dy) {
        TG_CALL(check_in_one(fno, "dy"));
        TG_CALL(check_tensor(fno, "dy", dy, fno->run.whole, NN_AT_OUTPUT));
        TG_CALL(nn_bring(fno, dy, nn_output_gradient(fno)));
    } else if (!fno->run.has_dout) {
        return tg_fail(fno->ctx, TG_E_ARGUMENT,
                       "backward needs dL/dy, or a forward that made the loss: "
                       "tg_fno_loss_backward");
    }
    TG_CALL(dx ? check_tensor(fno, "dx", dx, fno->run.whole, NN_AT_INPUT) : TG_OK);
    return nn_backward(fno, sink, dx ? dx->data : NULL);
}

tg_status tg_fno_backward(tg_fno *fno, const tg_tensor *dy, const tg_grad_sink *sink) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, sink);
    return nn_backward_from(fno, dy, sink, NULL);
}

tg_status tg_fno_loss_backward(tg_fno *fno, const tg_tensor *x, const tg_tensor *target,
                               const tg_loss_config *config, const tg_grad_sink *sink,
                               double *loss) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, x, target, config, sink, loss);
    TG_CALL(check_sink(fno, sink));
    TG_CALL(nn_forward_loss(fno, x, target, config, 1.0, fno->be->cell));
    TG_CALL(fno->be->ops->download(fno->be, loss, fno->be->cell, sizeof *loss));
    return nn_backward(fno, sink, NULL);
}

int64_t nn_numbers(const tg_fno *fno, int value) {
    const nn_value *v = &fno->run.program.values[value];
    return v->planes * fno->run.batch * v->channels * v->points;
}

void *nn_plane(const tg_fno *fno, int value, int q) {
    if (value < 0) {
        return NULL;
    }
    const nn_value *v = &fno->run.program.values[value];
    return nn_element(v->dtype, nn_data(fno, value), q * fno->run.batch * v->channels * v->points);
}
