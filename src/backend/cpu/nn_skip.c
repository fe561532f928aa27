/* Skip connections on tiles of pixels: linear ones as matrix products, the others row by row. */
#include <string.h>

#include "backend/check.h"
#include "backend/cpu/nn.h"

/* Scratch of one thread; n = pixels of a tile. */
typedef struct scratch {
    float *u;               /* (in, n): act(x), and later x again */
    float *y;               /* (out, n): y or dy; 16-bit only */
    float *dx;              /* (in, n): 16-bit only; backward */
    double *biases, *gates; /* (out): sums for the gradients; backward */
    float *weights;         /* (out, in): likewise, LINEAR */
    size_t bytes;
} scratch;

static cpu_tiles tiles_of(const tg_skip *op) {
    return cpu_tiles_of(op->batch, op->pixels, op->in > op->out ? op->in : op->out);
}

static scratch lay_out(const tg_skip *op, char *base) {
    const int64_t n = tiles_of(op).width;
    const bool is_half = op->store != TG_STORE_FULL;
    tg_scratch b = {base, 0};
    scratch s = {.u = cpu_floats(&b, op->in * n), .y = cpu_floats(&b, is_half ? op->out * n : 0)};
    if (op->backward) {
        s.dx = cpu_floats(&b, is_half ? op->in * n : 0);
        s.biases = cpu_doubles(&b, op->out);
        s.gates = cpu_doubles(&b, op->out);
        s.weights = cpu_floats(&b, op->kind == TG_SKIP_MAP_LINEAR ? op->out * op->in : 0);
    }
    s.bytes = b.used;
    return s;
}

static scratch scratch_of(const tg_skip *op, int part) {
    return lay_out(op, (char *)op->workspace + (size_t)part * lay_out(op, NULL).bytes);
}

size_t cpu_skip_workspace(tg_backend *be, const tg_skip *op) {
    return (size_t)be->threads * lay_out(op, NULL).bytes;
}

/* Multiplications per pixel; without a matrix, the equivalent of its memory traffic. */
static int64_t weights_of(const tg_skip *op) {
    enum { MEMORY = 64 };
    return op->kind == TG_SKIP_MAP_LINEAR ? op->in * op->out : MEMORY * op->out;
}

/* ---- forward ---- */

static void forward_tile(tg_backend *be, const tg_skip *op, const cpu_tiles *tiles,
                         cpu_pixel_tile tile, const scratch *s) {
    const cpu_kernels *convert = cpu_state_of(be)->kernels;
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const float alpha = (float)op->alpha, beta = (float)op->beta;
    const float *bias = op->bias, *gate = op->weight;
    const cpu_tile_rows y =
        cpu_tile_open(convert, op->store, op->y, tiles, tile, op->out, beta != 0.0f, s->y);
    cpu_tile_rows x = {0};
    if (op->kind != TG_SKIP_MAP_NONE) {
        x = cpu_tile_activated(be, op->act, op->store, op->x, tiles, tile, op->in, s->u);
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

static void forward(tg_backend *be, const tg_skip *op) {
    tg_path_report_skip(be, op, false, (tg_path){"tiles", "forward_tile"});
    const cpu_tiles tiles = tiles_of(op);
    const int parts = cpu_tile_parts(be, &tiles, weights_of(op));
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(tiles.count, 1, parts, p);
        const scratch s = scratch_of(op, p);
        for (int64_t i = r.begin; i < r.end; i++) {
            forward_tile(be, op, &tiles, cpu_tile_at(&tiles, i), &s);
        }
    }
}

/* ---- backward ---- */

static void weight_tile(tg_backend *be, const tg_skip *op, const cpu_tiles *tiles,
                        cpu_pixel_tile tile, cpu_tile_rows dy, const scratch *s) {
    const cpu_nn_kernels *k = cpu_nn_of(be);
    if (op->dbias) {
        for (int64_t o = 0; o < op->out; o++) {
            s->biases[o] += k->sum(tile.n, dy.data + o * dy.ld);
        }
    }
    if (!op->dweight || (op->kind != TG_SKIP_MAP_LINEAR && op->kind != TG_SKIP_MAP_GATE)) {
        return;
    }
    const cpu_tile_rows x =
        cpu_tile_activated(be, op->act, op->store, op->x, tiles, tile, op->in, s->u);
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
                                cpu_pixel_tile tile, cpu_tile_rows dy, const scratch *s) {
    const cpu_kernels *convert = cpu_state_of(be)->kernels;
    const cpu_nn_kernels *k = cpu_nn_of(be);
    const float *gate = op->weight;
    const float alpha = (float)op->alpha, beta = (float)op->beta;
    const bool slopes = op->through && op->act != TG_ACT_NONE;
    const cpu_tile_rows dx =
        cpu_tile_open(convert, op->store, op->dx, tiles, tile, op->in, beta != 0.0f, s->dx);
    cpu_tile_rows x = {0};
    if (slopes) {
        x = cpu_tile_open(convert, op->store, op->x, tiles, tile, op->in, true, s->u);
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

static void backward(tg_backend *be, const tg_skip *op) {
    tg_path_report_skip(be, op, true, (tg_path){"tiles", "weight_tile, input_tile_gradient"});
    const cpu_tiles tiles = tiles_of(op);
    const int parts = cpu_tile_parts(be, &tiles, weights_of(op));
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(tiles.count, 1, parts, p);
        const scratch s = scratch_of(op, p);
        memset(s.biases, 0, (size_t)op->out * sizeof *s.biases);
        memset(s.gates, 0, (size_t)op->out * sizeof *s.gates);
        if (op->kind == TG_SKIP_MAP_LINEAR) {
            memset(s.weights, 0, (size_t)(op->out * op->in) * sizeof *s.weights);
        }
        for (int64_t i = r.begin; i < r.end; i++) {
            const cpu_pixel_tile tile = cpu_tile_at(&tiles, i);
            const cpu_tile_rows dy = cpu_tile_open(cpu_state_of(be)->kernels, op->store, op->dy,
                                                   &tiles, tile, op->out, true, s.y);
            weight_tile(be, op, &tiles, tile, dy, &s);
            if (op->dx) {
                input_tile_gradient(be, op, &tiles, tile, dy, &s);
            }
        }
    }
    for (int p = 0; p < parts; p++) {
        const scratch s = scratch_of(op, p);
        cpu_add_doubles(op->dbias ? op->out : 0, s.biases, op->dbias);
        const bool gates = op->dweight && op->kind == TG_SKIP_MAP_GATE;
        cpu_add_doubles(gates ? op->out : 0, s.gates, op->dweight);
    }
    if (op->dweight && op->kind == TG_SKIP_MAP_LINEAR) {
        const scratch s = scratch_of(op, 0);
        cpu_add_parts(be, parts, op->out * op->in, s.weights, s.bytes, op->dweight);
    }
}

tg_status cpu_add_skip(tg_backend *be, const tg_skip *op) {
    if (!cpu_tiles_take(op->dtype, op->pixels)) {
        return be->ref->add_skip(be, op);
    }
    (op->backward ? backward : forward)(be, op);
    return TG_OK;
}
