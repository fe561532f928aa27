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

/* Those that stay, then the largest first, then the earliest born, then in the order of
 * asking. */
static int by_size(const void *a, const void *b) {
    const nn_buffer *x = a, *y = b;
    if (x->stays != y->stays) {
        return x->stays ? -1 : 1;
    }
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
    return atomic_load(&all_apart) || a->stays || b->stays ||
           (a->born <= b->dies && b->born <= a->dies);
}

/* Lowest offset for a buffer beside the first `count`, which stand in the order of theirs. */
static size_t lowest(const nn_plan *plan, int count, const nn_buffer *next) {
    size_t offset = 0;
    for (int j = 0; j < count; j++) {
        const nn_buffer *placed = &plan->buffers[j];
        if (!meet(placed, next)) {
            continue;
        }
        if (placed->offset >= offset + next->bytes) {
            break;
        }
        if (placed->offset + placed->bytes > offset) {
            offset = placed->offset + placed->bytes;
        }
    }
    return offset;
}

/* Buffer number i of the list among those before it. */
static void insert(nn_plan *plan, int i) {
    nn_buffer next = plan->buffers[i];
    next.offset = lowest(plan, i, &next);
    int at = i;
    while (at > 0 && plan->buffers[at - 1].offset > next.offset) {
        plan->buffers[at] = plan->buffers[at - 1];
        at--;
    }
    plan->buffers[at] = next;
    if (next.offset + next.bytes > plan->bytes) {
        plan->bytes = next.offset + next.bytes;
    }
}

void nn_plan_solve(nn_plan *plan) {
    for (int i = 0; i < plan->count; i++) {
        plan->buffers[i].stays = plan->end > 0 && plan->buffers[i].dies >= plan->end;
    }
    plan->bytes = 0;
    if (plan->count > 0) {
        qsort(plan->buffers, (size_t)plan->count, sizeof *plan->buffers, by_size);
    }
    for (int i = 0; i < plan->count; i++) {
        insert(plan, i);
    }
}

bool nn_plan_has_room(const nn_plan *plan, size_t bytes, int born, int dies) {
    const nn_buffer next = {.bytes = bytes, .born = born, .dies = dies};
    return lowest(plan, plan->count, &next) + bytes <= plan->bytes;
}

tg_status nn_plan_place(nn_plan *plan, void **pointer, size_t bytes, int born, int dies) {
    const tg_status status = nn_plan_add(plan, pointer, (int64_t)bytes, 1, born, dies);
    if (status == TG_OK) {
        insert(plan, plan->count - 1);
    }
    return status;
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
