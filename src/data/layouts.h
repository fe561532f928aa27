/* Layouts: how programs and public datasets arrange the arrays of a file. */
#ifndef TG_DATA_LAYOUTS_H
#define TG_DATA_LAYOUTS_H

#include "base/setting.h"
#include "io/array.h"
#include "tgrad/data.h"

enum { TG_MAX_FIELDS = 16, TG_FIELD_NAME = 256 };

/* An array of a file. Dimensions other than samples, times and grid are components: channels. */
typedef struct tg_field {
    char name[TG_FIELD_NAME];
    int64_t first, count; /* components in use; count 0: all */
} tg_field;

/* Splits "velocity:1" or "velocity:0-2" into the name and its components. */
void tg_field_take_range(tg_field *field);

typedef struct tg_layout {
    tg_layout_kind kind;
    bool is_trajectory; /* the fields are (samples, times, grid..); otherwise x and y are pairs */
    bool channels_last; /* components come after the grid */
    int n_dim;          /* of the grid, 0: unknown */
    tg_array_form form;
    int count;
    tg_field fields[TG_MAX_FIELDS]; /* of pairs: x and y */
} tg_layout;

/* Names of kinds. */
extern const tg_choice tg_layout_choices[];

/* The configured layout, or the one detected in the file; an error lists the arrays found, the
 * known layouts, and the key to set. */
TG_NODISCARD tg_status tg_layout_find(tg_context *ctx, const char *path,
                                      const tg_dataset_config *config, tg_layout *out);

/* Whether this is a file of MATLAB 7.3: HDF5 after a line of text. */
TG_NODISCARD tg_status tg_layout_is_matlab(tg_context *ctx, const char *path, bool *out);

#endif
