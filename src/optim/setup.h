/* A caller's setup converted to this library's. */
#ifndef TG_OPTIM_SETUP_H
#define TG_OPTIM_SETUP_H

#include "optim/optim.h"

/* Reads and checks it. *out has its own groups; free them even after an error. */
TG_NODISCARD tg_status tg_optim_setup_read(tg_context *ctx, const tg_optim_setup *given,
                                           tg_optim_setup *out);
void tg_optim_setup_free(tg_context *ctx, tg_optim_setup *setup);

#endif
