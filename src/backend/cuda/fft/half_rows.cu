/* Real rows stored in 16 bits, by products on tensor cores: where few frequencies of a row are
 * kept, that is less work than a fast transform, and TF32 rounds less than their format does.
 *
 * With p = 2 pi k (i + 1/2) / n and z_k = e^{pi i k / n}, the points i and n - 1 - i, mirror
 * images, have the same cos p and opposite sin p; so have i and j = n/2 - 1 - i for even k, and the
 * other way round for odd k. Of four such points only i < n/4 needs cosines and sines:
 *
 *     forward   X[k] = z_k (C - sqrt(-1) S),  C = sum_i (e_i + e_j) cos p,  S = sum_i (o_i - o_j)
 * sin p for even k, (e_i - e_j) and (o_i + o_j) for odd k; e_i = x[i] + x[n-1-i], o_i = x[i] -
 * x[n-1-i], inverse   x[i] = U - V, x[n-1-i] = U + V,  U = sum_k Re(Z_k) cos p, V = sum_k Im(Z_k)
 * sin p, and at j the sums over even k's of U and over odd ones of V count as they are, the others
 * negative; Z_k = w_k X[k] / z_k, w_k the weight of a half spectrum's index.
 *
 * A warp takes 16 rows. Forward they are the left factor, straight from memory; inverse the left
 * factor stays in registers for the whole row. The right factor lies in shared memory as a lane
 * needs it: the four numbers of one k-step for both products. */
#include "backend/cuda/fft/line_tile.cuh"
#include "backend/cuda/tile/instructions.cuh"

enum {
    ROWS_THREADS = 384,
    WARP_ROWS = 16,
    STEP = 32 /* points of either quarter of a row that a warp takes at once: 8 per lane */
};

struct rows_call {
    int n, kept;
    int64_t rows;
    const slot<float> *waves; /* (8 tiles, n / 4): cos p, sin p, even k's before odd ones */
    void *grid;               /* (rows, n), rows `pitch` apart */
    int64_t pitch;
    float *spectrum; /* (rows, kept) complex, rows `kept_pitch` apart */
    int64_t kept_pitch;
    float edge, interior;
};

/* ---- 16-bit numbers, eight in a row ---- */

struct eight {
    uint32_t word[4];
};

template <class S> static __device__ inline eight load_eight(const S *x) {
    const uint4 v = *reinterpret_cast<const uint4 *>(x);
    return {{v.x, v.y, v.z, v.w}};
}

template <class S> static __device__ inline void store_eight(S *x, const eight &v) {
    *reinterpret_cast<uint4 *>(x) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
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

/* The factors of a step of 8 points and of a tile of 8 frequencies for this lane. */
template <int NT> static __device__ inline float4 waves_at(int step, int tile) {
    return shared_waves()[(step * NT + tile) * 32 + lane_number()];
}

/* The frequency in row q of the waves, E tiles being of even ones; its z. */
template <int E> static __device__ inline int frequency_of(int q) {
    return q < 8 * E ? 2 * q : 2 * (q - 8 * E) + 1;
}

static __device__ inline float2 phase_of(const rows_call &c, int q) {
    return __ldg(reinterpret_cast<const float2 *>(c.waves) + (int64_t)q * (c.n / 4));
}

/* Row 0 or 1 (8 rows apart) that a lane has a part in; the last one for those beyond it. */
static __device__ inline int64_t row_of(const rows_call &c, int64_t group, int r) {
    const int64_t row = group * WARP_ROWS + 8 * r + lane_number() / 4;
    return row < c.rows ? row : c.rows - 1;
}

static __device__ inline bool has_row(const rows_call &c, int64_t group, int r) {
    return group * WARP_ROWS + 8 * r + lane_number() / 4 < c.rows;
}

/* Groups of rows, one per warp, as many for each block as for any other. */
template <class F> static __device__ inline void each_group(const rows_call &c, F f) {
    const int warps = ROWS_THREADS / 32;
    for (int64_t group = (int64_t)(threadIdx.x / 32) * gridDim.x + blockIdx.x;
         group * WARP_ROWS < c.rows; group += (int64_t)gridDim.x * warps) {
        f(group);
    }
}

/* ---- forward ---- */

/* Lane (g, t) needs frequency g of a tile at the points 2 s and 2 s + 1 of its eight. */
template <int NT> static __device__ inline void put_waves_forward(const rows_call &c) {
    for (int e = threadIdx.x; e < c.n * NT; e += ROWS_THREADS) {
        const int lane = e % 32, tile = e / 32 % NT, step = e / 32 / NT;
        const int q = 8 * tile + lane / 4, i = step / 4 * STEP + lane % 4 * 8 + step % 4 * 2;
        const float4 v = *reinterpret_cast<const float4 *>(c.waves + (int64_t)q * (c.n / 4) + i);
        shared_waves()[e] = make_float4(to_tf32(v.x), to_tf32(v.z), to_tf32(v.y), to_tf32(v.w));
    }
}

/* What a lane has of two rows in one step: eight points i, and their images n - 1 - i, n/2 - 1 - i
 * (these two backwards) and n/2 + i. */
template <class S> struct row_points {
    eight first[2], last[2], left[2], right[2];

    /* i: the lane's first point. */
    __device__ void fetch(const S *const (&row)[2], int n, int i) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            first[r] = load_eight(row[r] + i);
            last[r] = load_eight(row[r] + n - 8 - i);
            left[r] = load_eight(row[r] + n / 2 - 8 - i);
            right[r] = load_eight(row[r] + n / 2 + i);
        }
    }
};

/* Left factors for points 2 s and 2 s + 1: what cosines and sines of even and odd frequencies are
 * multiplied with. */
struct folded {
    float4 even_cos, even_sin, odd_cos, odd_sin;
};

template <class S> static __device__ inline folded fold(const row_points<S> &x, int s) {
    float even_cos[4], even_sin[4], odd_cos[4], odd_sin[4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 a = two_of<S>(x.first[r].word[s]), b = two_of<S>(x.last[r].word[3 - s]);
        const float2 c = two_of<S>(x.left[r].word[3 - s]), d = two_of<S>(x.right[r].word[s]);
        const float e[2] = {a.x + b.y, a.y + b.x}, o[2] = {a.x - b.y, a.y - b.x};
        const float f[2] = {c.y + d.x, c.x + d.y}, u[2] = {c.y - d.x, c.x - d.y};
#pragma unroll
        for (int k = 0; k < 2; k++) {
            even_cos[2 * k + r] = to_tf32(e[k] + f[k]);
            even_sin[2 * k + r] = to_tf32(o[k] - u[k]);
            odd_cos[2 * k + r] = to_tf32(e[k] - f[k]);
            odd_sin[2 * k + r] = to_tf32(o[k] + u[k]);
        }
    }
    return {make_float4(even_cos[0], even_cos[1], even_cos[2], even_cos[3]),
            make_float4(even_sin[0], even_sin[1], even_sin[2], even_sin[3]),
            make_float4(odd_cos[0], odd_cos[1], odd_cos[2], odd_cos[3]),
            make_float4(odd_sin[0], odd_sin[1], odd_sin[2], odd_sin[3])};
}

template <int E, int NT>
static __device__ inline void store_spectrum(const rows_call &c, int64_t group,
                                             const float (&re)[NT][4], const float (&im)[NT][4]) {
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) {
        const int tile = i / 2, q = 8 * tile + lane_number() % 4 * 2 + i % 2;
        const int k = frequency_of<E>(q);
        const float2 z = phase_of(c, q);
        const float factor = k == 0 ? c.edge : c.interior;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float even = factor * re[tile][2 * r + i % 2];
            const float odd = factor * im[tile][2 * r + i % 2];
            if (has_row(c, group, r) && k < c.kept) {
                float *to = c.spectrum + 2 * (row_of(c, group, r) * c.kept_pitch + k);
                *reinterpret_cast<float2 *>(to) =
                    make_float2(z.x * even + z.y * odd, z.y * even - z.x * odd);
            }
        }
    }
}

/* While a step is multiplied, the next one is on its way. */
template <class S, int E, int O>
static __global__ void __launch_bounds__(ROWS_THREADS, 1) rows_forward(const rows_call c) {
    constexpr int NT = E + O;
    const int mine = lane_number() % 4 * 8;
    put_waves_forward<NT>(c);
    __syncthreads();
    each_group(c, [&](int64_t group) {
        const S *row[2];
        for (int r = 0; r < 2; r++) {
            row[r] = static_cast<const S *>(c.grid) + row_of(c, group, r) * c.pitch;
        }
        float re[NT][4] = {}, im[NT][4] = {};
        row_points<S> next;
        next.fetch(row, c.n, mine);
        for (int i = 0; i < c.n / 4; i += STEP) {
            const row_points<S> x = next;
            if (i + STEP < c.n / 4) {
                next.fetch(row, c.n, i + STEP + mine);
            }
#pragma unroll
            for (int s = 0; s < 4; s++) {
                const folded f = fold(x, s);
#pragma unroll
                for (int tile = 0; tile < NT; tile++) {
                    const float4 w = waves_at<NT>(i / 8 + s, tile);
                    mma_tf32(re[tile], tile < E ? f.even_cos : f.odd_cos, w.x, w.y);
                    mma_tf32(im[tile], tile < E ? f.even_sin : f.odd_sin, w.z, w.w);
                }
            }
        }
        store_spectrum<E, NT>(c, group, re, im);
    });
}

/* ---- inverse ---- */

/* Lane (g, t) needs rows 2 t and 2 t + 1 of a tile at point 2 s + g % 2 of the eight of lanes
 * t = g / 2, where the result of a step's part s has its columns. */
template <int NT> static __device__ inline void put_waves_inverse(const rows_call &c) {
    for (int e = threadIdx.x; e < c.n * NT; e += ROWS_THREADS) {
        const int lane = e % 32, tile = e / 32 % NT, step = e / 32 / NT, g = lane / 4;
        const int q = 8 * tile + lane % 4 * 2;
        const int i = step / 4 * STEP + g / 2 * 8 + step % 4 * 2 + g % 2;
        const slot<float> a = c.waves[(int64_t)q * (c.n / 4) + i];
        const slot<float> b = c.waves[(int64_t)(q + 1) * (c.n / 4) + i];
        shared_waves()[e] = make_float4(to_tf32(a.re), to_tf32(b.re), to_tf32(a.im), to_tf32(b.im));
    }
}

/* Z of a row at row q of the waves, 0 where nothing is kept. The imaginary part at frequency 0
 * counts for nothing, whatever it is. */
template <int E>
static __device__ inline float2 load_turned(const rows_call &c, int64_t row, int q, float2 z) {
    const int k = frequency_of<E>(q);
    float2 x = make_float2(0.0f, 0.0f);
    if (k < c.kept) {
        x = *reinterpret_cast<const float2 *>(c.spectrum + 2 * (row * c.kept_pitch + k));
    }
    const float factor = k == 0 ? c.edge : 2.0f * c.interior;
    x = make_float2(factor * x.x, k == 0 ? 0.0f : factor * x.y);
    return make_float2(to_tf32(x.x * z.x + x.y * z.y), to_tf32(x.y * z.x - x.x * z.y));
}

/* The left factors: real and imaginary parts of Z. */
template <int E, int NT>
static __device__ inline void load_left(const rows_call &c, int64_t group, float4 (&re)[NT],
                                        float4 (&im)[NT]) {
#pragma unroll
    for (int tile = 0; tile < NT; tile++) {
        const int q = 8 * tile + lane_number() % 4 * 2;
        const float2 z = phase_of(c, q), next = phase_of(c, q + 1);
        const int64_t upper = row_of(c, group, 0), lower = row_of(c, group, 1);
        const float2 a = load_turned<E>(c, upper, q, z), b = load_turned<E>(c, lower, q, z);
        const float2 d = load_turned<E>(c, upper, q + 1, next);
        const float2 e = load_turned<E>(c, lower, q + 1, next);
        re[tile] = make_float4(a.x, b.x, d.x, e.x);
        im[tile] = make_float4(a.y, b.y, d.y, e.y);
    }
}

template <class S, int E, int O>
static __global__ void __launch_bounds__(ROWS_THREADS, 1) rows_inverse(const rows_call c) {
    constexpr int NT = E + O;
    const int mine = lane_number() % 4 * 8;
    put_waves_inverse<NT>(c);
    __syncthreads();
    each_group(c, [&](int64_t group) {
        float4 re[NT], im[NT];
        load_left<E>(c, group, re, im);
        for (int i = 0; i < c.n / 4; i += STEP) {
            float u[2][4][4] = {}, v[2][4][4] = {}; /* of even and of odd frequencies */
#pragma unroll
            for (int s = 0; s < 4; s++) {
#pragma unroll
                for (int tile = 0; tile < NT; tile++) {
                    const float4 w = waves_at<NT>(i / 8 + s, tile);
                    mma_tf32(u[tile >= E][s], re[tile], w.x, w.y);
                    mma_tf32(v[tile >= E][s], im[tile], w.z, w.w);
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                eight first, last, left, right;
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    float at[2], mirrored[2], before[2], behind[2];
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const float even = u[0][s][2 * r + e], odd = u[1][s][2 * r + e];
                        const float even_v = v[0][s][2 * r + e], odd_v = v[1][s][2 * r + e];
                        at[e] = (even + odd) - (even_v + odd_v);
                        mirrored[e] = (even + odd) + (even_v + odd_v);
                        before[e] = (even - odd) - (odd_v - even_v);
                        behind[e] = (even - odd) + (odd_v - even_v);
                    }
                    first.word[s] = word_of<S>(at[0], at[1]);
                    last.word[3 - s] = word_of<S>(mirrored[1], mirrored[0]);
                    left.word[3 - s] = word_of<S>(before[1], before[0]);
                    right.word[s] = word_of<S>(behind[0], behind[1]);
                }
                if (has_row(c, group, r)) {
                    S *row = static_cast<S *>(c.grid) + row_of(c, group, r) * c.pitch;
                    store_eight(row + i + mine, first);
                    store_eight(row + c.n - 8 - i - mine, last);
                    store_eight(row + c.n / 2 - 8 - i - mine, left);
                    store_eight(row + c.n / 2 + i + mine, right);
                }
            }
        }
    });
}

/* ---- host ---- */

static size_t shared_bytes(int64_t n, int tiles) {
    return (size_t)(n * tiles) * sizeof(float4);
}

fft_row_tiles cuda_fft_rows_tiles(const tg_backend *be, int64_t n, int64_t kept) {
    static const struct {
        int kept;
        fft_row_tiles tiles;
    } made[] = {{32, {2, 2}}, {33, {3, 2}}, {64, {4, 4}}, {65, {5, 4}}};
    int most = 0;
    if (be->math != TG_MATH_TF32 || n % (4 * STEP) != 0 || 2 * kept >= n ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                               cuda_state_of(be)->device) != cudaSuccess) {
        return {0, 0};
    }
    for (const auto &m : made) {
        if (kept <= m.kept && shared_bytes(n, m.tiles.even + m.tiles.odd) <= (size_t)most) {
            return m.tiles;
        }
    }
    return {0, 0};
}

template <class S, int E, int O>
static tg_status launch(tg_backend *be, const rows_call &c, bool back) {
    const auto kernel = back ? rows_inverse<S, E, O> : rows_forward<S, E, O>;
    const size_t shared = shared_bytes(c.n, E + O);
    const int64_t block_rows = ROWS_THREADS / 32 * WARP_ROWS;
    const int64_t wanted = (c.rows + block_rows - 1) / block_rows;
    const int64_t most = cuda_state_of(be)->processors;
    TG_CALL(
        CUDA_CHECK(be,
                   cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                   "preparing Fourier transforms"));
    kernel<<<(unsigned)(wanted < most ? wanted : most), ROWS_THREADS, shared, cuda_stream(be)>>>(c);
    return CUDA_LAUNCHED(be, "transforming rows");
}

template <class S>
static tg_status with_tiles(tg_backend *be, const rows_call &c, int even, bool back) {
    switch (even) {
    case 2:
        return launch<S, 2, 2>(be, c, back);
    case 3:
        return launch<S, 3, 2>(be, c, back);
    case 4:
        return launch<S, 4, 4>(be, c, back);
    default:
        return launch<S, 5, 4>(be, c, back);
    }
}

tg_status cuda_fft_rows_run(tg_backend *be, const fft_lines *lines, const fft_pass *pass) {
    if ((uintptr_t)pass->grid.data % sizeof(uint4) != 0) {
        return cuda_fft_lines_run(be, lines, pass);
    }
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
               ? with_tiles<__nv_bfloat16>(be, c, lines->row_tiles.even, pass->inverse)
               : with_tiles<__half>(be, c, lines->row_tiles.even, pass->inverse);
}
