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

/* The caller's config, of whatever size, converted to this library's. */
TG_NODISCARD tg_status nn_config_read(tg_context *ctx, const tg_fno_config *config,
                                      tg_fno_config *out);

#endif
