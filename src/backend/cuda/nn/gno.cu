/* Graph kernels (backend/gno.h) in chunks of edges, as products of matrices: an edge is a pair of a
 * query and a nearby point; edges are ordered by query. The kernel's input, hidden layers and
 * output are matrices (channels, edges) of one chunk; backward recomputes them.
 *
 * One thread sums over the edges of a query, in order, chunk by chunk. Backward, one thread sums
 * over the edges of a point, after a stable sort of the chunk's edges by point. The result does not
 * depend on scheduling. */
#include <cub/cub.cuh>

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

/* ---- the workspace ---- */

template <class R> struct gno_work {
    tg_gno_sizes sizes;
    int64_t samples; /* per run of the kernel: all, or one if it reads their values */
    int64_t most;    /* edges per chunk */
    edges<R> chunk;
    R *input;                        /* (width[0], count) */
    R *layer[TG_GNO_MAX_LAYERS];     /* [l >= 1] (width[l], count), after GELU; then gradients */
    R *slope[TG_GNO_MAX_LAYERS];     /* likewise GELU'; backward */
    R *kernel, *dkernel;             /* (out_channels, count); the latter backward */
    R *dinput;                       /* (in_channels, count): of the values; backward */
    R *dvalues;                      /* (samples, in_channels, points): of act(f); backward */
    double *sums[TG_GNO_MAX_LAYERS]; /* (width[l + 1], SUM_PARTS): of biases; backward */
    int32_t *number;                 /* (most) 0, 1, ..; backward, as what follows */
    int32_t *sorted_place, *sorted;  /* (most) places in order, and the edges that have them */
    void *temporary;                 /* of the sort */
    size_t temporary_bytes;
};

static bool has_df(const tg_gno_sizes &s) {
    return s.reads_values || s.times_values;
}

/* Bytes per edge in the matrices of a chunk. */
static int64_t edge_bytes(const tg_gno_sizes &s, const tg_gno *op) {
    int64_t numbers = 1 + s.width[0] + (op->backward ? 2 : 1) * op->config->out_channels;
    for (int l = 1; l < s.layers; l++) {
        numbers += (op->backward ? 2 : 1) * s.width[l];
    }
    numbers += op->backward && s.reads_values ? op->config->in_channels : 0;
    return numbers * (int64_t)tg_dtype_size(op->dtype) +
           (op->backward ? 5 : 2) * (int64_t)sizeof(int32_t);
}

/* Number of edges per chunk: limited by a budget and by how many can exist. */
static int64_t chunk_of(const tg_gno_sizes &s, const tg_gno *op) {
    const int64_t budget = 64 << 20, fit = budget / edge_bytes(s, op) / 64 * 64;
    const double all = (double)op->points * (double)op->queries;
    const int64_t most = tg_max(tg_min(fit, 1 << 20), 64);
    return (double)most < all ? most : (int64_t)all < 1 ? 1 : (int64_t)all;
}

static cudaError_t sort_edges(void *temporary, size_t *bytes, const int32_t *place, int32_t *sorted,
                              const int32_t *number, int32_t *edge, int64_t count, int bits,
                              cudaStream_t stream) {
    return cub::DeviceRadixSort::SortPairs(temporary, *bytes, place, sorted, number, edge,
                                           (int)count, 0, bits, stream);
}

/* Lays out the workspace; returns its bytes. */
template <class R> static size_t lay_out(const tg_gno *op, gno_work<R> *w) {
    char *const base = static_cast<char *>(op->workspace); /* NULL: only its size is wanted */
    size_t used = 0;
    const auto take = [&](int64_t count, size_t size) {
        char *const at = base ? base + used : NULL;
        used += ((size_t)count * size + TG_ALIGNMENT - 1) / TG_ALIGNMENT * TG_ALIGNMENT;
        return static_cast<void *>(at);
    };
    const auto numbers = [&](int64_t count) { return static_cast<R *>(take(count, sizeof(R))); };
    const auto indices = [&](int64_t count) {
        return static_cast<int32_t *>(take(count, sizeof(int32_t)));
    };
    *w = {};
    w->sizes = tg_gno_sizes_of(op->config, op->has_values);
    const tg_gno_sizes &s = w->sizes;
    w->samples = s.reads_values ? 1 : op->batch;
    w->most = chunk_of(s, op);
    w->chunk.query = indices(w->most);
    w->chunk.place = indices(w->most);
    w->chunk.weight = numbers(w->most);
    w->input = numbers(w->most * s.width[0]);
    w->kernel = numbers(w->most * op->config->out_channels);
    for (int l = 1; l < s.layers; l++) {
        w->layer[l] = numbers(w->most * s.width[l]);
        w->slope[l] = op->backward ? numbers(w->most * s.width[l]) : NULL;
    }
    if (!op->backward) {
        return used;
    }
    for (int l = 0; l < s.layers; l++) {
        w->sums[l] = static_cast<double *>(take(s.width[l + 1] * SUM_PARTS, sizeof(double)));
    }
    w->dkernel = numbers(w->most * op->config->out_channels);
    if (has_df(s)) {
        w->dinput = s.reads_values ? numbers(w->most * op->config->in_channels) : NULL;
        w->dvalues = numbers(w->samples * op->config->in_channels * op->points);
        w->number = indices(w->most);
        w->sorted_place = indices(w->most);
        w->sorted = indices(w->most);
        sort_edges(NULL, &w->temporary_bytes, NULL, NULL, NULL, NULL, w->most,
                   bits_below(op->points), NULL);
        cudaGetLastError(); /* clear the error: if the sort fails, its call reports it */
        w->temporary = take((int64_t)w->temporary_bytes, 1);
    }
    return used;
}

/* ---- a chunk ---- */

static gno_facts facts_of(const tg_gno *op, const tg_gno_sizes &sizes, int64_t samples) {
    gno_facts g = {};
    g.lists = cell_lists_of(op->neighbours);
    g.config = *op->config;
    g.is_mean = op->config->reduction == TG_GNO_MEAN &&
                op->config->weighting_function == TG_GNO_WEIGHT_NONE;
    g.times_values = sizes.times_values;
    g.act = op->act;
    g.samples = samples;
    g.in = op->config->in_channels;
    g.out = op->config->out_channels;
    return g;
}

static dim3 row_grid(int64_t columns, int64_t rows) {
    const int64_t blocks = (columns + EDGE_THREADS - 1) / EDGE_THREADS;
    return dim3((unsigned)tg_min(blocks, 1024), (unsigned)tg_min(rows, 65535));
}

/* f of the current samples. */
template <class T> static const T *values_of(const tg_gno *op, int64_t sample) {
    const T *f = static_cast<const T *>(op->f);
    return f ? f + sample * op->config->in_channels * op->points : NULL;
}

template <class R> static const R *gradients_of(const tg_gno *op, int64_t sample) {
    return static_cast<const R *>(op->dy) + sample * op->config->out_channels * op->queries;
}

/* The chunk's edges and their kernel inputs. */
template <class R>
static tg_status gather_chunk(tg_backend *be, const tg_gno *op, const gno_facts &g,
                              const gno_work<R> &w, int64_t sample) {
    const tg_gno_sizes &s = w.sizes;
    const cudaStream_t stream = cuda_stream(be);
    const edges<R> &e = w.chunk;
    const int64_t rows = s.embedded / (g.config.pos_embedding_type == TG_GNO_EMBED_NONE ? 1 : 2);
    TG_CALL(launch_alone(be, "listing edges", list_edges<R>, cuda_blocks(be, e.count, EDGE_WARPS),
                         EDGE_THREADS, 0, g, e));
    TG_CALL(launch_alone(
        be, "embedding coordinates", embed_edges<R>,
        dim3((unsigned)((e.count + COLUMN_THREADS - 1) / COLUMN_THREADS), (unsigned)(2 * rows)),
        COLUMN_THREADS, 0, g, e, w.input));
    if (s.reads_values) {
        TG_CALL(with_storage_of<R>(op->f_store, [&](auto tag) {
            using T = typename decltype(tag)::type;
            return launch_alone(be, "gathering values", gather_values<T>,
                                column_grid(g.in, e.count), COLUMN_THREADS, 0, g, e,
                                values_of<T>(op, sample), w.input + 2 * s.embedded * e.count);
        }));
    }
    return TG_OK;
}

/* The kernels of a chunk; backward also their slopes. */
template <class R>
static tg_status evaluate(tg_backend *be, const tg_gno *op, const gno_facts &g,
                          const gno_work<R> &w, int64_t sample) {
    const tg_gno_sizes &s = w.sizes;
    const int count = w.chunk.count;
    column_tile tile = {};
    tile.count = count;
    TG_CALL(gather_chunk(be, op, g, w, sample));
    for (int l = 0; l < s.layers; l++) {
        const bool is_last = l + 1 == s.layers;
        R *const to = is_last ? w.kernel : w.layer[l + 1];
        TG_CALL(multiply(be, op->dtype, s.width[l + 1], count, s.width[l], 1.0, TG_OP_N,
                         op->weight[l], s.width[l], TG_OP_N, l == 0 ? w.input : w.layer[l], count,
                         0.0, to, count));
        TG_CALL(launch_alone(be, "a layer of a graph kernel", hidden_layer<R>,
                             column_grid(s.width[l + 1], count), COLUMN_THREADS, 0, tile,
                             s.width[l + 1], is_last ? TG_ACT_NONE : TG_ACT_GELU, dropout_of(),
                             static_cast<const R *>(op->bias[l]), to,
                             is_last ? NULL : w.slope[l + 1]));
    }
    return TG_OK;
}

/* Advances to the next chunk; false at the end. */
template <class R> static bool next_chunk(const tg_gno *op, gno_work<R> *w) {
    const int64_t left = op->neighbours->count - (w->chunk.first + w->chunk.count);
    w->chunk.first += w->chunk.count;
    w->chunk.count = (int)(left < w->most ? left : w->most);
    return left > 0;
}

/* ---- forward ---- */

template <class R> static tg_status forward(tg_backend *be, const tg_gno *op) {
    gno_work<R> w;
    lay_out<R>(op, &w);
    const int64_t outputs = op->config->out_channels * op->queries;
    TG_CALL(cuda_clear(be, op->y, (size_t)(op->batch * outputs) * sizeof(R),
                       "clearing the output of a graph kernel"));
    for (int64_t sample = 0; sample < op->batch; sample += w.samples) {
        const gno_facts g = facts_of(op, w.sizes, w.samples);
        w.chunk.first = 0;
        w.chunk.count = 0;
        while (next_chunk(op, &w)) {
            TG_CALL(evaluate(be, op, g, w, sample));
            TG_CALL(with_storage_of<R>(op->f_store, [&](auto tag) {
                using T = typename decltype(tag)::type;
                return launch_alone(be, "summing the edges of queries", reduce_edges<T>,
                                    row_grid(w.chunk.count, g.samples * g.out), EDGE_THREADS, 0, g,
                                    w.chunk, w.kernel, values_of<T>(op, sample),
                                    static_cast<R *>(op->y) + sample * outputs);
            }));
        }
    }
    return TG_OK;
}

/* ---- backward ---- */

/* The gradients of the layers, from the output down. */
template <class R>
static tg_status back_layers(tg_backend *be, const tg_gno *op, const gno_work<R> &w,
                             bool is_first) {
    const tg_gno_sizes &s = w.sizes;
    const int count = w.chunk.count;
    const R *dy = w.dkernel;
    column_tile tile = {};
    tile.count = count;
    for (int l = s.layers - 1; l >= 0; l--) {
        R *const below = l == 0 ? w.input : w.layer[l];
        TG_CALL(multiply(be, op->dtype, s.width[l + 1], s.width[l], count, 1.0, TG_OP_N, dy, count,
                         TG_OP_T, below, count, 1.0, op->dweight[l], s.width[l]));
        if (l == 0) {
            break;
        }
        TG_CALL(multiply(be, op->dtype, s.width[l], count, s.width[l + 1], 1.0, TG_OP_T,
                         op->weight[l], s.width[l], TG_OP_N, dy, count, 0.0, below, count));
        TG_CALL(launch_alone(be, "a layer of a graph kernel backwards", times_slope<R>,
                             sum_grid(s.width[l]), COLUMN_THREADS, 0, tile, s.width[l], w.slope[l],
                             below, is_first, w.sums[l - 1]));
        dy = below;
    }
    if (op->df && s.reads_values) {
        TG_CALL(multiply(be, op->dtype, op->config->in_channels, count, s.width[1], 1.0, TG_OP_T,
                         static_cast<const R *>(op->weight[0]) + 2 * s.embedded, s.width[0],
                         TG_OP_N, dy, count, 0.0, w.dinput, count));
    }
    return TG_OK;
}

template <class R>
static tg_status back_values(tg_backend *be, const tg_gno *op, const gno_facts &g,
                             const gno_work<R> &w, int64_t sample) {
    const edges<R> &e = w.chunk;
    const cudaStream_t stream = cuda_stream(be);
    size_t bytes = w.temporary_bytes;
    TG_CALL(launch_alone(be, "numbering edges", count_up, cuda_blocks(be, e.count, EDGE_THREADS),
                         EDGE_THREADS, 0, e.count, w.number));
    TG_CALL(CUDA_CHECK(be,
                       sort_edges(w.temporary, &bytes, e.place, w.sorted_place, w.number, w.sorted,
                                  e.count, bits_below(op->points), stream),
                       "sorting edges"));
    return launch_alone(be, "summing the edges of points", reduce_points<R>,
                        row_grid(e.count, g.samples * g.in), EDGE_THREADS, 0, g, e, w.sorted_place,
                        w.sorted, w.kernel, w.dinput, gradients_of<R>(op, sample), w.dvalues);
}

template <class R>
static tg_status back_chunk(tg_backend *be, const tg_gno *op, const gno_facts &g,
                            const gno_work<R> &w, int64_t sample, bool is_first) {
    TG_CALL(evaluate(be, op, g, w, sample));
    TG_CALL(with_storage_of<R>(op->f_store, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return launch_alone(be, "a graph kernel backwards", kernel_gradient<T>, sum_grid(g.out),
                            COLUMN_THREADS, 0, g, w.chunk, values_of<T>(op, sample),
                            gradients_of<R>(op, sample), w.dkernel, is_first,
                            w.sums[w.sizes.layers - 1]);
    }));
    TG_CALL(back_layers(be, op, w, is_first));
    return op->df && has_df(w.sizes) ? back_values(be, op, g, w, sample) : TG_OK;
}

/* df of some samples, after all their edges are added. */
template <class R>
static tg_status finish_df(tg_backend *be, const tg_gno *op, const gno_work<R> &w, int64_t sample) {
    const int64_t count = w.samples * op->config->in_channels * op->points;
    return with_storage_of<R>(op->f_store, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return launch_alone(
            be, "the gradient of values", write_df<T>, cuda_blocks(be, count, EDGE_THREADS),
            EDGE_THREADS, 0, count, op->act, w.dvalues, values_of<T>(op, sample),
            static_cast<T *>(op->df) + sample * op->config->in_channels * op->points);
    });
}

template <class R> static tg_status backward(tg_backend *be, const tg_gno *op) {
    gno_work<R> w;
    lay_out<R>(op, &w);
    const cudaStream_t stream = cuda_stream(be);
    const bool wants_df = op->df && has_df(w.sizes);
    const int64_t values = op->has_values ? op->config->in_channels * op->points : 0;
    bool is_first = true;
    if (op->df && !wants_df) { /* values that nothing reads */
        const size_t size = tg_dtype_size(tg_stored(op->dtype, op->f_store));
        TG_CALL(cuda_clear(be, op->df, (size_t)(op->batch * values) * size, "clearing gradients"));
    }
    for (int64_t sample = 0; sample < op->batch; sample += w.samples) {
        const gno_facts g = facts_of(op, w.sizes, w.samples);
        w.chunk.first = 0;
        w.chunk.count = 0;
        if (wants_df) {
            TG_CALL(cuda_clear(be, w.dvalues, (size_t)(w.samples * values) * sizeof(R),
                               "clearing gradients"));
        }
        while (next_chunk(op, &w)) {
            TG_CALL(back_chunk(be, op, g, w, sample, is_first));
            is_first = false;
        }
        TG_CALL(wants_df ? finish_df(be, op, w, sample) : TG_OK);
    }
    for (int l = 0; l < w.sizes.layers && !is_first; l++) {
        TG_CALL(add_sums<R>(be, w.sizes.width[l + 1], SUM_PARTS, w.sums[l], op->dbias[l]));
    }
    return TG_OK;
}

/* ---- the slots ---- */

size_t cuda_gno_workspace(const tg_gno *op) {
    tg_gno sizes = *op;
    sizes.workspace = NULL;
    gno_work<float> narrow;
    gno_work<double> wide;
    return op->dtype == TG_F64 ? lay_out(&sizes, &wide) : lay_out(&sizes, &narrow);
}

tg_status cuda_gno(tg_backend *be, const tg_gno *op) {
    const bool wide = op->dtype == TG_F64;
    TG_CALL(tg_check_real(be->ctx, op->backward ? "gno_backward" : "gno_forward", op->dtype));
    if (op->backward) {
        return wide ? backward<double>(be, op) : backward<float>(be, op);
    }
    return wide ? forward<double>(be, op) : forward<float>(be, op);
}
