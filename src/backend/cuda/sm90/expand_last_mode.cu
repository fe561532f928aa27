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
    int factor, rows, all;
};

static __host__ __device__ inline expand_layout layout_of(int n, int right, int d3) {
    expand_layout at;
    at.factor = (2 * right + 31) / 32 * (n * 128);
    at.rows = TILE * d3 * (int)sizeof(float2);
    at.all = 1024 + at.factor + GROUPS * BUFFERS * (at.rows + (int)sizeof(uint64_t));
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

/* The values of kept entries of a tile, added to it: half a warp takes 512 of the set's entries. */
static __device__ inline void add_values(const expand_task &task, int64_t begin, float by,
                                         float2 *tile) {
    const kept_set &kept = task.call.kept;
    const int thread = (int)threadIdx.x % WG_THREADS, run = thread % 16, entries = TILE * task.d3;
    const float2 *values = reinterpret_cast<const float2 *>(task.call.values);
    const int64_t first = begin / 512, blocks = (begin + entries + 511) / 512 - first;
    for (int block = thread / 16; block / 2 * 2 < blocks; block += WG_THREADS / 16) {
        const int64_t here = first + (block < blocks ? block : 0), word = here * 8 + run / 2;
        const uint64_t bits = block < blocks && word < kept.count ? kept.words[word] : 0;
        const uint32_t own = (uint32_t)(bits >> (run % 2 * 32));
        uint32_t sum = (uint32_t)__popc(own);
#pragma unroll
        for (int d = 1; d < 16; d *= 2) {
            const uint32_t left = __shfl_up_sync(~0u, sum, d, 16);
            sum += run >= d ? left : 0;
        }
        const float2 *from = values + kept.ranks[here] + sum - __popc(own);
        const int at = (int)(here * 512 + run * 32 - begin);
        for (uint32_t mask = own; mask; mask &= mask - 1, from++) {
            const int e = at + __ffs((int)mask) - 1;
            if (e >= 0 && e < entries) {
                const float2 value = __ldcs(from);
                tile[e].x += by * value.x;
                tile[e].y += by * value.y;
            }
        }
    }
}

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
    rows_of_t<STEPS> rows;
    if (first < task.tiles) {
        rows.load(task, first, m, t);
        if (thread == 0) {
            fetch(first, 0);
        }
    }
    const uint64_t matrix = wg_matrix(factor);
    for (int tile = first, round = 0; tile < task.tiles; tile += stride, round++) {
        const int buffer = round % BUFFERS;
        float2 *w = reinterpret_cast<float2 *>(buffers + buffer * at.rows);
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
        const int64_t begin = (int64_t)tile * TILE * task.d3;
        if (call.values) {
            wg_sync();
            add_values(task, call.begin + begin, alpha * (float)call.lambda, w);
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
