/* What runs above the backends, on a device that is none: the same bits as on the cpu backend,
 * whose arithmetic it borrows, the memory that was planned, and what the device itself promises. */
#include <math.h>
#include <string.h>

#include "support/fake_device.h"
#include "support/network.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* ---- the device itself ---- */

/* A host array given to a device is refused before a kernel reads it. */
TEST(losses_of_host_arrays_are_refused) {
    tg_context *ctx = net_context("fake", 1);
    float values[4] = {1, 2, 3, 4};
    double loss = 0.0;
    tg_tensor host;
    const tg_loss_config config = tg_loss_config_default();
    net_ok(ctx, tg_tensor_wrap(ctx, TG_F32, &(tg_shape){3, {1, 1, 4}}, values, &host));
    assert_int_equal(tg_loss_eval(ctx, &config, &host, &host, &loss, NULL), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "in memory of backend fake"));
    tg_context_destroy(&ctx);
}

TEST(work_waits_until_somebody_waits) {
    tg_context *ctx = net_context("fake", 1);
    tg_backend *be = NULL;
    net_ok(ctx, tg_backend_get(ctx, &be));
    const tg_stream_ops *stream = be->ops->stream;
    float *pinned = stream->pinned_alloc(be, TG_MEM_OTHER, 3 * sizeof *pinned);
    float *x = be->ops->alloc(be, TG_MEM_OTHER, 3 * sizeof *x);
    tg_stream_event *event = NULL;
    assert_non_null(pinned);
    assert_non_null(x);
    net_ok(ctx, stream->event_create(be, &event));
    pinned[0] = pinned[1] = pinned[2] = 1.0f;
    net_ok(ctx, be->ops->copy(be, x, pinned, 3 * sizeof *x));
    net_ok(ctx, be->ops->axpy(be, TG_F32, 3, (tg_scalar){2.0, 0.0}, NULL, x));
    net_ok(ctx, be->ops->copy(be, pinned, x, 3 * sizeof *x));
    net_ok(ctx, stream->event_record(be, event));
    net_ok(ctx, be->ops->fill(be, TG_F32, 3, (tg_scalar){7.0, 0.0}, x));
    assert_true(pinned[1] == 1.0f);
    pinned[1] = 5.0f; /* too early: the upload has not run */
    net_ok(ctx, stream->event_wait(be, event));
    assert_true(pinned[0] == 2.0f && pinned[1] == 10.0f);
    net_ok(ctx, be->ops->download(be, pinned, x, 3 * sizeof *x));
    assert_true(pinned[2] == 7.0f);
    stream->event_destroy(be, &event);
    stream->pinned_release(be, pinned);
    be->ops->release(be, x);
    tg_context_destroy(&ctx);
}

TEST(the_copy_stream_spoils_until_it_is_joined) {
    tg_context *ctx = net_context("fake", 1);
    tg_backend *be = NULL;
    net_ok(ctx, tg_backend_get(ctx, &be));
    const tg_stream_ops *stream = be->ops->stream;
    float *pinned = stream->pinned_alloc(be, TG_MEM_OTHER, sizeof *pinned), seen = 0.0f;
    float *x = be->ops->alloc(be, TG_MEM_OTHER, 2 * sizeof *x);
    *pinned = 3.0f;
    net_ok(ctx, be->ops->fill(be, TG_F32, 2, (tg_scalar){1.0, 0.0}, x));
    net_ok(ctx, be->ops->copy(be, x + 1, x, sizeof *x)); /* reads x in time */
    net_ok(ctx, stream->copy_stream_upload(be, true, x, pinned, sizeof *x));
    net_ok(ctx, be->ops->download(be, &seen, x, sizeof seen));
    assert_true(isnan(seen));
    net_ok(ctx, stream->follow(be, TG_STREAM_MAIN, TG_STREAM_COPY));
    net_ok(ctx, be->ops->download(be, &seen, x, sizeof seen));
    assert_true(seen == 3.0f);
    net_ok(ctx, be->ops->download(be, &seen, x + 1, sizeof seen));
    assert_true(seen == 1.0f);
    net_ok(ctx, be->ops->fill(be, TG_F32, 1, (tg_scalar){1.0, 0.0}, x));
    net_ok(ctx, be->ops->copy(be, x + 1, x, sizeof *x));
    net_ok(ctx,
           stream->copy_stream_upload(be, false, x + 1, pinned, sizeof *x)); /* may come first */
    net_ok(ctx, be->ops->download(be, &seen, x + 1, sizeof seen));
    assert_true(seen == 1.0f); /* the stream wrote over it */
    net_ok(ctx, stream->follow(be, TG_STREAM_MAIN, TG_STREAM_COPY));
    stream->pinned_release(be, pinned);
    be->ops->release(be, x);
    tg_context_destroy(&ctx);
}

TEST(graphs_run_again_and_refuse_to_wait) {
    tg_context *ctx = net_context("fake", 1);
    tg_backend *be = NULL;
    net_ok(ctx, tg_backend_get(ctx, &be));
    const tg_stream_ops *stream = be->ops->stream;
    double *x = be->ops->alloc(be, TG_MEM_OTHER, sizeof *x), seen = 0.0;
    tg_graph *graph = NULL;
    tg_norms norms;
    net_ok(ctx, be->ops->fill(be, TG_F64, 1, (tg_scalar){1.0, 0.0}, x));
    net_ok(ctx, stream->graph_begin(be));
    net_ok(ctx, be->ops->axpy(be, TG_F64, 1, (tg_scalar){3.0, 0.0}, NULL, x));
    assert_int_equal(be->ops->norms(be, TG_F64, 1, x, &norms), TG_E_BACKEND);
    assert_int_equal(be->ops->synchronize(be), TG_E_BACKEND);
    assert_null(be->ops->alloc(be, TG_MEM_OTHER, 8));
    net_ok(ctx, stream->graph_end(be, &graph));
    net_ok(ctx, be->ops->download(be, &seen, x, sizeof seen));
    assert_true(seen == 1.0);
    net_ok(ctx, stream->graph_launch(be, graph));
    net_ok(ctx, stream->graph_launch(be, graph));
    net_ok(ctx, be->ops->download(be, &seen, x, sizeof seen));
    assert_true(seen == 9.0);
    stream->graph_destroy(be, &graph);
    be->ops->release(be, x);
    tg_context_destroy(&ctx);
}

/* ---- networks ---- */

static const char *const networks[] = {
    "{\"n_modes\": [6, 5], \"hidden_channels\": 5, \"n_layers\": 2}",
    "{\"n_modes\": [9, 8], \"hidden_channels\": 4, \"n_layers\": 2, \"stabilizer\": \"tanh\","
    " \"domain_padding\": 0.25, \"norm\": \"group_norm\", \"checkpointing\": true}",
    "{\"n_modes\": [14, 13], \"hidden_channels\": 3, \"n_layers\": 2, \"complex_data\": true,"
    " \"stabilizer\": \"tanh\", \"channel_mlp_dropout\": 0.25}",
};

/* What a pass gives: loss, output and all gradients. */
typedef struct outcome {
    double loss;
    tg_tensor y;
    net_gradients gradients;
} outcome;

/* Two samples through a network made for three. */
static outcome pass(tg_context *ctx, const char *json) {
    static const int64_t grid[2] = {7, 11};
    const tg_fno_config config = net_config(ctx, json);
    tg_fno *fno = NULL;
    tg_fno_memory planned;
    tg_loss_config loss;
    outcome o = {0};
    const tg_place place = tg_backend_place(ctx);
    const tg_mem_usage before = tg_context_memory(ctx, place);
    net_ok(ctx, tg_fno_plan(ctx, &config, 3, grid, true, NULL, &planned));
    net_ok(ctx, tg_fno_create(ctx, &config, 5, &fno));
    net_ok(ctx, tg_fno_prepare(fno, 3, grid, true));
    const tg_mem_usage after = tg_context_memory(ctx, place);
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        if (c != TG_MEM_OTHER && c != TG_MEM_WORKSPACE) { /* transforms keep theirs on the host */
            assert_int_equal(after.current[c] - before.current[c], planned.bytes[c]);
        }
    }
    net_ok(ctx, tg_loss_config_parse(ctx, "loss", "h1 + l2 + 0.1*hs0.5", &loss));
    loss.channels = 1;
    loss.channel_weight[0] = 1.5;
    loss.physics = config.complex_data     ? TG_PHYSICS_NONE
                   : config.n_modes[0] > 6 ? TG_PHYSICS_NS
                                           : TG_PHYSICS_DARCY;
    loss.physics_time = 0.1;
    tg_tensor x = net_random(ctx, &config, 2, config.in_channels, grid, 1);
    tg_tensor target = net_random(ctx, &config, 2, config.out_channels, grid, 2);
    o.gradients = net_gradients_make(ctx, fno);
    const tg_grad_sink sink = net_sink(&o.gradients);
    net_ok(ctx, tg_fno_loss_backward(fno, &x, &target, &loss, &sink, &o.loss));
    net_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, target.dtype, &target.shape, &o.y));
    net_ok(ctx, tg_fno_forward(fno, &x, &o.y));
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&target);
    tg_fno_destroy(&fno);
    return o;
}

static void assert_same_bits(const tg_tensor *a, const tg_tensor *b) {
    assert_true(tg_shape_equal(&a->shape, &b->shape) && a->dtype == b->dtype);
    assert_memory_equal(a->data, b->data, tg_tensor_bytes(a));
}

TEST(networks_give_the_same_bits) {
    for (int i = 0; i < COUNT(networks); i++) {
        tg_context *ctx[2] = {net_context("cpu", 2), net_context("fake", 2)};
        outcome o[2] = {pass(ctx[0], networks[i]), pass(ctx[1], networks[i])};
        assert_true(isfinite(o[0].loss) && o[0].loss == o[1].loss);
        assert_same_bits(&o[0].y, &o[1].y);
        assert_int_equal(o[0].gradients.received, o[0].gradients.count);
        for (int p = 0; p < o[0].gradients.count; p++) {
            assert_same_bits(&o[0].gradients.gradient[p], &o[1].gradients.gradient[p]);
        }
        for (int side = 0; side < 2; side++) {
            tg_tensor_destroy(&o[side].y);
            net_gradients_free(&o[side].gradients);
            tg_context_destroy(&ctx[side]);
        }
    }
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
