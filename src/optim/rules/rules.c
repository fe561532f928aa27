/* The list of update rules. */
#include "optim/rules/rules.h"

#include <math.h>
#include <string.h>

const tg_rule *const tg_rules[TG_RULES] = {
#define TG_RULE(id, word, rule) [TG_RULE_##id] = &(rule),
#include "optim/rules.def"
#undef TG_RULE
};

const tg_choice tg_rule_choices[] = {
#define TG_RULE(id, word, rule) {word, TG_RULE_##id},
#include "optim/rules.def"
#undef TG_RULE
    {NULL, 0}};

double tg_rule_correction(const tg_rule *rule, const tg_optim_config *config, int64_t t) {
    return rule->correction ? rule->correction(config, t) : 1.0;
}

bool tg_rule_runs_on(const tg_rule *rule, const tg_backend_ops *ops) {
    return rule->runs_on ? rule->runs_on(ops) : ops->rule_step != NULL;
}

const tg_rule *tg_rule_of(const tg_optim_config *config, const tg_shape *shape) {
    const tg_rule *rule = tg_rules[config->rule];
    const bool is_matrix = shape->ndim >= 2 && shape->dim[0] > 1 && shape->dim[1] > 1;
    return rule->step_whole && !(is_matrix && tg_shape_numel(shape) > config->min_entries)
               ? &tg_rule_adam
               : rule;
}

int64_t tg_rule_values(const tg_optim_config *config, const tg_shape *shape) {
    const tg_rule *rule = tg_rule_of(config, shape);
    return rule->values ? rule->values(config, shape) : tg_shape_numel(shape);
}

/* hypot costs more than the rest of a step, and is needed only where squares leave the range. */
static double modulus_of(double re, double im) {
    const double square = re * re + im * im;
    return square > 1e-280 && square < 1e280 ? sqrt(square) : hypot(re, im);
}

/* An entry is `parts` reals that share their modulus. */
void tg_rule_take_signs(const tg_rule_arrays *a) {
    const int parts = a->is_paired ? 2 : 1;
    for (int64_t i = 0; i < a->n; i += parts) {
        const double modulus = parts == 2 ? modulus_of(a->u[i], a->u[i + 1]) : fabs(a->u[i]);
        for (int64_t j = i; j < i + parts; j++) {
            a->u[j] = modulus > 0.0 ? a->u[j] / modulus : 0.0;
        }
    }
}

static void take_signs_of_gradient(const tg_adam *op, const tg_rule_arrays *a) {
    (void)op;
    memcpy(a->u, a->g, (size_t)a->n * sizeof *a->u);
    tg_rule_take_signs(a);
}

tg_status tg_rule_step_by_signs(tg_backend *be, const tg_adam *op) {
    return be->ops->rule_step(be, op, take_signs_of_gradient);
}

static void pass_on(const tg_adam *op, const tg_rule_arrays *a) {
    (void)op;
    memcpy(a->u, a->g, (size_t)a->n * sizeof *a->u);
}

tg_status tg_rule_read_gradient(tg_backend *be, const tg_adam *op, void *out) {
    tg_adam read = *op;
    read.m = read.v = read.weight = NULL;
    read.form = TG_STATE_FULL;
    read.direction = out;
    return be->ops->rule_step(be, &read, pass_on);
}

tg_status tg_rule_use_direction(tg_backend *be, const tg_adam *op, void *direction) {
    tg_adam use = *op;
    use.m = use.v = NULL;
    use.form = TG_STATE_FULL;
    use.grad = direction;
    use.grad_store = TG_STORE_FULL;
    use.scale = 1.0;
    return be->ops->rule_step(be, &use, pass_on);
}

const char *tg_rule_name(const tg_rule *rule) {
    int i = 0;
    while (tg_rules[tg_rule_choices[i].value] != rule) {
        i++;
    }
    return tg_rule_choices[i].name;
}
