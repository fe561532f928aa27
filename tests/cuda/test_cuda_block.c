/* Blocks of a Fourier neural operator in one call and the way back through them, on GPUs that have
 * it: every size there is a kernel for, with and without an MLP, results in place of the input or
 * apart, against the parts on the CPU. */
#include <math.h>
#include <stdlib.h>

#include "backend/quantize.h"
#include "support/block.h"
#include "support/gpu.h"

static const struct {
    int64_t batch, channels, grid[3], kept[3];
    int ndim;
} sizes[] = {
    {2, 64, {6, 64}, {4, 9}, 2},        {1, 64, {3, 128}, {3, 33}, 2},
    {2, 64, {5, 192}, {4, 65}, 2},      {1, 128, {4, 128}, {4, 34}, 2},
    {2, 128, {2, 320}, {2, 65}, 2},     {1, 128, {135, 64}, {8, 33}, 2},
    {1, 64, {2, 3, 64}, {2, 2, 20}, 3}, {1, 64, {140, 128}, {6, 40}, 2},
    {1, 128, {3, 512}, {3, 65}, 2},
};

enum { SIZES = sizeof sizes / sizeof sizes[0] };

typedef struct block_case {
    int size;
    bool mlp, adds, gated, biased, in_place, activates, keeps_z1;
    tg_act act;
} block_case;

/* Of a size; its pixels and modes. */
static tg_fft_desc desc_of(int size, int64_t *pixels, int64_t *modes) {
    tg_fft_desc desc = {.dtype = TG_F32,
                        .ndim = sizes[size].ndim,
                        .howmany = sizes[size].batch * sizes[size].channels};
    *pixels = *modes = 1;
    for (int d = 0; d < desc.ndim; d++) {
        *pixels *= desc.grid[d] = sizes[size].grid[d];
        *modes *= desc.kept[d] = sizes[size].kept[d];
        desc.first[d] = d + 1 < desc.ndim ? -(desc.kept[d] / 2) : 0;
    }
    return desc;
}

/* How far bytes are from their values, in halves of a step of their block. */
static double byte_error(t_side *s, int64_t n, const void *bytes, const void *values) {
    const uint8_t *q = t_download(s, bytes);
    const float *scales = (const float *)(const void *)(q + tg_quantized_scales(n));
    const float *z = t_download(s, values);
    double worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const float scale = scales[i / TG_QUANTIZED_BLOCK];
        const double error = fabs((double)tg_dequantize(q[i], scale) - (double)z[i]);
        worst = !(error <= worst * 0.5 * (double)scale) ? 2.0 * error / (double)scale : worst;
    }
    return worst;
}

/* The block once more, with z1 and z2 in bytes: those of the values found before. */
static void block_in_bytes(t_side *s, const tg_block *full, int64_t n) {
    tg_block op = *full;
    size_t bytes = 0;
    op.z1_quantized = op.z1 != NULL;
    op.z2_quantized = op.z2 != NULL;
    op.z1 = op.z1 ? t_output(s, TG_U8, (int64_t)tg_quantized_bytes(n)) : NULL;
    op.z2 = op.z2 ? t_output(s, TG_U8, (int64_t)tg_quantized_bytes(n)) : NULL;
    const bool is_one = s->ops->workspace(s->be, &(tg_query){.block = &op}, &bytes);
    t_ok(s, is_one ? s->ops->block_forward(s->be, &op) : t_block_by_parts(s->be, &op));
    if (op.z1) {
        t_below(s, byte_error(s, n, op.z1, full->z1), 1.001);
    }
    if (op.z2) {
        t_below(s, byte_error(s, n, op.z2, full->z2), 1.001);
    }
}

static void block(t_side *s, const void *what) {
    const block_case *c = what;
    int64_t pixels, modes;
    const tg_fft_desc desc = desc_of(c->size, &pixels, &modes);
    tg_block op = {.dtype = TG_F32,
                   .batch = sizes[c->size].batch,
                   .channels = sizes[c->size].channels,
                   .desc = &desc,
                   .scale = 0.25,
                   .act = c->act,
                   .act1 = c->activates ? TG_ACT_GELU : TG_ACT_NONE,
                   .adds = c->mlp && c->adds};
    const int64_t channels = op.channels, hidden = channels / 2;
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
    }
    void *x = c->in_place ? t_inout(s, TG_F32, all, t_host_random(s, TG_F32, all))
                          : t_random(s, TG_F32, all);
    op.x = x;
    const bool ends_with_z2 = c->size % 2; /* otherwise with activated, or z1 without an MLP */
    op.z1 = c->in_place && !c->mlp ? x : c->keeps_z1 ? t_output(s, TG_F32, all) : NULL;
    if (c->mlp) {
        op.z2 = c->in_place && ends_with_z2 ? x : t_output(s, TG_F32, all);
        op.activated = !c->in_place ? t_output(s, TG_F32, all) : ends_with_z2 ? NULL : x;
    }
    size_t bytes = 0;
    const bool is_one = s->ops->workspace(s->be, &(tg_query){.block = &op}, &bytes);
    op.workspace = t_workspace(s, is_one ? bytes : t_block_bytes(s->be, &op));
    t_ok(s, is_one ? s->ops->block_forward(s->be, &op) : t_block_by_parts(s->be, &op));
    const double growth = 512.0 * (4.0 + sqrt((double)(2 * channels)));
    if (op.z1) {
        t_keep_close(s, op.z1, growth);
    }
    if (c->mlp) {
        t_keep_close(s, op.z2, growth);
    }
    if (op.activated) {
        t_keep_close(s, op.activated, growth);
    }
    if (!c->in_place && sizes[c->size].grid[desc.ndim - 1] % TG_QUANTIZED_BLOCK == 0) {
        block_in_bytes(s, &op, all);
    }
    s->ops->fft_destroy(s->be, &op.fft);
}

static void blocks(void **state) {
    (void)state;
    for (int i = 0; i < SIZES; i++) {
        for (int k = 0; k < 2; k++) { /* each of the six somewhere */
            const int v = (i + 3 * k) % 6;
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

/* ---- backward ---- */

/* Of products of factors with ten bits of fraction: errors of 2 in 1000 at most. */
static const double TF32_GROWTH = 2000.0;

typedef struct back_case {
    int size, over; /* over: where dx is, 0 apart, 1 x, 2 dz1, 3 dz2 */
    bool bytes;     /* x in bytes */
    bool gated, biased, through;
    tg_act act;
} back_case;

/* A copy of n values in bytes. */
static void *in_bytes(t_side *s, int64_t n, const void *x) {
    void *bytes = t_output(s, TG_U8, (int64_t)tg_quantized_bytes(n));
    t_ok(s, s->ops->quantize(s->be, &(tg_quantization){n, false, x, bytes}));
    return bytes;
}

static void block_back(t_side *s, const void *what) {
    const back_case *c = what;
    int64_t pixels, modes;
    const tg_fft_desc desc = desc_of(c->size, &pixels, &modes);
    tg_block_back op = {.dtype = TG_F32,
                        .batch = sizes[c->size].batch,
                        .channels = sizes[c->size].channels,
                        .desc = &desc,
                        .scale = 0.25,
                        .act = c->act,
                        .through = c->through};
    const int64_t channels = op.channels, all = op.batch * channels * pixels;
    s->aligned = true;
    t_note(s, "size %d, dx over %d%s%s%s", c->size, c->over, c->gated ? ", gated" : "",
           c->biased ? ", biased" : "", c->through ? ", through" : "");
    t_ok(s, s->ops->fft_create(s->be, &desc, &op.fft));
    op.spectrum = t_random(s, TG_C64, op.batch * channels * modes);
    op.skip = t_random(s, TG_F32, channels * channels);
    op.gate = c->gated ? t_random(s, TG_F32, channels) : NULL;
    void *arrays[4] = {t_output(s, TG_F32, all)};
    for (int i = 1; i < 4; i++) {
        arrays[i] = t_inout(s, TG_F32, all, t_host_random(s, TG_F32, all));
    }
    op.dx = arrays[c->over];
    op.x = c->bytes ? in_bytes(s, all, arrays[1]) : arrays[1];
    op.x_quantized = c->bytes;
    op.dz1 = arrays[2];
    op.dz2 = arrays[3];
    op.dskip =
        t_inout(s, TG_F32, channels * channels, t_host_random(s, TG_F32, channels * channels));
    op.dbias = c->biased ? t_inout(s, TG_F32, channels, t_host_random(s, TG_F32, channels)) : NULL;
    op.dgate = c->gated ? t_inout(s, TG_F32, channels, t_host_random(s, TG_F32, channels)) : NULL;
    size_t bytes = 0;
    const bool is_one = s->ops->workspace(s->be, &(tg_query){.block_back = &op}, &bytes);
    op.workspace = t_workspace(s, is_one ? bytes : t_block_back_bytes(s->be, &op));
    t_ok(s, is_one ? s->ops->block_backward(s->be, &op) : t_block_back_by_parts(s->be, &op));
    void *const results[] = {op.dx, op.dskip, op.dbias, op.dgate};
    for (int i = 0; i < 4; i++) {
        if (results[i]) {
            t_keep_close(s, results[i], TF32_GROWTH);
        }
    }
    s->ops->fft_destroy(s->be, &op.fft);
}

static void blocks_backwards(void **state) {
    (void)state;
    for (int i = 0; i < SIZES; i++) {
        const back_case c = {.size = i,
                             .over = i % 4,
                             .gated = i != 2,
                             .biased = i != 4,
                             .through = i % 3 != 0,
                             .act = i % 2 == 1 || i == 2 ? TG_ACT_GELU : TG_ACT_NONE};
        t_gpu_compare(TG_F32, block_back, &c);
        back_case small = c;
        small.bytes = true;
        small.over = i % 2 ? 3 : 0;
        t_gpu_compare(TG_F32, block_back, &small);
    }
}

/* ---- channel MLPs backward: more tiles than multiprocessors, and fewer ---- */

typedef struct mlp_case {
    int64_t batch, channels, pixels;
    tg_act act;
    bool over_x, bytes; /* bytes: x in them */
} mlp_case;

static void channel_mlp(t_side *s, const void *what) {
    const mlp_case *c = what;
    const int64_t hidden = c->channels / 2, all = c->batch * c->channels * c->pixels;
    tg_mlp op = {.dtype = TG_F32,
                 .batch = c->batch,
                 .in = c->channels,
                 .hidden = hidden,
                 .out = c->channels,
                 .pixels = c->pixels,
                 .act = c->act,
                 .through = c->act != TG_ACT_NONE,
                 .alpha = 1.0,
                 .backward = true};
    s->aligned = true;
    t_note(s, "channel MLP, %d channels, %d pixels", (int)c->channels, (int)c->pixels);
    op.w1 = t_random(s, TG_F32, hidden * c->channels);
    op.b1 = t_random(s, TG_F32, hidden);
    op.w2 = t_random(s, TG_F32, c->channels * hidden);
    op.b2 = t_random(s, TG_F32, c->channels);
    void *x = t_inout(s, TG_F32, all, t_host_random(s, TG_F32, all));
    op.x = c->bytes ? in_bytes(s, all, x) : x;
    op.x_quantized = c->bytes;
    op.dy = t_random(s, TG_F32, all);
    op.dx = c->over_x ? x : t_output(s, TG_F32, all);
    void **gradients[] = {&op.dw1, &op.dw2, &op.db1, &op.db2};
    const int64_t counts[] = {hidden * c->channels, hidden * c->channels, hidden, c->channels};
    for (int i = 0; i < 4; i++) {
        *gradients[i] = t_inout(s, TG_F32, counts[i], t_host_random(s, TG_F32, counts[i]));
    }
    const bool is_one = tg_has(s->be, (tg_query){.mlp = &op});
    op.workspace = t_workspace(s, t_mlp_back_bytes(s->be, &op));
    t_ok(s, is_one ? s->ops->mlp(s->be, &op) : t_mlp_back_by_parts(s->be, &op));
    t_keep_close(s, op.dx, TF32_GROWTH);
    for (int i = 0; i < 4; i++) {
        t_keep_close(s, *gradients[i], TF32_GROWTH);
    }
}

static void channel_mlps(void **state) {
    (void)state;
    static const mlp_case cases[] = {
        {2, 64, 384, TG_ACT_GELU, false, false},  {1, 64, 128 * 300, TG_ACT_NONE, true, false},
        {2, 128, 320, TG_ACT_NONE, false, false}, {1, 128, 64 * 300, TG_ACT_GELU, true, false},
        {2, 64, 384, TG_ACT_NONE, false, true},   {1, 64, 128 * 300, TG_ACT_GELU, false, true},
        {2, 128, 320, TG_ACT_GELU, false, true},  {1, 128, 64 * 300, TG_ACT_NONE, false, true},
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        t_gpu_compare(TG_F32, channel_mlp, &cases[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks), cmocka_unit_test(blocks_backwards),
                                       cmocka_unit_test(channel_mlps)};
    return t_gpu_here() ? cmocka_run_group_tests(tests, t_gpu_begin, t_gpu_end) : EXIT_SUCCESS;
}
