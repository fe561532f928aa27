/* Slots of the fake device (fake_slots.c) for layers, graph kernels and factorized weights. */
#include "support/block.h"
#include "support/factorized.h"
#include "support/fake_device.h"

/* ---- layers ---- */

static tg_status run_skip_forward(tg_backend *host, void *op) {
    return host->ops->skip_forward(host, op);
}

static tg_status fake_skip_forward(tg_backend *be, const tg_skip *op) {
    return fake_submit(be, run_skip_forward, op, sizeof *op);
}

static tg_status run_skip_backward(tg_backend *host, void *op) {
    return host->ops->skip_backward(host, op);
}

static tg_status fake_skip_backward(tg_backend *be, const tg_skip *op) {
    return fake_submit(be, run_skip_backward, op, sizeof *op);
}

static tg_status run_mlp_forward(tg_backend *host, void *op) {
    return host->ops->mlp_forward(host, op);
}

static tg_status fake_mlp_forward(tg_backend *be, const tg_mlp *op) {
    return fake_submit(be, run_mlp_forward, op, sizeof *op);
}

static tg_status run_mlp_backward(tg_backend *host, void *op) {
    return t_mlp_back_by_parts(host, op);
}

static tg_status fake_mlp_backward(tg_backend *be, const tg_mlp *op) {
    return fake_submit(be, run_mlp_backward, op, sizeof *op);
}

static tg_status run_norm_forward(tg_backend *host, void *op) {
    return host->ops->norm_forward(host, op);
}

static tg_status fake_norm_forward(tg_backend *be, const tg_norm *op) {
    return fake_submit(be, run_norm_forward, op, sizeof *op);
}

static tg_status run_norm_backward(tg_backend *host, void *op) {
    return host->ops->norm_backward(host, op);
}

static tg_status fake_norm_backward(tg_backend *be, const tg_norm *op) {
    return fake_submit(be, run_norm_backward, op, sizeof *op);
}

static size_t fake_skip_workspace(tg_backend *be, const tg_skip *op, bool backward) {
    return fake_host(be)->ops->skip_workspace(fake_host(be), op, backward);
}

static size_t fake_mlp_workspace(tg_backend *be, const tg_mlp *op, bool backward) {
    return backward ? t_mlp_back_bytes(fake_host(be), op)
                    : fake_host(be)->ops->mlp_workspace(fake_host(be), op, false);
}

static bool fake_mlp_accepts_quantized_input(tg_backend *be, const tg_mlp *op) {
    (void)be;
    return op->x_store == TG_STORE_FULL;
}

/* ---- blocks in one call ---- */

typedef struct block_args {
    tg_block op;
    tg_fft_desc desc;
} block_args;

static bool fake_block_workspace(tg_backend *be, const tg_block *op, size_t *bytes) {
    *bytes = t_block_bytes(fake_host(be), op);
    return op->store == TG_STORE_FULL;
}

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

static bool fake_block_back_workspace(tg_backend *be, const tg_block_back *op, size_t *bytes) {
    *bytes = t_block_back_bytes(fake_host(be), op);
    return op->store == TG_STORE_FULL;
}

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

static size_t fake_neighbours_bytes(tg_backend *be, int64_t points, int64_t queries) {
    return fake_host(be)->ops->neighbours_bytes(fake_host(be), points, queries) + 64;
}

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

static size_t fake_gno_workspace(tg_backend *be, const tg_gno *op, bool backward) {
    return fake_host(be)->ops->gno_workspace(fake_host(be), op, backward);
}

static gno_args *with_own_facts(gno_args *a) {
    a->op.config = &a->config;
    a->op.neighbours = &a->near;
    return a;
}

static tg_status run_gno_forward(tg_backend *host, void *arguments) {
    return host->ops->gno_forward(host, &with_own_facts(arguments)->op);
}

static tg_status fake_gno_forward(tg_backend *be, const tg_gno *op) {
    const gno_args a = {.op = *op, .config = *op->config, .near = *op->neighbours};
    return fake_submit(be, run_gno_forward, &a, sizeof a);
}

static tg_status run_gno_backward(tg_backend *host, void *arguments) {
    return host->ops->gno_backward(host, &with_own_facts(arguments)->op);
}

static tg_status fake_gno_backward(tg_backend *be, const tg_gno *op) {
    const gno_args a = {.op = *op, .config = *op->config, .near = *op->neighbours};
    return fake_submit(be, run_gno_backward, &a, sizeof a);
}

/* ---- factorized weights, by their definition: other bits than by products one by one ---- */

static bool has_factorized;

void fake_device_factorized(bool has) {
    has_factorized = has;
}

static bool fake_two_modes_takes(tg_backend *be, const tg_two_modes *op) {
    (void)be;
    return has_factorized && op->d1 <= 64 && op->d2 <= 64;
}

static tg_status run_two_modes_forward(tg_backend *host, void *arguments) {
    (void)host;
    t_two_modes_forward(arguments);
    return TG_OK;
}

static tg_status fake_two_modes_forward(tg_backend *be, const tg_two_modes *op) {
    return fake_submit(be, run_two_modes_forward, op, sizeof *op);
}

static tg_status run_two_modes_backward(tg_backend *host, void *arguments) {
    (void)host;
    t_two_modes_backward(arguments);
    return TG_OK;
}

static tg_status fake_two_modes_backward(tg_backend *be, const tg_two_modes *op) {
    return fake_submit(be, run_two_modes_backward, op, sizeof *op);
}

static bool fake_mapped_takes(tg_backend *be, const tg_mapped *op) {
    (void)be;
    return has_factorized && op->channels <= 64;
}

static tg_status run_mapped_contract(tg_backend *host, void *arguments) {
    (void)host;
    t_mapped_contract(arguments);
    return TG_OK;
}

static tg_status fake_mapped_contract(tg_backend *be, const tg_mapped *op) {
    return fake_submit(be, run_mapped_contract, op, sizeof *op);
}

static tg_status run_mapped_gradients(tg_backend *host, void *arguments) {
    (void)host;
    t_mapped_gradients(arguments);
    return TG_OK;
}

static tg_status fake_mapped_gradients(tg_backend *be, const tg_map_gradients *op) {
    return fake_submit(be, run_mapped_gradients, op, sizeof *op);
}

void fake_fill_layers(tg_backend_ops *ops) {
    ops->skip_workspace = fake_skip_workspace;
    ops->skip_forward = fake_skip_forward;
    ops->skip_backward = fake_skip_backward;
    ops->mlp_workspace = fake_mlp_workspace;
    ops->mlp_forward = fake_mlp_forward;
    ops->mlp_backward = fake_mlp_backward;
    ops->mlp_accepts_quantized_input = fake_mlp_accepts_quantized_input;
    ops->block_workspace = fake_block_workspace;
    ops->block_forward = fake_block_forward;
    ops->block_back_workspace = fake_block_back_workspace;
    ops->block_backward = fake_block_backward;
    ops->norm_forward = fake_norm_forward;
    ops->norm_backward = fake_norm_backward;
    ops->two_modes_takes = fake_two_modes_takes;
    ops->two_modes_forward = fake_two_modes_forward;
    ops->two_modes_backward = fake_two_modes_backward;
    ops->mapped_takes = fake_mapped_takes;
    ops->mapped_contract = fake_mapped_contract;
    ops->mapped_gradients = fake_mapped_gradients;
    ops->neighbours_bytes = fake_neighbours_bytes;
    ops->neighbours_build = fake_neighbours_build;
    ops->neighbours_list = fake_neighbours_list;
    ops->gno_workspace = fake_gno_workspace;
    ops->gno_forward = fake_gno_forward;
    ops->gno_backward = fake_gno_backward;
}
