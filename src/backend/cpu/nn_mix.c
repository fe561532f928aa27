/* Skips on tiles of pixels: linear ones as products with BLAS, the others row by row. */
#include <string.h>

#include "backend/cpu/nn_tiles.h"

/* Scratch of one thread, in floats from its base. */
typedef struct layout {
    int64_t u;       /* (in, n): act(x), and later the gradient at it */
    int64_t biases;  /* (out) doubles: sums for the gradients; backward */
    int64_t gates;   /* (out) doubles; backward */
    int64_t weights; /* (out, in) floats, LINEAR; backward */
    int64_t size;
} layout;

static int64_t round_up(int64_t n) {
    return (n + 15) / 16 * 16;
}

static cpu_tiles tiles_of(const tg_mix *op) {
    return cpu_tiles_of(op->batch, op->pixels, op->in > op->out ? op->in : op->out);
}

static layout layout_of(const tg_mix *op, bool backward) {
    layout l = {0};
    l.biases = l.size = round_up(op->in * tiles_of(op).width);
    if (backward) {
        l.gates = l.biases + round_up(2 * op->out);
        l.weights = l.gates + round_up(2 * op->out);
        l.size = l.weights + (op->kind == TG_MIX_LINEAR ? round_up(op->out * op->in) : 0);
    }
    return l;
}

static size_t cpu_mix_workspace(tg_backend *be, const tg_mix *op, bool backward) {
    return cpu_tiles_take(op->dtype, op->pixels, op->store)
               ? (size_t)(be->threads * layout_of(op, backward).size) * sizeof(float)
               : be->ref->mix_workspace(be, op, backward);
}

static int64_t weights_of(const tg_mix *op) {
    return op->kind == TG_MIX_LINEAR ? op->in * op->out : op->out;
}

/* act(x) of a tile: x itself where it is not changed, else made in u. Rows are *ld apart. */
static const float *input_tile(tg_backend *be, const tg_mix *op, const cpu_tiles *tiles,
                               cpu_pixel_tile tile, float *u, int64_t *ld) {
    const float *x = (const float *)op->x + cpu_tile_offset(tiles, tile, op->in);
    *ld = op->pixels;
    if (op->act == TG_ACT_NONE) {
        return x;
    }
    for (int64_t i = 0; i < op->in; i++) {
        cpu_nn_act(cpu_nn_of(be), op->act, tile.n, x + i * op->pixels, u + i * tile.n);
    }
    *ld = tile.n;
    return u;
}

/* ---- forward ---- */

static void forward_tile(tg_backend *be, const tg_mix *op, const cpu_tiles *tiles,
                         cpu_pixel_tile tile, float *u) {
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const float alpha = (float)op->alpha, beta = (float)op->beta;
    const float *bias = op->bias, *gate = op->weight;
    float *y = (float *)op->y + cpu_tile_offset(tiles, tile, op->out);
    int64_t ld = 0;
    const float *x = op->kind == TG_MIX_NONE ? NULL : input_tile(be, op, tiles, tile, u, &ld);
    if (op->kind == TG_MIX_LINEAR) {
        cpu_sgemm(false, false, op->out, tile.n, op->in, alpha, op->weight, op->in, x, ld, beta, y,
                  op->pixels);
    }
    for (int64_t o = 0; o < op->out; o++) {
        float *row = y + o * op->pixels;
        const float b = bias ? bias[o] : 0.0f;
        switch (op->kind) {
        case TG_MIX_IDENTITY:
        case TG_MIX_GATE:
            k->affine(tile.n, beta, op->kind == TG_MIX_GATE ? alpha * gate[o] : alpha, x + o * ld,
                      b, row);
            break;
        case TG_MIX_NONE:
            if (beta == 0.0f) {
                memset(row, 0, (size_t)tile.n * sizeof *row);
            }
            k->affine(tile.n, beta == 0.0f ? 1.0f : beta, 0.0f, row, b, row);
            break;
        case TG_MIX_LINEAR:
            if (bias) {
                k->affine(tile.n, 1.0f, 0.0f, row, b, row);
            }
            break;
        }
    }
}

static tg_status cpu_mix_forward(tg_backend *be, const tg_mix *op) {
    if (!cpu_tiles_take(op->dtype, op->pixels, op->store)) {
        return be->ref->mix_forward(be, op);
    }
    const cpu_tiles tiles = tiles_of(op);
    const layout l = layout_of(op, false);
    const int parts = cpu_tile_parts(be, &tiles, weights_of(op));
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(tiles.count, 1, parts, p);
        for (int64_t i = r.begin; i < r.end; i++) {
            forward_tile(be, op, &tiles, cpu_tile_at(&tiles, i),
                         (float *)op->workspace + p * l.size);
        }
    }
    return TG_OK;
}

/* ---- backward ---- */

/* A thread's sums for the gradients of the weights. */
typedef struct sums {
    double *biases, *gates;
    float *weights;
} sums;

static sums sums_of(const tg_mix *op, const layout *l, int part) {
    float *base = (float *)op->workspace + part * l->size;
    return (sums){.biases = (double *)(void *)(base + l->biases),
                  .gates = (double *)(void *)(base + l->gates),
                  .weights = base + l->weights};
}

static void weight_tile(tg_backend *be, const tg_mix *op, const cpu_tiles *tiles,
                        cpu_pixel_tile tile, float *u, const sums *s) {
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const float *dy = (const float *)op->dy + cpu_tile_offset(tiles, tile, op->out);
    if (op->dbias) {
        for (int64_t o = 0; o < op->out; o++) {
            s->biases[o] += k->sum(tile.n, dy + o * op->pixels);
        }
    }
    if (!op->dweight || (op->kind != TG_MIX_LINEAR && op->kind != TG_MIX_GATE)) {
        return;
    }
    int64_t ld = 0;
    const float *x = input_tile(be, op, tiles, tile, u, &ld);
    if (op->kind == TG_MIX_LINEAR) {
        cpu_sgemm(false, true, op->out, op->in, tile.n, (float)op->alpha, dy, op->pixels, x, ld,
                  1.0f, s->weights, op->in);
        return;
    }
    for (int64_t o = 0; o < op->out; o++) {
        s->gates[o] += op->alpha * k->dot(tile.n, dy + o * op->pixels, x + o * ld);
    }
}

/* dx = (beta dx + alpha S^T dy) act'(x) */
static void input_tile_gradient(tg_backend *be, const tg_mix *op, const cpu_tiles *tiles,
                                cpu_pixel_tile tile) {
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const int64_t at = cpu_tile_offset(tiles, tile, op->in), pixels = op->pixels;
    const float *dy = (const float *)op->dy + cpu_tile_offset(tiles, tile, op->out);
    const float *gate = op->weight;
    const float alpha = (float)op->alpha, beta = (float)op->beta;
    float *dx = (float *)op->dx + at;
    if (op->kind == TG_MIX_LINEAR) {
        cpu_sgemm(true, false, op->in, tile.n, op->out, alpha, op->weight, op->in, dy, pixels, beta,
                  dx, pixels);
    }
    for (int64_t i = 0; i < op->in; i++) {
        float *row = dx + i * pixels;
        if (op->kind != TG_MIX_LINEAR) {
            const float factor = op->kind == TG_MIX_GATE       ? alpha * gate[i]
                                 : op->kind == TG_MIX_IDENTITY ? alpha
                                                               : 0.0f;
            k->affine(tile.n, beta, factor, dy + i * pixels, 0.0f, row);
        }
        if (op->through && op->act != TG_ACT_NONE) {
            cpu_nn_act_back(k, op->act, tile.n, (const float *)op->x + at + i * pixels, row, row);
        }
    }
}

static void add_sums(const tg_mix *op, const sums *s) {
    float *dbias = op->dbias, *dweight = op->dweight;
    for (int64_t o = 0; dbias && o < op->out; o++) {
        dbias[o] = (float)((double)dbias[o] + s->biases[o]);
    }
    for (int64_t o = 0; dweight && op->kind == TG_MIX_GATE && o < op->out; o++) {
        dweight[o] = (float)((double)dweight[o] + s->gates[o]);
    }
    for (int64_t i = 0; dweight && op->kind == TG_MIX_LINEAR && i < op->out * op->in; i++) {
        dweight[i] += s->weights[i];
    }
}

static tg_status cpu_mix_backward(tg_backend *be, const tg_mix *op) {
    if (!cpu_tiles_take(op->dtype, op->pixels, op->store)) {
        return be->ref->mix_backward(be, op);
    }
    const cpu_tiles tiles = tiles_of(op);
    const layout l = layout_of(op, true);
    const int parts = cpu_tile_parts(be, &tiles, weights_of(op));
#pragma omp parallel for num_threads(parts) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(tiles.count, 1, parts, p);
        float *base = (float *)op->workspace + p * l.size;
        const sums s = sums_of(op, &l, p);
        memset(base + l.biases, 0, (size_t)(l.size - l.biases) * sizeof *base);
        for (int64_t i = r.begin; i < r.end; i++) {
            const cpu_pixel_tile tile = cpu_tile_at(&tiles, i);
            weight_tile(be, op, &tiles, tile, base + l.u, &s);
            if (op->dx) {
                input_tile_gradient(be, op, &tiles, tile);
            }
        }
    }
    for (int p = 0; p < parts; p++) {
        const sums s = sums_of(op, &l, p);
        add_sums(op, &s);
    }
    return TG_OK;
}

void cpu_fill_nn_mix(tg_backend_ops *ops) {
    ops->mix_workspace = cpu_mix_workspace;
    ops->mix_forward = cpu_mix_forward;
    ops->mix_backward = cpu_mix_backward;
}
