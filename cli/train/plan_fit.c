/* The search: every way to need less memory is a ladder of rungs, each with its cost in time. All
 * combinations are ordered by their cost and planned until enough of them fit; a search for the
 * smallest one, ladder by ladder, first finds out whether there is any. */
#include "plan_fit.h"

#include <stdlib.h>
#include <string.h>

/* One step of a ladder: settings, and the time of a training step with them as a multiple of the
 * time without. Those of checkpoints are measured (ns1024, H200, docs/memory.md), the others are
 * estimates: for the order, not for promises. What changes the training itself (lower ranks,
 * numbers in less) comes later than its time suggests. */
typedef struct rung {
    double time;
    double cost;               /* by which rungs are ordered */
    const char *setting[2][2]; /* key, value */
} rung;

enum { RUNGS = 16, LADDERS = 7, MAX_PLANS = 600 };

typedef struct ladder {
    int count; /* rungs, the first of which changes nothing */
    rung rung[RUNGS];
    char text[RUNGS][32]; /* values that are made here */
} ladder;

typedef struct combination {
    unsigned char at[LADDERS]; /* rung of each ladder */
    double time, cost;
} combination;

typedef struct search {
    tg_context *ctx;
    const tg_settings *settings;
    ladder ladder[LADDERS];
    combination *all;
    int64_t count;
} search;

/* ---- ladders ---- */

static void add_rung(ladder *l, double time, double cost, const char *key, const char *value) {
    l->rung[l->count++] = (rung){.time = time, .cost = cost, .setting = {{key, value}}};
}

/* Values of settings, from the default to the smallest, and the time of a step with each. */
enum { VALUES = 4 };
static const struct {
    const char *key;
    struct {
        const char *value;
        double time;
    } at[3];
} values[VALUES] = {
    {"opt.state_precision", {{"full", 1.0}, {"half", 1.01}, {"8bit", 1.03}}},
    {"fno.saved_precision", {{"full", 1.0}, {"8bit", 1.1}}},
    {"fno.fno_block_weights_precision", {{"full", 1.0}, {"bf16", 1.02}}},
    {"fno.activation_checkpoint", {{"off", 1.0}, {"block", 1.15}, {"minimal", 1.38}}},
};

/* A rung for each value after the one that is set. */
static void add_values(const tg_settings *settings, ladder *l, int row) {
    const char *key = values[row].key,
               *now = cli_setting_or(settings, key, values[row].at[0].value);
    int first = 0;
    for (int i = 1; i < 3 && values[row].at[i].value; i++) {
        first = strcmp(values[row].at[i].value, now) == 0 ? i : first;
    }
    for (int i = first + 1; i < 3 && values[row].at[i].value; i++) {
        const double time = values[row].at[i].time / values[row].at[first].time;
        add_rung(l, time, time > 1.01 ? time : 1.01, key, values[row].at[i].value);
    }
}

/* Fewer samples in flight, which changes sums by a rounding alone. */
static void add_micro_batches(const tg_settings *settings, ladder *l) {
    const long batch = strtol(cli_setting_or(settings, "data.batch_size", "16"), NULL, 10);
    const long set = strtol(cli_setting_or(settings, "fno.micro_batch", "0"), NULL, 10);
    double time = 1.0;
    for (long now = (set > 0 ? set : batch) / 2; l->count < RUNGS && now >= 1; now /= 2) {
        time *= 1.04;
        snprintf(l->text[l->count], sizeof l->text[0], "%ld", now);
        add_rung(l, time, time, "fno.micro_batch", l->text[l->count]);
    }
}

static const tg_optim_method *find_method(const char *name) {
    const tg_optim_method *method = NULL;
    for (int i = 0; (method = tg_optim_get_method(i)); i++) {
        if (strcmp(method->name, name) == 0) {
            return method;
        }
    }
    return tg_optim_get_method(0); /* of a key that no name set */
}

/* Compressed moments, and then fewer of them. */
static void add_methods(const tg_settings *settings, ladder *l) {
    static const char *const shares[] = {"0.1", "0.05", "0.02"};
    static const double costs[] = {1.2, 1.3, 1.5};
    const tg_optim_method *method = find_method(cli_setting_or(settings, "opt.name", "adam"));
    if (!method->is_projected &&
        strcmp(cli_setting_or(settings, "opt.tensorgrad", "false"), "false") == 0) {
        add_rung(l, 1.1, 1.1, "opt.name", "tensorgrad");
        l->rung[l->count++] =
            (rung){1.1, 1.3, {{"opt.name", "tensorgrad"}, {"opt.second_rank", "0.05"}}};
        l->rung[l->count++] = (rung){1.1, 1.6, {{"opt.name", "lowrank"}, {"opt.rank", "0.02"}}};
        return;
    }
    const bool has_budget = cli_setting_or(settings, "opt.memory_budget", NULL) != NULL;
    const bool is_second = method->scheme != TG_SCHEME_SINGLE;
    const tg_branch_type type = is_second ? method->second : method->first;
    const bool has_rank =
        method->is_projected && (type == TG_BRANCH_LOW_RANK || type == TG_BRANCH_MATRIX);
    const char *rank = has_budget  ? "opt.memory_budget"
                       : is_second ? "opt.second_rank"
                                   : "opt.rank";
    const char *set = cli_setting_or(settings, rank, NULL);
    const double usual = has_budget ? 1.0 : is_second ? method->second_share : method->first_share;
    const double now = set ? strtod(set, NULL) : usual;
    for (int i = 0; has_rank && now <= 1.0 && i < 3; i++) {
        if (strtod(shares[i], NULL) < now) {
            add_rung(l, 1.0, costs[i], rank, shares[i]);
        }
    }
}

static void make_ladders(search *s) {
    for (int i = 0; i < LADDERS; i++) {
        s->ladder[i] = (ladder){.count = 1, .rung = {{.time = 1.0, .cost = 1.0}}};
    }
    for (int i = 0; i < VALUES; i++) {
        add_values(s->settings, &s->ladder[i], i);
    }
    add_micro_batches(s->settings, &s->ladder[4]);
    add_methods(s->settings, &s->ladder[5]);
    const double cache = strtod(cli_setting_or(s->settings, "data.cache", "2e9"), NULL);
    if (tg_backend_place(s->ctx) == TG_HOST &&
        cache > 0.0) { /* the cache shares the place of the network */
        add_rung(&s->ladder[6], 1.15, 1.15, "data.cache", "0");
    }
}

/* ---- combinations ---- */

static int by_cost(const void *a, const void *b) {
    const combination *x = a, *y = b;
    if (x->cost != y->cost) {
        return x->cost < y->cost ? -1 : 1;
    }
    return memcmp(x->at, y->at, sizeof x->at);
}

static void weigh(const search *s, combination *c) {
    c->time = c->cost = 1.0;
    for (int i = 0; i < LADDERS; i++) {
        c->time *= s->ladder[i].rung[c->at[i]].time;
        c->cost *= s->ladder[i].rung[c->at[i]].cost;
    }
}

static void combine(search *s) {
    s->count = 1;
    for (int i = 0; i < LADDERS; i++) {
        s->count *= s->ladder[i].count;
    }
    s->all = cli_need(calloc((size_t)s->count, sizeof *s->all));
    for (int64_t n = 0; n < s->count; n++) {
        combination *c = &s->all[n];
        int64_t rest = n;
        int changes = 0;
        for (int i = 0; i < LADDERS; i++) {
            c->at[i] = (unsigned char)(rest % s->ladder[i].count);
            rest /= s->ladder[i].count;
            changes += c->at[i] != 0;
        }
        weigh(s, c);
        c->cost += 1e-6 * changes; /* of those that cost the same, the one that changes least */
    }
    qsort(s->all, (size_t)s->count, sizeof *s->all, by_cost);
}

/* Every rung of b is at least that of a: b only costs more. */
static bool is_beyond(const combination *a, const combination *b) {
    bool beyond = true;
    for (int i = 0; i < LADDERS; i++) {
        beyond = beyond && b->at[i] >= a->at[i];
    }
    return beyond;
}

/* ---- plans ---- */

static tg_status plan(const search *s, const combination *c, cli_proposal *out) {
    static tg_train_memory memory; /* large; one command, one thread */
    CLI_OWNED(tg_settings_destroy) tg_settings *settings = NULL;
    *out = (cli_proposal){.time = c->time};
    CLI_CALL(tg_settings_copy(s->ctx, s->settings, &settings));
    for (int i = 0; i < LADDERS; i++) {
        const rung *r = &s->ladder[i].rung[c->at[i]];
        for (int k = 0; k < 2 && r->setting[k][0]; k++) {
            snprintf(out->key[out->count], sizeof out->key[0], "%s", r->setting[k][0]);
            snprintf(out->value[out->count], sizeof out->value[0], "%s", r->setting[k][1]);
            CLI_CALL(tg_settings_set(settings, r->setting[k][0], r->setting[k][1], "--fit"));
            out->count++;
        }
    }
    CLI_CALL(tg_train_plan(s->ctx, settings, 1, &memory));
    out->peak = memory.peak_total[memory.place];
    snprintf(out->phase, sizeof out->phase, "%s",
             memory.phase[memory.peak_phase[memory.place]].name);
    return TG_OK;
}

/* Skips settings that exclude each other. */
static bool is_refusal(tg_status status) {
    return status == TG_E_CONFIG || status == TG_E_UNSUPPORTED || status == TG_E_ARGUMENT;
}

/* Ladder after ladder to the rung that needs least beside the others, until nothing changes. */
static tg_status plan_smallest(const search *s, cli_proposal *out) {
    combination best = {.time = 1.0};
    tg_status status = plan(s, &best, out);
    for (bool changes = true; changes && status == TG_OK;) {
        changes = false;
        for (int i = 0; i < LADDERS; i++) {
            for (int k = 0; k < s->ladder[i].count; k++) {
                combination other = best;
                cli_proposal proposal;
                other.at[i] = (unsigned char)k;
                weigh(s, &other);
                status = plan(s, &other, &proposal);
                if (status == TG_OK && proposal.peak < out->peak) {
                    *out = proposal;
                    best = other;
                    changes = true;
                } else if (status != TG_OK && !is_refusal(status)) {
                    return status;
                }
            }
        }
        status = TG_OK;
    }
    return status;
}

tg_status cli_fit_search(tg_context *ctx, const tg_settings *settings, size_t bytes, cli_fit *out) {
    search s = {.ctx = ctx, .settings = settings};
    combination found[CLI_FIT_PROPOSALS];
    const combination nothing = {.time = 1.0};
    *out = (cli_fit){0};
    make_ladders(&s);
    tg_status status = plan(&s, &nothing, &out->now);
    if (status != TG_OK || out->now.peak <= bytes) {
        return status;
    }
    status = plan_smallest(&s, &out->smallest);
    if (status != TG_OK || out->smallest.peak > bytes) {
        return status;
    }
    combine(&s);
    int64_t planned = 0;
    for (int64_t n = 0; n < s.count && out->count < CLI_FIT_PROPOSALS && planned < MAX_PLANS; n++) {
        cli_proposal candidate;
        bool is_new = true;
        for (int i = 0; i < out->count; i++) {
            is_new = is_new && !is_beyond(&found[i], &s.all[n]);
        }
        if (!is_new) {
            continue;
        }
        planned++;
        status = plan(&s, &s.all[n], &candidate);
        if (status != TG_OK && !is_refusal(status)) {
            break;
        }
        if (status == TG_OK && candidate.peak <= bytes) {
            found[out->count] = s.all[n];
            out->proposal[out->count++] = candidate;
        }
        status = TG_OK;
    }
    if (status == TG_OK && out->count == 0) { /* far down the list: the smallest fits at least */
        out->proposal[out->count++] = out->smallest;
    }
    free(s.all);
    return status;
}

const char *cli_proposal_arguments(const cli_proposal *p, char *text, size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < p->count && used < capacity; i++) {
        const int wrote = snprintf(text + used, capacity - used, "%s--%s %s", i ? " " : "",
                                   p->key[i], p->value[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return text;
}
