/* The settings of a network: one table of keys from which text is read, written and checked. */
#include <math.h>
#include <string.h>

#include "backend/gno.h"
#include "base/context.h"
#include "nn/config.h"
#include "nn/model.h"

/* The first row of a value is its proper name; null has several names in YAML and Python. */
#define NULL_NAMES(value)                                                                          \
    {"null", value}, {"none", value}, {"~", value}, {                                              \
        "", value                                                                                  \
    }

static const tg_choice skips[] = {{"linear", TG_SKIP_LINEAR},
                                  {"identity", TG_SKIP_IDENTITY},
                                  {"soft-gating", TG_SKIP_SOFT_GATING},
                                  {NULL, 0}};
static const tg_choice norms[] = {{"group_norm", TG_NORM_GROUP},
                                  {"instance_norm", TG_NORM_INSTANCE},
                                  NULL_NAMES(TG_NORM_NONE),
                                  {NULL, 0}};
static const tg_choice embeddings[] = {
    {"grid", TG_EMBEDDING_GRID}, NULL_NAMES(TG_EMBEDDING_NONE), {NULL, 0}};
static const tg_choice stabilizers[] = {
    {"tanh", TG_STABILIZER_TANH}, NULL_NAMES(TG_STABILIZER_NONE), {NULL, 0}};
static const tg_choice paddings[] = {
    {"one-sided", TG_PADDING_ONE_SIDED}, {"symmetric", TG_PADDING_SYMMETRIC}, {NULL, 0}};
static const tg_choice activations[] = {{"gelu", TG_ACTIVATION_GELU},
                                        {"relu", TG_ACTIVATION_RELU},
                                        {"silu", TG_ACTIVATION_SILU},
                                        {"tanh", TG_ACTIVATION_TANH},
                                        {NULL, 0}};
static const tg_choice complex_modes[] = {
    {"centered", TG_MODES_CENTERED}, {"nonnegative", TG_MODES_NONNEGATIVE}, {NULL, 0}};
static const tg_choice block_precisions[] = {{"full", TG_PRECISION_FULL},
                                             {"mixed", TG_PRECISION_MIXED},
                                             {"half", TG_PRECISION_HALF},
                                             {NULL, 0}};
static const tg_choice precisions[] = {{"full", TG_PRECISION_FULL},
                                       {"half", TG_PRECISION_HALF},
                                       {"bf16", TG_PRECISION_BF16},
                                       {NULL, 0}};
static const tg_choice all_precisions[] = {
    {"full", TG_PRECISION_FULL}, {"mixed", TG_PRECISION_MIXED}, {NULL, 0}};
static const tg_choice saved_precisions[] = {{"full", TG_PRECISION_FULL},
                                             {"bf16", TG_PRECISION_BF16},
                                             {"8bit", TG_PRECISION_8BIT},
                                             {NULL, 0}};
static const tg_choice checkpoints[] = {
    {"off", TG_CHECKPOINT_OFF},         {"block", TG_CHECKPOINT_BLOCK},
    {"minimal", TG_CHECKPOINT_MINIMAL}, {"false", TG_CHECKPOINT_OFF}, /* as published: a switch */
    {"true", TG_CHECKPOINT_BLOCK},      {NULL, 0}};
static const tg_choice factorizations[] = {
    {"tucker", TG_FACTORIZATION_TUCKER}, {"cp", TG_FACTORIZATION_CP},
    {"tt", TG_FACTORIZATION_TT},         {"dense", TG_FACTORIZATION_DENSE},
    NULL_NAMES(TG_FACTORIZATION_DENSE),  {NULL, 0}};
static const tg_choice implementations[] = {{"factorized", TG_IMPLEMENTATION_FACTORIZED},
                                            {"reconstructed", TG_IMPLEMENTATION_RECONSTRUCTED},
                                            {NULL, 0}};
static const tg_choice architectures[] = {{"fno", TG_ARCHITECTURE_FNO},
                                          {"gino", TG_ARCHITECTURE_GINO},
                                          {"uno", TG_ARCHITECTURE_UNO},
                                          {NULL, 0}};
static const tg_choice tanhs[] = {
    {"latent_embed", TG_GNO_TANH_LATENT}, NULL_NAMES(TG_GNO_TANH_NONE), {NULL, 0}};
static const tg_choice dtypes[] = {{"f32", TG_F32}, {"f64", TG_F64}, {NULL, 0}};

/* A copy of the config, followed by its lists as the settings read them. */
typedef struct readable {
    tg_fno_config config;
    tg_list_int n_modes, fixed_rank_modes, incremental, in_layers, out_layers;
    tg_list_double rank, domain_padding;
    nn_uno_lists uno;
} readable;

enum { LARGEST = 1 << 20 };

#define FNO(type, field, low, high, help)                                                          \
    TG_SETTING_ROW(type, tg_fno_config, field, low, high, help)
#define FNO_CHOICE(field, choices, help) TG_SETTING_CHOICE(tg_fno_config, field, choices, help)

static const tg_setting rows[] = {
    {"n_modes", TG_SETTING_LIST_INT, offsetof(readable, n_modes), NULL, 1, LARGEST,
     "kept frequencies per dimension: 16 in 1-D, [16, 16] in 2-D"},
    FNO(INT64, in_channels, 1, LARGEST,
        "channels of the input, without coordinates; not set: of the data"),
    FNO(INT64, out_channels, 1, LARGEST, "channels of the output; not set: of the data"),
    FNO(INT64, hidden_channels, 1, LARGEST, "width C of the network"),
    FNO(INT64, n_layers, 1, 1000, "number of blocks"),
    FNO(DOUBLE, lifting_channel_ratio, 1e-3, 1024, "hidden layer of the lifting, times C"),
    FNO(DOUBLE, projection_channel_ratio, 1e-3, 1024, "hidden layer of the projection, times C"),
    FNO_CHOICE(positional_embedding, embeddings, "coordinates as further input channels, or none"),
    FNO(BOOL, use_channel_mlp, 0, 0, "a channel MLP after each spectral convolution"),
    FNO(DOUBLE, channel_mlp_expansion, 1e-3, 1024,
        "hidden layer of a block's channel MLP, times C"),
    FNO(DOUBLE, channel_mlp_dropout, 0, 0.999, "dropout probability of the channel MLPs"),
    FNO_CHOICE(fno_skip, skips, "skip connection around the spectral convolution"),
    FNO_CHOICE(channel_mlp_skip, skips, "skip connection around the channel MLP"),
    FNO_CHOICE(norm, norms, "normalization inside a block"),
    FNO_CHOICE(stabilizer, stabilizers, "applied before the Fourier transform"),
    {"domain_padding", TG_SETTING_LIST_DOUBLE, offsetof(readable, domain_padding), NULL, 0, 4,
     "zeros appended to each dimension, as a fraction of its size; or a list"},
    FNO_CHOICE(domain_padding_mode, paddings, "where they are appended"),
    FNO(BOOL, complex_data, 0, 0, "complex fields instead of real ones"),
    FNO_CHOICE(complex_modes, complex_modes,
               "frequencies kept of complex data; nonnegative in 1-D only"),
    FNO_CHOICE(fno_block_precision, block_precisions,
               "how spectra are stored; half: activations, too"),
    FNO_CHOICE(fno_block_weights_precision, precisions,
               "how spectral weights and their gradients are stored"),
    FNO_CHOICE(activation_precision, precisions, "how activations are stored"),
    FNO_CHOICE(precision, all_precisions,
               "mixed: spectral weights in bf16, and saved_precision 8bit"),
    FNO_CHOICE(saved_precision, saved_precisions,
               "how activations are kept for backward; forward stays in f32"),
    FNO(INT64, micro_batch, 0, LARGEST,
        "samples of a batch in flight at a time in training; 0: all"),
    FNO_CHOICE(activation_checkpoint, checkpoints,
               "kept for backward: all, inputs of blocks, or kept modes"),
    FNO_CHOICE(dtype, dtypes, "of the arithmetic"),
    FNO_CHOICE(factorization, factorizations, "of spectral weights"),
    FNO_CHOICE(implementation, implementations,
               "as published; the numbers are the same, here the factors are used"),
    {"rank", TG_SETTING_LIST_DOUBLE, offsetof(readable, rank), NULL, 1e-9, LARGEST,
     "of a factorization: a share of the numbers of a dense weight, or ranks"},
    {"fixed_rank_modes", TG_SETTING_LIST_SIZE, offsetof(readable, fixed_rank_modes), NULL, 0, 4,
     "of tucker: modes whose rank is their size"},
    FNO(BOOL, separable, 0, 0, "spectral weights multiply each channel separately"),
    FNO_CHOICE(non_linearity, activations, "between layers; channel MLPs have gelu inside"),
    FNO(BOOL, preactivation, 0, 0, "blocks begin with activation and norm, and end without"),
    {"incremental_n_modes", TG_SETTING_LIST_SIZE, offsetof(readable, incremental), NULL, 1, LARGEST,
     "modes to begin with, of n_modes; [] means all (opt.incremental_grad, ..)"},
    FNO_CHOICE(architecture, architectures,
               "fno: on a grid; gino: from points to points; uno: a grid for each layer"),
    FNO(INT64, fno_in_channels, 1, LARGEST, "gino: channels from the points to the latent grid"),
    FNO(INT64, latent_feature_channels, 0, LARGEST,
        "gino: channels of features on the latent grid"),
    FNO(DOUBLE, in_gno_radius, 0, 1e30, "gino: radius around a grid point whose points contribute"),
    FNO(DOUBLE, out_gno_radius, 0, 1e30,
        "gino: radius around a query whose grid points contribute"),
    FNO_CHOICE(in_gno_transform_type, tg_gno_transforms,
               "gino: inputs and factor of the kernel to the grid"),
    FNO_CHOICE(out_gno_transform_type, tg_gno_transforms, "gino: likewise to the queries"),
    FNO_CHOICE(in_gno_pos_embed_type, tg_gno_embeddings,
               "gino: coordinate embedding of the kernel to the grid"),
    FNO_CHOICE(out_gno_pos_embed_type, tg_gno_embeddings, "gino: likewise to the queries"),
    FNO_CHOICE(gno_weighting_function, tg_gno_weightings,
               "gino: weight of grid points by their distance to a query"),
    FNO(DOUBLE, gno_weight_function_scale, -1e30, 1e30, "gino: factor of these weights"),
    FNO(INT64, gno_embed_channels, 1, 512, "gino: frequencies of the coordinate embedding"),
    FNO(DOUBLE, gno_embed_max_positions, 1, 1e30,
        "gino: longest period of a transformer embedding, over 2 pi"),
    FNO_CHOICE(out_gno_tanh, tanhs, "gino: tanh before the kernel to the queries"),
    {"in_gno_channel_mlp_hidden_layers", TG_SETTING_LIST_INT, offsetof(readable, in_layers), NULL,
     1, LARGEST, "gino: hidden layers of the kernel to the grid"},
    {"out_gno_channel_mlp_hidden_layers", TG_SETTING_LIST_INT, offsetof(readable, out_layers), NULL,
     1, LARGEST, "gino: hidden layers of the kernel to the queries"},
    {"uno_out_channels", TG_SETTING_LIST_SIZE, offsetof(readable, uno.channels), NULL, 1, LARGEST,
     "uno: output channels of each layer"},
    {"uno_n_modes", TG_SETTING_LIST_ROWS, offsetof(readable, uno.modes), NULL, 1, LARGEST,
     "uno: n_modes of each layer"},
    {"uno_scalings", TG_SETTING_LIST_ROWS, offsetof(readable, uno.scalings), NULL, 1e-3, 1e3,
     "uno: factors of each layer on the grid, which multiply to 1"},
    {"horizontal_skips_map", TG_SETTING_LIST_ROWS, offsetof(readable, uno.horizontal), NULL, 0,
     TG_UNO_MAX_LAYERS - 1, "uno: layers that read an earlier one, too: [[4, 0], [3, 1]]"},
    FNO_CHOICE(horizontal_skip, skips, "uno: skip connection to these layers"),
};

enum { ROWS = sizeof rows / sizeof rows[0] };

_Static_assert(sizeof(tg_fno_skip) == sizeof(int) && sizeof(tg_dtype) == sizeof(int),
               "enums are read and written as ints");

void tg_fno_config_init(tg_fno_config *config, size_t size) {
    const tg_fno_config defaults = {
        .size = sizeof defaults,
        .in_channels = 1,
        .out_channels = 1,
        .hidden_channels = 64,
        .n_layers = 4,
        .lifting_channel_ratio = 2.0,
        .projection_channel_ratio = 2.0,
        .positional_embedding = TG_EMBEDDING_GRID,
        .use_channel_mlp = true,
        .channel_mlp_expansion = 0.5,
        .fno_skip = TG_SKIP_LINEAR,
        .channel_mlp_skip = TG_SKIP_SOFT_GATING,
        .norm = TG_NORM_NONE,
        .stabilizer = TG_STABILIZER_NONE,
        .domain_padding_mode = TG_PADDING_ONE_SIDED,
        .complex_modes = TG_MODES_CENTERED,
        .dtype = TG_F32,
        .n_rank = 1,
        .rank = {1.0},
        .fno_in_channels = 3,
        .in_gno_radius = 0.033,
        .out_gno_radius = 0.033,
        .in_gno_pos_embed_type = TG_GNO_EMBED_TRANSFORMER,
        .out_gno_pos_embed_type = TG_GNO_EMBED_TRANSFORMER,
        .gno_weight_function_scale = 1.0,
        .gno_embed_channels = 32,
        .gno_embed_max_positions = 10000.0,
        .n_in_gno_channel_mlp_hidden_layers = 3,
        .in_gno_channel_mlp_hidden_layers = {80, 80, 80},
        .n_out_gno_channel_mlp_hidden_layers = 2,
        .out_gno_channel_mlp_hidden_layers = {512, 256},
        .n_horizontal_skips = -1,
    };
    tg_sized_init(config, size, &defaults, sizeof defaults);
}

tg_status nn_config_read(tg_context *ctx, const tg_fno_config *config, tg_fno_config *out) {
    *out = tg_fno_config_default();
    return TG_SIZED_READ(ctx, tg_fno_config, in_channels, config, out);
}

const tg_setting *nn_config_rows(void) {
    return rows;
}

int tg_fno_config_count(void) {
    return ROWS;
}

const char *tg_fno_config_key(int index) {
    return index >= 0 && index < ROWS ? rows[index].key : NULL;
}

/* ---- from text ---- */

/* A list in both structs, which hold the same values. */
#define LIST(key, list, n, values, most)                                                           \
    {                                                                                              \
        key, most, offsetof(readable, list.count), offsetof(readable, list.value),                 \
            offsetof(tg_fno_config, n), offsetof(tg_fno_config, values),                           \
            sizeof((tg_fno_config *)0)->values                                                     \
    }
static const struct {
    const char *key;
    int most;
    size_t list_count, list_value, count, value, bytes;
} lists[] = {
    LIST("n_modes", n_modes, n_dim, n_modes, TG_FNO_MAX_DIMS),
    LIST("domain_padding", domain_padding, n_padding_of, padding_of, TG_FNO_MAX_DIMS),
    LIST("incremental_n_modes", incremental, n_incremental, incremental_n_modes, TG_FNO_MAX_DIMS),
    LIST("rank", rank, n_rank, rank, TG_FNO_MAX_RANKS),
    LIST("fixed_rank_modes", fixed_rank_modes, n_fixed_rank_modes, fixed_rank_modes,
         TG_FNO_MAX_RANKS),
    LIST("in_gno_channel_mlp_hidden_layers", in_layers, n_in_gno_channel_mlp_hidden_layers,
         in_gno_channel_mlp_hidden_layers, TG_GNO_MAX_HIDDEN),
    LIST("out_gno_channel_mlp_hidden_layers", out_layers, n_out_gno_channel_mlp_hidden_layers,
         out_gno_channel_mlp_hidden_layers, TG_GNO_MAX_HIDDEN),
};
#undef LIST

enum { LISTS = sizeof lists / sizeof lists[0], OF_DIMENSIONS = 3 /* the first ones */ };

/* Lists, unless a program has set impossible lengths. */
static readable readable_of(const tg_fno_config *config) {
    readable r = {.config = *config};
    for (int i = 0; i < LISTS; i++) {
        const int count = *(const int *)((const char *)config + lists[i].count);
        if (count > 0 && count <= lists[i].most) {
            *(int *)((char *)&r + lists[i].list_count) = count;
            memcpy((char *)&r + lists[i].list_value, (const char *)config + lists[i].value,
                   lists[i].bytes);
        }
    }
    if (r.domain_padding.count == 0) {
        r.domain_padding.count = 1;
        r.domain_padding.value[0] = config->domain_padding;
    }
    nn_uno_read_lists(config, &r.uno);
    return r;
}

static tg_status check_count(tg_context *ctx, const char *key, int count, const char *noun,
                             int most) {
    return count <= most ? TG_OK
                         : tg_fail(ctx, TG_E_CONFIG, "fno.%s: %d %s; 1 to %d are possible", key,
                                   count, noun, most);
}

static tg_status take_lists(tg_context *ctx, const char *key, readable *r) {
    for (int i = 0; i < LISTS; i++) {
        const int count = *(const int *)((const char *)r + lists[i].list_count);
        TG_CALL(check_count(ctx, lists[i].key, count, i < OF_DIMENSIONS ? "dimensions" : "entries",
                            lists[i].most));
        *(int *)((char *)&r->config + lists[i].count) = count;
        memcpy((char *)&r->config + lists[i].value, (const char *)r + lists[i].list_value,
               lists[i].bytes);
    }
    TG_CALL(
        check_count(ctx, "uno_out_channels", r->uno.channels.count, "entries", TG_UNO_MAX_LAYERS));
    r->config.domain_padding = r->domain_padding.value[0];
    r->config.n_padding_of = r->domain_padding.count > 1 ? r->domain_padding.count : 0;
    return nn_uno_take_lists(ctx, key, &r->uno, &r->config);
}

tg_status tg_fno_config_set(tg_context *ctx, tg_fno_config *config, const char *key,
                            const char *text) {
    TG_NEED(ctx, config, key, text);
    tg_fno_config before;
    TG_CALL(nn_config_read(ctx, config, &before));
    readable r = readable_of(&before);
    if (strcmp(key, "domain_padding") == 0 && tg_setting_means(text, "null")) {
        text = "0"; /* published configs write null for none */
    }
    const bool may_be_null =
        strcmp(key, "fixed_rank_modes") == 0 || strcmp(key, "incremental_n_modes") == 0;
    if (may_be_null && (tg_setting_means(text, "null") || tg_setting_means(text, "false"))) {
        text = "[]"; /* or, here, [] */
    }
    if (strcmp(key, "latent_feature_channels") == 0 && tg_setting_means(text, "null")) {
        text = "0";
    }
    if (strncmp(key, "fno_", 4) == 0 && !tg_setting_find(rows, ROWS, key) &&
        tg_setting_find(rows, ROWS, key + 4)) {
        key += 4; /* a published GINO names its blocks' keys so: fno_n_modes */
    }
    if (strcmp(key, "checkpointing") == 0) { /* the name in early checkpoints */
        key = "activation_checkpoint";
    }
    if (strcmp(key, "norm") == 0 &&
        (tg_setting_means(text, "batch_norm") || tg_setting_means(text, "ada_in"))) {
        return tg_fail(
            ctx, TG_E_CONFIG, "fno.norm: %s; take group_norm or instance_norm",
            tg_setting_means(text, "ada_in")
                ? "ada_in needs an embedding beside the data, which data sets do not have"
                : "batch_norm ties the samples of a batch together, so that outputs "
                  "depend on the batch and on running means");
    }
    char pairs[256];
    if (strcmp(key, "horizontal_skips_map") == 0 && *text == '{') { /* as published: a map */
        text = nn_uno_pairs(text, pairs, sizeof pairs);
    }
    const char *layer = nn_uno_pair_key(key);
    if (layer) {
        text = nn_uno_add_pair(&r.uno.horizontal, layer, text, pairs, sizeof pairs);
        key = "horizontal_skips_map";
    }
    TG_CALL(tg_setting_set(ctx, "fno", rows, ROWS, &r, key, text));
    TG_CALL(take_lists(ctx, key, &r));
    return TG_SIZED_WRITE(ctx, tg_fno_config, key, &before, &r.config, config);
}

/* ---- to text ---- */

const char *tg_fno_config_get(const tg_fno_config *config, int index, char *text, size_t capacity) {
    tg_fno_config full;
    if (!config || !text || index < 0 || index >= ROWS ||
        nn_config_read(NULL, config, &full) != TG_OK) {
        return NULL;
    }
    const readable r = readable_of(&full);
    return tg_setting_get(&rows[index], &r, text, capacity);
}

/* ---- check ---- */

/* A program may set a field to anything: every value must read back from its text. */
static tg_status check_field(tg_context *ctx, const tg_fno_config *config, int index) {
    char text[768];
    tg_fno_config copy = *config;
    if (config->n_dim == 0) {
        return tg_fail(ctx, TG_E_CONFIG,
                       config->architecture == TG_ARCHITECTURE_UNO
                           ? "fno.uno_n_modes: it must be set, one row for each layer: [[8, 8], "
                             "[8, 8], [8, 8], [8, 8]]"
                           : "fno.n_modes: it must be set, one number for each dimension of the "
                             "data: 16, [16, 16] or [16, 16, 16]");
    }
    if (config->n_dim < 1 || config->n_dim > TG_FNO_MAX_DIMS) {
        return tg_fail(ctx, TG_E_CONFIG, "fno.n_modes: %d dimensions; 1 to %d are possible",
                       config->n_dim, TG_FNO_MAX_DIMS);
    }
    return tg_fno_config_set(ctx, &copy, rows[index].key,
                             tg_fno_config_get(config, index, text, sizeof text));
}

static tg_status check_incremental(tg_context *ctx, const tg_fno_config *config) {
    if (config->n_incremental != 0 && config->n_incremental != config->n_dim) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "fno.incremental_n_modes: a list of %d; n_modes has %d dimensions",
                       config->n_incremental, config->n_dim);
    }
    for (int d = 0; d < config->n_incremental; d++) {
        const int64_t used = config->incremental_n_modes[d], all = config->n_modes[d];
        if (used < 1 || used > all || (all - used) % 2 != 0) {
            return tg_fail(ctx, TG_E_CONFIG,
                           "fno.incremental_n_modes: %lld of the %lld modes of dimension %d; it is "
                           "less by an even number, so that every frequency keeps its weights",
                           (long long)used, (long long)all, d);
        }
    }
    return TG_OK;
}

static tg_status check_gino(tg_context *ctx, const tg_fno_config *config) {
    const bool multiplies = config->in_gno_transform_type == TG_GNO_LINEAR ||
                            config->in_gno_transform_type == TG_GNO_NONLINEAR;
    if (config->complex_data) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "fno.complex_data: a gino has real data (fno.architecture)");
    }
    return multiplies && config->in_channels != config->fno_in_channels
               ? tg_fail(ctx, TG_E_CONFIG,
                         "fno.in_gno_transform_type: this one multiplies the kernel with the "
                         "values at the points, channel by channel; fno.in_channels is %lld, "
                         "fno.fno_in_channels %lld: make them equal, or take "
                         "nonlinear_kernelonly or linear_kernelonly",
                         (long long)config->in_channels, (long long)config->fno_in_channels)
               : TG_OK;
}

/* Their input and output are the values passed between blocks. */
static tg_status check_blocks_only(tg_context *ctx, const tg_fno_config *config,
                                   const nn_stores *stores) {
    const int64_t channels = config->hidden_channels;
    const bool fits = config->architecture == TG_ARCHITECTURE_FNO && config->use_channel_mlp &&
                      config->in_channels == channels && config->out_channels == channels &&
                      config->positional_embedding == TG_EMBEDDING_NONE &&
                      stores->activation == TG_STORE_FULL;
    return fits ? TG_OK
                : tg_fail(ctx, TG_E_CONFIG,
                          "fno.blocks_only: blocks alone need use_channel_mlp, as many in_channels "
                          "and out_channels as hidden_channels, no positional_embedding and "
                          "activations in full precision");
}

tg_status tg_fno_config_check(tg_context *ctx, const tg_fno_config *config) {
    TG_NEED(ctx, config);
    tg_fno_config full;
    TG_CALL(nn_config_read(ctx, config, &full));
    config = &full;
    for (int i = 0; i < ROWS; i++) {
        TG_CALL(check_field(ctx, config, i));
    }
    if (config->complex_modes == TG_MODES_NONNEGATIVE && config->complex_data &&
        config->n_dim != 1) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "fno.complex_modes: nonnegative needs one dimension, n_modes has %d",
                       config->n_dim);
    }
    TG_CALL(check_incremental(ctx, config));
    if (config->n_padding_of != 0 && config->n_padding_of != config->n_dim) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "fno.domain_padding: a list of %d; n_modes has %d dimensions",
                       config->n_padding_of, config->n_dim);
    }
    if (config->non_linearity != TG_ACTIVATION_GELU && config->complex_data) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "fno.non_linearity: complex data have gelu, on both parts of a number");
    }
    enum { MAX_LAYERS = 64 }; /* layers: their ops grow with the square */
    if (config->activation_checkpoint == TG_CHECKPOINT_MINIMAL && config->n_layers > MAX_LAYERS) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "fno.activation_checkpoint: minimal recomputes a layer once for each later "
                       "one, for up to %d layers; fno.n_layers is %lld: take block",
                       MAX_LAYERS, (long long)config->n_layers);
    }
    TG_CALL(config->architecture == TG_ARCHITECTURE_GINO  ? check_gino(ctx, config)
            : config->architecture == TG_ARCHITECTURE_UNO ? nn_uno_check(ctx, config)
                                                          : TG_OK);
    const nn_stores stores = nn_stores_of(config);
    TG_CALL(config->blocks_only ? check_blocks_only(ctx, config, &stores) : TG_OK);
    if (stores.saved && stores.activation) {
        return tg_fail(
            ctx, TG_E_CONFIG,
            "fno.%s: it compresses f32 activations kept for backward; with fno.%s they are "
            "in 16 bits already: take one of the two",
            config->saved_precision ? "saved_precision" : "precision",
            config->activation_precision ? "activation_precision" : "fno_block_precision");
    }
    const bool is_16bit = stores.activation || stores.spectrum || stores.weight || stores.saved;
    return config->dtype == TG_F64 && is_16bit
               ? tg_fail(ctx, TG_E_CONFIG,
                         "fno.dtype: f64 is kept as it is; for half or mixed precision take f32")
               : TG_OK;
}

tg_act nn_act_of(const tg_fno_config *config) {
    static const tg_act acts[] = {[TG_ACTIVATION_GELU] = TG_ACT_GELU,
                                  [TG_ACTIVATION_RELU] = TG_ACT_RELU,
                                  [TG_ACTIVATION_SILU] = TG_ACT_SILU,
                                  [TG_ACTIVATION_TANH] = TG_ACT_TANH};
    return acts[config->non_linearity];
}

static tg_storage storage_of(tg_precision precision) {
    return precision == TG_PRECISION_BF16   ? TG_STORE_BF16
           : precision == TG_PRECISION_HALF ? TG_STORE_F16
                                            : TG_STORE_FULL;
}

nn_stores nn_stores_of(const tg_fno_config *config) {
    nn_stores stores = {.activation = storage_of(config->activation_precision),
                        .weight = storage_of(config->fno_block_weights_precision),
                        .saved = config->saved_precision};
    if (config->precision == TG_PRECISION_MIXED) { /* unless another key sets it */
        stores.weight = stores.weight ? stores.weight : TG_STORE_BF16;
        stores.saved = stores.saved ? stores.saved : TG_PRECISION_8BIT;
    }
    if (stores.saved == TG_PRECISION_8BIT && config->non_linearity == TG_ACTIVATION_RELU) {
        stores.saved = TG_PRECISION_BF16; /* 8 bits lose small positive values, whose slope is 1 */
    }
    if (config->fno_block_precision !=
        TG_PRECISION_FULL) { /* the 16-bit format is the one set elsewhere */
        stores.spectrum = stores.activation ? stores.activation
                          : stores.weight   ? stores.weight
                                            : TG_STORE_F16;
    }
    if (config->fno_block_precision == TG_PRECISION_HALF && !stores.activation) {
        stores.activation = stores.spectrum;
    }
    return stores;
}

bool tg_fno_passes_f16(const tg_fno_config *config) {
    tg_fno_config full;
    if (!config || nn_config_read(NULL, config, &full) != TG_OK) {
        return false;
    }
    const nn_stores stores = nn_stores_of(&full);
    return stores.activation == TG_STORE_F16 || stores.spectrum == TG_STORE_F16;
}

/* A hidden layer has at least one channel, even where half of one would round to none. */
static int64_t at_least_one(double channels) {
    return channels < 1.0 ? 1 : (int64_t)channels;
}

int64_t nn_lifting_hidden(const tg_fno_config *config) {
    return at_least_one(config->lifting_channel_ratio * (double)config->hidden_channels);
}

int64_t nn_projection_hidden(const tg_fno_config *config) {
    return at_least_one(config->projection_channel_ratio * (double)config->hidden_channels);
}

int64_t nn_mlp_hidden(const tg_fno_config *config, int64_t channels) {
    return at_least_one(nearbyint(config->channel_mlp_expansion * (double)channels));
}
