/* Expands a compressed gradient: the core is expanded chunk by chunk (see compress.cuh), and one
 * pass writes out = beta out + alpha (chunk + lambda scatter(values)), or reads the chunk at the
 * kept entries.
 *
 * A warp takes the 512 entries of a rank block of the index set, and lane p reads the bits of its
 * run p; without an index set a block is just 512 entries. */
#include "backend/cuda/compress/compress.cuh"

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

/* The factors of a call, read on the device if the rates are there. */
template <class R> struct finish_factors {
    R alpha, beta, lambda;
    tg_rng rounding;
};

/* A rank block. FAST: it is inside the chunk, there is one, its rows are interleaved, out is read,
 * and everything is aligned to elements; then no branch separates the loads. */
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

/* Updates from a chunk that covers the indices [first, first + count) of mode 0; NULL: zeros. */
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
    return launch_alone(be, "writing an update", kernel, walk_blocks(call.begin, call.end),
                        WALK_THREADS, 0, call);
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

static tg_status read_kept_entries(tg_backend *be, const tg_sample *op, const cuda_plan *plan,
                                   const void *chunk, int64_t first, int64_t count) {
    const int64_t begin = first * plan->unit, end = begin + count * plan->unit;
    return with_wide(plan->real, [&](auto tag) {
        using R = typename decltype(tag)::type;
        return with_parts(plan->parts, [&](auto parts) {
            constexpr int P = decltype(parts)::value;
            number<R, P> *values = static_cast<number<R, P> *>(op->values);
            return launch_alone(be, "sampling a core", read_off<R, P>, walk_blocks(begin, end),
                                WALK_THREADS, 0, begin, end, static_cast<const R *>(chunk),
                                plan->view, kept_set_of(op->bitmap), (R)op->alpha, values,
                                is_whole(values));
        });
    });
}

/* ---- expand and sample ---- */

/* Calls use(chain, chunk, first, count) with every chunk of core x_n U_n, at most `most` indices of
 * mode 0 at a time; if the plan has planes, with their input. After the factors' fragments are
 * written all kernels are a chain, if products are. */
template <class F>
static tg_status expand_core(tg_backend *be, const cuda_plan *plan, void *workspace,
                             const void *core, int64_t most, F use) {
    const int stop = plan->planes.tiles > 0 ? 2 : 0;
    cuda_plan chain = *plan;
    TG_CALL(cuda_plan_factors(be, plan, false, workspace));
    TG_CALL(cuda_planes_factors(be, plan, false, workspace));
    chain.chained = cuda_state_of(be)->is_hopper && stop > 0 && plan->gathers;
    if (plan->gathers) {
        TG_CALL(cuda_plan_middle_of_core(be, &chain, workspace, core));
    }
    for (int64_t first = 0; first < plan->dim0; first += most) {
        const int64_t count = tg_min(most, plan->dim0 - first);
        char *now = cuda_plan_state(plan, workspace, plan->steps, first);
        if (!plan->gathers) {
            TG_CALL(cuda_plan_chunk_of_core(be, plan, core, first, count, now));
        }
        for (int q = plan->steps - 1; q >= stop; q--) {
            char *next = most > plan->chunk ? cuda_plan_at(plan, workspace, plan->buffer[0])
                                            : cuda_plan_state(plan, workspace, q, first);
            TG_CALL(cuda_plan_step(be, &chain, workspace, q, false, count, now, next));
            now = next;
        }
        TG_CALL(use(&chain, now, first, count));
    }
    return TG_OK;
}

/* Expands the last two modes of a chunk alone: `chunk` and the view of the chain become the
 * result. */
static tg_status expand_planes_without_update(tg_backend *be, cuda_plan *chain, void *workspace,
                                              int64_t first, int64_t count, const void **chunk) {
    if (chain->planes.tiles == 0) {
        return TG_OK;
    }
    char *plain = cuda_plan_state(chain, workspace, 0, first);
    finish_call<float, 2> call = finish_call<float, 2>();
    call.end = count * chain->unit;
    call.alpha = 1.0;
    call.out = reinterpret_cast<number<float, 2> *>(plain);
    call.whole = true;
    const void *in = *chunk;
    *chunk = plain;
    chain->view = {chain->view.cols, 2 * chain->view.cols, 1, 2};
    return cuda_planes_expand(be, chain, workspace, in, &call);
}

/* ---- paths ---- */

static int64_t fits_values(const tg_backend *, const tg_expand *op, const cuda_plan *plan) {
    return op->core ? 0 : plan->dim0;
}

static tg_status add_values(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    return finish_chunk_of(be, op, plan, NULL, 0, plan->dim0);
}

/* f(O()): the storage of an update in f32 or bf16. */
template <class F> static tg_status with_f32_or_bf16(const tg_expand *op, F f) {
    return op->out_store == TG_STORE_FULL ? f(float()) : f(__nv_bfloat16());
}

/* Large chunks, whose last mode and update are one kernel. */
static tg_status expand_streamed(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    cuda_plan chain = *plan;
    chain.step[0].factor.own = CUDA_OWN_DIRECT;
    TG_CALL(cuda_plan_factors(be, &chain, false, op->workspace));
    chain.chained = true;
    TG_CALL(cuda_plan_middle_of_core(be, &chain, op->workspace, op->core));
    for (int64_t first = 0; first < plan->dim0; first += plan->large_chunk) {
        const int64_t count = tg_min(plan->large_chunk, plan->dim0 - first);
        char *now = cuda_plan_large_state(plan, op->workspace, plan->steps, first);
        for (int q = plan->steps - 1; q >= 1; q--) {
            char *next = cuda_plan_large_state(plan, op->workspace, q, first);
            chain.apart = first > 0 && q == 2; /* the previous update reads another state */
            TG_CALL(cuda_plan_step(be, &chain, op->workspace, q, false, count, now, next));
            now = next;
        }
        TG_CALL(with_f32_or_bf16(op, [&](auto tag) {
            const auto call = finish_call_of<decltype(tag), 2>(op, plan, NULL, first, count);
            return cuda_sm90_expand(be, &chain, op->rounding != NULL, now, &call);
        }));
    }
    return TG_OK;
}

/* Indices of mode 0 whose numbers after mode 1 fit into the room of `middle`. */
static int64_t half_chunk(const cuda_plan *plan) {
    return tg_min(2 * plan->dim0 * plan->columns / (plan->state[2] / 2), plan->dim0);
}

static bool rounds_to_16_bits(const tg_expand *op) {
    return op->rounding && op->out_store != TG_STORE_FULL;
}

static int64_t fits_half_streamed(const tg_backend *be, const tg_expand *op,
                                  const cuda_plan *plan) {
    return plan->half ? cuda_sm90_expand_fits(be, op, plan) : 0;
}

static int64_t fits_half_resident(const tg_backend *be, const tg_expand *op,
                                  const cuda_plan *plan) {
    return plan->half
               ? cuda_planes_resident_half(be, &plan->planes, op->out_store, rounds_to_16_bits(op))
               : 0;
}

bool cuda_expand_half_fits(const tg_backend *be, const tg_adam *adam, const tg_expand *op,
                           const cuda_plan *plan) {
    if (!op->core || !op->values || !op->bitmap || adam->eps > CUDA_HALF_EPS || plan->split ||
        plan->real != TG_F32 || plan->parts != 2 || !plan->gathers || plan->steps != 3 ||
        plan->first.own != CUDA_OWN_DIRECT || plan->step[2].kind != CUDA_STEP_LEFT ||
        plan->step[2].factor.own != CUDA_OWN_DIRECT || plan->planes.tiles == 0 ||
        plan->step[2].right % 4 != 0 || half_chunk(plan) == 0 ||
        plan->dim0 * plan->columns > plan->middle - plan->buffer[0]) {
        return false;
    }
    return cuda_sm90_half_mode_fits(be, &plan->first, true) &&
           cuda_sm90_half_mode_fits(be, &plan->step[2].factor, false) &&
           (cuda_sm90_expand_fits(be, op, plan)
                ? cuda_sm90_expand_planes_fits(be, op, plan)
                : cuda_planes_resident_half(be, &plan->planes, op->out_store,
                                            rounds_to_16_bits(op)) > 0);
}

/* Expands mode 0 from the core (unless core_adam.cu has already done it), mode 1, and both last
 * modes with the update. */
template <bool STREAMED>
static tg_status expand_half(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    const int64_t chunks = (plan->dim0 + half_chunk(plan) - 1) / half_chunk(plan);
    const int64_t most = (plan->dim0 + chunks - 1) / chunks;
    const char *middle = cuda_plan_at(plan, op->workspace, plan->middle);
    const bool rounds = rounds_to_16_bits(op);
    cuda_plan chain = *plan;
    if (!STREAMED) {
        TG_CALL(cuda_planes_expand_factors(be, plan, op->workspace));
    }
    chain.chained = true;
    TG_CALL(cuda_plan_middle_of_core(be, &chain, op->workspace, op->core));
    for (int64_t first = 0; first < plan->dim0; first += most) {
        const int64_t count = tg_min(most, plan->dim0 - first);
        TG_CALL(cuda_mode_half(be, &chain, op->workspace, first, count));
        TG_CALL(with_f32_or_bf16(op, [&](auto tag) {
            const auto call = finish_call_of<decltype(tag), 2>(op, plan, NULL, first, count);
            return STREAMED
                       ? cuda_sm90_expand_planes(be, &chain, rounds, middle, &call)
                       : cuda_planes_expand_resident(be, &chain, op->workspace,
                                                     plan->expand_at_once, rounds, middle, &call);
        }));
    }
    return TG_OK;
}

static int64_t fits_resident(const tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    return cuda_planes_resident(be, &plan->planes, op->out_store, rounds_to_16_bits(op));
}

static int64_t fits_planes(const tg_backend *, const tg_expand *op, const cuda_plan *plan) {
    return plan->planes.tiles > 0 && op->out_store == TG_STORE_FULL ? plan->chunk : 0;
}

/* Expands the last two modes of a chunk and updates, in one pass. */
template <bool RESIDENT>
static tg_status expand_planes(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    const int64_t most = RESIDENT ? cuda_planes_chunk(plan, plan->expand_at_once) : plan->chunk;
    return expand_core(
        be, plan, op->workspace, op->core, most,
        [&](cuda_plan *chain, const void *chunk, int64_t first, int64_t count) {
            return with_storage(op->out_store, [&](auto tag) {
                using O = typename decltype(tag)::type;
                const auto call = finish_call_of<O, 2>(op, plan, NULL, first, count);
                if constexpr (std::is_same_v<O, float>) {
                    return cuda_planes_expand(be, chain, op->workspace, chunk, &call);
                } else {
                    return cuda_planes_expand_resident(be, chain, op->workspace,
                                                       plan->expand_at_once, op->rounding != NULL,
                                                       chunk, &call);
                }
            });
        });
}

static int64_t fits_planes_then_update(const tg_backend *, const tg_expand *,
                                       const cuda_plan *plan) {
    return plan->planes.tiles > 0 ? plan->chunk : 0;
}

static int64_t fits_always(const tg_backend *, const tg_expand *, const cuda_plan *plan) {
    return plan->chunk;
}

static tg_status expand_chunks(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    return expand_core(
        be, plan, op->workspace, op->core, plan->chunk,
        [&](cuda_plan *chain, const void *chunk, int64_t first, int64_t count) {
            TG_CALL(expand_planes_without_update(be, chain, op->workspace, first, count, &chunk));
            return finish_chunk_of(be, op, chain, chunk, first, count);
        });
}

const cuda_path<tg_expand> cuda_expand_paths[] = {
    {{"values alone", "finish"}, fits_values, add_values},
    {{"f16, streamed", "multiply_half, expand_planes"}, fits_half_streamed, expand_half<true>},
    {{"f16, resident", "multiply_half, expand_resident"}, fits_half_resident, expand_half<false>},
    {{"streamed", "expand_and_update"}, cuda_sm90_expand_fits, expand_streamed},
    {{"resident", "a product for each mode, expand_resident"}, fits_resident, expand_planes<true>},
    {{"planes", "a product for each mode, expand_planes"}, fits_planes, expand_planes<false>},
    {{"planes, then update", "expand_planes, finish"}, fits_planes_then_update, expand_chunks},
    {{"general", "a product for each mode, finish"}, fits_always, expand_chunks},
};

/* ---- slots ---- */

tg_status cuda_expand_by(tg_backend *be, const tg_expand *op, const cuda_plan *plan) {
    if (!plan->expand) {
        return TG_OK;
    }
    tg_path_report_modes(be, "expand", plan->expand->path, &op->modes);
    return plan->expand->run(be, op, plan);
}

tg_status cuda_expand(tg_backend *be, const tg_expand *op) {
    TG_CALL(cuda_check_modes(be, "expand", op->modes.dtype, op->out_store));
    const cuda_plan plan = cuda_plan_of(be, &op->modes, NULL, NULL, op);
    return cuda_expand_by(be, op, &plan);
}

tg_status cuda_sample(tg_backend *be, const tg_sample *op) {
    TG_CALL(cuda_check_modes(be, "sample", op->modes.dtype, TG_STORE_FULL));
    const cuda_plan plan = cuda_plan_of(be, &op->modes, NULL, NULL, NULL);
    if (plan.dim0 * plan.unit == 0) {
        return TG_OK;
    }
    return expand_core(
        be, &plan, op->workspace, op->core, plan.chunk,
        [&](cuda_plan *chain, const void *chunk, int64_t first, int64_t count) {
            TG_CALL(expand_planes_without_update(be, chain, op->workspace, first, count, &chunk));
            return read_kept_entries(be, op, chain, chunk, first, count);
        });
}
