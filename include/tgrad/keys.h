/* The keys of a run's settings as the library's own tables know them: for help pages, completion
 * scripts, forms and wrappers. docs/config.md describes them at length. */
#ifndef TGRAD_KEYS_H
#define TGRAD_KEYS_H

#include <stdbool.h>

#include "tgrad/context.h"

TG_C_BEGIN

typedef struct tg_key_info {
    const char *section; /* "fno", "opt", "data", "distributed" */
    const char *name;    /* "n_modes": the setting is called fno.n_modes */
    const char *type;    /* integer, number, bytes, boolean, choice, integers, numbers, grid, grids,
                            text or texts */
    const char *help;    /* its effect, in one line */
    bool has_range;      /* numbers are from low to high, both included */
    double low, high;
    char values[256];   /* valid values, in words */
    char fallback[128]; /* the default as text; "": it has none and must be set */
} tg_key_info;

/* The key number `index`, 0-based, section by section; false beyond the last. */
TG_API bool tg_key_describe(int index, tg_key_info *out);
/* The words that a key of type choice accepts, by number; NULL beyond the last. */
TG_API const char *tg_key_choice(int key, int index);

TG_C_END
#endif
