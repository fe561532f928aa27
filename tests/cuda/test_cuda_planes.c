/* Compressed gradients with products rounded to TF32, where the GPU takes the last two modes of a
 * spectral weight in one pass: the shapes this is made for, odd ones and those beside them, against
 * the CPU; and twice the same bits. The same with products of f32, which Hopper GPUs make of three
 * in TF32: as near to the CPU as f32 is. And the Gram matrices of a refresh. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/gpu.h"

/* A rank of 0: no factor. One or several planes to a block, few or many columns, a last block that
 * is not full, planes filled up to whole tiles; what is too large or small for the pass; more than
 * a device takes at once; many rows of the modes before; two samples, whose planes are formed where
 * they are contracted; what Hopper GPUs take without a chunk of the tensor in memory; the last mode
 * alone, or others, as refreshes contract them; planes of a gradient in memory that are contracted
 * where they lie, an odd number of them and many; planes of 128 rows, few and more than a GPU has
 * multiprocessors; arrays that are formed through shared memory; cores that Adam moves where they
 * are made, in one round and in two; and what is formed and contracted with mode 1 at once, with
 * few and many channels and samples, with more of them than a GPU takes at once, and in chunks. */
static const struct {
    int ndim;
    int64_t dim[4], rank[4], batch;
} shapes[] = {
    {4, {2, 3, 64, 33}, {2, 2, 43, 23}, 2},    {4, {3, 1, 128, 65}, {2, 1, 86, 44}, 0},
    {4, {1, 5, 32, 36}, {0, 0, 31, 17}, 3},    {4, {3, 3, 48, 19}, {2, 3, 48, 19}, 1},
    {3, {5, 37, 68}, {0, 21, 48}, 0},          {4, {2, 2, 33, 20}, {1, 0, 1, 16}, 0},
    {4, {2, 7, 16, 37}, {2, 5, 11, 24}, 2},    {4, {2, 2, 129, 16}, {1, 2, 3, 16}, 0},
    {4, {2, 2, 20, 69}, {2, 2, 7, 30}, 0},     {4, {2, 3, 16, 9}, {2, 2, 5, 7}, 2},
    {4, {2, 2, 20, 8}, {2, 2, 7, 1}, 0},       {3, {2, 20, 60}, {2, 7, 50}, 0},
    {4, {6, 99, 33, 40}, {4, 67, 22, 40}, 2},  {4, {5, 112, 34, 22}, {3, 97, 33, 21}, 2},
    {4, {3, 4, 40, 34}, {2, 3, 36, 30}, 2},    {4, {8, 16, 24, 33}, {5, 9, 17, 23}, 3},
    {4, {4, 8, 64, 19}, {0, 0, 64, 17}, 1},    {4, {12, 8, 40, 65}, {9, 5, 33, 44}, 2},
    {4, {8, 8, 16, 65}, {8, 7, 9, 48}, 4},     {4, {4, 8, 8, 33}, {3, 5, 7, 23}, 8},
    {4, {4, 16, 8, 37}, {3, 0, 7, 21}, 1},     {4, {8, 8, 8, 65}, {3, 5, 7, 23}, 5},
    {4, {3, 4, 6, 65}, {0, 0, 0, 44}, 0},      {4, {7, 5, 3, 33}, {5, 3, 0, 0}, 0},
    {4, {3, 5, 9, 33}, {0, 0, 5, 0}, 0},       {3, {3, 5, 65}, {0, 0, 44}, 0},
    {4, {2, 3, 5, 32}, {0, 0, 0, 17}, 0},      {4, {3, 5, 9, 12}, {0, 3, 0, 0}, 0},
    {4, {40, 3, 4, 6}, {27, 0, 0, 0}, 0},      {4, {3, 5, 64, 33}, {2, 4, 43, 22}, 0},
    {4, {2, 9, 40, 33}, {2, 0, 29, 19}, 0},    {4, {12, 99, 34, 21}, {5, 9, 20, 17}, 0},
    {4, {4, 8, 128, 65}, {3, 5, 86, 44}, 2},   {4, {4, 68, 128, 37}, {2, 3, 66, 20}, 2},
    {4, {2, 3, 40, 36}, {2, 2, 30, 24}, 4},    {4, {8, 16, 40, 34}, {5, 9, 33, 20}, 4},
    {4, {64, 3, 16, 33}, {43, 2, 11, 22}, 4},  {4, {61, 4, 24, 33}, {41, 3, 17, 23}, 2},
    {4, {128, 4, 24, 65}, {86, 3, 17, 44}, 2}, {4, {66, 99, 12, 40}, {45, 67, 8, 40}, 2},
    {4, {8, 16, 40, 34}, {5, 9, 33, 20}, 12},  {4, {16, 64, 36, 20}, {11, 43, 29, 17}, 8},
    {4, {16, 32, 36, 20}, {9, 17, 29, 17}, 5}, {4, {16, 48, 40, 34}, {7, 47, 33, 20}, 3},
    {4, {80, 16, 36, 20}, {50, 9, 29, 17}, 3}, {4, {16, 16, 64, 36}, {3, 1, 30, 21}, 1},
    {4, {16, 32, 36, 20}, {9, 30, 29, 17}, 2}, {4, {16, 48, 40, 34}, {7, 45, 33, 20}, 7},
    {4, {80, 48, 40, 34}, {5, 47, 5, 17}, 1},
};
enum { ALL = sizeof shapes / sizeof shapes[0], GENERAL = 41 }; /* those with mode 1 first follow */

static bool is_fp32; /* products are those of f32 */

typedef struct plane_case {
    int shape;
    bool kept, adds, aligned;
    bool scaled; /* the gradient is */
    bool rounds; /* a weight in bf16, at random */
} plane_case;

typedef struct sizes {
    tg_multimode modes;
    tg_bitmap bitmap;
    int64_t numel, count;
    double growth; /* TF32 keeps 2^-11, the tolerance of f32 is 2^-20 */
    void *workspace;
} sizes;

static sizes begin(t_side *s, const plane_case *c, bool factored) {
    sizes z = {.modes = {.dtype = s->dtype, .ndim = shapes[c->shape].ndim}, .numel = 1, .count = 1};
    s->aligned = c->aligned;
    t_note(s, "shape %d%s%s%s%s%s", c->shape, c->kept ? ", kept" : "", c->adds ? ", adds" : "",
           c->aligned ? ", aligned" : "", c->scaled ? ", scaled" : "", c->rounds ? ", rounds" : "");
    double widths = 0.0;
    for (int d = 0; d < z.modes.ndim; d++) {
        const int64_t dim = shapes[c->shape].dim[d], rank = shapes[c->shape].rank[d];
        z.modes.dim[d] = dim;
        z.modes.rank[d] = rank ? rank : dim;
        z.modes.factor[d] = rank ? t_random(s, s->dtype, dim * rank) : NULL;
        z.numel *= dim;
        z.count *= z.modes.rank[d];
        widths += sqrt((double)dim);
    }
    z.growth = is_fp32 ? 4.0 : 512.0 * (4.0 + widths);
    const double *coin = t_host_random(s, TG_F64, z.numel);
    uint64_t *words = t_host_alloc(s, TG_U64, tg_bitmap_words(z.numel));
    memset(words, 0, (size_t)tg_bitmap_words(z.numel) * sizeof *words);
    for (int64_t i = 0; i < z.numel; i++) { /* all of a stretch, or none */
        const bool is_kept = i / 2000 % 7 == 3 || (coin[i] < -0.8 && i / 2000 % 7 != 5);
        words[i / 64] |= (uint64_t)is_kept << (i % 64);
    }
    z.bitmap = t_bitmap_input(s, z.numel, words);
    z.workspace = t_workspace(
        s, tg_workspace_bytes(s->be, (tg_query){.compress = &z.modes, .factored = factored}));
    return z;
}

/* An array that is written, or added to. */
static void *target(t_side *s, const plane_case *c, int64_t n) {
    return c->adds ? t_inout(s, s->dtype, n, t_host_random(s, s->dtype, n))
                   : t_output(s, s->dtype, n);
}

static void compress(t_side *s, const void *what) {
    const plane_case *c = what;
    const int64_t batch = shapes[c->shape].batch;
    const sizes z = begin(s, c, batch > 0);
    tg_compress op = {.modes = z.modes,
                      .bitmap = c->kept ? &z.bitmap : NULL,
                      .masked = c->kept,
                      .scale = 1.5,
                      .beta = c->adds ? -0.5 : 0.0,
                      .workspace = z.workspace};
    if (batch > 0) {
        const int64_t in = z.modes.dim[0], out = z.modes.dim[1], k = z.numel / in / out;
        op.source.batch = batch;
        op.source.x = t_random(s, s->dtype, batch * in * k);
        op.source.dy = t_random(s, s->dtype, batch * out * k);
    } else {
        op.source.dense = t_random(s, s->dtype, z.numel);
    }
    op.core = target(s, c, z.count);
    op.values = c->kept ? target(s, c, z.bitmap.count) : NULL;
    t_ok(s, s->ops->compress(s->be, &op));
    t_keep_close(s, op.core, z.growth);
    if (c->kept) {
        t_keep_close(s, op.values, 16.0);
    }
}

/* An array with a few entries that are not finite. */
static const void *partly_finite(t_side *s, const plane_case *c, int64_t n) {
    char *host = t_host_random(s, s->dtype, n);
    for (int64_t i = c->shape; i < n; i += 1 + n / 7) {
        tg_store(s->dtype, host, i, (tg_scalar){0.5, i % 2 ? (double)NAN : HUGE_VAL});
    }
    return t_input(s, s->dtype, n, host);
}

/* How many entries are not finite, kept ones too; of factors, theirs. */
static void count(t_side *s, const void *what) {
    const plane_case *c = what;
    const int64_t batch = shapes[c->shape].batch;
    const sizes z = begin(s, c, batch > 0);
    const uint32_t none = 0;
    tg_compress op = {.modes = z.modes,
                      .bitmap = c->kept ? &z.bitmap : NULL,
                      .masked = c->kept,
                      .scale = 1.0,
                      .values = c->kept ? t_output(s, s->dtype, z.bitmap.count) : NULL,
                      .core = t_output(s, s->dtype, z.count),
                      .workspace = z.workspace,
                      .guard = t_inout(s, TG_U32, 1, &none)};
    if (batch > 0) {
        const int64_t in = z.modes.dim[0], out = z.modes.dim[1], k = z.numel / in / out;
        op.source.batch = batch;
        op.source.x = partly_finite(s, c, batch * in * k);
        op.source.dy = partly_finite(s, c, batch * out * k);
    } else {
        op.source.dense = partly_finite(s, c, z.numel);
    }
    t_ok(s, s->ops->compress(s->be, &op));
    t_keep_same(s, op.guard);
}

static void expand(t_side *s, const void *what) {
    const plane_case *c = what;
    const sizes z = begin(s, c, false);
    const tg_expand op = {.modes = z.modes,
                          .bitmap = c->kept ? &z.bitmap : NULL,
                          .values = c->kept ? t_random(s, s->dtype, z.bitmap.count) : NULL,
                          .lambda = 0.5,
                          .core = t_random(s, s->dtype, z.count),
                          .alpha = -1.25,
                          .beta = c->adds ? 0.75 : 0.0,
                          .out = target(s, c, z.numel),
                          .workspace = z.workspace};
    t_ok(s, s->ops->expand(s->be, &op));
    t_keep_close(s, op.out, z.growth);
}

/* A projected step: compress, Adam, and its direction expanded; nothing moves where the gradient is
 * not finite. */
static void step(t_side *s, const void *what) {
    static const tg_rng rounding = {.seed = 5, .purpose = TG_RNG_ROUNDING, .step = 3};
    const plane_case *c = what;
    const tg_dtype stored = c->rounds ? tg_stored(s->dtype, TG_STORE_BF16) : s->dtype;
    const int64_t batch = shapes[c->shape].batch;
    const sizes z = begin(s, c, batch > 0);
    const int64_t kept = z.bitmap.count, n = kept + z.count;
    const uint32_t none = 0;
    char *small = t_output(s, s->dtype, n);
    float *squares = t_host_alloc(s, TG_F32, n);
    for (int64_t i = 0; i < n; i++) {
        squares[i] = 0.5f + 0.25f * (float)(i % 7);
    }
    tg_compress project = {.modes = z.modes,
                           .bitmap = &z.bitmap,
                           .masked = true,
                           .scale = c->scaled ? 1.5 : 1.0,
                           .values = small,
                           .core = small + kept * (int64_t)tg_dtype_size(s->dtype),
                           .workspace = z.workspace,
                           .guard = t_inout(s, TG_U32, 1, &none)};
    if (batch > 0) {
        const int64_t in = z.modes.dim[0], out = z.modes.dim[1], k = z.numel / in / out;
        project.source.batch = batch;
        project.source.x =
            c->adds ? partly_finite(s, c, batch * in * k) : t_random(s, s->dtype, batch * in * k);
        project.source.dy = t_random(s, s->dtype, batch * out * k);
    } else {
        project.source.dense =
            c->adds ? partly_finite(s, c, z.numel) : t_random(s, s->dtype, z.numel);
    }
    const tg_adam adam = {.dtype = s->dtype,
                          .n = n,
                          .grad = small,
                          .scale = 0.5,
                          .m = t_inout(s, s->dtype, n, t_host_random(s, s->dtype, n)),
                          .v = t_inout(s, TG_F32, n, squares),
                          .beta1 = 0.75,
                          .beta2 = 0.875,
                          .eps = 1e-8,
                          .direction = small,
                          .guard = project.guard};
    const tg_expand back = {.modes = z.modes,
                            .bitmap = &z.bitmap,
                            .values = project.values,
                            .lambda = 0.5,
                            .core = project.core,
                            .alpha = c->rounds ? 1.0 / 64.0 : -1.25,
                            .beta = 0.75,
                            .out = t_inout(s, stored, z.numel, t_host_random(s, stored, z.numel)),
                            .out_store = c->rounds ? TG_STORE_BF16 : TG_STORE_FULL,
                            .rounding = c->rounds ? &rounding : NULL,
                            .workspace = z.workspace,
                            .guard = project.guard,
                            .is_direction = true};
    t_ok(s, s->ops->compress(s->be, &project));
    t_ok(s, s->ops->update(s->be, 1, &adam));
    t_ok(s, s->ops->expand(s->be, &back));
    t_keep_same(s, project.guard);
    t_keep_close(s, adam.m, z.growth);
    t_keep_close(s, adam.v, z.growth);
    t_keep_close(s, back.out, c->rounds ? 4.0 : z.growth);
}

/* Into 16-bit formats, to nearest or at random, and read off at an index set. */
static void expand_otherwise(t_side *s, const void *what) {
    static const tg_rng rounding = {.seed = 5, .purpose = TG_RNG_ROUNDING, .step = 3};
    const plane_case *c = what;
    const sizes z = begin(s, c, false);
    const tg_dtype half = tg_stored(s->dtype, TG_STORE_BF16);
    const void *before = t_host_random(s, half, z.numel);
    const tg_expand op = {.modes = z.modes,
                          .bitmap = c->kept ? &z.bitmap : NULL,
                          .values = c->kept ? t_random(s, s->dtype, z.bitmap.count) : NULL,
                          .lambda = 0.5,
                          .core = t_random(s, s->dtype, z.count),
                          .alpha = 1.0 / 64.0,
                          .beta = c->adds ? 0.75 : 0.0,
                          .out = c->adds ? t_inout(s, half, z.numel, before)
                                         : t_output(s, half, z.numel),
                          .out_store = TG_STORE_BF16,
                          .rounding = c->aligned ? &rounding : NULL,
                          .workspace = z.workspace};
    t_ok(s, s->ops->expand(s->be, &op));
    t_keep_close(s, op.out, 4.0);
    const int64_t kept = z.bitmap.count;
    const tg_sample sample = {.modes = z.modes,
                              .bitmap = &z.bitmap,
                              .core = op.core,
                              .alpha = 0.5,
                              .values =
                                  t_inout(s, s->dtype, kept, t_host_random(s, s->dtype, kept)),
                              .workspace = z.workspace};
    t_ok(s, s->ops->sample(s->be, &sample));
    t_keep_close(s, sample.values, z.growth);
}

/* A weight in bf16 to which nothing is added stays what it is when it is rounded at random, also
 * where it is not finite; where values are, sums are exact in f32, and the same random bits give
 * the same weight. */
static void expand_values(t_side *s, const void *what) {
    static const tg_rng rounding = {.seed = 7, .purpose = TG_RNG_ROUNDING, .step = 1};
    const plane_case *c = what;
    const sizes z = begin(s, c, false);
    const tg_dtype half = tg_stored(s->dtype, TG_STORE_BF16);
    char *before = t_host_random(s, half, z.numel);
    for (int64_t i = c->shape; i < z.numel; i += 1 + z.numel / 7) {
        tg_store(half, before, i, (tg_scalar){-HUGE_VAL, i % 2 ? (double)NAN : HUGE_VAL});
    }
    void *zeros = t_host_alloc(s, s->dtype, z.count), *steps = NULL;
    memset(zeros, 0, (size_t)z.count * tg_dtype_size(s->dtype));
    if (c->kept) {
        steps = t_host_alloc(s, s->dtype, z.bitmap.count);
        for (int64_t i = 0; i < z.bitmap.count; i++) {
            tg_store(s->dtype, steps, i, (tg_scalar){0x1p-9, i % 3 ? -0x1p-10 : 0x1p-11});
        }
    }
    const tg_expand op = {.modes = z.modes,
                          .bitmap = c->kept ? &z.bitmap : NULL,
                          .values = c->kept ? t_input(s, s->dtype, z.bitmap.count, steps) : NULL,
                          .lambda = 0.5,
                          .core = t_input(s, s->dtype, z.count, zeros),
                          .alpha = -1.0,
                          .beta = 1.0,
                          .out = t_inout(s, half, z.numel, before),
                          .out_store = TG_STORE_BF16,
                          .rounding = &rounding,
                          .workspace = z.workspace};
    t_ok(s, s->ops->expand(s->be, &op));
    t_keep_same(s, op.out);
}

/* Of a mode with so many columns that a block takes several chunks of them. */
static void gram(t_side *s, const void *what) {
    const int64_t *shape = what, left = shape[0], dim = shape[1], right = shape[2];
    s->aligned = true;
    t_note(s, "shape %lldx%lldx%lld", (long long)left, (long long)dim, (long long)right);
    const void *x = t_random(s, s->dtype, left * dim * right);
    void *out = t_output(s, TG_C128, dim * dim);
    t_ok(s, s->ops->gram(s->be, s->dtype, left, dim, right, x, NULL, out));
    t_keep_close(s, out, sqrt((double)(left * right)));
}

static void gram_of_many_columns(void **state) {
    static const int64_t of[][3] = {{2, 33, 10007}, {20011, 19, 1}, {1, 70, 9001}, {9001, 70, 1}};
    (void)state;
    for (int i = 0; i < (int)(sizeof of / sizeof of[0]); i++) {
        t_gpu_compare(TG_C64, gram, of[i]);
    }
}

/* In the first so many of four ways for every shape but the last ones. */
static void compare(void (*script)(t_side *s, const void *what), int ways) {
    for (int i = 0; i < GENERAL * 4; i++) {
        const plane_case c = {.shape = i / 4,
                              .kept = i % 2 == 1,
                              .adds = i / 2 % 2 == 1,
                              .aligned = (i / 4 + i) % 2 == 0};
        if (i % 4 < ways) {
            t_gpu_compare(TG_C64, script, &c);
        }
    }
}

static void to_the_core(void **state) {
    (void)state;
    compare(compress, 4);
    compare(count, 2);
}

/* What is formed and contracted with mode 1 at once; the last one has room for a third of it. */
static void by_mode_one(void **state) {
    (void)state;
    for (int i = GENERAL; i < ALL; i++) {
        const plane_case c = {.shape = i, .kept = true, .aligned = true};
        t_gpu_compare(TG_C64, compress, &c);
        t_gpu_compare(TG_C64, count, &c);
    }
}

static void and_back(void **state) {
    (void)state;
    compare(expand, 4);
    compare(expand_otherwise, 4);
}

/* Of shapes with factors of all modes; not aligned, with what is not finite, scaled, and
 * weights in bf16. */
static void there_and_back(void **state) {
    static const int of[] = {0, 6, 12, 15, 17, 29, 32, 35, 36, 37, 38, 39, 42, 46};
    (void)state;
    for (int i = 0; i < 5 * (int)(sizeof of / sizeof of[0]); i++) {
        const plane_case c = {.shape = of[i / 5],
                              .kept = true,
                              .adds = i % 5 == 2,
                              .aligned = i % 5 != 1,
                              .scaled = i % 5 == 3,
                              .rounds = i % 5 == 4};
        t_gpu_compare(TG_C64, step, &c);
    }
}

/* Of shapes whose weights Hopper GPUs update in shared memory. */
static void back_with_values_alone(void **state) {
    static const int of[] = {15, 17, 18, 32, 33};
    (void)state;
    for (int i = 0; i < 2 * (int)(sizeof of / sizeof of[0]); i++) {
        const plane_case c = {
            .shape = of[i / 2], .kept = i % 2 == 1, .aligned = (of[i / 2] + i) % 2 == 0};
        t_gpu_compare(TG_C64, expand_values, &c);
    }
}

/* The shapes above take every path, which of them depends on the GPU. */
static void by_every_path(void **state) {
    static const char *const on_all[][2] = {{"project", "general"},
                                            {"project", "channels first"},
                                            {"project", "one mode"},
                                            {"expand", "general"},
                                            {"expand", "resident"}};
    static const char *const on_hopper[][2] = {{"project", "resident, in place"},
                                               {"project", "resident, mode 1 first"},
                                               {"project", "resident"},
                                               {"project", "streamed"},
                                               {"expand", "streamed"},
                                               {"expand", "f16, resident"},
                                               {"expand", "f16, streamed"}};
    (void)state;
    if (getenv("TEST_PICKS")) {
        skip(); /* only some of them run */
    }
    for (int i = 0; i < (int)(sizeof on_all / sizeof on_all[0]); i++) {
        if (!t_gpu_took(on_all[i][0], on_all[i][1])) {
            fail_msg("nothing to %s by path '%s'", on_all[i][0], on_all[i][1]);
        }
    }
    for (int i = 0; i < (int)(sizeof on_hopper / sizeof on_hopper[0]); i++) {
        if (t_gpu_took(on_hopper[i][0], on_hopper[i][1]) != t_gpu_is_hopper()) {
            fail_msg("to %s by path '%s' is for Hopper GPUs", on_hopper[i][0], on_hopper[i][1]);
        }
    }
}

static int begin_fp32(void **state) {
    is_fp32 = true;
    return t_gpu_begin_fp32(state);
}

int main(void) {
    const struct CMUnitTest tf32[] = {cmocka_unit_test(to_the_core),
                                      cmocka_unit_test(by_mode_one),
                                      cmocka_unit_test(and_back),
                                      cmocka_unit_test(gram_of_many_columns),
                                      cmocka_unit_test(back_with_values_alone),
                                      cmocka_unit_test(there_and_back),
                                      cmocka_unit_test(by_every_path)};
    const struct CMUnitTest fp32[] = {cmocka_unit_test(to_the_core), cmocka_unit_test(and_back)};
    if (!t_gpu_here()) {
        return EXIT_SUCCESS;
    }
    const int failed = cmocka_run_group_tests(tf32, t_gpu_begin, t_gpu_end) +
                       cmocka_run_group_tests(fp32, begin_fp32, t_gpu_end);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
