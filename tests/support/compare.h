/* Differences of arrays, and the tolerances of all tests in one table.
 */
#ifndef TEST_SUPPORT_COMPARE_H
#define TEST_SUPPORT_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/element.h"

/* Relative error that a result of this dtype may have after a few roundings; sums of n terms are
 * given sqrt(n) times it. Exact for integers. */
double t_tolerance(tg_dtype dtype);

/* max |got - expected| / max |expected|: 0 for equal arrays also if all are zero, NaN if there is a
 * NaN (write `!(error <= tolerance)`, which then fails). */
double t_relative_error(tg_dtype dtype, int64_t n, const void *got, const void *expected);

/* Index of the first element that differs, or -1: the same bits, except that any NaN equals any
 * other. */
int64_t t_first_difference(tg_dtype dtype, int64_t n, const void *a, const void *b);

#endif
