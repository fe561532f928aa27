/* Storage formats: of every value by its role, and smaller ones of values kept for backward. */
#include "nn/ops.h"

#include "nn/program.h"

/* Storage formats by the role of a value. Arithmetic is in the network's dtype in any case. */

void nn_pass_choose_formats(nn_program *program) {
    const nn_model *model = program->model;
    const tg_dtype dtype = model->config.dtype;
    const tg_dtype formats[] = {
        [NN_DATA] = dtype,
        [NN_ACTIVATION] = tg_stored(dtype, model->stores.activation),
        [NN_SPECTRUM] = tg_stored(tg_dtype_complex(dtype), model->stores.spectrum),
        [NN_INNER_ARRAY] = tg_dtype_complex(dtype),
        [NN_STATISTIC] = TG_F64,
        [NN_SAVED] = dtype, /* none yet: the pass that makes them sets the format */
        [NN_SCRATCH] = dtype,
    };
    for (int i = 0; i < program->value_count; i++) {
        program->values[i].dtype = formats[program->values[i].role];
    }
}

/* ---- saved values ---- */

/* Values kept for backward are stored small (fno.saved_precision); forward does not change.
 *
 * A value that forward makes and backward reads is copied into its small format as soon as it
 * exists, and the value itself ends with its last reader in forward. In backward it is restored
 * before the first op of a block that reads it, and ends with the last one there: few values are in
 * f32 at a time, however many layers there are. Ops that accept quantized input read the 8-bit copy
 * directly, and a block that can writes values quantized that forward does not read. If such an op
 * reads a recomputed value, that is quantized, too. Two kinds of values are not saved small: those
 * outside the blocks, and inputs of the first backward ops, which would be restored at once.
 *
 * Activations take the format asked for. The kept modes of spectra have 2 bytes a number at least:
 * neighbours differ by orders of magnitude, which one scale for all of them would not do justice.
 *
 * Comes after the fusion of blocks, whose ops read and write several values at once. */
typedef struct state {
    nn_program *p;
    tg_backend *be;
    nn_program old;
    nn_links links;
    int values;    /* of the program before the pass */
    int *saved;    /* (values): its small copy; -1: none */
    int *restored; /* (values): the restored value in this block; -1: none yet */
} state;

/* ---- which values ---- */

/* The small format of a value; its own if there is none. */
static tg_dtype format_of(const nn_program *p, const nn_value *value) {
    const bool is_byte = p->model->stores.saved == TG_PRECISION_8BIT;
    if (value->role == NN_ACTIVATION) {
        return is_byte ? TG_U8 : tg_stored(value->dtype, TG_STORE_BF16);
    }
    return value->role == NN_SPECTRUM && value->dtype == TG_C64 ? TG_CBF16 : value->dtype;
}

static bool waits(const state *s, int value) {
    const nn_value *v = &s->p->values[value];
    return s->links.readers[value] > 0 && s->links.maker[value] < s->old.forward_end &&
           !v->is_transient && format_of(s->p, v) != v->dtype;
}

/* Whether the op accepts its X quantized to 8 bits. */
static bool accepts_quantized(const state *s, const nn_op *op) {
    const int v = op->in[NN_X];
    const nn_program *p = s->p;
    nn_op other = *op;
    if (v < 0 || s->saved[v] < 0 || p->values[s->saved[v]].dtype != TG_U8) {
        return false;
    }
    other.in[NN_X] = s->saved[v];
    if (op->kind == NN_MLP_BACK) {
        return nn_mlp_back_accepts_quantized(p, s->be, &other);
    }
    const tg_block_back call = nn_block_back_call(p, &other);
    return op->kind == NN_BLOCK_BACK && tg_has(s->be, (tg_query){.block_back = &call});
}

static void save(state *s, int value) {
    s->saved[value] = nn_value_like(s->p, value);
    s->p->values[s->saved[value]].role = NN_SAVED;
    s->p->values[s->saved[value]].dtype = format_of(s->p, &s->p->values[value]);
}

/* The recomputed input of a block is kept small for the block's backward op if that accepts
 * quantized input: the block, recomputed too, can then overwrite it. */
static void save_again(state *s, const nn_op *back) {
    const int v = back->in[NN_X];
    if (back->kind == NN_BLOCK_BACK && s->saved[v] < 0 && s->links.readers[v] > 1 &&
        s->links.maker[v] >= s->old.backward_begin) {
        save(s, v);
        s->saved[v] = accepts_quantized(s, back) ? s->saved[v] : -1;
    }
}

static void choose(state *s) {
    const nn_program *old = &s->old;
    int first = old->backward_begin;
    const int nearest = old->ops[first].block;
    while (first < old->op_count && old->ops[first].block == nearest) {
        first++;
    }
    for (int v = 0; v < s->values; v++) {
        s->saved[v] = -1;
    }
    for (int i = first; i < old->op_count; i++) {
        for (int k = 0; k < NN_INPUTS; k++) {
            const int v = old->ops[i].in[k];
            if (v >= 0 && s->saved[v] < 0 && waits(s, v)) {
                save(s, v);
            }
        }
        save_again(s, &old->ops[i]);
    }
}

/* ---- the rewritten list of ops ---- */

static void copy(const state *s, nn_kind kind, int from, int to, const nn_op *beside) {
    nn_op op = nn_op_make(kind);
    op.in[NN_X] = from;
    op.out[0] = to;
    op.phase = beside->phase;
    op.block = beside->block;
    nn_op_append(s->p, &op);
}

/* Whether the op, a block, writes output k, one of its sums, quantized and in no other form. */
static bool writes_quantized(const state *s, const nn_op *op, int k) {
    const nn_program *p = s->p;
    const int saved = s->saved[op->out[k]];
    if (op->kind != NN_BLOCK || k > 1 || p->values[saved].dtype != TG_U8 ||
        nn_is_read(&s->old, 0, s->old.backward_begin, op->out[k])) {
        return false;
    }
    nn_op other = *op;
    other.out[k] = saved;
    const tg_block call = nn_block_call(p, &other);
    return tg_has(s->be, (tg_query){.block = &call});
}

static void forward(const state *s) {
    for (int i = 0; i < s->old.forward_end; i++) {
        nn_op op = s->old.ops[i];
        int later[NN_OUTPUTS] = {-1, -1, -1}; /* values to be copied after the op */
        for (int k = 0; k < NN_OUTPUTS; k++) {
            const int v = op.out[k];
            if (v >= 0 && s->saved[v] >= 0 && writes_quantized(s, &op, k)) {
                op.out[k] = s->saved[v];
            } else if (v >= 0 && s->saved[v] >= 0) {
                later[k] = v;
            }
        }
        nn_op_append(s->p, &op);
        for (int k = 0; k < NN_OUTPUTS; k++) {
            if (later[k] >= 0) {
                copy(s, NN_SAVE, later[k], s->saved[later[k]], &op);
            }
        }
    }
}

/* Restores the inputs of op number i. */
static void restore(const state *s, int i) {
    const nn_op *op = &s->old.ops[i];
    for (int k = 0; k < NN_INPUTS; k++) {
        const int v = op->in[k];
        const bool is_quantized = k == NN_X && accepts_quantized(s, op);
        if (v >= 0 && s->saved[v] >= 0 && s->restored[v] < 0 && !is_quantized) {
            s->restored[v] = nn_value_like(s->p, v);
            copy(s, NN_RESTORE, s->saved[v], s->restored[v], op);
        }
    }
}

static void backward(const state *s) {
    const int sharing = nn_sharing_begins(&s->old);
    for (int i = s->old.backward_begin, block = -1; i < s->old.op_count; i++) {
        nn_op op = s->old.ops[i];
        const bool is_first_factor = i == sharing;
        s->p->backward_end = i == s->old.backward_end ? s->p->op_count : s->p->backward_end;
        for (int v = 0; v < s->values && (op.block != block || is_first_factor); v++) {
            s->restored[v] = -1;
        }
        block = op.block;
        restore(s, i);
        for (int k = i + 1; k < s->old.op_count && is_first_factor; k++) {
            restore(s, k); /* memory is shared from here on: restores all inputs before it */
        }
        const int quantized = accepts_quantized(s, &op) ? s->saved[op.in[NN_X]] : -1;
        for (int k = 0; k < NN_INPUTS; k++) {
            op.in[k] = op.in[k] >= 0 && s->saved[op.in[k]] >= 0 ? s->restored[op.in[k]] : op.in[k];
        }
        op.in[NN_X] = quantized >= 0 ? quantized : op.in[NN_X];
        nn_op_append(s->p, &op);
        for (int k = 0; k < NN_OUTPUTS; k++) {
            const int v = op.out[k];
            if (v >= 0 && s->saved[v] >= 0 && s->links.maker[v] == i) { /* recomputed */
                copy(s, NN_SAVE, v, s->saved[v], &op);
                s->restored[v] = v;
            }
        }
    }
}

tg_status nn_pass_save_small(nn_program *p, tg_backend *be) {
    tg_status status = TG_OK;
    if (!p->training || p->model->stores.saved == TG_PRECISION_FULL) {
        return TG_OK;
    }
    state s = {.p = p, .be = be, .old = *p, .values = p->value_count};
    TG_TRY(nn_links_make(p, &s.links));
    TG_TRY(TG_NEW(p->ctx, TG_MEM_OTHER, s.saved, s.values));
    TG_TRY(TG_NEW(p->ctx, TG_MEM_OTHER, s.restored, s.values));
    choose(&s);
    p->ops = NULL;
    p->op_capacity = p->op_count = 0;
    forward(&s);
    p->forward_end = p->op_count;
    for (int i = s.old.forward_end; i < s.old.backward_begin; i++) {
        nn_op_append(p, &s.old.ops[i]);
    }
    p->backward_begin = p->op_count;
    backward(&s);
    tg_mem_free(p->ctx, s.old.ops);
fail:
    nn_links_free(p, &s.links);
    tg_mem_free(p->ctx, s.saved);
    tg_mem_free(p->ctx, s.restored);
    return status == TG_OK ? p->status : status;
}
