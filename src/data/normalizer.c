/* Normalizers: one mean and one deviation per channel.
 *
 * Fitted in two passes over the samples in f64, the mean first, so that the deviation of data with
 * a large offset is exact; samples are visited in order, hence the same bits cached or streamed. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "data/dataset.h"
#include "tgrad/data.h"

static const double FLOOR = 1e-7; /* added to the deviation */

enum { BLOCK = 4 << 20 }; /* bytes of samples read at once, at least one */

struct tg_normalizer {
    tg_context *ctx;
    int64_t channels;
    bool is_complex;
    double *mean; /* (channels) pairs {re, im} */
    double *std;  /* (channels) */
};

static tg_status create(tg_context *ctx, int64_t channels, bool is_complex, tg_normalizer **out) {
    tg_status status = TG_OK;
    tg_normalizer *n = NULL;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, n, 1));
    n->ctx = ctx;
    n->channels = channels;
    n->is_complex = is_complex;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, n->mean, 2 * channels));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, n->std, channels));
    *out = n;
    return TG_OK;
fail:
    tg_normalizer_destroy(&n);
    return status;
}

void tg_normalizer_destroy(tg_normalizer **normalizer) {
    if (normalizer && *normalizer) {
        tg_context *ctx = (*normalizer)->ctx;
        tg_mem_free(ctx, (*normalizer)->mean);
        tg_mem_free(ctx, (*normalizer)->std);
        tg_mem_free(ctx, *normalizer);
        *normalizer = NULL;
    }
}

tg_status tg_normalizer_copy(tg_context *ctx, const tg_normalizer *from, tg_normalizer **out) {
    TG_CALL(create(ctx, from->channels, from->is_complex, out));
    memcpy((*out)->mean, from->mean, 2 * (size_t)from->channels * sizeof *from->mean);
    memcpy((*out)->std, from->std, (size_t)from->channels * sizeof *from->std);
    return TG_OK;
}

/* ---- fitting ---- */

/* Adds one sample to the sums of a pass: of v for the means, of |v - mean|^2 for the deviations. */
static bool add_sample(tg_normalizer *n, const void *v, bool is_double, int64_t points,
                       bool deviations) {
    const int parts = n->is_complex ? 2 : 1;
    int64_t at = 0;
    for (int64_t c = 0; c < n->channels; c++) {
        double sum[2] = {0.0, 0.0};
        for (int64_t i = 0; i < points; i++) {
            for (int p = 0; p < parts; p++) {
                const double value = tg_data_real(v, is_double, at++);
                const double rest = value - n->mean[2 * c + p];
                if (!isfinite(value)) {
                    return false;
                }
                sum[p] += deviations ? rest * rest : value;
            }
        }
        if (deviations) {
            n->std[c] += sum[0] + sum[1];
        } else {
            n->mean[2 * c] += sum[0];
            n->mean[2 * c + 1] += sum[1];
        }
    }
    return true;
}

/* One side of a dataset, read in blocks of samples in file order. */
typedef struct pass {
    tg_dataset *dataset;
    tg_data_side side;
    const tg_normalizer_team *team; /* NULL: none */
    int64_t samples, points;        /* points: that are read here .. */
    int64_t all_points;             /* .. and by the whole team */
    int64_t steps;                  /* repetitions of the normalizer's channels in a sample */
    size_t bytes;                   /* of one sample */
    bool is_double;                 /* element type */
    int64_t most;                   /* samples per block */
    int64_t *indices;               /* (most) */
    char *block;                    /* (most * bytes) */
} pass;

/* Adds up the blocks of this process. */
static tg_status read_blocks(tg_normalizer *n, const pass *p, bool deviations) {
    const int64_t groups = p->team ? p->team->groups : 1, group = p->team ? p->team->group : 0;
    for (int64_t first = group * p->most; first < p->samples; first += groups * p->most) {
        const int64_t left = p->samples - first;
        const int64_t count = left < p->most ? left : p->most;
        for (int64_t i = 0; i < count; i++) {
            p->indices[i] = first + i;
        }
        const bool is_x = p->side == TG_DATA_X;
        TG_CALL(tg_dataset_read(p->dataset, p->indices, count, is_x ? p->block : NULL,
                                is_x ? NULL : p->block));
        for (int64_t i = 0; i < count * p->steps; i++) {
            const void *sample = p->block + (size_t)i * (p->bytes / (size_t)p->steps);
            if (!add_sample(n, sample, p->is_double, p->points, deviations)) {
                const int64_t in_block = i / p->steps;
                char place[TG_NONFINITE_TEXT];
                tg_dataset_find_nonfinite(p->dataset, p->side, first + in_block,
                                          p->block + (size_t)in_block * p->bytes, place);
                return tg_fail(n->ctx, TG_E_NUMERIC, "%s; tgrad inspect counts such values", place);
            }
        }
    }
    return TG_OK;
}

static tg_status run_pass(tg_normalizer *n, const pass *p, bool deviations) {
    const tg_normalizer_team *team = p->team;
    const tg_status status = read_blocks(n, p, deviations);
    return !team        ? status
           : deviations ? team->add_up(team->user, status, n->channels, n->std)
                        : team->add_up(team->user, status, 2 * n->channels, n->mean);
}

/* Warns of the first channel with a deviation so small that the epsilon of the normalization
 * matters: it is constant, so that other values in new data become huge, or its units are too
 * large. */
static void warn_of_constant(const tg_normalizer *n, const pass *p) {
    for (int64_t c = 0; c < n->channels; c++) {
        const double mean = hypot(n->mean[2 * c], n->mean[2 * c + 1]);
        if (!(n->std[c] >= 1e-6) || !(n->std[c] >= 1e-6 * mean)) {
            tg_log(
                n->ctx, TG_LOG_WARN,
                "data: channel %lld of %s (the first is 0) hardly varies, mean %g, deviation %g: "
                "normalized it is divided by that + 1e-7; scale it, or leave it out",
                (long long)c, p->side == TG_DATA_X ? "x" : "y", n->mean[2 * c], n->std[c]);
            return;
        }
    }
}

static tg_status fit(tg_normalizer *n, const pass *p) {
    const double count = (double)p->samples * (double)p->steps * (double)p->all_points;
    TG_CALL(run_pass(n, p, false));
    for (int64_t i = 0; i < 2 * n->channels; i++) {
        n->mean[i] /= count;
    }
    TG_CALL(run_pass(n, p, true));
    for (int64_t c = 0; c < n->channels; c++) {
        n->std[c] = count > 1.0 ? sqrt(n->std[c] / (count - 1.0)) : 0.0;
    }
    warn_of_constant(n, p);
    return TG_OK;
}

int64_t tg_normalizer_block(const tg_dataset_facts *facts, tg_data_side side) {
    const size_t bytes = side == TG_DATA_X ? facts->x_bytes : facts->y_bytes;
    return bytes > 0 && BLOCK / bytes > 1 ? (int64_t)(BLOCK / bytes) : 1;
}

size_t tg_normalizer_fit_bytes(const tg_dataset_facts *facts, tg_data_side side) {
    const size_t bytes = side == TG_DATA_X ? facts->x_bytes : facts->y_bytes;
    return (size_t)tg_normalizer_block(facts, side) * (bytes + sizeof(int64_t));
}

tg_status tg_normalizer_fit(tg_context *ctx, tg_dataset *dataset, tg_data_side side,
                            tg_normalizer **out) {
    TG_NEED_OUT(ctx, out, ctx, dataset);
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const int64_t channels = side == TG_DATA_X ? facts.in_channels : facts.out_channels;
    return channels > 0
               ? tg_normalizer_fit_channels(ctx, dataset, side, channels, NULL, out)
               : tg_fail(ctx, TG_E_ARGUMENT, "normalizer: the dataset was opened without y");
}

tg_status tg_normalizer_fit_channels(tg_context *ctx, tg_dataset *dataset, tg_data_side side,
                                     int64_t channels, const tg_normalizer_team *team,
                                     tg_normalizer **out) {
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const int64_t all = side == TG_DATA_X ? facts.in_channels : facts.out_channels;
    tg_status status = TG_OK;
    tg_normalizer *n = NULL;
    pass p = {.dataset = dataset,
              .side = side,
              .team = team,
              .samples = facts.samples,
              .steps = all / channels};
    const int64_t row = tg_product(facts.n_dim - 1, facts.grid + 1);
    p.points = facts.rows * row;
    p.all_points = team ? facts.grid[0] * row : p.points;
    p.bytes = side == TG_DATA_X ? facts.x_bytes : facts.y_bytes;
    p.most = tg_normalizer_block(&facts, side);
    p.is_double = tg_dtype_real(facts.dtype) == TG_F64;
    TG_TRY(create(ctx, channels, tg_dtype_is_complex(facts.dtype), &n));
    TG_TRY(TG_ALLOC(ctx, TG_MEM_DATA, p.indices, p.most));
    TG_TRY(TG_ALLOC(ctx, TG_MEM_DATA, p.block, (size_t)p.most * p.bytes));
    TG_TRY(fit(n, &p));
    *out = n;
    n = NULL;
fail:
    TG_FREE(ctx, p.indices);
    TG_FREE(ctx, p.block);
    tg_normalizer_destroy(&n);
    return status;
}

int64_t tg_normalizer_channels(const tg_normalizer *n) {
    return n ? n->channels : 0;
}

bool tg_normalizer_is_complex(const tg_normalizer *n) {
    return n && n->is_complex;
}

void tg_normalizer_get(const tg_normalizer *n, int64_t channel, double *mean, double *mean_im,
                       double *std) {
    if (channel < 0 || channel >= tg_normalizer_channels(n)) {
        return;
    }
    if (mean) {
        *mean = n->mean[2 * channel];
    }
    if (mean_im) {
        *mean_im = n->mean[2 * channel + 1];
    }
    if (std) {
        *std = n->std[channel];
    }
}

/* ---- use ---- */

static tg_status check_values(const tg_normalizer *n, const tg_tensor *values) {
    char text[128];
    const tg_dtype real = tg_dtype_real(values->dtype);
    const bool fits = values->place == TG_HOST && values->shape.ndim >= 2 &&
                      tg_tensor_numel(values) >= 0 && (real == TG_F32 || real == TG_F64) &&
                      tg_dtype_is_complex(values->dtype) == n->is_complex &&
                      values->shape.dim[1] == n->channels;
    return fits ? TG_OK
                : tg_fail(n->ctx, TG_E_SHAPE,
                          "normalizer: expected %s on the host with %lld channels, found %s %s",
                          n->is_complex ? "c64 or c128" : "f32 or f64", (long long)n->channels,
                          tg_dtype_name(values->dtype),
                          tg_shape_text(&values->shape, text, sizeof text));
}

/* Forward: v -> (v - mean) / std per channel; otherwise the inverse. */
static tg_status transform(const tg_normalizer *n, tg_tensor *values, bool forward) {
    TG_CALL(check_values(n, values));
    const int parts = n->is_complex ? 2 : 1;
    const int64_t rows = values->shape.dim[0] * n->channels;
    const int64_t points = rows > 0 ? tg_tensor_numel(values) / rows : 0;
    const bool is_double = tg_dtype_real(values->dtype) == TG_F64;
    int64_t at = 0;
    for (int64_t row = 0; row < rows; row++) {
        const double *mean = n->mean + 2 * (row % n->channels);
        const double std = n->std[row % n->channels] + FLOOR;
        for (int64_t i = 0; i < points * parts; i++, at++) {
            const double m = mean[i % parts], value = tg_data_real(values->data, is_double, at);
            const double made = forward ? (value - m) / std : value * std + m;
            if (is_double) {
                ((double *)values->data)[at] = made;
            } else {
                ((float *)values->data)[at] = (float)made;
            }
        }
    }
    return TG_OK;
}

tg_status tg_normalizer_apply(const tg_normalizer *n, tg_tensor *values) {
    TG_NEED(NULL, n);
    TG_NEED(n->ctx, values);
    return transform(n, values, true);
}

tg_status tg_normalizer_invert(const tg_normalizer *n, tg_tensor *values) {
    TG_NEED(NULL, n);
    TG_NEED(n->ctx, values);
    return transform(n, values, false);
}

/* (value * std + mean of `from` - mean of `to`) / std of `to` */
void tg_normalizer_between(const tg_normalizer *from, int64_t from_channel, const tg_normalizer *to,
                           int64_t to_channel, double *scale, tg_scalar *shift) {
    *scale = 1.0;
    *shift = (tg_scalar){0.0, 0.0};
    if (from) {
        const double *mean = from->mean + 2 * from_channel;
        *scale = from->std[from_channel] + FLOOR;
        *shift = (tg_scalar){mean[0], mean[1]};
    }
    if (to) {
        const double *mean = to->mean + 2 * to_channel, std = to->std[to_channel] + FLOOR;
        *scale /= std;
        *shift = (tg_scalar){(shift->re - mean[0]) / std, (shift->im - mean[1]) / std};
    }
}

/* Channels are contiguous; with a single one that is the whole tensor. */
tg_status tg_normalizer_decode(const tg_normalizer *n, tg_backend *be, const tg_tensor *values,
                               const tg_tensor *out) {
    const int64_t rows = n->channels == 1 ? 1 : values->shape.dim[0] * n->channels;
    const int64_t points = tg_tensor_numel(values) / rows;
    const size_t bytes = (size_t)points * tg_dtype_size(values->dtype);
    for (int64_t row = 0; row < rows; row++) {
        const char *from = (const char *)values->data + (size_t)row * bytes;
        char *to = (char *)out->data + (size_t)row * bytes;
        const double *mean = n->mean + 2 * (row % n->channels);
        const tg_scalar std = {.re = n->std[row % n->channels] + FLOOR};
        TG_CALL(be->ops->fill(be, out->dtype, points, (tg_scalar){mean[0], mean[1]}, to));
        TG_CALL(be->ops->axpy(be, out->dtype, points, std, from, to));
    }
    return TG_OK;
}

/* ---- archives ---- */

enum { NAME = 256 };

static tg_status full_name(tg_context *ctx, const char *prefix, const char *part, char *name) {
    return snprintf(name, NAME, "%s%s", prefix, part) < NAME
               ? TG_OK
               : tg_fail(ctx, TG_E_ARGUMENT, "normalizer: the prefix %.60s.. is too long", prefix);
}

tg_status tg_normalizer_save(const tg_normalizer *n, tg_archive *archive, const char *prefix) {
    tg_status status = TG_OK;
    char name[NAME];
    tg_tensor mean = {0}, std = {0};
    const tg_shape shape = tg_shape_of(1, &n->channels);
    TG_TRY(tg_tensor_create(n->ctx, TG_MEM_OTHER, n->is_complex ? TG_C128 : TG_F64, &shape, &mean));
    for (int64_t c = 0; c < n->channels; c++) {
        double *at = mean.data;
        if (n->is_complex) {
            memcpy(at + 2 * c, n->mean + 2 * c, 2 * sizeof *at);
        } else {
            at[c] = n->mean[2 * c];
        }
    }
    TG_TRY(full_name(n->ctx, prefix, "mean", name));
    TG_TRY(tg_archive_take(archive, name, &mean));
    TG_TRY(tg_tensor_create(n->ctx, TG_MEM_OTHER, TG_F64, &shape, &std));
    memcpy(std.data, n->std, tg_tensor_bytes(&std));
    TG_TRY(full_name(n->ctx, prefix, "std", name));
    TG_TRY(tg_archive_take(archive, name, &std));
fail:
    tg_tensor_destroy(&mean);
    tg_tensor_destroy(&std);
    return status;
}

tg_status tg_normalizer_load(tg_context *ctx, const tg_archive *archive, const char *prefix,
                             tg_normalizer **out) {
    *out = NULL;
    char mean_name[NAME], std_name[NAME];
    tg_status status = TG_OK;
    tg_normalizer *n = NULL;
    TG_TRY(full_name(ctx, prefix, "mean", mean_name));
    TG_TRY(full_name(ctx, prefix, "std", std_name));
    const tg_tensor *mean = tg_archive_find(archive, mean_name);
    const tg_tensor *std = tg_archive_find(archive, std_name);
    if (!mean || !std || (mean->dtype != TG_F64 && mean->dtype != TG_C128) ||
        std->dtype != TG_F64 || mean->shape.ndim != 1 || mean->shape.dim[0] < 1 ||
        !tg_shape_equal(&mean->shape, &std->shape)) {
        return tg_fail(ctx, TG_E_FORMAT, "normalizer: %s and %s are missing or do not fit",
                       mean_name, std_name);
    }
    TG_TRY(create(ctx, mean->shape.dim[0], mean->dtype == TG_C128, &n));
    for (int64_t c = 0; c < n->channels; c++) {
        const double *from = mean->data;
        n->mean[2 * c] = n->is_complex ? from[2 * c] : from[c];
        n->mean[2 * c + 1] = n->is_complex ? from[2 * c + 1] : 0.0;
        n->std[c] = ((const double *)std->data)[c];
        if (!isfinite(n->mean[2 * c]) || !isfinite(n->mean[2 * c + 1]) || !(n->std[c] >= 0.0) ||
            !isfinite(n->std[c])) {
            status = tg_fail(ctx, TG_E_FORMAT, "normalizer: channel %lld of %s is not finite",
                             (long long)c, mean_name);
            goto fail;
        }
    }
    *out = n;
    return TG_OK;
fail:
    tg_normalizer_destroy(&n);
    return status;
}
