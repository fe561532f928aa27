#!/usr/bin/env bash
# The learning rates of the demonstration: the same three values for each of its methods, two seeds, on
# data of another seed than the demonstration's, so that its test samples choose nothing. Prints the
# test L2 at 32x32 (mean of the seeds) as a Markdown table, the lowest of each row in bold.
#
#   bench/demo_rates.sh OUT [TGRAD]     BACKEND=cuda on a GPU; JOBS runs at a time (default 1)
set -eu
out=$1
tgrad=$(realpath "${2:-build/bin/tgrad}")
mkdir -p "$out"
out=$(realpath "$out")
cd "$(dirname "$0")/.."
rates='4e-3 8e-3 16e-3'
backend=${BACKEND:-cpu}

"$tgrad" generate darcy --n-train 200 --n-test 50 --resolution 32 --test-resolution 32,64 --grid 190 \
    --seed 2 -o "$out/data" >/dev/null

run() { # run METHOD RATE SEED
    local bits=full
    [ "$1" = tensorgrad-8bit ] && bits=8bit
    "$tgrad" train configs/demo.yaml --run "$out/$1-$2-$3" --data.root "$out/data" --backend "$backend" \
        --opt.name "${1%-8bit}" --opt.state_precision $bits --opt.learning_rate "$2" \
        --distributed.seed "$3" --resume auto -q >/dev/null
}
export -f run
export out tgrad backend

for method in adam tensorgrad tensorgrad-8bit; do
    for rate in $rates; do
        printf '%s\n' "$method $rate 0" "$method $rate 1"
    done
done | xargs -P "${JOBS:-1}" -L 1 bash -c 'run "$0" "$1" "$2"'

echo "| method | ${rates// / | } |"
echo '|---|---|---|---|'
for method in adam tensorgrad tensorgrad-8bit; do
    for rate in $rates; do
        tail -qn 1 "$out/$method-$rate"-[01]/metrics.jsonl |
            sed -E 's/.*"32":\{"l2":([^,]*),.*/\1/' | awk '{ s += $1 } END { printf "%.4f ", s / NR }'
    done | awk -v name=$method '{
        best = 1
        for (i = 2; i <= NF; i++) if ($i < $best) best = i
        printf "| %s", name
        for (i = 1; i <= NF; i++) printf i == best ? " | **%s**" : " | %s", $i
        print " |" }'
done
