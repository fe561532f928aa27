/* The file: its sections, the rows of variants and axes, and the order of the runs. */
#include "sweep.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/run_settings.h"

/* The parsed file. */
typedef struct builder {
    tg_context *ctx;
    const cli_sweep_source *source;
    const tg_settings *file;
    tg_settings *base;             /* of every run */
    cli_list axis[CLI_SWEEP_KEYS]; /* values */
    int grid;                      /* axes of the grid; those after them advance in step */
    cli_list variants, seeds;
    cli_experiment *out;
    cli_list *mistakes;
} builder;

/* ---- sections ---- */

/* The rest of a key after "section."; NULL if it is no key of that section. */
static const char *within(const char *key, const char *section) {
    const size_t length = strlen(section);
    return strncmp(key, section, length) == 0 && key[length] == '.' ? key + length + 1 : NULL;
}

/* The next setting of a section after number *index: its key within the section; NULL: no more. */
static const char *next_in(const tg_settings *file, const char *section, int64_t *index) {
    const char *key = NULL;
    while (!key && ++*index < tg_settings_count(file)) {
        key = within(tg_settings_key(file, *index), section);
    }
    return key;
}

static const char *const plain_keys[] = {"title",     "base",    "seeds",     "baseline",
                                         "metric",    "run",     "lr.values", "lr.n_validation",
                                         "lr.epochs", "lr.norm", NULL};
static const char *const sections[] = {"settings", "axes",   "list", "variants",
                                       "generate", "scales", NULL};

/* A key of the file, or of one of its scales. */
static void check_key(const tg_settings *file, int64_t index, cli_list *mistakes) {
    const char *key = tg_settings_key(file, index), *origin = tg_settings_origin(file, index);
    const char *of_scale = within(key, "scales");
    of_scale = of_scale ? strchr(of_scale, '.') : NULL;
    key = of_scale ? of_scale + 1 : key;
    cli_suggestion near = cli_suggest(key);
    for (const char *const *known = plain_keys; *known; known++) {
        if (strcmp(key, *known) == 0) {
            return;
        }
        cli_suggest_offer(&near, *known);
    }
    for (const char *const *section = sections; *section; section++) {
        if (within(key, *section)) {
            return;
        }
        if (strcmp(key, *section) == 0) {
            if (!cli_word_is_null(tg_settings_value(file, index))) {
                cli_mistake(mistakes, "%s: %s needs a map, {key: value, ..}", origin, key);
            }
            return;
        }
        cli_suggest_offer(&near, *section);
    }
    cli_mistake(mistakes, "%s: '%s' is not a key of a sweep%s%s", origin, key,
                near.best ? "; did you mean " : " (settings of the runs go below settings:)",
                near.best ? near.best : "");
}

/* Keys of the scale over those of the file. */
static tg_status apply_scale(const cli_sweep_source *source, tg_settings *file,
                             cli_list *mistakes) {
    char known[256] = "";
    bool is_there = !source->scale || strcmp(source->scale, "paper") == 0;
    int64_t i = -1;
    for (const char *rest; (rest = next_in(file, "scales", &i));) {
        const char *key = strchr(rest, '.');
        char name[64];
        if (!key) {
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)(key - rest), rest);
        if (source->scale && strcmp(name, source->scale) == 0) {
            is_there = true;
            CLI_CALL(tg_settings_set(file, key + 1, tg_settings_value(file, i),
                                     tg_settings_origin(file, i)));
        } else if (!strstr(known, name)) {
            const size_t used = strlen(known);
            snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", name);
        }
    }
    if (!is_there) {
        cli_mistake(mistakes, "--scale %s: the file has %s%s", source->scale,
                    known[0] ? known : "no scales", known[0] ? " and paper" : "");
    }
    return TG_OK;
}

/* ---- reading ---- */

static void read_axes(builder *b, const char *section) {
    int64_t i = -1;
    for (const char *key; (key = next_in(b->file, section, &i));) {
        const char *value = tg_settings_value(b->file, i), *origin = tg_settings_origin(b->file, i);
        if (cli_word_is_null(value)) { /* a scale takes an axis away with null */
            continue;
        }
        if (b->out->axes == CLI_SWEEP_KEYS) {
            cli_mistake(b->mistakes, "%s: more than %d axes", origin, CLI_SWEEP_KEYS);
            return;
        }
        cli_list *axis = &b->axis[b->out->axes];
        *axis = cli_list_of(value);
        if (axis->count == 0) {
            cli_mistake(b->mistakes, "%s: %s.%s is empty", origin, section, key);
        }
        if (strcmp(section, "list") == 0 && b->out->axes > b->grid &&
            axis->count != b->axis[b->grid].count) {
            cli_mistake(b->mistakes,
                        "%s: list.%s has %d values, list.%s %d: entries of a list go together",
                        origin, key, axis->count, b->out->axis[b->grid], b->axis[b->grid].count);
        }
        b->out->axis[b->out->axes++] = cli_need(strdup(key));
    }
}

static void read_variants(builder *b) {
    int64_t i = -1;
    for (const char *rest; (rest = next_in(b->file, "variants", &i));) {
        const size_t length = strcspn(rest, ".");
        bool is_new = true;
        for (int v = 0; v < b->variants.count; v++) {
            const char *known = b->variants.item[v];
            is_new = is_new && (strlen(known) != length || strncmp(known, rest, length) != 0);
        }
        /* "adam: null" is a variant without settings */
        if (rest[length] != '.' && !cli_word_is_null(tg_settings_value(b->file, i))) {
            cli_mistake(b->mistakes, "%s: variants.%s needs settings, {key: value, ..}",
                        tg_settings_origin(b->file, i), rest);
        } else if (is_new) {
            cli_list_add(&b->variants, rest, length);
        }
    }
}

/* A whole number of the file; 0 for NULL. */
static int64_t read_integer(builder *b, const char *key, const char *value) {
    char *end = NULL;
    if (!value) {
        return 0;
    }
    errno = 0;
    const long long number = strtoll(value, &end, 10);
    if (end == value || *end || errno || number < 0) {
        cli_mistake(b->mistakes, "%s: %s: '%.40s' is not an integer of 0 or more", b->source->path,
                    key, value);
        return 0;
    }
    return number;
}

static void read_search(builder *b) {
    const char *values = cli_setting_or(b->file, "lr.values", NULL);
    const char *norm = cli_setting_or(b->file, "lr.norm", NULL);
    cli_experiment *out = b->out;
    out->n_validation =
        read_integer(b, "lr.n_validation", cli_setting_or(b->file, "lr.n_validation", NULL));
    out->search_epochs = read_integer(b, "lr.epochs", cli_setting_or(b->file, "lr.epochs", NULL));
    const bool is_h1 =
        norm ? strcmp(norm, "h1") == 0 : out->metric && cli_ends_with(out->metric, ".h1");
    out->search_norm = is_h1 ? "h1" : "l2";
    if (norm && !is_h1 && strcmp(norm, "l2") != 0) {
        cli_mistake(b->mistakes, "%s: lr.norm: '%.40s' is not l2 or h1", b->source->path, norm);
    }
    if (!values) {
        return;
    }
    out->rates = cli_list_of(values);
    for (int i = 0; i < out->rates.count; i++) {
        char *end = NULL;
        const double rate = strtod(out->rates.item[i], &end);
        if (end == out->rates.item[i] || *end || !(rate > 0.0) || !isfinite(rate)) {
            cli_mistake(b->mistakes, "%s: lr.values: '%.40s' is not a learning rate",
                        b->source->path, out->rates.item[i]);
        }
    }
    if (out->rates.count == 0) {
        cli_mistake(b->mistakes, "%s: lr.values is empty", b->source->path);
    }
    if (out->n_validation == 0) {
        cli_mistake(b->mistakes,
                    "%s: lr.n_validation is needed: how many training samples choose the rate",
                    b->source->path);
    }
}

static void read_generate(builder *b) {
    cli_list *words = &b->out->generate;
    for (int i = 0; i < b->source->args->override_count; i++) {
        if (strcmp(b->source->args->override[i].key, "data.root") == 0) {
            return; /* the data are elsewhere */
        }
    }
    const char *equation = cli_setting_or(b->file, "generate.equation", NULL);
    if (equation) {
        cli_list_add(words, equation, strlen(equation));
    }
    int64_t i = -1;
    for (const char *key; (key = next_in(b->file, "generate", &i));) {
        const char *value = tg_settings_value(b->file, i);
        if (strcmp(key, "equation") == 0 || cli_word_is_null(value)) {
            continue;
        }
        if (!equation) {
            cli_mistake(b->mistakes, "%s: generate needs an equation: ns, darcy, ..",
                        tg_settings_origin(b->file, i));
            return;
        }
        char word[512];
        snprintf(word, sizeof word, "--%s=%s", key, value);
        for (char *c = word; *c && *c != '='; c++) {
            *c = *c == '_' ? '-' : *c;
        }
        cli_list_add(words, word, strlen(word));
    }
}

/* ---- rows: every variant with every combination of the axes ---- */

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

/* Whether the file has this axis, even if a scale has taken it away. */
static bool is_axis(const builder *b, const char *key) {
    char name[2][256];
    snprintf(name[0], sizeof name[0], "axes.%s", key);
    snprintf(name[1], sizeof name[1], "list.%s", key);
    return tg_settings_get(b->file, name[0]) || tg_settings_get(b->file, name[1]);
}

/* Settings of the section over `to`; of a variant without its published values. */
static tg_status put_section(const builder *b, const char *section, tg_settings *to) {
    const bool is_variant = within(section, "variants");
    int64_t i = -1;
    for (const char *key; (key = next_in(b->file, section, &i));) {
        const char *value = tg_settings_value(b->file, i);
        const bool is_published = strcmp(key, "published") == 0 || within(key, "published");
        const bool is_unvaried = cli_word_is_null(value) && is_axis(b, key);
        if (!is_variant || (!is_published && !is_unvaried)) {
            CLI_CALL(tg_settings_set(to, key, value, tg_settings_origin(b->file, i)));
        }
    }
    return TG_OK;
}

/* A variant's own value of an axis, for which it is not varied along it; NULL: it has none. */
static const char *own_value(const builder *b, const char *variant, int axis) {
    char key[512];
    snprintf(key, sizeof key, "variants.%s.%s", variant, b->out->axis[axis]);
    return tg_settings_get(b->file, key);
}

/* Whether a variant is varied along an axis; the axes of the list go together. */
static bool is_varied(const builder *b, const char *variant, int axis) {
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
static int value_count(const builder *b, const char *variant, int axis) {
    int count = b->axis[axis].count;
    for (int a = b->grid; axis >= b->grid && a < b->out->axes; a++) {
        count = b->axis[a].count < count ? b->axis[a].count : count;
    }
    return count < 1 || is_varied(b, variant, axis) ? count : 1;
}

/* The value of an axis in a row; NULL where the variant has null, or sets another axis of the
 * list. */
static const char *axis_value(const builder *b, const char *variant, int axis, const int *at) {
    if (is_varied(b, variant, axis)) {
        return b->axis[axis].item[at[axis]];
    }
    const char *own = own_value(b, variant, axis);
    return own && !cli_word_is_null(own) ? own : NULL;
}

/* Rows of a variant: every value of every axis of the grid, with every entry of the list. */
static int row_count(const builder *b, const char *variant) {
    int rows = 1;
    for (int a = 0; a < b->out->axes && a <= b->grid && rows <= CLI_SWEEP_TRIALS; a++) {
        rows *= value_count(b, variant, a);
    }
    return rows;
}

/* Which value of each axis a row of a variant has; entries of the list vary fastest. */
static void place_row(const builder *b, const char *variant, int row, int at[CLI_SWEEP_KEYS]) {
    for (int a = b->out->axes - 1; a >= 0; a--) {
        const int count = value_count(b, variant, a);
        at[a] = row % count;
        row /= a > b->grid ? 1 : count;
    }
}

/* One of the values of "published": one for all rows of the variant, or one for each of them, or
 * one for each value of the first axis. */
static void add_published(const builder *b, const char *variant, const char *key, const int *at,
                          int row, json_t *out, const char *column) {
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
static json_t *find_published(const builder *b, const char *variant, const int *at, int row) {
    json_t *out = cli_json_object();
    char prefix[512];
    snprintf(prefix, sizeof prefix, "variants.%s.published", variant);
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *key = tg_settings_key(b->file, i), *text = tg_settings_value(b->file, i);
        const char *column = strcmp(key, prefix) == 0 ? "" : within(key, prefix);
        if (column && !cli_word_is_null(text)) {
            add_published(b, variant, key, at, row, out, column);
        }
    }
    return out;
}

static tg_status add_cell(builder *b, const char *variant, int row) {
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
        CLI_FREED char *section = cli_format("variants.%s", variant);
        CLI_CALL(put_section(b, section, cell->settings));
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

static tg_status add_cells(builder *b) {
    for (int v = 0; v < (b->variants.count ? b->variants.count : 1); v++) {
        const char *variant = b->variants.count ? b->variants.item[v] : "";
        const int rows = row_count(b, variant);
        for (int row = 0; row < rows && b->out->cells < CLI_SWEEP_TRIALS; row++) {
            CLI_CALL(add_cell(b, variant, row));
        }
    }
    return TG_OK;
}

/* ---- trials ---- */

static void add_trial(builder *b, int cell, int64_t seed, const char *rate) {
    cli_experiment *out = b->out;
    char name[320];
    snprintf(name, sizeof name, "%s%s%s_s%lld", out->cell[cell].name, rate ? "_lr=" : "",
             rate ? rate : "", (long long)seed);
    for (int i = 0; i < out->trials; i++) {
        if (strcmp(out->trial[i].name, name) == 0) {
            cli_mistake(b->mistakes, "%s: two runs would be called %s", b->source->path, name);
            return;
        }
    }
    if (out->trials == CLI_SWEEP_TRIALS) {
        cli_mistake(b->mistakes, "%s: more than %d runs", b->source->path, CLI_SWEEP_TRIALS);
        return;
    }
    out->trial = cli_need(realloc(out->trial, ((size_t)out->trials + 1) * sizeof *out->trial));
    out->trial[out->trials++] =
        (cli_trial){.name = cli_need(strdup(name)), .cell = cell, .seed = seed, .rate = rate};
}

/* Searches, then seed by seed: a sweep that is cut short has all rows to compare. */
static void add_trials(builder *b) {
    for (int c = 0; c < b->out->cells; c++) {
        for (int r = 0; r < b->out->rates.count; r++) {
            add_trial(b, c, b->seeds.count > 0 ? read_integer(b, "seeds", b->seeds.item[0]) : 0,
                      b->out->rates.item[r]);
        }
    }
    for (int s = 0; s < b->seeds.count; s++) {
        const int64_t seed = read_integer(b, "seeds", b->seeds.item[s]);
        for (int c = 0; c < b->out->cells; c++) {
            add_trial(b, c, seed, NULL);
        }
    }
}

/* Refuses keys that seeds: and lr: set in every run, as their values would be ignored. */
static void check_own_key(const builder *b, const char *origin, const char *key, bool is_varied) {
    if (strcmp(key, "distributed.seed") == 0) {
        cli_mistake(b->mistakes,
                    "%s: distributed.seed: a sweep takes its seeds from seeds:", origin);
    }
    if (is_varied && b->out->rates.count > 0 && strcmp(key, "opt.learning_rate") == 0) {
        cli_mistake(b->mistakes,
                    "%s: opt.learning_rate: lr.values are tried instead; remove one of the two",
                    origin);
    }
}

static void check_own_keys(const builder *b) {
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *key = tg_settings_key(b->file, i), *origin = tg_settings_origin(b->file, i);
        const char *of_variant = within(key, "variants"), *of_all = within(key, "settings");
        const char *varied = within(key, "axes") ? within(key, "axes") : within(key, "list");
        of_variant = of_variant ? strchr(of_variant, '.') : NULL;
        varied = of_variant ? of_variant + 1 : varied;
        if (!cli_word_is_null(tg_settings_value(b->file, i)) && (of_all || varied)) {
            check_own_key(b, origin, of_all ? of_all : varied, varied);
        }
    }
    for (int i = 0; i < b->source->args->override_count; i++) {
        check_own_key(b, "command line", b->source->args->override[i].key, true);
    }
}

/* A copy of a text of the file; NULL if it is not there. */
static char *text_of(const builder *b, const char *key) {
    const char *value = cli_setting_or(b->file, key, NULL);
    return value ? cli_need(strdup(value)) : NULL;
}

/* The configuration that `base` names, beside the sweep's file; settings: and data over it. */
static tg_status read_base(builder *b) {
    const char *path = cli_setting_or(b->file, "base", NULL);
    if (path) {
        const char *slash = strrchr(b->source->path, '/');
        const int folder = slash && path[0] != '/' ? (int)(slash + 1 - b->source->path) : 0;
        CLI_FREED char *whole = cli_format("%.*s%s", folder, b->source->path, path);
        CLI_CALL(tg_settings_read_yaml(b->ctx, whole, &b->base));
    } else {
        CLI_CALL(tg_settings_create(b->ctx, &b->base));
    }
    if (b->out->generate.count > 0) {
        CLI_CALL(tg_settings_set(b->base, "data.root", b->source->data, "generate"));
    }
    return put_section(b, "settings", b->base);
}

static void check_baseline(const builder *b) {
    const cli_experiment *out = b->out;
    bool is_there = !out->baseline;
    for (int c = 0; c < out->cells && !is_there; c++) {
        is_there = strcmp(out->baseline, out->cell[c].variant) == 0 ||
                   strcmp(out->baseline, out->cell[c].name) == 0;
    }
    if (!is_there) {
        cli_mistake(b->mistakes, "%s: baseline: there is no variant or run called '%s'",
                    b->source->path, out->baseline);
    }
}

static tg_status build(builder *b) {
    cli_experiment *out = b->out;
    out->file = cli_need(strdup(b->source->path));
    out->scale =
        b->source->scale && strcmp(b->source->scale, "paper") != 0 ? b->source->scale : NULL;
    out->title = text_of(b, "title");
    out->title = out->title ? out->title : cli_need(strdup(b->source->path));
    out->baseline = text_of(b, "baseline");
    out->metric = text_of(b, "metric");
    if (out->metric && !cli_ends_with(out->metric, ".l2") && !cli_ends_with(out->metric, ".h1")) {
        cli_mistake(b->mistakes, "%s: metric: '%.40s' is not GRID.l2 or GRID.h1, as in 16.l2",
                    b->source->path, out->metric);
    }
    const char *run = tg_settings_get(b->file, "run");
    out->is_planned = run && strcmp(run, "plan") == 0;
    if (run && !out->is_planned && strcmp(run, "train") != 0) {
        cli_mistake(b->mistakes, "%s: run: '%.40s' is not train or plan", b->source->path, run);
    }
    read_axes(b, "axes");
    b->grid = out->axes;
    read_axes(b, "list");
    read_variants(b);
    read_search(b);
    check_own_keys(b);
    read_generate(b);
    b->seeds = cli_list_of(cli_setting_or(b->file, "seeds", "0"));
    if (b->seeds.count == 0) {
        cli_mistake(b->mistakes, "%s: seeds is empty", b->source->path);
    }
    CLI_CALL(read_base(b));
    CLI_CALL(add_cells(b));
    add_trials(b);
    check_baseline(b);
    return TG_OK;
}

void cli_experiment_read(tg_context *ctx, const cli_sweep_source *source, cli_experiment *out,
                         cli_list *mistakes) {
    CLI_OWNED(tg_settings_destroy) tg_settings *file = NULL;
    builder b = {.ctx = ctx, .source = source, .out = out, .mistakes = mistakes};
    *out = (cli_experiment){0};
    cli_check(tg_settings_read_yaml(ctx, source->path, &file));
    for (int64_t i = 0; i < tg_settings_count(file); i++) {
        check_key(file, i, mistakes);
    }
    cli_check(apply_scale(source, file, mistakes));
    b.file = file;
    cli_check(build(&b));
    for (int a = 0; a < CLI_SWEEP_KEYS; a++) {
        cli_list_free(&b.axis[a]);
    }
    cli_list_free(&b.variants);
    cli_list_free(&b.seeds);
    tg_settings_destroy(&b.base);
}

void cli_experiment_free(cli_experiment *e) {
    for (int c = 0; c < e->cells; c++) {
        cli_cell *cell = &e->cell[c];
        for (int a = 0; a < CLI_SWEEP_KEYS; a++) {
            free(cell->value[a]);
        }
        free(cell->name);
        free(cell->variant);
        json_decref(cell->published);
        tg_settings_destroy(&cell->settings);
    }
    for (int i = 0; i < e->trials; i++) {
        free(e->trial[i].name);
    }
    for (int a = 0; a < CLI_SWEEP_KEYS; a++) {
        free(e->axis[a]);
    }
    cli_list_free(&e->rates);
    cli_list_free(&e->generate);
    free(e->trial);
    free(e->cell);
    free(e->file);
    free(e->title);
    free(e->baseline);
    free(e->metric);
    *e = (cli_experiment){0};
}
