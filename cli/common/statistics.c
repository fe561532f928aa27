/* Welch's t-test:
 *
 *     t = (m1 - m2) / sqrt(v1/n1 + v2/n2)
 *     nu = (v1/n1 + v2/n2)^2 / ((v1/n1)^2 / (n1 - 1) + (v2/n2)^2 / (n2 - 1))
 *     p = I_x(nu / 2, 1 / 2),  x = nu / (nu + t^2)
 *
 * with the regularized incomplete beta function I, here by its continued fraction (Lentz). */
#include "statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

cli_sample cli_sample_of(const double *value, int count) {
    cli_sample s = {.mean = (double)NAN, .variance = (double)NAN};
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < count; i++) {
        sum += isfinite(value[i]) ? value[i] : 0.0;
        s.count += isfinite(value[i]) != 0;
    }
    if (s.count == 0) {
        return s;
    }
    s.mean = sum / s.count;
    for (int i = 0; i < count; i++) {
        squares += isfinite(value[i]) ? (value[i] - s.mean) * (value[i] - s.mean) : 0.0;
    }
    s.variance = s.count > 1 ? squares / (s.count - 1) : (double)NAN;
    return s;
}

double cli_standard_error(const cli_sample *s) {
    return s->count > 1 ? sqrt(s->variance / s->count) : (double)NAN;
}

/* Of the continued fraction of I_x(a, b), which converges fast for x < (a + 1) / (a + b + 2). */
static double beta_fraction(double a, double b, double x) {
    enum { MAX_TERMS = 500 };
    const double tiny = 1e-300;
    double c = 1.0, d = 1.0 - (a + b) * x / (a + 1.0);
    d = 1.0 / (fabs(d) < tiny ? tiny : d);
    double value = d;
    for (int m = 1; m <= MAX_TERMS; m++) {
        const double even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m));
        const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0));
        double change = 1.0;
        for (int half = 0; half < 2; half++) {
            const double term = half ? odd : even;
            d = 1.0 + term * d;
            d = 1.0 / (fabs(d) < tiny ? tiny : d);
            c = 1.0 + term / c;
            c = fabs(c) < tiny ? tiny : c;
            change = c * d;
            value *= change;
        }
        if (fabs(change - 1.0) < 1e-15) {
            break;
        }
    }
    return value;
}

static double incomplete_beta(double a, double b, double x) {
    if (x <= 0.0 || x >= 1.0) {
        return x <= 0.0 ? 0.0 : 1.0;
    }
    const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    return x < (a + 1.0) / (a + b + 2.0) ? front * beta_fraction(a, b, x) / a
                                         : 1.0 - front * beta_fraction(b, a, 1.0 - x) / b;
}

double cli_welch_p(const cli_sample *a, const cli_sample *b) {
    if (a->count < 2 || b->count < 2) {
        return (double)NAN;
    }
    const double va = a->variance / a->count, vb = b->variance / b->count, v = va + vb;
    if (!(v > 0.0)) {
        return (double)NAN;
    }
    const double t = (a->mean - b->mean) / sqrt(v);
    const double nu = v * v / (va * va / (a->count - 1) + vb * vb / (b->count - 1));
    return incomplete_beta(0.5 * nu, 0.5, nu / (nu + t * t));
}

/* ---- quantiles ---- */

const char *const cli_quantile_names[CLI_QUANTILES] = {"min", "p01", "q1",   "median",
                                                       "q3",  "p99", "p999", "max"};

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

int cli_ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *values, int64_t n, double q) {
    const double position = q * (double)(n - 1);
    const int64_t k = (int64_t)position < n - 1 ? (int64_t)position : n - 1;
    const double share = position - (double)k;
    return share > 0.0 && k < n - 1 ? values[k] + share * (values[k + 1] - values[k]) : values[k];
}

cli_quantiles cli_quantiles_of_values(double *values, int64_t n) {
    static const double shares[CLI_QUANTILES] = {0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 0.999, 1.0};
    cli_quantiles q = {0};
    for (int64_t i = 0; i < n; i++) {
        q.norm += values[i] * values[i];
    }
    q.norm = sqrt(q.norm);
    qsort(values, (size_t)n, sizeof *values, cli_ascending);
    for (int i = 0; i < CLI_QUANTILES; i++) {
        q.at[i] = quantile(values, n, shares[i]);
    }
    return q;
}

cli_quantiles cli_quantiles_of(const tg_tensor *tensor, double *room) {
    const int64_t n = tg_tensor_numel(tensor);
    take_moduli(tensor, n, room);
    return cli_quantiles_of_values(room, n);
}

double cli_median(double *values, int count) {
    if (count == 0) {
        return (double)NAN;
    }
    qsort(values, (size_t)count, sizeof *values, cli_ascending);
    return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}
