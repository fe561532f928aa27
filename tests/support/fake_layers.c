/* Slots of the fake device (fake_slots.c) for layers and graph kernels. */
#include "support/block.h"
#include "support/fake_device.h"

/* ---- blocks in one call ---- */

typedef struct block_args {
    tg_block op;
    tg_fft_desc desc;
} block_args;

static tg_status run_block_forward(tg_backend *host, void *arguments) {
    block_args *a = arguments;
    a->op.desc = &a->desc;
    return t_block_by_parts(host, &a->op);
}

static tg_status fake_block_forward(tg_backend *be, const tg_block *op) {
    const block_args a = {*op, *op->desc};
    return fake_submit(be, run_block_forward, &a, sizeof a);
}

typedef struct block_back_args {
    tg_block_back op;
    tg_fft_desc desc;
} block_back_args;

static tg_status run_block_backward(tg_backend *host, void *arguments) {
    block_back_args *a = arguments;
    a->op.desc = &a->desc;
    return t_block_back_by_parts(host, &a->op);
}

static tg_status fake_block_backward(tg_backend *be, const tg_block_back *op) {
    const block_back_args a = {*op, *op->desc};
    return fake_submit(be, run_block_backward, &a, sizeof a);
}

/* ---- graph kernels ---- */

static tg_status fake_neighbours_build(tg_backend *be, tg_neighbours *s, double radius,
                                       const tg_tensor *points, const tg_tensor *queries) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    return host ? fake_leave(be, host->ops->neighbours_build(host, s, radius, points, queries))
                : status;
}

typedef struct gno_args {
    tg_gno op;
    tg_gno_config config;
    tg_neighbours near;
    int64_t *index;
} gno_args;

static tg_status run_neighbours_list(tg_backend *host, void *arguments) {
    const gno_args *a = arguments;
    return host->ops->neighbours_list(host, &a->near, a->index);
}

static tg_status fake_neighbours_list(tg_backend *be, const tg_neighbours *s, int64_t *index) {
    const gno_args a = {.near = *s, .index = index};
    return fake_submit(be, run_neighbours_list, &a, sizeof a);
}

static gno_args *with_own_facts(gno_args *a) {
    a->op.config = &a->config;
    a->op.neighbours = &a->near;
    return a;
}

static tg_status run_gno(tg_backend *host, void *arguments) {
    return host->ops->gno(host, &with_own_facts(arguments)->op);
}

static tg_status fake_gno(tg_backend *be, const tg_gno *op) {
    const gno_args a = {.op = *op, .config = *op->config, .near = *op->neighbours};
    return fake_submit(be, run_gno, &a, sizeof a);
}

static tg_status run_mlp(tg_backend *host, void *arguments) {
    const tg_mlp *op = arguments;
    return op->backward ? t_mlp_back_by_parts(host, op) : host->ops->mlp(host, op);
}

static tg_status fake_mlp(tg_backend *be, const tg_mlp *op) {
    return fake_submit(be, run_mlp, op, sizeof *op);
}

/* ---- workspaces ---- */

static bool fake_workspace(tg_backend *be, const tg_query *query, size_t *bytes) {
    tg_backend *host = fake_host(be);
    if (query->block) {
        *bytes = t_block_bytes(host, query->block);
        return query->block->store == TG_STORE_FULL;
    }
    if (query->block_back) {
        *bytes = t_block_back_bytes(host, query->block_back);
        return query->block_back->store == TG_STORE_FULL;
    }
    if (query->mlp && query->mlp->backward) {
        *bytes = t_mlp_back_bytes(host, query->mlp);
        return !query->mlp->x_quantized || query->mlp->x_store == TG_STORE_FULL;
    }
    const bool has = host->ops->workspace(host, query, bytes);
    *bytes += query->neighbours ? 64 : 0; /* scratch, as on a GPU */
    return has;
}

void fake_fill_layers(tg_backend_ops *ops) {
    ops->block_forward = fake_block_forward;
    ops->block_backward = fake_block_backward;
    ops->workspace = fake_workspace;
    ops->mlp = fake_mlp;
    ops->gno = fake_gno;
    ops->neighbours_build = fake_neighbours_build;
    ops->neighbours_list = fake_neighbours_list;
}
