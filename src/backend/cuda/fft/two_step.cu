/* Transforms of lines of n = R L points, powers of two, of which only low frequencies are kept: at
 * most 2 R on either side of 0. With W_n = e^{-2 pi i / n}, j = l + L i and k = k1 + R k2,
 *
 *     X[k] = sum_l W_L^{l k2}  W_n^{l k1} sum_i W_R^{i k1} x[l + L i]
 *     x[j] = sum_k1 W_R^{i k1}  W_n^{l k1} sum_k2 W_L^{l k2} X[k1 + R k2]
 *
 * A thread holds R points in registers for the long sum and passes the results to the L threads of
 * the line through shared memory. The short sum has only four frequencies k2 = -2 .. 1, so it needs
 * few products. Data pass through shared memory once; lines.cu needs three passes. As there,
 * inverse transforms swap real and imaginary parts, and two real rows form one line.
 * Lengths are 128 = 16 x 8 points, 256 = 16 x 16, 512 = 32 x 16 and 1024 = 32 x 32. */
#include "backend/cuda/fft/line_tile.cuh"

enum { TWO_STEP_WARPS = 4 /* of a block of rows */ };

/* Slots of a line in shared memory: `count` rows of `length` and one more. Threads that access
 * memory at the same time use adjacent slots of a row, or adjacent rows. `skew` is the offset from
 * line to line, in banks modulo 16. */
__host__ __device__ constexpr int line_slots(int count, int length, int skew) {
    return (count * (length + 1) + 15) / 16 * 16 + skew;
}

/* q of the four short frequencies: 0, 1, -2, -1. */
__device__ inline constexpr int short_frequency(int q) {
    return q < 2 ? q : q - 4;
}

/* out[q] = sum_l W_L^{l k2} y[l]; beyond: k2 = 2. */
template <int L>
__device__ inline void few_outputs(const pair<float> (&y)[L], pair<float> (&out)[4],
                                   pair<float> *beyond) {
#pragma unroll
    for (int l = 0; l < L / 4; l++) {
        pair<float> b[4] = {y[l], y[l + L / 4], y[l + L / 2], y[l + 3 * (L / 4)]};
        transform_4(b[0], b[1], b[2], b[3]);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const pair<float> term = b[q] * root_of_32<float>(short_frequency(q) * l * (32 / L));
            out[q] = l == 0 ? term : out[q] + term;
        }
        const pair<float> term = b[2] * root_of_32<float>(2 * l * (32 / L));
        *beyond = l == 0 ? term : *beyond + term;
    }
}

/* y[l] = sum_q W_L^{l k2} x[q] */
template <int L> __device__ inline void few_inputs(const pair<float> (&x)[4], pair<float> (&y)[L]) {
#pragma unroll
    for (int l = 0; l < L / 4; l++) {
        pair<float> b[4];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            b[q] = x[q] * root_of_32<float>(short_frequency(q) * l * (32 / L));
        }
        transform_4(b[0], b[1], b[2], b[3]);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            y[l + q * (L / 4)] = b[q];
        }
    }
}

/* ---- real rows, forward: 32 / L lines of a warp ---- */

template <int R, int L> struct row_tile {
    static constexpr int LINES = 32 / L; /* of a warp */
    static constexpr int SLOTS = line_slots(R, L, L == 8 ? 8 : 0);
};

/* Frequency k of both rows: x and its mirror image y in the transform of a + i b. */
__device__ inline void write_rows_at(const fft_lines &s, const fft_pass &p, int64_t row, int rows,
                                     int k, pair<float> x, pair<float> y) {
    if (k < s.kept) {
        const float factor = 0.5f * (float)(k == 0 ? p.edge : p.interior);
        slot<float> *to = static_cast<slot<float> *>(p.kept.data) + row * p.kept.outer + k;
        if (rows > 0) {
            *to = {factor * (x.re + y.re), factor * (x.im - y.im)};
        }
        if (rows > 1) {
            to[p.kept.outer] = {factor * (x.im + y.im), factor * (y.re - x.re)};
        }
    }
}

/* The first step of a line forward, by lane l of its L, to shared memory. */
template <int R, int L>
__device__ inline void first_step(pair<float> (&v)[R], const slot<float> *roots, int l,
                                  slot<float> *at) {
    transform_short<R>(v, roots, L);
    apply_twiddles<R>(v, roots, l);
#pragma unroll
    for (int i = 0; i < R; i++) {
        at[i * (L + 1) + l] = {v[i].re, v[i].im};
    }
}

__device__ inline pair<float> from_lane(pair<float> x, int lane) {
    return {__shfl_sync(~0u, x.re, lane), __shfl_sync(~0u, x.im, lane)};
}

template <int R, int L>
static __global__ void __launch_bounds__(32 * TWO_STEP_WARPS, R == 32 ? 4 : 6)
    two_step_rows(const fft_lines s, const fft_pass p) {
    constexpr int H = R / L, LINES = row_tile<R, L>::LINES; /* H: sums k1 = l + L h of a thread */
    __shared__ slot<float> shared[TWO_STEP_WARPS * LINES * row_tile<R, L>::SLOTS];
    pdl_wait_and_launch_dependents();
    const int lane = threadIdx.x % 32, l = lane % L, line = (int)threadIdx.x / L;
    const int64_t row = 2 * ((int64_t)blockIdx.x * (TWO_STEP_WARPS * LINES) + line);
    const int rows = (int)max((int64_t)0, min((int64_t)2, p.outer - row));
    const float *a = static_cast<const float *>(p.grid.data) + row * p.grid.outer + l;
    const slot<float> *roots = static_cast<const slot<float> *>(s.roots);
    slot<float> *at = shared + line * row_tile<R, L>::SLOTS;
    pair<float> v[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        v[i] = {rows > 0 ? a[i * L] : 0.0f, rows > 1 ? a[p.grid.outer + i * L] : 0.0f};
    }
    first_step<R, L>(v, roots, l, at);
    __syncwarp();
    pair<float> x[H][4], beyond[H], mirror[H][2]; /* X[-k1] and X[-k1 - R] */
    const int other = lane - l + (L - l) % L;
#pragma unroll
    for (int h = 0; h < H; h++) {
        pair<float> y[L];
#pragma unroll
        for (int j = 0; j < L; j++) {
            y[j] = take(at[(l + L * h) * (L + 1) + j]);
        }
        few_outputs<L>(y, x[h], &beyond[h]);
        mirror[h][0] = from_lane(x[h][3], other);
        mirror[h][1] = from_lane(x[h][2], other);
    }
#pragma unroll
    for (int h = 0; h < H; h++) {
        const int k = l + L * h;
        const pair<float> m0 = l == 0 ? mirror[h][0] : mirror[H - 1 - h][0];
        const pair<float> m1 = l == 0 ? mirror[h][1] : mirror[H - 1 - h][1];
        write_rows_at(s, p, row, rows, k, x[h][0], k == 0 ? x[h][0] : m0);
        write_rows_at(s, p, row, rows, k + R, x[h][1], k == 0 ? m0 : m1);
        if (k == 0) {
            write_rows_at(s, p, row, rows, 2 * R, beyond[h], m1);
        }
    }
}

/* ---- columns: C of them by L threads in a block ---- */

template <int R, int L, int C> struct column_tile {
    /* of both directions: rows of L or of R */
    static constexpr int SKEW = C == 12 ? 5 : 16 / C;
    static constexpr int FORWARD = line_slots(R, L, SKEW), INVERSE = line_slots(L, R, SKEW);
    static constexpr int SLOTS = FORWARD > INVERSE ? FORWARD : INVERSE;
    static constexpr int THREADS = C * L;
    static constexpr int BLOCKS = (R == 32 ? 512 : 960) / THREADS; /* of a multiprocessor */
};

/* A thread's column; out of range past the last one. */
template <int C> __device__ inline tile column_of(const fft_pass &p) {
    const int across = (int)((p.inner + C - 1) / C);
    const int64_t image = blockIdx.x / (unsigned)across;
    const int64_t column = (int64_t)(blockIdx.x % (unsigned)across) * C + threadIdx.x % C;
    return {image, column, column < p.inner, 0};
}

/* Index of frequency k, negative or not, among the `kept` ones. */
__device__ inline int kept_index(const fft_lines &s, int k) {
    const int f = (k + s.n) % s.n - s.first;
    return f < 0 ? f + s.n : f;
}

template <int R, int L, int C>
static __global__ void __launch_bounds__(C *L, column_tile<R, L, C>::BLOCKS)
    two_step_columns(const fft_lines s, const fft_pass p) {
    __shared__ slot<float> shared[C * column_tile<R, L, C>::SLOTS];
    pdl_wait_and_launch_dependents();
    const int l = (int)threadIdx.x / C;
    const tile t = column_of<C>(p);
    const slot<float> *from =
        static_cast<const slot<float> *>(p.grid.data) + t.outer * p.grid.outer + t.column;
    const slot<float> *roots = static_cast<const slot<float> *>(s.roots);
    slot<float> *at = shared + threadIdx.x % C * column_tile<R, L, C>::SLOTS;
    pair<float> v[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        v[i] = t.lines ? take(from[(l + L * i) * p.grid.step]) : pair<float>{0, 0};
    }
    first_step<R, L>(v, roots, l, at);
    __syncthreads();
#pragma unroll
    for (int h = 0; h < R / L; h++) {
        pair<float> y[L], x[4], beyond;
#pragma unroll
        for (int j = 0; j < L; j++) {
            y[j] = take(at[(l + L * h) * (L + 1) + j]);
        }
        few_outputs<L>(y, x, &beyond);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const int k = kept_index(s, l + L * h + R * short_frequency(q));
            if (t.lines && k < s.kept) {
                store(p.kept, t.outer * p.kept.outer + k * p.kept.step + t.column,
                      (float)p.interior * x[q]);
            }
        }
    }
}

template <int R, int L, int C>
static __global__ void __launch_bounds__(C *L, column_tile<R, L, C>::BLOCKS)
    two_step_columns_back(const fft_lines s, const fft_pass p) {
    __shared__ slot<float> shared[C * column_tile<R, L, C>::SLOTS];
    pdl_wait_and_launch_dependents();
    const int l = (int)threadIdx.x / C;
    const tile t = column_of<C>(p);
    const slot<float> *roots = static_cast<const slot<float> *>(s.roots);
    slot<float> *at = shared + threadIdx.x % C * column_tile<R, L, C>::SLOTS;
    const float scale = (float)p.interior;
#pragma unroll
    for (int h = 0; h < R / L; h++) {
        pair<float> x[4], y[L];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const int k = kept_index(s, l + L * h + R * short_frequency(q));
            x[q] = {0, 0};
            if (t.lines && k < s.kept) {
                const pair<float> kept =
                    load(p.kept, t.outer * p.kept.outer + k * p.kept.step + t.column, 0.0f);
                x[q] = {scale * kept.im, scale * kept.re};
            }
        }
        few_inputs<L>(x, y);
        apply_twiddles<L>(y, roots, l + L * h);
#pragma unroll
        for (int j = 0; j < L; j++) {
            at[j * (R + 1) + l + L * h] = {y[j].re, y[j].im};
        }
    }
    __syncthreads();
    pair<float> v[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        v[i] = take(at[l * (R + 1) + i]);
    }
    transform_short<R>(v, roots, L);
    slot<float> *to = static_cast<slot<float> *>(p.grid.data) + t.outer * p.grid.outer + t.column;
#pragma unroll
    for (int i = 0; i < R; i++) {
        if (t.lines) {
            to[(l + L * i) * p.grid.step] = {v[i].im, v[i].re};
        }
    }
}

/* ---- launches ---- */

typedef void (*two_step_kernel)(const fft_lines, const fft_pass);

/* Split of a length, and columns per block. */
struct two_step_shape {
    int n, radix, columns;
    int rows_lines; /* per block of rows */
    two_step_kernel rows, forward, inverse;
};

template <int R, int L, int C> static two_step_shape shape() {
    return {R * L,
            R,
            C,
            TWO_STEP_WARPS * row_tile<R, L>::LINES,
            two_step_rows<R, L>,
            two_step_columns<R, L, C>,
            two_step_columns_back<R, L, C>};
}

static bool shape_for(int n, two_step_shape *out) {
    const two_step_shape shapes[] = {shape<16, 8, 12>(), shape<16, 16, 8>(), shape<32, 16, 8>(),
                                     shape<32, 32, 4>()};
    for (const two_step_shape &each : shapes) {
        if (each.n == n) {
            *out = each;
            return true;
        }
    }
    return false;
}

/* Whether the kernels support this: f32 lines whose kept frequencies are within reach of the short
 * sums; real rows forward, or columns. */
static bool fits(const fft_lines *lines, const fft_pass *pass, const two_step_shape &shape) {
    const int reach = 2 * shape.radix;
    if (lines->wide || (lines->by_columns ? lines->real : !lines->real)) {
        return false;
    }
    if (lines->real) {
        return !pass->inverse && lines->kept <= reach + 1 && pass->grid.store == TG_STORE_FULL &&
               is_aligned<float>(pass->kept);
    }
    const int first = lines->first < lines->n / 2 ? lines->first : lines->first - lines->n;
    return first >= -reach && first + lines->kept <= reach && is_aligned<float>(pass->grid);
}

bool cuda_fft_two_step_run(tg_backend *be, const fft_lines *lines, const fft_pass *pass,
                           tg_status *status) {
    two_step_shape shape = {};
    if (!shape_for(lines->n, &shape) || !fits(lines, pass, shape)) {
        return false;
    }
    const int64_t blocks = lines->real
                               ? ((pass->outer + 1) / 2 + shape.rows_lines - 1) / shape.rows_lines
                               : pass->outer * ((pass->inner + shape.columns - 1) / shape.columns);
    if (blocks > INT32_MAX) {
        return false;
    }
    const two_step_kernel kernel = lines->real     ? shape.rows
                                   : pass->inverse ? shape.inverse
                                                   : shape.forward;
    const int threads = lines->real ? 32 * TWO_STEP_WARPS : shape.columns * (shape.n / shape.radix);
    *status = blocks == 0 ? TG_OK
                          : launch_pdl(be, "transforming lines", kernel, (unsigned)blocks,
                                       (unsigned)threads, 0, *lines, *pass);
    return true;
}
