/* tgrad profile: where the memory of a training step goes. */
#include <stdlib.h>
#include <string.h>

#include "common/input_files.h"
#include "common/run_settings.h"
#include "profile.h"

static struct {
    const char *preset;
    cli_list methods;
    int64_t batch, steps;
    const char *sweep;
    const char *figure;
    const char *output;
} opt = {.steps = 5};

static const char *const figures[] = {"datasets", "max-memory", NULL};

static const cli_option options[] = {
    CLI_OPTION_TEXT("preset", 0, &opt.preset, cli_presets, "NAME",
                    "ns128, ns1024(_max_memory), darcy421, burgers, em or gino, no file", NULL),
    CLI_OPTION_LIST("opt", 0, &opt.methods, "LIST", "adam, tensorgrad, .. or a list",
                    "the file's, or adam"),
    CLI_OPTION_INT("batch", 0, &opt.batch, 1, 1 << 30, "N", "samples of a step", "as set"),
    CLI_OPTION_INT("steps", 0, &opt.steps, 0, 10000, "N",
                   "steps to run on random data; 0: none, only the plan", "5"),
    CLI_OPTION_TEXT("sweep", 0, &opt.sweep, NULL, "KEY=V,V,..",
                    "plan a step for each value of a setting instead", NULL),
    CLI_OPTION_TEXT("figure", 0, &opt.figure, figures, "NAME",
                    "datasets: every preset; max-memory: the largest in several formats", NULL),
    CLI_OPTION_TEXT("output", 'o', &opt.output, NULL, "FILE", "write the chart (FILE.svg)", NULL),
    {0},
};

/* The settings of the command line, for titles: "batch 2, fno.n_layers 3". To be freed. */
static char *given_settings(const cli_args *args) {
    char *text =
        opt.batch > 0 ? cli_format("batch %lld", (long long)opt.batch) : cli_format("%s", "");
    for (int i = 0; i < args->override_count; i++) {
        CLI_FREED char *before = text;
        text = cli_format("%s%s%s %s", before, *before ? ", " : "", args->override[i].key,
                          args->override[i].value);
    }
    return text;
}

/* ---- a step ---- */

static json_t *json_of_parts(const size_t parts[CLI_PARTS], size_t total) {
    json_t *object = cli_json_object();
    for (int p = 0; p < CLI_PARTS; p++) {
        cli_json_set(object, cli_parts[p].key, cli_json_integer((int64_t)parts[p]));
    }
    cli_json_set(object, "total", cli_json_integer((int64_t)total));
    return object;
}

/* The bytes of each part, below a first column, and a last one. */
static void print_parts(const json_t *rows, const char *first, const char *last) {
    CLI_FREED char *columns =
        cli_format("%s|parameters>:parameters B|states>:optimizer_states B|inputs>:inputs B|"
                   "activations>:activations B|gradients>:gradients B|workspace>:workspace B|"
                   "all>:total B|%s",
                   first, last);
    cli_print_rows(rows, columns);
}

static json_t *json_of_phases(const cli_profile *p) {
    json_t *phases = cli_json_array();
    for (int i = 0; i < p->count; i++) {
        json_t *phase = json_of_parts(p->phase[i].alive, p->phase[i].total);
        cli_json_put(phase, KV("name", p->phase[i].phase.name),
                     KV("flops", json_real(p->phase[i].phase.flops)),
                     KV("traffic", json_real(p->phase[i].phase.traffic)),
                     KV("backward", json_boolean(p->phase[i].phase.is_backward)),
                     KV("refresh", json_boolean(p->phase[i].is_refresh)),
                     KV("peak", json_boolean(i == p->peak)));
        cli_json_append(phases, phase);
    }
    return phases;
}

static void print_json(const cli_profile *p) {
    json_t *object = cli_json_new(KV("name", p->name), KV("optimizer", p->method),
                                  KV("parameters", p->run->parameters),
                                  KV("held", json_of_parts(p->held, p->held_total)),
                                  KV("refresh", p->refresh_total), KV("phases", json_of_phases(p)));
    if (p->steps > 0) {
        json_t *measured = cli_json_new(KV("steps", p->steps), KV("step_ms", p->step_ms),
                                        KV("ledger", json_of_parts(p->counted, p->counted_peak)),
                                        KV("as_planned", json_boolean(p->as_planned)));
        cli_json_set(object, "measured", measured);
    }
    cli_json_print(object);
}

static void print_text(const cli_profile *p) {
    const cli_profile_phase *peak = &p->phase[p->peak];
    json_t *rows = json_of_phases(p), *held = json_of_parts(p->held, p->held_total);
    cli_json_put(held, KV("name", "held all the time"));
    cli_json_append(rows, held);
    cli_say("%s: %lld parameters, optimizer %s; alive in each phase of a step", p->name,
            (long long)p->run->parameters, p->method);
    putchar('\n');
    print_parts(rows, "phase:name", ":peak ?<- most/");
    json_decref(rows);
    printf("\nat most %s of the %s that are held are alive (%s); a step that refreshes holds up to "
           "%s\n",
           CLI_BYTES(peak->total), CLI_BYTES(peak->is_refresh ? p->refresh_total : p->held_total),
           peak->phase.name, CLI_BYTES(p->refresh_total));
    if (p->shares) {
        printf("%s\n", cli_profile_sharing);
    }
    if (p->steps > 0) {
        printf("%lld steps: %.2f ms each; the ledger counts %s at its highest, %s\n",
               (long long)p->steps, p->step_ms, CLI_BYTES(p->counted_peak),
               p->as_planned ? "as planned" : "OTHER THAN PLANNED");
    }
}

static void profile_step(tg_context *ctx, const char *name, const char *given,
                         const tg_settings *settings, const cli_common *common) {
    CLI_OWNED(cli_profile_free) cli_profile p = cli_profile_plan(ctx, name, settings);
    CLI_OWNED(cli_bytes_free) cli_html page = {0};
    p.given = given;
    if (opt.steps > 0) {
        cli_profile_run(ctx, settings, opt.steps, (uint64_t)common->seed, &p);
    }
    if (opt.output) {
        cli_profile_svg(&page, &p);
        cli_require(cli_write_file(opt.output, page.data, page.size));
    }
    (common->json ? print_json : print_text)(&p);
}

/* ---- a sweep ---- */

/* Sets a value; a single number of modes applies to every dimension. */
static tg_status set_value(tg_context *ctx, tg_settings *settings, const char *key,
                           const char *value, char *text, size_t capacity) {
    tg_fno_config fno = tg_fno_config_default();
    const char *modes = tg_settings_get(settings, "fno.n_modes");
    snprintf(text, capacity, "%s", value);
    if (strcmp(key, "fno.n_modes") == 0 && modes && *value != '[' &&
        tg_fno_config_set(ctx, &fno, "n_modes", modes) == TG_OK) {
        size_t used = (size_t)snprintf(text, capacity, "[");
        for (int d = 0; d < fno.n_dim && used < capacity; d++) {
            used += (size_t)snprintf(text + used, capacity - used, "%s%.20s", d ? ", " : "", value);
        }
        if (used < capacity) {
            snprintf(text + used, capacity - used, "]");
        }
    }
    return tg_settings_set(settings, key, text, "--sweep");
}

/* Parts of a training step with these settings and an optimizer; NULL: the one that is set. */
static tg_status plan_step(tg_context *ctx, tg_settings *settings, const char *method,
                           cli_sweep_point *out) {
    static tg_train_memory memory; /* large */
    CLI_CALL(method ? tg_settings_set(settings, "opt.name", method, "--opt") : TG_OK);
    CLI_CALL(tg_train_plan(ctx, settings, 1, &memory));
    for (int i = 0; i < memory.count; i++) {
        if (strcmp(memory.phase[i].name, "training step") == 0) {
            cli_parts_of(memory.phase[i].bytes[memory.place], out->parts);
            out->total = memory.phase[i].total[memory.place];
        }
    }
    out->method = method ? method : "as set";
    out->parameters = memory.parameters;
    return TG_OK;
}

static void plan_point(tg_context *ctx, const tg_settings *settings, const char *key,
                       const char *value, const char *method, cli_sweep_point *out) {
    CLI_OWNED(tg_settings_destroy) tg_settings *copy = NULL;
    char text[sizeof out->value];
    snprintf(out->value, sizeof out->value, "%s", value);
    cli_check(tg_settings_copy(ctx, settings, &copy));
    cli_check(set_value(ctx, copy, key, value, text, sizeof text));
    cli_check(plan_step(ctx, copy, method, out));
}

static void print_sweep(const cli_sweep *s, bool json) {
    json_t *list = cli_json_array();
    for (int i = 0; i < s->values * s->methods; i++) {
        json_t *point = json_of_parts(s->point[i].parts, s->point[i].total);
        cli_json_put(point, KV("value", s->point[i].value), KV("optimizer", s->point[i].method),
                     KV("parameter_count", s->point[i].parameters));
        if (s->is_relative) {
            const double saved = cli_states_saved(s, i / s->methods, i % s->methods);
            cli_json_set(point, "states_saved_percent", json_real(saved));
        }
        cli_json_append(list, point);
    }
    if (json) {
        cli_json_print(
            cli_json_new(KV(s->figure ? "figure" : "sweep", s->figure ? s->figure : s->key),
                         KV("points", list)));
        return;
    }
    CLI_FREED char *first = cli_format("%s:value", s->key);
    print_parts(list, first, "optimizer:optimizer");
    json_decref(list);
}

/* Writes the chart, if one is wanted, and prints the numbers. */
static void show_sweep(const cli_sweep *s, bool json) {
    CLI_OWNED(cli_bytes_free) cli_html page = {0};
    if (opt.output) {
        cli_sweep_svg(&page, s);
        cli_require(cli_write_file(opt.output, page.data, page.size));
    }
    print_sweep(s, json);
}

static void profile_sweep(tg_context *ctx, const char *name, const char *given,
                          const tg_settings *settings, const cli_common *common) {
    CLI_FREED char *text = cli_need(strdup(opt.sweep));
    char *equals = strchr(text, '=');
    cli_list values = {0};
    if (equals) {
        *equals = '\0';
        CLI_FREED char *list = cli_format("[%s]", equals + 1); /* a value may have commas in [] */
        values = cli_list_of(list);
    }
    bool is_good = values.count > 0 && strchr(text, '.');
    for (int i = 0; i < values.count; i++) {
        is_good = is_good && values.item[i][0];
    }
    if (!is_good) {
        cli_misuse("profile", "--sweep needs section.key=value,value,.., not '%.64s'", opt.sweep);
    }
    cli_sweep s = {.name = name,
                   .key = text,
                   .given = given,
                   .values = values.count,
                   .methods = opt.methods.count > 0 ? opt.methods.count : 1};
    s.point = cli_need(calloc((size_t)s.values * (size_t)s.methods, sizeof *s.point));
    for (int i = 0; i < s.values * s.methods; i++) {
        const char *method = opt.methods.count > 0 ? opt.methods.item[i % s.methods] : NULL;
        plan_point(ctx, settings, s.key, values.item[i / s.methods], method, &s.point[i]);
    }
    show_sweep(&s, common->json);
    free(s.point);
    cli_list_free(&values);
}

/* ---- figures: every dataset, and the largest network in several storage formats ---- */

#define LARGEST "ns1024_max_memory"

static const char *sizes_text(int n_dim, const int64_t *sizes, char text[TG_GRID_TEXT]) {
    const tg_shape shape = tg_shape_of(n_dim, sizes);
    return tg_shape_text(&shape, text, TG_GRID_TEXT);
}

static void describe(const cli_problem *problem, cli_sweep_point *out) {
    const tg_fno_config *fno = &problem->fno;
    char(*line)[CLI_ABOUT_TEXT] = out->about, text[TG_GRID_TEXT];
    const bool on_points = cli_on_points(fno);
    int used = 0;
    snprintf(line[0], CLI_ABOUT_TEXT, "%s%s, batch %lld",
             sizes_text(cli_data_dims(fno), problem->data, text), on_points ? " points" : "",
             (long long)problem->batch);
    if (on_points) {
        used = snprintf(line[1], CLI_ABOUT_TEXT, "%s, ",
                        sizes_text(fno->n_dim, problem->latent, text));
    }
    snprintf(line[1] + used, CLI_ABOUT_TEXT - (size_t)used, "%s modes",
             sizes_text(fno->n_dim, fno->n_modes, text));
    snprintf(line[2], CLI_ABOUT_TEXT, "%lld channels, %lld layers", (long long)fno->hidden_channels,
             (long long)fno->n_layers);
    snprintf(line[3], CLI_ABOUT_TEXT, "%.1f million parameters", 1e-6 * (double)out->parameters);
}

/* A figure: its rows are presets, described by their sizes, or settings over a preset, which have a
 * name and two lines below it. */
static const struct figure {
    const char *name, *title, *key;
    bool is_relative;
    struct figure_row {
        const char *preset, *value, *about[2], *settings[3][2];
    } rows[7]; /* ended by a row without a preset */
} figure_list[] = {
    {"datasets",
     "FNO and GINO",
     "datasets",
     true,
     {{.preset = "burgers"},
      {.preset = "darcy421"},
      {.preset = "ns128"},
      {.preset = "ns1024"},
      {.preset = "em"},
      {.preset = "gino"}}},
    {"max-memory",
     LARGEST,
     "the storage format",
     false,
     {{LARGEST, "full", {"all in f32"}, {{NULL}}},
      {LARGEST,
       "full +",
       {"all in f32,", "block checkpointing"},
       {{"fno.activation_checkpoint", "block"}}},
      {LARGEST,
       "H",
       {"weights, gradients,", "activations in f16"},
       {{"fno.fno_block_precision", "half"}, {"fno.fno_block_weights_precision", "half"}}},
      {LARGEST,
       "H +",
       {"the same,", "block checkpointing"},
       {{"fno.fno_block_precision", "half"},
        {"fno.fno_block_weights_precision", "half"},
        {"fno.activation_checkpoint", "block"}}},
      {LARGEST,
       "mixed",
       {"weights in bf16, saved", "activations in 8 bits"},
       {{"fno.precision", "mixed"}}},
      {LARGEST,
       "mixed, 8-bit moments",
       {"the same,", "8-bit moments"},
       {{"fno.precision", "mixed"}, {"opt.state_precision", "8bit"}}}}},
};

/* One row with every method. False, with a warning, for a preset that the backend cannot compute.
 */
static bool plan_row(tg_context *ctx, const cli_args *args, const struct figure_row *row,
                     cli_sweep_point *points, int methods) {
    const cli_run_source source = {
        .command = "profile", .preset = row->preset, .batch = opt.batch, .args = args};
    bool has_data = false;
    CLI_OWNED(tg_settings_destroy)
    tg_settings *settings = cli_run_settings_read(ctx, &source, &has_data);
    for (int i = 0; i < 3 && row->settings[i][0]; i++) {
        cli_check(tg_settings_set(settings, row->settings[i][0], row->settings[i][1], "figure"));
    }
    for (int m = 0; m < methods; m++) {
        const tg_status status = plan_step(ctx, settings, opt.methods.item[m], &points[m]);
        if (m == 0 && !row->value && status == TG_E_UNSUPPORTED) {
            cli_warn("%s is left out: %s", row->preset, tg_context_error(ctx));
            return false;
        }
        cli_check(status);
        snprintf(points[m].value, sizeof points[m].value, "%s",
                 row->value ? row->value : row->preset);
        for (int line = 0; line < 2 && row->about[line]; line++) {
            snprintf(points[m].about[line], CLI_ABOUT_TEXT, "%s", row->about[line]);
        }
    }
    if (!row->value) {
        const cli_problem problem = cli_problem_from(ctx, row->preset, settings);
        for (int m = 0; m < methods; m++) {
            describe(&problem, &points[m]);
        }
    }
    return true;
}

static void profile_figure(tg_context *ctx, const cli_args *args, const char *given, bool json) {
    const struct figure *f = &figure_list[strcmp(opt.figure, figure_list[0].name) == 0 ? 0 : 1];
    if (opt.methods.count == 0) {
        cli_list_add(&opt.methods, "adam", 4);
        cli_list_add(&opt.methods, "tensorgrad", 10);
    }
    cli_sweep s = {.name = f->title,
                   .key = f->key,
                   .figure = f->name,
                   .given = given,
                   .is_relative = f->is_relative,
                   .methods = opt.methods.count};
    s.point =
        cli_need(calloc(sizeof f->rows / sizeof f->rows[0] * (size_t)s.methods, sizeof *s.point));
    for (const struct figure_row *row = f->rows; row->preset; row++) {
        s.values += plan_row(ctx, args, row, &s.point[s.values * s.methods], s.methods);
    }
    show_sweep(&s, json);
    free(s.point);
}

static int run(const cli_call *call) {
    const char *config = call->args.count > 0 ? call->args.item[0] : NULL;
    const cli_run_source source = {
        .command = "profile",
        .preset = opt.preset,
        .config = config,
        .method = opt.methods.count > 0 ? opt.methods.item[0] : NULL,
        .batch = opt.batch,
        .args = &call->args,
    };
    if (opt.methods.count > 1 && !opt.sweep && !opt.figure) {
        return cli_usage("profile", "--opt takes one optimizer, or several with --sweep");
    }
    if (opt.figure && (opt.sweep || opt.preset || config)) {
        return cli_usage("profile", "--figure takes no file, --preset or --sweep");
    }
    if (opt.output && !cli_ends_with(opt.output, ".svg")) {
        return cli_usage("profile", "-o writes a chart, FILE.svg, not '%.64s'", opt.output);
    }
    CLI_FREED char *given = given_settings(&call->args);
    bool has_data = false;
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, true);
    if (opt.figure) {
        profile_figure(ctx, &call->args, given, call->common->json);
        return CLI_OK;
    }
    CLI_OWNED(tg_settings_destroy)
    tg_settings *settings = cli_run_settings_read(ctx, &source, &has_data);
    (opt.sweep ? profile_sweep : profile_step)(ctx, opt.preset ? opt.preset : config, given,
                                               settings, call->common);
    return CLI_OK;
}

const cli_command cli_cmd_profile = {
    .name = "profile",
    .arguments = "[CONFIG]",
    .args = {0, 1},
    .summary = "Show where the memory of a training step goes, and when",
    .description =
        "Parameters, optimizer states, inputs, activations, gradients and workspace in every\n"
        "phase of a step. Buffers share arenas that are allocated before the first step, so\n"
        "the allocated bytes are constant; the chart shows the bytes in use beside them.\n"
        "Then some steps run on random data, and the memory ledger is compared with the plan.\n"
        "--json also reports arithmetic (flops) and bytes read and written (traffic).\n"
        "\n"
        "--sweep plans a step for each value of a setting instead, for one optimizer or\n"
        "several; for fno.n_modes a number applies to every dimension. --figure datasets plans\n"
        "the preset of every dataset, in % of its first optimizer (--opt adam,tensorgrad by\n"
        "default). --figure max-memory plans ns1024_max_memory in\n"
        "several storage formats: H keeps weights, gradients and activations in half precision,\n"
        "and + recomputes the activations of each block.\n",
    .examples =
        "  tgrad profile configs/darcy16.yaml -o profile.svg\n"
        "  tgrad profile --preset ns1024 --opt tensorgrad --steps 0\n"
        "  tgrad profile --preset ns128 --opt adam,tensorgrad --sweep fno.n_modes=16,32,64,128\n"
        "  tgrad profile --figure datasets -o datasets.svg\n"
        "  tgrad profile --figure max-memory --backend cpu -o memory.svg\n",
    .options = options,
    .takes = CLI_TAKES_JSON | CLI_TAKES_DEVICE | CLI_TAKES_SEED | CLI_TAKES_OVERRIDES,
    .run = run,
};
