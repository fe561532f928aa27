/* Neighbours by cell lists on the GPU (backend/gno.h): a stable radix sort orders places by
 * cell and keeps the order within a cell; one warp searches for each query. The host reads back the
 * corners of the box, which define the cells, and the number of neighbours. */
#include <cub/cub.cuh>

#include "backend/cuda/nn/neighbours.cuh"
#include "backend/cuda/nn/nn.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, BOX_BLOCKS = 128 };

/* ---- memory ---- */

/* After the arrays: workspace to sort one set of places. */
struct sort_workspace {
    char *places;      /* (count, dim) as they came, if they came from the host */
    uint32_t *cell[2]; /* (count) before and after */
    int32_t *number;   /* (count) 0, 1, .. */
    void *temporary;   /* of the sort and the sum */
    size_t temporary_bytes;
};

/* There are no more cells than points. */
static cudaError_t sort_by_cell(void *temporary, size_t *bytes, const sort_workspace &room,
                                int bits, int64_t count, int32_t *order, cudaStream_t stream) {
    return cub::DeviceRadixSort::SortPairs(temporary, *bytes, room.cell[0], room.cell[1],
                                           room.number, order, (int)count, 0, bits, stream);
}

static cudaError_t add_up(void *temporary, size_t *bytes, int64_t count, int64_t *first,
                          cudaStream_t stream) {
    return cub::DeviceScan::InclusiveSum(temporary, *bytes, first, first, (int)count, stream);
}

/* Lays out the workspace; returns its bytes. base NULL: only computes them. */
static size_t lay_out(int64_t points, int64_t queries, char *base, sort_workspace *room) {
    const int64_t most = tg_max(points, queries);
    size_t used = 0;
    const auto take = [&](size_t bytes) {
        char *const at = base ? base + used : NULL;
        used += (bytes + TG_ALIGNMENT - 1) / TG_ALIGNMENT * TG_ALIGNMENT;
        return at;
    };
    room->places = take((size_t)most * 3 * sizeof(double));
    for (int side = 0; side < 2; side++) {
        room->cell[side] = reinterpret_cast<uint32_t *>(take((size_t)most * sizeof(uint32_t)));
    }
    room->number = reinterpret_cast<int32_t *>(take((size_t)most * sizeof(int32_t)));
    room->temporary_bytes = 0;
    for (int64_t count : {points, queries}) { /* a size query that fails is reported by the call */
        size_t bytes = 0;
        sort_by_cell(NULL, &bytes, *room, bits_below(points), count, NULL, NULL);
        room->temporary_bytes = tg_max_size(bytes, room->temporary_bytes);
    }
    size_t bytes = 0;
    add_up(NULL, &bytes, queries + 1, NULL, NULL);
    room->temporary_bytes = tg_max_size(bytes, room->temporary_bytes);
    cudaGetLastError();
    room->temporary = take(room->temporary_bytes);
    return used;
}

size_t cuda_neighbours_bytes(int64_t points, int64_t queries) {
    sort_workspace room;
    return tg_neighbours_bytes(points, queries) + lay_out(points, queries, NULL, &room);
}

/* ---- kernels ---- */

/* Corners of the box around a block's places, and the first coordinate that is not finite. */
struct box {
    double low[3], high[3];
    int64_t bad; /* its number, INT64_MAX: none */
};

__device__ static inline void join(box *a, const box &b) {
    for (int d = 0; d < 3; d++) {
        a->low[d] = fmin(a->low[d], b.low[d]);
        a->high[d] = fmax(a->high[d], b.high[d]);
    }
    a->bad = b.bad < a->bad ? b.bad : a->bad;
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    box_of(int64_t count, int dim, const T *places, box *out) {
    __shared__ box of_thread[THREADS];
    box own;
    for (int d = 0; d < 3; d++) {
        own.low[d] = CUDART_INF;
        own.high[d] = -CUDART_INF;
    }
    own.bad = INT64_MAX;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS) {
        for (int d = 0; d < dim; d++) {
            const double p = (double)places[i * dim + d];
            own.low[d] = fmin(own.low[d], p);
            own.high[d] = fmax(own.high[d], p);
            own.bad = !isfinite(p) && own.bad == INT64_MAX ? i * dim + d : own.bad;
        }
    }
    of_thread[threadIdx.x] = own;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            join(&of_thread[threadIdx.x], of_thread[threadIdx.x + half]);
        }
    }
    if (threadIdx.x == 0) {
        out[blockIdx.x] = of_thread[0];
    }
}

/* The cell of every place and its number; `wide`, unless NULL, gets the coordinates. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    cells_of(cell_lists s, int64_t count, const T *places, uint32_t *cell, int32_t *number,
             double (*wide)[3]) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * THREADS) {
        int64_t at = 0;
        for (int d = 0; d < 3; d++) {
            const double p = d < s.dim ? (double)places[i * s.dim + d] : 0.0;
            at = at * s.cells[d] + cell_along(s, d, p);
            if (wide) {
                wide[i][d] = p;
            }
        }
        cell[i] = (uint32_t)at;
        number[i] = (int32_t)i;
    }
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    gather_points(cell_lists s, const T *places, double (*at)[3]) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < s.points;
         i += (int64_t)gridDim.x * THREADS) {
        for (int d = 0; d < 3; d++) {
            at[i][d] = d < s.dim ? (double)places[(int64_t)s.number[i] * s.dim + d] : 0.0;
        }
    }
}

/* begin[c] = how many sorted cells are below c. */
static __global__ void __launch_bounds__(THREADS)
    begin_cells(int64_t cells, int64_t points, const uint32_t *sorted, int32_t *begin) {
    for (int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x; c <= cells;
         c += (int64_t)gridDim.x * THREADS) {
        int64_t low = 0, high = points;
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if ((int64_t)sorted[middle] < c) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        begin[c] = (int32_t)low;
    }
}

/* Calls f(i) for every query, one warp each, in the order of cells. */
template <class F> __device__ static inline void each_query(const cell_lists &s, F f) {
    for (int64_t k = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; k < s.queries;
         k += (int64_t)gridDim.x * WARPS) {
        f((int64_t)s.order[k]);
    }
}

static __global__ void __launch_bounds__(THREADS) count_near(cell_lists s, int64_t *first) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        first[0] = 0;
    }
    each_query(s, [&](int64_t i) {
        const int64_t count = each_neighbour(s, i, [](int64_t, int64_t, double) {});
        if (threadIdx.x % 32 == 0) {
            first[i + 1] = count;
        }
    });
}

static __global__ void __launch_bounds__(THREADS) list_near(cell_lists s, int64_t *index) {
    each_query(s, [&](int64_t i) {
        const int64_t first = s.first[i];
        each_neighbour(
            s, i, [&](int64_t k, int64_t place, double) { index[first + k] = s.number[place]; });
    });
}

/* ---- building ---- */

/* Device address of a tensor's places: its own data, or a copy in `room`. */
static tg_status bring(tg_backend *be, const tg_tensor *t, char *room, const void **out) {
    *out = t->place == TG_HOST ? room : t->data;
    return t->place == TG_HOST && tg_tensor_numel(t) > 0
               ? be->ops->upload(be, room, t->data, tg_tensor_bytes(t))
               : TG_OK;
}

/* Computes the box of places and queues its copy to pinned memory. */
static tg_status measure(tg_backend *be, int dim, int64_t count, tg_dtype dtype,
                         const void *places) {
    const cuda_state *cuda = cuda_state_of(be);
    box *const out = static_cast<box *>(cuda->scratch);
    return with_wide(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        TG_CALL(launch_alone(be, "measuring places", box_of<T>, BOX_BLOCKS, THREADS, 0, count, dim,
                             static_cast<const T *>(places), out));
        return CUDA_CHECK(be,
                          cudaMemcpyAsync(cuda->pinned, out, BOX_BLOCKS * sizeof *out,
                                          cudaMemcpyDeviceToHost, cuda->stream),
                          "copying from the GPU");
    });
}

/* Reads the box from pinned memory. */
static box measured(const tg_backend *be) {
    const box *parts = static_cast<const box *>(cuda_state_of(be)->pinned);
    box all = parts[0];
    for (int i = 1; i < BOX_BLOCKS; i++) {
        for (int d = 0; d < 3; d++) {
            all.low[d] = parts[i].low[d] < all.low[d] ? parts[i].low[d] : all.low[d];
            all.high[d] = parts[i].high[d] > all.high[d] ? parts[i].high[d] : all.high[d];
        }
        all.bad = parts[i].bad < all.bad ? parts[i].bad : all.bad;
    }
    return all;
}

static tg_status check_finite(tg_backend *be, const char *what, int dim, const box &all) {
    return all.bad == INT64_MAX ? TG_OK : tg_neighbours_not_finite(be->ctx, what, dim, all.bad);
}

/* Places sorted by cell into `order`; coordinates into `wide`, unless NULL. */
static tg_status sort_places(tg_backend *be, const cell_lists &s, int64_t count, tg_dtype dtype,
                             const void *places, sort_workspace *room, double (*wide)[3],
                             int32_t *order) {
    if (count == 0) {
        return TG_OK;
    }
    TG_CALL(with_wide(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return launch_alone(be, "finding the cells of places", cells_of<T>,
                            cuda_blocks(be, count, THREADS), THREADS, 0, s, count,
                            static_cast<const T *>(places), room->cell[0], room->number, wide);
    }));
    size_t bytes = room->temporary_bytes;
    return CUDA_CHECK(be,
                      sort_by_cell(room->temporary, &bytes, *room, bits_below(s.points), count,
                                   order, cuda_stream(be)),
                      "sorting places");
}

static tg_status build_points(tg_backend *be, tg_neighbours *s, const tg_tensor *points,
                              sort_workspace *room) {
    const void *places = NULL;
    TG_CALL(bring(be, points, room->places, &places));
    TG_CALL(measure(be, s->dim, s->points, points->dtype, places));
    TG_CALL(be->ops->synchronize(be));
    const box all = measured(be);
    TG_CALL(check_finite(be, "points", s->dim, all));
    tg_neighbours_cut(s, all.low, all.high);
    const cell_lists lists = cell_lists_of(s);
    const int64_t cells = s->cells[0] * s->cells[1] * s->cells[2];
    TG_CALL(sort_places(be, lists, s->points, points->dtype, places, room, NULL, s->number));
    TG_CALL(launch_alone(be, "beginning cells", begin_cells, cuda_blocks(be, cells + 1, THREADS),
                         THREADS, 0, cells, s->points, room->cell[1], s->begin));
    return with_wide(points->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return launch_alone(be, "sorting points", gather_points<T>,
                            cuda_blocks(be, s->points, THREADS), THREADS, 0, lists,
                            static_cast<const T *>(places), s->at);
    });
}

static unsigned query_blocks(const tg_backend *be, const tg_neighbours *s) {
    return cuda_blocks(be, s->queries, WARPS);
}

static tg_status build_queries(tg_backend *be, tg_neighbours *s, const tg_tensor *queries,
                               sort_workspace *room) {
    const cell_lists lists = cell_lists_of(s);
    const void *places = NULL;
    size_t bytes = room->temporary_bytes;
    TG_CALL(bring(be, queries, room->places, &places));
    TG_CALL(measure(be, s->dim, s->queries, queries->dtype, places));
    TG_CALL(sort_places(be, lists, s->queries, queries->dtype, places, room, s->query, s->order));
    TG_CALL(launch_alone(be, "counting neighbours", count_near, query_blocks(be, s), THREADS, 0,
                         lists, s->first));
    TG_CALL(CUDA_CHECK(be,
                       add_up(room->temporary, &bytes, s->queries + 1, s->first, cuda_stream(be)),
                       "counting neighbours"));
    TG_CALL(be->ops->download(be, &s->count, s->first + s->queries, sizeof s->count));
    return check_finite(be, "queries", s->dim, measured(be));
}

tg_status cuda_neighbours_build(tg_backend *be, tg_neighbours *s, double radius,
                                const tg_tensor *points, const tg_tensor *queries) {
    sort_workspace room;
    lay_out(s->points, s->queries,
            reinterpret_cast<char *>(s->at) + tg_neighbours_bytes(s->points, s->queries), &room);
    s->radius = radius;
    TG_CALL(build_points(be, s, points, &room));
    return build_queries(be, s, queries, &room);
}

tg_status cuda_neighbours_list(tg_backend *be, const tg_neighbours *s, int64_t *index) {
    if (s->count == 0) {
        return TG_OK;
    }
    return launch_alone(be, "listing neighbours", list_near, query_blocks(be, s), THREADS, 0,
                        cell_lists_of(s), index);
}
