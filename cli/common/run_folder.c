/* Reading a run folder. A line that a running or killed trainer has not finished is left out; any
 * other malformed line is an error with its number. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "run_folder.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "output.h"
#include "statistics.h"

/* ---- files ---- */

/* "folder/name", to be freed. */
static char *join(const char *folder, const char *name) {
    const size_t length = strlen(folder);
    const bool has_slash = length > 0 && folder[length - 1] == '/';
    return cli_format("%s%s%s", folder, has_slash ? "" : "/", name);
}

/* The whole file, terminated; NULL with errno if it cannot be read. */
static char *read_text(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    cli_bytes text = {0};
    char block[1 << 16];
    if (!file) {
        return NULL;
    }
    errno = 0;
    for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0;) {
        cli_bytes_add(&text, block, got);
    }
    const int reason = ferror(file) ? errno : 0;
    fclose(file);
    *size = text.size;
    cli_bytes_add(&text, "", 0);
    if (reason) {
        cli_bytes_free(&text);
        errno = reason;
    }
    return text.data;
}

static bool exists(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0;
}

/* ---- metrics.jsonl ---- */

static double real_of(const json_t *object, const char *key) {
    return cli_json_number(json_object_get(object, key));
}

static int64_t integer_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : 0;
}

/* The column of a test, a new one if it was not seen yet; -1 if there are too many. */
static int column_of(cli_run *run, const char *grid) {
    const int known = cli_run_test(run, grid);
    if (known >= 0 || run->tests == CLI_RUN_TESTS || !cli_grid_is_name(grid)) {
        return known;
    }
    run->tests = cli_grid_insert(run->grid, run->tests, CLI_RUN_TESTS, grid);
    const int at = cli_run_test(run, grid);
    for (int e = 0; e < run->count * CLI_NORMS; e++) {
        double *error = run->epoch[e / CLI_NORMS].error[e % CLI_NORMS];
        memmove(error + at + 1, error + at, (size_t)(CLI_RUN_TESTS - 1 - at) * sizeof *error);
        error[at] = (double)NAN;
    }
    return at;
}

/* "test": {"16": {"l2": .., "h1": ..}, ..}; the errors of the last epoch. */
static bool read_tests(cli_run *run, json_t *tests) {
    const char *key;
    json_t *errors;
    json_object_foreach(tests, key, errors) {
        const int column = column_of(run, key);
        if (column < 0 || !json_is_object(errors)) {
            return false;
        }
        cli_epoch *last = &run->epoch[run->count - 1];
        last->error[CLI_NORM_L2][column] = real_of(errors, "l2");
        last->error[CLI_NORM_H1][column] = real_of(errors, "h1");
    }
    run->newest = run->newest ? run->newest : cli_json_object();
    return !tests || json_object_update(run->newest, tests) == 0;
}

/* "quantiles": {"16": [..], ..}, put beside the errors of their test. */
static void keep_quantiles(cli_run *run, json_t *quantiles) {
    const char *key;
    json_t *of_test;
    json_object_foreach(quantiles, key, of_test) {
        json_t *errors = json_object_get(run->newest, key);
        if (errors && json_object_set(errors, "quantiles", of_test) != 0) {
            cli_need(NULL);
        }
    }
}

static bool read_line(cli_run *run, const json_t *object, size_t *capacity) {
    const json_t *number = json_object_get(object, "epoch");
    json_t *tests = json_object_get(object, "test");
    if (!json_is_integer(number) || (tests && !json_is_object(tests))) {
        return false;
    }
    cli_epoch line = {.epoch = json_integer_value(number),
                      .step = integer_of(object, "step"),
                      .skipped = integer_of(object, "skipped"),
                      .overflows = integer_of(object, "overflows"),
                      .loss_scale = real_of(object, "loss_scale"),
                      .lr = real_of(object, "lr"),
                      .loss = real_of(json_object_get(object, "train"), "loss"),
                      .step_ms = real_of(object, "step_ms"),
                      .seconds = real_of(object, "seconds"),
                      .saving = real_of(json_object_get(object, "time"), "checkpoint")};
    line.saving = line.saving > 0.0 ? line.saving : 0.0;
    for (int t = 0; t < CLI_RUN_TESTS; t++) {
        line.error[CLI_NORM_L2][t] = line.error[CLI_NORM_H1][t] = (double)NAN;
    }
    /* A resumed run may write an epoch again: the later line counts. */
    while (run->count > 0 && run->epoch[run->count - 1].epoch >= line.epoch) {
        run->count--;
    }
    run->epoch = cli_grow(run->epoch, (size_t)run->count, capacity, sizeof *run->epoch);
    run->epoch[run->count++] = line;
    const json_t *validation = json_object_get(object, "validation");
    if (validation || run->count == 1) {
        run->validation[CLI_NORM_L2] = real_of(validation, "l2");
        run->validation[CLI_NORM_H1] = real_of(validation, "h1");
    }
    const json_t *memory = json_object_get(object, "memory");
    run->memory_peak = real_of(memory, "peak");
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        run->memory[c] = real_of(memory, tg_mem_category_name((tg_mem_category)c));
    }
    const bool is_good = read_tests(run, tests);
    keep_quantiles(run, json_object_get(object, "quantiles"));
    return is_good;
}

int cli_run_parse(cli_run *run, const char *path, const char *text, size_t size) {
    size_t capacity = 0;
    int64_t number = 1;
    for (size_t begin = 0; begin < size; number++) {
        const char *end = memchr(text + begin, '\n', size - begin);
        const size_t length = end ? (size_t)(end - text) - begin : size - begin;
        json_error_t error;
        json_t *object =
            length > 0 ? json_loadb(text + begin, length, JSON_REJECT_DUPLICATES, &error) : NULL;
        run->is_cut = !end && !object;
        const bool is_json = object,
                   is_good = length == 0 || run->is_cut || read_line(run, object, &capacity);
        json_decref(object);
        if (!is_good) {
            return cli_fail("%s:%" PRId64 ": this is not a line of metrics%s%s", path, number,
                            is_json ? "" : ": ", is_json ? "" : error.text);
        }
        begin += length + 1;
    }
    if (run->count == 0) {
        (void)cli_fail("%s is left out: it has no complete line, no epoch of this run has ended",
                       path);
    }
    return CLI_OK;
}

static int read_metrics(cli_run *run) {
    CLI_FREED char *path = join(run->path, "metrics.jsonl");
    size_t size = 0;
    struct stat facts;
    CLI_FREED char *text = read_text(path, &size);
    int code = CLI_OK;
    if (text) {
        code = cli_run_parse(run, path, text, size);
    } else if (errno == ENOENT && exists(run->path)) {
        (void)cli_fail("%s is left out: it is not a run folder, or no epoch has ended: it "
                       "has no metrics.jsonl",
                       run->path);
    } else if (errno == ENOTDIR) {
        (void)cli_fail("%s is left out: it is a file, not a run folder", run->path);
    } else {
        code = cli_fail("cannot read %s: %s", path, strerror(errno));
    }
    struct tm utc;
    if (stat(path, &facts) == 0 && gmtime_r(&facts.st_mtime, &utc)) {
        strftime(run->written, sizeof run->written, "%Y-%m-%d %H:%M UTC", &utc);
    }
    return code;
}

/* ---- the folder ---- */

int cli_run_open(tg_context *ctx, const char *path, cli_run *out) {
    *out = (cli_run){.path = path};
    if (read_metrics(out) != CLI_OK) {
        return CLI_FAILED;
    }
    if (out->count == 0) {
        return CLI_OK;
    }
    CLI_FREED char *settings = join(path, "config.yaml");
    CLI_FREED char *samples = join(path, "samples.safetensors");
    CLI_FREED char *rollout = join(path, CLI_ROLLOUT_FILE);
    tg_status status =
        exists(settings) ? tg_settings_read_yaml(ctx, settings, &out->settings) : TG_OK;
    status = status == TG_OK && exists(samples) ? tg_safetensors_read(ctx, samples, &out->samples)
                                                : status;
    status = status == TG_OK && exists(rollout) ? tg_safetensors_read(ctx, rollout, &out->rollout)
                                                : status;
    return cli_code(ctx, status);
}

void cli_run_close(cli_run *run) {
    free(run->name);
    free(run->epoch);
    json_decref(run->newest);
    tg_settings_destroy(&run->settings);
    tg_archive_destroy(&run->samples);
    tg_archive_destroy(&run->rollout);
    *run = (cli_run){0};
}

/* The last part of a path, to be freed: "runs/adam/" -> "adam". */
static char *last_part(const char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/') {
        begin--;
    }
    char *name = cli_need(strndup(path + begin, length - begin));
    char *full = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ? realpath(path, NULL) : NULL;
    if (full) {
        free(name);
        name = cli_need(strdup(strrchr(full, '/')[1] ? strrchr(full, '/') + 1 : full));
        free(full);
    }
    return name;
}

void cli_run_name_all(cli_run *runs, int count) {
    for (int i = 0; i < count; i++) {
        runs[i].name = last_part(runs[i].path);
    }
    for (int i = 0; i < count; i++) {
        bool is_taken = false;
        for (int k = i + 1; k < count; k++) {
            if (strcmp(runs[i].name, runs[k].name) == 0) {
                is_taken = true;
                free(runs[k].name);
                runs[k].name = cli_need(strdup(runs[k].path));
            }
        }
        if (is_taken) {
            free(runs[i].name);
            runs[i].name = cli_need(strdup(runs[i].path));
        }
    }
}

/* ---- questions ---- */

const char *const cli_norm_names[CLI_NORMS] = {"l2", "h1"};

bool cli_grid_is_name(const char *text) {
    const size_t length = strlen(text), sizes = strcspn(text, "_");
    return length < TG_GRID_TEXT && cli_grid_size(text) > 0.0 &&
           strspn(text, "0123456789x") == sizes &&
           (sizes == length ||
            (sizes + 1 < length && strspn(text + sizes + 1, "0123456789") == length - sizes - 1));
}

double cli_grid_size(const char *text) {
    char sizes[TG_GRID_TEXT];
    int64_t points[TG_DATA_MAX_DIMS];
    snprintf(sizes, sizeof sizes, "%.*s", (int)strcspn(text, "_"), text);
    const int count = tg_grid_parse(sizes, points);
    double product = 1.0;
    for (int d = 0; d < count; d++) {
        product *= (double)points[d];
    }
    return count > 0 ? pow(product, 1.0 / count) : 0.0;
}

/* Below, at or above 0 as strcmp: coarse grids come first. */
static int compare_grids(const char *a, const char *b) {
    const double x = cli_grid_size(a), y = cli_grid_size(b);
    return x < y ? -1 : x > y ? 1 : strcmp(a, b);
}

int cli_grid_insert(cli_grid *list, int count, int most, const char *grid) {
    int at = 0;
    while (at < count && compare_grids(list[at], grid) < 0) {
        at++;
    }
    if ((at < count && strcmp(list[at], grid) == 0) || count == most) {
        return count;
    }
    memmove(list + at + 1, list + at, (size_t)(count - at) * sizeof *list);
    snprintf(list[at], sizeof list[at], "%s", grid);
    return count + 1;
}

int cli_run_test(const cli_run *run, const char *grid) {
    for (int t = 0; t < run->tests; t++) {
        if (strcmp(run->grid[t], grid) == 0) {
            return t;
        }
    }
    return -1;
}

int cli_run_last(const cli_run *run, cli_norm norm, int test) {
    int last = run->count - 1;
    while (last >= 0 && (test < 0 || isnan(run->epoch[last].error[norm][test]))) {
        last--;
    }
    return last;
}

int cli_run_best(const cli_run *run, cli_norm norm, int test) {
    int best = -1;
    for (int e = 0; test >= 0 && e < run->count; e++) {
        const double error = run->epoch[e].error[norm][test];
        if (!isnan(error) && (best < 0 || error < run->epoch[best].error[norm][test])) {
            best = e;
        }
    }
    return best;
}

/* The list "l2_channels" or "h1_channels" of a test; NULL if there is none. */
static const json_t *channels_of(const cli_run *run, cli_norm norm, const char *grid) {
    const char *key = norm == CLI_NORM_L2 ? "l2_channels" : "h1_channels";
    return json_object_get(json_object_get(run->newest, grid), key);
}

int cli_run_channels(const cli_run *run, const char *grid) {
    const size_t count = json_array_size(channels_of(run, CLI_NORM_L2, grid));
    return count < INT_MAX ? (int)count : INT_MAX;
}

double cli_run_quantile(const cli_run *run, const char *grid, int index) {
    const json_t *list = json_object_get(json_object_get(run->newest, grid), "quantiles");
    return cli_json_number(json_array_get(list, (size_t)index));
}

double cli_run_channel(const cli_run *run, cli_norm norm, const char *grid, int channel) {
    return cli_json_number(json_array_get(channels_of(run, norm, grid), (size_t)channel));
}

double cli_run_optimizer_bytes(const cli_run *run) {
    return run->memory[TG_MEM_OPTIMIZER] + run->memory[TG_MEM_FACTORS] +
           run->memory[TG_MEM_INDICES];
}

double cli_run_step_ms(const cli_run *run) {
    double *value = cli_need(malloc((size_t)run->count * sizeof *value));
    int count = 0;
    for (int e = 0; e < run->count; e++) {
        if (!isnan(run->epoch[e].step_ms)) {
            value[count++] = run->epoch[e].step_ms;
        }
    }
    const double median = cli_median(value, count);
    free(value);
    return median;
}

double cli_run_seconds(const cli_run *run) {
    double sum = 0.0;
    for (int e = 0; e < run->count; e++) {
        sum += run->epoch[e].seconds + run->epoch[e].saving;
    }
    return sum;
}

double cli_run_step_seconds(const cli_run *run) {
    /* step_ms is of a batch, `step` counts updates: several batches each with accumulation. */
    const char *text = cli_run_setting(run, "opt.accumulation_steps");
    const double batches = text && strtod(text, NULL) > 1.0 ? strtod(text, NULL) : 1.0;
    double sum = 0.0;
    for (int e = 0; e < run->count; e++) {
        const double before = e > 0 ? (double)run->epoch[e - 1].step : 0.0;
        const double steps = (double)run->epoch[e].step - before;
        const double training = 1e-3 * run->epoch[e].step_ms * batches * steps;
        sum += isnan(training) ? training : fmin(fmax(training, 0.0), run->epoch[e].seconds);
    }
    return sum;
}

/* A number of epochs, or `otherwise` where none is said. */
static int64_t epochs_of(const char *text, int64_t otherwise) {
    const long long most = 1000000000, value = text ? strtoll(text, NULL, 10) : otherwise;
    return value < 0 ? 0 : value < most ? value : most;
}

int64_t cli_run_epochs_wanted(const cli_run *run) {
    int64_t stage = epochs_of(cli_run_setting(run, "opt.n_epochs"), 0), sum = stage;
    for (int number = 2; stage > 0 && number <= 9; number++) {
        char prefix[16], key[32];
        snprintf(prefix, sizeof prefix, "stage%d.", number);
        snprintf(key, sizeof key, "%sopt.n_epochs", prefix);
        bool is_there = false;
        for (int64_t i = 0; i < tg_settings_count(run->settings); i++) {
            is_there |= strncmp(tg_settings_key(run->settings, i), prefix, strlen(prefix)) == 0;
        }
        stage = epochs_of(tg_settings_get(run->settings, key), stage);
        sum += is_there ? stage : 0;
    }
    return sum;
}

const char *cli_run_setting(const cli_run *run, const char *key) {
    return run->settings ? tg_settings_get(run->settings, key) : NULL;
}

const char *cli_run_test_data(const cli_run *run, const char *key) {
    char full[128];
    snprintf(full, sizeof full, CLI_TEST_DATA "%s", key);
    return run->samples ? tg_archive_meta(run->samples, full) : NULL;
}
