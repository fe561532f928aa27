/* The neural-operator slots, gathered from their files. */
#include "backend/cuda/nn/neighbours.cuh"
#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/sm90/block.cuh"

static bool cuda_workspace(tg_backend *be, const tg_query *query, size_t *bytes) {
    if (query->block) {
        return cuda_block_workspace(be, query->block, bytes);
    }
    if (query->block_back) {
        return cuda_block_back_workspace(be, query->block_back, bytes);
    }
    *bytes = query->compress ? cuda_compress_workspace(be, query->compress)
             : query->skip   ? cuda_skip_workspace(be, query->skip, query->skip->backward)
             : query->mlp    ? cuda_mlp_workspace(be, query->mlp, query->mlp->backward)
             : query->gno    ? cuda_gno_workspace(be, query->gno, query->gno->backward)
             : query->neighbours
                 ? cuda_neighbours_bytes(be, query->neighbours->points, query->neighbours->queries)
                 : 0;
    return !query->mlp || !query->mlp->x_quantized ||
           cuda_mlp_accepts_quantized_input(be, query->mlp);
}

void cuda_fill_nn(tg_backend_ops *ops) {
    cuda_fill_nn_pointwise(ops);
    cuda_fill_nn_skip(ops);
    cuda_fill_nn_mlp(ops);
    cuda_fill_nn_norm(ops);
    cuda_fill_nn_spectral(ops);
    cuda_fill_nn_loss(ops);
    cuda_fill_nn_neighbours(ops);
    cuda_fill_nn_gno(ops);
    ops->workspace = cuda_workspace;
    ops->block_forward = cuda_block_forward;
    ops->block_backward = cuda_block_backward;
}
