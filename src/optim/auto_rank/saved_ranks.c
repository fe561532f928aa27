/* Automatic ranks in a saved state: optim.P.ranks (i64: ranks, entries of the sparse set, whether
 * it is observed, due for a refresh and due for a cold start) and optim.P.spectrum (f64: energy,
 * bound, error, what the sparse set left, eigenvalues). */
#include <string.h>

#include "base/minmax.h"
#include "optim/auto_rank/state_pool.h"
#include "optim/state.h"

enum { LEFT = 1 + TG_MAX_NDIM, HEAD = 3 + LEFT }; /* numbers of a tg_left, and before eigenvalues */

static tg_shape ranks_shape(const tg_slot *slot) {
    return (tg_shape){.ndim = 1, .dim = {slot->shape.ndim + TG_RANK_FLAGS}};
}

static tg_shape spectrum_shape(const tg_slot *slot) {
    return (tg_shape){.ndim = 1, .dim = {HEAD + tg_spectrum_values(&slot->ranked->spectrum)}};
}

static void get_ranks(const tg_slot *slot, int64_t *ranks) {
    const tg_projector *p = slot->projector;
    const int n = slot->shape.ndim;
    memcpy(ranks, p->low_rank->modes.rank, (size_t)n * sizeof *ranks);
    ranks[n] = p->sparse ? p->sparse->count : 0;
    ranks[n + 1] = slot->ranked->is_observed;
    ranks[n + 2] = slot->must_refresh;
    ranks[n + 3] = p->low_rank->restarts;
}

static void set_ranks(tg_slot *slot, const int64_t *ranks) {
    tg_projector *p = slot->projector;
    const int n = slot->shape.ndim;
    for (int d = 0; d < n; d++) {
        p->low_rank->modes.rank[d] = p->modes.rank[d] = ranks[d];
    }
    p->low_rank->count = tg_product(n, ranks);
    p->low_rank->restarts = ranks[n + 3] != 0;
    if (p->sparse) {
        p->sparse->count = ranks[n];
    }
    slot->ranked->is_observed = ranks[n + 1] != 0;
    slot->must_refresh = ranks[n + 2] != 0;
    slot->count = p->low_rank->count + ranks[n];
}

tg_status tg_auto_rank_save(tg_optim *optim, tg_slot *slot, tg_archive *archive) {
    tg_status status = TG_OK;
    char name[TG_STATE_NAME];
    tg_tensor copy = {0};
    int64_t ranks[TG_MAX_NDIM + TG_RANK_FLAGS];
    tg_shape shape = ranks_shape(slot);
    get_ranks(slot, ranks);
    TG_TRY(tg_state_name(optim->ctx, slot, name, "ranks"));
    TG_TRY(tg_state_save_numbers(optim, archive, name, &shape, ranks));
    shape = spectrum_shape(slot);
    TG_TRY(tg_tensor_create(optim->ctx, TG_MEM_OTHER, TG_F64, &shape, &copy));
    const tg_spectrum *s = &slot->ranked->spectrum;
    double *values = copy.data;
    values[0] = s->energy;
    values[1] = slot->bound;
    values[2] = slot->error;
    memcpy(values + 3, &slot->projector->left, sizeof slot->projector->left);
    memcpy(values + HEAD, s->values, (size_t)tg_spectrum_values(s) * sizeof *values);
    TG_TRY(tg_state_name(optim->ctx, slot, name, "spectrum"));
    TG_TRY(tg_archive_take(archive, name, &copy));
fail:
    tg_tensor_destroy(&copy);
    return status;
}

static tg_status check_ranks(tg_context *ctx, const char *name, const tg_slot *slot,
                             const int64_t *ranks) {
    const tg_spectrum *s = &slot->ranked->spectrum;
    const int n = slot->shape.ndim;
    bool holds = ranks[n] == s->kept;
    for (int d = 0; d < n; d++) {
        holds = holds && ranks[d] >= 1 && ranks[d] <= s->max_rank[d];
    }
    for (int i = n + 1; i < n + TG_RANK_FLAGS; i++) {
        holds = holds && (ranks[i] == 0 || ranks[i] == 1);
    }
    return holds ? TG_OK
                 : tg_fail(ctx, TG_E_FORMAT,
                           "optimizer state: %s holds ranks that this optimizer has no memory for",
                           name);
}

static tg_status load_ranks(tg_optim *optim, tg_slot *slot, const tg_archive *archive,
                            bool copies) {
    char name[TG_STATE_NAME];
    const tg_tensor *tensor = NULL;
    tg_shape shape = ranks_shape(slot);
    TG_CALL(tg_state_name(optim->ctx, slot, name, "ranks"));
    TG_CALL(tg_state_find(optim->ctx, archive, name, TG_I64, &shape, &tensor));
    TG_CALL(check_ranks(optim->ctx, name, slot, tensor->data));
    set_ranks(slot, tensor->data);
    shape = spectrum_shape(slot);
    TG_CALL(tg_state_name(optim->ctx, slot, name, "spectrum"));
    TG_CALL(tg_state_find(optim->ctx, archive, name, TG_F64, &shape, &tensor));
    if (copies) {
        const double *values = tensor->data;
        tg_spectrum *s = &slot->ranked->spectrum;
        s->energy = values[0];
        slot->bound = values[1];
        slot->error = values[2];
        memcpy(&slot->projector->left, values + 3, sizeof slot->projector->left);
        memcpy(s->values, values + HEAD, (size_t)tg_spectrum_values(s) * sizeof *values);
    }
    return TG_OK;
}

tg_status tg_auto_rank_load(tg_optim *optim, const tg_archive *archive, bool copies) {
    for (int i = 0; i < optim->slot_count; i++) {
        if (optim->slots[i].ranked) {
            get_ranks(&optim->slots[i], optim->slots[i].ranked->before);
        }
    }
    for (int i = 0; i < optim->slot_count; i++) {
        if (optim->slots[i].ranked) {
            TG_CALL(load_ranks(optim, &optim->slots[i], archive, copies));
        }
    }
    for (int group = 0; group < optim->group_count; group++) {
        if (!tg_pool_lay_out(optim, group)) {
            return tg_fail(optim->ctx, TG_E_FORMAT,
                           "optimizer state: its ranks do not fit into opt.memory_budget");
        }
    }
    return TG_OK;
}

void tg_auto_rank_unload(tg_optim *optim) {
    for (int i = 0; i < optim->slot_count; i++) {
        if (optim->slots[i].ranked) {
            set_ranks(&optim->slots[i], optim->slots[i].ranked->before);
        }
    }
    for (int group = 0; group < optim->group_count; group++) {
        tg_pool_lay_out(optim, group);
    }
}
