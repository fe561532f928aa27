#!/usr/bin/env bash
# Processes with torchrun's variables and without MPI: they meet over TCP, train over an NCCL that is
# none, and are refused where values cannot travel. Strangers at the door are turned away; a rank that
# does not come, or dies, is told.
#
#   tests/dist/test_torchrun.sh build/bin/tgrad <source tree> <build tree>
tree=$(realpath "$2") build=$(realpath "$3")
# shellcheck source=../support/checks.sh
source "$tree/tests/support/checks.sh"
fake=$build/bin/tgrad_fake
[ -x "$fake" ] || { echo "skipped: there is no tgrad_fake"; exit 77; }
export TGRAD_NCCL=$build/lib/libfake_nccl.so MASTER_ADDR=localhost TORCHELASTIC_RUN_ID=job
ulimit -c 0

# rank <number> <ranks> <command ..>
rank() { RANK=$1 WORLD_SIZE=$2 LOCAL_RANK=$1 LOCAL_WORLD_SIZE=$2 "${@:3}"; }
# ranks <number> <command ..>: all of them, at a port that nobody has; output in out.<rank>, codes in `codes`.
ranks() {
    local count=$1 try r pids
    shift
    for try in 1 2 3 4 5; do
        export MASTER_PORT=$((10000 + RANDOM % 20000))
        pids=() codes=()
        for ((r = 0; r < count; r++)); do
            rank $r "$count" timeout 60 "$@" >out.$r 2>&1 &
            pids+=($!)
        done
        if wait "${pids[0]}"; then codes=(0); else codes=($?); fi
        grep -q 'one above MASTER_PORT, where ranks meet: Address already in use' out.0 || break
        kill "${pids[@]:1}" 2>/dev/null
        wait "${pids[@]:1}"
    done
    for r in "${pids[@]:1}"; do
        if wait "$r"; then codes+=(0); else codes+=($?); fi
    done
}
all_end() { [[ "${codes[*]}" =~ ^($1 ?)+$ ]] || complain "$2: exit codes ${codes[*]}: $(tail -qn 3 out.*)"; }

# Every operation of a communicator.
ranks 3 "$build/bin/test_comm" --world
all_end 0 "operations"
[ "$(cat out.0 out.1 out.2 | grep -c ': 0 errors')" -eq 3 ] || complain "operations: $(cat out.*)"
ranks 2 "$tgrad" info --threads 1
grep -q '^ranks *2 by torchrun, over TCP$' out.0 || complain "info does not tell: $(cat out.0)"
ranks 2 env -u TORCHELASTIC_RUN_ID bash -c "SLURM_PROCID=\$RANK SLURM_STEP_NUM_TASKS=2 exec \"$tgrad\" info --threads 1"
grep -q '^ranks *2 by srun, over TCP$' out.0 || complain "srun --mpi=none: $(cat out.0)"

# Training: that of one process.
"$tgrad" generate burgers --n-train 14 --n-test 4 -r 32 -o data --seed 1 >/dev/null 2>&1 || complain "no data"
cat >config.yaml <<Y
fno: {n_modes: [16], hidden_channels: 8, n_layers: 2}
opt: {name: tensorgrad, n_epochs: 3, learning_rate: 0.005, update_proj_gap: 5, min_entries: 100}
data: {root: data, set: burgers, train_resolution: 32, test_resolutions: [32], batch_size: 8}
Y
train=(train config.yaml --threads 1)
"$fake" "${train[@]}" --backend cuda --run alone >alone.out 2>&1 || complain "one process: $(tail -3 alone.out)"
ranks 2 "$fake" "${train[@]}" --backend cuda --run two
all_end 0 "two ranks"
grep -q '^2 ranks over TCP, on GPUs NCCL 2.14.7: ' out.0 || complain "over what: $(tail -3 out.0)"
[ ! -s out.1 ] || complain "rank 1 speaks: $(cat out.1)"
jq -s -e '[.[0:3], .[3:6]] | map(map(.train.loss)) | transpose | all((.[0] - .[1] | fabs) <= 1e-5 * .[0])' \
    alone/metrics.jsonl two/metrics.jsonl >/dev/null || complain "losses: $(cut -c1-80 alone/metrics.jsonl two/metrics.jsonl)"

# Without GPUs, or with MPI wished for: told once, by rank 0.
refused() {
    local sentence=$1
    shift
    rm -rf refused
    ranks 2 "$@" --run refused
    all_end 1 "$sentence"
    [ "$(cat out.0 out.1 | grep -c "^tgrad: $sentence")" -eq 1 ] || complain "not once '$sentence': $(cat out.0 out.1)"
    [ ! -e refused ] || complain "$sentence: a folder was made"
}
refused '2 processes by torchrun: without MPI values travel over NCCL' "$tgrad" "${train[@]}" --backend cpu
refused '2 processes by torchrun: without MPI values travel over NCCL' "$fake" "${train[@]}" --backend cuda --distributed.backend mpi
refused 'NCCL: rank 0 computes on the host' "$tgrad" "${train[@]}" --backend cpu --distributed.backend nccl
MASTER_PORT=x rank 0 2 "$tgrad" info >nowhere.out 2>&1
[ $? -eq 1 ] && grep -q "MASTER_PORT 'x' do not say where rank 0 is" nowhere.out || complain "no port: $(cat nowhere.out)"

# Who says no hello, that of another job or number, or none at all, is turned away; the rank is taken in.
export MASTER_PORT=$((10000 + RANDOM % 20000))
rank 0 2 timeout 60 "$tgrad" info --threads 1 >out.0 2>&1 &
first=$!
for ((i = 0; i < 100; i++)); do
    { printf 'GET / HTTP/1.0\r\n%0200d' 0 >"/dev/tcp/127.0.0.1/$((MASTER_PORT + 1))"; } 2>/dev/null && break
    kill -0 $first 2>/dev/null || break
    sleep 0.05
done
if kill -0 $first 2>/dev/null; then
    { : >"/dev/tcp/127.0.0.1/$((MASTER_PORT + 1))"; } 2>/dev/null
    TORCHELASTIC_RUN_ID=other rank 1 2 timeout 0.3 "$tgrad" info >stranger.out 2>&1 && complain "another job was taken in"
    rank 1 3 timeout 0.3 "$tgrad" info >stranger.out 2>&1 && complain "a rank of three was taken in"
    rank 1 2 timeout 60 "$tgrad" info --threads 1 >out.1 2>&1 || complain "rank 1 was not taken in: $(cat out.1)"
    wait $first || complain "rank 0 with strangers: $(cat out.0)"
else
    grep -q 'Address already in use' out.0 || complain "rank 0 ended: $(cat out.0)"
fi

# A rank that does not come; both sides tell it.
late='meeting over TCP was not finished within 0.5 s (distributed.timeout)'
for r in 0 1; do
    rank $r 2 timeout 60 "$fake" "${train[@]}" --backend cuda --run missing --distributed.timeout 0.5 >missing.out 2>&1
    [ $? -eq 1 ] || complain "rank $r alone: not exit code 1: $(cat missing.out)"
    grep -q "rank $r of 2: $late: rank $((1 - r)) \|Address already in use" missing.out || complain "rank $r alone: $(cat missing.out)"
done

# One that dies ends the other.
ranks 2 bash -c "\"$fake\" ${train[*]} --backend cuda --run dying --opt.n_epochs 100000 --distributed.timeout 3 &
    [ \$RANK -eq 1 ] && { while [ ! -s dying/metrics.jsonl ]; do sleep 0.05; done; kill -9 \$!; }
    wait \$!"
[ "${codes[0]}" -eq 1 ] || complain "a dead rank: exit codes ${codes[*]}: $(tail -qn 3 out.*)"
grep -q 'rank 1 has ended\|was not finished within 3 s' out.0 || complain "a dead rank is not told: $(tail -3 out.0)"

[ $failures -eq 0 ]
