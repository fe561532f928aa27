/* The plan of a multilinear map and its products; see compress.cuh.
 *
 * Workspace, in this order: S of every factor; two buffers that alternate as input and output of a
 * chunk's steps; and if mode 0 has a factor, `middle`: (dim0, part, columns), all chunks with only
 * mode 0 left. The product of `middle` with that factor is computed in pieces of `width` columns
 * that fit into L2. They share the memory of the two buffers until they are interleaved into the
 * core. */
#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/compress/factor_fragments.cuh"

enum {
    PIECE_BYTES = 32 << 20, /* of a piece of mode 0's product */
    PIECE_COLUMNS = 256     /* of it, at least */
};

tg_status cuda_check_modes(const tg_backend *be, const char *slot, tg_dtype dtype,
                           tg_storage store) {
    const tg_dtype real = tg_dtype_real(dtype);
    if (real != TG_F32 && real != TG_F64) {
        return tg_fail(be->ctx, TG_E_DTYPE, "%s: f32, f64, c64 or c128 is needed, not %s", slot,
                       tg_dtype_name(dtype));
    }
    return tg_check_store(be->ctx, slot, dtype, store);
}

/* ---- plan ---- */

/* Rows of short matrices are not padded. */
static int64_t pad(int64_t reals) {
    return reals < 16 ? reals : (reals + 3) / 4 * 4;
}

struct mode {
    int64_t dim, rank;
    const void *factor;
    int of; /* the tensor */
};

/* Modes of size 1 without a factor are dropped and neighbours without one merged, except mode 0. */
static int collect_modes(const tg_multimode *modes, mode *list) {
    int count = 0;
    for (int d = 0; d < modes->ndim; d++) {
        const mode now = {modes->dim[d], modes->rank[d], modes->factor[d], d};
        if (d > 0 && !now.factor && now.dim == 1) {
            continue;
        }
        mode *before = count > 1 ? &list[count - 1] : NULL;
        if (!now.factor && before && !before->factor) {
            before->dim *= now.dim;
            before->rank *= now.dim;
        } else {
            list[count++] = now;
        }
    }
    return count;
}

static cuda_factor factor_of(const mode *m, int parts, bool padded, int64_t *used) {
    const int64_t rows = padded ? pad(m->rank) : m->rank;
    cuda_factor factor = {m->factor,           m->dim, m->rank,       rows,
                          pad(parts * m->dim), *used,  CUDA_OWN_NONE, m->of};
    *used += parts * factor.rows * factor.ld;
    *used = (*used + 63) / 64 * 64;
    return factor;
}

/* Entries of the modes [begin, end). */
static int64_t entries_of(const mode *list, int begin, int end) {
    int64_t entries = 1;
    for (int m = begin; m < end; m++) {
        entries *= list[m].dim;
    }
    return entries;
}

/* The modes from the last down to the first with a factor, except mode 0, as steps. */
static void plan_steps(cuda_plan *plan, const mode *list, int count, int begin, int64_t *used) {
    const mode none = {1, 1, NULL, 0};
    const int last = count > 1 ? count - 1 : 1;
    const mode *tail = count > 1 ? &list[last] : &none;
    const int64_t left = entries_of(list, 1, last);
    plan->block = tail->rank;
    plan->padded = plan->columns = pad(tail->rank);
    plan->view = {tail->dim, plan->parts * plan->padded, plan->padded, 1};
    if (tail->factor) {
        const cuda_factor factor = factor_of(tail, plan->parts, true, used);
        plan->step[plan->steps++] = {CUDA_STEP_RIGHT, left, tail->dim, 1, factor};
        plan->view = {tail->dim, factor.ld, 1, plan->parts};
        plan->state[1] = left * plan->parts * plan->columns;
    }
    plan->state[0] = left * plan->view.ld;
    const int first = begin > 1 ? begin : 1;
    for (int m = last - 1; m >= first; m--) {
        const int64_t before = entries_of(list, 1, m);
        if (list[m].factor) {
            const cuda_factor factor = factor_of(&list[m], plan->parts, false, used);
            plan->step[plan->steps++] = {CUDA_STEP_LEFT, before, list[m].dim, plan->columns,
                                         factor};
        } else if (plan->parts == 2) {
            plan->step[plan->steps++] = {CUDA_STEP_TURN, before, list[m].dim, plan->columns,
                                         cuda_factor()};
        }
        plan->columns *= list[m].rank;
        plan->state[plan->steps] = before * plan->parts * plan->columns;
    }
    plan->lead = entries_of(list, 1, (int)tg_min(first, last));
}

/* Steps 0 and 1 in one pass, if possible; for split numbers only the sizes, which the kernels for
 * the last mode use. */
static void plan_planes(const tg_backend *be, cuda_plan *plan) {
    const cuda_step *last = &plan->step[0], *before = &plan->step[1];
    if (plan->steps < 2 || last->kind != CUDA_STEP_RIGHT || before->kind != CUDA_STEP_LEFT) {
        return;
    }
    plan->planes = cuda_planes_of(before->dim, before->factor.rank, last->dim, last->factor.rank,
                                  before->right);
    if (plan->split) {
        plan->planes.tiles = 0;
        return;
    }
    plan->planes.at = plan->size;
    plan->size += (cuda_planes_size(&plan->planes) + 63) / 64 * 64;
    if (plan->planes.tiles > 0) {
        plan->contracts = cuda_sm90_contract_fits(be, &plan->planes)     ? PLANES_HOPPER
                          : cuda_planes_contract_fits(be, &plan->planes) ? PLANES_SHARED
                                                                         : PLANES_WARPS;
        plan->resident = cuda_planes_resident(be, &plan->planes, TG_STORE_FULL, false);
    }
}

/* Which modes our own kernels multiply; cuBLAS multiplies the others. */
static void plan_own_kernels(const tg_backend *be, cuda_plan *plan) {
    if (plan->gathers) {
        plan->first.own = cuda_mode_kernel(be, &plan->first, plan->columns, plan->split);
    }
    for (int q = 0; q < plan->steps; q++) {
        cuda_step *step = &plan->step[q];
        if (step->kind == CUDA_STEP_LEFT) {
            step->factor.own = cuda_mode_kernel(be, &step->factor, step->right, plan->split);
        }
    }
}

/* Reals per index of mode 0 of a large chunk in the buffers. */
static int64_t in_large_chunk(const cuda_plan *plan) {
    return plan->state[1] + (plan->steps > 2 ? plan->state[2] : 0);
}

/* Large chunks, if kernels for Hopper GPUs form the tensor or write it without storing a chunk. For
 * long rows only: one pass over both last modes, where available, is faster for short ones. */
static void plan_large_chunk(cuda_plan *plan) {
    enum { SHORT_ROW = 36 };
    const bool suits =
        plan->split ? plan->planes.d3 > 0 : plan->planes.tiles > 0 && plan->planes.d3 > SHORT_ROW;
    if (!suits || !plan->gathers || plan->steps > 3 ||
        plan->step[1].factor.own != CUDA_OWN_DIRECT || plan->dim0 % CUDA_FORM_INDICES != 0) {
        return;
    }
    const int64_t bytes = in_large_chunk(plan) * (int64_t)sizeof(float) * CUDA_FORM_INDICES;
    const int64_t most = tg_max(CUDA_LARGE_CHUNK_BYTES / bytes, 1) * CUDA_FORM_INDICES;
    const int64_t chunks = (plan->dim0 + most - 1) / most, parts = plan->dim0 / CUDA_FORM_INDICES;
    plan->large_chunk = (parts + chunks - 1) / chunks * CUDA_FORM_INDICES;
}

/* The buffer of a chunk before step q. */
static int buffer_of(const cuda_plan *plan, int q) {
    return (plan->planes.tiles > 0 && q > 1 ? q - 1 : q) % 2;
}

cuda_plan cuda_plan_sizes(const tg_backend *be, const tg_multimode *modes) {
    mode list[TG_MAX_NDIM] = {};
    const int count = collect_modes(modes, list);
    int begin = 0;
    while (begin < count && !list[begin].factor) {
        begin++;
    }
    cuda_plan plan = cuda_plan();
    plan.real = tg_dtype_real(modes->dtype);
    plan.parts = tg_dtype_is_complex(modes->dtype) ? 2 : 1;
    plan.dim0 = list[0].dim;
    plan.unit = entries_of(list, 1, count);
    plan_steps(&plan, list, count, begin, &plan.size);
    plan.gathers = begin == 0 && count > 0;
    if (plan.gathers) {
        plan.first = factor_of(&list[0], plan.parts, false, &plan.size);
    }
    plan.split = be->math == TG_MATH_FP32;
    if (plan.real == TG_F32 && plan.parts == 2) {
        plan_planes(be, &plan);
        plan_own_kernels(be, &plan);
    }
    if (plan.unit == 0 || plan.dim0 == 0) {
        return plan;
    }
    plan_large_chunk(&plan);
    const int64_t real_size = (int64_t)tg_dtype_size(plan.real);
    const int64_t most = tg_max(CUDA_CHUNK_BYTES / (plan.state[0] * real_size), 1);
    const int64_t chunks = (plan.dim0 + most - 1) / most;
    plan.chunk = (plan.dim0 + chunks - 1) / chunks;
    int64_t need[2] = {0, 0};
    for (int q = 0; q < plan.steps + !plan.gathers; q++) {
        if (q != 1 || plan.planes.tiles == 0) {
            int64_t *reserved = &need[buffer_of(&plan, q)];
            *reserved = tg_max(*reserved, (plan.chunk * plan.state[q] + 63) / 64 * 64);
        }
    }
    plan.buffer[0] = plan.size;
    plan.buffer[1] = plan.size + need[0];
    if (!plan.gathers) {
        plan.size += need[0] + need[1];
        return plan;
    }
    /* unlike its width, the room for a piece does not shrink as ranks grow */
    const int64_t rows = plan.parts * plan.first.rank;
    const int64_t max_reals = tg_max(PIECE_BYTES / real_size, rows * PIECE_COLUMNS);
    plan.width = tg_min(plan.columns, tg_max(max_reals / rows / 4 * 4, PIECE_COLUMNS));
    const int64_t piece = (tg_min(rows * plan.columns, max_reals) + 63) / 64 * 64;
    const int64_t large = (plan.large_chunk * in_large_chunk(&plan) + 127) / 64 * 64;
    plan.middle = plan.size + tg_max(tg_max(need[0] + need[1], large), piece);
    plan.size = plan.middle + plan.dim0 * plan.parts * plan.columns;
    return plan;
}

char *cuda_plan_state(const cuda_plan *plan, void *workspace, int q, int64_t first) {
    const bool gathered = q == plan->steps && plan->gathers;
    return cuda_plan_at(plan, workspace,
                        gathered ? plan->middle + first * plan->state[q]
                                 : plan->buffer[buffer_of(plan, q)]);
}

char *cuda_plan_large_state(const cuda_plan *plan, void *workspace, int q, int64_t first) {
    const int64_t second = (plan->large_chunk * plan->state[1] + 63) / 64 * 64;
    return q == plan->steps
               ? cuda_plan_state(plan, workspace, q, first)
               : cuda_plan_at(plan, workspace, plan->buffer[0] + (q == 2 ? second : 0));
}

/* Of all counts that stay in L2, the one with the fewest consecutive planes per multiprocessor. */
int64_t cuda_planes_chunk(const cuda_plan *plan, int64_t planes_at_once) {
    if (planes_at_once == 0 || !plan->gathers || plan->steps > 3) {
        return plan->chunk;
    }
    if (plan->steps == 2) { /* from `middle` itself */
        return plan->dim0;
    }
    const int64_t room = tg_min(plan->middle - plan->buffer[0], CUDA_CHUNK_BYTES / 4);
    const int64_t most = tg_min(plan->dim0, tg_max(room / plan->state[2], 1));
    const auto rounds = [&](int64_t count) {
        return (count * plan->step[1].left + planes_at_once - 1) / planes_at_once;
    };
    int64_t best = 1, least = INT64_MAX;
    for (int64_t count = 1; count <= most; count++) {
        const int64_t all = plan->dim0 / count * rounds(count) + rounds(plan->dim0 % count);
        best = all <= least ? count : best;
        least = tg_min(all, least);
    }
    return best;
}

/* ---- factors ---- */

struct factor_list {
    int count;
    cuda_factor factor[TG_MAX_NDIM];
};

/* A factor as fragments; see mode_columns.cu. */
template <bool FORWARD>
static __device__ inline void write_fragments(const cuda_factor &f, float4 *out) {
    const factor_reader from = {static_cast<const float *>(f.u), (int)f.dim, (int)f.rank};
    const int made = FORWARD ? from.rank : from.dim, summed = FORWARD ? from.dim : from.rank;
    const int steps = (summed + 3) / 4, size = cuda_mode_tiles(made) * steps * 32;
    for (int e = (int)(blockIdx.x * blockDim.x + threadIdx.x); e < size;
         e += (int)(gridDim.x * blockDim.x)) {
        out[e] = left_fragment<FORWARD>(from, steps, e);
    }
}

/* One row of the grid per factor. */
template <class R, int P>
static __global__ void write_factors(factor_list list, bool forward, R *workspace) {
    const cuda_factor &f = list.factor[blockIdx.y];
    const R *u =
        static_cast<const R *>(f.u); /* separate parts, as an array may be aligned to them only */
    R *out = workspace + f.at;
    if (f.own == CUDA_OWN_FRAGMENTS && forward) {
        write_fragments<true>(f, reinterpret_cast<float4 *>(out));
        return;
    }
    if (f.own == CUDA_OWN_FRAGMENTS) {
        write_fragments<false>(f, reinterpret_cast<float4 *>(out));
        return;
    }
    const int64_t size = P * f.rows * f.ld, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; e < size; e += stride) {
        const int64_t row = e / f.ld, col = e % f.ld;
        const int64_t i = col / P, j = row % f.rows;
        const int from = (int)(col % P), to = (int)(row / f.rows);
        R value = 0;
        if (i < f.dim && j < f.rank) {
            const R *entry = u + (i * f.rank + j) * P;
            value = from == to ? entry[0] : to == 0 ? entry[P - 1] : -entry[P - 1];
        }
        out[e] = value;
    }
}

tg_status cuda_plan_factors(tg_backend *be, const cuda_plan *plan, bool forward, void *workspace) {
    factor_list list = factor_list();
    int64_t largest = 0;
    for (int q = plan->planes.tiles > 0 ? 2 : 0; q <= plan->steps; q++) {
        const cuda_factor *factor = q < plan->steps ? &plan->step[q].factor : &plan->first;
        if (factor->u && factor->own != CUDA_OWN_DIRECT) {
            list.factor[list.count++] = *factor;
            largest = tg_max(largest, plan->parts * factor->rows * factor->ld);
        }
    }
    if (list.count == 0) {
        return TG_OK;
    }
    const dim3 grid(cuda_blocks(be, largest, 256), (unsigned)list.count);
    return with_wide(plan->real, [&](auto tag) {
        using R = typename decltype(tag)::type;
        return with_parts(plan->parts, [&](auto parts) {
            constexpr int P = decltype(parts)::value;
            R *reals = static_cast<R *>(workspace);
            return launch_alone(be, "laying out factors", write_factors<R, P>, grid, 256, 0, list,
                                forward, reals);
        });
    });
}

/* ---- steps ---- */

/* (left, a, b, right) -> (left, b, a, right). */
template <class R>
static __global__ void transpose_rows(int64_t left, int64_t a, int64_t b, int64_t right,
                                      const R *in, R *out) {
    for (int64_t row = blockIdx.x; row < left * a * b; row += gridDim.x) {
        const int64_t i = row % a, j = row / a % b, l = row / a / b;
        const R *from = in + ((l * a + i) * b + j) * right;
        for (int64_t r = threadIdx.x; r < right; r += blockDim.x) {
            out[row * right + r] = from[r];
        }
    }
}

static tg_status turn(tg_backend *be, const cuda_plan *plan, const cuda_step *step, bool forward,
                      int64_t count, const void *in, void *out) {
    const int64_t left = count * step->left, rows = left * step->dim * plan->parts;
    const int64_t a = forward ? step->dim : plan->parts, b = forward ? plan->parts : step->dim;
    const unsigned blocks = (unsigned)tg_min(rows, 1 << 20);
    return with_wide(plan->real, [&](auto tag) {
        using R = typename decltype(tag)::type;
        return launch_alone(be, "turning a tensor", transpose_rows<R>, blocks, 128, 0, left, a, b,
                            step->right, static_cast<const R *>(in), static_cast<R *>(out));
    });
}

/* Rows (left) times S^T or S. */
static tg_status multiply_right(tg_backend *be, const cuda_plan *plan, void *workspace,
                                const cuda_step *step, bool forward, int64_t count, const void *in,
                                void *out) {
    const int64_t dim = step->factor.ld, rank = plan->parts * step->factor.rows;
    const int64_t made = forward ? rank : dim, summed = forward ? dim : rank;
    const tg_gemm gemm =
        gemm_of(plan->real, count * step->left, made, summed, 1.0, TG_OP_N, in, summed,
                forward ? TG_OP_T : TG_OP_N, cuda_plan_at(plan, workspace, step->factor.at), dim,
                0.0, out, made);
    return cuda_gemm(be, &gemm);
}

tg_status cuda_plan_multiply(tg_backend *be, const cuda_plan *plan, void *workspace,
                             const cuda_factor *factor, bool forward, int64_t batch, int64_t n,
                             const void *in, int64_t ld_in, void *out, int64_t ld_out) {
    const int64_t dim = plan->parts * factor->dim, rank = plan->parts * factor->rank;
    tg_gemm gemm = gemm_of(plan->real, forward ? rank : dim, n, forward ? dim : rank, 1.0,
                           forward ? TG_OP_N : TG_OP_T, cuda_plan_at(plan, workspace, factor->at),
                           factor->ld, TG_OP_N, in, ld_in, 0.0, out, ld_out);
    gemm.stride_b = gemm.k * ld_in;
    gemm.stride_c = gemm.m * ld_out;
    gemm.batch = batch;
    return cuda_gemm(be, &gemm);
}

tg_status cuda_plan_step(tg_backend *be, const cuda_plan *plan, void *workspace, int q,
                         bool forward, int64_t count, const void *in, void *out) {
    const cuda_step *step = &plan->step[q];
    switch (step->kind) {
    case CUDA_STEP_RIGHT:
        return multiply_right(be, plan, workspace, step, forward, count, in, out);
    case CUDA_STEP_LEFT:
        if (step->factor.own != CUDA_OWN_NONE) {
            return cuda_mode_multiply(be, plan, workspace, &step->factor, forward,
                                      count * step->left, step->right, in, out);
        }
        return cuda_plan_multiply(be, plan, workspace, &step->factor, forward, count * step->left,
                                  step->right, in, step->right, out, step->right);
    case CUDA_STEP_TURN:
        break;
    }
    return turn(be, plan, step, forward, count, in, out);
}
