/* Perceptrons from halves to one output, forward: a block goes through its tiles once for each
 * chunk of hidden channels, whose weights it holds, and adds to what the tiles have summed up
 * before. */
#include "backend/cuda/nn/mlp_single_half.cuh"

enum { FORWARD_WARPS = 8, FORWARD_THREADS = 32 * FORWARD_WARPS };

using hidden_frame = frame<CHUNK, TILE, FORWARD_WARPS, 8>;

template <int STORE> constexpr size_t forward_shared() {
    return CHUNK * HALF_LD * sizeof(uint16_t) +
           FORWARD_WARPS * (held_weights<STORE, CHUNK>::SHARED + TILE) * sizeof(float);
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
static __device__ inline void sum_hidden(const hidden_frame &p, const float (&bias)[2],
                                         const float (&weight)[2], float *to) {
    constexpr int N = 2 * hidden_frame::NT;
    float v[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float *c = p.acc[0][i / 2];
        v[i] = weight[0] * gelu(c[i % 2] + bias[0]) + weight[1] * gelu(c[2 + i % 2] + bias[1]);
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
template <int STORE>
static __global__ void __launch_bounds__(FORWARD_THREADS, 2)
    single_forward(mlp_task t, float *scratch) {
    using P = hidden_frame;
    uint16_t *u = dynamic_halves();
    float *of_warp = reinterpret_cast<float *>(u + CHUNK * HALF_LD);
    uint32_t *rest = reinterpret_cast<uint32_t *>(of_warp + FORWARD_WARPS * TILE);
    half_share<CHUNK, FORWARD_THREADS> x;
    held_weights<STORE, CHUNK> w;
    for (int chunk = 0; chunk < t.chunks; chunk++) {
        const int first = chunk * CHUNK, left = t.hidden - first;
        float bias[2], weight[2];
        w.template load<P>(1.0f, t.w1 + (int64_t)first * t.in, left, t.in, t.in, rest);
        for (int h = 0; h < 2; h++) {
            const int row = P::row(0, h);
            bias[h] = row < left ? t.b1[first + row] : 0.0f;
            weight[h] = row < left ? t.w2[first + row] : 0.0f;
        }
        x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
        for (int tile = blockIdx.x; tile < t.tiles.count; tile += gridDim.x) {
            const tile_place place = place_of(t.tiles, tile);
            P p;
            x.template put<STORE>(t.act, u);
            __syncthreads();
            if (tile + (int)gridDim.x < t.tiles.count) {
                x.fetch(t.x, t.tiles, place_of(t.tiles, tile + gridDim.x));
            }
            p.clear();
            w.multiply(p, u);
            sum_hidden(p, bias, weight, of_warp + threadIdx.x / 32 * TILE);
            __syncthreads();
            const int64_t pixel = place.pixel + threadIdx.x;
            if (threadIdx.x < TILE && pixel < t.tiles.pixels) {
                const int64_t at = place.sample * t.tiles.pixels + pixel;
                float sum = chunk > 0 ? scratch[at] : 0.0f;
                for (int i = 0; i < FORWARD_WARPS; i++) {
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

bool mlp_single_halves_takes(const tg_backend *be, const tg_mlp *op, bool backward) {
    const bool aligned =
        (uintptr_t)op->x % 16 == 0 && (!backward || !op->dx || (uintptr_t)op->dx % 16 == 0);
    return mlp_single_halves_fits(be, op) && op->dropout == 0.0 && op->alpha != 0.0 && aligned;
}

/* Forward: the sums of all pixels. */
size_t mlp_single_halves_workspace(const tg_backend *be, const tg_mlp *op, bool backward) {
    if (!mlp_single_halves_fits(be, op)) {
        return 0;
    }
    return backward ? mlp_single_halves_back_workspace(be, op)
                    : (size_t)(op->batch * op->pixels) * sizeof(float);
}

tg_status mlp_single_halves_forward(tg_backend *be, const tg_mlp *op) {
    return with_half(op->x_store, [&](auto store) {
        const auto kernel = single_forward<decltype(store)::value>;
        const size_t shared = forward_shared<decltype(store)::value>();
        const mlp_task t = mlp_task_of(op, CHUNK);
        int blocks = 0;
        tg_status status = tensor_blocks(be, (const void *)kernel, shared, &blocks);
        if (status == TG_OK) {
            blocks = blocks < t.tiles.count ? blocks : t.tiles.count;
            kernel<<<blocks, FORWARD_THREADS, shared, cuda_stream(be)>>>(
                t, static_cast<float *>(op->workspace));
            status = CUDA_LAUNCHED(be, "the output of a perceptron");
        }
        return status;
    });
}
