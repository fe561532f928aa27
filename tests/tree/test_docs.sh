#!/usr/bin/env bash
# The site of the documentation has a place for every page.
#
#   tests/tree/test_docs.sh build/bin/tgrad <source tree> <build tree>
if ! git -C "$2" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    echo "skipped: no clone of the repository"
    exit 77
fi
"$2/scripts/docs" --check
