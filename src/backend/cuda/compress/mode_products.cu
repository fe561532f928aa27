/* The plan of a multilinear map and the products it is made of; see compress.cuh.
 *
 * Workspace, in this order: S of every factor; two buffers between which a chunk goes to and fro;
 * and where mode 0 has a factor, `middle`: (dim0, part, columns), all chunks with only mode 0 left.
 * The product of `middle` with that factor comes out in pieces of `width` columns, small enough for
 * the L2, which lie over the two buffers until they are woven into the core. */
#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/linalg/blas.cuh"

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

/* Rows of short matrices stay as they are. */
static int64_t pad(int64_t reals) {
    return reals < 16 ? reals : (reals + 3) / 4 * 4;
}

struct mode {
    int64_t dim, rank;
    const void *factor;
};

/* Modes of size 1 without a factor are dropped and neighbours without one merged, except mode 0. */
static int collect_modes(const tg_multimode *modes, mode *list) {
    int count = 0;
    for (int d = 0; d < modes->ndim; d++) {
        const mode now = {modes->dim[d], modes->rank[d], modes->factor[d]};
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
    cuda_factor factor = {m->factor, m->dim, m->rank, rows, pad(parts * m->dim), *used, false};
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

/* The modes from the last one down to the first with a factor, mode 0 excepted, as steps. */
static void plan_steps(cuda_plan *plan, const mode *list, int count, int begin, int64_t *used) {
    const mode none = {1, 1, NULL};
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
    plan->lead = entries_of(list, 1, first < last ? first : last);
}

/* Reals of the fragments of both factors (last_two_modes_resident.cu), 16 bytes of a lane in every
 * tile. Where only the rank is too large there is room all the same: lower ranks must not need
 * more. */
static int64_t fragments_of(const cuda_planes *s) {
    const int64_t last = (s->d3 + 7) / 8 * (s->tiles > 0 ? s->tiles : 6);
    const int64_t before = s->rows / 16 * ((s->r2 + 3) / 4);
    return (last + before) * 32 * 4;
}

/* Sizes of steps 0 and 1 in one pass, where that can be; of split numbers those that kernels for
 * the last mode go by. */
static void plan_planes(cuda_plan *plan) {
    enum { FEW_ENTRIES = 36 }; /* of a row, for three tiles */
    const cuda_step *last = &plan->step[0], *before = &plan->step[1];
    cuda_planes *s = &plan->planes;
    if (plan->steps < 2 || last->kind != CUDA_STEP_RIGHT || before->kind != CUDA_STEP_LEFT ||
        before->dim > PLANES_ROWS || last->dim < 8 || last->dim > PLANES_D3) {
        return;
    }
    s->d2 = (int)before->dim;
    s->d3 = (int)last->dim;
    s->r2 = (int)before->factor.rank;
    s->r3 = (int)last->factor.rank;
    s->right = (int)before->right;
    s->rows = (s->d2 + 15) / 16 * 16;
    if (!plan->split) {
        s->tiles = s->r3 <= 24 && s->d3 <= FEW_ENTRIES ? 3 : s->r3 <= 48 ? 6 : 0;
        s->at = plan->size;
        plan->size += (fragments_of(s) + 63) / 64 * 64;
    }
}

/* Which modes are multiplied by kernels for Hopper GPUs; the others by cuBLAS. */
static void plan_mode_kernels(const tg_backend *be, cuda_plan *plan) {
    if (plan->gathers) {
        plan->first.direct = cuda_mode_fits(be, &plan->first, plan->columns, plan->split);
    }
    for (int q = 0; q < plan->steps; q++) {
        cuda_step *step = &plan->step[q];
        if (step->kind == CUDA_STEP_LEFT) {
            step->factor.direct = cuda_mode_fits(be, &step->factor, step->right, plan->split);
        }
    }
}

/* Reals per index of mode 0 that lie in the buffers of a large chunk. */
static int64_t in_large_chunk(const cuda_plan *plan) {
    return plan->state[1] + (plan->steps > 2 ? plan->state[2] : 0);
}

/* Large chunks, where kernels for Hopper GPUs form the tensor or write it out without a chunk: for
 * long rows, as both last modes in one pass, if they are, are faster for short ones. */
static void plan_large_chunk(cuda_plan *plan) {
    enum { SHORT_ROW = 36 };
    const bool suits =
        plan->split ? plan->planes.d3 > 0 : plan->planes.tiles > 0 && plan->planes.d3 > SHORT_ROW;
    if (!suits || !plan->gathers || plan->steps > 3 || !plan->step[1].factor.direct ||
        plan->dim0 % CUDA_FORM_INDICES != 0) {
        return;
    }
    const int64_t bytes = in_large_chunk(plan) * (int64_t)sizeof(float) * CUDA_FORM_INDICES;
    const int64_t most = longer(CUDA_LARGE_CHUNK_BYTES / bytes, 1) * CUDA_FORM_INDICES;
    const int64_t chunks = (plan->dim0 + most - 1) / most, parts = plan->dim0 / CUDA_FORM_INDICES;
    plan->large_chunk = (parts + chunks - 1) / chunks * CUDA_FORM_INDICES;
}

/* Reals that lie in either buffer of a chunk, per index of mode 0. In `planes` steps 0 and 1 are
 * one pass, without what lies between them. */
static void buffers_of(const cuda_plan *plan, bool planes, int64_t need[2]) {
    need[0] = need[1] = 0;
    for (int q = 0; q < plan->steps + !plan->gathers; q++) {
        if (q != 1 || !planes) {
            int64_t *most = &need[(planes && q > 1 ? q - 1 : q) % 2];
            *most = longer(*most, plan->state[q]);
        }
    }
}

static int64_t whole_units(int64_t reals) {
    return (reals + 63) / 64 * 64;
}

/* Chunks, and both buffers; the room of the latter is what is returned. Where planes go in one pass
 * there is room for that, and chunks of other ways are as large as this allows. */
static int64_t plan_chunks(cuda_plan *plan) {
    const int64_t real_size = (int64_t)tg_dtype_size(plan->real);
    const int64_t most = longer(CUDA_CHUNK_BYTES / (plan->state[0] * real_size), 1);
    const int64_t chunks = (plan->dim0 + most - 1) / most;
    int64_t need[2], room;
    plan->chunk = plan->planes_chunk = (plan->dim0 + chunks - 1) / chunks;
    buffers_of(plan, plan->planes.tiles > 0, need);
    plan->planes_behind = plan->size + whole_units(plan->chunk * need[0]);
    room = whole_units(plan->chunk * need[0]) + whole_units(plan->chunk * need[1]);
    if (plan->planes.tiles > 0) {
        buffers_of(plan, false, need);
        plan->chunk = longer(shorter(plan->chunk, (room - 128) / longer(need[0] + need[1], 1)), 1);
        room =
            longer(room, whole_units(plan->chunk * need[0]) + whole_units(plan->chunk * need[1]));
    }
    plan->buffer[0] = plan->size;
    plan->buffer[1] = plan->size + whole_units(plan->chunk * need[0]);
    return room;
}

cuda_plan cuda_plan_of(const tg_backend *be, const tg_multimode *modes) {
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
        plan_planes(&plan);
        plan_mode_kernels(be, &plan);
    }
    if (plan.unit == 0 || plan.dim0 == 0) {
        return plan;
    }
    plan_large_chunk(&plan);
    const int64_t room = plan_chunks(&plan);
    if (!plan.gathers) {
        plan.size += room;
        return plan;
    }
    /* the room for a piece does not shrink as ranks grow, unlike its width */
    const int64_t real_size = (int64_t)tg_dtype_size(plan.real);
    const int64_t rows = plan.parts * plan.first.rank;
    const int64_t most_reals = longer(PIECE_BYTES / real_size, rows * PIECE_COLUMNS);
    plan.width = shorter(plan.columns, longer(most_reals / rows / 4 * 4, PIECE_COLUMNS));
    const int64_t piece = whole_units(shorter(rows * plan.columns, most_reals));
    const int64_t large = whole_units(plan.large_chunk * in_large_chunk(&plan) + 64);
    plan.middle = plan.size + longer(longer(room, large), piece);
    plan.size = plan.middle + plan.dim0 * plan.parts * plan.columns;
    return plan;
}

char *cuda_plan_state(const cuda_plan *plan, void *workspace, int q, int64_t first) {
    const bool gathered = q == plan->steps && plan->gathers;
    return cuda_plan_at(plan, workspace,
                        gathered ? plan->middle + first * plan->state[q] : plan->buffer[q % 2]);
}

char *cuda_plan_planes_state(const cuda_plan *plan, void *workspace, int q, int64_t first) {
    if (q == plan->steps && plan->gathers) {
        return cuda_plan_state(plan, workspace, q, first);
    }
    return cuda_plan_at(plan, workspace,
                        q > 0 && q % 2 == 0 ? plan->planes_behind : plan->buffer[0]);
}

char *cuda_plan_large_state(const cuda_plan *plan, void *workspace, int q, int64_t first) {
    const int64_t behind = (plan->large_chunk * plan->state[1] + 63) / 64 * 64;
    return q == plan->steps
               ? cuda_plan_state(plan, workspace, q, first)
               : cuda_plan_at(plan, workspace, plan->buffer[0] + (q == 2 ? behind : 0));
}

/* Of all counts that stay in the L2 the one for which the fewest planes follow each other on a
 * multiprocessor. */
int64_t cuda_planes_chunk(const cuda_plan *plan, int64_t at_once) {
    if (!plan->gathers || plan->steps > 3) {
        return plan->planes_chunk;
    }
    if (plan->steps == 2) { /* from `middle` itself */
        return plan->dim0;
    }
    const int64_t room = shorter(plan->middle - plan->buffer[0], CUDA_CHUNK_BYTES / 4);
    const int64_t most = shorter(plan->dim0, longer(room / plan->state[2], 1));
    const auto rounds = [&](int64_t count) {
        return (count * plan->step[1].left + at_once - 1) / at_once;
    };
    int64_t best = 1, least = INT64_MAX;
    for (int64_t count = 1; count <= most; count++) {
        const int64_t all = plan->dim0 / count * rounds(count) + rounds(plan->dim0 % count);
        best = all <= least ? count : best;
        least = shorter(all, least);
    }
    return best;
}

/* ---- factors ---- */

struct factor_list {
    int count;
    cuda_factor factor[TG_MAX_NDIM];
};

/* One row of the grid per factor. */
template <class R, int P> static __global__ void write_factors(factor_list list, R *workspace) {
    const cuda_factor &f = list.factor[blockIdx.y];
    const R *u = static_cast<const R *>(f.u); /* parts, as any array may be aligned to them only */
    R *out = workspace + f.at;
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

tg_status cuda_plan_factors(tg_backend *be, const cuda_plan *plan, int begin, void *workspace) {
    factor_list list = factor_list();
    int64_t largest = 0;
    for (int q = begin; q <= plan->steps; q++) {
        const cuda_factor *factor = q < plan->steps ? &plan->step[q].factor : &plan->first;
        if (factor->u && !factor->direct) {
            list.factor[list.count++] = *factor;
            largest = longer(largest, plan->parts * factor->rows * factor->ld);
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
            write_factors<R, P><<<grid, 256, 0, cuda_stream(be)>>>(list, reals);
            return CUDA_LAUNCHED(be, "laying out factors");
        });
    });
}

/* ---- steps ---- */

/* (left, a, b, right) -> (left, b, a, right). */
template <class R>
static __global__ void turn_rows(int64_t left, int64_t a, int64_t b, int64_t right, const R *in,
                                 R *out) {
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
    const unsigned blocks = (unsigned)shorter(rows, 1 << 20);
    return with_wide(plan->real, [&](auto tag) {
        using R = typename decltype(tag)::type;
        turn_rows<<<blocks, 128, 0, cuda_stream(be)>>>(
            left, a, b, step->right, static_cast<const R *>(in), static_cast<R *>(out));
        return CUDA_LAUNCHED(be, "turning a tensor");
    });
}

static tg_gemm product_of(const cuda_plan *plan, int64_t m, int64_t n, int64_t k) {
    tg_gemm gemm = tg_gemm();
    gemm.dtype = plan->real;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.alpha.re = 1.0;
    gemm.batch = 1;
    return gemm;
}

/* Rows (left) times S^T or S. */
static tg_status multiply_right(tg_backend *be, const cuda_plan *plan, void *workspace,
                                const cuda_step *step, bool forward, int64_t count, const void *in,
                                void *out) {
    const int64_t dim = step->factor.ld, rank = plan->parts * step->factor.rows;
    tg_gemm gemm = product_of(plan, count * step->left, forward ? rank : dim, forward ? dim : rank);
    gemm.op_b = forward ? TG_OP_T : TG_OP_N;
    gemm.a = in;
    gemm.lda = gemm.k;
    gemm.b = cuda_plan_at(plan, workspace, step->factor.at);
    gemm.ldb = dim;
    gemm.c = out;
    gemm.ldc = gemm.n;
    return cuda_gemm(be, &gemm);
}

tg_status cuda_plan_multiply(tg_backend *be, const cuda_plan *plan, void *workspace,
                             const cuda_factor *factor, bool forward, int64_t batch, int64_t n,
                             const void *in, int64_t ld_in, void *out, int64_t ld_out) {
    const int64_t dim = plan->parts * factor->dim, rank = plan->parts * factor->rank;
    tg_gemm gemm = product_of(plan, forward ? rank : dim, n, forward ? dim : rank);
    gemm.op_a = forward ? TG_OP_N : TG_OP_T;
    gemm.a = cuda_plan_at(plan, workspace, factor->at);
    gemm.lda = factor->ld;
    gemm.b = in;
    gemm.ldb = ld_in;
    gemm.stride_b = gemm.k * ld_in;
    gemm.c = out;
    gemm.ldc = ld_out;
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
        if (step->factor.direct) {
            return cuda_mode_multiply(be, plan, &step->factor, forward, count * step->left,
                                      step->right, in, out);
        }
        return cuda_plan_multiply(be, plan, workspace, &step->factor, forward, count * step->left,
                                  step->right, in, step->right, out, step->right);
    case CUDA_STEP_TURN:
        break;
    }
    return turn(be, plan, step, forward, count, in, out);
}
