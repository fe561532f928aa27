/* Graph kernels, one pair of a point and a query at a time: the whole kernel in double, each pair
 * found by its distance, without cell lists. */
#include <string.h>

#include "backend/gno.h"
#include "backend/gno_math.h"
#include "backend/ref/ref.h"

/* Scratch of one pair, and sums of gradients; all doubles of the workspace. */
typedef struct room {
    tg_gno_sizes sizes;
    double *layer[TG_GNO_MAX_LAYERS + 1]; /* [l] (width[l]): inputs; of hidden layers before GELU */
    double *slope;                        /* (widest): gradient at a layer .. */
    double *below;                        /* .. and at the one below */
    double *sum;                          /* (out_channels) of a query */
    double *weights; /* gradients of the kernel, laid out like its parameters */
    double *values;  /* (batch, in_channels, points): of f */
} room;

static int64_t widest(const tg_gno_sizes *s) {
    int64_t most = s->width[0];
    for (int l = 1; l <= s->layers; l++) {
        most = s->width[l] > most ? s->width[l] : most;
    }
    return most;
}

static int64_t value_count(const tg_gno *op) {
    return op->has_values ? op->batch * op->config->in_channels * op->points : 0;
}

size_t ref_gno_workspace(const tg_gno *op) {
    const tg_gno_sizes s = tg_gno_sizes_of(op->config, op->has_values);
    int64_t count = 2 * widest(&s) + op->config->out_channels;
    for (int l = 0; l <= s.layers; l++) {
        count += s.width[l];
    }
    count += op->backward ? tg_gno_weight_count(&s) + value_count(op) : 0;
    return (size_t)count * sizeof(double);
}

static room room_of(const tg_gno *op) {
    room r = {.sizes = tg_gno_sizes_of(op->config, op->has_values)};
    double *next = op->workspace;
    for (int l = 0; l <= r.sizes.layers; l++) {
        r.layer[l] = next;
        next += r.sizes.width[l];
    }
    r.slope = next;
    r.below = r.slope + widest(&r.sizes);
    r.sum = r.below + widest(&r.sizes);
    r.weights = r.sum + op->config->out_channels;
    r.values = r.weights + tg_gno_weight_count(&r.sizes);
    return r;
}

static int64_t value_at(const tg_gno *op, int64_t b, int64_t c, int64_t point) {
    return (b * op->config->in_channels + c) * op->points + point;
}

static double value(const tg_gno *op, int64_t b, int64_t c, int64_t point) {
    return ref_act(op->act,
                   ref_get(tg_stored(op->dtype, op->f_store), op->f, value_at(op, b, c, point)));
}

/* Whether the point at a place is near the query, and its weight. */
static bool is_near(const tg_gno *op, int64_t i, int64_t place, double *weight) {
    const tg_neighbours *near = op->neighbours;
    double distance2 = 0.0;
    for (int d = 0; d < near->dim; d++) {
        const double x = near->query[i][d] - near->at[place][d];
        distance2 += x * x;
    }
    *weight = tg_gno_weight_at(op->config, distance2);
    return distance2 <= near->radius * near->radius;
}

/* A layer's input after its activation. */
static double seen(int l, double x) {
    return ref_act(l == 0 ? TG_ACT_NONE : TG_ACT_GELU, x);
}

/* kappa of a pair, in the last layer. */
static void evaluate(const tg_gno *op, const room *r, int64_t b, int64_t i, int64_t place) {
    const tg_neighbours *near = op->neighbours;
    const tg_gno_sizes *s = &r->sizes;
    tg_gno_embed(op->config, near->at[place], r->layer[0]);
    tg_gno_embed(op->config, near->query[i], r->layer[0] + s->embedded);
    for (int64_t c = 0; s->reads_values && c < op->config->in_channels; c++) {
        r->layer[0][2 * s->embedded + c] = value(op, b, c, near->number[place]);
    }
    for (int l = 0; l < s->layers; l++) {
        for (int64_t o = 0; o < s->width[l + 1]; o++) {
            double sum = ref_get(op->dtype, op->bias[l], o);
            for (int64_t k = 0; k < s->width[l]; k++) {
                sum += ref_get(op->dtype, op->weight[l], o * s->width[l] + k) *
                       seen(l, r->layer[l][k]);
            }
            r->layer[l + 1][o] = sum;
        }
    }
}

static void gno_forward(const tg_gno *op) {
    const room r = room_of(op);
    const int64_t channels = op->config->out_channels;
    for (int64_t at = 0; at < op->batch * op->queries; at++) {
        const int64_t b = at / op->queries, i = at % op->queries;
        memset(r.sum, 0, (size_t)channels * sizeof *r.sum);
        for (int64_t place = 0; place < op->points; place++) {
            double weight;
            if (!is_near(op, i, place, &weight)) {
                continue;
            }
            evaluate(op, &r, b, i, place);
            for (int64_t c = 0; c < channels; c++) {
                const double f =
                    r.sizes.times_values ? value(op, b, c, op->neighbours->number[place]) : 1.0;
                r.sum[c] += weight * r.layer[r.sizes.layers][c] * f;
            }
        }
        for (int64_t c = 0; c < channels; c++) {
            ref_put(op->dtype, op->y, (b * channels + c) * op->queries + i,
                    tg_gno_scale(op, i) * r.sum[c]);
        }
    }
}

/* ---- backward ---- */

/* Gradients of the layers from that at the output, in r->slope. */
static void back_through(const room *r, const tg_gno *op) {
    const tg_gno_sizes *s = &r->sizes;
    double *weights = r->weights + tg_gno_weight_count(s);
    for (int l = s->layers - 1; l >= 0; l--) {
        weights -= (s->width[l] + 1) * s->width[l + 1];
        double *bias = weights + s->width[l] * s->width[l + 1];
        memset(r->below, 0, (size_t)s->width[l] * sizeof *r->below);
        for (int64_t o = 0; o < s->width[l + 1]; o++) {
            bias[o] += r->slope[o];
            for (int64_t k = 0; k < s->width[l]; k++) {
                weights[o * s->width[l] + k] += r->slope[o] * seen(l, r->layer[l][k]);
                r->below[k] += ref_get(op->dtype, op->weight[l], o * s->width[l] + k) * r->slope[o];
            }
        }
        for (int64_t k = 0; k < s->width[l]; k++) {
            r->slope[k] =
                l == 0 ? r->below[k] : r->below[k] * ref_act_slope(TG_ACT_GELU, r->layer[l][k]);
        }
    }
}

static void back_pair(const tg_gno *op, const room *r, int64_t b, int64_t i, int64_t place,
                      double weight) {
    const int64_t channels = op->config->out_channels, point = op->neighbours->number[place];
    const tg_gno_sizes *s = &r->sizes;
    evaluate(op, r, b, i, place);
    for (int64_t c = 0; c < channels; c++) {
        const double dy = weight * tg_gno_scale(op, i) *
                          ref_get(op->dtype, op->dy, (b * channels + c) * op->queries + i);
        r->slope[c] = s->times_values ? dy * value(op, b, c, point) : dy;
        if (s->times_values) {
            r->values[value_at(op, b, c, point)] += dy * r->layer[s->layers][c];
        }
    }
    back_through(r, op);
    for (int64_t c = 0; s->reads_values && c < op->config->in_channels; c++) {
        r->values[value_at(op, b, c, point)] += r->slope[2 * s->embedded + c];
    }
}

static void gno_backward(const tg_gno *op) {
    const room r = room_of(op);
    const tg_dtype stored = tg_stored(op->dtype, op->f_store);
    memset(r.weights, 0, (size_t)tg_gno_weight_count(&r.sizes) * sizeof *r.weights);
    memset(r.values, 0, (size_t)value_count(op) * sizeof *r.values);
    for (int64_t at = 0; at < op->batch * op->queries * op->points; at++) {
        const int64_t place = at % op->points, i = at / op->points % op->queries;
        double weight;
        if (is_near(op, i, place, &weight)) {
            back_pair(op, &r, at / op->points / op->queries, i, place, weight);
        }
    }
    const double *sums = r.weights;
    for (int l = 0; l < r.sizes.layers; l++) {
        const int64_t weights = r.sizes.width[l] * r.sizes.width[l + 1];
        ref_add_sums(op->dtype, weights, sums, op->dweight[l]);
        ref_add_sums(op->dtype, r.sizes.width[l + 1], sums + weights, op->dbias[l]);
        sums += weights + r.sizes.width[l + 1];
    }
    for (int64_t k = 0; op->df && k < value_count(op); k++) {
        ref_put(stored, op->df, k, r.values[k] * ref_act_slope(op->act, ref_get(stored, op->f, k)));
    }
}

/* ---- neighbours, by cell lists for all others ---- */

tg_status ref_neighbours_build(tg_backend *be, tg_neighbours *s, double radius,
                               const tg_tensor *points, const tg_tensor *queries) {
    return tg_neighbours_build(be->ctx, be->threads, s, radius, points, queries);
}

tg_status ref_neighbours_list(tg_backend *be, const tg_neighbours *s, int64_t *index) {
    tg_neighbours_numbers(s, be->threads, index);
    return TG_OK;
}

tg_status ref_gno(tg_backend *be, const tg_gno *op) {
    TG_CALL(tg_check_real(be->ctx, "gno", op->dtype));
    (op->backward ? gno_backward : gno_forward)(op);
    return TG_OK;
}
