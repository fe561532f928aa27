/* Tensors that lie elsewhere than the backend computes, or have another dtype or shape than a call
 * takes: each is refused with a sentence that names the tensor, what is needed and what was found.
 */
#include <string.h>

#include "optim/optim.h"
#include "support/fake_device.h"
#include "support/network.h"

enum { ROWS = 6, COLUMNS = 5, NUMEL = ROWS * COLUMNS };

/* An optimizer of one parameter, a projector of the same shape, and good tensors for both. */
typedef struct bench {
    tg_context *ctx;
    tg_optim *optim;
    tg_projector *projector;
    tg_tensor weight, gradient, small, out;
} bench;

static const tg_shape shape = {2, {ROWS, COLUMNS}};

static tg_tensor make(tg_context *ctx, int64_t count) {
    tg_tensor host = {0}, made = {0};
    const tg_shape flat = {1, {count}};
    net_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_F64, &flat, &host));
    net_ok(ctx, tg_backend_tensor(ctx, TG_MEM_DATA, TG_F64, &flat, &made));
    for (int64_t i = 0; i < count; i++) {
        ((double *)host.data)[i] = 1.0 + (double)(i % 7);
    }
    net_ok(ctx, tg_backend_copy(ctx, &host, &made));
    tg_tensor_destroy(&host);
    return made;
}

static bench begin(const char *backend) {
    bench b = {.ctx = net_context(backend, 1)};
    tg_optim_config group = tg_optim_config_default();
    const tg_optim_param param = {.name = "fc1", .dtype = TG_F64, .shape = shape};
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = &group,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1,
                                  .accumulates = true};
    net_ok(b.ctx, tg_optim_create(b.ctx, &setup, &b.optim));
    net_ok(b.ctx, tg_projector_create(b.ctx, &group.projector, TG_F64, &shape, 1, &b.projector));
    b.weight = make(b.ctx, NUMEL);
    b.gradient = make(b.ctx, NUMEL);
    b.out = make(b.ctx, NUMEL);
    b.weight.shape = b.gradient.shape = b.out.shape = shape;
    b.small = make(b.ctx, tg_projector_count(b.projector));
    return b;
}

static void end(bench *b) {
    tg_tensor *const tensors[] = {&b->weight, &b->gradient, &b->small, &b->out};
    for (int i = 0; i < 4; i++) {
        tg_tensor_destroy(tensors[i]);
    }
    tg_projector_destroy(&b->projector);
    tg_optim_destroy(&b->optim);
    tg_context_destroy(&b->ctx);
}

static tg_gradient dense(const bench *b) {
    return (tg_gradient){.dtype = b->gradient.dtype,
                         .shape = b->gradient.shape,
                         .dense = b->gradient.data,
                         .place = b->gradient.place};
}

/* ---- every call with good tensors, of which one is then spoilt ---- */

static tg_status do_step(bench *b) {
    return tg_optim_step(b->optim, 0, &b->gradient, &b->weight);
}

static tg_status do_step_gradient(bench *b) {
    const tg_gradient g = dense(b);
    return tg_optim_step_gradient(b->optim, &g, &b->weight);
}

static tg_status do_accumulate(bench *b) {
    const tg_gradient g = dense(b);
    return tg_optim_accumulate(b->optim, &g);
}

static tg_status do_apply(bench *b) {
    return tg_optim_apply(b->optim, 0, &b->weight);
}

static tg_status do_bind(bench *b) {
    return tg_optim_bind(b->optim, 0, &b->weight);
}

static tg_status do_refresh(bench *b) {
    return tg_projector_refresh(b->projector, &b->gradient);
}

static tg_status do_project(bench *b) {
    const tg_gradient g = dense(b);
    return tg_projector_project(b->projector, &g, 1.0, 0.0, &b->small);
}

static tg_status do_back(bench *b) {
    return tg_projector_back(b->projector, &b->small, 1.0, 0.0, &b->out);
}

static tg_status do_residual(bench *b) {
    return tg_projector_residual(b->projector, &b->gradient, &b->small, &b->out);
}

static const struct {
    tg_status (*call)(bench *b);
    size_t tensor; /* of the bench, to be spoilt */
    const char *subject;
} calls[] = {
#define TENSOR(name) offsetof(bench, name)
    {do_step, TENSOR(weight), "weight of fc1: "},
    {do_step, TENSOR(gradient), "gradient of fc1: "},
    {do_step_gradient, TENSOR(weight), "weight of fc1: "},
    {do_step_gradient, TENSOR(gradient), "gradient of fc1: "},
    {do_accumulate, TENSOR(gradient), "gradient of fc1: "},
    {do_apply, TENSOR(weight), "weight of fc1: "},
    {do_bind, TENSOR(weight), "weight of fc1: "},
    {do_refresh, TENSOR(gradient), "gradient: "},
    {do_project, TENSOR(gradient), "gradient: "},
    {do_project, TENSOR(small), "small: "},
    {do_back, TENSOR(small), "small: "},
    {do_back, TENSOR(out), "out: "},
    {do_residual, TENSOR(gradient), "gradient: "},
    {do_residual, TENSOR(small), "small: "},
    {do_residual, TENSOR(out), "out: "},
#undef TENSOR
};

static void expect(bench *b, size_t row, tg_status status, const char *words) {
    const tg_status found = calls[row].call(b);
    const char *error = tg_context_error(b->ctx);
    if (found != status || strncmp(error, calls[row].subject, strlen(calls[row].subject)) != 0 ||
        !strstr(error, words)) {
        fail_msg("call %zu: status %d, '%s', expected '%s..%s'", row, (int)found, error,
                 calls[row].subject, words);
    }
}

static void refused(const char *backend, tg_place wrong, const char *words) {
    bench b = begin(backend);
    net_ok(b.ctx, do_refresh(&b));
    for (size_t row = 0; row < sizeof calls / sizeof calls[0]; row++) {
        tg_tensor *tensor = (tg_tensor *)(void *)((char *)&b + calls[row].tensor);
        const tg_tensor good = *tensor;
        tensor->place = wrong;
        expect(&b, row, TG_E_ARGUMENT, words);
        *tensor = good;
        tensor->dtype = TG_F32;
        expect(&b, row, TG_E_DTYPE, "f64 is needed, not f32");
        *tensor = good;
        tensor->shape.dim[0]++;
        expect(&b, row, TG_E_SHAPE, "is needed");
        *tensor = good;
    }
    /* and with all of them good */
    tg_status (*const order[])(bench *) = {do_step,    do_step_gradient, do_accumulate,
                                           do_apply,   do_bind,          do_refresh,
                                           do_project, do_back,          do_residual};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        net_ok(b.ctx, order[i](&b));
    }
    end(&b);
}

TEST(test_refused) {
    refused("fake", TG_HOST, "it is on the host, but backend fake computes on a device");
    refused("cpu", TG_DEVICE, "it is on a device, but backend cpu computes on the host");
}

/* Memory of the caller on the device, as a framework hands it in. */
TEST(test_wrapped_on_a_device) {
    bench b = begin("fake");
    double before[NUMEL], after[NUMEL];
    tg_tensor host, view;
    net_ok(b.ctx, tg_tensor_wrap(b.ctx, TG_F64, &shape, before, &host));
    net_ok(b.ctx, tg_backend_copy(b.ctx, &b.weight, &host));
    net_ok(b.ctx, tg_tensor_wrap_at(b.ctx, TG_DEVICE, TG_F64, &shape, b.weight.data, &view));
    assert_null(view.owner);
    net_ok(b.ctx, tg_optim_step(b.optim, 0, &b.gradient, &view));
    net_ok(b.ctx, tg_tensor_wrap(b.ctx, TG_F64, &shape, after, &host));
    net_ok(b.ctx, tg_backend_copy(b.ctx, &view, &host));
    for (int i = 0; i < NUMEL; i++) {
        assert_true(after[i] < before[i]); /* the gradient is positive */
    }
    assert_int_equal(tg_tensor_wrap_at(b.ctx, TG_PLACES, TG_F64, &shape, after, &view),
                     TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(b.ctx), "place number 2"));
    end(&b);
}

/* Networks take tensors of the host and of their device, and none of another one. */
TEST(test_networks) {
    const int64_t grid[1] = {8};
    tg_context *ctx = net_context("cpu", 1);
    const tg_fno_config config = net_config(ctx, "{\"n_modes\": [4], \"hidden_channels\": 4}");
    tg_fno *fno = NULL;
    net_ok(ctx, tg_fno_create(ctx, &config, 1, &fno));
    net_ok(ctx, tg_fno_prepare(fno, 1, grid, true));
    tg_tensor x = net_random(ctx, &config, 1, 1, grid, 1),
              y = net_random(ctx, &config, 1, 1, grid, 2);
    tg_tensor elsewhere = y;
    elsewhere.place = TG_DEVICE;
    elsewhere.owner = NULL;
    assert_int_equal(tg_fno_forward(fno, &elsewhere, &y), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "x: it is on a device"));
    assert_int_equal(tg_fno_forward(fno, &x, &elsewhere), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "y: it is on a device"));
    assert_int_equal(tg_backend_copy(ctx, &x, &elsewhere), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "copy to: it is on a device"));
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    tg_fno_destroy(&fno);
    tg_context_destroy(&ctx);
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
