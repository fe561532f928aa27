/* Projects the last two modes if the factors of both fit into shared memory.
 *
 * For a plane G (d2, d3), whose rows are the columns of transposed products,
 *   T[j3][i2]    = sum over i3 of conj(U3)[i3][j3] G[i2][i3],
 *   out[j3][j2]  = sum over i2 of T[j3][i2] conj(U2)[i2][j2].
 * The first product leaves a lane's results in the registers where the second one reads its left
 * factor, if lane t has k's 2t and 2t + 1. So a warp that takes 16 rows j3 is independent of the
 * others. A crew, one warp per such tile, walks over its own planes. 16 rows of a plane are in
 * shared memory at a time; the next ones are loaded while these are multiplied. */
#include "backend/cuda/compress/factor_fragments.cuh"

enum {
    CONTRACT_THREADS = 384,
    CONTRACT_WARPS = CONTRACT_THREADS / 32,
    STAGES = 3,
    STAGE_ROWS = 16
};

/* Sizes with a kernel: steps of 4 entries of a row, tiles of 8 columns j2. Unsupported if steps ==
 * 0. */
struct contract_shape {
    int steps, tiles;
    int crew;   /* warps */
    int chunks; /* of STAGE_ROWS, of a plane */
};

static inline contract_shape shape_of(const plane_pass &s) {
    contract_shape c = contract_shape();
    const int tiles = s.r2 <= 48 ? 6 : s.r2 <= 88 ? 11 : 12;
    const bool has_room = tiles <= (s.r2 + 15) / 16 * 2; /* in the workspace, for all of them */
    if (s.tiles > 0 && s.d3 > 20 && s.r2 <= 96 && has_room) {
        c.steps = s.d3 <= 36 ? 9 : 17;
        c.tiles = tiles;
        c.crew = (s.r3 + 15) / 16;
        c.chunks = s.rows / STAGE_ROWS;
    }
    return c;
}

/* Sizes of both factors' fragments, as float4. */
static __host__ __device__ inline int last_fragments(const contract_shape &c) {
    return c.crew * c.steps * 32;
}
static __host__ __device__ inline int before_fragments(const contract_shape &c) {
    return c.chunks * (STAGE_ROWS / 8) * c.tiles * 32;
}

/* Their addresses. */
static inline float4 *last_of(const cuda_plan *plan, void *workspace) {
    return reinterpret_cast<float4 *>(const_cast<float2 *>(cuda_planes_last(plan, workspace)));
}
static inline float4 *before_of(const cuda_plan *plan, void *workspace) {
    return const_cast<float4 *>(cuda_planes_before(plan, workspace));
}

/* ---- products ---- */

/* T of 16 rows j3 and 8 columns i2, parts apart. */
struct transposed_tile {
    float re[4], im[4];
};

/* Multiplies both halves of a stage. */
template <int STEPS>
static __device__ inline void multiply_stage(transposed_tile (&x)[2], const float *stage,
                                             const float4 *left, int lane) {
    const float *at = stage + lane / 4 * (8 * STEPS) + 2 * (lane % 4);
    const auto pair_at = [&](int k, int h) {
        return *reinterpret_cast<const float2 *>(at + 8 * h * (8 * STEPS) + 8 * k);
    };
    float4 a = left[lane]; /* always one step ahead */
    float2 b[2] = {pair_at(0, 0), pair_at(0, 1)};
#pragma unroll 2
    for (int k = 0; k < STEPS; k++) {
        const int later = k + 1 < STEPS ? k + 1 : 0;
        const float4 a_now = a;
        const float2 b_now[2] = {b[0], b[1]};
        a = left[later * 32 + lane];
        b[0] = pair_at(later, 0);
        b[1] = pair_at(later, 1);
        asm volatile("" ::: "memory"); /* the loads do not wait for the products */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float re = to_tf32(b_now[h].x), im = to_tf32(b_now[h].y);
            mma_tf32(x[h].re, a_now, re, im);
            mma_tf32(x[h].im, a_now, im, -re);
        }
    }
}

/* sum += T times 8 rows of U2. */
template <int TILES>
static __device__ inline void add_transposed(float (&sum)[2][TILES][4], const transposed_tile &x,
                                             const float4 *right, int lane) {
    float4 re = make_float4(x.re[0], x.re[2], x.re[1], x.re[3]);
    float4 im = make_float4(x.im[0], x.im[2], x.im[1], x.im[3]);
    re = make_float4(to_tf32(re.x), to_tf32(re.y), to_tf32(re.z), to_tf32(re.w));
    im = make_float4(to_tf32(im.x), to_tf32(im.y), to_tf32(im.z), to_tf32(im.w));
    const float4 minus = make_float4(-re.x, -re.y, -re.z, -re.w);
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        if (n % 3 == 0) { /* keeps fragments from being loaded long before use */
            asm volatile("" ::: "memory");
        }
        const float4 u = right[n * 32 + lane];
        mma_tf32(sum[0][n], re, u.x, u.y);
        mma_tf32(sum[1][n], im, u.x, u.y);
        mma_tf32(sum[0][n], im, u.z, u.w);
        mma_tf32(sum[1][n], minus, u.z, u.w);
    }
}

/* Rows j3, j3 + 8 of an output plane (part, r2, right). */
template <int TILES>
static __device__ inline void store_plane(const plane_pass &s, float *out, int j3, int t,
                                          const float (&sum)[2][TILES][4]) {
    float *row = out + 2 * t * s.right + j3;
    const int part = s.r2 * s.right;
#pragma unroll
    for (int n = 0; n < TILES; n++, row += 8 * s.right) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (8 * n + 2 * t + e < s.r2 && j3 + i % 2 * 8 < s.right) {
                    row[i / 2 * part + e * s.right + i % 2 * 8] = sum[i / 2][n][i % 2 * 2 + e];
                }
            }
        }
    }
}

static __device__ inline void wait_for_crew(int crew, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(crew + 1), "r"(threads) : "memory");
}

static int shared_bytes(const contract_shape &c) {
    const int crews = CONTRACT_WARPS / c.crew;
    return (last_fragments(c) + before_fragments(c)) * (int)sizeof(float4) +
           crews * STAGES * STAGE_ROWS * 8 * c.steps * (int)sizeof(float);
}

/* ---- fragments ---- */

/* U2 as right factor: {real parts of k0 and k1, imaginary parts of them}. */
static __device__ inline float4 right_fragment(const factor_reader &f, int tiles, int e) {
    const int lane = e % 32, g = lane / 4, t = lane % 4;
    const int j = e / 32 % tiles * 8 + g, i = e / 32 / tiles * 8 + 2 * t;
    const float2 u0 = factor_at(f, i, j), u1 = factor_at(f, i + 1, j);
    return make_float4(u0.x, u1.x, u0.y, u1.y);
}

static __global__ void write_fragments(contract_shape c, factor_reader last, factor_reader before,
                                       float4 *to_last, float4 *to_before) {
    const int e = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (e < last_fragments(c)) {
        to_last[e] = left_fragment<true>(last, c.steps, e);
    }
    if (e < before_fragments(c)) {
        to_before[e] = right_fragment(before, c.tiles, e);
    }
}

/* ---- rows of planes ---- */

/* Position of a crew in its walk, and the rows it fetches. */
struct row_fetcher {
    const float *plane; /* the plane of the next rows */
    int chunk;
    int thread, threads;

    __device__ void fetch(const plane_pass &s, const contract_shape &c, int ld, int64_t stride,
                          int width, float *stage) {
        const int across = ld / 4, rows = min((int)STAGE_ROWS, s.d2 - chunk * STAGE_ROWS);
        const int next_row = threads / across, next = threads % across;
        const float *from = plane + chunk * STAGE_ROWS * ld;
        int row = thread / across, place = thread % across;
        while (row < rows) {
            copy_async<16>(stage + row * width + 4 * place, from + row * ld + 4 * place);
            const bool wraps = place + next >= across;
            row += next_row + wraps;
            place += wraps ? next - across : next;
        }
        if (++chunk == c.chunks) {
            chunk = 0;
            plane += stride * s.d2 * ld;
        }
    }
};

template <int STEPS, int TILES>
static __global__ void __launch_bounds__(CONTRACT_THREADS, 1)
    contract_resident(plane_pass s, contract_shape c, int64_t count, int ld, const float *in,
                      const float4 *last, const float4 *before, float *out) {
    extern __shared__ float4 shared[];
    constexpr int width = 8 * STEPS, stage_size = STAGE_ROWS * width;
    const int lane = threadIdx.x % 32, crew_threads = 32 * c.crew;
    const int crew = (int)threadIdx.x / crew_threads, crews = (int)blockDim.x / crew_threads;
    const int tile = (int)threadIdx.x / 32 % c.crew; /* of rows j3 */
    const int last_count = last_fragments(c), before_count = before_fragments(c);
    const float4 *left = shared + tile * STEPS * 32, *right = shared + last_count;
    float *stages = reinterpret_cast<float *>(shared + last_count + before_count);

    /* Padding of rows and planes stays 0. */
    for (int e = (int)threadIdx.x; e < crews * STAGES * stage_size; e += (int)blockDim.x) {
        stages[e] = 0.0f;
    }
    for (int e = (int)threadIdx.x; e < last_count; e += (int)blockDim.x) {
        copy_async<16>(shared + e, last + e);
    }
    for (int e = (int)threadIdx.x; e < before_count; e += (int)blockDim.x) {
        copy_async<16>(shared + last_count + e, before + e);
    }
    copies_wait();
    __syncthreads();

    stages += crew * STAGES * stage_size;
    const int64_t first = blockIdx.x + (int64_t)gridDim.x * crew;
    const int64_t stride = (int64_t)gridDim.x * crews;
    int64_t left_to_fetch = first < count ? ((count - 1 - first) / stride + 1) * c.chunks : 0;
    row_fetcher rows = {in + first * s.d2 * ld, 0, (int)threadIdx.x - crew * crew_threads,
                        crew_threads};
    int slot = 0;
    const auto fetch = [&](int into) {
        if (left_to_fetch > 0) {
            rows.fetch(s, c, ld, stride, width, stages + into * stage_size);
            left_to_fetch--;
        }
        copies_commit();
    };
    for (int ahead = 0; ahead < STAGES - 1; ahead++) {
        fetch(ahead);
    }
    for (int64_t plane = first; plane < count; plane += stride) {
        float sum[2][TILES][4] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < c.chunks; chunk++) {
            copies_wait_all_but<STAGES - 2>();
            wait_for_crew(crew, crew_threads);
            fetch(slot == 0 ? STAGES - 1 : slot - 1); /* the buffer of the previous round */
            transposed_tile x[2] = {};
            multiply_stage<STEPS>(x, stages + slot * stage_size, left, lane);
            add_transposed<TILES>(sum, x[0], right + 2 * chunk * TILES * 32, lane);
            add_transposed<TILES>(sum, x[1], right + (2 * chunk + 1) * TILES * 32, lane);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
        store_plane(s, out + plane * 2 * s.r2 * s.right, 16 * tile + lane / 4, lane % 4, sum);
    }
}

/* ---- launches ---- */

using contract_kernel = void (*)(plane_pass, contract_shape, int64_t, int, const float *,
                                 const float4 *, const float4 *, float *);

static contract_kernel kernel_of(const contract_shape &c) {
    if (c.steps == 9) {
        return c.tiles == 6    ? contract_resident<9, 6>
               : c.tiles == 11 ? contract_resident<9, 11>
                               : contract_resident<9, 12>;
    }
    return c.tiles == 6    ? contract_resident<17, 6>
           : c.tiles == 11 ? contract_resident<17, 11>
                           : contract_resident<17, 12>;
}

bool cuda_planes_contract_fits(const tg_backend *be, const plane_pass *s) {
    const contract_shape c = shape_of(*s);
    return c.steps > 0 && shared_bytes(c) <= cuda_state_of(be)->max_shared;
}

tg_status cuda_planes_contract_factors(tg_backend *be, const cuda_plan *plan, void *workspace) {
    const contract_shape c = shape_of(plan->planes);
    const int most = (int)tg_max(last_fragments(c), before_fragments(c));
    return launch_alone(be, "laying out factors", write_fragments, (unsigned)((most + 255) / 256),
                        256, 0, c, reader_of(&plan->step[0].factor),
                        reader_of(&plan->step[1].factor), last_of(plan, workspace),
                        before_of(plan, workspace));
}

tg_status cuda_planes_contract_resident(tg_backend *be, const cuda_plan *plan, void *workspace,
                                        int64_t count, const void *in, void *out) {
    const contract_shape c = shape_of(plan->planes);
    const int64_t planes = count * plan->step[1].left;
    const int threads = CONTRACT_WARPS / c.crew * c.crew * 32;
    return launch_alone(be, "contracting two modes", kernel_of(c),
                        (unsigned)tg_min(planes, cuda_state_of(be)->processors), threads,
                        (size_t)shared_bytes(c), plan->planes, c, planes, (int)plan->view.ld,
                        static_cast<const float *>(in), last_of(plan, workspace),
                        before_of(plan, workspace), static_cast<float *>(out));
}
