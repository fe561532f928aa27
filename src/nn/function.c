/* A network as a function of the caller's arrays: a program without arenas and weights, which every
 * call binds to the caller's. */
#include "tgrad/function.h"

#include "nn/network.h"

struct tg_function {
    tg_fno *fno; /* an outline, whose program is ready */
};

static tg_status check_config(const tg_fno *fno) {
    const tg_fno_config *config = &fno->model.config;
    return config->architecture != TG_ARCHITECTURE_GINO && config->micro_batch == 0
               ? TG_OK
               : tg_fail(fno->ctx, TG_E_UNSUPPORTED,
                         "a function is made of a network on a grid (fno.architecture fno or uno) "
                         "without micro-batches (fno.micro_batch 0)");
}

tg_status tg_function_create(tg_context *ctx, const tg_fno_config *config, int64_t batch,
                             const int64_t *grid, bool training, const tg_shared_workspace *shared,
                             tg_function **out) {
    TG_NEED_OUT(ctx, out, ctx, config, grid);
    tg_status status = TG_OK;
    tg_function *function = NULL;
    nn_domain domain;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, function, 1));
    TG_TRY(tg_fno_outline(ctx, config, &function->fno));
    TG_TRY(check_config(function->fno));
    (void)nn_share(function->fno, shared ? shared : &(tg_shared_workspace){0});
    TG_TRY(nn_domain_make(&function->fno->model, batch, grid, &domain));
    TG_TRY(nn_run_make(function->fno, batch, grid, training));
    function->fno->run.ready = true;
    *out = function;
    return TG_OK;
fail:
    if (function) {
        tg_fno_destroy(&function->fno);
        TG_FREE(ctx, function);
    }
    return status;
}

void tg_function_destroy(tg_function **function) {
    if (!function || !*function) {
        return;
    }
    tg_context *ctx = (*function)->fno->ctx;
    tg_fno_destroy(&(*function)->fno);
    TG_FREE(ctx, *function);
}

tg_status tg_function_sizes(const tg_function *function, size_t *activations, size_t *workspace) {
    TG_NEED(NULL, function);
    TG_NEED(function->fno->ctx, activations, workspace);
    *activations = function->fno->run.program.activations.bytes;
    *workspace = function->fno->run.program.workspace.bytes;
    return TG_OK;
}

bool tg_function_sends_factors(const tg_function *function, int param) {
    const nn_program *program = function ? &function->fno->run.program : NULL;
    for (int i = 0; program && i < program->op_count; i++) {
        if (program->ops[i].kind == NN_HAND_OVER_FACTORS && program->ops[i].param == param) {
            return true;
        }
    }
    return false;
}

tg_shared_workspace tg_function_shared(const tg_function *function) {
    return function ? function->fno->run.program.shared : (tg_shared_workspace){0};
}

static tg_status check_array(const tg_fno *fno, const char *what, const void *array) {
    if (!array) {
        return tg_fail(fno->ctx, TG_E_ARGUMENT, "function: %s is NULL", what);
    }
    return (uintptr_t)array % TG_ALIGNMENT == 0
               ? TG_OK
               : tg_fail(fno->ctx, TG_E_ARGUMENT,
                         "function: the address of %s is not a multiple of %d bytes", what,
                         TG_ALIGNMENT);
}

/* Points the program at the caller's arrays until the end of the call. */
static tg_status bind(tg_fno *fno, const tg_function_call *call) {
    nn_program *program = &fno->run.program;
    TG_NEED(fno->ctx, call->weights);
    for (int i = 0; i < fno->model.param_count; i++) {
        TG_CALL(check_array(fno, fno->model.params[i].name, call->weights[i]));
    }
    TG_CALL(program->activations.bytes > 0 ? check_array(fno, "activations", call->activations)
                                           : TG_OK);
    TG_CALL(program->workspace.bytes > 0 ? check_array(fno, "workspace", call->workspace) : TG_OK);
    nn_program_bind(program, call->activations, call->workspace);
    fno->bound = call->weights;
    fno->seed = call->seed;
    fno->step = 0;
    return TG_OK;
}

static tg_status unbind(tg_fno *fno, tg_status status) {
    fno->bound = NULL;
    fno->run.saved = fno->run.has_dout = false;
    fno->run.call = (nn_call){0};
    return status;
}

tg_status tg_function_forward(tg_function *function, const tg_function_call *call,
                              const tg_tensor *x, tg_tensor *y) {
    TG_NEED(NULL, function);
    tg_fno *fno = function->fno;
    TG_NEED(fno->ctx, call, x, y);
    TG_CALL(bind(fno, call));
    return unbind(fno, tg_fno_forward(fno, x, y));
}

typedef struct receiver {
    const tg_fno *fno;
    const tg_function_call *call;
} receiver;

static tg_status receive(void *user, const tg_gradient *gradient) {
    const receiver *r = user;
    void *out = r->call->gradients[gradient->param];
    if (!out && !gradient->dense && r->call->factors) {
        r->call->factors[gradient->param] = *gradient;
    }
    return out ? tg_gradient_form(r->fno->be, gradient, out) : TG_OK;
}

static tg_status backward(tg_fno *fno, const tg_function_call *call, const tg_tensor *dy,
                          const tg_tensor *dx) {
    receiver r = {fno, call};
    const tg_grad_sink sink = {.receive = receive, .user = &r};
    const int64_t batch = dy->shape.ndim > 0 ? dy->shape.dim[0] : 0;
    if (!fno->run.program.training || (dx && !fno->model.config.input_gradient)) {
        return tg_fail(fno->ctx, TG_E_ARGUMENT, "function: it was made without %s",
                       dx ? "input_gradient" : "training");
    }
    if (dx && dx->place != fno->be->ops->place) {
        return tg_fail(fno->ctx, TG_E_ARGUMENT, "dx: it is not where backend %s computes",
                       fno->be->ops->name);
    }
    if (batch < 1 || batch > fno->run.program.whole) {
        return tg_fail(fno->ctx, TG_E_SHAPE, "dy: %lld samples; the function is for 1 .. %lld",
                       (long long)batch, (long long)fno->run.program.whole);
    }
    nn_forward_replayed(fno, batch);
    return nn_backward_from(fno, dy, &sink, dx);
}

tg_status tg_function_backward(tg_function *function, const tg_function_call *call,
                               const tg_tensor *dy, tg_tensor *dx) {
    TG_NEED(NULL, function);
    tg_fno *fno = function->fno;
    TG_NEED(fno->ctx, call, dy);
    TG_NEED(fno->ctx, call->gradients);
    TG_CALL(bind(fno, call));
    return unbind(fno, backward(fno, call, dy, dx));
}
