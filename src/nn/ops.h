/* The kinds of ops: how each is run on a backend, differentiated and placed. */
#ifndef TG_NN_OPS_H
#define TG_NN_OPS_H

#include <stddef.h>

#include "nn/network.h"

/* Request to a backward rule: the gradient at an input, from dy at the output. */
typedef struct nn_request {
    int input, dy;
    int sum;     /* value to add to, if the kind can; -1: none */
    bool wanted; /* if not, only gradients of parameters are computed, and -1 is returned */
} nn_request;

typedef struct nn_kind_row {
    const char *name;
    size_t slot; /* that it calls, as an offset in tg_backend_ops; 0: none */
    bool loads;  /* it can apply an activation as it loads X */
    bool adds;   /* its backward op can add to a sum of gradients; otherwise it overwrites */
    bool makes_gradients; /* of the parameters op.param .. + op.params - 1, accumulating .. */
    bool sets_gradients;  /* .. or overwriting them */
    nn_kind at_end; /* the kind of op that computes its parameters' gradients from X and dy and
                       hands them over at the end of backward; 0: they leave earlier */
    /* Copies further fields of the forward op to that op. NULL: none. */
    void (*end)(const nn_program *program, const nn_op *op, nn_op *at_end);
    tg_status (*run)(tg_fno *fno, const nn_op *op);
    /* Emits the backward ops for one input; returns the gradient at it. NULL: no gradient. */
    int (*back)(nn_program *program, const nn_op *op, nn_request ask);
    nn_kind backward; /* of the op that the two functions below emit */
    /* Whether the gradient at X may overwrite dy. NULL: no. */
    bool (*back_in_place)(const nn_program *program, const nn_op *op);
    /* Bytes of its scratch. NULL: none. */
    void (*scratch)(const nn_program *program, tg_backend *be, const nn_op *op, size_t bytes[2]);
    /* Arithmetic operations; multiply and add count as two. NULL: few. */
    double (*flops)(const nn_program *program, const nn_op *op);
    /* Inputs that its first output (ends_over: its last one) may overwrite, as a sum of
     * NN_OVER(input), if the function (NULL: always) allows it. */
    int overwrites;
    bool ends_over;
    bool (*in_place)(const nn_program *program, const nn_op *op);
} nn_kind_row;

#define NN_OVER(input) (1 << (input))
#define NN_SLOT(name)  offsetof(tg_backend_ops, name)

#define NN_KIND(kind, row) extern const nn_kind_row row;
#include "nn/ops.def"

const nn_kind_row *nn_kind_of(nn_kind kind);

/* Backward by one op: from X and dy, the gradients of parameters and, added to the sum, at X. An
 * input that the forward op adds to gets dy itself. */
int nn_back_by_op(nn_program *program, const nn_op *op, nn_request ask);
/* The same for linear ops without parameters: from dy alone. */
int nn_back_of_dy(nn_program *program, const nn_op *op, nn_request ask);
/* The same for ops that append channels to those of X: the part of dy for an input. */
int nn_back_part(nn_program *program, const nn_op *op, nn_request ask);

/* Lets a backward op compute the gradients of the parameters that its forward op reads. */
static inline void nn_op_makes_gradients(nn_op *back, const nn_op *op) {
    back->param = op->reads;
    back->params = op->read_count;
}

/* ---- when ops run ---- */

/* The memory of a value; for one of the whole batch that of the samples in flight; NULL for -1. */
static inline void *nn_data(const tg_fno *fno, int value) {
    if (value < 0) {
        return NULL;
    }
    const nn_value *v = &fno->run.program.values[value];
    const int64_t first = v->is_whole ? fno->run.first : 0; /* spectra, which have one plane */
    return nn_element(v->dtype, v->data, first * v->channels * v->points);
}

/* Its plane q, for the samples in flight; NULL for -1. */
void *nn_plane(const tg_fno *fno, int value, int q);

/* Elements of a value, for the samples in flight. */
int64_t nn_numbers(const tg_fno *fno, int value);

static inline tg_storage nn_store(const nn_program *program, int value) {
    return tg_storage_of(program->values[value].dtype);
}

/* ---- ops for builders: each returns the value that it computes ---- */

int nn_add_input(nn_program *program);
int nn_add_embed(nn_program *program, int x);
int nn_add_join(nn_program *program, int x);
int nn_add_mlp(nn_program *program, const nn_mlp *mlp, nn_role role, int x);
int nn_add_channel_mlp(nn_program *program, const nn_mlp *mlp, int module, int x);
/* The transform of dimension 0 of a split network: to the block of modes of this rank, from there
 * to the rows of this rank. */
int nn_add_to_modes(nn_program *program, int transform, int x);
int nn_add_from_modes(nn_program *program, int transform, int spectrum);
int nn_add_pad(nn_program *program, int x);
int nn_add_crop(nn_program *program, nn_grid grid, int x);
/* To modes (per dimension; of real data the last one halved). */
int nn_add_transform(nn_program *program, const int64_t *modes, int x);
/* To a grid; in another one than that of x, the modes are where neuraloperator places them. */
int nn_add_inverse_on(nn_program *program, nn_grid grid, int spectrum);
/* F^-1 on a grid of these modes of x, without a weight between. */
int nn_add_filtered(nn_program *program, const int64_t *modes, nn_grid grid, int x);
/* x on a grid: x itself if it is there. */
int nn_add_resample(nn_program *program, nn_grid grid, int x);
int nn_add_concat(nn_program *program, int x, int second);
int nn_add_contract(nn_program *program, const nn_conv *conv, int spectrum);
int nn_add_factorized(nn_program *program, const nn_conv *conv, int spectrum);
int nn_add_bias(nn_program *program, int bias, int x);
int nn_add_skip(nn_program *program, const nn_skip *skip, int x, int sum); /* sum + S(x) */
int nn_add_map(nn_program *program, const nn_skip *skip, int x);           /* S(x) */
int nn_add_norm(nn_program *program, const nn_norm *norm, int x);
int nn_add_activation(nn_program *program, int x);
int nn_add_gno(nn_program *program, const nn_gno *gno, bool with_tanh, int x);
int nn_add_features(nn_program *program, int x);

/* The arguments of a block's slot, without pointers. */
tg_block nn_block_call(const nn_program *program, const nn_op *op);
tg_block_back nn_block_back_call(const nn_program *program, const nn_op *op);
/* Whether the backend accepts the X of an MLP's backward op quantized to 8 bits, as it is here. */
bool nn_mlp_back_accepts_quantized(const nn_program *program, tg_backend *be, const nn_op *op);
/* Bytes that the ranks of a split network add up in a norm, or its backward op. */
size_t nn_norm_sent(const nn_program *program, const nn_op *op);
/* Operations of a transform of one image of a value on the grid. */
double nn_transform_flops(const nn_value *image);

/* After forward: target and loss, which compute dL/dy. */
void nn_add_loss(nn_program *program);
/* After backward: hands dL/dx over. */
void nn_add_input_gradient(nn_program *program, int dx);
/* sum + dy, for the pass that differentiates. */
int nn_add_accumulate(nn_program *program, int dy, int sum);

/* The two parts of a layer of complex data, fr (0) and fi (1):
 * out = fr(Re) - fi(Im) + i [fr(Im) + fi(Re)]. */

/* The plane at the other end of a part, seen from plane q. */
static inline int nn_part_across(int part, int q) {
    return part == 0 ? q : 1 - q;
}

/* Its sign in plane `out`. */
static inline double nn_part_sign(int part, int out) {
    return part == 1 && out == 0 ? -1.0 : 1.0;
}

#endif
