/* Hermitian eigenproblem: small ones by rotations (jacobi.cu), others by cuSOLVER (divide and
 * conquer).
 *
 * cuSOLVER gets the Hermitian part of a, divided by a power of two so that nothing overflows, and
 * returns the eigenvalues in ascending order with vectors in the columns of a column-major matrix.
 * It gets small problems twice: a batch of two uses another algorithm than a single one and takes a
 * quarter less time (1.4 instead of 1.9 ms for 128 complex rows on an H200). The result is checked
 * on the device before a is overwritten; if it is not good, a host backend decides. */
#include "backend/cuda/linalg/decompose.cuh"

enum { THREADS = 256 };

/* Copies of a problem passed to cuSOLVER. */
static int copies_of(int64_t n) {
    return n <= 256 ? 2 : 1;
}

static __device__ inline double mean_with(double x, double y, double factor) {
    return factor * x + factor * y;
}
/* The conjugate of the mean of x and conj(y): cuSOLVER sees the transpose of this matrix. */
static __device__ inline pair<double> mean_with(pair<double> x, pair<double> y, double factor) {
    return {factor * x.re + factor * y.re, factor * y.im - factor * x.im};
}

/* Copies of a matrix, column-major, = the Hermitian part of a over 2^e; 0 if a is not finite. */
template <class E>
static __global__ void __launch_bounds__(THREADS)
    load_hermitian(int64_t n, int copies, const E *a, const cuda_verdict *verdict, E *matrix) {
    const double factor = scalbn(0.5, -scale_exponent(verdict->most));
    const bool good = is_finite_bits(verdict->most);
    for (int64_t p = (int64_t)blockIdx.x * THREADS + threadIdx.x; p < n * n;
         p += (int64_t)gridDim.x * THREADS) {
        const E entry = good ? mean_with(a[p], a[p % n * n + p / n], factor) : E();
        for (int copy = 0; copy < copies; copy++) {
            matrix[copy * n * n + p] = entry;
        }
    }
}

/* vectors, row-major, and values in descending order, from cuSOLVER's. */
template <class E>
static __global__ void __launch_bounds__(THREADS)
    flip(int64_t n, const E *matrix, const double *ascending, const cuda_verdict *verdict,
         E *vectors, double *values) {
    const double scale = scalbn(1.0, scale_exponent(verdict->most));
    for (int64_t p = (int64_t)blockIdx.x * THREADS + threadIdx.x; p < n * n;
         p += (int64_t)gridDim.x * THREADS) {
        const int64_t i = p / n, j = p % n;
        vectors[p] = matrix[(n - 1 - j) * n + i];
        if (i == 0) {
            values[j] = ascending[n - 1 - j] * scale;
        }
    }
}

/* Device memory of one problem. */
struct eigh_memory {
    cuda_pieces pieces;
    cuda_solver_work work;
    void *matrix;      /* (copies, n, n) column-major */
    void *vectors;     /* (n, n) */
    double *ascending; /* (copies, n) */
    double *values;    /* (n) */
    void *log;         /* of rotations */
    cuda_verdict *verdict;
};

static void take_pieces(tg_dtype dtype, int64_t n, eigh_memory *m) {
    const size_t square = (size_t)(n * n) * tg_dtype_size(dtype), line = (size_t)n * sizeof(double),
                 copies = (size_t)copies_of(n);
    const auto take = [&](size_t bytes) { return cuda_pieces_take(&m->pieces, bytes); };
    m->matrix = take(copies * square);
    m->vectors = take(square);
    m->ascending = static_cast<double *>(take(copies * line));
    m->values = static_cast<double *>(take(line));
    m->log = take(n <= CUDA_JACOBI_MAX_N ? cuda_jacobi_bytes(n) : 0);
    m->verdict = static_cast<cuda_verdict *>(take(sizeof *m->verdict));
}

static tg_status open_memory(tg_backend *be, tg_dtype dtype, int64_t n, eigh_memory *m) {
    take_pieces(dtype, n, m);
    TG_CALL(cuda_pieces_open(be, &m->pieces));
    take_pieces(dtype, n, m);
    return cuda_clear(be, m->verdict, sizeof *m->verdict, "preparing eigenvectors");
}

/* cuSOLVER's workspace, a function of the sizes alone: the query takes arrays but does not read
 * them. */
static tg_status need_work(tg_backend *be, tg_dtype dtype, int64_t n, cuda_solver_work *work) {
    const cuda_state *cuda = cuda_state_of(be);
    const cudaDataType type = dtype == TG_C128 ? CUDA_C_64F : CUDA_R_64F;
    const char *what = "preparing eigenvectors";
    TG_CALL(cuda_solver_open(be, work));
    return SOLVER_CHECK(be,
                        cuda_libraries.cusolverDnXsyevBatched_bufferSize(
                            cuda->solver, work->params, CUSOLVER_EIG_MODE_VECTOR,
                            CUBLAS_FILL_MODE_LOWER, n, type, cuda->scratch, n, CUDA_R_64F,
                            cuda->scratch, type, &work->device_bytes, &work->host_bytes,
                            copies_of(n)),
                        what);
}

/* matrix -> vectors in it, and values in `ascending`. */
static tg_status solve(tg_backend *be, tg_dtype dtype, int64_t n, eigh_memory *m) {
    const cuda_state *cuda = cuda_state_of(be);
    const cudaDataType type = dtype == TG_C128 ? CUDA_C_64F : CUDA_R_64F;
    const char *what = "computing eigenvectors";
    TG_CALL(need_work(be, dtype, n, &m->work)); /* also opens cuSOLVER */
    TG_CALL(cuda_solver_work_open(be, &m->work));
    return SOLVER_CHECK(be,
                        cuda_libraries.cusolverDnXsyevBatched(
                            cuda->solver, m->work.params, CUSOLVER_EIG_MODE_VECTOR,
                            CUBLAS_FILL_MODE_LOWER, n, type, m->matrix, n, CUDA_R_64F, m->ascending,
                            type, m->work.device, m->work.device_bytes, m->work.host,
                            m->work.host_bytes, m->verdict->info, copies_of(n)),
                        what);
}

/* vectors and values of a, by cuSOLVER. */
template <class E>
static tg_status divide_and_conquer(tg_backend *be, tg_dtype dtype, int64_t n, const E *a,
                                    eigh_memory *m) {
    const unsigned blocks = cuda_blocks(be, n * n, THREADS);
    E *matrix = static_cast<E *>(m->matrix);
    TG_CALL(launch_alone(be, "computing eigenvectors", load_hermitian<E>, blocks, THREADS, 0, n,
                         copies_of(n), a, m->verdict, matrix));
    TG_CALL(solve(be, dtype, n, m));
    return launch_alone(be, "computing eigenvectors", flip<E>, blocks, THREADS, 0, n, matrix,
                        m->ascending, m->verdict, static_cast<E *>(m->vectors), m->values);
}

/* a is read only. */
static tg_status eigh_on_device(tg_backend *be, tg_dtype dtype, int64_t n, const void *a,
                                eigh_memory *m) {
    const int parts = dtype == TG_C128 ? 2 : 1;
    TG_CALL(cuda_find_most(be, n * n * parts, static_cast<const double *>(a), m->verdict));
    TG_CALL(n <= CUDA_JACOBI_MAX_N
                ? cuda_jacobi(be, dtype, n, a, m->log, m->vectors, m->values, m->verdict)
            : parts == 2 ? divide_and_conquer(be, dtype, n, static_cast<const pair<double> *>(a), m)
                         : divide_and_conquer(be, dtype, n, static_cast<const double *>(a), m));
    /* rows of a square matrix are orthonormal if its columns are */
    return cuda_find_lost(be, dtype, n, n, m->vectors, m->matrix, m->verdict);
}

static tg_status eigh_on_host(tg_backend *be, tg_dtype dtype, int64_t n, void *a,
                              double *eigenvalues) {
    const size_t square = (size_t)(n * n) * tg_dtype_size(dtype), line = (size_t)n * sizeof(double);
    tg_status status = TG_OK;
    tg_backend *host = NULL;
    char *copy = static_cast<char *>(tg_mem_alloc(be->ctx, TG_MEM_WORKSPACE, square + line, 1));
    TG_TRY(copy ? TG_OK : TG_E_MEMORY);
    TG_TRY(cuda_open_host(be, "eigh", &host));
    TG_TRY(be->ops->download(be, copy, a, square));
    TG_TRY(host->ops->eigh(host, dtype, n, copy, reinterpret_cast<double *>(copy + square)));
    TG_TRY(be->ops->upload(be, a, copy, square));
    TG_TRY(be->ops->upload(be, eigenvalues, copy + square, line));
fail:
    tg_backend_close(&host);
    tg_mem_free(be->ctx, copy);
    return status;
}

tg_scratch_need cuda_eigh_scratch_need(tg_backend *be, tg_dtype dtype, int64_t n) {
    eigh_memory m = {};
    take_pieces(dtype, n, &m);
    const bool known = n <= CUDA_JACOBI_MAX_N || need_work(be, dtype, n, &m.work) == TG_OK;
    const tg_scratch_need bytes = known ? cuda_scratch_sum(&m.pieces, &m.work) : tg_scratch_need{};
    cuda_solver_work_close(be, &m.work);
    return bytes;
}

tg_status cuda_eigh(tg_backend *be, tg_dtype dtype, int64_t n, void *a, double *eigenvalues) {
    eigh_memory m = {};
    bool is_good = false;
    tg_status status = TG_OK;
    TG_TRY(tg_check_double(be->ctx, "eigh", dtype));
    if (n <= 0) {
        return TG_OK;
    }
    TG_TRY(open_memory(be, dtype, n, &m));
    TG_TRY(eigh_on_device(be, dtype, n, a, &m));
    TG_TRY(cuda_read_verdict(be, "eigh", n, n, m.verdict, &is_good));
    if (is_good) {
        TG_TRY(be->ops->copy(be, a, m.vectors, (size_t)(n * n) * tg_dtype_size(dtype)));
        TG_TRY(be->ops->copy(be, eigenvalues, m.values, (size_t)n * sizeof(double)));
    } else {
        TG_TRY(eigh_on_host(be, dtype, n, a, eigenvalues));
    }
fail:
    cuda_solver_work_close(be, &m.work);
    cuda_pieces_close(be, &m.pieces);
    return status;
}
