/* The last mode on the way back and the update of a weight in one kernel; see compress.cuh.
 *
 *     out = beta out + alpha (T U^T + lambda values),
 *
 * where 64 rows of T, which follow each other, are rows of a product and give 64 rows of out. A
 * warpgroup has T in registers as first factor, U in shared memory as second one; out comes into
 * shared memory by a bulk copy, is updated there, and goes back by another one, while the other
 * warpgroup multiplies. Rows g and g + 8 of warp w are 4 g + w and 32 behind it: rows of out have
 * an odd number of entries, so that what half a warp touches lies in different banks. Where out is
 * stored in bf16, sums are kept in f32 until values have been added, and rounded in pairs of
 * entries, which share one draw of random bits. SPLIT: see form_last_mode.cu; there is room for one
 * buffer then, which is filled again during the next product. */
#include "backend/cuda/compress/factor_fragments.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum { GROUPS = 2, TILE = 64 };

static constexpr __host__ __device__ int buffers_of(bool split) {
    return split ? 1 : 2;
}

template <class O> struct expand_task {
    const float *t; /* (tiles, TILE, part, right) */
    int right, d3;
    int tiles;
    bool rounds; /* at random, to a 16-bit format */
    factor_reader u;
    finish_call<O, 2> call;
};

/* Bytes of shared memory: a term of the factor and all of it; of a warpgroup a buffer, sums that
 * are not in it, and the list of kept entries. */
struct expand_layout {
    int term, factor, rows, sums, list, all;
};

template <class O>
static __host__ __device__ inline expand_layout layout_of(int n, bool split, int right, int d3) {
    expand_layout at;
    at.term = (2 * right + 31) / 32 * (n * 128);
    at.factor = (split ? 2 : 1) * at.term;
    at.rows = TILE * d3 * (int)sizeof(number<O, 2>);
    at.sums = is_16bit<O> ? TILE * d3 * (int)sizeof(float2) : 0;
    at.list = (TILE * d3 * (int)sizeof(uint16_t) + 15) / 16 * 16;
    at.all = 1024 + at.factor + GROUPS * buffers_of(split) * (at.rows + (int)sizeof(uint64_t)) +
             GROUPS * (at.sums + at.list + 2 * (int)sizeof(uint32_t));
    return at;
}

/* U^T as second factor, columns being the parts of entries. */
template <int N, bool SPLIT>
static __device__ inline void lay_out(const factor_reader &u, int right, int term_bytes,
                                      char *factor) {
    wg_zero<N>(factor, (SPLIT ? 2 : 1) * ((2 * right + 31) / 32 * 32));
    __syncthreads();
    for_each_term<SPLIT>(u, [&](int i, int j, float2 entry, int term) {
        char *matrix = factor + term * term_bytes;
#pragma unroll
        for (int to = 0; to < 2; to++) {
            const float2 parts = back_to(entry, to);
            const int re = row_of_channel(j), im = row_of_channel(right + j);
            *reinterpret_cast<float *>(matrix + wg_at<N>(2 * i + to, re)) = parts.x;
            *reinterpret_cast<float *>(matrix + wg_at<N>(2 * i + to, im)) = parts.y;
        }
    });
}

/* A thread's part of both its rows. */
template <int STEPS> struct rows_of_t {
    float2 low[STEPS], high[STEPS];

    __device__ void load(const float *from, int right, int tile, int m, int t) {
        const float *row = from + ((int64_t)tile * TILE + m) * 2 * right + 2 * t;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const bool counts = 4 * s < right;
            low[s] = high[s] = make_float2(0.0f, 0.0f);
            if (counts) {
                low[s] = __ldcs(reinterpret_cast<const float2 *>(row + 8 * s));
                high[s] = __ldcs(reinterpret_cast<const float2 *>(row + 64 * right + 8 * s));
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

/* ---- 16-bit formats ---- */

/* Two entries of a tile, of which the first has an even number; ROUNDED: at random. */
template <bool ROUNDED, class O>
static __device__ inline uint2 narrow_two(const tg_rng &rng, int64_t entry, float4 x) {
    uint32_t words[4];
    O y[4];
    uint2 both;
    if constexpr (ROUNDED) {
        tg_stream_bits(&rng, (uint64_t)entry / 2, words);
        y[0] = round_by<O>(x.x, words[0]), y[1] = round_by<O>(x.y, words[1]);
        y[2] = round_by<O>(x.z, words[2]), y[3] = round_by<O>(x.w, words[3]);
    } else {
        y[0] = narrow<O>(x.x), y[1] = narrow<O>(x.y);
        y[2] = narrow<O>(x.z), y[3] = narrow<O>(x.w);
    }
    memcpy(&both, y, sizeof both);
    return both;
}

/* A tile's sums, which begin with `entry`, to where it is sent from. */
template <bool ROUNDED, class O>
static __device__ inline void narrow_tile(const tg_rng &rng, int64_t entry, int entries, int thread,
                                          const float2 *sums, number<O, 2> *to) {
    enum { AT_ONCE = 6, NEXT = 2 * WG_THREADS }; /* random bits take long, several do not */
    for (int first = 2 * thread; first < entries; first += AT_ONCE * NEXT) {
        float4 x[AT_ONCE];
        uint2 y[AT_ONCE];
#pragma unroll
        for (int q = 0; q < AT_ONCE; q++) {
            const int e = min(first + q * NEXT, entries - 2);
            x[q] = *reinterpret_cast<const float4 *>(sums + e);
        }
#pragma unroll
        for (int q = 0; q < AT_ONCE; q++) {
            y[q] = narrow_two<ROUNDED, O>(rng, entry + first + q * NEXT, x[q]);
        }
#pragma unroll
        for (int q = 0; q < AT_ONCE; q++) {
            if (first + q * NEXT < entries) {
                *reinterpret_cast<uint2 *>(to + first + q * NEXT) = y[q];
            }
        }
    }
}

/* ---- all of it ---- */

template <int N, int STEPS, class O, bool SPLIT>
static __global__ void __launch_bounds__(GROUPS *WG_THREADS, 1)
    expand_and_update(expand_task<O> task) {
    constexpr int BUFFERS = buffers_of(SPLIT);
    extern __shared__ char shared[];
    const finish_call<O, 2> &call = task.call;
    if (__syncthreads_or(call.guard && *call.guard != 0)) {
        return;
    }
    const expand_layout at = layout_of<O>(N, SPLIT, task.right, task.d3);
    char *factor = shared + (1024 - shared_at(shared) % 1024) % 1024;
    const int group = (int)threadIdx.x / WG_THREADS, thread = (int)threadIdx.x % WG_THREADS;
    const int lane = thread % 32, t = lane % 4, m = lane / 4 * 4 + thread / 32;
    char *buffers = factor + at.factor + group * BUFFERS * at.rows;
    uint64_t *full = reinterpret_cast<uint64_t *>(factor + at.factor + GROUPS * BUFFERS * at.rows) +
                     group * BUFFERS;
    char *behind = factor + at.factor + GROUPS * BUFFERS * (at.rows + (int)sizeof(uint64_t));
    char *lists = behind + GROUPS * at.sums;
    kept_list list;
    list.entry = reinterpret_cast<uint16_t *>(lists + group * at.list);
    list.ends = reinterpret_cast<uint32_t *>(lists + GROUPS * at.list) + 2 * group;
    const int first = (int)blockIdx.x + (int)gridDim.x * group, stride = (int)gridDim.x * GROUPS;
    const float alpha = (float)(call.rates ? call.rates->alpha : call.alpha);
    const float beta = (float)(call.rates ? call.rates->beta : call.beta);
    number<O, 2> *out = call.out + call.begin;
    tg_rng rounding = call.rounding;
    rounding.step = is_16bit<O> && call.rates ? call.rates->step : rounding.step;

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
    lay_out<N, SPLIT>(task.u, task.right, at.term, factor);
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
        rows.load(task.t, task.right, first, m, t);
        if (values) {
            runs.load(call.kept, call.begin + (int64_t)first * entries, entries, thread);
        }
        if (thread == 0) {
            fetch(first, 0);
        }
    }
    const uint64_t matrix = wg_matrix(factor), second = wg_matrix(factor + at.term);
    for (int tile = first, round = 0; tile < task.tiles; tile += stride, round++) {
        const int buffer = round % BUFFERS;
        number<O, 2> *w = reinterpret_cast<number<O, 2> *>(buffers + buffer * at.rows);
        float2 *sums = reinterpret_cast<float2 *>(is_16bit<O> ? behind + group * at.sums
                                                              : buffers + buffer * at.rows);
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
        float4 a[STEPS], rest[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const float by = SPLIT ? 1.0f : to_tf32(1.0f);
            a[s] = make_float4(by * rows.low[s].x, by * rows.high[s].x, by * rows.low[s].y,
                               by * rows.high[s].y);
            wg_hold(a[s]);
            if constexpr (SPLIT) {
                rest[s] = cut_off(a[s]);
                wg_hold(rest[s]);
            }
        }
        wg_begin();
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            wg_product(sum, a[s], wg_rows<N>(matrix, s), s > 0);
            if constexpr (SPLIT) {
                wg_product(sum, a[s], wg_rows<N>(second, s), true);
                wg_product(sum, rest[s], wg_rows<N>(matrix, s), true);
            }
        }
        wg_end();
        if (BUFFERS == 1 && round > 0 && thread == 0) {
            sent_bulk();
            fetch(tile, buffer);
        }
        wg_wait<0>();
        wg_fence(sum);
        if (tile + stride < task.tiles) {
            rows.load(task.t, task.right, tile + stride, m, t);
            if (values) {
                runs.load(call.kept, call.begin + begin + (int64_t)stride * entries, entries,
                          thread);
            }
            if (BUFFERS > 1 && thread == 0) {
                sent_bulk();
                fetch(tile + stride, (buffer + 1) % BUFFERS);
            }
        }
        barrier_wait(full + buffer, round / BUFFERS % 2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = (m + 32 * h) * task.d3 + t;
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                if (4 * j + t < task.d3) {
                    const number<float, 2> old =
                        beta != 0.0f ? widen(w[row + 4 * j]) : number<float, 2>();
                    sums[row + 4 * j] =
                        make_float2(beta * old.part[0] + alpha * sum[4 * j + 2 * h],
                                    beta * old.part[1] + alpha * sum[4 * j + 2 * h + 1]);
                }
            }
        }
        if (values) {
            wg_sync();
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (thread + i * WG_THREADS < count) {
                    add_value(sums + list.entry[thread + i * WG_THREADS], by, value[i]);
                }
            }
#pragma unroll 4
            for (uint32_t q = thread + AHEAD * WG_THREADS; q < count; q += WG_THREADS) {
                add_value(sums + list.entry[q], by, __ldcs(values + list.ends[0] + q));
            }
        }
        if constexpr (is_16bit<O>) {
            wg_sync();
            if (task.rounds) {
                narrow_tile<true>(rounding, call.begin + begin, entries, thread, sums, w);
            } else {
                narrow_tile<false>(rounding, call.begin + begin, entries, thread, sums, w);
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

static bool has_room(const tg_backend *be, const cuda_plan *plan, tg_storage store) {
    const cuda_planes &s = plan->planes;
    const int n = s.d3 <= 36 ? 72 : 136;
    int most = 0;
    return cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                  cuda_state_of(be)->device) == cudaSuccess &&
           (store == TG_STORE_FULL ? layout_of<float>(n, plan->split, s.right, s.d3).all
                                   : layout_of<__nv_bfloat16>(n, false, s.right, s.d3).all) <= most;
}

bool cuda_sm90_expand_fits(const tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    const cuda_planes &s = plan->planes;
    const bool stored =
        op->out_store == TG_STORE_FULL || (op->out_store == TG_STORE_BF16 && !plan->split);
    return cuda_state_of(be)->is_hopper && plan->large_chunk > 0 && stored &&
           plan->step[1].left * s.d2 % TILE == 0 && s.d3 <= PLANES_D3 && s.d3 % 2 == 1 &&
           s.right % 4 == 0 && s.right <= 48 && (uintptr_t)op->out % 16 == 0 &&
           (uintptr_t)op->values % 8 == 0 && has_room(be, plan, op->out_store);
}

/* The kernel; 16-bit formats are not for split numbers, nor for short rows. */
template <int N, int STEPS, class O> static auto kernel_of(bool split) {
    using kernel = void (*)(expand_task<O>);
    if constexpr (is_16bit<O>) {
        return kernel(expand_and_update<N, STEPS, O, false>);
    } else {
        return kernel(split ? expand_and_update<N, STEPS, O, true>
                            : expand_and_update<N, STEPS, O, false>);
    }
}

template <class O>
tg_status cuda_sm90_expand(tg_backend *be, const cuda_plan *plan, bool rounds, const void *in,
                           const finish_call<O, 2> *call) {
    const cuda_planes &s = plan->planes;
    expand_task<O> task = expand_task<O>();
    task.t = static_cast<const float *>(in);
    task.right = s.right;
    task.d3 = s.d3;
    task.tiles = (int)((call->end - call->begin) / ((int64_t)TILE * s.d3));
    task.u = reader_of(&plan->step[0].factor);
    task.rounds = rounds;
    task.call = *call;
    return with_sizes(s.d3, s.right, [&](auto n, auto steps) {
        constexpr int N = decltype(n)::value, STEPS = decltype(steps)::value;
        return CUDA_CHECK(be,
                          launch_chained(kernel_of<N, STEPS, O>(plan->split),
                                         shorter((task.tiles + GROUPS - 1) / GROUPS,
                                                 cuda_state_of(be)->processors),
                                         GROUPS * WG_THREADS,
                                         layout_of<O>(N, plan->split, s.right, s.d3).all,
                                         cuda_stream(be), plan->chained, task),
                          "expanding the last mode");
    });
}

template tg_status cuda_sm90_expand(tg_backend *, const cuda_plan *, bool, const void *,
                                    const finish_call<float, 2> *);
template tg_status cuda_sm90_expand(tg_backend *, const cuda_plan *, bool, const void *,
                                    const finish_call<__nv_bfloat16, 2> *);
