/* Forms a gradient and contracts its mode 1 in one kernel; see compress.cuh.
 *
 *     G[i,o,k] = sum_b conj(x[b,i,k]) dy[b,o,k],   out[i,j,k] = sum_o G'[i,o,k] conj(U[o,j]),
 *
 * where G' is G without its kept entries, which are written to `values`. Contracting mode 1 first
 * costs more products than contracting the last two modes first, but leaves those with fewer
 * planes, and G is never written.
 *
 * A block takes 16 frequencies of all channels of dy and up to 64 of x; a warp one of these
 * frequencies and 16 channels of x at a time. Both products run on tensor cores: a thread's results
 * of the first one, both parts of G for two i's and one o, are its left factor of the second one,
 * whose rows are the i's of four frequencies. The first one splits f32 into sums of two numbers in
 * TF32 and takes three of the four products, so values have 21 bits. */
#include "backend/cuda/compress/factor_fragments.cuh"
#include "backend/cuda/core/element.cuh"
#include "backend/cuda/core/pack.cuh"
#include "backend/cuda/tile/pipeline.cuh"
#include "backend/cuda/tile/warpgroup.cuh"

enum {
    GROUPS = 4, /* warpgroups */
    BLOCK = GROUPS * WG_THREADS,
    WIDTH = 16,        /* frequencies of a block */
    ROW = 128,         /* bytes of them */
    INDICES = 16,      /* channels of x per round.. */
    ROUNDS_PER_DY = 4, /* ..and rounds per dy tile */
    CHANNELS = 64,     /* of dy at most, a multiple of PART */
    PART = 16,         /* channels of dy that are multiplied together, in.. */
    PART_STEPS = 4,    /* ..this many steps, 32 rows of the factor */
    KEPT_ROW = 20, /* runs of a channel of dy, four of which are padding against bank conflicts */
    MAX_WINDOWS = 144 /* of WIDTH frequencies of a plane, at most */
};

struct mode_task {
    const float2 *x, *dy; /* (batch, dim0, frequencies), (batch, dim1, frequencies) */
    int batch, dim0, dim1, frequencies;
    int begin, count; /* of mode 0 */
    factor_reader u;
    const kept_run *kept; /* in the layout of lay_out_runs */
    float2 *values;       /* scale G */
    float scale;
    float2 *out;     /* (count, rank, frequencies) */
    uint32_t *guard; /* NULL: do not count */
};

/* Units with the same frequencies. */
static __host__ __device__ inline int units_across(const mode_task &task) {
    return (task.count + ROUNDS_PER_DY * INDICES - 1) / (ROUNDS_PER_DY * INDICES);
}

/* Bytes of shared memory. */
struct mode_layout {
    int factor, dy, x, out, kept, all; /* x: of a round */
};

template <int N, int SAMPLES> static __host__ __device__ inline mode_layout layout_of(int dim1) {
    mode_layout at;
    at.factor = dim1 / PART * (N * 128);
    at.dy = dim1 * SAMPLES * ROW;
    at.x = INDICES * SAMPLES * ROW;
    at.out = INDICES / 2 * (N / 2) * ROW;
    at.kept = ROUNDS_PER_DY * dim1 * KEPT_ROW * (int)sizeof(kept_run);
    at.all = 1024 + at.factor + at.dy + 2 * at.x + at.out + at.kept;
    return at;
}

/* ---- kept entries ---- */

struct runs_task {
    kept_set kept;
    int dim1, windows; /* windows: of WIDTH frequencies */
    kept_run *out;     /* (windows, dim0 / INDICES, dim1, INDICES) */
};

/* A warp takes a plane of the index set, a block those of INDICES indices of mode 0. */
static __global__ void __launch_bounds__(32 * INDICES) lay_out_runs(runs_task task) {
    __shared__ kept_run runs[MAX_WINDOWS][INDICES + 1];
    const int lane = threadIdx.x % 32, index = (int)threadIdx.x / 32;
    const int o = (int)blockIdx.x % task.dim1, first = (int)blockIdx.x / task.dim1 * INDICES;
    const uint16_t *bits = reinterpret_cast<const uint16_t *>(task.kept.words);
    const int64_t begin = ((int64_t)(first + index) * task.dim1 + o) * task.windows;
    const int64_t block = begin / 32; /* the rank block in which the plane begins */
    pdl_wait();
    pdl_launch_dependents();
    const uint32_t earlier = block * 32 + lane < begin ? bits[block * 32 + lane] : 0;
    uint32_t before = task.kept.ranks[block];
    uint32_t mask[(MAX_WINDOWS + 31) / 32];
#pragma unroll
    for (int w = 0; w < (MAX_WINDOWS + 31) / 32; w++) {
        mask[w] = 32 * w + lane < task.windows ? bits[begin + 32 * w + lane] : 0;
    }
    before += __reduce_add_sync(~0u, (uint32_t)__popc(earlier));
#pragma unroll
    for (int w = 0; w < (MAX_WINDOWS + 31) / 32; w++) {
        const uint32_t own = (uint32_t)__popc(mask[w]);
        const uint32_t sum = sum_up_to<32>(own, lane);
        if (32 * w + lane < task.windows) {
            runs[32 * w + lane][index] = {mask[w], before + sum - own};
        }
        before += __shfl_sync(~0u, sum, 31);
    }
    __syncthreads();
    const int groups = (int)gridDim.x / task.dim1;
    for (int e = (int)threadIdx.x; e < task.windows * INDICES; e += 32 * INDICES) {
        const int64_t row = ((int64_t)(e / INDICES) * groups + first / INDICES) * task.dim1 + o;
        task.out[row * INDICES + e % INDICES] = runs[e / INDICES][e % INDICES];
    }
}

/* ---- inputs ---- */

/* Rows of frequencies, by sample, then by channel. Their 16-byte pieces are permuted so that half a
 * warp reads one frequency from different banks. */
static __device__ inline int exchanged(int channel, int sample) {
    return channel % 2 * 4 + sample % 4;
}

/* Copies (batch, channels from `from` on, ..) from frequency k on; samples past the last one are
 * 0. */
template <int SAMPLES>
static __device__ inline void fetch_rows(const mode_task &task, const float2 *from, int channels,
                                         int count, int k, char *to) {
    for (int e = (int)threadIdx.x; e < count * SAMPLES * 8; e += BLOCK) {
        const int piece = e % 8, b = e / 8 % SAMPLES, c = e / 8 / SAMPLES;
        const bool exists = b < task.batch;
        const int64_t row = (int64_t)(exists ? b : 0) * channels + c;
        copy_async<16>(to + e / 8 * ROW + (piece ^ exchanged(c, b)) * 16,
                       from + row * task.frequencies + k + 2 * piece, exists);
    }
}

/* Non-finite numbers in a thread's share of such rows. */
static __device__ inline uint32_t count_bad(const char *rows, int bytes) {
    uint32_t bad = 0;
    for (int at = (int)threadIdx.x * 16; at < bytes; at += BLOCK * 16) {
        const float4 v = *reinterpret_cast<const float4 *>(rows + at);
        bad += is_bad(v.x) || is_bad(v.y);
        bad += is_bad(v.z) || is_bad(v.w);
    }
    return bad;
}

/* The kept entries of a unit, as stored by lay_out_runs. */
static __device__ inline void fetch_runs(const kept_run *from, int rows, char *to) {
    for (int e = (int)threadIdx.x; e < rows * 8; e += BLOCK) {
        copy_async<16>(to + e / 8 * (KEPT_ROW * (int)sizeof(kept_run)) + e % 8 * 16, from + 2 * e);
    }
}

/* conj(U) as right factor: rows are the parts of 4 channels, real ones first; columns are the parts
 * of the output. */
template <int N> static __device__ inline void store_factor(const mode_task &task, char *factor) {
    for_each_number<4>(task.u, [&](int i, int j, float2 u) {
        const int k = i / 4 * 8 + i % 4;
#pragma unroll
        for (int to = 0; to < 2; to++) {
            const float2 parts = towards(make_float2(to_tf32(u.x), to_tf32(u.y)), to);
            const int at = wg_at<N>(2 * j + to, k);
            *reinterpret_cast<float *>(factor + at) = parts.x;
            *reinterpret_cast<float *>(factor + (at ^ 16)) = parts.y; /* k + 4 */
        }
    });
}

/* ---- forming G ---- */

/* A thread's entries of channels 4 s + t of dy, of two channels of x at its frequency, as {Re of
 * both, Im of both}. */
template <int SAMPLES> struct former {
    static constexpr int FOURS = SAMPLES / 4;
    float4 first[FOURS], second[FOURS]; /* x, of sample t of four */
    const char *dy;                     /* of channel g / 2, sample t */
    const kept_run *kept;               /* of channel t, index g */
    uint32_t bit;                       /* of the frequency */
    bool is_odd;                        /* whether g is odd */
    float2 *values;
    float scale;

    /* at: of channel g, sample t; 8 channels further the permutation is the same. */
    __device__ void load(const char *at) {
#pragma unroll
        for (int j = 0; j < FOURS; j++, at += 4 * ROW) {
            const float2 low = *reinterpret_cast<const float2 *>(at);
            const float2 high = *reinterpret_cast<const float2 *>(at + 8 * SAMPLES * ROW);
            /* a product, as otherwise the compiler recombines them before each use */
            first[j] = to_tf32(make_float4(low.x, high.x, low.y, high.y));
            const float4 is = cut(first[j]);
            second[j] = make_float4(low.x - is.x, high.x - is.y, low.y - is.z, high.y - is.w);
        }
    }
    __device__ float4 form(int s) const {
        float c[4] = {}, d[4] = {};
#pragma unroll
        for (int j = 0; j < FOURS; j++) {
            const char *at = dy + (4 * s * SAMPLES + 4 * j) * ROW;
            const float2 v = *reinterpret_cast<const float2 *>(at);
            const float re = is_odd ? v.y : v.x, im = is_odd ? -v.x : v.y;
            mma_tf32(c, first[j], re, im);
            mma_tf32(d, first[j], re - cut(re), im - cut(im));
            mma_tf32(j % 2 == 0 ? c : d, second[j], re, im);
        }
        float4 g = make_float4(c[0] + d[0], c[2] + d[2], c[1] + d[1], c[3] + d[3]);
        gather(kept + 4 * s * KEPT_ROW, &g.x, &g.z);
        gather(kept + 4 * s * KEPT_ROW + 8, &g.y, &g.w);
        return g;
    }
    /* Writes a kept entry to values and sets it to 0. */
    __device__ void gather(const kept_run *run, float *re, float *im) const {
        const uint2 mask_before = *reinterpret_cast<const uint2 *>(run); /* in one load */
        const bool keeps = mask_before.x & bit;
        const uint32_t at = mask_before.y + (uint32_t)__popc(mask_before.x & (bit - 1));
        store_two_if(keeps, values + at, scale * *re, scale * *im);
        *re = keeps ? 0.0f : *re;
        *im = keeps ? 0.0f : *im;
    }
};

/* sum = a thread's part of the product. */
template <int N, int SAMPLES>
static __device__ inline void multiply(former<SAMPLES> from, int parts, uint64_t factor,
                                       float (&sum)[N / 2]) {
    float4 next = from.form(0);
    for (int part = 0; part < parts; part++) {
#pragma unroll
        for (int s = 0; s < PART_STEPS; s++) {
            wg_hold(next);
            /* in separate registers, as the next ones are formed during the product */
            const float4 a = to_tf32(next);
            wg_begin();
            wg_product(sum, a, wg_rows<N>(factor, PART_STEPS * part + s), part + s > 0);
            wg_end();
            keep_order(parts);
            if (s + 1 < PART_STEPS) {
                next = from.form(s + 1);
            } else if (part + 1 < parts) {
                from.dy += PART * SAMPLES * ROW;
                from.kept += PART * KEPT_ROW;
                next = from.form(0);
            }
            wg_wait<0>();
        }
    }
    wg_fence(sum);
}

/* Stores a block's part of out, 16 indices from `to` on, via shared memory: 8 indices at a time,
 * the frequencies of a column together. Within a column they are permuted against bank
 * conflicts. */
template <int N>
static __device__ inline void store_out(const mode_task &task, float2 *to, float2 *through,
                                        const float (&sum)[N / 2]) {
    constexpr int COLUMNS = N / 2;
    const int thread = (int)threadIdx.x, g = thread % 32 / 4, t = thread % 4;
    const int index = thread / 64, column = thread / WIDTH % 4, k = thread % WIDTH;
    float2 *put = through + (g * COLUMNS + t) * WIDTH + (thread / 32 ^ (g % 4 * 4 + t));
    const float2 *take =
        through + (index * COLUMNS + column) * WIDTH + (k ^ (index % 4 * 4 + column));
    to += ((int64_t)index * task.u.rank + column) * task.frequencies + k;
    const int64_t next = 8 * (int64_t)task.u.rank * task.frequencies;
    const int have = (task.u.rank - column + 3) / 4; /* columns of a thread */
#pragma unroll
    for (int h = 0; h < 2; h++, to += next) {
        if (h > 0) {
            __syncthreads(); /* the previous contents have been read */
        }
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            put[4 * WIDTH * j] = make_float2(sum[4 * j + 2 * h], sum[4 * j + 2 * h + 1]);
        }
        __syncthreads();
        float2 all[N / 8]; /* loaded together */
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            all[j] = take[4 * WIDTH * j];
        }
        float *row = reinterpret_cast<float *>(fresh((uint64_t)to));
#pragma unroll
        for (int j = 0; j < N / 8; j++, row += 8 * task.frequencies) {
            if (j < have) {
                store_two(row, all[j].x, all[j].y);
            }
        }
    }
}

template <int N, int SAMPLES>
static __global__ void __launch_bounds__(BLOCK, 1) form_mode_one(mode_task task) {
    extern __shared__ char shared[];
    const mode_layout at = layout_of<N, SAMPLES>(task.dim1);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, k = (int)threadIdx.x / 32;
    char *u = shared + (1024 - shared_at(shared) % 1024) % 1024;
    char *dy = u + at.factor, *x = dy + at.dy, *out = x + 2 * at.x;
    kept_run *kept = reinterpret_cast<kept_run *>(out + at.out);
    /* of frequency k of a row */
    const auto place = [&](int channel, int sample) {
        return (channel * SAMPLES + sample) * ROW + (k / 2 ^ exchanged(channel, sample)) * 16 +
               k % 2 * 8;
    };
    former<SAMPLES> from;
    from.dy = dy + place(g / 2, t);
    from.bit = 1u << k;
    from.is_odd = g % 2;
    from.values = task.values;
    from.scale = task.scale;
    const int across = units_across(task), units = task.frequencies / WIDTH * across;
    uint32_t bad = 0;
    wg_zero<N>(u, 2 * task.dim1);
    __syncthreads();
    for (int unit = (int)blockIdx.x; unit < units; unit += (int)gridDim.x) {
        const int first = task.begin + unit % across * (ROUNDS_PER_DY * INDICES);
        const int window = unit / across, k0 = window * WIDTH;
        const int rounds = min((int)ROUNDS_PER_DY, (task.begin + task.count - first) / INDICES);
        const auto fetch = [&](int round) {
            if (round < rounds) {
                const int64_t i = first + round * INDICES;
                fetch_rows<SAMPLES>(task, task.x + i * task.frequencies, task.dim0, INDICES, k0,
                                    x + round % 2 * at.x);
            }
        };
        fetch_rows<SAMPLES>(task, task.dy, task.dim1, task.dim1, k0, dy);
        fetch(0);
        if (unit == (int)blockIdx.x) { /* the previous kernel writes none of this */
            store_factor<N>(task, u);
            wg_publish();
            pdl_wait();
            pdl_launch_dependents();
        }
        const int64_t row = (int64_t)window * (task.dim0 / INDICES) + first / INDICES;
        fetch_runs(task.kept + row * task.dim1 * INDICES, rounds * task.dim1,
                   reinterpret_cast<char *>(kept));
        for (int round = 0; round < rounds; round++) {
            copies_wait();
            __syncthreads(); /* all inputs are ready, and the other buffer has been read */
            fetch(round + 1);
            if (task.guard) {
                bad += count_bad(x + round % 2 * at.x, at.x);
                bad += round == 0 && first == 0 ? count_bad(dy, at.dy) : 0;
            }
            float sum[N / 2];
            from.load(x + round % 2 * at.x + place(g, t));
            from.kept = kept + (round * task.dim1 + t) * KEPT_ROW + g;
            multiply<N>(from, task.dim1 / PART, wg_matrix(u), sum);
            const int64_t index = first - task.begin + round * INDICES;
            store_out<N>(task, task.out + index * task.u.rank * task.frequencies + k0,
                         reinterpret_cast<float2 *>(out), sum);
        }
        __syncthreads(); /* dy and runs have been read */
    }
    if (task.guard) {
        bad = __reduce_add_sync(~0u, bad);
        if (lane == 0 && bad > 0) {
            add_saturating(task.guard, bad);
        }
    }
}

/* ---- launches ---- */

/* f(N, SAMPLES) as constants. */
template <class F> static auto with_sizes(int64_t rank, int64_t batch, F f) {
    return with_size<48, 88, 96>(2 * rank, [&](auto n) {
        return with_size<4, 8>(batch, [&](auto samples) { return f(n, samples); });
    });
}

static int bytes_of(int64_t dim1, int64_t rank, int64_t batch) {
    return with_sizes(rank, batch, [&](auto n, auto samples) {
        return layout_of<decltype(n)::value, decltype(samples)::value>((int)dim1).all;
    });
}

static bool suits(const tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const tg_grad_source *source = &op->source;
    const plane_pass &s = plan->planes;
    const int64_t frequencies = (int64_t)s.d2 * s.d3, dim1 = op->modes.dim[1];
    return cuda_is_taken_out(op) && plan->contracts == PLANES_HOPPER && plan->gathers &&
           plan->steps == 3 && plan->step[2].kind == CUDA_STEP_LEFT && plan->step[2].left == 1 &&
           plan->step[2].dim == dim1 && plan->step[2].factor.rank <= 48 &&
           plan->dim0 % INDICES == 0 && dim1 % PART == 0 && dim1 <= CHANNELS &&
           frequencies % WIDTH == 0 && frequencies <= MAX_WINDOWS * WIDTH && source->batch > 0 &&
           source->batch <= 8 && (uintptr_t)op->workspace % 16 == 0 &&
           bytes_of(dim1, plan->step[2].factor.rank, source->batch) <=
               cuda_state_of(be)->max_shared;
}

/* Where lay_out_runs stores its result in the workspace: at the end of the buffers. */
static int64_t runs_at(const cuda_plan *plan) {
    const int64_t runs = plan->dim0 * plan->unit / WIDTH;
    return (plan->middle - runs * (int64_t)(sizeof(kept_run) / sizeof(float))) / 4 * 4;
}

int64_t cuda_sm90_mode_one_fits(const tg_backend *be, const tg_compress *op,
                                const cuda_plan *plan) {
    if (!suits(be, op, plan)) {
        return 0;
    }
    const int64_t planes = plan->step[2].factor.rank * plan->planes.d2 * plan->planes.d3 * 2;
    const int64_t room = runs_at(plan) - plan->buffer[0];
    return room < 0 ? 0 : tg_min(room / planes, plan->dim0) / INDICES * INDICES;
}

tg_status cuda_sm90_mode_one_runs(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    runs_task task = runs_task();
    task.kept = kept_set_of(op->bitmap);
    task.dim1 = (int)plan->step[2].dim;
    task.windows = plan->planes.d2 * plan->planes.d3 / WIDTH;
    task.out = reinterpret_cast<kept_run *>(cuda_plan_at(plan, op->workspace, runs_at(plan)));
    return launch_if_early(be, "laying out an index set", plan->chained, lay_out_runs,
                           (unsigned)(plan->dim0 / INDICES * task.dim1), 32 * INDICES, 0, task);
}

tg_status cuda_sm90_form_mode_one(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                                  int64_t begin, int64_t count, void *out) {
    const cuda_factor *factor = &plan->step[2].factor;
    mode_task task = mode_task();
    task.x = static_cast<const float2 *>(op->source.x);
    task.dy = static_cast<const float2 *>(op->source.dy);
    task.batch = (int)op->source.batch;
    task.dim0 = (int)plan->dim0;
    task.dim1 = (int)factor->dim;
    task.frequencies = plan->planes.d2 * plan->planes.d3;
    task.begin = (int)begin;
    task.count = (int)count;
    task.u = reader_of(factor);
    task.kept =
        reinterpret_cast<const kept_run *>(cuda_plan_at(plan, op->workspace, runs_at(plan)));
    task.values = static_cast<float2 *>(op->values);
    task.scale = (float)op->scale;
    task.out = static_cast<float2 *>(out);
    task.guard = op->guard;
    const int64_t units = (int64_t)task.frequencies / WIDTH * units_across(task);
    return with_sizes(factor->rank, task.batch, [&](auto n, auto samples) {
        constexpr int N = decltype(n)::value, SAMPLES = decltype(samples)::value;
        return launch_chained(be, "forming a gradient and contracting its mode 1", plan->chained,
                              form_mode_one<N, SAMPLES>, units, BLOCK,
                              layout_of<N, SAMPLES>(task.dim1).all, task);
    });
}
