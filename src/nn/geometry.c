/* Padding of a grid, and the frequencies of the weights it has. */
#include <math.h>

#include "base/minmax.h"
#include "nn/config.h"
#include "nn/program.h"

/* Zeros appended to dimension d, on each side if `symmetric`. */
static int64_t zeros_of(const tg_fno_config *config, int d, int64_t grid) {
    const double share = config->n_padding_of > 0 ? config->padding_of[d] : config->domain_padding;
    return (int64_t)nearbyint(share * (double)grid);
}

static int64_t padded_size(const tg_fno_config *config, int d, int64_t grid) {
    const bool both = config->domain_padding_mode == TG_PADDING_SYMMETRIC;
    return grid + (both ? 2 : 1) * zeros_of(config, d, grid);
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

/* Kept frequencies of dimension d: -(K/2) .. ceil(K/2) - 1 with the middle of the weight's modes;
 * the halved last dimension of real data keeps 0 .. K - 1 with the first ones; `nonnegative`
 * complex data 0 .. K - 1 with the middle. */
static void keep(const nn_model *model, nn_geometry *g, int d) {
    const tg_fno_config *config = &model->config;
    const bool is_halved = !config->complex_data && d == config->n_dim - 1;
    const int64_t grid = g->padded[d], modes = model->modes[d];
    int64_t used = modes;
    if (config->n_incremental > 0) {
        const int64_t wanted = config->incremental_n_modes[d];
        used = is_halved ? wanted / 2 + 1 : wanted;
    }
    if (is_halved) {
        g->kept[d] = tg_min(used, grid / 2 + 1);
        return;
    }
    g->kept[d] = tg_min(used, grid);
    g->window[d] = (modes - g->kept[d]) / 2;
    if (!config->complex_data || config->complex_modes == TG_MODES_CENTERED) {
        g->first[d] = -(g->kept[d] / 2);
    }
}

tg_status nn_geometry_make(const nn_model *model, int64_t batch, const int64_t *grid,
                           nn_geometry *out) {
    const tg_fno_config *config = &model->config;
    nn_geometry g = {.kept_count = 1, .pixels = 1, .padded_pixels = 1};
    tg_shape widest = {.ndim = 2 + config->n_dim, .dim = {2 * batch, config->hidden_channels}};
    for (int d = 0; d < config->n_dim; d++) {
        if (grid[d] < 1 || grid[d] > (int64_t)1 << 30) {
            return tg_fail(model->ctx, TG_E_SHAPE,
                           "grid: size %lld of dimension %d is not in 1 .. %d", (long long)grid[d],
                           d, 1 << 30);
        }
        const int64_t zeros = zeros_of(config, d, grid[d]);
        g.grid[d] = grid[d];
        g.padded[d] = padded_size(config, d, grid[d]);
        g.pad_before[d] = config->domain_padding_mode == TG_PADDING_SYMMETRIC ? zeros : 0;
        g.pads = g.pads || zeros > 0;
        widest.dim[2 + d] = g.padded[d];
        keep(model, &g, d);
        g.windowed = g.windowed || g.kept[d] < model->modes[d];
    }
    if (batch < 1 || tg_shape_numel(&widest) < 0) {
        return tg_fail(model->ctx, TG_E_SHAPE,
                       "batch: %lld samples on this grid are none or too many", (long long)batch);
    }
    for (int d = 0; d < config->n_dim; d++) {
        g.pixels *= g.grid[d];
        g.padded_pixels *= g.padded[d];
        g.kept_count *= g.kept[d];
    }
    g.points = g.queries = g.pixels;
    if (config->architecture == TG_ARCHITECTURE_GINO) {
        g.points = grid[config->n_dim];
        g.queries = grid[config->n_dim + 1];
        if (g.points < 1 || g.queries < 1 || g.points > TG_NEIGHBOURS_MAX ||
            g.queries > TG_NEIGHBOURS_MAX) {
            return tg_fail(model->ctx, TG_E_SHAPE,
                           "points: %lld of them and %lld queries; 1 .. %d of each are possible",
                           (long long)g.points, (long long)g.queries, TG_NEIGHBOURS_MAX);
        }
    }
    *out = g;
    return TG_OK;
}

tg_fft_desc nn_geometry_fft(const nn_model *model, const nn_geometry *g, int64_t images) {
    tg_fft_desc desc = {.dtype = model->config.dtype,
                        .complex = model->config.complex_data,
                        .ndim = model->config.n_dim,
                        .howmany = images * model->config.hidden_channels,
                        .grid_store = model->stores.activation,
                        .kept_store = model->stores.spectrum};
    for (int d = 0; d < desc.ndim; d++) {
        desc.grid[d] = g->padded[d];
        desc.kept[d] = g->kept[d];
        desc.first[d] = g->first[d];
    }
    return desc;
}
