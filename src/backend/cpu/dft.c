/* Transforms of awkward length as products with a matrix, in f32.
 *
 * FFTW takes about ten times as long for a length with a large prime factor (421 is a common grid)
 * as for its neighbours. If few frequencies are kept, multiplying by the matrix of roots of unity
 * is faster: it computes only these, at the CPU's full speed. Real rows are transformed directly to
 * and from their kept half spectrum. */
#include "backend/cpu/fft.h"

#include <math.h>

static int64_t largest_prime_factor(int64_t n) {
    int64_t largest = 1;
    for (int64_t p = 2; p * p <= n; p++) {
        while (n % p == 0) {
            largest = p;
            n /= p;
        }
    }
    return n > 1 ? n : largest;
}

/* Measured: FFTW takes about 9 ns a point for primes and half of that for multiples of a prime
 * beyond its code for small ones; a product 0.08 ns a point and kept frequency. */
bool cpu_dft_pays(const cpu_compress_kernels *kernels, int64_t n, int64_t kept) {
    const int64_t prime = largest_prime_factor(n);
    return kernels != &cpu_compress_plain && prime > 13 && kept <= (prime == n ? 96 : 48);
}

cpu_dft cpu_dft_layout(cpu_dft_kind kind, bool inverse, int64_t n, int64_t kept) {
    const bool pairs = kind == CPU_DFT_COMPLEX;
    const int64_t spectrum = pairs ? kept : 2 * kept;
    return (cpu_dft){
        .pairs = pairs, .inner = inverse ? spectrum : n, .outer = inverse ? n : spectrum};
}

/* Floats of a row of the matrix. */
static int64_t row_floats(const cpu_dft *dft) {
    return (dft->pairs ? 2 : 1) * dft->outer;
}

size_t cpu_dft_bytes(const cpu_dft *dft) {
    return (size_t)(dft->inner * row_floats(dft)) * sizeof(float);
}

/* Float number `column` of row `row` of the matrix. The real and imaginary parts of a spectrum
 * entry are adjacent. */
static double entry(cpu_dft_kind kind, bool inverse, int64_t n, int64_t first, int64_t row,
                    int64_t column) {
    const double turn = 6.28318530717958647692 / (double)n;
    if (kind == CPU_DFT_COMPLEX) { /* e^{-+ i angle} */
        const int64_t k = inverse ? row : column / 2, at = inverse ? column / 2 : row;
        const double angle = turn * (double)((first + k) % n * at % n);
        return column % 2 ? (inverse ? sin(angle) : -sin(angle)) : cos(angle);
    }
    const int64_t k = (inverse ? row : column) / 2, at = inverse ? column : row;
    const bool imaginary = (inverse ? row : column) % 2, edge = k == 0 || 2 * k == n;
    const double angle = turn * (double)(k * at % n);
    const double root = imaginary ? -sin(angle) : cos(angle);
    if (inverse) { /* Re of w X e^{+ i angle}: w = 2 except at the edges, whose im is ignored */
        return edge ? (imaginary ? 0.0 : root) : 2.0 * root;
    }
    return 2.0 * root; /* twice the transform, like the split of two rows */
}

void cpu_dft_fill(const cpu_dft *dft, cpu_dft_kind kind, bool inverse, int64_t n, int64_t first,
                  float *matrix) {
    for (int64_t row = 0; row < dft->inner; row++) {
        for (int64_t j = 0; j < row_floats(dft); j++) {
            *matrix++ = (float)entry(kind, inverse, n, first, row, j);
        }
    }
}

void cpu_dft_apply(const cpu_compress_kernels *kernels, const cpu_dft *dft, int64_t m,
                   const void *a, int64_t lda, void *c, int64_t ldc) {
    const cpu_product product = {.m = m,
                                 .n = dft->outer,
                                 .k = dft->inner,
                                 .a = a,
                                 .row_a = lda,
                                 .col_a = 1,
                                 .b = dft->matrix,
                                 .ldb = dft->outer,
                                 .c = c,
                                 .ldc = ldc,
                                 .alpha = 1.0f};
    (dft->pairs ? kernels->product_c64 : kernels->product_f32)(&product);
}
