#!/usr/bin/env bash
# Samples spread over ranks (distributed.split): the losses of one rank, whatever the method and the groups;
# checkpoints for any number of ranks; a run too large for one; deaths; what is refused.
#
#   tests/dist/test_mpi_split.sh build/bin/tgrad <source tree> <build tree>
source_tree=$(realpath "$2")
fake=$(realpath "$3")/bin/tgrad_fake
# shellcheck source=../support/checks.sh
source "$source_tree/tests/support/checks.sh"
# shellcheck source=../support/arrays.sh
source "$source_tree/tests/support/arrays.sh"
# shellcheck source=../support/mpi.sh
source "$source_tree/tests/support/mpi.sh"

seed=0
"$tgrad" generate darcy --n-train 22 --n-test 6 -r 17 --grid 32 -o data --seed 1 >/dev/null 2>&1 ||
    { complain "no data"; exit 1; }
cat >config.yaml <<Y
fno: {n_modes: [6, 7], hidden_channels: 8, n_layers: 2, dtype: f64}
opt: {name: adam, n_epochs: 3, learning_rate: 0.005, min_entries: 100}
data: {root: data, set: darcy, train_resolution: 17, test_resolutions: [17], batch_size: 8, test_batch_sizes: [2]}
Y

# train <ranks> <split> <run> [options ..]
train() {
    local ranks=$1 split=$2 run=$3
    shift 3
    with_ranks "$ranks" "$tgrad" train config.yaml --run "$run" --threads 1 --distributed.split "$split" "$@" \
        >"$run.out" 2>&1 || complain "$ranks ranks, split $split, $*: $(tail -5 "$run.out")"
}

# same_curves <tolerance> <run> <run>: losses and errors of all epochs agree to that, relative.
same_curves() {
    jq -s -e --argjson most "$1" 'def numbers: [.train.loss, (.test[] | .l2, .h1)];
        length > 1 and length == 2 * (length / 2 | floor) and
        (.[0:length / 2] | map(numbers)) as $a | (.[length / 2:] | map(numbers)) as $b |
        [$a, $b] | map(flatten) | transpose | all((.[0] - .[1] | fabs) <= $most * .[0])' \
        "$2/metrics.jsonl" "$3/metrics.jsonl" >/dev/null ||
        complain "$2 and $3 differ: $(cut -c1-150 "$2"/metrics.jsonl "$3"/metrics.jsonl)"
}

# Groups of all ranks and several groups, uneven slabs and blocks; the last batch of 6 is 2, 2, 1 and 1 samples.
train 1 1 one
grep -q ' over ' one.out && complain "one rank reports messages: $(grep ' over ' one.out)"
for how in '3 3' '4 4' '4 2' '2 auto'; do
    read -r ranks split <<<"$how"
    train "$ranks" "$split" "adam$ranks$split"
    same_curves 1e-9 one "adam$ranks$split"
done
for options in '3 3 --opt.accumulation_steps 2 --opt.max_grad_norm 0.5' \
    '4 2 --fno.norm instance_norm --fno.domain_padding 0.2' \
    '3 3 --fno.dtype f32' '3 3 --opt.name tensorgrad' '4 2 --opt.name galore --distributed.overlap true' \
    '4 2 --opt.name tensorgrad --opt.update_proj_gap 4 --distributed.shard_state true'; do
    read -ra words <<<"$options"
    most=1e-9
    [[ $options != *gap* && $options != *f32* ]] || most=1e-6
    train 1 1 alone --force "${words[@]:2}"
    train "${words[@]:0:2}" shared --force "${words[@]:2}"
    same_curves $most alone shared
done

# In one, two and three dimensions, on odd grids with modes that no number of ranks divides: every method with the
# factors of its first step, on 2, 3 and 4 ranks in turn; and in single precision. Those of lowrank, which are those of
# noise in part, amplify rounding.
"$tgrad" generate burgers --n-train 6 --n-test 2 -r 33 -o data --seed 1 >/dev/null 2>&1 || complain "no data in 1-D"
for side in x y; do
    bytes '(4, 1, 7, 9, 5)' 1260 $((seed += 1)) data/box_train_7x9x5_$side.npy
done
grids=('' '{set: burgers, train_resolution: 33, test_resolutions: [33]' '{set: darcy, train_resolution: 17,
    n_train: 6, test_resolutions: [17]' '{set: box, train_resolution: 7x9x5, test_resolutions: []')
modes=('' '[13]' '[7, 6]' '[5, 5, 3]')
cp config.yaml first.yaml
turn=0
for dims in 1 2 3; do
    cat >config.yaml <<Y
fno: {n_modes: ${modes[dims]}, hidden_channels: 6, n_layers: 2, dtype: f64}
opt: {n_epochs: 2, learning_rate: 0.005, min_entries: 50, update_proj_gap: 100}
data: ${grids[dims]}, root: data, batch_size: 2, test_batch_sizes: [2]}
Y
    for method in adam lowrank galore structured unstructured tensorgrad; do
        ranks=$((2 + (turn += 1) % 3))
        train 1 1 alone --force --opt.name $method
        train $ranks $ranks shared --force --opt.name $method
        most=1e-10
        [ $method != lowrank ] || most=1e-6
        same_curves $most alone shared
    done
    train 1 1 alone --force --fno.dtype f32
    for ranks in 2 3 4; do
        train $ranks $ranks shared --force --fno.dtype f32
        same_curves 1e-6 alone shared
    done
done
mv first.yaml config.yaml

# A checkpoint has no trace of the ranks: it goes on, and is evaluated, with any others.
for method in adam tensorgrad; do
    train 1 1 whole --force --opt.name $method
    for how in '1 1' '2 2' '3 3'; do
        read -r ranks split <<<"$how"
        train 4 4 part --force --opt.name $method --opt.n_epochs 2
        train "$ranks" "$split" part --opt.name $method --resume auto
        same_curves 1e-9 whole part
    done
done
for run in one adam44; do
    "$tgrad" eval $run --data data/darcy_test_17.h5 --threads 1 --json 2>eval.err | jq -c '.results[0].l2 * 1e6 | round' >$run.l2
done
cmp -s one.l2 adam44.l2 || complain "eval: $(cat one.l2 adam44.l2 eval.err)"
train 4 4 again --opt.name tensorgrad
train 4 4 again2 --opt.name tensorgrad
cmp -s "$(newest again)" "$(newest again2)" || complain "the same number of ranks, other bits"

# In three dimensions, on a device with too little memory for one rank: its plan refuses the run, four of them take
# it, with the losses that one rank has where there is enough.
if [ -x "$fake" ]; then
    for side in x y; do
        bytes '(4, 1, 17, 16, 15)' 16320 $((seed += 1)) box_train_17x16x15_$side.npy
    done
    cat >box.yaml <<Y
fno: {n_modes: [8, 8, 8], hidden_channels: 12, n_layers: 2}
opt: {name: adam, n_epochs: 2, learning_rate: 0.001}
data: {root: ., set: box, train_resolution: 17x16x15, test_resolutions: [], batch_size: 2}
Y
    needed() { "$fake" plan box.yaml --backend cuda --threads 1 --json "$@" 2>err | jq .memory.peak; }
    FAKE_DEVICE_LEFT=$(($(needed --ranks 4 --split 4) * 11 / 10))
    [ "$FAKE_DEVICE_LEFT" -lt "$(needed)" ] || complain "plan: $FAKE_DEVICE_LEFT bytes are enough for one rank"
    "$fake" train box.yaml --run box1 --threads 1 --backend cuda >box1.out 2>&1 || complain "box: $(tail -3 box1.out)"
    export FAKE_DEVICE_LEFT TGRAD_DEVICE=0
    "$fake" train box.yaml --run alone_box --threads 1 --backend cuda >box.out 2>&1 && complain "too little memory, and exit code 0"
    grep -q 'this run needs .* of the device.s memory' box.out || complain "too little memory: $(tail -3 box.out)"
    with_ranks 4 "$fake" train box.yaml --run box4 --threads 1 --backend cuda --distributed.split auto >box4.out 2>&1 ||
        complain "a sample over four devices: $(tail -3 box4.out)"
    unset FAKE_DEVICE_LEFT TGRAD_DEVICE
    same_curves 1e-5 box1 box4
    grep -q 'auto: 4 ranks share each sample' box4.out || complain "auto: $(head -3 box4.out)"
fi

# Deaths: one rank is killed, and the resumed run has the bits of one that was left alone.
long=(--opt.n_epochs 25 --opt.eval_interval 5)
train 2 2 left "${long[@]}"
for victim in 0 1; do
    rm -rf torn
    with_ranks 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"' rank "$tgrad" train config.yaml --run torn \
        --threads 1 --distributed.split 2 "${long[@]}" >torn.out 2>&1 &
    job=$!
    waits_for $job has_lines torn/metrics.jsonl $((2 + victim))
    kill -KILL "$(cat pid.$victim)"
    wait $job && complain "killed, and exit code 0"
    grep -qi 'signal 9\|Killed\|died' torn.out || complain "killed without a sentence: $(tail -5 torn.out)"
    train 2 2 torn --resume auto "${long[@]}"
    cmp -s "$(newest left)" "$(newest torn)" || complain "other bits after resuming"
done
# One that is late ends both, with a sentence.
with_ranks 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"' rank "$tgrad" train config.yaml --run late \
    --threads 1 --distributed.split 2 --opt.n_epochs 100000 --distributed.timeout 3 >late.out 2>&1 &
job=$!
waits_for $job test -s late/metrics.jsonl
kill -STOP "$(cat pid.1)"
wait $job && complain "a rank that does not come: exit code 0"
grep -q 'rank [01] of 2: .* was not finished within 3 s (distributed.timeout)' late.out ||
    complain "a late rank is not told: $(tail -5 late.out)"

# refused <ranks> <sentence> [options ..]: said once, exit code 1, and no folder is made.
refused() {
    local ranks=$1 sentence=$2
    shift 2
    rm -rf refused
    with_ranks "$ranks" "$tgrad" train config.yaml --run refused --threads 1 --fno.dtype f32 "$@" >refused.out 2>&1
    [ $? -eq 1 ] || complain "'$sentence': not exit code 1: $(cat refused.out)"
    [ "$(grep -cF "tgrad: $sentence" refused.out)" -eq 1 ] || complain "not once '$sentence': $(cat refused.out)"
    [ ! -e refused ] || complain "'$sentence': the folder was made"
}
split='distributed.split'
refused 4 "$split: 4 ranks cannot be divided into groups of 3" --$split 3
refused 1 "$split: 1 rank cannot be divided into groups of 2" --$split 2
refused 2 "$split: 'some' is not auto or a number of ranks, 1 or more" --$split some
refused 4 'data.batch_size: 1 samples cannot be shared by 2 groups of ranks' --$split 2 --data.batch_size 1
refused 4 "$split: 4 takes as many modes in the first dimension, which has 3 (fno.n_modes)" --$split 4 \
    --fno.n_modes '[3, 6]'
refused 2 "$split: 2 takes fno.micro_batch: 0" --$split 2 --fno.micro_batch 2
refused 2 "$split: 2 takes fno.factorization: dense" --$split 2 --fno.factorization tucker
refused 2 "$split: 2 takes full precision of activations, spectra and weights" --$split 2 --fno.precision mixed
refused 2 "$split: 2 takes fno.incremental_n_modes: null" --$split 2 --fno.incremental_n_modes '[4, 5]'
refused 2 "$split: 2 takes fno.architecture: fno" --$split 2 --fno.architecture uno --fno.uno_out_channels '[8, 8]' \
    --fno.uno_n_modes '[[6, 7], [6, 7]]' --fno.uno_scalings '[[1, 1], [1, 1]]' --fno.channel_mlp_skip linear
refused 4 "$split: '2x2': only the first dimension is cut: write 4" --$split 2x2
refused 2 "$split: 2 goes without opt.track_stable_rank" --$split 2 --opt.track_stable_rank true
refused 2 "$split: 2 goes without opt.physics" --$split 2 --opt.physics darcy --data.encode_output false
refused 2 "$split: 2 goes without opt.training_loss: hs<s>" --$split 2 --opt.training_loss 'l2 + hs2'
refused 4 "$split: 4 takes a grid of as many rows, data/darcy_test_17.h5: x has 3" --$split 4 \
    --data.test_files '[darcy_test_17.h5]' --data.test_resolutions '[3]'
mkdir -p rank.0 rank.1
cp -r data rank.0/data
"$tgrad" generate darcy --n-train 22 --n-test 5 -r 17 --grid 32 -o rank.1/data --seed 1 >/dev/null 2>&1
with_ranks 2 bash -c 'cd rank.$OMPI_COMM_WORLD_RANK; exec "$@"' rank "$tgrad" train ../config.yaml --run "$PWD/other" \
    --threads 1 --$split 2 >other.out 2>&1
[ $? -eq 1 ] && [ "$(grep -c '^tgrad: rank 1: the sizes of the data: not as on rank 0' other.out)" -eq 1 ] &&
    [ ! -e other ] || complain "ranks with other files: $(cat other.out)"

[ $failures -eq 0 ]
