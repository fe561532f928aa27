/* "Did you mean ..?": the nearest of several names by edit distance.
 *
 *     cli_suggestion s = cli_suggest(word);
 *     for (..) cli_suggest_offer(&s, name);
 *     cli_usage(.., "'%s' is no name%s", word, s.text); */
#ifndef CLI_COMMON_SUGGEST_H
#define CLI_COMMON_SUGGEST_H

#include <stdbool.h>
#include <stddef.h>

#include "options.h"

typedef struct cli_suggestion {
    const char *word; /* as the user wrote it */
    const char *best; /* nearest name offered so far; NULL if none is near */
    int distance;     /* of `best`, or the largest distance that still counts as near, plus one */
    char text[96];    /* "; did you mean BEST?"; empty if none is near */
} cli_suggestion;

cli_suggestion cli_suggest(const char *word);
void cli_suggest_offer(cli_suggestion *suggestion, const char *name);

/* ---- the names that users of other programs write ---- */

/* The option or setting that `word`, an unknown option without dashes, most likely means: "--run",
 * "--opt.n_epochs" (only with `overrides`). NULL if none is near; else returns text. */
const char *cli_hint(const cli_option *const *tables, bool overrides, const char *word, char *text,
                     size_t capacity);

/* The word of `choices` that `value` means in other programs ("gpu": cuda), or NULL. */
const char *cli_hint_choice(const char *const *choices, const char *value);

#endif
