/* Weights from files: neuraloperator's, by their names, or a checkpoint's. */
#ifndef TG_TRAIN_WEIGHTS_H
#define TG_TRAIN_WEIGHTS_H

#include "train/model.h"

/* Reads only weights into a model. Checks every name and shape first; the error lists mismatches.
 * Notes in the model whether they came from another program. */
TG_NODISCARD tg_status tg_weights_read(tg_model *model, const char *path);

/* Warns once that weights of neuraloperator treat an odd grid differently here. */
void tg_weights_check_grid(tg_model *model, const int64_t *grid);

#endif
