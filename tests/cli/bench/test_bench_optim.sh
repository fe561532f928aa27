#!/usr/bin/env bash
# tgrad bench optim: exit codes, the fields of its JSON, settings that arrive, memory that is as
# planned, and bad input. No time is looked at, except that it is one.
#
#   tests/cli/bench/test_bench_optim.sh build/bin/tgrad <source tree> <build tree>
# shellcheck source=../../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"

run() { # run <exit code> <arguments of bench ..>
    expect "$1" bench "${@:2}"
}

# counted <number> <text>: so many lines hold the text.
counted() {
    local found
    found=$(grep -cF -- "$2" out)
    [ "$found" -eq "$1" ] || complain "$last: '$2' stands in $found lines, expected $1"
}

# ---- every optimizer, dense Adam once and first ----

for backend in $(backends); do
    run 0 optim --shape 7,5,6,3 --steps 8 --backend $backend --json
    says out '"kind": "optim"' "\"backend\": \"$backend\"" '"dtype": "c64"' '"entries": 630' \
        '"steps": 8' '"seed": 0' 'splitmix64'
    for name in adam lowrank galore structured unstructured tensorgrad; do
        counted 1 "\"name\": \"$name\""
    done
    counted 6 '"as_planned": true'
    counted 6 '"state_bytes"'
    counted 6 '"back_update"'
    # Adam: 630 values of 8 bytes and as many reals of 4; it has no projection and no refresh.
    says out '"values": 630' '"state_bytes": 7560'
    counted 1 '"project": null'
    counted 1 '"refresh_warm": null'
    grep -qE '"step": [0-9.e-]+' out || complain "$last: no time of a step"
done
# 5 % of the entries and a core of (5, 4, 5, 3) by the rule for 20 %.
says out '"values": 332'
run 0 optim --shape 7x5x6x3 --steps 2
says out '7x5x6x3 c64, 630 entries' 'back+update' 'cold refresh' 'of dense' 'as counted' 'seed 0'
if grep -q DIFFERS out; then complain "$last: memory is not as planned"; fi

# ---- options ----

run 0 optim --shape 33,17 --dtype f32 --opt lowrank,galore --opt adam --steps 5 --seed 3 --json
counted 1 '"name": "adam"'
counted 3 '"name":'
says out '"dtype": "f32"' '"seed": 3' '"state_bytes": 4488'
run 0 optim --shape 16,12,10 --opt lowrank --opt.rank '[2, 3, 4]' --steps 1 --json
says out '"values": 24'
run 0 optim --shape 16,12,10 --opt tensorgrad --opt.update_proj_gap 1 --steps 3 --json
counted 1 '"step": null'     # every step of the second one refreshes
counted 1 '"refresh_warm": null' # dense Adam's
run 0 optim --shape 16,12,10 --opt lowrank --opt.complex_adam split --steps 1 --json
says out '"state_bytes": 30720' # 1920 values, four reals each
run 0 optim --shape 3 --opt lowrank --steps 1
says out '3 c64, 3 entries'

# ---- bad input ----

run 2
run 2 optm
says err 'did you mean optim?'
run 2 optim --opt lowrnk
says err 'did you mean lowrank'
run 2 optim --shape 4,x
says err "'x' is not a size"
run 0 optim --shape 4,4,4 --opt lowrank --steps 2 --opt.update_proj_gap_mode exponential
run 2 optim --shape 4,0
run 2 optim --shape 1,2,3,4,5,6,7,8,9
says err 'at most 8'
run 2 optim --shape 4000000000,4000000000,4000000000
says err 'too many entries'
run 2 optim --dtype bf16
run 2 optim --steps 0
run 2 optim --opt.rnk 3
says err 'rank'
run 2 optim --opt.rank 2,two
run 2 optim --opt.name adam
run 2 optim --fno.width 3
says err 'unknown setting'
run 1 optim --shape 4,4 --opt lowrank --opt.rank 1.5
says err 'lowrank: opt.rank: 1.5'
run 1 optim --shape 4,4 --opt unstructured --opt.sparse_ratio 2
says err 'sparse_ratio'

echo "$failures failures"
[ "$failures" -eq 0 ]
