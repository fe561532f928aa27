/* The list of update rules, and those that treat every value alike: Adam and Lion. */
#include "optim/rules/rules.h"

#include <math.h>

const tg_rule *const tg_rules[TG_RULES] = {
#define TG_RULE(id, word, rule) [TG_RULE_##id] = &(rule),
#include "optim/rules.def"
};

const tg_choice tg_rule_choices[] = {
#define TG_RULE(id, word, rule) {word, TG_RULE_##id},
#include "optim/rules.def"
    {NULL, 0}};

double tg_rule_correction(const tg_rule *rule, const tg_optim_config *config, int64_t t) {
    return rule->correction ? rule->correction(config, t) : 1.0;
}

const tg_rule *tg_rule_of(const tg_optim_config *config, const tg_shape *shape) {
    const tg_rule *rule = tg_rules[config->rule];
    const bool is_matrix = shape->ndim >= 2 && shape->dim[0] > 1 && shape->dim[1] > 1;
    return rule->step_whole && !(is_matrix && tg_shape_numel(shape) > config->min_entries)
               ? &tg_rule_adam
               : rule;
}

int64_t tg_rule_values(const tg_rule *rule, const tg_optim_config *config, const tg_shape *shape) {
    return rule->values ? rule->values(config, shape) : tg_shape_numel(shape);
}

tg_status tg_rule_read_gradient(tg_backend *be, const tg_adam *op, void *out) {
    tg_adam read = *op;
    read.kernel = TG_KERNEL_GRADIENT;
    read.m = read.v = read.weight = NULL;
    read.form = TG_STATE_FULL;
    read.direction = out;
    return be->ops->update(be, 1, &read);
}

tg_status tg_rule_use_direction(tg_backend *be, const tg_adam *op, void *direction) {
    tg_adam use = *op;
    use.kernel = TG_KERNEL_GRADIENT;
    use.m = use.v = NULL;
    use.form = TG_STATE_FULL;
    use.grad = direction;
    use.grad_store = TG_STORE_FULL;
    use.scale = 1.0;
    return be->ops->update(be, 1, &use);
}

const char *tg_rule_name(const tg_rule *rule) {
    int i = 0;
    while (tg_rules[tg_rule_choices[i].value] != rule) {
        i++;
    }
    return tg_rule_choices[i].name;
}

/* ---- the rules of single values ---- */

/* Adam:
 *     m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) |g|^2,  u = m / (sqrt(v) + eps)
 * and the rate times sqrt(1 - b2^t) / (1 - b1^t). */
static double adam_correction(const tg_optim_config *config, int64_t t) {
    const double n = (double)t;
    return sqrt(1.0 - pow(config->beta2, n)) / (1.0 - pow(config->beta1, n));
}

const tg_rule tg_rule_adam = {.states = 2,
                              .state = {{.name = "m"}, {.name = "v", .is_square = true}},
                              .correction = adam_correction};

/* Lion (Chen et al. 2023), one moment:
 *     c = b1 m + (1 - b1) g,  u = sign(c),  m <- b2 m + (1 - b2) g
 * The sign of a complex c is its phase c / |c|, or with complex_adam: split that of each part; the
 * sign of 0 is 0. */
const tg_rule tg_rule_lion = {.states = 1, .kernel = TG_KERNEL_LION, .state = {{.name = "m"}}};
