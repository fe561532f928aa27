/* Compression: one pass over a gradient that gathers an index set and projects onto a core,
 * core = beta core + scale (G' x_n U_n^H).
 *
 * The tensor is never unfolded. Every thread takes slices of the first mode and contracts each
 * depth first: rows of the last mode, a panel at a time, while they are in cache (gathering,
 * masking and, for a factored gradient, forming them there for some slices at once), then mode by
 * mode towards the first, as soon as a mode's block is complete. The result is (dim 0, product of
 * the other ranks) in the workspace; when all threads are done, the first mode is contracted, split
 * over columns. Without a factor on the first mode the slices go straight to the core. */
#include <omp.h>

#include "backend/check.h"
#include "backend/cpu/compress.h"
#include "base/minmax.h"

/* The state of one thread. */
typedef struct worker {
    const cpu_plan *plan;
    const cpu_source *source;
    int slices;     /* of the first mode, processed together */
    float *panel;   /* CPU_PANEL floats */
    float *scratch; /* of the thread, for the buffers of the modes */
} worker;

/* Destination of a result: out = beta out + alpha result. */
typedef struct target {
    float *out;
    int64_t slice; /* elements to the result of the next slice */
    float alpha, beta;
} target;

static target target_at(target to, int64_t elements, int width) {
    to.out += elements * width;
    return to;
}

/* Contracts the last mode: rows [first row, ..) of G to (rows, rank). */
static void project_rows(const worker *w, int64_t first, int64_t rows, target to) {
    const cpu_plan *plan = w->plan;
    const cpu_mode *last = &plan->mode[plan->ndim - 1];
    const int64_t most = plan->panel_rows / w->slices;
    for (int64_t r = 0; r < rows; r += most) {
        const int64_t some = tg_min(rows - r, most);
        for (int64_t c = 0; c < last->dim; c += CPU_PRODUCT_DEPTH) {
            const int64_t depth = tg_min(last->dim - c, CPU_PRODUCT_DEPTH);
            const cpu_view g = cpu_source_block(w->source, first + r * last->dim + c, some,
                                                last->dim, depth, w->slices, w->panel);
            for (int i = 0; i < w->slices; i++) {
                const cpu_product product = {
                    .m = some,
                    .n = last->rank,
                    .k = depth,
                    .a = g.data + i * some * depth * plan->width,
                    .row_a = g.ld,
                    .col_a = 1,
                    .b = last->factor + c * last->rank * plan->width,
                    .ldb = last->rank,
                    .conj_b = true,
                    .c = to.out + (i * to.slice + r * last->rank) * plan->width,
                    .ldc = last->rank,
                    .alpha = to.alpha,
                    .beta = c == 0 ? to.beta : 1.0f,
                };
                cpu_plan_product(plan, &product);
            }
        }
    }
}

/* Columns of `to` = U^H of a mode, `depth` rows of it from row i on, times b. */
static void contract(const cpu_plan *plan, const cpu_mode *mode, int64_t i, int64_t depth,
                     cpu_view b, int64_t columns, target to) {
    const cpu_product product = {
        .m = mode->rank,
        .n = columns,
        .k = depth,
        .a = mode->factor + i * mode->rank * plan->width,
        .row_a = 1,
        .col_a = mode->rank,
        .conj_a = true,
        .b = b.data,
        .ldb = b.ld,
        .c = to.out,
        .ldc = mode->block,
        .alpha = to.alpha,
        .beta = to.beta,
    };
    cpu_plan_product(plan, &product);
}

/* The same for all slices, whose b are `between` elements apart. */
static void contract_slices(const worker *w, const cpu_mode *mode, int64_t i, int64_t depth,
                            cpu_view b, int64_t between, int64_t columns, target to) {
    const int width = w->plan->width;
    for (int s = 0; s < w->slices; s++) {
        contract(w->plan, mode, i, depth, b, columns, to);
        b.data += between * width;
        to = target_at(to, to.slice, width);
    }
}

/* Contracts the mode before the last if the last has no factor: columns of the block (dim, length
 * of the last mode) of G that begins at `first`. */
static void project_columns(const worker *w, int64_t first, tg_range columns, target to) {
    const cpu_plan *plan = w->plan;
    const cpu_mode *mode = &plan->mode[plan->ndim - 2];
    const int64_t most = plan->panel_columns / w->slices;
    for (int64_t c = columns.begin; c < columns.end; c += most) {
        const int64_t some = tg_min(columns.end - c, most);
        for (int64_t i = 0; i < mode->dim; i += CPU_PRODUCT_DEPTH) {
            const int64_t depth = tg_min(mode->dim - i, CPU_PRODUCT_DEPTH);
            const cpu_view g = cpu_source_block(w->source, first + i * mode->step + c, depth,
                                                mode->step, some, w->slices, w->panel);
            target part = target_at(to, c, plan->width);
            part.beta = i == 0 ? to.beta : 1.0f;
            contract_slices(w, mode, i, depth, g, depth * some, some, part);
        }
    }
}

/* Contracts modes d, d + 1, .. of the block of G that begins at `first` and of those of the next
 * slices; d >= 1. */
static void project_block(const worker *w, int d, int64_t first, target to) {
    const cpu_plan *plan = w->plan;
    const cpu_mode *mode = &plan->mode[d];
    const bool before_last = d == plan->ndim - 2;
    if (before_last && !mode[1].factor) {
        project_columns(w, first, (tg_range){0, mode->step}, to);
        return;
    }
    const target whole = to;
    const int64_t size = mode->dim * mode->block;
    if (mode->factor) {
        to = (target){w->scratch + mode->buffer, size, 1.0f, 0.0f};
    }
    if (before_last) {
        project_rows(w, first, mode->dim, to);
    } else {
        for (int64_t i = 0; i < mode->dim; i++) {
            project_block(w, d + 1, first + i * mode->step,
                          target_at(to, i * mode->block, plan->width));
        }
    }
    if (mode->factor) {
        const cpu_view buffer = {to.out, mode->block};
        contract_slices(w, mode, 0, mode->dim, buffer, size, mode->block, whole);
    }
}

/* Without any factor, or without a core: only the pass over G. */
static void pass(const worker *w, tg_range range, target to) {
    const int width = w->plan->width;
    const int64_t most = CPU_PANEL / width;
    for (int64_t i = range.begin; i < range.end; i += most) {
        const int64_t some = tg_min(range.end - i, most);
        const float *g = cpu_source_block(w->source, i, 1, some, some, 1, w->panel).data;
        float *out = to.out + i * width;
        for (int64_t e = 0; to.out && e < some * width; e++) {
            out[e] = to.alpha * g[e] + (to.beta == 0.0f ? 0.0f : to.beta * out[e]);
        }
    }
}

/* A thread's share of the modes after the first, into `to` (dim 0, block). */
static void project_slices(worker w, int part, int parts, target to) {
    const cpu_mode *first = &w.plan->mode[0];
    if (w.plan->ndim == 2) {
        const tg_range pieces = tg_partition(cpu_plan_pieces(w.plan), 1, parts, part);
        for (int64_t i = pieces.begin; i < pieces.end; i++) {
            const tg_range rows = cpu_plan_piece(w.plan, i);
            project_rows(&w, rows.begin * first->step, rows.end - rows.begin,
                         target_at(to, rows.begin * first->block, w.plan->width));
        }
        return;
    }
    const tg_range slices = tg_partition(first->dim, 1, parts, part);
    to = target_at(to, slices.begin * first->block, w.plan->width);
    to.slice = first->block;
    for (int64_t i = slices.begin; i < slices.end; i += w.slices) {
        w.slices = slices.end - i < w.plan->slices ? (int)(slices.end - i) : w.plan->slices;
        project_block(&w, 1, i * first->step, to);
        to = target_at(to, w.slices * first->block, w.plan->width);
    }
}

/* One thread's part of the call. All threads run it, as some cases have a barrier. */
static void compress_part(tg_backend *be, const cpu_plan *plan, const tg_compress *op, int part,
                          int parts) {
    const cpu_source source = {.plan = plan, .convert = cpu_state_of(be)->kernels, .op = op};
    float *workspace = op->workspace;
    float *scratch = workspace + plan->scratch + part * plan->scratch_size;
    const worker w = {
        .plan = plan, .source = &source, .slices = 1, .panel = scratch, .scratch = scratch};
    const cpu_mode *first = &plan->mode[0];
    const target core = {op->core, 0, (float)op->scale, (float)op->beta};
    const int64_t grain = TG_ALIGNMENT / (int64_t)sizeof(float);
    if (plan->ndim == 1 || !op->core) {
        pass(&w, tg_partition(plan->numel, grain, parts, part), core);
        return;
    }
    const tg_range columns = tg_partition(first->block, grain, parts, part);
    if (plan->ndim == 2 && !first[1].factor) {
        project_columns(&w, 0, columns, core);
        return;
    }
    if (!cpu_plan_has_middle(plan)) {
        project_slices(w, part, parts, core);
        return;
    }
    float *middle = workspace + plan->middle;
    project_slices(w, part, parts, (target){middle, 0, 1.0f, 0.0f});
#pragma omp barrier
    const cpu_view view = {middle + columns.begin * plan->width, first->block};
    contract(plan, first, 0, first->dim, view, columns.end - columns.begin,
             target_at(core, columns.begin, plan->width));
}

/* The same through the transposed tensor, without forming a factored gradient. */
static void compress_transposed(tg_backend *be, const cpu_plan *plan, const tg_compress *op,
                                int part, int parts) {
    float *workspace = op->workspace;
    float *scratch = workspace + plan->scratch + part * plan->scratch_size;
    const cpu_source source = {
        .plan = plan, .convert = cpu_state_of(be)->kernels, .op = op, .scratch = scratch};
    const worker w = {
        .plan = plan, .source = &source, .slices = 1, .panel = scratch, .scratch = scratch};
    cpu_transposed_prepare(&source, part, parts);
#pragma omp barrier
    project_slices(w, part, parts, (target){workspace + plan->middle, 0, 1.0f, 0.0f});
#pragma omp barrier
    cpu_transposed_finish(&source, part, parts);
}

size_t cpu_compress_workspace(tg_backend *be, const tg_multimode *modes, bool factored) {
    cpu_plan transposed;
    int64_t size = cpu_compress_plan(be, modes, factored).size;
    if (factored && cpu_transposed_plan(be, modes, &transposed) && transposed.size > size) {
        size = transposed.size;
    }
    return (size_t)size * sizeof(float);
}

tg_status cpu_compress(tg_backend *be, const tg_compress *op) {
    if (!cpu_compress_tuned(op->modes.dtype)) {
        return be->ref->compress(be, op);
    }
    TG_CALL(tg_compress_count(be, op));
    cpu_plan transposed;
    const cpu_plan plan = cpu_compress_plan(be, &op->modes, !op->source.dense);
    if (!op->source.dense && cpu_transposed_plan(be, &op->modes, &transposed) &&
        cpu_transposed_pays(op, &plan, &transposed)) {
        tg_path_report_modes(be, "project", (tg_path){"transposed", "compress_transposed"},
                             &op->modes);
#pragma omp parallel num_threads(transposed.threads)
        compress_transposed(be, &transposed, op, omp_get_thread_num(), omp_get_num_threads());
        return TG_OK;
    }
    tg_path_report_modes(be, "project", (tg_path){"general", "compress_part"}, &op->modes);
#pragma omp parallel num_threads(plan.threads)
    compress_part(be, &plan, op, omp_get_thread_num(), omp_get_num_threads());
    return TG_OK;
}
