/* Transforms of contiguous lines, CPU_FFT_LINES at once: what fft.c is built on.
 *
 * There are two engines: FFTW (fftw.c), where the library is linked to it or the system has it, and
 * our own (fft_lines.c), which is always there. */
#ifndef TG_BACKEND_CPU_FFT_LINES_H
#define TG_BACKEND_CPU_FFT_LINES_H

#include "backend/cpu/cpu.h"

/* Lines of n complex numbers. `from` and `to` are those that plans will run on, or aligned alike:
 * (CPU_FFT_LINES, pitch) each, pitch >= room(n). */
typedef struct cpu_lines_desc {
    tg_dtype real; /* f32 or f64 */
    int64_t n;
    int64_t rest; /* lines of a last group of fewer; 0: all groups are full */
    int64_t pitch;
    void *from, *to;
} cpu_lines_desc;

typedef struct cpu_lines_engine {
    /* Complex numbers that a line must have room for. */
    int64_t (*room)(int64_t n);
    tg_status (*create)(tg_backend *be, const cpu_lines_desc *desc, void **plan);
    void (*destroy)(tg_backend *be, void *plan); /* NULL: nothing */
    /* Unscaled transforms of `count` lines; returns where the results are, `from` or `to`. Both are
     * overwritten. */
    void *(*run)(const void *plan, bool inverse, int64_t count, void *from, void *to);
} cpu_lines_engine;

/* NULL where there is no FFTW. */
const cpu_lines_engine *cpu_lines_fftw(void);
extern const cpu_lines_engine cpu_lines_own;

/* "FFTW 3.3.10" or "own transforms" into text; the number of characters. */
int cpu_lines_version(char *text, size_t capacity);

#endif
