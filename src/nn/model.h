/* Inside of a network: its parameters, the geometry of a grid, the buffers of a step.
 *
 * Activations are (planes, batch, channels, pixels): one plane for real data; two, real and
 * imaginary parts, for complex data. Perceptrons and skips of complex data are pairs (fr, fi):
 * out = fr(Re) - fi(Im) + i [fr(Im) + fi(Re)]; "part" 0 is fr, 1 is fi. */
#ifndef TG_NN_MODEL_H
#define TG_NN_MODEL_H

#include "backend/backend.h"
#include "nn/plan.h"
#include "tgrad/fno.h"

/* Channels of the hidden layers. */
int64_t nn_lifting_hidden(const tg_fno_config *config);
int64_t nn_projection_hidden(const tg_fno_config *config);
int64_t nn_mlp_hidden(const tg_fno_config *config);

/* How the network's arrays are kept. */
typedef struct nn_stores {
    tg_storage activation; /* inside: from the lifting to the projection's input */
    tg_storage spectrum;   /* the kept modes, and gradients of spectral weights as their factors */
    tg_storage weight;     /* spectral weights */
} nn_stores;

nn_stores nn_stores_of(const tg_fno_config *config);

/* ---- parameters: from the config alone ---- */

typedef enum nn_init { NN_INIT_SPECTRAL, NN_INIT_NORMAL, NN_INIT_UNIFORM, NN_INIT_CONST } nn_init;

typedef struct nn_param {
    char name[64];
    tg_dtype dtype; /* in memory */
    tg_shape shape;
    bool spectral;
    size_t offset; /* in the block of weights */
    nn_init init;
    double scale; /* deviation, bound or value */
    int stream;   /* number of the random stream: that of fr for fi, which starts equal */
} nn_param;

/* Numbers in the parameter list. */
typedef struct nn_mlp {
    int64_t in, hidden, out;
    tg_storage x_store, y_store;
    int param[2][4]; /* [part]: w1 (hidden, in), b1, w2 (out, hidden), b2 */
} nn_mlp;

typedef struct nn_skip {
    tg_mix_kind kind;
    int param[2]; /* [part]; -1: identity has none */
} nn_skip;

typedef struct nn_norm {
    int weight, bias; /* -1: not affine */
} nn_norm;

typedef struct nn_block {
    int weight, bias; /* of the spectral convolution */
    nn_skip fno_skip, mlp_skip;
    nn_mlp mlp;
    nn_norm norm[2];
} nn_block;

typedef struct nn_model {
    tg_context *ctx;
    tg_fno_config config;
    nn_stores stores;
    int planes;                     /* 1; 2 for complex data */
    int64_t modes[TG_FNO_MAX_DIMS]; /* of a spectral weight: the last one is halved for real data */
    int64_t mode_count;
    int64_t embedded_channels; /* in_channels and coordinates */
    nn_mlp lifting, projection;
    nn_block *blocks; /* (n_layers) */
    nn_param *params; /* (param_count) */
    int param_count;
    size_t weight_bytes;
    int64_t parameters; /* real numbers */
} nn_model;

TG_NODISCARD tg_status nn_model_create(tg_context *ctx, const tg_fno_config *config, nn_model *out);
void nn_model_destroy(nn_model *model);

/* ---- geometry of a grid ---- */

typedef struct nn_geometry {
    int64_t grid[3], pixels;          /* of the data */
    int64_t padded[3], padded_pixels; /* inside the blocks */
    int64_t pad_before[3];            /* zeros in front, per dimension */
    bool pads;
    int64_t kept[3], kept_count; /* frequencies of this grid */
    int64_t first[3];            /* lowest of them, signed */
    int64_t window[3];           /* where they start in the weight's modes */
    bool windowed;               /* the grid has fewer frequencies than the weight */
} nn_geometry;

/* ---- buffers of a step; see prepare.c for their lives ---- */

typedef struct nn_block_buffers {
    void *x;            /* (planes, B, C, P): input */
    void *spectrum;     /* (B, C, modes): its kept modes */
    void *product;      /* (B, C, modes): times the weight */
    void *conv;         /* (planes, B, C, P): before the first norm; without norm: z1 */
    void *z1;           /* before the first GELU; real data: becomes its gradient */
    void *mixed;        /* before the second norm; without norm: z2 */
    void *z2;           /* before the second GELU */
    void *stats[2];     /* of the norms: (planes, groups, 2) doubles */
    void *back_x;       /* x, product, conv and z1 as backward has them: the same memory, unless */
    void *back_product; /* they are made again */
    void *back_conv;
    void *back_z1;
    void *back_lifted; /* before padding, when all is made again */
    void *dz1;         /* gradient at z1; real data: its own memory */
    void *dspectrum;   /* (B, C, modes): gradient at product, kept to the end */
    void *dx_spectrum; /* (B, C, modes): gradient at spectrum */
    void *dx;          /* gradient at the input, and then at the z2 it came from; may be dtop */
} nn_block_buffers;

typedef struct nn_run {
    bool ready, training;
    bool saved;    /* the activations of a forward wait for their backward */
    bool has_dout; /* and so does dL/dy */
    int64_t max_batch, batch;
    int64_t images; /* that are transformed in one call: 1 on the host, else the whole batch */
    nn_geometry geometry;
    tg_fft_plan *fft;                          /* of so many images: C transforms each */
    void *activations, *workspace, *gradients; /* arenas */
    tg_loan loan;             /* of training: bytes asked for, and where they lie at the end */
    int gradient_first;       /* parameter whose gradient stands first in `gradients` */
    void *staged;             /* (B, Cin, pixels): x as it came, pairs for complex data */
    void *embedded;           /* (planes, B, embedded_channels, pixels) */
    void *lifted;             /* (planes, B, C, pixels): before padding */
    nn_block_buffers *blocks; /* (n_layers) */
    void *cropped;            /* (planes, B, C, pixels): projection's input without padding */
    void *projected;          /* (planes, B, Cout, pixels); real data: out */
    void *out;                /* (B, Cout, pixels), pairs for complex data */
    void *target;             /* like out */
    void *dout;               /* like out */
    void *dprojected;         /* like projected; real data: dout */
    void *dcropped;           /* like cropped; real data: cropped's own memory */
    void *dtop;               /* (planes, B, C, P): gradient at the last block's z2 */
    void *dlifted;            /* like lifted; without padding: the first block's dx */
    void *image;              /* (images, planes, C, P): pairs, or after the stabilizer */
    void *kept;               /* (images, C, kept): spectrum before the window */
    void *scratch;            /* of mix and mlp */
} nn_run;

struct tg_fno {
    tg_context *ctx;
    tg_backend *be;
    nn_model model;
    uint64_t seed, step;
    char *weights; /* (model.weight_bytes) where the backend computes */
    nn_run run;
    tg_loan loan;         /* bytes to be lent from the next preparation for training on */
    int64_t preparations; /* times the buffers of `run` were made: what was recorded with others
                             is of no use */
};

static inline void *nn_weight(const tg_fno *fno, int param) {
    return param < 0 ? NULL : fno->weights + fno->model.params[param].offset;
}

static inline tg_dtype nn_dtype(const tg_fno *fno) {
    return fno->model.config.dtype;
}

/* The dtype in memory of activations inside, and of spectra (complex). */
static inline tg_dtype nn_activation_dtype(const nn_model *model) {
    return tg_stored(model->config.dtype, model->stores.activation);
}

static inline tg_dtype nn_spectrum_dtype(const nn_model *model) {
    return tg_stored(tg_dtype_complex(model->config.dtype), model->stores.spectrum);
}

/* The address `count` elements of a dtype behind x. */
static inline void *nn_element(tg_dtype dtype, const void *x, int64_t count) {
    return (char *)(uintptr_t)x + (size_t)count * tg_dtype_size(dtype);
}

/* The same outside, where all numbers are of the network's dtype. */
static inline void *nn_at(const tg_fno *fno, const void *x, int64_t numbers) {
    return nn_element(nn_dtype(fno), x, numbers);
}

/* An outline has none. */
TG_NODISCARD tg_status nn_check_weights(const tg_fno *fno);

/* Frees what tg_fno_prepare made. */
void nn_run_free(tg_fno *fno);

#endif
