/* Loads a state: first checks everything, then copies everything. */
#include <string.h>

#include "optim/state.h"

tg_status tg_state_find(tg_context *ctx, const tg_archive *archive, const char *name,
                        tg_dtype dtype, const tg_shape *shape, const tg_tensor **out) {
    char expected[128], found[128];
    *out = tg_archive_find(archive, name);
    if (!*out) {
        return tg_fail(ctx, TG_E_FORMAT, "optimizer state: %s is missing", name);
    }
    if ((*out)->dtype != dtype || !tg_shape_equal(&(*out)->shape, shape)) {
        return tg_fail(ctx, TG_E_FORMAT, "optimizer state: %s is %s %s, expected %s %s", name,
                       tg_dtype_name((*out)->dtype),
                       tg_shape_text(&(*out)->shape, found, sizeof found), tg_dtype_name(dtype),
                       tg_shape_text(shape, expected, sizeof expected));
    }
    return TG_OK;
}

static int64_t popcount(const tg_tensor *words) {
    int64_t bits = 0;
    for (int64_t i = 0; i < tg_tensor_numel(words); i++) {
        bits += __builtin_popcountll(((const uint64_t *)words->data)[i]);
    }
    return bits;
}

/* A bitmap has as many bits as the branch keeps, and none beyond its end. */
static tg_status check_bitmap(tg_context *ctx, const char *name, const tg_branch *branch,
                              const tg_tensor *words) {
    const int64_t tail = branch->bitmap.n % 64;
    const uint64_t last = ((const uint64_t *)words->data)[tg_tensor_numel(words) - 1];
    if (popcount(words) != branch->count || (tail != 0 && last >> tail != 0)) {
        return tg_fail(ctx, TG_E_FORMAT, "optimizer state: %s has %lld bits set, expected %lld",
                       name, (long long)popcount(words), (long long)branch->count);
    }
    return TG_OK;
}

static tg_status check_counters(tg_context *ctx, const char *name, const tg_slot *slot,
                                const int64_t c[TG_STATE_COUNTERS]) {
    bool holds = c[0] >= 0 && c[1] >= 0 && c[1] <= c[0] && c[2] >= -1 && c[2] <= c[0] &&
                 c[3] >= 0 && c[4] >= 0;
    for (int i = 0; i < 5; i++) {
        holds = holds && c[i] <= TG_STATE_MAX_COUNT;
    }
    for (int i = 5; i < TG_STATE_COUNTERS; i++) {
        holds = holds && (c[i] == 0 || c[i] == 1);
    }
    if (slot->projector) { /* after a step, every branch is ready */
        holds = holds && (c[5] == 1) == (c[2] >= 0) &&
                (c[6] == 1) == (c[5] == 1 && slot->projector->branches == 2);
    }
    return holds ? TG_OK
                 : tg_fail(ctx, TG_E_FORMAT, "optimizer state: %s holds impossible counts", name);
}

/* Checks one parameter's entries, or copies them. */
static tg_status load_slot(tg_optim *optim, tg_slot *slot, const tg_archive *archive, bool copies) {
    tg_status status = TG_OK;
    tg_context *ctx = optim->ctx;
    char name[TG_STATE_NAME], method[160];
    tg_state_part parts[TG_STATE_PARTS];
    int count = 0;
    int64_t before[TG_STATE_COUNTERS];
    const tg_tensor *tensor = NULL;
    tg_state_get_counters(slot, before);
    tg_state_method(optim, slot, method, sizeof method);
    TG_TRY(tg_state_name(ctx, slot, name, "method"));
    const char *found = tg_archive_meta(archive, name);
    if (!found || strcmp(found, method) != 0) {
        return tg_fail(ctx, TG_E_FORMAT, "optimizer state: %s is '%.100s', expected '%s'", name,
                       found ? found : "missing", method);
    }
    TG_TRY(tg_state_name(ctx, slot, name, "counters"));
    const tg_shape shape = {.ndim = 1, .dim = {TG_STATE_COUNTERS}};
    const tg_tensor *counters = NULL;
    TG_TRY(tg_state_find(ctx, archive, name, TG_I64, &shape, &counters));
    TG_TRY(check_counters(ctx, name, slot, counters->data));
    tg_state_set_counters(slot, counters->data); /* the list of arrays depends on them */
    TG_TRY(tg_state_list(optim, slot, parts, &count));
    for (int i = 0; i < count; i++) {
        TG_TRY(
            tg_state_find(ctx, archive, parts[i].name, parts[i].dtype, &parts[i].shape, &tensor));
        if (parts[i].dtype == TG_U64) {
            TG_TRY(check_bitmap(ctx, parts[i].name, slot->projector->sparse, tensor));
        }
        if (copies && parts[i].memory) { /* NULL: moments on another rank */
            TG_TRY(optim->be->ops->upload(optim->be, parts[i].memory, tensor->data,
                                          tg_tensor_bytes(tensor)));
        }
    }
    if (copies && slot->projector && slot->projector->sparse && slot->projector->sparse->is_ready) {
        TG_TRY(optim->be->ops->bitmap_rank(optim->be, &slot->projector->sparse->bitmap));
    }
fail:
    if (!copies) {
        tg_state_set_counters(slot, before);
    }
    return status;
}

/* A state saved without a dynamic scale starts a new one. */
static tg_status load_loss_scale(tg_optim *optim, const tg_archive *archive, tg_loss_scale *out) {
    static const char *const name = "optim.loss_scale";
    const tg_shape shape = {.ndim = 1, .dim = {TG_LOSS_SCALE_NUMBERS}};
    const tg_tensor *numbers = NULL;
    *out = optim->loss_scale;
    if (tg_archive_find(archive, name)) {
        TG_CALL(tg_state_find(optim->ctx, archive, name, TG_I64, &shape, &numbers));
    }
    if (!tg_loss_scale_load(out, numbers ? numbers->data : NULL)) {
        return tg_fail(optim->ctx, TG_E_FORMAT, "optimizer state: %s holds impossible numbers",
                       name);
    }
    return TG_OK;
}

tg_status tg_optim_load(tg_optim *optim, const tg_archive *archive) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, archive);
    const tg_tensor *totals = NULL;
    tg_loss_scale loss_scale;
    const char *format = tg_archive_meta(archive, "optim.format");
    if (!format || strcmp(format, "1") != 0) {
        return tg_fail(optim->ctx, TG_E_FORMAT,
                       "optimizer state: optim.format is '%.40s', expected '1'",
                       format ? format : "missing");
    }
    const tg_shape shape = {.ndim = 1, .dim = {3}};
    TG_CALL(tg_state_find(optim->ctx, archive, "optim.totals", TG_I64, &shape, &totals));
    const int64_t *values = totals->data;
    for (int i = 0; i < 2; i++) {
        if (values[i] < 0 || values[i] > TG_STATE_MAX_COUNT) {
            return tg_fail(optim->ctx, TG_E_FORMAT,
                           "optimizer state: optim.totals holds impossible counts");
        }
    }
    if ((uint64_t)values[2] != optim->seed) {
        return tg_fail(optim->ctx, TG_E_FORMAT,
                       "optimizer state: it was made with seed %llu, this optimizer with %llu",
                       (unsigned long long)values[2], (unsigned long long)optim->seed);
    }
    TG_CALL(load_loss_scale(optim, archive, &loss_scale));
    TG_CALL(tg_optim_synchronize(optim));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < optim->slot_count; i++) {
            TG_CALL(load_slot(optim, &optim->slots[i], archive, pass == 1));
        }
    }
    for (int i = 0; i < optim->slot_count; i++) {
        optim->be->ops->release(optim->be, optim->slots[i].dense_sum);
        optim->slots[i].dense_sum = NULL;
        optim->slots[i].is_summing = false;
        optim->slots[i].nonfinite = 0;
    }
    optim->stats.steps = values[0];
    optim->stats.skipped = values[1];
    optim->loss_scale = loss_scale;
    return TG_OK;
}
