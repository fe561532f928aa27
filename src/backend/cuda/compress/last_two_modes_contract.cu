/* The way to the core of the last two modes where the factors of both fit into shared memory; see
 * last_two_modes_contract.cuh. */
#include "backend/cuda/compress/last_two_modes_contract.cuh"

enum { STAGES = 3 };

static int shared_bytes(const contract_shape &c) {
    const int crews = CONTRACT_WARPS / c.crew;
    return (last_fragments(c) + before_fragments(c)) * (int)sizeof(float4) +
           crews * STAGES * STAGE_ROWS * 8 * c.steps * (int)sizeof(float);
}

/* ---- fragments ---- */

/* U2 as right factor: {real parts of k0 and k1, imaginary parts of them}. */
static __device__ inline float4 right_fragment(const factor_reader &f, int tiles, int e) {
    const int lane = e % 32, g = lane / 4, t = lane % 4;
    const int j = e / 32 % tiles * 8 + g, i = e / 32 / tiles * 8 + 2 * t;
    const float2 u0 = factor_at(f, i, j), u1 = factor_at(f, i + 1, j);
    return make_float4(u0.x, u1.x, u0.y, u1.y);
}

static __global__ void write_fragments(contract_shape c, factor_reader last, factor_reader before,
                                       float4 *to_last, float4 *to_before) {
    const int e = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (e < last_fragments(c)) {
        to_last[e] = left_fragment<true>(last, c.steps, e);
    }
    if (e < before_fragments(c)) {
        to_before[e] = right_fragment(before, c.tiles, e);
    }
}

/* ---- rows of planes ---- */

/* Where a crew is in its walk, and what it fetches there. */
struct row_fetcher {
    const float *plane; /* the one whose rows are next */
    int chunk;
    int thread, threads;

    __device__ void fetch(const cuda_planes &s, const contract_shape &c, int ld, int64_t stride,
                          int width, float *stage) {
        const int across = ld / 4, rows = min((int)STAGE_ROWS, s.d2 - chunk * STAGE_ROWS);
        const int next_row = threads / across, next = threads % across;
        const float *from = plane + chunk * STAGE_ROWS * ld;
        int row = thread / across, place = thread % across;
        while (row < rows) {
            copy_async<16>(stage + row * width + 4 * place, from + row * ld + 4 * place);
            const bool wraps = place + next >= across;
            row += next_row + wraps;
            place += wraps ? next - across : next;
        }
        if (++chunk == c.chunks) {
            chunk = 0;
            plane += stride * s.d2 * ld;
        }
    }
};

template <int STEPS, int TILES>
static __global__ void __launch_bounds__(CONTRACT_THREADS, 1)
    contract_resident(cuda_planes s, contract_shape c, int64_t count, int ld, const float *in,
                      const float4 *last, const float4 *before, float *out) {
    extern __shared__ float4 shared[];
    constexpr int width = 8 * STEPS, stage_size = STAGE_ROWS * width;
    const int lane = threadIdx.x % 32, crew_threads = 32 * c.crew;
    const int crew = (int)threadIdx.x / crew_threads, crews = (int)blockDim.x / crew_threads;
    const int tile = (int)threadIdx.x / 32 % c.crew; /* of rows j3 */
    const int lasts = last_fragments(c), befores = before_fragments(c);
    const float4 *left = shared + tile * STEPS * 32, *right = shared + lasts;
    float *stages = reinterpret_cast<float *>(shared + lasts + befores);

    /* What fills up rows and planes stays 0. */
    for (int e = (int)threadIdx.x; e < crews * STAGES * stage_size; e += (int)blockDim.x) {
        stages[e] = 0.0f;
    }
    for (int e = (int)threadIdx.x; e < lasts; e += (int)blockDim.x) {
        copy_async<16>(shared + e, last + e);
    }
    for (int e = (int)threadIdx.x; e < befores; e += (int)blockDim.x) {
        copy_async<16>(shared + lasts + e, before + e);
    }
    copies_wait();
    __syncthreads();

    stages += crew * STAGES * stage_size;
    const int64_t first = blockIdx.x + (int64_t)gridDim.x * crew;
    const int64_t stride = (int64_t)gridDim.x * crews;
    int64_t left_to_fetch = first < count ? ((count - 1 - first) / stride + 1) * c.chunks : 0;
    row_fetcher rows = {in + first * s.d2 * ld, 0, (int)threadIdx.x - crew * crew_threads,
                        crew_threads};
    int slot = 0;
    const auto fetch = [&](int into) {
        if (left_to_fetch > 0) {
            rows.fetch(s, c, ld, stride, width, stages + into * stage_size);
            left_to_fetch--;
        }
        copies_commit();
    };
    for (int ahead = 0; ahead < STAGES - 1; ahead++) {
        fetch(ahead);
    }
    for (int64_t plane = first; plane < count; plane += stride) {
        float sum[2][TILES][4] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < c.chunks; chunk++) {
            copies_wait_but<STAGES - 2>();
            wait_for_crew(crew, crew_threads);
            fetch(slot == 0 ? STAGES - 1 : slot - 1); /* what the last round was made from */
            turned_tile x[2] = {};
            multiply_stage<STEPS, false>(x, stages + slot * stage_size, left, 0, STEPS, lane);
            add_turned<0, TILES>(sum, x[0], right + 2 * chunk * TILES * 32, lane);
            add_turned<0, TILES>(sum, x[1], right + (2 * chunk + 1) * TILES * 32, lane);
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
        store_plane(s, out + plane * 2 * s.r2 * s.right, 16 * tile + lane / 4, lane % 4, sum);
    }
}

/* ---- launches ---- */

using contract_kernel = void (*)(cuda_planes, contract_shape, int64_t, int, const float *,
                                 const float4 *, const float4 *, float *);

static contract_kernel kernel_of(const contract_shape &c) {
    if (c.steps == 9) {
        return c.tiles == 6    ? contract_resident<9, 6>
               : c.tiles == 11 ? contract_resident<9, 11>
                               : contract_resident<9, 12>;
    }
    return c.tiles == 6    ? contract_resident<17, 6>
           : c.tiles == 11 ? contract_resident<17, 11>
                           : contract_resident<17, 12>;
}

bool cuda_planes_contract_fits(const tg_backend *be, const cuda_planes *s) {
    const contract_shape c = shape_of(*s);
    return c.steps > 0 && shared_bytes(c) <= most_shared(be);
}

tg_status cuda_planes_contract_factors(tg_backend *be, const cuda_plan *plan, void *workspace) {
    const contract_shape c = shape_of(plan->planes);
    const int most = (int)longer(last_fragments(c), before_fragments(c));
    write_fragments<<<(unsigned)((most + 255) / 256), 256, 0, cuda_stream(be)>>>(
        c, reader_of(&plan->step[0].factor), reader_of(&plan->step[1].factor),
        last_of(plan, workspace), before_of(plan, workspace));
    return CUDA_LAUNCHED(be, "laying out factors");
}

tg_status cuda_planes_contract_resident(tg_backend *be, const cuda_plan *plan, void *workspace,
                                        int64_t count, const void *in, void *out) {
    const contract_shape c = shape_of(plan->planes);
    const int64_t planes = count * plan->step[1].left;
    const contract_kernel kernel = kernel_of(c);
    const int shared = shared_bytes(c);
    const tg_status status = CUDA_CHECK(
        be, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "setting up a kernel");
    if (status != TG_OK) {
        return status;
    }
    const int threads = CONTRACT_WARPS / c.crew * c.crew * 32;
    kernel<<<(unsigned)shorter(planes, cuda_state_of(be)->processors), threads, (size_t)shared,
             cuda_stream(be)>>>(plan->planes, c, planes, (int)plan->view.ld,
                                static_cast<const float *>(in), last_of(plan, workspace),
                                before_of(plan, workspace), static_cast<float *>(out));
    return CUDA_LAUNCHED(be, "contracting two modes");
}
