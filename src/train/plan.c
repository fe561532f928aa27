/* Estimates the memory of a run before training, by walking through its phases (config.h).
 *
 * The file that allocates memory also computes its size, from the shapes of network, data files and
 * optimizer; every total that could be the highest is recorded. All categories are exact except
 * "other": names, handles, file headers. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "data/dataset.h"
#include "nn/network.h"
#include "optim/ranks.h"
#include "train/run_datasets.h"
#include "train/step.h"
#include "train/trainer.h"

/* A data set and its memory. */
typedef struct planned_set {
    tg_dataset_facts facts;
    tg_dataset_bytes bytes;
    int64_t batch;    /* samples read at once */
    int64_t requests; /* largest read so far */
} planned_set;

typedef struct planner {
    tg_context *ctx;
    tg_backend *be;
    tg_place place;
    const tg_settings *settings;
    int stage, stages;
    int ranks, rank;
    nn_split split;
    int tests_count;      /* number of sets of the stage */
    int64_t epoch;        /* finished in the stage */
    int evaluations;      /* in the stage */
    tg_run_config config; /* of the stage */
    tg_amounts held;      /* at present, without the network's buffers */
    tg_amounts prefetch;  /* of these, the batches .. */
    tg_amounts rollout;   /* .. the inputs of rollouts, after the first step .. */
    size_t gathered;      /* on the host, while the weights of a split network are saved */
    size_t snapshot;      /* .. and the copies for checkpoints, after the first one */
    tg_fno_memory run;    /* the network's buffers */
    bool is_ready, is_training;
    unsigned loss_parts;                  /* parts of the loss's workspace they include */
    int64_t max_batch, grid[TG_RUN_GRID]; /* sizes they are for */
    planned_set train, tests[TG_MAX_TESTS];
    tg_optim_memory optim;
    tg_train_memory *out;
} planner;

/* ---- records ---- */

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

/* Records the total plus `extra` (or NULL); of phases with one name the highest counts. */
static void note(planner *p, const char *name, const tg_amounts *extra) {
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

/* Bytes of data on the host. */
static tg_amounts of_data(size_t bytes) {
    tg_amounts amounts = {{{0}}};
    amounts.at[TG_HOST][TG_MEM_DATA] = bytes;
    return amounts;
}

/* ---- the network's buffers ---- */

/* (samples, channels, grid..) of y, and its dtype. */
static tg_dtype field_of(const planner *p, int64_t samples, tg_shape *shape) {
    const tg_fno_config *fno = &p->config.fno;
    *shape = (tg_shape){.ndim = 2 + fno->n_dim, .dim = {samples, fno->out_channels}};
    memcpy(shape->dim + 2, p->grid, (size_t)fno->n_dim * sizeof p->grid[0]);
    return fno->complex_data ? tg_dtype_complex(fno->dtype) : fno->dtype;
}

/* What a rank of a split network sends for a loss. */
static nn_traffic sent_by_loss(const planner *p) {
    tg_shape shape;
    const tg_dtype dtype = field_of(p, p->max_batch, &shape);
    const bool is_split = nn_is_split(&p->split);
    return is_split ? nn_loss_sent(&p->config.loss, dtype, &shape, &p->split) : (nn_traffic){0};
}

/* Losses in Fourier space and residuals of equations allocate their workspace in the first step
 * after a preparation. */
static tg_status add_loss_workspace(planner *p) {
    const tg_fno_config *fno = &p->config.fno;
    const tg_loss_config *loss = &p->config.loss;
    const int64_t samples =
        fno->micro_batch > 0 && fno->micro_batch < p->max_batch ? fno->micro_batch : p->max_batch;
    tg_shape shape;
    size_t bytes = 0, host = 0;
    if (!p->is_training) {
        return TG_OK;
    }
    const tg_dtype dtype = field_of(p, samples, &shape);
    TG_CALL(nn_loss_fits(p->be, loss, fno));
    TG_CALL(nn_loss_workspace(p->be, nn_loss_parts(loss) & ~p->loss_parts, dtype, &shape, &bytes,
                              &host));
    p->run.bytes[TG_MEM_WORKSPACE] += bytes + host;
    p->run.host += host;
    p->loss_parts |= nn_loss_parts(loss);
    return TG_OK;
}

/* As tg_fno_prepare. */
static tg_status prepare(planner *p, int64_t batch, const int64_t *data, bool training) {
    int64_t grid[TG_RUN_GRID];
    tg_run_network_grid(&p->config, data, grid);
    if (p->is_ready && p->is_training == training && p->max_batch >= batch &&
        memcmp(p->grid, grid, sizeof grid) == 0) {
        return add_loss_workspace(p);
    }
    p->is_ready = true;
    p->is_training = training;
    p->loss_parts = 0;
    p->max_batch = batch;
    memcpy(p->grid, grid, sizeof grid);
    nn_traffic sent;
    TG_CALL(nn_plan(p->ctx, &p->config.fno, &p->split, batch, grid, training,
                    training ? &p->optim.shared : NULL, &p->run, &sent));
    TG_CALL(add_loss_workspace(p));
    if (training) {
        const nn_traffic loss = sent_by_loss(p);
        p->out->sent_split = sent.bytes + loss.bytes;
        p->out->messages_split = sent.messages + loss.messages;
    }
    return TG_OK;
}

/* ---- data ---- */

/* Facts of a set whose file is missing: those of the settings, and no samples. */
static tg_dataset_facts assumed(const planner *p, const tg_run_set *set) {
    const tg_fno_config *fno = &p->config.fno;
    tg_dataset_facts facts = {.samples = set->n_samples,
                              .in_channels = fno->in_channels,
                              .out_channels = fno->out_channels * set->steps,
                              .n_dim = tg_run_data_dims(&p->config),
                              .dtype =
                                  fno->complex_data ? tg_dtype_complex(fno->dtype) : fno->dtype};
    tg_run_grid(&set->grid, facts.n_dim, facts.grid);
    facts.rows = nn_rows_of(&p->split, p->split.part, facts.grid[0]).count;
    const size_t points = (size_t)(facts.rows * tg_product(facts.n_dim - 1, facts.grid + 1)) *
                          tg_dtype_size(facts.dtype);
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
        status = tg_run_name_steps(
            p->ctx, set, tg_dataset_plan(p->ctx, path, &config, &out->facts, &out->bytes));
    }
    if (status == TG_OK) { /* the network's channels may come from a missing file */
        status = p->out->missing[0]
                     ? TG_OK
                     : tg_run_check_set(p->ctx, &p->config, set->steps, path, &out->facts);
    } else if (status == TG_E_IO) { /* missing: the rest can still be planned */
        if (!p->out->missing[0]) {
            snprintf(p->out->missing, sizeof p->out->missing, "%s", tg_context_error(p->ctx));
        }
        out->facts = assumed(p, set);
        status = out->facts.x_bytes > 0
                     ? TG_OK
                     : tg_fail(p->ctx, TG_E_CONFIG, "%s; a plan without the file needs %s",
                               p->out->missing, set->key);
    }
    return status;
}

static tg_status open_set(planner *p, const tg_run_set *set, planned_set *out) {
    char name[TG_GRID_TEXT + 32], grid[TG_GRID_TEXT];
    const tg_status status = look_at(p, set, out);
    const tg_amounts opening = of_data(out->bytes.opening);
    snprintf(name, sizeof name, "opening data, %s %s", set->part,
             tg_grid_text(out->facts.n_dim, out->facts.grid, grid));
    note(p, name, &opening);
    p->held.at[TG_HOST][TG_MEM_DATA] += out->bytes.held;
    return status;
}

/* A streamed set keeps a buffer for its largest read. */
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
            const tg_amounts fitting =
                of_data(tg_normalizer_fit_bytes(&p->train.facts, (tg_data_side)side));
            read_set(p, &p->train, tg_normalizer_block(&p->train.facts, (tg_data_side)side));
            note(p, "fitting the normalization", &fitting);
        }
    }
}

/* ---- the phases ---- */

/* The weights; and the forward pass of a training batch. */
static tg_status add_network(planner *p) {
    tg_fno_memory network;
    const tg_run_set set = tg_run_train_set(&p->config);
    int64_t grid[TG_RUN_GRID];
    TG_CALL(look_at(p, &set, &p->train));
    tg_run_network_grid(&p->config, p->train.facts.grid, grid);
    TG_CALL(nn_plan(p->ctx, &p->config.fno, &p->split, tg_run_local_batch(&p->config), grid, false,
                    NULL, &network, NULL));
    p->out->parameters = network.parameters;
    p->out->inference = network.total;
    p->held.at[p->place][TG_MEM_WEIGHTS] += network.bytes[TG_MEM_WEIGHTS];
    return TG_OK;
}

/* Bytes of sums exchanged in an update. */
static void add_sums(const planner *p, const tg_optim_setup *setup) {
    /* per batch: two votes and the stop flag; of groups the samples, the number with a full part,
     * and the loss; two more votes after decompositions */
    const bool is_alone = tg_run_groups(&p->config) == 1;
    const size_t numbers = is_alone ? 3 : 6;
    const size_t control = numbers * sizeof(double) * (size_t)p->config.loop.accumulation_steps;
    size_t dense = 0, projected = 0, own = 0, all_own = 0, blocks = 0;
    const int hops = tg_sum_hops(p->ranks), group_hops = tg_sum_hops(tg_run_groups(&p->config));
    p->out->messages = (1 + p->optim.lone_sums) * hops; /* 1: the bucket */
    for (int i = 0; i < setup->param_count; i++) {
        const tg_optim_param *param = &setup->params[i];
        const size_t bytes =
            (size_t)tg_shape_numel(&param->shape) * tg_dtype_size(tg_dtype_wide(param->dtype));
        dense += bytes;
        projected += tg_is_projected(setup, param) ? bytes : 0;
        if (tg_is_dense_block(setup, param)) { /* its sum stays where no other group has it */
            own += is_alone ? bytes : 0;
            blocks += sizeof(tg_sum_facts);
            p->out->messages += group_hops;
        }
        all_own += is_alone && setup->blocks && setup->blocks[i].whole > 0 ? bytes : 0;
    }
    const size_t facts = (size_t)p->optim.sharded * sizeof(tg_sum_facts) + blocks;
    p->out->sent = p->optim.bytes[TG_MEM_GRADIENTS] - own + control + facts;
    p->out->sent_dense = dense - all_own + control;
    p->out->sent_refresh = dense - own + control + facts + (projected > 0 ? 2 * sizeof(double) : 0);
    p->out->sent_updates = p->optim.updates;
}

/* Whole weights on rank 0, of which blocks arrive one at a time; all others only send. */
static void hold_gathered(planner *p, const tg_fno *outline) {
    size_t whole = 0;
    for (int i = 0; i < tg_fno_param_count(outline) && p->rank < p->split.parts; i++) {
        const tg_fno_param param = tg_fno_get_param(outline, i);
        const tg_shape shape = nn_whole_shape(&param);
        if (param.whole > 0) {
            whole += p->rank == 0 ? (size_t)tg_shape_numel(&shape) * tg_dtype_size(param.dtype) : 0;
            p->gathered = tg_max_size(p->gathered, whole + nn_gather_bytes(&param, p->split.parts));
        }
    }
}

static tg_status add_optimizer(planner *p) {
    tg_status status = TG_OK;
    tg_fno *outline = NULL;
    tg_run_setup made = {0};
    TG_TRY(nn_outline(p->ctx, &p->config.fno, &p->split, &outline));
    TG_TRY(tg_run_setup_make(p->ctx, &p->config, outline, 1, &made));
    made.setup.shard_rank = p->rank;
    hold_gathered(p, outline);
    TG_TRY(tg_optim_plan_memory(p->ctx, &made.setup, &p->optim));
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        p->held.at[p->place][c] += p->optim.bytes[c];
    }
    p->held.at[TG_HOST][TG_MEM_WORKSPACE] += p->optim.host;
    if (p->ranks > 1) {
        add_sums(p, &made.setup);
    }
    p->out->clamped = p->optim.clamped;
fail:
    tg_run_setup_free(p->ctx, &made);
    tg_fno_destroy(&outline);
    return status;
}

/* Adds, or with a sign of -1 subtracts. */
static void change_held(planner *p, const tg_amounts *by, int sign) {
    for (int place = 0; place < TG_PLACES; place++) {
        for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
            p->held.at[place][c] += sign > 0 ? by->at[place][c] : 0;
            p->held.at[place][c] -= sign < 0 ? by->at[place][c] : 0;
        }
    }
}

/* From the first step of a stage to its end. */
static void hold_rollout(planner *p) {
    change_held(p, &p->rollout, -1);
    p->rollout = (tg_amounts){{{0}}};
    tg_rollout_add_bytes(&p->config, p->place, &p->train.facts, p->train.batch, &p->rollout);
    change_held(p, &p->rollout, 1);
}

static tg_status train(planner *p) {
    TG_CALL(prepare(p, tg_run_local_batch(&p->config), p->train.facts.grid, true));
    read_set(p, &p->train, p->train.batch);
    hold_rollout(p);
    note(p, "training step", NULL);
    tg_amounts refresh = {{{0}}};
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
    const int64_t most = tg_min(set->batch, samples);
    char name[TG_GRID_TEXT + 32], grid[TG_GRID_TEXT];
    tg_amounts batch = {{{0}}};
    tg_evaluation_add_bytes(p->be, &set->facts, samples, most, p->config.data.encode_output,
                            &batch);
    snprintf(name, sizeof name, "evaluation at %s",
             tg_grid_text(set->facts.n_dim, set->facts.grid, grid));
    note(p, name, &batch); /* before the network's buffers change */
    const tg_status status = prepare(p, most, set->facts.grid, false);
    read_set(p, set, most);
    note(p, name, &batch);
    return status;
}

static tg_status measure_stable_ranks(planner *p) {
    const int64_t batch = tg_run_local_batch(&p->config);
    tg_amounts all = {{{0}}};
    TG_CALL(tg_stable_ranks_add_bytes(p->be, &p->config, &p->train.facts, batch, &all));
    TG_CALL(prepare(p, batch, p->train.facts.grid, true));
    read_set(p, &p->train, batch);
    note(p, "stable ranks", &all);
    return TG_OK;
}

static tg_status evaluate_all(planner *p) {
    for (int i = 0; i < p->tests_count; i++) {
        TG_CALL(evaluate(p, i));
    }
    TG_CALL(p->config.loop.track_stable_rank ? measure_stable_ranks(p) : TG_OK);
    p->evaluations++;
    return TG_OK;
}

/* From the third evaluation on, memory per epoch no longer changes. */
static void record(planner *p, bool is_evaluated) {
    p->epoch = p->evaluations == 2 ? p->config.loop.n_epochs : p->epoch + 1;
    if (is_evaluated || tg_phase_saves(&p->config.loop, p->epoch)) {
        /* moments and weights of other ranks */
        const tg_amounts gathered = of_data(p->optim.elsewhere + p->gathered);
        const size_t copies = tg_checkpoint_copies(p->be, p->held.at[p->place]);
        p->held.at[TG_HOST][TG_MEM_DATA] += copies - p->snapshot;
        p->snapshot = copies;
        note(p, "saving", &gathered);
    }
}

/* Slabs of x, y and the predictions become whole on the first rank, one after the other: `now` is
 * what it has of earlier sets. */
static void gather_samples(planner *p, const tg_dataset_facts *facts, int64_t count,
                           tg_amounts *now) {
    const size_t fields[] = {facts->x_bytes, facts->y_bytes, facts->y_bytes};
    const int64_t rows = facts->grid[0], most = (rows + p->split.parts - 1) / p->split.parts;
    size_t slabs = (size_t)count * (facts->x_bytes + 2 * facts->y_bytes);
    for (int i = 0; i < 3; i++) {
        const size_t row = (size_t)count * fields[i] / (size_t)facts->rows;
        now->at[TG_HOST][TG_MEM_DATA] += p->rank == 0 ? (size_t)rows * row : 0;
        tg_amounts gathering = *now;
        gathering.at[TG_HOST][TG_MEM_DATA] += slabs + (size_t)most * row;
        note(p, "gathering samples", &gathering);
        slabs -= (size_t)count * fields[i];
    }
}

/* Predictions on a few samples of each test set, collected on the host. */
static tg_status predict_samples(planner *p) {
    tg_amounts now = {{{0}}};
    const bool is_split = nn_is_split(&p->split);
    const int tests = is_split && p->rank >= p->split.parts ? 0 : tg_run_tests(&p->config.data);
    for (int i = 0; i < tests; i++) {
        planned_set *set = &p->tests[i];
        const int64_t samples = set->facts.samples > 0 ? set->facts.samples : TG_SAMPLES_SHOWN;
        const int64_t count = tg_min(samples, TG_SAMPLES_SHOWN);
        tg_amounts own = now;
        own.at[TG_HOST][TG_MEM_DATA] +=
            (size_t)count * (set->facts.x_bytes + 2 * set->facts.y_bytes);
        const int64_t at_once = tg_run_at_once(&p->config, count);
        tg_amounts batch = own;
        tg_batch_add_bytes(p->be, &set->facts, at_once, &batch);
        read_set(p, set, count);
        note(p, "predicting samples", &batch);
        TG_CALL(prepare(p, at_once, set->facts.grid, false));
        note(p, "predicting samples", &batch);
        if (is_split) {
            gather_samples(p, &set->facts, count, &now);
        } else {
            now = own;
        }
    }
    return TG_OK;
}

static void close_stage(planner *p) {
    change_held(p, &p->prefetch, -1);
    change_held(p, &p->rollout, -1);
    p->rollout = (tg_amounts){{{0}}};
    close_set(p, &p->train);
    for (int i = 0; i < p->tests_count; i++) {
        close_set(p, &p->tests[i]);
    }
}

static tg_status open_stage(planner *p) {
    close_stage(p);
    p->stage++;
    p->epoch = p->evaluations = 0;
    TG_CALL(tg_run_config_read(p->ctx, p->settings, p->stage, false, &p->config));
    TG_CALL(tg_run_share_batch(p->ctx, p->ranks, &p->split, &p->config));
    TG_CALL(p->stage == 1 ? add_network(p) : TG_OK);
    const tg_run_set train_set = tg_run_train_set(&p->config);
    TG_CALL(open_set(p, &train_set, &p->train));
    tg_run_take_grid(&p->config, &p->train.facts);
    p->tests_count = tg_run_evaluated_sets(&p->config.data);
    for (int i = 0; i < p->tests_count; i++) {
        const tg_run_set test = tg_run_test_set(&p->config, i);
        TG_CALL(open_set(p, &test, &p->tests[i]));
    }
    if (p->stage == 1) {
        p->out->samples = p->train.facts.samples;
        fit_encoders(p);
    }
    p->prefetch = tg_prefetch_bytes(p->be, &p->train.facts, p->train.batch);
    change_held(p, &p->prefetch, 1);
    return p->stage == 1 ? add_optimizer(p) : TG_OK;
}

static tg_status plan_run(planner *p) {
    tg_run_position at = {0};
    bool is_evaluated = false;
    for (tg_phase phase = TG_PHASE_OPEN; phase != TG_PHASE_END;
         phase = tg_phase_after(phase, &at)) {
        switch (phase) {
        case TG_PHASE_OPEN:
            TG_CALL(open_stage(p));
            break;
        case TG_PHASE_TRAIN:
            TG_CALL(train(p));
            break;
        case TG_PHASE_EVALUATE:
            TG_CALL(evaluate_all(p));
            break;
        case TG_PHASE_RECORD:
            record(p, is_evaluated);
            break;
        default:
            TG_CALL(predict_samples(p));
        }
        is_evaluated = phase == TG_PHASE_EVALUATE;
        at = (tg_run_position){
            .loop = &p->config.loop, .epoch = p->epoch, .is_last_stage = p->stage == p->stages};
    }
    return TG_OK;
}

tg_status tg_train_plan(tg_context *ctx, const tg_settings *settings, int ranks,
                        tg_train_memory *out) {
    TG_NEED(ctx, ctx, settings, out);
    tg_run_config config;
    tg_settings *whole = NULL;
    tg_train_memory *last = NULL;
    tg_status status = TG_OK;
    int parts = 1;
    if (ranks < 1) {
        return tg_fail(ctx, TG_E_ARGUMENT, "plan: %d ranks", ranks);
    }
    *out = (tg_train_memory){0};
    TG_TRY(tg_train_complete(ctx, settings, &whole));
    TG_TRY(tg_run_config_read(ctx, whole, 1, false, &config));
    TG_TRY(tg_run_read_split(ctx, &config, &parts));
    TG_TRY(parts > 0 ? TG_OK : tg_run_choose_split(ctx, whole, ranks, 1, &parts));
    TG_TRY(tg_train_plan_rank(ctx, whole, ranks, parts, 0, out));
    if (parts > 1) { /* the first rank saves, the last part may be the largest */
        TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, last, 1));
        TG_TRY(tg_train_plan_rank(ctx, whole, ranks, parts, parts - 1, last));
        *out = last->peak_total[last->place] > out->peak_total[out->place] ? *last : *out;
    }
fail:
    tg_settings_destroy(&whole);
    tg_mem_free(ctx, last);
    return status;
}

tg_status tg_train_plan_rank(tg_context *ctx, const tg_settings *settings, int ranks, int parts,
                             int rank, tg_train_memory *out) {
    planner *p = NULL;
    tg_status status = TG_OK;
    *out = (tg_train_memory){0};
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, p, 1));
    p->ctx = ctx;
    p->out = out;
    p->settings = settings;
    p->stages = tg_run_stages(settings);
    p->ranks = ranks;
    p->rank = rank;
    p->split = (nn_split){.parts = parts, .part = rank % parts};
    TG_TRY(tg_backend_get(ctx, &p->be));
    out->place = p->place = p->be->ops->place;
    out->parts = parts;
    for (int place = 0; place < TG_PLACES; place++) {
        const tg_mem_usage usage = tg_context_memory(ctx, (tg_place)place);
        memcpy(p->held.at[place], usage.current, sizeof usage.current);
    }
    TG_TRY(plan_run(p));
fail:
    tg_mem_free(ctx, p);
    return status;
}
