/* The spectral product of a factorized weight in one pass: channels are mapped, multiplied mode by
 * mode with the weight in between, and mapped back; and the gradients of both maps.
 *
 * A block takes MODES modes of SAMPLES samples: a matrix of as many columns for each of the three
 * steps, which stays in shared memory. Maps are products in TF32 on tensor cores, the product mode
 * by mode is one of f32: a thread makes an inner channel of a mode from the weights it has read,
 * which are on their way from the beginning. What a map's tiles reach beyond a row is put out by
 * zeros, or goes nowhere. */
#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/complex.cuh"
#include "backend/cuda/tile/stage.cuh"

enum {
    MODES = 8,
    SAMPLES = 8,
    COLUMNS = MODES * SAMPLES,
    COLUMN_ROW = COLUMNS + 4,
    MOST_CHANNELS = 64,
    MOST_INNER = 36,
    INNER_TILES = (MOST_INNER + 7) / 8,
    MAP_ROW = MOST_INNER,
    MAP_SIZE = MOST_CHANNELS * MAP_ROW + 4, /* a tile reaches beyond the last row */
    STRIPS = 2,                             /* of 8 columns, which a warp maps */
    GROUPS = COLUMNS / (8 * STRIPS),        /* warps for all columns; two for the rows */
    THREADS = MODES * MOST_INNER,
    STORED = 12, /* weights of a thread that wait in shared memory, the others in registers */
    CONTRACT_SIZE = (MOST_CHANNELS + 8 * INNER_TILES) * COLUMN_ROW + MAP_SIZE + STORED * THREADS
};

struct mapped_sizes {
    int64_t batch, modes;
    int channels, from, to;     /* inner channels, in the direction of the product */
    int64_t from_step, to_step; /* of the weight */
    float sign;                 /* -1: everything but src is conjugated */
};

/* ---- the product ---- */

/* Past the registers, and not rounded: see TF32_CUT. 0 beyond the last row and column. */
static __device__ inline void fetch_map(float2 *to, const float2 *from, int rows, int columns) {
    static_assert(THREADS % MAP_ROW == 0, "a thread copies entries of one column");
    const int j = threadIdx.x % MAP_ROW;
#pragma unroll
    for (int q = 0; q < MOST_CHANNELS * MAP_ROW / THREADS; q++) {
        const int i = (int)threadIdx.x / MAP_ROW + q * (THREADS / MAP_ROW);
        const bool counts = i < rows && j < columns;
        copy_async<8>(to + i * MAP_ROW + j, counts ? from + i * columns + j : from, counts);
    }
}

/* Columns (sample, mode) of src from mode k0 and sample b0 on; 0 beyond the last. */
static __device__ inline void fetch_columns(const mapped_sizes &s, const float2 *src, int64_t b0,
                                            int64_t k0, float2 *columns) {
    enum { PIECES = MODES / 2, OF_ROW = SAMPLES * PIECES, ROWS = THREADS / OF_ROW };
    static_assert(THREADS % OF_ROW == 0, "a thread copies the same columns of all its rows");
    const int b = threadIdx.x / PIECES % SAMPLES, k = threadIdx.x % PIECES * 2;
    const bool exists = b0 + b < s.batch && k0 + k < s.modes;
    int c = threadIdx.x / OF_ROW;
    const float2 *from = src + ((b0 + b) * s.channels + c) * s.modes + k0 + k;
    for (float2 *to = columns + c * COLUMN_ROW + b * MODES + k; c < MOST_CHANNELS; c += ROWS) {
        const bool counts = exists && c < s.channels;
        copy_async<16>(to, counts ? from : src, counts);
        from += ROWS * s.modes;
        to += ROWS * COLUMN_ROW;
    }
}

/* What a thread reads of the weight: an entry for each inner channel; 0 beyond the last. */
struct thread_weights {
    float2 *stored; /* THREADS apart */
    float2 w[MOST_INNER - STORED];

    __device__ void fetch(const mapped_sizes &s, const float2 *weight, int64_t k0) {
        const int k = threadIdx.x % MODES, o = threadIdx.x / MODES;
        const int count = o < s.to && k0 + k < s.modes ? s.from : 0;
        const float2 *from = weight + o * s.to_step + k0 + k;
#pragma unroll
        for (int i = 0; i < STORED; i++) {
            copy_async<8>(stored + i * THREADS, i < count ? from + i * s.from_step : weight,
                          i < count);
        }
        copies_commit();
        from += STORED * s.from_step;
#pragma unroll
        for (int i = STORED; i < MOST_INNER; i++) {
            w[i - STORED] = i < count ? *from : make_float2(0.0f, 0.0f);
            from += s.from_step;
        }
    }
};

static __device__ inline float4 times(float factor, float sign, float4 x) {
    const float im = sign * factor;
    return make_float4(factor * x.x, im * x.y, factor * x.z, im * x.w);
}

/* Two numbers of row i of (batch, rows, modes), columns as above. */
static __device__ inline void store_columns(const mapped_sizes &s, float2 *out, int rows, int i,
                                            int64_t b0, int64_t k0, int column, float4 x) {
    const int64_t b = b0 + column / MODES, k = k0 + column % MODES;
    if (i < rows && b < s.batch && k < s.modes) {
        *reinterpret_cast<float4 *>(out + (b * rows + i) * s.modes + k) = x;
    }
}

/* Calls put(row, column, two numbers) for `tiles` of TILES tiles of rows of map columns, a sum over
 * DEPTH rows of columns, of which a warp takes STRIPS strips. Entry (m, k) of the map lies at
 * map[m * map_row + k * map_column]. */
template <int DEPTH, int TILES, class F>
static __device__ inline void map_columns(const float2 *map, int map_row, int map_column, int tiles,
                                          const float2 *columns, float sign, F put) {
    const int lane = threadIdx.x % 32;
    sum_tile sum[TILES][STRIPS] = {};
#pragma unroll 4
    for (int k = 0; k < DEPTH; k += 4) {
        right_tile b[STRIPS];
#pragma unroll
        for (int n = 0; n < STRIPS; n++) {
            b[n] = load_right(columns + k * COLUMN_ROW + 8 * n, COLUMN_ROW, 1, lane);
        }
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            if (m < tiles) {
                const left_tile a = load_left(map + 8 * m * map_row + k * map_column, map_row,
                                              map_column, sign, lane);
#pragma unroll
                for (int n = 0; n < STRIPS; n++) {
                    multiply_add(sum[m][n], a, b[n]);
                }
            }
        }
    }
#pragma unroll
    for (int e = 0; e < TILES * STRIPS; e++) {
        each_pair(sum[e / STRIPS][e % STRIPS], lane, [&](int row, int column, float4 x) {
            if (e / STRIPS < tiles) {
                put(e / STRIPS * 8 + row, e % STRIPS * 8 + column, x);
            }
        });
    }
}

/* columns (inner, columns) = mapped, multiplied mode by mode; also out. */
static __device__ inline void multiply_modes(const mapped_sizes &s, const thread_weights &weights,
                                             const float2 *mapped, int64_t b0, int64_t k0,
                                             float2 *columns, float2 *out) {
    const int k = threadIdx.x % MODES, o = threadIdx.x / MODES;
    float2 sum[SAMPLES] = {};
    const auto add = [&](float2 weight, int i) {
        const float2 w = make_float2(weight.x, s.sign * weight.y);
#pragma unroll
        for (int b = 0; b < SAMPLES; b++) {
            const float2 x = mapped[i * COLUMN_ROW + b * MODES + k];
            sum[b].x = fmaf(w.x, x.x, fmaf(-w.y, x.y, sum[b].x));
            sum[b].y = fmaf(w.x, x.y, fmaf(w.y, x.x, sum[b].y));
        }
    };
#pragma unroll 4
    for (int i = 0; i < STORED; i++) {
        add(weights.stored[i * THREADS], i);
    }
#pragma unroll
    for (int i = STORED; i < MOST_INNER; i++) {
        add(weights.w[i - STORED], i);
    }
#pragma unroll
    for (int b = 0; b < SAMPLES; b++) {
        const float2 x = sum[b];
        columns[o * COLUMN_ROW + b * MODES + k] = make_float2(to_tf32(x.x), to_tf32(x.y));
        if (o < s.to && b0 + b < s.batch && k0 + k < s.modes) {
            out[((b0 + b) * s.to + o) * s.modes + k0 + k] = x;
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 2)
    mapped_contract(mapped_sizes s, const float2 *first_map, const float2 *second_map,
                    const float2 *weight, const float2 *src, float2 *inner_from, float2 *inner_to,
                    float2 *dst) {
    extern __shared__ float2 shared[];
    float2 *columns = shared, *mapped = columns + MOST_CHANNELS * COLUMN_ROW;
    float2 *map = mapped + 8 * INNER_TILES * COLUMN_ROW;
    const int warp = threadIdx.x / 32, n0 = warp % GROUPS * (8 * STRIPS);
    const int64_t k0 = (int64_t)blockIdx.x * MODES, b0 = (int64_t)blockIdx.y * SAMPLES;
    thread_weights weights;
    weights.stored = map + MAP_SIZE + threadIdx.x;
    fetch_columns(s, src, b0, k0, columns);
    fetch_map(map, first_map, s.channels, s.from);
    copies_commit();
    weights.fetch(s, weight, k0);
    __syncthreads(); /* so that its loads are not put off until the copies are there */
    copies_wait_but<1>();
    __syncthreads();
    if (warp < 2 * GROUPS) {
        constexpr int TILES = (INNER_TILES + 1) / 2; /* of the first warps */
        const int row = warp / GROUPS * TILES * 8;
        map_columns<MOST_CHANNELS, TILES>(
            map + row, 1, MAP_ROW, warp < GROUPS ? (int)TILES : INNER_TILES - TILES, columns + n0,
            s.sign, [&](int i, int j, float4 x) {
                x = times(TF32_CUT * TF32_CUT, s.sign, x);
                *reinterpret_cast<float4 *>(mapped + (row + i) * COLUMN_ROW + n0 + j) = x;
                store_columns(s, inner_from, s.from, row + i, b0, k0, n0 + j, x);
            });
    }
    copies_wait();
    __syncthreads();
    fetch_map(map, second_map, s.channels, s.to);
    multiply_modes(s, weights, mapped, b0, k0, columns, inner_to);
    copies_wait();
    __syncthreads();
    if (warp < 2 * GROUPS) {
        constexpr int TILES = MOST_CHANNELS / 16;
        const int row = warp / GROUPS * TILES * 8;
        map_columns<MOST_INNER, TILES>(map + row * MAP_ROW, MAP_ROW, 1, TILES, columns + n0, s.sign,
                                       [&](int i, int j, float4 x) {
                                           store_columns(s, dst, s.channels, row + i, b0, k0,
                                                         n0 + j, times(TF32_CUT, s.sign, x));
                                       });
    }
}

/* ---- gradients of the maps ---- */

enum {
    DEPTH = 32, /* modes of a step of the sum */
    DEPTH_ROW = DEPTH + 4,
    STAGES = 3,
    LEFT_SIZE = MOST_CHANNELS * DEPTH_ROW,
    STAGE_SIZE = (MOST_CHANNELS + 8 * INNER_TILES) * DEPTH_ROW,
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
    enum { PIECES = DEPTH / 2 };
    const int64_t of_sample = (s.modes + DEPTH - 1) / DEPTH;
    const int64_t b = step / of_sample, k0 = step % of_sample * DEPTH;
    for (int e = (int)threadIdx.x; e < (s.channels + job.inner) * PIECES; e += GRADIENT_THREADS) {
        const int row = e / PIECES, k = e % PIECES * 2, i = row - s.channels;
        const bool counts = k0 + k < s.modes;
        const float2 *from = i < 0 ? job.left + (b * s.channels + row) * s.modes
                                   : job.right + (b * job.inner + i) * s.modes;
        copy_async<16>(stage + (i < 0 ? row : MOST_CHANNELS + i) * DEPTH_ROW + k,
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
        copies_wait_but<STAGES - 2>();
        __syncthreads();
        fetch(slot == 0 ? STAGES - 1 : slot - 1); /* what the last round was made from */
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
    float2 *half = shared + row * HALF_ROW; /* of the other warps */
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

/* ---- the gradient of the weight in between ---- */

enum {
    FORM_MODES = 16, /* of a block */
    FORM_COLUMNS = FORM_MODES * SAMPLES,
    FORM_ROWS = 2, /* of a thread */
    FORM_THREADS = FORM_MODES * MOST_INNER / FORM_ROWS
};

struct weight_sizes {
    int64_t batch, modes;
    int in, out;
};

/* dweight[i,o,k] = the sum over samples of conj(a[i,k]) db[o,k]. A block takes FORM_MODES modes and
 * a part of the o's, a thread FORM_ROWS rows i of one of them, whose a it has in registers. */
static __global__ void __launch_bounds__(FORM_THREADS, 2)
    inner_gradient(weight_sizes s, const float2 *a, const float2 *db, float2 *dweight) {
    __shared__ float2 columns[MOST_INNER * FORM_COLUMNS]; /* db (o, sample, mode) */
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

static bool cuda_mapped_takes(tg_backend *be, const tg_mapped *op) {
    return op->dtype == TG_C64 && be->math == TG_MATH_TF32 && op->channels <= MOST_CHANNELS &&
           op->in <= MOST_INNER && op->out <= MOST_INNER && op->modes % 2 == 0 &&
           tensor_fits(be, CONTRACT_SIZE * sizeof(float2));
}

static tg_status cuda_mapped_contract(tg_backend *be, const tg_mapped *op) {
    const bool back = op->adjoint;
    const size_t shared = CONTRACT_SIZE * sizeof(float2);
    const mapped_sizes s = {op->batch,
                            op->modes,
                            (int)op->channels,
                            (int)(back ? op->out : op->in),
                            (int)(back ? op->in : op->out),
                            back ? op->modes : op->out * op->modes,
                            back ? op->out * op->modes : op->modes,
                            back ? -1.0f : 1.0f};
    const tg_status status =
        CUDA_CHECK(be,
                   cudaFuncSetAttribute(mapped_contract,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                   "asking for shared memory");
    if (status != TG_OK) {
        return status;
    }
    const dim3 grid((unsigned)((op->modes + MODES - 1) / MODES),
                    (unsigned)((op->batch + SAMPLES - 1) / SAMPLES));
    mapped_contract<<<grid, THREADS, shared, cuda_stream(be)>>>(
        s, static_cast<const float2 *>(back ? op->map_out : op->map_in),
        static_cast<const float2 *>(back ? op->map_in : op->map_out),
        static_cast<const float2 *>(op->weight), static_cast<const float2 *>(op->src),
        static_cast<float2 *>(back ? op->inner_out : op->inner_in),
        static_cast<float2 *>(back ? op->inner_in : op->inner_out), static_cast<float2 *>(op->dst));
    return CUDA_LAUNCHED(be, "multiplying mapped spectra");
}

static tg_status cuda_mapped_gradients(tg_backend *be, const tg_map_gradients *op) {
    const size_t shared = GRADIENT_SIZE * sizeof(float2);
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
    tg_status status = TG_OK;
    TG_TRY(CUDA_CHECK(be,
                      cudaFuncSetAttribute(
                          map_gradients, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                      "asking for shared memory"));
    map_gradients<<<dim3((unsigned)blocks, 2), GRADIENT_THREADS, shared, cuda_stream(be)>>>(jobs);
    TG_TRY(CUDA_LAUNCHED(be, "gradients of maps"));
    TG_TRY(fold_partials(be, fold));
    {
        const weight_sizes s = {op->batch, op->modes, (int)op->in, (int)op->out};
        const int parts = op->out < 2 ? 1 : 2; /* of the o's */
        inner_gradient<<<dim3((unsigned)((op->modes + FORM_MODES - 1) / FORM_MODES), parts),
                         FORM_THREADS, 0, cuda_stream(be)>>>(
            s, static_cast<const float2 *>(op->inner_in),
            static_cast<const float2 *>(op->dinner_out), static_cast<float2 *>(op->dweight));
    }
    TG_TRY(CUDA_LAUNCHED(be, "forming a gradient"));
fail:
    return status;
}

void cuda_fill_nn_mapped(tg_backend_ops *ops) {
    ops->mapped_takes = cuda_mapped_takes;
    ops->mapped_contract = cuda_mapped_contract;
    ops->mapped_gradients = cuda_mapped_gradients;
}
