#!/usr/bin/env bash
# Every file of experiments/ makes a list of runs without mistakes at its smoke and its small scale, and
# the data of the former; three of them are run, with TG_LONG=1 (make check-long) all.
support=$(realpath "$(dirname "$0")")/support
experiments=$(realpath "$2")/experiments
# shellcheck source=support/checks.sh
. "$support/checks.sh"

for file in "$experiments"/*.yaml; do
    expect 0 sweep "$file" --out dry --scale smoke --dry-run --json
    grep -q '"name"' out || complain "$last: no runs"
    words=$(sed -n 's/^ *"generate": "\(.*\)",$/generate \1/p' out)
    if [ -n "$words" ] && ! grep -qxF "$words" made 2>/dev/null; then
        eval '"$tgrad"' "$words" "--output $(basename "$file" .yaml) >out 2>err" || complain "$file: $words: $(cat err)"
        echo "$words" >>made
    fi
    if [ -n "${TG_LONG:-}" ]; then
        exits 0 sweep "$file" --out "all/$(basename "$file" .yaml)" --scale smoke
    fi
    "$tgrad" sweep "$file" --out dry --scale small --dry-run >out 2>err # may be too large for this machine
    if grep -qv 'does not fit\|nothing was run' err; then
        complain "$file: mistakes at scale small"
    fi
    grep -q 'published: \|no published column' "$file" || complain "$file: nothing about published values"
    grep -q "^title: " "$file" || complain "$file: no title"
done
[ ! -e dry ] || complain "a dry run made its folder"

expect 0 sweep "$experiments/ranks_burgers.yaml" --out ranks --scale smoke
[ "$(grep -c '± \|^| [A-Z]' ranks/table.md)" -ge 6 ] || complain "$last: not six rows"
expect 0 sweep "$experiments/potential_methods.yaml" --out bodies --scale smoke # a GINO
[ "$(grep -c '^| Adam\|^| TensorGRaD' bodies/table.md)" -eq 3 ] || complain "$last: not three rows"
grep -q '^Adam_s0  60: l2 [0-9.]*  ' out || complain "$last: $(grep Adam_s0 out)"
grep -q 'H1 at' bodies/table.md && complain "$last: a column of H1 errors, which points do not have"
printf 'base: %s\ngenerate: {equation: darcy, resolution: 16, grid: 9}\n' "$experiments/../configs/darcy16.yaml" >coarse.yaml
expect 1 sweep coarse.yaml --out coarse
says err "generate: " "9 points are fewer than the finest resolution, 16"
expect 0 sweep "$experiments/ns1024_memory.yaml" --out memory --scale smoke
says memory/table.md '| 52 GB |' '| 46 GB |' '| 29 GB |'

[ $failures -eq 0 ]
