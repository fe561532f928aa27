/* Saving and loading: everything the next step depends on, bit for bit.
 *
 * Per parameter P: optim.P.method (text), optim.P.counters (i64), optim.P.m, optim.P.v (8-bit
 * moments: u8, one per real, and optim.P.m_scale, optim.P.v_scale, one per block of 256), and for
 * each branch B of a projector optim.P.B.factorK or optim.P.B.bitmap (u64 words). The ranks of a
 * bitmap follow from its words and are not stored. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "optim/state.h"

tg_status tg_state_name(tg_context *ctx, const tg_slot *slot, char *name, const char *format, ...) {
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
void tg_state_method(const tg_optim *optim, const tg_slot *slot, char *text, size_t capacity) {
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

void tg_state_get_counters(const tg_slot *slot, int64_t counters[TG_STATE_COUNTERS]) {
    const tg_projector *p = slot->projector;
    counters[0] = slot->step;
    counters[1] = slot->moment_step;
    counters[2] = slot->last_refresh;
    counters[3] = p ? p->refreshes : 0;
    counters[4] = p ? p->failures : 0;
    counters[5] = p ? p->branch[0].is_ready : 0;
    counters[6] = p ? p->branch[1].is_ready : 0;
}

void tg_state_set_counters(tg_slot *slot, const int64_t counters[TG_STATE_COUNTERS]) {
    tg_projector *p = slot->projector;
    slot->step = counters[0];
    slot->moment_step = counters[1];
    slot->last_refresh = counters[2];
    if (p) {
        p->refreshes = counters[3];
        p->failures = counters[4];
        p->branch[0].is_ready = counters[5] != 0;
        p->branch[1].is_ready = counters[6] != 0;
    }
}

/* Values, then scales. */
tg_status tg_state_list_moments(const tg_optim *optim, const tg_slot *slot, tg_state_part *parts,
                                int *count) {
    const tg_moments plan = slot->moments;
    const int states = plan.rule->states;
    *count = 0;
    for (int i = 0; i < 2 * states; i++) {
        tg_state_part *at = &parts[*count];
        const tg_rule_state *state = &plan.rule->state[i % states];
        const tg_state_codec *codec = tg_moment_codec(&plan, i % states);
        const bool packed = codec->stored == TG_U8;
        const tg_dtype real = codec->bits > 0 ? codec->stored : plan.real;
        const tg_moment *moment = &slot->moments.at[i % states];
        const int64_t reals = plan.at[i % states].reals;
        const bool scales = i >= states;
        const bool pairs =
            !state->is_square && !state->is_single && !packed && tg_dtype_is_complex(slot->dtype);
        if (scales && codec->block == 0) {
            continue;
        }
        const int64_t length = scales   ? tg_state_scales(codec, reals)
                               : packed ? (int64_t)tg_state_bytes(codec, plan.real, reals)
                               : pairs  ? reals / 2
                                        : reals;
        TG_CALL(tg_state_name(optim->ctx, slot, at->name, scales ? "%s_scale" : "%s", state->name));
        at->memory = scales ? (void *)moment->scale : moment->memory;
        at->dtype = scales ? TG_F32 : pairs ? tg_dtype_complex(real) : real;
        at->shape = tg_shape_of(1, &length);
        (*count)++;
    }
    return TG_OK;
}

/* All arrays of a parameter, in a fixed order. */
tg_status tg_state_list(const tg_optim *optim, const tg_slot *slot, tg_state_part *parts,
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
                TG_CALL(tg_state_name(ctx, slot, at->name, "%d.factor%d", b, d));
                at->memory = branch->factor[d];
                at->dtype = slot->dtype;
                at->shape =
                    (tg_shape){.ndim = 2, .dim = {branch->modes.dim[d], branch->modes.rank[d]}};
                at++;
            }
        }
        if (branch->kind->is_sparse) {
            TG_CALL(tg_state_name(ctx, slot, at->name, "%d.bitmap", b));
            const int64_t words = tg_bitmap_words(branch->bitmap.n);
            at->memory = branch->bitmap.words;
            at->dtype = TG_U64;
            at->shape = tg_shape_of(1, &words);
            at++;
        }
    }
    *count = (int)(at - parts);
    return TG_OK;
}

/* ---- saving ---- */

/* How large arrays enter the archive. */
typedef struct saving {
    bool is_viewed;      /* as views, if they are on the host */
    tg_staging *staging; /* NULL: copies allocate memory */
} saving;

tg_status tg_state_save_numbers(tg_optim *optim, tg_archive *archive, const char *name,
                                const tg_shape *shape, const int64_t *numbers) {
    tg_tensor copy = {0};
    TG_CALL(tg_tensor_create(optim->ctx, TG_MEM_OTHER, TG_I64, shape, &copy));
    memcpy(copy.data, numbers, tg_tensor_bytes(&copy));
    return tg_archive_take(archive, name, &copy);
}

/* An array on the backend; on the host it can be a view. */
static tg_status save_part(tg_optim *optim, tg_archive *archive, const tg_state_part *p,
                           saving how) {
    const tg_tensor array = tg_backend_view(optim->be, p->dtype, &p->shape, p->memory);
    tg_tensor copy;
    if (!p->memory) { /* on another rank */
        const tg_tensor *gathered = tg_archive_find(optim->gathered, p->name);
        return gathered ? tg_archive_add_view(archive, p->name, gathered)
                        : tg_fail(optim->ctx, TG_E_ARGUMENT,
                                  "optimizer: %s lives on another rank (shard_ranks); a trainer "
                                  "saves it",
                                  p->name);
    }
    if (how.is_viewed && array.place == TG_HOST) {
        return tg_archive_add_view(archive, p->name, &array);
    }
    TG_CALL(tg_backend_download(optim->be, &array, how.staging, &copy));
    return tg_archive_take(archive, p->name, &copy);
}

static tg_status save_slot(tg_optim *optim, tg_slot *slot, tg_archive *archive, saving how) {
    char name[TG_STATE_NAME], method[160];
    tg_state_part parts[TG_STATE_PARTS];
    int count = 0;
    int64_t counters[TG_STATE_COUNTERS];
    tg_state_method(optim, slot, method, sizeof method);
    TG_CALL(tg_state_name(optim->ctx, slot, name, "method"));
    TG_CALL(tg_archive_set_meta(archive, name, method));
    tg_state_get_counters(slot, counters);
    TG_CALL(tg_state_name(optim->ctx, slot, name, "counters"));
    const tg_shape shape = {.ndim = 1, .dim = {TG_STATE_COUNTERS}};
    TG_CALL(tg_state_save_numbers(optim, archive, name, &shape, counters));
    TG_CALL(tg_state_list(optim, slot, parts, &count));
    for (int i = 0; i < count; i++) {
        TG_CALL(save_part(optim, archive, &parts[i], how));
    }
    return TG_OK;
}

static tg_status save_all(tg_optim *optim, tg_archive *archive, saving how) {
    TG_CALL(tg_optim_synchronize(optim));
    for (int i = 0; i < optim->slot_count; i++) {
        if (optim->slots[i].is_summing) {
            return tg_fail(optim->ctx, TG_E_ARGUMENT,
                           "optimizer: %s has accumulated gradients; save after they are applied",
                           optim->slots[i].name);
        }
    }
    const int64_t totals[3] = {optim->stats.steps, optim->stats.skipped, (int64_t)optim->seed};
    const tg_shape shape = {.ndim = 1, .dim = {3}};
    TG_CALL(tg_archive_set_meta(archive, "optim.format", "1"));
    TG_CALL(tg_state_save_numbers(optim, archive, "optim.totals", &shape, totals));
    if (optim->loss_scale.config.is_dynamic) {
        int64_t numbers[TG_LOSS_SCALE_NUMBERS];
        const tg_shape length = {.ndim = 1, .dim = {TG_LOSS_SCALE_NUMBERS}};
        tg_loss_scale_save(&optim->loss_scale, numbers);
        TG_CALL(tg_state_save_numbers(optim, archive, "optim.loss_scale", &length, numbers));
    }
    for (int i = 0; i < optim->slot_count; i++) {
        TG_CALL(save_slot(optim, &optim->slots[i], archive, how));
    }
    return TG_OK;
}

tg_status tg_optim_save(tg_optim *optim, tg_archive *archive) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, archive);
    return save_all(optim, archive, (saving){0});
}

tg_status tg_optim_save_views(tg_optim *optim, tg_staging *staging, tg_archive *archive) {
    return save_all(optim, archive, (saving){.is_viewed = true, .staging = staging});
}
