/* Names: of grids, of the file of a set, and of the times in a setting. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/setting.h"
#include "data/dataset.h"

const char *tg_grid_text(int n_dim, const int64_t *points, char text[TG_GRID_TEXT]) {
    bool is_square = n_dim > 0;
    if (!points || !text) {
        return "";
    }
    for (int d = 1; d < n_dim; d++) {
        is_square = is_square && points[d] == points[0];
    }
    size_t used = 0;
    text[0] = '\0';
    for (int d = 0; d < (is_square ? 1 : n_dim) && used < TG_GRID_TEXT; d++) {
        const int wrote =
            snprintf(text + used, TG_GRID_TEXT - used, "%s%" PRId64, d ? "x" : "", points[d]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return text;
}

int tg_grid_parse(const char *text, int64_t points[TG_DATA_MAX_DIMS]) {
    static const tg_setting row = {
        .key = "grid", .type = TG_SETTING_GRID, .low = 1, .high = 1 << 20};
    tg_list_int list = {.count = 0};
    if (!text || !points || tg_setting_set(NULL, "data", &row, 1, &list, "grid", text) != TG_OK ||
        list.count > TG_DATA_MAX_DIMS) {
        return 0;
    }
    memcpy(points, list.value, (size_t)list.count * sizeof points[0]);
    return list.count;
}

tg_status tg_time_parse(tg_context *ctx, const char *key, const char *text, int64_t *y_time) {
    char *end = NULL;
    if (strcasecmp(text, "last") == 0) {
        *y_time = TG_TIME_LAST;
    } else if (strcasecmp(text, "all") == 0) {
        *y_time = TG_TIME_ALL;
    } else {
        const bool starts_well = text[0] >= '0' && text[0] <= '9';
        const long long index = starts_well ? strtoll(text, &end, 10) : -1;
        if (!starts_well || *end != '\0' || index > INT32_MAX) {
            return tg_fail(
                ctx, TG_E_CONFIG,
                "%s: expected last, all or the number of a time from 0 on, found '%.64s'", key,
                text);
        }
        *y_time = index;
    }
    return TG_OK;
}

static const char *const endings[] = {".h5", ".hdf5", ".safetensors", ".pt", ".npz", "_x.npy"};

enum { ENDINGS = sizeof endings / sizeof endings[0] };

/* The grid in "SET_PART_GRID.h5", or "" for other names. */
static void grid_of_name(const char *name, const char *prefix, char grid[TG_GRID_TEXT]) {
    const size_t skip = strlen(prefix);
    grid[0] = '\0';
    if (strncmp(name, prefix, skip) != 0) {
        return;
    }
    const size_t length = strspn(name + skip, "0123456789x");
    for (int i = 0; i < ENDINGS; i++) {
        if (length > 0 && length < TG_GRID_TEXT && strcmp(name + skip + length, endings[i]) == 0) {
            snprintf(grid, TG_GRID_TEXT, "%.*s", (int)length, name + skip);
        }
    }
}

/* The grid of a folder's files; an error unless there is exactly one. */
static tg_status only_grid(tg_context *ctx, const char *folder, const char *prefix,
                           char grid[TG_GRID_TEXT]) {
    char found[TG_GRID_TEXT], all[256] = "";
    int count = 0;
    DIR *listing = opendir(folder);
    grid[0] = '\0';
    for (const struct dirent *entry; listing && (entry = readdir(listing));) {
        grid_of_name(entry->d_name, prefix, found);
        if (found[0] && strcmp(found, grid) != 0) {
            const size_t used = strlen(all);
            snprintf(all + used, sizeof all - used, "%s%s", count++ ? ", " : "", found);
            snprintf(grid, TG_GRID_TEXT, "%s", found);
        }
    }
    if (listing) {
        closedir(listing);
    }
    if (count > 1) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "%s: there are files %.80s.. on several grids, %s: say which", folder,
                       prefix, all);
    }
    return count == 1 ? TG_OK
                      : tg_fail(ctx, TG_E_IO,
                                "%s: there is no file %.80s<grid>.h5 (nor one that ends "
                                "in .hdf5, .safetensors, .pt, .npz or _x.npy)",
                                folder, prefix);
}

tg_status tg_data_find(tg_context *ctx, const char *root, const char *set, const char *part,
                       const char *grid, char *path, size_t capacity) {
    const char *folder = root && *root ? root : ".";
    const char *slash = folder[strlen(folder) - 1] == '/' ? "" : "/";
    char prefix[192], only[TG_GRID_TEXT];
    snprintf(prefix, sizeof prefix, "%.128s_%.32s_", set, part);
    if (!grid) {
        TG_CALL(only_grid(ctx, folder, prefix, only));
        grid = only;
    }
    for (int i = 0; i <= ENDINGS; i++) { /* finally the first again, for the error */
        struct stat info;
        const int length = snprintf(path, capacity, "%s%s%s%s%s", folder, slash, prefix, grid,
                                    endings[i % ENDINGS]);
        if (length < 0 || (size_t)length >= capacity) {
            return tg_fail(ctx, TG_E_ARGUMENT, "%.200s: the path of the set '%.64s' is too long",
                           folder, set);
        }
        if (stat(path, &info) == 0) {
            return TG_OK;
        }
    }
    return tg_fail(ctx, TG_E_IO,
                   "%s: there is no such file (nor one that ends in .hdf5, .safetensors, .pt, .npz "
                   "or _x.npy)",
                   path);
}
