/* The way back through what a block adds up, in one pass over its activations, TF32: with u =
 * act(x), z1 = .. + skip u + bias and z2 = .. + gate u,
 *
 *     dx = (scale inverse transform of the rows of s + skip^T dz1 + gate dz2) [act'(x)],
 *     dskip = dz1 u^T,  dbias = dz1 1,  dgate = the diagonal of dz2 u^T, summed over pixels.
 *
 * dx comes together in registers, from the rows' spectrum on, as in forward (block_kernel.cuh). dz1
 * and u are the factors of dskip (channel_tile.cuh): dz1 is copied to shared memory while the tile
 * before is at work, u is put there by who evaluates it. The sums stay in registers for the whole
 * kernel, and their products run while dx is stored and slopes of the next tile are evaluated.
 *
 * Each pixel is read and written by one thread block, its dx last: dx may lie where x (unless that
 * is in bytes), dz1 or dz2 do. */
#ifndef TG_BACKEND_CUDA_SM90_BLOCK_SKIPS_KERNEL_CUH
#define TG_BACKEND_CUDA_SM90_BLOCK_SKIPS_KERNEL_CUH

#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/sm90/channel_tile.cuh"

struct skips_task {
    int batch, rows, width; /* images are (rows, width) */
    int kept, pitch;        /* complex numbers of a row of s, and from row to row: even */
    float scale;            /* of the inverse transform */
    bool through;           /* dx is the gradient at x, not at u */
    const float *s;         /* (batch, C, rows, pitch) complex */
    const float4 *waves;    /* see block_task */
    const void *x;          /* (batch, C, rows, width), as values or in bytes .. */
    const float *scales;    /* .. with these scales */
    const float *dz1, *dz2; /* like x, values */
    const float *skip;      /* (C, C) */
    const float *gate;      /* (C); NULL: ones */
    float *dx;              /* like x */
    float *dskip;           /* (blocks, C, C) */
    double *dbias, *dgate;  /* (blocks, C) */
};

template <int C, int STEPS> struct skips_layout {
    static constexpr int SKIP = 0, SPECTRUM = SKIP + C * C * 4;
    static constexpr int ROOMS = SPECTRUM + STEPS / 4 * (C * 128); /* of u, dz1 and the next dz1 */
    static constexpr int GATE = ROOMS + TILES_AT_ONCE<C> * 3 * TILE_BYTES<C>, MEAN = GATE + C * 4;
    static constexpr int BYTES = MEAN + C * 4;
};

/* Where a thread block is in its n-th step. */
template <int C> struct skips_place {
    int row, tile; /* row: of all images */
    __device__ skips_place(const skips_task &t, int n) {
        const int per_row = t.width / (TILES_AT_ONCE<C> * WG_PIXELS);
        row = (int)blockIdx.x + n / per_row * (int)gridDim.x;
        tile = n % per_row * TILES_AT_ONCE<C> + own_tile<C>();
    }
    /* The tile's first pixel, of channel 0. */
    __device__ int64_t at(const skips_task &t) const {
        const int b = row / t.rows, r = row % t.rows;
        return ((int64_t)b * C * t.rows + r) * t.width + tile * WG_PIXELS;
    }
};

/* Starts to copy the spectrum of a row: frequency 0 apart, as the mean. */
template <int C, int STEPS>
static __device__ inline void fetch_spectrum(const skips_task &t, int row, char *to, char *mean) {
    constexpr int PAIRS = STEPS * 4;
    const int b = row / t.rows, r = row % t.rows;
    const float *from = t.s + ((int64_t)b * C * t.rows + r) * (2 * t.pitch);
    const int64_t step = (int64_t)t.rows * (2 * t.pitch);
    for (int i = threadIdx.x; i < C * PAIRS; i += TILE_THREADS) {
        const int c = i / PAIRS, k = i % PAIRS + 1;
        const bool counts = k < t.kept;
        copy_async<8>(to + wg_at<C>(c, 2 * k - 2), from + c * step + (counts ? 2 * k : 0), counts);
    }
    if (threadIdx.x < C) {
        copy_async<4>(mean + threadIdx.x * 4, from + threadIdx.x * step);
    }
}

/* What dx is multiplied with in the end is divided out before: the spectrum comes as it is. */
template <int C, int STEPS>
static __device__ inline void load_weights(const skips_task &t, char *shared) {
    using L = skips_layout<C, STEPS>;
    for (int i = threadIdx.x; i < C * C; i += TILE_THREADS) { /* rows of B: channels of dz1 */
        const int k = i / C, n = i % C;
        *reinterpret_cast<float *>(shared + L::SKIP + wg_at<C>(n, k)) =
            to_tf32(t.skip[channel_of(k) * C + n] / t.scale);
    }
    for (int i = threadIdx.x; i < C; i += TILE_THREADS) {
        reinterpret_cast<float *>(shared + L::GATE)[i] =
            (t.gate ? t.gate[i] : 1.0f) / (t.scale * TF32_CUT);
    }
}

/* d += the pixels of a row's tile from its spectrum. Waves come before whatever `behind` begins to
 * load from further away: loads arrive in their order. */
template <int C, int STEPS, class F>
static __device__ inline void add_waves(const skips_task &t, int tile, uint64_t s, float (&d)[32],
                                        F behind) {
    const float4 *from = t.waves + tile * (STEPS * WG_THREADS) + fresh_thread() % WG_THREADS;
    float4 waves[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        waves[i] = from[i * WG_THREADS];
    }
    s = fresh(s);
    wg_begin();
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        wg_product(d, waves[i], wg_rows<C>(s, i), true);
    }
    wg_end();
    behind();
    wg_wait<0>();
    wg_fence(d);
}

template <int C, int STEPS, bool ACT, bool BYTES>
static __global__ void __launch_bounds__(TILE_THREADS, 1)
    block_skips_backward(const __grid_constant__ skips_task t) {
    using L = skips_layout<C, STEPS>;
    extern __shared__ __align__(1024) char shared[];
    const int mine = own_channels<C>(), per_row = t.width / (TILES_AT_ONCE<C> * WG_PIXELS);
    const int steps = (t.batch * t.rows - 1 - (int)blockIdx.x) / (int)gridDim.x * per_row + per_row;
    const int image = t.rows * t.width;
    char *u = shared + L::ROOMS + own_tile<C>() * 3 * TILE_BYTES<C>;
    char *now = u + TILE_BYTES<C>, *later = now + TILE_BYTES<C>; /* dz1 */
    float sums[C / 2], x[32], dz2[32], gate_sums[16];
    own_bytes bytes;
    double bias_sum = 0.0;
    wg_clear(sums);
    wg_clear(gate_sums);
    load_weights<C, STEPS>(t, shared);
    fetch_spectrum<C, STEPS>(t, blockIdx.x, shared + L::SPECTRUM, shared + L::MEAN);
    {
        const int64_t first = skips_place<C>(t, 0).at(t);
        fetch_tile<C>(t.dz1 + first, image, now);
        begin_own<C, BYTES>(t.x, t.scales, first, image, x, bytes);
        load_own<C>(t.dz2 + first, image, dz2);
    }
    copies_commit();
    wg_fence(sums);
    const uint64_t columns = (uint64_t)(mine * 128 >> 4); /* of B, the warpgroup's own */
    for (int n = 0; n < steps; n++) {
        const int next = n + 1 < steps ? n + 1 : n; /* behind the last: it again, for nobody */
        float slope[32], d[32];
        if constexpr (BYTES) {
            bytes.values(x);
        }
#pragma unroll
        for (int i = 0; i < 32; i++) { /* x becomes u */
            slope[i] = ACT ? gelu_slope(x[i], &x[i]) : 1.0f;
        }
#pragma unroll
        for (int i = 0; i < 32; i++) {
            gate_sums[i / 4 * 2 + i % 2] = fmaf(dz2[i], x[i], gate_sums[i / 4 * 2 + i % 2]);
            x[i] = to_tf32(x[i]);
        }
        wg_fence(slope); /* evaluated while these run: */
        wg_fence(x);
        wg_wait<0>(); /* the sums of the tile before */
        wg_fence(sums);
        copies_wait_but<0>();
        wg_publish();
        __syncthreads(); /* dz1 and the spectrum are there, u and the later dz1 free */
        put_columns<C, 64>(x, mine, u);
        each_channel<64>(fresh_thread(), [&](int i, int c) {
            const float gate = reinterpret_cast<const float *>(shared + L::GATE)[mine + c];
            const float mean =
                reinterpret_cast<const float *>(shared + L::MEAN)[mine + c] * (1.0f / TF32_CUT);
            d[i] = fmaf(gate, dz2[i], mean);
            d[i + 2] = fmaf(gate, dz2[i + 2], mean);
        });
        wg_fence(d);
        add_waves<C, STEPS>(t, skips_place<C>(t, fresh(n)).tile,
                            wg_matrix(shared + L::SPECTRUM) + columns, d, [&] {
                                const int64_t at = skips_place<C>(t, fresh(next)).at(t);
                                fetch_tile<C>(t.dz1 + at, image, later);
                                copies_commit();
                                prefetch_own<C, BYTES>(t.x, at, image);
                                prefetch_tile<C>(t.dz2 + at, image);
                            });
        begin_own<C, BYTES>(t.x, t.scales, skips_place<C>(t, fresh(next)).at(t), image, x, bytes);
        multiply_tile<C, C>(d, wg_matrix(shared + L::SKIP) + columns, true, now);
        load_own<C>(t.dz2 + skips_place<C>(t, fresh(next)).at(t), image, dz2);
        bias_sum += (double)sum_half_row<C>(now);
        wg_publish();
        __syncthreads(); /* u is there, and all are done with the spectrum */
        wg_fence(sums);
        wg_begin();
        add_over_pixels<C, C>(sums, now, mine, u);
        wg_end();
        if (next % per_row == 0) {
            fetch_spectrum<C, STEPS>(t, skips_place<C>(t, next).row, shared + L::SPECTRUM,
                                     shared + L::MEAN);
        }
        copies_commit();
        const float factor = t.scale * TF32_CUT;
        store_own<C>(t.dx + skips_place<C>(t, fresh(n)).at(t), image,
                     [&](int i) { return factor * d[i] * (t.through ? slope[i] : 1.0f); });
        char *used = now;
        now = later;
        later = used;
    }
    wg_wait<0>();
    wg_fence(sums);
    copies_wait_but<0>();
    double *room = reinterpret_cast<double *>(shared + L::ROOMS);
    gather_sums<C>(sums, reinterpret_cast<float *>(room));
    if (has_sums<C>()) {
        float *to = t.dskip + (int64_t)blockIdx.x * C * C;
        each_sum<C>(sums, [&](int o, int i, float v) { to[(mine + o) * C + i] = TF32_CUT * v; });
    }
    fold_columns<64, C>(gate_sums, mine, t.dgate + (int64_t)blockIdx.x * C, room);
    fold_half_rows<C>(bias_sum, t.dbias + (int64_t)blockIdx.x * C, room);
}

#endif
