/* A model as tgrad_predict reads it (predict/tgrad_predict.c, docs/formats.md): the order of the
 * arrays follows from the header. */
#include "export_c.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/output.h"
#include "common/text.h"

enum { HEADER = 4096 };

typedef struct exporter {
    tg_context *ctx;
    const tg_fno_config *fno;
    tg_archive *weights;
    cli_bytes *out;
    tg_status status; /* of the first failure; all that follows is left out */
} exporter;

/* ---- arrays ---- */

/* The parameter of a name as f32, or c64 if it is complex; to be destroyed. */
static tg_tensor get(exporter *e, const char *format, ...) TG_PRINTF(2, 3);
static tg_tensor get(exporter *e, const char *format, ...) {
    char name[96];
    tg_tensor out = {0};
    va_list list;
    va_start(list, format);
    vsnprintf(name, sizeof name, format, list);
    va_end(list);
    if (e->status != TG_OK) {
        return out;
    }
    const tg_tensor *found = tg_archive_find(e->weights, name);
    const tg_dtype dtype = found && tg_dtype_is_complex(found->dtype) ? TG_C64 : TG_F32;
    e->status = !found ? TG_E_ARGUMENT
                       : tg_tensor_create(e->ctx, TG_MEM_WORKSPACE, dtype, &found->shape, &out);
    if (e->status == TG_OK) {
        e->status = tg_tensor_convert(e->ctx, found, &out);
    }
    return out;
}

static void add(exporter *e, tg_tensor tensor) {
    if (e->status == TG_OK) {
        cli_bytes_add(e->out, tensor.data, tg_tensor_bytes(&tensor));
    }
    tg_tensor_destroy(&tensor);
}

/* (in, out, modes..) complex -> (out, in, real and imaginary part, modes..) */
static void add_spectral(exporter *e, int layer) {
    tg_tensor w = get(e, "fno_blocks.convs.%d.weight.tensor", layer);
    if (e->status == TG_OK) {
        const int64_t in = w.shape.dim[0], out = w.shape.dim[1];
        const int64_t modes = tg_tensor_numel(&w) / (in * out);
        const float *from = w.data;
        float *to = cli_need(malloc(2 * (size_t)modes * sizeof(float)));
        for (int64_t item = 0; item < in * out; item++) {
            const int64_t o = item / in, i = item % in;
            const float *row = from + 2 * (i * out + o) * modes;
            for (int64_t k = 0; k < modes; k++) {
                to[k] = row[2 * k];
                to[modes + k] = row[2 * k + 1];
            }
            cli_bytes_add(e->out, to, 2 * (size_t)modes * sizeof(float));
        }
        free(to);
    }
    tg_tensor_destroy(&w);
}

static void add_mlp(exporter *e, const char *module) {
    for (int layer = 0; layer < 2; layer++) {
        add(e, get(e, "%s.fcs.%d.weight", module, layer));
        add(e, get(e, "%s.fcs.%d.bias", module, layer));
    }
}

static void add_skip(exporter *e, const char *module, int layer, tg_fno_skip kind) {
    if (kind != TG_SKIP_IDENTITY) {
        add(e, get(e, "fno_blocks.%s.%d.%sweight", module, layer,
                   kind == TG_SKIP_LINEAR ? "conv." : ""));
    }
}

static void add_norm(exporter *e, int index) {
    if (e->fno->norm == TG_NORM_GROUP) {
        add(e, get(e, "fno_blocks.norm.%d.weight", index));
        add(e, get(e, "fno_blocks.norm.%d.bias", index));
    }
}

/* A factor and then a summand for each channel: v -> z of the input, z -> v of the output. */
static void add_normalizer(exporter *e, const tg_normalizer *normalizer, tg_data_side side,
                           int64_t channels) {
    for (int part = 0; part < 2; part++) {
        for (int64_t c = 0; c < channels; c++) {
            double mean = 0, std = 1;
            if (normalizer) {
                tg_normalizer_get(normalizer, c, &mean, NULL, &std);
                std += 1e-7;
            }
            const double input[2] = {1 / std, -mean / std}, output[2] = {std, mean};
            const float value = (float)(side == TG_DATA_X ? input : output)[part];
            cli_bytes_add(e->out, &value, sizeof value);
        }
    }
}

static void add_block(exporter *e, int layer) {
    const tg_fno_config *fno = e->fno;
    char module[48];
    add_spectral(e, layer);
    add(e, get(e, "fno_blocks.convs.%d.bias", layer));
    add_skip(e, "fno_skips", layer, fno->fno_skip);
    add_norm(e, fno->use_channel_mlp ? 2 * layer : layer);
    if (fno->use_channel_mlp) {
        snprintf(module, sizeof module, "fno_blocks.channel_mlp.%d", layer);
        add_mlp(e, module);
        add_skip(e, "channel_mlp_skips", layer, fno->channel_mlp_skip);
        add_norm(e, 2 * layer + 1);
    }
}

/* ---- header ---- */

/* The width of the hidden layer of an MLP. */
static long long hidden_of(const exporter *e, const char *module) {
    char name[96];
    snprintf(name, sizeof name, "%s.fcs.0.bias", module);
    const tg_tensor *bias = tg_archive_find(e->weights, name);
    return bias ? (long long)tg_tensor_numel(bias) : 0;
}

static void add_header(exporter *e) {
    const tg_fno_config *fno = e->fno;
    char header[HEADER] = {0};
    long long modes[TG_FNO_MAX_DIMS] = {1, 1, 1};
    for (int d = 0; d < fno->n_dim; d++) {
        modes[d] = d == fno->n_dim - 1 ? fno->n_modes[d] / 2 + 1 : fno->n_modes[d];
    }
    snprintf(header, sizeof header,
             "tgrad-predict 1\ndims %d\nchannels %lld %lld %lld\nmodes %lld %lld %lld\n"
             "layers %lld\nhidden %lld %lld %lld\nskips %d %d\nnorm %d\nembedding %d\ntanh %d\n"
             "padding %.17g %d\nend\n",
             fno->n_dim, (long long)fno->in_channels, (long long)fno->out_channels,
             (long long)fno->hidden_channels, modes[0], modes[1], modes[2],
             (long long)fno->n_layers, hidden_of(e, "lifting"),
             hidden_of(e, "fno_blocks.channel_mlp.0"), hidden_of(e, "projection"),
             (int)fno->fno_skip, (int)fno->channel_mlp_skip, (int)fno->norm,
             fno->positional_embedding == TG_EMBEDDING_GRID, fno->stabilizer == TG_STABILIZER_TANH,
             fno->domain_padding, fno->domain_padding_mode == TG_PADDING_SYMMETRIC);
    cli_bytes_add(e->out, header, sizeof header);
}

/* The feature that tgrad_predict does not support; NULL: none. */
static const char *unknown_in(const tg_fno_config *fno) {
    if (fno->architecture != TG_ARCHITECTURE_FNO) {
        return "points (fno.architecture: gino)";
    }
    if (fno->complex_data) {
        return "complex data (fno.complex_data)";
    }
    if (fno->dtype != TG_F32) {
        return "numbers in f64 (fno.dtype)";
    }
    if (fno->factorization != TG_FACTORIZATION_DENSE) {
        return "factorized weights (make them dense first: tgrad convert --densify)";
    }
    return fno->separable                             ? "separable weights (fno.separable)"
           : fno->non_linearity != TG_ACTIVATION_GELU ? "another activation (fno.non_linearity)"
           : fno->preactivation                       ? "other blocks (fno.preactivation)"
           : fno->n_incremental > 0 ? "a part of its modes in use (fno.incremental_n_modes)"
           : fno->n_padding_of > 0  ? "padding of each dimension (fno.domain_padding)"
                                    : NULL;
}

int cli_export_c(tg_context *ctx, tg_model *model, const char *path, cli_bytes *out) {
    exporter e = {.ctx = ctx, .fno = tg_fno_get_config(tg_model_fno(model)), .out = out};
    const char *unknown = unknown_in(e.fno);
    if (unknown) {
        return cli_fail("%s has %s, which the C sources do not read", path, unknown);
    }
    e.status = tg_archive_create(ctx, &e.weights);
    if (e.status == TG_OK) {
        e.status = tg_fno_save(tg_model_fno(model), e.weights, "");
    }
    if (e.status == TG_OK) {
        add_header(&e);
        add_normalizer(&e, tg_model_normalizer(model, TG_DATA_X), TG_DATA_X, e.fno->in_channels);
        add_mlp(&e, "lifting");
        for (int l = 0; l < (int)e.fno->n_layers; l++) {
            add_block(&e, l);
        }
        add_mlp(&e, "projection");
        add_normalizer(&e, tg_model_normalizer(model, TG_DATA_Y), TG_DATA_Y, e.fno->out_channels);
    }
    tg_archive_destroy(&e.weights);
    return cli_code(ctx, e.status);
}
