/* The run folder: its checkpoint files, metrics and lock. */
#ifndef TG_TRAIN_RUN_FOLDER_H
#define TG_TRAIN_RUN_FOLDER_H

#include "io/formats.h"
#include "tgrad/status.h"
#include "tgrad/train.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TG_PATH = 1024, TG_PATH_INSIDE = 64 /* of this, for names in a folder */ };

typedef struct tg_run_folder {
    tg_context *ctx;
    char path[TG_PATH];
    tg_events *events;
    int lock;          /* descriptor of the lock; -1: none */
    bool has_no_locks; /* the file system cannot lock */
} tg_run_folder;

/* Only stores the path: nothing on the disk changes before tg_run_folder_make. */
TG_NODISCARD tg_status tg_run_folder_open(tg_context *ctx, const char *path, tg_run_folder *out);
void tg_run_folder_close(tg_run_folder *folder); /* also releases the lock */

/* Locks out all other processes, or fails and names the one that has the lock. A
 * folder without a lock file is locked only if `makes`; warns without file locks. */
TG_NODISCARD tg_status tg_run_folder_lock(tg_run_folder *folder, bool makes);
/* Names this process in the lock file. */
void tg_run_folder_sign(const tg_run_folder *folder);

/* Creates the folder and its checkpoints/ if they are missing. */
TG_NODISCARD tg_status tg_run_folder_make(const tg_run_folder *folder);
/* Removes the incomplete files of killed processes. */
void tg_run_folder_sweep(const tg_run_folder *folder);
/* Removes the files of a run, and no others. */
TG_NODISCARD tg_status tg_run_folder_clear(const tg_run_folder *folder);

/* PATH/name, for which there is room: writes and returns `path`. */
const char *tg_run_folder_file(const tg_run_folder *folder, const char *name, char path[TG_PATH]);
/* The same; whether the file exists. */
bool tg_run_folder_has(const tg_run_folder *folder, const char *name, char path[TG_PATH]);
/* The same of checkpoints/step-<step>.safetensors. */
const char *tg_run_folder_checkpoint(const tg_run_folder *folder, int64_t step, char path[TG_PATH]);
/* Steps of the checkpoint files present, newest first, to be freed; none without a folder. */
TG_NODISCARD tg_status tg_run_folder_steps(const tg_run_folder *folder, int64_t **steps,
                                           int64_t *count);
/* The newest of them; -1: none. */
TG_NODISCARD tg_status tg_run_folder_newest(const tg_run_folder *folder, int64_t *step);
/* After a checkpoint of `step` is written: points `recent` to it and removes all but the newest
 * `keep`. */
TG_NODISCARD tg_status tg_run_folder_keep(const tg_run_folder *folder, int64_t step, int64_t keep);

/* If the disk has no room for a checkpoint of `bytes` bytes, removes older ones except the newest,
 * and counts them in *dropped (saving.c). */
TG_NODISCARD tg_status tg_run_folder_make_room(const tg_run_folder *folder, uint64_t bytes,
                                               int *dropped);

/* Drops the lines of metrics.jsonl and metrics.csv after `epoch` and those of projections.jsonl
 * after `step`, which a resumed run writes again; those of stable_ranks.jsonl by `epoch`. */
TG_NODISCARD tg_status tg_run_folder_rewind(const tg_run_folder *folder, int64_t epoch,
                                            int64_t step);

/* Syncs appended lines to disk: before a checkpoint that relies on them. */
TG_NODISCARD tg_status tg_run_folder_sync(const tg_run_folder *folder);

/* One line each in metrics.jsonl and metrics.csv, and the scalars of TensorBoard (metrics.c). */
TG_NODISCARD tg_status tg_run_folder_log(tg_run_folder *folder, const tg_train_epoch *epoch);

/* ---- lines of a run that goes back to an earlier epoch (metrics.c) ---- */

/* Whether a line is about an epoch or a step up to `last`. */
typedef bool tg_line_filter(const char *line, int64_t last);

/* Of metrics.jsonl: {"epoch":N,.. */
bool tg_line_keeps_epoch(const char *line, int64_t last);

/* Moves the lines that `keeps` accepts to the front of `text` and returns their length. Drops the
 * damage of a system crash: a last line that is cut off, and lines with NUL bytes, which stand for
 * blocks that never reached the disk; *damaged counts those. */
size_t tg_lines_keep(char *text, size_t size, tg_line_filter *keeps, int64_t last,
                     int64_t *damaged);

#endif
