/* Thin QR by cuSOLVER's Householder reflections.
 *
 * It gets a column-major copy of a with every column divided by a power of two, so that columns of
 * any size keep their precision; reflections give orthonormal columns whatever the rank. Rows of R
 * and columns of Q are then multiplied by the phases that make the diagonal real and >= 0. The
 * result is checked on the device before a is overwritten; if it is not good, a host backend
 * decides. */
#include <limits.h>

#include "backend/cuda/linalg/decompose.cuh"

enum { THREADS = 256, SIDE = 32 };

/* bits[j] = the largest |part| of column j of a (m, n), `parts` doubles a number; and that of all.
 * A block has 32 doubles of a row at once and THREADS / 32 rows. */
static __global__ void __launch_bounds__(THREADS)
    find_columns(int64_t m, int64_t n, int parts, const double *a, unsigned long long *bits,
                 cuda_verdict *verdict) {
    const int64_t width = n * parts;
    for (int64_t k = (int64_t)blockIdx.x * SIDE + threadIdx.x % SIDE; k < width;
         k += (int64_t)gridDim.x * SIDE) {
        unsigned long long mine = 0;
        for (int64_t i = (int64_t)blockIdx.y * (THREADS / SIDE) + threadIdx.x / SIDE; i < m;
             i += (int64_t)gridDim.y * (THREADS / SIDE)) {
            const unsigned long long now =
                (unsigned long long)__double_as_longlong(fabs(a[i * width + k]));
            mine = now > mine ? now : mine;
        }
        atomicMax(&bits[k / parts], mine);
        atomicMax(&verdict->most, mine);
    }
}

static __device__ inline double turned(double x, pair<double> phase) {
    return x * phase.re;
}
static __device__ inline pair<double> turned(pair<double> x, pair<double> phase) {
    return x * phase;
}

static __device__ inline void set_real(double *x, double value) {
    *x = value;
}
static __device__ inline void set_real(pair<double> *x, double value) {
    *x = {value, 0.0};
}

/* Transposes a matrix (rows, columns) in tiles of 32 x 32 through shared memory, so that reads and
 * writes are along lines: change(value, row, column). */
template <bool TO_COLUMNS, class E, class F>
static __device__ void transpose(int64_t rows, int64_t columns, const E *from, E *to, F change) {
    __shared__ E tile[SIDE][SIDE + 1];
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    const int64_t across = (columns + SIDE - 1) / SIDE, down = (rows + SIDE - 1) / SIDE;
    for (int64_t t = blockIdx.x; t < across * down; t += gridDim.x) {
        const int64_t i0 = t / across * SIDE, j0 = t % across * SIDE;
        for (int k = y; k < SIDE; k += THREADS / SIDE) {
            const int64_t i = i0 + (TO_COLUMNS ? k : x), j = j0 + (TO_COLUMNS ? x : k);
            if (i < rows && j < columns) {
                tile[k][x] = from[TO_COLUMNS ? i * columns + j : j * rows + i];
            }
        }
        __syncthreads();
        for (int k = y; k < SIDE; k += THREADS / SIDE) {
            const int64_t i = i0 + (TO_COLUMNS ? x : k), j = j0 + (TO_COLUMNS ? k : x);
            if (i < rows && j < columns) {
                to[TO_COLUMNS ? j * rows + i : i * columns + j] = change(tile[x][k], i, j);
            }
        }
        __syncthreads();
    }
}

/* matrix, column-major, = a with its columns over powers of two; columns that are not finite: 0. */
template <class E>
static __global__ void __launch_bounds__(THREADS)
    load_columns(int64_t m, int64_t n, const E *a, const unsigned long long *bits, E *matrix) {
    transpose<true>(m, n, a, matrix, [bits](E x, int64_t, int64_t j) {
        return is_finite_bits(bits[j]) ? scalbn(1.0, -scale_exponent(bits[j])) * x : E();
    });
}

/* upper (n, n) = R of the column-major matrix, scaled back, times the phases; phase (n) for Q. */
template <class E>
static __global__ void __launch_bounds__(THREADS)
    take_upper(int64_t m, int64_t n, const E *matrix, const unsigned long long *bits,
               pair<double> *phase, E *upper) {
    for (int64_t p = (int64_t)blockIdx.x * THREADS + threadIdx.x; p < n * n;
         p += (int64_t)gridDim.x * THREADS) {
        const int64_t i = p / n, j = p % n;
        const pair<double> corner = to_double(matrix[i * m + i]);
        const double modulus = hypot(corner.re, corner.im);
        pair<double> turn = {1.0, 0.0};
        if (modulus > 0.0) {
            turn = {corner.re / modulus, -corner.im / modulus};
        }
        const double scale = scalbn(1.0, scale_exponent(bits[j]));
        if (i == j) {
            phase[i] = conj(turn);
            set_real(&upper[p], modulus * scale);
        } else {
            upper[p] = i < j ? turned(scale * matrix[j * m + i], turn) : E();
        }
    }
}

/* a = the columns of the column-major matrix, each times its phase. */
template <class E>
static __global__ void __launch_bounds__(THREADS)
    store_columns(int64_t m, int64_t n, const E *matrix, const pair<double> *phase, E *a) {
    transpose<false>(m, n, matrix, a,
                     [phase](E x, int64_t, int64_t j) { return turned(x, phase[j]); });
}

/* Device memory of one decomposition. */
struct qr_memory {
    cuda_pieces pieces;
    cuda_solver_work work;
    void *matrix;          /* (m, n) column-major */
    void *upper, *product; /* (n, n) */
    void *tau;             /* (n) */
    pair<double> *phase;   /* (n) */
    cuda_verdict *verdict; /* followed by the bits (n) of columns */
};

static unsigned long long *bits_of(const qr_memory *q) {
    return reinterpret_cast<unsigned long long *>(q->verdict + 1);
}

static size_t verdict_bytes(int64_t n) {
    return sizeof(cuda_verdict) + (size_t)n * sizeof(unsigned long long);
}

static void take_pieces(tg_dtype dtype, int64_t m, int64_t n, qr_memory *q) {
    const size_t number = tg_dtype_size(dtype), square = (size_t)(n * n) * number;
    const auto take = [&](size_t bytes) { return cuda_pieces_take(&q->pieces, bytes); };
    q->matrix = take((size_t)(m * n) * number);
    q->upper = take(square);
    q->product = take(square);
    q->tau = take((size_t)n * number);
    q->phase = static_cast<pair<double> *>(take((size_t)n * sizeof(pair<double>)));
    q->verdict = static_cast<cuda_verdict *>(take(verdict_bytes(n)));
}

static tg_status open_memory(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, qr_memory *q) {
    take_pieces(dtype, m, n, q);
    TG_CALL(cuda_pieces_open(be, &q->pieces));
    take_pieces(dtype, m, n, q);
    return cuda_clear(be, q->verdict, verdict_bytes(n), "preparing a QR decomposition");
}

/* Workspace of both cuSOLVER calls, a function of the sizes alone: the queries take arrays but do
 * not read them. */
static tg_status need_work(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n,
                           cuda_solver_work *work) {
    const cuda_state *cuda = cuda_state_of(be);
    const cudaDataType type = dtype == TG_C128 ? CUDA_C_64F : CUDA_R_64F;
    const char *what = "preparing a QR decomposition";
    const int rows = (int)m, columns = (int)n;
    int numbers = 0;
    size_t bytes = 0;
    TG_CALL(cuda_solver_open(be, work));
    TG_CALL(SOLVER_CHECK(be,
                         cuda_libraries.cusolverDnXgeqrf_bufferSize(
                             cuda->solver, work->params, m, n, type, cuda->scratch, m, type,
                             cuda->scratch, type, &work->device_bytes, &work->host_bytes),
                         what));
    TG_CALL(SOLVER_CHECK(be,
                         dtype == TG_C128
                             ? cuda_libraries.cusolverDnZungqr_bufferSize(
                                   cuda->solver, rows, columns, columns,
                                   static_cast<cuDoubleComplex *>(cuda->scratch), rows,
                                   static_cast<cuDoubleComplex *>(cuda->scratch), &numbers)
                             : cuda_libraries.cusolverDnDorgqr_bufferSize(
                                   cuda->solver, rows, columns, columns,
                                   static_cast<double *>(cuda->scratch), rows,
                                   static_cast<double *>(cuda->scratch), &numbers),
                         what));
    bytes = (size_t)numbers * tg_dtype_size(dtype);
    work->device_bytes = bytes > work->device_bytes ? bytes : work->device_bytes;
    return TG_OK;
}

/* The reflections, with R in the upper triangle of the matrix. */
static tg_status reflect(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, qr_memory *q) {
    const cudaDataType type = dtype == TG_C128 ? CUDA_C_64F : CUDA_R_64F;
    return SOLVER_CHECK(be,
                        cuda_libraries.cusolverDnXgeqrf(
                            cuda_state_of(be)->solver, q->work.params, m, n, type, q->matrix, m,
                            type, q->tau, type, q->work.device, q->work.device_bytes, q->work.host,
                            q->work.host_bytes, &q->verdict->info[0]),
                        "computing a QR decomposition");
}

/* Q from the reflections. */
static tg_status form_q(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, qr_memory *q) {
    cusolverDnHandle_t handle = cuda_state_of(be)->solver;
    const int rows = (int)m, columns = (int)n;
    const int numbers = (int)(q->work.device_bytes / tg_dtype_size(dtype));
    return SOLVER_CHECK(
        be,
        dtype == TG_C128
            ? cuda_libraries.cusolverDnZungqr(
                  handle, rows, columns, columns, static_cast<cuDoubleComplex *>(q->matrix), rows,
                  static_cast<cuDoubleComplex *>(q->tau),
                  static_cast<cuDoubleComplex *>(q->work.device), numbers, &q->verdict->info[1])
            : cuda_libraries.cusolverDnDorgqr(
                  handle, rows, columns, columns, static_cast<double *>(q->matrix), rows,
                  static_cast<double *>(q->tau), static_cast<double *>(q->work.device), numbers,
                  &q->verdict->info[1]),
        "computing a QR decomposition");
}

/* Q in q->matrix, R in q->upper; a is read only. */
template <class E>
static tg_status qr_on_device(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, const E *a,
                              qr_memory *q) {
    const int parts = (int)(sizeof(E) / sizeof(double));
    const dim3 grid(
        (unsigned)((n * parts + SIDE - 1) / SIDE < 1024 ? (n * parts + SIDE - 1) / SIDE : 1024),
        (unsigned)(m < 64 * 64 ? (m + 63) / 64 : 64));
    E *matrix = static_cast<E *>(q->matrix);
    TG_CALL(launch_alone(be, "computing a QR decomposition", find_columns, grid, THREADS, 0, m, n,
                         parts, reinterpret_cast<const double *>(a), bits_of(q), q->verdict));
    TG_CALL(launch_alone(be, "computing a QR decomposition", load_columns<E>,
                         cuda_blocks(be, m * n, 4 * THREADS), THREADS, 0, m, n, a, bits_of(q),
                         matrix));
    TG_CALL(need_work(be, dtype, m, n, &q->work));
    TG_CALL(cuda_solver_work_open(be, &q->work));
    TG_CALL(reflect(be, dtype, m, n, q));
    TG_CALL(launch_alone(be, "computing a QR decomposition", take_upper<E>,
                         cuda_blocks(be, n * n, THREADS), THREADS, 0, m, n, matrix, bits_of(q),
                         q->phase, static_cast<E *>(q->upper)));
    TG_CALL(form_q(be, dtype, m, n, q));
    return cuda_find_lost(be, dtype, n, m, matrix, q->product, q->verdict);
}

static tg_status qr_on_host(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, void *a,
                            void *r) {
    const size_t size = tg_dtype_size(dtype);
    const size_t whole = (size_t)(m * n) * size, square = (size_t)(n * n) * size;
    tg_status status = TG_OK;
    tg_backend *host = NULL;
    char *copy = static_cast<char *>(tg_mem_alloc(be->ctx, TG_MEM_WORKSPACE, whole + square, 1));
    TG_TRY(copy ? TG_OK : TG_E_MEMORY);
    TG_TRY(cuda_open_host(be, "qr", &host));
    TG_TRY(be->ops->download(be, copy, a, whole));
    TG_TRY(host->ops->qr(host, dtype, m, n, copy, copy + whole));
    TG_TRY(be->ops->upload(be, a, copy, whole));
    if (r) {
        TG_TRY(be->ops->upload(be, r, copy + whole, square));
    }
fail:
    tg_backend_close(&host);
    tg_mem_free(be->ctx, copy);
    return status;
}

template <class E>
static tg_status store_result(tg_backend *be, int64_t m, int64_t n, const qr_memory *q, E *a,
                              void *r) {
    TG_CALL(launch_alone(be, "computing a QR decomposition", store_columns<E>,
                         cuda_blocks(be, m * n, 4 * THREADS), THREADS, 0, m, n,
                         static_cast<const E *>(q->matrix), q->phase, a));
    return r ? be->ops->copy(be, r, q->upper, (size_t)(n * n) * sizeof(E)) : TG_OK;
}

template <class E>
static tg_status qr_of(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, E *a, void *r) {
    qr_memory q = {};
    bool is_good = false;
    tg_status status = TG_OK;
    TG_TRY(open_memory(be, dtype, m, n, &q));
    TG_TRY(qr_on_device(be, dtype, m, n, a, &q));
    TG_TRY(cuda_read_verdict(be, "qr", m, n, q.verdict, &is_good));
    TG_TRY(is_good ? store_result(be, m, n, &q, a, r) : qr_on_host(be, dtype, m, n, a, r));
fail:
    cuda_solver_work_close(be, &q.work);
    cuda_pieces_close(be, &q.pieces);
    return status;
}

tg_scratch_need cuda_qr_scratch_need(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n) {
    qr_memory q = {};
    take_pieces(dtype, m, n, &q);
    const bool known = n > 0 && m <= INT_MAX && need_work(be, dtype, m, n, &q.work) == TG_OK;
    const tg_scratch_need bytes = known ? cuda_scratch_sum(&q.pieces, &q.work) : tg_scratch_need{};
    cuda_solver_work_close(be, &q.work);
    return bytes;
}

tg_status cuda_qr(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, void *a, void *r) {
    TG_CALL(tg_check_double(be->ctx, "qr", dtype));
    if (n < 0 || m < n) {
        return tg_fail(be->ctx, TG_E_SHAPE, "qr: %lldx%lld; at least as many rows are needed",
                       (long long)m, (long long)n);
    }
    if (m > INT_MAX) {
        return tg_fail(be->ctx, TG_E_SHAPE, "qr: %lld rows; a GPU takes %d at most", (long long)m,
                       INT_MAX);
    }
    return n == 0             ? TG_OK
           : dtype == TG_C128 ? qr_of(be, dtype, m, n, static_cast<pair<double> *>(a), r)
                              : qr_of(be, dtype, m, n, static_cast<double *>(a), r);
}
