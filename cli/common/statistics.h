/* Mean, standard error, and whether two means differ by more than chance. */
#ifndef CLI_COMMON_STATISTICS_H
#define CLI_COMMON_STATISTICS_H

#include "tgrad/tgrad.h"

typedef struct cli_sample {
    int count;
    double mean;     /* NaN: no values */
    double variance; /* of one value, with n - 1; NaN: fewer than two */
} cli_sample;

/* Of the finite values among `count`. */
cli_sample cli_sample_of(const double *value, int count);

/* Of the mean: sqrt(variance / n); NaN for fewer than two values. */
double cli_standard_error(const cli_sample *sample);

/* Two-sided p-value of Welch's t-test: how likely means at least as far apart are if both samples
 * come from distributions with one mean. NaN if one has fewer than two values, or none varies. */
double cli_welch_p(const cli_sample *a, const cli_sample *b);

/* ---- exact quantiles of the moduli of many, the median of a few ---- */

/* Quantile q of n ascending values is at position q (n - 1), between neighbours by linear
 * interpolation (numpy's default). */
typedef enum cli_quantile {
    CLI_MIN,
    CLI_P01,
    CLI_Q1,
    CLI_MEDIAN,
    CLI_Q3,
    CLI_P99,
    CLI_P999,
    CLI_MAX,
    CLI_QUANTILES
} cli_quantile;

extern const char *const cli_quantile_names[CLI_QUANTILES]; /* "min", "p01", "q1", .. */

typedef struct cli_quantiles {
    double at[CLI_QUANTILES];
    double norm; /* Euclidean, of all of them */
} cli_quantiles;

/* Of the moduli of a host tensor of f32, f64, c64 or c128 with at least one element, all finite.
 * `room` has a place for every element and is overwritten. */
cli_quantiles cli_quantiles_of(const tg_tensor *tensor, double *room);

/* The same of n >= 1 values, which are sorted. */
cli_quantiles cli_quantiles_of_values(double *values, int64_t n);

/* The order of two doubles, for qsort. */
int cli_ascending(const void *a, const void *b);

/* The middle of `count` finite values, or the mean of the two in the middle; sorts them. NaN of
 * none. */
double cli_median(double *values, int count);

#endif
