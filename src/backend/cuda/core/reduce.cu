/* Reductions, accumulated in double in a fixed order: each thread sums its part, each block its
 * threads, and one block sums the blocks. Results reach the host through pinned memory. */
#include <string.h>

#include "backend/cuda/core/element.cuh"
#include "backend/cuda/core/pack.cuh"

enum { THREADS = 256 };

/* One block: out = join of `count` partial results. */
template <class V> static __global__ void join_kernel(unsigned count, const V *partials, V *out) {
    V mine = V();
    for (unsigned i = threadIdx.x; i < count; i += THREADS) {
        mine = join(mine, partials[i]);
    }
    mine = block_join<THREADS>(mine);
    if (threadIdx.x == 0) {
        *out = mine;
    }
}

/* Joins the blocks' partial results in the scratch and copies the result to the host. */
template <class V> static tg_status finish(tg_backend *be, unsigned blocks, V *out) {
    V *partials = static_cast<V *>(cuda_state_of(be)->scratch);
    TG_CALL(launch_alone(be, "joining sums", join_kernel<V>, 1, THREADS, 0, blocks, partials,
                         partials + blocks));
    return cuda_read(be, out, partials + blocks, sizeof *out);
}

/* ---- norms ---- */

/* max_abs holds the square until the end, except for doubles, whose squares may overflow. */
template <class E> constexpr bool has_wide_parts = sizeof(part_of<E>) == sizeof(double);

template <class E>
static __global__ void norms_kernel(int64_t packs, int64_t n, const E *x, tg_norms *out) {
    tg_norms sum = tg_norms();
    in_packs<per_pack<E>>(packs, n, [&](int64_t first, auto s) {
        using S = decltype(s);
        const auto a = load<S::count, S::vector>(x + first);
#pragma unroll
        for (int i = 0; i < S::count; i++) {
            const pair<double> v = to_double(a.at[i]);
            if (is_bad(a.at[i])) {
                sum.nonfinite++;
            } else {
                const double square = abs2(v);
                sum.sum_squares += square;
                sum.max_abs = fmax(sum.max_abs, has_wide_parts<E> ? hypot(v.re, v.im) : square);
            }
        }
    });
    sum = block_join<THREADS>(sum);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = sum;
    }
}

tg_status cuda_norms(tg_backend *be, tg_dtype dtype, int64_t n, const void *x, tg_norms *out) {
    const tg_status status = tg_check_float(be->ctx, "norms", dtype);
    *out = tg_norms();
    if (status != TG_OK || n <= 0) {
        return status;
    }
    return with_element(dtype, [&](auto tag) {
        using E = typename decltype(tag)::type;
        const E *in = static_cast<const E *>(x);
        const int64_t packs = packs_of(n, in);
        const unsigned blocks = stream_blocks(be, packs, n, THREADS);
        tg_norms *partials = static_cast<tg_norms *>(cuda_state_of(be)->scratch);
        TG_CALL(
            launch_alone(be, "norms", norms_kernel<E>, blocks, THREADS, 0, packs, n, in, partials));
        TG_CALL(finish(be, blocks, out));
        out->max_abs = has_wide_parts<E> ? out->max_abs : sqrt(out->max_abs);
        return TG_OK;
    });
}

/* ---- entries that are not finite ---- */

template <class E>
static __global__ void count_kernel(int64_t packs, int64_t n, const E *x, uint32_t *count) {
    uint64_t bad = 0;
    in_packs<per_pack<E>>(packs, n, [&](int64_t first, auto s) {
        using S = decltype(s);
        const auto a = load<S::count, S::vector>(x + first);
#pragma unroll
        for (int i = 0; i < S::count; i++) {
            bad += is_bad(a.at[i]);
        }
    });
    if (__syncthreads_or(bad > 0)) {
        bad = block_join<THREADS>(bad);
        if (threadIdx.x == 0) {
            add_saturating(count, bad);
        }
    }
}

tg_status cuda_count_nonfinite(tg_backend *be, tg_dtype dtype, int64_t n, const void *x,
                               uint32_t *count) {
    const tg_status status = tg_check_float(be->ctx, "count_nonfinite", dtype);
    if (status != TG_OK || n <= 0) {
        return status;
    }
    return with_element(dtype, [&](auto tag) {
        using E = typename decltype(tag)::type;
        const E *in = static_cast<const E *>(x);
        const int64_t packs = packs_of(n, in);
        return launch_alone(be, "count_nonfinite", count_kernel<E>,
                            stream_blocks(be, packs, n, THREADS), THREADS, 0, packs, n, in, count);
    });
}

/* ---- norms of slices ---- */

/* Block (slice, split): the part [split * length, ..) of the left * right entries of a slice. */
template <class E>
static __global__ void slice_kernel(int64_t left, int64_t dim, int64_t right, int64_t first_slice,
                                    int64_t length, const E *x, double *partials) {
    const int64_t slice = first_slice + blockIdx.x;
    const int64_t begin = blockIdx.y * length, all = left * right;
    const int64_t end = begin + length < all ? begin + length : all;
    /* Entry j is (l, r) = (j / right, j % right); the step to j + THREADS needs no division. */
    const int64_t step_l = THREADS / right, step_r = THREADS % right;
    int64_t l = (begin + threadIdx.x) / right, r = (begin + threadIdx.x) % right;
    double sum = 0.0;
    for (int64_t j = begin + threadIdx.x; j < end; j += THREADS) {
        sum += abs2(to_double(x[(l * dim + slice) * right + r]));
        l += step_l;
        r += step_r;
        if (r >= right) {
            r -= right;
            l++;
        }
    }
    sum = block_join<THREADS>(sum);
    if (threadIdx.x == 0) {
        partials[(int64_t)blockIdx.x * gridDim.y + blockIdx.y] = sum;
    }
}

static __global__ void slice_join_kernel(unsigned slices, unsigned splits, const double *partials,
                                         double *out) {
    const unsigned slice = blockIdx.x * THREADS + threadIdx.x;
    if (slice < slices) {
        double sum = 0.0;
        for (unsigned i = 0; i < splits; i++) {
            sum += partials[(int64_t)slice * splits + i];
        }
        out[slice] = sum;
    }
}

/* Reduces slices [first, first + slices), which must fit pinned memory and scratch, to out. */
template <class E>
static tg_status some_slice_norms(tg_backend *be, int64_t left, int64_t dim, int64_t right,
                                  int64_t first, unsigned slices, const E *x, double *out) {
    const cuda_state *cuda = cuda_state_of(be);
    const int64_t all = left * right;
    const int64_t wanted = ((int64_t)cuda->processors * 8 + slices - 1) / slices;
    const int64_t most = (all + THREADS * 16 - 1) / (THREADS * 16); /* no split for a few entries */
    const unsigned splits = (unsigned)tg_min(tg_min(wanted, most), 64);
    double *partials = static_cast<double *>(cuda->scratch);
    double *sums = partials + (size_t)slices * splits;
    TG_CALL(launch_alone(be, "slice_norms", slice_kernel<E>, dim3(slices, splits), THREADS, 0, left,
                         dim, right, first, (all + splits - 1) / splits, x, partials));
    TG_CALL(launch_alone(be, "slice_norms", slice_join_kernel, (slices + THREADS - 1) / THREADS,
                         THREADS, 0, slices, splits, partials, sums));
    return cuda_read(be, out + first, sums, slices * sizeof *out);
}

tg_status cuda_slice_norms(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim, int64_t right,
                           const void *x, double *out) {
    /* With 64 splits and the final sums, these fill half of the scratch. */
    const int64_t most = CUDA_SCRATCH_BYTES / (int64_t)sizeof(double) / 128;
    static_assert(CUDA_SCRATCH_BYTES / 128 <= CUDA_PINNED_BYTES, "sums pass through pinned memory");
    TG_CALL(tg_check_float(be->ctx, "slice_norms", dtype));
    if (left <= 0 || right <= 0) {
        memset(out, 0, (size_t)(dim > 0 ? dim : 0) * sizeof *out);
        return TG_OK;
    }
    return with_element(dtype, [&](auto tag) {
        using E = typename decltype(tag)::type;
        for (int64_t first = 0; first < dim; first += most) {
            const unsigned slices = (unsigned)tg_min(dim - first, most);
            TG_CALL(some_slice_norms(be, left, dim, right, first, slices, static_cast<const E *>(x),
                                     out));
        }
        return TG_OK;
    });
}
