/* Transforms of contiguous lines, CPU_FFT_LINES at once: the basis of fft.c.
 *
 * There are two engines: FFTW (fftw.c), if the library is linked to it or the system has it, and
 * ours (fft_lines.c), which is always available. */
#ifndef TG_BACKEND_CPU_FFT_H
#define TG_BACKEND_CPU_FFT_H

#include "backend/cpu/cpu.h"

/* Lines of n complex numbers. `from` and `to` are the buffers that plans will run on, or have their
 * alignment: (CPU_FFT_LINES, pitch) each, pitch >= room(n). */
typedef struct cpu_lines_desc {
    tg_dtype real; /* f32 or f64 */
    int64_t n;
    int64_t rest; /* lines of an incomplete last group; 0: all groups are full */
    int64_t pitch;
    void *from, *to;
} cpu_lines_desc;

typedef struct cpu_lines_engine {
    /* Capacity of a line in complex numbers. */
    int64_t (*room)(int64_t n);
    tg_status (*create)(tg_backend *be, const cpu_lines_desc *desc, void **plan);
    void (*destroy)(tg_backend *be, void *plan); /* accepts NULL */
    /* Unscaled transforms of `count` lines; returns the buffer of the results, `from` or `to`.
     * Both are overwritten. */
    void *(*run)(const void *plan, bool inverse, int64_t count, void *from, void *to);
} cpu_lines_engine;

/* NULL without FFTW. */
const cpu_lines_engine *cpu_lines_fftw(void);
extern const cpu_lines_engine cpu_lines_own;

/* Writes "FFTW 3.3.10" or "own transforms" to text; returns the number of characters. */
int cpu_lines_version(char *text, size_t capacity);

#endif
