#!/usr/bin/env bash
# Numbers and options of commands against what they stand for: seeds, what --json reports of a training,
# of a plan and of generated files, predictions in the units of the data.
#
#   tests/cli/test_commands.sh build/bin/tgrad <source tree> <build tree>
# shellcheck source=../support/checks.sh
source "$(realpath "$2")/tests/support/checks.sh"

# value <key>: the first JSON value of that key in `out`.
value() {
    grep -m1 "\"$1\":" out | sed 's/^[^:]*: *//; s/,$//; s/"//g'
}

# equal <what> <found> <expected>
equal() {
    [ "$2" = "$3" ] || complain "$last: $1 is '$2', expected '$3'"
}

# near <what> <found> <expected>: to six digits.
near() {
    awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; d = d < 0 ? -d : d; s = b < 0 ? -b : b
        exit !(a != "" && b != "" && d <= 1e-6 * s) }' || complain "$last: $1 is '$2', expected '$3'"
}

same() { # same <file> <file>
    cmp -s "$1" "$2" || complain "$last: $1 and $2 differ"
}

# ---- generate ----

darcy=(generate darcy --n-train 12 --n-test 5 --resolution 12 --test-resolution 12,24 --grid 24)
expect 0 "${darcy[@]}" --seed 11 --json -o data
equal equation "$(value equation)" darcy
equal made "$(value made)" 12
equal samples "$(value samples)" 12
equal bytes "$(value bytes)" "$(stat -c %s data/darcy_train_12.h5)"
equal 'files' "$(grep -c '"made": 5' out)" 2
expect 0 "${darcy[@]}" --seed 11 --json -o data
equal made "$(value made)" 0
expect 0 "${darcy[@]}" --seed 11 --json -o again
expect 0 "${darcy[@]}" --seed 12 --json -o other
same data/darcy_train_12.h5 again/darcy_train_12.h5
for folder in data other; do # the values alone: seeds are in the attributes, too
    expect 0 convert $folder/darcy_train_12.h5 --dataset y $folder.npy
done
! cmp -s data.npy other.npy || complain "generate: two seeds give one set"

# ---- train ----

cat >config.yaml <<'Y'
fno: {n_modes: [4, 4], hidden_channels: 4, n_layers: 2}
opt: {name: adam, n_epochs: 3, learning_rate: 0.01, accumulation_steps: 2}
data: {root: data, set: darcy, train_resolution: 12, test_resolutions: [12, 24], batch_size: 4}
distributed: {seed: 21}
Y
train() { # train DIR [options ..]
    expect 0 train config.yaml --run "$1" --threads 1 --json "${@:2}"
}
train plain
metrics=$(tail -1 plain/metrics.jsonl)
# metric <pattern with one group>: of the last line of metrics.jsonl.
metric() {
    sed -E "s/.*$1.*/\\1/" <<<"$metrics"
}
equal finished "$(value finished)" true
equal epoch "$(value epoch)" 3
equal step "$(value step)" 6
equal checkpoint "$(value checkpoint)" "plain/checkpoints/step-0000000006.safetensors"
near train_loss "$(value train_loss)" "$(metric '"train":\{"loss":([^}]*)\}')"
near l2 "$(value l2)" "$(metric '"12":\{"l2":([^,]*),')"
near h1 "$(value h1)" "$(metric '"12":\{"l2":[^,]*,"h1":([^,}]*)')"
sed -n '/"24"/,$p' out >rest && mv rest out
near 'l2 at 24' "$(value l2)" "$(metric '"24":\{"l2":([^,]*),')"

# weights <run>: those of the last checkpoint, in numbers.
weights() {
    "$tgrad" convert "$1/checkpoints/step-0000000006.safetensors" "$1.npy" \
        --dataset fno_blocks.convs.1.weight.tensor >/dev/null 2>err || complain "weights of $1"
}
train seeded --seed 23
train other --seed 13 # whose last digit is the same
train by_key --distributed.seed 23
train zero --seed 0
train zero_by_key --distributed.seed 0
for run in plain seeded other by_key zero zero_by_key; do weights $run; done
same seeded.npy by_key.npy
same zero.npy zero_by_key.npy
! cmp -s seeded.npy other.npy || complain "train: --seed 23 and --seed 13 give the same weights"
! cmp -s seeded.npy plain.npy || complain "train: --seed changes nothing"
grep -q 'seed: 23' seeded/config.yaml || complain "train: config.yaml tells another seed"

# From a checkpoint that is named, in a folder of its own: the same end.
train kept --opt.keep_checkpoints 3
train from --resume kept/checkpoints/step-0000000002.safetensors
equal epoch "$(value epoch)" 3
weights from
same from.npy plain.npy
equal 'epochs after the resume' "$(cut -c 1-11 from/metrics.jsonl | paste -sd ' ')" '{"epoch":2, {"epoch":3,'
train done --opt.n_epochs 1
train done --resume auto
equal 'epochs in all' "$(wc -l <done/metrics.jsonl)" 3

# ---- plan ----

expect 0 plan config.yaml --threads 1 --json
equal batch "$(value batch)" 4
peak=$(value peak)
equal 'highest of all moments' \
    "$(sed -n '/"moments"/,$s/.*"peak": \([0-9]*\).*/\1/p' out | sort -n | tail -1)" "$peak"
# lifting 3-8-4, two blocks of 4x4 channels with 4x3 complex modes, projection 4-8-1
block=$((2 * 4 * 4 * 4 * 3 + 4 + 4 * 4 + 4 * 2 + 2 + 2 * 4 + 4 + 4))
equal parameters "$(value parameters)" $((3 * 8 + 8 + 8 * 4 + 4 + 2 * block + 4 * 8 + 8 + 8 + 1))
# The ledger counts names and handles as well.
counted=$(metric '"memory":\{"peak":([0-9]+)')
for category in weights gradients activations; do # of all moments
    equal "most of $category" "$(sed -n "s/.*\"$category\": \([0-9]*\).*/\1/p" out | sort -n | tail -1)" \
        "$(metric "\"$category\":([0-9]+)")"
done
[ "$peak" -le "$counted" ] && [ "$counted" -lt $((peak + 1000000)) ] ||
    complain "plan tells $peak bytes, the run counted $counted"

echo "$failures failures"
[ "$failures" -eq 0 ]
