/* Products of tiles on tensor cores: p += W x, p += W^T x and p += x y^T, for weights W and tiles
 * x, y of activations in shared memory (mma.cuh).
 *
 * One loop multiplies (add_fragments); what differs are the readers that bring fragments of the
 * left and of the right factor. Columns of weights are swapped in groups of 8 (swap_of), products
 * over channels take k0 = 2 t, k1 = 2 t + 1 (instructions.cuh), those over pixels k0 = t,
 * k1 = t + 4. */
#ifndef TG_BACKEND_CUDA_TILE_PRODUCTS_CUH
#define TG_BACKEND_CUDA_TILE_PRODUCTS_CUH

#include "backend/cuda/tile/mma.cuh"

/* ---- weights ---- */

/* alpha w (rows, columns), its rows `ld` apart, and 0 beyond it. */
struct weight_matrix {
    float alpha;
    const float *w;
    int rows, columns, ld;

    __device__ float at(int r, int c) const {
        return alpha * (r < rows && c < columns ? w[(int64_t)r * ld + c] : 0.0f);
    }
};

__device__ inline int swap_of(int row) {
    const int r = row % 8;
    return (r + r / 4) % 4;
}

/* (ROWS, COLUMNS) in shared memory. */
template <class F, int ROWS, int COLUMNS> struct shared_weights {
    static constexpr int PITCH = COLUMNS < 32 ? 32 : COLUMNS; /* as far as the swapping reaches */
    static constexpr size_t BYTES = ROWS * PITCH * sizeof(float);
    float *w;

    __device__ void load(shared_room &room, int threads, const weight_matrix &from) {
        w = room.take<float>(ROWS * PITCH);
        for (int e = threadIdx.x; e < ROWS * COLUMNS / 2; e += threads) {
            const int r = e / (COLUMNS / 2), c = e % (COLUMNS / 2) * 2;
            put_run<F>(w + r * PITCH + (c ^ (8 * swap_of(r))), {from.at(r, c), from.at(r, c + 1)});
        }
    }
};

/* ---- readers of fragments ---- */

__device__ inline void set_fragment(uint32_t (&a)[4], float x, float y, float z, float w) {
    a[0] = __float_as_uint(x), a[1] = __float_as_uint(y);
    a[2] = __float_as_uint(z), a[3] = __float_as_uint(w);
}

/* Left factor W (M, K): fragment m of the warp, step k. */
template <class P, class W> struct weight_rows {
    const float *from;
    int swap;

    __device__ explicit weight_rows(const W &w) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        from = w.w + (P::first_row() + g) * W::PITCH + 2 * t;
        swap = swap_of(g);
    }
    __device__ void read(uint32_t (&a)[4], int m, int k) const {
        const float *at = from + 16 * m * W::PITCH + 8 * (k ^ swap);
        const float2 upper = *reinterpret_cast<const float2 *>(at);
        const float2 lower = *reinterpret_cast<const float2 *>(at + 8 * W::PITCH);
        set_fragment(a, upper.x, lower.x, upper.y, lower.y);
    }
};

/* Left factor W^T, W (K, M). */
template <class P, class W> struct weight_columns {
    const float *from;
    int swap0, swap1, group;

    __device__ explicit weight_columns(const W &w) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        from = w.w + 2 * t * W::PITCH + g;
        swap0 = swap_of(2 * t), swap1 = swap_of(2 * t + 1);
        group = P::first_row() / 8;
    }
    __device__ void read(uint32_t (&a)[4], int m, int k) const {
        const float *row0 = from + 8 * k * W::PITCH, *row1 = row0 + W::PITCH;
        const int upper = group + 2 * m, lower = upper + 1;
        set_fragment(a, row0[8 * (upper ^ swap0)], row0[8 * (lower ^ swap0)],
                     row1[8 * (upper ^ swap1)], row1[8 * (lower ^ swap1)]);
    }
};

/* Left factor x (M, TILE): a sum over pixels. */
template <class P> struct tile_rows {
    const float *from;

    __device__ explicit tile_rows(const float *x) {
        const int lane = threadIdx.x % 32;
        from = x + (P::first_row() + lane / 4) * TILE_LD + lane % 4;
    }
    __device__ void read(uint32_t (&a)[4], int m, int k) const {
        const float *at = from + 16 * m * TILE_LD + K_STEP * k;
        set_fragment(a, at[0], at[8 * TILE_LD], at[4], at[8 * TILE_LD + 4]);
    }
};

/* Right factor x (K, TILE): all fragments of the warp, step k. */
template <class P> struct tile_columns {
    const float *from;

    __device__ explicit tile_columns(const float *x) {
        const int lane = threadIdx.x % 32;
        from = x + lane % 4 * 2 * TILE_LD + P::first_column() + P::INTERLEAVE * (lane / 4);
    }
    __device__ void read(uint32_t (&b)[P::NT][2], int k) const {
        const float *at = from + K_STEP * k * TILE_LD;
#pragma unroll
        for (int i = 0; i < 2 * P::RUNS; i++) {
            const int r = i / 2, row = i % 2;
            if constexpr (P::INTERLEAVE == 2) {
                const float2 v = *reinterpret_cast<const float2 *>(at + row * TILE_LD + 16 * r);
                b[2 * r][row] = __float_as_uint(v.x);
                b[2 * r + 1][row] = __float_as_uint(v.y);
            } else {
                b[r][row] = __float_as_uint(at[row * TILE_LD + 8 * r]);
            }
        }
    }
};

/* Right factor y^T, y (N, TILE): a sum over pixels. */
template <class P> struct turned_tile {
    const float *from;

    __device__ explicit turned_tile(const float *y) {
        const int lane = threadIdx.x % 32;
        from = y + (P::first_column() + lane / 4) * TILE_LD + lane % 4;
    }
    __device__ void read(uint32_t (&b)[P::NT][2], int k) const {
        const float *at = from + K_STEP * k;
#pragma unroll
        for (int n = 0; n < P::NT; n++) {
            b[n][0] = __float_as_uint(at[8 * n * TILE_LD]);
            b[n][1] = __float_as_uint(at[8 * n * TILE_LD + 4]);
        }
    }
};

/* ---- products ---- */

/* p += left right over STEPS steps, UNROLL of them at a time. */
template <int STEPS, int UNROLL, class P, class L, class R>
__device__ inline void add_fragments(P &p, const L &left, const R &right) {
#pragma unroll UNROLL
    for (int k = 0; k < STEPS; k++) {
        uint32_t b[P::NT][2];
        right.read(b, k);
#pragma unroll
        for (int m = 0; m < P::MT; m++) {
            uint32_t a[4];
            left.read(a, m, k);
#pragma unroll
            for (int n = 0; n < P::NT; n++) {
                mma<typename P::F>(p.acc[m][n], a, b[n]);
            }
        }
    }
}

/* p += W x, W (M, K), x (K, TILE). */
template <class P, class F, int M, int K>
__device__ inline void add_product(P &p, const shared_weights<F, M, K> &w, const float *x) {
    add_fragments<K / K_STEP, 4>(p, weight_rows<P, shared_weights<F, M, K>>(w), tile_columns<P>(x));
}

/* p += W^T x, W (K, M), x (K, TILE). */
template <class P, class F, int K, int M>
__device__ inline void add_adjoint_product(P &p, const shared_weights<F, K, M> &w, const float *x) {
    add_fragments<K / K_STEP, 4>(p, weight_columns<P, shared_weights<F, K, M>>(w),
                                 tile_columns<P>(x));
}

/* p += x y^T, x (M, TILE), y (N, TILE): the sum over the pixels of a tile. Tensor cores cut off
 * what they add up, which tells after thousands of pixels: sums of split numbers are of one tile,
 * and rounded when they are added to p. */
template <class P> __device__ inline void add_correlation(P &p, const float *x, const float *y) {
    using F = typename P::F;
    constexpr int STEPS = TILE / K_STEP;
    const tile_rows<P> left(x);
    const turned_tile<P> right(y);
    if constexpr (!F::SPLIT) {
        add_fragments<STEPS, 2>(p, left, right);
    } else {
#pragma unroll
        for (int m = 0; m < P::MT; m++) {
            float sum[P::NT][4] = {};
#pragma unroll 2
            for (int k = 0; k < STEPS; k++) {
                uint32_t a[4], b[P::NT][2];
                left.read(a, m, k);
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
