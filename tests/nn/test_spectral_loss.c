/* Losses hs<s> on the backends of the host: waves whose norm is known, the L2 norm for s = 0,
 * gradients against central differences, and what is refused. */
#include <math.h>
#include <string.h>

#include "nn/losses.h"
#include "support/network.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static const double PI = 3.14159265358979323846;
static const char *const backends[] = {"ref", "cpu"};

static const struct {
    int ndim;
    int64_t grid[3];
} grids[] = {{1, {1}}, {1, {8}}, {1, {9}}, {2, {6, 5}}, {2, {1, 4}}, {3, {3, 4, 2}}};

static double loss_of(tg_context *ctx, const char *text, const tg_tensor *pred,
                      const tg_tensor *target, tg_tensor *gradient) {
    tg_loss_config config;
    double loss = (double)NAN;
    net_ok(ctx, tg_loss_config_parse(ctx, "loss", text, &config));
    net_ok(ctx, tg_loss_eval(ctx, &config, pred, target, &loss, gradient));
    return loss;
}

/* Every grid, of real and complex f64 and f32 data, on every backend; 2 samples of 2 channels. */
static void all_cases(void (*check)(tg_context *ctx, const tg_tensor *pred, const tg_tensor *target,
                                    tg_tensor *gradient, double tolerance)) {
    for (int i = 0; i < 8 * COUNT(grids); i++) {
        const int grid = i / 8;
        tg_context *ctx = net_context(backends[i % 2], 2);
        const tg_fno_config data = {.n_dim = grids[grid].ndim,
                                    .dtype = i / 2 % 2 ? TG_F32 : TG_F64,
                                    .complex_data = i / 4 % 2 == 1};
        tg_tensor t[3];
        for (int k = 0; k < 3; k++) {
            t[k] = net_random(ctx, &data, 2, 2, grids[grid].grid, (uint64_t)k + 1);
        }
        check(ctx, &t[0], &t[1], &t[2], data.dtype == TG_F64 ? 1e-12 : 2e-6);
        for (int k = 0; k < 3; k++) {
            tg_tensor_destroy(&t[k]);
        }
        tg_context_destroy(&ctx);
    }
}

/* Order 0 is the L2 norm, by Parseval, relative and absolute; so are their gradients. */
static void order_zero(tg_context *ctx, const tg_tensor *pred, const tg_tensor *target,
                       tg_tensor *gradient, double tolerance) {
    static const char *const texts[][2] = {{"l2", "hs0"}, {"abs_l2", "abs_hs0"}};
    tg_tensor other;
    net_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, pred->dtype, &pred->shape, &other));
    for (int i = 0; i < 2; i++) {
        const double expected = loss_of(ctx, texts[i][0], pred, target, gradient);
        const double found = loss_of(ctx, texts[i][1], pred, target, &other);
        assert_true(fabs(found - expected) <= tolerance * expected);
        assert_true(net_error(&other, gradient) <= 2.0 * tolerance);
    }
    tg_tensor_destroy(&other);
}

TEST(test_order_zero) {
    all_cases(order_zero);
}

/* Gradients in double, of every real number; complex ones are dL/dRe + i dL/dIm. */
static void differences(tg_context *ctx, const tg_tensor *pred, const tg_tensor *target,
                        tg_tensor *gradient, double tolerance) {
    static const char *const texts[] = {"hs1", "abs_hs-0.5 + 0.1*hs2 + l2"};
    const int64_t numbers = tg_tensor_numel(pred) * (tg_dtype_is_complex(pred->dtype) ? 2 : 1);
    if (tg_dtype_real(pred->dtype) != TG_F64) {
        return;
    }
    for (int k = 0; k < COUNT(texts); k++) {
        (void)loss_of(ctx, texts[k], pred, target, gradient);
        for (int64_t i = 0; i < numbers; i += 3) {
            double *number = (double *)pred->data + i, kept = *number, value[2];
            for (int side = 0; side < 2; side++) {
                *number = kept + (side ? 1e-6 : -1e-6);
                value[side] = loss_of(ctx, texts[k], pred, target, NULL);
            }
            *number = kept;
            const double expected = (value[1] - value[0]) / 2e-6;
            const double found = ((const double *)gradient->data)[i];
            assert_true(fabs(found - expected) <= 1e5 * tolerance * (1.0 + fabs(expected)));
        }
    }
}

TEST(test_differences) {
    all_cases(differences);
}

/* cos 2 pi (3 x - 2 y) has P/2 (1 + 4 pi^2 13)^s, and of the wave and a constant the squares add.
 */
TEST(test_waves) {
    enum { N = 12, M = 10 };
    for (int b = 0; b < COUNT(backends); b++) {
        tg_context *ctx = net_context(backends[b], 1);
        const int64_t grid[] = {N, M};
        const tg_fno_config data = {.n_dim = 2, .dtype = TG_F64};
        tg_tensor wave = net_random(ctx, &data, 1, 1, grid, 1);
        tg_tensor zero = net_random(ctx, &data, 1, 1, grid, 2);
        memset(zero.data, 0, tg_tensor_bytes(&zero));
        for (int i = 0; i < N * M; i++) {
            const double phase = 3.0 * (i / M) / N - 2.0 * (i % M) / M;
            ((double *)wave.data)[i] = 0.5 + cos(2.0 * PI * phase);
        }
        static const char *const texts[] = {"abs_hs-1", "abs_hs0.5", "abs_hs2"};
        static const double orders[] = {-1.0, 0.5, 2.0};
        for (int k = 0; k < COUNT(texts); k++) {
            const double square = 0.25 + 0.5 * pow(1.0 + 4.0 * PI * PI * 13.0, orders[k]);
            const double found = loss_of(ctx, texts[k], &wave, &zero, NULL);
            assert_true(fabs(found - sqrt(square)) <= 1e-12 * sqrt(square));
            assert_true(fabs(loss_of(ctx, texts[k] + 4, &zero, &wave, NULL) - 1.0) <= 1e-14);
        }
        /* equal fields give no gradient, and NaN is reported */
        assert_true(loss_of(ctx, "hs1", &wave, &wave, &zero) == 0.0);
        for (int i = 0; i < N * M; i++) {
            assert_true(((const double *)zero.data)[i] == 0.0);
        }
        ((double *)wave.data)[7] = (double)NAN;
        assert_true(isnan(loss_of(ctx, "hs1", &wave, &zero, &zero)));
        assert_true(isnan(((const double *)zero.data)[0]));
        tg_tensor_destroy(&wave);
        tg_tensor_destroy(&zero);
        tg_context_destroy(&ctx);
    }
}

TEST(test_refused) {
    tg_context *ctx = net_context("cpu", 1);
    const int64_t grid[] = {4};
    const tg_fno_config data = {.n_dim = 1, .dtype = TG_F64};
    tg_tensor x = net_random(ctx, &data, 1, 1, grid, 1);
    tg_tensor squares = net_random(ctx, &data, 1, 1, (const int64_t[]){2}, 1);
    assert_int_equal(tg_loss_squares(ctx, TG_LOSS_HS, &x, &x, NULL, &squares), TG_E_ARGUMENT);
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&squares);
    tg_context_destroy(&ctx);
}
