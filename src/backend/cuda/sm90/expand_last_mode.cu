/* The last mode on the way back and the update of a weight in one kernel; see compress.cuh.
 *
 *     out = beta out + alpha (T U^T + lambda values),
 *
 * where 64 rows of T, which follow each other, are rows of a product and give 64 rows of out. A
 * warpgroup has T in registers as first factor, U in shared memory as second one; T and out come
 * into shared memory by bulk copies, out is updated there, and goes back by another one, while the
 * other warpgroup multiplies. Loads of a thread are not asked for shortly before it lets copies see
 * what it has written: the fence would wait for them. Rows g and g + 8 of warp w are 4 g + w and 32
 * behind it: rows of out have an odd number of entries, so that what half a warp touches lies in
 * different banks. Where out is stored in bf16, sums are kept in f32 until values have been added,
 * and rounded in pairs of entries, which share one draw of random bits. SPLIT: see
 * form_last_mode.cu. Where there is room for one buffer of out only, it is filled again during the
 * next product. */
#include "backend/cuda/compress/factor_fragments.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum {
    GROUPS = 2,
    TILE = 64,
    MOST_BUFFERS = 2,
    TURN = 37 /* tiles that a warpgroup turns by, so that it does not always have the same rows */
};

template <class O> struct expand_task {
    const float *t; /* (tiles, TILE, part, right) */
    int right, d3;
    int tiles;
    int buffers; /* of out, of a warpgroup */
    bool rounds; /* at random, to a 16-bit format */
    factor_reader u;
    finish_call<O, 2> call;
};

/* Bytes of shared memory: a term of the factor and all of it; of a warpgroup a buffer of T, one of
 * out, sums that are not in it, and all of it. */
struct expand_layout {
    int term, factor, t, rows, sums, group, all;
};

template <class O>
static __host__ __device__ inline expand_layout layout_of(int n, bool split, int right, int d3,
                                                          int buffers) {
    expand_layout at;
    at.term = (2 * right + 31) / 32 * (n * 128);
    at.factor = (split ? 2 : 1) * at.term;
    at.t = TILE * 2 * right * (int)sizeof(float);
    at.rows = TILE * d3 * (int)sizeof(number<O, 2>);
    at.sums = is_16bit<O> ? TILE * d3 * (int)sizeof(float2) : 0;
    at.group = at.t + buffers * at.rows + at.sums + (1 + MOST_BUFFERS) * (int)sizeof(uint64_t);
    at.group = (at.group + 15) / 16 * 16;
    at.all = 1024 + at.factor + GROUPS * at.group;
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

/* ---- kept entries ---- */

/* A tile has d3 words of 64 entries. Warp w of a warpgroup has the words w, w + 4, .., one for a
 * lane, so that all have a part of those rows in which most is kept; of the values in its words a
 * lane takes every 32nd. */
enum {
    WARPS = WG_THREADS / 32,
    AHEAD = 4 /* values of a lane that are on their way during the product */
};

struct kept_words {
    uint64_t mask; /* of a lane's word */
    uint32_t rank; /* entries kept before it */

    __device__ void load(const kept_set &kept, int64_t first, int d3, int warp, int lane) {
        const int64_t word = first + WARPS * lane + warp;
        mask = 0;
        rank = 0;
        if (WARPS * lane + warp < d3) {
            mask = kept.words[word];
            rank = kept.ranks[word / 8];
#pragma unroll
            for (int w = 1; w < 8; w++) { /* a fixed number: loads do not wait for each other */
                rank += w <= word % 8 ? (uint32_t)__popcll(kept.words[word - w]) : 0;
            }
        }
    }
};

/* Which bit of a word is its n-th one that is set. */
static __device__ inline int bit_of(uint64_t mask, int n) {
    const int low = __popc((uint32_t)mask);
    uint32_t part = n < low ? (uint32_t)mask : (uint32_t)(mask >> 32);
    int at = n < low ? 0 : 32;
    n -= n < low ? 0 : low;
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
        const int count = __popc(part & ((1u << width) - 1));
        const bool beyond = n >= count;
        n -= beyond ? count : 0;
        at += beyond ? width : 0;
        part >>= beyond ? width : 0;
    }
    return at;
}

/* The values of a warp's words. */
struct kept_values {
    int total, start; /* of all words, and before a lane's */
    int entry[AHEAD]; /* of the tile; -1: none */
    float2 value[AHEAD];

    /* Value number v of the warp: the entry it belongs to, and where it is. By whole warps. */
    __device__ int find(const kept_words &words, int v, int warp, uint32_t *at) const {
        int lane = 0;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            lane += __shfl_sync(~0u, start, lane + step) <= v ? step : 0;
        }
        const int n = v - __shfl_sync(~0u, start, lane);
        const uint32_t low = __shfl_sync(~0u, (uint32_t)words.mask, lane),
                       high = __shfl_sync(~0u, (uint32_t)(words.mask >> 32), lane);
        *at = __shfl_sync(~0u, words.rank, lane) + (uint32_t)n;
        return (WARPS * lane + warp) * 64 + bit_of((uint64_t)high << 32 | low, n);
    }
    __device__ void load(const kept_words &words, const float2 *values, int warp, int lane) {
        const int own = __popcll(words.mask);
        start = own;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int left = __shfl_up_sync(~0u, start, d);
            start += lane >= d ? left : 0;
        }
        total = __shfl_sync(~0u, start, 31);
        start -= own;
#pragma unroll
        for (int q = 0; q < AHEAD; q++) {
            entry[q] = -1;
            if (32 * q < total) {
                uint32_t at;
                const int found = find(words, 32 * q + lane, warp, &at);
                if (32 * q + lane < total) {
                    entry[q] = found;
                    value[q] = __ldcs(values + at);
                }
            }
        }
    }
    __device__ void add(const kept_words &words, const float2 *values, float by, int warp, int lane,
                        float2 *sums) const {
        float2 old[AHEAD]; /* which all are read before the first is written */
#pragma unroll
        for (int q = 0; q < AHEAD; q++) {
            if (entry[q] >= 0) {
                old[q] = sums[entry[q]];
            }
        }
#pragma unroll
        for (int q = 0; q < AHEAD; q++) {
            if (entry[q] >= 0) {
                sums[entry[q]] = plus(old[q], by, value[q]);
            }
        }
#pragma unroll 2
        for (int first = 32 * AHEAD; first < total; first += 32) {
            uint32_t at;
            const int found = find(words, first + lane, warp, &at);
            if (first + lane < total) {
                sums[found] = plus(sums[found], by, __ldcs(values + at));
            }
        }
    }
    static __device__ float2 plus(float2 x, float by, float2 value) {
        return make_float2(x.x + by * value.x, x.y + by * value.y);
    }
};

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
    extern __shared__ char shared[];
    const finish_call<O, 2> &call = task.call;
    if (__syncthreads_or(call.guard && *call.guard != 0)) {
        return;
    }
    const expand_layout at = layout_of<O>(N, SPLIT, task.right, task.d3, task.buffers);
    char *factor = shared + (1024 - shared_at(shared) % 1024) % 1024;
    const int group = (int)threadIdx.x / WG_THREADS, thread = (int)threadIdx.x % WG_THREADS;
    const int lane = thread % 32, t = lane % 4, m = lane / 4 * 4 + thread / 32;
    char *own = factor + at.factor + group * at.group, *buffers = own + at.t;
    float2 *sums = reinterpret_cast<float2 *>(buffers + task.buffers * at.rows);
    uint64_t *t_full = reinterpret_cast<uint64_t *>(buffers + task.buffers * at.rows + at.sums);
    uint64_t *full = t_full + 1; /* of buffers */
    const int stride = (int)gridDim.x * GROUPS;
    const auto tile_of = [&](int round) {
        const int place = (int)blockIdx.x + (int)gridDim.x * group + round * TURN;
        return round * stride + place % stride;
    };
    const float alpha = (float)(call.rates ? call.rates->alpha : call.alpha);
    const float beta = (float)(call.rates ? call.rates->beta : call.beta);
    number<O, 2> *out = call.out + call.begin;
    tg_rng rounding = call.rounding;
    rounding.step = is_16bit<O> && call.rates ? call.rates->step : rounding.step;

    const auto fetch_t = [&](int tile) {
        barrier_expect(t_full, at.t);
        copy_bulk(own, task.t + (int64_t)tile * TILE * 2 * task.right, at.t, t_full);
    };
    const auto fetch = [&](int tile, int buffer) {
        barrier_expect(full + buffer, at.rows);
        copy_bulk(buffers + buffer * at.rows, out + (int64_t)tile * TILE * task.d3, at.rows,
                  full + buffer);
    };
    if (thread == 0) {
        for (int b = 0; b <= task.buffers; b++) {
            barrier_init(t_full + b, 1);
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
    const int64_t first_word = call.begin / 64;
    const int warp = thread / 32, first = tile_of(0);
    kept_words words = {}, next = {};
    if (first < task.tiles) {
        if (thread == 0) {
            fetch_t(first);
            fetch(first, 0);
        }
        if (values) {
            next.load(call.kept, first_word + (int64_t)first * task.d3, task.d3, warp, lane);
        }
    }
    const uint64_t matrix = wg_matrix(factor), second = wg_matrix(factor + at.term);
    const float2 *row_of_t = reinterpret_cast<const float2 *>(own) + m * task.right + t;
    for (int tile = first, round = 0, behind; tile < task.tiles; tile = behind, round++) {
        const int buffer = task.buffers == 1 ? 0 : round % 2;
        const int64_t begin = (int64_t)tile * entries;
        behind = tile_of(round + 1);
        const bool more = behind < task.tiles;
        number<O, 2> *w = reinterpret_cast<number<O, 2> *>(buffers + buffer * at.rows);
        if constexpr (!is_16bit<O>) {
            sums = reinterpret_cast<float2 *>(w);
        }
        barrier_wait(t_full, round % 2);
        float sum[N / 2];
        float4 a[STEPS], rest[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const float one = SPLIT ? 1.0f : to_tf32(1.0f);
            float2 low = make_float2(0.0f, 0.0f), high = low;
            if (4 * s < task.right) {
                low = row_of_t[4 * s];
                high = row_of_t[32 * task.right + 4 * s];
            }
            a[s] = make_float4(one * low.x, one * high.x, one * low.y, one * high.y);
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
        wg_sync(); /* all have read T */
        if (thread == 0 && more) {
            fetch_t(behind);
        }
        kept_values kept;
        if (values) {
            words = next;
            kept.load(words, values, warp, lane);
            if (more) {
                next.load(call.kept, first_word + (int64_t)behind * task.d3, task.d3, warp, lane);
            }
        }
        if (thread == 0 && (task.buffers == 1 ? round > 0 : more)) {
            sent_bulk();
            fetch(task.buffers == 1 ? tile : behind, task.buffers == 1 ? 0 : 1 - buffer);
        }
        wg_wait<0>();
        wg_fence(sum);
        barrier_wait(full + buffer, (task.buffers == 1 ? round : round / 2) % 2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = (m + 32 * h) * task.d3 + t;
            number<O, 2> old[N / 8] = {}; /* all of them before the first is written */
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                if (beta != 0.0f && 4 * j + t < task.d3) {
                    old[j] = w[row + 4 * j];
                }
            }
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                if (4 * j + t < task.d3) {
                    const number<float, 2> from = widen(old[j]);
                    sums[row + 4 * j] =
                        make_float2(beta * from.part[0] + alpha * sum[4 * j + 2 * h],
                                    beta * from.part[1] + alpha * sum[4 * j + 2 * h + 1]);
                }
            }
        }
        if (values) {
            wg_sync();
            kept.add(words, values, by, warp, lane, sums);
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

/* How many buffers a warpgroup has room for. */
static int buffers_for(const tg_backend *be, const cuda_plan *plan, tg_storage store) {
    const cuda_planes &s = plan->planes;
    const int n = s.d3 <= 36 ? 72 : 136;
    int most = 0, buffers = MOST_BUFFERS;
    if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                               cuda_state_of(be)->device) != cudaSuccess) {
        return 0;
    }
    const auto bytes = [&] {
        return store == TG_STORE_FULL
                   ? layout_of<float>(n, plan->split, s.right, s.d3, buffers).all
                   : layout_of<__nv_bfloat16>(n, false, s.right, s.d3, buffers).all;
    };
    while (buffers > 0 && bytes() > most) {
        buffers--;
    }
    return buffers;
}

bool cuda_sm90_expand_fits(const tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    const cuda_planes &s = plan->planes;
    const bool stored =
        op->out_store == TG_STORE_FULL || (op->out_store == TG_STORE_BF16 && !plan->split);
    return cuda_state_of(be)->is_hopper && plan->large_chunk > 0 && stored &&
           plan->step[1].left * s.d2 % TILE == 0 && s.d3 <= PLANES_D3 && s.d3 % 2 == 1 &&
           s.right % 4 == 0 && s.right <= 48 && (uintptr_t)op->out % 16 == 0 &&
           (uintptr_t)op->values % 8 == 0 && buffers_for(be, plan, op->out_store) > 0;
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
    task.buffers = buffers_for(be, plan, is_16bit<O> ? TG_STORE_BF16 : TG_STORE_FULL);
    task.rounds = rounds;
    task.call = *call;
    return with_sizes(s.d3, s.right, [&](auto n, auto steps) {
        constexpr int N = decltype(n)::value, STEPS = decltype(steps)::value;
        return CUDA_CHECK(
            be,
            launch_chained(
                kernel_of<N, STEPS, O>(plan->split),
                shorter((task.tiles + GROUPS - 1) / GROUPS, cuda_state_of(be)->processors),
                GROUPS * WG_THREADS, layout_of<O>(N, plan->split, s.right, s.d3, task.buffers).all,
                cuda_stream(be), plan->chained, task),
            "expanding the last mode");
    });
}

template tg_status cuda_sm90_expand(tg_backend *, const cuda_plan *, bool, const void *,
                                    const finish_call<float, 2> *);
template tg_status cuda_sm90_expand(tg_backend *, const cuda_plan *, bool, const void *,
                                    const finish_call<__nv_bfloat16, 2> *);
