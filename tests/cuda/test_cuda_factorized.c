/* Factorized weights on GPUs that have ways of their own for them: two modes in one pass, products
 * between maps and the gradients of these, for sizes that fill the tiles and that do not, against
 * the definition. */
#include <stdlib.h>

#include "support/factorized.h"
#include "support/gpu.h"

/* Of products of factors with ten bits of fraction, one after the other. */
static const double TF32_GROWTH = 4000.0;

static void two_modes(t_side *s, const void *what) {
    tg_two_modes op = *(const tg_two_modes *)what;
    s->aligned = true;
    t_note(s, "%d planes (%d, %d)", (int)op.planes, (int)op.d1, (int)op.d2);
    const bool is_one = tg_has(s->be, (tg_query){.two_modes = &op});
    op.core = t_random(s, TG_C64, op.planes * op.r1 * op.r2);
    op.left = t_random(s, TG_C64, op.d1 * op.r1);
    op.right = t_random(s, TG_C64, op.d2 * op.r2);
    op.weight = t_output(s, TG_C64, op.planes * op.d1 * op.d2);
    if (is_one) {
        t_ok(s, s->ops->two_modes(s->be, &op));
    } else {
        t_two_modes_forward(&op);
    }
    t_keep_close(s, op.weight, TF32_GROWTH);
    op.weight = t_random(s, TG_C64, op.planes * op.d1 * op.d2);
    op.dcore = t_output(s, TG_C64, op.planes * op.r1 * op.r2);
    op.dleft = t_output(s, TG_C64, op.d1 * op.r1);
    op.dright = t_output(s, TG_C64, op.d2 * op.r2);
    if (is_one) {
        op.backward = true;
        t_ok(s, s->ops->two_modes(s->be, &op));
    } else {
        t_two_modes_backward(&op);
    }
    t_keep_close(s, op.dcore, TF32_GROWTH);
    t_keep_close(s, op.dleft, TF32_GROWTH);
    t_keep_close(s, op.dright, TF32_GROWTH);
}

TEST(planes) {
    static const tg_two_modes sizes[] = {
        {.dtype = TG_C64, .planes = 300, .d1 = 64, .d2 = 33, .r1 = 36, .r2 = 19},
        {.dtype = TG_C64, .planes = 7, .d1 = 64, .d2 = 36, .r1 = 36, .r2 = 20},
        {.dtype = TG_C64, .planes = 3, .d1 = 30, .d2 = 17, .r1 = 9, .r2 = 5},
        {.dtype = TG_C64, .planes = 1, .d1 = 1, .d2 = 1, .r1 = 1, .r2 = 1},
    };
    for (int i = 0; i < (int)(sizeof sizes / sizeof sizes[0]); i++) {
        t_gpu_compare(TG_C64, two_modes, &sizes[i]);
    }
}

static void mapped(t_side *s, const void *what) {
    tg_mapped op = *(const tg_mapped *)what;
    const int64_t spectrum = op.batch * op.channels * op.modes;
    s->aligned = true;
    t_note(s, "%d samples, %d modes%s", (int)op.batch, (int)op.modes, op.adjoint ? ", back" : "");
    const bool is_one = tg_has(s->be, (tg_query){.mapped = &op});
    op.map_in = t_random(s, TG_C64, op.channels * op.in);
    op.map_out = t_random(s, TG_C64, op.channels * op.out);
    op.weight = t_random(s, TG_C64, op.in * op.out * op.modes);
    op.src = t_random(s, TG_C64, spectrum);
    op.inner_in = t_output(s, TG_C64, op.batch * op.in * op.modes);
    op.inner_out = t_output(s, TG_C64, op.batch * op.out * op.modes);
    op.dst = t_output(s, TG_C64, spectrum);
    const tg_map_gradients back = {.dtype = TG_C64,
                                   .batch = op.batch,
                                   .channels = op.channels,
                                   .in = op.in,
                                   .out = op.out,
                                   .modes = op.modes,
                                   .x = t_random(s, TG_C64, spectrum),
                                   .dinner_in = t_random(s, TG_C64, op.batch * op.in * op.modes),
                                   .dy = t_random(s, TG_C64, spectrum),
                                   .inner_out = t_random(s, TG_C64, op.batch * op.out * op.modes),
                                   .inner_in = t_random(s, TG_C64, op.batch * op.in * op.modes),
                                   .dinner_out = t_random(s, TG_C64, op.batch * op.out * op.modes),
                                   .dweight = t_output(s, TG_C64, op.in * op.out * op.modes),
                                   .dmap_in = t_output(s, TG_C64, op.channels * op.in),
                                   .dmap_out = t_output(s, TG_C64, op.channels * op.out)};
    if (is_one) {
        t_ok(s, s->ops->mapped_contract(s->be, &op));
        t_ok(s, s->ops->mapped_gradients(s->be, &back));
    } else {
        t_mapped_contract(&op);
        t_mapped_gradients(&back);
    }
    const void *const results[] = {op.inner_in,  op.inner_out,  op.dst,
                                   back.dmap_in, back.dmap_out, back.dweight};
    for (int i = 0; i < 6; i++) {
        t_keep_close(s, results[i], TF32_GROWTH);
    }
}

TEST(products) {
    static const tg_mapped sizes[] = {
        {.batch = 8, .channels = 64, .in = 36, .out = 36, .modes = 96},
        {.batch = 11, .channels = 64, .in = 20, .out = 7, .modes = 42},
        {.batch = 2, .channels = 30, .in = 35, .out = 36, .modes = 16},
        {.batch = 1, .channels = 1, .in = 1, .out = 1, .modes = 2},
    };
    for (int i = 0; i < 2 * (int)(sizeof sizes / sizeof sizes[0]); i++) {
        tg_mapped op = sizes[i / 2];
        op.dtype = TG_C64;
        op.adjoint = i % 2 == 1;
        t_gpu_compare(TG_C64, mapped, &op);
    }
}

int main(void) {
    return t_gpu_here() ? t_run_tests(t_gpu_begin, t_gpu_end) : EXIT_SUCCESS;
}
