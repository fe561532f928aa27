/* Adam on several small arrays in one launch: a network has dozens of biases and small matrices,
 * whose launches would take longer than their work.
 *
 * An array has a few blocks. Each of them counts all non-finite entries itself, so there is no
 * synchronization between blocks; the first one adds them to the guard. */
#include "backend/cuda/optim/adam.cuh"

enum {
    MAX_ARRAYS = 64, /* arrays per launch */
    THREADS = 1024,
    REALS_PER_BLOCK = 4096,          /* reals per block, about */
    MAX_REALS = 16 * REALS_PER_BLOCK /* of a batched array */
};

struct adam_item {
    adam_step step;
    adam_arrays<float, float, float, float> arrays;
    unsigned end; /* end of its blocks, which follow those of the previous array */
};

struct adam_table {
    int count;
    adam_item item[MAX_ARRAYS];
};
static_assert(sizeof(adam_table) <= 32000, "parameters of a kernel");

/* Non-finite entries of an array, for all threads of a block. */
static __device__ inline uint32_t count_all(const adam_item &item) {
    __shared__ uint32_t total;
    if (threadIdx.x == 0) {
        total = 0;
    }
    __syncthreads();
    uint32_t bad = 0;
    in_packs_from<per_step<float, 1>>(
        threadIdx.x, THREADS, item.step.packs, item.step.n, [&](int64_t element, auto part) {
            using S = decltype(part);
            const auto grad = load<S::count, S::vector>(item.arrays.grad + element);
#pragma unroll
            for (int i = 0; i < S::count; i++) {
                bad += is_bad(grad.at[i]);
            }
        });
    if (bad > 0) {
        atomicAdd(&total, bad);
    }
    __syncthreads();
    return total;
}

static __global__ void __launch_bounds__(THREADS, 1)
    adam_many_kernel(const __grid_constant__ adam_table table) {
    unsigned begin = 0;
    int at = 0;
    while (blockIdx.x >= table.item[at].end) {
        begin = table.item[at++].end;
    }
    const adam_item &item = table.item[at];
    const adam_step &s = item.step;
    if (s.counted > 0) {
        const uint32_t bad = count_all(item);
        if (bad > 0) {
            if (blockIdx.x == begin && threadIdx.x == 0) {
                add_saturating(s.guard, bad);
            }
            return;
        }
    }
    if (s.guard && *s.guard > 0) {
        return;
    }
    const auto rates = read_rates<float>(s);
    const int64_t first = (int64_t)(blockIdx.x - begin) * THREADS + threadIdx.x;
    in_packs_from<per_step<float, 1>>(first, (int64_t)(item.end - begin) * THREADS, s.packs, s.n,
                                      [&](int64_t element, auto part) {
                                          update_span<1, decltype(part)>(rates, item.arrays,
                                                                         element);
                                      });
}

/* Whether an update can be batched: a real array in f32 throughout, whose gradient is not written
 * while other blocks count it. */
static bool can_batch(const tg_adam *op) {
    return (op->n <= REALS_PER_BLOCK || !op->direction) && op->dtype == TG_F32 &&
           op->form == TG_STATE_FULL && op->grad_store == TG_STORE_FULL &&
           op->weight_store == TG_STORE_FULL && op->n <= MAX_REALS;
}

static adam_item item_of(const tg_adam *op, unsigned begin) {
    adam_item item = adam_item();
    item.step = cuda_adam_step(op);
    item.arrays = {static_cast<const float *>(op->grad), static_cast<float *>(op->m),
                   static_cast<float *>(op->v), static_cast<float *>(op->direction),
                   static_cast<float *>(op->weight)};
    item.step.n = op->n;
    item.step.packs = adam_packs<1>(item.arrays, op->n);
    item.step.counted = op->guard && op->counts ? op->n : 0;
    item.end = begin + (unsigned)((op->n + REALS_PER_BLOCK - 1) / REALS_PER_BLOCK);
    return item;
}

static tg_status run_table(tg_backend *be, adam_table *table) {
    const int count = table->count;
    table->count = 0;
    return count == 0 ? TG_OK
                      : launch_alone(be, "adam", adam_many_kernel, table->item[count - 1].end,
                                     THREADS, 0, *table);
}

tg_status cuda_adam(tg_backend *be, int count, const tg_adam *ops) {
    adam_table table = adam_table();
    if (count == 1) {
        return cuda_adam_one(be, ops);
    }
    for (int i = 0; i < count; i++) {
        TG_CALL(tg_check_adam(be->ctx, &ops[i]));
        if (ops[i].n <= 0) {
            continue;
        }
        if (!can_batch(&ops[i])) {
            TG_CALL(cuda_adam_one(be, &ops[i]));
            continue;
        }
        if (table.count == MAX_ARRAYS) {
            TG_CALL(run_table(be, &table));
        }
        table.item[table.count] =
            item_of(&ops[i], table.count > 0 ? table.item[table.count - 1].end : 0);
        table.count++;
    }
    return run_table(be, &table);
}
