/* A step of Adam for a tensor projected in mode 0, between the last product of the projection and
 * the first one of the expansion:
 *
 *   g[j][c] = sum over i of conj(U)[i][j] in[i][c],  Adam's m, v and u of it,
 *   in[i][c] = sum over j of U[i][j] u[j][c],
 *
 * for every column c; the core is in registers only. A warpgroup has 64 columns, as in
 * mode_columns.cu. A thread's results of the first product, updated by Adam, are its left factor of
 * the second one (tile/warpgroup.cuh), which takes 64 numbers at a time. HALF: the second product
 * and its result are complex f16 (half_columns.cu). Kept entries, which belong to no column, are
 * updated after the tiles, most of them by warpgroups that have a tile less than the others. */
#include "backend/cuda/optim/adam.cuh"
#include "backend/cuda/sm90/mode_steps.cuh"

enum {
    PACKS_IN_FLIGHT = 4, /* packs of kept entries that a thread loads at once.. */
    VALUES_PER_MOVE =
        2 * PACKS_IN_FLIGHT * WG_THREADS /* ..and entries that a warpgroup updates at once */
};

/* A step of the ring is 8 numbers; all but one in flight. */
static constexpr __host__ __device__ int ring_of(int dim) {
    return dim <= 64 ? 8 : 4;
}
static constexpr __host__ __device__ int groups_of(int dim) {
    return dim <= 64 ? 3 : 2;
}

/* Numbers per piece of the second product: its sums reuse the registers of the first one's. */
static constexpr __host__ __device__ int back_of(int dim) {
    return dim <= 64 ? 32 : 64;
}

struct core_adam_task {
    mode_call call; /* `in` and `out` are the same, or out is in f16 */
    float2 *m;      /* (rank, row) */
    float *v;
    adam_step step;
    adam_arrays<float, float, float, float> values; /* of step.n entries */
    int per_tile; /* moves of VALUES_PER_MOVE entries in the time of a tile */
};

/* Offsets of U: parts of the factor for the projection, then for the expansion, back_of numbers at
 * a time; in f16 both parts of the first half of these, then of the second half. */
struct core_adam_layout {
    int part, back, back_part, ring, all;
};

template <int N, int DIM> static __host__ __device__ inline core_adam_layout layout_of(int dim) {
    core_adam_layout at = {};
    at.part = part_bytes<N>(dim);
    at.back = 2 * at.part;
    at.back_part = part_bytes<back_of(DIM)>(N); /* padded, as factors are */
    at.ring = at.back + DIM / back_of(DIM) * 2 * at.back_part;
    at.all = 1024 + at.ring + groups_of(DIM) * 4 * ring_of(DIM) * STEP_BYTES;
    return at;
}

template <int N, int BACK, bool HALF>
static __device__ inline void store_factor(const mode_call &s, const core_adam_layout &at,
                                           char *to) {
    for (int e = (int)threadIdx.x; e < at.ring / 16; e += (int)blockDim.x) {
        reinterpret_cast<float4 *>(to)[e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    __syncthreads();
    for_each_number<N <= 64 ? 6 : 8>(s.u, [&](int i, int j, float2 u) {
        char *there = to + wg_at<N>(j, i), *back = to + at.back;
        *reinterpret_cast<float *>(there) = to_tf32(u.x);
        *reinterpret_cast<float *>(there + at.part) = to_tf32(u.y);
        if constexpr (HALF) {
            put_half_number<BACK>(back + i / (BACK / 2) * at.back_part, i % (BACK / 2),
                                  row_of_channel(j), u);
        } else {
            back += i / BACK * 2 * at.back_part + wg_at<BACK>(i % BACK, row_of_channel(j));
            *reinterpret_cast<float *>(back) = to_tf32(u.x);
            *reinterpret_cast<float *>(back + at.back_part) = to_tf32(u.y);
        }
    });
}

/* ---- moments ---- */

/* Addresses of the moments of two neighbours in a row of the core; WIDE: both at once. A missing
 * neighbour is read from another address and not written. */
template <bool WIDE> struct moments_at {
    float2 *m;
    float *v;
    int first, second;
    bool has_first, has_second;

    __device__ moments_at(const core_adam_task &task, int c)
        : m(task.m), v(task.v), first(in_core(task.call, c, 0)),
          second(in_core(task.call, c + 1, 0)), has_first(first >= 0), has_second(second >= 0) {
        first = max(first, 0);
        second = max(second, 0);
    }
    __device__ void load(int row, float (&to_m)[4], float (&to_v)[2]) const {
        if constexpr (WIDE) {
            const float4 x = __ldcs(reinterpret_cast<const float4 *>(m + (row + first)));
            const float2 y = __ldcs(reinterpret_cast<const float2 *>(v + (row + first)));
            to_m[0] = x.x, to_m[1] = x.y, to_m[2] = x.z, to_m[3] = x.w;
            to_v[0] = y.x, to_v[1] = y.y;
        } else {
            const float2 x = __ldcs(m + (row + first)), y = __ldcs(m + (row + second));
            to_m[0] = x.x, to_m[1] = x.y, to_m[2] = y.x, to_m[3] = y.y;
            to_v[0] = __ldcs(v + (row + first)), to_v[1] = __ldcs(v + (row + second));
        }
    }
    __device__ void store(int row, bool exists, const float (&x)[4], const float (&y)[2]) const {
        if (WIDE && exists && has_first) {
            __stcs(reinterpret_cast<float4 *>(m + (row + first)),
                   make_float4(x[0], x[1], x[2], x[3]));
            __stcs(reinterpret_cast<float2 *>(v + (row + first)), make_float2(y[0], y[1]));
        }
        if (!WIDE && exists && has_first) {
            __stcs(m + (row + first), make_float2(x[0], x[1]));
            __stcs(v + (row + first), y[0]);
        }
        if (!WIDE && exists && has_second) {
            __stcs(m + (row + second), make_float2(x[2], x[3]));
            __stcs(v + (row + second), y[1]);
        }
    }
};

/* As update_moments, except that the direction is rounded to ten bits: the root and the inverse are
 * single approximate instructions. */
template <bool HALF>
static __device__ inline void advance_pair(const adam_rates<float> &r, float re, float im,
                                           float *m_re, float *m_im, float *v, float *u_re,
                                           float *u_im) {
    const float a = r.scale * re, b = r.scale * im;
    *v = r.beta2 * *v + r.c2 * (a * a + b * b);
    *m_re = r.beta1 * *m_re + r.c1 * a;
    *m_im = r.beta1 * *m_im + r.c1 * b;
    float root, inverse;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(*v));
    asm("rcp.approx.f32 %0, %1;" : "=f"(inverse) : "f"(root + r.eps));
    *u_re = HALF ? *m_re * inverse : to_tf32(*m_re * inverse);
    *u_im = HALF ? *m_im * inverse : to_tf32(*m_im * inverse);
}

/* The direction of 8 K numbers and two columns as left factor of the second product. */
template <int K, bool HALF> struct direction;

template <int K> struct direction<K, false> {
    float4 x[K], y[K]; /* real and imaginary parts */

    /* Of number 2t or 2t + 1 of every 8: both parts in the first column, then in the second. */
    __device__ void put(int r, const float (&u)[4]) {
        float4 &re = x[r / 2], &im = y[r / 2];
        (r % 2 == 0 ? re.x : re.z) = u[0], (r % 2 == 0 ? re.y : re.w) = u[2];
        (r % 2 == 0 ? im.x : im.z) = u[1], (r % 2 == 0 ? im.y : im.w) = u[3];
    }
    __device__ void hold() {
#pragma unroll
        for (int k = 0; k < K; k++) {
            wg_hold(x[k]);
            wg_hold(y[k]);
        }
    }
    /* Step k of the product with both parts of U. */
    template <int D>
    __device__ void multiply(int k, float (&re)[D], float (&im)[D], uint64_t re_of_u,
                             uint64_t im_of_u) const {
        wg_product(re, x[k], re_of_u, k > 0);
        wg_product(im, y[k], re_of_u, k > 0);
        wg_minus_product(re, y[k], im_of_u, true);
        wg_product(im, x[k], im_of_u, true);
    }
};

template <int K> struct direction<K, true> {
    uint4 x[K];

    __device__ void put(int r, const float (&u)[4]) {
        uint4 &to = x[r / 2];
        (r % 2 == 0 ? to.x : to.z) = half_pair(u[0], u[1]);
        (r % 2 == 0 ? to.y : to.w) = half_pair(u[2], u[3]);
    }
    __device__ void hold() {
#pragma unroll
        for (int k = 0; k < K; k++) {
            wg_hold(x[k]);
        }
    }
    /* With both halves of its numbers. */
    template <int D>
    __device__ void multiply(int k, float (&low)[D], float (&high)[D], uint64_t low_of_u,
                             uint64_t high_of_u) const {
        wg_half_product(low, x[k], low_of_u, k > 0);
        wg_half_product(high, x[k], high_of_u, k > 0);
    }
};

/* Applies Adam to the result of the first product: its direction, 0 if a column does not belong to
 * the core. Numbers past the last one are multiplied by 0. */
template <int N, bool WIDE, bool HALF>
static __device__ inline void move_core(const core_adam_task &task, const adam_rates<float> &rates,
                                        int64_t first, int lane, const float (&re)[N / 2],
                                        const float (&im)[N / 2], direction<N / 8, HALF> *to) {
    constexpr int ROWS = N / 4; /* of a thread: numbers 2t, 2t + 1, 2t + 8, .. */
    constexpr int AHEAD = N > 48 ? 8 : WIDE && HALF ? 6 : 4; /* prefetched moments */
    const mode_call &s = task.call;
    const moments_at<WIDE> moments(task, (int)first + lane / 4 * 2);
    const int row = (int)s.row, made = s.made, number = lane % 4 * 2;
    const auto number_of = [&](int r) { return number + r / 2 * 8 + r % 2; };
    const auto row_of = [&](int r) { return min(number_of(r), made - 1) * row; };
    float m[AHEAD][4], v[AHEAD][2];
#pragma unroll
    for (int r = 0; r < AHEAD; r++) {
        moments.load(row_of(r), m[r], v[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int d = r / 2 * 4 + r % 2, q = r % AHEAD;
        float u[4];
        advance_pair<HALF>(rates, re[d], im[d], &m[q][0], &m[q][1], &v[q][0], &u[0], &u[1]);
        advance_pair<HALF>(rates, re[d + 2], im[d + 2], &m[q][2], &m[q][3], &v[q][1], &u[2], &u[3]);
        moments.store(row_of(r), number_of(r) < made, m[q], v[q]);
        if (r % AHEAD == AHEAD - 1) {
            keep_order(lane);
        }
        if (r + AHEAD < ROWS) {
            moments.load(row_of(r + AHEAD), m[q], v[q]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u[e] = (e < 2 ? moments.has_first : moments.has_second) ? u[e] : 0.0f;
        }
        to->put(r, u);
    }
}

/* ---- the expansion ---- */

template <int D>
static __device__ inline void store_back(const mode_call &s, int64_t first, int piece, int lane,
                                         const float (&re)[D], const float (&im)[D]) {
    const int64_t c = first + lane / 4 * 2;
    const int number = piece * 2 * D + lane % 4 * 2;
    if (c >= s.n) {
        return;
    }
    float *to = s.out + c + number * s.out_number;
#pragma unroll
    for (int j = 0; j < D / 4; j++, to += 8 * s.out_number) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (number + 8 * j + e < s.summed) {
                float *row = to + e * s.out_number;
                store_two(row, re[4 * j + e], re[4 * j + 2 + e]);
                store_two(row + s.out_part, im[4 * j + e], im[4 * j + 2 + e]);
            }
        }
    }
}

/* Numbers 4j + t from `number` on, in f16. */
template <int D>
static __device__ inline void store_half(const mode_call &s, int64_t first, int number, int lane,
                                         const float (&sum)[D]) {
    const int64_t c = first + lane / 4 * 2;
    number += lane % 4;
    if (c >= s.n) {
        return;
    }
    uint32_t *to = s.half_out + number * s.n + c;
#pragma unroll
    for (int j = 0; j < D / 4; j++, to += 4 * s.n) {
        if (number + 4 * j < s.summed) {
            *reinterpret_cast<uint2 *>(to) = make_uint2(half_pair(sum[4 * j], sum[4 * j + 1]),
                                                        half_pair(sum[4 * j + 2], sum[4 * j + 3]));
        }
    }
}

/* The direction times U. HALF: x and y are the sums of both halves of a piece. */
template <int PIECES, bool HALF, int K, int D>
static __device__ inline void expand_mode(const mode_call &s, const core_adam_layout &at,
                                          const char *u, int64_t first, int lane,
                                          direction<K, HALF> &by, float (&x)[D], float (&y)[D]) {
    constexpr int BACK = 2 * D;
    by.hold();
#pragma unroll 1
    for (int piece = 0; piece < PIECES; piece++) {
        const uint64_t one = wg_matrix(u + at.back + piece * 2 * at.back_part);
        const uint64_t other = wg_matrix(u + at.back + (piece * 2 + 1) * at.back_part);
        wg_begin();
#pragma unroll
        for (int k = 0; k < K; k++) {
            by.multiply(k, x, y, wg_rows<BACK>(one, k), wg_rows<BACK>(other, k));
        }
        wg_end();
        wg_wait<0>();
        wg_fence(x);
        wg_fence(y);
        if constexpr (HALF) {
            store_half(s, first, piece * BACK, lane, x);
            store_half(s, first, piece * BACK + D, lane, y);
        } else {
            store_back(s, first, piece, lane, x, y);
        }
    }
}

/* ---- kept entries ---- */

/* Move number `run` of VALUES_PER_MOVE entries, by a warpgroup; issues the loads of all packs
 * before updating the first. */
static __device__ inline void move_values(const core_adam_task &task,
                                          const adam_rates<float> &rates, int64_t run) {
    const auto &a = task.values;
    const int thread = (int)threadIdx.x % WG_THREADS;
    const int64_t begin = run * VALUES_PER_MOVE;
    if (2 * task.step.packs < min(begin + VALUES_PER_MOVE, task.step.n)) {
        for (int64_t e = begin + thread; e < min(begin + VALUES_PER_MOVE, task.step.n);
             e += WG_THREADS) {
            update_span<2, span<1, false>>(rates, a, e);
        }
        return;
    }
    pack<float, 4> grad[PACKS_IN_FLIGHT], old[PACKS_IN_FLIGHT];
    pack<float, 2> squares[PACKS_IN_FLIGHT];
    const auto at = [&](int i) { return begin + 2 * (thread + i * WG_THREADS); };
#pragma unroll
    for (int i = 0; i < PACKS_IN_FLIGHT; i++) {
        if (at(i) < task.step.n) {
            grad[i] = load<4, true>(a.grad + 2 * at(i));
            old[i] = load<4, true>(a.m + 2 * at(i));
            squares[i] = load<2, true>(a.v + at(i));
        }
    }
#pragma unroll
    for (int i = 0; i < PACKS_IN_FLIGHT; i++) {
        if (at(i) < task.step.n) {
            pack<float, 4> u;
            update_moments<2>(rates, grad[i], old[i].at, squares[i].at, u.at);
            store<4, true>(a.m + 2 * at(i), old[i]);
            store<2, true>(a.v + at(i), squares[i]);
            store<4, true>(a.direction + 2 * at(i), u);
        }
    }
}

/* All kept entries: warpgroups that have a tile less than the others, from number `full` of `all`
 * on, take as many as fit into the time of a tile; the rest is shared equally. */
static __device__ inline void move_all_values(const core_adam_task &task,
                                              const adam_rates<float> &rates, int64_t number,
                                              int64_t full, int64_t all) {
    const int64_t runs = (task.step.n + VALUES_PER_MOVE - 1) / VALUES_PER_MOVE, idle = all - full;
    const int64_t before = min(runs, idle * task.per_tile);
    if (number >= full) {
        for (int64_t run = number - full; run < before; run += idle) {
            move_values(task, rates, run);
        }
    }
    for (int64_t run = before + number; run < runs; run += all) {
        move_values(task, rates, run);
    }
}

/* ---- the kernel ---- */

template <int N, int DIM, bool WIDE, bool HALF>
static __global__ void __launch_bounds__(groups_of(DIM) * WG_THREADS, 1)
    adam_in_core(const __grid_constant__ core_adam_task task) {
    constexpr int RING = ring_of(DIM);
    extern __shared__ char shared[];
    char *u = shared + (1024 - shared_at(shared) % 1024) % 1024;
    const mode_call &s = task.call;
    const core_adam_layout at = layout_of<N, DIM>(s.summed);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = (s.summed + 7) / 8;
    char *ring = u + at.ring + warp * (RING * STEP_BYTES);
    const int64_t tiles = (s.n + 63) / 64, stride = (int64_t)gridDim.x * groups_of(DIM);
    int64_t tile = blockIdx.x + (int64_t)gridDim.x * (warp / 4);

    step_reader<false> reader;
    int64_t fetched = tile; /* the tile being fetched, and its next step */
    int step = 0, slot = 0;
    const auto fetch = [&](int into) {
        if (fetched < tiles) {
            if (step == 0) {
                reader.begin(s, fetched * 64 + warp % 4 * 16, lane);
            }
            reader.fetch(s, step, ring + into * STEP_BYTES, lane);
            step = step + 1 == steps ? 0 : step + 1;
            fetched += step == 0 ? stride : 0;
        }
        copies_commit();
    };
    store_factor<N, back_of(DIM), HALF>(s, at, u);
    wg_publish();
    pdl_wait();
    pdl_launch_dependents();
    if (task.step.guard && *task.step.guard > 0) {
        return;
    }
    const auto rates = read_rates<float>(task.step);
    for (int ahead = 0; ahead < RING - 1; ahead++) {
        fetch(ahead);
    }
    __syncthreads();
    const uint64_t re_of_u = wg_matrix(u), im_of_u = wg_matrix(u + at.part);

    float4 next_re, next_im;
    const auto take = [&] {
        copies_wait_all_but<RING - 2>();
        __syncwarp();
        reader.take(ring + slot * STEP_BYTES, lane, &next_re, &next_im);
        fetch((slot + RING - 1) % RING); /* the buffer of the previous step */
        slot = (slot + 1) % RING;
    };
    if (tile < tiles) {
        take();
    }
    constexpr int BACK = back_of(DIM);
    float re[N / 2], im[N / 2]; /* of both products, to save registers */
    for (; tile < tiles; tile += stride) {
        const int64_t first = tile * 64 + warp % 4 * 16;
        direction<N / 8, HALF> by;
        for (int k = 0; k < steps; k++) {
            const step_factor<false> a(next_re, 1.0f), b(next_im, 1.0f), minus(next_re, -1.0f);
            wg_begin();
            a.multiply(re, wg_rows<N>(re_of_u, k), 0, k > 0);
            b.multiply(im, wg_rows<N>(re_of_u, k), 0, k > 0);
            b.multiply(re, wg_rows<N>(im_of_u, k), 0, true);
            minus.multiply(im, wg_rows<N>(im_of_u, k), 0, true);
            wg_end();
            take(); /* past the last tile: unused */
            wg_wait<0>();
        }
        wg_fence(re);
        wg_fence(im);
        move_core<N, WIDE>(task, rates, first, lane, re, im, &by);
        keep_order(lane);
        expand_mode<DIM / BACK>(s, at, u, first, lane, by, reinterpret_cast<float(&)[BACK / 2]>(re),
                                reinterpret_cast<float(&)[BACK / 2]>(im));
    }
    const int64_t full = tiles % stride; /* warpgroups with one more tile than the others */
    move_all_values(task, rates, tile % stride, full == 0 ? stride : full, stride);
}

/* ---- launches ---- */

/* Sizes of the core and of mode 0 with a kernel. */
static bool is_small(int dim, int rank) {
    return dim <= 64 && rank <= 48;
}
static bool is_large(int dim, int rank) {
    return dim <= 128 && rank <= 88;
}

/* Whether this kernel supports the update, sizes aside. */
static bool is_plain(const tg_compress *op, const tg_adam *adam) {
    return op->core && op->values && op->bitmap && op->masked && op->scale == 1.0 &&
           op->beta == 0.0 && adam->form == TG_STATE_FULL && !adam->split && !adam->counts &&
           !adam->weight && adam->direction && adam->grad_store == TG_STORE_FULL &&
           (uintptr_t)adam->m % sizeof(float2) == 0;
}

bool cuda_sm90_core_adam_fits(const tg_backend *be, const tg_compress *op, const tg_adam *adam,
                              const cuda_plan *plan) {
    const int dim = (int)plan->first.dim, rank = (int)plan->first.rank;
    if (!is_plain(op, adam) || plan->real != TG_F32 || plan->parts != 2 || !plan->gathers ||
        plan->steps == 0 || plan->split || plan->first.own != CUDA_OWN_DIRECT ||
        !is_large(dim, rank)) {
        return false;
    }
    const int64_t size = rank * (plan->columns / plan->padded * plan->block);
    const int64_t before =
        static_cast<const float2 *>(op->core) - static_cast<const float2 *>(adam->grad);
    const int needed =
        is_small(dim, rank) ? layout_of<48, 64>(dim).all : layout_of<88, 128>(dim).all;
    return size <= INT32_MAX && (before == 0 || before + size == adam->n) &&
           needed <= cuda_state_of(be)->max_shared;
}

template <int N, int DIM, bool WIDE, bool HALF>
static tg_status run(tg_backend *be, const core_adam_task &task) {
    const mode_call &s = task.call;
    return launch_chained(be, "moving a core", s.chained, adam_in_core<N, DIM, WIDE, HALF>,
                          (s.n + 63) / 64, groups_of(DIM) * WG_THREADS,
                          layout_of<N, DIM>(s.summed).all, task);
}

tg_status cuda_sm90_core_adam(tg_backend *be, const mode_call *call, const tg_adam *adam) {
    const int64_t size = call->made * call->row;
    const int64_t before = call->core - static_cast<const number<float, 2> *>(adam->grad);
    const int64_t values = before == 0 ? size : 0; /* offset of the values */
    const bool is_half = call->half_out != NULL;
    core_adam_task task = core_adam_task();
    task.call = *call;
    task.m = static_cast<float2 *>(adam->m) + before;
    task.v = static_cast<float *>(adam->v) + before;
    task.step = cuda_adam_step(adam);
    task.values = {static_cast<const float *>(adam->grad) + 2 * values,
                   static_cast<float *>(adam->m) + 2 * values,
                   static_cast<float *>(adam->v) + values,
                   static_cast<float *>(adam->direction) + 2 * values, NULL};
    task.step.n = adam->n - size;
    task.step.packs = adam_packs<2>(task.values, task.step.n);
    /* bytes moved: 64 columns of `in`, out and moments; gradients, moments and directions */
    task.per_tile =
        WG_PIXELS * (call->summed * (is_half ? 12 : 16) + call->made * 24) / (VALUES_PER_MOVE * 40);
    const bool wide =
        call->block % 2 == 0 && (uintptr_t)task.m % 16 == 0 && (uintptr_t)task.v % 8 == 0;
    const auto run_sizes = [&](auto wide_tag, auto half_tag) {
        constexpr bool WIDE = decltype(wide_tag)::value, HALF = decltype(half_tag)::value;
        return is_small(call->summed, call->made) ? run<48, 64, WIDE, HALF>(be, task)
                                                  : run<88, 128, WIDE, HALF>(be, task);
    };
    using std::false_type, std::true_type;
    if (is_half) {
        return wide ? run_sizes(true_type(), true_type()) : run_sizes(false_type(), true_type());
    }
    return wide ? run_sizes(true_type(), false_type()) : run_sizes(false_type(), false_type());
}
