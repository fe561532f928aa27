/* A place across which the compiler moves nothing. */
#ifndef TG_BACKEND_CUDA_SM90_KEEP_ORDER_CUH
#define TG_BACKEND_CUDA_SM90_KEEP_ORDER_CUH

#include "backend/cuda/tile/instructions.cuh"
#include "backend/cuda/tile/warpgroup.cuh"

/* What is written before this is done before it, in step n >= 0; otherwise the compiler evaluates
 * behind waits and loads behind products. A loop that never turns, which it does not know, keeps
 * all order; a barrier that nobody meets (not STRICT), that of accesses to memory alone, which is
 * faster where registers are short. */
template <bool STRICT = true> static __device__ inline void keep_order(int n) {
    if constexpr (STRICT) {
        asm volatile("{ .reg .pred never; setp.lt.s32 never, %0, 0;"
                     "again: @never nanosleep.u32 1; @never bra again; }" ::"r"(fresh(n))
                     : "memory");
    } else if (fresh(n) < 0) {
        wg_sync();
    }
}

#endif
