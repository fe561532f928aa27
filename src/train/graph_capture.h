/* Graph capture: the forward and the backward pass of an ordinary step, each as one graph.
 *
 * A graph holds addresses and sizes: it is valid for steps of one batch size on the same arrays,
 * until the network's buffers are recreated or the optimizer's states move. The forward graph holds
 * the loss scale as well. The first step is never captured, so that everything a backend creates on
 * demand exists. There are two graphs, so that the forward pass can be launched before the outcome
 * of the previous step is known. */
#ifndef TG_TRAIN_GRAPH_CAPTURE_H
#define TG_TRAIN_GRAPH_CAPTURE_H

#include "backend/backend.h"
#include "nn/network.h"
#include "optim/optim.h"
#include "tgrad/step.h"

/* Whether the result of the last backward has to be waited for (step.c). */
bool tg_step_is_late(const tg_step *step);

typedef struct tg_capture {
    tg_backend *be;
    tg_fno *fno;
    tg_optim *optim;  /* NULL: none */
    tg_graphs graphs; /* when to capture */
    bool has_failed;  /* the backend cannot */
    const void *x, *target;
    double scale; /* of the loss */
    int64_t preparation;
    int64_t seen; /* steps that ran like the one to be captured */
    tg_graph *forward, *backward;
} tg_capture;

/* Runs a pass without a graph. */
typedef struct tg_captured_pass {
    tg_status (*run)(void *user);
    void *user;
} tg_captured_pass;

void tg_capture_destroy(tg_capture *capture);

/* Runs the forward pass of a step on these arrays, by its graph if that fits; *fits reports whether
 * the backward pass may use one, too. */
TG_NODISCARD tg_status tg_capture_forward(tg_capture *capture, const tg_tensor *x,
                                          const tg_tensor *target, double scale,
                                          const tg_captured_pass *pass, bool *fits);

/* The backward pass, in a round planned by the optimizer. */
TG_NODISCARD tg_status tg_capture_backward(tg_capture *capture, const tg_captured_pass *pass,
                                           bool fits);

#endif
