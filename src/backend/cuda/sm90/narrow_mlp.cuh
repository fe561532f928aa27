/* MLPs that are narrow at one end, on Hopper GPUs in TF32: from C channels to one, as projections
 * are, or from MAX_INPUT_CHANNELS channels to C, as liftings are; C is 64 or 128. The hidden layer
 * never leaves the chip. One large matrix connects it to the C channels: M (hidden, C), which is w1
 * of a projection, or the transpose of w2 of a lifting.
 *
 *                          hidden layer      products with M, per pixel       and
 *   projection, forward    P = M x + b1      1                                y = w2 gelu(P)
 *               dx         the same          2: dx = M^T dP                   dP = w2 dy gelu'(P)
 *               weights    the same          2: dM = dP x^T                   sums for b1 and w2
 *   lifting,    forward    w1 x + b1         1: y = M^T gelu(P)
 *               weights    the same          2: M dy, dM = gelu(P) dy^T       sums for b1 and w1
 *
 * Two ways through memory (128 -> 512 -> 1, 2 x 1024 x 1024 pixels: a product is 275 GF or 0.65 ms,
 * GELU takes about 0.6 ms, reading x once 0.25 ms):
 *  - narrow_mlp_stream.cu: a warpgroup keeps 64 pixels in registers for all chunks of the hidden
 *    layer, and M streams through shared memory: 256 KB per direction and 128 pixels, or 32 bytes
 *    per cycle and multiprocessor. L2 supplies half of it, since two thread blocks share what they
 *    load.
 *  - narrow_mlp_weights.cu: a thread block has 128 hidden channels, whose gradients stay in its
 *    registers, and pixels stream through shared memory: read by hidden / 128 blocks at about the
 *    same time, from memory once.
 * Computing P twice in backward costs less than storing what does not fit in one kernel. */
#ifndef TG_BACKEND_CUDA_SM90_NARROW_MLP_CUH
#define TG_BACKEND_CUDA_SM90_NARROW_MLP_CUH

#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/pipeline.cuh"
#include "backend/cuda/tile/warpgroup.cuh"

enum {
    CHUNK = 64,             /* hidden channels taken at once by a warpgroup */
    MAX_INPUT_CHANNELS = 3, /* channels into a lifting at most */
    NARROW_HIDDEN = 1024    /* hidden channels at most, in multiples of two chunks */
};

/* Arrays are (batch, channels, pixels), pixels a multiple of WG_PIXELS. */
struct narrow_task {
    int batch, hidden;
    int input_channels; /* channels into a lifting */
    int64_t pixels;
    const float *to_hidden, *to_wide; /* pieces of M, see piece_of */
    const float *w1, *b1, *w2, *b2, *gate;
    float alpha, beta;
    const float *x, *add, *dy; /* as tg_mlp has them */
    float *y, *activated, *dx;
    float *dm;      /* partial sums: (parts, hidden, C) of a projection, (parts, C, hidden) */
    float *db1;     /* (parts, hidden) */
    float *dnarrow; /* (parts, hidden): w2 of a projection; (parts, hidden, input_channels): w1 */
    float *db2;     /* (parts): of a projection; (parts, groups, C) */
};

__device__ inline int tiles_of(const narrow_task &t) {
    return t.batch * (int)(t.pixels / WG_PIXELS);
}

/* Index of a thread's two pixels in an array of `channels`, at the first channel. */
__device__ inline int64_t pixels_at(const narrow_task &t, int tile, int channels) {
    const int per_sample = (int)(t.pixels / WG_PIXELS), sample = tile / per_sample;
    return (int64_t)sample * channels * t.pixels +
           (int64_t)(tile - sample * per_sample) * WG_PIXELS + pixel_of();
}

__device__ inline float2 load_two(const float *from) {
    return *reinterpret_cast<const float2 *>(from);
}

/* A piece of M: a chunk's numbers, stored as the right factor of a product in shared memory. */
template <int C> constexpr int PIECE_BYTES = CHUNK *C *(int)sizeof(float);

/* ---- the hidden layer's small weights in shared memory ---- */

/* b1 and w2 of two neighbouring hidden channels, for a projection. */
__device__ inline void put_pair(const narrow_task &t, int h, int i, float4 *small) {
    float *to = reinterpret_cast<float *>(small + i / 2) + i % 2;
    to[0] = t.b1[h];
    to[2] = t.w2[h];
}
/* w1 and b1 of a hidden channel, for a lifting. */
__device__ inline void put_row(const narrow_task &t, int h, int i, float4 *small) {
    float w[MAX_INPUT_CHANNELS];
    for (int c = 0; c < MAX_INPUT_CHANNELS; c++) {
        w[c] = c < t.input_channels ? t.w1[h * t.input_channels + c] : 0.0f;
    }
    small[i] = {w[0], w[1], w[2], t.b1[h]};
}
/* A thread's two pixels of all input channels of a lifting, the first of them at `at`. */
__device__ inline void load_inputs_at(const narrow_task &t, int64_t at,
                                      float2 (&x)[MAX_INPUT_CHANNELS]) {
#pragma unroll
    for (int c = 0; c < MAX_INPUT_CHANNELS; c++) {
        x[c] = c < t.input_channels ? load_two(t.x + at + c * t.pixels) : float2{0.0f, 0.0f};
    }
}
__device__ inline void load_inputs(const narrow_task &t, int tile,
                                   float2 (&x)[MAX_INPUT_CHANNELS]) {
    load_inputs_at(t, pixels_at(t, tile, t.input_channels), x);
}
__device__ inline float lifted(float4 row, float x0, float x1, float x2) {
    return fmaf(row.x, x0, fmaf(row.y, x1, fmaf(row.z, x2, row.w)));
}

/* ---- launches ---- */

typedef enum narrow_pass { NARROW_FORWARD, NARROW_DX, NARROW_LIFT } narrow_pass;

/* `channels` is C. */
tg_status narrow_stream(tg_backend *be, int64_t channels, narrow_pass pass, const narrow_task &t);
/* `parts` blocks for each group of two chunks. */
tg_status narrow_weights(tg_backend *be, int64_t channels, bool lifts, int parts,
                         const narrow_task &t);

#endif
