/* Finding and loading checkpoints and weights. */
#include "model_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

static const char *checkpoint;
static const char *config_path;
static bool normalizes;

const cli_option cli_model_options[] = {
    CLI_OPTION_TEXT("checkpoint", 0, &checkpoint, NULL, "best|last|STEP",
                    "which one, where MODEL is a run folder", "best"),
    CLI_OPTION_TEXT("config", 0, &config_path, NULL, "CONFIG.yaml",
                    "the network, where MODEL holds weights alone", NULL),
    CLI_OPTION_FLAG("normalize", 0, &normalizes,
                    "with --config: fit the normalizers on its training data"),
    {0},
};

static tg_status import(tg_context *ctx, const char *path, tg_model **out) {
    tg_settings *settings = NULL;
    tg_status status = TG_OK;
    CLI_TRY(tg_settings_read_yaml(ctx, config_path, &settings));
    CLI_TRY(tg_model_import(ctx, path, settings, out));
    if (normalizes) {
        CLI_TRY(tg_model_fit_normalizers(*out));
    }
fail:
    tg_settings_destroy(&settings);
    return status;
}

void cli_model_print_normalized(const cli_model *model) {
    const bool x = tg_model_normalizer(model->model, TG_DATA_X);
    const bool y = tg_model_normalizer(model->model, TG_DATA_Y);
    if (config_path) {
        fprintf(stderr, "tgrad: normalized: %s%s\n",
                x && y ? "input and output"
                : x    ? "the input"
                : y    ? "the output"
                       : "nothing",
                x || y || normalizes ? "" : " (--normalize fits on the training data of --config)");
    }
}

void cli_model_say_checkpoint(const cli_model *model) {
    const tg_model_origin origin = tg_model_get_origin(model->model);
    if (model->is_chosen && origin.text[0]) {
        cli_say("checkpoint: %s", origin.text);
    }
}

int cli_model_open(tg_context *ctx, const char *path, cli_model *out) {
    char file[4096];
    *out = (cli_model){0};
    if (normalizes && !config_path) {
        return cli_fail("--normalize is for weights with --config; a checkpoint has its own");
    }
    tg_status status = TG_OK;
    CLI_TRY(tg_run_checkpoint(ctx, path, checkpoint, file, sizeof file));
    out->path = cli_need(strdup(file));
    CLI_TRY(config_path ? import(ctx, file, &out->model) : tg_model_load(ctx, file, &out->model));
    out->is_chosen = cli_is_folder(path);
    return CLI_OK;
fail:
    cli_fail_status(ctx, status);
    cli_model_close(out);
    return CLI_FAILED;
}

void cli_model_set_json(json_t *object, const cli_model *model) {
    const tg_model_origin origin = tg_model_get_origin(model->model);
    const bool is_known = origin.text[0] != '\0';
    cli_json_put(object, KV("checkpoint", model->path),
                 KV("epoch", is_known ? cli_json_integer(origin.epoch) : json_null()),
                 KV("epochs", is_known ? cli_json_integer(origin.epochs) : json_null()),
                 KV("best_by", origin.is_best ? cli_json_text(origin.metric) : json_null()));
}

void cli_model_close(cli_model *model) {
    tg_model_destroy(&model->model);
    free(model->path);
    *model = (cli_model){0};
}

const tg_fno_config *cli_model_config(const cli_model *model) {
    return tg_fno_get_config(tg_model_fno(model->model));
}

tg_dtype cli_model_dtype(const cli_model *model) {
    const tg_fno_config *fno = cli_model_config(model);
    const bool is_double = fno->dtype == TG_F64;
    return fno->complex_data ? (is_double ? TG_C128 : TG_C64) : fno->dtype;
}

bool cli_on_points(const tg_fno_config *fno) {
    return fno->architecture == TG_ARCHITECTURE_GINO;
}

int cli_data_dims(const tg_fno_config *fno) {
    return cli_on_points(fno) ? 1 : fno->n_dim;
}
