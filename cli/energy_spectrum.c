/* Fourier transforms line by line, by recursion over the prime factors of a length: n log n for
 * the usual grids, n^2 for a prime one. Enough for the few fields of a report. */
#include "energy_spectrum.h"

#include <math.h>
#include <stdlib.h>

#include "text.h"

#define PI 3.14159265358979323846

/* What all lines of one length share. */
typedef struct lines {
    int64_t n;
    double *roots; /* (n, 2): exp(-2 pi i k / n) */
    double *room;  /* (n, 2) */
} lines;

static int64_t least_factor(int64_t n) {
    for (int64_t p = 2; p * p <= n; p++) {
        if (n % p == 0) {
            return p;
        }
    }
    return n;
}

/* out (n, 2) = F of the n numbers in[0], in[step], .. */
static void transform(const lines *l, int64_t n, int64_t step, const double *in, double *out) {
    if (n == 1) {
        out[0] = in[0];
        out[1] = in[1];
        return;
    }
    const int64_t p = least_factor(n), m = n / p;
    for (int64_t r = 0; r < p; r++) {
        transform(l, m, step * p, in + 2 * r * step, out + 2 * r * m);
    }
    for (int64_t k = 0; k < m; k++) {
        for (int64_t r = 0; r < p; r++) {
            l->room[2 * r] = out[2 * (r * m + k)];
            l->room[2 * r + 1] = out[2 * (r * m + k) + 1];
        }
        for (int64_t q = 0; q < p; q++) {
            double re = 0.0, im = 0.0;
            for (int64_t r = 0; r < p; r++) {
                const double *w = l->roots + 2 * (r * (k + q * m) % n * (l->n / n));
                re += l->room[2 * r] * w[0] - l->room[2 * r + 1] * w[1];
                im += l->room[2 * r] * w[1] + l->room[2 * r + 1] * w[0];
            }
            out[2 * (q * m + k)] = re;
            out[2 * (q * m + k) + 1] = im;
        }
    }
}

/* Transforms every line of a dimension, whose points are `stride` apart. */
static void transform_dimension(double *field, int64_t points, int64_t n, int64_t stride) {
    double *memory = cli_need(calloc((size_t)n, 6 * sizeof *memory));
    const lines l = {.n = n, .roots = memory, .room = memory + 2 * n};
    double *line = memory + 4 * n;
    for (int64_t k = 0; k < n; k++) {
        l.roots[2 * k] = cos(2.0 * PI * (double)k / (double)n);
        l.roots[2 * k + 1] = -sin(2.0 * PI * (double)k / (double)n);
    }
    for (int64_t i = 0; i < points / n; i++) {
        double *first = field + 2 * (i / stride * stride * n + i % stride);
        transform(&l, n, stride, first, line);
        for (int64_t k = 0; k < n; k++) {
            first[2 * k * stride] = line[2 * k];
            first[2 * k * stride + 1] = line[2 * k + 1];
        }
    }
    free(memory);
}

int64_t cli_energy_count(int n_dim, const int64_t *grid) {
    int64_t least = grid[0];
    for (int d = 1; d < n_dim; d++) {
        least = grid[d] < least ? grid[d] : least;
    }
    return least / 2 + 1;
}

void cli_energy_add(int n_dim, const int64_t *grid, double *field, double *energy) {
    const int64_t count = cli_energy_count(n_dim, grid);
    int64_t points = 1, stride = 1;
    for (int d = 0; d < n_dim; d++) {
        points *= grid[d];
    }
    for (int d = n_dim - 1; d >= 0; d--) {
        transform_dimension(field, points, grid[d], stride);
        stride *= grid[d];
    }
    for (int64_t i = 0; i < points; i++) {
        double square = 0.0;
        for (int64_t d = n_dim - 1, left = i; d >= 0; left /= grid[d], d--) {
            const int64_t k = left % grid[d], f = 2 * k > grid[d] ? k - grid[d] : k;
            square += (double)(f * f);
        }
        const int64_t shell = llround(sqrt(square));
        if (shell < count) {
            energy[shell] += (field[2 * i] * field[2 * i] + field[2 * i + 1] * field[2 * i + 1]) /
                             ((double)points * (double)points);
        }
    }
}
