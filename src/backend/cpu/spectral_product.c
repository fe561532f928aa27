/* Products at every frequency, and the contraction with a spectral weight by them. */
#include "backend/cpu/spectral_product.h"

#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/nn.h"
#include "base/minmax.h"

enum {
    COLUMNS_BYTES = 7 << 16, /* of packed columns, in the scratch of a thread */
    RUN_BYTES = 1 << 19,     /* of packed rows at a run of frequencies, which a core caches */
    WHOLE_BYTES = 7 << 18,   /* or of all frequencies at once, if they are no more than this */
    GRAIN = 1 << 18,         /* products worth a thread */
    MAX_REALS = 2 * CPU_MAX_FREQUENCIES
};

/* The division of a product. */
typedef struct cut {
    const cpu_tile_kernels *kernels;
    int parts;
    int64_t reals;        /* of a vector */
    int64_t vectors;      /* of all frequencies */
    int64_t run;          /* vectors whose columns are packed at once */
    int64_t runs_at_once; /* whose rows are packed at once */
    int64_t tiles;        /* of columns */
    int64_t rows_reals;   /* from the packed rows at one vector to those at the next */
    float *rows;          /* (runs_at_once * run, rows_reals), of all threads */
} cut;

/* Scratch of all threads that the columns leave free. */
static int64_t rows_room(tg_backend *be) {
    return (int64_t)be->threads * ((int64_t)CPU_SCRATCH - COLUMNS_BYTES);
}

static int64_t vector_bytes(tg_backend *be) {
    return 2 * (int64_t)sizeof(float) * cpu_state_of(be)->tiles->frequencies;
}

/* Packed operands are followed by an extra vector: powers of two apart, they would share few sets
 * of the first cache. For rows at one vector: */
static int64_t rows_bytes(tg_backend *be, const cpu_spectral_product *p, int64_t rows) {
    return (p->depth * rows + 1) * vector_bytes(be);
}

/* For a tile of columns at several vectors: */
static int64_t columns_bytes(tg_backend *be, const cpu_spectral_product *p, int64_t vectors) {
    return p->depth * CPU_TILE * (vectors + 1) * vector_bytes(be);
}

bool cpu_spectral_fits(tg_backend *be, const cpu_spectral_product *p) {
    return p->depth > 0 && columns_bytes(be, p, 1) <= COLUMNS_BYTES &&
           rows_bytes(be, p, CPU_TILE) <= rows_room(be);
}

static cut cut_of(tg_backend *be, const cpu_spectral_product *p) {
    const int64_t rows = rows_bytes(be, p, p->rows);
    cut c = {.kernels = cpu_state_of(be)->tiles,
             .parts = cpu_parts(be, p->depth * p->rows * p->columns * p->frequencies, GRAIN),
             .reals = vector_bytes(be) / (int64_t)sizeof(float),
             .tiles = (p->columns + CPU_TILE - 1) / CPU_TILE,
             .rows_reals = rows / (int64_t)sizeof(float)};
    c.vectors = (2 * p->frequencies + c.reals - 1) / c.reals;
    const int64_t near = c.vectors * rows <= WHOLE_BYTES ? c.vectors : tg_max(RUN_BYTES / rows, 1);
    const int64_t most = tg_min(COLUMNS_BYTES / columns_bytes(be, p, 0) - 1, rows_room(be) / rows);
    const int64_t shared =
        (c.parts + c.tiles - 1) / c.tiles; /* runs that give all threads a tile */
    const int64_t longest = tg_min(tg_min(near, most), (c.vectors + shared - 1) / shared);
    const int64_t runs = (c.vectors + longest - 1) / longest;
    c.run = (c.vectors + runs - 1) / runs;
    c.runs_at_once = tg_min(rows_room(be) / (c.run * rows), runs);
    c.rows = (float *)cpu_scratch_of(be, 0) +
             (int64_t)be->threads * COLUMNS_BYTES / (int64_t)sizeof(float);
    return c;
}

/* Copies frequencies of `vectors` vectors from number `first` on, of the spectrum at real `at`, to
 * vectors `step` reals apart; zeros after the last. */
static void pack(tg_backend *be, const cpu_spectral_product *p, const cut *c, const cpu_spectra *s,
                 int64_t at, int64_t first, int64_t vectors, float *to, int64_t step) {
    const int64_t begin = first * c->reals, whole = vectors * c->reals;
    const int64_t count = tg_min(2 * p->frequencies - begin, whole);
    const int64_t at_once = step == c->reals ? whole : c->reals;
    for (int64_t i = 0; i < whole; i += at_once, to += step) {
        const int64_t n = tg_min(count - i, at_once);
        const void *from = cpu_stored_at(s->store, s->x, at + begin + i);
        if (s->store == TG_STORE_FULL) {
            memcpy(to, from, (size_t)n * sizeof *to);
        } else {
            cpu_state_of(be)->kernels->load_f32(tg_stored(TG_F32, s->store), n, from, to);
        }
        memset(to + n, 0, (size_t)(at_once - n) * sizeof *to);
    }
}

/* Rows of the tile that begins with row i: 4, or at the end 2 or 1. */
static int tile_rows(int64_t rows, int64_t i) {
    return rows - i >= 4 ? 4 : rows - i >= 2 ? 2 : 1;
}

static int64_t tile_count(int64_t rows) {
    return rows / 4 + rows % 4 / 2 + rows % 2;
}

/* The first row of tile t. */
static int64_t tile_begin(int64_t rows, int64_t t) {
    return t <= rows / 4 ? 4 * t : rows - 1;
}

/* Rows at vectors [first, first + vectors): (vector, tile, depth, row of the tile); some of all
 * pairs (tile, depth). */
static void pack_rows(tg_backend *be, const cpu_spectral_product *p, const cut *c, int64_t first,
                      int64_t vectors, tg_range pairs) {
    for (int64_t pair = pairs.begin; pair < pairs.end; pair++) {
        const int64_t i = tile_begin(p->rows, pair / p->depth), d = pair % p->depth;
        const int rows = tile_rows(p->rows, i);
        for (int r = 0; r < rows; r++) {
            pack(be, p, c, &p->a, d * p->a.depth + (i + r) * p->a.across, first, vectors,
                 c->rows + (i * p->depth + d * rows + r) * c->reals, c->rows_reals);
        }
    }
}

/* Columns of a tile: (depth, column, vector), and one extra vector, in the layout of b. */
static void pack_columns(tg_backend *be, const cpu_spectral_product *p, const cut *c, int64_t first,
                         int64_t vectors, int64_t tile, float *to) {
    for (int64_t d = 0; d < p->depth; d++) {
        for (int64_t j = 0; j < CPU_TILE; j++, to += (vectors + 1) * c->reals) {
            const int64_t column = tile * CPU_TILE + j;
            if (column < p->columns) {
                pack(be, p, c, &p->b, d * p->b.depth + column * p->b.across, first, vectors, to,
                     c->reals);
            } else {
                memset(to, 0, (size_t)(vectors * c->reals) * sizeof *to);
            }
        }
    }
}

/* One tile at one vector, into c or through a buffer if c cannot take whole vectors. */
static void multiply_tile(tg_backend *be, const cpu_spectral_product *p, const cut *c,
                          int64_t vector, int64_t tile, int64_t row, cpu_tile_product *t) {
    float room[CPU_TILE * CPU_TILE * MAX_REALS];
    const int64_t columns = tg_min(p->columns - tile * CPU_TILE, CPU_TILE);
    const int64_t count = tg_min(2 * p->frequencies - vector * c->reals, c->reals);
    const int64_t at = row * p->c_row + tile * CPU_TILE * p->c_column + vector * c->reals;
    const bool is_whole = columns == CPU_TILE && count == c->reals && p->c_store == TG_STORE_FULL;
    t->c = is_whole ? (float *)p->c + at : room;
    t->c_row = is_whole ? p->c_row : CPU_TILE * c->reals;
    t->c_column = is_whole ? p->c_column : c->reals;
    c->kernels->multiply(t);
    for (int64_t i = 0; !is_whole && i < t->rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            const float *from = room + i * t->c_row + j * t->c_column;
            cpu_state_of(be)->kernels->store_f32(
                tg_stored(TG_F32, p->c_store), count, from,
                cpu_stored_at(p->c_store, p->c, at + i * p->c_row + j * p->c_column));
        }
    }
}

/* Tiles of columns [units.begin, units.end), counted run by run, of the runs from `first` on. */
static void multiply_part(tg_backend *be, const cpu_spectral_product *p, const cut *c,
                          int64_t first, int64_t last, tg_range units, float *columns) {
    for (int64_t unit = units.begin; unit < units.end; unit++) {
        const int64_t tile = unit % c->tiles, begin = first + unit / c->tiles * c->run;
        const int64_t end = tg_min(begin + c->run, last);
        pack_columns(be, p, c, begin, end - begin, tile, columns);
        for (int64_t v = begin; v < end; v++) {
            cpu_tile_product t = {.form = p->form,
                                  .depth = p->depth,
                                  .b = columns + (v - begin) * c->reals,
                                  .b_depth = CPU_TILE * (end - begin + 1) * c->reals,
                                  .b_column = (end - begin + 1) * c->reals,
                                  .scale = p->scale};
            for (int64_t i = 0; i < p->rows; i += t.rows) {
                t.rows = tile_rows(p->rows, i);
                t.a = c->rows + (v - first) * c->rows_reals + i * p->depth * c->reals;
                multiply_tile(be, p, c, v, tile, i, &t);
            }
        }
    }
}

/* A product whose packed rows fit in the scratch for at least one vector. */
static void multiply_rows(tg_backend *be, const cpu_spectral_product *p) {
    const cut c = cut_of(be, p);
    for (int64_t first = 0; first < c.vectors; first += c.runs_at_once * c.run) {
        const int64_t last = tg_min(first + c.runs_at_once * c.run, c.vectors);
        const int64_t runs = (last - first + c.run - 1) / c.run;
#pragma omp parallel for num_threads(cpu_team(be, c.parts)) schedule(static)
        for (int part = 0; part < c.parts; part++) {
            const int64_t pairs = tile_count(p->rows) * p->depth;
            pack_rows(be, p, &c, first, last - first, tg_partition(pairs, 1, c.parts, part));
        }
#pragma omp parallel for num_threads(cpu_team(be, c.parts)) schedule(static)
        for (int part = 0; part < c.parts; part++) {
            float *columns = (float *)cpu_scratch_of(be, 0) +
                             (int64_t)part * COLUMNS_BYTES / (int64_t)sizeof(float);
            multiply_part(be, p, &c, first, last, tg_partition(runs * c.tiles, 1, c.parts, part),
                          columns);
        }
    }
}

void cpu_spectral_multiply(tg_backend *be, const cpu_spectral_product *p) {
    int64_t most = p->rows;
    while (rows_bytes(be, p, most) > rows_room(be)) {
        most = (most / 2 + CPU_TILE - 1) / CPU_TILE * CPU_TILE;
    }
    for (int64_t i = 0; i < p->rows && p->columns > 0 && p->frequencies > 0; i += most) {
        cpu_spectral_product some = *p;
        some.rows = tg_min(p->rows - i, most);
        some.a.x = cpu_stored_at(p->a.store, p->a.x, i * p->a.across);
        some.c = cpu_stored_at(p->c_store, p->c, i * p->c_row);
        multiply_rows(be, &some);
    }
}

/* The contraction of spectra with a spectral weight: a product at every frequency. */

tg_status cpu_spectral_contract(tg_backend *be, const tg_spectral *op) {
    const int64_t row = 2 * op->modes; /* reals */
    const int64_t from = op->adjoint ? op->out : op->in, to = op->adjoint ? op->in : op->out;
    const cpu_spectral_product product = {
        .form = op->adjoint ? CPU_TILE_CONJ_B : CPU_TILE_PRODUCT,
        .frequencies = op->modes,
        .depth = from,
        .rows = op->batch,
        .columns = to,
        .a = {.x = op->src, .store = op->store, .depth = row, .across = from * row},
        .b = {.x = op->weight,
              .store = op->weight_store,
              .depth = op->adjoint ? row : op->out * row,
              .across = op->adjoint ? op->out * row : row},
        .c = op->dst,
        .c_store = op->store,
        .c_row = to * row,
        .c_column = row,
        .scale = 1.0f};
    if (op->dtype != TG_C64 || !cpu_spectral_fits(be, &product)) {
        return be->ref->spectral_contract(be, op);
    }
    cpu_spectral_multiply(be, &product);
    return TG_OK;
}
