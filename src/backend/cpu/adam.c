/* Adam's moments and direction in one pass: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) |g|^2,
 * u = m / (sqrt(v) + eps), and weight = beta weight + alpha u. A complex array by parts (`split`)
 * is an array of twice as many reals. */
#include "backend/cpu/adam.h"

#include <math.h>

#include "backend/check.h"
#include "backend/cpu/compress.h"

enum { THREAD_GRAIN = 1 << 12 }; /* fewer are not worth a thread */

static float inverse_root(const cpu_adam_step *s, float square, float *v) {
    *v = s->beta2 * *v + s->c2 * square;
    return 1.0f / (sqrtf(*v) + s->eps);
}

/* Moves one real component; `inverse` is that of its second moment. */
static void move(const cpu_adam_step *s, float g, float inverse, int64_t at, cpu_adam_arrays a) {
    a.m[at] = s->beta1 * a.m[at] + s->c1 * g;
    const float u = a.m[at] * inverse;
    if (a.direction) {
        a.direction[at] = u;
    }
    if (a.weight) {
        a.weight[at] = s->alpha * u + (s->beta == 0.0f ? 0.0f : s->beta * a.weight[at]);
    }
}

static void reals(const cpu_adam_step *s, int64_t n, cpu_adam_arrays a) {
    for (int64_t i = 0; i < n; i++) {
        const float g = s->scale * a.grad[i];
        move(s, g, inverse_root(s, g * g, &a.v[i]), i, a);
    }
}

static void pairs(const cpu_adam_step *s, int64_t n, cpu_adam_arrays a) {
    for (int64_t i = 0; i < n; i++) {
        const float re = s->scale * a.grad[2 * i], im = s->scale * a.grad[2 * i + 1];
        const float inverse = inverse_root(s, re * re + im * im, &a.v[i]);
        move(s, re, inverse, 2 * i, a);
        move(s, im, inverse, 2 * i + 1, a);
    }
}

const cpu_adam_kernels cpu_adam_plain = {.reals = reals, .pairs = pairs};

tg_status cpu_adam(tg_backend *be, const tg_adam *call) {
    tg_adam resolved;
    tg_rng rounding;
    const tg_adam *op = &resolved;
    bool goes = false;
    if (!cpu_compress_tuned(call->dtype) || call->grad_store != TG_STORE_FULL ||
        call->weight_store != TG_STORE_FULL || call->form != TG_STATE_FULL) {
        return be->ref->adam(be, call);
    }
    tg_status status = tg_adam_resolve(be, call, &resolved, &rounding, &goes);
    if (!goes) {
        return status;
    }
    const bool avx2 = cpu_state_of(be)->kernels == &cpu_kernels_avx2;
    const cpu_adam_kernels *kernels = avx2 ? &cpu_adam_avx2 : &cpu_adam_plain;
    const cpu_adam_step step = {.scale = (float)op->scale,
                                .beta1 = (float)op->beta1,
                                .c1 = (float)(1.0 - op->beta1),
                                .beta2 = (float)op->beta2,
                                .c2 = (float)(1.0 - op->beta2),
                                .eps = (float)op->eps,
                                .alpha = (float)op->alpha,
                                .beta = (float)op->beta};
    const bool complex = tg_dtype_is_complex(op->dtype), paired = complex && !op->split;
    const int64_t width = paired ? 2 : 1; /* floats of what a kernel counts */
    const int64_t n = complex && op->split ? 2 * op->n : op->n;
    const int parts = cpu_parts(be, n, THREAD_GRAIN);
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int part = 0; part < parts; part++) {
        const tg_range r = tg_partition(n, TG_ALIGNMENT, parts, part);
        const int64_t at = r.begin * width;
        const cpu_adam_arrays arrays = {
            .grad = (const float *)op->grad + at,
            .m = (float *)op->m + at,
            .v = (float *)op->v + r.begin,
            .direction = op->direction ? (float *)op->direction + at : NULL,
            .weight = op->weight ? (float *)op->weight + at : NULL,
        };
        (paired ? kernels->pairs : kernels->reals)(&step, r.end - r.begin, arrays);
    }
    return TG_OK;
}
