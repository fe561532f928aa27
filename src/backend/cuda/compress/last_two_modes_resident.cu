/* Expands the last two modes if the factors of both fit into shared memory; last_two_modes.cuh and
 * last_two_modes.cu define the products.
 *
 * All blocks run at once and keep the factors; resident_products.cuh has the number formats (IN) of
 * C and its products. A block is two teams of warps. Each team walks over its own planes and
 * synchronizes only with itself, so that one team multiplies while the other updates the weight. A
 * warp takes 16 rows of a plane. The first product leaves a lane's results in the registers where
 * the second one reads its left factor, if lane t has k's 2t and 2t + 1. So C is free after the
 * first product, and the next plane's C is loaded during the second one. The second product goes
 * through shared memory: a warp's rows are contiguous in the weight. There it adds the values of
 * kept entries, whose places are in a list, and then updates its rows from end to end. */
#include "backend/cuda/compress/resident_products.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum {
    TEAMS = 2,          /* of a block */
    ROWS_PER_WARP = 16, /* rows of a warp */
    ENTRIES_AHEAD = 17, /* entries of a lane that are prefetched.. */
    VALUES_AHEAD = 2    /* ..and values */
};

/* Rows of a plane at most, and blocks that should share a multiprocessor. */
static constexpr int max_rows(int tiles) {
    return tiles == 3 ? 64 : PLANES_ROWS;
}
static constexpr int blocks_at_once(int tiles) {
    return tiles == 3 ? 2 : 1;
}

/* The warps that share a plane. */
struct plane_team {
    int number;
    int threads, thread; /* threads of the team, and this one's index */
    int shares;          /* warps */
};

static __device__ inline plane_team team_of(const plane_pass &s) {
    const int shares = s.rows / ROWS_PER_WARP, number = (int)threadIdx.x / (32 * shares);
    return {number, 32 * shares, (int)threadIdx.x - 32 * shares * number, shares};
}

/* Named barriers 1 and 2; 0 is that of the whole block. */
static __device__ inline void wait_for_team(const plane_team &team) {
    if (team.number == 0) {
        asm volatile("bar.sync 1, %0;" ::"r"(team.threads) : "memory");
    } else {
        asm volatile("bar.sync 2, %0;" ::"r"(team.threads) : "memory");
    }
}

/* The second team begins its first product when the first team has ended its own, so that from then
 * on they do different things. */
static __device__ inline void wait_to_multiply(const plane_team &team) {
    if (team.number == 1) {
        asm volatile("bar.sync 3, %0;" ::"r"(TEAMS * team.threads) : "memory");
    }
}
static __device__ inline void signal_multiplied(const plane_team &team) {
    if (team.number == 0) {
        asm volatile("bar.arrive 3, %0;" ::"r"(TEAMS * team.threads) : "memory");
    }
}

/* Offsets in shared memory, in bytes: the fragments of both factors; and from `teams` on, for each
 * team, C of its plane (part, rows, stride), the second product (rows, d3), the places of the kept
 * entries in each warp's rows, and the rank blocks of the plane's entries: their runs and the words
 * these come from. */
struct resident_layout {
    int steps; /* of IN::STEP rows of C */
    int before, teams;
    int made, places, found, words, ranks, end; /* of a team */
};

template <class IN>
static __host__ __device__ inline resident_layout layout_of(const plane_pass &s, bool kept) {
    const int blocks = kept ? (s.d2 * s.d3 + 510) / 512 + 1 : 0;
    resident_layout at;
    at.steps = (s.r2 + IN::STEP - 1) / IN::STEP;
    at.before = s.tiles * column_tiles(s) * 32 * (int)sizeof(typename IN::last);
    at.teams = at.before + s.rows / 16 * at.steps * 32 * (int)sizeof(typename IN::before);
    at.made = IN::PARTS * IN::STEP * at.steps * core_stride(s.tiles) * (int)sizeof(float);
    at.places = at.made + s.rows * s.d3 * (int)sizeof(float2);
    at.found = at.places + (kept ? s.rows * s.d3 * (int)sizeof(uint16_t) : 0);
    at.words = at.found + 16 * blocks * (int)sizeof(kept_run);
    at.ranks = at.words + blocks * 8 * (int)sizeof(uint64_t);
    at.end = (at.ranks + blocks * (int)sizeof(uint32_t) + 15) / 16 * 16;
    return at;
}

template <class IN> static int shared_bytes(const plane_pass &s, bool kept) {
    const resident_layout at = layout_of<IN>(s, kept);
    return at.teams + TEAMS * at.end;
}

/* ---- fragments ---- */

template <class IN>
static __global__ void write_fragments(plane_pass s, factor_reader last, factor_reader before,
                                       int last_count, int before_count, typename IN::last *to_last,
                                       typename IN::before *to_before) {
    const int e = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    pdl_launch_dependents(); /* reads only factors before it waits */
    const auto of_last =
        e < last_count ? IN::last_fragment(last, column_tiles(s), e) : typename IN::last();
    const auto of_before = e < before_count
                               ? IN::before_fragment(before, (s.r2 + IN::STEP - 1) / IN::STEP, e)
                               : typename IN::before();
    pdl_wait(); /* the workspace belongs to the previous kernel until then */
    if (e < last_count) {
        to_last[e] = of_last;
    }
    if (e < before_count) {
        to_before[e] = of_before;
    }
}

/* Addresses of the fragments. */
template <class IN> static typename IN::last *last_of(const cuda_plan *plan, void *workspace) {
    return reinterpret_cast<typename IN::last *>(
        const_cast<float2 *>(cuda_planes_last(plan, workspace)));
}
template <class IN> static typename IN::before *before_of(const cuda_plan *plan, void *workspace) {
    return reinterpret_cast<typename IN::before *>(
        const_cast<float4 *>(cuda_planes_before(plan, workspace)));
}

template <class IN>
static tg_status write_factors(tg_backend *be, const cuda_plan *plan, void *workspace) {
    const resident_layout at = layout_of<IN>(plan->planes, false);
    const int last_count = at.before / (int)sizeof(typename IN::last);
    const int before_count = (at.teams - at.before) / (int)sizeof(typename IN::before);
    const unsigned blocks = (unsigned)((tg_max(last_count, before_count) + 255) / 256);
    return launch_pdl(be, "laying out factors", write_fragments<IN>, blocks, 256, 0, plan->planes,
                      reader_of(&plan->step[0].factor), reader_of(&plan->step[1].factor),
                      last_count, before_count, last_of<IN>(plan, workspace),
                      before_of<IN>(plan, workspace));
}

tg_status cuda_planes_expand_factors(tg_backend *be, const cuda_plan *plan, void *workspace) {
    return plan->half ? write_factors<in_f16>(be, plan, workspace)
                      : write_factors<in_tf32>(be, plan, workspace);
}

/* ---- inputs ---- */

/* `bytes`, a multiple of 16. */
static __device__ inline void fetch_fragments(const void *from, int bytes, char *to) {
    for (int e = 16 * (int)threadIdx.x; e < bytes; e += 16 * (int)blockDim.x) {
        copy_async<16>(to + e, static_cast<const char *>(from) + e);
    }
}

/* C of a plane: contiguous rows (part, j2) of `right` reals, or (j2) of both parts. */
template <int TILES, class IN>
static __device__ inline void fetch_core(const plane_pass &s, const plane_team &team, int steps,
                                         const typename IN::core *from, typename IN::core *core) {
    const int across = s.right / 4, rows = IN::PARTS * s.r2;
    if (s.right == core_stride(TILES)) { /* same stride in shared memory */
        for (int e = team.thread; e < rows * across; e += team.threads) {
            const int to = e < s.r2 * across ? e : e + (IN::STEP * steps - s.r2) * across;
            copy_async<16>(core + 4 * to, from + 4 * e);
        }
        return;
    }
    const int next_row = team.threads / across, next = team.threads % across;
    int row = team.thread / across, place = team.thread % across;
    while (row < rows) {
        const int to = row < s.r2 ? row : row - s.r2 + IN::STEP * steps;
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
        const uint32_t sum = sum_up_to<16>(own, run);
        if (block < blocks) {
            found[16 * block + run] = {mask, ranks[block] + sum - own};
        }
    }
}

/* Prefetches their contiguous values; a few neighbouring ones too, which is harmless. */
static __device__ inline void prefetch_values(const number<float, 2> *values, int64_t begin,
                                              int entries, const kept_run *found, int lane) {
    const int ahead = (int)(begin % 512);
    prefetch_l2(values + found[ahead / 32].before,
                values + position_of(found[(ahead + entries - 1) / 32], 31), lane);
}

/* ---- kept entries ---- */

/* The kept entries of a warp's rows: their places there, and the range of their values. */
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

/* The rows of a plane that a warp updates. */
template <class O> struct resident_share {
    number<O, 2> *out;
    int64_t entry; /* the first entry */
    int entries;
    const number<float, 2> *values; /* the value of the first kept entry */
    float beta, lambda;
    float gain; /* factor of the products */
    const tg_rng *rounding;
};

/* Pins a base address; the compiler would otherwise recompute each offset. */
template <class T> static __device__ inline T *from_here(T *at) {
    asm("" : "+l"(at));
    return at;
}

/* Every 32nd number of an array from a lane's first one on; 0 past its end, or without an array. */
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

/* P parts at a time, of one entry or two. */
template <int P, bool KEPT, bool WHOLE, bool ROUNDED, bool COMMON, class IN, class O, class ROWS>
static __device__ inline void update_share(const resident_share<O> &to, const kept_share &kept,
                                           const ROWS &rows, const typename IN::last *right,
                                           const plane_pass &s, float2 *made, int lane) {
    constexpr int N = (2 * ENTRIES_AHEAD + P - 1) / P;
    number<O, P> *out = reinterpret_cast<number<O, P> *>(to.out), before[N];
    const number<float, P> *sums = reinterpret_cast<const number<float, P> *>(made);
    const int count = (int)kept.count, size = 2 * to.entries / P;
    const bool reads = to.beta != 0.0f;
    number<float, 2> value[VALUES_AHEAD];
    load_share<WHOLE>(before, out, lane, size, reads);
    if (KEPT) {
        load_share<WHOLE>(value, to.values, lane, count);
    }
    multiply_rows<COMMON>(rows, to.gain, right, column_tiles(s), made, s.d3, lane);
    __syncwarp();
    for (int first = lane; KEPT && first < count; first += 32 * VALUES_AHEAD) {
        if (first > lane) {
            load_share<WHOLE>(value, to.values, first, count);
        }
#pragma unroll
        for (int i = 0; i < VALUES_AHEAD; i++) {
            if (first + 32 * i < count) {
                float2 *x = made + kept.place[first + 32 * i];
                x->x += to.lambda * value[i].part[0];
                x->y += to.lambda * value[i].part[1];
            }
        }
    }
    __syncwarp();
    for (int first = lane; first == lane || (!COMMON && first < size); first += 32 * N) {
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

/* ---- the kernel ---- */

/* Reals of the weight that a lane updates per access: 8 bytes, or two entries in 16 bits, which
 * share a draw of random bits. */
template <class O> static constexpr int REALS_PER_ACCESS = is_16bit<O> ? 4 : 2;

template <class O, class IN> struct resident_task {
    plane_pass planes;
    int64_t count; /* of planes */
    const typename IN::core *in;
    const typename IN::last *last; /* fragments */
    const typename IN::before *before;
    finish_call<O, 2> call;
    bool whole; /* whether the weight and the values are aligned to an access */
};

static __device__ inline plane_pass common_planes(plane_pass s) {
    s.tiles = 3;
    s.d2 = s.rows = COMMON_D2;
    s.d3 = COMMON_D3;
    s.right = COMMON_RIGHT;
    return s;
}

template <int TILES, bool KEPT, class O, bool ROUNDED, bool COMMON, class IN>
static __global__ void __launch_bounds__(TEAMS *max_rows(TILES) / ROWS_PER_WARP * 32,
                                         blocks_at_once(TILES))
    expand_resident(const __grid_constant__ resident_task<O, IN> task) {
    extern __shared__ float4 shared[];
    const plane_pass usual = common_planes(task.planes), &s = COMMON ? usual : task.planes;
    const finish_call<O, 2> &call = task.call;
    const plane_team team = team_of(s);
    const resident_layout offsets = layout_of<IN>(s, KEPT);
    char *base = reinterpret_cast<char *>(shared),
         *own = base + offsets.teams + team.number * offsets.end;
    typename IN::core *core = reinterpret_cast<typename IN::core *>(own);
    float2 *made = reinterpret_cast<float2 *>(own + offsets.made);
    uint16_t *places = reinterpret_cast<uint16_t *>(own + offsets.places);
    kept_run *found = reinterpret_cast<kept_run *>(own + offsets.found);
    uint64_t *words = reinterpret_cast<uint64_t *>(own + offsets.words);
    uint32_t *ranks = reinterpret_cast<uint32_t *>(own + offsets.ranks);
    const int lane = (int)(threadIdx.x % 32), share = team.thread / 32, row = share * ROWS_PER_WARP;
    const int entries = s.d2 * s.d3, at = row * s.d3;
    const int entries_here =
        (COMMON ? (int)ROWS_PER_WARP : min((int)ROWS_PER_WARP, s.d2 - row)) * s.d3;
    const float alpha = call.alpha_now(), beta = call.beta_now();
    tg_rng rounding = call.rounding;
    if (ROUNDED && call.rates) {
        rounding.step = call.rates->step;
    }
    const int64_t first = (int64_t)blockIdx.x * TEAMS + team.number;
    const unsigned stride = gridDim.x * TEAMS;

    const auto fetch = [&](int64_t plane) {
        const int64_t begin = call.begin + plane * entries;
        fetch_core<TILES, IN>(s, team, offsets.steps, task.in + plane * IN::PARTS * s.r2 * s.right,
                              core);
        if (KEPT) {
            fetch_kept(call.kept, team, begin, entries, words, ranks);
        }
        if (beta != 0.0f) {
            prefetch_l2(call.out + begin + at, call.out + begin + at + entries_here, lane);
        }
    };

    /* Padding of C's rows stays 0. */
    for (int e = team.thread; e < offsets.made / 4; e += team.threads) {
        core[e] = 0;
    }
    fetch_fragments(task.last, offsets.before, base);
    fetch_fragments(task.before, offsets.teams - offsets.before, base + offsets.before);
    copies_wait();
    __syncthreads();
    pdl_wait();
    pdl_launch_dependents();
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
            wait_to_multiply(team);
        }
        const auto rows = multiply_core<TILES>(
            core, offsets.steps,
            reinterpret_cast<const typename IN::before *>(base + offsets.before) +
                share * offsets.steps * 32,
            lane, alpha);
        if (begins) {
            signal_multiplied(team);
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
            alpha * (float)call.lambda, alpha,      &rounding};
        const auto *right = reinterpret_cast<const typename IN::last *>(base);
        if (task.whole) {
            update_share<REALS_PER_ACCESS<O>, KEPT, true, ROUNDED, COMMON, IN>(
                to, kept, rows, right, s, made + at, lane);
        } else {
            update_share<2, KEPT, false, ROUNDED, COMMON, IN>(to, kept, rows, right, s, made + at,
                                                              lane);
        }
    }
}

/* ---- launches ---- */

template <class O, class IN> using resident_kernel = void (*)(resident_task<O, IN>);

/* f16 directions of Adam require kept entries and short rows. */
template <class O, class IN, bool ROUNDED>
static resident_kernel<O, IN> kernel_of(const plane_pass &s, bool kept) {
    if (kept && has_common_sizes(s)) {
        return expand_resident<3, true, O, ROUNDED, true, IN>;
    }
    if constexpr (std::is_same_v<IN, in_f16>) {
        return expand_resident<3, true, O, ROUNDED, false, IN>;
    } else if (kept) {
        return s.tiles == 3 ? expand_resident<3, true, O, ROUNDED, false, IN>
                            : expand_resident<6, true, O, ROUNDED, false, IN>;
    } else {
        return s.tiles == 3 ? expand_resident<3, false, O, ROUNDED, false, IN>
                            : expand_resident<6, false, O, ROUNDED, false, IN>;
    }
}

template <class O, class IN>
static resident_kernel<O, IN> kernel_of(const plane_pass &s, bool kept, bool rounds) {
    constexpr bool can_round = is_16bit<O>;
    return rounds ? kernel_of<O, IN, can_round>(s, kept) : kernel_of<O, IN, false>(s, kept);
}

static int threads_of(const plane_pass &s) {
    return TEAMS * (s.rows / ROWS_PER_WARP) * 32;
}

/* Planes that run at once with kept entries, which take more room; 0 if none fits. */
template <class O, class IN>
static int64_t count_planes(const tg_backend *be, const plane_pass &s, bool rounds) {
    const int shared = shared_bytes<IN>(s, true);
    const void *kernel = reinterpret_cast<const void *>(kernel_of<O, IN>(s, true, rounds));
    int blocks = 0;
    const bool fits = shared <= cuda_state_of(be)->max_shared &&
                      cuda_allow_shared(be, kernel, (size_t)shared) == TG_OK &&
                      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads_of(s),
                                                                    (size_t)shared) == cudaSuccess;
    return fits ? TEAMS * (int64_t)blocks * cuda_state_of(be)->processors : 0;
}

int64_t cuda_planes_resident(const tg_backend *be, const plane_pass *s, tg_storage store,
                             bool rounds) {
    if (s->tiles == 0 || s->rows > max_rows(s->tiles) || s->right % 4 != 0) {
        return 0;
    }
    return store == TG_STORE_BF16  ? count_planes<__nv_bfloat16, in_tf32>(be, *s, rounds)
           : store == TG_STORE_F16 ? count_planes<__half, in_tf32>(be, *s, rounds)
                                   : count_planes<float, in_tf32>(be, *s, rounds);
}

int64_t cuda_planes_resident_half(const tg_backend *be, const plane_pass *s, tg_storage store,
                                  bool rounds) {
    if (s->tiles != 3 || s->rows > max_rows(s->tiles) || s->right % 4 != 0) {
        return 0;
    }
    return store == TG_STORE_BF16   ? count_planes<__nv_bfloat16, in_f16>(be, *s, rounds)
           : store == TG_STORE_FULL ? count_planes<float, in_f16>(be, *s, rounds)
                                    : 0;
}

template <class O, class IN>
static tg_status run_resident(tg_backend *be, const cuda_plan *plan, void *workspace,
                              int64_t planes_at_once, bool rounds, const void *in,
                              const finish_call<O, 2> *call) {
    const plane_pass &s = plan->planes;
    const bool kept = call->values != NULL;
    const int64_t planes = (call->end - call->begin) / plan->unit * plan->step[1].left;
    const int64_t wanted = (planes + TEAMS - 1) / TEAMS;
    const resident_task<O, IN> task = {
        s,
        planes,
        static_cast<const typename IN::core *>(in),
        last_of<IN>(plan, workspace),
        before_of<IN>(plan, workspace),
        *call,
        call->whole && (REALS_PER_ACCESS<O> == 2 || s.d2 % 2 == 0) &&
            is_whole(reinterpret_cast<number<O, REALS_PER_ACCESS<O>> *>(call->out))};
    return launch_if_early(be, "expanding two modes", plan->chained,
                           kernel_of<O, IN>(s, kept, rounds),
                           (unsigned)tg_min(wanted, planes_at_once / TEAMS), threads_of(s),
                           (size_t)shared_bytes<IN>(s, kept), task);
}

template <class O>
tg_status cuda_planes_expand_resident(tg_backend *be, const cuda_plan *plan, void *workspace,
                                      int64_t planes_at_once, bool rounds, const void *in,
                                      const finish_call<O, 2> *call) {
    if constexpr (!std::is_same_v<O, __half>) {
        if (plan->half) {
            return run_resident<O, in_f16>(be, plan, workspace, planes_at_once, rounds, in, call);
        }
    }
    return run_resident<O, in_tf32>(be, plan, workspace, planes_at_once, rounds, in, call);
}

template tg_status cuda_planes_expand_resident(tg_backend *, const cuda_plan *, void *, int64_t,
                                               bool, const void *, const finish_call<float, 2> *);
template tg_status cuda_planes_expand_resident(tg_backend *, const cuda_plan *, void *, int64_t,
                                               bool, const void *,
                                               const finish_call<__nv_bfloat16, 2> *);
template tg_status cuda_planes_expand_resident(tg_backend *, const cuda_plan *, void *, int64_t,
                                               bool, const void *, const finish_call<__half, 2> *);
