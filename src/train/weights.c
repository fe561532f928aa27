/* Weights of other programs. neuraloperator's parameters have the same names and shapes here; a
 * state_dict may carry a prefix ("module.", "model."), and a file may hold tensors beside it. Only
 * names within a network's modules count, so that unrelated tensors are not mistaken for layers.
 *
 * neuraloperator 2.0 undoes its shift of frequencies by fftshift, which is one mode off in every
 * shifted dimension of odd size; on such grids its outputs differ from those made here. */
#include "train/model.h"

#include <stdio.h>
#include <string.h>

#include "nn/network.h"
#include "train/checkpoint.h"

/* ---- mismatches ---- */

/* A list of mismatches; counts those it has no room for. */
typedef struct complaints {
    char text[480];
    int count, left_out;
} complaints;

static void complain(complaints *c, const char *sentence) {
    const size_t used = strlen(c->text), length = strlen(sentence);
    c->count++;
    if (c->left_out > 0 || used + length + 3 > sizeof c->text) {
        c->left_out++;
        return;
    }
    snprintf(c->text + used, sizeof c->text - used, "%s%s", used ? "; " : "", sentence);
}

static void compare(const tg_fno *fno, const tg_archive *archive, const char *prefix,
                    complaints *c) {
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        char name[256], sentence[320], has[96], needs[96];
        const tg_shape whole = nn_whole_shape(&param);
        snprintf(name, sizeof name, "%s%s", prefix, param.name);
        const tg_tensor *found = tg_archive_find(archive, name);
        if (!found) {
            snprintf(sentence, sizeof sentence, "%s is missing", name);
        } else if (!tg_shape_equal(&found->shape, &whole)) {
            snprintf(sentence, sizeof sentence, "%s is %s, not %s", name,
                     tg_shape_text(&found->shape, has, sizeof has),
                     tg_shape_text(&whole, needs, sizeof needs));
        } else {
            continue;
        }
        complain(c, sentence);
    }
}

static bool is_param(const tg_fno *fno, const char *name) {
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        if (strcmp(tg_fno_get_param(fno, i).name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Lists tensors of the file that this network does not have, such as a fifth layer. */
static void find_others(const tg_fno *fno, const tg_archive *archive, const char *prefix,
                        complaints *c) {
    static const char *const modules[] = {"fno_blocks.", "lifting.", "projection."};
    const size_t skip = strlen(prefix);
    for (int64_t i = 0; i < tg_archive_count(archive); i++) {
        const char *name = tg_archive_name(archive, i);
        if (strncmp(name, prefix, skip) != 0) {
            continue;
        }
        for (int m = 0; m < 3; m++) {
            if (strncmp(name + skip, modules[m], strlen(modules[m])) == 0 &&
                !is_param(fno, name + skip)) {
                char sentence[320];
                snprintf(sentence, sizeof sentence, "%.250s is not in the network", name);
                complain(c, sentence);
            }
        }
    }
}

/* Finds the prefix of parameter names: the shortest text before one of them. */
static void find_prefix(const tg_fno *fno, const tg_archive *archive, char *prefix,
                        size_t capacity) {
    size_t shortest = capacity;
    prefix[0] = '\0';
    for (int p = 0; p < tg_fno_param_count(fno); p++) {
        const char *ending = tg_fno_get_param(fno, p).name;
        for (int64_t i = 0; i < tg_archive_count(archive); i++) {
            const char *name = tg_archive_name(archive, i);
            const size_t length = strlen(name), tail = strlen(ending);
            if (length >= tail && length - tail < shortest &&
                strcmp(name + length - tail, ending) == 0) {
                shortest = length - tail;
                snprintf(prefix, capacity, "%.*s", (int)shortest, name);
            }
        }
    }
}

/* ---- reading ---- */

static tg_status open_weights(tg_context *ctx, const char *path, tg_archive **out) {
    TG_CALL(tg_safetensors_read(ctx, path, out));
    if (tg_checkpoint_is_sealed(*out)) {
        TG_CALL(tg_checkpoint_check(ctx, path, false, *out));
    }
    return TG_OK;
}

static tg_status load(tg_model *model, const char *path, const tg_archive *archive) {
    complaints c = {.count = 0};
    char prefix[64], more[48] = "";
    find_prefix(model->fno, archive, prefix, sizeof prefix);
    compare(model->fno, archive, prefix, &c);
    find_others(model->fno, archive, prefix, &c);
    if (c.left_out > 0) {
        snprintf(more, sizeof more, "; and %d more", c.left_out);
    }
    if (c.count > 0) {
        return tg_fail(model->ctx, TG_E_SHAPE,
                       "%s: the weights do not fit the network of section fno: %s%s", path, c.text,
                       more);
    }
    model->is_imported = tg_checkpoint_is_imported(archive);
    return tg_fno_load(model->fno, archive, prefix);
}

tg_status tg_weights_read(tg_model *model, const char *path) {
    tg_status status = TG_OK;
    tg_archive *archive = NULL;
    TG_TRY(open_weights(model->ctx, path, &archive));
    TG_TRY(load(model, path, archive));
fail:
    tg_archive_destroy(&archive);
    return status;
}

tg_status tg_model_import(tg_context *ctx, const char *path, const tg_settings *settings,
                          tg_model **out) {
    TG_NEED_OUT(ctx, out, ctx, path, settings);
    tg_status status = TG_OK;
    tg_archive *archive = NULL;
    tg_run_config config;
    TG_TRY(tg_run_config_read_network(ctx, settings, 1, &config));
    TG_TRY(open_weights(ctx, path, &archive));
    TG_TRY(tg_model_create(ctx, settings, &config, out));
    TG_TRY(load(*out, path, archive));
    TG_TRY(tg_checkpoint_load_normalizers(*out, archive));
    TG_TRY(tg_model_check_normalizers(*out, path));
fail:
    tg_archive_destroy(&archive);
    if (status != TG_OK) {
        tg_model_destroy(out);
    }
    return status;
}

void tg_weights_check_grid(tg_model *model, const int64_t *grid) {
    const tg_fno_config *config = tg_fno_get_config(model->fno);
    const int shifted = config->complex_data ? config->n_dim : config->n_dim - 1;
    for (int d = 0; d < shifted && model->is_imported && !model->is_warned; d++) {
        if (grid[d] % 2 != 0) {
            tg_log(model->ctx, TG_LOG_WARN,
                   "the weights come from another program, and dimension %d has an odd number of "
                   "points, %lld: neuraloperator 2.0 shifts such grids by one mode, so that its "
                   "outputs differ from these",
                   d + 1, (long long)grid[d]);
            model->is_warned = true;
        }
    }
}
