/* The spectral convolution at the kept modes: for every mode a matrix of channels times a vector,
 *   forward   dst[b,o,k] = sum_i src[b,i,k] weight[i,o,k]
 *   adjoint   dst[b,i,k] = sum_o src[b,o,k] conj(weight[i,o,k])
 *
 * Bound by reading the weight, which is therefore read once, along its contiguous modes. A lane
 * owns one mode, TO channels of dst and up to B samples, and sums over the channels of src. Its
 * factors are prefetched to shared memory STAGES - 1 steps ahead: the weight per lane, src for all
 * warps of a block, which have the same modes. Where there are too few warps for the device,
 * several split the sum, and the first adds their parts. */
#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/instructions.cuh"

enum {
    LANES = 32,
    TO = 4,
    N = 2,                    /* channels of src in a stage */
    STAGES = 4,               /* of shared memory, one of them in use */
    MAX_ROWS = 8,             /* a block is LANES modes by up to MAX_ROWS * TO channels */
    MAX_PARTS = 4,            /* of a sum */
    MIN_CHANNELS = 8,         /* of src in a part */
    WARPS_PER_SM = 16,        /* that keep a multiprocessor busy */
    SHARED_BYTES = 160 * 1024 /* of a block; an A100 has 163 KiB */
};

struct contract_sizes {
    int64_t batch, from, to, modes;
    int64_t from_step, to_step; /* of the weight, in elements */
    bool conjugated;
    bool runs; /* the weight's modes come in runs of 16 bytes, aligned */
};

/* A complex number in memory, with the alignment of one access where the arrays have it. */
template <class T, bool WHOLE> struct alignas(WHOLE ? 2 * sizeof(T) : sizeof(T)) stored_pair {
    T re, im;
};

/* Threads per block, limited by the registers for their sums. */
template <class S, int B> constexpr int most_warps = sizeof(real_of<S>) * B > 32 ? 8 : 16;

/* One stage of shared memory: w (warps, N, TO, LANES), x (parts, N, B, LANES). */
template <class W, class S, int B> struct stage_layout {
    using weights = stored_pair<W, true>;
    using sources = stored_pair<S, true>;
    static constexpr int warp_bytes = N * TO * LANES * (int)sizeof(weights);
    static constexpr int part_bytes = N * B * LANES * (int)sizeof(sources);
    static __host__ __device__ int bytes(int rows, int parts) {
        return rows * parts * warp_bytes + parts * part_bytes;
    }
};

/* Copies a number to shared memory, or 0 unless `counts`. Visible after copies_wait_all_but and,
 * for other threads, a barrier. */
template <class T, bool WHOLE>
static __device__ inline void bring(stored_pair<T, true> *to, const stored_pair<T, WHOLE> *from,
                                    bool counts) {
    if constexpr (WHOLE) {
        copy_async<2 * (int)sizeof(T)>(to, from, counts);
    } else {
        const T zero = narrow<T>(0);
        *to = {counts ? from->re : zero, counts ? from->im : zero};
    }
}

/* The weights of a warp for N channels of src, `left` of which exist, to w (N, TO, LANES): number
 * by number, or in runs, which occupy only some lanes of a line of LANES modes. weight and w point
 * at the lane's mode and its first target; `modes` counts the modes from there on. Numbers that do
 * not exist are 0. */
template <class W, bool RUNS, bool WHOLE>
static __device__ inline void fetch_weights(const contract_sizes &s,
                                            const stored_pair<W, WHOLE> *weight, int left,
                                            int targets, int64_t modes, stored_pair<W, true> *w) {
    constexpr int RUN = 16 / (int)sizeof(stored_pair<W, true>), ACROSS = LANES / RUN;
    if (RUNS && s.runs) {
        const int lane = threadIdx.x, line = lane / ACROSS, move = lane % ACROSS * RUN - lane;
#pragma unroll
        for (int i = 0; i < N * TO; i += RUN) {
            const int n = (i + line) / TO, t = (i + line) % TO;
            const bool counts = n < left && t < targets && move < modes;
            copy_async<16>(w + (i + line) * LANES + move,
                           weight + n * s.from_step + t * s.to_step + move, counts);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < N * TO; i++) {
        const int n = i / TO, t = i % TO;
        const bool counts = n < left && t < targets && modes > 0;
        bring<W, WHOLE>(w + i * LANES, weight + n * s.from_step + t * s.to_step, counts);
    }
}

/* Every rows-th line of the same channels of src, for the part of the sum, to x (N, B, LANES). */
template <class S, int B, bool WHOLE>
static __device__ inline void fetch_sources(const contract_sizes &s,
                                            const stored_pair<S, WHOLE> *src, int left, int samples,
                                            int64_t modes, stored_pair<S, true> *x) {
    for (int i = threadIdx.y; i < N * B; i += blockDim.y) {
        const int n = i / B, b = i % B;
        const bool counts = n < left && b < samples && modes > 0;
        bring<S, WHOLE>(x + i * LANES, src + (b * s.from + n) * s.modes, counts);
    }
}

/* Adds the products of a stage; w and x point at the lane's mode. */
template <class W, class S, int B>
static __device__ inline void add_stage(bool conjugated, const stored_pair<W, true> *w,
                                        const stored_pair<S, true> *x,
                                        pair<real_of<S>> (&sum)[TO][B]) {
    using R = real_of<S>;
    const R sign = conjugated ? R(-1) : R(1);
#pragma unroll
    for (int n = 0; n < N; n++) {
        pair<R> from[B];
#pragma unroll
        for (int b = 0; b < B; b++) {
            const stored_pair<S, true> at = x[(n * B + b) * LANES];
            from[b] = {widen(at.re), widen(at.im)};
        }
#pragma unroll
        for (int t = 0; t < TO; t++) {
            const stored_pair<W, true> at = w[(n * TO + t) * LANES];
            const pair<R> factor = {widen(at.re), sign * widen(at.im)};
#pragma unroll
            for (int b = 0; b < B; b++) {
                add_product(sum[t][b], factor, from[b]);
            }
        }
    }
}

extern __shared__ double2 shared_memory[];

/* Adds the sums of the other parts to that of the first, in order. */
template <class R, int B> static __device__ inline void add_parts(pair<R> (&sum)[TO][B]) {
    const int part = threadIdx.z, rows = blockDim.y, parts = blockDim.z;
    pair<R> *sums =
        reinterpret_cast<pair<R> *>(shared_memory); /* (parts - 1, rows, TO, B, LANES) */
    __syncthreads();                                /* the last stage is no longer read */
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
static __global__ void __launch_bounds__(LANES *most_warps<S, B>)
    contract(contract_sizes s, const stored_pair<W, WHOLE> *weight,
             const stored_pair<S, WHOLE> *src, stored_pair<S, WHOLE> *dst) {
    using layout = stage_layout<W, S, B>;
    const int rows = blockDim.y, part = threadIdx.z, parts = blockDim.z;
    const int64_t k = (int64_t)blockIdx.x * LANES + threadIdx.x;
    const int64_t t0 = ((int64_t)blockIdx.y * rows + threadIdx.y) * TO;
    const int64_t b0 = (int64_t)blockIdx.z * B;
    const int samples = s.batch - b0 < B ? (int)(s.batch - b0) : B;
    const int targets = t0 >= s.to ? 0 : s.to - t0 < TO ? (int)(s.to - t0) : TO;
    const int first = (int)(s.from * part / parts), end = (int)(s.from * (part + 1) / parts);
    const int count = (int)((s.from + parts - 1) / parts + N - 1) / N; /* stages of all parts */
    weight += t0 * s.to_step + k + first * s.from_step;
    src += (b0 * s.from + first) * s.modes + k;
    char *const base = reinterpret_cast<char *>(shared_memory);
    const int pitch = layout::bytes(rows, parts);
    const auto weights_of = [&](int stage) {
        char *at = base + stage % STAGES * pitch + (part * rows + threadIdx.y) * layout::warp_bytes;
        return reinterpret_cast<stored_pair<W, true> *>(at) + threadIdx.x;
    };
    const auto sources_of = [&](int stage) {
        char *at = base + stage % STAGES * pitch + parts * rows * layout::warp_bytes +
                   part * layout::part_bytes;
        return reinterpret_cast<stored_pair<S, true> *>(at) + threadIdx.x;
    };
    const auto begin = [&](int stage) {
        const int f = stage * N, left = end - first - f;
        if (stage < count) {
            fetch_weights<W, WHOLE && sizeof(W) == 2 && B <= 4, WHOLE>(
                s, weight + f * s.from_step, left, targets, s.modes - k, weights_of(stage));
            fetch_sources<S, B, WHOLE>(s, src + f * s.modes, left, samples, s.modes - k,
                                       sources_of(stage));
        }
        copies_commit(); /* even an empty group, so that the count stays right */
    };
    pair<real_of<S>> sum[TO][B] = {};
    pdl_wait_and_launch_dependents();
    for (int stage = 0; stage < STAGES - 1; stage++) {
        begin(stage);
    }
    for (int stage = 0; stage < count; stage++) {
        copies_wait_all_but<STAGES - 2>();
        __syncthreads();
        begin(stage + STAGES - 1);
        add_stage<W, S, B>(s.conjugated, weights_of(stage), sources_of(stage), sum);
    }
    if (parts > 1) {
        add_parts(sum);
    }
#pragma unroll
    for (int t = 0; t < TO; t++) {
#pragma unroll
        for (int b = 0; b < B; b++) {
            if (part == 0 && k < s.modes && t < targets && b < samples) {
                dst[((b0 + b) * s.to + t0 + t) * s.modes + k] = {narrow<S>(sum[t][b].re),
                                                                 narrow<S>(sum[t][b].im)};
            }
        }
    }
}

/* Number of parts per sum, given `warps` warps. */
static int parts_of(const tg_backend *be, const contract_sizes &s, int64_t warps) {
    const int64_t wanted = (int64_t)cuda_state_of(be)->processors * WARPS_PER_SM / warps;
    return (int)tg_max(tg_min(tg_min(wanted, s.from / MIN_CHANNELS), MAX_PARTS), 1);
}

/* Bytes of a block's shared memory: its stages, then the sums of all parts but the first. */
template <class W, class S, int B> static int64_t shared_bytes(int rows, int parts) {
    const int64_t stages = (int64_t)STAGES * stage_layout<W, S, B>::bytes(rows, parts);
    const int64_t sums =
        (int64_t)(parts - 1) * rows * TO * B * LANES * (int64_t)sizeof(pair<real_of<S>>);
    return tg_max(stages, sums);
}

template <class W, class S, int B, bool WHOLE>
static tg_status launch(tg_backend *be, const tg_spectral *op, const contract_sizes &s) {
    const int64_t across = (s.modes + LANES - 1) / LANES, most = 65535;
    const int64_t groups = (s.to + TO - 1) / TO, slices = (s.batch + B - 1) / B;
    const int64_t enough = cuda_state_of(be)->processors;
    int rows = MAX_ROWS; /* fewer where there would be too few blocks */
    while (rows > 1 && across * ((groups + rows - 1) / rows) * slices < enough) {
        rows /= 2;
    }
    int parts = parts_of(be, s, across * groups * slices);
    while (rows > 1 &&
           (rows * parts > most_warps<S, B> || shared_bytes<W, S, B>(rows, parts) > SHARED_BYTES)) {
        rows /= 2;
    }
    while (parts > 1 && shared_bytes<W, S, B>(rows, parts) > SHARED_BYTES) {
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
    return launch_pdl(be, "multiplying spectra", contract<W, S, B, WHOLE>, grid, block,
                      (size_t)shared_bytes<W, S, B>(rows, parts), s,
                      static_cast<const stored_pair<W, WHOLE> *>(op->weight),
                      static_cast<const stored_pair<S, WHOLE> *>(op->src),
                      static_cast<stored_pair<S, WHOLE> *>(op->dst));
}

template <class T> static bool is_whole(const void *x) {
    return (uintptr_t)x % (2 * sizeof(T)) == 0;
}

/* Keeps all samples in registers; more than 8 in slices of 8. */
template <class W, class S> static tg_status choose(tg_backend *be, const tg_spectral *op) {
    const contract_sizes s = {op->batch,
                              op->adjoint ? op->out : op->in,
                              op->adjoint ? op->in : op->out,
                              op->modes,
                              op->adjoint ? op->modes : op->out * op->modes,
                              op->adjoint ? op->out * op->modes : op->modes,
                              op->adjoint,
                              op->modes % (16 / (2 * (int64_t)sizeof(W))) == 0 &&
                                  (uintptr_t)op->weight % 16 == 0};
    if (s.batch == 0 || s.to == 0 || s.modes == 0) {
        return TG_OK;
    }
    if (!is_whole<W>(op->weight) || !is_whole<S>(op->src) || !is_whole<S>(op->dst)) {
        return launch<W, S, 1, false>(be, op, s);
    }
    return with_size<1, 2, 4, 8>(s.batch, [&](auto samples) {
        return launch<W, S, decltype(samples)::value, true>(be, op, s);
    });
}

tg_status cuda_spectral_contract(tg_backend *be, const tg_spectral *op) {
    TG_CALL(tg_check_spectral(be->ctx, op));
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
