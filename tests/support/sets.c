/* Datasets for tests. */
#include "support/sets.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/files.h"

void set_ok_at(tg_context *ctx, const char *file, int line, tg_status status) {
    if (status != TG_OK) {
        print_error("%s:%d: %s\n", file, line, tg_context_error(ctx));
        fail();
    }
}

void set_expect_sentence(tg_context *ctx, const char *part) {
    if (!strstr(tg_context_error(ctx), part)) {
        fail_msg("expected '%s' in '%s'", part, tg_context_error(ctx));
    }
}

double set_value(int side, int64_t i) {
    return (double)(i % 9973) / 64.0 + side * 1000.0;
}

double set_imag(int side, int64_t i) {
    return -(double)(i % 977) / 32.0 - side;
}

int16_t set_integer(int64_t i) {
    return (int16_t)(i % 9973);
}

static tg_tensor make(tg_context *ctx, tg_dtype dtype, int side, const tg_shape *shape) {
    tg_tensor tensor = {0};
    set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, dtype, shape, &tensor));
    float *f = tensor.data;
    for (int64_t i = 0; i < tg_tensor_numel(&tensor); i++) {
        switch (dtype) {
        case TG_F32:
            f[i] = (float)set_value(side, i);
            break;
        case TG_F64:
            ((double *)tensor.data)[i] = set_value(side, i);
            break;
        case TG_C64:
            f[2 * i] = (float)set_value(side, i);
            f[2 * i + 1] = (float)set_imag(side, i);
            break;
        default:
            ((int16_t *)tensor.data)[i] = set_integer(i);
        }
    }
    return tensor;
}

const char *set_write(tg_context *ctx, const char *name, tg_dtype dtype, const tg_shape *x,
                      const tg_shape *y) {
    tg_archive *archive = NULL;
    tg_tensor tx = make(ctx, dtype, 0, x), ty = make(ctx, dtype, 1, y);
    const char *path = test_path(name);
    const size_t length = strlen(path);
    if (strcmp(path + length - 4, ".npy") == 0) {
        char partner[512];
        snprintf(partner, sizeof partner, "%.*sy.npy", (int)length - 5, path);
        set_ok(ctx, tg_npy_write(ctx, path, &tx));
        set_ok(ctx, tg_npy_write(ctx, partner, &ty));
        tg_tensor_destroy(&tx);
        tg_tensor_destroy(&ty);
        return path;
    }
    set_ok(ctx, tg_archive_create(ctx, &archive));
    set_ok(ctx, tg_archive_take(archive, "x", &tx));
    set_ok(ctx, tg_archive_take(archive, "y", &ty));
    set_ok(ctx, tg_archive_write(ctx, path, archive));
    tg_archive_destroy(&archive);
    return path;
}

tg_dataset *set_open(tg_context *ctx, const char *path, const tg_dataset_config *config) {
    tg_dataset *set = NULL;
    set_ok(ctx, tg_dataset_open(ctx, path, NULL, config, &set));
    return set;
}

/* Compares the rows of a slab with those of the whole (images, rows of `row` floats). */
static void compare_slab(const float *slab, const float *whole, int64_t images, size_t row,
                         const tg_dataset_facts *facts) {
    const int64_t rows = facts->grid[0];
    for (int64_t i = 0; i < images; i++) {
        const float *wanted = whole + (size_t)(i * rows + facts->first_row) * row;
        const float *found = slab + (size_t)(i * facts->rows) * row;
        assert_memory_equal(found, wanted, (size_t)facts->rows * row * sizeof *found);
    }
}

/* One of `config->parts`, sample by sample. */
static void check_slab(tg_context *ctx, tg_dataset *all, const char *path,
                       const tg_dataset_config *config) {
    tg_dataset *set = set_open(ctx, path, config);
    const tg_dataset_facts facts = tg_dataset_get_facts(set), whole = tg_dataset_get_facts(all);
    const size_t x_row = whole.x_bytes / sizeof(float) / (size_t)(whole.in_channels * whole.rows);
    assert_int_equal(facts.first_row, facts.grid[0] * config->part / config->parts);
    assert_int_equal(facts.rows,
                     facts.grid[0] * (config->part + 1) / config->parts - facts.first_row);
    assert_int_equal(facts.x_bytes * (size_t)whole.rows, whole.x_bytes * (size_t)facts.rows);
    assert_int_equal(facts.samples, whole.samples);
    assert_memory_equal(facts.grid, whole.grid, sizeof facts.grid);
    float *x[2], *y[2];
    for (int i = 0; i < 2; i++) {
        x[i] = set_floats(whole.x_bytes / sizeof(float));
        y[i] = set_floats(whole.y_bytes / sizeof(float));
    }
    for (int64_t k = whole.samples - 1; k >= 0; k--) {
        set_ok(ctx, tg_dataset_read(all, &k, 1, x[0], y[0]));
        set_ok(ctx, tg_dataset_read(set, &k, 1, x[1], y[1]));
        compare_slab(x[1], x[0], whole.in_channels, x_row, &facts);
        compare_slab(y[1], y[0], whole.out_channels, x_row, &facts);
    }
    for (int i = 0; i < 2; i++) {
        free(x[i]);
        free(y[i]);
    }
    tg_dataset_close(&set);
}

void set_check_slabs(tg_context *ctx, const char *path, const tg_dataset_config *config,
                     size_t cache) {
    tg_dataset_config how = *config;
    tg_dataset *all = set_open(ctx, path, config);
    const int64_t rows = tg_dataset_get_facts(all).grid[0];
    for (int is_cached = 0; is_cached < 2; is_cached++) {
        how.cache_bytes = is_cached ? (size_t)1 << 30 : cache;
        for (how.parts = 2; how.parts <= rows; how.parts += how.parts < 3 ? 1 : (int)rows - 3) {
            for (how.part = 0; how.part < how.parts; how.part++) {
                check_slab(ctx, all, path, &how);
            }
            if (how.parts == rows) {
                break;
            }
        }
    }
    how.parts = (int)rows + 1;
    how.part = 0;
    tg_dataset *none = NULL;
    assert_int_equal(tg_dataset_open(ctx, path, NULL, &how, &none), TG_E_SHAPE);
    set_expect_sentence(ctx, "takes a grid of as many rows");
    tg_dataset_close(&all);
}

float *set_floats(size_t count) {
    float *values = malloc((count ? count : 1) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        values[i] = NAN;
    }
    return values;
}
