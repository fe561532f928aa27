#!/usr/bin/env bash
# Test programs run the parts that TEST_PICKS names, and no others: what bench/sanitize.sh is built on.
program=$(realpath "$3")/bin/test_backend_quantize
# shellcheck source=../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"
export TEST_BACKEND=cpu TEST_ONCE=1

# passed [PICK]: the tests that ran and passed
passed() {
    echo "${1:-}" >picks
    env ${1:+TEST_PICKS=picks} "$program" >out 2>&1 || echo "exit code $?"
    sed -nE 's/^\[ +OK \] //p' out
}

[ "$(passed | wc -l)" -gt 2 ] || complain "too few tests to pick from: $(passed)"
name=$(passed | sed -n 2p)
found=$(passed "test_backend_quantize:$name:0")
[ "$found" = "$name" ] || complain "picked: $name; run: $found"
found=$(passed "test_backend_index:$name:0")
[ -z "$found" ] || complain "picked: a test of another program; run: $found"
[ $failures -eq 0 ]
