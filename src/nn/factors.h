/* Factorized spectral weights: the parameters that represent a weight (Cin, Cout, M1 .. Md), and
 * the product with it computed from them without forming it.
 *
 *   Tucker  core (r0, r1, s1 .. sd), factors (Cin, r0), (Cout, r1), (Mk, sk)
 *   CP      weights (R), factors (Cin, R), (Cout, R), (Mk, R)
 *   TT      factors (1, Cin, r1), (r1, Cout, r2), (r2, M1, r3) .. (rd+1, Md, 1)
 *
 * Channels are mapped first, then multiplied mode by mode with a weight in between, and mapped
 * back:
 *
 *   x (Cin, modes) -> x' (inner_in, modes) -> y' (inner_out, modes) -> y (Cout, modes)
 *
 * The inner weight (inner_in, inner_out, modes) is a chain of matrix products that begins at the
 * core. For CP and separable weights it is one number per channel and mode. */
#ifndef TG_NN_FACTORS_H
#define TG_NN_FACTORS_H

#include "base/context.h"
#include "tgrad/fno.h"

enum { NN_MAX_FACTORS = TG_FNO_MAX_DIMS + 2 };

/* One product of the chain, `batch` times: next (m, n) = left (m, k) right (k, n). One operand is
 * the chain so far, the other a factor: matrices with rows `ld` apart, `stride` apart from each
 * other (0: the same for all), possibly transposed. */
typedef struct nn_link {
    int param; /* its number, counted from the first of the weight */
    bool is_left, is_transposed;
    int64_t batch, m, n, k, ld, stride;
} nn_link;

static inline int64_t nn_link_numbers(const nn_link *link) {
    return link->batch * link->m * link->n;
}

typedef struct nn_factors {
    int params; /* 0: a dense weight, which is itself a parameter */
    tg_shape shape[NN_MAX_FACTORS + 1];
    double deviation[NN_MAX_FACTORS + 1]; /* of the initial numbers; 0: they are 1 */
    int core;                             /* the start of the chain */
    int in, out;                          /* the maps; -1: none */
    int64_t inner_in, inner_out;
    bool is_separable; /* inner_in is inner_out, with no sum in between */
    int links;
    nn_link link[TG_FNO_MAX_DIMS];
} nn_factors;

/* For a weight (in, out, modes) of a network with these settings. */
TG_NODISCARD tg_status nn_factors_make(tg_context *ctx, const tg_fno_config *config, int64_t in,
                                       int64_t out, const int64_t *modes, nn_factors *factors);

/* The name of a parameter, appended to its module's: "weight.core", "weight.factors.factor_2". */
void nn_factors_name(tg_factorization form, int param, char *text, size_t capacity);

/* Whether an optimizer may compress its gradients: the large ones. */
bool nn_factors_compresses(tg_factorization form, const nn_factors *factors, int param);

#endif
