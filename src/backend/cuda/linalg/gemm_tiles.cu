/* Matrix products that cuBLAS does not support: conjugation without transposition, sums over a
 * batch, 16-bit formats, and arrays that are aligned to less than an element.
 *
 * A block computes a tile of C, a 4 x 4 piece per thread, for a part of the sum: where there are
 * few tiles, several blocks share one. Their partial sums are stored in cuBLAS's workspace and
 * added in the order of the parts, so that runs are bit-identical. */
#include "backend/cuda/core/element.cuh"

enum {
    PIECE = 4,           /* rows and columns of C in a thread */
    SIDE = 16,           /* threads along a side of a tile, at most */
    TILE = PIECE * SIDE, /* its rows and columns, at most */
    DEPTH = 16,          /* of a step of the sum, at most */
    MIN_STEPS = 4,       /* steps per block, at least */
    BLOCKS_A_PROCESSOR = 4,
    ADD_ENTRIES = 32, /* entries of C in a block that adds parts */
    ADD_PARTS = 16    /* parts added at a time */
};

/* Layout of a matrix after its op. */
struct operand {
    int64_t row, column; /* strides of rows and of columns */
    int64_t stride;      /* of the batch */
    bool conjugated;
    bool whole; /* aligned to elements */
};

struct product_sizes {
    int64_t m, n, k;
    int64_t matrices;     /* of C */
    int64_t summed;       /* of A and B for each of them */
    int depth;            /* of a step */
    int64_t steps;        /* for a pair of A and B */
    int64_t down, across; /* tiles */
    int64_t parts;        /* of the sum */
    operand a, b, c;
    bool reads_c;
};

template <class R> static __device__ inline R turn(R x, bool) {
    return x;
}
template <class R> static __device__ inline pair<R> turn(pair<R> x, bool conjugated) {
    return conjugated ? conj(x) : x;
}

template <class T> static __device__ inline void store(T *out, real_of<T> x) {
    *out = narrow<T>(x);
}
template <class T> static __device__ inline void store(pair<T> *out, pair<real_of<T>> x) {
    *out = narrow_pair<T>(x);
}

/* An element loaded in one access. */
template <class E> struct alignas(sizeof(E)) slot { E value; };

/* Element (i, j) of x, or 0 outside (rows, columns). */
template <class W, class E>
static __device__ inline W load_or_zero(const E *x, const operand &o, int64_t i, int64_t j,
                                        int64_t rows, int64_t columns) {
    if (i >= rows || j >= columns) {
        return W();
    }
    const E *at = x + i * o.row + j * o.column;
    return turn(widen(o.whole ? reinterpret_cast<const slot<E> *>(at)->value : *at), o.conjugated);
}

template <class W> using tile_of = slot<W>[DEPTH][TILE + 1];

/* Rows [i0, ..) and columns [j0, ..) of the factors of one step, depth first; consecutive threads
 * load along the contiguous direction. */
template <class E, class W>
static __device__ inline void load_step(const product_sizes &s, const E *a, const E *b, int64_t i0,
                                        int64_t j0, int64_t k0, tile_of<W> &tile_a,
                                        tile_of<W> &tile_b) {
    const int threads = (int)(blockDim.x * blockDim.y);
    const int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    const int rows = PIECE * (int)blockDim.y, columns = PIECE * (int)blockDim.x;
    for (int e = thread; e < rows * s.depth; e += threads) {
        const int p = s.a.column == 1 ? e % s.depth : e / rows;
        const int i = s.a.column == 1 ? e / s.depth : e % rows;
        tile_a[p][i].value = load_or_zero<W>(a, s.a, i0 + i, k0 + p, s.m, s.k);
    }
    for (int e = thread; e < columns * s.depth; e += threads) {
        const int p = s.b.column == 1 ? e / columns : e % s.depth;
        const int j = s.b.column == 1 ? e % columns : e / s.depth;
        tile_b[p][j].value = load_or_zero<W>(b, s.b, k0 + p, j0 + j, s.k, s.n);
    }
}

/* E: elements in memory, W: of the arithmetic. Thread (x, y) owns rows y, y + blockDim.y .. and
 * columns x, x + blockDim.x .. of a tile. */
template <class E, class W>
static __global__ void __launch_bounds__(SIDE *SIDE)
    multiply_tiles(product_sizes s, W alpha, W beta, const E *a, const E *b, E *c, W *sums) {
    __shared__ tile_of<W> tile_a, tile_b;
    const int x = threadIdx.x, y = threadIdx.y, across = blockDim.x, down = blockDim.y;
    const int64_t tasks = s.matrices * s.down * s.across * s.parts, steps = s.summed * s.steps;
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        const int64_t part = task % s.parts, tile = task / s.parts;
        const int64_t j0 = tile % s.across * PIECE * across;
        const int64_t i0 = tile / s.across % s.down * PIECE * down;
        const int64_t matrix = tile / s.across / s.down;
        W sum[PIECE][PIECE] = {};
        for (int64_t step = steps * part / s.parts; step < steps * (part + 1) / s.parts; step++) {
            const int64_t number = matrix * s.summed + step / s.steps;
            load_step<E, W>(s, a + number * s.a.stride, b + number * s.b.stride, i0, j0,
                            step % s.steps * s.depth, tile_a, tile_b);
            __syncthreads();
            for (int p = 0; p < s.depth; p++) {
                W left[PIECE], right[PIECE];
#pragma unroll
                for (int u = 0; u < PIECE; u++) {
                    left[u] = tile_a[p][y + down * u].value;
                    right[u] = tile_b[p][x + across * u].value;
                }
#pragma unroll
                for (int u = 0; u < PIECE; u++) {
#pragma unroll
                    for (int v = 0; v < PIECE; v++) {
                        add_product(sum[u][v], left[u], right[v]);
                    }
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int u = 0; u < PIECE; u++) {
#pragma unroll
            for (int v = 0; v < PIECE; v++) {
                const int64_t i = i0 + y + down * u, j = j0 + x + across * v;
                if (i >= s.m || j >= s.n) {
                    continue;
                }
                if (sums) {
                    sums[part * s.m * s.n + i * s.n + j] = sum[u][v];
                } else {
                    E *out = c + matrix * s.c.stride + i * s.c.row + j;
                    const W value = alpha * sum[u][v];
                    store(out, s.reads_c ? value + beta * widen(*out) : value);
                }
            }
        }
    }
}

/* C = alpha (the sum of the parts) + beta C. */
template <class E, class W>
static __global__ void __launch_bounds__(ADD_ENTRIES *ADD_PARTS)
    add_parts(product_sizes s, W alpha, W beta, const W *sums, E *c) {
    __shared__ slot<W> shared[ADD_PARTS][ADD_ENTRIES];
    const int64_t entry = (int64_t)blockIdx.x * ADD_ENTRIES + threadIdx.x, entries = s.m * s.n;
    W sum = W();
    for (int64_t part = threadIdx.y; entry < entries && part < s.parts; part += ADD_PARTS) {
        sum = sum + sums[part * entries + entry];
    }
    shared[threadIdx.y][threadIdx.x].value = sum;
    __syncthreads();
    if (threadIdx.y > 0 || entry >= entries) {
        return;
    }
    for (int part = 1; part < ADD_PARTS; part++) {
        sum = sum + shared[part][threadIdx.x].value;
    }
    E *out = c + entry / s.n * s.c.row + entry % s.n;
    const W value = alpha * sum;
    store(out, s.reads_c ? value + beta * widen(*out) : value);
}

/* ---- sizes ---- */

static operand operand_of(const tg_gemm *g, tg_op op, const void *x, int64_t ld, int64_t stride) {
    const bool turned = op == TG_OP_T || op == TG_OP_H;
    return {turned ? 1 : ld, turned ? ld : 1, stride, op == TG_OP_H || op == TG_OP_CONJ,
            (uintptr_t)x % tg_dtype_size(g->dtype) == 0};
}

static int threads_along(int64_t size) {
    return (int)tg_min((size + PIECE - 1) / PIECE, SIDE);
}

static int64_t pieces_of(int64_t size, int64_t piece) {
    return (size + piece - 1) / piece;
}

static product_sizes sizes_of(const tg_gemm *g, dim3 threads) {
    product_sizes s = product_sizes();
    s.m = g->m;
    s.n = g->n;
    s.k = g->k;
    s.matrices = g->stride_c == 0 ? 1 : g->batch;
    s.summed = g->batch / s.matrices;
    s.steps = pieces_of(g->k, DEPTH);
    s.depth = (int)(s.steps > 0 ? pieces_of(g->k, s.steps) : 1);
    s.down = pieces_of(g->m, PIECE * (int64_t)threads.y);
    s.across = pieces_of(g->n, PIECE * (int64_t)threads.x);
    s.parts = 1;
    s.a = operand_of(g, g->op_a, g->a, g->lda, g->stride_a);
    s.b = operand_of(g, g->op_b, g->b, g->ldb, g->stride_b);
    s.c = operand_of(g, TG_OP_N, g->c, g->ldc, g->stride_c);
    s.reads_c = g->beta.re != 0.0 || (tg_dtype_is_complex(g->dtype) && g->beta.im != 0.0);
    return s;
}

/* Number of parts of the sum of one C, more than 1 where its tiles alone do not fill the device;
 * `size`: bytes per number of the sums. */
static int64_t parts_of(const tg_backend *be, const product_sizes *s, size_t size) {
    const int64_t wanted = (int64_t)cuda_state_of(be)->processors * BLOCKS_A_PROCESSOR;
    const int64_t steps = s->summed * s->steps / MIN_STEPS;
    const int64_t room = (int64_t)(CUDA_BLAS_BYTES / size) / (s->m * s->n);
    const int64_t parts = tg_min(tg_min(wanted / (s->down * s->across), steps), room);
    return s->matrices > 1 || parts < 2 ? 1 : parts;
}

template <class E, class W>
static tg_status multiply(tg_backend *be, const tg_gemm *g, W alpha, W beta) {
    const dim3 threads((unsigned)threads_along(g->n), (unsigned)threads_along(g->m));
    product_sizes s = sizes_of(g, threads);
    s.parts = parts_of(be, &s, sizeof(W));
    const int64_t tasks = s.matrices * s.down * s.across * s.parts;
    const int64_t most = (int64_t)cuda_state_of(be)->processors * 32;
    W *sums = s.parts > 1 ? static_cast<W *>(cuda_state_of(be)->blas_workspace) : NULL;
    E *c = static_cast<E *>(g->c);
    TG_CALL(launch_alone(be, "multiplying matrices", multiply_tiles<E, W>,
                         (unsigned)tg_min(tasks, most), threads, 0, s, alpha, beta,
                         static_cast<const E *>(g->a), static_cast<const E *>(g->b), c, sums));
    return sums ? launch_alone(be, "multiplying matrices", add_parts<E, W>,
                               (unsigned)pieces_of(s.m * s.n, ADD_ENTRIES),
                               dim3(ADD_ENTRIES, ADD_PARTS), 0, s, alpha, beta, sums, c)
                : TG_OK;
}

tg_status cuda_gemm_tiles(tg_backend *be, const tg_gemm *g) {
    return with_real(g->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        using R = real_of<T>;
        if (tg_dtype_is_complex(g->dtype)) {
            return multiply<pair<T>, pair<R>>(be, g, {(R)g->alpha.re, (R)g->alpha.im},
                                              {(R)g->beta.re, (R)g->beta.im});
        }
        return multiply<T, R>(be, g, (R)g->alpha.re, (R)g->beta.re);
    });
}
