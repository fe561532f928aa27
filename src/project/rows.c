/* Projectors of the ranks that share a tensor: each has some of its rows in one dimension.
 *
 * Factors, index set and compressed values are those of the whole tensor. Of its rows a rank
 * computes
 *
 *     core = G x_d U_d[rows]^H x_k U_k^H ..      its share of a sum over the ranks
 *     kept values in these rows                  of the others: 0
 *
 * and expands core and kept values into its rows. Compressed values that only these rows determine
 * (`own`) are computed side by side, then scattered among all values, or gathered from them: an
 * expand or compress without a core. Values of a core are `own` where GaLore's matrix has no factor
 * on the side with the rows. */
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "project/projector.h"

/* The rows in a mode of the map, which may have several dimensions of the tensor (GaLore): the mode
 * is (outer, rows of the whole, inner). */
typedef struct row_mode {
    int mode;
    int64_t outer, inner;
} row_mode;

static row_mode find_mode(const tg_projector *p) {
    const int64_t *dim = p->shape.dim;
    const int d = p->view.rows.dim, rollup = p->low_rank ? p->low_rank->config.first_dim_rollup : 0;
    if (!p->low_rank || p->low_rank->kind != &tg_branch_matrix) {
        return (row_mode){d, 1, 1};
    }
    return d < rollup ? (row_mode){0, tg_product(d, dim), tg_product(rollup - d - 1, dim + d + 1)}
                      : (row_mode){1, tg_product(d - rollup, dim + rollup),
                                   tg_product(p->shape.ndim - d - 1, dim + d + 1)};
}

/* `own` values of the core: `outer` runs of (rows of the whole, inner); 0: all values. */
static int64_t core_runs(const tg_projector *p, int64_t *inner) {
    const tg_multimode *modes = &p->modes;
    const row_mode at = find_mode(p);
    *inner = at.inner * tg_product(modes->ndim - at.mode - 1, modes->rank + at.mode + 1);
    return modes->factor[at.mode] ? 0 : tg_product(at.mode, modes->rank) * at.outer;
}

static int64_t own_core(const tg_projector *p) {
    int64_t inner = 0;
    const int64_t runs = p->low_rank ? core_runs(p, &inner) : 0;
    return runs > 0 ? runs * p->view.rows.count * inner : p->low_rank ? p->low_rank->count : 0;
}

/* Whether only some of the compressed values are `own`. */
static bool is_partial(const tg_projector *p) {
    return p->sparse || own_core(p) < p->low_rank->count;
}

/* The compressed values as an array of one dimension. */
static tg_multimode line_of(const tg_projector *p) {
    const int64_t count = tg_projector_count(p);
    return (tg_multimode){.dtype = p->dtype, .ndim = 1, .dim = {count}, .rank = {count}};
}

/* Words of the whole index set, of `kept` and of `own`, on the host. */
typedef struct row_words {
    uint64_t *whole, *kept, *own;
} row_words;

static row_words lay_out(const tg_projector *p, tg_scratch *scratch) {
    row_words words = {0};
    words.whole =
        tg_scratch_take(scratch, p->sparse ? tg_bitmap_word_bytes(&p->sparse->bitmap) : 0);
    words.kept = tg_scratch_take(scratch, tg_bitmap_word_bytes(&p->view.kept));
    words.own = tg_scratch_take(scratch, tg_bitmap_word_bytes(&p->view.own));
    return words;
}

/* Bytes of the workspace of a step, with the rank's own values at its end, and on the host. */
static void measure(tg_projector *p) {
    tg_row_view *view = &p->view;
    const tg_multimode line = line_of(p);
    const size_t kept = p->sparse ? (size_t)tg_min(p->sparse->count, view->kept.n) : 0;
    tg_scratch host = {0};
    size_t step = tg_workspace_bytes(
        p->be, (tg_query){.compress = &view->modes, .factored = p->takes_factored});
    if (view->own.n > 0) {
        step = tg_max_size(step, tg_workspace_bytes(p->be, (tg_query){.compress = &line}));
        step = tg_projector_samples(p)
                   ? tg_max_size(step, tg_workspace_bytes(p->be, (tg_query){.compress = &p->modes}))
                   : step;
        view->offset = tg_align(step);
        step = view->offset + ((size_t)own_core(p) + kept) * tg_dtype_size(p->dtype);
        lay_out(p, &host);
    }
    view->step_bytes = step;
    view->host_bytes = host.used;
}

void tg_rows_plan(tg_projector *p) {
    tg_row_view *view = &p->view;
    const row_mode at = find_mode(p);
    view->modes = p->modes;
    view->shape = p->shape;
    view->shape.dim[view->rows.dim] = view->rows.count;
    view->modes.dim[at.mode] = at.outer * view->rows.count * at.inner;
    if (!p->modes.factor[at.mode]) {
        view->modes.rank[at.mode] = view->modes.dim[at.mode];
    }
    view->factor_mode = p->modes.factor[at.mode] ? at.mode : -1;
    view->kept.n = p->sparse ? tg_shape_numel(&view->shape) : 0;
    view->own.n = is_partial(p) ? tg_projector_count(p) : 0;
    measure(p);
}

/* ---- after a refresh ---- */

/* Bits at .. at + n - 1, n <= 64. */
static uint64_t bits_at(const uint64_t *words, int64_t at, int64_t n) {
    const int64_t shift = at % 64;
    uint64_t bits = words[at / 64] >> shift;
    bits |= shift + n > 64 ? words[at / 64 + 1] << (64 - shift) : 0;
    return n < 64 ? bits & ((1ull << n) - 1) : bits;
}

/* Counts n bits of `from`, and copies them to the cleared bits of `to` from to_at on, if given. */
static int64_t copy_bits(const uint64_t *from, int64_t at, int64_t n, uint64_t *to, int64_t to_at) {
    int64_t count = 0;
    for (int64_t i = 0, step = 0; i < n; i += step) {
        step = tg_min(n - i, 64 - (to_at + i) % 64);
        const uint64_t bits = bits_at(from, at + i, step);
        count += __builtin_popcountll(bits);
        if (to) {
            to[(to_at + i) / 64] |= bits << ((to_at + i) % 64);
        }
    }
    return count;
}

static void set_bits(uint64_t *words, int64_t at, int64_t n) {
    for (int64_t i = at; i < at + n; i++) {
        words[i / 64] |= 1ull << (i % 64);
    }
}

/* The kept entries in the rows, and their places among the compressed values, of which those of
 * the sparse branch begin at `first`. */
static void mark_kept(const tg_projector *p, const row_words *words, int64_t first) {
    const tg_rows *rows = &p->view.rows;
    const int64_t *dim = p->shape.dim;
    const int64_t outer = tg_product(rows->dim, dim), whole = dim[rows->dim],
                  inner = tg_product(p->shape.ndim - rows->dim - 1, dim + rows->dim + 1);
    const int64_t before = rows->first * inner, n = rows->count * inner;
    for (int64_t i = 0; i < outer; i++) {
        const int64_t at = i * whole * inner;
        first += copy_bits(words->whole, at, before, NULL, 0);
        const int64_t own = copy_bits(words->whole, at + before, n, words->kept, i * n);
        set_bits(words->own, first, own);
        first +=
            own + copy_bits(words->whole, at + before + n, whole * inner - before - n, NULL, 0);
    }
}

static void mark_core(const tg_projector *p, uint64_t *own, int64_t first) {
    const tg_rows *rows = &p->view.rows;
    int64_t inner = 0;
    const int64_t runs = core_runs(p, &inner);
    if (runs == 0) {
        set_bits(own, first, p->low_rank->count);
    }
    for (int64_t i = 0; i < runs; i++) {
        set_bits(own, first + (i * p->shape.dim[rows->dim] + rows->first) * inner,
                 rows->count * inner);
    }
}

static tg_status take_index_set(tg_projector *p) {
    tg_row_view *view = &p->view;
    const row_words words = lay_out(p, &(tg_scratch){.block = p->workspace->host});
    const int64_t second = p->branch[0].count;
    memset(words.kept, 0, tg_bitmap_word_bytes(&view->kept));
    memset(words.own, 0, tg_bitmap_word_bytes(&view->own));
    if (p->sparse) {
        const tg_bitmap *whole = &p->sparse->bitmap;
        TG_CALL(
            p->be->ops->download(p->be, words.whole, whole->words, tg_bitmap_word_bytes(whole)));
        mark_kept(p, &words, p->sparse == &p->branch[0] ? 0 : second);
    }
    if (p->low_rank) {
        mark_core(p, words.own, p->low_rank == &p->branch[0] ? 0 : second);
    }
    TG_CALL(p->sparse ? tg_bitmap_set_words(p->be, &view->kept, words.kept) : TG_OK);
    return tg_bitmap_set_words(p->be, &view->own, words.own);
}

tg_status tg_rows_take(tg_projector *p) {
    tg_row_view *view = &p->view;
    const row_mode at = find_mode(p);
    const int64_t inner = at.inner * p->modes.rank[at.mode], size = view->rows.count * inner;
    const tg_box copy = {.dtype = p->dtype,
                         .ndim = 1,
                         .howmany = at.outer,
                         .size = {size},
                         .src_dim = {p->shape.dim[view->rows.dim] * inner},
                         .src_at = {view->rows.first * inner},
                         .dst_dim = {size},
                         .src = p->modes.factor[at.mode],
                         .dst = view->factor};
    TG_CALL(view->factor ? p->be->ops->box_copy(p->be, &copy) : TG_OK);
    return view->own.n > 0 ? take_index_set(p) : TG_OK;
}

/* ---- steps ---- */

int64_t tg_rows_first_count(const tg_projector *p) {
    return p->branch == p->sparse ? p->view.kept.count : own_core(p);
}

void *tg_rows_own(const tg_projector *p) {
    return p->view.own.n > 0 ? (char *)p->workspace->memory + p->view.offset : NULL;
}

tg_status tg_rows_scatter(tg_projector *p, double beta, void *small) {
    const tg_expand op = {.modes = line_of(p),
                          .bitmap = &p->view.own,
                          .values = tg_rows_own(p),
                          .lambda = 1.0,
                          .alpha = 1.0,
                          .beta = beta,
                          .out = small,
                          .workspace = p->workspace->memory};
    return p->be->ops->expand(p->be, &op);
}

tg_status tg_rows_gather(tg_projector *p, const void *small) {
    const tg_compress op = {.modes = line_of(p),
                            .source = {.dense = small},
                            .bitmap = &p->view.own,
                            .scale = 1.0,
                            .values = tg_rows_own(p),
                            .workspace = p->workspace->memory};
    return p->be->ops->compress(p->be, &op);
}
