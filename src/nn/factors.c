/* Ranks, shapes and chains of factorized spectral weights. */
#include "nn/model.h"

#include <math.h>
#include <stdio.h>

/* ---- ranks ---- */

typedef struct weight {
    int ndim;
    int64_t dim[NN_MAX_FACTORS], rank[NN_MAX_FACTORS + 1];
    double numbers; /* of the dense weight */
} weight;

/* Rounded to the nearest, at least 1. */
static int64_t whole(double rank) {
    const double rounded = nearbyint(rank);
    return rounded < 1.0 ? 1 : (int64_t)rounded;
}

static bool is_fixed(const tg_fno_config *config, int mode) {
    bool fixed = false;
    for (int i = 0; i < config->n_fixed_rank_modes; i++) {
        fixed = fixed || config->fixed_rank_modes[i] == mode;
    }
    return fixed;
}

/* Ranks c dim for all modes that are not fixed, for the share of numbers asked for: core and
 * factors grow with c. */
static void tucker_by_share(const tg_fno_config *config, weight *w) {
    double low = 0.0, high = config->rank[0] > 1.0 ? config->rank[0] : 1.0;
    for (int round = 0; round < 100; round++) {
        const double c = (low + high) / 2.0;
        double core = 1.0, factors = 0.0;
        for (int k = 0; k < w->ndim; k++) {
            const double scale = is_fixed(config, k) ? 1.0 : c, dim = (double)w->dim[k];
            core *= scale * dim;
            factors += scale * dim * dim;
        }
        *(core + factors < config->rank[0] * w->numbers ? &low : &high) = c;
    }
    for (int k = 0; k < w->ndim; k++) {
        w->rank[k] = is_fixed(config, k) ? w->dim[k] : whole(high * (double)w->dim[k]);
    }
}

/* Ranks in proportion to the mean of the two neighbouring sizes. */
static void tt_by_share(const tg_fno_config *config, weight *w) {
    double mean[NN_MAX_FACTORS], square = 0.0, linear;
    const int last = w->ndim - 1;
    for (int k = 0; k < last; k++) {
        mean[k] = (double)(w->dim[k] + w->dim[k + 1]) / 2.0;
        square += k > 0 ? mean[k - 1] * (double)w->dim[k] * mean[k] : 0.0;
    }
    linear = (double)w->dim[0] * mean[0] + (double)w->dim[last] * mean[last - 1];
    const double wanted = config->rank[0] * w->numbers;
    const double scale = (sqrt(linear * linear + 4.0 * square * wanted) - linear) / (2.0 * square);
    w->rank[0] = w->rank[w->ndim] = 1;
    for (int k = 0; k < last; k++) {
        w->rank[k + 1] = whole(scale * mean[k]);
    }
}

static void cp_by_share(const tg_fno_config *config, weight *w) {
    double sum = 0.0;
    for (int k = 0; k < w->ndim; k++) {
        sum += (double)w->dim[k];
    }
    w->rank[0] = whole(config->rank[0] * w->numbers / sum);
}

/* Number of ranks: one per mode of Tucker, one per end of a factor of TT, one for CP. */
static int ranks_of(tg_factorization form, int ndim) {
    return form == TG_FACTORIZATION_CP ? 1 : form == TG_FACTORIZATION_TT ? ndim + 1 : ndim;
}

static tg_status take_ranks(tg_context *ctx, const tg_fno_config *config, weight *w) {
    const tg_factorization form = config->factorization;
    const int wanted = ranks_of(form, w->ndim);
    for (int k = 0; k < config->n_fixed_rank_modes; k++) {
        if (config->fixed_rank_modes[k] >= w->ndim) {
            return tg_fail(ctx, TG_E_CONFIG,
                           "fno.fixed_rank_modes: %lld; the weight has modes 0 to %d",
                           (long long)config->fixed_rank_modes[k], w->ndim - 1);
        }
    }
    const bool is_share = config->n_rank == 1 && config->rank[0] != floor(config->rank[0]);
    if (is_share || (config->n_rank == 1 && config->rank[0] == 1.0)) {
        (form == TG_FACTORIZATION_TUCKER ? tucker_by_share
         : form == TG_FACTORIZATION_TT   ? tt_by_share
                                         : cp_by_share)(config, w);
        return TG_OK;
    }
    if (config->n_rank != 1 && config->n_rank != wanted) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "fno.rank: a list of %d; this factorization has %d ranks, or take one "
                       "number: a share of the parameters, or the rank of all",
                       config->n_rank, wanted);
    }
    for (int k = 0; k < wanted; k++) {
        const double rank = config->rank[config->n_rank == 1 ? 0 : k];
        const bool is_end = form == TG_FACTORIZATION_TT && (k == 0 || k == w->ndim);
        const double most = form == TG_FACTORIZATION_TUCKER ? (double)w->dim[k]
                            : is_end                        ? 1.0
                                                            : 1e6;
        if (rank != floor(rank) || (config->n_rank > 1 && rank > most)) {
            return tg_fail(ctx, TG_E_CONFIG, "fno.rank: %g for mode %d; it is from 1 to %g", rank,
                           k, most);
        }
        w->rank[k] = rank > most || is_fixed(config, k) ? (int64_t)most : (int64_t)rank;
    }
    return TG_OK;
}

/* ---- shapes and chains ---- */

static void add_link(nn_factors *f, nn_link link) {
    f->link[f->links++] = link;
}

/* The real and imaginary parts deviate by sqrt(1/2) of the complex number. */
static void set_deviation(nn_factors *f, double of_whole) {
    for (int i = 0; i < f->params; i++) {
        f->deviation[i] = of_whole * sqrt(0.5);
    }
}

/* Mode by mode from the last to the first: (.., s, R) becomes (.., M, R); R: later modes. */
static void make_tucker(const weight *w, double deviation, nn_factors *f) {
    double ranks = 1.0;
    f->params = 1 + w->ndim;
    f->core = 0;
    f->shape[0].ndim = w->ndim;
    for (int k = 0; k < w->ndim; k++) {
        f->shape[0].dim[k] = w->rank[k];
        f->shape[1 + k] = (tg_shape){2, {w->dim[k], w->rank[k]}};
        ranks *= (double)w->rank[k];
    }
    f->in = 1;
    f->out = 2;
    f->inner_in = w->rank[0];
    f->inner_out = w->rank[1];
    set_deviation(f, pow(deviation / sqrt(ranks), 1.0 / (w->ndim + 1)));
    int64_t after = 1;
    for (int k = w->ndim - 1; k >= 2; k--) {
        int64_t before = 1;
        for (int j = 0; j < k; j++) {
            before *= w->rank[j];
        }
        const int64_t dim = w->dim[k], rank = w->rank[k];
        add_link(f, k == w->ndim - 1 ? (nn_link){.param = 1 + k,
                                                 .is_transposed = true,
                                                 .batch = 1,
                                                 .m = before,
                                                 .n = dim,
                                                 .k = rank,
                                                 .ld = rank}
                                     : (nn_link){.param = 1 + k,
                                                 .is_left = true,
                                                 .batch = before,
                                                 .m = dim,
                                                 .n = after,
                                                 .k = rank,
                                                 .ld = rank});
        after *= dim;
    }
}

/* For each of the R terms the outer product of its columns, in the order of the modes. */
static void make_cp(const weight *w, double deviation, nn_factors *f) {
    const int64_t rank = w->rank[0];
    f->params = 1 + w->ndim;
    f->core = 0;
    f->shape[0] = (tg_shape){1, {rank}};
    for (int k = 0; k < w->ndim; k++) {
        f->shape[1 + k] = (tg_shape){2, {w->dim[k], rank}};
    }
    f->in = 1;
    f->out = 2;
    f->inner_in = f->inner_out = rank;
    f->is_separable = true;
    set_deviation(f, pow(deviation / sqrt((double)rank), 1.0 / w->ndim));
    f->deviation[0] = 0.0;
    int64_t made = 1;
    for (int k = 2; k < w->ndim; k++) {
        add_link(f, (nn_link){.param = 1 + k,
                              .is_transposed = true,
                              .batch = rank,
                              .m = made,
                              .n = w->dim[k],
                              .k = 1,
                              .ld = rank,
                              .stride = 1});
        made *= w->dim[k];
    }
}

/* The first factor maps channels; the chain begins at the second. */
static void make_tt(const weight *w, double deviation, nn_factors *f) {
    double ranks = 1.0;
    f->params = w->ndim;
    f->core = 1;
    for (int k = 0; k < w->ndim; k++) {
        f->shape[k] = (tg_shape){3, {w->rank[k], w->dim[k], w->rank[k + 1]}};
        ranks *= (double)w->rank[k];
    }
    f->in = 0;
    f->out = -1;
    f->inner_in = w->rank[1];
    f->inner_out = w->dim[1];
    set_deviation(f, pow(deviation / ranks, 1.0 / w->ndim));
    int64_t rows = w->rank[1] * w->dim[1];
    for (int k = 2; k < w->ndim; k++) {
        const int64_t columns = w->dim[k] * w->rank[k + 1];
        add_link(
            f,
            (nn_link){
                .param = k, .batch = 1, .m = rows, .n = columns, .k = w->rank[k], .ld = columns});
        rows *= w->dim[k];
    }
}

static void make_separable(const weight *w, double deviation, nn_factors *f) {
    f->params = 1;
    f->shape[0] = (tg_shape){w->ndim - 1, {w->dim[0], w->dim[2], w->dim[3], w->dim[4]}};
    f->in = f->out = -1;
    f->inner_in = f->inner_out = w->dim[0];
    f->is_separable = true;
    set_deviation(f, deviation);
}

tg_status nn_factors_make(tg_context *ctx, const tg_fno_config *config, int64_t in, int64_t out,
                          const int64_t *modes, nn_factors *factors) {
    const tg_factorization form = config->factorization;
    const double deviation = sqrt(2.0 / (double)(in + out));
    weight w = {.ndim = 2 + config->n_dim, .dim = {in, out}, .numbers = (double)in * (double)out};
    *factors = (nn_factors){0};
    for (int d = 0; d < config->n_dim; d++) {
        w.dim[2 + d] = modes[d];
        w.numbers *= (double)modes[d];
    }
    if (config->separable) {
        if (form != TG_FACTORIZATION_DENSE) {
            return tg_fail(ctx, TG_E_CONFIG,
                           "fno.separable: such a weight is small as it is: take "
                           "fno.factorization null");
        }
        make_separable(&w, deviation, factors);
        return TG_OK;
    }
    if (form == TG_FACTORIZATION_DENSE) {
        return TG_OK;
    }
    TG_CALL(take_ranks(ctx, config, &w));
    (form == TG_FACTORIZATION_TUCKER ? make_tucker
     : form == TG_FACTORIZATION_TT   ? make_tt
                                     : make_cp)(&w, deviation, factors);
    return TG_OK;
}

void nn_factors_name(tg_factorization form, int param, char *text, size_t capacity) {
    const bool has_core = form == TG_FACTORIZATION_TUCKER || form == TG_FACTORIZATION_CP;
    if (form == TG_FACTORIZATION_DENSE) {
        snprintf(text, capacity, "weight.tensor");
    } else if (has_core && param == 0) {
        snprintf(text, capacity,
                 form == TG_FACTORIZATION_TUCKER ? "weight.core" : "weight.weights");
    } else {
        snprintf(text, capacity, "weight.factors.factor_%d", has_core ? param - 1 : param);
    }
}

bool nn_factors_compresses(tg_factorization form, const nn_factors *factors, int param) {
    return (form == TG_FACTORIZATION_TUCKER && param == 0) ||
           (form == TG_FACTORIZATION_TT && param > 0 && param < factors->params - 1);
}
