/* Reads a gradient piece by piece: a dense one in place, a factored one formed from its factors,
 * G[i,o,k] = sum_b conj(x[b,i,k]) dy[b,o,k]; gathers and masks the entries of an index set. */
#include <string.h>

#include "backend/cpu/compress.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/spectral_product.h"
#include "base/minmax.h"

/* __builtin_popcountll is a function call unless the instruction is known to exist. */
static inline int64_t ones(uint64_t x) {
    x -= x >> 1 & UINT64_C(0x5555555555555555);
    x = (x & UINT64_C(0x3333333333333333)) + (x >> 2 & UINT64_C(0x3333333333333333));
    x = (x + (x >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (int64_t)(x * UINT64_C(0x0101010101010101) >> 56);
}

int64_t cpu_bits_rank(const tg_bitmap *bitmap, int64_t entry) {
    int64_t rank = bitmap->ranks[entry / 512];
    for (int64_t word = entry / 512 * 8; word < entry / 64; word++) {
        rank += ones(bitmap->words[word]);
    }
    const uint64_t before = bitmap->words[entry / 64] & ~(~UINT64_C(0) << entry % 64);
    return rank + ones(before);
}

/* Entries [first, first + count) of a factored gradient, one run of equal (i, o) at a time, and the
 * same for some following channels i, to rows of `out`. */
static void form(const cpu_plan *plan, const tg_multimode *modes, const tg_grad_source *source,
                 float scale, int64_t first, int64_t count, int slices, float *out,
                 int64_t row_out) {
    const int64_t channels = modes->dim[1];
    const int64_t frequencies = tg_product(modes->ndim - 2, modes->dim + 2);
    const int width = plan->width;
    while (count > 0) {
        const int64_t k = first % frequencies, pair = first / frequencies;
        const int64_t i = pair / channels, o = pair % channels;
        const int64_t n = count < frequencies - k ? count : frequencies - k;
        const cpu_stretch stretch = {
            .n = n,
            .batch = source->batch,
            .rows = slices,
            .store = source->store,
            .x = cpu_stored_at(source->store, source->x, (i * frequencies + k) * width),
            .dy = cpu_stored_at(source->store, source->dy, (o * frequencies + k) * width),
            .step_x = modes->dim[0] * frequencies,
            .step_dy = channels * frequencies,
            .row_x = frequencies,
            .scale = scale,
            .out = out,
            .row_out = row_out,
        };
        plan->kernels->stretch(width == 2, &stretch);
        first += n;
        count -= n;
        out += n * width;
    }
}

/* Gathers the kept entries of the range from `g` into values, and zeroes them in `masked`; either
 * may be NULL. */
static inline void take_kept(const tg_compress *op, int width, int64_t first, int64_t count,
                             const float *g, float *masked) {
    float *value = op->values;
    if (value) {
        value += cpu_bits_rank(op->bitmap, first) * width;
    }
    cpu_bits bits = cpu_bits_begin(op->bitmap, first, count);
    for (int64_t e = cpu_bits_next(&bits); e >= 0; e = cpu_bits_next(&bits)) {
        const int64_t at = (e - first) * width;
        if (value) {
            cpu_blend(op, width, g + at, value);
            value += width;
        }
        if (masked) {
            memset(masked + at, 0, (size_t)width * sizeof *masked);
        }
    }
}

/* Entries [first, first + count) of G after gathering and masking, in place or in `panel`, and
 * those of more slices in the following rows. */
static const float *load_run(const cpu_source *source, int64_t first, int64_t count, int slices,
                             float *panel, int64_t row_panel) {
    const tg_compress *op = source->op;
    const int width = source->plan->width;
    if (source->scratch) {
        cpu_transposed_run(source, first, count, slices, panel, row_panel);
        return panel;
    }
    const bool masked = op->bitmap && op->masked && op->core;
    const float *g = panel;
    if (op->source.dense) {
        g = cpu_read(source->convert, op->source.store, op->source.dense, first * width,
                     count * width, panel);
        if (masked && g != panel) {
            memcpy(panel, g, (size_t)(count * width) * sizeof *panel);
        }
    } else {
        form(source->plan, &op->modes, &op->source, 1.0f, first, count, slices, panel, row_panel);
    }
    for (int i = 0; op->bitmap && (op->values || masked) && i < slices; i++) {
        const int64_t at = i * row_panel * width, entry = first + i * source->plan->mode[0].step;
        if (width == 2) {
            take_kept(op, 2, entry, count, g + at, masked ? panel + at : NULL);
        } else {
            take_kept(op, 1, entry, count, g + at, masked ? panel + at : NULL);
        }
    }
    return masked ? panel : g;
}

cpu_view cpu_source_block(const cpu_source *source, int64_t first, int64_t rows, int64_t step,
                          int64_t columns, int slices, float *panel) {
    const int64_t count = rows * columns;
    if (columns == step) {
        return (cpu_view){load_run(source, first, count, slices, panel, count), columns};
    }
    const int width = source->plan->width;
    const float *data = load_run(source, first, columns, slices, panel, count);
    for (int64_t r = 1; r < rows; r++) {
        load_run(source, first + r * step, columns, slices, panel + r * columns * width, count);
    }
    return (cpu_view){data, data == panel ? columns : step};
}

/* Entries of a range, formed in f32 a chunk at a time if `out` is 16-bit. */
static void form_range(tg_backend *be, const cpu_plan *plan, const tg_multimode *modes,
                       const tg_grad_source *source, double scale, tg_storage store, tg_range r,
                       void *out) {
    enum { CHUNK = 2048 };
    float room[CHUNK];
    for (int64_t i = r.begin, some; i < r.end; i += some) {
        some = r.end - i;
        some = store == TG_STORE_FULL || some < CHUNK / plan->width ? some : CHUNK / plan->width;
        float *to = cpu_result(store, out, i * plan->width, room);
        form(plan, modes, source, (float)scale, i, some, 1, to, some);
        cpu_write(cpu_state_of(be)->kernels, store, some * plan->width, to, out, i * plan->width);
    }
}

/* A whole complex gradient as a product at every frequency; false if that does not fit. */
static bool form_whole(tg_backend *be, const tg_multimode *modes, const tg_grad_source *source,
                       double scale, tg_storage store, void *out) {
    const int64_t row = 2 * tg_product(modes->ndim - 2, modes->dim + 2); /* reals */
    const int64_t in = modes->dim[0], channels = modes->dim[1];
    const cpu_spectral_product product = {
        .form = CPU_TILE_CONJ_A,
        .frequencies = row / 2,
        .depth = source->batch,
        .rows = in,
        .columns = channels,
        .a = {.x = source->x, .store = source->store, .depth = in * row, .across = row},
        .b = {.x = source->dy, .store = source->store, .depth = channels * row, .across = row},
        .c = out,
        .c_store = store,
        .c_row = channels * row,
        .c_column = row,
        .scale = (float)scale};
    if (modes->dtype != TG_C64 || !cpu_spectral_fits(be, &product)) {
        return false;
    }
    cpu_spectral_multiply(be, &product);
    return true;
}

tg_status cpu_grad_dense(tg_backend *be, const tg_multimode *modes, const tg_grad_source *source,
                         double scale, void *out) {
    const tg_dtype real = tg_dtype_real(modes->dtype);
    const tg_storage store = real == TG_BF16  ? TG_STORE_BF16
                             : real == TG_F16 ? TG_STORE_F16
                                              : TG_STORE_FULL;
    if (real == TG_F64 || source->dense || (store != TG_STORE_FULL && source->store)) {
        return be->ref->grad_dense(be, modes, source, scale, out);
    }
    tg_multimode wide = *modes;
    wide.dtype = tg_dtype_is_complex(modes->dtype) ? TG_C64 : TG_F32;
    tg_grad_source factors = *source;
    factors.store = store == TG_STORE_FULL ? source->store : store;
    if (form_whole(be, &wide, &factors, scale, store, out)) {
        return TG_OK;
    }
    const cpu_plan plan = cpu_compress_plan(be, &wide, false);
#pragma omp parallel for num_threads(plan.threads) schedule(static)
    for (int part = 0; part < plan.threads; part++) {
        const tg_range r = tg_partition(plan.numel, TG_ALIGNMENT, plan.threads, part);
        form_range(be, &plan, &wide, &factors, scale, store, r, out);
    }
    return TG_OK;
}
