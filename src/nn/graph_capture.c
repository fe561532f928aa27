/* Captures passes, and keeps their graphs by key. */
#include "nn/graph_capture.h"

#include <string.h>

/* Activations with fewer elements than this are bound by launches. */
static const int64_t launch_bound = (int64_t)64 << 20;

bool nn_is_launch_bound(const tg_fno *fno) {
    const nn_program *program = &fno->run.program;
    int64_t elements = 0; /* of the largest activation */
    for (int i = 0; i < program->value_count; i++) {
        const nn_value *v = &program->values[i];
        const int64_t size = v->planes * program->batch * v->channels * v->points;
        elements = v->role == NN_ACTIVATION && size > elements ? size : elements;
    }
    return elements < launch_bound;
}

/* A graph replays the same neighbours, but those of a GINO differ from sample to sample. */
bool nn_can_capture(const tg_fno *fno) {
    return fno->be->ops->stream && fno->model.gno[NN_TO_GRID].layers == 0;
}

tg_status nn_capture(tg_backend *be, const nn_captured_pass *pass, tg_graph **out) {
    const tg_stream_ops *stream = be->ops->stream;
    tg_status status = stream->graph_begin(be);
    if (status == TG_OK) {
        const tg_status ran = pass->run(pass->user);
        status = stream->graph_end(be, out);
        status = ran != TG_OK ? ran : status;
    }
    if (status == TG_OK) {
        return TG_OK;
    }
    stream->graph_destroy(be, out);
    if (status == TG_E_MEMORY) {
        return status;
    }
    tg_log(be->ctx, TG_LOG_WARN, "a step cannot be captured as a graph and is run part by part: %s",
           tg_context_error(be->ctx));
    return TG_OK;
}

/* ---- graphs by key ---- */

tg_status nn_graph_cache_make(tg_backend *be, int words, int params, nn_graph_cache *out) {
    tg_status status = TG_OK;
    *out = (nn_graph_cache){.be = be, .words = words, .params = params};
    for (int i = 0; i < NN_GRAPHS; i++) {
        TG_TRY(TG_NEW(be->ctx, TG_MEM_OTHER, out->graphs[i].key, words));
        TG_TRY(TG_NEW(be->ctx, TG_MEM_OTHER, out->graphs[i].factors, params));
    }
    return TG_OK;
fail:
    nn_graph_cache_free(out);
    return status;
}

void nn_graph_cache_free(nn_graph_cache *cache) {
    for (int i = 0; cache->be && i < NN_GRAPHS; i++) {
        nn_graph *entry = &cache->graphs[i];
        cache->be->ops->stream->graph_destroy(cache->be, &entry->graph);
        TG_FREE(cache->be->ctx, entry->key);
        TG_FREE(cache->be->ctx, entry->factors);
    }
    *cache = (nn_graph_cache){0};
}

nn_graph *nn_graph_find(nn_graph_cache *cache, const uint64_t *key) {
    const size_t bytes = (size_t)cache->words * sizeof *key;
    nn_graph *oldest = cache->graphs;
    cache->clock++;
    for (int i = 0; i < NN_GRAPHS; i++) {
        nn_graph *entry = &cache->graphs[i];
        if (entry->used > 0 && memcmp(entry->key, key, bytes) == 0) {
            return entry;
        }
        oldest = entry->used < oldest->used ? entry : oldest;
    }
    cache->be->ops->stream->graph_destroy(cache->be, &oldest->graph);
    memcpy(oldest->key, key, bytes);
    memset(oldest->factors, 0, (size_t)cache->params * sizeof *oldest->factors);
    oldest->used = 0;
    return oldest;
}

tg_status nn_graph_run(nn_graph_cache *cache, nn_graph *entry, const nn_captured_pass *pass,
                       bool *has_failed) {
    tg_backend *be = cache->be;
    if (entry->used > 0 && !entry->graph) {
        TG_CALL(nn_capture(be, pass, &entry->graph));
        *has_failed = !entry->graph;
    }
    TG_CALL(entry->graph ? be->ops->stream->graph_launch(be, entry->graph) : pass->run(pass->user));
    entry->used = cache->clock; /* only of a pass that worked */
    return TG_OK;
}
