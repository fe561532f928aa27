#!/usr/bin/env bash
# Every file of configs/ is complete: `tgrad plan` takes it as it is, and `tgrad train` runs it on a
# few small samples that `tgrad generate` makes of its own equation.
set -u
tgrad=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

for config in "$source"/configs/*.yaml; do
    "$tgrad" plan "$config" --json >"$work/plan" 2>"$work/log" || fail "plan $config: $(cat "$work/log")"
    grep -q '"parameters"' "$work/plan" || fail "plan $config: no parameters"
done

small() { # small CONFIG EQUATION MODES OPTIONS..: generate, then one epoch
    local config=$1 equation=$2 modes=$3
    shift 3
    "$tgrad" generate "$equation" --n-train 4 --n-test 2 --resolution 16 -o "$work/$config" "$@" \
        >"$work/log" 2>&1 || { fail "generate $equation: $(tail -1 "$work/log")"; return; }
    "$tgrad" train "$source/configs/$config.yaml" --run "$work/$config/run" -q \
        --data.root "$work/$config" --data.train_resolution 16 --data.file_resolution 16 \
        --data.test_resolutions 16 --data.test_batch_sizes 2 --data.batch_size 2 \
        --fno.n_modes "$modes" --fno.hidden_channels 8 --fno.n_layers 2 --opt.n_epochs 1 \
        --opt.min_entries 100 >"$work/log" 2>&1 || fail "train $config: $(tail -1 "$work/log")"
    tail -1 "$work/$config/run/metrics.jsonl" | grep -q '"16":{"l2":[0-9]' || fail "$config: no errors"
}

small demo darcy '[6, 6]' --grid 31
small darcy16 darcy '[6, 6]' --grid 31
small darcy421 darcy '[6, 6]' --grid 31
small burgers burgers 8
small ns128 ns '[6, 6]' --grid 16 --time 0.1
small em em 8 --grid 64

[ $failures -eq 0 ] && echo "every configuration plans and trains"
exit $((failures > 0))
