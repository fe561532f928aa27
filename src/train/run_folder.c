/* Files of a run. Checkpoints are written under their step number, so that the previous one stays
 * intact until the new one is complete; `recent` is a link to the newest. */
#define _DEFAULT_SOURCE
#include "train/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/file.h"
#include "tgrad/backend.h"
#include "train/config.h"
#include "train/json_line.h"

/* Creates a folder and its missing parents. */
static tg_status make_folder(tg_context *ctx, const char *path) {
    char part[TG_PATH];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(part, 0777); /* the last one reports any error */
        *slash = '/';
    }
    return tg_folder_make(ctx, path);
}

tg_status tg_run_folder_file(const tg_run_folder *folder, const char *name, char *path) {
    const int length = snprintf(path, TG_PATH, "%s/%s", folder->path, name);
    return length < TG_PATH ? TG_OK
                            : tg_fail(folder->ctx, TG_E_ARGUMENT, "%.100s..: the path is too long",
                                      folder->path);
}

tg_status tg_run_folder_open(tg_context *ctx, const char *path, tg_run_folder *out) {
    *out = (tg_run_folder){.ctx = ctx, .lock = -1};
    if (!path || !*path) {
        return tg_fail(ctx, TG_E_ARGUMENT, "run folder: no path given");
    }
    if (snprintf(out->path, sizeof out->path, "%s", path) >= TG_PATH - 64) {
        return tg_fail(ctx, TG_E_ARGUMENT, "%.100s..: the path is too long", path);
    }
    return TG_OK;
}

void tg_run_folder_close(tg_run_folder *folder) {
    if (folder->events && tg_events_close(&folder->events) != TG_OK) {
        tg_log(folder->ctx, TG_LOG_WARN, "%s", tg_context_error(folder->ctx));
    }
    if (folder->lock >= 0) {
        close(folder->lock);
        folder->lock = -1;
    }
}

tg_status tg_run_folder_make(const tg_run_folder *folder) {
    char inner[TG_PATH];
    TG_CALL(make_folder(folder->ctx, folder->path));
    TG_CALL(tg_run_folder_file(folder, "checkpoints", inner));
    return make_folder(folder->ctx, inner);
}

tg_status tg_run_folder_sweep(const tg_run_folder *folder) {
    char inner[TG_PATH];
    TG_CALL(tg_run_folder_file(folder, "checkpoints", inner));
    tg_atomic_sweep(folder->path);
    tg_atomic_sweep(inner);
    return TG_OK;
}

/* ---- checkpoints ---- */

static const char *checkpoint_name(int64_t step, char name[64]) {
    snprintf(name, 64, "step-%010" PRId64 ".safetensors", step);
    return name;
}

tg_status tg_run_folder_checkpoint(const tg_run_folder *folder, int64_t step, char *path) {
    char name[64], inner[80];
    snprintf(inner, sizeof inner, "checkpoints/%s", checkpoint_name(step, name));
    return tg_run_folder_file(folder, inner, path);
}

static int newest_first(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

tg_status tg_run_folder_steps(const tg_run_folder *folder, int64_t **steps, int64_t *count) {
    char path[TG_PATH], text[128];
    int64_t capacity = 0;
    DIR *dir = NULL;
    *steps = NULL;
    *count = 0;
    tg_status status = TG_OK;
    TG_TRY(tg_run_folder_file(folder, "checkpoints", path));
    dir = opendir(path);
    if (!dir) {
        return errno == ENOENT
                   ? TG_OK
                   : tg_fail(folder->ctx, TG_E_IO, "%s: %s", path, tg_system_reason(errno, text));
    }
    for (const struct dirent *entry; (entry = readdir(dir));) {
        int64_t step = 0;
        char name[64];
        const bool has_step = sscanf(entry->d_name, "step-%" SCNd64, &step) == 1;
        if (has_step && strcmp(entry->d_name, checkpoint_name(step, name)) == 0) {
            TG_TRY(tg_mem_grow(folder->ctx, steps, sizeof **steps, *count, 1, &capacity));
            (*steps)[(*count)++] = step;
        }
    }
    closedir(dir);
    if (*count > 0) {
        qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
    }
    return TG_OK;
fail:
    if (dir) {
        closedir(dir);
    }
    TG_FREE(folder->ctx, *steps);
    return status;
}

tg_status tg_run_folder_newest(const tg_run_folder *folder, int64_t *step) {
    int64_t *steps = NULL, count = 0;
    const tg_status status = tg_run_folder_steps(folder, &steps, &count);
    *step = count > 0 ? steps[0] : -1;
    tg_mem_free(folder->ctx, steps);
    return status;
}

tg_status tg_run_folder_keep(const tg_run_folder *folder, int64_t step, int64_t keep) {
    tg_status status = TG_OK;
    char link[TG_PATH], fresh[TG_PATH], target[64], text[128];
    int64_t *steps = NULL, count = 0;
    TG_TRY(tg_run_folder_file(folder, "checkpoints/recent.safetensors", link));
    TG_TRY(tg_run_folder_file(folder, "checkpoints/.recent", fresh));
    unlink(fresh);
    if (symlink(checkpoint_name(step, target), fresh) != 0 ||
        rename(fresh, link) != 0) { /* only a convenience: errors are ignored */
        tg_log(folder->ctx, TG_LOG_WARN, "%s: %s", link, tg_system_reason(errno, text));
    }
    TG_TRY(tg_run_folder_steps(folder, &steps, &count));
    for (int64_t i = 0, kept = 0; i < count; i++) {
        char path[TG_PATH];
        TG_TRY(tg_run_folder_checkpoint(folder, steps[i], path));
        /* Files beyond this step belong to a run that was rewound. */
        if (steps[i] > step || kept++ >= keep) {
            unlink(path);
        }
    }
fail:
    tg_mem_free(folder->ctx, steps);
    return status;
}

/* ---- starting over ---- */

/* A missing file counts as removed. */
static tg_status remove_file(const tg_run_folder *folder, const char *name) {
    char path[TG_PATH], text[128];
    TG_CALL(tg_run_folder_file(folder, name, path));
    if (unlink(path) != 0 && errno != ENOENT) {
        return tg_fail(folder->ctx, TG_E_IO, "%s: cannot remove: %s", path,
                       tg_system_reason(errno, text));
    }
    return TG_OK;
}

static tg_status remove_events(const tg_run_folder *folder) {
    char path[TG_PATH];
    tg_status status = tg_run_folder_file(folder, "events", path);
    DIR *dir = status == TG_OK ? opendir(path) : NULL;
    for (const struct dirent *entry; dir && status == TG_OK && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            char name[TG_PATH];
            snprintf(name, sizeof name, "events/%s", entry->d_name);
            status = remove_file(folder, name);
        }
    }
    if (dir) {
        closedir(dir);
    }
    return status;
}

/* Checkpoints go first, the newest of them last: if killed in between, the folder still holds the
 * old run, or one that never saved. */
tg_status tg_run_folder_clear(const tg_run_folder *folder) {
    static const char *const names[] = {"checkpoints/recent.safetensors",
                                        "samples.safetensors",
                                        "projections.jsonl",
                                        "stable_ranks.jsonl",
                                        "metrics.jsonl",
                                        "metrics.csv"};
    tg_status status = TG_OK;
    int64_t *steps = NULL, count = 0;
    TG_TRY(remove_file(folder, "checkpoints/best.safetensors"));
    TG_TRY(tg_run_folder_steps(folder, &steps, &count));
    for (int64_t i = count; i-- > 0;) {
        char name[64], inner[80];
        snprintf(inner, sizeof inner, "checkpoints/%s", checkpoint_name(steps[i], name));
        TG_TRY(remove_file(folder, inner));
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        TG_TRY(remove_file(folder, names[i]));
    }
    TG_TRY(remove_events(folder));
fail:
    tg_mem_free(folder->ctx, steps);
    return status;
}

/* ---- metrics ---- */

/* Rewrites a text file with the lines that `keeps` accepts. */
static tg_status filter_lines(const tg_run_folder *folder, const char *name, int64_t last,
                              tg_line_filter *keeps) {
    char path[TG_PATH];
    tg_atomic_file writer = {0};
    void *bytes = NULL;
    size_t size = 0;
    int64_t damaged = 0;
    tg_status status = TG_OK;
    TG_TRY(tg_run_folder_file(folder, name, path));
    if (access(path, F_OK) != 0) {
        return TG_OK;
    }
    TG_TRY(tg_file_read(folder->ctx, path, SIZE_MAX / 2, &bytes, &size));
    size = tg_lines_keep(bytes, size, keeps, last, &damaged);
    if (damaged > 0) {
        tg_log(folder->ctx, TG_LOG_WARN, "%s: lines with NUL bytes are left out: %" PRId64, path,
               damaged);
    }
    TG_TRY(tg_atomic_open(folder->ctx, path, &writer));
    TG_TRY(tg_atomic_write(&writer, bytes, size));
    status = tg_atomic_commit(&writer);
    writer = (tg_atomic_file){0};
fail:
    if (writer.ctx) {
        tg_atomic_abort(&writer);
    }
    tg_mem_free(folder->ctx, bytes);
    return status;
}

static bool keeps_csv(const char *line, int64_t epoch) {
    int64_t found = 0;
    return strncmp(line, "epoch,", 6) == 0 ||
           (sscanf(line, "%" SCNd64, &found) == 1 && found <= epoch);
}

static bool keeps_step(const char *line, int64_t step) {
    int64_t found = 0;
    return sscanf(line, "{\"step\":%" SCNd64, &found) == 1 && found <= step;
}

tg_status tg_run_folder_rewind(const tg_run_folder *folder, int64_t epoch, int64_t step) {
    TG_CALL(filter_lines(folder, "metrics.jsonl", epoch, tg_line_keeps_epoch));
    TG_CALL(filter_lines(folder, "metrics.csv", epoch, keeps_csv));
    TG_CALL(filter_lines(folder, "stable_ranks.jsonl", epoch, tg_line_keeps_epoch));
    return filter_lines(folder, "projections.jsonl", step, keeps_step);
}

/* Allocates room for any line about an epoch; the caller frees text. */
static tg_status make_line(tg_context *ctx, const tg_train_epoch *e, tg_line *out) {
    *out = (tg_line){.capacity = 4096};
    for (int i = 0; i < e->tests; i++) {
        out->capacity += 5 * TG_GRID_TEXT + 40 * (size_t)e->test[i].channels + 200;
    }
    return TG_ALLOC(ctx, TG_MEM_OTHER, out->text, out->capacity);
}

static void add_list(tg_line *l, const char *key, const double *value, int64_t count) {
    tg_line_add(l, "\"%s\":[", key);
    for (int64_t i = 0; i < count; i++) {
        tg_line_add(l, "%s", i ? "," : "");
        tg_line_real(l, value[i]);
    }
    tg_line_add(l, "]");
}

/* "16":{"l2":..,"h1":..} */
static void add_errors(tg_line *l, const tg_test_errors *errors) {
    tg_line_add(l, "\"%s\":{\"l2\":", errors->grid);
    tg_line_real(l, errors->l2);
    tg_line_add(l, ",\"h1\":");
    tg_line_real(l, errors->h1);
    if (errors->channels > 1) {
        tg_line_add(l, ",");
        add_list(l, "l2_channels", errors->l2_channels, errors->channels);
        tg_line_add(l, ",");
        add_list(l, "h1_channels", errors->h1_channels, errors->channels);
    }
    tg_line_add(l, "}");
}

/* ,"quantiles":{"16":[..]}: minimum, quartiles and maximum of the samples' L2 errors */
static void add_quantiles(tg_line *l, const tg_train_epoch *e) {
    tg_line_add(l, ",\"quantiles\":{");
    for (int i = 0; i < e->test_count; i++) {
        tg_line_add(l, "%s", i ? "," : "");
        add_list(l, e->test[i].grid, e->test[i].l2_quantiles, TG_QUANTILES);
    }
    tg_line_add(l, "}");
}

static void add_time(tg_line *l, const tg_train_time *time) {
    const struct {
        const char *name;
        double seconds;
    } parts[] = {{"prepare", time->prepare},
                 {"steps", time->steps},
                 {"data", time->data},
                 {"evaluation", time->evaluation},
                 {"checkpoint", time->checkpoint}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        tg_line_add(l, "%s\"%s\":", i ? "," : ",\"time\":{", parts[i].name);
        tg_line_real(l, parts[i].seconds);
    }
    tg_line_add(l, "}");
}

/* Every line names the backend: a run may be resumed on another one. */
static void json_line(const tg_context *ctx, const tg_train_epoch *e, tg_line *l) {
    tg_line_add(l, "{\"epoch\":%" PRId64 ",\"step\":%" PRId64 ",\"lr\":", e->epoch, e->step);
    tg_line_real(l, e->learning_rate);
    tg_line_add(l, ",\"train\":{\"loss\":");
    tg_line_real(l, e->train_loss);
    const int last = e->test_count - 1;
    const bool validates = last >= 0 && strcmp(e->test[last].grid, TG_VALIDATION) == 0;
    tg_line_add(l, "},\"test\":{");
    for (int i = 0; i < e->test_count - validates; i++) {
        tg_line_add(l, "%s", i ? "," : "");
        add_errors(l, &e->test[i]);
    }
    tg_line_add(l, "}");
    if (validates) {
        tg_line_add(l, ",");
        add_errors(l, &e->test[last]);
    }
    tg_line_add(l, ",\"step_ms\":");
    tg_line_real(l, e->step_ms);
    tg_line_add(l, ",\"seconds\":");
    tg_line_real(l, e->seconds);
    tg_line_add(l, ",\"skipped\":%" PRId64 ",\"loss_scale\":", e->skipped);
    tg_line_real(l, e->loss_scale);
    tg_line_add(l, ",\"overflows\":%" PRId64, e->overflows);
    tg_line_add(l, ",\"memory\":{\"peak\":%zu", e->memory.peak_total);
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        tg_line_add(l, ",\"%s\":%zu", tg_mem_category_name((tg_mem_category)c), e->memory.peak[c]);
    }
    tg_line_add(l, "},\"backend\":\"%s\"", tg_backend_name(ctx));
    if (*tg_backend_math(ctx)) {
        tg_line_add(l, ",\"math\":\"%s\"", tg_backend_math(ctx));
    }
    add_time(l, &e->time);
    if (e->test_count > 0) {
        add_quantiles(l, e);
    }
    tg_line_add(l, "}\n");
}

static void csv_header(const tg_train_epoch *e, tg_line *l) {
    tg_line_add(l, "epoch,step,lr,train_loss,step_ms,peak_bytes");
    for (int i = 0; i < e->tests; i++) {
        tg_line_add(l, ",l2_%s,h1_%s", e->test[i].grid, e->test[i].grid);
    }
    tg_line_add(l, "\n");
}

/* A row for the file's header. A later stage may have other tests, and some epochs have none:
 * fields without a value stay empty. */
static void csv_row(const tg_train_epoch *e, const char *header, tg_line *l) {
    tg_line_add(l, "%" PRId64 ",%" PRId64 ",%.9g,%.9g,%.6g,%zu", e->epoch, e->step,
                e->learning_rate, e->train_loss, e->step_ms, e->memory.peak_total);
    for (const char *at = strstr(header, ",l2_"); at; at = strchr(at + 1, ',')) {
        const size_t length = strcspn(at + 4, ",\n");
        tg_line_add(l, ",");
        for (int i = 0; i < e->test_count; i++) {
            const tg_test_errors *test = &e->test[i];
            if (strlen(test->grid) == length && memcmp(test->grid, at + 4, length) == 0) {
                tg_line_add(l, "%.9g", at[1] == 'l' ? test->l2 : test->h1);
            }
        }
    }
    tg_line_add(l, "\n");
}

tg_status tg_run_folder_append(const tg_run_folder *folder, const char *name, const char *text,
                               size_t size) {
    char path[TG_PATH];
    TG_CALL(tg_run_folder_file(folder, name, path));
    return tg_file_append(folder->ctx, path, text, size);
}

tg_status tg_run_folder_sync(const tg_run_folder *folder) {
    static const char *const names[] = {"metrics.jsonl", "metrics.csv", "projections.jsonl",
                                        "stable_ranks.jsonl"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[TG_PATH], text[128];
        tg_status status = tg_run_folder_file(folder, names[i], path);
        const int fd = status == TG_OK ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        const int error = fd >= 0 ? tg_file_sync(fd) : 0; /* a missing file has no lines */
        if (fd >= 0) {
            close(fd);
        }
        if (error != 0 && error != EINVAL) { /* EINVAL: the file cannot be synced */
            status = tg_fail(folder->ctx, TG_E_IO, "%s: cannot sync: %s", path,
                             tg_system_reason(error, text));
        }
        if (status != TG_OK) {
            return status;
        }
    }
    return TG_OK;
}

static tg_status log_events(tg_run_folder *folder, const tg_train_epoch *e) {
    char path[TG_PATH], tag[TG_GRID_TEXT + 16];
    if (!folder->events) {
        TG_CALL(tg_run_folder_file(folder, "events", path));
        TG_CALL(tg_events_open(folder->ctx, path, &folder->events));
    }
    TG_CALL(tg_events_scalar(folder->events, "train/loss", e->epoch, e->train_loss));
    TG_CALL(tg_events_scalar(folder->events, "train/learning_rate", e->epoch, e->learning_rate));
    if (e->loss_scale != 1.0) {
        TG_CALL(tg_events_scalar(folder->events, "train/loss_scale", e->epoch, e->loss_scale));
    }
    TG_CALL(tg_events_scalar(folder->events, "time/step_ms", e->epoch, e->step_ms));
    TG_CALL(
        tg_events_scalar(folder->events, "memory/peak", e->epoch, (double)e->memory.peak_total));
    for (int i = 0; i < e->test_count; i++) {
        snprintf(tag, sizeof tag, "test/l2_%s", e->test[i].grid);
        TG_CALL(tg_events_scalar(folder->events, tag, e->epoch, e->test[i].l2));
        snprintf(tag, sizeof tag, "test/h1_%s", e->test[i].grid);
        TG_CALL(tg_events_scalar(folder->events, tag, e->epoch, e->test[i].h1));
    }
    return tg_events_flush(folder->events);
}

/* The first line of a file; "" if there is none. */
static tg_status read_header(tg_context *ctx, const char *path, tg_line *l) {
    char text[128];
    FILE *file = fopen(path, "r");
    if (!file && errno != ENOENT) {
        return tg_fail(ctx, TG_E_IO, "%s: cannot open: %s", path, tg_system_reason(errno, text));
    }
    if (!file || !fgets(l->text, (int)l->capacity, file)) {
        l->text[0] = '\0';
    }
    if (file) {
        fclose(file);
    }
    l->used = strlen(l->text);
    return TG_OK;
}

static tg_status log_csv(const tg_run_folder *folder, const tg_train_epoch *e) {
    tg_status status = TG_OK;
    char path[TG_PATH];
    tg_line header = {0}, row = {0};
    TG_TRY(make_line(folder->ctx, e, &header));
    TG_TRY(make_line(folder->ctx, e, &row));
    TG_TRY(tg_run_folder_file(folder, "metrics.csv", path));
    TG_TRY(read_header(folder->ctx, path, &header));
    if (header.used == 0) {
        csv_header(e, &header);
        tg_line_add(&row, "%s", header.text);
    }
    csv_row(e, header.text, &row);
    TG_TRY(tg_run_folder_append(folder, "metrics.csv", row.text, row.used));
fail:
    TG_FREE(folder->ctx, header.text);
    TG_FREE(folder->ctx, row.text);
    return status;
}

tg_status tg_run_folder_log(tg_run_folder *folder, const tg_train_epoch *epoch) {
    tg_status status = TG_OK;
    tg_line json = {0};
    TG_TRY(make_line(folder->ctx, epoch, &json));
    json_line(folder->ctx, epoch, &json);
    TG_TRY(tg_run_folder_append(folder, "metrics.jsonl", json.text, json.used));
    TG_TRY(log_csv(folder, epoch));
    TG_TRY(log_events(folder, epoch));
fail:
    TG_FREE(folder->ctx, json.text);
    return status;
}
