#!/usr/bin/env bash
# Names and texts of files that turn the direction of writing or talk to the terminal: shown by their
# codes on stdout as in errors, in every command that shows them.
# shellcheck source=../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"
evil=$'n\xe2\x80\xaeame\x1b[31m'

# f32 zeros in a safetensors file with such a name and metadata
header='{"__metadata__":{"key\u202e":"value\u202e\u001b[31m"},"n\u202eame\u001b[31m":{"dtype":"F32","shape":[4,2],"data_offsets":[0,32]}}'
{
    # shellcheck disable=SC2059 # the format is the byte
    printf "\\x$(printf %02x ${#header})\\0\\0\\0\\0\\0\\0\\0"
    printf %s "$header"
    head -c 32 /dev/zero
} >"$evil.safetensors"

# shown <arguments ..>: the command succeeds, and what it says is plain text with the codes
shown() {
    last="$*"
    "$tgrad" "$@" >out 2>err </dev/null || complain "$last: exit code $?"
    ! grep -q $'\x1b\|\xe2\x80\xae' out || complain "$last: hidden characters on stdout"
    says out '\u202e' '\x1b'
}
shown inspect "$evil.safetensors"
shown convert "$evil.safetensors" "$evil.h5"
shown inspect "$evil.h5"
shown analyze "$evil.h5"
shown convert "$evil.h5" "$evil.npy"
shown inspect "$evil.npy"
shown generate burgers --n-train 2 --n-test 2 --resolution 16 -o "$evil" --threads 1
cat >"$evil.yaml" <<'Y'
fno: {n_modes: [4], hidden_channels: 4, n_layers: 1}
opt: {name: adam, n_epochs: 1, learning_rate: 0.01}
data: {set: burgers, train_resolution: 16, test_resolutions: [16], batch_size: 2}
Y
shown train "$evil.yaml" --run "run$evil" --data.root "$evil" --threads 1
shown plan "$evil.yaml"
shown eval "run$evil" --data "$evil/burgers_test_16.h5" --threads 1
shown predict "run$evil" -i "$evil/burgers_test_16.h5" -o "out$evil.npy" --threads 1
shown report "run$evil" -o "page$evil.html"
! grep -q $'\x1b\|\xe2\x80\xae' "page$evil.html" || complain "hidden characters in the report"

expect 1 inspect "absent$evil"
! grep -q $'\x1b\|\xe2\x80\xae' err || complain "$last: hidden characters in the error"
says err '\u202e'
[ $failures -eq 0 ]
