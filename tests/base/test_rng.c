/* Random numbers: Philox against its published known answers, distributions by their moments and by
 * exact identities, permutations as bijections, stochastic rounding by hand. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng_math.h"
#include "support/cmocka.h"
#include "tensor/half.h"

/* The three vectors that the authors of Philox publish for 4x32-10. */
TEST(test_known_answers) {
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t out[4];
        tg_philox_rounds(rows[i].counter, rows[i].key, out);
        assert_memory_equal(out, rows[i].expected, sizeof out);
    }
}

TEST(test_streams_differ) {
    const tg_rng base = {.seed = 1, .purpose = TG_RNG_TEST, .step = 0};
    tg_rng other[3] = {base, base, base};
    other[0].seed = 2;
    other[1].purpose = TG_RNG_INIT;
    other[2].step = 1;
    uint32_t a[4], b[4];
    tg_stream_bits(&base, 5, a);
    for (int i = 0; i < 3; i++) {
        tg_stream_bits(&other[i], 5, b);
        assert_memory_not_equal(a, b, sizeof a);
    }
    tg_stream_bits(&base, 5, b);
    assert_memory_equal(a, b, sizeof a);
    tg_stream_bits(&base, 5 + (1ull << 32), b); /* the high half of the index counts */
    assert_memory_not_equal(a, b, sizeof a);
}

/* Our log and circle against the C library's: they may differ in the last bits only. */
TEST(test_exact_functions) {
    for (int i = 1; i < 100000; i++) {
        double u = i / 100000.0;
        double expected = log(u);
        assert_true(fabs(tg_exact_log(u) - expected) <= 4e-16 * fabs(expected) + 1e-16);
        double c, s;
        tg_exact_circle(u, &c, &s);
        assert_true(fabs(c - cos(6.283185307179586477 * u)) <= 2e-15);
        assert_true(fabs(s - sin(6.283185307179586477 * u)) <= 2e-15);
    }
    assert_true(tg_exact_log(1.0) == 0.0);
    assert_true(fabs(tg_exact_log(0x1p-53) + 53 * 0.69314718055994530942) <= 1e-14);
}

TEST(test_moments) {
    const tg_rng rng = {.seed = 42, .purpose = TG_RNG_TEST, .step = 7};
    enum { N = 200000 };
    double u1 = 0, u2 = 0, n1 = 0, n2 = 0, n4 = 0, e1 = 0;
    for (int i = 0; i < N; i++) {
        double u = tg_rng_uniform(&rng, (uint64_t)i);
        double z = tg_rng_normal(&rng, (uint64_t)i);
        assert_true(u >= 0.0 && u < 1.0);
        assert_true(isfinite(z));
        u1 += u;
        u2 += u * u;
        n1 += z;
        n2 += z * z;
        n4 += z * z * z * z;
        e1 += tg_rng_exponential(&rng, (uint64_t)i);
    }
    /* Five standard errors of each mean. */
    assert_true(fabs(u1 / N - 0.5) <= 5 * sqrt(1.0 / 12 / N));
    assert_true(fabs(u2 / N - 1.0 / 3) <= 5 * sqrt(4.0 / 45 / N));
    assert_true(fabs(n1 / N) <= 5 * sqrt(1.0 / N));
    assert_true(fabs(n2 / N - 1.0) <= 5 * sqrt(2.0 / N));
    assert_true(fabs(n4 / N - 3.0) <= 5 * sqrt(96.0 / N));
    assert_true(fabs(e1 / N - 1.0) <= 5 * sqrt(1.0 / N));
}

TEST(test_permutation_is_bijection) {
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 33, 1000, 4097};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint64_t n = sizes[s];
        unsigned char *seen = calloc(n, 1);
        assert_non_null(seen);
        const tg_rng rng = {.seed = 3, .purpose = TG_RNG_SHUFFLE, .step = (uint32_t)s};
        for (uint64_t i = 0; i < n; i++) {
            uint64_t image = tg_rng_permute(&rng, n, i);
            assert_true(image < n);
            assert_false(seen[image]);
            seen[image] = 1;
        }
        free(seen);
    }
}

/* Chi-square of where element 0 lands, over many steps, for n = 13: 12 degrees of freedom, the
 * 99.99th percentile is 39.1. */
TEST(test_permutation_is_uniform) {
    enum { N = 13, TRIALS = 26000 };
    for (uint64_t start = 0; start < N; start += 6) {
        int count[N] = {0};
        for (uint32_t step = 0; step < TRIALS; step++) {
            const tg_rng rng = {.seed = 9, .purpose = TG_RNG_SHUFFLE, .step = step};
            count[tg_rng_permute(&rng, N, start)]++;
        }
        double chi2 = 0, expected = (double)TRIALS / N;
        for (int i = 0; i < N; i++) {
            chi2 += (count[i] - expected) * (count[i] - expected) / expected;
        }
        assert_true(chi2 <= 39.1);
    }
}

/* Neighbours of bf16 above 1 are 2^-7 apart: 1 + 2^-8 goes up from 0x8000 of 0x10000 on, as
 * does the negative one; numbers that bf16 has stay; Inf and NaN too. */
TEST(test_stochastic_rounding) {
    static const struct {
        float x;
        uint32_t random;
        uint16_t expected;
    } rows[] = {
        {1.0f, 0xFFFF, 0x3F80},           {1.0f + 0x1p-8f, 0x7FFF, 0x3F80},
        {1.0f + 0x1p-8f, 0x8000, 0x3F81}, {-1.0f - 0x1p-8f, 0x8000, 0xBF81},
        {-0.0f, 0xFFFF, 0x8000},          {0x1.fffffep127f, 0, 0x7F7F},
        {0x1.fffffep127f, 1, 0x7F80},     {INFINITY, 0xFFFF, 0x7F80},
        {-INFINITY, 0xFFFF, 0xFF80},      {0x1p-149f, 0xFFFE, 0x0000},
        {0x1p-149f, 0xFFFF, 0x0001},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(tg_round_to_bf16(rows[i].x, rows[i].random), rows[i].expected);
    }
    assert_true((tg_round_to_bf16(NAN, 0xFFFF) & 0x7FFF) > 0x7F80);
    /* f16: 2^-10 apart above 1, 2^-24 below 2^-14; from 65536 on there is Inf alone */
    static const struct {
        float x;
        uint32_t random;
        uint16_t expected;
    } f16[] = {
        {1.0f, 0xFFFF, 0x3C00},
        {1.0f + 0x1p-11f, 0xEFFF, 0x3C00},
        {1.0f + 0x1p-11f, 0xF000, 0x3C01},
        {-1.0f - 0x1p-11f, 0x1000, 0xBC01},
        {65504.0f, 0xFFFF, 0x7BFF},
        {65520.0f, 0xFFF, 0x7BFF},
        {65520.0f, 0x1000, 0x7C00},
        {65536.0f, 0, 0x7C00},
        {-INFINITY, 0, 0xFC00},
        {0x1p-14f, 0xFFFF, 0x0400},
        {0x1p-15f, 0xFFFF, 0x0200},
        {0x1.004p-15f, 0xDFFF, 0x0200}, /* a half of 14 bits.. */
        {0x1.004p-15f, 0xE000, 0x0201},
        {0x1.01p-17f, 0x7FFF, 0x0080}, /* ..of all 16.. */
        {0x1.01p-17f, 0x8000, 0x0081},
        {0x1.02p-18f, 0x7FFF, 0x0040}, /* ..and of 17: the upper ones count */
        {0x1.02p-18f, 0x8000, 0x0041},
        {-0x1p-24f, 0xFFFF, 0x8001},
        {0x1.8p-24f, 0x7FFF, 0x0001},
        {0x1.8p-24f, 0x8000, 0x0002},
        {0x1p-25f, 0x7FFF, 0x0000},
        {0x1p-25f, 0x8000, 0x0001},
        {0x1p-32f, 0xFEFF, 0x0000},
        {0x1p-32f, 0xFF00, 0x0001},
        {0x1p-40f, 0xFFFF, 0x0000},
        {-0.0f, 0xFFFF, 0x8000},
    };
    for (size_t i = 0; i < sizeof f16 / sizeof f16[0]; i++) {
        assert_int_equal(tg_round_to_f16(f16[i].x, f16[i].random), f16[i].expected);
    }
    assert_true((tg_round_to_f16(NAN, 0) & 0x7FFF) > 0x7C00);
}

/* A draw's 128 bits are those of eight numbers, in their order. */
TEST(test_rounding_draws) {
    const tg_rng rng = {.seed = 3, .purpose = TG_RNG_ROUNDING, .step = 8};
    for (uint64_t j = 0; j < 17; j++) {
        uint32_t bits[4];
        tg_stream_bits(&rng, j / 8, bits);
        assert_int_equal(tg_rounding_bits(&rng, j), bits[j % 8 / 2] >> (j % 2 ? 16 : 0) & 0xFFFF);
    }
}

/* Numbers of a draw know nothing of each other: their bits are seldom equal, and not correlated. */
TEST(test_rounding_bits_are_independent) {
    enum { DRAWS = 1 << 16, SHARE = 8 };
    const tg_rng rng = {.seed = 11, .purpose = TG_RNG_ROUNDING, .step = 2};
    double sum[SHARE] = {0}, product[SHARE][SHARE] = {{0}};
    int equal[SHARE][SHARE] = {{0}};
    for (uint64_t draw = 0; draw < DRAWS; draw++) {
        uint32_t bits[SHARE];
        double x[SHARE]; /* in [-1, 1], with variance 1/3 */
        for (uint64_t j = 0; j < SHARE; j++) {
            bits[j] = tg_rounding_bits(&rng, SHARE * draw + j);
            x[j] = (double)bits[j] / 32767.5 - 1.0;
            sum[j] += x[j];
            for (uint64_t i = 0; i <= j; i++) {
                equal[i][j] += bits[i] == bits[j];
                product[i][j] += x[i] * x[j];
            }
        }
    }
    for (int j = 0; j < SHARE; j++) {
        assert_true(fabs(sum[j]) <= 5.0 * sqrt(DRAWS / 3.0));
        assert_true(fabs(product[j][j] - DRAWS / 3.0) <= 5.0 * sqrt(DRAWS * 4.0 / 45.0));
        for (int i = 0; i < j; i++) {
            assert_true(fabs(product[i][j]) <= 5.0 * sqrt(DRAWS) / 3.0);
            assert_true(equal[i][j] <= 8); /* once is expected */
        }
    }
}

/* The mean over all random bits is x: exactly in bf16, and to 2^-16 of a step where more bits are
 * cut off. */
TEST(test_rounding_has_no_bias) {
    static const float sizes[] = {0x1.23456p0f,   -0x1.fedcbap-3f, 0x1.3579bp-14f, -0x1.abcdep-16f,
                                  0x1.2468ap-17f, 0x1.7654p-20f,   -0x1.cbap-26f,  0x1.8p-31f};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double bf16 = 0.0, f16 = 0.0;
        for (uint32_t random = 0; random < 0x10000; random++) {
            bf16 += (double)tg_bf16_to_f32(tg_round_to_bf16(sizes[i], random));
            f16 += (double)tg_f16_to_f32(tg_round_to_f16(sizes[i], random));
        }
        assert_true(bf16 * 0x1p-16 == (double)sizes[i]);
        const double step = fmax(0x1p-24, ldexp(1.0, ilogbf(sizes[i]) - 10));
        const double error = fabs(f16 * 0x1p-16 - (double)sizes[i]);
        assert_true(error <= (step > 0x1p-24 ? 0.0 : 0x1p-16 * step));
    }
}
