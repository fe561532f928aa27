/* Fourier neural operator blocks in one kernel, and the backward pass through their sums: which
 * calls are supported, and the launches. The inverse transform runs along all dimensions but the
 * last here, and along the last one in the kernel (block_kernel.cuh, block_skips_kernel.cuh). */
#include "backend/cuda/fft/fft.cuh"
#include "backend/cuda/sm90/block_kernel.cuh"
#include "backend/cuda/sm90/block_skips_kernel.cuh"
#include "backend/cuda/tile/stage.cuh"

extern "C" {
#include "tensor/element.h"
}

/* ---- supported sizes ---- */

/* Steps of eight reals for a row's kept frequencies, without frequency 0, rounded up to a count
 * that has a kernel; 0: unsupported. */
static int steps_of(const fft_rows &rows) {
    return rows.kept <= 1 + 8 * 4 ? 8 : rows.kept <= 1 + 16 * 4 ? 16 : 0;
}

/* f(channels, steps) as constants. */
template <class F> static tg_status with_sizes(int64_t channels, int steps, F f) {
    return with_size<64, 128>(channels, [&](auto c) {
        return with_size<8, 16>(steps, [&](auto of) { return f(c, of); });
    });
}

static bool is_for_rows(const tg_backend *be, const tg_fft_desc *desc, fft_rows *rows) {
    return cuda_state_of(be)->is_hopper && be->math == TG_MATH_TF32 &&
           desc->grid_store == TG_STORE_FULL && cuda_fft_rows_of(desc, rows) &&
           rows->n % WG_PIXELS == 0 && steps_of(*rows) > 0;
}

template <class OP> static size_t rows_bytes(const OP *op, const fft_rows &rows) {
    return (size_t)(op->batch * op->channels * rows.rows * rows.pitch) * sizeof(float2);
}

bool cuda_block_workspace(tg_backend *be, const tg_block *op, size_t *bytes) {
    fft_rows rows;
    if (op->dtype != TG_F32 || op->store != TG_STORE_FULL || op->act > TG_ACT_GELU ||
        !is_for_rows(be, op->desc, &rows)) {
        return false;
    }
    if ((op->z1_quantized || op->z2_quantized) && rows.n % TG_QUANTIZED_BLOCK != 0) {
        return false;
    }
    *bytes = rows_bytes(op, rows);
    return (op->channels == 64 || op->channels == 128) &&
           (op->hidden == 0 || 2 * op->hidden == op->channels);
}

/* ---- waves ---- */

static int64_t waves_of(const fft_rows &rows) {
    return rows.n / WG_PIXELS * steps_of(rows) * WG_THREADS;
}

/* The weight at a pixel of a real number of a row's spectrum (re or im of a frequency). */
static double wave(int64_t number, int64_t pixel, const fft_rows &rows) {
    const int64_t k = number / 2;
    if (k >= rows.kept) {
        return 0.0;
    }
    const tg_scalar w = tg_root_of_unity(k * pixel % rows.n, rows.n); /* e^{-2 pi i k pixel / n} */
    const bool is_edge = k == 0 || 2 * k == rows.n;
    return number % 2 == 0 ? w.re : is_edge ? 0.0 : w.im;
}

/* In the order in which a kernel's threads read them (block_kernel.cuh). */
static void fill_waves(const tg_fft_desc *desc, void *out) {
    fft_rows rows = {};
    cuda_fft_rows_of(desc, &rows);
    __half *to = static_cast<__half *>(out);
    const int64_t pairs = steps_of(rows) / 2, all = waves_of(rows);
    for (int64_t i = 0; i < all; i++) {
        const int64_t thread = i / 2 % WG_THREADS, lane = thread % 32, warp = thread / 32;
        const int64_t pair = i / 2 / WG_THREADS; /* of steps, of all tiles */
        const int64_t step = pair % pairs * 2 + i % 2;
        const int64_t pixel = pair / pairs * WG_PIXELS + warp * 16 + lane / 4 * 2;
        for (int64_t e = 0; e < 4; e++) {
            const int64_t number = 2 + 8 * step + lane % 4 + e / 2 * 4;
            to[4 * i + e] = __double2half(wave(number, pixel + e % 2, rows));
        }
    }
}

tg_status cuda_block_prepare(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan *plan) {
    fft_rows rows;
    return is_for_rows(be, desc, &rows)
               ? cuda_fft_attach(be, plan, (size_t)waves_of(rows) * 4 * sizeof(__half), fill_waves)
               : TG_OK;
}

/* ---- the call ---- */

static block_bytes bytes_of(void *z, int64_t values) {
    return {static_cast<uint8_t *>(z), const_cast<float *>(scales_of(z, values))};
}

static block_task task_of(const tg_block *op, const fft_rows &rows) {
    const int64_t values = op->batch * op->channels * rows.rows * rows.n;
    block_task t = {};
    t.batch = (int)op->batch;
    t.rows = (int)rows.rows;
    t.width = (int)rows.n;
    t.image = rows.rows * rows.n;
    t.kept = (int)rows.kept;
    t.pitch = (int)rows.pitch;
    t.edge = (float)op->scale;
    t.inside = 2.0f * (float)op->scale; /* a half spectrum stands for both halves */
    t.s = static_cast<const float *>(op->workspace);
    t.waves = static_cast<const uint4 *>(cuda_fft_attached(op->fft));
    t.x = static_cast<const float *>(op->x);
    t.skip = static_cast<const float *>(op->skip);
    t.bias = static_cast<const float *>(op->bias);
    if (op->hidden > 0) {
        t.w1 = static_cast<const float *>(op->w1);
        t.b1 = static_cast<const float *>(op->b1);
        t.w2 = static_cast<const float *>(op->w2);
        t.b2 = static_cast<const float *>(op->b2);
        t.gate = static_cast<const float *>(op->gate);
        t.adds = op->adds;
        t.activates = op->act1 == TG_ACT_GELU;
        t.z2 = op->z2_quantized ? NULL : static_cast<float *>(op->z2);
        t.z2_bytes = op->z2_quantized ? bytes_of(op->z2, values) : block_bytes{};
        t.activated = static_cast<float *>(op->activated);
    }
    t.z1 = op->z1_quantized ? NULL : static_cast<float *>(op->z1);
    t.z1_bytes = op->z1_quantized ? bytes_of(op->z1, values) : block_bytes{};
    return t;
}

tg_status cuda_block_forward(tg_backend *be, const tg_block *op) {
    tg_path_report(be, "block", {"one kernel", "two_step_columns, block_forward"}, "%lld channels",
                   (long long)op->channels);
    fft_rows rows = {};
    cuda_fft_rows_of(op->desc, &rows);
    TG_CALL(cuda_fft_inverse_to_rows(be, op->fft, op->batch * op->channels, op->spectrum,
                                     op->workspace));
    return with_sizes(op->channels, steps_of(rows), [&](auto c, auto steps) {
        constexpr int C = decltype(c)::value, H = C / 2, STEPS = decltype(steps)::value;
        const bool quantized = op->z1_quantized || op->z2_quantized;
        const auto kernel = op->act == TG_ACT_GELU ? quantized
                                                         ? block_forward<C, H, STEPS, true, true>
                                                         : block_forward<C, H, STEPS, true, false>
                            : quantized ? block_forward<C, H, STEPS, false, true>
                                                   : block_forward<C, H, STEPS, false, false>;
        const int64_t units = op->batch * rows.rows;
        return units == 0
                   ? TG_OK
                   : launch_tiles(be, kernel, block_layout<C, H, STEPS>::BYTES,
                                  block_crew<C>::THREADS, (int)units, "a block", task_of(op, rows));
    });
}

/* ---- backward ---- */

static int blocks_of(const tg_backend *be, const tg_block_back *op, const fft_rows &rows) {
    return (int)tg_min(op->batch * rows.rows, cuda_state_of(be)->processors);
}

bool cuda_block_back_workspace(tg_backend *be, const tg_block_back *op, size_t *bytes) {
    fft_rows rows;
    const size_t c = (size_t)op->channels;
    if (op->dtype != TG_F32 || op->store != TG_STORE_FULL || op->act > TG_ACT_GELU ||
        (op->channels != 64 && op->channels != 128) || !is_for_rows(be, op->desc, &rows) ||
        rows.n % (128 / op->channels * WG_PIXELS) != 0 || rows.rows * rows.n > INT32_MAX) {
        return false;
    }
    *bytes = rows_bytes(op, rows) +
             (size_t)blocks_of(be, op, rows) * (c * c * sizeof(float) + 2 * c * sizeof(double));
    return true;
}

static skips_task task_of(const tg_block_back *op, const fft_rows &rows, int blocks) {
    skips_task t = {};
    t.batch = (int)op->batch;
    t.rows = (int)rows.rows;
    t.width = (int)rows.n;
    t.kept = (int)rows.kept;
    t.pitch = (int)rows.pitch;
    t.scale = (float)op->scale;
    t.through = op->through && op->act != TG_ACT_NONE;
    t.s = static_cast<const float *>(op->workspace);
    t.waves = static_cast<const uint4 *>(cuda_fft_attached(op->fft));
    t.x = op->x;
    t.scales =
        op->x_quantized ? scales_of(op->x, op->batch * op->channels * rows.rows * rows.n) : NULL;
    t.dz1 = static_cast<const float *>(op->dz1);
    t.dz2 = static_cast<const float *>(op->dz2);
    t.skip = static_cast<const float *>(op->skip);
    t.gate = static_cast<const float *>(op->gate);
    t.dx = static_cast<float *>(op->dx);
    t.dbias = reinterpret_cast<double *>(static_cast<char *>(op->workspace) + rows_bytes(op, rows));
    t.dgate = t.dbias + blocks * op->channels;
    t.dskip = reinterpret_cast<float *>(t.dgate + blocks * op->channels);
    return t;
}

static tg_status fold(tg_backend *be, const tg_block_back *op, const skips_task &t, int blocks) {
    const int c = (int)op->channels;
    const fold_jobs jobs = {{fold_matrix(t.dskip, c, c, op->dskip),
                             fold_sums(t.dbias, c, op->dbias), fold_sums(t.dgate, c, op->dgate)},
                            3,
                            blocks,
                            {1.0, 1.0, 1.0}};
    return fold_partials(be, jobs);
}

tg_status cuda_block_backward(tg_backend *be, const tg_block_back *op) {
    tg_path_report(be, "block backward", {"one kernel", "two_step_columns, block_skips_backward"},
                   "%lld channels", (long long)op->channels);
    fft_rows rows = {};
    cuda_fft_rows_of(op->desc, &rows);
    const int blocks = blocks_of(be, op, rows);
    if (blocks == 0) {
        return TG_OK;
    }
    const skips_task t = task_of(op, rows, blocks);
    TG_CALL(cuda_fft_inverse_to_rows(be, op->fft, op->batch * op->channels, op->spectrum,
                                     op->workspace));
    TG_CALL(with_sizes(op->channels, steps_of(rows), [&](auto c, auto steps) {
        constexpr int C = decltype(c)::value, STEPS = decltype(steps)::value;
        const bool acts = op->act == TG_ACT_GELU;
        const auto kernel = t.scales ? acts ? block_skips_backward<C, STEPS, true, true>
                                            : block_skips_backward<C, STEPS, false, true>
                            : acts ? block_skips_backward<C, STEPS, true, false>
                                     : block_skips_backward<C, STEPS, false, false>;
        return launch_tiles(be, kernel, skips_layout<C, STEPS>::BYTES, TILE_THREADS, blocks,
                            "a block backwards", t);
    }));
    return fold(be, op, t, blocks);
}
