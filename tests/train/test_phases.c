/* The order of the phases of a run, written out for a few settings. */
#include <string.h>

#include "support/cmocka.h"
#include "train/config.h"

/* A run from an epoch of a stage on: T(rain), E(valuate), R(ecord), S: record with a checkpoint,
 * O(pen), P(redict samples). */
static void walk(const tg_loop_config *loops, int stages, int stage, int64_t epoch, char *out) {
    static const char letters[] = "OTERP";
    tg_run_position at = {&loops[stage], epoch, stage + 1 == stages, false};
    for (tg_phase phase = tg_phase_first(&at); phase != TG_PHASE_END;
         phase = tg_phase_after(phase, &at)) {
        char letter = letters[phase];
        if (phase == TG_PHASE_OPEN) {
            stage++;
            at = (tg_run_position){&loops[stage], 0, stage + 1 == stages, false};
        } else if (phase == TG_PHASE_RECORD) {
            at.epoch++;
            letter = tg_phase_saves(at.loop, at.epoch) ? 'S' : 'R';
        }
        *out++ = letter;
    }
    *out = '\0';
}

TEST(phases_follow_the_settings) {
    static const tg_loop_config every = {.n_epochs = 2, .eval_interval = 1, .save_every = 1};
    static const tg_loop_config seldom[] = {{.n_epochs = 5, .eval_interval = 2, .save_every = 3},
                                            {.n_epochs = 1, .eval_interval = 9, .save_every = 9}};
    const struct {
        const tg_loop_config *loops;
        int stages, stage;
        int64_t epoch;
        const char *phases;
    } rows[] = {
        {&every, 1, 0, 0, "TESTESP"},
        {&every, 1, 0, 1, "TESP"},
        {&every, 1, 0, 2, "P"}, /* stopped before the samples were written */
        {seldom, 1, 0, 0, "TRTERTSTERTESP"},
        {seldom, 2, 0, 3, "TERTESOTESP"},
        {seldom, 2, 0, 5, "OTESP"},
        {seldom, 2, 1, 0, "TESP"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char found[64];
        walk(rows[i].loops, rows[i].stages, rows[i].stage, rows[i].epoch, found);
        assert_string_equal(found, rows[i].phases);
    }
}
