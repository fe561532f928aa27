/* Expands a leading mode of a direction of Adam, whose numbers are so near 1 that f16 is as precise
 * as TF32; compress/mode_columns.cuh has the call.
 *
 *     out[i][c] = sum over j of U[i][j] in[j][c]
 *
 * of complex numbers with both parts together (tile/warpgroup.cuh), half as many bytes as in f32
 * and one product instead of four. Rows of a product are columns of matrices: a warpgroup takes 64
 * columns and computes all their numbers; U stays in shared memory. Inputs are prefetched into a
 * ring of the warp that multiplies them, in the layout of the product: rows g and g + 8 of a warp
 * are neighbours in memory. The first of these modes reads the core in f32 (CORE). */
#include "backend/cuda/sm90/mode_steps.cuh"

enum {
    RING = 8,         /* steps of 8 numbers, all but one in flight */
    NUMBER_BYTES = 96 /* of 16 columns; padded so that numbers are in different banks */
};

/* Warpgroups per block, limited by the registers for N sums of both parts. */
static constexpr __host__ __device__ int groups_of(int n) {
    return n <= 128 ? 4 : 3;
}

static constexpr __host__ __device__ int step_bytes(bool core) {
    return core ? (int)STEP_BYTES : 8 * NUMBER_BYTES;
}

template <int N, bool CORE> static int shared_bytes(int summed) {
    return 1024 + part_bytes<N>(summed) + groups_of(N) * 4 * RING * step_bytes(CORE);
}

/* The columns of a warp: a lane's source address, and its part of a step. */
template <bool CORE> struct half_reader;

template <> struct half_reader<false> {
    const uint32_t *next;
    bool exists;

    __device__ void begin(const mode_call &s, int64_t first, int lane) {
        const int64_t c = first + 4 * (lane % 4), matrix = c / s.n;
        exists = matrix < s.matrices;
        next = s.half_in;
        next += exists ? (matrix * s.summed + lane / 4) * s.n + (c - matrix * s.n) : 0;
    }
    __device__ void fetch(const mode_call &s, int step, char *to, int lane) {
        const bool counts = exists && 8 * step + lane / 4 < s.summed;
        copy_async<16>(to + lane / 4 * NUMBER_BYTES + lane % 4 * 16, counts ? next : s.half_in,
                       counts);
        next += 8 * s.n;
    }
    static __device__ uint4 take(const char *from, int lane) {
        const char *at = from + lane % 4 * NUMBER_BYTES + lane / 4 * 8;
        const uint2 a = *reinterpret_cast<const uint2 *>(at);
        const uint2 b = *reinterpret_cast<const uint2 *>(at + 4 * NUMBER_BYTES);
        return make_uint4(a.x, a.y, b.x, b.y);
    }
};

template <> struct half_reader<true> : step_reader<true> {
    static __device__ uint4 take(const char *from, int lane) {
        float4 re, im;
        step_reader<true>::take(from, lane, &re, &im);
        return make_uint4(half_pair(re.x, im.x), half_pair(re.y, im.y), half_pair(re.z, im.z),
                          half_pair(re.w, im.w));
    }
};

/* Numbers 4j + t of two neighbours. */
template <int N>
static __device__ inline void store_numbers(const mode_call &s, int64_t first, int lane,
                                            const float (&sum)[N / 2]) {
    const int64_t c = first + lane / 4 * 2, matrix = c / s.n;
    if (matrix >= s.matrices) {
        return;
    }
    uint32_t *to = s.half_out + (matrix * s.made + lane % 4) * s.n + (c - matrix * s.n);
#pragma unroll
    for (int j = 0; j < N / 8; j++, to += 4 * s.n) {
        if (4 * j + lane % 4 < s.made) {
            *reinterpret_cast<uint2 *>(to) = make_uint2(half_pair(sum[4 * j], sum[4 * j + 1]),
                                                        half_pair(sum[4 * j + 2], sum[4 * j + 3]));
        }
    }
}

template <int N, bool CORE>
static __global__ void __launch_bounds__(groups_of(N) * WG_THREADS, 1)
    multiply_half(const __grid_constant__ mode_call s) {
    constexpr int STEP = step_bytes(CORE);
    extern __shared__ char shared[];
    char *u = shared + (1024 - shared_at(shared) % 1024) % 1024;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = (s.summed + 7) / 8;
    char *ring = u + part_bytes<N>(s.summed) + warp * (RING * STEP);
    const int64_t tiles = (s.matrices * s.n + 63) / 64, stride = (int64_t)gridDim.x * groups_of(N);
    int64_t tile = blockIdx.x + (int64_t)gridDim.x * (warp / 4);

    half_reader<CORE> reader;
    int64_t fetched = tile; /* the tile being fetched, and its next step */
    int step = 0, slot = 0;
    const auto fetch = [&](int into) {
        if (fetched < tiles) {
            if (step == 0) {
                reader.begin(s, fetched * 64 + warp % 4 * 16, lane);
            }
            reader.fetch(s, step, ring + into * STEP, lane);
            step = step + 1 == steps ? 0 : step + 1;
            fetched += step == 0 ? stride : 0;
        }
        copies_commit();
    };
    wg_zero<N>(u, (s.summed + 31) / 32 * 32);
    __syncthreads();
    for_each_number<N <= 128 ? 5 : 12>(
        s.u, [&](int i, int j, float2 entry) { put_half_number<N>(u, i, j, entry); });
    wg_publish();
    pdl_wait();
    pdl_launch_dependents();
    for (int ahead = 0; ahead < RING - 1; ahead++) {
        fetch(ahead);
    }
    __syncthreads();
    const uint64_t matrix = wg_matrix(u);

    float sum[N / 2];
    uint4 next;
    const uint32_t zero = (uint32_t)(s.summed >> 31); /* opaque to the compiler */
    const auto take = [&] {
        copies_wait_all_but<RING - 2>();
        __syncwarp();
        next = reader.take(ring + slot * STEP, lane);
        fetch((slot + RING - 1) % RING); /* the buffer of the previous step */
        slot = (slot + 1) % RING;
    };
    if (tile < tiles) {
        take();
    }
    for (; tile < tiles; tile += stride) {
        for (int k = 0; k < steps; k++) {
            wg_hold(next);
            /* in separate registers, since products own theirs */
            const uint4 a = make_uint4(next.x ^ zero, next.y ^ zero, next.z ^ zero, next.w ^ zero);
            wg_begin();
            wg_half_product(sum, a, wg_rows<N>(matrix, k), k > 0);
            wg_end();
            take(); /* past the last tile: unused */
            wg_wait<0>();
        }
        wg_fence(sum);
        store_numbers<N>(s, tile * 64 + warp % 4 * 16, lane, sum);
    }
}

/* ---- launches ---- */

/* f(N) for both parts of the numbers. */
template <class F> static auto with_sums(int made, F f) {
    return with_size<64, 128, 256>(2 * made, f);
}

bool cuda_sm90_half_mode_fits(const tg_backend *be, const cuda_factor *factor, bool core) {
    const int made = (int)factor->dim, summed = (int)factor->rank;
    return cuda_state_of(be)->is_hopper && made <= 128 && summed <= made &&
           with_sums(made, [&](auto sums) {
               constexpr int N = decltype(sums)::value;
               return core ? shared_bytes<N, true>(summed) : shared_bytes<N, false>(summed);
           }) <= cuda_state_of(be)->max_shared;
}

template <int N, bool CORE> static tg_status run(tg_backend *be, const mode_call *call) {
    const int64_t tiles = (call->matrices * call->n + 63) / 64;
    return tiles == 0 ? TG_OK
                      : launch_chained(be, "multiplying a mode in f16", call->chained,
                                       multiply_half<N, CORE>, tiles, groups_of(N) * WG_THREADS,
                                       shared_bytes<N, CORE>(call->summed), *call);
}

tg_status cuda_sm90_half_mode(tg_backend *be, const mode_call *call, bool core) {
    return with_sums(call->made, [&](auto sums) {
        constexpr int N = decltype(sums)::value;
        return core ? run<N, true>(be, call) : run<N, false>(be, call);
    });
}
