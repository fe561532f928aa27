/* Mean, standard error, and whether two means differ by more than chance. */
#ifndef CLI_STATISTICS_H
#define CLI_STATISTICS_H

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

#endif
