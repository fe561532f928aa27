/* Every buffer of a step with its life, placed in two arenas before the first step.
 *
 * The phases of a step: the input is embedded (0) and lifted (1); block l transforms, multiplies,
 * transforms back and mixes (forward_of(l) + 0 .. 3); then projection, loss, and the same backwards
 * with three phases per block; at the end the gradients of all spectral weights are handed over. A
 * buffer that training needs again lives until its backward phase, otherwise until its last use in
 * forward.
 *
 * What training keeps per block is the two sums before the GELUs and the kept modes of the input;
 * the input itself is the GELU of the sum before it and made again where it is needed. Backward
 * turns these into gradients where they lie.
 *
 *   activation_checkpoint  off: z1, z2 and the kept modes of every block
 *                        block: z2 and the kept modes; z1 is made again from them
 *                      minimal: the kept modes; z2 of the block before is made again from the
 *                               lifting on, block by block, without a forward transform
 *
 * With either of the last two the gradient on its way down stays where it is (nn_stays): what a
 * block needs beside it are two activations.
 *
 * At the end nothing is needed but the factors of the spectral gradients, which are small. Whoever
 * receives them works in the memory that the activations have left (tg_loan), so that a step holds
 * the larger of the two, not their sum. */
#include "nn/layers.h"

#include <stdio.h>

enum { FORWARD_PHASES = 4, BACKWARD_PHASES = 3 };
enum { TRANSFORM, MULTIPLY, INVERSE, MIX }; /* phases of a block's forward */
enum { UNMIX, UNTRANSFORM, UNSKIP };        /* and of its backward */
enum { PHASE_EMBED, PHASE_LIFT, PHASE_BLOCKS };

typedef struct schedule {
    int layers;
    int project, loss, unproject, unlift, send; /* phases after the blocks */
} schedule;

static schedule schedule_of(const nn_model *model) {
    schedule s = {.layers = (int)model->config.n_layers};
    s.project = PHASE_BLOCKS + FORWARD_PHASES * s.layers;
    s.loss = s.project + 1;
    s.unproject = s.loss + 1;
    s.unlift = s.unproject + 1 + BACKWARD_PHASES * s.layers;
    s.send = s.unlift + 1;
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

/* z2 of every block waits for backward; otherwise the next input is written over it. */
static bool keeps_z2(const nn_model *model, bool training) {
    return training && !nn_forgets(model);
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
    if (l > 0 && !keeps_z2(model, run->training)) {
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
    for (int l = 0; nn_stays(model) && l < layers; l++) {
        run->blocks[l].dx = run->dtop;
    }
    if (!run->geometry.pads) {
        run->dlifted = run->blocks[0].dx;
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
    const int top = nn_stays(o->model) ? s->unlift : backward_of(s, s->layers - 1) + UNSKIP;
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
    if (!last) {
        return keeps_z2(o->model, o->training) ? backward_of(s, l + 1) + UNSKIP
                                               : forward_of(l + 1) + MIX;
    }
    if (!o->training || o->g->pads) {
        return s->project;
    }
    if (nn_stays(o->model)) { /* it becomes dtop, and that every gradient below */
        return s->unlift;
    }
    return in_place(o->model) ? backward_of(s, l) + UNSKIP : s->unproject; /* dtop alone */
}

/* What checkpointing makes again in block l. */
static tg_status ask_again(const layout *o, nn_block_buffers *b, int l, int z1_dies) {
    tg_status status = TG_OK;
    const nn_model *model = o->model;
    const int backward = backward_of(&o->s, l);
    const int64_t size = padded_field(o);
    const int64_t modes = o->batch * model->config.hidden_channels * model->mode_count;
    if (nn_forgets(model) || (l == 0 && nn_lifts_again(model, o->g))) {
        TG_TRY(nn_plan_add(o->activations, &b->back_x, size, o->inside, backward + UNMIX,
                           backward + UNSKIP));
    }
    if (nn_forgets(model) && o->g->pads) {
        TG_TRY(nn_plan_add(o->activations, &b->back_lifted, field(o, model->config.hidden_channels),
                           o->inside, backward + UNMIX, backward + UNMIX));
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
    } else if (keeps_z2(model, training)) {
        TG_TRY(nn_plan_add(a, &b->x, size, o->inside, forward_of(l - 1) + MIX, forward + MIX));
    }
    TG_TRY(nn_plan_add(a, &b->spectrum, modes, o->complex, forward + TRANSFORM,
                       training ? s->send : forward + MULTIPLY));
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
    TG_TRY(nn_plan_add(a, &b->dspectrum, modes, o->complex, backward + UNTRANSFORM, s->send));
    TG_TRY(nn_plan_add(w, &b->dx_spectrum, modes, o->complex, backward + UNTRANSFORM,
                       backward + UNSKIP));
    if (!nn_stays(model)) {
        TG_TRY(nn_plan_add(a, &b->dx, size, o->inside, backward + UNTRANSFORM,
                           l > 0 ? backward_of(s, l - 1) + UNSKIP : s->unlift));
    }
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

/* Where the activations were, if they left room for it, and otherwise in the workspace. */
static tg_status lend(const layout *o, void **pointer, size_t bytes) {
    const int send = o->s.send;
    if (bytes == 0) {
        return TG_OK;
    }
    const bool fits = nn_plan_has_room(o->activations, bytes, send, send);
    return nn_plan_place(fits ? o->activations : o->workspace, pointer, bytes, send, send);
}

static tg_status lend_all(const layout *o, tg_loan *loan) {
    const bool work_first = loan->work_bytes > loan->dense_bytes; /* the larger one */
    tg_status status = TG_OK;
    loan->dense = loan->work = NULL;
    TG_TRY(work_first ? lend(o, &loan->work, loan->work_bytes) : TG_OK);
    TG_TRY(lend(o, &loan->dense, loan->dense_bytes));
    TG_TRY(work_first ? TG_OK : lend(o, &loan->work, loan->work_bytes));
fail:
    return status;
}

/* Where to look for room at the end: what lives then lies where it fits best, or side by side. */
typedef enum room { ROOM_AS_IT_COMES, ROOM_BY_ORDER, ROOMS } room;

static tg_status lay_out(const nn_model *model, tg_backend *be, nn_run *run, room order,
                         nn_plan *activations, nn_plan *workspace) {
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
    activations->count = workspace->count = 0;
    activations->end = order == ROOM_BY_ORDER ? o.s.send : 0;
    TG_TRY(ask_ends(&o, run));
    for (int l = 0; l < o.s.layers; l++) {
        TG_TRY(ask_block(&o, run, l));
    }
    TG_TRY(ask_scratch(&o, be, run));
    nn_plan_solve(activations);
    nn_plan_solve(workspace);
    TG_TRY(run->training ? lend_all(&o, &run->loan) : TG_OK);
fail:
    return status;
}

/* The smaller of both ways. */
tg_status nn_lay_out(const nn_model *model, tg_backend *be, nn_run *run, nn_plan *activations,
                     nn_plan *workspace) {
    size_t bytes[ROOMS] = {0};
    tg_status status = TG_OK;
    for (int i = 0; i < ROOMS; i++) {
        TG_TRY(lay_out(model, be, run, (room)i, activations, workspace));
        bytes[i] = activations->bytes + workspace->bytes;
    }
    if (bytes[ROOM_AS_IT_COMES] <= bytes[ROOM_BY_ORDER]) {
        TG_TRY(lay_out(model, be, run, ROOM_AS_IT_COMES, activations, workspace));
    }
fail:
    return status;
}

/* ---- names ---- */

int nn_phase_count(const nn_model *model) {
    return schedule_of(model).send + 1;
}

void nn_phase_describe(const nn_model *model, int phase, tg_fno_phase *out) {
    static const char *const forward[FORWARD_PHASES] = {"transform", "product with the weight",
                                                        "inverse transform", "mixing"};
    static const char *const backward[BACKWARD_PHASES] = {"mixing", "transforms", "skips"};
    const schedule s = schedule_of(model);
    const char *name = phase == PHASE_EMBED   ? "embedding"
                       : phase == PHASE_LIFT  ? "lifting"
                       : phase == s.project   ? "projection"
                       : phase == s.loss      ? "loss"
                       : phase == s.unproject ? "back through the projection"
                       : phase == s.unlift    ? "back through the lifting"
                       : phase == s.send      ? "spectral weights"
                                              : NULL;
    *out = (tg_fno_phase){.is_backward = phase > s.loss};
    out->sends = phase == s.unproject || phase >= s.unlift;
    out->sends_factors = phase == s.send;
    if (name) {
        snprintf(out->name, sizeof out->name, "%s", name);
    } else if (phase < s.project) {
        const int at = phase - PHASE_BLOCKS;
        snprintf(out->name, sizeof out->name, "block %d: %s", at / FORWARD_PHASES + 1,
                 forward[at % FORWARD_PHASES]);
    } else {
        const int at = phase - s.unproject - 1, part = at % BACKWARD_PHASES;
        snprintf(out->name, sizeof out->name, "back through block %d: %s",
                 s.layers - at / BACKWARD_PHASES, backward[part]);
        out->sends = part == UNMIX || part == UNSKIP;
    }
}
