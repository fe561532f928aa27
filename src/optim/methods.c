/* Whole methods by name (methods.def), and the key `name` that sets one. */
#include "optim/config.h"

enum {
#define TG_METHOD(id, word, text, ...) METHOD_##id,
#include "optim/methods.def"
    METHODS
};

static const tg_optim_method methods[METHODS] = {
#define TG_METHOD(id, word, text, ...) {.name = (word), .summary = (text), __VA_ARGS__},
#include "optim/methods.def"
};

static const tg_choice choices[] = {
#define TG_METHOD(id, word, text, ...) {word, METHOD_##id},
#include "optim/methods.def"
    {NULL, 0}};

const tg_setting tg_optim_method_row = {"name",
                                        TG_SETTING_ENUM,
                                        0,
                                        choices,
                                        1,
                                        0,
                                        "method: Adam, or which part of the gradients it sees"};

const tg_optim_method *tg_optim_get_method(int index) {
    return index >= 0 && index < METHODS ? &methods[index] : NULL;
}

/* The share sets the ranks or the sparse ratio, whichever the branch has. */
static void set_branch(tg_branch_config *branch, tg_branch_type type, double share) {
    branch->type = type;
    if (type == TG_BRANCH_LOW_RANK || type == TG_BRANCH_MATRIX) {
        branch->rank = (tg_rank){.count = 1, .value = {share}};
    } else {
        branch->sparse_ratio = share;
    }
}

tg_status tg_optim_method_set(tg_context *ctx, tg_optim_config *config, const char *name) {
    int index = 0;
    TG_CALL(tg_setting_set(ctx, "opt", &tg_optim_method_row, 1, &index, "name", name));
    const tg_optim_method *method = &methods[index];
    const tg_branch_config usual = tg_projector_config_default().first;
    config->is_projected = method->is_projected;
    config->projector.scheme = method->scheme;
    config->projector.first.rank = usual.rank;
    config->projector.first.sparse_ratio = usual.sparse_ratio;
    set_branch(&config->projector.first, method->first, method->first_share);
    if (method->scheme != TG_SCHEME_SINGLE) {
        set_branch(&config->projector.second, method->second, method->second_share);
    }
    return TG_OK;
}
