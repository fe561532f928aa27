#!/usr/bin/env bash
# Drives tgrad generate with --backend cuda: the same data as on the CPU, the same bytes after an
# interruption, and what a GPU does not make. Skipped where there is none.
#
#   tests/cli/data/test_generate_gpu.sh build/bin/tgrad <source tree> <build tree>
# shellcheck source=../../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"

run() { # run <exit code> <arguments of generate ..>
    exits "$1" generate "${@:2}"
}

same_folder() {
    diff -rq "$1" "$2" >differences || complain "$last: $(cat differences)"
}

# same_data <file> <file>: smallest and largest numbers agree to six digits.
same_data() {
    local file
    for file in "$1" "$2"; do
        "$tgrad" inspect "$file" 2>err | awk '$1 == "x" || $1 == "y" {print $1, $3, $4, $5}'
    done >numbers
    [ "$(wc -l <numbers)" -eq 4 ] && [ "$(sort -u numbers | wc -l)" -eq 2 ] ||
        complain "$1 and $2 differ: $(cat numbers)"
}

tiny=(ns --n-train 2 --n-test 0 -r 8 --grid 8 --time 0.1)
"$tgrad" generate "${tiny[@]}" --backend cuda -o tiny >out 2>err </dev/null
if grep -qE 'not in this build|not available here' err; then
    echo "no GPU: $(cat err)"
    exit 77
fi

# ---- independent samples: more than the 256 that a device makes at once ----

# One thread: the steps of such small flows are too short to share.
ns=(ns --n-train 300 --n-test 3 -r 10 --test-resolution '10,7' --grid 24 --time 0.05 --seed 3 --threads 1)
run 0 "${ns[@]}" --backend cuda -o gpu
run 0 "${ns[@]}" -o cpu
for file in ns_train_10.h5 ns_test_10.h5 ns_test_7.h5; do
    same_data "gpu/$file" "cpu/$file"
done
"$tgrad" inspect gpu/ns_test_7.h5 >out 2>err
says out 'backend: cuda'
run 1 "${ns[@]}" -o gpu
says err 'backend is cuda there and cpu here'
for round in 1 2; do
    rm -rf broken
    "$tgrad" generate "${ns[@]}" --backend cuda -o broken >out 2>err &
    pid=$!
    sleep "0.$((2 * round))"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    run 0 "${ns[@]}" --backend cuda -o broken
    rm -f broken/.tgrad-*.tmp
    same_folder gpu broken
done
run 0 "${tiny[@]}" --input forcing --backend cuda -o forcing-gpu
run 0 "${tiny[@]}" --input forcing -o forcing-cpu
same_data forcing-gpu/ns_train_8.h5 forcing-cpu/ns_train_8.h5

# ---- flows in time: 20 points resolve the spectrum, 16 do not ----

flow=(kolmogorov --n-train 4 --n-test 2 -r 16 --test-resolution '20,16' --grid 27 --start 1 --lag 4
    --viscosity 0.01 --split shuffled --trajectories 2 --threads 1)
run 0 "${flow[@]}" --backend cuda -o flow-gpu
run 0 "${flow[@]}" -o flow-cpu
for file in train_16 test_20 test_16; do
    same_data "flow-gpu/kolmogorov_$file.h5" "flow-cpu/kolmogorov_$file.h5"
done
rm -rf flow
"$tgrad" generate "${flow[@]}" --backend cuda -o flow >out 2>err &
pid=$!
sleep 0.3
kill -INT $pid 2>/dev/null
wait $pid 2>/dev/null
run 0 "${flow[@]}" --backend cuda -o flow
rm -f flow/.tgrad-*.tmp
same_folder flow-gpu flow

# ---- what is made on the host alone ----

for equation in burgers darcy em; do
    run 2 "$equation" --backend cuda -o x
    says err 'works in host memory: --backend is ref or cpu, not cuda'
done
run 2 navier --backend cuda -o x
[ ! -e x ] || complain "a refused call made a folder"

[ "$failures" -eq 0 ]
