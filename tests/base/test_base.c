/* Context, errors, log, memory ledger, partitions. */
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/memory.h"
#include "base/system.h"
#include "support/cmocka.h"
#include "tgrad/tgrad.h"

typedef struct log_record {
    int count;
    tg_log_level level;
    char text[512];
} log_record;

static void record(void *user, tg_log_level level, const char *message) {
    log_record *log = user;
    log->count++;
    log->level = level;
    strncpy(log->text, message, sizeof log->text - 1);
}

TEST(test_status_names) {
    for (int i = 0; i < TG_STATUS_COUNT; i++) {
        assert_non_null(tg_status_name((tg_status)i));
        assert_string_not_equal(tg_status_name((tg_status)i), "unknown status");
    }
    assert_string_equal(tg_status_name((tg_status)999), "unknown status");
    assert_string_equal(tg_status_name((tg_status)-1), "unknown status");
}

TEST(test_context) {
    log_record log = {0};
    tg_context_config config = tg_context_config_default();
    config.threads = 3;
    config.log = record;
    config.log_user = &log;
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    assert_int_equal(tg_context_threads(ctx), 3);
    assert_string_equal(tg_context_error(ctx), "");
    assert_int_equal(tg_fail(ctx, TG_E_SHAPE, "found %d", 7), TG_E_SHAPE);
    assert_string_equal(tg_context_error(ctx), "found 7");
    assert_int_equal(log.count, 0); /* a returned error is not logged at the default level */
    tg_log(ctx, TG_LOG_WARN, "hello %s", "there");
    assert_int_equal(log.count, 1);
    assert_string_equal(log.text, "hello there");
    tg_log(ctx, TG_LOG_DEBUG, "dropped");
    assert_int_equal(log.count, 1);
    tg_log(ctx, TG_LOG_INFO, "of the default level");
    assert_int_equal(log.count, 2);
    assert_int_equal(log.level, TG_LOG_INFO);
    tg_context_destroy(&ctx);
    assert_null(ctx);
    tg_context_destroy(&ctx);
    tg_context_destroy(NULL);
    assert_int_equal(log.count, 2);

    config.threads = -1;
    assert_int_equal(tg_context_create(&config, &ctx), TG_E_ARGUMENT);
    assert_null(ctx);
    config.threads = 1;
    config.log_level = TG_LOG_DEBUG; /* then it is, with its place in the source */
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    assert_int_equal(tg_fail(ctx, TG_E_SHAPE, "found %d", 7), TG_E_SHAPE);
    assert_non_null(strstr(log.text, "test_base.c:"));
    tg_context_destroy(&ctx);
}

TEST(test_ledger) {
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    const tg_mem_usage start = tg_context_memory(ctx, TG_HOST);
    char *a = tg_mem_alloc(ctx, TG_MEM_WEIGHTS, 100, 3);
    char *b = tg_mem_calloc(ctx, TG_MEM_DATA, 7, 1);
    char *c = tg_mem_alloc(ctx, TG_MEM_DATA, 0, 8);
    assert_true(a && b && c);
    assert_int_equal((uintptr_t)a % TG_ALIGNMENT, 0);
    assert_int_equal((uintptr_t)b % TG_ALIGNMENT, 0);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(b[i], 0);
    }
    tg_mem_usage now = tg_context_memory(ctx, TG_HOST);
    assert_int_equal(now.current[TG_MEM_WEIGHTS], 300);
    assert_int_equal(now.current[TG_MEM_DATA], 7);
    assert_int_equal(now.current_total, start.current_total + 307);
    assert_int_equal(now.blocks, start.blocks + 3);
    tg_mem_free(ctx, a);
    tg_mem_free(ctx, c);
    tg_mem_free(ctx, NULL);
    now = tg_context_memory(ctx, TG_HOST);
    assert_int_equal(now.current[TG_MEM_WEIGHTS], 0);
    assert_int_equal(now.peak[TG_MEM_WEIGHTS], 300);
    assert_int_equal(now.peak_total, start.current_total + 307);
    tg_context_memory_reset_peak(ctx);
    now = tg_context_memory(ctx, TG_HOST);
    assert_int_equal(now.peak[TG_MEM_WEIGHTS], 0);
    assert_int_equal(now.peak_total, start.current_total + 7);

    assert_null(tg_mem_alloc(ctx, TG_MEM_WEIGHTS, SIZE_MAX, 2));
    assert_non_null(strstr(tg_context_error(ctx), "overflow"));
    assert_null(tg_mem_alloc(ctx, TG_MEM_WEIGHTS, SIZE_MAX / 4, 1));
    assert_non_null(strstr(tg_context_error(ctx), "weights"));
    tg_mem_free(ctx, b);
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, start.blocks);
    tg_context_destroy(&ctx);
}

/* A pretended device: host memory with a limit. */
typedef struct toy_device {
    size_t limit;
} toy_device;

static void *toy_alloc(void *state, size_t bytes) {
    toy_device *toy = state;
    return bytes <= toy->limit ? malloc(bytes) : NULL;
}

static void toy_release(void *state, void *block) {
    (void)state;
    free(block);
}

TEST(test_device_ledger) {
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    toy_device toy = {.limit = 1000};
    const tg_mem_device device = {
        .alloc = toy_alloc, .release = toy_release, .state = &toy, .place = TG_DEVICE};
    void *a = tg_mem_device_alloc(ctx, &device, TG_MEM_ACTIVATIONS, 600);
    void *b = tg_mem_device_alloc(ctx, &device, TG_MEM_WEIGHTS, 500);
    assert_true(a && b);
    assert_null(tg_mem_device_alloc(ctx, &device, TG_MEM_WEIGHTS, 1001));
    assert_non_null(strstr(tg_context_error(ctx), "device memory"));
    tg_mem_usage usage = tg_context_memory(ctx, TG_DEVICE);
    assert_int_equal(usage.current_total, 1100);
    assert_int_equal(usage.current[TG_MEM_ACTIVATIONS], 600);
    tg_mem_device_free(ctx, &device, a);
    tg_mem_device_free(ctx, &device, b);
    tg_mem_device_free(ctx, &device, NULL);
    usage = tg_context_memory(ctx, TG_DEVICE);
    assert_int_equal(usage.current_total, 0);
    assert_int_equal(usage.peak_total, 1100);
    assert_int_equal(usage.blocks, 0);
    tg_context_destroy(&ctx);
}

TEST(test_leak_is_reported) {
    log_record log = {0};
    tg_context_config config = {.size = sizeof(tg_context_config),
                                .device = -1,
                                .threads = 1,
                                .log = record,
                                .log_user = &log};
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    char *block = tg_mem_alloc(ctx, TG_MEM_DATA, 24, 1);
    assert_non_null(block);
    tg_context_destroy(&ctx);
    assert_int_equal(log.level, TG_LOG_WARN);
    assert_non_null(strstr(log.text, "1 blocks (24 bytes)"));
    free(block - TG_ALIGNMENT);
}

TEST(test_constructors_survive_no_memory) {
    for (long n = 1;; n++) {
        tg_context *ctx = NULL;
        tg_mem_test_fail_at(n);
        tg_status status = tg_context_create(NULL, &ctx);
        bool reached = tg_mem_test_count() >= n;
        if (status == TG_OK && !reached) {
            tg_mem_test_fail_at(0);
            tg_context_destroy(&ctx);
            assert_true(n > 1);
            break;
        }
        tg_mem_test_fail_at(0);
        assert_int_equal(status, TG_E_MEMORY);
        assert_null(ctx);
    }
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    const size_t blocks = tg_context_memory(ctx, TG_HOST).blocks;
    const tg_shape shape = tg_shape_of(2, (int64_t[]){3, 4});
    tg_tensor tensor;
    tg_mem_test_fail_at(1);
    assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, &tensor), TG_E_MEMORY);
    tg_mem_test_fail_at(0);
    assert_null(tensor.data);
    for (int i = 0; i < tg_backend_count(); i++) { /* opening a backend: error code, no leak */
        tg_backend_info info;
        assert_int_equal(tg_backend_describe(ctx, i, &info), TG_OK);
        for (long n = 1; info.available; n++) {
            tg_context *own = NULL;
            assert_int_equal(tg_context_create(NULL, &own), TG_OK);
            const size_t before = tg_context_memory(own, TG_HOST).blocks;
            tg_mem_test_fail_at(n);
            tg_status status = tg_backend_select(own, info.name);
            bool reached = tg_mem_test_count() >= n;
            tg_mem_test_fail_at(0);
            if (reached) {
                assert_int_equal(status, TG_E_MEMORY);
                assert_int_equal(tg_context_memory(own, TG_HOST).blocks, before);
            }
            tg_context_destroy(&own);
            if (!reached) {
                assert_int_equal(status, TG_OK);
                break;
            }
        }
    }
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, blocks);
    tg_context_destroy(&ctx);
}

TEST(test_backend_choice) {
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    assert_string_equal(tg_backend_name(ctx), "");
    assert_int_equal(tg_backend_select(ctx, "abacus"), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "abacus"));
    assert_non_null(strstr(tg_context_error(ctx), "ref, cpu"));
    assert_int_equal(tg_backend_select(ctx, "ref"), TG_OK);
    assert_string_equal(tg_backend_name(ctx), "ref");
    assert_int_equal(tg_backend_select(ctx, "ref"), TG_OK);
    assert_int_equal(tg_backend_select(ctx, "cpu"), TG_E_ARGUMENT);
    tg_backend_info info;
    assert_int_equal(tg_backend_describe(ctx, tg_backend_count(), &info), TG_E_ARGUMENT);
    tg_context_destroy(&ctx);
}

TEST(test_partition_covers) {
    for (int64_t n = 0; n < 40; n++) {
        for (int64_t grain = 1; grain < 9; grain += 3) {
            for (int parts = 1; parts < 9; parts++) {
                int64_t next = 0;
                for (int i = 0; i < parts; i++) {
                    tg_range r = tg_partition(n, grain, parts, i);
                    assert_int_equal(r.begin, next);
                    assert_true(r.end >= r.begin);
                    assert_true(r.end == n || r.end % grain == 0);
                    next = r.end;
                }
                assert_int_equal(next, n);
            }
        }
    }
    assert_true(tg_cpu_count() >= 1);
}

TEST(test_build_info) {
    tg_build_info build = tg_build();
    assert_string_equal(build.version, TG_VERSION);
    assert_true(strlen(build.compiler) > 0 && strlen(build.features) > 0);
}
