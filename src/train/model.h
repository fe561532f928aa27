/* A model in use: network, normalizers, and the buffers that batches pass through. */
#ifndef TG_TRAIN_MODEL_H
#define TG_TRAIN_MODEL_H

#include "backend/backend.h"
#include "train/phases.h"

struct tg_model {
    tg_context *ctx;
    tg_backend *be;
    tg_settings *settings; /* as given, stages included */
    tg_run_config config;  /* of the stage in use */
    tg_fno *fno;
    bool borrows_fno;          /* it is the caller's */
    tg_normalizer *encoder[2]; /* of x and y; NULL: raw */
    tg_model_origin origin;    /* of a checkpoint; all zero: of none */
    bool is_imported;          /* its first weights were another program's */
    bool is_on_pairs;          /* it was trained on pairs, not on windows of trajectories */
    bool is_warned;            /* of what that means on a grid */
    float *points;             /* (most_points) coordinates of a batch at points */
    int64_t most_points;
};

/* A batch on its way: the host's tensors are what the data layer fills and reads, the others the
 * same where the backend computes (one and the same memory when that is the host). */
typedef struct tg_batch {
    tg_model *model;
    tg_dtype dtype;
    tg_tensor host_x, host_y, host_pred;
    tg_tensor x, y, pred;
} tg_batch;

/* Makes the network of `config` with weights from its seed. */
TG_NODISCARD tg_status tg_model_create(tg_context *ctx, const tg_settings *settings,
                                       const tg_run_config *config, tg_model **out);

/* Puts into settings what describes a model: its network, and what it normalizes. */
TG_NODISCARD tg_status tg_model_describe(const tg_model *model, tg_settings *settings);

/* Whether its normalizers are those of the network's channels and numbers. `label` stands before
 * the sentence: a path, or "model". */
TG_NODISCARD tg_status tg_model_check_normalizers(const tg_model *model, const char *label);

/* Opens the training data that its settings name. */
TG_NODISCARD tg_status tg_model_open_training(tg_model *model, tg_dataset **out);

/* The training loss, with the units of the normalizers: of the last channel of x, and of y. */
tg_loss_config tg_model_loss(const tg_model *model);

/* Fits the normalizers that its settings ask for and that it has not. An error may stand in the
 * context of the dataset. */
TG_NODISCARD tg_status tg_model_fit(tg_model *model, tg_dataset *dataset);

/* (size, channels, grid..) of such data. */
tg_shape tg_batch_shape(const tg_dataset_facts *facts, int64_t size, int64_t channels);

/* Buffers for predictions of `size` samples of such data. */
TG_NODISCARD tg_status tg_batch_create(tg_model *model, const tg_dataset_facts *facts, int64_t size,
                                       tg_batch *out);
void tg_batch_destroy(tg_batch *batch);
/* Adds what those take, besides the network's own buffers. */
void tg_batch_add_bytes(const tg_backend *be, const tg_dataset_facts *facts, int64_t size,
                        tg_amounts *out);
/* The same of an evaluation of `samples` in batches of that size, of a model that normalizes its
 * output or not (evaluate.c). */
void tg_evaluation_add_bytes(const tg_backend *be, const tg_dataset_facts *facts, int64_t samples,
                             int64_t size, bool decodes, tg_amounts *out);

/* As tg_model_evaluate, each rank of a communicator (NULL: none) a part of the batches. */
TG_NODISCARD tg_status tg_model_evaluate_shared(tg_model *model, tg_comm *comm, tg_dataset *dataset,
                                                int64_t size, tg_test_errors *out);

/* Memory of the network for batches of such data. */
TG_NODISCARD tg_status tg_model_prepare(tg_model *model, int64_t batch, const int64_t *grid,
                                        bool training);

/* Tells a network on points where those of a batch are, before its forward pass: x (count,
 * coordinates, points) on the host, and queries (count, coordinates), or NULL: the points. An error
 * if samples of the batch have others, or points are outside of the unit box. */
TG_NODISCARD tg_status tg_model_place_points(tg_model *model, const tg_tensor *x,
                                             const tg_tensor *queries);

/* Forward, loss and backward of the first batch of the first epoch into the sink, whose gradients
 * are those of the loss times `scale`; nothing of the model changes but its buffers. An error may
 * stand in the context of the dataset. */
TG_NODISCARD tg_status tg_model_first_batch(tg_model *model, tg_dataset *dataset, double scale,
                                            const tg_grad_sink *sink);

/* Views of the first `count` samples. */
tg_tensor tg_batch_view(const tg_tensor *tensor, int64_t count);

/* Normalizes the input that stands on the host and moves both sides to the backend. */
TG_NODISCARD tg_status tg_batch_send(tg_batch *batch, int64_t count);

#endif
