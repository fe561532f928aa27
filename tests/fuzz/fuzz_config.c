/* Any text as a setting: line 1 is a number that chooses the table, line 2 the key, the rest the
 * value. An error, or a config whose every value reads back from its text to the same text. */
#include <stdio.h>
#include <string.h>

#include "data/dataset.h"
#include "fuzz.h"
#include "nn/config.h"
#include "optim/loss_scale.h"
#include "optim/optim.h"

enum { TEXT = 512 };

typedef struct configs {
    tg_fno_config fno;
    tg_optim_config optim;
    tg_lr_schedule_config schedule;
} configs;

typedef tg_status (*setter)(configs *c, const char *key, const char *text);
typedef const char *(*getter)(const configs *c, int index, char *text);

static tg_status set_fno(configs *c, const char *key, const char *text) {
    return tg_fno_config_set(fuzz_context(), &c->fno, key, text);
}

static tg_status set_optim(configs *c, const char *key, const char *text) {
    return tg_optim_config_set(fuzz_context(), &c->optim, key, text);
}

static tg_status set_schedule(configs *c, const char *key, const char *text) {
    return tg_setting_set(fuzz_context(), "opt", tg_lr_schedule_config_rows(),
                          tg_lr_schedule_config_count(), &c->schedule, key, text);
}

static const char *get_fno(const configs *c, int index, char *text) {
    return tg_fno_config_get(&c->fno, index, text, TEXT);
}

static const char *get_optim(const configs *c, int index, char *text) {
    return tg_optim_config_get(&c->optim, index, text, TEXT);
}

static const char *get_schedule(const configs *c, int index, char *text) {
    return tg_setting_get(&tg_lr_schedule_config_rows()[index], &c->schedule, text, TEXT);
}

static const char *schedule_key(int index) {
    const bool is_one = index >= 0 && index < tg_lr_schedule_config_count();
    return is_one ? tg_lr_schedule_config_rows()[index].key : NULL;
}

static const struct {
    setter set;
    getter get;
    const char *(*key)(int index);
    int (*count)(void);
} tables[] = {
    {set_fno, get_fno, tg_fno_config_key, tg_fno_config_count},
    {set_optim, get_optim, tg_optim_config_key, tg_optim_config_count},
    {set_schedule, get_schedule, schedule_key, tg_lr_schedule_config_count},
};
enum { TABLES = sizeof tables / sizeof tables[0] };

static void check_table(int table, const char *key, const char *text) {
    static char before[TEXT], after[TEXT];
    configs c = {tg_fno_config_default(), tg_optim_config_default(),
                 tg_lr_schedule_config_default()};
    if (tables[table].set(&c, key, text) != TG_OK) {
        fuzz_expect(*tg_context_error(fuzz_context()) != '\0');
        return;
    }
    for (int i = 0; i < tables[table].count(); i++) {
        const char *name = tables[table].key(i);
        fuzz_expect(tables[table].get(&c, i, before) != NULL);
        if (strcmp(name, key) == 0 && before[0]) {
            fuzz_expect(tables[table].set(&c, name, before) == TG_OK);
            fuzz_expect(tables[table].get(&c, i, after) != NULL);
            fuzz_expect(strcmp(before, after) == 0);
        }
    }
}

/* Settings that have no table. */
static void check_words(const char *key, const char *text) {
    tg_loss_config loss;
    tg_loss_scale_config scale = tg_loss_scale_config_default();
    int64_t time = 0;
    double bytes = 0.0;
    if (tg_loss_config_parse(fuzz_context(), key, text, &loss) == TG_OK) {
        fuzz_expect(loss.terms >= 1 && loss.terms <= TG_LOSS_MAX_TERMS);
    }
    if (tg_loss_scale_config_parse(fuzz_context(), key, text, true, &scale) == TG_OK) {
        fuzz_expect(scale.is_dynamic || scale.fixed > 0.0);
    }
    if (tg_time_parse(fuzz_context(), key, text, &time) == TG_OK) {
        fuzz_expect(time >= TG_TIME_ALL);
    }
    if (tg_bytes_parse(text, &bytes)) {
        fuzz_expect(bytes >= 0.0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char text[TEXT] = "";
    memcpy(text, bytes, size < TEXT ? size : TEXT - 1);
    char *key = strchr(text, '\n');
    char *value = key ? strchr(key + 1, '\n') : NULL;
    if (!value) {
        return 0;
    }
    *key++ = *value++ = '\0';
    const int table = (unsigned char)text[0] % (TABLES + 1);
    if (table < TABLES) {
        check_table(table, key, value);
    } else {
        check_words(key, value);
    }
    fuzz_expect_no_leak();
    return 0;
}
