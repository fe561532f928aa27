/* What every file of the CUDA backend shares: the C headers of the house, the state behind
 * be->state, and the one way a CUDA call is checked. CUDA headers are seen in this folder only. */
#ifndef TG_BACKEND_CUDA_CORE_CUDA_CUH
#define TG_BACKEND_CUDA_CORE_CUDA_CUH

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cusolverDn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include "backend/backend.h"
#include "backend/check.h"
}

enum {
    CUDA_SCRATCH_BYTES = 4 << 20, /* of cuda_state.scratch */
    CUDA_BLAS_BYTES = 32 << 20,   /* of cuda_state.blas_workspace */
    CUDA_PINNED_BYTES = 1 << 16   /* of cuda_state.pinned */
};

/* One device and one stream: work runs in the order of the calls. */
struct cuda_state {
    int device;
    int processors; /* multiprocessors of the device */
    bool is_hopper; /* kernels of sm90/ run: compute capability 9.0, and compiled for it */
    cudaStream_t stream;
    cudaStream_t copy_stream; /* copies beside the stream */
    cudaStream_t side_stream; /* work of other libraries beside it */
    cudaEvent_t copy_event;   /* orders two streams, for the time of a call */
    tg_mem_device memory;     /* how the ledger asks this device for memory */
    cublasHandle_t blas;
    void *blas_workspace;      /* CUDA_BLAS_BYTES; free for others in calls that use no cuBLAS */
    cusolverDnHandle_t solver; /* NULL until it is needed */
    void *scratch; /* CUDA_SCRATCH_BYTES on the device, for the time of one call: partial sums */
    void *pinned;  /* CUDA_PINNED_BYTES on the host: results on their way */
};

static inline cuda_state *cuda_state_of(const tg_backend *be) {
    return static_cast<cuda_state *>(be->state);
}

static inline cudaStream_t cuda_stream(const tg_backend *be) {
    return cuda_state_of(be)->stream;
}

/* TG_OK, or TG_E_BACKEND with a sentence made of what was tried and what CUDA says to it. */
#define CUDA_CHECK(be, call, what) cuda_check((be), (call), __FILE__, __LINE__, (what))
tg_status cuda_check(const tg_backend *be, cudaError_t error, const char *file, int line,
                     const char *what);

/* After a kernel launch. */
#define CUDA_LAUNCHED(be, what) CUDA_CHECK((be), cudaGetLastError(), (what))

/* The same for the libraries. */
#define BLAS_CHECK(be, call, what) cuda_check_blas((be), (call), __FILE__, __LINE__, (what))
tg_status cuda_check_blas(const tg_backend *be, cublasStatus_t error, const char *file, int line,
                          const char *what);
#define SOLVER_CHECK(be, call, what) cuda_check_solver((be), (call), __FILE__, __LINE__, (what))
tg_status cuda_check_solver(const tg_backend *be, cusolverStatus_t error, const char *file,
                            int line, const char *what);

/* Blocks of `threads` for n items, each thread taking several when there are many: kernels loop
 * with a stride of the whole grid. At least 1. */
static inline unsigned cuda_blocks(const tg_backend *be, int64_t n, int threads) {
    const int64_t wanted = (n + threads - 1) / threads;
    const int64_t most = (int64_t)cuda_state_of(be)->processors * (2048 / threads) * 4;
    return (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/* Each file fills the slots it has. */
void cuda_fill_device(tg_backend_ops *ops);      /* device.cu: life, memory, transfers */
void cuda_fill_stream(tg_backend_ops *ops);      /* stream.cu: events, copy stream, graphs */
void cuda_fill_elementwise(tg_backend_ops *ops); /* elementwise.cu */
void cuda_fill_quantize(tg_backend_ops *ops);    /* quantize.cu */
void cuda_fill_reduce(tg_backend_ops *ops);      /* reduce.cu: dot, norms, slice_norms, counts */
void cuda_fill_columns(tg_backend_ops *ops);     /* columns.cu */
void cuda_fill_random(tg_backend_ops *ops);      /* random.cu */
void cuda_fill_index(tg_backend_ops *ops);       /* compress/index_set.cu, top_k.cu */
void cuda_fill_adam(tg_backend_ops *ops);        /* optim/adam.cu */
void cuda_fill_dense(tg_backend_ops *ops);       /* linalg/ */
void cuda_fill_compress(tg_backend_ops *ops);    /* compress/compress.cu, expand.cu */
void cuda_fill_fft(tg_backend_ops *ops);         /* fft/fft.cu */
void cuda_fill_nn(tg_backend_ops *ops);          /* nn/ */
void cuda_fill_flow(tg_backend_ops *ops);        /* pde/vorticity.cu */

size_t cuda_compress_workspace(tg_backend *be, const tg_multimode *modes); /* compress.cu */

#endif
