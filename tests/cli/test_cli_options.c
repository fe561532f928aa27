/* The command line's own parts, without a process: the option parser, the nearest-name search and
 * the text helpers. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/options.h"
#include "common/output.h"
#include "support/cmocka.h"

/* ---- The parser. ---- */

static const char *const fruits[] = {"apple", "banana", "cherry", NULL};

/* Targets of the table below, and what a parse gave. */
static struct {
    bool flag, other;
    int64_t count, any;
    const char *name, *fruit;
    cli_list list;
} opt;

static const cli_option own[] = {
    {.name = "flag", .letter = 'f', .kind = CLI_FLAG, .flag = &opt.flag, .help = ""},
    {.name = "count", .letter = 'n', .kind = CLI_INT, .integer = &opt.count, .min = -3, .max = 100},
    {.name = "any", .kind = CLI_INT, .integer = &opt.any},
    {.name = "name", .kind = CLI_STRING, .text = &opt.name},
    {.name = "fruit", .kind = CLI_STRING, .text = &opt.fruit, .choices = fruits},
    {.name = "list", .letter = 'l', .kind = CLI_LIST, .list = &opt.list},
    {.name = "other", .letter = 'o', .kind = CLI_FLAG, .flag = &opt.other},
    {0},
};

static cli_args args;
static char error[512];

static int reset(void **state) {
    (void)state;
    cli_args_free(&args);
    cli_list_free(&opt.list);
    memset(&opt, 0, sizeof opt);
    return 0;
}

enum { MAX_WORDS = 12 };

/* Parses a NULL-ended list of words. */
static bool parse_words(bool overrides, const char *const *words) {
    char *argv[MAX_WORDS];
    int argc = 0;
    for (; words[argc]; argc++) {
        assert_true(argc < MAX_WORDS);
        argv[argc] = strdup(words[argc]);
    }
    reset(NULL);
    bool ok = cli_options_parse(own, overrides, argc, argv, &args, error, sizeof error);
    /* Strings point into argv: the tests compare them before the next parse, so keep it. */
    static char *kept[MAX_WORDS];
    for (int i = 0; i < MAX_WORDS; i++) {
        free(kept[i]);
        kept[i] = i < argc ? argv[i] : NULL;
    }
    assert_int_equal(ok, error[0] == '\0');
    return ok;
}

#define PARSE(...)           parse_words(false, (const char *const[]){__VA_ARGS__, NULL})
#define PARSE_OVERRIDES(...) parse_words(true, (const char *const[]){__VA_ARGS__, NULL})

static void assert_refused(bool ok, const char *part) {
    assert_false(ok);
    if (!strstr(error, part)) {
        fail_msg("'%s' does not contain '%s'", error, part);
    }
}

TEST_WITH(test_forms, NULL, reset) {
    assert_true(PARSE("in", "--count", "7", "out", "--flag"));
    assert_int_equal(opt.count, 7);
    assert_true(opt.flag && !opt.other);
    assert_int_equal(args.count, 2);
    assert_string_equal(args.item[0], "in");
    assert_string_equal(args.item[1], "out");

    assert_true(PARSE("-n7", "-fo", "--name="));
    assert_int_equal(opt.count, 7);
    assert_true(opt.flag && opt.other);
    assert_string_equal(opt.name, "");

    assert_true(PARSE("-fn", "-3", "--name", "-x", "--name=--y=z"));
    assert_true(opt.flag);
    assert_int_equal(opt.count, -3);
    assert_string_equal(opt.name, "--y=z");

    assert_true(PARSE("-", "--", "--flag", "--", "", "-n"));
    assert_false(opt.flag);
    assert_int_equal(args.count, 5);
    assert_string_equal(args.item[0], "-");
    assert_string_equal(args.item[1], "--flag");
    assert_string_equal(args.item[3], "");

    assert_true(parse_words(false, (const char *const[]){NULL}));
    assert_int_equal(args.count, 0);
}

TEST_WITH(test_unknown, NULL, reset) {
    assert_refused(PARSE("--cuont", "3"), "unknown option '--cuont'; did you mean --count?");
    assert_refused(PARSE("--coun=3"), "did you mean --count?");
    assert_refused(PARSE("-cuont"), "did you mean --count?");
    assert_refused(PARSE("--othr"), "did you mean --other?");
    assert_refused(PARSE("--zzzzzzzzz"), "unknown option '--zzzzzzzzz'");
    assert_null(strstr(error, "mean"));
    assert_refused(PARSE("-z"), "unknown option '-z'");
    assert_refused(PARSE("--=3"), "unknown option '--=3'");
    assert_refused(PARSE("---"), "unknown option '---'");
    char huge[5000];
    memset(huge, 'x', sizeof huge);
    memcpy(huge, "--", 2);
    huge[sizeof huge - 1] = '\0';
    assert_refused(PARSE(huge), "unknown option '--xxx");
    assert_true(strlen(error) < 200);
}

TEST_WITH(test_missing_values, NULL, reset) {
    assert_refused(PARSE("--count"), "--count needs a value");
    assert_refused(PARSE("-n"), "-n needs a value");
    assert_refused(PARSE("--name", "--flag"), "--name needs a value, but --flag follows");
    assert_refused(PARSE("--name", "--"), "--name needs a value");
    assert_refused(PARSE("--flag=yes"), "--flag takes no value");
    assert_refused(PARSE("--flag="), "--flag takes no value");
}

TEST_WITH(test_integers, NULL, reset) {
    static const char *const wrong[] = {"",    "x",   "3x",    " 3",  "3 ",  "0x10",
                                        "1.5", "1e3", "--any", "+-3", "NaN", "٣"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char word[64];
        snprintf(word, sizeof word, "--any=%s", wrong[i]);
        assert_refused(PARSE(word), "--any needs an integer");
    }
    assert_true(PARSE("--any", "9223372036854775807"));
    assert_true(opt.any == INT64_MAX);
    assert_true(PARSE("--any=-9223372036854775808"));
    assert_true(opt.any == INT64_MIN);
    assert_refused(PARSE("--any", "9223372036854775808"), "--any must be from");
    assert_refused(PARSE("--any", "99999999999999999999999999"), "--any must be from");
    assert_refused(PARSE("--count", "101"), "--count must be from -3 to 100, not 101");
    assert_refused(PARSE("--count", "-4"), "--count must be from -3 to 100, not -4");
    assert_true(PARSE("--count", "1", "--count", "2"));
    assert_int_equal(opt.count, 2);
}

TEST_WITH(test_choices, NULL, reset) {
    assert_true(PARSE("--fruit", "banana"));
    assert_string_equal(opt.fruit, "banana");
    assert_refused(PARSE("--fruit", "bannana"),
                   "'bannana' is not one of apple, banana, cherry; did you mean banana?");
    assert_refused(PARSE("--fruit", "melonmelon"), "is not one of apple, banana, cherry");
    assert_refused(PARSE("--fruit="), "is not one of");
}

TEST_WITH(test_lists, NULL, reset) {
    assert_true(PARSE("--list", "a,bb", "-lc", "--list=d", "--list", "[e, ff]", "--list=[g]"));
    static const char *const expected[] = {"a", "bb", "c", "d", "e", "ff", "g"};
    assert_int_equal(opt.list.count, 7);
    for (int i = 0; i < 7; i++) {
        assert_string_equal(opt.list.item[i], expected[i]);
    }
    assert_refused(PARSE("--list="), "empty item");
    assert_refused(PARSE("--list", "a,,b"), "empty item");
    assert_refused(PARSE("--list", "a,"), "empty item");
    assert_refused(PARSE("--list", "[]"), "empty item");
    assert_refused(PARSE("--list", "[a, ]"), "empty item");
}

TEST_WITH(test_overrides, NULL, reset) {
    assert_true(PARSE_OVERRIDES("c.yaml", "--opt.rank", "0.25", "--a.b_2.c=", "--flag"));
    assert_int_equal(args.override_count, 2);
    assert_string_equal(args.override[0].key, "opt.rank");
    assert_string_equal(args.override[0].value, "0.25");
    assert_string_equal(args.override[1].key, "a.b_2.c");
    assert_string_equal(args.override[1].value, "");
    assert_true(opt.flag);
    assert_int_equal(args.count, 1);

    assert_refused(PARSE("--opt.rank", "0.25"), "unknown option '--opt.rank'");
    assert_refused(PARSE_OVERRIDES("--opt.rank"), "--opt.rank needs a value");
    static const char *const wrong[] = {"--.x=1", "--x.=1", "--a..b=1", "--a b.c=1", "--ab=1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_refused(PARSE_OVERRIDES(wrong[i]), "unknown option");
    }
}

/* ---- Nearest names. ---- */

TEST(test_edit_distance) {
    static const struct {
        const char *a, *b;
        int distance;
    } cases[] = {
        {"", "", 0},           {"", "abc", 3},
        {"abc", "", 3},        {"abc", "abc", 0},
        {"abc", "acb", 1},     {"abc", "abd", 1},
        {"abcd", "acd", 1},    {"kitten", "sitting", 3},
        {"ab", "ba", 1},       {"inspect", "inspcet", 1},
        {"a", "b", 1},         {"convert", "info", 6},
        {"AdamW", "adamw", 0}, {"AB", "ba", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(tg_edit_distance(cases[i].a, cases[i].b), cases[i].distance);
        assert_int_equal(tg_edit_distance(cases[i].b, cases[i].a), cases[i].distance);
    }
    assert_int_equal(tg_edit_distance(NULL, "sitting"), INT_MAX);
    assert_int_equal(tg_edit_distance("sitting", NULL), INT_MAX);
    char longest[65];
    memset(longest, 'a', sizeof longest);
    longest[64] = '\0';
    assert_int_equal(tg_edit_distance(longest, longest), INT_MAX); /* too long to be compared */
    longest[63] = '\0';
    assert_int_equal(tg_edit_distance(longest, longest), 0);
}

static const char *nearest(const char *word) {
    static const char *const names[] = {"info", "inspect", "convert", "completion"};
    cli_suggestion suggestion = cli_suggest(word);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        cli_suggest_offer(&suggestion, names[i]);
    }
    return suggestion.best ? suggestion.best : "";
}

TEST(test_nearest) {
    assert_string_equal(nearest("inspct"), "inspect");
    assert_string_equal(nearest("conv"), "convert");
    assert_string_equal(nearest("comp"), "completion");
    assert_string_equal(nearest("inof"), "info");
    assert_string_equal(nearest("xyzzy"), "");
    assert_string_equal(nearest(""), "");
    assert_string_equal(nearest("train"), "");
}

/* ---- Text. ---- */

TEST(test_bytes_text) {
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1, "1 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {1536, "1.5 KiB"},
        {1048525, "1.0 MiB"},
        {1 << 20, "1.0 MiB"},
        {UINT64_C(41016860672), "38.2 GiB"},
        {UINT64_MAX, "16.0 EiB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[CLI_UNIT_TEXT];
        assert_string_equal(cli_bytes_text(cases[i].bytes, text), cases[i].text);
    }
}

TEST(test_duration_text) {
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {
        {0.0, "0 ns"},          {8.5e-7, "850 ns"},     {1.25e-3, "1.25 ms"},
        {0.99999, "1 s"},       {12.34, "12.3 s"},      {59.96, "1 min 00 s"},
        {125.0, "2 min 05 s"},  {3599.7, "1 h 00 min"}, {11040.0, "3 h 04 min"},
        {198000.0, "2 d 07 h"}, {-1.0, "-1 s"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[CLI_UNIT_TEXT];
        assert_string_equal(cli_duration_text(cases[i].seconds, text), cases[i].text);
    }
    char text[CLI_UNIT_TEXT];
    cli_duration_text((double)NAN, text);
    cli_duration_text(1e300, text);
}

static void assert_clean(const char *text, size_t limit, const char *expected) {
    char *clean = cli_clean_text(text, limit);
    assert_string_equal(clean, expected);
    free(clean);
}

TEST(test_clean_text) {
    assert_clean("", 0, "");
    assert_clean("grüße 字 𝄞", 0, "grüße 字 𝄞");
    assert_clean("a\nb\tc\x1b[31m\x7f", 0, "a\\nb\\tc\\x1b[31m\\x7f");
    assert_clean("\xff\xc3", 0, "\\xff\\xc3");                   /* never starts, and cut */
    assert_clean("\xc0\xaf", 0, "\\xc0\\xaf");                   /* longer than needed */
    assert_clean("\xed\xa0\x80", 0, "\\xed\\xa0\\x80");          /* surrogate */
    assert_clean("\xf4\x90\x80\x80", 0, "\\xf4\\x90\\x80\\x80"); /* beyond U+10FFFF */
    assert_clean("\xc2\x9b", 0, "\\xc2\\x9b");                   /* CSI as a C1 control character */
    assert_clean("\xe2\x80\xaex\xe2\x81\xa6y", 0, "\\u202ex\\u2066y"); /* right to left, isolate */
    assert_clean("\xe2\x80\xa8\xd8\x9c", 0, "\\u2028\\xd8\\x9c"); /* line separator, Arabic mark */
    assert_clean("\xe2\x80\xa6\xe2\x80\x94", 0, "\xe2\x80\xa6\xe2\x80\x94");
    assert_clean("\xe2\x80\xae\xe2\x80\xae\xe2\x80\xae", 2, "\\u202e\\u202e... (9 bytes)");
    assert_clean("abcdef", 6, "abcdef");
    assert_clean("abcdefg", 6, "abcdef... (7 bytes)");
    assert_clean("üüüü", 2, "üü... (8 bytes)");
    assert_clean("\x01\x01\x01", 2, "\\x01\\x01... (3 bytes)");
}

TEST(test_table) {
    json_t *rows =
        json_pack("[{s:s,s:i,s:s},{s:s,s:i,s:s},{s:s,s:i,s:s}]", "name", "x", "n", 0, "note", "",
                  "name", "grüße", "n", 100, "note", "", "name", "x", "n", 200, "note", "a\nb");
    FILE *file = tmpfile();
    fflush(stdout);
    const int terminal = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    cli_print_rows(rows, "name:name|n>:n|note:note");
    fflush(stdout);
    dup2(terminal, STDOUT_FILENO);
    close(terminal);
    char text[256] = "";
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    assert_string_equal(text, "name     n  note\n"
                              "x        0  \n"
                              "grüße  100  \n"
                              "x      200  a\\nb\n");
    fclose(file);
    json_decref(rows);
}
