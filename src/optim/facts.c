/* Counts, projection errors and times of an optimizer. */
#include "optim/optim.h"

tg_optim_stats tg_optim_get_stats(const tg_optim *optim) {
    if (!optim) {
        return (tg_optim_stats){0};
    }
    tg_optim_stats stats = optim->stats;
    stats.overflows = optim->loss_scale.overflows;
    for (int i = 0; i < optim->slot_count; i++) {
        if (optim->slots[i].projector) {
            stats.refreshes += optim->slots[i].projector->refreshes;
            stats.failures += optim->slots[i].projector->failures;
        }
    }
    return stats;
}

tg_optim_projection tg_optim_get_projection(const tg_optim *optim, int param) {
    const bool is_known = optim && param >= 0 && param < optim->slot_count;
    const tg_slot *slot = is_known ? &optim->slots[param] : NULL;
    const tg_projector *p = slot ? slot->projector : NULL;
    if (!p) {
        return (tg_optim_projection){.is_projected = false};
    }
    tg_optim_projection out = {.is_projected = true,
                               .kept = p->sparse ? p->sparse->count : 0,
                               .values = slot->count,
                               .entries = slot->numel,
                               .refreshed = slot->last_refresh,
                               .error = slot->error};
    if (p->low_rank) {
        out.ranks = tg_shape_of(p->low_rank->modes.ndim, p->low_rank->modes.rank);
    }
    for (int b = 0; b < p->branches; b++) {
        out.bytes += tg_branch_factor_bytes(&p->branch[b]) + tg_branch_index_bytes(&p->branch[b]);
    }
    out.bytes += tg_moments_bytes(&slot->moments);
    return out;
}

tg_optim_times tg_optim_get_times(const tg_optim *optim) {
    return optim ? optim->times : (tg_optim_times){0};
}

void tg_optim_time_parts(tg_optim *optim, bool waits) {
    if (optim) {
        optim->times = (tg_optim_times){0};
        optim->times_parts = waits;
    }
}
