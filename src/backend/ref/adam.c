/* Adam, a block of moments at a time: decoded, moved in double, used, and put back in their form.
 */
#include <math.h>

#include "backend/ref/ref.h"
#include "backend/state_codec.h"

enum { BLOCK = TG_STATE_BLOCK };

/* Moments of up to BLOCK elements as reals: a complex m and a v by parts have two per element. */
typedef struct moments {
    double m[2 * BLOCK], v[2 * BLOCK];
} moments;

/* Reals [first, first + n) of m (second: of v), from the begin of a block on. */
static void load_moments(const tg_adam *op, bool second, int64_t first, int64_t n, double *to) {
    const tg_state_codec *codec = tg_state_codecs[op->form];
    const tg_dtype real = tg_dtype_real(op->dtype);
    const char *x = second ? op->v : op->m;
    if (!codec->decode) {
        for (int64_t j = 0; j < n; j++) {
            to[j] = tg_load(real, x, first + j).re;
        }
        return;
    }
    const float *scale = second ? op->v_scale : op->m_scale;
    float values[2 * BLOCK];
    codec->decode(second, n, x + tg_state_bytes(codec, real, first),
                  scale ? scale + tg_state_scales(codec, first) : NULL, values);
    for (int64_t j = 0; j < n; j++) {
        to[j] = (double)values[j];
    }
}

static void store_moments(const tg_adam *op, bool second, int64_t first, int64_t n,
                          const double *from) {
    const tg_state_codec *codec = tg_state_codecs[op->form];
    const tg_dtype real = tg_dtype_real(op->dtype);
    char *x = second ? op->v : op->m;
    if (!codec->encode) {
        for (int64_t j = 0; j < n; j++) {
            tg_store(real, x, first + j, (tg_scalar){from[j], 0.0});
        }
        return;
    }
    const uint64_t number = (second ? UINT64_C(1) << 63 : UINT64_C(1) << 62) + (uint64_t)first;
    float *scale = second ? op->v_scale : op->m_scale;
    float values[2 * BLOCK];
    for (int64_t j = 0; j < n; j++) {
        values[j] = (float)from[j];
    }
    codec->encode(second, op->rounding, number, n, values, x + tg_state_bytes(codec, real, first),
                  scale ? scale + tg_state_scales(codec, first) : NULL);
}

/* v from a square, and what the direction is divided by. */
static double root(const tg_adam *op, double square, double *v) {
    *v = op->beta2 * *v + (1.0 - op->beta2) * square;
    return sqrt(*v) + op->eps;
}

/* Element i, number k of its block. */
static void move(const tg_adam *op, bool split, int64_t i, int64_t k, moments *s) {
    const bool complex = tg_dtype_is_complex(op->dtype);
    tg_scalar g = tg_load(tg_stored(op->dtype, op->grad_store), op->grad, i), u = {0};
    g = (tg_scalar){op->scale * g.re, op->scale * g.im};
    double *m = s->m + (complex ? 2 * k : k), *v = s->v + (split ? 2 * k : k);
    m[0] = op->beta1 * m[0] + (1.0 - op->beta1) * g.re;
    const double below = root(op, split ? g.re * g.re : ref_abs2(g), &v[0]);
    u.re = m[0] / below;
    if (complex) {
        m[1] = op->beta1 * m[1] + (1.0 - op->beta1) * g.im;
        u.im = m[1] / (split ? root(op, g.im * g.im, &v[1]) : below);
    }
    if (op->direction) {
        tg_store(op->dtype, op->direction, i, u);
    }
    if (op->weight) {
        const tg_dtype stored = tg_stored(op->dtype, op->weight_store);
        tg_scalar w = {op->alpha * u.re, op->alpha * u.im};
        if (op->beta != 0.0) {
            const tg_scalar old = tg_load(stored, op->weight, i);
            w = ref_add(w, (tg_scalar){op->beta * old.re, op->beta * old.im});
        }
        tg_store_rounded(stored, op->weight, i, w, op->rounding);
    }
}

tg_status ref_adam(tg_backend *be, const tg_adam *call) {
    tg_adam resolved;
    tg_rng rounding;
    const tg_adam *op = &resolved;
    bool goes = false;
    tg_status status = tg_adam_resolve(be, call, &resolved, &rounding, &goes);
    if (!goes) {
        return status;
    }
    const bool complex = tg_dtype_is_complex(op->dtype), split = op->split && complex;
    const int64_t m_width = complex ? 2 : 1, v_width = split ? 2 : 1;
    for (int64_t first = 0; first < op->n; first += BLOCK) {
        const int64_t n = op->n - first < BLOCK ? op->n - first : BLOCK;
        moments s;
        load_moments(op, false, m_width * first, m_width * n, s.m);
        load_moments(op, true, v_width * first, v_width * n, s.v);
        for (int64_t k = 0; k < n; k++) {
            move(op, split, first + k, k, &s);
        }
        store_moments(op, false, m_width * first, m_width * n, s.m);
        store_moments(op, true, v_width * first, v_width * n, s.v);
    }
    return TG_OK;
}

/* For every backend that has no way of its own. */
tg_status ref_adam_many(tg_backend *be, int count, const tg_adam *calls) {
    tg_status status = TG_OK;
    for (int i = 0; i < count && status == TG_OK; i++) {
        status = be->ops->adam(be, &calls[i]);
    }
    return status;
}
