/* Fourier transforms along one dimension: interface between the plan (fft.cu) and the kernels
 * (lines.cu).
 *
 * For a transform along one dimension, an array is (outer, N, inner) on the grid side and (outer,
 * K, inner) on the side of the kept frequencies; a line runs along the middle index. */
#ifndef TG_BACKEND_CUDA_FFT_FFT_CUH
#define TG_BACKEND_CUDA_FFT_FFT_CUH

#include "backend/cuda/core/cuda.cuh"

/* Element (o, i, c) of one side is number o * outer + i * step + c of data. Numbers are complex,
 * except real on the grid side of real data. */
struct fft_side {
    void *data;
    tg_storage store;
    int64_t outer, step;
};

/* One dimension transformed, from the grid to the kept frequencies or back. Frequencies of a half
 * spectrum are scaled by `edge` if they are their own mirror image, else by `interior`. */
struct fft_pass {
    bool inverse;
    int64_t outer, inner;
    fft_side grid, kept;
    double edge, interior;
};

/* Division by a constant, for numbers below 2^31 / value. */
struct fft_divisor {
    uint32_t value, magic;
};

/* One of the passes over lines in shared memory: m / radix butterflies per part, whose inputs are
 * transforms of `span` points each. */
struct fft_stage {
    int radix, span;
    fft_divisor butterflies, spans;
};

enum {
    FFT_MAX_STAGES = 16,
    FFT_MAX_THREADS = 512,      /* of a block */
    FFT_MAX_SHARED = 160 << 10, /* bytes of a block; an A100 has 163 KiB */
    FFT_PAD = 16 /* one slot is skipped after this many points, to avoid bank conflicts */
};

/* How a block transforms lines of n points, `tile` lines at once. */
struct fft_lines {
    bool wide;       /* f64 */
    bool real;       /* lines are pairs of real rows */
    bool by_columns; /* columns: adjacent lines are contiguous in memory; else rows: points are */
    int n, kept, first; /* first: as an index, 0 .. n-1 */
    int parts, m;       /* n = parts * m: `parts` transforms of m points, combined at kept ones */
    int stages;
    fft_stage stage[FFT_MAX_STAGES]; /* of m */
    int tile;
    int part_pitch, line_pitch; /* in shared memory */
    fft_divisor by_kept, by_m, by_parts, by_tile;
    fft_divisor by_first, by_last; /* n / first radix, n / last radix */
    size_t shared_bytes;
    int threads;
    const void *roots; /* (n) complex, device memory: e^{-2 pi i j / n} */
};

/* Plans lines; false if n is not supported: a prime factor above 7 (one up to 13 is allowed), or
 * too long. `inner` selects columns. The caller provides the roots. */
bool cuda_fft_lines_layout(bool wide, bool real, int64_t n, int64_t kept, int64_t first,
                           int64_t inner, fft_lines *out);

tg_status cuda_fft_lines_run(tg_backend *be, const fft_lines *lines, const fft_pass *pass);

/* The same for lengths and windows that two_step.cu supports; false without running anything for
 * others. */
bool cuda_fft_two_step_run(tg_backend *be, const fft_lines *lines, const fft_pass *pass,
                           tg_status *status);

/* ---- transforms without the last dimension ---- */

/* The array between the last dimension and those before it: rows of `kept` complex numbers in f32,
 * `pitch` apart, `rows` of them for an image; a row becomes n real numbers. */
struct fft_rows {
    int64_t n, kept, pitch, rows;
};

/* False if a plan of this kind has no such rows: one dimension, complex or f64. */
bool cuda_fft_rows_of(const tg_fft_desc *desc, fft_rows *out);
/* The inverse along all dimensions but the last, to (count, rows, pitch). */
tg_status cuda_fft_inverse_to_rows(tg_backend *be, const tg_fft_plan *plan, int64_t count,
                                   const void *spectrum, void *rows);
/* Factors for a caller that does the last dimension itself: (bytes) on the device, filled once per
 * plan by `fill` on the host and freed with the plan. */
tg_status cuda_fft_attach(tg_backend *be, tg_fft_plan *plan, size_t bytes,
                          void (*fill)(const tg_fft_desc *desc, void *out));
const void *cuda_fft_attached(const tg_fft_plan *plan);
/* sm90/block.cu: attaches those of blocks in one kernel, if it supports the transform. */
tg_status cuda_block_prepare(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan *plan);

#endif
