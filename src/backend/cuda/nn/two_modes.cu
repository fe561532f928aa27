/* The last two modes of Tucker weights in one pass forward and one backward, where products are
 * rounded to TF32:
 *   weight[p] = left core[p] right^T,
 * and from d = dweight[p], with n = d conj(right) and m = left core[p],
 *   dcore[p] = left^H n,   dleft = the sum of n core[p]^H,   dright of d^T conj(m).
 *
 * Planes are small: separate matrix products would be a few tiles each, and their intermediate
 * results, several times the size of the core, would pass through memory. Here a block keeps both
 * factors in shared memory and iterates over planes, prefetching the next one. Sums over planes
 * stay in registers and are added at the end, in a fixed order.
 *
 * The row pitch in shared memory is 4 modulo 16 numbers, so that fragments are read without bank
 * conflicts in either direction. Short rows, which are also accessed in pairs of numbers, have a
 * pitch of 8 modulo 16, and every other two of them have their groups of four swapped. Where a tile
 * extends past a row it reads other numbers, which zeros of the other factor cancel. */
#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/complex.cuh"
#include "backend/cuda/tile/stage.cuh"

enum {
    MAX_D1 = 64, /* rows of a weight's plane, and */
    MAX_D2 = 36, /* its columns; */
    MAX_R1 = 36, /* of the core's */
    MAX_R2 = 20,
    LONG_ROW = 36,      /* of left and d */
    SHORT_ROW = 24,     /* of core, right, n and m */
    STEPS = MAX_D2 / 4, /* of a sum over d2 or r1 */
    TILES = 5,          /* of 8, over d2 and r1 .. */
    SHORT_TILES = 3,    /* .. and over r2 */
    STRIPS = 2,         /* of 8 rows, which a warp takes */
    ROWS = 8 * STRIPS,
    TEAM = MAX_D1 / ROWS, /* warps for all rows */
    LEFT_SIZE = MAX_D1 * LONG_ROW,
    PLANE_SIZE = LEFT_SIZE + 8 * TILES - MAX_D2, /* a tile extends past the last row */
    RIGHT_SIZE = 8 * TILES * SHORT_ROW,
    CORE_SIZE = 8 * TILES * SHORT_ROW,
    MIDDLE_SIZE = MAX_D1 * SHORT_ROW,
    FORWARD_THREADS = 32 * TEAM,
    BACK_THREADS = 2 * FORWARD_THREADS,
    FORWARD_SIZE = LEFT_SIZE + RIGHT_SIZE + CORE_SIZE + MAX_D1 * MAX_D2,
    BACK_SIZE = 3 * PLANE_SIZE + RIGHT_SIZE + 2 * CORE_SIZE + 2 * MIDDLE_SIZE
};

struct plane_sizes {
    int64_t planes;
    int d1, d2, r1, r2;
};

/* Numbers from memory are not rounded. Each product is corrected for the truncation of its two
 * factors (TF32_CUT), and a sum that becomes a factor is corrected as well. */
static __device__ inline void round_sum(sum_tile &x) {
    constexpr float cut = TF32_CUT * TF32_CUT * TF32_CUT;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.c[i] *= cut;
    }
}

/* A result of which one factor came from memory; its conjugate where `sign` is -1. */
static __device__ inline float2 cut_back(float2 x, float sign = 1.0f) {
    return make_float2(TF32_CUT * x.x, sign * TF32_CUT * x.y);
}

/* Position of a column in a short row. */
static __device__ inline int short_column(int row, int column) {
    return column ^ (row & 2) * 2;
}

/* Tiles of short rows, the first of which is a multiple of 4. */
static __device__ inline right_tile load_short(const float2 *x, int lane) {
    return {x[lane % 4 * SHORT_ROW + short_column(lane % 4, lane / 4)]};
}
static __device__ inline transposed_tiles load_short_transposed(const float2 *x, int lane) {
    return {*reinterpret_cast<const float4 *>(x + lane / 4 * SHORT_ROW +
                                              short_column(lane / 4, lane % 4 * 2))};
}

/* ROWS rows of left times all columns of the core, rounded. */
struct middle_rows {
    sum_tile sum[STRIPS][SHORT_TILES];

    __device__ void multiply(const float2 *left, const float2 *right, float sign, int lane) {
#pragma unroll
        for (int i = 0; i < STRIPS * SHORT_TILES; i++) {
            sum[i % STRIPS][i / STRIPS] = {};
        }
#pragma unroll
        for (int k = 0; k < 4 * STEPS; k += 4) {
            left_tile a[STRIPS];
#pragma unroll
            for (int m = 0; m < STRIPS; m++) {
                a[m] = load_left(left + 8 * m * LONG_ROW + k, LONG_ROW, 1, sign, lane);
            }
#pragma unroll
            for (int n = 0; n < SHORT_TILES; n++) {
                const right_tile b = load_short(right + k * SHORT_ROW + 8 * n, lane);
#pragma unroll
                for (int m = 0; m < STRIPS; m++) {
                    multiply_add(sum[m][n], a[m], b);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < STRIPS * SHORT_TILES; i++) {
            round_sum(sum[i % STRIPS][i / STRIPS]);
        }
    }
    __device__ void store(float2 *to, int lane) const {
#pragma unroll
        for (int i = 0; i < STRIPS * SHORT_TILES; i++) {
            const int m = i % STRIPS, n = i / STRIPS;
            each_pair(sum[m][n], lane, [&](int row, int column, float4 x) {
                *reinterpret_cast<float4 *>(to + (8 * m + row) * SHORT_ROW + 8 * n +
                                            short_column(row, column)) = x;
            });
        }
    }
    /* out += the rows times the columns that are stored as rows of `right`. */
    __device__ void multiply_transposed(sum_tile (&out)[TILES][STRIPS], const float2 *right,
                                        float sign, int lane) const {
#pragma unroll
        for (int k = 0; k < SHORT_TILES; k++) {
            transposed_tiles b[TILES];
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                b[n] = load_short_transposed(right + 8 * n * SHORT_ROW + 8 * k, lane);
            }
#pragma unroll
            for (int i = 0; i < 2 * STRIPS; i++) {
                const int m = i % STRIPS, half = i / STRIPS;
                const left_tile a = as_left(sum[m][k], half, sign);
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    multiply_add(out[n][m], a, b[n].tile(half));
                }
            }
        }
    }
};

/* ---- inputs ---- */

/* Asynchronous copies of the rows of a matrix to rows with a larger pitch. A thread copies the same
 * positions of each matrix, so they are computed once. */
template <int MAX_NUMBERS, int THREADS, int ROW> struct row_copies {
    static constexpr int COUNT = (MAX_NUMBERS + THREADS - 1) / THREADS, BYTES = sizeof(float2);
    int left; /* numbers, from the thread's first on */
    uint32_t place[COUNT];

    __device__ row_copies(int rows, int columns) : left(rows * columns - (int)threadIdx.x) {
        const int down = THREADS / columns, across = THREADS % columns;
        int i = (int)threadIdx.x / columns, j = (int)threadIdx.x % columns;
#pragma unroll
        for (int q = 0; q < COUNT; q++) {
            place[q] = (uint32_t)(i * ROW + (ROW == SHORT_ROW ? short_column(i, j) : j)) * BYTES;
            const bool wraps = j + across >= columns;
            i += down + wraps;
            j += wraps ? across - columns : across;
        }
    }
    __device__ void fetch(float2 *to, const float2 *from) const {
        fetch_from<0>((uint32_t)__cvta_generic_to_shared(to),
                      __cvta_generic_to_global(from + threadIdx.x));
    }

  private:
    template <int Q> __device__ void fetch_from(uint32_t to, size_t from) const {
        if constexpr (Q < COUNT) {
            asm volatile(
                "{ .reg .pred counts;"
                "  setp.gt.s32 counts, %2, %3;"
                "  @counts cp.async.ca.shared.global [%0], [%1 + %4], %5; }" ::"r"(to + place[Q]),
                "l"(from), "r"(left), "n"(Q * THREADS), "n"(Q * THREADS * BYTES), "n"(BYTES)
                : "memory");
            fetch_from<Q + 1>(to, from);
        }
    }
};

static __device__ inline void clear(float2 *x, int size) {
    for (int e = (int)threadIdx.x; e < size; e += (int)blockDim.x) {
        x[e] = make_float2(0.0f, 0.0f);
    }
    __syncthreads();
}

/* ---- forward: a warp takes 16 rows ---- */

/* A plane with unchanged layout, in full-width accesses where aligned. */
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
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * ROWS;
    clear(shared, (int)(made - shared));
    const row_copies<MAX_R1 * MAX_R2, FORWARD_THREADS, SHORT_ROW> of_core(s.r1, s.r2);
    const auto fetch = [&](int64_t plane) {
        if (plane < s.planes) {
            of_core.fetch(from, core + plane * s.r1 * s.r2);
        }
    };
    fetch(blockIdx.x);
    row_copies<LEFT_SIZE, FORWARD_THREADS, LONG_ROW>(s.d1, s.r1).fetch(left, left_factor);
    row_copies<MAX_D2 * MAX_R2, FORWARD_THREADS, SHORT_ROW>(s.d2, s.r2).fetch(right, right_factor);
    for (int64_t plane = blockIdx.x; plane < s.planes; plane += gridDim.x) {
        copies_wait();
        __syncthreads();
        middle_rows middle;
        middle.multiply(left + row * LONG_ROW, from, 1.0f, lane);
        sum_tile sum[TILES][STRIPS] = {};
        middle.multiply_transposed(sum, right, 1.0f, lane);
#pragma unroll
        for (int e = 0; e < TILES * STRIPS; e++) {
            each_number(sum[e / STRIPS][e % STRIPS], lane, [&](int i, int j, float2 x) {
                i += row + e % STRIPS * 8;
                j += e / STRIPS * 8;
                if (i < s.d1 && j < s.d2) {
                    made[i * s.d2 + j] = cut_back(x);
                }
            });
        }
        __syncthreads();
        fetch(plane + gridDim.x);
        store_plane(weight + plane * s.d1 * s.d2, made, s.d1 * s.d2);
    }
}

/* ---- backward ---- */

/* One team of warps computes n, dleft and dcore, the other one m and dright. */

/* sum += left^T conj(right) over `rows` rows of a plane. */
template <int M, int N>
static __device__ inline void multiply_columns(sum_tile (&sum)[M][N], const float2 *left,
                                               const float2 *right, int rows, int lane) {
#pragma unroll 4
    for (int k = 0; k < rows; k += 4) {
        right_tile b[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            b[n] = load_short(right + k * SHORT_ROW + 8 * n, lane);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            const left_tile a = load_left(left + k * LONG_ROW + 8 * m, 1, LONG_ROW, -1.0f, lane);
#pragma unroll
            for (int n = 0; n < N; n++) {
                multiply_add(sum[m][n], a, b[n]);
            }
        }
    }
}

/* M by N tiles of dcore[plane] = left^H n, from tile (m0, n0) on. */
template <int M, int N>
static __device__ inline void core_tiles(const plane_sizes &s, const float2 *left,
                                         const float2 *n_rows, int m0, int n0, float2 *dcore,
                                         int lane) {
    sum_tile sum[M][N] = {};
    multiply_columns(sum, left + 8 * m0, n_rows + 8 * n0, MAX_D1, lane);
#pragma unroll
    for (int e = 0; e < M * N; e++) {
        each_number(sum[e / N][e % N], lane, [&](int i, int j, float2 x) {
            i += 8 * (m0 + e / N);
            j += 8 * (n0 + e % N);
            if (i < s.r1 && j < s.r2) {
                dcore[i * s.r2 + j] = cut_back(x, -1.0f);
            }
        });
    }
}

/* Partial sums of a block: dleft (d1, r1), followed by dright (d2, r2). */
static __host__ __device__ inline int sums_size(const plane_sizes &s) {
    return s.d1 * s.r1 + s.d2 * s.r2;
}

static __device__ inline void wait_for_block() {
    asm volatile("bar.sync 1, %0;" ::"r"((int)BACK_THREADS) : "memory");
}

static __device__ inline void wait_for_team() {
    asm volatile("bar.sync 2, %0;" ::"r"((int)FORWARD_THREADS) : "memory");
}

static __global__ void __launch_bounds__(BACK_THREADS, 2)
    two_modes_backward(plane_sizes s, const float2 *core, const float2 *left_factor,
                       const float2 *right_factor, const float2 *dweight, float2 *dcore,
                       float2 *sums) {
    extern __shared__ float2 shared[];
    float2 *left = shared, *planes = left + PLANE_SIZE, *right = planes + 2 * PLANE_SIZE;
    float2 *cores = right + RIGHT_SIZE, *n_rows = cores + 2 * CORE_SIZE;
    float2 *m_rows = n_rows + MIDDLE_SIZE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp % TEAM * ROWS;
    clear(shared, (int)(n_rows - shared));
    row_copies<LEFT_SIZE, BACK_THREADS, LONG_ROW>(s.d1, s.r1).fetch(left, left_factor);
    row_copies<MAX_D2 * MAX_R2, BACK_THREADS, SHORT_ROW>(s.d2, s.r2).fetch(right, right_factor);
    const row_copies<LEFT_SIZE, BACK_THREADS, LONG_ROW> of_plane(s.d1, s.d2);
    const row_copies<MAX_R1 * MAX_R2, BACK_THREADS, SHORT_ROW> of_core(s.r1, s.r2);
    const auto fetch = [&](int64_t plane, int to) {
        if (plane < s.planes) {
            of_plane.fetch(planes + to * PLANE_SIZE, dweight + plane * s.d1 * s.d2);
            of_core.fetch(cores + to * CORE_SIZE, core + plane * s.r1 * s.r2);
        }
    };
    /* Calls work(plane, d, core) for every plane of the block while the next one is being
     * loaded. */
    const auto each_plane = [&](auto work) {
        int now = 0;
        fetch(blockIdx.x, 0);
        for (int64_t plane = blockIdx.x; plane < s.planes; plane += gridDim.x, now ^= 1) {
            copies_wait();
            wait_for_block();
            fetch(plane + gridDim.x, now ^ 1);
            work(plane, planes + now * PLANE_SIZE, cores + now * CORE_SIZE);
        }
    };
    sums += (int64_t)blockIdx.x * sums_size(s);
    if (warp < TEAM) {
        sum_tile dleft[TILES][STRIPS] = {};
        each_plane([&](int64_t plane, const float2 *d, const float2 *c) {
            middle_rows n;
            n.multiply(d + row * LONG_ROW, right, -1.0f, lane);
            n.store(n_rows + row * SHORT_ROW, lane);
            n.multiply_transposed(dleft, c, -1.0f, lane);
            wait_for_team();
            float2 *out = dcore + plane * s.r1 * s.r2;
            if (warp < 2) {
                core_tiles<2, 2>(s, left, n_rows, 2 * warp, 0, out, lane);
            } else if (warp == 2) {
                core_tiles<4, 1>(s, left, n_rows, 0, 2, out, lane);
            } else {
                core_tiles<1, 3>(s, left, n_rows, 4, 0, out, lane);
            }
        });
#pragma unroll
        for (int e = 0; e < TILES * STRIPS; e++) {
            each_number(dleft[e / STRIPS][e % STRIPS], lane, [&](int i, int j, float2 x) {
                i += row + e % STRIPS * 8;
                j += e / STRIPS * 8;
                if (i < s.d1 && j < s.r1) {
                    sums[i * s.r1 + j] = x;
                }
            });
        }
        wait_for_block();
    } else {
        sum_tile dright[TILES][SHORT_TILES] = {};
        each_plane([&](int64_t, const float2 *d, const float2 *c) {
            middle_rows m;
            m.multiply(left + row * LONG_ROW, c, 1.0f, lane);
            m.store(m_rows + row * SHORT_ROW, lane);
            __syncwarp();
            multiply_columns(dright, d + row * LONG_ROW, m_rows + row * SHORT_ROW, ROWS, lane);
        });
        wait_for_block(); /* the planes are no longer read */
        constexpr int COLUMNS = 8 * SHORT_TILES, SIZE = 8 * TILES * COLUMNS;
        float2 *mine = planes + (warp - TEAM) * SIZE;
#pragma unroll
        for (int e = 0; e < TILES * SHORT_TILES; e++) {
            each_number(dright[e / SHORT_TILES][e % SHORT_TILES], lane,
                        [&](int i, int j, float2 x) {
                            i += e / SHORT_TILES * 8;
                            mine[i * COLUMNS + e % SHORT_TILES * 8 + j] = x;
                        });
        }
        wait_for_team();
        for (int e = (int)threadIdx.x - 32 * TEAM; e < s.d2 * s.r2; e += 32 * TEAM) {
            const float2 *at = planes + e / s.r2 * COLUMNS + e % s.r2;
            float2 sum = at[0];
#pragma unroll
            for (int w = 1; w < TEAM; w++) {
                sum.x += at[w * SIZE].x;
                sum.y += at[w * SIZE].y;
            }
            sums[s.d1 * s.r1 + e] = sum;
        }
    }
}

/* ---- slots ---- */

static plane_sizes sizes_of(const tg_two_modes *op) {
    return {op->planes, (int)op->d1, (int)op->d2, (int)op->r1, (int)op->r2};
}

bool cuda_two_modes_supports(tg_backend *be, const tg_two_modes *op) {
    return op->dtype == TG_C64 && be->math == TG_MATH_TF32 && op->d1 <= MAX_D1 &&
           op->d2 <= MAX_D2 && op->r1 <= MAX_R1 && op->r2 <= MAX_R2 &&
           tensor_fits(be, BACK_SIZE * sizeof(float2));
}

static tg_status cuda_two_modes_forward(tg_backend *be, const tg_two_modes *op) {
    const int at_once = 4; /* blocks per multiprocessor */
    const int64_t most = (int64_t)cuda_state_of(be)->processors * at_once;
    return launch_alone(be, "expanding two modes", two_modes_forward,
                        (unsigned)(op->planes < most ? op->planes : most), FORWARD_THREADS,
                        FORWARD_SIZE * sizeof(float2), sizes_of(op),
                        static_cast<const float2 *>(op->core),
                        static_cast<const float2 *>(op->left),
                        static_cast<const float2 *>(op->right), static_cast<float2 *>(op->weight));
}

static tg_status cuda_two_modes_backward(tg_backend *be, const tg_two_modes *op) {
    const plane_sizes s = sizes_of(op);
    const size_t shared = BACK_SIZE * sizeof(float2);
    float *sums = static_cast<float *>(cuda_state_of(be)->blas_workspace);
    int blocks = 0;
    TG_CALL(tensor_blocks(be, (const void *)two_modes_backward, shared, BACK_THREADS, &blocks));
    const int64_t room = CUDA_BLAS_BYTES / (sums_size(s) * (int64_t)sizeof(float2));
    const int64_t most = op->planes < room ? op->planes : room;
    const int used = blocks < most ? blocks : (int)most;
    TG_CALL(launch_alone(
        be, "gradients of two modes", two_modes_backward, (unsigned)used, BACK_THREADS, shared, s,
        static_cast<const float2 *>(op->core), static_cast<const float2 *>(op->left),
        static_cast<const float2 *>(op->right), static_cast<const float2 *>(op->weight),
        static_cast<float2 *>(op->dcore), reinterpret_cast<float2 *>(sums)));
    const int64_t stride = 2 * sums_size(s);
    const fold_jobs jobs = {
        {{sums, stride, s.d1, 2 * s.r1, 2 * s.r1, false, static_cast<float *>(op->dleft)},
         {sums + 2 * s.d1 * s.r1, stride, s.d2, 2 * s.r2, 2 * s.r2, false,
          static_cast<float *>(op->dright)}},
        2,
        used,
        {TF32_CUT, TF32_CUT}};
    return set_partials(be, jobs);
}

tg_status cuda_two_modes(tg_backend *be, const tg_two_modes *op) {
    return op->backward ? cuda_two_modes_backward(be, op) : cuda_two_modes_forward(be, op);
}
