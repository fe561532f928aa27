/* Normalizers inside of the library. */
#ifndef TG_DATA_NORMALIZER_H
#define TG_DATA_NORMALIZER_H

#include "backend/backend.h"
#include "tgrad/data.h"

/* Another one with the same numbers; the caller destroys it. */
TG_NODISCARD tg_status tg_normalizer_copy(tg_context *ctx, const tg_normalizer *from,
                                          tg_normalizer **out);

/* As tg_normalizer_invert, for values where the backend computes: out = values * std + mean. */
TG_NODISCARD tg_status tg_normalizer_decode(const tg_normalizer *n, tg_backend *be,
                                            const tg_tensor *values, const tg_tensor *out);

#endif
