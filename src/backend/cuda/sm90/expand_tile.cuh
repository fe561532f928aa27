/* Shared by the kernels that end an expansion with the update of a weight: a warpgroup has 64 rows
 * of the weight in shared memory, adds the values of kept entries there, and rounds to 16-bit
 * formats. */
#ifndef TG_BACKEND_CUDA_SM90_EXPAND_TILE_CUH
#define TG_BACKEND_CUDA_SM90_EXPAND_TILE_CUH

#include "backend/cuda/compress/factor_fragments.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum { TILE = 64 };

/* beta w + alpha sum, of rows m and m + 32 of a tile. */
template <int N, class O>
static __device__ inline void update_rows(const float (&sum)[N / 2], float alpha, float beta, int m,
                                          int t, int d3, const number<O, 2> *w, float2 *sums) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = (m + 32 * h) * d3 + t;
        number<O, 2> old[N / 8] = {}; /* read all before writing the first */
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            if (beta != 0.0f && 4 * j + t < d3) {
                old[j] = w[row + 4 * j];
            }
        }
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            if (4 * j + t < d3) {
                const number<float, 2> from = widen(old[j]);
                sums[row + 4 * j] =
                    make_float2(beta * from.part[0] + alpha * sum[4 * j + 2 * h],
                                beta * from.part[1] + alpha * sum[4 * j + 2 * h + 1]);
            }
        }
    }
}

/* ---- kept entries ---- */

/* A tile has d3 words of 64 entries. Warp w of a warpgroup has the words w, w + 4, .., one per
 * lane, so that all warps share the rows with most of the kept entries; of the values in its words
 * a lane takes every 32nd. */
enum {
    WARPS = WG_THREADS / 32,
    VALUES_AHEAD = 4 /* values of a lane prefetched during the product */
};

struct kept_words {
    uint64_t mask; /* of a lane's word */
    uint32_t rank; /* entries kept before it */

    __device__ void load(const kept_set &kept, int64_t first, int d3, int warp, int lane) {
        const int64_t word = first + WARPS * lane + warp;
        mask = 0;
        rank = 0;
        if (WARPS * lane + warp < d3) {
            mask = kept.words[word];
            rank = add_earlier_words(kept, word, kept.ranks[word / 8]);
        }
    }
};

/* Index of the n-th set bit of a word. */
static __device__ inline int bit_of(uint64_t mask, int n) {
    const int low = __popc((uint32_t)mask);
    uint32_t part = n < low ? (uint32_t)mask : (uint32_t)(mask >> 32);
    int at = n < low ? 0 : 32;
    n -= n < low ? 0 : low;
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
        const int count = __popc(part & ((1u << width) - 1));
        const bool beyond = n >= count;
        n -= beyond ? count : 0;
        at += beyond ? width : 0;
        part >>= beyond ? width : 0;
    }
    return at;
}

/* The values of a warp's words. */
struct kept_values {
    int total, start;        /* of all words, and before this lane's */
    int entry[VALUES_AHEAD]; /* of the tile; -1: none */
    float2 value[VALUES_AHEAD];

    /* Value number v of the warp: its entry and its address. By whole warps. */
    __device__ int find(const kept_words &words, int v, int warp, uint32_t *at) const {
        int lane = 0;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            lane += __shfl_sync(~0u, start, lane + step) <= v ? step : 0;
        }
        const int n = v - __shfl_sync(~0u, start, lane);
        const uint32_t low = __shfl_sync(~0u, (uint32_t)words.mask, lane),
                       high = __shfl_sync(~0u, (uint32_t)(words.mask >> 32), lane);
        *at = __shfl_sync(~0u, words.rank, lane) + (uint32_t)n;
        return (WARPS * lane + warp) * 64 + bit_of((uint64_t)high << 32 | low, n);
    }
    __device__ void load(const kept_words &words, const float2 *values, int warp, int lane) {
        const int own = __popcll(words.mask);
        start = (int)sum_up_to<32>((uint32_t)own, lane);
        total = __shfl_sync(~0u, start, 31);
        start -= own;
        load_from(0, words, values, warp, lane);
    }
    /* Values from number `first` of the warp on. */
    __device__ void load_from(int first, const kept_words &words, const float2 *values, int warp,
                              int lane) {
#pragma unroll
        for (int q = 0; q < VALUES_AHEAD; q++) {
            entry[q] = -1;
            if (first + 32 * q < total) {
                uint32_t at;
                const int found = find(words, first + 32 * q + lane, warp, &at);
                if (first + 32 * q + lane < total) {
                    entry[q] = found;
                    value[q] = __ldcs(values + at);
                }
            }
        }
    }
    __device__ void add_loaded(float by, float2 *sums) const {
        float2 old[VALUES_AHEAD]; /* all read before the first is written */
#pragma unroll
        for (int q = 0; q < VALUES_AHEAD; q++) {
            if (entry[q] >= 0) {
                old[q] = sums[entry[q]];
            }
        }
#pragma unroll
        for (int q = 0; q < VALUES_AHEAD; q++) {
            if (entry[q] >= 0) {
                sums[entry[q]] = plus(old[q], by, value[q]);
            }
        }
    }
    /* Adds the prefetched values, then the rest, one per lane at a time. */
    __device__ void add(const kept_words &words, const float2 *values, float by, int warp, int lane,
                        float2 *sums) const {
        add_loaded(by, sums);
#pragma unroll 2
        for (int first = 32 * VALUES_AHEAD; first < total; first += 32) {
            uint32_t at;
            const int found = find(words, first + lane, warp, &at);
            if (first + lane < total) {
                sums[found] = plus(sums[found], by, __ldcs(values + at));
            }
        }
    }
    static __device__ float2 plus(float2 x, float by, float2 value) {
        return make_float2(x.x + by * value.x, x.y + by * value.y);
    }
};

/* ---- 16-bit formats ---- */

/* Four entries of a tile that share a draw, as two halves: lanes alternate which half comes first,
 * so that they access different banks. */
template <class O> struct four_entries {
    float4 x[2];
    uint2 y[2];

    static __device__ int half(int thread) {
        return (thread >> 2 ^ thread >> 3) & 1;
    }
    __device__ void read(const float2 *sums, int thread) {
        const float4 *from = reinterpret_cast<const float4 *>(sums);
        x[0] = from[half(thread)];
        x[1] = from[1 - half(thread)];
    }
    __device__ void round(const uint32_t (&draw)[4], int thread) {
        const bool second = half(thread) == 1;
        y[0] = round_half(x[0], second ? draw[2] : draw[0], second ? draw[3] : draw[1]);
        y[1] = round_half(x[1], second ? draw[0] : draw[2], second ? draw[1] : draw[3]);
    }
    __device__ void to_nearest() {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const O parts[4] = {narrow<O>(x[h].x), narrow<O>(x[h].y), narrow<O>(x[h].z),
                                narrow<O>(x[h].w)};
            memcpy(&y[h], parts, sizeof y[h]);
        }
    }
    __device__ void write(number<O, 2> *to, int thread) const {
        uint2 *out = reinterpret_cast<uint2 *>(to);
        out[half(thread)] = y[0];
        out[1 - half(thread)] = y[1];
    }
    /* word >> 16, in a form the compiler does not turn into a product before a sum */
    static __device__ uint32_t upper(uint32_t word) {
        return __byte_perm(word, 0, 0x4432);
    }
    static __device__ uint2 round_half(float4 x, uint32_t first, uint32_t second) {
        const O parts[4] = {
            round_stochastic<O>(x.x, first & 0xFFFFu), round_stochastic<O>(x.y, upper(first)),
            round_stochastic<O>(x.z, second & 0xFFFFu), round_stochastic<O>(x.w, upper(second))};
        uint2 out;
        memcpy(&out, parts, sizeof out);
        return out;
    }
};

enum { DRAW_STRIDE = 4 * WG_THREADS }; /* entries to a thread's next draw */

/* COUNT draws, of four entries each, of a thread, from number `first` of the tile on; several
 * overlap the latency of the random bits. */
template <int COUNT, bool ROUNDED, class O>
static __device__ inline void narrow_draws(const tg_rng &rng, int64_t entry, int first, int thread,
                                           const float2 *sums, number<O, 2> *to) {
    four_entries<O> fours[COUNT];
#pragma unroll
    for (int q = 0; q < COUNT; q++) {
        fours[q].read(sums + first + q * DRAW_STRIDE, thread);
    }
#pragma unroll
    for (int q = 0; q < COUNT; q++) {
        if constexpr (ROUNDED) {
            uint32_t draw[4];
            tg_rounding_draw(&rng, 2 * (uint64_t)(entry + first + q * DRAW_STRIDE), draw);
            fours[q].round(draw, thread);
        } else {
            fours[q].to_nearest();
        }
    }
#pragma unroll
    for (int q = 0; q < COUNT; q++) {
        fours[q].write(to + first + q * DRAW_STRIDE, thread);
    }
}

/* Stores a tile's sums, which begin with `entry`, to the buffer that is copied out. */
template <bool ROUNDED, class O>
static __device__ inline void narrow_entries(const tg_rng &rng, int64_t entry, int entries,
                                             int thread, const float2 *sums, number<O, 2> *to) {
    enum { DRAWS_PER_THREAD = 4 };
    int first = 4 * thread;
    for (; first + (DRAWS_PER_THREAD - 1) * DRAW_STRIDE < entries;
         first += DRAWS_PER_THREAD * DRAW_STRIDE) {
        narrow_draws<DRAWS_PER_THREAD, ROUNDED>(rng, entry, first, thread, sums, to);
    }
    for (; first < entries; first += DRAW_STRIDE) {
        narrow_draws<1, ROUNDED>(rng, entry, first, thread, sums, to);
    }
}

template <class O>
static __device__ inline void narrow_tile(const tg_rng &rng, bool stochastic, int64_t entry,
                                          int entries, int thread, const float2 *sums,
                                          number<O, 2> *to) {
    if (stochastic) {
        narrow_entries<true>(rng, entry, entries, thread, sums, to);
    } else {
        narrow_entries<false>(rng, entry, entries, thread, sums, to);
    }
}

#endif
