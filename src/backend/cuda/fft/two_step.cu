/* Launches the kernels for power-of-two lines of which few frequencies are kept
 * (two_step_kernel.cuh): 128 = 16 x 8 points, 256 = 16 x 16, 512 = 32 x 16 and 1024 = 32 x 32. */
#include "backend/cuda/fft/two_step_kernel.cuh"

typedef void (*two_step_kernel)(const fft_lines, const fft_pass);

/* Split of a length, and columns per block. */
struct two_step_shape {
    int n, radix, columns;
    int rows_lines; /* per block of rows */
    two_step_kernel rows, forward, inverse;
};

template <int R, int L, int C> static two_step_shape shape() {
    return {R * L,
            R,
            C,
            TWO_STEP_WARPS * row_tile<R, L>::LINES,
            two_step_rows<R, L>,
            two_step_columns<R, L, C>,
            two_step_columns_back<R, L, C>};
}

static bool shape_for(int n, two_step_shape *out) {
    const two_step_shape shapes[] = {shape<16, 8, 12>(), shape<16, 16, 8>(), shape<32, 16, 8>(),
                                     shape<32, 32, 4>()};
    for (const two_step_shape &each : shapes) {
        if (each.n == n) {
            *out = each;
            return true;
        }
    }
    return false;
}

/* Whether the kernels support this: f32 lines whose kept frequencies are within reach of the short
 * sums; real rows forward, or columns. */
static bool fits(const fft_lines *lines, const fft_pass *pass, const two_step_shape &shape) {
    const int reach = 2 * shape.radix;
    if (lines->wide || (lines->by_columns ? lines->real : !lines->real)) {
        return false;
    }
    if (lines->real) {
        return !pass->inverse && lines->kept <= reach + 1 && pass->grid.store == TG_STORE_FULL &&
               is_aligned<float>(pass->kept);
    }
    const int first = lines->first < lines->n / 2 ? lines->first : lines->first - lines->n;
    return first >= -reach && first + lines->kept <= reach && is_aligned<float>(pass->grid);
}

bool cuda_fft_two_step_run(tg_backend *be, const fft_lines *lines, const fft_pass *pass,
                           tg_status *status) {
    two_step_shape shape = {};
    if (!shape_for(lines->n, &shape) || !fits(lines, pass, shape)) {
        return false;
    }
    const int64_t blocks = lines->real
                               ? ((pass->outer + 1) / 2 + shape.rows_lines - 1) / shape.rows_lines
                               : pass->outer * ((pass->inner + shape.columns - 1) / shape.columns);
    if (blocks > INT32_MAX) {
        return false;
    }
    const two_step_kernel kernel = lines->real     ? shape.rows
                                   : pass->inverse ? shape.inverse
                                                   : shape.forward;
    const int threads = lines->real ? 32 * TWO_STEP_WARPS : shape.columns * (shape.n / shape.radix);
    *status = blocks == 0 ? TG_OK
                          : launch_pdl(be, "transforming lines", kernel, (unsigned)blocks,
                                       (unsigned)threads, 0, *lines, *pass);
    return true;
}
