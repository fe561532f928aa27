/* Buffer lifetimes, and from them offsets in two arenas, before the first step.
 *
 * Time is counted in ops. A value lives from the op that makes it to the last that reads it; an op
 * that allows it writes over an input that nothing reads any more, and the two are one buffer.
 * Activations are in one arena, transient spectra and scratch in the other.
 *
 * At the end only the factors of the spectral gradients are needed, which are small. Their receiver
 * works in the memory of the activations (tg_shared_workspace), so a step holds the larger of the
 * two, not their sum. */
#include "nn/ops.h"
#include "nn/program.h"

typedef struct lifetimes {
    nn_program *p;
    int *born, *dies; /* (value_count), of single values; for a home, of all values in its memory */
} lifetimes;

/* ---- writing in place ---- */

static int home_of(const nn_program *p, int value) {
    return p->values[value].home;
}

/* Neither a later op nor another input of this one reads the memory. */
static bool is_free(const lifetimes *l, const nn_op *op, int time, int input) {
    const int home = home_of(l->p, op->in[input]);
    bool is_alone = l->dies[home] <= time;
    for (int k = 0; k < NN_INPUTS; k++) {
        is_alone = is_alone && (k == input || op->in[k] < 0 || home_of(l->p, op->in[k]) != home);
    }
    return is_alone;
}

static bool is_alike(const nn_program *p, int a, int b) {
    return nn_value_bytes(p, a) == nn_value_bytes(p, b) &&
           p->values[a].is_transient == p->values[b].is_transient;
}

static void move_in(const lifetimes *l, int value, int home) {
    l->p->values[value].home = home;
    if (l->dies[value] > l->dies[home]) {
        l->dies[home] = l->dies[value];
    }
}

/* The output that may overwrite an input. */
static int overwriting(const nn_op *op) {
    int y = op->out[0];
    for (int k = 1; k < NN_OUTPUTS && nn_kind_of(op->kind)->ends_over; k++) {
        y = op->out[k] >= 0 ? op->out[k] : y;
    }
    return y;
}

static tg_status share(const lifetimes *l, int time) {
    nn_program *p = l->p;
    const nn_op *op = &p->ops[time];
    const nn_kind_row *row = nn_kind_of(op->kind);
    const int y = overwriting(op), activated = nn_activated_output(p, op);
    if (y >= 0 && op->in[NN_SUM] >= 0) {
        if (!is_free(l, op, time, NN_SUM)) {
            return tg_fail(p->ctx, TG_E_UNSUPPORTED,
                           "an op of kind %s adds to a value that is read again later", row->name);
        }
        move_in(l, y, home_of(p, op->in[NN_SUM]));
    }
    static const int inputs[] = {NN_DY, NN_X};
    for (int i = 0; i < 2 && y >= 0 && home_of(p, y) == y; i++) {
        const int x = op->in[inputs[i]];
        if (x >= 0 && l->born[y] == time && (row->overwrites & NN_OVER(inputs[i])) &&
            (!row->in_place || row->in_place(p, op)) && is_alike(p, x, y) &&
            is_free(l, op, time, inputs[i])) {
            move_in(l, y, home_of(p, x));
        }
    }
    if (activated < 0) {
        return TG_OK;
    }
    /* the GELU of z overwrites z if nothing else needs that, or else the value that was added */
    const int added = op->in[NN_ADD], z = op->out[activated - 1], also = op->out[activated];
    if (l->dies[z] <= time && l->dies[home_of(p, z)] <= time) {
        move_in(l, also, home_of(p, z));
    } else if (added >= 0 && is_alike(p, added, also) && is_free(l, op, time, NN_ADD)) {
        move_in(l, also, home_of(p, added));
    }
    return TG_OK;
}

/* ---- lifetimes ---- */

static void see(const lifetimes *l, int value, int time) {
    if (value < 0) {
        return;
    }
    if (l->born[value] < 0) {
        l->born[value] = time;
    }
    l->dies[value] = time;
}

/* Inputs of the last ops, after all micro-batches, are kept from the first micro-batch on. */
static void keep_whole(const lifetimes *l) {
    nn_program *p = l->p;
    for (int v = 0; v < p->value_count; v++) {
        if (p->values[v].is_whole && l->born[v] < p->backward_end) {
            l->born[v] = 0;
        }
    }
}

static tg_status find_lifetimes(const lifetimes *l) {
    nn_program *p = l->p;
    for (int v = 0; v < p->value_count; v++) {
        l->born[v] = l->dies[v] = -1;
        p->values[v].home = v;
    }
    for (int t = 0; t < p->op_count; t++) {
        const nn_op *op = &p->ops[t];
        for (int k = 0; k < NN_INPUTS; k++) {
            see(l, op->in[k], t);
        }
        for (int k = 0; k < NN_OUTPUTS; k++) {
            see(l, op->out[k], t);
        }
        for (int k = 0; k < NN_SCRATCHES; k++) {
            see(l, op->scratch[k], t);
        }
    }
    if (!p->training) {
        see(l, p->output, p->op_count); /* the caller reads it */
    }
    keep_whole(l);
    for (int t = 0; t < p->op_count; t++) {
        TG_CALL(share(l, t));
    }
    return TG_OK;
}

/* ---- the whole batch ---- */

static void mark_whole(nn_program *p) {
    for (int t = p->backward_end; t < p->op_count && nn_in_parts(p); t++) {
        for (int k = 0; k < NN_INPUTS + NN_OUTPUTS; k++) {
            const nn_op *op = &p->ops[t];
            const int value = k < NN_INPUTS ? op->in[k] : op->out[k - NN_INPUTS];
            if (value >= 0) {
                p->values[value].is_whole = true;
            }
        }
    }
}

/* ---- scratch and gradients ---- */

static tg_status add_scratch(nn_program *p, tg_backend *be) {
    for (int t = 0; t < p->op_count && p->status == TG_OK; t++) {
        nn_op *op = &p->ops[t];
        const nn_kind_row *row = nn_kind_of(op->kind);
        size_t bytes[NN_SCRATCHES] = {0};
        if (row->scratch) {
            row->scratch(p, be, op, bytes);
        }
        for (int k = 0; k < NN_SCRATCHES; k++) {
            if (bytes[k] > 0) {
                op->scratch[k] = nn_value_add(p, (nn_value){.role = NN_SCRATCH,
                                                            .points = (int64_t)bytes[k],
                                                            .before_act = -1,
                                                            .is_transient = true});
            }
        }
        const bool makes = row->makes_gradients && op->params > 0;
        const size_t span = !makes ? 0
                            : p->keeps_gradients
                                ? p->model->dense_bytes
                                : nn_gradient_span(p->model, op->param, op->params);
        p->gradient_bytes = span > p->gradient_bytes ? span : p->gradient_bytes;
    }
    return p->status;
}

/* ---- offsets ---- */

/* In the memory of the activations, or in the workspace if that grows by less. */
static tg_status place_part(nn_program *p, int from, void **pointer, size_t bytes) {
    if (bytes == 0) {
        return TG_OK;
    }
    const size_t there = nn_arena_growth(&p->activations, bytes, from, p->op_count);
    const size_t beside = nn_arena_growth(&p->workspace, bytes, from, p->op_count);
    return nn_arena_place(there <= beside ? &p->activations : &p->workspace, pointer, bytes, from,
                          p->op_count);
}

static tg_status place_shared(nn_program *p, int from) {
    tg_shared_workspace *shared = &p->shared;
    const bool work_first = shared->work_bytes > shared->dense_bytes; /* the larger one first */
    shared->dense = shared->work = NULL;
    TG_CALL(work_first ? place_part(p, from, &shared->work, shared->work_bytes) : TG_OK);
    TG_CALL(place_part(p, from, &shared->dense, shared->dense_bytes));
    return work_first ? TG_OK : place_part(p, from, &shared->work, shared->work_bytes);
}

/* First fit can be unlucky: tries several orders, and takes the best. Buffers alive at the end are
 * placed where they fit best or side by side, which leaves room to share. */
typedef struct way {
    bool side_by_side, is_late;
} way;

static const way ways[] = {{false, false}, {true, false}, {false, true}, {true, true}};

enum { WAYS = sizeof ways / sizeof ways[0] };

static tg_status lay_out(const lifetimes *l, way how) {
    nn_program *p = l->p;
    const int end = nn_sharing_begins(p);
    p->activations.buffer_count = p->workspace.buffer_count = 0;
    p->activations.end = p->training && how.side_by_side ? end : 0;
    p->activations.is_late = how.is_late;
    for (int v = 0; v < p->value_count; v++) {
        nn_value *value = &p->values[v];
        if (value->home != v || l->born[v] < 0) {
            continue;
        }
        TG_CALL(nn_arena_add(value->is_transient ? &p->workspace : &p->activations, &value->data,
                             nn_value_bytes(p, v), l->born[v], l->dies[v]));
    }
    nn_arena_solve(&p->activations);
    nn_arena_solve(&p->workspace);
    return p->training ? place_shared(p, end) : TG_OK;
}

tg_status nn_pass_place(nn_program *p, tg_backend *be) {
    size_t least = 0;
    int best = 0;
    tg_status status = TG_OK;
    lifetimes l = {.p = p};
    TG_TRY(add_scratch(p, be));
    mark_whole(p);
    TG_TRY(TG_NEW(p->ctx, TG_MEM_OTHER, l.born, p->value_count));
    TG_TRY(TG_NEW(p->ctx, TG_MEM_OTHER, l.dies, p->value_count));
    TG_TRY(find_lifetimes(&l));
    for (int i = 0; i < WAYS; i++) {
        TG_TRY(lay_out(&l, ways[i]));
        const size_t bytes = p->activations.bytes + p->workspace.bytes;
        if (i == 0 || bytes < least) {
            least = bytes;
            best = i;
        }
    }
    TG_TRY(lay_out(&l, ways[best]));
fail:
    tg_mem_free(p->ctx, l.born);
    tg_mem_free(p->ctx, l.dies);
    return status;
}
