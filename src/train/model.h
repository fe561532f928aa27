/* A model in use: network, normalizers, and the buffers that batches pass through. */
#ifndef TG_TRAIN_MODEL_H
#define TG_TRAIN_MODEL_H

#include "data/dataset.h"
#include "train/config.h"

struct tg_model {
    tg_context *ctx;
    tg_backend *be;
    tg_settings *settings; /* as given, stages included */
    tg_run_config config;  /* of the current stage */
    tg_fno *fno;
    bool borrows_fno;           /* owned by the caller */
    tg_normalizer *encoder[2];  /* of x and y; NULL: raw */
    tg_model_origin origin;     /* of a checkpoint; all zero: none */
    bool is_imported;           /* its initial weights came from another program */
    bool is_on_pairs;           /* it was trained on pairs, not on windows of trajectories */
    bool is_warned;             /* warned of the consequences on odd grids */
    const tg_archive *gathered; /* whole weights of a split network, while saving; NULL: none */
    float *points;              /* (most_points) coordinates of a batch at points */
    int64_t most_points;
};

/* A batch: the data layer fills and reads the host tensors, the others are their copies on the
 * backend (the same memory if that is the host). */
typedef struct tg_batch {
    tg_model *model;
    tg_dtype dtype;
    tg_tensor host_x, host_y, host_pred;
    tg_tensor x, y, pred;
} tg_batch;

/* Creates the network of `config` with weights from its seed. */
TG_NODISCARD tg_status tg_model_create(tg_context *ctx, const tg_settings *settings,
                                       const tg_run_config *config, tg_model **out);

/* Writes the settings that describe a model: its network, and its normalization. */
TG_NODISCARD tg_status tg_model_describe(const tg_model *model, tg_settings *settings);

/* Checks that the normalizers match the network's channels and dtype. `label` prefixes the error: a
 * path, or "model". */
TG_NODISCARD tg_status tg_model_check_normalizers(const tg_model *model, const char *label);

/* Opens the training data named by its settings. */
TG_NODISCARD tg_status tg_model_open_training(tg_model *model, tg_dataset **out);

/* The training loss, with the units of the normalizers: of the last channel of x, and of y. */
tg_loss_config tg_model_loss(const tg_model *model);

/* Fits the normalizers that the settings ask for, unless the model has them; `team` NULL: to the
 * whole data, on this rank alone. An error may be in the dataset's context. */
TG_NODISCARD tg_status tg_model_fit(tg_model *model, tg_dataset *dataset,
                                    const tg_normalizer_team *team);

/* As tg_model_predict, of samples with these facts, slabs if these are. */
TG_NODISCARD tg_status tg_model_predict_slab(tg_model *model, const tg_dataset_facts *facts,
                                             const tg_tensor *x, tg_tensor *y);

/* (size, channels, grid..) of such data, with the rows handed out. */
tg_shape tg_batch_shape(const tg_dataset_facts *facts, int64_t size, int64_t channels);

/* Buffers for predictions of `size` samples of such data. */
TG_NODISCARD tg_status tg_batch_create(tg_model *model, const tg_dataset_facts *facts, int64_t size,
                                       tg_batch *out);
void tg_batch_destroy(tg_batch *batch);
/* Adds their bytes, without the network's own buffers. */
void tg_batch_add_bytes(const tg_backend *be, const tg_dataset_facts *facts, int64_t size,
                        tg_amounts *out);
/* The same for evaluating `samples` samples in batches of that size, with a model that may
 * normalize its output (evaluate.c). */
void tg_evaluation_add_bytes(const tg_backend *be, const tg_dataset_facts *facts, int64_t samples,
                             int64_t size, bool decodes, tg_amounts *out);

/* As tg_model_evaluate; each rank of a communicator (NULL: none) takes a part of the batches, or of
 * groups that share samples each group. */
TG_NODISCARD tg_status tg_model_evaluate_shared(tg_model *model, tg_comm *comm, tg_dataset *dataset,
                                                int64_t size, tg_test_errors *out);

/* Prepares the network for batches of such data. */
TG_NODISCARD tg_status tg_model_prepare(tg_model *model, int64_t batch, const int64_t *grid,
                                        bool training);

/* Sets the points of a batch before its forward pass: x (count, coordinates, points) on the host,
 * and queries (count, coordinates), or NULL for the points. Fails if the samples of the batch have
 * different points, or some are outside the unit box. */
TG_NODISCARD tg_status tg_model_place_points(tg_model *model, const tg_tensor *x,
                                             const tg_tensor *queries);

/* Forward, loss and backward of the first batch of the first epoch into the sink, with gradients
 * times `scale`; changes only the model's buffers. An error may be in the dataset's context. */
TG_NODISCARD tg_status tg_model_first_batch(tg_model *model, tg_dataset *dataset, double scale,
                                            const tg_grad_sink *sink);

/* Views of the first `count` samples. */
tg_tensor tg_batch_view(const tg_tensor *tensor, int64_t count);

/* A batch on the host, pinned, from which a stream uploads it; as large as x and y. Destroyed when
 * the stream is idle. */
typedef struct tg_pinned {
    void *x, *y;
    tg_stream_event *sent; /* after the upload */
} tg_pinned;
TG_NODISCARD tg_status tg_pinned_create(tg_backend *be, const tg_tensor *x, const tg_tensor *y,
                                        tg_pinned *out);
void tg_pinned_destroy(tg_backend *be, tg_pinned *pinned);

/* Normalizes the input on the host and copies both sides to the backend. */
TG_NODISCARD tg_status tg_batch_send(tg_batch *batch, int64_t count);

/* Reads only weights into a model. Checks every name and shape first; the error lists mismatches.
 * Notes in the model whether they came from another program. */
TG_NODISCARD tg_status tg_weights_read(tg_model *model, const char *path);

/* Warns once that weights of neuraloperator treat an odd grid differently here. */
void tg_weights_check_grid(tg_model *model, const int64_t *grid);

#endif
