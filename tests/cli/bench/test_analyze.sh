#!/usr/bin/env bash
# tgrad analyze: numbers that can be worked out by hand, which tensor it takes, JSON, and bad input.
#
#   tests/cli/bench/test_analyze.sh build/bin/tgrad <source tree> <build tree>
fixtures=$(realpath "$2")/tests/fixtures
# shellcheck source=../../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"

run() { # run <exit code> <arguments of analyze ..>
    expect "$1" analyze "${@:2}"
}

# near <key> <expected>: the first JSON number of that key, to six digits.
near() {
    local found
    found=$(grep -m1 "\"$1\":" out | sed 's/.*: *//; s/,.*//')
    awk -v a="$found" -v b="$2" 'BEGIN { d = a - b; d = d < 0 ? -d : d; s = b < 0 ? -b : b
        exit !(a != "" && d <= 1e-6 * (s > 1 ? s : 1)) }' ||
        complain "$last: $1 is '$found', expected $2"
}

# bytes <shape> <byte ..>: an f32 npy of small whole numbers.
bytes() {
    local shape=$1 header
    shift
    header="{'descr': '|u1', 'fortran_order': False, 'shape': $shape, }"
    {
        printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "$header"
        # shellcheck disable=SC2059 # the format is the byte
        for byte in "$@"; do printf "\\x$(printf %02x "$byte")"; done
    } >bytes.npy
    "$tgrad" convert bytes.npy "${name:-numbers}.npy" --dtype f32 >/dev/null || complain "convert"
}

# ---- by hand: 1 .. 16; the largest quarter is kept, so 1 .. 12 and four zeros are left over ----

bytes '(4, 4)' {1..16}
run 0 numbers.npy --methods unstructured --json
sed -n '/"methods"/,$p' out >methods && mv out whole && mv methods out
near kept 4
near min 0
near q1 0.75
near median 4.5
near q3 8.25
near max 12
near relative_error 0.6591601 # sqrt(650 / 1496)
mv whole out
near norm 38.6781592
near median 8.5 # of |G|

# A matrix of rank 1 has stable ranks 1, and low rank loses nothing of it.
bytes '(3, 5)' 1 2 3 4 5 2 4 6 8 10 3 6 9 12 15
run 0 numbers.npy --methods lowrank --math fp32
says out 'stable rank by mode: 1 1; multilinear 1' '3x5' '15 entries'
grep -qE '^lowrank .* 0\.0000$' out || complain "$last: low rank loses some of rank 1"
grep -qE '^nothing kept +0 +0\.0 % .* 1\.0000$' out || complain "$last: the gradient itself"

# A constant gradient and one of a single entry are as good as any.
bytes '(7, 3)' 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9
run 0 numbers.npy --methods all
bytes '(1, 1)' 5
run 0 numbers.npy --methods all --json
bytes '(2, 2)' 0 0 0 0
run 0 numbers.npy --methods all --json
near relative_error 0

# Modes of any length: the Gram matrix of 20000 would have 3.2 GB and take minutes.
for shape in '20000, 3, 4' '4, 20000, 3' '3, 4, 20000' '240000,'; do
    {
        printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' \
            "{'descr': '|u1', 'fortran_order': False, 'shape': ($shape), }"
        seq 1000000 | tr -d '\n' | head -c 240000
    } >bytes.npy
    expect 0 convert bytes.npy long.npy --dtype f32
    run 0 long.npy --tensor data --methods all
    says out 'stable rank by mode: ' '240000 entries'
done

# ---- which tensor, which format ----

golden=$fixtures/optim_tg_us_lr.safetensors
run 0 "$golden"
says out 'grads, c64' sparse-lowrank lowrank-sparse lowrank
if grep -q galore out; then complain "$last: shows what was not asked for"; fi
cp out whole
"$tgrad" convert "$golden" golden.h5 >/dev/null || complain "convert"
run 0 golden.h5 --tensor grads
cmp -s <(tail -n +2 whole) <(tail -n +2 out) || complain "$last: not the same from HDF5"
run 0 "$golden" --tensor grads --backend ref --json
says out '"backend": "ref"' '"tensor": "grads"' '"dtype": "c64"' \
    '"stable_rank": [' '"multilinear_stable_rank"' '"label": "sparse 5 % then low rank 20 %"' \
    '"ranks": [' '"p999"' '"share"'
run 0 "$golden" --methods sum,sum,galore --methods structured
[ "$(grep -cE '^(sum|galore|structured) ' out)" -eq 3 ] || complain "$last: not three methods"
"$tgrad" convert "$golden" half.safetensors --dtype cbf16 --dataset grads >/dev/null
run 0 half.safetensors
says out 'grads, c64'

# ---- bad input ----

run 2
run 2 "$golden" --methods lowrnk
says err 'did you mean lowrank?'
run 2 "$golden" --methods ''
run 1 absent.npy
run 1 "$golden" --tensor w1
bytes '(4,)' 1 2 3 4
run 1 numbers.npy
says err 'no float tensor of two dimensions'
run 0 numbers.npy --tensor data
run 1 bytes.npy --tensor data
says err 'u8, expected floating-point'
bytes '(0, 3)'
run 1 numbers.npy --tensor data
says err 'no entry'
{
    printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' \
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }"
    printf '\x00\x00\x80\x3f\x00\x00\xc0\x7f\x00\x00\x80\x7f\x00\x00\x80\x7f'
} >broken.npy
run 1 broken.npy
says err 'broken.npy: data has 1 NaN and 2 Inf'

# ---- the gradient of a run ----

"$tgrad" generate burgers --n-train 4 --n-test 1 -r 32 --grid 64 -o data >/dev/null 2>&1
cat >config.yaml <<'Y'
fno: {n_modes: 8, hidden_channels: 6, n_layers: 2}
opt: {n_epochs: 1, training_loss: l2}
data: {root: data, set: burgers, train_resolution: 32, batch_size: 4}
Y
"$tgrad" train config.yaml --run trained --quiet >/dev/null 2>err || complain "a run to analyze"
run 0 trained --json
says out '"tensor": "fno_blocks.convs.1.weight.tensor"' '"name": "sparse-lowrank"'
run 0 trained --tensor fno_blocks.convs.0.weight.tensor
says out 'trained: fno_blocks.convs.0.weight.tensor, c64 6x6x5, 180 entries'
"$tgrad" train config.yaml --run cp --quiet --fno.factorization cp --fno.rank 0.5 >/dev/null 2>err ||
    complain "a run of cp to analyze"
run 1 cp
says err 'cp: none of its gradients is compressed'
run 1 data
says err 'data is a folder without checkpoints/recent.safetensors'
rm -r data
run 1 trained
says err 'burgers_train_32'

echo "$failures failures"
[ "$failures" -eq 0 ]
