/* Settings that train on a file: its layout, channels and grid, modes
 * that the grid has, a split into training and test, a batch that fits in memory; of points a GINO
 * with radii and a latent grid that fit them. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "propose_settings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/input_files.h"
#include "common/run_settings.h"

enum { MAX_MODES = 16, LARGEST_BATCH = 16, WIDTH = 32, TEST_SHARE = 10 };

/* Fields as they come have means, steps and noise. The derivatives in h1 outweigh its mean by
 * (2 pi k)^2 for a wave k; l2 counts all waves alike. */
#define LOSS         "l2 + h1"
#define LOSS_COMMENT "h1 for fine structure, l2 for means and large scales"

/* Ways to keep the optimizer's state, from the simplest to the smallest. */
enum { STATE_FORMS = 3, SMALL_STATE = 20 /* a state of at most 1/20 of the memory is small */ };
static const struct {
    const char *name, *precision;
} state_forms[STATE_FORMS] = {{"adam", NULL}, {"adam", "8bit"}, {"tensorgrad", "8bit"}};

/* ---- radii and latent grid for points of a file ----
 *
 * r is the mean distance from a point to its NEIGHBOURS-th nearest. The latent grid has cells of at
 * least r / REACH: a ball of REACH cells holds about as many of its places (24 in three
 * dimensions), so that points and grid resolve the same. Cells may be larger, where so fine a grid
 * would cost too much; balls around places have at least half the diagonal of a cell, so that no
 * point is lost. */

typedef struct points_fit {
    int64_t latent_grid;          /* in every dimension */
    double in_radius, out_radius; /* of the kernels to the grid and to the queries */
} points_fit;

enum { NEIGHBOURS = 20, SAMPLES = 4, QUERIES = 64 };
static const double REACH = 1.8; /* radius of the kernel to the queries, in cells */

static const int64_t grid_sizes[] = {8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
static const int64_t finest[] = {256, 64, 32}; /* in one, two and three dimensions */

/* The distance from point `query` to its k-th nearest among points (d, count). */
static double kth_distance(const float *points, int d, int64_t count, int64_t query, int k) {
    double nearest[NEIGHBOURS]; /* squared, the first `found` of them in order */
    int found = 0;
    for (int64_t i = 0; i < count; i++) {
        double square = 0.0;
        for (int c = 0; c < d; c++) {
            const double apart = (double)(points[c * count + i] - points[c * count + query]);
            square += apart * apart;
        }
        if (i == query || (found == k && square >= nearest[k - 1])) {
            continue;
        }
        int at = found < k ? found++ : k - 1;
        for (; at > 0 && nearest[at - 1] > square; at--) {
            nearest[at] = nearest[at - 1];
        }
        nearest[at] = square;
    }
    return sqrt(nearest[k - 1]);
}

static double mean_distance(const float *points, int d, int64_t count) {
    const int k = count > NEIGHBOURS ? NEIGHBOURS : (int)count - 1;
    const int64_t queries = count < QUERIES ? count : QUERIES;
    double sum = 0.0;
    for (int64_t i = 0; i < queries && k > 0; i++) {
        sum += kth_distance(points, d, count, i * count / queries, k);
    }
    return k > 0 ? sum / (double)queries : 1.0; /* a single point: the box */
}

/* From the distances of neighbours in a few samples. */
static tg_status measure_points(tg_dataset *dataset, points_fit *out) {
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const int d = (int)facts.in_channels;
    const int64_t samples = facts.samples < SAMPLES ? facts.samples : SAMPLES;
    CLI_FREED float *points = cli_need(malloc(facts.x_bytes));
    double radius = 0.0;
    for (int64_t i = 0; i < samples; i++) {
        const int64_t index = i * facts.samples / samples;
        CLI_CALL(tg_dataset_read(dataset, &index, 1, points, NULL));
        radius += mean_distance(points, d, facts.grid[0]) / (double)samples;
    }
    out->latent_grid = grid_sizes[0];
    for (size_t i = 1; i < sizeof grid_sizes / sizeof grid_sizes[0]; i++) {
        const bool is_wanted = (double)(grid_sizes[i] - 1) * radius <= REACH;
        out->latent_grid =
            is_wanted && grid_sizes[i] <= finest[d - 1] ? grid_sizes[i] : out->latent_grid;
    }
    const double cell = 1.0 / (double)(out->latent_grid - 1);
    out->in_radius = fmax(radius, 0.5 * sqrt(d) * cell);
    out->out_radius = REACH * cell;
    return TG_OK;
}

/* ---- settings ---- */

/* "[16, 8]": half of the grid, and no more than MAX_MODES. */
static const char *modes_of(int n_dim, const int64_t *grid, char text[96]) {
    size_t used = 0;
    for (int d = 0; d < n_dim; d++) {
        const int64_t half = grid[d] / 2 > 1 ? grid[d] / 2 : 1;
        used += (size_t)snprintf(text + used, 96 - used, "%s%lld", d ? ", " : "[",
                                 (long long)(half < MAX_MODES ? half : MAX_MODES));
    }
    snprintf(text + used, 96 - used, "]");
    return text;
}

typedef struct row {
    const char *key, *text; /* text NULL: the number */
    int64_t number;
    bool is_left_out;
} row;

static tg_status set_rows(const row *rows, size_t count, tg_settings *settings) {
    for (size_t i = 0; i < count; i++) {
        if (!rows[i].is_left_out) {
            CLI_CALL(rows[i].text
                         ? tg_settings_set(settings, rows[i].key, rows[i].text, "init")
                         : cli_settings_set_integer(settings, rows[i].key, rows[i].number, "init"));
        }
    }
    return TG_OK;
}

/* Settings of a GINO beyond those of other networks. */
static tg_status set_points(const points_fit *fit, int coordinates, tg_settings *settings) {
    const int64_t n = fit->latent_grid, grid[TG_DATA_MAX_DIMS] = {n, n, n};
    char modes[96], in[32], out[32];
    snprintf(in, sizeof in, "%.3g", fit->in_radius);
    snprintf(out, sizeof out, "%.3g", fit->out_radius);
    const row rows[] = {
        {"fno.architecture", "gino", 0, false},
        {"fno.n_modes", modes_of(coordinates, grid, modes), 0, false},
        {"fno.fno_in_channels", NULL, coordinates, false},
        {"fno.in_gno_radius", in, 0, false},
        {"fno.out_gno_radius", out, 0, false},
        {"fno.gno_embed_channels", NULL, 16, false},
        {"fno.in_gno_channel_mlp_hidden_layers", "[64, 64]", 0, false},
        {"fno.out_gno_channel_mlp_hidden_layers", "[64, 64]", 0, false},
        {"data.latent_grid", NULL, n, false},
        {"data.batch_size", NULL, 1, false}, /* every sample has other points */
        {"opt.training_loss", "l2", 0, false},
    };
    return set_rows(rows, sizeof rows / sizeof rows[0], settings);
}

/* Samples, or trajectories, that are left for tests. */
static int64_t tests_of(int64_t samples) {
    return samples < 2 ? 0 : (samples + TEST_SHARE - 1) / TEST_SHARE;
}

/* The settings for a file, all but the batch. `file` is its path from anywhere; `fit` NULL: fields
 * on a grid. */
static tg_status set_all(const tg_dataset_facts *facts, const tg_dataset_config *config,
                         const char *file, const points_fit *fit, tg_settings *settings) {
    const bool is_trajectory = facts->trajectories > 0;
    const int64_t samples = is_trajectory ? facts->trajectories : facts->samples;
    const int64_t tests = tests_of(samples);
    const tg_dataset_config plain = tg_dataset_config_default();
    char modes[96];
    const char quote = strchr(file, '"') ? '\'' : '"';
    CLI_FREED char *tested = cli_format("[%c%s%c]", quote, file, quote); /* whatever is in it */
    const row rows[] = {
        {"data.x_name", config->x_name, 0, strcmp(config->x_name, plain.x_name) == 0},
        {"data.y_name", config->y_name, 0, strcmp(config->y_name, plain.y_name) == 0},
        {"data.fields", config->fields, 0, !config->fields},
        {"data.group", config->group, 0, !config->group},
        {"data.order", "nhwc", 0, !config->channels_last},
        {"data.train_file", file, 0, false},
        {"data.history", NULL, facts->history, !is_trajectory},
        {"data.horizon", NULL, facts->horizon, !is_trajectory},
        {"data.n_train", NULL, samples - tests, false},
        {"data.test_files", strpbrk(file, ",[]()") ? tested : file, 0, tests == 0},
        {"data.test_skip", NULL, samples - tests, tests == 0},
        {"data.test_resolutions", "[]", 0, tests > 0},
        {"fno.n_modes", modes_of(facts->n_dim, facts->grid, modes), 0, fit != NULL},
        {"fno.in_channels", NULL, facts->in_channels, false},
        {"fno.out_channels", NULL, facts->out_channels, false},
        {"fno.hidden_channels", NULL, WIDTH, false},
        {"fno.complex_data", "true", 0, facts->dtype != TG_C64},
        {"data.encode_input", "true", 0, fit != NULL},
        {"opt.n_epochs", NULL, 50, false},
        {"opt.training_loss", LOSS, 0, fit != NULL},
    };
    CLI_CALL(set_rows(rows, sizeof rows / sizeof rows[0], settings));
    return fit ? set_points(fit, config->coordinates, settings) : TG_OK;
}

/* TensorGRaD with the best measured settings at Adam's rate, the default (docs/choosing.md). */
static tg_status set_form(int form, tg_settings *settings) {
    const bool is_dense = strcmp(state_forms[form].name, "adam") == 0;
    const row rows[] = {
        {"opt.name", state_forms[form].name, 0, false},
        {"opt.match_rms", "true", 0, is_dense},
        {"opt.sparse_ratio", "0.20", 0, is_dense},
        {"opt.second_rank", "0.05", 0, is_dense},
        {"opt.update_proj_gap", NULL, 100, is_dense},
        {"opt.moments_on_refresh", "reset", 0, is_dense},
        {"opt.eps", "1.0e-8", 0, is_dense},
        {"opt.state_precision", state_forms[form].precision, 0, !state_forms[form].precision},
    };
    return set_rows(rows, sizeof rows / sizeof rows[0], settings);
}

/* The state that the optimizer has in this form, and where. */
static tg_status plan_state(tg_context *ctx, const tg_settings *settings, int form, tg_place *place,
                            size_t *bytes) {
    CLI_OWNED(tg_settings_destroy) tg_settings *trial = NULL;
    CLI_FREED tg_train_memory *plan = cli_need(malloc(sizeof *plan));
    CLI_CALL(tg_settings_copy(ctx, settings, &trial));
    CLI_CALL(set_form(form, trial));
    CLI_CALL(tg_train_plan(ctx, trial, 1, plan));
    const size_t *peak = plan->peak[plan->place];
    *place = plan->place;
    *bytes = peak[TG_MEM_OPTIMIZER] + peak[TG_MEM_FACTORS] + peak[TG_MEM_INDICES];
    return TG_OK;
}

/* The simplest form whose state is small beside the memory left, or the smallest, and why. */
static tg_status choose_method(tg_context *ctx, cli_proposal *out) {
    size_t bytes[STATE_FORMS], left = 0;
    char state[CLI_UNIT_TEXT], other[CLI_UNIT_TEXT];
    tg_place place = TG_HOST;
    int form = 0;
    for (int i = 0; i < STATE_FORMS; i++) {
        const tg_status status = plan_state(ctx, out->settings, i, &place, &bytes[i]);
        if (status == TG_E_CONFIG && i > 0) {
            bytes[i] = bytes[0]; /* 8 bits are refused where all parameters are small */
        } else {
            CLI_CALL(status);
        }
    }
    if (tg_train_memory_left(ctx, place, &left)) {
        for (int i = 1; i < STATE_FORMS && bytes[form] > left / SMALL_STATE; i++) {
            form = bytes[i] < bytes[form] ? i : form;
        }
        cli_bytes_text(bytes[form], state);
        cli_bytes_text(bytes[form ? 0 : STATE_FORMS - 1], other);
        out->method_note = /* the bytes left would make every proposal another one */
            form == 0 && bytes[STATE_FORMS - 1] >= bytes[0]
                ? cli_format("state %s, under %d %% of the memory left", state, 100 / SMALL_STATE)
            : form == 0
                ? cli_format("state %s, under %d %% of the memory left; tensorgrad with 8-bit "
                             "moments: %s",
                             state, 100 / SMALL_STATE, other)
                : cli_format("state %s; Adam's, %s, is over %d %% of the memory left", state, other,
                             100 / SMALL_STATE);
    }
    return set_form(form, out->settings);
}

/* The largest batch, a power of two, that the training samples fill and with which the run takes at
 * most 4/5 of the memory left. */
static tg_status choose_batch(tg_context *ctx, const tg_dataset_facts *facts,
                              tg_settings *settings) {
    CLI_FREED tg_train_memory *plan = cli_need(malloc(sizeof *plan));
    const int64_t sets = facts->trajectories > 0 ? facts->trajectories : facts->samples;
    const int64_t trained = (sets - tests_of(sets)) * (facts->samples / sets);
    int64_t batch = LARGEST_BATCH;
    while (batch > trained && batch > 1) {
        batch /= 2;
    }
    for (; batch >= 1; batch /= 2) {
        size_t left = 0;
        CLI_CALL(cli_settings_set_integer(settings, "data.batch_size", batch, "init"));
        CLI_CALL(tg_train_plan(ctx, settings, 1, plan));
        if (!tg_train_memory_left(ctx, plan->place, &left) ||
            plan->peak_total[plan->place] <= left / 5 * 4) {
            break;
        }
    }
    return TG_OK;
}

static tg_status open_set(tg_context *ctx, const char *path, tg_dataset_config config,
                          tg_dataset **out) {
    config.n_dim = config.coordinates > 0 ? 1 : 0;
    return cli_dataset_open(ctx, path, &config, out);
}

/* How many coordinates the points of a file have; 0: it has no such array. */
static int coordinates_of(tg_context *ctx, const char *path, tg_dataset_config config) {
    config.x_only = true;
    for (config.coordinates = 1; config.coordinates <= TG_DATA_MAX_DIMS; config.coordinates++) {
        CLI_OWNED(tg_dataset_close) tg_dataset *dataset = NULL;
        if (open_set(ctx, path, config, &dataset) == TG_OK) {
            return config.coordinates;
        }
    }
    return 0;
}

/* A file without x may hold points; `config` then gets their coordinates. */
static tg_status open_either(tg_context *ctx, const char *path, bool at_points,
                             tg_dataset_config *config, tg_dataset **out) {
    const tg_status status = at_points ? TG_E_ARGUMENT : open_set(ctx, path, *config, out);
    if (status != TG_E_ARGUMENT) {
        return status;
    }
    config->coordinates = coordinates_of(ctx, path, *config);
    if (at_points && config->coordinates == 0) {
        config->coordinates = TG_DATA_MAX_DIMS; /* the error says what was found instead */
    }
    return open_set(ctx, path, *config, out);
}

tg_status cli_propose(tg_context *ctx, const char *path, const tg_dataset_config *config,
                      bool at_points, cli_proposal *out) {
    *out = (cli_proposal){0};
    CLI_FREED char *absolute = realpath(path, NULL);
    const char *file = absolute ? absolute : path; /* opening a missing file reports it */
    CLI_OWNED(tg_dataset_close) tg_dataset *dataset = NULL;
    tg_dataset_config full = *config;
    points_fit fit;
    CLI_CALL(open_either(ctx, file, at_points, &full, &dataset));
    const bool is_fit = full.coordinates > 0;
    out->coordinates = full.coordinates;
    out->facts = tg_dataset_get_facts(dataset);
    for (int i = 0; tg_dataset_array(dataset, i); i++) {
        const char *name = tg_dataset_array(dataset, i);
        cli_list_add(&out->arrays, name, strlen(name));
    }
    CLI_CALL(is_fit ? measure_points(dataset, &fit) : TG_OK);
    tg_dataset_close(&dataset); /* its memory must not count when the batch is chosen */
    CLI_CALL(tg_settings_create(ctx, &out->settings));
    CLI_CALL(set_all(&out->facts, &full, file, is_fit ? &fit : NULL, out->settings));
    CLI_CALL(choose_method(ctx, out));
    return is_fit ? TG_OK : choose_batch(ctx, &out->facts, out->settings);
}

bool cli_proposal_uses(const cli_proposal *proposal, tg_file_format format, const char *name) {
    const bool is_numbered =
        proposal->facts.layout == TG_LAYOUT_NUMBERED && cli_ends_with(name, "/data");
    bool is_used = is_numbered || format == TG_FILE_NPY;
    for (int i = 0; i < proposal->arrays.count && !is_used; i++) {
        is_used = strcmp(name, proposal->arrays.item[i]) == 0;
    }
    return is_used;
}

tg_status cli_proposal_nonfinite(tg_context *ctx, const char *path, const cli_proposal *proposal,
                                 int64_t *count) {
    CLI_OWNED(cli_source_close) cli_source source = {0};
    CLI_CALL(cli_source_open(ctx, path, &source));
    *count = 0;
    for (int64_t i = 0; i < cli_source_count(&source); i++) {
        tg_tensor_stats stats = {0};
        if (cli_proposal_uses(proposal, source.format, cli_source_name(&source, i))) {
            CLI_CALL(cli_source_stats(&source, i, &stats));
        }
        *count += stats.nan_count + stats.inf_count;
    }
    return TG_OK;
}

/* The text with a comment after the first line with this start, if there are both; frees `text`. */
static char *annotate(char *text, const char *start, const char *comment) {
    const char *line = comment ? strstr(text, start) : NULL;
    if (!line) {
        return text;
    }
    CLI_FREED char *before = text;
    const char *end = strchr(line + 1, '\n');
    return cli_format("%.*s  # %s%s", (int)(end - before), before, comment, end);
}

char *cli_proposal_text(const cli_proposal *proposal) {
    char *text = cli_settings_text(proposal->settings);
    text = annotate(text, "\n  training_loss: \"" LOSS "\"", LOSS_COMMENT);
    return annotate(text, "\n  name: ", proposal->method_note);
}

static bool has_array(const cli_source *source, const char *name) {
    bool has_it = false;
    for (int64_t i = 0; i < cli_source_count(source) && !has_it; i++) {
        has_it = strcmp(cli_source_name(source, i), name) == 0;
    }
    return has_it;
}

/* The array that `x` is a pair with by its name: y_train of x_train. NULL: none; to be freed. */
static char *partner_of(const cli_source *source, const char *x) {
    static const char *const prefixes[][2] = {{"x", "y"}, {"X", "Y"}, {"input", "output"}};
    char *y = NULL;
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0] && !y; i++) {
        const size_t length = strlen(prefixes[i][0]);
        y = strncmp(x, prefixes[i][0], length) == 0 ? cli_format("%s%s", prefixes[i][1], x + length)
                                                    : NULL;
        if (y && !has_array(source, y)) {
            free(y);
            y = NULL;
        }
    }
    return y;
}

char *cli_propose_command(tg_context *ctx, const char *path) {
    CLI_OWNED(cli_source_close) cli_source source = {0};
    const int64_t count =
        cli_source_open(ctx, path, &source) == TG_OK ? cli_source_count(&source) : 0;
    if (count == 0 || has_array(&source, "x") || has_array(&source, "y")) {
        return NULL;
    }
    for (int64_t i = 0; i < 2 * count; i++) { /* first x_train .. */
        const char *x = cli_source_name(&source, i % count);
        CLI_FREED char *y = i < count && !strstr(x, "train") ? NULL : partner_of(&source, x);
        if (y) {
            return cli_format("of this pair: tgrad init %s --x-name %s --y-name %s", path, x, y);
        }
    }
    if (count == 2) {
        return cli_format("choose which of the two is the input: tgrad init %s --x-name %s "
                          "--y-name %s, or with the two swapped",
                          path, cli_source_name(&source, 0), cli_source_name(&source, 1));
    }
    return count == 1 && source.format != TG_FILE_NPY
               ? cli_format("if it has times, (samples, times, grid..): tgrad init %s --fields %s",
                            path, cli_source_name(&source, 0))
               : NULL;
}

const char *cli_proposal_place(const cli_proposal *proposal, char text[CLI_PLACE_TEXT]) {
    const tg_dataset_facts *facts = &proposal->facts;
    char grid[TG_GRID_TEXT];
    tg_grid_text(facts->n_dim, facts->grid, grid);
    snprintf(text, CLI_PLACE_TEXT, proposal->coordinates > 0 ? "at %s points" : "on a grid of %s",
             grid);
    return text;
}

void cli_proposal_free(cli_proposal *proposal) {
    tg_settings_destroy(&proposal->settings);
    cli_list_free(&proposal->arrays);
    free(proposal->method_note);
    *proposal = (cli_proposal){0};
}
