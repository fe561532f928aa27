/* The only allocator of the library: 64-byte aligned blocks, counted by category in the context's
 * ledger. Thread-safe. */
#ifndef TG_BASE_MEMORY_H
#define TG_BASE_MEMORY_H

#include <stddef.h>

#include "base/context.h"

#define TG_ALIGNMENT        64
#define TG_DEVICE_ALIGNMENT 256

/* count * size bytes, uninitialised; NULL (and an error in ctx) if memory is exhausted or the
 * product overflows. Zero bytes give a valid unique pointer. */
void *tg_mem_alloc(tg_context *ctx, tg_mem_category category, size_t count, size_t size);
void *tg_mem_calloc(tg_context *ctx, tg_mem_category category, size_t count, size_t size);
void tg_mem_free(tg_context *ctx, void *block); /* accepts NULL */
char *tg_mem_strdup(tg_context *ctx, const char *text);
/* The same of a text composed as by printf. */
TG_PRINTF(2, 3) char *tg_mem_printf(tg_context *ctx, const char *format, ...);

/* Makes room for `more` elements after the `count` in use. `pointer` is the address of a pointer to
 * a block of *capacity elements, which doubles (from 16) until they fit, in category other. A
 * failure changes nothing. */
TG_NODISCARD tg_status tg_mem_grow(tg_context *ctx, void *pointer, size_t element, int64_t count,
                                   int64_t more, int64_t *capacity);

/* For use in TG_TRY: allocate `count` elements for pointer p, zeroed or not. */
#define TG_NEW(ctx, category, p, count)                                                            \
    (((p) = tg_mem_calloc((ctx), (category), (size_t)(count), sizeof *(p))) ? TG_OK : TG_E_MEMORY)
#define TG_ALLOC(ctx, category, p, count)                                                          \
    (((p) = tg_mem_alloc((ctx), (category), (size_t)(count), sizeof *(p))) ? TG_OK : TG_E_MEMORY)

/* Frees and sets NULL. */
#define TG_FREE(ctx, p) (tg_mem_free((ctx), (p)), (p) = NULL)

/* Blocks, and resources held by them, that are released together, the last one first. */
typedef struct tg_pool {
    tg_context *ctx;
    struct tg_pool_item *last;
} tg_pool;

/* Zeroed memory of category workspace, or NULL. `release`, unless NULL, is called with the block
 * before it is freed. */
void *tg_pool_alloc(tg_pool *pool, size_t count, size_t size, void (*release)(void *block));
void tg_pool_clear(tg_pool *pool);

/* For use in TG_CALL: `count` zeroed elements for pointer p. */
#define TG_POOL(pool, p, count)                                                                    \
    (((p) = tg_pool_alloc((pool), (size_t)(count), sizeof *(p), NULL)) ? TG_OK : TG_E_MEMORY)

/* Memory of a device (or pinned host memory), counted in the same ledger. */
typedef struct tg_mem_device {
    void *(*alloc)(void *state, size_t bytes); /* NULL if exhausted */
    void (*release)(void *state, void *block);
    void *state;
    tg_place place; /* where it is counted; device memory comes from the context's allocator, if it
                       has one, */
    void *stream;   /* which is given this stream */
} tg_mem_device;

void *tg_mem_device_alloc(tg_context *ctx, const tg_mem_device *device, tg_mem_category category,
                          size_t bytes);
void tg_mem_device_free(tg_context *ctx, const tg_mem_device *device, void *block);

bool tg_mem_category_is_known(tg_mem_category category);

/* "3.2 GiB (weights 1.1 GiB, optimizer 2.1 GiB)": a total and its parts. */
enum { TG_MEM_TEXT = 400 };
const char *tg_mem_text(const size_t bytes[TG_MEM_CATEGORIES], char text[TG_MEM_TEXT]);

/* Test hook for the whole process: the n-th allocation from now on (1-based) fails; 0 = none.
 * tg_mem_test_count returns the number of allocations requested since the hook was last set. */
void tg_mem_test_fail_at(long n);
long tg_mem_test_count(void);

/* Creation and end of a ledger (context.c). */
struct tg_ledger *tg_ledger_create(void);
void tg_ledger_destroy(struct tg_ledger **ledger);

/* Divides a block of scratch memory into pieces. Call it twice with the same sizes: with a NULL
 * block to add up the bytes, then to place the pieces. */

typedef struct tg_scratch {
    char *block; /* NULL: count only; the pieces must not be dereferenced */
    size_t used;
} tg_scratch;

/* Bytes of a piece, rounded up to where the next may begin. */
static inline size_t tg_align(size_t bytes) {
    return (bytes + TG_ALIGNMENT - 1) / TG_ALIGNMENT * TG_ALIGNMENT;
}

static inline void *tg_scratch_take(tg_scratch *scratch, size_t bytes) {
    void *piece = scratch->block ? scratch->block + scratch->used : (void *)scratch;
    scratch->used += tg_align(bytes);
    return piece;
}

#endif
