/* The last mode on the way back and the update of a weight in one kernel; see compress.cuh.
 *
 *     out = beta out + alpha (T U^T + lambda values),
 *
 * where 64 rows of T, which follow each other, are rows of a product and give 64 rows of out. A
 * warpgroup has T in registers as first factor, U in shared memory as second one; out comes into
 * shared memory by a bulk copy, is updated there, and goes back by another one, while the other
 * warpgroup multiplies. Rows g and g + 8 of warp w are 4 g + w and 32 behind it: rows of out have
 * an odd number of entries, so that what half a warp touches lies in different banks. */
#include "backend/cuda/compress/factor_fragments.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum { GROUPS = 2, BUFFERS = 2, TILE = 64 };

struct expand_task {
    const float *t; /* (tiles, TILE, part, right) */
    int right, d3;
    int tiles;
    factor_reader u;
    finish_call<float, 2> call;
};

/* Bytes of shared memory. */
struct expand_layout {
    int factor, rows, list, all;
};

static __host__ __device__ inline expand_layout layout_of(int n, int right, int d3) {
    expand_layout at;
    at.factor = (2 * right + 31) / 32 * (n * 128);
    at.rows = TILE * d3 * (int)sizeof(float2);
    at.list = (TILE * d3 * (int)sizeof(uint16_t) + 15) / 16 * 16;
    at.all = 1024 + at.factor + GROUPS * BUFFERS * (at.rows + (int)sizeof(uint64_t)) +
             GROUPS * (at.list + 2 * (int)sizeof(uint32_t));
    return at;
}

/* U^T as second factor, columns being the parts of entries. */
template <int N> static __device__ inline void lay_out(const expand_task &task, char *factor) {
    wg_zero<N>(factor, (2 * task.right + 31) / 32 * 32);
    __syncthreads();
    for_each_entry(task.u, [&](int i, int j, float2 u) {
#pragma unroll
        for (int to = 0; to < 2; to++) {
            const float2 parts = back_to(u, to);
            const int re = row_of_channel(j), im = row_of_channel(task.right + j);
            *reinterpret_cast<float *>(factor + wg_at<N>(2 * i + to, re)) = parts.x;
            *reinterpret_cast<float *>(factor + wg_at<N>(2 * i + to, im)) = parts.y;
        }
    });
}

/* A thread's part of both its rows. */
template <int STEPS> struct rows_of_t {
    float2 low[STEPS], high[STEPS];

    __device__ void load(const expand_task &task, int tile, int m, int t) {
        const float *row = task.t + ((int64_t)tile * TILE + m) * 2 * task.right + 2 * t;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const bool counts = 4 * s < task.right;
            low[s] = high[s] = make_float2(0.0f, 0.0f);
            if (counts) {
                low[s] = __ldcs(reinterpret_cast<const float2 *>(row + 8 * s));
                high[s] = __ldcs(reinterpret_cast<const float2 *>(row + 64 * task.right + 8 * s));
            }
        }
    }
};

/* ---- kept entries ---- */

enum {
    HALVES = WG_THREADS / 16, /* half warps, of which each takes rank blocks of 512 entries.. */
    TURNS = 2,                /* ..so often */
    AHEAD = 4                 /* values of a thread that are on their way during the product */
};

/* What a thread knows of a tile's kept entries: a run of 32 in each turn, and how many are kept
 * before the rank block it lies in. */
struct kept_runs {
    uint32_t mask[TURNS], rank[TURNS];

    __device__ void load(const kept_set &kept, int64_t begin, int entries, int thread) {
        const int64_t first = begin / 512, blocks = (begin + entries + 511) / 512 - first;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int64_t block = thread / 16 + i * HALVES,
                          word = (first + block) * 8 + thread % 16 / 2;
            mask[i] = rank[i] = 0;
            if (block < blocks) {
                rank[i] = kept.ranks[first + block];
                if (word < kept.count) {
                    mask[i] = (uint32_t)(kept.words[word] >> (thread % 2 * 32));
                }
            }
        }
    }
};

/* In shared memory: where the values of a tile begin and end among all, and which entries of the
 * tile they belong to. */
struct kept_list {
    uint32_t *ends;
    uint16_t *entry;
};

/* Sums up ranks, from which on they are those of the runs themselves, and finds the ends. */
static __device__ inline void find_ends(kept_runs &runs, int64_t begin, int entries, int thread,
                                        uint32_t *ends) {
    const int lead = (int)(begin % 512); /* entries of the first rank block before the tile */
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const uint32_t own = (uint32_t)__popc(runs.mask[i]);
        uint32_t sum = own;
#pragma unroll
        for (int d = 1; d < 16; d *= 2) {
            const uint32_t left = __shfl_up_sync(~0u, sum, d, 16);
            sum += thread % 16 >= d ? left : 0;
        }
        runs.rank[i] += sum - own;
        const int from = (thread / 16 + i * HALVES) * 512 + thread % 16 * 32 - lead;
        if (from <= 0 && from + 32 > 0) {
            ends[0] = runs.rank[i] + (uint32_t)__popc(runs.mask[i] & ((1u << -from) - 1));
        }
        const int last = entries - from; /* so many of the run lie before the end of the tile */
        if (last > 0 && last <= 32) {
            const uint32_t inside = last == 32 ? ~0u : (1u << last) - 1;
            ends[1] = runs.rank[i] + (uint32_t)__popc(runs.mask[i] & inside);
        }
    }
}

/* Writes down the entries of the tile that are kept. */
static __device__ inline void list_entries(const kept_runs &runs, int64_t begin, int entries,
                                           int thread, const kept_list &list) {
    const int lead = (int)(begin % 512);
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const int from = (thread / 16 + i * HALVES) * 512 + thread % 16 * 32 - lead;
        uint32_t position = runs.rank[i] - list.ends[0];
        for (uint32_t mask = runs.mask[i]; mask; mask &= mask - 1, position++) {
            const int e = from + __ffs((int)mask) - 1;
            if (e >= 0 && e < entries) {
                list.entry[position] = (uint16_t)e;
            }
        }
    }
}

static __device__ inline void add_value(float2 *entry, float by, float2 value) {
    *entry = make_float2(entry->x + by * value.x, entry->y + by * value.y);
}

/* ---- all of it ---- */

template <int N, int STEPS>
static __global__ void __launch_bounds__(GROUPS *WG_THREADS, 1)
    expand_and_update(expand_task task) {
    extern __shared__ char shared[];
    const finish_call<float, 2> &call = task.call;
    if (__syncthreads_or(call.guard && *call.guard != 0)) {
        return;
    }
    const expand_layout at = layout_of(N, task.right, task.d3);
    char *factor = shared + (1024 - shared_at(shared) % 1024) % 1024;
    const int group = (int)threadIdx.x / WG_THREADS, thread = (int)threadIdx.x % WG_THREADS;
    const int lane = thread % 32, t = lane % 4, m = lane / 4 * 4 + thread / 32;
    char *buffers = factor + at.factor + group * BUFFERS * at.rows;
    uint64_t *full = reinterpret_cast<uint64_t *>(factor + at.factor + GROUPS * BUFFERS * at.rows) +
                     group * BUFFERS;
    char *behind = factor + at.factor + GROUPS * BUFFERS * (at.rows + (int)sizeof(uint64_t));
    kept_list list;
    list.entry = reinterpret_cast<uint16_t *>(behind + group * at.list);
    list.ends = reinterpret_cast<uint32_t *>(behind + GROUPS * at.list) + 2 * group;
    const int first = (int)blockIdx.x + (int)gridDim.x * group, stride = (int)gridDim.x * GROUPS;
    const float alpha = (float)(call.rates ? call.rates->alpha : call.alpha);
    const float beta = (float)(call.rates ? call.rates->beta : call.beta);
    float2 *out = reinterpret_cast<float2 *>(call.out) + call.begin;

    const auto fetch = [&](int tile, int buffer) {
        barrier_expect(full + buffer, at.rows);
        copy_bulk(buffers + buffer * at.rows, out + (int64_t)tile * TILE * task.d3, at.rows,
                  full + buffer);
    };
    if (thread == 0) {
        for (int b = 0; b < BUFFERS; b++) {
            barrier_init(full + b, 1);
        }
        barriers_made();
    }
    lay_out<N>(task, factor);
    wg_publish();
    __syncthreads();
    kernel_before_wait();
    kernel_behind_go();
    const int entries = TILE * task.d3;
    const float2 *values = reinterpret_cast<const float2 *>(call.values);
    const float by = alpha * (float)call.lambda;
    rows_of_t<STEPS> rows;
    kept_runs runs;
    if (first < task.tiles) {
        rows.load(task, first, m, t);
        if (values) {
            runs.load(call.kept, call.begin + (int64_t)first * entries, entries, thread);
        }
        if (thread == 0) {
            fetch(first, 0);
        }
    }
    const uint64_t matrix = wg_matrix(factor);
    for (int tile = first, round = 0; tile < task.tiles; tile += stride, round++) {
        const int buffer = round % BUFFERS;
        float2 *w = reinterpret_cast<float2 *>(buffers + buffer * at.rows);
        const int64_t begin = (int64_t)tile * entries;
        float2 value[AHEAD];
        uint32_t count = 0;
        if (values) {
            find_ends(runs, call.begin + begin, entries, thread, list.ends);
            wg_sync();
            count = list.ends[1] - list.ends[0];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (thread + i * WG_THREADS < count) {
                    value[i] = __ldcs(values + list.ends[0] + thread + i * WG_THREADS);
                }
            }
            list_entries(runs, call.begin + begin, entries, thread, list);
        }
        float sum[N / 2];
        float4 a[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            a[s] = make_float4(to_tf32(rows.low[s].x), to_tf32(rows.high[s].x),
                               to_tf32(rows.low[s].y), to_tf32(rows.high[s].y));
            wg_hold(a[s]);
        }
        wg_begin();
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            wg_product(sum, a[s], wg_rows<N>(matrix, s), s > 0);
        }
        wg_end();
        wg_wait<0>();
        wg_fence(sum);
        if (tile + stride < task.tiles) {
            rows.load(task, tile + stride, m, t);
            if (values) {
                runs.load(call.kept, call.begin + begin + (int64_t)stride * entries, entries,
                          thread);
            }
            if (thread == 0) {
                sent_bulk();
                fetch(tile + stride, (buffer + 1) % BUFFERS);
            }
        }
        barrier_wait(full + buffer, round / BUFFERS % 2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 *row = w + (m + 32 * h) * task.d3 + t;
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                if (4 * j + t < task.d3) {
                    const float2 old = beta != 0.0f ? row[4 * j] : make_float2(0.0f, 0.0f);
                    row[4 * j] = make_float2(beta * old.x + alpha * sum[4 * j + 2 * h],
                                             beta * old.y + alpha * sum[4 * j + 2 * h + 1]);
                }
            }
        }
        if (values) {
            wg_sync();
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (thread + i * WG_THREADS < count) {
                    add_value(w + list.entry[thread + i * WG_THREADS], by, value[i]);
                }
            }
#pragma unroll 4
            for (uint32_t q = thread + AHEAD * WG_THREADS; q < count; q += WG_THREADS) {
                add_value(w + list.entry[q], by, __ldcs(values + list.ends[0] + q));
            }
        }
        wg_publish();
        wg_sync();
        if (thread == 0) {
            send_bulk(out + begin, w, at.rows);
        }
    }
    if (thread == 0) { /* shared memory is there until it has been read */
        sent_bulk();
    }
}

/* ---- launches ---- */

/* f(N, STEPS) as constants. */
template <class F> static auto with_sizes(int d3, int right, F f) {
    using std::integral_constant;
    const auto with_steps = [&](auto n) {
        return right <= 24   ? f(n, integral_constant<int, 6>())
               : right <= 44 ? f(n, integral_constant<int, 11>())
                             : f(n, integral_constant<int, 12>());
    };
    return d3 <= 36 ? with_steps(integral_constant<int, 72>())
                    : with_steps(integral_constant<int, 136>());
}

static bool has_room(const tg_backend *be, const cuda_planes &s) {
    int most = 0;
    return cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                  cuda_state_of(be)->device) == cudaSuccess &&
           layout_of(s.d3 <= 36 ? 72 : 136, s.right, s.d3).all <= most;
}

bool cuda_sm90_expand_fits(const tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    const cuda_planes &s = plan->planes;
    return cuda_state_of(be)->is_hopper && plan->large_chunk > 0 &&
           op->out_store == TG_STORE_FULL && plan->step[1].left * s.d2 % TILE == 0 &&
           s.d3 <= PLANES_D3 && s.d3 % 2 == 1 && s.right % 4 == 0 && s.right <= 48 &&
           (uintptr_t)op->out % 16 == 0 && (uintptr_t)op->values % 8 == 0 && has_room(be, s);
}

tg_status cuda_sm90_expand(tg_backend *be, const cuda_plan *plan, const void *in,
                           const finish_call<float, 2> *call) {
    const cuda_planes &s = plan->planes;
    expand_task task = expand_task();
    task.t = static_cast<const float *>(in);
    task.right = s.right;
    task.d3 = s.d3;
    task.tiles = (int)((call->end - call->begin) / ((int64_t)TILE * s.d3));
    task.u = reader_of(&plan->step[0].factor);
    task.call = *call;
    return with_sizes(s.d3, s.right, [&](auto n, auto steps) {
        constexpr int N = decltype(n)::value, STEPS = decltype(steps)::value;
        return CUDA_CHECK(be,
                          launch_chained(expand_and_update<N, STEPS>,
                                         shorter((task.tiles + GROUPS - 1) / GROUPS,
                                                 cuda_state_of(be)->processors),
                                         GROUPS * WG_THREADS, layout_of(N, s.right, s.d3).all,
                                         cuda_stream(be), plan->chained, task),
                          "expanding the last mode");
    });
}
