/* Keys of the published programs (neuraloperator, TensorGRaD): those without a field here, and
 * those that opt.name replaces. */
#ifndef TG_TRAIN_PUBLISHED_KEYS_H
#define TG_TRAIN_PUBLISHED_KEYS_H

#include "tgrad/optim.h"
#include "tgrad/settings.h"

/* The name here of a renamed key ("fno.data_channels": "fno.in_channels"), or `key`. */
const char *tg_published_name(const char *key);

/* Whether it is such a key. TG_E_CONFIG, naming the alternative, if the value asks for something
 * unsupported; other values have no effect. */
TG_NODISCARD tg_status tg_published_check(tg_context *ctx, const char *key, const char *value,
                                          bool *is_published);

/* Whether setting number `index` is replaced by a later one, such as from the command line:
 * data.set replaces the data files, and opt.name a method that a run's config.yaml or a published
 * file describes by its parts, so that the two are not mixed. */
bool tg_setting_is_replaced(const tg_settings *settings, int64_t index);

/* A size that is set for a part that the method does not have; NULL: none. */
const char *tg_method_unused(const tg_optim_config *opt);

#endif
