/* Golden optimizer trajectories: `w0` and `grads` (steps first) through the file's settings; the
 * weights after every step are compared by the change from w0, |w - w'| / |w' - w0|. */
#include "verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_json(verify_run *run, tg_optim_config *config, const char *key,
                     const json_t *value) {
    CLI_FREED char *text = verify_value_text(value);
    cli_check(tg_optim_config_set(run->ctx, config, key, text));
}

/* A setting with its own metadata key. */
static void set_from_metadata(verify_run *run, tg_optim_config *config, const char *name,
                              const char *key) {
    json_t *value = verify_metadata(run, name);
    set_json(run, config, key, value);
    json_decref(value);
}

static void read_numbers(verify_run *run, tg_optim_config *config) {
    set_from_metadata(run, config, "lr", "learning_rate");
    set_from_metadata(run, config, "eps", "eps");
    set_from_metadata(run, config, "weight_decay", "weight_decay");
    json_t *betas = verify_metadata(run, "betas");
    if (json_array_size(betas) != 2) {
        cli_die("%s: metadata 'betas' is not a list of two numbers", run->path);
    }
    config->beta1 = json_number_value(json_array_get(betas, 0));
    config->beta2 = json_number_value(json_array_get(betas, 1));
    json_decref(betas);
}

/* The method of the file's `kind`. */
static void set_kind(verify_run *run, tg_optim_config *config, const char *kind) {
    config->is_projected = strcmp(kind, "adamw") != 0;
    if (strcmp(kind, "composite") == 0) {
        config->projector.scheme = TG_SCHEME_COMPOSITE;
    } else if (strcmp(kind, "sum") == 0) {
        config->projector.scheme = TG_SCHEME_SUM;
    } else if (strcmp(kind, "galore") == 0) {
        config->projector.first.type = TG_BRANCH_MATRIX;
        set_from_metadata(run, config, "first_dim_rollup", "first_dim_rollup");
    } else if (strcmp(kind, "single") != 0 && strcmp(kind, "adamw") != 0) {
        cli_die("%s: kind '%s' is not adamw, galore, single, composite or sum", run->path, kind);
    }
}

static void read_config(verify_run *run, tg_optim_config *config) {
    *config = tg_optim_config_default();
    config->min_entries = 0;
    read_numbers(run, config);
    json_t *kind = verify_metadata(run, "kind"), *options = verify_metadata(run, "options");
    if (!json_is_string(kind) || !json_is_object(options)) {
        cli_die("%s: metadata 'kind' is not a text or 'options' not an object", run->path);
    }
    const char *key;
    json_t *value;
    json_object_foreach(options, key, value) {
        set_json(run, config, key, value);
    }
    set_kind(run, config, json_string_value(kind));
    json_decref(kind);
    json_decref(options);
}

/* grads is (steps, shape of w0..), weights as well. */
static void check_shapes(verify_run *run, const tg_tensor *w0, const tg_tensor *grads,
                         const tg_tensor *weights) {
    bool fits = grads->shape.ndim == w0->shape.ndim + 1 && grads->dtype == w0->dtype &&
                weights->dtype == w0->dtype && tg_shape_equal(&grads->shape, &weights->shape);
    for (int d = 0; fits && d < w0->shape.ndim; d++) {
        fits = grads->shape.dim[d + 1] == w0->shape.dim[d];
    }
    if (!fits) {
        cli_die("%s: 'grads' and 'weights' are not (steps, shape of w0) of its dtype", run->path);
    }
}

void verify_optim(verify_run *run) {
    tg_context *ctx = run->ctx;
    tg_optim_config config;
    const tg_tensor *w0 = verify_tensor(run, "w0"), *grads = verify_tensor(run, "grads");
    const tg_tensor *expected = verify_tensor(run, "weights");
    check_shapes(run, w0, grads, expected);
    read_config(run, &config);
    const tg_optim_param param = {.name = "w", .dtype = w0->dtype, .shape = w0->shape};
    const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                  .groups = &config,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1};
    CLI_OWNED(tg_optim_destroy) tg_optim *optim = NULL;
    CLI_OWNED(tg_tensor_destroy) tg_tensor weight = {0}; /* where the backend computes */
    CLI_OWNED(tg_tensor_destroy) tg_tensor grad = {0};
    CLI_OWNED(tg_tensor_destroy) tg_tensor computed = {0}; /* (steps, shape of w0..) */
    cli_check(tg_optim_create(ctx, &setup, &optim));
    cli_check(tg_backend_tensor(ctx, TG_MEM_WEIGHTS, w0->dtype, &w0->shape, &weight));
    cli_check(tg_backend_tensor(ctx, TG_MEM_GRADIENTS, w0->dtype, &w0->shape, &grad));
    cli_check(tg_tensor_create(ctx, TG_MEM_DATA, w0->dtype, &grads->shape, &computed));
    cli_check(tg_backend_copy(ctx, w0, &weight));
    for (int64_t step = 0; step < grads->shape.dim[0]; step++) {
        tg_tensor given, now, reference;
        cli_check(tg_tensor_slice(ctx, grads, step, 1, &given));
        cli_check(tg_tensor_slice(ctx, &computed, step, 1, &now));
        cli_check(tg_tensor_slice(ctx, expected, step, 1, &reference));
        cli_check(tg_backend_copy(ctx, &given, &grad));
        cli_check(tg_optim_step(optim, 0, &grad, &weight));
        cli_check(tg_backend_copy(ctx, &weight, &now));
        verify_add(run, verify_relative_error(&now, &reference, w0), VERIFY_LIMIT,
                   "change of w after step %lld", (long long)step + 1);
    }
    cli_check(tg_archive_take(run->computed, "weights", &computed));
}

/* ---- Tucker decompositions of `x` ----
 *
 * After 1 and 10 sweeps the reconstruction error must not exceed the file's by more than 0.0005 of
 * it (factors are unique only up to rotations and phases). A smaller error passes. */

static void read_ranks(verify_run *run, int ndim, int64_t *ranks) {
    json_t *list = verify_metadata(run, "ranks");
    bool fits = json_is_array(list) && (int)json_array_size(list) == ndim;
    for (int d = 0; fits && d < ndim; d++) {
        const json_t *entry = json_array_get(list, (size_t)d);
        fits = json_is_integer(entry);
        ranks[d] = json_integer_value(entry);
    }
    json_decref(list);
    if (!fits) {
        cli_die("%s: metadata 'ranks' is not a list of %d integers", run->path, ndim);
    }
}

void verify_tucker(verify_run *run) {
    static const int sweeps[] = {1, 10};
    int64_t ranks[TG_MAX_NDIM];
    const tg_tensor *x = verify_tensor(run, "x");
    read_ranks(run, x->shape.ndim, ranks);
    for (size_t i = 0; i < sizeof sweeps / sizeof sweeps[0]; i++) {
        const int n = sweeps[i];
        char name[64];
        snprintf(name, sizeof name, "rel_err_it%d", n);
        json_t *expected = verify_metadata(run, name);
        const double theirs = json_number_value(expected);
        json_decref(expected);
        CLI_OWNED(tg_tucker_result_destroy) tg_tucker_result result = {0};
        cli_check(tg_tucker(run->ctx, x, ranks, n, TG_SVD_TRUNCATED, 0, &result));
        const double worse = (result.relative_error - theirs) / theirs;
        verify_add(run, worse < 0.0 ? 0.0 : worse, 0.0005,
                   "reconstruction after %d sweep%s, excess over %.3g", n, n == 1 ? "" : "s",
                   theirs);
        snprintf(name, sizeof name, "core_it%d", n);
        cli_check(tg_archive_take(run->computed, name, &result.core));
        for (int d = 0; d < x->shape.ndim; d++) {
            snprintf(name, sizeof name, "factor%d_it%d", d, n);
            cli_check(tg_archive_take(run->computed, name, &result.factor[d]));
        }
    }
}
