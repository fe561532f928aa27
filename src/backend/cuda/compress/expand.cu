/* The way back from a compressed gradient: the core is expanded chunk by chunk (see compress.cuh),
 * and one pass writes out = beta out + alpha (chunk + lambda scatter(values)), or reads a chunk off
 * at the kept entries.
 *
 * A warp takes the 512 entries of a rank block of the index set, lane p looking up the bits of its
 * run p; without an index set they are merely 512 entries. */
#include "backend/cuda/compress/compress.cuh"

extern "C" {
#include "backend/path.h"
}

/* Entry (row, col) of a chunk. */
template <bool INTERLEAVED, class R, int P>
static __device__ inline number<R, P> chunk_entry(const R *chunk, const cuda_view &view,
                                                  const chunk_place &at) {
    const R *re = chunk + at.row * view.ld + at.col * view.step;
    number<R, P> y;
    if (INTERLEAVED || view.part == 1) {
        y = load_once(reinterpret_cast<const number<R, P> *>(re), true);
    } else {
        for (int p = 0; p < P; p++) {
            y.part[p] = __ldcs(re + p * view.part);
        }
    }
    return y;
}

/* ---- expand ---- */

/* The factors of a call, once they are known. */
template <class R> struct finish_factors {
    R alpha, beta, lambda;
    tg_rng rounding;
};

/* A rank block. FAST: it lies within the chunk, there is one, whose rows are interleaved, out is
 * read, and all is aligned to elements; then nothing stands between the loads. */
template <bool FAST, bool KEPT, bool ROUNDED, class O, int P>
static __device__ inline void finish_block(const finish_call<O, P> &call,
                                           const finish_factors<real_of<O>> &by, int64_t block,
                                           int lane) {
    using R = real_of<O>;
    enum { AHEAD = 4 };
    const bool whole = FAST || call.whole;
    const kept_run runs = KEPT ? kept_runs_of_block(call.kept, block, lane) : kept_run();
    const chunk_place stride = stride_of(32, call.view.cols);
    int64_t entry = block * 512 + lane;
    chunk_place at = chunk_place_of(entry - call.begin, call.view.cols);
    for (int r = 0; r < WALK_RUNS; r += AHEAD, entry += 32 * AHEAD) {
        number<R, P> sum[AHEAD], old[AHEAD];
        bool inside[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int64_t e = entry + 32 * u;
            inside[u] = FAST || (e >= call.begin && e < call.end);
            sum[u] = old[u] = number<R, P>();
            if (FAST || (inside[u] && call.chunk)) {
                sum[u] = chunk_entry<FAST, R, P>(call.chunk, call.view, at);
            }
            if (FAST || (inside[u] && by.beta != R(0))) {
                old[u] = widen(load_once(call.out + e, whole));
            }
            walk_on(&at, stride, call.view.cols);
        }
#pragma unroll
        for (int u = 0; KEPT && u < AHEAD; u++) {
            const kept_run run = kept_run_of_lane(runs, r + u);
            if (inside[u] && is_kept(run, lane)) {
                const number<R, P> value = load_once(call.values + position_of(run, lane), whole);
                for (int p = 0; p < P; p++) {
                    sum[u].part[p] += by.lambda * value.part[p];
                }
            }
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int64_t e = entry + 32 * u;
            if (inside[u]) {
                for (int p = 0; p < P; p++) {
                    sum[u].part[p] = by.beta * old[u].part[p] + by.alpha * sum[u].part[p];
                }
                store_once(call.out + e, rounded<ROUNDED, O, P>(by.rounding, e, sum[u]), whole);
            }
        }
    }
}

template <class O, int P, bool KEPT, bool ROUNDED>
static __global__ void __launch_bounds__(WALK_THREADS) finish(finish_call<O, P> call) {
    using R = real_of<O>;
    if (call.guard && *call.guard != 0) {
        return;
    }
    const int64_t block = walk_block(call.begin);
    if (block * 512 >= call.end) {
        return;
    }
    finish_factors<R> by = {(R)call.alpha, (R)call.beta, (R)call.lambda, call.rounding};
    if (call.rates) {
        by.alpha = (R)call.rates->alpha;
        by.beta = (R)call.rates->beta;
        by.rounding.step = call.rates->step;
    }
    const bool within = block * 512 >= call.begin && block * 512 + 512 <= call.end;
    if (within && call.chunk && call.view.part == 1 && by.beta != R(0) && call.whole) {
        finish_block<true, KEPT, ROUNDED>(call, by, block, threadIdx.x % 32);
    } else {
        finish_block<false, KEPT, ROUNDED>(call, by, block, threadIdx.x % 32);
    }
}

/* What is done with a chunk that covers the indices [first, first + count) of mode 0; NULL: zeros.
 */
template <class O, int P>
static finish_call<O, P> finish_call_of(const tg_expand *op, const cuda_plan *plan,
                                        const void *chunk, int64_t first, int64_t count) {
    using R = real_of<O>;
    finish_call<O, P> call = finish_call<O, P>();
    call.begin = first * plan->unit;
    call.end = call.begin + count * plan->unit;
    call.chunk = static_cast<const R *>(chunk);
    call.view = plan->view;
    call.kept = kept_set_of(op->bitmap);
    call.values = op->bitmap ? static_cast<const number<R, P> *>(op->values) : NULL;
    call.lambda = op->lambda;
    call.alpha = op->alpha;
    call.beta = op->beta;
    call.out = static_cast<number<O, P> *>(op->out);
    call.whole = is_whole(call.out) && is_whole(call.values);
    call.rounding = op->rounding ? *op->rounding : tg_rng();
    call.rates = op->rates;
    call.guard = op->guard;
    return call;
}

template <class O, int P>
static tg_status finish_chunk(tg_backend *be, const tg_expand *op, const cuda_plan *plan,
                              const void *chunk, int64_t first, int64_t count) {
    constexpr bool can_round = is_16bit<O>;
    const finish_call<O, P> call = finish_call_of<O, P>(op, plan, chunk, first, count);
    const bool kept = call.values != NULL;
    auto kernel = kept ? finish<O, P, true, false> : finish<O, P, false, false>;
    if (can_round && op->rounding) {
        kernel = kept ? finish<O, P, true, can_round> : finish<O, P, false, can_round>;
    }
    kernel<<<walk_blocks(call.begin, call.end), WALK_THREADS, 0, cuda_stream(be)>>>(call);
    return CUDA_LAUNCHED(be, "writing an update");
}

static tg_status finish_chunk_of(tg_backend *be, const tg_expand *op, const cuda_plan *plan,
                                 const void *chunk, int64_t first, int64_t count) {
    return with_parts(plan->parts, [&](auto parts) {
        constexpr int P = decltype(parts)::value;
        if (plan->real == TG_F64) {
            return finish_chunk<double, P>(be, op, plan, chunk, first, count);
        }
        return with_storage(op->out_store, [&](auto tag) {
            return finish_chunk<typename decltype(tag)::type, P>(be, op, plan, chunk, first, count);
        });
    });
}

/* ---- sample ---- */

/* values[kept] += alpha chunk[kept], for entries [begin, end). */
template <class R, int P>
static __global__ void __launch_bounds__(WALK_THREADS)
    read_off(int64_t begin, int64_t end, const R *chunk, cuda_view view, kept_set kept, R alpha,
             number<R, P> *values, bool whole) {
    const int lane = threadIdx.x % 32;
    const int64_t block = walk_block(begin);
    if (block * 512 >= end) {
        return;
    }
    const kept_run runs = kept_runs_of_block(kept, block, lane);
    const chunk_place stride = stride_of(32, view.cols);
    int64_t entry = block * 512 + lane;
    chunk_place at = chunk_place_of(entry - begin, view.cols);
    for (int r = 0; r < WALK_RUNS; r++, entry += 32) {
        const kept_run run = kept_run_of_lane(runs, r);
        if (entry >= begin && entry < end && is_kept(run, lane)) {
            blend(&values[position_of(run, lane)], whole, R(1), alpha,
                  chunk_entry<false, R, P>(chunk, view, at));
        }
        walk_on(&at, stride, view.cols);
    }
}

static tg_status read_chunk_off(tg_backend *be, const tg_sample *op, const cuda_plan *plan,
                                const void *chunk, int64_t first, int64_t count) {
    const int64_t begin = first * plan->unit, end = begin + count * plan->unit;
    return with_wide(plan->real, [&](auto tag) {
        using R = typename decltype(tag)::type;
        return with_parts(plan->parts, [&](auto parts) {
            constexpr int P = decltype(parts)::value;
            number<R, P> *values = static_cast<number<R, P> *>(op->values);
            read_off<R, P><<<walk_blocks(begin, end), WALK_THREADS, 0, cuda_stream(be)>>>(
                begin, end, static_cast<const R *>(chunk), plan->view, kept_set_of(op->bitmap),
                (R)op->alpha, values, is_whole(values));
            return CUDA_LAUNCHED(be, "sampling a core");
        });
    });
}

/* ---- general: chunk by chunk, one mode after the other ---- */

/* Calls use(chunk, first, count) with every chunk of core x_n U_n. */
template <class F>
static tg_status expand_core(tg_backend *be, const cuda_plan *plan, void *workspace,
                             const void *core, F use) {
    tg_status status = TG_OK;
    TG_TRY(cuda_plan_factors(be, plan, 0, workspace));
    if (plan->gathers) {
        TG_TRY(cuda_plan_middle_of_core(be, plan, workspace, core));
    }
    for (int64_t first = 0; first < plan->dim0; first += plan->chunk) {
        const int64_t count = shorter(plan->chunk, plan->dim0 - first);
        char *now = cuda_plan_state(plan, workspace, plan->steps, first);
        if (!plan->gathers) {
            TG_TRY(cuda_plan_chunk_of_core(be, plan, core, first, count, now));
        }
        for (int q = plan->steps - 1; q >= 0; q--) {
            char *next = cuda_plan_state(plan, workspace, q, first);
            TG_TRY(cuda_plan_step(be, plan, workspace, q, false, count, now, next));
            now = next;
        }
        TG_TRY(use(now, first, count));
    }
fail:
    return status;
}

static tg_status expand_general(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    return expand_core(be, plan, op->workspace, op->core,
                       [&](const void *chunk, int64_t first, int64_t count) {
                           return finish_chunk_of(be, op, plan, chunk, first, count);
                       });
}

/* ---- resident: the last two modes and the update in one pass ---- */

static bool rounds_to_16_bits(const tg_expand *op) {
    return op->rounding && op->out_store != TG_STORE_FULL;
}

static int64_t planes_at_once(const tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    return cuda_planes_resident(be, &plan->planes, op->out_store, rounds_to_16_bits(op));
}

static bool is_resident(const tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    return planes_at_once(be, op, plan) > 0;
}

/* After the factors' fragments all kernels are a chain, if products are. */
static tg_status expand_resident(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    const int64_t at_once = planes_at_once(be, op, plan), most = cuda_planes_chunk(plan, at_once);
    const bool one_buffer = plan->gathers && plan->steps == 3; /* what lies behind is `middle` */
    cuda_plan chain = *plan;
    tg_status status = TG_OK;
    TG_TRY(cuda_plan_factors(be, plan, 2, op->workspace));
    TG_TRY(cuda_planes_expand_factors(be, plan, op->workspace));
    chain.chained = cuda_state_of(be)->is_hopper && plan->gathers;
    if (plan->gathers) {
        TG_TRY(cuda_plan_middle_of_core(be, &chain, op->workspace, op->core));
    }
    for (int64_t first = 0; first < plan->dim0; first += most) {
        const int64_t count = shorter(most, plan->dim0 - first);
        char *now = cuda_plan_planes_state(plan, op->workspace, plan->steps, first);
        if (!plan->gathers) {
            TG_TRY(cuda_plan_chunk_of_core(be, plan, op->core, first, count, now));
        }
        for (int q = plan->steps - 1; q >= 2; q--) {
            char *next = one_buffer ? cuda_plan_at(plan, op->workspace, plan->buffer[0])
                                    : cuda_plan_planes_state(plan, op->workspace, q, first);
            TG_TRY(cuda_plan_step(be, &chain, op->workspace, q, false, count, now, next));
            now = next;
        }
        TG_TRY(with_storage(op->out_store, [&](auto tag) {
            using O = typename decltype(tag)::type;
            const auto call = finish_call_of<O, 2>(op, plan, NULL, first, count);
            return cuda_planes_expand_resident(be, &chain, op->workspace, at_once,
                                               rounds_to_16_bits(op), now, &call);
        }));
    }
fail:
    return status;
}

/* ---- streamed: large chunks, whose last mode and update are one kernel, on Hopper GPUs ---- */

/* O: f32 or bf16. */
template <class O>
static tg_status expand_large(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    cuda_plan chain = *plan;
    tg_status status = TG_OK;
    TG_TRY(cuda_plan_factors(be, plan, 1, op->workspace));
    chain.chained = true;
    TG_TRY(cuda_plan_middle_of_core(be, &chain, op->workspace, op->core));
    for (int64_t first = 0; first < plan->dim0; first += plan->large_chunk) {
        const int64_t count = shorter(plan->large_chunk, plan->dim0 - first);
        char *now = cuda_plan_large_state(plan, op->workspace, plan->steps, first);
        for (int q = plan->steps - 1; q >= 1; q--) {
            char *next = cuda_plan_large_state(plan, op->workspace, q, first);
            chain.apart = first > 0 && q == 2; /* the update before it reads another state */
            TG_TRY(cuda_plan_step(be, &chain, op->workspace, q, false, count, now, next));
            now = next;
        }
        const auto call = finish_call_of<O, 2>(op, plan, NULL, first, count);
        TG_TRY(cuda_sm90_expand(be, &chain, op->rounding != NULL, now, &call));
    }
fail:
    return status;
}

static tg_status expand_streamed(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    return op->out_store == TG_STORE_FULL ? expand_large<float>(be, op, plan)
                                          : expand_large<__nv_bfloat16>(be, op, plan);
}

/* ---- in f16: from a direction of Adam, resident or streamed ---- */

/* Indices of mode 0 whose numbers behind mode 1 there is room for where `middle` was. */
static int64_t half_chunk(const cuda_plan *plan) {
    return shorter(2 * plan->dim0 * plan->columns / (plan->state[2] / 2), plan->dim0);
}

static bool suits_f16(const tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    if (!op->is_direction || !op->core || !op->values || !op->bitmap || plan->split ||
        plan->real != TG_F32 || plan->parts != 2 || !plan->gathers || plan->steps != 3 ||
        !plan->first.direct || plan->step[2].kind != CUDA_STEP_LEFT ||
        !plan->step[2].factor.direct || plan->planes.tiles == 0 || plan->step[2].right % 4 != 0 ||
        half_chunk(plan) == 0 || plan->dim0 * plan->columns > plan->middle - plan->buffer[0]) {
        return false;
    }
    return cuda_sm90_half_mode_fits(be, &plan->first, true) &&
           cuda_sm90_half_mode_fits(be, &plan->step[2].factor, false) &&
           (cuda_sm90_expand_fits(be, op, plan)
                ? cuda_sm90_expand_planes_fits(be, op, plan)
                : cuda_planes_resident_half(be, &plan->planes, op->out_store,
                                            rounds_to_16_bits(op)) > 0);
}

/* Mode 0 from the core, mode 1, and both last ones with the update; O: f32 or bf16. */
template <class O>
static tg_status expand_in_f16(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    const bool large = cuda_sm90_expand_fits(be, op, plan), rounds = rounds_to_16_bits(op);
    const int64_t at_once =
        large ? 0 : cuda_planes_resident_half(be, &plan->planes, op->out_store, rounds);
    const int64_t chunks = (plan->dim0 + half_chunk(plan) - 1) / half_chunk(plan);
    const int64_t most = (plan->dim0 + chunks - 1) / chunks;
    const char *middle = cuda_plan_at(plan, op->workspace, plan->middle);
    cuda_plan chain = *plan;
    tg_status status = TG_OK;
    if (!large) {
        TG_TRY(cuda_planes_expand_factors(be, plan, op->workspace));
    }
    chain.chained = true;
    TG_TRY(cuda_plan_middle_of_core(be, &chain, op->workspace, op->core));
    for (int64_t first = 0; first < plan->dim0; first += most) {
        const int64_t count = shorter(most, plan->dim0 - first);
        const auto call = finish_call_of<O, 2>(op, plan, NULL, first, count);
        TG_TRY(cuda_mode_half(be, &chain, op->workspace, first, count));
        TG_TRY(large ? cuda_sm90_expand_planes(be, &chain, rounds, middle, &call)
                     : cuda_planes_expand_resident(be, &chain, op->workspace, at_once, rounds,
                                                   middle, &call));
    }
fail:
    return status;
}

static bool is_half(const tg_backend *, const tg_expand *, const cuda_plan *plan) {
    return plan->half;
}

static bool is_half_streamed(const tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    return plan->half && cuda_sm90_expand_fits(be, op, plan);
}

static tg_status expand_half(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    return op->out_store == TG_STORE_FULL ? expand_in_f16<float>(be, op, plan)
                                          : expand_in_f16<__nv_bfloat16>(be, op, plan);
}

/* ---- the paths ---- */

static bool has_no_core(const tg_backend *, const tg_expand *op, const cuda_plan *) {
    return !op->core;
}

static tg_status scatter(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    return finish_chunk_of(be, op, plan, NULL, 0, plan->dim0);
}

static bool always(const tg_backend *, const tg_expand *, const cuda_plan *) {
    return true;
}

/* A way to expand an update: the first one whose condition holds is taken. */
struct expand_path {
    tg_path path;
    bool (*fits)(const tg_backend *be, const tg_expand *op, const cuda_plan *plan);
    tg_status (*run)(tg_backend *be, const tg_expand *op, const cuda_plan *plan);
};

static const expand_path paths[] = {
    {{"values alone", "finish"}, has_no_core, scatter},
    {{"f16, streamed", "multiply_half, expand_planes"}, is_half_streamed, expand_half},
    {{"f16, resident", "multiply_half, expand_resident"}, is_half, expand_half},
    {{"streamed", "multiply_columns, expand_and_update"}, cuda_sm90_expand_fits, expand_streamed},
    {{"resident", "multiply_columns, expand_resident"}, is_resident, expand_resident},
    {{"general", "weave, cuBLAS or multiply_columns, finish"}, always, expand_general},
};

static const expand_path *path_of(const tg_backend *be, const tg_expand *op,
                                  const cuda_plan *plan) {
    const expand_path *path = paths;
    while (!path->fits(be, op, plan)) {
        path++;
    }
    return path;
}

/* ---- slots ---- */

tg_status cuda_expand(tg_backend *be, const tg_expand *op) {
    TG_CALL(cuda_check_modes(be, "expand", op->modes.dtype, op->out_store));
    cuda_plan plan = cuda_plan_of(be, &op->modes);
    if (plan.dim0 * plan.unit == 0) {
        return TG_OK;
    }
    plan.half = suits_f16(be, op, &plan);
    const expand_path *path = path_of(be, op, &plan);
    tg_path_report_modes(be, "expand", path->path, &op->modes);
    return path->run(be, op, &plan);
}

tg_status cuda_sample(tg_backend *be, const tg_sample *op) {
    TG_CALL(cuda_check_modes(be, "sample", op->modes.dtype, TG_STORE_FULL));
    const cuda_plan plan = cuda_plan_of(be, &op->modes);
    if (plan.dim0 * plan.unit == 0) {
        return TG_OK;
    }
    return expand_core(be, &plan, op->workspace, op->core,
                       [&](const void *chunk, int64_t first, int64_t count) {
                           return read_chunk_off(be, op, &plan, chunk, first, count);
                       });
}
