/* Blocks that the backend computes in one call (tg_block): INVERSE, then SKIP on top of it, then,
 * if it follows, the MLP of the result become one op BLOCK in the place of the last of them. In
 * backward (tg_block_back) INVERSE and the backward ops of both skips, whatever their order, become
 * BLOCK_BACK. The last pass before values are placed, because backends must be asked with the final
 * formats, and because checkpointing repeats parts of a block. */
#include <stdio.h>
#include <string.h>

#include "nn/ops.h"
#include "nn/program.h"

/* Whether a transform and a skip suit the slots: all of a spectrum, and a square linear map. */
static bool suits(const nn_program *p, const nn_op *inverse, const nn_op *skip, int y) {
    return !p->transforms[inverse->transform].is_windowed &&
           skip->skip->kind == TG_SKIP_MAP_LINEAR &&
           p->values[skip->in[NN_X]].channels == p->values[y].channels;
}

/* Whether the MLP reads the result of the skip, and can add only the skip's input to its own. */
static bool is_of_block(const nn_op *mlp, const nn_op *skip) {
    const int added = mlp->in[NN_ADD];
    return mlp->mlp->in == mlp->mlp->out && mlp->dropout == 0.0 && mlp->in[NN_SUM] < 0 &&
           (mlp->act == TG_ACT_NONE || mlp->act == TG_ACT_GELU) &&
           (added < 0 || (added == skip->in[NN_X] && skip->act == TG_ACT_NONE));
}

/* Values without readers are not stored. */
static int wanted(const nn_links *links, int value, int readers) {
    return value >= 0 && links->readers[value] > readers ? value : -1;
}

static nn_op block_of(const nn_links *links, const nn_op *inverse, const nn_op *skip,
                      const nn_op *mlp) {
    nn_op block = *skip;
    block.kind = NN_BLOCK;
    block.in[NN_MODES] = inverse->in[NN_X];
    block.in[NN_SUM] = -1;
    block.scale = inverse->scale;
    block.transform = inverse->transform;
    if (mlp) {
        block.mlp = mlp->mlp;
        block.adds_input = mlp->in[NN_ADD] >= 0;
        block.gate = mlp->gate;
        block.inner_act = mlp->act;
        block.out[0] = wanted(links, skip->out[0], 1); /* the MLP reads it in here */
        block.out[1] = wanted(links, mlp->out[0], 0);
        block.out[2] = mlp->out[1];
    }
    return block;
}

/* The phase of both, if they have two: "block 2: inverse transform, mixing". */
static int phase_of(nn_program *p, const nn_op *skip, const nn_op *mlp) {
    if (skip->phase == mlp->phase) {
        return skip->phase;
    }
    const nn_phase *first = &p->phases[skip->phase], *second = &p->phases[mlp->phase];
    const char *scope = strchr(second->name, ':');
    char name[2 * sizeof first->name];
    snprintf(name, sizeof name, "%s,%s", first->name, scope ? scope + 1 : second->name);
    return nn_phase_named(p, name, first->is_backward);
}

static void take(nn_program *p, tg_backend *be, const nn_links *links, int i) {
    nn_op *inverse = &p->ops[i];
    nn_op *skip = inverse->kind == NN_INVERSE && !inverse->is_adjoint
                      ? nn_reader_of(p, inverse->out[0], NN_SKIP, NN_SUM)
                      : NULL;
    if (!skip || !suits(p, inverse, skip, skip->out[0]) || links->readers[inverse->out[0]] != 1) {
        return;
    }
    nn_op *mlp = nn_reader_of(p, skip->out[0], NN_MLP, NN_X);
    for (int with_mlp = 1; with_mlp >= 0; with_mlp--) {
        nn_op *last = with_mlp ? mlp : skip;
        if (!last || (with_mlp && !is_of_block(mlp, skip))) {
            continue;
        }
        nn_op block = block_of(links, inverse, skip, with_mlp ? mlp : NULL);
        const tg_block call = nn_block_call(p, &block);
        if (tg_has(be, (tg_query){.block = &call})) {
            block.phase = phase_of(p, skip, last);
            inverse->kind = skip->kind = NN_GONE;
            *last = block;
            return;
        }
    }
}

/* ---- backward ---- */

/* The ops that a gradient is the sum of. */
typedef struct sum_ops {
    nn_op *inverse, *linear, *gate, *last; /* last: of the sum, one of the others or ACCUMULATE */
} sum_ops;

/* The op that makes a value with no other reader; NULL: none. */
static nn_op *only_maker(const nn_program *p, const nn_links *links, int value) {
    return value >= 0 && links->readers[value] == 1 ? &p->ops[links->maker[value]] : NULL;
}

static bool is_back_of(const nn_op *op, bool linear) {
    return op && op->kind == NN_SKIP_BACK && (op->skip->kind == TG_SKIP_MAP_LINEAR) == linear;
}

/* In the order of the readers the skip by channel is the last or, with checkpointing, the first one
 * (differentiate.c). */
static bool find_sum(const nn_program *p, const nn_links *links, nn_op *last, sum_ops *out) {
    const bool accumulates = last->kind == NN_ACCUMULATE;
    if (!accumulates && !is_back_of(last, false)) {
        return false;
    }
    nn_op *linear = only_maker(p, links, last->in[NN_SUM]);
    if (!is_back_of(linear, true)) {
        return false;
    }
    nn_op *before = only_maker(p, links, linear->in[NN_SUM]);
    nn_op *gate = accumulates ? before : last;
    nn_op *inverse = accumulates ? only_maker(p, links, last->in[NN_DY]) : before;
    *out = (sum_ops){inverse, linear, gate, last};
    return is_back_of(gate, false) && inverse && inverse->kind == NN_INVERSE &&
           inverse->is_adjoint && suits(p, inverse, linear, linear->in[NN_DY]) &&
           gate->in[NN_X] == linear->in[NN_X] && gate->act == linear->act && gate->bias < 0 &&
           (!accumulates || gate->in[NN_SUM] < 0) &&
           (!last->through || last->in[NN_X] == linear->in[NN_X]) &&
           (gate->params == 0 || gate->param > linear->param);
}

/* Hand-overs must follow all their gradients: moves that of op number `maker` to just after number
 * `last`, which moves forward. */
static void move_hand_overs(nn_program *p, int maker, int last) {
    nn_op *from = &p->ops[maker + 1];
    const nn_op send = *from;
    if (maker < last && send.kind == NN_HAND_OVER) {
        memmove(from, from + 1, (size_t)(last - maker - 1) * sizeof send);
        p->ops[last] = send;
    }
}

/* Fuses the sum whose last op is number i; false if there is none. */
static bool take_back(nn_program *p, tg_backend *be, const nn_links *links, int i) {
    sum_ops sum;
    if (!find_sum(p, links, &p->ops[i], &sum) ||
        nn_is_read(p, i + 1, p->op_count, sum.gate->in[NN_DY])) {
        return false;
    }
    nn_op back = *sum.linear;
    back.kind = NN_BLOCK_BACK;
    back.in[NN_SUM] = sum.gate->in[NN_DY];
    back.in[NN_MODES] = sum.inverse->in[NN_X];
    back.out[0] = sum.last->out[0];
    back.scale = sum.inverse->scale;
    back.transform = sum.inverse->transform;
    back.through = sum.last->through;
    back.gate = sum.gate->skip->param[0];
    back.params =
        sum.gate->params > 0 ? sum.gate->param + sum.gate->params - back.param : back.params;
    const tg_block_back call = nn_block_back_call(p, &back);
    if (!tg_has(be, (tg_query){.block_back = &call})) {
        return false;
    }
    const int linear = (int)(sum.linear - p->ops), gate = (int)(sum.gate - p->ops);
    sum.inverse->kind = sum.linear->kind = sum.gate->kind = NN_GONE;
    *sum.last = back;
    move_hand_overs(p, linear, i); /* the later one first: it moves nothing before it */
    move_hand_overs(p, gate, i);
    return true;
}

tg_status nn_pass_fuse_blocks(nn_program *p, tg_backend *be) {
    tg_status status = TG_OK;
    nn_links links = {0};
    if (!be->ops->block_forward || p->model->planes > 1 || nn_is_split(&p->model->split)) {
        return TG_OK;
    }
    TG_TRY(nn_links_make(p, &links));
    for (int i = 0; i < p->op_count; i++) {
        take(p, be, &links, i);
        if (take_back(p, be, &links, i)) { /* the ops have moved */
            nn_links_free(p, &links);
            TG_TRY(nn_links_make(p, &links));
        }
    }
    nn_leave_out_gone(p);
fail:
    nn_links_free(p, &links);
    return status;
}
