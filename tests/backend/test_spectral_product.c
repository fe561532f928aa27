/* Products at every frequency against their definition in double: the tiles of each instruction set
 * this CPU has, and whole products of odd sizes, in 16-bit formats, over one run of frequencies and
 * over several; the same bits with AVX2 and AVX-512 and with any number of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/spectral_product.h"
#include "support/files.h"
#include "support/network.h"

/* Entries of [-1, 1) that bf16 and f16 hold. */
static void fill(float *x, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)((int)(test_random(&seed) >> 57) - 64) / 64.0f;
    }
}

/* a b, a conj(b) or conj(a) b, added to sum. */
static void add(cpu_tile_form form, const float *a, const float *b, double sum[2]) {
    const double ai = form == CPU_TILE_CONJ_A ? -a[1] : a[1];
    const double bi = form == CPU_TILE_CONJ_B ? -b[1] : b[1];
    sum[0] += (double)a[0] * (double)b[0] - ai * bi;
    sum[1] += (double)a[0] * bi + ai * (double)b[0];
}

/* ---- tiles ---- */

enum { DEPTH = 9, REALS = 2 * CPU_MAX_FREQUENCIES };

static bool has(const cpu_tile_kernels *kernels) {
#if defined(__x86_64__) || defined(__i386__)
    return kernels->frequencies > 0 &&
           (kernels != &cpu_tile_avx2 || __builtin_cpu_supports("avx2")) &&
           (kernels != &cpu_tile_avx512 || __builtin_cpu_supports("avx512vl"));
#else
    return kernels == &cpu_tile_plain;
#endif
}

TEST(test_tiles) {
    static const cpu_tile_kernels *const tables[] = {&cpu_tile_plain, &cpu_tile_avx2,
                                                     &cpu_tile_avx512};
    static float a[DEPTH * CPU_TILE * REALS], b[DEPTH * CPU_TILE * (REALS + 2)];
    static float c[CPU_TILE * CPU_TILE * REALS];
    fill(a, DEPTH * CPU_TILE * REALS, 1);
    fill(b, DEPTH * CPU_TILE * (REALS + 2), 2);
    for (int i = 0; i < 3 * 3 * 3; i++) {
        const cpu_tile_kernels *k = tables[i / 9];
        const int reals = 2 * k->frequencies, rows = 1 << i / 3 % 3;
        if (!has(k)) {
            continue;
        }
        const cpu_tile_product p = {.form = (cpu_tile_form)(i % 3),
                                    .depth = DEPTH,
                                    .rows = rows,
                                    .a = a,
                                    .b = b,
                                    .b_depth = CPU_TILE * (reals + 2),
                                    .b_column = reals + 2,
                                    .c = c,
                                    .c_row = CPU_TILE * reals,
                                    .c_column = reals,
                                    .scale = 0.5f};
        memset(c, 0xff, sizeof c);
        k->multiply(&p);
        for (int at = 0; at < rows * CPU_TILE * k->frequencies; at++) {
            const int f = at % k->frequencies, column = at / k->frequencies % CPU_TILE;
            const int row = at / k->frequencies / CPU_TILE;
            double sum[2] = {0.0, 0.0};
            for (int d = 0; d < DEPTH; d++) {
                add(p.form, a + (d * rows + row) * reals + 2 * f,
                    b + d * p.b_depth + column * p.b_column + 2 * f, sum);
            }
            const float *found = c + row * p.c_row + column * p.c_column + 2 * f;
            assert_true(fabs((double)found[0] - 0.5 * sum[0]) <= 1e-5);
            assert_true(fabs((double)found[1] - 0.5 * sum[1]) <= 1e-5);
        }
    }
}

/* ---- whole products ---- */

typedef struct sizes {
    int64_t frequencies, depth, rows, columns;
} sizes;

typedef struct arrays {
    float *a, *b, *c; /* (rows, depth), (depth, columns), (rows, columns) spectra, of a store */
    int64_t count[3];
} arrays;

static arrays make_arrays(tg_backend *be, const sizes *s, tg_storage store) {
    const int64_t row = 2 * s->frequencies;
    arrays x = {.count = {s->rows * s->depth * row, s->depth * s->columns * row,
                          s->rows * s->columns * row}};
    float **const place[3] = {&x.a, &x.b, &x.c};
    for (int i = 0; i < 3; i++) {
        float *plain = malloc((size_t)x.count[i] * sizeof *plain);
        *place[i] = malloc((size_t)x.count[i] * sizeof *plain);
        fill(plain, x.count[i], (uint64_t)(7 + i));
        net_ok(be->ctx, be->ops->convert(be, x.count[i], TG_F32, plain, tg_stored(TG_F32, store),
                                         *place[i]));
        free(plain);
    }
    return x;
}

static void free_arrays(arrays *x) {
    free(x->a);
    free(x->b);
    free(x->c);
}

static cpu_spectral_product product_of(const sizes *s, const arrays *x, cpu_tile_form form,
                                       tg_storage store) {
    const int64_t row = 2 * s->frequencies;
    return (cpu_spectral_product){
        .form = form,
        .frequencies = s->frequencies,
        .depth = s->depth,
        .rows = s->rows,
        .columns = s->columns,
        .a = {.x = x->a, .store = store, .depth = row, .across = s->depth * row},
        .b = {.x = x->b, .store = store, .depth = s->columns * row, .across = row},
        .c = x->c,
        .c_store = store,
        .c_row = s->columns * row,
        .c_column = row,
        .scale = 1.0f};
}

static float value(tg_storage store, const float *x, int64_t i) {
    return (float)tg_load(tg_stored(TG_F32, store), x, i).re;
}

/* All entries, or some of many. */
static void check(const sizes *s, const arrays *x, cpu_tile_form form, tg_storage store) {
    const int64_t total = s->rows * s->columns * s->frequencies, row = 2 * s->frequencies;
    const int64_t stride = total > 1000 ? 37 : 1;
    for (int64_t at = 0; at < total; at += stride) {
        const int64_t k = 2 * (at % s->frequencies), j = at / s->frequencies % s->columns;
        const int64_t i = at / s->frequencies / s->columns;
        double sum[2] = {0.0, 0.0};
        for (int64_t d = 0; d < s->depth; d++) {
            const int64_t pa = (i * s->depth + d) * row + k, pb = (d * s->columns + j) * row + k;
            const float a[2] = {value(store, x->a, pa), value(store, x->a, pa + 1)};
            const float b[2] = {value(store, x->b, pb), value(store, x->b, pb + 1)};
            add(form, a, b, sum);
        }
        for (int part = 0; part < 2; part++) {
            const double found = (double)value(store, x->c, (i * s->columns + j) * row + k + part);
            const double tolerance = store == TG_STORE_FULL ? 1e-5 : 1e-2;
            if (!(fabs(found - sum[part]) <= tolerance * (1.0 + fabs(sum[part])))) {
                fail_msg("(%d, %d, %d): %g, expected %g", (int)i, (int)j, (int)k, found, sum[part]);
            }
        }
    }
}

TEST(test_products) {
    static const sizes all[] = {{1, 1, 1, 1},      {7, 5, 3, 6},     {46, 33, 16, 21},
                                {17, 3, 7, 9},     {8, 2, 4, 4},     {5, 16, 2, 3},
                                {100, 128, 40, 5}, {30, 300, 90, 2}, {2000, 4, 5, 7}};
    static const int threads[] = {1, 2, 5};
    static const tg_storage stores[] = {TG_STORE_FULL, TG_STORE_BF16, TG_STORE_F16};
    for (size_t i = 0; i < sizeof all / sizeof all[0] * 9; i++) {
        const sizes *s = &all[i / 9];
        const cpu_tile_form form = (cpu_tile_form)(i % 3);
        const tg_storage store = stores[i / 3 % 3];
        arrays first = {0};
        for (int t = 0; t < 3; t++) {
            tg_context *ctx = net_context("cpu", threads[t]);
            tg_backend *be = NULL;
            net_ok(ctx, tg_backend_get(ctx, &be));
            arrays x = make_arrays(be, s, store);
            const cpu_spectral_product p = product_of(s, &x, form, store);
            assert_true(cpu_spectral_fits(be, &p));
            cpu_spectral_multiply(be, &p);
            if (t == 0) {
                check(s, &x, form, store);
                first = x;
            } else {
                const size_t size = tg_dtype_size(tg_stored(TG_F32, store));
                assert_memory_equal(first.c, x.c, (size_t)x.count[2] * size);
                free_arrays(&x);
            }
            tg_context_destroy(&ctx);
        }
        free_arrays(&first);
    }
}

/* AVX2 and AVX-512 sum in the same order. */
TEST(test_instruction_sets) {
    const sizes s = {46, 33, 16, 21};
    if (!has(&cpu_tile_avx512)) {
        skip();
    }
    tg_context *ctx = net_context("cpu", 2);
    tg_backend *be = NULL;
    net_ok(ctx, tg_backend_get(ctx, &be));
    assert_ptr_equal(cpu_state_of(be)->tiles, &cpu_tile_avx512);
    arrays x = make_arrays(be, &s, TG_STORE_FULL), y = make_arrays(be, &s, TG_STORE_FULL);
    const cpu_spectral_product wide = product_of(&s, &x, CPU_TILE_CONJ_B, TG_STORE_FULL);
    cpu_spectral_multiply(be, &wide);
    cpu_state_of(be)->tiles = &cpu_tile_avx2;
    const cpu_spectral_product narrow = product_of(&s, &y, CPU_TILE_CONJ_B, TG_STORE_FULL);
    cpu_spectral_multiply(be, &narrow);
    assert_memory_equal(x.c, y.c, (size_t)x.count[2] * sizeof *x.c);
    free_arrays(&x);
    free_arrays(&y);
    tg_context_destroy(&ctx);
}
