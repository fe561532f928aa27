#!/usr/bin/env bash
# tgrad export --c: what it writes compiles with the C compiler alone, without a warning, and predicts
# what the program does, for networks of every kind and grids of every size; damaged models are named.
#
#   tests/cli/model/test_export.sh build/bin/tgrad <source tree> <build tree>
source_tree=$(realpath "$2")
# shellcheck source=../../support/checks.sh
source "$source_tree/tests/support/checks.sh"
# shellcheck source=../../support/arrays.sh
source "$source_tree/tests/support/arrays.sh"

warn=(-std=c11 -O1 -Wall -Wextra -Werror)

# model <name> <dims> <settings of train ..>: a run of one epoch on a few points.
model() {
    local name=$1 dims=$2 shape=8 count=64
    shift 2
    [ "$dims" = 2 ] && shape='8, 8' count=512
    [ "$dims" = 3 ] && shape='8, 8, 8' count=4096
    [ "$dims" = 1 ] && shape='8' count=64
    mkdir -p "data$dims"
    for part in train test; do
        for side in x y; do
            local file=data$dims/toy_${part}_8_$side.npy
            [ -e "$file" ] || bytes "(8, $shape)" "$count" "${#file}" "$file"
        done
    done
    local modes='[4]'
    [ "$dims" = 2 ] && modes='[4, 5]'
    [ "$dims" = 3 ] && modes='[3, 4, 4]'
    cat >config.yaml <<Y
fno: {n_modes: $modes, hidden_channels: 5, n_layers: 2}
opt: {name: adam, n_epochs: 1, learning_rate: 0.01}
data: {root: data$dims, set: toy, train_resolution: 8, test_resolutions: [8], batch_size: 4,
       test_batch_sizes: 4}
Y
    expect 0 train config.yaml --run "run_$name" --quiet --threads 1 "$@"
}

# same <name> <grid>: the exported program predicts what this one does.
same() {
    rm -rf folder
    expect 0 export "run_$1" --c -o folder --grid "$2"
    [ -s objects/run.o ] || compile_once
    cc "${warn[@]}" -c folder/example.c -o folder/example.o 2>err || complain "$1: example.c"
    cc folder/example.o objects/*.o -lm -o folder/example 2>err || complain "$1: linking"
    (cd folder && ./example >../out 2>../err) || complain "$1 on $2: $(cat out)"
}

compile_once() {
    mkdir -p objects
    cc "${warn[@]}" -c folder/tgrad_predict.c -o objects/load.o 2>err || complain "tgrad_predict.c"
    cc "${warn[@]}" -c folder/tgrad_predict_run.c -o objects/run.o 2>err || complain "predict_run.c"
}

model plain 2
for grid in 8 7x12 3x2 40x17; do # also fewer points than modes, and other sizes than multiples of tiles
    same plain "$grid"
done
model line 1 --fno.fno_skip soft-gating --fno.channel_mlp_skip identity --data.encode_input true
same line 9
model space 3 --fno.domain_padding 0.25 --fno.norm instance_norm
same space 8x6x5
model group 2 --fno.norm group_norm --fno.domain_padding 0.5 --fno.domain_padding_mode symmetric \
    --fno.stabilizer tanh --fno.channel_mlp_skip linear --data.encode_output false
same group 8x9
model bare 2 --fno.use_channel_mlp false --fno.positional_embedding null --fno.norm group_norm \
    --fno.fno_block_weights_precision bf16
same bare 10x8
model small 2 --fno.activation_precision bf16 # the C sources compute in f32, and so does what they are compared with
same small 16x12

# The numbers are checked: another sample is noticed.
sed -i 's/1e-4/0/' folder/example.c
printf 'XXXX' | dd of=folder/sample.f32 bs=1 seek=400 conv=notrunc status=none
cc folder/example.c objects/*.o -Ifolder -lm -o folder/example
(cd folder && ./example >/dev/null 2>&1) && complain "a wrong sample was not noticed"

# A model that is cut, longer, of another kind or missing.
tell() { # tell <words expected>
    (cd folder && ./example >../out 2>../err) && complain "a damaged model ran"
    grep -q "$1" err || complain "expected '$1'"
}
cp folder/model.tgp whole
truncate -s -4 folder/model.tgp && tell 'it is damaged'
truncate -s +8 folder/model.tgp && tell 'it is damaged'
sed 's/^layers 2/layers 0/' whole >folder/model.tgp && tell 'out of range'
sed 's/^layers 2/layers 9/' whole >folder/model.tgp && tell 'it is damaged'
sed 's/predict 1/predict 2/' whole >folder/model.tgp && tell 'another version'
truncate -s 100 folder/model.tgp && tell 'shorter than its header'
rm folder/model.tgp && tell 'cannot be opened'

expect 2 export run_plain -o folder
expect 2 export run_plain --c
expect 1 export run_plain --c -o folder --grid 8x8x8
grep -q 'expected one size or 2' err || complain "a grid of three sizes"
expect 1 export run_plain --c -o /dev/null/folder
expect 1 export nowhere --c -o folder
model tucker 2 --fno.factorization tucker --fno.rank 0.5
expect 1 export run_tucker --c -o folder2
grep -q 'convert --densify' err || complain "factorized weights: no way out named"
[ ! -e folder2 ] || complain "a refused export made a folder"

[ "$failures" -eq 0 ] && echo "all exports passed"
exit "$failures"
