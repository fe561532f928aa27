/* Linear skips and perceptrons on activations stored as halves: products of halves on tensor cores
 * with sums in f32, tiles as in stage.cuh.
 *
 * In shared memory lie halves of the storage's type: activations of a tile (channels, TILE), what a
 * function makes of them rounded as if it were stored; and weights as a sum of terms, one of f16,
 * which keeps as many bits as TF32, or two of bfloat16. Rows are an odd multiple of 16 bytes apart,
 * so that no matrix that is loaded meets a bank conflict.
 *
 * Pixels are permuted within groups of 32: word t of fragment j (8 columns) is pair 4 t + j. So
 * what lane 4 g + t has of four fragments next to each other are eight pixels in a row, 16 bytes.
 */
#ifndef TG_BACKEND_CUDA_TILE_HALF_PRODUCTS_CUH
#define TG_BACKEND_CUDA_TILE_HALF_PRODUCTS_CUH

#include "backend/cuda/tile/mlp_stage.cuh"

enum {
    HALF_LD = TILE + 8, /* of a tile, in halves */
    HALF_TILE_WORDS = HALF_LD / 2
};

/* Halves between rows of weights with so many columns. */
__host__ __device__ constexpr int half_ld(int columns) {
    return columns + 8;
}

template <int STORE> constexpr int terms_of = STORE == TG_STORE_BF16 ? 2 : 1;

template <int STORE>
__device__ inline void mma_halves(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (STORE == TG_STORE_BF16) {
        mma_bf16(c, a, b0, b1);
    } else {
        mma_f16(c, a, b0, b1);
    }
}

template <int STORE> __device__ inline uint32_t to_word(float a, float b) {
    return halves_to_word((tg_storage)STORE, {a, b});
}

template <int STORE> __device__ inline float2 of_word(uint32_t word) {
    return halves_of((tg_storage)STORE, word);
}

/* ---- how warps share a product (M, N) ---- */

template <int M, int N, int WARPS, int DOWN> struct frame {
    static constexpr int ACROSS = WARPS / DOWN;
    static constexpr int MT = M / 16 / DOWN, NT = N / 8 / ACROSS; /* fragments of a warp */
    static_assert(MT * DOWN * 16 == M && NT * ACROSS * 8 == N && NT % 2 == 0, "whole matrices");
    float acc[MT][NT][4];

    __device__ void clear() {
        for (int m = 0; m < MT; m++) {
            for (int n = 0; n < NT; n++) {
                for (int i = 0; i < 4; i++) {
                    acc[m][n][i] = 0.0f;
                }
            }
        }
    }
    static __device__ int first_row() {
        return (int)threadIdx.x / 32 / ACROSS * (MT * 16);
    }
    static __device__ int first_column() {
        return (int)threadIdx.x / 32 % ACROSS * (NT * 8);
    }
    /* Row of acc[m][.][2 h]; column of acc[.][n][0], if N are not pixels. */
    static __device__ int row(int m, int h) {
        return first_row() + 16 * m + 8 * h + (int)threadIdx.x % 32 / 4;
    }
    static __device__ int column(int n) {
        return first_column() + 8 * n + (int)threadIdx.x % 4 * 2;
    }
    /* N being pixels: word of a tile's row where acc[.][n][0] and [1] belong. */
    static __device__ int word(int n) {
        return (first_column() + 8 * n) / 2 + (int)threadIdx.x % 4;
    }
    /* Runs of eight pixels: the first one of run r, and pixel e of it. */
    static constexpr int RUNS = NT / 4;
    static __device__ int pixel(int r) {
        return first_column() + 32 * r + (int)threadIdx.x % 4 * 8;
    }
    __device__ float &at(int m, int h, int r, int e) {
        return acc[m][4 * r + e / 2][2 * h + e % 2];
    }
    __device__ float at(int m, int h, int r, int e) const {
        return acc[m][4 * r + e / 2][2 * h + e % 2];
    }
};

/* ---- products; places in shared memory as load_matrices wants them ---- */

/* Which row of which of four matrices a lane names. */
struct matrix_row {
    int low, high, row; /* i % 2 and i / 2 of matrix i, times 8; row with it 0 .. 7 */
};

__device__ inline matrix_row matrix_row_of_lane() {
    const int lane = threadIdx.x % 32;
    return {lane / 8 % 2 * 8, lane / 16 * 8, lane % 8};
}

/* Right factors of a warp from 16 rows of a tile, `x` at the first of them. */
template <class P> __device__ inline void load_right(uint32_t (&b)[P::NT][2], const uint16_t *x) {
    const matrix_row at = matrix_row_of_lane();
    const uint16_t *from = x + (at.low + at.row) * HALF_LD + P::first_column() + at.high;
#pragma unroll
    for (int n = 0; n < P::NT / 2; n++) {
        uint32_t m[4];
        load_turned_matrices(m, from + 16 * n);
        b[2 * n][0] = m[0];
        b[2 * n][1] = m[1];
        b[2 * n + 1][0] = m[2];
        b[2 * n + 1][1] = m[3];
    }
}

/* p += W x, W (M, K) in shared memory, its terms `size` halves apart, x (K, TILE). */
template <int STORE, int K, class P>
__device__ inline void add_half_product(P &p, const uint16_t *w, int size, const uint16_t *x) {
    const matrix_row at = matrix_row_of_lane();
    const uint16_t *rows = w + (P::first_row() + at.low + at.row) * half_ld(K) + at.high;
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        uint32_t b[P::NT][2];
        load_right<P>(b, x + 16 * k * HALF_LD);
#pragma unroll
        for (int i = 0; i < P::MT * terms_of<STORE>; i++) {
            const int m = i / terms_of<STORE>, term = i % terms_of<STORE>;
            uint32_t a[4];
            load_matrices(a, rows + term * size + 16 * m * half_ld(K) + 16 * k);
#pragma unroll
            for (int n = 0; n < P::NT; n++) {
                mma_halves<STORE>(p.acc[m][n], a, b[n][0], b[n][1]);
            }
        }
    }
}

/* p += W^T x, W (K, M) likewise. */
template <int STORE, int K, int M, class P>
__device__ inline void add_half_adjoint(P &p, const uint16_t *w, int size, const uint16_t *x) {
    const matrix_row at = matrix_row_of_lane();
    const uint16_t *rows = w + (at.high + at.row) * half_ld(M) + P::first_row() + at.low;
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        uint32_t b[P::NT][2];
        load_right<P>(b, x + 16 * k * HALF_LD);
#pragma unroll
        for (int i = 0; i < P::MT * terms_of<STORE>; i++) {
            const int m = i / terms_of<STORE>, term = i % terms_of<STORE>;
            uint32_t a[4];
            load_turned_matrices(a, rows + term * size + 16 * k * half_ld(M) + 16 * m);
#pragma unroll
            for (int n = 0; n < P::NT; n++) {
                mma_halves<STORE>(p.acc[m][n], a, b[n][0], b[n][1]);
            }
        }
    }
}

/* p += x y^T, x (M, TILE), y (N, TILE): the sum over the pixels of a tile. */
template <int STORE, class P>
__device__ inline void add_half_correlation(P &p, const uint16_t *x, const uint16_t *y) {
    const matrix_row at = matrix_row_of_lane();
    const uint16_t *rows = x + (P::first_row() + at.low + at.row) * HALF_LD + at.high;
    const uint16_t *columns = y + (P::first_column() + at.high + at.row) * HALF_LD + at.low;
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        uint32_t b[P::NT / 2][4];
#pragma unroll
        for (int n = 0; n < P::NT / 2; n++) {
            load_matrices(b[n], columns + 16 * n * HALF_LD + 16 * k);
        }
#pragma unroll
        for (int m = 0; m < P::MT; m++) {
            uint32_t a[4];
            load_matrices(a, rows + 16 * m * HALF_LD + 16 * k);
#pragma unroll
            for (int n = 0; n < P::NT; n++) {
                mma_halves<STORE>(p.acc[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
            }
        }
    }
}

/* ---- weights ---- */

/* {w0, w1} = the sum of the words' halves. */
template <int STORE>
__device__ inline void split_weights(float w0, float w1, uint32_t (&word)[terms_of<STORE>]) {
    word[0] = to_word<STORE>(w0, w1);
    if constexpr (terms_of<STORE> == 2) {
        const float2 first = of_word<STORE>(word[0]);
        word[1] = to_word<STORE>(w0 - first.x, w1 - first.y);
    }
}

/* Entry (r, c) of a matrix whose rows are `columns` long, 0 beyond it. */
__device__ inline float weight_or_zero(const float *w, int rows, int columns, int ld, int r,
                                       int c) {
    return r < rows && c < columns ? w[(int64_t)r * ld + c] : 0.0f;
}

/* alpha w (rows, columns), its rows w_ld apart, as (ROWS, COLUMNS) to shared memory, term by term.
 */
template <int STORE, int ROWS, int COLUMNS, int THREADS>
__device__ inline void put_weights(uint16_t *to, float alpha, const float *w, int rows, int columns,
                                   int w_ld) {
    for (int e = threadIdx.x; e < ROWS * COLUMNS / 2; e += THREADS) {
        const int r = e / (COLUMNS / 2), c = e % (COLUMNS / 2) * 2;
        uint32_t word[terms_of<STORE>];
        split_weights<STORE>(alpha * weight_or_zero(w, rows, columns, w_ld, r, c),
                             alpha * weight_or_zero(w, rows, columns, w_ld, r, c + 1), word);
#pragma unroll
        for (int term = 0; term < terms_of<STORE>; term++) {
            *reinterpret_cast<uint32_t *>(to + (term * ROWS + r) * half_ld(COLUMNS) + c) =
                word[term];
        }
    }
}

/* The left factors of a warp with 16 rows (P::MT is 1): the first terms in registers, second ones
 * in shared memory of its own, a lane's words next to each other. */
template <int STORE, int K> struct held_weights {
    static constexpr int SHARED = (terms_of<STORE> - 1) * K / 16 * 32 * 4; /* words of a warp */
    uint32_t a[K / 16][4];
    uint32_t *rest; /* of the lane */

    /* alpha w (rows, columns), rows w_ld apart; `shared`: SHARED words for each warp. */
    template <class P>
    __device__ void load(float alpha, const float *w, int rows, int columns, int w_ld,
                         uint32_t *shared) {
        static_assert(P::MT == 1, "16 rows");
        rest = shared + (int)threadIdx.x / 32 * SHARED + (int)threadIdx.x % 32 * 4;
#pragma unroll
        for (int k = 0; k < K / 16; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = P::row(0, i % 2), c = 16 * k + i / 2 * 8 + (int)threadIdx.x % 4 * 2;
                uint32_t word[terms_of<STORE>];
                split_weights<STORE>(alpha * weight_or_zero(w, rows, columns, w_ld, r, c),
                                     alpha * weight_or_zero(w, rows, columns, w_ld, r, c + 1),
                                     word);
                a[k][i] = word[0];
                if constexpr (terms_of<STORE> == 2) {
                    rest[k * 128 + i] = word[1];
                }
            }
        }
    }
    /* p += W x */
    template <class P> __device__ void multiply(P &p, const uint16_t *x) const {
#pragma unroll
        for (int k = 0; k < K / 16; k++) {
            uint32_t b[P::NT][2];
            load_right<P>(b, x + 16 * k * HALF_LD);
#pragma unroll
            for (int n = 0; n < P::NT; n++) {
                mma_halves<STORE>(p.acc[0][n], a[k], b[n][0], b[n][1]);
            }
            if constexpr (terms_of<STORE> == 2) {
                const uint4 v = *reinterpret_cast<const uint4 *>(rest + k * 128);
                const uint32_t second[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int n = 0; n < P::NT; n++) {
                    mma_halves<STORE>(p.acc[0][n], second, b[n][0], b[n][1]);
                }
            }
        }
    }
};

#endif
