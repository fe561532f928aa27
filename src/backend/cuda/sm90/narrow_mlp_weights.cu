/* MLPs that are narrow at one end: the gradients of their weights (narrow_mlp.cuh).
 *
 * A thread block has two chunks of hidden channels, one per warpgroup, and takes every parts-th
 * tile of pixels. The wide array, x of a projection or dy of a lifting, is copied into shared
 * memory two tiles ahead, (C, pixels) as in memory, and is a factor twice: of the product into the
 * hidden layer, from registers, and of the sum over pixels. The other factor of that sum, the
 * transposed hidden layer (CHUNK, pixels), goes through shared memory.
 *
 * While the hidden layer of a tile is evaluated, products for the next one and the sum of the
 * previous one run: both are taken in SLICES.
 *
 * Tensor cores truncate the numbers they read there. On average that loses the factor that to_tf32
 * would have applied before; TF32_CUT applies it after the sum. */
#include "backend/cuda/sm90/narrow_mlp.cuh"

enum {
    WEIGHT_THREADS = 2 * WG_THREADS,
    GROUP = 2 * CHUNK, /* hidden channels of a block */
    TILES_AHEAD = 2,   /* relative to the tile whose hidden layer is evaluated */
    TILE_BUFFERS = 4,  /* the previous tile is still multiplied when a copy begins */
    SLICES = 8
};

/* Sums over pixels per hidden channel of a thread: for b1, and w2 or w1. */
template <bool LIFTS> constexpr int SUMS = LIFTS ? 1 + MAX_INPUT_CHANNELS : 2;

template <int C> struct weights_layout {
    static constexpr int TILE_BYTES = C * WG_PIXELS * (int)sizeof(float);
    static constexpr int TRANSPOSED_BYTES = CHUNK * WG_PIXELS * (int)sizeof(float);
    static constexpr int TILES = 2 * PIECE_BYTES<C>, TRANSPOSED = TILES + TILE_BUFFERS * TILE_BYTES;
    static constexpr int SMALL = TRANSPOSED + 2 * TRANSPOSED_BYTES;
    static constexpr int BYTES = SMALL + GROUP * (int)sizeof(float4);

    /* Buffer of the block's n-th tile. */
    static __device__ char *tile(char *room, int n) {
        return room + TILES + n % TILE_BUFFERS * TILE_BYTES;
    }
};

/* Blocks are (part, group), groups next to each other. */
struct block_share {
    int groups, group, parts, part;
};

static __device__ inline block_share share_of(const narrow_task &t) {
    const int groups = t.hidden / GROUP;
    return {groups, (int)blockIdx.x % groups, (int)gridDim.x / groups, (int)blockIdx.x / groups};
}

static __device__ inline bool exists(const narrow_task &t, const tile_walk &place) {
    return place.sample < t.batch;
}

/* A thread's sums over all tiles. */
template <int C, bool LIFTS> struct weight_sums {
    float dm[C / 2]; /* rows are hidden channels, columns the wide ones */
    float hidden[SUMS<LIFTS>][CHUNK / 4];
    float db2; /* of dy: of the thread's pixels, or of its part of a channel */
};

static __device__ inline void copy_16(void *to, const void *from) {
    copy_async<16>(to, from);
}

/* Starts to copy a tile; every call is a group of copies, also after the last tile. */
template <int C>
static __device__ inline void fetch_tile(const narrow_task &t, const float *wide,
                                         const tile_walk &place, char *to) {
    if (exists(t, place)) {
        constexpr int RUNS = WG_PIXELS / 4, STEP = WEIGHT_THREADS / RUNS; /* channels at a time */
        const int thread = fresh_thread(), c = thread / RUNS, pixel = thread % RUNS * 4;
        const float *from = wide + place.at(C, t.pixels) + c * t.pixels + pixel;
        const int64_t step = (int64_t)fresh((int)t.pixels) * STEP;
#pragma unroll
        for (int i = 0; i < C / STEP; i++) {
            copy_16(to + wg_at<C>(c + i * STEP, pixel), from);
            from += step;
        }
    }
    copies_commit();
}

/* Prefetches a tile into L2. */
template <int C>
static __device__ inline void prefetch_tile(const narrow_task &t, const float *wide,
                                            const tile_walk &place) {
    const int c = threadIdx.x / 2;
    if (c < C && exists(t, place)) {
        const float *from = wide + place.at(C, t.pixels) + c * t.pixels;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + threadIdx.x % 2 * (WG_PIXELS / 2)));
    }
}

template <int N>
static __device__ inline void copy_numbers(const float (&from)[N], float (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        to[i] = from[i];
    }
}

/* Starts a slice of p = M u, where u is a tile in shared memory; reads it into a. */
template <int C>
static __device__ inline void begin_slice(const char *tile, uint64_t piece, int slice,
                                          float (&a)[C / 2 / SLICES], float (&p)[CHUNK / 2]) {
    constexpr int STEPS = C / 8 / SLICES;
    const int thread = fresh_thread(), lane = thread % 4;
    const int pixel = pixel_of(thread), unit = pixel % 32 / 4;
    const char *from = tile + pixel / 32 * (C * 128) + pixel % 4 * 4;
#pragma unroll
    for (int i = 0; i < 2 * STEPS; i++) {
        const int c = 2 * lane + i % 2; /* of eight */
        const char *at = from + (8 * (slice * STEPS + i / 2) + c) * 128 + ((unit ^ c) << 4);
        const float2 v = *reinterpret_cast<const float2 *>(at);
        a[i / 2 * 4 + i % 2] = v.x;
        a[i / 2 * 4 + 2 + i % 2] = v.y;
    }
    wg_fence(a);
    wg_fence(p);
    wg_begin();
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const int k = slice * STEPS + i;
        wg_product(p, wg_factor(a, i), wg_rows<CHUNK>(piece, k), k > 0);
    }
    wg_end();
}

/* ---- evaluating the hidden layer ---- */

/* The narrow end of a thread's two pixels: dy of a projection, x of a lifting. */
template <bool LIFTS> struct narrow_pixels {
    float2 v[LIFTS ? MAX_INPUT_CHANNELS : 1];

    /* Loads from a tile that exists. */
    __device__ void load(const narrow_task &t, const tile_walk &place) {
        if constexpr (LIFTS) {
            load_inputs_at(t, place.at(t.input_channels, t.pixels) + pixel_of(), v);
        } else {
            v[0] = load_two(t.dy + place.at(1, t.pixels) + pixel_of());
        }
    }
};

/* Projection, a slice: its gradient without TF32_CUT; dy is that of the two pixels. */
static __device__ inline void turn(const float4 *pairs, const float2 (&dy)[1], int slice,
                                   float (&p)[CHUNK / 2], float (&sum)[2][CHUNK / 4]) {
    const float2 f = dy[0];
    constexpr int SHARE = CHUNK / 4 / SLICES;
#pragma unroll
    for (int i = slice * SHARE; i < (slice + 1) * SHARE; i++) {
        const int j = i / 2, e = i % 2;
        const float4 m = pairs[4 * j];
        const float bias = e ? m.y : m.x, weight = e ? m.w : m.z;
        float value[2];
        const float a = f.x * gelu_slope(fmaf(p[4 * j + e], TF32_CUT, bias), &value[0]);
        const float b = f.y * gelu_slope(fmaf(p[4 * j + 2 + e], TF32_CUT, bias), &value[1]);
        sum[0][i] += a + b; /* times w2 at the end */
        sum[1][i] = fmaf(f.x, value[0], fmaf(f.y, value[1], sum[1][i]));
        p[4 * j + e] = weight * a;
        p[4 * j + 2 + e] = weight * b;
    }
}

/* Lifting, a slice: replaces p, its gradient without TF32_CUT, by the hidden layer itself. */
static __device__ inline void turn(const float4 *rows, const float2 (&x)[MAX_INPUT_CHANNELS],
                                   int slice, float (&p)[CHUNK / 2],
                                   float (&sum)[1 + MAX_INPUT_CHANNELS][CHUNK / 4]) {
    constexpr int SHARE = CHUNK / 4 / SLICES;
#pragma unroll
    for (int i = slice * SHARE; i < (slice + 1) * SHARE; i++) {
        const int j = i / 2, e = i % 2;
        const float4 row = rows[8 * j + e];
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const float x0 = side ? x[0].y : x[0].x, x1 = side ? x[1].y : x[1].x;
            const float x2 = side ? x[2].y : x[2].x;
            float &v = p[4 * j + 2 * side + e], value;
            const float d =
                v * gelu_slope(lifted(row, x0, x1, x2), &value); /* TF32_CUT at the end */
            sum[0][i] += d;
            sum[1][i] = fmaf(d, x0, sum[1][i]);
            sum[2][i] = fmaf(d, x1, sum[2][i]);
            sum[3][i] = fmaf(d, x2, sum[3][i]);
            v = value;
        }
    }
}

/* For each channel of a lifting's dy, WEIGHT_THREADS / C threads compute partial sums. */
template <int C> static __device__ inline float sum_part(const char *tile) {
    constexpr int SHARES = WEIGHT_THREADS / C, RUNS = WG_PIXELS / 4 / SHARES;
    const int c = (int)threadIdx.x / SHARES, first = (int)threadIdx.x % SHARES * RUNS;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        const float4 v = *reinterpret_cast<const float4 *>(tile + wg_at<C>(c, 4 * (first + i)));
        sum += (v.x + v.y) + (v.z + v.w);
    }
    return sum;
}

/* Stores a slice of the transposed hidden layer to shared memory. */
static __device__ inline void put_slice(const float (&p)[CHUNK / 2], int slice, char *to) {
    constexpr int SHARE = CHUNK / 4 / SLICES;
    const int thread = fresh_thread(), lane = thread % 4, pixel = pixel_of(thread);
#pragma unroll
    for (int i = slice * SHARE; i < (slice + 1) * SHARE; i++) {
        const int j = i / 2, e = i % 2;
        *reinterpret_cast<float2 *>(to + wg_at<CHUNK>(8 * j + 2 * lane + e, pixel)) = {
            p[4 * j + e], p[4 * j + 2 + e]};
    }
}

/* ---- partial sums of a block ---- */

template <int C, bool LIFTS>
static __device__ inline void store_dm(const narrow_task &t, const float (&dm)[C / 2], int part,
                                       int h) {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < C / 8; j++) {
        const int c = 8 * j + 2 * lane;
        const float *v = dm + 4 * j;
        if (LIFTS) {
            float *to = t.dm + ((int64_t)part * C + c) * t.hidden + h;
            to[0] = TF32_CUT * TF32_CUT * v[0];
            to[t.hidden] = TF32_CUT * TF32_CUT * v[1];
            to[8] = TF32_CUT * TF32_CUT * v[2];
            to[t.hidden + 8] = TF32_CUT * TF32_CUT * v[3];
        } else {
            float *to = t.dm + ((int64_t)part * t.hidden + h) * C + c;
            store_two(to, TF32_CUT * TF32_CUT * v[0], TF32_CUT * TF32_CUT * v[1]);
            store_two(to + 8 * C, TF32_CUT * TF32_CUT * v[2], TF32_CUT * TF32_CUT * v[3]);
        }
    }
}

/* Reduces over the threads of a hidden channel, in a fixed order; room: (SUMS, 4 warps, GROUP). */
template <bool LIFTS>
static __device__ inline void store_hidden(const narrow_task &t,
                                           const float (&sum)[SUMS<LIFTS>][CHUNK / 4], int part,
                                           int group, float *room) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int chunk = threadIdx.x / WG_THREADS;
#pragma unroll
    for (int s = 0; s < SUMS<LIFTS>; s++) {
#pragma unroll
        for (int i = 0; i < CHUNK / 4; i++) {
            float v = sum[s][i];
            v += __shfl_xor_sync(~0u, v, 4);
            v += __shfl_xor_sync(~0u, v, 8);
            v += __shfl_xor_sync(~0u, v, 16);
            if (lane < 4) {
                room[(s * 4 + warp) * GROUP + chunk * CHUNK + i / 2 * 8 + 2 * lane + i % 2] = v;
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SUMS<LIFTS> * GROUP; i += WEIGHT_THREADS) {
        const int s = i / GROUP, h = group * GROUP + i % GROUP;
        const float *of_warp = room + s * 4 * GROUP + i % GROUP;
        float v = (of_warp[0] + of_warp[GROUP]) + (of_warp[2 * GROUP] + of_warp[3 * GROUP]);
        v *= LIFTS ? TF32_CUT : s == 0 ? t.w2[h] : 1.0f;
        if (s == 0) {
            t.db1[(int64_t)part * t.hidden + h] = v;
        } else if (!LIFTS) {
            t.dnarrow[(int64_t)part * t.hidden + h] = v;
        } else if (s <= t.input_channels) {
            t.dnarrow[((int64_t)part * t.hidden + h) * t.input_channels + s - 1] = v;
        }
    }
}

/* Both warpgroups have the same sums of a projection's dy; room: (WEIGHT_THREADS). */
template <int C, bool LIFTS>
static __device__ inline void store_db2(const narrow_task &t, float db2, int part, int group,
                                        float *room) {
    constexpr int SHARES = LIFTS ? WEIGHT_THREADS / C : WG_THREADS;
    room[threadIdx.x] = db2;
    __syncthreads();
    if (LIFTS ? threadIdx.x < C : threadIdx.x == 0 && group == 0) {
        double sum = 0.0;
        for (int i = 0; i < SHARES; i++) {
            sum += (double)room[threadIdx.x * SHARES + i];
        }
        t.db2[LIFTS ? (int64_t)blockIdx.x * C + threadIdx.x : part] = (float)sum;
    }
}

/* room: for both of these, one after the other. */
template <int C, bool LIFTS>
static __device__ inline void store_sums(const narrow_task &t, const block_share &share,
                                         const weight_sums<C, LIFTS> &sums, float *room) {
    const int chunk = threadIdx.x / WG_THREADS, warp = threadIdx.x / 32 % 4;
    const int row = chunk * CHUNK + warp * 16 + (int)threadIdx.x % 32 / 4;
    store_dm<C, LIFTS>(t, sums.dm, share.part, share.group * GROUP + row);
    __syncthreads();
    store_hidden<LIFTS>(t, sums.hidden, share.part, share.group, room);
    store_db2<C, LIFTS>(t, sums.db2, share.part, share.group, room + SUMS<LIFTS> * 4 * GROUP);
}

/* ---- the kernel ---- */

/* Starts to copy the block's pieces and its first tiles, and waits for all but the second tile. */
template <int C, bool LIFTS>
static __device__ inline void begin_block(const narrow_task &t, const block_share &share,
                                          const float *wide, char *room) {
    using L = weights_layout<C>;
    const char *pieces = reinterpret_cast<const char *>(t.to_hidden);
    float4 *small = reinterpret_cast<float4 *>(room + L::SMALL);
    if (threadIdx.x < GROUP) {
        const int h = share.group * GROUP + (int)threadIdx.x;
        LIFTS ? put_row(t, h, threadIdx.x, small) : put_pair(t, h, threadIdx.x, small);
    }
    pdl_wait_and_launch_dependents();
    for (int i = threadIdx.x * 16; i < 2 * PIECE_BYTES<C>; i += WEIGHT_THREADS * 16) {
        copy_16(room + i, pieces + (int64_t)share.group * 2 * PIECE_BYTES<C> + i);
    }
    for (int i = 0; i < TILES_AHEAD; i++) {
        fetch_tile<C>(t, wide, tile_walk(share.part + i * share.parts, t.pixels), L::tile(room, i));
    }
    copies_wait_all_but<TILES_AHEAD - 1>();
    wg_publish();
    __syncthreads();
}

template <int C, bool LIFTS>
static __global__ void __launch_bounds__(WEIGHT_THREADS, 1) sum_weights(narrow_task t) {
    using L = weights_layout<C>;
    extern __shared__ __align__(1024) char room[];
    const int chunk = same_in_warp((int)threadIdx.x / WG_THREADS), lane = threadIdx.x % 4;
    const block_share share = share_of(t);
    const float *wide = LIFTS ? t.dy : t.x;
    const float4 *small = reinterpret_cast<const float4 *>(room + L::SMALL) +
                          (LIFTS ? chunk * CHUNK + 2 * lane : chunk * (CHUNK / 2) + lane);
    const uint64_t piece = wg_matrix(room + chunk * PIECE_BYTES<C>);
    char *transposed = room + L::TRANSPOSED + chunk * L::TRANSPOSED_BYTES;
    weight_sums<C, LIFTS> sums = {};
    float a[2][C / 2 / SLICES];
    float p[CHUNK / 2], next[CHUNK / 2]; /* hidden layers of this tile and the next */
    narrow_pixels<LIFTS> pixels, later;
    begin_block<C, LIFTS>(t, share, wide, room);
    const tile_walk step(share.parts, t.pixels);
    tile_walk next_place(share.part, t.pixels);
    tile_walk fetched(share.part + (TILES_AHEAD - 1) * share.parts, t.pixels);
    tile_walk prefetched(share.part + (2 * TILES_AHEAD - 1) * share.parts, t.pixels);
    pixels.load(t, next_place);
    wg_clear(next);
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
        begin_slice<C>(L::tile(room, 0), piece, slice, a[0], next);
        wg_wait<0>();
    }
    wg_fence(next);
    copy_numbers(next, p);
    wg_fence(sums.dm);
    int whose = 0; /* group that sums dy of a lifting's tile */
    const int tiles = tiles_of(t);
    for (int tile = share.part, n = 0; tile < tiles; tile += share.parts, n++) {
        const char *now = L::tile(room, n);
        copies_wait_all_but<0>();
        __syncthreads(); /* the next tile has arrived; the one before the previous is no longer read
                          */
        next_place.move(step, t.pixels);
        fetched.move(step, t.pixels);
        prefetched.move(step, t.pixels);
        if (exists(t, next_place)) {
            later.load(t, next_place);
        }
        fetch_tile<C>(t, wide, fetched, L::tile(room, n + TILES_AHEAD));
        prefetch_tile<C>(t, wide, prefetched);
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) { /* after the last tile: unused */
            begin_slice<C>(L::tile(room, n + 1), piece, slice, a[slice % 2], next);
            turn(small, pixels.v, slice, p, sums.hidden);
            if (slice > 0) {
                wg_wait<1>();
                wg_fence(a[1 - slice % 2]);
                if (slice == 1) { /* also waits for the previous sum: its inputs are free */
                    wg_fence(sums.dm);
                    wg_sync();
                }
                put_slice(p, slice - 1, transposed);
            }
        }
        put_slice(p, SLICES - 1, transposed);
        if constexpr (LIFTS) {
            sums.db2 += whose == share.group ? sum_part<C>(now) : 0.0f;
            whose = whose + 1 < share.groups ? whose + 1 : 0;
        } else {
            sums.db2 += lane == 0 ? pixels.v[0].x + pixels.v[0].y : 0.0f;
        }
        wg_publish(); /* and the next tile */
        wg_sync();
        wg_begin();
#pragma unroll
        for (int k = 0; k < WG_PIXELS / 8; k++) {
            wg_product(sums.dm, wg_rows<CHUNK>(wg_matrix(transposed), k),
                       wg_rows<C>(wg_matrix(now), k), true);
        }
        wg_end();
        wg_wait<1>(); /* waits for the next hidden layer; the sum still runs */
        wg_fence(a[1]);
        wg_fence(next);
        copy_numbers(next, p);
        pixels = later;
    }
    wg_wait<0>();
    wg_fence(sums.dm);
    copies_wait_all_but<0>();
    store_sums<C, LIFTS>(t, share, sums, reinterpret_cast<float *>(room + L::TILES));
}

/* ---- host ---- */

template <int C, bool LIFTS>
static tg_status launch(tg_backend *be, int parts, const narrow_task &t) {
    return launch_pdl(be, "a narrow MLP backwards", sum_weights<C, LIFTS>,
                      (unsigned)(parts * (t.hidden / GROUP)), WEIGHT_THREADS,
                      weights_layout<C>::BYTES, t);
}

tg_status narrow_weights(tg_backend *be, int64_t channels, bool lifts, int parts,
                         const narrow_task &t) {
    return with_size<64, 128>(channels, [&](auto c) {
        constexpr int C = decltype(c)::value;
        return lifts ? launch<C, true>(be, parts, t) : launch<C, false>(be, parts, t);
    });
}
