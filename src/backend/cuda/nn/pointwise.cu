/* Elementwise and copying operations of neural operators: boxes (padding, spectra of other sizes),
 * coordinate channels, planes and pairs, activations. Each is one pass over memory. */
#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/activate.cuh"

enum { THREADS = 256 };

/* ---- boxes ---- */

/* Three dimensions, leading ones if there are fewer; a pair is two elements of the last. */
struct box_sizes {
    int64_t howmany;
    int64_t size[3], src_dim[3], src_at[3], dst_dim[3], dst_at[3];
    bool clear;
};

/* A thread row (32 threads along the last dimension) iterates over rows: of dst if the rest of it
 * is cleared, otherwise only of the box. E: any type of the element's size. */
template <class E>
static __global__ void __launch_bounds__(THREADS) copy_box(box_sizes s, const E *src, E *dst) {
    int64_t walk[3], offset[3]; /* extent, and where the box begins in it */
    for (int d = 0; d < 3; d++) {
        walk[d] = s.clear ? s.dst_dim[d] : s.size[d];
        offset[d] = s.clear ? s.dst_at[d] : 0;
    }
    const int64_t rows = s.howmany * walk[0] * walk[1];
    for (int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; row < rows;
         row += (int64_t)gridDim.x * blockDim.y) {
        const int64_t i1 = row % walk[1] - offset[1], i0 = row / walk[1] % walk[0] - offset[0];
        const int64_t h = row / walk[1] / walk[0];
        const bool inside = i0 >= 0 && i0 < s.size[0] && i1 >= 0 && i1 < s.size[1];
        const E *from = src +
                        ((h * s.src_dim[0] + s.src_at[0] + i0) * s.src_dim[1] + s.src_at[1] + i1) *
                            s.src_dim[2] +
                        s.src_at[2];
        E *to = dst +
                ((h * s.dst_dim[0] + s.dst_at[0] + i0) * s.dst_dim[1] + s.dst_at[1] + i1) *
                    s.dst_dim[2] +
                s.dst_at[2];
        for (int64_t i = (int64_t)blockIdx.y * 32 + threadIdx.x; i < walk[2];
             i += (int64_t)gridDim.y * 32) {
            const int64_t i2 = i - offset[2];
            const bool kept = inside && i2 >= 0 && i2 < s.size[2];
            to[i2] = kept ? from[i2] : E(0);
        }
    }
}

static box_sizes box_sizes_of(const tg_box *op) {
    box_sizes s = {op->howmany, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {0, 0, 0}, op->clear};
    const int64_t parts = tg_dtype_is_complex(op->dtype) ? 2 : 1;
    for (int d = 0; d < op->ndim; d++) {
        const int to = 3 - op->ndim + d;
        const int64_t unit = to == 2 ? parts : 1;
        s.size[to] = op->size[d] * unit;
        s.src_dim[to] = op->src_dim[d] * unit;
        s.src_at[to] = op->src_at[d] * unit;
        s.dst_dim[to] = op->dst_dim[d] * unit;
        s.dst_at[to] = op->dst_at[d] * unit;
    }
    return s;
}

template <class E> static tg_status launch_box(tg_backend *be, const tg_box *op) {
    const box_sizes s = box_sizes_of(op);
    const int64_t *walk = s.clear ? s.dst_dim : s.size;
    const int64_t rows = s.howmany * walk[0] * walk[1], across = (walk[2] + 127) / 128;
    if (rows <= 0 || walk[2] <= 0) {
        return TG_OK;
    }
    const dim3 grid(cuda_blocks(be, rows, 8), (unsigned)(across < 1024 ? across : 1024));
    return launch_alone(be, "copying a box", copy_box<E>, grid, dim3(32, THREADS / 32), 0, s,
                        static_cast<const E *>(op->src), static_cast<E *>(op->dst));
}

tg_status cuda_box_copy(tg_backend *be, const tg_box *op) {
    TG_CALL(tg_check_float(be->ctx, "box_copy", op->dtype));
    switch (tg_dtype_size(tg_dtype_real(op->dtype))) {
    case 8:
        return launch_box<uint64_t>(be, op);
    case 4:
        return launch_box<uint32_t>(be, op);
    default:
        return launch_box<uint16_t>(be, op);
    }
}

/* ---- coordinates ---- */

struct embed_sizes {
    int64_t batch, channels, points; /* of y: with the coordinates */
    int64_t data;                    /* channels of x */
    int64_t grid[3], inner[3];       /* points per step along dimension j */
    int64_t first[3], whole[3];      /* its first row, and rows of the whole grid */
    double unit;
};

/* x NULL: coordinates only. */
template <class T>
static __global__ void __launch_bounds__(THREADS) embed(embed_sizes s, const T *x, T *y) {
    const int64_t all = s.batch * s.channels * s.points;
    pdl_wait_and_launch_dependents();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t row = i / s.points, p = i - row * s.points;
        const int64_t b = row / s.channels, c = row - b * s.channels;
        if (c >= s.data) {
            const int j = (int)(c - s.data);
            const int64_t at = p / s.inner[j] % s.grid[j];
            y[i] = narrow<T>((T)(s.unit * (double)(s.first[j] + at) / (double)s.whole[j]));
        } else if (x) {
            y[i] = x[(b * s.data + c) * s.points + p];
        }
    }
}

tg_status cuda_grid_embed(tg_backend *be, const tg_embed *op) {
    TG_CALL(tg_check_real(be->ctx, "grid_embed", op->dtype));
    embed_sizes s = {op->batch,
                     op->channels + op->ndim,
                     1,
                     op->channels,
                     {1, 1, 1},
                     {1, 1, 1},
                     {op->first, 0, 0},
                     {op->whole, op->grid[1], op->grid[2]},
                     op->unit};
    for (int j = op->ndim - 1; j >= 0; j--) {
        s.grid[j] = op->grid[j];
        s.inner[j] = s.points;
        s.points *= op->grid[j];
    }
    const int64_t all = s.batch * s.channels * s.points;
    if (all == 0) {
        return TG_OK;
    }
    return with_wide(op->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        return launch_pdl(be, "adding coordinates", embed<T>, cuda_blocks(be, all, THREADS),
                          THREADS, 0, s, static_cast<const T *>(op->x), static_cast<T *>(op->y));
    });
}

/* ---- planes and activations ---- */

/* Below, numbers are processed in runs of four: calls f(at, left) for each run of n numbers. */
template <class F> static __device__ inline void each_run(int64_t n, F f) {
    for (int64_t i = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x); i < n;
         i += 4 * (int64_t)gridDim.x * THREADS) {
        f(i, n - i);
    }
}

static unsigned run_blocks(const tg_backend *be, int64_t n) {
    return cuda_blocks(be, (n + 3) / 4, THREADS);
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    join_planes(int64_t n, const T *re, const T *im, T *pairs) {
    using R = real_of<T>;
    each_run(n, [&](int64_t at, int64_t left) {
        const run<R> a = load_run(re + at, left), b = load_run(im + at, left);
        store_run(pairs + 2 * at, 2 * left, run<R>{{a.v[0], b.v[0], a.v[1], b.v[1]}});
        store_run(pairs + 2 * at + 4, 2 * left - 4, run<R>{{a.v[2], b.v[2], a.v[3], b.v[3]}});
    });
}

template <class T>
static __global__ void __launch_bounds__(THREADS)
    split_planes(int64_t n, const T *pairs, T *re, T *im) {
    using R = real_of<T>;
    each_run(n, [&](int64_t at, int64_t left) {
        const run<R> a = load_run(pairs + 2 * at, 2 * left);
        const run<R> b = load_run(pairs + 2 * at + 4, 2 * left - 4);
        store_run(re + at, left, run<R>{{a.v[0], a.v[2], b.v[0], b.v[2]}});
        store_run(im + at, left, run<R>{{a.v[1], a.v[3], b.v[1], b.v[3]}});
    });
}

tg_status cuda_planes(tg_backend *be, const tg_planes *op) {
    tg_status status = tg_check_real_float(be->ctx, "planes", op->dtype);
    const int64_t n = op->n;
    if (status != TG_OK || n == 0) {
        return status;
    }
    return with_real(op->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const T *from[] = {static_cast<const T *>(op->from[0]),
                           static_cast<const T *>(op->from[1])};
        T *to[] = {static_cast<T *>(op->to[0]), static_cast<T *>(op->to[1])};
        const unsigned blocks = run_blocks(be, n);
        return from[1] ? launch_alone(be, "joining planes", join_planes<T>, blocks, THREADS, 0, n,
                                      from[0], from[1], to[0])
                       : launch_alone(be, "splitting planes", split_planes<T>, blocks, THREADS, 0,
                                      n, from[0], to[0], to[1]);
    });
}

/* y may be x. */
template <class T>
static __global__ void __launch_bounds__(THREADS) act(tg_act kind, int64_t n, const T *x, T *y) {
    each_run(n, [&](int64_t at, int64_t left) {
        run<real_of<T>> r = load_run(x + at, left);
        for (int j = 0; j < 4; j++) {
            activate_any_with_slope(kind, r.v[j], &r.v[j]);
        }
        store_run(y + at, left, r);
    });
}

/* dx may be x or dy. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    act_back(tg_act kind, int64_t n, const T *x, const T *dy, T *dx) {
    each_run(n, [&](int64_t at, int64_t left) {
        const run<real_of<T>> r = load_run(x + at, left);
        run<real_of<T>> d = load_run(dy + at, left);
        for (int j = 0; j < 4; j++) {
            real_of<T> value;
            d.v[j] *= activate_any_with_slope(kind, r.v[j], &value);
        }
        store_run(dx + at, left, d);
    });
}

tg_status cuda_activate(tg_backend *be, const tg_activation *op) {
    tg_status status = tg_check_real_float(be->ctx, "activate", op->dtype);
    if (status != TG_OK || op->n == 0) {
        return status;
    }
    return with_real(op->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const T *x = static_cast<const T *>(op->x), *dy = static_cast<const T *>(op->dy);
        T *y = static_cast<T *>(op->y);
        const unsigned blocks = run_blocks(be, op->n);
        const char *what = "applying an activation";
        return dy ? launch_alone(be, what, act_back<T>, blocks, THREADS, 0, op->act, op->n, x, dy,
                                 y)
                  : launch_alone(be, what, act<T>, blocks, THREADS, 0, op->act, op->n, x, y);
    });
}
