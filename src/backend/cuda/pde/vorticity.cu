/* Flow in two dimensions (backend/nn.h): one number or point per thread and iteration. Same
 * formulas as ref, operation by operation. */
#include "backend/cuda/core/element.cuh"

enum { THREADS = 256 };

/* A thread's position in the spectra of all flows. */
struct mode {
    int64_t flow;
    int k1, k2; /* k1 + K, k2 */
};

static __device__ inline mode mode_at(const tg_flow &f, int64_t number) {
    const int64_t columns = f.modes + 1, rows = 2 * f.modes + 1, row = number / columns;
    return {row / rows, (int)(row % rows), (int)(number % columns)};
}

static __device__ inline double wave(const tg_flow &f, int64_t k) {
    return 2.0 * 3.14159265358979323846 / f.length * (double)k;
}

static __host__ __device__ inline int64_t spectrum_size(const tg_flow &f) {
    return (2 * f.modes + 1) * (f.modes + 1);
}

static __device__ inline int64_t first_item() {
    return blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
}

static __device__ inline int64_t stride() {
    return (int64_t)gridDim.x * blockDim.x;
}

static __global__ void __launch_bounds__(THREADS)
    velocity_kernel(const tg_flow f, const pair<double> *w, pair<double> *velocity) {
    const int64_t size = spectrum_size(f);
    for (int64_t i = first_item(); i < f.flows * size; i += stride()) {
        const mode at = mode_at(f, i);
        const double q1 = wave(f, at.k1 - f.modes), q2 = wave(f, at.k2);
        const double square = q1 * q1 + q2 * q2, inverse = square > 0.0 ? 1.0 / square : 0.0;
        const pair<double> psi = inverse * w[i];
        pair<double> *out = velocity + i + at.flow * size;
        out[0] = {-q2 * psi.im, q2 * psi.re};
        out[size] = {q1 * psi.im, -q1 * psi.re};
    }
}

/* Block b works on flow b / blocks. Speeds are not negative, so their bits have the same order,
 * with NaN largest: an integer maximum gives the same result in any order. */
static __global__ void __launch_bounds__(THREADS)
    products_kernel(const tg_flow f, int blocks, double *values, unsigned long long *speed) {
    __shared__ unsigned long long most[THREADS];
    const int64_t points = f.grid * f.grid, flow = blockIdx.x / blocks;
    double *u = values + 2 * flow * points, *v = u + points;
    unsigned long long mine = 0;
    for (int64_t i = blockIdx.x % blocks * (int64_t)THREADS + threadIdx.x; i < points;
         i += (int64_t)blocks * THREADS) {
        const double across = u[i], along = v[i];
        const unsigned long long sum = __double_as_longlong(fabs(fabs(across) + fabs(along)));
        mine = sum > mine ? sum : mine;
        u[i] = across * along;
        v[i] = along * along - across * across;
    }
    most[threadIdx.x] = mine;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half && most[threadIdx.x + half] > most[threadIdx.x]) {
            most[threadIdx.x] = most[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        atomicMax(speed + flow, most[0]);
    }
}

static __global__ void __launch_bounds__(THREADS)
    decay_kernel(const tg_flow f, double viscosity, const double *dt, double *decay) {
    const int64_t rows = 2 * f.modes + 1;
    for (int64_t i = first_item(); i < f.flows * rows; i += stride()) {
        const double q = wave(f, i % rows - f.modes);
        decay[i] = exp(-0.5 * dt[i / rows] * viscosity * q * q);
    }
}

template <int stage>
static __global__ void __launch_bounds__(THREADS) stage_kernel(const tg_flow_op op) {
    const tg_flow &f = op.of;
    const int64_t size = spectrum_size(f), rows = 2 * f.modes + 1;
    const pair<double> *products = reinterpret_cast<const pair<double> *>(op.products);
    const pair<double> *forcing = reinterpret_cast<const pair<double> *>(op.forcing);
    pair<double> *state = reinterpret_cast<pair<double> *>(op.state);
    pair<double> *next = reinterpret_cast<pair<double> *>(op.next);
    pair<double> *sum = reinterpret_cast<pair<double> *>(op.sum);
    for (int64_t i = first_item(); i < f.flows * size; i += stride()) {
        const mode at = mode_at(f, i);
        const double q1 = wave(f, at.k1 - f.modes), q2 = wave(f, at.k2), dt = op.dt[at.flow];
        const double *decay = op.decay + at.flow * rows;
        const double e = decay[at.k1] * decay[f.modes + at.k2];
        const pair<double> *product = products + i + at.flow * size;
        const pair<double> slope =
            forcing[i] + q1 * q2 * product[size] + (q1 * q1 - q2 * q2) * product[0];
        if (stage == 0) {
            next[i] = e * (state[i] + 0.5 * dt * slope);
            sum[i] = e * e * (state[i] + dt / 6.0 * slope);
        } else if (stage == 1) {
            next[i] = e * state[i] + 0.5 * dt * slope;
            sum[i] = sum[i] + e * dt / 3.0 * slope;
        } else if (stage == 2) {
            next[i] = e * (e * state[i] + dt * slope);
            sum[i] = sum[i] + e * dt / 3.0 * slope;
        } else {
            state[i] = sum[i] + dt / 6.0 * slope;
        }
    }
}

/* ---- the slot ---- */

static tg_status launch_velocity(tg_backend *be, const tg_flow_op *op) {
    const int64_t count = op->of.flows * spectrum_size(op->of);
    return launch_alone(be, "computing velocities", velocity_kernel,
                        cuda_blocks(be, count, THREADS), THREADS, 0, op->of,
                        reinterpret_cast<const pair<double> *>(op->w),
                        reinterpret_cast<pair<double> *>(op->velocity));
}

static tg_status launch_products(tg_backend *be, const tg_flow_op *op) {
    const tg_flow *flow = &op->of;
    TG_CALL(cuda_clear(be, op->speed, (size_t)flow->flows * sizeof *op->speed, "clearing speeds"));
    const int64_t wanted = (flow->grid * flow->grid + 4 * THREADS - 1) / (4 * THREADS);
    const int blocks = (int)tg_min(wanted, 1024); /* per flow */
    return launch_alone(be, "multiplying velocities", products_kernel,
                        (unsigned)(flow->flows * blocks), THREADS, 0, *flow, blocks, op->values,
                        reinterpret_cast<unsigned long long *>(op->speed));
}

static tg_status launch_decay(tg_backend *be, const tg_flow_op *op) {
    const int64_t count = op->of.flows * (2 * op->of.modes + 1);
    return launch_alone(be, "computing viscosity", decay_kernel, cuda_blocks(be, count, THREADS),
                        THREADS, 0, op->of, op->viscosity, op->dt, op->decay);
}

static tg_status launch_stage(tg_backend *be, const tg_flow_op *op) {
    const int64_t count = op->of.flows * spectrum_size(op->of);
    auto kernel = op->part == TG_FLOW_STAGE_0   ? stage_kernel<0>
                  : op->part == TG_FLOW_STAGE_1 ? stage_kernel<1>
                  : op->part == TG_FLOW_STAGE_2 ? stage_kernel<2>
                                                : stage_kernel<3>;
    return launch_alone(be, "stepping flows", kernel, cuda_blocks(be, count, THREADS), THREADS, 0,
                        *op);
}

tg_status cuda_flow(tg_backend *be, const tg_flow_op *op) {
    if (op->of.flows == 0) {
        return TG_OK;
    }
    return op->part == TG_FLOW_VELOCITY   ? launch_velocity(be, op)
           : op->part == TG_FLOW_PRODUCTS ? launch_products(be, op)
           : op->part == TG_FLOW_DECAY    ? launch_decay(be, op)
                                          : launch_stage(be, op);
}
