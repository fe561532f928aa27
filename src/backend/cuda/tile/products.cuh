/* Products of tiles on tensor cores: p += W x, p += W^T x and p += x y^T, for weights W in shared
 * memory or in registers and tiles x, y of activations in shared memory (mma.cuh).
 *
 * One loop multiplies (add_fragments); only the readers that load fragments of the left and right
 * factors differ. tf32: columns of weights are swapped in groups of 8 (swap_of), products over
 * channels take k0 = 2 t, k1 = 2 t + 1 (instructions.cuh), those over pixels k0 = t, k1 = t + 4.
 * 16-bit: rows are an odd multiple of 16 bytes apart, and fragments are loaded by ldmatrix. */
#ifndef TG_BACKEND_CUDA_TILE_PRODUCTS_CUH
#define TG_BACKEND_CUDA_TILE_PRODUCTS_CUH

#include "backend/cuda/tile/mma.cuh"

/* ---- weights ---- */

/* {w0, w1} = the sum of the words' 16-bit numbers. */
template <class F>
__device__ inline void split_weights(float w0, float w1, uint32_t (&word)[F::TERMS]) {
    word[0] = to_word<F>(w0, w1);
    if constexpr (F::TERMS == 2) {
        const float2 first = of_word<F>(word[0]);
        word[1] = to_word<F>(w0 - first.x, w1 - first.y);
    }
}

/* alpha w (rows, columns), its rows `ld` apart, and 0 beyond it. */
struct weight_matrix {
    float alpha;
    const float *w;
    int rows, columns, ld;

    __device__ float at(int r, int c) const {
        return alpha * (r < rows && c < columns ? w[(int64_t)r * ld + c] : 0.0f);
    }
};

/* tf32 only. */
__device__ inline int swap_of(int row) {
    const int r = row % 8;
    return (r + r / 4) % 4;
}

/* (ROWS, COLUMNS) in shared memory, term after term. */
template <class F, int ROWS, int COLUMNS> struct shared_weights {
    /* tf32: swapping works on groups of 32 columns */
    static constexpr int LD = F::HALF ? COLUMNS + 8 : COLUMNS < 32 ? 32 : COLUMNS;
    static constexpr int TERM = ROWS * LD, SIZE = F::TERMS * TERM; /* numbers */
    template <int WARPS> static constexpr size_t bytes = SIZE * sizeof(typename F::number);
    typename F::number *w;

    template <int WARPS> __device__ void load(shared_room &room, const weight_matrix &from) {
        w = room.take<typename F::number>(SIZE);
        fill<32 * WARPS>(from);
    }
    template <int THREADS> __device__ void fill(const weight_matrix &from) const {
        for (int e = threadIdx.x; e < ROWS * COLUMNS / 2; e += THREADS) {
            const int r = e / (COLUMNS / 2), c = e % (COLUMNS / 2) * 2;
            const float pair[2] = {from.at(r, c), from.at(r, c + 1)};
            if constexpr (F::HALF) {
                uint32_t word[F::TERMS];
                split_weights<F>(pair[0], pair[1], word);
#pragma unroll
                for (int term = 0; term < F::TERMS; term++) {
                    *reinterpret_cast<uint32_t *>(w + term * TERM + r * LD + c) = word[term];
                }
            } else {
                put_piece<F>(w + r * LD + (c ^ (8 * swap_of(r))), pair);
            }
        }
    }
};

/* 16-bit, (M, K) with 16 rows for each warp of P: first terms in registers, second terms in the
 * warp's own shared memory, a lane's words adjacent. */
template <class P, int K> struct held_weights {
    using F = typename P::F;
    static constexpr int REST = (F::TERMS - 1) * K / 16 * 32 * 4; /* words of a warp */
    template <int WARPS> static constexpr size_t bytes = WARPS *REST * sizeof(uint32_t);
    static_assert(F::HALF && P::MT == 1, "16 rows");
    uint32_t first[K / 16][4];
    uint32_t *rest; /* of the lane */

    template <int WARPS> __device__ void load(shared_room &room, const weight_matrix &from) {
        rest = room.take<uint32_t>(WARPS * REST) + (int)threadIdx.x / 32 * REST +
               (int)threadIdx.x % 32 * 4;
#pragma unroll
        for (int k = 0; k < K / 16; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = P::row(0, i % 2), c = 16 * k + i / 2 * 8 + (int)threadIdx.x % 4 * 2;
                uint32_t word[F::TERMS];
                split_weights<F>(from.at(r, c), from.at(r, c + 1), word);
                first[k][i] = word[0];
                if constexpr (F::TERMS == 2) {
                    rest[k * 128 + i] = word[1];
                }
            }
        }
    }
    __device__ void read(uint32_t (&a)[4], int, int k, int term) const {
        if (term == 0) {
            for (int i = 0; i < 4; i++) {
                a[i] = first[k][i];
            }
        } else {
            const uint4 v = *reinterpret_cast<const uint4 *>(rest + k * 128);
            a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
        }
    }
};

/* ---- readers of fragments ---- */

/* The row and matrix (of four) that a lane addresses for load_matrices. */
struct matrix_row {
    int low, high, row; /* i % 2 and i / 2 of matrix i, times 8; row with it 0 .. 7 */
};

__device__ inline matrix_row matrix_row_of_lane() {
    const int lane = threadIdx.x % 32;
    return {lane / 8 % 2 * 8, lane / 16 * 8, lane % 8};
}

__device__ inline void set_fragment(uint32_t (&a)[4], float x, float y, float z, float w) {
    a[0] = __float_as_uint(x), a[1] = __float_as_uint(y);
    a[2] = __float_as_uint(z), a[3] = __float_as_uint(w);
}

/* Left factor W (M, K): fragment m of the warp, step k. */
template <class P, class W> struct weight_rows {
    const typename P::F::number *from;
    int swap;

    __device__ explicit weight_rows(const W &w) {
        if constexpr (P::F::HALF) {
            const matrix_row at = matrix_row_of_lane();
            from = w.w + (P::first_row() + at.low + at.row) * W::LD + at.high;
        } else {
            const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
            from = w.w + (P::first_row() + g) * W::LD + 2 * t;
            swap = swap_of(g);
        }
    }
    __device__ void read(uint32_t (&a)[4], int m, int k, int term) const {
        if constexpr (P::F::HALF) {
            load_matrices(a, from + term * W::TERM + 16 * m * W::LD + 16 * k);
        } else {
            const float *at = from + 16 * m * W::LD + 8 * (k ^ swap);
            const float2 upper = *reinterpret_cast<const float2 *>(at);
            const float2 lower = *reinterpret_cast<const float2 *>(at + 8 * W::LD);
            set_fragment(a, upper.x, lower.x, upper.y, lower.y);
        }
    }
};

/* Left factor W^T, W (K, M). */
template <class P, class W> struct weight_columns {
    const typename P::F::number *from;
    int swap0, swap1, group;

    __device__ explicit weight_columns(const W &w) {
        if constexpr (P::F::HALF) {
            const matrix_row at = matrix_row_of_lane();
            from = w.w + (at.high + at.row) * W::LD + P::first_row() + at.low;
        } else {
            const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
            from = w.w + 2 * t * W::LD + g;
            swap0 = swap_of(2 * t), swap1 = swap_of(2 * t + 1);
            group = P::first_row() / 8;
        }
    }
    __device__ void read(uint32_t (&a)[4], int m, int k, int term) const {
        if constexpr (P::F::HALF) {
            load_transposed_matrices(a, from + term * W::TERM + 16 * k * W::LD + 16 * m);
        } else {
            const float *row0 = from + 8 * k * W::LD, *row1 = row0 + W::LD;
            const int upper = group + 2 * m, lower = upper + 1;
            set_fragment(a, row0[8 * (upper ^ swap0)], row0[8 * (lower ^ swap0)],
                         row1[8 * (upper ^ swap1)], row1[8 * (lower ^ swap1)]);
        }
    }
};

/* Left factor x (M, TILE): a sum over pixels. */
template <class P> struct tile_rows {
    const typename P::F::number *from;

    __device__ explicit tile_rows(const typename P::F::number *x) {
        if constexpr (P::F::HALF) {
            const matrix_row at = matrix_row_of_lane();
            from = x + (P::first_row() + at.low + at.row) * P::F::LD + at.high;
        } else {
            const int lane = threadIdx.x % 32;
            from = x + (P::first_row() + lane / 4) * P::F::LD + lane % 4;
        }
    }
    __device__ void read(uint32_t (&a)[4], int m, int k, int) const {
        const auto *at = from + 16 * m * P::F::LD + P::F::STEP * k;
        if constexpr (P::F::HALF) {
            load_matrices(a, at);
        } else {
            set_fragment(a, at[0], at[8 * P::F::LD], at[4], at[8 * P::F::LD + 4]);
        }
    }
};

/* Right factor x (K, TILE): all fragments of the warp, step k. */
template <class P> struct tile_columns {
    const typename P::F::number *from;

    __device__ explicit tile_columns(const typename P::F::number *x) {
        if constexpr (P::F::HALF) {
            const matrix_row at = matrix_row_of_lane();
            from = x + (at.low + at.row) * P::F::LD + P::first_column() + at.high;
        } else {
            const int lane = threadIdx.x % 32;
            from = x + lane % 4 * 2 * P::F::LD + P::first_column() + P::INTERLEAVE * (lane / 4);
        }
    }
    __device__ void read(uint32_t (&b)[P::NT][2], int k) const {
        const auto *at = from + P::F::STEP * k * P::F::LD;
        if constexpr (P::F::HALF) {
#pragma unroll
            for (int n = 0; n < P::NT; n += 2) {
                uint32_t m[4];
                load_transposed_matrices(m, at + 8 * n);
                b[n][0] = m[0], b[n][1] = m[1], b[n + 1][0] = m[2], b[n + 1][1] = m[3];
            }
        } else {
#pragma unroll
            for (int i = 0; i < 2 * P::RUNS; i++) {
                const int r = i / 2, row = i % 2;
                if constexpr (P::INTERLEAVE == 2) {
                    const float2 v =
                        *reinterpret_cast<const float2 *>(at + row * P::F::LD + 16 * r);
                    b[2 * r][row] = __float_as_uint(v.x);
                    b[2 * r + 1][row] = __float_as_uint(v.y);
                } else {
                    b[r][row] = __float_as_uint(at[row * P::F::LD + 8 * r]);
                }
            }
        }
    }
};

/* Right factor y^T, y (N, TILE): a sum over pixels. */
template <class P> struct transposed_tile {
    const typename P::F::number *from;

    __device__ explicit transposed_tile(const typename P::F::number *y) {
        if constexpr (P::F::HALF) {
            const matrix_row at = matrix_row_of_lane();
            from = y + (P::first_column() + at.high + at.row) * P::F::LD + at.low;
        } else {
            const int lane = threadIdx.x % 32;
            from = y + (P::first_column() + lane / 4) * P::F::LD + lane % 4;
        }
    }
    __device__ void read(uint32_t (&b)[P::NT][2], int k) const {
        const auto *at = from + P::F::STEP * k;
        if constexpr (P::F::HALF) {
#pragma unroll
            for (int n = 0; n < P::NT; n += 2) {
                uint32_t m[4];
                load_matrices(m, at + 8 * n * P::F::LD);
                b[n][0] = m[0], b[n][1] = m[1], b[n + 1][0] = m[2], b[n + 1][1] = m[3];
            }
        } else {
#pragma unroll
            for (int n = 0; n < P::NT; n++) {
                b[n][0] = __float_as_uint(at[8 * n * P::F::LD]);
                b[n][1] = __float_as_uint(at[8 * n * P::F::LD + 4]);
            }
        }
    }
};

/* ---- products ---- */

/* p += left right over STEPS steps, UNROLL of them at a time; TERMS of the left factor. */
template <int STEPS, int UNROLL, int TERMS, class P, class L, class R>
__device__ inline void add_fragments(P &p, const L &left, const R &right) {
#pragma unroll UNROLL
    for (int k = 0; k < STEPS; k++) {
        uint32_t b[P::NT][2];
        right.read(b, k);
#pragma unroll
        for (int i = 0; i < P::MT * TERMS; i++) {
            uint32_t a[4];
            left.read(a, i / TERMS, k, i % TERMS);
#pragma unroll
            for (int n = 0; n < P::NT; n++) {
                mma<typename P::F>(p.acc[i / TERMS][n], a, b[n]);
            }
        }
    }
}

template <int K, class P, class L>
__device__ inline void add_over_channels(P &p, const L &left, const typename P::F::number *x) {
    using F = typename P::F;
    constexpr int STEPS = K / F::STEP;
    add_fragments<STEPS, F::HALF ? STEPS : 4, F::TERMS>(p, left, tile_columns<P>(x));
}

/* p += W x, W (M, K), x (K, TILE). */
template <class P, class F, int M, int K>
__device__ inline void add_product(P &p, const shared_weights<F, M, K> &w,
                                   const typename F::number *x) {
    add_over_channels<K>(p, weight_rows<P, shared_weights<F, M, K>>(w), x);
}
template <class P, int K>
__device__ inline void add_product(P &p, const held_weights<P, K> &w,
                                   const typename P::F::number *x) {
    add_over_channels<K>(p, w, x);
}

/* p += W^T x, W (K, M), x (K, TILE). */
template <class P, class F, int K, int M>
__device__ inline void add_adjoint_product(P &p, const shared_weights<F, K, M> &w,
                                           const typename F::number *x) {
    add_over_channels<K>(p, weight_columns<P, shared_weights<F, K, M>>(w), x);
}

/* p += x y^T, x (M, TILE), y (N, TILE): the sum over the pixels of a tile. Tensor cores truncate
 * their sums, which matters after thousands of pixels. Sums of split numbers therefore cover one
 * tile and are rounded when they are added to p. */
template <class P>
__device__ inline void add_correlation(P &p, const typename P::F::number *x,
                                       const typename P::F::number *y) {
    using F = typename P::F;
    constexpr int STEPS = TILE / F::STEP;
    const tile_rows<P> left(x);
    const transposed_tile<P> right(y);
    if constexpr (!F::SPLIT) {
        add_fragments<STEPS, F::HALF ? STEPS : 2, 1>(p, left, right);
    } else {
#pragma unroll
        for (int m = 0; m < P::MT; m++) {
            float sum[P::NT][4] = {};
#pragma unroll 2
            for (int k = 0; k < STEPS; k++) {
                uint32_t a[4], b[P::NT][2];
                left.read(a, m, k, 0);
                right.read(b, k);
#pragma unroll
                for (int n = 0; n < P::NT; n++) {
                    mma<F>(sum[n], a, b[n]);
                }
            }
#pragma unroll
            for (int i = 0; i < P::NT * 4; i++) {
                p.acc[m][i / 4][i % 4] += sum[i / 4][i % 4];
            }
        }
    }
}

#endif
