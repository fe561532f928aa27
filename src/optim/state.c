/* Saving and loading: everything the next step depends on, bit for bit.
 *
 * Per parameter P: optim.P.method (text), optim.P.counters (i64), optim.P.m, optim.P.v (8-bit
 * moments: u8, one per real, and optim.P.m_scale, optim.P.v_scale, one per block of 256), and for
 * each branch B of a projector optim.P.B.factorK or optim.P.B.bitmap (u64 words). The ranks of a
 * bitmap follow from its words and are not stored. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "optim/ranks.h"

enum { COUNTERS = 3 + TG_PROJECTOR_COUNTERS }; /* of a parameter */

/* Name of an entry of this parameter. */
static tg_status entry_name(tg_context *ctx, const tg_slot *slot, char *name, const char *format,
                            ...) TG_PRINTF(4, 5);

static tg_status entry_name(tg_context *ctx, const tg_slot *slot, char *name, const char *format,
                            ...) {
    const int used = snprintf(name, TG_STATE_NAME, "optim.%s.", slot->name);
    va_list args;
    va_start(args, format);
    const int more = used > 0 && used < TG_STATE_NAME
                         ? vsnprintf(name + used, (size_t)(TG_STATE_NAME - used), format, args)
                         : TG_STATE_NAME;
    va_end(args);
    return used + more < TG_STATE_NAME
               ? TG_OK
               : tg_fail(ctx, TG_E_ARGUMENT, "optimizer: the name %.60s.. is too long", slot->name);
}

/* The method as text; the state of another method is refused by it. */
static void describe_method(const tg_optim *optim, const tg_slot *slot, char *text,
                            size_t capacity) {
    const tg_optim_config *config = &optim->groups[slot->group];
    const char *rule = tg_rule_name(slot->moments.rule);
    const char *complex = config->complex_adam == TG_ADAM_SPLIT ? "split" : "modulus";
    const char *form = tg_moments_codec(&slot->moments)->tag;
    const tg_projector *p = slot->projector;
    if (!p) {
        snprintf(text, capacity, "%s %s%s", rule, complex, form);
        return;
    }
    static const char *const schemes[] = {"single", "composite", "sum"};
    const bool is_adam = config->rule == TG_RULE_ADAM; /* the default is not named */
    snprintf(text, capacity, "%s %s%s%s %s%s%s%s", schemes[p->config.scheme], p->branch[0].name,
             p->branches == 2 ? "+" : "", p->branches == 2 ? p->branch[1].name : "",
             is_adam ? "" : rule, is_adam ? "" : " ", complex, form);
}

static void get_counters(const tg_slot *slot, int64_t counters[COUNTERS]) {
    memset(counters, 0, COUNTERS * sizeof *counters);
    counters[0] = slot->step;
    counters[1] = slot->moment_step;
    counters[2] = slot->last_refresh;
    if (slot->projector) {
        tg_projector_get_counters(slot->projector, counters + 3);
    }
}

static void set_counters(tg_slot *slot, const int64_t counters[COUNTERS]) {
    slot->step = counters[0];
    slot->moment_step = counters[1];
    slot->last_refresh = counters[2];
    if (slot->projector) {
        tg_projector_set_counters(slot->projector, counters + 3);
    }
}

tg_status tg_state_describe_moment(const tg_optim *optim, const tg_slot *slot, int i, int64_t reals,
                                   tg_state_part out[2]) {
    const tg_moments *moments = &slot->moments;
    const tg_rule_state *state = &moments->rule->state[i];
    const tg_state_codec *codec = tg_moment_codec(moments, i);
    const tg_dtype real = codec->bits > 0 ? codec->stored : moments->real;
    const bool is_packed = real == TG_U8;
    const bool pairs =
        !state->is_square && !state->is_single && !is_packed && tg_dtype_is_complex(slot->dtype);
    const int64_t length = is_packed ? (int64_t)tg_state_bytes(codec, moments->real, reals)
                           : pairs   ? reals / 2
                                     : reals;
    out[0] = (tg_state_part){.memory = moments->at[i].memory,
                             .dtype = pairs ? tg_dtype_complex(real) : real,
                             .shape = {1, {length}}};
    out[1] = (tg_state_part){.memory = moments->at[i].scale,
                             .dtype = TG_F32,
                             .shape = {1, {tg_state_scales(codec, reals)}}};
    TG_CALL(entry_name(optim->ctx, slot, out[0].name, "%s", state->name));
    return entry_name(optim->ctx, slot, out[1].name, "%s_scale", state->name);
}

/* Values, then scales. */
tg_status tg_state_list_moments(const tg_optim *optim, const tg_slot *slot, tg_state_part *parts,
                                int *count) {
    const bool is_block = tg_slot_is_dense_block(slot);
    const int states = slot->moments.rule->states;
    *count = 0;
    for (int i = 0; i < 2 * states; i++) {
        tg_state_part moment[2], *part = &moment[i / states];
        int64_t reals = slot->moments.at[i % states].reals;
        if (is_block) {
            const tg_block_rows rows = tg_moment_get_rows(optim, slot, i % states);
            reals = rows.outer * rows.whole * rows.inner;
        }
        TG_CALL(tg_state_describe_moment(optim, slot, i % states, reals, moment));
        part->memory = is_block ? NULL : part->memory;
        if (part == moment || tg_shape_numel(&part->shape) > 0) {
            parts[(*count)++] = *part;
        }
    }
    return TG_OK;
}

/* All arrays of a parameter, in a fixed order. */
static tg_status list_parts(const tg_optim *optim, const tg_slot *slot, tg_state_part *parts,
                            int *count) {
    tg_context *ctx = optim->ctx;
    TG_CALL(tg_state_list_moments(optim, slot, parts, count));
    tg_state_part *at = parts + *count;
    for (int b = 0; slot->projector && b < slot->projector->branches; b++) {
        const tg_branch *branch = &slot->projector->branch[b];
        if (!branch->is_ready) {
            continue;
        }
        for (int d = 0; d < TG_MAX_NDIM; d++) {
            if (branch->factor[d]) {
                *at = (tg_state_part){.memory = branch->factor[d],
                                      .dtype = slot->dtype,
                                      .shape = {2, {branch->modes.dim[d], branch->modes.rank[d]}}};
                TG_CALL(entry_name(ctx, slot, (at++)->name, "%d.factor%d", b, d));
            }
        }
        if (branch->kind->is_sparse) {
            *at = (tg_state_part){.memory = branch->bitmap.words,
                                  .dtype = TG_U64,
                                  .shape = {1, {tg_bitmap_words(branch->bitmap.n)}}};
            TG_CALL(entry_name(ctx, slot, (at++)->name, "%d.bitmap", b));
        }
    }
    *count = (int)(at - parts);
    return TG_OK;
}

/* ---- saving ---- */

tg_status tg_state_save_numbers(tg_context *ctx, tg_archive *archive, const char *name,
                                tg_dtype dtype, int64_t count, const void *numbers) {
    const tg_shape shape = tg_shape_of(1, &count);
    tg_tensor copy = {0};
    TG_CALL(tg_tensor_create(ctx, TG_MEM_OTHER, dtype, &shape, &copy));
    memcpy(copy.data, numbers, tg_tensor_bytes(&copy));
    return tg_archive_take(archive, name, &copy);
}

/* An array on the backend; on the host it can be a view. */
static tg_status save_part(tg_optim *optim, tg_archive *archive, const tg_state_part *p, bool views,
                           tg_staging *staging) {
    const tg_tensor array = tg_backend_view(optim->be, p->dtype, &p->shape, p->memory);
    tg_tensor copy;
    if (!p->memory) { /* on other ranks */
        const tg_tensor *gathered = tg_archive_find(optim->gathered, p->name);
        return gathered ? tg_archive_add_view(archive, p->name, gathered)
                        : tg_fail(optim->ctx, TG_E_ARGUMENT,
                                  "optimizer: %s is stored on other ranks (shard_ranks, blocks); a "
                                  "trainer saves it",
                                  p->name);
    }
    if (views && array.place == TG_HOST) {
        return tg_archive_add_view(archive, p->name, &array);
    }
    TG_CALL(tg_backend_download(optim->be, &array, staging, &copy));
    return tg_archive_take(archive, p->name, &copy);
}

static tg_status save_slot(tg_optim *optim, tg_slot *slot, tg_archive *archive, bool views,
                           tg_staging *staging) {
    char name[TG_STATE_NAME], method[160];
    tg_state_part parts[TG_STATE_PARTS];
    int count = 0;
    int64_t counters[COUNTERS];
    describe_method(optim, slot, method, sizeof method);
    TG_CALL(entry_name(optim->ctx, slot, name, "method"));
    TG_CALL(tg_archive_set_meta(archive, name, method));
    get_counters(slot, counters);
    TG_CALL(entry_name(optim->ctx, slot, name, "counters"));
    TG_CALL(tg_state_save_numbers(optim->ctx, archive, name, TG_I64, COUNTERS, counters));
    TG_CALL(list_parts(optim, slot, parts, &count));
    for (int i = 0; i < count; i++) {
        TG_CALL(save_part(optim, archive, &parts[i], views, staging));
    }
    return TG_OK;
}

/* On the host arrays enter the archive as views, if `views`; copies go to the staging buffer. */
static tg_status save_all(tg_optim *optim, tg_archive *archive, bool views, tg_staging *staging) {
    TG_CALL(tg_optim_synchronize(optim));
    for (int i = 0; i < optim->slot_count; i++) {
        if (optim->slots[i].is_summing) {
            return tg_fail(optim->ctx, TG_E_ARGUMENT,
                           "optimizer: %s has accumulated gradients; save after they are applied",
                           optim->slots[i].name);
        }
    }
    const int64_t totals[3] = {optim->stats.steps, optim->stats.skipped, (int64_t)optim->seed};
    TG_CALL(tg_archive_set_meta(archive, "optim.format", "1"));
    TG_CALL(tg_state_save_numbers(optim->ctx, archive, "optim.totals", TG_I64, 3, totals));
    if (optim->loss_scale.config.is_dynamic) {
        int64_t numbers[TG_LOSS_SCALE_NUMBERS];
        tg_loss_scale_save(&optim->loss_scale, numbers);
        TG_CALL(tg_state_save_numbers(optim->ctx, archive, "optim.loss_scale", TG_I64,
                                      TG_LOSS_SCALE_NUMBERS, numbers));
    }
    for (int i = 0; i < optim->slot_count; i++) {
        TG_CALL(save_slot(optim, &optim->slots[i], archive, views, staging));
    }
    return TG_OK;
}

tg_status tg_optim_save(tg_optim *optim, tg_archive *archive) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, archive);
    return save_all(optim, archive, false, NULL);
}

tg_status tg_optim_save_views(tg_optim *optim, tg_staging *staging, tg_archive *archive) {
    return save_all(optim, archive, true, staging);
}

/* ---- loading: first checks everything, then copies everything ---- */

static tg_status find_array(tg_context *ctx, const tg_archive *archive, const char *name,
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
                                const int64_t c[COUNTERS]) {
    bool holds = c[0] >= 0 && c[1] >= 0 && c[1] <= c[0] && c[2] >= -1 && c[2] <= c[0] &&
                 c[3] >= 0 && c[4] >= 0;
    for (int i = 0; i < 5; i++) {
        holds = holds && c[i] <= TG_STATE_MAX_COUNT;
    }
    for (int i = 5; i < COUNTERS; i++) {
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
    int64_t before[COUNTERS];
    const tg_tensor *tensor = NULL;
    get_counters(slot, before);
    describe_method(optim, slot, method, sizeof method);
    TG_TRY(entry_name(ctx, slot, name, "method"));
    const char *found = tg_archive_meta(archive, name);
    if (!found || strcmp(found, method) != 0) {
        return tg_fail(ctx, TG_E_FORMAT, "optimizer state: %s is '%.100s', expected '%s'", name,
                       found ? found : "missing", method);
    }
    TG_TRY(entry_name(ctx, slot, name, "counters"));
    const tg_shape shape = {.ndim = 1, .dim = {COUNTERS}};
    const tg_tensor *counters = NULL;
    TG_TRY(find_array(ctx, archive, name, TG_I64, &shape, &counters));
    TG_TRY(check_counters(ctx, name, slot, counters->data));
    set_counters(slot, counters->data); /* the list of arrays depends on them */
    TG_TRY(list_parts(optim, slot, parts, &count));
    for (int i = 0; i < count; i++) {
        TG_TRY(find_array(ctx, archive, parts[i].name, parts[i].dtype, &parts[i].shape, &tensor));
        if (parts[i].dtype == TG_U64) {
            TG_TRY(check_bitmap(ctx, parts[i].name, slot->projector->sparse, tensor));
        }
        if (copies && parts[i].memory) { /* NULL: moments on other ranks */
            TG_TRY(optim->be->ops->upload(optim->be, parts[i].memory, tensor->data,
                                          tg_tensor_bytes(tensor)));
        }
    }
    if (copies && slot->projector && slot->projector->branch[0].is_ready) {
        TG_TRY(tg_projector_complete(slot->projector));
    }
    if (copies && tg_slot_is_dense_block(slot) && !slot->is_elsewhere) {
        TG_TRY(tg_moments_load_rows(optim, slot, archive));
    }
fail:
    if (!copies) {
        set_counters(slot, before);
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
        TG_CALL(find_array(optim->ctx, archive, name, TG_I64, &shape, &numbers));
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
    TG_CALL(find_array(optim->ctx, archive, "optim.totals", TG_I64, &shape, &totals));
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
    TG_CALL(tg_optim_discard(optim));
    optim->stats.steps = values[0];
    optim->stats.skipped = values[1];
    optim->loss_scale = loss_scale;
    return TG_OK;
}
