/* The sparse branches: single entries, or the sub-tensor common to some slices of every mode. One
 * that comes second follows a low-rank branch, so that its mask is always NULL. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "project/branch.h"

#define SPARSE_KEYS "sparse_ratio sparse_type scale_by_mask_ratio"

static tg_status check_count(tg_context *ctx, const tg_branch *branch) {
    return branch->count <= UINT32_MAX
               ? TG_OK
               : tg_fail(ctx, TG_E_UNSUPPORTED,
                         "%ssparse_ratio: %lld kept entries, at most %lld are supported",
                         branch->key, (long long)branch->count, (long long)UINT32_MAX);
}

/* ---- single entries: k = max(1, ceil(ratio * entries)) of them ---- */

static tg_status unstructured_plan(tg_context *ctx, tg_branch *branch) {
    const int64_t numel = tg_shape_numel(&branch->shape);
    const double k = ceil(branch->config.sparse_ratio * (double)numel);
    branch->bitmap.n = numel;
    branch->count = k < (double)numel ? (k > 1.0 ? (int64_t)k : 1) : numel;
    return check_count(ctx, branch);
}

static tg_status unstructured_refresh(tg_branch *branch, const tg_refresh *call) {
    const tg_sparse_type type = branch->config.sparse_type;
    const tg_select op = {.kind = type == TG_SPARSE_RANDK         ? TG_SELECT_RANDOM
                                  : type == TG_SPARSE_PROBABILITY ? TG_SELECT_WEIGHTED
                                                                  : TG_SELECT_TOPK,
                          .bitmap = &branch->bitmap,
                          .k = branch->count,
                          .dtype = tg_stored(branch->dtype, call->store),
                          .x = call->x,
                          .rng = branch->rng};
    return branch->be->ops->select(branch->be, &op);
}

static tg_projector_bytes unstructured_scratch(const tg_branch *branch) {
    const tg_backend_ops *ops = branch->be->ops;
    if (branch->config.sparse_type == TG_SPARSE_RANDK || !ops->scratch_need) {
        return (tg_projector_bytes){0};
    }
    const tg_scratch_need borrowed = ops->scratch_need(branch->be, TG_SCRATCH_SELECT, branch->dtype,
                                                       branch->bitmap.n, branch->count);
    return (tg_projector_bytes){.borrowed = borrowed.place, .host_borrowed = borrowed.host};
}

const tg_branch_kind tg_branch_unstructured = {.is_sparse = true,
                                               .keys = SPARSE_KEYS,
                                               .plan = unstructured_plan,
                                               .scratch = unstructured_scratch,
                                               .refresh = unstructured_refresh};

/* ---- slices ----
 *
 * The kept set is stored as a bitmap like any other: in index order its entries are the sub-tensor
 * row by row, so gathering, masking and scattering need no special code. With e = ratio^(1 /
 * #dims of size != 1), mode d keeps min(d, max(1, int(e d + 1))) slices. */
static tg_status structured_plan(tg_context *ctx, tg_branch *branch) {
    const tg_shape *shape = &branch->shape;
    int wide_dims = 0;
    for (int d = 0; d < shape->ndim; d++) {
        wide_dims += shape->dim[d] != 1;
    }
    branch->bitmap.n = tg_shape_numel(shape);
    branch->count = 1;
    for (int d = 0; d < shape->ndim; d++) {
        const double e = wide_dims > 0 ? pow(branch->config.sparse_ratio, 1.0 / wide_dims) : 1.0;
        const int64_t kept = tg_min((int64_t)(e * (double)shape->dim[d] + 1.0), shape->dim[d]);
        branch->modes.rank[d] = kept; /* slices kept per mode */
        branch->count *= kept;
    }
    return check_count(ctx, branch);
}

/* Host scratch of a refresh: slice norms and one mask byte per slice, for all modes. */
typedef struct slices {
    double *norm[TG_MAX_NDIM];
    unsigned char *is_kept[TG_MAX_NDIM];
    uint64_t *words; /* the bitmap before it is uploaded */
} slices;

static slices lay_out(const tg_branch *branch, tg_scratch *scratch) {
    slices s = {0};
    for (int d = 0; d < branch->shape.ndim; d++) {
        s.norm[d] = tg_scratch_take(scratch, (size_t)branch->shape.dim[d] * sizeof(double));
        s.is_kept[d] = tg_scratch_take(scratch, (size_t)branch->shape.dim[d]);
    }
    s.words = tg_scratch_take(scratch, tg_bitmap_word_bytes(&branch->bitmap));
    return s;
}

static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static int64_t count_from(const double *key, int64_t dim, uint64_t bits) {
    int64_t count = 0;
    for (int64_t i = 0; i < dim; i++) {
        count += bits_of(key[i]) >= bits;
    }
    return count;
}

/* Marks the `kept` slices with the largest keys (ties: lowest index). Keys are not negative, so
 * their bits sort as they do; the smallest kept key is found bit by bit. */
static void keep_largest(const double *key, int64_t dim, int64_t kept, unsigned char *is_kept) {
    uint64_t least = 0;
    for (uint64_t bit = 1ull << 62; bit > 0; bit >>= 1) {
        least |= count_from(key, dim, least | bit) >= kept ? bit : 0;
    }
    int64_t equal = kept - count_from(key, dim, least + 1);
    for (int64_t i = 0; i < dim; i++) {
        const uint64_t bits = bits_of(key[i]);
        is_kept[i] = bits > least || (bits == least && equal-- > 0);
    }
}

/* Slices of one mode. probability: weights are the slice norms, drawn as in select_weighted by the
 * largest norm / exponential; every mode has its own range of the stream. */
static tg_status choose_slices(tg_branch *branch, int d, int64_t left, const tg_refresh *call,
                               slices *s) {
    const int64_t dim = branch->shape.dim[d], kept = branch->modes.rank[d];
    const uint64_t first = (uint64_t)d << 40;
    double *key = s->norm[d];
    if (branch->config.sparse_type == TG_SPARSE_RANDK) {
        for (int64_t i = 0; i < dim; i++) {
            key[i] = tg_rng_uniform(&branch->rng, first + (uint64_t)i);
        }
    } else {
        TG_CALL(branch->be->ops->slice_norms(branch->be, tg_stored(branch->dtype, call->store),
                                             left, dim, branch->bitmap.n / left / dim, call->x,
                                             key));
    }
    for (int64_t i = 0; branch->config.sparse_type == TG_SPARSE_PROBABILITY && i < dim; i++) {
        key[i] = sqrt(key[i]) / tg_rng_exponential(&branch->rng, first + (uint64_t)i);
    }
    keep_largest(key, dim, kept, s->is_kept[d]);
    return TG_OK;
}

/* Sets the bit of every entry whose slices are all kept. */
static void fill_words(const tg_branch *branch, slices *s) {
    const tg_shape *shape = &branch->shape;
    int64_t index[TG_MAX_NDIM] = {0};
    memset(s->words, 0, tg_bitmap_word_bytes(&branch->bitmap));
    const int last = shape->ndim - 1;
    for (int64_t row = 0; row < branch->bitmap.n; row += shape->dim[last]) {
        bool is_kept = true;
        for (int d = 0; d < last; d++) {
            is_kept = is_kept && s->is_kept[d][index[d]];
        }
        for (int64_t i = 0; is_kept && i < shape->dim[last]; i++) {
            if (s->is_kept[last][i]) {
                s->words[(row + i) / 64] |= 1ull << ((row + i) % 64);
            }
        }
        for (int d = last - 1; d >= 0 && ++index[d] == shape->dim[d]; d--) {
            index[d] = 0;
        }
    }
}

static tg_projector_bytes structured_scratch(const tg_branch *branch) {
    tg_scratch scratch = {0};
    lay_out(branch, &scratch);
    return (tg_projector_bytes){.host_workspace = scratch.used};
}

static tg_status structured_refresh(tg_branch *branch, const tg_refresh *call) {
    slices s = lay_out(branch, &(tg_scratch){.block = call->host_scratch});
    int64_t left = 1;
    for (int d = 0; d < branch->shape.ndim; d++) {
        TG_CALL(choose_slices(branch, d, left, call, &s));
        left *= branch->shape.dim[d];
    }
    fill_words(branch, &s);
    return tg_bitmap_set_words(branch->be, &branch->bitmap, s.words);
}

const tg_branch_kind tg_branch_structured = {.is_sparse = true,
                                             .keys = SPARSE_KEYS,
                                             .plan = structured_plan,
                                             .scratch = structured_scratch,
                                             .refresh = structured_refresh};
