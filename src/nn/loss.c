/* Losses: sums of weighted norms, parsed from text and passed to the backend term by term. */
#include "tgrad/loss.h"

#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/minmax.h"
#include "dist/comm.h"
#include "nn/network.h"

enum { HIGHEST_ORDER = 4 };  /* of a Sobolev norm */
enum { HIGHEST_POWER = 16 }; /* |e|^p stays in the range of f64 for |e| in 1e-19 .. 1e19 */

_Static_assert((int)TG_LOSS_WEIGHTS == (int)TG_LOSS_MAX_CHANNELS, "an op has all weights");

void tg_loss_config_init(tg_loss_config *config, size_t size) {
    const tg_loss_config defaults = {.size = sizeof defaults,
                                     .terms = 1,
                                     .term = {{.kind = TG_LOSS_LP, .p = 2.0, .weight = 1.0}},
                                     .physics_weight = 0.1,
                                     .physics_forcing = 1.0,
                                     .physics_viscosity = 0.01,
                                     .physics_length = 1.0,
                                     .x_scale = 1.0,
                                     .y_scale = 1.0};
    tg_sized_init(config, size, &defaults, sizeof defaults);
}

tg_status nn_loss_config_read(tg_context *ctx, const tg_loss_config *config, tg_loss_config *out) {
    *out = tg_loss_config_default();
    return TG_SIZED_READ(ctx, tg_loss_config, terms, config, out);
}

static const char *skip_space(const char *text) {
    return text + strspn(text, " \t");
}

/* Parses a number in low .. high at *text and advances it. */
static bool take_number(const char **text, double low, double high, double *out) {
    char *end = NULL;
    *out = strtod(*text, &end);
    const bool is_good = end != *text && *out >= low && *out <= high;
    *text = end;
    return is_good;
}

/* Parses "[weight *] [abs_] (h1 | hs<s> | l<p>)" at *text and advances it. */
static bool take_term(const char **text, tg_loss_term *term) {
    const char *at = skip_space(*text);
    *term = (tg_loss_term){.p = 2.0, .weight = 1.0};
    if (*at != 'l' && *at != 'h' && *at != 'a') {
        if (!take_number(&at, 0.0, 1e12, &term->weight) || term->weight == 0.0 ||
            *(at = skip_space(at)) != '*') {
            return false;
        }
        at = skip_space(at + 1);
    }
    if (strncmp(at, "abs_", 4) == 0) {
        term->absolute = true;
        at += 4;
    }
    if (strncmp(at, "h1", 2) == 0) {
        term->kind = TG_LOSS_H1;
        at += 2;
    } else if (strncmp(at, "hs", 2) == 0) {
        term->kind = TG_LOSS_HS;
        at += 2;
        if (!take_number(&at, -HIGHEST_ORDER, HIGHEST_ORDER, &term->p)) {
            return false;
        }
    } else if (*at++ != 'l' || !take_number(&at, 1.0, HIGHEST_POWER, &term->p)) {
        return false;
    }
    *text = skip_space(at);
    return true;
}

tg_status tg_loss_config_parse(tg_context *ctx, const char *key, const char *text,
                               tg_loss_config *out) {
    TG_NEED(ctx, key, text, out);
    tg_loss_config config = tg_loss_config_default();
    config.terms = 0;
    const char *at = text;
    bool good = true;
    while (good) {
        good = config.terms < TG_LOSS_MAX_TERMS && take_term(&at, &config.term[config.terms++]);
        if (!good || *at != '+') {
            break;
        }
        at++;
    }
    if (!good || *at) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "%s: '%.80s' is not a loss; l2, h1, l<p> with p in 1 .. %d, hs<s> with s in "
                       "-%d .. %d, abs_l2, abs_h1 and sums of up to %d such as l2 + 0.1*h1 are",
                       key, text, HIGHEST_POWER, HIGHEST_ORDER, HIGHEST_ORDER, TG_LOSS_MAX_TERMS);
    }
    *out = config;
    return TG_OK;
}

/* The arguments of the slot, without outputs. */
static tg_loss_op describe(tg_dtype dtype, const tg_shape *shape, const void *pred,
                           const void *target) {
    tg_loss_op op = {.dtype = tg_dtype_real(dtype),
                     .components = tg_dtype_is_complex(dtype) ? 2 : 1,
                     .images = shape->dim[0] * shape->dim[1],
                     .ndim = shape->ndim - 2,
                     .pred = pred,
                     .target = target};
    memcpy(op.grid, shape->dim + 2, sizeof op.grid);
    return op;
}

unsigned nn_loss_parts(const tg_loss_config *config) {
    unsigned parts = config->physics == TG_PHYSICS_NONE ? 0 : NN_LOSS_RESIDUAL;
    parts |= config->physics == TG_PHYSICS_NS ? NN_LOSS_FLOW : 0;
    for (int i = 0; i < config->terms && i < TG_LOSS_MAX_TERMS; i++) {
        parts |= config->term[i].kind == TG_LOSS_HS   ? NN_LOSS_SPECTRAL
                 : config->term[i].kind == TG_LOSS_H1 ? NN_LOSS_DIFFERENCES
                                                      : 0;
    }
    return parts;
}

static tg_status check_loss(tg_backend *be, const tg_loss_config *config, int64_t channels) {
    if (config->terms < 1 || config->terms > TG_LOSS_MAX_TERMS) {
        return tg_fail(be->ctx, TG_E_CONFIG, "a loss of %d terms; 1 .. %d are possible",
                       config->terms, TG_LOSS_MAX_TERMS);
    }
    if (config->channels == 0) {
        return TG_OK;
    }
    if (config->channels != channels || config->channels > TG_LOSS_MAX_CHANNELS) {
        return tg_fail(be->ctx, TG_E_CONFIG,
                       "opt.loss_weights: %d weights, but the network has %lld output channel%s; "
                       "one weight for each is needed, for up to %d channels",
                       config->channels, (long long)channels, channels == 1 ? "" : "s",
                       TG_LOSS_MAX_CHANNELS);
    }
    bool has_weight = false;
    for (int i = 0; i < config->channels; i++) {
        const double weight = config->channel_weight[i];
        if (!(weight >= 0.0 && weight <= 1e12)) {
            return tg_fail(be->ctx, TG_E_CONFIG,
                           "opt.loss_weights: expected numbers in 0 .. 1e12, found %g", weight);
        }
        has_weight = has_weight || weight > 0.0;
    }
    if (!has_weight) {
        return tg_fail(be->ctx, TG_E_CONFIG,
                       "opt.loss_weights: all of them are 0, which leaves nothing to learn");
    }
    return TG_OK;
}

tg_status nn_loss_fits(tg_backend *be, const tg_loss_config *config, const tg_fno_config *network) {
    if (network->architecture == TG_ARCHITECTURE_GINO && nn_loss_parts(config) & NN_LOSS_SPECTRAL) {
        return tg_fail(be->ctx, TG_E_UNSUPPORTED,
                       "opt.training_loss: hs<s> needs fields on a grid; the queries of a gino are "
                       "points");
    }
    TG_CALL(check_loss(be, config, network->out_channels));
    return nn_physics_check(be, config, network);
}

nn_traffic nn_loss_sent(const tg_loss_config *config, tg_dtype dtype, const tg_shape *shape,
                        const nn_split *split) {
    const tg_loss_op op = describe(dtype, shape, NULL, NULL);
    const nn_traffic edges = nn_slab_edges_sent(&op, split, shape->dim[2]);
    nn_traffic sent = {.bytes = (size_t)(config->terms * 2 * op.images) * sizeof(double),
                       .messages = config->terms * tg_sum_hops(split->parts)};
    if (nn_loss_parts(config) & NN_LOSS_DIFFERENCES) {
        sent.bytes += edges.bytes;
        sent.messages += edges.messages;
    }
    return sent;
}

tg_status nn_loss(tg_backend *be, const tg_loss_config *config, tg_dtype dtype,
                  const tg_shape *shape, const void *pred, const void *target, nn_loss_work *work,
                  double *value, double grad_scale, void *dpred) {
    TG_CALL(check_loss(be, config, shape->dim[1]));
    tg_loss_op op = describe(dtype, shape, pred, target);
    op.channels = config->channels;
    memcpy(op.channel_weight, config->channel_weight, sizeof op.channel_weight);
    op.grad_scale = grad_scale;
    op.dpred = dpred;
    op.value = value;
    const unsigned parts = nn_loss_parts(config);
    if (parts & NN_LOSS_SPECTRAL) {
        tg_loss_op most = op;
        most.images = work->samples * shape->dim[1];
        TG_CALL(nn_spectral_prepare(be, &most, &work->spectral));
    }
    if (work->slab.split && parts & NN_LOSS_DIFFERENCES) {
        TG_CALL(nn_slab_exchange(be, &work->slab, &op));
    }
    for (int i = 0; i < config->terms; i++) {
        const tg_loss_term *term = &config->term[i];
        op.norm = term->kind == TG_LOSS_H1 ? TG_LOSS_NORM_H1 : TG_LOSS_NORM_LP;
        op.p = term->p;
        op.relative = !term->absolute;
        op.weight = term->weight;
        op.beta = i == 0 ? 0.0 : 1.0;
        TG_CALL(term->kind == TG_LOSS_HS ? nn_spectral_add(be, &work->spectral, &op)
                : work->slab.split       ? nn_slab_loss(be, &work->slab, &op)
                                         : be->ops->loss(be, &op));
    }
    return TG_OK;
}

void nn_loss_work_free(tg_backend *be, nn_loss_work *work) {
    nn_transforms_free(be, &work->spectral.all);
    nn_residual_free(be, &work->residual);
    if (be) {
        be->ops->release(be, work->x);
    }
    *work = (nn_loss_work){0};
}

tg_status nn_loss_workspace(tg_backend *be, unsigned parts, tg_dtype dtype, const tg_shape *shape,
                            size_t *bytes, size_t *host) {
    const tg_loss_op op = describe(dtype, shape, NULL, NULL);
    *bytes = *host = 0;
    if (parts & NN_LOSS_SPECTRAL) {
        TG_CALL(nn_spectral_plan(be, &op, bytes, host));
    }
    if (parts & NN_LOSS_RESIDUAL) {
        *bytes += nn_residual_bytes(shape->dim[0], tg_product(op.ndim, op.grid));
    }
    if (parts & NN_LOSS_FLOW) {
        size_t flow = 0, beside = 0;
        TG_CALL(nn_flow_plan(be, shape->dim[0], op.grid[0], op.grid[1], &flow, &beside));
        *bytes += flow;
        *host += beside;
    }
    return TG_OK;
}

static tg_status check_fields(const tg_backend *be, const tg_tensor *pred, const tg_tensor *target,
                              const tg_tensor *dpred) {
    tg_context *ctx = be->ctx;
    const tg_place place = be->ops->place;
    if (pred->place != place || target->place != place || (dpred && dpred->place != place)) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "loss: pred, target and gradient must be in memory of backend %s "
                       "(tg_backend_tensor makes such tensors, tg_backend_copy fills them)",
                       be->ops->name);
    }
    if (pred->dtype != target->dtype || (dpred && dpred->dtype != pred->dtype)) {
        return tg_fail(ctx, TG_E_DTYPE, "loss: pred is %s and target is %s",
                       tg_dtype_name(pred->dtype), tg_dtype_name(target->dtype));
    }
    if (pred->shape.ndim < 3 || pred->shape.ndim > 5 ||
        !tg_shape_equal(&pred->shape, &target->shape) ||
        (dpred && !tg_shape_equal(&pred->shape, &dpred->shape))) {
        char a[96], b[96];
        return tg_fail(ctx, TG_E_SHAPE,
                       "loss: pred is %s and target is %s; (batch, channels, grid..) with 1 to 3 "
                       "dimensions and the same for both is needed",
                       tg_shape_text(&pred->shape, a, sizeof a),
                       tg_shape_text(&target->shape, b, sizeof b));
    }
    return TG_OK;
}

tg_status tg_loss_eval(tg_context *ctx, const tg_loss_config *config, const tg_tensor *pred,
                       const tg_tensor *target, double *loss, tg_tensor *dpred) {
    TG_NEED(ctx, ctx, config, pred, target, loss);
    tg_status status = TG_OK;
    tg_backend *be = NULL;
    nn_loss_work work = {0};
    tg_loss_config full;
    TG_TRY(nn_loss_config_read(ctx, config, &full));
    if (full.physics != TG_PHYSICS_NONE) {
        TG_TRY(tg_fail(ctx, TG_E_ARGUMENT,
                       "loss: the residual of an equation needs x: tg_fno_loss_backward or tg_step "
                       "have it"));
    }
    TG_TRY(tg_backend_get(ctx, &be));
    TG_TRY(check_fields(be, pred, target, dpred));
    work.samples = pred->shape.dim[0];
    TG_TRY(be->ops->fill(be, TG_F64, 1, (tg_scalar){0}, be->cell));
    TG_TRY(nn_loss(be, &full, pred->dtype, &pred->shape, pred->data, target->data, &work, be->cell,
                   1.0, dpred ? dpred->data : NULL));
    TG_TRY(be->ops->download(be, loss, be->cell, sizeof *loss));
fail:
    nn_loss_work_free(be, &work);
    return status;
}

size_t tg_loss_squares_bytes(tg_dtype dtype, const tg_shape *shape) {
    const tg_loss_op op = describe(dtype, shape, NULL, NULL);
    return nn_slab_loss_bytes(&op);
}

tg_status tg_loss_squares(tg_context *ctx, tg_loss_kind kind, const tg_tensor *pred,
                          const tg_tensor *target, const nn_loss_slab *slab, tg_tensor *squares) {
    tg_backend *be = NULL;
    TG_CALL(tg_backend_get(ctx, &be));
    TG_CALL(check_fields(be, pred, target, NULL));
    if (kind == TG_LOSS_HS) {
        return tg_fail(ctx, TG_E_ARGUMENT, "squares of a loss: expected the norm lp or h1");
    }
    const tg_shape needed = {.ndim = 3, .dim = {pred->shape.dim[0], pred->shape.dim[1], 2}};
    if (squares->dtype != TG_F64 || !tg_shape_equal(&squares->shape, &needed)) {
        char a[96], b[96];
        return tg_fail(ctx, TG_E_SHAPE, "squares of a loss: expected f64 %s, found %s %s",
                       tg_shape_text(&needed, a, sizeof a), tg_dtype_name(squares->dtype),
                       tg_shape_text(&squares->shape, b, sizeof b));
    }
    tg_loss_op op = describe(pred->dtype, &pred->shape, pred->data, target->data);
    op.norm = kind == TG_LOSS_H1 ? TG_LOSS_NORM_H1 : TG_LOSS_NORM_LP;
    op.p = 2.0;
    op.relative = true;
    op.powers = squares->data;
    if (slab) {
        TG_CALL(kind == TG_LOSS_H1 ? nn_slab_exchange(be, slab, &op) : TG_OK);
        nn_slab_set(slab, &op);
    }
    return be->ops->loss(be, &op);
}
