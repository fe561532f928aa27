/* Adam and other update rules, block by block in double. */
#include "backend/ref/ref.h"

tg_status ref_rule_step(tg_backend *be, const tg_adam *call, tg_rule_kernel kernel) {
    tg_adam op;
    tg_rng rounding;
    bool goes = false;
    const tg_status status = tg_adam_resolve(be, call, &op, &rounding, &goes);
    for (int64_t i = 0; goes && i < op.n; i += TG_STATE_BLOCK) {
        tg_rule_block(&op, kernel, i, op.n - i < TG_STATE_BLOCK ? op.n - i : TG_STATE_BLOCK);
    }
    return status;
}

tg_status ref_adam(tg_backend *be, int count, const tg_adam *calls) {
    for (int i = 0; i < count; i++) {
        TG_CALL(ref_rule_step(be, &calls[i], TG_KERNEL_ADAM));
    }
    return TG_OK;
}
