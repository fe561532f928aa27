/* Checks of values: the place of a NaN or Inf, and points outside the unit box. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/context.h"
#include "data/dataset.h"

/* "(5, 7)": the position in the file of the returned point `index`. */
static void point_text(const tg_dataset *d, const tg_dataset_side *s, int64_t index,
                       char text[96]) {
    const int pad = TG_DATA_MAX_DIMS - d->facts.n_dim;
    int64_t at[TG_DATA_MAX_DIMS];
    size_t used = 0;
    for (int i = TG_DATA_MAX_DIMS - 1; i >= 0; i--) {
        at[i] = (index % s->points[i] + (i == pad ? s->first_row : 0)) * s->strides[i];
        index /= s->points[i];
    }
    for (int i = pad; i < TG_DATA_MAX_DIMS; i++) {
        used += (size_t)snprintf(text + used, 96 - used, "%s%" PRId64, i > pad ? ", " : "(", at[i]);
    }
    snprintf(text + used, 96 - used, ")");
}

/* The part that has channel `channel` of a row; the channel becomes that of its array. */
static const tg_dataset_part *part_of(const tg_dataset_side *s, int64_t *channel) {
    const tg_dataset_part *part = s->part;
    while (*channel >= part->times * part->channels && part + 1 < s->part + s->parts) {
        *channel -= part->times * part->channels;
        part++;
    }
    return part;
}

/* File, array, sample, channel and point, counted from 0 as stored. */
bool tg_dataset_find_nonfinite(const tg_dataset *d, tg_data_side which, int64_t index,
                               const void *values, char text[TG_NONFINITE_TEXT]) {
    const bool in_time = d->layout.is_trajectory;
    const tg_dataset_side *s = &d->sides[in_time ? TG_DATA_X : which];
    const bool is_double = tg_dtype_real(d->facts.dtype) == TG_F64;
    const int parts = tg_dtype_is_complex(d->facts.dtype) ? 2 : 1;
    const int64_t points = s->points[0] * s->points[1] * s->points[2];
    const int64_t frames = which == TG_DATA_X ? d->facts.history : d->facts.horizon;
    const int64_t count = frames * s->channels * points * parts;
    int64_t at = 0;
    while (at < count && isfinite(tg_data_real(values, is_double, at))) {
        at++;
    }
    text[0] = '\0';
    if (at == count) {
        return false;
    }
    const int64_t value = at / parts, row_values = s->channels * points;
    const int64_t row = d->first_row + tg_dataset_row(d, which, index, value / row_values);
    int64_t channel = value % row_values / points;
    const tg_dataset_part *part = part_of(s, &channel);
    char point[96], sample[96];
    point_text(d, s, value % points, point);
    snprintf(sample, sizeof sample,
             in_time ? "trajectory %" PRId64 ", frame %" PRId64 : "sample %" PRId64,
             in_time ? row / d->facts.times : row, row % d->facts.times);
    snprintf(text, TG_NONFINITE_TEXT,
             "%.256s: %s, channel %" PRId64 ", point %s is %s (counted from 0)",
             part->label ? part->label : "data", sample, channel, point,
             isnan(tg_data_real(values, is_double, at)) ? "NaN" : "Inf");
    return true;
}

/* ---- data at points ---- */

tg_status tg_dataset_check_point_arrays(const tg_dataset *d, int coordinates) {
    const tg_dataset_side *x = &d->sides[TG_DATA_X], *y = &d->sides[TG_DATA_Y];
    const tg_array *points = x->part[0].array, *values = y->part[0].array;
    const tg_shape *shape = tg_array_shape(points);
    char text[128];
    if (shape->ndim != x->lead + 2 || shape->dim[x->lead + 1] != coordinates ||
        tg_dtype_is_complex(tg_array_dtype(points))) {
        return tg_fail(d->ctx, TG_E_SHAPE,
                       "%s: expected real (samples, points, %d coordinates), found %s %s",
                       tg_array_label(points), coordinates, tg_dtype_name(tg_array_dtype(points)),
                       tg_shape_text(shape, text, sizeof text));
    }
    return y->parts == 0 || !tg_dtype_is_complex(tg_array_dtype(values))
               ? TG_OK
               : tg_fail(d->ctx, TG_E_DTYPE, "%s: expected real values at points, found %s",
                         tg_array_label(values), tg_dtype_name(tg_array_dtype(values)));
}

tg_status tg_dataset_check_points(const tg_dataset *d, int64_t index, const float *points) {
    const tg_dataset_side *s = &d->sides[TG_DATA_X];
    const int64_t count = s->points[2], step = s->strides[2];
    for (int64_t i = 0; i < s->channels * count; i++) {
        if (!(points[i] >= 0.0f && points[i] <= 1.0f)) {
            return tg_fail(d->ctx, TG_E_NUMERIC,
                           "%s: sample %" PRId64 ", point %" PRId64 ": coordinate %" PRId64
                           " is %g; expected all points in the unit box, from 0 to 1",
                           tg_array_label(s->part[0].array), d->first_row + index, i % count * step,
                           i / count, (double)points[i]);
        }
    }
    return TG_OK;
}
