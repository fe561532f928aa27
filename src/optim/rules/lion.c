/* Lion (Chen et al. 2023), one moment:
 *     c = b1 m + (1 - b1) g,  u = sign(c),  m <- b2 m + (1 - b2) g
 * The sign of a complex c is its phase c / |c|, or with complex_adam: split that of each part; the
 * sign of 0 is 0. */
#include "optim/rules/rules.h"

static tg_status step(tg_backend *be, int count, const tg_adam *ops) {
    for (int i = 0; i < count; i++) {
        TG_CALL(be->ops->rule_step(be, &ops[i], TG_KERNEL_LION));
    }
    return TG_OK;
}

const tg_rule tg_rule_lion = {.states = 1, .state = {{.name = "m"}}, .step = step};
