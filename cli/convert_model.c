/* Models with spectral weights in another form. */
#include "convert_model.h"

#include <stdlib.h>

#include "model_file.h"
#include "output.h"
#include "text.h"

static int64_t count_parameters(const tg_fno *fno) {
    int64_t count = 0;
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        count += tg_shape_numel(&param.shape) * (tg_dtype_is_complex(param.dtype) ? 2 : 1);
    }
    return count;
}

static void report(const cli_model *before, tg_model *after, const char *path, const char *form,
                   const double *errors, bool json) {
    const tg_fno_config *config = tg_fno_get_config(tg_model_fno(after));
    const int64_t were = count_parameters(tg_model_fno(before->model));
    const int64_t are = count_parameters(tg_model_fno(after));
    json_t *weights = cli_json_array();
    if (!json) {
        cli_model_say_checkpoint(before);
    }
    for (int l = 0; l < (int)config->n_layers; l++) {
        char name[64];
        snprintf(name, sizeof name, "fno_blocks.convs.%d.weight", l);
        if (!json) {
            cli_say("%s: relative error %.3g", name, errors[l]);
            continue;
        }
        json_t *entry = cli_json_object();
        cli_json_set(entry, "name", cli_json_text(name));
        cli_json_set(entry, "relative_error", cli_json_real(errors[l]));
        cli_json_append(weights, entry);
    }
    if (!json) {
        json_decref(weights);
        cli_say("wrote %s: %s weights, %lld parameters of %lld (%.1f %%)", path, form,
                (long long)are, (long long)were, 100.0 * (double)are / (double)were);
        return;
    }
    json_t *object = cli_json_object();
    cli_json_set(object, "input", cli_json_text(before->path));
    cli_json_set(object, "output", cli_json_text(path));
    cli_json_set(object, "factorization", cli_json_text(form));
    cli_json_set(object, "parameters_before", cli_json_integer(were));
    cli_json_set(object, "parameters", cli_json_integer(are));
    cli_json_set(object, "weights", weights);
    cli_json_print(object);
}

static int convert(tg_context *ctx, const cli_model *model, const cli_form *form, const char *path,
                   bool json) {
    const char *name = form->densify ? "dense" : form->factorize;
    tg_fno_config network = *cli_model_config(model);
    tg_model *converted = NULL;
    double *errors = cli_need(calloc((size_t)cli_model_config(model)->n_layers, sizeof *errors));
    tg_status status = TG_OK;
    CLI_TRY(tg_fno_config_set(ctx, &network, "factorization", name));
    CLI_TRY(tg_fno_config_set(ctx, &network, "rank", form->densify ? "1" : form->rank));
    CLI_TRY(tg_model_factorize(model->model, &network, errors, &converted));
    CLI_TRY(tg_model_save(converted, path));
    report(model, converted, path, name, errors, json);
fail:
    tg_model_destroy(&converted);
    free(errors);
    return cli_code(ctx, status);
}

int cli_convert_model(const cli_call *call, const cli_form *form) {
    const char *path = call->args.item[1];
    if ((form->factorize != NULL) == form->densify ||
        (form->factorize != NULL) != (form->rank != NULL)) {
        return cli_usage("convert",
                         "a model takes --factorize FORM and --rank RANK, or --densify alone");
    }
    tg_context *ctx = NULL;
    cli_model model = {0};
    tg_file_format format;
    int code = cli_open_host_context("convert", call->common, &ctx);
    if (code != CLI_OK) {
        return code;
    }
    const tg_status status = tg_file_format_of_path(ctx, path, &format);
    if (status != TG_OK) {
        code = cli_fail_status(ctx, status);
    } else if (format != TG_FILE_SAFETENSORS) {
        code = cli_fail("%s: a model file is .safetensors", path);
    } else {
        code = cli_model_open(ctx, call->args.item[0], &model);
    }
    code = code == CLI_OK ? convert(ctx, &model, form, path, call->common->json) : code;
    cli_model_close(&model);
    tg_context_destroy(&ctx);
    return code;
}
