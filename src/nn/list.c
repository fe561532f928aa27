/* Lists that grow by doubling. */
#include "nn/list.h"

#include <string.h>

tg_status nn_list_grow(tg_context *ctx, void **list, int count, int *capacity, size_t size) {
    if (count < *capacity) {
        return TG_OK;
    }
    const int next = *capacity ? 2 * *capacity : 64;
    void *larger = tg_mem_calloc(ctx, TG_MEM_OTHER, (size_t)next, size);
    if (!larger) {
        return TG_E_MEMORY;
    }
    if (count > 0) {
        memcpy(larger, *list, (size_t)count * size);
    }
    tg_mem_free(ctx, *list);
    *list = larger;
    *capacity = next;
    return TG_OK;
}
