/* The slots of the fake device: each copies its arguments into the stream, or answers the host
 * after the stream has run empty. Host structures behind pointers (bitmaps, random streams) are
 * copied too: a caller may change them as soon as the call has returned. */
#include "support/block.h"
#include "support/factorized.h"
#include "support/fake_device.h"

/* ---- elementwise ---- */

typedef struct array_args { /* as far as a call has them */
    tg_dtype dtype, dst_dtype;
    int64_t n;
    tg_scalar value;
    const void *x, *y;
    void *out, *more;
    tg_act act;
    uint32_t *count;
} array_args;

static tg_status run_fill(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->fill(host, a->dtype, a->n, a->value, a->out);
}

static tg_status fake_fill(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar value, void *x) {
    const array_args a = {.dtype = dtype, .n = n, .value = value, .out = x};
    return fake_submit(be, run_fill, &a, sizeof a);
}

static tg_status run_convert(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->convert(host, a->n, a->dtype, a->x, a->dst_dtype, a->out);
}

static tg_status fake_convert(tg_backend *be, int64_t n, tg_dtype src_dtype, const void *src,
                              tg_dtype dst_dtype, void *dst) {
    const array_args a = {.dtype = src_dtype, .dst_dtype = dst_dtype, .n = n, .x = src, .out = dst};
    return fake_submit(be, run_convert, &a, sizeof a);
}

static tg_status run_axpy(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->axpy(host, a->dtype, a->n, a->value, a->x, a->out);
}

static tg_status fake_axpy(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar alpha,
                           const void *x, void *y) {
    const array_args a = {.dtype = dtype, .n = n, .value = alpha, .x = x, .out = y};
    return fake_submit(be, run_axpy, &a, sizeof a);
}

static tg_status run_scale(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->scale(host, a->dtype, a->n, a->value, a->out);
}

static tg_status fake_scale(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar alpha, void *x) {
    const array_args a = {.dtype = dtype, .n = n, .value = alpha, .out = x};
    return fake_submit(be, run_scale, &a, sizeof a);
}

static tg_status run_count_nonfinite(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->count_nonfinite(host, a->dtype, a->n, a->x, a->count);
}

static tg_status fake_count_nonfinite(tg_backend *be, tg_dtype dtype, int64_t n, const void *x,
                                      uint32_t *count) {
    const array_args a = {.dtype = dtype, .n = n, .x = x, .count = count};
    return fake_submit(be, run_count_nonfinite, &a, sizeof a);
}

static tg_status run_quantize(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->quantize(host, a->n, a->x, a->out);
}

static tg_status fake_quantize(tg_backend *be, int64_t n, const float *x, void *bytes) {
    const array_args a = {.n = n, .x = x, .out = bytes};
    return fake_submit(be, run_quantize, &a, sizeof a);
}

static tg_status run_dequantize(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->dequantize(host, a->n, a->x, a->out);
}

static tg_status fake_dequantize(tg_backend *be, int64_t n, const void *bytes, float *x) {
    const array_args a = {.n = n, .x = bytes, .out = x};
    return fake_submit(be, run_dequantize, &a, sizeof a);
}

static tg_status run_planes_join(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->planes_join(host, a->dtype, a->n, a->x, a->y, a->out);
}

static tg_status fake_planes_join(tg_backend *be, tg_dtype dtype, int64_t n, const void *re,
                                  const void *im, void *pairs) {
    const array_args a = {.dtype = dtype, .n = n, .x = re, .y = im, .out = pairs};
    return fake_submit(be, run_planes_join, &a, sizeof a);
}

static tg_status run_planes_split(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->planes_split(host, a->dtype, a->n, a->x, a->out, a->more);
}

static tg_status fake_planes_split(tg_backend *be, tg_dtype dtype, int64_t n, const void *pairs,
                                   void *re, void *im) {
    const array_args a = {.dtype = dtype, .n = n, .x = pairs, .out = re, .more = im};
    return fake_submit(be, run_planes_split, &a, sizeof a);
}

static tg_status run_act_forward(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->act_forward(host, a->dtype, a->act, a->n, a->x, a->out);
}

static tg_status fake_act_forward(tg_backend *be, tg_dtype dtype, tg_act act, int64_t n,
                                  const void *x, void *y) {
    const array_args a = {.dtype = dtype, .act = act, .n = n, .x = x, .out = y};
    return fake_submit(be, run_act_forward, &a, sizeof a);
}

static tg_status run_act_backward(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->act_backward(host, a->dtype, a->act, a->n, a->x, a->y, a->out);
}

static tg_status fake_act_backward(tg_backend *be, tg_dtype dtype, tg_act act, int64_t n,
                                   const void *x, const void *dy, void *dx) {
    const array_args a = {.dtype = dtype, .act = act, .n = n, .x = x, .y = dy, .out = dx};
    return fake_submit(be, run_act_backward, &a, sizeof a);
}

/* ---- random numbers ---- */

typedef struct random_args {
    tg_dtype dtype;
    tg_rng rng;
    uint64_t first;
    double a, b;
    int64_t n;
    void *x;
} random_args;

static tg_status run_random_uniform(tg_backend *host, void *arguments) {
    const random_args *r = arguments;
    return host->ops->random_uniform(host, r->dtype, &r->rng, r->first, r->a, r->b, r->n, r->x);
}

static tg_status fake_random_uniform(tg_backend *be, tg_dtype dtype, const tg_rng *rng,
                                     uint64_t first, double low, double high, int64_t n, void *x) {
    const random_args r = {dtype, *rng, first, low, high, n, x};
    return fake_submit(be, run_random_uniform, &r, sizeof r);
}

static tg_status run_random_normal(tg_backend *host, void *arguments) {
    const random_args *r = arguments;
    return host->ops->random_normal(host, r->dtype, &r->rng, r->first, r->a, r->b, r->n, r->x);
}

static tg_status fake_random_normal(tg_backend *be, tg_dtype dtype, const tg_rng *rng,
                                    uint64_t first, double mean, double deviation, int64_t n,
                                    void *x) {
    const random_args r = {dtype, *rng, first, mean, deviation, n, x};
    return fake_submit(be, run_random_normal, &r, sizeof r);
}

/* ---- calls with one structure ---- */

static tg_status run_gemm(tg_backend *host, void *op) {
    return host->ops->gemm(host, op);
}

static tg_status fake_gemm(tg_backend *be, const tg_gemm *op) {
    return fake_submit(be, run_gemm, op, sizeof *op);
}

static tg_status run_box_copy(tg_backend *host, void *op) {
    return host->ops->box_copy(host, op);
}

static tg_status fake_box_copy(tg_backend *be, const tg_box *op) {
    return fake_submit(be, run_box_copy, op, sizeof *op);
}

static tg_status run_grid_embed(tg_backend *host, void *op) {
    return host->ops->grid_embed(host, op);
}

static tg_status fake_grid_embed(tg_backend *be, const tg_embed *op) {
    return fake_submit(be, run_grid_embed, op, sizeof *op);
}

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

static tg_status run_spectral_contract(tg_backend *host, void *op) {
    return host->ops->spectral_contract(host, op);
}

static tg_status fake_spectral_contract(tg_backend *be, const tg_spectral *op) {
    return fake_submit(be, run_spectral_contract, op, sizeof *op);
}

static tg_status run_loss(tg_backend *host, void *op) {
    return host->ops->loss(host, op);
}

static tg_status fake_loss(tg_backend *be, const tg_loss_op *op) {
    return fake_submit(be, run_loss, op, sizeof *op);
}

static size_t fake_skip_workspace(tg_backend *be, const tg_skip *op, bool backward) {
    return fake_host(be)->ops->skip_workspace(fake_host(be), op, backward);
}

static size_t fake_mlp_workspace(tg_backend *be, const tg_mlp *op, bool backward) {
    return backward ? t_mlp_back_bytes(fake_host(be), op)
                    : fake_host(be)->ops->mlp_workspace(fake_host(be), op, false);
}

static bool fake_mlp_reads_bytes(tg_backend *be, const tg_mlp *op) {
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

/* ---- compressed gradients ---- */

static size_t fake_compress_workspace(tg_backend *be, const tg_multimode *modes, bool factored) {
    return fake_host(be)->ops->compress_workspace(fake_host(be), modes, factored);
}

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

static tg_status run_adam(tg_backend *host, void *arguments) {
    adam_args *a = arguments;
    a->op.rounding = a->op.rounding ? &a->rounding : NULL;
    return host->ops->adam(host, &a->op);
}

static tg_status fake_adam(tg_backend *be, const tg_adam *op) {
    const adam_args a = {*op, op->rounding ? *op->rounding : (tg_rng){0}};
    return fake_submit(be, run_adam, &a, sizeof a);
}

typedef struct rule_args {
    adam_args adam;
    tg_rule_kernel kernel;
} rule_args;

static tg_status run_rule_step(tg_backend *host, void *arguments) {
    rule_args *a = arguments;
    a->adam.op.rounding = a->adam.op.rounding ? &a->adam.rounding : NULL;
    return host->ops->rule_step(host, &a->adam.op, a->kernel);
}

static tg_status fake_rule_step(tg_backend *be, const tg_adam *op, tg_rule_kernel kernel) {
    const rule_args a = {{*op, op->rounding ? *op->rounding : (tg_rng){0}}, kernel};
    return fake_submit(be, run_rule_step, &a, sizeof a);
}

static tg_status fake_adam_many(tg_backend *be, int count, const tg_adam *ops) {
    tg_status status = TG_OK;
    for (int i = 0; i < count && status == TG_OK; i++) {
        status = fake_adam(be, &ops[i]);
    }
    return status;
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

/* ---- Fourier transforms ---- */

typedef struct fft_args {
    tg_fft_plan *plan;
    int64_t count;
    tg_fft_weight weight;
    double scale;
    const void *in;
    void *out;
} fft_args;

static tg_status fake_fft_create(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan **out) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    *out = NULL;
    return host ? fake_leave(be, host->ops->fft_create(host, desc, out)) : status;
}

static void fake_fft_destroy(tg_backend *be, tg_fft_plan **plan) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    if (host) {
        host->ops->fft_destroy(host, plan);
        status = fake_leave(be, status);
    }
}

static tg_status run_fft_forward(tg_backend *host, void *arguments) {
    const fft_args *a = arguments;
    return host->ops->fft_forward(host, a->plan, a->count, a->weight, a->scale, a->in, a->out);
}

static tg_status fake_fft_forward(tg_backend *be, tg_fft_plan *plan, int64_t count,
                                  tg_fft_weight weight, double scale, const void *in, void *to) {
    const fft_args a = {plan, count, weight, scale, in, to};
    return fake_submit(be, run_fft_forward, &a, sizeof a);
}

static tg_status run_fft_inverse(tg_backend *host, void *arguments) {
    const fft_args *a = arguments;
    return host->ops->fft_inverse(host, a->plan, a->count, a->weight, a->scale, a->in, a->out);
}

static tg_status fake_fft_inverse(tg_backend *be, tg_fft_plan *plan, int64_t count,
                                  tg_fft_weight weight, double scale, const void *in, void *to) {
    const fft_args a = {plan, count, weight, scale, in, to};
    return fake_submit(be, run_fft_inverse, &a, sizeof a);
}

/* ---- flow ---- */

typedef struct flow_args { /* as far as a call has them */
    tg_flow flow;
    tg_flow_stage stage;
    double viscosity;
    const double *in;
    double *out, *more;
} flow_args;

static tg_status run_flow_velocity(tg_backend *host, void *arguments) {
    const flow_args *a = arguments;
    return host->ops->flow_velocity(host, &a->flow, a->in, a->out);
}

static tg_status fake_flow_velocity(tg_backend *be, const tg_flow *flow, const double *w,
                                    double *velocity) {
    const flow_args a = {.flow = *flow, .in = w, .out = velocity};
    return fake_submit(be, run_flow_velocity, &a, sizeof a);
}

static tg_status run_flow_products(tg_backend *host, void *arguments) {
    const flow_args *a = arguments;
    return host->ops->flow_products(host, &a->flow, a->out, a->more);
}

static tg_status fake_flow_products(tg_backend *be, const tg_flow *flow, double *values,
                                    double *speed) {
    const flow_args a = {.flow = *flow, .out = values, .more = speed};
    return fake_submit(be, run_flow_products, &a, sizeof a);
}

static tg_status run_flow_decay(tg_backend *host, void *arguments) {
    const flow_args *a = arguments;
    return host->ops->flow_decay(host, &a->flow, a->viscosity, a->in, a->out);
}

static tg_status fake_flow_decay(tg_backend *be, const tg_flow *flow, double viscosity,
                                 const double *dt, double *decay) {
    const flow_args a = {.flow = *flow, .viscosity = viscosity, .in = dt, .out = decay};
    return fake_submit(be, run_flow_decay, &a, sizeof a);
}

static tg_status run_flow_stage(tg_backend *host, void *arguments) {
    const flow_args *a = arguments;
    return host->ops->flow_stage(host, &a->flow, &a->stage);
}

static tg_status fake_flow_stage(tg_backend *be, const tg_flow *flow, const tg_flow_stage *op) {
    const flow_args a = {.flow = *flow, .stage = *op};
    return fake_submit(be, run_flow_stage, &a, sizeof a);
}

/* ---- index sets that are read ---- */

typedef struct bitmap_args {
    tg_dtype dtype;
    tg_bitmap bitmap;
    tg_scalar alpha;
    const void *x;
    void *out;
} bitmap_args;

static tg_status run_bitmap_gather(tg_backend *host, void *arguments) {
    const bitmap_args *a = arguments;
    return host->ops->bitmap_gather(host, a->dtype, &a->bitmap, a->x, a->out);
}

static tg_status fake_bitmap_gather(tg_backend *be, tg_dtype dtype, const tg_bitmap *bitmap,
                                    const void *x, void *values) {
    const bitmap_args a = {dtype, *bitmap, {0.0, 0.0}, x, values};
    return fake_submit(be, run_bitmap_gather, &a, sizeof a);
}

static tg_status run_bitmap_scatter(tg_backend *host, void *arguments) {
    const bitmap_args *a = arguments;
    return host->ops->bitmap_scatter(host, a->dtype, &a->bitmap, a->alpha, a->x, a->out);
}

static tg_status fake_bitmap_scatter(tg_backend *be, tg_dtype dtype, const tg_bitmap *bitmap,
                                     tg_scalar alpha, const void *values, void *x) {
    const bitmap_args a = {dtype, *bitmap, alpha, values, x};
    return fake_submit(be, run_bitmap_scatter, &a, sizeof a);
}

static tg_status run_bitmap_clear(tg_backend *host, void *arguments) {
    const bitmap_args *a = arguments;
    return host->ops->bitmap_clear(host, a->dtype, &a->bitmap, a->x, a->out);
}

static tg_status fake_bitmap_clear(tg_backend *be, tg_dtype dtype, const tg_bitmap *bitmap,
                                   const void *x, void *out) {
    const bitmap_args a = {dtype, *bitmap, {0.0, 0.0}, x, out};
    return fake_submit(be, run_bitmap_clear, &a, sizeof a);
}

/* ---- decompositions ---- */

typedef struct gram_args {
    tg_dtype dtype;
    int64_t left, dim, right;
    const void *x;
    bool is_masked;
    tg_bitmap mask;
    void *out;
} gram_args;

static tg_status run_gram(tg_backend *host, void *arguments) {
    const gram_args *a = arguments;
    return host->ops->gram(host, a->dtype, a->left, a->dim, a->right, a->x,
                           a->is_masked ? &a->mask : NULL, a->out);
}

static tg_status fake_gram(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim, int64_t right,
                           const void *x, const tg_bitmap *mask, void *out) {
    const gram_args a = {dtype, left, dim, right, x, mask != NULL, mask ? *mask : (tg_bitmap){0},
                         out};
    return fake_submit(be, run_gram, &a, sizeof a);
}

typedef struct columns_args {
    tg_dtype dtype;
    int64_t rows, columns, count;
    const void *vectors, *old;
    void *out;
} columns_args;

static tg_status run_leading_columns(tg_backend *host, void *arguments) {
    const columns_args *a = arguments;
    return host->ops->leading_columns(host, a->dtype, a->rows, a->columns, a->count, a->vectors,
                                      a->old, a->out);
}

static tg_status fake_leading_columns(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                                      int64_t count, const void *vectors, const void *old,
                                      void *out) {
    const columns_args a = {dtype, rows, columns, count, vectors, old, out};
    return fake_submit(be, run_leading_columns, &a, sizeof a);
}

/* ---- columns of matrices ---- */

typedef struct matrix_args {
    tg_dtype dtype;
    int64_t rows, columns, ld_x, ld_out;
    double factor;
    const double *above, *below;
    const void *x;
    void *out;
} matrix_args;

static tg_status run_column_squares(tg_backend *host, void *arguments) {
    const matrix_args *a = arguments;
    return host->ops->column_squares(host, a->dtype, a->rows, a->columns, a->x, a->out);
}

static tg_status fake_column_squares(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                                     const void *x, double *squares) {
    const matrix_args a = {
        .dtype = dtype, .rows = rows, .columns = columns, .x = x, .out = squares};
    return fake_submit(be, run_column_squares, &a, sizeof a);
}

static tg_status run_scale_columns(tg_backend *host, void *arguments) {
    const matrix_args *a = arguments;
    return host->ops->scale_columns(host, a->dtype, a->rows, a->columns, a->factor, a->above,
                                    a->below, a->out);
}

static tg_status fake_scale_columns(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                                    double factor, const double *above, const double *below,
                                    void *x) {
    const matrix_args a = {.dtype = dtype,
                           .rows = rows,
                           .columns = columns,
                           .factor = factor,
                           .above = above,
                           .below = below,
                           .out = x};
    return fake_submit(be, run_scale_columns, &a, sizeof a);
}

static tg_status run_transpose(tg_backend *host, void *arguments) {
    const matrix_args *a = arguments;
    return host->ops->transpose(host, a->dtype, a->rows, a->columns, a->x, a->ld_x, a->out,
                                a->ld_out);
}

static tg_status fake_transpose(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                                const void *x, int64_t ld_x, void *out, int64_t ld_out) {
    const matrix_args a = {.dtype = dtype,
                           .rows = rows,
                           .columns = columns,
                           .x = x,
                           .ld_x = ld_x,
                           .out = out,
                           .ld_out = ld_out};
    return fake_submit(be, run_transpose, &a, sizeof a);
}

/* ---- calls that answer the host ---- */

static tg_status fake_dot(tg_backend *be, tg_dtype dtype, int64_t n, const void *x, const void *y,
                          tg_scalar *out) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    return host ? fake_leave(be, host->ops->dot(host, dtype, n, x, y, out)) : status;
}

static tg_status fake_norms(tg_backend *be, tg_dtype dtype, int64_t n, const void *x,
                            tg_norms *out) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    return host ? fake_leave(be, host->ops->norms(host, dtype, n, x, out)) : status;
}

static tg_status fake_slice_norms(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim,
                                  int64_t right, const void *x, double *out) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    return host ? fake_leave(be, host->ops->slice_norms(host, dtype, left, dim, right, x, out))
                : status;
}

/* As on a GPU, decompositions of large matrices take memory of the device for their time. */
static size_t work_bytes(tg_dtype dtype, int64_t m, int64_t n) {
    enum { HELD = 1 << 14 }; /* what a device has at hand */
    const size_t bytes = (size_t)(m * n) * tg_dtype_size(dtype);
    return bytes > HELD ? bytes : 0;
}

static tg_status take_work(tg_backend *be, size_t bytes, void **out) {
    *out = bytes > 0 ? be->ops->alloc(be, TG_MEM_WORKSPACE, bytes) : NULL;
    return *out || bytes == 0 ? TG_OK : TG_E_MEMORY;
}

static tg_scratch_need fake_scratch_need(tg_backend *be, tg_scratch_call call, tg_dtype dtype,
                                         int64_t m, int64_t n) {
    tg_backend *host = fake_host(be);
    tg_scratch_need bytes = {.host = host->ops->scratch_need(host, call, dtype, m, n).place};
    if (call != TG_SCRATCH_SELECT) {
        bytes.place = work_bytes(dtype, call == TG_SCRATCH_QR ? m : n, n);
    }
    return bytes;
}

static tg_status fake_eigh(tg_backend *be, tg_dtype dtype, int64_t n, void *a,
                           double *eigenvalues) {
    void *work = NULL;
    tg_status status = take_work(be, work_bytes(dtype, n, n), &work);
    tg_backend *host = status == TG_OK ? fake_enter(be, &status) : NULL;
    if (host) {
        status = fake_leave(be, host->ops->eigh(host, dtype, n, a, eigenvalues));
    }
    be->ops->release(be, work);
    return status;
}

static tg_status fake_qr(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, void *a, void *r) {
    void *work = NULL;
    tg_status status = take_work(be, work_bytes(dtype, m, n), &work);
    tg_backend *host = status == TG_OK ? fake_enter(be, &status) : NULL;
    if (host) {
        status = fake_leave(be, host->ops->qr(host, dtype, m, n, a, r));
    }
    be->ops->release(be, work);
    return status;
}

static tg_status fake_select_topk(tg_backend *be, tg_dtype dtype, const void *x, int64_t k,
                                  tg_bitmap *bitmap) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    return host ? fake_leave(be, host->ops->select_topk(host, dtype, x, k, bitmap)) : status;
}

static tg_status fake_select_random(tg_backend *be, const tg_rng *rng, int64_t k,
                                    tg_bitmap *bitmap) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    return host ? fake_leave(be, host->ops->select_random(host, rng, k, bitmap)) : status;
}

static tg_status fake_select_weighted(tg_backend *be, tg_dtype dtype, const tg_rng *rng,
                                      const void *x, int64_t k, tg_bitmap *bitmap) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    return host ? fake_leave(be, host->ops->select_weighted(host, dtype, rng, x, k, bitmap))
                : status;
}

static tg_status fake_bitmap_rank(tg_backend *be, tg_bitmap *bitmap) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    return host ? fake_leave(be, host->ops->bitmap_rank(host, bitmap)) : status;
}

void fake_fill_slots(tg_backend_ops *ops) {
    ops->fill = fake_fill;
    ops->convert = fake_convert;
    ops->axpy = fake_axpy;
    ops->scale = fake_scale;
    ops->dot = fake_dot;
    ops->norms = fake_norms;
    ops->count_nonfinite = fake_count_nonfinite;
    ops->gemm = fake_gemm;
    ops->gram = fake_gram;
    ops->slice_norms = fake_slice_norms;
    ops->column_squares = fake_column_squares;
    ops->scale_columns = fake_scale_columns;
    ops->transpose = fake_transpose;
    ops->eigh = fake_eigh;
    ops->leading_columns = fake_leading_columns;
    ops->qr = fake_qr;
    ops->scratch_need = fake_scratch_need;
    ops->fft_create = fake_fft_create;
    ops->fft_destroy = fake_fft_destroy;
    ops->fft_forward = fake_fft_forward;
    ops->fft_inverse = fake_fft_inverse;
    ops->select_topk = fake_select_topk;
    ops->select_random = fake_select_random;
    ops->select_weighted = fake_select_weighted;
    ops->bitmap_rank = fake_bitmap_rank;
    ops->bitmap_gather = fake_bitmap_gather;
    ops->bitmap_scatter = fake_bitmap_scatter;
    ops->bitmap_clear = fake_bitmap_clear;
    ops->compress_workspace = fake_compress_workspace;
    ops->compress = fake_compress;
    ops->expand = fake_expand;
    ops->sample = fake_sample;
    ops->grad_dense = fake_grad_dense;
    ops->adam = fake_adam;
    ops->adam_many = fake_adam_many;
    ops->rule_step = fake_rule_step;
    ops->box_copy = fake_box_copy;
    ops->grid_embed = fake_grid_embed;
    ops->planes_join = fake_planes_join;
    ops->planes_split = fake_planes_split;
    ops->act_forward = fake_act_forward;
    ops->act_backward = fake_act_backward;
    ops->quantize = fake_quantize;
    ops->dequantize = fake_dequantize;
    ops->skip_workspace = fake_skip_workspace;
    ops->skip_forward = fake_skip_forward;
    ops->skip_backward = fake_skip_backward;
    ops->mlp_workspace = fake_mlp_workspace;
    ops->mlp_forward = fake_mlp_forward;
    ops->mlp_backward = fake_mlp_backward;
    ops->mlp_reads_bytes = fake_mlp_reads_bytes;
    ops->block_workspace = fake_block_workspace;
    ops->block_forward = fake_block_forward;
    ops->block_back_workspace = fake_block_back_workspace;
    ops->block_backward = fake_block_backward;
    ops->norm_forward = fake_norm_forward;
    ops->norm_backward = fake_norm_backward;
    ops->spectral_contract = fake_spectral_contract;
    ops->two_modes_takes = fake_two_modes_takes;
    ops->two_modes_forward = fake_two_modes_forward;
    ops->two_modes_backward = fake_two_modes_backward;
    ops->mapped_takes = fake_mapped_takes;
    ops->mapped_contract = fake_mapped_contract;
    ops->mapped_gradients = fake_mapped_gradients;
    ops->loss = fake_loss;
    ops->neighbours_bytes = fake_neighbours_bytes;
    ops->neighbours_build = fake_neighbours_build;
    ops->neighbours_list = fake_neighbours_list;
    ops->gno_workspace = fake_gno_workspace;
    ops->gno_forward = fake_gno_forward;
    ops->gno_backward = fake_gno_backward;
    ops->flow_velocity = fake_flow_velocity;
    ops->flow_products = fake_flow_products;
    ops->flow_decay = fake_flow_decay;
    ops->flow_stage = fake_flow_stage;
    ops->random_uniform = fake_random_uniform;
    ops->random_normal = fake_random_normal;
}
