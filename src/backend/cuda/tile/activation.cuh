/* Activations (batch, channels, pixels) in memory, f32 or 16-bit, and how runs of pixels come from
 * there and go there: as few accesses as their alignment allows. */
#ifndef TG_BACKEND_CUDA_TILE_ACTIVATION_CUH
#define TG_BACKEND_CUDA_TILE_ACTIVATION_CUH

#include "backend/cuda/tile/mma.cuh"

struct activation {
    void *data; /* NULL: none */
    tg_storage store;
    int channels;
    bool whole; /* runs of four that start at a multiple of four are complete and aligned */
};

static inline activation activation_of(const void *data, tg_storage store, int64_t channels,
                                       int64_t pixels) {
    const uintptr_t bytes = store == TG_STORE_FULL ? 16 : 8;
    return {const_cast<void *>(data), store, (int)channels,
            pixels % 4 == 0 && (uintptr_t)data % bytes == 0};
}

static inline bool is_whole(const activation &x) {
    return !x.data || x.whole;
}

/* Calls whose activations are all whole have kernels of their own, one for each storage, in which
 * loads do not hide behind branches and so overlap. KNOWN is a storage, or LOOSE: then only the
 * activation says how it lies. */
enum { LOOSE = -1 };

template <int KNOWN> __device__ inline void assume(activation &x) {
    if (KNOWN != LOOSE) { /* known to the compiler from here on */
        x.store = (tg_storage)KNOWN;
        x.whole = true;
    }
}

template <int KNOWN> using known = std::integral_constant<int, KNOWN>;

template <class F> tg_status with_known(tg_storage store, bool whole, F f) {
    return !whole                   ? f(known<LOOSE>())
           : store == TG_STORE_BF16 ? f(known<TG_STORE_BF16>())
           : store == TG_STORE_F16  ? f(known<TG_STORE_F16>())
                                    : f(known<TG_STORE_FULL>());
}

/* ---- tiles ---- */

struct pixel_tiles {
    int64_t pixels;
    int per_sample, count;
};

static inline pixel_tiles pixel_tiles_of(int64_t batch, int64_t pixels) {
    const int64_t per_sample = (pixels + TILE - 1) / TILE;
    return {pixels, (int)per_sample, (int)(batch * per_sample)};
}

static inline bool tiles_countable(int64_t batch, int64_t pixels) {
    return batch * ((pixels + TILE - 1) / TILE) <= INT32_MAX / 2;
}

/* Where a tile begins. */
struct tile_place {
    int64_t sample, pixel;
};

__device__ inline tile_place place_of(const pixel_tiles &tiles, int tile) {
    const int sample = tile / tiles.per_sample;
    return {sample, (int64_t)(tile - sample * tiles.per_sample) * TILE};
}

/* ---- runs of 2 or 4 pixels, the first one at a multiple of that ---- */

/* As they lie in memory; what is not used of the words is 0. */
struct raw_run {
    uint32_t word[4];
};

/* `left`: how many pixels of the row there are from here on; 0 beyond them. */
template <int RUN>
__device__ inline raw_run load_pixels(const activation &x, int64_t at, int64_t left) {
    const uint32_t *full = static_cast<const uint32_t *>(x.data) + at;
    const uint16_t *half = static_cast<const uint16_t *>(x.data) + at;
    raw_run r = {};
    if (!x.whole) {
        for (int j = 0; j < RUN && j < left; j++) {
            if (x.store == TG_STORE_FULL) {
                r.word[j] = full[j];
            } else {
                r.word[j / 2] |= (uint32_t)half[j] << (16 * (j % 2));
            }
        }
    } else if (RUN == 4 && x.store == TG_STORE_FULL) {
        const uint4 v = *reinterpret_cast<const uint4 *>(full);
        r = {{v.x, v.y, v.z, v.w}};
    } else if (RUN == 4 || x.store == TG_STORE_FULL) {
        const uint2 v = x.store == TG_STORE_FULL ? *reinterpret_cast<const uint2 *>(full)
                                                 : *reinterpret_cast<const uint2 *>(half);
        r = {{v.x, v.y, 0, 0}};
    } else {
        r.word[0] = *reinterpret_cast<const uint32_t *>(half);
    }
    return r;
}

template <int RUN>
__device__ inline void numbers_of(tg_storage store, const raw_run &r, float (&v)[RUN]) {
    if (store == TG_STORE_FULL) {
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            v[e] = __uint_as_float(r.word[e]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < RUN / 2; j++) {
            const float2 pair = halves_of(store, r.word[j]);
            v[2 * j] = pair.x;
            v[2 * j + 1] = pair.y;
        }
    }
}

template <int RUN>
__device__ inline void store_pixels(const activation &x, int64_t at, int64_t left,
                                    const float (&v)[RUN]) {
    float *full = static_cast<float *>(x.data) + at;
    uint16_t *half = static_cast<uint16_t *>(x.data) + at;
    uint32_t word[RUN / 2];
#pragma unroll
    for (int j = 0; j < RUN / 2; j++) {
        word[j] = halves_to_word(x.store, {v[2 * j], v[2 * j + 1]});
    }
    if (!x.whole) {
        for (int j = 0; j < RUN && j < left; j++) {
            if (x.store == TG_STORE_FULL) {
                full[j] = v[j];
            } else {
                half[j] = (uint16_t)(word[j / 2] >> (16 * (j % 2)));
            }
        }
    } else if constexpr (RUN == 4) {
        if (x.store == TG_STORE_FULL) {
            store_four(full, v[0], v[1], v[2], v[3]);
        } else {
            *reinterpret_cast<uint2 *>(half) = {word[0], word[1]};
        }
    } else if (x.store == TG_STORE_FULL) {
        *reinterpret_cast<float2 *>(full) = {v[0], v[1]};
    } else {
        *reinterpret_cast<uint32_t *>(half) = word[0];
    }
}

/* The runs that exist of row (m, h) of a warp's part of a product: f(r, at, left), run r being at
 * `at` of an activation with that many channels. */
template <class P, class G>
__device__ inline void each_run(int m, int h, int channels, const pixel_tiles &tiles,
                                tile_place place, G f) {
    const int row = P::row(m, h);
    const int64_t pixel = place.pixel + P::pixel(0), left = tiles.pixels - pixel;
    const int64_t at = (place.sample * channels + row) * tiles.pixels + pixel;
#pragma unroll
    for (int r = 0; r < P::RUNS; r++) {
        const int step = 8 * P::INTERLEAVE * r;
        if (row < channels && left > step) {
            f(r, at + step, left - step);
        }
    }
}

#endif
