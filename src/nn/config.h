/* The table of a network's settings. */
#ifndef TG_NN_CONFIG_H
#define TG_NN_CONFIG_H

#include "base/setting.h"
#include "tgrad/fno.h"

const tg_setting *nn_config_rows(void); /* (tg_fno_config_count()) */

/* Lists of a UNO. */
typedef struct nn_uno_lists {
    tg_list_int channels;
    tg_list_rows modes, scalings, horizontal;
} nn_uno_lists;

void nn_uno_read_lists(const tg_fno_config *config, nn_uno_lists *out);
/* After a change of `key`. */
TG_NODISCARD tg_status nn_uno_take_lists(tg_context *ctx, const char *key,
                                         const nn_uno_lists *lists, tg_fno_config *config);
/* "{4: 0, 3: 1}", as horizontal_skips_map is published, as rows; returns them. */
const char *nn_uno_pairs(const char *map, char *rows, size_t capacity);
/* YAML has such a map as keys horizontal_skips_map.4: the layer in the key, NULL in another one;
 * and the entry added to those before it, as rows. */
const char *nn_uno_pair_key(const char *key);
const char *nn_uno_add_pair(const tg_list_rows *before, const char *to, const char *from,
                            char *rows, size_t capacity);
TG_NODISCARD tg_status nn_uno_check(tg_context *ctx, const tg_fno_config *config);

/* The caller's config, of whatever size, converted to this library's. */
TG_NODISCARD tg_status nn_config_read(tg_context *ctx, const tg_fno_config *config,
                                      tg_fno_config *out);

#endif
