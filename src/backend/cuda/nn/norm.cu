/* Norms over a channel of a sample or over a whole sample.
 *
 * Rows are the channels of samples. Blocks sum parts of a row in f64; the parts of a row and the
 * rows of a group are folded in order, and one more pass writes the result. Forward reads x twice;
 * backward reads x and dy twice. Sums are stored in the backend's scratch, so samples are processed
 * in portions whose sums fit. */
#include "backend/cuda/nn/nn.cuh"

enum { THREADS = 256, RUNS_PER_THREAD = 4, CHUNK = THREADS * RUNS_PER_THREAD * 4, MAX_PARTS = 64 };

/* `samples` of them from `first` on. */
struct norm_sizes {
    int64_t first, samples, channels, pixels;
    bool per_channel;
    int parts; /* of a row */
    double eps;
};

struct two_sums {
    double a, b;
};

/* In the scratch: sums of parts (rows, parts), of rows (rows), of groups (groups). */
struct norm_sums {
    two_sums *parts, *rows, *groups;
};

static __device__ inline int64_t rows_of(const norm_sizes &s) {
    return s.samples * s.channels;
}

/* Group, among those of all samples, of row r (counted from the portion's first). */
static __device__ inline int64_t group_of(const norm_sizes &s, int64_t r) {
    const int64_t row = s.first * s.channels + r;
    return s.per_channel ? row : row / s.channels;
}

/* The runs of part `part` of a row: f(at, left), `at` counted from the row's first number. */
template <class F> static __device__ inline void walk_part(const norm_sizes &s, int part, F f) {
    for (int64_t first = (int64_t)part * CHUNK; first < s.pixels;
         first += (int64_t)s.parts * CHUNK) {
#pragma unroll
        for (int r = 0; r < RUNS_PER_THREAD; r++) {
            const int64_t at = first + 4 * (r * THREADS + threadIdx.x);
            f(at, s.pixels - at);
        }
    }
}

static __device__ inline void store_sums(two_sums *to, double a, double b) {
    a = block_sum(a);
    b = block_sum(b);
    if (threadIdx.x == 0) {
        *to = {a, b};
    }
}

/* Adds `count` entries in order. */
static __device__ inline two_sums add_up(const two_sums *x, int64_t count) {
    two_sums sum = {0.0, 0.0};
    for (int64_t i = 0; i < count; i++) {
        sum.a += x[i].a;
        sum.b += x[i].b;
    }
    return sum;
}

/* parts -> rows */
static __global__ void __launch_bounds__(THREADS) fold_parts(norm_sizes s, norm_sums sums) {
    for (int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x; r < rows_of(s);
         r += (int64_t)gridDim.x * THREADS) {
        sums.rows[r] = add_up(sums.parts + r * s.parts, s.parts);
    }
}

/* ---- forward ---- */

/* The first number of a group: sums of differences from it do not cancel. */
template <class T>
static __device__ inline double origin_of(const norm_sizes &s, const T *x, int64_t group) {
    const int64_t size = (s.per_channel ? 1 : s.channels) * s.pixels;
    return (double)widen(x[group * size]);
}

/* sum of d and d^2, d = x - origin; block (row, part). */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    sum_rows(norm_sizes s, const T *x, norm_sums sums) {
    const int64_t r = blockIdx.x / s.parts, row = s.first * s.channels + r;
    const double origin = origin_of(s, x, group_of(s, r));
    const T *from = x + row * s.pixels;
    double sum = 0.0, squares = 0.0;
    walk_part(s, (int)(blockIdx.x % s.parts), [&](int64_t at, int64_t left) {
        const run<real_of<T>> v = load_run(from + at, left);
        for (int j = 0; j < 4; j++) {
            const double d = j < left ? (double)v.v[j] - origin : 0.0;
            sum += d;
            squares += d * d;
        }
    });
    store_sums(sums.parts + blockIdx.x, sum, squares);
}

/* rows -> stats of the groups of this portion */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    make_stats(norm_sizes s, const T *x, norm_sums sums, double *stats) {
    const int64_t per_group = s.per_channel ? 1 : s.channels, groups = rows_of(s) / per_group;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < groups;
         i += (int64_t)gridDim.x * THREADS) {
        const int64_t group = group_of(s, i * per_group);
        const two_sums sum = add_up(sums.rows + i * per_group, per_group);
        const double size = (double)(per_group * s.pixels), shift = sum.a / size;
        const double variance = fmax(sum.b / size - shift * shift, 0.0);
        stats[2 * group] = origin_of(s, x, group) + shift;
        stats[2 * group + 1] = 1.0 / sqrt(variance + s.eps);
    }
}

/* weight, bias: NULL for 1 and 0. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    normalise(norm_sizes s, const double *stats, const real_of<T> *weight, const real_of<T> *bias,
              const T *x, T *y) {
    using R = real_of<T>;
    const int64_t r = blockIdx.x / s.parts, row = s.first * s.channels + r;
    const int64_t c = r % s.channels, group = group_of(s, r);
    const double mean = stats[2 * group];
    const R factor = R(stats[2 * group + 1]) * (weight ? weight[c] : R(1));
    const R shift = bias ? bias[c] : R(0);
    walk_part(s, (int)(blockIdx.x % s.parts), [&](int64_t at, int64_t left) {
        run<R> v = load_run(x + row * s.pixels + at, left);
        for (int j = 0; j < 4; j++) {
            v.v[j] = R((double)v.v[j] - mean) * factor + shift;
        }
        store_run(y + row * s.pixels + at, left, v);
    });
}

/* ---- backward ---- */

/* sum of dy and dy n, n = the normalised x; block (row, part). */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    sum_gradients(norm_sizes s, const double *stats, const T *x, const T *dy, norm_sums sums) {
    const int64_t r = blockIdx.x / s.parts, row = s.first * s.channels + r;
    const int64_t group = group_of(s, r);
    const double mean = stats[2 * group], inverse = stats[2 * group + 1];
    double sum = 0.0, along = 0.0;
    walk_part(s, (int)(blockIdx.x % s.parts), [&](int64_t at, int64_t left) {
        const run<real_of<T>> v = load_run(x + row * s.pixels + at, left);
        const run<real_of<T>> d = load_run(dy + row * s.pixels + at, left);
        for (int j = 0; j < 4; j++) { /* d is 0 beyond the row */
            sum += (double)d.v[j];
            along += (double)d.v[j] * ((double)v.v[j] - mean);
        }
    });
    store_sums(sums.parts + blockIdx.x, sum, along * inverse);
}

/* rows -> groups: mean of dn and of dn n, dn = dy weight. */
template <class R>
static __global__ void __launch_bounds__(THREADS)
    fold_rows(norm_sizes s, const R *weight, norm_sums sums) {
    const int64_t per_group = s.per_channel ? 1 : s.channels, groups = rows_of(s) / per_group;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < groups;
         i += (int64_t)gridDim.x * THREADS) {
        two_sums sum = {0.0, 0.0};
        for (int64_t r = i * per_group; r < (i + 1) * per_group; r++) {
            const double w = weight ? (double)weight[r % s.channels] : 1.0;
            sum.a += w * sums.rows[r].a;
            sum.b += w * sums.rows[r].b;
        }
        const double size = (double)(per_group * s.pixels);
        sums.groups[i] = {sum.a / size, sum.b / size};
    }
}

/* rows -> the gradients of weight and bias, sample by sample; either may be NULL. */
template <class R>
static __global__ void __launch_bounds__(THREADS)
    add_weight_gradients(norm_sizes s, norm_sums sums, R *dweight, R *dbias) {
    for (int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x; c < s.channels;
         c += (int64_t)gridDim.x * THREADS) {
        two_sums sum = {0.0, 0.0};
        for (int64_t b = 0; b < s.samples; b++) {
            sum.a += sums.rows[b * s.channels + c].a;
            sum.b += sums.rows[b * s.channels + c].b;
        }
        if (dweight) {
            dweight[c] = R((double)dweight[c] + sum.b);
        }
        if (dbias) {
            dbias[c] = R((double)dbias[c] + sum.a);
        }
    }
}

/* dx = (dn - mean(dn) - n mean(dn n)) / sqrt(variance + eps); dx may be x or dy. */
template <class T>
static __global__ void __launch_bounds__(THREADS)
    write_dx(norm_sizes s, const double *stats, const real_of<T> *weight, norm_sums sums,
             const T *x, const T *dy, T *dx) {
    using R = real_of<T>;
    const int64_t r = blockIdx.x / s.parts, row = s.first * s.channels + r;
    const int64_t group = group_of(s, r);
    const two_sums means = sums.groups[s.per_channel ? r : r / s.channels];
    const double mean = stats[2 * group];
    const R inverse = R(stats[2 * group + 1]), w = weight ? weight[r % s.channels] : R(1);
    const R a = R(means.a), b = R(means.b);
    walk_part(s, (int)(blockIdx.x % s.parts), [&](int64_t at, int64_t left) {
        const run<R> v = load_run(x + row * s.pixels + at, left);
        run<R> d = load_run(dy + row * s.pixels + at, left);
        for (int j = 0; j < 4; j++) {
            const R n = R((double)v.v[j] - mean) * inverse;
            d.v[j] = (d.v[j] * w - a - n * b) * inverse;
        }
        store_run(dx + row * s.pixels + at, left, d);
    });
}

/* ---- the slots ---- */

/* Number of parts per row, then the number of samples whose sums fit the scratch. */
static tg_status plan(tg_backend *be, const char *slot, const tg_norm *op, norm_sizes *s,
                      int64_t *portion) {
    const int64_t chunks = (op->pixels + CHUNK - 1) / CHUNK;
    const int64_t rows = op->batch * op->channels;
    const int64_t wanted = (int64_t)cuda_state_of(be)->processors * 16 / (rows < 1 ? 1 : rows) + 1;
    const int64_t parts = tg_max(tg_min(tg_min(wanted, chunks), MAX_PARTS), 1);
    const int64_t bytes = op->channels * (parts + 2) * (int64_t)sizeof(two_sums);
    *s = {0, op->batch, op->channels, op->pixels, op->per_channel, (int)parts, op->eps};
    *portion = bytes > 0 ? CUDA_SCRATCH_BYTES / bytes : 1;
    return *portion > 0 ? TG_OK
                        : tg_fail(be->ctx, TG_E_SHAPE, "%s: %lld channels are too many", slot,
                                  (long long)op->channels);
}

static norm_sums sums_of(const tg_backend *be, const norm_sizes &s) {
    norm_sums sums;
    sums.parts = static_cast<two_sums *>(cuda_state_of(be)->scratch);
    sums.rows = sums.parts + s.samples * s.channels * s.parts;
    sums.groups = sums.rows + s.samples * s.channels;
    return sums;
}

/* Runs f(sizes of the portion, its sums) for all samples. */
template <class F>
static tg_status in_portions(tg_backend *be, const char *slot, const tg_norm *op, F f) {
    norm_sizes s = {};
    int64_t portion = 1;
    TG_CALL(tg_check_norm(be->ctx, op));
    if (op->batch == 0 || op->channels == 0 || op->pixels == 0) {
        return TG_OK;
    }
    TG_CALL(plan(be, slot, op, &s, &portion));
    for (; s.first < op->batch; s.first += portion) {
        s.samples = tg_min(op->batch - s.first, portion);
        TG_CALL(f(s, sums_of(be, s)));
    }
    return TG_OK;
}

template <class T>
static tg_status forward(tg_backend *be, const tg_norm *op, const norm_sizes &s, norm_sums sums) {
    using R = real_of<T>;
    const T *x = static_cast<const T *>(op->x);
    const int64_t rows = s.samples * s.channels;
    const unsigned blocks = (unsigned)(rows * s.parts), folds = cuda_blocks(be, rows, THREADS);
    const cudaStream_t stream = cuda_stream(be);
    if (op->part != TG_NORM_APPLY) {
        TG_CALL(launch_alone(be, "summing rows", sum_rows<T>, blocks, THREADS, 0, s, x, sums));
        TG_CALL(launch_alone(be, "summing rows", fold_parts, folds, THREADS, 0, s, sums));
        TG_CALL(launch_alone(be, "summing rows", make_stats<T>, folds, THREADS, 0, s, x, sums,
                             op->stats));
    }
    if (op->part == TG_NORM_MEASURE) {
        return TG_OK;
    }
    return launch_alone(be, "normalising", normalise<T>, blocks, THREADS, 0, s, op->stats,
                        static_cast<const R *>(op->weight), static_cast<const R *>(op->bias), x,
                        static_cast<T *>(op->y));
}

/* The means of the groups, and the gradients of weight and bias. */
template <class T>
static tg_status measure_gradients(tg_backend *be, const tg_norm *op, const norm_sizes &s,
                                   norm_sums sums) {
    using R = real_of<T>;
    const T *x = static_cast<const T *>(op->x), *dy = static_cast<const T *>(op->dy);
    const int64_t rows = s.samples * s.channels;
    const unsigned blocks = (unsigned)(rows * s.parts), folds = cuda_blocks(be, rows, THREADS);
    const cudaStream_t stream = cuda_stream(be);
    TG_CALL(launch_alone(be, "summing gradients", sum_gradients<T>, blocks, THREADS, 0, s,
                         op->stats, x, dy, sums));
    TG_CALL(launch_alone(be, "summing gradients", fold_parts, folds, THREADS, 0, s, sums));
    if (op->dweight || op->dbias) {
        TG_CALL(launch_alone(be, "summing gradients", add_weight_gradients<R>,
                             cuda_blocks(be, s.channels, THREADS), THREADS, 0, s, sums,
                             static_cast<R *>(op->dweight), static_cast<R *>(op->dbias)));
    }
    return launch_alone(be, "summing gradients", fold_rows<R>, folds, THREADS, 0, s,
                        static_cast<const R *>(op->weight), sums);
}

template <class T>
static tg_status backward(tg_backend *be, const tg_norm *op, const norm_sizes &s, norm_sums sums) {
    using R = real_of<T>;
    const T *x = static_cast<const T *>(op->x), *dy = static_cast<const T *>(op->dy);
    const R *weight = static_cast<const R *>(op->weight);
    const unsigned blocks = (unsigned)(s.samples * s.channels * s.parts);
    if (op->means) {
        sums.groups =
            reinterpret_cast<two_sums *>(op->means) + s.first * (s.per_channel ? s.channels : 1);
    }
    if (op->part != TG_NORM_APPLY) {
        TG_CALL(measure_gradients<T>(be, op, s, sums));
    }
    if (op->part == TG_NORM_MEASURE) {
        return TG_OK;
    }
    return launch_alone(be, "normalising backwards", write_dx<T>, blocks, THREADS, 0, s, op->stats,
                        weight, sums, x, dy, static_cast<T *>(op->dx));
}

tg_status cuda_norm(tg_backend *be, const tg_norm *op) {
    const char *slot = op->backward ? "norm_backward" : "norm_forward";
    return in_portions(be, slot, op, [&](const norm_sizes &s, norm_sums sums) {
        return with_stored(op->dtype, op->store, [&](auto tag) {
            using T = typename decltype(tag)::type;
            return op->backward ? backward<T>(be, op, s, sums) : forward<T>(be, op, s, sums);
        });
    });
}
