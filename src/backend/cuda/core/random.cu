/* Random numbers, bit-identical to the host's because both compile rng_math.h. This file is
 * compiled without contraction to fused multiply-add, as that header requires. */
#include "backend/cuda/core/element.cuh"
#include "base/rng_math.h"

enum { THREADS = 256 };

struct uniform_law {
    static __device__ double number(const uint32_t bits[4]) {
        return tg_unit_interval(bits[0], bits[1]);
    }
};

struct normal_law {
    static __device__ double number(const uint32_t bits[4]) {
        return tg_bits_to_normal(bits);
    }
};

/* x[i] = offset + factor * number first + i, in double, for n reals. */
template <class T, class LAW>
static __global__ void random_kernel(tg_rng rng, uint64_t first, double offset, double factor,
                                     int64_t n, T *x) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        uint32_t bits[4];
        tg_stream_bits(&rng, first + (uint64_t)i, bits);
        x[i] = narrow<T>((real_of<T>)(offset + factor * LAW::number(bits)));
    }
}

/* The parts of pair i are numbers 2i and 2i + 1, so an array of pairs is an array of reals. */
template <class LAW>
static tg_status random_numbers(tg_backend *be, const tg_random *op, double factor) {
    const tg_status status = tg_check_float(be->ctx, "random", op->dtype);
    if (status != TG_OK || op->n <= 0) {
        return status;
    }
    const int width = tg_dtype_is_complex(op->dtype) ? 2 : 1;
    const int64_t n = width * op->n;
    return with_real(op->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return launch_alone(be, "random numbers", random_kernel<T, LAW>,
                            cuda_blocks(be, n, THREADS), THREADS, 0, op->rng,
                            (uint64_t)width * op->first, op->a, factor, n, static_cast<T *>(op->x));
    });
}

tg_status cuda_random(tg_backend *be, const tg_random *op) {
    return op->law == TG_RANDOM_NORMAL ? random_numbers<normal_law>(be, op, op->b)
                                       : random_numbers<uniform_law>(be, op, op->b - op->a);
}
