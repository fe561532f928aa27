/* MLPs that are narrow at one end, by tiles of pixels: forward, and the input gradient of a
 * projection (narrow_mlp.cuh).
 *
 * One warpgroup of a block only starts copies: pieces of M go through a ring in shared memory, and
 * each block of a cluster loads its share of a piece for all. Each of the other warpgroups has its
 * own tile, without synchronization between them: while one waits for products, another one
 * evaluates GELU. */
#include "backend/cuda/sm90/narrow_mlp.cuh"

enum { CLUSTER = 2, RING_BYTES = 192 << 10 };

template <int C> constexpr int STAGES = RING_BYTES / PIECE_BYTES<C>;

/* Warpgroups with a tile, limited by registers: their threads of one index share 512. */
template <int PASS> struct crew {
    static constexpr int WORKERS = PASS == NARROW_DX ? 2 : 3;
    static constexpr int THREADS = (WORKERS + 1) * WG_THREADS;
    static constexpr int REGISTERS = WORKERS == 2 ? 240 : 160;
    static constexpr int COPIER_REGISTERS = WORKERS == 2 ? 24 : 32;
};

template <int C> static size_t stream_shared(int hidden) {
    return RING_BYTES + 2 * STAGES<C> * sizeof(uint64_t) + (size_t)hidden * sizeof(float4) +
           C * sizeof(float);
}

/* The shared memory of a block: the ring, its barriers, weights of the hidden channels in the
 * layout of put_pair and put_row, and b2 of a lifting. Constant addresses save registers. */
template <int C> struct stream_room {
    static __device__ char *piece(int stage) {
        extern __shared__ __align__(1024) char room[];
        return room + stage * PIECE_BYTES<C>;
    }
    static __device__ uint64_t *full(int stage) {
        return reinterpret_cast<uint64_t *>(piece(STAGES<C>)) + stage;
    }
    static __device__ uint64_t *empty(int stage) {
        return full(STAGES<C> + stage);
    }
    static __device__ float4 *small() {
        return reinterpret_cast<float4 *>(full(2 * STAGES<C>));
    }
    static __device__ float *b2(int hidden) {
        return reinterpret_cast<float *>(small() + hidden);
    }
};

/* ---- the ring ---- */

/* Pieces in the order of use, tile after tile; if all fit, they stay. */
template <int C> struct piece_ring {
    using room = stream_room<C>;
    int per_tile, laps;

    __device__ bool stays() const {
        return per_tile <= STAGES<C>;
    }
    /* `workers` warpgroups will release it. */
    __device__ void init(int workers) const {
        for (int i = 0; i < STAGES<C>; i++) {
            barrier_init(room::full(i), 1);
            barrier_init(room::empty(i), CLUSTER * workers * 4);
        }
        barriers_made();
    }
    /* One thread sends all pieces; piece i of a tile is read from source(i). */
    template <class F> __device__ void send(F source) const {
        constexpr int SHARE_BYTES = PIECE_BYTES<C> / CLUSTER;
        const int offset = cluster_rank() * SHARE_BYTES,
                  count = stays() ? per_tile : laps * per_tile;
        for (int i = 0; i < count; i++) {
            const int stage = i % STAGES<C>;
            if (i >= STAGES<C>) {
                barrier_wait(room::empty(stage), (i / STAGES<C> - 1) & 1);
            }
            barrier_expect(room::full(stage), PIECE_BYTES<C>);
            copy_to_cluster<CLUSTER>(room::piece(stage) + offset, source(i % per_tile) + offset,
                                     SHARE_BYTES, room::full(stage));
        }
    }
    /* Piece i of the tile of a lap: waits for its matrix, and releases it for a warp. */
    __device__ uint64_t await(int lap, int i) const {
        const int at = stays() ? i : lap * per_tile + i, stage = at % STAGES<C>;
        barrier_wait(room::full(stage), at / STAGES<C> & 1);
        return wg_matrix(room::piece(stage));
    }
    __device__ void release(int lap, int i, bool taken = true) const {
        if (!stays() && taken && threadIdx.x % 32 < CLUSTER) {
            barrier_arrive(room::empty((lap * per_tile + i) % STAGES<C>), (int)threadIdx.x % 32);
        }
    }
};

/* A tile and what its warpgroup works with. */
template <int C> struct tile_work {
    piece_ring<C> ring;
    int lap, tile;
    bool counts; /* false: a copy of another warpgroup's tile, which that one writes */
};

/* Starts p = M u for the chunk whose piece is number i of the tile. */
template <int C>
static __device__ inline void begin_hidden(const tile_work<C> &w, const float (&u)[C / 2], int i,
                                           float (&p)[CHUNK / 2]) {
    const uint64_t b = w.ring.await(w.lap, i);
    wg_fence(p);
    wg_begin();
#pragma unroll
    for (int k = 0; k < C / 8; k++) {
        wg_product(p, wg_factor(u, k), wg_rows<CHUNK>(b, k), k > 0);
    }
    wg_end();
}

/* Starts wide += p M for the chunk of a piece. */
template <int C>
static __device__ inline void begin_wide(uint64_t piece, float (&p)[CHUNK / 2],
                                         float (&wide)[C / 2]) {
    wg_fence(p);
    wg_begin();
#pragma unroll
    for (int k = 0; k < CHUNK / 8; k++) {
        wg_product(wide, wg_factor(p, k), wg_rows<C>(piece, k), true);
    }
    wg_end();
}

template <int C>
static __device__ inline void load_input(const narrow_task &t, int tile, float (&u)[C / 2]) {
    const float *from = t.x + pixels_at(t, tile, C) + (int64_t)(threadIdx.x % 4 * 2) * t.pixels;
#pragma unroll
    for (int j = 0; j < C / 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float2 v = load_two(from + (int64_t)(8 * j + e) * t.pixels);
            u[4 * j + e] = to_tf32(v.x);
            u[4 * j + 2 + e] = to_tf32(v.y);
        }
    }
}

/* Prefetches the input of a tile into L2. */
template <int C> static __device__ inline void prefetch_input(const narrow_task &t, int tile) {
    const int c = threadIdx.x % WG_THREADS;
    if (c < C && tile < tiles_of(t)) {
        const int64_t first = pixels_at(t, tile, C) - pixel_of() + c * t.pixels;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(t.x + first));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(t.x + first + WG_PIXELS / 2));
    }
}

/* f(p, other, chunk, more) for all chunks, which alternate between two arrays; more: there is a
 * next chunk, which uses `other`. */
template <class F>
static __device__ inline void each_chunk(int chunks, float (&p)[2][CHUNK / 2], F f) {
    int c = 0;
    for (; c + 2 < chunks; c += 2) {
        f(p[0], p[1], c, std::true_type());
        f(p[1], p[0], c + 1, std::true_type());
    }
    f(p[0], p[1], c, std::true_type());
    f(p[1], p[0], c + 1, std::false_type());
}

/* ---- a projection, forward ---- */

/* sums of a thread's two pixels += w2 gelu(p + b1). */
static __device__ inline void sum_hidden(const float4 *pairs, const float (&p)[CHUNK / 2],
                                         float (&sum)[2]) {
#pragma unroll
    for (int j = 0; j < CHUNK / 8; j++) {
        const float4 m = pairs[4 * j];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            sum[i] = fmaf(m.z, gelu(p[4 * j + 2 * i] + m.x), sum[i]);
            sum[i] = fmaf(m.w, gelu(p[4 * j + 2 * i + 1] + m.y), sum[i]);
        }
    }
}

static __device__ inline void finish_one(const narrow_task &t, int64_t at, float sum) {
    float y = t.alpha * (sum + *t.b2);
    y += t.beta == 0.0f ? 0.0f : t.beta * t.y[at];
    y += t.add ? (t.gate ? *t.gate : 1.0f) * t.add[at] : 0.0f;
    t.y[at] = y;
    if (t.activated) {
        t.activated[at] = gelu(y);
    }
}

template <int C>
static __device__ inline void project(const narrow_task &t, const tile_work<C> &w,
                                      float (&p)[2][CHUNK / 2]) {
    const int lane = threadIdx.x % 4;
    float u[C / 2], sum[2] = {0.0f, 0.0f};
    load_input<C>(t, w.tile, u);
    begin_hidden<C>(w, u, 0, p[0]);
    each_chunk(t.hidden / CHUNK, p, [&](auto &now, auto &other, int c, auto more) {
        wg_wait<0>();
        wg_fence(now);
        w.ring.release(w.lap, c);
        if constexpr (decltype(more)::value) {
            begin_hidden<C>(w, u, c + 1, other);
        }
        sum_hidden(stream_room<C>::small() + c * (CHUNK / 2) + lane, now, sum);
    });
    for (int i = 0; i < 2; i++) { /* over the four threads of a pixel */
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    }
    if (w.counts && lane < 2) {
        finish_one(t, pixels_at(t, w.tile, 1) + lane, lane ? sum[1] : sum[0]);
    }
}

/* ---- the gradient of its input ---- */

/* Replaces p by its gradient, f gelu'(p + b1) w2, where f is the gradient of the pixel's output. */
static __device__ inline void transpose_hidden(const float4 *pairs, float2 f,
                                               float (&p)[CHUNK / 2]) {
#pragma unroll
    for (int j = 0; j < CHUNK / 8; j++) {
        const float4 m = pairs[4 * j];
        float value;
        p[4 * j] = m.z * f.x * gelu_slope(p[4 * j] + m.x, &value);
        p[4 * j + 1] = m.w * f.x * gelu_slope(p[4 * j + 1] + m.y, &value);
        p[4 * j + 2] = m.z * f.y * gelu_slope(p[4 * j + 2] + m.x, &value);
        p[4 * j + 3] = m.w * f.y * gelu_slope(p[4 * j + 3] + m.y, &value);
    }
}

template <int C>
static __device__ inline void write_dx(const narrow_task &t, int tile, const float (&du)[C / 2]) {
    float *dx = t.dx + pixels_at(t, tile, C) + (int64_t)(threadIdx.x % 4 * 2) * t.pixels;
#pragma unroll
    for (int j = 0; j < C / 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float *to = dx + (int64_t)(8 * j + e) * t.pixels;
            float2 v = {du[4 * j + e], du[4 * j + 2 + e]};
            if (t.beta != 0.0f) {
                const float2 old = load_two(to);
                v = {fmaf(t.beta, old.x, v.x), fmaf(t.beta, old.y, v.y)};
            }
            store_two(to, v.x, v.y);
        }
    }
}

/* Pieces of a chunk: into the hidden layer, and out of it. */
template <int C>
static __device__ inline void project_back(const narrow_task &t, const tile_work<C> &w,
                                           float (&p)[2][CHUNK / 2]) {
    float u[C / 2], du[C / 2];
    load_input<C>(t, w.tile, u);
    float2 f = load_two(t.dy + pixels_at(t, w.tile, 1));
    f = {to_tf32(t.alpha * f.x), to_tf32(t.alpha * f.y)};
    wg_clear(du);
    wg_fence(du);
    begin_hidden<C>(w, u, 0, p[0]);
    each_chunk(t.hidden / CHUNK, p, [&](auto &now, auto &other, int c, auto more) {
        wg_wait<0>(); /* p of this chunk, and the previous chunk's du, which is in `other` */
        wg_fence(now);
        wg_fence(other);
        wg_fence(du);
        w.ring.release(w.lap, 2 * c);
        w.ring.release(w.lap, 2 * c - 1, c > 0);
        if constexpr (decltype(more)::value) {
            begin_hidden<C>(w, u, 2 * c + 2, other);
        }
        transpose_hidden(stream_room<C>::small() + c * (CHUNK / 2) + threadIdx.x % 4, f, now);
        begin_wide<C>(w.ring.await(w.lap, 2 * c + 1), now, du);
    });
    wg_wait<0>();
    wg_fence(du);
    w.ring.release(w.lap, w.ring.per_tile - 1);
    if (w.counts) {
        write_dx<C>(t, w.tile, du);
    }
}

/* ---- a lifting, forward ---- */

/* p = gelu(w1 x + b1). */
static __device__ inline void lift_hidden(const float4 *rows, const float2 (&x)[MAX_INPUT_CHANNELS],
                                          float (&p)[CHUNK / 2]) {
#pragma unroll
    for (int j = 0; j < CHUNK / 8; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float4 row = rows[8 * j + e];
            p[4 * j + e] = to_tf32(gelu(lifted(row, x[0].x, x[1].x, x[2].x)));
            p[4 * j + 2 + e] = to_tf32(gelu(lifted(row, x[0].y, x[1].y, x[2].y)));
        }
    }
}

template <int C>
static __device__ inline void lift(const narrow_task &t, const tile_work<C> &w,
                                   float (&p)[2][CHUNK / 2]) {
    const int channel = threadIdx.x % 4 * 2, chunks = t.hidden / CHUNK;
    float y[C / 2];
    float2 x[MAX_INPUT_CHANNELS];
    load_inputs(t, w.tile, x);
    wg_clear(y);
    const auto step = [&](float(&now)[CHUNK / 2], int c) {
        lift_hidden(stream_room<C>::small() + c * CHUNK + channel, x, now);
        begin_wide<C>(w.ring.await(w.lap, c), now, y);
        wg_wait<1>(); /* the previous one is done: the other array is free */
        w.ring.release(w.lap, c - 1, c > 0);
    };
    for (int c = 0; c < chunks; c += 2) {
        step(p[0], c);
        step(p[1], c + 1);
    }
    wg_wait<0>();
    wg_fence(y);
    w.ring.release(w.lap, chunks - 1);
#pragma unroll
    for (int i = 0; i < C / 4; i++) {
        const int k = i / 2 * 4 + i % 2;
        const float bias = stream_room<C>::b2(t.hidden)[i / 2 * 8 + i % 2 + channel];
        y[k] = t.alpha * (y[k] + bias);
        y[k + 2] = t.alpha * (y[k + 2] + bias);
    }
    float *to = t.y + pixels_at(t, w.tile, C) + channel * t.pixels;
#pragma unroll
    for (int i = 0; i < C / 4 && w.counts; i++) {
        const int k = i / 2 * 4 + i % 2;
        store_two(to + (int64_t)(i / 2 * 8 + i % 2) * t.pixels, y[k], y[k + 2]);
    }
}

/* ---- the kernel ---- */

template <int C, int PASS>
static __global__ void IN_CLUSTERS_OF(CLUSTER) __launch_bounds__(crew<PASS>::THREADS, 1)
    stream_tiles(narrow_task t) {
    const int group = __shfl_sync(~0u, threadIdx.x / WG_THREADS, 0);
    const int tiles = tiles_of(t), at_once = (int)gridDim.x * crew<PASS>::WORKERS;
    tile_work<C> w = {};
    w.ring.per_tile = t.hidden / CHUNK * (PASS == NARROW_DX ? 2 : 1);
    w.ring.laps = (tiles + at_once - 1) / at_once;
    if (threadIdx.x == 0) {
        w.ring.init(crew<PASS>::WORKERS);
    }
    for (int h = threadIdx.x; h < t.hidden; h += crew<PASS>::THREADS) {
        if (PASS == NARROW_LIFT) {
            put_row(t, h, h, stream_room<C>::small());
        } else {
            put_pair(t, h, h, stream_room<C>::small());
        }
    }
    for (int c = threadIdx.x; PASS == NARROW_LIFT && c < C; c += crew<PASS>::THREADS) {
        stream_room<C>::b2(t.hidden)[c] = t.b2[c];
    }
    pdl_wait();
    __syncthreads();
    cluster_sync();
    if (group == crew<PASS>::WORKERS) {
        registers_decrease<crew<PASS>::COPIER_REGISTERS>();
        if (threadIdx.x % WG_THREADS == 0) {
            w.ring.send([&](int i) {
                const bool back = PASS == NARROW_LIFT || (PASS == NARROW_DX && i % 2 == 1);
                const int chunk = PASS == NARROW_DX ? i / 2 : i;
                return reinterpret_cast<const char *>(back ? t.to_wide : t.to_hidden) +
                       (int64_t)chunk * PIECE_BYTES<C>;
            });
        }
    } else {
        registers_increase<crew<PASS>::REGISTERS>();
        float p[2][CHUNK / 2]; /* hidden layers of two chunks */
        wg_clear(p[0]);
        wg_clear(p[1]);
        for (w.lap = 0; w.lap < w.ring.laps; w.lap++) {
            const int tile = w.lap * at_once + (int)blockIdx.x * crew<PASS>::WORKERS + group;
            w.counts = tile < tiles;
            w.tile = w.counts ? tile : tiles - 1;
            if constexpr (PASS == NARROW_LIFT) {
                lift<C>(t, w, p);
            } else {
                prefetch_input<C>(t, tile + at_once);
                if constexpr (PASS == NARROW_DX) {
                    project_back<C>(t, w, p);
                } else {
                    project<C>(t, w, p);
                }
            }
        }
    }
    cluster_sync(); /* no block exits while another one writes to its memory */
}

/* ---- host ---- */

template <int C, int PASS> static tg_status launch(tg_backend *be, const narrow_task &t) {
    const int64_t tiles = t.batch * (t.pixels / WG_PIXELS);
    const int64_t of_cluster = CLUSTER * crew<PASS>::WORKERS;
    const int64_t wanted = (tiles + of_cluster - 1) / of_cluster;
    const int64_t clusters = tg_min(wanted, cuda_state_of(be)->processors / CLUSTER);
    return launch_pdl(be, "a narrow MLP", stream_tiles<C, PASS>, (unsigned)(clusters * CLUSTER),
                      crew<PASS>::THREADS, stream_shared<C>(t.hidden), t);
}

tg_status narrow_stream(tg_backend *be, int64_t channels, narrow_pass pass, const narrow_task &t) {
    return with_size<64, 128>(channels, [&](auto c) {
        constexpr int C = decltype(c)::value;
        return pass == NARROW_FORWARD ? launch<C, NARROW_FORWARD>(be, t)
               : pass == NARROW_DX    ? launch<C, NARROW_DX>(be, t)
                                      : launch<C, NARROW_LIFT>(be, t);
    });
}
