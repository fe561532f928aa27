/* Compression of a factored gradient that begins with the first mode, where the factors are short:
 * G is never formed. With the first mode last, and the kept entries S of G left out, it is
 *
 *     T[o, k, r] = sum_i conj(U[i, r]) G'[i, o, k]
 *                = sum_b dy[b, o, k] conj(p[k, b, r]) - sum_{i: (i, o, k) in S} G[i, o, k]
 * conj(U[i, r])
 *
 * with p[k, b, r] = sum_i x[b, i, k] U[i, r]: a sum of some rows of p and of U, in which a sample
 * or a kept entry is one term. T is contracted by the products of compress.c, slice by slice of o.
 * They leave (o, other ranks, r) in the workspace, and the last product brings r to the front. */
#include <string.h>

#include "backend/cpu/compress.h"
#include "base/minmax.h"

/* Sizes of G. */
typedef struct sizes {
    int64_t in, out, frequencies, rank, batch;
} sizes;

static sizes sizes_of(const tg_compress *op) {
    sizes n = {.in = op->modes.dim[0],
               .out = op->modes.dim[1],
               .frequencies = 1,
               .rank = op->modes.rank[0],
               .batch = op->source.batch};
    for (int d = 2; d < op->modes.ndim; d++) {
        n.frequencies *= op->modes.dim[d];
    }
    return n;
}

bool cpu_turned_pays(const tg_compress *op, const cpu_plan *plan, const cpu_plan *turned) {
    /* The time of a multiplication in sums of rows and with kept entries, to that in products;
     * measured at burgers and ns128 (Zen 4). */
    const double in_rows = 2.5, of_kept = 4.0;
    const sizes n = sizes_of(op);
    const double kept = op->bitmap ? (double)op->bitmap->count : 0.0;
    const double samples = (double)n.batch * (double)n.frequencies, rank = (double)n.rank;
    const double formed = in_rows * samples * (double)(n.in * n.out);
    const double listed = samples * rank * ((double)n.in + in_rows * (double)n.out) +
                          of_kept * kept * (rank + 2.0 * (double)n.batch);
    return op->core && op->source.store == TG_STORE_FULL && n.batch <= turned->samples &&
           listed + cpu_plan_cost(turned) < formed + cpu_plan_cost(plan);
}

/* p of one sample, for some frequencies. */
static void project_sample(const cpu_source *source, sizes n, int64_t b, int64_t k, int64_t count) {
    const int width = source->plan->width;
    float *p = (float *)source->op->workspace + source->plan->projected;
    const cpu_product product = {
        .m = count,
        .n = n.rank,
        .k = n.in,
        .a = (const float *)source->op->source.x + (b * n.in * n.frequencies + k) * width,
        .row_a = 1,
        .col_a = n.frequencies,
        .b = source->op->modes.factor[0],
        .ldb = n.rank,
        .c = p + (k * n.batch + b) * n.rank * width,
        .ldc = n.batch * n.rank,
        .alpha = 1.0f,
    };
    cpu_plan_product(source->plan, &product);
}

/* conj(x) of a channel, with the samples of a frequency side by side. */
static void turn_channel(const cpu_source *source, sizes n, int64_t i) {
    const int width = source->plan->width;
    const float *x = (const float *)source->op->source.x + i * n.frequencies * width;
    float *out = (float *)source->op->workspace + source->plan->x + i * n.batch * width;
    for (int64_t k = 0; k < n.frequencies; k++) {
        float *to = out + k * n.in * n.batch * width;
        for (int64_t b = 0; b < n.batch; b++, to += width) {
            const float *from = x + (b * n.in * n.frequencies + k) * width;
            to[0] = from[0];
            if (width == 2) {
                to[1] = -from[1];
            }
        }
    }
}

void cpu_turned_prepare(const cpu_source *source, int part, int parts) {
    enum { CHUNK = 48 };
    const sizes n = sizes_of(source->op);
    const int64_t chunks = (n.frequencies + CHUNK - 1) / CHUNK;
    const tg_range units = tg_partition(n.batch * chunks, 1, parts, part);
    for (int64_t unit = units.begin; unit < units.end; unit++) {
        const int64_t chunk = unit / n.batch, begin = n.frequencies * chunk / chunks;
        const int64_t end = n.frequencies * (chunk + 1) / chunks;
        project_sample(source, n, unit % n.batch, begin, end - begin);
    }
    if (source->op->bitmap) {
        const tg_range channels = tg_partition(n.in, 1, parts, part);
        for (int64_t i = channels.begin; i < channels.end; i++) {
            turn_channel(source, n, i);
        }
    }
}

/* Some frequencies of one channel o and, of each, the terms of its row. */
typedef struct listing {
    const cpu_source *source;
    sizes n;
    int64_t o, k, count; /* frequencies [k, k + count) */
    int64_t first, last; /* numbers of the first row that are left out, and of the last one taken */
    float *dy;           /* (count, batch) */
    cpu_term *terms;     /* (CPU_LISTED, samples + in) */
    int64_t terms_of[CPU_LISTED];
    cpu_kept *kept; /* (CPU_LISTED * in) */
} listing;

static cpu_term *terms_at(const listing *l, int64_t j) {
    return l->terms + j * (l->source->plan->samples + l->n.in);
}

/* The number of a row where its sum begins. */
static int64_t row_begin(const listing *l, int64_t j) {
    return j == 0 ? l->first : 0;
}

static void list_samples(listing *l) {
    const sizes n = l->n;
    const cpu_plan *plan = l->source->plan;
    const int width = plan->width;
    const tg_compress *op = l->source->op;
    const float *p = (const float *)op->workspace + plan->projected;
    for (int64_t b = 0; b < n.batch; b++) {
        const float *dy = op->source.dy;
        dy += ((b * n.out + l->o) * n.frequencies + l->k) * width;
        for (int64_t j = 0; j < l->count; j++, dy += width) {
            const int64_t row = ((l->k + j) * n.batch + b) * n.rank + row_begin(l, j);
            cpu_term *term = &terms_at(l, j)[b];
            float *copy = l->dy + (j * n.batch + b) * width;
            *term = (cpu_term){.row = p + row * width, .re = dy[0]};
            copy[0] = dy[0];
            if (width == 2) {
                term->im = copy[1] = dy[1];
            }
        }
    }
    for (int64_t j = 0; j < l->count; j++) {
        l->terms_of[j] = n.batch;
    }
}

/* x of an entry: conjugated, a number for each sample. */
static const float *turned_x(const listing *l, int64_t i, int64_t j) {
    const cpu_plan *plan = l->source->plan;
    const int64_t at = ((l->k + j) * l->n.in + i) * l->n.batch;
    return (const float *)l->source->op->workspace + plan->x + at * plan->width;
}

/* Finds the kept entries, and asks for their x while it looks for the others. */
static int64_t find_kept(const listing *l) {
    const tg_compress *op = l->source->op;
    int64_t found = 0;
    for (int64_t i = 0; i < l->n.in; i++) {
        const int64_t first = (i * l->n.out + l->o) * l->n.frequencies + l->k;
        cpu_bits bits = cpu_bits_begin(op->bitmap, first, l->count);
        int64_t e = cpu_bits_next(&bits);
        int64_t value = e >= 0 && op->values ? cpu_bits_rank(op->bitmap, first) : 0;
        for (; e >= 0; e = cpu_bits_next(&bits)) {
            l->kept[found++] =
                (cpu_kept){.value = value++, .channel = (int32_t)i, .row = (int32_t)(e - first)};
            __builtin_prefetch(turned_x(l, i, e - first));
        }
    }
    return found;
}

/* A kept entry: to its place among the values, and as a term. */
static void list_entry(listing *l, cpu_kept entry) {
    const cpu_plan *plan = l->source->plan;
    const tg_compress *op = l->source->op;
    const int64_t batch = l->n.batch, j = entry.row, begin = row_begin(l, j);
    const int width = plan->width;
    const float *x = turned_x(l, entry.channel, j), *dy = l->dy + j * batch * width;
    float g[2] = {0};
    if (width == 2) {
        plan->kernels->dot_c64(batch, x, dy, 1.0f, g);
    } else {
        plan->kernels->dot_f32(batch, x, dy, 1.0f, g);
    }
    if (op->values && begin == 0) { /* once, though a row may come in pieces */
        cpu_blend(op, width, g, (float *)op->values + entry.value * width);
    }
    if (op->masked) {
        const float *u = op->modes.factor[0];
        terms_at(l, j)[l->terms_of[j]++] = (cpu_term){
            .row = u + (entry.channel * l->n.rank + begin) * width, .re = -g[0], .im = -g[1]};
    }
}

/* The sums of the listed rows, one after the other. */
static void add_rows(const listing *l, float *out) {
    const cpu_plan *plan = l->source->plan;
    for (int64_t j = 0; j < l->count; j++) {
        const int64_t begin = row_begin(l, j), end = j == l->count - 1 ? l->last : l->n.rank;
        if (plan->width == 2) {
            plan->kernels->combine_c64(end - begin, l->terms_of[j], terms_at(l, j), out);
        } else {
            plan->kernels->combine_f32(end - begin, l->terms_of[j], terms_at(l, j), out);
        }
        out += (end - begin) * plan->width;
    }
}

void cpu_turned_run(const cpu_source *source, int64_t first, int64_t count, int slices,
                    float *panel, int64_t row_panel) {
    const tg_compress *op = source->op;
    const cpu_plan *plan = source->plan;
    const sizes n = sizes_of(op);
    listing l = {.source = source,
                 .n = n,
                 .dy = source->scratch + plan->dy,
                 .terms = (cpu_term *)(void *)(source->scratch + plan->terms),
                 .kept = (cpu_kept *)(void *)(source->scratch + plan->kept)};
    for (int64_t at = first; at < first + count;) {
        const int64_t row = at / n.rank, end = first + count;
        l.k = row % n.frequencies;
        l.first = at % n.rank;
        /* Rows of one o, as many as there is room for. */
        l.count = tg_min((end - 1) / n.rank + 1 - row, tg_min(n.frequencies - l.k, CPU_LISTED));
        l.last = tg_min(n.rank, end - (row + l.count - 1) * n.rank);
        for (int s = 0; s < slices; s++) {
            l.o = row / n.frequencies + s;
            list_samples(&l);
            if (op->bitmap && (op->values || op->masked)) {
                const int64_t found = find_kept(&l);
                for (int64_t e = 0; e < found; e++) {
                    list_entry(&l, l.kept[e]);
                }
            }
            add_rows(&l, panel + (s * row_panel + at - first) * plan->width);
        }
        at = (row + l.count - 1) * n.rank + l.last;
    }
}

/* A tile of the last product in scratch: rows (some of the rank of o, `run` of the numbers of its
 * block, r). */
typedef struct tile {
    tg_range rows, run;
} tile;

/* core[r, row, run] = beta core + tile[row, run, r] */
static void turn_back(const cpu_source *source, tile t) {
    const tg_compress *op = source->op;
    const int width = source->plan->width;
    const float beta = (float)op->beta;
    const int64_t rank = op->modes.rank[0], length = t.run.end - t.run.begin;
    const int64_t block = source->plan->mode[0].block / rank, rows = source->plan->mode[0].rank;
    for (int64_t r = 0; r < rank; r++) {
        for (int64_t row = t.rows.begin; row < t.rows.end; row++) {
            float *core = (float *)op->core + ((r * rows + row) * block + t.run.begin) * width;
            const float *g = source->scratch + ((row - t.rows.begin) * length * rank + r) * width;
            for (int64_t j = 0; j < length; j++, core += width, g += rank * width) {
                if (beta == 0.0f) {
                    width == 2 ? memcpy(core, g, 2 * sizeof *g) : memcpy(core, g, sizeof *g);
                }
                for (int c = 0; beta != 0.0f && c < width; c++) {
                    core[c] = g[c] + beta * core[c];
                }
            }
        }
    }
}

static void make_tile(const cpu_source *source, tile t) {
    const cpu_plan *plan = source->plan;
    const tg_compress *op = source->op;
    const cpu_mode *mode = &plan->mode[0];
    const int64_t rank = op->modes.rank[0], length = t.run.end - t.run.begin;
    const float *middle = (const float *)op->workspace + plan->middle;
    const cpu_product product = {
        .m = t.rows.end - t.rows.begin,
        .n = length * rank,
        .k = mode->dim,
        .a = mode->factor + t.rows.begin * plan->width,
        .row_a = 1,
        .col_a = mode->rank,
        .conj_a = true,
        .b = middle + t.run.begin * rank * plan->width,
        .ldb = mode->block,
        .c = source->scratch,
        .ldc = length * rank,
        .alpha = (float)op->scale,
    };
    cpu_plan_product(plan, &product);
    turn_back(source, t);
}

void cpu_turned_finish(const cpu_source *source, int part, int parts) {
    const cpu_mode *mode = &source->plan->mode[0];
    const int64_t block = mode->block / source->op->modes.rank[0];
    const int64_t down = (mode->rank + CPU_TILE_ROWS - 1) / CPU_TILE_ROWS;
    const int64_t across = (block + CPU_TILE_RUN - 1) / CPU_TILE_RUN;
    const tg_range tiles = tg_partition(down * across, 1, parts, part);
    for (int64_t i = tiles.begin; i < tiles.end; i++) {
        const tile t = {tg_partition(mode->rank, 1, (int)down, (int)(i % down)),
                        tg_partition(block, 1, (int)across, (int)(i / down))};
        make_tile(source, t);
    }
}
