/* The making of the runs: settings that differ, settings in common, files and commands. */
#include <stdlib.h>
#include <string.h>

#include "common/output.h"
#include "report.h"

/* Pairs of key and text that the runs have: their settings, or the metadata of their test data. */
typedef struct source {
    const char *title, *shared, *single; /* of the tables: differing, common to several, of one */
    json_t *pairs[CLI_REPORT_RUNS];      /* by run; NULL: not known */
    int known;                           /* of the runs */
} source;

static source settings_of(const cli_report *report) {
    source from = {.title = "What differs between the runs",
                   .shared = "Settings that all runs share",
                   .single = "Every setting"};
    for (int i = 0; i < report->count; i++) {
        const tg_settings *settings = report->run[i].settings;
        from.pairs[i] = settings ? cli_json_object() : NULL;
        from.known += settings != NULL;
        for (int64_t k = 0; settings && k < tg_settings_count(settings); k++) {
            cli_json_set(from.pairs[i], tg_settings_key(settings, k),
                         cli_json_text(tg_settings_value(settings, k)));
        }
    }
    return from;
}

static source test_data_of(const cli_report *report) {
    source from = {.title = "What differs between their test data",
                   .shared = "Metadata of the test data that all runs share",
                   .single = "Metadata of the test data"};
    const size_t length = strlen(CLI_TEST_DATA);
    for (int i = 0; i < report->count; i++) {
        const tg_archive *samples = report->run[i].samples;
        from.pairs[i] = samples ? cli_json_object() : NULL;
        from.known += samples != NULL;
        for (int64_t k = 0; samples && k < tg_archive_meta_count(samples); k++) {
            const char *key = tg_archive_meta_key(samples, k);
            if (strncmp(key, CLI_TEST_DATA, length) == 0) {
                cli_json_set(from.pairs[i], key + length,
                             cli_json_text(tg_archive_meta_value(samples, k)));
            }
        }
    }
    return from;
}

/* Whether the value of a key is the same in every run that is known. */
static bool is_common(const cli_report *report, const source *from, const char *key) {
    const json_t *first = NULL;
    bool has_first = false;
    for (int i = 0; i < report->count; i++) {
        const json_t *value = json_object_get(from->pairs[i], key);
        if (from->pairs[i] && has_first && value != first && !json_equal(value, first)) {
            return false;
        }
        first = from->pairs[i] ? value : first;
        has_first = has_first || from->pairs[i];
    }
    return true;
}

/* A key with its value in every run, or the only one. */
static void add_row(cli_html *page, const cli_report *report, const source *from, const char *key,
                    bool common) {
    cli_html_add(page, "<tr><th scope=\"row\"><code>%s</code></th>", key);
    for (int i = 0, added = 0; i < report->count && !(common && added); i++) {
        const char *value = json_string_value(json_object_get(from->pairs[i], key));
        if (value) {
            cli_html_add(page, "<td><code>%s</code></td>", value);
            added++;
        } else if (!common) {
            cli_html_add(page, "<td>\xE2\x80\x93</td>");
        }
    }
    cli_html_add(page, "</tr>\n");
}

/* The rows of keys that differ or are common; returns how many. */
static int add_rows(cli_html *page, const cli_report *report, const source *from, bool common) {
    int rows = 0;
    for (int i = 0; i < report->count; i++) {
        const char *key;
        json_t *value;
        json_object_foreach(from->pairs[i], key, value) {
            bool is_shown = is_common(report, from, key) != common;
            for (int before = 0; before < i && !is_shown; before++) {
                is_shown = json_object_get(from->pairs[before], key);
            }
            if (!is_shown) {
                add_row(page, report, from, key, common);
                rows++;
            }
        }
    }
    return rows;
}

/* Tables of what differs between the runs and of what they share, and the end of `from`; returns
 * how many settings differ. */
static int add_tables(cli_html *page, const cli_report *report, source *from) {
    CLI_OWNED(cli_bytes_free) cli_html different = {0};
    CLI_OWNED(cli_bytes_free) cli_html common = {0};
    const int differ = add_rows(&different, report, from, false);
    const int shared = add_rows(&common, report, from, true);
    if (differ > 0) {
        cli_html_add(page, "<h3>%s</h3>\n", from->title);
        cli_report_open_table(page, "Table of settings that differ", "settings", "Setting");
        cli_report_columns(page, report);
        cli_html_join(page, &different);
        cli_report_close_table(page);
    }
    if (shared > 0) {
        cli_html_add(page, "<details><summary>%s (%d)</summary>",
                     from->known > 1 ? from->shared : from->single, shared);
        cli_report_open_table(page, "Table of settings", "settings", "Setting|Value");
        cli_report_begin_rows(page);
        cli_html_join(page, &common);
        cli_report_close_table(page);
        cli_html_add(page, "</details>\n");
    }
    for (int i = 0; i < report->count; i++) {
        json_decref(from->pairs[i]);
    }
    return differ;
}

void cli_report_settings(cli_html *page, const cli_report *report) {
    CLI_OWNED(cli_bytes_free) cli_html tables = {0};
    source settings = settings_of(report), test_data = test_data_of(report);
    const int known = settings.known, differ = add_tables(&tables, report, &settings);
    add_tables(&tables, report, &test_data);
    if (known > 0) {
        cli_html_add(page, "<section id=\"settings\"><h2>Settings</h2>\n");
        if (known > 1 && differ == 0) {
            cli_html_add(page, "<p>The runs have the same settings.</p>\n");
        }
        cli_html_join(page, &tables);
        cli_html_add(page, "</section>\n");
    }
}

/* ---- how it was made ---- */

void cli_report_making(cli_html *page, const cli_report *report) {
    const tg_build_info build = tg_build();
    cli_html_add(page, "<section id=\"making\"><h2>How this was made</h2>\n<pre><code>%s\n",
                 report->command);
    for (int i = 0; i < report->count; i++) {
        if (report->run[i].settings) {
            CLI_FREED char *folder = cli_shell_word(report->run[i].path);
            cli_html_add(page, "tgrad train %s/config.yaml --run NEW_FOLDER\n", folder);
        }
    }
    cli_html_add(page,
                 "</code></pre>\n<p class=\"note\">The first line makes this page again, the "
                 "others train the same runs again. Made by tgrad %s (%s, %s).</p>\n<ul "
                 "class=\"files\">",
                 build.version, build.compiler, build.build_type);
    for (int i = 0; i < report->count; i++) {
        const cli_run *run = &report->run[i];
        cli_html_add(page, "<li>");
        cli_report_badge(page, report, i);
        cli_html_add(page,
                     "<code>%s</code>: %d epochs in metrics.jsonl, last written %s%s%s%s"
                     "</li>\n",
                     run->path, run->count, run->written,
                     run->is_cut ? "; its last line was not complete and is left out" : "",
                     run->settings ? "" : "; no config.yaml",
                     run->samples ? "" : "; no samples.safetensors");
    }
    cli_html_add(page, "</ul></section>\n");
}
