/* Places buffers in one arena: two may share bytes if they are never alive together.
 *
 * Time is counted in the phases of a step. Buffers are placed largest first, each at the lowest
 * offset that is free during its whole life, so the bytes of an arena are known from shapes alone.
 */
#ifndef TG_NN_PLAN_H
#define TG_NN_PLAN_H

#include "base/memory.h"

typedef struct nn_buffer {
    void **pointer; /* set when the plan is bound to memory */
    size_t bytes;   /* a multiple of TG_ALIGNMENT */
    int born, dies; /* alive in the phases born .. dies, both included */
    int number;     /* in the order of asking */
    bool stays;     /* placed first, for all phases */
    size_t offset;
} nn_buffer;

typedef struct nn_plan {
    tg_context *ctx;
    nn_buffer *buffers; /* (count); in the order of placement once solved */
    int count, capacity;
    size_t bytes; /* of the arena, once solved */
    int end;      /* a phase that should have room: what lives in it is placed side by side */
} nn_plan;

/* Asks for count * size bytes at *pointer. */
TG_NODISCARD tg_status nn_plan_add(nn_plan *plan, void **pointer, int64_t count, size_t size,
                                   int born, int dies);
void nn_plan_solve(nn_plan *plan);
/* One more buffer in a solved plan, which leaves the others where they are. nn_plan_has_room:
 * whether the arena would stay as it is. */
bool nn_plan_has_room(const nn_plan *plan, size_t bytes, int born, int dies);
TG_NODISCARD tg_status nn_plan_place(nn_plan *plan, void **pointer, size_t bytes, int born,
                                     int dies);
/* Sets every pointer; `arena` has plan->bytes. */
void nn_plan_bind(const nn_plan *plan, void *arena);
void nn_plan_free(nn_plan *plan);

/* Test hook, for the whole process: place all buffers apart, as if they lived all the time. */
void nn_plan_test_apart(bool apart);

#endif
