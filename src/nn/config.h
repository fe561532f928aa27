/* The table behind the settings of a network. */
#ifndef TG_NN_CONFIG_H
#define TG_NN_CONFIG_H

#include "base/setting.h"

const tg_setting *nn_config_rows(void); /* (tg_fno_config_count()) */

#endif
