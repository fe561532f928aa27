/* What only the cpu backend has: scratch that grows, facts about itself, and threads that share one
 * transform or weight without changing a bit. Everything else is checked with all backends. */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "support/cmocka.h"

static tg_backend *open_cpu(int threads, tg_context **ctx) {
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = threads};
    tg_backend *be = NULL;
    assert_int_equal(tg_context_create(&config, ctx), TG_OK);
    assert_int_equal(tg_backend_open(*ctx, "cpu", &be), TG_OK);
    return be;
}

/* A = D + u u^T with n = 307 needs more LAPACK work than the scratch of one thread holds: what the
 * backend said it would borrow is borrowed and given back. A V = V L and the trace are checked. */
TEST(decompositions_larger_than_scratch) {
    enum { N = 307 };
    tg_context *ctx = NULL;
    tg_backend *be = open_cpu(1, &ctx);
    double *a = calloc((size_t)N * N * 2, sizeof *a), *v = calloc((size_t)N * N * 2, sizeof *v);
    double values[N], trace = 0.0, sum = 0.0, worst = 0.0;
    assert_non_null(a);
    assert_non_null(v);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) { /* u_k = e^{i k} / sqrt(N) */
            a[2 * (i * N + j)] = cos(i - j) / N + (i == j ? i * 0.01 : 0.0);
            a[2 * (i * N + j) + 1] = sin(i - j) / N;
        }
        trace += a[2 * (i * N + i)];
    }
    const size_t held = tg_context_memory(ctx, TG_HOST).current[TG_MEM_WORKSPACE];
    const size_t borrowed = be->ops->scratch_need(be, TG_SCRATCH_EIGH, TG_C128, 0, N).place;
    tg_context_memory_reset_peak(ctx);
    for (int run = 0; run < 3; run++) {
        memcpy(v, a, (size_t)N * N * 2 * sizeof *v);
        assert_int_equal(be->ops->eigh(be, TG_C128, N, v, values), TG_OK);
    }
    const tg_mem_usage usage = tg_context_memory(ctx, TG_HOST);
    assert_true(borrowed > held);
    assert_int_equal(usage.current[TG_MEM_WORKSPACE], held);
    assert_int_equal(usage.peak[TG_MEM_WORKSPACE], held + borrowed);
    assert_int_equal(be->ops->scratch_need(be, TG_SCRATCH_EIGH, TG_C128, 0, 5).place, 0);
    for (int j = 0; j < N; j++) {
        sum += values[j];
        assert_true(j == 0 || values[j] <= values[j - 1]);
        for (int i = 0; i < N; i++) {
            double re = -values[j] * v[2 * (i * N + j)], im = -values[j] * v[2 * (i * N + j) + 1];
            for (int k = 0; k < N; k++) {
                const double *x = a + 2 * (i * N + k), *y = v + 2 * (k * N + j);
                re += x[0] * y[0] - x[1] * y[1];
                im += x[0] * y[1] + x[1] * y[0];
            }
            worst = fmax(worst, hypot(re, im));
        }
    }
    assert_true(worst <= 1e-12);
    assert_true(fabs(sum - trace) <= 1e-10);
    free(a);
    free(v);
    tg_backend_close(&be);
    tg_context_destroy(&ctx);
}

/* A transform is the same bits whether threads take whole transforms or share each one. */
TEST(transforms_do_not_depend_on_threads) {
    enum { HOWMANY = 2, ROWS = 37, LENGTH = 50, KEPT = 20, COLUMNS = 13 };
    static float x[HOWMANY * ROWS * LENGTH], back[2][HOWMANY * ROWS * LENGTH];
    static float spectrum[2][HOWMANY * KEPT * COLUMNS * 2];
    static const int threads[2] = {1, 5};
    for (int i = 0; i < HOWMANY * ROWS * LENGTH; i++) {
        x[i] = (float)sin(i * 0.37) * (float)(i % 11);
    }
    const tg_fft_desc desc = {.dtype = TG_F32,
                              .ndim = 2,
                              .grid = {ROWS, LENGTH},
                              .kept = {KEPT, COLUMNS},
                              .first = {-KEPT / 2, 0},
                              .howmany = HOWMANY};
    for (int t = 0; t < 2; t++) {
        tg_context *ctx = NULL;
        tg_fft_plan *plan = NULL;
        tg_backend *be = open_cpu(threads[t], &ctx);
        assert_int_equal(be->ops->fft_create(be, &desc, &plan), TG_OK);
        assert_int_equal(
            be->ops->fft(be, plan, TG_FFT_FORWARD, HOWMANY, TG_FFT_ADJOINT, 0.5, x, spectrum[t]),
            TG_OK);
        assert_int_equal(be->ops->fft(be, plan, TG_FFT_INVERSE, HOWMANY, TG_FFT_PLAIN, 2.0,
                                      spectrum[t], back[t]),
                         TG_OK);
        be->ops->fft_destroy(be, &plan);
        assert_null(plan);
        tg_backend_close(&be);
        tg_context_destroy(&ctx);
    }
    assert_memory_equal(spectrum[0], spectrum[1], sizeof spectrum[0]);
    assert_memory_equal(back[0], back[1], sizeof back[0]);
}

/* A compressed weight, and the weight after an update. */
typedef struct compressed {
    float core[2 * 8192], values[2 * 4096], weight[2 * 65536];
} compressed;

static float *numbers(int64_t reals, double step) {
    float *x = malloc((size_t)reals * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < reals; i++) {
        x[i] = (float)sin((double)i * step);
    }
    return x;
}

/* Compresses and expands with `threads` threads; without a batch the gradient is dense. */
static void compress_by_threads(int threads, const tg_multimode *modes, int64_t batch,
                                compressed *out) {
    tg_context *ctx = NULL;
    tg_backend *be = open_cpu(threads, &ctx);
    int64_t numel = 1;
    for (int d = 0; d < modes->ndim; d++) {
        numel *= modes->dim[d];
    }
    assert_true(numel <= 65536);
    float *g = numbers(2 * numel, 0.7), *x = numbers(2 * numel, 0.3);
    const tg_rng rng = {.seed = 3};
    tg_bitmap bitmap = {
        .n = numel,
        .words = calloc((size_t)tg_bitmap_words(numel), sizeof(uint64_t)),
        .ranks = calloc((size_t)tg_bitmap_ranks(numel), sizeof(uint32_t)),
    };
    const tg_select chosen = {
        .kind = TG_SELECT_RANDOM, .bitmap = &bitmap, .k = numel / 20, .rng = rng};
    assert_int_equal(be->ops->select(be, &chosen), TG_OK);
    void *workspace =
        malloc(tg_workspace_bytes(be, (tg_query){.compress = modes, .factored = batch > 0}));
    const tg_compress op = {.modes = *modes,
                            .source = {.dense = batch ? NULL : g,
                                       .x = batch ? x : NULL,
                                       .dy = batch ? g : NULL,
                                       .batch = batch},
                            .bitmap = &bitmap,
                            .masked = true,
                            .scale = 1.0,
                            .values = out->values,
                            .core = out->core,
                            .workspace = workspace};
    assert_int_equal(be->ops->compress(be, &op), TG_OK);
    memcpy(out->weight, g, 2 * (size_t)numel * sizeof *g);
    const tg_expand way_back = {.modes = *modes,
                                .bitmap = &bitmap,
                                .values = out->values,
                                .lambda = 1.0,
                                .core = out->core,
                                .alpha = -0.1,
                                .beta = 0.9,
                                .out = out->weight,
                                .workspace = workspace};
    assert_int_equal(be->ops->expand(be, &way_back), TG_OK);
    free(workspace);
    free(bitmap.words);
    free(bitmap.ranks);
    free(g);
    free(x);
    tg_backend_close(&be);
    tg_context_destroy(&ctx);
}

/* Compressed gradients and updates are the same bits with any number of threads: of a factored
 * gradient, and of a matrix with few rows for each thread. */
TEST(updates_do_not_depend_on_threads) {
    static const int threads[3] = {1, 2, 5};
    static compressed found[3];
    tg_multimode modes[2] = {
        {.dtype = TG_C64, .ndim = 4, .dim = {40, 50, 6, 5}, .rank = {24, 26, 4, 3}},
        {.dtype = TG_C64, .ndim = 2, .dim = {50, 150}, .rank = {50, 7}},
    };
    for (int c = 0; c < 2; c++) {
        for (int d = c; d < modes[c].ndim; d++) { /* the matrix: of the last mode only */
            modes[c].factor[d] = numbers(2 * modes[c].dim[d] * modes[c].rank[d], 0.1 + 0.2 * d);
        }
        memset(found, 0, sizeof found);
        for (int t = 0; t < 3; t++) {
            compress_by_threads(threads[t], &modes[c], c == 0 ? 3 : 0, &found[t]);
        }
        for (int t = 1; t < 3; t++) {
            assert_memory_equal(&found[0], &found[t], sizeof found[0]);
        }
        for (int d = c; d < modes[c].ndim; d++) {
            free((void *)(uintptr_t)modes[c].factor[d]);
        }
    }
}

/* The process's threads by number; how many. */
static int list_threads(int count, long *threads) {
    DIR *folder = opendir("/proc/self/task");
    int found = 0;
    assert_non_null(folder);
    for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (entry->d_name[0] != '.') {
            assert_true(found < count);
            threads[found++] = strtol(entry->d_name, NULL, 10);
        }
    }
    closedir(folder);
    return found;
}

static bool is_among(long thread, int count, const long *threads) {
    for (int i = 0; i < count; i++) {
        if (threads[i] == thread) {
            return true;
        }
    }
    return false;
}

/* A loop with work for two of four threads leaves the other two waiting for the next one: after
 * the last loop, which has work for all, no new thread exists. (There may have been more before,
 * which were ending: those of the tests above.) */
TEST(threads_stay) {
    enum { LARGE = 1 << 20, SMALL = 1 << 14, MOST = 64, THREADS = 4 };
    tg_context *ctx = NULL;
    tg_backend *be = open_cpu(THREADS, &ctx);
    float *x = calloc(LARGE, sizeof *x);
    long before[MOST], after[MOST];
    assert_non_null(x);
    assert_int_equal(be->ops->fill(be, TG_F32, LARGE, (tg_scalar){1.0, 0.0}, x), TG_OK);
    const int were = list_threads(MOST, before);
    for (int64_t n = SMALL; n <= LARGE; n *= 2) {
        assert_int_equal(be->ops->fill(be, TG_F32, n, (tg_scalar){1.0, 0.0}, x), TG_OK);
    }
    const int are = list_threads(MOST, after);
    assert_true(are >= THREADS);
    for (int i = 0; i < are; i++) {
        assert_true(is_among(after[i], were, before));
    }
    free(x);
    tg_backend_close(&be);
    tg_context_destroy(&ctx);
}

TEST(it_says_what_it_is) {
    tg_context *ctx = NULL;
    tg_backend *be = open_cpu(0, &ctx);
    for (int i = 0; i < tg_backend_count(); i++) {
        tg_backend_info info;
        assert_int_equal(tg_backend_describe(ctx, i, &info), TG_OK);
        if (strcmp(info.name, "cpu") == 0) {
            assert_true(info.available);
            assert_non_null(strstr(info.libraries, "OpenBLAS "));
            assert_non_null(
                strstr(info.libraries, cpu_lines_fftw() ? "FFTW 3." : "own transforms"));
            assert_non_null(strstr(info.overrides, "gemm"));
            assert_non_null(strstr(info.overrides, "select"));
            assert_null(strstr(info.overrides, "upload"));
        }
    }
    tg_backend_close(&be);
    tg_context_destroy(&ctx);
}

/* ---- a child of a process whose threads are at work ---- */

TEST(forks_compute) {
    enum { N = 1 << 20 };
    tg_context *ctx = NULL;
    tg_backend *be = open_cpu(3, &ctx);
    float *x = calloc(N, sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i % 17);
    }
    tg_norms before, after;
    assert_int_equal(be->ops->norms(be, TG_F32, N, x, &before), TG_OK);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60); /* one that hangs is ended */
        const tg_status status = be->ops->norms(be, TG_F32, N, x, &after);
        _exit(status == TG_OK && after.sum_squares == before.sum_squares ? 0 : 1);
    }
    int code = 0;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    assert_int_equal(be->ops->norms(be, TG_F32, N, x, &after), TG_OK);
    assert_true(after.sum_squares == before.sum_squares);
    free(x);
    tg_backend_close(&be);
    tg_context_destroy(&ctx);
}
