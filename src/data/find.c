/* Names: of grids, which file holds a set, and which time a setting means. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/context.h"
#include "tgrad/data.h"

const char *tg_grid_text(int n_dim, const int64_t *points, char text[TG_GRID_TEXT]) {
    bool is_square = true;
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

tg_status tg_data_find(tg_context *ctx, const char *root, const char *set, const char *part,
                       int64_t resolution, char *path, size_t capacity) {
    static const char *const endings[] = {".h5", ".hdf5", ".safetensors", "_x.npy"};
    enum { ENDINGS = sizeof endings / sizeof endings[0] };
    const char *folder = root && *root ? root : ".";
    const char *slash = folder[strlen(folder) - 1] == '/' ? "" : "/";
    for (int i = 0; i < ENDINGS; i++) {
        struct stat info;
        const int length = snprintf(path, capacity, "%s%s%s_%s_%" PRId64 "%s", folder, slash, set,
                                    part, resolution, endings[i]);
        if (length < 0 || (size_t)length >= capacity) {
            return tg_fail(ctx, TG_E_ARGUMENT, "%.200s: the path of the set '%.64s' is too long",
                           folder, set);
        }
        if (stat(path, &info) == 0) {
            return TG_OK;
        }
    }
    snprintf(path, capacity, "%s%s%s_%s_%" PRId64 "%s", folder, slash, set, part, resolution,
             endings[0]);
    return tg_fail(ctx, TG_E_IO,
                   "%s: there is no such file (nor one that ends in .hdf5, .safetensors or _x.npy)",
                   path);
}
