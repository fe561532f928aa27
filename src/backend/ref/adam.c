/* Adam and other update rules, block by block in double. */
#include "backend/ref/ref.h"

static tg_status update(tg_backend *be, const tg_adam *call) {
    tg_adam op;
    tg_rng rounding;
    bool goes = false;
    const tg_status status = tg_adam_resolve(be, call, &op, &rounding, &goes);
    for (int64_t i = 0; goes && i < op.n; i += TG_STATE_BLOCK) {
        tg_rule_block(&op, i, op.n - i < TG_STATE_BLOCK ? op.n - i : TG_STATE_BLOCK);
    }
    return status;
}

tg_status ref_update(tg_backend *be, int count, const tg_adam *calls) {
    for (int i = 0; i < count; i++) {
        TG_CALL(update(be, &calls[i]));
    }
    return TG_OK;
}
