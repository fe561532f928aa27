/* Adam's moments and direction in one pass: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) |g|^2, u = m
 * / (sqrt(v) + eps), and weight = beta weight + alpha u.
 *
 * The pass is memory-bound, so it uses 16-byte accesses if everything is aligned. A complex array
 * with separate parts is an array of twice as many reals. The rates and the guard are read on the
 * device. The guard is counted before it is read: for small arrays by a single block in the same
 * kernel, otherwise by a kernel of its own before the pass. */
#include "backend/cuda/core/cuda.cuh"
#include "backend/cuda/optim/adam.cuh"

enum { THREADS = 256, SMALL_THREADS = 1024, MAX_COUNTED = 8192 };

template <int P, class T, class M, class G, class W>
static __global__ void __launch_bounds__(SMALL_THREADS, 1)
    adam_kernel(adam_step s, adam_arrays<T, M, G, W> arrays) {
    pdl_wait();
    if (!arrays.weight) { /* weights are read by kernels that have not waited yet */
        pdl_launch_dependents();
    }
    if (skips_update(s, arrays.grad)) {
        return;
    }
    const auto rates = read_rates<real_of<T>>(s);
    in_packs<per_step<T, P>>(s.packs, s.n, [&](int64_t first, auto part) {
        update_span<P, decltype(part)>(rates, arrays, first);
    });
}

template <int P, class T, class M, class G, class W>
static tg_status run(tg_backend *be, const tg_adam *op, adam_step s) {
    const adam_arrays<T, M, G, W> a = {static_cast<const G *>(op->grad), static_cast<M *>(op->m),
                                       static_cast<M *>(op->v), static_cast<T *>(op->direction),
                                       static_cast<W *>(op->weight)};
    const int threads = s.counted > 0 ? SMALL_THREADS : THREADS;
    s.n = P == 1 ? op->n * s.reals : op->n;
    s.packs = adam_packs<P>(a, s.n);
    const unsigned blocks = s.counted > 0 ? 1 : stream_blocks(be, s.packs, s.n, threads);
    return launch_pdl(be, "adam", adam_kernel<P, T, M, G, W>, blocks, threads, 0, s, a);
}

template <class T, class M, class G, class W>
static tg_status run_form(tg_backend *be, const tg_adam *op, const adam_step &s) {
    const bool by_modulus = s.reals == 2 && !op->split;
    return by_modulus ? run<2, T, M, G, W>(be, op, s) : run<1, T, M, G, W>(be, op, s);
}

/* Dispatches on the storage types: the moments, the gradient and the weight may each be 16-bit if
 * the dtype is f32. */
static tg_status run_types(tg_backend *be, const tg_adam *op, const adam_step &s) {
    return with_real(op->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if constexpr (std::is_same_v<T, float>) {
            return with_storage(op->grad_store, [&](auto grad_tag) {
                return with_storage(op->weight_store, [&](auto weight_tag) {
                    using G = typename decltype(grad_tag)::type;
                    using W = typename decltype(weight_tag)::type;
                    return op->form == TG_STATE_BF16
                               ? run_form<float, __nv_bfloat16, G, W>(be, op, s)
                           : op->form == TG_STATE_F16 ? run_form<float, __half, G, W>(be, op, s)
                                                      : run_form<float, float, G, W>(be, op, s);
                });
            });
        } else {
            return run_form<T, T, T, T>(be, op, s);
        }
    });
}

tg_status cuda_adam_one(tg_backend *be, const tg_adam *op) {
    TG_CALL(tg_check_adam(be->ctx, op));
    if (op->n <= 0) {
        return TG_OK;
    }
    if (op->form > TG_STATE_F16) {
        return tg_fail(be->ctx, TG_E_UNSUPPORTED, "adam: no kernel for state format number %d",
                       static_cast<int>(op->form));
    }
    adam_step s = cuda_adam_step(op);
    if (op->guard && op->counts) {
        if (op->n <= MAX_COUNTED) {
            s.counted = op->n;
        } else {
            const tg_dtype stored = tg_stored(op->dtype, op->grad_store);
            TG_CALL(be->ops->count_nonfinite(be, stored, op->n, op->grad, op->guard));
        }
    }
    return op->form == TG_STATE_8BIT ? cuda_adam_bytes(be, op, s) : run_types(be, op, s);
}

tg_status cuda_update(tg_backend *be, int count, const tg_adam *ops) {
    if (count == 0 || ops[0].kernel == TG_KERNEL_ADAM) {
        return cuda_adam(be, count, ops);
    }
    for (int i = 0; i < count; i++) {
        TG_CALL(ops[i].kernel == TG_KERNEL_ADAM ? cuda_adam_one(be, &ops[i])
                                                : cuda_rule_step(be, &ops[i]));
    }
    return TG_OK;
}
