/* The table of a network's settings. */
#ifndef TG_NN_CONFIG_H
#define TG_NN_CONFIG_H

#include "base/setting.h"
#include "tgrad/fno.h"

const tg_setting *nn_config_rows(void); /* (tg_fno_config_count()) */

/* The keys in order, and the value of a key as text that tg_fno_config_set reads back. */
int tg_fno_config_count(void);
const char *tg_fno_config_key(int index); /* NULL beyond the last */
const char *tg_fno_config_get(const tg_fno_config *config, int index, char *text, size_t capacity);

/* Whether gradients pass through f16: activations or spectra are kept in it. Such a network is
 * trained with a loss scale (tgrad/optim.h). */
bool tg_fno_passes_f16(const tg_fno_config *config);

/* n_modes, or fewer where a grid (n_dim sizes) has fewer. A network with more modes keeps its
 * weights and uses those of the lowest frequencies. */
void tg_fno_fitting_modes(const tg_fno_config *config, const int64_t *grid,
                          int64_t modes[TG_FNO_MAX_DIMS]);

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
