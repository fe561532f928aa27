/* Tolerances and errors. */
#include "support/compare.h"

#include <math.h>
#include <string.h>

double t_tolerance(tg_dtype dtype) {
    static const double tolerances[TG_DTYPES] = {
        [TG_F32] = 1e-6,  /* 16 x 2^-24 */
        [TG_F64] = 2e-15, /* 16 x 2^-53 */
        [TG_BF16] = 6e-3, /* 2^-8 is a step: results may round to neighbours */
        [TG_F16] = 8e-4,  /* likewise 2^-11 */
    };
    return tolerances[tg_dtype_real(dtype)];
}

double t_relative_error(tg_dtype dtype, int64_t n, const void *got, const void *expected) {
    double most = 0.0, apart = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar g = tg_load(dtype, got, i), e = tg_load(dtype, expected, i);
        const double distance = hypot(g.re - e.re, g.im - e.im);
        if (isnan(distance)) {
            return distance;
        }
        apart = fmax(apart, distance);
        most = fmax(most, hypot(e.re, e.im));
    }
    return apart == 0.0 ? 0.0 : apart / most;
}

static bool is_same(double a, double b) {
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

int64_t t_first_difference(tg_dtype dtype, int64_t n, const void *a, const void *b) {
    const size_t size = tg_dtype_size(dtype);
    for (int64_t i = 0; i < n; i++) {
        const size_t at = (size_t)i * size;
        if (memcmp((const char *)a + at, (const char *)b + at, size) == 0) {
            continue;
        }
        const tg_scalar x = tg_load(dtype, a, i), y = tg_load(dtype, b, i);
        if (!tg_dtype_is_float(dtype) || !is_same(x.re, y.re) || !is_same(x.im, y.im)) {
            return i;
        }
    }
    return -1;
}
