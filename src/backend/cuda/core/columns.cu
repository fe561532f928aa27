/* Columns of matrices: their squares in f64, scaling them, and transposing. Neighbouring threads
 * handle neighbouring columns. Several threads share the rows of a column, and their sums are added
 * in a fixed order. */
#include "backend/cuda/core/pack.cuh"
#include "backend/rule_kernel.h"

enum { SIDE = 32, SCALE_ROWS = 8, MAX_BLOCKS = 65535 };

template <class E>
static __global__ void __launch_bounds__(SIDE *SIDE)
    squares_kernel(int64_t rows, int64_t columns, const E *x, double *squares) {
    __shared__ double sums[SIDE][SIDE];
    const int64_t column = (int64_t)blockIdx.x * SIDE + threadIdx.x;
    double sum = 0.0;
    for (int64_t i = threadIdx.y; column < columns && i < rows; i += SIDE) {
        sum += abs2(to_double(x[i * columns + column]));
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < columns) {
        for (int i = 1; i < SIDE; i++) {
            sum += sums[i][threadIdx.x];
        }
        squares[column] = sum;
    }
}

template <class E>
static __global__ void scale_kernel(int64_t rows, int64_t columns, double factor,
                                    const double *above, const double *below, E *x) {
    using R = real_of<part_of<E>>;
    const int64_t column = (int64_t)blockIdx.x * SIDE + threadIdx.x;
    const int64_t step = (int64_t)gridDim.y * SCALE_ROWS;
    if (column < columns) {
        const R by = (R)tg_column_factor(factor, above, below, column);
        for (int64_t i = (int64_t)blockIdx.y * SCALE_ROWS + threadIdx.y; i < rows; i += step) {
            x[i * columns + column] = element<E>::round(by * widen(x[i * columns + column]));
        }
    }
}

/* Goes through shared memory, so that both reads and writes are along rows. */
template <class E>
static __global__ void transpose_kernel(int64_t rows, int64_t columns, const E *x, int64_t ld_x,
                                        E *out, int64_t ld_out) {
    __shared__ E tile[SIDE][SIDE + 1];
    const int64_t column = (int64_t)blockIdx.x * SIDE;
    for (int64_t row = (int64_t)blockIdx.y * SIDE; row < rows; row += (int64_t)gridDim.y * SIDE) {
        for (int i = threadIdx.y; i < SIDE; i += SCALE_ROWS) {
            if (row + i < rows && column + threadIdx.x < columns) {
                tile[i][threadIdx.x] = x[(row + i) * ld_x + column + threadIdx.x];
            }
        }
        __syncthreads();
        for (int i = threadIdx.y; i < SIDE; i += SCALE_ROWS) {
            if (column + i < columns && row + threadIdx.x < rows) {
                out[(column + i) * ld_out + row + threadIdx.x] = tile[threadIdx.x][i];
            }
        }
        __syncthreads();
    }
}

static unsigned tiles_of(int64_t n) {
    return (unsigned)((n + SIDE - 1) / SIDE);
}

tg_status cuda_column_squares(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                              const void *x, double *squares) {
    const tg_status status = tg_check_float(be->ctx, "column_squares", dtype);
    if (status != TG_OK || columns <= 0) {
        return status;
    }
    return with_element(dtype, [&](auto tag) {
        using E = typename decltype(tag)::type;
        return launch_alone(be, "column_squares", squares_kernel<E>, tiles_of(columns),
                            dim3(SIDE, SIDE), 0, rows, columns, static_cast<const E *>(x), squares);
    });
}

tg_status cuda_scale_columns(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                             double factor, const double *above, const double *below, void *x) {
    const tg_status status = tg_check_float(be->ctx, "scale_columns", dtype);
    if (status != TG_OK || rows <= 0 || columns <= 0) {
        return status;
    }
    const unsigned groups =
        (unsigned)min((rows + 4 * SCALE_ROWS - 1) / (4 * SCALE_ROWS), (int64_t)MAX_BLOCKS);
    return with_element(dtype, [&](auto tag) {
        using E = typename decltype(tag)::type;
        return launch_alone(be, "scale_columns", scale_kernel<E>, dim3(tiles_of(columns), groups),
                            dim3(SIDE, SCALE_ROWS), 0, rows, columns, factor, above, below,
                            static_cast<E *>(x));
    });
}

tg_status cuda_transpose(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                         const void *x, int64_t ld_x, void *out, int64_t ld_out) {
    const tg_status status = tg_check_float(be->ctx, "transpose", dtype);
    if (status != TG_OK || rows <= 0 || columns <= 0) {
        return status;
    }
    const unsigned groups = min(tiles_of(rows), (unsigned)MAX_BLOCKS);
    return with_element(dtype, [&](auto tag) {
        using E = typename decltype(tag)::type;
        return launch_alone(be, "transpose", transpose_kernel<E>, dim3(tiles_of(columns), groups),
                            dim3(SIDE, SCALE_ROWS), 0, rows, columns, static_cast<const E *>(x),
                            ld_x, static_cast<E *>(out), ld_out);
    });
}
