#!/usr/bin/env bash
# Training in several processes: the result of one, the same bits again, resumed on any number of
# ranks, after any death; what is refused, and how often that is said.
#
#   tests/dist/test_mpi_train.sh build/bin/tgrad <source tree> <build tree>
#
# TG_LONG=1: 50 deaths at random moments instead of 3.
source_tree=$(realpath "$2")
fake=$(realpath "$3")/bin/tgrad_fake
# shellcheck source=../support/checks.sh
source "$source_tree/tests/support/checks.sh"
# shellcheck source=../support/mpi.sh
source "$source_tree/tests/support/mpi.sh"

"$tgrad" generate burgers --n-train 22 --n-test 6 -r 32 --grid 64 -o data --seed 1 >/dev/null 2>&1 ||
    { complain "no data"; exit 1; }
cat >config.yaml <<Y
fno: {n_modes: [16], hidden_channels: 8, n_layers: 2}
opt: {name: tensorgrad, n_epochs: 4, learning_rate: 0.005, update_proj_gap: 5, min_entries: 100}
data: {root: data, set: burgers, train_resolution: 32, test_resolutions: [32], batch_size: 8,
       test_batch_sizes: [2]}
Y

# train <ranks> <run> [options ..]
train() {
    local ranks=$1 run=$2
    shift 2
    if [ "$ranks" -eq 1 ]; then
        "$tgrad" train config.yaml --run "$run" --threads 1 "$@" >"$run.out" 2>&1
    else
        with_ranks "$ranks" "$tgrad" train config.yaml --run "$run" --threads 1 "$@" >"$run.out" 2>&1
    fi
}
# Losses and errors of two runs agree to a relative 1e-6.
same_curves() {
    jq -s -e 'def numbers: [.train.loss, .test["32"].l2, .test["32"].h1];
        length == 2 * (length / 2 | floor) and
        (.[0:length / 2] | map(numbers)) as $a | (.[length / 2:] | map(numbers)) as $b |
        [$a, $b] | map(flatten) | transpose | all((.[0] - .[1] | fabs) <= 1e-6 * .[0])' \
        "$1/metrics.jsonl" "$2/metrics.jsonl" >/dev/null || complain "$1 and $2 differ: $(cut -c1-150 "$1"/metrics.jsonl "$2"/metrics.jsonl)"
}

# 22 samples in batches of 8: the last batch of 6 is 2, 2, 1 and 1 samples, with accumulation too.
shards=(--distributed.shard_state true)
for ranks in 1 2 4; do
    on_four=()
    [ $ranks -lt 4 ] || on_four=("${shards[@]}")
    train $ranks "run$ranks" "${on_four[@]}" || complain "$ranks ranks: $(tail -5 "run$ranks.out")"
    train $ranks "adam$ranks" --opt.name adam --opt.accumulation_steps 2 --opt.n_epochs 2 ||
        complain "adam, $ranks ranks: $(tail -5 "adam$ranks.out")"
done
for ranks in 2 4; do
    same_curves run1 run$ranks
    same_curves adam1 adam$ranks
    grep -q "^$ranks ranks over .* per step" run$ranks.out || complain "what was sent: $(tail -3 run$ranks.out)"
    [ "$(grep -c '^finished' run$ranks.out)" -eq 1 ] || complain "not one rank prints: $(cat run$ranks.out)"
done
# One rank evaluates, and the other says that it does not; each predicts what its own command line asks for.
data=data/burgers_test_32.h5
"$tgrad" eval run2 --data $data --threads 1 --json >eval.1
with_ranks 2 "$tgrad" eval run2 --data $data --threads 1 --json >eval.2 2>eval.err
cmp -s eval.1 eval.2 || complain "eval, 2 ranks: $(cat eval.2)"
[ "$(grep -c 'rank 0 makes it' eval.err)" -eq 1 ] || complain "eval, 2 ranks: $(cat eval.err)"
# shellcheck disable=SC2016
with_ranks 2 bash -c 'rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
    "$0" predict run2 -i "$1" -o predicted.$rank.npy --threads 1 --json >predict.$rank.out' "$tgrad" $data 2>predict.err
[ "$(jq -s -c 'map(.output)' predict.0.out predict.1.out)" = '["predicted.0.npy","predicted.1.npy"]' ] ||
    complain "predict, 2 ranks: $(cat predict.0.out predict.1.out)"
cmp -s predicted.0.npy predicted.1.npy || complain "predict, 2 ranks: not one file each"
[ "$(grep -c '2 ranks do not share a prediction' predict.err)" -eq 1 ] || complain "predict: $(cat predict.err)"
# In f64 they agree to its rounding: to 1e-10 with the factors of the first step, to 1e-6 with others.
for gap in 1000 4; do
    for ranks in 1 2 4; do
        with_ranks $ranks "$tgrad" train config.yaml --run wide$gap.$ranks --threads 1 --fno.dtype f64 --opt.n_epochs 3 \
            --opt.update_proj_gap $gap --json >wide.$ranks 2>wide.err || complain "f64, $ranks ranks: $(tail -3 wide.err)"
    done
    jq -s -e --argjson most "$([ $gap -eq 4 ] && echo 1e-6 || echo 1e-10)" \
        'map([.train_loss, .test["32"].l2, .test["32"].h1]) | transpose | all(.[0] as $one | .[0] > 0 and
            all((. - $one | fabs) <= $most * $one))' wide.1 wide.2 wide.4 >/dev/null ||
        complain "f64, gap $gap: $(jq -c '[.train_loss, .test["32"].l2]' wide.?)"
done
train 2 again
cmp -s "$(newest run2)" "$(newest again)" || complain "the same number of ranks, other bits"

# Sums that travel while others are computed, also where a rank has no sample: the same bits.
overlap=(--distributed.overlap true)
train 2 overlap "${overlap[@]}" || complain "overlap: $(tail -3 overlap.out)"
same_arrays run2 overlap

# Fewer samples than ranks: one of them never has any.
"$tgrad" generate burgers --n-train 3 --n-test 2 -r 32 -o few --seed 1 >/dev/null 2>&1
train 1 few1 --data.root few
train 4 few4 --data.root few || complain "a rank without samples: $(tail -5 few4.out)"
train 4 few4_overlap --data.root few "${overlap[@]}" "${shards[@]}" || complain "overlap: $(tail -5 few4_overlap.out)"
same_curves few1 few4_overlap
same_curves few1 few4

# Moments that live on one rank each, of projected and of large dense parameters: the same bits on
# two ranks, whose sums have one order; less memory, as planned; and what is sent back.
train 2 sharded "${shards[@]}" || complain "sharded: $(tail -3 sharded.out)"
same_arrays run2 sharded
large=(--opt.name adam --fno.hidden_channels 128 --opt.n_epochs 1 --data.test_resolutions '[]' --json)
train 2 dense "${large[@]}"
train 2 dense_sharded "${large[@]}" "${shards[@]}" || complain "dense, sharded: $(tail -3 dense_sharded.out)"
same_arrays dense dense_sharded
"$tgrad" plan config.yaml "${large[@]}" "${shards[@]}" --ranks 2 --threads 1 >plan.json 2>plan.err ||
    complain "plan, sharded: $(cat plan.err)"
jq -n -e --slurpfile run dense_sharded.out --slurpfile plan plan.json '$plan[0].ranks.sent_updates as $updates |
    ($run[0].processes.copied - 3 * $updates - 0.75 * $updates) as $more | # once saved: m, and v half as large
    $updates > 2e6 and $more >= 0 and $more <= 100' >/dev/null ||
    complain "updates: planned $(jq -c .ranks plan.json), counted $(jq -c .processes dense_sharded.out)"

# A checkpoint of 4 ranks goes on with 1 and with 3.
for ranks in 1 3; do
    cp -r run4 more$ranks
    train $ranks more$ranks "${shards[@]}" --resume auto --opt.n_epochs 6 || complain "resumed on $ranks: $(tail -3 more$ranks.out)"
    grep -q "written by 4 ranks, this run has $ranks" more$ranks.out || complain "not told: $(head -3 more$ranks.out)"
    [ "$(wc -l <more$ranks/metrics.jsonl)" -eq 6 ] || complain "resumed on $ranks: $(wc -l more$ranks/metrics.jsonl)"
done
same_curves more1 more3

# The plan of a rank is what its ledger counts, and what it sends.
planned_as_counted() {
    local run=$1
    shift
    "$tgrad" plan config.yaml --ranks 2 --threads 1 --json "$@" >plan.json 2>plan.err || complain "plan: $(cat plan.err)"
    tail -1 "$run/metrics.jsonl" | jq -e --slurpfile plan plan.json '.memory as $counted | $plan[0].moments as $phases |
        ["weights", "gradients", "optimizer", "factors", "indices", "activations", "workspace", "data",
         "communication"] |
        all(. as $name | ($phases | map(.[$name]) | max) == $counted[$name])' >/dev/null ||
        complain "planned $(jq -c '[.moments[]]' plan.json), counted $(tail -1 "$run/metrics.jsonl")"
}
planned_as_counted sharded "${shards[@]}"
sharded=$(jq '[.moments[].optimizer] | max' plan.json)
planned_as_counted run2
[ "$sharded" -lt "$(jq '[.moments[].optimizer] | max' plan.json)" ] || complain "sharded moments take as much: $sharded"
for epochs in 1 2; do # 3 steps each, and no refresh in the second; beside them a few votes
    with_ranks 2 "$tgrad" train config.yaml --run sent$epochs --threads 1 --opt.n_epochs $epochs \
        --opt.update_proj_gap 100 --data.test_resolutions '[]' --json >sent$epochs.json 2>sent.err ||
        complain "train --json: $(cat sent.err)"
done
jq -n -e --slurpfile one sent1.json --slurpfile two sent2.json --slurpfile plan plan.json '
    ($two[0].processes.reduced - $one[0].processes.reduced - 3 * $plan[0].ranks.sent) as $more |
    $more >= 0 and $more <= 100 and $plan[0].ranks.sent < $plan[0].ranks.sent_dense' >/dev/null ||
    complain "sent $(jq -c .processes sent1.json sent2.json), planned $(jq -c .ranks plan.json)"

# On a device that is none, values go through the host: the same bits.
if [ -x "$fake" ]; then
    with_ranks 2 "$fake" train config.yaml --run device --threads 1 --backend cuda >device.out 2>&1 ||
        complain "device: $(tail -5 device.out)"
    cmp -s "$(newest run2)" "$(newest device)" || complain "device: other bits"
    with_ranks 2 "$fake" train config.yaml --run device_sharded --threads 1 --backend cuda "${shards[@]}" >device.out 2>&1 ||
        complain "device, sharded: $(tail -5 device.out)"
    cmp -s "$(newest sharded)" "$(newest device_sharded)" || complain "device, sharded: other bits"
    with_ranks 2 "$fake" info --backend cuda -t1 >info.out 2>&1
    [ "$(grep -cE '^  [01] .*backend cuda, [01]: ' info.out)" -eq 2 ] || complain "info: $(cat info.out)"
    with_ranks 5 "$fake" info --backend cuda >info.out 2>&1 && complain "more ranks than devices, and exit code 0"
    grep -q 'start no more than it has' info.out || complain "more ranks than devices: $(cat info.out)"
    with_ranks 2 "$tgrad" info --json -t1 2>&1 | jq -e '.ranks.launcher == "mpirun" and (.ranks.rank | length == 2)' >/dev/null ||
        complain "info --json of two ranks"
fi

# A run that has diverged fails on all ranks, and one of them says so.
train 2 wild --opt.name adam --opt.learning_rate 1e6 --opt.weight_decay 1e6 --opt.n_epochs 2
[ $? -eq 1 ] || complain "a run that diverged: exit code 0"
[ "$(grep -c 'the run has diverged: .*; there is no good checkpoint' wild.out)" -eq 1 ] || complain "diverged: $(cat wild.out)"

# Deaths: a rank is killed or stopped at some moment; the resumed run gives the same bits.
long=(--opt.n_epochs 25 --opt.eval_interval 5)
train 2 whole "${long[@]}" || complain "the long run: $(tail -3 whole.out)"
all_epochs() { [ "$(wc -l <torn/metrics.jsonl)" -eq "$(wc -l <whole/metrics.jsonl)" ]; }
deaths=3
[ -z "${TG_LONG:-}" ] || deaths=50
for ((death = 0; death < deaths; death++)); do
    rm -rf torn
    signal=TERM # to one rank, or the end of one, or of all at once
    [ $((death % 3)) -eq 0 ] || signal=KILL
    with_ranks 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"' rank "$tgrad" train config.yaml \
        --run torn --threads 1 "${long[@]}" >torn.out 2>&1 &
    job=$!
    victims=(pid.$((death / 3 % 2)))
    [ $((death % 3)) -lt 2 ] || victims=(pid.0 pid.1)
    waits_for $job has_lines torn/metrics.jsonl $((1 + death % 7)) # it is past a few epochs, and then some
    sleep 0.0$((RANDOM % 10))
    kill -$signal $(cat "${victims[@]}") 2>/dev/null # each a word of its own
    wait $job
    code=$?
    if [ $signal = TERM ] && [ $code -eq 143 ] && all_epochs; then
        : # it came when all was done, and nothing was left to listen
    elif [ $signal = TERM ]; then
        [ $code -eq 143 ] || grep -q '^finished' torn.out || complain "SIGTERM, exit code $code: $(tail -5 torn.out)"
        grep -qE 'stopped by signal 15 after|^finished' torn.out || complain "SIGTERM: $(tail -5 torn.out)"
    elif ! grep -q '^finished' torn.out; then
        [ $code -ne 0 ] || complain "SIGKILL, exit code 0"
        grep -qi 'signal 9\|Killed\|died' torn.out || complain "SIGKILL without a sentence: $(tail -5 torn.out)"
    fi
    train 2 torn --resume auto "${long[@]}" || complain "resumed: $(tail -3 torn.out)"
    cmp -s "$(newest whole)" "$(newest torn)" || complain "death $death ($signal): other bits after resuming"
done

# A rank that is late ends all of them, with a sentence.
with_ranks 2 bash -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"' rank "$tgrad" train config.yaml \
    --run late --threads 1 --opt.n_epochs 100000 --distributed.timeout 3 >late.out 2>&1 &
job=$!
waits_for $job test -s late/metrics.jsonl
kill -STOP "$(cat pid.1)"
wait $job
[ $? -ne 0 ] || complain "a rank that does not come: exit code 0"
grep -q 'rank [01] of 2: .* was not finished within 3 s (distributed.timeout)' late.out ||
    complain "a late rank is not told: $(tail -5 late.out)"

# refused <sentence> <mpirun arguments ..>: said once, exit code 1, and no folder is made.
refused() {
    local sentence=$1
    shift
    rm -rf refused
    with_ranks "$@" >refused.out 2>&1
    [ $? -eq 1 ] || complain "'$sentence': not exit code 1: $(cat refused.out)"
    [ "$(grep -c "^tgrad: $sentence" refused.out)" -eq 1 ] || complain "not once '$sentence': $(cat refused.out)"
    [ ! -e refused ] || complain "'$sentence': the folder was made"
}
command=("$tgrad" train config.yaml --run refused --threads 1)
refused 'data.batch_size: 2 samples cannot be shared by 3 ranks' 3 "${command[@]}" --data.batch_size 2
refused 'rank 1: the settings: not as on rank 0' 1 "${command[@]}" --seed 1 : -n 1 "${command[@]}" --seed 2
refused 'rank 1: .*nowhere' 1 "${command[@]}" : -n 1 "${command[@]}" --data.root nowhere
refused 'command line: opt.nme: unknown key' 2 "${command[@]}" --opt.nme adam

[ $failures -eq 0 ]
