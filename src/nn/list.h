/* Lists that grow by doubling. */
#ifndef TG_NN_LIST_H
#define TG_NN_LIST_H

#include "base/memory.h"

/* Room for one more element in owner->list, which has owner->name_count elements. */
#define NN_GROW(owner, list, name)                                                                 \
    nn_list_grow((owner)->ctx, (void **)&(owner)->list, (owner)->name##_count,                     \
                 &(owner)->name##_capacity, sizeof *(owner)->list)

TG_NODISCARD tg_status nn_list_grow(tg_context *ctx, void **list, int count, int *capacity,
                                    size_t size);

#endif
