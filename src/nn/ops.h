/* What a kind of op is: how it is run on a backend, differentiated and placed. */
#ifndef TG_NN_OPS_H
#define TG_NN_OPS_H

#include <stddef.h>

#include "nn/network.h"

/* What a rule for backward is asked for: the gradient at an input, from dy at the output. */
typedef struct nn_request {
    int input, dy;
    int sum;     /* what it is added to, if the kind adds; -1: nothing */
    bool wanted; /* otherwise gradients of parameters alone are made, and -1 is returned */
} nn_request;

typedef struct nn_kind_row {
    const char *name;
    size_t slot; /* that it calls, as an offset in tg_backend_ops; 0: none */
    bool loads;  /* its X may be the activation of what it reads */
    bool adds;   /* its backward op can add to a sum of gradients; otherwise it overwrites */
    bool makes_gradients; /* of the parameters op.param .. + op.params - 1, from zero .. */
    bool sets_gradients;  /* .. or without a look at what is there */
    nn_kind at_end; /* the kind of op that makes the gradients of its parameters from X and dy and
                       hands them over at the end of backward; 0: they leave before */
    /* Gives that op what else there is of the forward op. NULL: nothing. */
    void (*end)(const nn_program *program, const nn_op *op, nn_op *at_end);
    tg_status (*run)(tg_fno *fno, const nn_op *op);
    /* Emits the backward ops for one input; returns the gradient at it. NULL: no gradient. */
    int (*back)(nn_program *program, const nn_op *op, nn_request ask);
    nn_kind backward; /* of the op that the two functions below emit */
    /* Whether the gradient at X may take the place of dy. NULL: no. */
    bool (*back_in_place)(const nn_program *program, const nn_op *op);
    /* Bytes that it works in. NULL: none. */
    void (*scratch)(const nn_program *program, tg_backend *be, const nn_op *op, size_t bytes[2]);
    /* Operations of arithmetic, multiply and add counted apart. NULL: few. */
    double (*flops)(const nn_program *program, const nn_op *op);
    /* Inputs whose memory its first output (ends_over: its last one) may take, as a sum of
     * NN_OVER(input), if the function (NULL: always) says so. */
    int overwrites;
    bool ends_over;
    bool (*in_place)(const nn_program *program, const nn_op *op);
} nn_kind_row;

#define NN_OVER(input) (1 << (input))
#define NN_SLOT(name)  offsetof(tg_backend_ops, name)

#define NN_KIND(kind, row) extern const nn_kind_row row;
#include "nn/ops.def"

const nn_kind_row *nn_kind_of(nn_kind kind);

/* Backward by one op: from X and dy, the gradients of parameters and, added to the sum, at X. What
 * the forward op adds to gets dy itself. */
int nn_back_by_op(nn_program *program, const nn_op *op, nn_request ask);
/* The same of what is linear and has no parameters: from dy alone. */
int nn_back_of_dy(nn_program *program, const nn_op *op, nn_request ask);

/* A backward op makes the gradients of what its forward op reads. */
static inline void nn_op_makes_gradients(nn_op *back, const nn_op *op) {
    back->param = op->reads;
    back->params = op->read_count;
}

/* ---- when ops run ---- */

/* Where a value lies, of one of the whole batch the samples in flight; NULL for -1. */
static inline void *nn_data(const tg_fno *fno, int value) {
    if (value < 0) {
        return NULL;
    }
    const nn_value *v = &fno->run.program.values[value];
    const int64_t first = v->is_whole ? fno->run.first : 0; /* spectra, which have one plane */
    return nn_element(v->dtype, v->data, first * v->channels * v->points);
}

/* Its plane q, of the batch that runs; NULL for -1. */
void *nn_plane(const tg_fno *fno, int value, int q);

/* Elements of a value, of the batch that runs. */
int64_t nn_numbers(const tg_fno *fno, int value);

static inline tg_storage nn_store(const nn_program *program, int value) {
    return tg_storage_of(program->values[value].dtype);
}

/* ---- the ops that builders add: each returns the value that it makes ---- */

int nn_add_input(nn_program *program);
int nn_add_embed(nn_program *program, int x);
int nn_add_join(nn_program *program, int x);
int nn_add_mlp(nn_program *program, const nn_mlp *mlp, nn_role role, int x);
int nn_add_channel_mlp(nn_program *program, const nn_mlp *mlp, int module, int x);
int nn_add_pad(nn_program *program, int x);
int nn_add_crop(nn_program *program, int x);
int nn_add_transform(nn_program *program, int x);
int nn_add_contract(nn_program *program, int weight, int spectrum);
int nn_add_factorized(nn_program *program, int weight, int spectrum);
int nn_add_inverse(nn_program *program, int spectrum);
int nn_add_bias(nn_program *program, int bias, int x);
int nn_add_skip(nn_program *program, const nn_skip *skip, int x, int sum); /* sum + S(x) */
int nn_add_norm(nn_program *program, const nn_norm *norm, int x);
int nn_add_activation(nn_program *program, int x);
int nn_add_gno(nn_program *program, const nn_gno *gno, bool with_tanh, int x);
int nn_add_features(nn_program *program, int x);

/* The call of a block's slot, without pointers; the plan of its transform is told by `desc`. */
tg_block nn_block_call(const nn_program *program, const nn_op *op, const tg_fft_desc *desc);
tg_block_back nn_block_back_call(const nn_program *program, const nn_op *op,
                                 const tg_fft_desc *desc);
/* Whether the backend takes the X of a backward op of an MLP in bytes, which it is. */
bool nn_mlp_back_reads_bytes(const nn_program *program, tg_backend *be, const nn_op *op);
/* Operations of a transform of one image of a value on the grid. */
double nn_transform_flops(const nn_value *image);

/* Behind forward: target and loss, which make dL/dy. */
void nn_add_loss(nn_program *program);
/* Behind backward: dL/dx leaves. */
void nn_add_input_gradient(nn_program *program, int dx);
/* sum + dy, by the pass that differentiates. */
int nn_add_accumulate(nn_program *program, int dy, int sum);

#endif
