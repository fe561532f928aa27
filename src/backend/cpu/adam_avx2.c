/* Adam for CPUs with AVX2 and FMA, eight floats at a time; an empty table where the compiler has
 * none. Reading grad before direction is written lets the two be the same memory. */
#include "backend/cpu/adam.h"

#ifdef __AVX2__
#include <immintrin.h>

enum { LANES = 8 };

static inline __m256 inverse_root(const cpu_adam_step *s, __m256 v) {
    return 1.0f / (_mm256_sqrt_ps(v) + s->eps);
}

static inline __m256 second_moment(const cpu_adam_step *s, __m256 square, __m256 v) {
    return _mm256_fmadd_ps(_mm256_set1_ps(s->beta2), v, s->c2 * square);
}

static inline __m256 load_grad(const cpu_adam_step *s, const float *grad) {
    return s->scale * _mm256_loadu_ps(grad);
}

/* Eight components from `at` on; `inverse` has the inverses of their second moments. */
static inline void move(const cpu_adam_step *s, __m256 g, __m256 inverse, int64_t at,
                        const cpu_adam_arrays *a) {
    const __m256 m =
        _mm256_fmadd_ps(_mm256_set1_ps(s->beta1), _mm256_loadu_ps(a->m + at), s->c1 * g);
    const __m256 u = m * inverse;
    _mm256_storeu_ps(a->m + at, m);
    if (a->direction) {
        _mm256_storeu_ps(a->direction + at, u);
    }
    if (a->weight) {
        __m256 w = s->alpha * u;
        if (s->beta != 0.0f) {
            w = _mm256_fmadd_ps(_mm256_set1_ps(s->beta), _mm256_loadu_ps(a->weight + at), w);
        }
        _mm256_storeu_ps(a->weight + at, w);
    }
}

/* The rest of the arrays, from float `at` and real `i` of v on. */
static cpu_adam_arrays rest(cpu_adam_arrays a, int64_t at, int64_t i) {
    return (cpu_adam_arrays){.grad = a.grad + at,
                             .m = a.m + at,
                             .v = a.v + i,
                             .direction = a.direction ? a.direction + at : NULL,
                             .weight = a.weight ? a.weight + at : NULL};
}

static void reals(const cpu_adam_step *s, int64_t n, cpu_adam_arrays a) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m256 g = load_grad(s, a.grad + i);
        const __m256 v = second_moment(s, g * g, _mm256_loadu_ps(a.v + i));
        _mm256_storeu_ps(a.v + i, v);
        move(s, g, inverse_root(s, v), i, &a);
    }
    cpu_adam_plain.reals(s, n - i, rest(a, i, i));
}

static void pairs(const cpu_adam_step *s, int64_t n, cpu_adam_arrays a) {
    /* hadd leaves the moduli in the order 0 1 4 5 2 3 6 7; unpack doubles them back per half. */
    const __m256i in_order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m256 low = load_grad(s, a.grad + 2 * i);
        const __m256 high = load_grad(s, a.grad + 2 * i + LANES);
        const __m256 squares =
            _mm256_permutevar8x32_ps(_mm256_hadd_ps(low * low, high * high), in_order);
        const __m256 v = second_moment(s, squares, _mm256_loadu_ps(a.v + i));
        _mm256_storeu_ps(a.v + i, v);
        const __m256 inverse = _mm256_permutevar8x32_ps(inverse_root(s, v), in_order);
        move(s, low, _mm256_unpacklo_ps(inverse, inverse), 2 * i, &a);
        move(s, high, _mm256_unpackhi_ps(inverse, inverse), 2 * i + LANES, &a);
    }
    cpu_adam_plain.pairs(s, n - i, rest(a, 2 * i, i));
}

const cpu_adam_kernels cpu_adam_avx2 = {.reals = reals, .pairs = pairs};
#else
const cpu_adam_kernels cpu_adam_avx2 = {0};
#endif
