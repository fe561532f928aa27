#include "workbench.h"

#include <complex.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "input_files.h"

/* Uniform in [-1, 1), from a small generator. */
static void fill_random(tg_dtype real, int64_t count, uint64_t seed, void *out) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const double value = (double)(int64_t)seed * 0x1p-63;
        if (real == TG_F64) {
            ((double *)out)[i] = value;
        } else {
            ((float *)out)[i] = (float)value;
        }
    }
}

/* Random data where the backend computes. */
static tg_status random_tensor(tg_context *ctx, const cli_problem *problem, int64_t channels,
                               uint64_t seed, tg_tensor *out) {
    const tg_fno_config *fno = &problem->fno;
    const tg_dtype dtype = fno->complex_data ? tg_dtype_complex(fno->dtype) : fno->dtype;
    const int n_dim = cli_data_dims(fno);
    tg_shape shape = {.ndim = 2 + n_dim, .dim = {problem->batch, channels}};
    memcpy(shape.dim + 2, problem->data, (size_t)n_dim * sizeof shape.dim[0]);
    CLI_CALL(tg_backend_tensor(ctx, TG_MEM_DATA, dtype, &shape, out));
    tg_tensor host;
    CLI_FREED void *values = cli_need(malloc(tg_tensor_bytes(out)));
    fill_random(fno->dtype, tg_tensor_numel(out) * (fno->complex_data ? 2 : 1), seed, values);
    CLI_CALL(tg_tensor_wrap(ctx, dtype, &shape, values, &host));
    return tg_backend_copy(ctx, &host, out);
}

/* Points anywhere in the unit box, for a network that needs them. */
static tg_status place_points(const cli_workbench *b, const cli_problem *problem, uint64_t seed) {
    const tg_shape shape = {.ndim = 2, .dim = {problem->data[0], problem->fno.n_dim}};
    const int64_t count = tg_shape_numel(&shape);
    tg_tensor points;
    CLI_FREED float *values = cli_need(malloc((size_t)count * sizeof *values));
    fill_random(TG_F32, count, seed, values);
    for (int64_t i = 0; i < count; i++) {
        values[i] = 0.5f + 0.5f * values[i];
    }
    CLI_CALL(tg_tensor_wrap(b->ctx, TG_F32, &shape, values, &points));
    return tg_fno_set_points(b->fno, &points, &points, NULL);
}

static tg_status make_optimizer(cli_workbench *b, const cli_problem *problem, uint64_t seed) {
    CLI_OWNED(cli_setup_free) cli_setup setup = {0};
    CLI_CALL(cli_setup_make(b->ctx, problem, b->fno, seed, &setup));
    CLI_CALL(tg_optim_create(b->ctx, &setup.setup, &b->optim));
    for (int i = 0; i < setup.setup.param_count; i++) {
        const tg_fno_param param = tg_fno_get_param(b->fno, i);
        CLI_CALL(tg_optim_bind(b->optim, i, &param.weight));
    }
    return TG_OK;
}

tg_status cli_workbench_open(tg_context *ctx, const cli_problem *problem, uint64_t seed,
                             cli_workbench *out) {
    *out = (cli_workbench){.ctx = ctx};
    CLI_CALL(tg_loss_config_parse(ctx, "opt.training_loss", problem->loss, &out->loss));
    CLI_CALL(tg_fno_create(ctx, &problem->fno, seed, &out->fno));
    CLI_CALL(random_tensor(ctx, problem, problem->fno.in_channels, seed + 1, &out->x));
    CLI_CALL(random_tensor(ctx, problem, problem->fno.out_channels, seed + 2, &out->y));
    CLI_CALL(make_optimizer(out, problem, seed));
    CLI_CALL(tg_step_share_workspace(out->fno, out->optim));
    CLI_CALL(tg_fno_prepare(out->fno, problem->batch, problem->grid, true));
    if (cli_on_points(&problem->fno)) {
        CLI_CALL(place_points(out, problem, seed + 3));
    }
    return TG_OK;
}

void cli_workbench_close(cli_workbench *bench) {
    tg_optim_destroy(&bench->optim);
    tg_tensor_destroy(&bench->x);
    tg_tensor_destroy(&bench->y);
    tg_fno_destroy(&bench->fno);
}

tg_status cli_workbench_run(const cli_workbench *bench, tg_graphs graphs, int64_t steps,
                            double *seconds) {
    CLI_OWNED(tg_step_destroy) tg_step *step = NULL;
    tg_step_result result = {0};
    const tg_step_config config = {.size = sizeof(tg_step_config),
                                   .fno = bench->fno,
                                   .optim = bench->optim,
                                   .loss = bench->loss,
                                   .graphs = graphs};
    CLI_CALL(tg_step_create(bench->ctx, &config, &step));
    tg_context_memory_reset_peak(bench->ctx);
    for (int64_t i = 0; i < steps; i++) {
        const double start = cli_seconds();
        CLI_CALL(tg_step_forward(step, &bench->x, &bench->y));
        CLI_CALL(tg_step_backward(step));
        CLI_CALL(tg_step_synchronize(step, &result));
        CLI_CALL(tg_backend_synchronize(bench->ctx));
        if (seconds) {
            seconds[i] = cli_seconds() - start;
        }
    }
    return TG_OK;
}

/* ---- random gradients: rows along the last dimension, each from the products of the other
 * dimensions' vectors ---- */

enum { TERMS = 8 };

static const double noise_size = 0.1;

/* The finalizer of splitmix64, at its i-th step from `seed`. */
static uint64_t random_bits(uint64_t seed, uint64_t i) {
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Number i of a stream, of unit variance: a standard normal number by Box and Muller, or a complex
 * one. */
static double complex random_value(uint64_t stream, uint64_t i, bool is_complex) {
    const double unit = 1.0 / 9007199254740992.0;                               /* 2^-53 */
    const double u = ((double)(random_bits(stream, 2 * i) >> 11) + 0.5) * unit; /* in (0, 1) */
    const double v = (double)(random_bits(stream, 2 * i + 1) >> 11) * unit;
    const double radius = sqrt(-2.0 * log(u)), angle = 6.283185307179586 * v;
    const double share = is_complex ? sqrt(0.5) : 1.0;
    const double parts[2] = {radius * cos(angle) * share,
                             is_complex ? radius * sin(angle) * share : 0.0};
    double complex value; /* CMPLX is not in every C library for clang */
    memcpy(&value, parts, sizeof value);
    return value;
}

/* vectors[d][r * dim + i] for all dimensions, to be freed one by one. */
static void make_vectors(const tg_shape *shape, uint64_t seed, bool is_complex,
                         double complex *vectors[TG_MAX_NDIM]) {
    for (int d = 0; d < shape->ndim; d++) {
        const int64_t count = TERMS * shape->dim[d];
        vectors[d] = cli_need(malloc((size_t)count * sizeof *vectors[d]));
        const uint64_t stream = random_bits(seed, (uint64_t)d);
        for (int64_t i = 0; i < count; i++) {
            vectors[d][i] = random_value(stream, (uint64_t)i, is_complex);
        }
    }
}

/* The products of the vectors' entries at `index`, without the last dimension. */
static void make_weights(const tg_shape *shape, double complex *const vectors[TG_MAX_NDIM],
                         const int64_t index[TG_MAX_NDIM], double complex weights[TERMS]) {
    for (int r = 0; r < TERMS; r++) {
        weights[r] = 1.0 / (r + 1);
        for (int d = 0; d < shape->ndim - 1; d++) {
            weights[r] *= vectors[d][r * shape->dim[d] + index[d]];
        }
    }
}

void cli_random_gradient(const tg_tensor *out, uint64_t seed, uint64_t draw) {
    const tg_shape *shape = &out->shape;
    const int last = shape->ndim - 1;
    const bool is_complex = tg_dtype_is_complex(out->dtype);
    const int64_t numel = tg_tensor_numel(out), row = shape->dim[last];
    const uint64_t noise = random_bits(seed, TG_MAX_NDIM + draw);
    double complex *vectors[TG_MAX_NDIM] = {NULL};
    int64_t index[TG_MAX_NDIM] = {0};
    float *values = out->data;
    make_vectors(shape, seed, is_complex, vectors);
    for (int64_t first = 0; first < numel; first += row) {
        double complex weights[TERMS];
        make_weights(shape, vectors, index, weights);
        for (int64_t i = 0; i < row; i++) {
            double complex value =
                noise_size * random_value(noise, (uint64_t)(first + i), is_complex);
            for (int r = 0; r < TERMS; r++) {
                value += weights[r] * vectors[last][r * row + i];
            }
            *values++ = (float)creal(value);
            if (is_complex) {
                *values++ = (float)cimag(value);
            }
        }
        for (int d = last - 1; d >= 0 && ++index[d] == shape->dim[d]; d--) {
            index[d] = 0;
        }
    }
    for (int d = 0; d < shape->ndim; d++) {
        free(vectors[d]);
    }
}

/* ---- paths ---- */

static cli_paths *collected;

/* A report of the library: "path", op, sizes, path and kernels, separated by tabs. */
static void collect(void *user, tg_log_level level, const char *message) {
    static const char *const keys[] = {"op", "sizes", "path", "kernels"};
    if (strncmp(message, "path\t", 5) != 0) {
        if (level >= TG_LOG_INFO) {
            cli_log(user, level, message);
        }
        return;
    }
    CLI_FREED char *copy = cli_need(strdup(message + 5));
    char *word = copy, *rest = NULL;
    json_t *path = cli_json_object();
    for (int k = 0; k < 4; k++, word = NULL) {
        cli_json_set(path, keys[k], cli_json_text(strtok_r(word, "\t", &rest)));
    }
    *collected = *collected ? *collected : cli_json_array();
    bool is_known = false;
    for (size_t i = 0; i < json_array_size(*collected); i++) {
        is_known |= json_equal(json_array_get(*collected, i), path);
    }
    if (is_known) {
        json_decref(path);
    } else {
        cli_json_append(*collected, path);
    }
}

void cli_paths_collect(cli_paths *out) {
    collected = out;
    cli_listen(out ? collect : NULL);
}

void cli_paths_print(const cli_paths *paths) {
    cli_print_rows(*paths, "op:op|sizes:sizes|path:path|kernels:kernels");
}

json_t *cli_paths_json(const cli_paths *paths) {
    return *paths ? json_incref(*paths) : cli_json_array();
}

void cli_paths_free(cli_paths *paths) {
    json_decref(*paths);
    *paths = NULL;
}
