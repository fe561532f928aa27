/* Guards, rounds, and the counts of updates made and skipped. */
#include "optim/in_flight.h"

#include <stdio.h>

#include "optim/optim.h"

static int index_of(const tg_optim *optim, const tg_slot *slot) {
    return (int)(slot - optim->slots);
}

/* ---- late results ---- */

tg_status tg_late_create(tg_backend *be, const void *source, size_t bytes, tg_late_result *out) {
    *out = (tg_late_result){.source = source, .bytes = bytes};
    out->values = be->ops->stream->pinned_alloc(be, TG_MEM_OTHER, bytes);
    return out->values ? be->ops->stream->event_create(be, &out->event) : TG_E_MEMORY;
}

void tg_late_destroy(tg_backend *be, tg_late_result *result) {
    be->ops->stream->event_destroy(be, &result->event);
    be->ops->stream->pinned_release(be, result->values);
    *result = (tg_late_result){0};
}

tg_status tg_late_send(tg_backend *be, tg_late_result *result) {
    TG_CALL(be->ops->copy(be, result->values, result->source, result->bytes));
    TG_CALL(be->ops->stream->event_record(be, result->event));
    result->is_pending = true;
    return TG_OK;
}

tg_status tg_late_wait(tg_backend *be, tg_late_result *result) {
    TG_CALL(be->ops->stream->event_wait(be, result->event));
    result->is_pending = false;
    return TG_OK;
}

/* ---- life ---- */

tg_status tg_in_flight_create(tg_optim *optim) {
    tg_backend *be = optim->be;
    tg_in_flight *p = &optim->in_flight;
    const size_t slots = (size_t)optim->slot_count;
    TG_CALL(TG_BACKEND_ALLOC(be, TG_MEM_OTHER, p->guards, slots * sizeof *p->guards));
    const tg_stream_ops *stream = be->ops->stream;
    if (!stream) {
        return TG_OK;
    }
    p->rates = be->ops->alloc(be, TG_MEM_OTHER, slots * sizeof *p->rates);
    p->chosen = stream->pinned_alloc(be, TG_MEM_OTHER, slots * sizeof *p->chosen);
    TG_CALL(p->rates && p->chosen ? TG_OK : TG_E_MEMORY);
    return tg_late_create(be, p->guards, slots * sizeof *p->guards, &p->seen);
}

void tg_in_flight_destroy(tg_optim *optim) {
    tg_backend *be = optim->be;
    tg_in_flight *p = &optim->in_flight;
    if (!p->guards) { /* only planned */
        return;
    }
    const tg_stream_ops *stream = be->ops->stream;
    if (stream) {
        (void)be->ops->synchronize(be); /* copies into memory about to be freed */
        tg_late_destroy(be, &p->seen);
        stream->pinned_release(be, p->chosen);
    }
    be->ops->release(be, p->rates);
    be->ops->release(be, p->guards);
}

/* ---- outcomes ---- */

enum { MAX_WARNINGS = 64 }; /* of skipped updates; then only when they double */

static void note_update(tg_optim *optim, tg_slot *slot) {
    slot->step++;
    slot->moment_step++;
    optim->stats.steps++;
}

/* One warning per step, which usually refuses the updates of all parameters. */
static void warn_of_step(tg_optim *optim, int64_t step, const char *name, const char *why) {
    if (step == optim->warned_of) {
        return;
    }
    optim->warned_of = step;
    const int64_t count = ++optim->warnings;
    if (count <= MAX_WARNINGS || (count & (count - 1)) == 0) {
        tg_log(optim->ctx, TG_LOG_WARN,
               "step %lld: gradient of %s: %s; its update, and any other like it, is skipped (%lld "
               "steps so far%s)",
               (long long)step, name, why, (long long)count,
               count < MAX_WARNINGS ? "" : "; the next warning comes when they have doubled");
    }
}

tg_status tg_slot_refused(tg_optim *optim, tg_slot *slot, int64_t nonfinite) {
    optim->loss_scale.refused++;
    if (tg_loss_scale_yields(&optim->loss_scale)) {
        return TG_OK; /* reported and counted by the step */
    }
    char why[64] = "it is so large that its squares overflow";
    if (nonfinite < TG_TOO_LARGE) {
        snprintf(why, sizeof why, "%lld entries are NaN or Inf", (long long)nonfinite);
    }
    if (optim->groups[slot->group].nonfinite == TG_NONFINITE_ERROR) {
        return tg_fail(optim->ctx, TG_E_NUMERIC, "gradient of %s: %s", slot->name, why);
    }
    optim->stats.skipped++;
    warn_of_step(optim, slot->step + ++slot->refused, slot->name, why);
    return TG_OK;
}

/* Waits for the round and counts the updates its guards let through; silently if `forgets`. */
static tg_status finish_round(tg_optim *optim, bool forgets) {
    tg_in_flight *p = &optim->in_flight;
    optim->ahead.slot = NULL;
    if (!p->is_open) {
        return TG_OK;
    }
    TG_CALL(tg_optim_send_round(optim));
    TG_CALL(tg_late_wait(optim->be, &p->seen));
    p->is_open = p->is_planned = false;
    const uint32_t *seen = p->seen.values;
    tg_status status = TG_OK;
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        const bool was_in_flight = slot->is_in_flight;
        slot->is_guarded = slot->is_in_flight = false;
        slot->nonfinite += slot->is_summing ? seen[i] : 0;
        if (was_in_flight && seen[i] == 0) {
            note_update(optim, slot);
        } else if (was_in_flight && !forgets && status == TG_OK) {
            status = tg_slot_refused(optim, slot, seen[i]);
        }
    }
    return status;
}

tg_status tg_optim_synchronize(tg_optim *optim) {
    TG_NEED(NULL, optim);
    return finish_round(optim, false);
}

tg_status tg_optim_forget_round(tg_optim *optim) {
    return finish_round(optim, true);
}

/* ---- rounds ---- */

static tg_status open_round(tg_optim *optim) {
    tg_in_flight *p = &optim->in_flight;
    if (p->is_open) {
        return TG_OK;
    }
    p->is_open = true;
    /* a counter of 0 is a float of 0 */
    return optim->be->ops->fill(optim->be, TG_F32, optim->slot_count, (tg_scalar){0}, p->guards);
}

tg_status tg_optim_send_round(tg_optim *optim) {
    tg_in_flight *p = &optim->in_flight;
    if (!p->is_open || p->seen.is_pending) {
        return TG_OK;
    }
    TG_CALL(tg_late_send(optim->be, &p->seen));
    for (int i = 0; i < optim->slot_count && p->is_planned; i++) {
        optim->slots[i].is_planned = optim->slots[i].is_in_flight;
    }
    p->is_planned = false;
    return TG_OK;
}

bool tg_guard_is_read_first(const tg_optim *optim, const tg_slot *slot) {
    return !optim->be->ops->stream || slot->moments.rule->step_whole ||
           optim->groups[slot->group].nonfinite == TG_NONFINITE_ERROR;
}

tg_status tg_update_begin(tg_optim *optim, tg_slot *slot, uint32_t **guard) {
    tg_in_flight *p = &optim->in_flight;
    *guard = p->guards + index_of(optim, slot);
    optim->ahead.slot = NULL;
    TG_CALL(slot->projector && optim->shares_workspace ? tg_optim_use_shared(optim, false) : TG_OK);
    if (!optim->be->ops->stream) {
        **guard = 0;
        return TG_OK;
    }
    const bool is_used = slot->is_in_flight || (slot->is_guarded && !slot->is_summing);
    if (is_used || p->seen.is_pending) {
        TG_CALL(tg_optim_synchronize(optim));
    }
    TG_CALL(open_round(optim));
    slot->is_guarded = true;
    return TG_OK;
}

tg_status tg_guard_read(tg_optim *optim, const tg_slot *slot, int64_t *nonfinite) {
    uint32_t count = 0;
    const uint32_t *guard = optim->in_flight.guards + index_of(optim, slot);
    const tg_status status = optim->be->ops->download(optim->be, &count, guard, sizeof count);
    *nonfinite = count;
    return status;
}

void tg_update_end(tg_optim *optim, tg_slot *slot) {
    if (optim->be->ops->stream) {
        slot->is_in_flight = true;
    } else {
        note_update(optim, slot);
    }
}

/* ---- planned rounds ---- */

bool tg_optim_is_ordinary(const tg_optim *optim) {
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        if (slot->is_summing || tg_guard_is_read_first(optim, slot) ||
            (slot->projector && tg_slot_is_due(optim, slot))) {
            return false;
        }
    }
    return true;
}

tg_status tg_optim_plan_round(tg_optim *optim) {
    tg_backend *be = optim->be;
    tg_in_flight *p = &optim->in_flight;
    TG_CALL(tg_optim_synchronize(optim));
    for (int i = 0; i < optim->slot_count; i++) {
        p->chosen[i] = tg_slot_rates(optim, &optim->slots[i]);
    }
    TG_CALL(be->ops->copy(be, p->rates, p->chosen, (size_t)optim->slot_count * sizeof *p->rates));
    TG_CALL(open_round(optim));
    p->is_planned = true;
    return TG_OK;
}

void tg_optim_restart_round(tg_optim *optim) {
    for (int i = 0; i < optim->slot_count; i++) {
        optim->slots[i].is_in_flight = optim->slots[i].is_guarded = false;
        optim->slots[i].is_summing = false; /* with several ranks: the sum of this round */
    }
}

void tg_optim_repeat_round(tg_optim *optim) {
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        slot->is_in_flight = slot->is_planned;
        slot->is_guarded = slot->is_guarded || slot->is_planned;
    }
}
