/* A network as a function of the caller's arrays: a program without arenas and weights, which every
 * call binds to the caller's. Calls with arrays seen before are captured as graphs and replayed. */
#include "tgrad/function.h"

#include <string.h>

#include "nn/graph_capture.h"

enum { TENSOR_WORDS = TG_MAX_NDIM + 2, CALL_WORDS = 2 * TENSOR_WORDS + 3 };

struct tg_function {
    tg_fno *fno;   /* an outline, whose program is ready */
    bool captures; /* its passes, where the arrays allow it */
    uint64_t *key; /* of the current call: CALL_WORDS, weights, and in backward gradients */
    nn_graph_cache forward, backward;
};

static tg_status check_config(const tg_fno *fno) {
    const tg_fno_config *config = &fno->model.config;
    return config->architecture != TG_ARCHITECTURE_GINO && config->micro_batch == 0
               ? TG_OK
               : tg_fail(fno->ctx, TG_E_UNSUPPORTED,
                         "a function is made of a network on a grid (fno.architecture fno or uno) "
                         "without micro-batches (fno.micro_batch 0)");
}

static void destroy(tg_context *ctx, tg_function *function) {
    if (function) {
        nn_graph_cache_free(&function->forward);
        nn_graph_cache_free(&function->backward);
        TG_FREE(ctx, function->key);
        tg_fno_destroy(&function->fno);
        TG_FREE(ctx, function);
    }
}

/* Where graphs pay, and passes depend on arrays alone. */
static tg_status make_graphs(tg_function *function) {
    const tg_fno *fno = function->fno;
    const int params = fno->model.param_count, words = CALL_WORDS + params;
    function->captures = nn_can_capture(fno) && nn_is_launch_bound(fno) &&
                         fno->model.config.channel_mlp_dropout == 0.0;
    if (!function->captures) {
        return TG_OK;
    }
    TG_CALL(TG_NEW(fno->ctx, TG_MEM_OTHER, function->key, words + params));
    TG_CALL(nn_graph_cache_make(fno->be, words, params, &function->forward));
    return fno->run.program.training
               ? nn_graph_cache_make(fno->be, words + params, params, &function->backward)
               : TG_OK;
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
    TG_TRY(make_graphs(function));
    *out = function;
    return TG_OK;
fail:
    destroy(ctx, function);
    return status;
}

void tg_function_destroy(tg_function **function) {
    if (!function || !*function) {
        return;
    }
    destroy((*function)->fno->ctx, *function);
    *function = NULL;
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

/* ---- passes, by their graphs where the arrays are known ---- */

typedef struct function_pass {
    tg_function *function;
    const tg_function_call *call;
    const tg_tensor *from, *to; /* x and y, or dy and dx */
    tg_gradient *factors;       /* where backward reports them; NULL: nowhere */
} function_pass;

static uint64_t *add_tensor(uint64_t *word, const tg_tensor *tensor) {
    memset(word, 0, TENSOR_WORDS * sizeof *word);
    if (tensor) {
        const int ndim = tensor->shape.ndim;
        word[0] = (uintptr_t)tensor->data;
        word[1] = (uint64_t)ndim << 16 | (uint64_t)tensor->dtype << 8 | (uint64_t)tensor->place;
        for (int d = 0; d < ndim && d < TG_MAX_NDIM; d++) {
            word[2 + d] = (uint64_t)tensor->shape.dim[d];
        }
    }
    return word + TENSOR_WORDS;
}

/* Everything that a pass reads. The rest is the same in all calls: the program, and the backend
 * with its math. */
static const uint64_t *make_key(const nn_graph_cache *cache, const function_pass *pass) {
    const tg_function_call *call = pass->call;
    const int params = cache->params, arrays = cache->words - CALL_WORDS;
    uint64_t *word = add_tensor(add_tensor(pass->function->key, pass->from), pass->to);
    *word++ = (uintptr_t)call->activations;
    *word++ = (uintptr_t)call->workspace;
    *word++ = pass->factors != NULL;
    for (int i = 0; i < arrays; i++) {
        word[i] = (uintptr_t)(i < params ? call->weights[i] : call->gradients[i - params]);
    }
    return pass->function->key;
}

/* Factors of a captured pass are those that its capture reported. */
static tg_status run_captured(nn_graph_cache *cache, function_pass *pass,
                              tg_status (*part_by_part)(void *pass)) {
    tg_function *function = pass->function;
    tg_gradient *const factors = pass->factors;
    nn_graph *entry = nn_graph_find(cache, make_key(cache, pass));
    bool has_failed = false;
    pass->factors = factors ? entry->factors : NULL;
    TG_CALL(nn_graph_run(cache, entry, &(nn_captured_pass){part_by_part, pass}, &has_failed));
    function->captures = !has_failed;
    for (int i = 0; factors && i < cache->params; i++) {
        if (entry->factors[i].x) {
            factors[i] = entry->factors[i];
        }
    }
    return TG_OK;
}

/* The caller may be capturing a graph of its own, which the pass becomes a part of. */
static tg_status run(nn_graph_cache *cache, function_pass *pass,
                     tg_status (*part_by_part)(void *pass)) {
    const tg_function *function = pass->function;
    tg_backend *be = function->fno->be;
    TG_CALL(bind(function->fno, pass->call));
    const tg_place place = be->ops->place;
    const bool fits = function->captures && cache->be && pass->from->place == place &&
                      (!pass->to || pass->to->place == place) && !be->ops->stream->is_capturing(be);
    return fits ? run_captured(cache, pass, part_by_part) : part_by_part(pass);
}

static tg_status run_forward(void *user) {
    const function_pass *pass = user;
    tg_tensor y = *pass->to;
    return tg_fno_forward(pass->function->fno, pass->from, &y);
}

tg_status tg_function_forward(tg_function *function, const tg_function_call *call,
                              const tg_tensor *x, tg_tensor *y) {
    TG_NEED(NULL, function);
    TG_NEED(function->fno->ctx, call, x, y);
    function_pass pass = {.function = function, .call = call, .from = x, .to = y};
    return unbind(function->fno, run(&function->forward, &pass, run_forward));
}

/* The block that the gradients are in, if they are as the program stores them: it then writes them
 * there. NULL: they are not. */
static void *block_of(const tg_fno *fno, void *const *gradients) {
    uintptr_t block = 0;
    for (int i = 0; i < fno->model.param_count; i++) {
        const nn_param *param = &fno->model.params[i];
        const uintptr_t begin = (uintptr_t)gradients[i] - param->dense_offset;
        if (param->factored) {
            continue;
        }
        if (!gradients[i] || (block && block != begin) || begin % TG_ALIGNMENT != 0 ||
            param->dtype != tg_dtype_wide(param->dtype)) {
            return NULL;
        }
        block = begin;
    }
    return fno->run.program.keeps_gradients ? (void *)block : NULL;
}

static tg_status receive(void *user, const tg_gradient *gradient) {
    const function_pass *pass = user;
    void *out = pass->call->gradients[gradient->param];
    if (out && out == gradient->dense) {
        return TG_OK;
    }
    if (!out && !gradient->dense && pass->factors) {
        pass->factors[gradient->param] = *gradient;
    }
    return out ? tg_gradient_form(pass->function->fno->be, gradient, out) : TG_OK;
}

static tg_status run_backward(void *user) {
    function_pass *pass = user;
    tg_fno *fno = pass->function->fno;
    const tg_tensor *dy = pass->from, *dx = pass->to;
    const tg_grad_sink sink = {.receive = receive, .user = pass};
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
    void *const own = fno->run.gradients, *const block = block_of(fno, pass->call->gradients);
    fno->run.gradients = block ? block : own;
    nn_forward_replayed(fno, batch);
    const tg_status status = nn_backward_from(fno, dy, &sink, dx);
    fno->run.gradients = own;
    return status;
}

tg_status tg_function_backward(tg_function *function, const tg_function_call *call,
                               const tg_tensor *dy, tg_tensor *dx) {
    TG_NEED(NULL, function);
    TG_NEED(function->fno->ctx, call, dy);
    TG_NEED(function->fno->ctx, call->gradients);
    function_pass pass = {
        .function = function, .call = call, .from = dy, .to = dx, .factors = call->factors};
    return unbind(function->fno, run(&function->backward, &pass, run_backward));
}
