/* States that move within their pool when ranks change: one array after the other by way of the
 * host. */
#include <string.h>

#include "base/minmax.h"
#include "optim/auto_rank/state_pool.h"

/* What new coordinates get. */
typedef enum filling { ZERO, NEAREST } filling;

/* A box of elements, row-major, from the sizes `from` at element `source` of `data` to the sizes
 * `to` at element `target` of the same memory. Smaller boxes move towards the front, from the first
 * element on; larger ones towards the back, from the last element on: nothing is written before it
 * was read. */
static void reshape(char *data, size_t size, int ndim, const int64_t *from, int64_t source,
                    const int64_t *to, int64_t target, filling fills) {
    int64_t count = 1, index[TG_MAX_NDIM];
    bool grows = target > source;
    for (int d = 0; d < ndim; d++) {
        count *= to[d];
        grows = grows || to[d] > from[d];
    }
    for (int64_t n = 0; n < count; n++) {
        const int64_t i = grows ? count - 1 - n : n;
        int64_t rest = i, at = 0, stride = 1;
        bool is_new = false;
        for (int d = ndim - 1; d >= 0; d--) {
            index[d] = rest % to[d];
            rest /= to[d];
            is_new = is_new || index[d] >= from[d];
            index[d] = tg_min(index[d], from[d] - 1);
            at += index[d] * stride;
            stride *= from[d];
        }
        char *out = data + (size_t)(target + i) * size;
        if (is_new && fills == ZERO) {
            memset(out, 0, size);
        } else {
            memmove(out, data + (size_t)(source + at) * size, size);
        }
    }
}

/* Both parts of a parameter's values. Growing starts with the part behind. */
static void reshape_parts(char *data, size_t size, const tg_layout *from, const tg_layout *to,
                          bool is_second_moment) {
    const bool grows = tg_layout_count(to) > tg_layout_count(from);
    for (int n = 0; n < 2; n++) {
        const bool behind = (n == 0) == grows;
        if (behind == from->is_sparse_first) { /* the core */
            reshape(data, size, from->ndim, from->rank, behind ? from->kept : 0, to->rank,
                    behind ? to->kept : 0, is_second_moment ? NEAREST : ZERO);
        } else if (from->kept > 0) {
            reshape(data, size, 1, &from->kept, behind ? tg_layout_core(from) : 0, &to->kept,
                    behind ? tg_layout_core(to) : 0, ZERO);
        }
    }
}

static bool is_same_shape(const tg_layout *a, const tg_layout *b) {
    bool same = true;
    for (int d = 0; d < a->ndim; d++) {
        same = same && a->rank[d] == b->rank[d];
    }
    return same;
}

/* One move of one parameter. */
typedef struct move {
    tg_optim *optim;
    const tg_rank_pool *pool;
    const tg_layout *from, *to;
} move;

static tg_status fetch(const move *m, size_t offset, size_t bytes, void *out) {
    const char *begin = (const char *)m->pool->memory + m->from->offset;
    return m->optim->be->ops->download(m->optim->be, out, begin + offset, bytes);
}

static tg_status put(const move *m, size_t offset, size_t bytes, const void *in) {
    char *begin = (char *)m->pool->memory + m->to->offset;
    return m->optim->be->ops->upload(m->optim->be, begin + offset, in, bytes);
}

/* A state tensor and its scales, in a region. */
typedef struct moment_array {
    size_t at, scale_at, scale_bytes;
    int64_t reals;
    const tg_state_codec *codec;
    tg_dtype real;
} moment_array;

static moment_array find_moment(const tg_rank_pool *pool, const tg_layout *layout, int index) {
    const tg_region region = tg_layout_region(pool, layout);
    const tg_shape shape = tg_shape_of(layout->ndim, layout->dim);
    const tg_moments plan = tg_moments_plan_part(pool->kind.config, pool->kind.dtype,
                                                 tg_shape_numel(&shape), tg_layout_count(layout));
    return (moment_array){.at = region.moment[index],
                          .scale_at = region.scale[index],
                          .scale_bytes = tg_moment_scale_bytes(&plan, index),
                          .reals = plan.at[index].reals,
                          .codec = tg_moments_codec(&plan),
                          .real = plan.real};
}

/* Where bytes and scales of an array stand on the host, behind its reals. */
typedef struct byte_room {
    float *values, *scale;
    uint8_t *bytes;
} byte_room;

static byte_room lay_out_bytes(void *memory, const tg_state_codec *codec, int64_t reals) {
    byte_room room = {.values = memory};
    room.scale = room.values + reals;
    room.bytes = (uint8_t *)(room.scale + tg_state_scales(codec, reals));
    return room;
}

size_t tg_repack_bytes(const tg_state_kind *kind, int64_t count) {
    const tg_moments plan = tg_moments_plan_part(kind->config, kind->dtype, INT64_MAX, count);
    const tg_state_codec *codec = tg_moments_codec(&plan);
    size_t most = 0;
    for (int i = 0; i < plan.rule->states; i++) {
        const int64_t reals = plan.at[i].reals;
        const int64_t floats = codec->block > 0 ? reals + tg_state_scales(codec, reals) : 0;
        most = tg_max_size(most, (size_t)floats * sizeof(float) + tg_moment_bytes(&plan, i));
    }
    return most;
}

/* Bytes stand for values by the scale of their block: they are decoded, and encoded in the blocks
 * that they come to lie in. */
static tg_status move_bytes(const move *m, bool second, const moment_array *old,
                            const moment_array *new) {
    const int64_t reals = tg_max(old->reals, new->reals);
    const byte_room room = lay_out_bytes(m->pool->staging, old->codec, reals);
    const size_t old_bytes = tg_state_bytes(old->codec, old->real, old->reals);
    const size_t new_bytes = tg_state_bytes(new->codec, new->real, new->reals);
    const size_t width = (size_t)(old->reals / tg_layout_count(m->from));
    TG_CALL(fetch(m, old->at, old_bytes, room.bytes));
    TG_CALL(fetch(m, old->scale_at, old->scale_bytes, room.scale));
    if (is_same_shape(m->from, m->to)) {
        TG_CALL(put(m, new->at, new_bytes, room.bytes));
        return put(m, new->scale_at, new->scale_bytes, room.scale);
    }
    old->codec->decode(second, old->reals, room.bytes, room.scale, room.values);
    reshape_parts((char *)room.values, width * sizeof(float), m->from, m->to, second);
    new->codec->encode(second, NULL, 0, new->reals, room.values, room.bytes, room.scale);
    TG_CALL(put(m, new->at, new_bytes, room.bytes));
    return put(m, new->scale_at, new->scale_bytes, room.scale);
}

static tg_status move_moment(const move *m, int index) {
    const moment_array old = find_moment(m->pool, m->from, index);
    const moment_array new = find_moment(m->pool, m->to, index);
    const bool second = tg_rules[m->pool->kind.config->rule]->state[index].is_square;
    if (old.codec->block > 0) {
        return move_bytes(m, second, &old, &new);
    }
    const size_t real = tg_state_bytes(old.codec, old.real, 1);
    const size_t size = (size_t)(old.reals / tg_layout_count(m->from)) * real;
    TG_CALL(fetch(m, old.at, (size_t)old.reals * real, m->pool->staging));
    reshape_parts(m->pool->staging, size, m->from, m->to, second);
    return put(m, new.at, (size_t) new.reals *real, m->pool->staging);
}

/* Columns that stay; new ones are 0 until the refresh. */
static tg_status move_factor(const move *m, int mode) {
    const size_t size = tg_dtype_size(m->pool->kind.dtype);
    const int64_t old[2] = {m->from->dim[mode], m->from->rank[mode]};
    const int64_t new[2] = {m->to->dim[mode], m->to->rank[mode]};
    TG_CALL(fetch(m, tg_layout_region(m->pool, m->from).factor[mode],
                  (size_t)(old[0] * old[1]) * size, m->pool->staging));
    reshape(m->pool->staging, size, 2, old, 0, new, 0, ZERO);
    return put(m, tg_layout_region(m->pool, m->to).factor[mode], (size_t)(new[0] * new[1]) * size,
               m->pool->staging);
}

/* The arrays in the order of a region: moments, factors; those in front first if they move to the
 * front. */
tg_status tg_state_repack(tg_optim *optim, const tg_rank_pool *pool, const tg_layout *from,
                          const tg_layout *to) {
    const move m = {.optim = optim, .pool = pool, .from = from, .to = to};
    const int states = tg_rules[pool->kind.config->rule]->states, arrays = states + from->ndim;
    const bool grows = to->offset > from->offset || tg_layout_count(to) > tg_layout_count(from);
    const bool stays = to->offset == from->offset && is_same_shape(from, to);
    for (int i = 0; i < arrays && !stays; i++) {
        const int array = grows ? arrays - 1 - i : i;
        TG_CALL(array < states ? move_moment(&m, array) : move_factor(&m, array - states));
    }
    return TG_OK;
}
