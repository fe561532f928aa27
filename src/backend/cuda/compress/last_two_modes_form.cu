/* The last two modes of a factored gradient, whose planes are formed where they are contracted; see
 * last_two_modes_contract.cuh.
 *
 * With two samples a plane is formed from as few numbers as it would be read from in the end, so
 * that it need not be written: between the pieces of the products of these rows a crew forms the
 * next ones. Crews of a block take neighbours of mode 1, for which x is the same and comes from the
 * L1. */
#include "backend/cuda/compress/last_two_modes_contract.cuh"

/* ---- forming ---- */

enum { FORM_STAGES = 2, FORM_RUNS = (PLANES_ROWS * PLANES_D3 + 1022) / 32 + 1 };

/* A gradient of two samples, G = sum over b of conj(x[b]) dy[b], whose kept entries are gathered
 * and are 0 here. */
struct form_source {
    const float2 *x, *dy;    /* (2, dim0, entries), (2, dim1, entries), aligned to 16 bytes */
    int64_t next_x, next_dy; /* from sample to sample */
    int64_t begin;           /* of mode 0 */
    int dim1;
    kept_set kept;
    float2 *values; /* scale G */
    float scale;
};

/* Two neighbours of both samples. A plane begins with an even entry, so that they are in one run.
 */
struct raw_pair {
    float4 x[2], dy[2];
};

/* What a thread of a crew forms of a plane: pair `thread` of every `threads` of a chunk. */
struct plane_former {
    const float4 *x, *dy;     /* of all planes */
    unsigned at_x, at_dy;     /* where this plane's begin, in pairs */
    unsigned next_x, next_dy; /* from sample to sample */
    const kept_run *found;    /* of the rank blocks.. */
    unsigned ahead;           /* ..so many entries before the plane */
    float2 *values;
    float scale;
    unsigned pairs;           /* of a plane */
    unsigned d3, reciprocal;  /* of a row; e / d3 = e reciprocal >> 20 within a chunk */
    unsigned thread, threads; /* of the crew */

    __device__ unsigned in_chunk() const {
        return STAGE_ROWS / 2 * d3;
    }
    /* Its pair of round q. */
    __device__ unsigned pair_of(int chunk, int q) const {
        return (unsigned)chunk * in_chunk() + thread + (unsigned)q * threads;
    }
    /* Where the pairs of a chunk end. */
    __device__ unsigned end_of(int chunk) const {
        return min((unsigned)(chunk + 1) * in_chunk(), pairs);
    }
    __device__ raw_pair load(int chunk, int q) const {
        raw_pair raw = {};
        const unsigned pair = pair_of(chunk, q);
        if (pair < end_of(chunk)) {
#pragma unroll
            for (int b = 0; b < 2; b++) {
                raw.x[b] = __ldg(x + (at_x + b * next_x + pair));
                raw.dy[b] = __ldcs(dy + (at_dy + b * next_dy + pair));
            }
        }
        return raw;
    }
    template <int WIDTH>
    __device__ void form(int chunk, int q, const raw_pair &raw, float *stage) const {
        const unsigned pair = pair_of(chunk, q), e = 2 * (thread + (unsigned)q * threads);
        const unsigned at = ahead + 2 * pair, row = e * reciprocal >> 20, col = e - row * d3;
        float4 g = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const float4 u = raw.x[b], v = raw.dy[b];
            g.x += u.x * v.x;
            g.x += u.y * v.y;
            g.y += u.x * v.y;
            g.y -= u.y * v.x;
            g.z += u.z * v.z;
            g.z += u.w * v.w;
            g.w += u.z * v.w;
            g.w -= u.w * v.z;
        }
        if (pair >= end_of(chunk)) {
            return;
        }
        const kept_run run = found[at / 32];
        const unsigned bits = run.mask >> at % 32;
        const unsigned position = run.before + __popc(run.mask & ((1u << at % 32) - 1));
        if (bits & 1) {
            __stcs(values + position, make_float2(scale * g.x, scale * g.y));
            g.x = g.y = 0.0f;
        }
        if (bits & 2) {
            __stcs(values + position + (bits & 1), make_float2(scale * g.z, scale * g.w));
            g.z = g.w = 0.0f;
        }
        float *to = stage + row * WIDTH + 2 * col, *behind = stage + (row + 1) * WIDTH;
        *reinterpret_cast<float2 *>(to) = make_float2(to_tf32(g.x), to_tf32(g.y));
        *reinterpret_cast<float2 *>(col + 1 < d3 ? to + 2 : behind) =
            make_float2(to_tf32(g.z), to_tf32(g.w));
    }
    template <int WIDTH> __device__ void form_rest(int chunk, int q, float *stage) const {
        for (; pair_of(chunk, q) - thread < end_of(chunk); q++) {
            form<WIDTH>(chunk, q, load(chunk, q), stage);
        }
    }
};

/* The runs of the rank blocks that hold [begin, begin + entries); half a warp takes a block. */
static __device__ inline void find_runs(const kept_set &kept, int64_t begin, int entries,
                                        int thread, int threads, kept_run *found) {
    const int blocks = ((int)(begin % 512) + entries + 511) / 512, run = thread % 16;
    const int64_t first = begin / 512;
#pragma unroll 3
    for (int block = thread / 16; block / 2 * 2 < blocks; block += threads / 16) {
        const int64_t word = (first + min(block, blocks - 1)) * 8 + run / 2;
        const uint64_t bits = word < kept.count ? kept.words[word] : 0;
        const uint32_t mask = (uint32_t)(bits >> (run % 2 * 32)), own = (uint32_t)__popc(mask);
        uint32_t sum = own;
#pragma unroll
        for (int d = 1; d < 16; d *= 2) {
            const uint32_t left = __shfl_up_sync(~0u, sum, d, 16);
            sum += run >= d ? left : 0;
        }
        if (block < blocks) {
            found[16 * block + run] = {mask, kept.ranks[first + block] + sum - own};
        }
    }
}

/* A crew's next rows are formed between the pieces of the products of these. */
template <int STEPS, int TILES>
static __global__ void __launch_bounds__(CONTRACT_THREADS, 1)
    form_and_contract(cuda_planes s, contract_shape c, int64_t count, form_source f,
                      const float4 *last, const float4 *before, float *out) {
    extern __shared__ float4 shared[];
    constexpr int width = 8 * STEPS, stage_size = STAGE_ROWS * width, HALF = TILES / 2;
    const int lane = threadIdx.x % 32, crew_threads = 32 * c.crew;
    const int crew = (int)threadIdx.x / crew_threads, crews = (int)blockDim.x / crew_threads;
    const int tile = (int)threadIdx.x / 32 % c.crew; /* of rows j3 */
    const int lasts = last_fragments(c), befores = before_fragments(c);
    const float4 *left = shared + tile * STEPS * 32, *right = shared + lasts;
    float *stages = reinterpret_cast<float *>(shared + lasts + befores);
    kept_run *found =
        reinterpret_cast<kept_run *>(stages + crews * FORM_STAGES * stage_size) + crew * FORM_RUNS;
    for (int e = (int)threadIdx.x; e < lasts; e += (int)blockDim.x) {
        copy_async<16>(shared + e, last + e);
    }
    for (int e = (int)threadIdx.x; e < befores; e += (int)blockDim.x) {
        copy_async<16>(shared + lasts + e, before + e);
    }
    /* What fills up rows and planes stays 0. */
    for (int e = (int)threadIdx.x; e < crews * FORM_STAGES * stage_size; e += (int)blockDim.x) {
        stages[e] = 0.0f;
    }
    __syncthreads();
    stages += crew * FORM_STAGES * stage_size;
    const int entries = s.d2 * s.d3;
    plane_former former = {};
    former.x = reinterpret_cast<const float4 *>(f.x);
    former.dy = reinterpret_cast<const float4 *>(f.dy);
    former.next_x = (unsigned)(f.next_x / 2);
    former.next_dy = (unsigned)(f.next_dy / 2);
    former.found = found;
    former.values = f.values;
    former.scale = f.scale;
    former.pairs = (unsigned)entries / 2;
    former.d3 = (unsigned)s.d3;
    former.reciprocal = (1u << 20) / (unsigned)s.d3 + 1;
    former.thread = threadIdx.x - (unsigned)(crew * crew_threads);
    former.threads = (unsigned)crew_threads;
    bool ready = false; /* the fragments */
    for (int64_t plane = (int64_t)blockIdx.x * crews + crew; plane < count;
         plane += (int64_t)gridDim.x * crews) {
        const int64_t i0 = f.begin + plane / f.dim1, i1 = plane % f.dim1;
        const int64_t begin = (i0 * f.dim1 + i1) * entries;
        former.at_x = (unsigned)(i0 * entries / 2);
        former.at_dy = (unsigned)(i1 * entries / 2);
        former.ahead = (unsigned)(begin % 512);
        wait_for_crew(crew, crew_threads);
        find_runs(f.kept, begin, entries, (int)former.thread, crew_threads, found);
        wait_for_crew(crew, crew_threads);
        former.form_rest<width>(0, 0, stages);
        if (!ready) {
            copies_wait();
            __syncthreads();
            ready = true;
        }
        float sum[2][TILES][4] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < c.chunks; chunk++) {
            wait_for_crew(crew, crew_threads);
            const float *stage = stages + chunk % 2 * stage_size;
            float *other = stages + (chunk + 1) % 2 * stage_size;
            const int next = chunk + 1; /* the last one has none, which is beyond all entries */
            const float4 *row = right + 2 * chunk * TILES * 32, *row8 = row + TILES * 32;
            turned_tile x[2] = {};
            raw_pair raw = former.load(next, 0);
            multiply_stage<STEPS, true>(x, stage, left, 0, STEPS / 2, lane);
            former.form<width>(next, 0, raw, other);
            raw = former.load(next, 1);
            multiply_stage<STEPS, true>(x, stage, left, STEPS / 2, STEPS, lane);
            former.form<width>(next, 1, raw, other);
            raw = former.load(next, 2);
            add_turned<0, HALF>(sum, x[0], row, lane);
            former.form<width>(next, 2, raw, other);
            raw = former.load(next, 3);
            add_turned<HALF, TILES>(sum, x[0], row, lane);
            former.form<width>(next, 3, raw, other);
            raw = former.load(next, 4);
            add_turned<0, HALF>(sum, x[1], row8, lane);
            former.form<width>(next, 4, raw, other);
            raw = former.load(next, 5);
            add_turned<HALF, TILES>(sum, x[1], row8, lane);
            former.form<width>(next, 5, raw, other);
            former.form_rest<width>(next, 6, other);
        }
        store_plane(s, out + plane * 2 * s.r2 * s.right, 16 * tile + lane / 4, lane % 4, sum);
    }
    if (!ready) { /* a crew without a plane */
        copies_wait();
        __syncthreads();
    }
}

/* ---- launches ---- */

using form_kernel = void (*)(cuda_planes, contract_shape, int64_t, form_source, const float4 *,
                             const float4 *, float *);

static form_kernel form_kernel_of(const contract_shape &c) {
    if (c.steps == 9) {
        return c.tiles == 6    ? form_and_contract<9, 6>
               : c.tiles == 11 ? form_and_contract<9, 11>
                               : form_and_contract<9, 12>;
    }
    return c.tiles == 6    ? form_and_contract<17, 6>
           : c.tiles == 11 ? form_and_contract<17, 11>
                           : form_and_contract<17, 12>;
}

static int form_bytes(const contract_shape &c) {
    const int crews = CONTRACT_WARPS / c.crew;
    return (last_fragments(c) + before_fragments(c)) * (int)sizeof(float4) +
           crews * (FORM_STAGES * STAGE_ROWS * 8 * c.steps * (int)sizeof(float) +
                    FORM_RUNS * (int)sizeof(kept_run));
}

bool cuda_planes_form_fits(const tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const tg_grad_source *source = &op->source;
    const cuda_planes &s = plan->planes;
    const bool plain = !source->dense && source->store == TG_STORE_FULL && source->batch == 2 &&
                       op->masked && op->bitmap && op->values && op->beta == 0.0;
    return plain && plan->step[1].left == op->modes.dim[1] && s.d2 * s.d3 % 2 == 0 &&
           2 * longer(plan->dim0, op->modes.dim[1]) * s.d2 * s.d3 < UINT32_MAX &&
           (uintptr_t)source->x % 16 == 0 && (uintptr_t)source->dy % 16 == 0 &&
           (uintptr_t)op->values % 8 == 0 && cuda_planes_contract_fits(be, &s) &&
           form_bytes(shape_of(s)) <= most_shared(be);
}

int64_t cuda_planes_form_at_once(const tg_backend *be, const cuda_plan *plan) {
    return CONTRACT_WARPS / shape_of(plan->planes).crew * (int64_t)cuda_state_of(be)->processors;
}

tg_status cuda_planes_form_contract(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                                    int64_t begin, int64_t count, void *out) {
    const cuda_planes &s = plan->planes;
    const contract_shape c = shape_of(s);
    const int64_t entries = (int64_t)s.d2 * s.d3, dim1 = op->modes.dim[1];
    const int64_t planes = count * dim1, crews = CONTRACT_WARPS / c.crew;
    const int shared = form_bytes(c);
    form_source f = form_source();
    f.x = static_cast<const float2 *>(op->source.x);
    f.dy = static_cast<const float2 *>(op->source.dy);
    f.next_x = plan->dim0 * entries;
    f.next_dy = dim1 * entries;
    f.begin = begin;
    f.dim1 = (int)dim1;
    f.kept = kept_set_of(op->bitmap);
    f.values = static_cast<float2 *>(op->values);
    f.scale = (float)op->scale;
    const form_kernel kernel = form_kernel_of(c);
    const tg_status status = CUDA_CHECK(
        be, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "setting up a kernel");
    if (status != TG_OK) {
        return status;
    }
    kernel<<<(unsigned)shorter((planes + crews - 1) / crews, cuda_state_of(be)->processors),
             (unsigned)(crews * c.crew * 32), (size_t)shared, cuda_stream(be)>>>(
        s, c, planes, f, last_of(plan, op->workspace), before_of(plan, op->workspace),
        static_cast<float *>(out));
    return CUDA_LAUNCHED(be, "forming and contracting a gradient");
}
