/* Matrix products at every frequency of spectra, c[i, j, k] = scale sum over d of a[d, i, k]
 * b[d, j, k]: the contraction with a spectral weight, both ways, and the gradient of the weight.
 *
 * Frequencies are the vectors of the kernels (spectral_tile.h). Rows of a are packed once for all
 * threads, a run of frequencies at a time; each thread then takes tiles of columns, packs those of
 * b, and multiplies them with all rows. The order of summation does not depend on the number of
 * threads. */
#ifndef TG_BACKEND_CPU_SPECTRAL_PRODUCT_H
#define TG_BACKEND_CPU_SPECTRAL_PRODUCT_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/spectral_tile.h"

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
