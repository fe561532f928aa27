/* Keys of the published programs (neuraloperator, TensorGRaD): those that are no keys here, and
 * those that opt.name stands for. */
#ifndef TG_TRAIN_PUBLISHED_KEYS_H
#define TG_TRAIN_PUBLISHED_KEYS_H

#include "tgrad/optim.h"
#include "tgrad/settings.h"

/* The key that goes by another name here ("fno.data_channels": "fno.in_channels"), or `key`. */
const char *tg_published_name(const char *key);

/* Whether it is such a key. TG_E_CONFIG, with what to use instead, if the value asks for something
 * that is not done here; with another value it changes nothing. */
TG_NODISCARD tg_status tg_published_check(tg_context *ctx, const char *key, const char *value,
                                          bool *is_published);

/* Whether setting number `index` is replaced by one that comes later, such as from the command
 * line: the files of the data by data.set, and by opt.name a method that a run's config.yaml or a
 * published file describes by its parts. It means another method then, not a mixture of both. */
bool tg_setting_is_replaced(const tg_settings *settings, int64_t index);

/* The size of a part that the method has not, though it is set; NULL: none. */
const char *tg_method_unused(const tg_optim_config *opt);

#endif
