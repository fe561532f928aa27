/* What a context takes from its caller: the device, the stream and the memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "support/fake_device.h"
#include "support/network.h"

/* ---- device and stream ---- */

static tg_status choose(int device, void *stream, const char *backend, int *used, char *error,
                        size_t capacity) {
    tg_context_config config = tg_context_config_default();
    config.threads = 1;
    config.device = device;
    config.stream = stream;
    tg_context *ctx = NULL;
    tg_backend *be = NULL;
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    const tg_status status = tg_backend_select(ctx, backend);
    if (status == TG_OK) {
        net_ok(ctx, tg_backend_get(ctx, &be));
        *used = be->device;
    } else {
        assert_string_equal(tg_backend_name(ctx), "");
    }
    snprintf(error, capacity, "%s", tg_context_error(ctx));
    tg_context_destroy(&ctx);
    return status;
}

TEST(test_device_and_stream) {
    int other = 0; /* its address is no stream */
    const struct {
        int device;
        void *stream;
        const char *backend;
        int used;
        const char *error; /* NULL: it works */
    } rows[] = {
        {-1, NULL, "fake", 0, NULL},
        {1, NULL, "fake", 1, NULL},
        {-1, fake_device_stream(1), "fake", 1, NULL},
        {1, fake_device_stream(1), "fake", 1, NULL},
        {-1, NULL, "cpu", 0, NULL},
        {0, fake_device_stream(1), "fake", 0,
         "the stream belongs to device 1, but device 0 is requested"},
        {FAKE_DEVICES, NULL, "fake", 0, "device 4 is requested, backend fake has 4"},
        {-1, &other, "fake", 0, "stream"},
        {0, NULL, "cpu", 0, "it has a device, but backend cpu computes on the host"},
        {-1, fake_device_stream(0), "ref", 0, "it has a stream, but backend ref computes on the"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char error[256];
        int used = -1;
        const tg_status status =
            choose(rows[i].device, rows[i].stream, rows[i].backend, &used, error, sizeof error);
        if (!rows[i].error) {
            assert_int_equal(status, TG_OK);
            assert_int_equal(used, rows[i].used);
        } else if (status == TG_OK || !strstr(error, rows[i].error)) {
            fail_msg("row %zu: status %d, '%s'", i, (int)status, error);
        }
    }
}

static void expect_no_context(const tg_context_config *config, const char *words) {
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(config, &ctx), TG_E_ARGUMENT);
    assert_null(ctx);
    assert_non_null(strstr(tg_context_error(NULL), words));
}

/* ---- memory of the caller ---- */

/* An allocator that knows what it gave. */
typedef struct keeper {
    size_t bytes[TG_PLACES], blocks[TG_PLACES], asked;
    void *stream; /* that comes with device memory */
    bool is_wrong_stream, is_crooked;
} keeper;

static void *keep_alloc(void *user, size_t bytes, tg_place place, void *stream) {
    keeper *k = user;
    void *block = NULL;
    assert_true(bytes > 0);
    if (posix_memalign(&block, TG_DEVICE_ALIGNMENT, bytes + TG_DEVICE_ALIGNMENT) != 0) {
        return NULL;
    }
    memset(block, 0xFF, bytes); /* NaN */
    k->bytes[place] += bytes;
    k->blocks[place]++;
    k->asked++;
    k->is_wrong_stream = k->is_wrong_stream || stream != (place == TG_DEVICE ? k->stream : NULL);
    return k->is_crooked ? (char *)block + 8 : block;
}

static void keep_release(void *user, void *block, size_t bytes, tg_place place, void *stream) {
    keeper *k = user;
    k->bytes[place] -= bytes;
    k->blocks[place]--;
    k->is_wrong_stream = k->is_wrong_stream || stream != (place == TG_DEVICE ? k->stream : NULL);
    free(k->is_crooked ? (char *)block - 8 : block);
}

static tg_context *context_with(keeper *k, const char *backend, bool serves_host) {
    tg_context_config config = tg_context_config_default();
    config.threads = 1;
    config.math = TG_MATH_FP32;
    config.stream = k ? k->stream : NULL;
    config.allocator = (tg_allocator){.alloc = k ? keep_alloc : NULL,
                                      .release = k ? keep_release : NULL,
                                      .user = k,
                                      .serves_host = serves_host};
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    net_ok(ctx, tg_backend_select(ctx, backend));
    return ctx;
}

/* The ledger and the allocator say the same; host blocks carry a header. */
static void compare_books(const tg_context *ctx, const keeper *k, bool serves_host) {
    const tg_mem_usage device = tg_context_memory(ctx, TG_DEVICE);
    const tg_mem_usage host = tg_context_memory(ctx, TG_HOST);
    assert_int_equal(k->blocks[TG_DEVICE], device.blocks);
    assert_int_equal(k->bytes[TG_DEVICE], device.current_total);
    assert_int_equal(k->bytes[TG_HOST],
                     serves_host ? host.current_total + TG_ALIGNMENT * k->blocks[TG_HOST] : 0);
}

/* The loss of two steps, whose memory is compared on the way. */
static double train(tg_context *ctx, const keeper *k, bool serves_host) {
    const int64_t grid[2] = {8, 8};
    const tg_fno_config config =
        net_config(ctx, "{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 1}");
    const tg_loss_config loss_config = tg_loss_config_default();
    tg_fno *fno = NULL;
    net_ok(ctx, tg_fno_create(ctx, &config, 1, &fno));
    net_ok(ctx, tg_fno_prepare(fno, 2, grid, true));
    tg_tensor x = net_random(ctx, &config, 2, 1, grid, 3),
              y = net_random(ctx, &config, 2, 1, grid, 4);
    net_gradients gradients = net_gradients_make(ctx, fno);
    const tg_grad_sink sink = net_sink(&gradients);
    double loss = 0.0;
    net_ok(ctx, tg_fno_loss_backward(fno, &x, &y, &loss_config, &sink, &loss));
    if (k) {
        compare_books(ctx, k, serves_host);
    }
    net_gradients_free(&gradients);
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    tg_fno_destroy(&fno);
    return loss;
}

TEST(test_allocator) {
    tg_context *plain = context_with(NULL, "cpu", false);
    const double expected = train(plain, NULL, false);
    tg_context_destroy(&plain);
    for (int i = 0; i < 4; i++) {
        const bool on_device = i < 2, serves_host = i % 2;
        keeper k = {.stream = on_device ? fake_device_stream(1) : NULL};
        tg_context *ctx = context_with(&k, on_device ? "fake" : "cpu", serves_host);
        assert_true(train(ctx, &k, serves_host) == expected);
        assert_int_equal(k.asked > 0, on_device || serves_host);
        assert_false(k.is_wrong_stream);
        tg_context_destroy(&ctx);
        for (int place = 0; place < TG_PLACES; place++) {
            assert_int_equal(k.blocks[place], 0);
            assert_int_equal(k.bytes[place], 0);
        }
    }
}

static void *give_nothing(void *user, size_t bytes, tg_place place, void *stream) {
    (void)user;
    (void)bytes;
    (void)place;
    (void)stream;
    return NULL;
}

TEST(test_allocator_refused) {
    tg_context_config config = tg_context_config_default();
    keeper k = {0};
    config.allocator = (tg_allocator){.alloc = keep_alloc, .user = &k};
    expect_no_context(&config, "both alloc and release");
    config.allocator = (tg_allocator){.serves_host = true};
    expect_no_context(&config, "both alloc and release");
    config = tg_context_config_default();
    config.device = -2;
    expect_no_context(&config, "device -2");
    config = tg_context_config_default();
    config.threads = -1;
    expect_no_context(&config, "-1 threads");

    /* no memory, and memory that kernels cannot use */
    config = tg_context_config_default();
    config.allocator = (tg_allocator){.alloc = give_nothing, .release = keep_release, .user = &k};
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    assert_int_equal(tg_backend_select(ctx, "fake"), TG_E_MEMORY);
    assert_non_null(strstr(tg_context_error(ctx), "out of device memory"));
    tg_context_destroy(&ctx);
    k.is_crooked = true;
    config.allocator.alloc = keep_alloc;
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    assert_int_equal(tg_backend_select(ctx, "fake"), TG_E_MEMORY);
    assert_non_null(strstr(tg_context_error(ctx), "not aligned to 256 bytes"));
    tg_context_destroy(&ctx);
    assert_int_equal(k.blocks[TG_DEVICE], 0);
    config.allocator.serves_host = true;
    assert_int_equal(tg_context_create(&config, &ctx), TG_E_MEMORY);
    assert_int_equal(k.blocks[TG_HOST], 0);
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
