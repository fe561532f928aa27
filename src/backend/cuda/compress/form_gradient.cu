/* Forms a gradient, chunk by chunk or whole, and gathers its kept entries.
 *
 * A factored gradient is G[i,o,k] = sum_b conj(x[b,i,k]) dy[b,o,k]. A warp takes 32 frequencies k
 * of a tile of 4 x 4 channels, so that 8 loads serve 16 sums, and the next ones after these; a
 * block takes 8 x 16 channels of the same frequencies (4 x 32 of a thin chunk), whose loads meet in
 * the L1. A dense gradient is copied into the layout of the chunk. A warp finds its kept entries
 * together: lane p reads the 32 bits of run p of the tile and the count before it, and the other
 * lanes shuffle them from that lane. Later frequencies only add to that count. */
#include "backend/cuda/compress/compress.cuh"

/* ---- storing an entry ---- */

/* O: the dtype of the chunk in memory; values are always as wide as the arithmetic. */
template <class O, int P> struct form_target {
    using R = real_of<O>;
    kept_set kept;
    bool masked;          /* kept entries are 0 in the chunk */
    number<R, P> *values; /* beta values + scale G[kept]; NULL: none */
    bool whole;           /* whether both are aligned to elements */
    R scale, beta;
    O *chunk; /* gain G; NULL: none */
    R gain;
    cuda_view view;
};

/* Whether there is a chunk of G itself with interleaved rows, padded by one entry at most, and the
 * values, if entries are kept, are written whole. */
template <class O, int P> static bool is_plain(const form_target<O, P> &to, bool kept) {
    const int64_t padding = to.view.ld - P * to.view.cols;
    return to.chunk && to.gain == 1 && to.view.part == 1 && to.view.step == P &&
           (padding == 0 || padding == P) && (!kept || (to.values && to.whole && to.beta == 0));
}

/* Writes to the row of the chunk that begins at `row`. The last entry of a row also writes the
 * padding, since the product over an interleaved row reads it. */
template <class R, class O, int P>
static __device__ inline void store_entry(const form_target<O, P> &to, O *row, int64_t col,
                                          const number<R, P> &g) {
    number<R, P> y;
    for (int p = 0; p < P; p++) {
        y.part[p] = to.gain * g.part[p];
    }
    const number<O, P> out = narrow_number<O, P>(y);
    O *at = row + col * to.view.step;
    if (to.view.part == 1) {
        *reinterpret_cast<number<O, P> *>(at) = out;
        if (col == to.view.cols - 1) {
            for (int64_t c = P * to.view.cols; c < to.view.ld; c++) {
                row[c] = narrow<O>(R(0));
            }
        }
    } else {
        for (int p = 0; p < P; p++) {
            at[p * to.view.part] = out.part[p];
        }
    }
}

template <bool KEPT, class R, class O, int P>
static __device__ inline void emit(const form_target<O, P> &to, const kept_run &run, int lane,
                                   O *row, int64_t col, number<R, P> g) {
    if (KEPT && is_kept(run, lane)) {
        if (to.values) {
            blend(&to.values[position_of(run, lane)], to.whole, to.beta, to.scale, g);
        }
        g = to.masked ? number<R, P>() : g;
    }
    if (to.chunk) {
        store_entry(to, row, col, g);
    }
}

/* Stores without a branch if an element has 8 bytes; ONCE: see store_once. */
template <bool ONCE, class T, int P>
static __device__ inline void store_if(bool wanted, number<T, P> *to, const number<T, P> &x) {
    if constexpr (sizeof x == 8) {
        uint2 word;
        memcpy(&word, &x, sizeof word);
        if (ONCE) {
            asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p st.global.cs.v2.u32 [%0], "
                         "{%1, %2}; }" ::"l"(to),
                         "r"(word.x), "r"(word.y), "r"((int)wanted)
                         : "memory");
        } else {
            asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p st.global.v2.u32 [%0], "
                         "{%1, %2}; }" ::"l"(to),
                         "r"(word.x), "r"(word.y), "r"((int)wanted)
                         : "memory");
        }
    } else if (wanted) {
        if (ONCE) {
            store_once(to, x, true);
        } else {
            *to = x;
        }
    }
}

/* The same for a plain target, without per-entry checks; `fills`: this entry ends its row. */
template <bool KEPT, class R, class O, int P>
static __device__ inline void emit_plain(const form_target<O, P> &to, const kept_run &run, int lane,
                                         bool exists, number<O, P> *entry, bool fills,
                                         number<R, P> g) {
    if (KEPT) {
        const bool kept = exists && is_kept(run, lane);
        number<R, P> value;
        for (int p = 0; p < P; p++) {
            value.part[p] = to.scale * g.part[p];
            g.part[p] = kept && to.masked ? R(0) : g.part[p];
        }
        store_if<true>(kept, &to.values[position_of(run, lane)], value);
    }
    store_if<false>(exists, entry, narrow_number<O, P>(g));
    store_if<false>(exists && fills, entry + 1, narrow_number<O, P>(number<R, P>()));
}

/* ---- a dense source ---- */

template <class S, int P> struct dense_source {
    const number<S, P> *entries;
    bool whole;         /* whether both are aligned to elements */
    int64_t begin, end; /* of the chunk */
};

/* A rank block. Without a chunk only kept entries are read. FAST: there is one, the block is inside
 * it, and the source is aligned to elements; then no branch separates the loads. */
template <bool FAST, bool KEPT, class S, class O, int P>
static __device__ inline void form_block(const dense_source<S, P> &src, const form_target<O, P> &to,
                                         int64_t block, int lane) {
    using R = real_of<S>;
    enum { AHEAD = 4 };
    const kept_run runs = KEPT ? kept_runs_of_block(to.kept, block, lane) : kept_run();
    const chunk_place stride = stride_of(32, to.view.cols);
    int64_t entry = block * 512 + lane;
    chunk_place at = chunk_place_of(entry - src.begin, to.view.cols);
    for (int r = 0; r < WALK_RUNS; r += AHEAD, entry += 32 * AHEAD) {
        kept_run run[AHEAD];
        bool inside[AHEAD];
        number<R, P> g[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int64_t e = entry + 32 * u;
            run[u] = KEPT ? kept_run_of_lane(runs, r + u) : kept_run();
            inside[u] = FAST || (e >= src.begin && e < src.end);
            g[u] = number<R, P>();
            if (FAST || (inside[u] && (to.chunk || is_kept(run[u], lane)))) {
                g[u] = widen(load_once(src.entries + e, FAST || src.whole));
            }
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (inside[u]) {
                emit<KEPT>(to, run[u], lane, to.chunk + at.row * to.view.ld, at.col, g[u]);
            }
            walk_on(&at, stride, to.view.cols);
        }
    }
}

template <class S, class O, int P, bool KEPT>
static __global__ void __launch_bounds__(WALK_THREADS)
    form_dense(dense_source<S, P> src, form_target<O, P> to) {
    const int64_t block = walk_block(src.begin);
    if (block * 512 >= src.end) {
        return;
    }
    const bool within = block * 512 >= src.begin && block * 512 + 512 <= src.end;
    if (within && to.chunk && src.whole) {
        form_block<true, KEPT>(src, to, block, threadIdx.x % 32);
    } else {
        form_block<false, KEPT>(src, to, block, threadIdx.x % 32);
    }
}

/* ---- a factored source ---- */

enum { TILE = 4, RUNS = TILE * TILE, TILES = 8, FORM_THREADS = 32 * TILES, MAX_STEPS = 4 };

template <class S, int P> struct factored {
    const number<S, P> *x, *dy;
    bool whole; /* whether both are aligned to elements */
    int64_t batch;
    int64_t dim0, dim1, frequencies;
    int64_t begin, count;        /* indices of mode 0 */
    int steps;                   /* of 32 frequencies, taken one after the other by a warp */
    unsigned blocks_k, blocks_o; /* of the grid, which runs over i, o and k */
    int tiles_o;                 /* of the TILES of a block, how many are side by side */
    /* Entry (i, o, k) of the chunk begins at i step_i + o step_o + k / view.cols view.ld, in column
     * o columns + k % view.cols. */
    int64_t step_i, step_o, columns;
};

template <class R, int P>
static __device__ inline void add_product(number<R, P> *sum, const number<R, P> &x,
                                          const number<R, P> &y) {
    if constexpr (P == 2) { /* conj(x) y, as sums that fuse with each product */
        sum->part[0] += x.part[0] * y.part[0];
        sum->part[0] += x.part[1] * y.part[1];
        sum->part[1] += x.part[0] * y.part[1];
        sum->part[1] -= x.part[1] * y.part[0];
    } else {
        sum->part[0] += x.part[0] * y.part[0];
    }
}

/* Loads that the other warps of the block may repeat. */
template <bool WHOLE, class S, int P>
static __device__ inline number<real_of<S>, P> load_shared(const number<S, P> *from) {
    number<S, P> x;
    if (WHOLE) {
        x = *from;
    } else {
        for (int p = 0; p < P; p++) {
            x.part[p] = reinterpret_cast<const S *>(from)[p];
        }
    }
    return widen(x);
}

/* sum[u][v] = sum over the batch of conj(x[u]) dy[v]; 0 if the frequency does not exist. Advances
 * the pointers by 32 frequencies. */
template <bool WHOLE, class S, class R, int P>
static __device__ inline void add_batch(const factored<S, P> &src, bool exists,
                                        const number<S, P> **x, const number<S, P> **dy,
                                        number<R, P> (*sum)[TILE]) {
    const int64_t next_x = src.dim0 * src.frequencies, next_dy = src.dim1 * src.frequencies;
#pragma unroll 2
    for (int64_t b = 0; b < src.batch; b++) {
        number<R, P> xs[TILE] = {}, ys[TILE] = {};
#pragma unroll
        for (int t = 0; t < TILE; t++) {
            if (exists) {
                xs[t] = load_shared<WHOLE>(x[t]);
                ys[t] = load_shared<WHOLE>(dy[t]);
            }
            x[t] += next_x;
            dy[t] += next_dy;
        }
#pragma unroll
        for (int u = 0; u < TILE; u++) {
#pragma unroll
            for (int v = 0; v < TILE; v++) {
                add_product(&sum[u][v], xs[u], ys[v]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILE; t++) {
        x[t] += 32 - src.batch * next_x;
        dy[t] += 32 - src.batch * next_dy;
    }
}

/* Of the 64 bits of word `word` of a rank block, those before an entry. */
static __device__ inline uint64_t bits_before(int64_t entry, int word) {
    const int bits = (int)(entry % 512) - 64 * word;
    return bits >= 64 ? ~UINT64_C(0) : bits > 0 ? (UINT64_C(1) << bits) - 1 : 0;
}

/* Kept entries before run p of a tile, for lane p. A whole warp reads the words of the rank blocks
 * in which the runs begin: eight lanes per run, four runs at a time, so that the loads overlap.
 * entry_of(p): where run p begins. */
template <class F>
static __device__ inline uint32_t kept_before(const kept_set &set, int lane, F entry_of) {
    uint64_t words[RUNS / 4];
#pragma unroll
    for (int q = 0; q < RUNS / 4; q++) {
        const int64_t entry = entry_of(4 * q + lane / 8);
        const uint64_t bits = bits_before(entry, lane % 8);
        words[q] = bits != 0 ? set.words[entry / 512 * 8 + lane % 8] & bits : 0;
    }
    uint32_t before = set.ranks[entry_of(lane % RUNS) / 512];
#pragma unroll
    for (int q = 0; q < RUNS / 4; q++) {
        uint32_t sum = (uint32_t)__popcll(words[q]);
        for (int d = 1; d < 8; d *= 2) {
            sum += __shfl_xor_sync(~0u, sum, d);
        }
        const uint32_t own = __shfl_sync(~0u, sum, lane % 4 * 8);
        before += lane / 4 == q ? own : 0;
    }
    return before;
}

/* The two words of run p, in lanes p and p + 16, and its kept entries, for lane p. */
static __device__ inline uint64_t kept_word(const kept_set &set, int64_t entry, int lane) {
    const int64_t word = entry / 64 + lane / RUNS;
    return word < set.count ? set.words[word] : 0;
}

static __device__ inline uint32_t kept_mask(uint64_t word, int64_t entry) {
    const uint64_t next = __shfl_down_sync(~0u, (unsigned long long)word, RUNS);
    const int shift = (int)(entry % 64);
    return (uint32_t)(word >> shift | (shift > 32 ? next << (64 - shift) : 0));
}

/* Writes the 32 frequencies of a tile. */
template <bool KEPT, bool PLAIN, class S, class O, int P>
static __device__ inline void emit_tile(const factored<S, P> &src, const form_target<O, P> &to,
                                        int64_t i0, int64_t o0, const chunk_place &at, bool exists,
                                        const kept_run &runs, int lane,
                                        const number<real_of<S>, P> (*sum)[TILE]) {
    const int rows = (int)min(src.count - i0, (int64_t)TILE);
    const int cols = (int)min(src.dim1 - o0, (int64_t)TILE);
    const bool fills = to.view.ld > P * to.view.cols && at.col == to.view.cols - 1;
    const int64_t down = src.step_i * (int64_t)sizeof(O), across = src.step_o * (int64_t)sizeof(O);
    char *line = reinterpret_cast<char *>(to.chunk + at.row * to.view.ld + i0 * src.step_i +
                                          o0 * src.step_o + (PLAIN ? at.col * P : 0));
#pragma unroll
    for (int u = 0; u < TILE; u++, line += down) {
        char *entry = line;
#pragma unroll
        for (int v = 0; v < TILE; v++, entry += across) {
            const kept_run run = KEPT ? kept_run_of_lane(runs, u * TILE + v) : kept_run();
            const bool has_entry = exists && u < rows && v < cols;
            if (PLAIN) {
                emit_plain<KEPT>(to, run, lane, has_entry, reinterpret_cast<number<O, P> *>(entry),
                                 fills, sum[u][v]);
            } else if (has_entry) {
                emit<KEPT>(to, run, lane, reinterpret_cast<O *>(entry),
                           at.col + (o0 + v) * src.columns, sum[u][v]);
            }
        }
    }
}

/* PLAIN: see is_plain. */
template <class S, class O, int P, bool KEPT, bool PLAIN>
static __global__ void __launch_bounds__(FORM_THREADS, sizeof(S) == 8 ? 1 : 2)
    form_factored(factored<S, P> src, form_target<O, P> to) {
    using R = real_of<S>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t k0 = (int64_t)(blockIdx.x % src.blocks_k) * (32 * src.steps);
    const unsigned rest = blockIdx.x / src.blocks_k;
    const int tiles_o = src.tiles_o, tiles_i = TILES / tiles_o;
    const int64_t o0 = ((int64_t)(rest % src.blocks_o) * tiles_o + warp % tiles_o) * TILE;
    const int64_t i0 = ((int64_t)(rest / src.blocks_o) * tiles_i + warp / tiles_o) * TILE;
    if (o0 >= src.dim1 || i0 >= src.count) {
        return;
    }
    /* Past an edge the last one is computed again, and dropped. */
    const auto entry_of = [&](int p) {
        const int64_t i = src.begin + min(i0 + p / TILE, src.count - 1);
        return (i * src.dim1 + min(o0 + p % TILE, src.dim1 - 1)) * src.frequencies + k0;
    };
    int64_t k = k0 + lane, entry = entry_of(lane % RUNS);
    const number<S, P> *x[TILE], *dy[TILE];
#pragma unroll
    for (int t = 0; t < TILE; t++) {
        const int64_t i = src.begin + min(i0 + t, src.count - 1), o = min(o0 + t, src.dim1 - 1);
        x[t] = src.x + i * src.frequencies + k;
        dy[t] = src.dy + o * src.frequencies + k;
    }
    const int64_t cols = src.columns > 0 ? src.frequencies : to.view.cols;
    const chunk_place stride = stride_of(32, cols);
    chunk_place at = chunk_place_of(k, cols);
    kept_run runs = {0, KEPT ? kept_before(to.kept, lane, entry_of) : 0};
#pragma unroll 1
    for (int step = 0; step < src.steps && k - lane < src.frequencies; step++) {
        const bool exists = k < src.frequencies;
        const uint64_t word = KEPT ? kept_word(to.kept, entry, lane) : 0;
        number<R, P> sum[TILE][TILE] = {};
        if (src.whole) {
            add_batch<true>(src, exists, x, dy, sum);
        } else {
            add_batch<false>(src, exists, x, dy, sum);
        }
        if (KEPT) {
            runs.mask = kept_mask(word, entry);
        }
        emit_tile<KEPT, PLAIN>(src, to, i0, o0, at, exists, runs, lane, sum);
        runs.before += (uint32_t)__popc(runs.mask);
        walk_on(&at, stride, cols);
        k += 32;
        entry += 32;
    }
}

/* ---- launches ---- */

/* The gradient to form. */
struct form_call {
    const tg_multimode *modes;
    const tg_grad_source *source;
    int64_t begin, count; /* indices of mode 0 */
    int64_t unit;         /* entries of each */
    bool kept;            /* the target needs its index set */
    uint32_t *guard;      /* form_array.cu counts here; NULL: do not count */
    bool chained, apart;  /* of that kernel, as in cuda_plan */
};

template <class S, class O, int P>
static tg_status form_from_dense(tg_backend *be, const form_call *call,
                                 const form_target<O, P> &to) {
    dense_source<S, P> src = dense_source<S, P>();
    src.entries = static_cast<const number<S, P> *>(call->source->dense);
    src.whole = is_whole(src.entries);
    src.begin = call->begin * call->unit;
    src.end = src.begin + call->count * call->unit;
    const auto kernel = call->kept ? form_dense<S, O, P, true> : form_dense<S, O, P, false>;
    return launch_alone(be, "reading a gradient", kernel, walk_blocks(src.begin, src.end),
                        WALK_THREADS, 0, src, to);
}

/* More steps per warp spread its setup, which costs about as much as one step; but all
 * multiprocessors, on which two blocks fit, should finish together. */
static void choose_steps(const tg_backend *be, int64_t others, int64_t frequencies, int *steps,
                         unsigned *blocks_k) {
    const int64_t at_once = 2 * (int64_t)cuda_state_of(be)->processors;
    int64_t least = INT64_MAX;
    for (int s = 1; s <= MAX_STEPS; s++) {
        const int64_t blocks = (frequencies + 32 * s - 1) / (32 * s);
        const int64_t cost = (blocks * others + at_once - 1) / at_once * (s + 1);
        if (cost <= least) {
            least = cost;
            *steps = s;
            *blocks_k = (unsigned)blocks;
        }
    }
}

template <class S, class O, int P>
static tg_status form_from_factors(tg_backend *be, const form_call *call,
                                   const form_target<O, P> &to) {
    factored<S, P> src = factored<S, P>();
    src.x = static_cast<const number<S, P> *>(call->source->x);
    src.dy = static_cast<const number<S, P> *>(call->source->dy);
    src.whole = is_whole(src.x) && is_whole(src.dy);
    src.batch = call->source->batch;
    src.dim0 = call->modes->dim[0];
    src.dim1 = call->modes->dim[1];
    src.frequencies = call->unit / src.dim1;
    src.begin = call->begin;
    src.count = call->count;
    const cuda_view &view = to.view;
    const bool inside = view.cols <= src.frequencies; /* rows of the chunk: within one channel? */
    if constexpr (std::is_same_v<S, float> && std::is_same_v<O, float> && P == 2) {
        if (to.chunk && !call->kept && inside && view.part == 1 && view.step == P &&
            view.ld == P * view.cols && (uintptr_t)to.chunk % sizeof(float2) == 0 &&
            cuda_form_array_fits(call->source, call->modes, call->count)) {
            const cuda_array_call array = {call->source,  call->modes, call->begin,
                                           call->count,   to.gain,     call->guard,
                                           call->chained, call->apart, to.chunk};
            return cuda_form_array(be, &array);
        }
    }
    src.columns = inside ? 0 : src.frequencies;
    src.step_o = inside ? src.frequencies / view.cols * view.ld : 0;
    src.step_i = call->unit / view.cols * view.ld;
    src.tiles_o = src.count > TILE ? TILES / 2 : TILES;
    const int64_t across = TILE * src.tiles_o, down = TILE * (TILES / src.tiles_o);
    src.blocks_o = (unsigned)((src.dim1 + across - 1) / across);
    const int64_t blocks_i = (src.count + down - 1) / down;
    choose_steps(be, blocks_i * src.blocks_o, src.frequencies, &src.steps, &src.blocks_k);
    const unsigned blocks = (unsigned)(blocks_i * src.blocks_k * src.blocks_o);
    const bool plain = is_plain(to, call->kept) && inside;
    auto kernel =
        plain ? form_factored<S, O, P, false, true> : form_factored<S, O, P, false, false>;
    if (call->kept) {
        kernel = plain ? form_factored<S, O, P, true, true> : form_factored<S, O, P, true, false>;
    }
    return launch_alone(be, "forming a gradient", kernel, blocks, FORM_THREADS, 0, src, to);
}

template <class S, class O, int P>
static tg_status form(tg_backend *be, const form_call *call, const form_target<O, P> &to) {
    return call->source->dense ? form_from_dense<S>(be, call, to)
                               : form_from_factors<S>(be, call, to);
}

/* ---- chunks ---- */

template <class R, int P>
static tg_status form_chunk(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                            int64_t begin, int64_t count, bool gathers, void *chunk) {
    const bool masks = op->masked && op->bitmap && chunk;
    const form_call call = {&op->modes,       &op->source, begin,         count,      plan->unit,
                            gathers || masks, op->guard,   plan->chained, plan->apart};
    form_target<R, P> to = form_target<R, P>();
    to.kept = kept_set_of(op->bitmap);
    to.masked = masks;
    to.values = gathers ? static_cast<number<R, P> *>(op->values) : NULL;
    to.whole = is_whole(to.values);
    to.scale = (R)op->scale;
    to.beta = (R)op->beta;
    to.chunk = static_cast<R *>(chunk);
    to.gain = R(1);
    to.view = plan->view;
    if constexpr (std::is_same<R, float>::value) {
        return with_storage(op->source.store, [&](auto tag) {
            return form<typename decltype(tag)::type>(be, &call, to);
        });
    } else {
        return form<R>(be, &call, to);
    }
}

tg_status cuda_form_chunk(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                          int64_t begin, int64_t count, bool gathers, void *chunk) {
    return with_wide(plan->real, [&](auto tag) {
        using R = typename decltype(tag)::type;
        return with_parts(plan->parts, [&](auto parts) {
            return form_chunk<R, decltype(parts)::value>(be, op, plan, begin, count, gathers,
                                                         chunk);
        });
    });
}

/* ---- the dense form of a factored gradient ---- */

template <class S, class O, int P>
static tg_status grad_dense(tg_backend *be, const form_call *call, double scale, void *out) {
    const int64_t cols = call->modes->ndim > 1 ? call->unit / call->modes->dim[1] : 1;
    form_target<O, P> to = form_target<O, P>();
    to.chunk = static_cast<O *>(out);
    to.gain = (real_of<O>)scale;
    to.view = {cols, P * cols, 1, P};
    return form<S>(be, call, to);
}

tg_status cuda_grad_dense(tg_backend *be, const tg_multimode *modes, const tg_grad_source *source,
                          double scale, void *out) {
    TG_CALL(tg_check_source(be->ctx, "grad_dense", modes->dtype, source));
    int64_t unit = 1;
    for (int d = 1; d < modes->ndim; d++) {
        unit *= modes->dim[d];
    }
    if (unit * modes->dim[0] == 0) {
        return TG_OK;
    }
    const form_call call = {modes, source, 0, modes->dim[0], unit, false, NULL, false, false};
    return with_parts(tg_dtype_is_complex(modes->dtype) ? 2 : 1, [&](auto parts) {
        constexpr int P = decltype(parts)::value;
        if (source->store != TG_STORE_FULL) {
            return with_storage(source->store, [&](auto tag) {
                return grad_dense<typename decltype(tag)::type, float, P>(be, &call, scale, out);
            });
        }
        return with_real(modes->dtype, [&](auto tag) {
            using T = typename decltype(tag)::type;
            return grad_dense<T, T, P>(be, &call, scale, out);
        });
    });
}
