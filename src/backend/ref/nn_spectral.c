/* Neural operators: the contraction of spectra with a spectral weight, and norms. */
#include "backend/ref/ref.h"

tg_status ref_spectral_contract(tg_backend *be, const tg_spectral *op) {
    TG_CALL(tg_check_spectral(be->ctx, op));
    const tg_dtype stored = tg_stored(op->dtype, op->store);
    const tg_dtype weights = tg_stored(op->dtype, op->weight_store);
    const int64_t from = op->adjoint ? op->out : op->in, to = op->adjoint ? op->in : op->out;
    for (int64_t b = 0; b < op->batch; b++) {
        for (int64_t t = 0; t < to; t++) {
            for (int64_t k = 0; k < op->modes; k++) {
                tg_scalar sum = {0};
                for (int64_t f = 0; f < from; f++) {
                    const int64_t at = op->adjoint ? t * op->out + f : f * op->out + t;
                    const tg_scalar w = tg_load(weights, op->weight, at * op->modes + k);
                    const tg_scalar x = tg_load(stored, op->src, (b * from + f) * op->modes + k);
                    sum = ref_add(sum, ref_mul(op->adjoint ? ref_conj(w) : w, x));
                }
                tg_store(stored, op->dst, (b * to + t) * op->modes + k, sum);
            }
        }
    }
    return TG_OK;
}

/* Groups of a norm: runs of `size` numbers of one sample, all of it or one channel. */
static int64_t group_size(const tg_norm *op) {
    return op->per_channel ? op->pixels : op->channels * op->pixels;
}

static int64_t channel_of(const tg_norm *op, int64_t i) {
    return i / op->pixels % op->channels;
}

static double channel_value(const tg_norm *op, const void *values, int64_t i, double otherwise) {
    return values ? ref_get(op->dtype, values, channel_of(op, i)) : otherwise;
}

static tg_dtype stored(const tg_norm *op) {
    return tg_stored(op->dtype, op->store);
}

static void norm_measure(const tg_norm *op) {
    const int64_t size = group_size(op), all = op->batch * op->channels * op->pixels;
    for (int64_t first = 0; first < all; first += size) {
        double mean = 0.0, variance = 0.0;
        for (int64_t i = first; i < first + size; i++) {
            mean += ref_get(stored(op), op->x, i) / (double)size;
        }
        for (int64_t i = first; i < first + size; i++) {
            const double d = ref_get(stored(op), op->x, i) - mean;
            variance += d * d / (double)size;
        }
        op->stats[first / size * 2] = mean;
        op->stats[first / size * 2 + 1] = 1.0 / sqrt(variance + op->eps);
    }
}

static void norm_apply(const tg_norm *op) {
    const int64_t size = group_size(op), all = op->batch * op->channels * op->pixels;
    for (int64_t i = 0; i < all; i++) {
        const double *stats = op->stats + i / size * 2;
        const double n = (ref_get(stored(op), op->x, i) - stats[0]) * stats[1];
        ref_put(stored(op), op->y, i,
                n * channel_value(op, op->weight, i, 1.0) + channel_value(op, op->bias, i, 0.0));
    }
}

static void norm_forward(const tg_norm *op) {
    if (op->part != TG_NORM_APPLY) {
        norm_measure(op);
    }
    if (op->part != TG_NORM_MEASURE) {
        norm_apply(op);
    }
}

/* dweight[c] += sum dy n, dbias[c] += sum dy, n = the normalised x. */
static void norm_weight_sums(const tg_norm *op) {
    const int64_t size = group_size(op);
    for (int64_t c = 0; c < op->channels; c++) {
        double weight = 0.0, bias = 0.0;
        for (int64_t b = 0; b < op->batch; b++) {
            const int64_t first = (b * op->channels + c) * op->pixels;
            const double *stats = op->stats + first / size * 2;
            for (int64_t i = first; i < first + op->pixels; i++) {
                const double dy = ref_get(stored(op), op->dy, i);
                weight += dy * (ref_get(stored(op), op->x, i) - stats[0]) * stats[1];
                bias += dy;
            }
        }
        if (op->dweight) {
            ref_put(op->dtype, op->dweight, c, ref_get(op->dtype, op->dweight, c) + weight);
        }
        if (op->dbias) {
            ref_put(op->dtype, op->dbias, c, ref_get(op->dtype, op->dbias, c) + bias);
        }
    }
}

/* dx = (dn - mean(dn) - n mean(dn n)) / sqrt(variance + eps), dn = dy weight. */
static void norm_backward(const tg_norm *op) {
    if (op->part != TG_NORM_APPLY) {
        norm_weight_sums(op);
    }
    const int64_t size = group_size(op), all = op->batch * op->channels * op->pixels;
    for (int64_t first = 0; first < all; first += size) {
        const double mean = op->stats[first / size * 2], inverse = op->stats[first / size * 2 + 1];
        double sum = 0.0, sum_n = 0.0;
        for (int64_t i = first; i < first + size && op->part != TG_NORM_APPLY; i++) {
            const double dn =
                ref_get(stored(op), op->dy, i) * channel_value(op, op->weight, i, 1.0);
            sum += dn / (double)size;
            sum_n += dn * (ref_get(stored(op), op->x, i) - mean) * inverse / (double)size;
        }
        tg_norm_means(op, first / size, &sum, &sum_n);
        for (int64_t i = first; i < first + size && op->part != TG_NORM_MEASURE; i++) {
            const double dn =
                ref_get(stored(op), op->dy, i) * channel_value(op, op->weight, i, 1.0);
            const double n = (ref_get(stored(op), op->x, i) - mean) * inverse;
            ref_put(stored(op), op->dx, i, (dn - sum - n * sum_n) * inverse);
        }
    }
}

tg_status ref_norm(tg_backend *be, const tg_norm *op) {
    TG_CALL(tg_check_norm(be->ctx, op));
    (op->backward ? norm_backward : norm_forward)(op);
    return TG_OK;
}
