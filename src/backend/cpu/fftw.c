/* Transforms of lines by FFTW, which only this file uses.
 *
 * FFTW is under the GPL, so not every build may link it. With TG_FFTW the library is linked to it;
 * otherwise FFTW is loaded when the first backend opens, if the system has it. The part of its
 * interface in use is declared here, so that neither case needs a header. Plans are FFTW_ESTIMATE:
 * the same plan every time, hence the same bits. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/cpu.h"

typedef void *plan_many_fn(int rank, const int *n, int howmany, void *in, const int *inembed,
                           int istride, int idist, void *out, const int *onembed, int ostride,
                           int odist, int sign, unsigned flags);
typedef void execute_fn(const void *plan, void *in, void *out);
typedef void destroy_fn(void *plan);

enum { FORWARD = -1, BACKWARD = 1, ESTIMATE = 1 << 6 };

/* FFTW in one precision. */
typedef struct fftw_calls {
    plan_many_fn *plan_many;
    execute_fn *execute;
    destroy_fn *destroy;
} fftw_calls;

static fftw_calls single, twice; /* all NULL: not available */
static const char *version = "";

#if TG_FFTW
extern plan_many_fn fftwf_plan_many_dft, fftw_plan_many_dft;
extern execute_fn fftwf_execute_dft, fftw_execute_dft;
extern destroy_fn fftwf_destroy_plan, fftw_destroy_plan;
extern const char fftwf_version[];

static void find_fftw(void) {
    single = (fftw_calls){fftwf_plan_many_dft, fftwf_execute_dft, fftwf_destroy_plan};
    twice = (fftw_calls){fftw_plan_many_dft, fftw_execute_dft, fftw_destroy_plan};
    version = fftwf_version;
}
#else
/* Loads the calls of a shared library, with names that begin with `prefix`; false if one is
 * missing. */
static bool open_calls(const char *file, const char *prefix, fftw_calls *calls) {
    static const char *const names[3] = {"plan_many_dft", "execute_dft", "destroy_plan"};
    void *found[3] = {NULL};
    void *library =
        dlopen(file, RTLD_NOW | RTLD_LOCAL); /* stays open: plans may outlive backends */
    for (int i = 0; library && i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s_%s", prefix, names[i]);
        found[i] = dlsym(library, name);
    }
    memcpy(&calls->plan_many, &found[0], sizeof found[0]); /* POSIX: an address of either kind */
    memcpy(&calls->execute, &found[1], sizeof found[1]);
    memcpy(&calls->destroy, &found[2], sizeof found[2]);
    const char *text = library ? dlsym(library, "fftwf_version") : NULL;
    version = text ? text : version;
    return found[0] && found[1] && found[2];
}

static void find_fftw(void) {
    if (!open_calls("libfftw3f.so.3", "fftwf", &single) ||
        !open_calls("libfftw3.so.3", "fftw", &twice)) {
        single = twice = (fftw_calls){NULL, NULL, NULL};
    }
}
#endif

static pthread_once_t found = PTHREAD_ONCE_INIT;
static pthread_mutex_t planner = PTHREAD_MUTEX_INITIALIZER; /* FFTW's planner is not thread-safe */

typedef struct fftw_lines {
    const fftw_calls *calls;
    void *plan[2][2]; /* [inverse][incomplete last group] */
} fftw_lines;

static int64_t fftw_room(int64_t n) {
    return n;
}

static void fftw_destroy(tg_backend *be, void *plan) {
    fftw_lines *lines = plan;
    if (!lines) {
        return;
    }
    pthread_mutex_lock(&planner);
    for (int i = 0; i < 4; i++) {
        if (lines->plan[i / 2][i % 2]) {
            lines->calls->destroy(lines->plan[i / 2][i % 2]);
        }
    }
    pthread_mutex_unlock(&planner);
    tg_mem_free(be->ctx, lines);
}

static tg_status fftw_create(tg_backend *be, const cpu_lines_desc *desc, void **out) {
    tg_status status = TG_OK;
    fftw_lines *lines = NULL;
    const int n = (int)desc->n, pitch = (int)desc->pitch;
    bool ok = true;
    TG_TRY(TG_NEW(be->ctx, TG_MEM_WORKSPACE, lines, 1));
    lines->calls = desc->real == TG_F32 ? &single : &twice;
    pthread_mutex_lock(&planner);
    for (int i = 0; i < 4 && ok; i++) {
        const int count = i % 2 ? (int)desc->rest : CPU_FFT_LINES;
        if (count) {
            void *plan =
                lines->calls->plan_many(1, &n, count, desc->from, NULL, 1, pitch, desc->to, NULL, 1,
                                        pitch, i / 2 ? BACKWARD : FORWARD, ESTIMATE);
            lines->plan[i / 2][i % 2] = plan;
            ok = plan != NULL;
        }
    }
    pthread_mutex_unlock(&planner);
    if (!ok) {
        TG_TRY(tg_fail(be->ctx, TG_E_BACKEND, "fft: FFTW makes no plan for %d points", n));
    }
    *out = lines;
    return TG_OK;
fail:
    fftw_destroy(be, lines);
    return status;
}

static void *fftw_run(const void *plan, bool inverse, int64_t count, void *from, void *to) {
    const fftw_lines *lines = plan;
    void *const *plans = lines->plan[inverse];
    lines->calls->execute(count == CPU_FFT_LINES || !plans[1] ? plans[0] : plans[1], from, to);
    return to;
}

const cpu_lines_engine *cpu_lines_fftw(void) {
    static const cpu_lines_engine engine = {fftw_room, fftw_create, fftw_destroy, fftw_run};
    pthread_once(&found, find_fftw);
    return single.execute ? &engine : NULL;
}

int cpu_lines_version(char *text, size_t capacity) {
    if (!cpu_lines_fftw()) {
        return snprintf(text, capacity, "own transforms");
    }
    /* "fftw-3.3.10-sse2-avx": the number between the dashes. */
    const char *number = version + strcspn(version, "-");
    number += *number ? 1 : 0;
    return snprintf(text, capacity, "FFTW %.*s", (int)strcspn(number, "-"), number);
}
