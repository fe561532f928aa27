/* Trades time for memory: values that backward reads are recomputed instead of kept.
 *
 *   off      everything that backward reads is kept
 *   block    of activations only those between two blocks are kept
 *   minimal  no activation is kept; all are recomputed from the data and the kept modes, without
 *            a forward transform
 *
 * Before the backward ops of a block, forward ops are repeated for every dropped value that these
 * read, back to values that are kept. Inputs of the first backward ops are kept in any case: there
 * would be no time in between to use their memory. */
#include "nn/ops.h"
#include "nn/program.h"

typedef struct state {
    nn_program *p;
    nn_program old;
    nn_links links;
    int values;  /* of the program before the pass */
    int *again;  /* (values): the recomputed value in this block; -1: none yet */
    bool *keeps; /* (values) */
} state;

static bool is_forward(const state *s, int value) {
    return value >= 0 && s->links.maker[value] < s->old.forward_end;
}

/* Whether it is available: kept, or recomputed. */
static bool is_at_hand(const state *s, int value) {
    return s->keeps[value] || s->again[value] >= 0;
}

static int at_hand(const state *s, int value) {
    return s->keeps[value] ? value : s->again[value];
}

static void make(state *s, int value, const nn_op *reader);

/* Finds an input of a repeated op. */
static void find_input(state *s, nn_op *op, int input, const nn_op *reader) {
    const int value = op->in[input], before = s->p->values[value].before_act;
    if (!is_at_hand(s, value) && before >= 0 && is_at_hand(s, before)) {
        if (input == NN_X && op->act == TG_ACT_NONE && nn_kind_of(op->kind)->loads) {
            op->act = s->p->model->act;
            op->in[input] = at_hand(s, before);
            return;
        }
        nn_op activate = nn_op_make(NN_ACTIVATE);
        activate.phase = reader->phase;
        activate.block = reader->block;
        activate.in[NN_X] = at_hand(s, before);
        activate.out[0] = s->again[value] = nn_value_like(s->p, value);
        nn_op_append(s->p, &activate);
    }
    make(s, value, reader);
    op->in[input] = at_hand(s, value);
}

/* Repeats the op that makes a value, and before it those that make its inputs. */
static void make(state *s, int value, const nn_op *reader) {
    if (is_at_hand(s, value) || s->p->status != TG_OK) {
        return;
    }
    nn_op op = s->old.ops[s->links.maker[value]];
    op.phase = reader->phase;
    op.block = reader->block;
    for (int k = 0; k < NN_INPUTS; k++) {
        if (op.in[k] >= 0) {
            find_input(s, &op, k, reader);
        }
    }
    const int activated = nn_activated_output(s->p, &op);
    const bool makes_act = activated > 0 && op.out[activated] == value;
    if (activated > 0 && !makes_act) {
        op.out[activated] = -1;
    }
    for (int k = 0; k < NN_OUTPUTS; k++) {
        const int first = op.out[k];
        if (first >= 0 && !s->keeps[first]) { /* a kept value is written a second time */
            op.out[k] = s->again[first] = nn_value_like(s->p, first);
            s->p->values[op.out[k]].is_transient = s->p->values[first].is_transient;
        }
    }
    if (makes_act) {
        s->p->values[op.out[activated]].before_act = op.out[activated - 1];
    }
    nn_op_append(s->p, &op);
}

/* Recomputes all inputs of the backward ops of one block, first .. end - 1, in their original
 * order. */
static void make_for(state *s, int first, int end) {
    for (int v = 0; v < s->values; v++) {
        s->again[v] = -1;
    }
    for (int i = 0; i < s->old.forward_end; i++) {
        for (int k = 0; k < NN_OUTPUTS; k++) {
            const int value = s->old.ops[i].out[k];
            for (int j = first; j < end && value >= 0 && !is_at_hand(s, value); j++) {
                for (int n = 0; n < NN_INPUTS; n++) {
                    if (s->old.ops[j].in[n] == value) {
                        make(s, value, &s->old.ops[first]);
                    }
                }
            }
        }
    }
}

static int end_of_block(const nn_program *p, int first) {
    int end = first;
    while (end < p->op_count && p->ops[end].block == p->ops[first].block) {
        end++;
    }
    return end;
}

static void choose(state *s) {
    const bool boundaries = s->p->model->config.activation_checkpoint == TG_CHECKPOINT_BLOCK;
    for (int v = 0; v < s->values; v++) {
        const nn_value *value = &s->p->values[v];
        s->keeps[v] = value->is_transient
                          ? false
                          : value->role != NN_ACTIVATION || (boundaries && value->is_boundary);
    }
    const int first = s->old.backward_begin;
    for (int i = first; i < end_of_block(&s->old, first); i++) {
        for (int k = 0; k < NN_INPUTS; k++) {
            if (is_forward(s, s->old.ops[i].in[k])) {
                s->keeps[s->old.ops[i].in[k]] = true;
            }
        }
    }
}

/* Rewrites the list of ops; backward reads the available values. */
static void rewrite(state *s) {
    const nn_program *old = &s->old;
    for (int i = 0; i < old->backward_begin; i++) {
        nn_op_append(s->p, &old->ops[i]);
    }
    for (int i = old->backward_begin, end; i < old->op_count; i = end) {
        end = end_of_block(old, i);
        make_for(s, i, end);
        for (int j = i; j < end; j++) {
            nn_op op = old->ops[j];
            for (int k = 0; k < NN_INPUTS; k++) {
                if (is_forward(s, op.in[k])) {
                    op.in[k] = at_hand(s, op.in[k]);
                }
            }
            nn_op_append(s->p, &op);
        }
    }
}

tg_status nn_pass_checkpoint(nn_program *p) {
    tg_status status = TG_OK;
    if (!p->training || p->model->config.activation_checkpoint == TG_CHECKPOINT_OFF) {
        return TG_OK;
    }
    state s = {.p = p, .old = *p, .values = p->value_count};
    TG_TRY(nn_links_make(p, &s.links));
    TG_TRY(TG_NEW(p->ctx, TG_MEM_OTHER, s.again, s.values));
    TG_TRY(TG_NEW(p->ctx, TG_MEM_OTHER, s.keeps, s.values));
    choose(&s);
    p->ops = NULL;
    p->op_capacity = p->op_count = 0;
    rewrite(&s);
    tg_mem_free(p->ctx, s.old.ops);
fail:
    nn_links_free(p, &s.links);
    tg_mem_free(p->ctx, s.again);
    tg_mem_free(p->ctx, s.keeps);
    return status == TG_OK ? p->status : status;
}
