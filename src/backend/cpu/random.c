/* Random numbers: element i depends only on its index, so parts are independent. */
#include "backend/cpu/cpu.h"

#include "backend/check.h"

enum { BLOCK = 512 }; /* numbers at a time, on the stack */

/* x[i] = offset + factor * number of index first + i, as n reals of a real dtype. */
static void fill_part(const cpu_kernels *k, tg_dtype real, cpu_law law, const tg_rng *rng,
                      uint64_t first, double offset, double factor, int64_t n, char *x) {
    double numbers[BLOCK];
    float rounded[BLOCK];
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t count = n - i < BLOCK ? n - i : BLOCK;
        void *to = x + (size_t)i * tg_dtype_size(real);
        k->random_numbers(law, rng, first + (uint64_t)i, count, numbers);
        for (int64_t j = 0; j < count; j++) {
            numbers[j] = offset + factor * numbers[j];
        }
        if (real == TG_F64) {
            k->load_f64(TG_F64, count, numbers, to);
        } else {
            k->load_f32(TG_F64, count, numbers, rounded);
            k->store_f32(real, count, rounded, to);
        }
    }
}

/* A pair takes two numbers. */
tg_status cpu_random(tg_backend *be, const tg_random *op) {
    tg_status status = tg_check_float(be->ctx, "random", op->dtype);
    if (status != TG_OK || op->n <= 0) {
        return status;
    }
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const bool is_normal = op->law == TG_RANDOM_NORMAL;
    const tg_dtype real = tg_dtype_real(op->dtype);
    const int64_t pair = tg_dtype_is_complex(op->dtype) ? 2 : 1, reals = pair * op->n;
    const int parts = cpu_parts(be, reals, 4 * BLOCK);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(reals, BLOCK, parts, p);
        fill_part(k, real, is_normal ? CPU_NORMAL : CPU_UNIFORM, &op->rng,
                  (uint64_t)pair * op->first + (uint64_t)r.begin, op->a,
                  is_normal ? op->b : op->b - op->a, r.end - r.begin,
                  (char *)op->x + (size_t)r.begin * tg_dtype_size(real));
    }
    return TG_OK;
}
