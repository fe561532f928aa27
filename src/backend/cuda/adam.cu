#include "backend/cuda/element.cuh"

void cuda_fill_adam(tg_backend_ops *ops) {
    (void)ops;
}
