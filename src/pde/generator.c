/* Generators: checks of the request, the files and their metadata, the run. */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/memory.h"
#include "base/system.h"
#include "io/file.h"
#include "io/name_index.h"
#include "pde/pde.h"
#include "tgrad/tgrad.h"

enum { MAX_SAMPLES = 1000000000, MAX_FRAMES = 1000000, NUMBER_TEXT = 32 };

static const char *const split_names[TG_SPLITS] = {"train", "test"};

void tg_generator_config_init(tg_generator_config *config, size_t size) {
    const tg_generator_config defaults = {.size = sizeof defaults, .n_train = -1, .n_test = -1};
    tg_sized_init(config, size, &defaults, sizeof defaults);
}

/* ---- shared by both ways of running ---- */

bool tg_gen_tick(tg_gen_run *run) {
    run->progress.seconds = tg_seconds() - run->begin;
    return !run->report || run->report(run->user, &run->progress);
}

int64_t tg_gen_floats(const tg_generator *g, tg_sample_part part, int64_t resolution) {
    const tg_pde *pde = g->pde;
    const int64_t points = pde->ndim == 1 ? resolution : resolution * resolution;
    return (g->frames ? g->frames : 1) * points * pde->channels[part] *
           (tg_dtype_is_complex(pde->dtype) ? 2 : 1);
}

bool tg_gen_has(const tg_generator *g, tg_split split, int64_t sample) {
    for (int i = 0; i < g->file_count; i++) {
        if (g->files[i].split == split && !tg_sample_file_has_pair(g->files[i].store, sample)) {
            return false;
        }
    }
    return true;
}

const char *tg_gen_device(const tg_generator *g) {
    const tg_backend *chosen = g->ctx->backend;
    return chosen && chosen->ops->place == TG_DEVICE && g->pde->on_device ? chosen->ops->name
                                                                          : NULL;
}

/* ref if chosen, else cpu. */
static const char *host_backend(const tg_generator *g) {
    return strcmp(tg_backend_name(g->ctx), "ref") == 0 ? "ref" : "cpu";
}

tg_status tg_gen_open_backends(const tg_generator *g, tg_context *ctx, tg_backend **be,
                               tg_backend **device) {
    const char *name = tg_gen_device(g);
    const tg_status status = tg_backend_open(ctx, host_backend(g), be);
    return status == TG_OK && name ? tg_backend_open(ctx, name, device) : status;
}

/* ---- creation ---- */

void tg_generator_destroy(tg_generator **generator) {
    if (!generator || !*generator) {
        return;
    }
    tg_generator *g = *generator;
    for (int i = 0; i < g->file_count; i++) {
        tg_sample_file_close(&g->files[i].store);
        tg_mem_free(g->ctx, g->files[i].path);
    }
    tg_mem_free(g->ctx, g->config);
    tg_mem_free(g->ctx, g->folder);
    TG_FREE(g->ctx, *generator);
}

static tg_status check_resolution(tg_context *ctx, const tg_pde *pde, int64_t resolution) {
    const int64_t least = pde->min_resolution ? pde->min_resolution : 1;
    return resolution >= least && resolution <= TG_PDE_MAX_GRID
               ? TG_OK
               : tg_fail(ctx, TG_E_CONFIG,
                         "%s: expected a resolution of %" PRId64 " to %d points, found %" PRId64,
                         pde->name, least, TG_PDE_MAX_GRID, resolution);
}

static tg_status add_file(tg_generator *g, tg_split split, int64_t resolution) {
    if (g->samples[split] == 0) {
        return TG_OK;
    }
    TG_CALL(check_resolution(g->ctx, g->pde, resolution));
    for (int i = 0; i < g->file_count; i++) {
        if (g->files[i].split == split && g->files[i].resolution == resolution) {
            return tg_fail(g->ctx, TG_E_CONFIG, "%s: %s resolution %" PRId64 " is given twice",
                           g->pde->name, split_names[split], resolution);
        }
    }
    tg_gen_file *file = &g->files[g->file_count++];
    *file = (tg_gen_file){.split = split, .resolution = resolution};
    file->path = tg_mem_printf(g->ctx, "%s/%s_%s_%" PRId64 ".h5", g->folder, g->pde->name,
                               split_names[split], resolution);
    return file->path ? TG_OK : TG_E_MEMORY;
}

/* Numbers of samples and the list of files. */
static tg_status plan_files(tg_generator *g, const tg_generator_config *config) {
    const int64_t asked[TG_SPLITS] = {config->n_train, config->n_test};
    for (int s = 0; s < TG_SPLITS; s++) {
        if (asked[s] < -1 || asked[s] > MAX_SAMPLES) {
            return tg_fail(g->ctx, TG_E_CONFIG, "n_%s: expected 0 to %d samples, found %" PRId64,
                           split_names[s], MAX_SAMPLES, asked[s]);
        }
        g->samples[s] = asked[s] < 0 ? g->pde->usual_samples[s] : asked[s];
    }
    if (g->samples[TG_SPLIT_TRAIN] == 0 && g->samples[TG_SPLIT_TEST] == 0) {
        return tg_fail(g->ctx, TG_E_CONFIG, "n_train and n_test are both 0: nothing to generate");
    }
    const int count = config->test_resolution_count;
    if (count < 0 || count > TG_MAX_TEST_RESOLUTIONS) {
        return tg_fail(g->ctx, TG_E_CONFIG, "expected at most %d test resolutions, found %d",
                       TG_MAX_TEST_RESOLUTIONS, count);
    }
    const int64_t resolution = config->resolution ? config->resolution : g->pde->resolution;
    TG_CALL(add_file(g, TG_SPLIT_TRAIN, resolution));
    for (int i = 0; i < (count ? count : 1); i++) {
        TG_CALL(add_file(g, TG_SPLIT_TEST, count ? config->test_resolution[i] : resolution));
    }
    return TG_OK;
}

static tg_status check_frames(const tg_generator *g, const tg_generator_config *config) {
    if (config->frames == 0) {
        return TG_OK;
    }
    if (!g->pde->frame_field) {
        return tg_fail(g->ctx, TG_E_CONFIG,
                       "%s: frames are of trajectories of burgers and ns; this makes pairs",
                       g->pde->name);
    }
    if (config->frames < 2 || config->frames > MAX_FRAMES) {
        return tg_fail(g->ctx, TG_E_CONFIG,
                       "%s: expected 2 to %d frames of a trajectory, found %" PRId64, g->pde->name,
                       MAX_FRAMES, config->frames);
    }
    for (int i = 0; i < config->value_count; i++) {
        const tg_pde_value *value = &config->values[i];
        if (strcmp(value->name, "input") == 0 && strcmp(value->value, "forcing") == 0) {
            return tg_fail(g->ctx, TG_E_CONFIG,
                           "%s.input: frames are of the vorticity; x is a forcing in pairs alone",
                           g->pde->name);
        }
    }
    return TG_OK;
}

/* The parameters: defaults, the caller's, and those that follow from the resolutions. */
static tg_status prepare_config(tg_generator *g, const tg_generator_config *config) {
    int64_t finest = 0;
    for (int i = 0; i < g->file_count; i++) {
        finest = g->files[i].resolution > finest ? g->files[i].resolution : finest;
    }
    g->config = tg_mem_alloc(g->ctx, TG_MEM_OTHER, g->pde->config_bytes, 1);
    if (!g->config) {
        return TG_E_MEMORY;
    }
    memcpy(g->config, g->pde->defaults, g->pde->config_bytes);
    for (int i = 0; i < config->value_count; i++) {
        TG_CALL(
            tg_pde_set(g->ctx, g->pde, g->config, config->values[i].name, config->values[i].value));
    }
    TG_CALL(g->pde->prepare(g->ctx, g->config, finest));
    return TG_OK;
}

int64_t tg_gen_shared_pairs(const tg_generator *g) {
    return g->samples[TG_SPLIT_TRAIN] + (g->pairing.shuffled ? g->samples[TG_SPLIT_TEST] : 0);
}

/* Divides a flow in time into pairs. */
static tg_status plan_pace(tg_generator *g) {
    if (!g->pde->trajectory) {
        return TG_OK;
    }
    g->pde->trajectory->pairing(g->config, &g->pairing);
    const int64_t shared = tg_gen_shared_pairs(g), trajectories = g->pairing.trajectories;
    return shared == 0 || shared >= trajectories
               ? TG_OK
               : tg_fail(g->ctx, TG_E_CONFIG,
                         "%s.trajectories: expected at most one for each of the %" PRId64
                         " pairs, found %" PRId64,
                         g->pde->name, shared, trajectories);
}

/* Name of a part in the file; NULL: trajectories have one part, named as in PDEBench. */
static const char *part_name(const tg_generator *g, int part) {
    static const char *const names[][TG_SAMPLE_PARTS] = {{"x", "y"}, {"points", "values"}};
    return g->frames == 0 ? names[g->pde->on_points][part] : part == TG_SAMPLE_X ? "tensor" : NULL;
}

static tg_status set_number(tg_archive *meta, const char *key, int64_t value) {
    char text[NUMBER_TEXT];
    snprintf(text, sizeof text, "%" PRId64, value);
    return tg_archive_set_meta(meta, key, text);
}

/* Metadata of every file. */
static tg_status describe(const tg_generator *g, tg_archive *meta) {
    char text[64];
    TG_CALL(tg_archive_set_meta(meta, "equation", g->pde->name));
    TG_CALL(tg_archive_set_meta(meta, "version", TG_VERSION));
    const char *device = tg_gen_device(g); /* results are bit-exact per backend */
    TG_CALL(tg_archive_set_meta(meta, "backend", device ? device : host_backend(g)));
    TG_CALL(g->frames > 0 ? set_number(meta, "frames", g->frames) : TG_OK);
    for (int part = 0; part < TG_SAMPLE_PARTS && part_name(g, part); part++) {
        const char *field = g->frames > 0 ? g->pde->frame_field : g->pde->fields[part];
        TG_CALL(tg_archive_set_meta(meta, part_name(g, part), field));
    }
    snprintf(text, sizeof text, "%" PRIu64, g->seed);
    TG_CALL(tg_archive_set_meta(meta, "seed", text));
    TG_CALL(tg_archive_set_meta(meta, "split", "")); /* train or test: set for each file */
    for (int i = 0; i < g->pde->param_count; i++) {
        const tg_setting *row = &g->pde->params[i];
        char key[64];
        const bool is_taken = tg_archive_meta(meta, row->key);
        snprintf(key, sizeof key, "%s%s%s", is_taken ? g->pde->name : "", is_taken ? "." : "",
                 row->key);
        TG_CALL(tg_archive_set_meta(meta, key, tg_setting_get(row, g->config, text, sizeof text)));
    }
    return TG_OK;
}

static uint64_t fingerprint_of(const tg_archive *meta) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < tg_archive_meta_count(meta); i++) {
        const char *value = tg_archive_meta_value(meta, i);
        sum = 31 * sum + tg_checksum(value, strlen(value));
    }
    return sum;
}

/* (samples, channels, grid..), (samples, points, coordinates) or (trajectories, frames, grid..) */
static tg_shape shape_of(const tg_generator *g, const tg_gen_file *file, tg_sample_part part) {
    const int channels = g->pde->channels[part];
    tg_shape shape = {.ndim = 1, .dim = {g->samples[file->split]}};
    if (g->pde->on_points && part == TG_SAMPLE_X) {
        return (tg_shape){.ndim = 3, .dim = {shape.dim[0], file->resolution, channels}};
    }
    if (g->frames > 0) {
        shape.dim[shape.ndim++] = g->frames;
    }
    if (channels > 1) {
        shape.dim[shape.ndim++] = channels;
    }
    for (int d = 0; d < g->pde->ndim; d++) {
        shape.dim[shape.ndim++] = file->resolution;
    }
    return shape;
}

static tg_status open_file(tg_generator *g, tg_gen_file *file, bool overwrite, tg_archive *meta) {
    const tg_sample_file_desc desc = {
        .path = file->path,
        .meta = meta,
        .dtype = g->pde->dtype,
        .name = {part_name(g, TG_SAMPLE_X), part_name(g, TG_SAMPLE_Y)},
        .shape = {shape_of(g, file, TG_SAMPLE_X), shape_of(g, file, TG_SAMPLE_Y)},
        .overwrite = overwrite};
    TG_CALL(tg_archive_set_meta(meta, "split", split_names[file->split]));
    /* In a flow in time these decide which frames are a sample's. */
    TG_CALL(g->pde->trajectory ? set_number(meta, "n_train", g->samples[TG_SPLIT_TRAIN]) : TG_OK);
    TG_CALL(g->pairing.shuffled ? set_number(meta, "n_test", g->samples[TG_SPLIT_TEST]) : TG_OK);
    TG_CALL(tg_sample_file_open(g->ctx, &desc, &file->store));
    for (int64_t i = 0; i < g->samples[file->split]; i++) {
        file->found += tg_sample_file_has_pair(file->store, i);
    }
    return TG_OK;
}

/* Checks that the work can be shared by several ranks. */
static tg_status check_shared(const tg_generator *g) {
    if (g->pde->trajectory || tg_gen_device(g)) {
        return tg_fail(g->ctx, TG_E_UNSUPPORTED, "%s: %s; start one process", g->pde->name,
                       g->pde->trajectory ? "the frames of a flow in time are computed in sequence"
                                          : "ranks share the samples of the CPU, not of a GPU");
    }
    return TG_OK;
}

static tg_status create(tg_context *ctx, const tg_generator_config *config, tg_generator **out) {
    tg_status status = TG_OK;
    tg_generator *g = NULL;
    tg_archive *meta = NULL;
    if (!config->equation || !config->folder || !*config->folder) {
        return tg_fail(ctx, TG_E_ARGUMENT, "generator: expected an equation and a folder");
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, g, 1));
    g->ctx = ctx;
    g->comm = tg_comm_ranks(config->comm) > 1 ? config->comm : NULL;
    g->seed = config->seed;
    TG_TRY(tg_pde_find(ctx, config->equation, &g->pde));
    g->folder = tg_mem_strdup(ctx, config->folder);
    TG_TRY(g->folder ? TG_OK : TG_E_MEMORY);
    TG_TRY(check_frames(g, config));
    g->frames = config->frames;
    TG_TRY(plan_files(g, config));
    TG_TRY(prepare_config(g, config));
    TG_TRY(plan_pace(g));
    TG_TRY(g->comm ? check_shared(g) : TG_OK);
    TG_TRY(tg_archive_create(ctx, &meta));
    TG_TRY(describe(g, meta));
    g->fingerprint = fingerprint_of(meta);
    TG_TRY(tg_comm_rank(g->comm) == 0 ? tg_folder_make_all(ctx, g->folder) : TG_OK);
    for (int i = 0; i < g->file_count && tg_comm_rank(g->comm) == 0; i++) {
        TG_TRY(open_file(g, &g->files[i], config->overwrite, meta));
    }
    tg_archive_destroy(&meta);
    *out = g;
    return TG_OK;
fail:
    tg_archive_destroy(&meta);
    tg_generator_destroy(&g);
    return status;
}

tg_status tg_generator_create(tg_context *ctx, const tg_generator_config *config,
                              tg_generator **out) {
    TG_NEED_OUT(ctx, out, ctx, config);
    tg_generator_config full = tg_generator_config_default();
    TG_CALL(TG_SIZED_READ(ctx, tg_generator_config, n_train, config, &full));
    tg_status status = create(ctx, &full, out);
    status = full.comm ? tg_comm_agree(full.comm, status) : status;
    if (status != TG_OK) {
        tg_generator_destroy(out);
    }
    return status;
}

/* ---- the run ---- */

static tg_status finish_files(const tg_generator *g) {
    tg_status status = TG_OK;
    for (int i = 0; i < g->file_count && status == TG_OK && tg_comm_rank(g->comm) == 0; i++) {
        status = tg_sample_file_finish(g->files[i].store);
    }
    return g->comm ? tg_comm_agree(g->comm, status) : status;
}

tg_status tg_generator_run(tg_generator *g, tg_generator_fn progress, void *user, bool *complete) {
    TG_NEED(NULL, g);
    TG_NEED(g->ctx, complete);
    tg_gen_run run = {.report = progress, .user = user, .begin = tg_seconds()};
    bool stopped = false;
    *complete = false;
    TG_CALL(g->pde->trajectory ? tg_gen_trajectory(g, &run, &stopped)
                               : tg_gen_samples(g, &run, &stopped));
    TG_CALL(stopped ? TG_OK : finish_files(g));
    *complete = !stopped;
    return TG_OK;
}

bool tg_generator_get_file(const tg_generator *g, int index, tg_generator_file *out) {
    if (!g || !out || index < 0 || index >= g->file_count) {
        return false;
    }
    const tg_gen_file *file = &g->files[index];
    *out = (tg_generator_file){.path = file->path,
                               .samples = g->samples[file->split],
                               .found = file->found,
                               .complete = file->store && tg_sample_file_is_complete(file->store)};
    return true;
}

/* The table of equations, and their parameters as text. */

static const tg_pde *const rows[] = {
#define TG_PDE(name) &tg_pde_##name,
#include "pde/list.def"
};

enum { ROWS = sizeof rows / sizeof rows[0] };

bool tg_pde_describe(int pde, tg_pde_info *out) {
    if (!out || pde < 0 || pde >= ROWS) {
        return false;
    }
    const tg_pde *p = rows[pde];
    *out = (tg_pde_info){.name = p->name,
                         .summary = p->summary,
                         .n_train = p->usual_samples[TG_SPLIT_TRAIN],
                         .n_test = p->usual_samples[TG_SPLIT_TEST],
                         .resolution = p->resolution,
                         .params = p->param_count,
                         .on_device = p->on_device};
    return true;
}

bool tg_pde_describe_param(int pde, int param, tg_pde_param_info *out) {
    if (!out || pde < 0 || pde >= ROWS || param < 0 || param >= rows[pde]->param_count) {
        return false;
    }
    const tg_setting *row = &rows[pde]->params[param];
    *out = (tg_pde_param_info){.name = row->key, .help = row->help};
    tg_setting_get(row, rows[pde]->defaults, out->value, sizeof out->value);
    return true;
}

tg_status tg_pde_find(tg_context *ctx, const char *name, const tg_pde **out) {
    const char *names[ROWS];
    char known[160] = "";
    *out = NULL;
    for (int i = 0; i < ROWS; i++) {
        names[i] = rows[i]->name;
        if (strcmp(names[i], name) == 0) {
            *out = rows[i];
            return TG_OK;
        }
        tg_names_append(known, sizeof known, i, ROWS, names[i]);
    }
    const char *nearest = tg_nearest_name(name, names, ROWS);
    return tg_fail(ctx, TG_E_CONFIG, "equation '%.64s' is not one of %s%s%s%s", name, known,
                   nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static tg_status check_range(tg_context *ctx, const tg_pde *pde, const tg_setting *row,
                             const void *config, const char *value) {
    const tg_list_double *range = (const tg_list_double *)((const char *)config + row->offset);
    return row->type != TG_SETTING_LIST_DOUBLE ||
                   (range->count == 2 && range->value[0] <= range->value[1])
               ? TG_OK
               : tg_fail(ctx, TG_E_CONFIG,
                         "%s.%s: expected a range [low, high] with low <= high, found '%.64s'",
                         pde->name, row->key, value);
}

tg_status tg_pde_set(tg_context *ctx, const tg_pde *pde, void *config, const char *name,
                     const char *value) {
    char known[256] = "";
    for (int i = 0; i < pde->param_count; i++) {
        const tg_setting *row = &pde->params[i];
        if (strcmp(row->key, name) == 0) {
            tg_status status = tg_setting_set(ctx, pde->name, row, 1, config, name, value);
            return status == TG_OK ? check_range(ctx, pde, row, config, value) : status;
        }
        tg_names_append(known, sizeof known, i, pde->param_count, row->key);
    }
    return tg_fail(ctx, TG_E_CONFIG, "%s has no parameter '%.64s'; it has %s", pde->name, name,
                   known);
}

tg_status tg_pde_choose_grid(tg_context *ctx, const char *name, int64_t usual, int64_t least,
                             int64_t finest, int64_t *grid) {
    if (*grid == 0) {
        *grid = usual > finest ? usual : finest;
    }
    if (*grid < finest) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "%s.grid: %" PRId64 " points are fewer than the finest resolution, %" PRId64,
                       name, *grid, finest);
    }
    return *grid >= least ? TG_OK
                          : tg_fail(ctx, TG_E_CONFIG,
                                    "%s.grid: expected at least %" PRId64 " points, found %" PRId64,
                                    name, least, *grid);
}

tg_status tg_pde_open(const tg_pde *pde, const tg_pde_setup *setup, void **solver) {
    *solver = tg_pool_alloc(setup->pool, 1, pde->solver_bytes, NULL);
    return *solver ? pde->open(setup, *solver) : TG_E_MEMORY;
}
