/* The last two modes of a complex tensor in one pass each way, where products are rounded to TF32.
 *
 * One by one these modes are bound by bytes: the tensor is read, a little less of it written, read
 * and written again, and the update is one more pass. Here a block takes the planes (d2, d3) of a
 * few leading indices into shared memory and both products follow there: towards the core on Hopper
 * GPUs (sm90/contract_planes.cu), and away from it, up to the update itself, where the factors of
 * both modes fit into shared memory (last_two_modes_resident.cu). See compress.cuh for the rest of
 * the chain. */
#ifndef TG_BACKEND_CUDA_COMPRESS_LAST_TWO_MODES_CUH
#define TG_BACKEND_CUDA_COMPRESS_LAST_TWO_MODES_CUH

#include "backend/cuda/core/cuda.cuh"

/* Sizes of a pass; none where tiles == 0. */
struct cuda_planes {
    int tiles;  /* of 8 columns, in which the last rank lies: 3 or 6 */
    int d2, d3; /* of a plane */
    int r2, r3; /* what it becomes: (part, r2, right) */
    int right;
    int rows;   /* d2, filled up to a multiple of 16 */
    int64_t at; /* of the factors' fragments in the workspace, in reals */
};

enum {
    PLANES_ROWS = 128, /* of a plane at most */
    PLANES_D3 = 68     /* at most */
};

/* The planes of a network with 64 x 64 modes and a last rank of 21 to 24: kernels made for them
 * alone have these sizes as constants. */
enum { USUAL_D2 = 64, USUAL_D3 = 33, USUAL_RIGHT = 24 };
static inline bool are_usual(const cuda_planes &s) {
    return s.tiles == 3 && s.d2 == USUAL_D2 && s.d3 == USUAL_D3 && s.right == USUAL_RIGHT;
}

#endif
