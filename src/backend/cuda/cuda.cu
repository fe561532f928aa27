/* Table of the CUDA backend.
 *
 * It starts empty, not from ref as the cpu backend does: ref's loops run on the host, and the
 * pointers here are those of a device. Slots that no file of this folder fills are NULL, and as
 * long as there are any the probe reports the backend as not available, so that none is called. */
#include "backend/cuda/cuda.cuh"

tg_status cuda_check(const tg_backend *be, cudaError_t error, const char *file, int line,
                     const char *what) {
    if (error == cudaSuccess) {
        return TG_OK;
    }
    cudaGetLastError(); /* a failure that is dealt with here must not show up in the next check */
    return tg_fail_at(be->ctx, TG_E_BACKEND, file, line, "%s failed: %s (%s)", what,
                      cudaGetErrorString(error), cudaGetErrorName(error));
}

extern "C" void tg_backend_fill_cuda(tg_backend_ops *ops) {
    *ops = tg_backend_ops();
    ops->name = "cuda";
    ops->summary = "NVIDIA GPU: cuBLAS, cuFFT, cuSOLVER and own kernels";
    cuda_fill_device(ops);
}
