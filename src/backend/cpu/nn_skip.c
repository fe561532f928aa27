/* Skip connections on tiles of pixels: linear ones as matrix products, the others row by row. */
#include <string.h>

#include "backend/check.h"
#include "backend/cpu/nn.h"

/* Scratch of one thread, in floats from its base. */
typedef struct layout {
    int64_t u;       /* (in, n): act(x), and later x again */
    int64_t y;       /* (out, n): y or dy, 16-bit only */
    int64_t dx;      /* (in, n): 16-bit only; backward */
    int64_t biases;  /* (out) doubles: sums for the gradients; backward */
    int64_t gates;   /* (out) doubles; backward */
    int64_t weights; /* (out, in) floats, LINEAR; backward */
    int64_t size;
} layout;

static cpu_tiles tiles_of(const tg_skip *op) {
    return cpu_tiles_of(op->batch, op->pixels, op->in > op->out ? op->in : op->out);
}

static layout layout_of(const tg_skip *op, bool backward) {
    const int64_t width = tiles_of(op).width;
    const bool is_half = op->store != TG_STORE_FULL;
    layout l = {0};
    l.y = cpu_whole_lines(op->in * width);
    l.dx = l.size = l.y + (is_half ? cpu_whole_lines(op->out * width) : 0);
    if (backward) {
        l.biases = l.dx + (is_half ? cpu_whole_lines(op->in * width) : 0);
        l.gates = l.biases + cpu_whole_lines(2 * op->out);
        l.weights = l.gates + cpu_whole_lines(2 * op->out);
        l.size =
            l.weights + (op->kind == TG_SKIP_MAP_LINEAR ? cpu_whole_lines(op->out * op->in) : 0);
    }
    return l;
}

size_t cpu_skip_workspace(tg_backend *be, const tg_skip *op) {
    return (size_t)(be->threads * layout_of(op, op->backward).size) * sizeof(float);
}

/* Multiplications per pixel; without a matrix, the equivalent of its memory traffic. */
static int64_t weights_of(const tg_skip *op) {
    enum { MEMORY = 64 };
    return op->kind == TG_SKIP_MAP_LINEAR ? op->in * op->out : MEMORY * op->out;
}

/* act(x) of a tile: x itself if unchanged, otherwise computed in u. */
static cpu_tile_rows input_tile(tg_backend *be, const tg_skip *op, const cpu_tiles *tiles,
                                cpu_pixel_tile tile, float *u) {
    cpu_tile_rows x =
        cpu_tile_open(cpu_state_of(be)->kernels, op->store, op->x, tiles, tile, op->in, true, u);
    if (op->act != TG_ACT_NONE) {
        for (int64_t i = 0; i < op->in; i++) {
            cpu_nn_of(be)->act(op->act, tile.n, x.data + i * x.ld, u + i * tile.n);
        }
        x = (cpu_tile_rows){u, tile.n};
    }
    return x;
}

/* ---- forward ---- */

static void forward_tile(tg_backend *be, const tg_skip *op, const cpu_tiles *tiles,
                         cpu_pixel_tile tile, const layout *l, float *base) {
    const cpu_kernels *convert = cpu_state_of(be)->kernels;
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const float alpha = (float)op->alpha, beta = (float)op->beta;
    const float *bias = op->bias, *gate = op->weight;
    const cpu_tile_rows y =
        cpu_tile_open(convert, op->store, op->y, tiles, tile, op->out, beta != 0.0f, base + l->y);
    cpu_tile_rows x = {0};
    if (op->kind != TG_SKIP_MAP_NONE) {
        x = input_tile(be, op, tiles, tile, base + l->u);
    }
    if (op->kind == TG_SKIP_MAP_LINEAR) {
        cpu_sgemm(be, false, false, op->out, tile.n, op->in, alpha, op->weight, op->in, x.data,
                  x.ld, beta, y.data, y.ld);
    }
    for (int64_t o = 0; o < op->out; o++) {
        float *row = y.data + o * y.ld;
        const float b = bias ? bias[o] : 0.0f;
        switch (op->kind) {
        case TG_SKIP_MAP_IDENTITY:
        case TG_SKIP_MAP_GATE:
            k->affine(tile.n, beta, op->kind == TG_SKIP_MAP_GATE ? alpha * gate[o] : alpha,
                      x.data + o * x.ld, b, row);
            break;
        case TG_SKIP_MAP_NONE:
            if (beta == 0.0f) {
                memset(row, 0, (size_t)tile.n * sizeof *row);
            }
            k->affine(tile.n, beta == 0.0f ? 1.0f : beta, 0.0f, row, b, row);
            break;
        case TG_SKIP_MAP_LINEAR:
            if (bias) {
                k->affine(tile.n, 1.0f, 0.0f, row, b, row);
            }
            break;
        }
    }
    cpu_tile_close(convert, op->store, y.data, tiles, tile, op->out, op->y);
}

static tg_status cpu_skip_forward(tg_backend *be, const tg_skip *op) {
    if (!cpu_tiles_take(op->dtype, op->pixels)) {
        return be->ref->add_skip(be, op);
    }
    tg_path_report_skip(be, op, false, (tg_path){"tiles", "forward_tile"});
    const cpu_tiles tiles = tiles_of(op);
    const layout l = layout_of(op, false);
    const int parts = cpu_tile_parts(be, &tiles, weights_of(op));
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(tiles.count, 1, parts, p);
        for (int64_t i = r.begin; i < r.end; i++) {
            forward_tile(be, op, &tiles, cpu_tile_at(&tiles, i), &l,
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

static sums sums_of(const tg_skip *op, const layout *l, int part) {
    float *base = (float *)op->workspace + part * l->size;
    return (sums){.biases = (double *)(void *)(base + l->biases),
                  .gates = (double *)(void *)(base + l->gates),
                  .weights = base + l->weights};
}

static void weight_tile(tg_backend *be, const tg_skip *op, const cpu_tiles *tiles,
                        cpu_pixel_tile tile, cpu_tile_rows dy, float *u, const sums *s) {
    const cpu_nn_kernels *k = cpu_nn_of(be);
    if (op->dbias) {
        for (int64_t o = 0; o < op->out; o++) {
            s->biases[o] += k->sum(tile.n, dy.data + o * dy.ld);
        }
    }
    if (!op->dweight || (op->kind != TG_SKIP_MAP_LINEAR && op->kind != TG_SKIP_MAP_GATE)) {
        return;
    }
    const cpu_tile_rows x = input_tile(be, op, tiles, tile, u);
    if (op->kind == TG_SKIP_MAP_LINEAR) {
        cpu_sgemm(be, false, true, op->out, op->in, tile.n, (float)op->alpha, dy.data, dy.ld,
                  x.data, x.ld, 1.0f, s->weights, op->in);
        return;
    }
    for (int64_t o = 0; o < op->out; o++) {
        s->gates[o] += op->alpha * k->dot(tile.n, dy.data + o * dy.ld, x.data + o * x.ld);
    }
}

/* dx = (beta dx + alpha S^T dy) act'(x) */
static void input_tile_gradient(tg_backend *be, const tg_skip *op, const cpu_tiles *tiles,
                                cpu_pixel_tile tile, cpu_tile_rows dy, const layout *l,
                                float *base) {
    const cpu_kernels *convert = cpu_state_of(be)->kernels;
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const float *gate = op->weight;
    const float alpha = (float)op->alpha, beta = (float)op->beta;
    const bool slopes = op->through && op->act != TG_ACT_NONE;
    const cpu_tile_rows dx =
        cpu_tile_open(convert, op->store, op->dx, tiles, tile, op->in, beta != 0.0f, base + l->dx);
    cpu_tile_rows x = {0};
    if (slopes) {
        x = cpu_tile_open(convert, op->store, op->x, tiles, tile, op->in, true, base + l->u);
    }
    if (op->kind == TG_SKIP_MAP_LINEAR) {
        cpu_sgemm(be, true, false, op->in, tile.n, op->out, alpha, op->weight, op->in, dy.data,
                  dy.ld, beta, dx.data, dx.ld);
    }
    for (int64_t i = 0; i < op->in; i++) {
        float *row = dx.data + i * dx.ld;
        if (op->kind != TG_SKIP_MAP_LINEAR) {
            const float factor = op->kind == TG_SKIP_MAP_GATE       ? alpha * gate[i]
                                 : op->kind == TG_SKIP_MAP_IDENTITY ? alpha
                                                                    : 0.0f;
            k->affine(tile.n, beta, factor, dy.data + i * dy.ld, 0.0f, row);
        }
        if (slopes) {
            k->act_back(op->act, tile.n, x.data + i * x.ld, row, row);
        }
    }
    cpu_tile_close(convert, op->store, dx.data, tiles, tile, op->in, op->dx);
}

/* Gradients per channel; the weights of linear ones come later. */
static void add_sums(const tg_skip *op, const sums *s) {
    float *dbias = op->dbias, *dweight = op->dweight;
    for (int64_t o = 0; dbias && o < op->out; o++) {
        dbias[o] = (float)((double)dbias[o] + s->biases[o]);
    }
    for (int64_t o = 0; dweight && op->kind == TG_SKIP_MAP_GATE && o < op->out; o++) {
        dweight[o] = (float)((double)dweight[o] + s->gates[o]);
    }
}

static tg_status cpu_skip_backward(tg_backend *be, const tg_skip *op) {
    if (!cpu_tiles_take(op->dtype, op->pixels)) {
        return be->ref->add_skip(be, op);
    }
    tg_path_report_skip(be, op, true, (tg_path){"tiles", "weight_tile, input_tile_gradient"});
    const cpu_tiles tiles = tiles_of(op);
    const layout l = layout_of(op, true);
    const int parts = cpu_tile_parts(be, &tiles, weights_of(op));
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(tiles.count, 1, parts, p);
        float *base = (float *)op->workspace + p * l.size;
        const sums s = sums_of(op, &l, p);
        memset(base + l.biases, 0, (size_t)(l.size - l.biases) * sizeof *base);
        for (int64_t i = r.begin; i < r.end; i++) {
            const cpu_pixel_tile tile = cpu_tile_at(&tiles, i);
            const cpu_tile_rows dy = cpu_tile_open(cpu_state_of(be)->kernels, op->store, op->dy,
                                                   &tiles, tile, op->out, true, base + l.y);
            weight_tile(be, op, &tiles, tile, dy, base + l.u, &s);
            if (op->dx) {
                input_tile_gradient(be, op, &tiles, tile, dy, &l, base);
            }
        }
    }
    for (int p = 0; p < parts; p++) {
        const sums s = sums_of(op, &l, p);
        add_sums(op, &s);
    }
    if (op->dweight && op->kind == TG_SKIP_MAP_LINEAR) {
        cpu_add_parts(be, parts, op->out * op->in, sums_of(op, &l, 0).weights, l.size, op->dweight);
    }
    return TG_OK;
}

tg_status cpu_add_skip(tg_backend *be, const tg_skip *op) {
    return op->backward ? cpu_skip_backward(be, op) : cpu_skip_forward(be, op);
}
