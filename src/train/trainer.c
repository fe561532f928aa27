/* A trainer: the data of its stages, its optimizer, creation and release. */
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dist/comm.h"
#include "tgrad/tgrad.h"
#include "train/run_datasets.h"
#include "train/step.h"

/* ---- data of a stage ---- */

/* Names test set `index` by its grid, with a number if several have the same one. */
static void name_test(tg_trainer *t, int index) {
    if (index == tg_run_tests(&t->model->config.data)) {
        snprintf(t->tests[index].name, sizeof t->tests[index].name, TG_VALIDATION);
        return;
    }
    const tg_dataset_facts facts = tg_dataset_get_facts(t->tests[index].dataset);
    char grid[TG_GRID_TEXT];
    int number = 1;
    tg_grid_text(facts.n_dim, facts.grid, grid);
    memcpy(t->tests[index].name, grid, sizeof grid);
    for (int i = 0; i < index; i++) {
        if (strcmp(t->tests[i].name, t->tests[index].name) == 0) {
            snprintf(t->tests[index].name, sizeof grid, "%.*s_%d", TG_GRID_TEXT - 13, grid,
                     ++number);
        }
    }
}

/* Fails unless the files of all ranks have the same samples, channels and grids. */
static tg_status compare_data(const tg_trainer *t) {
    enum { SIZES = 4 + TG_DATA_MAX_DIMS };
    int64_t sizes[(1 + TG_MAX_TESTS) * SIZES] = {0};
    for (int i = 0; i <= t->test_count; i++) {
        const tg_dataset_facts facts =
            tg_dataset_get_facts(i == 0 ? t->train : t->tests[i - 1].dataset);
        int64_t *of = sizes + i * SIZES;
        const int64_t counts[4] = {facts.samples, facts.times, facts.in_channels,
                                   facts.out_channels};
        memcpy(of, counts, sizeof counts);
        memcpy(of + 4, facts.grid, sizeof facts.grid);
    }
    return t->comm ? tg_comm_check_same(t->comm, "the sizes of the data", sizes, sizeof sizes)
                   : TG_OK;
}

/* For normalizers of slabs: a tg_normalizer_team's add_up, of all ranks. */
static tg_status add_up(void *user, tg_status status, int64_t count, double *values) {
    const tg_trainer *t = user;
    TG_CALL(tg_trainer_agree(t, tg_context_adopt(t->ctx, &t->reader, status)));
    return tg_comm_all_reduce_f64(t->comm, TG_COMM_SUM, count, values);
}

static tg_status fit_encoders(tg_trainer *t) {
    const bool is_split = nn_is_split(&t->split);
    const tg_normalizer_team team = {.group = tg_comm_rank(tg_trainer_replicas(t)),
                                     .groups = tg_run_groups(&t->model->config),
                                     .add_up = add_up,
                                     .user = t};
    return tg_context_adopt(t->ctx, &t->reader,
                            tg_model_fit(t->model, t->train, is_split ? &team : NULL));
}

static tg_status open_tests(tg_trainer *t) {
    const tg_run_config *config = &t->model->config;
    for (int i = 0; i < tg_run_evaluated_sets(&config->data); i++) {
        const tg_run_set set = tg_run_test_set(config, i);
        TG_CALL(tg_run_open_set(t->ctx, t->ctx, config, &set, &t->tests[i].dataset));
        t->tests[i].batch = set.batch;
        name_test(t, i);
        t->test_count = i + 1;
    }
    return tg_trainer_choose_metric(t);
}

static void close_stage(tg_trainer *t) {
    tg_step_destroy(&t->step);
    tg_prefetch_destroy(&t->prefetch);
    tg_loader_destroy(&t->loader);
    tg_dataset_close(&t->train);
    tg_dataset_close(&t->searched);
    for (int i = 0; i < TG_MAX_TESTS; i++) {
        tg_dataset_close(&t->tests[i].dataset);
    }
    t->test_count = 0;
}

/* Bytes of the spectral weights for frequencies that the grid does not have; 0 for factorized
 * weights, whose factors are shared. */
static size_t unused_bytes(const tg_trainer *t, const int64_t fitting[TG_FNO_MAX_DIMS]) {
    const tg_fno_config *fno = &t->model->config.fno;
    double used = 1.0, bytes = 0.0;
    for (int d = 0; d < fno->n_dim; d++) {
        const bool is_half = d == fno->n_dim - 1 && !fno->complex_data;
        const int64_t all = is_half ? fno->n_modes[d] / 2 + 1 : fno->n_modes[d];
        const int64_t fit = is_half ? fitting[d] / 2 + 1 : fitting[d];
        used *= (double)fit / (double)all;
    }
    for (int i = 0; i < tg_fno_param_count(t->model->fno); i++) {
        const tg_fno_param p = tg_fno_get_param(t->model->fno, i);
        bytes += p.spectral ? (double)tg_shape_numel(&p.shape) * (double)tg_dtype_size(p.dtype) : 0;
    }
    return fno->factorization == TG_FACTORIZATION_DENSE ? (size_t)(bytes * (1.0 - used)) : 0;
}

/* Warns if there are more modes than the grid has frequencies: it uses those that exist. */
static void warn_of_modes(const tg_trainer *t, const tg_dataset_facts *facts) {
    const tg_fno_config *fno = &t->model->config.fno;
    int64_t fitting[TG_FNO_MAX_DIMS], whole[TG_RUN_GRID];
    char set[64], grid[64], used[64], bytes[32] = "";
    tg_run_network_grid(&t->model->config, facts->grid, whole);
    tg_fno_fitting_modes(fno, whole, fitting);
    if (memcmp(fitting, fno->n_modes, (size_t)fno->n_dim * sizeof fitting[0]) != 0) {
        const tg_shape shapes[] = {tg_shape_of(fno->n_dim, fno->n_modes),
                                   tg_shape_of(fno->n_dim, whole),
                                   tg_shape_of(fno->n_dim, fitting)};
        const size_t unused = unused_bytes(t, fitting);
        if (unused > 0) {
            snprintf(bytes, sizeof bytes, " (%.3g MiB)", (double)unused / 0x1p20);
        }
        tg_shape_text(&shapes[2], used, sizeof used);
        tg_log(t->ctx, TG_LOG_WARN,
               "fno.n_modes: %s, but the training grid of %s has only %s; the weights of the other "
               "frequencies are not trained%s: set fno.n_modes: %s",
               tg_shape_text(&shapes[0], set, sizeof set),
               tg_shape_text(&shapes[1], grid, sizeof grid), used, bytes, used);
    }
}

/* Warns of a batch size above the number of samples, for which memory is planned nevertheless. */
static void warn_of_batch(const tg_trainer *t, const tg_dataset_facts *facts) {
    const int64_t batch = t->model->config.data.batch_size;
    if (batch > facts->samples) {
        tg_log(t->ctx, TG_LOG_WARN,
               "data.batch_size: %lld, but the training set has %lld sample%s, so that an epoch is "
               "one step: set data.batch_size: %lld",
               (long long)batch, (long long)facts->samples, facts->samples == 1 ? "" : "s",
               (long long)(facts->samples > 1 ? facts->samples / 2 : 1));
    }
}

bool tg_trainer_writes(const tg_trainer *t) {
    return tg_comm_rank(t->comm) == 0;
}

bool tg_trainer_is_in_first_group(const tg_trainer *t) {
    return tg_comm_rank(t->comm) < (nn_is_split(&t->split) ? t->split.parts : 1);
}

tg_status tg_trainer_agree(const tg_trainer *t, tg_status status) {
    const bool is_known = status != TG_OK && tg_comm_get_info(t->comm).has_agreed;
    return t->comm && !is_known ? tg_comm_agree(t->comm, status) : status;
}

tg_comm *tg_trainer_replicas(const tg_trainer *t) {
    return t->replicas ? t->replicas : t->comm;
}

/* Settings of a stage, as this rank uses them. */
static tg_status read_stage(const tg_trainer *t, const tg_settings *settings, int stage, bool notes,
                            tg_run_config *out) {
    TG_CALL(tg_run_config_read(t->ctx, settings, stage, notes, out));
    const int ranks = t->comm ? tg_comm_ranks(t->comm) : 1;
    return tg_run_share_batch(t->ctx, ranks, &t->split, out);
}

/* The files of the stage, without what depends on other ranks. */
static tg_status open_data(tg_trainer *t) {
    TG_CALL(read_stage(t, t->model->settings, (int)t->progress.stage, t->progress.stage == 1,
                       &t->model->config));
    const tg_run_set set = tg_run_train_set(&t->model->config);
    TG_CALL(tg_run_open_set(t->ctx, &t->reader, &t->model->config, &set, &t->train));
    const tg_dataset_facts facts = tg_dataset_get_facts(t->train);
    t->model->is_on_pairs = facts.trajectories == 0;
    tg_run_take_grid(&t->model->config, &facts);
    warn_of_modes(t, &facts);
    warn_of_batch(t, &facts);
    tg_run_warn_of_radius(t->ctx, &t->model->config);
    tg_run_warn_of_overlap(t->ctx, &t->model->config, &facts);
    return open_tests(t);
}

tg_status tg_trainer_open_stage(tg_trainer *t) {
    close_stage(t);
    TG_CALL(tg_trainer_agree(t, open_data(t)));
    TG_CALL(compare_data(t));
    const tg_source_config *data = &t->model->config.data;
    const tg_dataset_facts facts = tg_dataset_get_facts(t->train);
    const tg_loader_config loader = {.size = sizeof(tg_loader_config),
                                     .batch_size = data->batch_size,
                                     .seed = (uint64_t)t->model->config.distributed.seed,
                                     .shuffle = data->shuffle,
                                     .rank = tg_comm_rank(tg_trainer_replicas(t)),
                                     .ranks = tg_run_groups(&t->model->config)};
    TG_CALL(tg_loader_create(&t->reader, t->train, &loader, &t->loader));
    TG_CALL(fit_encoders(t));
    TG_CALL(tg_prefetch_create(t->model, &t->reader, t->loader, &facts,
                               tg_run_local_batch(&t->model->config), &t->prefetch));
    return t->progress.stage == t->model->config.schedule_stage
               ? tg_lr_schedule_start(t->ctx, &t->model->config.schedule, &t->progress.schedule)
               : TG_OK;
}

/* ---- optimizer ---- */

static tg_status make_optimizer(tg_trainer *t) {
    const int64_t batches = tg_loader_batches(t->loader);
    const int64_t micro = t->model->config.loop.accumulation_steps;
    tg_run_setup setup;
    tg_status status = tg_run_setup_make(t->ctx, &t->model->config, t->model->fno,
                                         (batches + micro - 1) / micro, &setup);
    TG_TRY(status);
    setup.setup.shard_rank = tg_comm_rank(t->comm);
    TG_TRY(tg_optim_create(t->ctx, &setup.setup, &t->optim));
    TG_TRY(tg_step_share_workspace(t->model->fno, t->optim));
    for (int i = 0; i < setup.setup.param_count; i++) {
        const tg_fno_param param = tg_fno_get_param(t->model->fno, i);
        TG_TRY(tg_optim_bind(t->optim, i, &param.weight));
    }
fail:
    tg_run_setup_free(t->ctx, &setup);
    return status;
}

/* ---- ranks that share a sample ---- */

/* The number that distributed.split asks for: with auto the smallest one with which the run fits on
 * every rank. */
static tg_status count_parts(tg_trainer *t, const tg_settings *settings, int *out) {
    tg_run_config config;
    TG_CALL(tg_run_config_read(t->ctx, settings, 1, false, &config));
    TG_CALL(tg_run_read_split(t->ctx, &config, out));
    return *out > 0 ? TG_OK
                    : tg_run_choose_split(t->ctx, settings, t->comm ? tg_comm_ranks(t->comm) : 1,
                                          tg_comm_get_info(t->comm).local_ranks, out);
}

/* Makes the communicators of the groups of ranks that share a sample and of those that have the
 * same part, once all ranks agree on the number. */
static tg_status split_ranks(tg_trainer *t, const tg_settings *settings, tg_status status) {
    double parts = 1.0;
    int own = 1;
    status = status == TG_OK ? count_parts(t, settings, &own) : status;
    parts = own;
    TG_CALL(tg_trainer_agree(t, status));
    TG_CALL(tg_comm_is_alone(t->comm) ? TG_OK
                                      : tg_comm_all_reduce_f64(t->comm, TG_COMM_MAX, 1, &parts));
    t->split = (nn_split){.parts = (int)parts};
    if (!nn_is_split(&t->split)) {
        return TG_OK;
    }
    const int rank = tg_comm_rank(t->comm), ranks = t->comm ? tg_comm_ranks(t->comm) : 1;
    tg_run_config config;
    TG_CALL(tg_trainer_agree(t, read_stage(t, settings, 1, false, &config)));
    if (strcmp(config.distributed.split, "auto") == 0 && rank == 0) {
        tg_log(t->ctx, TG_LOG_INFO, "distributed.split: auto: %d ranks share each sample",
               t->split.parts);
    }
    t->split.part = rank % t->split.parts;
    TG_CALL(tg_comm_split(t->comm, rank / t->split.parts, t->split.parts, &t->split.comm));
    return tg_comm_split(t->comm, t->split.part, ranks / t->split.parts, &t->replicas);
}

/* ---- life ---- */

static tg_status create(tg_context *ctx, tg_comm *comm, const tg_settings *settings,
                        const char *run_folder, tg_trainer **out) {
    tg_status status = TG_OK;
    tg_trainer *t = NULL;
    tg_run_config config;
    tg_settings *whole = NULL; /* with the settings taken from the training file */
    bool is_planned = false, unrolls = false;
    size_t planned[TG_MEM_CATEGORIES];
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, t, 1));
    t->ctx = ctx;
    t->comm = comm;
    TG_TRY(tg_run_folder_open(ctx, run_folder, &t->folder));
    t->reader = tg_context_branch(ctx);
    t->searcher = tg_context_branch(ctx);
    t->stages = tg_run_stages(settings);
    status = tg_train_complete(ctx, settings, &whole);
    TG_TRY(split_ranks(t, whole, status));
    for (int stage = t->stages; stage >= 1; stage--) { /* bad keys of later stages are found now */
        TG_TRY(read_stage(t, whole, stage, false, &config));
        unrolls = unrolls || tg_run_unrolls(&config);
    }
    if (unrolls && !tg_run_unrolls(&config)) {
        TG_TRY(tg_fail(ctx, TG_E_CONFIG,
                       "opt.rollout_gradients: all of a later stage needs it and "
                       "opt.rollout_steps above 1 in the first one; opt.rollout_epochs begins with "
                       "one step"));
    }
    if (tg_run_exchanges(&config) && !comm) {
        TG_TRY(tg_fail(ctx, TG_E_CONFIG,
                       "distributed.backend: nccl takes a communicator (tg_trainer_create)"));
    }
    t->comm = tg_run_exchanges(&config) ? comm : NULL;
    TG_TRY(tg_run_check_memory(ctx, whole, &config, tg_comm_rank(comm), planned,
                               &t->checkpoint_bytes));
    is_planned = true;
    TG_TRY(tg_model_create(ctx, whole, &config, &t->model));
    t->progress = (tg_progress){.stage = 1,
                                .best = HUGE_VAL,
                                .losses = {(double)NAN, (double)NAN},
                                .threads = tg_context_threads(ctx),
                                .ranks = tg_comm_ranks(t->comm)};
    TG_TRY(tg_trainer_open_stage(t));
    TG_TRY(tg_trainer_read_origin(t));
    TG_TRY(make_optimizer(t));
    memcpy(t->planned, planned, sizeof planned);
    tg_settings_destroy(&whole);
    *out = t;
    return TG_OK;
fail:
    tg_settings_destroy(&whole);
    tg_trainer_destroy(&t);
    return is_planned ? tg_run_explain(ctx, &config, planned, status) : status;
}

/* Fails if the ranks would not train the same thing. */
static tg_status compare_ranks(const tg_trainer *t) {
    const tg_build_info build = tg_build();
    tg_settings *resolved = NULL;
    char *text = NULL;
    char made_by[256];
    size_t length = 0;
    tg_status status = TG_OK;
    TG_TRY(tg_run_config_resolve(t->ctx, t->model->settings, &resolved));
    length = tg_settings_text(resolved, NULL, 0);
    TG_TRY(TG_ALLOC(t->ctx, TG_MEM_OTHER, text, length + 1));
    tg_settings_text(resolved, text, length + 1);
    snprintf(made_by, sizeof made_by, "%s %s %s %s %s", build.version, build.compiler,
             build.build_type, build.features, tg_backend_name(t->ctx));
fail:
    status = tg_trainer_agree(t, status);
    if (status == TG_OK) {
        status = tg_comm_check_same(t->comm, "the build of tgrad, or its backend", made_by,
                                    strlen(made_by));
    }
    if (status == TG_OK) {
        status = tg_comm_check_same(t->comm, "the settings", text, length);
    }
    tg_mem_free(t->ctx, text);
    tg_settings_destroy(&resolved);
    return status;
}

/* Groups of ranks wait as long for each other, and send values of a device, as all of them do. */
static tg_status open_devices(const tg_trainer *t) {
    const tg_distributed_config *config = &t->model->config.distributed;
    tg_comm *const comms[] = {t->split.comm, t->replicas};
    TG_CALL(tg_comm_open_device(t->comm, config->backend));
    for (int i = 0; i < 2; i++) {
        if (!tg_comm_is_alone(comms[i])) {
            const bool is_direct = tg_comm_is_on_stream(t->comm);
            comms[i]->timeout = config->timeout;
            TG_CALL(tg_comm_agree(t->comm,
                                  is_direct ? tg_comm_open_device(comms[i], TG_COMM_NCCL) : TG_OK));
        }
    }
    return TG_OK;
}

tg_status tg_trainer_create(tg_context *ctx, tg_comm *comm, const tg_settings *settings,
                            const char *run_folder, tg_trainer **out) {
    TG_NEED_OUT(ctx, out, ctx, settings, run_folder);
    tg_status status = create(ctx, comm, settings, run_folder, out);
    if (!comm) {
        return status;
    }
    const bool is_known = status != TG_OK && tg_comm_get_info(comm).has_agreed;
    TG_TRY(is_known ? status : tg_comm_agree(comm, status));
    if ((*out)->comm) {
        comm->timeout = (*out)->model->config.distributed.timeout;
        TG_TRY(compare_ranks(*out));
        TG_TRY(open_devices(*out));
    }
    return TG_OK;
fail:
    tg_trainer_destroy(out);
    return status;
}

void tg_trainer_destroy(tg_trainer **trainer) {
    if (!trainer || !*trainer) {
        return;
    }
    tg_trainer *t = *trainer;
    tg_trainer_close_saving(t);
    close_stage(t);
    for (int i = 0; i < TG_MAX_TESTS; i++) {
        tg_test_errors_destroy(&t->errors[i]);
    }
    tg_archive_destroy(&t->origin);
    tg_optim_destroy(&t->optim);
    tg_model_destroy(&t->model);
    tg_run_folder_close(&t->folder);
    tg_comm_destroy(&t->split.comm);
    tg_comm_destroy(&t->replicas);
    tg_mem_free(t->ctx, t);
    *trainer = NULL;
}

tg_status tg_trainer_settings(const tg_trainer *t, tg_settings **out) {
    TG_NEED(t ? t->ctx : NULL, out);
    *out = NULL;
    TG_NEED(NULL, t);
    return tg_run_config_resolve(t->ctx, t->model->settings, out);
}

int64_t tg_trainer_parameters(const tg_trainer *t) {
    const tg_fno *fno = t ? t->model->fno : NULL;
    int64_t total = 0;
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        const tg_fno_param p = tg_fno_get_param(fno, i);
        const tg_shape whole = nn_whole_shape(&p);
        total += tg_shape_numel(&whole) * (tg_dtype_is_complex(p.dtype) ? 2 : 1);
    }
    return total;
}
