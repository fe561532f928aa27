#!/usr/bin/env bash
# A run on the device that is none ends with the checkpoint of the same run on the cpu backend, byte
# for byte: with batches whose loss is not finite, accumulation, clipping, dropout, stages, an odd
# last batch, and when it is stopped and resumed.
#
#   tests/device/test_train_same.sh build/bin/tgrad_fake <source tree>
# shellcheck source=../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"
set +o pipefail # grep finds nothing where all is well

"$tgrad" generate darcy --n-train 37 --n-test 6 --resolution 12 --test-resolution 12 --grid 24 --seed 3 \
    -o data >log 2>&1 || { cat log; exit 1; }
for side in x y; do
    "$tgrad" convert data/darcy_train_12.h5 data/bad_train_12_$side.npy --dataset $side >/dev/null
    "$tgrad" convert data/darcy_test_12.h5 data/bad_test_12_$side.npy --dataset $side >/dev/null
done
# one NaN in one of the inputs
size=$(stat -c %s data/bad_train_12_x.npy)
printf '\x00\x00\xc0\x7f' | dd of=data/bad_train_12_x.npy bs=1 seek=$((size - 4000)) conv=notrunc 2>/dev/null

cat >config.yaml <<'Y'
fno: {n_modes: [6, 6], hidden_channels: 8, n_layers: 2}
opt:
  name: tensorgrad
  n_epochs: 4
  learning_rate: 0.005
  weight_decay: 1.0e-4
  warmup_steps: 9
  update_proj_gap: 7
  min_entries: 100
data: {root: data, set: bad, train_resolution: 12, test_resolutions: [12], batch_size: 8}
distributed: {seed: 5}
Y

numbers() { # metrics without times, memory and the name of the backend
    sed -E 's/"step_ms":[^,]*,"seconds":[^,]*,//; s/,"memory":.*//' "$1"
}

train() { # train FOLDER BACKEND options..
    local folder=$1 backend=$2
    shift 2
    "$tgrad" train config.yaml --run "$folder" --backend "$backend" --threads 1 -q "$@" >/dev/null 2>log ||
        complain "$folder on $backend: $(cat log)"
    grep -v '^tgrad: warning\|^tgrad: ranks from\|^tgrad: gradients of .* loss scale' log | grep . && complain "$folder on $backend: $(cat log)"
    grep -o 'warning:.*' log | sort >"$folder.warnings"
}

same() { # same NAME options..
    local name=$1
    shift
    train "$name.cpu" cpu "$@"
    train "$name.cuda" cuda "$@"
    cmp "$name.cpu/checkpoints/recent.safetensors" "$name.cuda/checkpoints/recent.safetensors" ||
        complain "$name: other weights"
    cmp <(numbers "$name.cpu/metrics.jsonl") <(numbers "$name.cuda/metrics.jsonl") ||
        complain "$name: other numbers"
    cmp "$name.cpu.warnings" "$name.cuda.warnings" || complain "$name: other warnings"
}

for method in adam lowrank galore structured unstructured tensorgrad; do
    same $method --opt.name $method
done
grep -q 'the loss is' adam.cuda.warnings || complain "no batch was bad"
grep -q '"skipped":4' adam.cuda/metrics.jsonl || complain "the bad batches are counted"
same 16bit --fno.fno_block_weights_precision bf16 --fno.fno_block_precision mixed --opt.state_precision half
same tucker --fno.factorization tucker --fno.rank 0.5 --opt.min_entries 50
same tt_parts --fno.factorization tt --fno.rank 0.5 --fno.micro_batch 3 --opt.min_entries 50
same separable --fno.separable true
# with small storage sums of a gradient are made in the same order where no skip is by channel
same cp --fno.factorization cp --fno.rank 0.5 --fno.saved_precision 8bit --fno.channel_mlp_skip linear
same mixed --fno.precision mixed --fno.channel_mlp_skip linear
same in_parts --fno.precision mixed --fno.micro_batch 3 --fno.channel_mlp_skip linear
same bytes --fno.activation_precision bf16 --opt.state_precision 8bit --opt.name adam --fno.hidden_channels 16
f16=(--fno.activation_precision half --fno.fno_block_precision half --fno.fno_block_weights_precision half
    --opt.training_loss '100*h1' --opt.loss_scale_interval 3)
same f16 "${f16[@]}"
grep -q '"overflows":0' f16.cuda/metrics.jsonl && complain "the loss scale of f16 never overflowed"
same f16_micro "${f16[@]}" --data.batch_size 4 --opt.accumulation_steps 2
same micro --data.batch_size 4 --opt.accumulation_steps 3
same clip --opt.max_grad_norm 0.5
same both --data.batch_size 4 --opt.accumulation_steps 2 --opt.max_grad_norm 0.5
same dropout --fno.channel_mlp_dropout 0.2
same stages --opt.n_epochs 2 --stage2.opt.n_epochs 2 --stage2.data.batch_size 20
same seldom --opt.eval_interval 3 --opt.save_every 3
uno=(--fno.architecture uno --fno.n_layers 3 --fno.channel_mlp_skip linear --fno.uno_out_channels 8,12,8
    --fno.uno_n_modes '[[6, 6], [4, 4], [6, 6]]' --fno.uno_scalings '[[1, 0.5], [0.5, 1], [2, 2]]')
same uno "${uno[@]}"
same uno_mixed "${uno[@]}" --fno.precision mixed --fno.activation_checkpoint block
train uno_again cpu "${uno[@]}" --opt.n_epochs 2
train uno_again cpu "${uno[@]}" --resume auto
cmp uno.cpu/checkpoints/recent.safetensors uno_again/checkpoints/recent.safetensors ||
    complain "a resumed uno: other weights"

# stopped after any step and resumed, a run ends the same; each round takes a step or more
for round in $(seq 40); do
    "$tgrad" train config.yaml --run stopped --backend cuda --threads 1 --resume auto >out 2>log &
    pid=$!
    waits_for $pid grep -q '^settings: ' out # which comes right before the first step
    sleep 0.0$((RANDOM % 10))
    kill -TERM $pid 2>/dev/null
    wait $pid
    code=$?
    [ $code -eq 0 ] || [ $code -eq 143 ] || complain "a stopped run: exit code $code, $(cat log)"
    [ -e stopped/samples.safetensors ] && break
done
[ -e stopped/samples.safetensors ] || complain "the run never ended in $round rounds"
cmp tensorgrad.cpu/checkpoints/recent.safetensors stopped/checkpoints/recent.safetensors ||
    complain "stopped and resumed: other weights"

# too many bad losses in a row end it, with the same words
for backend in cpu cuda; do
    "$tgrad" train config.yaml --run "wild.$backend" --backend $backend --threads 1 -q \
        --opt.learning_rate 1e6 --opt.n_epochs 50 --opt.nonfinite_limit 2 >/dev/null 2>"wild.$backend.log"
    [ $? -eq 1 ] || complain "a run that diverges on $backend must fail"
done
cmp <(sed "s/wild.cpu/wild.cuda/" wild.cpu.log) wild.cuda.log || complain "other last words"

[ $failures -eq 0 ] && echo "all runs end the same"
exit $((failures > 0))
