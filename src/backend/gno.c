/* Graph kernels: settings, sizes and the formulas that all backends share. */
#include "backend/gno.h"

#include <math.h>
#include <string.h>

#include "backend/gno_math.h"
#include "base/context.h"
#include "base/setting.h"

/* ---- settings ---- */

const tg_choice tg_gno_transforms[] = {{"linear", TG_GNO_LINEAR},
                                       {"linear_kernelonly", TG_GNO_LINEAR_KERNELONLY},
                                       {"nonlinear", TG_GNO_NONLINEAR},
                                       {"nonlinear_kernelonly", TG_GNO_NONLINEAR_KERNELONLY},
                                       {NULL, 0}};
static const tg_choice reductions[] = {{"mean", TG_GNO_MEAN}, {"sum", TG_GNO_SUM}, {NULL, 0}};
const tg_choice tg_gno_weightings[] = {{"null", TG_GNO_WEIGHT_NONE},
                                       {"none", TG_GNO_WEIGHT_NONE},
                                       {"~", TG_GNO_WEIGHT_NONE},
                                       {"", TG_GNO_WEIGHT_NONE},
                                       {"half_cos", TG_GNO_WEIGHT_HALF_COS},
                                       {"bump", TG_GNO_WEIGHT_BUMP},
                                       {"quadr", TG_GNO_WEIGHT_QUADR},
                                       {"quartic", TG_GNO_WEIGHT_QUARTIC},
                                       {"octic", TG_GNO_WEIGHT_OCTIC},
                                       {NULL, 0}};
const tg_choice tg_gno_embeddings[] = {{"null", TG_GNO_EMBED_NONE},
                                       {"none", TG_GNO_EMBED_NONE},
                                       {"~", TG_GNO_EMBED_NONE},
                                       {"", TG_GNO_EMBED_NONE},
                                       {"transformer", TG_GNO_EMBED_TRANSFORMER},
                                       {"nerf", TG_GNO_EMBED_NERF},
                                       {NULL, 0}};

/* The config with its list in the form of the settings. */
typedef struct readable {
    tg_gno_config config;
    tg_list_int layers;
} readable;

enum { LARGEST = 1 << 20 };

#define ROW(kind, name, low, high, help)                                                           \
    { #name, TG_SETTING_##kind, offsetof(readable, config.name), NULL, low, high, help }
#define ROW_CHOICE(name, choices, help)                                                            \
    { #name, TG_SETTING_ENUM, offsetof(readable, config.name), choices, 0, 0, help }

static const tg_setting rows[] = {
    ROW(INT, coord_dim, 1, 3, "of the coordinates"),
    ROW(INT64, in_channels, 0, LARGEST, "channels of the values"),
    ROW(INT64, out_channels, 1, LARGEST, "channels of the output"),
    ROW(DOUBLE, radius, 0, 1e30, "of the balls"),
    ROW_CHOICE(transform_type, tg_gno_transforms, "input and multiplier of the kernel"),
    ROW_CHOICE(reduction, reductions, "over neighbours"),
    ROW_CHOICE(weighting_function, tg_gno_weightings, "of neighbours, by their distance"),
    ROW(DOUBLE, weight_function_scale, -1e30, 1e30, "of the weighting function"),
    ROW_CHOICE(pos_embedding_type, tg_gno_embeddings, "of coordinates"),
    ROW(INT64, pos_embedding_channels, 1, 512, "frequencies of the embedding"),
    ROW(DOUBLE, pos_embedding_max_positions, 1, 1e30,
        "longest period of a transformer embedding, over 2 pi"),
    {"channel_mlp_layers", TG_SETTING_LIST_INT, offsetof(readable, layers), NULL, 1, LARGEST,
     "hidden layers of the kernel"},
};

enum { ROWS = sizeof rows / sizeof rows[0] };

void tg_gno_config_init(tg_gno_config *config, size_t size) {
    const tg_gno_config defaults = {.size = sizeof defaults,
                                    .coord_dim = 2,
                                    .in_channels = 1,
                                    .out_channels = 1,
                                    .radius = 0.033,
                                    .weight_function_scale = 1.0,
                                    .pos_embedding_type = TG_GNO_EMBED_TRANSFORMER,
                                    .pos_embedding_channels = 32,
                                    .pos_embedding_max_positions = 10000.0,
                                    .n_channel_mlp_layers = 1,
                                    .channel_mlp_layers = {64}};
    tg_sized_init(config, size, &defaults, sizeof defaults);
}

tg_status tg_gno_config_read(tg_context *ctx, const tg_gno_config *config, tg_gno_config *out) {
    *out = tg_gno_config_default();
    return TG_SIZED_READ(ctx, tg_gno_config, coord_dim, config, out);
}

static readable readable_of(const tg_gno_config *config) {
    readable r = {.config = *config};
    if (config->n_channel_mlp_layers > 0 && config->n_channel_mlp_layers <= TG_GNO_MAX_HIDDEN) {
        r.layers.count = config->n_channel_mlp_layers;
        memcpy(r.layers.value, config->channel_mlp_layers, sizeof config->channel_mlp_layers);
    }
    return r;
}

tg_status tg_gno_config_set(tg_context *ctx, tg_gno_config *config, const char *key,
                            const char *text) {
    TG_NEED(ctx, config, key, text);
    tg_gno_config before;
    TG_CALL(tg_gno_config_read(ctx, config, &before));
    readable r = readable_of(&before);
    TG_CALL(tg_setting_set(ctx, "gno", rows, ROWS, &r, key, text));
    if (r.layers.count > TG_GNO_MAX_HIDDEN) {
        return tg_fail(ctx, TG_E_CONFIG, "gno.channel_mlp_layers: %d layers; 1 to %d are possible",
                       r.layers.count, TG_GNO_MAX_HIDDEN);
    }
    r.config.n_channel_mlp_layers = r.layers.count;
    memcpy(r.config.channel_mlp_layers, r.layers.value, sizeof r.config.channel_mlp_layers);
    return TG_SIZED_WRITE(ctx, tg_gno_config, key, &before, &r.config, config);
}

static bool multiplies(const tg_gno_config *config) {
    return config->transform_type == TG_GNO_LINEAR || config->transform_type == TG_GNO_NONLINEAR;
}

tg_status tg_gno_config_check(tg_context *ctx, const tg_gno_config *config) {
    TG_NEED(ctx, config);
    tg_gno_config full;
    TG_CALL(tg_gno_config_read(ctx, config, &full));
    for (int i = 0; i < ROWS; i++) { /* a program may have stored anything in a field */
        char text[160];
        tg_gno_config copy = full;
        const readable r = readable_of(&full);
        TG_CALL(tg_gno_config_set(ctx, &copy, rows[i].key,
                                  tg_setting_get(&rows[i], &r, text, sizeof text)));
    }
    if (multiplies(&full) && full.in_channels > 0 && full.in_channels != full.out_channels) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "gno.transform_type: this one multiplies the kernel with the values, "
                       "channel by channel; in_channels is %lld, out_channels %lld: take %s_"
                       "kernelonly, or as many",
                       (long long)full.in_channels, (long long)full.out_channels,
                       full.transform_type == TG_GNO_LINEAR ? "linear" : "nonlinear");
    }
    return TG_OK;
}

/* ---- sizes ---- */

tg_gno_sizes tg_gno_sizes_of(const tg_gno_config *config, bool has_values) {
    const bool is_nonlinear = config->transform_type == TG_GNO_NONLINEAR ||
                              config->transform_type == TG_GNO_NONLINEAR_KERNELONLY;
    const bool embeds = config->pos_embedding_type != TG_GNO_EMBED_NONE;
    tg_gno_sizes s = {.layers = config->n_channel_mlp_layers + 1,
                      .embedded =
                          config->coord_dim * (embeds ? 2 * config->pos_embedding_channels : 1),
                      .reads_values = has_values && is_nonlinear,
                      .times_values = has_values && multiplies(config)};
    s.width[0] = 2 * s.embedded + (s.reads_values ? config->in_channels : 0);
    memcpy(s.width + 1, config->channel_mlp_layers, sizeof config->channel_mlp_layers);
    s.width[s.layers] = config->out_channels;
    return s;
}

int64_t tg_gno_weight_count(const tg_gno_sizes *sizes) {
    int64_t count = 0;
    for (int l = 0; l < sizes->layers; l++) {
        count += (sizes->width[l] + 1) * sizes->width[l + 1];
    }
    return count;
}

/* ---- formulas ---- */

void tg_gno_embed(const tg_gno_config *config, const double *p, double *out) {
    const int64_t frequencies = config->pos_embedding_channels;
    if (config->pos_embedding_type == TG_GNO_EMBED_NONE) {
        memcpy(out, p, (size_t)config->coord_dim * sizeof *p);
        return;
    }
    for (int64_t k = 0; k < frequencies; k++) {
        const double w = tg_gno_frequency(config, k);
        for (int d = 0; d < config->coord_dim; d++) {
            out[2 * (d * frequencies + k)] = sin(w * p[d]);
            out[2 * (d * frequencies + k) + 1] = cos(w * p[d]);
        }
    }
}

double tg_gno_scale(const tg_gno *op, int64_t query) {
    const int64_t *first = op->neighbours->first + query;
    const bool is_mean = op->config->reduction == TG_GNO_MEAN &&
                         op->config->weighting_function == TG_GNO_WEIGHT_NONE;
    return is_mean && first[1] > first[0] ? 1.0 / (double)(first[1] - first[0]) : 1.0;
}
