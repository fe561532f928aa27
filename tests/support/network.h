/* Networks under test: made from the settings of a golden file or by hand, with a sink that keeps
 * every gradient. Failures end the test through cmocka. */
#ifndef TEST_SUPPORT_NETWORK_H
#define TEST_SUPPORT_NETWORK_H

#include "support/cmocka.h"
#include "tgrad/tgrad.h"

/* The call succeeds; otherwise the test fails with the context's message. */
#define net_ok(ctx, call) net_status_at((ctx), __FILE__, __LINE__, (call))
void net_status_at(tg_context *ctx, const char *file, int line, tg_status status);

/* A context on that backend. */
tg_context *net_context(const char *backend, int threads);

/* Whether a backend is there, and wanted (TEST_BACKEND names the only one). */
bool net_is_there(const char *backend);

/* Settings from JSON, {"n_modes": [8, 8], ..}; keys not named keep their defaults. */
tg_fno_config net_config(tg_context *ctx, const char *json);
/* A network of these settings, to be destroyed. */
tg_fno *net_fno(tg_context *ctx, uint64_t seed, const char *json);

/* Keeps the dense form of every gradient it receives. */
typedef struct net_gradients {
    tg_context *ctx;
    int count;
    tg_tensor *gradient; /* (count): those not received yet are all zero */
    int received;
} net_gradients;

net_gradients net_gradients_make(tg_context *ctx, const tg_fno *fno);
void net_gradients_free(net_gradients *gradients);
tg_grad_sink net_sink(net_gradients *gradients);

/* |got - expected| in the 2-norm (expected NULL: |got|), and divided by |expected|; NaN if anything
 * is; the dtypes may differ. */
double net_distance(const tg_tensor *got, const tg_tensor *expected);
double net_error(const tg_tensor *got, const tg_tensor *expected);

/* A tensor of the network's data type with random entries in [-1, 1). */
tg_tensor net_random(tg_context *ctx, const tg_fno_config *config, int64_t batch, int64_t channels,
                     const int64_t *grid, uint64_t seed);

#endif
