/* clang-format off */
/* Compresses a factored gradient starting with the first mode, where the factors are short, without
 * forming G. In the transposed (mode 0 last) layout, without the kept entries S of G, it is
 *
 *     T[o, k, r] = sum_i conj(U[i, r]) G'[i, o, k]
 *                = sum_b dy[b, o, k] conj(p[k, b, r])
 *                  - sum_{i: (i, o, k) in S} G[i, o, k] conj(U[i, r])
 *
 * with p[k, b, r] = sum_i x[b, i, k] U[i, r]: a product of a few samples at every frequency, from
 * which the kept entries are subtracted one by one. T is contracted by the products of compress.c,
 * slice by slice of o. They leave (o, other ranks, r) in the workspace, and the last product moves
 * r to the front. */
/* clang-format on */
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

bool cpu_transposed_pays(const tg_compress *op, const cpu_plan *plan, const cpu_plan *transposed) {
    /* Cost of a multiplication when forming G, with few samples and with kept entries, relative to
     * one in products; measured at burgers and ns128 (Zen 4). */
    const double in_rows = 2.5, of_few = 1.5, of_kept = 4.0;
    const sizes n = sizes_of(op);
    const double kept = op->bitmap ? (double)op->bitmap->count : 0.0;
    const double samples = (double)n.batch * (double)n.frequencies, rank = (double)n.rank;
    const double formed = in_rows * samples * (double)(n.in * n.out);
    const double listed = samples * rank * ((double)n.in + of_few * (double)n.out) +
                          of_kept * kept * (rank + 2.0 * (double)n.batch);
    return op->core && op->source.store == TG_STORE_FULL && n.batch <= transposed->samples &&
           listed + cpu_plan_cost(transposed) < formed + cpu_plan_cost(plan);
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

/* conj(x) of a channel, with the samples of a frequency contiguous. */
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

void cpu_transposed_prepare(const cpu_source *source, int part, int parts) {
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

/* Some frequencies of the channels o contracted together. */
typedef struct stripe {
    const cpu_source *source;
    sizes n;
    int64_t o, k; /* the first ones */
    int64_t slices, rows;
    float *dy;  /* (slices, rows, batch) */
    float *out; /* (slices, rows, rank), slices row_out elements apart */
    int64_t row_out;
} stripe;

/* Copies dy, with the samples of a frequency contiguous. */
static void turn_dy(const stripe *p) {
    const sizes n = p->n;
    const int width = p->source->plan->width;
    for (int64_t at = 0; at < p->slices * n.batch; at++) {
        const int64_t s = at / n.batch, b = at % n.batch;
        const float *from = p->source->op->source.dy;
        from += ((b * n.out + p->o + s) * n.frequencies + p->k) * width;
        float *to = p->dy + (s * p->rows * n.batch + b) * width;
        for (int64_t j = 0; j < p->rows; j++, from += width, to += n.batch * width) {
            to[0] = from[0];
            if (width == 2) {
                to[1] = from[1];
            }
        }
    }
}

/* out = sum_b dy conj(p), for every frequency */
static void add_samples(const stripe *p) {
    const cpu_plan *plan = p->source->plan;
    const int width = plan->width;
    const float *projected = (const float *)p->source->op->workspace + plan->projected;
    cpu_product product = {
        .m = p->slices,
        .n = p->n.rank,
        .k = p->n.batch,
        .a = p->dy,
        .row_a = p->rows * p->n.batch,
        .col_a = 1,
        .b = projected + p->k * p->n.batch * p->n.rank * width,
        .ldb = p->n.rank,
        .conj_b = true,
        .c = p->out,
        .ldc = p->row_out,
        .alpha = 1.0f,
    };
    for (int64_t j = 0; j < p->rows; j++) {
        cpu_plan_product(plan, &product);
        product.a += p->n.batch * width;
        product.b += p->n.batch * p->n.rank * width;
        product.c += p->n.rank * width;
    }
}

/* Lists the kept entries of channel o and frequencies [k, k + rows), prefetching their x. */
static int64_t find_kept(const cpu_source *source, sizes n, int64_t o, int64_t k, int64_t rows,
                         const float *x, cpu_kept *kept) {
    const tg_bitmap *bitmap = source->op->bitmap;
    enum { LINE = TG_ALIGNMENT / sizeof(float) };
    const int64_t length = n.batch * source->plan->width, step_x = n.in * length;
    int64_t found = 0;
    for (int64_t i = 0; i < n.in; i++, x += length) {
        const int64_t first = (i * n.out + o) * n.frequencies + k;
        cpu_bits bits = cpu_bits_begin(bitmap, first, rows);
        int64_t e = cpu_bits_next(&bits);
        int64_t value = e >= 0 && source->op->values ? cpu_bits_rank(bitmap, first) : 0;
        for (; e >= 0; e = cpu_bits_next(&bits)) {
            kept[found++] =
                (cpu_kept){.value = value++, .channel = (int32_t)i, .row = (int32_t)(e - first)};
            for (int64_t b = 0; b < length; b += LINE) {
                __builtin_prefetch(x + (e - first) * step_x + b);
            }
        }
    }
    return found;
}

/* The kept entries of slice s and rows [first, first + rows): stores and subtracts them. */
static void take_kept(const stripe *p, int64_t s, int64_t first, int64_t rows) {
    const cpu_plan *plan = p->source->plan;
    const tg_compress *op = p->source->op;
    const sizes n = p->n;
    const int64_t k = p->k + first;
    const int width = plan->width;
    float *out = p->out + (s * p->row_out + first * n.rank) * width;
    cpu_kept_list list = {
        .entries = (cpu_kept *)(void *)(p->source->scratch + plan->kept),
        .channels = n.in,
        .batch = n.batch,
        .rank = n.rank,
        .x = (const float *)op->workspace + plan->x + k * n.in * n.batch * width,
        .dy = p->dy + (s * p->rows + first) * n.batch * width,
        .u = op->modes.factor[0],
        .out = op->masked ? out : NULL,
    };
    list.count = find_kept(p->source, n, p->o + s, k, rows, list.x, list.entries);
    plan->kernels->kept(width == 2, &list);
    for (int64_t e = 0; op->values && e < list.count; e++) {
        const cpu_kept *entry = &list.entries[e];
        cpu_blend(op, width, entry->g, (float *)op->values + entry->value * width);
    }
}

void cpu_transposed_run(const cpu_source *source, int64_t first, int64_t count, int slices,
                        float *panel, int64_t row_panel) {
    const tg_compress *op = source->op;
    const sizes n = sizes_of(op);
    const int64_t row = first / n.rank;
    const stripe p = {.source = source,
                      .n = n,
                      .o = row / n.frequencies,
                      .k = row % n.frequencies,
                      .slices = slices,
                      .rows = count / n.rank,
                      .dy = source->scratch + source->plan->dy,
                      .out = panel,
                      .row_out = row_panel};
    turn_dy(&p);
    add_samples(&p);
    for (int64_t s = 0; op->bitmap && (op->values || op->masked) && s < slices; s++) {
        for (int64_t j = 0; j < p.rows; j += CPU_LISTED) {
            take_kept(&p, s, j, tg_min(p.rows - j, CPU_LISTED));
        }
    }
}

/* A scratch tile of the last product: rows (part of the rank of o, `run` numbers of its block, r).
 */
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
            if (r + 1 < rank) { /* the row of the next r is far away */
                __builtin_prefetch(core + rows * block * width, 1);
                __builtin_prefetch(core + (rows * block + length - 1) * width, 1);
            }
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

void cpu_transposed_finish(const cpu_source *source, int part, int parts) {
    const cpu_mode *mode = &source->plan->mode[0];
    const int64_t block = mode->block / source->op->modes.rank[0];
    /* Pieces depend only on the shape and suit large products; a thread's tiles come from adjacent
     * pieces. */
    const int64_t down = tg_max(mode->rank / CPU_TILE_PIECE, 1);
    const int64_t across = (block + CPU_TILE_RUN - 1) / CPU_TILE_RUN;
    const tg_range pieces = tg_partition(down * across, 1, parts, part);
    for (int64_t i = pieces.begin, next; i < pieces.end; i = next) {
        tile t = {tg_partition(mode->rank, 1, (int)down, (int)(i % down)),
                  tg_partition(block, 1, (int)across, (int)(i / down))};
        for (next = i + 1; next < pieces.end && next % down != 0; next++) {
            const tg_range more = tg_partition(mode->rank, 1, (int)down, (int)(next % down));
            if (more.end - t.rows.begin > CPU_TILE_ROWS) {
                break;
            }
            t.rows.end = more.end;
        }
        make_tile(source, t);
    }
}
