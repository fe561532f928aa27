/* The spectral product of a factorized weight in one pass: channels are mapped, multiplied mode by
 * mode with the weight in between, and mapped back; and the gradients of both maps.
 *
 * A block takes MODES modes of up to SAMPLES samples: a matrix of as many columns for each of the
 * three steps, which stays in shared memory. Maps are products in TF32 on tensor cores, the product
 * mode by mode is one of f32: it is bound by reading the weight, of which a thread has the next
 * numbers on their way. What a map's tiles reach beyond a row is put out by zeros (two_modes.cu).
 */
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
    MAP_ROW = MOST_INNER,
    MAP_SIZE = MOST_CHANNELS * MAP_ROW,
    INNER_STEPS = 5, /* of 8 */
    INNER_ROWS = 8 * INNER_STEPS,
    TARGETS = 1, /* inner channels of a thread */
    MAP_WARPS = COLUMNS / 16,
    THREADS = MODES * MOST_INNER / TARGETS,
    AHEAD = 12, /* channels whose weights are on their way */
    CONTRACT_SIZE = (MOST_CHANNELS + INNER_ROWS) * COLUMN_ROW + 2 * MAP_SIZE + 16
};

struct mapped_sizes {
    int64_t batch, modes;
    int channels, from, to;     /* inner channels, in the direction of the product */
    int64_t from_step, to_step; /* of the weight */
    float sign;                 /* -1: everything but src is conjugated */
};

/* ---- the product ---- */

/* Past the registers, and not rounded: see TF32_CUT. */
static __device__ inline void fetch_map(float2 *to, const float2 *from, int rows, int columns) {
    const int down = THREADS / columns, across = THREADS % columns;
    int i = (int)threadIdx.x / columns, j = (int)threadIdx.x % columns;
    for (const float2 *at = from + threadIdx.x; i < rows; at += THREADS) {
        copy_async<8>(to + i * MAP_ROW + j, at);
        const bool wraps = j + across >= columns;
        i += down + wraps;
        j += wraps ? across - columns : across;
    }
}

static __device__ inline float4 times(float factor, float4 x) {
    return make_float4(factor * x.x, factor * x.y, factor * x.z, factor * x.w);
}

/* Columns (channel, sample, mode) of src from mode k0 and sample b0 on; 0 beyond the last. */
static __device__ inline void fetch_columns(const mapped_sizes &s, const float2 *src, int64_t b0,
                                            int64_t k0, float2 *columns) {
    enum { PIECES = MODES / 2, OF_ROW = SAMPLES * PIECES };
    for (int e = (int)threadIdx.x; e < s.channels * OF_ROW; e += (int)blockDim.x) {
        const int c = e / OF_ROW, b = e / PIECES % SAMPLES, k = e % PIECES * 2;
        const bool counts = b0 + b < s.batch && k0 + k < s.modes;
        const float2 *from = src + ((b0 + b) * s.channels + c) * s.modes + k0 + k;
        copy_async<16>(columns + c * COLUMN_ROW + b * MODES + k, counts ? from : src, counts);
    }
}

/* Two numbers of row i of (batch, rows, modes), columns as above. */
static __device__ inline void store_columns(const mapped_sizes &s, float2 *out, int rows, int i,
                                            int64_t b0, int64_t k0, int column, float4 x) {
    const int64_t b = b0 + column / MODES, k = k0 + column % MODES;
    if (i < rows && b < s.batch && k < s.modes) {
        *reinterpret_cast<float4 *>(out + (b * rows + i) * s.modes + k) = x;
    }
}

/* mapped (inner, columns) = map^T columns, both to shared memory and out. */
static __device__ inline void map_columns(const mapped_sizes &s, const float2 *map,
                                          const float2 *columns, int64_t b0, int64_t k0,
                                          float2 *mapped, float2 *out) {
    constexpr int ROWS = (MOST_INNER + 15) / 16;
    const int lane = threadIdx.x % 32, n0 = threadIdx.x / 32 * 16;
    sum_tile sum[ROWS][2] = {};
#pragma unroll 2
    for (int k = 0; k < MOST_CHANNELS; k += 8) {
        const right_tile b[2] = {
            load_right(columns + k * COLUMN_ROW + n0, COLUMN_ROW, 1.0f, lane),
            load_right(columns + k * COLUMN_ROW + n0 + 8, COLUMN_ROW, 1.0f, lane)};
#pragma unroll
        for (int m = 0; m < ROWS; m++) {
            const left_tile a = load_left(map + k * MAP_ROW + 16 * m, 1, MAP_ROW, s.sign, lane);
            multiply_add(sum[m][0], a, b[0]);
            multiply_add(sum[m][1], a, b[1]);
        }
    }
#pragma unroll
    for (int e = 0; e < 2 * ROWS; e++) {
        each_pair(sum[e / 2][e % 2], lane, [&](int row, int column, float4 x) {
            const int i = e / 2 * 16 + row, j = n0 + e % 2 * 8 + column;
            x = times(TF32_CUT * TF32_CUT, x);
            if (i < s.from) {
                *reinterpret_cast<float4 *>(mapped + i * COLUMN_ROW + j) = x;
            }
            store_columns(s, out, s.from, i, b0, k0, j, x);
        });
    }
}

/* dst = map columns, of the inner ones; half of the rows at a time. */
static __device__ inline void map_back(const mapped_sizes &s, const float2 *map,
                                       const float2 *columns, int64_t b0, int64_t k0, float2 *dst) {
    constexpr int ROWS = MOST_CHANNELS / 32;
    const int lane = threadIdx.x % 32, n0 = threadIdx.x / 32 * 16;
#pragma unroll 1
    for (int i0 = 0; i0 < MOST_CHANNELS; i0 += 16 * ROWS) {
        sum_tile sum[ROWS][2] = {};
#pragma unroll
        for (int k = 0; k < INNER_ROWS; k += 8) {
            const right_tile b[2] = {
                load_right(columns + k * COLUMN_ROW + n0, COLUMN_ROW, 1.0f, lane),
                load_right(columns + k * COLUMN_ROW + n0 + 8, COLUMN_ROW, 1.0f, lane)};
#pragma unroll
            for (int m = 0; m < ROWS; m++) {
                const left_tile a =
                    load_left(map + (i0 + 16 * m) * MAP_ROW + k, MAP_ROW, 1, s.sign, lane);
                multiply_add(sum[m][0], a, b[0]);
                multiply_add(sum[m][1], a, b[1]);
            }
        }
#pragma unroll
        for (int e = 0; e < 2 * ROWS; e++) {
            each_pair(sum[e / 2][e % 2], lane, [&](int row, int column, float4 x) {
                store_columns(s, dst, s.channels, i0 + e / 2 * 16 + row, b0, k0,
                              n0 + e % 2 * 8 + column, times(TF32_CUT, x));
            });
        }
    }
}

/* What a thread reads of the weight for AHEAD channels from i on. */
struct weights_ahead {
    float2 w[AHEAD][TARGETS];
};

static __device__ inline weights_ahead load_weights(const mapped_sizes &s, const float2 *weight,
                                                    int i) {
    const int o = threadIdx.x / MODES * TARGETS;
    weights_ahead x;
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
#pragma unroll
        for (int t = 0; t < TARGETS; t++) {
            x.w[a][t] =
                weight[min(i + a, s.from - 1) * s.from_step + min(o + t, s.to - 1) * s.to_step];
        }
    }
    return x;
}

/* columns (inner, columns) = mapped, multiplied mode by mode; also out. The first weights come
 * along. */
static __device__ inline void multiply_modes(const mapped_sizes &s, const float2 *weight,
                                             weights_ahead next, const float2 *mapped, int64_t b0,
                                             int64_t k0, float2 *columns, float2 *out) {
    const int k = threadIdx.x % MODES, o = threadIdx.x / MODES * TARGETS;
    float2 sum[TARGETS][SAMPLES] = {};
#pragma unroll 1
    for (int i = 0; i < s.from; i += AHEAD) {
        const weights_ahead now = next;
        next = load_weights(s, weight, i + AHEAD);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
#pragma unroll
            for (int b = 0; b < SAMPLES; b++) {
                const float2 x = mapped[(i + a) * COLUMN_ROW + b * MODES + k];
#pragma unroll
                for (int t = 0; t < TARGETS; t++) {
                    const float2 w = make_float2(now.w[a][t].x, s.sign * now.w[a][t].y);
                    sum[t][b].x = fmaf(w.x, x.x, fmaf(-w.y, x.y, sum[t][b].x));
                    sum[t][b].y = fmaf(w.x, x.y, fmaf(w.y, x.x, sum[t][b].y));
                }
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TARGETS; t++) {
#pragma unroll
        for (int b = 0; b < SAMPLES; b++) {
            const bool exists = o + t < s.to;
            const float2 x = exists ? sum[t][b] : make_float2(0.0f, 0.0f);
            columns[(o + t) * COLUMN_ROW + b * MODES + k] = make_float2(to_tf32(x.x), to_tf32(x.y));
            if (exists && b0 + b < s.batch && k0 + k < s.modes) {
                out[((b0 + b) * s.to + o + t) * s.modes + k0 + k] = x;
            }
        }
    }
    for (int e = MOST_INNER * COLUMN_ROW + (int)threadIdx.x; e < INNER_ROWS * COLUMN_ROW;
         e += THREADS) {
        columns[e] = make_float2(0.0f, 0.0f);
    }
}

static __global__ void __launch_bounds__(THREADS, 2)
    mapped_contract(mapped_sizes s, const float2 *first_map, const float2 *second_map,
                    const float2 *weight, const float2 *src, float2 *inner_from, float2 *inner_to,
                    float2 *dst) {
    extern __shared__ float2 shared[];
    float2 *columns = shared, *mapped = columns + MOST_CHANNELS * COLUMN_ROW;
    float2 *first = mapped + INNER_ROWS * COLUMN_ROW, *second = first + MAP_SIZE;
    const int64_t k0 = (int64_t)blockIdx.x * MODES;
    for (int e = (int)threadIdx.x; e < CONTRACT_SIZE; e += THREADS) {
        shared[e] = make_float2(0.0f, 0.0f);
    }
    __syncthreads();
    weight += min(k0 + threadIdx.x % MODES, s.modes - 1);
    fetch_columns(s, src, 0, k0, columns);
    fetch_map(first, first_map, s.channels, s.from);
    fetch_map(second, second_map, s.channels, s.to);
    for (int64_t b0 = 0; b0 < s.batch; b0 += SAMPLES) {
        copies_wait();
        __syncthreads();
        if (threadIdx.x < 32 * MAP_WARPS) {
            map_columns(s, first, columns, b0, k0, mapped, inner_from);
        }
        const weights_ahead ahead = load_weights(s, weight, 0);
        __syncthreads();
        multiply_modes(s, weight, ahead, mapped, b0, k0, columns, inner_to);
        __syncthreads();
        if (threadIdx.x < 32 * MAP_WARPS) {
            map_back(s, second, columns, b0, k0, dst);
        }
        __syncthreads();
        if (b0 + SAMPLES < s.batch) {
            fetch_columns(s, src, b0 + SAMPLES, k0, columns);
        }
    }
}

/* ---- gradients of the maps ---- */

enum {
    DEPTH = 32, /* modes of a step of the sum */
    DEPTH_ROW = DEPTH + 4,
    STAGES = 3,
    LEFT_SIZE = MOST_CHANNELS * DEPTH_ROW,
    STAGE_SIZE = (MOST_CHANNELS + INNER_ROWS) * DEPTH_ROW,
    GRADIENT_THREADS = 256,
    GRADIENT_SIZE = STAGES * STAGE_SIZE
};

/* sums[block] (channels, inner) = a sum over samples and modes of left (channels) right (inner),
 * one of them conjugated. */
struct map_job {
    const float2 *left, *right;
    int inner;
    float left_sign, right_sign;
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
    const map_job &job = s.job[blockIdx.y];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 4 * 16;
    const int64_t steps = s.batch * ((s.modes + DEPTH - 1) / DEPTH);
    const int64_t end = steps * (blockIdx.x + 1) / gridDim.x;
    int64_t step = steps * blockIdx.x / gridDim.x, fetched = step;
    for (int e = (int)threadIdx.x; e < GRADIENT_SIZE; e += GRADIENT_THREADS) {
        shared[e] = make_float2(0.0f, 0.0f);
    }
    __syncthreads();
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
    sum_tile sum[INNER_STEPS] = {};
    for (int slot = 0; step < end; step++, slot = slot + 1 == STAGES ? 0 : slot + 1) {
        copies_wait_but<STAGES - 2>();
        __syncthreads();
        fetch(slot == 0 ? STAGES - 1 : slot - 1); /* what the last round was made from */
        const float2 *left = shared + slot * STAGE_SIZE + row * DEPTH_ROW + warp / 4 * (DEPTH / 2);
        const float2 *right = shared + slot * STAGE_SIZE + LEFT_SIZE + warp / 4 * (DEPTH / 2);
#pragma unroll
        for (int k = 0; k < DEPTH / 2; k += 8) {
            const left_tile a = load_left(left + k, DEPTH_ROW, 1, job.left_sign, lane);
#pragma unroll
            for (int n = 0; n < INNER_STEPS; n++) {
                multiply_add(
                    sum[n], a,
                    load_right(right + 8 * n * DEPTH_ROW + k, 1, job.right_sign, lane, DEPTH_ROW));
            }
        }
    }
    copies_wait();
    __syncthreads();
    float2 *half = shared + row * INNER_ROWS; /* of the other warps */
#pragma unroll
    for (int n = 0; n < INNER_STEPS; n++) {
        each_number(sum[n], lane, [&](int i, int j, float2 x) {
            if (warp >= 4) {
                half[i * INNER_ROWS + 8 * n + j] = x;
            }
        });
    }
    __syncthreads();
    float2 *out = job.sums + (int64_t)blockIdx.x * s.channels * job.inner;
#pragma unroll
    for (int n = 0; n < INNER_STEPS; n++) {
        each_number(sum[n], lane, [&](int i, int j, float2 x) {
            if (warp < 4 && row + i < s.channels && 8 * n + j < job.inner) {
                const float2 y = half[i * INNER_ROWS + 8 * n + j];
                out[(row + i) * job.inner + 8 * n + j] = make_float2(x.x + y.x, x.y + y.y);
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
    mapped_contract<<<(unsigned)((op->modes + MODES - 1) / MODES), THREADS, shared,
                      cuda_stream(be)>>>(
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
          (int)op->in, -1.0f, 1.0f, reinterpret_cast<float2 *>(sums)},
         {static_cast<const float2 *>(op->dy), static_cast<const float2 *>(op->inner_out),
          (int)op->out, 1.0f, -1.0f, reinterpret_cast<float2 *>(sums + blocks * size[0])}},
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
