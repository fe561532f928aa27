/* Selects k of n entries: the k largest keys, ties by lowest index.
 *
 * A key has 63 bits: |x|^2 as the bits of a double, or the inverted bits of a waiting time. Every
 * pass recomputes keys from x and never stores them. It counts the next 12 bits of the keys that
 * match the threshold so far; one block then finds the bin of the k-th largest key. Once a whole
 * bin is selected the threshold is known ("resolved") and the remaining passes do nothing: about 36
 * bits are enough for arrays without ties. A last pass writes the words and their popcounts. If
 * keys tie in all bits, ranks holds the ties before every group until that pass, which keeps the
 * first of them.
 *
 * Everything stays on the device. This file is compiled without contraction to fused multiply-add,
 * as the exponentials of rng_math.h require. */
#include "backend/cuda/compress/bitmap.cuh"
#include "backend/cuda/core/pack.cuh"
#include "base/rng_math.h"

enum {
    THREADS = 512,
    RESIDENT = 2048 / THREADS, /* blocks of a multiprocessor */
    PICK_THREADS = 1024,
    BITS = 12,
    BINS = 1 << BITS,
    KEY_BITS = 63
};

/* State of a selection. */
struct progress {
    uint64_t prefix;   /* bits of the threshold found so far */
    uint64_t wanted;   /* keys matching it that are to be kept, lowest index first */
    int shift;         /* bits of the key below the prefix */
    uint32_t resolved; /* all matching keys are selected */
};

/* In cuda_state.scratch. */
struct selection {
    progress at;
    uint64_t partials[MAX_SCAN_BLOCKS];
    unsigned long long bins[BINS];
};
static_assert(sizeof(selection) <= CUDA_SCRATCH_BYTES, "a selection fits the scratch");

/* ---- keys ---- */

static __device__ inline double square_of(pair<double> v) {
    return __dadd_rn(__dmul_rn(v.re, v.re), __dmul_rn(v.im, v.im));
}

/* `ahead`: keys that a thread computes before it uses them, so that their loads overlap. */
template <class E> struct modulus_key {
    static constexpr int ahead = 4;
    const E *x;

    __device__ uint64_t operator()(int64_t i) const {
        const double square = square_of(to_double(x[i]));
        const uint64_t largest = INT64_MAX; /* NaN is above Inf */
        return isnan(square) ? largest : (uint64_t)__double_as_longlong(square) & largest;
    }
};

/* exponential(i) / |x_i|, the smallest first: Inf (last) for weight 0, 0 for Inf and NaN. */
template <class E> struct waiting_key {
    static constexpr int ahead = 1;
    const E *x;
    tg_rng rng;

    __device__ double time(int64_t i) const {
        const double weight = sqrt(square_of(to_double(x[i])));
        if (weight == 0.0) {
            return CUDART_INF;
        }
        if (!isfinite(weight)) {
            return 0.0;
        }
        uint32_t bits[4];
        tg_stream_bits(&rng, (uint64_t)i, bits);
        return tg_bits_to_exponential(bits) / weight;
    }

    __device__ uint64_t operator()(int64_t i) const {
        return ~(uint64_t)__double_as_longlong(time(i)) & INT64_MAX; /* -0 is 0 */
    }
};

/* ---- the threshold ---- */

static __global__ void begin_kernel(uint64_t k, selection *s) {
    for (unsigned i = threadIdx.x; i < BINS; i += PICK_THREADS) {
        s->bins[i] = 0;
    }
    if (threadIdx.x == 0) {
        s->at = {0, k, KEY_BITS, 0};
    }
}

/* Counts a digit for each participating lane. Lanes with the same bin would serialize, so a warp
 * with a single digit adds once. */
static __device__ void count_digit(uint32_t *counts, uint32_t digit, bool takes_part) {
    const uint32_t active = __ballot_sync(~0u, takes_part);
    if (active == 0) {
        return;
    }
    const int leader = __ffs(active) - 1;
    const uint32_t first = __shfl_sync(~0u, digit, leader);
    if (__all_sync(~0u, !takes_part || digit == first)) {
        if (threadIdx.x % WARP == (unsigned)leader) {
            atomicAdd(&counts[first], __popc(active));
        }
    } else if (takes_part) {
        atomicAdd(&counts[digit], 1u);
    }
}

/* Bins of the bits [shift, shift + BITS) of all keys that match the prefix above them. */
template <class KEY>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
    count_kernel(KEY key, int64_t n, int shift, int bits, selection *s) {
    __shared__ uint32_t counts[BINS];
    if (s->at.resolved) {
        return;
    }
    const uint64_t prefix = s->at.prefix;
    for (unsigned i = threadIdx.x; i < BINS; i += THREADS) {
        counts[i] = 0;
    }
    __syncthreads();
    constexpr int tile = THREADS * KEY::ahead;
    for (int64_t base = (int64_t)blockIdx.x * tile; base < n; base += (int64_t)gridDim.x * tile) {
        uint64_t keys[KEY::ahead];
#pragma unroll
        for (int i = 0; i < KEY::ahead; i++) {
            const int64_t at = base + i * THREADS + threadIdx.x;
            keys[i] = key(at < n ? at : n - 1);
        }
#pragma unroll
        for (int i = 0; i < KEY::ahead; i++) {
            const int64_t at = base + i * THREADS + threadIdx.x;
            const uint32_t digit = (uint32_t)(keys[i] >> shift) & ((1u << bits) - 1u);
            count_digit(counts, digit, at < n && keys[i] >> (shift + bits) == prefix);
        }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < BINS; i += THREADS) {
        if (counts[i] > 0) {
            atomicAdd(&s->bins[i], (unsigned long long)counts[i]);
        }
    }
}

/* One block: finds the threshold's bin, from the top, and clears all bins for the next pass. */
static __global__ void __launch_bounds__(PICK_THREADS) pick_kernel(int bits, selection *s) {
    constexpr int each = BINS / PICK_THREADS;
    __shared__ uint64_t sums[PICK_THREADS];
    const progress at = s->at;
    if (at.resolved) {
        return;
    }
    const unsigned top = BINS - 1 - threadIdx.x * each; /* the highest of this thread's bins */
    uint64_t mine[each], sum = 0;
#pragma unroll
    for (int i = 0; i < each; i++) {
        mine[i] = s->bins[top - i];
        s->bins[top - i] = 0;
        sum += mine[i];
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned step = 1; step < PICK_THREADS; step *= 2) {
        const uint64_t above = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
        __syncthreads();
        sums[threadIdx.x] += above;
        __syncthreads();
    }
    uint64_t before = sums[threadIdx.x] - sum;
#pragma unroll
    for (int i = 0; i < each; i++) {
        if (before < at.wanted && at.wanted <= before + mine[i]) { /* true for exactly one bin */
            const uint64_t wanted = at.wanted - before;
            s->at = {at.prefix << bits | (top - i), wanted, at.shift - bits, wanted == mine[i]};
        }
        before += mine[i];
    }
}

/* ---- selecting by the threshold ---- */

/* Of a warp's group, the bits above the threshold (`above`) and equal to it (`level`), 32 entries
 * at a time: calls f(part, above, level). */
template <class KEY, class F>
static __device__ void compare_group(const KEY &key, int64_t n, const progress &at, int64_t group,
                                     F f) {
    constexpr int parts = GROUP / WARP;
    const int64_t first = group * GROUP + threadIdx.x % WARP;
#pragma unroll 1
    for (int begin = 0; begin < parts; begin += KEY::ahead) {
        uint64_t tops[KEY::ahead];
#pragma unroll
        for (int i = 0; i < KEY::ahead; i++) {
            const int64_t entry = first + (begin + i) * WARP;
            tops[i] = key(entry < n ? entry : n - 1) >> at.shift;
        }
#pragma unroll
        for (int i = 0; i < KEY::ahead; i++) {
            const bool exists = first + (begin + i) * WARP < n;
            const uint32_t above = __ballot_sync(~0u, exists && tops[i] > at.prefix);
            const uint32_t level = __ballot_sync(~0u, exists && tops[i] == at.prefix);
            f(begin + i, above, level);
        }
    }
}

/* ranks[group] = entries of the group that tie with the threshold. */
template <class KEY>
static __global__ void tie_kernel(KEY key, int64_t n, const selection *s, uint32_t *ranks) {
    const progress at = s->at;
    if (at.resolved) {
        return;
    }
    for_each_group(n, [&](int64_t group) {
        uint32_t ties = 0;
        compare_group(key, n, at, group,
                      [&](int, uint32_t, uint32_t level) { ties += __popc(level); });
        if (threadIdx.x % WARP == 0) {
            ranks[group] = ties;
        }
    });
}

/* Writes the words, and ranks[group] = bits of the group. On entry ranks holds the ties before each
 * group. */
template <class KEY>
static __global__ void keep_kernel(KEY key, int64_t n, const selection *s, uint64_t *words,
                                   uint32_t *ranks) {
    const progress at = s->at;
    const int lane = threadIdx.x % WARP;
    const int64_t all_words = (n + 63) / 64;
    for_each_group(n, [&](int64_t group) {
        uint64_t ties = at.resolved ? 0 : ranks[group], word = 0;
        uint32_t count = 0;
        compare_group(key, n, at, group, [&](int part, uint32_t above, uint32_t level) {
            const uint64_t position = ties + __popc(level & lanes_before());
            const bool tied = level >> lane & 1 && (at.resolved || position < at.wanted);
            const uint32_t bits = above | __ballot_sync(~0u, tied);
            ties += __popc(level);
            count += __popc(bits);
            word |= lane == part / 2 ? (uint64_t)bits << (part % 2 * 32) : 0;
        });
        const int64_t w = group * GROUP_WORDS + lane;
        if (lane < GROUP_WORDS && w < all_words) {
            words[w] = word;
        }
        if (lane == 0) {
            ranks[group] = count;
        }
    });
}

/* The empty set. */
static tg_status clear_bitmap(tg_backend *be, tg_bitmap *bitmap) {
    bitmap->count = 0;
    if (bitmap->n > 0) {
        const size_t words = (size_t)tg_bitmap_words(bitmap->n) * sizeof *bitmap->words;
        const size_t ranks = (size_t)tg_bitmap_ranks(bitmap->n) * sizeof *bitmap->ranks;
        TG_CALL(cuda_clear(be, bitmap->words, words, "clearing a bitmap"));
        TG_CALL(cuda_clear(be, bitmap->ranks, ranks, "clearing a bitmap"));
    }
    return TG_OK;
}

/* The k entries with the largest keys, 0 < k <= n. */
template <class KEY>
static tg_status select_keys(tg_backend *be, const KEY &key, int64_t k, tg_bitmap *bitmap) {
    const int64_t n = bitmap->n, groups = tg_bitmap_ranks(n);
    const unsigned blocks = group_blocks(be, n, THREADS);
    /* As many blocks as run at once: each adds all its bins to the device's. */
    const int64_t tiles = (n + THREADS * KEY::ahead - 1) / (THREADS * KEY::ahead);
    const int64_t most = (int64_t)cuda_state_of(be)->processors * RESIDENT;
    selection *s = static_cast<selection *>(cuda_state_of(be)->scratch);
    TG_CALL(launch_alone(be, "a selection", begin_kernel, 1, PICK_THREADS, 0, (uint64_t)k, s));
    for (int left = KEY_BITS; left > 0;) {
        const int bits = left < BITS ? left : BITS;
        left -= bits;
        TG_CALL(launch_alone(be, "a selection", count_kernel<KEY>, (unsigned)tg_min(tiles, most),
                             THREADS, 0, key, n, left, bits, s));
        TG_CALL(launch_alone(be, "a selection", pick_kernel, 1, PICK_THREADS, 0, bits, s));
    }
    TG_CALL(launch_alone(be, "a selection", tie_kernel<KEY>, blocks, THREADS, 0, key, n, s,
                         bitmap->ranks));
    TG_CALL(cuda_scan(be, groups, bitmap->ranks, &s->at.resolved, s->partials, NULL));
    TG_CALL(launch_alone(be, "a selection", keep_kernel<KEY>, blocks, THREADS, 0, key, n, s,
                         bitmap->words, bitmap->ranks));
    TG_CALL(cuda_scan(be, groups, bitmap->ranks, NULL, s->partials, NULL));
    bitmap->count = k;
    return TG_OK;
}

static tg_status select_by_value(tg_backend *be, const tg_select *op) {
    TG_CALL(tg_check_float(be->ctx, "select", op->dtype));
    if (op->k == 0) {
        return clear_bitmap(be, op->bitmap);
    }
    return with_element(op->dtype, [&](auto tag) {
        using E = typename decltype(tag)::type;
        const E *x = static_cast<const E *>(op->x);
        return op->kind == TG_SELECT_TOPK
                   ? select_keys(be, modulus_key<E>{x}, op->k, op->bitmap)
                   : select_keys(be, waiting_key<E>{x, op->rng}, op->k, op->bitmap);
    });
}

/* ---- random selection ---- */

static __global__ void random_kernel(tg_rng rng, uint64_t n, int64_t k, unsigned long long *words) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < k; i += step) {
        const uint64_t entry = tg_feistel_walk(&rng, n, (uint64_t)i);
        atomicOr(&words[entry / 64], 1ull << (entry % 64));
    }
}

static tg_status select_random(tg_backend *be, const tg_select *op) {
    selection *s = static_cast<selection *>(cuda_state_of(be)->scratch);
    tg_bitmap *bitmap = op->bitmap;
    TG_CALL(clear_bitmap(be, bitmap));
    if (op->k > 0) {
        TG_CALL(launch_alone(be, "a random selection", random_kernel,
                             cuda_blocks(be, op->k, THREADS), THREADS, 0, op->rng,
                             (uint64_t)bitmap->n, op->k,
                             reinterpret_cast<unsigned long long *>(bitmap->words)));
        TG_CALL(cuda_rank(be, bitmap, s->partials, NULL));
        bitmap->count = op->k;
    }
    return TG_OK;
}

tg_status cuda_select(tg_backend *be, const tg_select *op) {
    TG_CALL(tg_check_select(be->ctx, op));
    return op->kind == TG_SELECT_RANDOM  ? select_random(be, op)
           : op->kind == TG_SELECT_GIVEN ? cuda_bitmap_rank(be, op->bitmap)
                                         : select_by_value(be, op);
}
