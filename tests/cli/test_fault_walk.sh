#!/usr/bin/env bash
# The n-th allocation, write, sync, rename or opening of a file fails, for train (also on a device,
# where a thread writes the checkpoints), generate, convert and report: each ends with exit code 1
# and a sentence (or gets by), at once, and leaves no part of a file under a final name; the same
# command afterwards ends with the bytes of an undisturbed run. Then: every file that takes its name
# by a rename was synced before it, and its folder after it.
#
# Walks a few n of each kind, or with TG_LONG=1 (make check-long) all of them.
source "$2/tests/support/checks.sh"
build=$(realpath "$3")
faults=$build/lib/libfailing_calls.so
[ -e "$faults" ] || exit 77 # sanitizers want to be loaded first
long=${TG_LONG:-}
runs=0

# ---- the commands, each in a folder of its own with what it needs in `given` ----

"$tgrad" generate darcy --n-train 6 --n-test 2 --resolution 8 --grid 16 --seed 3 -o given >log 2>&1 ||
    { cat log; exit 1; }
cat >given/config.yaml <<'Y'
fno: {n_modes: [4, 4], hidden_channels: 4, n_layers: 1}
opt: {name: tensorgrad, n_epochs: 2, update_proj_gap: 3, min_entries: 10}
data: {root: given, set: darcy, train_resolution: 8, test_resolutions: 8, batch_size: 3}
Y
"$tgrad" train given/config.yaml --run given/run --threads 1 --quiet >log 2>&1 ||
    { cat log; exit 1; }

# The device that is none is the best backend of the program that has it.
program_of() {
    case $1 in
    device) echo "$build/bin/tgrad_fake" ;;
    *) echo "$tgrad" ;;
    esac
}

command_of() {
    case $1 in
    train | device) echo "train given/config.yaml --run made --threads 1 --quiet" ;;
    resume) echo "train given/config.yaml --run made --threads 1 --quiet --resume auto" ;;
    generate) echo "generate burgers --n-train 2 --n-test 1 --resolution 16 --grid 16 --threads 1 -o made" ;;
    convert) echo "convert given/darcy_train_8.h5 made.safetensors" ;;
    pack) echo "convert given/darcy_train_8.h5 made.h5 --gzip 1" ;;
    report) echo "report given/run -o made.html" ;;
    esac
}

# result <command>: one line that describes what it made, without times; nothing if that is incomplete.
result() {
    case $1 in
    train | device) # two epochs, whole lines, the last checkpoint
        [ "$(wc -l <made/metrics.jsonl)" -eq 2 ] && [ "$(wc -l <made/metrics.csv)" -eq 3 ] &&
            cat made/checkpoints/step-0000000004.safetensors made/samples.safetensors | md5sum ;;
    generate) cat made/burgers_train_16.h5 made/burgers_test_16.h5 | md5sum ;;
    convert) md5sum <made.safetensors ;;
    pack) md5sum <made.h5 ;;
    report) sed 's/made on [^<]*//' made.html | md5sum ;;
    esac 2>/dev/null
}

# half: parts of files under a final name, or temporary ones that were left.
half() {
    find . -path ./given -prune -o -name '*.tmp' -print
    local file
    for file in made.safetensors made.h5 made/*.h5 made/checkpoints/*.safetensors; do
        [ ! -f "$file" ] || "$tgrad" inspect "$file" >/dev/null 2>&1 || echo "$file"
    done
}

preloaded() { # <kind> <n> <program> <words ..>
    timeout 300 env FAULT="$1" AT="$2" COUNT="$work/count" LD_PRELOAD="$faults" "${@:3}" \
        >out 2>err </dev/null
}

# fault <command> <kind> <n> <result of an undisturbed run>
fault() {
    local name=$1 kind=$2 n=$3 wanted=$4 code again=$1
    rm -rf made made.*
    # shellcheck disable=SC2046 # the words are split on purpose
    preloaded "$kind" "$n" "$(program_of "$name")" $(command_of "$name")
    code=$?
    runs=$((runs + 1))
    last="$name, $kind $n"
    if [ $code -gt 1 ]; then
        complain "$last: exit code $code"
    elif [ $code -eq 1 ] && ! grep -q '^tgrad' err; then
        complain "$last: failed without a sentence"
    elif [ $code -eq 0 ] && [ "$(result "$name")" != "$wanted" ]; then
        complain "$last: succeeded with another result"
    fi
    [ -z "$(half)" ] || complain "$last: left behind $(half)"
    case $name in train | device) again=resume ;; esac
    # shellcheck disable=SC2046
    if [ $code -ne 0 ]; then
        "$(program_of "$name")" $(command_of $again) >out 2>err </dev/null || complain "$last: not taken up again"
        [ "$(result "$name")" = "$wanted" ] || complain "$last: taken up again with another result"
    fi
}

# walk <command> <kind> <steps>: so many n, the first and the last among them.
walk() {
    local name=$1 kind=$2 steps=$3 count n i previous=0 wanted
    rm -rf made made.*
    # shellcheck disable=SC2046
    preloaded "$kind" 0 "$(program_of "$name")" $(command_of "$name") || complain "$name: fails undisturbed"
    wanted=$(result "$name")
    [ -n "$wanted" ] || complain "$name: no result"
    count=$(cat count) || exit 1
    [ -z "$long" ] || steps=$count
    for ((i = 1; i <= steps; i++)); do
        n=$((steps < 2 || count <= steps ? i : 1 + (count - 1) * (i - 1) / (steps - 1)))
        [ "$n" -gt "$count" ] || [ "$n" -eq "$previous" ] || fault "$name" "$kind" "$n" "$wanted"
        previous=$n
    done
    [ -z "$long" ] || echo "$name: $kind, $count"
}

for name in train device generate convert pack report; do
    for kind in malloc write fsync rename open; do
        walk $name $kind 3
    done
done

# ---- in which order ----

for name in train device generate convert pack report; do
    rm -rf made made.* trace
    # shellcheck disable=SC2046
    TRACE=$work/trace LD_PRELOAD=$faults "$(program_of $name)" $(command_of $name) >out 2>err </dev/null
    last="$name"
    awk -v here="$PWD" '
        function whole(path) { return path ~ /^\// ? path : here "/" path }
        $1 == "write" { synced[$2] = 0 }
        $1 == "fsync" { synced[$2] = 1; delete open[$2] }
        $1 == "rename" && whole($2) in synced { # not a link
            renames++
            if (!synced[whole($2)]) print "renamed, but not synced: " $2 " to " $3
            folder = whole($3); sub(/\/[^\/]*$/, "", folder)
            open[folder] = $3
        }
        END {
            for (folder in open) print "not synced after the rename of " open[folder] ": " folder
            if (!renames) print "nothing was renamed"
        }' trace >wrong
    [ ! -s wrong ] || complain "$name: $(cat wrong)"
done

[ -z "$long" ] || echo "$runs faults"
[ $failures -eq 0 ]
