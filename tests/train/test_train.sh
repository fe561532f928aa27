#!/usr/bin/env bash
# Training from the outside: metrics, exact resume after SIGKILL, SIGTERM and damaged checkpoints,
# refusals. Everything is small: a run of the test takes about a second.
# shellcheck source=../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"
set +o pipefail # the ends of many pipes read only what they look for

"$tgrad" generate darcy --n-train 40 --n-test 6 --resolution 12 --test-resolution 12,24 --grid 24 --seed 3 \
    -o data >log 2>&1 || { cat log; exit 1; }

cat >config.yaml <<'Y'
fno: {n_modes: [6, 6], hidden_channels: 8, n_layers: 2}
opt:
  name: tensorgrad
  n_epochs: 8
  learning_rate: 0.005
  weight_decay: 1.0e-4
  scheduler: CosineAnnealingLR
  scheduler_T_max: 8
  update_proj_gap: 7
  min_entries: 100
data: {root: data, set: darcy, train_resolution: 12, test_resolutions: [12, 24], batch_size: 8}
distributed: {seed: 5}
wandb: {log: false, project: none}
Y

train() { # train DIR [options]: one thread, so that every run has the same bits
    local dir=$1
    shift
    "$tgrad" train config.yaml --run "$dir" --threads 1 "$@"
}

# The numbers of a metrics file without times and memory.
numbers() {
    sed -E 's/"step_ms":[^,]*,"seconds":[^,]*,//; s/,"memory":.*//' "$1"
}

final=checkpoints/step-0000000040.safetensors

# ---- an uninterrupted run ----
begin=$EPOCHREALTIME
train whole >log 2>&1 || { cat log; complain "the plain run"; }
took=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f", b - a }') # a second and more on a GPU
grep -q "wandb.log, wandb.project" log || complain "foreign keys must be named once"
[ "$(wc -l <whole/metrics.jsonl)" -eq 8 ] || complain "metrics.jsonl has a line per epoch"
[ "$(wc -l <whole/metrics.csv)" -eq 9 ] || complain "metrics.csv has a header and a line per epoch"
for key in '"epoch":8,"step":40,"lr":' '"train":{"loss":' '"test":{"12":{"l2":' '"24":{"l2":' \
    '"step_ms":' '"memory":{"peak":' '"optimizer":' '"factors":' '"indices":' '"activations":' \
    '"workspace":' '"data":' '"weights":' '"gradients":' '"time":{"prepare":' '"steps":' \
    '"evaluation":' '"checkpoint":'; do
    tail -1 whole/metrics.jsonl | grep -qF "$key" || complain "metrics.jsonl lacks $key"
done
sed -E 's/.*"checkpoint":([^}]*)\}.*/\1/' whole/metrics.jsonl | awk 'NR == 1 ? $1 != 0 : $1 <= 0 { bad = 1 } END { exit bad }' ||
    complain "each line tells the time of the checkpoint before it"
grep -q '^time: steps .* evaluation .* checkpoints .* preparation ' log || complain "the summary must tell of time"
for file in config.yaml metrics.csv samples.safetensors $final checkpoints/best.safetensors \
    checkpoints/recent.safetensors; do
    [ -s whole/$file ] || complain "no $file in the run folder"
done
ls whole/events/* >/dev/null 2>&1 || complain "no TensorBoard events"
[ "$(ls whole/checkpoints/step-* | wc -l)" -eq 2 ] || complain "two checkpoints are kept"
train whole >log 2>&1 && complain "a folder that holds a run must be refused without --resume"
grep -q "already holds a run" log || complain "the refusal must say why"
"$tgrad" train whole/config.yaml --run again --threads 1 >log 2>&1 || complain "the resolved settings train"
cmp -s <(numbers again/metrics.jsonl) <(numbers whole/metrics.jsonl) ||
    complain "the resolved settings give the same numbers"

# At a random moment of a run, and later and later on a machine that has become slow.
until_kill() { # until_kill ROUND
    sleep "$(awk -v r=$RANDOM -v n="$1" -v took="$took" 'BEGIN { printf "%.3f", r / 32768 * took * (1 + n / 30) }')"
}

# ---- killed at random moments, at least 20 times ----
RANDOM=11
kills=0 rounds=0
while [ $rounds -lt 400 ]; do
    rounds=$((rounds + 1))
    "$tgrad" train config.yaml --run killed --threads 1 --resume auto >log 2>&1 &
    pid=$!
    until_kill $rounds
    if kill -9 $pid 2>/dev/null; then
        wait $pid 2>/dev/null
        [ $? -eq 137 ] && kills=$((kills + 1))
    else
        wait $pid
    fi
    # go on killing after the end until there were enough
    if [ -e killed/samples.safetensors ]; then
        [ $kills -ge 20 ] && break
        cmp -s whole/$final killed/$final || complain "weights differ after $kills kills"
        rm -rf killed
    fi
done
[ $kills -ge 20 ] || complain "only $kills kills in $rounds rounds"
train killed --resume auto >log 2>&1 || complain "after the kills: $(tail -1 log)" # on a machine too slow for the rounds
cmp -s whole/$final killed/$final || complain "a killed and resumed run ends with other weights"
cmp -s <(numbers whole/metrics.jsonl) <(numbers killed/metrics.jsonl) ||
    complain "a killed and resumed run has other metrics"
ls killed/checkpoints/.tmp* killed/checkpoints/*.tmp* >/dev/null 2>&1 && complain "temporary files are left"

# resumes <name> <epochs> <what> <options ..>: a run in one go and one resumed after every epoch end with the same bytes
# and numbers.
resumes() {
    local name=$1 epochs=$2 what=$3 last epoch
    last=checkpoints/step-$(printf %010d $((5 * epochs))).safetensors
    train "$name" "${@:4}" --opt.n_epochs "$epochs" >log 2>&1 || complain "$what: $(tail -1 log)"
    cp log "$name.log"
    for epoch in $(seq "$epochs"); do
        train "${name}_parts" "${@:4}" --opt.n_epochs "$epoch" --resume auto >log 2>&1 ||
            complain "$what, epoch $epoch: $(tail -1 log)"
    done
    cmp -s "$name/$last" "${name}_parts/$last" || complain "$what: a resumed run ends with other weights"
    cmp -s <(numbers "$name/metrics.jsonl") <(numbers "${name}_parts/metrics.jsonl") ||
        complain "$what: a resumed run has other numbers"
}

# ---- ranks by memory, refreshed on the way: resumed after every epoch ----
resumes ranked 4 "ranks by memory" --opt.memory_budget 0.25 --opt.sparse_ratio 0.02 --opt.update_proj_gap 5
cmp -s ranked/projections.jsonl ranked_parts/projections.jsonl || complain "ranks by memory: a resumed run logs others"
[ "$(wc -l <ranked/projections.jsonl)" -eq 4 ] || complain "projections.jsonl has a line per refresh"
grep -q '^{"step":16,.*"ranks":\[[0-9,]*\],"kept":[0-9]*,.*"error":[0-9.e-]*}' ranked/projections.jsonl ||
    complain "projections.jsonl lacks ranks or errors: $(tail -1 ranked/projections.jsonl)"
grep -q "opt.memory_budget: rank 0\.[0-9]*$" ranked.log || complain "the rank must be logged: $(head ranked.log)"

# ---- 16-bit moments, the low-rank branch first: resumed after every epoch ----
resumes half 4 "16-bit moments" --opt.state_precision half --opt.proj_type low_rank --opt.second_rank 0.25 \
    --opt.second_proj_type unstructured_sparse --opt.second_sparse_ratio 0.05

# ---- a network without channel MLPs: resumed after every epoch ----
resumes plain 2 "no channel MLPs" --fno.use_channel_mlp false --fno.activation_checkpoint minimal --fno.norm group_norm
train plain_parts --resume auto >log 2>&1 && complain "another architecture must be refused"
grep -q "fno.use_channel_mlp (false there, true here)" log || complain "the differing architecture must be named: $(cat log)"

# ---- small storage: resumed after every epoch ----
resumes mixed 2 "mixed precision" --fno.precision mixed --fno.micro_batch 3 --opt.state_precision half \
    --fno.activation_checkpoint block

# ---- factorized weights, the core's gradients compressed: resumed after every epoch ----
resumes tfno 2 "Tucker weights" --fno.factorization tucker --fno.rank 0.5 --opt.min_entries 50
"$tgrad" inspect tfno/checkpoints/step-0000000010.safetensors >log 2>&1
grep -q 'fno_blocks.convs.0.weight.core' log || complain "Tucker weights: the core must be in the checkpoint"
train tfno_parts --resume auto >log 2>&1 && complain "dense weights must not go on from factors"
grep -q "fno.factorization (tucker there, dense here)" log || complain "the factorization must be named: $(cat log)"

# ---- modes that grow: resumed after every epoch, also where they have just grown ----
resumes growing 4 "growing modes" --fno.n_modes 8,8 --fno.incremental_n_modes 4,4 --opt.incremental_grad true \
    --opt.incremental_grad_max_iter 2 --opt.incremental_buffer 1 --opt.min_entries 50
grep -q "epoch 3: 6x6 modes in use instead of 4x4, of 8x8" growing.log || complain "modes must grow: $(cat growing.log)"
grep -q "epoch 2: \|epoch 4: " growing.log && complain "modes must grow every second epoch: $(cat growing.log)"
resumes gap 4 "modes that grow by the loss" --fno.n_modes 6,7 --fno.incremental_n_modes 4,5 --opt.incremental_loss_gap true \
    --opt.incremental_loss_eps 1e9 --fno.factorization tucker --fno.rank 0.5
grep -q "epoch 3: 6x7 modes in use instead of 4x5, of 6x7" gap.log || complain "modes must grow by the loss: $(cat gap.log)"
[ "$(grep -c 'modes in use' gap.log)" -eq 1 ] || complain "there are no more modes: $(cat gap.log)"
train both --fno.incremental_n_modes 4,4 --opt.incremental_grad true --opt.incremental_loss_gap true >log 2>&1 &&
    complain "two criteria must be refused"
train odd --fno.n_modes 8,8 --fno.incremental_n_modes 4,5 >log 2>&1 && complain "an odd difference must be refused"
grep -q "fno.incremental_n_modes: 5 of the 8 modes of dimension 1" log || complain "odd difference: $(cat log)"
train none --opt.incremental_grad true >log 2>&1 && complain "growing without modes to begin with must be refused"
grep -q "fno.incremental_n_modes must set the initial modes" log || complain "no modes to begin with: $(cat log)"

# ---- f16 with a dynamic loss scale, which halves and doubles on the way: resumed after every epoch ----
resumes f16 4 f16 --fno.activation_precision half --fno.fno_block_precision half --opt.training_loss '100*h1' \
    --opt.loss_scale_interval 3
grep -q "gradients of [0-9]* of [0-9]* parameters overflowed.*: loss scale 65536 -> 32768" f16.log ||
    complain "f16: the overflow must be logged"
tail -1 f16/metrics.jsonl | grep -q '"loss_scale":[0-9]*,"overflows":[1-9]' ||
    complain "metrics.jsonl lacks the loss scale: $(tail -1 f16/metrics.jsonl)"
tail -1 whole/metrics.jsonl | grep -q '"loss_scale":1,"overflows":0' || complain "f32 has no loss scale"

# ---- SIGTERM: finish the step, save, exit 143 ----
stopped=("$tgrad" train config.yaml --run stopped --threads 1 --opt.n_epochs 20000)
"${stopped[@]}" >log 2>&1 &
pid=$!
waits_for $pid test -s stopped/metrics.jsonl
kill -TERM $pid
wait $pid
[ $? -eq 143 ] || complain "SIGTERM must end with 128 + 15"
grep -q "stopped by signal 15" log || complain "SIGTERM must be answered with a message"
# A shell lets its background jobs ignore SIGINT. The signal is sent once the resumed run has finished an epoch: before
# it trains, a signal ends it at once with the same code.
epochs=$(wc -l <stopped/metrics.jsonl)
env --default-signal=INT "${stopped[@]}" --resume auto --json >json 2>log &
pid=$!
waits_for $pid has_lines stopped/metrics.jsonl $((epochs + 1))
kill -INT $pid
wait $pid
[ $? -eq 130 ] || complain "SIGINT must end with 128 + 2: $(cat log)"
grep -q '"finished": *false' json || complain "--json must tell that the run is not finished: $(cat json log)"
# TERM again, at another moment.
"${stopped[@]}" --resume auto >log 2>&1 &
pid=$!
waits_for $pid grep -q "^epoch" log
kill -TERM $pid
wait $pid
[ $? -eq 143 ] || complain "SIGTERM must end with 128 + 15 after a resume"
grep -q "^resumed" log || complain "a resumed run must say so"

# ---- damaged checkpoints: the one before is used, and named ----
damaged() { # damaged NAME COMMAND..: a copy of the finished run with its newest checkpoint damaged
    local name=$1
    shift
    cp -r whole "$name"
    (cd "$name" && rm -f samples.safetensors && "$@")
    train "$name" --resume auto >log 2>&1 || complain "$name: resume"
    grep -q "trying the checkpoint before" log || complain "$name: the damage must be named"
    cmp -s whole/$final "$name"/$final || complain "$name: other weights"
}
damaged truncated truncate -s 5000 $final
flip() {
    local size
    size=$(stat -c %s $final)
    printf '\xff' | dd of=$final bs=1 seek=$((size * 2 / 3)) conv=notrunc 2>/dev/null
}
damaged flipped flip

# ---- refusals ----
refused() { # refused TEXT options..: fails with that sentence and leaves no checkpoint behind
    local text=$1
    shift
    rm -rf refused
    train refused "$@" >log 2>&1
    [ $? -eq 1 ] || complain "$*: must exit 1"
    grep -qF -- "$text" log || complain "$*: expected '$text', found '$(tail -1 log)'"
    ls refused/checkpoints/step-* >/dev/null 2>&1 && complain "$*: a checkpoint was written"
}
refused "opt.learning_rat: unknown key; did you mean opt.learning_rate?" --opt.learning_rat 1
refused "command line: opt.rank: expected a number or a list" --opt.rank many
refused "fno.n_layers: expected an integer" --fno.n_layers 0
refused "darcy_train_13" --data.train_resolution 13
refused "nod.key: unknown section" --nod.key 1
refused "times in a row" --opt.learning_rate 1e6 --opt.n_epochs 50 --opt.save_every 50 --opt.nonfinite_limit 2
# Below that limit a run that diverges comes to its end, and fails there, again when it is resumed.
diverge=(--opt.name adam --opt.learning_rate 1e6 --opt.weight_decay 1e6 --opt.n_epochs 1)
for resume in "" "--resume auto"; do
    # shellcheck disable=SC2086 # words
    train diverged "${diverge[@]}" $resume >log 2>&1
    [ $? -eq 1 ] || complain "a run that diverged must exit 1"
    grep -q "the run has diverged: most batches of its last epoch had no finite loss; .*; there is no good checkpoint" log ||
        complain "a run that diverged must say so: $(tail -3 log)"
    grep -q "^diverged: 1 epochs, 1 steps, 4 batches skipped; " log || complain "skipped batches are counted: $(tail -3 log)"
done
train diverged_json "${diverge[@]}" --json >json 2>/dev/null && complain "a run that diverged must fail with --json, too"
jq -e '.diverged and .finished and .skipped == 4' json >log || complain "--json must tell of divergence: $(cat json)"
# Its losses may be finite while the squares of its gradients are not: nothing is learned any more. (A GPU
# looks at squares only where it waits for a gradient.)
for resume in "" "--resume auto"; do
    # shellcheck disable=SC2086 # words
    train refusing --opt.learning_rate 1e3 --opt.n_epochs 2 --data.encode_output false --backend cpu \
        $resume >log 2>&1
    [ $? -eq 1 ] || complain "a run that skips its updates must exit 1"
    grep -q "the run has diverged: most updates of its last epoch were skipped" log || complain "skipped updates: $(tail -3 log)"
    grep -q "^diverged: 2 epochs, 10 steps, [0-9]* updates of parameters skipped; " log || complain "updates are no batches: $(tail -3 log)"
done
train calm --opt.n_epochs 1 --json >json 2>log || complain "one epoch: $(cat log)"
jq -e '(.diverged | not) and .skipped == 0' json >/dev/null || complain "--json must count no skipped update: $(cat json)"
grep -q "not finite" log && complain "a run with finite losses warns"
cp -r whole ruined # by its last two epochs, of which 4 and 5 batches are skipped
train ruined --resume auto --opt.n_epochs 10 --opt.learning_rate 1e6 --opt.weight_decay 1e6 --opt.scheduler constant >log 2>&1
[ $? -eq 1 ] || complain "a run that diverges at its end must exit 1"
grep -q "the last good checkpoint is ruined/$final, of epoch 8" log || complain "the last good checkpoint: $(tail -3 log)"
train ruined --resume ruined/$final --opt.n_epochs 9 >log 2>&1 || complain "it continues from there: $(tail -3 log)"
refused "data.n_tests: 3 entries for 2 test resolutions" --data.n_tests "[1,2,3]"
# precision, checkpointing and memory
refused "opt.loss_scale: '1000' is not auto, off or a power of two" --opt.loss_scale 1000
refused "opt.loss_scale: '0' is not auto, off or a power of two" --opt.loss_scale 0
refused "opt.loss_scale: '-2' is not auto, off or a power of two" --opt.loss_scale -2
refused "opt.loss_scale: '1e9' is not auto, off or a power of two" --opt.loss_scale 1e9
refused "opt.loss_scale_interval: expected an integer from 1" --opt.loss_scale_interval 0
refused "fno.dtype: f64 is kept as it is; for half or mixed precision take f32" --fno.dtype f64 \
    --fno.activation_precision half
refused "fno.dtype: f64 is kept as it is" --fno.dtype f64 --fno.fno_block_precision mixed
refused "opt.state_precision: lifting.fcs.0.weight is f64, whose moments are kept as they are; take full" \
    --fno.dtype f64 --opt.state_precision half
refused "8bit keeps a scale for every 256 numbers, and no parameter has the 4096 values" --opt.state_precision 8bit
[ -e refused ] && complain "a refused run leaves no folder"
huge=(--data.batch_size 1048576 --fno.hidden_channels 4096)
refused "this run needs " "${huge[@]}"
grep -q "this run needs .* TiB (weights .*activations .* TiB.*'s memory at its highest (.*), of which .* are left. Less is needed with a smaller data.batch_size, fno.activation_checkpoint minimal, " log ||
    complain "the numbers of a run that is too large: $(cat log)"
cp -r whole changed
train changed --resume auto --fno.hidden_channels 12 >log 2>&1
[ $? -eq 1 ] || complain "a changed model must be refused"
grep -q "fno.hidden_channels (8 there, 12 here)" log || complain "the differing key must be named"
train changed --resume auto --opt.name adam >log 2>&1
[ $? -eq 1 ] || complain "another optimizer's state must be refused"
grep -q "made with other settings: opt.tensorgrad (" log || complain "what the optimizer differs in must be named"
truncate -s 100 changed/checkpoints/step-*
train changed --resume auto >log 2>&1
[ $? -eq 1 ] || complain "with nothing but damaged checkpoints there is no silent start from scratch"
"$tgrad" train config.yaml >/dev/null 2>&1
[ $? -eq 2 ] || complain "--run is needed"
"$tgrad" train nowhere.yaml --run x >/dev/null 2>&1
[ $? -eq 1 ] || complain "a missing config"

# ---- every method, accumulation, clipping, JSON ----
for name in adam lowrank galore structured unstructured tensorgrad; do
    train m_$name --opt.name $name --opt.n_epochs 1 -q >log 2>&1 || complain "method $name: $(cat log)"
done
train micro --data.batch_size 4 --opt.accumulation_steps 2 --opt.max_grad_norm 1 --opt.n_epochs 2 \
    --json >json 2>log || complain "accumulation: $(cat log)"
grep -q '"finished": *true' json || complain "--json reports the end"
train clip --opt.max_grad_norm 0.5 --opt.n_epochs 1 -q >log 2>&1 || complain "clipping: $(cat log)"
train stages --opt.n_epochs 1 --stage2.opt.n_epochs 2 --stage2.data.batch_size 20 >log 2>&1 ||
    complain "two stages: $(cat log)"
[ "$(wc -l <stages/metrics.jsonl)" -eq 3 ] || complain "two stages have three epochs"
# They share one schedule, also when they are read back from the run's settings.
halved="0.004 0.004 0.002 0.002"
rates() { sed -nE 's/.*"lr":([0-9.e-]+),.*/\1/p' "$1/metrics.jsonl" | xargs; }
train one_schedule --opt.n_epochs 1 --opt.learning_rate 0.004 --opt.scheduler StepLR --opt.step_size 2 \
    --stage2.opt.n_epochs 3 --stage2.data.batch_size 20 >log 2>&1 || complain "one schedule: $(cat log)"
[ "$(rates one_schedule)" = "$halved" ] || complain "one schedule of two stages: $(rates one_schedule)"
"$tgrad" train one_schedule/config.yaml --run again_schedule -q >log 2>&1 || complain "again: $(cat log)"
[ "$(rates again_schedule)" = "$halved" ] || complain "config.yaml of two stages: $(rates again_schedule)"
for batch in 8 4; do # a later stage that adds up two batches is one with batches twice as large
    train added$batch --opt.name tensorgrad --opt.n_epochs 1 --stage2.opt.n_epochs 1 --stage2.data.batch_size $batch \
        --stage2.opt.accumulation_steps $((8 / batch)) -q >log 2>&1 || complain "batches of $batch: $(cat log)"
    sed -nE 's/.*"epoch":2,.*"train":\{"loss":([0-9.e-]*).*/\1/p' added$batch/metrics.jsonl
done >losses
awk 'NR == 1 { a = $1 } END { d = ($1 - a) / a; exit !(NR == 2 && d * d < 1e-10) }' losses ||
    complain "batches that are added up: $(tr '\n' ' ' <losses)"
refused "a later stage may change" --stage2.fno.n_layers 3
refused "data.encode_output: a later stage keeps the value of the first one" --stage2.data.encode_output false
refused "opt.init: a later stage keeps the value" --stage2.opt.init weights.safetensors
refused "stage2: it has no key, but there is a later one" --stage3.opt.n_epochs 1

[ $failures -eq 0 ] && echo "training: all checks passed after $kills kills"
exit $((failures > 0))
