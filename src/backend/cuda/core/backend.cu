/* Table of the CUDA backend.
 *
 * Starts empty, unlike the cpu backend, which starts from ref: ref's loops run on the host and
 * cannot read device pointers. */
#include "backend/cuda/nn/nn.cuh"

tg_status cuda_check(const tg_backend *be, cudaError_t error, const char *file, int line,
                     const char *what) {
    if (error == cudaSuccess) {
        return TG_OK;
    }
    cudaGetLastError(); /* clear the error, so that the next check does not report it again */
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

bool cuda_workspace(tg_backend *be, const tg_query *query, size_t *bytes) {
    if (query->block) {
        return cuda_block_workspace(be, query->block, bytes);
    }
    if (query->block_back) {
        return cuda_block_back_workspace(be, query->block_back, bytes);
    }
    *bytes = query->compress ? cuda_compress_workspace(be, query->compress)
             : query->skip   ? cuda_skip_workspace(be, query->skip)
             : query->mlp    ? cuda_mlp_workspace(be, query->mlp)
             : query->gno    ? cuda_gno_workspace(query->gno)
             : query->neighbours
                 ? cuda_neighbours_bytes(query->neighbours->points, query->neighbours->queries)
                 : 0;
    return query->two_modes ? cuda_two_modes_supports(be, query->two_modes)
           : query->mapped  ? cuda_mapped_supports(be, query->mapped)
           : query->mlp && query->mlp->x_quantized
               ? cuda_mlp_accepts_quantized_input(be, query->mlp)
               : true;
}

/* The only exported symbol of the backend, for tests (cmake/tgrad.map hides it from users). */
extern "C" __attribute__((visibility("default"))) void tg_backend_fill_cuda(tg_backend_ops *ops) {
    *ops = tg_backend_ops();
    ops->name = "cuda";
    ops->summary = "NVIDIA GPU: cuBLAS, cuSOLVER and own kernels";
    ops->place = TG_DEVICE;
    ops->stream = &cuda_stream_ops;
#define FILL(name) ops->name = cuda_##name;
    CUDA_SLOTS(FILL)
#undef FILL
}
