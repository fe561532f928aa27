#!/usr/bin/env bash
# Drives tgrad generate from outside: messages and exit codes, interruption by SIGINT and SIGKILL at
# any moment with the same bytes in the end, two processes at once, a full disk.
#
#   tests/cli/data/test_generate.sh build/bin/tgrad <source tree> <build tree>
# shellcheck source=../../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"

run() { # run <exit code> <arguments of generate ..>
    exits "$1" generate "${@:2}"
}

same_folder() {
    diff -rq "$1" "$2" >differences || complain "$last: $(cat differences)"
}

# ---- what is made and said ----

burgers=(burgers --n-train 6 --n-test 4 -r 16 --test-resolution '16,8' --grid 64 --seed 3)
run 0 "${burgers[@]}" -o whole/deep
says out 'wrote whole/deep/burgers_train_16.h5: 6 samples' 'burgers_test_8.h5: 4 samples'
says err 'burgers: 10 of 10 samples'
[ "$(find whole -type f | wc -l)" -eq 3 ] || complain "$last: $(find whole)"
run 0 "${burgers[@]}" -o whole/deep
says out 'kept whole/deep/burgers_train_16.h5'
run 0 "${burgers[@]}" -o whole/deep --json
says out '"made": 0' '"samples": 6' '"equation": "burgers"'
[ ! -s err ] || complain "$last: --json wrote to stderr"
# A set with fewer samples is extended, to the bytes of one that was made at once.
few=(burgers --n-train 2 --n-test 1 "${burgers[@]:5}")
run 0 "${few[@]}" -o grown
says out 'burgers_test_16.h5: 1 sample,'
run 0 "${burgers[@]}" -o grown --json
says out '"made": 4' '"made": 3'
same_folder whole/deep grown
run 1 "${few[@]}" -o grown
says err 'it has 6 samples, here 2 are wanted'
run 1 "${burgers[@]}" -o grown --n-train 8 --seed 4
says err 'seed is 3 there and 4 here'
same_folder whole/deep grown
run 0 "${burgers[@]}" -o one --threads 1
same_folder whole/deep one
"$tgrad" inspect one/burgers_test_8.h5 >out 2>err || complain "inspect of a generated file"
grep -qE '^x +f32 +4x8 ' out || complain "inspect: $(cat out)"
says out 'viscosity: 0.01' 'seed: 3' 'split: test'

# Trajectories are read as windows without further settings.
run 0 ns --frames 4 --time 0.3 --n-train 3 --n-test 1 -r 8 --grid 16 -o flows
says out 'wrote flows/ns_train_8.h5: 3 trajectories' 'ns_test_8.h5: 1 trajectory,'
exits 0 init flows/ns_train_8.h5 -o flows.yaml
says out 'layout pdebench, 9 samples on a grid of 8, 1 -> 1 channels'
run 2 ns --frames 1 -o x
run 2 em --frames 3 -o x
says err 'em: frames are of trajectories of burgers and ns'
run 2 ns --frames 3 --input forcing -o x
says err 'ns.input: frames are of the vorticity'

# ---- refusals ----

run 1 "${burgers[@]}" -o one --viscosity 0.1
says err 'viscosity is 0.01 there and 0.1 here'
same_folder whole/deep one
run 0 "${burgers[@]}" -o one --viscosity 0.1 --force
run 1 "${burgers[@]}" -o one/burgers_train_16.h5
says err 'cannot make this folder'
run 2
run 2 burgres
says err 'did you mean burgers?' "Try 'tgrad generate --help'"
run 2 burgers darcy
run 2 burgers --reynolds 3
run 2 burgers --low 3 -o x
says err "burgers has no parameter 'low'; it has viscosity, time"
run 2 burgers --viscosity=-1 -o x
says err 'burgers.viscosity: expected a finite number from 1e-06 to 1e+06'
run 2 burgers --test-resolution 16,x -o x
says err "--test-resolution needs positive integers, not 'x'"
run 2 burgers --test-resolution 16,16 -o x
says err 'given twice'
run 2 burgers --test-resolution 1,2,3,4,5,6,7,8,9 -o x
run 2 burgers --n-train 0 --n-test 0 -o x
run 2 burgers --resolution 0 -o x
run 2 burgers --n-train -1 -o x
run 2 darcy --resolution 500 --grid 421 -o x
says err 'fewer than the finest resolution, 500'
run 2 burgers --backend cuda -o x
[ ! -e x ] || complain "a refused call made a folder"

# ---- interruption ----

darcy=(darcy --n-train 60 --n-test 20 -r 31 --test-resolution '31,16' --grid 75)
run 0 "${darcy[@]}" -o steady
# interrupt <signal> <milliseconds>: ends a run by the signal after that time.
interrupt() {
    "$tgrad" generate "${darcy[@]}" -o broken --threads 1 >out 2>err &
    local pid=$!
    sleep "0.$(printf %03d "$2")"
    kill "-$1" $pid 2>/dev/null
    wait $pid
}
for round in 1 2 3 4; do
    last="SIGINT, round $round"
    rm -rf broken
    interrupt INT $((50 * round))
    code=$?
    if [ $code -ne 0 ]; then
        # Before the handler is in place the signal ends the process as usual.
        [ $code -eq 130 ] || says err 'the same command resumes from there'
    fi
    run 0 "${darcy[@]}" -o broken
    same_folder steady broken
done
for round in 1 2; do
    last="SIGKILL, round $round"
    rm -rf broken
    for delay in 20 60 100 140; do
        interrupt KILL $((delay + round))
    done 2>/dev/null
    run 0 "${darcy[@]}" -o broken
    # A killed process may leave its temporary file.
    rm -f broken/.tgrad-*.tmp
    same_folder steady broken
done

# A flow in time keeps its state: ended by either signal, it comes to the same bytes.
flow=(kolmogorov --n-train 20 --n-test 10 -r 32 --grid 64 --start 40 --lag 16 --viscosity 0.001 -t 1)
run 0 "${flow[@]}" -o steady-flow
says err 'frames'
for signal in INT KILL; do
    rm -rf flow
    for delay in 100 300 500; do
        "$tgrad" generate "${flow[@]}" -o flow >out 2>err &
        pid=$!
        sleep "0.$delay"
        kill "-$signal" $pid 2>/dev/null
        wait $pid
    done 2>/dev/null
    run 0 "${flow[@]}" -o flow
    rm -f flow/.tgrad-*.tmp
    same_folder steady-flow flow
done

# How the pairs of a flow are split is in the files, beside the part that a file is.
for split in later shuffled; do
    run 0 "${flow[@]}" --split $split --trajectories 2 -o $split
    "$tgrad" inspect $split/kolmogorov_test_32.h5 >out 2>err
    says out "kolmogorov.split: $split" 'split: test' 'trajectories: 2'
done
cmp -s later/kolmogorov_test_32.h5 shuffled/kolmogorov_test_32.h5 && complain "both splits are one"
run 1 "${flow[@]}" --split later --trajectories 2 -o shuffled
says err 'kolmogorov.split is shuffled there and later here'
run 2 kolmogorov --split random -o x
says err "kolmogorov.split: expected one of later, shuffled, found 'random'"

# A run's report has it, too, from the run's own folder.
cat >flow.yaml <<'Y'
fno: {n_modes: [6, 6], in_channels: 1, out_channels: 1, hidden_channels: 4, n_layers: 1}
opt: {name: adam, n_epochs: 1}
data: {root: shuffled, set: kolmogorov, train_resolution: 32, test_resolutions: 32}
Y
exits 0 train flow.yaml --run flow-run
rm -r shuffled
exits 0 report flow-run -o flow.html
says flow.html 'on test pairs that are shuffled' '<code>trajectories</code></th><td><code>2<'

# A device renders the grids that resolve the flow and the host the others: the same data.
fake=$(realpath "$3")/bin/tgrad_fake
flow=(kolmogorov --n-train 5 --n-test 3 -r 32 --test-resolution '32,12,27' --grid 40 --start 1
    --lag 4 --viscosity 0.01 --split shuffled)
run 0 "${flow[@]}" -o host
"$fake" generate "${flow[@]}" --backend cuda -o device >out 2>err || complain "device: $(cat err)"
for file in train_32 test_32 test_12 test_27; do
    for folder in host device; do
        "$tgrad" inspect $folder/kolmogorov_$file.h5 2>err |
            awk '$1 == "x" || $1 == "y" {printf "%s %s %.4f %.4f\n", $1, $3, $4, $5}'
    done >numbers
    [ "$(wc -l <numbers)" -eq 4 ] && [ "$(sort -u numbers | wc -l)" -eq 2 ] ||
        complain "a device makes another $file: $(cat numbers)"
done

# ---- two at once, no room ----

rm -rf both
long=(darcy --n-train 50000 --n-test 0 -r 3 --grid 61 --threads 1)
"$tgrad" generate "${long[@]}" -o both >first 2>&1 &
pid=$!
waits_for $pid test -s both/darcy_train_3.h5.journal
run 1 "${long[@]}" -o both
says err 'another process is making this file'
kill -TERM $pid
wait $pid
[ $? -eq 1 ] || complain "SIGTERM: $(cat first)"
grep -q 'the same command resumes' first || complain "SIGTERM: $(cat first)"

rm -rf full
last='no room'
(trap '' XFSZ && ulimit -f 16 && exec "$tgrad" generate "${darcy[@]}" -o full) >out 2>err
[ $? -eq 1 ] || complain "a run without room"
says err 'cannot'
run 0 "${darcy[@]}" -o full
rm -f full/.tgrad-*.tmp
same_folder steady full

[ "$failures" -eq 0 ]
