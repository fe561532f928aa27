/* Any bytes as metrics.jsonl: the report reads epochs in ascending order or says what is wrong; a
 * resumed run keeps the lines up to its epoch and leaves a file that the report reads the same way
 * up to there. */
#include <string.h>

#include "fuzz.h"
#include "output.h"
#include "report_run.h"
#include "train/run_folder.h"

enum { LAST = 5 }; /* epoch that the run goes back to */

/* In place of cli/output.c's, which print. */
int cli_fail(const char *format, ...) {
    fuzz_expect(format[0] != '\0');
    return CLI_FAILED;
}

int cli_fail_status(const tg_context *ctx, tg_status status) {
    fuzz_expect(status != TG_OK && tg_context_error(ctx)[0] != '\0');
    return CLI_FAILED;
}

json_t *cli_json_object(void) {
    json_t *object = json_object();
    fuzz_expect(object != NULL);
    return object;
}

/* Number of epochs up to `last`; -1: the report refuses the file. */
static int read_run(int64_t last) {
    cli_run run;
    int count = -1;
    if (cli_run_open(fuzz_context(), fuzz_folder(), &run) == CLI_OK) {
        fuzz_expect(run.tests <= CLI_RUN_TESTS);
        count = 0;
        for (int i = 0; i < run.count; i++) {
            fuzz_expect(i == 0 || run.epoch[i].epoch > run.epoch[i - 1].epoch);
            count += run.epoch[i].epoch <= last;
        }
        for (int t = 0; t < run.tests; t++) {
            fuzz_expect(cli_run_last(&run, CLI_NORM_L2, t) < run.count);
            fuzz_expect(cli_run_best(&run, CLI_NORM_H1, t) < run.count);
        }
        if (run.count > 0) { /* the command leaves out a run without an epoch */
            (void)cli_run_step_ms(&run);
            (void)cli_run_seconds(&run);
        }
    }
    cli_run_close(&run);
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char path[300];
    tg_run_folder folder = {.ctx = fuzz_context()};
    snprintf(folder.path, sizeof folder.path, "%s", fuzz_folder());
    snprintf(path, sizeof path, "%s/metrics.jsonl", fuzz_folder());
    fuzz_write(path, bytes, size);
    const int before = read_run(LAST);
    fuzz_expect(tg_run_folder_rewind(&folder, LAST, LAST) == TG_OK);
    const int after = read_run(INT64_MAX);
    fuzz_expect(after <= before || before < 0);
    fuzz_expect_no_leak();
    return 0;
}
