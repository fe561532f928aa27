#!/usr/bin/env bash
# Little address space (ulimit -v): a command succeeds or ends with a message, and always by itself.
# It neither hangs nor is ended by a signal.
# shellcheck source=../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"
if [ "$(sed -n 's/^TG_SANITIZE:BOOL=//p' "$3/CMakeCache.txt")" = ON ]; then
    echo "skipped: a sanitizer needs terabytes of address space"
    exit 77
fi

if [ "$(sed -n 's/^TG_CUDA:BOOL=//p' "$3/CMakeCache.txt")" = ON ]; then
    echo "skipped: the libraries of CUDA need gigabytes of address space"
    exit 77
fi

mkdir data
"$tgrad" generate darcy --n-train 4 --n-test 2 --resolution 8 --grid 16 -o data >/dev/null 2>err || complain generate
expect 0 convert data/darcy_train_8.h5 gzip.h5 --gzip 4
cat >config.yaml <<'Y'
fno: {n_modes: [4, 4], hidden_channels: 4, n_layers: 1}
opt: {name: tensorgrad, n_epochs: 1, learning_rate: 0.01}
data: {root: data, set: darcy, train_resolution: 8, test_resolutions: [8], batch_size: 4}
Y
expect 0 train config.yaml --run model --quiet

# limited <MiB> <arguments ..>
successes=0
limited() {
    local code
    last="$2 with $1 MiB"
    # shellcheck disable=SC3045 # bash has it
    (ulimit -v $(($1 << 10)) && exec timeout -k 5 300 "$tgrad" "${@:2}" >out 2>err </dev/null)
    code=$?
    case $code in
    0) successes=$((successes + 1)) ;;
    1) [ -s err ] || complain "$last: failed without a word" ;;
    127) grep -q 'shared libraries' err || complain "$last: exit code 127" ;; # the system's loader
    124 | 137) complain "$last: hangs" ;;
    *) complain "$last: exit code $code" ;;
    esac
}
for size in 60 75 80 85 90 100 120 150 180 240 400; do
    limited $size --version
    limited $size inspect gzip.h5
    limited $size eval model --data data/darcy_test_8.h5
    rm -rf run made
    limited $size train config.yaml --run run --quiet
    limited $size generate burgers --n-train 2 --n-test 1 --resolution 16 -o made
done
[ $successes -gt 10 ] || complain "only $successes commands succeed"

# OpenBLAS has no threads of its own, whatever the environment says.
rm -rf run
for wish in "" 1 4; do
    OPENBLAS_NUM_THREADS=$wish "$tgrad" train config.yaml --run "run$wish" --quiet --threads 1 \
        --opt.n_epochs 200000 >out 2>err &
    waits_for $! test -s "run$wish/metrics.jsonl"
    threads=$(find "/proc/$!/task" -mindepth 1 -maxdepth 1 | wc -l)
    kill $!
    wait $!
    code=$?
    [ $code -eq 143 ] || complain "train ends with $code after SIGTERM"
    [ "$threads" -le 2 ] || complain "$threads threads with OPENBLAS_NUM_THREADS='$wish'" # one feeds
done
[ $failures -eq 0 ]
