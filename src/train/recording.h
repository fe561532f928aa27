/* The two halves of an ordinary step as recorded graphs.
 *
 * A recording holds addresses and sizes: it serves steps of one batch size on the same arrays,
 * until the network's buffers are made anew or the optimizer's states move; the forward half holds
 * the loss scale as well. Nothing is recorded
 * before a step like it was run, so that whatever a backend makes at first need is there. Two
 * graphs rather than one, so that the forward pass can be launched before the outcome of the step
 * before is known. */
#ifndef TG_TRAIN_RECORDING_H
#define TG_TRAIN_RECORDING_H

#include "backend/backend.h"
#include "nn/network.h"
#include "optim/optim.h"
#include "tgrad/step.h"

typedef struct tg_recording {
    tg_backend *be;
    tg_fno *fno;
    tg_optim *optim;  /* NULL: none */
    tg_graphs graphs; /* when to record */
    bool has_failed;  /* the backend cannot */
    const void *x, *target;
    double scale; /* of the loss */
    int64_t preparation, moves;
    int64_t seen; /* steps that were run like the one to be recorded */
    tg_graph *forward, *backward;
} tg_recording;

/* How a half is run part by part. */
typedef struct tg_half {
    tg_status (*run)(void *user);
    void *user;
} tg_half;

void tg_recording_destroy(tg_recording *recording);

/* Runs the forward half of a step on these arrays, from the recording if it fits; *fits tells
 * whether the backward half may be, too. */
TG_NODISCARD tg_status tg_recording_forward(tg_recording *recording, const tg_tensor *x,
                                            const tg_tensor *target, double scale,
                                            const tg_half *half, bool *fits);

/* The backward half, in a round that the optimizer has planned. */
TG_NODISCARD tg_status tg_recording_backward(tg_recording *recording, const tg_half *half,
                                             bool fits);

#endif
