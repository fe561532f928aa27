/* First fit on lifetimes. Placed buffers are kept sorted by offset, so one pass over them finds the
 * lowest gap for the next one. */
#include "nn/program.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/memory.h"
#include "nn/model.h"

tg_status nn_arena_add(nn_arena *arena, void **pointer, size_t bytes, int born, int dies) {
    if (bytes > SIZE_MAX / 4) {
        return tg_fail(arena->ctx, TG_E_SHAPE, "a buffer of %zu bytes is too large", bytes);
    }
    TG_CALL(NN_GROW(arena, buffers, buffer));
    arena->buffers[arena->buffer_count] = (nn_buffer){.pointer = pointer,
                                                      .bytes = tg_align(bytes),
                                                      .born = born,
                                                      .dies = dies,
                                                      .number = arena->buffer_count};
    arena->buffer_count++;
    return TG_OK;
}

/* Buffers that stay, then largest first, then by rank, then by number. */
static int by_size(const void *a, const void *b) {
    const nn_buffer *x = a, *y = b;
    if (x->stays != y->stays) {
        return x->stays ? -1 : 1;
    }
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return x->number - y->number;
}

static atomic_bool all_apart;

void nn_arena_test_apart(bool apart) {
    atomic_store(&all_apart, apart);
}

static bool meet(const nn_buffer *a, const nn_buffer *b) {
    return atomic_load(&all_apart) || a->stays || b->stays ||
           (a->born <= b->dies && b->born <= a->dies);
}

/* Lowest offset for a buffer among the first `count`, which are sorted by offset. */
static size_t lowest(const nn_arena *arena, int count, const nn_buffer *next) {
    size_t offset = 0;
    for (int j = 0; j < count; j++) {
        const nn_buffer *placed = &arena->buffers[j];
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

/* Inserts buffer number i among those before it. */
static void insert(nn_arena *arena, int i) {
    nn_buffer next = arena->buffers[i];
    next.offset = lowest(arena, i, &next);
    int at = i;
    while (at > 0 && arena->buffers[at - 1].offset > next.offset) {
        arena->buffers[at] = arena->buffers[at - 1];
        at--;
    }
    arena->buffers[at] = next;
    if (next.offset + next.bytes > arena->bytes) {
        arena->bytes = next.offset + next.bytes;
    }
}

void nn_arena_solve(nn_arena *arena) {
    for (int i = 0; i < arena->buffer_count; i++) {
        nn_buffer *b = &arena->buffers[i];
        b->stays = arena->end > 0 && b->dies >= arena->end;
        b->rank = arena->is_late ? -b->dies : b->born;
    }
    arena->bytes = 0;
    if (arena->buffer_count > 0) {
        qsort(arena->buffers, (size_t)arena->buffer_count, sizeof *arena->buffers, by_size);
    }
    for (int i = 0; i < arena->buffer_count; i++) {
        insert(arena, i);
    }
}

size_t nn_arena_growth(const nn_arena *arena, size_t bytes, int born, int dies) {
    const nn_buffer next = {.bytes = bytes, .born = born, .dies = dies};
    const size_t end = lowest(arena, arena->buffer_count, &next) + bytes;
    return end > arena->bytes ? end - arena->bytes : 0;
}

tg_status nn_arena_place(nn_arena *arena, void **pointer, size_t bytes, int born, int dies) {
    TG_CALL(nn_arena_add(arena, pointer, bytes, born, dies));
    insert(arena, arena->buffer_count - 1);
    return TG_OK;
}

void nn_arena_bind(const nn_arena *arena, void *memory) {
    for (int i = 0; i < arena->buffer_count; i++) {
        *arena->buffers[i].pointer = (char *)memory + arena->buffers[i].offset;
    }
}

void nn_arena_free(nn_arena *arena) {
    TG_FREE(arena->ctx, arena->buffers);
    arena->buffer_capacity = arena->buffer_count = 0;
}
