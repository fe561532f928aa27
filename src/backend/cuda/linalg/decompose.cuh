/* What the decompositions share: memory for the time of a call, the search for what is not finite,
 * and the check of what cuSOLVER gives back. */
#ifndef TG_BACKEND_CUDA_LINALG_DECOMPOSE_CUH
#define TG_BACKEND_CUDA_LINALG_DECOMPOSE_CUH

#include "backend/cuda/core/element.cuh"

/* What a decomposition finds out on the device, for the host to read once at its end. Numbers >= 0
 * are kept as their bits, which are ordered like them, NaN last: maxima by integer atomics. */
struct cuda_verdict {
    unsigned long long most; /* largest |part| of the input */
    unsigned long long lost; /* largest |part| of V^H V - I */
    int info[2];             /* of cuSOLVER: 0 is good */
};

/* Pieces of memory for one call: of cuda_state.scratch if it is large enough, else of the ledger.
 * First all sizes are added up, then the pieces are taken in any order. */
struct cuda_pieces {
    size_t needed, used;
    char *block;
    bool is_allocated; /* from the ledger */
};

void cuda_pieces_need(cuda_pieces *pieces, size_t bytes);
tg_status cuda_pieces_open(tg_backend *be, cuda_pieces *pieces);
void *cuda_pieces_take(cuda_pieces *pieces, size_t bytes);
void cuda_pieces_close(tg_backend *be, cuda_pieces *pieces);

/* The workspaces of one call of cuSOLVER: its own on the device are cuBLAS's, idle then, if those
 * are large enough. To be closed when the stream has come to rest. */
struct cuda_solver_work {
    cusolverDnParams_t params;
    void *device, *host;
    size_t device_bytes, host_bytes;
    bool is_allocated; /* `device` from the ledger */
};

/* cuSOLVER at its first use, for which it takes 100 MB of the device, and params. */
tg_status cuda_solver_open(tg_backend *be, cuda_solver_work *work);

tg_status cuda_solver_work_open(tg_backend *be, cuda_solver_work *work);
void cuda_solver_work_close(tg_backend *be, cuda_solver_work *work);

/* What a call takes from the ledger that opens both. */
tg_scratch_need cuda_scratch_sum(const cuda_pieces *pieces, const cuda_solver_work *work);

/* verdict->most of n doubles. */
tg_status cuda_find_most(tg_backend *be, int64_t n, const double *x, cuda_verdict *verdict);

/* verdict->lost of v (count, length), rows orthonormal, dtype f64 or c128; product (count, count)
 * is scratch. */
tg_status cuda_find_lost(tg_backend *be, tg_dtype dtype, int64_t count, int64_t length,
                         const void *v, void *product, cuda_verdict *verdict);

/* Waits for the device and reads the verdict. TG_E_NUMERIC if the input was not finite; *is_good
 * says whether the result can be used. `slot` and sizes are for the sentence. */
tg_status cuda_read_verdict(tg_backend *be, const char *slot, int64_t rows, int64_t columns,
                            const cuda_verdict *verdict, bool *is_good);

/* A host backend for what the device fails at, and memory of the host. */
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

/* jacobi.cu: eigenvectors and descending eigenvalues of a small matrix whose verdict->most is
 * known, by rotations that are kept in `log` on the way; verdict->info says whether they converge.
 */
enum { CUDA_JACOBI_MAX_N = 72 }; /* above, cuSOLVER is as fast */
size_t cuda_jacobi_bytes(int64_t n);
tg_status cuda_jacobi(tg_backend *be, tg_dtype dtype, int64_t n, const void *a, void *log,
                      void *vectors, double *values, cuda_verdict *verdict);

tg_status cuda_eigh(tg_backend *be, tg_dtype dtype, int64_t n, void *a, double *eigenvalues);
tg_scratch_need cuda_eigh_scratch_need(tg_backend *be, tg_dtype dtype, int64_t n);
tg_status cuda_qr(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, void *a, void *r);
tg_scratch_need cuda_qr_scratch_need(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n);

#endif
