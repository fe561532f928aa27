#!/usr/bin/env bash
# Looks for wrong, racing and uninitialized accesses of kernels with compute-sanitizer: in every test
# program that drives kernels, each script once and on the GPU alone, with every few of its shapes, and in a
# small training run. Prints a line for each; the exit code is 1 unless all are clean.
#
#   bench/sanitize.sh [OUT]                    logs go to OUT, otherwise to <build>/sanitize
#   TGRAD_BUILD=dir bench/sanitize.sh          takes that build folder instead of build-cuda
#   TGRAD_ONLY="memcheck initcheck" ..         only these tools (memcheck racecheck initcheck)
#   TGRAD_SECONDS=300 ..                       stops a program after so long; 60 unless told
#   TGRAD_TOTAL=240 ..                         stops all of them after so long
#   TGRAD_JOBS=4 ..                            so many programs at a time; one a core unless told
#   TEST_ONCE=1 ..                             all shapes, which takes an hour; every 31st unless told
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
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
limit=${TGRAD_SECONDS:-60}
end=$(($(date +%s) + ${TGRAD_TOTAL:-86400}))
export TEST_ONCE=${TEST_ONCE:-31} TEST_BACKEND=cuda

# sanitize TOOL NAME COMMAND..: one line; what was reported first, or where it was stopped, goes with it.
sanitize() {
    local tool=$1 name=$2 log=$out/$1-$2.txt start=$SECONDS result detail=
    shift 2
    local left=$((end - $(date +%s)))
    timeout $((left < 1 ? 1 : left < limit ? left : limit)) stdbuf -oL compute-sanitizer --tool "$tool" --error-exitcode 9 "$@" >"$log" 2>&1
    case $? in
    0) result=ok ;;
    124) result=stopped detail=" in $(grep -E 'RUN ' "$log" | tail -1 | sed 's/.*\] *//')" ;;
    *) result=FAILED detail=": $(grep -m1 -E '^========= (ERROR|Error|Invalid|Uninit|Race)|FAILED' "$log")" ;;
    esac
    printf '%-10s %-26s %-8s %3d s%s\n' "$tool" "$name" $result $((SECONDS - start)) "$detail"
}
export -f sanitize
export build out limit end

programs() {
    grep -lE 't_(run_rows|gpu_compare)\(' tests/test_*.c tests/cuda/test_*.c |
        sed -E "s|.*/(.*)\.c\$|\1 $build/bin/\1|"
    echo "train $tgrad train configs/darcy16.yaml --run $out/run-TOOL --data.root $out/data" \
        "--data.test_resolutions 16 --data.batch_size 2 --opt.n_epochs 2 --opt.update_proj_gap 3 --backend cuda -q"
}

rm -rf "$out/data" "$out"/run-*
"$tgrad" generate darcy --n-train 8 --n-test 4 --resolution 16 --grid 32 -o "$out/data" >"$out/data.txt" 2>&1 ||
    { cat "$out/data.txt" && exit 1; }
: >"$out/summary.txt"
for tool in ${TGRAD_ONLY:-memcheck racecheck initcheck}; do
    programs | sed "s/^/$tool /; s/run-TOOL/run-$tool/"
done | xargs -P "${TGRAD_JOBS:-$(nproc)}" -I{} bash -c 'sanitize {}' | tee -a "$out/summary.txt"
echo "$(grep -c ' ok ' "$out/summary.txt") clean, $(grep -c ' FAILED ' "$out/summary.txt") not, $(
    grep -c ' stopped ' "$out/summary.txt") stopped; $SECONDS s; logs in $out"
! grep -qv ' ok ' "$out/summary.txt"
