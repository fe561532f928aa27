#!/usr/bin/env bash
# The include check passes on the tree, and fails on each violation planted in a copy of it.
set -euo pipefail
source_dir=$2
check=$source_dir/scripts/check_includes

"$check" "$source_dir" || { echo "FAIL: the tree has offences" && exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy_headers() {
    (cd "$source_dir" && find include src cli -name '*.h' -exec cp --parents -t "$work" {} +)
}
copy_headers
mkdir -p "$work/cli/report"
failures=0

# plant <file> <line> <words the complaint must hold>
plant() {
    local file=$1 line=$2 expected=$3 output
    mkdir -p "$work/$(dirname "$file")"
    printf '%s\n' "$line" >"$work/$file"
    if output=$("$check" "$work"); then
        echo "FAIL: not seen: $file: $line"
        failures=$((failures + 1))
    elif [ "$output" != "${output#*"$file:1: "*"$expected"}" ]; then
        echo "ok: $output"
    else
        echo "FAIL: $file: $line: expected '$expected', the check said: $output"
        failures=$((failures + 1))
    fi
    rm "$work/$file"
}

# pass <file> <line>: must not be an offence
pass() {
    local file=$1 line=$2 output
    printf '%s\n' "$line" >"$work/$file"
    if ! output=$("$check" "$work"); then
        echo "FAIL: wrongly refused: $file: $line: $output"
        failures=$((failures + 1))
    fi
    rm "$work/$file"
}

plant src/base/planted.c '#include "tensor/element.h"' 'base may not include'
plant src/base/planted.h '#include "tgrad/tensor.h"' 'base may not include'
plant src/base/planted.c '  #  include "tgrad/tgrad.h"' 'of public'
plant src/io/planted.c '#include "backend/backend.h"' 'io may not include'
plant src/nn/planted.c '#include "project/project.h"' 'nn may not include'
plant src/backend/cpu/planted.inc '#include "backend/ref/ref.h"' 'of backend/ref'
plant src/backend/ref/planted.c '#include "backend/cpu/cpu.h"' 'of backend/cpu'
plant src/backend/planted.c '#include "backend/ref/ref.h"' 'of backend/ref'
plant src/tensor/planted.c '#include "../base/context.h"' 'relative path'
plant src/backend/cpu/planted.c '#include <cuda_runtime.h>' 'backend/cuda'
plant src/backend/ref/planted.c '#include <cblas.h>' 'cpu/blas'
plant src/backend/cpu/planted.c '#include "lapacke.h"' 'cpu/blas'
plant src/backend/cpu/planted.c '#include <fftw3.h>' 'cpu/fftw'
plant src/io/planted.c '#include <hdf5.h>' 'io/hdf5'
plant src/train/planted.c '#include <libfyaml.h>' 'io/config'
plant src/base/planted.c '#include <immintrin.h>' 'backend/cpu'
plant cli/planted.c '#include "base/memory.h"' 'cli may not include'
plant cli/data/planted.c '#include "sweep/sweep.h"' 'cli/data may not include'
plant cli/common/planted.c '#include "../report/chart.h"' 'relative path'
plant cli/common/planted.c '#include "io/archive.h"' 'cli/common may not include'
plant include/tgrad/status.h '#include "tgrad/io.h"' 'of io'
plant include/tgrad/planted.h '#include <stddef.h>' 'no row'
plant src/planted/planted.c 'int x;' 'no row'
plant src/io/planted.c 'void f(void) { free(0); }' 'may not use free'
plant src/io/planted.c '/* why */ char *p = malloc(3);' 'may not use malloc'
plant src/io/planted.c 'void f(void) { fprintf(stderr, "x"); }' 'may not use stderr'
plant src/io/planted.c 'void f(void) { "quoted \" quote"; abort(); }' 'may not use abort'
plant src/base/memory.c 'void f(void) { exit(1); }' 'may not use exit'

copy_headers # one was planted over
pass src/io/planted.c '/* free(x), printf */ char *a = "exit(1)"; // abort()'
pass src/io/planted.c 'void f(t *a) { a->free(a); b.free(0); snprintf(a, 1, "x"); my_free(a); }'
pass src/backend/cpu/blas_planted.c '#include <cblas.h>'
pass src/io/planted.c '#include "planted.h"'
pass cli/planted.c '#include "tgrad/tgrad.h"'
pass cli/report/planted.c '#include "common/output.h"'

[ "$failures" = 0 ]
