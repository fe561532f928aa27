/* Refreshes in chunks, the optimizer's parameters, and errors about memory. */
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "base/system.h"
#include "tgrad/backend.h"
#include "tgrad/step.h"
#include "train/checkpoint.h"
#include "train/run_datasets.h"
#include "train/step.h"
#include "train/trainer.h"

/* ---- refreshes whose products are computed in chunks ---- */

/* Chunks must save at least 1 / LEAST_SHARE of a step's memory; thicker ones are preferred unless
 * they cost as much of it. */
enum { LEAST_SHARE = 64 };

static const size_t thin = (size_t)96 << 20, thick = (size_t)768 << 20;

static void set_chunks(tg_optim_config *groups, int count, size_t bytes) {
    const size_t stride = groups->size; /* the caller's version of the struct */
    for (int i = 0; i < count; i++) {
        tg_optim_config *group = (tg_optim_config *)(void *)((char *)groups + (size_t)i * stride);
        group->projector.first.chunk_bytes = bytes;
        group->projector.second.chunk_bytes = bytes;
    }
}

/* Whether the structs to be written are those of the setup, and have the field. */
static tg_status check_groups(tg_context *ctx, const tg_optim_setup *setup,
                              const tg_optim_config *groups) {
    tg_optim_memory memory;
    TG_CALL(tg_optim_plan_memory(ctx, setup, &memory));
    const size_t least = offsetof(tg_optim_config, projector) + sizeof groups->projector;
    return setup->groups == groups && groups->size >= least
               ? TG_OK
               : tg_fail(ctx, TG_E_ARGUMENT,
                         "refresh in chunks: the groups to be set are not those of the setup, or "
                         "have no projector");
}

/* Memory of network and optimizer together. */
static tg_status held(tg_context *ctx, const tg_fno_config *network, const nn_split *split,
                      int64_t batch, const int64_t *grid, const tg_optim_setup *setup,
                      size_t *out) {
    tg_optim_memory optimizer;
    tg_fno_memory step;
    tg_status status = tg_optim_plan_memory(ctx, setup, &optimizer);
    if (status == TG_OK) {
        status = nn_plan(ctx, network, split, batch, grid, true, &optimizer.shared, &step, NULL);
    }
    if (status == TG_OK) {
        *out = step.total;
        for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
            *out += optimizer.bytes[c];
        }
    }
    return status;
}

static tg_status choose_chunks(tg_context *ctx, const tg_fno_config *network, const nn_split *split,
                               int64_t batch, const int64_t *grid, const tg_optim_setup *setup,
                               tg_optim_config *groups) {
    size_t whole = 0, chunks = 0;
    TG_CALL(check_groups(ctx, setup, groups));
    set_chunks(groups, setup->group_count, 0);
    tg_status status = held(ctx, network, split, batch, grid, setup, &whole);
    if (status == TG_OK) {
        set_chunks(groups, setup->group_count, thin);
        status = held(ctx, network, split, batch, grid, setup, &chunks);
    }
    if (status != TG_OK || chunks + whole / LEAST_SHARE > whole) {
        set_chunks(groups, setup->group_count, 0);
        return status;
    }
    size_t bytes = thick, needed = 0;
    do {
        set_chunks(groups, setup->group_count, bytes);
        status = held(ctx, network, split, batch, grid, setup, &needed);
        bytes /= 2;
    } while (status == TG_OK && bytes >= thin && needed > chunks + whole / LEAST_SHARE);
    return status;
}

tg_status tg_step_choose_refresh_chunks(tg_context *ctx, const tg_fno_config *network,
                                        int64_t batch, const int64_t *grid,
                                        const tg_optim_setup *setup, tg_optim_config *groups) {
    TG_NEED(ctx, ctx, network, grid, setup, groups);
    return choose_chunks(ctx, network, NULL, batch, grid, setup, groups);
}

/* ---- the optimizer's parameters ---- */

/* Updates of all epochs, capped at the largest opt.total_steps, which no run can exceed. */
static int64_t count_updates(int64_t epochs, int64_t updates_per_epoch) {
    const int64_t most = INT64_C(1000000000000000); /* opt.total_steps */
    int64_t updates = 0;
    return __builtin_mul_overflow(epochs, updates_per_epoch, &updates) ? most
                                                                       : tg_min(updates, most);
}

tg_status tg_run_setup_make(tg_context *ctx, const tg_run_config *config, const tg_fno *fno,
                            int64_t updates_per_epoch, tg_run_setup *out) {
    const int count = tg_fno_param_count(fno);
    const bool accumulates = config->accumulates || config->loop.accumulation_steps > 1 ||
                             tg_run_exchanges(config) || tg_run_unrolls(config);
    bool forms_bf16 = false;
    *out = (tg_run_setup){.groups = {config->opt, config->opt}};
    out->groups[1].is_projected = false;
    for (int i = 0; i < 2 && config->opt.total_steps == 0; i++) {
        out->groups[i].total_steps = count_updates(config->loop.n_epochs, updates_per_epoch);
    }
    tg_status status = TG_NEW(ctx, TG_MEM_OTHER, out->params, count);
    status = status == TG_OK ? TG_NEW(ctx, TG_MEM_OTHER, out->blocks, count) : status;
    for (int i = 0; status == TG_OK && i < count; i++) {
        const tg_fno_param p = tg_fno_get_param(fno, i);
        out->params[i] = (tg_optim_param){
            .name = p.name, .dtype = p.dtype, .shape = p.shape, .group = p.spectral ? 0 : 1};
        out->blocks[i] = (tg_optim_block){.dim = 2, .whole = p.whole, .first = p.first};
        forms_bf16 = forms_bf16 || p.gradient == TG_CBF16;
    }
    out->setup =
        (tg_optim_setup){.size = sizeof(tg_optim_setup),
                         .groups = out->groups,
                         .group_count = 2,
                         .params = out->params,
                         .param_count = count,
                         .seed = (uint64_t)config->distributed.seed,
                         .takes_factored = true,
                         .shares_workspace = true,
                         .accumulates = accumulates,
                         .shard_ranks = config->distributed.shard_state ? config->ranks : 1,
                         .blocks = nn_is_split(&config->split) ? out->blocks : NULL,
                         .parts = config->split.parts,
                         .forms_bf16 = forms_bf16 && !accumulates};
    int64_t data[TG_DATA_MAX_DIMS], grid[TG_RUN_GRID];
    tg_run_grid(&config->data.train_resolution, tg_run_data_dims(config), data);
    tg_run_network_grid(config, data, grid);
    return status != TG_OK
               ? status
               : choose_chunks(ctx, &config->fno, &config->split, tg_run_local_batch(config), grid,
                               &out->setup, out->groups);
}

void tg_run_setup_free(tg_context *ctx, tg_run_setup *setup) {
    TG_FREE(ctx, setup->params);
    TG_FREE(ctx, setup->blocks);
}

/* Lists settings that need less memory. */
static void advise(const tg_run_config *config, char *text, size_t capacity) {
    const struct {
        bool helps;
        const char *setting;
    } rows[] = {
        {config->data.batch_size > 1, "a smaller data.batch_size"},
        {config->fno.activation_checkpoint != TG_CHECKPOINT_MINIMAL,
         "fno.activation_checkpoint minimal"},
        {config->fno.precision == TG_PRECISION_FULL &&
             config->fno.activation_precision == TG_PRECISION_FULL,
         "fno.precision mixed"},
        {config->data.batch_size > 1 && config->fno.micro_batch == 0, "fno.micro_batch 1"},
        {!config->opt.is_projected, "opt.name tensorgrad"},
        {config->opt.state_precision == TG_STATES_FULL, "opt.state_precision half"},
    };
    text[0] = '\0';
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const size_t used = strlen(text);
        if (rows[i].helps) {
            snprintf(text + used, capacity - used, "%s%s", used ? ", " : "", rows[i].setting);
        }
    }
}

tg_status tg_run_explain(tg_context *ctx, const tg_run_config *config, const size_t *planned,
                         tg_status status) {
    char device[96] = "", text[TG_MEM_TEXT], advice[256];
    size_t used = 0, total = 0;
    if (status != TG_E_MEMORY) {
        return status;
    }
    if (tg_backend_memory(ctx, &used, &total) == TG_OK && total > 0) {
        snprintf(device, sizeof device, "; the device has %.1f GiB, of which %.1f GiB are free",
                 (double)total / 0x1p30, (double)(total - used) / 0x1p30);
    }
    advise(config, advice, sizeof advice);
    return tg_fail(
        ctx, status,
        "%.511s%s. By its plan the run holds %s. Less is needed with %s (see tgrad plan)",
        tg_context_error(ctx), device, tg_mem_text(planned, text), advice);
}

/* ---- before the run ---- */

bool tg_train_memory_left(tg_context *ctx, tg_place place, size_t *left) {
    size_t used = 0, total = 0;
    if (!ctx || !left) {
        return false;
    }
    *left = 0;
    if (place == TG_HOST) {
        return tg_host_memory_left("", left);
    }
    const bool is_known = tg_backend_memory(ctx, &used, &total) == TG_OK && total > 0;
    *left = total - used;
    return is_known;
}

/* Compares the highest phase of a plan with the memory left in a place. */
static tg_status check_place(tg_context *ctx, const tg_run_config *config,
                             const tg_train_memory *memory, tg_place place) {
    static const char *const names[TG_PLACES] = {[TG_HOST] = "host", [TG_DEVICE] = "device"};
    const tg_train_phase *phase = &memory->phase[memory->peak_phase[place]];
    const size_t peak = memory->peak_total[place];
    const tg_mem_usage now = tg_context_memory(ctx, place); /* all in the plan, except other */
    const size_t held = now.current_total - now.current[TG_MEM_OTHER];
    const size_t needed = peak > held ? peak - held : 0;
    char advice[256], planned[TG_MEM_TEXT];
    size_t left = 0;
    if (needed == 0 || !tg_train_memory_left(ctx, place, &left)) {
        return TG_OK;
    }
    if (needed > left) {
        advise(config, advice, sizeof advice);
        return tg_fail(
            ctx, TG_E_MEMORY,
            "this run needs %s of the %s's memory at its highest (%s), of which %.4g GiB "
            "are left. Less is needed with %s (see tgrad plan --fit)",
            tg_mem_text(phase->bytes[place], planned), names[place], phase->name,
            (double)left / 0x1p30, advice);
    }
    if ((double)needed > 0.9 * (double)left) {
        tg_log(ctx, TG_LOG_WARN, "this run needs %.4g GiB of the %.4g GiB that the %s has left",
               (double)needed / 0x1p30, (double)left / 0x1p30, names[place]);
    }
    return TG_OK;
}

/* Whether the plan of a rank fits in its share of what is left. */
static tg_status fits(tg_context *ctx, const tg_settings *settings, int ranks, int local_ranks,
                      int parts, bool *out) {
    tg_train_memory *memory = NULL;
    tg_status status = TG_OK;
    bool is_enough = true;
    *out = false;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, memory, 1));
    for (int last = 0; last < (parts > 1 ? 2 : 1); last++) {
        TG_TRY(tg_train_plan_rank(ctx, settings, ranks, parts, last ? parts - 1 : 0, memory));
        for (int place = 0; place < TG_PLACES; place++) {
            const size_t sharing = place == TG_HOST && local_ranks > 1 ? (size_t)local_ranks : 1;
            size_t left = 0;
            is_enough = is_enough && (!tg_train_memory_left(ctx, (tg_place)place, &left) ||
                                      memory->peak_total[place] <= left / sharing);
        }
    }
    *out = is_enough;
fail:
    tg_mem_free(ctx, memory);
    return status;
}

tg_status tg_run_choose_split(tg_context *ctx, const tg_settings *settings, int ranks,
                              int local_ranks, int *out) {
    tg_status status = TG_E_CONFIG;
    bool is_enough = false;
    *out = 0;
    for (int parts = 1; parts <= ranks && !is_enough; parts++) {
        if (ranks % parts == 0) {
            status = fits(ctx, settings, ranks, local_ranks, parts, &is_enough);
            *out = status == TG_OK ? parts : *out;
        }
    }
    return *out > 0 ? TG_OK : status; /* fewer may be too few for the batch, more for the modes */
}

tg_status tg_run_check_memory(tg_context *ctx, const tg_settings *settings,
                              const tg_run_config *config, int rank,
                              size_t planned[TG_MEM_CATEGORIES], size_t *checkpoint) {
    tg_train_memory *memory = NULL;
    tg_status status = TG_OK;
    *checkpoint = 0;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, memory, 1));
    const int parts = nn_is_split(&config->split) ? config->split.parts : 1;
    status = tg_train_plan_rank(ctx, settings, config->ranks, parts, parts > 1 ? rank : 0, memory);
    if (status == TG_E_CONFIG && memory->missing[0]) { /* a run needs it, a plan does not */
        TG_TRY(tg_fail(ctx, TG_E_IO, "%s", memory->missing));
    }
    TG_TRY(status);
    memcpy(planned, memory->phase[memory->peak_phase[memory->place]].bytes[memory->place],
           TG_MEM_CATEGORIES * sizeof *planned);
    const size_t *kept = memory->peak[memory->place];
    *checkpoint = (size_t)parts * tg_checkpoint_bytes(kept);
    if (config->distributed.shard_state) {
        *checkpoint += (size_t)(config->ranks - 1) * kept[TG_MEM_OPTIMIZER];
    }
    for (int place = 0; place < TG_PLACES; place++) {
        TG_TRY(check_place(ctx, config, memory, (tg_place)place));
    }
fail:
    tg_mem_free(ctx, memory);
    return status;
}
