/* Squared norms for losses with a given norm: Sobolev norms of spectra and residuals of equations.
 * Same formulas as on the host (backend/loss_math.h). Blocks sum parts of an image in f64, and a
 * warp folds the parts in a fixed order. */
#include "backend/cuda/nn/nn.cuh"
#include "backend/loss_math.h"

/* ---- contribution of one point or coefficient of image n ---- */

struct sobolev_power {
    tg_sobolev op;
    int64_t kept;
    __device__ double2 operator()(int64_t n, int64_t i) const {
        double *at = op.spectrum + 2 * (n * kept + i);
        const double weight = tg_sobolev_weight(&op, i), re = at[0], im = at[1];
        if (op.weighs) {
            at[0] = weight * re;
            at[1] = weight * im;
        }
        return {tg_sobolev_count(&op, i) * weight * (re * re + im * im), 0.0};
    }
};

struct residual_power {
    tg_residual op;
    __device__ double2 operator()(int64_t n, int64_t p) const {
        const int64_t i = p / op.m, j = p - i * op.m;
        const double r = tg_residual_at(&op, n, i, j);
        if (op.slope) {
            op.slope[n * op.n * op.m + p] = tg_residual_slope(&op, n, i, j);
        }
        return {r * r, tg_residual_unit(&op, n, i, j)};
    }
};

/* ---- sums ---- */

/* Block (image, part), images from `first` on. */
template <class F>
static __global__ void __launch_bounds__(LOSS_THREADS)
    sum_squares(F power, int64_t first, int64_t size, int parts, double2 *partial) {
    const int64_t n = first + blockIdx.x / parts;
    double2 sum = {0.0, 0.0};
    for (int64_t i = (int64_t)(blockIdx.x % parts) * LOSS_THREADS + threadIdx.x; i < size;
         i += (int64_t)parts * LOSS_THREADS) {
        const double2 one = power(n, i);
        sum.x += one.x;
        sum.y += one.y;
    }
    sum.x = block_sum(sum.x);
    sum.y = block_sum(sum.y);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
    }
}

/* A warp per image: out[2 n] = scale times the first sum and, if both are wanted, out[2 n + 1] =
 * the second. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    fold_squares(int64_t count, int parts, const double2 *partial, double scale, bool both,
                 double *out) {
    const int64_t n = (int64_t)blockIdx.x * (LOSS_THREADS / 32) + threadIdx.x / 32;
    double2 sum = {0.0, 0.0};
    for (int part = threadIdx.x % 32; n < count && part < parts; part += 32) {
        sum.x += partial[n * parts + part].x;
        sum.y += partial[n * parts + part].y;
    }
    sum = {warp_sum(sum.x), warp_sum(sum.y)};
    if (n < count && threadIdx.x % 32 == 0) {
        out[2 * n] = scale * sum.x;
        if (both) {
            out[2 * n + 1] = sum.y;
        }
    }
}

template <class F>
static tg_status squares_of(tg_backend *be, F power, int64_t images, int64_t size, double scale,
                            bool both, double *out) {
    enum { IMAGES = LOSS_THREADS / 32 };
    const int parts = loss_parts(size);
    const int64_t room = CUDA_SCRATCH_BYTES / (int64_t)(sizeof(double2) * LOSS_MAX_PARTS);
    double2 *partial = static_cast<double2 *>(cuda_state_of(be)->scratch);
    for (int64_t first = 0; first < images; first += room) {
        const int64_t count = tg_min(images - first, room);
        TG_CALL(launch_alone(be, "summing squares", sum_squares<F>, (unsigned)(count * parts),
                             LOSS_THREADS, 0, power, first, size, parts, partial));
        TG_CALL(launch_alone(be, "summing squares", fold_squares,
                             (unsigned)((count + IMAGES - 1) / IMAGES), LOSS_THREADS, 0, count,
                             parts, partial, scale, both, out + 2 * first));
    }
    return TG_OK;
}

/* ---- parts of residuals ---- */

static __global__ void __launch_bounds__(LOSS_THREADS) map_vorticity(tg_residual op, int64_t kept) {
    for (int64_t i = (int64_t)blockIdx.x * LOSS_THREADS + threadIdx.x; i < op.batch * kept;
         i += (int64_t)gridDim.x * LOSS_THREADS) {
        tg_vorticity_map_at(&op, i / kept, i % kept);
    }
}

static __global__ void __launch_bounds__(LOSS_THREADS)
    vorticity_at_points(tg_residual op, int64_t points) {
    for (int64_t i = (int64_t)blockIdx.x * LOSS_THREADS + threadIdx.x; i < op.batch * points;
         i += (int64_t)gridDim.x * LOSS_THREADS) {
        tg_vorticity_point(&op, i / points, i % points);
    }
}

/* ---- slots ---- */

tg_status cuda_sobolev_squares(tg_backend *be, const tg_sobolev *op) {
    int64_t kept = 1, points = 1;
    for (int d = 0; d < op->ndim; d++) {
        kept *= tg_sobolev_kept(op, d);
        points *= op->grid[d];
    }
    return squares_of(be, sobolev_power{*op, kept}, op->images, kept, 1.0 / (double)points, false,
                      op->squares);
}

static tg_status map_spectra(tg_backend *be, const tg_residual *op) {
    const int64_t kept = op->n * (op->m / 2 + 1);
    return launch_alone(be, "mapping vorticity", map_vorticity,
                        cuda_blocks(be, op->batch * kept, LOSS_THREADS), LOSS_THREADS, 0, *op,
                        kept);
}

static tg_status work_at_points(tg_backend *be, const tg_residual *op) {
    const int64_t points = op->n * op->m;
    return launch_alone(be, "a residual of vorticity", vorticity_at_points,
                        cuda_blocks(be, op->batch * points, LOSS_THREADS), LOSS_THREADS, 0, *op,
                        points);
}

tg_status cuda_residual(tg_backend *be, const tg_residual *op) {
    TG_CALL(tg_check_real(be->ctx, "residual", op->dtype));
    return op->equation == TG_VORTICITY_MAP  ? map_spectra(be, op)
           : op->equation > TG_EQUATION_FLOW ? work_at_points(be, op)
                                             : squares_of(be, residual_power{*op}, op->batch,
                                                          op->n * op->m, 1.0, true, op->powers);
}
