/* Exact quantiles of the moduli of many, the median of a few. */
#ifndef CLI_QUANTILES_H
#define CLI_QUANTILES_H

#include "tgrad/tgrad.h"

/* Quantile q of n ascending values stands at position q (n - 1), between neighbours by straight
 * line (numpy's default). */
typedef struct cli_quantiles {
    double min, p01, q1, median, q3, p99, p999, max;
    double norm; /* Euclidean, of all of them */
} cli_quantiles;

/* Of the moduli of a host tensor of f32, f64, c64 or c128 with at least one element, all finite.
 * `room` has a place for every element and is overwritten. */
cli_quantiles cli_quantiles_of(const tg_tensor *tensor, double *room);

/* The same of n >= 1 values that are not negative, which are put into another order. */
cli_quantiles cli_quantiles_of_values(double *values, int64_t n);

typedef struct cli_quantile {
    const char *key; /* "min", "p01", "q1", .. */
    double value;
} cli_quantile;

enum { CLI_QUANTILES = 8 };
void cli_quantile_list(const cli_quantiles *quantiles, cli_quantile out[CLI_QUANTILES]);

/* The middle of `count` finite values, or the mean of the two in the middle; sorts them. NaN of
 * none. */
double cli_median(double *values, int count);

#endif
