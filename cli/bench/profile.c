/* The breakdown of a step from plans, and the steps that check it. */
#include "profile.h"

#include <stdlib.h>
#include <string.h>

#include "common/statistics.h"
#include "common/workbench.h"

const cli_part_info cli_parts[CLI_PARTS] = {{"parameters", "parameters", "m-weights"},
                                            {"optimizer states", "optimizer_states", "m-optimizer"},
                                            {"inputs", "inputs", "m-data"},
                                            {"activations", "activations", "m-activations"},
                                            {"gradients", "gradients", "m-gradients"},
                                            {"workspace", "workspace", "m-workspace"}};

const char cli_profile_sharing[] =
    "At the end of a step the optimizer reuses the memory of the activations for its gradients "
    "and workspace, if they fit.";

const char cli_sweep_saving[] =
    "Columns are in % of the first optimizer; coloured: the savings in optimizer states.";

void cli_parts_of(const size_t bytes[TG_MEM_CATEGORIES], size_t parts[CLI_PARTS]) {
    static const cli_part part[TG_MEM_CATEGORIES] = {
        [TG_MEM_WEIGHTS] = CLI_PARAMETERS,      [TG_MEM_GRADIENTS] = CLI_GRADIENTS,
        [TG_MEM_OPTIMIZER] = CLI_STATES,        [TG_MEM_FACTORS] = CLI_STATES,
        [TG_MEM_INDICES] = CLI_STATES,          [TG_MEM_ACTIVATIONS] = CLI_ACTIVATIONS,
        [TG_MEM_WORKSPACE] = CLI_WORKSPACE,     [TG_MEM_DATA] = CLI_INPUTS,
        [TG_MEM_COMMUNICATION] = CLI_WORKSPACE, [TG_MEM_OTHER] = CLI_WORKSPACE};
    memset(parts, 0, CLI_PARTS * sizeof *parts);
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        parts[part[c]] += c == TG_MEM_OTHER ? 0 : bytes[c];
    }
}

static size_t sum_of(const size_t parts[CLI_PARTS]) {
    size_t sum = 0;
    for (int p = 0; p < CLI_PARTS; p++) {
        sum += parts[p];
    }
    return sum;
}

double cli_states_saved(const cli_sweep *sweep, int value, int method) {
    const cli_sweep_point *first = &sweep->point[value * sweep->methods];
    const double dense = (double)first->parts[CLI_STATES];
    return dense > 0.0 ? 100.0 * (1.0 - (double)first[method].parts[CLI_STATES] / dense) : 0.0;
}

/* ---- on paper ---- */

static const tg_train_phase *find_phase(const tg_train_memory *run, const char *name) {
    for (int i = 0; i < run->count; i++) {
        if (strcmp(run->phase[i].name, name) == 0) {
            return &run->phase[i];
        }
    }
    return NULL;
}

typedef struct needs {
    tg_optim_memory optim;
    tg_fno_memory fno;
    bool is_projected, accumulates;
} needs;

/* Bytes in use in a phase. Parameters, states, inputs and sums of gradients always are. A spectral
 * gradient comes factored: it is formed only for dense moments and for a refresh. */
static void add_phase(cli_profile *p, const needs *n, const tg_fno_phase *phase, size_t base,
                      bool is_refresh) {
    cli_profile_phase *at = &p->phase[p->count++];
    at->phase = *phase;
    at->is_refresh = is_refresh;
    memcpy(at->alive, p->held, sizeof at->alive);
    at->alive[CLI_ACTIVATIONS] = phase->activations;
    at->alive[CLI_WORKSPACE] = base + n->fno.transforms - n->fno.host + phase->workspace;
    at->alive[CLI_GRADIENTS] = n->accumulates ? n->optim.bytes[TG_MEM_GRADIENTS] : 0;
    if (phase->sends && !phase->sends_factors) {
        at->alive[CLI_GRADIENTS] += n->fno.bytes[TG_MEM_GRADIENTS];
    }
    if (is_refresh) {
        at->alive[CLI_GRADIENTS] +=
            n->optim.shared.dense_bytes + n->optim.refresh[TG_MEM_GRADIENTS];
        at->alive[CLI_WORKSPACE] += n->optim.shared.work_bytes + n->optim.refresh[TG_MEM_WORKSPACE];
    } else if (phase->sends_factors && n->is_projected) {
        at->alive[CLI_WORKSPACE] += n->optim.step_work;
    } else if (phase->sends_factors) {
        at->alive[CLI_GRADIENTS] += n->optim.shared.dense_bytes;
    }
    at->total = sum_of(at->alive);
    if (at->total > p->phase[p->peak].total) {
        p->peak = p->count - 1;
    }
}

static void add_phases(tg_context *ctx, const cli_problem *problem, const needs *n,
                       cli_profile *p) {
    int count = 0;
    CLI_FREED tg_fno_phase *phases = NULL;
    cli_check(cli_problem_phases(ctx, problem, &phases, &count));
    p->phase = cli_need(calloc((size_t)count + 2, sizeof *p->phase));
    const size_t base = tg_context_memory(ctx, tg_backend_place(ctx)).current[TG_MEM_WORKSPACE];
    for (int i = 0; i < count; i++) {
        add_phase(p, n, &phases[i], base, false);
    }
    if (count > 0 && n->is_projected && phases[count - 1].sends_factors) {
        tg_fno_phase last = phases[count - 1];
        snprintf(last.name, sizeof last.name, "%.32s, refreshed", phases[count - 1].name);
        add_phase(p, n, &last, base, true);
    }
    p->shares = n->optim.shared.dense_bytes + n->optim.shared.work_bytes > 0;
}

cli_profile cli_profile_plan(tg_context *ctx, const char *name, const tg_settings *settings) {
    cli_profile out = {.name = name, .run = cli_need(calloc(1, sizeof *out.run))};
    cli_check(tg_train_plan(ctx, settings, 1, out.run));
    const cli_problem problem = cli_problem_from(ctx, name, settings);
    const tg_train_memory *run = out.run;
    const tg_train_phase *step = find_phase(run, "training step");
    const tg_train_phase *refresh = find_phase(run, "step with a refresh");
    const char *micro = tg_settings_get(settings, "opt.accumulation_steps");
    out.method = problem.method;
    cli_parts_of(step->bytes[run->place], out.held);
    out.held_total = step->total[run->place];
    out.refresh_total = refresh ? refresh->total[run->place] : out.held_total;
    needs n = {.is_projected = problem.optim.is_projected,
               .accumulates = micro && strtol(micro, NULL, 10) > 1};
    cli_check(cli_problem_needs(ctx, &problem, n.accumulates, &n.optim, &n.fno));
    add_phases(ctx, &problem, &n, &out);
    return out;
}

void cli_profile_free(cli_profile *profile) {
    free(profile->run);
    free(profile->phase);
    *profile = (cli_profile){0};
}

/* ---- in real steps ---- */

void cli_profile_run(tg_context *ctx, const tg_settings *settings, int64_t steps, uint64_t seed,
                     cli_profile *profile) {
    const cli_problem problem = cli_problem_from(ctx, profile->name, settings);
    cli_memory_plan planned;
    CLI_OWNED(cli_workbench_close) cli_workbench bench = {0};
    CLI_FREED double *seconds = cli_need(calloc((size_t)steps, sizeof *seconds));
    cli_check(cli_problem_plan(ctx, &problem, &planned));
    cli_check(cli_workbench_open(ctx, &problem, seed, &bench));
    cli_check(cli_workbench_run(&bench, TG_GRAPHS_AUTO, steps, seconds));
    const tg_place place = tg_backend_place(ctx);
    const tg_mem_usage usage = tg_context_memory(ctx, place);
    const tg_mem_usage host = tg_context_memory(ctx, TG_HOST);
    profile->as_planned = true;
    for (int c = 0; c < TG_MEM_OTHER; c++) {
        const size_t beside = place == TG_HOST ? 0 : host.peak[c];
        profile->as_planned = profile->as_planned && usage.peak[c] + beside == planned.bytes[c];
    }
    cli_parts_of(usage.at_peak, profile->counted);
    profile->counted_peak = sum_of(profile->counted);
    profile->steps = steps;
    profile->step_ms = 1e3 * cli_median(seconds, (int)steps);
}
