/* The run folder: which checkpoint files there are, and the metrics written beside them. */
#ifndef TG_TRAIN_RUN_FOLDER_H
#define TG_TRAIN_RUN_FOLDER_H

#include "tgrad/events.h"
#include "tgrad/train.h"

enum { TG_PATH = 1024 };

typedef struct tg_run_folder {
    tg_context *ctx;
    char path[TG_PATH];
    tg_events *events;
} tg_run_folder;

/* Makes the folder and its checkpoints/ if they are not there. */
TG_NODISCARD tg_status tg_run_folder_open(tg_context *ctx, const char *path, tg_run_folder *out);
void tg_run_folder_close(tg_run_folder *folder);

/* PATH/name; too long a path is an error. */
TG_NODISCARD tg_status tg_run_folder_file(const tg_run_folder *folder, const char *name,
                                          char *path);

/* checkpoints/step-<step>.safetensors. */
TG_NODISCARD tg_status tg_run_folder_checkpoint(const tg_run_folder *folder, int64_t step,
                                                char *path);
/* Steps of the checkpoint files present, newest first; at most `capacity` are told, the rest
 * counted.
 */
TG_NODISCARD tg_status tg_run_folder_steps(const tg_run_folder *folder, int64_t *steps,
                                           int capacity, int *count);
/* After a checkpoint of `step` is written: points `recent` at it and removes all but the newest
 * `keep`. */
TG_NODISCARD tg_status tg_run_folder_keep(const tg_run_folder *folder, int64_t step, int64_t keep);

/* Drops the lines of metrics.jsonl and metrics.csv beyond `epoch` and those of projections.jsonl
 * beyond `step`, as a resumed run writes them again. */
TG_NODISCARD tg_status tg_run_folder_rewind(const tg_run_folder *folder, int64_t epoch,
                                            int64_t step);

/* Appends in one write, so that a reader sees whole lines. */
TG_NODISCARD tg_status tg_run_folder_append(const tg_run_folder *folder, const char *name,
                                            const char *text, size_t size);

/* One line each in metrics.jsonl and metrics.csv, and the scalars of TensorBoard. */
TG_NODISCARD tg_status tg_run_folder_log(tg_run_folder *folder, const tg_train_epoch *epoch);

#endif
