/* Internals of the cpu backend: its state, its serial kernels, and the slots by family.
 *
 * Layers: a slot divides its work into fixed parts (tg_partition) and runs them with OpenMP; a part
 * calls serial kernels through tables. The same source (kernels.inc) is compiled for any CPU, for
 * AVX2 and, in part, for AVX-512; the backend picks a table when it opens. Reductions
 * add the partial results in the order of the parts, so that a thread count fixes the bits. */
#ifndef TG_BACKEND_CPU_CPU_H
#define TG_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "base/system.h"

/* Partial result of one part of a reduction, one cache line each. Padded, not aligned: some are on
 * the stack, which sanitizers align less. */
typedef struct cpu_partial {
    double re, im;
    double max;
    int64_t count;
    char rest[TG_ALIGNMENT - 4 * sizeof(double)];
} cpu_partial;

/* Kernels of one real type, for n reals or `pairs`. See elementwise_kernels.inc. */
typedef struct cpu_reals {
    /* y += alpha x, or y = alpha y if x is NULL. */
    void (*update)(bool pairs, int64_t n, tg_scalar alpha, const void *x, void *y);
    /* Adds the norms of x to `sum`; or only the sum of squares, including NaN and Inf. */
    void (*norms)(bool pairs, int64_t n, const void *x, cpu_partial *sum);
    void (*squares)(bool pairs, int64_t n, const void *x, cpu_partial *sum);
} cpu_reals;

/* Lines transformed at once: FFTW is fastest for four. */
enum { CPU_FFT_LINES = 4 };

/* The largest radix of a pass of our own transforms. */
enum { CPU_FFT_RADIX = 31 };

/* Our transform of CPU_FFT_LINES lines; see fft_lines.c. */
typedef struct cpu_own_lines {
    int64_t points, pitch;
    int64_t n; /* of the passes: the points, or those of the convolution */
    int count; /* of passes */
    int radix[32];
    const void *roots;     /* (n) pairs e^{-2 pi i k / n} */
    const void *chirp;     /* (points) pairs; NULL: passes only */
    const void *convolved; /* (n) pairs */
} cpu_own_lines;

/* Real rows to and from pairs, columns to and from lines; see fft_rows.inc. */
typedef struct cpu_rows_f32 {
    void (*pack)(int64_t n, const float *a, const float *b, float *z);
    void (*unpack)(int64_t n, const float *z, float *a, float *b);
    void (*split)(int64_t n, int64_t kept, const float *z, float *a, float *b);
    void (*join)(int64_t n, int64_t kept, const float *a, const float *b, float *z);
    void (*gather)(int64_t rows, int64_t count, const float *factors, const float *columns,
                   int64_t pitch, float *lines, int64_t line_pitch);
    void (*scatter)(int64_t rows, int64_t count, const float *factors, const float *lines,
                    int64_t line_pitch, float *columns, int64_t pitch);
    float *(*own)(const cpu_own_lines *lines, bool inverse, float *from, float *to);
} cpu_rows_f32;

typedef struct cpu_rows_f64 {
    void (*pack)(int64_t n, const double *a, const double *b, double *z);
    void (*unpack)(int64_t n, const double *z, double *a, double *b);
    void (*split)(int64_t n, int64_t kept, const double *z, double *a, double *b);
    void (*join)(int64_t n, int64_t kept, const double *a, const double *b, double *z);
    void (*gather)(int64_t rows, int64_t count, const double *factors, const double *columns,
                   int64_t pitch, double *lines, int64_t line_pitch);
    void (*scatter)(int64_t rows, int64_t count, const double *factors, const double *lines,
                    int64_t line_pitch, double *columns, int64_t pitch);
    double *(*own)(const cpu_own_lines *lines, bool inverse, double *from, double *to);
} cpu_rows_f64;

/* Distributions of random numbers, see rng.h. */
typedef enum cpu_law { CPU_UNIFORM, CPU_NORMAL, CPU_EXPONENTIAL } cpu_law;

/* ---- Adam (adam_kernels.inc): the part of one thread ---- */

/* The constants of a step, as tg_adam has them; c = 1 - beta. */
typedef struct cpu_adam_step {
    float scale, beta1, c1, beta2, c2, eps;
    float alpha, beta; /* of the weight */
} cpu_adam_step;

/* The arrays of a part; direction and weight may be NULL. */
typedef struct cpu_adam_arrays {
    const float *grad;
    float *m, *v, *direction, *weight;
} cpu_adam_arrays;

/* Neural operators, f32; see nn_kernels.inc. */
typedef struct cpu_nn_kernels {
    /* y = gelu(x + bias); y may be x. |error| <= 1e-6 like all of GELU here. */
    void (*gelu)(int64_t n, float bias, const float *x, float *y);
    /* y = gelu(x + bias), slope = gelu'(x + bias); y or slope may be x. */
    void (*gelu_slope)(int64_t n, float bias, const float *x, float *y, float *slope);
    /* y = act(x), dx = dy act'(x); y may be x, dx may be x or dy. */
    void (*act)(tg_act act, int64_t n, const float *x, float *y);
    void (*act_back)(tg_act act, int64_t n, const float *x, const float *dy, float *dx);
    /* y = beta y + alpha x + bias; beta 0 does not read y. */
    void (*affine)(int64_t n, float beta, float alpha, const float *x, float bias, float *y);
    void (*multiply)(int64_t n, const float *x, float *y); /* y *= x */
    double (*sum)(int64_t n, const float *x);
    double (*dot)(int64_t n, const float *x, const float *y);
} cpu_nn_kernels;

/* AVX2 and AVX-512 give the same bits. */
extern const cpu_nn_kernels cpu_nn_plain, cpu_nn_avx2, cpu_nn_avx512;

/* The serial kernels of one instruction set. */
typedef struct cpu_kernels {
    const char *name;
    /* n reals of a real dtype to and from f32 and f64. */
    void (*load_f32)(tg_dtype real, int64_t n, const void *src, float *dst);
    void (*load_f64)(tg_dtype real, int64_t n, const void *src, double *dst);
    void (*store_f32)(tg_dtype real, int64_t n, const float *src, void *dst);
    /* keys[i] = bits of |x_i|^2 as a double, NaN above Inf: ascending with the modulus, < 2^63. */
    void (*modulus_keys)(tg_dtype dtype, int64_t n, const void *x, uint64_t *keys);
    /* keys[i], the modulus key of a weight, becomes a key that descends with the waiting time
     * times[i] / weight: 0 for Inf and NaN, last for 0. */
    void (*waiting_keys)(int64_t n, const double *times, uint64_t *keys);
    /* Bits of up to 64 keys: those above the threshold, and those equal to it. */
    uint64_t (*compare_keys)(int64_t n, const uint64_t *keys, uint64_t threshold, uint64_t *equal);
    int64_t (*popcount)(int64_t words, const uint64_t *x);
    /* Numbers of indices first .. first + n - 1. */
    void (*random_numbers)(cpu_law law, const tg_rng *rng, uint64_t first, int64_t n, double *out);
    /* Stochastic rounding of n floats to 16 bits by numbers first .. of the stream (rng_math.h). */
    void (*round_stored)(tg_storage store, const tg_rng *rng, uint64_t first, int64_t n,
                         const float *src, uint16_t *dst);
    /* Encodes n <= TG_STATE_BLOCK reals of m (second: of v, overwritten by roots); returns the
     * scale. Uses numbers first .. of the stream; rng NULL: to nearest. */
    float (*encode_bytes)(bool second, const tg_rng *rng, uint64_t first, int64_t n, float *from,
                          uint8_t *bytes);
    /* Quantizes one block and returns its scale; and the inverse. See quantize.h. */
    float (*quantize_block)(const float *x, uint8_t *bytes);
    void (*dequantize_block)(float scale, const uint8_t *bytes, float *x);
    cpu_reals f32, f64;
    cpu_rows_f32 rows_f32;
    cpu_rows_f64 rows_f64;
    /* n reals; or n pairs {re, im}, with n reals in v. */
    void (*adam)(const cpu_adam_step *step, bool pairs, int64_t n, cpu_adam_arrays arrays);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_plain;
extern const cpu_kernels cpu_kernels_avx2; /* name NULL if the build has no AVX2 */

/* Scratch of one thread, from open to close. Large enough for a histogram of 2^16 bins and the
 * candidates of a selection; a panel in f64 and one partial Gram matrix; packed spectra and weights
 * of wide one-dimensional networks at all their frequencies. */
#define CPU_SCRATCH ((size_t)1 << 21)

typedef struct cpu_state {
    const cpu_kernels *kernels;
    const cpu_nn_kernels *nn;
    const struct cpu_tile_kernels *tiles;        /* see spectral_product.h */
    const struct cpu_compress_kernels *compress; /* see compress.h */
    const struct cpu_lines_engine *lines;        /* transforms lines, see below */
    cpu_partial *partials;                       /* (threads) */
    char *scratch;                               /* (threads, CPU_SCRATCH) */
    size_t scratch_bytes;
} cpu_state;

static inline cpu_state *cpu_state_of(tg_backend *be) {
    return be->state;
}

static inline void *cpu_scratch_of(tg_backend *be, int part) {
    return cpu_state_of(be)->scratch + (size_t)part * CPU_SCRATCH;
}

/* Number of parts for n units of work, at least `grain` units each. */
static inline int cpu_parts(const tg_backend *be, int64_t n, int64_t grain) {
    int64_t useful = n / grain;
    return useful < 1 ? 1 : (useful < be->threads ? (int)useful : be->threads);
}

/* Threads of a loop over parts: one or all. With a smaller team libgomp ends the other threads and
 * starts new ones for the next team, which takes longer than many a loop. */
static inline int cpu_team(const tg_backend *be, int parts) {
    return parts > 1 ? be->threads : 1;
}

/* At least `bytes` of scratch for one call: that of all threads, or, if it is too small, a block in
 * *taken, which the call frees. */
TG_NODISCARD tg_status cpu_workspace(tg_backend *be, size_t bytes, void **out, void **taken);

/* OpenBLAS uses one thread while any cpu backend is open (we call it from ours). */
TG_NODISCARD tg_status cpu_blas_open(const tg_backend *be);
void cpu_blas_close(void);

/* Rows [i, i + m) and columns [j, j + n) of C of matrix number `batch`. */
typedef struct cpu_tile {
    int64_t batch, i, m, j, n;
} cpu_tile;

static inline bool cpu_is_transposed(tg_op op) {
    return op == TG_OP_T || op == TG_OP_H;
}

/* One tile by a serial call of BLAS; dtype f32, f64, c64 or c128, all sizes below 2^31. */
void cpu_blas_gemm(const tg_gemm *gemm, const cpu_tile *tile);

/* Serial BLAS by dtype f64 or c128, row-major. herk: lower triangle of c (n, n) += a a^H, a (n, k);
 * transposed: += a^H a, a (k, n). gemm_nh: c (m, n) += a b^H, a (m, k), b (n, k); transposed:
 * += a^T conj(b), a (k, m), b (k, n). */
void cpu_herk(tg_dtype dtype, bool transposed, int64_t n, int64_t k, const void *a, int64_t lda,
              void *c, int64_t ldc);
void cpu_gemm_nh(tg_dtype dtype, bool transposed, int64_t m, int64_t n, int64_t k, const void *a,
                 int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc);

/* Serial c (m, n) = alpha op(a) op(b) + beta c in f32, row-major; op may transpose. Called from the
 * threads of a parallel loop, uses the scratch of the calling one. */
void cpu_sgemm(tg_backend *be, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
               float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
               float *c, int64_t ldc);

/* Writes "OpenBLAS 0.3.21 Zen" to text; returns the number of characters. */
int cpu_blas_version(char *text, size_t capacity);

/* ---- The slots: functions cpu_<slot> of the table's types ---- */

/* clang-format off */
#define CPU_SLOTS(SLOT) \
    SLOT(copy) SLOT(fill) SLOT(convert) SLOT(axpy) SLOT(quantize) SLOT(norms) SLOT(gemm) \
    SLOT(gram) SLOT(slice_norms) SLOT(column_squares) SLOT(scale_columns) SLOT(transpose) \
    SLOT(eigh) SLOT(qr) SLOT(fft) SLOT(select) SLOT(bitmap_clear) SLOT(compress) SLOT(expand) \
    SLOT(sample) SLOT(grad_dense) SLOT(update) SLOT(random) SLOT(box_copy) SLOT(grid_embed) \
    SLOT(planes) SLOT(activate) SLOT(add_skip) SLOT(mlp) SLOT(norm) SLOT(spectral_contract) \
    SLOT(loss)
/* Not listed as overrides. */
#define CPU_OTHER_SLOTS(SLOT) \
    SLOT(scratch_need) SLOT(fft_create) SLOT(fft_destroy) SLOT(gno)
/* clang-format on */
#define CPU_SLOT(name) __typeof__(*((tg_backend_ops *)0)->name) cpu_##name;
CPU_SLOTS(CPU_SLOT)
CPU_OTHER_SLOTS(CPU_SLOT)
#undef CPU_SLOT

/* ---- Transforms of contiguous lines, CPU_FFT_LINES at once: the basis of fft.c ----
 *
 * There are two engines: FFTW (fftw.c), if the library is linked to it or the system has it, and
 * ours (fft_lines.c), which is always available. */

/* Lines of n complex numbers. `from` and `to` are the buffers that plans will run on, or have their
 * alignment: (CPU_FFT_LINES, pitch) each, pitch >= room(n). */
typedef struct cpu_lines_desc {
    tg_dtype real; /* f32 or f64 */
    int64_t n;
    int64_t rest; /* lines of an incomplete last group; 0: all groups are full */
    int64_t pitch;
    void *from, *to;
} cpu_lines_desc;

typedef struct cpu_lines_engine {
    /* Capacity of a line in complex numbers. */
    int64_t (*room)(int64_t n);
    tg_status (*create)(tg_backend *be, const cpu_lines_desc *desc, void **plan);
    void (*destroy)(tg_backend *be, void *plan); /* accepts NULL */
    /* Unscaled transforms of `count` lines; returns the buffer of the results, `from` or `to`.
     * Both are overwritten. */
    void *(*run)(const void *plan, bool inverse, int64_t count, void *from, void *to);
} cpu_lines_engine;

/* NULL without FFTW. */
const cpu_lines_engine *cpu_lines_fftw(void);
extern const cpu_lines_engine cpu_lines_own;

/* Writes "FFTW 3.3.10" or "own transforms" to text; returns the number of characters. */
int cpu_lines_version(char *text, size_t capacity);

/* ---- Arrays that may be stored in 16 bits ----
 *
 * f32 kernels access them piece by piece, in place if f32, else converted to a thread's buffer. No
 * f32 copy of a whole array exists. */

/* The address of real number `at`. */
static inline void *cpu_stored_at(tg_storage store, const void *x, int64_t at) {
    const size_t size = store == TG_STORE_FULL ? sizeof(float) : sizeof(uint16_t);
    return (char *)(uintptr_t)x + (size_t)at * size;
}

/* Reals [at, at + n) of x as floats: x itself, or `room`. */
static inline const float *cpu_read(const cpu_kernels *k, tg_storage store, const void *x,
                                    int64_t at, int64_t n, float *room) {
    const void *from = cpu_stored_at(store, x, at);
    if (store == TG_STORE_FULL) {
        return from;
    }
    k->load_f32(tg_stored(TG_F32, store), n, from, room);
    return room;
}

/* Destination of a result for reals [at, ..) of x: x itself, or `room`, from which cpu_write then
 * rounds it. */
static inline float *cpu_result(tg_storage store, void *x, int64_t at, float *room) {
    return store == TG_STORE_FULL ? cpu_stored_at(store, x, at) : room;
}

static inline void cpu_write(const cpu_kernels *k, tg_storage store, int64_t n, const float *room,
                             void *x, int64_t at) {
    if (store != TG_STORE_FULL) {
        k->store_f32(tg_stored(TG_F32, store), n, room, cpu_stored_at(store, x, at));
    }
}

/* The same with stochastic rounding to 16-bit formats by the stream `rounding` (NULL: to nearest).
 */
static inline void cpu_write_rounded(const cpu_kernels *k, tg_storage store, int64_t n,
                                     const float *room, void *x, int64_t at,
                                     const tg_rng *rounding) {
    if (store != TG_STORE_FULL && rounding) {
        k->round_stored(store, rounding, (uint64_t)at, n, room, cpu_stored_at(store, x, at));
    } else {
        cpu_write(k, store, n, room, x, at);
    }
}

#endif
