/* tgrad report DIR ..: one self-contained HTML page about training runs. */
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "sweep/sweep.h"

enum { DEFAULT_SAMPLES = 2 };

static struct {
    const char *output;
    const char *title;
    int64_t samples;
} opt = {.output = "report.html", .samples = DEFAULT_SAMPLES};

static const cli_option options[] = {
    CLI_OPTION_TEXT("output", 'o', &opt.output, NULL, "FILE", "the page to write", "report.html"),
    CLI_OPTION_TEXT("title", 0, &opt.title, NULL, "TEXT", "heading of the page",
                    "the names of the runs"),
    CLI_OPTION_INT("samples", 0, &opt.samples, 0, 64, "N",
                   "test samples to show at each resolution", "2"),
    {0},
};

/* The command line that makes this page, to be freed. */
static char *command_line(const cli_call *call) {
    char number[32];
    const char *word[CLI_REPORT_RUNS + 8] = {"tgrad", "report"};
    int count = 2;
    for (int i = 0; i < call->args.count; i++) {
        word[count++] = call->args.item[i];
    }
    word[count++] = "-o";
    word[count++] = opt.output;
    if (opt.title) {
        word[count++] = "--title";
        word[count++] = opt.title;
    }
    if (opt.samples != DEFAULT_SAMPLES) {
        snprintf(number, sizeof number, "%lld", (long long)opt.samples);
        word[count++] = "--samples";
        word[count++] = number;
    }
    return cli_shell_words(word, count);
}

static void print_result(const cli_run *runs, int count, size_t bytes, bool json) {
    if (!json) {
        cli_say("wrote %s: %d run%s, %s", opt.output, count, count == 1 ? "" : "s",
                CLI_BYTES(bytes));
        return;
    }
    json_t *list = cli_json_array();
    for (int i = 0; i < count; i++) {
        cli_json_append(list, cli_json_new(KV("name", runs[i].name), KV("folder", runs[i].path),
                                           KV("epochs", runs[i].epoch[runs[i].count - 1].epoch)));
    }
    cli_json_print(cli_json_new(KV("report", opt.output), KV("bytes", bytes), KV("runs", list)));
}

/* Leaves out, with a message, folders without a run and runs that cannot be read (CLI_FAILED). */
static int open_runs(tg_context *ctx, const cli_args *args, cli_run *runs, int *count) {
    int worst = CLI_OK;
    *count = 0;
    for (int i = 0; i < args->count; i++) {
        cli_run *run = &runs[*count];
        int code = cli_run_open(ctx, args->item[i], run);
        code = code == CLI_OK ? cli_report_check_samples(run) : code;
        code = code == CLI_OK ? cli_report_check_rollout(run) : code;
        if (code == CLI_OK && run->count > 0) {
            (*count)++;
        } else {
            cli_run_close(run);
        }
        worst = code == CLI_OK ? worst : code;
    }
    return worst;
}

/* The folder of a sweep has a separate kind of page. */
static int report_sweep(tg_context *ctx, const char *folder, bool json) {
    size_t bytes = 0;
    const int code = cli_sweep_report(ctx, folder, opt.title, opt.output, &bytes);
    if (json) {
        cli_json_print(
            cli_json_new(KV("report", opt.output), KV("bytes", bytes), KV("sweep", folder)));
    } else {
        cli_say("wrote %s: %s", opt.output, CLI_BYTES(bytes));
    }
    return code;
}

static int run(const cli_call *call) {
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, false);
    if (call->args.count == 1 && cli_is_sweep(call->args.item[0])) {
        return report_sweep(ctx, call->args.item[0], call->common->json);
    }
    int count = 0;
    CLI_FREED cli_run *runs = cli_need(calloc((size_t)call->args.count, sizeof *runs));
    CLI_OWNED(cli_bytes_free) cli_html page = {0};
    CLI_FREED char *command = command_line(call);
    const int code = open_runs(ctx, &call->args, runs, &count);
    if (count == 0) {
        return CLI_FAILED;
    }
    cli_run_name_all(runs, count);
    cli_report_write(&page, &(cli_report){.ctx = ctx,
                                          .run = runs,
                                          .count = count,
                                          .title = opt.title,
                                          .command = command,
                                          .samples = opt.samples});
    cli_require(cli_write_file(opt.output, page.data, page.size));
    print_result(runs, count, page.size, call->common->json);
    for (int i = 0; i < count; i++) {
        cli_run_close(&runs[i]);
    }
    return code;
}

const cli_command cli_cmd_report = {
    .name = "report",
    .arguments = "DIR ..",
    .args = {1, CLI_REPORT_RUNS},
    .summary = "Make an HTML page that shows and compares training runs",
    .description =
        "Each DIR is a run folder of 'tgrad train', finished or still running. The page holds\n"
        "errors, curves, memory, times, settings that differ and pictures of test samples. It is\n"
        "one file without scripts that needs no network. A DIR without a run is left out with a\n"
        "warning; so is a damaged run, with exit code 1.\n"
        "For one folder of 'tgrad sweep': a table of means over seeds, in Markdown if FILE ends "
        "in\n"
        ".md, otherwise with plots.\n",
    .examples = "  tgrad report runs/darcy\n"
                "  tgrad report runs/adam runs/tensorgrad -o comparison.html\n"
                "  tgrad report runs/* --title 'Darcy flow, five optimizers' --samples 4\n"
                "  tgrad report runs/sweep -o table.md\n",
    .options = options,
    .takes = CLI_TAKES_JSON,
    .run = run,
};
