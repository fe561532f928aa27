/* What kernels of a mode in front of others share (mode_columns.cu, half_columns.cu): numbers come
 * in steps of 8, through a ring of the warp that multiplies them, and become first factors. */
#ifndef TG_BACKEND_CUDA_SM90_MODE_STEPS_CUH
#define TG_BACKEND_CUDA_SM90_MODE_STEPS_CUH

#include "backend/cuda/compress/mode_columns.cuh"
#include "backend/cuda/tile/pipeline.cuh"

enum {
    STEP_BYTES = 16 * 80, /* of a warp: 8 numbers, 2 parts, 16 columns; rows in other banks */
    PAIR_BYTES = 160      /* of a number of the core: 16 columns, parts together */
};

/* Bytes of a part of U. */
template <int N> static __host__ __device__ inline int part_bytes(int summed) {
    return (summed + 31) / 32 * (N * 128);
}

/* The columns of a warp: where a lane copies from. */
template <bool CORE> struct step_reader;

template <> struct step_reader<false> {
    const float *next;
    bool exists;

    __device__ void begin(const mode_call &s, int64_t first, int lane) {
        const int64_t c = first + 4 * (lane % 4), matrix = c / s.n;
        exists = matrix < s.matrices;
        next = s.in + lane / 4 % 2 * s.in_part;
        next += exists ? matrix * s.in_matrix + (c - matrix * s.n) + lane / 8 * s.in_number : 0;
    }
    __device__ void fetch(const mode_call &s, int step, char *to, int lane) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool counts = exists && 8 * step + lane / 8 + 4 * h < s.summed;
            copy_async<16>(to + (lane / 4 + 8 * h) * 80 + lane % 4 * 16,
                           counts ? next + 4 * h * s.in_number : s.in, counts);
        }
        next += 8 * s.in_number;
    }
    /* Of numbers t and t + 4: the parts of both rows. */
    static __device__ void take(const char *from, int lane, float4 *re, float4 *im) {
        const char *at = from + lane % 4 * 160 + lane / 4 * 8;
        const float2 r0 = *reinterpret_cast<const float2 *>(at);
        const float2 i0 = *reinterpret_cast<const float2 *>(at + 80);
        const float2 r1 = *reinterpret_cast<const float2 *>(at + 640);
        const float2 i1 = *reinterpret_cast<const float2 *>(at + 720);
        *re = make_float4(r0.x, r0.y, r1.x, r1.y);
        *im = make_float4(i0.x, i0.y, i1.x, i1.y);
    }
};

template <> struct step_reader<true> {
    const number<float, 2> *next;
    int at[2]; /* of both its columns in a row of the core */

    __device__ void begin(const mode_call &s, int64_t first, int lane) {
        next = s.source + lane / 8 * s.row;
        at[0] = in_core(s, (int)first + lane % 8 * 2, s.source_matrix);
        at[1] = in_core(s, (int)first + lane % 8 * 2 + 1, s.source_matrix);
    }
    __device__ void fetch(const mode_call &s, int step, char *to, int lane) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool row = 8 * step + lane / 8 + 4 * h < s.summed;
            char *pair = to + (lane / 8 + 4 * h) * PAIR_BYTES + lane % 8 * 16;
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const bool counts = row && at[c] >= 0;
                const float *from = reinterpret_cast<const float *>(
                    counts ? next + 4 * h * s.row + at[c] : s.source);
                if (s.wide) {
                    if (c == 0) {
                        copy_async<16>(pair, from, counts);
                    }
                } else if (s.whole) {
                    copy_async<8>(pair + 8 * c, from, counts);
                } else {
                    copy_async<4>(pair + 8 * c, from, counts);
                    copy_async<4>(pair + 8 * c + 4, from + 1, counts);
                }
            }
        }
        next += 8 * s.row;
    }
    static __device__ void take(const char *from, int lane, float4 *re, float4 *im) {
        const char *at = from + lane % 4 * PAIR_BYTES + lane / 4 * 16;
        const float4 a = *reinterpret_cast<const float4 *>(at);
        const float4 b = *reinterpret_cast<const float4 *>(at + 4 * PAIR_BYTES);
        *re = make_float4(a.x, a.z, b.x, b.z);
        *im = make_float4(a.y, a.w, b.y, b.w);
    }
};

/* A lane's factors of a step, and their second terms; made when nothing is multiplied, as products
 * own registers, and in registers of their own. */
template <bool SPLIT> struct step_factor {
    float4 first, second;

    __device__ step_factor(float4 x, float sign) {
        wg_hold(x);
        first = make_float4(first_of(x.x, sign), first_of(x.y, sign), first_of(x.z, sign),
                            first_of(x.w, sign));
        if constexpr (SPLIT) {
            second = make_float4(to_tf32(sign * x.x - first.x), to_tf32(sign * x.y - first.y),
                                 to_tf32(sign * x.z - first.z), to_tf32(sign * x.w - first.w));
        }
    }
    static __device__ float first_of(float x, float sign) {
        return SPLIT ? sign * cut(x) : sign * to_tf32(1.0f) * x;
    }
    /* sum += its product with rows of U, or with both terms of them. */
    template <int D>
    __device__ void multiply(float (&sum)[D], uint64_t rows, uint64_t behind, bool adds) const {
        wg_product(sum, first, rows, adds);
        if constexpr (SPLIT) {
            wg_product(sum, first, rows + behind, true);
            wg_product(sum, second, rows, true);
        }
    }
};

#endif
