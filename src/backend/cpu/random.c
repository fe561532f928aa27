/* Random numbers: element i depends on its index alone, so parts are independent. */
#include "backend/cpu/cpu.h"

#include "backend/check.h"

typedef double (*number_fn)(const tg_rng *rng, uint64_t index);

/* x[i] = offset + factor * number(first + i); a pair takes two numbers. */
static tg_status fill_random(tg_backend *be, tg_dtype dtype, number_fn number, const tg_rng *rng,
                             uint64_t first, double offset, double factor, int64_t n, void *x) {
    tg_status status = tg_check_float(be->ctx, "random", dtype);
    if (status != TG_OK || n <= 0) {
        return status;
    }
    const tg_dtype real = tg_dtype_real(dtype);
    const int64_t pair = tg_dtype_is_complex(dtype) ? 2 : 1, reals = pair * n;
    const int parts = cpu_parts(be, reals, 1024);
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(reals, 64, parts, p);
        for (int64_t i = r.begin; i < r.end; i++) {
            const uint64_t index = (uint64_t)pair * first + (uint64_t)i;
            tg_store(real, x, i, (tg_scalar){offset + factor * number(rng, index), 0.0});
        }
    }
    return TG_OK;
}

tg_status cpu_random_uniform(tg_backend *be, tg_dtype dtype, const tg_rng *rng, uint64_t first,
                             double low, double high, int64_t n, void *x) {
    return fill_random(be, dtype, tg_rng_uniform, rng, first, low, high - low, n, x);
}

tg_status cpu_random_normal(tg_backend *be, tg_dtype dtype, const tg_rng *rng, uint64_t first,
                            double mean, double deviation, int64_t n, void *x) {
    return fill_random(be, dtype, tg_rng_normal, rng, first, mean, deviation, n, x);
}
