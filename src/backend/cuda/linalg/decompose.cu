/* Shared code of the decompositions, and the selection of leading columns. */
#include "backend/cuda/linalg/decompose.cuh"

#include <math.h>
#include <string.h>

#include "backend/cuda/core/cuda.cuh"

/* ---- memory ---- */

static bool exceed_scratch(const cuda_pieces *pieces) {
    return pieces->used > CUDA_SCRATCH_BYTES;
}

void *cuda_pieces_take(cuda_pieces *pieces, size_t bytes) {
    void *piece = pieces->block ? pieces->block + pieces->used : NULL;
    pieces->used += (bytes + 255) / 256 * 256;
    return piece;
}

tg_status cuda_pieces_open(tg_backend *be, cuda_pieces *pieces) {
    pieces->is_allocated = exceed_scratch(pieces);
    pieces->block = static_cast<char *>(pieces->is_allocated
                                            ? be->ops->alloc(be, TG_MEM_WORKSPACE, pieces->used)
                                            : cuda_state_of(be)->scratch);
    pieces->used = 0;
    return pieces->block ? TG_OK : TG_E_MEMORY;
}

void cuda_pieces_close(tg_backend *be, cuda_pieces *pieces) {
    be->ops->release(be, pieces->is_allocated ? pieces->block : NULL);
}

static bool exceeds_blas(const cuda_solver_work *work) {
    return work->device_bytes > CUDA_BLAS_BYTES;
}

tg_status cuda_solver_open(tg_backend *be, cuda_solver_work *work) {
    cuda_state *cuda = cuda_state_of(be);
    const char *what = "opening cuSOLVER";
    if (!cuda->solver) {
        TG_CALL(SOLVER_CHECK(be, cuda_libraries.cusolverDnCreate(&cuda->solver), what));
        TG_CALL(
            SOLVER_CHECK(be, cuda_libraries.cusolverDnSetStream(cuda->solver, cuda->stream), what));
    }
    return SOLVER_CHECK(be, cuda_libraries.cusolverDnCreateParams(&work->params), what);
}

tg_status cuda_solver_work_open(tg_backend *be, cuda_solver_work *work) {
    work->is_allocated = exceeds_blas(work);
    work->device = work->is_allocated ? be->ops->alloc(be, TG_MEM_WORKSPACE, work->device_bytes)
                                      : cuda_state_of(be)->blas_workspace;
    work->host = tg_mem_alloc(be->ctx, TG_MEM_WORKSPACE, work->host_bytes, 1);
    return work->device && work->host ? TG_OK : TG_E_MEMORY;
}

void cuda_solver_work_close(tg_backend *be, cuda_solver_work *work) {
    if (work->params) {
        cuda_libraries.cusolverDnDestroyParams(work->params);
    }
    be->ops->release(be, work->is_allocated ? work->device : NULL);
    tg_mem_free(be->ctx, work->host);
}

tg_scratch_need cuda_scratch_sum(const cuda_pieces *pieces, const cuda_solver_work *work) {
    tg_scratch_need bytes = {};
    bytes.place =
        (exceed_scratch(pieces) ? pieces->used : 0) + (exceeds_blas(work) ? work->device_bytes : 0);
    bytes.host = work->host_bytes;
    return bytes;
}

/* ---- verdicts ---- */

enum { THREADS = 256 };

static __device__ inline unsigned long long bits_of(double x) {
    return (unsigned long long)__double_as_longlong(fabs(x));
}

/* The largest of a warp's numbers into *most. */
static __device__ inline void raise(unsigned long long mine, unsigned long long *most) {
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(0xFFFFFFFFu, mine, step);
        mine = other > mine ? other : mine;
    }
    if (threadIdx.x % 32 == 0) {
        atomicMax(most, mine);
    }
}

static __global__ void __launch_bounds__(THREADS)
    find_most(int64_t n, const double *x, cuda_verdict *verdict) {
    unsigned long long mine = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * THREADS) {
        const unsigned long long bits = bits_of(x[i]);
        mine = bits > mine ? bits : mine;
    }
    raise(mine, &verdict->most);
}

tg_status cuda_find_most(tg_backend *be, int64_t n, const double *x, cuda_verdict *verdict) {
    return launch_alone(be, "looking for NaN", find_most, cuda_blocks(be, n, THREADS), THREADS, 0,
                        n, x, verdict);
}

/* product is (count, count), `parts` doubles a number. */
static __global__ void __launch_bounds__(THREADS)
    find_lost(int64_t count, int parts, const double *product, cuda_verdict *verdict) {
    unsigned long long mine = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count * count * parts;
         i += (int64_t)gridDim.x * THREADS) {
        const double is = i % parts == 0 && i / parts % (count + 1) == 0 ? 1.0 : 0.0;
        const unsigned long long bits = bits_of(product[i] - is);
        mine = bits > mine ? bits : mine;
    }
    raise(mine, &verdict->lost);
}

tg_status cuda_find_lost(tg_backend *be, tg_dtype dtype, int64_t count, int64_t length,
                         const void *v, void *product, cuda_verdict *verdict) {
    const tg_gemm gemm = gemm_of(dtype, count, count, length, 1.0, TG_OP_N, v, length, TG_OP_H, v,
                                 length, 0.0, product, count);
    TG_CALL(cuda_gemm(be, &gemm));
    const int parts = dtype == TG_C128 ? 2 : 1;
    return launch_alone(be, "checking vectors", find_lost,
                        cuda_blocks(be, count * count * parts, THREADS), THREADS, 0, count, parts,
                        static_cast<const double *>(product), verdict);
}

static double number_of(unsigned long long bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

tg_status cuda_read_verdict(tg_backend *be, const char *slot, int64_t rows, int64_t columns,
                            const cuda_verdict *verdict, bool *is_good) {
    cuda_verdict read;
    *is_good = false;
    TG_CALL(cuda_read(be, &read, verdict, sizeof read));
    if (!isfinite(number_of(read.most))) {
        return tg_fail(be->ctx, TG_E_NUMERIC, "%s: the %lldx%lld matrix has NaN or Inf", slot,
                       (long long)rows, (long long)columns);
    }
    *is_good = read.info[0] == 0 && read.info[1] == 0 && number_of(read.lost) <= 1e-10;
    return TG_OK;
}

tg_status cuda_open_host(tg_backend *be, const char *slot, tg_backend **out) {
    tg_log(be->ctx, TG_LOG_WARN, "%s: the GPU's result is not orthonormal; done on the host", slot);
    return tg_backend_open(be->ctx, "cpu", out);
}

/* ---- leading columns ---- */

enum { SIDE = 32, LANES = 16 }; /* columns of a block, and threads that share the rows of one */

/* The entry of largest modulus among some rows of a column. */
struct largest {
    double modulus2;
    int64_t row;
    pair<double> value;
};

/* Squared modulus as every backend rounds it, so that all break ties alike. */
static __device__ inline double modulus2(pair<double> x) {
    return __dadd_rn(__dmul_rn(x.re, x.re), __dmul_rn(x.im, x.im));
}

static __device__ inline bool is_before(const largest &a, const largest &b) {
    return a.modulus2 > b.modulus2 || (a.modulus2 == b.modulus2 && a.row < b.row);
}

/* The unit phase of a column from the threads' shares: <old, new> conjugated, else the conjugate
 * of the largest entry. */
static __device__ pair<double> phase_of(const pair<double> (*along)[SIDE],
                                        const largest (*most)[SIDE], int column) {
    pair<double> sum = {0.0, 0.0};
    for (int lane = 0; lane < LANES; lane++) {
        sum = sum + along[lane][column];
    }
    if (modulus2(sum) == 0.0) {
        largest best = most[0][column];
        for (int lane = 1; lane < LANES; lane++) {
            best = is_before(most[lane][column], best) ? most[lane][column] : best;
        }
        sum = conj(best.value);
    }
    const double modulus = sqrt(modulus2(sum));
    return modulus > 0.0 ? pair<double>{sum.re / modulus, sum.im / modulus}
                         : pair<double>{1.0, 0.0};
}

/* V: double or pair<double>, E: the elements of old and out, which may be the same array: a block
 * has read its columns of old before it writes them. */
template <class V, class E>
static __global__ void __launch_bounds__(SIDE *LANES)
    leading_columns(int64_t rows, int64_t columns, int64_t count, const V *vectors, const E *old,
                    E *out) {
    __shared__ pair<double> along[LANES][SIDE];
    __shared__ largest most[LANES][SIDE];
    __shared__ pair<double> phase[SIDE];
    const int column = threadIdx.x % SIDE, lane = threadIdx.x / SIDE;
    const int64_t j = (int64_t)blockIdx.x * SIDE + column;
    pair<double> sum = {0.0, 0.0};
    largest best = {0.0, INT64_MAX, {0.0, 0.0}};
    for (int64_t i = lane; i < rows && j < count; i += LANES) {
        const pair<double> v = to_double(vectors[i * columns + j]);
        const double size = modulus2(v);
        if (size > best.modulus2) {
            best = {size, i, v};
        }
        if (old) {
            sum = sum + to_double(old[i * count + j]) * conj(v);
        }
    }
    along[lane][column] = sum;
    most[lane][column] = best;
    __syncthreads();
    if (lane == 0) {
        phase[column] = phase_of(along, most, column);
    }
    __syncthreads();
    for (int64_t i = lane; i < rows && j < count; i += LANES) {
        store_pair(&out[i * count + j], to_double(vectors[i * columns + j]) * phase[column]);
    }
}

tg_status cuda_leading_columns(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                               int64_t count, const void *vectors, const void *old, void *out) {
    TG_CALL(tg_check_float(be->ctx, "leading_columns", dtype));
    if (count < 0 || count > columns) {
        return tg_fail(be->ctx, TG_E_ARGUMENT, "leading_columns: %lld of %lld columns",
                       (long long)count, (long long)columns);
    }
    if (rows <= 0 || count == 0) {
        return TG_OK;
    }
    return with_element(dtype, [&](auto tag) {
        using E = typename decltype(tag)::type;
        using V = std::conditional_t<std::is_same_v<E, part_of<E>>, double, pair<double>>;
        return launch_alone(be, "choosing vectors", leading_columns<V, E>,
                            (unsigned)((count + SIDE - 1) / SIDE), SIDE * LANES, 0, rows, columns,
                            count, static_cast<const V *>(vectors), static_cast<const E *>(old),
                            static_cast<E *>(out));
    });
}

/* Does not count the memory of the host backend that replaces a bad result. Selections use the
 * scratch. */
tg_scratch_need cuda_scratch_need(tg_backend *be, tg_scratch_call call, tg_dtype dtype, int64_t m,
                                  int64_t n) {
    switch (call) {
    case TG_SCRATCH_EIGH:
        return cuda_eigh_scratch_need(be, dtype, n);
    case TG_SCRATCH_QR:
        return cuda_qr_scratch_need(be, dtype, m, n);
    case TG_SCRATCH_SELECT:
        break;
    }
    return {};
}
