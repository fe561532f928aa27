/* Shared by the decompositions: memory for one call, the search for non-finite numbers, and the
 * check of cuSOLVER's results. */
#ifndef TG_BACKEND_CUDA_LINALG_DECOMPOSE_CUH
#define TG_BACKEND_CUDA_LINALG_DECOMPOSE_CUH

#include "backend/cuda/core/pack.cuh"

/* Result of the checks on the device, which the host reads once at the end. Numbers >= 0 are stored
 * as their bits, which have the same order, NaN last, so that integer atomics compute maxima. */
struct cuda_verdict {
    unsigned long long most; /* largest |part| of the input */
    unsigned long long lost; /* largest |part| of V^H V - I */
    int info[2];             /* of cuSOLVER: 0 is good */
};

/* Pieces of memory for one call, from cuda_state.scratch if it is large enough, else from the
 * ledger. Take them all once without a block, which adds up their sizes, then open it and take them
 * again. */
struct cuda_pieces {
    size_t used;
    char *block;
    bool is_allocated; /* from the ledger */
};

void *cuda_pieces_take(cuda_pieces *pieces, size_t bytes); /* NULL without a block */
tg_status cuda_pieces_open(tg_backend *be, cuda_pieces *pieces);
void cuda_pieces_close(tg_backend *be, cuda_pieces *pieces);

/* The workspaces of one call of cuSOLVER. The device workspace is cuBLAS's, which is idle then, if
 * it is large enough. Close after synchronizing the stream. */
struct cuda_solver_work {
    cusolverDnParams_t params;
    void *device, *host;
    size_t device_bytes, host_bytes;
    bool is_allocated; /* `device` from the ledger */
};

/* Opens cuSOLVER at its first use (100 MB of device memory), and params. */
tg_status cuda_solver_open(tg_backend *be, cuda_solver_work *work);

tg_status cuda_solver_work_open(tg_backend *be, cuda_solver_work *work);
void cuda_solver_work_close(tg_backend *be, cuda_solver_work *work);

/* Bytes that a call takes from the ledger, including both; the pieces are not open. */
tg_scratch_need cuda_scratch_sum(const cuda_pieces *pieces, const cuda_solver_work *work);

/* verdict->most of n doubles. */
tg_status cuda_find_most(tg_backend *be, int64_t n, const double *x, cuda_verdict *verdict);

/* verdict->lost of v (count, length), rows orthonormal, dtype f64 or c128; product (count, count)
 * is scratch. */
tg_status cuda_find_lost(tg_backend *be, tg_dtype dtype, int64_t count, int64_t length,
                         const void *v, void *product, cuda_verdict *verdict);

/* Synchronizes and reads the verdict. TG_E_NUMERIC if the input was not finite; *is_good: the
 * result can be used. `slot` and sizes are for the error message. */
tg_status cuda_read_verdict(tg_backend *be, const char *slot, int64_t rows, int64_t columns,
                            const cuda_verdict *verdict, bool *is_good);

/* A host backend, for problems where the device's result is not good, and its host memory. */
tg_status cuda_open_host(tg_backend *be, const char *slot, tg_backend **out);

/* The exponent e of a power of two just above the number with these bits, so that dividing by 2^e
 * is exact and keeps squares from overflowing; 0 for zero. */
static __device__ inline int scale_exponent(unsigned long long bits) {
    int exponent = 0;
    const double most = __longlong_as_double((long long)bits);
    if (most > 0.0) {
        frexp(most, &exponent);
    }
    return exponent < -1000 ? -1000 : exponent > 1000 ? 1000 : exponent;
}

static __device__ inline bool is_finite_bits(unsigned long long bits) {
    return bits < 0x7FF0000000000000ull;
}

/* A complex number into an element; a real one gets the real part. */
template <class T> static __device__ inline void store_pair(T *out, pair<double> x) {
    *out = narrow<T>((real_of<T>)x.re);
}
template <class T> static __device__ inline void store_pair(pair<T> *out, pair<double> x) {
    *out = narrow_pair<T>({(real_of<T>)x.re, (real_of<T>)x.im});
}

/* jacobi.cu: eigenvectors and descending eigenvalues of a small matrix whose verdict->most is
 * known, by rotations, which are recorded in `log`; verdict->info reports whether they converge. */
enum { CUDA_JACOBI_MAX_N = 72 }; /* larger matrices: cuSOLVER is as fast */
size_t cuda_jacobi_bytes(int64_t n);
tg_status cuda_jacobi(tg_backend *be, tg_dtype dtype, int64_t n, const void *a, void *log,
                      void *vectors, double *values, cuda_verdict *verdict);

tg_scratch_need cuda_eigh_scratch_need(tg_backend *be, tg_dtype dtype, int64_t n);
tg_scratch_need cuda_qr_scratch_need(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n);

#endif
