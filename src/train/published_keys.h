/* Keys of the published programs (neuraloperator, TensorGRaD): those that are no keys here, and
 * those that opt.name stands for. */
#ifndef TG_TRAIN_PUBLISHED_KEYS_H
#define TG_TRAIN_PUBLISHED_KEYS_H

#include "tgrad/settings.h"

/* The key that goes by another name here ("fno.data_channels": "fno.in_channels"), or `key`. */
const char *tg_published_name(const char *key);

/* Whether it is such a key. TG_E_CONFIG, with what to use instead, if the value asks for something
 * that is not done here; with another value it changes nothing. */
TG_NODISCARD tg_status tg_published_check(tg_context *ctx, const char *key, const char *value,
                                          bool *is_published);

/* Whether setting number `index` is a part of a method that opt.name replaces. A run's config.yaml
 * and published files describe their method by its parts; a name that comes later, such as that of
 * the command line, means another method, not a mixture of both. */
bool tg_method_is_replaced(const tg_settings *settings, int64_t index);

#endif
