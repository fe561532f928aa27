/* Any bytes as metrics.jsonl: the report reads epochs in ascending order or says what is wrong; a
 * resumed run keeps the lines up to its epoch, which the report reads the same way. */
#include <string.h>

#include "common/output.h"
#include "common/run_folder.h"
#include "fuzz.h"
#include "train/run_folder.h"

enum { LAST = 5 }; /* epoch that the run goes back to */

/* In place of cli/common/output.c's, which print. */
int cli_fail(const char *format, ...) {
    fuzz_expect(format[0] != '\0');
    return CLI_FAILED;
}

int cli_code(const tg_context *ctx, tg_status status) {
    fuzz_expect(status == TG_OK || tg_context_error(ctx)[0] != '\0');
    return status == TG_OK ? CLI_OK : CLI_FAILED;
}

json_t *cli_json_object(void) {
    json_t *object = json_object();
    fuzz_expect(object != NULL);
    return object;
}

/* As the report reads it, if it does not refuse it: epochs ascend, and what is asked of them is
 * there. */
static void read_run(const char *text, size_t size) {
    cli_run run = {.path = "fuzz"};
    if (cli_run_parse(&run, "fuzz", text, size) == CLI_OK) {
        fuzz_expect(run.tests <= CLI_RUN_TESTS);
        for (int i = 0; i < run.count; i++) {
            fuzz_expect(i == 0 || run.epoch[i].epoch > run.epoch[i - 1].epoch);
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
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    int64_t damaged = 0;
    char *text = malloc(size ? size : 1); /* exact size: a read past the end is found */
    fuzz_expect(text != NULL);
    memcpy(text, bytes, size);
    read_run(text, size);
    const size_t kept = tg_lines_keep(text, size, tg_line_keeps_epoch, LAST, &damaged);
    fuzz_expect(kept <= size);
    fuzz_expect(tg_lines_keep(text, kept, tg_line_keeps_epoch, LAST, &damaged) == kept);
    read_run(text, kept);
    free(text);
    return 0;
}
