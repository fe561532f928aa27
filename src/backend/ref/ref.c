/* The ref backend: every slot as plain loops over single elements, computed in double and rounded
 * once at the end. It is deliberately slow and short: the other backends are checked against it and
 * fall back to it. Here: opening, host memory and the table. */
#include "backend/ref/ref.h"

#include <stdio.h>
#include <string.h>

static void ref_probe(tg_backend_info *info) {
    info->available = true;
    snprintf(info->device, sizeof info->device, "any CPU, one thread");
}

static tg_status ref_open(tg_backend *be) {
    be->threads = 1;
    return TG_OK;
}

static void ref_close(tg_backend *be) {
    (void)be;
}

static void *ref_alloc(tg_backend *be, tg_mem_category category, size_t bytes) {
    return tg_mem_alloc(be->ctx, category, bytes, 1);
}

static void ref_release(tg_backend *be, void *block) {
    tg_mem_free(be->ctx, block);
}

/* Upload, download and copy are the same on the host. */
static tg_status ref_copy(tg_backend *be, void *dst, const void *src, size_t bytes) {
    (void)be;
    if (bytes > 0) {
        memcpy(dst, src, bytes);
    }
    return TG_OK;
}

static tg_status ref_synchronize(tg_backend *be) {
    (void)be;
    return TG_OK;
}

static bool ref_workspace(tg_backend *be, const tg_query *query, size_t *bytes) {
    (void)be;
    *bytes = query->compress ? ref_compress_workspace(query->compress)
             : query->skip   ? ref_skip_workspace(query->skip)
             : query->mlp    ? ref_mlp_workspace(query->mlp)
             : query->gno    ? ref_gno_workspace(query->gno)
             : query->neighbours
                 ? tg_neighbours_bytes(query->neighbours->points, query->neighbours->queries)
                 : 0;
    return query->compress || query->skip || (query->mlp && !query->mlp->x_quantized) ||
           query->gno || query->neighbours;
}

void tg_backend_fill_ref(tg_backend_ops *ops) {
    ops->name = "ref";
    ops->summary = "plain loops in double precision, the oracle of the other backends";
    ops->probe = ref_probe;
    ops->open = ref_open;
    ops->close = ref_close;
    ops->alloc = ref_alloc;
    ops->release = ref_release;
    ops->upload = ref_copy;
    ops->download = ref_copy;
    ops->copy = ref_copy;
    ops->synchronize = ref_synchronize;
    ops->workspace = ref_workspace;
#define REF_SLOT(name) ops->name = ref_##name;
    REF_SLOTS(REF_SLOT)
#undef REF_SLOT
}
