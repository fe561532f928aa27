/* Adam, by its own backend slots:
 *     m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) |g|^2,  u = m / (sqrt(v) + eps)
 * and the rate times sqrt(1 - b2^t) / (1 - b1^t). */
#include <math.h>

#include "optim/rules/rules.h"

static double correction(const tg_optim_config *config, int64_t t) {
    const double n = (double)t;
    return sqrt(1.0 - pow(config->beta2, n)) / (1.0 - pow(config->beta1, n));
}

static tg_status step(tg_backend *be, int count, const tg_adam *ops) {
    return be->ops->adam(be, count, ops);
}

const tg_rule tg_rule_adam = {.states = 2,
                              .state = {{.name = "m"}, {.name = "v", .is_square = true}},
                              .correction = correction,
                              .step = step};
