/* Finding and loading checkpoints. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "output.h"
#include "text.h"

/* The checkpoint that `path` stands for, to be freed; NULL if a folder has none. */
static char *find_checkpoint(const char *path) {
    static const char *const names[] = {"best", "recent"};
    struct stat facts;
    if (stat(path, &facts) != 0 || !S_ISDIR(facts.st_mode)) {
        return cli_need(strdup(path)); /* the reader says what is wrong with it */
    }
    const size_t room = strlen(path) + 64;
    char *file = cli_need(malloc(room));
    for (int i = 0; i < 2; i++) {
        snprintf(file, room, "%s/checkpoints/%s.safetensors", path, names[i]);
        if (stat(file, &facts) == 0) {
            return file;
        }
    }
    free(file);
    return NULL;
}

int cli_model_open(tg_context *ctx, const char *path, cli_model *out) {
    *out = (cli_model){.path = find_checkpoint(path)};
    if (!out->path) {
        return cli_fail("%s is a folder without checkpoints/best.safetensors or "
                        "checkpoints/recent.safetensors",
                        path);
    }
    tg_status status = tg_model_load(ctx, out->path, &out->model);
    if (status != TG_OK) {
        cli_fail_status(ctx, status);
        cli_model_close(out);
        return CLI_FAILED;
    }
    return CLI_OK;
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
    return cli_model_config(model)->complex_data ? TG_C64 : TG_F32;
}
