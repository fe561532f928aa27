/* tgrad: the command line of libtgrad. commands.def lists the subcommands, cmd_<name>.c holds one
 * each. Exit codes: see commands.h. */
#include <signal.h>

#include "common/commands.h"
#include "common/output.h"

int main(int argc, char **argv) {
    cli_guard_streams();
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is a failed write, with a sentence */
    cli_remember_call(argv);
    int code = cli_dispatch(argc > 0 ? argc - 1 : 0, argv + 1);
    return cli_close_stdout(code);
}
