/* Matrix products at every frequency of spectra, c[i, j, k] = scale sum over d of a[d, i, k]
 * b[d, j, k]: the contraction with a spectral weight, both ways, and the gradient of the weight.
 *
 * Frequencies are the vectors of the kernels (see below). Rows of a are packed once for all
 * threads, a run of frequencies at a time; each thread then takes tiles of columns, packs those of
 * b, and multiplies them with all rows. The order of summation does not depend on the number of
 * threads. */
#ifndef TG_BACKEND_CPU_SPECTRAL_PRODUCT_H
#define TG_BACKEND_CPU_SPECTRAL_PRODUCT_H

#include <stdint.h>

#include "backend/cpu/cpu.h"

/* Products of spectra at a run of frequencies, the inner part of spectral contractions and of their
 * gradients: serial kernels on packed tiles, for any CPU, AVX2 and AVX-512. AVX2 and AVX-512 give
 * the same bits. */

enum {
    CPU_TILE = 4,           /* rows and columns of a whole tile */
    CPU_MAX_FREQUENCIES = 8 /* per vector, see cpu_tile_kernels */
};

typedef enum cpu_tile_form {
    CPU_TILE_PRODUCT, /* a b */
    CPU_TILE_CONJ_B,  /* a conj(b) */
    CPU_TILE_CONJ_A   /* conj(a) b */
} cpu_tile_form;

/* c[i, j] = scale sum over `depth` d of a[d, i] b[d, j] in one of the forms; each entry is a vector
 * of complex numbers, one per frequency. */
typedef struct cpu_tile_product {
    cpu_tile_form form;
    int64_t depth;
    int rows;                  /* 1, 2 or 4 */
    const float *a;            /* (depth, rows) vectors */
    const float *b;            /* (depth, CPU_TILE) vectors, with.. */
    int64_t b_depth, b_column; /* .. these strides in reals */
    float *c;                  /* (rows, CPU_TILE) vectors, likewise */
    int64_t c_row, c_column;
    float scale;
} cpu_tile_product;

typedef struct cpu_tile_kernels {
    int frequencies; /* per vector; 0 if the build lacks these kernels */
    void (*multiply)(const cpu_tile_product *p);
} cpu_tile_kernels;

extern const cpu_tile_kernels cpu_tile_plain, cpu_tile_avx2, cpu_tile_avx512;

/* Spectra (.., .., frequencies) of c64, with strides in reals between depths and between rows or
 * columns. */
typedef struct cpu_spectra {
    const void *x;
    tg_storage store;
    int64_t depth, across;
} cpu_spectra;

typedef struct cpu_spectral_product {
    cpu_tile_form form;
    int64_t frequencies, depth, rows, columns;
    cpu_spectra a, b;
    void *c;
    tg_storage c_store;
    int64_t c_row, c_column; /* reals from one row, and column, to the next */
    float scale;
} cpu_spectral_product;

/* Whether tiles of such a product fit in the scratch: up to a depth of about 1500. */
bool cpu_spectral_fits(tg_backend *be, const cpu_spectral_product *p);

void cpu_spectral_multiply(tg_backend *be, const cpu_spectral_product *p);

#endif
