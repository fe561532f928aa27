#!/usr/bin/env bash
# Everything about a GPU in one command: builds with CUDA, and in eight minutes at most runs the tests that work
# on one (`ctest -L gpu`), verifies the golden files in f32, times training steps, trains a little, kills and resumes
# the same training, and looks for invalid, racing and uninitialized accesses of kernels (bench/sanitize.sh). Prints a
# table, which names parts that the time was too short for. The exit code is 1 if anything failed or was stopped. Without
# a GPU it says so and ends.
#
#   bench/gpu.sh [OUT]            logs and JSON go to OUT, otherwise to <build>/gpu
#   TGRAD_BUILD=dir bench/gpu.sh  uses that build folder instead of building build-cuda
#   TGRAD_ONLY="golden bench" bench/gpu.sh   only these parts (tests golden bench train sanitize)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "skipped: no GPU here (nvidia-smi lists none)"
    exit 0
fi
build=${TGRAD_BUILD:-build-cuda}
if [ -z "${TGRAD_BUILD:-}" ]; then
    make build-cuda || exit 1
fi
build=$(realpath "$build")
out=${1:-$build/gpu}
mkdir -p "$out" && out=$(realpath "$out") || exit 1
tgrad=$build/bin/tgrad
jobs=$(nproc)
failures=0
table=$out/summary.txt
: >"$table"
if ! "$tgrad" info --backend cuda >"$out/info.txt" 2>&1; then
    cat "$out/info.txt"
    exit 1
fi
grep -E '^(tgrad|build|gpu|math)' "$out/info.txt"

end=$((SECONDS + 480))
wants() { # wants PART
    [ -z "${TGRAD_ONLY:-}" ] || [[ " $TGRAD_ONLY " == *" $1 "* ]] || return 1
    [ $SECONDS -lt $end ] || { note "$1" stopped "not begun: the eight minutes are over" && return 1; }
}

within() { # within SECONDS COMMAND..: stops it after so long, or when the eight minutes are over
    local rest=$((end > SECONDS ? end - SECONDS : 1))
    timeout $((rest < $1 ? rest : $1)) "${@:2}"
}

note() { # note NAME RESULT DETAIL
    printf '%-34s %-8s %s\n' "$1" "$2" "$3" | tee -a "$table"
    case $2 in ok | skipped) ;; *) failures=$((failures + 1)) ;; esac
}

# ---- the tests that work on a GPU; the others are the same on every machine ----
if wants tests; then
    start=$SECONDS
    within 240 ctest --test-dir "$build" -L gpu -j "$jobs" --output-on-failure >"$out/ctest.txt" 2>&1
    code=$?
    detail=$(grep -E 'tests (passed|failed)' "$out/ctest.txt" | tail -1)
    note "ctest" "$([ $code -eq 0 ] && echo ok || echo FAILED)" "${detail:-stopped after 240 s}, $((SECONDS - start)) s"
    sed -n '/The following tests FAILED/,$p' "$out/ctest.txt" | grep -E '^\s+[0-9]+ - '
fi

# ---- golden files ----
verify() { # verify FILE: how it ended, and in its log why
    local name
    name=$(basename "$1" .safetensors)
    timeout 60 "$tgrad" verify "${name%%_*}" "$1" --backend cuda --math fp32 >"$out/golden/$name.txt" 2>&1 &&
        echo good || echo "    $name: $(tail -1 "$out/golden/$name.txt")"
}

if wants golden; then
    mkdir -p "$out/golden"
    export -f verify
    export tgrad out
    printf '%s\n' tests/fixtures/{fno,tfno,gno,gino,optim,tucker}_*.safetensors |
        xargs -P "$jobs" -I{} bash -c 'verify {}' >"$out/golden.txt"
    good=$(grep -c '^good$' "$out/golden.txt") bad=$(grep -c '^ ' "$out/golden.txt")
    grep '^ ' "$out/golden.txt"
    note "golden files, fp32" "$([ "$bad" -eq 0 ] && echo ok || echo FAILED)" "$good verified, $bad not"
fi

# ---- training steps ----
number() { # number FILE KEY: the first number of that name
    sed -nE "s/^ *\"$2\": ([0-9.e+-]+|null),?\$/\\1/p" "$1" | head -1
}

if wants bench; then
    printf '\n%-22s %-5s %9s %9s %9s %9s %11s %11s\n' step math passes optim step refresh device driver |
        tee -a "$table"
    for preset in ns128 ns1024; do
        for method in adam tensorgrad; do
            for math in tf32 fp32; do
                json=$out/step-$preset-$method-$math.json
                if within 60 "$tgrad" bench step --preset $preset --opt $method --backend cuda \
                    --math $math --steps 8 --json >"$json" 2>"$out/bench.txt"; then
                    awk -v name="$preset $method" -v math=$math \
                        -v a="$(number "$json" forward_backward)" -v b="$(number "$json" optimizer)" \
                        -v c="$(number "$json" step)" -v d="$(number "$json" refresh_warm)" \
                        -v e="$(sed -n '/"device": {/,$p' "$json" >"$out/device.txt"; number "$out/device.txt" peak)" \
                        -v f="$(number "$json" device_driver)" 'BEGIN {
                            printf "%-22s %-5s %9.2f %9.2f %9.2f %9s %8.2f GB %8.2f GB\n", name, math, a, b, c,
                                d == "null" || d == "" ? "-" : sprintf("%.2f", d), e / 1e9, f / 1e9 }' | tee -a "$table"
                    grep -q '"as_planned": true' "$json" || note "$preset $method $math" FAILED "memory is not as planned"
                else
                    note "bench $preset $method $math" FAILED "$(tail -1 "$out/bench.txt")"
                fi
            done
        done
    done
    echo | tee -a "$table"
fi

# ---- a short training, and the same one killed and resumed ----
train() { # train DIR OPTIONS..
    within 60 "$tgrad" train configs/darcy16.yaml --run "$out/$1" --data.root "$out/darcy" --backend cuda \
        --opt.n_epochs 20 --opt.scheduler_T_max 20 -q "${@:2}"
}

if wants train; then
    rm -rf "$out/darcy" "$out/run" "$out/killed"
    if "$tgrad" generate darcy --n-train 320 --n-test 50 --resolution 16 --test-resolution 16,32 \
        --grid 97 -o "$out/darcy" >"$out/generate.txt" 2>&1 && train run >"$out/train.txt" 2>&1; then
        line=$(tail -1 "$out/run/metrics.jsonl")
        loss=$(sed -E 's/.*"train":\{"loss":([^}]*)\}.*/\1/' <<<"$line")
        first=$(head -1 "$out/run/metrics.jsonl" | sed -E 's/.*"train":\{"loss":([^}]*)\}.*/\1/')
        ms=$(sed -E 's/.*"step_ms":([^,]*),.*/\1/' <<<"$line")
        note "darcy16, 20 epochs" \
            "$(awk -v a="$first" -v b="$loss" 'BEGIN { print (b < a && b > 0) ? "ok" : "FAILED" }')" \
            "train loss $first -> $loss, $ms ms/step"
        train killed >"$out/killed.txt" 2>&1 &
        until [ "$(wc -l 2>/dev/null <"$out/killed/metrics.jsonl")" -ge 2 ] 2>/dev/null || ! kill -0 $! 2>/dev/null; do
            sleep 0.01
        done
        pkill -9 -f "^$tgrad train .* --run $out/killed "
        wait $! 2>/dev/null
        epochs=$(wc -l <"$out/killed/metrics.jsonl")
        train killed --resume auto >>"$out/killed.txt" 2>&1
        result=FAILED
        if [ "$epochs" -lt 20 ] &&
            cmp -s "$out/run/checkpoints/recent.safetensors" "$out/killed/checkpoints/recent.safetensors"; then
            result=ok
        fi
        note "the same, killed and resumed" $result "after $epochs epochs; the last checkpoints must be the same bytes"
    else
        note "darcy16, 20 epochs" FAILED "$(tail -1 "$out/train.txt" "$out/generate.txt" 2>/dev/null | tail -1)"
    fi
fi

# ---- compute-sanitizer, in the time that is left ----
if wants sanitize; then
    TGRAD_ONLY='' TGRAD_BUILD=$build TGRAD_TOTAL=$((end - SECONDS)) bench/sanitize.sh "$out/sanitize" >"$out/sanitize.txt"
    code=$?
    grep -E ' (FAILED|stopped) ' "$out/sanitize.txt"
    result=$(grep -q '^skipped' "$out/sanitize.txt" && echo skipped || { [ $code -eq 0 ] && echo ok || echo FAILED; })
    note "compute-sanitizer" "$result" "$(tail -1 "$out/sanitize.txt")"
fi

echo
echo "$failures parts failed; $SECONDS s; logs in $out"
[ "$failures" -eq 0 ]
