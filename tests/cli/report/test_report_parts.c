/* The parts of `tgrad report` without a process: escaping and the small printf, base64, numbers,
 * ticks, and what the colour maps promise. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/chart.h"
#include "report/html.h"
#include "support/cmocka.h"

/* ---- HTML ---- */

TEST(test_escapes) {
    cli_html page = {0};
    cli_html_add(&page, "<b class=\"%s\">%s</b>", "\" onload='x'", "<script>&amp;");
    assert_string_equal(page.data, "<b class=\"&quot; onload=&#39;x&#39;\">&lt;script&gt;&amp;amp;"
                                   "</b>");
    cli_bytes_free(&page);
    /* Not UTF-8, control characters of both kinds; tab and line end stay. */
    cli_html_add(&page, "%s", "a\xff\x01\xC2\x85\t\nb\x7F\xE2\x82");
    assert_string_equal(page.data, "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\t\nb\xEF\xBF\xBD"
                                   "\xEF\xBF\xBD\xEF\xBF\xBD");
    cli_bytes_free(&page);
    cli_html_add(&page, "%s", "a\xE2\x80\xAE\xE2\x80\xA6"); /* right to left */
    assert_string_equal(page.data, "a\xEF\xBF\xBD\xE2\x80\xA6");
    cli_bytes_free(&page);
    cli_html_short(&page, "a<\xC3\xA9z", 4);
    cli_html_short(&page, "a<\xC3\xA9zz", 4);
    assert_string_equal(page.data, "a&lt;\xC3\xA9z"
                                   "a&lt;\xC3\xA9\xE2\x80\xA6");
    cli_bytes_free(&page);
}

TEST(test_formats) {
    cli_html page = {0};
    cli_html_add(&page, "%d %lld %zu %.2f %g %.3g %.1e %%", -7, -(1LL << 40), (size_t)9, 1.005, 0.5,
                 1234.5, 1e-9);
    assert_string_equal(page.data, "-7 -1099511627776 9 1.00 0.5 1.23e+03 1.0e-09 %");
    cli_bytes_free(&page);
    cli_html_add(&page, "%f", 1e300); /* the longest that a double can be */
    assert_int_equal(page.size, 308);
    cli_bytes_free(&page);
}

TEST(test_base64) {
    static const char *const expected[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="};
    static const unsigned char bytes[] = "foob";
    for (size_t size = 0; size < 5; size++) {
        cli_html page = {0};
        cli_html_png(&page, bytes, size);
        assert_string_equal(page.data + strlen("data:image/png;base64,"), expected[size]);
        cli_bytes_free(&page);
    }
}

TEST(test_numbers) {
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0.0, "0.000"},
                {1.0, "1.000"},
                {0.031249, "0.03125"},
                {0.99996, "1.000"},
                {9.9999, "10.00"},
                {-0.5, "\xE2\x88\x92"
                       "0.5000"},
                {12345.4, "12345"},
                {123456.0, "1.235e+05"},
                {1e-3, "0.001000"},
                {9.9994e-4, "9.999e-04"},
                {-1e-9, "\xE2\x88\x92"
                        "1.000e-09"},
                {INFINITY, "\xE2\x80\x93"},
                {(double)NAN, "\xE2\x80\x93"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[CLI_NUMBER_TEXT];
        assert_string_equal(cli_number_text(rows[i].value, text), rows[i].text);
    }
}

/* ---- ticks ---- */

/* Between 2 and CLI_MAX_TICKS ascending ticks inside of the range. */
static void check_ticks(const double *tick, int count, double low, double high) {
    assert_in_range(count, 2, CLI_MAX_TICKS);
    for (int i = 0; i < count; i++) {
        assert_true(tick[i] >= low - 1e-6 * (high - low) && tick[i] <= high + 1e-6 * (high - low));
        assert_true(i == 0 || tick[i] > tick[i - 1]);
    }
}

TEST(test_ticks) {
    double tick[CLI_MAX_TICKS];
    assert_int_equal(cli_ticks_linear(0.0, 50.0, 6, tick), 6);
    assert_true(tick[1] == 10.0 && tick[5] == 50.0);
    assert_int_equal(cli_ticks_log(0.01, 0.1, tick), 4); /* 0.01 0.02 0.05 0.1 */
    assert_true(fabs(tick[1] - 0.02) < 1e-12 && fabs(tick[2] - 0.05) < 1e-12);
    assert_int_equal(cli_ticks_linear(1.0, 1.0, 5, tick), 0);
    assert_int_equal(cli_ticks_linear((double)NAN, 1.0, 5, tick), 0);
    assert_int_equal(cli_ticks_linear(1e9, nextafter(1e9, 2e9), 5, tick), 0);
    for (double low = 1e-9; low < 1e6; low *= 7.3) {
        for (double factor = 1.1; factor < 1e12; factor *= 1.7) {
            check_ticks(tick, cli_ticks_log(low, low * factor, tick), low, low * factor);
            check_ticks(tick, cli_ticks_linear(-low, low * factor, 5, tick), -low, low * factor);
        }
    }
}

/* ---- curves ---- */

/* Points of the path: further right for a larger x, higher up, which is a smaller number, for a
 * larger y; on a logarithmic axis equal factors are equal ways. */
TEST(test_curves) {
    const double x[] = {1.0, 2.0, 4.0}, y[] = {1.0, 100.0, 10.0};
    const cli_series series = {.name = "run", .number = 1, .x = x, .y = y, .count = 3};
    for (int is_log = 0; is_log < 2; is_log++) {
        const cli_chart chart = {.title = "t",
                                 .metric = "m",
                                 .x_label = "epoch",
                                 .is_log = is_log,
                                 .series = &series,
                                 .count = 1};
        cli_html page = {0};
        double px[3], py[3];
        cli_chart_draw(&page, &chart);
        const char *path = strstr(page.data, "class=\"curve");
        path = path ? strstr(path, " d=\"M") : NULL;
        assert_non_null(path);
        assert_int_equal(sscanf(path, " d=\"M%lf %lfL%lf %lfL%lf %lf\"", &px[0], &py[0], &px[1],
                                &py[1], &px[2], &py[2]),
                         6);
        assert_true(fabs((px[2] - px[1]) - 2.0 * (px[1] - px[0])) <= 0.2 && px[1] > px[0]);
        assert_true(py[1] < py[2] && py[2] < py[0]);
        const double share = is_log ? 0.5 : 90.0 / 99.0; /* of the way from the top to the bottom */
        assert_true(fabs((py[2] - py[1]) / (py[0] - py[1]) - share) <= 0.01);
        cli_bytes_free(&page);
    }
}

/* ---- colours ---- */

/* Lightness of OKLab, from the bytes back. */
static double lightness(uint32_t colour) {
    double linear[3];
    for (int i = 0; i < 3; i++) {
        const double value = (double)(colour >> (16 - 8 * i) & 255) / 255.0;
        linear[i] = value <= 0.04045 ? value / 12.92 : pow((value + 0.055) / 1.055, 2.4);
    }
    const double r = linear[0], g = linear[1], b = linear[2];
    return 0.2104542553 * cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) +
           0.7936177850 * cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) -
           0.0040720468 * cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
}

TEST(test_colours) {
    uint32_t field[CLI_MAP_COLOURS], error[CLI_MAP_COLOURS];
    cli_map_table(CLI_MAP_FIELD, field);
    cli_map_table(CLI_MAP_ERROR, error);
    const int last = CLI_MAP_LEVELS - 1;
    for (int i = 0; i <= last; i++) {
        /* Rounding to bytes moves the lightness a little; leaving the gamut would move it more. */
        const double straight = 0.24 + 0.70 * i / last;
        assert_true(fabs(lightness(field[i]) - straight) <= 0.006);
        assert_true(fabs(lightness(error[i]) - lightness(error[last - i])) <= 0.006);
        assert_true(i > last / 2 || i == 0 ||
                    lightness(error[i]) > lightness(error[i - 1]) - 0.003);
    }
    const uint32_t middle = error[last / 2]; /* no hue where there is no error */
    assert_true((middle >> 16) == (middle & 255) && (middle & 255) == (middle >> 8 & 255));
    assert_true((error[0] & 255) > (error[0] >> 16));       /* too low is blue */
    assert_true((error[last] & 255) < (error[last] >> 16)); /* too high is red */
    assert_int_equal(cli_map_level((double)NAN), CLI_MAP_NAN);
    assert_int_equal(cli_map_level(-3.0), 0);
    assert_int_equal(cli_map_level((double)INFINITY), last);
    assert_int_equal(cli_map_level(0.5), last / 2);
}
