#!/usr/bin/env bash
# What the shared library exports is what the public headers declare, and what the test of wrong
# calls has in its table: a function added without either shows here.
set -uo pipefail
build=$3
lists=$(mktemp -d)
trap 'rm -rf "$lists"' EXIT
nm -D --defined-only "$build/lib/libtgrad.so" | awk '$2 == "T" { print $3 }' | sort >"$lists/exported"
"$build/bin/test_misuse" --list | sort >"$lists/called"
[ -s "$lists/exported" ] || { echo "FAILED: no symbols in $build/lib/libtgrad.so" >&2; exit 1; }
if ! diff "$lists/exported" "$lists/called" >"$lists/difference"; then
    echo "FAILED: exported (<) and called by test_misuse (>) differ:" >&2
    cat "$lists/difference" >&2
    exit 1
fi
