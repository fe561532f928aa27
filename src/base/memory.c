/* Memory ledger.
 *
 * Host blocks carry a 64-byte header in front of the returned pointer; device blocks have a node in
 * a list. Counted are the requested bytes, without headers or padding, so that a plan made from
 * shapes can equal the count. */
#include "base/memory.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct host_header {
    size_t bytes;
    tg_mem_category category;
} host_header;

_Static_assert(sizeof(host_header) <= TG_ALIGNMENT, "the header fits in front of a block");

typedef struct device_node {
    void *block;
    size_t bytes;
    tg_mem_category category;
    struct device_node *next;
} device_node;

struct tg_ledger {
    pthread_mutex_t mutex;
    tg_mem_usage usage[TG_PLACES];
    device_node *device_blocks;
};

static atomic_long allocations_seen;
static atomic_long allocation_to_fail;

void tg_mem_test_fail_at(long n) {
    atomic_store(&allocations_seen, 0);
    atomic_store(&allocation_to_fail, n);
}

long tg_mem_test_count(void) {
    return atomic_load(&allocations_seen);
}

/* The test hook. */
static bool is_to_fail(void) {
    const long seen = atomic_fetch_add(&allocations_seen, 1) + 1;
    return seen == atomic_load(&allocation_to_fail);
}

/* The one place that asks the system for memory. */
static void *system_alloc(size_t bytes) {
    if (is_to_fail()) {
        return NULL;
    }
    void *block = NULL;
    return posix_memalign(&block, TG_ALIGNMENT, bytes) == 0 ? block : NULL;
}

struct tg_ledger *tg_ledger_create(void) {
    struct tg_ledger *ledger = system_alloc(sizeof *ledger);
    if (!ledger) {
        return NULL;
    }
    memset(ledger, 0, sizeof *ledger);
    if (pthread_mutex_init(&ledger->mutex, NULL) != 0) {
        free(ledger);
        return NULL;
    }
    return ledger;
}

void tg_ledger_destroy(struct tg_ledger **ledger) {
    if (!ledger || !*ledger) {
        return;
    }
    while ((*ledger)->device_blocks) {
        device_node *node = (*ledger)->device_blocks;
        (*ledger)->device_blocks = node->next;
        free(node);
    }
    pthread_mutex_destroy(&(*ledger)->mutex);
    free(*ledger);
    *ledger = NULL;
}

static void count_in(tg_mem_usage *usage, tg_mem_category category, size_t bytes) {
    usage->current[category] += bytes;
    usage->current_total += bytes;
    usage->blocks++;
    if (usage->current[category] > usage->peak[category]) {
        usage->peak[category] = usage->current[category];
    }
    if (usage->current_total > usage->peak_total) {
        usage->peak_total = usage->current_total;
        memcpy(usage->at_peak, usage->current, sizeof usage->at_peak);
    }
}

static void count_out(tg_mem_usage *usage, tg_mem_category category, size_t bytes) {
    usage->current[category] -= bytes;
    usage->current_total -= bytes;
    usage->blocks--;
}

/* "1.5 GiB"; returns its number of characters. */
static size_t write_bytes(char *text, size_t capacity, size_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024.0 && unit < 4) {
        value /= 1024.0;
        unit++;
    }
    const int wrote = snprintf(text, capacity, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return wrote > 0 && (size_t)wrote < capacity ? (size_t)wrote : 0;
}

const char *tg_mem_text(const size_t bytes[TG_MEM_CATEGORIES], char text[TG_MEM_TEXT]) {
    size_t total = 0;
    bool is_first = true;
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        total += bytes[c];
    }
    size_t used = write_bytes(text, TG_MEM_TEXT, total);
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) { /* each part takes less than 32 characters */
        if (bytes[c] > 0 && used + 40 < TG_MEM_TEXT) {
            used +=
                (size_t)snprintf(text + used, TG_MEM_TEXT - used, "%s%s ", is_first ? " (" : ", ",
                                 tg_mem_category_name((tg_mem_category)c));
            used += write_bytes(text + used, TG_MEM_TEXT - used, bytes[c]);
            is_first = false;
        }
    }
    snprintf(text + used, TG_MEM_TEXT - used, "%s", is_first ? "" : ")");
    return text;
}

/* Out of `where` memory: the request was for `bytes`. */
static void fail_alloc(tg_context *ctx, const char *where, tg_place place, tg_mem_category category,
                       size_t bytes) {
    char asked[32], held[TG_MEM_TEXT];
    const tg_mem_usage usage = tg_context_memory(ctx, place);
    write_bytes(asked, sizeof asked, bytes);
    tg_fail(ctx, TG_E_MEMORY, "out of %smemory: no %s for %s; in use are %s", where, asked,
            tg_mem_category_name(category), tg_mem_text(usage.current, held));
}

/* From the caller's allocator; NULL with an error. */
static void *alloc_by_caller(tg_context *ctx, const char *where, tg_place place, void *stream,
                             tg_mem_category category, size_t bytes) {
    const tg_allocator *a = &ctx->config.allocator;
    const size_t alignment = place == TG_HOST ? TG_ALIGNMENT : TG_DEVICE_ALIGNMENT;
    void *block = is_to_fail() ? NULL : a->alloc(a->user, bytes, place, stream);
    if (!block) {
        fail_alloc(ctx, where, place, category, bytes);
    } else if ((uintptr_t)block % alignment != 0) {
        tg_fail(ctx, TG_E_MEMORY, "the allocator of the context gave %p, not aligned to %zu bytes",
                block, alignment);
        a->release(a->user, block, bytes, place, stream);
        block = NULL;
    }
    return block;
}

void *tg_mem_alloc(tg_context *ctx, tg_mem_category category, size_t count, size_t size) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2) {
        tg_fail(ctx, TG_E_MEMORY, "out of memory: %zu elements of %zu bytes for %s overflow", count,
                size, tg_mem_category_name(category));
        return NULL;
    }
    char *raw = NULL;
    if (ctx->config.allocator.serves_host) {
        raw = alloc_by_caller(ctx, "", TG_HOST, NULL, category, TG_ALIGNMENT + bytes);
    } else if (!(raw = system_alloc(TG_ALIGNMENT + bytes))) {
        fail_alloc(ctx, "", TG_HOST, category, bytes);
    }
    if (!raw) {
        return NULL;
    }
    *(host_header *)raw = (host_header){.bytes = bytes, .category = category};
    pthread_mutex_lock(&ctx->ledger->mutex);
    count_in(&ctx->ledger->usage[TG_HOST], category, bytes);
    pthread_mutex_unlock(&ctx->ledger->mutex);
    return raw + TG_ALIGNMENT;
}

void *tg_mem_calloc(tg_context *ctx, tg_mem_category category, size_t count, size_t size) {
    void *block = tg_mem_alloc(ctx, category, count, size);
    if (block) {
        memset(block, 0, count * size);
    }
    return block;
}

void tg_mem_free(tg_context *ctx, void *block) {
    if (!block) {
        return;
    }
    char *raw = (char *)block - TG_ALIGNMENT;
    const host_header header = *(host_header *)raw;
    const tg_allocator a = ctx->config.allocator; /* the block may be the context itself */
    pthread_mutex_lock(&ctx->ledger->mutex);
    count_out(&ctx->ledger->usage[TG_HOST], header.category, header.bytes);
    pthread_mutex_unlock(&ctx->ledger->mutex);
    if (a.serves_host) {
        a.release(a.user, raw, TG_ALIGNMENT + header.bytes, TG_HOST, NULL);
    } else {
        free(raw);
    }
}

char *tg_mem_strdup(tg_context *ctx, const char *text) {
    return tg_mem_printf(ctx, "%s", text);
}

char *tg_mem_printf(tg_context *ctx, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const size_t capacity = (size_t)vsnprintf(NULL, 0, format, args) + 1;
    char *text = tg_mem_alloc(ctx, TG_MEM_OTHER, capacity, 1);
    if (text) {
        vsnprintf(text, capacity, format, again);
    }
    va_end(again);
    va_end(args);
    return text;
}

tg_status tg_mem_grow(tg_context *ctx, void *pointer, size_t element, int64_t count, int64_t more,
                      int64_t *capacity) {
    if (*capacity - count >= more) {
        return TG_OK;
    }
    int64_t larger = *capacity ? 2 * *capacity : 16;
    while (larger - count < more) {
        larger *= 2;
    }
    void *grown = tg_mem_alloc(ctx, TG_MEM_OTHER, (size_t)larger, element);
    void *block;
    if (!grown) {
        return TG_E_MEMORY;
    }
    memcpy(&block, pointer, sizeof block); /* a pointer of any type */
    if (count > 0) {
        memcpy(grown, block, (size_t)count * element);
    }
    tg_mem_free(ctx, block);
    memcpy(pointer, &grown, sizeof grown);
    *capacity = larger;
    return TG_OK;
}

/* ---- pools ---- */

struct tg_pool_item {
    struct tg_pool_item *before;
    void (*release)(void *block);
};

void *tg_pool_alloc(tg_pool *pool, size_t count, size_t size, void (*release)(void *block)) {
    const size_t header = (TG_ALIGNMENT + size - 1) / size; /* elements in front of the block */
    char *memory = tg_mem_calloc(pool->ctx, TG_MEM_WORKSPACE, count + header, size);
    if (!memory) {
        return NULL;
    }
    struct tg_pool_item *item = (struct tg_pool_item *)(void *)memory;
    *item = (struct tg_pool_item){.before = pool->last, .release = release};
    pool->last = item;
    return memory + TG_ALIGNMENT;
}

void tg_pool_clear(tg_pool *pool) {
    while (pool->last) {
        struct tg_pool_item *item = pool->last;
        pool->last = item->before;
        if (item->release) {
            item->release((char *)item + TG_ALIGNMENT);
        }
        tg_mem_free(pool->ctx, item);
    }
}

/* ---- devices ---- */

/* Pinned memory comes from the driver. */
static bool is_of_caller(const tg_context *ctx, const tg_mem_device *device) {
    return ctx->config.allocator.alloc && device->place == TG_DEVICE;
}

/* An empty block also has a unique address. */
static size_t least(size_t bytes) {
    return bytes > 0 ? bytes : 1;
}

void *tg_mem_device_alloc(tg_context *ctx, const tg_mem_device *device, tg_mem_category category,
                          size_t bytes) {
    const char *where = device->place == TG_DEVICE ? "device " : "pinned ";
    device_node *node = system_alloc(sizeof *node);
    void *block = NULL;
    if (node && is_of_caller(ctx, device)) {
        block = alloc_by_caller(ctx, where, device->place, device->stream, category, least(bytes));
    } else if (!node || !(block = device->alloc(device->state, bytes))) {
        fail_alloc(ctx, where, device->place, category, bytes);
    }
    if (!block) {
        free(node);
        return NULL;
    }
    *node = (device_node){.block = block, .bytes = bytes, .category = category};
    pthread_mutex_lock(&ctx->ledger->mutex);
    node->next = ctx->ledger->device_blocks;
    ctx->ledger->device_blocks = node;
    count_in(&ctx->ledger->usage[device->place], category, bytes);
    pthread_mutex_unlock(&ctx->ledger->mutex);
    return block;
}

void tg_mem_device_free(tg_context *ctx, const tg_mem_device *device, void *block) {
    if (!block) {
        return;
    }
    pthread_mutex_lock(&ctx->ledger->mutex);
    device_node **link = &ctx->ledger->device_blocks;
    while (*link && (*link)->block != block) {
        link = &(*link)->next;
    }
    device_node *node = *link;
    if (node) {
        *link = node->next;
        count_out(&ctx->ledger->usage[device->place], node->category, node->bytes);
    }
    pthread_mutex_unlock(&ctx->ledger->mutex);
    if (!node) {
        return;
    }
    if (is_of_caller(ctx, device)) {
        const tg_allocator *a = &ctx->config.allocator;
        a->release(a->user, block, least(node->bytes), device->place, device->stream);
    } else {
        device->release(device->state, block);
    }
    free(node);
}

bool tg_mem_category_is_known(tg_mem_category category) {
    return (int)category >= 0 && category < TG_MEM_CATEGORIES;
}

const char *tg_mem_category_name(tg_mem_category category) {
    static const char *const names[TG_MEM_CATEGORIES] = {
        [TG_MEM_WEIGHTS] = "weights",
        [TG_MEM_GRADIENTS] = "gradients",
        [TG_MEM_OPTIMIZER] = "optimizer",
        [TG_MEM_FACTORS] = "factors",
        [TG_MEM_INDICES] = "indices",
        [TG_MEM_ACTIVATIONS] = "activations",
        [TG_MEM_WORKSPACE] = "workspace",
        [TG_MEM_DATA] = "data",
        [TG_MEM_COMMUNICATION] = "communication",
        [TG_MEM_OTHER] = "other",
    };
    return tg_mem_category_is_known(category) ? names[category] : "unknown";
}

tg_mem_usage tg_context_memory(const tg_context *ctx, tg_place place) {
    if (!ctx || (int)place < 0 || place >= TG_PLACES) {
        return (tg_mem_usage){0};
    }
    pthread_mutex_lock(&ctx->ledger->mutex);
    tg_mem_usage usage = ctx->ledger->usage[place];
    pthread_mutex_unlock(&ctx->ledger->mutex);
    return usage;
}

void tg_context_memory_reset_peak(tg_context *ctx) {
    if (!ctx) {
        return;
    }
    pthread_mutex_lock(&ctx->ledger->mutex);
    for (int place = 0; place < TG_PLACES; place++) {
        tg_mem_usage *usage = &ctx->ledger->usage[place];
        usage->peak_total = usage->current_total;
        memcpy(usage->peak, usage->current, sizeof usage->peak);
        memcpy(usage->at_peak, usage->current, sizeof usage->at_peak);
    }
    pthread_mutex_unlock(&ctx->ledger->mutex);
}
