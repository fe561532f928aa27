/* Settings files: every form of YAML that a configuration uses, the place of each error, hostile
 * files, and text that reads back as it was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/settings.h"
#include "support/cmocka.h"
#include "support/context.h"
#include "support/files.h"
#include "support/no_memory.h"
#include "tgrad/settings.h"

static tg_settings *parse(const char *text) {
    tg_settings *settings = NULL;
    if (tg_settings_parse_yaml(ctx, "t.yaml", text, strlen(text), &settings) != TG_OK) {
        fail_msg("%s", tg_context_error(ctx));
    }
    return settings;
}

static void expect(const tg_settings *settings, const char *key, const char *value) {
    assert_non_null(tg_settings_get(settings, key));
    assert_string_equal(tg_settings_get(settings, key), value);
}

TEST(test_forms) {
    tg_settings *s = parse("# a comment\n"
                           "verbose: True\n"
                           "fno:\n"
                           "  n_modes: [8,8]      # flow\n"
                           "  ranks:\n"
                           "    - 0.25\n"
                           "    - [1, 2]\n"
                           "  norm: null\n"
                           "  other: ~\n"
                           "  empty:\n"
                           "  text: ''\n"
                           "  quoted: \"a: b # c\"\n"
                           "  single: 'it''s'\n"
                           "  words: [\"x y\", 'plain', null, ~, \"\"]\n"
                           "opt: {rank: 0.25, deep: {er: {still: 1e-4}}}\n"
                           "opt.name: tensorgrad\n"
                           "data:\n"
                           "  root: ../data/set 1\n"
                           "  block: |\n"
                           "    two\n"
                           "    lines\n"
                           "  none: []\n"
                           "wandb: {}\n"
                           "typed: !!str 5\n");
    expect(s, "verbose", "True");
    expect(s, "fno.n_modes", "[8, 8]");
    expect(s, "fno.ranks", "[0.25, [1, 2]]");
    expect(s, "fno.norm", "null");
    expect(s, "fno.other", "null");
    expect(s, "fno.empty", "null");
    expect(s, "fno.text", "");
    expect(s, "fno.quoted", "a: b # c");
    expect(s, "fno.single", "it's");
    expect(s, "fno.words", "[\"x y\", plain, null, null, \"\"]");
    expect(s, "opt.rank", "0.25");
    expect(s, "opt.deep.er.still", "1e-4");
    expect(s, "opt.name", "tensorgrad");
    expect(s, "data.root", "../data/set 1");
    expect(s, "data.block", "two\nlines\n");
    expect(s, "data.none", "[]");
    expect(s, "typed", "5");
    expect(s, "wandb", "null");
    assert_null(tg_settings_get(s, "fno"));
    assert_int_equal(tg_settings_count(s), 18);
    assert_string_equal(tg_settings_key(s, 0), "verbose");
    assert_string_equal(tg_settings_origin(s, 0), "t.yaml:2");
    assert_string_equal(tg_settings_origin(s, tg_settings_find(s, "fno.ranks")), "t.yaml:5");
    assert_string_equal(tg_settings_origin(s, tg_settings_find(s, "opt.rank")), "t.yaml:15");
    assert_null(tg_settings_key(s, 18));
    assert_null(tg_settings_value(s, -1));
    assert_null(tg_settings_origin(s, 18));
    tg_settings_destroy(&s);
    assert_null(s);
    tg_settings_destroy(&s);
    tg_settings_destroy(NULL);
}

/* Merged keys stand where "<<" stands; a map's own keys win wherever they stand, then earlier
 * merged maps; values are not merged into each other. */
TEST(test_aliases_and_merges) {
    tg_settings *s = parse("base: &base\n"
                           "  lr: 1\n"
                           "  wd: 2\n"
                           "  sub: {a: 1, b: 2}\n"
                           "more: &more\n"
                           "  <<: *base\n"
                           "  wd: 3\n"
                           "  extra: &list [1, 2]\n"
                           "one:\n"
                           "  first: 0\n"
                           "  <<: *base\n"
                           "  lr: 9\n"
                           "two:\n"
                           "  <<: [*more, *base]\n"
                           "  sub: {c: 3}\n"
                           "three: *list\n");
    expect(s, "one.lr", "9");
    expect(s, "one.wd", "2");
    expect(s, "one.sub.b", "2");
    expect(s, "two.lr", "1");
    expect(s, "two.wd", "3");
    expect(s, "two.extra", "[1, 2]");
    expect(s, "two.sub.c", "3");
    assert_null(tg_settings_get(s, "two.sub.a"));
    expect(s, "three", "[1, 2]");
    const int64_t first = tg_settings_find(s, "one.first");
    assert_string_equal(tg_settings_key(s, first + 1), "one.wd");
    assert_string_equal(tg_settings_key(s, first + 4), "one.lr");
    assert_string_equal(tg_settings_origin(s, first + 1), "t.yaml:3");
    tg_settings_destroy(&s);
}

TEST(test_nothing) {
    const char *const texts[] = {"", "# only a comment\n", "---\n", "{}\n", "null\n", "\n\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        tg_settings *s = parse(texts[i]);
        assert_int_equal(tg_settings_count(s), 0);
        tg_settings_destroy(&s);
    }
}

static void expect_error(const char *text, size_t size, const char *part) {
    tg_settings *settings = NULL;
    assert_int_equal(tg_settings_parse_yaml(ctx, "t.yaml", text, size, &settings), TG_E_CONFIG);
    assert_null(settings);
    if (!strstr(tg_context_error(ctx), part)) {
        fail_msg("expected '%s' in '%s'", part, tg_context_error(ctx));
    }
}

TEST(test_errors) {
    const struct {
        const char *text, *part;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "t.yaml:3: the key 'a' appears twice"},
        {"a:\n  b: 1\na:\n  c: 1\n", "t.yaml:3: the key 'a' appears twice"},
        {"a:\n  b: 1\na.b: 2\n", "t.yaml:3: a.b: set twice, first in t.yaml:2"},
        {"a:\n\tb: 2\n", "t.yaml:2: not valid YAML: tab character"},
        {"- 1\n- 2\n", "t.yaml:1: expected a map"},
        {"\n\njust words\n", "t.yaml:3: expected a map"},
        {"a: [1, {b: 2}]\n", "t.yaml:1: a: a list may hold values"},
        {"a: [1, 2\nb: 3\n", "not valid YAML"},
        {"a: 1\n  b: 2\n", "t.yaml:"},
        {"a: \"unfinished\n", "not valid YAML"},
        {"a: 1\n---\nb: 2\n", "expected one document"},
        {"? -:\t-", "t.yaml:1: a key must be a word, without"},
        {"a: 1\nb: [2, ? c]\n", "t.yaml:2: a key must be a word, without"},
        {"a: 1\n...\n]\n", "not valid YAML"},
        {"a: 1\nb: *nowhere\n", "t.yaml:2: b: this alias names no anchor"},
        {"a: {b: &x 1}\nc: *x/b\n", "t.yaml:2: c: this alias names no anchor"},
        {"a: &x 1\nb: &x 2\nc: *x\n", "t.yaml:2: an anchor of this name is defined above"},
        {"a: &x [*x]\n", "t.yaml:1: a: lists and maps are nested too deep"},
        {"a: &x {b: *x}\n", "nested too deep"},
        {"a: &x {<<: *x}\n", "nested too deep"},
        {"a: {<<: 3}\n", "<< expects a map"},
        {"a: {<<: [3]}\n", "<< expects a map"},
        {"a: !python/object:os.system x\n", "t.yaml:1: a: tags of other programs"},
        {"{[a, b]: 1}\n", "t.yaml:1: a key must be a word"},
        {"a:\n  \"\": 1\n", "t.yaml:2: a: a key is a word of 1 to 255 bytes"},
        {"a..b: 1\n", "t.yaml:1: the key 'a..b' has an empty part"},
        {"\"a\\nb\": 1\n", "holds a control character"},
        {"a: \"x\\0y\"\n", "t.yaml:1: a: a value may not hold the character 0"},
        {"a: [\"x\\0y\"]\n", "t.yaml:1: a: a value may not hold the character 0"},
        {"a: \xff\n", "not a text file in UTF-8"},
        {"a: %b\n", "t.yaml:1"},
        {"a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q: 1\n", "more than 16 parts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_error(cases[i].text, strlen(cases[i].text), cases[i].part);
    }
    expect_error("a: 1\0b: 2\n", 10, "not a text file in UTF-8");
}

/* A text of `count` copies of a piece between two others, from malloc. */
static char *repeat(const char *before, const char *piece, size_t count, const char *after) {
    const size_t length = strlen(piece);
    char *text = malloc(strlen(before) + count * length + strlen(after) + 1);
    assert_non_null(text);
    char *at = text + sprintf(text, "%s", before);
    for (size_t i = 0; i < count; i++, at += length) {
        memcpy(at, piece, length);
    }
    strcpy(at, after);
    return text;
}

TEST(test_hostile_sizes) {
    const struct {
        const char *before, *piece;
        size_t count;
        const char *after, *part;
    } cases[] = {
        {"a: ", "[", 100000, "", "depth"},
        {"a: ", "[", 50, "", "t.yaml"},
        {"a: ", "{b: ", 60, "", "t.yaml"},
        {"a: \"", "x", 70000, "\"\n", "t.yaml:1: a: a value of 64 KiB or more"},
        {"a: [", "1, ", 30000, "1]\n", "a value of 64 KiB or more"},
        {"", "x", 300, ": 1\n", "255 bytes"},
        {"a: 1 #", "x", 1 << 20, "\n", "bytes, at most 1048576 are accepted"},
        {"x: &", "y", 300, " 1\n", "255 bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = repeat(cases[i].before, cases[i].piece, cases[i].count, cases[i].after);
        expect_error(text, strlen(text), cases[i].part);
        free(text);
    }
    char *many = malloc(20 * 12000);
    size_t used = 0;
    for (int i = 0; i < 12000; i++) {
        used += (size_t)sprintf(many + used, "key%d: %d\n", i, i);
    }
    expect_error(many, used, "more than 10000 settings");
    free(many);
}

/* Ten levels of lists (then maps) with ten aliases each: ten billion values from 600 bytes. */
TEST(test_billion_laughs) {
    for (int maps = 0; maps < 2; maps++) {
        char text[4096];
        size_t used = (size_t)sprintf(text, "a0: &a0 %s\n", maps ? "{x: 1}" : "[lol]");
        for (int level = 1; level < 10; level++) {
            used += (size_t)sprintf(text + used, "a%d: &a%d %c", level, level, maps ? '{' : '[');
            for (int i = 0; i < 10; i++) {
                char key[16] = "";
                if (maps) {
                    snprintf(key, sizeof key, "k%d: ", i);
                }
                used += (size_t)sprintf(text + used, "%s%s*a%d", i ? ", " : "", key, level - 1);
            }
            used += (size_t)sprintf(text + used, " %c\n", maps ? '}' : ']');
        }
        tg_settings *settings = NULL;
        assert_int_equal(tg_settings_parse_yaml(ctx, "t.yaml", text, used, &settings), TG_E_CONFIG);
        assert_true(tg_context_memory(ctx, TG_HOST).peak_total < (8 << 20));
    }
}

TEST(test_set) {
    tg_settings *s = NULL;
    assert_int_equal(tg_settings_create(ctx, &s), TG_OK);
    assert_int_equal(tg_settings_set(s, "opt.rank", "0.25", "demo.yaml:3"), TG_OK);
    assert_int_equal(tg_settings_set(s, "fno.n_modes", " [ 8,16 , [a,b]] ", NULL), TG_OK);
    assert_int_equal(tg_settings_set(s, "opt.rank", "0.5", "command line"), TG_OK);
    assert_int_equal(tg_settings_count(s), 2);
    expect(s, "opt.rank", "0.5");
    expect(s, "fno.n_modes", "[8, 16, [a, b]]");
    assert_string_equal(tg_settings_key(s, 0), "opt.rank");
    assert_string_equal(tg_settings_origin(s, 0), "command line");
    assert_string_equal(tg_settings_origin(s, 1), "set by the program");
    /* not a list of plain words: kept as it is */
    assert_int_equal(tg_settings_set(s, "odd", "[8,", NULL), TG_OK);
    expect(s, "odd", "[8,");
    assert_int_equal(tg_settings_set(s, "odd", "[8,] x", NULL), TG_OK);
    expect(s, "odd", "[8,] x");
    assert_int_equal(tg_settings_set(s, "", "1", "command line"), TG_E_CONFIG);
    assert_string_equal(tg_context_error(ctx), "command line: the key '' is empty");
    assert_int_equal(tg_settings_set(s, NULL, "1", NULL), TG_E_ARGUMENT);
    assert_int_equal(tg_settings_set(s, "opt.", "1", NULL), TG_E_CONFIG);
    assert_int_equal(tg_settings_set(s, ".opt", "1", NULL), TG_E_CONFIG);
    assert_int_equal(tg_settings_set(s, "a", NULL, NULL), TG_E_ARGUMENT);
    assert_int_equal(tg_settings_set(s, "a", "\xc0", NULL), TG_E_CONFIG);
    assert_int_equal(tg_settings_set(s, "\xc0", "1", NULL), TG_E_CONFIG);
    assert_int_equal(tg_settings_count(s), 3);
    tg_settings_destroy(&s);
}

static void expect_equal(const tg_settings *a, const tg_settings *b) {
    assert_int_equal(tg_settings_count(a), tg_settings_count(b));
    for (int64_t i = 0; i < tg_settings_count(a); i++) {
        expect(b, tg_settings_key(a, i), tg_settings_value(a, i));
    }
}

/* Keys, values and places in their order; the copy is another one. */
TEST(test_copy) {
    tg_settings *s = parse("b: 1\na: {c: [2, x]}\n"), *copy = NULL;
    assert_int_equal(tg_settings_copy(ctx, s, &copy), TG_OK);
    assert_int_equal(tg_settings_count(copy), 2);
    for (int64_t i = 0; i < 2; i++) {
        assert_string_equal(tg_settings_key(copy, i), tg_settings_key(s, i));
        assert_string_equal(tg_settings_value(copy, i), tg_settings_value(s, i));
        assert_string_equal(tg_settings_origin(copy, i), tg_settings_origin(s, i));
    }
    assert_int_equal(tg_settings_set(copy, "b", "3", NULL), TG_OK);
    expect(s, "b", "1");
    tg_settings_destroy(&s);
    expect(copy, "a.c", "[2, x]");
    tg_settings_destroy(&copy);
}

TEST(test_text) {
    tg_settings *s = NULL, *again = NULL;
    assert_int_equal(tg_settings_create(ctx, &s), TG_OK);
    char small[4] = "xyz";
    assert_int_equal(tg_settings_text(s, small, sizeof small), 3);
    assert_string_equal(small, "{}\n");
    assert_int_equal(tg_settings_set(s, "fno.n_modes", "[8,8]", NULL), TG_OK);
    assert_int_equal(tg_settings_set(s, "seed", "1", NULL), TG_OK);
    assert_int_equal(tg_settings_set(s, "opt", "null", NULL), TG_OK);
    assert_int_equal(tg_settings_set(s, "opt.name", "adam", NULL), TG_OK);
    assert_int_equal(tg_settings_set(s, "opt.a.b", "-1e-4", NULL), TG_OK);
    assert_int_equal(tg_settings_set(s, "opt.a.c", "a: b", NULL), TG_OK);
    assert_int_equal(tg_settings_set(s, "fno.skip", "soft-gating", NULL), TG_OK);
    const char *expected = "fno:\n"
                           "  n_modes: [8, 8]\n"
                           "  skip: soft-gating\n"
                           "seed: 1\n"
                           "opt: null\n"
                           "opt.name: adam\n"
                           "opt.a:\n"
                           "  b: -1e-4\n"
                           "  c: \"a: b\"\n";
    char text[256];
    assert_int_equal(tg_settings_text(s, text, sizeof text), strlen(expected));
    assert_string_equal(text, expected);
    assert_int_equal(tg_settings_text(s, NULL, 0), strlen(expected));
    assert_int_equal(tg_settings_text(s, small, sizeof small), strlen(expected));
    assert_string_equal(small, "fno");

    const char *path = test_path("resolved.yaml");
    assert_int_equal(tg_settings_write_yaml(ctx, path, s), TG_OK);
    assert_int_equal(tg_settings_read_yaml(ctx, path, &again), TG_OK);
    expect_equal(s, again);
    assert_int_equal(test_folder_count(), 1);
    assert_int_equal(tg_settings_write_yaml(ctx, test_path("no/such/folder.yaml"), s), TG_E_IO);
    tg_settings_destroy(&again);
    assert_int_equal(tg_settings_read_yaml(ctx, test_path("missing.yaml"), &again), TG_E_IO);
    assert_non_null(strstr(tg_context_error(ctx), "missing.yaml"));
    tg_settings_destroy(&s);
}

/* Values that YAML would take for something else, and random ones, come back as they were. */
TEST(test_round_trip) {
    static const char *const values[] = {"",
                                         " ",
                                         "null",
                                         "Null",
                                         "NULL",
                                         "~",
                                         "true",
                                         "-",
                                         "--",
                                         "---",
                                         "...",
                                         ".",
                                         "..",
                                         "../x",
                                         "-x",
                                         "- x",
                                         "+",
                                         "+1",
                                         ".5",
                                         "#x",
                                         "x #y",
                                         "a:b",
                                         "a: b",
                                         "&a",
                                         "*a",
                                         "!a",
                                         "%a",
                                         "@a",
                                         "`a",
                                         "'",
                                         "\"",
                                         "\\",
                                         "'x'",
                                         "\"x\"",
                                         "{}",
                                         "{a: 1}",
                                         "[",
                                         "]",
                                         "[]",
                                         "[ ]",
                                         "[a,]",
                                         "[a, b]",
                                         "[a,b",
                                         "[\"a, b\"]",
                                         "[a, [b], c]",
                                         "|",
                                         ">",
                                         "?",
                                         "? x",
                                         ",",
                                         "x\ny",
                                         "x\n",
                                         "\n",
                                         "\t",
                                         "\x01",
                                         "\x7f",
                                         "<<",
                                         "=",
                                         "0x10",
                                         "1_000",
                                         "\xc2\x85",
                                         "\xe2\x80\xa8",
                                         "\xef\xbb\xbf",
                                         "\xc3\xa9",
                                         "\xf0\x9f\x98\x80",
                                         "a\rb",
                                         "x ",
                                         " x",
                                         "[~]",
                                         "[Null]"};
    enum { FIXED = sizeof values / sizeof values[0], RANDOM = 400 };
    static const char alphabet[] = "ab01 .,:-#[]{}\"'\\\n\t&*!|>%@`?~_/+\xc3\xa9";
    tg_settings *s = NULL, *again = NULL;
    uint64_t random = 7;
    assert_int_equal(tg_settings_create(ctx, &s), TG_OK);
    for (int i = 0; i < FIXED + RANDOM; i++) {
        char key[64], value[16] = "";
        size_t length = i < FIXED ? 0 : test_random(&random) % 10;
        for (size_t at = 0; at < length; at++) { /* the last letter has two bytes: not alone */
            value[at] = alphabet[test_random(&random) % (sizeof alphabet - 3)];
        }
        snprintf(key, sizeof key, "s%d.%s%d", i % 7, i % 3 ? "sub." : "", i);
        assert_int_equal(tg_settings_set(s, key, i < FIXED ? values[i] : value, NULL), TG_OK);
    }
    assert_int_equal(tg_settings_set(s, "odd #key.- x.\xc3\xa9: y.'", "1", NULL), TG_OK);
    const size_t length = tg_settings_text(s, NULL, 0);
    char *text = malloc(length + 1);
    tg_settings_text(s, text, length + 1);
    if (tg_settings_parse_yaml(ctx, "again", text, length, &again) != TG_OK) {
        fail_msg("%s", tg_context_error(ctx));
    }
    expect_equal(s, again);
    free(text);
    tg_settings_destroy(&s);
    tg_settings_destroy(&again);
}

/* Damaged files: any answer, but no crash and no leak. */
TEST(test_damage) {
    static const char good[] = "base: &b {lr: 1e-3, list: [1, 2]}\nopt:\n  <<: *b\n  name: \"x\"\n"
                               "  long: |\n    text\n    more\nfno:\n  - a\n  - [b, c]\n";
    uint64_t random = 11;
    for (int i = 0; i < 3000; i++) {
        unsigned char bytes[2 * sizeof good];
        memcpy(bytes, good, sizeof good);
        size_t size = test_corrupt(bytes, sizeof good - 1, sizeof bytes, &random);
        tg_settings *settings = NULL;
        tg_status status = tg_settings_parse_yaml(ctx, "t.yaml", bytes, size, &settings);
        assert_true(status == TG_OK || status == TG_E_CONFIG);
        tg_settings_destroy(&settings);
        assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, 1);
    }
}

static tg_status read_and_write(const char *path) {
    tg_settings *settings = NULL;
    tg_status status = tg_settings_read_yaml(ctx, path, &settings);
    if (status == TG_OK) {
        status = tg_settings_set(settings, "new.key", "[1,2]", "command line");
    }
    if (status == TG_OK) {
        status = tg_settings_write_yaml(ctx, path, settings);
    }
    tg_settings_destroy(&settings);
    return status;
}

TEST(test_no_memory) {
    static const char text[] = "a: {<<: &x {c: 1}, b: [1, 2]}\nd: *x\n";
    const char *path = test_path("memory.yaml");
    test_walk walk = {.ctx = ctx};
    while (test_walk_next(&walk)) {
        test_write_bytes(path, text, sizeof text - 1);
        test_walk_called(&walk, read_and_write(path));
    }
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
