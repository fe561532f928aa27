#!/usr/bin/env bash
# Looks for invalid, racing and uninitialized accesses of kernels with compute-sanitizer, in every kernel that the
# test programs and golden files launch. These tools are slow, so they get parts of the programs: racecheck the
# smallest part for each kernel, memcheck and initcheck a large one (+), too, and a small training run; initcheck,
# which is quicker, also steps of networks in small formats. Prints a line for each program, and for each tool how
# many kernels it has seen; the exit code is 1 unless all are clean.
#
#   bench/sanitize.sh [OUT]                    logs go to OUT, otherwise to <build>/sanitize
#   bench/sanitize.sh --pick [OUT]             only chooses the parts: runs everything without a tool, which takes
#                                              minutes, records which parts launch which kernels, and writes
#                                              <build>/picks.txt; done by itself if a program is newer than that list
#   TGRAD_BUILD=dir bench/sanitize.sh          uses that build folder instead of build-cuda
#   TGRAD_ONLY="memcheck initcheck" ..         only these tools (memcheck racecheck initcheck)
#   TGRAD_SECONDS=300 ..                       stops a program after this time (default: 100)
#   TGRAD_TOTAL=240 ..                         stops all of them after this time
#   TGRAD_JOBS=4 ..                            programs at a time (default: one per core)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
picking=
[ "${1:-}" != --pick ] || { picking=yes && shift; }
for tool in nvidia-smi compute-sanitizer; do
    if ! command -v $tool >/dev/null; then
        echo "skipped: there is no $tool here"
        exit 0
    fi
done
build=$(realpath "${TGRAD_BUILD:-build-cuda}") || exit 1
out=${1:-$build/sanitize}
mkdir -p "$out" && out=$(realpath "$out") || exit 1
tgrad=$build/bin/tgrad
picks=$build/picks.txt
if [ -z "$picking" ] && { [ ! -s "$picks" ] || [ -n "$(find "$build/bin" -name 'test_*' -newer "$picks")" ]; }; then
    TGRAD_BUILD=$build bench/sanitize.sh --pick "$out"
fi
jobs=${TGRAD_JOBS:-$(nproc)}
limit=${TGRAD_SECONDS:-$([ -n "$picking" ] && echo 900 || echo 100)}
end=$(($(date +%s) + ${TGRAD_TOTAL:-86400}))
export build out limit end picks TEST_ONCE=1 TEST_BACKEND=cuda

programs() { # a name and a command in each line
    local file name step="$tgrad bench step --preset ns128 --fno.n_modes 16,16 --fno.n_layers 2 --batch 2 --steps 1"
    for file in $(grep -rlE --include='test_*.c' 't_(run_rows|gpu_compare)\(' tests); do
        name=$(basename "$file" .c)
        echo "$name $build/bin/$name"
    done
    for file in tests/fixtures/{fno,tfno,gno,gino,optim,tucker}_*.safetensors; do
        name=$(basename "$file" .safetensors)
        echo "verify-$name $tgrad verify ${name%%_*} $file --backend cuda --math fp32"
    done
    echo "step-mixed $step --graphs off --opt tensorgrad --backend cuda --fno.precision mixed" \
        "--opt.state_precision 8bit --fno.activation_checkpoint block"
    echo "step-half $step --graphs off --opt tensorgrad --backend cuda --fno.activation_precision half" \
        "--fno.fno_block_precision half --fno.fno_block_weights_precision half --opt.state_precision half"
    echo "train $tgrad train configs/darcy16.yaml --run $out/TOOL/run --data.root $out/data" \
        "--data.test_resolutions 16 --data.batch_size 2 --opt.n_epochs 2 --opt.update_proj_gap 3 --backend cuda -q"
}

# run TOOL NAME COMMAND..: prints one line, with the first finding or the test at which it was stopped.
run() {
    local tool=$1 name=$2 log=$out/$1/$2.txt start=$SECONDS left=$((end - $(date +%s))) result detail=
    local before=(compute-sanitizer --tool "$tool" --error-exitcode 9)
    shift 2
    [ "$tool" != none ] && export TEST_PICKS=$out/$tool/$name.picks || before=()
    KERNELS=$out/$tool/$name.kernels TEST_PART=$name LD_PRELOAD=$build/lib/libkernels.so \
        timeout $((left < 1 ? 1 : left < limit ? left : limit)) stdbuf -oL "${before[@]}" "$@" >"$log" 2>&1
    case $? in
    0) result=ok ;;
    124) result=stopped detail=" in $(grep -E 'RUN ' "$log" | tail -1 | sed 's/.*\] *//')" ;;
    *) result=FAILED detail=": $(grep -m1 -E '^========= (ERROR|Error|Invalid|Uninit|Race)|FAILED' "$log")" ;;
    esac
    printf '%-10s %-34s %-8s %3d s%s\n' "$tool" "$name" $result $((SECONDS - start)) "$detail"
}
export -f run

# choose ORDER THREADS LAUNCHES: parts of at most LAUNCHES launches that cover every kernel; ORDER is that of sort, and
# a launch counts as THREADS threads
choose() {
    cat "$out"/none/*.kernels |
        awk -F'\t' -v a="$2" -v most="$3" '$3 != "-" && $1 <= most { print $2 + a * $1 "\t" $3 "\t" $4 }' |
        sort -t$'\t' -k1,1"$1" -k2,2 |
        awk -F'\t' '!($3 in seen) && !chosen[$2]++ { print $2 } chosen[$2] { seen[$3] }'
}

launched() { # launched TOOL [all]: the kernels that its programs have launched, or all that they have
    cat "$out/$1"/*.kernels | awk -F'\t' -v all="${2:-}" '$3 != "-" || all { print $4 }' | sort -u
}

tools=${TGRAD_ONLY:-racecheck memcheck initcheck}
[ -z "$picking" ] || tools=none
rm -rf "$out/data"
"$tgrad" generate darcy --n-train 8 --n-test 4 --resolution 16 --grid 32 -o "$out/data" >"$out/data.txt" 2>&1 ||
    { cat "$out/data.txt" && exit 1; }
for tool in $tools; do
    rm -rf "${out:?}/$tool" && mkdir "$out/$tool"
    case $tool in
    none) programs | sed 's/ .*//' ;;
    racecheck) grep -vE '^\+|eigh, large' "$picks" ;; # cuSOLVER's own kernels would take minutes
    memcheck) sed 's/^+//' "$picks" | sort -u && echo train ;;
    initcheck) sed 's/^+//' "$picks" | sort -u && printf '%s\n' step-mixed step-half train ;;
    esac >"$out/$tool/picks"
    programs | while read -r name command; do
        parts=$(grep -E "^$name(:|\$)" "$out/$tool/picks") || continue
        for ((i = 0, shares = ($(wc -l <<<"$parts") + 31) / 32; i < shares; i++)); do # side by side
            [ $shares -eq 1 ] && share=$name || share=$name-$i
            awk -v i=$i -v n=$shares 'NR % n == i' <<<"$parts" >"$out/$tool/$share.picks"
            echo "$tool $share ${command/TOOL/$tool}"
        done
    done
done | xargs -P "$jobs" -I{} bash -c 'run {}' | tee "$out/summary.txt"
if [ -n "$picking" ]; then
    { choose n 20000 300 && choose nr 0 20 | sed 's/^/+/'; } | LC_ALL=C sort >"$picks"
fi
for tool in $tools; do
    launched "$tool" | comm -13 - <(launched "$tool" all) >"$out/$tool/not-launched.txt"
    echo "$tool: $(launched "$tool" | wc -l) of $(launched "$tool" all | wc -l) kernels were launched," \
        "the others are in $out/$tool/not-launched.txt"
done
echo "$(grep -c ' ok ' "$out/summary.txt") clean, $(grep -c ' FAILED ' "$out/summary.txt") not, $(
    grep -c ' stopped ' "$out/summary.txt") stopped; $SECONDS s; logs in $out"
! grep -qv ' ok ' "$out/summary.txt"
