/* docs/optimizers.md has every method with what it keeps, and every setting of optimizers and
 * schedules with its default: a row "| `key` | `default` |" each, and no row for a key that does
 * not exist. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optim/optim.h"
#include "support/cmocka.h"
#include "tgrad/tgrad.h"

static char *page;

static int read_page(void **state) {
    (void)state;
    enum { LIMIT = 1 << 20 };
    FILE *file = fopen(TG_FIXTURES "/../../docs/optimizers.md", "rb");
    assert_non_null(file);
    page = calloc(LIMIT + 1, 1);
    assert_non_null(page);
    assert_true(fread(page, 1, LIMIT, file) > 0);
    fclose(file);
    return 0;
}

static int free_page(void **state) {
    (void)state;
    free(page);
    return 0;
}

static void expect_row(const char *key, const char *fallback) {
    char row[256];
    snprintf(row, sizeof row, "\n| `%s` | `%s` | ", key, fallback);
    if (!strstr(page, row)) {
        fail_msg("docs/optimizers.md has no row%s", row);
    }
}

TEST(every_method_has_its_row) {
    const tg_optim_method *method = NULL;
    for (int i = 0; (method = tg_optim_get_method(i)); i++) {
        tg_optim_config config = tg_optim_config_default();
        char row[256];
        snprintf(row, sizeof row, "\n| `%s` | %s | ", method->name, method->summary);
        if (!strstr(page, row)) {
            fail_msg("docs/optimizers.md has no row%s", row);
        }
        assert_int_equal(tg_optim_config_set(NULL, &config, "name", method->name), TG_OK);
        assert_int_equal(config.is_projected, method->is_projected);
        assert_int_equal(config.projector.scheme, method->scheme);
        assert_int_equal(config.projector.first.type, method->first);
    }
    assert_null(tg_optim_get_method(-1));
}

TEST(every_setting_has_its_row) {
    const tg_optim_config config = tg_optim_config_default();
    char text[256];
    for (int i = 0; i < tg_optim_config_count(); i++) {
        expect_row(tg_optim_config_key(i), tg_optim_config_get(&config, i, text, sizeof text));
    }
}

TEST(every_schedule_setting_has_its_row) {
    const tg_lr_schedule_config config = tg_lr_schedule_config_default();
    char text[256];
    for (int i = 0; i < tg_lr_schedule_config_count(); i++) {
        const tg_setting *row = &tg_lr_schedule_config_rows()[i];
        expect_row(row->key, tg_setting_get(row, &config, text, sizeof text));
    }
}

/* Rows of three columns with a default in the second are the settings' only. */
TEST(no_row_without_a_setting) {
    int rows = 0;
    for (const char *at = page; (at = strstr(at, "\n| `")) != NULL; at++) {
        const char *second = strstr(at, "` | `"), *end = strchr(at + 1, '\n');
        rows += second && end && second < end;
    }
    assert_int_equal(rows, tg_optim_config_count() + tg_lr_schedule_config_count());
}

int main(void) {
    return t_run_tests(read_page, free_page);
}
