/* Grids: that of the data, its padding, and the frequencies that a grid has of a spectrum's. */
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "nn/config.h"
#include "nn/program.h"

/* ---- padding ---- */

/* With zeros appended to dimension d, on each side if `symmetric`. */
static int64_t padded_size(const tg_fno_config *config, int d, int64_t grid) {
    const double share = config->n_padding_of > 0 ? config->padding_of[d] : config->domain_padding;
    const int64_t zeros = (int64_t)nearbyint(share * (double)grid);
    return grid + (config->domain_padding_mode == TG_PADDING_SYMMETRIC ? 2 : 1) * zeros;
}

nn_grid nn_padded(const nn_model *model, nn_grid grid) {
    for (int d = 0; d < model->config.n_dim; d++) {
        grid.size[d] = padded_size(&model->config, d, grid.size[d]);
    }
    return grid;
}

nn_rows nn_slab_of(const nn_model *model, const nn_domain *domain, nn_grid grid, int part) {
    const int64_t inner = domain->grid.size[0], zeros = grid.size[0] - inner;
    const bool both = model->config.domain_padding_mode == TG_PADDING_SYMMETRIC;
    nn_rows rows = nn_rows_of(&model->split, part, inner);
    if (!nn_is_split(&model->split)) {
        return (nn_rows){0, grid.size[0]};
    }
    const int64_t before = both ? zeros / 2 : 0;
    const int64_t end =
        part + 1 == model->split.parts ? grid.size[0] : before + rows.first + rows.count;
    rows.first = part == 0 ? 0 : before + rows.first;
    rows.count = end - rows.first;
    return rows;
}

void tg_fno_fitting_modes(const tg_fno_config *config, const int64_t *grid,
                          int64_t modes[TG_FNO_MAX_DIMS]) {
    tg_fno_config full;
    if (!config || !grid || !modes || nn_config_read(NULL, config, &full) != TG_OK) {
        return;
    }
    config = &full;
    for (int d = 0; d < config->n_dim; d++) {
        const int64_t size = padded_size(config, d, grid[d]), wanted = config->n_modes[d];
        const bool is_halved = !config->complex_data && d == config->n_dim - 1;
        const bool fits = is_halved ? wanted / 2 <= size / 2 : wanted <= size;
        modes[d] = fits ? wanted : size;
    }
}

/* ---- the data ---- */

tg_status nn_domain_make(const nn_model *model, int64_t batch, const int64_t *grid,
                         nn_domain *out) {
    const tg_fno_config *config = &model->config;
    nn_domain domain = {.pixels = 0};
    tg_shape widest = {.ndim = 2 + config->n_dim, .dim = {2 * batch, config->hidden_channels}};
    for (int d = 0; d < config->n_dim; d++) {
        if (grid[d] < 1 || grid[d] > (int64_t)1 << 30) {
            return tg_fail(model->ctx, TG_E_SHAPE,
                           "grid: size %lld of dimension %d is not in 1 .. %d", (long long)grid[d],
                           d, 1 << 30);
        }
        domain.grid.size[d] = grid[d];
        widest.dim[2 + d] = padded_size(config, d, grid[d]);
    }
    if (batch < 1 || tg_shape_numel(&widest) < 0) {
        return tg_fail(model->ctx, TG_E_SHAPE,
                       "batch: %lld samples on this grid are none or too many", (long long)batch);
    }
    domain.points = domain.queries = domain.pixels = tg_product(config->n_dim, grid);
    if (config->architecture == TG_ARCHITECTURE_GINO) {
        domain.points = grid[config->n_dim];
        domain.queries = grid[config->n_dim + 1];
        if (domain.points < 1 || domain.queries < 1 || domain.points > TG_NEIGHBOURS_MAX ||
            domain.queries > TG_NEIGHBOURS_MAX) {
            return tg_fail(model->ctx, TG_E_SHAPE,
                           "points: %lld of them and %lld queries; 1 .. %d of each are possible",
                           (long long)domain.points, (long long)domain.queries, TG_NEIGHBOURS_MAX);
        }
    }
    if (model->split.parts > grid[0]) {
        return tg_fail(model->ctx, TG_E_SHAPE,
                       "distributed.split: %d takes a grid of as many rows, this one has %lld",
                       model->split.parts, (long long)grid[0]);
    }
    *out = domain;
    return TG_OK;
}

/* ---- transforms ---- */

/* Kept frequencies of dimension d: -(K/2) .. ceil(K/2) - 1 with the middle of the spectrum's modes;
 * the halved last dimension of real data keeps 0 .. K - 1 with the first ones; `nonnegative`
 * complex data 0 .. K - 1 with the middle. */
static void keep(const nn_model *model, nn_transform *t, int d) {
    const tg_fno_config *config = &model->config;
    const bool is_halved = !config->complex_data && d == config->n_dim - 1;
    const int64_t grid = t->desc.grid[d], modes = t->modes[d];
    int64_t used = modes, window = 0;
    if (config->n_incremental > 0) {
        const int64_t wanted = config->incremental_n_modes[d];
        used = is_halved ? wanted / 2 + 1 : wanted;
    }
    const int64_t kept = tg_min(used, is_halved ? grid / 2 + 1 : grid);
    if (!is_halved) {
        window = (modes - kept) / 2;
        const bool is_centered =
            !config->complex_data || config->complex_modes == TG_MODES_CENTERED;
        t->desc.first[d] = is_centered ? -(kept / 2) : 0;
    }
    t->desc.kept[d] = kept;
    t->span[d][0] = (nn_span){kept, window, 0};
}

static bool is_same(const nn_transform *a, const nn_transform *b) {
    return memcmp(a->desc.grid, b->desc.grid, sizeof a->desc.grid) == 0 &&
           memcmp(a->modes, b->modes, sizeof a->modes) == 0 &&
           memcmp(a->span, b->span, sizeof a->span) == 0 && a->n == b->n &&
           a->first_modes == b->first_modes;
}

/* Separates dimension 0 from the others. */
static void split_off(const nn_program *p, nn_grid grid, nn_transform *t) {
    const nn_model *model = p->model;
    const int rest = t->desc.ndim - 1, last = TG_FNO_MAX_DIMS - 1;
    t->rows = nn_slab_of(model, &p->domain, grid, model->split.part);
    t->slabs = t->rows.count;
    t->n = grid.size[0];
    t->first_modes = t->modes[0];
    t->first_span = t->span[0][0];
    t->frequency = t->desc.first[0];
    t->is_halved = rest == 0 && !model->config.complex_data;
    t->desc.ndim = rest > 0 ? rest : 1;
    t->desc.howmany *= t->slabs;
    for (int d = 0; d + 1 < TG_FNO_MAX_DIMS; d++) {
        t->desc.grid[d] = t->desc.grid[d + 1];
        t->desc.kept[d] = t->desc.kept[d + 1];
        t->desc.first[d] = t->desc.first[d + 1];
        t->modes[d] = t->modes[d + 1];
        t->span[d][0] = t->span[d + 1][0];
    }
    t->desc.grid[last] = t->desc.kept[last] = t->desc.first[last] = t->modes[last] = 0;
    t->span[last][0] = (nn_span){0};
    if (rest == 0) { /* one point */
        t->desc.grid[0] = t->desc.kept[0] = t->modes[0] = t->span[0][0].count = 1;
    }
}

/* Its number in the list, where it is added unless there is the same. */
static int find(nn_program *p, nn_transform t) {
    t.mode_count = t.kept_count = 1;
    for (int d = 0; d < t.desc.ndim; d++) {
        t.mode_count *= t.modes[d];
        t.kept_count *= t.desc.kept[d];
        t.is_windowed = t.is_windowed || t.span[d][0].count != t.modes[d];
    }
    for (int i = 0; i < p->transform_count; i++) {
        if (is_same(&p->transforms[i], &t)) {
            p->transforms[i].desc.howmany = tg_max(p->transforms[i].desc.howmany, t.desc.howmany);
            return i;
        }
    }
    if (nn_failed(p, NN_GROW(p, transforms, transform))) {
        return 0;
    }
    p->transforms[p->transform_count] = t;
    return p->transform_count++;
}

static nn_transform transform_of(const nn_program *p, nn_grid grid, const int64_t *modes,
                                 int64_t channels) {
    const nn_model *model = p->model;
    nn_transform t = {.slabs = 1,
                      .desc = {.dtype = model->config.dtype,
                               .complex = model->config.complex_data,
                               .ndim = model->config.n_dim,
                               .howmany = p->images * channels,
                               .grid_store = model->stores.activation,
                               .kept_store = model->stores.spectrum}};
    for (int d = 0; d < t.desc.ndim; d++) {
        t.desc.grid[d] = grid.size[d];
        t.modes[d] = modes[d];
        keep(model, &t, d);
    }
    if (nn_is_split(&model->split)) {
        split_off(p, grid, &t);
    }
    return t;
}

int nn_transform_on(nn_program *p, nn_grid grid, const int64_t *modes, int64_t channels) {
    return find(p, transform_of(p, grid, modes, channels));
}

/* Dimension d of a spectrum of the grid of `old`, cut or extended at its end. */
static void place(const nn_transform *old, int d, nn_transform *t) {
    const int64_t n = old->desc.grid[d], m = t->desc.grid[d], kept = old->desc.kept[d];
    const int64_t negative = kept / 2, start = n - negative, mode = old->span[d][0].mode;
    const int64_t positive = tg_min(kept - negative, m);
    const int64_t wrapped = tg_max(0, tg_min(negative, m - start));
    t->desc.first[d] = 0;
    t->desc.kept[d] = wrapped > 0 ? start + wrapped : positive;
    t->span[d][0] = (nn_span){positive, mode + negative, 0};
    t->span[d][1] = (nn_span){wrapped, mode, start};
}

int nn_transform_between(nn_program *p, nn_grid from, nn_grid to, const int64_t *modes,
                         int64_t channels) {
    const nn_transform old = transform_of(p, from, modes, channels);
    nn_transform t = transform_of(p, to, modes, channels);
    const int last = t.desc.ndim - 1;
    for (int d = 0; d < last; d++) {
        if (from.size[d] != to.size[d]) {
            place(&old, d, &t);
        }
    }
    t.desc.kept[last] = tg_min(old.desc.kept[last], t.desc.kept[last]);
    t.span[last][0].count = t.desc.kept[last];
    return find(p, t);
}
