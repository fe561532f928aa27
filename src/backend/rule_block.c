/* An update by a rule on the host, by blocks of values, for all formats of state and weight. */
#include "backend/check.h"
#include "backend/rule_kernel.h"
#include "backend/state_codec.h"

enum { BLOCK = TG_STATE_BLOCK };

/* Reals [first, first + n) of m (second: of v), from the start of a block on. */
static void load_moment(const tg_adam *op, bool second, int64_t first, int64_t n, double *to) {
    const tg_state_codec *codec = tg_state_codecs[op->form];
    const tg_dtype real = tg_dtype_real(op->dtype);
    const char *x = second ? op->v : op->m;
    if (!codec->decode) {
        tg_load_reals(real, x, first, n, to);
        return;
    }
    const float *scale = second ? op->v_scale : op->m_scale;
    float values[2 * BLOCK];
    codec->decode(second, n, x + tg_state_bytes(codec, real, first),
                  scale ? scale + tg_state_scales(codec, first) : NULL, values);
    for (int64_t j = 0; j < n; j++) {
        to[j] = (double)values[j];
    }
}

static void store_moment(const tg_adam *op, bool second, int64_t first, int64_t n,
                         const double *from) {
    const tg_state_codec *codec = tg_state_codecs[op->form];
    const tg_dtype real = tg_dtype_real(op->dtype);
    char *x = second ? op->v : op->m;
    if (!codec->encode) {
        tg_store_reals(real, x, first, n, from);
        return;
    }
    const uint64_t number = (second ? UINT64_C(1) << 63 : UINT64_C(1) << 62) + (uint64_t)first;
    float *scale = second ? op->v_scale : op->m_scale;
    float values[2 * BLOCK];
    for (int64_t j = 0; j < n; j++) {
        values[j] = (float)from[j];
    }
    codec->encode(second, tg_adam_state_rounding(op), number, n, values,
                  x + tg_state_bytes(codec, real, first),
                  scale ? scale + tg_state_scales(codec, first) : NULL);
}

/* Reals [first, first + n) of the gradient. */
static void load_gradient(const tg_adam *op, int64_t first, int64_t n, double *g) {
    tg_load_reals(tg_stored(op->dtype, op->grad_store), op->grad, first, n, g);
    for (int64_t j = 0; j < n; j++) {
        g[j] *= op->scale;
    }
}

/* Stores reals [first, first + n) of the direction; overwrites u. */
static void use_direction(const tg_adam *op, int64_t first, int64_t n, double *u) {
    if (op->direction) {
        tg_store_reals(op->dtype, op->direction, first, n, u);
    }
    if (!op->weight) {
        return;
    }
    const tg_dtype stored = tg_stored(op->dtype, op->weight_store);
    double old[2 * BLOCK] = {0};
    if (op->beta != 0.0) {
        tg_load_reals(stored, op->weight, first, n, old);
    }
    for (int64_t j = 0; j < n; j++) {
        u[j] = op->alpha * u[j] + op->beta * old[j];
    }
    if (op->weight_store == TG_STORE_FULL) {
        tg_store_reals(stored, op->weight, first, n, u);
        return;
    }
    for (int64_t j = 0; j < n; j++) {
        tg_store_rounded(tg_dtype_real(stored), op->weight, first + j, (tg_scalar){u[j], 0.0},
                         op->rounding);
    }
}

void tg_rule_block(const tg_adam *op, int64_t first, int64_t n) {
    const tg_rule_kernel kernel = op->kernel;
    double g[2 * BLOCK], m[2 * BLOCK] = {0}, v[2 * BLOCK] = {0}, u[2 * BLOCK];
    const int64_t width = tg_dtype_is_complex(op->dtype) ? 2 : 1;
    const int parts = width == 2 && !op->split ? 2 : 1;
    const int64_t at = width * first, reals = width * n;
    const bool has_m = tg_rule_has_m(kernel), has_v = kernel == TG_KERNEL_ADAM;
    load_gradient(op, at, reals, g);
    if (has_m) {
        load_moment(op, false, at, reals, m);
    }
    if (has_v) {
        load_moment(op, true, at / parts, reals / parts, v);
    }
    for (int64_t i = 0; i < reals; i += parts) {
        tg_rule_move(kernel, op, parts, g + i, m + i, v + i / parts, u + i);
    }
    use_direction(op, at, reals, u);
    if (has_m) {
        store_moment(op, false, at, reals, m);
    }
    if (has_v) {
        store_moment(op, true, at / parts, reals / parts, v);
    }
}
