/* Graph capture: the forward and the backward pass of an ordinary step, each as one graph.
 *
 * A graph holds addresses and sizes: it serves steps of one batch size on the same arrays, until
 * the network's buffers are made anew or the optimizer's states move. The forward graph holds the
 * loss scale as well. Nothing is captured before a step like it was run, so that whatever a backend
 * makes at first need is there. Two graphs rather than one, so that the forward pass can be
 * launched before the outcome of the step before is known. */
#ifndef TG_TRAIN_GRAPH_CAPTURE_H
#define TG_TRAIN_GRAPH_CAPTURE_H

#include "backend/backend.h"
#include "nn/network.h"
#include "optim/optim.h"
#include "tgrad/step.h"

typedef struct tg_capture {
    tg_backend *be;
    tg_fno *fno;
    tg_optim *optim;  /* NULL: none */
    tg_graphs graphs; /* when to capture */
    bool has_failed;  /* the backend cannot */
    const void *x, *target;
    double scale; /* of the loss */
    int64_t preparation;
    int64_t seen; /* steps that were run like the one to be captured */
    tg_graph *forward, *backward;
} tg_capture;

/* How a pass is run part by part. */
typedef struct tg_captured_pass {
    tg_status (*run)(void *user);
    void *user;
} tg_captured_pass;

void tg_capture_destroy(tg_capture *capture);

/* Runs the forward pass of a step on these arrays, from its graph if that fits; *fits tells
 * whether the backward pass may be, too. */
TG_NODISCARD tg_status tg_capture_forward(tg_capture *capture, const tg_tensor *x,
                                          const tg_tensor *target, double scale,
                                          const tg_captured_pass *pass, bool *fits);

/* The backward pass, in a round that the optimizer has planned. */
TG_NODISCARD tg_status tg_capture_backward(tg_capture *capture, const tg_captured_pass *pass,
                                           bool fits);

#endif
