/* Presets, the settings of the paper's experiments; and a step from the settings of a run. */
#include "problem.h"

#include <stdlib.h>
#include <string.h>

#include "input_files.h"
#include "run_settings.h"

/* The settings that presets choose, and those of a GINO alone. */
static const char *const preset_keys[] = {"fno.n_modes",
                                          "data.train_resolution",
                                          "data.batch_size",
                                          "fno.in_channels",
                                          "fno.hidden_channels",
                                          "fno.n_layers",
                                          "fno.projection_channel_ratio",
                                          "fno.complex_data",
                                          "opt.training_loss",
                                          "opt.learning_rate",
                                          "opt.weight_decay",
                                          "opt.update_proj_gap",
                                          "fno.architecture",
                                          "data.latent_grid",
                                          "fno.in_gno_radius",
                                          "fno.out_gno_radius"};

enum { PRESET_KEYS = sizeof preset_keys / sizeof preset_keys[0] };

/* clang-format off */
static const struct {
    const char *name, *value[PRESET_KEYS]; /* NULL: not set */
} presets[] = {
    {"ns128",    {"[64, 64]",  "128",  "8", "1", "64", "4", "4", "false",
                  "h1", "0.0003", "0.0001", "1000"}},
    {"ns1024",   {"[128, 128]", "1024", "2", "1", "128", "4", "4", "false",
                  "l2", "0.005", "0.0001", "500"}},
    {"ns1024_max_memory", {"[128, 128]", "1024", "2", "1", "255", "4", "1.00392157", "false",
                  "l2", "0.005", "0.0001", "500"}},
    {"darcy421", {"[64, 64]",  "421",  "2", "1", "128", "4", "1", "false",
                  "l2", "0.001", "0.0001", "1000"}},
    {"burgers",  {"[90]",      "128", "16", "1", "256", "4", "1", "false",
                  "h1", "0.0003", "2e-06", "1000"}},
    {"em",       {"[128]",    "1024", "32", "4", "128", "8", "1", "true",
                  "h1", "0.0001", "2e-06", "1000"}},
    {"gino",     {"[16, 16, 16]", "4000", "1", "3", "64", "4", "4", "false",
                  "l2", "0.001", "0.0001", "1000", "gino", "32", "0.05", "0.05"}},
};
/* clang-format on */

const char *const cli_presets[] = {
    "ns128", "ns1024", "ns1024_max_memory", "darcy421", "burgers", "em", "gino", NULL};

/* ---- reading ---- */

/* One size for every dimension, or one for each. */
static void set_grid(int sizes, const int64_t *points, int64_t grid[TG_FNO_MAX_DIMS]) {
    for (int d = 0; d < TG_FNO_MAX_DIMS; d++) {
        grid[d] = sizes == 1 ? points[0] : d < sizes ? points[d] : 0;
    }
}

/* Fills the sizes that the network is prepared for from the settings. */
static void finish(tg_context *ctx, cli_problem *problem) {
    const tg_fno_config *fno = &problem->fno;
    const bool on_points = cli_on_points(fno);
    memset(problem->grid, 0, sizeof problem->grid);
    for (int d = 0; d < fno->n_dim; d++) {
        problem->grid[d] = on_points ? problem->latent[d] : problem->data[d];
    }
    if (on_points) {
        problem->grid[fno->n_dim] = problem->grid[fno->n_dim + 1] = problem->data[0];
    }
    cli_check(tg_fno_config_check(ctx, fno));
}

tg_status cli_preset_settings(const char *name, tg_settings *out) {
    int p = 0;
    while (strcmp(presets[p].name, name) != 0) {
        p++;
    }
    for (int k = 0; k < PRESET_KEYS && presets[p].value[k]; k++) {
        CLI_CALL(tg_settings_set(out, preset_keys[k], presets[p].value[k], name));
    }
    return TG_OK;
}

static bool is_optim_key(const char *key) {
    bool found = strcmp(key, "name") == 0;
    for (int i = 0; tg_optim_config_key(i); i++) {
        found = found || strcmp(tg_optim_config_key(i), key) == 0;
    }
    return found;
}

/* A size in 1 .. 2^40. */
static int64_t read_size(const char *origin, const char *key, const char *value) {
    char *end = NULL;
    const long long size = strtoll(value, &end, 10);
    if (end == value || *end || size < 1 || size > (long long)1 << 40) {
        cli_die("%s: %s: '%.40s' is not a positive integer", origin, key, value);
    }
    return size;
}

/* One setting. Keys that do not concern the step are skipped, except on the command line
 * (strict). */
static void apply(tg_context *ctx, const char *origin, const char *key, const char *value,
                  bool strict, cli_problem *problem) {
    tg_status status = TG_OK;
    if (strcmp(key, "model") == 0) { /* as runs take it */
        status = tg_fno_config_set(ctx, &problem->fno, "architecture", value);
    } else if (strncmp(key, "fno.", 4) == 0) {
        status = tg_fno_config_set(ctx, &problem->fno, key + 4, value);
    } else if (strcmp(key, "opt.training_loss") == 0) {
        snprintf(problem->loss, sizeof problem->loss, "%s", value);
    } else if (strncmp(key, "opt.", 4) == 0 && (strict || is_optim_key(key + 4))) {
        status = tg_optim_config_set(ctx, &problem->optim, key + 4, value);
    } else if (strcmp(key, "data.batch_size") == 0) {
        problem->batch = read_size(origin, key, value);
    } else if (strcmp(key, "data.train_resolution") == 0 || strcmp(key, "data.latent_grid") == 0) {
        int64_t points[TG_DATA_MAX_DIMS];
        const int sizes = tg_grid_parse(value, points);
        set_grid(sizes, points, key[5] == 't' ? problem->data : problem->latent);
        if (sizes < 1) {
            cli_die("%s: %s: '%.40s' is not a grid (16, 48x80 or [48, 80])", origin, key, value);
        }
    } else if (strict) {
        cli_die("%s: %s does not matter to a step; fno.*, opt.*, data.batch_size, "
                "data.train_resolution and data.latent_grid do",
                origin, key);
    }
    if (status != TG_OK) {
        cli_die("%s: %s", origin, tg_context_error(ctx));
    }
}

/* `strict`: settings of the command line must concern the step. */
static cli_problem read_problem(tg_context *ctx, const char *name, const tg_settings *settings,
                                bool strict) {
    cli_problem out = {.name = name,
                       .fno = tg_fno_config_default(),
                       .method = cli_setting_or(settings, "opt.name", "adam"),
                       .optim = tg_optim_config_default(),
                       .batch = 16,
                       .latent = {16, 16, 16},
                       .loss = "h1"};
    for (int names = 1; names >= 0; names--) { /* a method's name before all that changes it */
        for (int64_t i = 0; i < tg_settings_count(settings); i++) {
            const char *key = tg_settings_key(settings, i), *value = tg_settings_value(settings, i);
            const char *given = tg_settings_origin(settings, i), *origin = given ? given : name;
            if ((strcmp(key, "opt.name") == 0) == (names == 1)) {
                apply(ctx, origin, key, value, strict && strcmp(origin, name) != 0, &out);
            }
        }
    }
    finish(ctx, &out);
    return out;
}

cli_problem cli_problem_from(tg_context *ctx, const char *name, const tg_settings *settings) {
    return read_problem(ctx, name, settings, false);
}

cli_problem cli_problem_of_preset(tg_context *ctx, const char *name, const char *method,
                                  const cli_args *args) {
    CLI_OWNED(tg_settings_destroy) tg_settings *settings = NULL;
    cli_check(tg_settings_create(ctx, &settings));
    cli_check(cli_preset_settings(name, settings));
    cli_check(tg_settings_set(settings, "opt.name", method, "--opt"));
    cli_check(tg_settings_set(settings, "opt.update_proj_gap", "4", name));
    cli_check(cli_settings_override(settings, args));
    cli_problem out = read_problem(ctx, name, settings, true);
    out.method = method;
    return out;
}

/* ---- the optimizer ---- */

void cli_begin_schedule(tg_optim_config *optim) {
    optim->total_steps = optim->total_steps > 0 ? optim->total_steps : INT64_C(1000000000000000);
}

tg_status cli_setup_make(tg_context *ctx, const cli_problem *problem, const tg_fno *fno,
                         uint64_t seed, cli_setup *out) {
    const int count = tg_fno_param_count(fno);
    bool forms_bf16 = false;
    *out = (cli_setup){.groups = {problem->optim, problem->optim}};
    out->groups[1].is_projected = false;
    for (int i = 0; i < 2; i++) {
        cli_begin_schedule(&out->groups[i]);
    }
    out->params = cli_need(calloc((size_t)count, sizeof *out->params));
    for (int i = 0; i < count; i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        out->params[i] = (tg_optim_param){.name = param.name,
                                          .dtype = param.dtype,
                                          .shape = param.shape,
                                          .group = param.spectral ? 0 : 1};
        forms_bf16 = forms_bf16 || param.gradient == TG_CBF16;
    }
    out->setup = (tg_optim_setup){.size = sizeof(tg_optim_setup),
                                  .groups = out->groups,
                                  .group_count = 2,
                                  .params = out->params,
                                  .param_count = count,
                                  .seed = seed,
                                  .takes_factored = true,
                                  .forms_bf16 = forms_bf16,
                                  .shares_workspace = true};
    return tg_step_choose_refresh_chunks(ctx, &problem->fno, problem->batch, problem->grid,
                                         &out->setup, out->groups);
}

void cli_setup_free(cli_setup *setup) {
    free(setup->params);
    *setup = (cli_setup){0};
}

/* ---- memory ---- */

/* Input and target of a batch. */
static size_t data_bytes(const cli_problem *problem) {
    const tg_fno_config *fno = &problem->fno;
    int64_t numbers = problem->batch * (fno->in_channels + fno->out_channels);
    for (int d = 0; d < cli_data_dims(fno); d++) {
        numbers *= problem->data[d];
    }
    return (size_t)numbers * tg_dtype_size(fno->dtype) * (fno->complex_data ? 2 : 1);
}

tg_status cli_problem_phases(tg_context *ctx, const cli_problem *p, tg_fno_phase **out,
                             int *count) {
    CLI_CALL(tg_fno_phases(ctx, &p->fno, p->batch, p->grid, NULL, 0, count));
    *out = cli_need(calloc((size_t)*count + 1, sizeof **out));
    return tg_fno_phases(ctx, &p->fno, p->batch, p->grid, *out, *count, count);
}

tg_status cli_problem_needs(tg_context *ctx, const cli_problem *problem, bool accumulates,
                            tg_optim_memory *optim, tg_fno_memory *step) {
    CLI_OWNED(tg_fno_destroy) tg_fno *outline = NULL;
    CLI_OWNED(cli_setup_free) cli_setup setup = {0};
    CLI_CALL(tg_fno_outline(ctx, &problem->fno, &outline));
    CLI_CALL(cli_setup_make(ctx, problem, outline, 0, &setup));
    setup.setup.accumulates = accumulates;
    setup.setup.forms_bf16 = setup.setup.forms_bf16 && !accumulates;
    CLI_CALL(tg_optim_plan_memory(ctx, &setup.setup, optim));
    return tg_fno_plan(ctx, &problem->fno, problem->batch, problem->grid, true, &optim->shared,
                       step);
}

tg_status cli_problem_plan(tg_context *ctx, const cli_problem *problem, cli_memory_plan *out) {
    tg_fno_memory step = {0}, inference = {0};
    tg_optim_memory optimizer = {0};
    const tg_mem_usage host = tg_context_memory(ctx, TG_HOST);
    const tg_mem_usage device = tg_context_memory(ctx, TG_DEVICE);
    *out = (cli_memory_plan){0};
    CLI_CALL(cli_problem_needs(ctx, problem, false, &optimizer, &step));
    CLI_CALL(
        tg_fno_plan(ctx, &problem->fno, problem->batch, problem->grid, false, NULL, &inference));
    out->parameters = step.parameters;
    out->inference = inference.total;
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        out->bytes[c] = host.current[c] + device.current[c] + step.bytes[c] + optimizer.bytes[c] +
                        optimizer.refresh[c];
        out->bytes[c] += c == TG_MEM_DATA        ? data_bytes(problem)
                         : c == TG_MEM_WORKSPACE ? optimizer.host + optimizer.host_refresh
                                                 : 0;
        out->peak += out->bytes[c];
    }
    return TG_OK;
}
