/* Rows along the last dimension, each from the products of the other dimensions' vectors. */
#include "random_gradient.h"

#include <math.h>
#include <stdlib.h>

#include "text.h"

enum { TERMS = 8 };

static const double noise_size = 0.1;

typedef struct pair {
    double re, im;
} pair;

/* The finalizer of splitmix64, at its i-th step from `seed`. */
static uint64_t random_bits(uint64_t seed, uint64_t i) {
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Two independent standard normal numbers, number i of a stream. */
static pair random_normals(uint64_t stream, uint64_t i) {
    const double unit = 1.0 / 9007199254740992.0;                               /* 2^-53 */
    const double u = ((double)(random_bits(stream, 2 * i) >> 11) + 0.5) * unit; /* in (0, 1) */
    const double v = (double)(random_bits(stream, 2 * i + 1) >> 11) * unit;
    const double radius = sqrt(-2.0 * log(u)), angle = 6.283185307179586 * v;
    return (pair){radius * cos(angle), radius * sin(angle)};
}

/* A number of unit variance, real or complex. */
static pair random_value(uint64_t stream, uint64_t i, bool is_complex) {
    const pair normals = random_normals(stream, i);
    return is_complex ? (pair){normals.re * sqrt(0.5), normals.im * sqrt(0.5)}
                      : (pair){normals.re, 0.0};
}

static pair times(pair a, pair b) {
    return (pair){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

/* vectors[d][r * dim + i] for all dimensions, to be freed one by one. */
static void make_vectors(const tg_shape *shape, uint64_t seed, bool is_complex,
                         pair *vectors[TG_MAX_NDIM]) {
    for (int d = 0; d < shape->ndim; d++) {
        const int64_t count = TERMS * shape->dim[d];
        vectors[d] = cli_need(malloc((size_t)count * sizeof *vectors[d]));
        const uint64_t stream = random_bits(seed, (uint64_t)d);
        for (int64_t i = 0; i < count; i++) {
            vectors[d][i] = random_value(stream, (uint64_t)i, is_complex);
        }
    }
}

/* The products of the vectors' entries at `index`, without the last dimension. */
static void make_weights(const tg_shape *shape, pair *const vectors[TG_MAX_NDIM],
                         const int64_t index[TG_MAX_NDIM], pair weights[TERMS]) {
    for (int r = 0; r < TERMS; r++) {
        weights[r] = (pair){1.0 / (r + 1), 0.0};
        for (int d = 0; d < shape->ndim - 1; d++) {
            weights[r] = times(weights[r], vectors[d][r * shape->dim[d] + index[d]]);
        }
    }
}

void cli_random_gradient(const tg_tensor *out, uint64_t seed, uint64_t draw) {
    const tg_shape *shape = &out->shape;
    const int last = shape->ndim - 1;
    const bool is_complex = tg_dtype_is_complex(out->dtype);
    const int64_t numel = tg_tensor_numel(out), row = shape->dim[last];
    const uint64_t noise = random_bits(seed, TG_MAX_NDIM + draw);
    pair *vectors[TG_MAX_NDIM] = {NULL};
    int64_t index[TG_MAX_NDIM] = {0};
    float *values = out->data;
    make_vectors(shape, seed, is_complex, vectors);
    for (int64_t first = 0; first < numel; first += row) {
        pair weights[TERMS];
        make_weights(shape, vectors, index, weights);
        for (int64_t i = 0; i < row; i++) {
            pair value = random_value(noise, (uint64_t)(first + i), is_complex);
            value = (pair){noise_size * value.re, noise_size * value.im};
            for (int r = 0; r < TERMS; r++) {
                const pair term = times(weights[r], vectors[last][r * row + i]);
                value = (pair){value.re + term.re, value.im + term.im};
            }
            *values++ = (float)value.re;
            if (is_complex) {
                *values++ = (float)value.im;
            }
        }
        for (int d = last - 1; d >= 0 && ++index[d] == shape->dim[d]; d--) {
            index[d] = 0;
        }
    }
    for (int d = 0; d < shape->ndim; d++) {
        free(vectors[d]);
    }
}
