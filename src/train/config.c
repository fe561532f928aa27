/* Sections fno, opt, data and distributed of a configuration, and the list of their keys. */
#include "train/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/dataset.h"
#include "nn/network.h"
#include "optim/optim.h"
#include "tgrad/keys.h"

/* Keys of the loop set fields of several structs. */
#define ROW(key, type, field, low, high, help)                                                     \
    { key, TG_SETTING_##type, offsetof(tg_run_config, field), NULL, low, high, help }
#define ROW_CHOICE(key, field, choices, help)                                                      \
    { key, TG_SETTING_ENUM, offsetof(tg_run_config, field), choices, 0, 0, help }
#define LOOP(type, field, low, high, help) ROW(#field, type, loop.field, low, high, help)
#define LOSS(type, field, low, high, help) ROW(#field, type, loss.field, low, high, help)
#define DATA(type, field, low, high, help)                                                         \
    TG_SETTING_ROW(type, tg_source_config, field, low, high, help)
#define DATA_CHOICE(field, choices, help) TG_SETTING_CHOICE(tg_source_config, field, choices, help)

static const tg_choice graphs_choices[] = {{"auto", TG_GRAPHS_AUTO}, {"on", TG_GRAPHS_ON},
                                           {"off", TG_GRAPHS_OFF},   {"true", TG_GRAPHS_ON},
                                           {"false", TG_GRAPHS_OFF}, {NULL, 0}};

static const tg_choice physics_choices[] = {{"none", TG_PHYSICS_NONE},
                                            {"darcy", TG_PHYSICS_DARCY},
                                            {"burgers", TG_PHYSICS_BURGERS},
                                            {"ns", TG_PHYSICS_NS},
                                            {NULL, 0}};
static const tg_choice rollout_choices[] = {
    {"last", TG_ROLLOUT_LAST}, {"all", TG_ROLLOUT_ALL}, {NULL, 0}};

static const tg_setting loop_table[] = {
    LOOP(INT64, n_epochs, 1, 1e9, "epochs to train"),
    LOOP(TEXT, training_loss, 0, 64, "l2, h1, l1.5, hs0.5, abs_l2, or a sum: l2 + 0.1*h1"),
    LOOP(LIST_DOUBLE, loss_weights, 0, 1e12,
         "factors of the output channels in the loss: a list, or 1"),
    ROW_CHOICE("physics", loss.physics, physics_choices,
               "equation whose residual is added to the loss"),
    LOSS(DOUBLE, physics_weight, 0, 1e12, "factor of the residual"),
    LOSS(DOUBLE, physics_forcing, -1e12, 1e12, "darcy: f; ns: amplitude of the forcing"),
    LOSS(DOUBLE, physics_viscosity, 0, 1e12, "burgers, ns: nu"),
    LOSS(DOUBLE, physics_time, 0, 1e12, "burgers, ns: time from the last frame of x to y"),
    LOSS(DOUBLE, physics_length, 0, 1e12, "ns: side of the square"),
    LOOP(DOUBLE, input_noise, 0, 1e6,
         "deviation of noise on the normalized inputs of training; 0: none"),
    LOOP(INT64, rollout_steps, 1, 1000, "trajectories: predictions in a row to train over"),
    ROW_CHOICE("rollout_gradients", loop.rollout_gradients, rollout_choices,
               "of a rollout: through the last step (pushforward) or through all"),
    LOOP(INT64, rollout_epochs, 0, 1e9,
         "epochs after which rollouts get one step longer; 0: all steps from the start"),
    LOOP(INT64, accumulation_steps, 1, 1e6, "batches per update"),
    LOOP(DOUBLE, max_grad_norm, 0, 1e30, "clip the global norm of the gradient to this; 0: off"),
    LOOP(INT64, eval_interval, 1, 1e9,
         "epochs between evaluations; the last one is always evaluated"),
    LOOP(BOOL, track_stable_rank, 0, 0,
         "log stable ranks of gradients, at the start and every evaluation"),
    LOOP(INT64, save_every, 1, 1e9, "epochs between checkpoints"),
    LOOP(INT64, keep_checkpoints, 1, 1e6, "newest checkpoints kept, beside the best"),
    LOOP(TEXT, best_metric, 0, 64,
         "error of the best checkpoint: l2, h1 or, of a test, 32.h1; empty: as trained"),
    LOOP(INT64, early_stopping, 0, 1e9,
         "evaluations without a lower error (best_metric) before the end; 0: off"),
    LOOP(INT64, nonfinite_limit, 1, 1e9,
         "losses in a row that may be NaN or Inf before the run ends"),
    LOOP(TEXT, loss_scale, 0, 32, "factor of f16 gradients: auto, off or a power of two"),
    ROW("loss_scale_interval", INT64, loss_scale.interval, 1, 1e9,
        "steps without overflow before the scale is doubled"),
    LOOP(TEXT, init, 0, 1024, "safetensors file of initial weights (train --init)"),
    LOOP(BOOL, naive_galore, 0, 0, "the published switch for proj_type: matrix"),
    ROW_CHOICE("graphs", loop.graphs, graphs_choices, "GPU: run ordinary steps as captured graphs"),
    LOOP(BOOL, incremental_loss_gap, 0, 0, "add modes when the loss stagnates"),
    LOOP(BOOL, incremental_grad, 0, 0,
         "add modes when the highest hold much of the weights' energy"),
    LOOP(DOUBLE, incremental_loss_eps, 0, 1e9,
         "loss_gap: change of the loss below which it stagnates"),
    LOOP(DOUBLE, incremental_grad_eps, 0, 1, "grad: share of energy above which modes are added"),
    LOOP(INT64, incremental_buffer, 1, 1 << 20,
         "grad: number of frequencies that count as highest"),
    LOOP(INT64, incremental_grad_max_iter, 1, 1e9, "grad: epochs between two checks"),
};

static const tg_choice order_choices[] = {{"nchw", 0}, {"nhwc", 1}, {NULL, 0}};

static const tg_setting data_table[] = {
    DATA(TEXT, root, 0, 1024, "folder of the data files"),
    DATA(TEXT, set, 0, 64, "data set: files <root>/<set>_train_<grid>.h5, .."),
    DATA(TEXT, train_file, 0, 1024, "another file for training, relative to root"),
    DATA(LIST_TEXT, test_files, 0, 0, "other files to test on, relative to root"),
    DATA(TEXT, x_name, 0, 128, "name of the inputs in HDF5 and safetensors files"),
    DATA(TEXT, y_name, 0, 128, "name of the outputs in HDF5 and safetensors files"),
    DATA(GRID, train_resolution, 0, 1 << 20, "grid to train on, 16 or 48x80; 0: as in the file"),
    DATA(GRID, file_resolution, 0, 1 << 20,
         "of the training file, if only every s-th point is used; 0: the same"),
    DATA(LIST_GRID, test_resolutions, 0, 1 << 20,
         "grids to test on, 16 or [16, 48x80]; [] means no tests"),
    DATA(LIST_SIZE, test_batch_sizes, 1, 1 << 20, "batch sizes of the tests; [] means batch_size"),
    DATA(LIST_SIZE, n_tests, 0, 1e15, "number of test samples, the first ones; 0: all"),
    DATA(INT64, batch_size, 1, 1 << 20, "samples per batch"),
    DATA(INT64, n_train, 0, 1e15, "number of training samples, the first ones; 0: all"),
    DATA(INT64, n_validation, 0, 1e15,
         "number of training samples for validation, the last ones; 0: none"),
    DATA(BOOL, encode_input, 0, 0, "normalize the input per channel"),
    DATA(BOOL, encode_output, 0, 0, "normalize the output per channel"),
    DATA(BOOL, shuffle, 0, 0, "a new order of samples every epoch"),
    DATA(DOUBLE, cache, 0, 1e18,
         "bytes up to which a set is kept in memory; larger ones are streamed"),
    DATA(TEXT, y_time, 0, 16, "time of y to learn, if there are several: last, all or an index"),
    DATA_CHOICE(layout, tg_layout_choices, "how the files arrange their arrays"),
    DATA_CHOICE(order, order_choices, "channels before (nchw) or after (nhwc) the grid"),
    DATA(TEXT, group, 0, 128, "group of an HDF5 file that holds the arrays"),
    DATA(TEXT, fields, 0, 512, "fields of trajectories: density,v:0-1 (components); empty: all"),
    DATA(INT64, test_skip, 0, 1e15, "samples or trajectories to skip at the start of test files"),
    DATA(INT64, history, 1, 1 << 20, "trajectories: frames of the input"),
    DATA(INT64, horizon, 1, 1 << 20, "trajectories: frames of the output, which follow"),
    DATA(INT64, time_stride, 1, 1 << 20, "trajectories: stored frames from one to the next"),
    DATA(INT64, first_frame, 0, 1e15, "trajectories: stored frames to skip"),
    DATA(INT64, n_frames, 0, 1e15, "trajectories: frames used after them; 0: all"),
    DATA(GRID, latent_grid, 2, 1 << 12,
         "data at points: grid in the unit box in between, 16 or 16x16x8"),
};

static const tg_choice engine_choices[] = {
    {"auto", TG_COMM_AUTO}, {"mpi", TG_COMM_MPI}, {"nccl", TG_COMM_NCCL}, {NULL, 0}};

static const tg_setting distributed_table[] = {
    TG_SETTING_ROW(INT64, tg_distributed_config, seed, 0, 0x1p53, "start of all random numbers"),
    {"backend", TG_SETTING_ENUM, offsetof(tg_distributed_config, backend), engine_choices, 0, 0,
     "transport of values between GPUs; auto: nccl if possible, else mpi"},
    TG_SETTING_ROW(DOUBLE, tg_distributed_config, timeout, 0.001, 1e9,
                   "seconds to wait for a rank before the run ends"),
    TG_SETTING_ROW(BOOL, tg_distributed_config, overlap, 0, 0,
                   "sums of a layer are exchanged while the next one is computed"),
    TG_SETTING_ROW(BOOL, tg_distributed_config, shard_state, 0, 0,
                   "moments of a layer are on one rank instead of on all"),
    TG_SETTING_ROW(TEXT, tg_distributed_config, split, 1, 16,
                   "ranks that share each sample: slabs of the grid; a number, or auto"),
};

#undef LOOP
#undef LOSS
#undef DATA

#define TABLE(section, rows, offset)                                                               \
    { section, rows, sizeof(rows) / sizeof *(rows), offset }

tg_key_table tg_run_table(int index) {
    const tg_key_table tables[TG_KEY_TABLES] = {
        {"fno", nn_config_rows(), tg_fno_config_count(), 0},
        {"opt", &tg_optim_method_row, 1, 0},
        {"opt", tg_optim_config_rows(), tg_optim_config_count(), offsetof(tg_run_config, opt)},
        {"opt", tg_lr_schedule_config_rows(), tg_lr_schedule_config_count(),
         offsetof(tg_run_config, schedule)},
        TABLE("opt", loop_table, 0),
        TABLE("data", data_table, offsetof(tg_run_config, data)),
        TABLE("distributed", distributed_table, offsetof(tg_run_config, distributed))};
    return tables[index];
}

#undef TABLE

/* Whether a table of section opt has this key, given without its section. */
static bool has_key(int table, const char *key) {
    const tg_key_table t = tg_run_table(table);
    return tg_setting_find(t.rows, t.count, key) != NULL;
}

/* A key's value as text that reads back; of the method, the first one. */
static const char *get_from(int table, int row, const tg_run_config *config, char *text,
                            size_t capacity) {
    const tg_key_table t = tg_run_table(table);
    return table == TG_TABLE_FNO ? tg_fno_config_get(&config->fno, row, text, capacity)
           : table == TG_TABLE_METHOD
               ? tg_setting_choice(t.rows, 0)
               : tg_setting_get(&t.rows[row], (const char *)config + t.offset, text, capacity);
}

static tg_status set_in(tg_context *ctx, int table, tg_run_config *config, const char *key,
                        const char *value) {
    const tg_key_table t = tg_run_table(table);
    return tg_setting_set(ctx, t.section, t.rows, t.count, (char *)config + t.offset, key, value);
}

tg_status tg_run_read_split(tg_context *ctx, const tg_run_config *config, int *out) {
    const char *text = config->distributed.split;
    char *end = NULL;
    const long parts = strtol(text, &end, 10);
    const bool is_auto = strcmp(text, "auto") == 0;
    char *more = NULL;
    const long across = *end == 'x' && parts >= 1 ? strtol(end + 1, &more, 10) : 0;
    *out = is_auto ? 0 : (int)parts;
    if (across >= 1 && *more == '\0' && parts <= 1 << 10 && across <= 1 << 10) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "distributed.split: '%s': only the first dimension is cut: write %ld", text,
                       parts * across);
    }
    return is_auto || (end != text && *end == '\0' && parts >= 1 && parts <= 1 << 20)
               ? TG_OK
               : tg_fail(ctx, TG_E_CONFIG,
                         "distributed.split: '%s' is not auto or a number of ranks, 1 or more",
                         text);
}

static tg_status check_split(tg_context *ctx, int ranks, const tg_run_config *config) {
    const int parts = config->split.parts;
    const unsigned loss = nn_loss_parts(&config->loss);
    const char *other = config->loop.track_stable_rank ? "opt.track_stable_rank"
                        : loss & NN_LOSS_RESIDUAL      ? "opt.physics"
                        : loss & NN_LOSS_SPECTRAL      ? "opt.training_loss: hs<s>"
                                                       : NULL;
    if (ranks % parts != 0) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "distributed.split: %d rank%s cannot be divided into groups of %d", ranks,
                       ranks == 1 ? "" : "s", parts);
    }
    return other ? tg_fail(ctx, TG_E_CONFIG, "distributed.split: %d goes without %s", parts, other)
                 : TG_OK;
}

tg_status tg_run_share_batch(tg_context *ctx, int ranks, const nn_split *split,
                             tg_run_config *config) {
    config->ranks = ranks;
    config->split = split ? *split : (nn_split){0};
    TG_CALL(nn_is_split(&config->split) ? check_split(ctx, ranks, config) : TG_OK);
    const int groups = tg_run_groups(config);
    return config->data.batch_size >= groups
               ? TG_OK
               : tg_fail(ctx, TG_E_CONFIG,
                         "data.batch_size: %lld samples cannot be shared by %d %s",
                         (long long)config->data.batch_size, groups,
                         groups == ranks ? "ranks" : "groups of ranks");
}

int tg_run_groups(const tg_run_config *config) {
    const int ranks = config->ranks > 1 ? config->ranks : 1;
    return nn_is_split(&config->split) ? ranks / config->split.parts : ranks;
}

bool tg_run_exchanges(const tg_run_config *config) {
    return config->ranks > 1 || config->distributed.backend == TG_COMM_NCCL;
}

int64_t tg_run_local_batch(const tg_run_config *config) {
    const int64_t groups = tg_run_groups(config);
    return (config->data.batch_size + groups - 1) / groups;
}

tg_run_config tg_run_config_default(void) {
    return (tg_run_config){
        .fno = tg_fno_config_default(),
        .opt = tg_optim_config_default(),
        .schedule = tg_lr_schedule_config_default(),
        .schedule_stage = 1,
        .loss = tg_loss_config_default(),
        .loss_scale = tg_loss_scale_config_default(),
        .distributed = {.timeout = 600.0, .split = "1"},
        .ranks = 1,
        .loop = {.n_epochs = 100,
                 .training_loss = "h1",
                 .loss_weights = {1, {1.0}},
                 .rollout_steps = 1,
                 .accumulation_steps = 1,
                 .eval_interval = 1,
                 .save_every = 1,
                 .keep_checkpoints = 2,
                 .nonfinite_limit = 10,
                 .loss_scale = "auto",
                 .incremental_loss_eps = 1e-3,
                 .incremental_grad_eps = 1e-3,
                 .incremental_buffer = 5,
                 .incremental_grad_max_iter = 10},
        .data = {.x_name = "x",
                 .y_name = "y",
                 .batch_size = 16,
                 .encode_output = true,
                 .shuffle = true,
                 .cache = 2e9,
                 .y_time = "last",
                 .history = 1,
                 .horizon = 1,
                 .time_stride = 1,
                 .latent_grid = {1, {16}}},
    };
}

/* Section opt is shared by the optimizer, the schedule and the loop; an error about an unknown key
 * suggests the nearest of all. */
static tg_status set_opt(tg_context *ctx, tg_run_config *config, const char *key,
                         const char *value) {
    if (strcmp(key, "learning_rate") == 0) {
        tg_status status = tg_optim_config_set(ctx, &config->opt, key, value);
        config->schedule.learning_rate = config->opt.learning_rate;
        return status;
    }
    if (strcmp(key, "name") == 0) {
        return TG_OK; /* applied before all others */
    }
    if (has_key(TG_TABLE_OPTIM, key)) {
        return tg_optim_config_set(ctx, &config->opt, key, value);
    }
    const char *names[96];
    int count = 0;
    for (int table = TG_TABLE_SCHEDULE; table <= TG_TABLE_LOOP; table++) {
        if (has_key(table, key)) {
            return set_in(ctx, table, config, key, value);
        }
    }
    for (int table = TG_TABLE_METHOD; table <= TG_TABLE_LOOP; table++) {
        const tg_key_table t = tg_run_table(table);
        for (int i = 0; i < t.count && count < 96; i++) {
            names[count++] = t.rows[i].key;
        }
    }
    const char *nearest = tg_nearest_name(key, names, count);
    return tg_fail(ctx, TG_E_CONFIG, "opt.%.100s: unknown key%s%s%s", key,
                   nearest ? "; did you mean opt." : "", nearest ? nearest : "",
                   nearest ? "?" : "");
}

static const char *const sections[] = {"fno", "opt", "data", "distributed"};

enum { SECTIONS = sizeof sections / sizeof sections[0] };

/* The name of a section, or of a stage, where a key was expected. */
static bool is_section(const char *key) {
    bool is_one = strncmp(key, "stage", 5) == 0 && key[5] >= '2' && key[5] <= '9' && !key[6];
    for (int i = 0; i < SECTIONS; i++) {
        is_one = is_one || strcmp(key, sections[i]) == 0;
    }
    return is_one;
}

static tg_status set_key(tg_context *ctx, tg_run_config *config, const char *key,
                         const char *value) {
    const char *dot = strchr(key, '.');
    const size_t length = dot ? (size_t)(dot - key) : strlen(key);
    if (dot && strncmp(key, "fno.", 4) == 0) {
        return tg_fno_config_set(ctx, &config->fno, dot + 1, value);
    }
    if (dot && strncmp(key, "opt.", 4) == 0) {
        return set_opt(ctx, config, dot + 1, value);
    }
    for (int table = TG_TABLE_DATA; dot && table < TG_KEY_TABLES; table++) {
        const char *section = tg_run_table(table).section;
        if (strlen(section) == length && strncmp(key, section, length) == 0) {
            return set_in(ctx, table, config, dot + 1, value);
        }
    }
    char section[64];
    snprintf(section, sizeof section, "%.*s", (int)(length < 60 ? length : 60), key);
    if (strcmp(section, "default") == 0) { /* published files wrap everything in it */
        return tg_fail(ctx, TG_E_CONFIG,
                       "%.100s: there is no section default; its content belongs one level up",
                       key);
    }
    if (is_section(key)) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "%s: it is a section: expected keys below it, as in %s.KEY: VALUE, found "
                       "'%.100s'",
                       key, key, value);
    }
    const char *nearest = tg_nearest_name(section, sections, SECTIONS);
    return tg_fail(ctx, TG_E_CONFIG, "%.100s: unknown %s%s%s%s", key,
                   dot ? "section" : "key; settings are in sections fno, opt, data and distributed",
                   nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

/* Prefixes an error with the place of the setting. */
static tg_status at_origin(tg_context *ctx, tg_status status, const char *origin) {
    return status == TG_OK || !origin
               ? status
               : tg_fail(ctx, status, "%.200s: %s", origin, tg_context_error(ctx));
}

/* Initial weights and normalizers, which exist before a later stage begins. */
static bool is_of_beginning(const char *key) {
    return strcmp(key, "opt.init") == 0 || strncmp(key, "data.encode", 11) == 0;
}

/* Whether this key starts a new schedule in its stage. */
static bool is_of_schedule(const char *key) {
    const char *name = strncmp(key, "opt.", 4) == 0 ? key + 4 : "";
    return strcmp(name, "learning_rate") == 0 || has_key(TG_TABLE_SCHEDULE, name);
}

/* Keys that a later stage may set: the network and the optimizer's state continue. */
static bool may_change(const char *key) {
    const char *name = strncmp(key, "opt.", 4) == 0 ? key + 4 : "";
    return strncmp(key, "data.", 5) == 0 || is_of_schedule(key) || has_key(TG_TABLE_LOOP, name);
}

/* Replaces a key by its name here; both names with different values are an error. */
static tg_status rename_key(tg_context *ctx, const tg_settings *settings, const char **key,
                            const char *value) {
    const char *theirs = *key;
    *key = tg_published_name(theirs);
    const char *other = *key != theirs ? tg_settings_get(settings, *key) : NULL;
    return !other || tg_setting_means(value, other)
               ? TG_OK
               : tg_fail(ctx, TG_E_CONFIG,
                         "%s is called %s here, and both are set: %.100s and %.100s", theirs, *key,
                         value, other);
}

/* One pass over the keys of a stage: only opt.name, or all others. */
static tg_status apply(tg_context *ctx, const tg_settings *settings, int stage, bool names,
                       tg_run_config *config, char *noted, size_t capacity) {
    for (int64_t i = 0; i < tg_settings_count(settings); i++) {
        const char *key;
        if (tg_stage_of(tg_settings_key(settings, i), &key) != stage ||
            (strcmp(key, "opt.name") == 0) != names || tg_setting_is_replaced(settings, i)) {
            continue;
        }
        const char *value = tg_settings_value(settings, i);
        bool is_published = false;
        if (is_section(key) && strcmp(value, "null") == 0) {
            continue; /* "opt:" followed by nothing but comments */
        }
        tg_status status = rename_key(ctx, settings, &key, value);
        if (status == TG_OK) {
            status = tg_published_check(ctx, key, value, &is_published);
        }
        if (status != TG_OK) {
            return at_origin(ctx, status, tg_settings_origin(settings, i));
        }
        if (is_published) {
            const size_t used = strlen(noted);
            snprintf(noted + used, capacity - used, "%s%s", used ? ", " : "", key);
            continue;
        }
        if (stage > 1 && (is_of_beginning(key) || !may_change(key))) {
            tg_fail(ctx, TG_E_CONFIG,
                    is_of_beginning(key)
                        ? "%.100s: a later stage keeps the value of the first one"
                        : "%.100s: a later stage may change data, the schedule and the loop only",
                    key);
            return at_origin(ctx, TG_E_CONFIG, tg_settings_origin(settings, i));
        }
        status = names ? tg_optim_config_set(ctx, &config->opt, "name", value)
                       : set_key(ctx, config, key, value);
        if (status != TG_OK) {
            return at_origin(ctx, status, tg_settings_origin(settings, i));
        }
        config->schedule_stage = is_of_schedule(key) ? stage : config->schedule_stage;
    }
    return TG_OK;
}

/* Reads the keys of stages 1 .. stage one by one. */
static tg_status read_keys(tg_context *ctx, const tg_settings *settings, int stage, bool notes,
                           tg_run_config *out) {
    char noted[1536] = "";
    *out = tg_run_config_default();
    for (int s = 1; s <= stage; s++) {
        for (int names = 1; names >= 0; names--) {
            TG_CALL(apply(ctx, settings, s, names == 1, out, noted, sizeof noted));
        }
    }
    const char *unused = tg_method_unused(&out->opt);
    char key[32] = ""; /* a method sets values that no key has set */
    snprintf(key, sizeof key, "%.*s", unused ? (int)strcspn(unused, " ") : 0, unused ? unused : "");
    if (unused && tg_settings_get(settings, key)) {
        const size_t used = strlen(noted);
        snprintf(noted + used, sizeof noted - used, "%s%s", used ? ", " : "", unused);
    }
    if (notes && noted[0]) {
        tg_log(ctx, TG_LOG_INFO, "settings that change nothing here: %s", noted);
    }
    return TG_OK;
}

tg_status tg_run_config_read(tg_context *ctx, const tg_settings *settings, int stage, bool notes,
                             tg_run_config *out) {
    TG_CALL(read_keys(ctx, settings, stage, notes, out));
    if (out->fno.architecture == TG_ARCHITECTURE_GINO &&
        !tg_settings_get(settings, "fno.in_channels")) {
        out->fno.in_channels = out->fno.n_dim; /* points have coordinates */
    }
    out->accumulates = tg_stages_accumulate(settings);
    TG_CALL(tg_stages_check(ctx, settings));
    return tg_run_config_complete(ctx, true, out);
}

tg_status tg_run_config_read_network(tg_context *ctx, const tg_settings *settings, int stage,
                                     tg_run_config *out) {
    TG_CALL(read_keys(ctx, settings, stage, false, out));
    return tg_run_config_complete(ctx, false, out);
}

static tg_status put(tg_settings *settings, const char *section, const char *key,
                     const char *value) {
    char name[128];
    snprintf(name, sizeof name, "%s.%s", section, key);
    return tg_settings_set(settings, name, value, NULL);
}

tg_status tg_run_config_put_network(const tg_fno_config *fno, tg_settings *settings) {
    char text[768];
    for (int i = 0; i < tg_fno_config_count(); i++) {
        TG_CALL(put(settings, "fno", tg_fno_config_key(i),
                    tg_fno_config_get(fno, i, text, sizeof text)));
    }
    return TG_OK;
}

tg_status tg_run_config_write(tg_context *ctx, const tg_run_config *config,
                              const tg_settings *settings, tg_settings **out) {
    char text[sizeof(tg_list_text) + 64];
    tg_status status = TG_OK;
    *out = NULL;
    TG_TRY(tg_settings_create(ctx, out));
    TG_TRY(tg_run_config_put_network(&config->fno, *out));
    for (int table = TG_TABLE_OPTIM; table < TG_KEY_TABLES; table++) {
        const tg_key_table t = tg_run_table(table);
        for (int i = 0; i < t.count; i++) {
            const char *value = get_from(table, i, config, text, sizeof text);
            if (strcmp(value, "[]") != 0) { /* [] means: not set */
                TG_TRY(put(*out, t.section, t.rows[i].key, value));
            }
        }
    }
    for (int64_t i = 0; i < tg_settings_count(settings); i++) {
        const char *key = tg_settings_key(settings, i), *rest;
        if (tg_stage_of(key, &rest) > 1) {
            TG_TRY(tg_settings_set(*out, key, tg_settings_value(settings, i), NULL));
        }
    }
    return TG_OK;
fail:
    tg_settings_destroy(out);
    return status;
}

tg_status tg_run_config_resolve(tg_context *ctx, const tg_settings *settings, tg_settings **out) {
    tg_run_config first;
    *out = NULL;
    TG_CALL(tg_run_config_read(ctx, settings, 1, false, &first));
    return tg_run_config_write(ctx, &first, settings, out);
}

/* ---- the keys of all sections in one list ---- */

/* The row of a key, and its place in the tables; NULL past the end. */
static const tg_setting *find(int index, int *table, int *row) {
    for (*table = 0; *table < TG_KEY_TABLES && index >= 0; (*table)++) {
        const tg_key_table t = tg_run_table(*table);
        *row = index;
        if (index < t.count) {
            return &t.rows[index];
        }
        index -= t.count;
    }
    return NULL;
}

bool tg_key_describe(int index, tg_key_info *out) {
    static const char *const types[] = {
        [TG_SETTING_INT] = "integer",        [TG_SETTING_INT64] = "integer",
        [TG_SETTING_DOUBLE] = "number",      [TG_SETTING_BYTES] = "bytes",
        [TG_SETTING_BOOL] = "boolean",       [TG_SETTING_ENUM] = "choice",
        [TG_SETTING_LIST_INT] = "integers",  [TG_SETTING_LIST_DOUBLE] = "numbers",
        [TG_SETTING_TEXT] = "text",          [TG_SETTING_GRID] = "grid",
        [TG_SETTING_LIST_SIZE] = "integers", [TG_SETTING_LIST_GRID] = "grids",
        [TG_SETTING_LIST_TEXT] = "texts",    [TG_SETTING_LIST_ROWS] = "rows"};
    const tg_run_config usual = tg_run_config_default();
    char text[sizeof out->fallback];
    int table, row;
    if (!out) {
        return false;
    }
    *out = (tg_key_info){0};
    const tg_setting *setting = find(index, &table, &row);
    if (!setting) {
        return false;
    }
    out->section = tg_run_table(table).section;
    out->name = setting->key;
    out->type = types[setting->type];
    out->help = setting->help;
    out->has_range = setting->type != TG_SETTING_TEXT && setting->type != TG_SETTING_LIST_TEXT &&
                     setting->type != TG_SETTING_BOOL && setting->type != TG_SETTING_ENUM &&
                     setting->low <= setting->high;
    out->low = out->has_range ? setting->low : 0.0;
    out->high = out->has_range ? setting->high : 0.0;
    tg_setting_values(setting, out->values, sizeof out->values);
    if (strcmp(setting->key, "n_modes") != 0) { /* which must be set */
        snprintf(out->fallback, sizeof out->fallback, "%s",
                 get_from(table, row, &usual, text, sizeof text));
    }
    return true;
}

const char *tg_key_choice(int key, int index) {
    int table, row;
    const tg_setting *setting = find(key, &table, &row);
    return setting ? tg_setting_choice(setting, index) : NULL;
}
