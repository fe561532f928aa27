/* Update rules: the state kept per value of a gradient, dense or compressed, and the direction. A
 * rule does not depend on the projection (project/), the storage of the state
 * (backend/state_codec.h) or the use of the direction:
 *
 *     w <- (1 - lr wd) (w - lr correction(t) back(u)),   u and new states from g and the old */
#ifndef TG_OPTIM_RULES_RULES_H
#define TG_OPTIM_RULES_RULES_H

#include "backend/backend.h"
#include "base/setting.h"
#include "tgrad/optim.h"

enum { TG_RULE_STATES = 3 }; /* at most */

/* A state tensor, one number per value. It starts at 0, also after a refresh with
 * moments_on_refresh: reset. */
typedef struct tg_rule_state {
    const char *name; /* in a saved state */
    bool is_square; /* never negative; one real per complex value (two with complex_adam: split) */
    bool is_single; /* one real for the whole parameter, stored uncompressed */
} tg_rule_state;

/* Adds up values over ranks, in place. */
typedef struct tg_adder {
    tg_status (*add)(void *user, const tg_tensor *values);
    void *user;
} tg_adder;

/* A parameter whose rule needs its values as a whole, or a block of it. */
typedef struct tg_whole {
    const tg_optim_config *config;
    tg_dtype dtype;
    tg_shape shape;
    int64_t step;   /* updates before this one */
    int64_t t;      /* updates in the states, with this one */
    void *single;   /* the state that is one real, or NULL */
    void *work;     /* scratch of `work` bytes */
    tg_adder parts; /* of a block: the ranks that have the others; add NULL: it is whole */
} tg_whole;

typedef struct tg_rule {
    int states;
    tg_rule_kernel kernel;
    const char *keys; /* keys of projections that this rule reads, too; NULL: none */
    tg_rule_state state[TG_RULE_STATES];
    /* Factor of the learning rate at update t, counted from 1 since the states were 0; NULL: 1. */
    double (*correction)(const tg_optim_config *config, int64_t t);

    /* Rules of whole weights only: how many values have states (NULL: all), bytes of scratch, and
     * the update, with m and v of those values, grad and weight of all. They apply to weights with
     * rows and columns; other parameters of the group use Adam. */
    int64_t (*values)(const tg_optim_config *config, const tg_shape *shape);
    size_t (*work)(const tg_whole *whole);
    tg_status (*step_whole)(tg_backend *be, const tg_whole *whole, const tg_adam *op);
} tg_rule;

double tg_rule_correction(const tg_rule *rule, const tg_optim_config *config, int64_t t);

/* The rule of a dense parameter, a whole tensor. */
const tg_rule *tg_rule_of(const tg_optim_config *config, const tg_shape *shape);
/* The number of values with states: set by a rule of whole weights, otherwise all. */
int64_t tg_rule_values(const tg_rule *rule, const tg_optim_config *config, const tg_shape *shape);

#define TG_RULE(id, word, rule) extern const tg_rule rule;
#include "optim/rules.def"

/* The gradient scaled, in the arithmetic's precision; and how a direction is applied: the two ends
 * of a rule of whole weights. */
TG_NODISCARD tg_status tg_rule_read_gradient(tg_backend *be, const tg_adam *op, void *out);
TG_NODISCARD tg_status tg_rule_use_direction(tg_backend *be, const tg_adam *op, void *direction);

/* Indexed by tg_update_rule; and the names in opt.rule. */
extern const tg_rule *const tg_rules[];
extern const tg_choice tg_rule_choices[];
enum {
#define TG_RULE(id, word, rule) TG_RULE_INDEX_##id,
#include "optim/rules.def"
    TG_RULES
};

/* The name of a rule. */
const char *tg_rule_name(const tg_rule *rule);

#endif
