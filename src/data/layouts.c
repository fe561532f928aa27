/* Detects the layout of a file by the names and shapes of its arrays. N samples or trajectories, T
 * times:
 *
 *   well       t0_fields/NAME (N, T, grid..), t1_fields/NAME (.., d), t2_fields/NAME (.., d, d)
 *   pdebench   tensor (N, T, grid..); nu (N, grid..) beside tensor: pairs; or several fields
 *              (N, T, grid..) beside x-coordinate; or velocity (N, T, grid.., d)
 *   numbered   0000/data (T, grid.., channels), 0001/data, .. (PDEBench's third kind)
 *   pdearena   train/NAME, valid/NAME or test/NAME (N, T, grid..)
 *   matlab     a (N, grid..) and u (N, grid..), or u (N, grid.., T) alone, dimensions reversed
 *   trajectory the arrays that data.fields names, (N, T, grid..) or with channels
 *   pairs      x and y, see dataset_layout.c */
#include "data/dataset.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "io/file.h"
#include "io/name_index.h"

const tg_choice tg_layout_choices[] = {{"auto", TG_LAYOUT_AUTO},
                                       {"pairs", TG_LAYOUT_PAIRS},
                                       {"trajectory", TG_LAYOUT_TRAJECTORY},
                                       {"well", TG_LAYOUT_WELL},
                                       {"pdebench", TG_LAYOUT_PDEBENCH},
                                       {"numbered", TG_LAYOUT_NUMBERED},
                                       {"pdearena", TG_LAYOUT_PDEARENA},
                                       {"matlab", TG_LAYOUT_MATLAB},
                                       {NULL, 0}};

enum { KINDS = sizeof tg_layout_choices / sizeof tg_layout_choices[0] - 1 };

const char *tg_layout_name(tg_layout_kind kind) {
    return (unsigned)kind < KINDS ? tg_layout_choices[kind].name : "unknown";
}

/* ---- contents of the file ---- */

typedef struct listing {
    tg_context *ctx;
    const char *path;
    tg_h5 *file;
    const char *group; /* of the config, or "" */
} listing;

static int64_t count_of(const listing *l) {
    return tg_h5_count(l->file);
}

static const char *name_of(const listing *l, int64_t index) {
    return tg_h5_name(l->file, index);
}

/* The shape of an array; ndim 0 if it cannot be read. */
static tg_shape shape_of(const listing *l, const char *name) {
    tg_dtype dtype;
    tg_shape shape = {0};
    return tg_h5_describe(l->file, name, &dtype, &shape) == TG_OK ? shape : (tg_shape){0};
}

static bool has(const listing *l, const char *name) {
    bool found = false;
    for (int64_t i = 0; i < count_of(l) && !found; i++) {
        found = strcmp(name_of(l, i), name) == 0;
    }
    return found;
}

static bool starts(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* Adds a field unless its name is too long or there are too many, which is an error. */
static tg_status add_field(const listing *l, tg_layout *out, const char *name) {
    char quoted[TG_QUOTE];
    if (out->count == TG_MAX_FIELDS || strlen(name) >= TG_FIELD_NAME) {
        return tg_fail(l->ctx, TG_E_CONFIG,
                       "%s: more than %d fields, or a long name '%s': data.fields says which to "
                       "use",
                       l->path, TG_MAX_FIELDS, tg_quote(name, quoted));
    }
    tg_field *field = &out->fields[out->count++];
    snprintf(field->name, sizeof field->name, "%s", name);
    return TG_OK;
}

void tg_field_take_range(tg_field *field) {
    char *colon = strrchr(field->name, ':');
    int64_t first = 0, last = 0;
    int used = 0, more = 0;
    if (!colon || colon[1] == '-' || sscanf(colon, ":%9" SCNd64 "%n", &first, &used) < 1) {
        return;
    }
    last = first;
    if (colon[used] == '-' && sscanf(colon + used + 1, "%9" SCNd64 "%n", &last, &more) == 1) {
        used += 1 + more;
    }
    if (colon[used] == '\0' && first >= 0 && last >= first) {
        field->first = first;
        field->count = last - first + 1;
        *colon = '\0';
    }
}

/* ---- the layouts ---- */

/* The tensor rank of a field of The Well by its group; -1: not a field. */
static int well_rank(const char *name) {
    static const char *const groups[] = {"t0_fields/", "t1_fields/", "t2_fields/"};
    for (int rank = 0; rank < 3; rank++) {
        if (starts(name, groups[rank])) {
            return rank;
        }
    }
    return -1;
}

/* Fields that vary with sample, time and all of space; others (constant in time, or the same for
 * all samples) have fewer dimensions and are skipped. */
static tg_status find_well(const listing *l, tg_layout *out) {
    for (int64_t i = 0; i < count_of(l); i++) {
        const int rank = well_rank(name_of(l, i));
        const int n_dim = rank < 0 ? 0 : shape_of(l, name_of(l, i)).ndim - 2 - rank;
        out->n_dim = n_dim > out->n_dim ? n_dim : out->n_dim;
    }
    for (int rank = 0; rank < 3; rank++) {
        for (int64_t i = 0; i < count_of(l); i++) {
            const char *name = name_of(l, i);
            if (well_rank(name) != rank) {
                continue;
            }
            if (shape_of(l, name).ndim - 2 - rank == out->n_dim) {
                TG_CALL(add_field(l, out, name));
            } else {
                tg_log(l->ctx, TG_LOG_INFO,
                       "%s: '%s' does not vary with sample, time and space "
                       "and is left out",
                       l->path, name);
            }
        }
    }
    out->channels_last = true;
    return TG_OK;
}

/* Every array below `prefix` with the shape of the largest one. */
static tg_status add_alike(const listing *l, const char *prefix, tg_layout *out) {
    tg_shape largest = {0};
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < count_of(l); i++) {
            const char *name = name_of(l, i);
            const tg_shape shape = shape_of(l, name);
            const bool is_below = starts(name, prefix) && !strchr(name + strlen(prefix), '/');
            if (!is_below || shape.ndim < 3) {
                continue;
            }
            if (pass == 0 && tg_shape_numel(&shape) > tg_shape_numel(&largest)) {
                largest = shape;
            }
            if (pass == 1 && tg_shape_equal(&shape, &largest)) {
                TG_CALL(add_field(l, out, name));
            }
        }
        largest.ndim = pass == 0 && largest.ndim == 0 ? -1 : largest.ndim;
    }
    out->n_dim = largest.ndim - 2;
    return TG_OK;
}

static tg_status find_pdebench(const listing *l, bool x_only, tg_layout *out) {
    if (has(l, "nu") && (x_only || has(l, "tensor"))) { /* Darcy flow: coefficient and solution */
        out->is_trajectory = false;
        TG_CALL(add_field(l, out, "nu"));
        TG_CALL(x_only ? TG_OK : add_field(l, out, "tensor"));
        out->n_dim = shape_of(l, "nu").ndim - 1;
    } else if (has(l, "tensor")) {
        TG_CALL(add_field(l, out, "tensor"));
        out->n_dim = shape_of(l, "tensor").ndim - 2;
    } else if (has(l, "velocity")) { /* incompressible flow: components after the grid */
        TG_CALL(add_field(l, out, "velocity"));
        TG_CALL(has(l, "particles") ? add_field(l, out, "particles") : TG_OK);
        out->n_dim = shape_of(l, "velocity").ndim - 3;
        out->channels_last = true;
    } else {
        TG_CALL(add_alike(l, "", out));
    }
    return TG_OK;
}

static bool is_numbered(const char *name) {
    const size_t digits = strspn(name, "0123456789");
    return digits > 0 && strcmp(name + digits, "/data") == 0;
}

static tg_status find_numbered(const listing *l, tg_layout *out) {
    for (int64_t i = 0; i < count_of(l) && out->count == 0; i++) {
        if (is_numbered(name_of(l, i))) {
            TG_CALL(add_field(l, out, "data"));
            out->n_dim = shape_of(l, name_of(l, i)).ndim - 2;
        }
    }
    out->form.is_numbered = true;
    out->channels_last = true;
    return TG_OK;
}

/* The group of a PDEArena file: the configured one, or the only one of the three. */
static tg_status find_pdearena(const listing *l, tg_layout *out) {
    static const char *const groups[] = {"train", "valid", "test"};
    const char *group = l->group;
    char prefix[TG_FIELD_NAME];
    int found = 0;
    for (int g = 0; g < 3 && !l->group[0]; g++) {
        bool is_there = false;
        snprintf(prefix, sizeof prefix, "%s/", groups[g]);
        for (int64_t i = 0; i < count_of(l); i++) {
            is_there = is_there || starts(name_of(l, i), prefix);
        }
        group = is_there ? groups[g] : group;
        found += is_there;
    }
    if (found > 1) {
        return tg_fail(l->ctx, TG_E_CONFIG,
                       "%s: it has several of the groups train, valid and test: data.group says "
                       "which to use",
                       l->path);
    }
    snprintf(prefix, sizeof prefix, "%s/", group);
    return add_alike(l, prefix, out);
}

/* u (N, grid.., T) alone is a trajectory; a or coeff (N, grid..) with u or sol are pairs, also on
 * their own if only x is needed. a (N, grid..) with u (N, grid.., T) is the x of pairs if pairs are
 * requested, otherwise it is skipped. */
static tg_status find_matlab(const listing *l, const tg_dataset_config *config, tg_layout *out) {
    const char *const names[][2] = {{config->x_name, config->y_name}, {"a", "u"}, {"coeff", "sol"}};
    for (int i = 0; i < 3 && out->count == 0; i++) {
        const char *x = names[i][0] ? names[i][0] : "x", *y = names[i][1] ? names[i][1] : "y";
        const bool has_x = has(l, x);
        const bool has_y = has(l, y) && !(has_x && config->x_only && config->is_pairs);
        if (has_y ? !has_x && strcmp(y, "u") != 0 : !has_x || !config->x_only) {
            continue;
        }
        const int x_ndim = shape_of(l, x).ndim, y_ndim = has_y ? shape_of(l, y).ndim : 0;
        out->is_trajectory = y_ndim == x_ndim + 1 || x_ndim == 0;
        out->form.is_time_last = out->is_trajectory;
        out->n_dim = out->is_trajectory ? y_ndim - 2 : (has_y ? y_ndim : x_ndim) - 1;
        TG_CALL(out->is_trajectory ? TG_OK : add_field(l, out, x));
        TG_CALL(has_y ? add_field(l, out, y) : TG_OK);
    }
    return TG_OK;
}

/* The arrays of data.fields, "density, Vx, Vy", in their order. */
static tg_status find_named(const listing *l, const tg_dataset_config *config, tg_layout *out) {
    const char *at = config->fields ? config->fields : "";
    out->channels_last = config->channels_last;
    while (*at) {
        char name[TG_FIELD_NAME];
        at += strspn(at, " ,[]");
        const size_t length = strcspn(at, ",[]");
        snprintf(name, sizeof name, "%s%s%.*s", l->group, l->group[0] ? "/" : "",
                 (int)(length < 200 ? length : 200), at);
        at += length;
        for (size_t end = strlen(name); end > 0 && name[end - 1] == ' '; end--) {
            name[end - 1] = '\0';
        }
        if (length > 0) {
            TG_CALL(add_field(l, out, name));
            tg_field_take_range(&out->fields[out->count - 1]);
        }
    }
    return TG_OK;
}

/* ---- choosing ---- */

static tg_layout_kind guess(const listing *l) {
    for (int64_t i = 0; i < count_of(l); i++) {
        const char *name = name_of(l, i);
        if (well_rank(name) >= 0) {
            return TG_LAYOUT_WELL;
        }
        if (is_numbered(name)) {
            return TG_LAYOUT_NUMBERED;
        }
        if (starts(name, "train/") || starts(name, "valid/") || starts(name, "test/")) {
            return TG_LAYOUT_PDEARENA;
        }
        if (strcmp(name, "tensor") == 0 || strcmp(name, "x-coordinate") == 0) {
            return TG_LAYOUT_PDEBENCH;
        }
    }
    if (has(l, "velocity") && (has(l, "particles") || has(l, "force"))) {
        return TG_LAYOUT_PDEBENCH;
    }
    return TG_LAYOUT_AUTO;
}

static tg_status unknown_layout(const listing *l, const tg_layout *layout) {
    char there[400] = "";
    for (int64_t i = 0; i < count_of(l); i++) {
        tg_names_append(there, sizeof there, i, count_of(l), name_of(l, i));
    }
    return tg_fail(l->ctx, TG_E_CONFIG,
                   "%s: expected %s%s, found %s; data.x_name and data.y_name name pairs of arrays, "
                   "data.fields with data.layout: trajectory fields in time, data.layout one of "
                   "well, pdebench, numbered, pdearena and matlab",
                   l->path,
                   layout->kind == TG_LAYOUT_AUTO ? "x and y or a known layout"
                                                  : "arrays "
                                                    "of the layout ",
                   layout->kind == TG_LAYOUT_AUTO ? "" : tg_layout_name(layout->kind),
                   count_of(l) ? there : "no numeric array");
}

static tg_status find_fields(const listing *l, const tg_dataset_config *config, tg_layout *out) {
    out->is_trajectory = true;
    if (config->fields && config->fields[0] && out->kind != TG_LAYOUT_NUMBERED) {
        out->channels_last = out->kind == TG_LAYOUT_WELL;
        out->form.is_time_last = out->kind == TG_LAYOUT_MATLAB;
        return find_named(l, config, out);
    }
    switch (out->kind) {
    case TG_LAYOUT_WELL:
        return find_well(l, out);
    case TG_LAYOUT_PDEBENCH:
        return find_pdebench(l, config->x_only, out);
    case TG_LAYOUT_NUMBERED:
        return find_numbered(l, out);
    case TG_LAYOUT_PDEARENA:
        return find_pdearena(l, out);
    case TG_LAYOUT_MATLAB:
        return find_matlab(l, config, out);
    default:
        return TG_OK;
    }
}

tg_status tg_layout_is_matlab(tg_context *ctx, const char *path, bool *out) {
    static const char line[] = "MATLAB 7.3 MAT-file";
    char start[sizeof line - 1] = "";
    tg_source source = {.fd = -1};
    tg_status status = tg_source_open(ctx, path, &source);
    if (status == TG_OK && source.size >= sizeof start) {
        status = tg_source_read(&source, 0, start, sizeof start);
    }
    tg_source_close(&source);
    *out = memcmp(start, line, sizeof start) == 0;
    return status;
}

tg_status tg_layout_find(tg_context *ctx, const char *path, const tg_dataset_config *config,
                         tg_layout *out) {
    tg_status status = TG_OK;
    listing l = {.ctx = ctx, .path = path, .group = config->group ? config->group : ""};
    tg_file_format format;
    bool is_matlab = false;
    *out = (tg_layout){.kind = config->layout};
    TG_TRY(tg_file_detect(ctx, path, &format));
    if (format != TG_FILE_HDF5) {
        if (out->kind == TG_LAYOUT_AUTO) {
            out->kind = TG_LAYOUT_TRAJECTORY; /* the fields that the config names */
        }
        if (out->kind != TG_LAYOUT_TRAJECTORY) {
            return tg_fail(ctx, TG_E_CONFIG,
                           "%s: data.layout: expected pairs or trajectory for a file of %s, found "
                           "%s",
                           path, tg_file_format_name(format), tg_layout_name(out->kind));
        }
        out->is_trajectory = true;
        return find_named(&l, config, out);
    }
    TG_TRY(tg_h5_open(ctx, path, &l.file));
    TG_TRY(tg_layout_is_matlab(ctx, path, &is_matlab));
    if (out->kind == TG_LAYOUT_AUTO) {
        out->kind = is_matlab                           ? TG_LAYOUT_MATLAB
                    : config->fields && *config->fields ? TG_LAYOUT_TRAJECTORY
                                                        : guess(&l);
    }
    out->form.is_reversed = is_matlab || out->kind == TG_LAYOUT_MATLAB;
    TG_TRY(find_fields(&l, config, out));
    TG_TRY(out->count > 0 ? TG_OK : unknown_layout(&l, out));
fail:
    tg_h5_close(&l.file);
    return status;
}
