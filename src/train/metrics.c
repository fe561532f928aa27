/* The text files of a run: metrics.jsonl, metrics.csv, projections.jsonl, stable_ranks.jsonl, and
 * the scalars of TensorBoard. */
#include "train/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/file.h"
#include "tgrad/backend.h"

/* ---- lines of a run that goes back to an earlier epoch ---- */

bool tg_line_keeps_epoch(const char *line, int64_t last) {
    int64_t epoch = 0;
    return sscanf(line, "{\"epoch\":%" SCNd64, &epoch) == 1 && epoch <= last;
}

size_t tg_lines_keep(char *text, size_t size, tg_line_filter *keeps, int64_t last,
                     int64_t *damaged) {
    size_t kept = 0;
    *damaged = 0;
    for (size_t begin = 0; begin < size;) {
        char *end = memchr(text + begin, '\n', size - begin);
        if (!end) {
            break;
        }
        const size_t length = (size_t)(end - text) - begin;
        *end = '\0';
        const bool is_whole = strlen(text + begin) == length;
        const bool is_kept = is_whole && keeps(text + begin, last);
        *end = '\n';
        *damaged += !is_whole;
        if (is_kept) {
            memmove(text + kept, text + begin, length + 1);
            kept += length + 1;
        }
        begin += length + 1;
    }
    return kept;
}

/* Rewrites a text file with the lines that `keeps` accepts. */
static tg_status filter_lines(const tg_run_folder *folder, const char *name, int64_t last,
                              tg_line_filter *keeps) {
    char path[TG_PATH];
    tg_atomic_file writer = {0};
    void *bytes = NULL;
    size_t size = 0;
    int64_t damaged = 0;
    tg_status status = TG_OK;
    if (!tg_run_folder_has(folder, name, path)) {
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

tg_status tg_run_folder_sync(const tg_run_folder *folder) {
    static const char *const names[] = {"metrics.jsonl", "metrics.csv", "projections.jsonl",
                                        "stable_ranks.jsonl"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[TG_PATH];
        const int fd = open(tg_run_folder_file(folder, names[i], path), O_RDONLY | O_CLOEXEC);
        const int error = fd >= 0 ? tg_file_sync(fd) : 0; /* a missing file has no lines */
        if (fd >= 0) {
            close(fd);
        }
        if (error != 0 && error != EINVAL) { /* EINVAL: the file cannot be synced */
            return tg_fail_system(folder->ctx, path, "sync", error);
        }
    }
    return TG_OK;
}

/* ---- composing lines ---- */

/* A line that grows as needed; the first failure stays. */
typedef struct line {
    tg_context *ctx;
    char *text;
    int64_t capacity, used;
    tg_status status;
} line;

static void add(line *l, const char *format, ...) TG_PRINTF(2, 3);

static void add(line *l, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int length = vsnprintf(NULL, 0, format, args);
    if (l->status == TG_OK) {
        l->status = tg_mem_grow(l->ctx, &l->text, 1, l->used, length + 1, &l->capacity);
    }
    if (l->status == TG_OK) {
        vsnprintf(l->text + l->used, (size_t)length + 1, format, again);
        l->used += length;
    }
    va_end(again);
    va_end(args);
}

/* A comma, except after an opening bracket. */
static void separate(line *l) {
    if (l->used > 0 && !strchr("{[", l->text[l->used - 1])) {
        add(l, ",");
    }
}

static void add_key(line *l, const char *key) {
    separate(l);
    add(l, "\"%s\":", key);
}

/* A key and the bracket that opens its value. */
static void open_key(line *l, const char *key, const char *bracket) {
    add_key(l, key);
    add(l, "%s", bracket);
}

/* JSON has no numbers that are not finite. */
static void add_number(line *l, double value) {
    if (isfinite(value)) {
        add(l, "%.9g", value);
    } else {
        add(l, "null");
    }
}

static void add_real(line *l, const char *key, double value) {
    add_key(l, key);
    add_number(l, value);
}

static void add_count(line *l, const char *key, int64_t value) {
    add_key(l, key);
    add(l, "%" PRId64, value);
}

static void add_text(line *l, const char *key, const char *text) {
    add_key(l, key);
    add(l, "\"%s\"", text);
}

static void add_list(line *l, const char *key, const double *value, int64_t count) {
    open_key(l, key, "[");
    for (int64_t i = 0; i < count; i++) {
        separate(l);
        add_number(l, value[i]);
    }
    add(l, "]");
}

/* Appends the line to a file of the folder and frees it. */
static tg_status write_line(line *l, const tg_run_folder *folder, const char *name) {
    char path[TG_PATH];
    tg_run_folder_file(folder, name, path);
    const tg_status status = l->status != TG_OK
                                 ? l->status
                                 : tg_file_append(folder->ctx, path, l->text, (size_t)l->used);
    TG_FREE(l->ctx, l->text);
    return status;
}

/* ---- metrics.jsonl ---- */

/* "16":{"l2":..,"h1":..} */
static void add_errors(line *l, const tg_test_errors *errors) {
    open_key(l, errors->grid, "{");
    add_real(l, "l2", errors->l2);
    add_real(l, "h1", errors->h1);
    if (errors->channels > 1) {
        add_list(l, "l2_channels", errors->l2_channels, errors->channels);
        add_list(l, "h1_channels", errors->h1_channels, errors->channels);
    }
    add(l, "}");
}

/* Every line names the backend: a run may be resumed on another one. The quantiles are minimum,
 * quartiles and maximum of the samples' L2 errors. */
static tg_status log_json(const tg_run_folder *folder, const tg_train_epoch *e) {
    line l = {.ctx = folder->ctx};
    const int last = e->test_count - 1;
    const bool validates = last >= 0 && strcmp(e->test[last].grid, TG_VALIDATION) == 0;
    add(&l, "{");
    add_count(&l, "epoch", e->epoch);
    add_count(&l, "step", e->step);
    add_real(&l, "lr", e->learning_rate);
    open_key(&l, "train", "{");
    add_real(&l, "loss", e->train_loss);
    add(&l, "}");
    open_key(&l, "test", "{");
    for (int i = 0; i < e->test_count - validates; i++) {
        add_errors(&l, &e->test[i]);
    }
    add(&l, "}");
    if (validates) {
        add_errors(&l, &e->test[last]);
    }
    add_real(&l, "step_ms", e->step_ms);
    add_real(&l, "seconds", e->seconds);
    add_count(&l, "skipped", e->skipped);
    add_real(&l, "loss_scale", e->loss_scale);
    add_count(&l, "overflows", e->overflows);
    open_key(&l, "memory", "{");
    add_count(&l, "peak", (int64_t)e->memory.peak_total);
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        add_count(&l, tg_mem_category_name((tg_mem_category)c), (int64_t)e->memory.peak[c]);
    }
    add(&l, "}");
    add_text(&l, "backend", tg_backend_name(folder->ctx));
    if (*tg_backend_math(folder->ctx)) {
        add_text(&l, "math", tg_backend_math(folder->ctx));
    }
    open_key(&l, "time", "{");
    add_real(&l, "prepare", e->time.prepare);
    add_real(&l, "steps", e->time.steps);
    add_real(&l, "data", e->time.data);
    add_real(&l, "evaluation", e->time.evaluation);
    add_real(&l, "checkpoint", e->time.checkpoint);
    add(&l, "}");
    if (e->test_count > 0) {
        open_key(&l, "quantiles", "{");
        for (int i = 0; i < e->test_count; i++) {
            add_list(&l, e->test[i].grid, e->test[i].l2_quantiles, TG_QUANTILES);
        }
        add(&l, "}");
    }
    add(&l, "}\n");
    return write_line(&l, folder, "metrics.jsonl");
}

/* ---- metrics.csv ---- */

/* The first line of a file; empty if there is none. */
static tg_status read_header(const tg_run_folder *folder, const char *path, line *l) {
    char text[128];
    FILE *file = fopen(path, "r");
    if (!file && errno != ENOENT) {
        return tg_fail_system(folder->ctx, path, "open", errno);
    }
    bool is_whole = !file;
    while (!is_whole && fgets(text, sizeof text, file)) {
        add(l, "%s", text);
        is_whole = strchr(text, '\n') != NULL;
    }
    if (file) {
        fclose(file);
    }
    return l->status;
}

static void add_header(line *l, const tg_train_epoch *e) {
    add(l, "epoch,step,lr,train_loss,step_ms,peak_bytes");
    for (int i = 0; i < e->tests; i++) {
        add(l, ",l2_%s,h1_%s", e->test[i].grid, e->test[i].grid);
    }
    add(l, "\n");
}

/* A row for the file's header. A later stage may have other tests, and some epochs have none:
 * fields without a value stay empty. */
static void add_row(line *l, const tg_train_epoch *e, const char *header) {
    add(l, "%" PRId64 ",%" PRId64 ",%.9g,%.9g,%.6g,%zu", e->epoch, e->step, e->learning_rate,
        e->train_loss, e->step_ms, e->memory.peak_total);
    for (const char *at = strstr(header, ",l2_"); at; at = strchr(at + 1, ',')) {
        const size_t length = strcspn(at + 4, ",\n");
        add(l, ",");
        for (int i = 0; i < e->test_count; i++) {
            const tg_test_errors *test = &e->test[i];
            if (strlen(test->grid) == length && memcmp(test->grid, at + 4, length) == 0) {
                add(l, "%.9g", at[1] == 'l' ? test->l2 : test->h1);
            }
        }
    }
    add(l, "\n");
}

static tg_status log_csv(const tg_run_folder *folder, const tg_train_epoch *e) {
    tg_status status = TG_OK;
    char path[TG_PATH];
    line header = {.ctx = folder->ctx}, row = {.ctx = folder->ctx};
    TG_TRY(read_header(folder, tg_run_folder_file(folder, "metrics.csv", path), &header));
    if (header.used == 0) {
        add_header(&header, e);
        TG_TRY(header.status);
        add(&row, "%s", header.text);
    }
    add_row(&row, e, header.text);
    TG_TRY(write_line(&row, folder, "metrics.csv"));
fail:
    TG_FREE(folder->ctx, header.text);
    return status;
}

/* ---- TensorBoard ---- */

static tg_status log_events(tg_run_folder *folder, const tg_train_epoch *e) {
    char path[TG_PATH], tag[TG_GRID_TEXT + 16];
    if (!folder->events) {
        tg_run_folder_file(folder, "events", path);
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

tg_status tg_run_folder_log(tg_run_folder *folder, const tg_train_epoch *epoch) {
    TG_CALL(log_json(folder, epoch));
    TG_CALL(log_csv(folder, epoch));
    return log_events(folder, epoch);
}

/* ---- projections.jsonl: a line for every refresh ---- */

static void add_projection(line *l, const char *name, const tg_optim_projection *p) {
    separate(l);
    add(l, "{");
    add_text(l, "name", name);
    open_key(l, "ranks", "[");
    for (int d = 0; d < p->ranks.ndim; d++) {
        separate(l);
        add(l, "%" PRId64, p->ranks.dim[d]);
    }
    add(l, "]");
    add_count(l, "kept", p->kept);
    add_count(l, "values", p->values);
    add_count(l, "entries", p->entries);
    add_count(l, "bytes", (int64_t)p->bytes);
    add_real(l, "error", p->error);
    add(l, "}");
}

tg_status tg_trainer_log_projections(tg_trainer *t) {
    const int64_t refreshes = tg_optim_get_stats(t->optim).refreshes;
    const int count = tg_fno_param_count(t->model->fno);
    double squares = 0.0;
    int projected = 0;
    size_t bytes = 0;
    line l = {.ctx = t->ctx};
    if (refreshes == t->refreshes) {
        return TG_OK;
    }
    t->refreshes = refreshes;
    if (!tg_trainer_writes(t)) {
        return TG_OK;
    }
    for (int i = 0; i < count; i++) {
        const tg_optim_projection p = tg_optim_get_projection(t->optim, i);
        squares += p.is_projected ? p.error * p.error : 0.0;
        bytes += p.bytes;
        projected += p.is_projected;
    }
    add(&l, "{");
    add_count(&l, "step", t->progress.step);
    add_count(&l, "epoch", t->progress.epoch + 1);
    add_count(&l, "bytes", (int64_t)bytes);
    add_real(&l, "error", projected ? sqrt(squares / projected) : (double)NAN);
    open_key(&l, "parameters", "[");
    for (int i = 0; i < count; i++) {
        const tg_optim_projection p = tg_optim_get_projection(t->optim, i);
        if (p.is_projected) {
            add_projection(&l, tg_fno_get_param(t->model->fno, i).name, &p);
        }
    }
    add(&l, "]}\n");
    return write_line(&l, &t->folder, "projections.jsonl");
}

/* ---- stable_ranks.jsonl ---- */

tg_status tg_trainer_write_ranks(const tg_trainer *t, int64_t epoch,
                                 const double (*rank)[TG_MAX_NDIM]) {
    line l = {.ctx = t->ctx};
    add(&l, "{");
    add_count(&l, "epoch", epoch);
    add_count(&l, "step", t->progress.step);
    open_key(&l, "parameters", "[");
    for (int i = 0; i < tg_fno_param_count(t->model->fno); i++) {
        const tg_fno_param param = tg_fno_get_param(t->model->fno, i);
        if (param.spectral) {
            separate(&l);
            add(&l, "{");
            add_text(&l, "name", param.name);
            add_list(&l, "stable_rank", rank[i], param.shape.ndim);
            add(&l, "}");
        }
    }
    add(&l, "]}\n");
    return write_line(&l, &t->folder, "stable_ranks.jsonl");
}
