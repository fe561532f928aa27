#!/usr/bin/env bash
# Values of a device over NCCL, on a device and an NCCL that are none: the bits of what goes through
# the host, what is refused, and how it ends when a rank does not come.
#
#   tests/dist/test_mpi_nccl.sh build/bin/tgrad <source tree> <build tree>
tree=$(realpath "$2") build=$(realpath "$3")
fake=$build/bin/tgrad_fake
# shellcheck source=../support/checks.sh
source "$tree/tests/support/checks.sh"
# shellcheck source=../support/mpi.sh
source "$tree/tests/support/mpi.sh"
[ -x "$fake" ] || { echo "skipped: there is no tgrad_fake"; exit 77; }
export TGRAD_NCCL=$build/lib/libfake_nccl.so

# The last batch of an epoch has one sample, and rank 1 none of it.
"$tgrad" generate burgers --n-train 17 --n-test 4 -r 32 -o data --seed 1 >/dev/null 2>&1 ||
    { complain "no data"; exit 1; }
cat >config.yaml <<Y
fno: {n_modes: [16], hidden_channels: 8, n_layers: 2}
opt: {name: tensorgrad, n_epochs: 4, learning_rate: 0.005, update_proj_gap: 5, min_entries: 100}
data: {root: data, set: burgers, train_resolution: 32, test_resolutions: [32], batch_size: 8}
Y
command=("$fake" train config.yaml --threads 1 --backend cuda)
# train <ranks> <run> [options ..]
train() {
    local ranks=$1 run=$2
    shift 2
    with_ranks "$ranks" "${command[@]}" --run "$run" "$@" >"$run.out" 2>&1 || complain "$run: $(tail -3 "$run.out")"
}
over() { grep -q "^$2 over $3: " "$1.out" || complain "$1, over what: $(grep over "$1.out")"; }

# same_losses <run> <run>: up to rounding.
same_losses() {
    jq -s -e '[.[0:4], .[4:8]] | map(map(.train.loss)) | transpose | length == 4 and
        all((.[0] - .[1] | fabs) <= 1e-6 * .[0])' "$1/metrics.jsonl" "$2/metrics.jsonl" >/dev/null ||
        complain "$1 and $2: $(cut -c1-80 "$1/metrics.jsonl" "$2/metrics.jsonl")"
}

# Two ranks with a device each: NCCL unless told otherwise, and the same bits.
train 2 nccl
over nccl '2 ranks' '.*MPI.*, on GPUs NCCL 2.14.7'
train 2 staged --distributed.backend mpi
over staged '2 ranks' '[^,]*'
same_arrays nccl staged
shards=(--distributed.shard_state true)
overlap=(--distributed.overlap true)
train 2 nccl_sharded --distributed.backend nccl "${shards[@]}"
same_arrays nccl_sharded nccl
train 2 overlap "${overlap[@]}"
same_arrays overlap nccl
train 2 overlap_sharded "${overlap[@]}" "${shards[@]}"
same_arrays overlap_sharded nccl

# Ranks that share each sample: in one group the bits of what goes through the host, in two, where MPI adds in another
# order, the losses.
for how in '2 2' '3 3' '4 2'; do
    read -r ranks split <<<"$how"
    for options in '' '--opt.name adam --distributed.overlap true'; do
        read -ra words <<<"$options"
        train "$ranks" "split$ranks" --force --distributed.split "$split" --distributed.backend nccl "${words[@]}"
        over "split$ranks" "$ranks ranks" '.*MPI.*, on GPUs NCCL 2.14.7'
        train "$ranks" "host$ranks" --force --distributed.split "$split" --distributed.backend mpi "${words[@]}"
        "same_$([ "$ranks" = "$split" ] && echo arrays || echo losses)" "split$ranks" "host$ranks"
    done
done

# One process: everything goes the way of several.
"${command[@]}" --run alone >alone.out 2>&1 || complain "one process: $(tail -3 alone.out)"
"${command[@]}" --run one --distributed.backend nccl >one.out 2>&1 || complain "NCCL with one rank: $(tail -3 one.out)"
over one '1 rank' 'NCCL 2.14.7'
same_losses alone one
"$fake" plan config.yaml --backend cuda --threads 1 --distributed.backend nccl --json 2>/dev/null |
    jq -e --slurpfile run <(tail -1 one/metrics.jsonl) '[.moments[].communication] | max == $run[0].memory.communication' \
        >/dev/null || complain "its plan: $(tail -1 one/metrics.jsonl)"
"$fake" bench comm --backend cuda --transport nccl --steps 1 --json 2>bench.err |
    jq -e '.ranks == 1 and .transport == "NCCL 2.14.7" and (.operations | length) == 30' >/dev/null ||
    complain "bench comm: $(cat bench.err)"
with_ranks 2 "$fake" info --backend cuda -t1 >info.out 2>&1
grep -q 'by mpirun, over .*, on GPUs NCCL' info.out || complain "info does not tell: $(cat info.out)"

# Ranks that share a device, no NCCL, no device: through the host unless NCCL is asked for.
refused() {
    local sentence=$1
    shift
    "$@" --run refused --distributed.backend nccl >refused.out 2>&1
    [ $? -eq 1 ] || complain "'$sentence': not exit code 1: $(cat refused.out)"
    [ "$(grep -c "^tgrad: $sentence" refused.out)" -eq 1 ] || complain "not once '$sentence': $(cat refused.out)"
}
TGRAD_DEVICE=0 refused 'NCCL: ranks 0 and 1 share a GPU' with_ranks 2 "${command[@]}"
TGRAD_NCCL=/nowhere/libnccl.so.2 refused '.*NCCL: TGRAD_NCCL: /nowhere/libnccl.so.2: .*install libnccl2' "${command[@]}"
refused 'NCCL: rank 0 computes on the host' with_ranks 2 "$tgrad" train config.yaml --threads 1 --backend cpu
TGRAD_DEVICE=0 with_ranks 2 "$fake" info --backend cuda -t1 >info.out 2>&1
grep -q 'by mpirun, over [^,]*$' info.out ||
    complain "a device for two: not through the host"
TGRAD_NCCL=/nowhere/libnccl.so.2 train 2 without
grep -q 'NCCL: .*; values of GPUs go through the host' without.out || complain "no NCCL is not told: $(cat without.out)"
same_arrays without staged

# A rank that misses the meeting or an operation, and an asynchronous error.
faulty() {
    local fault=$1 timeout=$2 sentence=$3
    rm -rf faulty
    timeout 300 mpirun "${mpi_options[@]}" -n 1 "${command[@]}" --run faulty --distributed.backend nccl \
        --distributed.timeout "$timeout" "${@:4}" : -n 1 -x FAKE_NCCL="$fault" "${command[@]}" --run faulty \
        --distributed.backend nccl --distributed.timeout "$timeout" "${@:4}" >faulty.out 2>&1
    case $? in
    0 | 124) complain "$fault: $(tail -3 faulty.out)" ;;
    esac
    grep -q "$sentence" faulty.out || complain "$fault is not told: $(grep tgrad faulty.out)"
}
late='was not finished within 1 s (distributed.timeout): another rank is late or has died'
faulty silent 1 "rank [01] of 2: .* $late"
faulty hang 1 "rank [01] of 2: .* $late"
faulty hang 1 "rank [01] of 2: .* $late" "${overlap[@]}"
faulty hang 1 "rank [01] of 2: .* $late" --distributed.split 2
faulty error 60 'rank 1 of 2: NCCL: remote process exited: a fault of the test'
faulty error 60 'rank 1 of 2: NCCL: remote process exited: a fault of the test' --distributed.split 2

[ $failures -eq 0 ]
