/* One element of any dtype on the host as a complex double: slow and general, for code where
 * clarity matters more than speed (ref backend, inspection, conversion between odd types). */
#ifndef TG_TENSOR_ELEMENT_H
#define TG_TENSOR_ELEMENT_H

#include "base/rng.h"
#include "tgrad/tensor.h"

typedef struct tg_scalar {
    double re, im; /* im is ignored by real dtypes */
} tg_scalar;

tg_scalar tg_load(tg_dtype dtype, const void *x, int64_t i);

/* Rounds to nearest; integers saturate and take NaN as 0; real dtypes drop im. */
void tg_store(tg_dtype dtype, void *x, int64_t i, tg_scalar value);

/* tg_load and tg_store for the reals [first, first + n) of an array of a float dtype; a complex
 * element has two. */
void tg_load_reals(tg_dtype dtype, const void *x, int64_t first, int64_t n, double *to);
void tg_store_reals(tg_dtype dtype, void *x, int64_t first, int64_t n, const double *from);

/* As tg_store, but stochastic rounding to 16-bit formats: element i uses the bits of real number i
 * of the stream (2i and 2i + 1 for a pair), see rng_math.h. rng NULL: as tg_store. */
void tg_store_rounded(tg_dtype dtype, void *x, int64_t i, tg_scalar value, const tg_rng *rng);

/* e^{-2 pi i j / n}, 0 <= j < n, rounded once: symmetries hold exactly. */
tg_scalar tg_root_of_unity(int64_t j, int64_t n);

#endif
