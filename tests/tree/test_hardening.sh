#!/usr/bin/env bash
# What every binary of the build folder promises: no library from the current folder, relocations
# bound at the start and read-only, position-independent, canaries, checked string functions, marked
# jump targets, and no trace of the folder it was built in.
# shellcheck source=../support/checks.sh
. "$(dirname "$0")/../support/checks.sh"
source_dir=$2 build_dir=$3

cached() {
    sed -n "s/^$1:[A-Z]*=//p" "$build_dir/CMakeCache.txt"
}
command -v readelf >/dev/null || {
    echo "skipped: there is no readelf"
    exit 77
}

# ---- libraries from here ----
compiler=$(cached CMAKE_C_COMPILER)
cat >planted.c <<'END'
#include <unistd.h>
__attribute__((constructor)) static void run(void) { write(1, "PLANTED\n", 8); }
END
for library in libjansson.so.4 libpng16.so.16 libopenblas.so.0 libtgrad.so.0; do
    "$compiler" -shared -fPIC -Wl,-soname,$library -o $library planted.c 2>err ||
        complain "cannot build $library"
done
"$tgrad" --version >out 2>&1 || complain "tgrad --version fails beside a planted library"
! grep -q PLANTED out || complain "tgrad loads a library from the current folder"

# ---- what the files say ----
count=0
for binary in "$build_dir"/bin/* "$build_dir"/lib/*.so; do
    [ -f "$binary" ] && [ ! -L "$binary" ] || [ "${binary##*/}" = libtgrad.so ] || continue
    name=${binary##*/} last=$name
    count=$((count + 1))
    readelf -dW "$binary" >dynamic
    ! grep -E 'R(UN)?PATH' dynamic | grep -qE '\[:|::|:\]|\[\]' ||
        complain "$name: an empty entry in $(grep -E 'R(UN)?PATH' dynamic)"
    grep -qE 'BIND_NOW|FLAGS_1.*NOW' dynamic || complain "$name: relocations are bound late"
    readelf -lW "$binary" >segments
    grep -q GNU_RELRO segments || complain "$name: no read-only relocations"
    grep -q 'GNU_STACK.*RW ' segments || complain "$name: the stack can be executed"
    readelf -hW "$binary" | grep -q 'Type:.*DYN' || complain "$name: not position-independent"
done
[ $count -gt 10 ] || complain "only $count binaries in $build_dir"

last=libtgrad.so
readelf -sW --dyn-syms "$build_dir/lib/libtgrad.so" >symbols
grep -q __stack_chk_fail symbols || complain "no stack canaries"
if [ "$(cached TG_SANITIZE)" != ON ] && [ "$(cached CMAKE_BUILD_TYPE)" != Debug ]; then
    grep -q '__[a-z]*_chk@' symbols || complain "no checked string functions"
fi
# The mark of a whole binary needs the compiler's own start files to have it, so it is our objects' here.
if [ "$(cached TG_HAS_fcf_protection_full)" = 1 ]; then
    last=libtgrad.a
    readelf -nW "$build_dir/lib/libtgrad.a" |
        awk '/^File:/ { if (object && !marked) print object; object = $2; marked = 0 }
             /IBT, SHSTK/ { marked = 1 } END { if (!marked) print object }' |
        grep '[.]c[.]o)$' >unmarked && complain "jump targets are not marked: $(head -3 unmarked)"
fi

# ---- the same from every folder (sanitizers name the places of their checks in full) ----
for binary in "$tgrad" "$build_dir/lib/libtgrad.so" "$build_dir/lib/libtgrad.a"; do
    [ "$(cached TG_SANITIZE)" = ON ] || ! grep -qaF -- "$source_dir/" "$binary" ||
        complain "${binary##*/} names $source_dir"
done

[ $failures -eq 0 ]
