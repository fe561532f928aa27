/* tgrad plan --fit: settings with which a run fits into a given memory. */
#ifndef CLI_TRAIN_PLAN_FIT_H
#define CLI_TRAIN_PLAN_FIT_H

#include "common/run_settings.h"

enum { CLI_FIT_SETTINGS = 12, CLI_FIT_PROPOSALS = 3 };

/* Settings over those of the run, and their effect. */
typedef struct cli_proposal {
    int count;
    char key[CLI_FIT_SETTINGS][48], value[CLI_FIT_SETTINGS][32];
    double time;    /* of a step, relative to one without them: an estimate */
    size_t peak;    /* where the backend computes */
    char phase[80]; /* of the peak */
} cli_proposal;

typedef struct cli_fit {
    cli_proposal now; /* as the settings are */
    int count;        /* proposals, cheapest first; 0: `now` fits, or nothing does */
    cli_proposal proposal[CLI_FIT_PROPOSALS];
    cli_proposal smallest; /* the least that can be reached */
} cli_fit;

/* Searches for proposals. */
TG_NODISCARD tg_status cli_fit_search(tg_context *ctx, const tg_settings *settings, size_t bytes,
                                      cli_fit *out);

/* "--fno.activation_checkpoint block ..", to be pasted; returns text. */
const char *cli_proposal_arguments(const cli_proposal *proposal, char *text, size_t capacity);

#endif
