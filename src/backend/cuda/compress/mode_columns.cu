/* Product with a factor along a leading mode, where products are rounded to TF32: rows of numbers
 * times the factor.
 *
 *   to the core:  out[j][c] = sum over i of conj(U)[i][j] in[i][c],
 *   and from it:  out[i][c] = sum over j of U[i][j] in[j][c],
 * for every column c of some matrices, whose rows keep their parts separate. Mode 0, the last one
 * of the projection, goes directly between such rows and the core, whose parts are interleaved.
 *
 * Blocks keep the fragments of U (tile/instructions.cuh; those that give real parts) in shared
 * memory. A warp takes 16 or 32 columns and computes all their rows, so everything is read and
 * written once. Inputs are prefetched into a ring of the lane that multiplies them, so there is no
 * synchronization between warps, and the next columns are loaded while these are multiplied and
 * written. A lane's columns are neighbours: of the N tiles of 8 columns of a warp, tile n has
 * columns n, N + n, 2 N + n and so on. */
#include "backend/cuda/compress/mode_columns.cuh"

enum { MAX_TILES = 8 }; /* of 16 output rows */

enum { RING = 8 }; /* steps of 4 numbers, all but one in flight */

/* Limits for M tiles, set by registers: tiles of 8 columns per warp, and threads per block. */
static constexpr __host__ __device__ int tiles_across(int m) {
    return m <= 3 ? 4 : 2;
}
static constexpr int threads_of(int m) {
    return m == 4 ? 512 : 384;
}

/* ---- inputs ---- */

/* The N columns of a lane, of the numbers t, t + 4, ..; a step takes 64 N reals of a warp's
 * ring. */
template <int N, bool CORE> struct column_reader;

template <int N> struct column_reader<N, false> {
    const float *next;
    bool exists;

    __device__ void begin(const mode_call &s, int64_t tile, int g, int t) {
        const int64_t matrix = tile / s.tiles.per,
                      c = (tile - matrix * s.tiles.per) * (8 * N) + N * g;
        exists = c < s.n;
        next = exists ? s.in + matrix * s.in_matrix + t * s.in_number + c : s.in;
    }
    __device__ void fetch(const mode_call &s, int i, float *step, int lane) {
        const bool counts = exists && i < s.summed;
        const float *from = counts ? next : s.in;
        copy_async<4 * N>(step + lane * N, from, counts);
        copy_async<4 * N>(step + (32 + lane) * N, from + s.in_part, counts);
        next += 4 * s.in_number;
    }
    static __device__ void take(float (&b)[2][N], const float *step, int lane) {
        using V = typename word_of<4 * N>::type;
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const V word = *reinterpret_cast<const V *>(step + (32 * p + lane) * N);
            memcpy(b[p], &word, sizeof b[p]);
        }
    }
};

template <int N> struct column_reader<N, true> {
    const number<float, 2> *next;
    int at[N]; /* in a row of the core */

    __device__ void begin(const mode_call &s, int64_t tile, int g, int t) {
        next = s.core + t * s.row;
#pragma unroll
        for (int n = 0; n < N; n++) {
            at[n] = in_core(s, (int)tile * (8 * N) + N * g + n, 0);
        }
    }
    __device__ void fetch(const mode_call &s, int i, float *step, int lane) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const bool counts = i < s.summed && at[n] >= 0;
            const float *from = reinterpret_cast<const float *>(counts ? next + at[n] : s.core);
            float *to = step + 2 * (lane * N + n);
            if (s.wide) {
                if (n % 2 == 0) {
                    copy_async<16>(to, from, counts);
                }
            } else if (s.whole) {
                copy_async<8>(to, from, counts);
            } else {
                copy_async<4>(to, from, counts);
                copy_async<4>(to + 1, from + 1, counts);
            }
        }
        next += 4 * s.row;
    }
    static __device__ void take(float (&b)[2][N], const float *step, int lane) {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            const float4 v = *reinterpret_cast<const float4 *>(step + 2 * (lane * N + n));
            b[0][n] = v.x, b[1][n] = v.y, b[0][n + 1] = v.z, b[1][n + 1] = v.w;
        }
    }
};

/* ---- outputs ---- */

/* Both parts of M tiles of 16 rows, N of 8 columns. */
template <int M, int N> struct sums { float of[M][2][N][4]; };

/* Four neighbours of a row, from column `4 q` of a lane's 2 N on. */
template <int M, int N>
static __device__ inline float4 four_of(const sums<M, N> &x, int m, int part, int h, int q) {
    const auto &tile = x.of[m][part];
    if constexpr (N == 4) {
        const int e = 2 * h + q;
        return make_float4(tile[0][e], tile[1][e], tile[2][e], tile[3][e]);
    } else {
        return make_float4(tile[0][2 * h], tile[1][2 * h], tile[0][2 * h + 1], tile[1][2 * h + 1]);
    }
}

template <int M, int N>
static __device__ inline void store_rows(const mode_call &s, int64_t tile, const sums<M, N> &x,
                                         int g, int t) {
    const int64_t matrix = tile / s.tiles.per,
                  c = (tile - matrix * s.tiles.per) * (8 * N) + 2 * N * t;
    float *row = s.out + matrix * s.out_matrix + g * s.out_number + c;
#pragma unroll
    for (int i = 0; i < 2 * M; i++, row += 8 * s.out_number) {
#pragma unroll
        for (int q = 0; q < N / 2; q++) {
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const float4 v = four_of(x, i / 2, p, i % 2, q);
                if (8 * i + g < s.made && c + 4 * q < s.n) {
                    store_four(row + p * s.out_part + 4 * q, v.x, v.y, v.z, v.w);
                }
            }
        }
    }
}

template <int M, int N>
static __device__ inline void store_core(const mode_call &s, int64_t tile, const sums<M, N> &x,
                                         int g, int t) {
    int at[2 * N];
#pragma unroll
    for (int e = 0; e < 2 * N; e++) {
        at[e] = in_core(s, (int)tile * (8 * N) + 2 * N * t + e, 0);
    }
    number<float, 2> *row = s.core + g * s.row;
#pragma unroll
    for (int i = 0; i < 2 * M; i++, row += 8 * s.row) {
#pragma unroll
        for (int q = 0; q < N / 2; q++) {
            const float4 re = four_of(x, i / 2, 0, i % 2, q), im = four_of(x, i / 2, 1, i % 2, q);
            if (8 * i + g < s.made) {
                blend_core(s, row, at + 4 * q, make_float2(re.x, re.y), make_float2(im.x, im.y));
                blend_core(s, row, at + 4 * q + 2, make_float2(re.z, re.w),
                           make_float2(im.z, im.w));
            }
        }
    }
}

/* ---- the product ---- */

/* One step of 4 numbers: the sums of imaginary parts take (im, -re), those of real parts (re,
 * im). */
template <int M, int N>
static __device__ inline void add_step(sums<M, N> *x, const float4 *left, int steps,
                                       const float (&b)[2][N]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
        const float4 a = left[m * steps * 32];
#pragma unroll
        for (int n = 0; n < N; n++) {
            mma_tf32(x->of[m][0][n], a, b[0][n], b[1][n]);
            mma_tf32(x->of[m][1][n], a, b[1][n], -b[0][n]);
        }
    }
}

template <int M, core_side CORE>
static __global__ void __launch_bounds__(threads_of(M), 1) multiply_columns(mode_call s) {
    extern __shared__ float4 shared[];
    constexpr int N = tiles_across(M);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int64_t stride = (int64_t)gridDim.x * (blockDim.x / 32);
    int64_t tile = blockIdx.x + (int64_t)gridDim.x * (threadIdx.x / 32);
    float *ring = reinterpret_cast<float *>(shared + M * s.tiles.steps * 32) +
                  threadIdx.x / 32 * (RING * 64 * N);
    for (int e = (int)threadIdx.x; e < M * s.tiles.steps * 32; e += (int)blockDim.x) {
        copy_async<16>(shared + e, s.tiles.left + e);
    }
    copies_commit();

    column_reader<N, CORE == CORE_IN> reader;
    int64_t fetched = tile; /* the tile being fetched, and its next step */
    int step = 0, slot = 0;
    const auto fetch = [&](int into) {
        if (fetched < s.tiles.all) {
            if (step == 0) {
                reader.begin(s, fetched, g, t);
            }
            reader.fetch(s, 4 * step + t, ring + into * (64 * N), lane);
            step = step + 1 == s.tiles.steps ? 0 : step + 1;
            fetched += step == 0 ? stride : 0;
        }
        copies_commit();
    };
    for (int ahead = 0; ahead < RING - 1; ahead++) {
        fetch(ahead);
    }
    copies_wait_all_but<RING - 1>();
    __syncthreads();
    for (; tile < s.tiles.all; tile += stride) {
        sums<M, N> x = {};
#pragma unroll 2
        for (int k = 0; k < s.tiles.steps; k++) {
            float b[2][N];
            copies_wait_all_but<RING - 2>();
            reader.take(b, ring + slot * (64 * N), lane);
            fetch((slot + RING - 1) % RING); /* the buffer of the previous step */
            slot = (slot + 1) % RING;
#pragma unroll
            for (int e = 0; e < 2 * N; e++) {
                b[e / N][e % N] = to_tf32(b[e / N][e % N]);
            }
            add_step(&x, shared + k * 32 + lane, s.tiles.steps, b);
        }
        if (CORE == CORE_OUT) {
            store_core(s, tile, x, g, t);
        } else {
            store_rows(s, tile, x, g, t);
        }
    }
}

/* ---- launches ---- */

static mode_call sizes_of(const cuda_factor *factor, bool forward) {
    mode_call s = mode_call();
    s.u = reader_of(factor);
    s.forward = forward;
    s.summed = (int)(forward ? factor->dim : factor->rank);
    s.made = (int)(forward ? factor->rank : factor->dim);
    s.tiles.steps = (s.summed + 3) / 4;
    return s;
}

static size_t fragment_bytes(const mode_call &s) {
    return (size_t)cuda_mode_tiles(s.made) * (size_t)s.tiles.steps * 32 * sizeof(float4);
}

static size_t shared_bytes(const mode_call &s) {
    const int tiles = cuda_mode_tiles(s.made);
    const int ring = threads_of(tiles) / 32 * RING * 64 * tiles_across(tiles);
    return fragment_bytes(s) + (size_t)ring * sizeof(float);
}

cuda_own_kernel cuda_mode_kernel(const tg_backend *be, const cuda_factor *factor, int64_t columns,
                                 bool split) {
    if (tg_max(factor->dim, factor->rank) > 16 * MAX_TILES || columns % 4 != 0 ||
        columns > INT32_MAX / 2) {
        return CUDA_OWN_NONE;
    }
    if (cuda_sm90_mode_fits(be, factor, split)) {
        return CUDA_OWN_DIRECT;
    }
    if (split) {
        return CUDA_OWN_NONE;
    }
    const size_t most = (size_t)cuda_state_of(be)->max_shared;
    const size_t room = (size_t)(2 * factor->rows * factor->ld) * sizeof(float);
    const mode_call to = sizes_of(factor, true), from = sizes_of(factor, false);
    const bool fits = fragment_bytes(to) <= room && fragment_bytes(from) <= room &&
                      shared_bytes(to) <= most && shared_bytes(from) <= most;
    return fits ? CUDA_OWN_FRAGMENTS : CUDA_OWN_NONE;
}

template <int M, core_side CORE> static tg_status run_tiles(tg_backend *be, mode_call s) {
    s.tiles.per = (s.n + 8 * tiles_across(M) - 1) / (8 * tiles_across(M));
    s.tiles.all = s.tiles.per * s.matrices;
    if (s.tiles.all == 0) {
        return TG_OK;
    }
    return launch_alone(be, "multiplying a mode", multiply_columns<M, CORE>,
                        (unsigned)tg_min(s.tiles.all, cuda_state_of(be)->processors), threads_of(M),
                        shared_bytes(s), s);
}

template <core_side CORE>
static tg_status run_mode(tg_backend *be, const cuda_factor *factor, const mode_call &s) {
    if (factor->own == CUDA_OWN_DIRECT) {
        return cuda_sm90_mode(be, &s, CORE);
    }
    return with_size<1, 2, 3, 4, 6, 8>(cuda_mode_tiles(s.made), [&](auto tiles) {
        return run_tiles<decltype(tiles)::value, CORE>(be, s);
    });
}

/* The fragments of a factor, for one direction. */
static const float4 *left_of(const cuda_plan *plan, void *workspace, const cuda_factor *factor) {
    return reinterpret_cast<const float4 *>(cuda_plan_at(plan, workspace, factor->at));
}

/* Expands mode 0 in f16, (dim0, columns). */
static uint32_t *half_buffer(const cuda_plan *plan, void *workspace) {
    return reinterpret_cast<uint32_t *>(cuda_plan_at(plan, workspace, plan->buffer[0]));
}

tg_status cuda_mode_multiply(tg_backend *be, const cuda_plan *plan, void *workspace,
                             const cuda_factor *factor, bool forward, int64_t matrices, int64_t n,
                             const void *in, void *out) {
    mode_call s = sizes_of(factor, forward);
    s.chained = plan->chained;
    s.split = plan->split;
    s.apart = plan->apart;
    s.tiles.left = left_of(plan, workspace, factor);
    s.matrices = matrices;
    s.n = n;
    s.in = static_cast<const float *>(in);
    s.out = static_cast<float *>(out);
    s.in_matrix = 2 * s.summed * n;
    s.in_number = forward ? 2 * n : n;
    s.in_part = forward ? n : s.summed * n;
    s.out_matrix = 2 * s.made * n;
    s.out_number = forward ? n : 2 * n;
    s.out_part = forward ? s.made * n : n;
    return run_mode<CORE_NOWHERE>(be, factor, s);
}

tg_status cuda_mode_half(tg_backend *be, const cuda_plan *plan, void *workspace, int64_t first,
                         int64_t count) {
    const cuda_step *step = &plan->step[2];
    mode_call s = sizes_of(&step->factor, false);
    s.chained = plan->chained;
    s.matrices = count * step->left;
    s.n = step->right;
    s.half_in = half_buffer(plan, workspace) + first * plan->columns;
    s.half_out = reinterpret_cast<uint32_t *>(cuda_plan_at(plan, workspace, plan->middle));
    return cuda_sm90_half_mode(be, &s, false);
}

tg_status cuda_mode_core(tg_backend *be, const cuda_plan *plan, void *workspace, bool forward,
                         const void *middle, double scale, double beta, const void *core) {
    mode_call s = sizes_of(&plan->first, forward);
    s.chained = plan->chained;
    s.split = plan->split;
    s.apart = plan->apart;
    s.tiles.left = left_of(plan, workspace, &plan->first);
    s.matrices = 1;
    s.n = plan->columns;
    s.in = static_cast<const float *>(middle);
    s.out = static_cast<float *>(const_cast<void *>(middle));
    s.in_number = s.out_number = 2 * s.n;
    s.in_part = s.out_part = s.n;
    s.core = static_cast<number<float, 2> *>(const_cast<void *>(core));
    s.source = s.core;
    s.block = (int)plan->block;
    s.padded = (int)plan->padded;
    s.row = plan->columns / plan->padded * plan->block;
    s.whole = is_whole(s.core);
    s.wide = (uintptr_t)core % 16 == 0 && plan->block == plan->padded;
    s.scale = (float)scale;
    s.beta = (float)beta;
    s.half_out = plan->half ? half_buffer(plan, workspace) : NULL;
    if (plan->adam) {
        return cuda_sm90_core_adam(be, &s, plan->adam);
    }
    if (plan->half && !forward) {
        return cuda_sm90_half_mode(be, &s, true);
    }
    return forward ? run_mode<CORE_OUT>(be, &plan->first, s)
                   : run_mode<CORE_IN>(be, &plan->first, s);
}

tg_status cuda_mode_dense(tg_backend *be, const cuda_factor *factor, bool split, int64_t matrices,
                          int64_t n, const void *in, double scale, double beta, void *core) {
    mode_call s = sizes_of(factor, true);
    s.split = split;
    s.matrices = matrices;
    s.n = n;
    s.source = static_cast<const number<float, 2> *>(in);
    s.core = static_cast<number<float, 2> *>(core);
    s.row = n;
    s.source_matrix = factor->dim * n;
    s.core_matrix = factor->rank * n;
    s.block = s.padded = (int)n;
    s.whole = is_whole(s.source) && is_whole(s.core);
    s.wide = ((uintptr_t)in | (uintptr_t)core) % 16 == 0 && n % 2 == 0;
    s.scale = (float)scale;
    s.beta = (float)beta;
    return cuda_sm90_mode(be, &s, CORE_BOTH);
}
