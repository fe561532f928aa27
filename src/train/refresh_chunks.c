/* Chooses which products of refreshes are computed in chunks. */
#include "tgrad/step.h"

#include "base/context.h"

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
static tg_status held(tg_context *ctx, const tg_fno_config *network, int64_t batch,
                      const int64_t *grid, const tg_optim_setup *setup, size_t *out) {
    tg_optim_memory optimizer;
    tg_fno_memory step;
    tg_status status = tg_optim_plan_memory(ctx, setup, &optimizer);
    if (status == TG_OK) {
        status = tg_fno_plan(ctx, network, batch, grid, true, &optimizer.shared, &step);
    }
    if (status == TG_OK) {
        *out = step.total;
        for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
            *out += optimizer.bytes[c];
        }
    }
    return status;
}

tg_status tg_step_choose_refresh_chunks(tg_context *ctx, const tg_fno_config *network,
                                        int64_t batch, const int64_t *grid,
                                        const tg_optim_setup *setup, tg_optim_config *groups) {
    TG_NEED(ctx, ctx, network, grid, setup, groups);
    size_t whole = 0, chunks = 0;
    TG_CALL(check_groups(ctx, setup, groups));
    set_chunks(groups, setup->group_count, 0);
    tg_status status = held(ctx, network, batch, grid, setup, &whole);
    if (status == TG_OK) {
        set_chunks(groups, setup->group_count, thin);
        status = held(ctx, network, batch, grid, setup, &chunks);
    }
    if (status != TG_OK || chunks + whole / LEAST_SHARE > whole) {
        set_chunks(groups, setup->group_count, 0);
        return status;
    }
    size_t bytes = thick, needed = 0;
    do {
        set_chunks(groups, setup->group_count, bytes);
        status = held(ctx, network, batch, grid, setup, &needed);
        bytes /= 2;
    } while (status == TG_OK && bytes >= thin && needed > chunks + whole / LEAST_SHARE);
    return status;
}
