/* First fit on lifetimes. The placed buffers are kept in the order of their offsets, so one pass
 * over them finds the lowest gap for the next one. */
#include "nn/plan.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

tg_status nn_plan_add(nn_plan *plan, void **pointer, int64_t count, size_t size, int born,
                      int dies) {
    size_t bytes = 0;
    if (count < 0 || __builtin_mul_overflow((size_t)count, size, &bytes) || bytes > SIZE_MAX / 4) {
        return tg_fail(plan->ctx, TG_E_SHAPE, "a buffer of %lld elements of %zu bytes is too large",
                       (long long)count, size);
    }
    if (plan->count == plan->capacity) {
        const int capacity = plan->capacity ? 2 * plan->capacity : 64;
        nn_buffer *larger = NULL;
        tg_status status = TG_NEW(plan->ctx, TG_MEM_OTHER, larger, capacity);
        if (status != TG_OK) {
            return status;
        }
        if (plan->count > 0) {
            memcpy(larger, plan->buffers, (size_t)plan->count * sizeof *larger);
        }
        tg_mem_free(plan->ctx, plan->buffers);
        plan->buffers = larger;
        plan->capacity = capacity;
    }
    bytes = (bytes + TG_ALIGNMENT - 1) / TG_ALIGNMENT * TG_ALIGNMENT;
    plan->buffers[plan->count] = (nn_buffer){
        .pointer = pointer, .bytes = bytes, .born = born, .dies = dies, .number = plan->count};
    plan->count++;
    return TG_OK;
}

/* Largest first, then the earliest born, then in the order of asking. */
static int by_size(const void *a, const void *b) {
    const nn_buffer *x = a, *y = b;
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    if (x->born != y->born) {
        return x->born < y->born ? -1 : 1;
    }
    return x->number - y->number;
}

static atomic_bool all_apart;

void nn_plan_test_apart(bool apart) {
    atomic_store(&all_apart, apart);
}

static bool meet(const nn_buffer *a, const nn_buffer *b) {
    return atomic_load(&all_apart) || (a->born <= b->dies && b->born <= a->dies);
}

void nn_plan_solve(nn_plan *plan) {
    plan->bytes = 0;
    if (plan->count > 0) {
        qsort(plan->buffers, (size_t)plan->count, sizeof *plan->buffers, by_size);
    }
    for (int i = 0; i < plan->count; i++) {
        nn_buffer next = plan->buffers[i];
        size_t offset = 0;
        for (int j = 0; j < i; j++) { /* in the order of offsets */
            const nn_buffer *placed = &plan->buffers[j];
            if (!meet(placed, &next)) {
                continue;
            }
            if (placed->offset >= offset + next.bytes) {
                break;
            }
            if (placed->offset + placed->bytes > offset) {
                offset = placed->offset + placed->bytes;
            }
        }
        next.offset = offset;
        int at = i;
        while (at > 0 && plan->buffers[at - 1].offset > offset) {
            plan->buffers[at] = plan->buffers[at - 1];
            at--;
        }
        plan->buffers[at] = next;
        if (offset + next.bytes > plan->bytes) {
            plan->bytes = offset + next.bytes;
        }
    }
}

void nn_plan_bind(const nn_plan *plan, void *arena) {
    for (int i = 0; i < plan->count; i++) {
        *plan->buffers[i].pointer = (char *)arena + plan->buffers[i].offset;
    }
}

void nn_plan_free(nn_plan *plan) {
    TG_FREE(plan->ctx, plan->buffers);
    plan->count = plan->capacity = 0;
}
