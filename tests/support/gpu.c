/* See gpu.h. */
#include "support/gpu.h"

#include <stdio.h>
#include <string.h>

#include "backend/path.h"
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

/* The ops and paths that the GPU reported, "op\tpath\n" each. */
static char taken[4096];

static void note_path(void *user, tg_log_level level, const char *message) {
    char op[64], path[64], line[132];
    (void)user, (void)level;
    if (sscanf(message, TG_PATH_MARK "%63[^\t]\t%*[^\t]\t%63[^\t]", op, path) == 2) {
        snprintf(line, sizeof line, "%s\t%s\n", op, path);
        if (!strstr(taken, line)) {
            assert_true(strlen(taken) + strlen(line) < sizeof taken);
            strcat(taken, line);
        }
    }
}

bool t_gpu_took(const char *op, const char *path) {
    char line[132];
    snprintf(line, sizeof line, "%s\t%s\n", op, path);
    return strstr(taken, line) != NULL;
}

static bool is_hopper;

bool t_gpu_is_hopper(void) {
    return is_hopper;
}

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
    is_hopper = info.available && strstr(info.device, "compute capability 9.0");
    return info.available;
}

static int begin(tg_math math) {
    tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 1, .math = math};
    bool is_open = tg_context_create(&config, &contexts[0]) == TG_OK;
    config.log = note_path;
    config.log_level = TG_LOG_DEBUG;
    taken[0] = '\0';
    is_open = is_open && tg_context_create(&config, &contexts[1]) == TG_OK &&
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
