/* Data at points: checks their arrays, and that the points are in the unit box. */
#include <inttypes.h>

#include "base/context.h"
#include "data/dataset.h"

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
