/* Owners of moments; updates that the owner begins and every rank ends; pieces of tensors whose
 * rows are spread over ranks, and their moments in files. */
#include "optim/ranks.h"

#include <math.h>
#include <string.h>

#include "backend/tensor.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "optim/step.h"

/* ---- owners ---- */

/* A group of ranks has all parts of each tensor: the ranks g parts .. g parts + parts - 1. */
static int group_count(const tg_optim *optim) {
    return optim->shard_ranks / optim->parts;
}

/* Bytes of moments that one rank holds for all; 0: every rank has its own. Of a dense block, which
 * one rank of each group has, the mean over its tensor, the same on every rank. */
static size_t weigh(const tg_optim *optim, const tg_slot *slot) {
    const size_t dense = (size_t)tg_shape_numel(&slot->whole) * tg_dtype_size(slot->dtype);
    if (!slot->projector && dense <= TG_SMALL_PARAM) {
        return 0;
    }
    if (!tg_slot_is_dense_block(slot)) {
        return tg_moments_bytes(&slot->moments);
    }
    const tg_moments whole =
        tg_moments_plan_dense(&optim->groups[slot->group], slot->dtype, &slot->whole, &slot->whole);
    return group_count(optim) > 1 ? tg_moments_bytes(&whole) / (size_t)optim->parts + 1 : 0;
}

/* The first of `count` neighbours in a row whose largest load is least. */
static int lightest(const size_t *load, int ranks, int count) {
    int best = 0;
    size_t least = SIZE_MAX;
    for (int first = 0; first < ranks; first += count) {
        size_t most = 0;
        for (int i = first; i < first + count; i++) {
            most = tg_max_size(load[i], most);
        }
        best = most < least ? first : best;
        least = most < least ? most : least;
    }
    return best;
}

/* Largest first, each to the rank, or a dense block to the group, with the least so far. */
static void spread(tg_optim *optim, size_t *load) {
    for (;;) {
        tg_slot *next = NULL;
        size_t bytes = 0;
        for (int i = 0; i < optim->slot_count; i++) {
            tg_slot *slot = &optim->slots[i];
            const size_t own = slot->owner == TG_ON_ALL ? weigh(optim, slot) : 0;
            next = own > bytes ? slot : next;
            bytes = tg_max_size(own, bytes);
        }
        if (!next) {
            return;
        }
        const int count = tg_slot_is_dense_block(next) ? optim->parts : 1;
        const int first = lightest(load, optim->shard_ranks, count);
        next->owner = first / count;
        for (int i = first; i < first + count; i++) {
            load[i] += bytes;
        }
    }
}

static int swap(int number, int other) {
    return number == other ? 0 : number == 0 ? other : number;
}

/* Swaps group and part of rank 0, whose memory is planned, with those of the rank with the most. */
static void put_most_first(tg_optim *optim, const size_t *load) {
    const int parts = optim->parts;
    int most = 0;
    for (int i = 1; i < optim->shard_ranks; i++) {
        most = load[i] > load[most] ? i : most;
    }
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        const int rank = slot->owner;
        if (rank != TG_ON_ALL) {
            slot->owner = tg_slot_is_dense_block(slot) ? swap(rank, most / parts)
                                                       : swap(rank / parts, most / parts) * parts +
                                                             swap(rank % parts, most % parts);
            slot->is_elsewhere =
                slot->owner !=
                (tg_slot_is_dense_block(slot) ? optim->shard_rank / parts : optim->shard_rank);
        }
    }
}

tg_status tg_shard_assign(tg_optim *optim) {
    size_t *load = NULL;
    for (int i = 0; i < optim->slot_count; i++) {
        optim->slots[i].owner = TG_ON_ALL;
    }
    if (optim->shard_ranks > 1) {
        TG_CALL(TG_NEW(optim->ctx, TG_MEM_OTHER, load, optim->shard_ranks));
        spread(optim, load);
        put_most_first(optim, load);
        tg_mem_free(optim->ctx, load);
    }
    return TG_OK;
}

/* ---- sums ---- */

tg_status tg_sum_measure(tg_optim *optim, int param, bool clips, tg_sum_facts *out) {
    tg_slot *slot = &optim->slots[param];
    int64_t nonfinite = 0;
    tg_norms norms = {0};
    TG_CALL(tg_sum_read_count(optim, slot, &nonfinite));
    TG_CALL(clips ? tg_sum_norms(optim, slot, &norms) : TG_OK);
    *out = (tg_sum_facts){(double)nonfinite, norms.sum_squares};
    return TG_OK;
}

tg_status tg_sum_learn(tg_optim *optim, int param, const tg_sum_facts *facts) {
    tg_slot *slot = &optim->slots[param];
    uint32_t *guard = NULL;
    TG_CALL(tg_update_begin(optim, slot, &guard));
    /* the facts include what was counted here: the guard lets the update pass */
    TG_CALL(optim->be->ops->fill(optim->be, TG_F32, 1, (tg_scalar){0}, guard));
    slot->is_handed_out = false; /* decided */
    slot->nonfinite = (int64_t)facts->nonfinite;
    slot->squares = facts->squares;
    return TG_OK;
}

/* ---- updates ---- */

tg_status tg_sum_begin_update(tg_optim *optim, int param, const tg_tensor *weight, bool *is_made,
                              tg_tensor *update) {
    tg_slot *slot = &optim->slots[param];
    const tg_shape values = {1, {slot->count}};
    *is_made = slot->nonfinite == 0;
    if (!*is_made) {
        const int64_t nonfinite = slot->nonfinite;
        tg_sum_end(optim, slot);
        return tg_slot_refused(optim, slot, nonfinite);
    }
    TG_CALL(tg_slot_check_weight(optim, slot, weight));
    if (!slot->is_elsewhere) {
        const tg_update call = {.values = slot->sum, .weight = weight->data};
        TG_CALL(tg_slot_run_rule(optim, slot, &call));
    }
    *update =
        slot->projector ? tg_backend_view(optim->be, slot->dtype, &values, optim->small) : *weight;
    return TG_OK;
}

tg_status tg_sum_end_update(tg_optim *optim, int param, const tg_tensor *weight) {
    tg_slot *slot = &optim->slots[param];
    const tg_update call = {.weight = weight->data};
    TG_CALL(slot->projector ? tg_slot_expand_update(optim, slot, &call) : TG_OK);
    tg_update_end(optim, slot);
    tg_sum_end(optim, slot);
    return TG_OK;
}

/* ---- one rank refreshes a projection for all ---- */

bool tg_sum_is_to_refresh(const tg_optim *optim, int param) {
    const tg_slot *slot = &optim->slots[param];
    return slot->is_summing && slot->dense_sum;
}

/* From now on the sum is the compressed one. */
static void drop_dense(tg_optim *optim, tg_slot *slot) {
    tg_sum_release_dense(optim, slot);
    slot->nonfinite = 0;
    slot->is_handed_out = true; /* its present values decide, not the local gradients */
}

tg_status tg_sum_refresh(tg_optim *optim, int param, tg_refresh_news *news) {
    tg_slot *slot = &optim->slots[param];
    tg_projector *p = slot->projector;
    *news = (tg_refresh_news){0};
    TG_CALL(tg_sum_read_count(optim, slot, &news->nonfinite));
    slot->is_handed_out = true;
    if (news->nonfinite > 0) {
        return TG_OK;
    }
    const tg_gradient whole = {.param = param,
                               .dtype = slot->dtype,
                               .shape = p->shape,
                               .dense = slot->whole_sum ? slot->whole_sum : slot->dense_sum,
                               .place = optim->be->ops->place};
    TG_CALL(tg_slot_refresh_and_project(optim, slot, &whole, slot->sum));
    *news = (tg_refresh_news){.error = slot->error};
    tg_projector_get_counters(p, news->counters);
    drop_dense(optim, slot);
    return TG_OK;
}

tg_status tg_sum_begin_refreshed(tg_optim *optim, int param, const tg_refresh_news *news) {
    tg_slot *slot = &optim->slots[param];
    const tg_backend_ops *ops = optim->be->ops;
    if (news->nonfinite > 0) {
        const tg_tensor sum = tg_sum_get(optim, param);
        const int64_t numel = tg_tensor_numel(&sum);
        const tg_scalar nan = {(double)NAN, (double)NAN};
        TG_CALL(ops->fill(optim->be, slot->dtype, numel, (tg_scalar){0}, sum.data));
        return ops->fill(optim->be, slot->dtype, tg_min(news->nonfinite, numel), nan, sum.data);
    }
    drop_dense(optim, slot);
    tg_projector_set_counters(slot->projector, news->counters);
    slot->error = news->error;
    return tg_slot_is_refreshed(optim, slot);
}

int tg_sum_list_refreshed(const tg_optim *optim, int param, tg_tensor parts[TG_REFRESHED_PARTS]) {
    const tg_slot *slot = &optim->slots[param];
    int count = 0;
    for (int b = 0; b < slot->projector->branches; b++) {
        const tg_branch *branch = &slot->projector->branch[b];
        for (int d = 0; d < TG_MAX_NDIM; d++) {
            const tg_shape shape = {2, {branch->modes.dim[d], branch->modes.rank[d]}};
            if (branch->factor[d]) {
                parts[count++] = tg_backend_view(optim->be, slot->dtype, &shape, branch->factor[d]);
            }
        }
        if (branch->kind->is_sparse) {
            const tg_shape words = {1, {tg_bitmap_words(branch->bitmap.n)}};
            parts[count++] = tg_backend_view(optim->be, TG_U64, &words, branch->bitmap.words);
        }
    }
    const tg_shape values = {1, {slot->count}};
    parts[count++] = tg_backend_view(optim->be, slot->dtype, &values, slot->sum);
    return count;
}

tg_status tg_sum_end_refreshed(tg_optim *optim, int param) {
    return tg_projector_complete(optim->slots[param].projector);
}

tg_status tg_sum_add_nothing(tg_optim *optim, int param) {
    tg_slot *slot = &optim->slots[param];
    const tg_backend_ops *ops = optim->be->ops;
    uint32_t *guard = NULL;
    if (slot->is_summing) {
        return TG_OK;
    }
    TG_CALL(tg_update_begin(optim, slot, &guard));
    TG_CALL(tg_sum_begin(optim, slot));
    TG_CALL(slot->dense_sum
                ? ops->fill(optim->be, slot->dtype, slot->numel, (tg_scalar){0}, slot->dense_sum)
                : ops->fill(optim->be, slot->dtype, slot->count, (tg_scalar){0}, slot->sum));
    slot->is_summing = true;
    return TG_OK;
}

/* ---- blocks ---- */

enum { PIECE = 1 << 22 }; /* bytes; at least one of `outer` */

/* Rows of a block with `count` elements of `size` bytes, `unit` of them for each entry. */
static tg_block_rows lay_out_rows(const tg_shape *shape, const tg_optim_block *block, int64_t count,
                                  int64_t unit, size_t size) {
    const int after = shape->ndim - block->dim - 1;
    tg_block_rows rows = {.whole = block->whole,
                          .first = block->first,
                          .rows = shape->dim[block->dim],
                          .inner = unit * tg_product(after, shape->dim + block->dim + 1)};
    rows.outer = count / rows.rows / rows.inner;
    rows.step = tg_min(rows.outer, tg_max(PIECE / (rows.whole * rows.inner * (int64_t)size), 1));
    return rows;
}

/* the sum of a projected block */

static tg_block_rows rows_of_sum(const tg_slot *slot) {
    return lay_out_rows(&slot->shape, &slot->block, slot->numel, 1, tg_dtype_size(slot->dtype));
}

static bool is_projected_block(const tg_slot *slot) {
    return slot->projector && slot->block.whole > 0;
}

size_t tg_sum_piece_bytes(const tg_slot *slot) {
    if (!is_projected_block(slot)) {
        return 0;
    }
    const tg_block_rows rows = rows_of_sum(slot);
    return (size_t)(rows.step * rows.whole * rows.inner) * tg_dtype_size(slot->dtype);
}

size_t tg_sum_whole_bytes(const tg_slot *slot) {
    return is_projected_block(slot) ? (size_t)slot->projector->numel * tg_dtype_size(slot->dtype)
                                    : 0;
}

int64_t tg_sum_pieces(const tg_optim *optim, int param) {
    const tg_slot *slot = &optim->slots[param];
    if (slot->block.whole == 0) {
        return 0;
    }
    const tg_block_rows rows = rows_of_sum(slot);
    return (rows.outer + rows.step - 1) / rows.step;
}

tg_status tg_sum_get_piece(tg_optim *optim, int param, int64_t number, bool is_owner,
                           tg_tensor *out) {
    tg_slot *slot = &optim->slots[param];
    const tg_block_rows rows = rows_of_sum(slot);
    const size_t size = tg_dtype_size(slot->dtype);
    const int64_t outer = number * rows.step, count = tg_min(rows.step, rows.outer - outer);
    const int64_t own = rows.rows * rows.inner, whole = rows.whole * rows.inner;
    TG_CALL(optim->shares_workspace ? tg_optim_use_shared(optim, false) : TG_OK);
    if (is_owner && !slot->whole_sum) {
        TG_CALL(TG_BACKEND_ALLOC(optim->be, TG_MEM_GRADIENTS, slot->whole_sum,
                                 (size_t)(rows.outer * whole) * size));
    }
    char *to = is_owner ? (char *)slot->whole_sum + (size_t)(outer * whole) * size
                        : optim->workspace.memory;
    const tg_box copy = {.dtype = slot->dtype,
                         .ndim = 1,
                         .howmany = count,
                         .size = {own},
                         .src_dim = {own},
                         .dst_dim = {whole},
                         .dst_at = {rows.first * rows.inner},
                         .clear = true,
                         .src = (const char *)slot->dense_sum + (size_t)(outer * own) * size,
                         .dst = to};
    *out = tg_backend_view(optim->be, slot->dtype, &(tg_shape){1, {count * whole}}, to);
    slot->is_handed_out = true;
    return optim->be->ops->box_copy(optim->be, &copy);
}

/* moments of dense blocks */

size_t tg_block_saving_bytes(const tg_optim *optim, const tg_slot *slot) {
    const tg_moments *block = &slot->moments;
    const tg_moments whole =
        tg_moments_plan_dense(&optim->groups[slot->group], slot->dtype, &slot->whole, &slot->whole);
    size_t bytes = 0;
    for (int i = 0; tg_slot_is_dense_block(slot) && i < block->rule->states; i++) {
        const int64_t reals =
            block->at[i].reals + (tg_moment_codec(block, i)->encode ? whole.at[i].reals : 0);
        bytes = tg_max_size(bytes, (size_t)reals * tg_dtype_size(block->real));
    }
    return bytes;
}

tg_block_rows tg_moment_get_rows(const tg_optim *optim, const tg_slot *slot, int i) {
    const tg_rule *rule = slot->moments.rule;
    const int64_t reals = slot->moments.at[i].reals;
    if (rule->state[i].is_single) { /* every block has the same */
        return (tg_block_rows){1, 1, 0, 1, 1, 1};
    }
    const int64_t values = tg_rule_values(rule, &optim->groups[slot->group], &slot->shape);
    return lay_out_rows(&slot->shape, &slot->block, reals, reals / values,
                        tg_dtype_size(slot->moments.real));
}

void tg_block_put_rows(const tg_block_rows *rows, int64_t outer, size_t size, const void *block,
                       void *piece) {
    const int64_t count = tg_min(rows->step, rows->outer - outer);
    const size_t row = (size_t)rows->inner * size, own = (size_t)rows->rows * row;
    const char *from = (const char *)block + (size_t)outer * own;
    char *to = piece;
    memset(to, 0, (size_t)(count * rows->whole) * row);
    for (int64_t i = 0; i < count; i++) {
        memcpy(to + (size_t)(i * rows->whole + rows->first) * row, from + (size_t)i * own, own);
    }
}

/* Values and scales of a moment as they are stored, on the host. */
typedef struct stored {
    tg_tensor array[2];
} stored;

static void destroy_stored(stored *s) {
    tg_tensor_destroy(&s->array[0]);
    tg_tensor_destroy(&s->array[1]);
}

static tg_status make_stored(const tg_optim *optim, const tg_state_part part[2], stored *out) {
    for (int k = 0; k < 2; k++) {
        TG_CALL(tg_tensor_create(optim->ctx, TG_MEM_DATA, part[k].dtype, &part[k].shape,
                                 &out->array[k]));
    }
    return TG_OK;
}

/* `count` reals on the host. */
static tg_status make_reals(const tg_optim *optim, const tg_slot *slot, int64_t count,
                            tg_tensor *out) {
    const tg_shape shape = {1, {count}};
    return tg_tensor_create(optim->ctx, TG_MEM_DATA, slot->moments.real, &shape, out);
}

static void decode(const tg_moments *moments, int i, const tg_tensor *values,
                   const tg_tensor *scales, const tg_tensor *reals) {
    const tg_state_codec *codec = tg_moment_codec(moments, i);
    if (codec->decode) {
        codec->decode(moments->rule->state[i].is_square, tg_tensor_numel(reals), values->data,
                      scales ? scales->data : NULL, reals->data);
    } else {
        memcpy(reals->data, values->data, tg_tensor_bytes(reals));
    }
}

/* To nearest. */
static void encode(const tg_moments *moments, int i, const tg_tensor *reals, const stored *out) {
    const tg_state_codec *codec = tg_moment_codec(moments, i);
    if (codec->encode) {
        codec->encode(moments->rule->state[i].is_square, NULL, 0, tg_tensor_numel(reals),
                      reals->data, out->array[0].data, out->array[1].data);
    } else {
        memcpy(out->array[0].data, reals->data, tg_tensor_bytes(reals));
    }
}

tg_status tg_moment_read(tg_optim *optim, const tg_slot *slot, int i, tg_tensor *out) {
    tg_status status = TG_OK;
    const int64_t reals = slot->moments.at[i].reals;
    tg_state_part part[2];
    stored own = {0};
    TG_TRY(tg_state_describe_moment(optim, slot, i, reals, part));
    for (int k = 0; k < 2 && part[k].memory; k++) { /* NULL: no scales */
        const tg_tensor array =
            tg_backend_view(optim->be, part[k].dtype, &part[k].shape, part[k].memory);
        TG_TRY(tg_backend_download(optim->be, &array, NULL, &own.array[k]));
    }
    TG_TRY(make_reals(optim, slot, reals, out));
    decode(&slot->moments, i, &own.array[0], &own.array[1], out);
fail:
    destroy_stored(&own);
    return status;
}

tg_status tg_moment_save(tg_optim *optim, const tg_slot *slot, int i, tg_tensor *reals,
                         tg_archive *archive) {
    tg_status status = TG_OK;
    tg_state_part part[2];
    stored whole = {0};
    TG_TRY(tg_state_describe_moment(optim, slot, i, tg_tensor_numel(reals), part));
    if (!tg_moment_codec(&slot->moments, i)->encode) { /* stored as they are */
        reals->dtype = part[0].dtype;
        reals->shape = part[0].shape;
        return tg_archive_take(archive, part[0].name, reals);
    }
    TG_TRY(make_stored(optim, part, &whole));
    encode(&slot->moments, i, reals, &whole);
    for (int k = 0; k < 2; k++) {
        TG_TRY(tg_tensor_numel(&whole.array[k]) > 0
                   ? tg_archive_take(archive, part[k].name, &whole.array[k])
                   : TG_OK);
    }
fail:
    destroy_stored(&whole);
    tg_tensor_destroy(reals);
    return status;
}

/* The rows of an array of the whole. */
static void cut_rows(const tg_block_rows *rows, size_t size, const void *whole, void *block) {
    const size_t row = (size_t)rows->inner * size, own = (size_t)rows->rows * row;
    for (int64_t i = 0; i < rows->outer; i++) {
        memcpy((char *)block + (size_t)i * own,
               (const char *)whole + (size_t)(i * rows->whole + rows->first) * row, own);
    }
}

static tg_status load_rows(tg_optim *optim, const tg_slot *slot, int i, const tg_archive *archive) {
    tg_status status = TG_OK;
    const tg_block_rows rows = tg_moment_get_rows(optim, slot, i);
    const int64_t reals = slot->moments.at[i].reals;
    tg_state_part part[2];
    tg_tensor whole = {0}, block = {0};
    stored own = {0};
    TG_TRY(tg_state_describe_moment(optim, slot, i, reals, part));
    TG_TRY(make_reals(optim, slot, rows.outer * rows.whole * rows.inner, &whole));
    TG_TRY(make_reals(optim, slot, reals, &block));
    TG_TRY(make_stored(optim, part, &own));
    decode(&slot->moments, i, tg_archive_find(archive, part[0].name),
           tg_archive_find(archive, part[1].name), &whole);
    cut_rows(&rows, tg_dtype_size(slot->moments.real), whole.data, block.data);
    encode(&slot->moments, i, &block, &own);
    for (int k = 0; k < 2; k++) {
        const size_t bytes = tg_tensor_bytes(&own.array[k]);
        TG_TRY(bytes > 0
                   ? optim->be->ops->upload(optim->be, part[k].memory, own.array[k].data, bytes)
                   : TG_OK);
    }
fail:
    tg_tensor_destroy(&whole);
    tg_tensor_destroy(&block);
    destroy_stored(&own);
    return status;
}

tg_status tg_moments_load_rows(tg_optim *optim, const tg_slot *slot, const tg_archive *archive) {
    for (int i = 0; i < slot->moments.rule->states; i++) {
        TG_CALL(load_rows(optim, slot, i, archive));
    }
    return TG_OK;
}
