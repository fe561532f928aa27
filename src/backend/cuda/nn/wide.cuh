/* Kernels of channel MLPs and linear skips of any width on tensor cores, for f32 in TF32.
 *
 * Two products over activations (batch, channels, pixels) as they are stored do all of it. A tile
 * is PIXELS pixels of a sample:
 *   channel_product   C (rows, pixels) = epilogue(W (rows, depth) act(X) (depth, pixels))
 *   weight_gradient   dW (rows, columns) = sum over the pixels of D act(X)^T, and the sums of D
 * The hidden layer is in the workspace for as many tiles as fit the L2, tile by tile: (tile,
 * hidden, PIXELS), where pixels that do not exist are finite. Blocks of weight_gradient have a part
 * of the tiles each, whose partial sums fold_partials adds up in order (wide.cu).
 *
 * Operands come by cp.async, STAGES deep across the items of a block, zeros where nothing exists;
 * act is applied in shared memory. Fragments are read in pairs: row 2 g + h of 16 is row g + 8 h of
 * a fragment, column 2 g + e of 16 is column g of fragment e, and k = 2 t and 2 t + 1 are those of
 * lane 4 g + t. Lines are 4 numbers (mod 16) longer than a multiple of 16, so that no bank conflict
 * is met, and a lane has four pixels in a row. */
#ifndef TG_BACKEND_CUDA_NN_WIDE_CUH
#define TG_BACKEND_CUDA_NN_WIDE_CUH

#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/stage.cuh"

enum { PIXELS = 128, DEPTH = 32, STAGES = 3, THREADS = 128 };

/* ---- operands in shared memory ---- */

/* (N, DEPTH) if K_INNER, else (DEPTH, N). */
template <bool K_INNER, int N> struct operand {
    static constexpr int LINES = K_INNER ? N : DEPTH, WIDTH = K_INNER ? DEPTH : N, LD = WIDTH + 4;
    static constexpr int NUMBERS = LINES * LD, QUADS = LINES * WIDTH / 4 / THREADS;

    /* f(line, column) of the four numbers of each copy of this thread. */
    template <class G> static __device__ void each_quad(G f) {
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const int at = (int)threadIdx.x + i * THREADS;
            f(at / (WIDTH / 4), at % (WIDTH / 4) * 4);
        }
    }
    /* The first `lines` lines and `width` columns of what is at `from`. */
    static __device__ void copy(float *to, const float *from, int64_t ld, int lines, int64_t width,
                                bool aligned) {
        each_quad([&](int line, int column) {
            const float *source = from + line * ld + column;
            float *target = to + line * LD + column;
            if (aligned) {
                const bool exists = line < lines && column < width;
                copy_async<16>(target, exists ? source : from, exists);
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const bool exists = line < lines && column + j < width;
                    copy_async<4>(target + j, exists ? source + j : from, exists);
                }
            }
        });
    }
    /* act of what this thread has copied. */
    static __device__ void activate_own(float *tile, tg_act act) {
        if (act == TG_ACT_GELU) {
            turn_own(tile, [](float v) { return gelu(v); });
        } else if (act == TG_ACT_TANH) {
            turn_own(tile, [](float v) { return tanhf(v); });
        }
    }
    /* v[h][j] = the number at 2 g + h of 16 and k + 2 t + j. */
    static __device__ void load(const float *tile, int group, int k, float (&v)[2][2]) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, at = 16 * group + 2 * g;
        const float *from = tile + (K_INNER ? at * LD + k + 2 * t : (k + 2 * t) * LD + at);
        const float2 a = *reinterpret_cast<const float2 *>(from);
        const float2 b = *reinterpret_cast<const float2 *>(from + LD);
        v[0][0] = to_tf32(a.x);
        v[1][1] = to_tf32(b.y);
        v[0][1] = to_tf32(K_INNER ? a.y : b.x);
        v[1][0] = to_tf32(K_INNER ? b.x : a.y);
    }

  private:
    template <class G> static __device__ void turn_own(float *tile, G f) {
        each_quad([&](int line, int column) {
            float4 *at = reinterpret_cast<float4 *>(tile + line * LD + column);
            const float4 v = *at;
            *at = {f(v.x), f(v.y), f(v.z), f(v.w)};
        });
    }
};

/* acc (MT fragments, NT pairs of them) of a warp += its part of a product of operands. */
template <class A, class B, int MT, int NT>
__device__ inline void add_tiles(float (&acc)[MT][2 * NT][4], const float *a, const float *b) {
    const int down = threadIdx.x / 64, across = threadIdx.x / 32 % 2;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
        float rows[MT][2][2];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            A::load(a, down * MT + m, k, rows[m]);
        }
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float columns[2][2];
            B::load(b, across * NT + n, k, columns);
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                const float(&r)[2][2] = rows[i / 2];
                mma_tf32(acc[i / 2][2 * n + i % 2], {r[0][0], r[1][0], r[0][1], r[1][1]},
                         columns[i % 2][0], columns[i % 2][1]);
            }
        }
    }
}

/* ---- where tiles are ---- */

struct wide_tiles {
    int64_t pixels;
    int per_sample, first, count; /* of the launch */
};

/* An array (batch, channels, pixels), or (count, channels, PIXELS) in the workspace. */
struct wide_array {
    float *data; /* NULL: none */
    int channels;
    bool local, aligned;
};

struct wide_place {
    int64_t at, ld;
    int64_t width; /* pixels that exist */
};

__device__ inline wide_place place_in(const wide_array &x, const wide_tiles &t, int tile) {
    if (x.local) {
        return {(int64_t)tile * x.channels * PIXELS, PIXELS, PIXELS};
    }
    const int sample = (t.first + tile) / t.per_sample;
    const int64_t pixel = (int64_t)(t.first + tile - sample * t.per_sample) * PIXELS;
    return {(int64_t)sample * x.channels * t.pixels + pixel, t.pixels, t.pixels - pixel};
}

/* ---- products of weights and activations ---- */

enum product_kind {
    HIDDEN,  /* to = gelu(W act(x) + bias); more, if any, its slope */
    OUTPUT,  /* to = beta to + alpha (W act(x)) + bias_scale bias + gate add; more = gelu(to) */
    BACKWARD /* to = (beta to + alpha W^T x) slope, which is `add` if local, else act'(add) */
};

struct product_task {
    wide_tiles tiles;
    int rows, depth;
    const float *w; /* (rows, depth); BACKWARD (depth, rows) */
    bool w_aligned;
    tg_act act;
    wide_array x, to;
    const float *add; /* like `to`, as `more`; NULL: none */
    float *more;
    const float *bias, *gate; /* NULL: zeros; ones */
    float alpha, beta, bias_scale;
};

/* 4 numbers of `left`, of arrays that are aligned or not. */
__device__ inline run<float> load_quad(const float *x, int64_t left, bool aligned) {
    run<float> r = {};
    if (aligned) {
        if (left > 0) {
            const float4 v = *reinterpret_cast<const float4 *>(x);
            r = {{v.x, v.y, v.z, v.w}};
        }
        return r;
    }
    return load_run(x, left);
}

template <int KIND, int MT>
__device__ inline void finish_item(const product_task &t, const float (&acc)[MT][8][4], int tile,
                                   int first_row) {
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32 % 2 * 64 + lane % 4 * 4;
    const wide_place place = place_in(t.to, t.tiles, tile);
    const int64_t left = place.width - column;
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int m = i / 2, h = i % 2;
        const int row = first_row + (threadIdx.x / 64 * MT + m) * 16 + lane / 4 * 2 + h;
        if (row >= t.rows) {
            continue;
        }
        const int64_t at = place.at + row * place.ld + column;
        const float bias = t.bias ? t.bias[row] : 0.0f, gate = t.gate ? t.gate[row] : 1.0f;
        run<float> old[4] = {}, add[4] = {};
        if (KIND != HIDDEN && t.add) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                add[r] = load_quad(t.add + at + 16 * r, left - 16 * r, t.to.aligned);
            }
        }
        if (KIND != HIDDEN && t.beta != 0.0f) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                old[r] = load_quad(t.to.data + at + 16 * r, left - 16 * r, t.to.aligned);
            }
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            run<float> v, more;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float product = acc[m][2 * r + j % 2][2 * h + j / 2];
                if (KIND == HIDDEN) {
                    more.v[j] = gelu_slope(product + bias, &v.v[j]);
                } else if (KIND == OUTPUT) {
                    v.v[j] = t.beta * old[r].v[j] + (t.alpha * product + t.bias_scale * bias) +
                             gate * add[r].v[j];
                } else {
                    v.v[j] = t.beta * old[r].v[j] + t.alpha * product;
                    if (t.add) {
                        v.v[j] *= t.to.local ? add[r].v[j] : act_slope(t.act, add[r].v[j]);
                    }
                }
            }
            if (left > 16 * r) {
                store_run(t.to.data + at + 16 * r, left - 16 * r, v);
                if (KIND != BACKWARD && t.more) {
                    if (KIND == OUTPUT) {
                        more = {{gelu(v.v[0]), gelu(v.v[1]), gelu(v.v[2]), gelu(v.v[3])}};
                    }
                    store_run(t.more + at + 16 * r, left - 16 * r, more);
                }
            }
        }
    }
}

/* What finish_item will read comes to the L2. */
template <int MT>
__device__ inline void ask_for_old(const product_task &t, int tile, int first_row) {
    const wide_place place = place_in(t.to, t.tiles, tile);
    const int row = first_row + (int)threadIdx.x / 4, column = threadIdx.x % 4 * 32;
#pragma unroll
    for (int i = 0; i < MT; i++) {
        if (row + 32 * i < t.rows && column < place.width) {
            const int64_t at = place.at + (row + 32 * i) * place.ld + column;
            if (t.add) {
                prefetch_line(t.add + at);
            }
            if (t.beta != 0.0f) {
                prefetch_line(t.to.data + at);
            }
        }
    }
}

template <int KIND, int MT> struct product_operands {
    using A = operand<KIND != BACKWARD, 32 * MT>;
    using B = operand<false, PIXELS>;
    static constexpr int STAGE = A::NUMBERS + B::NUMBERS;
    static constexpr size_t BYTES = STAGES * STAGE * sizeof(float);
};

/* Items are (tile, 32 MT rows); blocks that are neighbours share a tile. */
template <int KIND, int MT>
static __global__ void __launch_bounds__(THREADS, 2) channel_product(product_task t) {
    using O = product_operands<KIND, MT>;
    using A = typename O::A;
    using B = typename O::B;
    constexpr int ROWS = 32 * MT;
    const int down = (t.rows + ROWS - 1) / ROWS, items = t.tiles.count * down;
    const int steps = (t.depth + DEPTH - 1) / DEPTH;
    shared_room shared = dynamic_shared();
    float *room = shared.take<float>(STAGES * O::STAGE);
    int next = blockIdx.x, next_step = 0, next_stage = 0, stage = 0;
    const auto fetch = [&] {
        if (next < items) {
            const wide_place place = place_in(t.x, t.tiles, next / down);
            const int row = next % down * ROWS, k = next_step * DEPTH;
            float *a = room + next_stage * O::STAGE;
            if (KIND == BACKWARD) {
                A::copy(a, t.w + (int64_t)k * t.rows + row, t.rows, t.depth - k, t.rows - row,
                        t.w_aligned);
            } else {
                A::copy(a, t.w + (int64_t)row * t.depth + k, t.depth, t.rows - row, t.depth - k,
                        t.w_aligned);
            }
            B::copy(a + A::NUMBERS, t.x.data + place.at + k * place.ld, place.ld, t.depth - k,
                    place.width, t.x.aligned);
            next_stage = (next_stage + 1) % STAGES;
            next_step = (next_step + 1) % steps;
            next += next_step == 0 ? gridDim.x : 0;
        }
        copies_commit();
    };
    kernel_begins();
    for (int i = 0; i < STAGES - 1; i++) {
        fetch();
    }
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        float acc[MT][8][4] = {};
        if (KIND != HIDDEN) {
            ask_for_old<MT>(t, item / down, item % down * ROWS);
        }
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            float *a = room + stage * O::STAGE, *b = a + A::NUMBERS;
            copies_wait_but<STAGES - 2>();
            if (KIND != BACKWARD) {
                B::activate_own(b, t.act);
            }
            __syncthreads(); /* all have copied this stage, and are done with the one before */
            fetch();
            add_tiles<A, B, MT, 4>(acc, a, b);
            stage = (stage + 1) % STAGES;
        }
        finish_item<KIND, MT>(t, acc, item / down, item % down * ROWS);
    }
}

/* ---- gradients of weights ---- */

struct gradient_task {
    wide_tiles tiles;
    int rows, columns;
    tg_act act; /* of x */
    wide_array d, x;
    bool adds; /* to the sums of the launch before */
    int parts;
    float *partial; /* (parts, rows, padded(columns)) */
    double *sums;   /* (parts, rows) */
};

static __host__ __device__ inline int padded(int64_t columns) {
    return (int)((columns + 3) / 4 * 4);
}

template <int MT> struct gradient_operands {
    using A = operand<true, 32 * MT>;
    static constexpr size_t BYTES = STAGES * 2 * A::NUMBERS * sizeof(float);
};

/* Blocks are (32 MT rows and columns, part). */
template <int MT>
static __global__ void __launch_bounds__(THREADS, 2) weight_gradient(gradient_task t) {
    using A = typename gradient_operands<MT>::A;
    constexpr int SIDE = 32 * MT, OF_TILE = PIXELS / DEPTH;
    const int across = (t.columns + SIDE - 1) / SIDE, part = blockIdx.y;
    const int row = (int)blockIdx.x / across * SIDE, column = (int)blockIdx.x % across * SIDE;
    const int first = (int)((int64_t)t.tiles.count * part / t.parts);
    const int steps = ((int)((int64_t)t.tiles.count * (part + 1) / t.parts) - first) * OF_TILE;
    const bool sums_up = column == 0 && (int)threadIdx.x < SIDE;
    shared_room shared = dynamic_shared();
    float *room = shared.take<float>(STAGES * 2 * A::NUMBERS);
    float acc[MT][2 * MT][4] = {};
    double sum = 0.0;
    int next = 0;
    const auto fetch = [&] {
        if (next < steps) {
            const int tile = first + next / OF_TILE, k = next % OF_TILE * DEPTH;
            const wide_place d = place_in(t.d, t.tiles, tile), x = place_in(t.x, t.tiles, tile);
            float *a = room + next % STAGES * 2 * A::NUMBERS;
            A::copy(a, t.d.data + d.at + row * d.ld + k, d.ld, t.rows - row, d.width - k,
                    t.d.aligned);
            A::copy(a + A::NUMBERS, t.x.data + x.at + column * x.ld + k, x.ld, t.columns - column,
                    x.width - k, t.x.aligned);
            next++;
        }
        copies_commit();
    };
    kernel_begins();
    for (int i = 0; i < STAGES - 1; i++) {
        fetch();
    }
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        float *a = room + step % STAGES * 2 * A::NUMBERS, *b = a + A::NUMBERS;
        copies_wait_but<STAGES - 2>();
        A::activate_own(b, t.act);
        __syncthreads();
        fetch();
        add_tiles<A, A, MT, MT>(acc, a, b);
        if (sums_up) {
            const float4 *line = reinterpret_cast<const float4 *>(a + threadIdx.x * A::LD);
            float of_step = 0.0f;
#pragma unroll
            for (int i = 0; i < DEPTH / 4; i++) {
                of_step += (line[i].x + line[i].y) + (line[i].z + line[i].w);
            }
            sum += (double)of_step;
        }
    }
    const int lane = threadIdx.x % 32, ld = padded(t.columns);
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int r = row + (threadIdx.x / 64 * MT + i / 2) * 16 + lane / 4 * 2 + i % 2;
#pragma unroll
        for (int n = 0; n < MT; n++) {
            const int c = column + (threadIdx.x / 32 % 2 * MT + n) * 16 + lane % 4 * 4;
            if (r < t.rows && c < ld) {
                const float(&even)[4] = acc[i / 2][2 * n], (&odd)[4] = acc[i / 2][2 * n + 1];
                const int h = i % 2 * 2;
                float4 *to =
                    reinterpret_cast<float4 *>(t.partial + ((int64_t)part * t.rows + r) * ld + c);
                const float4 old = t.adds ? *to : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                *to = {old.x + even[h], old.y + odd[h], old.z + even[h + 1], old.w + odd[h + 1]};
            }
        }
    }
    if (sums_up && row + (int)threadIdx.x < t.rows) {
        double *to = t.sums + (int64_t)part * t.rows + row + threadIdx.x;
        *to = (t.adds ? *to : 0.0) + sum;
    }
}

#endif
