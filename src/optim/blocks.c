/* Pieces of tensors that are spread over ranks, and moments of blocks in files. */
#include "optim/ranks.h"

#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "optim/step.h"

enum { PIECE = 1 << 22 }; /* bytes; at least one of `outer` */

/* Of a block with `count` elements of so many bytes, `unit` of them an entry. */
static tg_block_rows lay_out(const tg_shape *shape, const tg_optim_block *block, int64_t count,
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

/* ---- sums ---- */

static tg_block_rows rows_of_sum(const tg_slot *slot) {
    return lay_out(&slot->shape, &slot->block, slot->numel, 1, tg_dtype_size(slot->dtype));
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

/* ---- moments ---- */

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
    return lay_out(&slot->shape, &slot->block, reals, reals / values,
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

/* `count` reals on the host. */
static tg_status make_reals(const tg_optim *optim, const tg_slot *slot, int64_t count,
                            tg_tensor *out) {
    const tg_shape shape = {1, {count}};
    return tg_tensor_create(optim->ctx, TG_MEM_DATA, slot->moments.real, &shape, out);
}

static void decode(const tg_moments *moments, int i, const void *stored, const float *scale,
                   const tg_tensor *reals) {
    const tg_state_codec *codec = tg_moment_codec(moments, i);
    const bool second = moments->rule->state[i].is_square;
    if (codec->decode) {
        codec->decode(second, tg_tensor_numel(reals), stored, scale, reals->data);
    } else {
        memcpy(reals->data, stored, tg_tensor_bytes(reals));
    }
}

/* To nearest. */
static void encode(const tg_moments *moments, int i, const tg_tensor *reals, void *stored,
                   float *scale) {
    const tg_state_codec *codec = tg_moment_codec(moments, i);
    const bool second = moments->rule->state[i].is_square;
    if (codec->encode) {
        codec->encode(second, NULL, 0, tg_tensor_numel(reals), reals->data, stored, scale);
    } else {
        memcpy(stored, reals->data, tg_tensor_bytes(reals));
    }
}

/* A moment of the block as it is stored, on the host; the scales come after the values. */
static tg_status make_stored(const tg_optim *optim, const tg_slot *slot, int i, size_t *values,
                             size_t *scales, tg_tensor *out) {
    const tg_moments *moments = &slot->moments;
    *values = tg_state_bytes(tg_moment_codec(moments, i), moments->real, moments->at[i].reals);
    *scales = tg_moment_scale_bytes(moments, i);
    const tg_shape shape = {1, {(int64_t)(tg_align(*values) + *scales)}};
    return tg_tensor_create(optim->ctx, TG_MEM_DATA, TG_U8, &shape, out);
}

static float *scales_of(const tg_tensor *stored, size_t values) {
    return (float *)(void *)((char *)stored->data + tg_align(values));
}

tg_status tg_moment_read(tg_optim *optim, const tg_slot *slot, int i, tg_tensor *out) {
    tg_status status = TG_OK;
    const tg_moment *moment = &slot->moments.at[i];
    const tg_backend_ops *ops = optim->be->ops;
    tg_tensor stored = {0};
    size_t values = 0, scales = 0;
    *out = (tg_tensor){0};
    TG_TRY(make_stored(optim, slot, i, &values, &scales, &stored));
    TG_TRY(ops->download(optim->be, stored.data, moment->memory, values));
    TG_TRY(scales > 0 ? ops->download(optim->be, scales_of(&stored, values), moment->scale, scales)
                      : TG_OK);
    TG_TRY(make_reals(optim, slot, moment->reals, out));
    decode(&slot->moments, i, stored.data, scales_of(&stored, values), out);
fail:
    tg_tensor_destroy(&stored);
    return status;
}

/* Names, dtypes and shapes of moment i, and of its scales, in a file. */
static tg_status find_parts(const tg_optim *optim, const tg_slot *slot, int i,
                            tg_state_part *values, tg_state_part *scales) {
    tg_state_part parts[TG_STATE_PARTS];
    int count = 0;
    TG_CALL(tg_state_list_moments(optim, slot, parts, &count));
    for (int k = 0; k < count; k++) {
        if (parts[k].state == i) {
            *(parts[k].is_scale ? scales : values) = parts[k];
        }
    }
    return TG_OK;
}

tg_status tg_moment_save(tg_optim *optim, const tg_slot *slot, int i, tg_tensor *reals,
                         tg_archive *archive) {
    tg_status status = TG_OK;
    tg_state_part parts[2] = {0};
    tg_tensor arrays[2] = {0};
    TG_TRY(find_parts(optim, slot, i, &parts[0], &parts[1]));
    if (!tg_moment_codec(&slot->moments, i)->encode) { /* stored as they are */
        reals->dtype = parts[0].dtype;
        reals->shape = parts[0].shape;
        return tg_archive_take(archive, parts[0].name, reals);
    }
    for (int k = 0; k < 2; k++) {
        TG_TRY(parts[k].shape.ndim > 0 ? tg_tensor_create(optim->ctx, TG_MEM_DATA, parts[k].dtype,
                                                          &parts[k].shape, &arrays[k])
                                       : TG_OK);
    }
    encode(&slot->moments, i, reals, arrays[0].data, arrays[1].data);
    for (int k = 0; k < 2; k++) {
        TG_TRY(arrays[k].data ? tg_archive_take(archive, parts[k].name, &arrays[k]) : TG_OK);
    }
fail:
    tg_tensor_destroy(&arrays[0]);
    tg_tensor_destroy(&arrays[1]);
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
    const tg_moment *moment = &slot->moments.at[i];
    const tg_backend_ops *ops = optim->be->ops;
    const tg_block_rows rows = tg_moment_get_rows(optim, slot, i);
    tg_state_part values = {0}, scales = {0};
    tg_tensor whole = {0}, block = {0}, stored = {0};
    size_t value_bytes = 0, scale_bytes = 0;
    TG_TRY(find_parts(optim, slot, i, &values, &scales));
    TG_TRY(make_reals(optim, slot, rows.outer * rows.whole * rows.inner, &whole));
    TG_TRY(make_reals(optim, slot, moment->reals, &block));
    TG_TRY(make_stored(optim, slot, i, &value_bytes, &scale_bytes, &stored));
    const tg_tensor *scale = scale_bytes > 0 ? tg_archive_find(archive, scales.name) : NULL;
    decode(&slot->moments, i, tg_archive_find(archive, values.name)->data,
           scale ? scale->data : NULL, &whole);
    cut_rows(&rows, tg_dtype_size(slot->moments.real), whole.data, block.data);
    encode(&slot->moments, i, &block, stored.data, scales_of(&stored, value_bytes));
    TG_TRY(ops->upload(optim->be, moment->memory, stored.data, value_bytes));
    TG_TRY(scale
               ? ops->upload(optim->be, moment->scale, scales_of(&stored, value_bytes), scale_bytes)
               : TG_OK);
fail:
    tg_tensor_destroy(&whole);
    tg_tensor_destroy(&block);
    tg_tensor_destroy(&stored);
    return status;
}

tg_status tg_moments_load_rows(tg_optim *optim, const tg_slot *slot, const tg_archive *archive) {
    for (int i = 0; i < slot->moments.rule->states; i++) {
        TG_CALL(load_rows(optim, slot, i, archive));
    }
    return TG_OK;
}
