/* The table of equations, and their parameters as text. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "pde/pde.h"

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
    *out = (tg_pde_info){p->name,       p->summary,     p->n_train,  p->n_test,
                         p->resolution, p->param_count, p->on_device};
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
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", names[i]);
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
        const size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", row->key);
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
    *solver = tg_mem_calloc(setup->ctx, TG_MEM_WORKSPACE, 1, pde->solver_bytes);
    return *solver ? pde->open(setup, *solver) : TG_E_MEMORY;
}

void tg_pde_close(const tg_pde *pde, tg_context *ctx, void **solver) {
    if (*solver) {
        pde->close(*solver);
        tg_mem_free(ctx, *solver);
        *solver = NULL;
    }
}
