/* tgrad bench step: whole training steps on random data, each optimizer in turn.
 *
 * The optimizer works inside the backward pass, as in training; its time is that of its sink, the
 * rest is forward and backward. A device keeps working after the sink returns: there the passes
 * also run without an optimizer, whose time is the difference. The first step touches its memory
 * for the first time and counts only for the cold refresh. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "common/input_files.h"
#include "common/statistics.h"
#include "common/workbench.h"

/* Times, and their keys in JSON. */
typedef enum part { PASSES, OPTIMIZER, STEP, COLD, WARM, PARTS } part;
static const char *const part_keys[PARTS] = {"forward_backward", "optimizer", "step",
                                             "refresh_cold", "refresh_warm"};

typedef struct measurement {
    cli_problem problem;
    double seconds[PARTS];                 /* NaN where there is nothing */
    double loss;                           /* of the last step */
    size_t bytes[TG_MEM_CATEGORIES], peak; /* by the ledger, of steps, on host and device */
    bool on_device;
    tg_mem_usage device; /* by the ledger, of the device alone */
    size_t driver;       /* in use by the driver of the device, at the end */
    cli_memory_plan planned;
    cli_paths paths; /* with --paths */
} measurement;

typedef struct step_work {
    tg_context *ctx;
    cli_workbench bench;
    tg_grad_sink sink; /* of the optimizer */
    double sink_seconds;
    tg_step *passes, *whole; /* on a device: without and with the optimizer */
    double *samples[PARTS];  /* (steps) seconds */
} step_work;

/* ---- one problem ---- */

static tg_status timed_receive(void *user, const tg_gradient *gradient) {
    step_work *work = user;
    const double start = cli_seconds();
    const tg_status status = work->sink.receive(work->sink.user, gradient);
    work->sink_seconds += cli_seconds() - start;
    return status;
}

/* A step on the host: its time, and that of the sink. */
static tg_status step_on_host(step_work *work, double *loss, double *whole, double *optimizer) {
    const tg_grad_sink timing = {.receive = timed_receive, .user = work};
    work->sink_seconds = 0.0;
    const double start = cli_seconds();
    const tg_status status = tg_fno_loss_backward(work->bench.fno, &work->bench.x, &work->bench.y,
                                                  &work->bench.loss, &timing, loss);
    *whole = cli_seconds() - start;
    *optimizer = work->sink_seconds;
    return status;
}

/* Seconds from an idle device to an idle one. */
static tg_status time_step(step_work *work, tg_step *step, double *loss, double *seconds) {
    tg_step_result result = {0};
    CLI_CALL(tg_backend_synchronize(work->ctx));
    const double start = cli_seconds();
    CLI_CALL(tg_step_forward(step, &work->bench.x, &work->bench.y));
    CLI_CALL(tg_step_backward(step));
    CLI_CALL(tg_step_synchronize(step, &result));
    CLI_CALL(tg_backend_synchronize(work->ctx));
    *seconds = cli_seconds() - start;
    *loss = result.loss;
    return TG_OK;
}

static tg_status step_on_device(step_work *work, double *loss, double *whole, double *optimizer) {
    double passes = 0.0;
    CLI_CALL(time_step(work, work->passes, loss, &passes));
    CLI_CALL(time_step(work, work->whole, loss, whole));
    *optimizer = *whole - passes;
    return TG_OK;
}

static tg_status make_steps(step_work *work, const char *graphs) {
    tg_step_config config = {.size = sizeof(tg_step_config),
                             .fno = work->bench.fno,
                             .loss = work->bench.loss,
                             .graphs = strcmp(graphs, "on") == 0    ? TG_GRAPHS_ON
                                       : strcmp(graphs, "off") == 0 ? TG_GRAPHS_OFF
                                                                    : TG_GRAPHS_AUTO};
    CLI_CALL(tg_step_create(work->ctx, &config, &work->passes));
    config.optim = work->bench.optim;
    return tg_step_create(work->ctx, &config, &work->whole);
}

static tg_status make_work(step_work *work, const cli_problem *problem, const char *graphs,
                           uint64_t seed) {
    CLI_CALL(cli_workbench_open(work->ctx, problem, seed, &work->bench));
    work->sink = tg_optim_sink(work->bench.optim);
    if (tg_backend_place(work->ctx) == TG_DEVICE) {
        CLI_CALL(make_steps(work, graphs));
    }
    tg_context_memory_reset_peak(work->ctx); /* without the memory of the preparation */
    return TG_OK;
}

static void free_work(step_work *work) {
    for (int p = 0; p < PARTS; p++) {
        free(work->samples[p]);
    }
    tg_step_destroy(&work->passes);
    tg_step_destroy(&work->whole);
    cli_workbench_close(&work->bench);
    tg_context_destroy(&work->ctx);
}

static tg_status time_steps(step_work *work, int64_t steps, measurement *m) {
    int counts[PARTS] = {0};
    double **samples = work->samples;
    const bool on_device = tg_backend_place(work->ctx) == TG_DEVICE;
    const int64_t warm_up = on_device ? 3 : 0; /* until steps are captured */
    m->seconds[COLD] = (double)NAN;
    for (int p = 0; p < PARTS; p++) {
        samples[p] = cli_need(calloc((size_t)steps + 1, sizeof *samples[p]));
    }
    for (int64_t step = -warm_up; step <= steps; step++) {
        const int64_t refreshes = tg_optim_get_stats(work->bench.optim).refreshes;
        tg_optim_time_parts(work->bench.optim, false);
        double whole = 0.0, optimizer = 0.0;
        CLI_CALL(on_device ? step_on_device(work, &m->loss, &whole, &optimizer)
                           : step_on_host(work, &m->loss, &whole, &optimizer));
        const double refresh = tg_optim_get_times(work->bench.optim).refresh;
        const bool is_refresh = tg_optim_get_stats(work->bench.optim).refreshes > refreshes;
        if (step == -warm_up) {
            m->seconds[COLD] = is_refresh ? refresh : (double)NAN;
        }
        if (step <= 0) {
            continue;
        }
        samples[PASSES][counts[PASSES]++] = whole - optimizer;
        if (is_refresh) {
            samples[WARM][counts[WARM]++] = refresh;
        } else {
            samples[OPTIMIZER][counts[OPTIMIZER]++] = optimizer;
            samples[STEP][counts[STEP]++] = whole;
        }
    }
    for (int p = 0; p < PARTS; p++) {
        m->seconds[p] = p == COLD ? m->seconds[p] : cli_median(samples[p], counts[p]);
    }
    return TG_OK;
}

static tg_status read_memory(tg_context *ctx, measurement *m) {
    size_t total = 0;
    for (int place = 0; place < TG_PLACES; place++) {
        const tg_mem_usage usage = tg_context_memory(ctx, (tg_place)place);
        m->peak += usage.peak_total;
        for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
            m->bytes[c] += usage.peak[c];
        }
    }
    m->on_device = tg_backend_place(ctx) == TG_DEVICE;
    m->device = tg_context_memory(ctx, TG_DEVICE);
    return tg_backend_memory(ctx, &m->driver, &total);
}

static tg_status run_steps(step_work *work, const cli_call *call, const bench_options *options,
                           measurement *m) {
    CLI_CALL(make_work(work, &m->problem, options->graphs, (uint64_t)call->common->seed));
    CLI_CALL(time_steps(work, options->steps, m));
    return read_memory(work->ctx, m);
}

/* Each optimizer has a separate context, so that peaks do not mix. */
static measurement measure(const cli_call *call, const bench_options *options, const char *method) {
    CLI_OWNED(free_work) step_work work = {0};
    measurement m = {0};
    cli_paths_collect(options->paths ? &m.paths : NULL);
    work.ctx = cli_open_context(call->common, true);
    m.problem = cli_problem_of_preset(work.ctx, options->preset ? options->preset : "ns128", method,
                                      &call->args);
    m.problem.batch = options->batch > 0 ? options->batch : m.problem.batch;
    cli_check(cli_problem_plan(work.ctx, &m.problem, &m.planned));
    const tg_status status = run_steps(&work, call, options, &m);
    if (status == TG_E_MEMORY) {
        cli_die("%s; by its plan the step holds %s", tg_context_error(work.ctx),
                CLI_BYTES(m.planned.peak));
    }
    cli_check(status);
    cli_paths_collect(NULL);
    return m;
}

/* ---- printing ---- */

static json_t *json_of_bytes(const size_t bytes[TG_MEM_CATEGORIES], size_t peak) {
    json_t *object = cli_json_new(KV("peak", peak));
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        cli_json_put(object, KV(tg_mem_category_name((tg_mem_category)c), bytes[c]));
    }
    return object;
}

static json_t *json_of_measurement(const measurement *m, bool paths) {
    json_t *times = cli_json_object();
    bool as_planned = true;
    for (int p = 0; p < PARTS; p++) {
        cli_json_put(times, KV(part_keys[p], 1e3 * m->seconds[p]));
    }
    for (int c = 0; c < TG_MEM_OTHER; c++) {
        as_planned = as_planned && m->bytes[c] == m->planned.bytes[c];
    }
    json_t *object =
        cli_json_new(KV("name", m->problem.method), KV("ms", times), KV("loss", m->loss),
                     KV("memory", json_of_bytes(m->bytes, m->peak)));
    if (m->on_device) {
        cli_json_put(object, KV("device", json_of_bytes(m->device.peak, m->device.peak_total)),
                     KV("device_driver", m->driver));
    }
    cli_json_put(object, KV("planned", json_of_bytes(m->planned.bytes, m->planned.peak)),
                 KV("as_planned", json_boolean(as_planned)));
    if (paths) {
        cli_json_put(object, KV("paths", cli_paths_json(&m->paths)));
    }
    return object;
}

/* Columns of the categories that any row has bytes of where the backend computes. */
static void print_memory(const json_t *rows, bool on_device) {
    const char *place = on_device ? "device" : "memory";
    char *columns = cli_format("%s:name", place);
    for (int c = 0; c < TG_MEM_OTHER; c++) {
        const char *name = tg_mem_category_name((tg_mem_category)c);
        bool is_used = false;
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *bytes = json_object_get(json_array_get(rows, i), place);
            is_used |= json_integer_value(json_object_get(bytes, name)) > 0;
        }
        if (is_used) {
            CLI_FREED char *before = columns;
            columns = cli_format("%s|%s>:%s.%s B", before, name, place, name);
        }
    }
    CLI_FREED char *before = columns;
    CLI_FREED char *whole = cli_format("%s|peak>:%s.peak B%s|plan:as_planned ?as counted/DIFFERS",
                                       before, place, on_device ? "|driver>:device_driver B" : "");
    cli_print_rows(rows, whole);
}

static void print_text(const bench_options *options, const measurement *m, const tg_context *ctx,
                       const json_t *rows) {
    const cli_problem *problem = &m->problem;
    char grid_text[64];
    const tg_shape grid = tg_shape_of(cli_data_dims(&problem->fno), problem->data);
    cli_say("%s: %lld parameters, batch %lld on %s, loss %s; backend %s, threads %d; medians of "
            "%lld steps",
            problem->name, (long long)m->planned.parameters, (long long)problem->batch,
            tg_shape_text(&grid, grid_text, sizeof grid_text), problem->loss, CLI_BACKEND(ctx),
            tg_context_threads(ctx), (long long)options->steps);
    putchar('\n');
    cli_print_rows(rows, "ms:name|forward+backward>:ms.forward_backward f1|"
                         "optimizer>:ms.optimizer f1|step>:ms.step f1|"
                         "cold refresh>:ms.refresh_cold f1|warm>:ms.refresh_warm f1");
    putchar('\n');
    print_memory(rows, m->on_device);
    for (size_t i = 0; i < json_array_size(rows) && options->paths; i++) {
        cli_paths paths = json_object_get(json_array_get(rows, i), "paths");
        printf("\n%s:\n", json_string_value(json_object_get(json_array_get(rows, i), "name")));
        cli_paths_print(&paths);
    }
}

static void print_json(const bench_options *options, const measurement *m, const tg_context *ctx,
                       json_t *rows) {
    const cli_problem *problem = &m->problem;
    const tg_shape grid = tg_shape_of(cli_data_dims(&problem->fno), problem->data);
    json_t *object = cli_json_new(KV("kind", "step"), KV("preset", problem->name));
    cli_json_set_backend(object, ctx);
    cli_json_put(object, KV("threads", tg_context_threads(ctx)), KV("batch", problem->batch),
                 KV("grid", cli_json_shape(&grid)), KV("parameters", m->planned.parameters),
                 KV("steps", options->steps), KV("optimizers", json_incref(rows)));
    cli_json_print(object);
}

int bench_step(const cli_call *call, const bench_options *options) {
    const int count = options->methods.count > 0 ? options->methods.count : 1;
    measurement last;
    json_t *rows = cli_json_array();
    for (int i = 0; i < count; i++) {
        last =
            measure(call, options, options->methods.count > 0 ? options->methods.item[i] : "adam");
        cli_json_append(rows, json_of_measurement(&last, options->paths));
        cli_paths_free(&last.paths);
    }
    /* for the names of backend and threads */
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, true);
    if (call->common->json) {
        print_json(options, &last, ctx, rows);
    } else {
        print_text(options, &last, ctx, rows);
    }
    json_decref(rows);
    return CLI_OK;
}
