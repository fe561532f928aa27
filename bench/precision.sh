#!/usr/bin/env bash
# Accuracy of TensorGRaD when weights, activations and moments are stored in less than f32: the small
# Darcy set (50 epochs), Navier-Stokes at 64x64 (generated, 20 epochs), three seeds each; and, if asked
# for, Navier-Stokes at 128x128 (generated, 40 epochs), the only one where formats differ.
# Modes adam and adam-8bit are dense Adam, for comparison. Prints a table of mean ± standard error in
# Markdown for each set. Existing runs are kept, so that it can be called in parts.
#
#   bench/precision.sh DATA OUT [TGRAD [JOBS]]     DATA holds darcy_{train_16,test_16,test_32}.h5
#   SETS=ns64 MODES="full 8bit" bench/precision.sh ..   only these
#   BACKEND=cuda SETS=ns128 MODES="full mixed mixed-moments" bench/precision.sh - OUT build-cuda/bin/tgrad 3
#                                       SEEDS="0" for one, EPOCHS=20 for fewer
set -eu
data=$1 out=$2
tgrad=${3:-build/bin/tgrad}
jobs=${4:-2}
configs=$(dirname "$0")/../configs
modes=${MODES:-full mixed-bf16 mixed-f16 half-states 8bit mixed-8bit}
sets=${SETS:-darcy16 ns64}
seeds=${SEEDS:-0 1 2}
mkdir -p "$out"

settings() { # settings MODE: method, and what differs from full precision
    local half="--fno.fno_block_precision mixed --fno.activation_precision"
    case $1 in adam*) echo "--opt.name adam" ;; *) echo "--opt.name tensorgrad" ;; esac
    case $1 in
    full | adam) ;;
    adam-8bit) echo "--opt.state_precision 8bit" ;;
    mixed-bf16) echo "$half bf16 --fno.fno_block_weights_precision bf16" ;;
    mixed-f16) echo "$half half --fno.fno_block_weights_precision half" ;;
    half-states) echo "$half bf16 --fno.fno_block_weights_precision bf16 --opt.state_precision half" ;;
    saved-bf16) echo "--fno.saved_precision bf16" ;;
    saved-8bit) echo "--fno.saved_precision 8bit" ;;
    mixed) echo "--fno.precision mixed" ;;
    mixed-moments) echo "--fno.precision mixed --opt.state_precision 8bit" ;;
    8bit) echo "--opt.state_precision 8bit" ;;
    mixed-8bit) echo "$half bf16 --fno.fno_block_weights_precision bf16 --opt.state_precision 8bit" ;;
    esac
}

run() { # run SET MODE SEED
    local folder="$out/$1-$2-$3" common cosine="--opt.scheduler CosineAnnealingLR --opt.scheduler_T_max"
    common="--distributed.seed $3 --threads 1 --resume auto -q"
    [ -e "$folder/samples.safetensors" ] && return
    # shellcheck disable=SC2046,SC2086
    case $1 in
    darcy16)
        "$tgrad" train "$configs/darcy16.yaml" --run "$folder" --data.root "$data" \
            --opt.eval_interval 50 --opt.save_every 10 $(settings "$2") $common
        ;;
    ns64)
        "$tgrad" train "$configs/ns128.yaml" --run "$folder" --data.root "$out/ns64" \
            --data.train_resolution 64 --data.test_resolutions 64 --data.batch_size 16 \
            --fno.n_modes '[32,32]' --fno.hidden_channels 32 --opt.n_epochs 20 $cosine 20 \
            --opt.learning_rate 1e-3 --opt.update_proj_gap 250 --opt.eval_interval 20 \
            --opt.save_every 20 $(settings "$2") $common
        ;;
    ns128)
        "$tgrad" train "$configs/ns128.yaml" --run "$folder" --data.root "$out/ns128" \
            --opt.n_epochs "${EPOCHS:-40}" $cosine "${EPOCHS:-40}" \
            --opt.eval_interval "${EPOCHS:-40}" --opt.save_every "${EPOCHS:-40}" $(settings "$2") $common
        ;;
    esac >"$folder.log" 2>&1 || { echo "$1 $2 $3 failed: $(tail -1 "$folder.log")" >&2; }
}
export -f run settings
export out tgrad configs data

for set in $sets; do
    case $set in
    ns*)
        "$tgrad" generate ns --resolution "${set#ns}" --n-train "${SAMPLES:-4000}" --n-test 400 -o "$out/$set" \
            ${BACKEND:+--backend $BACKEND} >/dev/null
        ;;
    esac
done
for set in $sets; do
    for seed in $seeds; do
        for mode in $modes; do
            echo "$set $mode $seed"
        done
    done
done | xargs -P "$jobs" -L 1 bash -c 'run "$0" "$1" "$2"'

for set in $sets; do
    echo "| $set | train | test L2 | test H1 | weights + optimizer | skipped |"
    echo '|---|---|---|---|---|---|'
    for mode in $modes; do
        for seed in $seeds; do
            tail -1 "$out/$set-$mode-$seed/metrics.jsonl" 2>/dev/null || true
        done | sed -E 's/.*"train":\{"loss":([^}]*)\}.*"test":\{"[0-9]+":\{"l2":([^,]*),"h1":([^}]*)\}.*"skipped":([0-9]+).*"weights":([0-9]+).*"optimizer":([0-9]+).*/\1 \2 \3 \4 \5 \6/' |
            awk -v name="$mode" '
                { for (i = 1; i <= 3; i++) { s[i] += $i; q[i] += $i * $i }; skipped += $4; bytes = $5 + $6; n++ }
                END {
                    if (n == 0) { print "| " name " | failed |"; exit }
                    printf "| %s", name
                    for (i = 1; i <= 3; i++) {
                        mean = s[i] / n; v = n > 1 ? (q[i] - n * mean * mean) / (n - 1) : 0
                        printf " | %.5f ± %.5f", mean, sqrt((v > 0 ? v : 0) / n)
                    }
                    printf " | %.2f MB | %d |\n", bytes / 1e6, skipped
                }'
    done
    echo
done
