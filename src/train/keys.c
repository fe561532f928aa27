/* The keys of all sections in one list, gathered from the tables that read them. */
#include "tgrad/keys.h"

#include <stdio.h>
#include <string.h>

#include "nn/config.h"
#include "optim/optim.h"
#include "train/config.h"

enum { TABLES = 7 };

typedef struct table {
    const char *section;
    const tg_setting *rows; /* (count) */
    int count;
} table;

/* In the order of docs/config.md. */
static void list_tables(table out[TABLES]) {
    out[0] = (table){"fno", nn_config_rows(), tg_fno_config_count()};
    out[1] = (table){"opt", &tg_optim_method_row, 1};
    out[2] = (table){"opt", tg_optim_config_rows(), tg_optim_config_count()};
    out[3] = (table){"opt", tg_lr_schedule_config_rows(), tg_lr_schedule_config_count()};
    out[4].section = "opt";
    out[4].rows = tg_loop_config_rows(&out[4].count);
    out[5].section = "data";
    out[5].rows = tg_source_config_rows(&out[5].count);
    out[6].section = "distributed";
    out[6].rows = tg_distributed_rows(&out[6].count);
}

/* The table and row of a key; false past the end. */
static bool find(int index, const char **section, int *number, int *row, const tg_setting **out) {
    table tables[TABLES];
    list_tables(tables);
    for (int i = 0; i < TABLES && index >= 0; i++) {
        if (index < tables[i].count) {
            *section = tables[i].section;
            *number = i;
            *row = index;
            *out = &tables[i].rows[index];
            return true;
        }
        index -= tables[i].count;
    }
    return false;
}

static void default_text(int number, int row, const tg_setting *setting, char *text,
                         size_t capacity) {
    const tg_run_config run = tg_run_config_default();
    switch (number) {
    case 0:
        tg_fno_config_get(&run.fno, row, text, capacity);
        break;
    case 1:
        snprintf(text, capacity, "%s", tg_setting_choice(setting, 0));
        break;
    case 2:
        tg_optim_config_get(&run.opt, row, text, capacity);
        break;
    case 3:
        tg_lr_schedule_config_get(&run.schedule, row, text, capacity);
        break;
    case 4:
        tg_setting_get(setting, &run.loop, text, capacity);
        break;
    case 5:
        tg_setting_get(setting, &run.data, text, capacity);
        break;
    default:
        tg_setting_get(setting, &run.distributed, text, capacity);
    }
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
    const tg_setting *setting;
    int number, row;
    if (!out) {
        return false;
    }
    *out = (tg_key_info){0};
    if (!find(index, &out->section, &number, &row, &setting)) {
        return false;
    }
    out->name = setting->key;
    out->type = types[setting->type];
    out->help = setting->help;
    out->has_range = setting->type != TG_SETTING_TEXT && setting->type != TG_SETTING_LIST_TEXT &&
                     setting->type != TG_SETTING_BOOL && setting->type != TG_SETTING_ENUM &&
                     setting->low <= setting->high;
    out->low = out->has_range ? setting->low : 0.0;
    out->high = out->has_range ? setting->high : 0.0;
    tg_setting_values(setting, out->values, sizeof out->values);
    default_text(number, row, setting, out->fallback, sizeof out->fallback);
    if (strcmp(setting->key, "n_modes") == 0) { /* must be set */
        out->fallback[0] = '\0';
    }
    return true;
}

const char *tg_key_choice(int key, int index) {
    const char *section;
    const tg_setting *setting;
    int number, row;
    return find(key, &section, &number, &row, &setting) ? tg_setting_choice(setting, index) : NULL;
}
