/* Behaviour of networks: settings, initialisation, archives, batches, errors, weights that change
 * during backward, and no memory left when any allocation fails. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "nn/config.h"
#include "nn/network.h"
#include "support/network.h"
#include "support/no_memory.h"
#include "support/runner.h"

static const char *const plain = "{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 3}";
static const int64_t plain_grid[] = {8, 9};

static int open_context(void **state) {
    *state = net_context("cpu", 2);
    return 0;
}

/* Nothing may be left. */
static int close_context(void **state) {
    tg_context *ctx = *state;
    const tg_mem_usage usage = tg_context_memory(ctx, TG_HOST);
    const size_t held = usage.current[TG_MEM_WEIGHTS] + usage.current[TG_MEM_ACTIVATIONS] +
                        usage.current[TG_MEM_GRADIENTS] + usage.current[TG_MEM_DATA];
    tg_context_destroy(&ctx);
    return held == 0 ? 0 : -1;
}

static void expect_error(tg_context *ctx, tg_status expected, tg_status found, const char *part) {
    assert_int_equal(found, expected);
    if (!strstr(tg_context_error(ctx), part)) {
        fail_msg("'%s' is not in: %s", part, tg_context_error(ctx));
    }
}

/* ---- settings ---- */

TEST_WITH(settings_read_back, open_context, close_context) {
    tg_context *ctx = *state;
    tg_fno_config a = net_config(
        ctx, "{\"n_modes\": [4, 6, 8], \"in_channels\": 2, \"out_channels\": 3,"
             "\"hidden_channels\": 5, \"n_layers\": 2, \"lifting_channel_ratio\": 1.5,"
             "\"projection_channel_ratio\": 4, \"positional_embedding\": null,"
             "\"channel_mlp_expansion\": 0.7, \"channel_mlp_dropout\": 0.1,"
             "\"fno_skip\": \"identity\", \"channel_mlp_skip\": \"linear\","
             "\"norm\": \"instance_norm\", \"stabilizer\": \"tanh\", \"domain_padding\": 0.25,"
             "\"domain_padding_mode\": \"symmetric\", \"complex_data\": true, \"dtype\": \"f64\","
             "\"preactivation\": true}");
    tg_fno_config b = tg_fno_config_default();
    for (int i = 0; i < tg_fno_config_count(); i++) {
        char first[96], second[96];
        tg_fno_config_get(&a, i, first, sizeof first);
        net_ok(ctx, tg_fno_config_set(ctx, &b, tg_fno_config_key(i), first));
        assert_string_equal(first, tg_fno_config_get(&b, i, second, sizeof second));
    }
    assert_null(tg_fno_config_key(tg_fno_config_count()));
    assert_null(tg_fno_config_key(-1));
    net_ok(ctx, tg_fno_config_check(ctx, &b));
    assert_int_equal(b.n_dim, 3);
    assert_int_equal(b.n_modes[2], 8);
    net_ok(ctx, tg_fno_config_set(ctx, &b, "domain_padding", "null"));
    assert_true(b.domain_padding == 0.0);
    net_ok(ctx, tg_fno_config_set(ctx, &b, "domain_padding", "[0.25, 0, 0.5]"));
    assert_int_equal(b.n_padding_of, 3);
    assert_true(b.padding_of[0] == 0.25 && b.padding_of[1] == 0.0 && b.padding_of[2] == 0.5);
    net_ok(ctx, tg_fno_config_check(ctx, &b));
    net_ok(ctx, tg_fno_config_set(ctx, &b, "domain_padding", "[0.25, 0]"));
    expect_error(ctx, TG_E_CONFIG, tg_fno_config_check(ctx, &b), "n_modes has 3 dimensions");
    net_ok(ctx, tg_fno_config_set(ctx, &b, "domain_padding", "0.5"));
    assert_true(b.n_padding_of == 0 && b.domain_padding == 0.5);
    net_ok(ctx, tg_fno_config_set(ctx, &b, "non_linearity", "silu"));
    expect_error(ctx, TG_E_CONFIG, tg_fno_config_check(ctx, &b), "complex data have gelu");
}

static const char *const uno =
    "{\"architecture\": \"uno\", \"hidden_channels\": 4, \"n_layers\": 3, \"channel_mlp_skip\": "
    "\"linear\","
    "\"uno_out_channels\": [6, 5, 4], \"uno_n_modes\": [[4, 8], [4, 4], [6, 4]],"
    "\"uno_scalings\": [[1, 0.5], [0.5, 1], [2, 2]], \"horizontal_skips_map\": {\"2\": 0}}";

/* The lists of a UNO read back, a map of skips can come entry by entry, and what does not fit
 * together is named. */
TEST_WITH(uno_settings, open_context, close_context) {
    tg_context *ctx = *state;
    static const char *const wrong[][3] = {
        {"uno_out_channels", "[6, 5]", "it needs 3"},
        {"uno_n_modes", "[[4, 8], [4, 4]]", "it needs 6"},
        {"uno_scalings", "[[1, 0.5], [0.5, 1], [2, 1]]", "multiply to 0.5"},
        {"horizontal_skips_map", "[[1, 1]]", "[1, 1]"},
        {"horizontal_skips_map", "[[3, 0]]", "1 .. 2"},
        {"horizontal_skips_map", "[[2, 0], [2, 1]]", "[2, 1]"},
        {"channel_mlp_skip", "soft-gating", "take linear"},
        {"fno_skip", "identity", "fno.fno_skip"},
        {"complex_data", "true", "real data"},
        {"separable", "true", "full weights"},
        {"fno_block_precision", "half", "resamples in f32"},
        {"n_layers", "9", "up to 8"},
    };
    const tg_fno_config a = net_config(ctx, uno);
    tg_fno_config b = tg_fno_config_default();
    for (int i = 0; i < tg_fno_config_count(); i++) {
        char first[256], second[256];
        tg_fno_config_get(&a, i, first, sizeof first);
        net_ok(ctx, tg_fno_config_set(ctx, &b, tg_fno_config_key(i), first));
        assert_string_equal(first, tg_fno_config_get(&b, i, second, sizeof second));
    }
    net_ok(ctx, tg_fno_config_check(ctx, &b));
    assert_true(b.n_dim == 2 && b.n_modes[0] == 6 && b.n_modes[1] == 8);
    assert_true(b.n_horizontal_skips == 2 && b.horizontal_skips_map[0] == 2);
    net_ok(ctx, tg_fno_config_set(ctx, &b, "horizontal_skips_map.1", "0"));
    net_ok(ctx, tg_fno_config_set(ctx, &b, "horizontal_skips_map.2", "1"));
    assert_true(b.n_horizontal_skips == 4 && b.horizontal_skips_map[2] == 2);
    assert_int_equal(b.horizontal_skips_map[3], 1);
    for (int i = 0; i < T_COUNT(wrong); i++) {
        tg_fno_config c = a;
        net_ok(ctx, tg_fno_config_set(ctx, &c, wrong[i][0], wrong[i][1]));
        expect_error(ctx, TG_E_CONFIG, tg_fno_config_check(ctx, &c), wrong[i][2]);
    }
    expect_error(ctx, TG_E_CONFIG, tg_fno_config_set(ctx, &b, "uno_n_modes", "[[1.5, 2]]"), "1.5");
    expect_error(ctx, TG_E_CONFIG, tg_fno_config_set(ctx, &b, "horizontal_skips_map", "[2, 1]"),
                 "pairs");
    tg_fno *fno = NULL;
    net_ok(ctx, tg_fno_create(ctx, &a, 1, &fno));
    const int64_t tiny[] = {1, 8};
    expect_error(ctx, TG_E_SHAPE, tg_fno_prepare(fno, 1, tiny, false), "layer 1 would have no");
    tg_fno_destroy(&fno);
}

TEST_WITH(bad_settings_are_named, open_context, close_context) {
    tg_context *ctx = *state;
    static const char *const bad[][2] = {{"n_modes", "[]"},
                                         {"n_modes", "[1,2,3,4]"},
                                         {"n_modes", "[0]"},
                                         {"n_modes", "sixteen"},
                                         {"hidden_channels", "0"},
                                         {"hidden_channels", "2.5"},
                                         {"n_layers", "-1"},
                                         {"n_layers", "100000"},
                                         {"in_channels", ""},
                                         {"norm", "batch_norm"},
                                         {"norm", "ada_in"},
                                         {"non_linearity", "elu"},
                                         {"domain_padding", "[0.1, 0.1, 0.1, 0.1]"},
                                         {"fno_skip", "null"},
                                         {"complex_data", "maybe"},
                                         {"dtype", "bf16"},
                                         {"channel_mlp_dropout", "1"},
                                         {"channel_mlp_dropout", "nan"},
                                         {"domain_padding", "-0.1"},
                                         {"lifting_channel_ratio", "0"},
                                         {"stabilizer", "relu"},
                                         {"complex_modes", "all"},
                                         {"channel_mlp_expansion", "-1"},
                                         {"out_channels", "1e9"}};
    for (int i = 0; i < T_COUNT(bad); i++) {
        tg_fno_config config = tg_fno_config_default(), before = config;
        expect_error(ctx, TG_E_CONFIG, tg_fno_config_set(ctx, &config, bad[i][0], bad[i][1]),
                     bad[i][0]);
        assert_memory_equal(&config, &before, sizeof config);
    }
    tg_fno_config config = tg_fno_config_default();
    expect_error(ctx, TG_E_CONFIG, tg_fno_config_set(ctx, &config, "hiden_channels", "4"),
                 "fno.hidden_channels");
    expect_error(ctx, TG_E_CONFIG, tg_fno_config_set(ctx, &config, "zzzzzzzz", "4"), "zzzzzzzz");
}

TEST_WITH(bad_structs_are_refused, open_context, close_context) {
    tg_context *ctx = *state;
    tg_fno *fno = NULL;
    tg_fno_config config = tg_fno_config_default();
    expect_error(ctx, TG_E_CONFIG, tg_fno_create(ctx, &config, 1, &fno), "fno.n_modes");
    assert_null(fno);
    const tg_fno_config good = net_config(ctx, plain);
    config = good;
    config.norm = (tg_fno_norm)17;
    expect_error(ctx, TG_E_CONFIG, tg_fno_create(ctx, &config, 1, &fno), "fno.norm");
    config = good;
    config.dtype = TG_BF16;
    expect_error(ctx, TG_E_CONFIG, tg_fno_create(ctx, &config, 1, &fno), "fno.dtype");
    config = good;
    config.channel_mlp_expansion = (double)NAN;
    expect_error(ctx, TG_E_CONFIG, tg_fno_create(ctx, &config, 1, &fno),
                 "fno.channel_mlp_expansion");
    config = good;
    config.complex_data = true;
    config.complex_modes = TG_MODES_NONNEGATIVE;
    expect_error(ctx, TG_E_CONFIG, tg_fno_create(ctx, &config, 1, &fno), "fno.complex_modes");
    config = good;
    config.hidden_channels = 1 << 20;
    config.n_dim = 3;
    config.n_modes[0] = config.n_modes[1] = config.n_modes[2] = 1 << 20;
    expect_error(ctx, TG_E_CONFIG, tg_fno_create(ctx, &config, 1, &fno), "fno.hidden_channels");
    tg_fno_memory memory;
    expect_error(ctx, TG_E_CONFIG, tg_fno_plan(ctx, &config, 1, plain_grid, true, NULL, &memory),
                 "fno.n_modes");
}

/* ---- initialisation ---- */

static int find_param(const tg_fno *fno, const char *name) {
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        if (strcmp(tg_fno_get_param(fno, i).name, name) == 0) {
            return i;
        }
    }
    fail_msg("no parameter %s", name);
    return -1;
}

static tg_tensor param_view(tg_context *ctx, const tg_fno *fno, int i) {
    const tg_fno_param param = tg_fno_get_param(fno, i);
    tg_tensor view;
    net_ok(ctx, tg_tensor_wrap(ctx, param.dtype, &param.shape, param.weight.data, &view));
    return view;
}

TEST_WITH(initial_weights, open_context, close_context) {
    tg_context *ctx = *state;
    tg_fno *a = net_fno(ctx, 7, plain), *b = net_fno(ctx, 7, plain), *c = net_fno(ctx, 8, plain);
    for (int i = 0; i < tg_fno_param_count(a); i++) {
        const tg_tensor x = param_view(ctx, a, i), y = param_view(ctx, b, i);
        assert_memory_equal(x.data, y.data, tg_tensor_bytes(&x));
        for (int j = 0; j < i; j++) { /* no stream is used twice */
            const tg_tensor other = param_view(ctx, a, j);
            const bool gates = strstr(tg_fno_get_param(a, i).name, "channel_mlp_skips") != NULL;
            assert_true(gates || ((const float *)x.data)[0] != ((const float *)other.data)[0]);
        }
    }
    const int spectral = find_param(a, "fno_blocks.convs.1.weight.tensor");
    const tg_tensor w = param_view(ctx, a, spectral), v = param_view(ctx, c, spectral);
    assert_true(tg_fno_get_param(a, spectral).spectral);
    assert_memory_not_equal(w.data, v.data, tg_tensor_bytes(&w));
    const double mean_square =
        net_distance(&w, NULL) * net_distance(&w, NULL) / (double)tg_tensor_numel(&w);
    assert_true(fabs(mean_square - 2.0 / 12.0) < 0.02); /* E|w|^2 = 2 / (Cin + Cout) */
    tg_tensor_stats stats;
    const tg_tensor lifting = param_view(ctx, a, find_param(a, "lifting.fcs.0.weight"));
    net_ok(ctx, tg_tensor_get_stats(ctx, &lifting, &stats));
    assert_true(stats.max <= 1.0 / sqrt(3.0) && stats.min >= -1.0 / sqrt(3.0) && stats.max > 0.4);
    const tg_tensor gate =
        param_view(ctx, a, find_param(a, "fno_blocks.channel_mlp_skips.0.weight"));
    net_ok(ctx, tg_tensor_get_stats(ctx, &gate, &stats));
    assert_true(stats.min == 1.0 && stats.max == 1.0);
    tg_fno_destroy(&a);
    tg_fno_destroy(&b);
    tg_fno_destroy(&c);
    tg_fno_destroy(&c);
    tg_fno_destroy(NULL);
}

/* An outline lists the same parameters and takes no memory for them. */
TEST_WITH(outlines, open_context, close_context) {
    tg_context *ctx = *state;
    tg_fno *fno = net_fno(ctx, 1, plain), *outline = NULL;
    const size_t held = tg_context_memory(ctx, TG_HOST).current[TG_MEM_WEIGHTS];
    net_ok(ctx, tg_fno_outline(ctx, tg_fno_get_config(fno), &outline));
    assert_int_equal(tg_context_memory(ctx, TG_HOST).current[TG_MEM_WEIGHTS], held);
    assert_int_equal(tg_fno_param_count(outline), tg_fno_param_count(fno));
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        const tg_fno_param a = tg_fno_get_param(fno, i), b = tg_fno_get_param(outline, i);
        assert_string_equal(a.name, b.name);
        assert_true(a.dtype == b.dtype && a.spectral == b.spectral);
        assert_true(tg_shape_equal(&a.shape, &b.shape));
        assert_null(b.weight.data);
    }
    assert_null(tg_fno_get_param(fno, tg_fno_param_count(fno)).name);
    assert_null(tg_fno_get_param(fno, -1).name);
    tg_archive *archive = NULL;
    net_ok(ctx, tg_archive_create(ctx, &archive));
    expect_error(ctx, TG_E_ARGUMENT, tg_fno_prepare(outline, 1, plain_grid, false), "outline");
    expect_error(ctx, TG_E_ARGUMENT, tg_fno_load(outline, archive, ""), "outline");
    expect_error(ctx, TG_E_ARGUMENT, tg_fno_save(outline, archive, ""), "outline");
    tg_archive_destroy(&archive);
    tg_fno_destroy(&outline);
    tg_fno_destroy(&fno);
}

TEST_WITH(pairs_start_equal, open_context, close_context) {
    tg_context *ctx = *state;
    tg_fno *fno =
        net_fno(ctx, 1, "{\"n_modes\": [4], \"hidden_channels\": 4, \"complex_data\": true}");
    const tg_tensor fr = param_view(ctx, fno, find_param(fno, "lifting.fr.fcs.1.weight"));
    const tg_tensor fi = param_view(ctx, fno, find_param(fno, "lifting.fi.fcs.1.weight"));
    assert_memory_equal(fr.data, fi.data, tg_tensor_bytes(&fr));
    find_param(fno, "fno_blocks.fno_skips.0.fr.conv.weight");
    find_param(fno, "fno_blocks.channel_mlp_skips.3.fi.weight");
    tg_fno_destroy(&fno);
}

/* ---- archives ---- */

TEST_WITH(archives, open_context, close_context) {
    tg_context *ctx = *state;
    tg_fno *a = net_fno(ctx, 1, plain), *b = net_fno(ctx, 2, plain);
    tg_archive *archive = NULL;
    net_ok(ctx, tg_archive_create(ctx, &archive));
    net_ok(ctx, tg_fno_save(a, archive, "model."));
    assert_int_equal(tg_archive_count(archive), tg_fno_param_count(a));
    net_ok(ctx, tg_fno_load(b, archive, "model."));
    for (int i = 0; i < tg_fno_param_count(a); i++) {
        const tg_tensor x = param_view(ctx, a, i), y = param_view(ctx, b, i);
        assert_memory_equal(x.data, y.data, tg_tensor_bytes(&x));
    }
    expect_error(ctx, TG_E_FORMAT, tg_fno_load(b, archive, ""), "lifting.fcs.0.weight");
    tg_fno *other =
        net_fno(ctx, 1, "{\"n_modes\": [4, 4], \"hidden_channels\": 6, \"n_layers\": 3}");
    expect_error(ctx, TG_E_SHAPE, tg_fno_load(other, archive, "model."),
                 "fno_blocks.convs.0.weight.tensor");
    char prefix[400];
    memset(prefix, 'p', sizeof prefix);
    prefix[sizeof prefix - 1] = '\0';
    expect_error(ctx, TG_E_ARGUMENT, tg_fno_load(b, archive, prefix), "prefix");
    expect_error(ctx, TG_E_ARGUMENT, tg_fno_save(b, archive, prefix), "prefix");
    tg_archive_destroy(&archive);
    tg_fno_destroy(&a);
    tg_fno_destroy(&b);
    tg_fno_destroy(&other);
}

/* ---- running ---- */

/* Samples do not see each other, and fewer than were prepared for are fine. */
TEST_WITH(samples_are_independent, open_context, close_context) {
    tg_context *ctx = *state;
    tg_fno *fno = net_fno(ctx, 1, plain);
    const tg_fno_config *config = tg_fno_get_config(fno);
    tg_tensor x = net_random(ctx, config, 5, 1, plain_grid, 1);
    tg_tensor y = net_random(ctx, config, 5, 1, plain_grid, 2);
    tg_tensor one = net_random(ctx, config, 1, 1, plain_grid, 3);
    for (int training = 0; training < 2; training++) {
        net_ok(ctx, tg_fno_prepare(fno, 5, plain_grid, training == 1));
        net_ok(ctx, tg_fno_forward(fno, &x, &y));
        for (int64_t b = 0; b < 5; b++) {
            tg_tensor sample, expected;
            net_ok(ctx, tg_tensor_slice(ctx, &x, b, 1, &sample));
            net_ok(ctx, tg_tensor_slice(ctx, &y, b, 1, &expected));
            net_ok(ctx, tg_fno_forward(fno, &sample, &one));
            assert_true(net_error(&one, &expected) <= 1e-6);
        }
    }
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    tg_tensor_destroy(&one);
    tg_fno_destroy(&fno);
}

/* Coordinates given by hand as further channels are those that the network adds, also for complex
 * data and with more channels in than inside. */
TEST_WITH(coordinates_are_channels, open_context, close_context) {
    tg_context *ctx = *state;
    for (int complex_data = 0; complex_data < 2; complex_data++) {
        tg_fno_config config =
            net_config(ctx, "{\"n_modes\": [4, 6], \"hidden_channels\": 2, \"n_layers\": 2}");
        config.complex_data = complex_data == 1;
        config.in_channels = 5;
        tg_fno *with = NULL, *without = NULL;
        tg_archive *weights = NULL;
        net_ok(ctx, tg_fno_create(ctx, &config, 1, &with));
        config.in_channels = 7;
        config.positional_embedding = TG_EMBEDDING_NONE;
        net_ok(ctx, tg_fno_create(ctx, &config, 2, &without));
        net_ok(ctx, tg_archive_create(ctx, &weights));
        net_ok(ctx, tg_fno_save(with, weights, ""));
        net_ok(ctx, tg_fno_load(without, weights, ""));
        tg_tensor x = net_random(ctx, &config, 3, 5, plain_grid, 1);
        tg_tensor longer = net_random(ctx, &config, 3, 7, plain_grid, 1);
        tg_tensor y[2] = {net_random(ctx, &config, 3, 1, plain_grid, 2),
                          net_random(ctx, &config, 3, 1, plain_grid, 3)};
        for (int64_t i = 0; i < 3 * 7 * 72; i++) {
            const int64_t b = i / (7 * 72), c = i / 72 % 7, p = i % 72;
            const tg_scalar at[2] = {{(double)(p / 9) / 8.0, 0.0}, {(double)(p % 9) / 9.0, 0.0}};
            tg_store(longer.dtype, longer.data, i,
                     c < 5 ? tg_load(x.dtype, x.data, (b * 5 + c) * 72 + p) : at[c - 5]);
        }
        for (int training = 0; training < 2; training++) {
            net_ok(ctx, tg_fno_prepare(with, 3, plain_grid, training == 1));
            net_ok(ctx, tg_fno_prepare(without, 3, plain_grid, training == 1));
            net_ok(ctx, tg_fno_forward(with, &x, &y[0]));
            net_ok(ctx, tg_fno_forward(without, &longer, &y[1]));
            assert_memory_equal(y[0].data, y[1].data, tg_tensor_bytes(&y[0]));
        }
        tg_tensor_destroy(&x);
        tg_tensor_destroy(&longer);
        tg_tensor_destroy(&y[0]);
        tg_tensor_destroy(&y[1]);
        tg_archive_destroy(&weights);
        tg_fno_destroy(&with);
        tg_fno_destroy(&without);
    }
}

typedef struct spoiler {
    net_gradients gradients;
    tg_fno *fno;
} spoiler;

/* Keeps the gradient and makes the weight useless, as an optimizer that updates at once may. */
static tg_status keep_and_spoil(void *user, const tg_gradient *gradient) {
    spoiler *s = user;
    const tg_grad_sink keep = net_sink(&s->gradients);
    const tg_status status = keep.receive(keep.user, gradient);
    const tg_fno_param param = tg_fno_get_param(s->fno, gradient->param);
    memset(param.weight.data, 0xFF,
           (size_t)tg_shape_numel(&param.shape) * tg_dtype_size(param.dtype)); /* NaN */
    return status;
}

TEST_WITH(weights_may_change_in_the_sink, open_context, close_context) {
    tg_context *ctx = *state;
    static const char *const configs[] = {
        "{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 3}",
        ("{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 2,"
         "\"norm\": \"group_norm\", \"domain_padding\": 0.25,"
         "\"channel_mlp_skip\": \"linear\"}"),
        "{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 2, \"complex_data\": true}"};
    for (int i = 0; i < T_COUNT(configs); i++) {
        tg_fno *fno = net_fno(ctx, 1, configs[i]);
        const tg_fno_config *config = tg_fno_get_config(fno);
        tg_tensor x = net_random(ctx, config, 2, 1, plain_grid, 1);
        tg_tensor target = net_random(ctx, config, 2, 1, plain_grid, 2);
        const tg_loss_config loss = tg_loss_config_default();
        double value;
        net_gradients kept = net_gradients_make(ctx, fno);
        spoiler s = {.gradients = net_gradients_make(ctx, fno), .fno = fno};
        const tg_grad_sink sinks[] = {net_sink(&kept), {.receive = keep_and_spoil, .user = &s}};
        net_ok(ctx, tg_fno_prepare(fno, 2, plain_grid, true));
        for (int k = 0; k < 2; k++) {
            net_ok(ctx, tg_fno_loss_backward(fno, &x, &target, &loss, &sinks[k], &value));
        }
        for (int n = 0; n < kept.count; n++) {
            assert_memory_equal(kept.gradient[n].data, s.gradients.gradient[n].data,
                                tg_tensor_bytes(&kept.gradient[n]));
        }
        net_gradients_free(&kept);
        net_gradients_free(&s.gradients);
        tg_tensor_destroy(&x);
        tg_tensor_destroy(&target);
        tg_fno_destroy(&fno);
    }
}

static tg_status refuse(void *user, const tg_gradient *gradient) {
    int *left = user;
    (void)gradient;
    return --*left > 0 ? TG_OK : TG_E_NUMERIC;
}

TEST_WITH(errors, open_context, close_context) {
    tg_context *ctx = *state;
    tg_fno *fno = net_fno(ctx, 1, plain);
    const tg_fno_config *config = tg_fno_get_config(fno);
    tg_tensor x = net_random(ctx, config, 2, 1, plain_grid, 1);
    tg_tensor y = net_random(ctx, config, 2, 1, plain_grid, 1);
    const tg_loss_config loss = tg_loss_config_default();
    double value;
    int left = 3;
    const tg_grad_sink sink = {.receive = refuse, .user = &left};
    expect_error(ctx, TG_E_ARGUMENT, tg_fno_forward(fno, &x, &y), "tg_fno_prepare");
    expect_error(ctx, TG_E_SHAPE, tg_fno_prepare(fno, 0, plain_grid, true), "batch");
    expect_error(ctx, TG_E_SHAPE, tg_fno_prepare(fno, INT64_MAX / 4, plain_grid, true), "batch");
    expect_error(ctx, TG_E_SHAPE, tg_fno_prepare(fno, 1, (int64_t[]){8, 0}, true), "grid");
    net_ok(ctx, tg_fno_prepare(fno, 1, plain_grid, true));
    expect_error(ctx, TG_E_SHAPE, tg_fno_forward(fno, &x, &y), "2 samples");
    net_ok(ctx, tg_fno_prepare(fno, 2, plain_grid, false));
    net_ok(ctx, tg_fno_forward(fno, &x, &y));
    expect_error(ctx, TG_E_ARGUMENT, tg_fno_backward(fno, &y, &sink), "training");
    expect_error(ctx, TG_E_ARGUMENT, tg_fno_loss_backward(fno, &x, &y, &loss, &sink, &value),
                 "training");
    net_ok(ctx, tg_fno_prepare(fno, 2, plain_grid, true));
    expect_error(ctx, TG_E_ARGUMENT, tg_fno_backward(fno, &y, &sink), "forward");
    tg_tensor wrong = x;
    wrong.shape.dim[3] = 7;
    expect_error(ctx, TG_E_SHAPE, tg_fno_forward(fno, &wrong, &y), "2x1x8x9");
    wrong = x;
    wrong.shape.dim[1] = 2;
    expect_error(ctx, TG_E_SHAPE, tg_fno_forward(fno, &wrong, &y), "x:");
    wrong = x;
    wrong.dtype = TG_F64;
    expect_error(ctx, TG_E_DTYPE, tg_fno_forward(fno, &wrong, &y), "f32");
    wrong = y;
    wrong.shape.dim[0] = 1;
    expect_error(ctx, TG_E_SHAPE, tg_fno_forward(fno, &x, &wrong), "y:");
    net_ok(ctx, tg_fno_forward(fno, &x, &y));
    assert_int_equal(tg_fno_backward(fno, &y, &sink), TG_E_NUMERIC); /* the sink's own error */
    assert_int_equal(left, 0);
    expect_error(ctx, TG_E_ARGUMENT, tg_fno_backward(fno, &y, &sink), "forward"); /* one each */
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    tg_fno_destroy(&fno);
}

/* Checkpointing keeps less: the same numbers, and between both kinds of it the same bits. */
TEST_WITH(checkpointing, open_context, close_context) {
    tg_context *ctx = *state;
    static const char *const configs[] = {
        "{\"n_modes\": [2, 2], \"hidden_channels\": 6, \"n_layers\": 4}",
        ("{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 3, \"norm\": \"group_norm\","
         "\"stabilizer\": \"tanh\", \"channel_mlp_skip\": \"linear\"}"),
        ("{\"n_modes\": [14, 6], \"hidden_channels\": 6, \"n_layers\": 3, \"domain_padding\": 0.25,"
         "\"channel_mlp_dropout\": 0.25, \"fno_skip\": \"soft-gating\"}"),
        ("{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 3, \"complex_data\": true,"
         "\"norm\": \"instance_norm\"}"),
        ("{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 1, \"complex_data\": true}"),
        ("{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 1, \"stabilizer\": "
         "\"tanh\"}"),
        ("{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 3, \"stabilizer\": \"tanh\","
         "\"channel_mlp_skip\": \"linear\"}"),
        ("{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 3, \"stabilizer\": \"tanh\","
         "\"channel_mlp_skip\": \"identity\", \"domain_padding\": 0.25}"),
        ("{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 3, \"stabilizer\": \"tanh\","
         "\"use_channel_mlp\": false, \"fno_skip\": \"soft-gating\"}"),
        ("{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 3, \"norm\": \"group_norm\","
         "\"use_channel_mlp\": false, \"complex_data\": true, \"domain_padding\": 0.25}")};
    for (int i = 0; i < T_COUNT(configs); i++) {
        net_gradients kept[3];
        tg_fno_memory memory[3];
        const tg_fno_config named = net_config(ctx, configs[i]);
        const int last = TG_CHECKPOINT_MINIMAL;
        for (int again = TG_CHECKPOINT_OFF; again <= last; again++) {
            tg_fno_config config = named;
            config.activation_checkpoint = (tg_checkpoint)again;
            tg_fno *fno = NULL;
            net_ok(ctx, tg_fno_create(ctx, &config, 1, &fno));
            net_ok(ctx, tg_fno_plan(ctx, &config, 2, plain_grid, true, NULL, &memory[again]));
            net_ok(ctx, tg_fno_prepare(fno, 2, plain_grid, true));
            tg_tensor x = net_random(ctx, &config, 2, 1, plain_grid, 1);
            tg_tensor target = net_random(ctx, &config, 2, 1, plain_grid, 2);
            const tg_loss_config loss = tg_loss_config_default();
            double value;
            kept[again] = net_gradients_make(ctx, fno);
            const tg_grad_sink sink = net_sink(&kept[again]);
            net_ok(ctx, tg_fno_loss_backward(fno, &x, &target, &loss, &sink, &value));
            tg_tensor_destroy(&x);
            tg_tensor_destroy(&target);
            tg_fno_destroy(&fno);
        }
        double most = 0.0;
        for (int n = 0; n < kept[0].count; n++) {
            most = fmax(most, net_distance(&kept[0].gradient[n], NULL));
        }
        for (int n = 0; n < kept[0].count; n++) {
            assert_true(net_distance(&kept[1].gradient[n], &kept[0].gradient[n]) <= 1e-5 * most);
            assert_memory_equal(kept[1].gradient[n].data, kept[last].gradient[n].data,
                                tg_tensor_bytes(&kept[1].gradient[n]));
        }
        const size_t all = memory[0].bytes[TG_MEM_ACTIVATIONS];
        const size_t block = memory[1].bytes[TG_MEM_ACTIVATIONS];
        const size_t least = memory[last].bytes[TG_MEM_ACTIVATIONS];
        assert_true(block <= all && least <= block);
        assert_true(i > 0 || (block < 2 * all / 3 && least < 4 * block / 5));
        for (int again = 0; again <= last; again++) {
            net_gradients_free(&kept[again]);
        }
    }
}

/* Dropout: off in inference, the same masks for the same step, others for the next. */
TEST_WITH(dropout, open_context, close_context) {
    tg_context *ctx = *state;
    tg_fno *fno = net_fno(ctx, 1,
                          "{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 2,"
                          "\"channel_mlp_dropout\": 0.5}");
    const tg_fno_config *config = tg_fno_get_config(fno);
    tg_tensor x = net_random(ctx, config, 2, 1, plain_grid, 1), y[4];
    for (int i = 0; i < 4; i++) {
        y[i] = net_random(ctx, config, 2, 1, plain_grid, 2);
        net_ok(ctx, tg_fno_prepare(fno, 2, plain_grid, i > 0));
        tg_fno_set_step(fno, i == 3 ? 12 : 11);
        net_ok(ctx, tg_fno_forward(fno, &x, &y[i]));
    }
    assert_true(net_error(&y[1], &y[0]) > 1e-3);
    assert_memory_equal(y[1].data, y[2].data, tg_tensor_bytes(&y[1]));
    assert_true(net_error(&y[3], &y[2]) > 1e-3);
    for (int i = 0; i < 4; i++) {
        tg_tensor_destroy(&y[i]);
    }
    tg_tensor_destroy(&x);
    tg_fno_destroy(&fno);
}

/* ---- modes in use ---- */

/* Weights (C, C, 8, 4) of the large network, of which the small one has (C, C, 4, 3): all channels,
 * the middle of the first dimension and the beginning of the second. */
enum { SMALL_MODES = 4 * 3, LARGE_MODES = 8 * 4 };

static int64_t in_large(int64_t small) {
    const int64_t k = small % SMALL_MODES;
    return small / SMALL_MODES * LARGE_MODES + (k / 3 + 2) * 4 + k % 3;
}

static net_gradients one_step(tg_context *ctx, tg_fno *fno) {
    const tg_fno_config *config = tg_fno_get_config(fno);
    const int64_t grid[] = {10, 12};
    const tg_loss_config loss = tg_loss_config_default();
    tg_tensor x = net_random(ctx, config, 2, 1, grid, 1);
    tg_tensor target = net_random(ctx, config, 2, 1, grid, 2);
    net_gradients gradients = net_gradients_make(ctx, fno);
    const tg_grad_sink sink = net_sink(&gradients);
    double value;
    net_ok(ctx, tg_fno_prepare(fno, 2, grid, true));
    net_ok(ctx, tg_fno_loss_backward(fno, &x, &target, &loss, &sink, &value));
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&target);
    return gradients;
}

/* A network that uses a part of its modes is the one that has no others, and those have no
 * gradients. */
TEST_WITH(modes_in_use, open_context, close_context) {
    tg_context *ctx = *state;
    static const int64_t odd[] = {4, 6}, part[] = {4, 5}, all[] = {8, 7};
    tg_fno *large = NULL, *small = NULL;
    tg_fno_config config =
        net_config(ctx, "{\"n_modes\": [8, 7], \"hidden_channels\": 3, \"n_layers\": 2,"
                        "\"dtype\": \"f64\", \"incremental_n_modes\": [2, 3]}");
    net_ok(ctx, tg_fno_create(ctx, &config, 1, &large));
    expect_error(ctx, TG_E_CONFIG, tg_fno_set_modes(large, odd), "6 of the 7 modes");
    net_ok(ctx, tg_fno_set_modes(large, part));
    config = net_config(ctx, "{\"n_modes\": [4, 5], \"hidden_channels\": 3, \"n_layers\": 2,"
                             "\"dtype\": \"f64\"}");
    net_ok(ctx, tg_fno_create(ctx, &config, 2, &small));
    for (int i = 0; i < tg_fno_param_count(small); i++) {
        const tg_fno_param from = tg_fno_get_param(large, i), to = tg_fno_get_param(small, i);
        for (int64_t n = 0; n < tg_tensor_numel(&to.weight) && to.spectral; n++) {
            memcpy((double *)to.weight.data + 2 * n,
                   (const double *)from.weight.data + 2 * in_large(n), 2 * sizeof(double));
        }
        if (!to.spectral) {
            memcpy(to.weight.data, from.weight.data, tg_tensor_bytes(&to.weight));
        }
    }
    net_gradients a = one_step(ctx, large), b = one_step(ctx, small);
    for (int i = 0; i < b.count; i++) {
        double error = 0.0, whole = 0.0, inside = 0.0;
        const double *got = a.gradient[i].data, *expected = b.gradient[i].data;
        const int64_t parts = tg_fno_get_param(small, i).spectral ? 2 : 1;
        for (int64_t n = 0; n < tg_tensor_numel(&b.gradient[i]) * parts; n++) {
            const int64_t at = parts == 2 ? 2 * in_large(n / 2) + n % 2 : n;
            error = fmax(error, fabs(got[at] - expected[n]));
            inside += got[at] * got[at];
        }
        for (int64_t n = 0; n < tg_tensor_numel(&a.gradient[i]) * parts; n++) {
            whole += got[n] * got[n];
        }
        assert_true(error <= 1e-12 && inside > 0.0);
        assert_true(fabs(whole - inside) <= 1e-14 * whole);
    }
    net_ok(ctx, tg_fno_set_modes(large, all));
    net_gradients c = one_step(ctx, large);
    assert_true(net_error(&c.gradient[0], &a.gradient[0]) > 1e-6);
    net_gradients_free(&a);
    net_gradients_free(&b);
    net_gradients_free(&c);
    tg_fno_destroy(&large);
    tg_fno_destroy(&small);
}

/* ---- memory that runs out ---- */

static tg_status build(tg_context *ctx, const tg_fno_config *config) {
    tg_fno *fno = NULL;
    tg_fno_memory memory;
    tg_status status = tg_fno_plan(ctx, config, 2, plain_grid, true, NULL, &memory);
    if (status == TG_OK) {
        status = tg_fno_create(ctx, config, 1, &fno);
    }
    if (status == TG_OK) {
        status = tg_fno_prepare(fno, 2, plain_grid, true);
    }
    tg_fno_destroy(&fno);
    return status;
}

TEST_WITH(every_allocation_may_fail, open_context, close_context) {
    tg_context *ctx = *state;
    const tg_fno_config config =
        net_config(ctx, "{\"n_modes\": [4, 6], \"hidden_channels\": 4, \"n_layers\": 2,"
                        "\"complex_data\": true, \"domain_padding\": 0.25}");
    net_ok(ctx, build(ctx, &config)); /* what the backend makes once is there now */
    test_walk walk = {.ctx = ctx};
    while (test_walk_next(&walk)) {
        test_walk_called(&walk, build(ctx, &config));
    }
    assert_true(walk.n > 15);
}
