/* Pruned Fourier transforms by definition, one dimension at a time.
 *
 * A line of N points and K kept frequencies takes N K products with e^{-2 pi i j / N} from a table
 * over j; the index j = k n mod N is exact, so large k n lose no precision. Forward goes from the
 * last dimension to the first, inverse from the first to the last, where real data use the
 * symmetry: x[n] = Re sum_k w_k X[k] e^{2 pi i k n / N}, w = 1 at index 0 and Nyquist (their
 * imaginary parts dropped) and 2 elsewhere. The plan owns two buffers of one grid each. */
#include "backend/ref/ref.h"
#include "tensor/element.h"

struct tg_fft_plan {
    tg_fft_desc desc;
    int64_t points;        /* of one grid */
    int64_t modes;         /* kept of one grid */
    tg_scalar *roots[3];   /* (N_d): e^{-2 pi i j / N_d} */
    tg_scalar *buffers[2]; /* (points) each: every dimension goes from one to the other */
};

void ref_fft_destroy(tg_backend *be, tg_fft_plan **plan) {
    if (!plan || !*plan) {
        return;
    }
    for (int d = 0; d < 3; d++) {
        tg_mem_free(be->ctx, (*plan)->roots[d]);
    }
    tg_mem_free(be->ctx, (*plan)->buffers[0]);
    tg_mem_free(be->ctx, (*plan)->buffers[1]);
    TG_FREE(be->ctx, *plan);
}

tg_status ref_fft_create(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan **out) {
    tg_status status = TG_OK;
    tg_fft_plan *plan = NULL;
    *out = NULL;
    TG_TRY(tg_check_fft(be->ctx, desc));
    TG_TRY(TG_NEW(be->ctx, TG_MEM_WORKSPACE, plan, 1));
    plan->desc = *desc;
    plan->points = plan->modes = 1;
    for (int d = 0; d < desc->ndim; d++) {
        plan->points *= desc->grid[d];
        plan->modes *= desc->kept[d];
        TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, plan->roots[d], desc->grid[d]));
        for (int64_t j = 0; j < desc->grid[d]; j++) {
            plan->roots[d][j] = tg_root_of_unity(j, desc->grid[d]);
        }
    }
    for (int i = 0; i < 2; i++) {
        TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, plan->buffers[i], plan->points));
    }
    *out = plan;
    return TG_OK;
fail:
    ref_fft_destroy(be, &plan);
    return status;
}

/* e^{-2 pi i f n / N} for kept frequency number k of dimension d. */
static tg_scalar twiddle(const tg_fft_plan *plan, int d, int64_t k, int64_t n) {
    const int64_t grid = plan->desc.grid[d];
    const int64_t frequency = (plan->desc.first[d] + k + grid) % grid;
    return plan->roots[d][frequency * n % grid];
}

/* Dimension d of buffer `from`, seen as (outer, N_d or K_d, inner), into the other buffer. */
static void transform(tg_fft_plan *plan, int d, bool inverse, int64_t outer, int64_t inner,
                      int from) {
    const int64_t grid = plan->desc.grid[d], kept = plan->desc.kept[d];
    const int64_t in_size = inverse ? kept : grid, out_size = inverse ? grid : kept;
    const tg_scalar *in = plan->buffers[from];
    tg_scalar *out = plan->buffers[1 - from];
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t j = 0; j < out_size; j++) {
            for (int64_t i = 0; i < inner; i++) {
                tg_scalar sum = {0};
                for (int64_t s = 0; s < in_size; s++) {
                    const tg_scalar w =
                        inverse ? ref_conj(twiddle(plan, d, s, j)) : twiddle(plan, d, j, s);
                    sum = ref_add(sum, ref_mul(w, in[(o * in_size + s) * inner + i]));
                }
                out[(o * out_size + j) * inner + i] = sum;
            }
        }
    }
}

static tg_dtype grid_dtype(const tg_fft_desc *desc) {
    return tg_stored(desc->complex ? tg_dtype_complex(desc->dtype) : desc->dtype, desc->grid_store);
}

static tg_dtype kept_dtype(const tg_fft_desc *desc) {
    return tg_stored(tg_dtype_complex(desc->dtype), desc->kept_store);
}

/* Whether an index of the last dimension of a half spectrum has no conjugate partner. */
static bool is_edge(const tg_fft_desc *desc, int64_t k) {
    return k == 0 || 2 * k == desc->grid[desc->ndim - 1];
}

static void forward(tg_fft_plan *plan, int64_t count, tg_fft_weight weight, double scale,
                    const void *x, void *spectrum) {
    const tg_fft_desc *desc = &plan->desc;
    const int64_t last_kept = desc->kept[desc->ndim - 1];
    const bool doubles = !desc->complex && weight == TG_FFT_ADJOINT;
    for (int64_t h = 0; h < count; h++) {
        int now = 0;
        for (int64_t i = 0; i < plan->points; i++) {
            plan->buffers[now][i] = tg_load(grid_dtype(desc), x, h * plan->points + i);
        }
        int64_t outer = plan->points, inner = 1;
        for (int d = desc->ndim - 1; d >= 0; d--) {
            outer /= desc->grid[d];
            transform(plan, d, false, outer, inner, now);
            inner *= desc->kept[d];
            now = 1 - now;
        }
        for (int64_t i = 0; i < plan->modes; i++) {
            const double w = doubles && !is_edge(desc, i % last_kept) ? 2.0 * scale : scale;
            const tg_scalar v = plan->buffers[now][i];
            tg_store(kept_dtype(desc), spectrum, h * plan->modes + i,
                     (tg_scalar){w * v.re, w * v.im});
        }
    }
}

/* Completes a half spectrum before the last dimension is transformed. buffer (rows, K). */
static void fold(const tg_fft_desc *desc, tg_fft_weight weight, int64_t rows, tg_scalar *buffer) {
    const int64_t kept = desc->kept[desc->ndim - 1];
    const double interior = weight == TG_FFT_ADJOINT ? 1.0 : 2.0;
    for (int64_t i = 0; i < rows * kept; i++) {
        if (is_edge(desc, i % kept)) {
            buffer[i].im = 0.0;
        } else {
            buffer[i].re *= interior;
            buffer[i].im *= interior;
        }
    }
}

static void inverse(tg_fft_plan *plan, int64_t count, tg_fft_weight weight, double scale,
                    const void *spectrum, void *x) {
    const tg_fft_desc *desc = &plan->desc;
    for (int64_t h = 0; h < count; h++) {
        int now = 0;
        for (int64_t i = 0; i < plan->modes; i++) {
            plan->buffers[now][i] = tg_load(kept_dtype(desc), spectrum, h * plan->modes + i);
        }
        int64_t outer = 1, inner = plan->modes;
        for (int d = 0; d < desc->ndim; d++) {
            inner /= desc->kept[d];
            if (!desc->complex && d == desc->ndim - 1) {
                fold(desc, weight, outer, plan->buffers[now]);
            }
            transform(plan, d, true, outer, inner, now);
            outer *= desc->grid[d];
            now = 1 - now;
        }
        for (int64_t i = 0; i < plan->points; i++) {
            const tg_scalar v = plan->buffers[now][i];
            tg_store(grid_dtype(desc), x, h * plan->points + i,
                     (tg_scalar){scale * v.re, scale * v.im});
        }
    }
}

tg_status ref_fft(tg_backend *be, tg_fft_plan *plan, tg_fft_direction direction, int64_t count,
                  tg_fft_weight weight, double scale, const void *from, void *to) {
    (void)be;
    (direction == TG_FFT_FORWARD ? forward : inverse)(plan, count, weight, scale, from, to);
    return TG_OK;
}
