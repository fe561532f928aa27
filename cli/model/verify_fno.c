/* Golden networks, of metadata `config` with the weights `param.*`; all are compared by
 * |a - b| / |b| <= 1e-4.
 *
 * Fourier neural operators: `out` for `x`, each `loss.<loss>` against `target`, each
 * `grad.<loss>.<parameter>`, and `out_eval` for `x_eval` on another grid. GINOs: from `x` at
 * `input_geom` over `latent_queries`, with `latent_features` if there are any, to `output_queries`:
 * `out`, `loss.l2` and each `grad.l2.<parameter>`; their files have channels last. */
#include <string.h>

#include "verify.h"

/* Settings of a file, and whether it chose the frequencies of complex data. */
typedef struct file_config {
    tg_fno_config fno;
    bool has_modes;
} file_config;

static tg_status set(tg_context *ctx, void *config, const char *key, const char *text) {
    file_config *file = config;
    const bool is_gino = file->fno.architecture == TG_ARCHITECTURE_GINO;
    file->has_modes = file->has_modes || strcmp(key, "complex_modes") == 0;
    return is_gino && strcmp(key, "gno_coord_dim") == 0 /* as many as modes */
               ? TG_OK
               : tg_fno_config_set(ctx, &file->fno, key, text);
}

/* Where gradients of a network go: compared with `grad.<loss>.<parameter>`. */
typedef struct loss_sink {
    verify_run *run;
    const tg_fno *fno;
    const char *loss;
} loss_sink;

static tg_status receive(void *user, const tg_gradient *gradient) {
    const loss_sink *to = user;
    tg_context *ctx = to->run->ctx;
    CLI_OWNED(tg_tensor_destroy) tg_tensor dense = {0};
    char name[200];
    snprintf(name, sizeof name, "grad.%s.%s", to->loss,
             tg_fno_get_param(to->fno, gradient->param).name);
    CLI_CALL(tg_tensor_create(ctx, TG_MEM_GRADIENTS, gradient->dtype, &gradient->shape, &dense));
    CLI_CALL(tg_gradient_read(ctx, gradient, &dense));
    verify_compare(to->run, name, &dense);
    return TG_OK;
}

/* Loss `name` of a network that is prepared for training, and its gradients. */
static void check_loss(verify_run *run, tg_fno *fno, const char *name, const tg_tensor *x,
                       const tg_tensor *target) {
    loss_sink to = {.run = run, .fno = fno, .loss = name};
    const tg_grad_sink sink = {.receive = receive, .user = &to};
    const tg_shape one = {1, {1}};
    CLI_OWNED(tg_tensor_destroy) tg_tensor loss = {0};
    tg_loss_config config;
    char key[80];
    double value = 0.0;
    snprintf(key, sizeof key, "loss.%.64s", name);
    cli_check(tg_loss_config_parse(run->ctx, key, name, &config));
    cli_check(tg_fno_loss_backward(fno, x, target, &config, &sink, &value));
    cli_check(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &one, &loss));
    *(float *)loss.data = (float)value;
    verify_compare(run, key, &loss);
}

static void open_network(verify_run *run, const tg_fno_config *config, tg_fno **out) {
    cli_check(tg_fno_create(run->ctx, config, 0, out));
    cli_check(tg_fno_load(*out, run->golden, "param."));
}

/* ---- fields on a grid ---- */

/* Makes the network ready for the batch and the grid of x. */
static void prepare(verify_run *run, tg_fno *fno, const tg_tensor *x, bool training) {
    const int dims = tg_fno_get_config(fno)->n_dim;
    char text[96];
    if (x->shape.ndim != 2 + dims) {
        cli_die("%s: an input is %s; (batch, channels, %d grid sizes) is needed", run->path,
                tg_shape_text(&x->shape, text, sizeof text), dims);
    }
    cli_check(tg_fno_prepare(fno, x->shape.dim[0], x->shape.dim + 2, training));
}

/* The output for tensor `in`, compared with `out`. */
static void check_output(verify_run *run, tg_fno *fno, const char *in, const char *out) {
    const tg_tensor *x = verify_tensor(run, in);
    CLI_OWNED(tg_tensor_destroy) tg_tensor y = {0};
    tg_shape shape = x->shape;
    shape.dim[1] = tg_fno_get_config(fno)->out_channels;
    prepare(run, fno, x, false);
    cli_check(tg_tensor_create(run->ctx, TG_MEM_DATA, x->dtype, &shape, &y));
    cli_check(tg_fno_forward(fno, x, &y));
    verify_compare(run, out, &y);
}

void verify_fno(verify_run *run) {
    file_config file = {.fno = tg_fno_config_default()};
    CLI_OWNED(tg_fno_destroy) tg_fno *fno = NULL;
    verify_read_config(run, set, &file);
    /* neuraloperator, which the files are made with, keeps the frequencies from 0 on of complex
     * data in one dimension: that is meant unless a file says otherwise. */
    if (file.fno.complex_data && file.fno.n_dim == 1 && !file.has_modes) {
        file.fno.complex_modes = TG_MODES_NONNEGATIVE;
    }
    open_network(run, &file.fno, &fno);
    check_output(run, fno, "x", "out");
    for (int64_t i = 0; i < tg_archive_count(run->golden); i++) {
        const char *name = tg_archive_name(run->golden, i);
        if (strncmp(name, "loss.", 5) == 0) {
            const tg_tensor *x = verify_tensor(run, "x");
            prepare(run, fno, x, true);
            check_loss(run, fno, name + 5, x, verify_tensor(run, "target"));
        }
    }
    if (tg_archive_find(run->golden, "x_eval")) {
        check_output(run, fno, "x_eval", "out_eval");
    }
}

/* ---- points ---- */

/* The network and its tensors, channels first. */
typedef struct gino {
    tg_fno *fno;
    const tg_tensor *points, *latent, *queries;
    tg_tensor x, target, features, out;
} gino;

static void free_gino(gino *g) {
    tg_tensor_destroy(&g->x);
    tg_tensor_destroy(&g->target);
    tg_tensor_destroy(&g->features);
    tg_tensor_destroy(&g->out);
    tg_fno_destroy(&g->fno);
}

static void load(verify_run *run, gino *g) {
    const int dims = tg_fno_get_config(g->fno)->n_dim;
    g->points = verify_tensor(run, "input_geom");
    g->latent = verify_tensor(run, "latent_queries");
    g->queries = verify_tensor(run, "output_queries");
    if (g->points->shape.ndim != 2 || g->queries->shape.ndim != 2 ||
        g->latent->shape.ndim != dims + 1) {
        cli_die("%s: points and queries are (n, %d), the latent grid has %d sizes", run->path, dims,
                dims);
    }
    g->x = verify_channels_first(run, "x");
    g->target = verify_channels_first(run, "target");
    if (tg_fno_get_config(g->fno)->latent_feature_channels > 0) {
        g->features = verify_channels_first(run, "latent_features");
        g->features.shape.ndim = dims + 2;
        memcpy(g->features.shape.dim + 2, g->latent->shape.dim, (size_t)dims * sizeof(int64_t));
    }
    cli_check(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &g->target.shape, &g->out));
}

/* Ready for a step, with its places and features. */
static void prepare_gino(const gino *g, bool training) {
    const int dims = tg_fno_get_config(g->fno)->n_dim;
    int64_t sizes[TG_FNO_MAX_DIMS + 2];
    memcpy(sizes, g->latent->shape.dim, (size_t)dims * sizeof *sizes);
    sizes[dims] = g->points->shape.dim[0];
    sizes[dims + 1] = g->queries->shape.dim[0];
    cli_check(tg_fno_prepare(g->fno, g->x.shape.dim[0], sizes, training));
    cli_check(tg_fno_set_points(g->fno, g->points, g->queries, g->latent));
    if (g->features.data) {
        cli_check(tg_fno_set_features(g->fno, &g->features));
    }
}

void verify_gino(verify_run *run) {
    file_config file = {.fno = tg_fno_config_default()};
    CLI_OWNED(free_gino) gino g = {0};
    file.fno.architecture = TG_ARCHITECTURE_GINO;
    file.fno.projection_channel_ratio = 4.0; /* the default of neuraloperator */
    verify_read_config(run, set, &file);
    open_network(run, &file.fno, &g.fno);
    load(run, &g);
    prepare_gino(&g, false);
    cli_check(tg_fno_forward(g.fno, &g.x, &g.out));
    verify_channels_last(run, "out", &g.out);
    prepare_gino(&g, true);
    check_loss(run, g.fno, "l2", &g.x, &g.target);
}
