/* Fourier neural operators in one to three dimensions, for real and complex data.
 *
 *     tg_fno_config config = tg_fno_config_default();
 *     ..                                           fields, or tg_fno_config_set(ctx, &config, ..)
 *     tg_fno_create(ctx, &config, seed, &fno);     weights, initialised from the seed
 *     tg_fno_prepare(fno, batch, grid, training);  every buffer of a step; nothing is allocated
 *     tg_fno_forward(fno, &x, &y);                 after that
 *     tg_fno_backward(fno, &dy, &sink);            gradients leave one parameter at a time
 *
 * The same weights serve every grid. tg_fno_plan() computes the bytes of each category in advance;
 * the ledger then counts the same. */
#ifndef TGRAD_FNO_H
#define TGRAD_FNO_H

#include "tgrad/gno.h"
#include "tgrad/gradient.h"
#include "tgrad/io.h"
#include "tgrad/loss.h"

TG_C_BEGIN

#define TG_FNO_MAX_DIMS    3
#define TG_UNO_MAX_LAYERS  8
#define TG_UNO_MAX_NUMBERS 24 /* of all layers and dimensions */
#define TG_UNO_MAX_PAIRED  16 /* layers, in pairs */
#define TG_FNO_MAX_RANKS   6  /* in a list: of TT, one more than the weight has modes */

typedef enum tg_fno_skip { TG_SKIP_LINEAR, TG_SKIP_IDENTITY, TG_SKIP_SOFT_GATING } tg_fno_skip;
typedef enum tg_fno_norm { TG_NORM_NONE, TG_NORM_GROUP, TG_NORM_INSTANCE } tg_fno_norm;
typedef enum tg_fno_embedding { TG_EMBEDDING_GRID, TG_EMBEDDING_NONE } tg_fno_embedding;
typedef enum tg_fno_stabilizer { TG_STABILIZER_NONE, TG_STABILIZER_TANH } tg_fno_stabilizer;
typedef enum tg_fno_padding { TG_PADDING_ONE_SIDED, TG_PADDING_SYMMETRIC } tg_fno_padding;
typedef enum tg_fno_activation {
    TG_ACTIVATION_GELU,
    TG_ACTIVATION_RELU,
    TG_ACTIVATION_SILU,
    TG_ACTIVATION_TANH
} tg_fno_activation;
typedef enum tg_fno_modes { TG_MODES_CENTERED, TG_MODES_NONNEGATIVE } tg_fno_modes;

/* How arrays are kept in memory; the arithmetic on them is f32 in any case. */
typedef enum tg_precision {
    TG_PRECISION_FULL,  /* as the network's dtype */
    TG_PRECISION_MIXED, /* of blocks: spectra in f16; of all: see precision below */
    TG_PRECISION_HALF,  /* f16; of blocks: spectra and activations in f16 */
    TG_PRECISION_BF16,
    TG_PRECISION_8BIT /* one byte, and a scale for each 128 */
} tg_precision;

/* Representation of a spectral weight (Cin, Cout, M1 .. Md). */
typedef enum tg_factorization {
    TG_FACTORIZATION_DENSE,  /* itself */
    TG_FACTORIZATION_TUCKER, /* a core and a factor for each mode */
    TG_FACTORIZATION_CP,     /* a sum of outer products */
    TG_FACTORIZATION_TT      /* a chain of factors, each with the mode of one dimension */
} tg_factorization;

/* How neuraloperator multiplies with one. The numbers are the same; here the factors are used. */
typedef enum tg_implementation {
    TG_IMPLEMENTATION_FACTORIZED,
    TG_IMPLEMENTATION_RECONSTRUCTED
} tg_implementation;

typedef enum tg_architecture {
    TG_ARCHITECTURE_FNO,  /* from a grid to the same grid */
    TG_ARCHITECTURE_GINO, /* from points to a latent grid, by an FNO there, and on to queries */
    TG_ARCHITECTURE_UNO   /* as an FNO, with a grid, modes and channels for each layer */
} tg_architecture;

/* Of a GINO: tanh of the output of the blocks, before the kernel to the queries. */
typedef enum tg_gno_tanh { TG_GNO_TANH_NONE, TG_GNO_TANH_LATENT } tg_gno_tanh;

/* What training keeps of the forward pass; backward recomputes the rest. */
typedef enum tg_checkpoint {
    TG_CHECKPOINT_OFF,    /* per block its input, the sum inside it and the kept modes */
    TG_CHECKPOINT_BLOCK,  /* per block its input and the kept modes */
    TG_CHECKPOINT_MINIMAL /* per block the kept modes of its input; beside them the data */
} tg_checkpoint;

/* Settings; the names are the keys of a configuration (section fno). */
typedef struct tg_fno_config {
    size_t size;                      /* of the struct, see status.h */
    int n_dim;                        /* dimensions of the data, and numbers in n_modes */
    int64_t n_modes[TG_FNO_MAX_DIMS]; /* kept frequencies per dimension, outermost first */
    int64_t in_channels;              /* of the data, without coordinates */
    int64_t out_channels;
    int64_t hidden_channels;               /* C */
    int64_t n_layers;                      /* blocks */
    double lifting_channel_ratio;          /* hidden layer of the lifting: ratio * C */
    double projection_channel_ratio;       /* hidden layer of the projection: ratio * C */
    tg_fno_embedding positional_embedding; /* grid: coordinates as further input channels */
    bool use_channel_mlp;         /* blocks have one; false: a convolution, its skip and a GELU */
    double channel_mlp_expansion; /* hidden layer of a block's channel MLP: round(exp * C) */
    double channel_mlp_dropout;   /* probability, in [0, 1), in training */
    tg_fno_skip fno_skip;         /* around the spectral convolution */
    tg_fno_skip channel_mlp_skip; /* around the channel MLP */
    tg_fno_norm norm;             /* two per block, after the convolution and at the end */
    tg_fno_stabilizer stabilizer; /* tanh before the transform */
    double domain_padding;        /* zeros, as a fraction of each grid size; 0: off */
    tg_fno_padding domain_padding_mode; /* at the end, or on both sides */
    bool complex_data;                  /* data are complex; channel MLPs and skips come in pairs */
    tg_fno_modes complex_modes;         /* complex data: frequencies around 0, or (1-D) from 0 on */
    tg_precision fno_block_precision;   /* full, mixed or half: spectra, see above */
    tg_precision fno_block_weights_precision; /* full, half or bf16: spectral weights */
    tg_precision activation_precision;        /* full, half or bf16: activations inside */
    tg_checkpoint activation_checkpoint;      /* off, block or minimal */
    tg_dtype dtype;                           /* of the arithmetic: f32 or f64 */
    tg_precision precision;       /* full; mixed: spectral weights in bf16, saved in 8bit */
    tg_precision saved_precision; /* full, bf16 or 8bit: of values saved for backward */
    int64_t micro_batch;          /* samples that training has in flight; 0: the whole batch */
    tg_factorization factorization;
    tg_implementation implementation;
    int n_rank;                    /* how many of them are set */
    double rank[TG_FNO_MAX_RANKS]; /* one: a share of the dense weight's numbers, or, as a whole
                                      number from 2 on, the rank of every mode; or one for each */
    int n_fixed_rank_modes;
    int64_t fixed_rank_modes[TG_FNO_MAX_RANKS]; /* of Tucker: whose rank is their size */
    bool separable;                  /* y[c, k] = x[c, k] W[c, k]: no sum over channels */
    tg_fno_activation non_linearity; /* between layers, and in lifting and projection; not inside
                                        channel MLPs, which have GELU */
    bool preactivation; /* blocks begin with activation and norm instead of ending with them */
    int n_padding_of;   /* 0: domain_padding is that of every dimension; else n_dim */
    double padding_of[TG_FNO_MAX_DIMS];           /* domain_padding of each dimension */
    int n_incremental;                            /* 0: all modes are in use; else n_dim */
    int64_t incremental_n_modes[TG_FNO_MAX_DIMS]; /* those in use, of n_modes, around frequency 0 */
    tg_architecture architecture;
    /* Of a GINO; n_dim is the number of coordinates, in_channels are those at the points. */
    int64_t fno_in_channels;         /* that the points give to the grid */
    int64_t latent_feature_channels; /* that the caller gives on the grid */
    double in_gno_radius, out_gno_radius;
    tg_gno_transform in_gno_transform_type, out_gno_transform_type;
    tg_gno_embedding in_gno_pos_embed_type, out_gno_pos_embed_type;
    tg_gno_weighting gno_weighting_function; /* of neighbours on the way to the queries */
    double gno_weight_function_scale;
    int64_t gno_embed_channels; /* frequencies of a coordinate */
    double gno_embed_max_positions;
    tg_gno_tanh out_gno_tanh;
    int n_in_gno_channel_mlp_hidden_layers; /* of the kernels, and their widths */
    int64_t in_gno_channel_mlp_hidden_layers[TG_GNO_MAX_HIDDEN];
    int n_out_gno_channel_mlp_hidden_layers;
    int64_t out_gno_channel_mlp_hidden_layers[TG_GNO_MAX_HIDDEN];
    bool input_gradient; /* no key: training also makes dL/dx, which rollouts need (step.h) */
    bool blocks_only;    /* no key: the blocks without lifting and projection, as parts of other
                            networks (function.h) */
    /* Of a UNO: lists with n_layers entries, or rows of n_dim entries, one after another; n_*: the
     * numbers in the list, 0: not set. */
    int n_uno_out_channels;
    int64_t uno_out_channels[TG_UNO_MAX_LAYERS];
    int n_uno_n_modes;
    int64_t uno_n_modes[TG_UNO_MAX_NUMBERS];
    int n_uno_scalings;
    double uno_scalings[TG_UNO_MAX_NUMBERS]; /* of the grid */
    int n_horizontal_skips; /* numbers in the list; -1: layer n_layers - 1 - i reads layer i */
    int horizontal_skips_map[TG_UNO_MAX_PAIRED]; /* pairs: a layer, and the one it reads, too */
    tg_fno_skip horizontal_skip;
} tg_fno_config;

/* Everything set but n_modes: 1 -> 1 channel, C 64, 4 layers, and the published defaults. */
TG_API void tg_fno_config_init(tg_fno_config *config, size_t size);
static inline tg_fno_config tg_fno_config_default(void) {
    tg_fno_config config;
    tg_fno_config_init(&config, sizeof config);
    return config;
}

/* Sets one key from text: "[64, 64]", "128", "0.5", "true", "soft-gating", "null". An unknown key
 * is an error that names the nearest one. */
TG_API TG_NODISCARD tg_status tg_fno_config_set(tg_context *ctx, tg_fno_config *config,
                                                const char *key, const char *text);

/* Whether a network can be made of it; the error names the key. */
TG_API TG_NODISCARD tg_status tg_fno_config_check(tg_context *ctx, const tg_fno_config *config);

/* ---- The network ---- */

typedef struct tg_fno tg_fno;

/* Weights initialised from the seed; the context's backend does the arithmetic. */
TG_API TG_NODISCARD tg_status tg_fno_create(tg_context *ctx, const tg_fno_config *config,
                                            uint64_t seed, tg_fno **out);
/* A network without weights, to list its parameters; it cannot be prepared, loaded or saved. */
TG_API TG_NODISCARD tg_status tg_fno_outline(tg_context *ctx, const tg_fno_config *config,
                                             tg_fno **out);
TG_API void tg_fno_destroy(tg_fno **fno);

TG_API const tg_fno_config *tg_fno_get_config(const tg_fno *fno);

typedef struct tg_fno_param {
    const char *name; /* neuraloperator's, e.g. "fno_blocks.convs.0.weight.tensor"; the network's */
    tg_dtype dtype;   /* of the weight in memory */
    tg_dtype gradient; /* type of its gradients, or of their factors */
    tg_shape shape;
    tg_tensor weight; /* a view of it where the backend computes, without data in an outline; an
                         optimizer writes it between two steps or when it receives the gradient */
    bool spectral;    /* a dense spectral weight, whose gradients come factored, or the core of a
                         factorized one: optimizers compress these */
    int64_t first, whole; /* of a run that splits samples over ranks: dimension 2 has rows first ..
                             of `whole`, those of this rank; whole 0: it has all */
} tg_fno_param;

TG_API int tg_fno_param_count(const tg_fno *fno);
/* The parameter number `index`, 0-based: the `param` of its gradients. All zero beyond the last. */
TG_API tg_fno_param tg_fno_get_param(const tg_fno *fno, int index);

/* The number of weights, and of those that are NaN or infinite; a complex one counts once. */
TG_API TG_NODISCARD tg_status tg_fno_nonfinite(const tg_fno *fno, int64_t *count, int64_t *total);

/* Copies weights from and to an archive under prefix + name; the prefix may be "". Loading needs
 * every parameter in its shape, in any dtype that converts; after a failure some may be loaded. */
TG_API TG_NODISCARD tg_status tg_fno_load(tg_fno *fno, const tg_archive *archive,
                                          const char *prefix);
TG_API TG_NODISCARD tg_status tg_fno_save(const tg_fno *fno, tg_archive *archive,
                                          const char *prefix);

/* Sets the modes in use (n_dim numbers), as incremental_n_modes: n_modes less an even number, so
 * that every frequency keeps its weights. Discards the buffers of tg_fno_prepare. */
TG_API TG_NODISCARD tg_status tg_fno_set_modes(tg_fno *fno, const int64_t *modes);

/* ---- Memory ---- */

typedef struct tg_fno_memory {
    int64_t parameters;              /* real numbers: a complex one counts as two */
    size_t bytes[TG_MEM_CATEGORIES]; /* weights; activations, workspace and (in training) a small
                                        buffer of gradients */
    size_t total;
    size_t transforms; /* of the workspace: buffers of the transforms, */
    size_t host;       /* of these the bytes on the host, if the backend computes elsewhere */
} tg_fno_memory;

/* The memory of tg_fno_create and tg_fno_prepare, from the settings. `shared`: a workspace shared
 * by tg_step_share_workspace, which adds only what does not fit into the activations; or NULL. */
TG_API TG_NODISCARD tg_status tg_fno_plan(tg_context *ctx, const tg_fno_config *config,
                                          int64_t batch, const int64_t *grid, bool training,
                                          const tg_shared_workspace *shared, tg_fno_memory *out);

/* One phase of a training step, and the bytes in use of tg_fno_prepare's two arenas. */
typedef struct tg_fno_phase {
    char name[48];      /* "block 2: mixing", "loss", "back through block 2: transform", .. */
    bool is_backward;   /* after the loss */
    bool sends;         /* gradients of parameters leave to the sink .. */
    bool sends_factors; /* .. that of a spectral weight, factored */
    size_t activations, workspace;
    double flops;   /* of MLPs, linear skips, transforms, spectral products and graph kernels, as
                       defined, without the savings of a backend */
    double traffic; /* bytes that its layers read and write, with gradients that leave */
} tg_fno_phase;

/* The phases in order, at most `capacity` of *count; out NULL: only the count. */
TG_API TG_NODISCARD tg_status tg_fno_phases(tg_context *ctx, const tg_fno_config *config,
                                            int64_t batch, const int64_t *grid, tg_fno_phase *out,
                                            int capacity, int *count);

/* Allocates every buffer for batches of up to `batch` samples on a grid (n_dim sizes; of a GINO
 * those of the latent grid, then the numbers of points and queries), in place of earlier ones
 * unless they fit. Without `training` there is no backward, and far less memory. The workspace of a
 * loss hs<s> is allocated with the first loss. */
TG_API TG_NODISCARD tg_status tg_fno_prepare(tg_fno *fno, int64_t batch, const int64_t *grid,
                                             bool training);

/* ---- Places of a GINO ---- */

/* Points (n, n_dim), queries (m, n_dim) and the latent grid (grid.., n_dim; NULL: i / (N - 1) along
 * each axis), f32 or f64 on the host or where the backend computes, for all samples until they are
 * set again or tg_fno_prepare discards them. Allocates nothing. */
TG_API TG_NODISCARD tg_status tg_fno_set_points(tg_fno *fno, const tg_tensor *points,
                                                const tg_tensor *queries, const tg_tensor *latent);

/* Features (b, latent_feature_channels, latent grid..) of the next forward, which reads them. */
TG_API TG_NODISCARD tg_status tg_fno_set_features(tg_fno *fno, const tg_tensor *features);

/* ---- Running ---- */

/* y (b, out_channels, grid..) = network(x (b, in_channels, grid..)), b up to the prepared batch; of
 * a GINO y (b, out_channels, m) and x (b, in_channels, n). Tensors on the host or where the backend
 * computes; complex data: c64 or c128. */
TG_API TG_NODISCARD tg_status tg_fno_forward(tg_fno *fno, const tg_tensor *x, tg_tensor *y);

/* Backward pass of the last forward: dy = dL/dy, in the shape of y. Each gradient goes to the sink
 * as soon as its weight is no longer needed, so that the sink may update it at once (gradient.h). A
 * forward serves one backward. */
TG_API TG_NODISCARD tg_status tg_fno_backward(tg_fno *fno, const tg_tensor *dy,
                                              const tg_grad_sink *sink);

/* Forward, loss and backward; *loss, on the host, is the sum over batch and channels. */
TG_API TG_NODISCARD tg_status tg_fno_loss_backward(tg_fno *fno, const tg_tensor *x,
                                                   const tg_tensor *target,
                                                   const tg_loss_config *config,
                                                   const tg_grad_sink *sink, double *loss);

TG_C_END
#endif
