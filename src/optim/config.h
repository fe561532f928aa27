/* The tables of settings of optimizer and schedule. */
#ifndef TG_OPTIM_CONFIG_H
#define TG_OPTIM_CONFIG_H

#include "base/setting.h"
#include "tgrad/optim.h"

const tg_setting *tg_optim_config_rows(void);       /* (tg_optim_config_count()) */
const tg_setting *tg_lr_schedule_config_rows(void); /* (tg_lr_schedule_config_count()) */

/* Whether this setting changes the contents or format of an optimizer's state. */
bool tg_optim_config_shapes_state(const char *key);

/* The key `name`, which sets a whole method (methods.c). It has no field. */
extern const tg_setting tg_optim_method_row;
TG_NODISCARD tg_status tg_optim_method_set(tg_context *ctx, tg_optim_config *config,
                                           const char *name);

#endif
