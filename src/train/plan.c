/* The memory of a run before there is one: the trainer's life acted out on paper.
 *
 * Everything the trainer takes and frees is added and subtracted in its order, from the shapes of
 * network, data files and optimizer; whatever is held at a time that could be the highest is noted.
 * Categories are told exactly but for "other": names, handles, file headers. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "data/dataset_memory.h"
#include "train/config.h"
#include "train/model.h"
#include "train/run_datasets.h"
#include "train/run_setup.h"

typedef struct amounts {
    size_t at[TG_PLACES][TG_MEM_CATEGORIES];
} amounts;

/* A set of data and what it holds. */
typedef struct planned_set {
    tg_dataset_facts facts;
    tg_dataset_bytes bytes;
    int64_t batch;    /* samples that are read at once */
    int64_t requests; /* largest read so far */
} planned_set;

typedef struct planner {
    tg_context *ctx;
    tg_backend *be;
    tg_place place;
    tg_run_config config; /* of the stage */
    amounts held;         /* now, without the network's buffers */
    tg_fno_memory run;    /* those */
    bool is_ready, is_training;
    int64_t max_batch, grid[TG_FNO_MAX_DIMS]; /* that they are for */
    planned_set train, tests[TG_MAX_TESTS];
    tg_optim_memory optim;
    tg_train_memory *out;
} planner;

/* ---- what is noted ---- */

static size_t sum_of(const size_t *bytes) {
    size_t sum = 0;
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        sum += c == TG_MEM_OTHER ? 0 : bytes[c];
    }
    return sum;
}

static tg_train_phase *phase_named(tg_train_memory *out, const char *name) {
    for (int i = 0; i < out->count; i++) {
        if (strcmp(out->phase[i].name, name) == 0) {
            return &out->phase[i];
        }
    }
    if (out->count == TG_TRAIN_PHASES) {
        return &out->phase[TG_TRAIN_PHASES - 1];
    }
    tg_train_phase *phase = &out->phase[out->count++];
    snprintf(phase->name, sizeof phase->name, "%s", name);
    return phase;
}

/* Bytes of the network's buffers in a place. */
static size_t of_buffers(const planner *p, tg_place place, int category) {
    const size_t host = category == TG_MEM_WORKSPACE ? p->run.host : 0;
    return place == p->place ? p->run.bytes[category] - host : place == TG_HOST ? host : 0;
}

/* What is held now with `extra` (NULL: nothing); of phases of one name the highest stays. */
static void note(planner *p, const char *name, const amounts *extra) {
    tg_train_phase *phase = phase_named(p->out, name);
    for (int place = 0; place < TG_PLACES; place++) {
        size_t now[TG_MEM_CATEGORIES];
        for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
            now[c] = p->held.at[place][c] + (extra ? extra->at[place][c] : 0);
            now[c] += c == TG_MEM_WEIGHTS ? 0 : of_buffers(p, (tg_place)place, c);
            size_t *peak = &p->out->peak[place][c];
            *peak = now[c] > *peak && c != TG_MEM_OTHER ? now[c] : *peak;
        }
        const size_t total = sum_of(now);
        if (total > phase->total[place]) {
            phase->total[place] = total;
            memcpy(phase->bytes[place], now, sizeof now);
            phase->bytes[place][TG_MEM_OTHER] = 0;
        }
        if (total > p->out->peak_total[place]) {
            p->out->peak_total[place] = total;
            p->out->peak_phase[place] = (int)(phase - p->out->phase);
        }
    }
}

/* ---- the network's buffers ---- */

/* As tg_fno_prepare. */
static tg_status prepare(planner *p, int64_t batch, const int64_t *grid, bool training) {
    bool fits = p->is_ready && p->is_training == training && p->max_batch >= batch;
    for (int d = 0; d < p->config.fno.n_dim; d++) {
        fits = fits && p->grid[d] == grid[d];
    }
    if (fits) {
        return TG_OK;
    }
    p->is_ready = true;
    p->is_training = training;
    p->max_batch = batch;
    memcpy(p->grid, grid, (size_t)p->config.fno.n_dim * sizeof grid[0]);
    return training
               ? tg_fno_plan_lending(p->ctx, &p->config.fno, batch, grid, &p->optim.loan, &p->run)
               : tg_fno_plan(p->ctx, &p->config.fno, batch, grid, false, &p->run);
}

/* ---- data ---- */

/* Facts of a set whose file is not there: what the settings say, and no samples. */
static tg_dataset_facts assumed(const planner *p, const tg_run_set *set) {
    const tg_fno_config *fno = &p->config.fno;
    tg_dataset_facts facts = {.samples = set->n_samples,
                              .in_channels = fno->in_channels,
                              .out_channels = fno->out_channels,
                              .n_dim = fno->n_dim,
                              .dtype = fno->complex_data ? TG_C64 : TG_F32};
    size_t points = tg_dtype_size(facts.dtype);
    tg_run_grid(&set->grid, fno->n_dim, facts.grid);
    for (int d = 0; d < fno->n_dim; d++) {
        points *= (size_t)facts.grid[d];
    }
    facts.x_bytes = points * (size_t)facts.in_channels;
    facts.y_bytes = points * (size_t)facts.out_channels;
    return facts;
}

/* A set's facts and bytes. */
static tg_status look_at(planner *p, const tg_run_set *set, planned_set *out) {
    char path[2048];
    tg_dataset_config config;
    *out = (planned_set){.batch = set->batch};
    tg_status status = tg_run_find_set(p->ctx, &p->config, set, path, sizeof path, &config);
    if (status == TG_OK) {
        status = tg_dataset_plan(p->ctx, path, &config, &out->facts, &out->bytes);
    }
    if (status == TG_OK) { /* the network's channels may be those of a file that is missing */
        status =
            p->out->missing[0] ? TG_OK : tg_run_check_set(p->ctx, &p->config, path, &out->facts);
    } else if (status == TG_E_IO) { /* not there: the rest can be told all the same */
        if (!p->out->missing[0]) {
            snprintf(p->out->missing, sizeof p->out->missing, "%s", tg_context_error(p->ctx));
        }
        out->facts = assumed(p, set);
        status = out->facts.x_bytes > 0
                     ? TG_OK
                     : tg_fail(p->ctx, TG_E_CONFIG, "%s: set it, or the file must be there: %s",
                               set->key, p->out->missing);
    }
    return status;
}

static tg_status open_set(planner *p, const tg_run_set *set, planned_set *out) {
    char name[TG_GRID_TEXT + 32], grid[TG_GRID_TEXT];
    const tg_status status = look_at(p, set, out);
    amounts opening = {{{0}}};
    opening.at[TG_HOST][TG_MEM_DATA] = out->bytes.opening;
    snprintf(name, sizeof name, "opening data, %s %s", set->part,
             tg_grid_text(out->facts.n_dim, out->facts.grid, grid));
    note(p, name, &opening);
    p->held.at[TG_HOST][TG_MEM_DATA] += out->bytes.held;
    return status;
}

/* A streamed set keeps room for its largest read. */
static void read_set(planner *p, planned_set *set, int64_t samples) {
    const int64_t most =
        set->facts.samples > 0 && samples > set->facts.samples ? set->facts.samples : samples;
    if (most > set->requests) {
        p->held.at[TG_HOST][TG_MEM_DATA] += (size_t)(most - set->requests) * set->bytes.request;
        set->requests = most;
    }
}

static void close_set(planner *p, planned_set *set) {
    p->held.at[TG_HOST][TG_MEM_DATA] -=
        set->bytes.held + (size_t)set->requests * set->bytes.request;
    *set = (planned_set){0};
}

static void fit_encoders(planner *p) {
    const bool wanted[2] = {p->config.data.encode_input, p->config.data.encode_output};
    for (int side = 0; side < 2; side++) {
        if (wanted[side] && p->train.facts.samples > 0) {
            amounts fitting = {{{0}}};
            read_set(p, &p->train, tg_normalizer_block(&p->train.facts, (tg_data_side)side));
            fitting.at[TG_HOST][TG_MEM_DATA] =
                tg_normalizer_fit_bytes(&p->train.facts, (tg_data_side)side);
            note(p, "fitting the normalization", &fitting);
        }
    }
}

/* x and y of the training batches: beside a stream, twice more on the host. */
static void add_prefetch(planner *p, amounts *out) {
    const size_t batch = (size_t)p->train.batch * (p->train.facts.x_bytes + p->train.facts.y_bytes);
    out->at[p->place][TG_MEM_DATA] += batch;
    out->at[TG_HOST][TG_MEM_DATA] += p->be->ops->stream ? 2 * batch : 0;
}

/* x, y and prediction of a batch without training; on another place than the host, there too. */
static void add_batch(const planner *p, const tg_dataset_facts *facts, int64_t size, amounts *out) {
    const size_t batch = (size_t)size * (facts->x_bytes + 2 * facts->y_bytes);
    out->at[p->place][TG_MEM_DATA] += batch;
    out->at[TG_HOST][TG_MEM_DATA] += p->place == TG_HOST ? 0 : batch;
}

/* ---- the acts ---- */

static tg_status open_stage(planner *p, int tests) {
    tg_status status = TG_OK;
    const tg_run_set train = tg_run_train_set(&p->config);
    TG_TRY(open_set(p, &train, &p->train));
    tg_run_take_grid(&p->config, &p->train.facts);
    for (int i = 0; i < tests; i++) {
        const tg_run_set test = tg_run_test_set(&p->config, i);
        TG_TRY(open_set(p, &test, &p->tests[i]));
    }
fail:
    return status;
}

static tg_status add_optimizer(planner *p) {
    tg_status status = TG_OK;
    tg_fno *outline = NULL;
    tg_run_setup made = {0};
    TG_TRY(tg_fno_outline(p->ctx, &p->config.fno, &outline));
    TG_TRY(tg_run_setup_make(p->ctx, &p->config, outline, 1, &made));
    TG_TRY(tg_optim_plan_memory(p->ctx, &made.setup, &p->optim));
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        p->held.at[p->place][c] += p->optim.bytes[c];
    }
    p->held.at[TG_HOST][TG_MEM_WORKSPACE] += p->optim.host;
    p->out->ranked = p->optim.ranked;
fail:
    tg_run_setup_free(p->ctx, &made);
    tg_fno_destroy(&outline);
    return status;
}

static tg_status train(planner *p) {
    const tg_status status = prepare(p, p->config.data.batch_size, p->train.facts.grid, true);
    if (status != TG_OK) {
        return status;
    }
    read_set(p, &p->train, p->train.batch);
    note(p, "training step", NULL);
    amounts refresh = {{{0}}};
    memcpy(refresh.at[p->place], p->optim.refresh, sizeof p->optim.refresh);
    refresh.at[TG_HOST][TG_MEM_WORKSPACE] += p->optim.host_refresh;
    if (sum_of(p->optim.refresh) + p->optim.host_refresh > 0) {
        note(p, "step with a refresh", &refresh);
    }
    return TG_OK;
}

static tg_status evaluate(planner *p, int index) {
    planned_set *set = &p->tests[index];
    const int64_t samples = set->facts.samples > 0 ? set->facts.samples : set->batch;
    const int64_t most = set->batch < samples ? set->batch : samples;
    char name[TG_GRID_TEXT + 32], grid[TG_GRID_TEXT];
    amounts batch = {{{0}}};
    add_batch(p, &set->facts, most, &batch);
    batch.at[p->place][TG_MEM_DATA] += /* two squared norms of every sample and channel */
        (size_t)(2 * most * set->facts.out_channels) * sizeof(double);
    snprintf(name, sizeof name, "evaluation at %s",
             tg_grid_text(set->facts.n_dim, set->facts.grid, grid));
    note(p, name, &batch); /* made before the network's buffers change */
    const tg_status status = prepare(p, most, set->facts.grid, false);
    read_set(p, set, most);
    note(p, name, &batch);
    return status;
}

/* On another place than the host everything is copied first. */
static void save(planner *p) {
    amounts copies = {{{0}}};
    if (p->place != TG_HOST) {
        const size_t *device = p->held.at[p->place];
        copies.at[TG_HOST][TG_MEM_DATA] = device[TG_MEM_WEIGHTS] + device[TG_MEM_OPTIMIZER] +
                                          device[TG_MEM_FACTORS] + device[TG_MEM_INDICES];
    }
    note(p, "saving", &copies);
}

/* Predictions on a few samples of each test set, collected on the host. */
static tg_status write_samples(planner *p, int tests) {
    enum { SHOWN = 4 };
    tg_status status = TG_OK;
    amounts now = {{{0}}};
    for (int i = 0; i < tests; i++) {
        planned_set *set = &p->tests[i];
        const int64_t samples = set->facts.samples > 0 ? set->facts.samples : SHOWN;
        const int64_t count = samples < SHOWN ? samples : SHOWN;
        now.at[TG_HOST][TG_MEM_DATA] +=
            (size_t)count * (set->facts.x_bytes + 2 * set->facts.y_bytes);
        amounts batch = now;
        add_batch(p, &set->facts, count, &batch);
        read_set(p, set, count);
        note(p, "predicting samples", &batch);
        TG_TRY(prepare(p, count, set->facts.grid, false));
        note(p, "predicting samples", &batch);
    }
fail:
    return status;
}

static tg_status run_stage(planner *p, int stage, int stages) {
    const int tests = tg_run_tests(&p->config.data);
    tg_status status = TG_OK;
    TG_TRY(open_stage(p, tests));
    if (stage == 1) {
        fit_encoders(p);
    }
    amounts prefetch = {{{0}}};
    add_prefetch(p, &prefetch);
    for (int place = 0; place < TG_PLACES; place++) {
        p->held.at[place][TG_MEM_DATA] += prefetch.at[place][TG_MEM_DATA];
    }
    if (stage == 1) {
        TG_TRY(add_optimizer(p));
    }
    for (int epoch = 0; epoch < 2; epoch++) { /* the second begins with what the first left */
        TG_TRY(train(p));
        for (int i = 0; i < tests; i++) {
            TG_TRY(evaluate(p, i));
        }
        save(p);
    }
    if (stage == stages) {
        TG_TRY(write_samples(p, tests));
    }
    for (int place = 0; place < TG_PLACES; place++) {
        p->held.at[place][TG_MEM_DATA] -= prefetch.at[place][TG_MEM_DATA];
    }
    close_set(p, &p->train);
    for (int i = 0; i < tests; i++) {
        close_set(p, &p->tests[i]);
    }
fail:
    return status;
}

tg_status tg_train_plan(tg_context *ctx, const tg_settings *settings, tg_train_memory *out) {
    TG_NEED(ctx, ctx, settings, out);
    const int stages = tg_run_stages(settings);
    planner *p = NULL;
    tg_settings *whole = NULL;
    tg_status status = TG_OK;
    *out = (tg_train_memory){0};
    TG_TRY(tg_train_complete(ctx, settings, &whole));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, p, 1));
    p->ctx = ctx;
    p->out = out;
    TG_TRY(tg_backend_get(ctx, &p->be));
    out->place = p->place = p->be->ops->place;
    for (int place = 0; place < TG_PLACES; place++) {
        const tg_mem_usage usage = tg_context_memory(ctx, (tg_place)place);
        memcpy(p->held.at[place], usage.current, sizeof usage.current);
    }
    for (int stage = 1; stage <= stages; stage++) {
        TG_TRY(tg_run_config_read(ctx, whole, stage, false, &p->config));
        if (stage == 1) {
            tg_fno_memory network;
            const tg_run_set set = tg_run_train_set(&p->config);
            TG_TRY(look_at(p, &set, &p->train));
            TG_TRY(tg_fno_plan(ctx, &p->config.fno, p->config.data.batch_size, p->train.facts.grid,
                               false, &network));
            out->parameters = network.parameters;
            out->inference = network.total;
            p->held.at[p->place][TG_MEM_WEIGHTS] += network.bytes[TG_MEM_WEIGHTS];
        }
        TG_TRY(run_stage(p, stage, stages));
    }
fail:
    tg_settings_destroy(&whole);
    tg_mem_free(ctx, p);
    return status;
}
