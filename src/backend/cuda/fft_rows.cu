/* Real rows stored as halves, by products on tensor cores: where few frequencies of a row are kept,
 * that is less work than a fast transform, and TF32 rounds less than the halves do.
 *
 * With p = 2 pi k (i + 1/2) / n and z_k = e^{pi i k / n}, points i and n - 1 - i of a row, which
 * lie symmetrically, make
 *
 *     forward   X[k] = z_k sum_{i < n/2} ((x[i] + x[n-1-i]) cos p - (x[i] - x[n-1-i]) sin p
 * sqrt(-1)), inverse   x[i] = U - V, x[n-1-i] = U + V,   U = sum_k Re(Z_k) cos p, V = sum_k Im(Z_k)
 * sin p,
 *
 * Z_k being w_k X[k] / z_k with the weight of a half spectrum's index. A warp takes 32 rows.
 * Forward they are the left factor, straight from memory; inverse the left factor stays in
 * registers for the whole row. The right factor, cosines and sines, lies in shared memory as a lane
 * needs it: the four numbers of one k-step for both products. */
#include "backend/cuda/fft_tile.cuh"
#include "backend/cuda/instructions.cuh"

enum {
    ROWS_THREADS = 256,
    WARP_ROWS = 32,
    STEP = 32, /* points of either half of a row that a warp takes at once: 8 per lane */
    MOST_TILES = 5
};

struct rows_call {
    int n, kept;
    int64_t rows;
    const slot<float> *waves; /* (8 tiles, n / 2): cos p, sin p */
    void *grid;               /* (rows, n), rows `pitch` apart */
    int64_t pitch;
    float *spectrum; /* (rows, kept) complex, rows `kept_pitch` apart */
    int64_t kept_pitch;
    float edge, interior;
};

/* ---- halves, eight in a row ---- */

struct eight {
    uint32_t word[4];
};

template <class S, bool ALIGNED> static __device__ inline eight load_eight(const S *x) {
    if constexpr (ALIGNED) {
        const uint4 v = *reinterpret_cast<const uint4 *>(x);
        return {{v.x, v.y, v.z, v.w}};
    } else {
        const uint16_t *h = reinterpret_cast<const uint16_t *>(x);
        eight v;
        for (int j = 0; j < 4; j++) {
            v.word[j] = h[2 * j] | (uint32_t)h[2 * j + 1] << 16;
        }
        return v;
    }
}

template <class S, bool ALIGNED> static __device__ inline void store_eight(S *x, const eight &v) {
    if constexpr (ALIGNED) {
        *reinterpret_cast<uint4 *>(x) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
    } else {
        uint16_t *h = reinterpret_cast<uint16_t *>(x);
        for (int j = 0; j < 4; j++) {
            h[2 * j] = (uint16_t)v.word[j];
            h[2 * j + 1] = (uint16_t)(v.word[j] >> 16);
        }
    }
}

template <class S> static __device__ inline float2 two_of(uint32_t word) {
    if constexpr (std::is_same<S, __half>::value) {
        return __half22float2(*reinterpret_cast<const __half2 *>(&word));
    } else {
        return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
    }
}

template <class S> static __device__ inline uint32_t word_of(float a, float b) {
    uint32_t word;
    if constexpr (std::is_same<S, __half>::value) {
        *reinterpret_cast<__half2 *>(&word) = __floats2half2_rn(a, b);
    } else {
        *reinterpret_cast<__nv_bfloat162 *>(&word) = __floats2bfloat162_rn(a, b);
    }
    return word;
}

/* ---- what both directions share ---- */

static __device__ inline float4 *shared_waves() {
    extern __shared__ float4 waves_memory[];
    return waves_memory;
}

static __device__ inline int lane_number() {
    return threadIdx.x % 32;
}

/* The factors of step i / 8 + s and tile j for this lane. */
template <int NT> static __device__ inline float4 waves_at(int step, int tile) {
    return shared_waves()[(step * NT + tile) * 32 + lane_number()];
}

/* z_k */
static __device__ inline float2 phase_of(const rows_call &c, int k) {
    return __ldg(reinterpret_cast<const float2 *>(c.waves) + (int64_t)k * (c.n / 2));
}

/* Row `r` of four (8 rows apart) that a lane has a part in; the last one for those beyond it. */
static __device__ inline int64_t row_of(const rows_call &c, int64_t group, int r) {
    const int64_t row = group * WARP_ROWS + 8 * r + lane_number() / 4;
    return row < c.rows ? row : c.rows - 1;
}

static __device__ inline bool has_row(const rows_call &c, int64_t group, int r) {
    return group * WARP_ROWS + 8 * r + lane_number() / 4 < c.rows;
}

/* Groups of rows, one per warp. */
template <class F> static __device__ inline void each_group(const rows_call &c, F f) {
    const int warps = blockDim.x / 32;
    for (int64_t group = (int64_t)blockIdx.x * warps + threadIdx.x / 32; group * WARP_ROWS < c.rows;
         group += (int64_t)gridDim.x * warps) {
        f(group);
    }
}

/* ---- forward ---- */

/* Lane (g, t) needs frequency 8 tile + g at the points 2 s and 2 s + 1 of its eight. */
template <int NT> static __device__ inline void put_waves_forward(const rows_call &c) {
    for (int e = threadIdx.x; e < c.n / 16 * NT * 32; e += blockDim.x) {
        const int lane = e % 32, tile = e / 32 % NT, step = e / 32 / NT;
        const int k = 8 * tile + lane / 4, i = step / 4 * STEP + lane % 4 * 8 + step % 4 * 2;
        const float4 v = *reinterpret_cast<const float4 *>(c.waves + (int64_t)k * (c.n / 2) + i);
        shared_waves()[e] = make_float4(to_tf32(v.x), to_tf32(v.z), to_tf32(v.y), to_tf32(v.w));
    }
}

template <int NT>
static __device__ inline void store_spectrum(const rows_call &c, int64_t group,
                                             const float (&re)[2][NT][4],
                                             const float (&im)[2][NT][4]) {
#pragma unroll
    for (int tile = 0; tile < NT; tile++) {
        const int k = 8 * tile + lane_number() % 4 * 2;
        const float2 z[2] = {phase_of(c, k), phase_of(c, k + 1)};
        const float factor[2] = {k == 0 ? c.edge : c.interior, c.interior};
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float2 x[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float even = factor[e] * re[r / 2][tile][r % 2 * 2 + e];
                const float odd = factor[e] * im[r / 2][tile][r % 2 * 2 + e];
                x[e] = make_float2(z[e].x * even + z[e].y * odd, z[e].y * even - z[e].x * odd);
            }
            float *to = c.spectrum + 2 * (row_of(c, group, r) * c.kept_pitch + k);
            if (has_row(c, group, r) && k + 1 < c.kept) {
                *reinterpret_cast<float4 *>(to) = make_float4(x[0].x, x[0].y, x[1].x, x[1].y);
            } else if (has_row(c, group, r) && k < c.kept) {
                *reinterpret_cast<float2 *>(to) = x[0];
            }
        }
    }
}

/* What a lane has of four rows in one step: eight points of either half. */
template <class S, bool ALIGNED> struct row_points {
    eight low[4], high[4];

    /* i: the lane's first point. */
    __device__ void fetch(const S *const (&row)[4], int n, int i) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            low[r] = load_eight<S, ALIGNED>(row[r] + i);
            high[r] = load_eight<S, ALIGNED>(row[r] + n - 8 - i);
        }
    }
    /* Sums and differences of points 2 s and 2 s + 1 of rows 2 m and 2 m + 1 with their mirror
     * images: left factors. */
    __device__ void fold(int m, int s, float4 *even, float4 *odd) const {
        const float2 a = two_of<S>(low[2 * m].word[s]), b = two_of<S>(low[2 * m + 1].word[s]);
        const float2 x = two_of<S>(high[2 * m].word[3 - s]);
        const float2 y = two_of<S>(high[2 * m + 1].word[3 - s]);
        *even = make_float4(to_tf32(a.x + x.y), to_tf32(b.x + y.y), to_tf32(a.y + x.x),
                            to_tf32(b.y + y.x));
        *odd = make_float4(to_tf32(a.x - x.y), to_tf32(b.x - y.y), to_tf32(a.y - x.x),
                           to_tf32(b.y - y.x));
    }
};

/* While a step is multiplied, the next one is on its way. */
template <class S, int NT, bool ALIGNED>
static __global__ void __launch_bounds__(ROWS_THREADS, 1) rows_forward(const rows_call c) {
    const int mine = lane_number() % 4 * 8;
    put_waves_forward<NT>(c);
    __syncthreads();
    each_group(c, [&](int64_t group) {
        const S *row[4];
        for (int r = 0; r < 4; r++) {
            row[r] = static_cast<const S *>(c.grid) + row_of(c, group, r) * c.pitch;
        }
        float re[2][NT][4] = {}, im[2][NT][4] = {};
        row_points<S, ALIGNED> next;
        next.fetch(row, c.n, mine);
        for (int i = 0; i < c.n / 2; i += STEP) {
            const row_points<S, ALIGNED> x = next;
            if (i + STEP < c.n / 2) {
                next.fetch(row, c.n, i + STEP + mine);
            }
#pragma unroll
            for (int s = 0; s < 4; s++) {
                float4 even[2], odd[2];
                x.fold(0, s, &even[0], &odd[0]);
                x.fold(1, s, &even[1], &odd[1]);
#pragma unroll
                for (int tile = 0; tile < NT; tile++) {
                    const float4 w = waves_at<NT>(i / 8 + s, tile);
                    for (int m = 0; m < 2; m++) {
                        mma_tf32(re[m][tile], even[m], w.x, w.y);
                        mma_tf32(im[m][tile], odd[m], w.z, w.w);
                    }
                }
            }
        }
        store_spectrum<NT>(c, group, re, im);
    });
}

/* ---- inverse ---- */

/* Lane (g, t) needs frequencies 8 tile + 2 t and the next at point 2 s + g % 2 of the eight of
 * lanes t = g / 2, where the result of tile s of a step has its columns. */
template <int NT> static __device__ inline void put_waves_inverse(const rows_call &c) {
    for (int e = threadIdx.x; e < c.n / 16 * NT * 32; e += blockDim.x) {
        const int lane = e % 32, tile = e / 32 % NT, step = e / 32 / NT, g = lane / 4;
        const int k = 8 * tile + lane % 4 * 2;
        const int i = step / 4 * STEP + g / 2 * 8 + step % 4 * 2 + g % 2;
        const slot<float> a = c.waves[(int64_t)k * (c.n / 2) + i];
        const slot<float> b = c.waves[(int64_t)(k + 1) * (c.n / 2) + i];
        shared_waves()[e] = make_float4(to_tf32(a.re), to_tf32(b.re), to_tf32(a.im), to_tf32(b.im));
    }
}

/* Z of frequencies k and k + 1 of a row, 0 where they are not kept: {re, im, re, im}. The imaginary
 * part at frequency 0 counts for nothing, whatever it is. */
static __device__ inline float4 load_turned(const rows_call &c, int64_t row, int k, float2 z,
                                            float2 next) {
    const float *from = c.spectrum + 2 * (row * c.kept_pitch + k);
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (k + 1 < c.kept) {
        x = *reinterpret_cast<const float4 *>(from);
    } else if (k < c.kept) {
        const float2 one = *reinterpret_cast<const float2 *>(from);
        x = make_float4(one.x, one.y, 0.0f, 0.0f);
    }
    const float twice = 2.0f * c.interior, first = k == 0 ? c.edge : twice;
    x.y = k == 0 ? 0.0f : x.y;
    return make_float4(first * (x.x * z.x + x.y * z.y), first * (x.y * z.x - x.x * z.y),
                       twice * (x.z * next.x + x.w * next.y),
                       twice * (x.w * next.x - x.z * next.y));
}

template <class S, int NT, bool ALIGNED>
static __global__ void __launch_bounds__(ROWS_THREADS, 1) rows_inverse(const rows_call c) {
    const int mine = lane_number() % 4 * 8;
    put_waves_inverse<NT>(c);
    __syncthreads();
    each_group(c, [&](int64_t group) {
        float4 re[2][NT], im[2][NT];
#pragma unroll
        for (int tile = 0; tile < NT; tile++) {
            const int k = 8 * tile + lane_number() % 4 * 2;
            const float2 z = phase_of(c, k), next = phase_of(c, k + 1);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const float4 a = load_turned(c, row_of(c, group, 2 * m), k, z, next);
                const float4 b = load_turned(c, row_of(c, group, 2 * m + 1), k, z, next);
                re[m][tile] = make_float4(to_tf32(a.x), to_tf32(b.x), to_tf32(a.z), to_tf32(b.z));
                im[m][tile] = make_float4(to_tf32(a.y), to_tf32(b.y), to_tf32(a.w), to_tf32(b.w));
            }
        }
        for (int i = 0; i < c.n / 2; i += STEP) {
            float u[2][4][4] = {}, v[2][4][4] = {};
#pragma unroll
            for (int s = 0; s < 4; s++) {
#pragma unroll
                for (int tile = 0; tile < NT; tile++) {
                    const float4 w = waves_at<NT>(i / 8 + s, tile);
                    for (int m = 0; m < 2; m++) {
                        mma_tf32(u[m][s], re[m][tile], w.x, w.y);
                        mma_tf32(v[m][s], im[m][tile], w.z, w.w);
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < 4; r++) {
                eight low, high;
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    const float *even = u[r / 2][s] + r % 2 * 2, *odd = v[r / 2][s] + r % 2 * 2;
                    low.word[s] = word_of<S>(even[0] - odd[0], even[1] - odd[1]);
                    high.word[3 - s] = word_of<S>(even[1] + odd[1], even[0] + odd[0]);
                }
                if (has_row(c, group, r)) {
                    S *row = static_cast<S *>(c.grid) + row_of(c, group, r) * c.pitch;
                    store_eight<S, ALIGNED>(row + i + mine, low);
                    store_eight<S, ALIGNED>(row + c.n - 8 - i - mine, high);
                }
            }
        }
    });
}

/* ---- host ---- */

static size_t shared_bytes(int64_t n, int tiles) {
    return (size_t)(n / 16 * tiles * 32) * sizeof(float4);
}

int cuda_fft_rows_tiles(const tg_backend *be, int64_t n, int64_t kept) {
    int most = 0;
    const int tiles = kept <= 16 ? 2 : (int)((kept + 7) / 8);
    if (be->math != TG_MATH_TF32 || n % (2 * STEP) != 0 || 2 * kept >= n || kept > 8 * MOST_TILES ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                               cuda_state_of(be)->device) != cudaSuccess) {
        return 0;
    }
    return shared_bytes(n, tiles) <= (size_t)most ? tiles : 0;
}

template <class S, int NT, bool ALIGNED>
static tg_status launch(tg_backend *be, const rows_call &c, bool back) {
    const auto kernel = back ? rows_inverse<S, NT, ALIGNED> : rows_forward<S, NT, ALIGNED>;
    const size_t shared = shared_bytes(c.n, NT);
    const int64_t block_rows = ROWS_THREADS / 32 * WARP_ROWS;
    const int64_t wanted = (c.rows + block_rows - 1) / block_rows;
    const int64_t most = cuda_state_of(be)->processors;
    tg_status status = TG_OK;
    TG_TRY(
        CUDA_CHECK(be,
                   cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                   "preparing Fourier transforms"));
    kernel<<<(unsigned)(wanted < most ? wanted : most), ROWS_THREADS, shared, cuda_stream(be)>>>(c);
    TG_TRY(CUDA_LAUNCHED(be, "transforming rows"));
fail:
    return status;
}

template <class S, bool ALIGNED>
static tg_status with_tiles(tg_backend *be, const rows_call &c, int tiles, bool back) {
    switch (tiles) {
    case 2:
        return launch<S, 2, ALIGNED>(be, c, back);
    case 3:
        return launch<S, 3, ALIGNED>(be, c, back);
    case 4:
        return launch<S, 4, ALIGNED>(be, c, back);
    default:
        return launch<S, MOST_TILES, ALIGNED>(be, c, back);
    }
}

template <class S>
static tg_status with_alignment(tg_backend *be, const rows_call &c, int tiles, bool back) {
    return (uintptr_t)c.grid % sizeof(uint4) == 0 ? with_tiles<S, true>(be, c, tiles, back)
                                                  : with_tiles<S, false>(be, c, tiles, back);
}

tg_status cuda_fft_rows_run(tg_backend *be, const fft_lines *lines, const fft_pass *pass) {
    const rows_call c = {lines->n,
                         lines->kept,
                         pass->outer,
                         static_cast<const slot<float> *>(lines->waves),
                         pass->grid.data,
                         pass->grid.outer,
                         static_cast<float *>(pass->kept.data),
                         pass->kept.outer,
                         (float)pass->edge,
                         (float)pass->interior};
    if (c.rows == 0) {
        return TG_OK;
    }
    return pass->grid.store == TG_STORE_BF16
               ? with_alignment<__nv_bfloat16>(be, c, lines->row_tiles, pass->inverse)
               : with_alignment<__half>(be, c, lines->row_tiles, pass->inverse);
}
