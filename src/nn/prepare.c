/* Every buffer of a step with its life, placed in two arenas before the first step.
 *
 * The phases of a step: the input is embedded (0) and lifted (1); block l transforms, multiplies,
 * transforms back and mixes (forward_of(l) + 0 .. 3); then projection, loss, and the same backwards
 * with three phases per block. A buffer that training needs again lives until its backward phase,
 * otherwise until its last use in forward.
 *
 * What training keeps per block is the two sums before the GELUs and the kept modes of the input;
 * the input itself is the GELU of the sum before it and made again where it is needed. Backward
 * turns these into gradients where they lie. With checkpointing the first of the two sums is not
 * kept either but made again from the kept modes. */
#include "nn/layers.h"

enum { FORWARD_PHASES = 4, BACKWARD_PHASES = 3 };
enum { TRANSFORM, MULTIPLY, INVERSE, MIX }; /* phases of a block's forward */
enum { UNMIX, UNTRANSFORM, UNSKIP };        /* and of its backward */
enum { PHASE_EMBED, PHASE_LIFT, PHASE_BLOCKS };

typedef struct schedule {
    int layers;
    int project, loss, unproject, unlift; /* phases after the blocks */
} schedule;

static schedule schedule_of(const nn_model *model) {
    schedule s = {.layers = (int)model->config.n_layers};
    s.project = PHASE_BLOCKS + FORWARD_PHASES * s.layers;
    s.loss = s.project + 1;
    s.unproject = s.loss + 1;
    s.unlift = s.unproject + 1 + BACKWARD_PHASES * s.layers;
    return s;
}

static int forward_of(int l) {
    return PHASE_BLOCKS + FORWARD_PHASES * l;
}

static int backward_of(const schedule *s, int l) {
    return s->unproject + 1 + BACKWARD_PHASES * (s->layers - 1 - l);
}

/* Sizes in reals, and the two arenas that are being filled. */
typedef struct layout {
    const nn_model *model;
    const nn_geometry *g;
    schedule s;
    bool training;
    int64_t batch;
    size_t real;            /* bytes of a number outside .. */
    size_t inside, complex; /* .. of an activation inside, and of an entry of a spectrum */
    nn_plan *activations, *workspace;
} layout;

/* ---- aliases: buffers that are another buffer's memory in this configuration ---- */

/* Real data: a perceptron may write its result, and backward its gradient, over its input. */
static bool in_place(const nn_model *model) {
    return model->planes == 1;
}

static bool normed(const nn_model *model) {
    return model->config.norm != TG_NORM_NONE;
}

/* z1 is not needed after forward: inference, or made again by backward. */
static bool forgets_z1(const nn_model *model, bool training) {
    return !training || nn_recomputes(model);
}

/* Then z2 is written over z1. */
static bool z2_is_z1(const nn_model *model, bool training) {
    return forgets_z1(model, training) && in_place(model) && !normed(model);
}

static void alias_block(const nn_model *model, nn_run *run, int l) {
    nn_block_buffers *b = &run->blocks[l];
    if (!normed(model)) {
        b->conv = b->z1;
    }
    if (z2_is_z1(model, run->training)) {
        b->z2 = b->z1;
    }
    if (!normed(model)) {
        b->mixed = b->z2;
    }
    if (!nn_recomputes(model)) {
        b->back_z1 = b->z1;
        b->back_conv = b->conv;
    } else if (!normed(model)) {
        b->back_conv = b->back_z1;
    }
    if (l == 0 && !nn_lifts_again(model, &run->geometry)) {
        b->back_x = b->x;
    }
    if (in_place(model)) {
        b->dz1 = b->back_z1;
    }
    if (l > 0 && !run->training) {
        b->x = run->blocks[l - 1].z2;
    }
}

void nn_run_alias(const nn_model *model, nn_run *run) {
    const int layers = (int)model->config.n_layers;
    for (int l = 0; l < layers; l++) {
        alias_block(model, run, l);
    }
    if (!run->geometry.pads) {
        run->lifted = run->blocks[0].x;
        run->cropped = run->blocks[layers - 1].z2;
        run->dlifted = run->blocks[0].dx;
    }
    if (model->planes == 1) {
        run->out = run->projected;
        run->dprojected = run->dout;
    }
    if (in_place(model)) {
        run->dcropped = run->cropped;
    }
    if (!run->geometry.pads) {
        run->dtop = run->dcropped;
    }
    if (!nn_stages_input(model)) {
        run->staged = run->embedded;
    }
}

/* ---- the buffers with their lives ---- */

static int64_t field(const layout *o, int64_t channels) {
    return o->model->planes * o->batch * channels * o->g->pixels;
}

static int64_t padded_field(const layout *o) {
    return o->model->planes * o->batch * o->model->config.hidden_channels * o->g->padded_pixels;
}

static tg_status ask_ends(const layout *o, nn_run *run) {
    tg_status status = TG_OK;
    const tg_fno_config *config = &o->model->config;
    const schedule *s = &o->s;
    const bool pads = o->g->pads, training = o->training, pairs = o->model->planes == 2;
    nn_plan *a = o->activations;
    const int64_t hidden = field(o, config->hidden_channels);
    const int64_t output = field(o, config->out_channels);
    if (nn_stages_input(o->model)) {
        TG_TRY(nn_plan_add(a, &run->staged, field(o, config->in_channels), o->real, PHASE_EMBED,
                           PHASE_EMBED));
    }
    TG_TRY(nn_plan_add(a, &run->embedded, field(o, o->model->embedded_channels), o->real,
                       PHASE_EMBED, training ? s->unlift : PHASE_LIFT));
    if (pads) {
        TG_TRY(nn_plan_add(a, &run->lifted, hidden, o->inside, PHASE_LIFT, PHASE_LIFT));
        TG_TRY(nn_plan_add(a, &run->cropped, hidden, o->inside, s->project,
                           training ? s->unproject : s->project));
    }
    TG_TRY(
        nn_plan_add(a, &run->projected, output, o->real, s->project, pairs ? s->project : s->loss));
    if (pairs) {
        TG_TRY(nn_plan_add(a, &run->out, output, o->real, s->project, s->loss));
    }
    if (!training) {
        return TG_OK;
    }
    TG_TRY(nn_plan_add(a, &run->target, output, o->real, s->loss, s->loss));
    TG_TRY(nn_plan_add(a, &run->dout, output, o->real, s->loss, s->unproject));
    if (pairs) {
        TG_TRY(nn_plan_add(a, &run->dprojected, output, o->real, s->unproject, s->unproject));
    }
    const int top = backward_of(s, s->layers - 1) + UNSKIP;
    if (pairs) {
        TG_TRY(nn_plan_add(a, &run->dcropped, hidden, o->inside, s->unproject,
                           pads ? s->unproject : top));
    }
    if (pads) {
        TG_TRY(nn_plan_add(a, &run->dtop, padded_field(o), o->inside, s->unproject, top));
        TG_TRY(nn_plan_add(a, &run->dlifted, hidden, o->inside, s->unlift, s->unlift));
    }
fail:
    return status;
}

/* Last phase that needs z2 of block l. */
static int z2_dies(const layout *o, int l) {
    const schedule *s = &o->s;
    const bool last = l == s->layers - 1;
    if (!o->training) {
        return last ? s->project : forward_of(l + 1) + MIX;
    }
    if (!last) {
        return backward_of(s, l + 1) + UNSKIP;
    }
    if (o->g->pads) {
        return s->project;
    }
    return in_place(o->model) ? backward_of(s, l) + UNSKIP : s->unproject; /* it becomes dtop */
}

/* What checkpointing makes again in block l. */
static tg_status ask_again(const layout *o, nn_block_buffers *b, int l, int z1_dies) {
    tg_status status = TG_OK;
    const nn_model *model = o->model;
    const int backward = backward_of(&o->s, l);
    const int64_t size = padded_field(o);
    const int64_t modes = o->batch * model->config.hidden_channels * model->mode_count;
    if (l == 0 && nn_lifts_again(model, o->g)) {
        TG_TRY(nn_plan_add(o->activations, &b->back_x, size, o->inside, backward + UNMIX,
                           backward + UNSKIP));
    }
    if (normed(model)) {
        TG_TRY(nn_plan_add(o->activations, &b->back_conv, size, o->inside, backward + UNMIX,
                           backward + UNTRANSFORM));
    }
    TG_TRY(nn_plan_add(o->activations, &b->back_z1, size, o->inside, backward + UNMIX, z1_dies));
    TG_TRY(nn_plan_add(o->workspace, &b->back_product, modes, o->complex, backward + UNMIX,
                       backward + UNMIX));
fail:
    return status;
}

static tg_status ask_block(const layout *o, nn_run *run, int l) {
    tg_status status = TG_OK;
    const nn_model *model = o->model;
    const schedule *s = &o->s;
    nn_block_buffers *b = &run->blocks[l];
    nn_plan *a = o->activations, *w = o->workspace;
    const bool training = o->training, forgets = forgets_z1(model, training);
    const int forward = forward_of(l), backward = backward_of(s, l);
    const int64_t size = padded_field(o);
    const int64_t modes = o->batch * model->config.hidden_channels * model->mode_count;
    if (l == 0) {
        const bool kept = training && !nn_lifts_again(model, o->g);
        TG_TRY(nn_plan_add(a, &b->x, size, o->inside, PHASE_LIFT,
                           kept ? backward + UNSKIP : forward + MIX));
    } else if (training) {
        TG_TRY(nn_plan_add(a, &b->x, size, o->inside, forward_of(l - 1) + MIX, forward + MIX));
    }
    TG_TRY(nn_plan_add(a, &b->spectrum, modes, o->complex, forward + TRANSFORM,
                       training ? backward + UNTRANSFORM : forward + MULTIPLY));
    TG_TRY(nn_plan_add(w, &b->product, modes, o->complex, forward + MULTIPLY, forward + INVERSE));
    if (normed(model)) {
        const int64_t groups = model->planes * o->batch * model->config.hidden_channels;
        for (int n = 0; n < 2; n++) {
            TG_TRY(nn_plan_add(a, &b->stats[n], 2 * groups, sizeof(double), forward + INVERSE,
                               training ? backward + UNTRANSFORM : forward + MIX));
        }
        TG_TRY(nn_plan_add(a, &b->conv, size, o->inside, forward + INVERSE,
                           forgets ? forward + INVERSE : backward + UNTRANSFORM));
        TG_TRY(nn_plan_add(a, &b->mixed, size, o->inside, forward + MIX,
                           training ? backward + UNMIX : forward + MIX));
    }
    const bool shared = z2_is_z1(model, training);
    const int z1_again_dies = backward + (in_place(model) ? UNSKIP : UNMIX);
    TG_TRY(nn_plan_add(a, &b->z1, size, o->inside, forward + INVERSE,
                       shared    ? z2_dies(o, l)
                       : forgets ? forward + MIX
                                 : z1_again_dies));
    if (!shared) {
        TG_TRY(nn_plan_add(a, &b->z2, size, o->inside, forward + MIX, z2_dies(o, l)));
    }
    if (!training) {
        return TG_OK;
    }
    if (nn_recomputes(model)) {
        TG_TRY(ask_again(o, b, l, z1_again_dies));
    }
    if (!in_place(model)) {
        TG_TRY(nn_plan_add(a, &b->dz1, size, o->inside, backward + UNMIX, backward + UNSKIP));
    }
    TG_TRY(nn_plan_add(w, &b->dspectrum, modes, o->complex, backward + UNTRANSFORM,
                       backward + UNTRANSFORM));
    TG_TRY(nn_plan_add(w, &b->dx_spectrum, modes, o->complex, backward + UNTRANSFORM,
                       backward + UNTRANSFORM));
    TG_TRY(nn_plan_add(a, &b->dx, size, o->inside, backward + UNTRANSFORM,
                       l > 0 ? backward_of(s, l - 1) + UNSKIP : s->unlift));
fail:
    return status;
}

static tg_status ask_scratch(const layout *o, tg_backend *be, nn_run *run) {
    tg_status status = TG_OK;
    const tg_fno_config *config = &o->model->config;
    const int end = o->s.unlift;
    const bool pairs = o->model->planes == 2;
    if (pairs || config->stabilizer == TG_STABILIZER_TANH) {
        const int64_t image = o->model->planes * config->hidden_channels * o->g->padded_pixels;
        TG_TRY(nn_plan_add(o->workspace, &run->image, run->images * image, o->inside, PHASE_BLOCKS,
                           end));
    }
    if (o->g->windowed) {
        const int64_t kept = config->hidden_channels * o->g->kept_count;
        TG_TRY(nn_plan_add(o->workspace, &run->kept, run->images * kept, o->complex, PHASE_BLOCKS,
                           end));
    }
    TG_TRY(nn_plan_add(o->workspace, &run->scratch,
                       (int64_t)nn_scratch_bytes(be, o->model, o->g, o->batch, o->training), 1,
                       PHASE_EMBED, end));
fail:
    return status;
}

/* Both arenas, solved. */
static tg_status lay_out(const nn_model *model, tg_backend *be, nn_run *run, nn_plan *activations,
                         nn_plan *workspace) {
    tg_status status = TG_OK;
    const layout o = {.model = model,
                      .g = &run->geometry,
                      .s = schedule_of(model),
                      .training = run->training,
                      .batch = run->max_batch,
                      .real = tg_dtype_size(model->config.dtype),
                      .inside = tg_dtype_size(nn_activation_dtype(model)),
                      .complex = tg_dtype_size(nn_spectrum_dtype(model)),
                      .activations = activations,
                      .workspace = workspace};
    TG_TRY(ask_ends(&o, run));
    for (int l = 0; l < o.s.layers; l++) {
        TG_TRY(ask_block(&o, run, l));
    }
    TG_TRY(ask_scratch(&o, be, run));
    nn_plan_solve(activations);
    nn_plan_solve(workspace);
fail:
    return status;
}

/* ---- the public calls ---- */

/* Images that are transformed in one call. */
static int64_t images_at_once(const tg_backend *be, int64_t batch) {
    return be->ops->queue ? batch : 1;
}

static size_t workspace_held(const tg_context *ctx) {
    size_t held = 0;
    for (int place = 0; place < TG_PLACES; place++) {
        held += tg_context_memory(ctx, (tg_place)place).current[TG_MEM_WORKSPACE];
    }
    return held;
}

tg_status tg_fno_plan(tg_context *ctx, const tg_fno_config *config, int64_t batch,
                      const int64_t *grid, bool training, tg_fno_memory *out) {
    tg_status status = TG_OK;
    tg_backend *be = NULL;
    nn_model model = {0};
    nn_run run = {.training = training, .max_batch = batch};
    nn_plan activations = {.ctx = ctx}, workspace = {.ctx = ctx};
    tg_fft_plan *fft = NULL;
    *out = (tg_fno_memory){0};
    TG_TRY(tg_backend_get(ctx, &be));
    TG_TRY(nn_model_create(ctx, config, &model));
    TG_TRY(nn_geometry_make(&model, batch, grid, &run.geometry));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, run.blocks, config->n_layers));
    run.images = images_at_once(be, batch);
    TG_TRY(lay_out(&model, be, &run, &activations, &workspace));
    /* what a transform takes for itself is known when there is one */
    const size_t before = workspace_held(ctx);
    const tg_fft_desc desc = nn_geometry_fft(&model, &run.geometry, run.images);
    TG_TRY(be->ops->fft_create(be, &desc, &fft));
    out->parameters = model.parameters;
    out->bytes[TG_MEM_WEIGHTS] = model.weight_bytes;
    out->bytes[TG_MEM_ACTIVATIONS] = activations.bytes;
    out->bytes[TG_MEM_WORKSPACE] = workspace.bytes + workspace_held(ctx) - before;
    out->bytes[TG_MEM_GRADIENTS] = training ? nn_gradient_bytes(&model) : 0;
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        out->total += out->bytes[c];
    }
fail:
    if (be) {
        be->ops->fft_destroy(be, &fft);
    }
    nn_plan_free(&activations);
    nn_plan_free(&workspace);
    tg_mem_free(ctx, run.blocks);
    nn_model_destroy(&model);
    return status;
}

void nn_run_free(tg_fno *fno) {
    nn_run *run = &fno->run;
    const tg_backend_ops *ops = fno->be->ops;
    ops->fft_destroy(fno->be, &run->fft);
    ops->release(fno->be, run->activations);
    ops->release(fno->be, run->workspace);
    ops->release(fno->be, run->gradients);
    tg_mem_free(fno->ctx, run->blocks);
    *run = (nn_run){0};
}

static tg_status take(tg_backend *be, tg_mem_category category, size_t bytes, void **out) {
    *out = be->ops->alloc(be, category, bytes);
    return *out ? TG_OK : TG_E_MEMORY;
}

static bool fits(const nn_run *run, int ndim, int64_t batch, const int64_t *grid, bool training) {
    bool same = run->ready && run->training == training && run->max_batch >= batch;
    for (int d = 0; d < ndim; d++) {
        same = same && run->geometry.grid[d] == grid[d];
    }
    return same;
}

tg_status tg_fno_prepare(tg_fno *fno, int64_t batch, const int64_t *grid, bool training) {
    tg_status status = TG_OK;
    nn_run *run = &fno->run;
    nn_plan activations = {.ctx = fno->ctx}, workspace = {.ctx = fno->ctx};
    nn_geometry geometry = {0};
    status = nn_check_weights(fno);
    if (status == TG_OK) {
        status = nn_geometry_make(&fno->model, batch, grid, &geometry);
    }
    if (status != TG_OK || fits(run, fno->model.config.n_dim, batch, grid, training)) {
        return status;
    }
    nn_run_free(fno);
    run->training = training;
    run->max_batch = batch;
    run->images = images_at_once(fno->be, batch);
    run->geometry = geometry;
    const tg_fft_desc desc = nn_geometry_fft(&fno->model, &geometry, run->images);
    TG_TRY(fno->be->ops->fft_create(fno->be, &desc, &run->fft));
    TG_TRY(TG_NEW(fno->ctx, TG_MEM_OTHER, run->blocks, fno->model.config.n_layers));
    TG_TRY(lay_out(&fno->model, fno->be, run, &activations, &workspace));
    TG_TRY(take(fno->be, TG_MEM_ACTIVATIONS, activations.bytes, &run->activations));
    TG_TRY(take(fno->be, TG_MEM_WORKSPACE, workspace.bytes, &run->workspace));
    if (training) {
        TG_TRY(take(fno->be, TG_MEM_GRADIENTS, nn_gradient_bytes(&fno->model), &run->gradients));
    }
    nn_plan_bind(&activations, run->activations);
    nn_plan_bind(&workspace, run->workspace);
    nn_run_alias(&fno->model, run);
    run->ready = true;
fail:
    nn_plan_free(&activations);
    nn_plan_free(&workspace);
    if (status != TG_OK) {
        nn_run_free(fno);
    }
    return status;
}
