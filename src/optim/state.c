/* Saving and loading: everything that the next step depends on, bit for bit.
 *
 * Per parameter P: optim.P.method (text), optim.P.counters (i64), optim.P.m, optim.P.v (moments in
 * bytes: u8, one per real, and optim.P.m_scale, optim.P.v_scale, one per block of 256), and for
 * each branch B of a projector optim.P.B.factorK or optim.P.B.bitmap (u64 words). The ranks of a
 * bitmap follow from its words and are not stored. With automatic ranks also optim.P.ranks (i64)
 * and optim.P.spectrum (f64). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "optim/optim.h"

enum { NAME = 512, COUNTERS = 7 };

static tg_status state_name(tg_context *ctx, const tg_slot *slot, char *name, const char *format,
                            ...) TG_PRINTF(4, 5);

static tg_status state_name(tg_context *ctx, const tg_slot *slot, char *name, const char *format,
                            ...) {
    const int used = snprintf(name, NAME, "optim.%s.", slot->name);
    va_list args;
    va_start(args, format);
    const int more = used > 0 && used < NAME
                         ? vsnprintf(name + used, (size_t)(NAME - used), format, args)
                         : NAME;
    va_end(args);
    return used + more < NAME
               ? TG_OK
               : tg_fail(ctx, TG_E_ARGUMENT, "optimizer: the name %.60s.. is too long", slot->name);
}

/* How the state is made up, in words: a state of another method is refused by this. */
static void method_text(const tg_optim *optim, const tg_slot *slot, char *text, size_t capacity) {
    const char *rule =
        optim->groups[slot->group].complex_adam == TG_ADAM_SPLIT ? "split" : "modulus";
    static const char *const forms[] = {
        [TG_STATE_FULL] = "", [TG_STATE_BF16] = " bf16", [TG_STATE_8BIT] = " 8bit"};
    const char *form = forms[slot->moments.form];
    const tg_projector *p = slot->projector;
    if (!p) {
        snprintf(text, capacity, "adam %s%s", rule, form);
        return;
    }
    static const char *const schemes[] = {"single", "composite", "sum"};
    snprintf(text, capacity, "%s %s%s%s %s%s", schemes[p->config.scheme], p->branch[0].kind->name,
             p->branches == 2 ? "+" : "", p->branches == 2 ? p->branch[1].kind->name : "", rule,
             form);
}

static void get_counters(const tg_slot *slot, int64_t counters[COUNTERS]) {
    const tg_projector *p = slot->projector;
    counters[0] = slot->step;
    counters[1] = slot->moment_step;
    counters[2] = slot->last_refresh;
    counters[3] = p ? p->refreshes : 0;
    counters[4] = p ? p->failures : 0;
    counters[5] = p ? p->branch[0].is_ready : 0;
    counters[6] = p ? p->branch[1].is_ready : 0;
}

static void set_counters(tg_slot *slot, const int64_t counters[COUNTERS]) {
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

/* ---- automatic ranks ---- */

enum { FLAGS = 4 }; /* behind the ranks: entries of the sparse set, and three truths */

static tg_shape ranks_shape(const tg_slot *slot) {
    return (tg_shape){.ndim = 1, .dim = {slot->shape.ndim + FLAGS}};
}

static tg_shape spectrum_shape(const tg_slot *slot) {
    const tg_spectrum *s = &slot->ranked->spectrum;
    return (tg_shape){.ndim = 1, .dim = {2 + s->shares * tg_spectrum_width(s)}};
}

static void get_ranks(const tg_slot *slot, int64_t *ranks) {
    const tg_projector *p = slot->projector;
    const int n = slot->shape.ndim;
    memcpy(ranks, p->low_rank->modes.rank, (size_t)n * sizeof *ranks);
    ranks[n] = p->sparse ? p->sparse->count : 0;
    ranks[n + 1] = slot->ranked->is_measured;
    ranks[n + 2] = slot->ranked->is_due;
    ranks[n + 3] = p->low_rank->restarts;
}

static void set_ranks(tg_slot *slot, const int64_t *ranks) {
    tg_projector *p = slot->projector;
    const int n = slot->shape.ndim;
    int64_t count = 1;
    for (int d = 0; d < n; d++) {
        p->low_rank->modes.rank[d] = p->modes.rank[d] = ranks[d];
        count *= ranks[d];
    }
    p->low_rank->count = count;
    p->low_rank->restarts = ranks[n + 3] != 0;
    if (p->sparse) {
        p->sparse->count = ranks[n];
    }
    slot->ranked->is_measured = ranks[n + 1] != 0;
    slot->ranked->is_due = ranks[n + 2] != 0;
    slot->count = count + ranks[n];
}

static tg_status check_ranks(tg_context *ctx, const char *name, const tg_slot *slot,
                             const int64_t *ranks) {
    const tg_spectrum *s = &slot->ranked->spectrum;
    const int n = slot->shape.ndim;
    bool holds = false;
    for (int i = 0; i < s->shares; i++) {
        holds = holds || ranks[n] == s->kept[i];
    }
    for (int d = 0; d < n; d++) {
        holds = holds && ranks[d] >= 1 && ranks[d] <= s->max_rank[d];
    }
    for (int i = n + 1; i < n + FLAGS; i++) {
        holds = holds && (ranks[i] == 0 || ranks[i] == 1);
    }
    return holds ? TG_OK
                 : tg_fail(ctx, TG_E_FORMAT,
                           "optimizer state: %s holds ranks that this optimizer has no memory for",
                           name);
}

/* One array of the state, where it lives and what it must look like in a file. */
typedef struct part {
    char name[NAME];
    void *memory;
    tg_dtype dtype;
    tg_shape shape;
} part;

enum { MAX_PARTS = 4 + 2 * TG_MAX_NDIM };

/* The moments: values, and scales of bytes. */
static tg_status list_moments(const tg_optim *optim, const tg_slot *slot, part **at) {
    const tg_moments plan = tg_moments_plan(&optim->groups[slot->group], slot->dtype, slot->count);
    const tg_moments *s = &plan, *moments = &slot->moments; /* with new ranks: not placed yet */
    void *const memory[] = {moments->m, moments->v, moments->m_scale, moments->v_scale};
    const int64_t reals[] = {s->m_reals, s->v_reals, tg_moment_blocks(s->m_reals),
                             tg_moment_blocks(s->v_reals)};
    static const char *const names[] = {"m", "v", "m_scale", "v_scale"};
    const tg_dtype real = s->form == TG_STATE_BF16 ? TG_BF16 : s->real;
    const bool bytes = s->form == TG_STATE_8BIT;
    tg_status status = TG_OK;
    for (int i = 0; i < (bytes ? 4 : 2); i++) {
        const bool pairs = i == 0 && !bytes && tg_dtype_is_complex(slot->dtype);
        const int64_t count = pairs ? reals[i] / 2 : reals[i];
        TG_TRY(state_name(optim->ctx, slot, (*at)->name, "%s", names[i]));
        (*at)->memory = memory[i];
        (*at)->dtype = i > 1 ? TG_F32 : bytes ? TG_U8 : pairs ? tg_dtype_complex(real) : real;
        (*at)->shape = tg_shape_of(1, &count);
        (*at)++;
    }
fail:
    return status;
}

/* All arrays of a parameter, in a fixed order. */
static tg_status list_parts(const tg_optim *optim, const tg_slot *slot, part *parts, int *count) {
    tg_status status = TG_OK;
    tg_context *ctx = optim->ctx;
    part *at = parts;
    TG_TRY(list_moments(optim, slot, &at));
    for (int b = 0; slot->projector && b < slot->projector->branches; b++) {
        const tg_branch *branch = &slot->projector->branch[b];
        if (!branch->is_ready) {
            continue;
        }
        for (int d = 0; d < TG_MAX_NDIM; d++) {
            if (branch->factor[d]) {
                TG_TRY(state_name(ctx, slot, at->name, "%d.factor%d", b, d));
                at->memory = branch->factor[d];
                at->dtype = slot->dtype;
                at->shape =
                    (tg_shape){.ndim = 2, .dim = {branch->modes.dim[d], branch->modes.rank[d]}};
                at++;
            }
        }
        if (branch->kind->is_sparse) {
            TG_TRY(state_name(ctx, slot, at->name, "%d.bitmap", b));
            const int64_t words = tg_bitmap_words(branch->bitmap.n);
            at->memory = branch->bitmap.words;
            at->dtype = TG_U64;
            at->shape = tg_shape_of(1, &words);
            at++;
        }
    }
    *count = (int)(at - parts);
fail:
    return status;
}

/* ---- saving ---- */

/* How large arrays get into the archive. */
typedef enum saving { COPIED, VIEWED } saving;

/* A few numbers of the host. */
static tg_status save_numbers(tg_optim *optim, tg_archive *archive, const char *name,
                              const tg_shape *shape, const int64_t *numbers) {
    tg_tensor copy = {0};
    tg_status status = tg_tensor_create(optim->ctx, TG_MEM_OTHER, TG_I64, shape, &copy);
    if (status == TG_OK) {
        memcpy(copy.data, numbers, tg_tensor_bytes(&copy));
        status = tg_archive_take(archive, name, &copy);
    }
    return status;
}

/* An array of the backend's memory; on the host it can be seen where it is. */
static tg_status save_part(tg_optim *optim, tg_archive *archive, const part *p, saving how) {
    tg_tensor copy = {0};
    tg_status status = TG_OK;
    if (how == VIEWED && optim->be->ops->place == TG_HOST) {
        TG_TRY(tg_tensor_wrap(optim->ctx, p->dtype, &p->shape, p->memory, &copy));
        return tg_archive_add_view(archive, p->name, &copy);
    }
    TG_TRY(tg_tensor_create(optim->ctx, TG_MEM_DATA, p->dtype, &p->shape, &copy));
    TG_TRY(optim->be->ops->download(optim->be, copy.data, p->memory, tg_tensor_bytes(&copy)));
    TG_TRY(tg_archive_take(archive, p->name, &copy));
fail:
    tg_tensor_destroy(&copy);
    return status;
}

static tg_status save_ranked(tg_optim *optim, tg_slot *slot, tg_archive *archive) {
    tg_status status = TG_OK;
    char name[NAME];
    tg_tensor copy = {0};
    int64_t ranks[TG_MAX_NDIM + FLAGS];
    tg_shape shape = ranks_shape(slot);
    get_ranks(slot, ranks);
    TG_TRY(state_name(optim->ctx, slot, name, "ranks"));
    TG_TRY(save_numbers(optim, archive, name, &shape, ranks));
    shape = spectrum_shape(slot);
    TG_TRY(tg_tensor_create(optim->ctx, TG_MEM_OTHER, TG_F64, &shape, &copy));
    double *values = copy.data;
    values[0] = slot->ranked->spectrum.energy;
    values[1] = slot->ranked->bound;
    memcpy(values + 2, slot->ranked->spectrum.values, tg_tensor_bytes(&copy) - 2 * sizeof *values);
    TG_TRY(state_name(optim->ctx, slot, name, "spectrum"));
    TG_TRY(tg_archive_take(archive, name, &copy));
fail:
    tg_tensor_destroy(&copy);
    return status;
}

static tg_status save_slot(tg_optim *optim, tg_slot *slot, tg_archive *archive, saving how) {
    tg_status status = TG_OK;
    char name[NAME], method[160];
    part parts[MAX_PARTS];
    int count = 0;
    int64_t counters[COUNTERS];
    method_text(optim, slot, method, sizeof method);
    TG_TRY(state_name(optim->ctx, slot, name, "method"));
    TG_TRY(tg_archive_set_meta(archive, name, method));
    get_counters(slot, counters);
    TG_TRY(state_name(optim->ctx, slot, name, "counters"));
    const tg_shape shape = {.ndim = 1, .dim = {COUNTERS}};
    TG_TRY(save_numbers(optim, archive, name, &shape, counters));
    TG_TRY(slot->ranked ? save_ranked(optim, slot, archive) : TG_OK);
    TG_TRY(list_parts(optim, slot, parts, &count));
    for (int i = 0; i < count; i++) {
        TG_TRY(save_part(optim, archive, &parts[i], how));
    }
fail:
    return status;
}

static tg_status save_all(tg_optim *optim, tg_archive *archive, saving how) {
    tg_status status = tg_optim_settle(optim);
    if (status != TG_OK) {
        return status;
    }
    for (int i = 0; i < optim->slot_count; i++) {
        if (optim->slots[i].is_summing) {
            return tg_fail(optim->ctx, TG_E_ARGUMENT,
                           "optimizer: %s has accumulated gradients; save after they are applied",
                           optim->slots[i].name);
        }
    }
    const int64_t totals[3] = {optim->stats.steps, optim->stats.skipped, (int64_t)optim->seed};
    const tg_shape shape = {.ndim = 1, .dim = {3}};
    TG_TRY(tg_archive_set_meta(archive, "optim.format", "1"));
    TG_TRY(save_numbers(optim, archive, "optim.totals", &shape, totals));
    for (int i = 0; i < optim->slot_count; i++) {
        TG_TRY(save_slot(optim, &optim->slots[i], archive, how));
    }
fail:
    return status;
}

tg_status tg_optim_save(tg_optim *optim, tg_archive *archive) {
    return save_all(optim, archive, COPIED);
}

tg_status tg_optim_save_views(tg_optim *optim, tg_archive *archive) {
    return save_all(optim, archive, VIEWED);
}

/* ---- loading: first everything is checked, then everything is copied ---- */

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
    for (int i = 5; i < COUNTERS; i++) {
        holds = holds && (c[i] == 0 || c[i] == 1);
    }
    const bool waits = slot->ranked && slot->ranked->is_due; /* for its refresh */
    if (slot->projector && !waits) { /* after a step, every branch is ready */
        holds = holds && (c[5] == 1) == (c[2] >= 0) &&
                (c[6] == 1) == (c[5] == 1 && slot->projector->branches == 2);
    }
    return holds ? TG_OK
                 : tg_fail(ctx, TG_E_FORMAT, "optimizer state: %s holds impossible counts", name);
}

/* Ranks and (if it copies) spectrum; which arrays there are and how large depends on the ranks. */
static tg_status load_ranked(tg_optim *optim, tg_slot *slot, const tg_archive *archive,
                             bool copies) {
    tg_status status = TG_OK;
    char name[NAME];
    const tg_tensor *tensor = NULL;
    tg_shape shape = ranks_shape(slot);
    TG_TRY(state_name(optim->ctx, slot, name, "ranks"));
    TG_TRY(find_array(optim->ctx, archive, name, TG_I64, &shape, &tensor));
    TG_TRY(check_ranks(optim->ctx, name, slot, tensor->data));
    set_ranks(slot, tensor->data);
    shape = spectrum_shape(slot);
    TG_TRY(state_name(optim->ctx, slot, name, "spectrum"));
    TG_TRY(find_array(optim->ctx, archive, name, TG_F64, &shape, &tensor));
    if (copies) {
        const double *values = tensor->data;
        slot->ranked->spectrum.energy = values[0];
        slot->ranked->bound = values[1];
        memcpy(slot->ranked->spectrum.values, values + 2,
               tg_tensor_bytes(tensor) - 2 * sizeof *values);
    }
fail:
    return status;
}

/* Checks one parameter's entries (copying none), or copies them. */
static tg_status load_slot(tg_optim *optim, tg_slot *slot, const tg_archive *archive, bool copies) {
    tg_status status = TG_OK;
    tg_context *ctx = optim->ctx;
    char name[NAME], method[160];
    part parts[MAX_PARTS];
    int count = 0;
    int64_t before[COUNTERS], ranks[TG_MAX_NDIM + FLAGS];
    const tg_tensor *tensor = NULL;
    get_counters(slot, before);
    if (slot->ranked) {
        get_ranks(slot, ranks);
    }
    method_text(optim, slot, method, sizeof method);
    TG_TRY(state_name(ctx, slot, name, "method"));
    const char *found = tg_archive_meta(archive, name);
    if (!found || strcmp(found, method) != 0) {
        return tg_fail(ctx, TG_E_FORMAT, "optimizer state: %s is '%.100s', expected '%s'", name,
                       found ? found : "missing", method);
    }
    TG_TRY(state_name(ctx, slot, name, "counters"));
    const tg_shape shape = {.ndim = 1, .dim = {COUNTERS}};
    const tg_tensor *counters = NULL;
    TG_TRY(find_array(ctx, archive, name, TG_I64, &shape, &counters));
    if (slot->ranked) {
        TG_TRY(load_ranked(optim, slot, archive, copies));
    }
    TG_TRY(check_counters(ctx, name, slot, counters->data));
    set_counters(slot, counters->data); /* which arrays there are depends on them */
    TG_TRY(list_parts(optim, slot, parts, &count));
    for (int i = 0; i < count; i++) {
        TG_TRY(find_array(ctx, archive, parts[i].name, parts[i].dtype, &parts[i].shape, &tensor));
        if (parts[i].dtype == TG_U64) {
            TG_TRY(check_bitmap(ctx, parts[i].name, slot->projector->sparse, tensor));
        }
        if (copies) {
            TG_TRY(optim->be->ops->upload(optim->be, parts[i].memory, tensor->data,
                                          tg_tensor_bytes(tensor)));
        }
    }
    if (copies && slot->projector && slot->projector->sparse && slot->projector->sparse->is_ready) {
        TG_TRY(optim->be->ops->bitmap_rank(optim->be, &slot->projector->sparse->bitmap));
    }
fail:
    if (!copies) {
        set_counters(slot, before);
        if (slot->ranked) {
            set_ranks(slot, ranks);
        }
    }
    return status;
}

/* Ranks of all parameters of a group, and their places in its pool; the ones before come back if
 * they do not fit. */
static tg_status load_pool(tg_optim *optim, int group, const tg_archive *archive, bool copies,
                           int64_t (*before)[TG_MAX_NDIM + FLAGS]) {
    tg_status status = TG_OK;
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (slot->ranked && slot->group == group) {
            get_ranks(slot, before[i]);
        }
    }
    for (int i = 0; i < optim->slot_count && status == TG_OK; i++) {
        tg_slot *slot = &optim->slots[i];
        if (slot->ranked && slot->group == group) {
            status = load_ranked(optim, slot, archive, copies);
        }
    }
    if (status == TG_OK && !tg_pool_lay_out(optim, group)) {
        status = tg_fail(optim->ctx, TG_E_FORMAT,
                         "optimizer state: its ranks do not fit into opt.memory_budget");
    }
    for (int i = 0; i < optim->slot_count && (status != TG_OK || !copies); i++) {
        tg_slot *slot = &optim->slots[i];
        if (slot->ranked && slot->group == group) {
            set_ranks(slot, before[i]);
        }
    }
    tg_pool_lay_out(optim, group);
    return status;
}

static tg_status load_all(tg_optim *optim, const tg_archive *archive, bool copies) {
    tg_status status = TG_OK;
    int64_t(*before)[TG_MAX_NDIM + FLAGS] = NULL;
    TG_TRY(TG_NEW(optim->ctx, TG_MEM_OTHER, before, optim->slot_count));
    for (int group = 0; group < optim->group_count; group++) {
        TG_TRY(load_pool(optim, group, archive, copies, before));
    }
    for (int i = 0; i < optim->slot_count; i++) {
        TG_TRY(load_slot(optim, &optim->slots[i], archive, copies));
    }
fail:
    tg_mem_free(optim->ctx, before);
    return status;
}

tg_status tg_optim_load(tg_optim *optim, const tg_archive *archive) {
    tg_status status = TG_OK;
    const tg_tensor *totals = NULL;
    const char *format = tg_archive_meta(archive, "optim.format");
    if (!format || strcmp(format, "1") != 0) {
        return tg_fail(optim->ctx, TG_E_FORMAT,
                       "optimizer state: optim.format is '%.40s', expected '1'",
                       format ? format : "missing");
    }
    const tg_shape shape = {.ndim = 1, .dim = {3}};
    TG_TRY(find_array(optim->ctx, archive, "optim.totals", TG_I64, &shape, &totals));
    const int64_t *values = totals->data;
    if (values[0] < 0 || values[1] < 0 || (uint64_t)values[2] != optim->seed) {
        return tg_fail(optim->ctx, TG_E_FORMAT,
                       "optimizer state: it was made with seed %llu, this optimizer with %llu",
                       (unsigned long long)values[2], (unsigned long long)optim->seed);
    }
    TG_TRY(tg_optim_settle(optim));
    for (int pass = 0; pass < 2; pass++) {
        TG_TRY(load_all(optim, archive, pass == 1));
    }
    for (int i = 0; i < optim->slot_count; i++) {
        optim->be->ops->release(optim->be, optim->slots[i].dense_sum);
        optim->slots[i].dense_sum = NULL;
        optim->slots[i].is_summing = false;
        optim->slots[i].nonfinite = 0;
    }
    optim->stats.steps = values[0];
    optim->stats.skipped = values[1];
fail:
    return status;
}

tg_status tg_optim_save_file(tg_optim *optim, const char *path) {
    tg_archive *archive = NULL;
    tg_status status = TG_OK;
    TG_TRY(tg_archive_create(optim->ctx, &archive));
    TG_TRY(tg_optim_save_views(optim, archive));
    TG_TRY(tg_safetensors_write(optim->ctx, path, archive));
fail:
    tg_archive_destroy(&archive);
    return status;
}

tg_status tg_optim_load_file(tg_optim *optim, const char *path) {
    tg_archive *archive = NULL;
    tg_status status = TG_OK;
    TG_TRY(tg_safetensors_read(optim->ctx, path, &archive));
    TG_TRY(tg_optim_load(optim, archive));
fail:
    tg_archive_destroy(&archive);
    return status;
}
