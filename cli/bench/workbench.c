/* A network, its optimizer and random data, ready for steps to be measured. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

#include "common/model_file.h"
#include "common/text.h"

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
    void *values = cli_need(malloc(tg_tensor_bytes(out)));
    fill_random(fno->dtype, tg_tensor_numel(out) * (fno->complex_data ? 2 : 1), seed, values);
    tg_status status = tg_tensor_wrap(ctx, dtype, &shape, values, &host);
    status = status == TG_OK ? tg_backend_copy(ctx, &host, out) : status;
    free(values);
    return status;
}

/* Points anywhere in the unit box, for a network that needs them. */
static tg_status place_points(const cli_workbench *b, const cli_problem *problem, uint64_t seed) {
    const tg_shape shape = {.ndim = 2, .dim = {problem->data[0], problem->fno.n_dim}};
    const int64_t count = tg_shape_numel(&shape);
    tg_tensor points;
    float *values = cli_need(malloc((size_t)count * sizeof *values));
    fill_random(TG_F32, count, seed, values);
    for (int64_t i = 0; i < count; i++) {
        values[i] = 0.5f + 0.5f * values[i];
    }
    tg_status status = tg_tensor_wrap(b->ctx, TG_F32, &shape, values, &points);
    status = status == TG_OK ? tg_fno_set_points(b->fno, &points, &points, NULL) : status;
    free(values);
    return status;
}

static tg_status make_optimizer(cli_workbench *b, const cli_problem *problem, uint64_t seed) {
    cli_setup setup;
    tg_status status = cli_setup_make(b->ctx, problem, b->fno, seed, &setup);
    status = status == TG_OK ? tg_optim_create(b->ctx, &setup.setup, &b->optim) : status;
    for (int i = 0; status == TG_OK && i < setup.setup.param_count; i++) {
        const tg_fno_param param = tg_fno_get_param(b->fno, i);
        status = tg_optim_bind(b->optim, i, &param.weight);
    }
    cli_setup_free(&setup);
    return status;
}

/* Buffers of a step; the optimizer works in them, too. */
static tg_status prepare(cli_workbench *b, const cli_problem *problem) {
    CLI_CALL(tg_step_share_workspace(b->fno, b->optim));
    return tg_fno_prepare(b->fno, problem->batch, problem->grid, true);
}

tg_status cli_workbench_open(tg_context *ctx, const cli_problem *problem, uint64_t seed,
                             cli_workbench *out) {
    *out = (cli_workbench){.ctx = ctx};
    CLI_CALL(tg_loss_config_parse(ctx, "opt.training_loss", problem->loss, &out->loss));
    CLI_CALL(tg_fno_create(ctx, &problem->fno, seed, &out->fno));
    CLI_CALL(random_tensor(ctx, problem, problem->fno.in_channels, seed + 1, &out->x));
    CLI_CALL(random_tensor(ctx, problem, problem->fno.out_channels, seed + 2, &out->y));
    CLI_CALL(make_optimizer(out, problem, seed));
    CLI_CALL(prepare(out, problem));
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
