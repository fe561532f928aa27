#!/usr/bin/env bash
# Damaged HDF5 files in every command that reads them: an error or a result, never a crash, never a
# hang. The files have attributes of fixed and of variable length, one run of bytes and compressed
# chunks; tests/hostile/damage.c changes them, run by run in the same way.
#
#   tests/io/test_damaged_hdf5.sh build/bin/tgrad <source tree> <build tree> [runs [seed]]
fixtures=$(realpath "$2")/tests/fixtures
build=$(realpath "$3")
# shellcheck source=../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"
runs=${4:-210} seed=${5:-1}
export OMP_NUM_THREADS=1

# ---- whole files, and a model ----
mkdir -p data made
make_data="generate darcy --n-train 4 --n-test 2 --resolution 8 --grid 16 --threads 1"
# shellcheck disable=SC2086 # words
"$tgrad" $make_data -o data >/dev/null 2>err || complain "generate"
cp data/darcy_test_8.h5 made/
expect 0 convert data/darcy_train_8.h5 gzip.h5 --gzip 4
cat >config.yaml <<'Y'
fno: {n_modes: [4, 4], hidden_channels: 4, n_layers: 1}
opt: {name: adam, n_epochs: 1, learning_rate: 0.01}
data: {root: data, set: darcy, train_resolution: 8, test_resolutions: [8], batch_size: 4}
Y
expect 0 train config.yaml --run model --quiet --threads 1
expect 0 inspect "$fixtures/variable_text.h5"
says out permeability
mkdir broken
cp data/darcy_test_8.h5 broken/
[ $failures -eq 0 ] || exit 1

# ---- the same, damaged ----
samples=(data/darcy_train_8.h5 "$fixtures/variable_text.h5" gzip.h5)
any=("${samples[@]}" "$fixtures/h5py.h5" "$fixtures/hostile.h5")

# attack <command> <path of the damaged file> <whole files> -- <arguments ..>
attack() {
    local name=$1 path=$2 files=()
    shift 2
    while [ "$1" != -- ]; do
        files+=("$1")
        shift
    done
    shift
    # shellcheck disable=SC2016 # for the other shell
    "$build/bin/damage" -s "$seed" -n $(((runs + 6) / 7)) -t 150 -o "$path" -l "$name" -- "${files[@]}" -- \
        /bin/sh -c 'rm -rf run && exec "$0" "$@"' "$tgrad" "$@" || failures=$((failures + 1))
}

attack inspect file.h5 "${any[@]}" -- inspect {}
attack convert file.h5 "${any[@]}" -- convert {} out.safetensors
attack analyze file.h5 "${any[@]}" -- analyze {} --threads 1
attack predict file.h5 "${samples[@]}" -- predict model -i {} -o out.npy --threads 1
attack eval file.h5 "${samples[@]}" -- eval model --data {} --threads 1
# shellcheck disable=SC2086 # words
attack generate made/darcy_train_8.h5 "${samples[@]}" -- $make_data -o made
attack train broken/darcy_train_8.h5 "${samples[@]}" -- train config.yaml --run run --quiet \
    --data.root broken --threads 1

[ -z "$(find . -name 'finding-*' -print -quit)" ] || cp finding-* "$build"
for reader in $(pgrep -x tgrad-h5); do
    [ "$(readlink "/proc/$reader/cwd")" != "$work" ] || complain "reader $reader is left over"
done
[ $failures -eq 0 ]
