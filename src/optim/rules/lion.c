/* Lion (Chen et al. 2023), one moment:
 *     c = b1 m + (1 - b1) g,  u = sign(c),  m <- b2 m + (1 - b2) g
 * The sign of a complex c is its phase c / |c|, or with complex_adam: split that of each part; the
 * sign of 0 is 0. */
#include <math.h>

#include "optim/rules/rules.h"

static double correction(const tg_optim_config *config, int64_t t) {
    (void)config;
    (void)t;
    return 1.0;
}

static bool runs_on(const tg_backend_ops *ops) {
    return ops->rule_step != NULL;
}

/* An entry is `parts` reals that share their modulus. */
static void move(const tg_adam *op, const tg_rule_arrays *a) {
    const int parts = a->is_paired ? 2 : 1;
    for (int64_t i = 0; i < a->n; i += parts) {
        for (int64_t j = i; j < i + parts; j++) {
            a->u[j] = op->beta1 * a->m[j] + (1.0 - op->beta1) * a->g[j];
            a->m[j] = op->beta2 * a->m[j] + (1.0 - op->beta2) * a->g[j];
        }
        const double modulus = parts == 2 ? hypot(a->u[i], a->u[i + 1]) : fabs(a->u[i]);
        for (int64_t j = i; j < i + parts; j++) {
            a->u[j] = modulus > 0.0 ? a->u[j] / modulus : 0.0;
        }
    }
}

static tg_status step(tg_backend *be, int count, const tg_adam *ops) {
    tg_status status = TG_OK;
    for (int i = 0; i < count && status == TG_OK; i++) {
        status = be->ops->rule_step(be, &ops[i], move);
    }
    return status;
}

const tg_rule tg_rule_lion = {.states = 1,
                              .state = {{.name = "m"}},
                              .correction = correction,
                              .runs_on = runs_on,
                              .step = step};
