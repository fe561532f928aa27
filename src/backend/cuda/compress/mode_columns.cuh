/* A mode in front of others on Hopper GPUs: what its kernels (sm90/) are told by mode_columns.cu.
 */
#ifndef TG_BACKEND_CUDA_COMPRESS_MODE_COLUMNS_CUH
#define TG_BACKEND_CUDA_COMPRESS_MODE_COLUMNS_CUH

#include "backend/cuda/compress/factor_fragments.cuh"

/* Whether the core, whose parts lie together, is what comes in or what goes out; or a tensor that
 * lies so comes in, and the core goes out. */
enum core_side { CORE_NOWHERE, CORE_IN, CORE_OUT, CORE_BOTH };

struct mode_call {
    factor_reader u;
    bool forward;               /* conj(U)^T, else U */
    bool chained, apart, split; /* as in cuda_plan */
    int summed, made;           /* numbers: dim and rank, or rank and dim */
    int64_t matrices;
    int64_t n;       /* columns of a matrix */
    const float *in; /* rows of matrices, numbers and parts are so many reals apart */
    float *out;
    const uint32_t *half_in; /* in f16 instead, (matrix, number, n).. */
    uint32_t *half_out;      /* ..and what goes out; NULL: in f32 */
    int64_t in_matrix, in_number, in_part;
    int64_t out_matrix, out_number, out_part;
    number<float, 2> *core;             /* instead of one of them, rows of.. */
    int64_t row;                        /* ..this many entries */
    const number<float, 2> *source;     /* the core that comes in, or the tensor */
    int64_t source_matrix, core_matrix; /* entries of a matrix, where there are several */
    int block, padded;                  /* of `padded` columns `block` belong to the core */
    bool whole, wide;                   /* how it is aligned: to its entries, to two of them */
    float scale, beta;                  /* core = beta core + scale of what comes out */
};

/* Where column c of all matrices, which are `step` entries apart, lies in a row of the core;
 * negative: nowhere. */
static __device__ inline int in_core(const mode_call &s, int c, int64_t step) {
    const int matrix = c / (int)s.n, within = c - matrix * (int)s.n;
    const int block = within / s.padded, behind = within - block * s.padded;
    return matrix < s.matrices && behind < s.block ? (int)(matrix * step) + block * s.block + behind
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

/* sm90/mode_columns.cu: whether this GPU has the kernel and room for a factor of at most 128 by 128
 * numbers; and the call. */
bool cuda_sm90_mode_fits(const tg_backend *be, const cuda_factor *factor, bool split);
tg_status cuda_sm90_mode(tg_backend *be, const mode_call *call, core_side side);

/* sm90/half_columns.cu: the same on the way back in f16, from half_in, or from the core in f32, to
 * half_out; columns are a multiple of 4. */
tg_status cuda_sm90_half_mode(tg_backend *be, const mode_call *call, bool core);

#endif
