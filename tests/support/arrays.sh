# Small arrays for tests of a command. To be sourced after checks.sh.
# shellcheck shell=bash

# with_numpy: the first python3 of this machine that has numpy; fails where none has.
with_numpy() {
    local python
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import numpy' 2>/dev/null && echo "$python" && return
    done
    return 1
}

convert() {
    "$tgrad" convert "$@" >/dev/null 2>err || complain "convert $*"
}

# bytes <shape> <count> <seed> <file>: pseudo-random small numbers, f32.
bytes() {
    {
        printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' \
            "{'descr': '|u1', 'fortran_order': False, 'shape': $1, }"
        awk -v count="$2" -v seed="$3" 'BEGIN { state = seed
            for (i = 0; i < count; i++) { state = (state * 1103 + 12347) % 65537
                printf "\\x%02x", state % 7 } }' | xargs -0 printf %b
    } >bytes.npy
    convert bytes.npy "$4" --dtype f32
}
