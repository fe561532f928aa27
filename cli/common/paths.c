#include "paths.h"

#include <stdlib.h>
#include <string.h>

#include "text.h"

/* Reports of the library: mark, op, sizes, path and kernels, separated by tabs. */
static const char mark[] = "path\t";

static cli_paths *collected;

static bool is_known(const cli_path *path) {
    for (int i = 0; i < collected->count; i++) {
        const cli_path *known = &collected->path[i];
        if (strcmp(known->op, path->op) == 0 && strcmp(known->sizes, path->sizes) == 0 &&
            strcmp(known->name, path->name) == 0) {
            return true;
        }
    }
    return false;
}

static void collect(void *user, tg_log_level level, const char *message) {
    if (strncmp(message, mark, sizeof mark - 1) != 0) {
        if (level >= TG_LOG_INFO) {
            cli_log(user, level, message);
        }
        return;
    }
    char *copy = cli_need(strdup(message + sizeof mark - 1)), *rest = NULL;
    cli_path path = {.op = strtok_r(copy, "\t", &rest)};
    path.sizes = strtok_r(NULL, "\t", &rest);
    path.name = strtok_r(NULL, "\t", &rest);
    path.kernels = strtok_r(NULL, "\t", &rest);
    if (!path.kernels || is_known(&path)) {
        free(copy);
        return;
    }
    const size_t bytes = ((size_t)collected->count + 1) * sizeof *collected->path;
    collected->path = cli_need(realloc(collected->path, bytes));
    collected->path[collected->count++] = path;
}

void cli_paths_collect(cli_paths *out) {
    collected = out;
    cli_listen(out ? collect : NULL);
}

void cli_paths_print(const cli_paths *paths) {
    cli_table table = cli_table_of("op|sizes|path|kernels");
    for (int i = 0; i < paths->count; i++) {
        cli_table_cell(&table, "%s", paths->path[i].op);
        cli_table_cell(&table, "%s", paths->path[i].sizes);
        cli_table_cell(&table, "%s", paths->path[i].name);
        cli_table_cell(&table, "%s", paths->path[i].kernels);
    }
    cli_table_print(&table, stdout);
}

json_t *cli_paths_json(const cli_paths *paths) {
    json_t *list = cli_json_array();
    for (int i = 0; i < paths->count; i++) {
        json_t *object = cli_json_object();
        cli_json_set(object, "op", cli_json_text(paths->path[i].op));
        cli_json_set(object, "sizes", cli_json_text(paths->path[i].sizes));
        cli_json_set(object, "path", cli_json_text(paths->path[i].name));
        cli_json_set(object, "kernels", cli_json_text(paths->path[i].kernels));
        cli_json_append(list, object);
    }
    return list;
}

void cli_paths_free(cli_paths *paths) {
    for (int i = 0; i < paths->count; i++) {
        free(paths->path[i].op);
    }
    free(paths->path);
    *paths = (cli_paths){0};
}
