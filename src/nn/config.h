/* The table of a network's settings. */
#ifndef TG_NN_CONFIG_H
#define TG_NN_CONFIG_H

#include "base/setting.h"
#include "tgrad/fno.h"

const tg_setting *nn_config_rows(void); /* (tg_fno_config_count()) */

/* The caller's config, of whatever size, converted to this library's. */
TG_NODISCARD tg_status nn_config_read(tg_context *ctx, const tg_fno_config *config,
                                      tg_fno_config *out);

#endif
