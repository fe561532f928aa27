#!/usr/bin/env bash
# What a user with data of his own reads when something about them does not fit: each message names the
# file, what was found there and what to type.
#
#   tests/cli/test_messages.sh build/bin/tgrad <source tree> <build tree>
tree=$(realpath "$2")
# shellcheck source=../support/checks.sh
source "$tree/tests/support/checks.sh"

# arrays <file> <name shape> ..: a safetensors file of f32, the shape as 8,12,3; numbers from 0.5 to 1
arrays() {
    local file=$1 header='{' total=0 size
    shift
    while [ $# -gt 0 ]; do
        size=$((4 * ${2//,/*}))
        header+="\"$1\":{\"dtype\":\"F32\",\"shape\":[$2],\"data_offsets\":[$total,$((total + size))]},"
        total=$((total + size))
        shift 2
    done
    header="${header%,}}"
    {
        printf '%b' "\\x$(printf %02x $((${#header} % 256)))\\x$(printf %02x $((${#header} / 256)))\\0\\0\\0\\0\\0\\0$header"
        awk -v count=$((total / 4)) 'BEGIN { state = 1; for (i = 0; i < count; i++) {
            state = (state * 1103 + 12347) % 65537
            printf "\\x00\\x00\\x%02x\\x3f%s", state % 128, i % 1000 == 999 ? "\n" : "" } }' |
            xargs -d '\n' -n 1 printf %b
    } >"$file"
}
# spoil <file> <bytes from the end>: a NaN
spoil() {
    printf '\x00\x00\xc0\x7f' |
        dd of="$1" bs=1 seek=$(($(stat -c %s "$1") - $2)) conv=notrunc status=none
}
cat >config.yaml <<'Y'
fno: {n_modes: [4, 4], hidden_channels: 4, n_layers: 1}
opt: {name: adam, n_epochs: 1}
data: {train_file: plain.safetensors, batch_size: 4, encode_output: false}
Y
arrays plain.safetensors x 8,12,20 y 8,12,20
small=(--threads 1 --opt.n_epochs 1 --fno.hidden_channels 4 --fno.n_layers 1)
expect 0 train config.yaml --run plain --threads 1
grep -q "of each channel" out && complain "the channels of fields without any: $(cat out)"

expect 0 inspect plain/checkpoints/recent.safetensors
says out "a trained model, which tgrad eval and tgrad predict take"
grep -q "data layout" out && complain "a checkpoint is no data: $(grep 'data layout' out)"
expect 0 eval --help
says out "HDF5, npz, safetensors, or NAME_x.npy"

# ---- a file that is not there ----

exits 1 train config.yaml --run none --data.train_file absent.h5
says err "absent.h5: cannot open: No such file or directory"
grep -q "plan" err && complain "a missing file is one of plans: $(cat err)"
[ "$(wc -l <err)" -eq 1 ] || complain "more than one line for a missing file"

# ---- more than the data have: modes, samples in a batch ----

exits 0 train config.yaml --run much --threads 1 --fno.n_modes 16,20 --fno.hidden_channels 16
# 16 x 16 weights of 8 bytes at 4 x 11 of 16 x 11 frequencies are unused
says err "fno.n_modes: 16x20, but the training grid of 12x20 has only 12x20" "not trained (0.0859 MiB): set fno.n_modes: 12x20"
expect 0 train config.yaml --run fits --threads 1 --fno.n_modes 12x20
exits 0 train config.yaml --run large --threads 1 --data.batch_size 9
says err "data.batch_size: 9, but the training set has 8 samples" "set data.batch_size: 4"
expect 0 train config.yaml --run whole --threads 1 --data.batch_size 8

# ---- channels last without --order ----

arrays last.safetensors x 8,12,20,3 y 8,12,20,2
expect 1 init last.safetensors
says err "x is 8x12x20x3, y is 8x12x20x2" "if the channels come last, set data.order: nhwc" "the options" "--order"
expect 0 init last.safetensors --order nhwc
says out "order: nhwc" "in_channels: 3" "out_channels: 2"
expect 1 train config.yaml --run none --data.train_file last.safetensors
says err "x is 8x12x20x3, y is 8x12x20x2; if the channels come last, set data.order: nhwc"
arrays last_y.safetensors x 8,12,20 y 8,12,20,2
expect 1 init last_y.safetensors
says err "x is 8x12x20, y is 8x12x20x2; if the channels come last"
expect 0 init last_y.safetensors --order nhwc
says out "in_channels: 1" "out_channels: 2"
arrays last_same.safetensors x 8,12,20,3 y 8,12,20,3 # fits as 12 channels on a grid of 20x3
expect 1 init last_same.safetensors
says err "x is 8x12x20x3, y is 8x12x20x3; if the channels come last"
expect 1 train config.yaml --run none --data.train_file last_same.safetensors --fno.in_channels 3
says err "fno.in_channels: 3, but x of last_same.safetensors has 12 channels on a grid of 20x3; if the channels come last"
exits 0 train config.yaml --run same --data.train_file last_same.safetensors --fno.n_modes 4,3
says err "x is read as 12 channels on a grid of 20x3; if its channels come last, set data.order: nhwc"
arrays first.safetensors x 8,3,12,20 y 8,3,12,20
expect 0 init first.safetensors
says out "n_modes: [6, 10]" "in_channels: 3"
# as many channels as the grid has points, or more: y, which has others, shows what they are
arrays many.safetensors x 4,20,12,12 y 4,1,12,12
expect 0 init many.safetensors
says out "n_modes: [6, 6]" "in_channels: 20" "out_channels: 1"
arrays many_x.safetensors x 4,12,12,20 y 4,12,12
expect 0 init many_x.safetensors --order nhwc
says out "n_modes: [6, 6]" "in_channels: 20" "out_channels: 1"
arrays cube.safetensors x 4,12,12,12 y 4,12,12,12
expect 0 init cube.safetensors
says out "n_modes: [6, 6, 6]" "in_channels: 1"
arrays grids.safetensors x 8,12,20 y 8,12,16
expect 1 init grids.safetensors
says err "their grids differ), but x is 8x12x20, y is 8x12x16"
grep -q "data.order" err && complain "the order of channels is not what is wrong: $(cat err)"

# ---- a model of another order than the file ----

arrays first_2.safetensors x 8,3,12,20 y 8,2,12,20
arrays last_2.safetensors x 8,12,20,3 y 8,12,20,2
expect 0 init first_2.safetensors -o first_2.yaml
expect 0 train first_2.yaml --run first_2 "${small[@]}"
grep -Eq "^l2 of each channel, 12x20: [0-9.]+ [0-9.]+$" out || complain "no errors of channels: $(cat out)"
exits 1 eval first_2 -d last_2.safetensors
says err "set data.order: nhwc" "here the keys of section data are the options --x-name, --y-name and --order"
expect 0 eval first_2 -d last_2.safetensors --order nhwc
grep -Eq "^last_2.safetensors +12x20 +8 " out || complain "$last: $(cat out)"
exits 1 predict first_2 -i last_2.safetensors -o last_y.npy
expect 0 predict first_2 -i last_2.safetensors -o last_y.npy --order nhwc
says out "8 samples, f32 8x12x20x2"
expect 0 predict first_2 -i first_2.safetensors -o first_y.npy
says out "8 samples, f32 8x2x12x20"

# ---- two arrays of other names ----

arrays two.safetensors start 8,12,20 end 8,12,20
expect 1 init two.safetensors
says err "tgrad init two.safetensors --x-name start --y-name end, or with the two swapped"
expect 0 init two.safetensors --x-name start --y-name end
expect 1 predict plain -i two.safetensors -o two.npy
says err "there is no tensor 'x'; there are start, end; --dataset says which one to take"
expect 0 inspect two.safetensors # of this format it may be a file of weights
says out "tgrad init two.safetensors --x-name start --y-name end"
"$tgrad" convert two.safetensors two.h5 >/dev/null
expect_unfit() { # expect_unfit <file>: shown whole, exit code 1
    exits 1 inspect "$1"
    [ -s out ] || complain "$last: shows nothing"
    says err "tgrad: $1: it cannot be trained on as it is"
}
expect_unfit two.h5
says out "tgrad init two.h5 --x-name"
expect_unfit grids.safetensors
expect_unfit last.safetensors
exits 1 inspect grids.safetensors --json
says out '"name": null' "their grids differ"
arrays three.safetensors a 8,12,20 b 8,12,20 c 8,12,20
expect 1 init three.safetensors
grep -q "the two swapped" err && complain "three arrays are no pair"

arrays one.safetensors u 8,6,12,20
expect 1 init one.safetensors
says err "if it has times, (samples, times, grid..): tgrad init one.safetensors --fields u"
expect 0 init one.safetensors --fields u
says out "fields: u"
arrays upper.safetensors X 8,12,20 Y 8,12,20
expect 1 init upper.safetensors
says err "of this pair: tgrad init upper.safetensors --x-name X --y-name Y"
grep -q "the two swapped" err && complain "the names say which is the input: $(cat err)"

# ---- training and test data side by side ----

arrays parts.safetensors x_test 3,12,20 x_train 8,12,20 y_test 3,12,20 y_train 8,12,20
expect 1 init parts.safetensors
says err "of this pair: tgrad init parts.safetensors --x-name x_train --y-name y_train"
expect 0 init parts.safetensors --x-name x_train --y-name y_train -o parts.yaml
expect 0 train parts.yaml --run parts "${small[@]}"
expect 0 eval parts -d parts.safetensors --x-name x_test --y-name y_test # no part of what was trained on
grep -Eq "^parts.safetensors +12x20 +3 " out || complain "$last: not all 3 samples: $(cat out)"
expect 1 eval parts -d parts.safetensors --x-name x_test --y-name y_test --split test
says err "--split test: the model was not trained on x_test of parts.safetensors"
expect 0 eval parts -d parts.safetensors --x-name x_train
says out "1 test sample of parts.safetensors; the other 7 were trained on"

# ---- a pair of npy files ----

for side in x y; do
    expect 0 convert plain.safetensors $side.npy --dataset $side
    cp $side.npy ${side}_heat.npy
    cp $side.npy heat_$side.npy
done
for file in x.npy x_heat.npy heat_x.npy; do
    expect 0 init $file -o npy.yaml
    expect 0 train npy.yaml --run npy --force "${small[@]}"
done
cp x.npy other.npy
for file in y.npy other.npy; do
    expect 1 init $file
    says err "$file: an npy file holds one array: call the files of a pair NAME_x.npy and NAME_y.npy"
done

# ---- NaN: x[2, 3, 5] and y[5, 11, 18] ----

cp plain.safetensors nan.safetensors
spoil nan.safetensors $((4 * (2 * 240 * 8 - 2 * 240 - 3 * 20 - 5)))
spoil nan.safetensors $((4 * (240 * 8 - 5 * 240 - 11 * 20 - 18)))
expect_unfit nan.safetensors
says out "cannot be trained on: 2 of its values are NaN or Inf"
grep -q "settings that train on it\|n_modes" out && complain "settings for data with NaN"
expect 0 inspect nan.safetensors --tensor x
exits 1 inspect nan.safetensors --json
says out '"nonfinite": 2' '"config": null'
exits 0 init nan.safetensors
says err "nan.safetensors: 2 values are NaN or Inf"
for side in input:x:2:'(3, 5)' output:y:5:'(11, 18)'; do
    IFS=: read -r key name sample point <<<"$side"
    expect 1 train config.yaml --run none --data.train_file nan.safetensors --data.encode_"$key" true
    says err "nan.safetensors: $name: sample $sample, channel 0, point $point is NaN"
done
for cache in 1e9 0; do # in memory, and streamed
    exits 0 train config.yaml --run nan --force --threads 1 --data.train_file nan.safetensors --data.shuffle false \
        --data.batch_size 2 --data.cache $cache
    says err "epoch 1, batch 2: the loss is nan; the batch is skipped: nan.safetensors: x: sample 2, channel 0, point (3, 5)" \
        "batch 3: the loss is nan; the batch is skipped: nan.safetensors: y: sample 5, channel 0, point (11, 18) is NaN"
    rm -r nan
done
[ "$failures" -eq 0 ]
