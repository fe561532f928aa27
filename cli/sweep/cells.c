/* Rows of a sweep: variants and the product of the axes. */
#include "sweep.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/run_settings.h"

/* Keeps the characters allowed in a folder's name; others become '-'. */
static void append_name(char *name, size_t capacity, const char *text) {
    size_t used = strlen(name);
    for (; *text && used + 1 < capacity; text++) {
        const bool is_plain = isalnum((unsigned char)*text) || strchr(".+=_-", *text);
        const char c = is_plain ? *text : '-';
        if (c != '-' || (used > 0 && name[used - 1] != '-')) {
            name[used++] = c;
        }
    }
    while (used > 0 && name[used - 1] == '-') {
        used--;
    }
    name[used] = '\0';
}

const char *cli_sweep_within(const char *key, const char *section) {
    const size_t length = strlen(section);
    return strncmp(key, section, length) == 0 && key[length] == '.' ? key + length + 1 : NULL;
}

/* Whether the file has this axis, even if a scale has taken it away. */
static bool is_axis(const cli_sweep_builder *b, const char *key) {
    char name[2][256];
    snprintf(name[0], sizeof name[0], "axes.%s", key);
    snprintf(name[1], sizeof name[1], "list.%s", key);
    return tg_settings_get(b->file, name[0]) || tg_settings_get(b->file, name[1]);
}

tg_status cli_sweep_put_section(const cli_sweep_builder *b, const char *section, const char *name,
                                tg_settings *to) {
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *key = cli_sweep_within(tg_settings_key(b->file, i), section);
        key = key && name ? cli_sweep_within(key, name) : key;
        const bool is_published =
            key && name && (strcmp(key, "published") == 0 || cli_sweep_within(key, "published"));
        const bool is_unvaried =
            key && name && cli_word_is_null(tg_settings_value(b->file, i)) && is_axis(b, key);
        if (key && !is_published && !is_unvaried) {
            CLI_CALL(tg_settings_set(to, key, tg_settings_value(b->file, i),
                                     tg_settings_origin(b->file, i)));
        }
    }
    return TG_OK;
}

/* A variant's own value of an axis, for which it is not varied along it; NULL: it has none. */
static const char *own_value(const cli_sweep_builder *b, const char *variant, int axis) {
    char key[512];
    snprintf(key, sizeof key, "variants.%s.%s", variant, b->out->axis[axis]);
    return tg_settings_get(b->file, key);
}

/* Whether a variant is varied along an axis; the axes of the list go together. */
static bool is_varied(const cli_sweep_builder *b, const char *variant, int axis) {
    const int first = axis < b->grid ? axis : b->grid;
    const int end = axis < b->grid ? axis + 1 : b->out->axes;
    for (int a = first; a < end; a++) {
        if (own_value(b, variant, a)) {
            return false;
        }
    }
    return true;
}

/* How many values of an axis a variant goes through; in the list, as many as the shortest has. */
static int value_count(const cli_sweep_builder *b, const char *variant, int axis) {
    int count = b->axis[axis].count;
    for (int a = b->grid; axis >= b->grid && a < b->out->axes; a++) {
        count = b->axis[a].count < count ? b->axis[a].count : count;
    }
    return count < 1 || is_varied(b, variant, axis) ? count : 1;
}

/* The value of an axis in a row; NULL where the variant has null, or sets another axis of the
 * list. */
static const char *axis_value(const cli_sweep_builder *b, const char *variant, int axis,
                              const int *at) {
    if (is_varied(b, variant, axis)) {
        return b->axis[axis].item[at[axis]];
    }
    const char *own = own_value(b, variant, axis);
    return own && !cli_word_is_null(own) ? own : NULL;
}

/* Rows of a variant: every value of every axis of the grid, with every entry of the list. */
static int row_count(const cli_sweep_builder *b, const char *variant) {
    int rows = 1;
    for (int a = 0; a < b->out->axes && a <= b->grid && rows <= CLI_SWEEP_TRIALS; a++) {
        rows *= value_count(b, variant, a);
    }
    return rows;
}

/* Which value of each axis a row of a variant has; entries of the list vary fastest. */
static void place_row(const cli_sweep_builder *b, const char *variant, int row,
                      int at[CLI_SWEEP_KEYS]) {
    for (int a = b->out->axes - 1; a >= 0; a--) {
        const int count = value_count(b, variant, a);
        at[a] = row % count;
        row /= a > b->grid ? 1 : count;
    }
}

/* One of the values of "published": one for all rows of the variant, or one for each of them, or
 * one for each value of the first axis. */
static void add_published(const cli_sweep_builder *b, const char *variant, const char *key,
                          const int *at, int row, json_t *out, const char *column) {
    cli_list values = cli_list_of(tg_settings_get(b->file, key));
    const int count = values.count, rows = row_count(b, variant);
    const int firsts = b->out->axes > 0 ? b->axis[0].count : 1;
    char *text = values.item[count == rows ? row : count == firsts ? at[0] : 0];
    if (count != 1 && count != rows && count != firsts) {
        cli_mistake(b->mistakes,
                    "%s: %s has %d values for %d rows of the variant, or %d of the first axis",
                    b->source->path, key, count, rows, firsts);
    } else if (!cli_word_is_null(text)) {
        const size_t length = strlen(text);
        if (length >= 2 && text[0] == '"' && text[length - 1] == '"') { /* it has a space */
            text[length - 1] = '\0';
            text++;
        }
        cli_json_set(out, column, cli_json_text(text));
    }
    cli_list_free(&values);
}

/* The "published" values of a variant in this row: {"": value}, or columns by name. */
static json_t *find_published(const cli_sweep_builder *b, const char *variant, const int *at,
                              int row) {
    json_t *out = cli_json_object();
    char prefix[512];
    snprintf(prefix, sizeof prefix, "variants.%s.published", variant);
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *key = tg_settings_key(b->file, i), *text = tg_settings_value(b->file, i);
        const char *column = strcmp(key, prefix) == 0 ? "" : cli_sweep_within(key, prefix);
        if (column && !cli_word_is_null(text)) {
            add_published(b, variant, key, at, row, out, column);
        }
    }
    return out;
}

static tg_status add_cell(cli_sweep_builder *b, const char *variant, int row) {
    cli_experiment *out = b->out;
    char name[200] = "", origin[300];
    int at[CLI_SWEEP_KEYS] = {0};
    place_row(b, variant, row, at);
    out->cell = cli_need(realloc(out->cell, ((size_t)out->cells + 1) * sizeof *out->cell));
    cli_cell *cell = &out->cell[out->cells++];
    *cell = (cli_cell){.variant = cli_need(strdup(variant)),
                       .published = find_published(b, variant, at, row),
                       .epoch_seconds = (double)NAN};
    append_name(name, sizeof name, variant);
    CLI_CALL(tg_settings_copy(b->ctx, b->base, &cell->settings));
    if (variant[0]) {
        CLI_CALL(cli_sweep_put_section(b, "variants", variant, cell->settings));
    }
    for (int a = 0; a < out->axes; a++) {
        const char *value = axis_value(b, variant, a, at), *dot = strrchr(out->axis[a], '.');
        const size_t used = strlen(name);
        if (!value) {
            continue;
        }
        cell->value[a] = cli_need(strdup(value));
        snprintf(name + used, sizeof name - used, "%s%s=", used ? "_" : "",
                 dot ? dot + 1 : out->axis[a]);
        append_name(name, sizeof name, value);
        snprintf(origin, sizeof origin, "%s: axis %s", b->source->path, out->axis[a]);
        CLI_CALL(tg_settings_set(cell->settings, out->axis[a], value, origin));
    }
    cell->name = cli_need(strdup(name[0] ? name : "run"));
    return cli_settings_override(cell->settings, b->source->args);
}

tg_status cli_sweep_add_cells(cli_sweep_builder *b) {
    for (int v = 0; v < (b->variants.count ? b->variants.count : 1); v++) {
        const char *variant = b->variants.count ? b->variants.item[v] : "";
        const int rows = row_count(b, variant);
        for (int row = 0; row < rows && b->out->cells < CLI_SWEEP_TRIALS; row++) {
            CLI_CALL(add_cell(b, variant, row));
        }
    }
    return TG_OK;
}
