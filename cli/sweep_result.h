/* What a trial of a sweep came to: one JSON object, in DIR/results/NAME.json when the trial ends
 * and as a line of DIR/results.jsonl when the sweep does.
 *
 *     {"name": .., "cell": .., "variant": .., "settings": {axis: value}, "seed": .., "rate": ..,
 *      "search": .., "status": "finished"|"failed", "epochs": .., "steps": .., "train_loss": ..,
 *      "test": {"16": {"l2": .., "h1": ..}}, "validation": {..}, "memory": {"peak": .., ..},
 *      "projection_error": .., "step_ms": .., "seconds": .., "folder": ..} */
#ifndef CLI_SWEEP_RESULT_H
#define CLI_SWEEP_RESULT_H

#include "sweep_file.h"

/* The result that is there; NULL if there is none, or it is no JSON object. To be given back. */
json_t *cli_result_read(const char *folder, const char *trial);
bool cli_result_is_finished(const json_t *result); /* NULL: false */

/* Of the trial's run folder, after its end; `reason` is why it failed, NULL if it did not. To be
 * given back. */
json_t *cli_result_make(tg_context *ctx, const char *folder, const cli_experiment *experiment,
                        const cli_trial *trial, const char *rate, const char *reason);
/* Of its plan alone (run: plan). */
json_t *cli_result_planned(const cli_experiment *experiment, const cli_trial *trial);
int cli_result_write(const char *folder, const char *trial, const json_t *result);

/* |G - P(G)| / |G| of every projected weight at every refresh of a run, behind the `count` values
 * that are there. */
void cli_projection_errors(const char *run, double **values, int *count);

/* The rate with which a cell did best on validation data, of the trials that have ended; NULL if
 * none has come to a number. */
const char *cli_result_best_rate(const char *folder, const cli_experiment *experiment, int cell);

/* DIR/results.jsonl and DIR/sweep.json, of all results that are there. */
int cli_results_gather(const char *folder, const cli_experiment *experiment);

#endif
