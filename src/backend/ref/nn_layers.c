/* Neural operators, channels of a pixel: skip connections, channel MLPs and their gradients, one
 * pixel at a time. Sums over pixels are accumulated in double and added to the gradients once. */
#include <string.h>

#include "backend/check.h"
#include "backend/ref/ref.h"

static double times_beta(double beta, tg_dtype dtype, const void *y, int64_t i) {
    return beta == 0.0 ? 0.0 : beta * ref_get(dtype, y, i);
}

static double slope_at(bool through, tg_act act, tg_dtype dtype, const void *x, int64_t i) {
    return through && act != TG_ACT_NONE ? ref_act_slope(act, ref_get(dtype, x, i)) : 1.0;
}

/* ---- skip connections ---- */

/* S[o, i] */
static double skip_entry(const tg_skip *op, int64_t o, int64_t i) {
    switch (op->kind) {
    case TG_SKIP_MAP_IDENTITY:
        return o == i ? 1.0 : 0.0;
    case TG_SKIP_MAP_GATE:
        return o == i ? ref_get(op->dtype, op->weight, o) : 0.0;
    case TG_SKIP_MAP_LINEAR:
        return ref_get(op->dtype, op->weight, o * op->in + i);
    case TG_SKIP_MAP_NONE:
        break;
    }
    return 0.0;
}

/* Number of weights of a skip connection, whose sums of gradients precede those of the bias. */
static int64_t skip_weights(const tg_skip *op) {
    return op->kind == TG_SKIP_MAP_LINEAR ? op->out * op->in
           : op->kind == TG_SKIP_MAP_GATE ? op->out
                                          : 0;
}

size_t ref_skip_workspace(const tg_skip *op) {
    return op->backward ? (size_t)(skip_weights(op) + op->out) * sizeof(double) : 0;
}

static void skip_forward(const tg_skip *op) {
    const tg_dtype stored = tg_stored(op->dtype, op->store);
    const int64_t pixels = op->pixels;
    for (int64_t b = 0; b < op->batch; b++) {
        for (int64_t o = 0; o < op->out; o++) {
            for (int64_t p = 0; p < pixels; p++) {
                double sum = 0.0;
                for (int64_t i = 0; op->kind != TG_SKIP_MAP_NONE && i < op->in; i++) {
                    const double s = skip_entry(op, o, i);
                    if (s != 0.0) {
                        sum += s * ref_act(op->act,
                                           ref_get(stored, op->x, (b * op->in + i) * pixels + p));
                    }
                }
                const int64_t at = (b * op->out + o) * pixels + p;
                const double bias = op->bias ? ref_get(op->dtype, op->bias, o) : 0.0;
                ref_put(stored, op->y, at,
                        times_beta(op->beta, stored, op->y, at) + op->alpha * sum + bias);
            }
        }
    }
}

static void skip_weight_sums(const tg_skip *op, double *weights, double *biases) {
    const int64_t pixels = op->pixels;
    const tg_dtype stored = tg_stored(op->dtype, op->store);
    memset(weights, 0, (size_t)skip_weights(op) * sizeof *weights);
    memset(biases, 0, (size_t)op->out * sizeof *biases);
    for (int64_t b = 0; b < op->batch; b++) {
        for (int64_t o = 0; o < op->out; o++) {
            const bool gate = op->kind == TG_SKIP_MAP_GATE;
            for (int64_t p = 0; p < pixels; p++) {
                const double dy = ref_get(stored, op->dy, (b * op->out + o) * pixels + p);
                biases[o] += dy;
                const int64_t first = gate ? o : 0;
                const int64_t last = gate ? o + 1 : op->kind == TG_SKIP_MAP_LINEAR ? op->in : 0;
                for (int64_t i = first; op->dweight && i < last; i++) {
                    const double x = ref_get(stored, op->x, (b * op->in + i) * pixels + p);
                    weights[gate ? o : o * op->in + i] += op->alpha * dy * ref_act(op->act, x);
                }
            }
        }
    }
}

static void skip_backward(const tg_skip *op) {
    const tg_dtype stored = tg_stored(op->dtype, op->store);
    if (op->dweight || op->dbias) {
        double *weights = op->workspace, *biases = weights + skip_weights(op);
        skip_weight_sums(op, weights, biases);
        ref_add_sums(op->dtype, skip_weights(op), weights, op->dweight);
        ref_add_sums(op->dtype, op->out, biases, op->dbias);
    }
    const int64_t pixels = op->pixels;
    for (int64_t b = 0; op->dx && b < op->batch; b++) {
        for (int64_t i = 0; i < op->in; i++) {
            for (int64_t p = 0; p < pixels; p++) {
                double sum = 0.0;
                for (int64_t o = 0; o < op->out; o++) {
                    const double s = skip_entry(op, o, i);
                    if (s != 0.0) {
                        sum += s * ref_get(stored, op->dy, (b * op->out + o) * pixels + p);
                    }
                }
                const int64_t at = (b * op->in + i) * pixels + p;
                const double slope = slope_at(op->through, op->act, stored, op->x, at);
                ref_put(stored, op->dx, at,
                        (times_beta(op->beta, stored, op->dx, at) + op->alpha * sum) * slope);
            }
        }
    }
}

/* ---- channel MLP ---- */

/* Scratch of one pixel of a channel MLP, and sums over pixels. Arrays in the workspace. */
typedef struct pixel {
    double *u;                 /* (in): act(x) */
    double *pre;               /* (hidden): w1 u + b1 */
    double *h;                 /* (hidden): D1 gelu(pre) */
    double *dy;                /* (out): alpha D2 dy */
    double *dpre;              /* (hidden) */
    double *y;                 /* (out): f(u) */
    double *w1, *b1, *w2, *b2; /* sums for the gradients */
} pixel;

static int64_t mlp_weights(const tg_mlp *op) {
    return op->hidden * (op->in + 1) + op->out * (op->hidden + 1);
}

size_t ref_mlp_workspace(const tg_mlp *op) {
    const int64_t one = op->in + 3 * op->hidden + 2 * op->out;
    return (size_t)(one + (op->backward ? mlp_weights(op) : 0)) * sizeof(double);
}

static pixel lay_out(const tg_mlp *op) {
    pixel px = {.u = op->workspace};
    px.pre = px.u + op->in;
    px.h = px.pre + op->hidden;
    px.dpre = px.h + op->hidden;
    px.dy = px.dpre + op->hidden;
    px.y = px.dy + op->out;
    px.w1 = px.y + op->out;
    px.b1 = px.w1 + op->hidden * op->in;
    px.w2 = px.b1 + op->hidden;
    px.b2 = px.w2 + op->out * op->hidden;
    return px;
}

/* The dropout factor of element (b, c, p) of the hidden layer (or of the output). */
static double survival(const tg_mlp *op, bool output, int64_t b, int64_t c, int64_t p) {
    if (op->dropout == 0.0) {
        return 1.0;
    }
    const int64_t first = output ? op->batch * op->hidden * op->pixels : 0;
    const int64_t channels = output ? op->out : op->hidden;
    const uint64_t index = op->stream + (uint64_t)(first + (b * channels + c) * op->pixels + p);
    return tg_rng_uniform(&op->rng, index) >= op->dropout ? 1.0 / (1.0 - op->dropout) : 0.0;
}

static tg_dtype x_dtype(const tg_mlp *op) {
    return tg_stored(op->dtype, op->x_store);
}

static tg_dtype y_dtype(const tg_mlp *op) {
    return tg_stored(op->dtype, op->y_store);
}

static tg_act hidden_act(const tg_mlp *op) {
    return op->hidden_act == TG_ACT_NONE ? TG_ACT_GELU : op->hidden_act;
}

static void pixel_forward(const tg_mlp *op, int64_t b, int64_t p, pixel *px) {
    for (int64_t i = 0; i < op->in; i++) {
        px->u[i] = ref_act(op->act, ref_get(x_dtype(op), op->x, (b * op->in + i) * op->pixels + p));
    }
    for (int64_t j = 0; j < op->hidden; j++) {
        px->pre[j] = ref_get(op->dtype, op->b1, j);
        for (int64_t i = 0; i < op->in; i++) {
            px->pre[j] += ref_get(op->dtype, op->w1, j * op->in + i) * px->u[i];
        }
        px->h[j] = ref_act(hidden_act(op), px->pre[j]) * survival(op, false, b, j, p);
    }
    for (int64_t o = 0; o < op->out; o++) {
        px->y[o] = ref_get(op->dtype, op->b2, o);
        for (int64_t j = 0; j < op->hidden; j++) {
            px->y[o] += ref_get(op->dtype, op->w2, o * op->hidden + j) * px->h[j];
        }
        px->y[o] *= survival(op, true, b, o, p);
    }
}

static void pixel_store(const tg_mlp *op, int64_t b, int64_t p, const pixel *px) {
    for (int64_t o = 0; o < op->out; o++) {
        const int64_t at = (b * op->out + o) * op->pixels + p;
        double y = times_beta(op->beta, y_dtype(op), op->y, at) + op->alpha * px->y[o];
        if (op->add) {
            const double gate = op->gate ? ref_get(op->dtype, op->gate, o) : 1.0;
            y += gate * ref_get(y_dtype(op), op->add, at);
        }
        ref_put(y_dtype(op), op->y, at, y);
        if (op->activated) {
            ref_put(y_dtype(op), op->activated, at, ref_act(TG_ACT_GELU, y));
        }
    }
}

static void mlp_forward(const tg_mlp *op) {
    pixel px = lay_out(op);
    for (int64_t b = 0; b < op->batch; b++) {
        for (int64_t p = 0; p < op->pixels; p++) {
            pixel_forward(op, b, p, &px);
            pixel_store(op, b, p, &px);
        }
    }
}

/* Gradients at the layers of a pixel after its forward pass, added to the sums. */
static void pixel_backward(const tg_mlp *op, int64_t b, int64_t p, pixel *px) {
    for (int64_t o = 0; o < op->out; o++) {
        px->dy[o] = op->alpha * survival(op, true, b, o, p) *
                    ref_get(y_dtype(op), op->dy, (b * op->out + o) * op->pixels + p);
        px->b2[o] += px->dy[o];
        for (int64_t j = 0; j < op->hidden; j++) {
            px->w2[o * op->hidden + j] += px->dy[o] * px->h[j];
        }
    }
    for (int64_t j = 0; j < op->hidden; j++) {
        double dh = 0.0;
        for (int64_t o = 0; o < op->out; o++) {
            dh += ref_get(op->dtype, op->w2, o * op->hidden + j) * px->dy[o];
        }
        px->dpre[j] = dh * survival(op, false, b, j, p) * ref_act_slope(hidden_act(op), px->pre[j]);
        px->b1[j] += px->dpre[j];
        for (int64_t i = 0; i < op->in; i++) {
            px->w1[j * op->in + i] += px->dpre[j] * px->u[i];
        }
    }
}

static void pixel_input_gradient(const tg_mlp *op, int64_t b, int64_t p, const pixel *px) {
    for (int64_t i = 0; i < op->in; i++) {
        double du = 0.0;
        for (int64_t j = 0; j < op->hidden; j++) {
            du += ref_get(op->dtype, op->w1, j * op->in + i) * px->dpre[j];
        }
        const int64_t at = (b * op->in + i) * op->pixels + p;
        const double slope = slope_at(op->through, op->act, x_dtype(op), op->x, at);
        ref_put(x_dtype(op), op->dx, at,
                (times_beta(op->beta, x_dtype(op), op->dx, at) + du) * slope);
    }
}

static void mlp_backward(const tg_mlp *op) {
    pixel px = lay_out(op);
    memset(px.w1, 0, (size_t)mlp_weights(op) * sizeof(double));
    for (int64_t b = 0; b < op->batch; b++) {
        for (int64_t p = 0; p < op->pixels; p++) {
            pixel_forward(op, b, p, &px);
            pixel_backward(op, b, p, &px);
            if (op->dx) {
                pixel_input_gradient(op, b, p, &px);
            }
        }
    }
    ref_add_sums(op->dtype, op->hidden * op->in, px.w1, op->dw1);
    ref_add_sums(op->dtype, op->hidden, px.b1, op->db1);
    ref_add_sums(op->dtype, op->out * op->hidden, px.w2, op->dw2);
    ref_add_sums(op->dtype, op->out, px.b2, op->db2);
}

tg_status ref_add_skip(tg_backend *be, const tg_skip *op) {
    TG_CALL(tg_check_skip(be->ctx, op));
    tg_path_report_skip(be, op, op->backward, (tg_path){"reference", "loops"});
    (op->backward ? skip_backward : skip_forward)(op);
    return TG_OK;
}

tg_status ref_mlp(tg_backend *be, const tg_mlp *op) {
    TG_CALL(tg_check_mlp(be->ctx, op));
    tg_path_report_mlp(be, op, op->backward, (tg_path){"reference", "loops"});
    (op->backward ? mlp_backward : mlp_forward)(op);
    return TG_OK;
}
