/* Settings from text: every type, quoting, lists, ranges, names, and the errors' sentences. */
#include <string.h>

#include "base/setting.h"
#include "support/cmocka.h"
#include "support/context.h"

typedef struct sample {
    int layers;
    int64_t steps;
    double rate;
    bool warm;
    int kind;
    tg_list_int modes;
    tg_list_double rank;
    char root[16];
    tg_list_int grid;
    tg_list_grid grids;
    tg_list_rows rows;
    tg_list_text files;
} sample;

static const tg_choice kinds[] = {{"low_rank", 3}, {"sparse", 5}, {NULL, 0}};

static const tg_setting table[] = {
    {"n_layers", TG_SETTING_INT, offsetof(sample, layers), NULL, 1, 100, "help"},
    {"total_steps", TG_SETTING_INT64, offsetof(sample, steps), NULL, 1, 0, "help"},
    {"learning_rate", TG_SETTING_DOUBLE, offsetof(sample, rate), NULL, 0, 1, "help"},
    {"warm_restart", TG_SETTING_BOOL, offsetof(sample, warm), NULL, 1, 0, "help"},
    {"proj_type", TG_SETTING_ENUM, offsetof(sample, kind), kinds, 1, 0, "help"},
    {"n_modes", TG_SETTING_LIST_INT, offsetof(sample, modes), NULL, 1, 4096, "help"},
    {"rank", TG_SETTING_LIST_DOUBLE, offsetof(sample, rank), NULL, 1, 0, "help"},
    {"root", TG_SETTING_TEXT, offsetof(sample, root), NULL, 0, 16, "help"},
    {"grid", TG_SETTING_GRID, offsetof(sample, grid), NULL, 0, 4096, "help"},
    {"grids", TG_SETTING_LIST_GRID, offsetof(sample, grids), NULL, 1, 4096, "help"},
    {"rows", TG_SETTING_LIST_ROWS, offsetof(sample, rows), NULL, 0, 16, "help"},
    {"files", TG_SETTING_LIST_TEXT, offsetof(sample, files), NULL, 0, 0, "help"},
};

static sample config;

static tg_status set(const char *key, const char *value) {
    return tg_setting_set(ctx, "opt", table, sizeof table / sizeof table[0], &config, key, value);
}

TEST(test_values) {
    assert_int_equal(set("n_layers", "4"), TG_OK);
    assert_int_equal(config.layers, 4);
    assert_int_equal(set("n_layers", " 5.0 "), TG_OK);
    assert_int_equal(config.layers, 5);
    assert_int_equal(set("total_steps", "5000000000"), TG_OK);
    assert_true(config.steps == 5000000000);
    assert_int_equal(set("learning_rate", "3e-4"), TG_OK);
    assert_true(config.rate == 3e-4);
    assert_int_equal(set("warm_restart", "True"), TG_OK);
    assert_true(config.warm);
    assert_int_equal(set("warm_restart", "off"), TG_OK);
    assert_false(config.warm);
    assert_int_equal(set("proj_type", "\"sparse\""), TG_OK);
    assert_int_equal(config.kind, 5);
    assert_int_equal(set("n_modes", "[8, 16]"), TG_OK);
    assert_true(config.modes.count == 2 && config.modes.value[1] == 16);
    assert_int_equal(set("n_modes", "(3,4,5)"), TG_OK);
    assert_true(config.modes.count == 3 && config.modes.value[2] == 5);
    assert_int_equal(set("rank", "0.25"), TG_OK);
    assert_true(config.rank.count == 1 && config.rank.value[0] == 0.25);
}

/* Both ends of a range belong to it. */
TEST(test_ranges) {
    static const char *const good[][2] = {{"n_layers", "1"},
                                          {"n_layers", "100"},
                                          {"learning_rate", "0"},
                                          {"learning_rate", "1"},
                                          {"n_modes", "[1, 4096]"}};
    static const char *const bad[][2] = {{"n_layers", "101"},
                                         {"learning_rate", "-1e-300"},
                                         {"learning_rate", "1.0000000000000002"},
                                         {"n_modes", "[1, 4097]"},
                                         {"n_modes", "[0, 1]"}};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(set(good[i][0], good[i][1]), TG_OK);
        assert_int_equal(set(bad[i][0], bad[i][1]), TG_E_CONFIG);
    }
}

/* Units of bytes: thousands, or with an i powers of 1024. */
TEST(test_bytes) {
    static const struct {
        const char *text;
        double bytes;
    } good[] = {
        {"12", 12.0},         {"3k", 3000.0},        {"3KB", 3000.0}, {"1.5MB", 1.5e6},
        {"2 MiB", 2097152.0}, {"1Gi", 1073741824.0}, {"24GB", 24e9},  {"0.5TiB", 549755813888.0},
        {"1e3B", 1000.0}};
    static const char *const bad[] = {"", "MB", "1.5X", "1MBB", "-1", "1 M B", "1Gib b"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        double bytes = 0.0;
        assert_true(tg_bytes_parse(good[i].text, &bytes));
        assert_true(bytes == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double bytes = 0.0;
        assert_false(tg_bytes_parse(bad[i], &bytes));
    }
}

/* The same lists, as people write them. */
TEST(test_lists) {
    static const char *const two[] = {"16,20",    "16, 20", "[16,20]", "[ 16, 20 ]",
                                      "(16, 20)", "16x20",  "[16x20]", "\"16x20\""};
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
        config.modes = config.grid = (tg_list_int){0};
        assert_int_equal(set("n_modes", two[i]), TG_OK);
        assert_int_equal(set("grid", two[i]), TG_OK);
        assert_true(config.modes.count == 2 && config.modes.value[0] == 16);
        assert_true(config.modes.value[1] == 20);
        assert_memory_equal(&config.modes, &config.grid, sizeof config.grid);
    }
    assert_int_equal(set("rank", "0.5, 4"), TG_OK);
    assert_true(config.rank.count == 2 && config.rank.value[1] == 4.0);
    static const char *const none[] = {"[]", "[ ]", "null"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        config.grids.count = config.files.count = config.grid.count = 5;
        assert_int_equal(set("grids", none[i]), TG_OK);
        assert_int_equal(set("files", none[i]), TG_OK);
        assert_int_equal(set("grid", none[i]), TG_OK);
        assert_int_equal(config.grids.count + config.files.count + config.grid.count, 0);
    }
    static const char *const grids[] = {"16, 48x80", "[16, 48x80]", "[16, [48, 80]]"};
    for (size_t i = 0; i < sizeof grids / sizeof grids[0]; i++) {
        assert_int_equal(set("grids", grids[i]), TG_OK);
        assert_true(config.grids.count == 2 && config.grids.grid[0].count == 1);
        assert_true(config.grids.grid[1].count == 2 && config.grids.grid[1].value[1] == 80);
    }
    assert_int_equal(set("rows", "[[1, 0.5], [2, 16]]"), TG_OK);
    assert_true(config.rows.count == 4 && config.rows.width == 2 && config.rows.value[3] == 16.0);
    assert_int_equal(set("rows", "[]"), TG_OK);
    assert_int_equal(config.rows.count, 0);
    assert_int_equal(set("grids", "48x80"), TG_OK);
    assert_true(config.grids.count == 1 && config.grids.grid[0].count == 2);
    assert_int_equal(set("files", "a.h5, \"b, c.h5\""), TG_OK);
    assert_int_equal(config.files.count, 2);
    assert_string_equal(config.files.text[1], "b, c.h5");
}

/* What is written reads back to the same value, whatever it is. */
TEST(test_text_round_trip) {
    static const char *const rows[][2] = {
        {"n_layers", "7"},
        {"total_steps", "123456789012"},
        {"learning_rate", "0.1"},
        {"learning_rate", "0.0003"},
        {"warm_restart", "true"},
        {"proj_type", "sparse"},
        {"n_modes", "[8, 16]"},
        {"n_modes", "12"},
        {"rank", "0.333333333333333"},
        {"rank", "[43, 0.5]"},
        {"root", "a b/c"},
        {"root", "null"},
        {"grid", "0"},
        {"grid", "48x80"},
        {"grids", "[]"},
        {"grids", "16"},
        {"rows", "null"},
        {"rows", "[]"},
        {"rows", "[1, 0.25]"},
        {"rows", "[[1, 0.5], [2, 16]]"},
        {"grids", "[16, 48x80]"},
        {"files", "[]"},
        {"files", "[a.h5]"},
        {"files", "[a.h5, \"b, (c).h5\", 'the \"best\".h5']"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[128];
        const tg_setting *row = tg_setting_find(table, sizeof table / sizeof table[0], rows[i][0]);
        assert_non_null(row);
        assert_int_equal(set(rows[i][0], rows[i][1]), TG_OK);
        assert_string_equal(tg_setting_get(row, &config, text, sizeof text), rows[i][1]);
        const sample before = config;
        assert_int_equal(set(rows[i][0], text), TG_OK);
        assert_memory_equal(&before, &config, sizeof before);
    }
    char small[5];
    assert_int_equal(set("n_modes", "[100, 200]"), TG_OK);
    assert_string_equal(tg_setting_get(&table[5], &config, small, sizeof small), "[100");
    assert_null(tg_setting_find(table, 3, "rank"));
    config.kind = 77; /* a value that no name stands for */
    assert_string_equal(tg_setting_get(&table[4], &config, small, sizeof small), "?");
}

static void expect_error(const char *key, const char *value, const char *part) {
    const sample before = config;
    assert_int_equal(set(key, value), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), part));
    assert_memory_equal(&before, &config, sizeof before); /* a bad value changes nothing */
}

TEST(test_errors) {
    expect_error("n_layers", "0", "opt.n_layers: expected an integer from 1 to 100, found '0'");
    expect_error("n_layers", "2.5", "expected an integer");
    expect_error("n_layers", "", "expected an integer");
    expect_error("n_layers", "4 4", "expected an integer");
    expect_error("n_layers", "99999999999", "expected an integer");
    expect_error("learning_rate", "nan", "expected a finite number from 0 to 1");
    expect_error("learning_rate", "1e999", "expected a finite number");
    expect_error("warm_restart", "maybe", "expected true or false");
    expect_error("proj_type", "tensor", "expected one of low_rank, sparse, found 'tensor'");
    expect_error("n_modes", "[1, 2", "expected an integer or a list");
    expect_error("n_modes", "1,,2", "expected an integer or a list");
    expect_error("n_modes", "8x", "expected an integer or a list");
    expect_error("n_modes", "8x8,4", "expected an integer or a list");
    expect_error("n_modes", "", "expected an integer or a list");
    expect_error("n_modes", "null", "expected an integer or a list");
    expect_error("n_modes", "[]", "expected an integer or a list");
    expect_error("n_modes", "[1,2,3,4,5,6,7,8,9]", "expected an integer or a list");
    expect_error("n_modes", "[1.5]", "expected an integer or a list");
    expect_error("grid", "48y80", "opt.grid: expected a grid (16, 48x80 or [48, 80])");
    expect_error("grids", "[16, 0x3]",
                 "opt.grids: expected a grid or a list of grids (16 or [16, 48x80])");
    expect_error("grids", "[16, []]", "expected a grid or a list");
    expect_error("rows", "[[1, 2], [3]]", "expected a list of lists of numbers");
    expect_error("rows", "[[1, 17]]", "expected a list of lists of numbers");
    expect_error("grids", "1,2,3,4,5,6,7,8,9", "expected a grid or a list");
    expect_error("files", "[a,,b]", "opt.files: expected a text or a list of texts, found");
    expect_error("learning_rat", "1", "unknown key; did you mean opt.learning_rate?");
    expect_error("warm_restrat", "1", "did you mean opt.warm_restart?");
    expect_error("zzz", "1", "opt.zzz: unknown key");
    expect_error("root", "0123456789abcdef", "a text of at most 15 characters");
    char long_text[5000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    expect_error("n_layers", long_text, "expected an integer");
    expect_error(long_text, "1", "unknown key");
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
