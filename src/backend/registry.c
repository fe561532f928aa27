/* The backends: their table, and how one is chosen, opened and closed. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"

typedef struct registry_row {
    const char *name;
    void (*fill)(tg_backend_ops *ops);
} registry_row;

static const registry_row rows[] = {
#define TG_BACKEND(name) {#name, tg_backend_fill_##name},
#include "backend/list.def"
#undef TG_BACKEND
};

enum { ROWS = sizeof rows / sizeof rows[0] };

/* All members but name, summary, place and stream. */
_Static_assert((sizeof(tg_backend_ops) + sizeof(tg_stream_ops)) / sizeof(void (*)(void)) - 4 <= 75,
               "a backend has at most 75 slots");

static tg_backend_ops tables[ROWS + 1]; /* the first row is ref, the start of all others */
static registry_row added;              /* by a test, after the others */

static void fill_tables(void) {
    for (int i = 0; i < ROWS; i++) {
        tables[i] = tables[0];
        rows[i].fill(&tables[i]);
    }
}

static const tg_backend_ops *table(int index) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_tables);
    return &tables[index];
}

void tg_backend_test_add(const char *name, void (*fill)(tg_backend_ops *ops)) {
    tables[ROWS] = *table(0);
    fill(&tables[ROWS]);
    tables[ROWS].name = name;
    added = (registry_row){name, fill};
}

int tg_backend_count(void) {
    return ROWS + (added.name ? 1 : 0);
}

static const char *name_of(int index) {
    return index < ROWS ? rows[index].name : added.name;
}

tg_status tg_backend_describe(tg_context *ctx, int index, tg_backend_info *out) {
    TG_NEED(ctx, out);
    *out = (tg_backend_info){0};
    if (index < 0 || index >= tg_backend_count()) {
        return tg_fail(ctx, TG_E_ARGUMENT, "backend number %d does not exist; there are %d", index,
                       tg_backend_count());
    }
    const tg_backend_ops *ops = table(index);
    out->name = ops->name;
    out->summary = ops->summary;
    ops->probe(out);
    return TG_OK;
}

static void close_backend(tg_backend *be) {
    be->ops->release(be, be->cell);
    be->ops->close(be);
    tg_mem_free(be->ctx, be);
}

/* The device requested by the context, by number or by a stream. */
static tg_status find_device(tg_backend *be) {
    const tg_context_config *config = &be->ctx->config;
    int count = 0, of_stream = 0;
    be->device = config->device < 0 ? 0 : config->device;
    be->stream = config->stream;
    TG_CALL(be->ops->devices(be, config->stream, &count, &of_stream));
    if (be->device >= count) {
        return tg_fail(be->ctx, TG_E_ARGUMENT, "context: device %d is requested, backend %s has %d",
                       be->device, be->ops->name, count);
    }
    if (config->stream) {
        if (config->device >= 0 && of_stream != config->device) {
            return tg_fail(be->ctx, TG_E_ARGUMENT,
                           "context: the stream belongs to device %d, but device %d is requested",
                           of_stream, config->device);
        }
        be->device = of_stream;
    }
    return TG_OK;
}

static tg_status open_row(tg_context *ctx, int index, tg_backend **out) {
    tg_status status = TG_OK;
    tg_backend *be = NULL;
    tg_backend_info info = {0};
    TG_TRY(tg_backend_describe(ctx, index, &info));
    if (!info.available) {
        return tg_fail(ctx, TG_E_BACKEND, "backend %s is not available here: %s", info.name,
                       info.reason);
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, be, 1));
    be->ops = table(index);
    be->ref = table(0);
    be->ctx = ctx;
    be->threads = ctx->threads;
    be->math = ctx->config.math;
    if (be->ops->devices) {
        TG_TRY(find_device(be));
    }
    TG_TRY(be->ops->open(be));
    be->cell = be->ops->alloc(be, TG_MEM_OTHER, 8 * sizeof *be->cell);
    if (!be->cell) {
        be->ops->close(be);
        TG_TRY(TG_E_MEMORY);
    }
    *out = be;
    return TG_OK;
fail:
    tg_mem_free(ctx, be);
    return status;
}

tg_status tg_backend_open(tg_context *ctx, const char *name, tg_backend **out) {
    *out = NULL;
    if (!name) {
        for (int i = tg_backend_count() - 1; i > 0; i--) {
            tg_backend_info info;
            if (tg_backend_describe(ctx, i, &info) == TG_OK && info.available) {
                return open_row(ctx, i, out);
            }
        }
        return open_row(ctx, 0, out);
    }
    char known[64] = "";
    for (int i = tg_backend_count() - 1; i >= 0; i--) {
        if (strcmp(name_of(i), name) == 0) {
            return open_row(ctx, i, out);
        }
    }
    for (int i = 0; i < tg_backend_count(); i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", name_of(i));
    }
    return tg_fail(ctx, TG_E_CONFIG, "backend '%s' is not in this build; it has %s", name, known);
}

void tg_backend_close(tg_backend **be) {
    if (be && *be) {
        close_backend(*be);
        *be = NULL;
    }
}

tg_status tg_backend_select(tg_context *ctx, const char *name) {
    TG_NEED(ctx, ctx);
    if (ctx->backend) {
        if (!name || strcmp(name, ctx->backend->ops->name) == 0) {
            return TG_OK;
        }
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "backend %s is already chosen for this context; %s needs another context",
                       ctx->backend->ops->name, name);
    }
    tg_backend *be = NULL;
    tg_status status = tg_backend_open(ctx, name, &be);
    if (status != TG_OK) {
        return status;
    }
    if (be->ops->place == TG_HOST && (ctx->config.stream || ctx->config.device >= 0)) {
        status =
            tg_fail(ctx, TG_E_ARGUMENT, "context: it has a %s, but backend %s computes on the host",
                    ctx->config.stream ? "stream" : "device", be->ops->name);
        tg_backend_close(&be);
        return status;
    }
    ctx->backend = be;
    ctx->backend_close = close_backend;
    ctx->backend_release = be->ops->release;
    return TG_OK;
}

tg_status tg_backend_get(tg_context *ctx, tg_backend **out) {
    *out = NULL;
    if (!ctx->backend) {
        TG_CALL(tg_backend_select(ctx, NULL));
    }
    *out = ctx->backend;
    return TG_OK;
}

const char *tg_backend_name(const tg_context *ctx) {
    return ctx && ctx->backend ? ctx->backend->ops->name : "";
}

const char *tg_backend_math(const tg_context *ctx) {
    if (!ctx || !ctx->backend || ctx->backend->ops->place != TG_DEVICE) {
        return "";
    }
    return ctx->backend->math == TG_MATH_FP32 ? "fp32" : "tf32";
}

tg_status tg_bitmap_rank(tg_backend *be, tg_bitmap *bitmap) {
    const tg_select op = {.kind = TG_SELECT_GIVEN, .bitmap = bitmap};
    return be->ops->select(be, &op);
}

tg_gemm tg_whole_product(tg_dtype dtype, tg_op op_a, tg_op op_b, int64_t m, int64_t n, int64_t k,
                         const void *a, const void *b, void *c) {
    const bool is_transposed_a = op_a == TG_OP_T || op_a == TG_OP_H;
    const bool is_transposed_b = op_b == TG_OP_T || op_b == TG_OP_H;
    return (tg_gemm){.dtype = dtype,
                     .op_a = op_a,
                     .op_b = op_b,
                     .m = m,
                     .n = n,
                     .k = k,
                     .alpha = {1.0, 0.0},
                     .a = a,
                     .lda = is_transposed_a ? m : k,
                     .b = b,
                     .ldb = is_transposed_b ? k : n,
                     .c = c,
                     .ldc = n,
                     .batch = 1};
}
