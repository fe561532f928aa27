/* Lists that grow by doubling. */
#ifndef TG_NN_LIST_H
#define TG_NN_LIST_H

#include "base/memory.h"

/* Room for one more element in owner->list, which has owner->name_count elements. */
#define NN_GROW(owner, list, name)                                                                 \
    tg_mem_grow((owner)->ctx, &(owner)->list, sizeof *(owner)->list, (owner)->name##_count, 1,     \
                &(owner)->name##_capacity)

#endif
