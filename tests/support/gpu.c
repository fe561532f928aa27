/* See gpu.h. */
#include "support/gpu.h"

#include <stdio.h>
#include <string.h>

#include "support/picks.h"

static tg_context *contexts[2];
static tg_backend *oracle, *device;

typedef void (*script_fn)(t_side *s, const void *what);

/* Parts to pick (picks.h) keep their names where a list of shapes becomes longer: they are counted
 * for each script of a group of tests. */
typedef struct script_calls {
    script_fn script;
    int calls;
} script_calls;

static script_calls scripts[16];
static int script_count, group;

bool t_gpu_here(void) {
    tg_backend_info info = {0};
    for (int i = 0; i < tg_backend_count(); i++) {
        if (tg_backend_describe(NULL, i, &info) == TG_OK && strcmp(info.name, "cuda") == 0) {
            break;
        }
    }
    if (!info.available) {
        print_message("skipped: no GPU here: %s\n", info.reason);
    }
    return info.available;
}

static int begin(tg_math math) {
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 1, .math = math};
    const bool is_open = tg_context_create(&config, &contexts[0]) == TG_OK &&
                         tg_context_create(&config, &contexts[1]) == TG_OK &&
                         tg_backend_open(contexts[0], "cpu", &oracle) == TG_OK &&
                         tg_backend_open(contexts[1], "cuda", &device) == TG_OK;
    script_count = 0;
    group++;
    return is_open ? 0 : -1;
}

int t_gpu_begin(void **state) {
    (void)state;
    return begin(TG_MATH_TF32);
}

int t_gpu_begin_fp32(void **state) {
    (void)state;
    return begin(TG_MATH_FP32);
}

int t_gpu_end(void **state) {
    (void)state;
    tg_backend_close(&oracle);
    tg_backend_close(&device);
    tg_context_destroy(&contexts[0]);
    tg_context_destroy(&contexts[1]);
    return 0;
}

static bool is_picked(script_fn script) {
    char name[32];
    int i = 0;
    while (i < script_count && scripts[i].script != script) {
        i++;
    }
    assert_in_range(i, 0, sizeof scripts / sizeof scripts[0] - 1);
    if (i == script_count) {
        scripts[script_count++] = (script_calls){.script = script};
    }
    snprintf(name, sizeof name, "gpu-%d-%d", group, i);
    return t_runs_part(name, scripts[i].calls++);
}

void t_gpu_compare(tg_dtype dtype, script_fn script, const void *what) {
    t_side sides[3];
    if (!is_picked(script)) {
        return;
    }
    if (t_runs_once()) {
        t_side_begin(&sides[0], device, dtype);
        script(&sides[0], what);
        t_release(&sides[0]);
        t_side_end(&sides[0]);
        return;
    }
    for (int i = 0; i < 3; i++) {
        t_side_begin(&sides[i], i == 0 ? oracle : device, dtype);
        script(&sides[i], what);
        t_release(&sides[i]);
    }
    t_compare_sides(&sides[1], &sides[0], false);
    t_compare_sides(&sides[2], &sides[1], true);
    for (int i = 0; i < 3; i++) {
        t_side_end(&sides[i]);
    }
}
