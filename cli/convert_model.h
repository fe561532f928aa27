/* tgrad convert MODEL OUT --factorize or --densify: spectral weights of a model in another form. */
#ifndef CLI_CONVERT_MODEL_H
#define CLI_CONVERT_MODEL_H

#include "commands.h"

typedef struct cli_form {
    const char *factorize; /* tucker or tt; NULL: not given */
    const char *rank;      /* as of fno.rank; NULL: not given */
    bool densify;
} cli_form;

int cli_convert_model(const cli_call *call, const cli_form *form);

#endif
