/* One typed table of operations, filled by every backend.
 *
 * `ref` fills every slot with plain loops and is the oracle; a tuned backend overrides slots of a
 * copy and falls back to `be->ref` for dtypes it does not tune. Pointers refer to the backend's
 * memory. Arrays are contiguous and row-major; outputs alias inputs only where a slot allows it. By
 * default a slot takes the eight float dtypes (f32 .. cf16) and accumulates in f32 or better. Slots
 * that run every step allocate nothing; plans allocate when they are created, and decompositions
 * (eigh, qr) and selections may take scratch from the ledger during the call. */
#ifndef TG_BACKEND_BACKEND_H
#define TG_BACKEND_BACKEND_H

#include <stdbool.h>

#include "backend/gno.h"
#include "backend/nn.h"
#include "base/context.h"
#include "base/memory.h"
#include "base/rng.h"
#include "tensor/element.h"
#include "tgrad/backend.h"
#include "tgrad/tensor.h"

typedef struct tg_backend tg_backend;
typedef struct tg_backend_ops tg_backend_ops;
typedef struct tg_stream_event tg_stream_event; /* a point in the stream of a backend */
typedef struct tg_graph tg_graph;               /* captured work */

/* ---- Matrix products ---- */

typedef enum tg_op {
    TG_OP_N,   /* A */
    TG_OP_T,   /* A^T */
    TG_OP_H,   /* conj(A)^T; as T for real dtypes */
    TG_OP_CONJ /* conj(A); as N for real dtypes */
} tg_op;

/* C[b] = alpha op(A[b]) op(B[b]) + beta C[b], b = 0..batch-1; row-major, leading dimension =
 * distance of rows. op(A) is (m, k), op(B) is (k, n), C is (m, n). beta = 0 never reads C. With
 * stride 0 all products use the same A or B; the same C becomes alpha times their sum + beta C. */
typedef struct tg_gemm {
    tg_dtype dtype; /* f32, f64, c64, c128; ref also the 16-bit ones */
    tg_op op_a, op_b;
    int64_t m, n, k;
    tg_scalar alpha, beta;
    const void *a;
    int64_t lda, stride_a; /* in elements */
    const void *b;
    int64_t ldb, stride_b;
    void *c;
    int64_t ldc, stride_c;
    int64_t batch;
    bool is_full; /* factors are never rounded to TF32 */
} tg_gemm;

/* ---- Fourier transforms, pruned to the kept modes ---- */

typedef enum tg_fft_direction { TG_FFT_FORWARD, TG_FFT_INVERSE } tg_fft_direction;

/* Weights of the last dimension of a real transform: a half spectrum represents both its sides, so
 * the adjoint of one direction is the other with the interior doubled or halved. */
typedef enum tg_fft_weight {
    TG_FFT_PLAIN,  /* the transform itself */
    TG_FFT_ADJOINT /* forward: interior x 2 (adjoint of inverse); inverse: interior x 1/2 (adjoint
                      of forward). Interior = last-dim index other than 0 and Nyquist. Complex: as
                      PLAIN */
} tg_fft_weight;

/* X[k] = scale sum_n x[n] exp(-2 pi i sum_d k_d n_d / grid_d) for the kept frequencies
 * k_d = first_d .. first_d + kept_d - 1 (negative ones wrap), and the inverse with exp(+..), zero
 * for other frequencies, also scaled by `scale`. Real transforms: x real, the last dimension holds
 * frequencies 0 .. kept-1 (kept <= grid/2 + 1) and the inverse ignores the imaginary part at index
 * 0 and Nyquist there, after the other dimensions are done. */
typedef struct tg_fft_desc {
    tg_dtype dtype;   /* real type of the arithmetic: f32 or f64 */
    bool complex;     /* data on the grid is complex */
    int ndim;         /* 1 .. 3 */
    int64_t grid[3];  /* N_d >= 1 */
    int64_t kept[3];  /* K_d, 1 .. N_d (real: last <= N/2 + 1) */
    int64_t first[3]; /* signed first frequency, in -(N-1) .. N-1; real: last is 0 */
    int64_t howmany;  /* maximum number: x is (howmany, grid..), X is (howmany, kept..) */
    tg_storage grid_store, kept_store; /* storage formats of x and X; f32 only */
} tg_fft_desc;

typedef struct tg_fft_plan tg_fft_plan; /* defined by each backend */

/* ---- Index sets ---- */

/* A subset of 0..n-1: one bit per entry, and for every 512 bits the number of set bits before them:
 * the position of an entry among the kept values takes a look-up and a popcount. */
typedef struct tg_bitmap {
    int64_t n;
    int64_t count;   /* bits set */
    uint64_t *words; /* (n + 63) / 64; bits beyond n are 0 */
    uint32_t *ranks; /* (n + 511) / 512 */
} tg_bitmap;

static inline int64_t tg_bitmap_words(int64_t n) {
    return (n + 63) / 64;
}
static inline bool tg_bitmap_has(const tg_bitmap *bitmap, int64_t i) {
    return bitmap->words[i / 64] >> (i % 64) & 1;
}
static inline int64_t tg_bitmap_ranks(int64_t n) {
    return (n + 511) / 512;
}

/* ---- Compressed gradients ---- */

/* Values that change every step, in the backend's memory: queued work reads them late. */
typedef struct tg_rates {
    double alpha, beta, scale;
    uint32_t step; /* of the rounding */
} tg_rates;

/* A gradient as handed over: dense, or factored as rank-B sums per frequency,
 * G[i,o,k] = sum_b conj(x[b,i,k]) dy[b,o,k], never formed as a whole. Exactly one form is set. */
typedef struct tg_grad_source {
    const void *dense; /* (dim0, dim1, ..) */
    const void *x;     /* (batch, dim0, K), K = product of the other dims */
    const void *dy;    /* (batch, dim1, K) */
    int64_t batch;
    tg_storage store; /* of dense, x and dy */
} tg_grad_source;

/* Multilinear map between a tensor (dim..) and a core (rank..): one factor (dim, rank) with
 * orthonormal columns per mode, row-major; NULL = identity (rank == dim). */
typedef struct tg_multimode {
    tg_dtype dtype;
    int ndim; /* 1 .. TG_MAX_NDIM */
    int64_t dim[TG_MAX_NDIM];
    int64_t rank[TG_MAX_NDIM];
    const void *factor[TG_MAX_NDIM];
} tg_multimode;

/* One pass over a gradient: gathers the entries of an index set and projects onto a core.
 * values = beta values + scale G[kept];  core = beta core + scale (G' x_n U_n^H), G' = G with the
 * kept entries 0 if `masked`, else G. beta = 0 never reads the outputs. */
typedef struct tg_compress {
    tg_multimode modes; /* dtype, ndim and dim describe G also when core is NULL */
    tg_grad_source source;
    const tg_bitmap *bitmap; /* NULL: no index set */
    bool masked;
    double scale, beta;
    void *values; /* (bitmap->count), NULL: none */
    void *core;   /* (rank..), NULL: none */
    void *workspace;
    uint32_t *guard; /* counts entries of the source or its factors that are not finite */
} tg_compress;

/* Expands the update: out = beta out + alpha (core x_n U_n + lambda scatter(values)), one pass over
 * out. core or values may be NULL. beta = 0 never reads out. */
typedef struct tg_expand {
    tg_multimode modes;
    const tg_bitmap *bitmap;
    const void *values;
    double lambda;
    const void *core;
    double alpha, beta;
    void *out; /* (dim..) */
    void *workspace;
    tg_storage out_store;
    const tg_rng *rounding; /* 16-bit out: stochastic, as tg_store_rounded; NULL: to nearest */
    const tg_rates *rates;  /* replaces alpha, beta and the rounding's step; may be NULL */
    const uint32_t *guard;  /* if not 0, the call does nothing; NULL: none */
} tg_expand;

/* Evaluates the expanded core at an index set only: values += alpha (core x_n U_n)[kept]. */
typedef struct tg_sample {
    tg_multimode modes;
    const tg_bitmap *bitmap;
    const void *core;
    double alpha;
    void *values;
    void *workspace;
} tg_sample;

/* Storage formats of Adam's moments (state_codec.h), other than FULL for f32 and c64 only; the
 * arithmetic is that of the dtype. Rounded by the stream of `rounding`, real j of m by index 2^62 +
 * j, of v by 2^63 + j; without it, or with `state_nearest`, to nearest. */
typedef enum tg_state_form {
#define TG_STATE_FORMAT(id, word, codec) TG_STATE_##id,
#include "backend/state_formats.def"
#undef TG_STATE_FORMAT
    TG_STATE_FORMS
} tg_state_form;

/* Reals per block of Adam's work and of its scales. */
enum { TG_STATE_BLOCK = 256 };

/* Update rules (rule_kernel.h), g = scale grad. The sign of a complex value is u / |u|, with
 * `split` that of each part; the sign of 0 is 0. Moments that a kernel lacks are ignored. */
typedef enum tg_rule_kernel {
    TG_KERNEL_ADAM,
    TG_KERNEL_GRADIENT, /* u = g */
    TG_KERNEL_LION,     /* u = sign(b1 m + (1 - b1) g), m = b2 m + (1 - b2) g */
    TG_KERNEL_NESTEROV  /* m = b1 m + (1 - b1) g, u = b1 m + (1 - b1) g */
} tg_rule_kernel;

/* Adam's moments and direction on one array: g = scale grad; m = b1 m + (1 - b1) g;
 * v = b2 v + (1 - b2) |g|^2; u = m / (sqrt(v) + eps), from m and v before rounding. Then, if given,
 * direction = u and weight = beta weight + alpha u. */
typedef struct tg_adam {
    tg_rule_kernel kernel;
    tg_dtype dtype; /* of grad, m, direction, weight */
    int64_t n;
    bool split; /* complex: Re and Im as two reals (v has 2n) instead of by modulus (v has n) */
    const void *grad; /* (n) */
    double scale;
    void *m;                  /* (n) */
    void *v;                  /* (n) reals of the dtype's real type */
    tg_state_form form;       /* of m and v; a complex m is 2n reals */
    float *m_scale, *v_scale; /* 8BIT: (reals of m or v / TG_STATE_BLOCK, rounded up) */
    bool state_nearest;       /* round m and v to nearest, independent of the weight */
    double beta1, beta2, eps;
    void *direction; /* (n), may be grad's memory; NULL: none */
    void *weight;    /* (n), NULL: none */
    double alpha, beta;
    tg_storage grad_store, weight_store;
    const tg_rng *rounding; /* 16-bit weight and compact moments: stochastic, as tg_store_rounded;
                               NULL: to nearest */
    const tg_rates *rates;  /* replaces scale, alpha, beta and the rounding's step; may be NULL */
    uint32_t *guard;        /* if not 0, the call does nothing; NULL: none */
    bool counts;            /* first adds the number of non-finite entries of grad to the guard */
} tg_adam;

/* The rounding of the moments; NULL: to nearest. */
static inline const tg_rng *tg_adam_state_rounding(const tg_adam *op) {
    return op->state_nearest ? NULL : op->rounding;
}

/* Calls that may take memory from the ledger while they run. */
typedef enum tg_scratch_call {
    TG_SCRATCH_EIGH,  /* of (n, n) */
    TG_SCRATCH_QR,    /* of (m, n) */
    TG_SCRATCH_SELECT /* the largest or weighted ones of m entries */
} tg_scratch_call;

/* Peak bytes of category workspace of one such call. */
typedef struct tg_scratch_need {
    size_t place; /* on the backend */
    size_t host;  /* on the host, if the backend is elsewhere */
} tg_scratch_need;

/* The peak of calls made in turn. */
static inline void tg_scratch_raise(tg_scratch_need *most, tg_scratch_need other) {
    most->place = other.place > most->place ? other.place : most->place;
    most->host = other.host > most->host ? other.host : most->host;
}

/* Chooses k of a set's n entries: sets words, ranks and count. Ties by lowest index. */
typedef enum tg_select_kind {
    TG_SELECT_TOPK,     /* of largest modulus, by |x|^2 in f64; NaN counts as larger than Inf */
    TG_SELECT_RANDOM,   /* uniformly without replacement */
    TG_SELECT_WEIGHTED, /* without replacement with weights |x|: the smallest exponential(i) /
                           |x_i|, where |x_i| = sqrt(|x_i|^2) in f64; zero weights come last, NaN
                           counts as Inf (first) */
    TG_SELECT_GIVEN     /* whose bits are set in words: only ranks and count are set */
} tg_select_kind;

typedef struct tg_select {
    tg_select_kind kind;
    tg_bitmap *bitmap;
    int64_t k;
    tg_dtype dtype; /* of x */
    const void *x;  /* (n) */
    tg_rng rng;
} tg_select;

/* ---- Random numbers ---- */

/* Element i depends only on (rng, first + i); complex: re and im are elements 2i and 2i + 1. */
typedef enum tg_random_law {
    TG_RANDOM_UNIFORM, /* in [a, b) */
    TG_RANDOM_NORMAL   /* of mean a and deviation b */
} tg_random_law;

typedef struct tg_random {
    tg_random_law law;
    tg_dtype dtype;
    tg_rng rng;
    uint64_t first;
    double a, b;
    int64_t n;
    void *x;
} tg_random;

/* ---- Quantization ---- */

/* n values of f32 to tg_quantized_bytes(n) bytes (quantize.h), aligned to 16, or back if
 * `restores`. The same bits on every backend. */
typedef struct tg_quantization {
    int64_t n;
    bool restores;
    const void *from;
    void *to;
} tg_quantization;

/* ---- Workspaces ---- */

/* One operation, of which only sizes, formats and flags are read. Exactly one pointer is set. */
typedef struct tg_query {
    const tg_skip *skip;
    const tg_mlp *mlp;
    const tg_block *block;
    const tg_block_back *block_back;
    const tg_gno *gno;
    const tg_two_modes *two_modes;
    const tg_mapped *mapped;         /* and its gradients */
    const tg_multimode *compress;    /* or expand or sample; factors are only NULL or not */
    bool factored;                   /* the source of compress may be */
    const tg_neighbours *neighbours; /* its points and queries: bytes of the arrays laid out by
                                        tg_neighbours_place and, after them, of scratch */
} tg_query;

typedef struct tg_norms {
    double sum_squares; /* of the finite elements */
    double max_abs;     /* likewise */
    int64_t nonfinite;  /* elements with a NaN or Inf part */
} tg_norms;

/* The stream of all calls; that of uploads; and one for work of other libraries. */
typedef enum tg_stream_id { TG_STREAM_MAIN, TG_STREAM_COPY, TG_STREAM_SIDE } tg_stream_id;

/* Asynchronous work, for backends with a stream. */
typedef struct tg_stream_ops {
    /* Host memory that `copy` takes, too. */
    void *(*pinned_alloc)(tg_backend *be, tg_mem_category category, size_t bytes);
    void (*pinned_release)(tg_backend *be, void *block); /* accepts NULL */
    /* An event is a point in the stream; waiting for it ends when all earlier work is done. */
    tg_status (*event_create)(tg_backend *be, tg_stream_event **out);
    void (*event_destroy)(tg_backend *be, tg_stream_event **event);
    tg_status (*event_record)(tg_backend *be, tg_stream_event *event);
    tg_status (*event_wait)(tg_backend *be, tg_stream_event *event);
    /* Whether all earlier work is done; thread-safe. */
    bool (*event_is_reached)(tg_backend *be, tg_stream_event *event);
    /* An upload on the copy stream, overlapping other work, or `after_stream`: the present work. */
    tg_status (*copy_stream_upload)(tg_backend *be, bool after_stream, void *dst,
                                    const void *pinned, size_t bytes);
    /* The follower waits for the work now in the leader, which continues. One of them is MAIN. */
    tg_status (*follow)(tg_backend *be, tg_stream_id follower, tg_stream_id leader);
    /* Calls between begin and end are captured instead of run (none that synchronizes or
     * allocates); launching runs all of them at once, any number of times. */
    tg_status (*graph_begin)(tg_backend *be);
    tg_status (*graph_end)(tg_backend *be, tg_graph **out); /* NULL on failure, capture ends */
    void (*graph_destroy)(tg_backend *be, tg_graph **graph);
    tg_status (*graph_launch)(tg_backend *be, tg_graph *graph);
    /* Whether calls now become part of a graph that the owner of the stream captures. */
    bool (*is_capturing)(tg_backend *be);
    /* The native handle, for libraries that queue work themselves. */
    void *(*handle)(tg_backend *be, tg_stream_id stream);
} tg_stream_ops;

/* The driver's report on the device of a backend. */
typedef struct tg_device_facts {
    size_t memory_left, memory_total;
    uint64_t address; /* identifies the device on its machine, whatever its number in a process */
} tg_device_facts;

struct tg_backend_ops {
    const char *name;
    const char *summary;
    tg_place place;              /* place of `alloc`'s memory and of every pointer below */
    const tg_stream_ops *stream; /* NULL: every call is synchronous */
    /* NULL on the host. */
    tg_status (*device_facts)(tg_backend *be, tg_device_facts *out);
    /* Number of devices that the process sees and, if there is a stream, its device. NULL on the
     * host. Called before open. */
    tg_status (*devices)(tg_backend *be, void *stream, int *count, int *of_stream);

    /* -- life; probe fills the facts of tg_backend_info and may be called without open -- */
    void (*probe)(tg_backend_info *info);
    tg_status (*open)(tg_backend *be); /* may set be->state */
    void (*close)(tg_backend *be);

    /* -- memory; transfer directions are seen from the host -- */
    void *(*alloc)(tg_backend *be, tg_mem_category category, size_t bytes); /* NULL: error is set */
    void (*release)(tg_backend *be, void *block);                           /* accepts NULL */
    tg_status (*upload)(tg_backend *be, void *dst, const void *host, size_t bytes);
    tg_status (*download)(tg_backend *be, void *host, const void *src, size_t bytes);
    /* Within the backend's memory, or between it and pinned memory; only queued on a stream. */
    tg_status (*copy)(tg_backend *be, void *dst, const void *src, size_t bytes);
    tg_status (*synchronize)(tg_backend *be);

    /* -- slots of one operand, which a backend with a stream only queues -- */
#define TG_SLOT(name, type) tg_status (*name)(tg_backend *, const type *op);
#include "backend/slots.def"
#undef TG_SLOT

    /* Whether the backend has the operation for these sizes (only blocks, factorized weights and a
     * quantized x may be missing, and must not be called then), and the bytes of its workspace. */
    bool (*workspace)(tg_backend *be, const tg_query *query, size_t *bytes);

    /* -- elementwise -- */
    tg_status (*fill)(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar value, void *x);
    /* Float dtypes only; real -> complex sets im 0, complex -> real keeps re. */
    tg_status (*convert)(tg_backend *be, int64_t n, tg_dtype src_dtype, const void *src,
                         tg_dtype dst_dtype, void *dst);
    tg_status (*axpy)(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar alpha, const void *x,
                      void *y); /* y += alpha x, or y *= alpha if x is NULL */

    /* -- reductions to the host, accumulated in f64 in a fixed order -- */
    tg_status (*norms)(tg_backend *be, tg_dtype dtype, int64_t n, const void *x, tg_norms *out);

    /* *count (in the backend's memory) += elements with a NaN or Inf part; saturates at 2^31. */
    tg_status (*count_nonfinite)(tg_backend *be, tg_dtype dtype, int64_t n, const void *x,
                                 uint32_t *count);

    /* -- dense algebra -- */
    /* Gram matrix of one mode: x is (left, dim, right); out is (dim, dim) in f64 or c128,
     * out[i][j] = sum over left, right of x[l,i,r] conj(x[l,j,r]), accumulated in f64. Entries of
     * `mask` (over left * dim * right; NULL: none) count as 0. */
    tg_status (*gram)(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim, int64_t right,
                      const void *x, const tg_bitmap *mask, void *out);
    /* out[i] = sum over left, right of |x[l,i,r]|^2 in f64, on the host. */
    tg_status (*slice_norms)(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim,
                             int64_t right, const void *x, double *out);
    /* Columns of x (rows, columns); the arrays of f64 are in the same memory as x.
     * squares[j] = sum of |x[i,j]|^2 over i, and x[i,j] *= factor sqrt(above[j] / below[j]), 0
     * where below[j] is 0; above NULL: 1. */
    tg_status (*column_squares)(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                                const void *x, double *squares);
    tg_status (*scale_columns)(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                               double factor, const double *above, const double *below, void *x);
    /* out[j][i] = x[i][j], i < rows, j < columns; leading dimensions ld_x and ld_out. */
    tg_status (*transpose)(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                           const void *x, int64_t ld_x, void *out, int64_t ld_out);
    /* Hermitian eigenproblem, dtype f64 or c128: a (n, n) in, eigenvectors in its columns out,
     * eigenvalues real, descending. TG_E_NUMERIC if it does not converge or a is not finite. */
    tg_status (*eigh)(tg_backend *be, tg_dtype dtype, int64_t n, void *a, double *eigenvalues);
    /* out (rows, count) = the first `count` columns of `vectors` (rows, columns; f64 or c128, as
     * the dtype is real or complex), rounded to dtype, each times the unit phase that makes <old
     * column, new column> real and >= 0, or without `old`, or if that product is 0, its entry of
     * largest modulus, lowest row first, real and positive. out may be old. */
    tg_status (*leading_columns)(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                                 int64_t count, const void *vectors, const void *old, void *out);
    /* Thin QR, dtype f64 or c128: a (m, n), m >= n, becomes Q; r (n, n) upper with real diagonal
     * >= 0, may be NULL. Rank-deficient columns get some orthonormal completion. TG_E_NUMERIC if a
     * is not finite. */
    tg_status (*qr)(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, void *a, void *r);

    /* The exact memory that such a call takes from the ledger, unless it fails. NULL: none. */
    tg_scratch_need (*scratch_need)(tg_backend *be, tg_scratch_call call, tg_dtype dtype, int64_t m,
                                    int64_t n);

    /* -- Fourier transforms -- */
    tg_status (*fft_create)(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan **out);
    void (*fft_destroy)(tg_backend *be, tg_fft_plan **plan);
    /* The first `count` transforms of the plan. */
    tg_status (*fft)(tg_backend *be, tg_fft_plan *plan, tg_fft_direction direction, int64_t count,
                     tg_fft_weight weight, double scale, const void *from, void *to);

    /* -- index sets -- */
    tg_status (*select)(tg_backend *be, const tg_select *op);
    tg_status (*bitmap_clear)(tg_backend *be, tg_dtype dtype, const tg_bitmap *bitmap,
                              const void *x,
                              void *out); /* out = x with the kept entries 0; out may be x */

    /* -- compressed gradients, dtypes f32, f64, c64, c128 -- */
    tg_status (*compress)(tg_backend *be, const tg_compress *op);
    tg_status (*expand)(tg_backend *be, const tg_expand *op);
    tg_status (*sample)(tg_backend *be, const tg_sample *op);
    /* compress, adam on its values and core, and expand, with the same modes, index set and
     * workspace. Values and core need not be written. NULL: three calls are as fast. */
    tg_status (*step_compressed)(tg_backend *be, const tg_compress *project, const tg_adam *adam,
                                 const tg_expand *back);
    /* out (dim..) = the dense gradient of a factored source times scale; also 16-bit formats. */
    tg_status (*grad_dense)(tg_backend *be, const tg_multimode *modes, const tg_grad_source *source,
                            double scale, void *out);
    /* `count` calls of one kernel with the same bits as in turn; no two write the same memory or
     * share a guard. Kernels other than Adam compute in double. */
    tg_status (*update)(tg_backend *be, int count, const tg_adam *ops);

    /* -- blocks of networks (backend/nn.h), fused for some sizes; NULL: for none -- */
    tg_status (*block_forward)(tg_backend *be, const tg_block *op);
    tg_status (*block_backward)(tg_backend *be, const tg_block_back *op);
    /* Neighbours of queries among points (backend/gno.h), in the same order on every backend.
     * Coordinates may be on the host. */
    tg_status (*neighbours_build)(tg_backend *be, tg_neighbours *s, double radius,
                                  const tg_tensor *points, const tg_tensor *queries);
    tg_status (*neighbours_list)(tg_backend *be, const tg_neighbours *s, int64_t *index);
    tg_status (*gno)(tg_backend *be, const tg_gno *op);

    /* -- factorized weights (backend/nn.h), fused for some sizes; NULL: for none. Arrays of the
     * latter two are aligned as in tg_block. -- */
    tg_status (*two_modes)(tg_backend *be, const tg_two_modes *op);
    tg_status (*mapped_contract)(tg_backend *be, const tg_mapped *op);
    tg_status (*mapped_gradients)(tg_backend *be, const tg_map_gradients *op);
};

struct tg_backend {
    const tg_backend_ops *ops; /* for callers: be->ops->gemm(be, &g) */
    const tg_backend_ops *ref; /* the fallback for dtypes a slot does not tune */
    tg_context *ctx;
    int threads;
    tg_math math;
    int device;   /* number of the device: set before open; 0 on the host */
    void *stream; /* the caller's; NULL: the backend makes one */
    double *cell; /* (8) in the backend's memory: results in transit to the host */
    void *state;  /* of the backend */
};

static inline bool tg_has(tg_backend *be, tg_query query) {
    size_t bytes = 0;
    return be->ops->workspace(be, &query, &bytes);
}

/* Bytes; 0 if the backend lacks the operation. */
static inline size_t tg_workspace_bytes(tg_backend *be, tg_query query) {
    size_t bytes = 0;
    return be->ops->workspace(be, &query, &bytes) ? bytes : 0;
}

/* Fills ranks and count from words. */
tg_status tg_bitmap_rank(tg_backend *be, tg_bitmap *bitmap);

/* The context's backend, choosing the best one if none is chosen. */
TG_NODISCARD tg_status tg_backend_get(tg_context *ctx, tg_backend **out);

/* Each backend's table: the registry passes a copy of ref's (zeros for ref itself). */
#define TG_BACKEND(name) void tg_backend_fill_##name(tg_backend_ops *ops);
#include "backend/list.def"
#undef TG_BACKEND

/* Opens a backend in addition to the context's (tests and benchmarks compare two). */
TG_NODISCARD tg_status tg_backend_open(tg_context *ctx, const char *name, tg_backend **out);
void tg_backend_close(tg_backend **be);

/* Test hook, before the first context: adds a backend as the best one, also under a used name. */
void tg_backend_test_add(const char *name, void (*fill)(tg_backend_ops *ops));

/* c (m, n) = op_a(a) op_b(b) with k terms; the caller may adjust the other fields. */
tg_gemm tg_whole_product(tg_dtype dtype, tg_op op_a, tg_op op_b, int64_t m, int64_t n, int64_t k,
                         const void *a, const void *b, void *c);

/* In TG_CALL and TG_TRY: memory of the backend for p. */
#define TG_BACKEND_ALLOC(be, category, p, bytes)                                                   \
    (((p) = (be)->ops->alloc((be), (category), (bytes))) ? TG_OK : TG_E_MEMORY)

#endif
