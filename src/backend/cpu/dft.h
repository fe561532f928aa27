/* Transforms of awkward length as products with a matrix (dft.c). */
#ifndef TG_BACKEND_CPU_DFT_H
#define TG_BACKEND_CPU_DFT_H

#include "backend/cpu/compress.h"

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
