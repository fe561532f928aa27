#include "support/factorized.h"

#include <complex.h>
#include <string.h>

typedef double _Complex number;

/* Of an array of c64 or c128. */
static number get(tg_dtype dtype, const void *x, int64_t i) {
    return dtype == TG_C64 ? (number)((const float _Complex *)x)[i] : ((const number *)x)[i];
}

static void put(tg_dtype dtype, void *x, int64_t i, number value) {
    if (dtype == TG_C64) {
        ((float _Complex *)x)[i] = (float _Complex)value;
    } else {
        ((number *)x)[i] = value;
    }
}

static void add(tg_dtype dtype, void *x, int64_t i, number value) {
    put(dtype, x, i, get(dtype, x, i) + value);
}

void t_two_modes_forward(const tg_two_modes *op) {
    const tg_dtype d = op->dtype;
    for (int64_t e = 0; e < op->planes * op->d1 * op->d2; e++) {
        const int64_t p = e / op->d2 / op->d1, a = e / op->d2 % op->d1, b = e % op->d2;
        number sum = 0.0;
        for (int64_t i = 0; i < op->r1; i++) {
            for (int64_t j = 0; j < op->r2; j++) {
                sum += get(d, op->left, a * op->r1 + i) * get(d, op->right, b * op->r2 + j) *
                       get(d, op->core, (p * op->r1 + i) * op->r2 + j);
            }
        }
        put(d, op->weight, e, sum);
    }
}

static void clear(tg_dtype dtype, void *x, int64_t n) {
    memset(x, 0, (size_t)n * tg_dtype_size(dtype));
}

/* weight[p] is linear in each of the three: what each entry of them adds to <dweight, weight>. */
void t_two_modes_backward(const tg_two_modes *op) {
    const tg_dtype d = op->dtype;
    clear(d, op->dleft, op->d1 * op->r1);
    clear(d, op->dright, op->d2 * op->r2);
    for (int64_t e = 0; e < op->planes * op->r1 * op->r2; e++) {
        const int64_t p = e / op->r2 / op->r1, i = e / op->r2 % op->r1, j = e % op->r2;
        const number core = get(d, op->core, e);
        number sum = 0.0;
        for (int64_t a = 0; a < op->d1; a++) {
            const number left = get(d, op->left, a * op->r1 + i);
            number row = 0.0;
            for (int64_t b = 0; b < op->d2; b++) {
                const number dweight = get(d, op->weight, (p * op->d1 + a) * op->d2 + b);
                row += dweight * conj(get(d, op->right, b * op->r2 + j));
                add(d, op->dright, b * op->r2 + j, dweight * conj(left * core));
            }
            add(d, op->dleft, a * op->r1 + i, row * conj(core));
            sum += row * conj(left);
        }
        put(d, op->dcore, e, sum);
    }
}

/* to (rows) of a sample and mode = the sum over `from` of a matrix, or its conjugate. */
static void apply(const tg_mapped *op, const void *from, int64_t from_rows, void *to,
                  int64_t to_rows, const void *matrix, int64_t from_step, int64_t to_step,
                  int64_t mode_step) {
    const tg_dtype d = op->dtype;
    for (int64_t e = 0; e < op->batch * to_rows * op->modes; e++) {
        const int64_t b = e / op->modes / to_rows, r = e / op->modes % to_rows, k = e % op->modes;
        number sum = 0.0;
        for (int64_t i = 0; i < from_rows; i++) {
            const number m = get(d, matrix, i * from_step + r * to_step + k * mode_step);
            sum += (op->adjoint ? conj(m) : m) * get(d, from, (b * from_rows + i) * op->modes + k);
        }
        put(d, to, e, sum);
    }
}

void t_mapped_contract(const tg_mapped *op) {
    const int64_t c = op->channels, in = op->in, out = op->out, k = op->modes;
    if (op->adjoint) {
        apply(op, op->src, c, op->inner_out, out, op->map_out, out, 1, 0);
        apply(op, op->inner_out, out, op->inner_in, in, op->weight, k, out * k, 1);
        apply(op, op->inner_in, in, op->dst, c, op->map_in, 1, in, 0);
    } else {
        apply(op, op->src, c, op->inner_in, in, op->map_in, in, 1, 0);
        apply(op, op->inner_in, in, op->inner_out, out, op->weight, out * k, k, 1);
        apply(op, op->inner_out, out, op->dst, c, op->map_out, 1, out, 0);
    }
}

/* to (channels, inner) = the sum of left (channels) right (inner), the one to be conjugated is
 * told. */
static void correlate(const tg_map_gradients *op, const void *left, const void *right,
                      int64_t inner, bool conjugates_left, void *to) {
    const tg_dtype d = op->dtype;
    for (int64_t e = 0; e < op->channels * inner; e++) {
        const int64_t c = e / inner, i = e % inner;
        number sum = 0.0;
        for (int64_t s = 0; s < op->batch * op->modes; s++) {
            const int64_t b = s / op->modes, k = s % op->modes;
            const number x = get(d, left, (b * op->channels + c) * op->modes + k);
            const number y = get(d, right, (b * inner + i) * op->modes + k);
            sum += conjugates_left ? conj(x) * y : x * conj(y);
        }
        put(d, to, e, sum);
    }
}

void t_mapped_gradients(const tg_map_gradients *op) {
    correlate(op, op->x, op->dinner_in, op->in, true, op->dmap_in);
    correlate(op, op->dy, op->inner_out, op->out, false, op->dmap_out);
    for (int64_t e = 0; e < op->in * op->out * op->modes; e++) {
        const int64_t i = e / op->modes / op->out, o = e / op->modes % op->out, k = e % op->modes;
        number sum = 0.0;
        for (int64_t b = 0; b < op->batch; b++) {
            sum += conj(get(op->dtype, op->inner_in, (b * op->in + i) * op->modes + k)) *
                   get(op->dtype, op->dinner_out, (b * op->out + o) * op->modes + k);
        }
        put(op->dtype, op->dweight, e, sum);
    }
}
