/* Any words as a command line, one per line: wrong usage with a sentence, or targets within their
 * bounds; no leak. Byte 0 says whether settings are accepted too. */
#include <string.h>

#include "common/options.h"
#include "fuzz.h"

enum { WORDS = 64, TEXT = 256, LEAST = -5, MOST = 1 << 20 };

static const char *const choices[] = {"cpu", "cuda", "ref", NULL};

static bool is_choice(const char *text) {
    for (int i = 0; choices[i]; i++) {
        if (strcmp(text, choices[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void parse(bool overrides, int count, char **words) {
    bool flag = false;
    int64_t integer = 0, any = 0;
    const char *text = NULL, *choice = "cpu";
    cli_list list = {0};
    cli_args args = {0};
    char error[128] = "";
    const cli_option table[] = {
        {.name = "flag", .letter = 'f', .kind = CLI_FLAG, .flag = &flag},
        {.name = "int",
         .letter = 'i',
         .kind = CLI_INT,
         .integer = &integer,
         .min = LEAST,
         .max = MOST},
        {.name = "any-int", .kind = CLI_INT, .integer = &any},
        {.name = "text", .letter = 't', .kind = CLI_STRING, .text = &text},
        {.name = "backend", .letter = 'b', .kind = CLI_STRING, .text = &choice, .choices = choices},
        {.name = "list", .letter = 'l', .kind = CLI_LIST, .list = &list},
        {0}};
    const bool is_good =
        cli_options_parse(table, overrides, count, words, &args, error, sizeof error);
    fuzz_expect(is_good == (error[0] == '\0'));
    fuzz_expect(integer >= LEAST && integer <= MOST && is_choice(choice));
    fuzz_expect(overrides || args.override_count == 0);
    fuzz_expect(!is_good || args.count <= count);
    cli_list_free(&list);
    cli_args_free(&args);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char text[TEXT] = "";
    char *words[WORDS];
    int count = 0;
    if (size == 0) {
        return 0;
    }
    memcpy(text, bytes + 1, size - 1 < TEXT ? size - 1 : TEXT - 1);
    for (char *at = text; at && count < WORDS;) {
        words[count++] = at;
        at = strchr(at, '\n');
        if (at) {
            *at++ = '\0';
        }
    }
    parse(bytes[0] & 1, count, words);
    return 0;
}
