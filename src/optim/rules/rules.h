/* Update rules: what is kept of every value of a gradient, dense or compressed, and the direction
 * that follows from it. Which values there are (project/), how the state tensors are kept in memory
 * (backend/state_codec.h) and what is done with the direction is no concern of a rule:
 *
 *     w <- (1 - lr wd) (w - lr correction(t) back(u)),   u and the new states from g and the old
 * ones
 */
#ifndef TG_OPTIM_RULES_RULES_H
#define TG_OPTIM_RULES_RULES_H

#include "backend/backend.h"
#include "base/setting.h"
#include "tgrad/optim.h"

enum { TG_RULE_STATES = 2 }; /* at most: a tg_adam has room for as many */

/* A tensor that a rule keeps, a number for every value. All start at 0, and so they do after a
 * refresh with moments_on_refresh: reset. */
typedef struct tg_rule_state {
    const char *name; /* in a saved state */
    /* Of squares: never negative, one real for a complex value (two with complex_adam: split), and
     * coordinates that automatic ranks add start as large as their neighbours, not at 0. */
    bool is_square;
} tg_rule_state;

typedef struct tg_rule {
    int states;
    tg_rule_state state[TG_RULE_STATES];
    /* Factor of the learning rate at update t, counted from 1 since the states were 0. */
    double (*correction)(const tg_optim_config *config, int64_t t);
    /* Whether the backend has what step needs. */
    bool (*runs_on)(const tg_backend_ops *ops);
    /* Some updates, each of its own arrays. */
    tg_status (*step)(tg_backend *be, int count, const tg_adam *ops);
} tg_rule;

#define TG_RULE(id, word, rule) extern const tg_rule rule;
#include "optim/rules.def"
#undef TG_RULE

/* By tg_update_rule, and the words of opt.rule. */
extern const tg_rule *const tg_rules[];
extern const tg_choice tg_rule_choices[];
enum {
#define TG_RULE(id, word, rule) TG_RULE_INDEX_##id,
#include "optim/rules.def"
#undef TG_RULE
    TG_RULES
};

/* The word of a rule. */
const char *tg_rule_name(const tg_rule *rule);

#endif
