#!/usr/bin/env bash
# The process that reads HDF5 files, from outside: where the program finds it, what happens without
# it, and that nothing it says is taken on trust. A script plays a reader that has gone astray.
fixtures=$(realpath "$2")/tests/fixtures
# shellcheck source=../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"
cp "$fixtures/h5py.h5" "$fixtures/variable_text.h5" .

# ---- no reader near: a fork does its work, with the same result ----
exits 1 inspect h5py.h5 # no known layout of data
cp out expected
mkdir alone lib
cp "$tgrad" alone/tgrad
# linked with the shared library, the program looks for its reader beside that, and for that in lib
! ldd "$tgrad" | grep -q libtgrad || cp -P "$(realpath "$3")"/lib/libtgrad.so* lib
for file in h5py.h5 variable_text.h5; do
    "$tgrad" inspect $file --stats >expected 2>&1
    alone/tgrad inspect $file --stats >out 2>&1
    cmp -s out expected || complain "inspect $file differs without tgrad-h5: $(cat out)"
done
printf 'exit 3' >tgrad-h5 && chmod +x tgrad-h5 # in the current folder: not ours
PATH=.:$PATH alone/tgrad inspect h5py.h5 --tensor group/zip >out 2>&1 || complain "runs a reader from the current folder"

# ---- a reader that lies ----
bytes() { # bytes <count> <number>: little-endian
    local i
    for ((i = 0; i < $1; i++)); do
        # shellcheck disable=SC2059 # the format is the byte
        printf "\\x$(printf %02x $(($2 >> (8 * i) & 255)))"
    done
}
frame() { # frame <kind> <status> <size>
    bytes 4 "$1"; bytes 4 "$2"; bytes 8 "$3"
}
entry() { # entry <dtype> <refusal> <ndim> <first size> <offset>
    local i
    bytes 4 "$1"; bytes 4 "$2"; bytes 8 "$3"; bytes 8 "$4"
    for ((i = 0; i < 7; i++)); do bytes 8 1; done
    bytes 8 "$5"
}
dataset() { # dataset <name> <entry ..>: a frame with both
    local name=$1
    shift
    frame 2 0 $((88 + ${#name} + 2))
    entry "$@"
    printf '%s\0\0' "$name"
}
hello() { frame 0 3 0; }
size=$(stat -c %s h5py.h5)

# lie <what it is> <text of the error>: the bytes come from the standard input.
lie() {
    cat >lie
    cat >alone/tgrad-h5 <<END
#!/bin/sh
cat "$work/lie" >&3
sleep 0.2
${3-}
END
    chmod +x alone/tgrad-h5
    cp alone/tgrad-h5 lib
    last="a reader with $1"
    timeout -k 5 300 alone/tgrad inspect h5py.h5 >out 2>err
    local code=$?
    [ $code -eq 1 ] || complain "$last: exit code $code"
    grep -q "$2" err || complain "$last: no '$2'"
}
lost='broke the protocol'
lie "nothing to say" 'ended early' </dev/null
lie "another version" 'another version' < <(frame 0 99 0)
lie "half a frame" 'ended early' < <(hello; bytes 4 2)
lie "an unknown kind" "$lost" < <(hello; frame 77 0 0)
lie "data unasked" "$lost" < <(hello; frame 4 0 8; bytes 8 1)
lie "too large a frame" "$lost" < <(hello; frame 2 0 $((1 << 60)))
lie "a negative size" "$lost" < <(hello; frame 2 0 -1)
lie "too short an entry" "$lost" < <(hello; frame 2 0 8; bytes 8 0)
lie "a dtype that is none" "$lost" < <(hello; dataset x 99 0 1 4 -1)
lie "too many dimensions" "$lost" < <(hello; dataset x 0 0 9 4 -1)
lie "a negative dimension" "$lost" < <(hello; dataset x 0 0 1 -4 -1)
lie "an overflow" "$lost" < <(hello; dataset x 0 0 1 $((1 << 61)) -1)
lie "data behind the end" "$lost" < <(hello; dataset x 0 0 1 4 "$size")
lie "data over the end" "$lost" < <(hello; dataset x 0 0 1 4 $((size - 8)))
lie "no name" "$lost" < <(hello; dataset '' 0 0 1 4 -1)
lie "a name that is not UTF-8" "$lost" < <(hello; dataset $'\xff' 0 0 1 4 -1)
lie "a name twice" "$lost" < <(hello; dataset x 0 0 1 4 -1; dataset x 0 0 1 4 -1)
lie "a status that is none" 'sentence' < <(hello; frame 5 77 8; printf sentence)
lie "too long a sentence" "$lost" < <(hello; frame 5 6 $((1 << 20)))
lie "escapes in its sentence" 'x\\x1b\[31m' < <(hello; frame 5 6 6; printf 'x\033[31m')
lie "a crash" 'crashed (signal 11)' 'kill -SEGV $$' < <(hello)
lie "an end by its limit" 'took too long' 'kill -PROF $$' < <(hello)
lie "no memory to start" 'could not be started' 'exit 127' </dev/null

# Half of the data that was asked for, and more than that.
for answer in 8 32; do
    { hello; dataset x 0 0 1 4 -1; frame 5 0 0; } >start
    {
        echo '#!/bin/bash'
        echo "cat '$work/start' >&3"
        echo 'head -c 42 <&3 >/dev/null' # for the data of x
        echo "cat '$work/answer' >&3; sleep 0.2"
    } >alone/tgrad-h5
    cp alone/tgrad-h5 lib
    { frame 4 0 $answer; bytes $answer 0; frame 5 0 0; } >answer
    last="a reader that sends $answer of 16 bytes"
    timeout -k 5 300 alone/tgrad convert h5py.h5 out.npy >out 2>err
    [ $? -eq 1 ] || complain "$last: is believed"
    grep -q "$lost" err || complain "$last: no '$lost'"
done
[ $failures -eq 0 ]
