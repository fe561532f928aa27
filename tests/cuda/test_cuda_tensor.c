/* Channel MLPs, linear skips and Fourier transforms of 16-bit formats with products rounded to
 * TF32, where the GPU has kernels of its own for them: every shape these are made for, odd sizes,
 * 16-bit formats, arrays aligned or not, against the CPU; and twice the same bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/gpu.h"

/* Of an array stored so: TF32 keeps 2^-11, the tolerance of f32 is 2^-20. */
static double growth(tg_storage store, int64_t terms) {
    return (store == TG_STORE_FULL ? 512.0 : 1.0) * (4.0 + sqrt((double)terms));
}

static tg_dtype dtype_of(tg_storage store) {
    return tg_stored(TG_F32, store);
}

typedef struct mode {
    tg_act act;
    bool through, in_place, aligned, sums;
    tg_storage x_store, y_store;
} mode;

static const mode modes[] = {
    {TG_ACT_GELU, true, true, true, true, TG_STORE_FULL, TG_STORE_FULL},
    {TG_ACT_NONE, false, true, true, false, TG_STORE_FULL, TG_STORE_FULL},
    {TG_ACT_GELU, true, false, true, true, TG_STORE_FULL, TG_STORE_FULL},
    {TG_ACT_TANH, true, false, false, true, TG_STORE_FULL, TG_STORE_FULL},
    {TG_ACT_GELU, false, false, true, true, TG_STORE_BF16, TG_STORE_F16},
    {TG_ACT_GELU, true, false, false, true, TG_STORE_F16, TG_STORE_BF16},
    {TG_ACT_GELU, true, true, true, true, TG_STORE_BF16, TG_STORE_BF16},
    {TG_ACT_NONE, false, false, true, false, TG_STORE_BF16, TG_STORE_BF16},
    {TG_ACT_GELU, true, false, true, true, TG_STORE_F16, TG_STORE_F16},
    {TG_ACT_TANH, true, true, false, true, TG_STORE_BF16, TG_STORE_BF16},
    {TG_ACT_NONE, false, false, true, false, TG_STORE_FULL, TG_STORE_BF16},
    {TG_ACT_NONE, true, false, true, true, TG_STORE_F16, TG_STORE_FULL},
};

/* Many pixels are only for 16-bit kernels: as many tiles of them as a block takes more than one
 * of. */
static bool is_worth_it(const mode *m, int64_t in, int64_t pixels) {
    return pixels < 8000 || (in > 4 ? m->x_store != TG_STORE_FULL
                                    : m->x_store == TG_STORE_FULL && m->y_store != TG_STORE_FULL);
}

/* ---- channel MLPs ---- */

/* Few and many channels at either end, one chunk of hidden ones or several; whole tiles or not, and
 * many for each block. */
typedef struct mlp_size {
    int64_t batch, in, hidden, out, pixels;
} mlp_size;

static const mlp_size mlps[] = {
    {2, 64, 32, 64, 128},   {3, 40, 20, 33, 131},  {1, 64, 64, 64, 192},   {2, 50, 100, 60, 68},
    {1, 128, 64, 128, 256}, {2, 100, 50, 70, 65},  {1, 70, 90, 70, 132},   {2, 3, 256, 64, 64},
    {2, 3, 70, 100, 72},    {1, 128, 256, 1, 320}, {2, 64, 130, 2, 67},    {1, 5, 7, 3, 1},
    {3, 6, 10, 1, 4100},    {2, 100, 60, 70, 72},  {1, 20, 12, 18, 20488}, {1, 5, 130, 1, 20488},
    {1, 3, 130, 66, 8712},  {2, 4, 256, 128, 72},  {2, 132, 4, 5, 4100}};

/* One output or few inputs, and modes in which GPUs of compute capability 9.0 have kernels for
 * them: weights that come several times round their ring, few tiles and several for each block; and
 * pixels that are no whole tiles. */
static const mlp_size narrow_mlps[] = {
    {1, 128, 1024, 1, 64},  {3, 128, 384, 1, 448}, {26, 64, 128, 1, 1024}, {2, 64, 256, 1, 96},
    {1, 3, 1024, 128, 64},  {3, 2, 384, 128, 448}, {26, 1, 128, 64, 1024}, {2, 3, 256, 64, 96},
    {9, 128, 128, 1, 1984}, {9, 3, 128, 128, 1984}};

static const mode narrow_modes[] = {
    {TG_ACT_NONE, false, true, true, false, TG_STORE_FULL, TG_STORE_FULL},
    {TG_ACT_NONE, true, false, true, true, TG_STORE_FULL, TG_STORE_FULL},
    {TG_ACT_NONE, false, false, false, false, TG_STORE_FULL, TG_STORE_FULL},
};

typedef struct mlp_case {
    const mlp_size *size;
    int number; /* of the mode */
    mode mode;
    bool wants_dx;
} mlp_case;

static tg_mlp mlp_of(t_side *s, const mlp_case *c, bool backward) {
    tg_mlp op = {.dtype = TG_F32,
                 .batch = c->size->batch,
                 .in = c->size->in,
                 .hidden = c->size->hidden,
                 .out = c->size->out,
                 .pixels = c->size->pixels,
                 .act = c->mode.act,
                 .through = c->mode.through,
                 .alpha = c->mode.sums ? -0.75 : 1.0,
                 .beta = c->mode.sums && !c->mode.in_place ? 0.5 : 0.0,
                 .x_store = c->mode.x_store,
                 .y_store = c->mode.y_store};
    s->aligned = c->mode.aligned;
    t_note(s, "%d x %d -> %d -> %d x %d%s, mode %d", (int)op.batch, (int)op.in, (int)op.hidden,
           (int)op.out, (int)op.pixels, c->wants_dx ? "" : " without dx", c->number);
    op.w1 = t_random(s, TG_F32, op.hidden * op.in);
    op.b1 = t_random(s, TG_F32, op.hidden);
    op.w2 = t_random(s, TG_F32, op.out * op.hidden);
    op.b2 = t_random(s, TG_F32, op.out);
    op.backward = backward;
    op.workspace = t_workspace(s, tg_workspace_bytes(s->be, (tg_query){.mlp = &op}));
    return op;
}

static void mlp_forward(t_side *s, const void *what) {
    const mlp_case *c = what;
    tg_mlp op = mlp_of(s, c, false);
    const tg_dtype x_dtype = dtype_of(op.x_store), y_dtype = dtype_of(op.y_store);
    const int64_t inputs = op.batch * op.in * op.pixels, outputs = op.batch * op.out * op.pixels;
    if (c->mode.in_place && op.in == op.out) {
        op.x = op.y = t_inout(s, x_dtype, inputs, t_host_random(s, x_dtype, inputs));
    } else {
        op.x = t_random(s, x_dtype, inputs);
        op.y = op.beta == 0.0 ? t_output(s, y_dtype, outputs)
                              : t_inout(s, y_dtype, outputs, t_host_random(s, y_dtype, outputs));
    }
    if (c->mode.sums) {
        op.gate = t_random(s, TG_F32, op.out);
        op.activated = t_inout(s, y_dtype, outputs, t_host_random(s, y_dtype, outputs));
        op.add = c->mode.aligned ? op.activated : t_random(s, y_dtype, outputs);
    }
    t_ok(s, s->ops->mlp(s->be, &op));
    t_keep_close(s, op.y, growth(op.y_store, op.in + op.hidden));
    if (op.activated) {
        t_keep_close(s, op.activated, growth(op.y_store, op.in + op.hidden));
    }
}

static void mlp_backward(t_side *s, const void *what) {
    const mlp_case *c = what;
    tg_mlp op = mlp_of(s, c, true);
    const tg_dtype x_dtype = dtype_of(op.x_store);
    const int64_t inputs = op.batch * op.in * op.pixels, outputs = op.batch * op.out * op.pixels;
    op.dy = t_random(s, dtype_of(op.y_store), outputs);
    if (c->mode.in_place && c->wants_dx) {
        op.x = op.dx = t_inout(s, x_dtype, inputs, t_host_random(s, x_dtype, inputs));
    } else {
        op.x = t_random(s, x_dtype, inputs);
        if (c->wants_dx) {
            op.dx = op.beta == 0.0 ? t_output(s, x_dtype, inputs)
                                   : t_inout(s, x_dtype, inputs, t_host_random(s, x_dtype, inputs));
        }
    }
    const int64_t sizes[] = {op.hidden * op.in, op.hidden, op.out * op.hidden, op.out};
    void *gradients[4];
    for (int i = 0; i < 4; i++) {
        gradients[i] = t_inout(s, TG_F32, sizes[i], t_host_random(s, TG_F32, sizes[i]));
    }
    op.dw1 = gradients[0];
    op.db1 = gradients[1];
    op.dw2 = gradients[2];
    op.db2 = gradients[3];
    t_ok(s, s->ops->mlp(s->be, &op));
    for (int i = 0; i < 4; i++) {
        t_keep_close(s, gradients[i], growth(TG_STORE_FULL, op.in + op.hidden + op.out));
    }
    if (op.dx) {
        t_keep_close(s, op.dx, growth(op.x_store, op.hidden + op.out));
    }
}

static void compare_mlp(const mlp_size *size, int number, const mode *m) {
    mlp_case c = {.size = size, .number = number, .mode = *m, .wants_dx = true};
    t_gpu_compare(TG_F32, mlp_forward, &c);
    t_gpu_compare(TG_F32, mlp_backward, &c);
    c.wants_dx = false;
    t_gpu_compare(TG_F32, mlp_backward, &c);
}

TEST(channel_mlps) {
    for (int i = 0; i < (int)(sizeof mlps / sizeof mlps[0]); i++) {
        for (int m = 0; m < (int)(sizeof modes / sizeof modes[0]); m++) {
            if (is_worth_it(&modes[m], mlps[i].in, mlps[i].pixels)) {
                compare_mlp(&mlps[i], m, &modes[m]);
            }
        }
    }
}

TEST(mlps_with_a_narrow_end) {
    for (int i = 0; i < (int)(sizeof narrow_mlps / sizeof narrow_mlps[0]); i++) {
        for (int m = 0; m < (int)(sizeof narrow_modes / sizeof narrow_modes[0]); m++) {
            compare_mlp(&narrow_mlps[i], m, &narrow_modes[m]);
        }
    }
}

/* ---- skips ---- */

static const struct {
    int64_t batch, in, out, pixels;
} skips[] = {{2, 64, 64, 128},   {1, 128, 128, 256}, {3, 40, 64, 67},
             {2, 100, 65, 131},  {1, 7, 90, 4},      {2, 100, 65, 72},
             {1, 20, 18, 20488}, {1, 66, 20, 20488}, {2, 132, 5, 4100}};

typedef struct skip_case {
    int size, number;
    mode mode;
} skip_case;

static tg_skip skip_of(t_side *s, const skip_case *c, bool backward) {
    tg_skip op = {.dtype = TG_F32,
                  .kind = TG_SKIP_MAP_LINEAR,
                  .batch = skips[c->size].batch,
                  .in = skips[c->size].in,
                  .out = skips[c->size].out,
                  .pixels = skips[c->size].pixels,
                  .act = c->mode.act,
                  .through = c->mode.through,
                  .alpha = c->mode.sums ? -0.75 : 1.0,
                  .beta = c->mode.sums ? 0.5 : 0.0,
                  .store = c->mode.x_store};
    s->aligned = c->mode.aligned;
    t_note(s, "size %d, mode %d", c->size, c->number);
    op.weight = t_random(s, TG_F32, op.out * op.in);
    op.x = t_random(s, dtype_of(op.store), op.batch * op.in * op.pixels);
    op.backward = backward;
    op.workspace = t_workspace(s, tg_workspace_bytes(s->be, (tg_query){.skip = &op}));
    return op;
}

/* Numbers that beta adds to, or NaN. */
static void *start_of(t_side *s, const tg_skip *op, int64_t n) {
    const tg_dtype dtype = dtype_of(op->store);
    return op->beta == 0.0 ? t_output(s, dtype, n)
                           : t_inout(s, dtype, n, t_host_random(s, dtype, n));
}

static void skip_forward(t_side *s, const void *what) {
    const skip_case *c = what;
    tg_skip op = skip_of(s, c, false);
    op.bias = c->mode.sums ? t_random(s, TG_F32, op.out) : NULL;
    op.y = start_of(s, &op, op.batch * op.out * op.pixels);
    t_ok(s, s->ops->add_skip(s->be, &op));
    t_keep_close(s, op.y, growth(op.store, op.in));
}

static void skip_backward(t_side *s, const void *what) {
    const skip_case *c = what;
    tg_skip op = skip_of(s, c, true);
    op.dy = t_random(s, dtype_of(op.store), op.batch * op.out * op.pixels);
    op.dx = start_of(s, &op, op.batch * op.in * op.pixels);
    op.dweight = t_inout(s, TG_F32, op.out * op.in, t_host_random(s, TG_F32, op.out * op.in));
    op.dbias = c->mode.sums ? t_inout(s, TG_F32, op.out, t_host_random(s, TG_F32, op.out)) : NULL;
    t_ok(s, s->ops->add_skip(s->be, &op));
    t_keep_close(s, op.dx, growth(op.store, op.out));
    t_keep_close(s, op.dweight, growth(TG_STORE_FULL, op.in));
    if (op.dbias) {
        t_keep_close(s, op.dbias, growth(TG_STORE_FULL, 1));
    }
}

TEST(linear_skips) {
    for (int i = 0; i < (int)(sizeof skips / sizeof skips[0]); i++) {
        for (int m = 0; m < (int)(sizeof modes / sizeof modes[0]); m++) {
            const skip_case c = {.size = i, .number = m, .mode = modes[m]};
            if (is_worth_it(&modes[m], skips[i].in, skips[i].pixels)) {
                t_gpu_compare(TG_F32, skip_forward, &c);
                t_gpu_compare(TG_F32, skip_backward, &c);
            }
        }
    }
}

/* ---- transforms ---- */

/* Of the last dimension: rows that are a multiple of what a warp takes or not, few frequencies or
 * as many as there are kernels for, and one more. */
static const struct {
    int64_t howmany, grid[2], kept[2];
} transforms[] = {{3, {2, 128}, {2, 5}},   {3, {5, 128}, {4, 17}},  {2, {32, 128}, {9, 33}},
                  {5, {12, 384}, {5, 48}}, {2, {8, 1024}, {8, 65}}, {1, {7, 256}, {7, 64}},
                  {2, {6, 256}, {3, 66}}};

typedef struct fft_case {
    int size;
    bool aligned, back;
    tg_storage grid_store, kept_store;
    tg_fft_weight weight;
} fft_case;

static void transform(t_side *s, const void *what) {
    const fft_case *c = what;
    tg_fft_desc desc = {.dtype = TG_F32,
                        .ndim = 2,
                        .howmany = transforms[c->size].howmany,
                        .grid_store = c->grid_store,
                        .kept_store = c->kept_store};
    int64_t points = desc.howmany, numbers = desc.howmany;
    for (int d = 0; d < 2; d++) {
        desc.grid[d] = transforms[c->size].grid[d];
        desc.kept[d] = transforms[c->size].kept[d];
        points *= desc.grid[d];
        numbers *= desc.kept[d];
    }
    desc.first[0] = -(desc.kept[0] / 2);
    s->aligned = c->aligned;
    t_note(s, "size %d%s%s, stored as %d, %d", c->size, c->back ? " back" : "",
           c->aligned ? "" : " not aligned", (int)c->grid_store, (int)c->kept_store);
    const tg_dtype grid = dtype_of(c->grid_store), kept = tg_stored(TG_C64, c->kept_store);
    tg_fft_plan *plan = NULL;
    t_ok(s, s->ops->fft_create(s->be, &desc, &plan));
    const void *from = c->back ? t_random(s, kept, numbers) : t_random(s, grid, points);
    void *to = c->back ? t_output(s, grid, points) : t_output(s, kept, numbers);
    t_ok(s,
         c->back
             ? s->ops->fft(s->be, plan, TG_FFT_INVERSE, desc.howmany, c->weight, 0.75, from, to)
             : s->ops->fft(s->be, plan, TG_FFT_FORWARD, desc.howmany, c->weight, 0.75, from, to));
    t_keep_close(s, to, growth(c->back ? c->grid_store : c->kept_store, 4));
    s->ops->fft_destroy(s->be, &plan);
}

TEST(rows_of_halves) {
    for (int i = 0; i < (int)(sizeof transforms / sizeof transforms[0]); i++) {
        for (int v = 0; v < 16; v++) {
            const fft_case c = {.size = i,
                                .aligned = v % 2 == 0,
                                .back = v / 2 % 2 == 1,
                                .grid_store = v / 4 % 2 == 0 ? TG_STORE_BF16 : TG_STORE_F16,
                                .kept_store = v / 8 == 0 ? TG_STORE_FULL : TG_STORE_F16,
                                .weight = v / 8 == 0 ? TG_FFT_PLAIN : TG_FFT_ADJOINT};
            t_gpu_compare(TG_F32, transform, &c);
        }
    }
}

int main(void) {
    return t_gpu_here() ? t_run_tests(t_gpu_begin, t_gpu_end) : EXIT_SUCCESS;
}
