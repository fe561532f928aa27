/* projections.jsonl: one line per refresh, with the size and error of every projection. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "train/json_line.h"
#include "train/trainer.h"

static void add_real(tg_line *l, const char *key, double value) {
    tg_line_add(l, ",\"%s\":", key);
    tg_line_real(l, value);
}

static void add_parameter(tg_line *l, const char *name, const tg_optim_projection *p) {
    tg_line_add(l, "{\"name\":\"%s\",\"ranks\":[", name);
    for (int d = 0; d < p->ranks.ndim; d++) {
        tg_line_add(l, "%s%" PRId64, d ? "," : "", p->ranks.dim[d]);
    }
    tg_line_add(
        l, "],\"kept\":%" PRId64 ",\"values\":%" PRId64 ",\"entries\":%" PRId64 ",\"bytes\":%zu",
        p->kept, p->values, p->entries, p->bytes);
    add_real(l, "error", p->error);
    tg_line_add(l, "}");
}

tg_status tg_trainer_log_projections(tg_trainer *t) {
    enum { NUMBERS = 512 }; /* characters per parameter, besides its name */
    tg_status status = TG_OK;
    const int64_t refreshes = tg_optim_get_stats(t->optim).refreshes;
    if (refreshes == t->refreshes) {
        return TG_OK;
    }
    t->refreshes = refreshes;
    if (!tg_trainer_writes(t)) {
        return TG_OK;
    }
    const int count = tg_fno_param_count(t->model->fno);
    double squares = 0.0;
    int projected = 0;
    size_t bytes = 0;
    tg_line l = {.capacity = NUMBERS};
    for (int i = 0; i < count; i++) {
        const tg_optim_projection p = tg_optim_get_projection(t->optim, i);
        l.capacity +=
            p.is_projected ? strlen(tg_fno_get_param(t->model->fno, i).name) + NUMBERS : 0;
        squares += p.is_projected ? p.error * p.error : 0.0;
        bytes += p.bytes;
        projected += p.is_projected;
    }
    TG_TRY(TG_ALLOC(t->ctx, TG_MEM_OTHER, l.text, l.capacity));
    tg_line_add(&l, "{\"step\":%" PRId64 ",\"epoch\":%" PRId64 ",\"bytes\":%zu", t->progress.step,
                t->progress.epoch + 1, bytes);
    add_real(&l, "error", projected ? sqrt(squares / projected) : (double)NAN);
    tg_line_add(&l, ",\"parameters\":[");
    for (int i = 0, shown = 0; i < count; i++) {
        const tg_optim_projection p = tg_optim_get_projection(t->optim, i);
        if (p.is_projected) {
            tg_line_add(&l, "%s", shown++ ? "," : "");
            add_parameter(&l, tg_fno_get_param(t->model->fno, i).name, &p);
        }
    }
    tg_line_add(&l, "]}\n");
    TG_TRY(tg_run_folder_append(&t->folder, "projections.jsonl", l.text, l.used));
fail:
    tg_mem_free(t->ctx, l.text);
    return status;
}
