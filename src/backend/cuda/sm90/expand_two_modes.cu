/* The last two modes on the way back and the update of a weight in one kernel; see compress.cuh.
 *
 *     T = V in,   out = beta out + alpha (T U^T + lambda values),
 *
 * of one plane after the other, whose 128 rows two warpgroups share. A warpgroup has its rows of V
 * in registers: Re V and Im V as first factors of two products, with `in` as the second one, make
 * T, whose parts are in a thread's hands then, and which is the first factor of the next product.
 * What comes in lies the wrong way round for a product: all warps turn the next plane while the
 * last product of this one runs. The rest is as in expand_last_mode.cu, rows of out and their
 * numbers included. Where there is room for one turned plane only, warpgroups wait for each other
 * before they turn the next one. */
#include "backend/cuda/sm90/expand_tile.cuh"
#include "backend/cuda/sm90/turned_rows.cuh"

enum {
    GROUPS = 2,
    ROWS = GROUPS * TILE,       /* of a plane of out */
    N = 2 * PLANES_D3,          /* columns of out, in parts */
    RANK_STEPS = 11,            /* of 8 numbers of the last but one mode.. */
    RIGHT_STEPS = TURNED_STEPS, /* ..and of 4 of the last one */
    TURNED_BYTES = turned_bytes(RANK_STEPS),
    BARRIERS = 3 + GROUPS /* a plane has come in, been turned, been multiplied; rows of out */
};

/* Bulk copies of what should not push other things out of the L2. */
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

template <class O> struct planes_task {
    const float *in; /* (planes, part, rank, right) */
    int rank, right, d3;
    int planes;
    int turned;  /* how many turned planes there is room for */
    bool rounds; /* at random, to a 16-bit format */
    factor_reader v, u;
    finish_call<O, 2> call;
};

/* Bytes of shared memory: the factor, what comes in, and of a warpgroup rows of out and sums that
 * are not in them. */
struct planes_layout {
    int factor, in, rows, sums, all;
};

template <class O>
static __host__ __device__ inline planes_layout layout_of(int rank, int right, int d3, int turned) {
    planes_layout at;
    at.factor = (RIGHT_STEPS + 3) / 4 * (N * 128);
    at.in = 2 * rank * right * (int)sizeof(float);
    at.rows = TILE * d3 * (int)sizeof(number<O, 2>);
    at.sums = is_16bit<O> ? TILE * d3 * (int)sizeof(float2) : 0;
    at.all = 1024 + at.factor + turned * TURNED_BYTES + at.in + GROUPS * (at.rows + at.sums) +
             BARRIERS * (int)sizeof(uint64_t);
    return at;
}

/* Numbers 8 s + t and 8 s + t + 4 of rows m and m + 32 of V: their real parts, and imaginary ones.
 */
struct row_factor {
    float4 re[RANK_STEPS], im[RANK_STEPS];

    __device__ void load(const factor_reader &v, int m, int t) {
#pragma unroll
        for (int s = 0; s < RANK_STEPS; s++) {
            const float2 a = factor_at(v, m, 8 * s + t), b = factor_at(v, m + 32, 8 * s + t);
            const float2 c = factor_at(v, m, 8 * s + t + 4),
                         d = factor_at(v, m + 32, 8 * s + t + 4);
            re[s] = make_float4(a.x, b.x, c.x, d.x);
            im[s] = make_float4(a.y, b.y, c.y, d.y);
        }
    }
};

template <class O>
static __global__ void __launch_bounds__(GROUPS *WG_THREADS, 1) expand_planes(planes_task<O> task) {
    extern __shared__ char shared[];
    const finish_call<O, 2> &call = task.call;
    if (__syncthreads_or(call.guard && *call.guard != 0)) {
        return;
    }
    const planes_layout at = layout_of<O>(task.rank, task.right, task.d3, task.turned);
    const int group = (int)threadIdx.x / WG_THREADS, thread = (int)threadIdx.x % WG_THREADS;
    const int warp = thread / 32, lane = thread % 32, t = lane % 4, m = lane / 4 * 4 + warp;
    char *factor = shared + (1024 - shared_at(shared) % 1024) % 1024;
    char *turned = factor + at.factor, *in = turned + task.turned * TURNED_BYTES;
    char *own = in + at.in + group * (at.rows + at.sums);
    number<O, 2> *w = reinterpret_cast<number<O, 2> *>(own);
    float2 *sums = reinterpret_cast<float2 *>(is_16bit<O> ? own + at.rows : own);
    uint64_t *in_full = reinterpret_cast<uint64_t *>(in + at.in + GROUPS * (at.rows + at.sums));
    uint64_t *turned_full = in_full + 1, *turned_read = in_full + 2, *full = in_full + 3 + group;
    const int entries = TILE * task.d3, stride = (int)gridDim.x;
    const float alpha = call.alpha_now(), beta = call.beta_now();
    number<O, 2> *out = call.out + call.begin;
    const tg_rng rounding = call.rounding_now();

    const auto fetch_in = [&](int plane) {
        barrier_expect(in_full, at.in);
        copy_bulk(in, task.in + (int64_t)plane * 2 * task.rank * task.right, at.in, in_full);
    };
    const auto fetch = [&](int tile) {
        barrier_expect(full, at.rows);
        copy_once(own, out + (int64_t)tile * entries, at.rows, full, once_policy());
    };
    if (threadIdx.x == 0) {
        barrier_init(in_full, 1);
        barrier_init(turned_full, GROUPS * WG_THREADS);
        barrier_init(turned_read, GROUPS * WARPS);
        for (int g = 0; g < GROUPS; g++) {
            barrier_init(in_full + 3 + g, 1);
        }
        barriers_made();
    }
    row_factor v;
    v.load(task.v, group * TILE + m, t);
    wg_zero<TURNED_N>(turned, task.turned * ((RANK_STEPS + 3) / 4 * 32));
    lay_out_last<N, false>(task.u, 4 * RIGHT_STEPS, 2, 1, at.factor, factor);
    wg_publish();
    __syncthreads();
    kernel_before_wait();
    kernel_behind_go();
    const float2 *values = reinterpret_cast<const float2 *>(call.values);
    const float by = alpha * (float)call.lambda;
    const int64_t first_word = call.begin / 64;
    const auto turn_plane_of = [&](int round) {
        barrier_wait(in_full, round % 2);
        if (task.turned == 1 && round > 0) {
            barrier_wait(turned_read, (round - 1) % 2);
        }
        turn_rows<RANK_STEPS>(reinterpret_cast<const float *>(in), task.rank, task.right,
                              turned + (task.turned == 1 ? 0 : round % 2 * TURNED_BYTES));
    };
    kept_words words = {}, next = {};
    if (threadIdx.x == 0) { /* there is a plane for every block */
        fetch_in((int)blockIdx.x);
    }
    if (thread == 0) {
        fetch((int)blockIdx.x * GROUPS + group);
    }
    if (values) {
        next.load(call.kept, first_word + ((int64_t)blockIdx.x * GROUPS + group) * task.d3, task.d3,
                  warp, lane);
    }
    turn_plane_of(0);
    wg_publish();
    barrier_arrive(turned_full);
    const uint64_t matrix = wg_matrix(factor);
    for (int plane = (int)blockIdx.x, round = 0; plane < task.planes; plane += stride, round++) {
        const int tile = plane * GROUPS + group, behind = plane + stride;
        const int64_t begin = (int64_t)tile * entries;
        const bool more = behind < task.planes;
        const uint64_t plane_at =
            wg_matrix(turned + (task.turned == 1 ? 0 : round % 2 * TURNED_BYTES));
        barrier_wait(turned_full, round % 2);
        if (threadIdx.x == 0 && more) {
            fetch_in(behind);
        }
        float4 a[RIGHT_STEPS];
        {
            float by_re[TURNED_N / 2], by_im[TURNED_N / 2];
            wg_begin();
#pragma unroll
            for (int s = 0; s < RANK_STEPS; s++) {
                wg_product(by_re, v.re[s], wg_rows<TURNED_N>(plane_at, s), s > 0);
                wg_product(by_im, v.im[s], wg_rows<TURNED_N>(plane_at, s), s > 0);
            }
            wg_end();
            if (thread == 0 && round > 0) {
                sent_bulk();
                fetch(tile);
            }
            words = next;
            if (values && more) {
                next.load(call.kept, first_word + ((int64_t)behind * GROUPS + group) * task.d3,
                          task.d3, warp, lane);
            }
            wg_wait<0>();
            wg_fence(by_re);
            wg_fence(by_im);
#pragma unroll
            for (int s = 0; s < RIGHT_STEPS; s++) {
                const float *re = by_re + 4 * s, *im = by_im + 4 * s;
                a[s] = make_float4(to_tf32(re[0] - im[1]), to_tf32(re[2] - im[3]),
                                   to_tf32(re[1] + im[0]), to_tf32(re[3] + im[2]));
                wg_hold(a[s]);
            }
        }
        warp_arrives(turned_read);
        float sum[N / 2];
        wg_begin();
#pragma unroll
        for (int s = 0; s < RIGHT_STEPS; s++) {
            wg_product(sum, a[s], wg_rows<N>(matrix, s), s > 0);
        }
        wg_end();
        kept_values kept;
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
        if (values) {
            wg_sync();
            kept.add_loaded(by, sums);
            for (int first = 32 * AHEAD; first < kept.total; first += 32 * AHEAD) {
                kept.load_from(first, words, values, warp, lane);
                kept.add_loaded(by, sums);
            }
        }
        if constexpr (is_16bit<O>) {
            wg_sync();
            narrow_tile(rounding, task.rounds, call.begin + begin, entries, thread, sums, w);
        }
        wg_publish();
        barrier_arrive(turned_full);
        wg_sync();
        if (thread == 0) {
            send_once(out + begin, own, at.rows, once_policy());
        }
    }
    if (thread == 0) { /* shared memory is there until it has been read */
        sent_bulk();
    }
}

/* ---- launches ---- */

/* How many turned planes there is room for. */
static int turned_for(const tg_backend *be, const cuda_plan *plan, tg_storage store) {
    const cuda_planes &s = plan->planes;
    int most = 0, turned = 2;
    if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                               cuda_state_of(be)->device) != cudaSuccess) {
        return 0;
    }
    const auto bytes = [&] {
        const int rank = (int)plan->step[1].factor.rank;
        return store == TG_STORE_FULL ? layout_of<float>(rank, s.right, s.d3, turned).all
                                      : layout_of<__nv_bfloat16>(rank, s.right, s.d3, turned).all;
    };
    while (turned > 0 && bytes() > most) {
        turned--;
    }
    return turned;
}

bool cuda_sm90_expand_planes_fits(const tg_backend *be, const tg_expand *op,
                                  const cuda_plan *plan) {
    const cuda_planes &s = plan->planes;
    return !plan->split && s.d2 == ROWS && s.right <= 4 * RIGHT_STEPS &&
           plan->step[1].factor.rank <= 8 * RANK_STEPS && cuda_sm90_expand_fits(be, op, plan) &&
           turned_for(be, plan, op->out_store) > 0;
}

template <class O>
tg_status cuda_sm90_expand_planes(tg_backend *be, const cuda_plan *plan, bool rounds,
                                  const void *in, const finish_call<O, 2> *call) {
    const cuda_planes &s = plan->planes;
    planes_task<O> task = planes_task<O>();
    task.in = static_cast<const float *>(in);
    task.rank = (int)plan->step[1].factor.rank;
    task.right = s.right;
    task.d3 = s.d3;
    task.planes = (int)((call->end - call->begin) / ((int64_t)ROWS * s.d3));
    task.turned = turned_for(be, plan, is_16bit<O> ? TG_STORE_BF16 : TG_STORE_FULL);
    task.rounds = rounds;
    task.v = reader_of(&plan->step[1].factor);
    task.u = reader_of(&plan->step[0].factor);
    task.call = *call;
    return CUDA_CHECK(
        be,
        launch_chained(expand_planes<O>, shorter(task.planes, cuda_state_of(be)->processors),
                       GROUPS * WG_THREADS, layout_of<O>(task.rank, s.right, s.d3, task.turned).all,
                       cuda_stream(be), plan->chained, task),
        "expanding the last two modes");
}

template tg_status cuda_sm90_expand_planes(tg_backend *, const cuda_plan *, bool, const void *,
                                           const finish_call<float, 2> *);
template tg_status cuda_sm90_expand_planes(tg_backend *, const cuda_plan *, bool, const void *,
                                           const finish_call<__nv_bfloat16, 2> *);
