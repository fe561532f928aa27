/* Shared by every file of the CUDA backend: the C headers, the state that be->state points to,
 * error checks, cuBLAS and cuSOLVER, matrix products, and programmatic dependent launch. CUDA
 * headers are included in this folder only. */
#ifndef TG_BACKEND_CUDA_CORE_CUDA_CUH
#define TG_BACKEND_CUDA_CORE_CUDA_CUH

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <type_traits>

extern "C" {
#include "backend/backend.h"
#include "backend/check.h"
#include "base/minmax.h"
}

enum {
    CUDA_SCRATCH_BYTES = 4 << 20, /* of cuda_state.scratch */
    CUDA_BLAS_BYTES = 32 << 20,   /* of cuda_state.blas_workspace */
    CUDA_PINNED_BYTES = 1 << 16,  /* of cuda_state.pinned */
    CUDA_LIMITS = 512             /* in cuda_state.limit */
};

/* One device and one stream; work runs in call order. */
struct cuda_state {
    int device;
    int processors; /* multiprocessors of the device */
    int max_shared; /* bytes of shared memory of a block, at most */
    bool is_hopper; /* kernels of sm90/ run: compute capability 9.0, and compiled for it */
    cudaStream_t stream;
    cudaStream_t copy_stream; /* copies, concurrent with `stream` */
    cudaStream_t side_stream; /* work of other libraries, concurrent with it */
    cudaEvent_t copy_event;   /* orders two streams within one call */
    tg_mem_device memory;     /* how the ledger allocates device memory */
    cublasHandle_t blas;
    void *blas_workspace;      /* CUDA_BLAS_BYTES; scratch in calls that do not use cuBLAS */
    cusolverDnHandle_t solver; /* NULL until it is needed */
    void *scratch; /* CUDA_SCRATCH_BYTES on the device, valid within one call: partial sums */
    void *pinned;  /* CUDA_PINNED_BYTES on the host, for results read back */
    cudaStream_t capture_stream; /* of graphs of a caller's stream; NULL until it is needed */
    struct cuda_plans *plans;    /* compress/plans.cu */
    struct {
        const void *kernel;
        size_t bytes;
    } limit[CUDA_LIMITS]; /* of shared memory that kernels are known to have, by address */
};

static inline cuda_state *cuda_state_of(const tg_backend *be) {
    return static_cast<cuda_state *>(be->state);
}

static inline cudaStream_t cuda_stream(const tg_backend *be) {
    return cuda_state_of(be)->stream;
}

/* In device.cu: sets memory to 0, queued; reads a result of at most CUDA_PINNED_BYTES at once;
 * makes a stream. */
tg_status cuda_clear(const tg_backend *be, void *x, size_t bytes, const char *what);
tg_status cuda_read(tg_backend *be, void *host, const void *from, size_t bytes);
tg_status cuda_make_stream(const tg_backend *be, cudaStream_t *out);

/* Later calls are queued there. */
tg_status cuda_set_stream(tg_backend *be, cudaStream_t stream); /* device.cu */

/* Returns TG_OK, or TG_E_BACKEND with a message: what was tried and the CUDA error. */
#define CUDA_CHECK(be, call, what) cuda_check((be), (call), __FILE__, __LINE__, (what))
tg_status cuda_check(const tg_backend *be, cudaError_t error, const char *file, int line,
                     const char *what);

/* The same for the libraries. */
#define BLAS_CHECK(be, call, what) cuda_check_blas((be), (call), __FILE__, __LINE__, (what))
tg_status cuda_check_blas(const tg_backend *be, cublasStatus_t error, const char *file, int line,
                          const char *what);
#define SOLVER_CHECK(be, call, what) cuda_check_solver((be), (call), __FILE__, __LINE__, (what))
tg_status cuda_check_solver(const tg_backend *be, cusolverStatus_t error, const char *file,
                            int line, const char *what);

/* Number of blocks of `threads` for n items, at least 1. Kernels loop with a grid stride, so a
 * thread may handle several items. */
static inline unsigned cuda_blocks(const tg_backend *be, int64_t n, int threads) {
    const int64_t wanted = (n + threads - 1) / threads;
    const int64_t most = (int64_t)cuda_state_of(be)->processors * (2048 / threads) * 4;
    return (unsigned)tg_max(tg_min(wanted, most), 1);
}

/* The slots, functions cuda_<slot> of the table's types. */
/* clang-format off */
#define CUDA_SLOTS(SLOT) \
    SLOT(probe) SLOT(open) SLOT(close) SLOT(alloc) SLOT(release) SLOT(upload) SLOT(download) \
    SLOT(copy) SLOT(synchronize) SLOT(device_facts) SLOT(devices) SLOT(workspace) \
    SLOT(fill) SLOT(convert) SLOT(axpy) SLOT(norms) SLOT(count_nonfinite) SLOT(random) \
    SLOT(quantize) SLOT(gemm) SLOT(gram) SLOT(slice_norms) SLOT(column_squares) \
    SLOT(scale_columns) SLOT(transpose) SLOT(scratch_need) SLOT(eigh) SLOT(qr) \
    SLOT(leading_columns) SLOT(fft_create) SLOT(fft_destroy) SLOT(fft) SLOT(select) \
    SLOT(bitmap_clear) SLOT(compress) SLOT(expand) SLOT(step_compressed) SLOT(sample) \
    SLOT(grad_dense) SLOT(update) SLOT(box_copy) SLOT(grid_embed) SLOT(planes) SLOT(activate) \
    SLOT(add_skip) SLOT(mlp) SLOT(block_forward) SLOT(block_backward) SLOT(spectral_contract) \
    SLOT(two_modes) SLOT(mapped_contract) SLOT(mapped_gradients) SLOT(norm) SLOT(loss) \
    SLOT(sobolev_squares) SLOT(residual) SLOT(neighbours_build) SLOT(neighbours_list) SLOT(gno) \
    SLOT(flow)
/* clang-format on */
#define CUDA_SLOT(name) std::remove_pointer_t<decltype(tg_backend_ops::name)> cuda_##name;
CUDA_SLOTS(CUDA_SLOT)
#undef CUDA_SLOT
extern const tg_stream_ops cuda_stream_ops; /* stream.cu */

size_t cuda_compress_workspace(tg_backend *be, const tg_multimode *modes); /* compress.cu */
size_t cuda_plans_bytes(void); /* compress/plans.cu: none made is all bytes 0 */

/* ---- cuBLAS and cuSOLVER, opened at run time ---- */

/* A program that uses no GPU starts without their hundreds of megabytes. Where they are missing,
 * the other backends still work. */
struct cuda_functions {
#define CUDA_BLAS(name)   decltype(&::name) name;
#define CUDA_SOLVER(name) decltype(&::name) name;
#include "backend/cuda/core/libraries.def"
};

/* One table for the process, filled once a backend is open. */
extern cuda_functions cuda_libraries;

/* Opens both libraries, or reuses those the process has loaded. Returns false and the reason if one
 * is missing. */
bool cuda_libraries_open(char *reason, size_t capacity);

/* ---- kernels for some sizes ---- */

/* f(SIZE) with a constant: the first of the sizes that is enough, or the last. */
template <int SIZE, int... MORE, class F> static inline auto with_size(int64_t needed, F f) {
    if constexpr (sizeof...(MORE) > 0) {
        if (needed > SIZE) {
            return with_size<MORE...>(needed, f);
        }
    }
    return f(std::integral_constant<int, SIZE>());
}

/* ---- matrix products ---- */

/* One product C (m, n) = alpha op(A) op(B) + beta C; rows lda, ldb and ldc apart. */
static inline tg_gemm gemm_of(tg_dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                              tg_op op_a, const void *a, int64_t lda, tg_op op_b, const void *b,
                              int64_t ldb, double beta, void *c, int64_t ldc) {
    return {dtype, op_a, op_b, m,   n, k, {alpha, 0.0}, {beta, 0.0}, a, lda, 0, b,
            ldb,   0,    c,    ldc, 0, 1, false};
}

/* cuda_gemm by our own kernel; m, n and batch are not 0. */
tg_status cuda_gemm_tiles(tg_backend *be, const tg_gemm *gemm);

/* ---- programmatic dependent launch (PDL) ---- */

/* A kernel launched with launch_pdl starts while the previous kernel on the stream is ending, so
 * that the GPU does not go idle between them. Until pdl_wait it writes nothing and reads only
 * memory that the previous kernel does not write, such as layer weights. Kernels before the
 * previous one have ended by then, because each kernel calls pdl_launch_dependents only after its
 * own pdl_wait. (The kernels of compress/ that do not, where a plan is `apart`, are followed by
 * some that do.) */

/* Waits until the previous kernel has ended and its writes are visible. Returns at once in a kernel
 * that was launched normally. */
__device__ inline void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* Lets the next kernel start from here on, as soon as its blocks fit on the device. */
__device__ inline void pdl_launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/* Both, for kernels with nothing to prepare before the wait. */
__device__ inline void pdl_wait_and_launch_dependents() {
    pdl_wait();
    pdl_launch_dependents();
}

/* Lets a kernel have `bytes` of dynamic shared memory. Its limit, one for all threads, only grows:
 * another thread may be about to launch it with more. */
tg_status cuda_allow_shared(const tg_backend *be, const void *kernel, size_t bytes); /* device.cu */

/* Launches kernel(args..) with `shared` bytes of dynamic shared memory. If `early`, as a dependent
 * of the previous kernel; then it calls pdl_wait. `what` it does, for the error. */
template <class... TAKES, class... ARGS>
static inline tg_status launch_if_early(const tg_backend *be, const char *what, bool early,
                                        void (*kernel)(TAKES...), dim3 grid, dim3 block,
                                        size_t shared, const ARGS &...args) {
    cudaLaunchAttribute how = {};
    how.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    how.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = cuda_stream(be);
    config.attrs = &how;
    config.numAttrs = early ? 1 : 0;
    if (shared > 0) {
        TG_CALL(cuda_allow_shared(be, reinterpret_cast<const void *>(kernel), shared));
    }
    return CUDA_CHECK(be, cudaLaunchKernelEx(&config, kernel, args...), what);
}

/* The same with PDL wherever the device supports it; and always without. */
template <class... TAKES, class... ARGS>
static inline tg_status launch_pdl(const tg_backend *be, const char *what, void (*kernel)(TAKES...),
                                   dim3 grid, dim3 block, size_t shared, const ARGS &...args) {
    return launch_if_early(be, what, cuda_state_of(be)->is_hopper, kernel, grid, block, shared,
                           args...);
}
template <class... TAKES, class... ARGS>
static inline tg_status launch_alone(const tg_backend *be, const char *what,
                                     void (*kernel)(TAKES...), dim3 grid, dim3 block, size_t shared,
                                     const ARGS &...args) {
    return launch_if_early(be, what, false, kernel, grid, block, shared, args...);
}

#endif
