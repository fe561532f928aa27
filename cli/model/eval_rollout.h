/* Errors of rollouts: as text, as JSON, and as a file beside a run that `tgrad report` shows. */
#ifndef CLI_MODEL_EVAL_ROLLOUT_H
#define CLI_MODEL_EVAL_ROLLOUT_H

#include "common/model_file.h"
#include "common/output.h"

void cli_rollout_print(const char *file, const tg_rollout_errors *errors);
json_t *cli_rollout_json(const char *file, const tg_rollout_errors *errors);

/* Writes CLI_ROLLOUT_FILE into `folder`: curves and spectra, and of the first trajectory up to six
 * frames, truth and prediction. */
TG_NODISCARD tg_status cli_rollout_keep(tg_context *ctx, const cli_model *model,
                                        tg_dataset *dataset, const tg_rollout_errors *errors,
                                        const char *folder);

#endif
