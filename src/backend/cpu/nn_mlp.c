/* Channel MLPs on tiles of pixels, as matrix products: the hidden layer exists for one tile at a
 * time, forward and backward. */
#include <string.h>

#include "backend/check.h"
#include "backend/cpu/nn.h"
#include "base/minmax.h"

/* Scratch of one thread; n = pixels of a tile. */
typedef struct scratch {
    float *u;     /* (in, n): act(x), and later its gradient */
    float *h;     /* (hidden, n): gelu(w1 u + b1) after dropout */
    float *slope; /* (hidden, n): its derivative with respect to the argument; backward */
    float *dh;    /* (hidden, n); backward */
    float *f;     /* (out, n): the result before it is added, or alpha D2 dy; dropout, backward */
    float *y;     /* (out, n): y of 16 bits; forward */
    float *row;   /* (n): of 16 bits */
    double *b1, *b2; /* (hidden), (out): sums for the gradients */
    float *w1, *w2;  /* (hidden, in), (out, hidden): likewise */
    size_t bytes;
} scratch;

static cpu_tiles tiles_of(const tg_mlp *op) {
    return cpu_tiles_of(op->batch, op->pixels, tg_max(op->hidden, tg_max(op->in, op->out)));
}

static scratch lay_out(const tg_mlp *op, char *base) {
    const int64_t n = tiles_of(op).width;
    const bool rounds = op->y_store != TG_STORE_FULL && !op->backward;
    tg_scratch b = {base, 0};
    scratch s = {.u = cpu_floats(&b, op->in * n),
                 .h = cpu_floats(&b, op->hidden * n),
                 .f = cpu_floats(&b, op->out * n),
                 .y = cpu_floats(&b, rounds ? op->out * n : 0),
                 .row = cpu_floats(&b, n)};
    if (op->backward) {
        s.slope = cpu_floats(&b, op->hidden * n);
        s.dh = cpu_floats(&b, op->hidden * n);
        s.b1 = cpu_doubles(&b, op->hidden);
        s.b2 = cpu_doubles(&b, op->out);
        s.w1 = cpu_floats(&b, op->hidden * op->in);
        s.w2 = cpu_floats(&b, op->out * op->hidden);
    }
    s.bytes = b.used;
    return s;
}

static scratch scratch_of(const tg_mlp *op, int part) {
    return lay_out(op, (char *)op->workspace + (size_t)part * lay_out(op, NULL).bytes);
}

size_t cpu_mlp_workspace(tg_backend *be, const tg_mlp *op) {
    return (size_t)be->threads * lay_out(op, NULL).bytes;
}

/* Multiplies a tile (channels, n) by dropout's factors; `first` is the stream's element 0 of the
 * layer (batch, channels, pixels). */
static void drop(const tg_mlp *op, uint64_t first, int64_t channels, cpu_pixel_tile tile,
                 float *x) {
    const float kept = (float)(1.0 / (1.0 - op->dropout));
    for (int64_t c = 0; c < channels; c++) {
        const uint64_t row =
            first + (uint64_t)((tile.image * channels + c) * op->pixels + tile.first);
        for (int64_t i = 0; i < tile.n; i++) {
            const bool survives = tg_rng_uniform(&op->rng, row + (uint64_t)i) >= op->dropout;
            x[c * tile.n + i] *= survives ? kept : 0.0f;
        }
    }
}

static uint64_t output_stream(const tg_mlp *op) {
    return op->stream + (uint64_t)(op->batch * op->hidden * op->pixels);
}

/* u = act(x) of a tile. */
static cpu_tile_rows input_tile(tg_backend *be, const tg_mlp *op, const cpu_tiles *tiles,
                                cpu_pixel_tile tile, const scratch *s) {
    return cpu_tile_activated(be, op->act, op->x_store, op->x, tiles, tile, op->in, s->u);
}

/* A row of h = act(h + bias), and its slope unless that is NULL. */
static void hidden_row(const cpu_nn_kernels *k, tg_act act, int64_t n, float bias, float *h,
                       float *slope) {
    k->affine(n, 0.0f, 1.0f, h, bias, h);
    if (slope) {
        for (int64_t i = 0; i < n; i++) {
            slope[i] = 1.0f;
        }
        k->act_back(act, n, h, slope, slope);
    }
    k->act(act, n, h, h);
}

/* h, and backward also its slope. */
static void hidden_tile(tg_backend *be, const tg_mlp *op, cpu_pixel_tile tile, cpu_tile_rows u,
                        const scratch *s, bool backward) {
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const float *b1 = op->b1;
    cpu_sgemm(be, false, false, op->hidden, tile.n, op->in, 1.0f, op->w1, op->in, u.data, u.ld,
              0.0f, s->h, tile.n);
    for (int64_t j = 0; j < op->hidden; j++) {
        float *h = s->h + j * tile.n;
        if (op->hidden_act != TG_ACT_NONE && op->hidden_act != TG_ACT_GELU) {
            hidden_row(k, op->hidden_act, tile.n, b1[j], h,
                       backward ? s->slope + j * tile.n : NULL);
        } else if (backward) {
            k->gelu_slope(tile.n, b1[j], h, h, s->slope + j * tile.n);
        } else {
            k->gelu(tile.n, b1[j], h, h);
        }
    }
    if (op->dropout > 0.0) {
        drop(op, op->stream, op->hidden, tile, s->h);
    }
}

/* ---- forward ---- */

/* Row o of a tile of y: adds `add` and activates; converts from and to 16 bits. */
static void finish_row(tg_backend *be, const tg_mlp *op, int64_t at, int64_t n, int64_t o,
                       float bias, float *y, const scratch *s) {
    const cpu_kernels *convert = cpu_state_of(be)->kernels;
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const float *gate = op->gate;
    if (op->add) {
        const float *add = cpu_read(convert, op->y_store, op->add, at, n, s->row);
        k->affine(n, 1.0f, gate ? gate[o] : 1.0f, add, bias, y);
    } else if (bias != 0.0f) {
        k->affine(n, 1.0f, 0.0f, y, bias, y);
    }
    cpu_write(convert, op->y_store, n, y, op->y, at);
    if (op->activated) {
        float *activated = cpu_result(op->y_store, op->activated, at, s->row);
        k->gelu(n, 0.0f, y, activated);
        cpu_write(convert, op->y_store, n, activated, op->activated, at);
    }
}

/* y = beta y + alpha f(u) + gate add; activated = gelu(y). */
static void output_tile(tg_backend *be, const tg_mlp *op, const cpu_tiles *tiles,
                        cpu_pixel_tile tile, const scratch *s) {
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const int64_t at = cpu_tile_offset(tiles, tile, op->out);
    const float alpha = (float)op->alpha, beta = (float)op->beta, *b2 = op->b2;
    const cpu_tile_rows y = cpu_tile_open(cpu_state_of(be)->kernels, op->y_store, op->y, tiles,
                                          tile, op->out, beta != 0.0f, s->y);
    const bool drops = op->dropout > 0.0;
    if (drops) {
        cpu_sgemm(be, false, false, op->out, tile.n, op->hidden, 1.0f, op->w2, op->hidden, s->h,
                  tile.n, 0.0f, s->f, tile.n);
        for (int64_t o = 0; o < op->out; o++) {
            k->affine(tile.n, 1.0f, 0.0f, s->f + o * tile.n, b2[o], s->f + o * tile.n);
        }
        drop(op, output_stream(op), op->out, tile, s->f);
    } else {
        cpu_sgemm(be, false, false, op->out, tile.n, op->hidden, alpha, op->w2, op->hidden, s->h,
                  tile.n, beta, y.data, y.ld);
    }
    for (int64_t o = 0; o < op->out; o++) {
        float *row = y.data + o * y.ld;
        if (drops) {
            k->affine(tile.n, beta, alpha, s->f + o * tile.n, 0.0f, row);
        }
        finish_row(be, op, at + o * op->pixels, tile.n, o, drops ? 0.0f : alpha * b2[o], row, s);
    }
}

static void forward(tg_backend *be, const tg_mlp *op) {
    tg_path_report_mlp(be, op, false, (tg_path){"tiles", "hidden_tile, output_tile"});
    const cpu_tiles tiles = tiles_of(op);
    const int parts = cpu_tile_parts(be, &tiles, op->hidden * (op->in + op->out));
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(tiles.count, 1, parts, p);
        const scratch s = scratch_of(op, p);
        for (int64_t i = r.begin; i < r.end; i++) {
            const cpu_pixel_tile tile = cpu_tile_at(&tiles, i);
            hidden_tile(be, op, tile, input_tile(be, op, &tiles, tile, &s), &s, false);
            output_tile(be, op, &tiles, tile, &s);
        }
    }
}

/* ---- backward ---- */

/* f = alpha D2 dy, or dy itself if equal; and its sums. */
static cpu_tile_rows gradient_tile(tg_backend *be, const tg_mlp *op, const cpu_tiles *tiles,
                                   cpu_pixel_tile tile, const scratch *s) {
    const cpu_nn_kernels *k = cpu_nn_of(be);
    cpu_tile_rows dy = cpu_tile_open(cpu_state_of(be)->kernels, op->y_store, op->dy, tiles, tile,
                                     op->out, true, s->f);
    if (op->alpha != 1.0 || op->dropout > 0.0) {
        for (int64_t o = 0; o < op->out; o++) {
            k->affine(tile.n, 0.0f, (float)op->alpha, dy.data + o * dy.ld, 0.0f, s->f + o * tile.n);
        }
        if (op->dropout > 0.0) {
            drop(op, output_stream(op), op->out, tile, s->f);
        }
        dy = (cpu_tile_rows){s->f, tile.n};
    }
    for (int64_t o = 0; o < op->out; o++) {
        s->b2[o] += k->sum(tile.n, dy.data + o * dy.ld);
    }
    return dy;
}

/* dx of a tile from the gradient at the hidden layer in s->dh. */
static void input_gradient_tile(tg_backend *be, const tg_mlp *op, const cpu_tiles *tiles,
                                cpu_pixel_tile tile, const scratch *s) {
    const cpu_kernels *convert = cpu_state_of(be)->kernels;
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const int64_t at = cpu_tile_offset(tiles, tile, op->in), pixels = op->pixels, n = tile.n;
    const bool slopes = op->through && op->act != TG_ACT_NONE;
    if (!slopes && op->x_store == TG_STORE_FULL) {
        cpu_sgemm(be, true, false, op->in, n, op->hidden, 1.0f, op->w1, op->in, s->dh, n,
                  (float)op->beta, (float *)op->dx + at, pixels);
        return;
    }
    cpu_sgemm(be, true, false, op->in, n, op->hidden, 1.0f, op->w1, op->in, s->dh, n, 0.0f, s->u,
              n);
    for (int64_t i = 0; i < op->in; i++) {
        const int64_t row = at + i * pixels;
        float *du = s->u + i * n;
        if (op->beta != 0.0) {
            const float *old = cpu_read(convert, op->x_store, op->dx, row, n, s->row);
            k->affine(n, 1.0f, (float)op->beta, old, 0.0f, du);
        }
        if (slopes) {
            const float *x = cpu_read(convert, op->x_store, op->x, row, n, s->row);
            float *dx = cpu_result(op->x_store, op->dx, row, du);
            k->act_back(op->act, n, x, du, dx);
        }
        cpu_write(convert, op->x_store, n, du, op->dx, row);
    }
}

static void backward_tile(tg_backend *be, const tg_mlp *op, const cpu_tiles *tiles,
                          cpu_pixel_tile tile, const scratch *s) {
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const cpu_tile_rows u = input_tile(be, op, tiles, tile, s);
    hidden_tile(be, op, tile, u, s, true);
    const cpu_tile_rows dy = gradient_tile(be, op, tiles, tile, s);
    cpu_sgemm(be, false, true, op->out, op->hidden, tile.n, 1.0f, dy.data, dy.ld, s->h, tile.n,
              1.0f, s->w2, op->hidden);
    cpu_sgemm(be, true, false, op->hidden, tile.n, op->out, 1.0f, op->w2, op->hidden, dy.data,
              dy.ld, 0.0f, s->dh, tile.n);
    if (op->dropout > 0.0) {
        drop(op, op->stream, op->hidden, tile, s->dh);
    }
    for (int64_t j = 0; j < op->hidden; j++) {
        k->multiply(tile.n, s->slope + j * tile.n, s->dh + j * tile.n);
        s->b1[j] += k->sum(tile.n, s->dh + j * tile.n);
    }
    cpu_sgemm(be, false, true, op->hidden, op->in, tile.n, 1.0f, s->dh, tile.n, u.data, u.ld, 1.0f,
              s->w1, op->in);
    if (op->dx) {
        input_gradient_tile(be, op, tiles, tile, s);
    }
}

static void backward(tg_backend *be, const tg_mlp *op) {
    tg_path_report_mlp(be, op, true, (tg_path){"tiles", "backward_tile"});
    const cpu_tiles tiles = tiles_of(op);
    const int parts = cpu_tile_parts(be, &tiles, op->hidden * (op->in + op->out));
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(tiles.count, 1, parts, p);
        const scratch s = scratch_of(op, p);
        memset(s.b1, 0, (size_t)op->hidden * sizeof *s.b1);
        memset(s.b2, 0, (size_t)op->out * sizeof *s.b2);
        memset(s.w1, 0, (size_t)(op->hidden * op->in) * sizeof *s.w1);
        memset(s.w2, 0, (size_t)(op->out * op->hidden) * sizeof *s.w2);
        for (int64_t i = r.begin; i < r.end; i++) {
            backward_tile(be, op, &tiles, cpu_tile_at(&tiles, i), &s);
        }
    }
    for (int p = 0; p < parts; p++) {
        const scratch s = scratch_of(op, p);
        cpu_add_doubles(op->hidden, s.b1, op->db1);
        cpu_add_doubles(op->out, s.b2, op->db2);
    }
    const scratch s = scratch_of(op, 0);
    cpu_add_parts(be, parts, op->hidden * op->in, s.w1, s.bytes, op->dw1);
    cpu_add_parts(be, parts, op->out * op->hidden, s.w2, s.bytes, op->dw2);
}

tg_status cpu_mlp(tg_backend *be, const tg_mlp *op) {
    if (!cpu_tiles_take(op->dtype, op->pixels)) {
        return be->ref->mlp(be, op);
    }
    (op->backward ? backward : forward)(be, op);
    return TG_OK;
}
