/* MLPs from 16-bit numbers to one output, forward: a block goes through its tiles once for each
 * chunk of hidden channels, whose weights it holds, and adds to what the tiles have summed up
 * before. */
#include "backend/cuda/nn/mlp_single_half.cuh"

enum { WARPS = 8 };

template <class F> using hidden_tile = warp_tile<F, CHUNK, TILE, WARPS>;
template <class F> using chunk_weights = held_weights<hidden_tile<F>, CHUNK>;

template <class F> constexpr size_t forward_shared() {
    return tile_bytes<F>(CHUNK) + WARPS * TILE * sizeof(float) +
           chunk_weights<F>::template bytes<WARPS>;
}

/* Half of the numbers of two lanes each, summed up: N of them instead of 2 N. */
template <int N> static __device__ inline void halve(float *v, int distance) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float kept = upper ? v[i + N] : v[i], given = upper ? v[i] : v[i + N];
        v[i] = kept + __shfl_xor_sync(~0u, given, distance);
    }
}

/* to (TILE): the warp's sums over its rows of weight gelu(p + bias), in the order of pixels. */
template <class P>
static __device__ inline void sum_hidden(const P &p, const hidden_rows<P> &rows, float *to) {
    constexpr int N = 2 * P::NT;
    float v[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float *c = p.acc[0][i / 2];
        v[i] = rows.weight[0] * gelu(c[i % 2] + rows.bias[0]) +
               rows.weight[1] * gelu(c[2 + i % 2] + rows.bias[1]);
    }
    halve<N / 2>(v, 16);
    halve<N / 4>(v, 8);
    halve<N / 8>(v, 4);
    const int g = threadIdx.x % 32 / 4, n = g; /* fragment n is left to lanes g = n */
    const int pixel = n / 4 * 32 + (int)threadIdx.x % 4 * 8 + n % 4 * 2;
    *reinterpret_cast<float2 *>(to + pixel) = {v[0], v[1]};
}

/* What a pixel has summed up over chunks becomes y. */
static __device__ inline void finish_one(const mlp_task &t, int64_t at, float sum) {
    float y = t.alpha * (sum + *t.b2);
    y += t.beta == 0.0f ? 0.0f : t.beta * load_one(t.y, at);
    y += t.add.data ? (t.gate ? *t.gate : 1.0f) * load_one(t.add, at) : 0.0f;
    store_one(t.y, at, y);
    if (t.activated.data) {
        store_one(t.activated, at, gelu(y));
    }
}

/* scratch (batch, pixels): sums of the chunks before. */
template <class F>
static __global__ void __launch_bounds__(TENSOR_THREADS, 2)
    single_forward(mlp_task t, float *scratch) {
    using P = hidden_tile<F>;
    kernel_begins();
    assume<F::STORE>(t.x);
    shared_room room = dynamic_shared();
    uint16_t *u = room.take<uint16_t>(CHUNK * F::LD);
    float *of_warp = room.take<float>(WARPS * TILE);
    const shared_room rest = room;
    tile_share<F, CHUNK, TENSOR_THREADS> x;
    chunk_weights<F> w;
    hidden_rows<P> rows;
    for (int chunk = 0; chunk < t.chunks; chunk++) {
        const int first = chunk * CHUNK;
        room = rest;
        w.template load<WARPS>(room,
                               {1.0f, t.w1 + (int64_t)first * t.in, t.hidden - first, t.in, t.in});
        rows.load(t, first);
        x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
        for (int tile = blockIdx.x; tile < t.tiles.count; tile += gridDim.x) {
            const tile_place place = place_of(t.tiles, tile);
            P p;
            x.put(t.x.store, t.act, u);
            __syncthreads();
            if (tile + (int)gridDim.x < t.tiles.count) {
                x.fetch(t.x, t.tiles, place_of(t.tiles, tile + gridDim.x));
            }
            p.clear();
            add_product(p, w, u);
            sum_hidden(p, rows, of_warp + threadIdx.x / 32 * TILE);
            __syncthreads();
            const int64_t pixel = place.pixel + threadIdx.x;
            if (threadIdx.x < TILE && pixel < t.tiles.pixels) {
                const int64_t at = place.sample * t.tiles.pixels + pixel;
                float sum = chunk > 0 ? scratch[at] : 0.0f;
                for (int i = 0; i < WARPS; i++) {
                    sum += of_warp[i * TILE + threadIdx.x];
                }
                if (chunk + 1 < t.chunks) {
                    scratch[at] = sum;
                } else {
                    finish_one(t, at, sum);
                }
            }
        }
    }
}

/* ---- host ---- */

bool mlp_single_half_takes(const tg_backend *be, const tg_mlp *op, bool backward) {
    const bool aligned =
        (uintptr_t)op->x % 16 == 0 && (!backward || !op->dx || (uintptr_t)op->dx % 16 == 0);
    return mlp_single_half_fits(be, op) && op->dropout == 0.0 && op->alpha != 0.0 && aligned;
}

/* Forward: the sums of all pixels. */
size_t mlp_single_half_workspace(const tg_backend *be, const tg_mlp *op, bool backward) {
    if (!mlp_single_half_fits(be, op)) {
        return 0;
    }
    return backward ? mlp_single_half_backward_workspace(be, op)
                    : (size_t)(op->batch * op->pixels) * sizeof(float);
}

tg_status mlp_single_half_forward(tg_backend *be, const tg_mlp *op) {
    return with_half_format(op->x_store, [&](auto format) {
        using F = decltype(format);
        return launch_tiles(be, single_forward<F>, forward_shared<F>(), TENSOR_THREADS,
                            pixel_tiles_of(op->batch, op->pixels).count, "the output of an MLP",
                            mlp_task_of(op, CHUNK), static_cast<float *>(op->workspace));
    });
}
