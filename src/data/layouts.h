/* Layouts: how programs and data sets of the field arrange their arrays in a file. */
#ifndef TG_DATA_LAYOUTS_H
#define TG_DATA_LAYOUTS_H

#include "base/setting.h"
#include "io/array.h"
#include "tgrad/data.h"

enum { TG_MAX_FIELDS = 16, TG_FIELD_NAME = 256 };

/* An array of a file. Dimensions beside samples, times and grid are components: channels. */
typedef struct tg_field {
    char name[TG_FIELD_NAME];
    int64_t first, count; /* of the components that are used; count 0: all */
} tg_field;

/* "velocity:1" or "velocity:0-2" becomes the name and its components. */
void tg_field_take_range(tg_field *field);

typedef struct tg_layout {
    tg_layout_kind kind;
    bool is_trajectory; /* the fields are (samples, times, grid..); otherwise x and y are pairs */
    bool channels_last; /* components stand behind the grid */
    int n_dim;          /* of the grid, 0: the file does not tell */
    tg_array_form form;
    int count;
    tg_field fields[TG_MAX_FIELDS]; /* of pairs: x and y */
} tg_layout;

/* Names of kinds. */
extern const tg_choice tg_layout_choices[];

/* The layout that the config names, or the one that the file looks like; an error names what was
 * found, what is known, and the key to set. */
TG_NODISCARD tg_status tg_layout_find(tg_context *ctx, const char *path,
                                      const tg_dataset_config *config, tg_layout *out);

/* Whether this is a file of MATLAB 7.3, which is HDF5 with a line of text in front. */
TG_NODISCARD tg_status tg_layout_is_matlab(tg_context *ctx, const char *path, bool *out);

#endif
