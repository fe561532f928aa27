/* Automatic ranks (opt.rank: auto) as the optimizer uses them.
 *
 * The update before each scheduled refresh, and the very first, also observes the spectrum of the
 * gradient. When all parameters of a group are observed, the next update allocates ranks for all of
 * them at once: their state is repacked within one pool of memory, and every parameter whose ranks
 * changed refreshes its projection. */
#ifndef TG_OPTIM_AUTO_RANK_AUTO_RANK_H
#define TG_OPTIM_AUTO_RANK_AUTO_RANK_H

#include "backend/backend.h"
#include "tgrad/optim.h"

struct tg_slot;
typedef struct tg_ranked tg_ranked; /* of a parameter */

/* What a state is made of: the settings of the moments, and the dtype. */
typedef struct tg_state_kind {
    const tg_optim_config *config;
    tg_dtype dtype;
} tg_state_kind;

/* The memory that the parameters of a group with automatic ranks share: their regions of moments
 * and factors lie one behind the other in the order of the parameters. */
typedef struct tg_rank_pool {
    int members;        /* parameters; 0: the group has no automatic ranks */
    tg_state_kind kind; /* of all of them */
    size_t bytes;       /* of the regions */
    size_t budget;      /* that regions and index sets have together */
    int64_t values;     /* that could be in them at most */
    int64_t most;       /* that one projector is planned for; 0: any number */
    void *memory;       /* (bytes) */
    void *sum;          /* (values) accumulated gradients, or NULL */
    void *scratch;      /* host: of an allocation */
    void *staging;      /* host: an array that is repacked */
    size_t scratch_bytes, staging_bytes;
} tg_rank_pool;

/* Sizes of a group's pool, without memory. */
TG_NODISCARD tg_status tg_auto_rank_plan(tg_context *ctx, const tg_optim_setup *setup, int group,
                                         tg_rank_pool *out);
/* Most values of one parameter of that pool; 0 if its ranks are not automatic. */
TG_NODISCARD tg_status tg_auto_rank_most(tg_context *ctx, const tg_optim_setup *setup,
                                         const tg_rank_pool *pool, const tg_optim_param *param,
                                         int64_t *most);

/* After all parameters are made and pools planned: memory, and equal ranks. */
TG_NODISCARD tg_status tg_auto_rank_create(tg_optim *optim);
void tg_auto_rank_destroy(tg_optim *optim);

/* Takes the spectrum of a gradient that is observed. */
TG_NODISCARD tg_status tg_auto_rank_observe(tg_optim *optim, struct tg_slot *slot,
                                            const tg_gradient *dense);
/* Before an update of `slot`: other ranks for its whole group, once all of it is observed. */
TG_NODISCARD tg_status tg_auto_rank_allocate(tg_optim *optim, const struct tg_slot *slot);

/* Whether this update observes; whether the next one does, or may allocate. */
bool tg_auto_rank_observes(const tg_optim *optim, const struct tg_slot *slot, bool refreshes);
bool tg_auto_rank_is_active(const tg_optim *optim, const struct tg_slot *slot);

/* Ranks and spectrum of a parameter in a saved state, and those of all from it: they are checked
 * and put in place, spectra only if it copies. A load is undone by tg_auto_rank_unload. */
TG_NODISCARD tg_status tg_auto_rank_save(tg_optim *optim, struct tg_slot *slot,
                                         tg_archive *archive);
TG_NODISCARD tg_status tg_auto_rank_load(tg_optim *optim, const tg_archive *archive, bool copies);
void tg_auto_rank_unload(tg_optim *optim);

#endif
