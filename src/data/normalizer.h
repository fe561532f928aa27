/* Normalizers inside of the library. */
#ifndef TG_DATA_NORMALIZER_H
#define TG_DATA_NORMALIZER_H

#include "tgrad/data.h"

/* Another one with the same numbers; the caller destroys it. */
TG_NODISCARD tg_status tg_normalizer_copy(tg_context *ctx, const tg_normalizer *from,
                                          tg_normalizer **out);

#endif
