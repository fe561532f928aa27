/* "Did you mean ..?": the nearest of several names by edit distance.
 *
 *     cli_suggestion s = cli_suggest(word);
 *     for (..) cli_suggest_offer(&s, name);
 *     cli_usage(.., "'%s' is no name%s", word, s.text); */
#ifndef CLI_SUGGEST_H
#define CLI_SUGGEST_H

typedef struct cli_suggestion {
    const char *word; /* what the user wrote */
    const char *best; /* nearest name offered so far; NULL if none is near */
    int distance;     /* of `best`, or the largest distance that still counts as near, plus one */
    char text[96];    /* "; did you mean BEST?"; empty if none is near */
} cli_suggestion;

cli_suggestion cli_suggest(const char *word);
void cli_suggest_offer(cli_suggestion *suggestion, const char *name);

#endif
