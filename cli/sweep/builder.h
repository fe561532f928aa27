/* The content of a sweep's file while its list of runs is made: shared by the readers of its
 * sections and the product of its axes. */
#ifndef CLI_SWEEP_BUILDER_H
#define CLI_SWEEP_BUILDER_H

#include <stdbool.h>
#include <stddef.h>

#include "sweep.h"

typedef struct cli_axis_values {
    char **value;
    int count;
} cli_axis_values;

/* The parsed file. */
typedef struct cli_sweep_builder {
    tg_context *ctx;
    const cli_sweep_source *source;
    const tg_settings *file;
    tg_settings *base; /* of every run */
    cli_axis_values axis[CLI_SWEEP_KEYS];
    int grid; /* axes of the grid; those after them advance in step */
    char **variant;
    int variants;
    char **seed;
    int seeds;
    cli_experiment *out;
    cli_mistakes *mistakes;
} cli_sweep_builder;

/* The rest of a key after "section."; NULL if it is no key of that section. */
const char *cli_sweep_within(const char *key, const char *section);

/* Settings of one section over `to`; of section variants those of the variant `name`. */
TG_NODISCARD tg_status cli_sweep_put_section(const cli_sweep_builder *b, const char *section,
                                             const char *name, tg_settings *to);

/* The rows of the table: every variant with every combination of the axes. */
TG_NODISCARD tg_status cli_sweep_add_cells(cli_sweep_builder *b);

/* ---- lists in the text of a setting ---- */

/* The entries of "[a, [b, c]]", or of one value; returns their count. Freed by cli_words_free. */
int cli_words_split(const char *text, char ***out);
void cli_words_append(char ***list, int *count, const char *text, size_t length);
void cli_words_free(char **list, int count);

/* Whether a value is the word null. */
bool cli_word_is_null(const char *value);

#endif
