/* Networks on grids with fewer frequencies than the weights have, against the whole network written
 * out with direct sums: which frequencies are kept, and which entries of a weight they meet.
 *
 * Of M modes a grid of N points keeps K = min(M, N), the frequencies -(K / 2) .. ceil(K / 2) - 1,
 * and uses entries (M - K) / 2 .. of the weight (divisions round down), as neuraloperator does.
 * With M even and K odd this is one frequency off: of 8 modes (-4 .. 3), 5 points take entries 1 ..
 * 5, made for -3 .. 1, for -2 .. 2. The last dimension of real data keeps 0 .. min(M / 2, N / 2)
 * and the first entries. */
#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/minmax.h"
#include "support/network.h"

enum { C = 3, MOST = 16 * 16 };

static const double tau = 6.28318530717958647693;

static const void *weight_of(const tg_fno *fno, const char *name) {
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        if (strcmp(tg_fno_get_param(fno, i).name, name) == 0) {
            return tg_fno_get_param(fno, i).weight.data;
        }
    }
    fail_msg("no parameter %s", name);
    return NULL;
}

/* ---- the network written out: fields (channels, points), one layer, real data ---- */

static double gelu(double x) {
    return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
}

/* out (rows) = w (rows, columns) in + b */
static void affine(int rows, int columns, const double *w, const double *b, const double *in,
                   double *out) {
    for (int r = 0; r < rows; r++) {
        out[r] = b ? b[r] : 0.0;
        for (int c = 0; c < columns; c++) {
            out[r] += w[r * columns + c] * in[c];
        }
    }
}

/* The two-layer network `name` at every point. */
static void mlp(const tg_fno *fno, const char *name, int in, int hidden, int out, int64_t points,
                const double *x, double *y) {
    char names[4][96];
    static const char *const parts[4] = {"0.weight", "0.bias", "1.weight", "1.bias"};
    for (int i = 0; i < 4; i++) {
        snprintf(names[i], sizeof names[i], "%s.fcs.%s", name, parts[i]);
    }
    for (int64_t p = 0; p < points; p++) {
        double from[16], middle[16], to[16];
        for (int c = 0; c < in; c++) {
            from[c] = x[c * points + p];
        }
        affine(hidden, in, weight_of(fno, names[0]), weight_of(fno, names[1]), from, middle);
        for (int c = 0; c < hidden; c++) {
            middle[c] = gelu(middle[c]);
        }
        affine(out, hidden, weight_of(fno, names[2]), weight_of(fno, names[3]), middle, to);
        for (int c = 0; c < out; c++) {
            y[c * points + p] = to[c];
        }
    }
}

/* e^(i sign 2 pi (k0 n0 / N0 + k1 n1 / N1)) at point p of the grid */
static double complex wave(const int64_t grid[2], int64_t k0, int64_t k1, int64_t p, double sign) {
    const double turn = (double)(k0 * (p / grid[1])) / (double)grid[0] +
                        (double)(k1 * (p % grid[1])) / (double)grid[1];
    return cos(tau * turn) + sign * sin(tau * turn) * (double complex)I;
}

/* y += the spectral convolution of x. */
static void convolve(const double complex *w, const int64_t modes[2], const int64_t grid[2],
                     const double *x, double *y) {
    const int64_t points = grid[0] * grid[1], columns = modes[1] / 2 + 1;
    const int64_t kept[2] = {tg_min(modes[0], grid[0]), tg_min(columns, grid[1] / 2 + 1)};
    const int64_t window = (modes[0] - kept[0]) / 2;
    for (int64_t row = 0; row < kept[0]; row++) {
        const int64_t k0 = row - kept[0] / 2;
        for (int64_t k1 = 0; k1 < kept[1]; k1++) {
            const double twice = k1 == 0 || 2 * k1 == grid[1] ? 1.0 : 2.0;
            double complex from[C] = {0.0};
            for (int64_t i = 0; i < C * points; i++) {
                from[i / points] += x[i] * wave(grid, k0, k1, i % points, -1.0) / (double)points;
            }
            for (int o = 0; o < C; o++) {
                double complex to = 0.0;
                for (int i = 0; i < C; i++) {
                    const int64_t at = ((i * C + o) * modes[0] + window + row) * columns + k1;
                    to += from[i] * w[at];
                }
                for (int64_t p = 0; p < points; p++) {
                    y[o * points + p] += twice * creal(to * wave(grid, k0, k1, p, 1.0));
                }
            }
        }
    }
}

static void forward(const tg_fno *fno, const int64_t modes[2], const int64_t grid[2],
                    const double *x, double *out) {
    const int64_t points = grid[0] * grid[1];
    const double *bias = weight_of(fno, "fno_blocks.convs.0.bias");
    const double *skip = weight_of(fno, "fno_blocks.fno_skips.0.conv.weight");
    const double *gate = weight_of(fno, "fno_blocks.channel_mlp_skips.0.weight");
    double v[C * MOST], z[C * MOST], u[C * MOST];
    mlp(fno, "lifting", 1, 2 * C, C, points, x, v);
    for (int64_t i = 0; i < C * points; i++) {
        z[i] = bias[i / points];
        for (int c = 0; c < C; c++) {
            z[i] += skip[i / points * C + c] * v[c * points + i % points];
        }
    }
    convolve(weight_of(fno, "fno_blocks.convs.0.weight.tensor"), modes, grid, v, z);
    mlp(fno, "fno_blocks.channel_mlp.0", C, 2, C, points, z, u);
    for (int64_t i = 0; i < C * points; i++) {
        u[i] += gate[i / points] * v[i];
    }
    mlp(fno, "projection", C, 2 * C, 1, points, u, out);
}

static void check(tg_context *ctx, const int64_t modes[2], const int64_t grid[2]) {
    char json[256];
    snprintf(json, sizeof json,
             "{\"n_modes\": [%d, %d], \"hidden_channels\": %d, \"n_layers\": 1, \"dtype\": \"f64\","
             " \"positional_embedding\": null}",
             (int)modes[0], (int)modes[1], C);
    const tg_fno_config config = net_config(ctx, json);
    const int64_t points = grid[0] * grid[1];
    tg_fno *fno = NULL;
    net_ok(ctx, tg_fno_create(ctx, &config, 3, &fno));
    net_ok(ctx, tg_fno_prepare(fno, 1, grid, false));
    tg_tensor x = net_random(ctx, &config, 1, 1, grid, 5),
              y = net_random(ctx, &config, 1, 1, grid, 6);
    double expected[MOST];
    net_ok(ctx, tg_fno_forward(fno, &x, &y));
    forward(fno, modes, grid, x.data, expected);
    for (int64_t p = 0; p < points; p++) {
        const double got = ((const double *)y.data)[p];
        if (!(fabs(got - expected[p]) <= 1e-12)) {
            fail_msg("modes %dx%d on %dx%d: point %d is %.15g, expected %.15g", (int)modes[0],
                     (int)modes[1], (int)grid[0], (int)grid[1], (int)p, got, expected[p]);
        }
    }
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    tg_fno_destroy(&fno);
}

TEST(test_grids_and_modes) {
    static const int64_t modes[][2] = {{8, 8}, {7, 6}, {5, 9}};
    static const int64_t grids[][2] = {{5, 5}, {5, 16}, {16, 5}, {6, 6}, {4, 7},
                                       {3, 8}, {9, 11}, {1, 1},  {2, 3}};
    static const char *const backends[] = {"ref", "cpu"};
    for (int b = 0; b < 2; b++) {
        tg_context *ctx = net_context(backends[b], 1);
        for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
            for (size_t g = 0; g < sizeof grids / sizeof grids[0]; g++) {
                check(ctx, modes[m], grids[g]);
            }
        }
        tg_context_destroy(&ctx);
    }
}

/* ---- complex data: a network of all modes, and one made of its window ---- */

static tg_fno *complex_network(tg_context *ctx, int modes, const char *which, uint64_t seed,
                               tg_fno_config *config) {
    char json[256];
    snprintf(json, sizeof json,
             "{\"n_modes\": [%d], \"hidden_channels\": %d, \"n_layers\": 1, \"dtype\": \"f64\","
             " \"complex_data\": true, \"complex_modes\": \"%s\"}",
             modes, C, which);
    *config = net_config(ctx, json);
    tg_fno *fno = NULL;
    net_ok(ctx, tg_fno_create(ctx, config, seed, &fno));
    return fno;
}

/* 8 modes on 5 points are the 5 modes from entry 1 on. */
TEST(test_complex_window) {
    enum { ALL = 8, FEW = 5, FIRST = 1 };
    static const char *const which[] = {"centered", "nonnegative"};
    tg_context *ctx = net_context("cpu", 1);
    for (int i = 0; i < 2; i++) {
        tg_fno_config config;
        tg_fno *few = complex_network(ctx, FEW, which[i], 3, &config);
        tg_fno *all = complex_network(ctx, ALL, which[i], 3, &config);
        const int64_t grid[] = {FEW};
        double complex *to =
            (double complex *)(uintptr_t)weight_of(few, "fno_blocks.convs.0.weight.tensor");
        const double complex *from = weight_of(all, "fno_blocks.convs.0.weight.tensor");
        for (int pair = 0; pair < C * C; pair++) {
            memcpy(to + (size_t)pair * FEW, from + (size_t)pair * ALL + FIRST, FEW * sizeof *to);
        }
        tg_tensor x = net_random(ctx, &config, 1, 1, grid, 5);
        tg_tensor a = net_random(ctx, &config, 1, 1, grid, 6),
                  b = net_random(ctx, &config, 1, 1, grid, 7);
        net_ok(ctx, tg_fno_prepare(few, 1, grid, false));
        net_ok(ctx, tg_fno_prepare(all, 1, grid, false));
        net_ok(ctx, tg_fno_forward(few, &x, &a));
        net_ok(ctx, tg_fno_forward(all, &x, &b));
        assert_true(net_error(&b, &a) <= 1e-12);
        tg_tensor_destroy(&x);
        tg_tensor_destroy(&a);
        tg_tensor_destroy(&b);
        tg_fno_destroy(&few);
        tg_fno_destroy(&all);
    }
    tg_context_destroy(&ctx);
}
