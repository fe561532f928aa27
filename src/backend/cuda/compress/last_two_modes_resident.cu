/* The way back of the last two modes where the factors of both fit into shared memory;
 * last_two_modes.cuh and last_two_modes.cu have the products.
 *
 * As many blocks as run at once keep the factors. A block is two teams of warps that walk over
 * planes of their own and only wait for themselves, so that one multiplies while the other one
 * updates the weight; a warp takes 16 rows of a plane. What the first product leaves in the
 * registers of a lane is what the second one wants there as its left factor, if its k's 2t and
 * 2t + 1 are those of lane t. So C has been used up after the first product, and the next plane's
 * comes in during the second one, which updates the weight sixteen columns at a time: these are
 * turned within the warp, so that sixteen lanes hold neighbours. */
#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/compress/factor_fragments.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum {
    TEAMS = 2,   /* of a block */
    SHARE = 16,  /* rows of a warp */
    TOGETHER = 2 /* tiles of 8 columns */
};

/* Rows of a plane at most, and blocks that should share a multiprocessor. */
static constexpr int most_rows(int tiles) {
    return tiles == 3 ? 64 : PLANES_ROWS;
}
static constexpr int blocks_at_once(int tiles) {
    return tiles == 3 ? 2 : 1;
}

/* Reals from row to row of C, in which 4 rows by 8 columns lie in different banks. */
static constexpr __host__ __device__ int core_stride(int tiles) {
    return tiles == 3 ? 24 : 56;
}

/* Warps that share a plane. */
struct plane_team {
    int number;
    int threads, thread; /* its own, and this one of them */
    int shares;          /* warps */
};

static __device__ inline plane_team team_of(const cuda_planes &s) {
    const int shares = s.rows / SHARE, number = (int)threadIdx.x / (32 * shares);
    return {number, 32 * shares, (int)threadIdx.x - 32 * shares * number, shares};
}

/* Barriers 1 and 2; 0 is that of the whole block. */
static __device__ inline void wait_for_team(const plane_team &team) {
    if (team.number == 0) {
        asm volatile("bar.sync 1, %0;" ::"r"(team.threads) : "memory");
    } else {
        asm volatile("bar.sync 2, %0;" ::"r"(team.threads) : "memory");
    }
}

/* The second team begins its first product when the first one has ended its own, so that they do
 * different things from then on. */
static __device__ inline void let_first_go(const plane_team &team) {
    if (team.number == 1) {
        asm volatile("bar.sync 3, %0;" ::"r"(TEAMS * team.threads) : "memory");
    }
}
static __device__ inline void let_second_go(const plane_team &team) {
    if (team.number == 0) {
        asm volatile("bar.arrive 3, %0;" ::"r"(TEAMS * team.threads) : "memory");
    }
}

static __host__ __device__ inline int column_tiles(const cuda_planes &s) {
    return (s.d3 + 7) / 8;
}

/* Where everything begins in shared memory, in bytes: the fragments of both factors; and from
 * `teams` on, for each of them, C of its plane, (part, rows, stride), and the rank blocks that hold
 * the plane's entries: their runs, and what these are made from. Rows that fill up a plane have
 * runs, too, of no meaning. */
struct resident_layout {
    int steps; /* of 4 rows of C */
    int before, teams;
    int found, words, ranks, end; /* of a team */
};

static __host__ __device__ inline resident_layout layout_of(const cuda_planes &s, bool kept) {
    const int blocks = kept ? (s.d2 * s.d3 + 510) / 512 + 1 : 0;
    const int beyond = kept ? ((s.rows - s.d2) * s.d3 + 64) / 32 : 0;
    resident_layout at;
    at.steps = (s.r2 + 3) / 4;
    at.before = s.tiles * column_tiles(s) * 32 * (int)sizeof(float4);
    at.teams = at.before + s.rows / 16 * at.steps * 32 * (int)sizeof(float4);
    at.found = 2 * 4 * at.steps * core_stride(s.tiles) * (int)sizeof(float);
    at.words = at.found + (16 * blocks + beyond) * (int)sizeof(kept_run);
    at.ranks = at.words + blocks * 8 * (int)sizeof(uint64_t);
    at.end = (at.ranks + blocks * (int)sizeof(uint32_t) + 15) / 16 * 16;
    return at;
}

static int shared_bytes(const cuda_planes &s, bool kept) {
    const resident_layout at = layout_of(s, kept);
    return at.teams + TEAMS * at.end;
}

/* ---- fragments ---- */

/* U3 as right factor, per 8 k's and tile of 8 columns: {real parts of a lane's k's, imaginary parts
 * of them}. Number 2t + e of tile n of two is column 8n + 4e + t of the sixteen: see turn(). */
static __device__ inline float4 last_fragment(const factor_reader &f, int tiles, int e) {
    const int lane = e % 32, g = lane / 4, t = lane % 4;
    const int i = e / 32 % tiles * 8 + g % 2 * 4 + g / 2, j = e / 32 / tiles * 8 + 2 * t;
    const float2 u0 = factor_at(f, i, j), u1 = factor_at(f, i, j + 1);
    return make_float4(u0.x, u1.x, u0.y, u1.y);
}

static __global__ void write_fragments(cuda_planes s, factor_reader last, factor_reader before,
                                       int lasts, int befores, float4 *to_last, float4 *to_before) {
    const int e = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (e < lasts) {
        to_last[e] = last_fragment(last, column_tiles(s), e);
    }
    if (e < befores) {
        to_before[e] = left_fragment<false>(before, (s.r2 + 3) / 4, e);
    }
}

static float4 *last_of(const cuda_plan *plan, void *workspace) {
    return reinterpret_cast<float4 *>(const_cast<float2 *>(cuda_planes_last(plan, workspace)));
}

tg_status cuda_planes_expand_factors(tg_backend *be, const cuda_plan *plan, void *workspace) {
    const resident_layout at = layout_of(plan->planes, false);
    const int lasts = at.before / (int)sizeof(float4);
    const int befores = (at.teams - at.before) / (int)sizeof(float4);
    const unsigned blocks = (unsigned)((longer(lasts, befores) + 255) / 256);
    write_fragments<<<blocks, 256, 0, cuda_stream(be)>>>(
        plan->planes, reader_of(&plan->step[0].factor), reader_of(&plan->step[1].factor), lasts,
        befores, last_of(plan, workspace),
        const_cast<float4 *>(cuda_planes_before(plan, workspace)));
    return CUDA_LAUNCHED(be, "laying out factors");
}

/* ---- what comes in ---- */

/* `bytes`, a multiple of 16. */
static __device__ inline void fetch_fragments(const void *from, int bytes, char *to) {
    for (int e = 16 * (int)threadIdx.x; e < bytes; e += 16 * (int)blockDim.x) {
        copy_async<16>(to + e, static_cast<const char *>(from) + e);
    }
}

/* C of a plane, rows (part, j2) of `right` reals that follow each other. */
template <int TILES>
static __device__ inline void fetch_core(const cuda_planes &s, const plane_team &team, int steps,
                                         const float *from, float *core) {
    const int across = s.right / 4;
    const int next_row = team.threads / across, next = team.threads % across;
    int row = team.thread / across, place = team.thread % across;
    while (row < 2 * s.r2) {
        const int to = row < s.r2 ? row : row - s.r2 + 4 * steps;
        copy_async<16>(core + to * core_stride(TILES) + 4 * place,
                       from + row * s.right + 4 * place);
        const bool wraps = place + next >= across;
        row += next_row + wraps;
        place += wraps ? next - across : next;
    }
}

/* The rank blocks of an index set that hold the entries [begin, begin + entries). */
static __device__ inline void fetch_kept(const kept_set &kept, const plane_team &team,
                                         int64_t begin, int entries, uint64_t *words,
                                         uint32_t *ranks) {
    const int64_t first = begin / 512;
    const int blocks = ((int)(begin % 512) + entries + 511) / 512;
    for (int e = team.thread; e < 8 * blocks; e += team.threads) {
        const bool exists = first * 8 + e < kept.count;
        copy_async<8>(words + e, kept.words + (exists ? first * 8 + e : 0), exists);
        if (e < blocks) {
            copy_async<4>(ranks + e, kept.ranks + first + e);
        }
    }
}

/* Their runs; half a warp takes a block. */
static __device__ inline void find_kept(const plane_team &team, int64_t begin, int entries,
                                        const uint64_t *words, const uint32_t *ranks,
                                        kept_run *found) {
    const int blocks = ((int)(begin % 512) + entries + 511) / 512, run = team.thread % 16;
    for (int block = team.thread / 16; block / 2 * 2 < blocks; block += team.threads / 16) {
        const int from = min(block, blocks - 1);
        const uint32_t mask = (uint32_t)(words[8 * from + run / 2] >> (run % 2 * 32));
        const uint32_t own = (uint32_t)__popc(mask);
        uint32_t sum = own;
#pragma unroll
        for (int d = 1; d < 16; d *= 2) {
            const uint32_t left = __shfl_up_sync(~0u, sum, d, 16);
            sum += run >= d ? left : 0;
        }
        if (block < blocks) {
            found[16 * block + run] = {mask, ranks[block] + sum - own};
        }
    }
}

/* Their values follow each other; of a few entries beside them, too: no harm. */
static __device__ inline void prefetch_values(const number<float, 2> *values, int64_t begin,
                                              int entries, const kept_run *found, int lane) {
    const int ahead = (int)(begin % 512);
    prefetch_l2(values + found[ahead / 32].before,
                values + position_of(found[(ahead + entries - 1) / 32], 31), lane);
}

/* ---- products ---- */

/* Both parts of 16 rows of T. */
template <int TILES> struct rows_of_t { float sum[2][TILES][4]; };

/* `core` is of the plane, `left` are fragments of the rows. */
template <int TILES>
static __device__ inline rows_of_t<TILES> multiply_core(const float *core, int steps,
                                                        const float4 *left, int lane) {
    const int g = lane / 4, t = lane % 4, part = 4 * steps * core_stride(TILES);
    rows_of_t<TILES> rows = {};
#pragma unroll 2
    for (int k = 0; k < steps; k++) {
        const float4 re = left[k * 32 + lane], im = make_float4(-re.z, -re.w, re.x, re.y);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const float *at = core + (4 * k + t) * core_stride(TILES) + 8 * n + g;
            const float b0 = to_tf32(at[0]), b1 = to_tf32(at[part]);
            mma_tf32(rows.sum[0][n], re, b0, b1);
            mma_tf32(rows.sum[1][n], im, b0, b1);
        }
    }
#pragma unroll
    for (int e = 0; e < 8 * TILES; e++) {
        float *x = &rows.sum[e / (4 * TILES)][e / 4 % TILES][e % 4];
        *x = to_tf32(*x);
    }
    return rows;
}

/* Both parts of N tiles of columns of G; `right`: their fragments of the first 8 k's, `next` behind
 * each other. */
template <int N, int TILES>
static __device__ inline void multiply_rows(float (&sum)[N][2][4], const rows_of_t<TILES> &rows,
                                            const float4 *right, int next) {
#pragma unroll
    for (int k = 0; k < TILES; k++) {
        const float *x = rows.sum[0][k], *y = rows.sum[1][k];
        const float4 re = make_float4(x[0], x[2], x[1], x[3]);
        const float4 im = make_float4(y[0], y[2], y[1], y[3]);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float4 u = right[k * next + n * 32];
            mma_tf32(sum[n][0], re, u.x, u.y);
            mma_tf32(sum[n][1], re, u.z, u.w);
            mma_tf32(sum[n][0], im, -u.z, -u.w);
            mma_tf32(sum[n][1], im, u.x, u.y);
        }
    }
}

/* ---- the update ---- */

/* Lanes apart by `lane_bit` exchange: what the lower one has in `high` for what the upper one has
 * in `low`. */
static __device__ inline void exchange(float2 *low, float2 *high, int lane_bit, int lane) {
    const bool upper = lane & lane_bit;
    const float2 gives = upper ? *low : *high;
    const float2 gets = make_float2(__shfl_xor_sync(~0u, gives.x, lane_bit),
                                    __shfl_xor_sync(~0u, gives.y, lane_bit));
    *low = upper ? gets : *low;
    *high = upper ? *high : gets;
}

/* Pair n of lane 4 g + t is column 4 n + t of row g; after this pair q of lane 16 h + c is column c
 * of row 4 h + q. */
static __device__ inline void turn(float2 *pairs, int lane) {
    exchange(&pairs[0], &pairs[1], 4, lane);
    exchange(&pairs[2], &pairs[3], 4, lane);
    exchange(&pairs[0], &pairs[2], 8, lane);
    exchange(&pairs[1], &pairs[3], 8, lane);
}

/* What a warp updates: rows of a plane. */
template <class O> struct resident_share {
    number<O, 2> *out;     /* its first row */
    int64_t entry;         /* which it begins with */
    int rows, cols;        /* that there are */
    const kept_run *found; /* of the rank blocks.. */
    int at;                /* ..among whose entries out is this one */
    const number<float, 2> *values;
    float alpha, beta, lambda;
    const tg_rng *rounding;
};

/* The value of an entry, 0 if none is kept there; without a branch, so that several are on their
 * way at a time. */
template <bool WHOLE, class O>
static __device__ inline float2 value_of(const resident_share<O> &to, int entry, bool exists) {
    const kept_run run = to.found[(unsigned)entry / 32];
    const int wanted = exists && is_kept(run, entry % 32);
    const number<float, 2> *from = to.values + position_of(run, entry % 32);
    float2 x = make_float2(0.0f, 0.0f);
    if (WHOLE) {
        asm("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p ld.global.cs.v2.f32 {%0, %1}, [%2]; }"
            : "+f"(x.x), "+f"(x.y)
            : "l"(from), "r"(wanted));
    } else if (wanted) {
        x = make_float2(from->part[0], from->part[1]);
    }
    return x;
}

/* Entry i of a lane in N tiles: rows and columns behind its first one. */
template <int N> static constexpr __device__ int row_of(int i) {
    return N == 1 ? i / 2 * 8 : i / 4 * 8 + i % 4;
}
template <int N> static constexpr __device__ int col_of(int i) {
    return N == 1 ? i % 2 * 4 : 0;
}

/* Columns [8 first, 8 first + 8 N) of a share, as far as there are. */
template <int N, bool KEPT, bool WHOLE, bool ROUNDED, class O, int TILES>
static __device__ inline void update_tiles(const resident_share<O> &to,
                                           const rows_of_t<TILES> &rows, int first,
                                           const float4 *last, int next, int lane) {
    constexpr int ENTRIES = 4 * N;
    const int row = N == 1 ? lane / 4 : lane / 16 * 4;
    const int col = 8 * first + (N == 1 ? lane % 4 : lane % 16), at = row * to.cols + col;
    const int live = col < to.cols ? to.rows - row : 0; /* rows from `row` on */
    const int live4 = col + 4 < to.cols ? live : 0;
    const auto exists = [&](int i) { return row_of<N>(i) < (col_of<N>(i) == 0 ? live : live4); };
    number<O, 2> *out = to.out + at, old[ENTRIES] = {};
    if (to.beta != 0.0f) {
#pragma unroll
        for (int i = 0; i < ENTRIES; i++) {
            if (exists(i)) {
                old[i] = load_once(out + (unsigned)(row_of<N>(i) * to.cols + col_of<N>(i)), WHOLE);
            }
        }
    }
    float2 value[ENTRIES] = {};
#pragma unroll
    for (int i = 0; KEPT && i < ENTRIES; i++) {
        const int behind = row_of<N>(i) * to.cols + col_of<N>(i);
        value[i] = value_of<WHOLE>(to, to.at + at + behind, exists(i));
    }
    float sum[N][2][4] = {};
    multiply_rows(sum, rows, last + first * 32 + lane, next);
    float2 x[ENTRIES];
#pragma unroll
    for (int h = 0; h < 2; h++) { /* 8 rows each */
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            const int e = 2 * h + i % 2;
            x[h * 2 * N + i] = make_float2(sum[i / 2][0][e], sum[i / 2][1][e]);
        }
        if (N == TOGETHER) {
            turn(x + h * 2 * N, lane);
        }
    }
#pragma unroll
    for (int i = 0; i < ENTRIES; i++) {
        const number<float, 2> before = widen(old[i]);
        number<float, 2> y;
        y.part[0] = to.beta * before.part[0] + to.alpha * (x[i].x + to.lambda * value[i].x);
        y.part[1] = to.beta * before.part[1] + to.alpha * (x[i].y + to.lambda * value[i].y);
        const int behind = row_of<N>(i) * to.cols + col_of<N>(i);
        if (exists(i)) {
            store_once(out + (unsigned)behind,
                       rounded<ROUNDED, O, 2>(*to.rounding, to.entry + at + behind, y), WHOLE);
        }
    }
}

template <bool KEPT, bool WHOLE, bool ROUNDED, class O, int TILES>
static __device__ inline void update_share(const resident_share<O> &to,
                                           const rows_of_t<TILES> &rows, const float4 *right,
                                           int tiles, int lane) {
    int first = 0;
#pragma unroll 1
    for (; first + 1 < tiles; first += TOGETHER) {
        update_tiles<TOGETHER, KEPT, WHOLE, ROUNDED>(to, rows, first, right, tiles * 32, lane);
    }
    if (first < tiles) {
        update_tiles<1, KEPT, WHOLE, ROUNDED>(to, rows, first, right, tiles * 32, lane);
    }
}

/* ---- all of it ---- */

template <class O> struct resident_task {
    cuda_planes planes;
    int64_t count; /* of planes */
    const float *in;
    const float4 *last, *before; /* fragments */
    finish_call<O, 2> call;
};

template <int TILES, bool KEPT, class O, bool ROUNDED>
static __global__ void __launch_bounds__(TEAMS *most_rows(TILES) / SHARE * 32,
                                         blocks_at_once(TILES))
    expand_resident(const __grid_constant__ resident_task<O> task) {
    extern __shared__ float4 shared[];
    const cuda_planes &s = task.planes;
    const finish_call<O, 2> &call = task.call;
    const plane_team team = team_of(s);
    const resident_layout lies = layout_of(s, KEPT);
    char *base = reinterpret_cast<char *>(shared),
         *own = base + lies.teams + team.number * lies.end;
    float *core = reinterpret_cast<float *>(own);
    kept_run *found = reinterpret_cast<kept_run *>(own + lies.found);
    uint64_t *words = reinterpret_cast<uint64_t *>(own + lies.words);
    uint32_t *ranks = reinterpret_cast<uint32_t *>(own + lies.ranks);
    const int lane = team.thread % 32, share = team.thread / 32, row = share * SHARE;
    const int entries = s.d2 * s.d3, at = row * s.d3, rows_here = min((int)SHARE, s.d2 - row);
    const float alpha = call.alpha_now(), beta = call.beta_now();
    tg_rng rounding = call.rounding;
    if (ROUNDED && call.rates) {
        rounding.step = call.rates->step;
    }
    const int64_t first = (int64_t)blockIdx.x * TEAMS + team.number;
    const unsigned stride = gridDim.x * TEAMS;

    const auto fetch = [&](int64_t plane) {
        const int64_t begin = call.begin + plane * entries;
        fetch_core<TILES>(s, team, lies.steps, task.in + plane * 2 * s.r2 * s.right, core);
        if (KEPT) {
            fetch_kept(call.kept, team, begin, entries, words, ranks);
        }
        if (beta != 0.0f) {
            prefetch_l2(call.out + begin + at, call.out + begin + at + rows_here * s.d3, lane);
        }
    };

    /* What C's rows are filled up with stays 0. */
    for (int e = team.thread; e < lies.found / 4; e += team.threads) {
        core[e] = 0.0f;
    }
    fetch_fragments(task.last, lies.before, base);
    fetch_fragments(task.before, lies.teams - lies.before, base + lies.before);
    copies_wait();
    __syncthreads();
    chain_wait();
    if (call.guard && *call.guard != 0) {
        return;
    }
    const int64_t count = task.count;
    if (first < count) {
        fetch(first);
    }
    bool begins = (int64_t)blockIdx.x * TEAMS + 1 < count;
    for (int64_t plane = first; plane < count; plane += stride) {
        const int64_t begin = call.begin + plane * entries;
        copies_wait();
        wait_for_team(team);
        if (KEPT) {
            find_kept(team, begin, entries, words, ranks, found);
        }
        if (begins) {
            let_first_go(team);
        }
        const rows_of_t<TILES> rows = multiply_core<TILES>(
            core, lies.steps,
            reinterpret_cast<const float4 *>(base + lies.before) + share * lies.steps * 32, lane);
        if (begins) {
            let_second_go(team);
            begins = false;
        }
        wait_for_team(team);
        if (plane + stride < count) {
            fetch(plane + stride);
        }
        if (KEPT && share == 0) {
            prefetch_values(call.values, begin, entries, found, lane);
        }
        const resident_share<O> to = {call.out + begin + at,
                                      begin + at,
                                      rows_here,
                                      s.d3,
                                      found,
                                      (int)(begin % 512) + at,
                                      call.values,
                                      alpha,
                                      beta,
                                      (float)call.lambda,
                                      &rounding};
        const float4 *right = reinterpret_cast<const float4 *>(base);
        if (call.whole) {
            update_share<KEPT, true, ROUNDED>(to, rows, right, column_tiles(s), lane);
        } else {
            update_share<KEPT, false, ROUNDED>(to, rows, right, column_tiles(s), lane);
        }
    }
}

/* ---- launches ---- */

template <class O> using resident_kernel = void (*)(resident_task<O>);

template <class O, bool ROUNDED> static resident_kernel<O> kernel_of(int tiles, bool kept) {
    if (kept) {
        return tiles == 3 ? expand_resident<3, true, O, ROUNDED>
                          : expand_resident<6, true, O, ROUNDED>;
    }
    return tiles == 3 ? expand_resident<3, false, O, ROUNDED>
                      : expand_resident<6, false, O, ROUNDED>;
}

template <class O>
static resident_kernel<O> kernel_of(const cuda_planes &s, bool kept, bool rounds) {
    constexpr bool can_round = is_16bit<O>;
    return rounds ? kernel_of<O, can_round>(s.tiles, kept) : kernel_of<O, false>(s.tiles, kept);
}

static int threads_of(const cuda_planes &s) {
    return TEAMS * (s.rows / SHARE) * 32;
}

/* How many blocks run at once, 0 if none does. */
template <class O>
static int64_t count_blocks(const tg_backend *be, const cuda_planes &s, bool kept, bool rounds) {
    const int shared = shared_bytes(s, kept);
    const void *kernel = reinterpret_cast<const void *>(kernel_of<O>(s, kept, rounds));
    int most = 0, blocks = 0;
    const bool fits = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                             cuda_state_of(be)->device) == cudaSuccess &&
                      shared <= most &&
                      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           shared) == cudaSuccess &&
                      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads_of(s),
                                                                    (size_t)shared) == cudaSuccess;
    return fits ? (int64_t)blocks * cuda_state_of(be)->processors : 0;
}

int64_t cuda_planes_resident(const tg_backend *be, const cuda_planes *s, tg_storage store,
                             bool rounds) {
    const bool kept = true; /* the factors' fragments should not depend on it */
    if (s->tiles == 0 || s->rows > most_rows(s->tiles) || s->right % 4 != 0) {
        return 0;
    }
    return TEAMS * (store == TG_STORE_BF16  ? count_blocks<__nv_bfloat16>(be, *s, kept, rounds)
                    : store == TG_STORE_F16 ? count_blocks<__half>(be, *s, kept, rounds)
                                            : count_blocks<float>(be, *s, kept, rounds));
}

template <class O>
tg_status cuda_planes_expand_resident(tg_backend *be, const cuda_plan *plan, void *workspace,
                                      int64_t at_once, bool rounds, const void *in,
                                      const finish_call<O, 2> *call) {
    const cuda_planes &s = plan->planes;
    const bool kept = call->values != NULL;
    const int64_t planes = (call->end - call->begin) / plan->unit * plan->step[1].left;
    const int64_t wanted = (planes + TEAMS - 1) / TEAMS;
    const resident_task<O> task = {s,
                                   planes,
                                   static_cast<const float *>(in),
                                   last_of(plan, workspace),
                                   cuda_planes_before(plan, workspace),
                                   *call};
    return CUDA_CHECK(be,
                      launch_chained(kernel_of<O>(s, kept, rounds),
                                     shorter(wanted, at_once / TEAMS), threads_of(s),
                                     shared_bytes(s, kept), cuda_stream(be), plan->chained, task),
                      "expanding two modes");
}

template tg_status cuda_planes_expand_resident(tg_backend *, const cuda_plan *, void *, int64_t,
                                               bool, const void *, const finish_call<float, 2> *);
template tg_status cuda_planes_expand_resident(tg_backend *, const cuda_plan *, void *, int64_t,
                                               bool, const void *,
                                               const finish_call<__nv_bfloat16, 2> *);
template tg_status cuda_planes_expand_resident(tg_backend *, const cuda_plan *, void *, int64_t,
                                               bool, const void *, const finish_call<__half, 2> *);
