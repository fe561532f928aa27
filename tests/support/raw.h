/* Optimizers and projectors on plain arrays: wrapped as the tensors that they take, of the dtype
 * and shape that they want, where their backend computes. */
#ifndef TEST_SUPPORT_RAW_H
#define TEST_SUPPORT_RAW_H

#include "tgrad/optim.h"

tg_status raw_optim_step(tg_optim *optim, int param, const void *gradient, void *weight);
tg_status raw_optim_step_gradient(tg_optim *optim, const tg_gradient *gradient, void *weight);
tg_status raw_optim_apply(tg_optim *optim, int param, void *weight);
tg_status raw_optim_bind(tg_optim *optim, int param, void *weight);

/* Its state to and from a safetensors file. */
tg_status raw_optim_save(tg_optim *optim, const char *path);
tg_status raw_optim_load(tg_optim *optim, const char *path);

tg_status raw_projector_refresh(tg_projector *p, const void *gradient);
tg_status raw_projector_project(tg_projector *p, const tg_gradient *gradient, double scale,
                                double beta, void *small);
tg_status raw_projector_back(tg_projector *p, const void *small, double alpha, double beta,
                             void *out);
tg_status raw_projector_residual(tg_projector *p, const void *gradient, void *small, void *out);

#endif
