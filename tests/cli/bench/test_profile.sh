#!/usr/bin/env bash
# tgrad profile: every phase is reported, the parts add up, the ledger of real steps is as planned, charts
# hold the same numbers, those of docs/memory.md can be made, and wrong arguments are named.
#
#   tests/cli/bench/test_profile.sh build/bin/tgrad <source tree> <build tree>
tree=$(realpath "$2")
# shellcheck source=../../support/checks.sh
source "$tree/tests/support/checks.sh"

small=(--fno.hidden_channels 8 --fno.n_modes 8 --data.train_resolution 16 --batch 2 --fno.n_layers 3
    --opt.min_entries 100 --threads 2)

# count <file> <text>: how often it stands there.
count() {
    grep -oF -- "$2" "$1" | wc -l
}

# drawn <chart.svg>: it is well-formed XML that needs nothing from elsewhere, and its columns are the
# phases or points of the JSON in `out`, number by number.
drawn() {
    if grep -qE '<script|href|url\(|@import' "$1"; then complain "$last: $1 needs more than itself"; fi
    command -v python3 >/dev/null || return
    python3 - "$1" <<'P' || complain "$last: $1 is not drawn as told"
import json, sys, xml.etree.ElementTree as xml
root, told = xml.parse(sys.argv[1]).getroot(), json.load(open("out"))
svg = "{http://www.w3.org/2000/svg}"
parts = ("parameters", "optimizer_states", "inputs", "activations", "gradients", "workspace")
assert root.tag == svg + "svg" and root.find(svg + "title").text and root.find(svg + "desc").text
rows = told.get("phases") or told["points"]
columns = [g for g in root.iter(svg + "g") if g.get("class") == "now"]
assert len(rows) == len(columns), (len(rows), len(columns))
for row, g in zip(rows, columns):
    assert g.get("data-phase") == row.get("name") and g.get("data-value") == row.get("value")
    assert int(g.get("data-total")) == row["total"]
    drawn = {r.get("data-part"): int(r.get("data-bytes")) for r in g.iter(svg + "rect")}
    assert all(drawn.get(k, 0) == row[k] for k in parts), (row, drawn)
words = [t.text or "" for t in root.iter(svg + "text")]
assert all(k.replace("_", " ") in words for k in parts), "legend"
assert any("iB)" in w or "(%)" in w for w in words), "no unit"
P
}

for method in adam tensorgrad; do
    expect 0 profile --preset burgers "${small[@]}" --opt $method --steps 3 --json -o page.svg
    says out "\"optimizer\": \"$method\"" '"as_planned": true' '"steps": 3' '"optimizer_states": ' \
        '"name": "back through block 3: transforms"' '"name": "spectral weights"'
    layer=7
    if grep -q 'inverse transform, mixing' out; then layer=6; fi # a block in one call
    phases=$((7 + layer * 3))
    if grep -q '"name": "small parameters"' out; then phases=$((phases + 1)); fi # updated together
    [ $method = adam ] || phases=$((phases + 1)) # the last one, refreshed
    [ "$(count out '"backward": ')" -eq $phases ] || complain "$last: not $phases phases"
    [ "$(count out '"peak": true')" -eq 1 ] || complain "$last: not one peak"
    [ "$(count page.svg 'data-phase="')" -eq $phases ] || complain "$last: not $phases columns"
    says page.svg "most alive: " "held all the time: " "block 1: transform" \
        "reuses the memory of the activations"
    if command -v python3 >/dev/null; then
        python3 - <<'P' || complain "$last: the parts do not add up"
import json, sys
p = json.load(open("out"))
parts = ("parameters", "optimizer_states", "inputs", "activations", "gradients", "workspace")
for row in p["phases"] + [p["held"]]:
    assert sum(row[k] for k in parts) == row["total"], row
peak = max(p["phases"], key=lambda row: row["total"])
assert [r for r in p["phases"] if r["peak"]][0]["total"] == peak["total"]
assert all(row["flops"] > 0 for row in p["phases"] if "transform" in row["name"])
assert all(row["traffic"] > 0 for row in p["phases"])
for row in p["phases"]:
    held = p["refresh"] if row["refresh"] else p["held"]["total"]
    assert row["total"] <= held, (row, held)
    for k in parts:  # the optimizer works in memory of the activations
        assert row[k] <= p["held"][k] or k in ("gradients", "workspace"), (row, p["held"])
before, last = p["phases"][-2:]
assert last["refresh"] == (p["optimizer"] == "tensorgrad")
if last["refresh"]:  # the dense gradient beside all of the scratch
    assert last["name"] == "spectral weights, refreshed" and before["name"] == "spectral weights"
    assert last["gradients"] > before["gradients"] and last["workspace"] >= before["workspace"]
P
    fi
    expect 0 profile --preset burgers "${small[@]}" --opt $method --steps 0 --json -o chart.svg
    says chart.svg "most alive: " "held all the time: " "optimizer $method" \
        "batch 2, fno.hidden_channels 8"
    drawn chart.svg
done
expect 0 profile --preset burgers "${small[@]}" --opt tensorgrad --opt.accumulation_steps 2 \
    --fno.n_layers 20 --steps 0 --json -o chart.svg
drawn chart.svg
expect 0 profile --preset em "${small[@]}" --steps 1
says out "<- most" "as planned" "held all the time" "reuses the memory of the activations"
long=(--fno.hidden_channels 20 --fno.n_layers 2 --fno.n_modes 800 --data.train_resolution 800 --batch 2)
expect 0 profile --preset burgers "${long[@]}" --opt tensorgrad --steps 2 --threads 2
says out "as planned"
expect 0 profile --preset ns1024 --opt tensorgrad --steps 0
says out "back through block 4: skips"
if grep -q "the ledger counts" out; then complain "$last: steps were run"; fi
expect 0 profile --preset ns1024 --opt tensorgrad --steps 0 --json
if command -v python3 >/dev/null; then
    python3 - <<'P' || complain "$last: a refresh needs more than a step, and both more than no optimizer"
import json
before, step, refresh = json.load(open("out"))["phases"][-3:]
assert before["workspace"] < step["workspace"] < refresh["workspace"]
P
fi

# ---- sweeps ----

expect 0 profile --preset ns128 --opt adam,tensorgrad --sweep fno.n_modes=16,32,64 --json -o sweep.svg
[ "$(count out '"value": ')" -eq 6 ] || complain "$last: not 6 points"
[ "$(count sweep.svg 'data-value="')" -eq 6 ] || complain "$last: not 6 columns"
says sweep.svg "against fno.n_modes" 'data-method="tensorgrad"'
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
expect 0 profile --preset ns128 --opt adam,galore,tensorgrad --sweep fno.n_modes=16,32,64 --json \
    -o sweep.svg
says sweep.svg "against fno.n_modes" 'data-method="galore"'
drawn sweep.svg
expect 0 profile --preset burgers --sweep data.batch_size=1,2,4
says out "as set"
expect 0 profile --preset ns128 --sweep "fno.n_modes=[8, 16],[16, 8]"
says out "[16, 8]"

# ---- the figure of datasets ----

expect 0 profile --figure datasets --backend cpu --json -o datasets.svg
says out '"figure": "datasets"'
says datasets.svg "for several datasets" "128x128 modes" "1024, batch 32" "4000 points, batch 1" \
    "32x32x32, 16x16x16 modes" "million parameters"
drawn datasets.svg
if command -v python3 >/dev/null; then
    python3 - <<'P' || complain "$last: a preset is missing, or what its states save is wrong"
import json
points = json.load(open("out"))["points"]
assert [p["value"] for p in points[::2]] == ["burgers", "darcy421", "ns128", "ns1024", "em", "gino"]
for adam, small in zip(points[::2], points[1::2]):
    assert (adam["optimizer"], small["optimizer"]) == ("adam", "tensorgrad")
    assert adam["states_saved_percent"] == 0 and adam["parameter_count"] == small["parameter_count"]
    saved = 100 * (1 - small["optimizer_states"] / adam["optimizer_states"])
    assert abs(small["states_saved_percent"] - saved) < 1e-9 and saved > 60, (small, saved)
P
fi
expect 0 profile --figure datasets --backend cpu --opt adam,galore,lowrank --batch 1 -o datasets.svg
says out galore lowrank
says datasets.svg "the savings in optimizer states" 'data-method="lowrank"'
"$tgrad" profile --figure datasets --opt adam --json >out 2>err || complain "the figure of datasets on a GPU"
says out '"value": "ns1024"'
[ ! -s err ] || says err "gino is left out" # a GPU has no graph kernels

# ---- the figure of the largest network ----

expect 0 profile --figure max-memory --backend cpu --json -o max.svg
says out '"figure": "max-memory"'
says max.svg "ns1024_max_memory" "block checkpointing" "activations in f16"
drawn max.svg
if command -v python3 >/dev/null; then
    python3 - <<'P' || complain "$last: a format is missing, or saves nothing"
import json
points = json.load(open("out"))["points"]
total = {(p["value"], p["optimizer"]): p for p in points}
assert len(total) == len(points) == 12
# 4 blocks of 255 x 255 x 128 x 65 complex weights, and little more
weights = 4 * 255 * 255 * 128 * 65 * 8
assert 1 < total["full", "adam"]["parameters"] / weights < 1.01
for method in "adam", "tensorgrad":
    full, half = total["full", method], total["H", method]
    assert abs(half["parameters"] / full["parameters"] - 0.5) < 0.01
    assert half["optimizer_states"] == full["optimizer_states"]
    for name in "full", "H":
        assert total[name + " +", method]["activations"] < 0.8 * total[name, method]["activations"]
    eight = total["mixed, 8-bit moments", method]
    assert eight["optimizer_states"] < 0.3 * full["optimizer_states"]
for value, _ in total:
    assert total[value, "tensorgrad"]["total"] < total[value, "adam"]["total"]
P
fi
expect 0 profile --figure max-memory --backend cpu --opt lowrank --batch 1 -o max.svg
says max.svg 'data-method="lowrank"' 'data-value="mixed, 8-bit moments"'
expect 2 profile --figure datasets --preset ns128
expect 2 profile --figure modes
says err datasets

# ---- the charts of docs/memory.md, by the commands that stand there ----

sed -n '/^## Charts/,$ s/^    //p' "$tree/docs/memory.md" >charts.sh
mkdir docs
PATH="$(dirname "$tgrad"):$PATH" bash -e charts.sh >out 2>err </dev/null ||
    complain "the commands in docs/memory.md"
charts=$(grep -o '](memory_[a-z0-9_]*\.svg)' "$tree/docs/memory.md" | tr -d '()]' | sort -u)
[ "$(echo "$charts" | wc -w)" -ge 3 ] || complain "docs/memory.md shows fewer charts than 3"
for chart in $charts; do
    name=docs/$chart
    chart=$tree/docs/$chart
    last="docs/memory.md"
    [ -s "$name" ] || complain "$last has no command that makes $name"
    [ "$(wc -c <"$chart")" -lt 100000 ] || complain "$name is larger than 100 kB"
    [ "$(count "$name" 'class="now"')" -eq "$(count "$chart" 'class="now"')" ] ||
        complain "$name has other columns than its command draws"
done

# A gap schedule whose length a run would give.
expect 0 profile --preset burgers "${small[@]}" --opt tensorgrad --steps 2 --json --opt.update_proj_gap_mode linear
says out '"as_planned": true'

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
expect 1 profile --preset burgers --steps 0 -o no/such/folder.svg
expect 1 profile --preset burgers --fno.n_layers 0 --steps 0 -o none.svg
expect 1 profile --preset burgers --sweep fno.n_modes=8,few -o none.svg
for name in none.png none.html none .svg none.SVG; do
    expect 2 profile --preset burgers --steps 0 -o $name
    says err "FILE.svg"
    [ ! -e $name ] || complain "$last: $name was written"
done
[ -z "$(find . -name 'none*')" ] || complain "a failed profile left $(find . -name 'none*')"

[ $failures -eq 0 ] && echo "profiles add up"
exit $((failures > 0))
