/* Graph kernels on tiles of neighbours, as matrix products.
 *
 * The first layer is linear in its input: W [e(y_j), e(x_i), f_j] = a_j + b_i. a is computed once
 * per point, b once per query and tile, so that the first layer costs a pair one addition, and
 * products begin with the second. Each thread has separate queries and visits their neighbours tile
 * by tile; hidden layers exist for one tile, and backward recomputes them.
 *
 * In backward, threads would conflict in the gradients at a_j and f_j. So it works in rounds: every
 * thread computes one tile, and then every thread adds its columns of all these tiles, always in
 * the order of the threads and tiles. Gradients of weights are summed per thread. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/nn.h"
#include "backend/gno_math.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "base/system.h"

enum { TILE = 256 }; /* pairs of a tile */

/* ---- workspace ---- */

/* Per thread: one tile of pairs, with the hidden layers of its kernels. Rows are pairs. */
typedef struct tile {
    int64_t count;                   /* pairs in it */
    int32_t *query, *point;          /* (TILE) */
    double *distance2;               /* (TILE) */
    double *place;                   /* (embedded): one point or query */
    float *weight;                   /* (TILE): weights of the pairs */
    float *embedded;                 /* (TILE, embedded): of its queries, or of a tile of points */
    float *from_query;               /* (TILE, width[1]): b_i, later its gradient */
    float *layer[TG_GNO_MAX_LAYERS]; /* [l >= 1] (TILE, width[l]), after GELU; then gradients */
    float *slope[TG_GNO_MAX_LAYERS]; /* likewise GELU'; backward */
    float *kernel;                   /* (TILE, out_channels) */
    float *dkernel;                  /* likewise; backward */
    float *sum;                      /* (out_channels): of a query */
    float *row;                      /* (points): of 16 bits, or activated */
    float *dweight[TG_GNO_MAX_LAYERS]; /* sums of a thread; backward */
    float *dbias[TG_GNO_MAX_LAYERS];
} tile;

/* Of a call. */
typedef struct work {
    tg_backend *be;
    const tg_gno *op;
    tg_gno_sizes sizes;
    int threads;
    int64_t samples;    /* per run of the kernel: all, or one if it reads their values */
    int64_t sample;     /* the first one */
    float *values;      /* (samples, points, in_channels): act(f) */
    float *dvalues;     /* likewise; backward */
    float *from_point;  /* (points, width[1]): a_j */
    float *dfrom_point; /* likewise; backward */
    float *dy;          /* (samples, queries, out_channels), scaled; backward */
    tile *tiles;        /* (threads); backward */
    size_t own, each;   /* bytes before the threads' tiles, and of each tile */
} work;

static void *take(tg_scratch *b, int64_t count, size_t size) {
    return tg_scratch_take(b, (size_t)count * size);
}

static tile lay_tile(const work *w, bool backward, char *base, size_t *bytes) {
    const tg_gno_sizes *s = &w->sizes;
    tg_scratch b = {base, 0};
    tile t = {.query = take(&b, TILE, sizeof(int32_t)), .point = take(&b, TILE, sizeof(int32_t))};
    t.distance2 = cpu_doubles(&b, TILE);
    t.place = cpu_doubles(&b, s->embedded);
    t.weight = cpu_floats(&b, TILE);
    t.embedded = cpu_floats(&b, TILE * s->embedded);
    t.from_query = cpu_floats(&b, TILE * s->width[1]);
    t.kernel = cpu_floats(&b, TILE * s->width[s->layers]);
    t.sum = cpu_floats(&b, s->width[s->layers]);
    t.row = cpu_floats(&b, w->op->points);
    for (int l = 1; l < s->layers; l++) {
        t.layer[l] = cpu_floats(&b, TILE * s->width[l]);
        t.slope[l] = cpu_floats(&b, backward ? TILE * s->width[l] : 0);
    }
    if (backward) {
        t.dkernel = cpu_floats(&b, TILE * s->width[s->layers]);
        for (int l = 0; l < s->layers; l++) {
            t.dweight[l] = cpu_floats(&b, s->width[l] * s->width[l + 1]);
            t.dbias[l] = cpu_floats(&b, s->width[l + 1]);
        }
    }
    *bytes = b.used;
    return t;
}

static work lay_out(tg_backend *be, const tg_gno *op, bool backward) {
    work w = {.be = be,
              .op = op,
              .sizes = tg_gno_sizes_of(op->config, op->has_values),
              .threads = be->threads};
    tg_scratch b = {op->workspace, 0};
    w.samples = w.sizes.reads_values ? 1 : op->batch;
    const bool reads = w.sizes.reads_values || w.sizes.times_values;
    const int64_t values = reads ? w.samples * op->points * op->config->in_channels : 0;
    w.values = cpu_floats(&b, values);
    w.from_point = cpu_floats(&b, op->points * w.sizes.width[1]);
    if (backward) {
        w.dvalues = cpu_floats(&b, values);
        w.dfrom_point = cpu_floats(&b, op->points * w.sizes.width[1]);
        w.dy = cpu_floats(&b, w.samples * op->queries * op->config->out_channels);
        w.tiles = take(&b, w.threads, sizeof(tile));
    }
    w.own = b.used;
    (void)lay_tile(&w, backward, NULL, &w.each);
    return w;
}

size_t cpu_gno_workspace(tg_backend *be, const tg_gno *op) {
    tg_gno sizes_only = *op;
    sizes_only.workspace = NULL;
    const work w = lay_out(be, &sizes_only, op->backward);
    return w.own + (size_t)w.threads * w.each;
}

static tile tile_of(const work *w, bool backward, int part) {
    size_t bytes;
    return lay_tile(w, backward, (char *)w->op->workspace + w->own + (size_t)part * w->each,
                    &bytes);
}

/* ---- shared parts of pairs ---- */

/* y (rows, out) = x (rows, in) times the columns [from, from + in) of a layer's weight, plus y. */
static void multiply(const work *w, int l, int64_t from, int64_t in, int64_t rows, const float *x,
                     float *y) {
    const tg_gno_sizes *s = &w->sizes;
    const float *weight = w->op->weight[l];
    cpu_sgemm(w->be, false, true, rows, s->width[l + 1], in, 1.0f, x, in, weight + from,
              s->width[l], 1.0f, y, s->width[l + 1]);
}

/* dweight (out, columns [from, from + in)) += dy (rows, out)^T x (rows, in). */
static void add_product(const work *w, const tile *t, int l, int64_t from, int64_t in, int64_t rows,
                        const float *dy, const float *x) {
    const tg_gno_sizes *s = &w->sizes;
    cpu_sgemm(w->be, true, false, s->width[l + 1], in, rows, 1.0f, dy, s->width[l + 1], x, in, 1.0f,
              t->dweight[l] + from, s->width[l]);
}

static void fill_rows(int64_t rows, int64_t width, const float *row, float *out) {
    for (int64_t r = 0; r < rows; r++) {
        memcpy(out + r * width, row, (size_t)width * sizeof *out);
    }
}

static void embed(const work *w, const double *p, const tile *t, float *out) {
    tg_gno_embed(w->op->config, p, t->place);
    for (int64_t k = 0; k < w->sizes.embedded; k++) {
        out[k] = (float)t->place[k];
    }
}

/* Copies the values of a sample's channel to or from rows by points. */
static void load_values(const work *w, const tile *t, int64_t sample, int64_t c) {
    const tg_gno *op = w->op;
    const int64_t channels = op->config->in_channels, n = op->points;
    const int64_t at = ((w->sample + sample) * channels + c) * n;
    const float *f = cpu_read(cpu_state_of(w->be)->kernels, op->f_store, op->f, at, n, t->row);
    float *to = w->values + sample * n * channels + c;
    if (op->act != TG_ACT_NONE) {
        cpu_nn_of(w->be)->act(op->act, n, f, t->row);
        f = t->row;
    }
    for (int64_t j = 0; j < n; j++) {
        to[j * channels] = f[j];
    }
}

/* a_j of a tile of points, which are ordered by cell. */
static void transform_points(const work *w, const tile *t, int64_t first, int64_t count) {
    const tg_gno_sizes *s = &w->sizes;
    const tg_neighbours *near = w->op->neighbours;
    const int64_t channels = w->op->config->in_channels;
    memset(t->from_query, 0, (size_t)(count * s->width[1]) * sizeof(float));
    for (int64_t p = 0; p < count; p++) {
        embed(w, near->at[first + p], t, t->embedded + p * s->embedded);
    }
    multiply(w, 0, 0, s->embedded, count, t->embedded, t->from_query);
    for (int64_t p = 0; p < count; p++) {
        float *to = w->from_point + near->number[first + p] * s->width[1];
        memcpy(to, t->from_query + p * s->width[1], (size_t)s->width[1] * sizeof(float));
        if (s->reads_values) {
            multiply(w, 0, 2 * s->embedded, channels, 1,
                     w->values + near->number[first + p] * channels, to);
        }
    }
}

static void prepare(const work *w, bool backward) {
    const bool reads = w->sizes.reads_values || w->sizes.times_values;
    const int64_t rows = reads ? w->samples * w->op->config->in_channels : 0;
#pragma omp parallel for num_threads(w->threads) schedule(static)
    for (int part = 0; part < w->threads; part++) {
        const tile t = tile_of(w, backward, part);
        const tg_range own = tg_partition(rows, 1, w->threads, part);
        for (int64_t r = own.begin; r < own.end; r++) {
            load_values(w, &t, r / w->op->config->in_channels, r % w->op->config->in_channels);
        }
    }
#pragma omp parallel for num_threads(w->threads) schedule(static)
    for (int part = 0; part < w->threads; part++) {
        const tile t = tile_of(w, backward, part);
        const tg_range own = tg_partition(w->op->points, 1, w->threads, part);
        for (int64_t p = own.begin; p < own.end; p += TILE) {
            transform_points(w, &t, p, tg_min(TILE, own.end - p));
        }
    }
}

/* ---- the kernel of a tile ---- */

/* Pairs of a thread: whole queries, with balanced numbers of neighbours. */
static tg_range pairs_of(const work *w, int part) {
    const tg_neighbours *near = w->op->neighbours;
    const int64_t all = near->first[near->queries];
    tg_range own = tg_partition(all, 1, w->threads, part);
    int64_t *ends[2] = {&own.begin, &own.end};
    for (int k = 0; k < 2; k++) { /* back to the start of the query */
        int64_t low = 0, high = near->queries;
        while (high - low > 0 && *ends[k] < all) {
            const int64_t middle = low + (high - low) / 2;
            if (near->first[middle + 1] <= *ends[k]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        *ends[k] = *ends[k] < all ? near->first[low] : all;
    }
    return own;
}

/* The end of the pairs from k on that have the same query. */
static int64_t same_query(const tile *t, int64_t k) {
    int64_t end = k + 1;
    while (end < t->count && t->query[end] == t->query[k]) {
        end++;
    }
    return end;
}

/* a_j + b_i into layer 1; keeps the queries' embeddings, one row each. Returns their number. */
static int64_t first_layer(const work *w, const tile *t) {
    const tg_gno_sizes *s = &w->sizes;
    int64_t queries = 0;
    for (int64_t k = 0; k < t->count; k = same_query(t, k)) {
        embed(w, w->op->neighbours->query[t->query[k]], t, t->embedded + queries++ * s->embedded);
    }
    fill_rows(queries, s->width[1], w->op->bias[0], t->from_query);
    multiply(w, 0, s->embedded, s->embedded, queries, t->embedded, t->from_query);
    const float *from = t->from_query;
    float *out = t->layer[1];
    for (int64_t k = 0, end; k < t->count; k = end, from += s->width[1]) {
        end = same_query(t, k);
        for (int64_t e = k; e < end; e++) {
            const float *a = w->from_point + t->point[e] * s->width[1];
            for (int64_t c = 0; c < s->width[1]; c++) {
                *out++ = a[c] + from[c];
            }
        }
    }
    return queries;
}

static int64_t evaluate(const work *w, tile *t, int64_t first, int64_t count, bool backward) {
    const tg_gno_sizes *s = &w->sizes;
    const cpu_nn_kernels *k = cpu_nn_of(w->be);
    t->count = count;
    tg_neighbours_list(w->op->neighbours, first, count, t->query, t->point, t->distance2);
    for (int64_t e = 0; e < count; e++) {
        t->weight[e] = (float)tg_gno_weight_at(w->op->config, t->distance2[e]);
    }
    const int64_t queries = first_layer(w, t);
    for (int l = 1; l < s->layers; l++) {
        float *next = l + 1 < s->layers ? t->layer[l + 1] : t->kernel;
        if (backward) {
            k->gelu_slope(count * s->width[l], 0.0f, t->layer[l], t->layer[l], t->slope[l]);
        } else {
            k->gelu(count * s->width[l], 0.0f, t->layer[l], t->layer[l]);
        }
        fill_rows(count, s->width[l + 1], w->op->bias[l], next);
        multiply(w, l, 0, s->width[l], count, t->layer[l], next);
    }
    return queries;
}

/* ---- forward ---- */

/* Adds the tile's pairs to y, query by query. */
static void reduce(const work *w, const tile *t, int64_t sample) {
    const tg_gno *op = w->op;
    const int64_t channels = op->config->out_channels;
    const float *values = w->sizes.times_values ? w->values + sample * op->points * channels : NULL;
    float *y = (float *)op->y + (w->sample + sample) * channels * op->queries;
    for (int64_t k = 0, end; k < t->count; k = end) {
        end = same_query(t, k);
        const float scale = (float)tg_gno_scale(op, t->query[k]);
        memset(t->sum, 0, (size_t)channels * sizeof *t->sum);
        for (int64_t e = k; e < end; e++) {
            const float *f = values ? values + t->point[e] * channels : NULL;
            const float *kernel = t->kernel + e * channels;
            for (int64_t c = 0; c < channels; c++) {
                t->sum[c] += t->weight[e] * kernel[c] * (f ? f[c] : 1.0f);
            }
        }
        for (int64_t c = 0; c < channels; c++) {
            y[c * op->queries + t->query[k]] += scale * t->sum[c];
        }
    }
}

static void forward(tg_backend *be, const tg_gno *op) {
    work w = lay_out(be, op, false);
    memset(op->y, 0, (size_t)(op->batch * op->config->out_channels * op->queries) * sizeof(float));
    for (; w.sample < op->batch; w.sample += w.samples) {
        prepare(&w, false);
#pragma omp parallel for num_threads(w.threads) schedule(static)
        for (int part = 0; part < w.threads; part++) {
            tile t = tile_of(&w, false, part);
            const tg_range own = pairs_of(&w, part);
            for (int64_t k = own.begin; k < own.end; k += TILE) {
                (void)evaluate(&w, &t, k, tg_min(TILE, own.end - k), false);
                for (int64_t sample = 0; sample < w.samples; sample++) {
                    reduce(&w, &t, sample);
                }
            }
        }
    }
}

/* ---- backward ---- */

/* dy by queries, with the factor of the reduction. */
static void load_dy(const work *w) {
    const tg_gno *op = w->op;
    const int64_t channels = op->config->out_channels;
#pragma omp parallel for num_threads(w->threads) schedule(static)
    for (int part = 0; part < w->threads; part++) {
        const tg_range own = tg_partition(op->queries, 1, w->threads, part);
        for (int64_t r = 0; r < w->samples * channels; r++) {
            const int64_t sample = r / channels, c = r % channels;
            const float *dy = (const float *)op->dy + (w->sample * channels + r) * op->queries;
            float *to = w->dy + sample * op->queries * channels + c;
            for (int64_t i = own.begin; i < own.end; i++) {
                to[i * channels] = (float)tg_gno_scale(op, i) * dy[i];
            }
        }
    }
}

/* The gradient at the output of the kernel. */
static void back_reduce(const work *w, const tile *t) {
    const tg_gno *op = w->op;
    const int64_t channels = op->config->out_channels;
    memset(t->dkernel, 0, (size_t)(t->count * channels) * sizeof(float));
    for (int64_t sample = 0; sample < w->samples; sample++) {
        const float *dy = w->dy + sample * op->queries * channels;
        const float *values =
            w->sizes.times_values ? w->values + sample * op->points * channels : NULL;
        for (int64_t e = 0; e < t->count; e++) {
            const float *f = values ? values + t->point[e] * channels : NULL;
            for (int64_t c = 0; c < channels; c++) {
                t->dkernel[e * channels + c] +=
                    t->weight[e] * dy[t->query[e] * channels + c] * (f ? f[c] : 1.0f);
            }
        }
    }
}

static void add_columns(int64_t rows, int64_t width, const float *x, float *sums) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < width; c++) {
            sums[c] += x[r * width + c];
        }
    }
}

/* Backward through a tile: the gradient at a_j + b_i in layer 1, and that of b_i to the weights. */
static void back_tile(const work *w, tile *t, int64_t first, int64_t count) {
    const tg_gno_sizes *s = &w->sizes;
    const int64_t queries = evaluate(w, t, first, count, true);
    back_reduce(w, t);
    const float *dy = t->dkernel;
    for (int l = s->layers - 1; l >= 1; l--) {
        float *below = t->layer[l];
        add_product(w, t, l, 0, s->width[l], count, dy, t->layer[l]);
        add_columns(count, s->width[l + 1], dy, t->dbias[l]);
        cpu_sgemm(w->be, false, false, count, s->width[l], s->width[l + 1], 1.0f, dy,
                  s->width[l + 1], w->op->weight[l], s->width[l], 0.0f, below, s->width[l]);
        cpu_nn_of(w->be)->multiply(count * s->width[l], t->slope[l], below);
        dy = below;
    }
    memset(t->from_query, 0, (size_t)(queries * s->width[1]) * sizeof(float));
    float *sums = t->from_query;
    for (int64_t k = 0, end; k < count; k = end, sums += s->width[1]) {
        end = same_query(t, k);
        add_columns(end - k, s->width[1], dy + k * s->width[1], sums);
    }
    add_product(w, t, 0, s->embedded, s->embedded, queries, t->from_query, t->embedded);
    add_columns(queries, s->width[1], t->from_query, t->dbias[0]);
}

/* Adds columns `own` of the first hidden layer, and `channels` of the values, of a thread's tile.
 */
static void scatter(const work *w, const tile *t, tg_range own, tg_range channels) {
    const tg_gno *op = w->op;
    const int64_t width = w->sizes.width[1], out = op->config->out_channels;
    for (int64_t e = 0; e < t->count; e++) {
        float *to = w->dfrom_point + t->point[e] * width;
        for (int64_t c = own.begin; c < own.end; c++) {
            to[c] += t->layer[1][e * width + c];
        }
    }
    for (int64_t sample = 0; w->sizes.times_values && sample < w->samples; sample++) {
        const float *dy = w->dy + sample * op->queries * out;
        float *dvalues = w->dvalues + sample * op->points * out;
        for (int64_t e = 0; e < t->count; e++) {
            for (int64_t c = channels.begin; c < channels.end; c++) {
                dvalues[t->point[e] * out + c] +=
                    t->weight[e] * t->kernel[e * out + c] * dy[t->query[e] * out + c];
            }
        }
    }
}

static void back_pairs(const work *w) {
    tile *tiles = w->tiles;
    int64_t rounds = 0;
    for (int part = 0; part < w->threads; part++) {
        const tg_range own = pairs_of(w, part);
        rounds = tg_max(rounds, (own.end - own.begin + TILE - 1) / TILE);
    }
    for (int64_t round = 0; round < rounds; round++) {
#pragma omp parallel for num_threads(w->threads) schedule(static)
        for (int part = 0; part < w->threads; part++) {
            const tg_range own = pairs_of(w, part);
            const int64_t first = own.begin + round * TILE;
            tiles[part].count = 0;
            if (first < own.end) {
                back_tile(w, &tiles[part], first, tg_min(TILE, own.end - first));
            }
        }
#pragma omp parallel for num_threads(w->threads) schedule(static)
        for (int part = 0; part < w->threads; part++) {
            const tg_range own = tg_partition(w->sizes.width[1], 16, w->threads, part);
            const tg_range channels =
                tg_partition(w->op->config->out_channels, 16, w->threads, part);
            for (int from = 0; from < w->threads; from++) {
                scatter(w, &tiles[from], own, channels);
            }
        }
    }
}

/* Propagates the gradient at a_j to the weights and the values, for a tile of points. */
static void back_points(const work *w, const tile *t, int64_t first, int64_t count) {
    const tg_gno_sizes *s = &w->sizes;
    const tg_neighbours *near = w->op->neighbours;
    const int64_t channels = w->op->config->in_channels;
    for (int64_t p = 0; p < count; p++) {
        const int64_t number = near->number[first + p];
        float *da = w->dfrom_point + number * s->width[1];
        memcpy(t->from_query + p * s->width[1], da, (size_t)s->width[1] * sizeof(float));
        embed(w, near->at[first + p], t, t->embedded + p * s->embedded);
        if (s->reads_values) {
            const float *weight = w->op->weight[0];
            add_product(w, t, 0, 2 * s->embedded, channels, 1, da, w->values + number * channels);
            cpu_sgemm(w->be, false, false, 1, channels, s->width[1], 1.0f, da, s->width[1],
                      weight + 2 * s->embedded, s->width[0], 1.0f, w->dvalues + number * channels,
                      channels);
        }
    }
    add_product(w, t, 0, 0, s->embedded, count, t->from_query, t->embedded);
}

static void store_values(const work *w, const tile *t, int64_t sample, int64_t c) {
    const tg_gno *op = w->op;
    const int64_t channels = op->config->in_channels, n = op->points;
    const int64_t at = ((w->sample + sample) * channels + c) * n;
    const cpu_kernels *k = cpu_state_of(w->be)->kernels;
    float *to = cpu_result(op->f_store, op->df, at, t->row);
    for (int64_t j = 0; j < n; j++) {
        const int64_t own = (sample * n + j) * channels + c;
        const float f = op->act == TG_ACT_TANH ? 1.0f - w->values[own] * w->values[own] : 1.0f;
        to[j] = f * w->dvalues[own];
    }
    cpu_write(k, op->f_store, n, to, op->df, at);
}

static void finish(const work *w) {
    const tile *tiles = w->tiles;
    const tg_gno *op = w->op;
    const bool reads = w->sizes.reads_values || w->sizes.times_values;
#pragma omp parallel for num_threads(w->threads) schedule(static)
    for (int part = 0; part < w->threads; part++) {
        const tg_range own = tg_partition(op->points, 1, w->threads, part);
        for (int64_t p = own.begin; p < own.end; p += TILE) {
            back_points(w, &tiles[part], p, tg_min(TILE, own.end - p));
        }
    }
    const int64_t rows = op->df && reads ? w->samples * op->config->in_channels : 0;
#pragma omp parallel for num_threads(w->threads) schedule(static)
    for (int part = 0; part < w->threads; part++) {
        const tg_range own = tg_partition(rows, 1, w->threads, part);
        for (int64_t r = own.begin; r < own.end; r++) {
            store_values(w, &tiles[part], r / op->config->in_channels, r % op->config->in_channels);
        }
    }
}

static void clear_sums(const work *w, const tile *t) {
    for (int l = 0; l < w->sizes.layers; l++) {
        memset(t->dweight[l], 0, (size_t)(w->sizes.width[l] * w->sizes.width[l + 1]) * 4);
        memset(t->dbias[l], 0, (size_t)w->sizes.width[l + 1] * 4);
    }
}

static void backward(tg_backend *be, const tg_gno *op) {
    work w = lay_out(be, op, true);
    tile *tiles = w.tiles;
    for (int part = 0; part < w.threads; part++) {
        tiles[part] = tile_of(&w, true, part);
        clear_sums(&w, &tiles[part]);
    }
    const bool reads = w.sizes.reads_values || w.sizes.times_values;
    const int64_t values = reads ? w.samples * op->points * op->config->in_channels : 0;
    for (; w.sample < op->batch; w.sample += w.samples) {
        prepare(&w, true);
        load_dy(&w);
        memset(w.dvalues, 0, (size_t)values * sizeof(float));
        memset(w.dfrom_point, 0, (size_t)(op->points * w.sizes.width[1]) * sizeof(float));
        back_pairs(&w);
        finish(&w);
    }
    for (int part = 0; part < w.threads; part++) {
        for (int l = 0; l < w.sizes.layers; l++) {
            add_columns(1, w.sizes.width[l] * w.sizes.width[l + 1], tiles[part].dweight[l],
                        op->dweight[l]);
            add_columns(1, w.sizes.width[l + 1], tiles[part].dbias[l], op->dbias[l]);
        }
    }
    if (op->df && !reads) { /* values not read by the kernel */
        memset(op->df, 0,
               (size_t)(op->batch * op->config->in_channels * op->points) *
                   tg_dtype_size(tg_stored(TG_F32, op->f_store)));
    }
}

tg_status cpu_gno(tg_backend *be, const tg_gno *op) {
    if (op->dtype != TG_F32) {
        return be->ref->gno(be, op);
    }
    (op->backward ? backward : forward)(be, op);
    return TG_OK;
}
