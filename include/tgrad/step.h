/* One training step: forward, loss, backward, and the update of every parameter as soon as its
 * gradient exists.
 *
 *     tg_step_create(ctx, &config, &step);
 *     for every batch:
 *         tg_step_forward(step, &x, &y);
 *         tg_step_synchronize(step, &result);     the batch before, if there is one
 *         ..                                      learning rates of this batch
 *         tg_step_backward(step);
 *     tg_step_synchronize(step, &result);         the last batch
 *
 * On the host every call does its work before it returns. On a GPU the calls only enqueue, and the
 * result of a step is read when the forward pass of the next one is already queued, so that the GPU
 * never waits. Steps that refresh, accumulate or clip, steps with dropout, and steps of several
 * ranks without NCCL wait for their loss. The weights are the same either way: a step whose loss is
 * not finite changes nothing. All other steps of the prepared batch size are captured as graphs
 * after two like them, and then replayed. The loss is scaled by tg_optim_set_loss_scale. Gradients
 * of several batches may be accumulated until tg_step_apply. */
#ifndef TGRAD_STEP_H
#define TGRAD_STEP_H

#include "tgrad/comm.h"
#include "tgrad/data.h"
#include "tgrad/fno.h"
#include "tgrad/optim.h"

TG_C_BEGIN

typedef struct tg_step tg_step;

/* Whether ordinary steps are captured once and replayed as a whole, on backends that can: saves the
 * host's time to launch each part. */
typedef enum tg_graphs {
    TG_GRAPHS_AUTO, /* for networks small enough that this time matters */
    TG_GRAPHS_ON,
    TG_GRAPHS_OFF
} tg_graphs;

/* Which steps of a rollout gradients go through. */
typedef enum tg_rollout_gradients {
    TG_ROLLOUT_LAST, /* the last one alone; its input is a constant (pushforward) */
    TG_ROLLOUT_ALL   /* all; the loss is their mean. Activations are recomputed: k steps hold those
                        of one, and k - 1 inputs */
} tg_rollout_gradients;

/* The optimizer, made with shares_workspace, works in the memory of the network's activations
 * whenever they are not needed, from the next tg_fno_prepare for training on. A step then holds the
 * larger of the two instead of their sum. The network must outlive the optimizer. */
TG_API TG_NODISCARD tg_status tg_step_share_workspace(tg_fno *fno, tg_optim *optim);

/* Sets chunk_bytes in `groups`, those of `setup`, for an optimizer that shares its workspace with
 * this network: refreshes in whole products, or in chunks where these save memory of a step. To be
 * called before a plan and before the optimizer is made. */
TG_API TG_NODISCARD tg_status tg_step_choose_refresh_chunks(tg_context *ctx,
                                                            const tg_fno_config *network,
                                                            int64_t batch, const int64_t *grid,
                                                            const tg_optim_setup *setup,
                                                            tg_optim_config *groups);

typedef struct tg_step_config {
    size_t size; /* of the struct, see status.h */
    tg_fno *fno; /* prepared for training by the caller; it and the optimizer outlive the step */
    tg_optim *optim; /* with its weights bound; NULL: gradients are dropped. One with
                        shares_workspace shares that of the network */
    tg_loss_config loss;
    bool accumulates;     /* gradients are added up, to be applied by tg_step_apply */
    double max_grad_norm; /* clip the global norm to this; 0: off */
    tg_graphs graphs;
    tg_comm *comm; /* ranks that each have a part of every batch, which may be empty: gradients are
                      added up over all of them, so that every rank makes the same update. They have
                      the same weights and optimizer, made to accumulate; norms to clip to are those
                      of accumulated values. It outlives the step. NULL: no others */
    int64_t rollout_steps; /* most steps that the network makes on its own predictions, which take
                              the place of the oldest channels of x; 0 or 1: none. The target has
                              the channels of all steps, in order of time */
    tg_rollout_gradients rollout_gradients; /* all: needs input_gradient of the network's config and
                                               an optimizer that accumulates */
    const tg_normalizer *x_normalizer, *y_normalizer; /* of a rollout: predictions are decoded by
                                                         y's and encoded by x's. NULL: none */
    bool overlaps; /* of several ranks: sums of a layer travel while those of the next are computed;
                      the same numbers. Not of rollouts, nor if `accumulates` */
    tg_comm *domain;   /* of an optimizer with blocks: the ranks of `comm` that share a sample, and
                          tensors: rank d of D of the group g is rank g D + d of `comm`. They have
                          the same batches and losses. NULL: only this one */
    tg_comm *replicas; /* .. and those of all groups with the same blocks, in the order of `comm`.
                          NULL: only this one */
} tg_step_config;

typedef struct tg_step_result {
    int64_t samples; /* of the batch, all ranks together; 0: no step was under way */
    double loss;     /* sum over the batch; if it is not finite, nothing was updated */
} tg_step_result;

TG_API TG_NODISCARD tg_status tg_step_create(tg_context *ctx, const tg_step_config *config,
                                             tg_step **out);
TG_API void tg_step_destroy(tg_step **step);

/* Steps of rollouts from now on, at most those of the config. */
TG_API TG_NODISCARD tg_status tg_step_set_rollout_steps(tg_step *step, int64_t steps);

/* Forward and loss of a batch; x and target, where the backend computes, may change when the next
 * call on this step has returned (on a GPU: when its queued work is done). */
TG_API TG_NODISCARD tg_status tg_step_forward(tg_step *step, const tg_tensor *x,
                                              const tg_tensor *target);

/* Backward and updates of the last forward. The step before must not be in flight. */
TG_API TG_NODISCARD tg_status tg_step_backward(tg_step *step);

/* The update from the gradients accumulated since the last one: summed over ranks, clipped. */
TG_API TG_NODISCARD tg_status tg_step_apply(tg_step *step);

/* The result of the last step whose backward was called; waits for it. */
TG_API TG_NODISCARD tg_status tg_step_synchronize(tg_step *step, tg_step_result *out);

TG_C_END
#endif
