/* Calls of the kernels for Hopper GPUs that multiply a mode in front of others by its factor,
 *
 *   to the core:  out[j][c] = sum over i of conj(U)[i][j] in[i][c],
 *   and from it:  out[i][c] = sum over j of U[i][j] in[j][c],
 *
 * for every column c of some matrices, whose rows have their parts apart; mode 0, which is the last
 * on the way to the core, goes straight between such rows and the core, whose parts lie together.
 */
#include "backend/cuda/compress/mode_columns.cuh"

enum { MOST_NUMBERS = 128 }; /* of a mode, either way */

static mode_call sizes_of(const cuda_factor *factor, bool forward) {
    mode_call s = mode_call();
    s.u = reader_of(factor);
    s.forward = forward;
    s.summed = (int)(forward ? factor->dim : factor->rank);
    s.made = (int)(forward ? factor->rank : factor->dim);
    return s;
}

bool cuda_mode_fits(const tg_backend *be, const cuda_factor *factor, int64_t columns, bool split) {
    return longer(factor->dim, factor->rank) <= MOST_NUMBERS && columns % 4 == 0 &&
           columns <= INT32_MAX / 2 && cuda_sm90_mode_fits(be, factor, split);
}

/* What mode 0 gives on the way back in f16, (dim0, columns). */
static uint32_t *half_buffer(const cuda_plan *plan, void *workspace) {
    return reinterpret_cast<uint32_t *>(cuda_plan_at(plan, workspace, plan->buffer[0]));
}

tg_status cuda_mode_multiply(tg_backend *be, const cuda_plan *plan, const cuda_factor *factor,
                             bool forward, int64_t matrices, int64_t n, const void *in, void *out) {
    mode_call s = sizes_of(factor, forward);
    s.chained = plan->chained;
    s.split = plan->split;
    s.apart = plan->apart;
    s.matrices = matrices;
    s.n = n;
    s.in = static_cast<const float *>(in);
    s.out = static_cast<float *>(out);
    s.in_matrix = 2 * s.summed * n;
    s.in_number = forward ? 2 * n : n;
    s.in_part = forward ? n : s.summed * n;
    s.out_matrix = 2 * s.made * n;
    s.out_number = forward ? n : 2 * n;
    s.out_part = forward ? s.made * n : n;
    return cuda_sm90_mode(be, &s, CORE_NOWHERE);
}

tg_status cuda_mode_half(tg_backend *be, const cuda_plan *plan, void *workspace, int64_t first,
                         int64_t count) {
    const cuda_step *step = &plan->step[2];
    mode_call s = sizes_of(&step->factor, false);
    s.chained = plan->chained;
    s.matrices = count * step->left;
    s.n = step->right;
    s.half_in = half_buffer(plan, workspace) + first * plan->columns;
    s.half_out = reinterpret_cast<uint32_t *>(cuda_plan_at(plan, workspace, plan->middle));
    return cuda_sm90_half_mode(be, &s, false);
}

tg_status cuda_mode_core(tg_backend *be, const cuda_plan *plan, void *workspace, bool forward,
                         const void *middle, double scale, double beta, const void *core) {
    mode_call s = sizes_of(&plan->first, forward);
    s.chained = plan->chained;
    s.split = plan->split;
    s.apart = plan->apart;
    s.matrices = 1;
    s.n = plan->columns;
    s.in = static_cast<const float *>(middle);
    s.out = static_cast<float *>(const_cast<void *>(middle));
    s.in_number = s.out_number = 2 * s.n;
    s.in_part = s.out_part = s.n;
    s.core = static_cast<number<float, 2> *>(const_cast<void *>(core));
    s.source = s.core;
    s.block = (int)plan->block;
    s.padded = (int)plan->padded;
    s.row = plan->columns / plan->padded * plan->block;
    s.whole = is_whole(s.core);
    s.wide = (uintptr_t)core % 16 == 0 && plan->block == plan->padded;
    s.scale = (float)scale;
    s.beta = (float)beta;
    s.half_out = plan->half ? half_buffer(plan, workspace) : NULL;
    if (plan->half && !forward) {
        return cuda_sm90_half_mode(be, &s, true);
    }
    return cuda_sm90_mode(be, &s, forward ? CORE_OUT : CORE_IN);
}

tg_status cuda_mode_dense(tg_backend *be, const cuda_factor *factor, bool split, int64_t matrices,
                          int64_t n, const void *in, double scale, double beta, void *core) {
    mode_call s = sizes_of(factor, true);
    s.split = split;
    s.matrices = matrices;
    s.n = n;
    s.source = static_cast<const number<float, 2> *>(in);
    s.core = static_cast<number<float, 2> *>(core);
    s.row = n;
    s.source_matrix = factor->dim * n;
    s.core_matrix = factor->rank * n;
    s.block = s.padded = (int)n;
    s.whole = is_whole(s.source) && is_whole(s.core);
    s.wide = ((uintptr_t)in | (uintptr_t)core) % 16 == 0 && n % 2 == 0;
    s.scale = (float)scale;
    s.beta = (float)beta;
    return cuda_sm90_mode(be, &s, CORE_BOTH);
}
