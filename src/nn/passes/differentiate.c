/* Backward ops by the rules of the kinds, last layer first.
 *
 * Values are visited in reverse order. When one is reached, the gradients at
 * the outputs of all its readers exist, so its own is gathered from them at once:
 *
 *   in the order of the readers, those that overwrite first and the others adding to them; or,
 *   when checkpointing or small storage trades time for memory and the last reader allows it, in
 *   the reverse order: the last one leaves its part where the gradient at its output was, and the
 *   others add to that.
 *
 * Gradients of spectral weights are handed over at the end, as factors if they are dense. */
#include "nn/ops.h"
#include "nn/program.h"

typedef struct reader {
    int op, input;
} reader;

typedef struct state {
    nn_program *p;
    int values;      /* of forward */
    int *gradient;   /* (values); -1: none yet */
    bool *needs;     /* (values): parameters lead to it, or an x whose gradient is wanted */
    reader *readers; /* of one value at a time, in their order */
} state;

static int find_readers(const state *s, int value) {
    int count = 0;
    for (int i = 0; i < s->p->forward_end; i++) {
        for (int k = 0; k < NN_INPUTS; k++) {
            if (s->p->ops[i].in[k] == value) {
                s->readers[count++] = (reader){i, k};
            }
        }
    }
    return count;
}

/* Adds a reader's part to the gradient; `sum` is that of the readers before it. */
static int contribute(const state *s, reader r, int sum, bool wanted) {
    nn_program *p = s->p;
    const nn_op op = p->ops[r.op]; /* a copy: the list grows */
    const nn_kind_row *row = nn_kind_of(op.kind);
    const int dy = s->gradient[op.out[0]];
    if (!row->back || dy < 0 || (!wanted && op.read_count < 1)) {
        return sum;
    }
    const bool passes = r.input == NN_SUM; /* dy itself */
    p->phase = op.back;
    p->block = op.block;
    const int alone = row->adds && !passes ? sum : -1;
    const int part = row->back(p, &op, (nn_request){r.input, dy, alone, wanted});
    return alone >= 0 || sum < 0 || part < 0 ? part : nn_add_accumulate(p, part, sum);
}

static bool adds(const state *s, reader r) {
    return nn_kind_of(s->p->ops[r.op].kind)->adds && r.input != NN_SUM;
}

static void gather(state *s, int value) {
    const int count = find_readers(s, value);
    const bool wanted = s->needs[value];
    const nn_op *last = count > 0 ? &s->p->ops[s->readers[count - 1].op] : NULL;
    const nn_kind_row *row = last ? nn_kind_of(last->kind) : NULL;
    const nn_model *model = s->p->model;
    const bool saves_memory = model->config.activation_checkpoint != TG_CHECKPOINT_OFF ||
                              model->stores.saved != TG_PRECISION_FULL;
    const bool in_place =
        saves_memory && count > 1 && row->back_in_place && row->back_in_place(s->p, last);
    int sum = s->gradient[value];
    for (int late = 0; late < 2; late++) { /* overwriting readers first, then adding ones */
        for (int i = 0; i < count; i++) {
            const reader r = s->readers[in_place ? count - 1 - i : i];
            if (adds(s, r) == (in_place ? late == 0 : late == 1)) {
                sum = contribute(s, r, sum, wanted);
            }
        }
    }
    s->gradient[value] = sum;
}

static void mark_needs(state *s) {
    for (int i = 0; i < s->p->forward_end; i++) {
        const nn_op *op = &s->p->ops[i];
        bool needs =
            op->read_count > 0 || (op->kind == NN_INPUT && s->p->model->config.input_gradient);
        for (int k = 0; k < NN_INPUTS; k++) {
            needs = needs || (op->in[k] >= 0 && s->needs[op->in[k]]);
        }
        s->needs[op->out[0]] = needs;
    }
}

static void hand_over_factors(const state *s) {
    nn_program *p = s->p;
    nn_scope(p, 0, NULL);
    p->phase = p->spectral_phase = nn_phase_named(p, "spectral weights", true);
    for (int i = p->forward_end - 1; i >= 0; i--) {
        const nn_op op = p->ops[i];
        if (nn_kind_of(op.kind)->at_end) {
            nn_op send = nn_op_make(nn_kind_of(op.kind)->at_end);
            send.conv = op.conv;
            nn_op_makes_gradients(&send, &op);
            send.in[NN_X] = op.in[NN_X];
            send.in[NN_DY] = s->gradient[op.out[0]];
            if (nn_kind_of(op.kind)->end) {
                nn_kind_of(op.kind)->end(p, &op, &send);
            }
            nn_op_add(p, send);
        }
    }
}

tg_status nn_pass_differentiate(nn_program *p) {
    tg_status status = TG_OK;
    state s = {.p = p, .values = p->value_count};
    TG_TRY(p->status);
    TG_TRY(TG_NEW(p->ctx, TG_MEM_OTHER, s.gradient, s.values));
    TG_TRY(TG_NEW(p->ctx, TG_MEM_OTHER, s.needs, s.values));
    TG_TRY(TG_NEW(p->ctx, TG_MEM_OTHER, s.readers, NN_INPUTS * p->forward_end));
    for (int v = 0; v < s.values; v++) {
        s.gradient[v] = v == p->output ? p->dout : -1;
    }
    mark_needs(&s);
    for (int i = p->forward_end - 1; i >= 0; i--) {
        gather(&s, p->ops[i].out[0]);
    }
    if (p->model->config.input_gradient) {
        nn_add_input_gradient(p, s.gradient[p->input]);
    }
    hand_over_factors(&s);
fail:
    tg_mem_free(p->ctx, s.gradient);
    tg_mem_free(p->ctx, s.needs);
    tg_mem_free(p->ctx, s.readers);
    return status == TG_OK ? p->status : status;
}

/* ---- shared by the rules of the kinds ---- */

int nn_back_by_op(nn_program *program, const nn_op *op, nn_request ask) {
    if (ask.input == NN_SUM) {
        return ask.dy;
    }
    nn_op back = *op;
    back.kind = nn_kind_of(op->kind)->backward;
    back.in[NN_DY] = ask.dy;
    back.in[NN_SUM] = ask.sum;
    back.out[0] = ask.wanted ? nn_value_like(program, op->in[NN_X]) : -1;
    nn_op_makes_gradients(&back, op);
    return nn_op_add(program, back);
}

int nn_back_of_dy(nn_program *program, const nn_op *op, nn_request ask) {
    nn_op back = nn_op_make(nn_kind_of(op->kind)->backward);
    back.in[NN_X] = ask.dy;
    back.out[0] = nn_value_like(program, op->in[NN_X]);
    return nn_op_add(program, back);
}
