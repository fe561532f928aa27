/* What the shapes of x and y mean: samples, times, channels and grid, and which of them are handed
 * out. */
#include <inttypes.h>
#include <string.h>

#include "base/context.h"
#include "data/dataset.h"

/* Step between points of a stored grid of n that leaves r of them; 0 if there is none. A grid of
 * which r is no divisor but that is odd is taken to hold both ends of its interval, which are kept:
 * 421 points become 211 or 85. */
static int64_t step_of(int64_t n, int64_t r) {
    if (r == 0 || r == n) {
        return 1;
    }
    if (n % r == 0) {
        return n / r;
    }
    return r > 1 && n % 2 == 1 && (n - 1) % (r - 1) == 0 ? (n - 1) / (r - 1) : 0;
}

/* Grid and sub-sampling from the last n_dim sizes of the stored shape. */
static tg_status set_grid(tg_dataset *d, tg_dataset_side *s, const tg_dataset_config *config) {
    const tg_shape *shape = tg_array_shape(s->array);
    const int n_dim = config->n_dim, pad = TG_DATA_MAX_DIMS - n_dim;
    char text[128], asked[TG_GRID_TEXT];
    for (int i = 0; i < TG_DATA_MAX_DIMS; i++) {
        const int64_t n = i < pad ? 1 : shape->dim[shape->ndim - TG_DATA_MAX_DIMS + i];
        const int64_t wanted = i < pad ? 1 : config->grid[i - pad];
        const int64_t step = i < pad ? 1 : step_of(n, wanted);
        if (step == 0 || n < 1) {
            const tg_shape grid = tg_shape_of(n_dim, shape->dim + shape->ndim - n_dim);
            return tg_fail(d->ctx, TG_E_SHAPE,
                           "%s: a grid of %s cannot be sub-sampled to %s: %" PRId64
                           " is no divisor of %" PRId64 " (nor, for an odd grid with both ends, is "
                           "%" PRId64 " one of the size less one)",
                           tg_array_label(s->array), tg_shape_text(&grid, text, sizeof text),
                           tg_grid_text(n_dim, config->grid, asked), wanted, n, wanted - 1);
        }
        s->grid[i] = n;
        s->strides[i] = step;
        s->points[i] = (n + step - 1) / step;
    }
    return TG_OK;
}

/* `extra` dimensions stand between samples and grid: channels last, time (if has_time) before. */
static tg_status set_channels(tg_dataset *d, tg_dataset_side *s, bool has_time, int extra,
                              int64_t y_time) {
    const tg_shape *shape = tg_array_shape(s->array);
    const int64_t times = has_time ? shape->dim[1] : 1;
    const int64_t channels = extra > (has_time ? 1 : 0) ? shape->dim[extra] : 1;
    const int64_t time = y_time == TG_TIME_LAST ? times - 1 : y_time;
    if (times < 1 || channels < 1) {
        return tg_fail(d->ctx, TG_E_SHAPE, "%s: has no %s", tg_array_label(s->array),
                       times < 1 ? "times" : "channels");
    }
    if (y_time >= 0 && (!has_time || y_time >= times)) {
        return tg_fail(d->ctx, TG_E_CONFIG,
                       "%s: time %" PRId64 " was asked for, but the array has %" PRId64 " (%s)",
                       tg_array_label(s->array), y_time, times,
                       has_time ? "counted from 0" : "no dimension of time");
    }
    s->channels = y_time == TG_TIME_ALL ? times * channels : channels;
    s->skip = y_time == TG_TIME_ALL ? 0 : time * channels;
    return TG_OK;
}

static tg_status bad_shape(tg_dataset *d, const tg_dataset_side *s, int n_dim,
                           const char *expected) {
    char text[128];
    return tg_fail(d->ctx, TG_E_SHAPE,
                   "%s: expected %s with %d dimension%s of the grid (as many as fno.n_modes has), "
                   "found %s",
                   tg_array_label(s->array), expected, n_dim, n_dim == 1 ? "" : "s",
                   tg_shape_text(tg_array_shape(s->array), text, sizeof text));
}

/* The meaning of every dimension of x and y. */
static tg_status set_sides(tg_dataset *d, const tg_dataset_config *config) {
    tg_status status = TG_OK;
    tg_dataset_side *x = &d->sides[TG_DATA_X], *y = &d->sides[TG_DATA_Y];
    const int x_extra = tg_array_shape(x->array)->ndim - 1 - config->n_dim;
    if (x_extra < 0 || x_extra > 1) {
        return bad_shape(d, x, config->n_dim, "(samples, grid..) or (samples, channels, grid..)");
    }
    TG_TRY(set_channels(d, x, false, x_extra, TG_TIME_LAST));
    TG_TRY(set_grid(d, x, config));
    if (!y->array) {
        return TG_OK;
    }
    const int y_extra = tg_array_shape(y->array)->ndim - 1 - config->n_dim;
    if (y_extra < 0 || y_extra > 2) {
        return bad_shape(d, y, config->n_dim, "(samples, [times,] [channels,] grid..)");
    }
    const bool has_time = y_extra == 2 || y_extra > x_extra;
    TG_TRY(set_channels(d, y, has_time, y_extra, config->y_time));
    TG_TRY(set_grid(d, y, config));
    const int64_t nx = tg_array_shape(x->array)->dim[0], ny = tg_array_shape(y->array)->dim[0];
    if (nx != ny || memcmp(x->grid, y->grid, sizeof x->grid) != 0) {
        char text[128];
        return tg_fail(
            d->ctx, TG_E_SHAPE, "%s: expected the samples and the grid of x (%s), found %s",
            tg_array_label(y->array), nx != ny ? "their numbers differ" : "their grids differ",
            tg_shape_text(tg_array_shape(y->array), text, sizeof text));
    }
fail:
    return status;
}

static tg_status set_facts(tg_dataset *d, const tg_dataset_config *config) {
    const tg_dataset_side *x = &d->sides[TG_DATA_X];
    const int pad = TG_DATA_MAX_DIMS - config->n_dim;
    const int64_t stored = tg_array_shape(x->array)->dim[0];
    bool is_complex = config->complex_data;
    for (int i = 0; i < 2 && d->sides[i].array; i++) {
        is_complex = is_complex || tg_dtype_is_complex(tg_array_dtype(d->sides[i].array));
    }
    if (stored < 1 || config->n_samples > stored) {
        return tg_fail(
            d->ctx, TG_E_CONFIG, "%s: %" PRId64 " samples were asked for, there are %" PRId64,
            tg_array_label(x->array), config->n_samples > 1 ? config->n_samples : 1, stored);
    }
    const int64_t all = config->n_samples ? config->n_samples : stored;
    if (config->n_validation >= all) {
        return tg_fail(d->ctx, TG_E_CONFIG,
                       "%s: %" PRId64 " samples for validation leave none of %" PRId64
                       " to train on",
                       tg_array_label(x->array), config->n_validation, all);
    }
    const int64_t trained = all - config->n_validation;
    d->first = config->is_validation ? trained : 0;
    d->facts = (tg_dataset_facts){.samples = config->is_validation ? config->n_validation : trained,
                                  .in_channels = x->channels,
                                  .out_channels = d->sides[TG_DATA_Y].channels,
                                  .n_dim = config->n_dim,
                                  .dtype = is_complex ? TG_C64 : TG_F32};
    memcpy(d->facts.grid, x->points + pad, (size_t)config->n_dim * sizeof d->facts.grid[0]);
    memcpy(d->facts.file_grid, x->grid + pad, (size_t)config->n_dim * sizeof d->facts.grid[0]);
    for (int i = 0; i < 2 && d->sides[i].array; i++) {
        tg_dataset_side *s = &d->sides[i];
        const size_t element = tg_dtype_size(d->facts.dtype);
        const int64_t numel = tg_shape_numel(tg_array_shape(s->array));
        if (numel < 0 || numel > INT64_MAX / (int64_t)element) {
            return tg_fail(d->ctx, TG_E_SHAPE, "%s: too large", tg_array_label(s->array));
        }
        s->stored_bytes = (size_t)(numel / stored) * element;
        s->bytes = (size_t)(s->channels * s->points[0] * s->points[1] * s->points[2]) * element;
    }
    d->facts.x_bytes = d->sides[TG_DATA_X].bytes;
    d->facts.y_bytes = d->sides[TG_DATA_Y].bytes;
    return TG_OK;
}

tg_status tg_dataset_set_layout(tg_dataset *d, const tg_dataset_config *config) {
    const tg_status status = set_sides(d, config);
    return status == TG_OK ? set_facts(d, config) : status;
}
