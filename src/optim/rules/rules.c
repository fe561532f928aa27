/* The list of update rules. */
#include "optim/rules/rules.h"

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

const char *tg_rule_name(const tg_rule *rule) {
    int i = 0;
    while (tg_rules[tg_rule_choices[i].value] != rule) {
        i++;
    }
    return tg_rule_choices[i].name;
}
