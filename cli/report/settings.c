/* The making of the runs: settings that differ, settings in common, files and commands. */
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* Pairs of key and value that a run has: its settings, or the metadata of its test data. */
typedef struct source {
    const char *title, *shared, *single;  /* of the tables: differing, common to several, of one */
    int64_t (*count)(const cli_run *run); /* -1: not known */
    const char *(*key)(const cli_run *run, int64_t index); /* NULL: not of this source */
    const char *(*value)(const cli_run *run, const char *key);
} source;

static int64_t count_settings(const cli_run *run) {
    return run->settings ? tg_settings_count(run->settings) : -1;
}

static const char *setting_key(const cli_run *run, int64_t index) {
    return tg_settings_key(run->settings, index);
}

static int64_t count_test_data(const cli_run *run) {
    return run->samples ? tg_archive_meta_count(run->samples) : -1;
}

static const char *test_data_key(const cli_run *run, int64_t index) {
    const char *key = tg_archive_meta_key(run->samples, index);
    const size_t length = strlen(CLI_TEST_DATA);
    return strncmp(key, CLI_TEST_DATA, length) == 0 ? key + length : NULL;
}

static const source settings = {"What differs between the runs",
                                "Settings that all runs share",
                                "Every setting",
                                count_settings,
                                setting_key,
                                cli_run_setting};
static const source test_data = {"What differs between their test data",
                                 "Metadata of the test data that all runs share",
                                 "Metadata of the test data",
                                 count_test_data,
                                 test_data_key,
                                 cli_run_test_data};

/* Whether the value of a key is the same in every run that is known. */
static bool is_common(const cli_report *report, const source *from, const char *key) {
    const char *first = NULL;
    bool has_first = false;
    for (int i = 0; i < report->count; i++) {
        if (from->count(&report->run[i]) < 0) {
            continue;
        }
        const char *value = from->value(&report->run[i], key);
        if (has_first && (!first != !value || (first && strcmp(first, value) != 0))) {
            return false;
        }
        first = value;
        has_first = true;
    }
    return true;
}

/* Whether an earlier run has the key too, so that it is shown already. */
static bool is_shown(const cli_report *report, const source *from, int index, const char *key) {
    for (int i = 0; i < index; i++) {
        if (from->value(&report->run[i], key)) {
            return true;
        }
    }
    return false;
}

static void add_row(cli_html *page, const cli_report *report, const source *from, const char *key,
                    bool common) {
    cli_html_add(page, "<tr><th scope=\"row\"><code>%s</code></th>", key);
    for (int i = 0; i < report->count; i++) {
        const char *value = from->value(&report->run[i], key);
        if (value) {
            cli_html_add(page, "<td><code>%s</code></td>", value);
        } else if (!common) {
            cli_html_add(page, "<td>\xE2\x80\x93</td>");
        }
        if (value && common) {
            break;
        }
    }
    cli_html_add(page, "</tr>\n");
}

/* The rows of one of the two tables; returns how many. With page NULL they are only counted. */
static int add_rows(cli_html *page, const cli_report *report, const source *from, bool common) {
    int rows = 0;
    for (int i = 0; i < report->count; i++) {
        for (int64_t k = 0; k < from->count(&report->run[i]); k++) {
            const char *key = from->key(&report->run[i], k);
            if (key && !is_shown(report, from, i, key) && is_common(report, from, key) == common) {
                rows++;
                if (page) {
                    add_row(page, report, from, key, common);
                }
            }
        }
    }
    return rows;
}

static void add_differences(cli_html *page, const cli_report *report, const source *from) {
    if (add_rows(NULL, report, from, false) == 0) {
        return;
    }
    cli_html_add(page, "<h3>%s</h3>\n", from->title);
    cli_report_open_table(page, "Table of settings that differ", "settings", "Setting");
    cli_report_columns(page, report);
    add_rows(page, report, from, false);
    cli_report_close_table(page);
}

static void add_common(cli_html *page, const cli_report *report, const source *from, int known) {
    const int common = add_rows(NULL, report, from, true);
    if (common > 0) {
        cli_html_add(page, "<details><summary>%s (%d)</summary>",
                     known > 1 ? from->shared : from->single, common);
        cli_report_open_table(page, "Table of settings", "settings", "Setting|Value");
        cli_report_begin_rows(page);
        add_rows(page, report, from, true);
        cli_report_close_table(page);
        cli_html_add(page, "</details>\n");
    }
}

static int count_known(const cli_report *report, const source *from) {
    int known = 0;
    for (int i = 0; i < report->count; i++) {
        known += from->count(&report->run[i]) >= 0;
    }
    return known;
}

void cli_report_settings(cli_html *page, const cli_report *report) {
    const int known = count_known(report, &settings);
    if (known > 0) {
        cli_html_add(page, "<section id=\"settings\"><h2>Settings</h2>\n");
        if (known > 1 && add_rows(NULL, report, &settings, false) == 0) {
            cli_html_add(page, "<p>The runs have the same settings.</p>\n");
        }
        add_differences(page, report, &settings);
        add_common(page, report, &settings, known);
        add_differences(page, report, &test_data);
        add_common(page, report, &test_data, count_known(report, &test_data));
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
            char *folder = cli_shell_word(report->run[i].path);
            cli_html_add(page, "tgrad train %s/config.yaml --run NEW_FOLDER\n", folder);
            free(folder);
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
