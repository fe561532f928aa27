/* Normalizers inside of the library. */
#ifndef TG_DATA_NORMALIZER_H
#define TG_DATA_NORMALIZER_H

#include "backend/backend.h"
#include "tgrad/data.h"

/* Another one with the same numbers; the caller destroys it. */
TG_NODISCARD tg_status tg_normalizer_copy(tg_context *ctx, const tg_normalizer *from,
                                          tg_normalizer **out);

/* As tg_normalizer_fit, of y with `channels` channels that it has several times, as the steps of a
 * rollout: each is a sample. */
TG_NODISCARD tg_status tg_normalizer_fit_channels(tg_context *ctx, tg_dataset *dataset,
                                                  tg_data_side side, int64_t channels,
                                                  tg_normalizer **out);

/* A value of a channel of `from` as one of a channel of `to` (NULL: raw): scale * value + shift. */
void tg_normalizer_between(const tg_normalizer *from, int64_t from_channel, const tg_normalizer *to,
                           int64_t to_channel, double *scale, tg_scalar *shift);

/* As tg_normalizer_invert, for values where the backend computes: out = values * std + mean. */
TG_NODISCARD tg_status tg_normalizer_decode(const tg_normalizer *n, tg_backend *be,
                                            const tg_tensor *values, const tg_tensor *out);

#endif
