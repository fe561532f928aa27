#!/usr/bin/env bash
# Every operation of a communicator over MPI, with 2, 3 and 4 processes.
set -uo pipefail
source_tree=$2 build=$3
. "$source_tree/tests/support/mpi.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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
# tgrad bench comm: a row for every operation and size, and a link that plan takes; not of one process.
with_ranks 2 "$build/bin/tgrad" bench comm --steps 2 --threads 1 --json >"$work/comm.json" 2>"$work/comm.err" &&
    jq -e '.ranks == 2 and .steps == 2 and .latency_us > 0 and .message_us > 0 and .link > 0 and
        (.operations | length) == 30 and
        (.operations | all(.us > 0))' "$work/comm.json" >/dev/null &&
    grep -q 'needs at least two processes' <<<"$("$build/bin/tgrad" bench comm --threads 1 2>&1)" || {
    echo "FAILED: bench comm: $(cat "$work/comm.json" "$work/comm.err")" >&2
    failures=1
}
# A library that is none.
out=$(TGRAD_MPI=/nowhere/libmpi.so OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 \
    "$build/bin/test_comm" --world 2>&1)
[ $? -eq 1 ] && grep -q 'TGRAD_MPI: /nowhere/libmpi.so' <<<"$out" || {
    echo "FAILED: a library that is not there: $out" >&2
    failures=1
}
exit $failures
