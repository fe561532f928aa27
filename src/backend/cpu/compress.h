/* Internals of the compressed-gradient slots of the cpu backend.
 *
 * The tuned dtypes are f32 and c64. Both are treated as arrays of floats with `width` (1 or 2)
 * floats per element; sizes, strides and positions count elements unless stated otherwise. */
#ifndef TG_BACKEND_CPU_COMPRESS_H
#define TG_BACKEND_CPU_COMPRESS_H

#include "backend/cpu/cpu.h"

/* ---- Kernels (compress_kernels.inc) ---- */

/* C = alpha A B + beta C for the products of a tensor with a small factor, and for others with a
 * short inner dimension (gemm.c, fft.c): no operand is packed, so small products run at the speed
 * of large ones. beta = 0 never reads C. */
typedef struct cpu_product {
    int64_t m, n, k;
    const float *a; /* (m, k): element (i, p) at i * row_a + p * col_a */
    int64_t row_a, col_a;
    const float *b; /* (k, n), rows ldb apart */
    int64_t ldb;
    float *c; /* (m, n), rows ldc apart */
    int64_t ldc;
    float alpha, beta;
    bool conj_a, conj_b; /* c64; at most one of them */
} cpu_product;

/* out[i, j] = scale sum_b conj(x[b * step_x + i * row_x + j]) dy[b * step_dy + j], j = 0..n-1: a
 * run of a factored gradient along the frequencies, for some channels i of x at once. */
typedef struct cpu_stretch {
    int64_t n, batch;
    int rows; /* of out, row_out apart */
    tg_storage store;
    const void *x, *dy;
    int64_t step_x, step_dy, row_x;
    float scale;
    float *out;
    int64_t row_out;
} cpu_stretch;

/* A kept entry of a factored gradient. */
typedef struct cpu_kept {
    int64_t value; /* its index among the values */
    int32_t channel, row;
    float g[2]; /* the entry; f32: the first of them */
} cpu_kept;

/* Entries g = sum_b x[row, channel, b] dy[row, b], and their subtraction from projected rows:
 * out[row, :] -= g conj(u[channel, :]). */
typedef struct cpu_kept_list {
    int64_t count;
    cpu_kept *entries;
    int64_t channels, batch, rank;
    const float *x;  /* (row, channels, batch) */
    const float *dy; /* (row, batch) */
    const float *u;  /* (channels, rank) */
    float *out;      /* (row, rank); NULL: no subtraction */
} cpu_kept_list;

typedef struct cpu_compress_kernels {
    /* of c64 if `complex`, else f32, like all of these */
    void (*product)(bool complex, const cpu_product *product);
    /* out[j, i] = x[i, j] for x (rows, columns); rows are ld_x and ld_out apart */
    void (*transpose)(int64_t rows, int64_t columns, const float *x, int64_t ld_x, float *out,
                      int64_t ld_out);
    void (*stretch)(bool complex, const cpu_stretch *stretch);
    /* value += alpha sum_j a[j] b[j], not conjugated; n elements */
    void (*dot)(bool complex, int64_t n, const float *a, const float *b, float alpha, float *value);
    void (*kept)(bool complex, const cpu_kept_list *list);
} cpu_compress_kernels;

/* Empty if the build lacks these instructions. AVX2 and AVX-512 give the same bits. */
extern const cpu_compress_kernels cpu_compress_plain, cpu_compress_avx2, cpu_compress_avx512;

/* Terms of a sum before C is touched again, so that a tile of B stays in the first cache. */
enum { CPU_PRODUCT_DEPTH = 256 };

/* Floats of a panel, the piece of a tensor worked on at a time: part of the second cache. */
enum { CPU_PANEL = 1 << 15 };

/* Slices of the first mode that a thread contracts together when they are formed from factors, so
 * that dy is read once for both. */
enum { CPU_SLICES = 2 };

/* The same for a transposed tensor, so that its inputs are read from memory less often, and the
 * floats of its panel, which has whole rows. */
enum { CPU_TRANSPOSED_SLICES = 8, CPU_TRANSPOSED_PANEL = 1 << 16 };

/* Frequencies whose kept entries are listed at a time (compress_transposed.c). */
enum { CPU_LISTED = 64 };

/* Sizes of the last product there: maximum rows of a tile, minimum rows of a piece, and numbers of
 * each core row per tile. */
enum { CPU_TILE_ROWS = 40, CPU_TILE_PIECE = 12, CPU_TILE_RUN = 8 };

/* ---- The plan of a call (compress_plan.c) ---- */

/* One mode, after modes of size 1 are dropped and neighbours without a factor are merged. */
typedef struct cpu_mode {
    int64_t dim, rank;
    const float *factor; /* (dim, rank); NULL: identity */
    int64_t step;        /* product of the later dims */
    int64_t block;       /* product of the later ranks */
    int64_t buffer;      /* per thread: offset of (slices, dim, block) in its scratch, in floats */
} cpu_mode;

typedef struct cpu_plan {
    const cpu_compress_kernels *kernels;
    int width; /* floats per element */
    int threads;
    int slices; /* contracted together */
    int64_t numel;
    int ndim; /* 1: no factor at all; a vector with a factor is (n, 1) */
    cpu_mode mode[TG_MAX_NDIM + 1];
    int64_t panel_rows;    /* rows of a panel (rows, up to DEPTH of the last mode) */
    int64_t panel_columns; /* columns of a panel (up to DEPTH of a mode, columns) */
    int64_t piece; /* slices per step; depends only on the shape, since it affects the bits */
    /* Offsets in the workspace, in floats. */
    int64_t transposed;   /* (rank, dim) of the last factor */
    int64_t middle;       /* (dim, block) of mode 0: all modes contracted but this one */
    int64_t scratch;      /* first thread's: a panel, then the buffers of the modes */
    int64_t scratch_size; /* of each thread */
    int64_t size;         /* of the whole workspace */
    /* Only for a transposed tensor (compress_transposed.c): */
    int64_t samples;   /* maximum number */
    int64_t projected; /* (frequency, sample, rank 0) */
    int64_t x;         /* (frequency, dim 0, sample), conjugated */
    int64_t dy;        /* of a thread: (slices, frequencies of a panel, sample) */
    int64_t kept;      /* of a thread: (CPU_LISTED, dim 0) of cpu_kept */
} cpu_plan;

bool cpu_compress_tuned(tg_dtype dtype);
cpu_plan cpu_compress_plan(tg_backend *be, const tg_multimode *modes, bool factored);
/* The plan of the transposed tensor; false if these modes have none. */
bool cpu_transposed_plan(tg_backend *be, const tg_multimode *modes, cpu_plan *out);
/* Multiplications of all products along the modes. */
double cpu_plan_cost(const cpu_plan *plan);

/* Whether the sums over all modes but the first are stored in `middle`. */
static inline bool cpu_plan_has_middle(const cpu_plan *plan) {
    return plan->mode[0].factor && (plan->ndim > 2 || plan->mode[1].factor);
}

static inline int64_t cpu_plan_pieces(const cpu_plan *plan) {
    return (plan->mode[0].dim + plan->piece - 1) / plan->piece;
}

/* The slices of a piece. */
static inline tg_range cpu_plan_piece(const cpu_plan *plan, int64_t i) {
    const int64_t end = (i + 1) * plan->piece;
    return (tg_range){i * plan->piece, end < plan->mode[0].dim ? end : plan->mode[0].dim};
}

static inline void cpu_plan_product(const cpu_plan *plan, const cpu_product *product) {
    plan->kernels->product(plan->width == 2, product);
}

/* ---- Bits of an index set, in order (compress_source.c) ---- */

typedef struct cpu_bits {
    const uint64_t *words;
    int64_t word, last_word;
    uint64_t rest, last_mask;
} cpu_bits;

static inline cpu_bits cpu_bits_begin(const tg_bitmap *bitmap, int64_t first, int64_t count) {
    const int64_t last = first + count - 1;
    cpu_bits bits = {.words = bitmap->words,
                     .word = first / 64,
                     .last_word = last / 64,
                     .last_mask = ~UINT64_C(0) >> (63 - last % 64)};
    bits.rest = bits.words[bits.word] & ~UINT64_C(0) << first % 64;
    bits.rest &= bits.word == bits.last_word ? bits.last_mask : ~UINT64_C(0);
    return bits;
}

/* The next entry of the range that is kept, or -1. */
static inline int64_t cpu_bits_next(cpu_bits *bits) {
    while (bits->rest == 0) {
        if (bits->word == bits->last_word) {
            return -1;
        }
        bits->rest = bits->words[++bits->word];
        bits->rest &= bits->word == bits->last_word ? bits->last_mask : ~UINT64_C(0);
    }
    const int64_t entry = bits->word * 64 + __builtin_ctzll(bits->rest);
    bits->rest &= bits->rest - 1;
    return entry;
}

/* How many entries before `entry` are kept. */
int64_t cpu_bits_rank(const tg_bitmap *bitmap, int64_t entry);

/* ---- Reading a gradient (compress_source.c) ---- */

typedef struct cpu_source {
    const cpu_plan *plan;
    const cpu_kernels *convert; /* from 16 bits */
    const tg_compress *op;
    float *scratch; /* of the thread, for the transposed tensor; else NULL */
} cpu_source;

/* Rows of elements, `ld` apart. */
typedef struct cpu_view {
    const float *data;
    int64_t ld;
} cpu_view;

/* The block (rows, columns) of G whose first entry is `first` and whose rows are `step` apart, in
 * place or in `panel` (slices, rows * columns), and those of the next slices of the first mode
 * (factored gradients only). Their kept entries go to op->values, and are 0 in the view if
 * op->masked. */
cpu_view cpu_source_block(const cpu_source *source, int64_t first, int64_t rows, int64_t step,
                          int64_t columns, int slices, float *panel);

/* value = beta value + scale g */
static inline void cpu_blend(const tg_compress *op, int width, const float *g, float *value) {
    const float scale = (float)op->scale, beta = (float)op->beta;
    for (int c = 0; c < width; c++) {
        value[c] = scale * g[c] + (beta == 0.0f ? 0.0f : beta * value[c]);
    }
}

/* ---- Factored gradients, first mode first (compress_transposed.c) ---- */

/* Whether a call can use the transposed tensor and is cheaper than with `plan`. */
bool cpu_transposed_pays(const tg_compress *op, const cpu_plan *plan, const cpu_plan *transposed);
/* A thread's part of preparing the factors; all threads must finish before the next call. */
void cpu_transposed_prepare(const cpu_source *source, int part, int parts);
/* Entries [first, first + count) of the transposed tensor, whole rows, in `panel`, and those of the
 * next slices in the following rows. Their kept entries of G go to op->values. */
void cpu_transposed_run(const cpu_source *source, int64_t first, int64_t count, int slices,
                        float *panel, int64_t row_panel);
/* A thread's part of the last product, from `middle` to the core. */
void cpu_transposed_finish(const cpu_source *source, int part, int parts);

/* Bytes of the workspace of calls of a tuned dtype. */
size_t cpu_compress_workspace(tg_backend *be, const tg_multimode *modes, bool factored);

#endif
