#!/usr/bin/env bash
# Every file of experiments/ makes a list of different runs without mistakes at all of its scales, and the data of
# the smallest; three of them are run, with TG_LONG=1 (make check-long) all, which shows that no two rows are equal.
support=$(realpath "$(dirname "$0")")/../../support
experiments=$(realpath "$2")/experiments
# shellcheck source=../../support/checks.sh
. "$support/checks.sh"
# shellcheck source=../../support/json.sh
. "$support/json.sh"

# Whether a file says what the paper has: values, or that there are none.
tells_published() {
    ! grep -q 'not known here\|no published column' "$1" &&
        grep -q 'published[:.]\|^#.*figure without numbers\|^#.*not in the paper' <(tr '\n' ' ' <"$1" | sed 's/ # / /g; s/ title:/\n&/')
}

# A line for each value that several rows of one seed share: losses and errors, or of plans the memory.
equal_rows() { # equal_rows results.jsonl
    grep '"search":false' "$1" | sed -E 's/.*"seed":([^,]*),.*"train_loss":([^,]*),"test":(\{[^}]*\}).*/\1 \2 \3/
        s/.*"seed":([^,]*),.*"memory":(\{[^}]*\}).*/\1 \2/' | sort | uniq -d
}

# The planned optimizer state of a run in the flattened JSON of a dry run.
state_of() { # state_of FILE RUN
    awk -v name="$2_s0" '$1 ~ /[.]name$/ { is_run = $2 == name } is_run && $1 ~ /[.]state$/ { print $2 }' "$1"
}

printf '# Ours, not in\n# the paper.\ntitle: x\n' >said.yaml
printf '# A figure without numbers.\ntitle: x\n' >>said.yaml
tells_published said.yaml || complain "a file that says so is refused"
printf 'title: x # not in the paper\n' >silent.yaml
tells_published silent.yaml && complain "a file that says nothing is accepted"
printf '# not in the paper: there is no published column\ntitle: x\n' >old.yaml
tells_published old.yaml && complain "the old sentence is accepted"

for file in "$experiments"/*.yaml; do
    name=$(basename "$file" .yaml)
    tells_published "$file" || complain "$file: nothing about published values"
    grep -q "^title: " "$file" || complain "$file: no title"
    grep -q 'stage[2-9][.]opt[.]\(scheduler\|learning_rate\|step_size\|gamma\)' "$file" &&
        complain "$file: a later stage restarts the schedule, and loses what the first has learned"
    expect 0 sweep "$file" --out dry --scale smoke --dry-run --json
    grep -q '"name"' out || complain "$last: no runs"
    words=$(sed -n 's/^ *"generate": "\(.*\)",$/generate \1/p' out)
    if [ -n "$words" ] && ! grep -qxF "$words" made 2>/dev/null; then
        eval '"$tgrad"' "$words" "--output $name >out 2>err" || complain "$file: $words: $(cat err)"
        echo "$words" >>made
    fi
    if [ -n "${TG_LONG:-}" ]; then
        exits 0 sweep "$file" --out "all/$name" --scale smoke
        [ -z "$(equal_rows "all/$name/results.jsonl")" ] ||
            complain "$last: equal rows: $(equal_rows "all/$name/results.jsonl")"
    fi
    for scale in $(sed -n '/^scales:/,$s/^  \([a-z]*\):.*/\1/p' "$file") paper; do
        [ "$scale" = smoke ] && continue
        "$tgrad" sweep "$file" --out dry --scale "$scale" --dry-run >out 2>err # may be too large for this machine
        if grep -qv 'does not fit\|nothing was run' err; then
            complain "$file: mistakes at scale $scale: $(cat err)"
        fi
    done
done
[ ! -e dry ] || complain "a dry run made its folder"

expect 0 sweep "$experiments/ranks_burgers.yaml" --out ranks --scale smoke
[ "$(grep -c '^| [A-Z]' ranks/table.md)" -eq 8 ] || complain "$last: not eight rows"
[ -z "$(equal_rows ranks/results.jsonl)" ] || complain "$last: equal rows"
says ranks/table.md '| published L2 | published H1 | published train | published memory |' '| 2.53e-5 | 4.1e-5 | 0.86e-5 | 3.87 GB |'
cat ranks/results.jsonl ranks/results.jsonl >twice
[ "$(equal_rows twice | wc -l)" -eq 8 ] || complain "equal rows are not found"
expect 0 sweep "$experiments/potential_methods.yaml" --out bodies --scale smoke # a GINO
[ "$(grep -c '^| Adam\|^| TensorGRaD' bodies/table.md)" -eq 3 ] || complain "$last: not three rows"
grep -q '^Adam_s0  60: l2 [0-9.]*  ' out || complain "$last: $(grep Adam_s0 out)"
grep -q 'H1 at' bodies/table.md && complain "$last: a column of H1 errors, which points do not have"
printf 'base: %s\ngenerate: {equation: darcy, resolution: 16, grid: 9}\n' "$experiments/../configs/darcy16.yaml" >coarse.yaml
expect 1 sweep coarse.yaml --out coarse
says err "generate: " "9 points are fewer than the finest resolution, 16"
expect 0 sweep "$experiments/ns1024_memory.yaml" --out memory --scale smoke
says memory/table.md '| 52 GB |' '| 46 GB |' '| 29 GB |'
[ -z "$(equal_rows memory/results.jsonl)" ] || complain "$last: equal rows"


# GaLore's share is that of Adam's state at every unfolding, but for its vectors.
expect 0 sweep "$experiments/galore_unfoldings.yaml" --out dry --dry-run --json --fno.n_layers 1 --data.batch_size 1
flat out >plan
adam=$(state_of plan Adam)
for share in 0.25 0.50 0.75; do
    for d in 1 2 3; do
        awk -v r=$share -v adam="$adam" -v s="$(state_of plan "GaLore-d=${d}_rank=$share")" \
            'BEGIN { exit !(s > 0.9 * r * adam && s < 1.5 * r * adam) }' ||
            complain "GaLore d = $d at $share holds $(state_of plan "GaLore-d=${d}_rank=$share") bytes, Adam $adam"
    done
done

[ $failures -eq 0 ]
