/* Short transforms in registers: v[k] = sum_n v[n] e^{-2 pi i k n / radix}, in natural order. */
#ifndef TG_BACKEND_CUDA_FFT_BUTTERFLY_CUH
#define TG_BACKEND_CUDA_FFT_BUTTERFLY_CUH

#include "backend/cuda/core/element.cuh"

/* A complex number loaded and stored in one access: in shared memory and in the plan's own
 * arrays. */
template <class R> struct alignas(2 * sizeof(R)) slot { R re, im; };

template <class R> __device__ inline pair<R> take(const slot<R> &x) {
    return {x.re, x.im};
}

__device__ inline pair<float> root_at(const slot<float> *roots, int j) {
    const float2 w = __ldg(reinterpret_cast<const float2 *>(roots) + j);
    return {w.x, w.y};
}
__device__ inline pair<double> root_at(const slot<double> *roots, int j) {
    const double2 w = __ldg(reinterpret_cast<const double2 *>(roots) + j);
    return {w.x, w.y};
}

/* Times -i. */
template <class R> __device__ inline pair<R> times_minus_i(pair<R> x) {
    return {x.im, -x.re};
}

template <class R> __device__ inline void transform_2(pair<R> &a, pair<R> &b) {
    const pair<R> sum = a + b;
    b = a - b;
    a = sum;
}

template <class R>
__device__ inline void transform_4(pair<R> &a, pair<R> &b, pair<R> &c, pair<R> &d) {
    const pair<R> even = a + c, even_odd = a - c, odd = b + d, odd_odd = times_minus_i(b - d);
    a = even + odd;
    b = even_odd + odd_odd;
    c = even - odd;
    d = even_odd - odd_odd;
}

template <class R> __device__ inline void transform_8(pair<R> (&v)[8]) {
    const R h = (R)0.70710678118654752440;
    transform_4(v[0], v[2], v[4], v[6]);
    transform_4(v[1], v[3], v[5], v[7]);
    const pair<R> odd[4] = {v[1],
                            {h * (v[3].re + v[3].im), h * (v[3].im - v[3].re)},
                            times_minus_i(v[5]),
                            {h * (v[7].im - v[7].re), -h * (v[7].re + v[7].im)}};
    const pair<R> even[4] = {v[0], v[2], v[4], v[6]};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        v[k] = even[k] + odd[k];
        v[k + 4] = even[k] - odd[k];
    }
}

/* Four by four: n = a + 4 b, k = 4 c + d. */
template <class R> __device__ inline void transform_16(pair<R> (&v)[16]) {
    const R h = (R)0.70710678118654752440, x = (R)0.92387953251128675613,
            y = (R)0.38268343236508977173;
#pragma unroll
    for (int a = 0; a < 4; a++) {
        transform_4(v[a], v[a + 4], v[a + 8], v[a + 12]);
    }
    /* v[a + 4 d] times e^{-2 pi i a d / 16} */
    v[5] = v[5] * pair<R>{x, -y};
    v[6] = {h * (v[6].re + v[6].im), h * (v[6].im - v[6].re)};
    v[7] = v[7] * pair<R>{y, -x};
    v[9] = {h * (v[9].re + v[9].im), h * (v[9].im - v[9].re)};
    v[10] = times_minus_i(v[10]);
    v[11] = {h * (v[11].im - v[11].re), -h * (v[11].re + v[11].im)};
    v[13] = v[13] * pair<R>{y, -x};
    v[14] = {h * (v[14].im - v[14].re), -h * (v[14].re + v[14].im)};
    v[15] = v[15] * pair<R>{-x, y};
#pragma unroll
    for (int d = 0; d < 4; d++) {
        transform_4(v[4 * d], v[4 * d + 1], v[4 * d + 2], v[4 * d + 3]);
    }
    /* v[4 d + c] is frequency 4 c + d */
#pragma unroll
    for (int c = 0; c < 4; c++) {
#pragma unroll
        for (int d = 0; d < c; d++) {
            const pair<R> other = v[4 * d + c];
            v[4 * d + c] = v[4 * c + d];
            v[4 * c + d] = other;
        }
    }
}

/* e^{-2 pi i m / 32}; m is a compile-time constant. */
template <class R> __device__ inline pair<R> root_of_32(int m) {
    const R cosines[9] = {(R)1,
                          (R)0.98078528040323044913,
                          (R)0.92387953251128675613,
                          (R)0.83146961230254523708,
                          (R)0.70710678118654752440,
                          (R)0.55557023301960222474,
                          (R)0.38268343236508977173,
                          (R)0.19509032201612826785,
                          (R)0};
    const int turn = m & 31, quarter = turn / 8, low = turn % 8;
    const R c = cosines[low], s = cosines[8 - low];
    return quarter == 0   ? pair<R>{c, -s}
           : quarter == 1 ? pair<R>{-s, -c}
           : quarter == 2 ? pair<R>{-c, s}
                          : pair<R>{s, c};
}

/* Eight by four: n = a + 4 b, k = 8 c + d. */
template <class R> __device__ inline void transform_32(pair<R> (&v)[32]) {
    pair<R> u[4][8];
#pragma unroll
    for (int a = 0; a < 4; a++) {
#pragma unroll
        for (int b = 0; b < 8; b++) {
            u[a][b] = v[a + 4 * b];
        }
        transform_8(u[a]);
    }
#pragma unroll
    for (int d = 0; d < 8; d++) {
#pragma unroll
        for (int a = 1; a < 4 && d > 0; a++) {
            u[a][d] = u[a][d] * root_of_32<R>(a * d);
        }
        transform_4(u[0][d], u[1][d], u[2][d], u[3][d]);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            v[8 * c + d] = u[c][d];
        }
    }
}

/* An odd prime, by the definition; sums and differences of opposite points halve the products.
 * root j of `prime` is roots[j * unit]. */
template <int prime, class R>
__device__ inline void transform_prime(pair<R> (&v)[prime], const slot<R> *roots, int unit) {
    constexpr int half = prime / 2;
    pair<R> sum[half], difference[half], root[half]; /* of points or roots 1 .. half */
    pair<R> total = v[0];
#pragma unroll
    for (int j = 0; j < half; j++) {
        root[j] = root_at(roots, (j + 1) * unit);
        sum[j] = v[j + 1] + v[prime - 1 - j];
        difference[j] = v[j + 1] - v[prime - 1 - j];
        total = total + sum[j];
    }
#pragma unroll
    for (int k = 1; k <= half; k++) {
        pair<R> even = v[0], odd = {0, 0};
#pragma unroll
        for (int j = 1; j <= half; j++) {
            const int at = j * k % prime;
            const pair<R> w = root[(at <= half ? at : prime - at) - 1];
            even = even + w.re * sum[j - 1];
            odd = odd + (at <= half ? w.im : -w.im) * difference[j - 1];
        }
        v[k] = {even.re - odd.im, even.im + odd.re};
        v[prime - k] = {even.re + odd.im, even.im - odd.re};
    }
    v[0] = total;
}

/* `unit`: number of points of the table of roots over `radix`. */
template <int radix, class R>
__device__ inline void transform_short(pair<R> (&v)[radix], const slot<R> *roots, int unit) {
    if constexpr (radix == 2) {
        transform_2(v[0], v[1]);
    } else if constexpr (radix == 4) {
        transform_4(v[0], v[1], v[2], v[3]);
    } else if constexpr (radix == 8) {
        transform_8(v);
    } else if constexpr (radix == 16) {
        transform_16(v);
    } else if constexpr (radix == 32) {
        transform_32(v);
    } else if constexpr (radix > 2) {
        transform_prime<radix>(v, roots, unit);
    }
}

/* v[i] times root number i * step. Roots at powers of two are loaded; the others are products of
 * them, which keeps errors small. */
template <int radix, class R>
__device__ inline void apply_twiddles(pair<R> (&v)[radix], const slot<R> *roots, int step) {
    pair<R> w[radix];
#pragma unroll
    for (int i = 1; i < radix; i++) {
        const int rest = i & (i - 1);
        w[i] = rest ? w[rest] * w[i - rest] : root_at(roots, i * step);
        v[i] = v[i] * w[i];
    }
}

#endif
