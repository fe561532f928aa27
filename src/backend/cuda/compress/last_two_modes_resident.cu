/* The way back of the last two modes where the factors of both fit into shared memory;
 * last_two_modes.cuh and last_two_modes.cu have the products.
 *
 * As many blocks as run at once keep the factors. A block is two teams of warps that walk over
 * planes of their own and only wait for themselves, so that one multiplies while the other one
 * updates the weight; a warp takes 16 rows of a plane. What the first product leaves in the
 * registers of a lane is what the second one wants there as its left factor, if its k's 2t and
 * 2t + 1 are those of lane t. So C has been used up after the first product, and the next plane's
 * comes in during the second one. What that gives goes through shared memory: rows of a warp follow
 * each other in the weight, and there values are added at the places of kept entries, which a list
 * has, before the warp updates its rows from end to end. */
#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/compress/factor_fragments.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum {
    TEAMS = 2,  /* of a block */
    SHARE = 16, /* rows of a warp */
    AHEAD = 17, /* entries of a lane that are read before they are needed.. */
    VALUES = 2  /* ..and values */
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
 * `teams` on, for each of them, C of its plane, (part, rows, stride), what becomes of it, (rows,
 * d3), the places of its kept entries in the rows of each warp, and the rank blocks that hold the
 * plane's entries: their runs, and what these are made from. */
struct resident_layout {
    int steps; /* of 4 rows of C */
    int before, teams;
    int made, places, found, words, ranks, end; /* of a team */
};

static __host__ __device__ inline resident_layout layout_of(const cuda_planes &s, bool kept) {
    const int blocks = kept ? (s.d2 * s.d3 + 510) / 512 + 1 : 0;
    resident_layout at;
    at.steps = (s.r2 + 3) / 4;
    at.before = s.tiles * column_tiles(s) * 32 * (int)sizeof(float4);
    at.teams = at.before + s.rows / 16 * at.steps * 32 * (int)sizeof(float4);
    at.made = 2 * 4 * at.steps * core_stride(s.tiles) * (int)sizeof(float);
    at.places = at.made + s.rows * s.d3 * (int)sizeof(float2);
    at.found = at.places + (kept ? s.rows * s.d3 * (int)sizeof(uint16_t) : 0);
    at.words = at.found + 16 * blocks * (int)sizeof(kept_run);
    at.ranks = at.words + blocks * 8 * (int)sizeof(uint64_t);
    at.end = (at.ranks + blocks * (int)sizeof(uint32_t) + 15) / 16 * 16;
    return at;
}

static int shared_bytes(const cuda_planes &s, bool kept) {
    const resident_layout at = layout_of(s, kept);
    return at.teams + TEAMS * at.end;
}

/* ---- fragments ---- */

/* Number 2t of a tile is this column, and 2t + 1 the one behind it: of tiles 2n and 2n + 1 those of
 * lane t are 16n + 4t on, as rows have an odd number of entries and what half a warp writes then
 * lies in different banks. */
static __device__ inline int column_of(int tile, int tiles, int t) {
    return tile == tiles - 1 && tile % 2 == 0 ? 8 * tile + 2 * t
                                              : tile / 2 * 16 + tile % 2 * 2 + 4 * t;
}

/* U3 as right factor, per 8 k's and tile of 8 columns: {real parts of a lane's k's, imaginary parts
 * of them}. */
static __device__ inline float4 last_fragment(const factor_reader &f, int tiles, int e) {
    const int lane = e % 32, g = lane / 4, t = lane % 4;
    const int i = column_of(e / 32 % tiles, tiles, g / 2) + g % 2, j = e / 32 / tiles * 8 + 2 * t;
    const float2 u0 = factor_at(f, i, j), u1 = factor_at(f, i, j + 1);
    return make_float4(u0.x, u1.x, u0.y, u1.y);
}

static __global__ void write_fragments(cuda_planes s, factor_reader last, factor_reader before,
                                       int lasts, int befores, float4 *to_last, float4 *to_before) {
    const int e = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    kernel_behind_go(); /* it reads factors alone before it waits */
    const float4 of_last = e < lasts ? last_fragment(last, column_tiles(s), e) : float4();
    const float4 of_before =
        e < befores ? left_fragment<false>(before, (s.r2 + 3) / 4, e) : float4();
    kernel_before_wait(); /* whose workspace it is until then */
    if (e < lasts) {
        to_last[e] = of_last;
    }
    if (e < befores) {
        to_before[e] = of_before;
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
    return CUDA_CHECK(be,
                      launch_early(be, write_fragments, blocks, 256, 0, plan->planes,
                                   reader_of(&plan->step[0].factor),
                                   reader_of(&plan->step[1].factor), lasts, befores,
                                   last_of(plan, workspace),
                                   const_cast<float4 *>(cuda_planes_before(plan, workspace))),
                      "laying out factors");
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
    if (s.right == core_stride(TILES)) { /* here, too */
        for (int e = team.thread; e < 2 * s.r2 * across; e += team.threads) {
            const int to = e < s.r2 * across ? e : e + (4 * steps - s.r2) * across;
            copy_async<16>(core + 4 * to, from + 4 * e);
        }
        return;
    }
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
#pragma unroll 1
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

/* Times `gain`. `core` is of the plane, whose numbers products cut; `left` are fragments of the
 * rows. */
template <int TILES>
static __device__ inline rows_of_t<TILES> multiply_core(const float *core, int steps,
                                                        const float4 *left, int lane, float gain) {
    const int g = lane / 4, t = lane % 4, part = 4 * steps * core_stride(TILES);
    rows_of_t<TILES> rows = {};
#pragma unroll 2
    for (int k = 0; k < steps; k++) {
        const float4 re = left[k * 32 + lane], im = make_float4(-re.z, -re.w, re.x, re.y);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const float *at = core + (4 * k + t) * core_stride(TILES) + 8 * n + g;
            mma_tf32(rows.sum[0][n], re, at[0], at[part]);
            mma_tf32(rows.sum[1][n], im, at[0], at[part]);
        }
    }
#pragma unroll
    for (int e = 0; e < 8 * TILES; e++) {
        float *x = &rows.sum[e / (4 * TILES)][e / 4 % TILES][e % 4];
        *x *= gain;
    }
    return rows;
}

/* What N tiles of columns make of 16 rows of T, to `made`, (16, cols), from the lane's first row
 * and column on. `right`: their fragments of the first 8 k's, `next` behind each other. */
template <int N, int TILES>
static __device__ inline void multiply_tiles(const rows_of_t<TILES> &rows, const float4 *right,
                                             int next, float2 *made, int cols, int live) {
    float sum[N][2][4] = {};
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
#pragma unroll
    for (int c = 0; c < 2 * N; c++) {
        const float *re = sum[c / 2][0] + c % 2, *im = sum[c / 2][1] + c % 2;
        if (c < live) {
            made[c] = make_float2(re[0], im[0]);
            made[8 * cols + c] = make_float2(re[2], im[2]);
        }
    }
}

template <bool USUAL, int TILES>
static __device__ inline void multiply_rows(const rows_of_t<TILES> &rows, const float4 *right,
                                            int tiles, float2 *made, int cols, int lane) {
    float2 *row = made + lane / 4 * cols;
    int n = 0;
#pragma unroll(USUAL ? 2 : 1)
    for (; n + 1 < tiles; n += 2) {
        const int col = column_of(n, tiles, lane % 4);
        multiply_tiles<2>(rows, right + n * 32 + lane, tiles * 32, row + col, cols, cols - col);
    }
    if (n < tiles) {
        const int col = column_of(n, tiles, lane % 4);
        multiply_tiles<1>(rows, right + n * 32 + lane, tiles * 32, row + col, cols, cols - col);
    }
}

/* ---- kept entries ---- */

/* Those of a warp's rows: their places there, and which of the values are theirs. */
struct kept_share {
    const uint16_t *place;
    uint32_t first, count;
};

/* `found`: runs of the rank blocks, among whose entries the rows are [at, at + entries). */
static __device__ inline kept_share list_kept(const kept_run *found, int at, int entries,
                                              uint16_t *place, int lane) {
    const int end = at + entries;
    const auto position = [&](int entry) {
        return (uint32_t)position_of(found[entry / 32], entry % 32);
    };
    const uint32_t first = position(at);
    for (int run = at / 32 + lane; 32 * run < end; run += 32) {
        const int from = 32 * run - at; /* of its first entry, among the rows */
        uint32_t left = found[run].mask;
        left &= from < 0 ? ~0u << -from : ~0u;
        left &= entries - from < 32 ? ~(~0u << (entries - from)) : ~0u;
        for (uint32_t to = position(max(32 * run, at)) - first; left; left &= left - 1) {
            place[to++] = (uint16_t)(from + __ffs((int)left) - 1);
        }
    }
    return {place, first,
            position(end - 1) + is_kept(found[(end - 1) / 32], (end - 1) % 32) - first};
}

/* ---- the update ---- */

/* What a warp updates: rows of a plane. */
template <class O> struct resident_share {
    number<O, 2> *out;
    int64_t entry; /* which they begin with */
    int entries;
    const number<float, 2> *values; /* the first one of theirs */
    float beta, lambda;
    const tg_rng *rounding;
};

/* A place that others are counted from; the compiler would find each of them anew. */
template <class T> static __device__ inline T *from_here(T *at) {
    asm("" : "+l"(at));
    return at;
}

/* Every 32nd number of an array from a lane's first one on; 0 behind its end, or without it. */
template <bool WHOLE, int N, class T, int P>
static __device__ inline void load_share(number<T, P> (&x)[N], const number<T, P> *from, int first,
                                         int end, bool exists = true) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = number<T, P>();
    }
    if (exists) {
        const number<T, P> *at = from_here(from + first);
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (first < end - 32 * i) {
                x[i] = load_once(at + 32 * i, WHOLE);
            }
        }
    }
}

/* P parts at a time, of an entry or of two. */
template <int P, bool KEPT, bool WHOLE, bool ROUNDED, bool USUAL, class O, int TILES>
static __device__ inline void update_share(const resident_share<O> &to, const kept_share &kept,
                                           const rows_of_t<TILES> &rows, const float4 *right,
                                           const cuda_planes &s, float2 *made, int lane) {
    constexpr int N = (2 * AHEAD + P - 1) / P;
    number<O, P> *out = reinterpret_cast<number<O, P> *>(to.out), before[N];
    const number<float, P> *sums = reinterpret_cast<const number<float, P> *>(made);
    const int count = (int)kept.count, size = 2 * to.entries / P;
    const bool reads = to.beta != 0.0f;
    number<float, 2> value[VALUES];
    load_share<WHOLE>(before, out, lane, size, reads);
    if (KEPT) {
        load_share<WHOLE>(value, to.values, lane, count);
    }
    multiply_rows<USUAL>(rows, right, column_tiles(s), made, s.d3, lane);
    __syncwarp();
    for (int first = lane; KEPT && first < count; first += 32 * VALUES) {
        if (first > lane) {
            load_share<WHOLE>(value, to.values, first, count);
        }
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            if (first + 32 * i < count) {
                float2 *x = made + kept.place[first + 32 * i];
                x->x += to.lambda * value[i].part[0];
                x->y += to.lambda * value[i].part[1];
            }
        }
    }
    __syncwarp();
    for (int first = lane; first == lane || (!USUAL && first < size); first += 32 * N) {
        if (first > lane) {
            load_share<WHOLE>(before, out, first, size, reads);
        }
        number<O, P> *at = from_here(out + first);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const bool exists = first < size - 32 * i;
            const number<float, P> old = widen(before[i]);
            number<float, P> y = exists ? (sums + first)[32 * i] : number<float, P>();
#pragma unroll
            for (int p = 0; p < P; p++) {
                y.part[p] += to.beta * old.part[p];
            }
            const number<O, P> now =
                rounded<ROUNDED, O, P>(*to.rounding, 2 * to.entry / P + first + 32 * i, y);
            if (exists) {
                store_once(at + 32 * i, now, WHOLE);
            }
        }
    }
}

/* ---- all of it ---- */

/* Parts of the weight that a lane moves at once, 8 bytes; of two entries in 16 bits, which share a
 * draw of random bits. */
template <class O> static constexpr int AT_ONCE = is_16bit<O> ? 4 : 2;

template <class O> struct resident_task {
    cuda_planes planes;
    int64_t count; /* of planes */
    const float *in;
    const float4 *last, *before; /* fragments */
    finish_call<O, 2> call;
    bool whole; /* how the weight and the values are aligned: to what is moved at once */
};

static __device__ inline cuda_planes usual_planes(cuda_planes s) {
    s.tiles = 3;
    s.d2 = s.rows = USUAL_D2;
    s.d3 = USUAL_D3;
    s.right = USUAL_RIGHT;
    return s;
}

template <int TILES, bool KEPT, class O, bool ROUNDED, bool USUAL>
static __global__ void __launch_bounds__(TEAMS *most_rows(TILES) / SHARE * 32,
                                         blocks_at_once(TILES))
    expand_resident(const __grid_constant__ resident_task<O> task) {
    extern __shared__ float4 shared[];
    const cuda_planes usual = usual_planes(task.planes), &s = USUAL ? usual : task.planes;
    const finish_call<O, 2> &call = task.call;
    const plane_team team = team_of(s);
    const resident_layout lies = layout_of(s, KEPT);
    char *base = reinterpret_cast<char *>(shared),
         *own = base + lies.teams + team.number * lies.end;
    float *core = reinterpret_cast<float *>(own);
    float2 *made = reinterpret_cast<float2 *>(own + lies.made);
    uint16_t *places = reinterpret_cast<uint16_t *>(own + lies.places);
    kept_run *found = reinterpret_cast<kept_run *>(own + lies.found);
    uint64_t *words = reinterpret_cast<uint64_t *>(own + lies.words);
    uint32_t *ranks = reinterpret_cast<uint32_t *>(own + lies.ranks);
    const int lane = (int)(threadIdx.x % 32), share = team.thread / 32, row = share * SHARE;
    const int entries = s.d2 * s.d3, at = row * s.d3;
    const int entries_here = (USUAL ? (int)SHARE : min((int)SHARE, s.d2 - row)) * s.d3;
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
            prefetch_l2(call.out + begin + at, call.out + begin + at + entries_here, lane);
        }
    };

    /* What C's rows are filled up with stays 0. */
    for (int e = team.thread; e < lies.made / 4; e += team.threads) {
        core[e] = 0.0f;
    }
    fetch_fragments(task.last, lies.before, base);
    fetch_fragments(task.before, lies.teams - lies.before, base + lies.before);
    copies_wait();
    __syncthreads();
    kernel_before_wait();
    kernel_behind_go();
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
            reinterpret_cast<const float4 *>(base + lies.before) + share * lies.steps * 32, lane,
            to_tf32(TF32_CUT * alpha));
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
        const kept_share kept =
            KEPT ? list_kept(found, (int)(begin % 512) + at, entries_here, places + at, lane)
                 : kept_share();
        const resident_share<O> to = {
            call.out + begin + at,      begin + at, entries_here, call.values + kept.first, beta,
            alpha * (float)call.lambda, &rounding};
        const float4 *right = reinterpret_cast<const float4 *>(base);
        if (task.whole) {
            update_share<AT_ONCE<O>, KEPT, true, ROUNDED, USUAL>(to, kept, rows, right, s,
                                                                 made + at, lane);
        } else {
            update_share<2, KEPT, false, ROUNDED, USUAL>(to, kept, rows, right, s, made + at, lane);
        }
    }
}

/* ---- launches ---- */

template <class O> using resident_kernel = void (*)(resident_task<O>);

template <class O, bool ROUNDED>
static resident_kernel<O> kernel_of(const cuda_planes &s, bool kept) {
    if (kept && are_usual(s)) {
        return expand_resident<3, true, O, ROUNDED, true>;
    }
    if (kept) {
        return s.tiles == 3 ? expand_resident<3, true, O, ROUNDED, false>
                            : expand_resident<6, true, O, ROUNDED, false>;
    }
    return s.tiles == 3 ? expand_resident<3, false, O, ROUNDED, false>
                        : expand_resident<6, false, O, ROUNDED, false>;
}

template <class O>
static resident_kernel<O> kernel_of(const cuda_planes &s, bool kept, bool rounds) {
    constexpr bool can_round = is_16bit<O>;
    return rounds ? kernel_of<O, can_round>(s, kept) : kernel_of<O, false>(s, kept);
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
    const resident_task<O> task = {
        s,
        planes,
        static_cast<const float *>(in),
        last_of(plan, workspace),
        cuda_planes_before(plan, workspace),
        *call,
        call->whole && (AT_ONCE<O> == 2 || s.d2 % 2 == 0) &&
            is_whole(reinterpret_cast<number<O, AT_ONCE<O>> *>(call->out))};
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
