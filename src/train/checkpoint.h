/* Checkpoints: one safetensors file with everything a run depends on; and model files, which hold
 * what predictions depend on.
 *
 * Weights under neuraloperator's names, optim.* (state of the optimizer), encoder.x.* and
 * encoder.y.* (normalizers), train.* (counters, sums, schedule, modes in use); metadata:
 * tgrad.checkpoint (format version), tgrad.config (YAML), tgrad.imported (its first weights were
 * another program's), tgrad.checksum over all tensors and the metadata. A model file has no optim.*
 * and train.*, and tgrad.model instead of tgrad.checkpoint; of the settings those that its maker
 * had. */
#ifndef TG_TRAIN_CHECKPOINT_H
#define TG_TRAIN_CHECKPOINT_H

#include "backend/tensor.h"
#include "train/model.h"

/* In which way a run has diverged; the numbers stand in checkpoints. */
typedef enum tg_divergence {
    TG_DIVERGED_NOT,
    TG_DIVERGED_LOSS,    /* more than half of the batches of an epoch had no finite loss */
    TG_DIVERGED_WEIGHTS, /* NaN or Inf */
    TG_DIVERGED_ERROR,   /* the test error is not finite any more */
    TG_DIVERGED_COUNT
} tg_divergence;

/* Progress of a run: plain numbers, saved as they are. */
typedef struct tg_progress {
    int64_t stage;       /* 1-based */
    int64_t stage_epoch; /* epochs finished in this stage */
    int64_t epoch;       /* epochs finished in all stages */
    int64_t batch;       /* batches done in the epoch under way */
    int64_t step;        /* updates */
    int64_t samples;     /* in the epoch under way, with a finite loss */
    int64_t skipped;     /* batches skipped for a non-finite loss */
    int64_t skipped_row; /* of them, in a row until now */
    int64_t fno_step;    /* seed of dropout */
    int64_t threads;     /* that compute; 0: a file that does not tell */
    int64_t ranks;       /* that trained; 0: one, or a file that does not tell */
    double loss_sum;     /* of the epoch under way */
    double best;         /* lowest test error so far */
    int64_t waited;      /* evaluations since then, if that can end the run */
    double losses[2];    /* of the last epoch and the one before; NaN: none (incremental.c) */
    tg_lr_schedule schedule;
    tg_divergence diverged; /* by its last epoch */
} tg_progress;

/* Everything that a checkpoint holds but its checksum. On the host weights and state are seen where
 * they lie; elsewhere they are copied, into the staging buffer if there is one. */
TG_NODISCARD tg_status tg_checkpoint_collect(const tg_model *model, tg_optim *optim,
                                             const tg_progress *progress, tg_staging *staging,
                                             tg_archive *archive);

/* The file, with its checksum. */
TG_NODISCARD tg_status tg_checkpoint_write(tg_context *ctx, const char *path, tg_archive *archive);

/* Bytes of the tensors, of a run that holds so much where the backend computes, and of those
 * copies.
 */
size_t tg_checkpoint_bytes(const size_t held[TG_MEM_CATEGORIES]);
size_t tg_checkpoint_copies(const tg_backend *be, const size_t held[TG_MEM_CATEGORIES]);

/* Sets the checksum of an archive that is complete otherwise. */
TG_NODISCARD tg_status tg_checkpoint_seal(tg_archive *archive);

/* Whether it is a checkpoint or a model file: one that has a checksum. */
bool tg_checkpoint_is_sealed(const tg_archive *archive);

/* Format, checksum, and that settings and, if `is_run`, what a run goes on from are there. */
TG_NODISCARD tg_status tg_checkpoint_check(tg_context *ctx, const char *path, bool is_run,
                                           const tg_archive *archive);
/* Reads a file and checks it. */
TG_NODISCARD tg_status tg_checkpoint_read(tg_context *ctx, const char *path, bool is_run,
                                          tg_archive **out);

TG_NODISCARD tg_status tg_checkpoint_settings(tg_context *ctx, const char *path,
                                              const tg_archive *archive, tg_settings **out);
bool tg_checkpoint_is_model(const tg_archive *archive); /* a model file, without a run's progress */
int tg_checkpoint_stage(const tg_archive *archive);     /* 1 of a model file */

/* Whether the weights of a file, a checkpoint or not, were another program's at first. */
bool tg_checkpoint_is_imported(const tg_archive *archive);

/* Normalizers alone, from any archive that has some. */
TG_NODISCARD tg_status tg_checkpoint_load_normalizers(tg_model *model, const tg_archive *archive);

/* Weights and normalizers; progress. The archive has passed tg_checkpoint_read. */
TG_NODISCARD tg_status tg_checkpoint_load_model(tg_model *model, const tg_archive *archive);
TG_NODISCARD tg_status tg_checkpoint_load_progress(tg_context *ctx, const char *path,
                                                   const tg_archive *archive, tg_progress *out);

/* Fills in model->origin, of a model that was just loaded from the checkpoint at `path`. */
TG_NODISCARD tg_status tg_model_keep_origin(tg_model *model, const char *path,
                                            const tg_archive *archive);

#endif
