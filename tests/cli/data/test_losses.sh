#!/usr/bin/env bash
# Losses in Fourier space and with the residual of an equation: runs that use them, also on a device that is none, the
# memory that was planned for them, runs that are resumed, windows of trajectories among them, and what is refused.
#
#   tests/cli/data/test_losses.sh build/bin/tgrad <source tree> <build tree>
tree=$(realpath "$2") fake=$(realpath "$3")/bin/tgrad_fake
# shellcheck source=../../support/checks.sh
source "$tree/tests/support/checks.sh"

exits 0 generate darcy --n-train 6 --n-test 2 -r 9 --grid 9 -o .
exits 0 generate burgers --n-train 3 --n-test 1 -r 16 --time 0.2 --frames 5 -o .
exits 0 generate ns --n-train 2 --n-test 1 -r 8 --grid 16 --time 0.2 --frames 3 -o .
cat >darcy.yaml <<'EOF'
data: {set: darcy, train_resolution: 9, test_resolutions: 9, batch_size: 4, encode_input: true}
fno: {n_modes: [4, 4], hidden_channels: 4, n_layers: 1}
opt: {n_epochs: 2, name: adam, training_loss: l2 + 0.5*hs1, physics: darcy, physics_weight: 0.01}
EOF
cat >burgers.yaml <<'EOF'
data: {train_file: burgers_train_16.h5, test_files: burgers_test_16.h5, batch_size: 5, history: 2}
fno: {n_modes: 6, hidden_channels: 4, n_layers: 1}
opt: {n_epochs: 2, name: adam, training_loss: l1, physics: burgers, physics_time: 0.05}
EOF

cat >ns.yaml <<'EOF'
data: {train_file: ns_train_8.h5, test_files: ns_test_8.h5, batch_size: 3}
fno: {n_modes: [4, 4], hidden_channels: 4, n_layers: 1}
opt: {n_epochs: 2, name: adam, training_loss: l2, physics: ns, physics_time: 0.1, physics_viscosity: 1.0e-3}
EOF

# metric FILE KEY: a number of its last line
metric() {
    tail -n 1 "$1" | grep -oE "\"$2\": ?[-0-9.e+]+" | head -n 1 | grep -oE '[-0-9.e+]+$'
}

for name in darcy burgers ns; do
    exits 0 train $name.yaml --run whole_$name --threads 1 --quiet
    exits 0 train $name.yaml --run parts_$name --threads 1 --quiet --opt.n_epochs 1
    exits 0 train $name.yaml --run parts_$name --threads 1 --quiet --resume auto
    cmp whole_$name/checkpoints/recent.safetensors parts_$name/checkpoints/recent.safetensors ||
        complain "$name: a resumed run is another one"
    exits 0 train $name.yaml --run plain_$name --threads 1 --quiet --opt.physics none
    [ "$(metric whole_$name/metrics.jsonl loss)" != "$(metric plain_$name/metrics.jsonl loss)" ] ||
        complain "$name: the residual is no part of the loss"
    expect 0 plan $name.yaml --json --threads 1
    planned=$(grep -oE '"workspace": [0-9]+' out | grep -oE '[0-9]+' | sort -n | tail -n 1)
    [ "$planned" = "$(metric whole_$name/metrics.jsonl workspace)" ] ||
        complain "$name: planned a workspace of $planned, taken $(metric whole_$name/metrics.jsonl workspace)"
done

for name in darcy burgers ns; do
    [ -x "$fake" ] || continue
    "$fake" train $name.yaml --backend cuda --run fake_$name --threads 1 --quiet >/dev/null ||
        complain "$name: does not train on a device"
    [ "$(metric whole_$name/metrics.jsonl loss)" = "$(metric fake_$name/metrics.jsonl loss)" ] ||
        complain "$name: another loss on a device"
done

expect 1 train darcy.yaml --run no --opt.physics burgers
says err "opt.physics: burgers is an equation for one real field in 1 dimension, found real data in 2, 1 -> 1 channels"
expect 1 train burgers.yaml --run no --opt.physics_time 0
says err "opt.physics_time: burgers needs the time"
expect 1 train darcy.yaml --run no --opt.input_noise 0.1
says err "opt.physics: noise on x is no solution of the equation"
expect 1 train darcy.yaml --run no --opt.training_loss hs9
says err "opt.training_loss: 'hs9' is not a loss" "hs<s> with s in -4 .. 4"
expect 1 train darcy.yaml --run no --opt.training_loss l1000
says err "opt.training_loss: 'l1000' is not a loss" "l<p> with p in 1 .. 16"
[ "$failures" -eq 0 ]
