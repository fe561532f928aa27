/* Internals of normalizers. */
#ifndef TG_DATA_NORMALIZER_H
#define TG_DATA_NORMALIZER_H

#include "backend/backend.h"
#include "tgrad/data.h"

int64_t tg_normalizer_channels(const tg_normalizer *normalizer);
bool tg_normalizer_is_complex(const tg_normalizer *normalizer);

/* To and from an archive, exactly: prefix + "mean" (f64 or c128) and prefix + "std" (f64), both
 * (channels). */
TG_NODISCARD tg_status tg_normalizer_save(const tg_normalizer *normalizer, tg_archive *archive,
                                          const char *prefix);
TG_NODISCARD tg_status tg_normalizer_load(tg_context *ctx, const tg_archive *archive,
                                          const char *prefix, tg_normalizer **out);

/* A copy, which the caller destroys. */
TG_NODISCARD tg_status tg_normalizer_copy(tg_context *ctx, const tg_normalizer *from,
                                          tg_normalizer **out);

/* As tg_normalizer_fit for y, which repeats `channels` channels, like the steps of a rollout: each
 * repetition is a sample. */
TG_NODISCARD tg_status tg_normalizer_fit_channels(tg_context *ctx, tg_dataset *dataset,
                                                  tg_data_side side, int64_t channels,
                                                  tg_normalizer **out);

/* Converts a value of a channel from the units of `from` to those of `to` (NULL: raw): scale *
 * value
 * + shift. */
void tg_normalizer_between(const tg_normalizer *from, int64_t from_channel, const tg_normalizer *to,
                           int64_t to_channel, double *scale, tg_scalar *shift);

/* As tg_normalizer_invert, for values on the backend's device: out = values * std + mean. */
TG_NODISCARD tg_status tg_normalizer_decode(const tg_normalizer *n, tg_backend *be,
                                            const tg_tensor *values, const tg_tensor *out);

#endif
