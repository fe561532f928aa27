/* Files of a run. Checkpoints are written under their step number, so that the one before stays
 * whole until the new one is; `recent` is a link to the newest. */
#define _DEFAULT_SOURCE
#include "train/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/file.h"
#include "tgrad/backend.h"

/* Makes a folder and those above it that are missing. */
static tg_status make_folder(tg_context *ctx, const char *path) {
    struct stat facts;
    char part[TG_PATH];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(part, 0777); /* what is wrong shows at the last one */
        *slash = '/';
    }
    if (mkdir(path, 0777) == 0) {
        return TG_OK;
    }
    if (errno == EEXIST && stat(path, &facts) == 0 && S_ISDIR(facts.st_mode)) {
        return TG_OK;
    }
    return tg_fail(ctx, TG_E_IO, "%s: cannot make this folder: %s", path, strerror(errno));
}

tg_status tg_run_folder_file(const tg_run_folder *folder, const char *name, char *path) {
    const int length = snprintf(path, TG_PATH, "%s/%s", folder->path, name);
    return length < TG_PATH ? TG_OK
                            : tg_fail(folder->ctx, TG_E_ARGUMENT, "%.100s..: the path is too long",
                                      folder->path);
}

tg_status tg_run_folder_open(tg_context *ctx, const char *path, tg_run_folder *out) {
    *out = (tg_run_folder){.ctx = ctx};
    tg_status status = TG_OK;
    char inner[TG_PATH];
    if (snprintf(out->path, sizeof out->path, "%s", path) >= TG_PATH - 64) {
        return tg_fail(ctx, TG_E_ARGUMENT, "%.100s..: the path is too long", path);
    }
    TG_TRY(make_folder(ctx, path));
    TG_TRY(tg_run_folder_file(out, "checkpoints", inner));
    TG_TRY(make_folder(ctx, inner));
fail:
    return status;
}

void tg_run_folder_close(tg_run_folder *folder) {
    if (folder->events && tg_events_close(&folder->events) != TG_OK) {
        tg_log(folder->ctx, TG_LOG_WARN, "%s", tg_context_error(folder->ctx));
    }
}

/* ---- checkpoints ---- */

tg_status tg_run_folder_checkpoint(const tg_run_folder *folder, int64_t step, char *path) {
    char name[64];
    snprintf(name, sizeof name, "checkpoints/step-%010" PRId64 ".safetensors", step);
    return tg_run_folder_file(folder, name, path);
}

static int newest_first(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

tg_status tg_run_folder_steps(const tg_run_folder *folder, int64_t *steps, int capacity,
                              int *count) {
    char path[TG_PATH];
    *count = 0;
    tg_status status = tg_run_folder_file(folder, "checkpoints", path);
    if (status != TG_OK) {
        return status;
    }
    DIR *dir = opendir(path);
    if (!dir) {
        return tg_fail(folder->ctx, TG_E_IO, "%s: %s", path, strerror(errno));
    }
    for (const struct dirent *entry; (entry = readdir(dir));) {
        int64_t step = 0;
        int end = 0;
        if (sscanf(entry->d_name, "step-%" SCNd64 ".safetensors%n", &step, &end) == 1 && end > 0 &&
            entry->d_name[end] == '\0' && *count < capacity) {
            steps[(*count)++] = step;
        }
    }
    closedir(dir);
    qsort(steps, (size_t)*count, sizeof *steps, newest_first);
    return TG_OK;
}

tg_status tg_run_folder_keep(const tg_run_folder *folder, int64_t step, int64_t keep) {
    enum { MOST = 4096 };
    tg_status status = TG_OK;
    char link[TG_PATH], fresh[TG_PATH], target[64];
    int64_t *steps = NULL;
    int count = 0;
    snprintf(target, sizeof target, "step-%010" PRId64 ".safetensors", step);
    TG_TRY(tg_run_folder_file(folder, "checkpoints/recent.safetensors", link));
    TG_TRY(tg_run_folder_file(folder, "checkpoints/.recent", fresh));
    unlink(fresh);
    if (symlink(target, fresh) != 0 || rename(fresh, link) != 0) { /* a convenience, no more */
        tg_log(folder->ctx, TG_LOG_WARN, "%s: %s", link, strerror(errno));
    }
    TG_TRY(TG_ALLOC(folder->ctx, TG_MEM_OTHER, steps, MOST));
    TG_TRY(tg_run_folder_steps(folder, steps, MOST, &count));
    for (int i = 0, kept = 0; i < count; i++) {
        char path[TG_PATH];
        TG_TRY(tg_run_folder_checkpoint(folder, steps[i], path));
        /* Files beyond this step are of a run that was rewound. */
        if (steps[i] > step || kept++ >= keep) {
            unlink(path);
        }
    }
fail:
    tg_mem_free(folder->ctx, steps);
    return status;
}

/* ---- metrics ---- */

/* Rewrites a text file with the lines that `keeps` accepts; the last one may be cut off and is then
 * dropped. */
static tg_status filter_lines(const tg_run_folder *folder, const char *name, int64_t last,
                              bool (*keeps)(const char *line, int64_t last)) {
    char path[TG_PATH];
    tg_atomic_file writer = {0};
    void *bytes = NULL;
    size_t size = 0;
    tg_status status = TG_OK;
    TG_TRY(tg_run_folder_file(folder, name, path));
    if (access(path, F_OK) != 0) {
        return TG_OK;
    }
    TG_TRY(tg_file_read(folder->ctx, path, TG_MEM_OTHER, SIZE_MAX / 2, &bytes, &size));
    TG_TRY(tg_atomic_open(folder->ctx, path, &writer));
    char *text = bytes;
    for (size_t begin = 0; begin < size;) {
        char *end = memchr(text + begin, '\n', size - begin);
        if (!end) {
            break;
        }
        *end = '\0';
        const size_t length = strlen(text + begin);
        const bool kept = keeps(text + begin, last);
        *end = '\n';
        if (kept) {
            TG_TRY(tg_atomic_write(&writer, text + begin, length + 1));
        }
        begin = (size_t)(end - text) + 1;
    }
    status = tg_atomic_commit(&writer);
    writer = (tg_atomic_file){0};
fail:
    if (writer.ctx) {
        tg_atomic_abort(&writer);
    }
    tg_mem_free(folder->ctx, bytes);
    return status;
}

static bool keeps_json(const char *line, int64_t epoch) {
    int64_t found = 0;
    return sscanf(line, "{\"epoch\":%" SCNd64, &found) == 1 && found <= epoch;
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
    tg_status status = TG_OK;
    TG_TRY(filter_lines(folder, "metrics.jsonl", epoch, keeps_json));
    TG_TRY(filter_lines(folder, "metrics.csv", epoch, keeps_csv));
    TG_TRY(filter_lines(folder, "projections.jsonl", step, keeps_step));
fail:
    return status;
}

/* A growing line of text. */
typedef struct line {
    char text[4096];
    size_t used;
} line;

static void add(line *l, const char *format, ...) TG_PRINTF(2, 3);

static void add(line *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int wrote = vsnprintf(l->text + l->used, sizeof l->text - l->used, format, args);
    va_end(args);
    l->used += wrote > 0 ? (size_t)wrote : 0;
    l->used = l->used < sizeof l->text ? l->used : sizeof l->text - 1;
}

/* A number as JSON has it: no NaN. */
static void add_real(line *l, double value) {
    if (isfinite(value)) {
        add(l, "%.9g", value);
    } else {
        add(l, "null");
    }
}

static void add_ranks(line *l, const tg_optim_ranks *r) {
    add(l,
        ",\"ranks\":{\"values\":%" PRId64 ",\"kept\":%" PRId64 ",\"entries\":%" PRId64
        ",\"bytes\":%zu,\"budget\":%zu,\"error\":",
        r->values, r->kept, r->entries, r->bytes, r->budget);
    add_real(l, r->error);
    add(l, ",\"bound\":");
    add_real(l, r->bound);
    add(l, "}");
}

/* The backend is named in every line: a run may be resumed on another one. */
static void json_line(const tg_context *ctx, const tg_train_epoch *e, line *l) {
    add(l, "{\"epoch\":%" PRId64 ",\"step\":%" PRId64 ",\"lr\":", e->epoch, e->step);
    add_real(l, e->learning_rate);
    add(l, ",\"train\":{\"loss\":");
    add_real(l, e->train_loss);
    add(l, "},\"test\":{");
    for (int i = 0; i < e->test_count; i++) {
        add(l, "%s\"%s\":{\"l2\":", i ? "," : "", e->test[i].grid);
        add_real(l, e->test[i].l2);
        add(l, ",\"h1\":");
        add_real(l, e->test[i].h1);
        add(l, "}");
    }
    add(l, "},\"step_ms\":");
    add_real(l, e->step_ms);
    add(l, ",\"seconds\":");
    add_real(l, e->seconds);
    add(l, ",\"skipped\":%" PRId64 ",\"loss_scale\":", e->skipped);
    add_real(l, e->loss_scale);
    add(l, ",\"overflows\":%" PRId64, e->overflows);
    if (e->ranks.params > 0) {
        add_ranks(l, &e->ranks);
    }
    add(l, ",\"memory\":{\"peak\":%zu", e->memory.peak_total);
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        add(l, ",\"%s\":%zu", tg_mem_category_name((tg_mem_category)c), e->memory.peak[c]);
    }
    add(l, "},\"backend\":\"%s\"", tg_backend_name(ctx));
    if (*tg_backend_math(ctx)) {
        add(l, ",\"math\":\"%s\"", tg_backend_math(ctx));
    }
    add(l, "}\n");
}

static void csv_line(const tg_train_epoch *e, bool has_header, line *l) {
    if (!has_header) {
        add(l, "epoch,step,lr,train_loss,step_ms,peak_bytes");
        for (int i = 0; i < e->test_count; i++) {
            add(l, ",l2_%s,h1_%s", e->test[i].grid, e->test[i].grid);
        }
        add(l, "\n");
    }
    add(l, "%" PRId64 ",%" PRId64 ",%.9g,%.9g,%.6g,%zu", e->epoch, e->step, e->learning_rate,
        e->train_loss, e->step_ms, e->memory.peak_total);
    for (int i = 0; i < e->test_count; i++) {
        add(l, ",%.9g,%.9g", e->test[i].l2, e->test[i].h1);
    }
    add(l, "\n");
}

tg_status tg_run_folder_append(const tg_run_folder *folder, const char *name, const char *text,
                               size_t size) {
    char path[TG_PATH];
    tg_status status = tg_run_folder_file(folder, name, path);
    if (status != TG_OK) {
        return status;
    }
    FILE *file = fopen(path, "a");
    bool is_good = file && fwrite(text, 1, size, file) == size;
    is_good = file && fclose(file) == 0 && is_good;
    return is_good ? TG_OK : tg_fail(folder->ctx, TG_E_IO, "%s: %s", path, strerror(errno));
}

static tg_status log_events(tg_run_folder *folder, const tg_train_epoch *e) {
    tg_status status = TG_OK;
    char path[TG_PATH], tag[TG_GRID_TEXT + 16];
    if (!folder->events) {
        TG_TRY(tg_run_folder_file(folder, "events", path));
        TG_TRY(tg_events_open(folder->ctx, path, &folder->events));
    }
    TG_TRY(tg_events_scalar(folder->events, "train/loss", e->epoch, e->train_loss));
    TG_TRY(tg_events_scalar(folder->events, "train/learning_rate", e->epoch, e->learning_rate));
    if (e->loss_scale != 1.0) {
        TG_TRY(tg_events_scalar(folder->events, "train/loss_scale", e->epoch, e->loss_scale));
    }
    if (e->ranks.params > 0) {
        TG_TRY(tg_events_scalar(folder->events, "ranks/error", e->epoch, e->ranks.error));
        TG_TRY(tg_events_scalar(folder->events, "ranks/values", e->epoch, (double)e->ranks.values));
    }
    TG_TRY(tg_events_scalar(folder->events, "time/step_ms", e->epoch, e->step_ms));
    TG_TRY(tg_events_scalar(folder->events, "memory/peak", e->epoch, (double)e->memory.peak_total));
    for (int i = 0; i < e->test_count; i++) {
        snprintf(tag, sizeof tag, "test/l2_%s", e->test[i].grid);
        TG_TRY(tg_events_scalar(folder->events, tag, e->epoch, e->test[i].l2));
        snprintf(tag, sizeof tag, "test/h1_%s", e->test[i].grid);
        TG_TRY(tg_events_scalar(folder->events, tag, e->epoch, e->test[i].h1));
    }
    TG_TRY(tg_events_flush(folder->events));
fail:
    return status;
}

tg_status tg_run_folder_log(tg_run_folder *folder, const tg_train_epoch *epoch) {
    tg_status status = TG_OK;
    char path[TG_PATH];
    line json = {.used = 0}, csv = {.used = 0};
    json_line(folder->ctx, epoch, &json);
    TG_TRY(tg_run_folder_append(folder, "metrics.jsonl", json.text, json.used));
    TG_TRY(tg_run_folder_file(folder, "metrics.csv", path));
    csv_line(epoch, access(path, F_OK) == 0, &csv);
    TG_TRY(tg_run_folder_append(folder, "metrics.csv", csv.text, csv.used));
    TG_TRY(log_events(folder, epoch));
fail:
    return status;
}
