/* The table behind the settings of a network. */
#ifndef TG_NN_CONFIG_H
#define TG_NN_CONFIG_H

#include "base/setting.h"
#include "tgrad/fno.h"

const tg_setting *nn_config_rows(void); /* (tg_fno_config_count()) */

/* A config of the caller, of whatever size, as one of this library's. */
TG_NODISCARD tg_status nn_config_read(tg_context *ctx, const tg_fno_config *config,
                                      tg_fno_config *out);

#endif
