/* Products of a warpgroup, four warps, by Hopper's own instructions (sm_90a): factors in TF32, sums
 * in f32.
 *
 *     D (64, N) += A (64, 8) B (8, N)
 *
 * Rows are pixels, columns channels, so that the result of one layer is the first factor of the
 * next without leaving its registers. With lane = 4 g + t of warp w, a thread has of D
 *
 *     d[4 j + 0, 1] = D[16 w + g][8 j + 2 t, 8 j + 2 t + 1],  d[4 j + 2, 3] = the same of row + 8,
 *
 * and of A, for channels k .. k + 7, what it has of D's columns k + 2 t and k + 2 t + 1. The
 * instruction wants columns k + t and k + t + 4 there; so B's rows are permuted instead
 * (channel_of). Which pixels the rows are is the caller's choice: with rows g and g + 8 next to
 * each other in memory (pixel_of) accesses are of 8 bytes and sectors are complete.
 *
 * B lies in shared memory with its columns as rows of 32 numbers, chunk after chunk: element (k, n)
 * at wg_at<N>(n, k). Written by threads, it needs wg_publish and a barrier before it is multiplied.
 *
 * Products run asynchronously: wg_begin, products, wg_end, and wg_wait before registers of D or A
 * are touched. Compiled for other GPUs, where nothing calls them, they are empty. */
#ifndef TG_BACKEND_CUDA_TILE_WARPGROUP_CUH
#define TG_BACKEND_CUDA_TILE_WARPGROUP_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WG_ASM asm volatile
#else
#define WG_ASM(...) (void)0
#endif

enum { WG_THREADS = 128, WG_PIXELS = 64 };

__device__ inline void wg_begin() {
    WG_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wg_end() {
    WG_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until at most LEFT of the last groups of products are under way. */
template <int LEFT> __device__ inline void wg_wait() {
    WG_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
__device__ inline void wg_publish() {
    WG_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A barrier of the warpgroup alone. */
__device__ inline void wg_sync() {
    asm volatile("bar.sync %0, 128;" ::"r"(1 + (int)threadIdx.x / WG_THREADS) : "memory");
}

/* The compiler moves nothing that touches d across this: it does not know of products under way. */
template <int N> __device__ inline void wg_fence(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}
__device__ inline void wg_hold(float4 &a) {
    asm volatile("" : "+f"(a.x), "+f"(a.y), "+f"(a.z), "+f"(a.w)::"memory");
}
template <int N> __device__ inline void wg_clear(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        d[i] = 0.0f;
    }
}

/* Row k of B holds this channel. */
__device__ inline int channel_of(int k) {
    const int s = k & 7;
    return (k & ~7) + (s < 4 ? 2 * s : 2 * s - 7);
}

/* And the row that holds a channel. */
__device__ inline int row_of_channel(int channel) {
    const int s = channel & 7;
    return (channel & ~7) + (s % 2 == 0 ? s / 2 : (s + 7) / 2);
}

/* x, which is the same for all threads of a warp, and now the compiler knows: where a product of a
 * warpgroup finds its factors is told by one instruction then instead of seven. */
__device__ inline int same_in_warp(int x) {
    return __reduce_min_sync(~0u, x);
}

/* First of the two pixels of a thread, of the 64 of its warpgroup. */
__device__ inline int pixel_of(int thread) {
    return thread / 32 % 4 * 16 + thread % 32 / 4 * 2;
}
__device__ inline int pixel_of() {
    return pixel_of((int)threadIdx.x);
}

/* Byte offset of element (k, n) of B with N columns; B starts at a multiple of 1024 bytes. */
template <int N> __device__ inline int wg_at(int n, int k) {
    return k / 32 * (N * 128) + n * 128 + ((k % 32 / 4 ^ (n & 7)) << 4) + k % 4 * 4;
}

/* B with so many rows, a multiple of 32, set to 0 by all threads of a block. */
template <int N> __device__ inline void wg_zero(char *b, int rows) {
    for (int e = (int)threadIdx.x; e < rows / 32 * N * 8; e += (int)blockDim.x) {
        reinterpret_cast<float4 *>(b)[e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* The descriptor of B, and of its rows 8 k .. 8 k + 7. */
__device__ inline uint64_t wg_matrix(const void *b) {
    const uint64_t at = (uint32_t)__cvta_generic_to_shared(b) >> 4;
    return at | 1ull << 16 | 64ull << 32 | 1ull << 62; /* groups of 8 rows are 1024 bytes apart */
}
template <int N> __device__ inline uint64_t wg_rows(uint64_t matrix, int k) {
    return matrix + (uint64_t)((k / 4 * (N * 128) + k % 4 * 32) >> 4);
}

/* What a thread has of columns 8 k .. 8 k + 7, as the first factor of a product. */
__device__ inline float4 wg_factor(const float *d, int k) {
    return {d[4 * k], d[4 * k + 2], d[4 * k + 1], d[4 * k + 3]};
}

/* d = a b, or d += a b if it adds: one instruction for each number of columns, with the numbers of
 * its operands behind those of d.
 *
 * Complex numbers in f16: a step of 8 numbers is one of 16 k's, both parts of a number together in
 * the 4 bytes that a number in TF32 takes, and B lies as it does there: for column 2 i of D, the
 * real part of what number i becomes, the pair (re, -im) that it is multiplied with, for column
 * 2 i + 1 the pair (im, re). A thread then has both parts of numbers 4 j + t in d[4 j .. 4 j + 3],
 * of rows g and g + 8: what a product needs as first factor (wg_half_factor). */
/* clang-format off */
#define WG_8(i)                                                                                  \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),  \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define WG_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WG_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WG_SUMS_16 WG_8(0), WG_8(8)
#define WG_NAMES_24 WG_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WG_SUMS_24 WG_SUMS_16, WG_8(16)
#define WG_NAMES_32 WG_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WG_SUMS_32 WG_SUMS_24, WG_8(24)
#define WG_NAMES_36 WG_NAMES_32 ", %32, %33, %34, %35"
#define WG_SUMS_36 WG_SUMS_32, WG_4(32)
#define WG_NAMES_40 WG_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WG_SUMS_40 WG_SUMS_32, WG_8(32)
#define WG_NAMES_44 WG_NAMES_40 ", %40, %41, %42, %43"
#define WG_SUMS_44 WG_SUMS_40, WG_4(40)
#define WG_NAMES_48 WG_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WG_SUMS_48 WG_SUMS_40, WG_8(40)
#define WG_NAMES_64 WG_NAMES_48 \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WG_SUMS_64 WG_SUMS_48, WG_8(48), WG_8(56)
#define WG_NAMES_68 WG_NAMES_64 ", %64, %65, %66, %67"
#define WG_SUMS_68 WG_SUMS_64, WG_4(64)
#define WG_NAMES_128 WG_NAMES_64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WG_SUMS_128 WG_SUMS_64, WG_8(64), WG_8(72), WG_8(80), WG_8(88), WG_8(96), WG_8(104), WG_8(112), WG_8(120)
#define WG_MULTIPLY(count, columns, first, matrix, does_add, ...)                                  \
    WG_INSTRUCTION("k8.f32.tf32.tf32", count, columns, first, matrix, does_add, "1, 1", __VA_ARGS__)
#define WG_INSTRUCTION(kind, count, columns, first, matrix, does_add, scales, ...)                 \
    WG_ASM("{ .reg .pred adds; setp.ne.b32 adds, %" #does_add ", 0;"                               \
           "wgmma.mma_async.sync.aligned.m64n" #columns kind " {" WG_NAMES_##count                 \
           "}, " first ", %" #matrix ", adds, " scales "; }"                                       \
           : WG_SUMS_##count                                                                       \
           : __VA_ARGS__)
#define WG_PRODUCT(count, columns, a0, a1, a2, a3, matrix, does_add)                               \
    __device__ inline void wg_product(float (&d)[count], float4 a, uint64_t b, bool adds) {        \
        WG_MULTIPLY(count, columns, "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}", matrix, does_add,  \
                    "r"(__float_as_uint(a.x)), "r"(__float_as_uint(a.y)),                          \
                    "r"(__float_as_uint(a.z)), "r"(__float_as_uint(a.w)), "l"(b), "r"((int)adds)); \
    }
WG_PRODUCT(16, 32, 16, 17, 18, 19, 20, 21)
WG_PRODUCT(24, 48, 24, 25, 26, 27, 28, 29)
WG_PRODUCT(32, 64, 32, 33, 34, 35, 36, 37)
WG_PRODUCT(36, 72, 36, 37, 38, 39, 40, 41)
WG_PRODUCT(44, 88, 44, 45, 46, 47, 48, 49)
WG_PRODUCT(48, 96, 48, 49, 50, 51, 52, 53)
WG_PRODUCT(64, 128, 64, 65, 66, 67, 68, 69)
WG_PRODUCT(68, 136, 68, 69, 70, 71, 72, 73)
/* The same with A in shared memory, its rows as those of B: element (m, k) at wg_at<64>(m, k). */
#define WG_SHARED_PRODUCT(count, columns, first, matrix, does_add)                                 \
    __device__ inline void wg_product(float (&d)[count], uint64_t a, uint64_t b, bool adds) {      \
        WG_MULTIPLY(count, columns, "%" #first, matrix, does_add, "l"(a), "l"(b), "r"((int)adds)); \
    }
WG_SHARED_PRODUCT(16, 32, 16, 17, 18)
WG_SHARED_PRODUCT(32, 64, 32, 33, 34)
WG_SHARED_PRODUCT(64, 128, 64, 65, 66)
/* Complex numbers in f16. */
#define WG_HALF_PRODUCT(count, columns, a0, a1, a2, a3, matrix, does_add)                          \
    __device__ inline void wg_half_product(float (&d)[count], uint4 a, uint64_t b, bool adds) {    \
        WG_INSTRUCTION("k16.f32.f16.f16", count, columns,                                          \
                       "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}", matrix, does_add, "1, 1, 0",    \
                       "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)adds));            \
    }
WG_HALF_PRODUCT(16, 32, 16, 17, 18, 19, 20, 21)
WG_HALF_PRODUCT(32, 64, 32, 33, 34, 35, 36, 37)
WG_HALF_PRODUCT(44, 88, 44, 45, 46, 47, 48, 49)
WG_HALF_PRODUCT(64, 128, 64, 65, 66, 67, 68, 69)
WG_HALF_PRODUCT(68, 136, 68, 69, 70, 71, 72, 73)
WG_HALF_PRODUCT(128, 256, 128, 129, 130, 131, 132, 133)
#undef WG_HALF_PRODUCT
#undef WG_SHARED_PRODUCT
#undef WG_PRODUCT
#undef WG_MULTIPLY
#undef WG_INSTRUCTION
#undef WG_8
#undef WG_4
/* clang-format on */

/* Both parts of a number in f16, rounded to nearest; what is too large for it becomes the largest
 * there is. */
__device__ inline uint32_t half_pair(float re, float im) {
    uint32_t pair;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(im), "f"(re));
    return pair;
}
/* (re, -im) and (im, re) of a pair (re, im): what columns 2 i and 2 i + 1 are made with. */
__device__ inline uint32_t half_pair_for(uint32_t pair, int part) {
    return part == 0 ? pair ^ 0x80000000u : __byte_perm(pair, 0, 0x1032);
}
/* Numbers 8 s + t and 8 s + t + 4 of what a product of D gives, as first factor of the next one. */
__device__ inline uint4 wg_half_factor(const float *d, int s) {
    d += 8 * s;
    return make_uint4(half_pair(d[0], d[1]), half_pair(d[2], d[3]), half_pair(d[4], d[5]),
                      half_pair(d[6], d[7]));
}
__device__ inline void wg_hold(uint4 &a) {
    asm volatile("" : "+r"(a.x), "+r"(a.y), "+r"(a.z), "+r"(a.w)::"memory");
}

#endif
