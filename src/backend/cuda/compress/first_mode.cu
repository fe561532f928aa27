/* Mode 0 where products are rounded to TF32, straight between `middle` and the core, whose parts
 * lie together: by cuBLAS there is one more pass to bring them together, or apart (interleave.cu).
 *
 *   to the core:  core[j][c][part] = sum over (i, part) of conj(U)[i][j] middle[i][part][c],
 *   and from it:  middle[i][part][c] = sum over (j, part) of U[i][j] core[j][c][part].
 * As many blocks as run at once keep the fragments of U (tile/instructions.cuh; those that give
 * real parts) in shared memory and walk over tiles of 32 columns c, the next ones of which are on
 * their way. A lane's sums are both parts of two neighbours: 16 bytes of a core. */
#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/tile/instructions.cuh"

enum {
    COLUMNS = 32,   /* of a tile */
    PIECE = 2,      /* times 8 of them, of 16 rows, that a warp takes at a time */
    MOST_SLOTS = 3, /* tiles in shared memory */
    MOST_WARPS = 16
};

/* Reals from row to row of a tile: so that 4 numbers of 8 columns lie in different banks. */
static constexpr __host__ __device__ int tile_stride(bool forward) {
    return forward ? COLUMNS + 4 : 2 * COLUMNS + 8;
}

struct mode_call {
    int summed, made; /* numbers: dim and rank, or rank and dim */
    int tiles, steps; /* of 16 and 4 of them, rounded up */
    int slots;
    const float4 *left;     /* fragments */
    int64_t n;              /* columns */
    float *middle;          /* (dim, part, n) */
    number<float, 2> *core; /* rows of.. */
    bool whole, wide;       /* how it is aligned: to its entries, to two of them */
    int block, padded;      /* of `padded` columns `block` belong to the core */
    int64_t row;            /* ..this many entries */
    float scale, beta;      /* core = beta core + scale of what comes out */
};

/* Reals of a tile. */
static __host__ __device__ inline int tile_size(const mode_call &s, bool forward) {
    return (forward ? 2 : 1) * 4 * s.steps * tile_stride(forward);
}

/* Where column c lies in a row of the core; negative: nowhere. */
static __device__ inline int64_t in_core(const mode_call &s, int64_t c) {
    const int block = (int)c / s.padded, behind = (int)c - block * s.padded;
    return c < s.n && behind < s.block ? (int64_t)block * s.block + behind : -1;
}

/* ---- what comes in ---- */

/* Columns from `first` on. */
static __device__ inline void fetch_rows(const mode_call &s, int64_t first, float *tile) {
    const int col = (int)threadIdx.x % 8 * 4;
    const bool counts = first + col < s.n;
    const float *from = s.middle + (counts ? first + col : 0);
    for (int row = (int)threadIdx.x / 8; row < 2 * s.summed; row += (int)blockDim.x / 8) {
        copy_async<16>(tile + row * tile_stride(true) + col, from + row * s.n, counts);
    }
}

/* The same from the core, parts together. */
static __device__ inline void fetch_core(const mode_call &s, int64_t first, float *tile) {
    const int per_row = s.wide ? COLUMNS / 2 : COLUMNS;
    const int col = (int)threadIdx.x % per_row * (COLUMNS / per_row);
    const int64_t c = in_core(s, first + col);
    const number<float, 2> *from = s.core + (c < 0 ? 0 : c);
    float *to = tile + 2 * col;
    for (int row = (int)threadIdx.x / per_row; row < s.summed; row += (int)blockDim.x / per_row) {
        float *entry = to + row * tile_stride(false);
        const float *source = reinterpret_cast<const float *>(from + row * s.row);
        if (s.wide) {
            copy_async<16>(entry, source, c >= 0);
        } else if (s.whole) {
            copy_async<8>(entry, source, c >= 0);
        } else {
            copy_async<4>(entry, source, c >= 0);
            copy_async<4>(entry + 1, source + 1, c >= 0);
        }
    }
}

template <bool FORWARD>
static __device__ inline void fetch_tile(const mode_call &s, int64_t index, float *tile) {
    if (FORWARD) {
        fetch_rows(s, index * COLUMNS, tile);
    } else {
        fetch_core(s, index * COLUMNS, tile);
    }
}

/* ---- the product ---- */

/* Both parts of 16 rows of N tiles of 8 columns; `tile` begins with the columns. */
template <bool FORWARD, int N>
static __device__ inline void multiply(float (&sum)[2][N][4], const float4 *left, int steps,
                                       const float *tile, int lane) {
    constexpr int stride = tile_stride(FORWARD);
    const int g = lane / 4, t = lane % 4;
#pragma unroll 4
    for (int k = 0; k < steps; k++) {
        const float4 re = left[k * 32 + lane], im = make_float4(-re.z, -re.w, re.x, re.y);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float2 b;
            if (FORWARD) {
                const float *at = tile + 2 * (4 * k + t) * stride + 8 * n + g;
                b = make_float2(at[0], at[stride]);
            } else {
                const float *at = tile + (4 * k + t) * stride + 2 * (8 * n + g);
                b = *reinterpret_cast<const float2 *>(at);
            }
            b = make_float2(to_tf32(b.x), to_tf32(b.y));
            mma_tf32(sum[0][n], re, b.x, b.y);
            mma_tf32(sum[1][n], im, b.x, b.y);
        }
    }
}

/* ---- what goes out ---- */

/* Two neighbours of a row of the core. */
static __device__ inline void blend_core(const mode_call &s, int64_t row, int64_t c, float2 re,
                                         float2 im) {
    const int64_t at = in_core(s, c);
    number<float, 2> *to = s.core + row * s.row + at;
    if (at < 0) {
        return;
    }
    if (s.wide && s.beta == 0.0f) {
        __stcs(reinterpret_cast<float4 *>(to),
               make_float4(s.scale * re.x, s.scale * im.x, s.scale * re.y, s.scale * im.y));
        return;
    }
    blend(to, s.whole, s.beta, s.scale, number<float, 2>{{re.x, im.x}});
    if (in_core(s, c + 1) >= 0) {
        blend(to + 1, s.whole, s.beta, s.scale, number<float, 2>{{re.y, im.y}});
    }
}

/* Sums of the rows [row, row + 16), columns from `first` on. */
template <bool FORWARD, int N>
static __device__ inline void store_sums(const mode_call &s, int row, int64_t first,
                                         const float (&sum)[2][N][4], int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int64_t c = first + 8 * n + 2 * t;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int m = row + 8 * h + g;
            const float2 re = make_float2(sum[0][n][2 * h], sum[0][n][2 * h + 1]);
            const float2 im = make_float2(sum[1][n][2 * h], sum[1][n][2 * h + 1]);
            if (m >= s.made || c >= s.n) {
                continue;
            }
            if (FORWARD) {
                blend_core(s, m, c, re, im);
            } else {
                float *to = s.middle + 2 * m * s.n + c;
                *reinterpret_cast<float2 *>(to) = re;
                *reinterpret_cast<float2 *>(to + s.n) = im;
            }
        }
    }
}

template <bool FORWARD>
static __global__ void __launch_bounds__(32 * MOST_WARPS, 1) multiply_mode(mode_call s) {
    extern __shared__ float4 shared[];
    constexpr int pieces = COLUMNS / 8 / PIECE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int fragments = s.tiles * s.steps * 32, size = tile_size(s, FORWARD);
    float *tiles = reinterpret_cast<float *>(shared + fragments);
    const int64_t all = (s.n + COLUMNS - 1) / COLUMNS;

    /* Rows that fill up the last step stay 0. */
    for (int e = (int)threadIdx.x; e < s.slots * size; e += (int)blockDim.x) {
        tiles[e] = 0.0f;
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < fragments; e += (int)blockDim.x) {
        copy_async<16>(shared + e, s.left + e);
    }
    for (int ahead = 0; ahead < s.slots - 1; ahead++) {
        const int64_t index = blockIdx.x + (int64_t)ahead * gridDim.x;
        if (index < all) {
            fetch_tile<FORWARD>(s, index, tiles + ahead * size);
        }
        copies_commit();
    }
    int slot = 0;
    for (int64_t index = blockIdx.x; index < all; index += gridDim.x) {
        if (s.slots == 3) {
            copies_wait_but<1>();
        } else {
            copies_wait_but<0>();
        }
        __syncthreads();
        const int vacant =
            slot == 0 ? s.slots - 1 : slot - 1; /* what the last round was made from */
        const int64_t later = index + (int64_t)(s.slots - 1) * gridDim.x;
        if (later < all) {
            fetch_tile<FORWARD>(s, later, tiles + vacant * size);
        }
        copies_commit();
        for (int u = warp; u < s.tiles * pieces; u += warps) {
            const int m = u / pieces, first = u % pieces * PIECE * 8;
            float sum[2][PIECE][4] = {};
            multiply<FORWARD>(sum, shared + m * s.steps * 32, s.steps,
                              tiles + slot * size + (FORWARD ? 1 : 2) * first, lane);
            store_sums<FORWARD>(s, 16 * m, index * COLUMNS + first, sum, lane);
        }
        slot = slot + 1 == s.slots ? 0 : slot + 1;
    }
}

/* ---- launches ---- */

static size_t fragment_bytes(const mode_call &s) {
    return (size_t)s.tiles * (size_t)s.steps * 32 * sizeof(float4);
}

static mode_call sizes_of(const cuda_factor *factor, bool forward) {
    mode_call s = mode_call();
    s.summed = (int)(forward ? factor->dim : factor->rank);
    s.made = (int)(forward ? factor->rank : factor->dim);
    s.tiles = (s.made + 15) / 16;
    s.steps = (s.summed + 3) / 4;
    return s;
}

static size_t shared_bytes(const mode_call &s, bool forward, int slots) {
    return fragment_bytes(s) + (size_t)(slots * tile_size(s, forward)) * sizeof(float);
}

/* Of a block; 0 if that cannot be found out. */
static size_t shared_limit(const tg_backend *be) {
    int most = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                                     cuda_state_of(be)->device);
    return error == cudaSuccess ? (size_t)most : 0;
}

bool cuda_mode_fits(const tg_backend *be, const cuda_factor *factor, int64_t columns) {
    if (factor->dim > 1024 || factor->rank > 1024 || columns % 4 != 0 || columns > INT32_MAX) {
        return false;
    }
    const size_t room = (size_t)(2 * factor->rows * factor->ld) * sizeof(float);
    const size_t most = shared_limit(be);
    for (int way = 0; way < 2; way++) {
        const mode_call s = sizes_of(factor, way == 1);
        if (fragment_bytes(s) > room || shared_bytes(s, way == 1, 2) > most) {
            return false;
        }
    }
    return true;
}

template <bool FORWARD>
static tg_status run_mode(tg_backend *be, const cuda_plan *plan, void *workspace, mode_call s) {
    const auto kernel = multiply_mode<FORWARD>;
    const int64_t units = s.tiles * (COLUMNS / 8 / PIECE);
    const int threads = 32 * (int)shorter(longer(units, 2), MOST_WARPS);
    const int64_t tiles = (s.n + COLUMNS - 1) / COLUMNS;
    s.slots = shared_bytes(s, FORWARD, MOST_SLOTS) <= shared_limit(be) ? MOST_SLOTS : 2;
    s.left = reinterpret_cast<const float4 *>(cuda_plan_at(plan, workspace, plan->first.at));
    const size_t shared = shared_bytes(s, FORWARD, s.slots);
    int blocks = 0;
    tg_status status = TG_OK;
    TG_TRY(CUDA_CHECK(
        be, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
        "setting up a kernel"));
    TG_TRY(CUDA_CHECK(
        be, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared),
        "setting up a kernel"));
    blocks = (int)shorter(tiles, longer(blocks, 1) * cuda_state_of(be)->processors);
    if (blocks > 0) {
        kernel<<<(unsigned)blocks, threads, shared, cuda_stream(be)>>>(s);
        TG_TRY(CUDA_LAUNCHED(be, "multiplying a mode"));
    }
fail:
    return status;
}

tg_status cuda_mode_core(tg_backend *be, const cuda_plan *plan, void *workspace, bool forward,
                         const void *middle, double scale, double beta, const void *core) {
    mode_call s = sizes_of(&plan->first, forward);
    s.n = plan->columns;
    s.middle = static_cast<float *>(const_cast<void *>(middle));
    s.core = static_cast<number<float, 2> *>(const_cast<void *>(core));
    s.block = (int)plan->block;
    s.padded = (int)plan->padded;
    s.row = plan->columns / plan->padded * plan->block;
    s.whole = is_whole(s.core);
    s.wide = (uintptr_t)core % 16 == 0 && plan->block == plan->padded;
    s.scale = (float)scale;
    s.beta = (float)beta;
    return forward ? run_mode<true>(be, plan, workspace, s)
                   : run_mode<false>(be, plan, workspace, s);
}
