/* Transforms of contiguous lines, CPU_FFT_LINES at once: the basis of fft.c.
 *
 * There are two engines: FFTW (fftw.c), if the library is linked to it or the system has it, and
 * ours (fft_lines.c), which is always available. */
#ifndef TG_BACKEND_CPU_FFT_H
#define TG_BACKEND_CPU_FFT_H

#include "backend/cpu/compress.h"
#include "backend/cpu/cpu.h"

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

/* Transforms of awkward length as products with a matrix (dft.c). */

typedef enum cpu_dft_kind { CPU_DFT_REAL, CPU_DFT_COMPLEX } cpu_dft_kind;

/* Multiplies rows (inner) to rows (outer): n points to the kept frequencies, or back. Real data:
 * floats, the spectrum as 2 * kept floats; forward gives twice the transform. Complex data: pairs.
 */
typedef struct cpu_dft {
    bool pairs;
    int64_t inner, outer;
    const float *matrix; /* (inner, outer); NULL: none */
} cpu_dft;

/* Whether a product is faster than FFTW. */
bool cpu_dft_pays(const cpu_compress_kernels *kernels, int64_t n, int64_t kept);

/* Sizes without the matrix; its bytes; and the matrix, with frequencies from `first` on. */
cpu_dft cpu_dft_layout(cpu_dft_kind kind, bool inverse, int64_t n, int64_t kept);
size_t cpu_dft_bytes(const cpu_dft *dft);
void cpu_dft_fill(const cpu_dft *dft, cpu_dft_kind kind, bool inverse, int64_t n, int64_t first,
                  float *matrix);

/* c (m, outer) = a (m, inner) times the matrix; lda and ldc in floats or pairs. */
void cpu_dft_apply(const cpu_compress_kernels *kernels, const cpu_dft *dft, int64_t m,
                   const void *a, int64_t lda, void *c, int64_t ldc);

#endif
