/* Compressed gradients on the GPU: the plan of a multilinear map, shared by both directions.
 *
 * Complex tensors as real ones. A complex product costs four real ones either way, but cuBLAS runs
 * real TF32 products nearly three times as fast as complex ones (420 against 151 TF/s on an H200),
 * and as fast in f32. So a complex tensor is a real one with one more dimension `part` (re, im) of
 * size 2, and a factor U (d, r) is the real matrix S (2r, 2d) of what conj(U)^T does to the parts,
 *   S[(re, j), (i, re)] =  Re U[i, j]    S[(re, j), (i, im)] = Im U[i, j]
 *   S[(im, j), (i, re)] = -Im U[i, j]    S[(im, j), (i, im)] = Re U[i, j],
 * while U itself does S^T. Every contraction eats the parts behind its mode and puts them out in
 * front of it, so they travel from the end of the tensor to its beginning without any copy:
 *   (i0 i1 i2 i3 part) -> (i0 i1 i2 part j3) -> (i0 i1 part j2 j3) -> (i0 part j1 j2 j3)
 *                      -> (part j0 j1 j2 j3),
 * and the way back is the same chain from right to left. Real tensors have one part and S = U^T.
 *
 * Order of modes. A contraction of d to r first costs r times the tensor and shrinks it by r / d;
 * the cheapest order is by increasing r d / (d - r), which puts the short last mode first. The
 * tensor is never whole: chunks of it along mode 0 are formed, contracted and dropped, so mode 0
 * comes last, and then all chunks at once. The others have equal d and r in spectral weights. For
 * (128,128,128,65) -> (86,86,86,44): 48 + 63 + 43 + 29 = 183 GF, and 6 GB moved, in L2 where a
 * chunk fits it: bound by bytes, which is why the last mode, whose products are the largest and
 * shallowest, is a single product over all rows of a chunk, the modes between run as batches that
 * read their input once, and nothing is ever transposed.
 *
 * Where products are rounded to TF32, the last two modes of a usual spectral weight go in one pass
 * instead (last_two_modes.cuh): on Hopper GPUs on the way to the core, and away from it, with the
 * update. On Hopper GPUs mode 1 may come before them on the way to the core, by the kernel that
 * forms the gradient from its factors, whose kept entries rule out contracting these instead. Where
 * products are not rounded, the kernels for Hopper GPUs take a number as the sum of two in TF32,
 * and three of the four products: 21 bits of each are right, and tensor cores are seven times as
 * fast as f32.
 *
 * Rows are padded to 4 reals, as rows of 65 pairs would cost cuBLAS its 16-byte loads; the padding
 * is 0 where a product sums over it. */
#ifndef TG_BACKEND_CUDA_COMPRESS_COMPRESS_CUH
#define TG_BACKEND_CUDA_COMPRESS_COMPRESS_CUH

#include <type_traits>

#include "backend/cuda/compress/last_two_modes.cuh"
#include "backend/cuda/core/early.cuh"
#include "backend/cuda/core/element.cuh"
#include "backend/cuda/core/rounding.cuh"

extern "C" {}

/* ---- the plan (mode_products.cu): made anew in every call, from the shapes alone ---- */

/* Of a chunk: it stays in the L2 of an H200 until it is contracted. And of what becomes of a large
 * one, which need not stay there: fewer launches are worth more. */
enum { CUDA_CHUNK_BYTES = 36 << 20, CUDA_LARGE_CHUNK_BYTES = 320 << 20 };

/* S of one factor: (parts * rows, ld), rows >= rank and ld >= parts * dim filled up with 0. */
struct cuda_factor {
    const void *u; /* (dim, rank) */
    int64_t dim, rank;
    int64_t rows, ld;
    int64_t at;  /* in the workspace, in reals */
    bool direct; /* a kernel for Hopper GPUs multiplies it, from u itself (mode_columns.cu) */
};

enum cuda_step_kind {
    CUDA_STEP_RIGHT, /* the last mode: (left, dim, part) -> (left, part, rows) */
    CUDA_STEP_LEFT,  /* one before it: (left, dim, part, right) -> (left, part, rank, right) */
    CUDA_STEP_TURN   /* no factor, but its neighbours have: the parts only pass by */
};

struct cuda_step {
    cuda_step_kind kind;
    int64_t left, dim, right; /* left: per index of mode 0; right: padded */
    cuda_factor factor;
};

/* Where the entries of a chunk lie: `cols` in a row; rows, parts and entries are `ld`, `part` and
 * `step` reals apart. A row is interleaved (part 1) where the last mode has a factor, otherwise its
 * parts lie behind each other. */
struct cuda_view {
    int64_t cols, ld, part, step;
};

struct cuda_plan {
    tg_dtype real; /* of the arithmetic: f32 or f64 */
    int parts;
    int64_t dim0, unit; /* unit: entries per index of mode 0 */
    cuda_view view;
    int steps;
    cuda_step step[TG_MAX_NDIM];
    int64_t state[TG_MAX_NDIM + 1]; /* reals per index of mode 0 before step q */
    bool split;                     /* kernels for Hopper multiply f32 as sums of two in TF32 */
    cuda_planes planes;             /* steps 0 and 1 in one pass, without what lies between */
    bool gathers;                   /* mode 0 has a factor: chunks end in `middle` */
    cuda_factor first;              /* of mode 0 */
    int64_t lead;                   /* without it: rows of the core per index of mode 0 */
    int64_t columns;                /* of the core behind the parts: blocks of `padded` reals.. */
    int64_t block, padded;          /* ..of which `block` count */
    int64_t chunk;                  /* indices of mode 0 at a time, step by step */
    int64_t planes_chunk;           /* likewise where steps 0 and 1 are one pass */
    int64_t width;                  /* columns of mode 0's product at a time */
    int64_t buffer[2], middle;      /* in the workspace, in reals */
    int64_t planes_behind;          /* the second buffer of a planes_chunk */
    int64_t size;                   /* of the workspace */
    int64_t large_chunk; /* indices of mode 0 at a time where states 1 and 2 alone are in memory; 0:
                            never */
    bool half; /* the way back from a direction of Adam is in f16, both parts of a number together;
                  mode 0 goes to the buffers and mode 1 to `middle` then (expand.cu) */
    bool chained; /* the kernel before a call belongs to the same chain: see launch_chained */
    bool apart;   /* it neither writes what this one reads nor touches what this one writes, so that
                     this one waits for it at its end only */
};

/* TG_E_DTYPE unless the dtype is f32, f64, c64 or c128 and 16-bit formats stand for f32 or c64. */
tg_status cuda_check_modes(const tg_backend *be, const char *slot, tg_dtype dtype,
                           tg_storage store);

cuda_plan cuda_plan_of(const tg_backend *be, const tg_multimode *modes);

static inline int64_t shorter(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t longer(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline char *cuda_plan_at(const cuda_plan *plan, void *workspace, int64_t reals) {
    return static_cast<char *>(workspace) + reals * (int64_t)tg_dtype_size(plan->real);
}

/* Where the chunk from `first` on lies before step q (after the last one for q == steps). */
char *cuda_plan_state(const cuda_plan *plan, void *workspace, int q, int64_t first);

/* The same where steps 0 and 1 are one pass, and for large chunks before step 1, 2 or after the
 * last one. */
char *cuda_plan_planes_state(const cuda_plan *plan, void *workspace, int q, int64_t first);
char *cuda_plan_large_state(const cuda_plan *plan, void *workspace, int q, int64_t first);

/* Writes S of every factor of the steps from `begin` on, and of mode 0, that cuBLAS multiplies. */
tg_status cuda_plan_factors(tg_backend *be, const cuda_plan *plan, int begin, void *workspace);

/* Step q on `count` indices of mode 0, towards the core (forward) or away from it. */
tg_status cuda_plan_step(tg_backend *be, const cuda_plan *plan, void *workspace, int q,
                         bool forward, int64_t count, const void *in, void *out);

/* S (forward) or S^T of a factor with its mode's rows in front, times `batch` matrices of n columns
 * that follow each other. */
tg_status cuda_plan_multiply(tg_backend *be, const cuda_plan *plan, void *workspace,
                             const cuda_factor *factor, bool forward, int64_t batch, int64_t n,
                             const void *in, int64_t ld_in, void *out, int64_t ld_out);

/* ---- modes before the last on Hopper GPUs (mode_columns.cu) ---- */

/* Whether they have a kernel for the factor of one, before `columns` reals; `split`: see cuda_plan.
 */
bool cuda_mode_fits(const tg_backend *be, const cuda_factor *factor, int64_t columns, bool split);

/* (dim, part, n) -> (part, rank, n) for matrices that follow each other, or back. */
tg_status cuda_mode_multiply(tg_backend *be, const cuda_plan *plan, const cuda_factor *factor,
                             bool forward, int64_t matrices, int64_t n, const void *in, void *out);

/* core = beta core + scale of a mode's product, of matrices (dim, n) that follow each other with
 * their parts together. */
tg_status cuda_mode_dense(tg_backend *be, const cuda_factor *factor, bool split, int64_t matrices,
                          int64_t n, const void *in, double scale, double beta, void *core);

/* Mode 1 on the way back in f16 (`half`): `count` indices of mode 0 from `first` on, from the
 * buffers to `middle`. */
tg_status cuda_mode_half(tg_backend *be, const cuda_plan *plan, void *workspace, int64_t first,
                         int64_t count);

/* Mode 0 between `middle` and the core: core = beta core + scale of the product, or middle, or the
 * buffers where the way back is `half`. */
tg_status cuda_mode_core(tg_backend *be, const cuda_plan *plan, void *workspace, bool forward,
                         const void *middle, double scale, double beta, const void *core);

/* ---- between the core and the parts (interleave.cu) ---- */

/* core = beta core + scale of what a chunk has become, or of the product of `middle` with mode 0's
 * factor where that has one. */
tg_status cuda_plan_chunk_to_core(tg_backend *be, const cuda_plan *plan, const void *chunk,
                                  int64_t first, int64_t count, double scale, double beta,
                                  void *core);
tg_status cuda_plan_middle_to_core(tg_backend *be, const cuda_plan *plan, void *workspace,
                                   const void *middle, double scale, double beta, void *core);

/* The way back: the part of the core that belongs to a chunk, and `middle` from the core. */
tg_status cuda_plan_chunk_of_core(tg_backend *be, const cuda_plan *plan, const void *core,
                                  int64_t first, int64_t count, void *chunk);
tg_status cuda_plan_middle_of_core(tg_backend *be, const cuda_plan *plan, void *workspace,
                                   const void *core);

/* ---- elements ---- */

/* One element of `P` parts, read and written in one piece. */
template <class T, int P> struct alignas(P * sizeof(T)) number { T part[P]; };

template <class T, int P>
static __device__ inline number<real_of<T>, P> widen(const number<T, P> &x) {
    number<real_of<T>, P> y;
    for (int p = 0; p < P; p++) {
        y.part[p] = widen(x.part[p]);
    }
    return y;
}

template <class T, int P>
static __device__ inline number<T, P> narrow_number(const number<real_of<T>, P> &x) {
    number<T, P> y;
    for (int p = 0; p < P; p++) {
        y.part[p] = narrow<T>(x.part[p]);
    }
    return y;
}

/* What is read or written once and should not push chunks out of the L2. An array may be aligned to
 * the parts of its elements only; `whole`: it is aligned to the elements. */
template <size_t BYTES> struct word_of;
template <> struct word_of<2> { using type = unsigned short; };
template <> struct word_of<4> { using type = unsigned; };
template <> struct word_of<8> { using type = uint2; };
template <> struct word_of<16> { using type = uint4; };

template <class T, int P>
static __device__ inline number<T, P> load_once(const number<T, P> *from, bool whole) {
    number<T, P> x;
    if (P == 1 || whole) {
        using W = typename word_of<sizeof x>::type;
        const W word = __ldcs(reinterpret_cast<const W *>(from));
        memcpy(&x, &word, sizeof x);
    } else {
        for (int p = 0; p < P; p++) {
            x.part[p] = reinterpret_cast<const T *>(from)[p];
        }
    }
    return x;
}

template <class T, int P>
static __device__ inline void store_once(number<T, P> *to, const number<T, P> &x, bool whole) {
    if (P == 1 || whole) {
        using W = typename word_of<sizeof x>::type;
        W word;
        memcpy(&word, &x, sizeof word);
        __stcs(reinterpret_cast<W *>(to), word);
    } else {
        for (int p = 0; p < P; p++) {
            reinterpret_cast<T *>(to)[p] = x.part[p];
        }
    }
}

/* x = beta x + scale value, beta = 0 without reading. */
template <class R, int P>
static __device__ inline void blend(number<R, P> *x, bool whole, R beta, R scale,
                                    const number<R, P> &value) {
    number<R, P> y = number<R, P>();
    if (beta != R(0)) {
        y = load_once(x, whole);
    }
    for (int p = 0; p < P; p++) {
        y.part[p] = beta * y.part[p] + scale * value.part[p];
    }
    store_once(x, y, whole);
}

/* Whether an array of `elements` is aligned to them. */
template <class N> static inline bool is_whole(const N *elements) {
    return (uintptr_t)elements % sizeof(N) == 0;
}

/* Calls f(std::integral_constant<int, parts>()). */
template <class F> static inline tg_status with_parts(int parts, F f) {
    return parts == 2 ? f(std::integral_constant<int, 2>()) : f(std::integral_constant<int, 1>());
}

/* ---- index sets ---- */

struct kept_set {
    const uint64_t *words;
    const uint32_t *ranks;
    int64_t count; /* of words */
};

static inline kept_set kept_set_of(const tg_bitmap *bitmap) {
    return bitmap ? kept_set{bitmap->words, bitmap->ranks, tg_bitmap_words(bitmap->n)} : kept_set{};
}

/* 32 entries in a row: which are kept, and how many entries before them are. */
struct kept_run {
    uint32_t mask, before;
};

/* A rank block, 512 entries, by a whole warp: lane p < 16 gets its run p. */
static __device__ inline kept_run kept_runs_of_block(const kept_set &set, int64_t block, int lane) {
    const int64_t word = block * 8 + lane / 2;
    const bool inside = lane < 16 && word < set.count;
    const uint32_t mask = inside ? (uint32_t)(set.words[word] >> (lane % 2 * 32)) : 0;
    const uint32_t own = (uint32_t)__popc(mask);
    uint32_t sum = own;
    for (int d = 1; d < 16; d *= 2) {
        const uint32_t left = __shfl_up_sync(~0u, sum, d);
        sum += lane >= d ? left : 0;
    }
    return {mask, set.ranks[block] + sum - own};
}

static __device__ inline kept_run kept_run_of_lane(const kept_run &runs, int lane) {
    return {__shfl_sync(~0u, runs.mask, lane), __shfl_sync(~0u, runs.before, lane)};
}

static __device__ inline bool is_kept(const kept_run &run, int lane) {
    return run.mask >> lane & 1;
}

/* Position among the values of the entry of a lane, if it is kept. */
static __device__ inline int64_t position_of(const kept_run &run, int lane) {
    return (int64_t)run.before + __popc(run.mask & ((1u << lane) - 1));
}

/* ---- a warp's walk over the entries of a chunk ---- */

enum { WALK_THREADS = 256, WALK_RUNS = 512 / 32 };

/* Row and column of an entry, counted from the beginning of the chunk (before it: negative rows).
 */
struct chunk_place {
    int64_t row, col;
};

static __device__ inline chunk_place chunk_place_of(int64_t entry, int64_t cols) {
    const int64_t row = (entry < 0 ? entry - cols + 1 : entry) / cols;
    return {row, entry - row * cols};
}

/* What a step of `entries` adds to a place, and taking it. */
static __device__ inline chunk_place stride_of(int entries, int64_t cols) {
    const int rows = entries / (int)min(cols, (int64_t)entries + 1);
    return {rows, entries - rows * cols};
}

static __device__ inline void walk_on(chunk_place *at, const chunk_place &stride, int64_t cols) {
    at->row += stride.row;
    at->col += stride.col;
    if (at->col >= cols) {
        at->col -= cols;
        at->row++;
    }
}

/* The rank block of this warp, in a walk that begins at entry `begin`. */
static __device__ inline int64_t walk_block(int64_t begin) {
    return begin / 512 + (int64_t)blockIdx.x * (WALK_THREADS / 32) + threadIdx.x / 32;
}

/* Blocks of WALK_THREADS so that every rank block that [begin, end) touches has a warp. */
static inline unsigned walk_blocks(int64_t begin, int64_t end) {
    const int64_t warps = (end + 511) / 512 - begin / 512;
    const int64_t per_block = WALK_THREADS / 32;
    return (unsigned)((warps + per_block - 1) / per_block);
}

/* ---- form_gradient.cu, expand.cu, last_two_modes*.cu ---- */

/* O: the dtype of out in memory. */
template <class O, int P> struct finish_call {
    using R = real_of<O>;
    int64_t begin, end; /* entries of this chunk */
    const R *chunk;     /* NULL: no core */
    cuda_view view;
    kept_set kept;
    const number<R, P> *values; /* NULL: none */
    double lambda, alpha, beta;
    number<O, P> *out; /* entry 0 */
    bool whole;        /* how out and values are aligned */
    tg_rng rounding;
    const tg_rates *rates; /* NULL: those above; else the device has them */
    const uint32_t *guard;

    __device__ float alpha_now() const {
        return (float)(rates ? rates->alpha : alpha);
    }
    __device__ float beta_now() const {
        return (float)(rates ? rates->beta : beta);
    }
    __device__ tg_rng rounding_now() const {
        tg_rng now = rounding;
        now.step = is_16bit<O> && rates ? rates->step : now.step;
        return now;
    }
};

/* Element `entry` of out, rounded with the bits of its numbers P entry + p. */
template <bool ROUNDED, class O, int P>
static __device__ inline number<O, P> rounded(const tg_rng &rng, int64_t entry,
                                              const number<real_of<O>, P> &x) {
    if constexpr (ROUNDED) { /* the parts of an element share one draw */
        uint32_t random[P];
        read_random(rng, (uint64_t)P * (uint64_t)entry, random);
        number<O, P> y;
        for (int p = 0; p < P; p++) {
            y.part[p] = round_by<O>(x.part[p], random[p]);
        }
        return y;
    } else {
        return narrow_number<O, P>(x);
    }
}

/* last_two_modes_resident.cu: steps 0 and 1 away from the core in one pass, with the update, whose
 * weight is stored as f32, bf16 or f16 and may be rounded at random (`rounds`). How many planes a
 * device takes at once, 0 where it cannot; the fragments that the pass wants; and the pass, from
 * `in`, with what finish_call says, its chunk and view aside. */
int64_t cuda_planes_resident(const tg_backend *be, const cuda_planes *s, tg_storage store,
                             bool rounds);
int64_t cuda_planes_resident_half(const tg_backend *be, const cuda_planes *s, tg_storage store,
                                  bool rounds); /* the same where a plan is `half` */
tg_status cuda_planes_expand_factors(tg_backend *be, const cuda_plan *plan, void *workspace);
template <class O>
tg_status cuda_planes_expand_resident(tg_backend *be, const cuda_plan *plan, void *workspace,
                                      int64_t at_once, bool rounds, const void *in,
                                      const finish_call<O, 2> *call);

/* Indices of mode 0 at a time on that way: the room of both buffers is left for what lies on the
 * other side of the pass. */
int64_t cuda_planes_chunk(const cuda_plan *plan, int64_t at_once);

/* dense_mode.cu: a single mode of a dense tensor, from the tensor itself to the core. */
bool cuda_dense_mode_fits(const tg_backend *be, const tg_compress *op, const cuda_plan *plan);
tg_status cuda_dense_mode(tg_backend *be, const tg_compress *op, const cuda_plan *plan);

/* The indices [begin, begin + count) of mode 0 of G: its kept entries to op->values (`gathers`),
 * and the rest, or all of it, as a chunk of the plan (NULL: values only). */
tg_status cuda_form_chunk(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                          int64_t begin, int64_t count, bool gathers, void *chunk);

tg_status cuda_grad_dense(tg_backend *be, const tg_multimode *modes, const tg_grad_source *source,
                          double scale, void *out);

/* form_array.cu: indices [begin, begin + count) of mode 0 of a factored gradient, times gain, as an
 * array of complex numbers in f32. With a guard what is not finite in x of these indices is counted
 * and, with the first of them, in dy. */
struct cuda_array_call {
    const tg_grad_source *source;
    const tg_multimode *modes;
    int64_t begin, count;
    float gain;
    uint32_t *guard;     /* NULL: nothing is counted */
    bool chained, apart; /* as in cuda_plan */
    void *out;
};
bool cuda_form_array_fits(const tg_grad_source *source, const tg_multimode *modes, int64_t count);
tg_status cuda_form_array(tg_backend *be, const cuda_array_call *call);

/* Whether a gradient comes in factors and its kept entries go to op->values while it is formed, all
 * of it aligned as kernels that form it on their way want it. */
static inline bool cuda_is_taken_out(const tg_compress *op) {
    const tg_grad_source *source = &op->source;
    return !source->dense && source->store == TG_STORE_FULL && op->masked && op->bitmap &&
           op->values && op->beta == 0.0 &&
           ((uintptr_t)source->x | (uintptr_t)source->dy) % 16 == 0 &&
           (uintptr_t)op->values % sizeof(float2) == 0;
}

/* ---- planes on Hopper GPUs (sm90/) ---- */

/* contract_planes.cu: whether products of warpgroups take the last two modes to the core; and of
 * planes that follow each other, whose rows do too, those of the indices [begin, begin + count) of
 * mode 0. `gathers`: they are of the gradient itself, whose kept entries go to op->values and are 0
 * from then on. `after_mode_one`: that mode has been contracted, and its indices follow the parts
 * of what comes out. */
bool cuda_sm90_contract_fits(const tg_backend *be, const cuda_planes *s);
tg_status cuda_sm90_contract(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                             int64_t begin, int64_t count, bool gathers, bool after_mode_one,
                             const void *in, void *out);

/* form_mode_one.cu: how many indices of mode 0 at a time, of a gradient whose kept entries are
 * gathered and masked, are formed and contracted with the factor of mode 1 by one kernel, before
 * the planes of what that gives are contracted: as many as there is room for in the buffers, 0
 * where the kernel does not suit; the index set as that kernel wants it, at the end of the buffers;
 * and indices [begin, begin + count) of mode 0 by it, as planes that follow each other. With
 * op->guard what is not finite is counted as in form_array.cu. */
int64_t cuda_sm90_mode_one_chunk(const tg_backend *be, const tg_compress *op,
                                 const cuda_plan *plan);
tg_status cuda_sm90_mode_one_runs(tg_backend *be, const tg_compress *op, const cuda_plan *plan);
tg_status cuda_sm90_form_mode_one(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                                  int64_t begin, int64_t count, void *out);

/* ---- large chunks on Hopper GPUs (sm90/) ---- */

/* Large chunks have a multiple of so many indices of mode 0. */
enum { CUDA_FORM_INDICES = 4 };

/* form_last_mode.cu: whether a gradient whose kept entries are gathered and masked is formed and
 * contracted with the factor of its last mode by a kernel without a chunk of it in memory; and its
 * indices [begin, begin + count) of mode 0, as they lie before step 1. */
bool cuda_sm90_form_fits(const tg_backend *be, const tg_compress *op, const cuda_plan *plan);
tg_status cuda_sm90_form(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                         int64_t begin, int64_t count, void *out);

/* contract_rows.cu: whether step 1 is taken plane by plane towards the core; and that, of `count`
 * indices of mode 0. */
bool cuda_sm90_contract_rows_fits(const tg_backend *be, const cuda_plan *plan);
tg_status cuda_sm90_contract_rows(tg_backend *be, const cuda_plan *plan, int64_t count,
                                  const void *in, void *out);

/* expand_last_mode.cu: whether the factor of the last mode is multiplied on the way back where a
 * weight of f32 or bf16 is updated; and what finish_call says, its chunk and view aside, of a large
 * chunk that lies before step 1; `rounds`: at random, to bf16. */
bool cuda_sm90_expand_fits(const tg_backend *be, const tg_expand *op, const cuda_plan *plan);
template <class O>
tg_status cuda_sm90_expand(tg_backend *be, const cuda_plan *plan, bool rounds, const void *in,
                           const finish_call<O, 2> *call);

/* expand_two_modes.cu: the same of both last modes, of what lies before step 2 in f16. */
bool cuda_sm90_expand_planes_fits(const tg_backend *be, const tg_expand *op, const cuda_plan *plan);
template <class O>
tg_status cuda_sm90_expand_planes(tg_backend *be, const cuda_plan *plan, bool rounds,
                                  const void *in, const finish_call<O, 2> *call);

/* half_columns.cu (sm90/): whether a mode is multiplied in f16 on the way back, from the core or
 * from what mode 0 gives. */
bool cuda_sm90_half_mode_fits(const tg_backend *be, const cuda_factor *factor, bool core);

tg_status cuda_expand(tg_backend *be, const tg_expand *op);
tg_status cuda_sample(tg_backend *be, const tg_sample *op);

#endif
