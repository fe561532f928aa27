/* What every file of the CUDA backend shares: the C headers of the house, the state behind
 * be->state, and the one way a CUDA call is checked. CUDA headers are seen in this folder only. */
#ifndef TG_BACKEND_CUDA_CUDA_CUH
#define TG_BACKEND_CUDA_CUDA_CUH

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include "backend/backend.h"
}

/* One device and one stream: work runs in the order of the calls. */
struct cuda_state {
    int device;
    cudaStream_t stream;
    tg_mem_device memory; /* how the ledger asks this device for memory */
};

static inline cuda_state *cuda_state_of(const tg_backend *be) {
    return static_cast<cuda_state *>(be->state);
}

/* TG_OK, or TG_E_BACKEND with a sentence made of what was tried and what CUDA says to it. */
#define CUDA_CHECK(be, call, what) cuda_check((be), (call), __FILE__, __LINE__, (what))
tg_status cuda_check(const tg_backend *be, cudaError_t error, const char *file, int line,
                     const char *what);

/* device.cu: the slots of life, memory and transfer. */
void cuda_fill_device(tg_backend_ops *ops);

#endif
