#!/usr/bin/env bash
# The example of a solver with MPI of its own compiles as its first lines say, and its ranks learn
# together.
#
#   tests/dist/test_mpi_example.sh build/bin/tgrad <source tree> <build tree>
set -uo pipefail
tree=$(realpath "$2") build=$(realpath "$3")
. "$tree/tests/support/mpi.sh"
command -v mpicc >/dev/null || { echo "skipped: there is no mpicc (libopenmpi-dev)"; exit 77; }
if grep -q 'TG_SANITIZE:BOOL=ON' "$build/CMakeCache.txt"; then
    echo "skipped: a sanitized library does not link into a program that is not"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mpicc -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -O2 -I"$tree/include" "$tree/examples/insitu_mpi.c" \
    -L"$build/lib" -ltgrad -Wl,-rpath,"$build/lib" -lm -o insitu_mpi || { echo "FAILED: mpicc" >&2; exit 1; }
failures=0
for ranks in 1 3; do
    with_ranks $ranks ./insitu_mpi >out 2>err || { echo "FAILED: $ranks ranks: $(cat out err)" >&2; failures=1; }
    # the first loss that is printed, and the last
    awk -v samples=$((4 * ranks)) '/^interval/ { sub(":", "", $2); loss[++n] = $4; of = $8 }
        END { exit !(n == 3 && loss[3] < 0.7 * loss[1] && of == samples) }' out ||
        { echo "FAILED: $ranks ranks do not learn: $(cat out)" >&2; failures=1; }
    grep -q "^$ranks ranks over .*MPI" out || { echo "FAILED: $(cat out)" >&2; failures=1; }
done
exit $failures
