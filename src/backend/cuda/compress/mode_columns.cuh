/* Product with a factor along a leading mode, where products are rounded to TF32: the arguments of
 * its two kernels (mode_columns.cu, and sm90/mode_columns.cu for Hopper GPUs). */
#ifndef TG_BACKEND_CUDA_COMPRESS_MODE_COLUMNS_CUH
#define TG_BACKEND_CUDA_COMPRESS_MODE_COLUMNS_CUH

#include "backend/cuda/compress/factor_fragments.cuh"

/* Whether the core, with interleaved parts, is the input or the output; CORE_BOTH: the input is a
 * tensor in that layout and the output is the core. */
enum core_side { CORE_NOWHERE, CORE_IN, CORE_OUT, CORE_BOTH };

struct mode_call {
    factor_reader u;
    bool forward;               /* conj(U)^T, else U */
    bool chained, apart, split; /* as in cuda_plan */
    int summed, made;           /* count of numbers: dim and rank, or rank and dim */
    int64_t matrices;
    int64_t n;              /* columns of a matrix */
    struct {                /* not used by the Hopper kernel */
        const float4 *left; /* fragments of U */
        int steps;          /* of 4 numbers that are summed, rounded up */
        int64_t per, all;   /* tiles: of a matrix, and of all of them */
    } tiles;
    const float *in; /* distances in reals between matrices, numbers and parts: in_matrix,
                        in_number, in_part */
    float *out;
    const uint32_t *half_in; /* the input in f16 instead, (matrix, number, n).. */
    uint32_t *half_out;      /* ..and the output; NULL: in f32 */
    int64_t in_matrix, in_number, in_part;
    int64_t out_matrix, out_number, out_part;
    number<float, 2> *core;             /* replaces in or out: rows of.. */
    int64_t row;                        /* ..this many entries */
    const number<float, 2> *source;     /* the core that is read, or the tensor */
    int64_t source_matrix, core_matrix; /* entries of a matrix, if there are several */
    int block, padded;                  /* of `padded` columns `block` belong to the core */
    bool whole, wide;                   /* the core is aligned to its entries, to two of them */
    float scale, beta;                  /* core = beta core + scale output */
};

/* Index of column c of all matrices, which are `step` entries apart, in a row of the core; -1: not
 * in the core. */
static __device__ inline int in_core(const mode_call &s, int c, int64_t step) {
    const int matrix = c / (int)s.n, within = c - matrix * (int)s.n;
    const int block = within / s.padded, column = within - block * s.padded;
    return matrix < s.matrices && column < s.block ? (int)(matrix * step) + block * s.block + column
                                                   : -1;
}

/* Two neighbours of a row of the core. */
static __device__ inline void blend_core(const mode_call &s, number<float, 2> *row, const int *at,
                                         float2 re, float2 im) {
    if (s.wide && s.beta == 0.0f) {
        if (at[0] >= 0) {
            __stcs(reinterpret_cast<float4 *>(row + at[0]),
                   make_float4(s.scale * re.x, s.scale * im.x, s.scale * re.y, s.scale * im.y));
        }
        return;
    }
    if (at[0] >= 0) {
        blend(row + at[0], s.whole, s.beta, s.scale, number<float, 2>{{re.x, im.x}});
    }
    if (at[1] >= 0) {
        blend(row + at[1], s.whole, s.beta, s.scale, number<float, 2>{{re.y, im.y}});
    }
}

/* sm90/mode_columns.cu: whether this GPU supports the kernel and has room for a factor of at most
 * 128 by 128 numbers; and the call. */
bool cuda_sm90_mode_fits(const tg_backend *be, const cuda_factor *factor, bool split);
tg_status cuda_sm90_mode(tg_backend *be, const mode_call *call, core_side side);

/* sm90/half_columns.cu: the expansion in f16, from half_in or from the core in f32, to half_out;
 * columns are a multiple of 4. */
tg_status cuda_sm90_half_mode(tg_backend *be, const mode_call *call, bool core);

/* sm90/core_adam.cu: projects mode 0, applies Adam to the core and to the kept entries, and expands
 * mode 0 to its input. */
tg_status cuda_sm90_core_adam(tg_backend *be, const mode_call *call, const tg_adam *adam);

#endif
