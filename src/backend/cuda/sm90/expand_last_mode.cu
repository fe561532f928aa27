/* Expands the last mode and updates the weight in one kernel; see compress.cuh.
 *
 *     out = beta out + alpha (T U^T + lambda values),
 *
 * where 64 contiguous rows of T are the rows of a product and give 64 rows of out. A warpgroup has
 * T in registers as left factor and U in shared memory as right factor. Bulk copies load T and out
 * into shared memory, where out is updated; another bulk copy writes it back while the other
 * warpgroup multiplies. A thread issues no loads shortly before the fence that publishes its writes
 * to copies, since the fence would wait for them. Rows g and g + 8 of warp w are 4 g + w and 4 g +
 * w + 32: rows of out have an odd number of entries, so half a warp then accesses different banks.
 * Where out is stored in bf16, sums are kept in f32 until values have been added, and rounded in
 * fours of entries, which share one draw of random bits. SPLIT: see form_last_mode.cu. If only one
 * buffer of out fits, it is refilled during the next product. */
#include "backend/cuda/sm90/expand_tile.cuh"

enum {
    GROUPS = 2,
    MAX_BUFFERS = 2,
    TILE_ROTATION = 37 /* tiles by which a warpgroup's assignment rotates, so that it does not
                          always get the same rows */
};

template <class O> struct expand_task {
    const float *t; /* (tiles, TILE, part, right) */
    int right, d3;
    int tiles;
    int buffers; /* of out, of a warpgroup */
    bool rounds; /* stochastically, to a 16-bit format */
    factor_reader u;
    finish_call<O, 2> call;
};

/* Bytes of shared memory: a term of the factor, and the whole factor; of a warpgroup: a buffer of
 * T, one of out, sums stored apart from out, and the total. */
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
    at.group = at.t + buffers * at.rows + at.sums + (1 + MAX_BUFFERS) * (int)sizeof(uint64_t);
    at.group = (at.group + 15) / 16 * 16;
    at.all = 1024 + at.factor + GROUPS * at.group;
    return at;
}

/* U^T as right factor, whose columns are the parts of entries; in the left factor the imaginary
 * parts of numbers follow the real ones. */
template <int N, bool SPLIT>
static __device__ inline void store_factor(const factor_reader &u, int right, int term_bytes,
                                           char *factor) {
    wg_zero<N>(factor, (SPLIT ? 2 : 1) * ((2 * right + 31) / 32 * 32));
    __syncthreads();
    for_each_term<SPLIT>(u, [&](int i, int j, float2 entry, int term) {
        char *matrix = factor + term * term_bytes;
#pragma unroll
        for (int to = 0; to < 2; to++) {
            const float2 parts = back_to(entry, to);
            const int re = row_of_channel(j), im = row_of_channel(j + right);
            *reinterpret_cast<float *>(matrix + wg_at<N>(2 * i + to, re)) = parts.x;
            *reinterpret_cast<float *>(matrix + wg_at<N>(2 * i + to, im)) = parts.y;
        }
    });
}

/* ---- the kernel ---- */

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
        const int place = (int)blockIdx.x + (int)gridDim.x * group + round * TILE_ROTATION;
        return round * stride + place % stride;
    };
    const float alpha = call.alpha_now(), beta = call.beta_now();
    number<O, 2> *out = call.out + call.begin;
    const tg_rng rounding = call.rounding_now();

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
    store_factor<N, SPLIT>(task.u, task.right, at.term, factor);
    wg_publish();
    __syncthreads();
    pdl_wait();
    pdl_launch_dependents();
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
    for (int tile = first, round = 0, next_tile; tile < task.tiles; tile = next_tile, round++) {
        const int buffer = task.buffers == 1 ? 0 : round % 2;
        const int64_t begin = (int64_t)tile * entries;
        next_tile = tile_of(round + 1);
        const bool more = next_tile < task.tiles;
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
            fetch_t(next_tile);
        }
        kept_values kept;
        if (values) {
            words = next;
            kept.load(words, values, warp, lane);
            if (more) {
                next.load(call.kept, first_word + (int64_t)next_tile * task.d3, task.d3, warp,
                          lane);
            }
        }
        if (thread == 0 && (task.buffers == 1 ? round > 0 : more)) {
            sent_bulk();
            fetch(task.buffers == 1 ? tile : next_tile, task.buffers == 1 ? 0 : 1 - buffer);
        }
        wg_wait<0>();
        wg_fence(sum);
        barrier_wait(full + buffer, (task.buffers == 1 ? round : round / 2) % 2);
        update_rows<N>(sum, alpha, beta, m, t, task.d3, w, sums);
        if (values) {
            wg_sync();
            kept.add(words, values, by, warp, lane, sums);
        }
        if constexpr (is_16bit<O>) {
            wg_sync();
            narrow_tile(rounding, task.rounds, call.begin + begin, entries, thread, sums, w);
        }
        wg_publish();
        wg_sync();
        if (thread == 0) {
            send_bulk(out + begin, w, at.rows);
        }
    }
    if (thread == 0) { /* keep shared memory until the copy has read it */
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
    const plane_pass &s = plan->planes;
    const int n = s.d3 <= 36 ? 72 : 136;
    int buffers = MAX_BUFFERS;
    const auto bytes = [&] {
        return store == TG_STORE_FULL
                   ? layout_of<float>(n, plan->split, s.right, s.d3, buffers).all
                   : layout_of<__nv_bfloat16>(n, false, s.right, s.d3, buffers).all;
    };
    while (buffers > 0 && bytes() > cuda_state_of(be)->max_shared) {
        buffers--;
    }
    return buffers;
}

int64_t cuda_sm90_expand_fits(const tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    const plane_pass &s = plan->planes;
    const bool stored =
        op->out_store == TG_STORE_FULL || (op->out_store == TG_STORE_BF16 && !plan->split);
    const bool fits = cuda_state_of(be)->is_hopper && plan->large_chunk > 0 && stored &&
                      plan->step[1].left * s.d2 % TILE == 0 && s.d3 <= PLANES_D3 && s.d3 % 2 == 1 &&
                      s.right % 4 == 0 && s.right <= 48 && (uintptr_t)op->out % 16 == 0 &&
                      (uintptr_t)op->values % 8 == 0 && buffers_for(be, plan, op->out_store) > 0;
    return fits ? plan->large_chunk : 0;
}

/* Selects the kernel; 16-bit formats support neither split numbers nor short rows. */
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
    const plane_pass &s = plan->planes;
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
        return launch_chained(be, "expanding the last mode", plan->chained,
                              kernel_of<N, STEPS, O>(plan->split),
                              (task.tiles + GROUPS - 1) / GROUPS, GROUPS * WG_THREADS,
                              layout_of<O>(N, plan->split, s.right, s.d3, task.buffers).all, task);
    });
}

template tg_status cuda_sm90_expand(tg_backend *, const cuda_plan *, bool, const void *,
                                    const finish_call<float, 2> *);
template tg_status cuda_sm90_expand(tg_backend *, const cuda_plan *, bool, const void *,
                                    const finish_call<__nv_bfloat16, 2> *);
