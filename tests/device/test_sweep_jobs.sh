#!/usr/bin/env bash
# Trials of a sweep that share a GPU: as many as it has memory for, whatever is asked for; and two at
# a time come to what one after the other does.
#
#   tests/device/test_sweep_jobs.sh build/bin/tgrad_fake
support=$(realpath "$(dirname "$0")")/../support
# shellcheck source=../support/checks.sh
. "$support/checks.sh"

cat >sweep.yaml <<'Y'
generate: {equation: darcy, n_train: 8, n_test: 2, resolution: 8, grid: 31}
settings:
  fno: {n_modes: [4, 4], hidden_channels: 8, n_layers: 1}
  opt: {name: adam, n_epochs: 1}
  data: {set: darcy, train_resolution: 8, test_resolutions: [8], batch_size: 8}
seeds: [0, 1]
scales:
  many: {seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]}
Y
# 16 GiB, of which every process takes at least 3/4 GiB
expect 0 sweep sweep.yaml --out dry --scale many --dry-run --json --backend cuda --jobs 25
grep -qE '"jobs": ?21,' out || complain "$last: $(grep -oE '"jobs": ?[0-9]+' out) at a time"
expect 0 sweep sweep.yaml --out dry --scale many --dry-run --json --backend cuda --jobs 25 --gpus 0,1
grep -qE '"jobs": ?25,' out || complain "$last: $(grep -oE '"jobs": ?[0-9]+' out) at a time on two GPUs"

for jobs in 1 8; do # which is no faster, as far as can be told
    expect 0 sweep sweep.yaml --out dry --scale many --dry-run --json --backend cuda --jobs $jobs
    grep -oE '"seconds": ?[0-9.e+-]+' out | head -1 >time$jobs
done
grep -q '[1-9]' time1 || complain "$last: no time"
cmp -s time1 time8 || complain "one GPU is $(cat time1) for one at a time, $(cat time8) for eight"

for jobs in 1 2; do
    expect 0 sweep sweep.yaml --out d$jobs --backend cuda --jobs $jobs
    sed -E 's/.*"name":"([^"]*)".*"test":(.*),"memory".*/\1 \2/' d$jobs/results.jsonl >errors$jobs
done
grep -q '"l2":' errors1 || complain "no errors of a run"
cmp -s errors1 errors2 || complain "two at a time come to other errors"

[ $failures -eq 0 ]
