/* Checkpoints: one safetensors file with everything a run depends on; and model files, with
 * everything predictions depend on.
 *
 * Weights under neuraloperator's names, optim.* (state of the optimizer), encoder.x.* and
 * encoder.y.* (normalizers), train.* (counters, sums, schedule, modes in use); metadata:
 * tgrad.checkpoint (format version), tgrad.config (YAML), tgrad.imported (the initial weights came
 * from another program), tgrad.checksum over all tensors and the metadata. A model file has no
 * optim.* and train.*, and tgrad.model instead of tgrad.checkpoint; it stores only the settings its
 * creator had. */
#ifndef TG_TRAIN_CHECKPOINT_H
#define TG_TRAIN_CHECKPOINT_H

#include "backend/tensor.h"
#include "train/model.h"

/* How a run has diverged; checkpoints store these numbers. */
typedef enum tg_divergence {
    TG_DIVERGED_NOT,
    TG_DIVERGED_LOSS,    /* more than half of the batches of an epoch had no finite loss */
    TG_DIVERGED_WEIGHTS, /* NaN or Inf */
    TG_DIVERGED_ERROR,   /* the test error is no longer finite */
    TG_DIVERGED_UPDATES, /* more than half of the updates of an epoch were refused */
    TG_DIVERGED_COUNT
} tg_divergence;

/* Progress of a run: plain numbers, saved as such. */
typedef struct tg_progress {
    int64_t stage;       /* 1-based */
    int64_t stage_epoch; /* epochs finished in this stage */
    int64_t epoch;       /* epochs finished in all stages */
    int64_t batch;       /* batches done in the current epoch */
    int64_t step;        /* updates */
    int64_t samples;     /* in the current epoch, with a finite loss */
    int64_t skipped;     /* batches skipped for a non-finite loss */
    int64_t skipped_row; /* of them, the most recent ones in a row */
    int64_t fno_step;    /* seed of dropout */
    int64_t threads;     /* used for computing; 0: not stored in the file */
    double ranks;        /* number that trained; 0: one, or not stored in the file */
    double loss_sum;     /* of the current epoch */
    double best;         /* lowest test error so far */
    int64_t waited;      /* evaluations since then, with early stopping */
    double losses[2];    /* of the last epoch and the one before; NaN: none (incremental.c) */
    tg_lr_schedule schedule;
    tg_divergence diverged; /* after its last epoch */
} tg_progress;

/* The contents of a checkpoint except its checksum. Weights and state are views on the host,
 * elsewhere copies, in the staging buffer if there is one. */
TG_NODISCARD tg_status tg_checkpoint_collect(const tg_model *model, tg_optim *optim,
                                             const tg_progress *progress, tg_staging *staging,
                                             tg_archive *archive);

/* Writes the file, with its checksum. */
TG_NODISCARD tg_status tg_checkpoint_write(tg_context *ctx, const char *path, tg_archive *archive);

/* Bytes of the tensors, for a run that holds `held` bytes on the backend, and of their copies. */
size_t tg_checkpoint_bytes(const size_t held[TG_MEM_CATEGORIES]);
size_t tg_checkpoint_copies(const tg_backend *be, const size_t held[TG_MEM_CATEGORIES]);

/* Sets the checksum of an otherwise complete archive. */
TG_NODISCARD tg_status tg_checkpoint_seal(tg_archive *archive);

/* Whether it has a checksum, as checkpoints and model files do. */
bool tg_checkpoint_is_sealed(const tg_archive *archive);

/* Checks format, checksum, settings and, if `is_run`, everything needed to resume. */
TG_NODISCARD tg_status tg_checkpoint_check(tg_context *ctx, const char *path, bool is_run,
                                           const tg_archive *archive);
/* Reads a file and checks it. */
TG_NODISCARD tg_status tg_checkpoint_read(tg_context *ctx, const char *path, bool is_run,
                                          tg_archive **out);

TG_NODISCARD tg_status tg_checkpoint_settings(tg_context *ctx, const char *path,
                                              const tg_archive *archive, tg_settings **out);
bool tg_checkpoint_is_model(const tg_archive *archive); /* a model file, without a run's progress */
int tg_checkpoint_stage(const tg_archive *archive);     /* 1 for a model file */

/* Whether the initial weights of a file, a checkpoint or not, came from another program. */
bool tg_checkpoint_is_imported(const tg_archive *archive);

/* Only the normalizers, from any archive that has some. */
TG_NODISCARD tg_status tg_checkpoint_load_normalizers(tg_model *model, const tg_archive *archive);

/* Weights and normalizers; progress. The archive has passed tg_checkpoint_read. */
TG_NODISCARD tg_status tg_checkpoint_load_model(tg_model *model, const tg_archive *archive);
TG_NODISCARD tg_status tg_checkpoint_load_progress(tg_context *ctx, const char *path,
                                                   const tg_archive *archive, tg_progress *out);

/* Sets model->origin of a model just loaded from the checkpoint at `path`. */
TG_NODISCARD tg_status tg_model_keep_origin(tg_model *model, const char *path,
                                            const tg_archive *archive);

#endif
