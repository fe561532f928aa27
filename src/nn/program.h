/* A network as a static program: the list of ops of one step, for one model, batch and grid.
 *
 *   value      an array (planes, batch, channels, points) on a grid of its own, with a role, which
 *              decides its storage format; written once (a value that an op adds to becomes a new
 *              value, in its memory)
 *   transform  between a grid and kept modes
 *   op         a kind with attributes, the values it reads and writes, and its parameters
 *   program    forward ops, the loss, backward ops, hand-overs of gradients to the sink
 *
 * A model's builder (models/) lists the forward ops. The passes (passes/) then write the backward
 * ops, fuse what a backend computes in one call, insert recomputation for checkpointing, choose
 * formats, and place every value in one of two arenas. Memory plans, profiles and steps read the
 * same program. */
#ifndef TG_NN_PROGRAM_H
#define TG_NN_PROGRAM_H

#include "base/memory.h"
#include "nn/model.h"

/* ---- arenas (arena.c) ----
 *
 * Buffers of one arena share bytes only if they are never alive together. Time is counted in the
 * ops of a step. Buffers are placed largest first, each at the lowest offset that is free during
 * its whole life, so the bytes of an arena follow from shapes alone. */

typedef struct nn_buffer {
    void **pointer; /* set when the arena is bound to memory */
    size_t bytes;   /* a multiple of TG_ALIGNMENT */
    int born, dies; /* alive in the ops born .. dies, both included */
    int number;     /* in the order of requests */
    bool stays;     /* placed first, alive all the time */
    int rank;       /* order among buffers of one size */
    size_t offset;
} nn_buffer;

typedef struct nn_arena {
    tg_context *ctx;
    nn_buffer *buffers; /* in the order of placement once solved */
    int buffer_count;
    int64_t buffer_capacity;
    size_t bytes; /* of the arena, once solved */
    int end;      /* a time that should have room: buffers alive then are placed side by side */
    bool is_late; /* among buffers of one size, place those that die last first, not the oldest */
} nn_arena;

/* Requests bytes at *pointer. */
TG_NODISCARD tg_status nn_arena_add(nn_arena *arena, void **pointer, size_t bytes, int born,
                                    int dies);
void nn_arena_solve(nn_arena *arena);
/* One more buffer in a solved arena; the others stay in place. nn_arena_growth: the bytes by which
 * the arena would grow. */
size_t nn_arena_growth(const nn_arena *arena, size_t bytes, int born, int dies);
TG_NODISCARD tg_status nn_arena_place(nn_arena *arena, void **pointer, size_t bytes, int born,
                                      int dies);
/* Sets every pointer; `memory` has arena->bytes. */
void nn_arena_bind(const nn_arena *arena, void *memory);
void nn_arena_free(nn_arena *arena);

/* Test hook, for the whole process: place all buffers apart, as if they lived all the time. */
void nn_arena_test_apart(bool apart);

/* ---- grids and transforms (geometry.c) ---- */

typedef struct nn_grid {
    int64_t size[TG_FNO_MAX_DIMS]; /* 0 beyond its dimensions */
} nn_grid;

/* Where the data are. */
typedef struct nn_domain {
    nn_grid grid;
    int64_t pixels;
    int64_t points, queries; /* of a GINO, whose grid is the latent one; otherwise the grid's */
} nn_domain;

TG_NODISCARD tg_status nn_domain_make(const nn_model *model, int64_t batch, const int64_t *grid,
                                      nn_domain *out);

/* A grid with domain padding. */
nn_grid nn_padded(const nn_model *model, nn_grid grid);

/* The rows of dimension 0 of a grid, padded or not, that a part of a split network has: those of
 * the data, to which the first and the last part add the zeros around. */
nn_rows nn_slab_of(const nn_model *model, const nn_domain *domain, nn_grid grid, int part);

/* Modes `mode` .. + count - 1 of one dimension of a spectrum, stored from number `kept` on among
 * those that the grid keeps. */
typedef struct nn_span {
    int64_t count, mode, kept;
} nn_span;

/* Between a grid and the modes of a spectrum. Modes without a frequency of the grid are 0. */
typedef struct nn_transform {
    tg_fft_desc desc;
    int64_t modes[TG_FNO_MAX_DIMS], mode_count, kept_count;
    nn_span span[TG_FNO_MAX_DIMS][2];
    bool is_windowed; /* the spectrum is not just the kept modes */
    /* Of a split network these are the later dimensions, at each of the slab's `slabs` rows of
     * dimension 0; that one is transformed by a product with a matrix (ops/split.c). In 1-D one
     * point without frequencies remains. */
    int64_t slabs; /* 1 without a split */
    nn_rows rows;  /* of this rank, of n of the grid */
    int64_t n;
    int64_t first_modes; /* modes of dimension 0, of which .. */
    nn_span first_span;  /* .. these have a frequency, */
    int64_t frequency;   /* the first of them */
    bool is_halved;      /* in 1-D, of real data */
    void *matrix;        /* (first_modes, rows), and if halved a weighted one */
} nn_transform;

/* A matrix (to, from) that interpolates along one dimension. */
typedef struct nn_resampling {
    int64_t from, to;
    bool is_cubic; /* or linear */
    void *matrix;  /* once there is memory */
} nn_resampling;

/* ---- values ---- */

typedef enum nn_role {
    NN_DATA,        /* outside the blocks, in the network's dtype */
    NN_ACTIVATION,  /* inside them, and gradients there: stored as fno.activation_precision says */
    NN_SPECTRUM,    /* kept modes, complex: as fno.fno_block_precision says */
    NN_INNER_ARRAY, /* of a factorized weight's product, complex in full width */
    NN_STATISTIC,   /* of a norm, f64 */
    NN_SAVED,       /* an activation or spectrum kept for backward in less memory */
    NN_SCRATCH      /* scratch of one op */
} nn_role;

typedef struct nn_value {
    nn_role role;
    int planes;
    int64_t channels, points;
    nn_grid grid;      /* the whole one of the points, of which a split network has a slab */
    int transform;     /* of a spectrum: that from its grid */
    tg_dtype dtype;    /* in memory; set by the pass of formats. u8: quantized, with scales */
    bool is_boundary;  /* between two blocks: kept by checkpointing `block` */
    bool is_transient; /* never kept for backward: in the workspace */
    bool is_whole;     /* for the whole batch; ops see the samples in flight */
    bool is_single;    /* one for all samples */
    int before_act;    /* the value whose activation this is; -1: none */
    int home;          /* the first value in its memory: itself, or one that was overwritten */
    void *data;        /* set once memory is allocated */
} nn_value;

/* ---- ops ---- */

typedef enum nn_kind {
#define NN_KIND(kind, row) NN_##kind,
#include "nn/ops.def"
    NN_KINDS,
    NN_GONE = NN_KINDS /* taken into another op by fusion */
} nn_kind;

/* Inputs by role. SUM is added to, in place: the first output takes its memory. */
enum {
    NN_X,
    NN_DY,
    NN_SUM,
    NN_STATS,
    NN_MAPPED_DY, /* of a factorized weight, as NN_MAPPED and NN_INNER */
    NN_INPUTS,
    NN_ADD = NN_DY,
    NN_SECOND = NN_DY, /* of a concatenation */
    NN_MODES = NN_STATS,
    NN_MAPPED = NN_STATS,
    NN_INNER = NN_STATS
};
enum { NN_OUTPUTS = 3, NN_SCRATCHES = 2 };

typedef struct nn_op {
    nn_kind kind;
    int in[NN_INPUTS], out[NN_OUTPUTS]; /* values; -1: none */
    int scratch[NN_SCRATCHES];          /* values, too */
    int reads, read_count;              /* the parameters it reads: first and count */
    int param, params;                  /* backward: the parameters whose gradients it computes */
    int phase, back;                    /* its phase, and that of its backward ops */
    int block;                          /* 0: before the blocks */
    /* attributes, as far as the kind has them */
    const nn_mlp *mlp;
    const nn_skip *skip;
    const nn_norm *norm;
    const nn_gno *gno;
    const nn_conv *conv;
    int transform, resampling;
    int dimension;  /* along which to resample */
    int64_t first;  /* channel of a slice */
    int bias, gate; /* parameters; -1: none */
    int module;     /* number of a channel MLP, for dropout */
    double dropout;
    double scale;       /* of a transform */
    tg_act act;         /* reads X as act(X) .. */
    bool through;       /* .. and the gradient is that before act */
    tg_act inner_act;   /* of a block: before its MLP .. */
    bool adds_input;    /* .. and whether gate x is added to the MLP's output */
    bool is_adjoint;    /* of a transform or contraction: the transposed one */
    bool is_stabilized; /* tanh before the transform */
} nn_op;

typedef struct nn_phase {
    char name[48]; /* "block 2: mixing" */
    bool is_backward;
} nn_phase;

/* ---- the program ---- */

typedef struct nn_program {
    tg_context *ctx;
    const nn_model *model;
    nn_domain domain;
    bool training;
    int64_t whole;  /* largest number of samples of a step .. */
    int64_t batch;  /* .. and of those in flight together (fno.micro_batch) */
    int64_t images; /* transformed in one call: 1 on the host, else all in flight */
    nn_value *values;
    int value_count, op_count, phase_count;
    int64_t value_capacity, op_capacity, phase_capacity;
    nn_op *ops;
    nn_transform *transforms;
    nn_resampling *resamplings;
    int transform_count, resampling_count;
    int64_t transform_capacity, resampling_capacity;
    int forward_end, backward_begin; /* the loss is between them */
    int backward_end;                /* then: the hand-overs at the end, once for the whole batch */
    nn_phase *phases;
    int input, output, target, dout; /* values */
    nn_arena activations, workspace;
    bool keeps_gradients;  /* hands dense gradients over together when backward has ended: where
                              micro-batches add to them, and small ones on a device */
    size_t gradient_bytes; /* of the largest group of gradients handed over together */
    tg_shared_workspace shared; /* as requested, with its address at the end of a step */
    /* while it is built: the first failure, and the block and phase of new ops */
    tg_status status;
    const char *scope;
    int phase, back, block;
    int spectral_phase; /* that of handing over the gradients of spectral weights */
} nn_program;

/* Builds, differentiates (training), and places; `shared` is the workspace of the gradients'
 * receiver. Allocates only its own lists. The program points to `model` and into itself. */
TG_NODISCARD tg_status nn_program_create(const nn_model *model, tg_backend *be, int64_t batch,
                                         const int64_t *grid, bool training,
                                         const tg_shared_workspace *shared, nn_program *out);
/* Points every value into the arenas' memory. */
void nn_program_bind(nn_program *program, void *activations, void *workspace);
void nn_program_free(nn_program *program);

size_t nn_value_bytes(const nn_program *program, int value);

/* Whether a step runs in micro-batches. */
static inline bool nn_in_parts(const nn_program *program) {
    return program->batch < program->whole;
}

/* ---- for builders, rules and passes; a failure stays in program->status ---- */

/* Keeps the first failure; whether there is one. */
bool nn_failed(nn_program *program, tg_status status);

/* A new value, like another one or of a new shape. */
int nn_value_add(nn_program *program, nn_value value);
int nn_value_like(nn_program *program, int value);
/* Gives a value another grid, or its slab of that. */
void nn_value_set_grid(nn_program *program, int value, nn_grid grid);

/* The transform between a grid and modes, for this many channels: a new one, or one there is. */
int nn_transform_on(nn_program *program, nn_grid grid, const int64_t *modes, int64_t channels);
/* That to a grid from a spectrum of another one, as neuraloperator computes it: it cuts or extends
 * the array of frequencies 0, 1, .. -2, -1 at its end, so that in all dimensions but the last
 * frequency -k of N points becomes N - k, if the grid has that many points. */
int nn_transform_between(nn_program *program, nn_grid from, nn_grid to, const int64_t *modes,
                         int64_t channels);

/* Marks a value as lying between two blocks; returns it. */
int nn_boundary(nn_program *program, int value);

/* An op without values and parameters; one that reads x and makes a value like it. */
nn_op nn_op_make(nn_kind kind);
nn_op nn_op_on(nn_program *program, nn_kind kind, int x);
/* Appends it to the current phase and block; returns its first output. */
int nn_op_add(nn_program *program, nn_op op);
/* Appends it unchanged. */
void nn_op_append(nn_program *program, const nn_op *op);

/* Later ops belong to this block and, in forward and backward, to phases of these names: with a
 * scope "block 2", "block 2: mixing" and "back through block 2: mixing"; with none "lifting" and
 * "back through the lifting". */
void nn_scope(nn_program *program, int block, const char *scope);
void nn_phase_begin(nn_program *program, const char *forward, const char *backward);
int nn_phase_named(nn_program *program, const char *name, bool is_backward);

/* The output that is the activation of the one before it: added by fusion, omitted without readers;
 * -1: none. */
int nn_activated_output(const nn_program *program, const nn_op *op);

/* The first op that hands over gradients of spectral weights. From it to the end the memory of the
 * activations can be a shared workspace. */
int nn_sharing_begins(const nn_program *program);

/* Removes ops that fusion has absorbed. */
void nn_leave_out_gone(nn_program *program);

/* The op that makes each value and its number of readers: (value_count) ints each, to be freed. */
typedef struct nn_links {
    int *maker, *readers;
} nn_links;
TG_NODISCARD tg_status nn_links_make(const nn_program *program, nn_links *out);
void nn_links_free(const nn_program *program, nn_links *links);

/* Whether one of the ops first .. end - 1 reads a value. */
bool nn_is_read(const nn_program *program, int first, int end, int value);
/* The first op of a kind that reads a value at this input; NULL: none. */
nn_op *nn_reader_of(const nn_program *program, int value, nn_kind kind, int input);

/* ---- the passes between a builder and a program that can run, in their order (passes/) ---- */

/* Backward ops after the loss, last layer first, and the hand-overs of factored gradients. */
TG_NODISCARD tg_status nn_pass_differentiate(nn_program *program);

/* Fuses ops that a backend computes in one call. */
TG_NODISCARD tg_status nn_pass_fuse(nn_program *program);

/* fno.activation_checkpoint: values that are not kept are recomputed in backward. */
TG_NODISCARD tg_status nn_pass_checkpoint(nn_program *program);

/* A hand-over after every op that completes gradients of parameters. */
TG_NODISCARD tg_status nn_pass_hand_over(nn_program *program);

/* The storage format of every value, from its role. */
void nn_pass_choose_formats(nn_program *program);

/* Fuses blocks that the backend computes in one call. */
TG_NODISCARD tg_status nn_pass_fuse_blocks(nn_program *program, tg_backend *be);

/* fno.saved_precision: values kept for backward are stored in less memory, and restored there. */
TG_NODISCARD tg_status nn_pass_save_small(nn_program *program, tg_backend *be);

/* Buffer lifetimes, writing in place, and offsets in the arenas. */
TG_NODISCARD tg_status nn_pass_place(nn_program *program, tg_backend *be);

#endif
