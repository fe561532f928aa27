/* Copies between the core and tensors with separate parts; see compress.cuh.
 *
 * If mode 0 has a factor, its product with `middle` (dim0, part, columns) is computed in pieces of
 * columns that fit into L2. They share the memory of the chunk buffers until they are interleaved
 * into the core. The expansion splits a piece of the core into its parts and multiplies it into
 * `middle`. */
#include "backend/cuda/compress/compress.cuh"

/* `outer` rows of `width` columns of the core, whose parts are separate on the other side. */
struct weave_shape {
    int64_t outer, width;
    int64_t row_stride, part_stride; /* of the planes, in reals */
    int64_t first;                   /* first column, among all `columns` */
    int64_t block, padded;           /* of `padded` columns `block` belong to the core */
    int64_t core_stride;             /* entries of the core from row to row */
};

enum { WEAVE_THREADS = 256, WEAVE_COLUMNS = 8 }; /* columns per thread */

/* FORWARD: core = beta core + scale planes; else planes = core, padding 0. A block stacks several
 * rows of threads if rows of the core are short. */
template <class R, int P, bool FORWARD>
static __global__ void __launch_bounds__(WEAVE_THREADS)
    weave(weave_shape s, R *planes, number<R, P> *core, bool whole, R scale, R beta) {
    const int64_t begin = (int64_t)blockIdx.x * (blockDim.x * WEAVE_COLUMNS) + threadIdx.x;
    const chunk_place stride = stride_of((int)blockDim.x, s.padded);
    const chunk_place start = chunk_place_of(s.first + begin, s.padded);
    for (int64_t o = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; o < s.outer;
         o += (int64_t)gridDim.y * blockDim.y) {
        chunk_place at = start;
        for (int u = 0; u < WEAVE_COLUMNS; u++) {
            const int64_t t = begin + u * (int64_t)blockDim.x;
            if (t >= s.width) {
                break;
            }
            R *plane = planes + o * s.row_stride + t;
            const bool counts = at.col < s.block;
            number<R, P> *entry = core + o * s.core_stride + at.row * s.block + at.col;
            number<R, P> value = number<R, P>();
            if (FORWARD && counts) {
                for (int p = 0; p < P; p++) {
                    value.part[p] = plane[p * s.part_stride];
                }
                blend(entry, whole, beta, scale, value);
            } else if (!FORWARD) {
                value = counts ? load_once(entry, whole) : value;
                for (int p = 0; p < P; p++) {
                    plane[p * s.part_stride] = value.part[p];
                }
            }
            walk_on(&at, stride, s.padded);
        }
    }
}

static tg_status run_weave(tg_backend *be, const cuda_plan *plan, const weave_shape *s,
                           bool forward, void *planes, void *core, double scale, double beta) {
    unsigned wide = 32;
    while (wide < WEAVE_THREADS && wide < s->width) {
        wide *= 2;
    }
    const dim3 threads(wide, WEAVE_THREADS / wide);
    const int64_t across = (int64_t)wide * WEAVE_COLUMNS, down = threads.y;
    const dim3 grid((unsigned)((s->width + across - 1) / across),
                    (unsigned)tg_min((s->outer + down - 1) / down, 65535));
    return with_wide(plan->real, [&](auto tag) {
        using R = typename decltype(tag)::type;
        return with_parts(plan->parts, [&](auto parts) {
            constexpr int P = decltype(parts)::value;
            R *reals = static_cast<R *>(planes);
            number<R, P> *entries = static_cast<number<R, P> *>(core);
            const auto kernel = forward ? weave<R, P, true> : weave<R, P, false>;
            return launch_alone(be, "moving a core", kernel, grid, threads, 0, *s, reals, entries,
                                is_whole(entries), (R)scale, (R)beta);
        });
    });
}

/* Entries of the core per row. */
static int64_t core_row(const cuda_plan *plan) {
    return plan->columns / plan->padded * plan->block;
}

static weave_shape chunk_shape(const cuda_plan *plan, int64_t count) {
    return {count * plan->lead,
            plan->columns,
            plan->parts * plan->columns,
            plan->columns,
            0,
            plan->block,
            plan->padded,
            core_row(plan)};
}

static char *core_at(const cuda_plan *plan, const void *core, int64_t first) {
    const int64_t entry = first * plan->lead * core_row(plan);
    return static_cast<char *>(const_cast<void *>(core)) +
           entry * plan->parts * (int64_t)tg_dtype_size(plan->real);
}

tg_status cuda_plan_chunk_to_core(tg_backend *be, const cuda_plan *plan, const void *chunk,
                                  int64_t first, int64_t count, double scale, double beta,
                                  void *core) {
    const weave_shape shape = chunk_shape(plan, count);
    return run_weave(be, plan, &shape, true, const_cast<void *>(chunk), core_at(plan, core, first),
                     scale, beta);
}

tg_status cuda_plan_chunk_of_core(tg_backend *be, const cuda_plan *plan, const void *core,
                                  int64_t first, int64_t count, void *chunk) {
    const weave_shape shape = chunk_shape(plan, count);
    return run_weave(be, plan, &shape, false, chunk, core_at(plan, core, first), 1.0, 0.0);
}

/* A piece of the product with mode 0's factor: columns `first` on. */
static weave_shape piece_shape(const cuda_plan *plan, int64_t first, int64_t width) {
    return {plan->first.rank, width,        width,         plan->first.rank * width, first,
            plan->block,      plan->padded, core_row(plan)};
}

tg_status cuda_plan_middle_to_core(tg_backend *be, const cuda_plan *plan, void *workspace,
                                   const void *middle, double scale, double beta, void *core) {
    if (plan->first.own != CUDA_OWN_NONE) {
        return cuda_mode_core(be, plan, workspace, true, middle, scale, beta, core);
    }
    const int64_t real_size = (int64_t)tg_dtype_size(plan->real);
    void *piece = cuda_plan_at(plan, workspace, plan->buffer[0]);
    for (int64_t c = 0; c < plan->columns; c += plan->width) {
        const int64_t width = tg_min(plan->width, plan->columns - c);
        const void *in = static_cast<const char *>(middle) + c * real_size;
        const weave_shape shape = piece_shape(plan, c, width);
        TG_CALL(cuda_plan_multiply(be, plan, workspace, &plan->first, true, 1, width, in,
                                   plan->columns, piece, width));
        TG_CALL(run_weave(be, plan, &shape, true, piece, core, scale, beta));
    }
    return TG_OK;
}

tg_status cuda_plan_middle_of_core(tg_backend *be, const cuda_plan *plan, void *workspace,
                                   const void *core) {
    if (plan->adam) { /* core_adam.cu has already written the core */
        return TG_OK;
    }
    if (plan->first.own != CUDA_OWN_NONE) {
        const void *middle = cuda_plan_at(plan, workspace, plan->middle);
        return cuda_mode_core(be, plan, workspace, false, middle, 1.0, 0.0, core);
    }
    void *piece = cuda_plan_at(plan, workspace, plan->buffer[0]);
    for (int64_t c = 0; c < plan->columns; c += plan->width) {
        const int64_t width = tg_min(plan->width, plan->columns - c);
        const weave_shape shape = piece_shape(plan, c, width);
        void *out = cuda_plan_at(plan, workspace, plan->middle + c);
        TG_CALL(run_weave(be, plan, &shape, false, piece, const_cast<void *>(core), 1.0, 0.0));
        TG_CALL(cuda_plan_multiply(be, plan, workspace, &plan->first, false, 1, width, piece, width,
                                   out, plan->columns));
    }
    return TG_OK;
}
