/* Losses and their gradients; the formulas are those of ref (backend/ref/nn_loss.c).
 *
 * Blocks sum parts of an image in f64. One kernel folds the parts, adds the loss to the value and
 * stores the factors of the gradients; another one writes the gradients. The rounding error of one
 * number of a gradient is carried to the next, because their sum (the gradient of a network's last
 * bias) is N^2 times smaller than they are. In a patch of 32 runs, lanes of a warp carry along
 * their runs, and the ends of the runs carry from lane to lane, so that only the remainder of a
 * patch is lost. Given norms (loss_squares.cu) replace the first sums. */
#include "backend/cuda/nn/nn.cuh"

enum {
    THREADS = LOSS_THREADS,
    RUN = 8, /* numbers of a run */
    PATCH = 32 * RUN,
    PATCH_WARPS = 4
};

struct loss_sizes {
    int64_t images, points, numbers; /* of one image: points * components */
    int components, ndim;
    int64_t grid[3], stride[3]; /* of points */
    int64_t size[3];            /* of the whole grid, of which this may be a slab .. */
    int64_t whole;              /* .. with this many points .. */
    int64_t edges;              /* .. and edges of this many numbers; 0: the whole */
    tg_loss_norm norm;
    bool relative;
    double p, beta;
    int parts; /* blocks per image that sum */
};

/* Written by the folding kernel for each image. */
struct image_result {
    double norm;   /* |e| */
    double factor; /* the result is this times the gradient of |e|; NaN if the loss is NaN */
};

/* ---- reading ---- */

/* EDGES: of a slab, whose edges have the numbers after those of the image. */
template <class T, bool EDGES> struct image {
    const T *pred, *target;
    const double *slope; /* of a given norm */
    int components;
    int64_t points;
    const T *pred_edges, *target_edges;
    /* e at a point. */
    __device__ double error(int64_t point, int c) const {
        return number(pred, pred_edges, point, c) - truth(point, c);
    }
    __device__ double truth(int64_t point, int c) const {
        return number(target, target_edges, point, c);
    }
    __device__ double number(const T *of, const T *edges, int64_t point, int c) const {
        const bool is_edge = EDGES && point >= points;
        return (double)(is_edge ? edges[(point - points) * components + c]
                                : of[point * components + c]);
    }
};

/* The fields of a launch, from its first image on. */
template <class T, bool EDGES> struct fields {
    const T *pred, *target, *pred_edges, *target_edges;
    const double *slope;
    __device__ image<T, EDGES> at(const loss_sizes &s, int64_t n) const {
        const int64_t edges = n * s.edges;
        return {pred + n * s.numbers,
                target + n * s.numbers,
                slope + n * s.numbers,
                s.components,
                s.points,
                pred_edges + edges,
                target_edges + edges};
    }
};

/* The point `steps` along dimension d from a point whose index there is `at`, with wrap or among
 * the edges. */
template <bool EDGES>
static __device__ inline int64_t neighbour(const loss_sizes &s, int64_t point, int d, int64_t at,
                                           int steps) {
    const int64_t n = s.grid[d];
    int64_t to = at + steps;
    if (EDGES && d == 0) {
        return point + (tg_loss_row(to, n, true) - at) * s.stride[0];
    }
    while (to < 0) {
        to += n;
    }
    while (to >= n) {
        to -= n;
    }
    return point + (to - at) * s.stride[d];
}

/* ---- sums ---- */

static __device__ inline double power_of(double square, double p) {
    return p == 2.0 ? square : pow(square, 0.5 * p);
}

/* The index along dimension d. */
static __device__ inline int64_t index_along(const loss_sizes &s, int64_t point, int d) {
    if (s.points <= INT32_MAX) { /* 32 bits divide several times faster */
        return (uint32_t)point / (uint32_t)s.stride[d] % (uint32_t)s.grid[d];
    }
    return point / s.stride[d] % s.grid[d];
}

/* |.|^p of one point, or its part of the square of the H1 norm: {of e, of the target}. */
template <class T, bool EDGES>
static __device__ inline double2 powers_at(const loss_sizes &s, const image<T, EDGES> &im,
                                           int64_t point) {
    double2 sum = {0.0, 0.0};
    for (int c = 0; c < s.components; c++) {
        const double e = im.error(point, c), t = im.truth(point, c);
        sum.x += e * e;
        sum.y += t * t;
    }
    if (s.norm == TG_LOSS_NORM_LP) {
        return {power_of(sum.x, s.p), s.relative ? power_of(sum.y, s.p) : 0.0};
    }
    for (int d = 0; d < s.ndim; d++) {
        const int64_t at = index_along(s, point, d);
        const int64_t up = neighbour<EDGES>(s, point, d, at, 1);
        const int64_t down = neighbour<EDGES>(s, point, d, at, -1);
        const double half = (double)s.size[d] / 2.0;
        for (int c = 0; c < s.components; c++) {
            const double e = (im.error(up, c) - im.error(down, c)) * half;
            const double t = (im.truth(up, c) - im.truth(down, c)) * half;
            sum.x += e * e;
            sum.y += t * t;
        }
    }
    return sum;
}

/* Block (image, part) to partial[image * parts + part] = {of e, of the target}. */
template <class T, bool EDGES>
static __global__ void __launch_bounds__(THREADS)
    sum_images(loss_sizes s, fields<T, EDGES> of, double2 *partial) {
    const int64_t n = blockIdx.x / s.parts, part = blockIdx.x % s.parts;
    const image<T, EDGES> im = of.at(s, n);
    double2 sum = {0.0, 0.0};
    pdl_wait_and_launch_dependents();
    for (int64_t i = part * THREADS + threadIdx.x; i < s.points; i += (int64_t)s.parts * THREADS) {
        const double2 powers = powers_at(s, im, i);
        sum.x += powers.x;
        sum.y += powers.y;
    }
    sum.x = block_sum(sum.x);
    sum.y = block_sum(sum.y);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
    }
}

/* Whether the powers are input. */
static __host__ __device__ inline bool is_given(const tg_loss_op *op) {
    return op->norm == TG_LOSS_NORM_GIVEN || op->is_measured;
}

/* One block, a warp per image from `first` on: adds their losses to the value (may be NULL) and
 * writes the underlying sums (powers may be NULL). */
static __global__ void __launch_bounds__(THREADS)
    fold_images(loss_sizes s, tg_loss_op op, int64_t first, int64_t count, const double *partial,
                image_result *result) {
    double sum = 0.0;
    pdl_wait_and_launch_dependents();
    for (int64_t n = threadIdx.x / 32; n < count; n += THREADS / 32) {
        double2 power = {0.0, 0.0};
        for (int part = threadIdx.x % 32; part < s.parts; part += 32) {
            power.x += partial[2 * (n * s.parts + part)];
            power.y += s.relative ? partial[2 * (n * s.parts + part) + 1] : 0.0;
        }
        power = {warp_sum(power.x), warp_sum(power.y)};
        const double root = 1.0 / (s.norm == TG_LOSS_NORM_LP ? s.p : 2.0),
                     norm = pow(power.x, root);
        double unit = pow((double)s.whole, root);
        if (s.relative) {
            const double target = pow(power.y, root);
            unit = target == 0.0 ? 1.0 : target;
        }
        const double weight = tg_loss_weight(&op, first + n), loss = weight * norm / unit;
        if (threadIdx.x % 32 == 0 && op.powers && !is_given(&op)) {
            op.powers[2 * (first + n)] = power.x;
            op.powers[2 * (first + n) + 1] = power.y;
        }
        if (threadIdx.x % 32 == 0) {
            const double factor = op.grad_scale * weight / unit;
            result[n] = {norm, isfinite(loss) ? factor : CUDART_NAN};
            sum += loss;
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0 && op.value) {
        *op.value += sum;
    }
}

/* ---- gradients ---- */

/* Component c of the gradient of |e| at a point. */
template <class T, bool EDGES>
static __device__ inline double slope_at(const loss_sizes &s, const image<T, EDGES> &im,
                                         double norm, int64_t point, int c) {
    if (norm == 0.0) {
        return 0.0;
    }
    if (s.norm == TG_LOSS_NORM_GIVEN) {
        return im.slope[point * s.components + c] / norm;
    }
    const double e = im.error(point, c);
    if (s.norm == TG_LOSS_NORM_LP) {
        double square = 0.0;
        for (int k = 0; k < s.components; k++) {
            const double v = im.error(point, k);
            square += v * v;
        }
        return square == 0.0 ? 0.0
               : s.p == 2.0  ? e / norm
                             : e / norm * pow(sqrt(square) / norm, s.p - 2.0);
    }
    double sum = e;
    for (int d = 0; d < s.ndim; d++) {
        const double n = (double)s.size[d];
        const int64_t at = index_along(s, point, d);
        sum += n * n / 4.0 *
               (2.0 * e - im.error(neighbour<EDGES>(s, point, d, at, 2), c) -
                im.error(neighbour<EDGES>(s, point, d, at, -2), c));
    }
    return sum / norm;
}

/* Rounds run[i] + carry to T and keeps the rounding error as carry. */
template <class T> static __device__ inline void round_on(double *number, double *carry) {
    const double exact = *number + *carry;
    const T rounded = (T)exact;
    *carry = exact - (double)rounded;
    *number = (double)rounded;
}

/* A patch: exact gradients in, rounded ones out. Number i is in the run of lane i / RUN. A lane
 * rounds all numbers of its run except the last of each component; these are rounded in order. */
template <class T>
static __device__ inline void round_patch(double (*patch)[RUN + 1], int lane, int components) {
    double carry[2] = {0.0, 0.0};
    for (int i = 0; i < RUN - components; i++) {
        round_on<T>(&patch[lane][i], &carry[i % components]);
    }
    for (int c = 0; c < components; c++) {
        patch[lane][RUN - components + c] += carry[c];
    }
    __syncwarp();
    if (lane < components) {
        double rest = 0.0;
        for (int l = 0; l < 32; l++) {
            round_on<T>(&patch[l][RUN - components + lane], &rest);
        }
    }
    __syncwarp();
}

/* One block per patch of an image; its first warp rounds. The first patch begins at the image's
 * first number. */
template <class T, bool EDGES>
static __global__ void __launch_bounds__(32 * PATCH_WARPS)
    write_gradients(loss_sizes s, int64_t count, const image_result *result, fields<T, EDGES> of,
                    T *dpred) {
    __shared__ double patch[32][RUN + 1];
    const int64_t per_image = (s.numbers + PATCH - 1) / PATCH;
    pdl_wait_and_launch_dependents();
    for (int64_t unit = blockIdx.x; unit < count * per_image; unit += gridDim.x) {
        const int64_t n = unit / per_image, first = unit % per_image * PATCH;
        const image_result r = result[n];
        const image<T, EDGES> im = of.at(s, n);
        T *out = dpred + n * s.numbers;
        for (int j = threadIdx.x; j < PATCH; j += 32 * PATCH_WARPS) {
            const int64_t i = first + j;
            double exact = 0.0;
            if (i < s.numbers) {
                const int64_t point = i / s.components;
                const int c = (int)(i - point * s.components);
                exact = (s.beta == 0.0 ? 0.0 : s.beta * (double)out[i]) +
                        r.factor * slope_at(s, im, r.norm, point, c);
            }
            patch[j / RUN][j % RUN] = exact;
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            round_patch<T>(patch, threadIdx.x, s.components);
        }
        __syncthreads();
        for (int j = threadIdx.x; j < PATCH; j += 32 * PATCH_WARPS) {
            if (first + j < s.numbers) {
                out[first + j] = (T)patch[j / RUN][j % RUN];
            }
        }
        __syncthreads();
    }
}

/* ---- the slot ---- */

static loss_sizes loss_sizes_of(const tg_loss_op *op) {
    loss_sizes s = {};
    s.images = op->images;
    s.points = s.whole = 1;
    s.components = op->components;
    s.ndim = op->ndim;
    for (int d = op->ndim - 1; d >= 0; d--) {
        s.grid[d] = op->grid[d];
        s.size[d] = tg_loss_size(op, d);
        s.stride[d] = s.points;
        s.points *= op->grid[d];
        s.whole *= s.size[d];
    }
    s.edges = op->whole > 0 ? tg_loss_edges(op) : 0;
    s.numbers = s.points * s.components;
    s.norm = op->norm;
    s.relative = op->relative;
    s.p = op->p;
    s.beta = op->beta;
    s.parts = is_given(op) ? 1 : loss_parts(s.points);
    return s;
}

/* Runs images first .. first + count - 1, whose sums fit the scratch. */
template <class T, bool EDGES>
static tg_status loss_of(tg_backend *be, const tg_loss_op *op, const loss_sizes &s, int64_t first,
                         int64_t count) {
    double2 *sums = static_cast<double2 *>(cuda_state_of(be)->scratch);
    image_result *result = reinterpret_cast<image_result *>(sums + count * s.parts);
    const double *partial =
        is_given(op) ? op->powers + 2 * first : reinterpret_cast<const double *>(sums);
    const int64_t edges = first * s.edges;
    const fields<T, EDGES> of = {static_cast<const T *>(op->pred) + first * s.numbers,
                                 static_cast<const T *>(op->target) + first * s.numbers,
                                 static_cast<const T *>(op->pred_edges) + edges,
                                 static_cast<const T *>(op->target_edges) + edges,
                                 op->slope + first * s.numbers};
    if (!is_given(op)) {
        TG_CALL(launch_pdl(be, "summing a loss", sum_images<T, EDGES>, (unsigned)(count * s.parts),
                           THREADS, 0, s, of, sums));
    }
    TG_CALL(launch_pdl(be, "summing a loss", fold_images, 1, THREADS, 0, s, *op, first, count,
                       partial, result));
    if (op->dpred) {
        const int64_t patches = count * ((s.numbers + PATCH - 1) / PATCH);
        const int64_t most = (int64_t)cuda_state_of(be)->processors * 64;
        TG_CALL(launch_pdl(be, "writing the gradient of a loss", write_gradients<T, EDGES>,
                           (unsigned)tg_min(patches, most), 32 * PATCH_WARPS, 0, s, count, result,
                           of, static_cast<T *>(op->dpred) + first * s.numbers));
    }
    return TG_OK;
}

tg_status cuda_loss(tg_backend *be, const tg_loss_op *op) {
    TG_CALL(tg_check_real(be->ctx, "loss", op->dtype));
    const loss_sizes s = loss_sizes_of(op);
    if (s.points == 0 || s.images == 0) {
        return TG_OK;
    }
    const int64_t room =
        CUDA_SCRATCH_BYTES / (int64_t)(sizeof(double2) * s.parts + sizeof(image_result));
    return with_wide(op->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        for (int64_t first = 0; first < s.images; first += room) {
            const int64_t count = tg_min(s.images - first, room);
            TG_CALL((s.edges > 0 ? loss_of<T, true> : loss_of<T, false>)(be, op, s, first, count));
        }
        return TG_OK;
    });
}
