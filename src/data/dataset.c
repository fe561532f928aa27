/* A dataset: arrays of samples in files or in memory, returned as pairs x and y (samples, channels,
 * grid..).
 *
 * Reading works on rows: samples of x and of y, or frames of trajectories, of which a sample takes
 * several. A stored row is converted by selecting a time (of y) and every s-th point of the grid,
 * moving channels first, and casting to the dtype. A set that fits in the cache is converted once,
 * when it is opened; a larger one on each read, a range of neighbours at a time, so that only a
 * buffer of some megabytes is in use. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "data/dataset.h"

enum { BUFFER = 4 << 20 }; /* bytes of stored samples read at once, at least one sample */

void tg_dataset_config_init(tg_dataset_config *config, size_t size) {
    const tg_dataset_config defaults = {.size = sizeof defaults,
                                        .n_dim = 2,
                                        .x_name = "x",
                                        .y_name = "y",
                                        .y_time = TG_TIME_LAST,
                                        .cache_bytes = (size_t)1 << 30,
                                        .history = 1,
                                        .horizon = 1,
                                        .time_stride = 1};
    tg_sized_init(config, size, &defaults, sizeof defaults);
}

tg_dataset_facts tg_dataset_get_facts(const tg_dataset *dataset) {
    return dataset ? dataset->facts : (tg_dataset_facts){0};
}

const char *tg_dataset_array(const tg_dataset *dataset, int index) {
    return dataset && index >= 0 && index < dataset->layout.count
               ? dataset->layout.fields[index].name
               : NULL;
}

static void close_parts(tg_dataset_side *side) {
    for (int k = 0; k < side->parts; k++) {
        tg_array_close(&side->part[k].array);
    }
}

void tg_dataset_close(tg_dataset **dataset) {
    if (!dataset || !*dataset) {
        return;
    }
    tg_dataset *d = *dataset;
    for (int i = 0; i < 2; i++) {
        close_parts(&d->sides[i]);
        for (int k = 0; k < d->sides[i].parts; k++) {
            TG_FREE(d->ctx, d->sides[i].part[k].label);
        }
        TG_FREE(d->ctx, d->sides[i].cache);
    }
    TG_FREE(d->ctx, d->buffer);
    TG_FREE(d->ctx, d->requests);
    tg_mem_free(d->ctx, d);
    *dataset = NULL;
}

/* ---- from stored to returned samples ---- */

/* Every `step`-th of a row's elements. */
static void copy_row(char *dst, const char *src, int64_t count, int64_t step, size_t element) {
    if (step == 1) {
        memcpy(dst, src, (size_t)count * element);
        return;
    }
    for (int64_t i = 0; i < count; i++, dst += element, src += (size_t)step * element) {
        memcpy(dst, src, element);
    }
}

/* The channels of one part of a row. */
static void copy_part(const tg_dataset_side *s, const tg_dataset_part *part, size_t element,
                      const char *stored, char *out) {
    const int64_t *n = s->grid, *p = s->points, *step = s->strides;
    const size_t row = (size_t)p[2] * element;
    for (int64_t c = 0; c < part->times * part->channels; c++) {
        const int64_t channel = part->skip + c / part->channels * part->time_step +
                                c % part->channels * part->channel_step;
        for (int64_t i = 0; i < p[0]; i++) {
            for (int64_t j = 0; j < p[1]; j++, out += row) {
                const int64_t point = (i * step[0] * n[1] + j * step[1]) * n[2];
                copy_row(out, stored + (size_t)(channel + point * part->point_step) * element, p[2],
                         step[2] * part->point_step, element);
            }
        }
    }
}

/* Number of stored rows that fit in the buffer, at least one. */
static int64_t buffer_rows(const tg_dataset_side *s) {
    const int64_t fit = (int64_t)(BUFFER / (s->stored_bytes ? s->stored_bytes : 1));
    return fit > 1 ? fit : 1;
}

/* Reads the rows [first, first + span) of every part through the buffer for `count` requests. */
static tg_status read_run(tg_dataset *d, const tg_dataset_side *s,
                          const tg_dataset_request *requests, int64_t count, int64_t span,
                          char *out) {
    const size_t element = tg_dtype_size(d->facts.dtype);
    const size_t points = (size_t)(s->points[0] * s->points[1] * s->points[2]) * element;
    const int64_t first = requests[0].index;
    for (int k = 0; k < s->parts; k++) {
        const tg_dataset_part *part = &s->part[k];
        TG_CALL(tg_array_read(part->array, s->lead, d->first_row + first, span, &part->slab,
                              d->facts.dtype, d->buffer));
        for (int64_t i = 0; i < count; i++) {
            char *to = out + (size_t)requests[i].place * s->bytes;
            copy_part(s, part, element,
                      d->buffer + (size_t)(requests[i].index - first) * part->stored_bytes, to);
            TG_CALL(s->is_points ? tg_dataset_check_points(d, requests[i].index, (float *)to)
                                 : TG_OK);
        }
        out += (size_t)(part->times * part->channels) * points;
    }
    return TG_OK;
}

/* Requests sorted by index, so that neighbours in the file are read together. */
static tg_status stream(tg_dataset *d, const tg_dataset_side *s, const tg_dataset_request *requests,
                        int64_t count, char *out) {
    const int64_t most = buffer_rows(s);
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
        const int64_t first = requests[begin].index;
        for (end = begin + 1; end < count && requests[end].index - requests[end - 1].index <= 1 &&
                              requests[end].index - first < most;) {
            end++;
        }
        const int64_t span = requests[end - 1].index - first + 1;
        TG_CALL(read_run(d, s, requests + begin, end - begin, span, out));
    }
    return TG_OK;
}

static tg_status reserve(tg_dataset *d, int64_t count) {
    if (count <= d->capacity) {
        return TG_OK;
    }
    TG_FREE(d->ctx, d->requests);
    d->capacity = 0;
    tg_status status = TG_ALLOC(d->ctx, TG_MEM_DATA, d->requests, count);
    d->capacity = status == TG_OK ? count : 0;
    return status;
}

static int by_index(const void *a, const void *b) {
    const tg_dataset_request *x = a, *y = b;
    if (x->index != y->index) {
        return x->index < y->index ? -1 : 1;
    }
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Rows of a sample that are returned as x or y. */
static int64_t frames_of(const tg_dataset *d, tg_data_side which) {
    return which == TG_DATA_X ? d->facts.history : d->facts.horizon;
}

int64_t tg_dataset_row(const tg_dataset *d, tg_data_side which, int64_t index, int64_t frame) {
    if (!d->layout.is_trajectory) {
        return index;
    }
    const int64_t step = which == TG_DATA_X ? frame : d->facts.history + frame;
    return index / d->windows * d->facts.times + d->first_frame + index % d->windows +
           step * d->time_stride;
}

static tg_status read_side(tg_dataset *d, tg_data_side which, const int64_t *indices, int64_t count,
                           char *out) {
    const tg_dataset_side *s = &d->sides[d->layout.is_trajectory ? TG_DATA_X : which];
    const int64_t frames = frames_of(d, which);
    for (int64_t i = 0; i < count * frames; i++) {
        const int64_t row = tg_dataset_row(d, which, indices[i / frames], i % frames);
        if (s->cache) {
            memcpy(out + (size_t)i * s->bytes, s->cache + (size_t)row * s->bytes, s->bytes);
        } else {
            d->requests[i] = (tg_dataset_request){.index = row, .place = i};
        }
    }
    if (s->cache || count == 0) {
        return TG_OK;
    }
    qsort(d->requests, (size_t)(count * frames), sizeof *d->requests, by_index);
    return stream(d, s, d->requests, count * frames, out);
}

/* Requests for every sample to read. */
static int64_t most_frames(const tg_dataset *d) {
    return tg_max(d->facts.horizon, d->facts.history);
}

tg_status tg_dataset_read(tg_dataset *dataset, const int64_t *indices, int64_t count, void *x,
                          void *y) {
    TG_NEED(NULL, dataset);
    TG_NEED(dataset->ctx, indices);
    tg_dataset *d = dataset;
    if (y && d->facts.out_channels == 0) {
        return tg_fail(d->ctx, TG_E_ARGUMENT, "the dataset was opened without y");
    }
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] < 0 || indices[i] >= d->facts.samples) {
            return tg_fail(d->ctx, TG_E_ARGUMENT,
                           "sample %" PRId64 " was asked for, there are %" PRId64, indices[i],
                           d->facts.samples);
        }
    }
    TG_CALL(d->facts.cached ? TG_OK : reserve(d, count * most_frames(d)));
    TG_CALL(x ? read_side(d, TG_DATA_X, indices, count, x) : TG_OK);
    return y ? read_side(d, TG_DATA_Y, indices, count, y) : TG_OK;
}

/* ---- opening ---- */

/* Reads all rows through the buffer and closes the file. */
static tg_status fill_cache(tg_dataset *d, tg_dataset_side *s) {
    const int64_t most = buffer_rows(s);
    TG_CALL(TG_ALLOC(d->ctx, TG_MEM_DATA, s->cache, (size_t)d->rows * s->bytes));
    TG_CALL(reserve(d, most));
    for (int64_t first = 0; first < d->rows; first += most) {
        const int64_t left = d->rows - first;
        const int64_t count = tg_min(left, most);
        for (int64_t i = 0; i < count; i++) {
            d->requests[i] = (tg_dataset_request){.index = first + i, .place = first + i};
        }
        TG_CALL(stream(d, s, d->requests, count, s->cache));
    }
    close_parts(s);
    return TG_OK;
}

static tg_status keep_labels(tg_dataset *d) {
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < d->sides[i].parts; k++) {
            tg_dataset_part *part = &d->sides[i].part[k];
            part->label = tg_mem_strdup(d->ctx, tg_array_label(part->array));
            TG_CALL(part->label ? TG_OK : TG_E_MEMORY);
        }
    }
    return TG_OK;
}

/* Whether the set fits in the cache; returns the bytes of the buffer. */
static size_t measure(tg_dataset *d, size_t cache_bytes) {
    size_t buffer = 0, row = 0, total = 0;
    for (int i = 0; i < 2 && d->sides[i].parts > 0; i++) {
        const size_t bytes = (size_t)buffer_rows(&d->sides[i]) * d->sides[i].stored_bytes;
        buffer = tg_max_size(buffer, bytes);
        row += d->sides[i].bytes;
    }
    d->facts.cached = !__builtin_mul_overflow(row, (size_t)d->rows, &total) && total <= cache_bytes;
    return buffer;
}

static tg_status make_buffers(tg_dataset *d, size_t cache_bytes) {
    const size_t buffer = measure(d, cache_bytes);
    TG_CALL(keep_labels(d));
    TG_CALL(TG_ALLOC(d->ctx, TG_MEM_DATA, d->buffer, buffer));
    if (d->facts.cached) {
        for (int i = 0; i < 2 && d->sides[i].parts > 0; i++) {
            TG_CALL(fill_cache(d, &d->sides[i]));
        }
        TG_FREE(d->ctx, d->buffer);
        TG_FREE(d->ctx, d->requests);
        d->capacity = 0;
    }
    return TG_OK;
}

/* Source of the arrays: files, or memory of the caller. */
typedef struct origin {
    const char *path, *y_path;
    const tg_tensor *x, *y; /* x set: in memory */
} origin;

/* Where the x is in "NAME_x.npy", "x_NAME.npy" or "x.npy"; NULL: the path is another one. */
static char *x_of_pair(char *path) {
    static const char ending[] = "_x.npy";
    const size_t length = strlen(path), tail = sizeof ending - 1;
    char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (length >= tail && strcmp(path + length - tail, ending) == 0) {
        return path + length - tail + 1;
    }
    return strncmp(name, "x_", 2) == 0 || strcmp(name, "x.npy") == 0 ? name : NULL;
}

/* The file of y: `y_path`, the partner of "NAME_x.npy", or the file of x. *made must be freed. */
static tg_status partner_of(tg_context *ctx, const char *path, const char *y_path, char **made,
                            const char **out) {
    tg_file_format format = TG_FILE_FORMATS;
    *out = y_path;
    if (y_path) {
        return TG_OK;
    }
    tg_status status = tg_file_detect(ctx, path, &format);
    if (status != TG_OK || format != TG_FILE_NPY) {
        *out = path;
        return status;
    }
    *made = tg_mem_strdup(ctx, path);
    char *x = *made ? x_of_pair(*made) : NULL;
    if (!*made) {
        return TG_E_MEMORY;
    }
    if (!x) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "%s: an npy file holds one array: call the files of a pair NAME_x.npy and "
                       "NAME_y.npy, x_NAME.npy and y_NAME.npy, or x.npy and y.npy, and name that "
                       "of x",
                       path);
    }
    *x = 'y';
    *out = *made;
    return TG_OK;
}

/* Adds the array `name` as a part of a side. */
static tg_status open_part(tg_dataset *d, tg_data_side which, const char *path, const char *name,
                           const tg_dataset_config *config) {
    tg_dataset_side *s = &d->sides[which];
    return tg_array_open(d->ctx, path, name, &d->layout.form, config->cache_bytes,
                         &s->part[s->parts++].array);
}

/* The error for a missing name says which setting holds it. */
static tg_status open_array(tg_dataset *d, tg_data_side which, const char *path,
                            const tg_dataset_config *config) {
    const char *given = which == TG_DATA_X ? config->x_name : config->y_name;
    const char *letter = which == TG_DATA_X ? "x" : "y";
    if (config->coordinates > 0 && (!given || strcmp(given, letter) == 0)) {
        given = which == TG_DATA_X ? "points" : "values";
    }
    tg_field *field = &d->layout.fields[which];
    const bool is_named = d->layout.count <= (int)which; /* not found by the layout */
    if (is_named) {
        const char *group = config->group ? config->group : "";
        *field = (tg_field){0};
        snprintf(field->name, sizeof field->name, "%s%s%s", group, *group ? "/" : "",
                 given ? given : letter);
        tg_field_take_range(field);
    }
    const tg_status status = open_part(d, which, path, field->name, config);
    d->layout.count += status == TG_OK && is_named ? 1 : 0;
    return status != TG_E_ARGUMENT
               ? status
               : tg_fail(d->ctx, status, "%.760s; data.%s_name says which one is %s",
                         tg_context_error(d->ctx), letter, letter);
}

static tg_status wrap_arrays(tg_dataset *d, const origin *from, bool x_only) {
    TG_CALL(tg_array_wrap(d->ctx, from->x, "array x", &d->sides[TG_DATA_X].part[0].array));
    d->sides[TG_DATA_X].parts = 1;
    if (!x_only) {
        d->sides[TG_DATA_Y].parts = 1;
        TG_CALL(tg_array_wrap(d->ctx, from->y, "array y", &d->sides[TG_DATA_Y].part[0].array));
    }
    return TG_OK;
}

static tg_status open_pairs(tg_dataset *d, const origin *from, const tg_dataset_config *config) {
    tg_status status = TG_OK;
    char *made = NULL;
    const char *y_file = NULL;
    TG_TRY(open_array(d, TG_DATA_X, from->path, config));
    if (!config->x_only) {
        TG_TRY(partner_of(d->ctx, from->path, from->y_path, &made, &y_file));
        TG_TRY(open_array(d, TG_DATA_Y, y_file, config));
    }
fail:
    TG_FREE(d->ctx, made);
    return status;
}

static tg_status open_fields(tg_dataset *d, const char *path, const tg_dataset_config *config) {
    tg_file_format format = TG_FILE_FORMATS;
    TG_CALL(tg_file_detect(d->ctx, path, &format));
    for (int i = 0; i < d->layout.count; i++) {
        const char *first = d->layout.fields[0].name, *name = d->layout.fields[i].name;
        if (format == TG_FILE_NPY && strcmp(name, first) != 0) {
            return tg_fail(d->ctx, TG_E_CONFIG,
                           "%s: an npy file holds one array, and data.fields names '%s' and '%s'; "
                           "npz, safetensors and HDF5 files hold several",
                           path, first, name);
        }
        TG_CALL(open_part(d, TG_DATA_X, path, d->layout.fields[i].name, config));
    }
    return TG_OK;
}

/* The arrays of a file whose layout is detected. */
static tg_status open_layout(tg_dataset *d, const origin *from, const tg_dataset_config *config) {
    TG_CALL(tg_layout_find(d->ctx, from->path, config, &d->layout));
    d->layout.channels_last = d->layout.channels_last || config->channels_last;
    return d->layout.is_trajectory ? open_fields(d, from->path, config)
                                   : open_pairs(d, from, config);
}

/* An HDF5 file without x and y may have another layout; if it matches none, or the file has another
 * format, the arrays are missing. */
static tg_status open_other_layout(tg_dataset *d, const origin *from,
                                   const tg_dataset_config *config, tg_file_format format) {
    char sentence[900];
    snprintf(sentence, sizeof sentence, "%s", tg_context_error(d->ctx));
    for (int i = 0; i < 2; i++) {
        close_parts(&d->sides[i]);
        d->sides[i].parts = 0;
    }
    const bool is_h5 = format == TG_FILE_HDF5;
    const tg_status status = is_h5 ? open_layout(d, from, config) : TG_E_CONFIG;
    return status == TG_E_CONFIG && (!is_h5 || d->layout.kind == TG_LAYOUT_AUTO)
               ? tg_fail(d->ctx, TG_E_ARGUMENT, "%s; data.fields says which are fields in time%s",
                         sentence,
                         is_h5 ? ", data.layout that it is one of trajectory, well, pdebench, "
                                 "numbered, pdearena and matlab"
                               : "")
               : status;
}

static tg_status open_arrays(tg_dataset *d, const origin *from, const tg_dataset_config *config) {
    tg_file_format format = TG_FILE_FORMATS;
    bool is_other = config->layout > TG_LAYOUT_PAIRS, is_matlab = false;
    d->layout = (tg_layout){.kind = TG_LAYOUT_PAIRS, .channels_last = config->channels_last};
    if (from->x) {
        return wrap_arrays(d, from, config->x_only);
    }
    TG_CALL(tg_layout_is_matlab(d->ctx, from->path, &is_matlab));
    d->layout.form.is_reversed = is_matlab;
    if (config->layout == TG_LAYOUT_AUTO && config->coordinates == 0) {
        TG_CALL(tg_file_detect(d->ctx, from->path, &format));
        is_other = is_matlab || (config->fields && config->fields[0]);
    }
    if (is_other) {
        return open_layout(d, from, config);
    }
    const tg_status status = open_pairs(d, from, config);
    return status == TG_E_ARGUMENT && config->layout == TG_LAYOUT_AUTO && !from->y_path &&
                   format != TG_FILE_NPY
               ? open_other_layout(d, from, config, format)
               : status;
}

/* Opens the arrays and interprets their shapes; reads no sample. */
static tg_status look_at(tg_context *ctx, const origin *from, const tg_dataset_config *config,
                         tg_dataset **out) {
    tg_status status = TG_OK;
    tg_dataset *d = NULL;
    *out = NULL;
    TG_TRY(tg_dataset_check_config(ctx, config, !from->x));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, d, 1));
    d->ctx = ctx;
    TG_TRY(open_arrays(d, from, config));
    TG_TRY(tg_dataset_set_layout(d, config));
    *out = d;
    return TG_OK;
fail:
    tg_dataset_close(&d);
    return status;
}

void tg_dataset_warn(tg_context *ctx, const tg_dataset *dataset, const char *path) {
    const tg_dataset_side *x = &dataset->sides[TG_DATA_X];
    const tg_dataset_facts *facts = &dataset->facts;
    const int n_dim = facts->n_dim, pad = TG_DATA_MAX_DIMS - n_dim;
    char from[128], to[128], every[128];
    tg_dataset_warn_of_order(ctx, dataset, path);
    for (int i = pad + 1; i < TG_DATA_MAX_DIMS; i++) {
        if (x->strides[i] != x->strides[pad]) {
            const tg_shape shapes[] = {tg_shape_of(n_dim, facts->file_grid),
                                       tg_shape_of(n_dim, facts->grid),
                                       tg_shape_of(n_dim, x->strides + pad)};
            tg_log(ctx, TG_LOG_WARN, "%s: of its grid of %s only %s is used: one point in %s", path,
                   tg_shape_text(&shapes[0], from, sizeof from),
                   tg_shape_text(&shapes[1], to, sizeof to),
                   tg_shape_text(&shapes[2], every, sizeof every));
            return;
        }
    }
}

static tg_status make(tg_context *ctx, const origin *from, const tg_dataset_config *config,
                      size_t cache_bytes, const char *label, tg_dataset **out) {
    tg_status status = look_at(ctx, from, config, out);
    if (status == TG_OK) {
        tg_dataset_warn(ctx, *out, label);
        status = make_buffers(*out, cache_bytes);
    }
    if (status != TG_OK) {
        tg_dataset_close(out);
    }
    return status;
}

/* The caller's config as this library's version of it; NULL: the default. */
static tg_status read_config(tg_context *ctx, const tg_dataset_config *config,
                             tg_dataset_config *out) {
    *out = tg_dataset_config_default();
    return config ? TG_SIZED_READ(ctx, tg_dataset_config, n_dim, config, out) : TG_OK;
}

tg_status tg_dataset_open(tg_context *ctx, const char *path, const char *y_path,
                          const tg_dataset_config *config, tg_dataset **out) {
    TG_NEED_OUT(ctx, out, ctx, path);
    tg_dataset_config full;
    TG_CALL(read_config(ctx, config, &full));
    const origin files = {.path = path, .y_path = y_path};
    return make(ctx, &files, &full, full.cache_bytes, path, out);
}

/* Uncached: reads return the current values of the arrays. */
tg_status tg_dataset_wrap(tg_context *ctx, const tg_tensor *x, const tg_tensor *y,
                          const tg_dataset_config *config, tg_dataset **out) {
    TG_NEED_OUT(ctx, out, ctx, x);
    tg_dataset_config how;
    TG_CALL(read_config(ctx, config, &how));
    if (!config) {
        how.n_dim = x->shape.ndim - 2;
    }
    how.x_only = how.x_only || !y;
    const origin memory = {.x = x, .y = y};
    return make(ctx, &memory, &how, 0, "array x", out);
}

/* Reads each side through the buffer into its cache and closes its file. */
static tg_dataset_bytes plan_bytes(tg_dataset *d, size_t cache_bytes, const size_t files[2]) {
    const size_t buffer = measure(d, cache_bytes);
    tg_dataset_bytes bytes = {.opening = files[0] + files[1] + buffer};
    bytes.held = bytes.opening;
    bytes.request = (size_t)most_frames(d) * sizeof(tg_dataset_request);
    if (!d->facts.cached) {
        return bytes;
    }
    size_t open = files[0] + files[1], cache = 0, requests = 0;
    for (int i = 0; i < 2 && d->sides[i].parts > 0; i++) {
        const size_t most = (size_t)buffer_rows(&d->sides[i]) * sizeof(tg_dataset_request);
        cache += (size_t)d->rows * d->sides[i].bytes;
        requests = tg_max_size(requests, most);
        const size_t now = open + buffer + cache + requests;
        bytes.opening = tg_max_size(bytes.opening, now);
        open -= files[i];
    }
    bytes.held = cache;
    bytes.request = 0;
    return bytes;
}

tg_status tg_dataset_plan(tg_context *ctx, const char *path, const tg_dataset_config *config,
                          tg_dataset_facts *facts, tg_dataset_bytes *bytes) {
    tg_dataset *d = NULL;
    tg_context quiet = tg_context_branch(ctx); /* warnings about a file come when it is opened */
    *bytes = (tg_dataset_bytes){0};
    const origin from = {.path = path};
    const tg_status status = look_at(&quiet, &from, config, &d);
    if (status == TG_OK) {
        size_t files[2] = {0, 0};
        for (int i = 0; i < 2; i++) {
            for (int k = 0; k < d->sides[i].parts; k++) {
                files[i] += tg_array_bytes(d->sides[i].part[k].array);
            }
        }
        *bytes = plan_bytes(d, config->cache_bytes, files);
        *facts = d->facts;
    }
    tg_dataset_close(&d);
    return tg_context_adopt(ctx, &quiet, status);
}
