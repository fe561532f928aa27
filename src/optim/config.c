/* Settings of a group: defaults, keys by name, checks. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "optim/optim.h"

_Static_assert(sizeof(tg_rank) == sizeof(tg_list_double), "a rank is a list of numbers");
_Static_assert(TG_MAX_NDIM == TG_SETTING_LIST, "a list has room for one entry per mode");

void tg_optim_config_init(tg_optim_config *config, size_t size) {
    const tg_optim_config defaults = {.size = sizeof defaults,
                                      .learning_rate = 1e-3,
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .eps = 1e-6,
                                      .projector = tg_projector_config_default(),
                                      .min_entries = 1000,
                                      .update_proj_gap = 1000.0,
                                      .update_proj_gap_end = 1000.0};
    tg_sized_init(config, size, &defaults, sizeof defaults);
}

tg_status tg_optim_config_read(tg_context *ctx, const tg_optim_config *config,
                               tg_optim_config *out) {
    *out = tg_optim_config_default();
    return TG_SIZED_READ(ctx, tg_optim_config, learning_rate, config, out);
}

static const tg_choice complex_adam_choices[] = {
    {"modulus", TG_ADAM_MODULUS}, {"split", TG_ADAM_SPLIT}, {NULL, 0}};
static const tg_choice sparse_choices[] = {{"topk", TG_SPARSE_TOPK},
                                           {"randk", TG_SPARSE_RANDK},
                                           {"probability", TG_SPARSE_PROBABILITY},
                                           {NULL, 0}};
static const tg_choice svd_choices[] = {{"truncated", TG_SVD_TRUNCATED},
                                        {"randomized", TG_SVD_RANDOMIZED},
                                        {"truncated_svd", TG_SVD_TRUNCATED},
                                        {"randomized_svd", TG_SVD_RANDOMIZED},
                                        {NULL, 0}};
static const tg_choice init_choices[] = {
    {"hosvd", TG_INIT_HOSVD}, {"st_hosvd", TG_INIT_ST_HOSVD}, {NULL, 0}};
static const tg_choice side_choices[] = {
    {"left", TG_SIDE_LEFT}, {"right", TG_SIDE_RIGHT},
    {"std", TG_SIDE_STD},   {"reverse_std", TG_SIDE_REVERSE_STD},
    {"full", TG_SIDE_FULL}, {NULL, 0}};
static const tg_choice gap_choices[] = {{"fixed", TG_GAP_FIXED},
                                        {"linear", TG_GAP_LINEAR},
                                        {"exponential", TG_GAP_EXPONENTIAL},
                                        {"exponential2", TG_GAP_EXPONENTIAL2},
                                        {NULL, 0}};
static const tg_choice moments_choices[] = {
    {"keep", TG_MOMENTS_KEEP}, {"reset", TG_MOMENTS_RESET}, {NULL, 0}};
static const tg_choice rounding_choices[] = {
    {"stochastic", TG_ROUND_STOCHASTIC}, {"nearest", TG_ROUND_NEAREST}, {NULL, 0}};
static const tg_choice nonfinite_choices[] = {
    {"skip", TG_NONFINITE_SKIP}, {"error", TG_NONFINITE_ERROR}, {NULL, 0}};
/* optimizer_type: the published code's name for the combination of two projections. */
static const tg_choice type_choices[] = {{"adamw", TG_SCHEME_SINGLE},
                                         {"tensorgrad", TG_SCHEME_COMPOSITE},
                                         {"tensorgrad_sum", TG_SCHEME_SUM},
                                         {NULL, 0}};

#define OPT(type, field, low, high, help)                                                          \
    TG_SETTING_ROW(type, tg_optim_config, field, low, high, help)
#define OPT_CHOICE(field, choices, help) TG_SETTING_CHOICE(tg_optim_config, field, choices, help)
#define FIELD(path)                      offsetof(tg_optim_config, path)
#define FIRST(path)                      offsetof(tg_optim_config, projector.first.path)
#define SECOND(path)                     offsetof(tg_optim_config, projector.second.path)
#define ROW(key, type, offset, help)                                                               \
    { key, TG_SETTING_##type, offset, NULL, 1, 0, help }
#define ROW_CHOICE(key, offset, choices, help)                                                     \
    { key, TG_SETTING_ENUM, offset, choices, 1, 0, help }

/* Settings of decompositions are those of both branches (share_with_second). */
static const tg_setting table[] = {
    OPT(DOUBLE, learning_rate, 0, 1e6, "learning rate at the start"),
    OPT_CHOICE(rule, tg_rule_choices,
               "update: Adam or Lion of values, dense or compressed; APOLLO, Muon of weights"),
    OPT(DOUBLE, beta1, 0, 1, "Adam: decay of the first moment; Lion: its share in the direction"),
    OPT(DOUBLE, beta2, 0, 1, "Adam: decay of the second moment; Lion: of its only one"),
    OPT(DOUBLE, eps, 0, 1, "Adam: added to the uncorrected root"),
    OPT(DOUBLE, weight_decay, 0, 1e6, "decoupled weight decay"),
    OPT_CHOICE(complex_adam, complex_adam_choices,
               "second moment (Lion: sign) of a complex entry: one by its modulus, or two"),
    OPT_CHOICE(state_precision, tg_state_choices,
               "storage of moments: f32, bf16, one byte, or f16"),
    OPT_CHOICE(state_rounding, rounding_choices, "rounding of moments to less than f32"),
    ROW("tensorgrad", BOOL, FIELD(is_projected), "compress the gradients of spectral weights"),
    ROW_CHOICE("optimizer_type", FIELD(projector.scheme), type_choices,
               "first branch alone, second on its residual, or side by side"),
    ROW_CHOICE("proj_type", FIRST(type), tg_branch_choices, "first branch of the compression"),
    ROW("rank", LIST_DOUBLE, FIRST(rank), "low rank: a fraction, an integer or a list"),
    ROW("sparse_ratio", DOUBLE, FIRST(sparse_ratio),
        "sparse: share of the entries that is kept, in (0, 1]"),
    ROW_CHOICE("sparse_type", FIRST(sparse_type), sparse_choices, "sparse: how entries are chosen"),
    ROW("scale", DOUBLE, FIRST(scale), "factor of the first branch in the expanded update"),
    ROW("scale_by_mask_ratio", BOOL, FIRST(scale_by_mask_ratio),
        "sparse: multiply also by sqrt(entries / kept)"),
    ROW_CHOICE("second_proj_type", SECOND(type), tg_branch_choices,
               "second branch of the compression"),
    ROW("second_rank", LIST_DOUBLE, SECOND(rank), "as rank, for the second branch"),
    ROW("second_sparse_ratio", DOUBLE, SECOND(sparse_ratio),
        "as sparse_ratio, for the second branch"),
    ROW_CHOICE("second_sparse_type", SECOND(sparse_type), sparse_choices,
               "as sparse_type, for the second branch"),
    ROW("second_scale", DOUBLE, SECOND(scale), "as scale, for the second branch"),
    ROW("second_scale_by_mask_ratio", BOOL, SECOND(scale_by_mask_ratio),
        "as scale_by_mask_ratio, for the second branch"),
    ROW("tensorgrad_sum_lambda_sparse", DOUBLE, FIELD(projector.lambda_sparse),
        "weight of the sparse branch in the update"),
    OPT(BOOL, match_rms, 0, 1, "scale updates to the RMS that they have in AdamW of torch"),
    ROW_CHOICE("svd_type", FIRST(svd_type), svd_choices,
               "cold start of a Tucker decomposition: Gram matrices or sketches"),
    ROW_CHOICE("tucker_init", FIRST(tucker_init), init_choices,
               "cold start: all modes of the tensor, or one after the other"),
    {"n_iter_max_tucker", TG_SETTING_INT, FIRST(n_iter_max_tucker), NULL, 0, 1e6,
     "sweeps of a refresh"},
    ROW("tucker_warm_restart", BOOL, FIRST(tucker_warm_restart),
        "a refresh starts from the factors before"),
    {"first_dim_rollup", TG_SETTING_INT, FIRST(first_dim_rollup), NULL, 1, TG_MAX_NDIM - 1,
     "GaLore: leading modes that become the rows"},
    ROW_CHOICE("galore_2d_proj_type", FIRST(side), side_choices, "GaLore: side of the projection"),
    OPT(BYTES, memory_budget, 0, 1e18,
        "bytes of compressed state, or a share up to 1, that set the rank; 0: off"),
    OPT(INT64, min_entries, 0, 1e15, "parameters with up to this many entries stay dense"),
    OPT(DOUBLE, update_proj_gap, 1, 1e15, "steps between refreshes of the compression"),
    OPT(DOUBLE, update_proj_gap_end, 1, 1e15, "the same at the end of a gap schedule"),
    OPT_CHOICE(update_proj_gap_mode, gap_choices, "how the gap changes over the run"),
    OPT(INT64, total_steps, 0, 1e15, "length of a gap schedule; 0: of the run"),
    OPT_CHOICE(moments_on_refresh, moments_choices, "effect of a refresh on the moments"),
    OPT_CHOICE(nonfinite, nonfinite_choices, "effect of a gradient with NaN or Inf"),
};

enum { ROWS = sizeof table / sizeof table[0] };

const tg_setting *tg_optim_config_rows(void) {
    return table;
}

int tg_optim_config_count(void) {
    return ROWS;
}

const char *tg_optim_config_key(int index) {
    return index >= 0 && index < ROWS ? table[index].key : NULL;
}

/* The field of a rank key, or NULL. */
static tg_rank *rank_field(tg_optim_config *config, const char *key) {
    return strcmp(key, "rank") == 0          ? &config->projector.first.rank
           : strcmp(key, "second_rank") == 0 ? &config->projector.second.rank
                                             : NULL;
}

const char *tg_optim_config_get(const tg_optim_config *config, int index, char *text,
                                size_t capacity) {
    tg_optim_config full;
    if (!config || !text || index < 0 || index >= ROWS ||
        tg_optim_config_read(NULL, config, &full) != TG_OK) {
        return NULL;
    }
    return tg_setting_get(&table[index], &full, text, capacity);
}

/* Decomposition settings have one key for both branches. */
static void share_with_second(tg_projector_config *config) {
    config->second.svd_type = config->first.svd_type;
    config->second.tucker_init = config->first.tucker_init;
    config->second.n_iter_max_tucker = config->first.n_iter_max_tucker;
    config->second.tucker_warm_restart = config->first.tucker_warm_restart;
    config->second.first_dim_rollup = config->first.first_dim_rollup;
    config->second.side = config->first.side;
}

/* ---- whole methods by name (methods.def) ---- */

enum {
#define TG_METHOD(id, word, text, ...) METHOD_##id,
#include "optim/methods.def"
    METHODS
};

static const tg_optim_method methods[METHODS] = {
#define TG_METHOD(id, word, text, ...) {.name = (word), .summary = (text), __VA_ARGS__},
#include "optim/methods.def"
};

static const tg_choice method_choices[] = {
#define TG_METHOD(id, word, text, ...) {word, METHOD_##id},
#include "optim/methods.def"
    {NULL, 0}};

const tg_setting tg_optim_method_row = {"name",
                                        TG_SETTING_ENUM,
                                        0,
                                        method_choices,
                                        1,
                                        0,
                                        "method: Adam, or which part of the gradients it sees"};

const tg_optim_method *tg_optim_get_method(int index) {
    return index >= 0 && index < METHODS ? &methods[index] : NULL;
}

/* The share sets the ranks or the sparse ratio, whichever the branch has. */
static void set_branch(tg_branch_config *branch, tg_branch_type type, double share) {
    branch->type = type;
    if (tg_branch_has_rank(branch)) {
        branch->rank = (tg_rank){.count = 1, .value = {share}};
    } else {
        branch->sparse_ratio = share;
    }
}

static tg_status set_method(tg_context *ctx, tg_optim_config *config, const char *name) {
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

/* ---- settings by key ---- */

static tg_status set_key(tg_context *ctx, tg_optim_config *config, const char *key,
                         const char *value) {
    if (strcmp(key, "name") == 0) {
        return set_method(ctx, config, value);
    }
    if (strcmp(key, "lambda_sparse") == 0) { /* the golden files' short name */
        key = "tensorgrad_sum_lambda_sparse";
    }
    tg_rank *rank = rank_field(config, key);
    if (rank && tg_setting_means(value, "auto")) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.%s: auto was removed; take a share, or opt.memory_budget, which sets "
                       "one share for all layers",
                       key);
    }
    tg_status status = tg_setting_set(ctx, "opt", table, ROWS, config, key, value);
    if (status == TG_OK && rank && rank->count == 1 && rank->value[0] == 1.0 &&
        strchr(value, '.')) {
        rank->value[0] = TG_EVERY_RANK; /* 1.0 is a fraction, all of it; 1 is a rank */
    }
    if (status == TG_OK) {
        share_with_second(&config->projector);
    }
    return status;
}

tg_status tg_optim_config_set(tg_context *ctx, tg_optim_config *config, const char *key,
                              const char *value) {
    TG_NEED(ctx, config, key, value);
    tg_optim_config before, after;
    TG_CALL(tg_optim_config_read(ctx, config, &before));
    after = before;
    TG_CALL(set_key(ctx, &after, key, value));
    return TG_SIZED_WRITE(ctx, tg_optim_config, key, &before, &after, config);
}

/* Numbers that the table's ranges do not exclude, or that a program stored in a field. */
static tg_status check_numbers(tg_context *ctx, const tg_optim_config *c) {
    const struct {
        const char *key, *expected;
        double value;
        bool holds;
    } rows[] = {
        {"learning_rate", "a finite number >= 0", c->learning_rate, c->learning_rate >= 0.0},
        {"beta1", "a number in [0, 1)", c->beta1, c->beta1 >= 0.0 && c->beta1 < 1.0},
        {"beta2", "a number in [0, 1)", c->beta2, c->beta2 >= 0.0 && c->beta2 < 1.0},
        {"eps", "a positive number", c->eps, c->eps > 0.0},
        {"weight_decay", "a finite number >= 0", c->weight_decay, c->weight_decay >= 0.0},
        {"update_proj_gap", "a number >= 1", c->update_proj_gap, c->update_proj_gap >= 1.0},
        {"update_proj_gap_end", "a number >= 1", c->update_proj_gap_end,
         c->update_proj_gap_end >= 1.0},
        {"rule", "an update rule", (double)c->rule, (unsigned)c->rule < TG_RULES},
        {"state_precision", "a state format", (double)c->state_precision,
         (unsigned)c->state_precision < TG_STATE_FORMS},
        {"state_rounding", "a rounding", (double)c->state_rounding,
         (unsigned)c->state_rounding <= TG_ROUND_NEAREST},
        {"total_steps", "a positive number of steps for a gap schedule", (double)c->total_steps,
         c->update_proj_gap_mode == TG_GAP_FIXED || c->total_steps > 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!rows[i].holds || !isfinite(rows[i].value)) {
            return tg_fail(ctx, TG_E_CONFIG, "opt.%s: expected %s, found %g", rows[i].key,
                           rows[i].expected, rows[i].value);
        }
    }
    return TG_OK;
}

tg_status tg_optim_config_check(tg_context *ctx, const tg_optim_config *c) {
    TG_CALL(check_numbers(ctx, c));
    if (c->rule == TG_RULE_APOLLO && c->projector.first.rank.count != 1) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.rank: apollo has one random projection; take a fraction below 1 or an "
                       "integer");
    }
    if (c->is_projected && tg_rules[c->rule]->step_whole) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.rule: %s sees whole weights and does not go with compressed "
                       "gradients; take opt.name: adam (nothing compressed), or rule: adam",
                       tg_rule_name(tg_rules[c->rule]));
    }
    if (c->is_projected && c->memory_budget > 0.0 && !tg_branch_has_rank(&c->projector.first) &&
        (c->projector.scheme == TG_SCHEME_SINGLE || !tg_branch_has_rank(&c->projector.second))) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.memory_budget: it sets ranks, and a sparse projection has none; take "
                       "opt.sparse_ratio");
    }
    return TG_OK;
}

/* ---- the keys that a method reads ---- */

/* Whether a list of words separated by blanks (NULL: empty) has this one. */
static bool lists(const char *words, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = words; at; at = strchr(at, ' ')) {
        at += *at == ' ';
        if (strncmp(at, word, length) == 0 && (at[length] == ' ' || !at[length])) {
            return true;
        }
    }
    return false;
}

static bool branch_reads(const tg_branch_config *branch, const char *key) {
    const tg_branch_kind *kind = tg_branch_kind_of(branch->type);
    return kind && lists(kind->keys, key);
}

static bool is_of_branches(const char *key) {
    bool is_one = false;
    for (int type = 0; type < TG_BRANCH_TYPES; type++) {
        is_one = is_one || lists(tg_branch_kind_of((tg_branch_type)type)->keys, key);
    }
    return is_one;
}

bool tg_optim_config_reads(const tg_optim_config *c, const char *key) {
    const bool has_second = c->is_projected && c->projector.scheme != TG_SCHEME_SINGLE;
    const bool is_second = strncmp(key, "second_", 7) == 0;
    const char *name = is_second ? key + 7 : key;
    char other[64];
    if (strcmp(key, "state_rounding") == 0) {
        return c->state_precision != TG_STATES_FULL;
    }
    if (lists("update_proj_gap_end total_steps", key)) {
        return c->is_projected && c->update_proj_gap_mode != TG_GAP_FIXED;
    }
    if (lists("second_proj_type second_scale tensorgrad_sum_lambda_sparse", key)) {
        return has_second;
    }
    if (is_of_branches(name)) {
        const bool in_second = has_second && branch_reads(&c->projector.second, name);
        snprintf(other, sizeof other, "second_%s", name);
        const bool is_shared = !tg_setting_find(table, ROWS, other); /* by both branches */
        if (is_second || (is_shared && in_second)) {
            return in_second;
        }
        return c->is_projected ? branch_reads(&c->projector.first, name)
                               : lists(tg_rules[c->rule]->keys, name);
    }
    return c->is_projected || lists(tg_rules[c->rule]->keys, key) ||
           !lists("optimizer_type proj_type scale memory_budget min_entries update_proj_gap "
                  "update_proj_gap_mode moments_on_refresh",
                  key);
}

/* ---- settings of an optimizer at work ---- */

bool tg_optim_config_shapes_state(const char *key) {
    static const char *const free_keys =
        "learning_rate beta1 beta2 eps weight_decay nonfinite match_rms state_rounding "
        "update_proj_gap update_proj_gap_end update_proj_gap_mode total_steps moments_on_refresh";
    return !lists(free_keys, key) && tg_setting_find(table, ROWS, key) != NULL;
}

static tg_status check_group(tg_optim *optim, int group) {
    return group >= 0 && group < optim->group_count
               ? TG_OK
               : tg_fail(optim->ctx, TG_E_ARGUMENT, "optimizer: group %d of %d", group,
                         optim->group_count);
}

tg_status tg_optim_set_group(tg_optim *optim, int group, const tg_optim_config *config) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, config);
    tg_optim_config full;
    TG_CALL(check_group(optim, group));
    TG_CALL(tg_optim_config_read(optim->ctx, config, &full));
    TG_CALL(tg_optim_config_check(optim->ctx, &full));
    if (full.memory_budget > 0.0) { /* the ranks that it gave stay */
        full.projector.first.rank = optim->groups[group].projector.first.rank;
        full.projector.second.rank = optim->groups[group].projector.second.rank;
    }
    for (int i = 0; i < tg_optim_config_count(); i++) {
        const char *key = tg_optim_config_key(i);
        char wanted[256], had[256];
        tg_optim_config_get(&full, i, wanted, sizeof wanted);
        tg_optim_config_get(&optim->groups[group], i, had, sizeof had);
        if (tg_optim_config_shapes_state(key) && strcmp(wanted, had) != 0) {
            return tg_fail(optim->ctx, TG_E_CONFIG,
                           "opt.%s: it cannot change from %s to %s after the state was made", key,
                           had, wanted);
        }
    }
    optim->groups[group] = full;
    return TG_OK;
}

tg_status tg_optim_set_learning_rate(tg_optim *optim, int group, double rate) {
    TG_NEED(NULL, optim);
    TG_CALL(check_group(optim, group));
    tg_optim_config config = optim->groups[group];
    config.learning_rate = rate;
    TG_CALL(tg_optim_config_check(optim->ctx, &config));
    optim->groups[group] = config;
    return TG_OK;
}
