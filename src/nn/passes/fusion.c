/* Patterns of ops that the coarse slots of a backend compute in one call:
 *
 *   bias, skip             the skip adds the bias, and its backward makes the gradient of both
 *   activation, reader     the reader applies it as it loads; in backward always, so that the sum
 *                          before it is kept and not its result; in forward if all readers can, and
 *                          then the result is never stored
 *   both, in backward      the slope is applied as the gradient is stored
 *   mlp, skip, gelu        real data, skip by channel: added and activated as the MLP stores
 *
 * Each pattern is one function below that takes one op and absorbs others into it. */
#include "nn/ops.h"
#include "nn/program.h"

typedef struct fusion {
    nn_program *p;
    nn_links links;
} fusion;

static nn_op *maker_of(const fusion *f, int value) {
    return &f->p->ops[f->links.maker[value]];
}

static bool is_read_once(const fusion *f, int value) {
    return f->links.readers[value] == 1;
}

/* ---- bias and skip ---- */

static void take_bias(const fusion *f, nn_op *skip) {
    if (skip->kind != NN_SKIP || skip->bias >= 0 || skip->in[NN_SUM] < 0) {
        return;
    }
    nn_op *bias = maker_of(f, skip->in[NN_SUM]);
    if (bias->kind == NN_BIAS && is_read_once(f, bias->out[0])) {
        skip->bias = bias->bias;
        skip->in[NN_SUM] = bias->in[NN_SUM];
        bias->kind = NN_GONE;
    }
}

/* Both gradients are handed over together, so the parameters must be consecutive. */
static void take_bias_back(const fusion *f, nn_op *bias) {
    if (bias->kind != NN_BIAS_BACK) {
        return;
    }
    for (int i = (int)(bias - f->p->ops) + 1; i < f->p->op_count; i++) {
        nn_op *skip = &f->p->ops[i];
        if (skip->kind == NN_SKIP_BACK && skip->in[NN_DY] == bias->in[NN_DY] && skip->bias < 0 &&
            (skip->params == 0 || skip->param == bias->param + 1)) {
            skip->bias = bias->bias;
            skip->param = bias->param;
            skip->params += bias->params;
            bias->kind = NN_GONE;
            return;
        }
    }
}

/* ---- activations on load and on store ---- */

static bool can_load(const nn_op *op, int input) {
    return input == NN_X && op->act == TG_ACT_NONE && nn_kind_of(op->kind)->loads;
}

static void load(fusion *f, nn_op *reader, const nn_op *activate) {
    reader->in[NN_X] = activate->in[NN_X];
    reader->act = f->p->model->act;
    f->links.readers[activate->out[0]]--;
    f->links.readers[activate->in[NN_X]]++;
}

static void take_act(fusion *f, nn_op *activate) {
    if (activate->kind != NN_ACTIVATE) {
        return;
    }
    const int value = activate->out[0];
    bool all = true;
    for (int i = 0; i < f->p->op_count; i++) {
        nn_op *reader = &f->p->ops[i];
        for (int k = 0; k < NN_INPUTS && reader->kind != NN_GONE; k++) {
            if (reader->in[k] != value) {
                continue;
            }
            if (i < f->p->forward_end) {
                all = all && can_load(reader, k);
            } else if (can_load(reader, k)) {
                load(f, reader, activate);
            }
        }
    }
    for (int i = 0; i < f->p->forward_end && all; i++) {
        if (f->p->ops[i].kind != NN_GONE && f->p->ops[i].in[NN_X] == value) {
            load(f, &f->p->ops[i], activate);
        }
    }
    if (f->links.readers[value] == 0) {
        activate->kind = NN_GONE;
        f->links.readers[activate->in[NN_X]]--;
    }
}

static void take_act_back(const fusion *f, nn_op *slope) {
    if (slope->kind != NN_ACTIVATE_BACK) {
        return;
    }
    nn_op *op = maker_of(f, slope->in[NN_DY]);
    const bool loads_it = op->in[NN_X] == slope->in[NN_X] && op->act == f->p->model->act;
    const bool loads_nothing = op->kind == NN_ACCUMULATE && op->in[NN_X] < 0;
    const bool can_store =
        op->kind == NN_MLP_BACK || op->kind == NN_SKIP_BACK || op->kind == NN_ACCUMULATE;
    if (can_store && (loads_it || loads_nothing) && is_read_once(f, slope->in[NN_DY])) {
        op->in[NN_X] = slope->in[NN_X];
        op->act = f->p->model->act;
        op->through = true;
        op->out[0] = slope->out[0];
        slope->kind = NN_GONE;
    }
}

/* ---- MLP, skip and GELU ---- */

static void take_into_mlp(const fusion *f, nn_op *mlp) {
    if (mlp->kind != NN_MLP || f->p->model->planes > 1) {
        return;
    }
    nn_op *skip = nn_reader_of(f->p, mlp->out[0], NN_SKIP, NN_SUM);
    if (skip && skip->skip->kind != TG_SKIP_MAP_LINEAR && skip->bias < 0 &&
        skip->act == TG_ACT_NONE && is_read_once(f, mlp->out[0]) &&
        &f->p->ops[f->links.maker[skip->in[NN_X]]] < mlp) {
        mlp->in[NN_ADD] = skip->in[NN_X];
        mlp->gate = skip->skip->param[0];
        mlp->out[0] = skip->out[0];
        f->links.maker[mlp->out[0]] = (int)(mlp - f->p->ops);
        skip->kind = NN_GONE;
    }
    nn_op *gelu = f->p->model->act == TG_ACT_GELU
                      ? nn_reader_of(f->p, mlp->out[0], NN_ACTIVATE, NN_X)
                      : NULL; /* it has no other second output */
    if (gelu) {
        mlp->out[1] = gelu->out[0];
        gelu->kind = NN_GONE;
    }
}

/* ---- all of them ---- */

tg_status nn_pass_fuse(nn_program *p) {
    tg_status status = TG_OK;
    fusion f = {.p = p};
    TG_TRY(nn_links_make(p, &f.links));
    for (int i = 0; i < p->op_count; i++) {
        take_bias(&f, &p->ops[i]);
        take_bias_back(&f, &p->ops[i]);
        take_act(&f, &p->ops[i]);
    }
    for (int i = 0; i < p->op_count; i++) {
        take_act_back(&f, &p->ops[i]);
        take_into_mlp(&f, &p->ops[i]);
    }
    nn_leave_out_gone(p);
fail:
    nn_links_free(p, &f.links);
    return status;
}
