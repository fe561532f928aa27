/* The spectral convolution at the kept modes: for every mode a matrix of channels times a vector,
 *   forward   dst[b,o,k] = sum_i src[b,i,k] weight[i,o,k]
 *   adjoint   dst[b,i,k] = sum_o src[b,o,k] conj(weight[i,o,k])
 *
 * It is bound by reading the weight, so the weight is read once, along its contiguous modes: a lane
 * owns one mode, TO channels of dst and up to B samples, and sums over the channels of src. The
 * warps of a block share their modes, so that src comes from the first-level cache. Where there are
 * few of them for the device, several share the sum, too, and the first adds up what all have. */
#include "backend/cuda/nn/nn.cuh"

enum {
    LANES = 32,
    TO = 4,
    MOST_ROWS = 8,           /* a block is LANES modes by up to MOST_ROWS * TO channels */
    MOST_PARTS = 4,          /* of a sum */
    FEWEST_CHANNELS = 8,     /* of src in a part */
    WARPS_A_PROCESSOR = 16,  /* that hide the time of loads */
    SHARED_BYTES = 48 * 1024 /* that need not be asked for */
};

struct contract_sizes {
    int64_t batch, from, to, modes;
    int64_t from_step, to_step; /* of the weight, in elements */
    bool conjugated;
};

/* A complex number in memory, with the alignment of one access where the arrays have it. */
template <class T, bool WHOLE> struct alignas(WHOLE ? 2 * sizeof(T) : sizeof(T)) stored_pair {
    T re, im;
};

/* sum += a b */
template <class R> static __device__ inline void add_product(pair<R> &sum, pair<R> a, pair<R> b) {
    sum.re = fma(a.re, b.re, fma(-a.im, b.im, sum.re));
    sum.im = fma(a.re, b.im, fma(a.im, b.re, sum.im));
}

/* What a lane reads for N channels of src: all of it is asked for before any of it is used. */
template <class W, class S, int N, int B, bool WHOLE> struct operands {
    stored_pair<W, WHOLE> w[N][TO];
    stored_pair<S, WHOLE> x[N][B];
};

/* Adds the products of N channels of src. weight and src point at the lane's mode of the first of
 * them; only `targets` and `samples` of the sums are used, so that the others may repeat them. */
template <class W, class S, int N, int B, bool WHOLE>
static __device__ inline void add_channels(const contract_sizes &s,
                                           const stored_pair<W, WHOLE> *weight,
                                           const stored_pair<S, WHOLE> *src, int targets,
                                           int samples, pair<real_of<S>> (&sum)[TO][B]) {
    using R = real_of<S>;
    const R sign = s.conjugated ? R(-1) : R(1);
    operands<W, S, N, B, WHOLE> in;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int t = 0; t < TO; t++) {
            in.w[n][t] = weight[n * s.from_step + (t < targets ? t : 0) * s.to_step];
        }
#pragma unroll
        for (int b = 0; b < B; b++) {
            in.x[n][b] = src[((b < samples ? b : 0) * s.from + n) * s.modes];
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int t = 0; t < TO; t++) {
            const pair<R> w = {widen(in.w[n][t].re), sign * widen(in.w[n][t].im)};
#pragma unroll
            for (int b = 0; b < B; b++) {
                const pair<R> x = {widen(in.x[n][b].re), widen(in.x[n][b].im)};
                add_product(sum[t][b], w, x);
            }
        }
    }
}

/* What the parts of a sum have, added to that of the first one in their order. */
template <class R, int B> static __device__ inline void add_parts(pair<R> (&sum)[TO][B]) {
    extern __shared__ double shared[]; /* (parts - 1, rows, TO, B, LANES) */
    const int part = threadIdx.z, rows = blockDim.y, parts = blockDim.z;
    pair<R> *sums = reinterpret_cast<pair<R> *>(shared);
    for (int from = 1; from < parts; from++) {
        pair<R> *at =
            sums + ((from - 1) * rows + (int)threadIdx.y) * (TO * B * LANES) + threadIdx.x;
        if (part == from) {
#pragma unroll
            for (int i = 0; i < TO * B; i++) {
                at[i * LANES] = sum[i / B][i % B];
            }
        }
    }
    __syncthreads();
    for (int from = 1; from < parts && part == 0; from++) {
        const pair<R> *at =
            sums + ((from - 1) * rows + (int)threadIdx.y) * (TO * B * LANES) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < TO * B; i++) {
            sum[i / B][i % B] = sum[i / B][i % B] + at[i * LANES];
        }
    }
}

/* W, S: storage of the weight, and of src and dst. Samples blockIdx.z * B + 0 .. B - 1. */
template <class W, class S, int B, bool WHOLE>
static __global__ void __launch_bounds__(LANES *MOST_ROWS)
    contract(contract_sizes s, const stored_pair<W, WHOLE> *weight,
             const stored_pair<S, WHOLE> *src, stored_pair<S, WHOLE> *dst) {
    constexpr int N = B > 2 ? 2 : 4;
    const int64_t k = (int64_t)blockIdx.x * LANES + threadIdx.x;
    const int64_t t0 = ((int64_t)blockIdx.y * blockDim.y + threadIdx.y) * TO;
    const int64_t b0 = (int64_t)blockIdx.z * B;
    const bool exists = k < s.modes && t0 < s.to;
    if (!exists && blockDim.z == 1) {
        return;
    }
    const int samples = s.batch - b0 < B ? (int)(s.batch - b0) : B;
    const int targets = s.to - t0 < TO ? (int)(s.to - t0) : TO;
    pair<real_of<S>> sum[TO][B] = {};
    weight += t0 * s.to_step + k;
    src += b0 * s.from * s.modes + k;
    int64_t f = s.from * threadIdx.z / blockDim.z;
    const int64_t end = exists ? s.from * (threadIdx.z + 1) / blockDim.z : f;
    for (; f + N <= end; f += N) {
        add_channels<W, S, N, B, WHOLE>(s, weight + f * s.from_step, src + f * s.modes, targets,
                                        samples, sum);
    }
    for (; f < end; f++) {
        add_channels<W, S, 1, B, WHOLE>(s, weight + f * s.from_step, src + f * s.modes, targets,
                                        samples, sum);
    }
    if (blockDim.z > 1) {
        add_parts(sum);
    }
#pragma unroll
    for (int t = 0; t < TO; t++) {
#pragma unroll
        for (int b = 0; b < B; b++) {
            if (exists && threadIdx.z == 0 && t < targets && b < samples) {
                dst[((b0 + b) * s.to + t0 + t) * s.modes + k] = {narrow<S>(sum[t][b].re),
                                                                 narrow<S>(sum[t][b].im)};
            }
        }
    }
}

/* Parts of the sums of `warps` warps. */
static int64_t parts_of(const tg_backend *be, const contract_sizes &s, int64_t warps) {
    const int64_t wanted = (int64_t)cuda_state_of(be)->processors * WARPS_A_PROCESSOR / warps;
    const int64_t channels = s.from / FEWEST_CHANNELS, most = MOST_PARTS;
    const int64_t parts = wanted < channels ? wanted : channels;
    return parts < 1 ? 1 : parts < most ? parts : most;
}

template <class W, class S, int B, bool WHOLE>
static tg_status launch(tg_backend *be, const tg_spectral *op, const contract_sizes &s) {
    const int64_t across = (s.modes + LANES - 1) / LANES, most = 65535;
    const int64_t groups = (s.to + TO - 1) / TO, slices = (s.batch + B - 1) / B;
    const int64_t enough = (int64_t)cuda_state_of(be)->processors * 2;
    int rows = MOST_ROWS; /* fewer where there would be too few blocks */
    while (rows > 1 && across * ((groups + rows - 1) / rows) * slices < enough) {
        rows /= 2;
    }
    int64_t parts = parts_of(be, s, across * groups * slices);
    const int64_t sums = TO * B * LANES * (int64_t)sizeof(pair<real_of<S>>);
    while (rows > 1 && (rows * parts > MOST_ROWS || (parts - 1) * rows * sums > SHARED_BYTES)) {
        rows /= 2;
    }
    while ((parts - 1) * sums > SHARED_BYTES) {
        parts--;
    }
    const int64_t down = (groups + rows - 1) / rows;
    if (down > most || slices > most) {
        return tg_fail(be->ctx, TG_E_SHAPE,
                       "spectral_contract: %lld channels, %lld samples: more "
                       "than a grid has room for",
                       (long long)s.to, (long long)s.batch);
    }
    const dim3 grid((unsigned)across, (unsigned)down, (unsigned)slices);
    const dim3 block(LANES, (unsigned)rows, (unsigned)parts);
    const size_t shared = (size_t)((parts - 1) * rows * sums);
    contract<W, S, B, WHOLE><<<grid, block, shared, cuda_stream(be)>>>(
        s, static_cast<const stored_pair<W, WHOLE> *>(op->weight),
        static_cast<const stored_pair<S, WHOLE> *>(op->src),
        static_cast<stored_pair<S, WHOLE> *>(op->dst));
    return CUDA_LAUNCHED(be, "multiplying spectra");
}

template <class T> static bool is_whole(const void *x) {
    return (uintptr_t)x % (2 * sizeof(T)) == 0;
}

/* As many samples in registers as there are; several slices of 8 beyond that. */
template <class W, class S> static tg_status choose(tg_backend *be, const tg_spectral *op) {
    const contract_sizes s = {op->batch,
                              op->adjoint ? op->out : op->in,
                              op->adjoint ? op->in : op->out,
                              op->modes,
                              op->adjoint ? op->modes : op->out * op->modes,
                              op->adjoint ? op->out * op->modes : op->modes,
                              op->adjoint};
    if (s.batch == 0 || s.to == 0 || s.modes == 0) {
        return TG_OK;
    }
    if (!is_whole<W>(op->weight) || !is_whole<S>(op->src) || !is_whole<S>(op->dst)) {
        return launch<W, S, 1, false>(be, op, s);
    }
    return s.batch == 1   ? launch<W, S, 1, true>(be, op, s)
           : s.batch == 2 ? launch<W, S, 2, true>(be, op, s)
           : s.batch <= 4 ? launch<W, S, 4, true>(be, op, s)
                          : launch<W, S, 8, true>(be, op, s);
}

static tg_status cuda_spectral_contract(tg_backend *be, const tg_spectral *op) {
    tg_status status = tg_check_spectral(be->ctx, op);
    if (status != TG_OK) {
        return status;
    }
    if (op->dtype == TG_C128) {
        return choose<double, double>(be, op);
    }
    return with_storage(op->weight_store, [&](auto weight) {
        return with_storage(op->store, [&](auto spectra) {
            return choose<typename decltype(weight)::type, typename decltype(spectra)::type>(be,
                                                                                             op);
        });
    });
}

void cuda_fill_nn_spectral(tg_backend_ops *ops) {
    ops->spectral_contract = cuda_spectral_contract;
}
