/* Kernels that begin while the one before them on the stream ends, so that a GPU does not stand
 * still between them. Until kernel_before_wait such a kernel writes nothing and reads only what the
 * one before does not write, as weights of layers: those before that one have ended by then, since
 * kernels let the next one begin behind their own wait. (Those of compress/ that do not, where a
 * plan is `apart`, are followed by some that do.) */
#ifndef TG_BACKEND_CUDA_CORE_EARLY_CUH
#define TG_BACKEND_CUDA_CORE_EARLY_CUH

#include "backend/cuda/core/cuda.cuh"

/* Until the kernel before has ended and what it has written is seen; nothing to wait for where this
 * one was not started early. */
__device__ inline void kernel_before_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* From now on the next one may begin, where blocks have room. */
__device__ inline void kernel_behind_go() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/* Both: what a kernel begins with that has nothing to do before. */
__device__ inline void kernel_begins() {
    kernel_before_wait();
    kernel_behind_go();
}

/* kernel(args..), which calls kernel_before_wait, while the one before it ends if it is `early`. */
template <class... TAKES, class... ARGS>
static inline cudaError_t launch_if(bool early, cudaStream_t stream, void (*kernel)(TAKES...),
                                    dim3 grid, dim3 block, size_t shared, const ARGS &...args) {
    cudaLaunchAttribute how = {};
    how.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    how.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &how;
    config.numAttrs = early ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, TAKES(args)...);
}

/* The same wherever the device can. */
template <class... TAKES, class... ARGS>
static inline cudaError_t launch_early(const tg_backend *be, void (*kernel)(TAKES...), dim3 grid,
                                       dim3 block, size_t shared, const ARGS &...args) {
    return launch_if(cuda_state_of(be)->is_hopper, cuda_stream(be), kernel, grid, block, shared,
                     args...);
}

#endif
