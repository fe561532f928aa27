#!/usr/bin/env bash
# Generators on several processes: the files of one, byte for byte, made and extended; what they do
# not share is refused, once.
#
#   tests/dist/test_mpi_generate.sh build/bin/tgrad <source tree> <build tree>
source_tree=$(realpath "$2")
# shellcheck source=../support/checks.sh
source "$source_tree/tests/support/checks.sh"
# shellcheck source=../support/mpi.sh
source "$source_tree/tests/support/mpi.sh"

make=("$tgrad" generate burgers --n-test 2 -r 32 --test-resolution 32,64 --seed 1)
"${make[@]}" --n-train 7 --threads 1 -o one >one.out 2>&1 || complain "one process: $(cat one.out)"
with_ranks 3 "${make[@]}" --n-train 4 --threads 1 -o three >three.out 2>&1 || complain "three: $(cat three.out)"
with_ranks 2 "${make[@]}" --n-train 7 --threads 2 -o three >more.out 2>&1 || complain "extended: $(cat more.out)"
for file in one/*; do
    cmp -s "$file" "three/${file#one/}" || complain "$file: other bytes from several processes"
done
[ "$(find one -type f | wc -l)" -eq 3 ] && [ "$(find three -type f | wc -l)" -eq 3 ] || complain "files: $(ls one three)"
[ "$(grep -c '^wrote three/burgers_train_32.h5: 4 samples' three.out)" -eq 1 ] || complain "told: $(cat three.out)"

# Trajectories too: they have no y to send.
flows=("$tgrad" generate ns --frames 3 --time 0.2 --n-train 3 --n-test 0 -r 8 --grid 16 --threads 1)
"${flows[@]}" -o one >one.out 2>&1 || complain "trajectories of one process: $(cat one.out)"
with_ranks 2 "${flows[@]}" -o three >three.out 2>&1 || complain "trajectories of two: $(cat three.out)"
cmp -s one/ns_train_8.h5 three/ns_train_8.h5 || complain "trajectories: other bytes from two processes"

# refused <exit code> <sentence> <arguments ..>
refused() {
    with_ranks 2 "$tgrad" generate "${@:3}" --threads 1 -o three >refused.out 2>&1
    [ $? -eq "$1" ] || complain "'$2': not exit code $1: $(cat refused.out)"
    [ "$(grep -c "$2" refused.out)" -eq 1 ] || complain "not once '$2': $(cat refused.out)"
}
refused 1 'kolmogorov: the frames of a flow in time are computed in sequence; start one process' kolmogorov
refused 1 'burgers_train_32.h5' burgers --n-train 7 --n-test 2 -r 32 --seed 2

[ $failures -eq 0 ]
