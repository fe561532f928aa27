/* An index set at 16 runs of 32 entries that begin anywhere, looked up by a whole warp in few loads
 * that do not wait for each other, nor for anything loaded between the two halves of it. */
#ifndef TG_BACKEND_CUDA_KEPT_WORDS_CUH
#define TG_BACKEND_CUDA_KEPT_WORDS_CUH

#include "backend/cuda/compress.cuh"

enum { KEPT_RUNS = 16 };

/* The words of the rank blocks in which the runs begin, eight lanes to a run, four runs at a time;
 * and of run p its own words, in lanes p and p + 16. */
struct kept_words {
    uint64_t block[KEPT_RUNS / 4], own;
    uint32_t rank;
};

/* Of the 64 bits of word `word` of a rank block, those before an entry. */
static __device__ inline uint64_t bits_before(int64_t entry, int word) {
    const int bits = (int)(entry % 512) - 64 * word;
    return bits >= 64 ? ~UINT64_C(0) : bits > 0 ? (UINT64_C(1) << bits) - 1 : 0;
}

/* entry_of(p): where run p begins. */
template <class F>
static __device__ inline kept_words load_kept_words(const kept_set &set, int lane, F entry_of) {
    kept_words found;
#pragma unroll
    for (int q = 0; q < KEPT_RUNS / 4; q++) {
        const int64_t entry = entry_of(4 * q + lane / 8);
        const bool counts = bits_before(entry, lane % 8) != 0;
        found.block[q] = counts ? set.words[entry / 512 * 8 + lane % 8] : 0;
    }
    const int64_t entry = entry_of(lane % KEPT_RUNS), word = entry / 64 + lane / KEPT_RUNS;
    found.own = word < set.count ? set.words[word] : 0;
    found.rank = set.ranks[entry / 512];
    return found;
}

/* Run p for lane p. */
template <class F>
static __device__ inline kept_run kept_runs_of_words(const kept_words &found, int lane,
                                                     F entry_of) {
    uint32_t before = found.rank;
#pragma unroll
    for (int q = 0; q < KEPT_RUNS / 4; q++) {
        const uint64_t bits = bits_before(entry_of(4 * q + lane / 8), lane % 8);
        uint32_t sum = (uint32_t)__popcll(found.block[q] & bits);
        for (int d = 1; d < 8; d *= 2) {
            sum += __shfl_xor_sync(~0u, sum, d);
        }
        const uint32_t own = __shfl_sync(~0u, sum, lane % 4 * 8);
        before += lane / 4 == q ? own : 0;
    }
    const uint64_t next = __shfl_down_sync(~0u, (unsigned long long)found.own, KEPT_RUNS);
    const int shift = (int)(entry_of(lane % KEPT_RUNS) % 64);
    const uint64_t mask = found.own >> shift | (shift > 32 ? next << (64 - shift) : 0);
    return {(uint32_t)mask, before};
}

#endif
