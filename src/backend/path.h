/* Reports of which implementation a backend uses for a call, where a slot has several: messages of
 * level debug to the context's log. Without a listener they cost a comparison. */
#ifndef TG_BACKEND_PATH_H
#define TG_BACKEND_PATH_H

#include "backend/backend.h"

/* Begins every report; op, sizes, path and kernels follow, separated by tabs. */
#define TG_PATH_MARK "path\t"

/* A path, and its kernels in the order in which they run. */
typedef struct tg_path {
    const char *name, *kernels;
} tg_path;

/* `sizes`: those that the choice depends on. */
TG_PRINTF(4, 5)
void tg_path_report(const tg_backend *be, const char *op, tg_path path, const char *sizes, ...);

/* Of a call on the modes of a tensor: "64x64x64x33 to 16x16x16x8". */
void tg_path_report_modes(const tg_backend *be, const char *op, tg_path path,
                          const tg_multimode *modes);

/* Of an MLP or a skip: its channels. */
void tg_path_report_mlp(const tg_backend *be, const tg_mlp *op, bool backward, tg_path path);
void tg_path_report_skip(const tg_backend *be, const tg_skip *op, bool backward, tg_path path);

#endif
