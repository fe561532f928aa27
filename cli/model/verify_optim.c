/* Golden optimizer trajectories: `w0` and `grads` (steps first) through the file's settings; the
 * weights after every step are compared by the change from w0, |w - w'| / |w' - w0|. */
#include "verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int set_json(verify_run *run, tg_optim_config *config, const char *key,
                    const json_t *value) {
    char *text = verify_value_text(value);
    tg_status status = tg_optim_config_set(run->ctx, config, key, text);
    free(text);
    return cli_code(run->ctx, status);
}

/* A setting with its own metadata key. */
static int set_from_metadata(verify_run *run, tg_optim_config *config, const char *name,
                             const char *key) {
    json_t *value = verify_metadata(run, name);
    const int code = value ? set_json(run, config, key, value) : CLI_FAILED;
    json_decref(value);
    return code;
}

static int read_numbers(verify_run *run, tg_optim_config *config) {
    if (set_from_metadata(run, config, "lr", "learning_rate") != CLI_OK ||
        set_from_metadata(run, config, "eps", "eps") != CLI_OK ||
        set_from_metadata(run, config, "weight_decay", "weight_decay") != CLI_OK) {
        return CLI_FAILED;
    }
    json_t *betas = verify_metadata(run, "betas");
    const bool is_pair = json_array_size(betas) == 2;
    if (is_pair) {
        config->beta1 = json_number_value(json_array_get(betas, 0));
        config->beta2 = json_number_value(json_array_get(betas, 1));
    } else if (betas) {
        cli_fail("%s: metadata 'betas' is not a list of two numbers", run->path);
    }
    json_decref(betas);
    return is_pair ? CLI_OK : CLI_FAILED;
}

/* The method of the file's `kind`. */
static int set_kind(verify_run *run, tg_optim_config *config, const char *kind) {
    config->is_projected = strcmp(kind, "adamw") != 0;
    if (strcmp(kind, "composite") == 0) {
        config->projector.scheme = TG_SCHEME_COMPOSITE;
    } else if (strcmp(kind, "sum") == 0) {
        config->projector.scheme = TG_SCHEME_SUM;
    } else if (strcmp(kind, "galore") == 0) {
        config->projector.first.type = TG_BRANCH_MATRIX;
        return set_from_metadata(run, config, "first_dim_rollup", "first_dim_rollup");
    } else if (strcmp(kind, "single") != 0 && strcmp(kind, "adamw") != 0) {
        return cli_fail("%s: kind '%s' is not adamw, galore, single, composite or sum", run->path,
                        kind);
    }
    return CLI_OK;
}

static int read_config(verify_run *run, tg_optim_config *config) {
    *config = tg_optim_config_default();
    config->min_entries = 0;
    if (read_numbers(run, config) != CLI_OK) {
        return CLI_FAILED;
    }
    json_t *kind = verify_metadata(run, "kind");
    json_t *options = kind ? verify_metadata(run, "options") : NULL;
    int code = options ? CLI_OK : CLI_FAILED;
    if (options && (!json_is_string(kind) || !json_is_object(options))) {
        code = cli_fail("%s: metadata 'kind' is not a text or 'options' not an object", run->path);
    }
    const char *key;
    json_t *value;
    json_object_foreach(options, key, value) {
        code = code == CLI_OK ? set_json(run, config, key, value) : code;
    }
    code = code == CLI_OK ? set_kind(run, config, json_string_value(kind)) : code;
    json_decref(kind);
    json_decref(options);
    return code;
}

/* grads is (steps, shape of w0..), weights as well. */
static int check_shapes(verify_run *run, const tg_tensor *w0, const tg_tensor *grads,
                        const tg_tensor *weights) {
    bool fits = grads->shape.ndim == w0->shape.ndim + 1 && grads->dtype == w0->dtype &&
                weights->dtype == w0->dtype && tg_shape_equal(&grads->shape, &weights->shape);
    for (int d = 0; fits && d < w0->shape.ndim; d++) {
        fits = grads->shape.dim[d + 1] == w0->shape.dim[d];
    }
    return fits ? CLI_OK
                : cli_fail("%s: 'grads' and 'weights' are not (steps, shape of w0) of its dtype",
                           run->path);
}

/* Tensors of a step, where the backend computes. */
typedef struct step_work {
    tg_optim *optim;
    tg_tensor weight, grad;
} step_work;

static tg_status make_work(verify_run *run, const tg_optim_setup *setup, const tg_tensor *w0,
                           step_work *work) {
    const tg_shape *shape = &w0->shape;
    CLI_CALL(tg_optim_create(run->ctx, setup, &work->optim));
    CLI_CALL(tg_backend_tensor(run->ctx, TG_MEM_WEIGHTS, w0->dtype, shape, &work->weight));
    CLI_CALL(tg_backend_tensor(run->ctx, TG_MEM_GRADIENTS, w0->dtype, shape, &work->grad));
    return tg_backend_copy(run->ctx, w0, &work->weight);
}

static void free_work(step_work *work) {
    tg_tensor_destroy(&work->weight);
    tg_tensor_destroy(&work->grad);
    tg_optim_destroy(&work->optim);
}

/* Step number `step`; the weights after it go to their place in `computed`. */
static tg_status take_step(verify_run *run, step_work *work, int64_t step, const tg_tensor *grads,
                           const tg_tensor *computed) {
    tg_tensor grad, now;
    CLI_CALL(tg_tensor_slice(run->ctx, grads, step, 1, &grad));
    CLI_CALL(tg_tensor_slice(run->ctx, computed, step, 1, &now));
    CLI_CALL(tg_backend_copy(run->ctx, &grad, &work->grad));
    CLI_CALL(tg_optim_step(work->optim, 0, &work->grad, &work->weight));
    return tg_backend_copy(run->ctx, &work->weight, &now);
}

/* Steps through the gradients; `computed` (steps, shape..) receives the weights. */
static tg_status replay(verify_run *run, step_work *work, const tg_tensor *w0,
                        const tg_tensor *grads, const tg_tensor *expected,
                        const tg_tensor *computed) {
    for (int64_t step = 0; step < grads->shape.dim[0]; step++) {
        tg_tensor now, reference;
        CLI_CALL(take_step(run, work, step, grads, computed));
        CLI_CALL(tg_tensor_slice(run->ctx, computed, step, 1, &now));
        CLI_CALL(tg_tensor_slice(run->ctx, expected, step, 1, &reference));
        verify_add(run, verify_relative_error(&now, &reference, w0), 1e-4,
                   "change of w after step %lld", (long long)step + 1);
    }
    return TG_OK;
}

int verify_optim(verify_run *run) {
    tg_optim_config config;
    const tg_tensor *w0 = verify_tensor(run, "w0");
    const tg_tensor *grads = w0 ? verify_tensor(run, "grads") : NULL;
    const tg_tensor *weights = grads ? verify_tensor(run, "weights") : NULL;
    if (!weights || check_shapes(run, w0, grads, weights) != CLI_OK ||
        read_config(run, &config) != CLI_OK) {
        return CLI_FAILED;
    }
    const tg_optim_param param = {.name = "w", .dtype = w0->dtype, .shape = w0->shape};
    const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                  .groups = &config,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1};
    step_work work = {0};
    tg_tensor computed = {0};
    tg_status status = TG_OK;
    CLI_TRY(make_work(run, &setup, w0, &work));
    CLI_TRY(tg_tensor_create(run->ctx, TG_MEM_DATA, w0->dtype, &grads->shape, &computed));
    CLI_TRY(replay(run, &work, w0, grads, weights, &computed));
    CLI_TRY(tg_archive_take(run->computed, "weights", &computed));
fail:
    tg_tensor_destroy(&computed);
    free_work(&work);
    return cli_code(run->ctx, status);
}

/* ---- Tucker decompositions of `x` ----
 *
 * After 1 and 10 sweeps the reconstruction error must not exceed the file's by more than 0.0005 of
 * it (factors are unique only up to rotations and phases). A smaller error passes. */

static int read_ranks(verify_run *run, int ndim, int64_t *ranks) {
    json_t *list = verify_metadata(run, "ranks");
    if (!list) {
        return CLI_FAILED;
    }
    bool fits = json_is_array(list) && (int)json_array_size(list) == ndim;
    for (int d = 0; fits && d < ndim; d++) {
        const json_t *entry = json_array_get(list, (size_t)d);
        fits = json_is_integer(entry);
        ranks[d] = json_integer_value(entry);
    }
    json_decref(list);
    return fits ? CLI_OK
                : cli_fail("%s: metadata 'ranks' is not a list of %d integers", run->path, ndim);
}

/* Adds core_itN and factorK_itN to the computed tensors. */
static tg_status keep(verify_run *run, int sweeps, int ndim, tg_tucker_result *result) {
    char name[64];
    snprintf(name, sizeof name, "core_it%d", sweeps);
    CLI_CALL(tg_archive_take(run->computed, name, &result->core));
    for (int d = 0; d < ndim; d++) {
        snprintf(name, sizeof name, "factor%d_it%d", d, sweeps);
        CLI_CALL(tg_archive_take(run->computed, name, &result->factor[d]));
    }
    return TG_OK;
}

int verify_tucker(verify_run *run) {
    int64_t ranks[TG_MAX_NDIM];
    const tg_tensor *x = verify_tensor(run, "x");
    if (!x || read_ranks(run, x->shape.ndim, ranks) != CLI_OK) {
        return CLI_FAILED;
    }
    static const int sweeps[] = {1, 10};
    for (size_t i = 0; i < sizeof sweeps / sizeof sweeps[0]; i++) {
        char key[32];
        snprintf(key, sizeof key, "rel_err_it%d", sweeps[i]);
        json_t *expected = verify_metadata(run, key);
        if (!expected) {
            return CLI_FAILED;
        }
        const double theirs = json_number_value(expected);
        json_decref(expected);
        tg_tucker_result result;
        tg_status status = tg_tucker(run->ctx, x, ranks, sweeps[i], TG_SVD_TRUNCATED, 0, &result);
        if (status == TG_OK) {
            const double worse = (result.relative_error - theirs) / theirs;
            verify_add(run, worse < 0.0 ? 0.0 : worse, 0.0005,
                       "reconstruction after %d sweep%s, excess over %.3g", sweeps[i],
                       sweeps[i] == 1 ? "" : "s", theirs);
            status = keep(run, sweeps[i], x->shape.ndim, &result);
        }
        tg_tucker_result_destroy(&result);
        if (status != TG_OK) {
            return cli_fail_status(run->ctx, status);
        }
    }
    return CLI_OK;
}
