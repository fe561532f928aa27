#!/usr/bin/env bash
# What `make install` gives a user: headers that stand alone in C and C++, a shared library that
# exports tg_* only, and a program that builds against both libraries by pkg-config and find_package.
set -euo pipefail
source_dir=$2
build_dir=$3

cached() {
    sed -n "s/^$1:[A-Z]*=//p" "$build_dir/CMakeCache.txt"
}
if [ "$(cached TG_SANITIZE)" = ON ]; then
    echo "skipped: a sanitized library does not link into a plain program"
    exit 77
fi
fail() {
    echo "FAIL: $*"
    exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cmake --install "$build_dir" --prefix "$prefix" >/dev/null
"$prefix/bin/tgrad" --version || fail "the installed program does not run"
[ -x "$prefix/libexec/tgrad/tgrad-h5" ] || fail "there is no reader of HDF5 files"

# ---- configurations, examples, completion scripts ----
for file in tgrad/configs/darcy16.yaml tgrad/examples/optimize_tensor.c tgrad/fortran/tgrad.f90 man/man1/tgrad.1 \
    bash-completion/completions/tgrad zsh/site-functions/_tgrad fish/vendor_completions.d/tgrad.fish; do
    [ -s "$prefix/share/$file" ] || fail "share/$file is not installed"
done
for shell in bash zsh fish; do
    script=$(find "$prefix/share" -path "*$shell*" -type f)
    if command -v $shell >/dev/null; then
        $shell -n "$script" || fail "$shell cannot read its completion script"
    fi
done

# ---- headers ----
compiler=$(cached CMAKE_C_COMPILER)
alone() { # alone <header> <compiler and flags ..>
    echo "#include \"tgrad/$1\"" >"$work/alone.c"
    "${@:2}" -Wall -Wextra -Wpedantic -Werror -I"$prefix/include" -fsyntax-only "$work/alone.c" ||
        fail "$1 does not compile alone with ${*:2}"
}
for header in "$prefix"/include/tgrad/*.h; do
    alone "${header##*/}" "$compiler" -std=c17
    if command -v g++ >/dev/null; then
        alone "${header##*/}" g++ -std=c++11 -x c++
    fi
done

# ---- symbols ----
library=$(find "$prefix" -name libtgrad.so)
symbols=$(nm -D --defined-only "$library" | awk '{ print $NF }')
grep -qx tg_context_create <<<"$symbols" || fail "tg_context_create is not exported"
if strangers=$(grep -v '^tg_' <<<"$symbols"); then
    fail "exported beside tg_*:" "$strangers"
fi

# ---- a user's program ----
user=$source_dir/tests/install/user.c
library_dir=$(dirname "$library")
pc_dir=$(dirname "$(find "$prefix" -name tgrad.pc)")
export PKG_CONFIG_PATH=$pc_dir:${PKG_CONFIG_PATH:-}
read -ra cflags <<<"$(pkg-config --cflags tgrad)"
read -ra shared <<<"$(pkg-config --libs tgrad)"
read -ra static <<<"$(pkg-config --libs tgrad-static)"

# runs <program> [argument of env]: and leaves a file that the installed tgrad can read
runs() {
    rm -f "$work/out.safetensors"
    env "${@:2}" "$1" "$work/out.safetensors" || fail "$1 failed"
    "$prefix/bin/tgrad" inspect "$work/out.safetensors" | grep -q weights ||
        fail "tgrad inspect does not list what $1 wrote"
}

"$compiler" -std=c17 -Wall -Werror "$user" "${cflags[@]}" "${shared[@]}" -o "$work/user_shared"
runs "$work/user_shared" LD_LIBRARY_PATH="$library_dir:${LD_LIBRARY_PATH:-}"

# as README.md and docs/library.md say, with nothing in the environment when the program runs
for page in README.md docs/library.md; do
    name=solver && [ $page = README.md ] && name=user
    cp "$user" "$work/$name.c"
    grep -E '^(rpath=|cc .*pkg-config)' "$source_dir/$page" | sed "s/^cc /$(basename "$compiler") /" >"$work/commands"
    grep -q pkg-config "$work/commands" || fail "$page does not say how a program is compiled"
    (cd "$work" && rm -f "$name" && bash -e commands) || fail "the commands of $page: $(cat "$work/commands")"
    runs "$work/$name" --unset=LD_LIBRARY_PATH
done

"$compiler" -std=c17 -Wall -Werror "$user" "${cflags[@]}" "${static[@]}" -o "$work/user_static"
if readelf -d "$work/user_static" | grep -q 'NEEDED.*libtgrad'; then
    fail "the program that was linked statically needs the shared libtgrad"
fi
runs "$work/user_static"

cmake -S "$source_dir/tests/install" -B "$work/cmake" -DCMAKE_C_COMPILER="$compiler" \
    -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$work/cmake" >/dev/null
runs "$work/cmake/user"

if command -v gfortran >/dev/null; then # as docs/library.md says
    read -ra sources <<<"$(pkg-config --variable=prefix tgrad)/share/tgrad/fortran/tgrad.f90"
    (cd "$work" && gfortran "${sources[@]}" "$prefix/share/tgrad/examples/predict.f90" "${shared[@]}" -o user_fortran) ||
        fail "the Fortran module does not build against the installed library"
    LD_LIBRARY_PATH="$library_dir:${LD_LIBRARY_PATH:-}" "$work/user_fortran" none x y 2>"$work/err" &&
        fail "the Fortran example succeeds without a model"
    grep -q '^none: ' "$work/err" || fail "the Fortran example says: $(cat "$work/err")"
fi
