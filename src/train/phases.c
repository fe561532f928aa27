/* The order of the phases. */
#include "train/phases.h"

tg_phase tg_phase_first(const tg_run_position *at) {
    return at->epoch < at->loop->n_epochs && !at->is_stopped ? TG_PHASE_TRAIN
           : at->is_last_stage                               ? TG_PHASE_SAMPLES
                                                             : TG_PHASE_OPEN;
}

static bool is_tested(const tg_loop_config *loop, int64_t epoch) {
    return epoch % loop->eval_interval == 0 || epoch == loop->n_epochs;
}

bool tg_phase_saves(const tg_loop_config *loop, int64_t epoch) {
    return epoch % loop->save_every == 0 || epoch == loop->n_epochs;
}

tg_phase tg_phase_after(tg_phase done, const tg_run_position *at) {
    switch (done) {
    case TG_PHASE_TRAIN:
        return is_tested(at->loop, at->epoch + 1) ? TG_PHASE_EVALUATE : TG_PHASE_RECORD;
    case TG_PHASE_EVALUATE:
        return TG_PHASE_RECORD;
    case TG_PHASE_OPEN:
    case TG_PHASE_RECORD:
        return tg_phase_first(at);
    default:
        return TG_PHASE_END;
    }
}
