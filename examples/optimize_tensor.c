/* One complex tensor, one optimizer: minimise |w - target|^2 with TensorGRaD, then with dense Adam.
 *
 * TensorGRaD keeps Adam's moments for 5 % of the gradient's entries and a Tucker core of 20 %. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <tgrad/tgrad.h>

enum { D0 = 12, D1 = 10, D2 = 12, D3 = 7, ENTRIES = D0 * D1 * D2 * D3, STEPS = 300 };

static float target[ENTRIES][2], weight[ENTRIES][2], grad[ENTRIES][2]; /* {re, im} */

/* Waves, which have low rank, and a few spikes, which do not. */
static void make_target(void) {
    for (int i = 0; i < ENTRIES; i++) {
        const int a = i / (D1 * D2 * D3), b = i / (D2 * D3) % D1, c = i / D3 % D2, d = i % D3;
        target[i][0] = (float)(cos(0.3 * a + 0.2 * b) * sin(0.5 * c) + (i % 97 == 0 ? 3.0 : 0.0));
        target[i][1] = (float)(sin(0.4 * b) * cos(0.1 * c + 0.7 * d));
    }
}

/* Loss, and its gradient dL/dRe + i dL/dIm. */
static double evaluate(void) {
    double loss = 0.0;
    for (int i = 0; i < ENTRIES; i++) {
        for (int part = 0; part < 2; part++) {
            const double error = (double)weight[i][part] - (double)target[i][part];
            grad[i][part] = (float)(2.0 * error);
            loss += error * error;
        }
    }
    return loss;
}

/* Trains with the optimizer of that name; true if the loss fell to a hundredth. */
static bool train(tg_context *ctx, const char *name) {
    tg_optim_config config = tg_optim_config_default();
    tg_optim *optim = NULL;
    bool ok = tg_optim_config_set(ctx, &config, "name", name) == TG_OK &&
              tg_optim_config_set(ctx, &config, "learning_rate", "0.3") == TG_OK &&
              tg_optim_config_set(ctx, &config, "update_proj_gap", "20") == TG_OK;
    const tg_optim_param param = {
        .name = "w", .dtype = TG_C64, .shape = {.ndim = 4, .dim = {D0, D1, D2, D3}}};
    const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                  .groups = &config,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1};
    tg_tensor w, g;
    ok = ok && tg_optim_create(ctx, &setup, &optim) == TG_OK &&
         tg_tensor_wrap(ctx, param.dtype, &param.shape, weight, &w) == TG_OK &&
         tg_tensor_wrap(ctx, param.dtype, &param.shape, grad, &g) == TG_OK;
    memset(weight, 0, sizeof weight);
    const double first = evaluate();
    double loss = first;
    for (int step = 0; ok && step < STEPS; step++) {
        ok = tg_optim_step(optim, 0, &g, &w) == TG_OK;
        loss = evaluate();
    }
    const tg_mem_usage memory = tg_context_memory(ctx, TG_HOST);
    const size_t moments = memory.current[TG_MEM_OPTIMIZER];
    const size_t factors = memory.current[TG_MEM_FACTORS];
    const size_t indices = memory.current[TG_MEM_INDICES];
    if (ok) {
        printf("%-10s loss %.4g to %.4g, state %zu bytes: moments %zu, factors %zu, indices %zu\n",
               name, first, loss, moments + factors + indices, moments, factors, indices);
    } else {
        fprintf(stderr, "%s: %s\n", name, tg_context_error(ctx));
    }
    tg_optim_destroy(&optim);
    return ok && loss < 0.01 * first;
}

int main(void) {
    tg_context *ctx = NULL;
    make_target();
    bool ok = tg_context_create(NULL, &ctx) == TG_OK && tg_backend_select(ctx, "cpu") == TG_OK;
    ok = ok && train(ctx, "tensorgrad") && train(ctx, "adam");
    tg_context_destroy(&ctx);
    return ok ? 0 : 1;
}
