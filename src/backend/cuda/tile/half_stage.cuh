/* Linear skips and perceptrons on activations stored as halves: how these come from memory and go
 * there, eight pixels at a time; products are those of half_products.cuh. */
#ifndef TG_BACKEND_CUDA_TILE_HALF_STAGE_CUH
#define TG_BACKEND_CUDA_TILE_HALF_STAGE_CUH

#include "backend/cuda/tile/half_products.cuh"

/* ---- activations in memory: runs of eight halves ---- */

/* Whether runs of eight that start at a multiple of eight are complete and aligned. */
static inline bool has_octets(const activation &x, int64_t pixels) {
    return !x.data || (pixels % 8 == 0 && (uintptr_t)x.data % 16 == 0);
}

/* Column of a tile in shared memory where a pixel is. */
__device__ inline int column_of_pixel(int pixel) {
    const int pair = pixel % 32 / 2;
    return pixel / 32 * 32 + 2 * (pair % 4 * 4 + pair / 4) + pixel % 2;
}

struct half_run {
    uint32_t word[4];
};

__device__ inline half_run load_eight(const activation &x, int64_t at) {
    const uint4 v = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(x.data) + at);
    return {{v.x, v.y, v.z, v.w}};
}

__device__ inline void store_eight(const activation &x, int64_t at, const half_run &v) {
    *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(x.data) + at) =
        make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

/* The runs that exist of row (m, h) of a warp's part of a product: f(r, at). */
template <class P, class F>
__device__ inline void each_eight(int m, int h, int channels, const pixel_tiles &tiles,
                                  tile_place place, F f) {
    const int row = P::row(m, h);
    const int64_t pixel = place.pixel + P::pixel(0);
    const int64_t at = (place.sample * channels + row) * tiles.pixels + pixel;
#pragma unroll
    for (int r = 0; r < P::RUNS; r++) {
        if (row < channels && pixel + 32 * r < tiles.pixels) {
            f(r, at + 32 * r);
        }
    }
}

/* What is at the places of a warp's part of a product. */
template <class P> struct eight_of { half_run run[P::MT][2][P::RUNS]; };

/* Only asks for it; 0 where nothing is. */
template <class P>
__device__ inline void fetch_eight(eight_of<P> &to, const activation &x, const pixel_tiles &tiles,
                                   tile_place place) {
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
#pragma unroll
        for (int r = 0; r < P::RUNS; r++) {
            to.run[i / 2][i % 2][r] = {};
        }
        each_eight<P>(i / 2, i % 2, x.channels, tiles, place,
                      [&](int r, int64_t at) { to.run[i / 2][i % 2][r] = load_eight(x, at); });
    }
}

/* p = scale of it (scale[m][h] of a row). */
template <int STORE, class P>
__device__ inline void start_from_eight(P &p, const float (&scale)[P::MT][2],
                                        const eight_of<P> &x) {
#pragma unroll
    for (int i = 0; i < 2 * P::MT * P::RUNS * 4; i++) {
        const int m = i / (8 * P::RUNS), h = i / (4 * P::RUNS) % 2, r = i / 4 % P::RUNS, j = i % 4;
        const float2 v = of_word<STORE>(x.run[m][h][r].word[j]);
        p.at(m, h, r, 2 * j) = scale[m][h] * v.x;
        p.at(m, h, r, 2 * j + 1) = scale[m][h] * v.y;
    }
}

/* A thread's share of a tile (ROWS, TILE): run q is row threadIdx.x / 8 + STEP q. */
template <int ROWS, int THREADS> struct half_share {
    static constexpr int STEP = THREADS / 8, RUNS = ROWS / STEP;
    half_run run[RUNS];

    static __device__ int row(int q) {
        return (int)threadIdx.x / 8 + STEP * q;
    }
    /* Only asks for the numbers; channels and pixels that do not exist are 0. */
    __device__ void fetch(const activation &x, const pixel_tiles &tiles, tile_place place) {
        const int64_t pixel = place.pixel + (int)threadIdx.x % 8 * 8;
#pragma unroll
        for (int q = 0; q < RUNS; q++) {
            run[q] = {};
            if (row(q) < x.channels && pixel < tiles.pixels) {
                run[q] = load_eight(x, (place.sample * x.channels + row(q)) * tiles.pixels + pixel);
            }
        }
    }
    /* act of it to a tile in shared memory; its slope, if wanted, to another one. */
    template <int STORE>
    __device__ void put(tg_act act, uint16_t *tile, uint16_t *slopes = NULL) const {
        switch (act) {
        case TG_ACT_GELU:
            return slopes ? put_as<STORE, TG_ACT_GELU, true>(tile, slopes)
                          : put_as<STORE, TG_ACT_GELU, false>(tile, slopes);
        case TG_ACT_TANH:
            return slopes ? put_as<STORE, TG_ACT_TANH, true>(tile, slopes)
                          : put_as<STORE, TG_ACT_TANH, false>(tile, slopes);
        default:
            return slopes ? put_as<STORE, TG_ACT_NONE, true>(tile, slopes)
                          : put_as<STORE, TG_ACT_NONE, false>(tile, slopes);
        }
    }

  private:
    template <int STORE, tg_act ACT, bool SLOPED>
    __device__ void put_as(uint16_t *tile, uint16_t *slopes) const {
        const int eighth = threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < RUNS * 4; i++) {
            const int q = i / 4, j = i % 4;
            const int at = row(q) * HALF_TILE_WORDS + eighth / 4 * 16 + 4 * j + eighth % 4;
            uint32_t word = run[q].word[j];
            if (ACT != TG_ACT_NONE) {
                const float2 v = of_word<STORE>(word);
                float2 value, slope;
                slope.x = act_both(ACT, v.x, &value.x);
                slope.y = act_both(ACT, v.y, &value.y);
                word = to_word<STORE>(value.x, value.y);
                if (SLOPED) {
                    reinterpret_cast<uint32_t *>(slopes)[at] = to_word<STORE>(slope.x, slope.y);
                }
            }
            reinterpret_cast<uint32_t *>(tile)[at] = word;
        }
    }
};

/* ---- sums over pixels ---- */

/* Sums of the rows of tiles, each thread those of its share. */
template <int ROWS, int THREADS> struct half_sums {
    using share_type = half_share<ROWS, THREADS>;
    double sum[share_type::RUNS];

    __device__ void clear() {
        for (int q = 0; q < share_type::RUNS; q++) {
            sum[q] = 0.0;
        }
    }
    template <int STORE> __device__ void add(const share_type &share) {
#pragma unroll
        for (int q = 0; q < share_type::RUNS; q++) {
            float part[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 v = of_word<STORE>(share.run[q].word[j]);
                part[j] = v.x + v.y;
            }
            sum[q] += (double)((part[0] + part[1]) + (part[2] + part[3]));
        }
    }
    /* to (ROWS) = the sums; every thread calls. */
    __device__ void store(double *to) const {
#pragma unroll
        for (int q = 0; q < share_type::RUNS; q++) {
            double all = sum[q];
            for (int lane = 4; lane > 0; lane /= 2) {
                all += __shfl_xor_sync(~0u, all, lane);
            }
            if (threadIdx.x % 8 == 0) {
                to[share_type::row(q)] = all;
            }
        }
    }
};

/* to (ROWS), `step` apart, = the sums of the rows of a product, from those of the threads; room:
 * ACROSS x ROWS numbers of shared memory. */
template <int ROWS, class P>
__device__ inline void store_row_sums(const double (&sums)[2], double *room, double *to,
                                      int step = 1) {
    const int warp = threadIdx.x / 32;
    __syncthreads(); /* nobody needs what lay there */
#pragma unroll
    for (int k = 0; k < 2; k++) {
        double sum = sums[k];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (threadIdx.x % 4 == 0) {
            room[warp % P::ACROSS * ROWS + P::row(0, k)] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < ROWS) {
        double sum = 0.0;
        for (int w = 0; w < P::ACROSS; w++) {
            sum += room[w * ROWS + threadIdx.x];
        }
        to[(int64_t)threadIdx.x * step] = sum;
    }
}

/* A partial sum of a block, for fold_partials. */
template <class P> __device__ inline void store_half_partial(const P &p, float *to, int ld) {
    for (int m = 0; m < P::MT; m++) {
        for (int n = 0; n < P::NT; n++) {
            for (int h = 0; h < 2; h++) {
                float2 *at = reinterpret_cast<float2 *>(to + P::row(m, h) * ld + P::column(n));
                *at = {p.acc[m][n][2 * h], p.acc[m][n][2 * h + 1]};
            }
        }
    }
}

__device__ inline uint16_t *dynamic_halves() {
    return reinterpret_cast<uint16_t *>(dynamic_shared());
}

/* f(STORE, C) of a call on halves: C channels in and out at most. */
template <class F> tg_status with_halves(tg_storage store, int64_t channels, F f) {
    using small = std::integral_constant<int, 64>;
    using large = std::integral_constant<int, 128>;
    if (store == TG_STORE_BF16) {
        return channels <= 64 ? f(known<TG_STORE_BF16>(), small())
                              : f(known<TG_STORE_BF16>(), large());
    }
    return channels <= 64 ? f(known<TG_STORE_F16>(), small()) : f(known<TG_STORE_F16>(), large());
}

#endif
