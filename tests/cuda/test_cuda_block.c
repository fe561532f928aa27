/* Blocks of a Fourier neural operator in one call, on GPUs that have it: every size there is a
 * kernel for, with and without an MLP, results in place of the input or apart, against the parts on
 * the CPU. */
#include <math.h>
#include <stdlib.h>

#include "support/block.h"
#include "support/gpu.h"

static const struct {
    int64_t batch, channels, grid[3], kept[3];
    int ndim;
} sizes[] = {
    {2, 64, {6, 64}, {4, 9}, 2},        {1, 64, {3, 128}, {3, 33}, 2},
    {2, 64, {5, 192}, {4, 65}, 2},      {1, 128, {4, 128}, {4, 34}, 2},
    {2, 128, {2, 320}, {2, 65}, 2},     {1, 128, {135, 64}, {8, 33}, 2},
    {1, 64, {2, 3, 64}, {2, 2, 20}, 3},
};

typedef struct block_case {
    int size;
    bool mlp, adds, gated, biased, in_place, activates, keeps_z1;
    tg_act act;
} block_case;

static void block(t_side *s, const void *what) {
    const block_case *c = what;
    tg_fft_desc desc = {.dtype = TG_F32, .ndim = sizes[c->size].ndim};
    tg_block op = {.dtype = TG_F32,
                   .batch = sizes[c->size].batch,
                   .channels = sizes[c->size].channels,
                   .desc = &desc,
                   .scale = 0.25,
                   .act = c->act,
                   .act1 = c->activates ? TG_ACT_GELU : TG_ACT_NONE,
                   .adds = c->mlp && c->adds};
    const int64_t channels = op.channels, hidden = channels / 2;
    int64_t pixels = 1, modes = 1;
    desc.howmany = op.batch * channels;
    for (int d = 0; d < desc.ndim; d++) {
        pixels *= desc.grid[d] = sizes[c->size].grid[d];
        modes *= desc.kept[d] = sizes[c->size].kept[d];
        desc.first[d] = d + 1 < desc.ndim ? -(desc.kept[d] / 2) : 0;
    }
    s->aligned = true;
    t_note(s, "size %d%s%s%s", c->size, c->mlp ? ", mlp" : "", c->adds ? ", adds" : "",
           c->in_place ? ", in place" : "");
    const int64_t all = op.batch * channels * pixels;
    t_ok(s, s->ops->fft_create(s->be, &desc, &op.fft));
    op.spectrum = t_random(s, TG_C64, op.batch * channels * modes);
    op.skip = t_random(s, TG_F32, channels * channels);
    op.bias = c->biased ? t_random(s, TG_F32, channels) : NULL;
    if (c->mlp) {
        op.hidden = hidden;
        op.w1 = t_random(s, TG_F32, hidden * channels);
        op.b1 = t_random(s, TG_F32, hidden);
        op.w2 = t_random(s, TG_F32, channels * hidden);
        op.b2 = t_random(s, TG_F32, channels);
        op.gate = c->gated ? t_random(s, TG_F32, channels) : NULL;
        op.z2 = t_output(s, TG_F32, all);
        op.activated = t_output(s, TG_F32, all);
    }
    void *x = c->in_place ? t_inout(s, TG_F32, all, t_host_random(s, TG_F32, all))
                          : t_random(s, TG_F32, all);
    op.x = x;
    op.z1 = c->in_place ? x : c->keeps_z1 ? t_output(s, TG_F32, all) : NULL;
    size_t bytes = 0;
    const bool is_one = s->ops->block_workspace && s->ops->block_workspace(s->be, &op, &bytes);
    op.workspace = t_workspace(s, is_one ? bytes : t_block_bytes(s->be, &op));
    t_ok(s, is_one ? s->ops->block_forward(s->be, &op) : t_block_by_parts(s->be, &op));
    const double growth = 512.0 * (4.0 + sqrt((double)(2 * channels)));
    if (op.z1) {
        t_keep_close(s, op.z1, growth);
    }
    if (c->mlp) {
        t_keep_close(s, op.z2, growth);
        t_keep_close(s, op.activated, growth);
    }
    s->ops->fft_destroy(s->be, &op.fft);
}

static void blocks(void **state) {
    (void)state;
    for (int i = 0; i < (int)(sizeof sizes / sizeof sizes[0]); i++) {
        for (int v = 0; v < 6; v++) {
            const block_case c = {.size = i,
                                  .mlp = v != 2,
                                  .adds = v != 3,
                                  .gated = v % 2 == 0,
                                  .biased = v != 4,
                                  .in_place = v == 1 || v == 2,
                                  .activates = v != 5,
                                  .keeps_z1 = v != 4,
                                  .act = v == 2 || v == 3 ? TG_ACT_GELU : TG_ACT_NONE};
            t_gpu_compare(TG_F32, block, &c);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks)};
    return t_gpu_here() ? cmocka_run_group_tests(tests, t_gpu_begin, t_gpu_end) : EXIT_SUCCESS;
}
