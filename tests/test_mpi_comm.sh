#!/usr/bin/env bash
# Every operation of a communicator over MPI, with 2, 3 and 4 processes.
set -uo pipefail
source_tree=$2 build=$3
. "$source_tree/tests/support/mpi.sh"
failures=0
for ranks in 2 3 4; do
    out=$(with_ranks $ranks "$build/bin/test_comm" --world 2>&1)
    code=$?
    said=$(grep -c ": 0 errors" <<<"$out")
    if [ $code -ne 0 ] || [ "$said" -ne $ranks ]; then
        echo "FAILED: $ranks ranks, exit code $code: $out" >&2
        failures=1
    fi
done
# A library that is none.
out=$(TGRAD_MPI=/nowhere/libmpi.so OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 \
    "$build/bin/test_comm" --world 2>&1)
[ $? -eq 1 ] && grep -q 'TGRAD_MPI: /nowhere/libmpi.so' <<<"$out" || {
    echo "FAILED: a library that is not there: $out" >&2
    failures=1
}
exit $failures
