/* CUDA kernels for graph kernels (gno.cu): edges of a chunk, kernel inputs, and sums over the edges
 * of queries and points. */
#ifndef TG_BACKEND_CUDA_NN_GNO_KERNELS_CUH
#define TG_BACKEND_CUDA_NN_GNO_KERNELS_CUH

#include "backend/cuda/nn/gemm_columns.cuh"
#include "backend/cuda/nn/neighbours.cuh"
#include "backend/gno_math.h"

enum { EDGE_THREADS = 256, EDGE_WARPS = EDGE_THREADS / 32 };

/* ---- kernel arguments ---- */

struct gno_facts {
    cell_lists lists;
    tg_gno_config config;
    bool is_mean;      /* without weights */
    bool times_values; /* multiply the kernel by f */
    tg_act act;        /* of f */
    int64_t samples;   /* that share a chunk */
    int64_t in, out;   /* channels */
};

/* As tg_gno_scale. */
template <class R> __device__ static inline R scale_of(const gno_facts &g, int64_t query) {
    const int64_t near = g.lists.first[query + 1] - g.lists.first[query];
    return g.is_mean && near > 0 ? R(1.0 / (double)near) : R(1);
}

/* A chunk of edges. */
template <class R> struct edges {
    int64_t first; /* of all edges */
    int count;
    int32_t *query, *place; /* (count); places are those of the cell lists */
    R *weight;              /* (count) */
};

/* ---- edges ---- */

/* The query of edge number `edge`: the last one that begins at or before it. */
__device__ static inline int64_t query_of(const cell_lists &s, int64_t edge) {
    int64_t low = 0, high = s.queries;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (s.first[middle] <= edge) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* A warp lists the edges of a query that are in the chunk. */
template <class R>
static __global__ void __launch_bounds__(EDGE_THREADS) list_edges(gno_facts g, edges<R> e) {
    __shared__ int64_t from;
    if (threadIdx.x == 0) {
        from = query_of(g.lists, e.first);
    }
    __syncthreads();
    const int64_t *first = g.lists.first;
    for (int64_t i = from + (int64_t)blockIdx.x * EDGE_WARPS + threadIdx.x / 32;
         i < g.lists.queries && first[i] < e.first + e.count;
         i += (int64_t)gridDim.x * EDGE_WARPS) {
        if (first[i + 1] == first[i]) {
            continue;
        }
        const int64_t begin = first[i] - e.first;
        each_neighbour(g.lists, i, [&](int64_t k, int64_t place, double distance2) {
            if (begin + k >= 0 && begin + k < e.count) {
                e.query[begin + k] = (int32_t)i;
                e.place[begin + k] = (int32_t)place;
                e.weight[begin + k] = R(tg_gno_weight_at(&g.config, distance2));
            }
        });
    }
}

__device__ static inline void sine_and_cosine(double angle, float *sine, float *cosine) {
    const double turns = angle * 0.15915494309189533577; /* whole turns are removed in f64 */
    sincospif((float)(2.0 * (turns - rint(turns))), sine, cosine);
}
__device__ static inline void sine_and_cosine(double angle, double *sine, double *cosine) {
    sincos(angle, sine, cosine);
}

/* e(y), then e(x) of all edges: blockIdx.y is a coordinate of one of the two, or one frequency of
 * it, which fills two rows. */
template <class R>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    embed_edges(gno_facts g, edges<R> e, R *input) {
    __shared__ double w;
    const bool is_plain = g.config.pos_embedding_type == TG_GNO_EMBED_NONE;
    const int of_axis = is_plain ? 1 : (int)g.config.pos_embedding_channels,
              part = blockIdx.y % (g.lists.dim * of_axis);
    const bool of_query = (int)blockIdx.y >= g.lists.dim * of_axis;
    const int d = part / of_axis;
    if (threadIdx.x == 0 && !is_plain) {
        w = tg_gno_frequency(&g.config, part % of_axis);
    }
    __syncthreads();
    R *row = input + (int64_t)blockIdx.y * (is_plain ? 1 : 2) * e.count;
    for (int j = blockIdx.x * COLUMN_THREADS + threadIdx.x; j < e.count;
         j += gridDim.x * COLUMN_THREADS) {
        const double p = of_query ? g.lists.query[e.query[j]][d] : g.lists.at[e.place[j]][d];
        if (is_plain) {
            row[j] = R(p);
        } else {
            sine_and_cosine(w * p, &row[j], &row[e.count + j]);
        }
    }
}

/* act(f) of a sample's channel at the point of edge j. */
template <class T>
__device__ static inline real_of<T> value_at(const gno_facts &g, const int32_t *place, const T *f,
                                             int64_t row, int64_t j) {
    return activate(g.act, widen(f[row * g.lists.points + g.lists.number[place[j]]]));
}

/* The values at the points of all edges, (in, count). */
template <class T>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    gather_values(gno_facts g, edges<real_of<T>> e, const T *f, real_of<T> *to) {
    each_entry(
        g.in, e.count, [&](int64_t c, int j) { return value_at(g, e.place, f, c, j); },
        [&](int64_t c, int j, real_of<T> v) { to[c * e.count + j] = v; });
}

/* ---- sums over queries ---- */

/* y += the chunk's contribution: one query per thread, blockIdx.y is a channel of a sample. */
template <class T>
static __global__ void __launch_bounds__(EDGE_THREADS)
    reduce_edges(gno_facts g, edges<real_of<T>> e, const real_of<T> *kernel, const T *f,
                 real_of<T> *y) {
    using R = real_of<T>;
    const int64_t *first = g.lists.first;
    const int64_t last = e.query[e.count - 1];
    for (int64_t row = blockIdx.y; row < g.samples * g.out; row += gridDim.y) {
        const R *of_channel = kernel + row % g.out * e.count;
        for (int64_t i = e.query[0] + (int64_t)blockIdx.x * EDGE_THREADS + threadIdx.x; i <= last;
             i += (int64_t)gridDim.x * EDGE_THREADS) {
            const int64_t begin = first[i] - e.first, end = first[i + 1] - e.first;
            R sum = R(0);
            for (int64_t j = begin < 0 ? 0 : begin; j < end && j < e.count; j++) {
                const R term = e.weight[j] * of_channel[j];
                sum += g.times_values ? term * value_at(g, e.place, f, row, j) : term;
            }
            if (begin < end) {
                y[row * g.lists.queries + i] += scale_of<R>(g, i) * sum;
            }
        }
    }
}

/* ---- backward ---- */

/* dy of edge j in a channel of a sample, with the factors of the sum. */
template <class R>
__device__ static inline R gradient_at(const gno_facts &g, const edges<R> &e, const R *dy,
                                       int64_t row, int64_t j) {
    const int64_t i = e.query[j];
    return e.weight[j] * scale_of<R>(g, i) * dy[row * g.lists.queries + i];
}

/* The gradient at the output of the kernel, and its sums. */
template <class T>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    kernel_gradient(gno_facts g, edges<real_of<T>> e, const T *f, const real_of<T> *dy,
                    real_of<T> *dkernel, bool is_first, double *sums) {
    using R = real_of<T>;
    sum_entries(
        g.out, e.count, is_first, sums,
        [&](int64_t c, int j) {
            R sum = R(0);
            for (int64_t b = 0; b < g.samples; b++) {
                const int64_t row = b * g.out + c;
                const R d = gradient_at(g, e, dy, row, j);
                sum += g.times_values ? d * value_at(g, e.place, f, row, j) : d;
            }
            return sum;
        },
        [&](int64_t c, int j, R v) { return dkernel[c * e.count + j] = v; });
}

static __global__ void __launch_bounds__(EDGE_THREADS) count_up(int count, int32_t *number) {
    for (int j = blockIdx.x * EDGE_THREADS + threadIdx.x; j < count;
         j += gridDim.x * EDGE_THREADS) {
        number[j] = j;
    }
}

/* The gradients at the values: dvalues += the sums over the edges of each point, which are
 * consecutive; the thread of the first one sums them. dinput NULL: the kernel reads no values. */
template <class R>
static __global__ void __launch_bounds__(EDGE_THREADS)
    reduce_points(gno_facts g, edges<R> e, const int32_t *sorted_place, const int32_t *sorted,
                  const R *kernel, const R *dinput, const R *dy, R *dvalues) {
    for (int64_t row = blockIdx.y; row < g.samples * g.in; row += gridDim.y) {
        const int64_t c = row % g.in;
        for (int k = blockIdx.x * EDGE_THREADS + threadIdx.x; k < e.count;
             k += gridDim.x * EDGE_THREADS) {
            const int32_t place = sorted_place[k];
            if (k > 0 && sorted_place[k - 1] == place) {
                continue;
            }
            R sum = R(0);
            for (int i = k; i < e.count && sorted_place[i] == place; i++) {
                const int64_t j = sorted[i];
                sum += dinput ? dinput[c * e.count + j] : R(0);
                sum +=
                    g.times_values ? kernel[c * e.count + j] * gradient_at(g, e, dy, row, j) : R(0);
            }
            dvalues[row * g.lists.points + g.lists.number[place]] += sum;
        }
    }
}

/* df = dvalues act'(f). */
template <class T>
static __global__ void __launch_bounds__(EDGE_THREADS)
    write_df(int64_t count, tg_act act, const real_of<T> *dvalues, const T *f, T *df) {
    for (int64_t i = (int64_t)blockIdx.x * EDGE_THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * EDGE_THREADS) {
        df[i] = narrow<T>(dvalues[i] * act_slope(act, widen(f[i])));
    }
}

#endif
