/* Exact quantiles by selection: each one partitions only the stretch that the ones before left
 * unsorted, so that all eight cost about as much as two. */
#include "quantiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Moduli of the elements. */
static void take_moduli(const tg_tensor *tensor, int64_t n, double *out) {
    const bool is_double = tg_dtype_real(tensor->dtype) == TG_F64;
    const bool is_complex = tg_dtype_is_complex(tensor->dtype);
    const float *single = tensor->data;
    const double *wide = tensor->data;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = is_complex ? 2 * i : i;
        const double re = is_double ? wide[at] : (double)single[at];
        const double im = !is_complex ? 0.0 : is_double ? wide[at + 1] : (double)single[at + 1];
        out[i] = im == 0.0 ? fabs(re) : hypot(re, im);
    }
}

static void swap(double *a, double *b) {
    const double kept = *a;
    *a = *b;
    *b = kept;
}

/* The middle one of three. */
static double middle_of(double a, double b, double c) {
    return fmax(fmin(a, b), fmin(fmax(a, b), c));
}

/* Puts the value of rank k (ascending, 0-based) to its place, with nothing larger before it and
 * nothing smaller behind it. Equal values are split evenly: a constant array is no worst case. */
static double select_rank(double *values, int64_t first, int64_t last, int64_t k) {
    while (first < last) {
        const double pivot =
            middle_of(values[first], values[first + (last - first) / 2], values[last]);
        int64_t i = first, j = last;
        while (i <= j) {
            while (values[i] < pivot) {
                i++;
            }
            while (values[j] > pivot) {
                j--;
            }
            if (i <= j) {
                swap(&values[i++], &values[j--]);
            }
        }
        if (k <= j) {
            last = j;
        } else if (k >= i) {
            first = i;
        } else {
            break;
        }
    }
    return values[k];
}

/* Quantile q; *start is where the values that are not in place yet begin, and moves on. */
static double take_quantile(double *values, int64_t n, double q, int64_t *start) {
    const double position = q * (double)(n - 1);
    int64_t k = (int64_t)position;
    k = k < n - 1 ? k : n - 1;
    const double below = select_rank(values, *start < k ? *start : k, n - 1, k);
    *start = k;
    const double share = position - (double)k;
    if (k == n - 1 || share <= 0.0) {
        return below;
    }
    const double above = select_rank(values, k + 1, n - 1, k + 1);
    *start = k + 1;
    return below + share * (above - below);
}

cli_quantiles cli_quantiles_of_values(double *values, int64_t n) {
    cli_quantiles q = {0};
    int64_t start = 0;
    for (int64_t i = 0; i < n; i++) {
        q.norm += values[i] * values[i];
    }
    q.norm = sqrt(q.norm);
    q.min = take_quantile(values, n, 0.0, &start);
    q.p01 = take_quantile(values, n, 0.01, &start);
    q.q1 = take_quantile(values, n, 0.25, &start);
    q.median = take_quantile(values, n, 0.5, &start);
    q.q3 = take_quantile(values, n, 0.75, &start);
    q.p99 = take_quantile(values, n, 0.99, &start);
    q.p999 = take_quantile(values, n, 0.999, &start);
    q.max = take_quantile(values, n, 1.0, &start);
    return q;
}

cli_quantiles cli_quantiles_of(const tg_tensor *tensor, double *room) {
    const int64_t n = tg_tensor_numel(tensor);
    take_moduli(tensor, n, room);
    return cli_quantiles_of_values(room, n);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void cli_quantile_list(const cli_quantiles *s, cli_quantile out[CLI_QUANTILES]) {
    const cli_quantile rows[CLI_QUANTILES] = {
        {"min", s->min}, {"p01", s->p01}, {"q1", s->q1},     {"median", s->median},
        {"q3", s->q3},   {"p99", s->p99}, {"p999", s->p999}, {"max", s->max}};
    memcpy(out, rows, sizeof rows);
}

double cli_median(double *values, int count) {
    if (count == 0) {
        return (double)NAN;
    }
    qsort(values, (size_t)count, sizeof *values, ascending);
    return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}
