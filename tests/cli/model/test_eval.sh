#!/usr/bin/env bash
# tgrad eval and tgrad predict on a model trained here for a moment: the numbers are those of the
# training, all forms and formats of the input give the same output, and bad input is named.
#
#   tests/cli/model/test_eval.sh build/bin/tgrad <source tree> <build tree>
source_tree=$(realpath "$2")
# shellcheck source=../../support/checks.sh
source "$source_tree/tests/support/checks.sh"
# shellcheck source=../../support/json.sh
source "$source_tree/tests/support/json.sh"
# shellcheck source=../../support/arrays.sh
source "$source_tree/tests/support/arrays.sh"

run() { # run <exit code> <command ..>: one thread, for the same bits
    case $2 in
    train | eval | predict) expect "$@" --threads 1 ;;
    *) expect "$@" ;;
    esac
}

# Every part (train, test) of a set "toy" with x and y of (samples, grid).
mkdir -p data
bytes '(10, 8, 8)' 640 1 data/toy_train_8_x.npy
bytes '(10, 8, 8)' 640 2 data/toy_train_8_y.npy
for side in x y; do
    bytes '(5, 16, 16)' 1280 $([ $side = x ] && echo 3 || echo 4) "data/toy_test_16_$side.npy"
    bytes '(5, 8, 8)' 320 $([ $side = x ] && echo 5 || echo 6) "data/toy_test_8_$side.npy"
done
cat >config.yaml <<'Y'
fno: {n_modes: [4, 4], hidden_channels: 4, n_layers: 2}
opt: {name: adam, n_epochs: 2, learning_rate: 0.01}
data: {root: data, set: toy, train_resolution: 8, test_resolutions: [8, 16], batch_size: 5,
       test_batch_sizes: 5, encode_input: true}
Y
run 0 train config.yaml --run run --quiet
[ -s run/samples.safetensors ] || complain "no samples of the training"

# number <key> <index>: the number of that key in the index-th result.
number() {
    at <(flat out) ".results.$(($2 - 1)).$1"
}

# ---- eval ----

recent=run/checkpoints/recent.safetensors
run 0 eval $recent --data data/toy_test_8_x.npy,data/toy_test_16_x.npy --json
cp out first
says out '"checkpoint": "run/checkpoints/recent.safetensors"' '"file": "data/toy_test_16_x.npy"' \
    '"samples": 5' '"resolution": 8' '"resolution": 16'
metric() { # metric <resolution> <l2|h1>: of the last epoch
    tail -1 run/metrics.jsonl | sed -E "s/.*\"$1\":\{\"l2\":([^,]*),\"h1\":([^}]*)\}.*/\\$([ "$2" = l2 ] && echo 1 || echo 2)/"
}
near "$(number l2 1)" "$(metric 8 l2)"
near "$(number h1 1)" "$(metric 8 h1)"
near "$(number l2 2)" "$(metric 16 l2)"
near "$(number h1 2)" "$(metric 16 h1)"
[ "$(number l2 1)" != "$(number l2 2)" ] || complain "two resolutions have one error"
run 0 eval $recent -d data/toy_test_8_x.npy -d data/toy_test_16_x.npy --batch 2 --json
near "$(number l2 2)" "$(metric 16 l2)" # batches of 2, 2 and 1 samples
run 0 eval $recent -d data/toy_test_16_x.npy --resolution 16,8,4
says out 'file ' 'resolution' 'samples' ' l2' ' h1'
[ "$(grep -c 'toy_test_16_x.npy' out)" -eq 3 ] || complain "$last: not three lines"
grep -qE "16_x.npy +16 +5 +$(printf %.6f "$(metric 16 l2)") +$(printf %.6f "$(metric 16 h1)")( +[0-9.]+){3} +[1-5]$" out ||
    complain "$last: $(cat out)"
run 0 eval run -d data/toy_test_8_x.npy --json
says out '"checkpoint": "run/checkpoints/best.safetensors"' '"best_by": "h1"'

# Which checkpoint: the best by what is trained, or the one that is named; every command says which.
run 0 train config.yaml --run turned --quiet --opt.n_epochs 5 --opt.keep_checkpoints 9 --opt.learning_rate 0.2
best=$(jq -s 'min_by(.test["8"].h1).epoch' turned/metrics.jsonl)
[ "$best" -lt 5 ] && [ "$best" -ne "$(jq -s 'min_by(.test["8"].l2).epoch' turned/metrics.jsonl)" ] ||
    complain "nothing is tested: the best epochs by both norms are alike, or the last"
chosen() { # chosen <epoch> <text> <options of eval ..>
    run 0 eval turned -d data/toy_test_8_x.npy --json "${@:3}"
    [ "$(jq -c '[.epoch, .epochs]' out)" = "[$1,5]" ] || complain "$last: $(jq -c '[.epoch, .epochs]' out)"
    near "$(number h1 1)" "$(jq -s ".[$1 - 1].test[\"8\"].h1" turned/metrics.jsonl)"
    run 0 eval turned -d data/toy_test_8_x.npy "${@:3}"
    says out "checkpoint: $2"
}
chosen "$best" "best, epoch $best of 5 (by h1)"
chosen "$best" "best, epoch $best of 5 (by h1)" --checkpoint best
chosen 5 "last, epoch 5 of 5" --checkpoint last
chosen 2 "step 4, epoch 2 of 5" --checkpoint 4
run 1 eval turned -d data/toy_test_8_x.npy --checkpoint 5
says err "turned: it has no checkpoint of step 5; there are those of steps 2, 4, 6, 8, 10"
run 1 eval turned -d data/toy_test_8_x.npy --checkpoint newest
says err "expected best, last or the number of a step, found 'newest'"
run 1 eval $recent -d data/toy_test_8_x.npy --checkpoint last
says err "it is not the folder of a run"
run 0 predict turned -i data/toy_test_8_x.npy -o best.npy
says out "checkpoint: best, epoch $best of 5 (by h1)"
run 0 predict turned -i data/toy_test_8_x.npy -o last.npy --checkpoint last --json
says out '"epoch": 5' '"best_by": null'
cmp -s best.npy last.npy && complain "$last: predicts as the best one"
run 0 train config.yaml --run turned_l2 --quiet --opt.n_epochs 5 --opt.learning_rate 0.2 --opt.best_metric 16.l2
run 0 predict turned_l2 -i data/toy_test_8_x.npy -o last.npy
says out "checkpoint: best, epoch $(jq -s 'min_by(.test["16"].l2).epoch' turned_l2/metrics.jsonl) of 5 (by 16.l2)"
expect 0 export turned --c -o exported --checkpoint last
says out "checkpoint: last, epoch 5 of 5"
expect 0 convert turned thin.safetensors --factorize tucker --rank 0.5 --checkpoint 2
says out "checkpoint: step 2, epoch 1 of 5"
expect 0 analyze turned
says out "checkpoint: last, epoch 5 of 5"
expect 0 analyze turned --checkpoint best
says out "checkpoint: best, epoch $best of 5 (by h1)"
# Of a file that was trained on in part the other samples are evaluated, with the errors of the run.
"$tgrad" generate darcy --n-train 20 --n-test 3 --resolution 8 --grid 16 -o own >/dev/null 2>&1
own=own/darcy_train_8.h5
expect 0 init $own -o own.yaml
run 0 train own.yaml --run split --quiet --opt.n_epochs 2
for part in test train all; do
    options=(--split $part)
    [ $part != test ] || options=()
    run 0 eval split -d $own --json --checkpoint last "${options[@]}"
    number l2 1 >$part.l2
    jq -c '.results[0] | [.split, .samples, .trained_on]' out
done >found
printf '["%s",%d,18]\n' test 2 train 18 all 20 | cmp -s - found || complain "$last: $(cat found)"
near "$(cat test.l2)" "$(jq -s '.[1].test["8"].l2' split/metrics.jsonl)"
near "$(cat all.l2)" "$(jq -n "(2 * $(cat test.l2) + 18 * $(cat train.l2)) / 20")"
run 0 eval split -d $own
says out "2 test samples of $own; the other 18 were trained on"
run 0 eval split -d $own --split all --resolution 8,4
says out "all 20 samples of $own; 18 of them were trained on"
run 0 eval split -d own/darcy_test_8.h5 --json
[ "$(jq -c '.results[0] | [.split, .samples, .trained_on]' out)" = '["all",3,0]' ] || complain "$last: $(cat out)"
run 1 eval split -d own/darcy_test_8.h5 --split test
says err "--split test: the model was not trained on own/darcy_test_8.h5"
run 0 train own.yaml --run gap --quiet --opt.n_epochs 1 --data.n_train 12 --data.test_skip 17 --data.n_tests 2 --data.batch_size 4
run 0 eval gap -d "$PWD/own/../$own"
says out "2 test samples of $PWD/own/../$own; 12 others were trained on"
near "$(awk '$2 == "8x8" || $2 == 8 { print $4 }' out)" "$(jq '.test["8"].l2' gap/metrics.jsonl)"
run 0 train own.yaml --run whole --quiet --opt.n_epochs 1 --data.n_train 0 --data.test_files own/darcy_test_8.h5 --data.test_skip 0 \
    --data.root "$PWD"
run 0 eval whole -d $own
says out "all 20 samples of $own; 20 of them were trained on"
run 1 eval whole -d $own --split test
says err "--split test: the model was trained on all of $own"
mkdir -p only/checkpoints && cp $recent only/checkpoints/recent.safetensors
run 0 eval only/ -d data/toy_test_8_x.npy --json
says out 'only//checkpoints/recent.safetensors'
near "$(number l2 1)" "$(metric 8 l2)"
run 0 eval $recent -d data/toy_test_8_x.npy --json --math fp32
exact=$(number l2 1)
run 0 eval $recent -d data/toy_test_8_x.npy --json --backend ref
near "$(number l2 1)" "$exact"

# NaN in a test set: said once, with its sample; the other errors are those they were.
for side in x y; do
    expect 0 convert data/toy_test_8_$side.npy data/hole_$side.npy --dtype f32
done
hole=$(($(stat -c %s data/hole_y.npy) - 4)) # the last number of sample 4
printf '\000\000\300\377' | dd of=data/hole_y.npy bs=1 seek=$hole conv=notrunc status=none
exits 0 eval $recent -d data/hole_x.npy --json --threads 1
says err 'test on 8: y of sample 4 (the first is 0) has a NaN or Inf'
[ "$(jq -c '.results[0] | [.l2, .per_sample.l2[4]]' out)" = '[null,null]' ] || complain "$last: $(cat out)"
exits 0 eval $recent -d data/hole_x.npy --threads 1
grep -q -- '-nan' out && complain "$last: a NaN with a sign"
grep -qw nan out || complain "$last: the error of a NaN is not in the table"
expect 0 convert data/hole_y.npy data/swap_x.npy
expect 0 convert data/hole_x.npy data/swap_y.npy
exits 0 train config.yaml --run holes --threads 1 --data.test_files swap_x.npy --data.test_resolutions 8
[ "$(grep -c 'the prediction of sample 4' err)" -eq 1 ] || complain "$last: not said once: $(cat err)"

run 2 eval
run 2 eval run
says err '--data FILE is needed'
run 2 eval run -d data/toy_test_8_x.npy --resolution eight
says err "not 'eight'"
run 2 eval run -d data/toy_test_8_x.npy --resolution 0
run 2 eval run -d data/toy_test_8_x.npy --batch 0
run 1 eval run -d data/toy_test_8_x.npy --resolution 7
run 1 eval run -d absent.h5
run 1 eval data -d data/toy_test_8_x.npy
says err 'data is a folder without checkpoints/best.safetensors'
run 1 eval absent -d data/toy_test_8_x.npy
run 1 eval data/toy_test_8_x.npy -d data/toy_test_8_x.npy
head -c 2000 $recent >cut.safetensors
run 1 eval cut.safetensors -d data/toy_test_8_x.npy
bytes '(5, 2, 8, 8)' 640 7 data/two_x.npy
bytes '(5, 2, 8, 8)' 640 8 data/two_y.npy
run 1 eval run -d data/two_x.npy
says err 2

# ---- predict ----

# same <a.npy> <b.npy>: the same numbers, whatever the shape (headers have 128 bytes).
same() {
    [ -s "$1" ] && cmp -s <(tail -c +129 "$1") <(tail -c +129 "$2") ||
        complain "$last: $1 and $2 differ"
}

# What the trainer predicted at its end.
run 0 predict $recent -i run/samples.safetensors --dataset x_16 -o y.npy
says out 'wrote y.npy: 4 samples, f32 4x1x16x16'
convert run/samples.safetensors pred.npy --dataset pred_16
same y.npy pred.npy
run 0 predict run --input data/toy_test_8_x.npy --output flat.npy --json
says out '"output": "flat.npy"' '"samples": 5' '"dtype": "f32"'
tr -d ' \n' <out | grep -q '"shape":\[5,8,8\]' || complain "$last: $(cat out)"

# Every form and format of the same input.
for ending in safetensors h5; do
    convert data/toy_test_8_x.npy "in.$ending"
    run 0 predict run -i "in.$ending" -o "out.$ending"
    run 0 inspect "out.$ending" --json
    says out '"name": "y"'
    convert "out.$ending" back.npy
    same back.npy flat.npy
done
convert data/toy_test_8_x.npy wide.npy --dtype f64
run 0 predict run -i wide.npy -o out.npy
same out.npy flat.npy
sed "s/(5, 8, 8), }   /(5, 1, 8, 8), }/" data/toy_test_8_x.npy >channel.npy
run 0 predict run -i channel.npy -o out.npy
says out '5x1x8x8'
same out.npy flat.npy
{ head -c 128 data/toy_test_8_x.npy | sed "s/(5, 8, 8), }/(8, 8), }   /" && tail -c +129 data/toy_test_8_x.npy | head -c 256; } >one.npy
run 0 predict run -i one.npy -o out.npy
says out '1 sample, f32 8x8'
[ -s out.npy ] && cmp -s <(tail -c +129 out.npy) <(tail -c +129 flat.npy | head -c 256) ||
    complain "$last: one sample alone differs"

# Several steps: each is the prediction of the one before.
run 0 predict run -i flat.npy -o second.npy
run 0 predict run -i second.npy -o third.npy
run 0 predict run -i data/toy_test_8_x.npy -o rollout.npy --steps 3
says out 'wrote rollout.npy: 5 samples, f32 5x3x8x8'
for sample in 0 1 2 3 4; do
    for file in flat second third; do
        tail -c +129 $file.npy | tail -c +$((sample * 256 + 1)) | head -c 256
    done
done >chained
cmp -s <(tail -c +129 rollout.npy) chained || complain "$last: not the predictions in a row"
run 0 predict run -i one.npy -o out.npy --steps 3
says out '1 sample, f32 3x8x8'
run 0 predict run -i channel.npy -o out.npy --steps 2
says out '5x2x1x8x8'
run 2 predict run -i one.npy -o no.npy --steps 0

# refused <text ..>: the last call failed, with these words, and left nothing.
refused() {
    says err "$@"
    [ ! -e no.npy ] || complain "$last: left a file"
    [ "$(wc -l <err)" -eq 1 ] || complain "$last: not one sentence"
}
run 2 predict run
run 2 predict run -i one.npy
says err '--input FILE and --output FILE are needed'
run 1 predict run -i data/two_x.npy -o no.npy
refused 'data/two_x.npy: the model takes (samples, 1 channel, grid of 2 dimensions)' 'this is 5x2x8x8'
bytes '(4,)' 4 9 few.npy
run 1 predict run -i few.npy -o no.npy
refused 'expected (samples, grid..) or (samples, channels, grid..)' 'found 4'
bytes '(0, 8, 8)' 0 9 empty.npy
run 1 predict run -i empty.npy -o no.npy
refused 'empty.npy: ' 'has no samples'
run 1 predict run -i run/samples.safetensors -o no.npy
refused "no tensor 'x'" x_16
run 1 predict run -i in.safetensors --dataset y -o no.npy
refused "no tensor 'y'"
run 1 predict run -i one.npy -o no.txt
run 1 predict run -i absent.npy -o no.npy
refused absent.npy
run 1 predict data -i one.npy -o no.npy
refused 'without checkpoints'
run 1 predict run -i one.npy -o absent/no.npy
says err 'absent/no.npy: there is no folder absent/'

# Weights and values that are no numbers are counted.
says_warning() { # says_warning <text ..>: the last call succeeded with these warnings alone
    [ $code -eq 0 ] || complain "$last: exit code $code"
    [ "$(grep -c '^tgrad: warning: ' err)" -eq $# ] && [ "$(wc -l <err)" -eq $# ] || complain "$last: not $# warnings"
    says err "$@"
}
predict_loudly() {
    last="predict $*"
    "$tgrad" predict "$@" --threads 1 >out 2>err </dev/null
    code=$?
}
{ head -c 128 one.npy && printf '\x00\x00\xc0\x7f' && tail -c +133 one.npy; } >nan.npy
predict_loudly run -i nan.npy -o out.npy --json
says_warning 'out.npy: 64 of 64 values are NaN or infinite; of the input 1 of 64 are'
says out '"nonfinite": 64'
run 0 predict run -i one.npy -o out.npy --json
says out '"nonfinite": 0'
# Weights of 1e30: the output is infinite, the weights are not.
exits 0 train config.yaml --run broken --threads 1 --quiet --opt.learning_rate 1e6 --opt.weight_decay 1e6 --opt.n_epochs 1 \
    --data.batch_size 10
predict_loudly broken/checkpoints/recent.safetensors -i one.npy -o out.npy
says_warning 'out.npy: 64 of 64 values are NaN or infinite; of the input 0 of 64 are'

# ---- complex fields in one dimension ----

bytes '(6, 9)' 54 11 c_x.npy && bytes '(6, 9)' 54 12 c_y.npy
for side in x y; do
    convert c_$side.npy "data/wave_train_9_$side.npy" --dtype c64
    convert c_$side.npy "data/wave_test_9_$side.npy" --dtype c64
done
cat >wave.yaml <<'Y'
fno: {n_modes: [4], hidden_channels: 4, n_layers: 2, complex_data: true}
opt: {name: adam, n_epochs: 1}
data: {root: data, set: wave, train_resolution: 9, test_resolutions: [9], batch_size: 3}
Y
run 0 train wave.yaml --run wave --quiet
run 0 eval wave -d data/wave_test_9_x.npy --json
near "$(number l2 1)" "$(tail -1 wave/metrics.jsonl | sed -E 's/.*"l2":([^,]*),.*/\1/')"
run 0 predict wave -i data/wave_test_9_x.npy -o u.npy
says out '6 samples, c64 6x9'
run 0 predict wave -i c_x.npy -o v.npy # real numbers become complex ones
same u.npy v.npy
run 1 predict run -i u.npy -o no.npy
run 0 report run wave -o report.html
grep -q 'modulus' report.html || complain "$last: no complex samples"

echo "$failures failures"
[ "$failures" -eq 0 ]
