/* Multiplies a leading mode with warpgroup products; compress/mode_columns.cuh has the call.
 *
 *     out_re = in_re Re + in_im Im,   out_im = in_im Re - in_re Im,
 *
 * where rows of products are columns of matrices: a warpgroup takes 64 columns and computes all
 * their numbers. Re and Im are the parts of U, or of its conjugate, and stay in shared memory.
 * Inputs are prefetched into a ring of the warp that multiplies them. Rows g and g + 8 of a warp
 * are neighbours in memory. SPLIT: numbers are sums of two in TF32 and three products are taken;
 * the second terms of U follow the first ones. */
#include "backend/cuda/sm90/mode_steps.cuh"

/* Steps of 8 numbers in the ring of a warp, all but one in flight. */
static constexpr __host__ __device__ int ring_of(int n, bool split) {
    return !split ? 8 : n <= 64 ? 4 : 3;
}

/* Warpgroups per block, limited by the registers for N numbers. */
static constexpr __host__ __device__ int groups_of(int n) {
    return n <= 64 ? 4 : n <= 96 ? 3 : 2;
}

template <int N, bool SPLIT> static int shared_bytes(int summed) {
    return 1024 + (SPLIT ? 4 : 2) * part_bytes<N>(summed) +
           groups_of(N) * 4 * ring_of(N, SPLIT) * STEP_BYTES;
}

/* U as right factor, real parts before imaginary ones, padded with 0. */
template <int N, bool SPLIT>
static __device__ inline void store_factor(const mode_call &s, char *to) {
    const int part = part_bytes<N>(s.summed), rows = (s.summed + 31) / 32 * 32;
    wg_zero<N>(to, (SPLIT ? 4 : 2) * rows);
    __syncthreads();
    for_each_term<SPLIT, N <= 64 ? 5 : 12>(s.u, [&](int i, int j, float2 u, int term) {
        char *at = to + 2 * term * part + (s.forward ? wg_at<N>(j, i) : wg_at<N>(i, j));
        *reinterpret_cast<float *>(at) = u.x;
        *reinterpret_cast<float *>(at + part) = s.forward ? u.y : -u.y;
    });
}

/* ---- outputs ---- */

template <int N>
static __device__ inline void store_columns(const mode_call &s, int64_t first, int lane,
                                            const float (&re)[N / 2], const float (&im)[N / 2]) {
    const int64_t c = first + lane / 4 * 2, matrix = c / s.n;
    if (matrix >= s.matrices) {
        return;
    }
    float *to = s.out + matrix * s.out_matrix + (c - matrix * s.n) + lane % 4 * 2 * s.out_number;
#pragma unroll
    for (int j = 0; j < N / 8; j++, to += 8 * s.out_number) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (8 * j + lane % 4 * 2 + e < s.made) {
                float *row = to + e * s.out_number;
                store_two(row, re[4 * j + e], re[4 * j + 2 + e]);
                store_two(row + s.out_part, im[4 * j + e], im[4 * j + 2 + e]);
            }
        }
    }
}

template <int N>
static __device__ inline void store_core(const mode_call &s, int64_t first, int lane,
                                         const float (&re)[N / 2], const float (&im)[N / 2]) {
    const int c = (int)first + lane / 4 * 2;
    const int at[2] = {in_core(s, c, s.core_matrix), in_core(s, c + 1, s.core_matrix)};
    number<float, 2> *row = s.core + lane % 4 * 2 * s.row;
#pragma unroll
    for (int j = 0; j < N / 8; j++, row += 8 * s.row) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (8 * j + lane % 4 * 2 + e < s.made) {
                blend_core(s, row + e * s.row, at, make_float2(re[4 * j + e], re[4 * j + 2 + e]),
                           make_float2(im[4 * j + e], im[4 * j + 2 + e]));
            }
        }
    }
}

/* ---- the product ---- */

template <int N, core_side CORE, bool SPLIT>
static __global__ void __launch_bounds__(groups_of(N) * WG_THREADS, 1)
    multiply_columns(mode_call s) {
    constexpr int RING = ring_of(N, SPLIT);
    extern __shared__ char shared[];
    char *u = shared + (1024 - (uint32_t)__cvta_generic_to_shared(shared) % 1024) % 1024;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = (s.summed + 7) / 8;
    const int part = part_bytes<N>(s.summed);
    char *ring = u + (SPLIT ? 4 : 2) * part + warp * (RING * STEP_BYTES);
    const int64_t tiles = (s.matrices * s.n + 63) / 64, stride = (int64_t)gridDim.x * groups_of(N);
    int64_t tile = blockIdx.x + (int64_t)gridDim.x * (warp / 4);

    step_reader<CORE == CORE_IN || CORE == CORE_BOTH> reader;
    int64_t fetched = tile; /* the tile being fetched, and its next step */
    int step = 0, slot = 0;
    const auto fetch = [&](int into) {
        if (fetched < tiles) {
            if (step == 0) {
                reader.begin(s, fetched * 64 + warp % 4 * 16, lane);
            }
            reader.fetch(s, step, ring + into * STEP_BYTES, lane);
            step = step + 1 == steps ? 0 : step + 1;
            fetched += step == 0 ? stride : 0;
        }
        copies_commit();
    };
    store_factor<N, SPLIT>(s, u);
    wg_publish();
    if (!s.apart) {
        pdl_wait();
    }
    pdl_launch_dependents();
    for (int ahead = 0; ahead < RING - 1; ahead++) {
        fetch(ahead);
    }
    __syncthreads();
    const uint64_t re_of_u = wg_matrix(u), im_of_u = wg_matrix(u + part);
    const uint64_t second_terms = (uint64_t)(2 * part) >> 4; /* second terms, in a descriptor */

    float re[N / 2], im[N / 2];
    float4 next_re, next_im;
    const auto take = [&] {
        copies_wait_all_but<RING - 2>();
        __syncwarp();
        reader.take(ring + slot * STEP_BYTES, lane, &next_re, &next_im);
        fetch((slot + RING - 1) % RING); /* the buffer of the previous step */
        slot = (slot + 1) % RING;
    };
    if (tile < tiles) {
        take();
    }
    for (; tile < tiles; tile += stride) {
        for (int k = 0; k < steps; k++) {
            const step_factor<SPLIT> x(next_re, 1.0f), y(next_im, 1.0f), minus(next_re, -1.0f);
            wg_begin();
            x.multiply(re, wg_rows<N>(re_of_u, k), second_terms, k > 0);
            y.multiply(im, wg_rows<N>(re_of_u, k), second_terms, k > 0);
            y.multiply(re, wg_rows<N>(im_of_u, k), second_terms, true);
            minus.multiply(im, wg_rows<N>(im_of_u, k), second_terms, true);
            wg_end();
            take(); /* past the last tile: unused */
            wg_wait<0>();
        }
        wg_fence(re);
        wg_fence(im);
        const int64_t first = tile * 64 + warp % 4 * 16;
        if (CORE == CORE_OUT || CORE == CORE_BOTH) {
            store_core<N>(s, first, lane, re, im);
        } else {
            store_columns<N>(s, first, lane, re, im);
        }
    }
    if (s.apart) {
        pdl_wait();
    }
}

/* ---- launches ---- */

/* f(N) for the numbers of a product. */
template <class F> static auto with_numbers(int64_t made, F f) {
    return with_size<32, 48, 64, 88, 96, 128>(made, f);
}

bool cuda_sm90_mode_fits(const tg_backend *be, const cuda_factor *factor, bool split) {
    const int dim = (int)factor->dim, rank = (int)factor->rank;
    const auto bytes_of = [&](int summed, int made) {
        return with_numbers(made, [&](auto numbers) {
            constexpr int N = decltype(numbers)::value;
            return split ? shared_bytes<N, true>(summed) : shared_bytes<N, false>(summed);
        });
    };
    return cuda_state_of(be)->is_hopper &&
           tg_max(bytes_of(dim, rank), bytes_of(rank, dim)) <= cuda_state_of(be)->max_shared;
}

template <int N, core_side CORE, bool SPLIT>
static tg_status run_numbers(tg_backend *be, const mode_call *call) {
    const int64_t tiles = (call->matrices * call->n + 63) / 64;
    return tiles == 0
               ? TG_OK
               : launch_chained(be, "multiplying a mode", call->chained,
                                multiply_columns<N, CORE, SPLIT>, tiles, groups_of(N) * WG_THREADS,
                                shared_bytes<N, SPLIT>(call->summed), *call);
}

template <bool SPLIT>
static tg_status run_side(tg_backend *be, const mode_call *call, core_side side) {
    return with_numbers(call->made, [&](auto made) {
        constexpr int N = decltype(made)::value;
        return side == CORE_NOWHERE ? run_numbers<N, CORE_NOWHERE, SPLIT>(be, call)
               : side == CORE_IN    ? run_numbers<N, CORE_IN, SPLIT>(be, call)
               : side == CORE_OUT   ? run_numbers<N, CORE_OUT, SPLIT>(be, call)
                                    : run_numbers<N, CORE_BOTH, SPLIT>(be, call);
    });
}

tg_status cuda_sm90_mode(tg_backend *be, const mode_call *call, core_side side) {
    return call->split ? run_side<true>(be, call, side) : run_side<false>(be, call, side);
}
