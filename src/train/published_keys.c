/* Settings of the published programs that have no field here. Their configurations are accepted
 * as long as they ask for this program's behaviour; other values are refused, so that a run never
 * silently differs from its configuration. */
#include "train/config.h"

#include <stdio.h>
#include <string.h>

#include "base/setting.h"
#include "io/settings.h"
#include "optim/optim.h"

static const struct {
    const char *theirs, *ours;
} names[] = {
    {"fno.data_channels", "fno.in_channels"},
    {"fno.modes", "fno.n_modes"},
    {"model", "fno.architecture"},
    {"fno.skip", "fno.fno_skip"},
    {"fno.mlp_expansion", "fno.channel_mlp_expansion"},
    {"fno.mlp_dropout", "fno.channel_mlp_dropout"},
    {"fno.mlp_skip", "fno.channel_mlp_skip"},
    {"fno.use_mlp", "fno.use_channel_mlp"},
    {"incremental.incremental_loss_gap", "opt.incremental_loss_gap"},
    {"incremental.incremental_grad", "opt.incremental_grad"},
    {"incremental.incremental_loss_eps", "opt.incremental_loss_eps"},
    {"incremental.incremental_grad_eps", "opt.incremental_grad_eps"},
    {"incremental.incremental_buffer", "opt.incremental_buffer"},
    {"incremental.incremental_grad_max_iter", "opt.incremental_grad_max_iter"},
    {"opt.lambda_sparse", "opt.tensorgrad_sum_lambda_sparse"},
    {"data.folder", "data.root"},
    {"data.train_path", "data.root"},
};

#define ANY  "*" /* any value: it has no effect */
#define NONE ""  /* no value is accepted */

#define DENSE     "spectral weights are dense here; opt.name: tensorgrad makes their gradients small"
#define PRECISION "take fno.activation_precision: bf16 or fno.fno_block_precision: mixed"
#define PATCHES   "a network sees the whole grid here"
#define GROWING   "fno.n_modes is the largest number, fno.incremental_n_modes the first one"
#define RATIO(of) "it is set as fno." of "_channel_ratio, a multiple of fno.hidden_channels"

/* theirs: a key, or a section ending with a dot; the first match counts. same: values, separated by
 * '|', that mean this program's behaviour. instead: what to set for other values. */
static const struct {
    const char *theirs, *same, *instead;
} rows[] = {
    {"arch", "fno|fno1d|fno2d|fno3d", "the network is a Fourier neural operator: fno"},
    {"n_params_baseline", ANY, NULL},
    {"profile", ANY, NULL},
    {"verbose", ANY, NULL},
    {"wandb.", ANY, NULL},
    {"patching.levels", "0", PATCHES},
    {"patching.padding", "0", PATCHES},
    {"patching.stitching", "false", PATCHES},
    {"incremental.incremental_res", "false", "a second stage trains on a finer grid: stage2.data"},
    {"incremental.", ANY, NULL}, /* details of features refused above */
    {"distributed.use_distributed", "false", "one process trains, on one GPU or all cores"},
    {"distributed.model_parallel_size", ANY, NULL}, /* of the feature refused above */
    {"distributed.wireup_info", ANY, NULL},
    {"distributed.wireup_store", ANY, NULL},
    {"data.download", ANY, NULL},
    {"data.max_chunk_data_fitting", ANY, NULL},
    {"data.num_workers", ANY, NULL},
    {"data.pin_memory", ANY, NULL},
    {"data.positional_encoding", "true", "take fno.positional_embedding: null"},
    {"fno.dropout", "0", "take fno.channel_mlp_dropout"},
    {"fno.fft_norm", "forward", "transforms are scaled forward here"},
    {"fno.half_prec_fourier", "false", PRECISION},
    {"fno.half_prec_inverse", "false", PRECISION},
    {"fno.joint_factorization", "false", DENSE},
    {"fno.lifting_channels", NONE, RATIO("lifting")},
    {"fno.max_n_modes", "null", GROWING},
    {"fno.mlp.dropout", NONE, "it is called fno.channel_mlp_dropout here"},
    {"fno.mlp.expansion", NONE, "it is called fno.channel_mlp_expansion here"},
    {"fno.n_modes_depth", NONE, "it is an entry of fno.n_modes here"},
    {"fno.n_modes_height", NONE, "it is an entry of fno.n_modes here"},
    {"fno.n_modes_width", NONE, "it is an entry of fno.n_modes here"},
    {"fno.no_skips", "false", "take fno.fno_skip and fno.channel_mlp_skip"},
    {"fno.projection_channels", NONE, RATIO("projection")},
    {"fno.resolution_scaling_factor", "null|1", "output and input have the same grid"},
    {"fno.tensor_lasso_penalty", "0", DENSE},
    {"opt.activation_checkpoint", "false", "it is called fno.activation_checkpoint here"},
    {"opt.adamw_support_complex", "true", "take opt.complex_adam: split"},
    {"opt.amp_autocast", "false", PRECISION},
    {"opt.checkpointing", "false",
     "the run is saved every opt.save_every epochs anyway; memory is saved by "
     "fno.activation_checkpoint"},
    {"opt.enforce_full_complex_precision", ANY, NULL}, /* full precision is the least */
    {"opt.lr", NONE, "it is called opt.learning_rate here"},
    {"opt.max_batches", "null", "take data.n_train for fewer samples"},
    {"opt.min_dims_for_tensorgrad", "0", "take opt.min_entries"},
    {"opt.mixed_precision", "false", PRECISION},
    {"opt.per_layer_opt", ANY, NULL}, /* each layer is updated at once, with the same result */
    {"opt.profiling", ANY, NULL},
    {"opt.projector_use_mixed_precision", "false", "take opt.state_precision: half"},
    {"opt.reset_sparse_optimizer_states", "false", "take opt.moments_on_refresh: reset"},
    {"opt.resume_from_dir", "null|./ckpts", "take --resume auto or --resume FILE"},
    {"opt.rank_tolerance", "0", "it was removed; take opt.memory_budget, or opt.rank"},
    {"opt.residual_scale", "0",
     "it was removed; the residual of a projection does not update weights"},
    {"opt.save_dir", "null|./ckpts", "take --run DIR"},
};

const char *tg_published_name(const char *key) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(key, names[i].theirs) == 0) {
            return names[i].ours;
        }
    }
    return key;
}

/* Matches every key of a section, and the section itself if it is empty. */
static bool is_key(const char *row, const char *key) {
    const size_t length = strlen(row) - 1;
    return row[length] == '.'
               ? strncmp(key, row, length) == 0 && (key[length] == '.' || !key[length])
               : strcmp(key, row) == 0;
}

static bool is_same(const char *list, const char *value) {
    char word[32];
    while (*list) {
        const size_t length = strcspn(list, "|");
        snprintf(word, sizeof word, "%.*s", (int)length, list);
        if (tg_setting_means(value, word)) {
            return true;
        }
        list += length + (list[length] == '|');
    }
    return false;
}

tg_status tg_published_check(tg_context *ctx, const char *key, const char *value,
                             bool *is_published) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!is_key(rows[i].theirs, key)) {
            continue;
        }
        *is_published = true;
        const char *same = rows[i].same;
        if (strcmp(same, ANY) == 0 || is_same(same, value)) {
            return TG_OK;
        }
        return *same ? tg_fail(ctx, TG_E_CONFIG, "%s: only %.*s is done here, found '%.100s'; %s",
                               key, (int)strcspn(same, "|"), same, value, rows[i].instead)
                     : tg_fail(ctx, TG_E_CONFIG, "%s: %s", key, rows[i].instead);
    }
    *is_published = false;
    return TG_OK;
}

/* ---- replaced settings, and settings that a method does not use ---- */

static int64_t find_setting(const tg_settings *settings, const char *key) {
    for (int64_t i = 0; i < tg_settings_count(settings); i++) {
        if (strcmp(tg_settings_key(settings, i), key) == 0) {
            return tg_setting_means(tg_settings_value(settings, i), "null") ? -1 : i;
        }
    }
    return -1;
}

static bool is_among(const char *key, const char *const *list, int count) {
    for (int k = 0; k < count; k++) {
        if (strcmp(list[k], key) == 0) {
            return true;
        }
    }
    return false;
}

bool tg_setting_is_replaced(const tg_settings *settings, int64_t index) {
    static const char *const files[] = {"data.train_file", "data.test_files"};
    static const char *const parts[] = {
        "opt.tensorgrad",       "opt.optimizer_type", "opt.proj_type",
        "opt.second_proj_type", "opt.naive_galore",   "opt.rank",
        "opt.second_rank",      "opt.sparse_ratio",   "opt.second_sparse_ratio"};
    enum { KINDS = 5, PARTS = sizeof parts / sizeof parts[0] }; /* kinds, then their sizes */
    const char *key = tg_settings_key(settings, index);
    if (is_among(key, files, 2)) {
        const int64_t set = find_setting(settings, "data.set");
        return set >= 0 && tg_settings_outdoes(settings, set, index);
    }
    const int64_t name = is_among(key, parts, PARTS) ? find_setting(settings, "opt.name") : -1;
    bool is_described = false;
    for (int k = 0; k < KINDS && name >= 0; k++) {
        const int64_t kind = find_setting(settings, parts[k]);
        is_described = is_described || (kind >= 0 && tg_settings_outdoes(settings, name, kind));
    }
    return is_described && tg_settings_outdoes(settings, name, index);
}

const char *tg_method_unused(const tg_optim_config *opt) {
    static const struct {
        const char *key, *second, *plain, *hint;
    } sizes[] = {{"rank", "second_rank", "opt.rank", "opt.rank (it is opt.second_rank here)"},
                 {"sparse_ratio", "second_sparse_ratio", "opt.sparse_ratio",
                  "opt.sparse_ratio (it is opt.second_sparse_ratio here)"}};
    const tg_optim_config usual = tg_optim_config_default();
    for (int i = 0; i < 2 && opt->is_projected; i++) {
        const tg_setting *row =
            tg_setting_find(tg_optim_config_rows(), tg_optim_config_count(), sizes[i].key);
        char set[256], unset[256];
        tg_setting_get(row, opt, set, sizeof set);
        tg_setting_get(row, &usual, unset, sizeof unset);
        if (strcmp(set, unset) != 0 && !tg_optim_config_reads(opt, sizes[i].key)) {
            return tg_optim_config_reads(opt, sizes[i].second) ? sizes[i].hint : sizes[i].plain;
        }
    }
    return NULL;
}
