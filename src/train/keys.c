/* The keys of all sections in one list, gathered from the tables that read them. */
#include "tgrad/keys.h"

#include <stdio.h>
#include <string.h>

#include "nn/config.h"
#include "optim/optim.h"
#include "train/config.h"

/* The row of a key: those of fno, opt.name, then the tables of config.h. *table is -1 for opt.name
 * and -2 for fno; NULL past the end. */
static const tg_setting *find(int index, int *table) {
    if (index >= 0 && index < tg_fno_config_count()) {
        *table = -2;
        return nn_config_rows() + index;
    }
    index -= tg_fno_config_count();
    *table = -1;
    if (index == 0) {
        return &tg_optim_method_row;
    }
    index--;
    for (int i = 0; i < TG_KEY_TABLES && index >= 0; i++) {
        const tg_key_table t = tg_run_table(i);
        *table = i;
        if (index < t.count) {
            return &t.rows[index];
        }
        index -= t.count;
    }
    return NULL;
}

static void default_text(int index, int table, const tg_setting *row, char *text, size_t capacity) {
    const tg_run_config run = tg_run_config_default();
    if (table >= 0) {
        tg_setting_get(row, (const char *)&run + tg_run_table(table).offset, text, capacity);
    } else if (table == -1) {
        snprintf(text, capacity, "%s", tg_setting_choice(row, 0));
    } else {
        tg_fno_config_get(&run.fno, index, text, capacity);
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
    int table;
    if (!out) {
        return false;
    }
    *out = (tg_key_info){0};
    const tg_setting *setting = find(index, &table);
    if (!setting) {
        return false;
    }
    out->section = table == -2 ? "fno" : table == -1 ? "opt" : tg_run_table(table).section;
    out->name = setting->key;
    out->type = types[setting->type];
    out->help = setting->help;
    out->has_range = setting->type != TG_SETTING_TEXT && setting->type != TG_SETTING_LIST_TEXT &&
                     setting->type != TG_SETTING_BOOL && setting->type != TG_SETTING_ENUM &&
                     setting->low <= setting->high;
    out->low = out->has_range ? setting->low : 0.0;
    out->high = out->has_range ? setting->high : 0.0;
    tg_setting_values(setting, out->values, sizeof out->values);
    default_text(index, table, setting, out->fallback, sizeof out->fallback);
    if (strcmp(setting->key, "n_modes") == 0) { /* must be set */
        out->fallback[0] = '\0';
    }
    return true;
}

const char *tg_key_choice(int key, int index) {
    int table;
    const tg_setting *row = find(key, &table);
    return row ? tg_setting_choice(row, index) : NULL;
}
