#!/usr/bin/env bash
# tgrad profile: every phase is told, the parts add up, the ledger of real steps is as planned, the
# pages hold the same numbers, and wrong arguments are named.
#
#   tests/test_profile.sh build/bin/tgrad <source tree> <build tree>
# shellcheck source=support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"

small=(--fno.hidden_channels 8 --fno.n_modes 8 --data.train_resolution 16 --batch 2 --fno.n_layers 3
    --opt.min_entries 100 --threads 2)

# count <file> <text>: how often it stands there.
count() {
    grep -oF -- "$2" "$1" | wc -l
}

for method in adam tensorgrad; do
    expect 0 profile --preset burgers "${small[@]}" --opt $method --steps 3 --json -o page.html
    says out "\"optimizer\": \"$method\"" '"as_planned": true' '"steps": 3' '"optimizer_states": ' \
        '"name": "back through block 3: transforms"' '"name": "spectral weights"'
    phases=$((7 + 7 * 3))
    [ "$(count out '"backward": ')" -eq $phases ] || complain "$last: not $phases phases"
    [ "$(count out '"peak": true')" -eq 1 ] || complain "$last: not one peak"
    [ "$(count page.html 'data-phase="')" -eq $phases ] || complain "$last: not $phases columns"
    says page.html "most alive: " "held all the time: " "block 1: transform" "training step"
    if command -v python3 >/dev/null; then
        python3 - <<'P' || complain "$last: the parts do not add up"
import json, sys
p = json.load(open("out"))
parts = ("parameters", "optimizer_states", "inputs", "activations", "gradients", "workspace")
for row in p["phases"] + [p["held"]]:
    assert sum(row[k] for k in parts) == row["total"], row
peak = max(p["phases"], key=lambda row: row["total"])
assert [r for r in p["phases"] if r["peak"]][0]["total"] == peak["total"]
for row in p["phases"]:
    assert row["total"] <= p["held"]["total"], (row, p["held"])
    for k in parts:  # the optimizer works in memory of the activations
        assert row[k] <= p["held"][k] or k in ("gradients", "workspace"), (row, p["held"])
P
    fi
done
expect 0 profile --preset em "${small[@]}" --steps 1
says out "<- most" "as planned" "held all the time"
expect 0 profile --preset ns1024 --opt tensorgrad --steps 0
says out "back through block 4: skips"
if grep -q "the ledger counts" out; then complain "$last: steps were run"; fi

# ---- sweeps ----

expect 0 profile --preset ns128 --opt adam,tensorgrad --sweep fno.n_modes=16,32,64 --json -o sweep.html
[ "$(count out '"value": ')" -eq 6 ] || complain "$last: not 6 points"
[ "$(count sweep.html 'data-value="')" -eq 6 ] || complain "$last: not 6 columns"
says sweep.html "GiB of optimizer states" 'data-method="tensorgrad"'
if command -v python3 >/dev/null; then
    python3 - <<'P' || complain "$last: more modes must need more, compressed moments less"
import json
points = json.load(open("out"))["points"]
adam = [p for p in points if p["optimizer"] == "adam"]
small = [p for p in points if p["optimizer"] == "tensorgrad"]
assert all(a["total"] < b["total"] for a, b in zip(adam, adam[1:]))
assert all(s["optimizer_states"] < a["optimizer_states"] for s, a in zip(small, adam))
P
fi
expect 0 profile --preset burgers --sweep data.batch_size=1,2,4
says out "as set"
expect 0 profile --preset ns128 --sweep "fno.n_modes=[8, 16],[16, 8]"
says out "[16, 8]"

# ---- wrong ----

expect 2 profile
expect 2 profile --preset burgers --opt adam,lowrank
expect 2 profile --preset burgers --sweep fno.n_modes
expect 2 profile --preset burgers --sweep n_modes=4
expect 2 profile --preset burgers --sweep fno.n_modes=4,,8
expect 1 profile --preset burgers --sweep fno.n_modes=few
says err "fno.n_modes"
expect 1 profile missing.yaml
expect 1 profile --preset burgers --fno.hiden_channels 3
says err "fno.hidden_channels"
expect 1 profile --preset burgers --steps 0 -o no/such/folder.html

[ $failures -eq 0 ] && echo "profiles add up"
exit $((failures > 0))
