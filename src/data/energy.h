/* Energy by wave number of many fields on one grid, with one plan for all. */
#ifndef TG_DATA_ENERGY_H
#define TG_DATA_ENERGY_H

#include "backend/backend.h"
#include "tgrad/data.h"

typedef struct tg_energy {
    tg_backend *be; /* on the host, whatever backend computes */
    tg_fft_desc desc;
    tg_fft_plan *plan;
    tg_dtype dtype;       /* of the fields */
    tg_tensor values;     /* (grid..) one channel in double precision */
    int64_t kept, count;  /* numbers of coefficients and of wave numbers (may be lowered) */
    double *coefficients; /* (kept, 2) */
} tg_energy;

/* For fields (grid..) of any dtype, n_dim 1 to 3; must be closed even on failure. */
TG_NODISCARD tg_status tg_energy_open(tg_context *ctx, tg_dtype dtype, int n_dim,
                                      const int64_t *grid, tg_energy *out);
void tg_energy_close(tg_energy *energy);

/* Adds weight * E(k) of a field (channels, grid..) on the host to sums[k], k < count. */
TG_NODISCARD tg_status tg_energy_add(tg_energy *energy, const void *field, int64_t channels,
                                     double weight, double *sums);

#endif
