/* Adam's moments and direction in one pass: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) |g|^2,
 * u = m / (sqrt(v) + eps), and weight = beta weight + alpha u. A complex array by parts (`split`)
 * is an array of twice as many reals. */
#include "backend/check.h"
#include "backend/cpu/compress.h"
#include "backend/cpu/cpu.h"
#include "backend/state8.h"
#include "backend/state_codec.h"

enum { THREAD_GRAIN = 1 << 12 }; /* fewer are not worth a thread */

/* ---- compact moments, gradients and weights: block by block in f32 ---- */

enum { BLOCK = TG_STATE_BLOCK };

/* Values of the codes for a scale of 1. */
typedef struct byte_values {
    float m[256], v[256];
} byte_values;

static void fill_byte_values(byte_values *b) {
    for (int i = 0; i < 256; i++) {
        b->m[i] = tg_state_m_decode((uint8_t)i, 1.0f);
        b->v[i] = tg_state_value(TG_STATE_V_BITS, (uint32_t)i);
    }
}

/* The arrays of one block of elements in f32. */
typedef struct room {
    float grad[2 * BLOCK], m[2 * BLOCK], v[2 * BLOCK], direction[2 * BLOCK], weight[2 * BLOCK];
} room;

/* Decodes bytes by a table. */
static void load_bytes(const float *table, const float *scale, int64_t n, const uint8_t *bytes,
                       float *to) {
    for (int64_t begin = 0; begin < n; begin += BLOCK, scale++) {
        const int64_t end = n - begin < BLOCK ? n : begin + BLOCK;
        for (int64_t j = begin; j < end; j++) {
            to[j] = *scale * table[bytes[j]];
        }
    }
}

/* Decodes n reals from number `first` of m (second: of v) into `to`. */
static void load_moments(tg_backend *be, const tg_adam *op, const byte_values *values, bool second,
                         int64_t first, int64_t n, float *to) {
    const tg_state_codec *codec = tg_state_codecs[op->form];
    const char *x = (const char *)(second ? op->v : op->m) + tg_state_bytes(codec, TG_F32, first);
    const float *scale = second ? op->v_scale : op->m_scale;
    scale = scale ? scale + tg_state_scales(codec, first) : NULL;
    switch (op->form) {
    case TG_STATE_FULL:
    case TG_STATE_BF16:
    case TG_STATE_F16:
        cpu_state_of(be)->kernels->load_f32(codec->bits > 0 ? codec->stored : TG_F32, n, x, to);
        break;
    case TG_STATE_8BIT:
        load_bytes(second ? values->v : values->m, scale, n, (const uint8_t *)x, to);
        for (int64_t j = 0; second && j < n; j++) {
            to[j] *= to[j];
        }
        break;
    default:
        codec->decode(second, n, x, scale, to);
    }
}

/* Encodes them again from `from`, which is overwritten. */
static void store_moments(tg_backend *be, const tg_adam *op, bool second, int64_t first, int64_t n,
                          float *from) {
    const tg_state_codec *codec = tg_state_codecs[op->form];
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const tg_rng *rounding = tg_adam_state_rounding(op);
    const uint64_t number = (second ? UINT64_C(1) << 63 : UINT64_C(1) << 62) + (uint64_t)first;
    char *x = (char *)(second ? op->v : op->m) + tg_state_bytes(codec, TG_F32, first);
    float *scale = second ? op->v_scale : op->m_scale;
    scale = scale ? scale + tg_state_scales(codec, first) : NULL;
    switch (op->form) {
    case TG_STATE_FULL:
        k->store_f32(TG_F32, n, from, x);
        break;
    case TG_STATE_BF16:
    case TG_STATE_F16:
        if (rounding) {
            k->round_stored(op->form == TG_STATE_BF16 ? TG_STORE_BF16 : TG_STORE_F16, rounding,
                            number, n, from, (uint16_t *)x);
        } else {
            k->store_f32(codec->stored, n, from, x);
        }
        break;
    case TG_STATE_8BIT:
        for (int64_t j = 0; j < n; j += BLOCK) {
            *scale++ = k->encode_bytes(second, rounding, number + (uint64_t)j,
                                       n - j < BLOCK ? n - j : BLOCK, from + j, (uint8_t *)x + j);
        }
        break;
    default:
        codec->encode(second, rounding, number, n, from, x, scale);
    }
}

/* Elements [first, first + n), at most BLOCK of them. */
static void stored_block(tg_backend *be, const tg_adam *op, const cpu_adam_step *step,
                         const byte_values *values, int64_t first, int64_t n) {
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const bool complex = tg_dtype_is_complex(op->dtype), split = complex && op->split;
    const int64_t width = complex ? 2 : 1, v_width = split ? 2 : 1, at = width * first;
    room r;
    cpu_adam_arrays arrays = {.m = r.m, .v = r.v};
    arrays.grad = cpu_read(k, op->grad_store, op->grad, at, width * n, r.grad);
    load_moments(be, op, values, false, at, width * n, r.m);
    load_moments(be, op, values, true, v_width * first, v_width * n, r.v);
    arrays.direction = op->direction ? (float *)op->direction + at : NULL;
    if (op->weight) {
        arrays.weight = cpu_result(op->weight_store, op->weight, at, r.weight);
        if (op->beta != 0.0) {
            cpu_read(k, op->weight_store, op->weight, at, width * n, r.weight);
        }
    }
    k->adam(step, complex && !split, split ? 2 * n : n, arrays);
    if (op->weight) {
        cpu_write_rounded(k, op->weight_store, width * n, r.weight, op->weight, at, op->rounding);
    }
    store_moments(be, op, false, at, width * n, r.m);
    store_moments(be, op, true, v_width * first, v_width * n, r.v);
}

static void stored_adam(tg_backend *be, const tg_adam *op, const cpu_adam_step *step) {
    byte_values values;
    fill_byte_values(&values);
    const int parts = cpu_parts(be, op->n, THREAD_GRAIN);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int part = 0; part < parts; part++) {
        const tg_range r = tg_partition(op->n, BLOCK, parts, part);
        for (int64_t i = r.begin; i < r.end; i += BLOCK) {
            stored_block(be, op, step, &values, i, r.end - i < BLOCK ? r.end - i : BLOCK);
        }
    }
}

static tg_status adam_of(tg_backend *be, const tg_adam *call) {
    tg_adam resolved;
    tg_rng rounding;
    const tg_adam *op = &resolved;
    bool goes = false;
    if (!cpu_compress_tuned(call->dtype)) {
        return be->ref->update(be, 1, call);
    }
    tg_status status = tg_adam_resolve(be, call, &resolved, &rounding, &goes);
    if (!goes) {
        return status;
    }
    const cpu_kernels *k = cpu_state_of(be)->kernels;
    const cpu_adam_step step = {.scale = (float)op->scale,
                                .beta1 = (float)op->beta1,
                                .c1 = (float)(1.0 - op->beta1),
                                .beta2 = (float)op->beta2,
                                .c2 = (float)(1.0 - op->beta2),
                                .eps = (float)op->eps,
                                .alpha = (float)op->alpha,
                                .beta = (float)op->beta};
    if (op->grad_store || op->weight_store || op->form != TG_STATE_FULL) {
        stored_adam(be, op, &step);
        return TG_OK;
    }
    const bool complex = tg_dtype_is_complex(op->dtype), paired = complex && !op->split;
    const int64_t width = paired ? 2 : 1; /* floats per element of a kernel */
    const int64_t n = complex && op->split ? 2 * op->n : op->n;
    const int parts = cpu_parts(be, n, THREAD_GRAIN);
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int part = 0; part < parts; part++) {
        const tg_range r = tg_partition(n, TG_ALIGNMENT, parts, part);
        const int64_t at = r.begin * width;
        const cpu_adam_arrays arrays = {
            .grad = (const float *)op->grad + at,
            .m = (float *)op->m + at,
            .v = (float *)op->v + r.begin,
            .direction = op->direction ? (float *)op->direction + at : NULL,
            .weight = op->weight ? (float *)op->weight + at : NULL,
        };
        k->adam(&step, paired, r.end - r.begin, arrays);
    }
    return TG_OK;
}

/* The other rules, in double. */
static tg_status update_in_double(tg_backend *be, const tg_adam *call) {
    tg_adam op;
    tg_rng rounding;
    bool goes = false;
    const tg_status status = tg_adam_resolve(be, call, &op, &rounding, &goes);
    const int parts = goes ? cpu_parts(be, op.n, THREAD_GRAIN) : 0;
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int part = 0; part < parts; part++) {
        const tg_range r = tg_partition(op.n, BLOCK, parts, part);
        for (int64_t i = r.begin; i < r.end; i += BLOCK) {
            tg_rule_block(&op, i, r.end - i < BLOCK ? r.end - i : BLOCK);
        }
    }
    return status;
}

tg_status cpu_update(tg_backend *be, int count, const tg_adam *calls) {
    for (int i = 0; i < count; i++) {
        TG_CALL(calls[i].kernel == TG_KERNEL_ADAM ? adam_of(be, &calls[i])
                                                  : update_in_double(be, &calls[i]));
    }
    return TG_OK;
}
