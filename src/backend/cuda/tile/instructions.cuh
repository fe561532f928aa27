/* Instructions without a CUDA C intrinsic, or whose intrinsic also handles rare cases. */
#ifndef TG_BACKEND_CUDA_TILE_INSTRUCTIONS_CUH
#define TG_BACKEND_CUDA_TILE_INSTRUCTIONS_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* 2^x with error below 2^-22, and 1 / x within 1 ulp; subnormal results become 0. */
__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Tensor cores truncate the last 13 bits of a factor. Adding one to two thirds of their range first
 * turns this into unbiased rounding and leaves numbers that are exact in TF32 unchanged. One
 * instruction instead of three, only for factors of mma_tf32, which truncates. For factors that are
 * not rounded this way, correct the sum for the average loss with TF32_CUT. */
static constexpr float TF32_CUT = 1.0f + 0x1p-11f * 2.0f / 3.0f;

__device__ inline float to_tf32(float x) {
    return x * TF32_CUT;
}

__device__ inline float4 to_tf32(float4 x) {
    return make_float4(to_tf32(x.x), to_tf32(x.y), to_tf32(x.z), to_tf32(x.w));
}

/* Splits a number into a sum of two in TF32; the first is the nearest. */
struct tf32_terms {
    float first, second;
};

__device__ inline tf32_terms terms_of(uint32_t number) {
    const float first = __uint_as_float((number + 0x1000u) & 0xFFFFE000u);
    return {first, __uint_as_float(number) - first};
}

/* The truncated factor as tensor cores see it, and the truncated part as a number. */
__device__ inline float cut(float x) {
    return __uint_as_float(__float_as_uint(x) & 0xFFFFE000u);
}
__device__ inline float4 cut(float4 x) {
    return make_float4(cut(x.x), cut(x.y), cut(x.z), cut(x.w));
}
__device__ inline float cut_off(float x) {
    return to_tf32(x - cut(x));
}
__device__ inline float4 cut_off(float4 x) {
    return make_float4(cut_off(x.x), cut_off(x.y), cut_off(x.z), cut_off(x.w));
}

/* Returns x opaquely to the compiler, so that values derived from it are recomputed per tile and
 * not kept in registers, which are full. */
__device__ inline int fresh(int x) {
    asm volatile("" : "+r"(x));
    return x;
}
__device__ inline uint64_t fresh(uint64_t x) {
    asm volatile("" : "+l"(x));
    return x;
}
__device__ inline int fresh_thread() {
    return fresh((int)threadIdx.x);
}

/* C (16 x 8) += A (16 x 8) B (8 x 8), factors in TF32, sums in f32. Lane 4 g + t holds the entries
 * below; k0 and k1 are two of the eight k's, the same for both factors:
 *   a = {A[g][k0], A[g + 8][k0], A[g][k1], A[g + 8][k1]},  b0 = B[k0][g],  b1 = B[k1][g],
 *   c = {C[g][2t], C[g][2t + 1], C[g + 8][2t], C[g + 8][2t + 1]}.
 * Over the four t, k0 and k1 cover all eight. */
__device__ inline void mma_tf32(float (&c)[4], float4 a, float b0, float b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a.x)), "r"(__float_as_uint(a.y)), "r"(__float_as_uint(a.z)),
          "r"(__float_as_uint(a.w)), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

/* C (16 x 8) += A (16 x 16) B (16 x 8), 16-bit factors, sums in f32. Lane 4 g + t holds pairs of
 * neighbouring k's, the lower one in the low half of a word. With the first k of a pair at 2 t and
 * 2 t + 8,
 *   a = {A[g][2t], A[g + 8][2t], A[g][2t + 8], A[g + 8][2t + 8]},
 *   b0 = B[2t][g],  b1 = B[2t + 8][g],
 * and c as above. */
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four matrices (8, 8) of 16-bit numbers from shared memory, lane 8 i + j giving the address of row
 * j of matrix i, 16 bytes and aligned. Lane 4 g + t gets columns 2 t and 2 t + 1 of row g of each;
 * transposed: rows 2 t and 2 t + 1 of column g. */
__device__ inline void load_matrices(uint32_t (&m)[4], const void *row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}
__device__ inline void load_transposed_matrices(uint32_t (&m)[4], const void *row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}

/* Stores aligned numbers to global memory in one access; the compiler splits some such stores. */
__device__ inline void store_two(float *to, float a, float b) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" : : "l"(to), "f"(a), "f"(b) : "memory");
}
__device__ inline void store_four(float *to, float a, float b, float c, float d) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
                 : "memory");
}

/* Stores two numbers, not to be read again soon, if `does`. Predicated instead of branching,
 * because some lane of a warp would nearly always take the branch. */
__device__ inline void store_two_if(bool does, float2 *to, float a, float b) {
    asm volatile("{ .reg .pred does; setp.ne.b32 does, %0, 0;"
                 "@does st.global.cs.v2.f32 [%1], {%2, %3}; }" ::"r"((int)does),
                 "l"(__cvta_generic_to_global(to)), "f"(a), "f"(b));
}

/* Copies BYTES (4, 8 or 16) from global to shared memory asynchronously, bypassing registers; zeros
 * unless `counts`. Both addresses are aligned to BYTES. The thread sees the data after
 * copies_wait(), other threads after a barrier that follows it. 16-byte copies bypass the L1 and
 * prefetch the adjacent memory to the L2. */
template <int BYTES>
__device__ inline void copy_async(void *to, const void *from, bool counts = true) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    const size_t source = __cvta_generic_to_global(from);
    const int bytes = counts ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(at),
                     "l"(source), "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(source),
                     "n"(BYTES), "r"(bytes)
                     : "memory");
    }
}
__device__ inline void copies_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Ends a group of copies; waits for all groups except the last N. */
__device__ inline void copies_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ inline void copies_wait_all_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* A warp prefetches [begin, end) to the L2, except up to 16 bytes at either end. Asynchronous; does
 * nothing on GPUs without the instruction. */
__device__ inline void prefetch_l2(const void *begin, const void *end, int lane) {
#if __CUDA_ARCH__ >= 900
    const uintptr_t first = ((uintptr_t)begin + 15) / 16 * 16, last = (uintptr_t)end / 16 * 16;
    const uintptr_t piece = 2048;
#pragma unroll 1
    for (uintptr_t at = first + (uintptr_t)lane * piece; at < last; at += 32 * piece) {
        const size_t from = __cvta_generic_to_global(reinterpret_cast<const void *>(at));
        const uint32_t bytes = (uint32_t)min(piece, last - at);
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
    }
#else
    (void)begin, (void)end, (void)lane;
#endif
}

#endif
