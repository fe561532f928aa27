/* Names of grids as text and back, and the modes that fit on a grid. */
#include <string.h>

#include "nn/config.h"
#include "support/cmocka.h"
#include "tgrad/data.h"
#include "tgrad/fno.h"

TEST(test_text) {
    static const struct {
        int n_dim;
        int64_t points[TG_DATA_MAX_DIMS];
        const char *text;
    } cases[] = {
        {1, {64}, "64"},
        {2, {16, 16}, "16"},
        {2, {48, 80}, "48x80"},
        {3, {7, 7, 7}, "7"},
        {3, {12, 16, 20}, "12x16x20"},
        {3, {16, 16, 20}, "16x16x20"},
        {3, {INT64_MAX, INT64_MAX, 1}, "9223372036854775807x9223372036854775807x1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[TG_GRID_TEXT];
        assert_string_equal(tg_grid_text(cases[i].n_dim, cases[i].points, text), cases[i].text);
    }
}

TEST(test_parse) {
    static const struct {
        const char *text;
        int sizes;
        int64_t points[TG_DATA_MAX_DIMS];
    } cases[] = {
        {"16", 1, {16}},
        {"48x80", 2, {48, 80}},
        {"[48, 80]", 2, {48, 80}},
        {"48,80", 2, {48, 80}},
        {"(12,16,20)", 3, {12, 16, 20}},
        {"1x1x1", 3, {1, 1, 1}},
        {"", 0, {0}},
        {"0", 0, {0}},
        {"48x0", 0, {0}},
        {"48x", 0, {0}},
        {"x48", 0, {0}},
        {"48 80", 0, {0}},
        {"4x4x4x4", 0, {0}},
        {"16.5", 0, {0}},
        {"-3", 0, {0}},
        {"null", 0, {0}},
        {"[]", 0, {0}},
        {"9999999", 0, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t points[TG_DATA_MAX_DIMS] = {0};
        assert_int_equal(tg_grid_parse(cases[i].text, points), cases[i].sizes);
        assert_memory_equal(points, cases[i].points, sizeof points);
    }
}

/* The halved last dimension of real data has the frequencies 0 .. N/2. */
TEST(test_fitting_modes) {
    static const struct {
        bool is_complex;
        double padding;
        int64_t modes[2], grid[2], fitting[2];
    } cases[] = {
        {false, 0.0, {16, 16}, {16, 16}, {16, 16}}, {false, 0.0, {17, 17}, {16, 16}, {16, 17}},
        {false, 0.0, {16, 18}, {16, 16}, {16, 16}}, {false, 0.0, {15, 15}, {15, 15}, {15, 15}},
        {false, 0.0, {64, 64}, {48, 80}, {48, 64}}, {true, 0.0, {17, 17}, {16, 16}, {16, 16}},
        {false, 0.5, {24, 30}, {16, 16}, {24, 24}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tg_fno_config config = tg_fno_config_default();
        int64_t fitting[TG_FNO_MAX_DIMS] = {0};
        config.n_dim = 2;
        config.complex_data = cases[i].is_complex;
        config.domain_padding = cases[i].padding;
        memcpy(config.n_modes, cases[i].modes, sizeof cases[i].modes);
        tg_fno_fitting_modes(&config, cases[i].grid, fitting);
        assert_memory_equal(fitting, cases[i].fitting, sizeof cases[i].fitting);
    }
}
