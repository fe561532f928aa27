/* Passes captured as graphs: of training steps (train/graph_capture.c), and of functions by their
 * keys.
 *
 * A key is the words of everything that a pass reads by address or by value. A key seen a second
 * time is captured and from then on replayed; the first time runs part by part, so that everything
 * that a backend creates on demand exists. */
#ifndef TG_NN_GRAPH_CAPTURE_H
#define TG_NN_GRAPH_CAPTURE_H

#include "nn/network.h"

enum { NN_GRAPHS = 4 }; /* of one pass; the least recently used goes */

/* Runs a pass without a graph. */
typedef struct nn_captured_pass {
    tg_status (*run)(void *user);
    void *user;
} nn_captured_pass;

/* Whether the prepared network can be captured, and is so small that the host takes longer to queue
 * its parts than a GPU to compute them. */
bool nn_can_capture(const tg_fno *fno);
bool nn_is_launch_bound(const tg_fno *fno);

/* Captures a pass without running it; *out stays NULL, with a note in the log, if the backend
 * cannot. */
TG_NODISCARD tg_status nn_capture(tg_backend *be, const nn_captured_pass *pass, tg_graph **out);

typedef struct nn_graph {
    uint64_t *key;        /* (words) */
    tg_gradient *factors; /* (params) that the pass reported: x NULL where it did not */
    tg_graph *graph;      /* NULL: the key was seen once */
    int64_t used;         /* when; 0: never */
} nn_graph;

typedef struct nn_graph_cache {
    tg_backend *be;
    int words, params;
    int64_t clock;
    nn_graph graphs[NN_GRAPHS];
} nn_graph_cache;

TG_NODISCARD tg_status nn_graph_cache_make(tg_backend *be, int words, int params,
                                           nn_graph_cache *out);
void nn_graph_cache_free(nn_graph_cache *cache);

/* The entry of a key; a new one is in place of the oldest. */
nn_graph *nn_graph_find(nn_graph_cache *cache, const uint64_t *key);

/* Runs the pass of an entry, by its graph if the key was seen before. *has_failed: it could not be
 * captured. */
TG_NODISCARD tg_status nn_graph_run(nn_graph_cache *cache, nn_graph *entry,
                                    const nn_captured_pass *pass, bool *has_failed);

#endif
