/* Compressed gradients on the GPU: the plan of a multilinear map, shared by both directions.
 *
 * Complex tensors as real ones. A complex product costs four real ones either way, but cuBLAS runs
 * real TF32 products nearly three times as fast as complex ones (420 against 151 TF/s on an H200),
 * and as fast in f32. So a complex tensor is a real one with one more dimension `part` (re, im) of
 * size 2, and a factor U (d, r) is the real matrix S (2r, 2d) that applies conj(U)^T to the parts,
 *   S[(re, j), (i, re)] =  Re U[i, j]    S[(re, j), (i, im)] = Im U[i, j]
 *   S[(im, j), (i, re)] = -Im U[i, j]    S[(im, j), (i, im)] = Re U[i, j],
 * and S^T applies U. Every contraction reads the parts after its mode and writes them before
 * it, so they move from the end of the tensor to its beginning without any copy:
 *   (i0 i1 i2 i3 part) -> (i0 i1 i2 part j3) -> (i0 i1 part j2 j3) -> (i0 part j1 j2 j3)
 *                      -> (part j0 j1 j2 j3),
 * and the expansion is the same chain from right to left. Real tensors have one part and S = U^T.
 *
 * Order of modes. A contraction of d to r first costs r times the tensor and shrinks it by r / d;
 * the cheapest order is by increasing r d / (d - r), which puts the short last mode first. The
 * tensor is never whole: chunks of it along mode 0 are formed, contracted and dropped, so mode 0
 * comes last, and then all chunks at once. The others have equal d and r in spectral weights. For
 * (128,128,128,65) -> (86,86,86,44): 48 + 63 + 43 + 29 = 183 GF, and 6 GB moved, in L2 where a
 * chunk fits it: memory-bound. So the last mode, whose products are the largest and shallowest, is
 * a single product over all rows of a chunk; the modes between run as batches that read their input
 * once; nothing is ever transposed.
 *
 * Where products are rounded to TF32, one pass takes the last two modes of a common spectral weight
 * (last_two_modes.cuh); the expansion also updates the weight in that pass. On Hopper GPUs the
 * projection may take mode 1 first, in the kernel that forms the gradient from its factors: kept
 * entries rule out contracting the factors instead. Where they are not rounded, the kernels for
 * Hopper GPUs split a number into the sum of two in TF32 and take three of the four products: this
 * gives 21 correct bits, and tensor cores are seven times as fast as f32.
 *
 * Rows are padded to 4 reals, as rows of 65 pairs would cost cuBLAS its 16-byte loads; the padding
 * is 0 where a product sums over it. */
#ifndef TG_BACKEND_CUDA_COMPRESS_COMPRESS_CUH
#define TG_BACKEND_CUDA_COMPRESS_COMPRESS_CUH

#include <type_traits>

#include "backend/cuda/compress/last_two_modes.cuh"
#include "backend/cuda/core/element.cuh"

/* ---- the plan: sizes (mode_products.cu), and the paths of both directions (plans.cu) ---- */

/* Bytes of a chunk, which stays in the L2 of an H200 until it is contracted; and of the result of a
 * large chunk, which need not stay there, as fewer launches are worth more. */
enum { CUDA_CHUNK_BYTES = 36 << 20, CUDA_LARGE_CHUNK_BYTES = 320 << 20 };

/* How our own kernels multiply a mode, if they do (mode_columns.cu): they read fragments of the
 * factor from the workspace, or the factor itself. */
enum cuda_own_kernel { CUDA_OWN_NONE, CUDA_OWN_FRAGMENTS, CUDA_OWN_DIRECT };

/* S of one factor: (parts * rows, ld), padded with 0 to rows >= rank and ld >= parts * dim. */
struct cuda_factor {
    const void *u; /* (dim, rank) */
    int64_t dim, rank;
    int64_t rows, ld;
    int64_t at; /* in the workspace, in reals */
    cuda_own_kernel own;
    int mode; /* of the tensor; u is its factor in one call */
};

enum cuda_step_kind {
    CUDA_STEP_RIGHT, /* the last mode: (left, dim, part) -> (left, part, rows) */
    CUDA_STEP_LEFT,  /* one before it: (left, dim, part, right) -> (left, part, rank, right) */
    CUDA_STEP_TURN   /* no factor, but its neighbours have one: moves the parts past this mode */
};

struct cuda_step {
    cuda_step_kind kind;
    int64_t left, dim, right; /* left: per index of mode 0; right: padded */
    cuda_factor factor;
};

/* Layout of a chunk: rows of `cols` entries; consecutive rows, parts and entries are `ld`, `part`
 * and `step` reals apart. Rows are interleaved (part 1) if the last mode has a factor, otherwise
 * one part follows the other. */
struct cuda_view {
    int64_t cols, ld, part, step;
};

/* Which kernel contracts the last two modes in one pass. */
enum cuda_planes_kernel { PLANES_NONE, PLANES_WARPS, PLANES_SHARED, PLANES_HOPPER };

struct cuda_plan;

/* An implementation of a slot, a row of its table: the first one that fits is used. */
template <class OP> struct cuda_path {
    tg_path path;
    /* How much it takes at a time: indices of mode 0, or planes of a resident expansion; 0: does
     * not support the call. */
    int64_t (*fits)(const tg_backend *be, const OP *op, const cuda_plan *plan);
    tg_status (*run)(tg_backend *be, const OP *op, const cuda_plan *plan);
    /* Whether a projection counts non-finite entries itself; NULL: a pass of its own does. */
    bool (*counts)(const tg_backend *be, const OP *op, const cuda_plan *plan) = NULL;
};

struct cuda_plan {
    tg_dtype real; /* of the arithmetic: f32 or f64 */
    int parts;
    int64_t dim0, unit; /* unit: entries per index of mode 0 */
    cuda_view view;
    int steps;
    cuda_step step[TG_MAX_NDIM];
    int64_t state[TG_MAX_NDIM + 1]; /* reals per index of mode 0 before step q */
    bool split;                     /* own kernels multiply f32 numbers as sums of two in TF32 */
    plane_pass planes;            /* steps 0 and 1 in one pass, without storing the state between */
    cuda_planes_kernel contracts; /* the kernel of that pass in a projection */
    int64_t resident;             /* planes at a time in an expansion to f32; 0: not resident */
    bool gathers;                 /* mode 0 has a factor: chunks are collected in `middle` */
    cuda_factor first;            /* of mode 0 */
    int64_t lead;                 /* without it: rows of the core per index of mode 0 */
    int64_t columns;              /* of the core after the parts: blocks of `padded` reals.. */
    int64_t block, padded;        /* ..of which `block` are used */
    int64_t chunk;                /* indices of mode 0 per chunk */
    int64_t width;                /* columns of mode 0's product per piece */
    int64_t buffer[2], middle;    /* in the workspace, in reals */
    int64_t size;                 /* of the workspace */
    int64_t large_chunk; /* indices of mode 0 per large chunk, which stores states 1 and 2 only; 0:
                          * unused */
    bool half; /* expand a direction of Adam in f16, with both parts of a number together; mode 0
                * then writes to the buffers and mode 1 to `middle` (expand.cu) */
    bool moves_core; /* Adam updates the core between both products of mode 0, without storing it */
    bool counts;     /* the projection counts non-finite entries itself */
    const cuda_path<tg_compress> *project; /* NULL: no such call, or nothing to do */
    const cuda_path<tg_expand> *expand;
    int64_t project_at_once, expand_at_once; /* see cuda_path */

    /* ---- in the copy of a call ---- */
    const tg_adam *adam; /* moves the core; NULL: no such step */
    bool chained;        /* the previous kernel belongs to the same chain: see launch_chained */
    bool apart; /* the previous kernel neither writes what this one reads nor accesses what this
                 * one writes, so this one waits for it only at its end */
};

/* TG_E_DTYPE unless the dtype is f32, f64, c64 or c128, and 16-bit formats are used for f32 or c64
 * only. */
tg_status cuda_check_modes(const tg_backend *be, const char *slot, tg_dtype dtype,
                           tg_storage store);

/* The tables of both slots; their last row fits every call. */
extern const cuda_path<tg_compress> cuda_project_paths[]; /* compress.cu */
extern const cuda_path<tg_expand> cuda_expand_paths[];    /* expand.cu */

/* The sizes; and with them the paths of a projection, an expansion, or both with Adam in between
 * (NULL: no such call). Paths are chosen once for all calls of the same sizes, storage and
 * alignment. The result is a copy with the factors of `modes`. */
cuda_plan cuda_plan_sizes(const tg_backend *be, const tg_multimode *modes);
cuda_plan cuda_plan_of(const tg_backend *be, const tg_multimode *modes, const tg_compress *project,
                       const tg_adam *adam, const tg_expand *expand);

static inline char *cuda_plan_at(const cuda_plan *plan, void *workspace, int64_t reals) {
    return static_cast<char *>(workspace) + reals * (int64_t)tg_dtype_size(plan->real);
}

/* Address of the chunk from `first` on before step q (q == steps: after the last step). */
char *cuda_plan_state(const cuda_plan *plan, void *workspace, int q, int64_t first);

/* The same for large chunks, before step 1, 2 or after the last step. */
char *cuda_plan_large_state(const cuda_plan *plan, void *workspace, int q, int64_t first);

/* Writes S of every factor that is multiplied on its own, or its fragments for one direction. */
tg_status cuda_plan_factors(tg_backend *be, const cuda_plan *plan, bool forward, void *workspace);

/* Applies step q to `count` indices of mode 0: projects (forward) or expands. */
tg_status cuda_plan_step(tg_backend *be, const cuda_plan *plan, void *workspace, int q,
                         bool forward, int64_t count, const void *in, void *out);

/* S (forward) or S^T of a factor times `batch` contiguous matrices of n columns, whose rows are the
 * mode. */
tg_status cuda_plan_multiply(tg_backend *be, const cuda_plan *plan, void *workspace,
                             const cuda_factor *factor, bool forward, int64_t batch, int64_t n,
                             const void *in, int64_t ld_in, void *out, int64_t ld_out);

/* ---- modes before the last in TF32 (mode_columns.cu) ---- */

/* Tiles of 16 rows for n output numbers, rounded up to a count that has a kernel. */
static __host__ __device__ inline int cuda_mode_tiles(int made) {
    const int tiles = (made + 15) / 16;
    return tiles == 5 ? 6 : tiles == 7 ? 8 : tiles;
}

/* Which of our kernels multiplies the factor of a mode before `columns` reals; `split`: see
 * cuda_plan. */
cuda_own_kernel cuda_mode_kernel(const tg_backend *be, const cuda_factor *factor, int64_t columns,
                                 bool split);

/* (dim, part, n) -> (part, rank, n) for contiguous matrices, or back. */
tg_status cuda_mode_multiply(tg_backend *be, const cuda_plan *plan, void *workspace,
                             const cuda_factor *factor, bool forward, int64_t matrices, int64_t n,
                             const void *in, void *out);

/* core = beta core + scale (product of a mode), for contiguous matrices (dim, n) with interleaved
 * parts, on Hopper GPUs. */
tg_status cuda_mode_dense(tg_backend *be, const cuda_factor *factor, bool split, int64_t matrices,
                          int64_t n, const void *in, double scale, double beta, void *core);

/* Expands mode 1 in f16 (`half`): `count` indices of mode 0 from `first` on, from the buffers to
 * `middle`. */
tg_status cuda_mode_half(tg_backend *be, const cuda_plan *plan, void *workspace, int64_t first,
                         int64_t count);

/* Mode 0 between `middle` and the core. Projection: core = beta core + scale product. Expansion:
 * writes `middle`, or the buffers if `half`. If Adam updates the core, does both. */
tg_status cuda_mode_core(tg_backend *be, const cuda_plan *plan, void *workspace, bool forward,
                         const void *middle, double scale, double beta, const void *core);

/* ---- between the core and the parts (interleave.cu) ---- */

/* core = beta core + scale (projected chunk, or product of `middle` with the factor of mode 0 if it
 * has one). */
tg_status cuda_plan_chunk_to_core(tg_backend *be, const cuda_plan *plan, const void *chunk,
                                  int64_t first, int64_t count, double scale, double beta,
                                  void *core);
tg_status cuda_plan_middle_to_core(tg_backend *be, const cuda_plan *plan, void *workspace,
                                   const void *middle, double scale, double beta, void *core);

/* Expansion: reads a chunk's part of the core, and computes `middle` from the core. */
tg_status cuda_plan_chunk_of_core(tg_backend *be, const cuda_plan *plan, const void *core,
                                  int64_t first, int64_t count, void *chunk);
tg_status cuda_plan_middle_of_core(tg_backend *be, const cuda_plan *plan, void *workspace,
                                   const void *core);

/* ---- elements ---- */

/* An element of `P` parts, read and written with one access. */
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

/* Loads and stores of data used once, which should not evict chunks from L2. An array may be
 * aligned to the parts of its elements only; `whole`: it is aligned to the elements. */
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

/* x = beta x + scale value; does not read x if beta = 0. */
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

/* Whether an array of elements is aligned to them. */
template <class N> static inline bool is_whole(const N *elements) {
    return (uintptr_t)elements % sizeof(N) == 0;
}

/* Calls f(std::integral_constant<int, parts>()). */
template <class F> static inline tg_status with_parts(int parts, F f) {
    return with_size<1, 2>(parts, f);
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

/* 32 consecutive entries: which are kept, and how many kept entries come before them. */
struct kept_run {
    uint32_t mask, before;
};

/* The sum over this lane and those before it, of WIDTH neighbours. */
template <int WIDTH> static __device__ inline uint32_t sum_up_to(uint32_t own, int lane) {
    uint32_t sum = own;
#pragma unroll
    for (int d = 1; d < WIDTH; d *= 2) {
        const uint32_t left = __shfl_up_sync(~0u, sum, d, WIDTH);
        sum += lane >= d ? left : 0;
    }
    return sum;
}

/* `before` and the kept entries of the earlier words of a word's rank block. */
static __device__ inline uint32_t add_earlier_words(const kept_set &set, int64_t word,
                                                    uint32_t before) {
#pragma unroll
    for (int w = 1; w < 8; w++) { /* a fixed count, so that the loads overlap */
        before += w <= word % 8 ? (uint32_t)__popcll(set.words[word - w]) : 0;
    }
    return before;
}

/* The run that begins at any entry. */
static __device__ inline kept_run kept_run_at(const kept_set &set, int64_t entry) {
    const int64_t word = entry / 64;
    const int shift = (int)(entry % 64);
    const uint64_t here = set.words[word];
    uint64_t bits = here >> shift;
    if (shift > 32 && word + 1 < set.count) {
        bits |= set.words[word + 1] << (64 - shift);
    }
    uint32_t before = set.ranks[entry / 512];
    before += (uint32_t)__popcll(here & ((UINT64_C(1) << shift) - 1));
    return {(uint32_t)bits, add_earlier_words(set, word, before)};
}

/* A rank block, 512 entries, by a whole warp: lane p < 16 reads its run p. */
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

/* Index of a lane's entry among the values, if it is kept. */
static __device__ inline int64_t position_of(const kept_run &run, int lane) {
    return (int64_t)run.before + __popc(run.mask & ((1u << lane) - 1));
}

/* ---- a warp's walk over the entries of a chunk ---- */

enum { WALK_THREADS = 256, WALK_RUNS = 512 / 32 };

/* Row and column of an entry, counted from the start of the chunk (negative rows: before it). */
struct chunk_place {
    int64_t row, col;
};

static __device__ inline chunk_place chunk_place_of(int64_t entry, int64_t cols) {
    const int64_t row = (entry < 0 ? entry - cols + 1 : entry) / cols;
    return {row, entry - row * cols};
}

/* Advances a place by a step of `entries`. */
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

/* Blocks of WALK_THREADS, so that each rank block in [begin, end) has a warp. */
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
    bool whole;        /* alignment of out and values */
    tg_rng rounding;
    const tg_rates *rates; /* NULL: the rates above; else read these on the device */
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

/* Updates element `entry` of out, rounded with the random bits of numbers P entry + p. */
template <bool ROUNDED, class O, int P>
static __device__ inline number<O, P> rounded(const tg_rng &rng, int64_t entry,
                                              const number<real_of<O>, P> &x) {
    if constexpr (ROUNDED) { /* the parts of an element share one draw */
        uint32_t random[P];
        read_random(rng, (uint64_t)P * (uint64_t)entry, random);
        number<O, P> y;
        for (int p = 0; p < P; p++) {
            y.part[p] = round_stochastic<O>(x.part[p], random[p]);
        }
        return y;
    } else {
        return narrow_number<O, P>(x);
    }
}

/* Writes the fragments of the plan's planes, for the projection (forward) or the expansion. */
tg_status cuda_planes_factors(tg_backend *be, const cuda_plan *plan, bool forward, void *workspace);

/* Their addresses: of the last mode, and of the one before it. */
const float2 *cuda_planes_last(const cuda_plan *plan, void *workspace);
const float4 *cuda_planes_before(const cuda_plan *plan, void *workspace);

/* Indices of mode 0 per pass if planes begin the projection or end the expansion without storing a
 * chunk: the other side gets the room of both buffers. `planes_at_once`: planes the device takes at
 * a time; 0: chunks as they are. */
int64_t cuda_planes_chunk(const cuda_plan *plan, int64_t planes_at_once);

/* Projects steps 0 and 1 on `count` indices of mode 0. */
tg_status cuda_planes_contract(tg_backend *be, const cuda_plan *plan, void *workspace,
                               int64_t count, const void *in, void *out);

/* last_two_modes_contract.cu: the same with factors resident in shared memory, in a fragment layout
 * of their own, if they fit. */
bool cuda_planes_contract_fits(const tg_backend *be, const plane_pass *s);
tg_status cuda_planes_contract_factors(tg_backend *be, const cuda_plan *plan, void *workspace);
tg_status cuda_planes_contract_resident(tg_backend *be, const cuda_plan *plan, void *workspace,
                                        int64_t count, const void *in, void *out);

/* Expands the same steps from `in`, then updates as finish_call says (except its chunk and
 * view). */
tg_status cuda_planes_expand(tg_backend *be, const cuda_plan *plan, void *workspace, const void *in,
                             const finish_call<float, 2> *call);

/* last_two_modes_resident.cu: the same with factors resident in shared memory and any storage
 * format of out, also with stochastic rounding (`rounds`). Planes that the device takes at a time
 * (0: unsupported); the fragments for planes in f32; and the pass itself, which cuda_planes_expand
 * uses for f32, bf16 and f16. */
int64_t cuda_planes_resident(const tg_backend *be, const plane_pass *s, tg_storage store,
                             bool rounds);
int64_t cuda_planes_resident_half(const tg_backend *be, const plane_pass *s, tg_storage store,
                                  bool rounds); /* the same where a plan is `half` */
tg_status cuda_planes_expand_factors(tg_backend *be, const cuda_plan *plan, void *workspace);
template <class O>
tg_status cuda_planes_expand_resident(tg_backend *be, const cuda_plan *plan, void *workspace,
                                      int64_t planes_at_once, bool rounds, const void *in,
                                      const finish_call<O, 2> *call);

/* dense_mode.cu: a single mode of a dense tensor, directly from the tensor to the core. */
int64_t cuda_dense_mode_fits(const tg_backend *be, const tg_compress *op, const cuda_plan *plan);
tg_status cuda_dense_mode(tg_backend *be, const tg_compress *op, const cuda_plan *plan);

/* The indices [begin, begin + count) of mode 0 of G: writes the kept entries to op->values
 * (`gathers`), and the rest, or everything, to a chunk of the plan (NULL: values only). */
tg_status cuda_form_chunk(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                          int64_t begin, int64_t count, bool gathers, void *chunk);

/* form_array.cu: indices [begin, begin + count) of mode 0 of a factored gradient, times gain, as an
 * array of complex f32. With a guard, counts the non-finite entries of x at these indices and, with
 * the first of them, those of dy. */
struct cuda_array_call {
    const tg_grad_source *source;
    const tg_multimode *modes;
    int64_t begin, count;
    float gain;
    uint32_t *guard;     /* NULL: do not count */
    bool chained, apart; /* as in cuda_plan */
    void *out;
};
bool cuda_form_array_fits(const tg_grad_source *source, const tg_multimode *modes, int64_t count);
tg_status cuda_form_array(tg_backend *be, const cuda_array_call *call);

/* Whether a gradient is factored and its kept entries are written to op->values while it is formed,
 * with everything aligned for the fused kernels. */
static inline bool cuda_is_taken_out(const tg_compress *op) {
    const tg_grad_source *source = &op->source;
    return !source->dense && source->store == TG_STORE_FULL && op->masked && op->bitmap &&
           op->values && op->beta == 0.0 &&
           ((uintptr_t)source->x | (uintptr_t)source->dy) % 16 == 0 &&
           (uintptr_t)op->values % sizeof(float2) == 0;
}

/* ---- planes on Hopper GPUs (sm90/) ---- */

/* contract_planes.cu: whether warpgroup products project the last two modes; and the projection of
 * contiguous planes with contiguous rows, of the indices [begin, begin + count) of mode 0.
 * `gathers`: the planes are the gradient itself; kept entries are written to op->values and then
 * count as 0. `after_mode_one`: mode 1 is already contracted, and its indices follow the parts of
 * the output. */
bool cuda_sm90_contract_fits(const tg_backend *be, const plane_pass *s);
tg_status cuda_sm90_contract(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                             int64_t begin, int64_t count, bool gathers, bool after_mode_one,
                             const void *in, void *out);

/* form_mode_one.cu, one kernel that forms a gradient (kept entries gathered and masked) and
 * contracts mode 1 before the planes of the result are contracted. In order: indices of mode 0 per
 * pass, as many as fit into the buffers (0: unsupported); the index set in the kernel's layout,
 * stored at the end of the buffers; and the pass on indices [begin, begin + count) of mode 0, which
 * writes contiguous planes. With op->guard it counts non-finite entries as form_array.cu does. */
int64_t cuda_sm90_mode_one_fits(const tg_backend *be, const tg_compress *op, const cuda_plan *plan);
tg_status cuda_sm90_mode_one_runs(tg_backend *be, const tg_compress *op, const cuda_plan *plan);
tg_status cuda_sm90_form_mode_one(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                                  int64_t begin, int64_t count, void *out);

/* ---- large chunks on Hopper GPUs (sm90/) ---- */

/* Large chunks have a multiple of this many indices of mode 0. */
enum { CUDA_FORM_INDICES = 4 };

/* form_last_mode.cu, one kernel that forms a gradient (kept entries gathered and masked) and
 * contracts the last mode without storing a chunk: whether it applies; and the pass on indices
 * [begin, begin + count) of mode 0, which writes the state before step 1. */
int64_t cuda_sm90_form_fits(const tg_backend *be, const tg_compress *op, const cuda_plan *plan);
tg_status cuda_sm90_form(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                         int64_t begin, int64_t count, void *out);

/* contract_rows.cu: whether step 1 projects plane by plane; and that step on `count` indices of
 * mode 0. */
bool cuda_sm90_contract_rows_fits(const tg_backend *be, const cuda_plan *plan);
tg_status cuda_sm90_contract_rows(tg_backend *be, const cuda_plan *plan, int64_t count,
                                  const void *in, void *out);

/* expand_last_mode.cu: whether one kernel expands the last mode and updates a weight of f32 or
 * bf16; and that kernel, for a large chunk in the state before step 1, with the update of
 * finish_call (except its chunk and view). `rounds`: stochastically, to bf16. */
int64_t cuda_sm90_expand_fits(const tg_backend *be, const tg_expand *op, const cuda_plan *plan);
template <class O>
tg_status cuda_sm90_expand(tg_backend *be, const cuda_plan *plan, bool rounds, const void *in,
                           const finish_call<O, 2> *call);

/* expand_two_modes.cu: the same for the last two modes, from the state before step 2 in f16. */
bool cuda_sm90_expand_planes_fits(const tg_backend *be, const tg_expand *op, const cuda_plan *plan);
template <class O>
tg_status cuda_sm90_expand_planes(tg_backend *be, const cuda_plan *plan, bool rounds,
                                  const void *in, const finish_call<O, 2> *call);

/* half_columns.cu (sm90/): whether a mode is expanded in f16, from the core or from the result of
 * mode 0. */
bool cuda_sm90_half_mode_fits(const tg_backend *be, const cuda_factor *factor, bool core);

/* core_adam.cu (sm90/): whether Adam updates the core between both products of mode 0. */
bool cuda_sm90_core_adam_fits(const tg_backend *be, const tg_compress *op, const tg_adam *adam,
                              const cuda_plan *plan);

/* The largest eps for which f16 is precise enough for Adam's directions: they are about 1 unless
 * gradients are smaller than eps. And whether a direction is expanded in f16: see cuda_plan. */
static constexpr double CUDA_HALF_EPS = 1e-6;
bool cuda_expand_half_fits(const tg_backend *be, const tg_adam *adam, const tg_expand *op,
                           const cuda_plan *plan);

tg_status cuda_expand_by(tg_backend *be, const tg_expand *op, const cuda_plan *plan);

#endif
