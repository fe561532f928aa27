#!/usr/bin/env bash
# Every file of configs/ is complete: `tgrad plan` takes it as it is, and `tgrad train` runs it on a
# few small samples that `tgrad generate` makes of its own equation; template.yaml on arrays, as
# docs/own-data.md describes it.
source=$(realpath "$2")
# shellcheck source=../../support/checks.sh
source "$source/tests/support/checks.sh"
# shellcheck source=../../support/arrays.sh
source "$source/tests/support/arrays.sh"

for config in "$source"/configs/*.yaml; do
    [ "${config##*/}" != template.yaml ] || continue
    "$tgrad" plan "$config" --json >"$work/plan" 2>"$work/log" || complain "plan $config: $(cat "$work/log")"
    grep -q '"parameters"' "$work/plan" || complain "plan $config: no parameters"
done

small() { # small CONFIG EQUATION MODES OPTIONS..: generate, then one epoch
    local config=$1 equation=$2 modes=$3
    shift 3
    "$tgrad" generate "$equation" --n-train 4 --n-test 2 --resolution 16 -o "$work/$config" "$@" \
        >"$work/log" 2>&1 || { complain "generate $equation: $(tail -1 "$work/log")"; return; }
    "$tgrad" train "$source/configs/$config.yaml" --run "$work/$config/run" -q \
        --data.root "$work/$config" --data.train_resolution 16 --data.file_resolution 16 \
        --data.test_resolutions 16 --data.test_batch_sizes 2 --data.batch_size 2 \
        --fno.n_modes "$modes" --fno.hidden_channels 8 --fno.n_layers 2 --opt.n_epochs 1 \
        --opt.min_entries 100 >"$work/log" 2>&1 || complain "train $config: $(tail -1 "$work/log")"
    tail -1 "$work/$config/run/metrics.jsonl" | grep -q '"16":{"l2":[0-9]' || complain "$config: no errors"
}

small demo darcy '[6, 6]' --grid 31
small darcy16 darcy '[6, 6]' --grid 31
small darcy421 darcy '[6, 6]' --grid 31
small burgers burgers 8
small ns128 ns '[6, 6]' --grid 16 --time 0.1
small em em 8 --grid 64

# ---- data of one's own ----

# block LANGUAGE N: the n-th such block of the page
block() {
    awk -v fence="\`\`\`$1" -v n="$2" \
        '$0 == "```" { if (on) exit } on { print } $0 == fence { on = ++seen == n }' "$source/docs/own-data.md"
}

# The arrays of the page, or without numpy some of the same shapes.
mkdir "$work/own"
cp "$source/configs/template.yaml" "$work/own"
(
    cd "$work/own" || exit 1
    if python3=$(with_numpy); then
        { block python 1 && block python 3; } | "$python3" -
    else
        for part in train:64 test:16; do
            for side in x y; do
                {
                    printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' \
                        "{'descr': '|u1', 'fortran_order': False, 'shape': (${part#*:}, 24, 40), }"
                    head -c $((${part#*:} * 960)) <(yes "$side field") # any numbers do
                } >"${part%:*}_$side.npy"
            done
        done
    fi
    PATH=$(dirname "$(realpath "$tgrad")"):$PATH
    bash -euc "$(block sh 1)"
    [ ! -e plates.npz ] || bash -euc "$(block sh 2)"
) >"$work/log" 2>&1 || complain "docs/own-data.md: $(tail -3 "$work/log")"
tail -n 1 "$work/own/runs/heat/metrics.jsonl" | grep -q '"24x40":{"l2":[0-9]' || complain "own data: no errors"
grep -q 'Resolution 24x40, as trained' "$work/own/heat.html" || complain "own data: no report"
[ -s "$work/own/pred.npy" ] || complain "own data: no prediction"
[ ! -e "$work/own/plates.npz" ] || [ -s "$work/own/plates.html" ] || complain "own data: no report of frames"

# What the template shows as a default is one: with every line in force the run is the same.
sed -E 's/^  # ([a-z_]+:)/  \1/' "$work/own/template.yaml" >"$work/own/whole.yaml"
[ "$(grep -c '^  [a-z_]*:' "$work/own/whole.yaml")" -ge 38 ] || complain "template.yaml: lines are missing"
for config in template whole; do
    (cd "$work/own" && "$tgrad" train "$config.yaml" --run "$config" --opt.n_epochs 1 -q) >"$work/log" 2>&1 ||
        complain "train $config: $(tail -1 "$work/log")"
done
diff "$work/own/template/config.yaml" "$work/own/whole/config.yaml" >"$work/log" || complain "template.yaml: $(cat "$work/log")"

[ $failures -eq 0 ]
