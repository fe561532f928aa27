/* Table of the CUDA backend.
 *
 * It starts empty, not from ref as the cpu backend does: ref's loops run on the host, and the
 * pointers here are those of a device. The files of this folder fill every slot. */
#include "backend/cuda/core/libraries.cuh"

tg_status cuda_check(const tg_backend *be, cudaError_t error, const char *file, int line,
                     const char *what) {
    if (error == cudaSuccess) {
        return TG_OK;
    }
    cudaGetLastError(); /* a failure that is dealt with here must not show up in the next check */
    return tg_fail_at(be->ctx, TG_E_BACKEND, file, line, "%s failed: %s (%s)", what,
                      cudaGetErrorString(error), cudaGetErrorName(error));
}

tg_status cuda_check_blas(const tg_backend *be, cublasStatus_t error, const char *file, int line,
                          const char *what) {
    if (error == CUBLAS_STATUS_SUCCESS) {
        return TG_OK;
    }
    const tg_status status = error == CUBLAS_STATUS_ALLOC_FAILED ? TG_E_MEMORY : TG_E_BACKEND;
    return tg_fail_at(be->ctx, status, file, line, "%s failed: %s (%s)", what,
                      cuda_libraries.cublasGetStatusString(error),
                      cuda_libraries.cublasGetStatusName(error));
}

tg_status cuda_check_solver(const tg_backend *be, cusolverStatus_t error, const char *file,
                            int line, const char *what) {
    if (error == CUSOLVER_STATUS_SUCCESS) {
        return TG_OK;
    }
    const tg_status status = error == CUSOLVER_STATUS_ALLOC_FAILED ? TG_E_MEMORY : TG_E_BACKEND;
    return tg_fail_at(be->ctx, status, file, line, "%s failed: cuSOLVER status %d", what,
                      (int)error);
}

/* All of the backend that is visible outside: to tests (cmake/tgrad.map hides it from users). */
extern "C" __attribute__((visibility("default"))) void tg_backend_fill_cuda(tg_backend_ops *ops) {
    *ops = tg_backend_ops();
    ops->name = "cuda";
    ops->summary = "NVIDIA GPU: cuBLAS, cuSOLVER and own kernels";
    ops->place = TG_DEVICE;
    cuda_fill_device(ops);
    cuda_fill_stream(ops);
    cuda_fill_elementwise(ops);
    cuda_fill_quantize(ops);
    cuda_fill_reduce(ops);
    cuda_fill_columns(ops);
    cuda_fill_random(ops);
    cuda_fill_index(ops);
    cuda_fill_adam(ops);
    cuda_fill_dense(ops);
    cuda_fill_compress(ops);
    cuda_fill_fft(ops);
    cuda_fill_nn(ops);
    cuda_fill_flow(ops);
}
