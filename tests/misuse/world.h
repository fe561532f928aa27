/* One of every object of the library in a usable state, for calls that are wrong in one argument:
 * a small set of data, a network prepared for training, its optimizer, a run with a checkpoint. */
#ifndef TEST_MISUSE_WORLD_H
#define TEST_MISUSE_WORLD_H

#include "tgrad/tgrad.h"

typedef struct misuse_world {
    tg_context *ctx;
    tg_archive *archive;
    tg_settings *settings;
    tg_fno *fno;
    tg_function *function;
    tg_optim *optim;
    tg_projector *projector;
    tg_normalizer *normalizer;
    tg_dataset *dataset;
    tg_loader *loader;
    tg_h5 *h5;
    tg_trainer *trainer; /* not started */
    tg_step *step;
    tg_model *model;
    tg_generator *generator; /* not run */
    tg_comm *comm;           /* of one rank */

    tg_fno_config network;
    tg_dataset_config dataset_config;
    tg_loss_config loss_config;
    tg_projector_config projector_config;
    tg_optim_config group;
    tg_optim_param params[32];
    tg_optim_setup setup;
    tg_loss_scale_config scale_config;
    tg_generator_config generator_config;
    tg_step_config step_config;
    tg_comm_callbacks callbacks; /* which do nothing */

    tg_tensor x, made_tensor; /* x, and what an array of the network looks like */
    tg_shape shape;           /* of x */
    tg_gradient gradient;     /* dense, for the projector */
    tg_gradient factored;     /* of a parameter of the network */
    tg_grad_sink sink;
    tg_function_call call; /* with gradients of no parameter */
    const void *weights[32];
    void *gradients[32];
    tg_shared_workspace shared;
    tg_tensor weight, spectral_weight; /* of parameter 0, and of that of `factored` */
    tg_tensor whole, small, scalar;    /* of the projector, and an f64 */
    tg_tensor elsewhere, odd; /* on a device; of a dtype and shape that nothing computes with */
    tg_tucker_result tucker;
    int64_t grid[2], ranks[4], indices[2];
    void *buffer; /* 1 MiB of zeros, for results */

    char folder[512]; /* with made_train_8.h5 and made_test_8.h5 */
    char archive_path[600], npy_path[600], h5_path[600], yaml_path[600], checkpoint[1024];
    char new_run[600], new_npy[600], new_archive[600], new_h5[600], new_yaml[600];
} misuse_world;

extern misuse_world world;

/* Fills `world`, in a folder of the test's own; failures end the test. */
void world_make(void);
void world_end(void);

#endif
