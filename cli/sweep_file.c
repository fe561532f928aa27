/* Sections of the file, and the product of its axes. */
#include "sweep_file.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suggest.h"
#include "text.h"

/* ---- words ---- */

static void append(char ***list, int *count, const char *text, size_t length) {
    *list = cli_need(realloc(*list, ((size_t)*count + 1) * sizeof **list));
    (*list)[(*count)++] = cli_need(strndup(text, length));
}

/* The entries of "[a, [b, c]]", or of one value; returns their count. To be freed, each and all. */
static int split_list(const char *text, char ***out) {
    const size_t length = strlen(text);
    int count = 0;
    *out = NULL;
    if (length < 2 || text[0] != '[' || text[length - 1] != ']') {
        append(out, &count, text, length);
        return count;
    }
    const char *start = text + 1;
    int depth = 0;
    for (const char *at = start; at < text + length; at++) {
        depth += (*at == '[') - (*at == ']');
        if ((*at == ',' && depth == 0) || depth < 0) {
            start += strspn(start, " ");
            if (at > start || *at == ',') {
                append(out, &count, start, (size_t)(at - start));
            }
            start = at + 1;
        }
    }
    return count;
}

static void free_list(char **list, int count) {
    for (int i = 0; i < count; i++) {
        free(list[i]);
    }
    free(list);
}

/* What may stand in a folder's name; the rest becomes '-'. */
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

/* ---- sections ---- */

/* What follows "section." in a key; NULL if it is no key of that section. */
static const char *within(const char *key, const char *section) {
    const size_t length = strlen(section);
    return strncmp(key, section, length) == 0 && key[length] == '.' ? key + length + 1 : NULL;
}

static const char *const plain_keys[] = {"title",     "base",    "seeds",     "baseline",
                                         "metric",    "run",     "lr.values", "lr.n_validation",
                                         "lr.epochs", "lr.norm", NULL};
static const char *const sections[] = {"settings", "axes",   "list", "variants",
                                       "generate", "scales", NULL};

static bool is_null(const char *value) {
    return strcmp(value, "null") == 0;
}

/* A key of the file, or of one of its scales. */
static void check_key(const tg_settings *file, int64_t index, cli_mistakes *mistakes) {
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
            if (!is_null(tg_settings_value(file, index))) {
                cli_mistake(mistakes, "%s: %s needs a map, {key: value, ..}", origin, key);
            }
            return;
        }
        cli_suggest_offer(&near, *section);
    }
    cli_mistake(mistakes, "%s: '%s' is no key of a sweep%s%s", origin, key,
                near.best ? "; did you mean " : " (settings of the runs stand below settings:)",
                near.best ? near.best : "");
}

/* Keys of the scale over those of the file. */
static tg_status apply_scale(const cli_sweep_source *source, tg_settings *file,
                             cli_mistakes *mistakes) {
    char known[256] = "";
    bool is_there = !source->scale || strcmp(source->scale, "paper") == 0;
    for (int64_t i = 0; i < tg_settings_count(file); i++) {
        const char *rest = within(tg_settings_key(file, i), "scales");
        const char *key = rest ? strchr(rest, '.') : NULL;
        if (!key) {
            continue;
        }
        char name[64];
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

/* ---- from sections to cells ---- */

typedef struct axis_values {
    char **value;
    int count;
} axis_values;

/* What the product is made from. */
typedef struct builder {
    tg_context *ctx;
    const cli_sweep_source *source;
    const tg_settings *file;
    tg_settings *base; /* of every run */
    axis_values axis[CLI_SWEEP_KEYS];
    int grid; /* axes of the grid; those behind them go together */
    char **variant;
    int variants;
    char **seed;
    int seeds;
    cli_experiment *out;
    cli_mistakes *mistakes;
} builder;

static void read_axes(builder *b, const char *section) {
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *key = within(tg_settings_key(b->file, i), section);
        const char *value = tg_settings_value(b->file, i), *origin = tg_settings_origin(b->file, i);
        if (!key || is_null(value)) { /* a scale takes an axis away with null */
            continue;
        }
        if (b->out->axes == CLI_SWEEP_KEYS) {
            cli_mistake(b->mistakes, "%s: more than %d axes", origin, CLI_SWEEP_KEYS);
            return;
        }
        axis_values *axis = &b->axis[b->out->axes];
        axis->count = split_list(value, &axis->value);
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

/* Names in the order in which they come. */
static void read_variants(builder *b) {
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *rest = within(tg_settings_key(b->file, i), "variants");
        if (!rest) {
            continue;
        }
        const size_t length = strcspn(rest, ".");
        bool is_new = true;
        for (int v = 0; v < b->variants; v++) {
            is_new = is_new &&
                     (strlen(b->variant[v]) != length || strncmp(b->variant[v], rest, length) != 0);
        }
        /* "adam: null" is a variant without settings of its own */
        if (is_new && (rest[length] == '.' || is_null(tg_settings_value(b->file, i)))) {
            append(&b->variant, &b->variants, rest, length);
        } else if (rest[length] != '.' && !is_null(tg_settings_value(b->file, i))) {
            cli_mistake(b->mistakes, "%s: variants.%s needs settings, {key: value, ..}",
                        tg_settings_origin(b->file, i), rest);
        }
    }
}

/* A whole number of the file; 0 if it is not there. */
static int64_t read_integer(builder *b, const char *key, const char *value) {
    char *end = NULL;
    if (!value || is_null(value)) {
        return 0;
    }
    errno = 0;
    const long long number = strtoll(value, &end, 10);
    if (end == value || *end || errno || number < 0) {
        cli_mistake(b->mistakes, "%s: %s: '%.40s' is not a whole number from 0 on", b->source->path,
                    key, value);
        return 0;
    }
    return number;
}

static void read_search(builder *b) {
    const char *values = tg_settings_get(b->file, "lr.values");
    cli_experiment *out = b->out;
    out->n_validation =
        read_integer(b, "lr.n_validation", tg_settings_get(b->file, "lr.n_validation"));
    out->search_epochs = read_integer(b, "lr.epochs", tg_settings_get(b->file, "lr.epochs"));
    const char *norm = tg_settings_get(b->file, "lr.norm");
    const bool is_h1 = norm && !is_null(norm) ? strcmp(norm, "h1") == 0
                                              : out->metric && cli_ends_with(out->metric, ".h1");
    out->search_norm = is_h1 ? "h1" : "l2";
    if (norm && !is_null(norm) && !is_h1 && strcmp(norm, "l2") != 0) {
        cli_mistake(b->mistakes, "%s: lr.norm: '%.40s' is not l2 or h1", b->source->path, norm);
    }
    if (!values || is_null(values)) {
        return;
    }
    out->rates = split_list(values, &out->rate);
    for (int i = 0; i < out->rates; i++) {
        char *end = NULL;
        const double rate = strtod(out->rate[i], &end);
        if (end == out->rate[i] || *end || !(rate > 0.0) || !isfinite(rate)) {
            cli_mistake(b->mistakes, "%s: lr.values: '%.40s' is no learning rate", b->source->path,
                        out->rate[i]);
        }
    }
    if (out->rates == 0) {
        cli_mistake(b->mistakes, "%s: lr.values is empty", b->source->path);
    }
    if (out->n_validation == 0) {
        cli_mistake(b->mistakes,
                    "%s: lr.n_validation is needed: how many training samples choose the rate",
                    b->source->path);
    }
}

static void read_generate(builder *b) {
    cli_experiment *out = b->out;
    for (int i = 0; i < b->source->args->override_count; i++) {
        if (strcmp(b->source->args->override[i].key, "data.root") == 0) {
            return; /* the data are elsewhere */
        }
    }
    const char *equation = tg_settings_get(b->file, "generate.equation");
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *key = within(tg_settings_key(b->file, i), "generate");
        const char *value = tg_settings_value(b->file, i);
        if (!key || strcmp(key, "equation") == 0 || is_null(value)) {
            continue;
        }
        if (!equation) {
            cli_mistake(b->mistakes, "%s: generate needs an equation: ns, darcy, ..",
                        tg_settings_origin(b->file, i));
            return;
        }
        if (out->generates == 0) {
            append(&out->generate, &out->generates, equation, strlen(equation));
        }
        char word[512];
        snprintf(word, sizeof word, "--%s=%s", key, value);
        for (char *c = word; *c && *c != '='; c++) {
            *c = *c == '_' ? '-' : *c;
        }
        append(&out->generate, &out->generates, word, strlen(word));
    }
    if (equation && out->generates == 0) {
        append(&out->generate, &out->generates, equation, strlen(equation));
    }
}

/* Settings of one section over `to`, of a variant those behind its name. */
static tg_status put_section(const builder *b, const char *section, const char *name,
                             tg_settings *to) {
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *key = within(tg_settings_key(b->file, i), section);
        key = key && name ? within(key, name) : key;
        if (key && !(name && strcmp(key, "published") == 0)) {
            CLI_CALL(tg_settings_set(to, key, tg_settings_value(b->file, i),
                                     tg_settings_origin(b->file, i)));
        }
    }
    return TG_OK;
}

static tg_status put_overrides(const builder *b, tg_settings *to) {
    for (int i = 0; i < b->source->args->override_count; i++) {
        const cli_override *o = &b->source->args->override[i];
        CLI_CALL(tg_settings_set(to, o->key, o->value, "command line"));
    }
    return TG_OK;
}

/* The file's "published" of a variant; with one value for each entry of the first axis a list. */
static char *find_published(const builder *b, const char *variant, const int *at) {
    char key[512], **value = NULL;
    snprintf(key, sizeof key, "variants.%s.published", variant);
    const char *text = tg_settings_get(b->file, key);
    char *found = NULL;
    if (!text || is_null(text)) {
        return NULL;
    }
    const int count = split_list(text, &value);
    const int index = b->out->axes > 0 && count > 1 ? at[0] : 0;
    if (count > 1 && (b->out->axes == 0 || count != b->axis[0].count)) {
        cli_mistake(b->mistakes, "%s: %s has %d values for %d of the first axis", b->source->path,
                    key, count, b->out->axes > 0 ? b->axis[0].count : 1);
    } else if (index < count && !is_null(value[index])) {
        found = cli_need(strdup(value[index]));
    }
    free_list(value, count);
    return found;
}

static tg_status add_cell(builder *b, const char *variant, const int *at) {
    cli_experiment *out = b->out;
    char name[200] = "", origin[300];
    tg_status status = TG_OK;
    out->cell = cli_need(realloc(out->cell, ((size_t)out->cells + 1) * sizeof *out->cell));
    cli_cell *cell = &out->cell[out->cells++];
    *cell = (cli_cell){.variant = cli_need(strdup(variant)),
                       .published = find_published(b, variant, at),
                       .epoch_seconds = (double)NAN};
    append_name(name, sizeof name, variant);
    status = tg_settings_copy(b->ctx, b->base, &cell->settings);
    if (status == TG_OK && variant[0]) {
        status = put_section(b, "variants", variant, cell->settings);
    }
    for (int a = 0; a < out->axes; a++) {
        const char *value = b->axis[a].value[at[a]], *dot = strrchr(out->axis[a], '.');
        const size_t used = strlen(name);
        snprintf(name + used, sizeof name - used, "%s%s=", used ? "_" : "",
                 dot ? dot + 1 : out->axis[a]);
        append_name(name, sizeof name, value);
        snprintf(origin, sizeof origin, "%s: axis %s", b->source->path, out->axis[a]);
        cell->value[a] = cli_need(strdup(value));
        if (status == TG_OK) {
            status = tg_settings_set(cell->settings, out->axis[a], value, origin);
        }
    }
    cell->name = cli_need(strdup(name[0] ? name : "run"));
    return status == TG_OK ? put_overrides(b, cell->settings) : status;
}

/* Every combination: variants, axes of the grid, entries of the list. */
static tg_status add_cells(builder *b) {
    const char *none = "";
    int entries = b->grid < b->out->axes ? b->axis[b->grid].count : 0; /* of the shortest list */
    for (int a = b->grid; a < b->out->axes; a++) {
        entries = b->axis[a].count < entries ? b->axis[a].count : entries;
    }
    for (int v = 0; v < (b->variants ? b->variants : 1); v++) {
        int at[CLI_SWEEP_KEYS] = {0};
        bool is_left = true;
        for (int a = 0; a < b->out->axes; a++) {
            is_left = is_left && b->axis[a].count > 0;
        }
        while (is_left && b->out->cells < CLI_SWEEP_TRIALS) {
            CLI_CALL(add_cell(b, b->variants ? b->variant[v] : none, at));
            is_left = false; /* the last digit that can goes on, those behind it begin anew */
            if (b->grid < b->out->axes && at[b->grid] + 1 < entries) {
                is_left = true;
                for (int a = b->grid; a < b->out->axes; a++) {
                    at[a]++;
                }
                continue;
            }
            for (int a = b->grid; a < b->out->axes; a++) {
                at[a] = 0;
            }
            for (int a = b->grid - 1; a >= 0 && !is_left; a--) {
                is_left = at[a] + 1 < b->axis[a].count;
                at[a] = is_left ? at[a] + 1 : 0;
            }
        }
    }
    return TG_OK;
}

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
        for (int r = 0; r < b->out->rates; r++) {
            add_trial(b, c, b->seeds > 0 ? read_integer(b, "seeds", b->seed[0]) : 0,
                      b->out->rate[r]);
        }
    }
    for (int s = 0; s < b->seeds; s++) {
        const int64_t seed = read_integer(b, "seeds", b->seed[s]);
        for (int c = 0; c < b->out->cells; c++) {
            add_trial(b, c, seed, NULL);
        }
    }
}

/* What seeds: and lr: set in every run, so that other values would be ignored. */
static void check_own_key(const builder *b, const char *origin, const char *key, bool is_varied) {
    if (strcmp(key, "distributed.seed") == 0) {
        cli_mistake(b->mistakes, "%s: distributed.seed: seeds: says which a sweep has", origin);
    }
    if (is_varied && b->out->rates > 0 && strcmp(key, "opt.learning_rate") == 0) {
        cli_mistake(b->mistakes,
                    "%s: opt.learning_rate: lr.values are tried instead; leave out one of both",
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
        if (!is_null(tg_settings_value(b->file, i)) && (of_all || varied)) {
            check_own_key(b, origin, of_all ? of_all : varied, varied);
        }
    }
    for (int i = 0; i < b->source->args->override_count; i++) {
        check_own_key(b, "command line", b->source->args->override[i].key, true);
    }
}

/* A copy of a text of the file; NULL if it is not there. */
static char *text_of(const builder *b, const char *key) {
    const char *value = tg_settings_get(b->file, key);
    return value && !is_null(value) ? cli_need(strdup(value)) : NULL;
}

/* The configuration that `base` names, beside the sweep's file; settings: and data over it. */
static tg_status read_base(builder *b) {
    const char *path = tg_settings_get(b->file, "base");
    if (path && !is_null(path)) {
        const char *slash = strrchr(b->source->path, '/');
        const int folder = slash && path[0] != '/' ? (int)(slash + 1 - b->source->path) : 0;
        char whole[2048];
        snprintf(whole, sizeof whole, "%.*s%s", folder, b->source->path, path);
        CLI_CALL(tg_settings_read_yaml(b->ctx, whole, &b->base));
    } else {
        CLI_CALL(tg_settings_create(b->ctx, &b->base));
    }
    if (b->out->generates > 0) {
        CLI_CALL(tg_settings_set(b->base, "data.root", b->source->data, "generate"));
    }
    return put_section(b, "settings", NULL, b->base);
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
    const char *seeds = tg_settings_get(b->file, "seeds");
    b->seeds = split_list(seeds && !is_null(seeds) ? seeds : "0", &b->seed);
    if (b->seeds == 0) {
        cli_mistake(b->mistakes, "%s: seeds is empty", b->source->path);
    }
    CLI_CALL(read_base(b));
    CLI_CALL(add_cells(b));
    add_trials(b);
    check_baseline(b);
    return TG_OK;
}

int cli_experiment_read(tg_context *ctx, const cli_sweep_source *source, cli_experiment *out,
                        cli_mistakes *mistakes) {
    tg_settings *file = NULL;
    builder b = {.ctx = ctx, .source = source, .out = out, .mistakes = mistakes};
    *out = (cli_experiment){0};
    tg_status status = tg_settings_read_yaml(ctx, source->path, &file);
    for (int64_t i = 0; status == TG_OK && i < tg_settings_count(file); i++) {
        check_key(file, i, mistakes);
    }
    status = status == TG_OK ? apply_scale(source, file, mistakes) : status;
    b.file = file;
    status = status == TG_OK ? build(&b) : status;
    for (int a = 0; a < CLI_SWEEP_KEYS; a++) {
        free_list(b.axis[a].value, b.axis[a].count);
    }
    free_list(b.variant, b.variants);
    free_list(b.seed, b.seeds);
    tg_settings_destroy(&b.base);
    tg_settings_destroy(&file);
    return cli_code(ctx, status);
}

void cli_experiment_free(cli_experiment *e) {
    for (int c = 0; c < e->cells; c++) {
        cli_cell *cell = &e->cell[c];
        for (int a = 0; a < CLI_SWEEP_KEYS; a++) {
            free(cell->value[a]);
        }
        free(cell->name);
        free(cell->variant);
        free(cell->published);
        tg_settings_destroy(&cell->settings);
    }
    for (int i = 0; i < e->trials; i++) {
        free(e->trial[i].name);
    }
    for (int a = 0; a < CLI_SWEEP_KEYS; a++) {
        free(e->axis[a]);
    }
    free_list(e->rate, e->rates);
    free_list(e->generate, e->generates);
    free(e->trial);
    free(e->cell);
    free(e->file);
    free(e->title);
    free(e->baseline);
    free(e->metric);
    *e = (cli_experiment){0};
}

tg_status cli_trial_settings(tg_context *ctx, const cli_experiment *e, const cli_trial *trial,
                             const char *rate, tg_settings **out) {
    char number[32];
    CLI_CALL(tg_settings_copy(ctx, e->cell[trial->cell].settings, out));
    snprintf(number, sizeof number, "%lld", (long long)trial->seed);
    CLI_CALL(tg_settings_set(*out, "distributed.seed", number, "seeds"));
    rate = trial->rate ? trial->rate : rate;
    if (rate) {
        CLI_CALL(tg_settings_set(*out, "opt.learning_rate", rate, "lr.values"));
    }
    if (trial->rate) { /* test data choose nothing */
        snprintf(number, sizeof number, "%lld", (long long)e->n_validation);
        CLI_CALL(tg_settings_set(*out, "data.n_validation", number, "lr.n_validation"));
        CLI_CALL(tg_settings_set(*out, "data.test_resolutions", "[]", "lr"));
        CLI_CALL(tg_settings_set(*out, "data.test_files", "[]", "lr"));
        if (e->search_epochs > 0) {
            snprintf(number, sizeof number, "%lld", (long long)e->search_epochs);
            CLI_CALL(tg_settings_set(*out, "opt.n_epochs", number, "lr.epochs"));
            CLI_CALL(tg_settings_set(*out, "opt.scheduler_T_max", number, "lr.epochs"));
        }
    }
    return TG_OK;
}
