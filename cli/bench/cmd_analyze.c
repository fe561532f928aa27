/* tgrad analyze FILE | RUN: the reconstruction error of compression methods for a gradient G.
 *
 * A projector is refreshed on G and applied to it; the entries of |G - G~|, G~ its output, are
 * sorted out by exact quantiles. Entries and the relative Frobenius error count both branches at
 * full weight. The stable rank of a mode, |G|^2 / sigma_1^2 of its unfolding, measures how close to
 * low rank the gradient is to begin with. */
#include <stdlib.h>
#include <string.h>

#include "common/input_files.h"
#include "common/statistics.h"

static struct {
    const char *tensor; /* NULL: the largest */
    cli_list methods;
    const char *checkpoint; /* of a run */
} opt = {.checkpoint = "last"};

static const cli_option options[] = {
    CLI_OPTION_TEXT("tensor", 0, &opt.tensor, NULL, "NAME", "the gradient",
                    "the largest float tensor of 2 dims or more"),
    CLI_OPTION_TEXT("checkpoint", 0, &opt.checkpoint, NULL, "best|last|STEP", "checkpoint of RUN",
                    "last"),
    CLI_OPTION_LIST("methods", 0, &opt.methods, "LIST", "which ones, or all", "the first three"),
    {0},
};

/* A method that keeps a quarter of the entries, by its name in the library or by settings. */
typedef struct method {
    const char *name;
    tg_projector_config config;
    char label[96]; /* for people */
} method;

enum { METHODS = 16, BY_DEFAULT = 3 };

static method methods[METHODS]; /* (method_count) */
static int method_count;

static double share_of(const tg_branch_config *b) {
    const bool has_rank = b->type == TG_BRANCH_LOW_RANK || b->type == TG_BRANCH_MATRIX;
    return has_rank ? b->rank.value[0] : b->sparse_ratio;
}

static void list_method(const char *name, const tg_projector_config *config) {
    static const char *const joins[] = {[TG_SCHEME_COMPOSITE] = "then", [TG_SCHEME_SUM] = "and"};
    method *m = &methods[method_count++];
    *m = (method){.name = name, .config = *config};
    const int used =
        snprintf(m->label, sizeof m->label, "%s %.0f %%", tg_branch_type_title(config->first.type),
                 100.0 * share_of(&config->first));
    if (config->scheme != TG_SCHEME_SINGLE) {
        snprintf(m->label + used, sizeof m->label - (size_t)used, " %s %s %.0f %%",
                 joins[config->scheme], tg_branch_type_title(config->second.type),
                 100.0 * share_of(&config->second));
    }
}

/* TensorGRaD, its branches in the other order, the methods of one branch, and TensorGRaD's branches
 * side by side. */
static void list_methods(tg_context *ctx) {
    tg_optim_config tensorgrad = tg_optim_config_default();
    cli_check(tg_optim_config_set(ctx, &tensorgrad, "name", "tensorgrad"));
    tg_projector_config other = tensorgrad.projector;
    other.first = tensorgrad.projector.second;
    other.second = tensorgrad.projector.first;
    list_method("sparse-lowrank", &tensorgrad.projector);
    list_method("lowrank-sparse", &other);
    const tg_optim_method *m = NULL;
    for (int i = 0; (m = tg_optim_get_method(i)); i++) {
        tg_optim_config config = tg_optim_config_default();
        cli_check(tg_optim_config_set(ctx, &config, "name", m->name));
        if (m->is_projected && m->scheme == TG_SCHEME_SINGLE) {
            list_method(m->name, &config.projector);
        }
    }
    tensorgrad.projector.scheme = TG_SCHEME_SUM;
    list_method("sum", &tensorgrad.projector);
}

typedef struct analysis {
    const char *file;
    char checkpoint[4096]; /* of a run; "": a file */
    tg_model_origin origin;
    const char *name;   /* of the tensor */
    tg_tensor gradient; /* f32, f64, c64 or c128 */
    int64_t entries;
    cli_quantiles whole; /* |G| */
    double stable_rank[TG_MAX_NDIM], multilinear;
    const method *chosen[METHODS]; /* (count) */
    int count;
    json_t *losses; /* of the chosen methods */
} analysis;

/* ---- which methods ---- */

static const method *find_method(const char *name) {
    cli_suggestion suggestion = cli_suggest(name);
    char names[256] = "";
    for (int i = 0; i < method_count; i++) {
        const size_t used = strlen(names);
        if (strcmp(methods[i].name, name) == 0) {
            return &methods[i];
        }
        snprintf(names + used, sizeof names - used, "%s, ", methods[i].name);
        cli_suggest_offer(&suggestion, methods[i].name);
    }
    cli_misuse("analyze", "--methods: '%.64s' is none of %sall%s", name, names, suggestion.text);
}

static void add_method(analysis *a, const method *m) {
    for (int i = 0; i < a->count; i++) {
        if (a->chosen[i] == m) {
            return;
        }
    }
    a->chosen[a->count++] = m;
}

static void choose_methods(analysis *a) {
    for (int i = 0; opt.methods.count == 0 && i < BY_DEFAULT; i++) {
        add_method(a, &methods[i]);
    }
    for (int i = 0; i < opt.methods.count; i++) {
        const bool is_all = strcmp(opt.methods.item[i], "all") == 0;
        for (int m = 0; is_all && m < method_count; m++) {
            add_method(a, &methods[m]);
        }
        if (!is_all) {
            add_method(a, find_method(opt.methods.item[i]));
        }
    }
}

/* ---- which tensor ---- */

/* The largest tensor of floats with at least two dimensions, the first of equals. */
static int64_t find_largest(const cli_source *source) {
    int64_t most = 0, index = 0;
    for (int64_t i = 0; i < cli_source_count(source); i++) {
        tg_dtype dtype;
        tg_shape shape;
        cli_check(cli_source_describe(source, i, &dtype, &shape));
        if (tg_dtype_is_float(dtype) && shape.ndim >= 2 && tg_shape_numel(&shape) > most) {
            most = tg_shape_numel(&shape);
            index = i;
        }
    }
    if (most == 0 && cli_is_folder(source->path)) {
        cli_die("%s: none of its gradients is compressed; cp and separable weights "
                "have small parameters only",
                source->path);
    }
    if (most == 0) {
        char names[512];
        cli_die("%s has no float tensor of two dimensions or more; it has %s", source->path,
                cli_source_names(source, names, sizeof names));
    }
    return index;
}

static void load(const cli_source *source, analysis *a) {
    tg_dtype dtype;
    tg_shape shape;
    tg_tensor_stats stats;
    CLI_OWNED(tg_tensor_destroy) tg_tensor whole = {0};
    const int64_t index = opt.tensor ? cli_source_find(source, opt.tensor) : find_largest(source);
    a->name = cli_source_name(source, index);
    cli_check(cli_source_describe(source, index, &dtype, &shape));
    if (!tg_dtype_is_float(dtype)) {
        cli_die("%s: tensor '%s' is %s, expected floating-point numbers", source->path, a->name,
                tg_dtype_name(dtype));
    }
    if (shape.ndim < 1 || tg_shape_numel(&shape) < 1) {
        cli_die("%s: tensor '%s' has no dimension or no entry", source->path, a->name);
    }
    const tg_dtype real = tg_dtype_real(dtype) == TG_F64 ? TG_F64 : TG_F32; /* also of 16 bits */
    cli_check(tg_tensor_create(source->ctx, TG_MEM_DATA,
                               tg_dtype_is_complex(dtype) ? tg_dtype_complex(real) : real, &shape,
                               &a->gradient));
    cli_check(cli_source_read(source, index, &whole));
    cli_check(tg_tensor_convert(source->ctx, &whole, &a->gradient));
    cli_check(tg_tensor_get_stats(source->ctx, &a->gradient, &stats));
    if (stats.nan_count + stats.inf_count > 0) {
        cli_die("%s: %s has %lld NaN and %lld Inf; only finite gradients can be compressed",
                source->path, a->name, (long long)stats.nan_count, (long long)stats.inf_count);
    }
    a->entries = tg_tensor_numel(&a->gradient);
}

/* ---- the comparison ---- */

typedef struct compression {
    tg_tensor gradient, rest; /* where the backend computes: G and G - G~ */
    tg_tensor host_rest;
    double *room; /* (entries) */
} compression;

static void free_compression(compression *c) {
    tg_tensor_destroy(&c->gradient);
    tg_tensor_destroy(&c->rest);
    tg_tensor_destroy(&c->host_rest);
    free(c->room);
}

static json_t *json_of_quantiles(const cli_quantiles *s) {
    json_t *object = cli_json_object();
    for (int q = 0; q < CLI_QUANTILES; q++) {
        cli_json_set(object, cli_quantile_names[q], cli_json_real(s->at[q]));
    }
    return object;
}

/* Compresses the gradient by one method, and adds what is lost. */
static tg_status compress(tg_context *ctx, analysis *a, const method *m, compression *c) {
    const tg_tensor *g = &a->gradient;
    CLI_OWNED(tg_projector_destroy) tg_projector *projector = NULL;
    CLI_OWNED(tg_tensor_destroy) tg_tensor small = {0};
    CLI_CALL(tg_projector_create(ctx, &m->config, g->dtype, &g->shape, 0, &projector));
    const int64_t kept = tg_projector_count(projector);
    const tg_shape shape = tg_shape_of(1, &kept);
    CLI_CALL(tg_backend_tensor(ctx, TG_MEM_GRADIENTS, g->dtype, &shape, &small));
    CLI_CALL(tg_projector_refresh(projector, &c->gradient));
    CLI_CALL(tg_projector_residual(projector, &c->gradient, &small, &c->rest));
    CLI_CALL(tg_backend_copy(ctx, &c->rest, &c->host_rest));
    tg_shape ranks = tg_projector_ranks(projector, 0); /* of the low-rank branch */
    ranks = ranks.ndim > 0 ? ranks : tg_projector_ranks(projector, 1);
    const cli_quantiles rest = cli_quantiles_of(&c->host_rest, c->room);
    const double norm = a->whole.norm; /* a gradient of zeros is met exactly */
    cli_json_append(a->losses,
                    cli_json_new(KV("name", m->name), KV("label", m->label), KV("kept", kept),
                                 KV("share", (double)kept / (double)a->entries),
                                 KV("ranks", cli_json_shape(&ranks)),
                                 KV("residual", json_of_quantiles(&rest)),
                                 KV("relative_error", norm > 0.0 ? rest.norm / norm : 0.0)));
    return TG_OK;
}

static void compare(tg_context *ctx, analysis *a) {
    const tg_tensor *g = &a->gradient;
    CLI_OWNED(free_compression) compression c = {0};
    c.room = cli_need(malloc((size_t)a->entries * sizeof *c.room)); /* at least one */
    a->whole = cli_quantiles_of(g, c.room);
    cli_check(tg_stable_rank(ctx, g, a->stable_rank, &a->multilinear));
    cli_check(tg_backend_tensor(ctx, TG_MEM_GRADIENTS, g->dtype, &g->shape, &c.gradient));
    cli_check(tg_backend_copy(ctx, g, &c.gradient));
    cli_check(tg_backend_tensor(ctx, TG_MEM_GRADIENTS, g->dtype, &g->shape, &c.rest));
    cli_check(tg_tensor_create(ctx, TG_MEM_DATA, g->dtype, &g->shape, &c.host_rest));
    for (int i = 0; i < a->count; i++) {
        if (compress(ctx, a, a->chosen[i], &c) != TG_OK) {
            cli_die("%s: %s", a->chosen[i]->name, tg_context_error(ctx));
        }
    }
}

/* ---- printing ---- */

static void print_text(const analysis *a) {
    char shape[128];
    if (a->origin.text[0]) {
        cli_say("checkpoint: %s", a->origin.text);
    }
    cli_say("%s: %s, %s %s, %lld entries, norm %.6g", a->file, a->name,
            tg_dtype_name(a->gradient.dtype),
            tg_shape_text(&a->gradient.shape, shape, sizeof shape), (long long)a->entries,
            a->whole.norm);
    fputs("stable rank by mode:", stdout);
    for (int d = 0; d < a->gradient.shape.ndim; d++) {
        printf(" %.4g", a->stable_rank[d]);
    }
    printf("; multilinear %.4g\n\n|G - G~| by entry\n", a->multilinear);
    cli_json_append(a->losses,
                    cli_json_new(KV("name", "nothing kept"), KV("kept", 0), KV("share", 0.0),
                                 KV("residual", json_of_quantiles(&a->whole)),
                                 KV("relative_error", a->whole.norm > 0.0 ? 1.0 : 0.0)));
    cli_print_rows(a->losses,
                   "method:name|kept>:kept|share>:share %1|min>:residual.min g3|"
                   "25 %>:residual.q1 g3|median>:residual.median g3|75 %>:residual.q3 g3|"
                   "99 %>:residual.p99 g3|99.9 %>:residual.p999 g3|max>:residual.max g3|"
                   "rel. error>:relative_error f4");
}

static void print_json(const tg_context *ctx, const analysis *a) {
    json_t *object = cli_json_new(KV("file", a->file));
    if (a->checkpoint[0]) {
        cli_json_put(object, KV("checkpoint", a->checkpoint));
    }
    cli_json_put(object, KV("tensor", a->name), KV("dtype", tg_dtype_name(a->gradient.dtype)),
                 KV("shape", cli_json_shape(&a->gradient.shape)), KV("entries", a->entries));
    cli_json_set_backend(object, ctx);
    cli_json_put(object, KV("norm", a->whole.norm), KV("gradient", json_of_quantiles(&a->whole)),
                 KV("stable_rank", cli_json_reals(a->stable_rank, a->gradient.shape.ndim)),
                 KV("multilinear_stable_rank", a->multilinear),
                 KV("methods", json_incref(a->losses)));
    cli_json_print(object);
}

/* Gradients of a batch of a run's training data. */
static void open_run(tg_context *ctx, const char *folder, analysis *a, cli_source *out) {
    CLI_OWNED(tg_model_destroy) tg_model *model = NULL;
    *out = (cli_source){.ctx = ctx, .path = folder, .format = TG_FILE_SAFETENSORS};
    cli_check(tg_run_checkpoint(ctx, folder, opt.checkpoint, a->checkpoint, sizeof a->checkpoint));
    cli_check(tg_model_load(ctx, a->checkpoint, &model));
    a->origin = tg_model_get_origin(model);
    cli_check(tg_archive_create(ctx, &out->archive));
    cli_check(tg_model_gradients(model, out->archive));
}

static int run(const cli_call *call) {
    analysis a = {.file = call->args.item[0], .losses = cli_json_array()};
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, true);
    CLI_OWNED(cli_source_close) cli_source source = {0};
    list_methods(ctx);
    choose_methods(&a);
    if (cli_is_folder(a.file)) {
        open_run(ctx, a.file, &a, &source);
    } else {
        cli_check(cli_source_open(ctx, a.file, &source));
    }
    load(&source, &a);
    compare(ctx, &a);
    if (call->common->json) {
        print_json(ctx, &a);
    } else {
        print_text(&a);
    }
    json_decref(a.losses);
    tg_tensor_destroy(&a.gradient);
    return CLI_OK;
}

const cli_command cli_cmd_analyze = {
    .name = "analyze",
    .arguments = "FILE|RUN",
    .args = {1, 1},
    .summary = "Compare the reconstruction error of compression methods",
    .description =
        "For a gradient tensor G of an npy, safetensors or HDF5 file, or of a spectral weight\n"
        "of the run in folder RUN (one batch of its training data): exact quantiles of\n"
        "|G - G~|, where G~ is reconstructed from the compressed values, the relative Frobenius\n"
        "error, the number of values kept, and the stable rank of every mode.\n"
        "\n"
        "  sparse-lowrank   5 % largest entries, then Tucker 20 % of the rest (TensorGRaD)\n"
        "  lowrank-sparse   Tucker 20 %, then the 5 % largest entries of the rest\n"
        "  lowrank          Tucker 25 %\n"
        "  unstructured     25 % largest entries\n"
        "  structured       25 % as the sub-tensor of the largest slices of every mode\n"
        "  galore           25 % by singular vectors of the matrix with the first mode as rows\n"
        "  sum              5 % largest entries and Tucker 20 %, both of G itself\n",
    .examples = "  tgrad analyze runs/darcy --tensor fno_blocks.convs.0.weight.tensor\n"
                "  tgrad analyze grads.h5 --tensor grads --methods all\n"
                "  tgrad analyze g.npy --json | jq '.methods[] | {name, relative_error}'\n",
    .options = options,
    .takes = CLI_TAKES_JSON | CLI_TAKES_DEVICE,
    .run = run,
};
