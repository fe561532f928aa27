/* Random numbers of every backend: the same bits as ref, whose numbers are those of base/rng.h;
 * parts of a stream fit together; and the moments are right. All of it is deterministic, so bounds
 * of five standard deviations never fail by chance. */
#include <math.h>

#include "support/runner.h"

static const tg_rng rng = {.seed = 0x123456789ABCDEFu, .purpose = TG_RNG_TEST, .step = 7};

/* Uniform in [a, b), or normal of mean a and deviation b. */
static void *draw(t_side *s, bool normal, uint64_t first, double a, double b, int64_t n) {
    void *x = t_output(s, s->dtype, n);
    const tg_random op = {
        normal ? TG_RANDOM_NORMAL : TG_RANDOM_UNIFORM, s->dtype, rng, first, a, b, n, x};
    t_ok(s, s->ops->random(s->be, &op));
    return x;
}

ROW(same_on_every_backend, "same on every backend", T_FLOATS) {
    static const uint64_t firsts[] = {0, 1, 12345, UINT32_MAX - 2, (uint64_t)1 << 40};
    for (int normal = 0; normal < 2; normal++) {
        for (int f = 0; f < T_COUNT(firsts); f++) {
            for (int i = 0; i < t_length_count; i++) {
                t_note(s, "%s, first %llu, n %lld", normal ? "normal" : "uniform",
                       (unsigned long long)firsts[f], (long long)t_lengths[i]);
                t_keep_same(s, draw(s, normal, firsts[f], -0.3, 2.7, t_lengths[i]));
                t_release(s);
            }
        }
    }
}

/* Element i of a stream is the number of that index, a pair those of 2i and 2i + 1. */
ROW(numbers_of_the_stream, "numbers of the stream", T_FLOATS) {
    const int64_t n = 65;
    const uint64_t first = 41;
    for (int normal = 0; normal < 2; normal++) {
        double (*number)(const tg_rng *, uint64_t) = normal ? tg_rng_normal : tg_rng_uniform;
        const void *x = t_download(s, draw(s, normal, first, 0.0, 1.0, n));
        void *expected = t_host_alloc(s, s->dtype, n);
        for (int64_t i = 0; i < n; i++) {
            const uint64_t at = first + (uint64_t)i;
            tg_store(s->dtype, expected, i,
                     tg_dtype_is_complex(s->dtype)
                         ? (tg_scalar){number(&rng, 2 * at), number(&rng, 2 * at + 1)}
                         : (tg_scalar){number(&rng, at), 0.0});
        }
        t_true(s, t_first_difference(s->dtype, n, x, expected) == -1);
    }
}

/* A stream drawn in two parts is the stream drawn at once. */
ROW(parts_fit, "parts fit", T_FLOATS) {
    const int64_t n = 67;
    for (int normal = 0; normal < 2; normal++) {
        for (int64_t cut = 0; cut <= n; cut += 11) {
            t_note(s, "cut at %lld", (long long)cut);
            const char *whole = t_download(s, draw(s, normal, 100, 1.0, 2.0, n));
            const void *head = t_download(s, draw(s, normal, 100, 1.0, 2.0, cut));
            const void *tail =
                t_download(s, draw(s, normal, 100 + (uint64_t)cut, 1.0, 2.0, n - cut));
            const size_t at = (size_t)cut * tg_dtype_size(s->dtype);
            t_true(s, t_first_difference(s->dtype, cut, whole, head) == -1);
            t_true(s, t_first_difference(s->dtype, n - cut, whole + at, tail) == -1);
        }
    }
}

/* Averages of the powers of (x - mean) / deviation over all parts, and the correlation of Re with
 * Im; for n numbers each average is within 5 sqrt(variance / n) of its expectation. */
static void check_moments(t_side *s, const void *x, int64_t n, double mean, double deviation,
                          const double expected[4], const double variance[4]) {
    const bool pairs = tg_dtype_is_complex(s->dtype);
    const double count = (double)n * (pairs ? 2.0 : 1.0);
    double sums[4] = {0}, correlation = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar v = tg_load(s->dtype, x, i);
        const double z[2] = {(v.re - mean) / deviation, (v.im - mean) / deviation};
        for (int part = 0; part < (pairs ? 2 : 1); part++) {
            double power = 1.0;
            for (int m = 0; m < 4; m++) {
                power *= z[part];
                sums[m] += power;
            }
        }
        correlation += pairs ? z[0] * z[1] : 0.0;
    }
    const double storage = 4.0 * t_tolerance(s->dtype); /* what rounding to the dtype may move */
    for (int m = 0; m < 4; m++) {
        t_below(s, fabs(sums[m] / count - expected[m]), 5.0 * sqrt(variance[m] / count) + storage);
    }
    t_below(s, fabs(correlation / (double)n), 5.0 / sqrt((double)n));
}

ROW(moments, "moments", T_FLOATS) {
    const int64_t n = 40009;
    /* z of the uniform is uniform in +-sqrt(3): E z^2 = 1, E z^4 = 9/5, E z^6 = 27/7, E z^8 = 9;
     * of the normal 1, 3, 15, 105. */
    static const double uniform[4] = {0.0, 1.0, 0.0, 1.8}, normal[4] = {0.0, 1.0, 0.0, 3.0};
    static const double uniform_variance[4] = {1.0, 0.8, 27.0 / 7.0, 9.0 - 3.24};
    static const double normal_variance[4] = {1.0, 2.0, 15.0, 96.0};
    const void *x = t_download(s, draw(s, false, 0, -2.0, 4.0, n));
    check_moments(s, x, n, 1.0, sqrt(3.0), uniform, uniform_variance);
    double least = HUGE_VAL, most = -HUGE_VAL;
    for (int64_t i = 0; i < n; i++) {
        const double v = tg_load(s->dtype, x, i).re;
        t_true(s, v >= -2.0 && v <= 4.0); /* 4 itself only by rounding to the dtype */
        least = fmin(least, v);
        most = fmax(most, v);
    }
    t_below(s, least, -1.99);
    t_below(s, -most, -3.98);
    x = t_download(s, draw(s, true, 0, 0.5, 2.0, n));
    check_moments(s, x, n, 0.5, 2.0, normal, normal_variance);
}

/* Seed, purpose and step each give another stream. */
ROW(streams_differ, "streams differ", T_FLOATS) {
    const tg_rng others[] = {{rng.seed, rng.purpose, rng.step},
                             {rng.seed + 1, rng.purpose, rng.step},
                             {rng.seed, rng.purpose + 1, rng.step},
                             {rng.seed, rng.purpose, rng.step + 1},
                             {rng.seed ^ (uint64_t)1 << 63, rng.purpose, rng.step}};
    const int64_t n = 33;
    const void *base = t_download(s, draw(s, false, 0, 0.0, 1.0, n));
    for (int i = 0; i < T_COUNT(others); i++) {
        t_note(s, "stream %d", i);
        void *x = t_output(s, s->dtype, n);
        const tg_random op = {TG_RANDOM_UNIFORM, s->dtype, others[i], 0, 0.0, 1.0, n, x};
        t_ok(s, s->ops->random(s->be, &op));
        t_true(s, (t_first_difference(s->dtype, n, base, t_download(s, x)) == -1) == (i == 0));
    }
}

ROW(refusals, "refusals", T_ONCE) {
    void *x = t_output(s, TG_I32, 3);
    for (int normal = 0; normal < 2; normal++) {
        const tg_random op = {
            normal ? TG_RANDOM_NORMAL : TG_RANDOM_UNIFORM, TG_I32, rng, 0, 0.0, 1.0, 3, x};
        t_refused(s, TG_E_DTYPE, s->ops->random(s->be, &op));
    }
    t_keep_same(s, x);
}

int main(void) {
    return t_run_rows("random");
}
