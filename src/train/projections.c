/* projections.jsonl: one line per refresh, with what every projection keeps and loses. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "train/trainer.h"

/* A line that grows in memory of its own. */
typedef struct line {
    char *text;
    size_t used, capacity;
} line;

static void add(line *l, const char *format, ...) TG_PRINTF(2, 3);

static void add(line *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int wrote = vsnprintf(l->text + l->used, l->capacity - l->used, format, args);
    va_end(args);
    l->used += wrote > 0 ? (size_t)wrote : 0;
}

/* A number as JSON has it: no NaN. */
static void add_real(line *l, const char *key, double value) {
    add(l, isfinite(value) ? ",\"%s\":%.9g" : ",\"%s\":null", key, value);
}

static void add_parameter(line *l, const char *name, const tg_optim_projection *p) {
    add(l, "{\"name\":\"%s\",\"ranks\":[", name);
    for (int d = 0; d < p->ranks.ndim; d++) {
        add(l, "%s%" PRId64, d ? "," : "", p->ranks.dim[d]);
    }
    add(l, "],\"kept\":%" PRId64 ",\"values\":%" PRId64 ",\"entries\":%" PRId64 ",\"bytes\":%zu",
        p->kept, p->values, p->entries, p->bytes);
    add_real(l, "error", p->error);
    add_real(l, "bound", p->bound);
    add(l, "}");
}

tg_status tg_trainer_log_projections(tg_trainer *t) {
    enum { NUMBERS = 512 }; /* of one parameter, beside its name */
    tg_status status = TG_OK;
    const int64_t refreshes = tg_optim_get_stats(t->optim).refreshes;
    if (refreshes == t->refreshes) {
        return TG_OK;
    }
    t->refreshes = refreshes;
    const int count = tg_fno_param_count(t->model->fno);
    double squares = 0.0;
    int projected = 0;
    size_t bytes = 0;
    line l = {.capacity = NUMBERS};
    for (int i = 0; i < count; i++) {
        const tg_optim_projection p = tg_optim_get_projection(t->optim, i);
        l.capacity +=
            p.is_projected ? strlen(tg_fno_get_param(t->model->fno, i).name) + NUMBERS : 0;
        squares += p.is_projected ? p.error * p.error : 0.0;
        bytes += p.bytes;
        projected += p.is_projected;
    }
    TG_TRY(TG_ALLOC(t->ctx, TG_MEM_OTHER, l.text, l.capacity));
    add(&l, "{\"step\":%" PRId64 ",\"epoch\":%" PRId64 ",\"bytes\":%zu", t->progress.step,
        t->progress.epoch + 1, bytes);
    add_real(&l, "error", projected ? sqrt(squares / projected) : (double)NAN);
    add(&l, ",\"parameters\":[");
    for (int i = 0, shown = 0; i < count; i++) {
        const tg_optim_projection p = tg_optim_get_projection(t->optim, i);
        if (p.is_projected) {
            add(&l, "%s", shown++ ? "," : "");
            add_parameter(&l, tg_fno_get_param(t->model->fno, i).name, &p);
        }
    }
    add(&l, "]}\n");
    TG_TRY(tg_run_folder_append(&t->folder, "projections.jsonl", l.text, l.used));
fail:
    tg_mem_free(t->ctx, l.text);
    return status;
}
