/* The last two modes of Tucker weights in one pass each way, where products are rounded to TF32:
 *   weight[p] = left core[p] right^T,
 * and from d = dweight[p], with n = d conj(right) and m = left core[p],
 *   dcore[p] = left^H n,   dleft += n core[p]^H,   dright += d^T conj(m).
 *
 * Planes are small: one by one they are matrix products of a few tiles, and between two of them
 * several times the core would go through memory. Here a block keeps both factors in shared memory
 * and walks over planes, the next one coming while this one is multiplied; sums over planes stay in
 * registers and are added up at the end, in a fixed order.
 *
 * Rows in shared memory are 4 or 12 modulo 16 numbers apart, so that fragments lie in different
 * banks whichever way they are read. Where a tile reaches beyond a row it meets other numbers,
 * which the other factor's zeros put out. */
#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/complex.cuh"
#include "backend/cuda/tile/stage.cuh"

enum {
    MOST_D1 = 64, /* rows of a weight's plane, and */
    MOST_D2 = 36, /* its columns; */
    MOST_R1 = 36, /* of the core's */
    MOST_R2 = 20,
    LONG_ROW = 36, /* of left and d */
    CORE_ROW = 20,
    SHORT_ROW = 28,  /* of right, n and m, which are filled up */
    STEPS = 5,       /* of 8, over d2 and r1 .. */
    SHORT_STEPS = 3, /* .. and over r2 */
    LEFT_SIZE = MOST_D1 * LONG_ROW,
    RIGHT_SIZE = 8 * STEPS * SHORT_ROW,
    CORE_SIZE = 8 * STEPS * CORE_ROW,
    MIDDLE_SIZE = MOST_D1 * SHORT_ROW,
    FORWARD_THREADS = 128,
    BACK_THREADS = 256,
    FORWARD_SIZE = LEFT_SIZE + RIGHT_SIZE + CORE_SIZE + MOST_D1 * MOST_D2,
    BACK_SIZE = 3 * LEFT_SIZE + RIGHT_SIZE + 2 * CORE_SIZE + 2 * MIDDLE_SIZE
};

struct plane_sizes {
    int64_t planes;
    int d1, d2, r1, r2;
};

/* Nothing that comes from memory is rounded: each product makes up for what its two factors have
 * lost (TF32_CUT), and a sum that is a factor itself for that. */
static __device__ inline void round_sum(sum_tile &x) {
    constexpr float cut = TF32_CUT * TF32_CUT * TF32_CUT;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.re[i] *= cut;
        x.im[i] *= cut;
    }
}

/* A result of which one factor came from memory. */
static __device__ inline float2 cut_back(float2 x) {
    return make_float2(TF32_CUT * x.x, TF32_CUT * x.y);
}

/* 16 rows of a product over `rows` numbers of `left`, all columns of the core's. */
static __device__ inline void multiply_rows(sum_tile (&sum)[SHORT_STEPS], const float2 *left,
                                            const float2 *right, int right_row, float sign,
                                            int lane) {
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        const left_tile a = load_left(left + 8 * k, LONG_ROW, 1, 1.0f, lane);
#pragma unroll
        for (int n = 0; n < SHORT_STEPS; n++) {
            multiply_add(sum[n], a,
                         load_right(right + 8 * k * right_row + 8 * n, right_row, sign, lane));
        }
    }
}

/* ---- what comes in ---- */

/* Rows of a matrix to rows that are `row` numbers apart, past the registers. */
static __device__ inline void fetch_rows(float2 *to, int row, const float2 *from, int rows,
                                         int columns) {
    const int threads = (int)blockDim.x, down = threads / columns, across = threads % columns;
    int i = (int)threadIdx.x / columns, j = (int)threadIdx.x % columns;
    const float2 *at = from + threadIdx.x;
    for (; i < rows; at += threads) {
        copy_async<8>(to + i * row + j, at);
        const bool wraps = j + across >= columns;
        i += down + wraps;
        j += wraps ? across - columns : across;
    }
}

static __device__ inline void clear(float2 *x, int size) {
    for (int e = (int)threadIdx.x; e < size; e += (int)blockDim.x) {
        x[e] = make_float2(0.0f, 0.0f);
    }
    __syncthreads();
}

/* ---- forward: a warp takes 16 rows ---- */

/* A plane as it lies, in whole accesses where it may. */
static __device__ inline void store_plane(float2 *out, const float2 *plane, int size) {
    if (size % 2 == 0) {
        for (int e = (int)threadIdx.x; e < size / 2; e += FORWARD_THREADS) {
            reinterpret_cast<float4 *>(out)[e] = reinterpret_cast<const float4 *>(plane)[e];
        }
    } else {
        for (int e = (int)threadIdx.x; e < size; e += FORWARD_THREADS) {
            out[e] = plane[e];
        }
    }
}

static __global__ void __launch_bounds__(FORWARD_THREADS, 4)
    two_modes_forward(plane_sizes s, const float2 *core, const float2 *left_factor,
                      const float2 *right_factor, float2 *weight) {
    extern __shared__ float2 shared[];
    float2 *left = shared, *from = left + LEFT_SIZE, *right = from + CORE_SIZE;
    float2 *made = right + RIGHT_SIZE;
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
    clear(shared, FORWARD_SIZE);
    const auto fetch = [&](int64_t plane) {
        if (plane < s.planes) {
            fetch_rows(from, CORE_ROW, core + plane * s.r1 * s.r2, s.r1, s.r2);
        }
    };
    fetch(blockIdx.x);
    fetch_rows(left, LONG_ROW, left_factor, s.d1, s.r1);
    fetch_rows(right, SHORT_ROW, right_factor, s.d2, s.r2);
    for (int64_t plane = blockIdx.x; plane < s.planes; plane += gridDim.x) {
        copies_wait();
        __syncthreads();
        sum_tile middle[SHORT_STEPS] = {};
        multiply_rows(middle, left + row * LONG_ROW, from, CORE_ROW, 1.0f, lane);
#pragma unroll
        for (int n = 0; n < SHORT_STEPS; n++) {
            round_sum(middle[n]);
        }
#pragma unroll
        for (int n = 0; n < STEPS; n++) {
            sum_tile sum = {};
#pragma unroll
            for (int k = 0; k < SHORT_STEPS; k++) {
                multiply_add(sum, as_left(middle[k]),
                             load_turned(right + 8 * n * SHORT_ROW + 8 * k, SHORT_ROW, 1.0f, lane));
            }
            each_number(sum, lane, [&](int i, int j, float2 x) {
                if (row + i < s.d1 && 8 * n + j < s.d2) {
                    made[(row + i) * s.d2 + 8 * n + j] = cut_back(x);
                }
            });
        }
        __syncthreads();
        fetch(plane + gridDim.x);
        store_plane(weight + plane * s.d1 * s.d2, made, s.d1 * s.d2);
    }
}

/* ---- backward ---- */

/* What a warp adds up in its second part: 16 rows of dcore or of dright, and some of their three
 * tiles of columns. */
struct column_job {
    bool is_core;
    int row, first, tiles;
};

/* The first four warps have done more before. */
static __device__ inline column_job job_of(int warp) {
    return warp >= 4 ? column_job{warp < 7, warp < 7 ? 16 * (warp - 4) : 0, 0, SHORT_STEPS}
                     : column_job{false, 16 + warp / 2 * 16, warp % 2 * 2, 2 - warp % 2};
}

/* sum += left^T right over the rows of a plane, one of them conjugated. */
template <int TILES>
static __device__ inline void multiply_columns(sum_tile (&sum)[SHORT_STEPS], const float2 *left,
                                               float left_sign, const float2 *right,
                                               float right_sign, int lane) {
#pragma unroll 2
    for (int k = 0; k < MOST_D1; k += 8) {
        const left_tile a = load_left(left + k * LONG_ROW, 1, LONG_ROW, left_sign, lane);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            multiply_add(sum[n], a,
                         load_right(right + k * SHORT_ROW + 8 * n, SHORT_ROW, right_sign, lane));
        }
    }
}

/* Sums of a block, as they are left: dleft (d1, r1), and behind it dright (d2, r2). */
static __host__ __device__ inline int sums_size(const plane_sizes &s) {
    return s.d1 * s.r1 + s.d2 * s.r2;
}

static __global__ void __launch_bounds__(BACK_THREADS, 2)
    two_modes_backward(plane_sizes s, const float2 *core, const float2 *left_factor,
                       const float2 *right_factor, const float2 *dweight, float2 *dcore,
                       float2 *sums) {
    extern __shared__ float2 shared[];
    float2 *left = shared, *planes = left + LEFT_SIZE, *right = planes + 2 * LEFT_SIZE;
    float2 *cores = right + RIGHT_SIZE, *n_rows = cores + 2 * CORE_SIZE;
    float2 *m_rows = n_rows + MIDDLE_SIZE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % 4 * 16;
    const column_job job = job_of(warp);
    sum_tile dleft[STEPS] = {}, dright[SHORT_STEPS] = {};
    clear(shared, BACK_SIZE);
    fetch_rows(left, LONG_ROW, left_factor, s.d1, s.r1);
    fetch_rows(right, SHORT_ROW, right_factor, s.d2, s.r2);
    const auto fetch = [&](int64_t plane, int to) {
        if (plane < s.planes) {
            fetch_rows(planes + to * LEFT_SIZE, LONG_ROW, dweight + plane * s.d1 * s.d2, s.d1,
                       s.d2);
            fetch_rows(cores + to * CORE_SIZE, CORE_ROW, core + plane * s.r1 * s.r2, s.r1, s.r2);
        }
    };
    fetch(blockIdx.x, 0);
    int now = 0;
    for (int64_t plane = blockIdx.x; plane < s.planes; plane += gridDim.x, now ^= 1) {
        const float2 *d = planes + now * LEFT_SIZE, *c = cores + now * CORE_SIZE;
        copies_wait();
        __syncthreads();
        fetch(plane + gridDim.x, now ^ 1);
        {
            sum_tile middle[SHORT_STEPS] = {};
            if (warp < 4) {
                multiply_rows(middle, d + row * LONG_ROW, right, SHORT_ROW, -1.0f, lane);
            } else {
                multiply_rows(middle, left + row * LONG_ROW, c, CORE_ROW, 1.0f, lane);
            }
            float2 *to = (warp < 4 ? n_rows : m_rows) + row * SHORT_ROW;
#pragma unroll
            for (int n = 0; n < SHORT_STEPS; n++) {
                round_sum(middle[n]);
                each_number(middle[n], lane,
                            [&](int i, int j, float2 x) { to[i * SHORT_ROW + 8 * n + j] = x; });
            }
            if (warp < 4) {
#pragma unroll
                for (int k = 0; k < SHORT_STEPS; k++) {
                    const left_tile a = as_left(middle[k]);
#pragma unroll
                    for (int n = 0; n < STEPS; n++) {
                        multiply_add(
                            dleft[n], a,
                            load_turned(c + 8 * n * CORE_ROW + 8 * k, CORE_ROW, -1.0f, lane));
                    }
                }
            }
        }
        __syncthreads();
        const float2 *m = m_rows + 8 * job.first;
        if (job.is_core) {
            sum_tile sum[SHORT_STEPS] = {};
            multiply_columns<SHORT_STEPS>(sum, left + job.row, -1.0f, n_rows, 1.0f, lane);
            float2 *out = dcore + plane * s.r1 * s.r2;
#pragma unroll
            for (int n = 0; n < SHORT_STEPS; n++) {
                each_number(sum[n], lane, [&](int i, int j, float2 x) {
                    if (job.row + i < s.r1 && 8 * n + j < s.r2) {
                        out[(job.row + i) * s.r2 + 8 * n + j] = cut_back(x);
                    }
                });
            }
        } else if (job.tiles == SHORT_STEPS) {
            multiply_columns<SHORT_STEPS>(dright, d + job.row, 1.0f, m, -1.0f, lane);
        } else if (job.tiles == 2) {
            multiply_columns<2>(dright, d + job.row, 1.0f, m, -1.0f, lane);
        } else {
            multiply_columns<1>(dright, d + job.row, 1.0f, m, -1.0f, lane);
        }
    }
    sums += (int64_t)blockIdx.x * sums_size(s);
#pragma unroll
    for (int n = 0; n < STEPS; n++) {
        each_number(dleft[n], lane, [&](int i, int j, float2 x) {
            if (warp < 4 && row + i < s.d1 && 8 * n + j < s.r1) {
                sums[(row + i) * s.r1 + 8 * n + j] = x;
            }
        });
    }
    sums += s.d1 * s.r1;
#pragma unroll
    for (int n = 0; n < SHORT_STEPS; n++) {
        each_number(dright[n], lane, [&](int i, int j, float2 x) {
            j += 8 * (job.first + n);
            if (!job.is_core && n < job.tiles && job.row + i < s.d2 && j < s.r2) {
                sums[(job.row + i) * s.r2 + j] = x;
            }
        });
    }
}

/* ---- slots ---- */

static plane_sizes sizes_of(const tg_two_modes *op) {
    return {op->planes, (int)op->d1, (int)op->d2, (int)op->r1, (int)op->r2};
}

static bool cuda_two_modes_takes(tg_backend *be, const tg_two_modes *op) {
    return op->dtype == TG_C64 && be->math == TG_MATH_TF32 && op->d1 <= MOST_D1 &&
           op->d2 <= MOST_D2 && op->r1 <= MOST_R1 && op->r2 <= MOST_R2 &&
           tensor_fits(be, BACK_SIZE * sizeof(float2));
}

static tg_status cuda_two_modes_forward(tg_backend *be, const tg_two_modes *op) {
    const size_t shared = FORWARD_SIZE * sizeof(float2);
    const int at_once = 4; /* blocks of a multiprocessor */
    tg_status status = TG_OK;
    TG_TRY(
        CUDA_CHECK(be,
                   cudaFuncSetAttribute(two_modes_forward,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                   "asking for shared memory"));
    {
        const int64_t most = (int64_t)cuda_state_of(be)->processors * at_once;
        two_modes_forward<<<(unsigned)(op->planes < most ? op->planes : most), FORWARD_THREADS,
                            shared, cuda_stream(be)>>>(
            sizes_of(op), static_cast<const float2 *>(op->core),
            static_cast<const float2 *>(op->left), static_cast<const float2 *>(op->right),
            static_cast<float2 *>(op->weight));
    }
    TG_TRY(CUDA_LAUNCHED(be, "expanding two modes"));
fail:
    return status;
}

static tg_status cuda_two_modes_backward(tg_backend *be, const tg_two_modes *op) {
    const plane_sizes s = sizes_of(op);
    const size_t shared = BACK_SIZE * sizeof(float2);
    float *sums = static_cast<float *>(cuda_state_of(be)->blas_workspace);
    int blocks = 0;
    tg_status status = TG_OK;
    TG_TRY(tensor_blocks(be, (const void *)two_modes_backward, shared, &blocks, BACK_THREADS));
    {
        const int64_t room = CUDA_BLAS_BYTES / (sums_size(s) * (int64_t)sizeof(float2));
        const int64_t most = op->planes < room ? op->planes : room;
        const int used = blocks < most ? blocks : (int)most;
        two_modes_backward<<<(unsigned)used, BACK_THREADS, shared, cuda_stream(be)>>>(
            s, static_cast<const float2 *>(op->core), static_cast<const float2 *>(op->left),
            static_cast<const float2 *>(op->right), static_cast<const float2 *>(op->weight),
            static_cast<float2 *>(op->dcore), reinterpret_cast<float2 *>(sums));
        TG_TRY(CUDA_LAUNCHED(be, "gradients of two modes"));
        const int64_t stride = 2 * sums_size(s);
        const fold_jobs jobs = {
            {{sums, stride, s.d1, 2 * s.r1, 2 * s.r1, false, static_cast<float *>(op->dleft)},
             {sums + 2 * s.d1 * s.r1, stride, s.d2, 2 * s.r2, 2 * s.r2, false,
              static_cast<float *>(op->dright)}},
            2,
            used,
            {TF32_CUT, TF32_CUT}};
        TG_TRY(fold_partials(be, jobs));
    }
fail:
    return status;
}

void cuda_fill_nn_two_modes(tg_backend_ops *ops) {
    ops->two_modes_takes = cuda_two_modes_takes;
    ops->two_modes_forward = cuda_two_modes_forward;
    ops->two_modes_backward = cuda_two_modes_backward;
}
