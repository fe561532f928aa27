/* The plan of a multilinear map: the modes to contract, and the layout of the workspace. Computed
 * in every call, from the shapes alone. */
#include "backend/cpu/compress.h"

#include "base/minmax.h"

enum { THREAD_GRAIN = 1024 }; /* fewer elements are not worth a thread */

bool cpu_compress_tuned(tg_dtype dtype) {
    return dtype == TG_F32 || dtype == TG_C64;
}

static void collect_modes(const tg_multimode *modes, cpu_plan *plan) {
    for (int d = 0; d < modes->ndim; d++) {
        const cpu_mode mode = {
            .dim = modes->dim[d], .rank = modes->rank[d], .factor = modes->factor[d]};
        cpu_mode *before = plan->ndim > 0 ? &plan->mode[plan->ndim - 1] : NULL;
        plan->numel *= mode.dim;
        if (!mode.factor && mode.dim == 1) {
            continue;
        }
        if (!mode.factor && before && !before->factor) {
            before->dim *= mode.dim;
            before->rank *= mode.dim;
        } else {
            plan->mode[plan->ndim++] = mode;
        }
    }
    if (plan->ndim == 0 || (plan->ndim == 1 && plan->mode[0].factor)) {
        plan->mode[plan->ndim++] = (cpu_mode){.dim = 1, .rank = 1};
    }
    int64_t step = 1, block = 1;
    for (int d = plan->ndim - 1; d >= 0; d--) {
        plan->mode[d].step = step;
        plan->mode[d].block = block;
        step *= plan->mode[d].dim;
        block *= plan->mode[d].rank;
    }
}

/* Takes the next `elements` of the workspace, aligned to a cache line. */
static int64_t take(const cpu_plan *plan, int64_t elements, int64_t *size) {
    enum { LINE = TG_ALIGNMENT / sizeof(float) };
    const int64_t begin = *size;
    *size += (elements * plan->width + LINE - 1) / LINE * LINE;
    return begin;
}

/* Whether (dim, block) of a mode is needed during the contraction of a slice. */
static bool has_buffer(const cpu_plan *plan, int d) {
    const int last = plan->ndim - 1;
    return plan->mode[d].factor && (d < last - 1 || plan->mode[last].factor);
}

/* Number of slices contracted together: more than one only if their buffers take no more than a
 * part of the tensor. */
static int slices_together(const cpu_plan *plan, int64_t most) {
    enum { PART = 8 };
    int64_t buffers = 0;
    for (int d = 1; d < plan->ndim - 1; d++) {
        buffers += has_buffer(plan, d) ? plan->mode[d].dim * plan->mode[d].block : 0;
    }
    const int64_t more = plan->numel / PART / tg_max(plan->threads * buffers, 1);
    return (int)tg_min(1 + more, most);
}

/* panel: floats of a thread's panel */
static void lay_out(cpu_plan *plan, int64_t panel) {
    const int last = plan->ndim - 1;
    const cpu_mode *mode = plan->mode;
    if (mode[last].factor) {
        plan->transposed = take(plan, mode[last].rank * mode[last].dim, &plan->size);
    }
    if (cpu_plan_has_middle(plan)) {
        plan->middle = take(plan, mode[0].dim * mode[0].block, &plan->size);
    }
    plan->scratch = plan->size;
    plan->scratch_size = panel;
    for (int d = 1; d < last; d++) {
        if (has_buffer(plan, d)) {
            plan->mode[d].buffer =
                take(plan, plan->slices * mode[d].dim * mode[d].block, &plan->scratch_size);
        }
    }
    plan->size += plan->threads * plan->scratch_size;
}

static cpu_plan outline(tg_backend *be, const tg_multimode *modes) {
    cpu_plan plan = {.kernels = cpu_state_of(be)->compress,
                     .width = tg_dtype_is_complex(modes->dtype) ? 2 : 1,
                     .slices = 1,
                     .numel = 1};
    collect_modes(modes, &plan);
    plan.threads = cpu_team(be, cpu_parts(be, plan.numel, THREAD_GRAIN));
    const int64_t panel = CPU_PANEL / plan.width;
    const cpu_mode *last = &plan.mode[plan.ndim - 1];
    plan.panel_rows = panel / tg_min(last->dim, CPU_PRODUCT_DEPTH);
    if (plan.ndim > 1) {
        plan.panel_columns = panel / tg_min(last[-1].dim, CPU_PRODUCT_DEPTH);
    }
    /* Rows of a matrix: enough for a large product, and pieces for many threads. */
    enum { MIN_PIECE = 24, PIECES = 64 };
    plan.piece = 1;
    if (plan.ndim == 2) {
        plan.piece = tg_min(tg_max(plan.mode[0].dim / PIECES, MIN_PIECE), plan.panel_rows);
    }
    return plan;
}

cpu_plan cpu_compress_plan(tg_backend *be, const tg_multimode *modes, bool factored) {
    cpu_plan plan = outline(be, modes);
    if (factored && plan.ndim > 2 && plan.mode[0].dim == modes->dim[0]) {
        plan.slices = slices_together(&plan, CPU_SLICES); /* each is one channel of x */
    }
    lay_out(&plan, CPU_PANEL);
    return plan;
}

/* The number of samples whose copies of x take no more than a part of the tensor. */
static int64_t room_for_samples(const tg_multimode *modes) {
    enum { MAX_SAMPLES = 16, PART = 4 };
    const int64_t copies = modes->dim[0] + modes->rank[0];
    return tg_min(modes->dim[0] * modes->dim[1] / (PART * copies), MAX_SAMPLES);
}

static int64_t floats_of(size_t bytes) {
    return (int64_t)(bytes / sizeof(float));
}

/* Adds the inputs of the transposed tensor, a panel of it, and space for a tile of the last
 * product. */
static void lay_out_transposed(const tg_multimode *modes, int64_t panel_rows, cpu_plan *plan) {
    const int64_t in = modes->dim[0], rank = modes->rank[0];
    const int64_t frequencies = tg_product(modes->ndim - 2, modes->dim + 2);
    plan->projected = take(plan, frequencies * plan->samples * rank, &plan->size);
    plan->x = take(plan, frequencies * plan->samples * in, &plan->size);
    lay_out(plan, plan->slices * panel_rows * rank * plan->width);
    plan->size -= plan->threads * plan->scratch_size;
    plan->dy = take(plan, plan->slices * panel_rows * plan->samples, &plan->scratch_size);
    plan->kept = plan->scratch_size;
    plan->scratch_size += CPU_LISTED * in * floats_of(sizeof(cpu_kept));
    const int64_t tile = CPU_TILE_ROWS * CPU_TILE_RUN * rank * plan->width;
    plan->scratch_size = tile > plan->scratch_size ? tile : plan->scratch_size;
    plan->size += plan->threads * plan->scratch_size;
}

bool cpu_transposed_plan(tg_backend *be, const tg_multimode *modes, cpu_plan *out) {
    const int last = modes->ndim - 1;
    if (last < 2 || !modes->factor[0] || !modes->factor[1] || !modes->factor[last] ||
        modes->rank[0] == 1 || room_for_samples(modes) == 0) {
        return false;
    }
    tg_multimode transposed = {.dtype = modes->dtype, .ndim = modes->ndim};
    for (int d = 0; d < last; d++) {
        transposed.dim[d] = modes->dim[d + 1];
        transposed.rank[d] = modes->rank[d + 1];
        transposed.factor[d] = modes->factor[d + 1];
    }
    transposed.dim[last] = transposed.rank[last] = modes->rank[0];
    *out = outline(be, &transposed);
    const int64_t rows = tg_min(modes->dim[last], CPU_PRODUCT_DEPTH), rank = modes->rank[0];
    const int64_t most = tg_max(CPU_TRANSPOSED_PANEL / (rows * rank * out->width), 1);
    out->slices = slices_together(out, tg_min(most, CPU_TRANSPOSED_SLICES));
    out->panel_columns = out->slices * rank;
    out->samples = room_for_samples(modes);
    lay_out_transposed(modes, rows, out);
    return true;
}

double cpu_plan_cost(const cpu_plan *plan) {
    double cost = 0.0;
    for (int d = 0; d < plan->ndim; d++) { /* the modes after d are contracted */
        const cpu_mode *mode = &plan->mode[d];
        const double before = (double)plan->numel / (double)(mode->dim * mode->step);
        cost += mode->factor ? before * (double)(mode->dim * mode->rank * mode->block) : 0.0;
    }
    return cost;
}
