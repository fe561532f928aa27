/* Models and sessions of tgrad_predict.h: loading, checks and allocation. The arithmetic is in
 * tgrad_predict_run.c. */
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "tgrad_predict_inside.h"

enum { HEADER = 4096, ALIGNMENT = 64, MAX_SIZE = 1 << 20 };

#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static void *
fail(char *error, const char *format, ...) {
    if (error) {
        va_list list;
        va_start(list, format);
        vsnprintf(error, TGP_ERROR, format, list);
        va_end(list);
    }
    return NULL;
}

/* ---- model files ---- */

/* The header is text: a line for each of these, then zeros up to the weights, which are
 * little-endian f32. */
static const char FORMAT[] = "tgrad-predict 1\n"
                             "dims %d\n"
                             "channels %zu %zu %zu\n" /* in, out, hidden */
                             "modes %zu %zu %zu\n"    /* of the weights; 1 for unused dimensions */
                             "layers %d\n"
                             "hidden %zu %zu %zu\n" /* of lifting, blocks (0: none), projection */
                             "skips %d %d\n"        /* of the convolution and the MLP */
                             "norm %d\n"
                             "embedding %d\n"
                             "tanh %d\n"
                             "padding %lf %d\n" /* share of each size, whether on both sides */
                             "end %n";

static int is_size(size_t value) {
    return value >= 1 && value <= MAX_SIZE;
}

static int is_sound(const tgp_model *m, const size_t hidden[3]) {
    int fits = m->dims >= 1 && m->dims <= TGP_MAX_DIMS && m->layers >= 1 && m->layers <= 1024;
    fits = fits && is_size(m->in) && is_size(m->out) && is_size(m->channels);
    for (int d = 0; d < TGP_MAX_DIMS; d++) {
        fits = fits && is_size(m->modes[d]) && (d < m->dims || m->modes[d] == 1);
    }
    fits = fits && is_size(hidden[0]) && hidden[1] <= MAX_SIZE && is_size(hidden[2]);
    fits = fits && (unsigned)m->fno_skip < SKIPS && (unsigned)m->mlp_skip < SKIPS;
    fits = fits && (unsigned)m->norm < NORMS && m->padding >= 0 && m->padding <= 16;
    return fits;
}

/* Arrays of numbers, read consecutively; past the end of the file they are only counted. */
typedef struct {
    const float *data;
    double at, size;
} numbers;

static const float *next(numbers *n, double count) {
    const float *out = n->at + count <= n->size ? n->data + (size_t)n->at : NULL;
    n->at += count;
    return out;
}

static void read_mlp(numbers *n, size_t in, size_t hidden, size_t out, mlp *m) {
    m->in = in;
    m->hidden = hidden;
    m->out = out;
    m->w1 = next(n, (double)hidden * (double)in);
    m->b1 = next(n, (double)hidden);
    m->w2 = next(n, (double)out * (double)hidden);
    m->b2 = next(n, (double)out);
}

static const float *read_skip(numbers *n, skip_kind kind, double channels) {
    return next(n, kind == SKIP_LINEAR     ? channels * channels
                   : kind == SKIP_IDENTITY ? 0
                                           : channels);
}

static void read_arrays(tgp_model *m, const size_t hidden[3], numbers *n) {
    const double channels = (double)m->channels;
    const double modes = (double)m->modes[0] * (double)m->modes[1] * (double)m->modes[2];
    m->x_scale = next(n, (double)m->in);
    m->x_shift = next(n, (double)m->in);
    read_mlp(n, m->in + (m->embeds ? (size_t)m->dims : 0), hidden[0], m->channels, &m->lifting);
    for (int l = 0; l < m->layers; l++) {
        block *b = &m->blocks[l];
        b->weight = next(n, 2 * channels * channels * modes);
        b->bias = next(n, channels);
        b->fno_skip = read_skip(n, m->fno_skip, channels);
        b->norm[0] = m->norm == NORM_GROUP ? next(n, 2 * channels) : NULL;
        if (hidden[1] > 0) {
            read_mlp(n, m->channels, hidden[1], m->channels, &b->mlp);
            b->mlp_skip = read_skip(n, m->mlp_skip, channels);
            b->norm[1] = m->norm == NORM_GROUP ? next(n, 2 * channels) : NULL;
        }
    }
    read_mlp(n, m->channels, hidden[2], m->out, &m->projection);
    m->y_scale = next(n, (double)m->out);
    m->y_shift = next(n, (double)m->out);
}

tgp_model *tgp_load_memory(const void *bytes, size_t size, char *error) {
    const uint32_t one = 1;
    char header[HEADER + 1] = {0};
    size_t hidden[3];
    int skips[2], norm, end = 0;
    if (!bytes || size < HEADER || *(const char *)&one != 1 || (uintptr_t)bytes % 4 != 0) {
        return fail(error, "no model: it is shorter than its header, or at an odd address");
    }
    tgp_model *m = calloc(1, sizeof *m);
    if (!m) {
        return fail(error, "out of memory");
    }
    memcpy(header, bytes, HEADER);
    const int found =
        sscanf(header, FORMAT, &m->dims, &m->in, &m->out, &m->channels, &m->modes[0], &m->modes[1],
               &m->modes[2], &m->layers, &hidden[0], &hidden[1], &hidden[2], &skips[0], &skips[1],
               &norm, &m->embeds, &m->is_tanh, &m->padding, &m->is_symmetric, &end);
    if (found != 18 || end == 0) {
        free(m);
        return fail(error, "no model that `tgrad export --c` wrote, or one of another version");
    }
    m->fno_skip = (skip_kind)skips[0];
    m->mlp_skip = (skip_kind)skips[1];
    m->norm = (norm_kind)norm;
    m->mode_count = m->modes[0] * m->modes[1] * m->modes[2];
    m->blocks = is_sound(m, hidden) ? calloc((size_t)m->layers, sizeof *m->blocks) : NULL;
    if (!m->blocks) {
        free(m);
        return fail(error, "the header of the model has a size out of range");
    }
    numbers n = {.data = (const float *)(const void *)((const char *)bytes + HEADER),
                 .size = (double)((size - HEADER) / sizeof(float))};
    read_arrays(m, hidden, &n);
    if (n.at != n.size || size % sizeof(float) != 0) {
        const double wanted = n.at * 4 + HEADER;
        tgp_free(m);
        return fail(error, "the model has %.0f bytes, but its header asks for %.0f: it is damaged",
                    (double)size, wanted);
    }
    return m;
}

/* The bytes of a file; NULL after an error. */
static void *read_file(const char *path, size_t *size, char *error) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        return fail(error, "%s: cannot be opened", path);
    }
    const long length = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    void *bytes = length >= 0 ? malloc((size_t)length + 1) : NULL;
    rewind(file);
    *size = bytes ? fread(bytes, 1, (size_t)length, file) : 0;
    fclose(file);
    if (!bytes || *size != (size_t)length) {
        free(bytes);
        return fail(error, "%s: cannot be read, or does not fit in memory", path);
    }
    return bytes;
}

tgp_model *tgp_load(const char *path, char *error) {
    size_t size = 0;
    char why[TGP_ERROR] = "";
    if (!path) {
        return fail(error, "tgp_load: a path is needed");
    }
    void *bytes = read_file(path, &size, error);
    if (!bytes) {
        return NULL;
    }
    tgp_model *model = tgp_load_memory(bytes, size, why);
    if (!model) {
        free(bytes);
        return fail(error, "%.100s: %s", path, why);
    }
    model->owned = bytes;
    return model;
}

void tgp_free(tgp_model *model) {
    if (model) {
        free(model->blocks);
        free(model->owned);
        free(model);
    }
}

int tgp_dims(const tgp_model *model) {
    return model ? model->dims : 0;
}

long tgp_in_channels(const tgp_model *model) {
    return model ? (long)model->in : 0;
}

long tgp_out_channels(const tgp_model *model) {
    return model ? (long)model->out : 0;
}

/* ---- sessions ---- */

/* Pieces of one block of memory; if `base` is NULL they are only counted. */
typedef struct {
    char *base;
    double count; /* numbers; exact, and no overflow even if memory would not suffice */
} arena;

static float *take(arena *a, double count) {
    float *out = a->base ? (float *)(void *)a->base + (size_t)a->count : NULL;
    a->count += ceil(count / (ALIGNMENT / 4)) * (ALIGNMENT / 4);
    return out;
}

static void lay_out(tgp_session *s, arena *a) {
    const tgp_model *m = s->model;
    const double channels = (double)m->channels;
    double stage = (double)s->kept, inner = 1;
    for (int d = 0; d < m->dims; d++) {
        axis *x = &s->axes[d];
        const int is_last = d == m->dims - 1;
        const double table = (double)x->kept * (double)x->padded;
        x->cosines = take(a, table);
        x->sines = take(a, is_last ? table : 2 * table);
        x->back_cosines = take(a, table);
        x->back_sines = take(a, is_last ? table : 2 * table);
    }
    for (int d = m->dims - 1; d >= 0; d--) { /* the largest intermediate result of the transforms */
        double outer = 1;
        inner *= (double)s->axes[d].kept;
        for (int e = 0; e < d; e++) {
            outer *= (double)s->axes[e].padded;
        }
        stage = stage > outer * inner ? stage : outer * inner;
    }
    s->field = take(a, channels * (double)s->padded);
    s->other = take(a, channels * (double)s->padded);
    s->spectrum = take(a, channels * 2 * stage);
    s->result = take(a, channels * 2 * stage);
    s->scratch = take(a, (double)s->scratch_size * s->threads);
}

static void fill_tables(const tgp_model *m, axis *a, int d, double points) {
    const double pi = 3.14159265358979323846;
    const int is_last = d == m->dims - 1;
    for (size_t k = 0; k < a->kept; k++) {
        const double frequency = is_last ? (double)k : (double)k - (double)(a->kept / 2);
        const int is_single = k == 0 || 2 * k == a->padded;
        for (size_t n = 0; n < a->padded; n++) {
            const double turns = fmod(frequency * (double)n, (double)a->padded) / (double)a->padded;
            const double c = cos(2 * pi * turns), sine = sin(2 * pi * turns);
            const size_t to = n * a->kept + k, row = k * a->padded + n, all = a->kept * a->padded;
            if (is_last) { /* (N, kept), scaled; and (kept, N), where a frequency represents two */
                a->cosines[to] = (float)(c / points);
                a->sines[to] = (float)(-sine / points);
                a->back_cosines[row] = (float)(is_single ? c : 2 * c);
                a->back_sines[row] = (float)(is_single ? 0 : -2 * sine);
            } else {
                a->cosines[row] = (float)c;
                a->sines[row] = (float)-sine;
                a->sines[all + row] = (float)sine;
                a->back_cosines[to] = (float)c;
                a->back_sines[to] = (float)sine;
                a->back_sines[all + to] = (float)-sine;
            }
        }
    }
}

tgp_session *tgp_prepare(const tgp_model *model, const long *grid, char *error) {
    if (!model || !grid) {
        return fail(error, "tgp_prepare: model and grid are needed");
    }
    tgp_session *s = calloc(1, sizeof *s);
    if (!s) {
        return fail(error, "out of memory");
    }
    s->model = model;
    s->points = s->padded = s->kept = 1;
    double points = 1;
    for (int d = 0; d < model->dims; d++) {
        if (grid[d] < 1 || grid[d] > MAX_SIZE) {
            free(s);
            return fail(error, "grid: size %ld of dimension %d is not in 1 .. %d", grid[d], d,
                        MAX_SIZE);
        }
        axis *a = &s->axes[d];
        const size_t zeros = (size_t)nearbyint(model->padding * (double)grid[d]);
        a->grid = (size_t)grid[d];
        a->before = model->is_symmetric ? zeros : 0;
        a->padded = a->grid + zeros * (model->is_symmetric ? 2 : 1);
        a->kept = tgp_min(model->modes[d], d == model->dims - 1 ? a->padded / 2 + 1 : a->padded);
        a->window = d == model->dims - 1 ? 0 : (model->modes[d] - a->kept) / 2;
        points *= (double)a->padded;
        s->points *= a->grid;
        s->padded *= a->padded;
        s->kept *= a->kept;
    }
#ifdef _OPENMP
    s->threads = omp_get_max_threads();
#else
    s->threads = 1;
#endif
    size_t hidden = tgp_max(model->lifting.hidden + model->lifting.in, model->projection.hidden);
    for (int l = 0; l < model->layers; l++) {
        hidden = tgp_max(hidden, model->channels + model->blocks[l].mlp.hidden);
    }
    s->scratch_size = hidden * TGP_TILE;
    if (points > (double)(SIZE_MAX / 8)) {
        free(s);
        return fail(error, "grid: %.0f points are too many", points);
    }
    arena a = {0};
    lay_out(s, &a);
    if (a.count < (double)(SIZE_MAX / 8)) {
        s->bytes = (size_t)a.count * sizeof(float);
        s->memory = malloc(s->bytes + ALIGNMENT);
    }
    if (!s->memory) {
        free(s);
        return fail(error, "out of memory: a grid of %.0f points needs %.1f MB", points,
                    a.count * 4e-6);
    }
    a = (arena){.base = (char *)s->memory + (ALIGNMENT - (uintptr_t)s->memory % ALIGNMENT)};
    lay_out(s, &a);
    for (int d = 0; d < model->dims; d++) {
        fill_tables(model, &s->axes[d], d, points);
    }
    return s;
}

void tgp_release(tgp_session *session) {
    if (session) {
        free(session->memory);
        free(session);
    }
}

size_t tgp_memory(const tgp_session *session) {
    return session ? session->bytes : 0;
}
