/* The neural-operator slots, gathered from their files. */
#include "backend/cuda/nn/neighbours.cuh"
#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/sm90/block.cuh"

void cuda_fill_nn(tg_backend_ops *ops) {
    cuda_fill_nn_pointwise(ops);
    cuda_fill_nn_skip(ops);
    cuda_fill_nn_mlp(ops);
    cuda_fill_nn_norm(ops);
    cuda_fill_nn_spectral(ops);
    cuda_fill_nn_loss(ops);
    cuda_fill_nn_neighbours(ops);
    cuda_fill_nn_gno(ops);
    ops->block_workspace = cuda_block_workspace;
    ops->block_forward = cuda_block_forward;
    ops->block_back_workspace = cuda_block_back_workspace;
    ops->block_backward = cuda_block_backward;
}
