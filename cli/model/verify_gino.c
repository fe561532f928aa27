/* Golden GINOs: the network of metadata `config` with the weights `param.*`, from `x` at
 * `input_geom` over `latent_queries`, with `latent_features` if there are any, to
 * `output_queries`. Compared are `out`, `loss.l2` against `target`, and each `grad.l2.<parameter>`,
 * by |a - b| / |b| <= 1e-4. Files have channels last. */
#include <string.h>

#include "verify.h"

static tg_status set(tg_context *ctx, void *config, const char *key, const char *text) {
    const bool follows = strcmp(key, "gno_coord_dim") == 0; /* as many as modes */
    return follows ? TG_OK : tg_fno_config_set(ctx, config, key, text);
}

/* Settings of the file, with the defaults of neuraloperator. */
static int read_config(verify_run *run, tg_fno_config *config) {
    *config = tg_fno_config_default();
    config->architecture = TG_ARCHITECTURE_GINO;
    config->projection_channel_ratio = 4.0;
    return verify_read_config(run, set, config);
}

/* The network and its tensors, channels first. */
typedef struct job {
    verify_run *run;
    tg_fno *fno;
    const tg_tensor *points, *latent, *queries;
    tg_tensor x, target, features, out;
} job;

static tg_status load(job *j) {
    verify_run *run = j->run;
    j->points = verify_tensor(run, "input_geom");
    j->latent = verify_tensor(run, "latent_queries");
    j->queries = verify_tensor(run, "output_queries");
    if (!j->points || !j->latent || !j->queries) {
        return TG_E_FORMAT;
    }
    const int dims = tg_fno_get_config(j->fno)->n_dim;
    if (j->points->shape.ndim != 2 || j->queries->shape.ndim != 2 ||
        j->latent->shape.ndim != dims + 1) {
        cli_fail("%s: points and queries are (n, %d), the latent grid has %d sizes", run->path,
                 dims, dims);
        return TG_E_FORMAT;
    }
    CLI_CALL(verify_channels_first(run, "x", &j->x));
    CLI_CALL(verify_channels_first(run, "target", &j->target));
    if (tg_fno_get_config(j->fno)->latent_feature_channels > 0) {
        CLI_CALL(verify_channels_first(run, "latent_features", &j->features));
        j->features.shape.ndim = dims + 2;
        memcpy(j->features.shape.dim + 2, j->latent->shape.dim, (size_t)dims * sizeof(int64_t));
    }
    return tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &j->target.shape, &j->out);
}

/* Ready for a step, with its places and features. */
static tg_status prepare(job *j, bool training) {
    const int dims = tg_fno_get_config(j->fno)->n_dim;
    int64_t sizes[TG_FNO_MAX_DIMS + 2];
    memcpy(sizes, j->latent->shape.dim, (size_t)dims * sizeof *sizes);
    sizes[dims] = j->points->shape.dim[0];
    sizes[dims + 1] = j->queries->shape.dim[0];
    tg_status status = tg_fno_prepare(j->fno, j->x.shape.dim[0], sizes, training);
    status = status == TG_OK ? tg_fno_set_points(j->fno, j->points, j->queries, j->latent) : status;
    return status == TG_OK && j->features.data ? tg_fno_set_features(j->fno, &j->features) : status;
}

static tg_status check_loss(job *j) {
    verify_sink sink_of = {.run = j->run, .fno = j->fno, .loss = "l2"};
    const tg_grad_sink sink = {.receive = verify_receive, .user = &sink_of};
    tg_loss_config config;
    double value = 0.0;
    CLI_CALL(tg_loss_config_parse(j->run->ctx, "loss.l2", "l2", &config));
    CLI_CALL(prepare(j, true));
    CLI_CALL(tg_fno_loss_backward(j->fno, &j->x, &j->target, &config, &sink, &value));
    return verify_loss(j->run, "loss.l2", value);
}

int verify_gino(verify_run *run) {
    tg_fno_config config;
    job j = {.run = run};
    tg_tensor *const made[] = {&j.x, &j.target, &j.features, &j.out};
    if (read_config(run, &config) != CLI_OK) {
        return CLI_FAILED;
    }
    tg_status status = TG_OK;
    CLI_TRY(tg_fno_create(run->ctx, &config, 0, &j.fno));
    CLI_TRY(tg_fno_load(j.fno, run->golden, "param."));
    CLI_TRY(load(&j));
    CLI_TRY(prepare(&j, false));
    CLI_TRY(tg_fno_forward(j.fno, &j.x, &j.out));
    CLI_TRY(verify_channels_last(run, "out", &j.out));
    CLI_TRY(check_loss(&j));
fail:
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        tg_tensor_destroy(made[i]);
    }
    tg_fno_destroy(&j.fno);
    return verify_code(run, status);
}
