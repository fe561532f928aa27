/* Interprets the shapes of arrays: samples, times, channels and grid, and which of them are
 * returned. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/minmax.h"
#include "base/system.h"
#include "data/dataset.h"

/* Step between points of a stored grid of n that leaves r of them; 0 if there is none. An odd grid
 * that r does not divide is assumed to include both ends of its interval, which are kept: 421
 * points become 211 or 85. */
static int64_t step_of(int64_t n, int64_t r) {
    if (r == 0 || r == n) {
        return 1;
    }
    if (n % r == 0) {
        return n / r;
    }
    return r > 1 && n % 2 == 1 && (n - 1) % (r - 1) == 0 ? (n - 1) / (r - 1) : 0;
}

/* The rows of the grid that are returned, and those that are read. */
static tg_status set_slab(tg_dataset *d, tg_dataset_side *s, tg_dataset_part *part, int at,
                          const tg_dataset_config *config) {
    const int pad = TG_DATA_MAX_DIMS - config->n_dim;
    const tg_range rows = tg_slab_of(s->points[pad], config->parts, config->part);
    const int64_t count = rows.end - rows.begin;
    if (config->parts > s->points[pad]) {
        return tg_fail(d->ctx, TG_E_SHAPE,
                       "distributed.split: %d takes a grid of as many rows, %s has %" PRId64,
                       config->parts, tg_array_label(part->array), s->points[pad]);
    }
    s->first_row = rows.begin;
    s->all_rows = s->points[pad];
    s->points[pad] = count;
    part->slab = (tg_array_slab){at, 0, s->grid[pad]};
    if (config->parts > 1) {
        part->slab.first = rows.begin * s->strides[pad];
        part->slab.count = (count - 1) * s->strides[pad] + 1;
    }
    return TG_OK;
}

/* Grid and sub-sampling; the stored grid begins at dimension `at` of the shape. */
static tg_status set_grid(tg_dataset *d, tg_dataset_side *s, tg_dataset_part *part, int at,
                          const tg_dataset_config *config) {
    const tg_shape *shape = tg_array_shape(part->array);
    const int n_dim = config->n_dim, pad = TG_DATA_MAX_DIMS - n_dim;
    char text[128], asked[TG_GRID_TEXT];
    for (int i = 0; i < TG_DATA_MAX_DIMS; i++) {
        const int64_t n = i < pad ? 1 : shape->dim[at + i - pad];
        const int64_t wanted = i < pad ? 1 : config->grid[i - pad];
        const int64_t step = i < pad ? 1 : step_of(n, wanted);
        const tg_shape grid = tg_shape_of(n_dim, shape->dim + at);
        if (n < 1) {
            return tg_fail(d->ctx, TG_E_SHAPE, "%s: a grid of %s has no points",
                           tg_array_label(part->array), tg_shape_text(&grid, text, sizeof text));
        }
        if (step == 0) {
            return tg_fail(d->ctx, TG_E_SHAPE,
                           "%s: a grid of %s cannot be sub-sampled to %s: %" PRId64
                           " is no divisor of %" PRId64 " (nor, for an odd grid with both ends, is "
                           "%" PRId64 " one of the size less one)",
                           tg_array_label(part->array), tg_shape_text(&grid, text, sizeof text),
                           tg_grid_text(n_dim, config->grid, asked), wanted, n, wanted - 1);
        }
        s->grid[i] = n;
        s->strides[i] = step;
        s->points[i] = (n + step - 1) / step;
    }
    return set_slab(d, s, part, at, config);
}

/* The dimensions of an array's row: time (if has_time), then channels and grid in either order;
 * `components` dimensions are channels. */
static tg_status set_part(tg_dataset *d, tg_dataset_side *s, tg_dataset_part *part,
                          const tg_field *field, bool has_time, int components,
                          const tg_dataset_config *config, int64_t y_time) {
    const tg_shape *shape = tg_array_shape(part->array);
    const bool is_last = d->layout.channels_last || s->is_points;
    const int first = s->lead + (has_time ? 1 : 0);
    const int channel_at = is_last ? shape->ndim - components : first;
    const int64_t times = has_time ? shape->dim[s->lead] : 1;
    const int64_t time = y_time == TG_TIME_LAST ? times - 1 : y_time;
    part->channels = tg_product(components, shape->dim + channel_at);
    const int64_t stored = part->channels, first_channel = field->first;
    if (field->count > 0) {
        part->channels = field->count;
    }
    if (first_channel + part->channels > stored) {
        return tg_fail(d->ctx, TG_E_CONFIG,
                       "%s: component %" PRId64 " was asked for, it has %" PRId64
                       " (counted from 0)",
                       tg_array_label(part->array), first_channel + part->channels - 1, stored);
    }
    if (times < 1 || part->channels < 1) {
        return tg_fail(d->ctx, TG_E_SHAPE, "%s: has no %s", tg_array_label(part->array),
                       times < 1 ? "times" : "channels");
    }
    if (y_time >= 0 && (!has_time || y_time >= times)) {
        return tg_fail(d->ctx, TG_E_CONFIG,
                       "%s: time %" PRId64 " was asked for, but the array has %" PRId64 " (%s)",
                       tg_array_label(part->array), y_time, times,
                       has_time ? "counted from 0" : "no dimension of time");
    }
    const tg_status status = set_grid(d, s, part, first + (is_last ? 0 : components), config);
    const int64_t row =
        tg_product(config->n_dim - 1, s->grid + TG_DATA_MAX_DIMS - config->n_dim + 1);
    const int64_t points = part->slab.count * row;
    part->times = y_time == TG_TIME_ALL ? times : 1;
    part->time_step = stored * points;
    part->channel_step = is_last ? 1 : points;
    part->point_step = is_last ? stored : 1;
    part->skip = y_time == TG_TIME_ALL ? 0 : time * part->time_step;
    part->skip += first_channel * part->channel_step;
    s->channels += part->times * part->channels;
    return status;
}

/* ---- channels before or after the grid ---- */

/* Whether dimensions (channels, grid..) or (grid..) look as if channels came last: the last one is
 * small and the first one is not. */
static bool looks_channels_last(const int64_t *dim, int count) {
    enum { MAX_CHANNELS = 16 };
    return count >= 2 && dim[count - 1] <= MAX_CHANNELS && 2 * dim[count - 1] <= dim[count - 2] &&
           !(dim[0] <= MAX_CHANNELS && 2 * dim[0] <= dim[1]);
}

/* A side's array without samples and times. */
static bool looks_side_last(const tg_dataset *d, tg_data_side which) {
    const int lead = d->layout.is_trajectory ? 2 : 1;
    const tg_shape *shape =
        d->sides[which].parts > 0 ? tg_array_shape(d->sides[which].part[0].array) : NULL;
    return shape && !d->layout.channels_last && !d->sides[TG_DATA_X].is_points &&
           looks_channels_last(shape->dim + lead, shape->ndim - lead);
}

enum { SHAPES_TEXT = 280 };

/* "x is 80x24x40x3, y is 80x24x40" */
static const char *shapes_text(const tg_dataset *d, char text[SHAPES_TEXT]) {
    char shape[128];
    size_t used = 0;
    for (int i = 0; i < 2 && d->sides[i].parts > 0; i++) {
        const tg_shape *of = tg_array_shape(d->sides[i].part[0].array);
        used += (size_t)snprintf(text + used, SHAPES_TEXT - used, "%s is %s", i ? ", y" : "x",
                                 tg_shape_text(of, shape, sizeof shape));
    }
    return text;
}

/* Advice for arrays whose channels seem to come last; "" for others. */
static const char *order_text(const tg_dataset *d) {
    return looks_side_last(d, TG_DATA_X) || looks_side_last(d, TG_DATA_Y)
               ? "; if the channels come last, set data.order: nhwc"
               : "";
}

void tg_dataset_warn_of_order(tg_context *ctx, const tg_dataset *d, const char *path) {
    const int n_dim = d->facts.n_dim;
    const tg_dataset_side *x = &d->sides[TG_DATA_X];
    int64_t dim[TG_DATA_MAX_DIMS + 1] = {x->channels};
    char grid[TG_GRID_TEXT];
    memcpy(dim + 1, d->facts.file_grid, (size_t)n_dim * sizeof dim[0]);
    if (!d->layout.channels_last && !x->is_points && d->facts.x_ndim == x->lead + 1 + n_dim &&
        looks_channels_last(dim, n_dim + 1)) {
        tg_log(ctx, TG_LOG_WARN,
               "%s: x is read as %" PRId64 " channels on a grid of %s; if its channels come last, "
               "set data.order: nhwc",
               path, x->channels, tg_grid_text(n_dim, d->facts.file_grid, grid));
    }
}

static tg_status bad_shape(tg_dataset *d, const tg_dataset_part *part, int n_dim,
                           const char *expected) {
    char text[128], shapes[SHAPES_TEXT];
    return tg_fail(d->ctx, TG_E_SHAPE,
                   "%s: expected %s with %d dimension%s of the grid (as many as fno.n_modes has), "
                   "found %s (%s)%s",
                   tg_array_label(part->array), expected, n_dim, n_dim == 1 ? "" : "s",
                   tg_shape_text(tg_array_shape(part->array), text, sizeof text),
                   shapes_text(d, shapes), order_text(d));
}

/* ---- pairs ---- */

/* Whether the grid of x is that of y from dimension `at` on. */
static bool has_grid_at(const tg_array *y, const tg_dataset_side *x, int n_dim, int at) {
    return memcmp(tg_array_shape(y)->dim + at, x->grid + TG_DATA_MAX_DIMS - n_dim,
                  (size_t)n_dim * sizeof x->grid[0]) == 0;
}

/* The meaning of every dimension of x and y. */
static tg_status set_pairs(tg_dataset *d, const tg_dataset_config *config) {
    tg_dataset_side *x = &d->sides[TG_DATA_X], *y = &d->sides[TG_DATA_Y];
    const bool is_last = d->layout.channels_last;
    const int x_ndim = tg_array_shape(x->part[0].array)->ndim;
    x->is_points = config->coordinates > 0;
    x->lead = config->x_only && x_ndim == config->n_dim + x->is_points ? 0 : 1;
    y->lead = 1;
    const int x_extra = x_ndim - x->lead - config->n_dim;
    TG_CALL(x->is_points ? tg_dataset_check_point_arrays(d, config->coordinates) : TG_OK);
    if (x_extra < 0 || x_extra > 1) {
        return bad_shape(d, &x->part[0], config->n_dim,
                         is_last ? "(samples, grid..) or (samples, grid.., channels)"
                                 : "(samples, grid..) or (samples, channels, grid..)");
    }
    TG_CALL(set_part(d, x, &x->part[0], &d->layout.fields[TG_DATA_X], false, x_extra, config,
                     TG_TIME_LAST));
    if (y->parts == 0) {
        return TG_OK;
    }
    const tg_array *array = y->part[0].array;
    const int y_extra = tg_array_shape(array)->ndim - 1 - config->n_dim;
    if (y_extra < 0 || y_extra > 2) {
        return bad_shape(d, &y->part[0], config->n_dim,
                         is_last ? "(samples, [times,] grid.. [, channels])"
                                 : "(samples, [times,] [channels,] grid..)");
    }
    /* y has one dimension more than x: times, unless only channels after the grid fit */
    const bool has_channels = is_last && y_extra == 1 && has_grid_at(array, x, config->n_dim, 1) &&
                              !has_grid_at(array, x, config->n_dim, 2);
    const bool has_time = y_extra == 2 || (y_extra > x_extra && !has_channels);
    TG_CALL(set_part(d, y, &y->part[0], &d->layout.fields[TG_DATA_Y], has_time,
                     y_extra - (has_time ? 1 : 0), config, config->y_time));
    const int64_t nx = tg_array_shape(x->part[0].array)->dim[0], ny = tg_array_shape(array)->dim[0];
    if (nx != ny || memcmp(x->grid, y->grid, sizeof x->grid) != 0) {
        char shapes[SHAPES_TEXT];
        return tg_fail(d->ctx, TG_E_SHAPE,
                       "%s: expected the samples and the %s of x (%s), but %s%s",
                       tg_array_label(array), x->is_points ? "points" : "grid",
                       nx != ny       ? "their numbers differ"
                       : x->is_points ? "one value for each point"
                                      : "their grids differ",
                       shapes_text(d, shapes), order_text(d));
    }
    return TG_OK;
}

/* ---- trajectories ---- */

/* Frames of all fields, which must agree in samples, times and grid. */
static tg_status set_frames(tg_dataset *d, const tg_dataset_config *config) {
    tg_dataset_side *s = &d->sides[TG_DATA_X];
    const tg_shape *first = tg_array_shape(s->part[0].array);
    int64_t grid[TG_DATA_MAX_DIMS];
    char text[2][128];
    s->lead = 2;
    for (int i = 0; i < s->parts; i++) {
        const tg_shape *shape = tg_array_shape(s->part[i].array);
        const int components = shape->ndim - 2 - config->n_dim;
        if (components < 0 || components > 2) {
            return bad_shape(d, &s->part[i], config->n_dim,
                             d->layout.channels_last ? "(samples, times, grid.. [, components])"
                                                     : "(samples, times, [channels,] grid..)");
        }
        TG_CALL(set_part(d, s, &s->part[i], &d->layout.fields[i], false, components, config,
                         TG_TIME_LAST));
        if (shape->dim[0] != first->dim[0] || shape->dim[1] != first->dim[1] ||
            (i > 0 && memcmp(grid, s->grid, sizeof grid) != 0)) {
            return tg_fail(d->ctx, TG_E_SHAPE,
                           "%s: expected the samples, times and grid of '%s', %s, found %s: "
                           "data.fields says which arrays to use together",
                           tg_array_label(s->part[i].array), d->layout.fields[0].name,
                           tg_shape_text(first, text[0], sizeof text[0]),
                           tg_shape_text(shape, text[1], sizeof text[1]));
        }
        memcpy(grid, s->grid, sizeof grid);
    }
    return TG_OK;
}

static int64_t or_one(int64_t value) {
    return value > 0 ? value : 1;
}

/* Number of windows per trajectory. */
static tg_status set_windows(tg_dataset *d, const tg_dataset_config *config) {
    const char *label = tg_array_label(d->sides[TG_DATA_X].part[0].array);
    const int64_t times = tg_array_shape(d->sides[TG_DATA_X].part[0].array)->dim[1];
    const int64_t left = times > config->first_frame ? times - config->first_frame : 0;
    const int64_t frames = config->n_frames > 0 ? config->n_frames : left;
    const int64_t history = or_one(config->history);
    const int64_t horizon = config->x_only ? 0 : or_one(config->horizon);
    if (frames > left || left == 0) {
        return tg_fail(d->ctx, TG_E_CONFIG,
                       "%s: data.first_frame %" PRId64 " and data.n_frames %" PRId64
                       " were asked for, its trajectories have %" PRId64 " frames",
                       label, config->first_frame, config->n_frames, times);
    }
    d->time_stride = or_one(config->time_stride);
    d->first_frame = config->first_frame;
    const int64_t steps = history + horizon - 1; /* from the first frame to the last */
    if (steps > (frames - 1) / d->time_stride) {
        return tg_fail(d->ctx, TG_E_CONFIG,
                       "%s: data.history %" PRId64 " and data.horizon %" PRId64
                       " with data.time_stride %" PRId64 " need %" PRId64
                       " frames, its trajectories have %" PRId64 "%s",
                       label, history, horizon, d->time_stride, steps * d->time_stride + 1, frames,
                       frames < times ? " between data.first_frame and data.n_frames" : "");
    }
    d->windows = frames - steps * d->time_stride;
    d->facts.times = times;
    d->facts.history = history;
    d->facts.horizon = horizon;
    return TG_OK;
}

/* ---- facts ---- */

static tg_status set_bytes(tg_dataset *d, tg_dataset_side *s) {
    const size_t element = tg_dtype_size(d->facts.dtype);
    for (int i = 0; i < s->parts; i++) {
        const tg_shape *shape = tg_array_shape(s->part[i].array);
        const int64_t numel = tg_shape_numel(shape);
        const int64_t rows = tg_product(s->lead, shape->dim);
        if (numel < 0 || numel > INT64_MAX / (int64_t)element) {
            return tg_fail(d->ctx, TG_E_SHAPE, "%s: too large", tg_array_label(s->part[i].array));
        }
        const tg_array_slab *slab = &s->part[i].slab;
        s->part[i].stored_bytes =
            (size_t)(numel / rows / shape->dim[slab->dim] * slab->count) * element;
        s->stored_bytes = tg_max_size(s->stored_bytes, s->part[i].stored_bytes);
    }
    s->bytes = (size_t)(s->channels * s->points[0] * s->points[1] * s->points[2]) * element;
    return TG_OK;
}

/* Selects samples or trajectories. */
static tg_status set_samples(tg_dataset *d, const tg_dataset_config *config) {
    const tg_dataset_side *x = &d->sides[TG_DATA_X];
    const tg_array *array = x->part[0].array;
    const int64_t stored = x->lead == 0 ? 1 : tg_array_shape(array)->dim[0];
    const int64_t left = stored > config->first_sample ? stored - config->first_sample : 0;
    const int64_t all = config->n_samples ? config->n_samples : left;
    if (stored < 1) {
        return tg_fail(d->ctx, TG_E_SHAPE, "%s: has no samples", tg_array_label(array));
    }
    if (left < 1 || all > left) {
        return tg_fail(d->ctx, TG_E_CONFIG,
                       "%s: %" PRId64 " %s were asked for, there are %" PRId64 "%s",
                       tg_array_label(array), all > 1 ? all : 1,
                       d->layout.is_trajectory ? "trajectories" : "samples", left,
                       config->first_sample > 0 ? " after those skipped" : "");
    }
    if (config->n_validation >= all) {
        return tg_fail(d->ctx, TG_E_CONFIG,
                       "%s: %" PRId64 " samples for validation leave none of %" PRId64
                       " to train on",
                       tg_array_label(array), config->n_validation, all);
    }
    const int64_t trained = all - config->n_validation;
    const int64_t used = config->is_validation ? config->n_validation : trained;
    const int64_t times = d->layout.is_trajectory ? d->facts.times : 1;
    d->first_row = (config->first_sample + (config->is_validation ? trained : 0)) * times;
    d->rows = used * times;
    d->facts.samples = d->layout.is_trajectory ? used * d->windows : used;
    d->facts.trajectories = d->layout.is_trajectory ? used : 0;
    return TG_OK;
}

static tg_status set_facts(tg_dataset *d, const tg_dataset_config *config) {
    const tg_dataset_side *x = &d->sides[TG_DATA_X], *y = &d->sides[TG_DATA_Y];
    const int pad = TG_DATA_MAX_DIMS - config->n_dim;
    tg_dataset_facts *facts = &d->facts;
    bool is_complex = config->complex_data;
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < d->sides[i].parts; k++) {
            is_complex =
                is_complex || tg_dtype_is_complex(tg_array_dtype(d->sides[i].part[k].array));
        }
    }
    facts->n_dim = config->n_dim;
    if (config->dtype != TG_F32 && (config->dtype != TG_F64 || config->coordinates > 0)) {
        return tg_fail(d->ctx, TG_E_DTYPE, "data: they are handed out as f32%s, not as %s",
                       config->coordinates > 0 ? " at points" : " or f64",
                       tg_dtype_name(config->dtype));
    }
    facts->dtype = is_complex ? tg_dtype_complex(config->dtype) : config->dtype;
    facts->layout = d->layout.kind;
    TG_CALL(set_samples(d, config));
    memcpy(facts->grid, x->points + pad, (size_t)config->n_dim * sizeof facts->grid[0]);
    facts->grid[0] = x->all_rows;
    facts->first_row = x->first_row;
    facts->rows = x->points[pad];
    memcpy(facts->file_grid, x->grid + pad, (size_t)config->n_dim * sizeof facts->grid[0]);
    TG_CALL(set_bytes(d, &d->sides[TG_DATA_X]));
    TG_CALL(set_bytes(d, &d->sides[TG_DATA_Y]));
    facts->x_ndim = tg_array_shape(x->part[0].array)->ndim;
    facts->frame_channels = x->channels;
    facts->in_channels = facts->history * x->channels;
    facts->x_bytes = (size_t)facts->history * x->bytes;
    y = d->layout.is_trajectory ? x : y;
    facts->out_channels = facts->horizon * y->channels;
    facts->y_bytes = (size_t)facts->horizon * y->bytes;
    return TG_OK;
}

/* Whether dimension `at` of x holds channels, since y has another number of them there, or none. */
static bool y_shows_channels(const tg_dataset *d, int at) {
    if (d->sides[TG_DATA_Y].parts == 0) {
        return false;
    }
    tg_shape x = *tg_array_shape(d->sides[TG_DATA_X].part[0].array);
    tg_shape y = *tg_array_shape(d->sides[TG_DATA_Y].part[0].array);
    const bool are_other = y.ndim < x.ndim || x.dim[at] != y.dim[at];
    y.dim[at] = y.ndim == x.ndim ? x.dim[at] : y.dim[at];
    if (y.ndim == x.ndim - 1) {
        memmove(x.dim + at, x.dim + at + 1, (size_t)(x.ndim - at - 1) * sizeof x.dim[0]);
        x.ndim--;
    }
    return are_other && x.ndim == y.ndim &&
           memcmp(x.dim, y.dim, (size_t)x.ndim * sizeof x.dim[0]) == 0;
}

/* The dimensions of the grid of x, or of a frame, if they are not configured. */
static int guess_dimensions(const tg_dataset *d) {
    const tg_shape *shape = tg_array_shape(d->sides[TG_DATA_X].part[0].array);
    const int lead = d->layout.is_trajectory ? 2 : 1, left = shape->ndim - lead;
    const bool is_last = d->layout.channels_last;
    if (d->layout.n_dim > 0 || left < 2) {
        return d->layout.n_dim > 0 ? d->layout.n_dim : 1;
    }
    const int at = is_last ? shape->ndim - 1 : lead;
    const int64_t channels = shape->dim[at], neighbour = shape->dim[is_last ? at - 1 : at + 1];
    const bool has_channels = left > TG_DATA_MAX_DIMS ||
                              (channels <= 16 && 2 * channels <= neighbour) ||
                              y_shows_channels(d, at);
    return has_channels ? left - 1 : left;
}

tg_status tg_dataset_check_config(tg_context *ctx, const tg_dataset_config *config,
                                  bool may_guess) {
    if (config->n_dim < (may_guess ? 0 : 1) || config->n_dim > TG_DATA_MAX_DIMS) {
        return tg_fail(ctx, TG_E_ARGUMENT, "dataset: n_dim: expected 1 to %d, found %d",
                       TG_DATA_MAX_DIMS, config->n_dim);
    }
    if (config->coordinates < 0 || config->coordinates > TG_DATA_MAX_DIMS ||
        (config->coordinates > 0 &&
         (config->n_dim != 1 || config->complex_data || config->layout > TG_LAYOUT_PAIRS))) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "dataset: coordinates %d, n_dim %d, layout %s: expected 1 to %d coordinates "
                       "of points, n_dim 1, real data and pairs",
                       config->coordinates, config->n_dim, tg_layout_name(config->layout),
                       TG_DATA_MAX_DIMS);
    }
    int64_t least = config->grid[0];
    for (int d = 1; d < config->n_dim; d++) {
        least = config->grid[d] < least ? config->grid[d] : least;
    }
    if (least < 0 || config->n_samples < 0 ||
        config->n_validation < (config->is_validation ? 1 : 0) || config->y_time < TG_TIME_ALL) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "dataset: %" PRId64 " points, n_samples %" PRId64 ", n_validation %" PRId64
                       ", y_time %" PRId64 ": expected none below 0 (y_time: or TG_TIME_*)",
                       least, config->n_samples, config->n_validation, config->y_time);
    }
    if (config->part < 0 || config->parts < 0 || config->part >= tg_max(config->parts, 1) ||
        (config->parts > 1 && config->coordinates > 0)) {
        return tg_fail(ctx, TG_E_ARGUMENT, "dataset: part %d of %d%s", config->part, config->parts,
                       config->coordinates > 0 ? "; points have no parts" : "");
    }
    if (config->first_sample < 0 || config->history < 0 || config->horizon < 0 ||
        config->time_stride < 0 || config->first_frame < 0 || config->n_frames < 0) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "dataset: first_sample %" PRId64 ", history %" PRId64 ", horizon %" PRId64
                       ", time_stride %" PRId64 ", first_frame %" PRId64 ", n_frames %" PRId64
                       ": expected none below 0",
                       config->first_sample, config->history, config->horizon, config->time_stride,
                       config->first_frame, config->n_frames);
    }
    return TG_OK;
}

tg_status tg_dataset_set_layout(tg_dataset *d, const tg_dataset_config *given) {
    tg_dataset_config full = *given;
    const tg_dataset_config *config = &full;
    full.n_dim = given->n_dim > 0 ? given->n_dim : guess_dimensions(d);
    if (given->n_dim == 0 && d->layout.n_dim == 0 && looks_side_last(d, TG_DATA_X)) {
        char shapes[SHAPES_TEXT];
        return tg_fail(d->ctx, TG_E_SHAPE,
                       "%s: expected the channels before the grid, but %s%s; if there are "
                       "none, give x a dimension of 1 there",
                       tg_array_label(d->sides[TG_DATA_X].part[0].array), shapes_text(d, shapes),
                       order_text(d));
    }
    if (full.n_dim > TG_DATA_MAX_DIMS) {
        return bad_shape(d, &d->sides[TG_DATA_X].part[0], TG_DATA_MAX_DIMS, "a grid");
    }
    d->facts.times = d->facts.history = d->facts.horizon = 1;
    if (d->layout.is_trajectory) {
        TG_CALL(set_frames(d, config));
        TG_CALL(set_windows(d, config));
    } else {
        TG_CALL(set_pairs(d, config));
    }
    return set_facts(d, config);
}
