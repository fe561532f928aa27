/* Blocks that the backend computes in one call (tg_block): INVERSE, then SKIP on top of it, then,
 * if it follows, the MLP of what comes out become one op BLOCK, where the last of them stood. The
 * last pass before values are placed, because backends are asked with the formats that they will
 * meet, and because checkpointing lists parts of a block again. */
#include <stdio.h>
#include <string.h>

#include "nn/ops.h"
#include "nn/passes/passes.h"

/* The op behind number i that reads a value there; NULL: none. */
static nn_op *reader_of(const nn_program *p, int i, nn_kind kind, int input, int value) {
    for (int k = i + 1; k < p->op_count; k++) {
        if (p->ops[k].kind == kind && p->ops[k].in[input] == value) {
            return &p->ops[k];
        }
    }
    return NULL;
}

/* Whether the MLP works on what the skip has made, and adds to it what that has read, if any. */
static bool is_of_block(const nn_op *mlp, const nn_op *skip) {
    const int added = mlp->in[NN_ADD];
    return mlp->mlp->in == mlp->mlp->out && mlp->dropout == 0.0 && mlp->in[NN_SUM] < 0 &&
           mlp->act != TG_ACT_TANH &&
           (added < 0 || (added == skip->in[NN_X] && skip->act == TG_ACT_NONE));
}

/* Values that nobody reads are not made. */
static int wanted(const nn_links *links, int value, int readers) {
    return value >= 0 && links->readers[value] > readers ? value : -1;
}

static nn_op block_of(const nn_links *links, const nn_op *inverse, const nn_op *skip,
                      const nn_op *mlp) {
    nn_op block = *skip;
    block.kind = NN_BLOCK;
    block.in[NN_MODES] = inverse->in[NN_X];
    block.in[NN_SUM] = -1;
    block.scale = inverse->scale;
    if (mlp) {
        block.mlp = mlp->mlp;
        block.adds_input = mlp->in[NN_ADD] >= 0;
        block.gate = mlp->gate;
        block.inner_act = mlp->act;
        block.out[0] = wanted(links, skip->out[0], 1); /* the MLP reads it here */
        block.out[1] = wanted(links, mlp->out[0], 0);
        block.out[2] = mlp->out[1];
    }
    return block;
}

/* The phase of both, if they are of two: "block 2: inverse transform, mixing". */
static int phase_of(nn_program *p, const nn_op *skip, const nn_op *mlp) {
    if (skip->phase == mlp->phase) {
        return skip->phase;
    }
    const nn_phase *first = &p->phases[skip->phase], *second = &p->phases[mlp->phase];
    const char *scope = strchr(second->name, ':');
    char name[2 * sizeof first->name];
    snprintf(name, sizeof name, "%s,%s", first->name, scope ? scope + 1 : second->name);
    return nn_phase_named(p, name, first->is_backward);
}

static void take(nn_program *p, tg_backend *be, const nn_links *links, int i) {
    nn_op *inverse = &p->ops[i];
    nn_op *skip = inverse->kind == NN_INVERSE && !inverse->is_adjoint
                      ? reader_of(p, i, NN_SKIP, NN_SUM, inverse->out[0])
                      : NULL;
    if (!skip || skip->skip->kind != TG_SKIP_MAP_LINEAR || links->readers[inverse->out[0]] != 1) {
        return;
    }
    const tg_fft_desc desc = nn_geometry_fft(p->model, &p->geometry, p->images);
    const int z1 = skip->out[0];
    nn_op *mlp = reader_of(p, (int)(skip - p->ops), NN_MLP, NN_X, z1);
    for (int with_mlp = 1; with_mlp >= 0; with_mlp--) {
        nn_op *last = with_mlp ? mlp : skip;
        if (!last || (with_mlp && !is_of_block(mlp, skip))) {
            continue;
        }
        nn_op block = block_of(links, inverse, skip, with_mlp ? mlp : NULL);
        const tg_block call = nn_block_call(p, &block, &desc);
        size_t bytes = 0;
        if (be->ops->block_workspace(be, &call, &bytes)) {
            block.phase = phase_of(p, skip, last);
            inverse->kind = skip->kind = NN_GONE;
            *last = block;
            return;
        }
    }
}

tg_status nn_pass_fuse_blocks(nn_program *p, tg_backend *be) {
    tg_status status = TG_OK;
    nn_links links = {0};
    if (!be->ops->block_workspace || p->model->planes > 1 || p->geometry.windowed) {
        return TG_OK;
    }
    TG_TRY(nn_links_make(p, &links));
    for (int i = 0; i < p->op_count; i++) {
        take(p, be, &links, i);
    }
    nn_leave_out_gone(p);
fail:
    nn_links_free(p, &links);
    return status;
}
