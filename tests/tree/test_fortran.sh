#!/usr/bin/env bash
# The Fortran module (fortran/tgrad.f90): its layouts against the C compiler's, its calls, and
# examples/predict.f90, which predicts the bytes of `tgrad predict`. Skipped without a compiler.
#
#   tests/tree/test_fortran.sh build/bin/tgrad <source tree> <build tree>
# shellcheck source=../support/checks.sh
tree=$(realpath "$2")
programs=$(realpath "$3")/fortran
source "$tree/tests/support/checks.sh"
if [ ! -x "$programs/fortran_module_test" ]; then
    echo "skipped: the build found no Fortran compiler, or has sanitizers"
    exit 77
fi
[ "$(wc -l <"$tree/examples/predict.f90")" -le 40 ] || complain "examples/predict.f90 has more than 40 lines"
[ "$(wc -l <"$tree/examples/predict.c")" -le 40 ] || complain "examples/predict.c has more than 40 lines"

"$tgrad" generate darcy --n-train 4 --n-test 2 --resolution 16 --grid 16 -o . >out 2>err || complain "generate"
cat >config.yaml <<'Y'
fno: {n_modes: [12, 12], hidden_channels: 4, n_layers: 1}
opt: {n_epochs: 1}
data: {root: ., set: darcy, batch_size: 2, encode_input: true}
Y
"$tgrad" train config.yaml --run run --quiet >out 2>err || complain "train"
checkpoint=run/checkpoints/recent.safetensors
"$tgrad" convert "$tree/tests/fixtures/fno_2d.safetensors" x.npy --dataset x >out 2>err || complain "convert"
"$tgrad" predict $checkpoint --input x.npy --output y.npy >out 2>err || complain "predict"

"$programs/fortran_module_test" $checkpoint >out 2>err || complain "the module"
last=example_predict_fortran
"$programs/example_predict_fortran" $checkpoint x.npy made.npy >out 2>err || complain "$last"
cmp -s y.npy made.npy || complain "$last and tgrad predict differ"
rm -f made.npy
"$programs/example_predict_fortran" none.safetensors x.npy made.npy >out 2>err && complain "no model, and exit code 0"
says err "none.safetensors"
[ ! -e made.npy ] || complain "an output in spite of a failure"

echo "$failures failures"
[ "$failures" -eq 0 ]
