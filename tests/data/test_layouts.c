/* Layouts of files: which arrays become frames, windows of trajectories, channels last, splits by
 * trajectory, and what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmocka.h"
#include "support/context.h"
#include "support/files.h"
#include "support/sets.h"
#include "tgrad/settings.h"
#include "tgrad/train.h"

enum { N = 3, T = 5, X = 4, Y = 6 };

/* Element (sample, time, channel, i, j) of every file below. */
static float value_of(int64_t n, int64_t t, int64_t c, int64_t i, int64_t j) {
    return (float)((((n * T + t) * 8 + c) * X + i) * Y + j);
}

/* Adds an array (n, t, grid.., channels) with channels first_channel .. of value_of; `order` names
 * its dimensions from the first to the last. */
static void add(tg_archive *archive, const char *name, const char *order, int64_t sample,
                int64_t first_channel, int64_t channels) {
    const int ndim = (int)strlen(order);
    tg_shape shape = {.ndim = ndim};
    tg_tensor tensor = {0};
    for (int d = 0; d < ndim; d++) {
        shape.dim[d] = order[d] == 'n'   ? N
                       : order[d] == 't' ? T
                       : order[d] == 'x' ? X
                       : order[d] == 'y' ? Y
                       : order[d] == 'c' ? channels
                                         : 2; /* d: half of the channels each */
    }
    set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, &tensor));
    for (int64_t k = 0; k < tg_tensor_numel(&tensor); k++) {
        int64_t at[128] = {['n'] = sample}, rest = k;
        for (int d = ndim - 1; d >= 0; d--) {
            at[(int)order[d]] = rest % shape.dim[d];
            rest /= shape.dim[d];
        }
        ((float *)tensor.data)[k] =
            value_of(at['n'], at['t'], first_channel + at['c'] + 2 * at['d'], at['x'], at['y']);
    }
    set_ok(ctx, tg_archive_take(archive, name, &tensor));
}

static const char *write_file(tg_archive **archive, const char *name) {
    const char *path = test_path(name);
    set_ok(ctx, tg_archive_write(ctx, path, *archive));
    tg_archive_destroy(archive);
    return path;
}

static tg_archive *begin(void) {
    tg_archive *archive = NULL;
    set_ok(ctx, tg_archive_create(ctx, &archive));
    return archive;
}

static const char *write_well(void) {
    tg_archive *a = begin();
    add(a, "t0_fields/density", "ntxy", 0, 0, 1);
    add(a, "t0_fields/mask", "nxy", 0, 0, 1); /* constant in time: left out */
    add(a, "t1_fields/velocity", "ntxyc", 0, 1, 2);
    add(a, "t2_fields/stress", "ntxydc", 0, 3, 2);
    add(a, "dimensions/x", "x", 0, 0, 1);
    return write_file(&a, "well.h5");
}

static const char *write_fields(void) {
    tg_archive *a = begin();
    add(a, "Vx", "ntxy", 0, 0, 1);
    add(a, "density", "ntxy", 0, 1, 1);
    add(a, "x-coordinate", "x", 0, 0, 1);
    return write_file(&a, "fields.h5");
}

static const char *write_tensor(void) {
    tg_archive *a = begin();
    add(a, "tensor", "ntxy", 0, 0, 1);
    add(a, "t-coordinate", "t", 0, 0, 1);
    return write_file(&a, "tensor.h5");
}

static const char *write_flow(void) {
    tg_archive *a = begin();
    add(a, "velocity", "ntxyc", 0, 0, 2);
    add(a, "particles", "ntxyc", 0, 2, 1);
    add(a, "force", "nxyc", 0, 0, 2);
    return write_file(&a, "flow.h5");
}

static const char *write_numbered(void) {
    tg_archive *a = begin();
    for (int64_t n = 0; n < N; n++) {
        char name[32];
        snprintf(name, sizeof name, "%04d/data", (int)n);
        add(a, name, "txyc", n, 0, 2);
        snprintf(name, sizeof name, "%04d/grid/x", (int)n);
        add(a, name, "x", n, 0, 1);
    }
    return write_file(&a, "numbered.h5");
}

static const char *write_arena(void) {
    tg_archive *a = begin();
    add(a, "train/u", "ntxy", 0, 0, 1);
    add(a, "train/vx", "ntxy", 0, 1, 1);
    add(a, "train/t", "nt", 0, 0, 1);
    return write_file(&a, "arena.h5");
}

/* MATLAB's (n, x, y, t), which HDF5 sees as (t, y, x, n), after a block with a line of text. */
static const char *write_matlab(bool has_u) {
    tg_archive *a = begin();
    unsigned char *bytes, *whole;
    size_t size;
    if (has_u) {
        add(a, "u", "tyxn", 0, 0, 1);
    }
    add(a, "a", "yxn", 0, 0, 1);
    bytes = test_read_bytes(write_file(&a, "plain.h5"), &size);
    whole = calloc(1, size + 512);
    snprintf((char *)whole, 512, "MATLAB 7.3 MAT-file, Platform: GLNXA64");
    memcpy(whole + 512, bytes, size);
    const char *path = test_path("u.mat");
    test_write_bytes(path, whole, size + 512);
    free(bytes);
    free(whole);
    return path;
}

/* Every value of every window, in the order `order` of channels. */
static void expect_windows(const char *path, const tg_dataset_config *config, int64_t channels,
                           tg_layout_kind kind) {
    tg_dataset *set = set_open(ctx, path, config);
    const tg_dataset_facts facts = tg_dataset_get_facts(set);
    const int64_t history = config->history, horizon = config->horizon, s = config->time_stride;
    const int64_t windows = T - (history + horizon - 1) * s, frame = channels * X * Y;
    float *x = set_floats((size_t)(history * frame)), *y = set_floats((size_t)(horizon * frame));
    assert_int_equal(facts.layout, kind);
    assert_int_equal(facts.frame_channels, channels);
    assert_int_equal(facts.in_channels, history * channels);
    assert_int_equal(facts.out_channels, horizon * channels);
    assert_int_equal(facts.times, T);
    assert_int_equal(facts.trajectories, N - config->first_sample);
    assert_int_equal(facts.samples, facts.trajectories * windows);
    assert_int_equal(facts.cached, config->cache_bytes > 0);
    for (int64_t k = 0; k < facts.samples; k++) {
        const int64_t n = config->first_sample + k / windows, start = k % windows;
        set_ok(ctx, tg_dataset_read(set, &k, 1, x, y));
        for (int64_t e = 0; e < (history + horizon) * frame; e++) {
            const int64_t h = e / frame, c = e / (X * Y) % channels, i = e / Y % X, j = e % Y;
            const float found = h < history ? x[e] : y[e - history * frame];
            assert_true(found == value_of(n, start + h * s, c, i, j));
        }
    }
    free(x);
    free(y);
    tg_dataset_close(&set);
    set_check_slabs(ctx, path, config, config->cache_bytes);
}

TEST(test_every_layout) {
    const struct {
        const char *path;
        int64_t channels;
        tg_layout_kind kind;
        bool is_whole; /* must fit in the cache */
    } files[] = {
        {write_well(), 7, TG_LAYOUT_WELL, false},
        {write_fields(), 2, TG_LAYOUT_PDEBENCH, false},
        {write_tensor(), 1, TG_LAYOUT_PDEBENCH, false},
        {write_flow(), 3, TG_LAYOUT_PDEBENCH, false},
        {write_numbered(), 2, TG_LAYOUT_NUMBERED, false},
        {write_arena(), 2, TG_LAYOUT_PDEARENA, false},
        {write_matlab(true), 1, TG_LAYOUT_MATLAB, true},
    };
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
        tg_dataset_config config = tg_dataset_config_default();
        expect_windows(files[f].path, &config, files[f].channels, files[f].kind);
        config.history = 2;
        config.time_stride = 2;
        config.first_sample = 1;
        config.cache_bytes = files[f].is_whole ? config.cache_bytes : 0;
        expect_windows(files[f].path, &config, files[f].channels, files[f].kind);
    }
}

/* Arrays of MATLAB are transposed, however the settings name them. */
TEST(test_matlab_by_name) {
    const char *path = write_matlab(true);
    tg_dataset_config config = tg_dataset_config_default();
    config.fields = "u";
    expect_windows(path, &config, 1, TG_LAYOUT_MATLAB);
    config.fields = NULL;
    config.layout = TG_LAYOUT_PAIRS;
    config.x_name = config.y_name = "a";
    tg_dataset *set = set_open(ctx, path, &config);
    float x[X * Y], y[X * Y];
    for (int64_t n = 0; n < N; n++) {
        set_ok(ctx, tg_dataset_read(set, &n, 1, x, y));
        for (int64_t e = 0; e < X * Y; e++) {
            assert_true(x[e] == value_of(n, 0, 0, e / Y, e % Y) && y[e] == x[e]);
        }
    }
    tg_dataset_close(&set);
}

/* data.fields chooses and orders, also in formats without groups. */
TEST(test_named_fields) {
    tg_archive *a = begin();
    tg_dataset_config config = tg_dataset_config_default();
    add(a, "late", "ntxyc", 0, 1, 2);
    add(a, "early", "ntxyc", 0, 0, 1);
    const char *path = write_file(&a, "named.safetensors");
    config.fields = "[early, late]";
    config.channels_last = true;
    config.horizon = 3;
    expect_windows(path, &config, 3, TG_LAYOUT_TRAJECTORY);
    config.layout = TG_LAYOUT_TRAJECTORY;
    config.n_dim = 0; /* as the shape looks: the first field has one channel */
    expect_windows(path, &config, 3, TG_LAYOUT_TRAJECTORY);
}

TEST(test_channels_last) {
    tg_archive *a = begin();
    tg_dataset_config config = tg_dataset_config_default();
    const int64_t second = 1;
    float x[3 * 2 * 3], y[X * Y];
    add(a, "x", "nxyc", 0, 0, 3);
    add(a, "y", "nxy", 0, 4, 1);
    config.channels_last = true;
    config.grid[0] = 2;
    config.grid[1] = 3;
    tg_dataset *set = set_open(ctx, write_file(&a, "last.h5"), &config);
    assert_int_equal(tg_dataset_get_facts(set).in_channels, 3);
    set_ok(ctx, tg_dataset_read(set, &second, 1, x, y));
    for (int64_t e = 0; e < 18; e++) {
        assert_true(x[e] == value_of(1, 0, e / 6, 2 * (e / 3 % 2), 2 * (e % 3)));
    }
    tg_dataset_close(&set);
}

/* Of the layouts of pairs x alone, in files that have no y or one with times. */
TEST(test_x_alone) {
    tg_archive *a = begin();
    add(a, "nu", "nxy", 0, 0, 1);
    add(a, "x-coordinate", "x", 0, 0, 1);
    const char *const nu = write_file(&a, "nu.h5");
    for (int f = 0; f < 3; f++) {
        const char *path = f == 0 ? nu : write_matlab(f == 2);
        tg_dataset_config config = tg_dataset_config_default();
        const int64_t second = 1;
        float x[X * Y];
        config.x_only = true;
        config.is_pairs = f == 2;
        tg_dataset *set = set_open(ctx, path, &config);
        assert_string_equal(tg_dataset_array(set, 0), f == 0 ? "nu" : "a");
        assert_int_equal(tg_dataset_get_facts(set).trajectories, 0);
        assert_int_equal(tg_dataset_get_facts(set).samples, N);
        set_ok(ctx, tg_dataset_read(set, &second, 1, x, NULL));
        for (int64_t e = 0; e < X * Y; e++) {
            assert_true(x[e] == value_of(1, 0, 0, e / Y, e % Y));
        }
        tg_dataset_close(&set);
    }
}

/* Component 1 of a field from frame 1 on, three frames of each trajectory. */
TEST(test_slices) {
    for (int is_cached = 0; is_cached < 2; is_cached++) {
        for (int is_last = 0; is_last < 2; is_last++) {
            tg_archive *a = begin();
            tg_dataset_config config = tg_dataset_config_default();
            float x[X * Y], y[X * Y];
            add(a, "v", is_last ? "ntxyc" : "ntcxy", 0, 1, 3);
            config.fields = "v:1";
            config.channels_last = is_last;
            config.first_frame = 1;
            config.n_frames = 3;
            config.cache_bytes = is_cached ? config.cache_bytes : 0;
            tg_dataset *set = set_open(ctx, write_file(&a, "slices.safetensors"), &config);
            const tg_dataset_facts facts = tg_dataset_get_facts(set);
            assert_string_equal(tg_dataset_array(set, 0), "v");
            assert_int_equal(facts.in_channels, 1);
            assert_int_equal(facts.samples, N * 2);
            for (int64_t k = 0; k < facts.samples; k++) {
                set_ok(ctx, tg_dataset_read(set, &k, 1, x, y));
                for (int64_t e = 0; e < X * Y; e++) {
                    const int64_t n = k / 2, t = 1 + k % 2;
                    assert_true(x[e] == value_of(n, t, 2, e / Y, e % Y));
                    assert_true(y[e] == value_of(n, t + 1, 2, e / Y, e % Y));
                }
            }
            tg_dataset_close(&set);
        }
    }
    /* pairs: two components of x, the last one of y */
    tg_archive *a = begin();
    tg_dataset_config config = tg_dataset_config_default();
    const int64_t second = 1;
    float x[2 * X * Y], y[X * Y];
    add(a, "both", "ncxy", 0, 0, 3);
    config.x_name = "both:1-2";
    config.y_name = "both:2";
    tg_dataset *set = set_open(ctx, write_file(&a, "parts.h5"), &config);
    set_ok(ctx, tg_dataset_read(set, &second, 1, x, y));
    for (int64_t e = 0; e < X * Y; e++) {
        assert_true(x[e] == value_of(1, 0, 1, e / Y, e % Y));
        assert_true(x[X * Y + e] == y[e] && y[e] == value_of(1, 0, 2, e / Y, e % Y));
    }
    tg_dataset_close(&set);
}

/* Pairs of a group, beside arrays of the same names outside of it. */
TEST(test_grouped_pairs) {
    tg_archive *a = begin();
    tg_dataset_config config = tg_dataset_config_default();
    const int64_t second = 1;
    float x[X * Y], y[X * Y];
    add(a, "x", "nxy", 0, 0, 1);
    add(a, "y", "nxy", 0, 0, 1);
    add(a, "sim/run/x", "ncxy", 0, 0, 3);
    add(a, "sim/run/y", "nxy", 0, 0, 1);
    config.group = "sim/run";
    config.x_name = "x:2";
    tg_dataset *set = set_open(ctx, write_file(&a, "groups.h5"), &config);
    assert_string_equal(tg_dataset_array(set, 0), "sim/run/x");
    set_ok(ctx, tg_dataset_read(set, &second, 1, x, y));
    for (int64_t e = 0; e < X * Y; e++) {
        assert_true(x[e] == value_of(1, 0, 2, e / Y, e % Y));
        assert_true(y[e] == value_of(1, 0, 0, e / Y, e % Y));
    }
    tg_dataset_close(&set);
}

static void count_notes(void *user, tg_log_level level, const char *message) {
    (void)level;
    *(int *)user += strstr(message, "is left out") != NULL;
}

/* What is left out of a file is told when it is opened, not each time that it is looked at. */
TEST(test_notes_once) {
    tg_archive *a = begin();
    add(a, "t0_fields/p", "ntxy", 0, 0, 1);
    add(a, "t0_fields/floor", "nxy", 0, 0, 1);
    const char *path = write_file(&a, "notes.h5");
    int notes = 0;
    tg_context *teller = NULL;
    tg_context_config how = tg_context_config_default();
    tg_train_memory *memory = calloc(1, sizeof *memory);
    tg_settings *settings = NULL;
    tg_dataset *set = NULL;
    const tg_dataset_config config = tg_dataset_config_default();
    assert_non_null(memory);
    how.log = count_notes;
    how.log_user = &notes;
    assert_int_equal(tg_context_create(&how, &teller), TG_OK);
    set_ok(teller, tg_backend_select(teller, "cpu"));
    set_ok(teller, tg_settings_create(teller, &settings));
    set_ok(teller, tg_settings_set(settings, "fno.n_modes", "2,2", NULL));
    set_ok(teller, tg_settings_set(settings, "data.train_file", path, NULL));
    set_ok(teller, tg_train_plan(teller, settings, 1, memory));
    assert_int_equal(notes, 0);
    set_ok(teller, tg_dataset_open(teller, path, NULL, &config, &set));
    assert_int_equal(notes, 1);
    tg_dataset_close(&set);
    tg_settings_destroy(&settings);
    tg_context_destroy(&teller);
    free(memory);
}

/* ---- what is refused ---- */

static void expect_refused(const char *path, const tg_dataset_config *config, tg_status status,
                           const char *sentence) {
    tg_dataset *set = NULL;
    assert_int_equal(tg_dataset_open(ctx, path, NULL, config, &set), status);
    assert_null(set);
    set_expect_sentence(ctx, sentence);
}

TEST(test_refused) {
    tg_dataset_config config = tg_dataset_config_default();
    const char *tensor = write_tensor();
    config.history = 3;
    config.horizon = 3;
    expect_refused(tensor, &config, TG_E_CONFIG,
                   "data.history 3 and data.horizon 3 with data.time_stride 1 need 6 frames, its "
                   "trajectories have 5");
    config = tg_dataset_config_default();
    config.first_frame = 3;
    config.n_frames = 3;
    expect_refused(
        tensor, &config, TG_E_CONFIG,
        "data.first_frame 3 and data.n_frames 3 were asked for, its trajectories have 5");
    config.n_frames = 1;
    expect_refused(tensor, &config, TG_E_CONFIG,
                   "need 2 frames, its trajectories have 1 between data.first_frame and data.n_f");
    config = tg_dataset_config_default();
    config.fields = "tensor:1";
    config.n_dim = 2;
    expect_refused(tensor, &config, TG_E_CONFIG,
                   "component 1 was asked for, it has 1 (counted from 0)");
    config = tg_dataset_config_default();
    config.first_sample = 2;
    config.n_samples = 2;
    expect_refused(tensor, &config, TG_E_CONFIG,
                   "2 trajectories were asked for, there are 1 after those skipped");
    config = tg_dataset_config_default();
    config.n_dim = 1;
    config.layout = TG_LAYOUT_PDEARENA;
    expect_refused(tensor, &config, TG_E_CONFIG, "arrays of the layout pdearena, found");
    tg_archive *a = begin();
    add(a, "0000/data", "txyc", 0, 0, 1);
    add(a, "0001/data", "txyc", 0, 0, 2);
    config = tg_dataset_config_default();
    expect_refused(write_file(&a, "mixed.h5"), &config, TG_E_SHAPE,
                   "samples on several grids need a file each");
    a = begin();
    add(a, "here", "nxy", 0, 0, 1);
    expect_refused(write_file(&a, "other.h5"), &config, TG_E_ARGUMENT,
                   "there is no numeric dataset 'x'; there are here; data.x_name says which one is "
                   "x; data.fields says which are fields in time, data.layout that it is one of");
    a = begin();
    add(a, "train/u", "ntxy", 0, 0, 1);
    add(a, "valid/u", "ntxy", 0, 0, 1);
    const char *both = write_file(&a, "both.h5");
    expect_refused(both, &config, TG_E_CONFIG, "data.group says which to use");
    config.group = "valid";
    expect_windows(both, &config, 1, TG_LAYOUT_PDEARENA);
}

/* A frame with a NaN, a mask for instance, is in several windows: the first of x is told. */
TEST(test_masked_frame) {
    tg_archive *a = begin();
    const tg_dataset_config config = tg_dataset_config_default();
    tg_normalizer *normalizer = NULL;
    add(a, "tensor", "ntxy", 0, 0, 1);
    float *values = tg_archive_find(a, "tensor")->data;
    values[(T + 2) * X * Y + 1] = NAN; /* trajectory 1, time 2 */
    tg_dataset *set = set_open(ctx, write_file(&a, "masked.h5"), &config);
    assert_int_equal(tg_normalizer_fit(ctx, set, TG_DATA_X, &normalizer), TG_E_NUMERIC);
    set_expect_sentence(ctx, "trajectory 1, frame 2, channel 0, point (0, 1) is NaN");
    tg_dataset_close(&set);
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
