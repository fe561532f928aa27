/* Places buffers in one arena: two may share bytes if they are never alive together.
 *
 * Time is counted in the ops of a step. Buffers are placed largest first, each at the lowest
 * offset that is free during its whole life, so the bytes of an arena follow from shapes alone. */
#ifndef TG_NN_ARENA_H
#define TG_NN_ARENA_H

#include "base/memory.h"

typedef struct nn_buffer {
    void **pointer; /* set when the arena is bound to memory */
    size_t bytes;   /* a multiple of TG_ALIGNMENT */
    int born, dies; /* alive in the ops born .. dies, both included */
    int number;     /* in the order of requests */
    bool stays;     /* placed first, alive all the time */
    int rank;       /* order among buffers of one size */
    size_t offset;
} nn_buffer;

typedef struct nn_arena {
    tg_context *ctx;
    nn_buffer *buffers; /* in the order of placement once solved */
    int buffer_count;
    int64_t buffer_capacity;
    size_t bytes; /* of the arena, once solved */
    int end;      /* a time that should have room: buffers alive then are placed side by side */
    bool is_late; /* among buffers of one size, place those that die last first, not the oldest */
} nn_arena;

/* Requests bytes at *pointer. */
TG_NODISCARD tg_status nn_arena_add(nn_arena *arena, void **pointer, size_t bytes, int born,
                                    int dies);
void nn_arena_solve(nn_arena *arena);
/* One more buffer in a solved arena; the others stay in place. nn_arena_growth: the bytes by which
 * the arena would grow. */
size_t nn_arena_growth(const nn_arena *arena, size_t bytes, int born, int dies);
TG_NODISCARD tg_status nn_arena_place(nn_arena *arena, void **pointer, size_t bytes, int born,
                                      int dies);
/* Sets every pointer; `memory` has arena->bytes. */
void nn_arena_bind(const nn_arena *arena, void *memory);
void nn_arena_free(nn_arena *arena);

/* Test hook, for the whole process: place all buffers apart, as if they lived all the time. */
void nn_arena_test_apart(bool apart);

#endif
