/* The last two modes towards the core where the factors of both fit into shared memory; planes.cuh
 * and planes.cu have the products.
 *
 * As many blocks as run at once keep the factors and walk over tiles of 128 rows, one plane or
 * several. Beside the factors there may be less room than for a tile and what its first product
 * gives, T: then T covers the first rows of the tile, and of the next one those rows come in while
 * the second product runs that lie behind T. Sums of the first product: 4 x 3 warps take 32 rows
 * and a third of the columns; of the second one: a warp takes both parts of 16 rows and 24 columns.
 */
#include "backend/cuda/compress.cuh"
#include "backend/cuda/instructions.cuh"

enum { TOWARDS_THREADS = 384, WARPS = TOWARDS_THREADS / 32 };

/* Blocks that should share a multiprocessor. */
static constexpr int blocks_at_once(int tiles) {
    return tiles == 3 ? 2 : 1;
}

/* Where everything begins in shared memory, in bytes: the fragments of both factors, T and the
 * tile. */
struct towards_layout {
    int before, t, tile, end;
    int stride; /* of T: holds `right` pairs, and fragments of 8 rows lie in different banks */
    int shares; /* tiles of 16 rows of the core */
    int steps;  /* of 4 rows of a plane */
    int free;   /* rows of the tile before this one are covered by T */
};

/* As much as there is room for, `most` bytes; `end` is beyond if that is too little. */
static towards_layout layout_of(const cuda_planes &s, int most) {
    const int tile = PLANES_ROWS * s.wide * (int)sizeof(float);
    towards_layout at;
    at.shares = (s.r2 + 15) / 16;
    at.steps = s.rows / 4;
    at.stride = (2 * s.right + 7) / 16 * 16 + 8;
    const int t =
        PLANES_ROWS * at.stride * (int)sizeof(float) + 64; /* fragments read on a little */
    at.before = 2 * s.tiles * (s.wide / 8) * 32 * (int)sizeof(float2);
    at.t = at.before + at.shares * at.steps * 32 * (int)sizeof(float4);
    at.end = at.t + t + tile;
    if (at.end > most && at.t + (t > tile ? t : tile) <= most) {
        at.end = most / 16 * 16;
    }
    at.tile = at.end - tile;
    const int covered = at.t + t - at.tile, row = s.wide * (int)sizeof(float);
    at.free = covered > 0 ? (covered + row - 1) / row : 0;
    return at;
}

/* ---- what comes in ---- */

static __device__ inline void fetch_fragments(const void *from, int bytes, char *to) {
    for (int e = 16 * (int)threadIdx.x; e < bytes; e += 16 * TOWARDS_THREADS) {
        copy_async<16>(to + e, static_cast<const char *>(from) + e);
    }
}

/* Rows [first, end) of the tile, `ld` reals apart, of which there are `rows`; 0 beyond them. */
static __device__ inline void fetch_rows(const cuda_planes &s, const float *from, int ld, int rows,
                                         int first, int end, float *tile) {
    const int across = s.wide / 4;
    const int next_row = TOWARDS_THREADS / across, next = TOWARDS_THREADS % across;
    int row = first + (int)threadIdx.x / across, place = (int)threadIdx.x % across;
    while (row < end) {
        const bool exists = row < rows && 4 * place < ld;
        copy_async<16>(tile + row * s.wide + 4 * place,
                       from + (exists ? (int64_t)row * ld + 4 * place : 0), exists);
        const bool wraps = place + next >= across;
        row += next_row + wraps;
        place += wraps ? next - across : next;
    }
}

/* ---- products ---- */

/* sum += 32 rows of the tile from `rows` on, `steps` of 8 columns, times fragments: of the first
 * ones from `right` on, of the next ones `next` behind. */
template <int N>
static __device__ inline void multiply_rows(float (&sum)[2][N][4], const float *rows, int stride,
                                            int steps, const float2 *right, int next, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll 2
    for (int k = 0; k < steps; k++) {
        float4 a[2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float *at = rows + (16 * m + g) * stride + 8 * k + 2 * t;
            const float2 low = *reinterpret_cast<const float2 *>(at);
            const float2 high = *reinterpret_cast<const float2 *>(at + 8 * stride);
            a[m] = make_float4(to_tf32(low.x), to_tf32(high.x), to_tf32(low.y), to_tf32(high.y));
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float2 b = right[k * next + n * 32 + lane];
            mma_tf32(sum[0][n], a[0], b.x, b.y);
            mma_tf32(sum[1][n], a[1], b.x, b.y);
        }
    }
}

/* Sums of 32 rows to T, columns from `col` on as far as it has them. */
template <int N>
static __device__ inline void store_t(const float (&sum)[2][N][4], float *t_rows, int stride,
                                      int col, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) { /* 16 rows by 8 */
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float *c = sum[i / 2][n] + i % 2 * 2;
            if (col + 8 * n < stride) {
                *reinterpret_cast<float2 *>(t_rows + (8 * i + g) * stride + col + 8 * n + 2 * t) =
                    make_float2(to_tf32(c[0]), to_tf32(c[1]));
            }
        }
    }
}

/* Both parts of 16 rows of the core and N tiles of columns, from rows of T whose columns are
 * pairs; real parts by the fragments, imaginary ones by (-y, x) where these have (x, y). */
template <int N>
static __device__ inline void multiply_t(float (&sum)[2][N][4], const float4 *left, int steps,
                                         const float *t_rows, int stride, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll 4
    for (int k = 0; k < steps; k++) {
        const float4 re = left[k * 32 + lane], im = make_float4(-re.z, -re.w, re.x, re.y);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float2 b =
                *reinterpret_cast<const float2 *>(t_rows + (4 * k + t) * stride + 2 * (8 * n + g));
            mma_tf32(sum[0][n], re, b.x, b.y);
            mma_tf32(sum[1][n], im, b.x, b.y);
        }
    }
}

/* They go to rows (part, j2) of `right` reals, of which both are even. */
template <int N>
static __device__ inline void store_core(const cuda_planes &s, const float (&sum)[2][N][4],
                                         float *out, int row, int col, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int part = i / 2, j2 = row + i % 2 * 8 + g;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int j3 = col + 8 * n + 2 * t;
            if (j2 < s.r2 && j3 < s.right) {
                *reinterpret_cast<float2 *>(out + (part * s.r2 + j2) * s.right + j3) =
                    make_float2(sum[part][n][i % 2 * 2], sum[part][n][i % 2 * 2 + 1]);
            }
        }
    }
}

/* ---- all of it ---- */

template <int TILES>
static __global__ void __launch_bounds__(TOWARDS_THREADS, blocks_at_once(TILES))
    contract_resident(cuda_planes s, towards_layout lies, int64_t count, int ld, const float *in,
                      const float2 *last, const float4 *before, float *out) {
    extern __shared__ float4 shared[];
    constexpr int N = 2 * TILES / 3; /* tiles of a third of T's columns */
    char *base = reinterpret_cast<char *>(shared);
    const float2 *lasts = reinterpret_cast<const float2 *>(base);
    const float4 *befores = reinterpret_cast<const float4 *>(base + lies.before);
    float *t_rows = reinterpret_cast<float *>(base + lies.t);
    float *tile = reinterpret_cast<float *>(base + lies.tile);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp % 4 * 32, third = warp / 4 * N;
    const int64_t all = (count + s.at_once - 1) / s.at_once;
    const auto planes_of = [&](int64_t index) {
        return (int)min((int64_t)s.at_once, count - index * s.at_once);
    };
    const auto fetch = [&](int64_t index, int first, int end) {
        if (index < all) {
            fetch_rows(s, in + index * s.at_once * s.d2 * ld, ld, planes_of(index) * s.d2, first,
                       end, tile);
        }
    };
    fetch(blockIdx.x, 0, PLANES_ROWS);
    fetch_fragments(last, lies.before, base);
    fetch_fragments(before, lies.t - lies.before, base + lies.before);
    for (int64_t index = blockIdx.x; index < all; index += gridDim.x) {
        copies_wait();
        __syncthreads();
        float sum[2][N][4] = {};
        multiply_rows<N>(sum, tile + row * s.wide, s.wide, s.wide / 8, lasts + third * 32,
                         2 * TILES * 32, lane);
        __syncthreads(); /* the tile is used up */
        fetch(index + gridDim.x, lies.free, PLANES_ROWS);
        store_t<N>(sum, t_rows + row * lies.stride, lies.stride, third * 8, lane);
        __syncthreads();
        const int per_plane = lies.shares * (TILES / 3);
        for (int u = warp; u < per_plane * planes_of(index); u += WARPS) {
            const int plane = u / per_plane, share = u % per_plane / (TILES / 3);
            const int col = u % (TILES / 3) * 24;
            float product[2][3][4] = {};
            multiply_t<3>(product, befores + share * lies.steps * 32, lies.steps,
                          t_rows + plane * s.rows * lies.stride + 2 * col, lies.stride, lane);
            store_core<3>(s, product, out + (index * s.at_once + plane) * 2 * s.r2 * s.right,
                          share * 16, col, lane);
        }
        __syncthreads(); /* so is T */
        fetch(index + gridDim.x, 0, lies.free);
    }
}

/* ---- launches ---- */

bool cuda_planes_contract_resident(tg_backend *be, const cuda_plan *plan, void *workspace,
                                   int64_t count, const void *in, void *out, tg_status *status) {
    const cuda_planes &s = plan->planes;
    const auto kernel = s.tiles == 3 ? contract_resident<3> : contract_resident<6>;
    const int64_t planes = count * plan->step[1].left;
    int most = 0, blocks = 0;
    if (s.right % 2 != 0 || cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                                   cuda_state_of(be)->device) != cudaSuccess) {
        return false;
    }
    const towards_layout lies = layout_of(s, most);
    if (lies.end > most ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, lies.end) !=
            cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, TOWARDS_THREADS,
                                                      (size_t)lies.end) != cudaSuccess ||
        blocks < 1) {
        return false;
    }
    const int64_t tiles = (planes + s.at_once - 1) / s.at_once;
    kernel<<<(unsigned)shorter(tiles, (int64_t)blocks * cuda_state_of(be)->processors),
             TOWARDS_THREADS, (size_t)lies.end, cuda_stream(be)>>>(
        s, lies, planes, (int)plan->view.ld, static_cast<const float *>(in),
        cuda_planes_last(plan, workspace), cuda_planes_before(plan, workspace),
        static_cast<float *>(out));
    *status = CUDA_LAUNCHED(be, "contracting two modes");
    return true;
}
