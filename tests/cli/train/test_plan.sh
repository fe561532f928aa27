#!/usr/bin/env bash
# tgrad plan and tgrad bench step: presets, files and overrides give the expected numbers, a step
# holds the memory that was planned, what --fit proposes fits, and wrong settings are named.
#
#   tests/cli/train/test_plan.sh build/bin/tgrad <source tree> <build tree>
# shellcheck source=../../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"

# number <key>: the first value of a key of the JSON in `out`
number() {
    sed -n "s/^ *\"$1\": *\([0-9]*\),*$/\1/p" out | head -1
}

# Parameters by hand: lifting, 4 blocks and projection of the paper's Navier-Stokes network.
expect 0 plan --preset ns128 --json --threads 2
block=$((2 * 64 * 64 * 64 * 33 + 64 + 64 * 64 + 64 * 32 + 32 + 32 * 64 + 64 + 64))
expected=$((4 * block + 3 * 128 + 128 + 128 * 64 + 64 + 64 * 256 + 256 + 256 + 1))
[ "$(number parameters)" = $expected ] || complain "$last: $(number parameters) parameters, expected $expected"
peak=$(number peak)
[ "$peak" -lt 1200000000 ] || complain "$last: $peak bytes"
expect 0 plan --preset ns128 --opt tensorgrad --json --threads 2
[ "$(number peak)" -lt "$peak" ] || complain "$last: compressed moments are not smaller"
for preset in ns1024 darcy421 burgers em "gino --backend cpu"; do # graph kernels are the CPU's alone
    # shellcheck disable=SC2086
    expect 0 plan --preset $preset
    says out "${preset%% *}: "
    says out "peak"
done

# A rank that the matrix does not have: its share is not the one that was set.
expect 0 plan --preset ns128 --opt galore --opt.first_dim_rollup 3 --threads 2
says out "65536 was asked for"
says out "set opt.galore_2d_proj_type to std"
expect 0 plan --preset ns128 --opt galore --opt.first_dim_rollup 3 --json --threads 2
jq -e '.clamped_rank | .asked == 65536 and .taken == 33 and .parameters == 4 and .share < 2e-4' out >/dev/null ||
    complain "$last: $(jq -c .clamped_rank out)"
expect 0 plan --preset ns128 --opt galore --opt.first_dim_rollup 3 --opt.galore_2d_proj_type std --json --threads 2
jq -e '.clamped_rank == null' out >/dev/null || complain "$last: $(jq -c .clamped_rank out)"

# Several ranks: less memory for each, a quarter of the bytes; times by the speed of links.
expect 0 plan --preset ns128 --opt tensorgrad --ranks 4 --link 25GB --step-ms 20 --json --threads 2
jq -e '.ranks | .count == 4 and .sent > 0.2 * .sent_dense and .sent < 0.3 * .sent_dense and
    (.communication_ms - 1500 * .sent / 25e9 | fabs) < 1e-9 and
    (.efficiency - 20 / (20 + .communication_ms) | fabs) < 1e-12' out >/dev/null || complain "$last: $(jq -c .ranks out)"
[ "$(number activations)" -lt $((peak / 2)) ] || complain "$last: the activations of a whole batch"
# Messages: 2 log2(8) of the small parameters, 2 log2(2) of each layer's block; 4 (D - 1) of each of 4 layers, and more.
expect 0 plan --preset ns128 --opt adam --ranks 8 --split 4 --link 25GB --latency-us 5 --step-ms 20 --json --threads 2
jq -e '.ranks | .messages == 6 + 4 * 2 and .messages_split >= 48 and .messages_split < 60 and
    (.communication_ms - (1750 * .sent + 1000 * .sent_split) / 25e9 - 5e-3 * (.messages + .messages_split) | fabs) < 1e-9 and
    (.efficiency - 20 / (20 + .communication_ms) | fabs) < 1e-12' out >/dev/null || complain "$last: $(jq -c .ranks out)"
expect 2 plan --preset ns128 --ranks 2 --latency-us 5
expect 2 plan --preset ns128 --ranks 2 --link 1GB --latency-us soon
expect 2 plan --preset ns128 --link 25GB
expect 2 plan --preset ns128 --ranks 2 --link fast
expect 2 plan --preset ns128 --ranks 2 --link 1GB --step-ms none
expect 2 plan --preset ns128 --ranks 2 --fit 8GB
expect 1 plan --preset ns128 --batch 3 --ranks 4
says err "3 samples cannot be shared by 4 ranks"

# A file, and overrides.
cat >small.yaml <<'YAML'
fno:
  n_modes: [8, 8]
  hidden_channels: 12
  n_layers: 2
opt:
  name: lowrank
  rank: 0.5
  n_epochs: 3
data:
  batch_size: 4
  train_resolution: 64
YAML
expect 0 plan small.yaml --json
says out '"batch": 4'
activations=$(number activations)
expect 0 plan small.yaml --batch 8 --json
[ "$(number activations)" = $((2 * activations)) ] || complain "$last: not twice the activations"
expect 0 plan small.yaml --data.train_resolution 32 --fno.hidden_channels 6 --opt adam
says out "at resolution 32"
says out "training step"
expect 1 plan small.yaml --fno.hiden_channels 6
says err "fno.hidden_channels"
expect 1 plan small.yaml --opt.rank many
says err "opt.rank"
expect 1 plan small.yaml --data.batch_size 0
says err "data.batch_size"
expect 1 plan small.yaml --report.colour red
says err "report.colour"
expect 1 plan small.yaml --opt lowerank
says err "lowrank"
expect 0 plan small.yaml --data.set nowhere
says out "data are not counted: "
expect 1 plan small.yaml --opt.memory_budget 500
says err "opt.memory_budget"
expect 1 plan small.yaml --opt.rank auto
says err "opt.rank: auto was removed"
expect 1 plan small.yaml --opt.rank_tolerance 0.1
says err "opt.rank_tolerance: only 0 is done here, found '0.1'; it was removed"

# What is proposed fits when it is pasted (on a CPU, whose fastest way is known here); the least that can be reached is named otherwise.
expect 0 plan --preset burgers --opt adam --backend cpu --json --threads 1
peak=$(number peak)
expect 0 plan --preset burgers --opt adam --backend cpu --fit $peak --threads 1
says out "fits in"
for percent in 99 70 45; do
    budget=$((peak * percent / 100))
    expect 0 plan --preset burgers --opt adam --backend cpu --fit $budget --json --threads 1
    says out '"fits": false'
    times=$(sed -n 's/^ *"time": *//p' out | tr -d ,)
    [ "${times%%$'\n'*}" = "$(sort -g <<<"$times" | head -1)" ] ||
        complain "$last: not the fastest first: $times"
    [ "$percent" -lt 99 ] || awk -v t="${times%%$'\n'*}" 'BEGIN { exit !(t < 1.05) }' ||
        complain "$last: 1 % less memory makes a step $times times as long"
    arguments=$(sed -n 's/^ *"arguments": "\(.*\)",$/\1/p' out | head -1)
    [ -n "$arguments" ] || complain "$last: nothing is proposed"
    # shellcheck disable=SC2086 # several words
    expect 0 plan --preset burgers --opt adam --backend cpu --json --threads 1 $arguments
    [ "$(number peak)" -le $budget ] || complain "$last: $(number peak) bytes, proposed for $budget"
done
expect 1 plan --preset burgers --opt adam --fit 1MB
says err "at least, with --"
expect 1 plan --preset burgers --fit 1kB --fno.n_layers 1 --fno.fno_block_weights_precision bf16 --fno.micro_batch 1 \
    --fno.saved_precision 8bit --fno.activation_checkpoint minimal --opt.state_precision 8bit
says err ", whatever is set"
expect 2 plan --preset burgers --fit much
sed -i 's/hidden_channels: 12/hidden_channels: none/' small.yaml
expect 1 plan small.yaml
says err "small.yaml:3"
printf 'fno:\n  n_modes: [4]\ndata:\n  batch_size: 2\n' >half.yaml
expect 1 plan half.yaml
says err "data.train_resolution"
expect 1 plan missing.yaml
expect 2 plan
expect 2 plan half.yaml --preset em
expect 2 plan --preset unknown
says err "ns128"

# A step holds what was planned.
small="--fno.hidden_channels 8 --fno.n_modes 8 --data.train_resolution 16 --batch 2 --steps 5"
for preset in burgers em; do
    # shellcheck disable=SC2086 # several words
    expect 0 bench step --preset $preset $small --opt adam,tensorgrad --json --threads 2 --opt.min_entries 100
    says out '"forward_backward":'
    says out '"refresh_warm":'
    [ "$(grep -c '"as_planned": true' out)" = 2 ] || complain "$last: not as planned"
done
# So does one whose refresh decomposes long modes, and the plan of a run knows its highest phase.
long="--fno.hidden_channels 20 --fno.n_layers 2 --fno.n_modes 800 --data.train_resolution 800 --batch 2 --threads 2"
for method in tensorgrad galore; do
    # shellcheck disable=SC2086
    expect 0 bench step --preset burgers $long --opt $method --opt.first_dim_rollup 2 --steps 2 --json
    says out '"as_planned": true'
    place=$(grep -q '"device": {' out && echo device || echo memory)
    sed -i "0,/\"$place\": {/d" out # what was counted there
    counted=0
    for category in weights gradients optimizer factors indices activations workspace data communication; do
        counted=$((counted + $(number $category)))
    done
    # shellcheck disable=SC2086
    expect 0 plan --preset burgers $long --opt $method --opt.first_dim_rollup 2 --json
    says out '"moment": "step with a refresh"'
    [ "$(number peak)" = $counted ] || complain "$last: $(number peak) bytes, a step counts $counted"
done
# shellcheck disable=SC2086
expect 0 bench step --preset burgers $small
says out "forward+backward"
says out "as counted"
expect 1 bench step --preset burgers --opt lowerank
expect 2 bench step --preset unknown

# --paths: what a backend used for each op; with more than one implementation the sizes decide.
small="--fno.hidden_channels 8 --fno.n_modes 8 --data.train_resolution 16 --batch 2 --opt.min_entries 100"
for backend in ref cpu; do
    [ $backend = ref ] && path=reference || path=tiles
    for command in "bench step --steps 1" plan; do
        # shellcheck disable=SC2086
        expect 0 $command --preset burgers $small --opt tensorgrad --backend $backend --paths --json
        jq -e --arg path $path '[.. | .paths? // empty | .[] | .op + ": " + .path] |
            index("mlp: " + $path) and index("mlp backward: " + $path) and index("skip: " + $path) and
            any(startswith("project: ")) and any(startswith("expand: "))' out >/dev/null || complain "$last: $(jq -c . out)"
        # shellcheck disable=SC2086
        expect 0 $command --preset burgers $small --opt tensorgrad --backend $backend --paths
        grep -Eq "^mlp +2 to 16 to 8 +$path " out || complain "$last: $(cat out)"
    done
done
# shellcheck disable=SC2086
expect 0 plan --preset ns128 --batch 1 --fno.hidden_channels 16 --opt tensorgrad --backend cpu --paths
grep -Eq '^project +16x16x64x33 to .* transposed ' out || complain "$last: $(cat out)"
# shellcheck disable=SC2086
expect 0 plan --preset burgers $small --json
grep -q '"paths"' out && complain "$last: paths without --paths"
expect 2 plan --preset burgers --paths --fit 8GB
expect 2 plan --preset burgers --paths --ranks 2

[ $failures -eq 0 ] && echo "plans and steps agree"
exit $((failures > 0))
