/* Energy spectra of fields: against sums over all points by the definition, real and complex, on
 * odd and even grids of 1 to 3 dimensions; Parseval; waves of known energy; what is refused. */
#include <math.h>

#include "support/network.h"

#define TURN 6.283185307179586477

enum { SAMPLES = 2, CHANNELS = 3, MOST = 16 /* wave numbers */ };

static const struct {
    int n_dim;
    int64_t grid[3];
} grids[] = {{1, {16}},   {1, {15}},     {1, {1}},       {2, {6, 8}},
             {2, {7, 6}}, {2, {4, 9}},   {3, {4, 5, 6}}, {3, {5, 4, 3}},
             {1, {2}},    {2, {12, 14}}, {2, {13, 30}},  {3, {11, 12, 13}}};

enum { GRIDS = sizeof grids / sizeof grids[0], SMALL = 9, /* those of naive sums */ WAVES = 9 };

static tg_tensor make(tg_context *ctx, tg_dtype dtype, int g, int64_t samples, int64_t channels) {
    tg_shape shape = {2 + grids[g].n_dim, {samples, channels}};
    tg_tensor tensor;
    for (int d = 0; d < grids[g].n_dim; d++) {
        shape.dim[2 + d] = grids[g].grid[d];
    }
    net_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, dtype, &shape, &tensor));
    return tensor;
}

/* Coordinate d of point p. */
static int64_t along(int g, int64_t p, int d) {
    for (int e = grids[g].n_dim - 1; e > d; e--) {
        p /= grids[g].grid[e];
    }
    return p % grids[g].grid[d];
}

/* Adds that of one channel, (points, 2), by the definition. */
static void add_naive(int g, int64_t points, const double *field, double *energy) {
    for (int64_t q = 0; q < points; q++) {
        double re = 0.0, im = 0.0, square = 0.0;
        for (int d = 0; d < grids[g].n_dim; d++) {
            const int64_t n = grids[g].grid[d], k = along(g, q, d), f = 2 * k > n ? k - n : k;
            square += (double)(f * f);
        }
        for (int64_t p = 0; p < points; p++) {
            double angle = 0.0;
            for (int d = 0; d < grids[g].n_dim; d++) {
                const int64_t n = grids[g].grid[d];
                angle += TURN * (double)(along(g, q, d) * along(g, p, d) % n) / (double)n;
            }
            re += field[2 * p] * cos(angle) + field[2 * p + 1] * sin(angle);
            im += field[2 * p + 1] * cos(angle) - field[2 * p] * sin(angle);
        }
        energy[lround(sqrt(square))] += (re * re + im * im) / (double)(points * points);
    }
}

TEST(test_definition) {
    static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_C64, TG_C128, TG_BF16, TG_I8};
    tg_context *ctx = net_context("cpu", 1);
    for (int g = 0; g < SMALL; g++) {
        for (int t = 0; t < 6; t++) {
            tg_tensor fields = make(ctx, dtypes[t], g, SAMPLES, CHANNELS);
            tg_tensor exact = make(ctx, TG_C128, g, SAMPLES, CHANNELS);
            const int64_t all = tg_tensor_numel(&exact), points = all / (SAMPLES * CHANNELS);
            const bool is_complex = tg_dtype_is_complex(dtypes[t]);
            double *value = exact.data, expected[MOST] = {0.0}, energy[MOST], mean = 0.0, sum = 0.0;
            for (int64_t i = 0; i < all; i++) {
                const double at = (double)i;
                value[2 * i] = sin(at * at + 0.3);
                value[2 * i + 1] = is_complex ? cos(3.0 * at * at) : 0.0;
            }
            net_ok(ctx, tg_tensor_convert(ctx, &exact, &fields)); /* rounds */
            net_ok(ctx, tg_tensor_convert(ctx, &fields, &exact));
            for (int64_t i = 0; i < 2 * all; i++) {
                mean += value[i] * value[i] / (double)(points * SAMPLES);
            }
            for (int64_t i = 0; i < all; i += points) {
                add_naive(g, points, value + 2 * i, expected);
            }
            const int64_t count = tg_energy_wavenumbers(grids[g].n_dim, grids[g].grid);
            net_ok(ctx, tg_energy_spectrum(ctx, &fields, count, energy));
            for (int64_t k = 0; k < count; k++) {
                assert_true(fabs(energy[k] - expected[k] / SAMPLES) <= 1e-12);
                sum += energy[k];
            }
            for (int64_t k = count; k < MOST; k++) { /* the corners */
                sum += expected[k] / SAMPLES;
            }
            assert_true(fabs(sum - mean) <= 1e-12);
            tg_tensor_destroy(&fields);
            tg_tensor_destroy(&exact);
        }
    }
    tg_context_destroy(&ctx);
}

/* A constant 2, a wave of amplitude 3 with |k| = 5 and one of 1 with |k| = 2: a wave a cos(k.x) has
 * the energy a^2 / 2, and by Parseval nothing else has any. */
TEST(test_waves) {
    tg_context *ctx = net_context("cpu", 1);
    for (int g = WAVES; g < GRIDS; g++) {
        tg_tensor field = make(ctx, TG_F64, g, 1, 1);
        const int n_dim = grids[g].n_dim;
        double *value = field.data, energy[MOST];
        for (int64_t p = 0; p < tg_tensor_numel(&field); p++) {
            double at[3] = {0.0};
            for (int d = 0; d < n_dim; d++) {
                at[d] = TURN * (double)along(g, p, d) / (double)grids[g].grid[d];
            }
            value[p] = 2.0 + 3.0 * cos(3.0 * at[0] - 4.0 * at[1]) + sin(2.0 * at[n_dim - 1]);
        }
        const int64_t count = tg_energy_wavenumbers(n_dim, grids[g].grid);
        assert_in_range(count, 6, 7);
        net_ok(ctx, tg_energy_spectrum(ctx, &field, count, energy));
        for (int64_t k = 0; k < count; k++) {
            const double expected = k == 0 ? 4.0 : k == 5 ? 4.5 : k == 2 ? 0.5 : 0.0;
            assert_true(fabs(energy[k] - expected) <= 1e-12);
        }
        tg_tensor_destroy(&field);
    }
    tg_context_destroy(&ctx);
}

/* Wave numbers of grids, and calls that no spectrum can be made of. */
TEST(test_refused) {
    const int64_t grid[] = {6, 4, 0};
    const float x[24] = {0.0F};
    double energy[MOST];
    tg_context *ctx = net_context("cpu", 1);
    assert_int_equal(tg_energy_wavenumbers(1, grid), 4);
    assert_int_equal(tg_energy_wavenumbers(2, grid), 3);
    assert_int_equal(tg_energy_wavenumbers(3, grid), 0);
    assert_int_equal(tg_energy_wavenumbers(4, grid), 0);
    tg_tensor fields = {.dtype = TG_F32, .shape = {4, {1, 1, 6, 4}}, .data = (void *)(uintptr_t)x};
    assert_int_equal(tg_energy_spectrum(ctx, &fields, 0, energy), TG_E_ARGUMENT);
    assert_int_equal(tg_energy_spectrum(ctx, &fields, 4, energy), TG_E_ARGUMENT);
    assert_string_equal(tg_context_error(ctx), "count: 4 wave numbers, 1x1x6x4 has 1 to 3");
    fields.shape = (tg_shape){2, {6, 4}};
    assert_int_equal(tg_energy_spectrum(ctx, &fields, 3, energy), TG_E_SHAPE);
    fields.shape = (tg_shape){4, {0, 1, 6, 4}};
    assert_int_equal(tg_energy_spectrum(ctx, &fields, 3, energy), TG_E_SHAPE);
    tg_context_destroy(&ctx);
}
