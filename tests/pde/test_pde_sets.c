/* Data sets against formulas: flows whose forcing is a single wave are laminar, so that with almost
 * nothing to start from the vorticity is f (1 - e^(-nu k^2 t)) / (nu k^2); on a sphere of radius a
 * the pressure is 1 - 9/4 (1 - (x / a)^2); training and test samples are others. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/files.h"
#include "support/network.h"

static const double pi = 3.14159265358979323846;

static tg_context *ctx;

static void generate(const char *equation, int64_t resolution, int count,
                     const tg_pde_value *values) {
    char folder[512];
    tg_generator_config config = tg_generator_config_default();
    tg_generator *generator = NULL;
    bool complete = false;
    snprintf(folder, sizeof folder, "%s", test_path(""));
    folder[strlen(folder) - 1] = '\0';
    config.equation = equation;
    config.folder = folder;
    config.n_train = 3;
    config.n_test = 2;
    config.resolution = resolution;
    config.seed = 5;
    config.values = values;
    config.value_count = count;
    net_ok(ctx, tg_generator_create(ctx, &config, &generator));
    net_ok(ctx, tg_generator_run(generator, NULL, NULL, &complete));
    assert_true(complete);
    tg_generator_destroy(&generator);
}

static tg_archive *read_part(const char *equation, const char *part, int64_t resolution) {
    char name[64];
    tg_archive *archive = NULL;
    snprintf(name, sizeof name, "%s_%s_%lld.h5", equation, part, (long long)resolution);
    net_ok(ctx, tg_archive_read(ctx, test_path(name), &archive));
    return archive;
}

/* ---- forcing ---- */

/* f = 0.1 (sin 2 pi (x + y) + cos 2 pi (x + y)), k^2 = 8 pi^2. */
TEST(test_ns_forcing) {
    enum { R = 12 };
    const double nu = 0.25, time = 0.125, k2 = 8.0 * pi * pi;
    static const tg_pde_value values[] = {
        {"grid", "16"}, {"sigma", "1e-12"}, {"reynolds", "4"}, {"time", "0.125"}};
    generate("ns", R, 4, values);
    tg_archive *set = read_part("ns", "train", R);
    const float *y = tg_archive_find(set, "y")->data;
    const double size = 0.1 * (1.0 - exp(-nu * k2 * time)) / (nu * k2);
    for (int64_t i = 0; i < 3 * R * R; i++) {
        const double phase = 2.0 * pi * (double)(i / R % R + i % R) / R;
        const double expected = size * (sin(phase) + cos(phase));
        if (!(fabs((double)y[i] - expected) <= 1e-4 * size)) {
            fail_msg("ns: point %d is %g, expected %g", (int)i, (double)y[i], expected);
        }
    }
    tg_archive_destroy(&set);
}

/* f = -4 cos 4 y on a square of side 2 pi, k^2 = 16; frames of 0.01 from 0.2 on, each second one
 * is an x, and y comes 6 frames after it. */
TEST(test_kolmogorov_forcing) {
    enum { R = 15 };
    const double nu = 0.5, k2 = 16.0;
    static const tg_pde_value values[] = {{"grid", "16"},    {"sigma", "1e-12"},   {"start", "0.2"},
                                          {"frame", "0.01"}, {"viscosity", "0.5"}, {"lag", "6"},
                                          {"stride", "2"}};
    generate("kolmogorov", R, 7, values);
    tg_archive *set = read_part("kolmogorov", "train", R);
    for (int side = 0; side < 2; side++) {
        const float *w = tg_archive_find(set, side ? "y" : "x")->data;
        for (int64_t i = 0; i < 3 * R * R; i++) {
            const double time = 0.2 + 0.02 * (double)(i / (R * R)) + (side ? 0.06 : 0.0);
            const double size = 4.0 * (1.0 - exp(-nu * k2 * time)) / (nu * k2);
            const double expected = -size * cos(4.0 * 2.0 * pi * (double)(i % R) / R);
            if (!(fabs((double)w[i] - expected) <= 1e-4 * size)) {
                fail_msg("kolmogorov: %s, point %d is %g, expected %g", side ? "y" : "x", (int)i,
                         (double)w[i], expected);
            }
        }
    }
    tg_archive_destroy(&set);
}

/* ---- bodies ---- */

TEST(test_sphere) {
    enum { N = 29 };
    static const tg_pde_value values[] = {{"axes", "[0.3, 0.3]"}, {"bumps", "0"}, {"order", "4"}};
    generate("potential", N, 3, values);
    tg_archive *set = read_part("potential", "train", N);
    const float *points = tg_archive_find(set, "points")->data;
    const float *pressure = tg_archive_find(set, "values")->data;
    for (int64_t i = 0; i < 3 * N; i++) {
        double from[3], radius2 = 0.0;
        for (int d = 0; d < 3; d++) {
            from[d] = ((double)points[3 * i + d] - 0.5) / 0.3;
            radius2 += from[d] * from[d];
        }
        const double expected = 1.0 - 2.25 * (1.0 - from[0] * from[0]);
        if (!(fabs(radius2 - 1.0) <= 1e-5 && fabs((double)pressure[i] - expected) <= 1e-5)) {
            fail_msg("potential: point %d: radius^2 %g, pressure %g, expected %g", (int)i, radius2,
                     (double)pressure[i], expected);
        }
    }
    tg_archive_destroy(&set);
    /* bodies that would reach out of the box */
    tg_generator *generator = NULL;
    tg_generator_config config = tg_generator_config_default();
    config.equation = "potential";
    config.folder = "none";
    config.values = &(tg_pde_value){"axes", "[0.1, 0.45]"};
    config.value_count = 1;
    assert_int_equal(tg_generator_create(ctx, &config, &generator), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "potential.axes: bodies reach 0.54"));
}

/* ---- training and test ---- */

TEST(test_splits_have_other_samples) {
    static const struct {
        const char *name;
        int64_t resolution;
        int count;
        tg_pde_value values[2];
    } rows[] = {
        {"burgers", 16, 2, {{"grid", "32"}, {"time", "0.1"}}},
        {"darcy", 9, 1, {{"grid", "9"}}},
        {"em", 16, 2, {{"grid", "32"}, {"step", "0.5"}}},
        {"potential", 16, 1, {{"order", "2"}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        generate(rows[i].name, rows[i].resolution, rows[i].count, rows[i].values);
        tg_archive *train = read_part(rows[i].name, "train", rows[i].resolution);
        tg_archive *test = read_part(rows[i].name, "test", rows[i].resolution);
        const char *name = tg_archive_find(train, "x") ? "x" : "points";
        const tg_tensor *x = tg_archive_find(train, name), *z = tg_archive_find(test, name);
        for (int64_t a = 0; a < 3; a++) {
            for (int64_t b = 0; b < 2; b++) {
                tg_tensor one, other;
                net_ok(ctx, tg_tensor_slice(ctx, x, a, 1, &one));
                net_ok(ctx, tg_tensor_slice(ctx, z, b, 1, &other));
                assert_true(memcmp(one.data, other.data, tg_tensor_bytes(&one)) != 0);
            }
        }
        tg_archive_destroy(&train);
        tg_archive_destroy(&test);
    }
}

static int setup(void **state) {
    (void)state;
    ctx = net_context("cpu", 1);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tg_context_destroy(&ctx);
    test_folder_remove();
    return 0;
}

int main(void) {
    return t_run_tests(setup, teardown);
}
