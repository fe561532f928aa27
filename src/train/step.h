/* Internals of tg_step: the exchange between ranks, graph capture and rollouts.
 *
 * The exchange in an update is that of the sums of gradients.
 *
 * Between refreshes they send the core and the kept values of a projected parameter, which are sums
 * over the whole batch as exactly as dense ones would be. Small dense parameters are sent together,
 * in one bucket. On a step that refreshes, the dense sum of a layer goes to one rank, its owner,
 * which decomposes it and sends factors, index set and projected sum to all: layers are spread over
 * the ranks, which decompose them in parallel.
 *
 * With state spread over ranks (optim/ranks.h), sums go to the owners of the moments, which send
 * updates back: the same number of bytes.
 *
 * Of a parameter that is a block of a tensor, dense sums go over the ranks with the same block, and
 * compressed ones, which are those of the whole tensor, over all. */
#ifndef TG_TRAIN_STEP_H
#define TG_TRAIN_STEP_H

#include "backend/backend.h"
#include "dist/comm.h"
#include "nn/graph_capture.h"
#include "optim/optim.h"
#include "tgrad/step.h"
#include "train/config.h"

typedef struct tg_exchange tg_exchange;

/* Reads optimizer, which must accumulate, and communicators of a step's config; they must outlive
 * it. */
TG_NODISCARD tg_status tg_exchange_create(tg_context *ctx, const tg_step_config *config,
                                          bool overlaps, tg_exchange **out);
void tg_exchange_destroy(tg_exchange **exchange);

/* The sink of one pass: adds up gradients. If the exchange overlaps, there is one backward pass per
 * update, and a sum is sent as soon as its gradient has arrived, while the pass goes on;
 * tg_exchange_sums completes it. */
tg_grad_sink tg_exchange_sink(tg_exchange *x);

/* Every parameter has a sum under way; turns them into those of all ranks. `clips`: their norm will
 * be needed. */
TG_NODISCARD tg_status tg_exchange_sums(tg_exchange *exchange, bool clips);
/* Afterwards, the update of a parameter. */
TG_NODISCARD tg_status tg_exchange_apply(tg_exchange *exchange, int param, const tg_tensor *weight);

/* ---- on the stream of a device, without waiting on the host ---- */

/* Whether ordinary updates can be done on the stream. */
bool tg_exchange_can_stream(const tg_exchange *x);

/* Around a backward pass with tg_exchange_sink that includes the whole update; tg_exchange_stream
 * ends it, and also adds up the loss. The pass may be captured; a replayed graph does not call it.
 * All ranks do the same. `status` is the result of the pass. */
TG_NODISCARD tg_status tg_exchange_begin_stream(tg_exchange *x);
TG_NODISCARD tg_status tg_exchange_stream(tg_exchange *x, const tg_tensor *loss);
TG_NODISCARD tg_status tg_exchange_end_stream(tg_exchange *x, tg_status status);

/* Moments on other ranks, by their names in a checkpoint: copies on the host of rank 0, nothing on
 * other ranks, which must call it too. `status` is that of this rank's earlier work. *out is NULL
 * if every rank has all moments; to be destroyed otherwise. */
TG_NODISCARD tg_status tg_exchange_gather_state(tg_comm *comm, tg_optim *optim, tg_status status,
                                                tg_archive **out);

/* Graph capture: the forward and the backward pass of an ordinary step, each as one graph.
 *
 * A graph holds addresses and sizes: it is valid for steps of one batch size on the same arrays,
 * until the network's buffers are recreated or the optimizer's states move. The forward graph holds
 * the loss scale as well. The first step is never captured, so that everything a backend creates on
 * demand exists. There are two graphs, so that the forward pass can be launched before the outcome
 * of the previous step is known. */

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

void tg_capture_destroy(tg_capture *capture);

/* Runs the forward pass of a step on these arrays, by its graph if that fits; *fits reports whether
 * the backward pass may use one, too. */
TG_NODISCARD tg_status tg_capture_forward(tg_capture *capture, const tg_tensor *x,
                                          const tg_tensor *target, double scale,
                                          const nn_captured_pass *pass, bool *fits);

/* The backward pass, in a round planned by the optimizer. */
TG_NODISCARD tg_status tg_capture_backward(tg_capture *capture, const nn_captured_pass *pass,
                                           bool fits);

/* Rollouts in training: applies a network to its own predictions within a step (see rollout.c). */

typedef struct tg_rollout tg_rollout;

/* By the step's config; the network must outlive it. */
TG_NODISCARD tg_status tg_rollout_create(tg_context *ctx, const tg_step_config *config,
                                         tg_rollout **out);
void tg_rollout_destroy(tg_rollout **rollout);

/* Sets the steps of the next rollout, at most those of the config. */
TG_NODISCARD tg_status tg_rollout_set_steps(tg_rollout *r, int64_t steps);

/* All steps from x (batch, in_channels, grid..) and target (batch, steps * out_channels, grid..),
 * both on the backend, as is losses (steps of the config), unchanged until backward. Gradients are
 * times `scale`. tg_rollout_losses: losses that count. */
TG_NODISCARD tg_status tg_rollout_forward(tg_rollout *r, const tg_tensor *x,
                                          const tg_tensor *target, double scale, double *losses);
int64_t tg_rollout_losses(const tg_rollout *r);

/* With TG_ROLLOUT_ALL the sink gets every gradient once per step. */
TG_NODISCARD tg_status tg_rollout_backward(tg_rollout *r, const tg_grad_sink *sink);

/* ---- of a run ---- */

TG_NODISCARD tg_status tg_run_check_rollout(tg_context *ctx, const tg_run_config *config);
/* Whether gradients pass through several steps, and are therefore accumulated. */
bool tg_run_unrolls(const tg_run_config *config);
/* Steps in the `epoch`th epoch of a stage, counted from 0. */
int64_t tg_run_rollout_steps(const tg_run_config *config, int64_t epoch);
/* Adds the memory of a rollout, for batches of `size` samples of such training data. */
void tg_rollout_add_bytes(const tg_run_config *config, tg_place place,
                          const tg_dataset_facts *facts, int64_t size, tg_amounts *out);

#endif
