/* tgrad verify KIND FILE: recomputes the numbers of a golden file on the chosen backend. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "verify.h"

static const char *output_path; /* -o */

static const cli_option options[] = {
    CLI_OPTION_TEXT("output", 'o', &output_path, NULL, "OUT",
                    "write the computed tensors to a safetensors file", NULL),
    {0},
};

static const struct {
    const char *name;
    void (*verify)(verify_run *run);
} kinds[] = {
    {"fno", verify_fno},   {"tfno", verify_fno},    {"uno", verify_fno},       {"gno", verify_gno},
    {"gino", verify_gino}, {"optim", verify_optim}, {"tucker", verify_tucker},
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

void verify_add(verify_run *run, double error, double limit, const char *format, ...) {
    const bool passes = error <= limit;
    char name[160];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    cli_json_append(run->checks, cli_json_new(KV("name", name), KV("error", error),
                                              KV("limit", limit), KV("ok", json_boolean(passes))));
    run->is_good = run->is_good && passes;
    run->worst = isnan(run->worst) || error <= run->worst ? run->worst : error;
}

/* Real number i of a tensor of reals or pairs. */
static double real_at(const tg_tensor *tensor, int64_t i) {
    return tg_dtype_real(tensor->dtype) == TG_F64 ? ((const double *)tensor->data)[i]
                                                  : (double)((const float *)tensor->data)[i];
}

double verify_relative_error(const tg_tensor *a, const tg_tensor *b, const tg_tensor *origin) {
    const tg_dtype real = tg_dtype_real(a->dtype);
    if (a->dtype != b->dtype || tg_tensor_numel(a) != tg_tensor_numel(b) ||
        (real != TG_F32 && real != TG_F64)) {
        return nan("");
    }
    const int64_t n = tg_tensor_numel(a) * (tg_dtype_is_complex(a->dtype) ? 2 : 1);
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double x = real_at(a, i), y = real_at(b, i), z = origin ? real_at(origin, i) : 0.0;
        difference += (x - y) * (x - y);
        size += (y - z) * (y - z);
    }
    return difference == 0.0 ? 0.0 : sqrt(difference / size);
}

void verify_compare(verify_run *run, const char *name, tg_tensor *tensor) {
    const tg_tensor *golden = tg_archive_find(run->golden, name);
    if (golden) {
        verify_add(run, verify_relative_error(tensor, golden, NULL), VERIFY_LIMIT, "%s", name);
    }
    cli_check(tg_archive_take(run->computed, name, tensor));
}

const tg_tensor *verify_tensor(const verify_run *run, const char *name) {
    const tg_tensor *tensor = tg_archive_find(run->golden, name);
    if (!tensor) {
        cli_die("%s: no tensor named '%s'", run->path, name);
    }
    return tensor;
}

json_t *verify_metadata(const verify_run *run, const char *key) {
    const char *text = tg_archive_meta(run->golden, key);
    json_error_t error;
    if (!text) {
        cli_die("%s: no metadata '%s'", run->path, key);
    }
    json_t *value = json_loads(text, JSON_DECODE_ANY, &error);
    if (!value) {
        cli_die("%s: metadata '%s' is not JSON: %s", run->path, key, error.text);
    }
    return value;
}

char *verify_value_text(const json_t *value) {
    return cli_need(json_is_string(value) ? strdup(json_string_value(value))
                                          : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT));
}

void verify_read_config(const verify_run *run, verify_set set, void *config) {
    json_t *object = verify_metadata(run, "config"), *value;
    const char *key;
    if (!json_is_object(object)) {
        cli_die("%s: metadata 'config' is not an object", run->path);
    }
    json_object_foreach(object, key, value) {
        CLI_FREED char *text = verify_value_text(value);
        cli_check(set(run->ctx, config, key, text));
    }
    json_decref(object);
}

static void print(const verify_run *run, const char *kind, bool json) {
    if (!json) {
        cli_print_rows(run->checks, "check:name|error>:error g3!|limit>:limit g3|:ok ?ok/FAILED");
        cli_say("%s: %s on %s, largest relative error %.3g", run->path,
                run->is_good ? "verified" : "FAILED", CLI_BACKEND(run->ctx), run->worst);
        return;
    }
    json_t *object = cli_json_new(KV("file", run->path), KV("kind", kind));
    cli_json_set_backend(object, run->ctx);
    cli_json_put(object, KV("ok", json_boolean(run->is_good)), KV("largest_error", run->worst),
                 KV("checks", json_incref(run->checks)));
    cli_json_print(object);
}

static void close_run(verify_run *run) {
    json_decref(run->checks);
    tg_archive_destroy(&run->computed);
    tg_archive_destroy(&run->golden);
    tg_context_destroy(&run->ctx);
}

static int run(const cli_call *call) {
    void (*verify)(verify_run *) = NULL;
    const char *kind = call->args.item[0];
    for (int i = 0; i < KINDS; i++) {
        verify = strcmp(kinds[i].name, kind) == 0 ? kinds[i].verify : verify;
    }
    if (!verify) {
        return cli_usage(
            "verify",
            "'%s' is not a kind of golden file (fno, tfno, uno, gno, gino, optim, tucker)", kind);
    }
    CLI_OWNED(close_run)
    verify_run work = {.path = call->args.item[1], .checks = cli_json_array(), .is_good = true};
    work.ctx = cli_open_context(call->common, true);
    cli_check(tg_safetensors_read(work.ctx, work.path, &work.golden));
    cli_check(tg_archive_create(work.ctx, &work.computed));
    verify(&work);
    work.is_good = work.is_good && json_array_size(work.checks) > 0;
    if (output_path) {
        cli_check(tg_safetensors_write(work.ctx, output_path, work.computed));
    }
    print(&work, kind, call->common->json);
    return work.is_good ? CLI_OK : CLI_FAILED;
}

const cli_command cli_cmd_verify = {
    .name = "verify",
    .arguments = "fno|tfno|uno|gno|gino|optim|tucker FILE",
    .args = {2, 2},
    .summary = "Recompute a file of reference numbers and compare",
    .description = "The file's metadata says what to run and its tensors hold inputs and expected\n"
                   "results. Exits 1 if any quantity is further off than its limit.\n",
    .examples = "  tgrad verify fno tests/fixtures/fno_2d.safetensors\n"
                "  tgrad verify optim tests/fixtures/optim_tg_us_lr.safetensors --backend ref\n"
                "  tgrad verify tucker tests/fixtures/tucker_c4.safetensors -o out.safetensors\n",
    .options = options,
    .takes = CLI_TAKES_JSON | CLI_TAKES_DEVICE,
    .run = run,
};
