/* The spectral product of a factorized weight in one pass: channels are mapped, multiplied mode by
 * mode with the weight in between, and mapped back; and the gradients of both maps.
 *
 * A block processes MODES modes of SAMPLES samples: in each of the three steps a matrix with MODES
 * x SAMPLES columns, kept in shared memory. All products are in TF32 on tensor cores. The weight is
 * prefetched from the start in chunks of a few channels through a ring buffer. A row holds MODES
 * modes, two per lane, so that every mode is a separate matrix whose columns are the samples. Where
 * tiles extend past a row, zeros cancel the extra terms, or results are discarded. */
#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/complex.cuh"
#include "backend/cuda/tile/stage.cuh"

enum {
    MODES = 8,
    SAMPLES = 8,
    COLUMNS = MODES * SAMPLES, /* sample by sample */
    COLUMN_ROW = COLUMNS + 4,
    MAX_CHANNELS = 64,
    MAX_INNER = 36,
    INNER_TILES = (MAX_INNER + 7) / 8,
    MAX_TILES = (INNER_TILES + 1) / 2, /* of a warp: half of them, rounded up */
    MAP_ROW = MAX_INNER,
    MAP_SIZE = MAX_CHANNELS * MAP_ROW + 4, /* a tile extends past the last row */
    STRIPS = 2,                            /* of 8 columns, which a warp maps */
    GROUPS = COLUMNS / (8 * STRIPS),       /* warps for all columns; two for the rows */
    WARPS = 2 * GROUPS,                    /* that multiply; all threads copy */
    CHUNK = 4,                             /* channels of the weight */
    CHUNKS = MAX_INNER / CHUNK,
    CHUNK_ROW = MAX_INNER * MODES + 2, /* of a channel; the weights of neighbours in other banks */
    CHUNK_SIZE = CHUNK * CHUNK_ROW + 4 * MODES, /* a tile reaches beyond the last row */
    RING = 4,                                   /* chunks */
    PIECES = MODES / 2,                         /* of two modes, 16 bytes, of a row in memory */
    THREADS = 2 * MAX_INNER * PIECES,
    CONTRACT_SIZE = RING * CHUNK_SIZE + (MAX_CHANNELS + 8 * INNER_TILES) * COLUMN_ROW + MAP_SIZE
};

struct mapped_sizes {
    int64_t batch, modes;
    int channels, from, to;     /* inner channels, in the direction of the product */
    int64_t from_step, to_step; /* of the weight */
    float sign;                 /* -1: everything but src is conjugated */
};

/* ---- the product ---- */

/* Asynchronous and not rounded (see TF32_CUT). 0 past the last row and column. */
static __device__ inline void fetch_map(float2 *to, const float2 *from, int rows, int columns) {
    static_assert(THREADS % MAP_ROW == 0, "a thread copies entries of one column");
    const int j = threadIdx.x % MAP_ROW;
#pragma unroll
    for (int q = 0; q < MAX_CHANNELS * MAP_ROW / THREADS; q++) {
        const int i = (int)threadIdx.x / MAP_ROW + q * (THREADS / MAP_ROW);
        const bool counts = i < rows && j < columns;
        copy_async<8>(to + i * MAP_ROW + j, counts ? from + i * columns + j : from, counts);
    }
}

/* Columns (sample, mode) of src from mode k0 and sample b0 on; 0 past the last. */
static __device__ inline void fetch_columns(const mapped_sizes &s, const float2 *src, int64_t b0,
                                            int64_t k0, float2 *columns) {
    enum { OF_ROW = SAMPLES * PIECES, ROWS = THREADS / OF_ROW };
    static_assert(THREADS % OF_ROW == 0, "a thread copies the same columns of all its rows");
    const int b = threadIdx.x / PIECES % SAMPLES, k = threadIdx.x % PIECES * 2;
    const bool exists = b0 + b < s.batch && k0 + k < s.modes;
    int c = threadIdx.x / OF_ROW;
    const float2 *from = src + ((b0 + b) * s.channels + c) * s.modes + k0 + k;
    for (float2 *to = columns + c * COLUMN_ROW + b * MODES + k; c < MAX_CHANNELS; c += ROWS) {
        const bool counts = exists && c < s.channels;
        copy_async<16>(to, counts ? from : src, counts);
        from += ROWS * s.modes;
        to += ROWS * COLUMN_ROW;
    }
}

/* A thread's share of copying the weight: two modes of a row of every second channel; 0 past the
 * last channel, row and mode. */
struct weight_copies {
    const float2 *from;
    float2 *to;
    int left; /* channels, from the thread's first on */

    __device__ weight_copies(const mapped_sizes &s, const float2 *weight, int64_t k0,
                             float2 *ring) {
        const int piece = threadIdx.x % PIECES * 2, row = threadIdx.x / PIECES % MAX_INNER;
        const int channel = threadIdx.x / (PIECES * MAX_INNER);
        const bool exists = row < s.to && k0 + piece < s.modes;
        from = exists ? weight + channel * s.from_step + row * s.to_step + k0 + piece : weight;
        to = ring + channel * CHUNK_ROW + row * MODES + piece;
        left = exists ? s.from - channel : 0;
    }
    __device__ void fetch(const mapped_sizes &s, int chunk) const {
        static_assert(CHUNK == 4, "two channels of a thread");
#pragma unroll
        for (int q = 0; q < CHUNK; q += 2) {
            const int channel = chunk * CHUNK + q;
            const bool counts = channel < left;
            copy_async<16>(to + chunk % RING * CHUNK_SIZE + q * CHUNK_ROW,
                           counts ? from + channel * s.from_step : from, counts);
        }
    }
};

/* A product of factors that were not rounded; its conjugate where `sign` is -1. */
static __device__ inline float4 times_cut(float4 x, float sign = 1.0f) {
    constexpr float factor = TF32_CUT * TF32_CUT;
    const float im = sign * factor;
    return make_float4(factor * x.x, im * x.y, factor * x.z, im * x.w);
}

/* A lane's output in (batch, rows, modes): two modes of consecutive samples from `sample` on, in
 * every eighth row from `row` on. Numbers that do not exist are discarded. */
struct column_sink {
    float2 *at;
    int64_t of_sample, of_rows;
    int rows, samples; /* that exist */

    __device__ column_sink(const mapped_sizes &s, float2 *out, int all_rows, int row,
                           int64_t sample, int64_t mode)
        : at(out + (sample * all_rows + row) * s.modes + mode), of_sample(all_rows * s.modes),
          of_rows(8 * s.modes), rows(all_rows - row),
          samples(mode < s.modes ? (int)min(s.batch - sample, (int64_t)SAMPLES) : 0) {
    }
    __device__ void put(int tile, int sample, float4 x) const {
        if (8 * tile < rows && sample < samples) {
            *reinterpret_cast<float4 *>(at + tile * of_rows + sample * of_sample) = x;
        }
    }
};

/* Calls put(tile, strip, two numbers) for `tiles` (at most TILES) row tiles of map times columns,
 * summed over DEPTH rows of columns; a warp handles STRIPS strips. Conjugated where `sign` is -1.
 * Entry (m, k) of the map is map[m * map_row + k * map_column]. */
template <int DEPTH, int TILES, class F>
static __device__ inline void map_columns(const float2 *map, int map_row, int map_column, int tiles,
                                          const float2 *columns, float sign, int lane, F put) {
    sum_tile sum[TILES][STRIPS] = {};
#pragma unroll 4
    for (int k = 0; k < DEPTH; k += 4) {
        right_tile b[STRIPS];
#pragma unroll
        for (int n = 0; n < STRIPS; n++) {
            b[n] = load_right(columns + k * COLUMN_ROW + 8 * n, COLUMN_ROW, 1, lane);
            b[n].b.y *= sign;
        }
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            if (m < tiles) {
                const left_tile a = load_left(map + 8 * m * map_row + k * map_column, map_row,
                                              map_column, 1.0f, lane);
#pragma unroll
                for (int n = 0; n < STRIPS; n++) {
                    multiply_add(sum[m][n], a, b[n]);
                }
            }
        }
    }
#pragma unroll
    for (int e = 0; e < TILES * STRIPS; e++) {
        each_pair(sum[e / STRIPS][e % STRIPS], lane, [&](int, int, float4 x) {
            if (e / STRIPS < tiles) {
                put(e / STRIPS, e % STRIPS, x);
            }
        });
    }
}

/* Two modes of a warp: `tiles` row tiles of the product with the mapped columns. Column n of a mode
 * is sample n / 2, plus SAMPLES / 2 if n is odd, so that lanes write to different banks. */
struct mode_pair {
    sum_tile sum[MAX_TILES][2];

    /* A chunk of the weight from the pair and the first row on, and as many channels of columns. */
    __device__ void add(const float2 *chunk, const float2 *columns, int tiles, int lane) {
        const int sample = lane / 8 + lane / 4 % 2 * (SAMPLES / 2);
        const float4 x =
            *reinterpret_cast<const float4 *>(columns + lane % 4 * COLUMN_ROW + sample * MODES);
#pragma unroll
        for (int m = 0; m < MAX_TILES; m++) {
            if (m < tiles) {
                const float4 w = *reinterpret_cast<const float4 *>(chunk + lane % 4 * CHUNK_ROW +
                                                                   (8 * m + lane / 4) * MODES);
                multiply_add(sum[m][0], left_number(w.x, w.y, 1.0f), {make_float2(x.x, x.y)});
                multiply_add(sum[m][1], left_number(w.z, w.w, 1.0f), {make_float2(x.z, x.w)});
            }
        }
    }
    __device__ void store(float2 *columns, int tiles, int lane) const {
#pragma unroll
        for (int m = 0; m < MAX_TILES; m++) {
            float2 *row = columns + (8 * m + lane / 4) * COLUMN_ROW + lane % 4 * MODES;
            const float(&x)[4] = sum[m][0].c, (&y)[4] = sum[m][1].c;
            if (m < tiles) {
                *reinterpret_cast<float4 *>(row) = times_cut(make_float4(x[0], x[2], y[0], y[2]));
                *reinterpret_cast<float4 *>(row + SAMPLES / 2 * MODES) =
                    times_cut(make_float4(x[1], x[3], y[1], y[3]));
            }
        }
    }
};

/* An adjoint conjugates src and computes the conjugate of every step until the result is written,
 * instead of conjugating maps and weights. */
static __global__ void __launch_bounds__(THREADS, 2)
    mapped_contract(mapped_sizes s, const float2 *first_map, const float2 *second_map,
                    const float2 *weight, const float2 *src, float2 *inner_from, float2 *inner_to,
                    float2 *dst) {
    extern __shared__ float2 shared[];
    float2 *ring = shared, *columns = ring + RING * CHUNK_SIZE;
    float2 *mapped = columns + MAX_CHANNELS * COLUMN_ROW;
    float2 *map = mapped + 8 * INNER_TILES * COLUMN_ROW;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp % GROUPS;
    const bool multiplies = warp < WARPS;
    const int tiles = warp < GROUPS ? (int)MAX_TILES : INNER_TILES - MAX_TILES;
    const int row = warp / GROUPS * MAX_TILES * 8; /* of inner channels */
    const int64_t k0 = (int64_t)blockIdx.x * MODES, b0 = (int64_t)blockIdx.y * SAMPLES;
    const int64_t sample = b0 + group * STRIPS, mode = k0 + lane % 4 * 2; /* of a lane's sums */
    const float2 *of_group = columns + group * STRIPS * MODES;
    fetch_map(map, first_map, s.channels, s.from);
    fetch_columns(s, src, b0, k0, columns);
    copies_commit();
    const weight_copies weights(s, weight, k0, ring);
#pragma unroll
    for (int chunk = 0; chunk < RING; chunk++) {
        weights.fetch(s, chunk);
        copies_commit();
    }
    copies_wait_all_but<RING>();
    __syncthreads();
    if (multiplies) {
        const column_sink out(s, inner_from, s.from, row + lane / 4, sample, mode);
        float2 *to = mapped + (row + lane / 4) * COLUMN_ROW + group * STRIPS * MODES + lane % 4 * 2;
        map_columns<MAX_CHANNELS, MAX_TILES>(
            map + row, 1, MAP_ROW, tiles, of_group, s.sign, lane, [&](int m, int n, float4 x) {
                *reinterpret_cast<float4 *>(to + 8 * m * COLUMN_ROW + n * MODES) = times_cut(x);
                out.put(m, n, times_cut(x, s.sign));
            });
    }
    __syncthreads();
    fetch_map(map, second_map, s.channels, s.to);
    copies_commit();
    mode_pair product = {};
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        if (chunk < RING) { /* the map's group and empty groups count, too */
            copies_wait_all_but<RING>();
        } else {
            copies_wait_all_but<RING - 2>();
        }
        __syncthreads();
        if (chunk > 0 && chunk + RING - 1 < CHUNKS) {
            weights.fetch(s, chunk + RING - 1); /* into the slot of the previous chunk */
        }
        copies_commit();
        if (multiplies) {
            product.add(ring + chunk % RING * CHUNK_SIZE + row * MODES + group * 2,
                        mapped + chunk * CHUNK * COLUMN_ROW + group * 2, tiles, lane);
        }
    }
    if (multiplies) {
        product.store(columns + row * COLUMN_ROW + group * 2, tiles, lane);
    }
    copies_wait();
    __syncthreads();
    static_assert(THREADS / 32 * 4 == MAX_INNER, "four rows of a warp");
#pragma unroll
    for (int i = warp; i < MAX_INNER; i += THREADS / 32) { /* the products */
        float4 x = *reinterpret_cast<const float4 *>(columns + i * COLUMN_ROW + lane * 2);
        x.y *= s.sign;
        x.w *= s.sign;
        column_sink(s, inner_to, s.to, i, b0 + lane / PIECES, mode).put(0, 0, x);
    }
    if (multiplies) {
        constexpr int TILES = MAX_CHANNELS / 16;
        const int channel = warp / GROUPS * TILES * 8;
        const column_sink out(s, dst, s.channels, channel + lane / 4, sample, mode);
        map_columns<MAX_INNER, TILES>(
            map + channel * MAP_ROW, MAP_ROW, 1, TILES, of_group, 1.0f, lane,
            [&](int m, int n, float4 x) { out.put(m, n, times_cut(x, s.sign)); });
    }
}

/* ---- gradients of the maps ---- */

enum {
    DEPTH = 32, /* modes of a step of the sum */
    DEPTH_ROW = DEPTH + 4,
    STAGES = 3,
    LEFT_SIZE = MAX_CHANNELS * DEPTH_ROW,
    STAGE_SIZE = (MAX_CHANNELS + 8 * INNER_TILES) * DEPTH_ROW,
    GRADIENT_THREADS = 256,
    GRADIENT_SIZE = STAGES * STAGE_SIZE
};

/* sums[block] (channels, inner) = a sum over samples and modes of left (channels) right (inner),
 * one of them conjugated. */
struct map_job {
    const float2 *left, *right;
    int inner;
    float sign; /* -1: left is conjugated, else right */
    float2 *sums;
};

struct map_jobs {
    map_job job[2];
    int64_t batch, modes;
    int channels;
};

/* Step number `step`; 0 beyond the last mode. */
static __device__ inline void fetch_step(const map_jobs &s, const map_job &job, int64_t step,
                                         float2 *stage) {
    enum { OF_ROW = DEPTH / 2 };
    const int64_t of_sample = (s.modes + DEPTH - 1) / DEPTH;
    const int64_t b = step / of_sample, k0 = step % of_sample * DEPTH;
    for (int e = (int)threadIdx.x; e < (s.channels + job.inner) * OF_ROW; e += GRADIENT_THREADS) {
        const int row = e / OF_ROW, k = e % OF_ROW * 2, i = row - s.channels;
        const bool counts = k0 + k < s.modes;
        const float2 *from = i < 0 ? job.left + (b * s.channels + row) * s.modes
                                   : job.right + (b * job.inner + i) * s.modes;
        copy_async<16>(stage + (i < 0 ? row : MAX_CHANNELS + i) * DEPTH_ROW + k,
                       counts ? from + k0 + k : from, counts);
    }
}

/* A warp takes 16 rows, and half of the modes of a step. */
static __global__ void __launch_bounds__(GRADIENT_THREADS, 2) map_gradients(map_jobs s) {
    extern __shared__ float2 shared[];
    const map_job job = blockIdx.y == 0 ? s.job[0] : s.job[1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 4 * 16;
    const int64_t steps = s.batch * ((s.modes + DEPTH - 1) / DEPTH);
    const int64_t end = steps * (blockIdx.x + 1) / gridDim.x;
    int64_t step = steps * blockIdx.x / gridDim.x, fetched = step;
    const auto fetch = [&](int into) {
        if (fetched < end) {
            fetch_step(s, job, fetched, shared + into * STAGE_SIZE);
        }
        fetched++;
        copies_commit();
    };
    for (int ahead = 0; ahead < STAGES - 1; ahead++) {
        fetch(ahead);
    }
    sum_tile sum[INNER_TILES][2] = {};
    for (int slot = 0; step < end; step++, slot = slot + 1 == STAGES ? 0 : slot + 1) {
        copies_wait_all_but<STAGES - 2>();
        __syncthreads();
        fetch(slot == 0 ? STAGES - 1 : slot - 1); /* the stage the previous step has read */
        const float2 *left = shared + slot * STAGE_SIZE + row * DEPTH_ROW + warp / 4 * (DEPTH / 2);
        const float2 *right = shared + slot * STAGE_SIZE + LEFT_SIZE + warp / 4 * (DEPTH / 2);
#pragma unroll
        for (int k = 0; k < DEPTH / 2; k += 4) {
            const left_tile a[2] = {load_left(left + k, DEPTH_ROW, 1, -1.0f, lane),
                                    load_left(left + 8 * DEPTH_ROW + k, DEPTH_ROW, 1, -1.0f, lane)};
#pragma unroll
            for (int n = 0; n < INNER_TILES; n++) {
                const right_tile b = load_right(right + 8 * n * DEPTH_ROW + k, 1, DEPTH_ROW, lane);
                multiply_add(sum[n][0], a[0], b);
                multiply_add(sum[n][1], a[1], b);
            }
        }
    }
    copies_wait();
    __syncthreads();
    constexpr int HALF_ROW = 8 * INNER_TILES;
    float2 *half = shared + row * HALF_ROW; /* sums of the other warps */
    float2 *out = job.sums + ((int64_t)blockIdx.x * s.channels + row) * job.inner;
#pragma unroll
    for (int e = 0; e < 2 * INNER_TILES; e++) {
        each_number(sum[e / 2][e % 2], lane, [&](int i, int j, float2 x) {
            if (warp >= 4) {
                half[(e % 2 * 8 + i) * HALF_ROW + e / 2 * 8 + j] = x;
            }
        });
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 2 * INNER_TILES; e++) {
        each_number(sum[e / 2][e % 2], lane, [&](int i, int j, float2 x) {
            i += e % 2 * 8;
            j += e / 2 * 8;
            if (warp < 4 && row + i < s.channels && j < job.inner) {
                const float2 y = half[i * HALF_ROW + j];
                out[i * job.inner + j] = make_float2(x.x + y.x, job.sign * (x.y + y.y));
            }
        });
    }
}

/* ---- gradient of the inner weight ---- */

enum {
    FORM_MODES = 16, /* of a block */
    FORM_COLUMNS = FORM_MODES * SAMPLES,
    FORM_ROWS = 2, /* of a thread */
    FORM_THREADS = FORM_MODES * MAX_INNER / FORM_ROWS
};

struct weight_sizes {
    int64_t batch, modes;
    int in, out;
};

/* dweight[i,o,k] = the sum over samples of conj(a[i,k]) db[o,k]. A block processes FORM_MODES modes
 * and a part of the o's; a thread FORM_ROWS rows i of one mode, with its a in registers. It does
 * not depend on the previous kernel, map_gradients, and ends after it. */
static __global__ void __launch_bounds__(FORM_THREADS, 2)
    inner_gradient(weight_sizes s, const float2 *a, const float2 *db, float2 *dweight) {
    __shared__ float2 columns[MAX_INNER * FORM_COLUMNS]; /* db (o, sample, mode) */
    const int first = s.out * blockIdx.y / gridDim.y, end = s.out * (blockIdx.y + 1) / gridDim.y;
    const int64_t k0 = (int64_t)blockIdx.x * FORM_MODES;
    const int k = threadIdx.x % FORM_MODES, i0 = threadIdx.x / FORM_MODES * FORM_ROWS;
    const bool exists = k0 + k < s.modes;
    for (int64_t b0 = 0; b0 < s.batch; b0 += SAMPLES) {
        __syncthreads();
        for (int e = (int)threadIdx.x; e < (end - first) * FORM_COLUMNS; e += FORM_THREADS) {
            const int64_t b = b0 + e / FORM_MODES % SAMPLES; /* e % FORM_MODES is k */
            const bool counts = exists && b < s.batch;
            const float2 *from = db + (b * s.out + first + e / FORM_COLUMNS) * s.modes + k0 + k;
            copy_async<8>(columns + e, counts ? from : db, counts);
        }
        float2 x[FORM_ROWS][SAMPLES];
#pragma unroll
        for (int t = 0; t < FORM_ROWS; t++) {
#pragma unroll
            for (int b = 0; b < SAMPLES; b++) {
                x[t][b] = exists && b0 + b < s.batch && i0 + t < s.in
                              ? a[((b0 + b) * s.in + i0 + t) * s.modes + k0 + k]
                              : make_float2(0.0f, 0.0f);
            }
        }
        copies_wait();
        __syncthreads();
#pragma unroll 4
        for (int o = first; o < end; o++) {
            float2 sum[FORM_ROWS] = {};
#pragma unroll
            for (int b = 0; b < SAMPLES; b++) {
                const float2 y = columns[(o - first) * FORM_COLUMNS + b * FORM_MODES + k];
#pragma unroll
                for (int t = 0; t < FORM_ROWS; t++) {
                    sum[t].x = fmaf(x[t][b].x, y.x, fmaf(x[t][b].y, y.y, sum[t].x));
                    sum[t].y = fmaf(x[t][b].x, y.y, fmaf(-x[t][b].y, y.x, sum[t].y));
                }
            }
#pragma unroll
            for (int t = 0; t < FORM_ROWS; t++) {
                if (exists && i0 + t < s.in) {
                    float2 *to = dweight + ((int64_t)(i0 + t) * s.out + o) * s.modes + k0 + k;
                    const float2 before = b0 > 0 ? *to : make_float2(0.0f, 0.0f);
                    *to = make_float2(before.x + sum[t].x, before.y + sum[t].y);
                }
            }
        }
    }
}

/* ---- slots ---- */

bool cuda_mapped_supports(tg_backend *be, const tg_mapped *op) {
    return op->dtype == TG_C64 && be->math == TG_MATH_TF32 && op->channels <= MAX_CHANNELS &&
           op->in <= MAX_INNER && op->out <= MAX_INNER && op->modes % 2 == 0 &&
           tensor_fits(be, CONTRACT_SIZE * sizeof(float2));
}

tg_status cuda_mapped_contract(tg_backend *be, const tg_mapped *op) {
    const bool back = op->adjoint;
    const mapped_sizes s = {op->batch,
                            op->modes,
                            (int)op->channels,
                            (int)(back ? op->out : op->in),
                            (int)(back ? op->in : op->out),
                            back ? op->modes : op->out * op->modes,
                            back ? op->out * op->modes : op->modes,
                            back ? -1.0f : 1.0f};
    const dim3 grid((unsigned)((op->modes + MODES - 1) / MODES),
                    (unsigned)((op->batch + SAMPLES - 1) / SAMPLES));
    return launch_alone(
        be, "multiplying mapped spectra", mapped_contract, grid, THREADS,
        CONTRACT_SIZE * sizeof(float2), s,
        static_cast<const float2 *>(back ? op->map_out : op->map_in),
        static_cast<const float2 *>(back ? op->map_in : op->map_out),
        static_cast<const float2 *>(op->weight), static_cast<const float2 *>(op->src),
        static_cast<float2 *>(back ? op->inner_out : op->inner_in),
        static_cast<float2 *>(back ? op->inner_in : op->inner_out), static_cast<float2 *>(op->dst));
}

tg_status cuda_mapped_gradients(tg_backend *be, const tg_map_gradients *op) {
    const int64_t steps = op->batch * ((op->modes + DEPTH - 1) / DEPTH);
    const int most = cuda_state_of(be)->processors;
    const int blocks = steps < most ? (int)steps : most;
    float *sums = static_cast<float *>(cuda_state_of(be)->blas_workspace);
    const int64_t size[2] = {2 * op->channels * op->in, 2 * op->channels * op->out};
    const map_jobs jobs = {
        {{static_cast<const float2 *>(op->x), static_cast<const float2 *>(op->dinner_in),
          (int)op->in, -1.0f, reinterpret_cast<float2 *>(sums)},
         {static_cast<const float2 *>(op->dy), static_cast<const float2 *>(op->inner_out),
          (int)op->out, 1.0f, reinterpret_cast<float2 *>(sums + blocks * size[0])}},
        op->batch,
        op->modes,
        (int)op->channels};
    const double cut = (double)TF32_CUT * TF32_CUT; /* of both factors */
    const fold_jobs fold = {
        {{sums, size[0], (int)op->channels, (int)(2 * op->in), (int)(2 * op->in), false,
          static_cast<float *>(op->dmap_in)},
         {sums + blocks * size[0], size[1], (int)op->channels, (int)(2 * op->out),
          (int)(2 * op->out), false, static_cast<float *>(op->dmap_out)}},
        2,
        blocks,
        {cut, cut}};
    TG_CALL(launch_alone(be, "gradients of maps", map_gradients, dim3((unsigned)blocks, 2),
                         GRADIENT_THREADS, GRADIENT_SIZE * sizeof(float2), jobs));
    TG_CALL(set_partials(be, fold));
    const weight_sizes s = {op->batch, op->modes, (int)op->in, (int)op->out};
    const int parts = op->out < 2 ? 1 : 2; /* of the o's */
    return launch_alone(be, "forming a gradient", inner_gradient,
                        dim3((unsigned)((op->modes + FORM_MODES - 1) / FORM_MODES), parts),
                        FORM_THREADS, 0, s, static_cast<const float2 *>(op->inner_in),
                        static_cast<const float2 *>(op->dinner_out),
                        static_cast<float2 *>(op->dweight));
}
