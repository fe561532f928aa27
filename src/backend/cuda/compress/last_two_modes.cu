/* The last two modes in one pass; see last_two_modes.cuh.
 *
 * Projection, for a plane G (d2, d3) with factors U2 (d2, r2) and U3 (d3, r3):
 *   T[i2][(j3, part)]       = sum over (i3, part) of G,    G in rows of `wide` reals
 *   out[(part, j2)][j3]     = sum over (i2, part) of T,
 * Expansion, for a plane C (part, r2, right) of the core's side:
 *   T[i2][(part, j3)]       = sum over (j2, part) of C,    C in rows of j2, parts interleaved
 *   G[i2][(i3, part)]       = sum over (part, j3) of T.
 * In all of these the two k's of a lane (tile/instructions.cuh) are neighbours in memory, one load
 * of 8 bytes. A warp keeps its sums in registers until every warp has read the tile, then stores
 * them there: 8 warps take 4 x 2 shares of 32 rows and half of the columns, or both parts of 16
 * rows each.
 *
 * In the expansion a block first prefetches the weight into L2 and reads which entries are kept, so
 * that memory is busy while it multiplies. */
#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/tile/instructions.cuh"

enum {
    PLANES_THREADS = 256,
    WARPS = PLANES_THREADS / 32,
    PLANES_RUNS = PLANES_ROWS * PLANES_D3 / 32 /* of 32 entries, in a block */
};

/* Blocks that should share a multiprocessor. */
static constexpr int blocks_at_once(int tiles) {
    return tiles == 3 ? 3 : 2;
}

/* ---- products on a tile ---- */

/* A block: `planes` consecutive planes from `first` on, all of whose rows are in the tile. */
struct plane_range {
    int64_t first;
    int planes;
};

static __device__ inline plane_range range_of(const plane_pass &s, int64_t count) {
    const int64_t first = (int64_t)blockIdx.x * s.planes_at_once;
    return {first, (int)min((int64_t)s.planes_at_once, count - first)};
}

static __device__ inline float2 *pair_in(float *tile, int at) {
    return reinterpret_cast<float2 *>(tile + at);
}

/* sum += rows [row, row + 32) of the tile, `stride` reals apart, times fragments: those of the
 * first 8 k's begin at `right`, each further 8 k's `next` later. Of N tiles of columns `tiles` are
 * used. */
template <int N>
static __device__ inline void multiply_rows(float (&sum)[2][N][4], float *tile, int row, int stride,
                                            int steps, const float2 *right, int next, int tiles) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll 2
    for (int k = 0; k < steps; k++) {
        float4 a[2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float2 low = *pair_in(tile, (row + 16 * m + g) * stride + 8 * k + 2 * t);
            const float2 high = *pair_in(tile, (row + 16 * m + g + 8) * stride + 8 * k + 2 * t);
            a[m] = make_float4(low.x, high.x, low.y, high.y);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (n < tiles) {
                const float2 b = __ldg(right + (int64_t)k * next + n * 32 + lane);
                mma_tf32(sum[0][n], a[0], b.x, b.y);
                mma_tf32(sum[1][n], a[1], b.x, b.y);
            }
        }
    }
}

/* sum += a tile of fragments (`steps` of 8 k's) times rows of the tile from `row` on, one for each
 * pair of k's, whose columns are pairs. The fragments give real parts, sum[0]; for imaginary parts,
 * sum[1], (x, y) becomes (-y, x). */
template <int N>
static __device__ inline void multiply_columns(float (&sum)[2][N][4], float *tile, int row,
                                               int stride, int steps, const float4 *left) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float4 *from = left + lane;
    float4 next[2] = {__ldg(from), __ldg(from + min(1, steps - 1) * 32)};
#pragma unroll 2
    for (int k = 0; k < steps; k++) {
        const float4 re = next[0], im = make_float4(-re.z, -re.w, re.x, re.y);
        next[0] = next[1];
        next[1] = __ldg(from + min(k + 2, steps - 1) * 32);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float2 b = *pair_in(tile, (row + 4 * k + t) * stride + 2 * (8 * n + g));
            mma_tf32(sum[0][n], re, b.x, b.y);
            mma_tf32(sum[1][n], im, b.x, b.y);
        }
    }
}

/* ---- projection ---- */

/* Copies the planes' rows, `ld` reals apart, into the tile, padded with 0. */
static __device__ inline void load_planes(const plane_pass &s, const plane_range &range, int ld,
                                          const float *in, float *tile) {
    const int across = s.wide / 4, rows = range.planes * s.d2;
    const int next_row = PLANES_THREADS / across, next = PLANES_THREADS % across;
    const float *from = in + range.first * s.d2 * ld;
    int row = threadIdx.x / across, place = threadIdx.x % across;
#pragma unroll 9
    for (int e = threadIdx.x; e < PLANES_ROWS * across; e += PLANES_THREADS) {
        const int col = 4 * place;
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < rows && col < ld) {
            x = __ldcs(reinterpret_cast<const float4 *>(from + (int64_t)row * ld + col));
        }
        *reinterpret_cast<float4 *>(tile + 4 * e) =
            make_float4(to_tf32(x.x), to_tf32(x.y), to_tf32(x.z), to_tf32(x.w));
        const bool wraps = place + next >= across;
        row += next_row + wraps;
        place += wraps ? next - across : next;
    }
}

/* Columns col and col + 1 of a row of n, if they exist; rows of odd n are aligned to one column. */
static __device__ inline void store_columns(float *row, int col, int n, const float *c) {
    if (col < n && n % 2 == 0) {
        *pair_in(row, col) = make_float2(c[0], c[1]);
    } else if (col < n) {
        row[col] = c[0];
        if (col + 1 < n) {
            row[col + 1] = c[1];
        }
    }
}

template <int TILES>
static __global__ void __launch_bounds__(PLANES_THREADS, blocks_at_once(TILES))
    contract_planes(plane_pass s, int64_t count, int ld, const float *in, const float2 *last,
                    const float4 *before, float *out) {
    extern __shared__ float4 shared[];
    float *tile = reinterpret_cast<float *>(shared);
    constexpr int stride = stride_of_tiles(TILES);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const plane_range range = range_of(s, count);
    load_planes(s, range, ld, in, tile);
    __syncthreads();
    {
        const int row = warp % 4 * 32, first = warp / 4 * TILES;
        float sum[2][TILES][4] = {};
        multiply_rows<TILES>(sum, tile, row, s.wide, s.wide / 8, last + first * 32, 2 * TILES * 32,
                             TILES);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) { /* 16 rows by 8 */
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                const float *c = sum[i / 2][n] + i % 2 * 2;
                *pair_in(tile, (row + 8 * i + g) * stride + 8 * (first + n) + 2 * t) =
                    make_float2(to_tf32(c[0]), to_tf32(c[1]));
            }
        }
    }
    __syncthreads();
    const int shares = (s.r2 + 15) / 16, steps = s.rows / 4;
    for (int u = warp; u < shares * range.planes; u += WARPS) {
        const int plane = u / shares, share = u % shares;
        float sum[2][TILES][4] = {};
        multiply_columns<TILES>(sum, tile, plane * s.rows, stride, steps,
                                before + share * steps * 32);
        float *to = out + (range.first + plane) * 2 * s.r2 * s.right;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int part = i / 2, j2 = share * 16 + i % 2 * 8 + g;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                const float *c = sum[part][n] + i % 2 * 2;
                if (j2 < s.r2) {
                    store_columns(to + (part * s.r2 + j2) * s.right, 8 * n + 2 * t, s.right, c);
                }
            }
        }
    }
}

/* ---- expansion ---- */

/* C of the planes into the tile: row j2 of a plane at plane * rows + j2, parts interleaved. */
template <int TILES>
static __device__ inline void load_core(const plane_pass &s, const plane_range &range,
                                        const float *in, float *tile) {
    constexpr int across = 8 * TILES;
    const float *from = in + range.first * 2 * s.r2 * s.right;
    const unsigned reciprocal = 65535u / (unsigned)s.rows + 1; /* exact for less than 512 rows */
#pragma unroll 12
    for (int e = threadIdx.x; e < PLANES_ROWS * across; e += PLANES_THREADS) {
        const int row = e / across, j3 = e % across;
        const int plane = (int)((unsigned)row * reciprocal >> 16), j2 = row - plane * s.rows;
        float2 x = make_float2(0.0f, 0.0f);
        if (plane < range.planes && j2 < s.r2 && j3 < s.r3) {
            const float *re = from + (int64_t)(plane * 2 * s.r2 + j2) * s.right + j3;
            x = make_float2(to_tf32(re[0]), to_tf32(re[s.r2 * s.right]));
        }
        *pair_in(tile, row * stride_of_tiles(TILES) + 2 * j3) = x;
    }
}

/* The kept entries of the planes, run by run. */
static __device__ inline void find_kept(const kept_set &kept, int64_t begin, int runs,
                                        kept_run *found) {
    for (int r = threadIdx.x; r < runs; r += PLANES_THREADS) {
        found[r] = kept_run_at(kept, begin + 32 * r);
    }
}

/* Prefetches their values, which are contiguous; by a warp, once the runs are known. */
static __device__ inline void prefetch_values(const finish_call<float, 2> &call, int entries,
                                              const kept_run *found, int lane) {
    const int last =
        (entries - 1) / 32; /* the last run may reach into the next planes, which is harmless */
    prefetch_l2(call.values + found[0].before, call.values + position_of(found[last], 31), lane);
}

/* out = beta out + alpha (tile + lambda values) for the planes' entries, contiguous in out and
 * stored row by row in the tile. Warps take runs of 32 in turn. WHOLE: out and values are aligned
 * to elements. */
template <bool KEPT, bool WHOLE>
static __device__ inline void finish_planes(const plane_pass &s, int entries, int64_t begin,
                                            const finish_call<float, 2> &call, float *tile,
                                            const kept_run *found) {
    enum { AHEAD = 8 };
    const int lane = threadIdx.x % 32;
    const float alpha = call.alpha_now(), beta = call.beta_now();
    const float lambda = (float)call.lambda;
    const int next_row = PLANES_THREADS / s.d3, next = PLANES_THREADS % s.d3;
    int row = threadIdx.x / s.d3, col = threadIdx.x % s.d3;
    number<float, 2> *out = call.out + begin;
    for (int first = threadIdx.x; first < entries; first += AHEAD * PLANES_THREADS) {
        number<float, 2> old[AHEAD], value[AHEAD];
        kept_run run[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int e = first + u * PLANES_THREADS;
            old[u] = value[u] = number<float, 2>();
            if (e < entries && beta != 0.0f) {
                old[u] = load_once(out + e, WHOLE);
            }
            run[u] = KEPT ? found[min(e, entries - 1) / 32] : kept_run();
        }
#pragma unroll
        for (int u = 0; KEPT && u < AHEAD; u++) {
            if (first + u * PLANES_THREADS < entries && is_kept(run[u], lane)) {
                value[u] = load_once(call.values + position_of(run[u], lane), WHOLE);
            }
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int e = first + u * PLANES_THREADS;
            if (e < entries) {
                const float2 x = *pair_in(tile, row * s.wide + 2 * col);
                const float sum[2] = {x.x + lambda * value[u].part[0],
                                      x.y + lambda * value[u].part[1]};
                number<float, 2> y;
                y.part[0] = beta * old[u].part[0] + alpha * sum[0];
                y.part[1] = beta * old[u].part[1] + alpha * sum[1];
                store_once(out + e, y, WHOLE);
            }
            const bool wraps = col + next >= s.d3;
            row += next_row + wraps;
            col += wraps ? next - s.d3 : next;
        }
    }
}

template <int TILES, bool KEPT>
static __global__ void __launch_bounds__(PLANES_THREADS, blocks_at_once(TILES))
    expand_planes(plane_pass s, int64_t count, const float *in, const float2 *last,
                  const float4 *before, finish_call<float, 2> call) {
    extern __shared__ float4 shared[];
    float *tile = reinterpret_cast<float *>(shared);
    constexpr int stride = stride_of_tiles(TILES), HALF = half_tiles(TILES);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    if (call.guard && *call.guard != 0) {
        return;
    }
    const plane_range range = range_of(s, count);
    const int entries = range.planes * s.d2 * s.d3;
    const int64_t begin = call.begin + range.first * s.d2 * s.d3;
    kept_run *found = reinterpret_cast<kept_run *>(tile + PLANES_ROWS * max(s.wide, stride));
    if (warp == 0 && (call.rates || call.beta != 0.0)) {
        prefetch_l2(call.out + begin, call.out + begin + entries, lane);
    }
    if (KEPT) {
        find_kept(call.kept, begin, (entries + 31) / 32, found);
    }
    load_core<TILES>(s, range, in, tile);
    __syncthreads();
    if (KEPT && warp == 0) {
        prefetch_values(call, entries, found, lane);
    }
    {
        const int shares = s.rows / 16, steps = (s.r2 + 3) / 4;
        const int plane = warp / shares, share = warp % shares;
        const bool works = plane < range.planes;
        float sum[2][TILES][4] = {};
        if (works) {
            multiply_columns<TILES>(sum, tile, plane * s.rows, stride, steps,
                                    before + share * steps * 32);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int part = i / 2, i2 = share * 16 + i % 2 * 8 + g;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                const float *c = sum[part][n] + i % 2 * 2;
                if (works) {
                    *pair_in(tile, (plane * s.rows + i2) * stride + part * 8 * TILES + 8 * n +
                                       2 * t) = make_float2(to_tf32(c[0]), to_tf32(c[1]));
                }
            }
        }
    }
    __syncthreads();
    const int row = warp % 4 * 32, first = warp / 4 * HALF, tiles = s.wide / 8;
    float sum[2][HALF][4] = {};
    multiply_rows<HALF>(sum, tile, row, stride, 2 * TILES, last + first * 32, tiles * 32,
                        tiles - first);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int n = 0; n < HALF; n++) {
            const float *c = sum[i / 2][n] + i % 2 * 2;
            if (first + n < tiles) {
                *pair_in(tile, (row + 8 * i + g) * s.wide + 8 * (first + n) + 2 * t) =
                    make_float2(c[0], c[1]);
            }
        }
    }
    __syncthreads();
    if (call.whole) {
        finish_planes<KEPT, true>(s, entries, begin, call, tile, found);
    } else {
        finish_planes<KEPT, false>(s, entries, begin, call, tile, found);
    }
}

/* ---- launches ---- */

struct plane_grid {
    unsigned blocks;
    size_t shared;
    int64_t planes;
};

static plane_grid grid_of(const cuda_plan *plan, int64_t count) {
    const plane_pass &s = plan->planes;
    const int64_t planes = count * plan->step[1].left;
    const int64_t across = tg_max(s.wide, stride_of_tiles(s.tiles));
    return {(unsigned)((planes + s.planes_at_once - 1) / s.planes_at_once),
            (size_t)(PLANES_ROWS * across) * sizeof(float), planes};
}

tg_status cuda_planes_contract(tg_backend *be, const cuda_plan *plan, void *workspace,
                               int64_t count, const void *in, void *out) {
    if (plan->contracts == PLANES_SHARED) {
        return cuda_planes_contract_resident(be, plan, workspace, count, in, out);
    }
    const plane_grid grid = grid_of(plan, count);
    const auto kernel = plan->planes.tiles == 3 ? contract_planes<3> : contract_planes<6>;
    return launch_alone(be, "contracting two modes", kernel, grid.blocks, PLANES_THREADS,
                        grid.shared, plan->planes, grid.planes, (int)plan->view.ld,
                        static_cast<const float *>(in), cuda_planes_last(plan, workspace),
                        cuda_planes_before(plan, workspace), static_cast<float *>(out));
}

tg_status cuda_planes_expand(tg_backend *be, const cuda_plan *plan, void *workspace, const void *in,
                             const finish_call<float, 2> *call) {
    plane_grid grid = grid_of(plan, (call->end - call->begin) / plan->unit);
    if (plan->resident > 0) {
        return cuda_planes_expand_resident(be, plan, workspace, plan->resident, false, in, call);
    }
    grid.shared += call->values ? PLANES_RUNS * sizeof(kept_run) : 0;
    auto kernel = plan->planes.tiles == 3 ? expand_planes<3, false> : expand_planes<6, false>;
    if (call->values) {
        kernel = plan->planes.tiles == 3 ? expand_planes<3, true> : expand_planes<6, true>;
    }
    return launch_alone(be, "expanding two modes", kernel, grid.blocks, PLANES_THREADS, grid.shared,
                        plan->planes, grid.planes, static_cast<const float *>(in),
                        cuda_planes_last(plan, workspace), cuda_planes_before(plan, workspace),
                        *call);
}
