/* Golden graph kernels: the block of metadata `config` with the weights
 * `param.integral_transform.channel_mlp.fcs.*`, points `y`, queries `x` and values `f`, if there
 * are any. Compared are the neighbours of every query as a set, `out`, and the gradients of
 * sum(out * cotangent) by |a - b| / |b| <= 1e-4. Files have channels last. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "verify.h"

#define MODULE "integral_transform.channel_mlp.fcs"

static tg_status set(tg_context *ctx, void *config, const char *key, const char *text) {
    return tg_gno_config_set(ctx, config, key, text);
}

/* ---- channels last ---- */

/* to (batch, columns, rows) = from (batch, rows, columns). */
static void transpose(int64_t batch, int64_t rows, int64_t columns, const float *from, float *to) {
    for (int64_t i = 0; i < batch * rows * columns; i++) {
        const int64_t b = i / (rows * columns), r = i / columns % rows, c = i % columns;
        to[(b * columns + c) * rows + r] = from[i];
    }
}

/* The golden tensor is (.., points.., channels). */
tg_tensor verify_channels_first(verify_run *run, const char *name) {
    const tg_tensor *golden = verify_tensor(run, name);
    const tg_shape *from = &golden->shape;
    tg_tensor out = {0};
    if (golden->dtype != TG_F32 || from->ndim < 2 || tg_tensor_numel(golden) < 1) {
        cli_die("%s: %s is not f32 with channels last", run->path, name);
    }
    const int64_t samples = from->ndim > 2 ? from->dim[0] : 1, channels = from->dim[from->ndim - 1];
    const int64_t points = tg_tensor_numel(golden) / (samples * channels);
    const tg_shape shape = {3, {samples, channels, points}};
    cli_check(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &shape, &out));
    transpose(samples, points, channels, golden->data, out.data);
    return out;
}

void verify_channels_last(verify_run *run, const char *name, const tg_tensor *tensor) {
    const tg_tensor *golden = verify_tensor(run, name);
    const int64_t *size = tensor->shape.dim;
    CLI_OWNED(tg_tensor_destroy) tg_tensor copy = {0};
    if (golden->dtype != TG_F32 || tg_tensor_numel(golden) != tg_tensor_numel(tensor)) {
        verify_add(run, nan(""), VERIFY_LIMIT, "%s", name);
        return;
    }
    cli_check(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &golden->shape, &copy));
    transpose(size[0], size[1], size[2], tensor->data, copy.data);
    verify_compare(run, name, &copy);
}

/* ---- neighbours ---- */

static int by_value(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Indices that differ, with those of each query in order. */
static double differences(const tg_tensor *splits, tg_tensor *index, const tg_tensor *golden) {
    const int64_t *first = splits->data;
    int64_t *found = index->data, count = 0;
    for (int64_t i = 0; i + 1 < tg_tensor_numel(splits); i++) {
        qsort(found + first[i], (size_t)(first[i + 1] - first[i]), sizeof *found, by_value);
    }
    for (int64_t k = 0; k < tg_tensor_numel(index); k++) {
        count += found[k] != ((const int64_t *)golden->data)[k];
    }
    return (double)count;
}

static bool same_integers(const tg_tensor *a, const tg_tensor *b) {
    return b->dtype == TG_I64 && tg_tensor_numel(a) == tg_tensor_numel(b) &&
           memcmp(a->data, b->data, (size_t)tg_tensor_numel(a) * sizeof(int64_t)) == 0;
}

static void check_neighbours(verify_run *run, double radius, const tg_tensor *y,
                             const tg_tensor *x) {
    const tg_tensor *golden = tg_archive_find(run->golden, "neighbors_index");
    const tg_tensor *rows = tg_archive_find(run->golden, "neighbors_row_splits");
    CLI_OWNED(tg_tensor_destroy) tg_tensor splits = {0};
    CLI_OWNED(tg_tensor_destroy) tg_tensor index = {0};
    if (!golden || !rows) {
        return;
    }
    cli_check(tg_neighbours_find(run->ctx, radius, y, x, &splits, &index));
    const bool same = same_integers(&splits, rows) && golden->dtype == TG_I64 &&
                      tg_tensor_numel(golden) == tg_tensor_numel(&index);
    verify_add(run, same ? differences(&splits, &index, golden) : nan(""), 0.0, "neighbors");
    cli_check(tg_archive_take(run->computed, "neighbors_index", &index));
    cli_check(tg_archive_take(run->computed, "neighbors_row_splits", &splits));
}

/* ---- the kernel ---- */

/* Walks over the kernel's parameters in `flat` and those of the file: copies from the file, or
 * compares and gives away copies. */
static void each_weight(verify_run *run, const tg_gno_config *config, tg_tensor *flat,
                        bool compares) {
    float *next = flat->data;
    for (int i = 0; i < 2 * (config->n_channel_mlp_layers + 1); i++) {
        char name[96];
        snprintf(name, sizeof name, "%s." MODULE ".%d.%s", compares ? "grad" : "param", i / 2,
                 i % 2 ? "bias" : "weight");
        const tg_tensor *golden = verify_tensor(run, name);
        const int64_t count = tg_tensor_numel(golden);
        if (golden->dtype != TG_F32 ||
            count > tg_tensor_numel(flat) - (next - (float *)flat->data)) {
            cli_die("%s: %s is not f32, or too large for the settings", run->path, name);
        }
        if (compares) {
            CLI_OWNED(tg_tensor_destroy) tg_tensor copy = {0};
            cli_check(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &golden->shape, &copy));
            memcpy(copy.data, next, (size_t)count * sizeof *next);
            verify_compare(run, name, &copy);
        } else {
            memcpy(next, golden->data, (size_t)count * sizeof *next);
        }
        next += count;
    }
}

/* Tensors of the block, on the host and where the backend computes. */
enum { WEIGHTS, F, DOUT, OUT, DWEIGHTS, DF, TENSORS, OUTPUTS = OUT };

typedef struct block {
    tg_gno_config config;
    tg_tensor here[TENSORS], there[TENSORS]; /* f and df are empty without values */
} block;

static void free_block(block *b) {
    for (int i = 0; i < TENSORS; i++) {
        tg_tensor_destroy(&b->here[i]);
        tg_tensor_destroy(&b->there[i]);
    }
}

static void create(verify_run *run, block *b) {
    const bool has_values = tg_archive_find(run->golden, "f");
    const tg_shape flat = {1, {tg_gno_parameters(&b->config, has_values)}};
    tg_tensor *here = b->here;
    cli_check(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &flat, &here[WEIGHTS]));
    cli_check(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &flat, &here[DWEIGHTS]));
    if (has_values) {
        here[F] = verify_channels_first(run, "f");
        cli_check(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &here[F].shape, &here[DF]));
    }
    here[DOUT] = verify_channels_first(run, "cotangent");
    cli_check(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &here[DOUT].shape, &here[OUT]));
    each_weight(run, &b->config, &here[WEIGHTS], false);
}

/* Both passes where the backend computes, their results on the host. */
static void compute(verify_run *run, block *b, const tg_tensor *y, const tg_tensor *x) {
    tg_tensor *here = b->here, *there = b->there;
    for (int i = 0; i < TENSORS; i++) {
        if (here[i].data) {
            cli_check(tg_backend_tensor(run->ctx, TG_MEM_DATA, TG_F32, &here[i].shape, &there[i]));
        }
        if (here[i].data && i < OUTPUTS) {
            cli_check(tg_backend_copy(run->ctx, &here[i], &there[i]));
        }
    }
    const tg_tensor *f = here[F].data ? &there[F] : NULL;
    cli_check(tg_gno_forward(run->ctx, &b->config, &there[WEIGHTS], y, x, f, &there[OUT]));
    cli_check(tg_gno_backward(run->ctx, &b->config, &there[WEIGHTS], y, x, f, &there[DOUT],
                              &there[DWEIGHTS], f ? &there[DF] : NULL));
    for (int i = OUTPUTS; i < TENSORS; i++) {
        if (here[i].data) {
            cli_check(tg_backend_copy(run->ctx, &there[i], &here[i]));
        }
    }
}

void verify_gno(verify_run *run) {
    CLI_OWNED(free_block) block b = {.config = tg_gno_config_default()};
    verify_read_config(run, set, &b.config);
    cli_check(tg_gno_config_check(run->ctx, &b.config));
    const tg_tensor *y = verify_tensor(run, "y"), *x = verify_tensor(run, "x");
    create(run, &b);
    check_neighbours(run, b.config.radius, y, x);
    compute(run, &b, y, x);
    verify_channels_last(run, "out", &b.here[OUT]);
    each_weight(run, &b.config, &b.here[DWEIGHTS], true);
    if (b.here[F].data) {
        verify_channels_last(run, "grad.f", &b.here[DF]);
    }
}
