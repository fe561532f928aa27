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

float *set_floats(size_t count) {
    float *values = malloc((count ? count : 1) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        values[i] = NAN;
    }
    return values;
}
