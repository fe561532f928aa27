/* Weights from files: neuraloperator's, by their names, or a checkpoint's. */
#ifndef TG_TRAIN_WEIGHTS_H
#define TG_TRAIN_WEIGHTS_H

#include "train/model.h"

/* Reads weights alone into a model. Every name and shape is checked first; the error lists those
 * that do not fit. Remembers in the model whether they were another program's. */
TG_NODISCARD tg_status tg_weights_read(tg_model *model, const char *path);

/* Says once that weights of neuraloperator see an odd grid otherwise here. */
void tg_weights_check_grid(tg_model *model, const int64_t *grid);

#endif
