/* The backward pass through a block's sums, in one pass over its activations, TF32: with u =
 * act(x), z1 = .. + skip u + bias and z2 = .. + gate u,
 *
 *     dx = (scale inverse transform of the rows of s + skip^T dz1 + gate dz2) [act'(x)],
 *     dskip = dz1 u^T,  dbias = dz1 1,  dgate = the diagonal of dz2 u^T, summed over pixels.
 *
 * dx is summed in registers, beginning with the rows' spectrum, as in forward (block_kernel.cuh).
 * dz1 and u are the factors of dskip (channel_tile.cuh): dz1 is copied to shared memory during the
 * previous tile, and the thread that evaluates u stores it there. The sums stay in registers for
 * the whole kernel; their products run while dx is stored and slopes of the next tile are
 * evaluated.
 *
 * One thread block reads and writes each pixel, and writes dx last: dx may alias x (unless that is
 * quantized), dz1 or dz2. */
#ifndef TG_BACKEND_CUDA_SM90_BLOCK_SKIPS_KERNEL_CUH
#define TG_BACKEND_CUDA_SM90_BLOCK_SKIPS_KERNEL_CUH

#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/sm90/block_kernel.cuh"
#include "backend/cuda/sm90/channel_tile.cuh"

struct skips_task {
    int batch, rows, width; /* images are (rows, width) */
    int kept, pitch;        /* complex numbers of a row of s, and from row to row: even */
    float scale;            /* of the inverse transform */
    bool through;           /* dx is the gradient at x, not at u */
    const float *s;         /* (batch, C, rows, pitch) complex */
    const uint4 *waves;     /* see wave_factor */
    const void *x;          /* (batch, C, rows, width), as values or quantized to 8 bits .. */
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
    static constexpr int BUFFERS_AT =
        SPECTRUM + STEPS / 4 * (C * 128); /* of u, dz1 and the next dz1 */
    static constexpr int GATE = BUFFERS_AT + TILES_PER_BLOCK<C> * 3 * TILE_BYTES<C>,
                         MEAN = GATE + C * 4;
    static constexpr int BYTES = MEAN + C * 4;
};

/* Position of a thread block, advanced without divisions. */
template <int C> struct skips_place {
    int b, r, tile; /* image, row and the first tile of the block */

    __device__ explicit skips_place(const skips_task &t)
        : b((int)blockIdx.x / t.rows), r((int)blockIdx.x % t.rows), tile(0) {
    }
    __device__ void move(const skips_task &t) {
        tile += TILES_PER_BLOCK<C>;
        if (tile * WG_PIXELS == t.width) {
            tile = 0;
            for (r += (int)gridDim.x; r >= t.rows; r -= t.rows) {
                b++;
            }
        }
    }
    /* The first pixel of the warpgroup's tile, of channel 0. */
    __device__ int64_t at(const skips_task &t) const {
        return ((int64_t)b * C * t.rows + r) * t.width + (tile + own_tile<C>()) * WG_PIXELS;
    }
};

/* Starts to copy the spectrum of a row, with frequency 0 apart, as the mean. */
template <int C, int STEPS>
static __device__ inline void fetch_spectrum(const skips_task &t, const skips_place<C> &of,
                                             char *to, char *mean) {
    constexpr int PAIRS = STEPS * 4;
    const float *from = t.s + ((int64_t)of.b * C * t.rows + of.r) * (2 * t.pitch);
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

/* Prefetches all inputs of a step into L2. */
template <int C, bool BYTES>
static __device__ inline void prefetch_step(const skips_task &t, int64_t at) {
    const int image = t.rows * t.width;
    prefetch_own<C, BYTES>(t.x, at, image);
    prefetch_tile<C>(t.dz1 + at, image);
    prefetch_tile<C>(t.dz2 + at, image);
}

/* The final factor of dx is divided out here, so the spectrum needs no scaling. */
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

/* The prefetched waves of a tile. */
template <int STEPS> struct own_waves {
    uint4 pair[STEPS / 2]; /* of steps */

    __device__ void load(const skips_task &t, int tile) {
        const uint4 *from = t.waves + tile * (STEPS / 2 * WG_THREADS) + fresh_thread() % WG_THREADS;
#pragma unroll
        for (int i = 0; i < STEPS / 2; i++) {
            pair[i] = from[i * WG_THREADS];
        }
    }
};

template <int C, int STEPS, bool ACT, bool BYTES>
static __global__ void __launch_bounds__(TILE_THREADS, 1)
    block_skips_backward(const __grid_constant__ skips_task t) {
    using L = skips_layout<C, STEPS>;
    extern __shared__ __align__(1024) char shared[];
    const int mine = same_in_warp(own_channels<C>());
    const int per_row = t.width / (TILES_PER_BLOCK<C> * WG_PIXELS);
    const int steps = ((t.batch * t.rows - 1 - (int)blockIdx.x) / (int)gridDim.x + 1) * per_row;
    const int image = t.rows * t.width;
    char *u = shared + L::BUFFERS_AT + same_in_warp(own_tile<C>()) * 3 * TILE_BYTES<C>;
    char *now = u + TILE_BYTES<C>, *later = now + TILE_BYTES<C>; /* dz1 */
    float sums[C / 2], x[32], dz2[32], gate_sums[16];
    own_bytes bytes;
    long_sum bias_sum = {};
    wg_clear(sums);
    wg_clear(gate_sums);
    load_weights<C, STEPS>(t, shared);
    pdl_wait_and_launch_dependents();
    skips_place<C> place(t), next = place, far = place; /* of this step and the next two */
    fetch_spectrum<C, STEPS>(t, place, shared + L::SPECTRUM, shared + L::MEAN);
    fetch_tile<C>(t.dz1 + place.at(t), image, now);
    begin_own<C, BYTES>(t.x, t.scales, place.at(t), image, x, bytes);
    load_own<C>(t.dz2 + place.at(t), image, dz2);
    if (steps > 1) {
        next.move(t);
        far = next;
    }
    copies_commit();
    wg_fence(sums);
    const uint64_t columns = (uint64_t)(mine * 128 >> 4); /* of B, the warpgroup's own */
    for (int n = 0; n < steps; n++) {
        if (n + 2 < steps) { /* past the end: prefetch the last tile again (unused) */
            far.move(t);
        }
        float slope[32], d[32];
        own_waves<STEPS> waves;
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
        keep_order<BYTES>(n);
        wg_wait<0>(); /* wait for the sums of the previous tile */
        wg_fence(sums);
        wg_sync(); /* only this warpgroup reads its part of u */
        put_columns<C, 64>(x, mine, u);
        copies_wait_all_but<0>();
        wg_publish();    /* also waits for its pending loads and stores */
        __syncthreads(); /* u, dz1 and the spectrum are ready, the later dz1 is free */
        waves.load(t, place.tile + own_tile<C>());
        keep_order<BYTES>(n);
        fetch_tile<C>(t.dz1 + next.at(t), image, later);
        copies_commit();
        prefetch_step<C, BYTES>(t, far.at(t));
        each_channel<64>(fresh_thread(), [&](int i, int c) {
            const float gate = reinterpret_cast<const float *>(shared + L::GATE)[mine + c];
            const float mean =
                reinterpret_cast<const float *>(shared + L::MEAN)[mine + c] * (1.0f / TF32_CUT);
            d[i] = fmaf(gate, dz2[i], mean);
            d[i + 2] = fmaf(gate, dz2[i + 2], mean);
        });
        wg_fence(d);
        multiply_tile<C, C, 4>(d, wg_matrix(shared + L::SKIP) + columns, true, now);
        multiply<C, STEPS, 2>(d, wg_matrix(shared + L::SPECTRUM) + columns, true,
                              [&](int i) { return wave_factor(waves.pair[i / 2], i); });
        begin_own<C, BYTES>(t.x, t.scales, next.at(t), image, x, bytes);
        if (next.tile == 0) {
            __syncthreads(); /* all have read the spectrum */
            fetch_spectrum<C, STEPS>(t, next, shared + L::SPECTRUM, shared + L::MEAN);
            copies_commit();
        }
        bias_sum.add(sum_half_row<C>(now));
        wg_fence(sums);
        wg_begin();
        add_over_pixels<C, C>(sums, u, mine, now);
        wg_end();
        const float factor = t.scale * TF32_CUT;
        store_own<C>(t.dx + place.at(t), image,
                     [&](int i) { return factor * d[i] * (t.through ? slope[i] : 1.0f); });
        keep_order<BYTES>(n); /* dx has been stored */
        load_own<C>(t.dz2 + next.at(t), image, dz2);
        place = next;
        next = far;
        char *used = now;
        now = later;
        later = used;
    }
    wg_wait<0>();
    wg_fence(sums);
    copies_wait_all_but<0>();
    double *room = reinterpret_cast<double *>(shared + L::BUFFERS_AT);
    gather_sums<C>(sums, reinterpret_cast<float *>(room));
    if (has_sums<C>()) {
        float *to = t.dskip + (int64_t)blockIdx.x * C * C;
        each_sum<C>(sums, [&](int i, int o, float v) { to[o * C + mine + i] = TF32_CUT * v; });
    }
    fold_columns<64, C>(gate_sums, mine, t.dgate + (int64_t)blockIdx.x * C, room);
    fold_half_rows<C>(bias_sum.value(), t.dbias + (int64_t)blockIdx.x * C, room);
}

#endif
