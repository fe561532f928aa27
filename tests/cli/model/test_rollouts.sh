#!/usr/bin/env bash
# Training over rollouts from the outside: one step is the ordinary training, longer ones resume to
# the same bytes with curriculum, noise and accumulation, ranks share their batches; refusals.
#
#   tests/cli/model/test_rollouts.sh build/bin/tgrad <source tree> <build tree>
source_tree=$(realpath "$2")
fake=$(realpath "$3")/bin/tgrad_fake # the cpu backend as a device
# shellcheck source=../../support/checks.sh
source "$source_tree/tests/support/checks.sh"

exits 0 generate burgers --frames 7 --time 0.3 --n-train 4 --n-test 2 -r 16 --grid 32 -o data
cat >config.yaml <<Y
data: {root: data, set: burgers, test_resolutions: [16], batch_size: 8, encode_input: true, history: 2}
fno: {n_modes: [8], hidden_channels: 6, n_layers: 2}
opt: {name: tensorgrad, n_epochs: 3, learning_rate: 0.005, update_proj_gap: 4, min_entries: 50}
Y
train() { # train <exit code> <run> <options ..>
    exits "$1" train config.yaml --run "$2" --threads 1 "${@:3}"
}
losses() {
    jq -c '[.epoch, .step, .train.loss, .test]' "$1/metrics.jsonl"
}

# One step is one step, and through all steps of one is through it.
train 0 plain
train 0 one --opt.rollout_steps 1 --opt.rollout_gradients all
same_arrays plain one
[ "$(losses plain)" = "$(losses one)" ] || complain "one step has other numbers"
# Pushforward and all steps are neither that nor the same.
long=(--opt.rollout_steps 3 --opt.rollout_epochs 1 --opt.input_noise 0.01 --opt.accumulation_steps 2)
for gradients in last all; do
    train 0 $gradients "${long[@]}" --opt.rollout_gradients $gradients
    for epochs in 1 2 3; do
        train 0 ${gradients}_parts "${long[@]}" --opt.rollout_gradients $gradients --opt.n_epochs $epochs --resume auto
    done
    same_arrays $gradients ${gradients}_parts
    [ "$(losses $gradients)" = "$(losses ${gradients}_parts)" ] || complain "$gradients: resumed to other numbers"
done
cmp -s <(losses last) <(losses all) && complain "last and all: the same losses"
[ "$(losses last | head -1 | jq '.[2]')" = "$(losses all | head -1 | jq '.[2]')" ] ||
    complain "the first epoch of the curriculum has one step: $(losses last) $(losses all)"
# A step longer is known to the plan.
exits 0 plan config.yaml --json --opt.rollout_steps 3 --opt.rollout_gradients all
jq -e '.memory.peak > 0' out >/dev/null || complain "plan: $(cat out)"

# On a device it is the same; of this one, to the bit.
if [ -x "$fake" ]; then
    for gradients in last all; do
        "$fake" train config.yaml --run ${gradients}_device --threads 1 --backend cuda "${long[@]}" \
            --opt.rollout_gradients $gradients >out 2>err || complain "on a device: $(tail -1 err)"
        [ "$(losses $gradients)" = "$(losses ${gradients}_device)" ] || complain "$gradients: other numbers on a device"
    done
fi

# ---- refusals ----
train 1 bad --opt.rollout_steps 6
says err 'opt.rollout_steps: 6 times data.horizon' 'need 8 frames, its trajectories have 7'
train 1 bad --opt.rollout_steps 2 --fno.micro_batch 2
says err 'opt.rollout_steps: 2 steps need fno.architecture fno and fno.micro_batch 0'
train 1 bad --opt.rollout_gradients first
says err 'rollout_gradients' 'last' 'all'
train 1 bad --stage2.opt.rollout_steps 2 --stage2.opt.rollout_gradients all
says err 'opt.rollout_gradients: all of a later stage needs it'
train 1 bad --opt.rollout_steps 2 --opt.rollout_gradients all --opt.physics burgers --data.history 1
says err 'opt.physics: its residual takes x as given'
exits 0 generate burgers --n-train 4 --n-test 2 -r 16 --grid 32 -o pairs
train 1 bad --data.root pairs --data.history 1 --opt.rollout_steps 2
says err 'opt.rollout_steps: 2 steps need trajectories' 'holds pairs'

# ---- evaluation ----
exits 0 eval all --data data/burgers_test_16.h5 --rollout 0 --keep
says out 'data/burgers_test_16.h5 at 16: 2 trajectories, 5 steps; correlation above 0.8 for'
[ "$(grep -cE '^ +[1-5] ' out)" -eq 5 ] || complain "rollout: $(cat out)"
# Predictions begin with the first frames of every trajectory: the first window that the run has kept.
exits 0 predict all/checkpoints/recent.safetensors -i data/burgers_test_16.h5 -o first.npy --threads 1
says out '2 samples, f32 2x1x16'
exits 0 convert all/samples.safetensors kept.npy --dataset pred_16
cmp -s <(tail -c +129 first.npy | head -c 64) <(tail -c +129 kept.npy | head -c 64) ||
    complain "predict: other values than in training"
exits 0 predict all -i data/burgers_test_16.h5 -o steps.npy --steps 4
says out '2 samples, f32 2x4x1x16'
train 0 odd --opt.n_epochs 1 --data.history 3 --data.horizon 2
exits 0 predict odd -i data/burgers_test_16.h5 -o odd.npy --steps 2
says out '2 samples, f32 2x2x2x16'
exits 1 predict all -i data/burgers_test_16.h5 -o steps.npy --dataset tensor
says err 'the model takes (samples, 2 channels, grid of 1 dimension), and this is 2x7x16'
train 0 middle --opt.n_epochs 1 --data.first_frame 1 --data.n_frames 5 # these frames alone, in eval too
exits 0 eval middle --data data/burgers_test_16.h5 --json
[ "$(jq '.results[0].l2 * 1e6 | round' out)" = "$(jq '.test["16"].l2 * 1e6 | round' middle/metrics.jsonl)" ] ||
    complain "eval has other frames than training"
exits 0 eval middle --data data/burgers_test_16.h5 --rollout 0
says out '2 trajectories, 3 steps'
exits 0 eval all --data data/burgers_test_16.h5 --rollout 3 --json
jq -e '.rollouts[0] | (.l2 | length) == 3 and (.correlation | length) == 3 and .correlated_steps >= 0 and
    (.energy.truth.first | length) == 9 and (.energy.prediction.last | length) == 9' out >/dev/null ||
    complain "rollout as JSON: $(cat out)"
exits 1 eval all --data data/burgers_test_16.h5 --rollout 6
says err 'need 8 frames, its trajectories have 7'
exits 2 eval all --data data/burgers_test_16.h5 --keep
exits 1 eval all/checkpoints/best.safetensors --data data/burgers_test_16.h5 --rollout 2 --keep
says err 'is not the folder of a run'

# The report shows what was kept: four charts of it, and a film strip.
exits 0 report all last -o page.html
for metric in rollout.l2 rollout.correlation rollout.energy.first rollout.energy.last; do
    grep -q "data-metric=\"$metric\"" page.html || complain "the report has no $metric"
done
says page.html '<section id="rollouts">' 'of 5 steps' '<h5>Prediction</h5><div class="film"'
exits 0 report plain -o page.html
! grep -q 'id="rollouts"' page.html || complain "a report without rollouts has a section of them"
cp all/samples.safetensors all/rollout.safetensors
exits 0 report all -o page.html # nothing of a rollout in it
head -c 100 all/samples.safetensors >all/rollout.safetensors
exits 1 report all -o page.html
says err 'all/rollout.safetensors'

# ---- several ranks ----
if command -v mpirun >/dev/null; then
    # shellcheck source=../../support/mpi.sh
    source "$source_tree/tests/support/mpi.sh"
    with_ranks 2 "$tgrad" train config.yaml --run two --threads 1 --opt.rollout_steps 3 --opt.rollout_gradients all >out 2>&1 ||
        complain "two ranks: $(tail -3 out)"
    train 0 alone --opt.rollout_steps 3 --opt.rollout_gradients all
    paste -d' ' <(jq '.train.loss' two/metrics.jsonl) <(jq '.train.loss' alone/metrics.jsonl) |
        awk '{ d = $1 - $2; if (!(d * d <= 1e-10 * $2 * $2)) exit 1 }' ||
        complain "two ranks train otherwise: $(losses two) $(losses alone)"
fi

[ $failures -eq 0 ]
