/* One element of any dtype on the host as a complex double: the slow, general way, for code where
 * clarity counts and speed does not (ref backend, inspection, conversion between odd types). */
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

/* As tg_load and tg_store for reals [first, first + n) of an array of a float dtype; a pair has two
 * of them. */
void tg_load_reals(tg_dtype dtype, const void *x, int64_t first, int64_t n, double *to);
void tg_store_reals(tg_dtype dtype, void *x, int64_t first, int64_t n, const double *from);

/* As tg_store, but 16-bit formats (and their pairs) stochastically: element i with the bits of real
 * number i of the stream (2i and 2i + 1 for a pair), see rng_math.h. rng NULL: as tg_store. */
void tg_store_rounded(tg_dtype dtype, void *x, int64_t i, tg_scalar value, const tg_rng *rng);

#endif
