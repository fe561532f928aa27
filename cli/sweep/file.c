/* Sections of the file, and the order of its runs. */
#include "sweep.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/run_settings.h"

/* ---- mistakes ---- */

void cli_mistake(cli_list *list, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->item[i], text) == 0) {
            return;
        }
    }
    cli_list_add(list, text, strlen(text));
}

/* ---- sections ---- */

static const char *const plain_keys[] = {"title",     "base",    "seeds",     "baseline",
                                         "metric",    "run",     "lr.values", "lr.n_validation",
                                         "lr.epochs", "lr.norm", NULL};
static const char *const sections[] = {"settings", "axes",   "list", "variants",
                                       "generate", "scales", NULL};

/* A key of the file, or of one of its scales. */
static void check_key(const tg_settings *file, int64_t index, cli_list *mistakes) {
    const char *key = tg_settings_key(file, index), *origin = tg_settings_origin(file, index);
    const char *of_scale = cli_sweep_within(key, "scales");
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
        if (cli_sweep_within(key, *section)) {
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
    for (int64_t i = 0; i < tg_settings_count(file); i++) {
        const char *rest = cli_sweep_within(tg_settings_key(file, i), "scales");
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

/* ---- reading ---- */

static void read_axes(cli_sweep_builder *b, const char *section) {
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *key = cli_sweep_within(tg_settings_key(b->file, i), section);
        const char *value = tg_settings_value(b->file, i), *origin = tg_settings_origin(b->file, i);
        if (!key || cli_word_is_null(value)) { /* a scale takes an axis away with null */
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

/* Names in the order in which they come. */
static void read_variants(cli_sweep_builder *b) {
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *rest = cli_sweep_within(tg_settings_key(b->file, i), "variants");
        if (!rest) {
            continue;
        }
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
static int64_t read_integer(cli_sweep_builder *b, const char *key, const char *value) {
    char *end = NULL;
    if (!value) {
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

static void read_search(cli_sweep_builder *b) {
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

static void read_generate(cli_sweep_builder *b) {
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
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *key = cli_sweep_within(tg_settings_key(b->file, i), "generate");
        const char *value = tg_settings_value(b->file, i);
        if (!key || strcmp(key, "equation") == 0 || cli_word_is_null(value)) {
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

static void add_trial(cli_sweep_builder *b, int cell, int64_t seed, const char *rate) {
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
static void add_trials(cli_sweep_builder *b) {
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
static void check_own_key(const cli_sweep_builder *b, const char *origin, const char *key,
                          bool is_varied) {
    if (strcmp(key, "distributed.seed") == 0) {
        cli_mistake(b->mistakes, "%s: distributed.seed: seeds: says which a sweep has", origin);
    }
    if (is_varied && b->out->rates.count > 0 && strcmp(key, "opt.learning_rate") == 0) {
        cli_mistake(b->mistakes,
                    "%s: opt.learning_rate: lr.values are tried instead; leave out one of both",
                    origin);
    }
}

static void check_own_keys(const cli_sweep_builder *b) {
    for (int64_t i = 0; i < tg_settings_count(b->file); i++) {
        const char *key = tg_settings_key(b->file, i), *origin = tg_settings_origin(b->file, i);
        const char *of_variant = cli_sweep_within(key, "variants"),
                   *of_all = cli_sweep_within(key, "settings");
        const char *varied = cli_sweep_within(key, "axes") ? cli_sweep_within(key, "axes")
                                                           : cli_sweep_within(key, "list");
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
static char *text_of(const cli_sweep_builder *b, const char *key) {
    const char *value = cli_setting_or(b->file, key, NULL);
    return value ? cli_need(strdup(value)) : NULL;
}

/* The configuration that `base` names, beside the sweep's file; settings: and data over it. */
static tg_status read_base(cli_sweep_builder *b) {
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
    return cli_sweep_put_section(b, "settings", NULL, b->base);
}

static void check_baseline(const cli_sweep_builder *b) {
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

static tg_status build(cli_sweep_builder *b) {
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
    CLI_CALL(cli_sweep_add_cells(b));
    add_trials(b);
    check_baseline(b);
    return TG_OK;
}

void cli_experiment_read(tg_context *ctx, const cli_sweep_source *source, cli_experiment *out,
                         cli_list *mistakes) {
    CLI_OWNED(tg_settings_destroy) tg_settings *file = NULL;
    cli_sweep_builder b = {.ctx = ctx, .source = source, .out = out, .mistakes = mistakes};
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

tg_status cli_trial_settings(tg_context *ctx, const cli_experiment *e, const cli_trial *trial,
                             const char *rate, tg_settings **out) {
    CLI_CALL(tg_settings_copy(ctx, e->cell[trial->cell].settings, out));
    CLI_CALL(cli_settings_set_integer(*out, "distributed.seed", trial->seed, "seeds"));
    rate = trial->rate ? trial->rate : rate;
    if (rate) {
        CLI_CALL(tg_settings_set(*out, "opt.learning_rate", rate, "lr.values"));
    }
    if (!trial->rate) {
        return TG_OK;
    }
    /* test data choose nothing */
    CLI_CALL(
        cli_settings_set_integer(*out, "data.n_validation", e->n_validation, "lr.n_validation"));
    CLI_CALL(tg_settings_set(*out, "data.test_resolutions", "[]", "lr"));
    CLI_CALL(tg_settings_set(*out, "data.test_files", "[]", "lr"));
    if (e->search_epochs == 0) {
        return TG_OK;
    }
    CLI_CALL(cli_settings_set_integer(*out, "opt.n_epochs", e->search_epochs, "lr.epochs"));
    return cli_settings_set_integer(*out, "opt.scheduler_T_max", e->search_epochs, "lr.epochs");
}
