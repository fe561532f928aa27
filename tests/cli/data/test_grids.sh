#!/usr/bin/env bash
# Grids that are not square, files and arrays with names of their own: plan, train, eval, predict
# and report agree on them, and what does not fit is refused in words.
#
#   tests/cli/data/test_grids.sh build/bin/tgrad <source tree> <build tree>
tree=$(realpath "$2")
# shellcheck source=../../support/checks.sh
source "$tree/tests/support/checks.sh"
# shellcheck source=../../support/arrays.sh
source "$tree/tests/support/arrays.sh"

run() { # run <exit code> <command ..>: one thread, for the same bits
    case $2 in
    inspect | report) expect "$@" ;;
    *) expect "$@" --threads 1 ;;
    esac
}

# warned <fixed text> <command ..>: succeeds, with that warning
warned() {
    local text=$1
    shift
    last="$*"
    "$tgrad" "$@" --threads 1 >out 2>err </dev/null || complain "$last: failed"
    says err "warning: " "$text"
    : >err
}

refused() { # refused <fixed text> <arguments of train ..>: and no folder is left behind
    local text=$1
    shift
    run 1 train "$@" --run refused --quiet
    says err "$text"
    [ ! -e refused/metrics.jsonl ] || complain "$last: left metrics"
}

# pair <shape of x> <numbers> <shape of y> <numbers> <name>: NAME_x.npy and NAME_y.npy
pair() {
    bytes "$1" "$2" 3 "$5_x.npy"
    bytes "$3" "$4" 7 "$5_y.npy"
}

mkdir -p data
pair '(4, 2, 48, 80)' 30720 '(4, 48, 80)' 15360 data/flow_train_48x80
pair '(2, 2, 48, 80)' 15360 '(2, 48, 80)' 7680 data/flow_test_48x80
pair '(2, 2, 16, 16)' 1024 '(2, 16, 16)' 512 data/flow_test_16
pair '(2, 12, 16, 20)' 7680 '(2, 12, 16, 20)' 7680 data/box
cat >flow.yaml <<'Y'
fno: {n_modes: 8x6, hidden_channels: 4, n_layers: 2}
opt: {name: adam, n_epochs: 2, learning_rate: 0.01}
data: {root: data, set: flow, test_resolutions: [48x80, 16], batch_size: 2}
Y

# ---- two dimensions: the grid and the channels are those of the only file ----

run 0 plan flow.yaml
says out 'at resolution 48x80' 'opening data, train 48x80' 'evaluation at 48x80' 'evaluation at 16'
run 0 plan flow.yaml --json
jq -e '.grid == [48, 80]' out >/dev/null || complain "plan --json: grid"
planned=$(jq '[.moments[].data] | max' out)
run 1 plan flow.yaml --data.set none
says err 'none_train_<grid>.h5' 'a plan without the file needs data.train_resolution'
run 0 plan flow.yaml --data.set none --data.train_resolution 48x80
says out 'data are not counted'
run 0 train flow.yaml --run run
says out '  | 48x80: l2 ' '  | 16: l2 '
says run/config.yaml 'train_resolution: 48x80' 'test_resolutions: [48x80, 16]' 'in_channels: 2' \
    'out_channels: 1'
jq -e '.test | keys_unsorted == ["48x80", "16"]' <(tail -n 1 run/metrics.jsonl) >/dev/null || complain "metrics.jsonl"
[ "$(tail -n 1 run/metrics.jsonl | jq .memory.data)" = "$planned" ] || complain "the plan's bytes of data"
says run/metrics.csv 'l2_48x80,h1_48x80,l2_16,h1_16'
grep -q 'test/l2_48x80' run/events/* || complain "no events of the test at 48x80"
run 0 inspect run/samples.safetensors
says out x_48x80 pred_48x80 y_16

recent=run/checkpoints/recent.safetensors
run 0 eval $recent -d data/flow_test_48x80_x.npy,data/flow_test_16_x.npy
says out '       48x80 ' '          16 '
run 0 eval $recent -d data/flow_test_48x80_x.npy --json
[ "$(jq '.results[0].l2' out | cut -c1-7)" = \
    "$(tail -n 1 run/metrics.jsonl | jq '.test["48x80"].l2' | cut -c1-7)" ] || complain "eval is not the training's"
jq -e '.results[0].resolution == "48x80"' out >/dev/null || complain "eval --json: resolution"
run 0 eval $recent -d data/flow_test_48x80_x.npy --resolution 24x40,12x20 --json
jq -e '[.results[].resolution] == ["24x40", "12x20"]' out >/dev/null || complain "eval --resolution"
warned 'of its grid of 48x80 only 16x16 is used: one point in 3x5' \
    eval $recent -d data/flow_test_48x80_x.npy --resolution 16 --json
run 1 eval $recent -d data/flow_test_48x80_x.npy --resolution 32
says err 'a grid of 48x80 cannot be sub-sampled to 32'
run 1 eval $recent -d data/flow_test_48x80_x.npy --resolution 12x16x20
says err '--resolution 12x16x20 has 3 dimensions, the model has 2'
run 2 eval $recent -d data/flow_test_48x80_x.npy --resolution 48y80
says err "--resolution needs grids such as 16 or 48x80, not '48y80'"
run 1 eval $recent -d data/box_x.npy
says err 'fno.in_channels: 2, but x of the data has 12 channels'

run 0 predict run -i data/flow_test_48x80_x.npy -o pred.safetensors
says out '2x1x48x80'
run 0 report run -o report.html
says report.html 'trained at resolution 48x80, tested at 16 and 48x80' 'Test error at 48x80' \
    'Resolution 48x80, as trained' 'Resolution 16, coarser than trained'
sed 's/48x80/80x48/' run/config.yaml >turned && cp turned run/config.yaml
run 0 report run -o report.html
says report.html 'trained at resolution 80x48' '<h3>Resolution 48x80</h3>'
sed 's/80x48/48x80/' turned >run/config.yaml

# Resumed with the file that the run wrote, it goes on.
run 0 train run/config.yaml --run run --resume auto --opt.n_epochs 3 --quiet
[ "$(wc -l <run/metrics.jsonl)" = 3 ] || complain "resumed: not three epochs"

# ---- every way to write a grid ----

run 0 train flow.yaml --run same --quiet
for grid in 48x80 '[48, 80]' 48,80 0; do
    rm -rf again
    run 0 train flow.yaml --run again --data.train_resolution "$grid" --fno.n_modes '8, 6' --quiet
    cmp -s same/checkpoints/recent.safetensors again/checkpoints/recent.safetensors ||
        [ "$(jq -c .train same/metrics.jsonl)" = "$(jq -c .train again/metrics.jsonl)" ] ||
        complain "$last: another training"
done
run 0 train flow.yaml --run half --data.train_resolution 24x40 --data.file_resolution 48x80 \
    --data.test_resolutions null --quiet
says half/config.yaml 'train_resolution: 24x40'
jq -e '.test == {}' half/metrics.jsonl >/dev/null || complain "no tests were asked for"
warned 'only 16x16 is used' train flow.yaml --run square --data.train_resolution 16 \
    --data.file_resolution 48x80 --data.test_resolutions '[]' --quiet

refused 'flow_train_24x40.h5: there is no such file' flow.yaml --data.train_resolution 24x40
refused 'a grid of 48x80 cannot be sub-sampled to 32: 32 is no divisor of 48' flow.yaml \
    --data.train_resolution 32 --data.file_resolution 48x80
refused 'data.train_resolution: a grid of 3 dimensions, but fno.n_modes has 2' flow.yaml \
    --data.train_resolution 4x4x4
refused 'data.test_resolutions: a grid of 3 dimensions' flow.yaml --data.test_resolutions 4x4x4
refused "data.train_resolution: expected a grid (16, 48x80 or [48, 80])" flow.yaml \
    --data.train_resolution 48by80
refused 'data.test_resolutions: data: there are files flow_test_.. on several grids, ' flow.yaml \
    --data.test_resolutions 0
says err 48x80 16
touch data/two_train_8.h5 data/two_train_9.h5
refused 'data.train_resolution: data: there are files two_train_.. on several grids, ' flow.yaml --data.set two
refused 'there is no file none_train_<grid>.h5' flow.yaml --data.set none

# ---- three dimensions, files by name ----

both='is the training file, too' # the warning where tests are samples that are trained on

cat >box.yaml <<'Y'
fno: {n_modes: "4,4,4", hidden_channels: 3, n_layers: 1}
opt: {n_epochs: 1}
data: {root: data, train_file: box_x.npy, test_files: [box_x.npy, box_x.npy, box_x.npy],
       test_resolutions: [12x16x20, 6x8x10, 12x16x20], batch_size: 1}
Y
warned "$both" train box.yaml --run box
says out '12x16x20: l2' '6x8x10: l2' '12x16x20_2: l2'
jq -e '.test["12x16x20"] == .test["12x16x20_2"]' box/metrics.jsonl >/dev/null || complain "one file, two errors"
run 0 plan box.yaml
says out 'evaluation at 12x16x20' 'evaluation at 6x8x10'
run 0 eval box -d data/box_x.npy
says out '12x16x20 '
run 0 predict box -i data/box_x.npy -o pred.npy
says out '2x12x16x20'
run 0 report box -o box.html
says box.html 'tested at 6x8x10, 12x16x20 and 12x16x20_2' 'Resolution 12x16x20, as trained'
refused 'data.test_resolutions: 2 entries for 3 data.test_files' box.yaml --data.test_resolutions 6x8x10,12x16x20
refused 'data.test_files: name the files to test on, or the data set in data.set' box.yaml --data.test_files '[]'
refused 'data.set: name the data set' box.yaml --data.train_file null
refused 'nothing.h5' box.yaml --data.train_file nothing.h5

# ---- names of the arrays ----

run 0 predict run -i data/flow_test_48x80_x.npy -o named.h5 --y-name velocity
run 0 inspect named.h5
says out velocity
named=(flow.yaml --data.train_file ../named.h5 --data.test_files '[../named.h5]' --data.test_resolutions null)
refused "there is no numeric dataset 'x'; there are velocity; data.x_name says which one is x" "${named[@]}"
refused "there is no numeric dataset 'pressure'; there are velocity; data.y_name says" "${named[@]}" \
    --data.x_name velocity --data.y_name pressure
warned "$both" train "${named[@]}" --data.x_name velocity --data.y_name velocity --run named --quiet
says named/config.yaml 'x_name: velocity' 'test_files: [../named.h5]' 'in_channels: 1'
run 0 eval named -d named.h5
run 1 eval named -d named.h5 --x-name speed
says err "there is no numeric dataset 'speed'; there are velocity" 'the options --x-name, --y-name and --order'
run 1 eval named -d named.h5 --y-name speed
says err "'speed'"
run 0 predict named -i named.h5 -o twice.safetensors
run 0 inspect twice.safetensors
says out velocity
run 0 predict named -i named.h5 -o twice.safetensors --x-name velocity --y-name u
run 0 inspect twice.safetensors
says out 'u  '
run 0 predict run -i data/flow_test_48x80_x.npy -o group.h5 --y-name sim/velocity
grouped=(flow.yaml --data.train_file ../group.h5 --data.test_files '[../group.h5]' --data.test_resolutions null)
refused "there is no numeric dataset 'sim/pressure'; there are sim/velocity" "${grouped[@]}" \
    --data.group sim --data.x_name velocity --data.y_name pressure
warned "$both" train "${grouped[@]}" --data.group sim --data.x_name velocity --data.y_name velocity --run grouped --quiet
run 0 predict grouped -i group.h5 -o again.h5
run 0 inspect again.h5
says out 'sim/velocity  f32'

# Channels of an array: the last of two is the input, the first the output. Predictions of the file as
# it is are those that the run has kept, which read it as training does.
convert data/flow_test_48x80_x.npy both.h5
warned "$both" train flow.yaml --data.train_file ../both.h5 --data.test_files '[../both.h5]' \
    --data.test_resolutions null --data.x_name data:1 --data.y_name data:0 --run both --quiet
run 0 predict both/checkpoints/recent.safetensors -i both.h5 -o predicted.npy
convert both/samples.safetensors kept.npy --dataset pred_48x80
cmp -s predicted.npy kept.npy || complain "channels of an array: other predictions than in training"
run 0 predict both/checkpoints/recent.safetensors -i both.h5 --dataset data:0-0 -o other.npy
cmp -s predicted.npy other.npy && complain "another channel gives the same predictions"
run 1 predict both -i both.h5 --dataset data -o none.npy
says err 'the model takes (samples, 1 channel, grid of 2 dimensions)' 'this is 2x2x48x80'

convert named.h5 named.safetensors
refused "there is no tensor 'x'; there are velocity; data.x_name says which one is x" flow.yaml \
    --data.train_file ../named.safetensors

# ---- channels, complex numbers, modes ----

refused 'fno.in_channels: 3, but x of data/flow_train_48x80_x.npy has 2 channels' flow.yaml --fno.in_channels 3
refused 'x of data/box_x.npy has 12 channels on a grid of 16x20; fno.n_modes says how many dimensions the grid has' \
    box.yaml --fno.n_modes 4,4 --fno.in_channels 1 --data.test_resolutions 16x20
refused 'fno.out_channels: 2, but y of data/flow_train_48x80_x.npy has 1 channel' flow.yaml --fno.out_channels 2
run 1 eval named -d data/flow_test_48x80_x.npy
says err 'fno.in_channels: 1, but x of the data has 2 channels'
for side in x y; do
    convert data/flow_test_16_$side.npy data/wave_$side.npy --dtype c64
done
refused 'fno.complex_data: expected true, as data/wave_x.npy holds complex numbers, found false' flow.yaml \
    --data.train_file wave_x.npy --data.test_resolutions '[]'
refused 'with 1 dimension of the grid (as many as fno.n_modes has), found 4x2x48x80' flow.yaml --fno.n_modes 8
sed 's/n_modes: 8x6, //' flow.yaml >without.yaml
refused 'fno.n_modes: it must be set, one number for each dimension of the data' without.yaml
warned 'fno.n_modes: 64x100, but the training grid of 48x80 has only 48x80; the weights of the other' \
    train flow.yaml --run many --fno.n_modes 64x100 --fno.hidden_channels 2 --opt.n_epochs 1 --quiet

echo "$failures failures"
[ "$failures" -eq 0 ]
