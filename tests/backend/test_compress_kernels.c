/* Kernels of compressed gradients of each instruction set this CPU has, against their definition in
 * double: products with every remainder of rows and columns, deeper than one slice, conjugated or
 * not; transposed matrices; stretches of factored gradients in all formats; kept entries; the same
 * bits with AVX2 and AVX-512. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/compress.h"
#include "support/files.h"
#include "support/network.h"
#include "tensor/half.h"

#include <complex.h> /* makes a macro of `complex` */

enum {
    TABLES = 3,
    MOST_ROWS = 29,
    MOST_COLUMNS = 53,
    DEEP = CPU_PRODUCT_DEPTH + 3,
    GAP = 3 /* elements between rows of C, which must stay as they are */
};

static const cpu_compress_kernels *const tables[TABLES] = {&cpu_compress_plain, &cpu_compress_avx2,
                                                           &cpu_compress_avx512};

static bool has(const cpu_compress_kernels *kernels) {
#if defined(__x86_64__) || defined(__i386__)
    return kernels->product && (kernels != &cpu_compress_avx2 || __builtin_cpu_supports("avx2")) &&
           (kernels != &cpu_compress_avx512 || __builtin_cpu_supports("avx512vl"));
#else
    return kernels == &cpu_compress_plain;
#endif
}

/* Numbers of [-1, 1) that bf16 and f16 hold. */
static float *numbers(int64_t n, uint64_t seed) {
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)((int)(test_random(&seed) >> 57) - 64) / 64.0f;
    }
    return x;
}

static double complex number(double re, double im) {
    const double parts[2] = {re, im};
    double complex z;
    memcpy(&z, parts, sizeof z);
    return z;
}

static double complex element(const float *x, int width, int64_t i, bool conjugate) {
    const double re = (double)x[i * width], im = width == 2 ? (double)x[2 * i + 1] : 0.0;
    return number(re, conjugate ? -im : im);
}

static void expect(const float *found, int width, double complex sum, double size) {
    const double complex error = element(found, width, 0, false) - sum;
    assert_true(cabs(error) <= 1e-6 * size);
}

static void check_product(const cpu_product *p, int width, const float *before) {
    for (int64_t at = 0; at < p->m * p->ldc; at++) {
        const int64_t i = at / p->ldc, j = at % p->ldc;
        double complex sum = 0.0;
        if (j >= p->n) {
            assert_memory_equal(p->c + at * width, before + at * width, 4 * (size_t)width);
            continue;
        }
        for (int64_t q = 0; q < p->k; q++) {
            sum += element(p->a, width, i * p->row_a + q * p->col_a, p->conj_a) *
                   element(p->b, width, q * p->ldb + j, p->conj_b);
        }
        sum *= (double)p->alpha;
        if (p->beta != 0.0f) {
            sum += (double)p->beta * element(before, width, at, false);
        }
        expect(p->c + at * width, width, sum, (double)(p->k + 1));
    }
}

/* One product by every table, with B exactly as long as needed. */
static void run_products(cpu_product p, int width) {
    const size_t bytes = (size_t)(p.m * p.ldc * width) * sizeof(float);
    float *a = numbers(p.m * p.k * width, 1), *b = numbers(p.k * p.n * width, 2);
    float *before = numbers(p.m * p.ldc * width, 3), *c[TABLES] = {0};
    for (int t = 0; t < TABLES; t++) {
        c[t] = malloc(bytes);
        assert_non_null(c[t]);
        memcpy(c[t], before, bytes);
        for (int64_t at = 0; p.beta == 0.0f && at < p.m * p.ldc * width; at++) {
            const bool is_gap = at / width % p.ldc >= p.n;
            c[t][at] = is_gap ? c[t][at] : NAN; /* not to be read */
        }
        p.a = a;
        p.b = b;
        p.c = c[t];
        if (has(tables[t])) {
            tables[t]->product(width == 2, &p);
            check_product(&p, width, before);
        }
    }
    if (has(&cpu_compress_avx512)) {
        assert_memory_equal(c[1], c[2], bytes);
    }
    for (int t = 0; t < TABLES; t++) {
        free(c[t]);
    }
    free(a);
    free(b);
    free(before);
}

TEST(test_products) {
    for (int64_t n = 1; n <= MOST_COLUMNS; n++) {
        for (int form = 0; form < 4; form++) {
            const int64_t m = 1 + (n + 3 * form) % MOST_ROWS, k = n % 9 == form ? DEEP : 1 + n % 7;
            const bool by_columns = n % 2 == 1;
            const cpu_product p = {.m = m,
                                   .n = n,
                                   .k = k,
                                   .row_a = by_columns ? 1 : k,
                                   .col_a = by_columns ? m : 1,
                                   .ldb = n,
                                   .ldc = n + GAP,
                                   .alpha = 0.5f,
                                   .beta = form == 3 ? 0.75f : 0.0f,
                                   .conj_a = form == 1,
                                   .conj_b = form == 2};
            run_products(p, 2);
            if (form == 0 || form == 3) {
                run_products(p, 1);
            }
        }
    }
}

/* A second factor that is larger than the caches near a core: rows of the next tile are asked for.
 */
TEST(test_far_product) {
    const cpu_product p = {.m = 13,
                           .n = 1409,
                           .k = 75,
                           .row_a = 75,
                           .col_a = 1,
                           .ldb = 1409,
                           .ldc = 1409 + GAP,
                           .alpha = 1.0f};
    run_products(p, 2);
}

TEST(test_transpose) {
    for (int64_t rows = 1; rows <= 20; rows++) {
        const int64_t columns = 1 + 7 * rows % 19, ld_x = columns + GAP, ld_out = rows + GAP;
        float *x = numbers(rows * ld_x, 7);
        for (int t = 0; t < TABLES; t++) {
            float *out = numbers(columns * ld_out, 8), *before = numbers(columns * ld_out, 8);
            if (has(tables[t])) {
                tables[t]->transpose(rows, columns, x, ld_x, out, ld_out);
            }
            for (int64_t at = 0; has(tables[t]) && at < columns * ld_out; at++) {
                const int64_t j = at / ld_out, i = at % ld_out;
                const float expected = i < rows ? x[i * ld_x + j] : before[at];
                assert_memory_equal(&out[at], &expected, sizeof expected);
            }
            free(out);
            free(before);
        }
        free(x);
    }
}

/* `n` numbers as they are stored. */
static void *stored(const float *x, int64_t n, tg_storage store) {
    void *copy = malloc((size_t)n * (store == TG_STORE_FULL ? 4 : 2));
    assert_non_null(copy);
    for (int64_t i = 0; i < n; i++) {
        if (store == TG_STORE_FULL) {
            ((float *)copy)[i] = x[i];
        } else {
            ((uint16_t *)copy)[i] =
                store == TG_STORE_BF16 ? tg_f32_to_bf16(x[i]) : tg_f32_to_f16(x[i]);
        }
    }
    return copy;
}

/* One stretch of some rows by every table. */
static void run_stretches(int64_t n, int rows, int64_t batch, tg_storage store, int width) {
    const int64_t xs = batch * rows * n * width, dys = batch * n * width;
    const int64_t row_out = n + GAP, outs = rows * row_out * width;
    float *x = numbers(xs, 4), *dy = numbers(dys, 5), *before = numbers(outs, 6);
    float *out[TABLES] = {0};
    void *stored_x = stored(x, xs, store), *stored_dy = stored(dy, dys, store);
    for (int t = 0; t < TABLES; t++) {
        out[t] = numbers(outs, 6);
        const cpu_stretch s = {.n = n,
                               .batch = batch,
                               .rows = rows,
                               .store = store,
                               .x = stored_x,
                               .dy = stored_dy,
                               .step_x = rows * n,
                               .step_dy = n,
                               .row_x = n,
                               .scale = 0.5f,
                               .out = out[t],
                               .row_out = row_out};
        if (!has(tables[t])) {
            continue;
        }
        tables[t]->stretch(width == 2, &s);
        for (int64_t at = 0; at < rows * row_out; at++) {
            const int64_t i = at / row_out, j = at % row_out;
            double complex sum = 0.0;
            for (int64_t b = 0; j < n && b < batch; b++) {
                sum += element(x, width, (b * rows + i) * n + j, true) *
                       element(dy, width, b * n + j, false);
            }
            if (j < n) {
                expect(out[t] + at * width, width, 0.5 * sum, (double)batch);
            } else {
                assert_memory_equal(out[t] + at * width, before + at * width, 4 * (size_t)width);
            }
        }
    }
    if (has(&cpu_compress_avx512)) {
        assert_memory_equal(out[1], out[2], (size_t)outs * sizeof **out);
    }
    for (int t = 0; t < TABLES; t++) {
        free(out[t]);
    }
    free(stored_x);
    free(stored_dy);
    free(x);
    free(dy);
    free(before);
}

TEST(test_stretches) {
    static const tg_storage stores[] = {TG_STORE_FULL, TG_STORE_BF16, TG_STORE_F16};
    for (int64_t n = 1; n <= 70; n++) {
        for (int width = 1; width <= 2; width++) {
            run_stretches(n, 1 + (int)(n % 7), 1 + n % 4, stores[n % 3], width);
        }
    }
}

TEST(test_dots) {
    for (int64_t n = 1; n <= 40; n++) {
        float *a = numbers(2 * n, 7), *b = numbers(2 * n, 8);
        double complex sum[2] = {0.0, 0.0};
        for (int width = 1; width <= 2; width++) {
            for (int64_t j = 0; j < n; j++) {
                sum[width - 1] += element(a, width, j, false) * element(b, width, j, false);
            }
        }
        for (int t = 0; t < TABLES; t++) {
            float real = 1.0f, both[2] = {1.0f, 2.0f};
            if (has(tables[t])) {
                tables[t]->dot(false, n, a, b, 0.5f, &real);
                tables[t]->dot(true, n, a, b, 0.5f, both);
                expect(&real, 1, 1.0 + 0.5 * sum[0], (double)n);
                expect(both, 2, number(1.0, 2.0) + 0.5 * sum[1], (double)n);
            }
        }
        free(a);
        free(b);
    }
}

/* A product of few rows: each row has the bits that it has alone. */
TEST(test_few_rows) {
    enum { ROWS = 9, COLUMNS = 43, DEPTH = 8 };
    float *a = numbers(2 * ROWS * DEPTH, 9), *b = numbers(2 * DEPTH * COLUMNS, 10);
    float *before = numbers(2 * ROWS * COLUMNS, 11), *c = numbers(2 * ROWS * COLUMNS, 11);
    for (int t = 0; t < TABLES; t++) {
        float alone[2 * COLUMNS];
        cpu_product p = {.m = ROWS,
                         .n = COLUMNS,
                         .k = DEPTH,
                         .a = a,
                         .row_a = DEPTH,
                         .col_a = 1,
                         .b = b,
                         .ldb = COLUMNS,
                         .conj_b = true,
                         .c = c,
                         .ldc = COLUMNS,
                         .alpha = 1.0f};
        if (!has(tables[t])) {
            continue;
        }
        tables[t]->product(true, &p);
        check_product(&p, 2, before);
        p.m = 1;
        p.c = alone;
        for (int row = 0; row < ROWS; row++, p.a += 2 * DEPTH) {
            tables[t]->product(true, &p);
            assert_memory_equal(alone, c + 2 * row * COLUMNS, sizeof alone);
        }
    }
    free(a);
    free(b);
    free(before);
    free(c);
}

/* Kept entries of some rows by every table, and the rest of the rows. */
static void run_kept(int64_t batch, int64_t rank, int width, bool taken) {
    enum { ROWS = 5, CHANNELS = 7, COUNT = 11 };
    float *x = numbers(ROWS * CHANNELS * batch * width, 12);
    float *dy = numbers(ROWS * batch * width, 13), *u = numbers(CHANNELS * rank * width, 14);
    for (int t = 0; t < TABLES; t++) {
        float *out = numbers(ROWS * rank * width, 15);
        cpu_kept entries[COUNT];
        double complex left[ROWS * 64];
        assert_true(rank <= 64);
        for (int64_t i = 0; i < ROWS * rank; i++) {
            left[i] = element(out, width, i, false);
        }
        for (int e = 0; e < COUNT; e++) {
            entries[e] = (cpu_kept){
                .value = e, .channel = 3 * e % CHANNELS, .row = 2 * e % ROWS, .g = {NAN, NAN}};
        }
        const cpu_kept_list list = {.count = COUNT,
                                    .entries = entries,
                                    .channels = CHANNELS,
                                    .batch = batch,
                                    .rank = rank,
                                    .x = x,
                                    .dy = dy,
                                    .u = u,
                                    .out = taken ? out : NULL};
        if (has(tables[t])) {
            tables[t]->kept(width == 2, &list);
        }
        for (int e = 0; has(tables[t]) && e < COUNT; e++) {
            const int64_t row = entries[e].row, channel = entries[e].channel;
            double complex g = 0.0;
            for (int64_t b = 0; b < batch; b++) {
                g += element(x, width, (row * CHANNELS + channel) * batch + b, false) *
                     element(dy, width, row * batch + b, false);
            }
            expect(entries[e].g, width, g, (double)batch);
            assert_int_equal(entries[e].value, e);
            for (int64_t j = 0; taken && j < rank; j++) {
                left[row * rank + j] -= g * element(u, width, channel * rank + j, true);
            }
        }
        for (int64_t i = 0; has(tables[t]) && i < ROWS * rank; i++) {
            expect(out + i * width, width, left[i], (double)(COUNT * batch));
        }
        free(out);
    }
    free(x);
    free(dy);
    free(u);
}

TEST(test_kept) {
    for (int64_t n = 1; n <= 40; n++) {
        for (int width = 1; width <= 2; width++) {
            run_kept(1 + n % 17, n, width, n % 5 != 0);
        }
    }
}

TEST(test_choice) {
    tg_context *ctx = net_context("cpu", 1);
    tg_backend *be = NULL;
    net_ok(ctx, tg_backend_get(ctx, &be));
    const cpu_compress_kernels *best = &cpu_compress_plain;
    for (int t = 0; t < TABLES; t++) {
        best = has(tables[t]) ? tables[t] : best;
    }
    assert_ptr_equal(cpu_state_of(be)->compress, best);
    tg_context_destroy(&ctx);
}
