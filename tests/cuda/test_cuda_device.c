/* The device slots of the CUDA backend: what the probe says, memory in the ledger, and data to the
 * GPU and back, by a table that is filled and opened by hand; then contexts with a device, a stream
 * and memory of their caller, and contexts of several threads. Tests that need a GPU are skipped
 * where there is none. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "support/cmocka.h"

static tg_context *ctx;
static tg_backend_ops ops;
static tg_backend be;

static int open_backend(void **state) {
    (void)state;
    if (tg_context_create(NULL, &ctx) != TG_OK) {
        return -1;
    }
    tg_backend_fill_cuda(&ops);
    be = (tg_backend){.ops = &ops, .ctx = ctx, .threads = 1};
    return 0;
}

static int close_backend(void **state) {
    (void)state;
    if (be.state) {
        ops.close(&be);
    }
    tg_context_destroy(&ctx);
    return 0;
}

static void need_gpu(void) {
    tg_backend_info info = {0};
    ops.probe(&info);
    if (info.device[0] == '\0') {
        skip();
    }
    assert_int_equal(ops.open(&be), TG_OK);
}

/* Whether the process has a library of that name. */
static bool has_loaded(const char *name) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    bool is_there = false;
    assert_non_null(maps);
    while (!is_there && fgets(line, sizeof line, maps)) {
        is_there = strstr(line, name) != NULL;
    }
    fclose(maps);
    return is_there;
}

/* The best backend where there is a GPU; elsewhere listed with its reason, and never chosen,
 * and nothing is loaded for it. */
TEST_WITH(test_choice, open_backend, close_backend) {
    tg_backend_info info = {0};
    ops.probe(&info);
    assert_int_equal(info.available, info.device[0] != '\0');
    assert_int_equal(strstr(info.libraries, "cuBLAS") != NULL, info.available);
    assert_int_equal(has_loaded("libcublas."), info.available);
    if (!info.available) {
        assert_true(strlen(info.reason) > 0);
        assert_int_equal(tg_backend_select(ctx, "cuda"), TG_E_BACKEND);
        assert_non_null(strstr(tg_context_error(ctx), info.reason));
    }
    assert_int_equal(tg_backend_select(ctx, NULL), TG_OK);
    assert_string_equal(tg_backend_name(ctx), info.available ? "cuda" : "cpu");
}

TEST_WITH(test_round_trip, open_backend, close_backend) {
    need_gpu();
    enum { N = 65537 };
    static unsigned char sent[N], got[N + 2];
    for (int i = 0; i < N; i++) {
        sent[i] = (unsigned char)(i * 31 + 7);
    }
    memset(got, 0xA5, sizeof got);
    const size_t before = tg_context_memory(ctx, TG_DEVICE).current_total;
    void *d_a = ops.alloc(&be, TG_MEM_WEIGHTS, N);
    void *d_b = ops.alloc(&be, TG_MEM_DATA, N);
    assert_non_null(d_a);
    assert_non_null(d_b);
    assert_int_equal(ops.upload(&be, d_a, sent, N), TG_OK);
    assert_int_equal(ops.copy(&be, d_b, d_a, N), TG_OK);
    assert_int_equal(ops.download(&be, got + 1, d_b, N), TG_OK);
    assert_int_equal(ops.synchronize(&be), TG_OK);
    assert_memory_equal(got + 1, sent, N);
    assert_int_equal(got[0], 0xA5);
    assert_int_equal(got[N + 1], 0xA5);

    tg_mem_usage usage = tg_context_memory(ctx, TG_DEVICE);
    assert_int_equal(usage.current[TG_MEM_WEIGHTS], N);
    assert_int_equal(usage.current_total, before + 2 * N);
    ops.release(&be, d_a);
    ops.release(&be, d_b);
    ops.release(&be, NULL);
    usage = tg_context_memory(ctx, TG_DEVICE);
    assert_int_equal(usage.current_total, before);
    assert_int_equal(usage.peak_total, before + 2 * N);
}

TEST_WITH(test_empty_block, open_backend, close_backend) {
    need_gpu();
    void *d_none = ops.alloc(&be, TG_MEM_OTHER, 0);
    assert_non_null(d_none);
    assert_int_equal(ops.upload(&be, d_none, NULL, 0), TG_OK);
    ops.release(&be, d_none);
}

TEST_WITH(test_out_of_memory, open_backend, close_backend) {
    need_gpu();
    const size_t before = tg_context_memory(ctx, TG_DEVICE).current_total;
    assert_null(ops.alloc(&be, TG_MEM_ACTIVATIONS, (size_t)1 << 50));
    assert_non_null(strstr(tg_context_error(ctx), "activations"));
    void *d_small = ops.alloc(&be, TG_MEM_OTHER, 16); /* the failure left no trace */
    assert_non_null(d_small);
    ops.release(&be, d_small);
    assert_int_equal(tg_context_memory(ctx, TG_DEVICE).current_total, before);
}

/* A wrong pointer is an error of the call, with a sentence. */
TEST_WITH(test_bad_pointer, open_backend, close_backend) {
    need_gpu();
    char host[8];
    assert_int_equal(ops.download(&be, host, (const void *)(uintptr_t)8, sizeof host),
                     TG_E_BACKEND);
    assert_non_null(strstr(tg_context_error(ctx), "copying from the GPU"));
}

/* ---- what a context takes from its caller ---- */

static tg_context *context_with(const tg_context_config *config) {
    tg_context *made = NULL;
    assert_int_equal(tg_context_create(config, &made), TG_OK);
    return made;
}

/* x = 3 x on the GPU, there and back. */
static void compute(tg_context *on) {
    enum { N = 1000 };
    float values[N];
    tg_tensor host, x;
    tg_backend *made = NULL;
    const tg_shape shape = {1, {N}};
    for (int i = 0; i < N; i++) {
        values[i] = (float)i;
    }
    assert_int_equal(tg_backend_get(on, &made), TG_OK);
    assert_int_equal(tg_tensor_wrap(on, TG_F32, &shape, values, &host), TG_OK);
    assert_int_equal(tg_backend_tensor(on, TG_MEM_DATA, TG_F32, &shape, &x), TG_OK);
    assert_int_equal(tg_backend_copy(on, &host, &x), TG_OK);
    assert_int_equal(made->ops->axpy(made, TG_F32, N, (tg_scalar){3.0, 0.0}, NULL, x.data), TG_OK);
    memset(values, 0, sizeof values);
    assert_int_equal(tg_backend_copy(on, &x, &host), TG_OK);
    for (int i = 0; i < N; i++) {
        assert_true(values[i] == 3.0f * (float)i);
    }
    tg_tensor_destroy(&x);
}

/* The default streams of CUDA have fixed handles: cudaStreamLegacy and cudaStreamPerThread. */
TEST_WITH(test_stream_of_the_caller, open_backend, close_backend) {
    need_gpu();
    for (uintptr_t handle = 0; handle <= 2; handle++) {
        tg_context_config config = tg_context_config_default();
        config.device = handle == 2 ? 0 : -1;
        config.stream = (void *)handle;
        tg_context *on = context_with(&config);
        assert_int_equal(tg_backend_select(on, "cuda"), TG_OK);
        compute(on);
        tg_context_destroy(&on);
    }
}

TEST_WITH(test_device_that_is_not_there, open_backend, close_backend) {
    need_gpu();
    tg_context_config config = tg_context_config_default();
    config.device = 1000;
    tg_context *on = context_with(&config);
    assert_int_equal(tg_backend_select(on, "cuda"), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(on), "device 1000 is requested, backend cuda has "));
    tg_context_destroy(&on);
}

/* An allocator whose memory is that of the table above. */
static void *give(void *user, size_t bytes, tg_place place, void *stream) {
    (void)stream;
    assert_int_equal(place, TG_DEVICE);
    ++*(int *)user;
    return ops.alloc(&be, TG_MEM_OTHER, bytes);
}

static void take_back(void *user, void *block, size_t bytes, tg_place place, void *stream) {
    (void)bytes;
    (void)place;
    (void)stream;
    --*(int *)user;
    ops.release(&be, block);
}

TEST_WITH(test_memory_of_the_caller, open_backend, close_backend) {
    need_gpu();
    int alive = 0;
    const size_t before = tg_context_memory(ctx, TG_DEVICE).current_total;
    tg_context_config config = tg_context_config_default();
    config.allocator = (tg_allocator){.alloc = give, .release = take_back, .user = &alive};
    tg_context *on = context_with(&config);
    assert_int_equal(tg_backend_select(on, "cuda"), TG_OK);
    compute(on);
    const tg_mem_usage usage = tg_context_memory(on, TG_DEVICE);
    assert_int_equal(alive, usage.blocks);
    assert_int_equal(tg_context_memory(ctx, TG_DEVICE).current_total, before + usage.current_total);
    tg_context_destroy(&on);
    assert_int_equal(alive, 0);
    assert_int_equal(tg_context_memory(ctx, TG_DEVICE).current_total, before);
}

/* ---- contexts of several threads ---- */

enum { LINES = 8, LONGEST = 4800 };

/* Transforms the same lines of n points `rounds` times, in a context of its own. */
typedef struct transformer {
    int64_t n;
    int rounds;
    tg_status status;
    float spectra[LINES * (LONGEST + 2)]; /* of the last round */
} transformer;

static tg_status transform_lines(tg_backend *on, transformer *t) {
    const int64_t n = t->n, kept = n / 2 + 1;
    const tg_fft_desc desc = {
        .dtype = TG_F32, .ndim = 1, .grid = {n}, .kept = {kept}, .howmany = LINES};
    tg_tensor x = {0}, spectra = {0};
    tg_fft_plan *plan = NULL;
    tg_status status = TG_OK;
    TG_TRY(tg_backend_tensor(on->ctx, TG_MEM_DATA, TG_F32, &(tg_shape){2, {LINES, n}}, &x));
    TG_TRY(
        tg_backend_tensor(on->ctx, TG_MEM_DATA, TG_C64, &(tg_shape){2, {LINES, kept}}, &spectra));
    for (int64_t i = 0; i < LINES * n; i++) {
        t->spectra[i] = (float)(i * i % 101) - 50.0f;
    }
    TG_TRY(on->ops->upload(on, x.data, t->spectra, tg_tensor_bytes(&x)));
    TG_TRY(on->ops->fft_create(on, &desc, &plan));
    for (int round = 0; round < t->rounds; round++) {
        TG_TRY(
            on->ops->fft(on, plan, TG_FFT_FORWARD, LINES, TG_FFT_PLAIN, 1.0, x.data, spectra.data));
    }
    TG_TRY(on->ops->download(on, t->spectra, spectra.data, tg_tensor_bytes(&spectra)));
fail:
    on->ops->fft_destroy(on, &plan);
    tg_tensor_destroy(&spectra);
    tg_tensor_destroy(&x);
    return status;
}

static void *transform(void *user) {
    transformer *t = user;
    tg_context *own = NULL;
    tg_backend *on = NULL;
    t->status = tg_context_create(NULL, &own);
    t->status = t->status == TG_OK ? tg_backend_select(own, "cuda") : t->status;
    t->status = t->status == TG_OK ? tg_backend_get(own, &on) : t->status;
    t->status = t->status == TG_OK ? transform_lines(on, t) : t->status;
    tg_context_destroy(&own);
    return NULL;
}

/* One kernel with different amounts of shared memory, launched by three threads. */
TEST_WITH(test_threads, open_backend, close_backend) {
    static const int64_t lengths[] = {LONGEST, 1000, 3000};
    enum { THREADS = 3 };
    need_gpu();
    transformer *alone = calloc(THREADS, sizeof *alone), *together = calloc(THREADS, sizeof *alone);
    pthread_t thread[THREADS];
    assert_non_null(alone);
    assert_non_null(together);
    for (int i = 0; i < THREADS; i++) {
        alone[i].n = together[i].n = lengths[i];
        alone[i].rounds = 1;
        together[i].rounds = 4000;
        transform(&alone[i]);
        assert_int_equal(alone[i].status, TG_OK);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, transform, &together[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(together[i].status, TG_OK);
        assert_memory_equal(together[i].spectra, alone[i].spectra, sizeof alone[i].spectra);
    }
    free(alone);
    free(together);
}
