/* A model without a grid: its settings, its parameters, and the builder of its programs.
 *
 * Activations are (planes, batch, channels, pixels): one plane for real data; two, real and
 * imaginary parts, for complex data. MLPs and skips of complex data are pairs (fr, fi):
 * out = fr(Re) - fi(Im) + i [fr(Im) + fi(Re)]; "part" 0 is fr, 1 is fi. */
#ifndef TG_NN_MODEL_H
#define TG_NN_MODEL_H

#include "backend/backend.h"
#include "base/system.h"
#include "tgrad/comm.h"
#include "tgrad/fno.h"

/* Room for one more element in owner->list, which has owner->name_count elements. */
#define NN_GROW(owner, list, name)                                                                 \
    tg_mem_grow((owner)->ctx, &(owner)->list, sizeof *(owner)->list, (owner)->name##_count, 1,     \
                &(owner)->name##_capacity)

/* ---- factorized spectral weights (factors.c) ----
 *
 * The parameters that represent a weight (Cin, Cout, M1 .. Md), and the product with it, computed
 * from them without forming it.
 *
 *   Tucker  core (r0, r1, s1 .. sd), factors (Cin, r0), (Cout, r1), (Mk, sk)
 *   CP      weights (R), factors (Cin, R), (Cout, R), (Mk, R)
 *   TT      factors (1, Cin, r1), (r1, Cout, r2), (r2, M1, r3) .. (rd+1, Md, 1)
 *
 * Channels are mapped first, then multiplied mode by mode with a weight in between, and mapped
 * back:
 *
 *   x (Cin, modes) -> x' (inner_in, modes) -> y' (inner_out, modes) -> y (Cout, modes)
 *
 * The inner weight (inner_in, inner_out, modes) is a chain of matrix products that begins at the
 * core. For CP and separable weights it is one number per channel and mode. */

enum { NN_MAX_FACTORS = TG_FNO_MAX_DIMS + 2 };

/* One product of the chain, `batch` times: next (m, n) = left (m, k) right (k, n). One operand is
 * the chain so far, the other a factor: matrices with rows `ld` apart, `stride` apart from each
 * other (0: the same for all), possibly transposed. */
typedef struct nn_link {
    int param; /* its number, counted from the first of the weight */
    bool is_left, is_transposed;
    int64_t batch, m, n, k, ld, stride;
} nn_link;

static inline int64_t nn_link_numbers(const nn_link *link) {
    return link->batch * link->m * link->n;
}

typedef struct nn_factors {
    int params; /* 0: a dense weight, which is itself a parameter */
    tg_shape shape[NN_MAX_FACTORS + 1];
    double deviation[NN_MAX_FACTORS + 1]; /* of the initial numbers; 0: they are 1 */
    int core;                             /* the start of the chain */
    int in, out;                          /* the maps; -1: none */
    int64_t inner_in, inner_out;
    bool is_separable; /* inner_in is inner_out, with no sum in between */
    int links;
    nn_link link[TG_FNO_MAX_DIMS];
} nn_factors;

/* For a weight (in, out, modes) of a network with these settings. */
TG_NODISCARD tg_status nn_factors_make(tg_context *ctx, const tg_fno_config *config, int64_t in,
                                       int64_t out, const int64_t *modes, nn_factors *factors);

/* The name of a parameter, appended to its module's: "weight.core", "weight.factors.factor_2". */
void nn_factors_name(tg_factorization form, int param, char *text, size_t capacity);

/* Whether an optimizer may compress its gradients: the large ones. */
bool nn_factors_compresses(tg_factorization form, const nn_factors *factors, int param);

/* ---- one sample over several ranks (ops/split.c) ----
 *
 * The grid inside the network is cut into slabs along dimension 0, a spectral weight into blocks
 * along its first mode dimension: part d of D has rows n d / D .. n (d + 1) / D of each. */

typedef struct nn_split {
    int parts, part; /* parts below 2: not split */
    tg_comm *comm;   /* of the parts; NULL: only to plan */
} nn_split;

typedef struct nn_rows {
    int64_t first, count;
} nn_rows;

/* The rows of a part; all of them without a split. */
static inline nn_rows nn_rows_of(const nn_split *split, int part, int64_t rows) {
    const tg_range range = tg_slab_of(rows, split->parts, part);
    return (nn_rows){range.begin, range.end - range.begin};
}

static inline bool nn_is_split(const nn_split *split) {
    return split->parts > 1;
}

/* ---- settings and parameters ---- */

/* Channels of the hidden layers. */
int64_t nn_lifting_hidden(const tg_fno_config *config);
int64_t nn_projection_hidden(const tg_fno_config *config);
int64_t nn_mlp_hidden(const tg_fno_config *config, int64_t channels); /* of a block */

/* The layer of a UNO whose output this one reads besides its input; -1: none. */
int nn_uno_reads(const tg_fno_config *config, int layer);

/* The function between layers. */
tg_act nn_act_of(const tg_fno_config *config);

/* Storage formats of the network's arrays. */
typedef struct nn_stores {
    tg_storage activation; /* inside: from the lifting to the projection's input */
    tg_storage spectrum;   /* kept modes, and gradients of spectral weights as factors */
    tg_storage weight;     /* spectral weights */
    tg_precision saved;    /* of values saved for backward: full, bf16 or 8bit */
} nn_stores;

nn_stores nn_stores_of(const tg_fno_config *config);

/* ---- parameters ---- */

typedef enum nn_init { NN_INIT_SPECTRAL, NN_INIT_NORMAL, NN_INIT_UNIFORM, NN_INIT_CONST } nn_init;

typedef struct nn_param {
    char name[64];
    tg_dtype dtype; /* in memory */
    tg_shape shape;
    bool spectral;       /* an optimizer may compress its gradients .. */
    bool factored;       /* .. which are handed over as factors */
    nn_rows block;       /* of a split weight: its rows in dimension 2 .. */
    int64_t whole;       /* .. of this many; 0: not split */
    size_t offset;       /* in the block of weights */
    size_t dense_offset; /* of its gradient, among those that are not factored */
    nn_init init;
    double scale; /* deviation, bound or value */
    int stream;   /* number of the random stream; fi has that of fr, so both start equal */
} nn_param;

/* Layers, by the numbers of their parameters in the list; those of one layer are consecutive. */
typedef struct nn_mlp {
    int64_t in, hidden, out;
    tg_act act;      /* of the hidden layer */
    int param[2][4]; /* [part]: w1 (hidden, in), b1, w2 (out, hidden), b2 */
} nn_mlp;

typedef struct nn_skip {
    tg_skip_map kind;
    int param[2]; /* [part]; -1: identity has none */
} nn_skip;

typedef struct nn_norm {
    int weight, bias; /* -1: not affine */
} nn_norm;

/* The two transforms of a GINO: from points to the latent grid, and from there to the queries. */
typedef enum nn_side { NN_TO_GRID, NN_TO_QUERIES, NN_SIDES } nn_side;

typedef struct nn_gno {
    tg_gno_config config;
    nn_side side;
    int layers; /* of its kernel; 0: no such transform */
    int param;  /* the first: weight (out, in) and bias of each layer */
} nn_gno;

/* A spectral convolution: a weight (in, out, modes) and a bias (out). */
typedef struct nn_conv {
    int64_t in, out;
    int64_t modes[TG_FNO_MAX_DIMS]; /* the last one is halved for real data */
    int64_t mode_count;
    nn_factors factors;
    int weight, bias; /* of a factorized weight the first parameter */
} nn_conv;

typedef struct nn_block {
    int number;     /* from 0 */
    bool activates; /* before its MLP and, unless activations come first, at its end */
    nn_conv conv;
    nn_skip fno_skip, mlp_skip, horizontal; /* the latter to a later block of a UNO */
    nn_mlp mlp;
    nn_norm norm[2];
} nn_block;

/* ---- the model ---- */

struct nn_model;
struct nn_program;

typedef struct nn_architecture {
    void (*declare)(struct nn_model *model); /* its parameters, in the order of the list */
    void (*build)(const struct nn_model *model, struct nn_program *program); /* input to output */
} nn_architecture;

typedef struct nn_model {
    tg_context *ctx;
    tg_fno_config config;
    const nn_architecture *architecture;
    nn_stores stores;
    nn_split split;
    tg_act act;                /* between layers: fno.non_linearity */
    int planes;                /* 1; 2 for complex data */
    int64_t embedded_channels; /* in_channels and coordinates; GINO: the input of the lifting */
    nn_mlp lifting, projection;
    nn_gno gno[NN_SIDES];
    nn_block *blocks; /* (n_layers) */
    nn_param *params; /* (param_count) */
    int param_count;
    int64_t param_capacity;
    size_t weight_bytes;
    size_t dense_bytes; /* of the gradients that are not factored */
    int64_t parameters; /* real numbers */
    tg_status status;   /* the first failure of a declaration */
} nn_model;

/* `split` NULL: none. */
TG_NODISCARD tg_status nn_model_create(tg_context *ctx, const tg_fno_config *config,
                                       const nn_split *split, nn_model *out);
void nn_model_destroy(nn_model *model);

/* For architectures; `module` is neuraloperator's name. Failures stay in model->status. */
void nn_declare_mlp(nn_model *model, const char *module, int64_t in, int64_t hidden, int64_t out,
                    nn_mlp *mlp);
void nn_declare_skip(nn_model *model, const char *module, tg_fno_skip kind, int64_t in, int64_t out,
                     nn_skip *skip);
void nn_declare_norm(nn_model *model, const char *module, int64_t channels, nn_norm *norm);
void nn_declare_gno(nn_model *model, const char *module, const tg_gno_config *config, nn_side side,
                    nn_gno *gno);
void nn_declare_conv(nn_model *model, const char *module, int64_t in, int64_t out,
                     const int64_t *n_modes, nn_conv *conv);

/* A spectral weight from its factors, and factors for a spectral weight (factors.c). Tensors are
 * c64 or c128 on the host, where the backend must compute. */

/* W (Cin, Cout, M1 .. Md) = the product of its factors, given in the model's order; creates
 * `dense`. */
TG_NODISCARD tg_status nn_compose(const nn_model *model, tg_backend *be, const nn_conv *conv,
                                  const tg_tensor *factor, tg_tensor *dense);

/* Factors of the convolution's shapes for W: Tucker by HOSVD and sweeps of HOOI, TT by an SVD per
 * mode. Creates those in `factor`, also if it fails. */
TG_NODISCARD tg_status nn_decompose(const nn_model *model, tg_backend *be, const nn_conv *conv,
                                    const tg_tensor *dense, tg_tensor *factor);

#endif
