/* Expands the last two modes and updates the weight in one kernel; see compress.cuh.
 *
 *     T = V in,   out = beta out + alpha (T U^T + lambda values),
 *
 * plane by plane; two warpgroups share the 128 rows of a plane. `in`, factors and T are complex f16
 * (tile/warpgroup.cuh). A warpgroup has its rows of V in registers, as left factor; T stays in
 * registers and is the left factor of the next product. Products need the input transposed: all
 * warps transpose the next plane while the last product of this one runs, and multiply it while
 * they add the values of kept entries and round. The rest is as in expand_last_mode.cu, including
 * the order of the rows of out. */
#include "backend/cuda/sm90/expand_tile.cuh"
#include "backend/cuda/sm90/transpose_rows.cuh"

enum {
    GROUPS = 2,
    ROWS = GROUPS * TILE, /* of a plane of out */
    N = 2 * PLANES_D3,    /* columns of out, in parts */
    RANK_STEPS = 11,      /* of 8 numbers of the last but one mode.. */
    RIGHT = 4 * TRANSPOSED_STEPS,
    RIGHT_STEPS = (RIGHT + 7) / 8, /* ..and of the last one, of which there are RIGHT at most */
    TRANSPOSED_BYTES = transposed_bytes(RANK_STEPS),
    BARRIERS = 2 + GROUPS /* a plane has arrived, has been transposed; rows of out */
};

/* Bulk copies of data that should not evict other data from L2. */
static __device__ inline uint64_t once_policy() {
    uint64_t policy = 0;
    WG_ASM("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
static __device__ inline void copy_once(void *to, const void *from, int bytes, uint64_t *barrier,
                                        uint64_t policy) {
    WG_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
           " [%0], [%1], %2, [%3], %4;" ::"r"(shared_at(to)),
           "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_at(barrier)), "l"(policy)
           : "memory");
}
static __device__ inline void send_once(void *to, const void *from, int bytes, uint64_t policy) {
    WG_ASM("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;"
           "cp.async.bulk.commit_group;" ::"l"(__cvta_generic_to_global(to)),
           "r"(shared_at(from)), "r"(bytes), "l"(policy)
           : "memory");
}
/* Prefetches into L2. */
static __device__ inline void prefetch_bulk(const void *from, int bytes) {
    WG_ASM("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
           "r"(bytes)
           : "memory");
}

template <class O> struct planes_task {
    const uint32_t *in; /* (planes, rank, right) */
    int rank, right, d3;
    int planes;
    bool rounds; /* stochastically, to a 16-bit format */
    factor_reader v, u;
    finish_call<O, 2> call;
};

/* Bytes of shared memory: the factor, the input, and per warpgroup rows of out and sums stored
 * apart from them. */
struct planes_layout {
    int factor, in, rows, sums, all;
};

template <class O>
static __host__ __device__ inline planes_layout layout_of(int rank, int right, int d3) {
    planes_layout at;
    at.factor = (RIGHT_STEPS + 3) / 4 * (N * 128);
    at.in = rank * right * (int)sizeof(uint32_t);
    at.rows = TILE * d3 * (int)sizeof(number<O, 2>);
    at.sums = is_16bit<O> ? TILE * d3 * (int)sizeof(float2) : 0;
    at.all = 1024 + at.factor + 2 * TRANSPOSED_BYTES + at.in + GROUPS * (at.rows + at.sums) +
             BARRIERS * (int)sizeof(uint64_t);
    return at;
}

/* Rows m and m + 32 of V: numbers 8 s + t and 8 s + t + 4. */
static __device__ inline void load_rows(const factor_reader &v, int m, int t,
                                        uint4 (&to)[RANK_STEPS]) {
#pragma unroll
    for (int s = 0; s < RANK_STEPS; s++) {
        to[s] = make_uint4(half_factor_at(v, m, 8 * s + t), half_factor_at(v, m + 32, 8 * s + t),
                           half_factor_at(v, m, 8 * s + t + 4),
                           half_factor_at(v, m + 32, 8 * s + t + 4));
    }
}

/* U^T as right factor. */
static __device__ inline void store_factor(const factor_reader &u, char *factor) {
    wg_zero<N>(factor, (RIGHT_STEPS + 3) / 4 * 32);
    __syncthreads();
    for_each_number(u,
                    [&](int i, int j, float2 entry) { put_half_number<N>(factor, i, j, entry); });
}

/* T as left factor. */
static __device__ inline void take_rows(const float (&sum)[TRANSPOSED_N / 2],
                                        uint4 (&to)[RIGHT_STEPS]) {
#pragma unroll
    for (int s = 0; s < RIGHT_STEPS; s++) {
        float eight[8];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            eight[e] = 8 * s + e < TRANSPOSED_N / 2 ? sum[8 * s + e] : 0.0f;
        }
        to[s] = wg_half_factor(eight, 0);
        wg_hold(to[s]);
    }
}

template <class O>
static __global__ void __launch_bounds__(GROUPS *WG_THREADS, 1)
    expand_planes(const __grid_constant__ planes_task<O> task) {
    extern __shared__ char shared[];
    const finish_call<O, 2> &call = task.call;
    if (__syncthreads_or(call.guard && *call.guard != 0)) {
        return;
    }
    const planes_layout at = layout_of<O>(task.rank, task.right, task.d3);
    const int group = (int)threadIdx.x / WG_THREADS, thread = (int)threadIdx.x % WG_THREADS;
    const int warp = thread / 32, lane = thread % 32, t = lane % 4, m = lane / 4 * 4 + warp;
    char *factor = shared + (1024 - shared_at(shared) % 1024) % 1024;
    char *transposed = factor + at.factor, *in = transposed + 2 * TRANSPOSED_BYTES;
    char *own = in + at.in + group * (at.rows + at.sums);
    number<O, 2> *w = reinterpret_cast<number<O, 2> *>(own);
    float2 *sums = reinterpret_cast<float2 *>(is_16bit<O> ? own + at.rows : own);
    uint64_t *in_full = reinterpret_cast<uint64_t *>(in + at.in + GROUPS * (at.rows + at.sums));
    uint64_t *transposed_full = in_full + 1, *full = in_full + 2 + group;
    const int entries = TILE * task.d3, stride = (int)gridDim.x;
    const float alpha = call.alpha_now(), beta = call.beta_now();
    number<O, 2> *out = call.out + call.begin;
    const tg_rng rounding = call.rounding_now();

    const auto fetch_in = [&](int plane) {
        barrier_expect(in_full, at.in);
        copy_bulk(in, task.in + (int64_t)plane * task.rank * task.right, at.in, in_full);
    };
    const auto fetch = [&](int tile) {
        barrier_expect(full, at.rows);
        copy_once(own, out + (int64_t)tile * entries, at.rows, full, once_policy());
    };
    if (threadIdx.x == 0) {
        barrier_init(in_full, 1);
        barrier_init(transposed_full, GROUPS * WG_THREADS);
        for (int g = 0; g < GROUPS; g++) {
            barrier_init(in_full + 2 + g, 1);
        }
        barriers_made();
    }
    uint4 v[RANK_STEPS], a[RIGHT_STEPS];
    load_rows(task.v, group * TILE + m, t, v);
    wg_zero<TRANSPOSED_N>(transposed, 2 * ((RANK_STEPS + 3) / 4 * 32));
    store_factor(task.u, factor);
    wg_publish();
    __syncthreads();
    pdl_wait();
    pdl_launch_dependents();
    const float2 *values = reinterpret_cast<const float2 *>(call.values);
    const float by = alpha * (float)call.lambda;
    const int64_t first_word = call.begin / 64;
    const auto turn_plane_of = [&](int round) {
        barrier_wait(in_full, round % 2);
        transpose_rows<RANK_STEPS>(reinterpret_cast<const uint32_t *>(in), task.rank, task.right,
                                   transposed + round % 2 * TRANSPOSED_BYTES);
        wg_publish();
        barrier_arrive(transposed_full);
    };
    const auto multiply_transposed = [&](int round, float(&sum)[TRANSPOSED_N / 2]) {
        const uint64_t plane_at = wg_matrix(transposed + round % 2 * TRANSPOSED_BYTES);
        wg_begin();
#pragma unroll
        for (int s = 0; s < RANK_STEPS; s++) {
            wg_half_product(sum, v[s], wg_rows<TRANSPOSED_N>(plane_at, s), s > 0);
        }
        wg_end();
    };
    const auto load_words = [&](int plane, kept_words *words) {
        words->load(call.kept, first_word + ((int64_t)plane * GROUPS + group) * task.d3, task.d3,
                    warp, lane);
    };
    kept_words words = {}, next = {};
    if (threadIdx.x == 0) { /* every block has a plane */
        fetch_in((int)blockIdx.x);
    }
    if (thread == 0) {
        fetch((int)blockIdx.x * GROUPS + group);
    }
    if (values) {
        load_words((int)blockIdx.x, &words);
    }
    turn_plane_of(0);
    barrier_wait(transposed_full, 0);
    if (threadIdx.x == 0 && (int)blockIdx.x + stride < task.planes) {
        fetch_in((int)blockIdx.x + stride);
    }
    {
        float sum[TRANSPOSED_N / 2];
        multiply_transposed(0, sum);
        wg_wait<0>();
        wg_fence(sum);
        take_rows(sum, a);
    }
    const uint64_t matrix = wg_matrix(factor);
    for (int plane = (int)blockIdx.x, round = 0; plane < task.planes; plane += stride, round++) {
        const int tile = plane * GROUPS + group, next_plane = plane + stride;
        const int64_t begin = (int64_t)tile * entries;
        const bool more = next_plane < task.planes;
        if (thread == 0 && more) {
            prefetch_bulk(out + ((int64_t)next_plane * GROUPS + group) * entries, at.rows);
        }
        kept_values kept;
        {
            float sum[N / 2];
            wg_begin();
#pragma unroll
            for (int s = 0; s < RIGHT_STEPS; s++) {
                wg_half_product(sum, a[s], wg_rows<N>(matrix, s), s > 0);
            }
            wg_end();
            if (values) {
                kept.load(words, values, warp, lane);
            }
            if (more) {
                turn_plane_of(round + 1);
            }
            wg_wait<0>();
            wg_fence(sum);
            barrier_wait(full, round % 2);
            update_rows<N>(sum, alpha, beta, m, t, task.d3, w, sums);
        }
        if (more) {
            barrier_wait(transposed_full, (round + 1) % 2);
        }
        if (threadIdx.x == 0 && next_plane + stride < task.planes) {
            fetch_in(next_plane + stride);
        }
        float sum[TRANSPOSED_N / 2]; /* of the next plane; unused after the last one */
        multiply_transposed(round + 1, sum);
        if (values) {
            if (more) {
                load_words(next_plane, &next);
            }
            wg_sync();
            kept.add_loaded(by, sums);
            for (int first = 32 * VALUES_AHEAD; first < kept.total; first += 32 * VALUES_AHEAD) {
                kept.load_from(first, words, values, warp, lane);
                kept.add_loaded(by, sums);
            }
            words = next;
        }
        if constexpr (is_16bit<O>) {
            wg_sync();
            narrow_tile(rounding, task.rounds, call.begin + begin, entries, thread, sums, w);
        }
        wg_publish();
        wg_sync();
        if (thread == 0) {
            send_once(out + begin, own, at.rows, once_policy());
            if (more) {
                sent_bulk();
                fetch(tile + stride * GROUPS);
            }
        }
        wg_wait<0>();
        wg_fence(sum);
        take_rows(sum, a);
    }
    if (thread == 0) { /* keep shared memory until the copy has read it */
        sent_bulk();
    }
}

/* ---- launches ---- */

bool cuda_sm90_expand_planes_fits(const tg_backend *be, const tg_expand *op,
                                  const cuda_plan *plan) {
    const plane_pass &s = plan->planes;
    const int rank = (int)plan->step[1].factor.rank;
    return !plan->split && s.d2 == ROWS && s.right <= RIGHT && rank <= 8 * RANK_STEPS &&
           cuda_sm90_expand_fits(be, op, plan) &&
           (op->out_store == TG_STORE_FULL ? layout_of<float>(rank, s.right, s.d3).all
                                           : layout_of<__nv_bfloat16>(rank, s.right, s.d3).all) <=
               cuda_state_of(be)->max_shared;
}

template <class O>
tg_status cuda_sm90_expand_planes(tg_backend *be, const cuda_plan *plan, bool rounds,
                                  const void *in, const finish_call<O, 2> *call) {
    const plane_pass &s = plan->planes;
    planes_task<O> task = planes_task<O>();
    task.in = static_cast<const uint32_t *>(in);
    task.rank = (int)plan->step[1].factor.rank;
    task.right = s.right;
    task.d3 = s.d3;
    task.planes = (int)((call->end - call->begin) / ((int64_t)ROWS * s.d3));
    task.rounds = rounds;
    task.v = reader_of(&plan->step[1].factor);
    task.u = reader_of(&plan->step[0].factor);
    task.call = *call;
    return launch_chained(be, "expanding the last two modes", plan->chained, expand_planes<O>,
                          task.planes, GROUPS * WG_THREADS,
                          layout_of<O>(task.rank, s.right, s.d3).all, task);
}

template tg_status cuda_sm90_expand_planes(tg_backend *, const cuda_plan *, bool, const void *,
                                           const finish_call<float, 2> *);
template tg_status cuda_sm90_expand_planes(tg_backend *, const cuda_plan *, bool, const void *,
                                           const finish_call<__nv_bfloat16, 2> *);
