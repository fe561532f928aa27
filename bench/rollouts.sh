#!/usr/bin/env bash
# Does training over rollouts pay? Navier-Stokes at 64 x 64, decaying from a random start: a network
# trained on single steps, one trained through rollouts of up to three steps for the same epochs, and
# one trained on single steps with about the same work. Three seeds each; the table has the mean over
# eight test trajectories of the relative L2 error after 1, 5, 10 and 20 steps.
#
#   bench/rollouts.sh [tgrad] [folder] [options of train ..]     # about five minutes of two cores
set -euo pipefail
tgrad=$(realpath "${1:-build/bin/tgrad}")
folder=${2:-build/rollouts}
mkdir -p "$folder"
cd "$folder"
"$tgrad" generate ns --frames 21 --time 5 --sigma 300 --forcing 0 -r 64 --grid 128 --n-train 32 --n-test 8 -o data
cat >config.yaml <<Y
data: {root: data, set: ns, train_resolution: 64, test_resolutions: [64], batch_size: 8, encode_input: true}
fno: {n_modes: [16, 16], hidden_channels: 16, n_layers: 3}
opt: {name: adam, learning_rate: 0.004, training_loss: l2, scheduler: CosineAnnealingLR}
Y
# train <name> <epochs> <seed> <options ..>
train() {
    "$tgrad" train config.yaml --run "$1.$3" --distributed.seed "$3" --opt.n_epochs "$2" --opt.scheduler_T_max "$2" \
        "${@:4}" --resume auto >"$1.$3.log" 2>&1
}
printf '%-14s %5s %9s %9s %9s %9s %9s\n' training seed 'step 1' 'step 5' 'step 10' 'step 20' 'seconds'
for seed in 0 1 2; do
    train single 15 $seed "${@:3}"
    train rollout 15 $seed --opt.rollout_steps 3 --opt.rollout_gradients all --opt.rollout_epochs 4 "${@:3}"
    train single-long 38 $seed "${@:3}"
    for name in single rollout single-long; do
        "$tgrad" eval "$name.$seed" --data data/ns_test_64.h5 --rollout 20 --keep --json >"$name.$seed.json"
        printf '%-14s %5d %s %9.0f\n' $name $seed \
            "$(jq -r '.rollouts[0].l2 | [.[0], .[4], .[9], .[19]] | .[]' "$name.$seed.json" | xargs printf '%9.4f ')" \
            "$(jq -s 'map(.time.steps) | add' "$name.$seed/metrics.jsonl")"
    done
done
