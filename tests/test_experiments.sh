#!/usr/bin/env bash
# Every file of experiments/ makes a list of runs without mistakes at its smoke and its small scale;
# two of them are run.
support=$(realpath "$(dirname "$0")")/support
experiments=$(realpath "$2")/experiments
# shellcheck source=support/checks.sh
. "$support/checks.sh"

for file in "$experiments"/*.yaml; do
    expect 0 sweep "$file" --out dry --scale smoke --dry-run --json
    grep -q '"name"' out || complain "$last: no runs"
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
expect 0 sweep "$experiments/ns1024_memory.yaml" --out memory --scale smoke
says memory/table.md '| 52 GB |' '| 46 GB |' '| 29 GB |'

[ $failures -eq 0 ]
