#!/usr/bin/env bash
# Accuracy on the small Darcy set: five methods, three seeds each, 50 epochs (configs/darcy16.yaml).
# Prints a table of mean ± standard error in Markdown. Two runs at a time, one thread each.
#
#   bench/darcy16.sh DATA OUT [TGRAD]     DATA holds darcy_train_16.h5, darcy_test_16.h5, darcy_test_32.h5
set -eu
data=$1 out=$2
tgrad=${3:-build/bin/tgrad}
config=$(dirname "$0")/../configs/darcy16.yaml
mkdir -p "$out"

run() { # run METHOD SEED
    local extra=()
    [ "$1" = structured ] && extra=(--opt.sparse_type randk)
    [ -e "$out/$1-$2/samples.safetensors" ] && return
    "$tgrad" train "$config" --run "$out/$1-$2" --data.root "$data" --opt.name "$1" \
        --distributed.seed "$2" --opt.eval_interval 50 --opt.save_every 10 --threads 1 --resume auto \
        "${extra[@]}" -q
}
export -f run
export out tgrad config data

for method in adam lowrank galore structured tensorgrad; do
    for seed in 0 1 2; do
        echo "$method $seed"
    done
done | xargs -P 2 -L 1 bash -c 'run "$0" "$1"'

echo '| method | train H1 | test L2 16 | test H1 16 | test L2 32 | test H1 32 | optimizer memory |'
echo '|---|---|---|---|---|---|---|'
for method in adam lowrank galore structured tensorgrad; do
    for seed in 0 1 2; do
        tail -1 "$out/$method-$seed/metrics.jsonl"
    done | sed -E 's/.*"train":\{"loss":([^}]*)\}.*"16":\{"l2":([^,]*),"h1":([^}]*)\}.*"32":\{"l2":([^,]*),"h1":([^}]*)\}.*"optimizer":([0-9]+),"factors":([0-9]+),"indices":([0-9]+).*/\1 \2 \3 \4 \5 \6 \7 \8/' |
        awk -v name=$method '
            { for (i = 1; i <= 5; i++) { s[i] += $i; q[i] += $i * $i }; bytes = $6 + $7 + $8; n++ }
            END {
                printf "| %s", name
                for (i = 1; i <= 5; i++) {
                    mean = s[i] / n; v = (q[i] - n * mean * mean) / (n - 1)
                    printf " | %.4f ± %.4f", mean, sqrt((v > 0 ? v : 0) / n)
                }
                printf " | %.2f MB |\n", bytes / 1e6
            }'
done
