#!/usr/bin/env bash
# Every fault of tests/faults still has its place in the source, and what scripts/mutate does with a
# table that is wrong.
#
#   tests/tree/test_faults.sh build/bin/tgrad <source tree> <build tree>
set -uo pipefail
source_tree=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

complain() {
    failures=$((failures + 1))
    echo "FAILED: $*" >&2
}

"$source_tree/scripts/mutate" --check || complain "faults that do not apply"

# A tree of one file with one fault; `check` runs its own copy of the script.
mkdir -p "$work/scripts" "$work/tests/faults" "$work/src"
cp "$source_tree/scripts/mutate" "$work/scripts"
printf 'int twice(int x) {\n    return 2 * x;\n}\n' >"$work/src/twice.c"
check() { # check <exit code> <text> <lines of the table ..>
    printf '%s\n' "${@:3}" >"$work/tests/faults/one.txt"
    "$work/scripts/mutate" --check >"$work/out" 2>&1
    local code=$?
    [ $code -eq "$1" ] || complain "'$2': exit code $code, expected $1"
    grep -qF -- "$2" "$work/out" || complain "no '$2' in: $(cat "$work/out")"
}
fault=('fault  thrice' 'file   src/twice.c')
check 0 '1 faults apply' "${fault[@]}" 'find   2 * x;' 'put    3 * x;' 'tests  ^test_twice$'
check 1 "'2 * y;' stands 0 times in src/twice.c" "${fault[@]}" 'find   2 * y;' 'put    3;' 'tests  .'
check 1 "'x' stands 2 times in src/twice.c" "${fault[@]}" 'find   x' 'put    y' 'tests  .'
check 1 "'2 * x;' stands 1 times" "${fault[@]}" 'find   2 * x;' 'put    2 * x;' 'tests  .'
check 1 "'fnd' is not one of fault, file, find, put, tests" "${fault[@]}" 'fnd   2 * x;'
check 1 'needs one each' "${fault[@]}" 'find   2 * x;' 'tests  .'
check 1 'the last fault is not complete' "${fault[@]}"
rm "$work/src/twice.c"
check 1 'stands 0 times in src/twice.c' "${fault[@]}" 'find   2 * x;' 'put    3;' 'tests  .'

[ $failures -eq 0 ]
