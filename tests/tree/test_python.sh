#!/usr/bin/env bash
# The Python package: its tests with a python3 of this machine that has numpy and pytest, those of
# torch where that has torch. TG_PYTHON names another interpreter.
set -euo pipefail
source_tree=$2 build=$3

skip() {
    echo "skipped: $1"
    exit 77
}

for python in ${TG_PYTHON:-python3 /usr/bin/python3} ''; do
    [ -n "$python" ] || skip "no Python of 3.10 or later that has numpy and pytest"
    "$python" -c 'import sys, numpy, pytest; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && break
done
grep -q '^TG_SANITIZE:BOOL=ON' "$build/CMakeCache.txt" && skip "a sanitized library is for sanitized programs"

export LIBTGRAD_LIBRARY=$build/lib/libtgrad.so OMP_NUM_THREADS=2 PYTHONDONTWRITEBYTECODE=1
"$python" -m pytest -q -p no:cacheprovider -rs "$source_tree/python/tests"
