/* Expands a core, out = beta out + alpha (core x_n U_n + lambda scatter(values)), or evaluates the
 * expansion at an index set only.
 *
 * The mirror image of compress.c: the first mode is expanded into the workspace, split over
 * columns; then every thread takes slices and expands mode by mode, depth first. The last product
 * writes panels straight into `out` with alpha and beta, and the sparse values are added to a panel
 * while it is in cache: one pass over `out`, no update tensor. Sampling writes to a scratch panel
 * instead, reads the wanted entries and drops it; a 16-bit `out` is rounded from such a panel. */
#include <omp.h>

#include "backend/check.h"
#include "backend/cpu/compress.h"
#include "backend/cpu/cpu.h"
#include "base/minmax.h"

/* A set with less than one in this many entries is sampled by dot products: slower per entry, but
 * only for kept entries. */
enum { DENSE_SET = 4 };

/* The work of a call; neither `out` nor `half_out` means sampling. */
typedef struct task {
    const cpu_plan *plan;
    const float *core; /* NULL: none */
    float *workspace;
    float alpha, beta;
    float *out;
    void *half_out; /* `out` in this storage */
    tg_storage store;
    const cpu_kernels *convert;
    const tg_rng *rounding; /* of half_out, NULL: to nearest */
    const tg_bitmap *bitmap;
    const float *scattered; /* values added to out; NULL: none */
    float lambda;
    float *sampled; /* accumulates the samples */
} task;

/* The state of one thread. */
typedef struct worker {
    const task *task;
    float *panel;   /* CPU_PANEL floats */
    float *scratch; /* of the thread, for the buffers of the modes */
} worker;

/* A block (rows, columns) of the full tensor to be computed. */
typedef struct piece {
    int64_t first; /* entry of the tensor */
    int64_t rows, step, columns;
} piece;

/* Adds the values times `factor` to a run of entries from `first` on. */
static void scatter_run(const task *t, int64_t first, int64_t count, float factor, float *run) {
    const int width = t->plan->width;
    const float *value = t->scattered + cpu_bits_rank(t->bitmap, first) * width;
    cpu_bits bits = cpu_bits_begin(t->bitmap, first, count);
    for (int64_t e = cpu_bits_next(&bits); e >= 0; e = cpu_bits_next(&bits), value += width) {
        for (int c = 0; c < width; c++) {
            run[(e - first) * width + c] += factor * value[c];
        }
    }
}

/* Rounds a run of the expanded core (a panel, overwritten) plus the values to 16 bits. */
static void half_run(const task *t, int64_t first, int64_t count, float *run) {
    const int width = t->plan->width;
    if (t->scattered) {
        scatter_run(t, first, count, t->lambda, run);
    }
    enum { CHUNK = 1024 };
    float old[CHUNK] = {0};
    for (int64_t i = 0; i < count * width; i += CHUNK) {
        const int64_t at = first * width + i, some = tg_min(count * width - i, CHUNK);
        if (t->beta != 0.0f) {
            cpu_read(t->convert, t->store, t->half_out, at, some, old);
        }
        for (int64_t j = 0; j < some; j++) {
            run[i + j] = t->alpha * run[i + j] + t->beta * old[j];
        }
        cpu_write_rounded(t->convert, t->store, some, run + i, t->half_out, at, t->rounding);
    }
}

/* Adds alpha run[kept] to the sampled values. */
static void sample_run(const task *t, int64_t first, int64_t count, const float *run) {
    const int width = t->plan->width;
    float *value = t->sampled + cpu_bits_rank(t->bitmap, first) * width;
    cpu_bits bits = cpu_bits_begin(t->bitmap, first, count);
    for (int64_t e = cpu_bits_next(&bits); e >= 0; e = cpu_bits_next(&bits), value += width) {
        for (int c = 0; c < width; c++) {
            value[c] += t->alpha * run[(e - first) * width + c];
        }
    }
}

/* Runs the last product of a piece, which has a and b set, into the piece's destination. */
static void finish_piece(const worker *w, piece to, cpu_product product) {
    const task *t = w->task;
    const int width = t->plan->width;
    const bool adjacent = to.columns == to.step;
    const int64_t runs = adjacent ? 1 : to.rows;
    const int64_t length = adjacent ? to.rows * to.columns : to.columns;
    product.m = to.rows;
    product.n = to.columns;
    product.c = t->out ? t->out + to.first * width : w->panel;
    product.ldc = t->out ? to.step : to.columns;
    product.alpha = t->out ? t->alpha : 1.0f;
    product.beta = t->out ? t->beta : 0.0f;
    cpu_plan_product(t->plan, &product);
    for (int64_t r = 0; r < runs; r++) {
        const int64_t first = to.first + r * to.step;
        if (t->half_out) {
            half_run(t, first, length, w->panel + r * length * width);
        } else if (!t->out) {
            sample_run(t, first, length, w->panel + r * length * width);
        } else if (t->scattered) {
            scatter_run(t, first, length, t->alpha * t->lambda, t->out + first * width);
        }
    }
}

/* Samples entries of the last mode individually, as dot products of rows of `in` and of U. */
static void sample_rows(const task *t, const float *in, int64_t first, int64_t rows) {
    const cpu_plan *plan = t->plan;
    const cpu_mode *last = &plan->mode[plan->ndim - 1];
    const int64_t length = last->rank * plan->width; /* of a row, in floats */
    float *value = t->sampled + cpu_bits_rank(t->bitmap, first) * plan->width;
    for (int64_t r = 0; r < rows; r++, first += last->dim) {
        cpu_bits bits = cpu_bits_begin(t->bitmap, first, last->dim);
        for (int64_t e = cpu_bits_next(&bits); e >= 0; e = cpu_bits_next(&bits)) {
            plan->kernels->dot(plan->width == 2, last->rank, in + r * length,
                               last->factor + (e - first) * length, t->alpha, value);
            value += plan->width;
        }
    }
}

/* Expands the last mode: (rows, rank) of `in` to rows of the tensor, starting at entry `first`. */
static void expand_rows(const worker *w, const float *in, int64_t first, int64_t rows) {
    const task *t = w->task;
    const cpu_plan *plan = t->plan;
    const cpu_mode *last = &plan->mode[plan->ndim - 1];
    const float *transposed = t->workspace + plan->transposed; /* (rank, dim) */
    if (!t->out && !t->half_out && t->bitmap->count * DENSE_SET < t->bitmap->n) {
        sample_rows(t, in, first, rows);
        return;
    }
    for (int64_t r = 0; r < rows; r += plan->panel_rows) {
        for (int64_t c = 0; c < last->dim; c += CPU_PRODUCT_DEPTH) {
            const cpu_product product = {
                .k = last->rank,
                .a = in + r * last->rank * plan->width,
                .row_a = last->rank,
                .col_a = 1,
                .b = transposed + c * plan->width,
                .ldb = last->dim,
            };
            const piece part = {.first = first + r * last->dim + c,
                                .rows = tg_min(rows - r, plan->panel_rows),
                                .step = last->dim,
                                .columns = tg_min(last->dim - c, CPU_PRODUCT_DEPTH)};
            finish_piece(w, part, product);
        }
    }
}

/* Rows [i, ..) of a mode's U times b. */
static cpu_product expansion(const cpu_plan *plan, const cpu_mode *mode, int64_t i,
                             const float *in) {
    return (cpu_product){.k = mode->rank,
                         .a = mode->factor + i * mode->rank * plan->width,
                         .row_a = mode->rank,
                         .col_a = 1,
                         .b = in,
                         .ldb = mode->block,
                         .ldc = mode->block,
                         .alpha = 1.0f};
}

/* Expands the mode before the last if the last has no factor: columns of (rank, length of the last
 * mode) to the block of the tensor that begins at `first`. */
static void expand_columns(const worker *w, const float *in, int64_t first, tg_range columns) {
    const cpu_plan *plan = w->task->plan;
    const cpu_mode *mode = &plan->mode[plan->ndim - 2];
    for (int64_t c = columns.begin; c < columns.end; c += plan->panel_columns) {
        for (int64_t i = 0; i < mode->dim; i += CPU_PRODUCT_DEPTH) {
            const piece part = {.first = first + i * mode->step + c,
                                .rows = tg_min(mode->dim - i, CPU_PRODUCT_DEPTH),
                                .step = mode->step,
                                .columns = tg_min(columns.end - c, plan->panel_columns)};
            finish_piece(w, part, expansion(plan, mode, i, in + c * plan->width));
        }
    }
}

/* Expands modes d, d + 1, .. of (rank, block) to the block of the tensor that begins at `first`;
 * d >= 1. */
static void expand_block(const worker *w, int d, const float *in, int64_t first) {
    const cpu_plan *plan = w->task->plan;
    const cpu_mode *mode = &plan->mode[d];
    const bool before_last = d == plan->ndim - 2;
    if (before_last && !mode[1].factor) {
        expand_columns(w, in, first, (tg_range){0, mode->step});
        return;
    }
    if (mode->factor) {
        cpu_product product = expansion(plan, mode, 0, in);
        product.m = mode->dim;
        product.n = mode->block;
        product.c = w->scratch + mode->buffer;
        cpu_plan_product(plan, &product);
        in = product.c;
    }
    if (before_last) {
        expand_rows(w, in, first, mode->dim);
        return;
    }
    for (int64_t i = 0; i < mode->dim; i++) {
        expand_block(w, d + 1, in + i * mode->block * plan->width, first + i * mode->step);
    }
}

/* Without any factor, or without a core: out = beta out + alpha core, and the values. */
static void pass(const worker *w, tg_range range) {
    const task *t = w->task;
    const int width = t->plan->width;
    const int64_t most = CPU_PANEL / width;
    for (int64_t i = range.begin; i < range.end; i += most) {
        const int64_t some = tg_min(range.end - i, most);
        if (t->half_out) {
            for (int64_t e = 0; e < some * width; e++) {
                w->panel[e] = t->core ? t->core[i * width + e] : 0.0f;
            }
            half_run(t, i, some, w->panel);
            continue;
        }
        if (!t->out) {
            sample_run(t, i, some, t->core + i * width);
            continue;
        }
        for (int64_t e = i * width; e < (i + some) * width; e++) {
            const float old = t->beta == 0.0f ? 0.0f : t->beta * t->out[e];
            t->out[e] = t->core ? t->alpha * t->core[e] + old : old;
        }
        if (t->scattered) {
            scatter_run(t, i, some, t->alpha * t->lambda, t->out + i * width);
        }
    }
}

static void expand_slices(const worker *w, tg_range slices, const float *in) {
    const cpu_plan *plan = w->task->plan;
    const cpu_mode *first = &plan->mode[0];
    in += slices.begin * first->block * plan->width;
    if (plan->ndim == 2) {
        expand_rows(w, in, slices.begin * first->step, slices.end - slices.begin);
        return;
    }
    for (int64_t i = slices.begin; i < slices.end; i++) {
        expand_block(w, 1, in, i * first->step);
        in += first->block * plan->width;
    }
}

/* Rows of the transposed last factor. */
static void transpose_factor(const task *t, tg_range rows) {
    const cpu_mode *last = &t->plan->mode[t->plan->ndim - 1];
    const int width = t->plan->width;
    float *out = t->workspace + t->plan->transposed;
    for (int64_t j = rows.begin; j < rows.end; j++) {
        for (int64_t i = 0; i < last->dim; i++) {
            for (int c = 0; c < width; c++) {
                out[(j * last->dim + i) * width + c] =
                    last->factor[(i * last->rank + j) * width + c];
            }
        }
    }
}

/* One thread's part of the call. All threads run it, as most cases have a barrier. */
static void expand_part(const task *t, int part, int parts) {
    const cpu_plan *plan = t->plan;
    const cpu_mode *first = &plan->mode[0], *last = &plan->mode[plan->ndim - 1];
    float *scratch = t->workspace + plan->scratch + part * plan->scratch_size;
    const worker w = {.task = t, .panel = scratch, .scratch = scratch};
    const int64_t grain = TG_ALIGNMENT / (int64_t)sizeof(float);
    if (plan->ndim == 1 || !t->core) {
        pass(&w, tg_partition(plan->numel, grain, parts, part));
        return;
    }
    const tg_range columns = tg_partition(first->block, grain, parts, part);
    if (plan->ndim == 2 && !last->factor) {
        expand_columns(&w, t->core, 0, columns);
        return;
    }
    if (last->factor) {
        transpose_factor(t, tg_partition(last->rank, 1, parts, part));
    }
    const float *slices = t->core; /* (dim 0, block) */
    if (cpu_plan_has_middle(plan)) {
        cpu_product product = expansion(plan, first, 0, t->core + columns.begin * plan->width);
        product.m = first->dim;
        product.n = columns.end - columns.begin;
        product.c = t->workspace + plan->middle + columns.begin * plan->width;
        cpu_plan_product(plan, &product);
        slices = t->workspace + plan->middle;
    }
#pragma omp barrier
#pragma omp for schedule(dynamic) nowait
    for (int64_t i = 0; i < cpu_plan_pieces(plan); i++) {
        expand_slices(&w, cpu_plan_piece(plan, i), slices);
    }
}

tg_status cpu_expand(tg_backend *be, const tg_expand *call) {
    tg_expand resolved;
    tg_rng rounding;
    const tg_expand *op = &resolved;
    if (!cpu_compress_tuned(call->modes.dtype)) {
        return be->ref->expand(be, call);
    }
    if (!tg_expand_resolve(call, &resolved, &rounding)) {
        return TG_OK;
    }
    const bool is_half = op->out_store != TG_STORE_FULL;
    const cpu_plan plan = cpu_compress_plan(be, &op->modes, false);
    const task t = {.plan = &plan,
                    .core = op->core,
                    .workspace = op->workspace,
                    .alpha = (float)op->alpha,
                    .beta = (float)op->beta,
                    .out = is_half ? NULL : op->out,
                    .half_out = is_half ? op->out : NULL,
                    .store = op->out_store,
                    .convert = cpu_state_of(be)->kernels,
                    .rounding = op->rounding,
                    .bitmap = op->bitmap,
                    .scattered = op->bitmap ? op->values : NULL,
                    .lambda = (float)op->lambda};
    tg_path_report_modes(be, "expand", (tg_path){"general", "expand_part"}, &op->modes);
#pragma omp parallel num_threads(plan.threads)
    expand_part(&t, omp_get_thread_num(), omp_get_num_threads());
    return TG_OK;
}

tg_status cpu_sample(tg_backend *be, const tg_sample *op) {
    if (!cpu_compress_tuned(op->modes.dtype)) {
        return be->ref->sample(be, op);
    }
    const cpu_plan plan = cpu_compress_plan(be, &op->modes, false);
    const task t = {.plan = &plan,
                    .core = op->core,
                    .workspace = op->workspace,
                    .alpha = (float)op->alpha,
                    .bitmap = op->bitmap,
                    .sampled = op->values};
#pragma omp parallel num_threads(plan.threads)
    expand_part(&t, omp_get_thread_num(), omp_get_num_threads());
    return TG_OK;
}
