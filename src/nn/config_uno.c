/* Settings of a UNO: lists with an entry or a row for each layer. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/minmax.h"
#include "nn/config.h"
#include "nn/model.h"

/* ---- lists ---- */

/* Rows of n_dim entries, if they are whole ones. */
void nn_uno_read_lists(const tg_fno_config *config, nn_uno_lists *out) {
    const int n_dim = config->n_dim, pairs = config->n_horizontal_skips;
    const int modes = config->n_uno_n_modes, scalings = config->n_uno_scalings;
    out->modes.count = out->scalings.count = out->horizontal.count = -1;
    if (config->n_uno_out_channels > 0 && config->n_uno_out_channels <= TG_UNO_MAX_LAYERS) {
        out->channels.count = config->n_uno_out_channels;
        memcpy(out->channels.value, config->uno_out_channels, sizeof config->uno_out_channels);
    }
    if (modes > 0 && modes <= TG_UNO_MAX_NUMBERS) {
        out->modes.count = modes;
        out->modes.width = n_dim > 0 && modes % n_dim == 0 ? n_dim : 1;
        for (int i = 0; i < modes; i++) {
            out->modes.value[i] = (double)config->uno_n_modes[i];
        }
    }
    if (scalings > 0 && scalings <= TG_UNO_MAX_NUMBERS) {
        out->scalings.count = scalings;
        out->scalings.width = n_dim > 0 && scalings % n_dim == 0 ? n_dim : 1;
        memcpy(out->scalings.value, config->uno_scalings, sizeof config->uno_scalings);
    }
    if (pairs >= 0 && pairs <= TG_UNO_MAX_PAIRED && pairs % 2 == 0) {
        out->horizontal.count = pairs;
        out->horizontal.width = 2;
        for (int i = 0; i < pairs; i++) {
            out->horizontal.value[i] = config->horizontal_skips_map[i];
        }
    }
}

/* The largest n_modes of the layers are those of the network. */
static void take_largest_modes(tg_fno_config *config) {
    const int n_dim = config->n_dim;
    for (int d = 0; d < n_dim; d++) {
        config->n_modes[d] = 0;
        for (int i = d; i < config->n_uno_n_modes; i += n_dim) {
            config->n_modes[d] = tg_max(config->n_modes[d], config->uno_n_modes[i]);
        }
    }
}

tg_status nn_uno_take_lists(tg_context *ctx, const char *key, const nn_uno_lists *lists,
                            tg_fno_config *config) {
    const tg_list_rows *modes = &lists->modes, *scalings = &lists->scalings;
    if (modes->count > TG_UNO_MAX_NUMBERS || scalings->count > TG_UNO_MAX_NUMBERS ||
        (lists->horizontal.count > 0 && lists->horizontal.width != 2)) {
        return tg_fail(ctx, TG_E_CONFIG, "fno.%s: %s", key,
                       lists->horizontal.count > 0 && lists->horizontal.width != 2
                           ? "pairs of layers are needed: [[4, 0], [3, 1]]"
                           : "a row has an entry for each dimension, at most 3");
    }
    config->n_uno_out_channels = lists->channels.count;
    memcpy(config->uno_out_channels, lists->channels.value, sizeof config->uno_out_channels);
    config->n_uno_n_modes = modes->count > 0 ? modes->count : 0;
    for (int i = 0; i < modes->count; i++) {
        if (modes->value[i] != floor(modes->value[i])) {
            return tg_fail(ctx, TG_E_CONFIG, "fno.uno_n_modes: %g is not an integer",
                           modes->value[i]);
        }
        config->uno_n_modes[i] = (int64_t)modes->value[i];
    }
    config->n_uno_scalings = scalings->count > 0 ? scalings->count : 0;
    memcpy(config->uno_scalings, scalings->value, sizeof config->uno_scalings);
    config->n_horizontal_skips = lists->horizontal.count;
    for (int i = 0; i < lists->horizontal.count; i++) {
        config->horizontal_skips_map[i] = (int)lists->horizontal.value[i];
    }
    config->n_dim =
        strcmp(key, "uno_n_modes") == 0 && modes->count > 0 ? modes->width : config->n_dim;
    if (config->architecture == TG_ARCHITECTURE_UNO && config->n_uno_n_modes > 0) {
        take_largest_modes(config);
    }
    return TG_OK;
}

const char *nn_uno_pairs(const char *map, char *rows, size_t capacity) {
    size_t n = 0;
    for (; *map && n + 5 < capacity; map++) {
        const char one[] = {*map, '\0'};
        const char *piece = *map == '{'                   ? "[["
                            : *map == '}'                 ? "]]"
                            : *map == ','                 ? "],["
                            : *map == ':'                 ? ","
                            : *map == '"' || *map == '\'' ? ""
                                                          : one;
        for (; *piece; piece++) {
            rows[n++] = *piece;
        }
    }
    rows[n] = '\0';
    return strcmp(rows, "[[]]") == 0 ? "[]" : rows;
}

const char *nn_uno_pair_key(const char *key) {
    static const char map[] = "horizontal_skips_map.";
    return strncmp(key, map, sizeof map - 1) == 0 ? key + sizeof map - 1 : NULL;
}

const char *nn_uno_add_pair(const tg_list_rows *before, const char *to, const char *from,
                            char *rows, size_t capacity) {
    size_t n = (size_t)snprintf(rows, capacity, "[");
    for (int i = 0; i < before->count; i += 2) {
        char number[24];
        snprintf(number, sizeof number, "%g", before->value[i]);
        if (strcmp(number, to) != 0) { /* the new entry replaces it */
            n += (size_t)snprintf(rows + n, capacity - n, "[%s, %g], ", number,
                                  before->value[i + 1]);
        }
    }
    snprintf(rows + n, capacity - n, "[%.16s, %.16s]]", to, from);
    return rows;
}

/* ---- check ---- */

static tg_status check_length(tg_context *ctx, const tg_fno_config *config, const char *key,
                              int numbers, int64_t row) {
    return numbers == config->n_layers * row
               ? TG_OK
               : tg_fail(ctx, TG_E_CONFIG,
                         "fno.%s: a list of %d; it needs %lld, %lld for each of fno.n_layers %lld",
                         key, numbers, (long long)(config->n_layers * row), (long long)row,
                         (long long)config->n_layers);
}

static tg_status check_layers(tg_context *ctx, const tg_fno_config *config) {
    bool changes = false;
    int64_t channels = config->hidden_channels;
    for (int l = 0; l < (int)config->n_layers; l++) {
        const int from = nn_uno_reads(config, l);
        channels += from >= 0 ? config->uno_out_channels[from] : 0;
        changes = changes || channels != config->uno_out_channels[l];
        channels = config->uno_out_channels[l];
    }
    const bool maps = config->fno_skip == TG_SKIP_LINEAR &&
                      (config->channel_mlp_skip == TG_SKIP_LINEAR || !config->use_channel_mlp);
    if (changes && !maps) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "fno.%s: layers of this uno change the number of channels "
                       "(uno_out_channels, horizontal_skips_map): take linear",
                       config->fno_skip == TG_SKIP_LINEAR ? "channel_mlp_skip" : "fno_skip");
    }
    return changes && config->preactivation && config->norm == TG_NORM_GROUP
               ? tg_fail(ctx, TG_E_CONFIG,
                         "fno.preactivation: group_norm comes before the channels change; take "
                         "fno.norm instance_norm or null")
               : TG_OK;
}

static tg_status check_horizontal(tg_context *ctx, const tg_fno_config *config) {
    const int layers = (int)config->n_layers;
    for (int i = 0; i < config->n_horizontal_skips; i += 2) {
        const int to = config->horizontal_skips_map[i], from = config->horizontal_skips_map[i + 1];
        bool is_twice = false;
        for (int k = 0; k < i; k += 2) {
            is_twice = is_twice || config->horizontal_skips_map[k] == to;
        }
        if (from < 0 || from >= to || to >= layers || is_twice) {
            return tg_fail(ctx, TG_E_CONFIG,
                           "fno.horizontal_skips_map: [%d, %d]; a layer 1 .. %d, once, and an "
                           "earlier one that it reads",
                           to, from, layers - 1);
        }
    }
    return TG_OK;
}

tg_status nn_uno_check(tg_context *ctx, const tg_fno_config *config) {
    const int64_t layers = config->n_layers, n_dim = config->n_dim;
    const char *wrong = config->complex_data        ? "complex_data: a uno has real data"
                        : config->separable         ? "separable: a uno has full weights"
                        : config->n_incremental > 0 ? "incremental_n_modes: a uno has them all"
                        : nn_stores_of(config).activation
                            ? "activation_precision: a uno resamples in f32; take "
                              "fno.fno_block_precision mixed or fno.saved_precision"
                            : NULL;
    if (wrong) {
        return tg_fail(ctx, TG_E_CONFIG, "fno.%s (fno.architecture)", wrong);
    }
    if (layers > TG_UNO_MAX_LAYERS) {
        return tg_fail(ctx, TG_E_CONFIG, "fno.n_layers: %lld; a uno has up to %d",
                       (long long)layers, TG_UNO_MAX_LAYERS);
    }
    TG_CALL(check_length(ctx, config, "uno_out_channels", config->n_uno_out_channels, 1));
    TG_CALL(check_length(ctx, config, "uno_n_modes", config->n_uno_n_modes, n_dim));
    TG_CALL(check_length(ctx, config, "uno_scalings", config->n_uno_scalings, n_dim));
    for (int64_t d = 0; d < n_dim; d++) {
        double product = 1.0;
        for (int64_t l = 0; l < layers; l++) {
            product *= config->uno_scalings[l * n_dim + d];
        }
        if (!(fabs(product - 1.0) <= 1e-6)) {
            return tg_fail(ctx, TG_E_CONFIG,
                           "fno.uno_scalings: those of dimension %lld multiply to %g, not 1; "
                           "outputs have the grid of the inputs",
                           (long long)d, product);
        }
    }
    TG_CALL(check_horizontal(ctx, config));
    return check_layers(ctx, config);
}

int nn_uno_reads(const tg_fno_config *config, int layer) {
    if (config->n_horizontal_skips < 0) { /* by default those mirrored at the middle */
        const int mirrored = (int)config->n_layers - 1 - layer;
        return mirrored < layer ? mirrored : -1;
    }
    int from = -1;
    for (int i = 0; i < config->n_horizontal_skips; i += 2) {
        from =
            config->horizontal_skips_map[i] == layer ? config->horizontal_skips_map[i + 1] : from;
    }
    return from;
}
