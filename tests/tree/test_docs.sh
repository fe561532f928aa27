#!/usr/bin/env bash
# The site of the documentation has a place for every page, and architecture.md lists the paths of the CUDA
# backend's tables in their order.
#
#   tests/tree/test_docs.sh build/bin/tgrad <source tree> <build tree>
for table in project:compress expand:expand; do
    rows=$(sed -nE '/_paths\[\] = \{/,/^\};/s/^    \{\{"([^"]*)".*/\1/p' "$2/src/backend/cuda/compress/${table#*:}.cu")
    if ! grep -qF "| ${table%:*} | $(sed ':a;N;$!ba;s/\n/; /g' <<<"$rows") |" "$2/docs/architecture.md"; then
        printf 'FAIL: docs/architecture.md lists other paths of %s than:\n%s\n' "${table%:*}" "$rows"
        exit 1
    fi
done
if ! git -C "$2" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    echo "skipped: no clone of the repository"
    exit 77
fi
"$2/scripts/docs" --check
