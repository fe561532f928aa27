/* Fourier transforms along one dimension: what the plan (fft.cu) and the kernels (lines.cu)
 * say to each other.
 *
 * Seen from one of its dimensions an array is (outer, N, inner) on the side of the grid and
 * (outer, K, inner) on the side of the kept frequencies; a line is what lies along the middle. */
#ifndef TG_BACKEND_CUDA_FFT_FFT_CUH
#define TG_BACKEND_CUDA_FFT_FFT_CUH

#include "backend/cuda/core/cuda.cuh"

/* Element (o, i, c) of one side is number o * outer + i * step + c of data. Numbers are complex,
 * but real on the grid's side of real data. */
struct fft_side {
    void *data;
    tg_storage store;
    int64_t outer, step;
};

/* One dimension transformed, from the grid to the kept frequencies or back. Frequencies count with
 * factor `edge` where a half spectrum stands for itself alone, else with `interior`. */
struct fft_pass {
    bool inverse;
    int64_t outer, inner;
    fft_side grid, kept;
    double edge, interior;
};

/* A divisor of numbers below 2^31 / value. */
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
    FFT_PAD = 16 /* every so many points a slot is left out, against bank conflicts */
};

/* How lines of n points are transformed by a block of threads, `tile` lines at once. */
struct fft_lines {
    bool wide;   /* f64 */
    bool real;   /* lines are pairs of real rows */
    bool turned; /* lines of a tile are neighbours in memory (columns), not their points (rows) */
    int n, kept, first; /* first: as an index, 0 .. n-1 */
    int parts, m;       /* n = parts * m: `parts` transforms of m points, combined at kept ones */
    int stages;
    fft_stage stage[FFT_MAX_STAGES]; /* of m */
    int tile;
    int part_pitch, line_pitch; /* in shared memory */
    fft_divisor by_kept, by_m, by_parts, by_tile;
    fft_divisor by_first, by_last; /* n over the first and the last radix */
    size_t shared_bytes;
    int threads;
    const void *roots; /* (n) complex, of the device: e^{-2 pi i j / n} */
};

/* Lays out lines; false if n is not for this way: a prime factor above 7 (one up to 13 is
 * possible), or too long. `inner` decides on columns. Roots are the caller's. */
bool cuda_fft_lines_layout(bool wide, bool real, int64_t n, int64_t kept, int64_t first,
                           int64_t inner, fft_lines *out);

/* Before the first run. */
tg_status cuda_fft_lines_prepare(tg_backend *be, bool wide);
tg_status cuda_fft_lines_run(tg_backend *be, const fft_lines *lines, const fft_pass *pass);

/* The same for lengths and windows of two_step.cu; false, and nothing has been run, for others. */
bool cuda_fft_two_step_run(tg_backend *be, const fft_lines *lines, const fft_pass *pass,
                           tg_status *status);

/* ---- transforms whose last dimension somebody else takes ---- */

/* What lies between the last dimension and those before it: rows of `kept` complex numbers in f32,
 * `pitch` apart, `rows` of them for an image; a row becomes n real numbers. */
struct fft_rows {
    int64_t n, kept, pitch, rows;
};

/* False if a plan of this kind has no such rows: one dimension, complex or f64. */
bool cuda_fft_rows_of(const tg_fft_desc *desc, fft_rows *out);
/* The inverse along all dimensions but the last, to (count, rows, pitch). */
tg_status cuda_fft_inverse_to_rows(tg_backend *be, const tg_fft_plan *plan, int64_t count,
                                   const void *spectrum, void *rows);
/* Factors of whoever needs them with the last dimension, made once for a plan and freed with it:
 * (bytes) on the device, filled by `fill` on the host. */
tg_status cuda_fft_attach(tg_backend *be, tg_fft_plan *plan, size_t bytes,
                          void (*fill)(const tg_fft_desc *desc, void *out));
const void *cuda_fft_attached(const tg_fft_plan *plan);

#endif
