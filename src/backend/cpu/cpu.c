/* The cpu backend: ref's table with tuned slots, opening and closing, and its description. */
#include "backend/cpu/cpu.h"

#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/compress.h"
#include "backend/cpu/nn.h"
#include "backend/cpu/spectral_product.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#define TG_CPU_X86 1
#else
#define TG_CPU_X86 0
#endif

static bool has_avx2(void) {
#if TG_CPU_X86
    unsigned a = 0, b = 0, c = 0, d = 0; /* F16C has no name in the builtin of every compiler */
    return cpu_kernels_avx2.name && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
#else
    return false;
#endif
}

static bool has_avx512(void) {
#if TG_CPU_X86
    return cpu_tile_avx512.frequencies > 0 && has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

/* The 48-character brand string of an x86 CPU, trimmed. */
static void cpu_model(char *text, size_t capacity) {
#if TG_CPU_X86
    unsigned regs[12];
    bool known = true;
    for (unsigned i = 0; known && i < 3; i++) {
        unsigned *r = regs + 4 * i;
        known = __get_cpuid(0x80000002u + i, &r[0], &r[1], &r[2], &r[3]);
    }
    if (known) {
        char brand[sizeof regs + 1];
        memcpy(brand, regs, sizeof regs);
        brand[sizeof regs] = '\0';
        size_t end = strlen(brand);
        while (end && brand[end - 1] == ' ') {
            end--;
        }
        size_t begin = strspn(brand, " ");
        snprintf(text, capacity, "%.*s", (int)(end > begin ? end - begin : 0), brand + begin);
        return;
    }
#endif
    snprintf(text, capacity, "CPU");
}

static void cpu_probe(tg_backend_info *info) {
    char model[64];
    info->available = true;
    cpu_model(model, sizeof model);
    snprintf(info->device, sizeof info->device, "%s, %d cores, %s%s kernels", model, tg_cpu_count(),
             has_avx2() ? cpu_kernels_avx2.name : cpu_kernels_plain.name,
             has_avx512() ? " and AVX-512" : "");
    char blas[128], fft[64];
    cpu_blas_version(blas, sizeof blas);
    cpu_lines_version(fft, sizeof fft);
    snprintf(info->libraries, sizeof info->libraries, "%s, LAPACKE, %s", blas, fft);
#define CPU_SLOT(name) " " #name
    snprintf(info->overrides, sizeof info->overrides, "%s", &CPU_SLOTS(CPU_SLOT)[1]);
#undef CPU_SLOT
}

/* Threads do not survive a fork, but OpenMP would wait for them: a child (of Python's
 * multiprocessing, say) uses one thread. */
static void work_alone(void) {
    omp_set_max_active_levels(0);
}

static void watch_forks(void) {
    (void)pthread_atfork(NULL, NULL, work_alone); /* a failure leaves fork unchanged */
}

static tg_status cpu_open(tg_backend *be) {
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    tg_status status = TG_OK;
    cpu_state *state = NULL;
    if (be->threads > 1) {
        (void)pthread_once(&watched, watch_forks);
    }
    TG_TRY(TG_NEW(be->ctx, TG_MEM_OTHER, state, 1));
    state->kernels = has_avx2() ? &cpu_kernels_avx2 : &cpu_kernels_plain;
    state->nn = has_avx512() ? &cpu_nn_avx512 : has_avx2() ? &cpu_nn_avx2 : &cpu_nn_plain;
    state->tiles = has_avx512() ? &cpu_tile_avx512 : has_avx2() ? &cpu_tile_avx2 : &cpu_tile_plain;
    state->compress = has_avx512() ? &cpu_compress_avx512
                      : has_avx2() ? &cpu_compress_avx2
                                   : &cpu_compress_plain;
    state->lines = cpu_lines_fftw() ? cpu_lines_fftw() : &cpu_lines_own;
    state->scratch_bytes = CPU_SCRATCH * (size_t)be->threads;
    TG_TRY(TG_NEW(be->ctx, TG_MEM_OTHER, state->partials, be->threads));
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, state->scratch, state->scratch_bytes));
    TG_TRY(cpu_blas_open(be));
    be->state = state;
    return TG_OK;
fail:
    if (state) {
        tg_mem_free(be->ctx, state->scratch);
        tg_mem_free(be->ctx, state->partials);
        tg_mem_free(be->ctx, state);
    }
    return status;
}

static void cpu_close(tg_backend *be) {
    cpu_state *state = cpu_state_of(be);
    cpu_blas_close();
    tg_mem_free(be->ctx, state->scratch);
    tg_mem_free(be->ctx, state->partials);
    tg_mem_free(be->ctx, state);
    be->state = NULL;
}

tg_status cpu_workspace(tg_backend *be, size_t bytes, void **out, void **taken) {
    cpu_state *state = cpu_state_of(be);
    *taken = NULL;
    *out = state->scratch;
    if (bytes > state->scratch_bytes) {
        *out = *taken = tg_mem_alloc(be->ctx, TG_MEM_WORKSPACE, bytes, 1);
    }
    return *out ? TG_OK : TG_E_MEMORY;
}

static bool cpu_workspace_bytes(tg_backend *be, const tg_query *query, size_t *bytes) {
    const tg_skip *skip = query->skip;
    const tg_mlp *mlp = query->mlp;
    if (query->compress && cpu_compress_tuned(query->compress->dtype)) {
        *bytes = cpu_compress_workspace(be, query->compress, query->factored);
    } else if (skip && cpu_tiles_take(skip->dtype, skip->pixels)) {
        *bytes = cpu_skip_workspace(be, skip);
    } else if (mlp && !mlp->x_quantized && cpu_tiles_take(mlp->dtype, mlp->pixels)) {
        *bytes = cpu_mlp_workspace(be, mlp);
    } else if (query->gno && query->gno->dtype == TG_F32) {
        *bytes = cpu_gno_workspace(be, query->gno);
    } else {
        return be->ref->workspace(be, query, bytes);
    }
    return true;
}

void tg_backend_fill_cpu(tg_backend_ops *ops) {
    ops->name = "cpu";
    ops->summary = "OpenBLAS, LAPACK, Fourier transforms, OpenMP, AVX2 kernels";
    ops->probe = cpu_probe;
    ops->open = cpu_open;
    ops->close = cpu_close;
    ops->workspace = cpu_workspace_bytes;
#define CPU_SLOT(name) ops->name = cpu_##name;
    CPU_SLOTS(CPU_SLOT)
    CPU_OTHER_SLOTS(CPU_SLOT)
#undef CPU_SLOT
}
