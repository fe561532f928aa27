/* Context: settings, the last error and the log; status names; config structs of other versions. */
#include "base/context.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/system.h"

const char *tg_status_name(tg_status status) {
    static const char *const names[TG_STATUS_COUNT] = {
        [TG_OK] = "ok",
        [TG_E_ARGUMENT] = "bad argument",
        [TG_E_SHAPE] = "bad shape",
        [TG_E_DTYPE] = "bad dtype",
        [TG_E_MEMORY] = "out of memory",
        [TG_E_IO] = "input/output error",
        [TG_E_FORMAT] = "bad file content",
        [TG_E_CONFIG] = "bad setting",
        [TG_E_NUMERIC] = "numerical failure",
        [TG_E_UNSUPPORTED] = "not supported",
        [TG_E_BACKEND] = "backend failure",
    };
    if ((int)status < 0 || status >= TG_STATUS_COUNT) {
        return "unknown status";
    }
    return names[status];
}

/* The error of the last call that had no context. */
static _Thread_local char error_without_context[1024];

void tg_context_config_init(tg_context_config *config, size_t size) {
    const tg_context_config defaults = {
        .size = sizeof defaults, .log_level = TG_LOG_INFO, .device = -1};
    tg_sized_init(config, size, &defaults, sizeof defaults);
}

static tg_status read_config(const tg_context_config *config, tg_context_config *out) {
    *out = tg_context_config_default();
    TG_CALL(config ? TG_SIZED_READ(NULL, tg_context_config, threads, config, out) : TG_OK);
    if (out->threads < 0) {
        return tg_fail(NULL, TG_E_ARGUMENT, "context: %d threads; 0 means all cores", out->threads);
    }
    if (out->device < -1) {
        return tg_fail(NULL, TG_E_ARGUMENT, "context: device %d; -1 means the first one",
                       out->device);
    }
    const tg_allocator *a = &out->allocator;
    if (!a->alloc != !a->release || (a->serves_host && !a->alloc)) {
        return tg_fail(NULL, TG_E_ARGUMENT, "context: an allocator needs both alloc and release");
    }
    return TG_OK;
}

tg_status tg_context_create(const tg_context_config *config, tg_context **out) {
    if (!out) {
        return TG_E_ARGUMENT;
    }
    *out = NULL;
    tg_context_config chosen;
    TG_CALL(read_config(config, &chosen));
    struct tg_ledger *ledger = tg_ledger_create();
    if (!ledger) {
        return TG_E_MEMORY;
    }
    /* The context is itself a block of its ledger, reached through a context on the stack. */
    tg_context boot = {.config = chosen, .ledger = ledger};
    tg_context *ctx = tg_mem_alloc(&boot, TG_MEM_OTHER, 1, sizeof *ctx);
    if (!ctx) {
        tg_ledger_destroy(&ledger);
        return TG_E_MEMORY;
    }
    *ctx = boot;
    ctx->threads = chosen.threads > 0 ? chosen.threads : tg_cpu_count();
    *out = ctx;
    return TG_OK;
}

void tg_context_destroy(tg_context **ctx) {
    if (!ctx || !*ctx) {
        return;
    }
    tg_context *c = *ctx;
    if (c->backend) {
        c->backend_close(c->backend);
        c->backend = NULL;
    }
    for (int place = 0; place < TG_PLACES; place++) {
        tg_mem_usage usage = tg_context_memory(c, (tg_place)place);
        size_t own = place == TG_HOST ? 1 : 0;
        if (usage.blocks > own) {
            tg_log(c, TG_LOG_WARN,
                   "context ends with %zu blocks (%zu bytes) of %s memory still in use",
                   usage.blocks - own, usage.current_total - own * sizeof *c,
                   place == TG_HOST ? "host" : "device");
        }
    }
    struct tg_ledger *ledger = c->ledger;
    tg_mem_free(c, c);
    tg_ledger_destroy(&ledger);
    *ctx = NULL;
}

tg_context tg_context_branch(const tg_context *ctx) {
    tg_context branch = {.config = ctx->config, .threads = ctx->threads, .ledger = ctx->ledger};
    branch.config.log = NULL;
    return branch;
}

tg_status tg_context_adopt(tg_context *ctx, const tg_context *branch, tg_status status) {
    if (status != TG_OK && branch != ctx && branch->error[0]) {
        memcpy(ctx->error, branch->error, sizeof ctx->error);
    }
    return status;
}

const char *tg_context_error(const tg_context *ctx) {
    return ctx ? ctx->error : error_without_context;
}

int tg_context_threads(const tg_context *ctx) {
    return ctx ? ctx->threads : 0;
}

tg_status tg_fail_at(tg_context *ctx, tg_status status, const char *file, int line,
                     const char *format, ...) {
    char *error = ctx ? ctx->error : error_without_context, text[sizeof error_without_context];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args); /* the message before may be a part of it */
    va_end(args);
    memcpy(error, text, strlen(text) + 1);
    const char *slash = strstr(file, "src/");
    tg_log(ctx, TG_LOG_DEBUG, "%s: %s (%s:%d)", tg_status_name(status), error, slash ? slash : file,
           line);
    return status;
}

int tg_find_null(const void *const *pointers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!pointers[i]) {
            return (int)i;
        }
    }
    return -1;
}

/* `names` are the arguments as written in the source: "ctx, path, out". */
tg_status tg_fail_null(tg_context *ctx, const void *const *pointers, const char *names,
                       const char *function, const char *file, int line) {
    for (; *pointers; pointers++) {
        names += strcspn(names, ",");
        names += strspn(names, ", ");
    }
    return tg_fail_at(ctx, TG_E_ARGUMENT, file, line, "%s: the argument %.*s is NULL", function,
                      (int)strcspn(names, ","), names);
}

void tg_log(tg_context *ctx, tg_log_level level, const char *format, ...) {
    if (!ctx || !ctx->config.log || level < ctx->config.log_level) {
        return;
    }
    char message[1536];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    ctx->config.log(ctx->config.log_user, level, message);
}

/* ---- config structs of other versions ---- */

void tg_sized_init(void *config, size_t size, const void *defaults, size_t known) {
    if (!config || size < sizeof size) {
        return;
    }
    memset(config, 0, size);
    memcpy(config, defaults, size < known ? size : known);
    memcpy(config, &size, sizeof size);
}

tg_status tg_sized_read(tg_context *ctx, const char *type, const void *config, size_t least,
                        size_t known, void *out) {
    size_t size = 0;
    memcpy(&size, config, sizeof size);
    if (size == 0) {
        return tg_fail(ctx, TG_E_ARGUMENT, "%s: its size is 0; set it to sizeof(%s)", type, type);
    }
    if (size < least) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "%s: its size is %zu, but fields without a default reach to %zu; set it to "
                       "sizeof(%s)",
                       type, size, least, type);
    }
    if (size > known) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "%s: its size is %zu, but this library knows %zu bytes of it; the program "
                       "was compiled with newer headers, or the size is not set",
                       type, size, known);
    }
    memcpy(out, config, size);
    memcpy(out, &known, sizeof known);
    return TG_OK;
}

tg_status tg_sized_write(tg_context *ctx, const char *type, const char *key, const void *before,
                         const void *after, size_t known, void *config) {
    size_t size = 0;
    memcpy(&size, config, sizeof size);
    if (memcmp((const char *)before + size, (const char *)after + size, known - size) != 0) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "%s: %s is not among its %zu bytes; compile the program with the headers of "
                       "this library",
                       type, key, size);
    }
    memcpy(config, after, size);
    memcpy(config, &size, sizeof size);
    return TG_OK;
}
