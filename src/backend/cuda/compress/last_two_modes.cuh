/* The last two modes of a complex tensor in one pass per direction, where products are rounded to
 * TF32.
 *
 * Taken one by one these modes are memory-bound: the tensor is read, slightly less is written, read
 * and written again, and the expansion needs one more pass for the update. Here a block loads the
 * planes (d2, d3) of a few leading indices into shared memory and computes both products there; the
 * expansion also updates the weight. See compress.cuh for the rest of the chain.
 *
 * The factors are stored as tensor core fragments (tile/instructions.cuh) and read through L1. */
#ifndef TG_BACKEND_CUDA_COMPRESS_LAST_TWO_MODES_CUH
#define TG_BACKEND_CUDA_COMPRESS_LAST_TWO_MODES_CUH

#include "backend/cuda/core/cuda.cuh"

/* Sizes of a pass; unsupported if tiles == 0. */
struct plane_pass {
    int tiles;  /* of 8 columns for the last rank: 3 or 6 */
    int d2, d3; /* of a plane */
    int r2, r3; /* of the projected plane: (part, r2, right) */
    int right;
    int rows; /* d2, rounded up to a multiple of 16 */
    int wide; /* reals of a row, 2 d3 rounded up to 8 modulo 16, so that fragments of 8 rows are
               * in different banks */
    int planes_at_once; /* planes per block */
    int64_t at;         /* of the fragments in the workspace, in reals */
};

enum {
    PLANES_ROWS = 128, /* of all planes of a block */
    PLANES_D3 = 68     /* at most: `wide` is two halves */
};

/* The planes of a network with 64 x 64 modes and a last rank of 21 to 24, for which kernels are
 * compiled with these sizes as constants. */
enum { COMMON_D2 = 64, COMMON_D3 = 33, COMMON_RIGHT = 24 };
static inline bool has_common_sizes(const plane_pass &s) {
    return s.tiles == 3 && s.d2 == COMMON_D2 && s.d3 == COMMON_D3 && s.right == COMMON_RIGHT;
}

/* Tiles of half a row of a plane, for `tiles` of the last rank. */
static constexpr __host__ __device__ int half_tiles(int tiles) {
    return tiles == 3 ? 5 : 9;
}

/* Reals from row to row of the first product, padded like `wide`. */
static constexpr __host__ __device__ int stride_of_tiles(int tiles) {
    return 16 * tiles + 8;
}

/* Whether this pass supports these sizes, and its own sizes except `at`. */
plane_pass cuda_planes_of(int64_t d2, int64_t r2, int64_t d3, int64_t r3, int64_t right);

/* Reals of the fragments; does not decrease as ranks grow. */
int64_t cuda_planes_size(const plane_pass *planes);

#endif
