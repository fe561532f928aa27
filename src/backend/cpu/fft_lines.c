/* Transforms of lines of any length, without other libraries.
 *
 * A length whose prime factors are at most CPU_FFT_RADIX is a sequence of passes
 * (fft_passes.inc). Any other length n is a convolution (Bluestein): with b_k = e^{-pi i k^2 / n}
 *
 *   X_k = b_k sum_j (x_j b_j) conj(b_{k-j}),
 *
 * by transforms of m >= 2 n - 1 points that are sequences of passes. */
#include "backend/cpu/cpu.h"

#include <string.h>

#include "tensor/element.h"

typedef struct own_plan {
    tg_dtype real;
    const cpu_kernels *kernels;
    cpu_own_lines lines;
    void *tables; /* roots, chirp and its transform */
} own_plan;

/* The radices of n, fours first; false if a prime factor is too large for a pass. */
static bool factorize(int64_t n, cpu_own_lines *lines) {
    lines->n = n;
    lines->count = 0;
    for (int r = 4; r <= CPU_FFT_RADIX && n > 1; r = r == 4 ? 2 : (r == 2 ? 3 : r + 2)) {
        for (; n % r == 0; n /= r) {
            lines->radix[lines->count++] = r;
        }
    }
    return n == 1;
}

/* The next length that is a product of 2, 3 and 5, whose passes are fast. */
static int64_t fast_length(int64_t n) {
    for (;; n++) {
        int64_t rest = n;
        for (int r = 2; r <= 5; r++) {
            while (rest % r == 0) {
                rest /= r;
            }
        }
        if (rest == 1) {
            return n;
        }
    }
}

static int64_t own_room(int64_t n) {
    cpu_own_lines lines;
    return factorize(n, &lines) ? n : fast_length(2 * n - 1);
}

static void *own_run(const void *plan, bool inverse, int64_t count, void *from, void *to) {
    const own_plan *own = plan;
    (void)count; /* transforms all lines, used or not */
    return own->real == TG_F32 ? (void *)own->kernels->rows_f32.own(&own->lines, inverse, from, to)
                               : (void *)own->kernels->rows_f64.own(&own->lines, inverse, from, to);
}

static void own_destroy(tg_backend *be, void *plan) {
    if (plan) {
        tg_mem_free(be->ctx, ((own_plan *)plan)->tables);
        tg_mem_free(be->ctx, plan);
    }
}

/* b and the transform of conj(b) / m, with b extended to both sides of 0; uses the lines. */
static void fill_chirp(own_plan *own, const cpu_lines_desc *desc, void *chirp, void *convolved) {
    const int64_t n = desc->n, m = own->lines.n;
    const tg_dtype complex = tg_dtype_complex(desc->real);
    const size_t number = tg_dtype_size(complex);
    memset(desc->from, 0, (size_t)(CPU_FFT_LINES * desc->pitch) * number);
    for (int64_t k = 0; k < n; k++) {
        const tg_scalar b = tg_root_of_unity(k * k % (2 * n), 2 * n);
        const tg_scalar scaled = {b.re / (double)m, -b.im / (double)m};
        tg_store(complex, chirp, k, b);
        tg_store(complex, desc->from, k, scaled);
        tg_store(complex, desc->from, (m - k) % m, scaled);
    }
    own->lines.points = m;
    memcpy(convolved, own_run(own, false, 1, desc->from, desc->to), (size_t)m * number);
    own->lines.points = n;
    own->lines.chirp = chirp;
    own->lines.convolved = convolved;
}

static tg_status own_create(tg_backend *be, const cpu_lines_desc *desc, void **out) {
    tg_status status = TG_OK;
    own_plan *own = NULL;
    const tg_dtype complex = tg_dtype_complex(desc->real);
    const size_t number = tg_dtype_size(complex);
    TG_TRY(TG_NEW(be->ctx, TG_MEM_WORKSPACE, own, 1));
    own->real = desc->real;
    own->kernels = cpu_state_of(be)->kernels;
    own->lines.points = desc->n;
    own->lines.pitch = desc->pitch;
    const bool passes = factorize(desc->n, &own->lines);
    if (!passes) {
        factorize(fast_length(2 * desc->n - 1), &own->lines);
    }
    const int64_t m = own->lines.n, numbers = passes ? m : 2 * m + desc->n;
    own->tables = tg_mem_alloc(be->ctx, TG_MEM_WORKSPACE, (size_t)numbers * number, 1);
    if (!own->tables) {
        TG_TRY(TG_E_MEMORY);
    }
    for (int64_t k = 0; k < m; k++) {
        tg_store(complex, own->tables, k, tg_root_of_unity(k, m));
    }
    own->lines.roots = own->tables;
    if (!passes) {
        char *next = (char *)own->tables + (size_t)m * number;
        fill_chirp(own, desc, next + (size_t)m * number, next);
    }
    *out = own;
    return TG_OK;
fail:
    own_destroy(be, own);
    return status;
}

const cpu_lines_engine cpu_lines_own = {own_room, own_create, own_destroy, own_run};
