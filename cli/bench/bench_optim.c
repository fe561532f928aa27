/* tgrad bench optim: one weight under several optimizers.
 *
 * The first step meets untouched memory and refreshes from nothing: it gives the cold refresh and
 * counts for nothing else. Of the steps after it, those without a refresh give the time of a step;
 * all give the times of its parts. Two gradients with the same signal and different noise take
 * turns, so that a warm refresh has something to do. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "common/input_files.h"
#include "common/statistics.h"
#include "common/workbench.h"

enum { GRADIENTS = 2 };

/* Times in seconds, NaN: not measured; and their keys in JSON. */
typedef enum part { CHECK, PROJECT, ADAM, UPDATE, STEP, COLD, WARM, PARTS } part;
static const char *const part_keys[PARTS] = {"check", "project",      "adam",        "back_update",
                                             "step",  "refresh_cold", "refresh_warm"};

static const struct {
    tg_mem_category category;
    const char *key; /* title and JSON key */
} memory_names[] = {{TG_MEM_OPTIMIZER, "moments"},
                    {TG_MEM_FACTORS, "factors"},
                    {TG_MEM_INDICES, "indices"},
                    {TG_MEM_WORKSPACE, "workspace"}};

enum { MEMORY_PARTS = sizeof memory_names / sizeof memory_names[0], STATE_PARTS = 3 };

typedef struct measurement {
    const char *method;
    int64_t values; /* that Adam sees */
    double seconds[PARTS];
    size_t bytes[MEMORY_PARTS];   /* by the ledger */
    size_t planned[MEMORY_PARTS]; /* by tg_optim_plan */
} measurement;

typedef struct bench_work {
    tg_context *ctx;
    const cli_call *call;
    const bench_options *options;
    tg_dtype dtype; /* of the weight */
    tg_shape shape;
    int64_t entries;
    tg_tensor weight, gradients[GRADIENTS];
    double *samples[PARTS];                    /* (steps) each */
    const char *method[BENCH_MAX_METHODS + 1]; /* (count) */
    int count;
    json_t *rows; /* of the methods */
} bench_work;

/* ---- the weight and the methods ---- */

static tg_shape parse_shape(const cli_list *list) {
    tg_shape shape = {0};
    if (list->count == 0) {
        return (tg_shape){.ndim = 4, .dim = {64, 64, 64, 33}};
    }
    for (int i = 0; i < list->count; i++) {
        const char *at = list->item[i];
        for (bool is_more = true; is_more;) { /* one size, or several as 64x64 */
            char *end = NULL;
            errno = 0;
            const int64_t size = strtoll(at, &end, 10);
            is_more = *end == 'x';
            if (end == at || (*end && !is_more) || errno || size < 1) {
                cli_misuse("bench", "--shape: '%.64s' is not a size", list->item[i]);
            }
            if (shape.ndim == TG_MAX_NDIM) {
                cli_misuse("bench", "--shape: at most %d dimensions", TG_MAX_NDIM);
            }
            shape.dim[shape.ndim++] = size;
            at = end + 1;
        }
    }
    cli_require(tg_shape_numel(&shape) > 0 ? CLI_OK
                                           : cli_usage("bench", "--shape: too many entries"));
    return shape;
}

/* Dense Adam first, then the methods asked for. */
static void set_methods(bench_work *work) {
    const cli_list *asked = &work->options->methods;
    int all = 0;
    while (tg_optim_get_method(all)) {
        all++;
    }
    work->method[work->count++] = "adam";
    for (int m = 0; m < (asked->count > 0 ? asked->count : all); m++) {
        const char *name = asked->count > 0 ? asked->item[m] : tg_optim_get_method(m)->name;
        if (strcmp(name, "adam") != 0) {
            work->method[work->count++] = name;
        }
    }
}

static tg_optim_config make_config(const bench_work *work, const char *method) {
    tg_optim_config config = tg_optim_config_default();
    config.min_entries = 0;
    config.update_proj_gap = 4.0;
    tg_status status = tg_optim_config_set(work->ctx, &config, "name", method);
    for (int i = 0; status == TG_OK && i < work->call->args.override_count; i++) {
        const cli_override *override = &work->call->args.override[i];
        if (strncmp(override->key, "opt.", 4) != 0) {
            cli_misuse("bench", "unknown setting '%.64s'; optimizers take --opt.key",
                       override->key);
        }
        if (strcmp(override->key, "opt.name") == 0) {
            cli_misuse("bench", "name the optimizers with --opt, not --opt.name");
        }
        status = tg_optim_config_set(work->ctx, &config, override->key + 4, override->value);
    }
    cli_begin_schedule(&config);
    cli_require(status == TG_OK ? CLI_OK : cli_usage("bench", "%s", tg_context_error(work->ctx)));
    return config;
}

/* ---- measuring ---- */

static size_t ledger_bytes(const tg_context *ctx, tg_mem_category category) {
    return tg_context_memory(ctx, TG_HOST).current[category] +
           tg_context_memory(ctx, TG_DEVICE).current[category];
}

/* The measurement of a step. Timing its parts slows a device down, so there parts and whole steps
 * are measured in separate runs. */
typedef enum timing { ALL, ONLY_PARTS, ONLY_WHOLE } timing;

/* Steps `first` .. `steps`; number 0 gives the cold refresh. */
static tg_status time_pass(bench_work *work, tg_optim *optim, timing what, int64_t first,
                           int counts[PARTS], measurement *m) {
    for (int64_t step = first; step <= work->options->steps; step++) {
        const int64_t refreshes = tg_optim_get_stats(optim).refreshes;
        tg_optim_time_parts(optim, what != ONLY_WHOLE);
        const double start = cli_seconds();
        CLI_CALL(tg_optim_step(optim, 0, &work->gradients[step % GRADIENTS], &work->weight));
        CLI_CALL(tg_backend_synchronize(work->ctx));
        const double whole = cli_seconds() - start;
        const tg_optim_times times = tg_optim_get_times(optim);
        const bool is_refresh = tg_optim_get_stats(optim).refreshes > refreshes;
        if (step == 0) {
            m->seconds[COLD] = is_refresh ? times.refresh : (double)NAN;
            continue;
        }
        const double parts[] = {times.check, times.project, times.adam, times.update};
        for (int p = CHECK; what != ONLY_WHOLE && p <= UPDATE; p++) {
            work->samples[p][counts[p]++] = parts[p];
        }
        const int p = is_refresh ? WARM : STEP;
        if (what == ALL || (what == ONLY_WHOLE) == (p == STEP)) {
            work->samples[p][counts[p]++] = is_refresh ? times.refresh : whole;
        }
    }
    return TG_OK;
}

static tg_status time_steps(bench_work *work, tg_optim *optim, measurement *m) {
    int counts[PARTS] = {0};
    const bool on_device = tg_backend_place(work->ctx) == TG_DEVICE;
    m->seconds[COLD] = (double)NAN;
    CLI_CALL(time_pass(work, optim, on_device ? ONLY_PARTS : ALL, 0, counts, m));
    if (on_device) {
        CLI_CALL(time_pass(work, optim, ONLY_WHOLE, 1, counts, m));
    }
    for (int p = 0; p < PARTS; p++) {
        m->seconds[p] = p == COLD ? m->seconds[p] : cli_median(work->samples[p], counts[p]);
        if (!(m->seconds[p] >
              0.0)) { /* nothing happens in this part: dense Adam has no projection */
            m->seconds[p] = (double)NAN;
        }
    }
    return TG_OK;
}

static tg_status plan(const bench_work *work, const tg_optim_setup *setup, measurement *m) {
    const tg_optim_config *config = setup->groups;
    const tg_shape *shape = &setup->params[0].shape;
    size_t bytes[TG_MEM_CATEGORIES];
    tg_projector_bytes ignored;
    CLI_CALL(tg_optim_plan(work->ctx, setup, bytes));
    for (int i = 0; i < MEMORY_PARTS; i++) {
        m->planned[i] = bytes[memory_names[i].category];
    }
    m->values = tg_shape_numel(shape);
    if (config->is_projected) {
        CLI_CALL(tg_projector_plan(work->ctx, &config->projector, work->dtype, shape, false,
                                   &m->values, &ignored));
    }
    return TG_OK;
}

static tg_status clear_weight(bench_work *work) {
    tg_tensor zeros;
    CLI_FREED void *bytes = cli_need(calloc(1, tg_tensor_bytes(&work->weight)));
    CLI_CALL(tg_tensor_wrap(work->ctx, work->dtype, &work->weight.shape, bytes, &zeros));
    return tg_backend_copy(work->ctx, &zeros, &work->weight);
}

static tg_status measure(bench_work *work, measurement *m) {
    const tg_optim_config config = make_config(work, m->method);
    const tg_optim_param param = {.name = "w", .dtype = work->dtype, .shape = work->shape};
    const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                  .groups = &config,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1,
                                  .seed = (uint64_t)work->call->common->seed};
    CLI_OWNED(tg_optim_destroy) tg_optim *optim = NULL;
    size_t before[MEMORY_PARTS];
    for (int i = 0; i < MEMORY_PARTS; i++) {
        before[i] = ledger_bytes(work->ctx, memory_names[i].category);
    }
    CLI_CALL(clear_weight(work));
    CLI_CALL(plan(work, &setup, m));
    CLI_CALL(tg_optim_create(work->ctx, &setup, &optim));
    for (int i = 0; i < MEMORY_PARTS; i++) {
        m->bytes[i] = ledger_bytes(work->ctx, memory_names[i].category) - before[i];
    }
    return time_steps(work, optim, m);
}

static json_t *json_of_bytes(const size_t bytes[MEMORY_PARTS]) {
    json_t *object = cli_json_object();
    for (int i = 0; i < MEMORY_PARTS; i++) {
        cli_json_put(object, KV(memory_names[i].key, bytes[i]));
    }
    return object;
}

static json_t *json_of_measurement(const measurement *m) {
    json_t *times = cli_json_object();
    size_t state = 0;
    for (int p = 0; p < PARTS; p++) {
        cli_json_put(times, KV(part_keys[p], 1e3 * m->seconds[p]));
    }
    for (int i = 0; i < STATE_PARTS; i++) {
        state += m->bytes[i];
    }
    return cli_json_new(
        KV("name", m->method), KV("values", m->values), KV("ms", times),
        KV("bytes", json_of_bytes(m->bytes)), KV("state_bytes", state),
        KV("planned_bytes", json_of_bytes(m->planned)),
        KV("as_planned", json_boolean(memcmp(m->bytes, m->planned, sizeof m->bytes) == 0)));
}

/* Gradient number `draw`, made on the host, where the backend computes. */
static void make_gradient(bench_work *work, int draw) {
    const tg_shape *shape = &work->shape;
    tg_tensor *gradient = &work->gradients[draw];
    CLI_OWNED(tg_tensor_destroy) tg_tensor host = {0};
    cli_check(tg_tensor_create(work->ctx, TG_MEM_DATA, work->dtype, shape, &host));
    cli_check(tg_backend_tensor(work->ctx, TG_MEM_GRADIENTS, work->dtype, shape, gradient));
    cli_random_gradient(&host, (uint64_t)work->call->common->seed, (uint64_t)draw);
    cli_check(tg_backend_copy(work->ctx, &host, gradient));
}

/* Measures every method with one weight and its gradients. All names and settings are read before
 * anything is measured. */
static void measure_all(bench_work *work) {
    for (int i = 0; i < work->count; i++) {
        (void)make_config(work, work->method[i]);
    }
    cli_check(
        tg_backend_tensor(work->ctx, TG_MEM_WEIGHTS, work->dtype, &work->shape, &work->weight));
    for (int i = 0; i < GRADIENTS; i++) {
        make_gradient(work, i);
    }
    for (int i = 0; i < work->count; i++) {
        measurement m = {.method = work->method[i]};
        if (measure(work, &m) != TG_OK) {
            cli_die("%s: %s", m.method, tg_context_error(work->ctx));
        }
        cli_json_append(work->rows, json_of_measurement(&m));
    }
}

/* ---- printing ---- */

static void print_text(const bench_work *work) {
    char shape[160];
    printf("%s %s, %lld entries, %s; backend %s, threads %d; medians of %lld steps\n\n",
           tg_shape_text(&work->shape, shape, sizeof shape), tg_dtype_name(work->dtype),
           (long long)work->entries,
           CLI_BYTES((uint64_t)work->entries * tg_dtype_size(work->dtype)), CLI_BACKEND(work->ctx),
           tg_context_threads(work->ctx), (long long)work->options->steps);
    cli_print_rows(work->rows, "ms:name|values>:values|check>:ms.check f2|project>:ms.project f2|"
                               "adam>:ms.adam f2|back+update>:ms.back_update f2|step>:ms.step f2|"
                               "cold refresh>:ms.refresh_cold f2|warm>:ms.refresh_warm f2");
    putchar('\n');
    double dense = 0.0; /* of Adam, the first row */
    for (size_t i = 0; i < json_array_size(work->rows); i++) {
        json_t *row = json_array_get(work->rows, i);
        const double state = cli_json_number(json_object_get(row, "state_bytes"));
        dense = i == 0 ? state : dense;
        cli_json_put(row, KV("of_dense", state / dense));
    }
    cli_print_rows(work->rows,
                   "memory:name|moments>:bytes.moments B|factors>:bytes.factors B|"
                   "indices>:bytes.indices B|state>:state_bytes B|of dense>:of_dense %1|"
                   "workspace>:bytes.workspace B|plan:as_planned ?as counted/DIFFERS");
    printf("\ngradients: %s, seed %lld\n", CLI_RANDOM_GRADIENT_NAME,
           (long long)work->call->common->seed);
}

static void print_json(const bench_work *work) {
    json_t *runs = cli_json_array();
    cli_json_append(runs, cli_json_new(KV("shape", cli_json_shape(&work->shape)),
                                       KV("entries", work->entries),
                                       KV("optimizers", json_incref(work->rows))));
    json_t *object = cli_json_new(KV("kind", "optim"), KV("dtype", tg_dtype_name(work->dtype)));
    cli_json_set_backend(object, work->ctx);
    cli_json_put(object, KV("threads", tg_context_threads(work->ctx)),
                 KV("steps", work->options->steps), KV("seed", work->call->common->seed),
                 KV("gradients", CLI_RANDOM_GRADIENT_NAME), KV("runs", runs));
    cli_json_print(object);
}

int bench_optim(const cli_call *call, const bench_options *options) {
    bench_work work = {.call = call,
                       .options = options,
                       .dtype = strcmp(options->dtype, "f32") == 0 ? TG_F32 : TG_C64,
                       .shape = parse_shape(&options->shape),
                       .rows = cli_json_array()};
    work.entries = tg_shape_numel(&work.shape);
    set_methods(&work);
    work.ctx = cli_open_context(call->common, true);
    for (int p = 0; p < PARTS; p++) {
        work.samples[p] = cli_need(malloc((size_t)options->steps * sizeof *work.samples[p]));
    }
    measure_all(&work);
    (call->common->json ? print_json : print_text)(&work);
    json_decref(work.rows);
    for (int p = 0; p < PARTS; p++) {
        free(work.samples[p]);
    }
    for (int i = 0; i < GRADIENTS; i++) {
        tg_tensor_destroy(&work.gradients[i]);
    }
    tg_tensor_destroy(&work.weight);
    tg_context_destroy(&work.ctx);
    return CLI_OK;
}
