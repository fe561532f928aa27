/* Slots of the fake device (fake_slots.c) for compressed gradients, updates and index sets. */
#include <math.h>

#include "support/fake_device.h"

/* ---- compressed gradients ---- */

typedef struct compress_args {
    tg_compress op;
    tg_bitmap bitmap;
} compress_args;

static tg_status run_compress(tg_backend *host, void *arguments) {
    compress_args *a = arguments;
    a->op.bitmap = a->op.bitmap ? &a->bitmap : NULL;
    return host->ops->compress(host, &a->op);
}

static tg_status fake_compress(tg_backend *be, const tg_compress *op) {
    const compress_args a = {*op, op->bitmap ? *op->bitmap : (tg_bitmap){0}};
    return fake_submit(be, run_compress, &a, sizeof a);
}

typedef struct sample_args {
    tg_sample op;
    tg_bitmap bitmap;
} sample_args;

static tg_status run_sample(tg_backend *host, void *arguments) {
    sample_args *a = arguments;
    a->op.bitmap = a->op.bitmap ? &a->bitmap : NULL;
    return host->ops->sample(host, &a->op);
}

static tg_status fake_sample(tg_backend *be, const tg_sample *op) {
    const sample_args a = {*op, op->bitmap ? *op->bitmap : (tg_bitmap){0}};
    return fake_submit(be, run_sample, &a, sizeof a);
}

typedef struct expand_args {
    tg_expand op;
    tg_bitmap bitmap;
    tg_rng rounding;
} expand_args;

static tg_status run_expand(tg_backend *host, void *arguments) {
    expand_args *a = arguments;
    a->op.bitmap = a->op.bitmap ? &a->bitmap : NULL;
    a->op.rounding = a->op.rounding ? &a->rounding : NULL;
    return host->ops->expand(host, &a->op);
}

static tg_status fake_expand(tg_backend *be, const tg_expand *op) {
    const expand_args a = {*op, op->bitmap ? *op->bitmap : (tg_bitmap){0},
                           op->rounding ? *op->rounding : (tg_rng){0}};
    return fake_submit(be, run_expand, &a, sizeof a);
}

typedef struct adam_args {
    tg_adam op;
    tg_rng rounding;
} adam_args;

static tg_status run_update(tg_backend *host, void *arguments) {
    adam_args *a = arguments;
    a->op.rounding = a->op.rounding ? &a->rounding : NULL;
    return host->ops->update(host, 1, &a->op);
}

static tg_status fake_update(tg_backend *be, int count, const tg_adam *ops) {
    for (int i = 0; i < count; i++) {
        const adam_args a = {ops[i], ops[i].rounding ? *ops[i].rounding : (tg_rng){0}};
        TG_CALL(fake_submit(be, run_update, &a, sizeof a));
    }
    return TG_OK;
}

typedef struct grad_args {
    tg_multimode modes;
    tg_grad_source source;
    double scale;
    void *out;
} grad_args;

static tg_status run_grad_dense(tg_backend *host, void *arguments) {
    const grad_args *a = arguments;
    return host->ops->grad_dense(host, &a->modes, &a->source, a->scale, a->out);
}

static tg_status fake_grad_dense(tg_backend *be, const tg_multimode *modes,
                                 const tg_grad_source *source, double scale, void *out) {
    const grad_args a = {*modes, *source, scale, out};
    return fake_submit(be, run_grad_dense, &a, sizeof a);
}

/* ---- index sets that are read ---- */

typedef struct bitmap_args {
    tg_dtype dtype;
    tg_bitmap bitmap;
    const void *x;
    void *out;
} bitmap_args;

static tg_status run_bitmap_clear(tg_backend *host, void *arguments) {
    const bitmap_args *a = arguments;
    return host->ops->bitmap_clear(host, a->dtype, &a->bitmap, a->x, a->out);
}

static tg_status fake_bitmap_clear(tg_backend *be, tg_dtype dtype, const tg_bitmap *bitmap,
                                   const void *x, void *out) {
    const bitmap_args a = {dtype, *bitmap, x, out};
    return fake_submit(be, run_bitmap_clear, &a, sizeof a);
}

/* ---- index sets that are chosen: answers for the host ---- */

static tg_status fake_select(tg_backend *be, const tg_select *op) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    return host ? fake_leave(be, host->ops->select(host, op)) : status;
}

void fake_fill_compress(tg_backend_ops *ops) {
    ops->select = fake_select;
    ops->bitmap_clear = fake_bitmap_clear;
    ops->compress = fake_compress;
    ops->expand = fake_expand;
    ops->sample = fake_sample;
    ops->grad_dense = fake_grad_dense;
    ops->update = fake_update;
}
