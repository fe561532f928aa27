/* Golden graph kernels: the block of metadata `config` with the weights
 * `param.integral_transform.channel_mlp.fcs.*`, points `y`, queries `x` and values `f`, if there
 * are any. Compared are the neighbours of every query as a set, `out`, and the gradients of
 * sum(out * cotangent) by |a - b| / |b| <= 1e-4. Files have channels last. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "verify.h"

#define LIMIT  1e-4
#define MODULE "integral_transform.channel_mlp.fcs"

static tg_status set(tg_context *ctx, void *config, const char *key, const char *text) {
    return tg_gno_config_set(ctx, config, key, text);
}

int verify_code(const verify_run *run, tg_status status) {
    return status == TG_OK                    ? CLI_OK
           : *tg_context_error(run->ctx) != 0 ? cli_fail_status(run->ctx, status)
                                              : CLI_FAILED;
}

/* ---- channels last ---- */

/* (samples, channels, points) of a golden tensor (.., points.., channels) of `samples`. */
static tg_shape turned(const tg_tensor *golden, int64_t samples) {
    const int64_t channels = golden->shape.dim[golden->shape.ndim - 1];
    return (tg_shape){3, {samples, channels, tg_tensor_numel(golden) / (samples * channels)}};
}

/* to (batch, columns, rows) = from (batch, rows, columns). */
static void turn(int64_t batch, int64_t rows, int64_t columns, const float *from, float *to) {
    for (int64_t i = 0; i < batch * rows * columns; i++) {
        const int64_t b = i / (rows * columns), r = i / columns % rows, c = i % columns;
        to[(b * columns + c) * rows + r] = from[i];
    }
}

tg_status verify_channels_first(verify_run *run, const char *name, tg_tensor *out) {
    const tg_tensor *golden = verify_tensor(run, name);
    if (!golden) {
        return TG_E_FORMAT;
    }
    if (golden->dtype != TG_F32 || golden->shape.ndim < 2 || tg_tensor_numel(golden) < 1) {
        cli_fail("%s: %s is not f32 with channels last", run->path, name);
        return TG_E_FORMAT;
    }
    const tg_shape shape = turned(golden, golden->shape.ndim > 2 ? golden->shape.dim[0] : 1);
    CLI_CALL(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &shape, out));
    turn(shape.dim[0], shape.dim[2], shape.dim[1], golden->data, out->data);
    return TG_OK;
}

tg_status verify_channels_last(verify_run *run, const char *name, const tg_tensor *tensor) {
    const tg_tensor *golden = verify_tensor(run, name);
    tg_tensor copy = {0};
    if (!golden) {
        return TG_E_FORMAT;
    }
    if (golden->dtype != TG_F32 || tg_tensor_numel(golden) != tg_tensor_numel(tensor)) {
        verify_add(run, nan(""), LIMIT, "%s", name);
        return TG_OK;
    }
    CLI_CALL(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &golden->shape, &copy));
    turn(tensor->shape.dim[0], tensor->shape.dim[1], tensor->shape.dim[2], tensor->data, copy.data);
    verify_add(run, verify_relative_error(&copy, golden, NULL), LIMIT, "%s", name);
    return tg_archive_take(run->computed, name, &copy);
}

/* ---- neighbours ---- */

static int by_value(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Numbers that differ, with those of each query in order. */
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

static bool same_numbers(const tg_tensor *a, const tg_tensor *b) {
    return b->dtype == TG_I64 && tg_tensor_numel(a) == tg_tensor_numel(b) &&
           memcmp(a->data, b->data, (size_t)tg_tensor_numel(a) * sizeof(int64_t)) == 0;
}

static tg_status check_neighbours(verify_run *run, double radius) {
    const tg_tensor *golden = tg_archive_find(run->golden, "neighbors_index");
    const tg_tensor *rows = tg_archive_find(run->golden, "neighbors_row_splits");
    tg_tensor splits = {0}, index = {0};
    if (!golden || !rows) {
        return TG_OK;
    }
    tg_status status = tg_neighbours_find(run->ctx, radius, tg_archive_find(run->golden, "y"),
                                          tg_archive_find(run->golden, "x"), &splits, &index);
    if (status == TG_OK) {
        const bool same = same_numbers(&splits, rows) && golden->dtype == TG_I64 &&
                          tg_tensor_numel(golden) == tg_tensor_numel(&index);
        verify_add(run, same ? differences(&splits, &index, golden) : nan(""), 0.0, "neighbors");
        status = tg_archive_take(run->computed, "neighbors_index", &index);
    }
    if (status == TG_OK) {
        status = tg_archive_take(run->computed, "neighbors_row_splits", &splits);
    }
    tg_tensor_destroy(&splits);
    tg_tensor_destroy(&index);
    return status;
}

/* ---- the kernel ---- */

/* Walks over the kernel's parameters in `flat` and those of the file: copies from the file, or
 * compares and gives away copies. */
static tg_status each_weight(verify_run *run, const tg_gno_config *config, tg_tensor *flat,
                             bool compares) {
    float *next = flat->data;
    tg_status status = TG_OK;
    for (int i = 0; i < 2 * (config->n_channel_mlp_layers + 1) && status == TG_OK; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s." MODULE ".%d.%s", compares ? "grad" : "param", i / 2,
                 i % 2 ? "bias" : "weight");
        const tg_tensor *golden = verify_tensor(run, name);
        const int64_t left = tg_tensor_numel(flat) - (next - (float *)flat->data);
        if (!golden || golden->dtype != TG_F32 || tg_tensor_numel(golden) > left) {
            if (golden) {
                cli_fail("%s: %s is not f32, or too large for the settings", run->path, name);
            }
            return TG_E_FORMAT;
        }
        const size_t bytes = (size_t)tg_tensor_numel(golden) * sizeof *next;
        if (!compares) {
            memcpy(next, golden->data, bytes);
        } else {
            tg_tensor copy = {0};
            status = tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &golden->shape, &copy);
            if (status == TG_OK) {
                memcpy(copy.data, next, bytes);
                verify_add(run, verify_relative_error(&copy, golden, NULL), LIMIT, "%s", name);
                status = tg_archive_take(run->computed, name, &copy);
            }
        }
        next += tg_tensor_numel(golden);
    }
    return status;
}

/* The block's tensors; f and df are empty without values. */
typedef struct block {
    tg_gno_config config;
    const tg_tensor *y, *x;
    tg_tensor weights, dweights, f, df, out, dout;
} block;

static tg_status create(verify_run *run, block *b) {
    const bool has_values = tg_archive_find(run->golden, "f");
    const tg_shape flat = {1, {tg_gno_parameters(&b->config, has_values)}};
    b->y = verify_tensor(run, "y");
    b->x = verify_tensor(run, "x");
    if (!b->y || !b->x || !verify_tensor(run, "out") || !verify_tensor(run, "cotangent")) {
        return TG_E_FORMAT;
    }
    CLI_CALL(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &flat, &b->weights));
    CLI_CALL(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &flat, &b->dweights));
    if (has_values) {
        CLI_CALL(verify_channels_first(run, "f", &b->f));
        CLI_CALL(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &b->f.shape, &b->df));
    }
    CLI_CALL(verify_channels_first(run, "cotangent", &b->dout));
    CLI_CALL(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &b->dout.shape, &b->out));
    return each_weight(run, &b->config, &b->weights, false);
}

enum { INPUTS = 3, ALL = 6 }; /* weights, f, dout; out, dweights, df */

/* Copies inputs to where the backend computes, or outputs from there. */
static tg_status copy_all(tg_context *ctx, tg_tensor *const here[ALL], tg_tensor there[ALL],
                          bool is_input) {
    for (int i = is_input ? 0 : INPUTS; i < (is_input ? INPUTS : ALL); i++) {
        if (here[i]->data) {
            CLI_CALL(tg_backend_copy(ctx, is_input ? here[i] : &there[i],
                                     is_input ? &there[i] : here[i]));
        }
    }
    return TG_OK;
}

/* Both passes where the backend computes, their results on the host. */
static tg_status compute(verify_run *run, block *b) {
    tg_tensor *const here[ALL] = {&b->weights, &b->f, &b->dout, &b->out, &b->dweights, &b->df};
    tg_tensor there[ALL] = {{0}};
    tg_status status = TG_OK;
    for (int i = 0; i < ALL; i++) {
        if (here[i]->data) {
            CLI_TRY(tg_backend_tensor(run->ctx, TG_MEM_DATA, TG_F32, &here[i]->shape, &there[i]));
        }
    }
    const tg_tensor *f = b->f.data ? &there[1] : NULL;
    CLI_TRY(copy_all(run->ctx, here, there, true));
    CLI_TRY(tg_gno_forward(run->ctx, &b->config, &there[0], b->y, b->x, f, &there[3]));
    CLI_TRY(tg_gno_backward(run->ctx, &b->config, &there[0], b->y, b->x, f, &there[2], &there[4],
                            f ? &there[5] : NULL));
    CLI_TRY(copy_all(run->ctx, here, there, false));
fail:
    for (int i = 0; i < ALL; i++) {
        tg_tensor_destroy(&there[i]);
    }
    return status;
}

static tg_status check_all(verify_run *run, block *b) {
    CLI_CALL(check_neighbours(run, b->config.radius));
    CLI_CALL(compute(run, b));
    CLI_CALL(verify_channels_last(run, "out", &b->out));
    CLI_CALL(each_weight(run, &b->config, &b->dweights, true));
    if (b->f.data) {
        CLI_CALL(verify_channels_last(run, "grad.f", &b->df));
    }
    return TG_OK;
}

int verify_gno(verify_run *run) {
    block b = {.y = NULL};
    tg_tensor *const made[] = {&b.weights, &b.dweights, &b.f, &b.df, &b.out, &b.dout};
    b.config = tg_gno_config_default();
    if (verify_read_config(run, set, &b.config) != CLI_OK) {
        return CLI_FAILED;
    }
    tg_status status = TG_OK;
    CLI_TRY(tg_gno_config_check(run->ctx, &b.config));
    CLI_TRY(create(run, &b));
    CLI_TRY(check_all(run, &b));
fail:
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        tg_tensor_destroy(made[i]);
    }
    return verify_code(run, status);
}
